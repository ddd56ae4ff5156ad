//! Handles dropped in any order and in any context, also in wakers and in tasks that handle a completion.
//!
//! Runs on: soft, sim, rxe, siw

use common::deviation::*;
use common::device::is_emulated;
use common::life::*;
use common::raw::{bytes, room, success_or_canceled};
use common::*;

use std::any::Any;
use std::pin::pin;
use std::task::Waker;

use tokio_rdma::error::PostErrorKind;
use tokio_rdma::{
    AcceptParams, Adapter, Buffer, ConnectParams, Connection, DisconnectReason, Op, QueuePair, Status,
    WorkOptions,
};

/// Returns every order of `length` things.
fn permutations(length: usize) -> Vec<Vec<usize>> {
    if length == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(length - 1);
    let insert = |order: &Vec<usize>, place: usize| {
        let mut order = order.clone();
        order.insert(place, length - 1);
        order
    };
    shorter.iter().flat_map(|order| (0..length).map(move |place| insert(order, place))).collect()
}

/// One end of a connection with everything that it was made of, and the other end.
struct Whole {
    adapter: Adapter,
    listener: tokio_rdma::Listener,
    connector: tokio_rdma::Connector,
    queue_pair: QueuePair,
    connection: Connection,
    receive: Op<Buffer>,
    peer: End,
}

/// Connects a new adapter, which also listens, to `peers`, and posts a receive.
async fn whole(peers: &Adapter, passive: bool) -> Whole {
    let adapter = adapter();
    let (near, far) = (listening(&adapter), listening(peers));
    let (queue_pair, other) = (queue_pair(&adapter), common::queue_pair(peers));
    let (connector, others) = (adapter.connector(), peers.connector());
    let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
    let (connection, peer) = if passive {
        let both = async {
            tokio::join!(
                near.0.accept_next(&queue_pair, accept),
                others.connect_and_complete(&other, near.1, connect)
            )
        };
        let (connection, peer) = within(both).await;
        (connection.expect("accepted"), peer.expect("connected"))
    } else {
        let both = async {
            tokio::join!(
                connector.connect_and_complete(&queue_pair, far.1, connect),
                far.0.accept_next(&other, accept)
            )
        };
        let (connection, peer) = within(both).await;
        (connection.expect("connected"), peer.expect("accepted"))
    };
    // From here on either side may speak.
    let (own, theirs) = ((&adapter, &queue_pair), (peers, &other));
    if passive {
        speak_first(theirs, own).await
    } else {
        speak_first(own, theirs).await
    }
    let receive = queue_pair.receive(adapter.buffer_from(&[4; 64]).expect("memory")).expect("posted");
    let peer = End { queue_pair: other, connection: peer };
    Whole { adapter, listener: near.0, connector, queue_pair, connection, receive, peer }
}

/// Returns every order, or as many of them as an emulated machine has the time for.
fn orders(length: usize) -> Vec<Vec<usize>> {
    let all = permutations(length);
    // Prime to the count of orders, so that each place sees each thing.
    let step = match (is_emulated(), length) {
        (false, _) => 1,
        (true, 6..) => 37,
        (true, _) => 7,
    };
    all.into_iter().step_by(step).collect()
}

/// Drops `things` in this order.
fn drop_in(order: &[usize], things: Vec<Box<dyn Any + Send>>) {
    let mut things: Vec<_> = things.into_iter().map(Some).collect();
    for &i in order {
        drop(things[i].take());
    }
}

// Every order in which the six handles are dropped is an orderly end for the peer (CAN-10).
#[tokio::test]
async fn handles_may_be_dropped_in_any_order() {
    let peers = adapter();
    for (i, order) in orders(6).iter().enumerate() {
        let Whole { adapter, listener, connector, queue_pair, connection, receive, peer } =
            whole(&peers, i % 2 == 0).await;
        drop_in(
            order,
            vec![
                Box::new(adapter),
                Box::new(listener),
                Box::new(connector),
                Box::new(queue_pair),
                Box::new(connection),
                Box::new(receive),
            ],
        );
        assert_eq!(within(peer.connection.disconnected()).await, DisconnectReason::Peer, "{order:?}");
    }
}

// A receive outlives its queue pair, and completes with CANCELED and its own bytes (CAN-10).
#[tokio::test]
async fn requests_finish_in_any_drop_order() {
    let peers = adapter();
    for (i, order) in orders(5).iter().enumerate() {
        let Whole { adapter, listener, connector, queue_pair, connection, receive, peer } =
            whole(&peers, i % 2 == 0).await;
        drop_in(
            order,
            vec![
                Box::new(adapter),
                Box::new(listener),
                Box::new(connector),
                Box::new(queue_pair),
                Box::new(connection),
            ],
        );
        let (outcome, buffer) = within(receive).await;
        assert_eq!(outcome.expect_err("flushed").status(), Status::CANCELED, "{order:?}");
        assert_eq!(buffer[..], [4; 64]);
        assert_eq!(within(peer.connection.disconnected()).await, DisconnectReason::Peer, "{order:?}");
    }
}

// A peer in the middle of a handshake is refused, whichever of the handles is dropped first (CAN-10).
#[tokio::test]
async fn handshake_handles_may_be_dropped_in_any_order() {
    let peers = adapter();
    for order in orders(4) {
        // Half way on the active side: the reply is not answered.
        let (listener, address) = listening(&peers);
        let adapter = common::adapter();
        let (queue_pair, connector) = (queue_pair(&adapter), adapter.connector());
        let other = common::queue_pair(&peers);
        let mut accept = Offer::new(listener.accept_next(&other, AcceptParams::default()));
        let connect = connector.connect(&queue_pair, address, ConnectParams::default());
        let reply = accept.answered(&adapter, connect).await;
        drop_in(&order, vec![Box::new(adapter), Box::new(connector), Box::new(queue_pair), Box::new(reply)]);
        assert_refused(&peers, accept.outcome()).await;

        // Half way on the passive side: the request is not answered.
        let adapter = common::adapter();
        let other = if three_phase(&peers) { other } else { common::queue_pair(&peers) };
        let (listener, address) = listening(&adapter);
        let (queue_pair, connector) = (common::queue_pair(&adapter), peers.connector());
        let mut connect = pin!(connector.connect(&other, address, ConnectParams::default()));
        let request = within(async {
            tokio::select! {
                _ = &mut connect => panic!("nobody has accepted"),
                request = listener.request() => request,
            }
        })
        .await
        .expect("a request");
        drop_in(&order, vec![Box::new(adapter), Box::new(listener), Box::new(queue_pair), Box::new(request)]);
        let error = within(connect).await.expect_err("refused");
        assert_eq!(error.status(), Status::CONNECTION_REFUSED, "{order:?}");
    }
}

// A reply does not keep its queue pair alive: the peer is refused, and `complete` is cancelled (CAN-10).
#[tokio::test]
async fn dropping_a_queue_pair_ends_its_handshake() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let connector = adapter.connector();
    let (mine, theirs) = (queue_pair(&adapter), queue_pair(&adapter));
    let mut accept = Offer::new(listener.accept_next(&theirs, AcceptParams::default()));
    let reply = accept.answered(&adapter, connector.connect(&mine, address, ConnectParams::default())).await;
    drop(mine);
    assert_refused(&adapter, accept.outcome()).await;
    let error = within(reply.complete()).await.expect_err("without a queue pair");
    assert_eq!(error.status(), Status::CANCELED);
}

// A waker runs inside of the crate, and handles that it drops cause no deadlock there (CAN-11).
#[tokio::test]
async fn a_waker_may_drop_everything() {
    let peers = adapter();
    for trigger in 0..3 {
        for passive in [false, true] {
            let Whole { adapter, listener, connector, queue_pair, connection, mut receive, peer } =
                whole(&peers, passive).await;
            let watched = connection.clone();
            let waiting = listener.clone();
            let mut disconnected = Box::pin(async move { watched.disconnected().await });
            let mut request = Box::pin(async move { waiting.request().await });
            let address = listener.local_addr().expect("it listens");
            let everything = (adapter, listener, connector, queue_pair, connection);
            let once = Once::new(move || drop(everything));
            let waker = Waker::from(once.clone());
            match trigger {
                0 => assert!(poll_with(&mut receive, &waker).is_pending()),
                1 => assert!(poll_with(&mut disconnected, &waker).is_pending()),
                _ => assert!(poll_with(&mut request, &waker).is_pending()),
            }
            drop(waker);
            let (queue_pair, connector) = (common::queue_pair(&peers), peers.connector());
            match trigger {
                0 => {
                    let message = peers.buffer_from(b"now").expect("memory");
                    let _ = within(peer.queue_pair.send(message).expect("posted")).await;
                }
                1 => within(peer.connection.disconnect()).await.expect("in order"),
                _ => {
                    drop((disconnected, receive));
                    let mut connect = pin!(connector.connect(&queue_pair, address, ConnectParams::default()));
                    within(async {
                        tokio::select! {
                            _ = &mut connect => panic!("nobody accepts"),
                            () = once.done() => {}
                        }
                    })
                    .await;
                    // The request was delivered to a wait that is never polled again: its peer is refused all the same.
                    drop(request);
                    let error = within(connect).await.expect_err("refused");
                    assert_eq!(error.status(), Status::CONNECTION_REFUSED);
                    assert_eq!(within(peer.connection.disconnected()).await, DisconnectReason::Peer);
                    continue;
                }
            }
            once.done().await;
            drop((disconnected, request));
            let expected = if trigger == 1 { DisconnectReason::Local } else { DisconnectReason::Peer };
            assert_eq!(within(peer.connection.disconnected()).await, expected);
        }
    }
}

// The peer sees an orderly end when the task that received its message drops all handles (CAN-11).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receiving_task_may_drop_all_handles() {
    let peers = adapter();
    for round in 0..often(100, 10) {
        let Whole { adapter, listener, connector, queue_pair, connection, receive, peer } =
            whole(&peers, round % 2 == 0).await;
        let handler = tokio::spawn(async move {
            let (outcome, buffer) = receive.await;
            drop((queue_pair, connection, listener, connector, adapter));
            drop(buffer);
            outcome.map(|completion| completion.bytes)
        });
        let message = peers.buffer_from(b"now").expect("memory");
        let sent = success_or_canceled(peer.queue_pair.send(message).expect("posted")).await;
        assert!(sent || !peers.info().early_completion, "it completes before the peer can have it");
        assert_eq!(within(handler).await.expect("no panic"), Ok(3));
        assert_eq!(within(peer.connection.disconnected()).await, DisconnectReason::Peer);
    }
}

// DIS-13: a request that is posted behind the last `Connection` says that this side has dropped it.
#[tokio::test]
async fn a_post_behind_a_dropped_connection_says_so() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let waiting = active.queue_pair.receive(room(&adapter, 8)).expect("posted");
    let other = active.connection.clone();
    drop(active.connection);
    assert!(other.is_connected(), "there is another handle");
    drop(other);
    assert_eq!(within(waiting).await.0.expect_err("flushed").status(), Status::CANCELED);
    let error = active.queue_pair.send(bytes(&adapter, b"late")).expect_err("dropped");
    assert_eq!((error.kind, error.status()), (PostErrorKind::ConnectionDropped, Status::CONNECTION_INVALID));
    assert_eq!(error.to_string(), "the queue pair is not connected: this side dropped its last `Connection`");
    let inline = active.queue_pair.send_inline(&[b"late"], WorkOptions::default());
    assert_eq!(inline.expect_err("dropped"), PostErrorKind::ConnectionDropped);
    // The other side has dropped nothing.
    let reason = within(passive.connection.disconnected()).await;
    assert_eq!(reason, DisconnectReason::Peer);
    drop(passive.connection);
    let error = passive.queue_pair.send(bytes(&adapter, b"late")).expect_err("over");
    assert_eq!(error.kind, PostErrorKind::ConnectionInvalid);
}

// DIS-13: one value keeps both ends of the bargain, and drops both.
#[tokio::test]
async fn kept_queue_pair_lives_with_its_connection() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let receive = passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    let kept = active.connection.keep_queue_pair();
    let clone = kept.clone();
    drop((active.queue_pair, kept));
    let queue_pair = clone.queue_pair().expect("kept");
    within(queue_pair.send(bytes(&adapter, b"kept")).expect("posted")).await.0.expect("sent");
    assert_eq!(&within(receive).await.1[..4], b"kept");
    drop((queue_pair, clone));
    assert_eq!(within(passive.connection.disconnected()).await, DisconnectReason::Peer);

    // Without that, the connection has the queue pair for as long as there is a handle.
    let Pair { active, passive } = connected(&adapter).await;
    assert!(active.connection.queue_pair().is_some());
    drop(active.queue_pair);
    assert!(active.connection.queue_pair().is_none());
    within(passive.connection.disconnected()).await;
    assert!(active.connection.keep_queue_pair().queue_pair().is_none(), "too late");
}
