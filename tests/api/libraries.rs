//! The `verbs` provider on a machine whose libraries are missing or too old.
#![cfg(all(feature = "verbs", not(feature = "rdma-sys")))]
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, process};

use common::interop::example_program;

/// A folder that is searched for libraries before those of the system, gone with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("tokio-rdma-libraries-{name}-{}", process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    /// Returns the line about the `verbs` provider of a program that lists all providers.
    fn says(&self) -> String {
        let program = example_program("adapters");
        let output = Command::new(program).env("LD_LIBRARY_PATH", &self.0).env_remove("RUST_LOG").output();
        let output = output.expect("started");
        let stdout = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success() && output.stderr.is_empty(), "{stdout}");
        assert!(stdout.contains("provider soft"), "{stdout}");
        let mut lines = stdout.lines().filter(|line| line.contains("verbs"));
        let line = lines.next().expect("a line about verbs").to_owned();
        assert_eq!(lines.next(), None, "{stdout}");
        line
    }

    /// Returns the fault that the check-up names.
    fn fault(&self) -> String {
        let program = example_program("doctor");
        // An address is named, so that a device is wanted on a machine without one, too.
        let mut command = Command::new(program);
        let output = command.arg("127.0.0.1").env("LD_LIBRARY_PATH", &self.0).env_remove("RUST_LOG").output();
        let output = output.expect("started");
        let stdout = String::from_utf8(output.stdout).expect("text");
        assert_eq!(output.status.code(), Some(1), "{stdout}");
        let mut faults = stdout.lines().filter_map(|line| line.strip_prefix("fault: "));
        let fault = faults.next().expect("a fault").to_owned();
        assert_eq!(faults.next(), None, "{stdout}");
        assert!(stdout.contains("apt install librdmacm1"), "{stdout}");
        fault
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

// An empty file hides the library from the loader, and `check_up` and the tool report the same fault (HW-12, HW-17).
#[test]
fn missing_libraries_are_named_in_one_sentence() {
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        let folder = Folder::new(library);
        // The loader takes the first file of this name, and cannot load it.
        fs::write(folder.0.join(library), "").expect("written");
        let line = folder.says();
        assert!(line.contains("cannot be loaded: install rdma-core"), "{line}");
        assert_eq!(line, format!("provider verbs: {}", folder.fault()));
    }
}

// HW-17: nothing is wrong with a machine without a device.
#[test]
fn a_machine_without_a_device_has_no_fault() {
    if fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        return eprintln!("skipped: the machine has a device");
    }
    let output = Command::new(example_program("doctor")).env_remove("RUST_LOG").output().expect("started");
    let stdout = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{stdout}");
    let first = "this machine has no RDMA device: its programs use the provider soft";
    assert_eq!(stdout.lines().next(), Some(first), "{stdout}");
    assert!(!stdout.contains("fault: "), "{stdout}");
}

// A library without functions stands for an old one (HW-12, HW-17).
#[test]
fn outdated_libraries_are_named_in_one_sentence() {
    // Without functions. (Where it is libibverbs, the loader refuses librdmacm.)
    let folder = Folder::new("old");
    if folder.says().contains("cannot be loaded") {
        return eprintln!("skipped: needs libibverbs and librdmacm");
    }
    let mut compiler = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(folder.0.join("librdmacm.so.1"));
    assert!(compiler.status().expect("a compiler").success());
    let line = folder.says();
    assert!(line.contains("is too old: install rdma-core 28"), "{line}");
    assert_eq!(line, format!("provider verbs: {}", folder.fault()));
}
