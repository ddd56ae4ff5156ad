//! uDAPL's `dat_ep_connect`, in the order of its page: parameters, description, return values, usage. Each test is named
//! after the item. `tokio_rdma::status::porting` contains uDAPL's name of each outcome.
//!
//! uDAPL returns two results, a return value and later an event; a future returns one. When an attempt fails, uDAPL's
//! endpoint becomes DISCONNECTED and must be reset; our queue pair is unchanged and can be used again (X34), as the tests
//! of failures show.
//!
//! Runs on: soft, sim, rxe, siw

mod soft;

use std::net::SocketAddr;
use std::sync::Arc;

use common::deviation::*;
use common::seeds::*;
use common::*;
use futures::future::Either;
use futures::poll;
use tokio_rdma::error::{AcceptError, ConnectError, PostErrorKind};
use tokio_rdma::status::porting::{DatEvent, DatReturn, Outcome};
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Connector, QueuePair, ReadLimits, Status};

fn fresh(adapter: &Adapter) -> (Connector, QueuePair) {
    (adapter.connector(), queue_pair(adapter))
}

/// The failure is this outcome, which is told later, by this event.
// ERR-07: the error itself leads to it.
fn comes_as(error: &ConnectError, outcome: Outcome, event: DatEvent) {
    assert_eq!(error.outcome(), outcome, "{error:?}");
    assert_eq!(error.status(), outcome.status());
    assert_eq!(outcome.dat_event(), Some(event));
}

/// The failure is this outcome, which the call itself returns.
fn returns(error: &ConnectError, outcome: Outcome, value: DatReturn) {
    assert_eq!(error.outcome(), outcome, "{error:?}");
    assert_eq!(error.status(), outcome.status());
    assert_eq!(outcome.dat_return().map(DatReturn::without_subtype), Some(value));
}

// ---- Parameters

// `ep_handle`
#[tokio::test]
async fn ep_handle_is_the_queue_pair_that_gets_connected() {
    let adapter = adapter();
    let half = half_open(&adapter, ConnectParams::default(), AcceptParams::default()).await;
    let send = |queue_pair: &QueuePair| queue_pair.send(adapter.buffer(1).expect("a buffer")).map(drop);
    assert!(send(&half.queue_pair).is_err());
    let _connection = within(half.reply.complete()).await.expect("completed");
    send(&half.queue_pair).expect("it is connected");
}

// `remote_ia_address`, `remote_conn_qual`: address and port. CM-31
#[tokio::test]
async fn remote_ia_address_and_remote_conn_qual_find_the_listener() {
    for ip in both() {
        let adapter = adapter_at(ip);
        let (other, _) = listening_at(&adapter, ip);
        let asked = asked_by(adapter.connector(), &adapter, ip, ConnectParams::default()).await;
        assert_eq!(asked.request.local_addr(), asked.listener.local_addr().expect("listening"));
        assert!(poll!(Box::pin(other.request())).is_pending(), "the other port");
    }
}

// CM-12
#[tokio::test]
async fn timeout_ends_the_wait_and_a_peer_in_time_does_not_notice_it() {
    let adapter = adapter();
    let (connector, queue_pair) = fresh(&adapter);
    let (_holder, address) = silent(v4());
    let params = ConnectParams::default().timeout(LONG);
    let error = within(connector.connect(&queue_pair, address, params)).await.expect_err("no answer");
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
    let params = ConnectParams::default().timeout(patience());
    drop(half_open(&adapter, params, AcceptParams::default()).await);
}

// PD-01
#[tokio::test]
async fn private_data_and_its_size() {
    let adapter = adapter();
    for length in [0, 1, adapter.info().max_request_data] {
        let asked = asked(&adapter, ConnectParams::default().private_data(vec![6; length])).await;
        assert_data(&adapter, asked.request.private_data(), &vec![6; length]);
    }
}

// ---- Description

// CM-07: the port of this end is in the connection request.
#[tokio::test]
async fn description_the_local_port_is_known_to_both() {
    let adapter = adapter();
    let asked = asked(&adapter, ConnectParams::default()).await;
    assert_eq!(asked.connector.local_addr(), Ok(asked.request.peer_addr()));
}

// DAT_EP_STATE_ACTIVE_CONNECTION_PENDING: receives may be posted, nothing else, and nobody else may connect it. QP-05,
// QP-06, CM-22
#[tokio::test]
async fn description_active_connection_pending() {
    let adapter = adapter();
    let asked = asked(&adapter, ConnectParams::default()).await;
    let _receive = asked.queue_pair.receive(adapter.buffer(8).expect("a buffer")).expect("posted");
    let error = asked.queue_pair.send(adapter.buffer(8).expect("a buffer")).expect_err("pending");
    assert_eq!(error.kind, PostErrorKind::ConnectionInvalid);
    let (_listener, address) = listening(&adapter);
    let again =
        within(adapter.connector().connect(&asked.queue_pair, address, ConnectParams::default())).await;
    returns(&again.expect_err("pending"), Outcome::QueuePairBusy, DatReturn::INVALID_STATE);
}

// The two lowest bits are those of the network, not of the caller (CM-13). A remote provider cannot fail to support a class:
// it is not asked, so NON_PEER_REJECTED does not occur for this cause (X31).
#[tokio::test]
async fn description_qos_that_is_not_supported_locally() {
    let adapter = adapter();
    for ip in both() {
        let (_listener, address) = listening_at(&adapter, ip);
        let (connector, queue_pair) = fresh(&adapter);
        let params = ConnectParams::default().traffic_class(0x03);
        let error = within(connector.connect(&queue_pair, address, params)).await.expect_err("not ours");
        assert!(matches!(error, ConnectError::NotSupported(_)), "{error:?}");
        assert_eq!(error.status(), Status::NOT_SUPPORTED);
        let outcome = Outcome::from_status(error.status()).expect("unique");
        assert_eq!(outcome.dat_return(), Some(DatReturn::MODEL_NOT_SUPPORTED));
        connects(&connector, &adapter, &queue_pair).await;
    }
}

// CM-15
#[tokio::test]
async fn description_non_peer_rejected_nobody_listens() {
    let adapter = adapter();
    let (connector, queue_pair) = fresh(&adapter);
    let (_socket, address) = deaf(v4());
    let error =
        within(connector.connect(&queue_pair, address, ConnectParams::default())).await.expect_err("deaf");
    comes_as(&error, Outcome::NoListener, DatEvent::NON_PEER_REJECTED);
    // The reason tells it from a peer's reject, which has the same status.
    let ConnectError::Refused { reason, .. } = error else { panic!("{error:?}") };
    assert_is_no_listener(&reason);
    connects(&connector, &adapter, &queue_pair).await;
}

// LS-04, ERR-07
#[tokio::test]
async fn description_non_peer_rejected_backlog_full() {
    let adapter = adapter();
    let listener = adapter.listener();
    listener.bind((v4(), 0).into()).expect("bound");
    listener.listen(1).expect("listening");
    let address = listener.local_addr().expect("listening");
    let [first, second] = [(); 2].map(|()| {
        let (connector, queue_pair) = fresh(&adapter);
        connecting(&Arc::new(connector), &queue_pair, address, ConnectParams::default())
    });
    let (Either::Left((outcome, _)) | Either::Right((outcome, _))) =
        within(futures::future::select(first, second)).await;
    let error = outcome.expect("joined").expect_err("one fills it");
    assert_refused_for_now(&error);
    comes_as(&error, error.outcome(), DatEvent::NON_PEER_REJECTED);
}

/// The event of an attempt, as a program that is ported looks it up: success has no `outcome()`, since it is no error.
fn event_of<T, E>(attempt: &Result<T, E>, outcome: impl FnOnce(&E) -> Outcome) -> Option<DatEvent> {
    attempt.as_ref().map_or_else(outcome, |_| Outcome::Established).dat_event()
}

// The event is `Ok` of the call on either side (CM-08, X33), and only of an attempt that has made a connection.
#[tokio::test]
async fn description_established_is_the_ok_of_either_side() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let ((connector, active), passive) = (fresh(&adapter), queue_pair(&adapter));
    let (connected, accepted) = within(async {
        tokio::join!(
            connector.connect_and_complete(&active, address, ConnectParams::default()),
            listener.accept_next(&passive, AcceptParams::default()),
        )
    })
    .await;
    assert_eq!(event_of(&connected, ConnectError::outcome), Some(DatEvent::ESTABLISHED));
    assert_eq!(event_of(&accepted, AcceptError::outcome), Some(DatEvent::ESTABLISHED));
    let (connected, accepted) = (connected.expect("connected"), accepted.expect("accepted"));
    assert_eq!(connected.peer_addr(), accepted.local_addr());
    let ((connector, active), (_socket, address)) = (fresh(&adapter), deaf(v4()));
    let refused = within(connector.connect_and_complete(&active, address, ConnectParams::default())).await;
    assert_eq!(event_of(&refused, ConnectError::outcome), Some(DatEvent::NON_PEER_REJECTED));
}

// CM-16
#[tokio::test]
async fn description_peer_rejected() {
    let adapter = adapter();
    let asked = asked(&adapter, ConnectParams::default()).await;
    within(asked.request.reject(b"2.0 has data")).await.expect("rejected");
    let error = within(asked.connecting).await.expect("joined").expect_err("rejected");
    comes_as(&error, Outcome::PeerRejected, DatEvent::PEER_REJECTED);
    assert_bytes(&adapter, error.private_data(), b"2.0 has data");
    let ConnectError::Rejected { reason, .. } = error else { panic!("{error:?}") };
    assert_is_reject(&reason);
    connects(&asked.connector, &adapter, &asked.queue_pair).await;
}

// The page has UNREACHABLE as well as TIMED_OUT for a host that does not respond in time; ours is the latter (CM-18, X32).
#[tokio::test]
async fn description_timed_out() {
    let adapter = adapter();
    let (connector, queue_pair) = fresh(&adapter);
    let (_holder, address) = silent(v4());
    let params = ConnectParams::default().timeout(LONG);
    let error = within(connector.connect(&queue_pair, address, params)).await.expect_err("no answer");
    comes_as(&error, Outcome::NoAnswer, DatEvent::TIMED_OUT);
    connects(&connector, &adapter, &queue_pair).await;
}

// ---- Return values. DAT_SUCCESS: the call was accepted, as in `description_active_connection_pending`.
// DAT_INVALID_HANDLE: a handle of ours refers to something for as long as it exists.
// DAT_MODEL_NOT_SUPPORTED: `description_qos_that_is_not_supported_locally`.

// PD-04
#[tokio::test]
async fn dat_invalid_parameter() {
    let adapter = adapter();
    let (connector, queue_pair) = fresh(&adapter);
    let (_listener, address) = listening(&adapter);
    let params = ConnectParams::default().private_data(vec![0; adapter.info().max_request_data + 1]);
    let error = within(connector.connect(&queue_pair, address, params)).await.expect_err("too much");
    returns(&error, Outcome::PrivateDataTooLarge, DatReturn::INVALID_PARAMETER);
    connects(&connector, &adapter, &queue_pair).await;
}

// CM-23: what can be nobody's address is known at once.
#[tokio::test]
async fn dat_invalid_address() {
    let adapter = adapter();
    let nobodys = ["0.0.0.0:7", "[::]:7", "224.0.0.1:7", "[ff02::1]:7", "255.255.255.255:7"];
    let nobodys = nobodys.map(|text| text.parse().expect("an address"));
    for peer in nobodys.into_iter().chain([SocketAddr::new(v4(), 0)]) {
        let (connector, queue_pair) = fresh(&adapter);
        let mut connecting = Box::pin(connector.connect(&queue_pair, peer, ConnectParams::default()));
        let std::task::Poll::Ready(Err(error)) = poll!(&mut connecting) else { panic!("{peer} at once") };
        returns(&error, Outcome::AddressInvalid, DatReturn::INVALID_ADDRESS);
    }
}

// CM-22, DIS-10: connected, and disconnected.
#[tokio::test]
async fn dat_invalid_state() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let (_listener, address) = listening(&adapter);
    for connected in [true, false] {
        if !connected {
            within(pair.active.connection.disconnect()).await.expect("disconnected");
        }
        let queue_pair = &pair.active.queue_pair;
        let outcome =
            within(adapter.connector().connect(queue_pair, address, ConnectParams::default())).await;
        returns(&outcome.expect_err("not unconnected"), Outcome::QueuePairBusy, DatReturn::INVALID_STATE);
    }
}

// ---- Usage

// NEG-01: what uDAPL leaves to the application is agreed on here; 0 and 0 for those who do not care to read.
#[tokio::test]
async fn usage_no_reads_either_way() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let pair = connected_with(&adapter, limits(0, 0), AcceptParams::default()).await;
    for end in [&pair.active, &pair.passive] {
        assert_eq!(end.connection.read_limits(), ReadLimits::NONE);
        assert_eq!(read(&adapter, &end.queue_pair).await, Err(PostErrorKind::NoReads));
    }
}

// NEG-01, NEG-03: a default for those who say nothing, which the connection may lower.
#[tokio::test]
async fn usage_limits_that_are_not_set_have_a_default() {
    let adapter = adapter();
    let plain = connected(&adapter).await;
    assert_eq!(plain.active.connection.read_limits(), ReadLimits::new(16, 16));
    let lowered = connected_with(&adapter, ConnectParams::default(), accept_limits(2, 3)).await;
    // ERR-06
    let served = if accept_limits_reads(&adapter) { 2 } else { 16 };
    assert_eq!(lowered.active.connection.read_limits(), ReadLimits::new(3, served));
}
