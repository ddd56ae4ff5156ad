//! Helpers of all tests: adapters, connected pairs, and a time limit for each wait.

pub mod cm;
pub mod crowd;
pub mod deviation;
pub mod device;
pub mod dice;
pub mod frames;
pub mod guest;
pub mod interop;
pub mod life;
pub mod net;
pub mod path;
pub mod peers;
pub mod perftest;
pub mod preload;
pub mod process;
pub mod programs;
pub mod raw;
pub mod relay;
pub mod resources;
pub mod results;
pub mod rping;
pub mod rsocket;
pub mod seeds;
pub mod session;
pub mod session_peer;
#[cfg(feature = "sim")]
pub mod sim;
pub mod stream;
pub mod tcp;
pub mod transfer;
pub mod verbs;

use std::fmt::Debug;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};

use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Connection, Listener, QueuePair, QueuePairConfig};

pub use device::{Device, adapter_at, both, often, pass, patience, skipped, v4, v6};

/// Runs a future that must finish.
///
/// # Panics
/// When it does not.
pub async fn within<F: Future>(future: F) -> F::Output {
    let outcome = tokio::time::timeout(patience(), future).await;
    outcome.unwrap_or_else(|_| panic!("it hangs{}", device::last_events()))
}

/// An adapter of the device that is tested.
pub fn adapter() -> Adapter {
    adapter_at(v4())
}

/// The adapter of the soft provider that has the address of the device, with settings.
pub fn adapter_with(config: SoftConfig) -> Adapter {
    soft_at(v4(), config)
}

/// The adapter of the soft provider that has this address.
pub fn soft_at(ip: IpAddr, config: SoftConfig) -> Adapter {
    let provider = Device::under_test().soft_with(config);
    let id = provider.resolve(ip).expect("an adapter has the address");
    provider.open(id).expect("opened")
}

/// A listener on a port of the provider's choice.
pub fn listening(adapter: &Adapter) -> (Listener, SocketAddr) {
    listening_at(adapter, v4())
}

/// The same at an address of the caller's choice.
pub fn listening_at(adapter: &Adapter, ip: IpAddr) -> (Listener, SocketAddr) {
    let listener = adapter.listener();
    listener.bind(SocketAddr::new(ip, 0)).expect("bound");
    listener.listen(0).expect("listening");
    let address = listener.local_addr().expect("it listens");
    (listener, address)
}

/// A queue pair of the usual size.
pub fn queue_pair(adapter: &Adapter) -> QueuePair {
    adapter.queue_pair(QueuePairConfig::default()).expect("a queue pair")
}

/// One end of a connection.
pub struct End {
    pub queue_pair: QueuePair,
    pub connection: Connection,
}

/// Two ends of one connection; `active` called connect.
pub struct Pair {
    pub active: End,
    pub passive: End,
}

/// A connected pair on one adapter.
pub async fn connected(adapter: &Adapter) -> Pair {
    connected_with(adapter, ConnectParams::default(), AcceptParams::default()).await
}

/// The same with terms.
pub async fn connected_with(adapter: &Adapter, connect: ConnectParams, accept: AcceptParams) -> Pair {
    let (active, passive) = (queue_pair(adapter), queue_pair(adapter));
    connected_queue_pairs(adapter, active, passive, connect, accept).await
}

/// The same with queue pairs of the caller's making, to which receives may have been posted.
pub async fn connected_queue_pairs(
    adapter: &Adapter,
    active: QueuePair,
    passive: QueuePair,
    connect: ConnectParams,
    accept: AcceptParams,
) -> Pair {
    let (listener, address) = listening(adapter);
    let connector = adapter.connector();
    let (active_end, passive_end) = joined(
        connector.connect_and_complete(&active, address, connect),
        listener.accept_next(&passive, accept),
    )
    .await;
    Pair {
        active: End { queue_pair: active, connection: active_end },
        passive: End { queue_pair: passive, connection: passive_end },
    }
}

/// A pair whose active end repeats a message without a receive for a short time only, where the device repeats it at all.
pub async fn connected_impatiently(adapter: &Adapter) -> Pair {
    let (mut connect, mut accept) = (ConnectParams::default(), AcceptParams::default());
    if !device::Device::under_test().is_soft() {
        (connect, accept) = (connect.rnr_retry_count(1), accept.rnr_retry_count(1));
    }
    connected_with(adapter, connect, accept).await
}

/// The two ends of a connection that must come about.
///
/// # Panics
/// As soon as one of them fails: the other may have nobody to wait for.
pub async fn joined<C: Debug, A: Debug>(
    connect: impl Future<Output = Result<Connection, C>>,
    accept: impl Future<Output = Result<Connection, A>>,
) -> (Connection, Connection) {
    within(async {
        tokio::join!(async { connect.await.expect("connected") }, async { accept.await.expect("accepted") })
    })
    .await
}
