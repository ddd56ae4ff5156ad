//! A fault that keeps a program from an RDMA device, with the command that removes it.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{OpenError, RegisterError};

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
