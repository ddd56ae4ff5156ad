//! Helpers of the tests that follow a vendor's page: attempts that are stopped between two steps, and ways to provoke
//! the rarer return codes.
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use tokio::task::JoinHandle;
use tokio_rdma::error::{AcceptError, ConnectError, PostErrorKind};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{
    AcceptParams, Access, Adapter, ConnectParams, Connection, Connector, Listener, QueuePair, ReadLimits,
    Reply, Request, Status,
};

pub use super::cm::connecting;
pub use super::device::{Holder, deaf, settled, silent};
use super::net::{WITHOUT_ADDRESS, ip};
use super::{adapter, adapter_with, listening, listening_at, pass, queue_pair, v4, within};

/// Connect with these read limits.
pub fn limits(inbound: u32, outbound: u32) -> ConnectParams {
    ConnectParams::default().read_limits(ReadLimits::new(inbound, outbound))
}

/// Accept with these read limits.
pub fn accept_limits(inbound: u32, outbound: u32) -> AcceptParams {
    AcceptParams::default().read_limits(ReadLimits::new(inbound, outbound))
}

/// The status of a read from a region of the same adapter, or the error of posting it.
pub async fn read(adapter: &Adapter, queue_pair: &QueuePair) -> Result<Status, PostErrorKind> {
    let region = adapter.register(8, Access::REMOTE_READ).await.expect("registered");
    let posted = queue_pair.read(adapter.buffer(8).expect("a buffer"), &region.remote());
    let (outcome, _) = within(posted.map_err(|error| error.kind)?).await;
    Ok(outcome.map_or_else(|error| error.status, |_| Status::SUCCESS))
}

/// A request that has been fetched and not answered.
pub struct Asked {
    pub connector: Arc<Connector>,
    pub queue_pair: QueuePair,
    pub connecting: JoinHandle<Result<Reply, ConnectError>>,
    pub listener: Listener,
    pub request: Request,
}

/// Asks for a connection on one adapter.
pub async fn asked(adapter: &Adapter, params: ConnectParams) -> Asked {
    asked_by(adapter.connector(), adapter, v4(), params).await
}

/// The same by a connector that was prepared, and at an address of the caller's choice.
pub async fn asked_by(connector: Connector, adapter: &Adapter, ip: IpAddr, params: ConnectParams) -> Asked {
    let (listener, address) = listening_at(adapter, ip);
    let (connector, queue_pair) = (Arc::new(connector), queue_pair(adapter));
    let connecting = connecting(&connector, &queue_pair, address, params);
    let request = within(listener.request()).await.expect("a request");
    Asked { connector, queue_pair, connecting, listener, request }
}

/// An attempt that the peer has accepted and the active side has not completed.
pub struct HalfOpen {
    pub connector: Arc<Connector>,
    pub queue_pair: QueuePair,
    pub reply: Reply,
    pub passive: QueuePair,
    pub accepting: JoinHandle<Result<Connection, AcceptError>>,
}

/// Goes as far as the second of three phases.
pub async fn half_open(adapter: &Adapter, connect: ConnectParams, accept: AcceptParams) -> HalfOpen {
    let Asked { connector, queue_pair: active, connecting, request, .. } = asked(adapter, connect).await;
    let passive = queue_pair(adapter);
    let accepting = accepting(request, &passive, accept);
    let reply = within(connecting).await.expect("not cancelled").expect("accepted");
    HalfOpen { connector, queue_pair: active, reply, passive, accepting }
}

/// An accept in a task of its own.
pub fn accepting(
    request: Request,
    queue_pair: &QueuePair,
    params: AcceptParams,
) -> JoinHandle<Result<Connection, AcceptError>> {
    let queue_pair = queue_pair.clone();
    tokio::spawn(async move { request.accept(&queue_pair, params).await.map_err(|retained| retained.error) })
}

/// Drops the future in a task.
pub async fn abandon<T>(task: JoinHandle<T>) {
    task.abort();
    let outcome = within(task).await;
    assert!(outcome.is_err_and(|error| error.is_cancelled()), "it was over before");
}

/// Shows that the connector connects, that is, may be used (again).
pub async fn connects(connector: &Connector, adapter: &Adapter, queue_pair: &QueuePair) {
    let (listener, address) = listening(adapter);
    let passive = super::queue_pair(adapter);
    let (active, accepted) = within(async {
        tokio::join!(
            connector.connect_and_complete(queue_pair, address, ConnectParams::default()),
            listener.accept_next(&passive, AcceptParams::default()),
        )
    })
    .await;
    accepted.expect("accepted");
    active.expect("connected").disconnect().await.expect("disconnected");
}

/// Shows that the connector is burnt: it says so, and that trying again is useless.
pub async fn is_burnt(connector: &Connector, adapter: &Adapter) {
    let (_listener, address) = listening(adapter);
    let fresh = queue_pair(adapter);
    let error =
        within(connector.connect(&fresh, address, ConnectParams::default())).await.expect_err("burnt");
    assert_eq!(error.status(), Status::CONNECTION_ACTIVE);
    assert!(!error.is_connector_usable());
}

/// An adapter that has one port to give away, which is taken on 127.0.0.1 as long as the listener is kept.
pub fn without_ports() -> (Adapter, Holder) {
    let (holder, address) = silent(v4());
    (adapter_with(SoftConfig::default().ephemeral_ports(address.port()..=address.port())), holder)
}

/// A connector from 127.0.0.3 to a listener, where a connection of the same four already exists.
pub fn doubled() -> (Adapter, Connector, Listener, SocketAddr, Socket) {
    let other = adapter();
    let (listener, address) = listening(&other);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    // So that the kernel lets a second socket have the port.
    socket.set_reuse_address(true).expect("an option");
    let source = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));
    socket.bind(&SocketAddr::new(source, 0).into()).expect("bound");
    socket.connect(&address.into()).expect("connected");
    let port = socket.local_addr().ok().and_then(|local| local.as_socket()).expect("its address").port();
    let adapter = adapter_with(SoftConfig::default().ephemeral_ports(port..=port));
    let connector = adapter.connector();
    connector.bind(SocketAddr::new(source, 0)).expect("bound");
    (adapter, connector, listener, address, socket)
}

/// Short timeouts for everything that may have one.
pub fn impatient() -> SoftConfig {
    let short = Duration::from_millis(50);
    SoftConfig::default().request_timeout(short).disconnect_timeout(short)
}

/// Longer than every timeout of [`impatient`].
pub const LONG: Duration = Duration::from_millis(400);

/// Takes the addresses of the loopback interface away, in a network of one's own, and waits until that is noticed.
pub async fn remove(adapter: &Adapter) {
    let (listener, _) = listening(adapter);
    ip("address flush dev lo");
    pass(WITHOUT_ADDRESS).await;
    let error = within(listener.request()).await.expect_err("no request will come");
    assert!(matches!(error, AcceptError::DeviceRemoved), "{error:?}");
}

/// No descriptor can be opened in this process any more, until the limit that is returned is set again.
pub fn without_descriptors() -> impl FnOnce() {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    let next = File::open("/dev/null").expect("a file").as_raw_fd();
    setrlimit(Resource::RLIMIT_NOFILE, u64::try_from(next).expect("a descriptor"), hard).expect("lowered");
    move || setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("raised")
}
