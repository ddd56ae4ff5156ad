//! `IND2Connector`, in the order of its page: methods, parameters, return values, notes and remarks. Each test is named
//! after the method and the item. This file contains Bind, Connect and CompleteConnect, the module `accept` the rest.
//!
//! Common to all methods: the length of a pointer (`cbAddress`, `cbPrivateData`) is part of the Rust type, `OVERLAPPED` is
//! the future, `ND_PENDING` a pending future, and `ND_ACCESS_VIOLATION` (a bad pointer) cannot be expressed in safe Rust.
//!
//! Runs on: soft, sim, rxe, siw

mod accept;
mod soft;

use std::net::SocketAddr;
use std::sync::Arc;

use common::deviation::*;
use common::seeds::*;
use common::*;
use futures::future::Either;
use futures::poll;
use tokio_rdma::error::{BindError, ConnectError, PostErrorKind};
use tokio_rdma::{AcceptParams, ConnectParams, DisconnectReason, ReadLimits, Status};

// ---- The interface's remarks

// NEG-01, NEG-05
#[tokio::test]
async fn remarks_read_limits_are_negotiated_and_applied() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let Asked { connector, queue_pair: active, connecting, request, .. } =
        asked(&adapter, limits(5, 3)).await;
    assert_eq!(request.read_limits(), ReadLimits::new(3, 5));
    let passive = queue_pair(&adapter);
    let accepting = accepting(request, &passive, accept_limits(0, 4));
    let reply = within(connecting).await.expect("joined").expect("accepted");
    // ERR-06: where an accept cannot lower what is read from it, the offer stands.
    let (reads, outcome) = if accept_limits_reads(&adapter) {
        (0, Err(PostErrorKind::NoReads))
    } else {
        (3, Ok(Status::SUCCESS))
    };
    assert_eq!(reply.read_limits(), ReadLimits::new(4, reads));
    assert_eq!(connector.read_limits(), Ok(ReadLimits::new(4, reads)));
    assert_eq!(read(&adapter, &active).await, Err(PostErrorKind::ConnectionInvalid));

    let connection = within(reply.complete()).await.expect("completed");
    let accepted = within(accepting).await.expect("joined").expect("accepted");
    assert_eq!(connection.read_limits(), ReadLimits::new(4, reads));
    assert_eq!(accepted.read_limits(), ReadLimits::new(reads, 4));
    assert_eq!(read(&adapter, &active).await, outcome);
    speak_first((&adapter, &active), (&adapter, &passive)).await;
    assert_eq!(read(&adapter, &passive).await, Ok(Status::SUCCESS));
}

// ---- Bind

// CM-01, CM-31
#[tokio::test]
async fn bind_address_is_where_the_connection_comes_from() {
    for ip in both() {
        let adapter = adapter_at(ip);
        let connector = adapter.connector();
        connector.bind(SocketAddr::new(ip, 0)).expect("bound");
        let bound = connector.local_addr().expect("bound");
        assert_eq!(bound.ip(), ip);
        let asked = asked_by(connector, &adapter, ip, ConnectParams::default()).await;
        assert_eq!(asked.request.peer_addr(), bound);
    }
}

// The port is of the range (CM-02), and unique in this process; for other processes see X21.
#[tokio::test]
async fn bind_port_zero_gets_a_unique_port() {
    let adapter = adapter();
    let connectors: Vec<_> = (0..20).map(|_| adapter.connector()).collect();
    let mut ports: Vec<_> = connectors
        .iter()
        .map(|connector| {
            connector.bind((v4(), 0).into()).expect("bound");
            connector.local_addr().expect("bound").port()
        })
        .collect();
    assert!(ports.iter().all(|port| (49152..=65535).contains(port)), "{ports:?}");
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), connectors.len());
}

// ND_CANCELED: a Bind of ours is over when it returns, and no queue pair takes part in it that could be removed (X23).

// CM-04. The connector may be bound otherwise (X2), though the page lists no such exception.
#[tokio::test]
async fn bind_nd_sharing_violation() {
    let adapter = adapter();
    let (_socket, foreign) = deaf(v4());
    let first = adapter.connector();
    first.bind((v4(), 0).into()).expect("bound");
    for taken in [foreign, first.local_addr().expect("bound")] {
        let second = adapter.connector();
        let error = second.bind(taken).expect_err("taken");
        assert_eq!(error.status(), Status::SHARING_VIOLATION);
        second.bind((v4(), 0).into()).expect("bound otherwise");
        connects(&second, &adapter, &queue_pair(&adapter)).await;
    }
}

// CM-06. Not on the page (X6).
#[tokio::test]
async fn bind_twice_is_already_bound() {
    let connector = adapter().connector();
    connector.bind((v4(), 0).into()).expect("bound");
    let bound = connector.local_addr();
    let error = connector.bind((v4(), 0).into()).expect_err("it has an address");
    assert!(matches!(error, BindError::AlreadyBound(_)), "{error:?}");
    assert_eq!(connector.local_addr(), bound);
}

// ---- Connect

// CM-08, CM-31
#[tokio::test]
async fn connect_destination_of_either_family() {
    for ip in both() {
        let adapter = adapter_at(ip);
        let (other, _) = listening_at(&adapter, ip);
        let asked = asked_by(adapter.connector(), &adapter, ip, ConnectParams::default()).await;
        assert_eq!(asked.request.local_addr(), asked.listener.local_addr().expect("it listens"));
        assert!(poll!(Box::pin(other.request())).is_pending(), "the other port");
    }
}

// The page says of Accept that the queue pair must be of the same adapter; it holds for Connect no less.
#[tokio::test]
async fn connect_queue_pair_of_another_adapter() {
    let (adapter, other) = (adapter(), adapter());
    let connector = adapter.connector();
    let (_listener, address) = listening(&adapter);
    let foreign = queue_pair(&other);
    let error =
        within(connector.connect(&foreign, address, ConnectParams::default())).await.expect_err("foreign");
    assert!(matches!(error, ConnectError::ForeignQueuePair), "{error:?}");
    assert_eq!(error.status(), Status::INVALID_PARAMETER);
    connects(&connector, &adapter, &queue_pair(&adapter)).await;
}

// NEG-01: zero for either direction, and what it then means to read.
#[tokio::test]
async fn connect_read_limits_may_be_zero() {
    for (params, active_reads, passive_reads) in [
        (limits(0, 1), Ok(Status::SUCCESS), Err(PostErrorKind::NoReads)),
        (limits(1, 0), Err(PostErrorKind::NoReads), Ok(Status::SUCCESS)),
        (limits(0, 0), Err(PostErrorKind::NoReads), Err(PostErrorKind::NoReads)),
    ] {
        let adapter = adapter();
        if lacks_buffer_sinks(&adapter) {
            return;
        }
        let pair = connected_with(&adapter, params, AcceptParams::default()).await;
        let (active, passive) = (&pair.active.queue_pair, &pair.passive.queue_pair);
        speak_first((&adapter, active), (&adapter, passive)).await;
        assert_eq!(read(&adapter, active).await, active_reads);
        assert_eq!(read(&adapter, passive).await, passive_reads);
    }
}

// PD-01, PD-06
#[tokio::test]
async fn connect_private_data_of_every_length_arrives() {
    let adapter = adapter();
    let most = adapter.info().max_request_data;
    for length in [0, 1, most] {
        let data = vec![7; length];
        let asked = asked(&adapter, ConnectParams::default().private_data(data.clone())).await;
        assert_data(&adapter, asked.request.private_data(), &data);
    }
}

#[tokio::test]
async fn connect_nd_pending_until_accepted_then_nd_success() {
    let adapter = adapter();
    let Asked { mut connecting, request, .. } = asked(&adapter, ConnectParams::default()).await;
    settled().await;
    assert!(poll!(&mut connecting).is_pending(), "nobody has accepted");
    let passive = queue_pair(&adapter);
    let _accepting = accepting(request, &passive, AcceptParams::default());
    drop(within(connecting).await.expect("joined").expect("accepted"));
}

// PD-04. The same connector may try again (X2).
#[tokio::test]
async fn connect_nd_invalid_buffer_size() {
    let adapter = adapter();
    let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
    let (_listener, address) = listening(&adapter);
    let most = adapter.info().max_request_data;
    let params = ConnectParams::default().private_data(vec![0; most + 1]);
    let error = within(connector.connect(&queue_pair, address, params)).await.expect_err("too much");
    assert!(
        matches!(error, ConnectError::InvalidBufferSize { length, maximum } if (length, maximum) == (most + 1, most))
    );
    assert_eq!(error.status(), Status::INVALID_BUFFER_SIZE);
    assert!(error.is_connector_usable());
    connects(&connector, &adapter, &queue_pair).await;
}

// The future owns a handle of the queue pair, so the queue pair cannot be removed under Connect (X23). A flush of it, or a
// cancel, has the same status (CAN-01).
#[tokio::test]
async fn connect_nd_canceled_by_flush_or_cancel() {
    for flush in [false, true] {
        let adapter = adapter();
        let (_holder, address) = silent(v4());
        let (connector, queue_pair) = (Arc::new(adapter.connector()), queue_pair(&adapter));
        let mut connecting = connecting(&connector, &queue_pair, address, ConnectParams::default());
        settled().await;
        assert!(poll!(&mut connecting).is_pending());
        if flush {
            queue_pair.flush();
        } else {
            connector.cancel();
        }
        let error = within(connecting).await.expect("joined").expect_err("cancelled");
        assert_eq!(error.status(), Status::CANCELED);
        is_burnt(&connector, &adapter).await;
        connects(&adapter.connector(), &adapter, &queue_pair).await;
    }
}

// CM-22
#[tokio::test]
async fn connect_nd_connection_active() {
    let adapter = adapter();
    let (_listener, address) = listening(&adapter);
    let Asked { connector, queue_pair: busy, connecting: _connecting, request, .. } =
        asked(&adapter, ConnectParams::default()).await;
    let pair = connected(&adapter).await;
    let fresh = queue_pair(&adapter);
    let again = adapter.connector();
    for (connector, queue_pair, is_connector) in [
        (&*connector, &fresh, true),
        (&again, &busy, false),
        (&again, &pair.active.queue_pair, false),
        (&again, &pair.passive.queue_pair, false),
    ] {
        let error =
            within(connector.connect(queue_pair, address, ConnectParams::default())).await.expect_err("busy");
        assert_eq!(matches!(error, ConnectError::Active), is_connector, "{error:?}");
        assert_eq!(error.status(), Status::CONNECTION_ACTIVE);
    }
    connects(&again, &adapter, &fresh).await;
    drop(request);
}

// CM-15, CM-19
#[tokio::test]
async fn connect_nd_connection_refused_without_listener_allows_retry() {
    let adapter = adapter();
    let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
    for ip in both() {
        let (_socket, address) = deaf(ip);
        let outcome = within(connector.connect(&queue_pair, address, ConnectParams::default())).await;
        let error = outcome.expect_err("nobody listens");
        assert_eq!(error.status(), Status::CONNECTION_REFUSED);
        assert!(error.is_connector_usable() && error.private_data().is_empty());
    }
    connects(&connector, &adapter, &queue_pair).await;
}

// LS-04, CM-19
#[tokio::test]
async fn connect_nd_connection_refused_by_backlog_allows_retry() {
    let adapter = adapter();
    let listener = adapter.listener();
    listener.bind((v4(), 0).into()).expect("bound");
    listener.listen(1).expect("listening");
    let address = listener.local_addr().expect("listening");
    let connectors = [Arc::new(adapter.connector()), Arc::new(adapter.connector())];
    let queue_pairs = [queue_pair(&adapter), queue_pair(&adapter)];
    let [first, second] =
        [0, 1].map(|i| connecting(&connectors[i], &queue_pairs[i], address, ConnectParams::default()));
    let (outcome, loser, waiting) = match within(futures::future::select(first, second)).await {
        Either::Left((outcome, second)) => (outcome, 0, second),
        Either::Right((outcome, first)) => (outcome, 1, first),
    };
    let error = outcome.expect("joined").expect_err("one request fills the backlog");
    assert_refused_for_now(&error);
    let passive = queue_pair(&adapter);
    let _accepting =
        accepting(within(listener.request()).await.expect("the other"), &passive, accept_limits(1, 1));
    drop(within(waiting).await.expect("joined").expect("accepted"));
    connects(&connectors[loser], &adapter, &queue_pairs[loser]).await;
}

// The connector may try again (CM-16, CM-19), but the same request would be rejected again, so that `is_retryable` is false
// (X13).
#[tokio::test]
async fn connect_nd_connection_refused_by_peer_allows_retry() {
    let adapter = adapter();
    let Asked { connector, queue_pair, connecting, request, .. } =
        asked(&adapter, ConnectParams::default()).await;
    within(request.reject(b"full")).await.expect("rejected");
    let error = within(connecting).await.expect("joined").expect_err("rejected");
    assert_rejected(&adapter, &error);
    assert_bytes(&adapter, error.private_data(), b"full");
    connects(&connector, &adapter, &queue_pair).await;
}

// CM-18, CM-19
#[tokio::test]
async fn connect_nd_io_timeout_may_be_retried() {
    let adapter = adapter();
    let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
    let (_holder, address) = silent(v4());
    let params = ConnectParams::default().timeout(LONG);
    let error = within(connector.connect(&queue_pair, address, params)).await.expect_err("no answer");
    assert_eq!(error.status(), Status::IO_TIMEOUT);
    assert!(error.is_connector_usable());
    connects(&connector, &adapter, &queue_pair).await;
}

// CM-23. Not on the page (X7).
#[tokio::test]
async fn connect_destination_that_can_be_nobody() {
    let adapter = adapter();
    let nobodys = ["0.0.0.0:7", "[::]:7", "224.0.0.1:7", "255.255.255.255:7", "[ff02::1]:7"];
    let nobodys = nobodys.map(|text| text.parse().expect("an address"));
    for peer in nobodys.into_iter().chain([SocketAddr::new(v4(), 0)]) {
        let error =
            within(adapter.connector().connect(&queue_pair(&adapter), peer, ConnectParams::default()))
                .await
                .expect_err("nobody");
        assert_eq!(error.status(), Status::INVALID_ADDRESS, "{peer}");
    }
}

// NEG-02
#[tokio::test]
async fn connect_notes_excessive_limits_are_lowered_silently() {
    let adapter = adapter();
    let most = adapter.info().max_read_limits;
    let asked = asked(&adapter, limits(u32::MAX, u32::MAX)).await;
    assert_eq!(asked.request.read_limits(), most.swapped());
}

// The peer need not have asked for a request: the backlog keeps it.
#[tokio::test]
async fn connect_remarks_backlog_keeps_an_early_request() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let connector = Arc::new(adapter.connector());
    let params = ConnectParams::default().private_data(&b"early"[..]);
    let _connecting = connecting(&connector, &queue_pair(&adapter), address, params);
    settled().await;
    let request = within(listener.request()).await.expect("it waited");
    assert_data(&adapter, request.private_data(), b"early");
}

// CM-21
#[tokio::test]
async fn connect_remarks_failure_leaves_queue_pair_unchanged() {
    let adapter = adapter();
    let active = queue_pair(&adapter);
    let mut receive = active.receive(adapter.buffer(16).expect("a buffer")).expect("posted");
    let (_socket, address) = deaf(v4());
    let connector = adapter.connector();
    within(connector.connect(&active, address, ConnectParams::default())).await.expect_err("nobody listens");
    assert!(poll!(&mut receive).is_pending(), "it is still posted");
    let pair = connected_queue_pairs(
        &adapter,
        active,
        queue_pair(&adapter),
        ConnectParams::default(),
        AcceptParams::default(),
    )
    .await;
    // The active side speaks first on iWARP; on the soft provider its word is in the completion of the connection.
    let (active, passive) = (&pair.active.queue_pair, &pair.passive.queue_pair);
    speak_first((&adapter, active), (&adapter, passive)).await;
    let sent = pair.passive.queue_pair.send(adapter.buffer_from(b"kept").expect("a buffer")).expect("posted");
    let (outcome, buffer) = within(receive).await;
    assert_eq!(&buffer[..outcome.expect("received").bytes], b"kept");
    within(sent).await.0.expect("sent");
}

// The page releases the connector; here the future is dropped (X24). Either that or a cancel abandons the attempt at the peer
// too (CAN-03).
#[tokio::test]
async fn connect_remarks_abandoned_by_drop_or_cancel() {
    for cancel in [false, true] {
        let adapter = adapter();
        let Asked { connector, queue_pair: active, connecting, request, .. } =
            asked(&adapter, ConnectParams::default()).await;
        if cancel {
            connector.cancel();
            within(connecting).await.expect("joined").expect_err("cancelled");
        } else {
            abandon(connecting).await;
        }
        let passive = queue_pair(&adapter);
        let accepted = within(request.accept(&passive, AcceptParams::default())).await;
        assert_withdrawn(&adapter, accepted).await;
        is_burnt(&connector, &adapter).await;
        connects(&adapter.connector(), &adapter, &active).await;
    }
}

// On the page this abandons the attempt. Here the future owns what it needs (X24), also of the queue pair (X23).
#[tokio::test]
async fn connect_remarks_dropping_the_connector_abandons_nothing() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let (connector, active) = (adapter.connector(), queue_pair(&adapter));
    let mut connecting = tokio::spawn(connector.connect(&active, address, ConnectParams::default()));
    let request = within(listener.request()).await.expect("a request");
    drop((connector, active));
    // A withdrawal would have reached the peer.
    settled().await;
    assert!(poll!(&mut connecting).is_pending());
    let passive = queue_pair(&adapter);
    let _accepting = accepting(request, &passive, AcceptParams::default());
    drop(within(connecting).await.expect("joined").expect("accepted"));
}

// DIS-06
#[tokio::test]
async fn connect_remarks_disconnect_of_either_side_flushes_both() {
    for active_leaves in [true, false] {
        let adapter = adapter();
        let pair = connected(&adapter).await;
        let receives = [&pair.active, &pair.passive]
            .map(|end| end.queue_pair.receive(adapter.buffer(8).expect("a buffer")).expect("posted"));
        let (leaver, other) =
            if active_leaves { (&pair.active, &pair.passive) } else { (&pair.passive, &pair.active) };
        within(leaver.connection.disconnect()).await.expect("disconnected");
        assert_eq!(within(other.connection.disconnected()).await, DisconnectReason::Peer);
        for receive in receives {
            let (outcome, _) = within(receive).await;
            assert_eq!(outcome.expect_err("flushed").status, Status::CANCELED);
        }
    }
}

// No port of this process is used twice (CM-11). The soft provider shares TCP's port space, as the page allows (X25), and a
// port with other processes (X21).
#[tokio::test]
async fn connect_remarks_local_ports_are_not_shared() {
    let adapter = adapter();
    let [first, second] = [connected(&adapter).await, connected(&adapter).await];
    let ports = [&first, &second].map(|pair| pair.active.connection.local_addr().port());
    assert_ne!(ports[0], ports[1]);
    let error = adapter.connector().bind((v4(), ports[0]).into()).expect_err("in use");
    assert_eq!(error.status(), Status::SHARING_VIOLATION);
}

// ---- CompleteConnect

// CM-09. ND_CONNECTION_INVALID (CM-27): only a `Reply` can be completed, and only once.
#[tokio::test]
async fn complete_connect_nd_success_ends_the_pending_accept() {
    let adapter = adapter();
    let mut half = half_open(&adapter, ConnectParams::default(), AcceptParams::default()).await;
    settled().await;
    // ERR-06
    let three_phase = three_phase(&adapter);
    assert!(!three_phase || poll!(&mut half.accepting).is_pending(), "it waits for the third phase");
    assert!(three_phase || half.accepting.is_finished(), "there is no third phase");
    let connection = within(half.reply.complete()).await.expect("completed");
    let accepted = within(half.accepting).await.expect("joined").expect("accepted");
    assert_eq!(connection.local_addr(), accepted.peer_addr());
}

// CM-28, CM-20. ND_IO_TIMEOUT is for providers that time out here; a peer that has left is noticed, and named.
#[tokio::test]
async fn complete_connect_fails_when_the_peer_has_left() {
    let adapter = adapter();
    let half = half_open(&adapter, ConnectParams::default(), AcceptParams::default()).await;
    take_back(&adapter, half.accepting).await;
    // Everything that it leaves behind has its turn, and its last word arrives.
    tokio::task::yield_now().await;
    settled().await;
    assert_abandoned(&adapter, within(half.reply.complete()).await, &half.queue_pair).await;
    is_burnt(&half.connector, &adapter).await;
}

// Not on the page: the queue pair is removed between the phases, when no future owns a handle of it (X23).
#[tokio::test]
async fn complete_connect_without_its_queue_pair() {
    let adapter = adapter();
    let half = half_open(&adapter, ConnectParams::default(), AcceptParams::default()).await;
    drop(half.queue_pair);
    let error = within(half.reply.complete()).await.expect_err("removed");
    assert_eq!(error.status(), Status::CANCELED);
    assert_refused(&adapter, cm::outcome(half.accepting)).await;
}
