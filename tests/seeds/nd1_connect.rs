//! NetworkDirect v1's `INDConnector::Connect`, in the order of its page: parameters, return codes, notes, remarks. Each
//! test is named after the item.
//!
//! `AddressLength` and `PrivateDataLength` are part of their types, `pOverlapped` is the future, `ND_PENDING` a pending
//! future. `ND_ACCESS_VIOLATION`, a bad pointer, cannot be expressed in safe Rust. `Protocol` has one possible value, the
//! number of TCP on the soft provider.
//!
//! Runs on: soft, sim, rxe, siw

mod soft;

use std::net::SocketAddr;
use std::sync::Arc;

use common::deviation::*;
use common::seeds::*;
use common::*;
use futures::poll;
use tokio_rdma::error::ConnectError;
use tokio_rdma::status::StatusClass;
use tokio_rdma::status::porting::Outcome;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Connector, QueuePair, Status};

/// The failure of a connect, with plain parameters.
async fn failure(connector: &Connector, queue_pair: &QueuePair, peer: SocketAddr) -> ConnectError {
    within(connector.connect(queue_pair, peer, ConnectParams::default())).await.expect_err("it cannot work")
}

/// The failure leads to this outcome, and this is what v1 calls it.
// ERR-07
fn is(error: &ConnectError, outcome: Outcome, nd1: Status) {
    assert_eq!(error.outcome(), outcome, "{error:?}");
    assert_eq!(error.status(), outcome.status());
    assert_eq!(outcome.nd1_status(), Some(nd1));
}

fn fresh(adapter: &Adapter) -> (Connector, QueuePair) {
    (adapter.connector(), queue_pair(adapter))
}

// ---- Parameters

// `pEndpoint`: there the endpoint must be the connector's own, here it must be of the same adapter (X36).
#[tokio::test]
async fn endpoint_of_another_adapter() {
    let (adapter, other) = (adapter(), adapter());
    let (connector, queue_pair) = fresh(&adapter);
    let (_listener, address) = listening(&adapter);
    let error = failure(&connector, &common::queue_pair(&other), address).await;
    assert!(matches!(error, ConnectError::ForeignQueuePair), "{error:?}");
    connects(&connector, &adapter, &queue_pair).await;
}

// CM-31
#[tokio::test]
async fn address_of_either_family() {
    for ip in both() {
        let adapter = adapter_at(ip);
        let asked = asked_by(adapter.connector(), &adapter, ip, ConnectParams::default()).await;
        assert_eq!(asked.request.local_addr().ip(), ip);
    }
}

// The page has the port of `pAddress` ignored, and names no other place for the peer's port. Here it is that of the
// listener (X36), so port 0 is no address.
#[tokio::test]
async fn address_port_is_not_ignored() {
    let adapter = adapter();
    let (connector, queue_pair) = fresh(&adapter);
    let error = failure(&connector, &queue_pair, (v4(), 0).into()).await;
    is(&error, Outcome::AddressInvalid, Status::INVALID_ADDRESS);
}

// CM-01, CM-02: the argument is a Bind here.
#[tokio::test]
async fn local_port_chosen_by_the_caller_or_by_the_provider() {
    let adapter = adapter();
    let first = adapter.connector();
    first.bind((v4(), 0).into()).expect("bound");
    let port = first.local_addr().expect("bound").port();
    let asked = asked_by(first, &adapter, v4(), ConnectParams::default()).await;
    assert_eq!(asked.request.peer_addr().port(), port);

    let unbound = common::seeds::asked(&adapter, ConnectParams::default()).await;
    assert!((49152..=65535).contains(&unbound.request.peer_addr().port()));
}

// PD-01: GetConnectionData is the request's limits and data.
#[tokio::test]
async fn private_data_may_be_absent_and_reaches_the_peer() {
    let adapter = adapter();
    for data in [&b""[..], b"v1"] {
        let asked = asked(&adapter, ConnectParams::default().private_data(data)).await;
        assert_data(&adapter, asked.request.private_data(), data);
    }
}

// ---- Return codes

#[tokio::test]
async fn nd_pending_then_nd_success() {
    let adapter = adapter();
    let mut asked = asked(&adapter, ConnectParams::default()).await;
    settled().await;
    assert!(poll!(&mut asked.connecting).is_pending());
    let passive = queue_pair(&adapter);
    let _accepting = accepting(asked.request, &passive, AcceptParams::default());
    drop(within(asked.connecting).await.expect("joined").expect("accepted"));
}

// PD-04: another number than in v2.
#[tokio::test]
async fn nd_buffer_overflow() {
    let adapter = adapter();
    let (connector, queue_pair) = fresh(&adapter);
    let (_listener, address) = listening(&adapter);
    let params = ConnectParams::default().private_data(vec![0; adapter.info().max_request_data + 1]);
    let error = within(connector.connect(&queue_pair, address, params)).await.expect_err("too much");
    is(&error, Outcome::PrivateDataTooLarge, Status::BUFFER_OVERFLOW);
    assert_eq!(error.status(), Status::INVALID_BUFFER_SIZE);
    connects(&connector, &adapter, &queue_pair).await;
}

// The endpoint cannot be removed under the future, which owns a handle of it (X23); a cancel has the same status (CAN-01).
#[tokio::test]
async fn nd_canceled() {
    let adapter = adapter();
    let (_holder, address) = silent(v4());
    let (connector, queue_pair) = fresh(&adapter);
    let connector = Arc::new(connector);
    let connecting = connecting(&connector, &queue_pair, address, ConnectParams::default());
    settled().await;
    connector.cancel();
    let error = within(connecting).await.expect("joined").expect_err("cancelled");
    is(&error, Outcome::Canceled, Status::CANCELED);
}

// CM-22
#[tokio::test]
async fn nd_connection_active() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let (_listener, address) = listening(&adapter);
    for end in [&pair.active, &pair.passive] {
        let error = failure(&adapter.connector(), &end.queue_pair, address).await;
        is(&error, Outcome::QueuePairBusy, Status::CONNECTION_ACTIVE);
    }
}

// CM-16
#[tokio::test]
async fn nd_connection_refused() {
    let adapter = adapter();
    let asked = asked(&adapter, ConnectParams::default()).await;
    within(asked.request.reject(b"no")).await.expect("rejected");
    let error = within(asked.connecting).await.expect("joined").expect_err("rejected");
    is(&error, Outcome::PeerRejected, Status::CONNECTION_REFUSED);
    let (_socket, address) = deaf(v4());
    let error = failure(&asked.connector, &asked.queue_pair, address).await;
    is(&error, Outcome::NoListener, Status::CONNECTION_REFUSED);
}

// CM-18, ERR-03: in v1 a number that looks like a success.
#[tokio::test]
async fn nd_timeout() {
    let adapter = adapter();
    let (_holder, address) = silent(v4());
    let (connector, queue_pair) = fresh(&adapter);
    let params = ConnectParams::default().timeout(LONG);
    let error = within(connector.connect(&queue_pair, address, params)).await.expect_err("no answer");
    is(&error, Outcome::NoAnswer, Status::TIMEOUT);
    assert_eq!(Status::TIMEOUT.class(), StatusClass::Timeout);
}

// CM-23
#[tokio::test]
async fn nd_invalid_address() {
    let adapter = adapter();
    for peer in ["0.0.0.0:7", "224.0.0.1:7", "[ff02::1]:7"] {
        let (connector, queue_pair) = fresh(&adapter);
        let error = failure(&connector, &queue_pair, peer.parse().expect("an address")).await;
        is(&error, Outcome::AddressInvalid, Status::INVALID_ADDRESS);
    }
}

// ---- Implementation notes. NEG-01

#[tokio::test]
async fn notes_the_read_limits_are_transmitted() {
    let adapter = adapter();
    let asked = asked(&adapter, limits(2, 9)).await;
    assert_eq!(asked.request.read_limits(), tokio_rdma::ReadLimits::new(9, 2));
}

// ---- Remarks

#[tokio::test]
async fn remarks_the_request_goes_to_who_asked_for_one() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let mut waiting = Box::pin(listener.request());
    assert!(poll!(&mut waiting).is_pending());
    let connector = Arc::new(adapter.connector());
    let _connecting = connecting(&connector, &queue_pair(&adapter), address, ConnectParams::default());
    let request = within(waiting).await.expect("a request");
    assert_eq!(Ok(request.peer_addr()), connector.local_addr());
}

// CM-21
#[tokio::test]
async fn remarks_a_failure_leaves_the_endpoint_as_it_was() {
    let adapter = adapter();
    let (connector, queue_pair) = fresh(&adapter);
    let mut receive = queue_pair.receive(adapter.buffer(8).expect("a buffer")).expect("posted");
    let (_socket, address) = deaf(v4());
    failure(&connector, &queue_pair, address).await;
    assert!(poll!(&mut receive).is_pending());
    connects(&connector, &adapter, &queue_pair).await;
    // It was still there for the connection, with which it ended.
    assert_eq!(within(receive).await.0.expect_err("flushed").status, Status::CANCELED);
}

// CM-09, CM-24
#[tokio::test]
async fn remarks_complete_or_reject_when_it_is_done() {
    for complete in [true, false] {
        let adapter = adapter();
        let half = half_open(&adapter, ConnectParams::default(), AcceptParams::default()).await;
        if complete {
            let _connection = within(half.reply.complete()).await.expect("completed");
            within(half.accepting).await.expect("joined").expect("accepted");
        } else {
            within(half.reply.reject(b"")).await.expect("rejected");
            assert_refused(&adapter, cm::outcome(half.accepting)).await;
        }
    }
}

// Dropping the future, or a cancel, abandons the attempt at the peer too (CAN-03). The peer ends it in
// `nd_connection_refused`.
#[tokio::test]
async fn remarks_drop_or_cancel_aborts() {
    for cancel in [true, false] {
        let adapter = adapter();
        let asked = asked(&adapter, ConnectParams::default()).await;
        if cancel {
            asked.connector.cancel();
            within(asked.connecting).await.expect("joined").expect_err("cancelled");
        } else {
            abandon(asked.connecting).await;
        }
        let passive = queue_pair(&adapter);
        let accepted = within(asked.request.accept(&passive, AcceptParams::default())).await;
        assert_withdrawn(&adapter, accepted).await;
    }
}

// On the page this aborts the attempt. Here the future owns a handle of the endpoint (X24).
#[tokio::test]
async fn remarks_dropping_the_endpoint_aborts_nothing() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let (connector, endpoint) = fresh(&adapter);
    let mut connecting = tokio::spawn(connector.connect(&endpoint, address, ConnectParams::default()));
    let request = within(listener.request()).await.expect("a request");
    drop(endpoint);
    // A withdrawal would have reached the peer.
    settled().await;
    assert!(poll!(&mut connecting).is_pending());
    let passive = queue_pair(&adapter);
    let _accepting = accepting(request, &passive, AcceptParams::default());
    drop(within(connecting).await.expect("joined").expect("accepted"));
}

// DIS-06
#[tokio::test]
async fn remarks_disconnect_flushes_both_sides() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let receives = [&pair.active, &pair.passive]
        .map(|end| end.queue_pair.receive(adapter.buffer(8).expect("a buffer")).expect("posted"));
    within(pair.passive.connection.disconnect()).await.expect("disconnected");
    for receive in receives {
        assert_eq!(within(receive).await.0.expect_err("flushed").status, Status::CANCELED);
    }
}
