//! The resources of a process: memory, descriptors, and the objects of RDMA devices that `rdma resource` lists.

use std::collections::BTreeMap;
use std::process::Command;

use tokio::runtime::Handle;

use super::device::Device;

/// How many of each kind this process holds. In the machine with the devices nobody else has any; the number that the
/// kernel names is that of a thread, which may be gone.
pub fn held() -> BTreeMap<&'static str, usize> {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("a Linux system").count();
    let mut held = BTreeMap::from([("descriptors", descriptors)]);
    match Device::under_test() {
        Device::Soft => return held,
        Device::Sim => {
            // A connection of a simulated network has no descriptor. It has a task.
            held.insert("tasks", Handle::current().metrics().num_alive_tasks());
            return held;
        }
        Device::Rxe | Device::Siw | Device::Fake | Device::FakeIwarp => {}
    }
    for kind in ["pd", "cq", "qp", "cm_id", "mr"] {
        if Device::under_test().is_fake() {
            let count = fake_control::tell(&format!("count {kind}")).expect("the device counts them");
            held.insert(kind, usize::try_from(count).expect("a count"));
            continue;
        }
        // The kernel's own have no number.
        held.insert(kind, listed(kind).lines().filter(|line| line.contains(" pid ")).count());
    }
    held
}

/// The output of `rdma resource show` for a kind of objects: a line each, of all devices.
///
/// The program asks for the devices first and then for the objects of each, and fails if a device has gone in between. It is
/// run again if that is so: if the devices are others than before.
pub fn listed(kind: &str) -> String {
    let mut before = devices();
    loop {
        let output = Command::new("rdma").args(["resource", "show", kind]).output().expect("rdma");
        if output.status.success() {
            return String::from_utf8_lossy(&output.stdout).into_owned();
        }
        let now = devices();
        assert_ne!(now, before, "{output:?}");
        before = now;
    }
}

/// The devices, each with its number, which no other gets.
fn devices() -> String {
    let output = Command::new("rdma").args(["dev", "show"]).output().expect("rdma");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// How many bytes of this process are in physical memory. Others share them who have the same program loaded.
pub fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("a Linux system");
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).expect("a line of its own");
    let kibibytes: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kibibytes << 10
}
