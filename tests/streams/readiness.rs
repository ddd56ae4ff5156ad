//! The methods of tokio's `TcpStream` beyond reading and writing: peeking, trying, waiting, options and abort.
//!
//! Runs on: soft, sim, rxe, siw

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use common::life::poll_once;
use common::stream::{granted, listening, pattern, streams, streams_with};
use common::*;
use futures::FutureExt;
use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio_rdma::error::StreamBroken;
use tokio_rdma::{RdmaStream, StreamConfig};

// IO-12: peeked bytes stay, also where the ring has an end among them.
#[tokio::test]
async fn peeked_bytes_are_read_again() {
    let config = StreamConfig::default().receive_buffer(4096);
    let (mut left, mut right) = streams_with(&adapter(), &config, &config).await;
    let mut place = 0;
    for _ in 0..20 {
        within(left.write_all(&pattern(place, 1500))).await.expect("written");
        let (mut peeked, mut read) = ([0; 1500], [0; 1500]);
        while within(right.peek(&mut peeked)).await.expect("bytes") < 1500 {
            tokio::task::yield_now().await;
        }
        let mut buffer = ReadBuf::new(&mut read[..700]);
        let count = within(poll_fn(|cx| right.poll_peek(cx, &mut buffer))).await.expect("bytes");
        assert_eq!((count, buffer.filled()), (700, &pattern(place, 700)[..]));
        within(right.read_exact(&mut read)).await.expect("read");
        assert!(peeked[..] == pattern(place, 1500) && peeked == read);
        place += 1500;
    }
    assert!(poll_once(&mut Box::pin(right.peek(&mut [0]))).is_pending());
    within(left.shutdown()).await.expect("shut down");
    assert_eq!(within(right.peek(&mut [0; 8])).await.expect("the end of file"), 0);
}

// IO-12: `try_read` and `try_write` never wait, and `readable` and `writable` say when they work.
#[tokio::test]
async fn tries_take_what_there_is() {
    const RING: usize = 1 << 17;
    let config = StreamConfig::default().receive_buffer(RING);
    let (mut left, mut right) = streams_with(&adapter(), &config, &config).await;
    assert_eq!(right.try_read(&mut [0; 8]).expect_err("nothing").kind(), ErrorKind::WouldBlock);
    assert!(right.readable().now_or_never().is_none());
    left.writable().await.expect("there is room");
    let parts = [&b"one "[..], b"two"].map(IoSlice::new);
    assert_eq!(left.try_write_vectored(&parts).expect("there is room"), 7);
    within(right.readable()).await.expect("readable");
    let mut read = [0; 16];
    assert_eq!(right.try_read(&mut read).expect("bytes"), 7);
    assert_eq!(&read[..7], b"one two");
    assert_eq!(right.try_read(&mut []).expect("nothing to do"), 0);

    // Until there is no room, and there is again.
    granted(&mut left, &mut right).await;
    let mut written = 7;
    while written < RING {
        // Data on its way to a device makes room when it is there.
        within(left.writable()).await.expect("there is room");
        written += left.try_write(&pattern(written, 10_000)).expect("there is room");
    }
    assert_eq!(written, RING);
    assert_eq!(left.try_write(b"x").expect_err("no room").kind(), ErrorKind::WouldBlock);
    let mut writable = Box::pin(left.writable());
    assert!(poll_once(&mut writable).is_pending());
    let (mut count, mut piece) = (7, vec![0; 10_000]);
    while count < written {
        within(right.readable()).await.expect("readable");
        match right.try_read(&mut piece) {
            Ok(read) => count += read,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    within(writable).await.expect("there is room again");
    assert!(left.try_write(b"x").is_ok());

    // Both say that they are ready when nothing more can come.
    drop(left);
    within(async {
        loop {
            right.readable().await.expect("ready");
            match right.try_read(&mut piece) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    })
    .await;
    within(right.writable()).await.expect("ready");
    assert_eq!(right.try_write(b"x").expect_err("nobody is there").kind(), ErrorKind::BrokenPipe);
}

// IO-12: any number of tasks may wait, while the owner of the stream reads.
#[tokio::test]
async fn many_wait_for_one_stream() {
    let (mut left, right) = streams(&adapter()).await;
    let right = Arc::new(right);
    let wait = |_| {
        let right = right.clone();
        tokio::spawn(async move {
            right.readable().await?;
            right.peek(&mut [0; 8]).await
        })
    };
    let waits: Vec<_> = (0..10).map(wait).collect();
    let mut polled = Box::pin(poll_fn(|cx| right.poll_read_ready(cx)));
    assert!(poll_once(&mut polled).is_pending());
    tokio::task::yield_now().await;
    within(left.write_all(b"all")).await.expect("written");
    for outcome in within(join_all(waits)).await {
        assert_eq!(outcome.expect("no panic").expect("bytes"), 3);
    }
    within(polled).await.expect("readable");
    within(poll_fn(|cx| right.poll_write_ready(cx))).await.expect("writable");
}

// Borrowed and owned halves have the calls of tokio's halves, and `forget` shuts nothing down (IO-12).
#[tokio::test]
async fn the_halves_peek_and_try() {
    let (mut left, right) = streams(&adapter()).await;
    let (mut reader, writer) = right.into_split();
    within(writer.writable()).await.expect("writable");
    assert_eq!(writer.try_write(b"there").expect("there is room"), 5);
    let mut word = [0; 5];
    within(left.read_exact(&mut word)).await.expect("read");
    let (mut left_reader, left_writer) = left.split();
    assert_eq!(left_writer.try_write_vectored(&[IoSlice::new(&word)]).expect("there is room"), 5);
    within(reader.readable()).await.expect("readable");
    assert_eq!(within(reader.peek(&mut [0])).await.expect("a byte"), 1);
    assert_eq!(reader.try_read(&mut [0; 9]).expect("bytes"), 5);
    assert_eq!(left_reader.try_read(&mut [0]).expect_err("nothing").kind(), ErrorKind::WouldBlock);
    // A half that is forgotten shuts nothing down.
    writer.forget();
    assert!(poll_once(&mut Box::pin(left_reader.peek(&mut [0]))).is_pending());
    drop(reader);
    assert_eq!(within(left_reader.peek(&mut [0])).await.expect("the end of file"), 0);
}

// IO-12: what is sent is sent at once, whatever is asked for.
#[tokio::test]
async fn there_is_no_delay() {
    let (left, _right) = streams(&adapter()).await;
    for nodelay in [true, false] {
        left.set_nodelay(nodelay).expect("accepted");
        assert!(left.nodelay().expect("known"));
    }
    assert_eq!(left.linger().expect("known"), None);
}

// IO-12: a stream that is dropped with a linger of zero is no end of file.
#[tokio::test]
async fn an_abort_is_an_error_of_the_peer() {
    let (left, mut right) = streams(&adapter()).await;
    left.set_zero_linger().expect("set");
    assert_eq!(left.linger().expect("known"), Some(Duration::ZERO));
    drop(left);
    let error = within(right.read(&mut [0; 8])).await.expect_err("no end of file");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error:?}");
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<StreamBroken>());
    assert!(matches!(inner, Some(StreamBroken::Connection(_))), "{inner:?}");
}

// IO-12: `poll_accept`, by turns with `accept`.
#[tokio::test]
async fn a_listener_is_polled() {
    let (adapter, config) = (adapter(), StreamConfig::default());
    let listener = listening(&adapter, &config);
    let address = listener.local_addr().expect("bound");
    for _ in 0..3 {
        let mut polled = Box::pin(poll_fn(|cx| listener.poll_accept(cx)));
        assert!(poll_once(&mut polled).is_pending(), "nobody has come");
        let connect = RdmaStream::connect_on(&adapter, address, &config);
        let (connected, accepted) = within(async { tokio::join!(connect, polled) }).await;
        let (accepted, peer) = accepted.expect("accepted");
        assert_eq!(connected.expect("connected").local_addr().expect("connected"), peer);
        assert_eq!(accepted.peer_addr().expect("connected"), peer);
        let connect = RdmaStream::connect_on(&adapter, address, &config);
        let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
        connected.expect("connected");
        accepted.expect("accepted");
    }
}
