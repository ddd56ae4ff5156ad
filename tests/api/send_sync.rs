//! All public types and all futures can be sent to other threads.

use std::fmt::Debug;
use std::net::SocketAddr;

use bytes::Bytes;
use tokio_rdma::error::{
    AcceptError, BindError, CompletionError, ConnectError, DisconnectError, MessageTooLong, OpenError,
    PostError, PostErrorKind, Reason, RegisterError, Retained, StateError,
};
use tokio_rdma::mr::{DmaBufRegion, DmaBufSlice, Entry, PoolBytes};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::types::{AdapterId, ConnectionId, OpKind, RemoteKey, TooShort};
use tokio_rdma::{
    AcceptParams, Access, Adapter, AdapterInfo, Buffer, BufferPart, Completion, ConnectParams, Connection,
    Connector, DisconnectReason, Listener, MessageListener, Messages, MessagesConfig, Op, Pool, PoolConfig,
    PrivateData, Provider, ProviderKind, QueuePair, QueuePairConfig, ReadLimits, Region, RegionSlice,
    RemoteRegion, Reply, Request, Requests, Status,
};

fn handle<T: Send + Sync + Debug + 'static>() {}
fn counted<T: Clone + Send + Sync + Debug + 'static>() {}
fn error<T: std::error::Error + Send + Sync + 'static>() {}
fn future<F: Future + Send>(_: F) {}
fn movable<F: Future + Send + Unpin + 'static>(_: F) {}
fn stream<S: futures::Stream + Send + Unpin + 'static>() {}

// CAN-13
#[test]
fn handles_go_to_any_thread() {
    handle::<Connector>();
    handle::<Reply>();
    handle::<Request>();
    handle::<Requests>();
    stream::<Requests>();
    handle::<Messages>();
    stream::<Messages>();
    handle::<MessageListener>();
    stream::<MessageListener>();
    counted::<Provider>();
    counted::<Adapter>();
    counted::<Listener>();
    counted::<Connection>();
    counted::<QueuePair>();
    counted::<Region>();
    counted::<RegionSlice>();
    handle::<Buffer>();
    handle::<BufferPart>();
    handle::<Entry>();
    counted::<DmaBufRegion>();
    counted::<DmaBufSlice>();
    counted::<Pool>();
    counted::<PoolBytes>();
    handle::<Op<Vec<Entry>>>();
    handle::<Op<PoolBytes>>();
    handle::<Op<Buffer>>();
    handle::<Op<BufferPart>>();
    handle::<Op<RegionSlice>>();
    handle::<Op<Vec<Buffer>>>();
    handle::<Op<[Buffer; 3]>>();
}

// CAN-13
#[test]
fn values_go_to_any_thread() {
    counted::<AcceptParams>();
    counted::<Access>();
    counted::<AdapterId>();
    counted::<AdapterInfo>();
    counted::<Completion>();
    counted::<ConnectParams>();
    counted::<ConnectionId>();
    counted::<DisconnectReason>();
    counted::<MessagesConfig>();
    counted::<OpKind>();
    counted::<PrivateData>();
    counted::<PoolConfig>();
    counted::<ProviderKind>();
    counted::<QueuePairConfig>();
    counted::<ReadLimits>();
    counted::<Reason>();
    counted::<RemoteKey>();
    counted::<RemoteRegion>();
    counted::<SoftConfig>();
    counted::<Status>();
}

// CAN-13
#[test]
fn errors_go_to_any_thread() {
    error::<AcceptError>();
    error::<BindError>();
    error::<CompletionError>();
    error::<ConnectError>();
    error::<DisconnectError>();
    error::<MessageTooLong>();
    error::<OpenError>();
    error::<PostError<Buffer>>();
    error::<PostErrorKind>();
    error::<RegisterError>();
    error::<Retained<AcceptError, Request>>();
    error::<Retained<ConnectError, Reply>>();
    error::<StateError>();
    error::<TooShort>();
}

/// Never run: what it calls is checked by the compiler.
#[expect(dead_code, clippy::too_many_arguments, reason = "it is enough that it compiles")]
fn futures_go_to_any_thread(
    adapter: &Adapter,
    connector: &Connector,
    listener: &Listener,
    connection: &Connection,
    queue_pair: &QueuePair,
    peer: SocketAddr,
    requests: [Request; 2],
    replies: [Reply; 2],
    buffers: [Buffer; 4],
    remote: &RemoteRegion,
    region: &Region,
    pool: &Pool,
) -> Result<(), Box<dyn std::error::Error>> {
    // CAN-13
    let params = ConnectParams::default;
    future(connector.connect(queue_pair, peer, params()));
    future(connector.connect_and_complete(queue_pair, peer, params()));
    future(listener.request());
    future(listener.accept_next(queue_pair, AcceptParams::default()));
    let [accepted, rejected] = requests;
    future(accepted.accept(queue_pair, AcceptParams::default()));
    future(rejected.reject(b""));
    let [completed, rejected] = replies;
    future(completed.complete());
    future(rejected.reject(b""));
    future(connection.disconnected());
    future(connection.disconnect());
    future(adapter.register(1, Access::REMOTE_READ));
    future(region.deregister());
    future(region.register_again(Access::REMOTE_READ));
    future(pool.get());
    future(pool.lend(Bytes::new()));
    let config = MessagesConfig::default();
    future(Messages::connect_on(adapter, peer, &config));
    future(Messages::connect(peer));
    future(MessageListener::bind(peer));
    let [a, b, c, d] = buffers;
    movable(queue_pair.receive(a)?);
    movable(queue_pair.send(b)?);
    movable(queue_pair.write(c, remote)?);
    movable(queue_pair.read(d, remote)?);
    Ok(())
}
