//! What a process holds: descriptors, and of the RDMA devices the objects that `rdma resource` lists.

use std::collections::BTreeMap;
use std::process::Command;

use super::device::Device;

/// How many of each kind this process holds.
pub fn held() -> BTreeMap<String, usize> {
    held_by(std::process::id())
}

/// The same of another process.
pub fn held_by(process: u32) -> BTreeMap<String, usize> {
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).map_or(0, Iterator::count);
    let mut held = BTreeMap::from([("descriptors".to_owned(), descriptors)]);
    if Device::under_test().is_soft() {
        return held;
    }
    for kind in ["pd", "cq", "qp", "cm_id", "mr"] {
        let output = Command::new("rdma").args(["resource", "show", kind]).output().expect("rdma");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let own = format!(" pid {process} ");
        let count = text.lines().filter(|line| format!("{line} ").contains(&own)).count();
        held.insert(kind.to_owned(), count);
    }
    held
}
