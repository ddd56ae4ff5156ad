//! Messages that keep their boundaries: a byte stream in the frames of `LengthDelimitedCodec`.
//!
//! Runs on: soft, sim, rxe, siw

use std::io::ErrorKind;

use bytes::Bytes;
use common::frames::{close, codec, ends_with, flush, next, send};
use common::*;
use futures::{FutureExt, SinkExt, StreamExt};
use tokio::io::AsyncWriteExt;
use tokio_rdma::StreamConfig;
use tokio_rdma::error::StreamBroken;
use tokio_util::codec::{FramedRead, FramedWrite};

const LONGEST: usize = 1 << 20;

/// Bytes that tell which message they are.
fn message(number: usize, length: usize) -> Bytes {
    (0..length).map(|at| (number * 31 + at * 7) as u8).collect()
}

// IO-15: boundaries, also of messages that are longer than the rings, or come together.
#[tokio::test]
async fn messages_arrive_as_they_were_sent() {
    let config = StreamConfig::default().receive_buffer(1 << 16);
    let mut pair = ends_with(&adapter(), &config, [LONGEST; 2]).await;
    for _ in 0..2 {
        let [one, other] = &mut pair;
        let lengths = [5, 0, 1, 0, 1023, 1024, 1025, 40_000, 65_535, 65_536, 300_000, LONGEST, 2];
        let both = async {
            let sending = async {
                for (number, length) in lengths.into_iter().enumerate() {
                    one.feed(message(number, length)).await.expect("fed");
                }
                flush(one).await.expect("flushed");
            };
            let receiving = async {
                for (number, length) in lengths.into_iter().enumerate() {
                    assert!(next(other).await == message(number, length), "{length} bytes");
                }
            };
            tokio::join!(sending, receiving)
        };
        within(both).await;
        pair.reverse();
    }
}

// IO-15: the limit of a frame. One that is too long is refused by its sender, and ends the direction of a receiver.
#[tokio::test]
async fn a_message_that_is_too_long_is_refused() {
    let [mut one, mut other] = ends_with(&adapter(), &StreamConfig::default(), [5000, 10]).await;
    one.feed(Bytes::from_static(b"before")).await.expect("fed");
    let error = within(one.send(Bytes::from(vec![1; 5001]))).await.expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    send(&mut one, vec![2; 10]).await;
    assert_eq!(next(&mut other).await, &b"before"[..]);
    assert_eq!(next(&mut other).await, vec![2; 10]);
    send(&mut one, vec![3; 11]).await;
    let error = within(other.next()).await.expect("no end").expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    // The other direction goes on.
    send(&mut other, "enough").await;
    assert_eq!(next(&mut one).await, &b"enough"[..]);
}

// IO-15: back-pressure. A peer that does not read stops who writes, and nobody else.
#[tokio::test]
async fn back_pressure_stops_only_the_writer() {
    const RING: usize = 4096;
    let config = StreamConfig::default().send_buffer(RING).receive_buffer(RING);
    let [mut writer, mut sleeper] = ends_with(&adapter(), &config, [LONGEST; 2]).await;
    let long = message(1, 50 * RING);
    for round in 0..5_u8 {
        let mut sending = Box::pin(writer.send(long.clone()));
        for _ in 0..10 {
            assert!((&mut sending).now_or_never().is_none(), "the ring of the peer has no room");
            tokio::task::yield_now().await;
        }
        // Bytes that are not sent stay in the frames, and not in the future.
        drop(sending);
        for number in 0..30 {
            send(&mut sleeper, vec![round, number]).await;
            assert_eq!(next(&mut writer).await, vec![round, number]);
        }
        let (flushed, came) = within(async { tokio::join!(flush(&mut writer), next(&mut sleeper)) }).await;
        flushed.expect("flushed");
        assert!(came == long);
    }
}

// IO-15: the directions end each for itself, and messages that were sent before arrive.
#[tokio::test]
async fn each_direction_ends_for_itself() {
    let mut pair = ends_with(&adapter(), &StreamConfig::default(), [LONGEST; 2]).await;
    let [one, other] = &mut pair;
    one.feed(Bytes::from_static(b"last")).await.expect("fed");
    within(close(one)).await.expect("closed");
    let error = within(one.send(Bytes::new())).await.expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    for number in 0..100_u8 {
        send(other, vec![number]).await;
        assert_eq!(next(one).await, vec![number]);
    }
    assert_eq!(next(other).await, &b"last"[..]);
    assert!(within(other.next()).await.is_none(), "the end");
    send(other, "late").await;
    within(close(other)).await.expect("closed");
    assert_eq!(next(one).await, &b"late"[..]);
    assert!(within(one.next()).await.is_none());
}

// IO-15: drop of either half.
#[tokio::test]
async fn either_half_can_be_dropped() {
    let [one, mut other] = ends_with(&adapter(), &StreamConfig::default(), [LONGEST; 2]).await;
    let (reader, writer) = one.into_inner().into_split();
    let (mut reader, mut writer) =
        (FramedRead::new(reader, codec(LONGEST)), FramedWrite::new(writer, codec(LONGEST)));
    within(writer.send(Bytes::from_static(b"sent"))).await.expect("sent");
    // The half that sends is dropped: an end in good order, and the other direction goes on.
    drop(writer);
    assert_eq!(next(&mut other).await, &b"sent"[..]);
    assert!(within(other.next()).await.is_none());
    send(&mut other, "heard").await;
    let heard = within(reader.next()).await.expect("no end").expect("a message");
    assert_eq!(heard, &b"heard"[..]);

    let [one, mut other] = ends_with(&adapter(), &StreamConfig::default(), [LONGEST; 2]).await;
    let (reader, writer) = one.into_inner().into_split();
    // The half that receives is dropped: the other direction goes on, and so does the peer.
    drop(FramedRead::new(reader, codec(LONGEST)));
    let mut writer = FramedWrite::new(writer, codec(LONGEST));
    send(&mut other, "unheard").await;
    for number in 0..100_u8 {
        within(writer.send(Bytes::from(vec![number]))).await.expect("sent");
        assert_eq!(next(&mut other).await, vec![number]);
    }
    within(SinkExt::<Bytes>::close(&mut writer)).await.expect("closed");
    assert!(within(other.next()).await.is_none());
}

// IO-15: drop of either end. What had come is read first, and a message that is cut in two is no message.
#[tokio::test]
async fn dropped_stream_ends_cleanly_or_reports_truncation() {
    for cut in [false, true] {
        let [mut one, mut other] = ends_with(&adapter(), &StreamConfig::default(), [LONGEST; 2]).await;
        for number in 0..30 {
            one.feed(message(number, 300)).await.expect("fed");
        }
        within(flush(&mut one)).await.expect("flushed");
        let mut stream = one.into_inner();
        if cut {
            within(stream.write_all(&[0, 0, 0, 9, b'h', b'a'])).await.expect("written");
        }
        drop(stream);
        for number in 0..30 {
            assert_eq!(next(&mut other).await, message(number, 300));
        }
        match within(other.next()).await {
            None => assert!(!cut, "a part of a message is lost without a word"),
            Some(Err(error)) => assert!(cut, "{error}"),
            Some(Ok(message)) => panic!("{message:?}"),
        }
    }
}

// IO-15: a lost connection is no end.
#[tokio::test]
async fn an_abort_is_no_end() {
    let [mut one, mut other] = ends_with(&adapter(), &StreamConfig::default(), [LONGEST; 2]).await;
    send(&mut one, "first").await;
    assert_eq!(next(&mut other).await, &b"first"[..]);
    one.get_ref().set_zero_linger().expect("set");
    drop(one);
    let error = within(other.next()).await.expect("no end").expect_err("it is gone");
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<StreamBroken>());
    assert!(matches!(inner, Some(StreamBroken::Connection(_))), "{error:?}");
}

// IO-15: a future that is dropped loses no message.
#[tokio::test]
async fn futures_that_are_dropped_lose_no_message() {
    let config = StreamConfig::default().send_buffer(2048).receive_buffer(2048);
    let [mut one, mut other] = ends_with(&adapter(), &config, [LONGEST; 2]).await;
    let mut dice = dice::Dice::of(dice::Dice::seed(), 0);
    let (mut sent, mut came) = (0_usize, 0_usize);
    within(async {
        while came < 200 {
            match dice.below(4) {
                // `feed` that has not got room takes its message along; nothing of it has been sent.
                0 => {
                    let fed = one.feed(message(sent, 100 + sent * 7)).now_or_never();
                    sent += usize::from(fed.is_some());
                }
                1 => drop(flush(&mut one).now_or_never()),
                2 => tokio::task::yield_now().await,
                _ => {
                    if let Some(next) = other.next().now_or_never() {
                        assert!(next.expect("no end").expect("a message") == message(came, 100 + came * 7));
                        came += 1;
                    }
                }
            }
        }
    })
    .await;
}
