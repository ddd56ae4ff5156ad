//! Connections whose path fails, permanently or for single packets.

use std::sync::Arc;
use std::time::Duration;

use common::net::*;
use common::path::noticed;
use common::raw::{self, Start, raw_connects_to};
use common::*;
use tokio::sync::Barrier;
use tokio_rdma::error::{DisconnectError, Reason};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{
    AcceptParams, Access, Adapter, DisconnectReason, Op, QueuePairConfig, RemoteRegion, SharedReceiveConfig,
    Status, WorkBuffer,
};

/// More than any socket takes.
const LARGE: usize = 32 << 20;

const PATH_TIMEOUT: Duration = Duration::from_secs(4);

fn impatient() -> SoftConfig {
    SoftConfig::default().path_timeout(Some(PATH_TIMEOUT))
}

async fn status<B: WorkBuffer>(op: Op<B>) -> Status {
    within(op).await.0.map_or_else(|error| error.status(), |_| Status::SUCCESS)
}

/// The calls of the send queue that an end has outstanding while its path breaks, oldest first.
#[derive(Clone, Copy, Debug)]
enum Load {
    Idle,
    Reads,
    LargeWrite,
    ReadThenLargeSend,
}

/// Keeps `end` busy; then `cut` happens, and everything has to end.
async fn ends_when_the_path_breaks(
    adapter: &Adapter,
    end: &End,
    remote: &RemoteRegion,
    load: Load,
    cut: impl AsyncFnOnce(),
) {
    let queue = &end.queue_pair;
    let buffer = |length| adapter.buffer(length).expect("memory");
    let receives = [(); 2].map(|()| queue.receive(buffer(8)).expect("posted"));
    cut().await;
    let requests: Vec<_> = match load {
        Load::Idle => vec![],
        Load::Reads => {
            vec![queue.read(buffer(8), remote).unwrap(), queue.read(buffer(8), remote).unwrap()]
        }
        Load::LargeWrite => {
            vec![queue.write(buffer(LARGE), remote).unwrap(), queue.send(buffer(8)).unwrap()]
        }
        Load::ReadThenLargeSend => {
            vec![queue.read(buffer(8), remote).unwrap(), queue.send(buffer(LARGE)).unwrap()]
        }
    };
    // SEC-04: a peer that is cut off, or whose machine has crashed.
    let reason = noticed(PATH_TIMEOUT, end.connection.disconnected()).await;
    // Whatever the load, the connection is lost with IO_TIMEOUT (DIS-11, SEC-11).
    let DisconnectReason::Lost { status: lost, reason } = reason else { panic!("{load:?}: {reason:?}") };
    assert_eq!(lost, Status::IO_TIMEOUT, "{load:?}: {reason:?}");
    let mut expected = Status::IO_TIMEOUT;
    for request in requests {
        // DIS-11: the oldest says what happened, the others were flushed.
        assert_eq!(status(request).await, expected, "{load:?}: {reason:?}");
        expected = Status::CANCELED;
    }
    for receive in receives {
        assert_eq!(status(receive).await, Status::CANCELED, "{load:?}");
    }
    assert_eq!(queue.send(buffer(8)).expect_err("over").status(), Status::CONNECTION_INVALID);
    // The disconnect fails at once, because the peer has not agreed to it (ERR-08).
    let error = within(end.connection.disconnect()).await.expect_err("lost");
    assert_eq!(error, DisconnectError::Lost { status: lost, reason });
}

/// Packets vanish without a word, in both directions.
fn silence(load: Load) {
    with_two_interfaces(async move || {
        let (left, right) = (soft_at(LEFT[0], impatient()), soft_at(RIGHT[0], impatient()));
        let pair = connected_across(&left, &right, RIGHT[0]).await;
        let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = right.register(LARGE, rights).await.expect("registered");
        let cut_now = async || cut(pair.passive.connection.local_addr().port());
        let other = async {
            let receive = pair.passive.queue_pair.receive(right.buffer(8).expect("memory")).expect("posted");
            let reason = within(pair.passive.connection.disconnected()).await;
            // DIS-11, SEC-11: the end that has nothing to send notices as well.
            assert_eq!(reason.status(), Status::IO_TIMEOUT, "{reason:?}");
            assert_eq!(status(receive).await, Status::CANCELED);
        };
        let remote = memory.remote();
        futures::join!(ends_when_the_path_breaks(&left, &pair.active, &remote, load, cut_now), other);
    });
}

#[test]
fn an_idle_connection_notices_silence() {
    silence(Load::Idle);
}

#[test]
fn reads_notice_silence() {
    silence(Load::Reads);
}

#[test]
fn a_large_write_notices_silence() {
    silence(Load::LargeWrite);
}

#[test]
fn a_large_send_behind_a_read_notices_silence() {
    silence(Load::ReadThenLargeSend);
}

// SEC-04: a message waits for a receive, so this end reads nothing, and the kernel alone can tell that the peer's host is gone.
#[test]
fn silence_is_noticed_while_message_awaits_receive() {
    isolated(async || {
        let adapter = adapter_with(impatient());
        let queue = adapter.shared_receive_queue(SharedReceiveConfig::default().depth(1)).expect("a queue");
        let config = QueuePairConfig::default().shared_receives(&queue);
        let queue_pair = adapter.queue_pair(config).expect("a queue pair");
        let (end, mut peer, _) =
            raw_connects_to(&adapter, queue_pair, Start::peer_to_peer(4, 4), AcceptParams::default()).await;
        peer.post(&raw::send(1, b"nobody takes it")).await;
        // It says that it waits, for longer than the path timeout.
        for _ in 0..8 {
            assert!(peer.frame().await.expect("the connection lives").is_nudge());
        }
        cut(end.connection.local_addr().port());
        let reason = noticed(PATH_TIMEOUT, end.connection.disconnected()).await;
        let DisconnectReason::Lost { status, reason } = reason else { panic!("{reason:?}") };
        assert_eq!((status, reason), (Status::IO_TIMEOUT, Reason::PathTimeout));
    });
}

/// Pulls the cable: one host switches its interface off.
fn unplugged(load: Load) {
    let (tell, told) = tokio::sync::oneshot::channel();
    let (address, from) = tokio::sync::oneshot::channel();
    let met = Arc::new(Barrier::new(2));
    let other = met.clone();
    two_hosts(
        async move || {
            let adapter = soft_at(LEFT[0], impatient());
            let queue_pair = queue_pair(&adapter);
            let to = within(from).await.expect("the other host");
            let connector = adapter.connector();
            let connection = connector.connect_and_complete(&queue_pair, to, Default::default());
            let connection = within(connection).await.expect("connected");
            let remote = within(told).await.expect("the other host");
            let end = End { queue_pair, connection };
            let pull = async || {
                ip("link set left down");
                within(met.wait()).await;
            };
            ends_when_the_path_breaks(&adapter, &end, &remote, load, pull).await;
            within(met.wait()).await;
        },
        async move || {
            let adapter = soft_at(RIGHT[0], impatient());
            let (listener, at) = listening_at(&adapter, RIGHT[0]);
            address.send(at).expect("the other host");
            let queue_pair = queue_pair(&adapter);
            let connection = within(listener.accept_next(&queue_pair, Default::default()));
            let connection = connection.await.expect("accepted");
            let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
            let memory = adapter.register(LARGE, rights).await.expect("registered");
            tell.send(memory.remote()).expect("the other host");
            let end = End { queue_pair, connection };
            let wait = async || {
                within(other.wait()).await;
            };
            // The far end has no more to go by than silence, or that the neighbour is gone.
            ends_when_the_path_breaks(&adapter, &end, &memory.remote(), Load::Idle, wait).await;
            within(other.wait()).await;
        },
    );
}

#[test]
fn an_idle_connection_notices_a_pulled_cable() {
    unplugged(Load::Idle);
}

#[test]
fn reads_notice_a_pulled_cable() {
    unplugged(Load::Reads);
}

#[test]
fn a_large_write_notices_a_pulled_cable() {
    unplugged(Load::LargeWrite);
}

#[test]
fn a_disconnect_that_nobody_answers_times_out() {
    for busy in [false, true] {
        with_two_interfaces(async move || {
            let config = || SoftConfig::default().disconnect_timeout(Duration::from_secs(1));
            let (left, right) = (soft_at(LEFT[0], config()), soft_at(RIGHT[0], config()));
            let pair = connected_across(&left, &right, RIGHT[0]).await;
            let memory = right.register(LARGE, Access::REMOTE_WRITE).await.expect("registered");
            let queue = &pair.active.queue_pair;
            let mut requests = vec![queue.receive(left.buffer(8).unwrap()).unwrap()];
            cut(pair.passive.connection.local_addr().port());
            if busy {
                requests.push(queue.write(left.buffer(LARGE).unwrap(), &memory.remote()).unwrap());
                requests.push(queue.send(left.buffer(8).unwrap()).unwrap());
            }
            let waiter = pair.active.connection.clone();
            let waiter = tokio::spawn(async move { waiter.disconnected().await });
            tokio::task::yield_now().await;
            // The disconnect ends after its own limit, also with requests that the peer cannot acknowledge (DIS-14).
            let outcome = within(pair.active.connection.disconnect()).await;
            assert_eq!(
                outcome,
                Err(DisconnectError::TimedOut { limit: Duration::from_secs(1) }),
                "busy: {busy}"
            );
            for request in requests {
                assert_eq!(status(request).await, Status::CANCELED, "busy: {busy}");
            }
            assert_eq!(within(waiter).await.expect("a reason"), DisconnectReason::Local);
            // The connection has ended all the same, and its port is free.
            let again = within(pair.active.connection.disconnect()).await;
            assert_eq!(again, Err(DisconnectError::Invalid));
            left.connector().bind(pair.active.connection.local_addr()).expect("the port is free");
        });
    }
}

#[test]
fn dropped_packets_are_sent_again() {
    const MESSAGES: u32 = 1000;
    const DEPTH: u32 = 64;
    with_two_interfaces(async || {
        let (left, right) =
            (soft_at(LEFT[0], SoftConfig::default()), soft_at(RIGHT[0], SoftConfig::default()));
        let depth = QueuePairConfig::default().receive_depth(2 * DEPTH as usize);
        let queue_pairs = [left.queue_pair(depth.clone()).unwrap(), right.queue_pair(depth).unwrap()];
        let [mine, theirs] = queue_pairs;
        let (listener, address) = listening_at(&right, RIGHT[0]);
        let connector = left.connector();
        filter("tcp dport >= 1 numgen random mod 100 < 2 counter drop;");
        let (active, passive) = within(async {
            tokio::join!(
                connector.connect_and_complete(&mine, address, Default::default()),
                listener.accept_next(&theirs, Default::default()),
            )
        })
        .await;
        let (active, passive) = (active.expect("connected"), passive.expect("accepted"));

        // A window of messages at a time, each with its number and of its own length.
        let length = |number: u32| 4 + (number as usize * 37) % 3000;
        for window in 0..MESSAGES / DEPTH + 1 {
            let numbers = window * DEPTH..((window + 1) * DEPTH).min(MESSAGES);
            let receives: Vec<_> = numbers
                .clone()
                .map(|_| theirs.receive(right.buffer(4096).unwrap()).expect("posted"))
                .collect();
            for number in numbers.clone() {
                let mut bytes = vec![number as u8; length(number)];
                bytes[..4].copy_from_slice(&number.to_be_bytes());
                let send = mine.send(left.buffer_from(&bytes).unwrap()).expect("posted");
                within(send).await.0.expect("sent");
            }
            for (number, receive) in numbers.zip(receives) {
                let (outcome, buffer) = within(receive).await;
                assert_eq!(outcome.expect("received").bytes, length(number), "message {number}");
                assert_eq!(buffer[..4], number.to_be_bytes());
                assert!(buffer[4..length(number)].iter().all(|byte| *byte == number as u8));
            }
        }

        let pattern: Vec<u8> =
            (0..4u32 << 20).map(|place| (place.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let memory = right.register(pattern.len(), Access::REMOTE_READ | Access::REMOTE_WRITE).await.unwrap();
        let write = mine.write(left.buffer_from(&pattern).unwrap(), &memory.remote()).expect("posted");
        let read = mine.read(left.buffer(pattern.len()).unwrap(), &memory.remote()).expect("posted");
        within(write).await.0.expect("written");
        let (outcome, copy) = within(read).await;
        outcome.expect("read");
        assert!(copy[..] == pattern[..]);
        let rules = nft("list ruleset");
        assert!(!rules.contains("packets 0 "), "nothing was dropped: {rules}");
        heal();
        within(active.disconnect()).await.expect("disconnected");
        assert_eq!(within(passive.disconnected()).await, DisconnectReason::Peer);
    });
}
