//! `NdkConnect`, in the order of its page: parameters, return codes, remarks. Each test is named after the item. NDK returns
//! each code inline or later; here the same future returns both.
//!
//! The lengths of the addresses and of the data are part of their types. `STATUS_PENDING` is a pending future.
//!
//! Runs on: soft, sim, rxe, siw

mod soft;

use common::deviation::*;
use common::seeds::*;
use common::*;
use futures::poll;
use std::net::SocketAddr;
use tokio::sync::mpsc;
use tokio_rdma::error::ConnectError;
use tokio_rdma::status::porting::Outcome;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Connector, QueuePair, ReadLimits, Reply, Status};

/// The failure of a connect to `peer` by a connector that may be bound.
async fn failure(adapter: &Adapter, connector: &Connector, peer: SocketAddr) -> ConnectError {
    let queue_pair = queue_pair(adapter);
    within(connector.connect(&queue_pair, peer, ConnectParams::default())).await.expect_err("it cannot work")
}

/// The failure leads to this outcome, and this is what NDK calls it.
// ERR-07
fn is(error: &ConnectError, outcome: Outcome, name: &str, number: u32) {
    assert_eq!(error.outcome(), outcome, "{error:?}");
    is_status(error.status(), outcome, name, number);
}

fn is_status(status: Status, outcome: Outcome, name: &str, number: u32) {
    assert_eq!(status, outcome.status());
    assert_eq!(outcome.nt_status(), Some(status));
    assert_eq!(status.nt_name(), Some(name));
    assert_eq!(status.ntstatus(), number.cast_signed());
}

// ---- Parameters

// `pNdkConnector`, `pNdkQp`
#[tokio::test]
async fn connector_and_queue_pair_belong_to_the_connection_and_to_no_other() {
    let adapter = adapter();
    let asked = asked(&adapter, ConnectParams::default()).await;
    let (_listener, address) = listening(&adapter);
    let other = adapter.connector();
    let busy = within(other.connect(&asked.queue_pair, address, ConnectParams::default())).await;
    assert!(matches!(busy, Err(ConnectError::QueuePairActive)), "the queue pair: {busy:?}");
    assert!(
        matches!(failure(&adapter, &asked.connector, address).await, ConnectError::Active),
        "the connector"
    );
}

// The source address is that of a Bind before (CM-01, X28).
#[tokio::test]
async fn src_address_of_either_family_is_what_the_peer_sees() {
    for ip in both() {
        let adapter = adapter_at(ip);
        let connector = adapter.connector();
        connector.bind(SocketAddr::new(ip, 0)).expect("bound");
        let source = connector.local_addr().expect("bound");
        let asked = asked_by(connector, &adapter, ip, ConnectParams::default()).await;
        assert_eq!(asked.request.peer_addr(), source);
    }
}

// CM-07
#[tokio::test]
async fn src_address_left_to_the_provider() {
    let adapter = adapter();
    let asked = asked(&adapter, ConnectParams::default()).await;
    let source = asked.request.peer_addr();
    assert_eq!(source.ip(), v4());
    assert!((49152..=65535).contains(&source.port()), "{source}");
}

// CM-31
#[tokio::test]
async fn dest_address_of_either_family() {
    for ip in both() {
        let adapter = adapter_at(ip);
        let asked = asked_by(adapter.connector(), &adapter, ip, ConnectParams::default()).await;
        assert_eq!(asked.request.local_addr(), asked.listener.local_addr().expect("listening"));
    }
}

// NEG-01, NEG-02, NEG-03: lowered to the adapter, then to the peer; the effective values are what
// NdkGetConnectionData gives.
#[tokio::test]
async fn inbound_and_outbound_read_limit_are_lowered_to_the_adapter_and_the_peer() {
    let adapter = adapter();
    let most = adapter.info().max_read_limits;
    for (own, peer, effective) in [
        ((8, 6), (16, 16), ReadLimits::new(8, 6)),
        // ERR-06
        ((8, 6), (5, 3), ReadLimits::new(3, if accept_limits_reads(&adapter) { 5 } else { 6 })),
        ((u32::MAX, u32::MAX), (u32::MAX, u32::MAX), most),
        ((0, 9), (9, 9), ReadLimits::new(0, 9)),
    ] {
        let half = half_open(&adapter, limits(own.0, own.1), accept_limits(peer.0, peer.1)).await;
        assert_eq!(half.connector.read_limits(), Ok(effective));
        assert_eq!(half.reply.read_limits(), effective);
    }
}

// PD-01
#[tokio::test]
async fn private_data_is_sent_with_the_request() {
    let adapter = adapter();
    for length in [0, 1, adapter.info().max_request_data] {
        let asked = asked(&adapter, ConnectParams::default().private_data(vec![3; length])).await;
        assert_data(&adapter, asked.request.private_data(), &vec![3; length]);
    }
}

// `RequestCompletion` and `RequestContext` are a task that has the future and the context. The future outlives the handles
// that it was made with, and is woken when its attempt ends: by an accept, a reject, or a cancel (CAN-01).
#[tokio::test]
async fn request_completion_is_a_task_with_the_future() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let passive = queue_pair(&adapter);
    let (completion, mut completed) = mpsc::unbounded_channel();
    for context in [Status::SUCCESS, Status::CONNECTION_REFUSED, Status::CANCELED] {
        let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
        let connect = connector.connect(&queue_pair, address, ConnectParams::default());
        let completion = completion.clone();
        tokio::spawn(async move { completion.send((context, connect.await)) });
        drop(queue_pair);
        let request = within(listener.request()).await.expect("a request");
        assert!(completed.try_recv().is_err(), "it has not ended");
        let mut accepting = None;
        match context {
            Status::SUCCESS => {
                drop(connector);
                accepting = Some(self::accepting(request, &passive, AcceptParams::default()));
            }
            Status::CONNECTION_REFUSED => {
                drop(connector);
                within(request.reject(b"no")).await.expect("rejected");
            }
            _ => connector.cancel(),
        }
        let (ended, outcome) = within(completed.recv()).await.expect("a completion");
        let status = outcome.map_or_else(|error| error.status(), |_reply| Status::SUCCESS);
        assert_eq!((ended, status), (context, context));
        drop(accepting);
    }
}

// ---- Return codes

#[tokio::test]
async fn status_pending_then_status_success() {
    let adapter = adapter();
    let mut asked = asked(&adapter, ConnectParams::default()).await;
    settled().await;
    assert!(poll!(&mut asked.connecting).is_pending());
    let passive = queue_pair(&adapter);
    let _accepting = accepting(asked.request, &passive, AcceptParams::default());
    drop(within(asked.connecting).await.expect("joined").expect("accepted"));
}

// CM-15, CM-16, CM-19. The backlog's refusal: `nd2_connector.rs`.
#[tokio::test]
async fn status_connection_refused() {
    let adapter = adapter();
    let connector = adapter.connector();
    let (_socket, address) = deaf(v4());
    let error = failure(&adapter, &connector, address).await;
    is(&error, Outcome::NoListener, "STATUS_CONNECTION_REFUSED", 0xC000_0236);
    connects(&connector, &adapter, &queue_pair(&adapter)).await;

    let asked = asked(&adapter, ConnectParams::default()).await;
    within(asked.request.reject(b"no")).await.expect("rejected");
    let error = within(asked.connecting).await.expect("joined").expect_err("rejected");
    is(&error, Outcome::PeerRejected, "STATUS_CONNECTION_REFUSED", 0xC000_0236);
    assert_bytes(&adapter, error.private_data(), b"no");
    connects(&asked.connector, &adapter, &asked.queue_pair).await;
}

// CM-18, CM-19
#[tokio::test]
async fn status_io_timeout() {
    let adapter = adapter();
    let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
    let (_holder, address) = silent(v4());
    let params = ConnectParams::default().timeout(LONG);
    let error = within(connector.connect(&queue_pair, address, params)).await.expect_err("no answer");
    is(&error, Outcome::NoAnswer, "STATUS_IO_TIMEOUT", 0xC000_00B5);
    connects(&connector, &adapter, &queue_pair).await;
}

/// NdkConnect as a program that is ported writes it: the source address is an argument.
async fn ndk_connect(
    adapter: &Adapter,
    queue_pair: &QueuePair,
    source: SocketAddr,
    destination: SocketAddr,
) -> Result<Reply, Status> {
    let connector = adapter.connector();
    connector.bind(source).map_err(|error| error.status())?;
    let connect = connector.connect(queue_pair, destination, ConnectParams::default());
    within(connect).await.map_err(|error| error.status())
}

// A source address that is in use: by another program, another connector, a connection (CM-04). Bind has the status (X28).
#[tokio::test]
async fn status_sharing_violation() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let (_socket, taken) = deaf(v4());
    let other = adapter.connector();
    other.bind((v4(), 0).into()).expect("bound");
    let pair = connected(&adapter).await;
    let queue_pair = queue_pair(&adapter);
    for source in [taken, other.local_addr().expect("bound"), pair.active.connection.local_addr()] {
        let status = ndk_connect(&adapter, &queue_pair, source, address).await.expect_err("taken");
        is_status(status, Outcome::PortInUse, "STATUS_SHARING_VIOLATION", 0xC000_0043);
    }
    // Nothing has reached the peer, and the queue pair is free.
    assert!(poll!(Box::pin(listener.request())).is_pending());
    connects(&adapter.connector(), &adapter, &queue_pair).await;
}

// The local address is not one of the adapter: Bind has the status (X28). Or the remote address is that of no host.
#[tokio::test]
async fn status_invalid_address() {
    let adapter = adapter();
    let (_listener, address) = listening(&adapter);
    let queue_pair = queue_pair(&adapter);
    for text in ["203.0.113.77:0", "[2001:db8::77]:0", "224.0.0.1:0"] {
        let source = text.parse().expect("an address");
        let status = ndk_connect(&adapter, &queue_pair, source, address).await.expect_err("not ours");
        is_status(status, Outcome::AddressInvalid, "STATUS_INVALID_ADDRESS", 0xC000_0141);
    }
    for text in ["0.0.0.0:7", "224.0.0.1:7", "255.255.255.255:7"] {
        let destination = text.parse().expect("an address");
        let source = (v4(), 0).into();
        let status = ndk_connect(&adapter, &queue_pair, source, destination).await.expect_err("nobody's");
        is_status(status, Outcome::AddressInvalid, "STATUS_INVALID_ADDRESS", 0xC000_0141);
    }
    connects(&adapter.connector(), &adapter, &queue_pair).await;
}

// Other status codes. CM-10: a shared endpoint (NDK's other connect call) has no counterpart; see docs/guide/src/porting-nd.md.
#[tokio::test]
async fn other_status_codes_carry_their_number() {
    let (adapter, other) = (adapter(), adapter());
    let (_listener, address) = listening(&adapter);
    let foreign = queue_pair(&other);
    let outcome = within(adapter.connector().connect(&foreign, address, ConnectParams::default())).await;
    assert_eq!(outcome.expect_err("foreign").status().nt_name(), Some("STATUS_INVALID_PARAMETER"));
}

// ---- Remarks

// CM-08
#[tokio::test]
async fn remarks_it_goes_from_a_local_to_a_remote_address() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let (active, passive) = (pair.active.connection, pair.passive.connection);
    assert_eq!((active.local_addr(), active.peer_addr()), (passive.peer_addr(), passive.local_addr()));
}
