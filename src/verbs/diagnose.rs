//! The faults that keep programs from the RDMA devices of a machine, each with the command that removes it.
//!
//! A fault begins with a call of a library that fails, or with a device that a call does not list. Only then are the kernel's
//! files read, to find the cause: a machine on which the calls succeed has no fault, whatever these files say.
//!
//! One of them is the limit of the memory that this process may lock, and the capability that lifts it. The kernel asks for the capability
//! in the first user namespace (`ib_umem_get`), and only one that is in effect counts: a container that adds `IPC_LOCK` puts it into the
//! bounding set, which gives it to root alone (capabilities(7)).

use std::fs::{self, OpenOptions};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::config::VerbsConfig;
use super::devices::{self, Owner, owner, without_scope};
use crate::error::{OpenError, RegisterError};
use crate::net::kernel::interfaces::{interface_of, interfaces};
use crate::sys::{self, Context, EventChannel, device_names, memlock_limit};

/// A fault that keeps a program from an RDMA device. [`check_up`](crate::verbs::check_up) finds them.
///
/// The text of the error says in one sentence what is wrong, and [`remedy`](Self::remedy) what to type.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// libibverbs or librdmacm cannot be loaded, or lacks a function because it is too old.
    #[error("{0}")]
    Libraries(&'static str),
    /// The kernel has the device, and libibverbs has no library for its driver, for example `libmlx5`.
    #[error("libibverbs has no library for the driver of {device}")]
    DriverLibrary {
        /// The name of the device.
        device: String,
    },
    /// A kernel module is not loaded.
    #[error("the kernel module {module} is not loaded")]
    Module {
        /// The name of the module.
        module: &'static str,
    },
    /// No driver of the kernel has registered a device.
    #[error("the kernel has no RDMA device")]
    NoDevice,
    /// The kernel has the device, and its file in `/dev/infiniband` does not exist.
    #[error("{} does not exist", path.display())]
    DeviceFile {
        /// The path of the file.
        path: PathBuf,
    },
    /// This process may not open a device file.
    #[error("{} cannot be opened: {source}", path.display())]
    Permission {
        /// The path of the file.
        path: PathBuf,
        /// The error of open(2).
        source: Arc<io::Error>,
    },
    /// This process may not lock enough memory.
    #[error(transparent)]
    MemoryLock(RegisterError),
    /// This process may not lock enough memory, although its container was given the capability `IPC_LOCK`.
    ///
    /// A container gives its capabilities to programs that run as root (capabilities(7)). What counts is `CapEff` of `/proc/self/status`.
    #[error("{error}; the capability IPC_LOCK has no effect, because {reason}")]
    IpcLockInVain {
        /// The error of the registration.
        error: RegisterError,
        /// The cause, as a part of a sentence.
        reason: &'static str,
    },
    /// The device belongs to another network namespace than this process.
    #[error("{device} is in another network namespace")]
    Namespace {
        /// The name of the device.
        device: String,
    },
    /// No address of this machine leads to the device.
    #[error("{device} has no IP address: its network interface has none, or is in another network namespace")]
    NoAddress {
        /// The name of the device.
        device: String,
    },
    /// This machine does not have the address.
    #[error("no network interface has the address {address}")]
    NotLocal {
        /// The address that was to be checked.
        address: IpAddr,
    },
    /// The network interface is switched off.
    #[error("the network interface {interface}, which has the address {address}, is down")]
    InterfaceDown {
        /// The name of the network interface.
        interface: String,
        /// The address that was to be checked.
        address: IpAddr,
    },
    /// A network interface has the address, and no device belongs to that interface.
    #[error("no RDMA device has the address {address}, which is of the network interface {interface}")]
    NotOfDevice {
        /// The address that was to be checked.
        address: IpAddr,
        /// The name of the network interface.
        interface: String,
        /// The addresses of this machine that devices have.
        others: Vec<IpAddr>,
    },
    /// The port of the device is not active.
    #[error("port {port} of {device} is not active")]
    PortDown {
        /// The name of the device.
        device: String,
        /// The number of the port; the first is 1.
        port: u8,
        /// The name of the network interface of the port, if it is known.
        interface: Option<String>,
    },
    /// rdma_cm chooses the device for the address, and the device cannot connect to itself.
    ///
    /// Some virtual functions and the devices of some hosted machines are like that. Connections to other machines may work.
    #[error("{device} takes the address {address} and cannot connect to itself: {source}")]
    Rival {
        /// The name of the device.
        device: String,
        /// The address.
        address: IpAddr,
        /// The error of the connection.
        source: Arc<io::Error>,
    },
    /// Another failure.
    #[error(transparent)]
    Other(OpenError),
}

impl Fault {
    /// Returns the command that removes the fault, or a short instruction if there is no such command.
    ///
    /// Commands that need a different text on each machine contain a word in capital letters in its place.
    pub fn remedy(&self) -> String {
        match self {
            Self::Libraries(_) | Self::DriverLibrary { .. } => {
                "apt install librdmacm1 ibverbs-providers (Fedora: dnf install librdmacm libibverbs)".to_owned()
            }
            Self::Module { module } => format!("modprobe {module}"),
            Self::NoDevice => {
                "modprobe the driver of the card (lspci -k), or for a device in software: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE".to_owned()
            }
            Self::DeviceFile { .. } => {
                "udevadm trigger; for a container: docker run --device=/dev/infiniband".to_owned()
            }
            Self::Permission { path, source } => match source.raw_os_error() {
                // Not the mode of the file, but the device controller of the control group.
                Some(libc::EPERM) => "docker run --device=/dev/infiniband".to_owned(),
                _ => format!("chmod a+rw {}", path.display()),
            },
            Self::MemoryLock(_) => {
                "ulimit -l unlimited (a service: LimitMEMLOCK=infinity; docker run --ulimit memlock=-1)".to_owned()
            }
            Self::IpcLockInVain { .. } => {
                "docker run --ulimit memlock=-1 (Kubernetes: LimitMEMLOCK=infinity for the service of the container runtime), or setcap cap_ipc_lock+ep PROGRAM in the image".to_owned()
            }
            Self::Namespace { device } => {
                format!("docker run --network=host, or if rdma system shows exclusive: rdma dev set {device} netns NAME")
            }
            Self::NoAddress { device } => {
                format!("ip address add ADDRESS/LENGTH dev INTERFACE (rdma link show {device} names it)")
            }
            Self::NotLocal { .. } => "ip address show lists the addresses of this machine".to_owned(),
            Self::InterfaceDown { interface, .. } | Self::PortDown { interface: Some(interface), .. } => {
                format!("ip link set {interface} up")
            }
            Self::NotOfDevice { interface, others, .. } => match &others[..] {
                [] => format!("rdma link add rxe0 type rxe netdev {interface}"),
                others => {
                    let others = others.iter().map(ToString::to_string).collect::<Vec<_>>();
                    format!("use an address of a device: {}", others.join(" "))
                }
            },
            Self::PortDown { device, port, interface: None } => {
                format!("rdma link show {device}/{port} (InfiniBand needs a subnet manager: opensm)")
            }
            Self::Rival { device, .. } => {
                format!("export TOKIO_RDMA_DEVICES=^{device}, and the soft provider serves the address (in a program: VerbsConfig::devices or Provider::soft)")
            }
            Self::Other(_) => "dmesg may say why".to_owned(),
        }
    }
}

/// The folder of the kernel module `ib_uverbs`, with an entry for each device, in every network namespace.
const UVERBS: &str = "/sys/class/infiniband_verbs";
/// The folder of the devices that this network namespace may use.
const DEVICES: &str = "/sys/class/infiniband";
/// The entry of the kernel module `rdma_ucm`.
const RDMA_CM: &str = "/sys/class/misc/rdma_cm";
/// The folder of the device files.
const FILES: &str = "/dev/infiniband";

/// A device of the kernel.
struct Node {
    /// Its name, such as `rxe0`.
    device: String,
    /// Its file, such as `/dev/infiniband/uverbs0`.
    file: PathBuf,
}

/// Returns the faults of all devices of the machine.
pub(crate) fn faults() -> Vec<Fault> {
    if let Err(sentence) = sys::load() {
        return vec![Fault::Libraries(sentence)];
    }
    let listed = match device_names() {
        Ok(names) => names,
        Err(source) => return vec![failed("ibv_get_device_list", source)],
    };
    let nodes = nodes(Path::new(UVERBS));
    let mut found: Vec<_> =
        nodes.iter().filter(|node| !listed.contains(&node.device)).map(unlisted).collect();
    if listed.is_empty() && nodes.is_empty() {
        let loaded = Path::new(UVERBS).exists();
        found.push(if loaded { Fault::NoDevice } else { Fault::Module { module: "ib_uverbs" } });
    }
    let mut usable = Vec::new();
    // A fault of a device that is not used does no harm.
    let config = VerbsConfig::default();
    for device in listed.iter().filter(|device| !config.excludes(device)) {
        match device_fault(device, &nodes) {
            Some(fault) => found.push(fault),
            None => usable.push(device),
        }
    }
    match EventChannel::new() {
        Ok(_) => found.extend(unreachable(&usable)),
        Err(source) => match connection_manager(Path::new(RDMA_CM), &Path::new(FILES).join("rdma_cm")) {
            Some(fault) => found.push(fault),
            // Without a device there is no channel.
            None if found.is_empty() => found.push(failed("rdma_create_event_channel", source)),
            None => {}
        },
    }
    found
}

/// Returns the faults that keep `address` from a device, and the largest payload of a packet of its device, if one has it.
pub(crate) fn faults_of(address: IpAddr) -> (Vec<Fault>, Option<u32>) {
    let interface = match interface_of(address) {
        Ok(Some(interface)) => interface,
        // The list of an interface leaves these out: without a scope they name no interface, and opening one fails.
        Ok(None) if is_link_local(address) => return (Vec::new(), None),
        Ok(None) => return (vec![Fault::NotLocal { address }], None),
        Err(source) => return (vec![failed("getifaddrs", source)], None),
    };
    if !interface.up {
        return (vec![Fault::InterfaceDown { interface: interface.name, address }], None);
    }
    let config = VerbsConfig::default();
    let local = SocketAddr::new(address.to_canonical(), 0);
    let bound = devices::channel().ok().and_then(|channel| owner(&channel, &config, local));
    if let Some(Owner { device: bound, excluded_by }) = bound {
        if excluded_by.is_some() {
            // The soft provider serves the address, because a list excludes the device.
            return (Vec::new(), None);
        }
        let context = open(&bound.name, &nodes(Path::new(UVERBS)));
        let port = context
            .and_then(|context| context.port(bound.port).map_err(|source| failed("ibv_query_port", source)));
        return match port {
            Ok(port) if port.is_active() => (Vec::new(), port.mtu),
            Ok(_) => (vec![port_down(&bound.name, bound.port)], None),
            Err(fault) => (vec![fault], None),
        };
    }
    let mut found = faults();
    // These are about devices that do not have the address, and do not explain that none has it.
    let of_others = |fault: &Fault| matches!(fault, Fault::PortDown { .. } | Fault::NoAddress { .. });
    if found.iter().all(of_others) {
        let others = devices::addresses(&config).unwrap_or_default();
        found.push(Fault::NotOfDevice { address, interface: interface.name, others });
    }
    (found, None)
}

/// Returns every address that a device has, whether or not the device is used, but for those that need a scope.
pub(crate) fn addresses() -> Result<Vec<IpAddr>, OpenError> {
    let devices = devices::list(&VerbsConfig::default())?;
    Ok(devices.into_iter().flat_map(|(device, _)| without_scope(&device.addresses)).collect())
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Returns the fault of a call.
fn failed(call: &'static str, source: io::Error) -> Fault {
    Fault::Other(OpenError::Os { call, source: source.into() })
}

/// Returns the names of the devices that the kernel has, also of those that programs cannot use.
pub(crate) fn device_list() -> Vec<String> {
    let entries = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    // Those of other network namespaces, and those that only libibverbs lists.
    names.extend(nodes(Path::new(UVERBS)).into_iter().map(|node| node.device));
    if sys::load().is_ok() {
        names.extend(device_names().unwrap_or_default());
    }
    names.sort();
    names.dedup();
    names
}

/// Lists the devices of the kernel, of all network namespaces: those of this folder, [`UVERBS`].
fn nodes(folder: &Path) -> Vec<Node> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let nodes = entries.filter_map(|entry| {
        let device = fs::read_to_string(entry.path().join("ibdev")).ok()?.trim().to_owned();
        Some(Node { device, file: Path::new(FILES).join(entry.file_name()) })
    });
    nodes.collect()
}

/// Returns the reason for which libibverbs does not list a device of the kernel.
fn unlisted(node: &Node) -> Fault {
    let device = node.device.clone();
    if !Path::new(DEVICES).join(&device).exists() {
        Fault::Namespace { device }
    } else if !node.file.exists() {
        Fault::DeviceFile { path: node.file.clone() }
    } else {
        Fault::DriverLibrary { device }
    }
}

/// Opens a device that libibverbs lists.
///
/// # Errors
/// The fault of its file, or that of the call.
fn open(device: &str, nodes: &[Node]) -> Result<Arc<Context>, Fault> {
    Context::open(device).map_err(|source| {
        let node = nodes.iter().find(|node| node.device == device);
        node.and_then(|node| closed(&node.file)).unwrap_or_else(|| failed("ibv_open_device", source))
    })
}

/// Returns the fault of a device that libibverbs lists: it cannot be opened, or none of its ports is active.
fn device_fault(device: &str, nodes: &[Node]) -> Option<Fault> {
    let context = match open(device, nodes) {
        Ok(context) => context,
        Err(fault) => return Some(fault),
    };
    let ports = context.attributes().map_or(0, |attributes| attributes.ports);
    let is_active = |port| context.port(port).is_ok_and(|port| port.is_active());
    (!(1..=ports).any(is_active)).then(|| port_down(device, 1))
}

/// Returns the fault of a file that does not exist or may not be opened; `None` otherwise.
fn closed(path: &Path) -> Option<Fault> {
    let error = OpenOptions::new().read(true).write(true).open(path).err()?;
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound => Some(Fault::DeviceFile { path }),
        io::ErrorKind::PermissionDenied => Some(Fault::Permission { path, source: Arc::new(error) }),
        _ => None,
    }
}

/// Returns the fault that keeps this process from the connection manager, if its files show one: the entry of its module, which
/// is [`RDMA_CM`], and the device file.
fn connection_manager(entry: &Path, file: &Path) -> Option<Fault> {
    if !entry.exists() {
        return Some(Fault::Module { module: "rdma_ucm" });
    }
    closed(file)
}

/// Returns a fault for each of these devices to which no address of this machine leads.
fn unreachable(devices: &[&String]) -> Vec<Fault> {
    let (reachable, own) = match (devices::list(&VerbsConfig::default()), interfaces()) {
        (Ok(reachable), Ok(own)) => (reachable, own),
        (Err(error), _) => return vec![Fault::Other(error)],
        (_, Err(source)) => return vec![failed("getifaddrs", source)],
    };
    let own: Vec<IpAddr> = own.into_iter().flat_map(|interface| interface.addresses).collect();
    let is_reachable = |name: &str| reachable.iter().any(|(device, _)| device.name == name);
    let faults = devices.iter().filter(|name| !is_reachable(name)).map(|name| {
        let device = name.to_string();
        // The kernel lists an address of a device in the table, and the address is not of an interface here.
        if table(name).into_iter().any(|ip| !own.contains(&ip)) {
            Fault::Namespace { device }
        } else {
            Fault::NoAddress { device }
        }
    });
    faults.collect()
}

/// Returns the IP addresses in the GID table of a device: of RoCE alone, the GIDs of other devices are no IP addresses.
fn table(device: &str) -> Vec<IpAddr> {
    let ports = fs::read_dir(Path::new(DEVICES).join(device).join("ports")).into_iter().flatten().flatten();
    let gids = ports.flat_map(|port| {
        let gids = fs::read_dir(port.path().join("gids")).into_iter().flatten().flatten();
        gids.filter_map(move |gid| {
            let interfaces = port.path().join("gid_attrs/ndevs");
            // Only an entry of RoCE belongs to a network interface.
            fs::read(interfaces.join(gid.file_name())).ok()?;
            fs::read_to_string(gid.path()).ok()?.trim().parse::<Ipv6Addr>().ok()
        })
    });
    let is_global = |gid: &Ipv6Addr| !gid.is_unspecified() && !gid.is_unicast_link_local();
    gids.filter(is_global).map(|gid| IpAddr::V6(gid).to_canonical()).collect()
}

/// Returns the fault of a port that is not active.
fn port_down(device: &str, port: u8) -> Fault {
    let first = Path::new(DEVICES).join(device).join(format!("ports/{port}/gid_attrs/ndevs/0"));
    let interface = fs::read_to_string(first).ok().map(|name| name.trim().to_owned());
    Fault::PortDown { device: device.to_owned(), port, interface }
}

/// The number of `CAP_IPC_LOCK`.
const IPC_LOCK: u32 = 14;

/// The capabilities of this process that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IpcLock {
    /// The limit does not count.
    Effective,
    /// It has none, and none was added for it.
    Missing,
    /// It was added to a container, and is not in effect, for this reason.
    InVain(&'static str),
}

impl IpcLock {
    /// Reads the state of this process.
    fn of_process() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let last = read("/proc/sys/kernel/cap_last_cap").trim().parse().unwrap_or(u32::MAX);
        Self::of(&read("/proc/self/status"), &read("/proc/self/uid_map"), last)
    }

    /// Returns the state by the files `status` and `uid_map` of a process, and the number of the last capability of the kernel.
    fn of(status: &str, uid_map: &str, last: u32) -> Self {
        let set = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.and_then(|value| u64::from_str_radix(value.trim(), 16).ok()).unwrap_or(0)
        };
        let has = |set: u64| set & (1 << IPC_LOCK) != 0;
        let (effective, bounding) = (set("CapEff"), set("CapBnd"));
        // Another user namespace maps fewer numbers, or other ones.
        let is_first = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
        match (has(effective), has(bounding)) {
            (true, _) if is_first => Self::Effective,
            (true, _) => Self::InVain("this process is in a user namespace of its own"),
            // Outside of containers every program has all capabilities in this set.
            (false, true) if bounding.count_ones() <= last => {
                Self::InVain("this process does not run as root")
            }
            _ => Self::Missing,
        }
    }
}

/// Returns the number of bytes that this process may lock; `None` if there is no limit.
pub(crate) fn lock_limit() -> Option<u64> {
    memlock_limit().filter(|_| IpcLock::of_process() != IpcLock::Effective)
}

/// Returns the fault of a process that may not lock the memory of a registration.
pub(crate) fn lock_fault(error: RegisterError) -> Fault {
    match IpcLock::of_process() {
        IpcLock::InVain(reason) => Fault::IpcLockInVain { error, reason },
        IpcLock::Effective | IpcLock::Missing => Fault::MemoryLock(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder for a test, which is removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tokio-rdma-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("created");
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    // HW-17: a device is found by the kernel's entry for it, also where libibverbs lists none.
    #[test]
    fn entries_of_the_kernel_name_devices() {
        let folder = Folder::new("nodes");
        fs::create_dir(folder.0.join("uverbs3")).expect("created");
        fs::write(folder.0.join("uverbs3/ibdev"), "rxe0\n").expect("written");
        // An attribute of the class, which is no device.
        fs::write(folder.0.join("abi_version"), "6\n").expect("written");
        let found = nodes(&folder.0);
        let [Node { device, file }] = &found[..] else { panic!("{} devices", found.len()) };
        assert_eq!((&device[..], file.as_path()), ("rxe0", Path::new("/dev/infiniband/uverbs3")));
        assert!(nodes(&folder.0.join("missing")).is_empty(), "the module is not loaded");
    }

    // HW-17: the connection manager lacks its module, its file or nothing.
    #[test]
    fn missing_part_of_connection_manager_is_named() {
        let folder = Folder::new("connection-manager");
        let [entry, file] = ["entry", "file"].map(|name| folder.0.join(name));
        let text = || connection_manager(&entry, &file).map(|fault| fault.to_string());
        assert_eq!(text().as_deref(), Some("the kernel module rdma_ucm is not loaded"));
        fs::write(&entry, "").expect("written");
        assert_eq!(text(), Some(format!("{} does not exist", file.display())));
        fs::write(&file, "").expect("written");
        assert_eq!(text(), None);
    }

    /// The map of the first user namespace.
    const FIRST: &str = "         0          0 4294967295\n";
    /// The number of the last capability of recent kernels.
    const LAST: u32 = 40;

    /// Returns the status of a process with these sets.
    fn status(effective: &str, bounding: &str) -> String {
        format!(
            "Name:\tdoctor\nCapInh:\t0000000000000000\nCapEff:\t{effective}\nCapBnd:\t{bounding}\nCapAmb:\t0\n"
        )
    }

    // HW-19: the sets of root and of a user, on a host and in a container with and without the capability.
    #[test]
    fn only_an_effective_capability_lifts_the_limit() {
        let (all, none) = ("000001ffffffffff", "0000000000000000");
        let (usual, added) = ("00000000a80425fb", "00000000a80465fb");
        let user = "this process does not run as root";
        for (effective, bounding, expected) in [
            (all, all, IpcLock::Effective),
            (none, all, IpcLock::Missing),
            (usual, usual, IpcLock::Missing),
            (none, usual, IpcLock::Missing),
            (added, added, IpcLock::Effective),
            (none, added, IpcLock::InVain(user)),
            // A program with the capability of its file.
            ("0000000000004000", added, IpcLock::Effective),
        ] {
            assert_eq!(
                IpcLock::of(&status(effective, bounding), FIRST, LAST),
                expected,
                "{effective} {bounding}"
            );
        }
        let rootless = IpcLock::of(&status(all, all), "0 1000 1\n1 100000 65536\n", LAST);
        assert_eq!(rootless, IpcLock::InVain("this process is in a user namespace of its own"));
        assert_eq!(IpcLock::of("", "", LAST), IpcLock::Missing, "no such files");
    }
}
