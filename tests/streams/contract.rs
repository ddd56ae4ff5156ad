//! The contract of `AsyncRead` and `AsyncWrite`: wakers, flush, calls after an error, futures that are dropped; and that
//! each direction goes on without the other.
//!
//! Runs on: soft, sim, rxe, siw

use std::io::{ErrorKind, IoSlice};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::Duration;

use common::dice::Dice;
use common::life::{Log, poll_once, poll_with, polled};
use common::stream::{granted, listening, pattern, streams, streams_with};
use common::*;
use futures::FutureExt;
use futures::future::{join, try_join};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::io::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rdma::{RdmaStream, StreamConfig};

/// The smallest buffer.
const RING: usize = 2048;

/// The smallest buffers: everything has to wait.
fn small() -> StreamConfig {
    StreamConfig::default().send_buffer(RING).receive_buffer(RING).send_depth(16).receive_depth(16)
}

/// Writes until nothing more is taken, to a peer that reads nothing: both halves of its ring. Returns how much that was.
async fn fill(writer: &mut OwnedWriteHalf, reader: &mut OwnedReadHalf, peer: &mut OwnedWriteHalf) -> usize {
    granted(reader, peer).await;
    let mut written = 0;
    while written < RING {
        // Data on its way to a device makes room when it is there.
        written += within(writer.write(&pattern(written, 1000))).await.expect("written");
    }
    assert_eq!(writer.try_write(b"x").expect_err("it is full").kind(), ErrorKind::WouldBlock);
    written
}

/// Reads what `fill` has written.
async fn drain(reader: &mut OwnedReadHalf, written: usize) {
    let mut bytes = vec![0; written];
    within(reader.read_exact(&mut bytes)).await.expect("read");
    assert!(bytes == pattern(0, written));
}

// IO-01: the waker of the last poll is woken, of a read and of a write at the same time.
#[tokio::test]
async fn each_direction_wakes_its_last_waker() {
    let (left, right) = streams_with(&adapter(), &small(), &small()).await;
    let ((mut reader, mut writer), (mut peer_reader, mut peer_writer)) =
        (left.into_split(), right.into_split());
    let written = fill(&mut writer, &mut reader, &mut peer_writer).await;
    let (log, mut byte) = (Log::default(), [0]);
    let (mut read, mut write) = (Box::pin(reader.read(&mut byte)), Box::pin(writer.write(b"x")));
    for (first, second) in [("old read", "old write"), ("read", "write")] {
        assert!(poll_with(&mut read, &log.waker(first)).is_pending());
        assert!(poll_with(&mut write, &log.waker(second)).is_pending());
    }
    within(peer_writer.write_all(b"y")).await.expect("written");
    drain(&mut peer_reader, written).await;
    within(async {
        while !["read", "write"].iter().all(|which| log.lines().contains(which)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert_eq!(within(read).await.expect("read"), 1);
    assert_eq!(within(write).await.expect("written"), 1);
    drain_one(&mut peer_reader).await;
}

async fn drain_one(reader: &mut OwnedReadHalf) {
    assert_eq!(within(reader.read_u8()).await.expect("read"), b'x');
}

// IO-01: there is nothing to flush, also where there is no room, and after the end.
#[tokio::test]
async fn a_flush_never_waits() {
    let (left, right) = streams_with(&adapter(), &small(), &small()).await;
    let (mut reader, mut writer) = left.into_split();
    let (mut peer_reader, mut peer_writer) = right.into_split();
    let written = fill(&mut writer, &mut reader, &mut peer_writer).await;
    writer.flush().now_or_never().expect("at once").expect("flushed");
    // The bytes are under way without it.
    drain(&mut peer_reader, written).await;
    within(writer.shutdown()).await.expect("shut down");
    writer.flush().now_or_never().expect("at once").expect("flushed");
}

// IO-01: calls after an error return, as often as they are made.
#[tokio::test]
async fn calls_after_an_error_return() {
    let (left, mut right) = streams(&adapter()).await;
    within(left.connection().disconnect()).await.expect("disconnected");
    let read = within(right.read(&mut [0])).await.expect_err("no end of file").kind();
    let written = within(right.write(b"x")).await.expect_err("broken").kind();
    let parts = [IoSlice::new(b"one"), IoSlice::new(b"two")];
    for _ in 0..3 {
        assert_eq!(within(right.read(&mut [0])).await.expect_err("broken").kind(), read);
        assert_eq!(within(right.peek(&mut [0])).await.expect_err("broken").kind(), read);
        assert_eq!(right.try_read(&mut [0]).expect_err("broken").kind(), read);
        assert_eq!(within(right.write(b"x")).await.expect_err("broken").kind(), written);
        assert_eq!(within(right.write_vectored(&parts)).await.expect_err("broken").kind(), written);
        assert_eq!(right.try_write(b"x").expect_err("broken").kind(), written);
        within(right.readable()).await.expect("nothing more can come");
        within(right.writable()).await.expect("nothing more can go");
        within(right.flush()).await.expect("nothing to flush");
    }
    for _ in 0..3 {
        assert!(within(right.shutdown()).await.is_err());
    }
}

/// Drops the stream when it is woken.
struct Dropping(Mutex<Option<RdmaStream>>);

impl Wake for Dropping {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().expect("no panic").take());
    }
}

// CAN-07: a waker may drop the stream for which it is woken.
#[tokio::test]
async fn waker_may_drop_its_stream() {
    for _ in 0..10 {
        let (mut left, mut right) = streams(&adapter()).await;
        let dropping = Arc::new(Dropping(Mutex::default()));
        let waker = Waker::from(dropping.clone());
        assert!(poll_with(&mut Box::pin(right.read(&mut [0])), &waker).is_pending());
        *dropping.0.lock().expect("no panic") = Some(right);
        within(left.write_all(b"x")).await.expect("written");
        assert_eq!(within(left.read(&mut [0])).await.expect("the end of file"), 0);
        assert!(dropping.0.lock().expect("no panic").is_none());
    }
}

/// Writes bytes of the pattern by calls that are dropped after a few polls, and shuts down in the same way.
async fn write_with_interruptions(mut stream: OwnedWriteHalf, length: usize, mut dice: Dice) {
    let mut written = 0;
    while written < length {
        let bytes = pattern(written, (length - written).min(1 + dice.below(5000)));
        let (front, back) = bytes.split_at(dice.below(bytes.len() + 1));
        let turns = 1 + dice.below(3);
        let count = match dice.below(6) {
            0 => polled(stream.write(&bytes), turns).await,
            1 => polled(stream.write_vectored(&[front, back].map(IoSlice::new)), turns).await,
            2 => polled(stream.writable(), turns).await.map(|ready| ready.map(|()| 0)),
            3 => polled(stream.flush(), turns).await.map(|flushed| flushed.map(|()| 0)),
            4 => stream.try_write(&bytes).ok().map(Ok),
            _ => {
                tokio::task::yield_now().await;
                None
            }
        };
        written += count.map_or(0, |count| count.expect("written"));
    }
    while polled(stream.shutdown(), 1 + dice.below(2)).await.is_none() {
        tokio::task::yield_now().await;
    }
}

/// Reads the pattern to the end of file by calls that are dropped after a few polls.
async fn read_with_interruptions(mut stream: OwnedReadHalf, length: usize, mut dice: Dice) {
    let mut place = 0;
    loop {
        let mut buffer = vec![0; 1 + dice.below(5000)];
        let turns = 1 + dice.below(3);
        match dice.below(5) {
            0 | 1 => match polled(stream.read(&mut buffer), turns).await {
                Some(Ok(0)) => break,
                Some(count) => {
                    let count = count.expect("read");
                    assert!(buffer[..count] == pattern(place, count), "at {place}");
                    place += count;
                }
                None => tokio::task::yield_now().await,
            },
            2 => {
                if let Some(count) = polled(stream.peek(&mut buffer), turns).await {
                    let count = count.expect("peeked");
                    assert!(buffer[..count] == pattern(place, count), "at {place}");
                }
            }
            3 => drop(polled(stream.readable(), turns).await),
            _ => tokio::task::yield_now().await,
        }
    }
    assert_eq!(place, length, "all of it");
}

// IO-01: any order of polls, drops and cancels conserves the bytes of both directions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_dropped_lose_and_repeat_nothing() {
    let seed = Dice::seed();
    let length = often(300_000, 50_000);
    let (left, right) = streams_with(&adapter(), &small(), &small()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for (case, stream) in [left, right].into_iter().enumerate() {
        let mut dice = Dice::of(seed, case);
        let (reader, writer) = stream.into_split();
        tasks.spawn(read_with_interruptions(reader, length, dice.split()));
        tasks.spawn(write_with_interruptions(writer, length, dice));
    }
    within(tasks.join_all()).await;
}

// IO-01: connects and accepts that are dropped after any number of polls are in nobody's way.
#[tokio::test]
async fn connects_and_accepts_may_be_dropped() {
    let (adapter, config) = (adapter(), StreamConfig::default());
    let listener = listening(&adapter, &config);
    let address = listener.local_addr().expect("bound");
    for turns in 1..often(40, 8) {
        let connect = polled(RdmaStream::connect_on(&adapter, address, &config), turns);
        let accept = polled(listener.accept(), turns);
        let (connected, accepted) = within(join(connect, accept)).await;
        drop((connected, accepted));
        let connect = RdmaStream::connect_on(&adapter, address, &config);
        let serve = async {
            loop {
                // Those that were dropped may come first.
                let (mut stream, _) = listener.accept().await.expect("accepted");
                if stream.read_u8().await.is_ok_and(|byte| byte == 7) {
                    break;
                }
            }
        };
        let ask = async { connect.await.expect("connected").write_u8(7).await.expect("written") };
        within(join(ask, serve)).await;
    }
}

// IO-06: a writer makes progress while nobody polls the reader of its end, whose ring is full; and a reader while nobody
// polls the writer of its end, which waits for room.
#[tokio::test]
async fn a_direction_needs_no_poll_of_the_other() {
    let (left, right) = streams_with(&adapter(), &small(), &small()).await;
    let ((mut idle_reader, mut writer), (mut reader, mut idle_writer)) =
        (left.into_split(), right.into_split());
    let written = fill(&mut idle_writer, &mut reader, &mut writer).await;
    let mut waiting = Box::pin(idle_writer.write_all(b"x"));
    assert!(poll_once(&mut waiting).is_pending());
    // Many times the rings and the credits.
    let length = often(1_000_000, 200_000);
    let (sent, mut received) = (pattern(0, length), vec![0; length]);
    within(try_join(writer.write_all(&sent), reader.read_exact(&mut received))).await.expect("moved");
    assert!(sent == received);
    assert!(poll_once(&mut waiting).is_pending(), "nobody has read");
    drain(&mut idle_reader, written).await;
    within(waiting).await.expect("written");
    drain_one(&mut idle_reader).await;
}
