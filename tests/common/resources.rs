//! The resources of a process: descriptors, and the objects of RDMA devices that `rdma resource` lists.

use std::collections::BTreeMap;
use std::process::Command;

use super::device::Device;

/// How many of each kind this process holds. In the machine with the devices nobody else has any; the number that the
/// kernel names is that of a thread, which may be gone.
pub fn held() -> BTreeMap<&'static str, usize> {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("a Linux system").count();
    let mut held = BTreeMap::from([("descriptors", descriptors)]);
    if Device::under_test().is_soft() {
        return held;
    }
    for kind in ["pd", "cq", "qp", "cm_id", "mr"] {
        let output = Command::new("rdma").args(["resource", "show", kind]).output().expect("rdma");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        // The kernel's own have no number.
        held.insert(kind, text.lines().filter(|line| line.contains(" pid ")).count());
    }
    held
}
