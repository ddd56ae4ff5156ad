//! Messages between two ends of this crate.
//!
//! Runs on: soft, sim, rxe, siw

mod peers;

use std::io;
use std::task::Poll;

use bytes::Bytes;
use common::dice::Dice;
use common::messages::{broken, ends, ends_with, next, send};
use common::*;
use futures::stream::{SplitSink, SplitStream};
use futures::{FutureExt, SinkExt, StreamExt, TryStreamExt, poll};
use tokio_rdma::error::{MessageTooLong, StreamBroken, StreamError};
use tokio_rdma::{DisconnectReason, MessageListener, Messages, MessagesConfig, Status};

/// Bytes that tell which message they are.
fn message(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (number * 31 + at * 7) as u8).collect()
}

// IO-15: boundaries.
#[tokio::test]
async fn messages_arrive_as_they_were_sent() {
    let adapter = adapter();
    for passive_first in [false, true] {
        let mut pair = ends(&adapter).await;
        if passive_first {
            pair.reverse();
        }
        let [one, other] = &mut pair;
        assert_eq!(one.max_message(), 65536);
        assert_eq!(
            (one.local_addr().expect("an address"), one.peer_addr().expect("an address")),
            (other.peer_addr().expect("an address"), other.local_addr().expect("an address"))
        );
        for (number, length) in
            [5, 0, 1, 0, 1023, 1024, 1025, 40_000, 65_535, 65_536, 2].into_iter().enumerate()
        {
            send(one, message(number, length)).await;
            let came = next(other).await;
            assert_eq!(came, message(number, length), "{length} bytes");
            // Back from where it was received.
            send(other, came).await;
            assert_eq!(next(one).await, message(number, length), "{length} bytes");
        }
    }
}

// IO-15: limits.
#[tokio::test]
async fn a_message_that_is_too_long_is_refused_and_nothing_is_lost() {
    let adapter = adapter();
    let config = MessagesConfig::default();
    let [mut one, mut other] = ends_with(&adapter, [config.max_message(10), config.max_message(5000)]).await;
    assert_eq!((one.max_message(), other.max_message()), (5000, 10));
    one.feed(Bytes::from_static(b"before")).await.expect("fed");
    let error = within(one.send(vec![1; 5001].into())).await.expect_err("too long");
    let inner = error.get_ref().expect("ours").downcast_ref::<MessageTooLong>().expect("its type");
    assert_eq!(*inner, MessageTooLong { length: 5001, maximum: 5000 });
    assert_eq!(
        (error.kind(), Status::from_io(&error)),
        (io::ErrorKind::InvalidInput, Status::BUFFER_OVERFLOW)
    );
    // Longer than anything that may come back, so that no receive of this side is as long.
    send(&mut one, vec![2; 5000]).await;
    assert_eq!(next(&mut other).await, &b"before"[..]);
    assert_eq!(next(&mut other).await, vec![2; 5000]);
    within(other.send(vec![3; 11].into())).await.expect_err("too long");
    send(&mut other, vec![3; 10]).await;
    assert_eq!(next(&mut one).await, vec![3; 10]);
}

// IO-15: credits.
#[tokio::test]
async fn a_peer_that_does_not_read_stops_who_writes_and_nobody_else() {
    let adapter = adapter();
    let config = MessagesConfig::default().max_message(100).receive_depth(5).send_depth(3);
    let [mut writer, mut sleeper] = ends_with(&adapter, [config; 2]).await;
    for round in 0..20_u8 {
        for number in 0..5 {
            send(&mut writer, vec![round, number]).await;
        }
        // The room is used up, for as long as the peer likes. One more waits here.
        assert!(poll!(writer.feed(Bytes::from_static(b"waits"))).is_ready());
        assert!(poll!(writer.flush()).is_pending());
        assert!(poll!(writer.feed(Bytes::new())).is_pending());
        // What the sleeper writes arrives all the same, many times its credits.
        for number in 0..30 {
            send(&mut sleeper, vec![number]).await;
            assert_eq!(next(&mut writer).await, vec![number]);
        }
        assert!(poll!(writer.feed(Bytes::new())).is_pending());
        for number in 0..5 {
            assert_eq!(next(&mut sleeper).await, vec![round, number]);
        }
        within(writer.flush()).await.expect("flushed");
        assert_eq!(next(&mut sleeper).await, &b"waits"[..]);
        // Takes along the credits that were too few for a message of their own.
        send(&mut sleeper, "all read").await;
        assert_eq!(next(&mut writer).await, &b"all read"[..]);
    }
}

#[tokio::test]
async fn close_sends_the_waiting_message_first() {
    let adapter = adapter();
    let config = MessagesConfig::default().receive_depth(1);
    let [mut one, mut other] = ends_with(&adapter, [config; 2]).await;
    send(&mut one, "first").await;
    one.feed(Bytes::from_static(b"waits")).await.expect("fed");
    let read = async { (next(&mut other).await, next(&mut other).await, other.next().await.is_none()) };
    let (closed, (first, waits, end)) = within(async { tokio::join!(one.close(), read) }).await;
    closed.expect("closed");
    assert_eq!((&first[..], &waits[..], end), (&b"first"[..], &b"waits"[..], true));
}

#[tokio::test]
async fn one_receive_is_enough() {
    let adapter = adapter();
    let config = MessagesConfig::default().max_message(1).receive_depth(1).send_depth(1);
    let [one, other] = ends_with(&adapter, [config; 2]).await;
    exchange_much(one, other, 100).await;
}

// IO-15: the ends of the directions.
#[tokio::test]
async fn each_direction_ends_for_itself() {
    let adapter = adapter();
    for passive_first in [false, true] {
        let mut pair = ends(&adapter).await;
        if passive_first {
            pair.reverse();
        }
        let [mut one, mut other] = pair;
        one.feed(Bytes::from_static(b"last")).await.expect("fed");
        within(one.close()).await.expect("closed");
        within(one.close()).await.expect("closed as before");
        let error = within(one.send(Bytes::new())).await.expect_err("closed");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        // The other direction goes on, for more messages than there are credits.
        for number in 0..100_u8 {
            send(&mut other, vec![number]).await;
            assert_eq!(next(&mut one).await, vec![number]);
        }
        assert_eq!(next(&mut other).await, &b"last"[..]);
        for _ in 0..2 {
            assert!(within(other.next()).await.is_none(), "the end, and again");
        }
        assert!(poll!(one.next()).is_pending(), "the other has not ended");
        send(&mut other, "late").await;
        within(other.close()).await.expect("closed");
        drop(other);
        assert_eq!(next(&mut one).await, &b"late"[..]);
        assert!(within(one.next()).await.is_none());
    }
}

#[tokio::test]
async fn a_drop_after_close_loses_nothing() {
    let adapter = adapter();
    let config = MessagesConfig::default().receive_depth(30);
    let [mut one, mut other] = ends_with(&adapter, [config; 2]).await;
    for number in 0..30 {
        one.feed(message(number, 3000).into()).await.expect("fed");
    }
    within(one.close()).await.expect("closed");
    drop(one);
    let all: Vec<Bytes> = within(other.by_ref().try_collect()).await.expect("an orderly end");
    assert_eq!(all.len(), 30);
    assert!(all.iter().enumerate().all(|(number, came)| *came == message(number, 3000)));
    // Nobody is there to be written to.
    let error = within(async {
        loop {
            if let Err(error) = other.send(Bytes::from_static(b"?")).await {
                return error;
            }
        }
    });
    assert!(matches!(broken(&error.await), StreamBroken::Connection(_)));
}

#[tokio::test]
async fn a_second_close_succeeds() {
    let adapter = adapter();
    for passive_first in [false, true] {
        let mut pair = ends(&adapter).await;
        if passive_first {
            pair.reverse();
        }
        let [mut one, mut other] = pair;
        send(&mut one, "asked").await;
        assert_eq!(next(&mut other).await, &b"asked"[..]);
        send(&mut other, "answered").await;
        assert_eq!(next(&mut one).await, &b"answered"[..]);
        within(one.close()).await.expect("closed");
        drop(one);
        assert!(within(other.next()).await.is_none());
        within(other.connection().disconnected()).await;
        // All that was sent has come.
        within(other.flush()).await.expect("flushed");
        within(other.close()).await.expect("closed");
        within(other.close()).await.expect("closed as before");
        assert!(within(other.next()).await.is_none());
    }
}

#[tokio::test]
async fn a_second_close_reports_an_unsent_message() {
    let adapter = adapter();
    let config = MessagesConfig::default().receive_depth(1);
    let [mut one, mut other] = ends_with(&adapter, [config; 2]).await;
    send(&mut other, "first").await;
    other.feed(Bytes::from_static(b"waits for a credit")).await.expect("fed");
    within(one.close()).await.expect("closed");
    drop(one);
    assert!(within(other.next()).await.is_none());
    let error = within(other.close()).await.expect_err("nobody has it");
    assert!(matches!(broken(&error), StreamBroken::Connection(_)));

    // One that is sent when it is too late.
    let [mut one, mut other] = ends(&adapter).await;
    within(one.close()).await.expect("closed");
    drop(one);
    assert!(within(other.next()).await.is_none());
    within(other.connection().disconnected()).await;
    let error = within(other.send(Bytes::from_static(b"?"))).await.expect_err("nobody has it");
    assert!(matches!(broken(&error), StreamBroken::Connection(_)));
}

// IO-15: drop of either end.
#[tokio::test]
async fn a_peer_that_goes_without_a_word_breaks_the_stream() {
    let adapter = adapter();
    for passive_first in [false, true] {
        let mut pair = ends(&adapter).await;
        if passive_first {
            pair.reverse();
        }
        let [mut one, mut other] = pair;
        send(&mut one, "first").await;
        send(&mut one, "second").await;
        // On iWARP a send has completed before the peer has it, and the end of a connection may overtake nothing.
        assert_eq!(next(&mut other).await, &b"first"[..]);
        drop(one);
        assert_eq!(next(&mut other).await, &b"second"[..], "what has come, first");
        let error = within(other.next()).await.expect("no end").expect_err("it is gone");
        let reason = broken(&error).clone();
        assert!(matches!(reason, StreamBroken::Connection(_)), "{reason:?}");
        assert_ne!(reason, StreamBroken::Connection(DisconnectReason::Local));
        assert_eq!(Status::from_io(&error), reason.status());
        assert!(within(other.next()).await.is_none(), "it is said once");
        for _ in 0..2 {
            let error = within(other.send(Bytes::new())).await.expect_err("broken");
            assert_eq!(*broken(&error), reason, "the same to who writes");
        }
        let error = within(other.close()).await.expect_err("not in order");
        assert_eq!(*broken(&error), reason);
    }
}

#[tokio::test]
async fn the_end_of_the_connection_wakes_waiters() {
    let adapter = adapter();
    let config = MessagesConfig::default().receive_depth(1);
    let [mut one, other] = ends_with(&adapter, [config; 2]).await;
    send(&mut one, "no room for more").await;
    let connection = one.connection().clone();
    let (mut sink, mut stream) = one.split();
    let (mut write, mut read) = (sink.send(Bytes::new()), stream.next());
    assert!(poll!(&mut write).is_pending() && poll!(&mut read).is_pending());
    let tasks = async { tokio::join!(write, read) };
    let (disconnected, (written, read)) =
        within(async { tokio::join!(connection.disconnect(), tasks) }).await;
    disconnected.expect("the peer answers");
    let local = StreamBroken::Connection(DisconnectReason::Local);
    assert_eq!(*broken(&written.expect_err("over")), local);
    assert_eq!(*broken(&read.expect("no end").expect_err("over")), local);
    drop(other);
}

/// Many messages of all lengths both ways at once, each direction with a task at each end.
async fn exchange_much(one: Messages, other: Messages, count: usize) {
    type Halves = (SplitSink<Messages, Bytes>, SplitStream<Messages>);
    let seed = Dice::seed();
    let longest = one.max_message();
    let (one, other): (Halves, Halves) = (one.split(), other.split());
    let lengths = move |case| {
        let mut dice = Dice::of(seed, case);
        // Few are long.
        (0..count).map(move |number| {
            let longest = if number % 8 == 0 { longest } else { longest.min(300) };
            message(number, dice.below(longest + 1))
        })
    };
    let write = move |case, mut sink: SplitSink<Messages, Bytes>| async move {
        for message in lengths(case) {
            sink.feed(message.into()).await.expect("sent");
        }
        sink.close().await.expect("closed");
        sink
    };
    let read = move |case, mut stream: SplitStream<Messages>| async move {
        for (number, message) in lengths(case).enumerate() {
            let came = stream.next().await.expect("no end").expect("a message");
            assert!(came == message, "message {number}");
        }
        assert!(stream.next().await.is_none());
        stream
    };
    let tasks = (
        tokio::spawn(write(0, one.0)),
        tokio::spawn(write(1, other.0)),
        tokio::spawn(read(1, one.1)),
        tokio::spawn(read(0, other.1)),
    );
    let done = within(async { tokio::try_join!(tasks.0, tasks.1, tasks.2, tasks.3) }).await;
    // All of them live until the last is done.
    drop(done.expect("no panic"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_messages_go_both_ways_at_once() {
    let adapter = adapter();
    for depth in [1, 2, 3, 32] {
        let config =
            MessagesConfig::default().max_message(20_000).receive_depth(depth).send_depth(1 + depth / 2);
        let [one, other] = ends_with(&adapter, [config, config.receive_depth(4)]).await;
        exchange_much(one, other, often(2000, 100)).await;
    }
}

#[tokio::test]
async fn messages_that_are_kept_stop_nobody() {
    let adapter = adapter();
    let config = MessagesConfig::default().max_message(5000).receive_depth(4).send_depth(4);
    let [mut one, mut other] = ends_with(&adapter, [config; 2]).await;
    let mut kept = Vec::new();
    for number in 0..50 {
        send(&mut one, message(number, 5000)).await;
        kept.push(next(&mut other).await);
        // And are sent back from where they are.
        send(&mut other, kept[number].clone()).await;
        assert_eq!(next(&mut one).await, message(number, 5000));
    }
    assert!(kept.iter().enumerate().all(|(number, kept)| *kept == message(number, 5000)));
    let most = other.pool().maximum();
    assert!(most <= 2 * 4 + 4 + 4 + 1, "memory has a limit, and here it is {most}");
    assert!(other.pool().allocated() <= most);
    // They outlive it all.
    drop((one, other));
    assert!(kept.iter().enumerate().all(|(number, kept)| *kept == message(number, 5000)));
}

#[tokio::test]
async fn a_buffer_of_the_pool_is_sent_from_where_it_is() {
    let adapter = adapter();
    let [mut one, mut other] = ends(&adapter).await;
    let mut buffer = one.pool().try_get().expect("memory").expect("a buffer");
    buffer[..3000].copy_from_slice(&message(1, 3000));
    let (before, bytes) = (one.pool().in_use(), buffer.freeze(3000));
    // Fed and flushed: nothing else was needed from the pool, and nothing is kept.
    one.feed(bytes.slice(1000..)).await.expect("fed");
    assert_eq!(one.pool().in_use(), before);
    within(one.flush()).await.expect("flushed");
    assert_eq!(next(&mut other).await, message(1, 3000)[1000..]);
    drop(bytes);
    assert_eq!(one.pool().in_use(), before - 1);
}

#[tokio::test]
async fn futures_that_are_dropped_lose_no_message() {
    let adapter = adapter();
    let config = MessagesConfig::default().receive_depth(2);
    let [mut one, mut other] = ends_with(&adapter, [config; 2]).await;
    let mut dice = Dice::of(Dice::seed(), 0);
    let (mut sent, mut came) = (0_u32, 0_u32);
    within(async {
        while came < 200 {
            match dice.below(4) {
                // `feed` that has not got room takes its message along; nothing of it has been sent.
                0 => sent += u32::from(one.feed(sent.to_be_bytes().to_vec().into()).now_or_never().is_some()),
                1 => drop(one.flush().now_or_never()),
                2 => tokio::task::yield_now().await,
                _ => {
                    if let Poll::Ready(next) = poll!(other.next()) {
                        assert_eq!(next.expect("no end").expect("a message"), came.to_be_bytes()[..]);
                        came += 1;
                    }
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn settings_that_nobody_has_are_refused() {
    let adapter = adapter();
    let config = MessagesConfig::default();
    let longest = adapter.info().max_transfer;
    for (config, what) in [
        (config.max_message(0), "the longest message"),
        (config.max_message(longest - 3), "the longest message"),
        (config.receive_depth(0), "the receive depth"),
        (config.receive_depth(65_536), "the receive depth"),
        (config.send_depth(0), "the send depth"),
        (config.send_depth(usize::MAX), "the send depth"),
    ] {
        let nobody = device::nobody(v4());
        let errors = [
            within(Messages::connect_on(&adapter, nobody, &config)).await.map(drop),
            MessageListener::bind_on(&adapter, nobody, &config).map(drop),
        ];
        for error in errors.map(|outcome| outcome.expect_err("refused")) {
            assert!(matches!(error, StreamError::OutOfRange { what: found, .. } if found == what), "{error}");
            assert_eq!(error.status(), Status::INVALID_PARAMETER);
        }
    }
}
