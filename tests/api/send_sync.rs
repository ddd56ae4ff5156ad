//! All public types and all futures can be sent to other threads.

use std::fmt::Debug;
use std::net::SocketAddr;

use bytes::Bytes;
use tokio_rdma::cm::{ConnectionDetails, Ece, LinkLayer, PortInfo, PortState};
use tokio_rdma::error::{
    AcceptError, BindError, CompletionError, ConnectError, DecodeError, DisconnectError, Excerpt,
    NotifyError, OpenError, PostError, PostErrorKind, ProtocolError, Reason, RegisterError,
    RegisterFromError, ResizeError, Retained, StateError, StreamBroken, StreamError, WcError, WordError,
};
use tokio_rdma::io::{
    ConnectionInfo, OneSided, OwnedReadHalf, OwnedWriteHalf, PathChanges, ReadHalf, ReuniteError,
    SessionPath, WriteHalf,
};
use tokio_rdma::mr::{
    DmaBufRegion, DmaBufSlice, Entry, Inline, Mapping, OwnedRegion, Pages, PoolBytes, RawMemory,
};
use tokio_rdma::qp::{
    Batch, BelowThreshold, Done, Lane, LaneConfig, LaneQueuePair, LaneState, Local, Notify, QueuePairId,
    ReadPermit, Slot,
};
use tokio_rdma::soft::{Capture, SoftConfig};
use tokio_rdma::status::porting::{
    CmEvent, CmPhase, CmSign, CmTransport, DatEvent, DatReturn, IbRejectReason, Outcome,
};
use tokio_rdma::status::{DeviceEvent, StatusClass, WcStatus};
use tokio_rdma::types::{AdapterId, ConnectionId, OpKind, QueueKind, RemoteKey, Role, TooShort};
use tokio_rdma::{
    AcceptParams, Acceptor, AcceptorConfig, Access, Adapter, AdapterEvent, AdapterEvents, AdapterInfo,
    Buffer, BufferPart, Completion, CompletionQueue, CompletionQueueConfig, ConnectParams, Connection,
    Connector, DisconnectReason, Listener, MemoryWindow, NotifyKind, Op, Pool, PoolConfig, PrivateData,
    Provider, ProviderKind, QueuePair, QueuePairConfig, RdmaConnector, RdmaListener, RdmaStream, ReadLimits,
    Region, RegionSlice, RemoteRegion, Reply, Request, Requests, SessionConfig, SharedReceiveConfig,
    SharedReceiveQueue, Status, StreamConfig, WorkCompletion, WorkOptions,
};

fn handle<T: Send + Sync + Debug + 'static>() {}
fn counted<T: Clone + Send + Sync + Debug + 'static>() {}
fn error<T: std::error::Error + Send + Sync + 'static>() {}
fn future<F: Future + Send>(_: F) {}
fn movable<F: Future + Send + Unpin + 'static>(_: F) {}
fn stream<S: futures::Stream + Send + Unpin + 'static>() {}

// The compiler checks every handle, future and buffer that a program holds (CAN-13).
#[test]
fn handles_go_to_any_thread() {
    handle::<Connector>();
    handle::<Reply>();
    handle::<Request>();
    handle::<Requests>();
    stream::<Requests>();
    counted::<Provider>();
    counted::<Adapter>();
    handle::<AdapterEvents>();
    stream::<AdapterEvents>();
    counted::<Listener>();
    counted::<Connection>();
    counted::<ConnectionInfo>();
    counted::<QueuePair>();
    counted::<CompletionQueue>();
    counted::<SharedReceiveQueue>();
    handle::<Batch>();
    handle::<Lane>();
    counted::<LaneQueuePair>();
    handle::<Notify>();
    handle::<BelowThreshold>();
    handle::<MemoryWindow>();
    handle::<Inline>();
    handle::<Acceptor<Connection>>();
    handle::<RdmaStream>();
    handle::<RdmaListener>();
    counted::<RdmaConnector>();
    handle::<ReadHalf<'static>>();
    handle::<WriteHalf<'static>>();
    counted::<OneSided>();
    counted::<SessionPath>();
    handle::<PathChanges>();
    handle::<OwnedReadHalf>();
    handle::<OwnedWriteHalf>();
    counted::<Region>();
    counted::<RegionSlice>();
    handle::<Buffer>();
    handle::<BufferPart>();
    handle::<Entry>();
    handle::<OwnedRegion<Vec<u8>>>();
    handle::<Mapping>();
    handle::<RawMemory>();
    counted::<Pages>();
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

// CAN-13: the plain data of snapshots.
#[cfg(feature = "inspect")]
#[test]
fn snapshots_go_to_any_thread() {
    use tokio_rdma::inspect::*;

    handle::<Server>();
    handle::<Place>();
    counted::<Snapshot>();
    counted::<AdapterReport>();
    counted::<ListenerReport>();
    counted::<ConnectionReport>();
    counted::<ConnectionState>();
    counted::<EventReport>();
    counted::<QueuePairReport>();
    counted::<SendState>();
    counted::<WorkQueueReport>();
    counted::<RequestReport>();
    counted::<TcpReport>();
    counted::<CompletionQueueReport>();
    counted::<SharedReceiveQueueReport>();
    counted::<LaneReport>();
    counted::<StreamReport>();
    counted::<SessionReport>();
    counted::<ChannelReport>();
}

// The compiler checks every parameter, result and configuration (CAN-13).
#[test]
fn values_go_to_any_thread() {
    counted::<AcceptParams>();
    counted::<AcceptorConfig>();
    counted::<Access>();
    counted::<AdapterEvent>();
    counted::<AdapterId>();
    counted::<ConnectionDetails>();
    counted::<Ece>();
    counted::<LinkLayer>();
    counted::<PortInfo>();
    counted::<PortState>();
    counted::<AdapterInfo>();
    counted::<CmEvent>();
    counted::<CmPhase>();
    counted::<CmSign>();
    counted::<CmTransport>();
    counted::<Completion>();
    counted::<CompletionQueueConfig>();
    counted::<LaneConfig>();
    counted::<LaneState>();
    counted::<Local<'static>>();
    handle::<ReadPermit<'static>>();
    counted::<Done>();
    counted::<Slot>();
    counted::<QueuePairId>();
    counted::<ConnectParams>();
    counted::<ConnectionId>();
    counted::<DatEvent>();
    counted::<DatReturn>();
    counted::<DisconnectReason>();
    counted::<DeviceEvent>();
    counted::<Excerpt>();
    counted::<IbRejectReason>();
    counted::<NotifyKind>();
    counted::<OpKind>();
    counted::<Outcome>();
    counted::<PrivateData>();
    counted::<PoolConfig>();
    counted::<ProviderKind>();
    counted::<QueueKind>();
    counted::<QueuePairConfig>();
    counted::<ReadLimits>();
    counted::<Reason>();
    counted::<RemoteKey>();
    counted::<RemoteRegion>();
    counted::<Role>();
    counted::<SharedReceiveConfig>();
    counted::<SoftConfig>();
    counted::<Capture>();
    counted::<Status>();
    counted::<StatusClass>();
    counted::<StreamConfig>();
    counted::<SessionConfig>();
    counted::<WorkCompletion>();
    counted::<WorkOptions>();
    #[cfg(feature = "verbs")]
    {
        use tokio_rdma::verbs::{CheckUp, Choice, Fault, VerbsConfig, check_up};
        counted::<VerbsConfig>();
        counted::<CheckUp>();
        counted::<Choice>();
        error::<Fault>();
        movable(Box::pin(check_up(None)));
    }
    counted::<WcError>();
    counted::<WcStatus>();
}

// The compiler checks every error, so that `?` can carry it out of a task (CAN-13).
#[test]
fn errors_go_to_any_thread() {
    error::<AcceptError>();
    error::<BindError>();
    error::<CompletionError>();
    error::<ConnectError>();
    error::<DecodeError>();
    error::<DisconnectError>();
    error::<NotifyError>();
    error::<OpenError>();
    error::<PostError<Buffer>>();
    error::<PostErrorKind>();
    error::<ProtocolError>();
    error::<RegisterError>();
    error::<RegisterFromError<Vec<u8>>>();
    error::<RegisterFromError<OwnedRegion<Vec<u8>>>>();
    error::<ResizeError>();
    error::<ReuniteError>();
    error::<StreamBroken>();
    error::<StreamError>();
    error::<Retained<AcceptError, Request>>();
    error::<Retained<ConnectError, Reply>>();
    error::<StateError>();
    error::<TooShort>();
    error::<WordError>();
}

/// Returns the names that a file of the library makes public: its own types, and those that it exports again.
fn public_names(file: &str) -> Vec<String> {
    let path = format!("{}/src/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect("a file of the library");
    let mut names = Vec::new();
    for statement in text.split("pub use ").skip(1) {
        let statement = statement.split(';').next().expect("its end");
        let list = statement.rsplit("::").next().expect("a name");
        names.extend(list.split([',', '{', '}', ' ', '\n']).map(str::to_owned));
    }
    for kind in ["\npub struct ", "\npub enum "] {
        let own = text.split(kind).skip(1);
        names.extend(
            own.filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next()).map(str::to_owned),
        );
    }
    names.retain(|name| name.chars().next().is_some_and(char::is_uppercase));
    names
}

// CAN-13: no public type is left out of the lists above.
#[test]
fn every_public_type_is_on_a_list() {
    let lists = include_str!("send_sync.rs");
    // Traits, and types of optional features, whose own tests send them to tasks.
    let others = [
        "WorkBuffer",
        "Endpoint",
        "OwnedMemory",
        "LocalAddress",
        "AdapterChoice",
        "HttpConnector",
        "TlsListener",
        "TonicStream",
    ];
    let files = [
        "lib.rs",
        "cm/mod.rs",
        "mr/mod.rs",
        "qp/mod.rs",
        "io/mod.rs",
        "error/mod.rs",
        "status/mod.rs",
        "status/porting/mod.rs",
        "types.rs",
    ];
    let names: Vec<_> = files.into_iter().flat_map(public_names).collect();
    assert!(names.len() > 80, "{names:?}");
    let listed = |name: &str| lists.contains(&format!("<{name}>")) || lists.contains(&format!("<{name}<"));
    let missing: Vec<_> =
        names.iter().filter(|name| !listed(name) && !others.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Lists calls for the compiler to check. Never runs.
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
    buffers: [Buffer; 5],
    remote: &RemoteRegion,
    region: &Region,
    owned: OwnedRegion<Vec<u8>>,
    pool: &Pool,
    one_sided: &OneSided,
) -> Result<(), Box<dyn std::error::Error>> {
    // The compiler checks the future of every async method and of every request (CAN-13).
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
    future(adapter.events().recv());
    future(connection.disconnected());
    future(connection.disconnect());
    future(adapter.register(1, Access::REMOTE_READ));
    future(region.deregister());
    future(adapter.register_from(vec![1], Access::REMOTE_READ));
    future(owned.into_inner());
    future(region.register_again(Access::REMOTE_READ));
    future(pool.get());
    future(pool.lend(Bytes::new()));
    let [a, b, c, d, e] = buffers;
    future(one_sided.read(e, remote));
    future(queue_pair.reserve_read());
    movable(queue_pair.receive(a)?);
    movable(queue_pair.send(b)?);
    movable(queue_pair.write(c, remote)?);
    movable(queue_pair.read(d, remote)?);
    Ok(())
}
