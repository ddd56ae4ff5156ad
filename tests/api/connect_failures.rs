//! Failures of the active side: refused, timed out, cancelled, too late; and the reuse of connector and queue pair
//! afterwards.
//!
//! Runs on: soft, sim, rxe, siw

mod refusal;
mod soft;

use std::net::SocketAddr;
use std::time::Duration;

use common::cm::*;
use common::deviation::*;
use common::*;
use tokio_rdma::error::{AcceptError, ConnectError, StateError};
use tokio_rdma::{AcceptParams, ConnectParams, Connector, QueuePair, Status};

/// Short, for a peer that never answers anyway.
const SHORT: Duration = Duration::from_millis(20);

async fn connect_error(connector: &Connector, queue_pair: &QueuePair, peer: SocketAddr) -> ConnectError {
    within(connector.connect(queue_pair, peer, ConnectParams::default())).await.expect_err("it fails")
}

#[tokio::test]
async fn nobody_listens() {
    for ip in both() {
        let adapter = adapter();
        let (connector, active) = (adapter.connector(), queue_pair(&adapter));
        let error = connect_error(&connector, &active, nobody(ip)).await;
        // A refusal without a listener brings no private data and leaves the connector usable (CM-15).
        assert_eq!(error.status(), Status::CONNECTION_REFUSED);
        assert!(error.is_connector_usable() && error.private_data().is_empty());
        assert_eq!(connector.private_data(), Err(StateError::ConnectionInvalid));
        // The reason is the report of the transport that no listener was there (CM-33).
        let ConnectError::Refused { reason, .. } = error else { panic!("{error:?}") };
        assert_is_no_listener(&reason);
        // The failed connect leaves the queue pair as it was (CM-21).
        assert_usable(&adapter, &active).await;
    }
}

// CM-16: NdConnReject, the passive half.
#[tokio::test]
async fn nd_conn_reject_by_passive_side_carries_data() {
    for ip in both() {
        let adapter = adapter();
        let asked = requested(&adapter, ip, ConnectParams::default()).await;
        within(asked.request.reject(b"not today")).await.expect("rejected");
        let error = outcome(asked.connecting).await.expect_err("rejected");
        assert_eq!(error.status(), Status::CONNECTION_REFUSED);
        assert_bytes(&adapter, error.private_data(), b"not today");
        // PD-03: GetPrivateData after the failure says the same.
        assert_data(&adapter, &asked.connector.private_data().expect("it came with data"), b"not today");
        // A rejection by the peer differs from an address without a listener (CM-33).
        assert_rejected(&adapter, &error);
        let (ConnectError::Rejected { reason, .. } | ConnectError::Refused { reason, .. }) = error else {
            panic!("{error:?}")
        };
        assert_is_reject(&reason);
        // The rejection leaves the queue pair as it was (CM-21).
        assert_usable(&adapter, &asked.active).await;
    }
}

#[tokio::test]
async fn a_peer_that_never_answers_times_out() {
    for ip in both() {
        let adapter = adapter();
        let (_silent, address) = silent(ip);
        let (connector, active) = (adapter.connector(), queue_pair(&adapter));
        // HW-13, CM-18, and CM-12: the caller's timeout is IO_TIMEOUT, which may be tried again.
        for timeout in [SHORT, Duration::ZERO] {
            let params = ConnectParams::default().timeout(timeout);
            let begun = tokio::time::Instant::now();
            let error = within(connector.connect(&active, address, params)).await.expect_err("no answer");
            assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
            assert!(begun.elapsed() >= timeout, "it gave up after {:?}", begun.elapsed());
            assert_eq!(error.status(), Status::IO_TIMEOUT);
            assert!(error.is_connector_usable());
        }
        // CM-19, CM-21: by the same connector and queue pair.
        let link = connect_on(&adapter, &active, &connector).await;
        exchange(&adapter, &active, &link.passive).await;
    }
}

// The queue pair is free: the next peer takes it at once, whether or not the one before has noticed (CM-21).
#[tokio::test]
async fn queue_pair_is_reusable_after_a_connect_timeout() {
    let adapter = adapter();
    let (_silent, nobody) = silent(v4());
    let (listener, address) = listening(&adapter);
    let active = queue_pair(&adapter);
    for _ in 0..often(200, 20) {
        let params = ConnectParams::default().timeout(SHORT);
        let error =
            within(adapter.connector().connect(&active, nobody, params)).await.expect_err("no answer");
        assert_eq!(error.status(), Status::IO_TIMEOUT);
        let connector = adapter.connector();
        let connecting = async {
            let connect = connector.connect(&active, address, ConnectParams::default());
            let error = connect.await.expect_err("rejected");
            let ConnectError::Rejected { private_data, reason, .. } = error else { panic!("{error:?}") };
            assert_is_reject(&reason);
            assert_bytes(&adapter, &private_data.expect("it came with data"), b"enough");
        };
        let rejecting = async {
            listener.request().await.expect("a request").reject(b"enough").await.expect("rejected");
        };
        within(async { tokio::join!(connecting, rejecting) }).await;
    }
    assert_usable(&adapter, &active).await;
}

#[tokio::test]
async fn a_timeout_that_is_not_reached_changes_nothing() {
    let adapter = adapter();
    // CM-12: longer than the clock goes, too.
    for timeout in [patience(), Duration::MAX] {
        let params = ConnectParams::default().timeout(timeout);
        let pair = connected_with(&adapter, params, AcceptParams::default()).await;
        exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
    }
}

// CM-12: tokio's timeout drops the future, which is Cancel.
#[tokio::test]
async fn a_timeout_around_the_future_cancels() {
    for ip in both() {
        let adapter = adapter();
        let (_silent, address) = silent(ip);
        let (connector, active) = (adapter.connector(), queue_pair(&adapter));
        let connect = connector.connect(&active, address, ConnectParams::default());
        tokio::time::timeout(SHORT, connect).await.expect_err("no answer");
        // The timeout has used up the connector, but not the queue pair (CM-20).
        assert_eq!(connect_error(&connector, &active, nobody(ip)).await.status(), Status::CONNECTION_ACTIVE);
        assert_usable(&adapter, &active).await;
    }
}

#[tokio::test]
async fn dropped_connect_refuses_peer_and_frees_queue_pair() {
    for ip in both() {
        let adapter = adapter();
        let asked = requested(&adapter, ip, ConnectParams::default()).await;
        abandon(asked.connecting).await;
        // CM-12, CM-20: burnt.
        let error = connect_error(&asked.connector, &asked.active, nobody(ip)).await;
        assert_eq!(error.status(), Status::CONNECTION_ACTIVE);
        assert!(!error.is_connector_usable());
        // The peer finds that out when it accepts (P10).
        let passive = queue_pair(&adapter);
        let accepted = within(asked.request.accept(&passive, AcceptParams::default())).await;
        let connected = accepted.is_ok();
        assert_withdrawn(&adapter, accepted).await;
        // The queue pair of the dropped connect is free again (CM-21).
        assert_usable(&adapter, &asked.active).await;
        if connected {
            assert_used_up(&adapter, &passive).await;
        } else {
            assert_usable(&adapter, &passive).await;
        }
    }
}

#[tokio::test]
async fn cancel_ends_a_pending_connect() {
    for ip in both() {
        let adapter = adapter();
        let asked = requested(&adapter, ip, ConnectParams::default()).await;
        asked.connector.cancel();
        let error = outcome(asked.connecting).await.expect_err("cancelled");
        assert!(matches!(error, ConnectError::Canceled) && error.status() == Status::CANCELED);
        // A cancelled connector is used up (CM-20).
        assert!(!error.is_connector_usable());
        assert!(matches!(
            connect_error(&asked.connector, &asked.active, nobody(ip)).await,
            ConnectError::Active
        ));
        assert_usable(&adapter, &asked.active).await;
    }
}

// A14 in as far as the types allow it: a pending connect owns a handle of the queue pair, a reply does not (X23).
#[tokio::test]
async fn complete_without_a_queue_pair_is_cancelled() {
    for ip in both() {
        let adapter = adapter();
        let open = half_open(&adapter, ip).await;
        drop(open.active);
        let error = within(open.reply.complete()).await.expect_err("nothing to complete it with");
        assert!(matches!(error, ConnectError::Canceled), "{error:?}");
        // A cancelled connector is used up, also if its queue pair was dropped (CM-20).
        assert!(!error.is_connector_usable());
        assert_refused(&adapter, outcome(open.accepting)).await;
        assert_unused(&adapter, &open.passive).await;
    }
}

// CM-19: refuse, start a listener, succeed; with one connector and one queue pair all along.
#[tokio::test]
async fn a_retryable_failure_is_followed_by_success() {
    type Fail = for<'a> fn(&'a Connector, &'a QueuePair) -> futures::future::BoxFuture<'a, ConnectError>;
    let failures: [(&str, Fail); 4] = [
        ("nobody", |connector, active| Box::pin(connect_error(connector, active, nobody(v4())))),
        ("rejected", |connector, active| {
            Box::pin(async move {
                let adapter = adapter();
                let (listener, address) = listening(&adapter);
                let rejecting = async {
                    listener.request().await.expect("a request").reject(b"no").await.expect("rejected");
                };
                tokio::join!(connect_error(connector, active, address), rejecting).0
            })
        }),
        ("closed", |connector, active| {
            Box::pin(async move {
                let adapter = adapter();
                let (listener, address) = listening(&adapter);
                let closing = async {
                    drop(listener.request().await.expect("a request"));
                    drop(listener);
                };
                tokio::join!(connect_error(connector, active, address), closing).0
            })
        }),
        ("silent", |connector, active| {
            Box::pin(async move {
                let (_silent, address) = silent(v4());
                let params = ConnectParams::default().timeout(SHORT);
                within(connector.connect(active, address, params)).await.expect_err("no answer")
            })
        }),
    ];
    let adapter = adapter();
    for bound in [false, true] {
        for (name, fail) in &failures {
            let (connector, active) = (adapter.connector(), queue_pair(&adapter));
            // CM-21: what was posted before the failure is there after it.
            let receive = active.receive(adapter.buffer(16).expect("memory")).expect("posted");
            let local = bound.then(|| bind_somewhere(v4(), |address| connector.bind(address)));
            for _ in 0..2 {
                let error = fail(&connector, &active).await;
                assert!(error.is_connector_usable(), "{name}: {error:?}");
                if let Some(local) = local {
                    // "Back to Bound": the address is still ours.
                    assert_eq!(connector.local_addr(), Ok(local), "{name}");
                    assert!(adapter.connector().bind(local).is_err(), "{name}");
                }
            }
            let link = connect_on(&adapter, &active, &connector).await;
            if let Some(local) = local {
                assert_eq!(link.ours.local_addr(), local, "{name}");
            }
            speak_first((&adapter, &active), (&adapter, &link.passive)).await;
            let send = link.passive.send(adapter.buffer_from(b"kept").expect("memory")).expect("posted");
            within(send).await.0.expect("sent");
            let (received, buffer) = within(receive).await;
            assert_eq!(&buffer[..received.expect("received").bytes], b"kept", "{name}");
        }
    }
}

// CM-19: what the device had flushed of the attempt that failed does not end the connection that follows.
#[tokio::test]
async fn failed_attempt_does_not_end_the_next_connection() {
    // A provider may wait this long to learn why something was flushed.
    const LATE: Duration = Duration::from_secs(2);
    let adapter = adapter();
    let asked = requested(&adapter, v4(), ConnectParams::default()).await;
    let receive = asked.active.receive(adapter.buffer(16).expect("memory")).expect("posted");
    within(asked.request.reject(b"no")).await.expect("rejected");
    outcome(asked.connecting).await.expect_err("rejected");
    let link = connect_on(&adapter, &asked.active, &asked.connector).await;
    speak_first((&adapter, &asked.active), (&adapter, &link.passive)).await;
    let send = link.passive.send(adapter.buffer_from(b"kept").expect("memory")).expect("posted");
    within(send).await.0.expect("sent");
    assert_eq!(within(receive).await.0.expect("received").bytes, 4);
    pass(LATE).await;
    exchange(&adapter, &asked.active, &link.passive).await;
}

// CM-22: NdDualConnection.
#[tokio::test]
async fn nd_dual_connection_second_connect_is_already_active() {
    for ip in both() {
        let adapter = adapter();
        let asked = requested(&adapter, ip, ConnectParams::default()).await;
        let (other, fresh) = (adapter.connector(), queue_pair(&adapter));
        let elsewhere = nobody(ip);
        // The connector connects already, and so does the queue pair.
        assert!(matches!(connect_error(&asked.connector, &fresh, elsewhere).await, ConnectError::Active));
        let error = connect_error(&other, &asked.active, elsewhere).await;
        assert!(
            matches!(error, ConnectError::QueuePairActive) && error.status() == Status::CONNECTION_ACTIVE
        );
        // A6: nothing was begun, and this connector is free.
        assert!(error.is_connector_usable());
        // Neither has harmed the first one.
        let passive = queue_pair(&adapter);
        let accepting = tokio::spawn({
            let passive = passive.clone();
            async move { asked.request.accept(&passive, AcceptParams::default()).await }
        });
        let reply = outcome(asked.connecting).await.expect("the peer accepts");
        assert!(matches!(connect_error(&asked.connector, &fresh, elsewhere).await, ConnectError::Active));
        let _ours = within(reply.complete()).await.expect("complete");
        let _theirs = outcome(accepting).await.expect("accepted");
        assert!(matches!(connect_error(&asked.connector, &fresh, elsewhere).await, ConnectError::Active));
        assert!(matches!(
            connect_error(&other, &asked.active, elsewhere).await,
            ConnectError::QueuePairActive
        ));
        assert!(matches!(connect_error(&other, &passive, elsewhere).await, ConnectError::QueuePairActive));
        exchange(&adapter, &asked.active, &passive).await;
        // X2: and what was refused is as it was: this one connects.
        let link = connect_on_at(&adapter, &fresh, &other, ip).await;
        exchange(&adapter, &fresh, &link.passive).await;
    }
}

// CM-23: NdInvalidIP.
#[tokio::test]
async fn nd_invalid_ip_is_an_invalid_address() {
    let adapter = adapter();
    let active = queue_pair(&adapter);
    let nobodys = ["0.0.0.0:7000", "255.255.255.255:7000", "224.0.0.1:7000", "[::]:7000", "[ff02::1]:7000"];
    let nobodys = nobodys.map(|text| text.parse().expect("an address"));
    for peer in nobodys.into_iter().chain([SocketAddr::new(v4(), 0)]) {
        let connector = adapter.connector();
        let error = connect_error(&connector, &active, peer).await;
        assert_eq!(error.status(), Status::INVALID_ADDRESS, "{peer}");
        assert!(matches!(error, ConnectError::InvalidAddress(address) if address == peer));
        // CM-20, X2: not one of the four, so it burns the connector.
        assert!(!error.is_connector_usable());
        assert!(
            matches!(connect_error(&connector, &active, nobody(v4())).await, ConnectError::Active),
            "{peer}"
        );
    }
    // A bound connector does not reach the other family.
    let connector = adapter.connector();
    connector.bind((v4(), 0).into()).expect("bound");
    let error = connect_error(&connector, &active, nobody(v6())).await;
    assert_eq!(error.status(), Status::INVALID_ADDRESS);
    assert_usable(&adapter, &active).await;
}

#[tokio::test]
async fn a_queue_pair_of_another_adapter_is_refused() {
    let (mine, other) = (adapter(), adapter());
    let connector = mine.connector();
    let error = connect_error(&connector, &queue_pair(&other), nobody(v4())).await;
    assert_eq!(error.status(), Status::INVALID_PARAMETER);
    assert!(matches!(error, ConnectError::ForeignQueuePair) && error.is_connector_usable());
    let active = queue_pair(&mine);
    let link = connect_on(&mine, &active, &connector).await;
    exchange(&mine, &active, &link.passive).await;
}

// CM-24, X1: NdConnReject, the active half.
#[tokio::test]
async fn nd_conn_reject_by_active_side_after_connect() {
    for ip in both() {
        let adapter = adapter();
        let open = half_open(&adapter, ip).await;
        within(open.reply.reject(b"")).await.expect("rejected");
        assert_refused(&adapter, outcome(open.accepting)).await;
        // Rejecting the peer's accept uses up the connector (CM-20).
        let error = connect_error(&open.connector, &open.active, nobody(v4())).await;
        assert!(matches!(error, ConnectError::Active));
        // The connection was never completed, so the queue pair is free again (CM-21).
        assert_usable(&adapter, &open.active).await;
        assert_unused(&adapter, &open.passive).await;
    }
}

// CM-24, ERR-06: the reject carries as much as the adapter says, which may be nothing.
#[tokio::test]
async fn the_active_reject_carries_what_the_adapter_says() {
    for ip in both() {
        let adapter = adapter();
        let maximum = adapter.info().max_active_reject_data;
        let open = half_open(&adapter, ip).await;
        let sent: Vec<u8> = (1..=u8::MAX).cycle().take(maximum).collect();
        within(open.reply.reject(&sent)).await.expect("rejected");
        if !three_phase(&adapter) {
            assert_eq!(maximum, 0, "the peer is connected, and hears no reject");
            assert_refused(&adapter, outcome(open.accepting)).await;
            continue;
        }
        match outcome(open.accepting).await {
            Err(AcceptError::Refused { private_data: Some(data), .. }) => assert_data(&adapter, &data, &sent),
            Err(AcceptError::Refused { private_data: None, .. }) => assert_eq!(maximum, 0, "lost"),
            other => panic!("{other:?}"),
        }
    }
}

// CM-24: what the wire has no place for is refused, and the reply is still there.
#[tokio::test]
async fn oversized_active_reject_data_returns_the_reply() {
    for ip in both() {
        let adapter = adapter();
        let most = adapter.info().max_active_reject_data;
        assert!(most == 0 || !Device::under_test().is_soft());
        let open = half_open(&adapter, ip).await;
        let retained = within(open.reply.reject(&vec![1; most + 1])).await.expect_err("too long");
        assert_eq!(retained.status(), Status::INVALID_BUFFER_SIZE);
        assert!(matches!(retained.error, ConnectError::InvalidBufferSize { length, maximum }
        if (length, maximum) == (most + 1, most)));
        let reply = retained.handle.expect("as it was");
        let _ours = within(reply.complete()).await.expect("complete");
        let _theirs = outcome(open.accepting).await.expect("accepted");
        exchange(&adapter, &open.active, &open.passive).await;
    }
}

// CM-27: the types leave two moments only, the rest does not compile (see the docs of Reply).
#[tokio::test]
async fn complete_in_the_wrong_state() {
    for ip in both() {
        let adapter = adapter();
        let open = half_open(&adapter, ip).await;
        // A20: cancelled between connect and complete.
        open.connector.cancel();
        let error = within(open.reply.complete()).await.expect_err("cancelled");
        assert!(matches!(error, ConnectError::Invalid) && error.status() == Status::CONNECTION_INVALID);
        assert!(!error.is_connector_usable());
        assert_refused(&adapter, outcome(open.accepting)).await;
        assert_usable(&adapter, &open.active).await;
        assert_unused(&adapter, &open.passive).await;
    }
}

// CM-28: the peer's runtime dies between its accept and the complete.
#[test]
fn complete_after_the_peer_has_died() {
    if device::skips(Device::Sim, "a simulated network belongs to one runtime") {
        return;
    }
    let peer = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (listener, address, passive, three_phase) = peer.block_on(async {
        let adapter = adapter();
        let (listener, address) = listening(&adapter);
        (listener, address, queue_pair(&adapter), three_phase(&adapter))
    });
    let ours = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let dying = std::thread::spawn(move || {
        peer.block_on(async {
            let mut accepting = Box::pin(listener.accept_next(&passive, AcceptParams::default()));
            if three_phase {
                tokio::select! {
                    accepted = &mut accepting => panic!("{accepted:?}"),
                    _ = stopped => {}
                }
            } else {
                // It is connected by then, and the connection goes with it.
                let _connection = accepting.await.expect("accepted");
                let _ = stopped.await;
            }
        });
        // Closes every socket of it.
        drop(peer);
    });
    ours.block_on(async {
        let adapter = adapter();
        let (connector, active) = (adapter.connector(), queue_pair(&adapter));
        let reply =
            within(connector.connect(&active, address, ConnectParams::default())).await.expect("accepted");
        stop.send(()).expect("it waits");
        tokio::task::spawn_blocking(move || dying.join()).await.expect("joined").expect("it died in peace");
        if !Device::under_test().is_soft() {
            // The last word of the kernel that cleaned up after it is on its way.
            word_has_spread(&adapter).await;
        }
        assert_abandoned(&adapter, within(reply.complete()).await, &active).await;
        // A failed `complete` uses up the connector, also for a fresh queue pair (CM-20).
        let fresh = queue_pair(&adapter);
        assert!(matches!(connect_error(&connector, &fresh, nobody(v4())).await, ConnectError::Active));
    });
}

// CM-28, P16: the peer takes its accept back.
#[tokio::test]
async fn complete_after_the_peer_took_its_accept_back() {
    for ip in both() {
        let adapter = adapter();
        let open = half_open(&adapter, ip).await;
        take_back(&adapter, open.accepting).await;
        // The peer's word has been said, and arrived before another connection came and went if nothing overtakes it.
        assert_usable(&adapter, &queue_pair(&adapter)).await;
        // The queue pair is free after a failed `complete`, or used up by a connection that has ended (CM-21).
        assert_abandoned(&adapter, within(open.reply.complete()).await, &open.active).await;
        assert_unused(&adapter, &open.passive).await;
    }
}

#[tokio::test]
async fn dropping_the_reply_refuses_the_peer() {
    for ip in both() {
        let adapter = adapter();
        let open = half_open(&adapter, ip).await;
        drop(open.reply);
        // NdConnClose: release instead of complete.
        assert_refused(&adapter, outcome(open.accepting)).await;
        assert_usable(&adapter, &open.active).await;
        assert_unused(&adapter, &open.passive).await;
    }
}
