//! The check-up of a machine: the adapter that serves an address, and the faults that keep programs from RDMA devices.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use futures::TryFutureExt;

use super::adapter::Adapter;
use super::provider::Provider;
use crate::error::{OpenError, RegisterError};
use crate::provider::info::ProviderKind;
use crate::provider::params::{AcceptParams, ConnectParams};
use crate::qp::QueuePairConfig;
use crate::verbs::diagnose::{self, Fault};

/// The memory that the check-up registers: as much as a program with a few streams.
const MEMORY: usize = 1 << 20;
/// The time that a connection of a device to itself may take. It takes milliseconds on a device that works.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result of [`check_up`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckUp {
    /// The names of the RDMA devices of this machine, of all network namespaces, also of those that cannot be used. If it is
    /// empty, the kernel has no driver of a device, or the machine has no device.
    pub devices: Vec<String>,
    /// The faults, the one to remove first at the beginning. Empty if nothing stands in the way.
    pub faults: Vec<Fault>,
    /// The adapter of each address that was checked and that an adapter serves, with or without faults.
    pub choices: Vec<Choice>,
    /// The number of bytes that this process may lock, which registering memory does (`ulimit -l`). `None` if there is no limit, or if
    /// the process has the capability `IPC_LOCK` in effect.
    ///
    /// [`StreamConfig::locked_memory`](crate::StreamConfig::locked_memory) is the part of a stream. Some drivers also lock the queues
    /// of a queue pair.
    pub memory_lock: Option<u64>,
}

/// The adapter that [`Adapter::open`] opens for an address. Its text says which one it is and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// The address.
    pub address: IpAddr,
    /// The name of the adapter.
    pub adapter: String,
    /// The provider of the adapter.
    pub provider: ProviderKind,
    /// The largest payload of a packet of the device, in bytes. `None` on the soft provider and if it is not known.
    pub mtu: Option<u32>,
    /// Why the adapter serves the address, as a part of a sentence: "rdma_cm finds this device for the address", or why the
    /// device of the address does not.
    pub reason: String,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, adapter, provider, mtu, reason } = self;
        write!(f, "{address}: {adapter} of the provider {provider}")?;
        if let Some(mtu) = mtu {
            write!(f, ", MTU {mtu}")?;
        }
        write!(f, ", because {reason}")
    }
}

/// Finds the adapter that serves an address, and what keeps programs from the RDMA devices of this machine.
///
/// With an address, the check-up is about this address: an address that no device has is a fault, even though the soft
/// provider serves it. Without an address, it is about every device and every address of a device.
///
/// The check-up looks at the libraries, the kernel modules, the device files, the ports, the addresses and the network
/// namespace. Then it registers 1 MiB of memory, and connects the device to itself at the address. The connection attempt ends
/// after 10 s. The example `doctor` prints the result.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// for fault in tokio_rdma::verbs::check_up(None).await.faults {
///     println!("{fault}\n    {}", fault.remedy());
/// }
/// # }
/// ```
///
/// # Panics
/// Outside of a tokio runtime.
///
/// # Cancel safety
/// Dropping the future ends the check-up. Calls that have begun end on the runtime's blocking pool.
pub async fn check_up(address: Option<IpAddr>) -> CheckUp {
    let devices = blocking(diagnose::device_list).await.unwrap_or_default();
    let memory_lock = blocking(diagnose::lock_limit).await.ok().flatten();
    let mut result = CheckUp { devices, memory_lock, ..CheckUp::default() };
    match address {
        Some(address) => result.check_address(address).await,
        None => {
            result.faults = blocking(diagnose::faults).await.unwrap_or_else(|error| vec![error]);
            for address in blocking(diagnose::addresses).await.ok().and_then(Result::ok).unwrap_or_default() {
                result.check_address(address).await;
            }
        }
    }
    result
}

impl CheckUp {
    /// Adds the choice for an address, and its faults.
    async fn check_address(&mut self, address: IpAddr) {
        let (mut faults, mtu) = match blocking(move || diagnose::faults_of(address)).await {
            Ok(found) => found,
            Err(fault) => (vec![fault], None),
        };
        match Adapter::open(address) {
            Ok(adapter) => {
                let info = adapter.info();
                if info.provider == ProviderKind::Verbs && faults.is_empty() {
                    faults.extend(try_out(&adapter, address).await.err());
                }
                let reason = reason(address, info.provider);
                self.choices.push(Choice {
                    address,
                    adapter: info.name,
                    provider: info.provider,
                    mtu,
                    reason,
                });
            }
            Err(error) if faults.is_empty() => faults.push(Fault::Other(error)),
            Err(_) => {}
        }
        // Addresses of one device have faults in common.
        for fault in faults {
            if !self.faults.iter().any(|known| known.to_string() == fault.to_string()) {
                self.faults.push(fault);
            }
        }
    }
}

/// Returns the reason why an adapter of this provider serves an address.
fn reason(address: IpAddr, provider: ProviderKind) -> String {
    match (provider, Provider::verbs().and_then(|verbs| verbs.resolve(address))) {
        (ProviderKind::Verbs, _) => "rdma_cm finds this device for the address".to_owned(),
        (ProviderKind::Soft, Err(excluded @ OpenError::Excluded { .. })) => excluded.to_string(),
        (ProviderKind::Soft, _) => "no device can be used for the address".to_owned(),
    }
}

/// Does something that may take long on the blocking pool of the runtime. The shutdown of the runtime is a fault.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
    let ended = |_| Fault::Other(OpenError::Unsupported("the runtime has shut down"));
    tokio::task::spawn_blocking(work).await.map_err(ended)
}

/// Registers memory, and connects the adapter to itself. Fails with the fault of the adapter.
async fn try_out(adapter: &Adapter, address: IpAddr) -> Result<(), Fault> {
    let memory = adapter.buffer(MEMORY).map_err(|error| match error {
        RegisterError::MemoryLockLimit { .. } => diagnose::lock_fault(error),
        error => Fault::Other(OpenError::Os { call: "ibv_reg_mr", source: Arc::new(error.into()) }),
    })?;
    drop(memory);
    let connected = tokio::time::timeout(PATIENCE, connect_to_itself(adapter, address)).await;
    let connected = connected.unwrap_or_else(|late| Err(late.into()));
    connected.map_err(|source| Fault::Rival {
        device: adapter.info().name,
        address,
        source: Arc::new(source),
    })
}

/// Connects the adapter to itself, and disconnects.
async fn connect_to_itself(adapter: &Adapter, address: IpAddr) -> io::Result<()> {
    let listener = adapter.listener();
    listener.bind(SocketAddr::new(address, 0))?;
    listener.listen(1)?;
    let peer = listener.local_addr()?;
    let (active, passive) =
        (adapter.queue_pair(QueuePairConfig::default())?, adapter.queue_pair(QueuePairConfig::default())?);
    let connector = adapter.connector();
    let connect = connector.connect_and_complete(&active, peer, ConnectParams::default());
    let accept = listener.accept_next(&passive, AcceptParams::default());
    let (ours, theirs) = tokio::try_join!(connect.err_into(), accept.err_into::<io::Error>())?;
    // The end of a connection that worked is not the subject.
    let _ = tokio::join!(ours.disconnect(), theirs.disconnected());
    Ok(())
}
