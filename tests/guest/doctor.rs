//! The check-up of the example `doctor`, with one fault at a time that is planted in the machine.
//!
//! Runs on: guest
#![cfg(feature = "verbs")]

use std::fs;
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::guest::{addresses, is_guest};
use common::programs::{example_command, stdout};

/// A user without rights.
const NOBODY: u32 = 65_534;
/// The network namespace of the tests that need another one.
const NAMESPACE: &str = "doctor";

/// Locks the machine, so that no other test changes it. Returns `None` on the host, with a line that says so.
fn machine() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    is_guest().then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A fault of the machine that ends with this value.
struct Planted {
    undo: String,
}

impl Planted {
    /// Runs a script that plants the fault. The script `undo` removes it, also if the first one fails halfway.
    fn new(plant: &str, undo: &str) -> Self {
        let planted = Self { undo: undo.to_owned() };
        shell(plant);
        planted
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        let status = Command::new("sh").args(["-c", &self.undo]).status();
        // A second panic would hide the first.
        if !status.is_ok_and(|status| status.success()) && !std::thread::panicking() {
            panic!("not undone: {}", self.undo);
        }
    }
}

fn shell(script: &str) {
    let output = Command::new("sh").args(["-ec", script]).output().expect("sh");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The findings of the example.
#[derive(Debug)]
struct Found {
    /// Each fault with its remedy.
    faults: Vec<(String, String)>,
    /// The line of each address that an adapter serves.
    choices: Vec<String>,
    /// The line about the limit of locked memory.
    limit: Option<String>,
    /// Whether the first line says that there is no device.
    is_without_device: bool,
}

impl Found {
    /// Runs the example through `wrapper`, which may have arguments of its own.
    fn new(wrapper: &[&str], address: Option<IpAddr>, prepare: impl FnOnce(&mut Command)) -> Self {
        let doctor = example_command("doctor");
        let mut command = match wrapper {
            [] => doctor,
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(doctor.get_program()).env_remove("RUST_LOG");
                command
            }
        };
        command.args(address.map(|address| address.to_string()));
        prepare(&mut command);
        let output = command.output().expect("started");
        let text = stdout(&output);
        let (mut faults, mut choices, mut limit) = (Vec::new(), Vec::new(), None);
        let mut lines = text.lines().peekable();
        let none = "this machine has no RDMA device: its programs use the provider soft";
        let is_without_device = lines.next_if_eq(&none).is_some();
        let word = if is_without_device { "if it should have one: " } else { "fault: " };
        while let Some(line) = lines.next() {
            match line.strip_prefix(word) {
                Some(fault) => {
                    let remedy = lines.next().and_then(|line| line.strip_prefix("    ")).expect("a remedy");
                    faults.push((fault.to_owned(), remedy.to_owned()));
                }
                None if line.starts_with("ulimit -l: ") => limit = Some(line.to_owned()),
                None => choices.push(line.to_owned()),
            }
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let is_wrong = !faults.is_empty() && !is_without_device;
        assert_eq!(output.status.code(), Some(i32::from(is_wrong)), "{text}{errors}");
        Self { faults, choices, limit, is_without_device }
    }

    /// Checks the whole machine.
    fn of_machine() -> Self {
        Self::new(&[], None, |_| {})
    }

    /// Checks an address.
    fn of(address: IpAddr) -> Self {
        Self::new(&[], Some(address), |_| {})
    }

    /// Checks that there is one fault, with this text and remedy.
    #[track_caller]
    fn names(&self, fault: &str, remedy: &str) {
        assert_eq!(self.faults, [(fault.to_owned(), remedy.to_owned())], "{self:?}");
    }

    /// Returns the texts of the faults.
    fn texts(&self) -> Vec<&str> {
        self.faults.iter().map(|(fault, _)| &fault[..]).collect()
    }

    /// Checks that the soft provider serves the address.
    #[track_caller]
    fn falls_back(&self) {
        let [choice] = &self.choices[..] else { panic!("{self:?}") };
        assert!(choice.ends_with(" of the provider soft, because no device can be used for the address"));
    }
}

/// Runs a program without rights.
fn as_nobody(command: &mut Command) {
    command.uid(NOBODY).gid(NOBODY);
}

/// Returns the IPv4 address of rxe.
fn rxe() -> IpAddr {
    addresses("RXE")[0]
}

/// Returns the device file of a device.
fn file_of(device: &str) -> PathBuf {
    let entries = fs::read_dir("/sys/class/infiniband_verbs").expect("the module is loaded");
    let entry = entries
        .flatten()
        .find(|entry| fs::read_to_string(entry.path().join("ibdev")).is_ok_and(|name| name.trim() == device));
    Path::new("/dev/infiniband").join(entry.expect("the device").file_name())
}

// HW-17: without a fault each address of a device is served by its device.
#[test]
fn a_machine_without_a_fault_uses_its_devices() {
    let Some(_machine) = machine() else { return };
    let found = Found::of_machine();
    assert!(found.faults.is_empty(), "{found:?}");
    for (device, name) in [("RXE", "rxe0"), ("SIW", "siw0")] {
        for address in addresses(device) {
            let found_here = Found::of(address);
            assert!(found_here.faults.is_empty(), "{found_here:?}");
            let [choice] = &found_here.choices[..] else { panic!("{found_here:?}") };
            assert!(
                choice.starts_with(&format!("{address}: {name} of the provider verbs, MTU ")),
                "{choice}"
            );
            assert!(choice.ends_with(", because rdma_cm finds this device for the address"), "{choice}");
            assert!(found.choices.contains(choice), "{found:?}");
        }
    }
}

// rdma_ucm is removed, and the kernel cannot load it again (HW-17).
#[test]
fn a_missing_module_is_named() {
    let Some(_machine) = machine() else { return };
    // The kernel would load rdma_ucm by itself when librdmacm asks for its device.
    let _planted = Planted::new(
        "echo /bin/false >/proc/sys/kernel/modprobe; rmmod rdma_ucm",
        "echo /sbin/modprobe >/proc/sys/kernel/modprobe; modprobe rdma_ucm",
    );
    for address in [None, Some(rxe())] {
        let found = Found::new(&[], address, |_| {});
        found.names("the kernel module rdma_ucm is not loaded", "modprobe rdma_ucm");
    }
    Found::of(rxe()).falls_back();
}

// HW-17: without drivers, and then without the modules below them.
#[test]
fn missing_drivers_are_named() {
    let Some(_machine) = machine() else { return };
    let _planted = Planted::new(
        "echo /bin/false >/proc/sys/kernel/modprobe; rdma link del rxe0; rmmod rdma_rxe siw",
        "echo /sbin/modprobe >/proc/sys/kernel/modprobe; modprobe -a rdma_rxe rdma_ucm
        rdma link add rxe0 type rxe netdev veth0 && guest-siw stock",
    );
    let found = Found::of_machine();
    assert_eq!((found.texts(), found.is_without_device), (vec!["the kernel has no RDMA device"], true));
    assert!(found.faults[0].1.contains("rdma link add rxe0 type rxe"), "{found:?}");
    // With rdma_cm, so that it is loaded after ib_uverbs again: the kernel takes a removed device from the last one first.
    // rdma_cm then informs the programs of the removal for which ib_uverbs waits; the other way round, the removal
    // hangs.
    shell("rmmod rdma_ucm rdma_cm ib_uverbs");
    let expected = ["the kernel module ib_uverbs is not loaded", "the kernel module rdma_ucm is not loaded"];
    assert_eq!(Found::of_machine().texts(), expected);
}

// HW-17: as in a container that was not given the files.
#[test]
fn a_missing_device_file_is_named() {
    let Some(_machine) = machine() else { return };
    for file in [PathBuf::from("/dev/infiniband/rdma_cm"), file_of("rxe0")] {
        let file = file.display();
        let _planted = Planted::new(&format!("mv {file} {file}.away"), &format!("mv {file}.away {file}"));
        let remedy = "udevadm trigger; for a container: docker run --device=/dev/infiniband";
        Found::of(rxe()).names(&format!("{file} does not exist"), remedy);
        Found::of(rxe()).falls_back();
        Found::of_machine().names(&format!("{file} does not exist"), remedy);
    }
}

// The process without privileges cannot open a file of mode 600, and the superuser can (HW-17).
#[test]
fn a_device_file_without_permission_is_named() {
    let Some(_machine) = machine() else { return };
    for file in [PathBuf::from("/dev/infiniband/rdma_cm"), file_of("rxe0")] {
        let file = file.display();
        let _planted = Planted::new(&format!("chmod 600 {file}"), &format!("chmod 666 {file}"));
        let text = format!("{file} cannot be opened: Permission denied (os error 13)");
        for address in [None, Some(rxe())] {
            let found = Found::new(&[], address, as_nobody);
            found.names(&text, &format!("chmod a+rw {file}"));
        }
        // The superuser may open it all the same.
        assert!(Found::of(rxe()).faults.is_empty());
    }
}

// The process without privileges may lock 64 KiB (HW-17).
#[test]
fn a_low_limit_of_locked_memory_is_named() {
    let Some(_machine) = machine() else { return };
    for address in [None, Some(rxe())] {
        let limit = ["prlimit", "--memlock=65536:65536"];
        let found = Found::new(&limit, address, as_nobody);
        let text = "cannot lock 1048576 bytes: the process may lock 65536 bytes in total (ulimit -l)";
        assert_eq!(found.texts(), [text], "{found:?}");
        assert!(found.faults[0].1.starts_with("ulimit -l unlimited"), "{found:?}");
    }
}

// HW-19: a container that adds IPC_LOCK for a program without root, of which the example knows the reason.
#[test]
fn capability_without_effect_is_named() {
    let Some(_machine) = machine() else { return };
    let restricted = |set: &'static str| {
        [
            "setpriv",
            set,
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "prlimit",
            "--memlock=65536:65536",
        ]
    };
    let limit = "cannot lock 1048576 bytes: the process may lock 65536 bytes in total (ulimit -l)";
    let found = Found::new(&restricted("--bounding-set=-sys_module"), Some(rxe()), |_| {});
    let reason = "; the capability IPC_LOCK has no effect, because this process does not run as root";
    assert_eq!(found.texts(), [format!("{limit}{reason}")], "{found:?}");
    assert!(found.faults[0].1.starts_with("docker run --ulimit memlock=-1"), "{found:?}");
    // A container without it, in which the capability is no topic.
    let found = Found::new(&restricted("--bounding-set=-sys_module,-ipc_lock"), Some(rxe()), |_| {});
    assert_eq!(found.texts(), [limit], "{found:?}");
}

// HW-19: the number of streams for which the limit is enough, which the superuser does not have.
#[test]
fn streams_within_the_limit_are_counted() {
    let Some(_machine) = machine() else { return };
    let limit = ["prlimit", "--memlock=16777216:16777216"];
    let found = Found::new(&limit, Some(rxe()), as_nobody);
    assert!(found.faults.is_empty(), "{found:?}");
    let line = found.limit.expect("the line");
    let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [bytes, streams, each] = numbers[..] else { panic!("{line}") };
    assert_eq!((bytes, streams), (16_777_216, 16_777_216 / each), "{line}");
    assert!((128 << 10..1 << 20).contains(&each), "{line}");
    assert_eq!(Found::new(&limit, Some(rxe()), |_| {}).limit, None);
}

// An empty file and a library without functions stand for a missing and an old library (HW-17).
#[cfg(not(feature = "rdma-sys"))]
#[test]
fn missing_and_old_libraries_are_named() {
    let Some(_machine) = machine() else { return };
    let folder = PathBuf::from(std::env::var_os("TOKIO_RDMA_SCRATCH").expect("a folder")).join("doctor");
    for (library, content, sentence) in [
        ("libibverbs.so.1", ":>", "cannot be loaded: install rdma-core"),
        ("librdmacm.so.1", ":>", "cannot be loaded: install rdma-core"),
        // Without the functions of later versions, as of any.
        ("librdmacm.so.1", "cc -shared -x c /dev/null -o", "is too old: install rdma-core 28"),
    ] {
        let path = folder.display();
        let plant = format!("mkdir {path}; {content} {path}/{library}");
        let _planted = Planted::new(&plant, &format!("rm -r {path}"));
        let found = Found::new(&[], Some(rxe()), |command| {
            command.env("LD_LIBRARY_PATH", &folder);
        });
        let [(fault, remedy)] = &found.faults[..] else { panic!("{found:?}") };
        assert!(fault.contains(sentence), "{fault}");
        assert!(remedy.starts_with("apt install librdmacm1 ibverbs-providers"), "{remedy}");
        found.falls_back();
    }
}

// HW-17: the library of a driver is a package of its own.
#[test]
fn a_missing_library_of_a_driver_is_named() {
    let Some(_machine) = machine() else { return };
    let _planted = Planted::new("mount -t tmpfs tmpfs /etc/libibverbs.d", "umount /etc/libibverbs.d");
    let found = Found::of_machine();
    let expected =
        ["rxe0", "siw0"].map(|device| format!("libibverbs has no library for the driver of {device}"));
    let mut texts = found.texts();
    texts.sort_unstable();
    assert_eq!(texts, expected, "{found:?}");
    assert!(found.faults.iter().all(|(_, remedy)| remedy.contains("ibverbs-providers")), "{found:?}");
}

// The fault names the interface that has the address, or that there is none (HW-17).
#[test]
fn an_address_of_no_device_is_named() {
    let Some(_machine) = machine() else { return };
    let found = Found::of([127, 0, 0, 1].into());
    let text = "no RDMA device has the address 127.0.0.1, which is of the network interface lo";
    assert_eq!(found.texts(), [text], "{found:?}");
    assert!(found.faults[0].1.contains(&rxe().to_string()), "{found:?}");
    found.falls_back();
    let found = Found::of([203, 0, 113, 77].into());
    assert_eq!(found.texts(), ["no network interface has the address 203.0.113.77"], "{found:?}");
    assert!(found.choices.is_empty(), "{found:?}");
}

// HW-17: by the interface if its address is asked for, and otherwise by the port.
#[test]
fn a_port_that_is_down_is_named() {
    let Some(_machine) = machine() else { return };
    let address = IpAddr::from([10, 91, 0, 1]);
    let _planted = Planted::new(
        &format!(
            "ip link add near type veth peer name far
            ip address add {address}/24 dev near
            ip link set near up
            ip link set far up
            rdma link add rxe9 type rxe netdev near"
        ),
        "rdma link del rxe9; ip link del near",
    );
    assert!(Found::of(address).faults.is_empty());
    shell("ip link set near down");
    let remedy = "ip link set near up";
    Found::of(address).names("the network interface near, which has the address 10.91.0.1, is down", remedy);
    Found::of_machine().names("port 1 of rxe9 is not active", remedy);
    shell(remedy);
    assert!(Found::of(address).faults.is_empty());
    // The interface is up, and its cable is unplugged.
    shell("ip link set far down");
    Found::of(address).names("port 1 of rxe9 is not active", remedy);
}

// HW-17: devices that every namespace may use, and addresses that only one has.
#[test]
fn a_device_of_another_namespace_is_named() {
    let Some(_machine) = machine() else { return };
    let address = IpAddr::from([10, 90, 0, 1]);
    let _planted = Planted::new(
        &format!(
            "ip netns add {NAMESPACE}
            ip link add inside type veth peer name outside
            ip link set inside netns {NAMESPACE}
            ip link set outside up
            ip -n {NAMESPACE} address add {address}/24 dev inside
            ip -n {NAMESPACE} link set inside up"
        ),
        &format!("ip link del outside; ip netns del {NAMESPACE}"),
    );
    for address in [None, Some(address)] {
        let found = Found::new(&["ip", "netns", "exec", NAMESPACE], address, |_| {});
        let texts = found.texts();
        assert!(texts.contains(&"rxe0 is in another network namespace"), "{found:?}");
        // The kernel does not list the addresses of an iWARP device.
        let siw =
            "siw0 has no IP address: its network interface has none, or is in another network namespace";
        assert!(texts.contains(&siw) && texts.len() == 2, "{found:?}");
        let rxe = found.faults.iter().find(|(fault, _)| fault.starts_with("rxe0")).expect("named");
        assert!(rxe.1.contains("docker run --network=host"), "{found:?}");
    }
}

// HW-17: devices that belong to one namespace each.
#[test]
fn an_exclusive_device_of_another_namespace_is_named() {
    let Some(_machine) = machine() else { return };
    // The mode changes only while there is one namespace, and a namespace goes some time after its last process.
    let mode = |mode| {
        format!("for _ in $(seq 600); do rdma system set netns {mode} 2>&1 && exit; sleep 0.1; done; exit 1")
    };
    let _mode = Planted::new(&mode("exclusive"), &mode("shared"));
    let _namespace = Planted::new(&format!("ip netns add {NAMESPACE}"), &format!("ip netns del {NAMESPACE}"));
    let found = Found::new(&["ip", "netns", "exec", NAMESPACE], None, |_| {});
    let mut texts = found.texts();
    texts.sort_unstable();
    let expected = ["rxe0 is in another network namespace", "siw0 is in another network namespace"];
    assert_eq!(texts, expected, "{found:?}");
    assert!(found.faults[0].1.contains("rdma dev set"), "{found:?}");
}
