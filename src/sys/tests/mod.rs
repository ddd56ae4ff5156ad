//! Tests of the handles: against the C headers, on a machine without devices, and on real ones in the guest.

mod data;
mod guest;
mod layout;

use std::io;

use super::device::{self, Context};
use super::id::EventChannel;

/// Returns whether this machine has a device, or could get one while the tests run.
fn may_have_devices() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

#[test]
#[expect(clippy::print_stdout, reason = "the line is counted by `cargo xtask test`")]
fn calls_without_devices_return_errors() {
    if may_have_devices() {
        return println!("skipped: needs a machine without RDMA devices");
    }
    assert_eq!(device::device_names().unwrap(), Vec::<String>::new());
    assert!(Context::open("rxe0").is_err());
    if super::load().is_err() {
        assert_eq!(EventChannel::new().err().map(|error| error.kind()), Some(io::ErrorKind::Unsupported));
    } else if !std::path::Path::new("/dev/infiniband/rdma_cm").exists() {
        let error = EventChannel::new().err().expect("there is no connection manager");
        assert_ne!(error.raw_os_error(), None, "{error}");
        assert_ne!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
