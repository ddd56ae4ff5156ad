//! Helpers of the tests of connection management: half-open connections, peers that do not respond, and a check that a
//! queue pair still works.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio_rdma::error::{AcceptError, BindError, ConnectError};
use tokio_rdma::{
    AcceptParams, Adapter, ConnectParams, Connection, Connector, Listener, QueuePair, Reply, Request,
};

pub use super::device::{nobody, silent};
use super::{joined, listening_at, queue_pair, v4, within};

/// The ports that NetworkDirect counts as ephemeral.
pub const EPHEMERAL: std::ops::RangeInclusive<u16> = 49152..=65535;

/// Finds a port by number that `bind` takes; somebody may take a free one first.
pub fn bind_somewhere(ip: IpAddr, bind: impl Fn(SocketAddr) -> Result<(), BindError>) -> SocketAddr {
    loop {
        let address = nobody(ip);
        match bind(address) {
            Ok(()) => return address,
            Err(BindError::SharingViolation(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Sends a message each way over a connection, the active side first.
pub async fn exchange(adapter: &Adapter, active: &QueuePair, passive: &QueuePair) {
    for (from, to, message) in [(active, passive, b"there"), (passive, active, b"again")] {
        let receive = to.receive(adapter.buffer(16).expect("memory")).expect("posted");
        let send = from.send(adapter.buffer_from(message).expect("memory")).expect("posted");
        let ((sent, _), (received, buffer)) = within(async { tokio::join!(send, receive) }).await;
        sent.expect("sent");
        let length = received.expect("received").bytes;
        assert_eq!(&buffer[..length], message);
    }
}

/// Connects a queue pair to a new listener and uses it: after a failed attempt it must be as good as new.
pub async fn assert_usable(adapter: &Adapter, active: &QueuePair) {
    let link = connect_on(adapter, active, &adapter.connector()).await;
    exchange(adapter, active, &link.passive).await;
}

/// Both ends of a connection.
pub struct Joined {
    pub ours: Connection,
    pub theirs: Connection,
    pub active: QueuePair,
    pub passive: QueuePair,
}

/// Connects with this connector to a new listener.
pub async fn connect_on(adapter: &Adapter, active: &QueuePair, connector: &Connector) -> Joined {
    connect_on_at(adapter, active, connector, v4()).await
}

/// The same at this address.
pub async fn connect_on_at(
    adapter: &Adapter,
    active: &QueuePair,
    connector: &Connector,
    ip: IpAddr,
) -> Joined {
    let (listener, address) = listening_at(adapter, ip);
    let passive = queue_pair(adapter);
    let (ours, theirs) = joined(
        connector.connect_and_complete(active, address, ConnectParams::default()),
        listener.accept_next(&passive, AcceptParams::default()),
    )
    .await;
    Joined { ours, theirs, active: active.clone(), passive }
}

/// A connect that is on its way, and the request that it has become at the peer.
pub struct Requested {
    pub connector: Arc<Connector>,
    pub active: QueuePair,
    pub connecting: JoinHandle<Result<Reply, ConnectError>>,
    pub request: Request,
    pub listener: Listener,
}

/// Connects up to the moment when the peer has the request in its hands.
pub async fn requested(adapter: &Adapter, ip: IpAddr, params: ConnectParams) -> Requested {
    let (listener, address) = listening_at(adapter, ip);
    let (connector, active) = (Arc::new(adapter.connector()), queue_pair(adapter));
    let connecting = connecting(&connector, &active, address, params);
    let request = within(listener.request()).await.expect("a request");
    Requested { connector, active, connecting, request, listener }
}

/// Connects in a task of its own.
pub fn connecting(
    connector: &Arc<Connector>,
    queue_pair: &QueuePair,
    address: SocketAddr,
    params: ConnectParams,
) -> JoinHandle<Result<Reply, ConnectError>> {
    let (connector, queue_pair) = (connector.clone(), queue_pair.clone());
    tokio::spawn(async move { connector.connect(&queue_pair, address, params).await })
}

/// Drops what a task is at, and waits until that is done.
pub async fn abandon<T: std::fmt::Debug>(task: JoinHandle<T>) {
    task.abort();
    assert!(within(task).await.expect_err("not finished yet").is_cancelled());
}

/// A connection of which the active side has not said its last word.
pub struct HalfOpen {
    pub connector: Connector,
    pub active: QueuePair,
    pub passive: QueuePair,
    pub reply: Reply,
    pub accepting: JoinHandle<Result<Connection, AcceptError>>,
}

/// Connects up to the moment when the active side has the reply in its hands.
pub async fn half_open(adapter: &Adapter, ip: IpAddr) -> HalfOpen {
    half_open_with(adapter, ip, ConnectParams::default(), AcceptParams::default()).await
}

/// The same with terms.
pub async fn half_open_with(
    adapter: &Adapter,
    ip: IpAddr,
    connect: ConnectParams,
    accept: AcceptParams,
) -> HalfOpen {
    let (listener, address) = listening_at(adapter, ip);
    let (connector, active, passive) = (adapter.connector(), queue_pair(adapter), queue_pair(adapter));
    let accepting = tokio::spawn({
        let passive = passive.clone();
        async move { listener.accept_next(&passive, accept).await }
    });
    let reply = within(connector.connect(&active, address, connect)).await.expect("the peer accepts");
    HalfOpen { connector, active, passive, reply, accepting }
}

/// The outcome of a task that must come to an end.
pub async fn outcome<T>(task: JoinHandle<T>) -> T {
    within(task).await.expect("the task has not panicked")
}
