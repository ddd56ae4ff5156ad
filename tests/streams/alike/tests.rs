//! Tests that know the names of tokio's methods, and not whose they are.

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::panic::{RefUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use common::life::poll_once;
use common::within;
use futures::FutureExt;
use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, ReadBuf, Ready, copy_bidirectional};

use super::{Listener, ReuniteError, Stream, connect, listening};

const BOTH: Interest = Interest::READABLE.add(Interest::WRITABLE);

async fn pair_of(listener: &Listener) -> (Stream, Stream) {
    let (connected, accepted) = within(async { tokio::join!(connect(listener), listener.accept()) }).await;
    (connected, accepted.expect("accepted").0)
}

async fn pair() -> (Stream, Stream) {
    pair_of(&listening().await).await
}

/// Waits until the stream has this readiness, among others.
async fn becomes(stream: &Stream, interest: Interest, flags: Ready) -> Ready {
    within(async {
        loop {
            let ready = stream.ready(interest).await.expect("ready");
            if ready & flags == flags {
                return ready;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

fn is_unwind_safe<T: UnwindSafe + RefUnwindSafe>(_: &T) {}

// IO-12: a program can catch a panic of what owns streams.
#[tokio::test]
async fn panic_of_an_owner_of_streams_is_caught() {
    let listener = listening().await;
    let (left, right) = pair_of(&listener).await;
    within(left.writable()).await.expect("connected");
    let caught = catch_unwind(move || {
        left.try_write(b"the last words").expect("room");
        panic!("caught by this test")
    });
    let panic = caught.expect_err("a panic");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"caught by this test"));
    let (mut reader, writer) = right.into_split();
    let mut received = Vec::new();
    within(reader.read_to_end(&mut received)).await.expect("its end was dropped in good order");
    assert_eq!(received, b"the last words");
    is_unwind_safe(&(listener, reader, writer));
}

// IO-12: tokio's own tests have this limit, for tasks that connect by name.
#[test]
fn future_of_connect_by_name_is_small() {
    let connect = Stream::connect("localhost:1");
    assert!(size_of_val(&connect) < 900, "{} bytes", size_of_val(&connect));
}

/// Reads without waiting until that would wait.
fn drain(stream: &Stream) {
    while stream.try_read(&mut [0; 4096]).is_ok() {}
}

// IO-12: every end and half has both addresses.
#[tokio::test]
async fn addresses() {
    let listener = listening().await;
    let (mut left, right) = pair_of(&listener).await;
    let own = left.local_addr().expect("connected");
    let other = listener.local_addr().expect("bound");
    assert_eq!(left.peer_addr().expect("connected"), other);
    assert_eq!(right.local_addr().expect("connected"), other);
    assert_eq!(right.peer_addr().expect("connected"), own);
    let (reader, writer) = left.split();
    for half in [reader.local_addr(), writer.local_addr()] {
        assert_eq!(half.expect("connected"), own);
    }
    let (reader, writer) = right.into_split();
    for half in [reader.peer_addr(), writer.peer_addr()] {
        assert_eq!(half.expect("connected"), own);
    }
    assert_eq!(reader.as_ref().local_addr().expect("connected"), other);
    assert_eq!(writer.as_ref().peer_addr().expect("connected"), own);
}

// IO-12: the unspecified address is the local address of its listener, with the port.
#[tokio::test]
async fn unspecified_listener_reports_the_unspecified_address() {
    for asked in ["0.0.0.0:0", "[::]:0"] {
        let asked: SocketAddr = asked.parse().expect("an address");
        let local = Listener::bind(asked).await.expect("bound").local_addr().expect("bound");
        assert_eq!(local.ip(), asked.ip());
        assert_ne!(local.port(), 0);
    }
}

// IO-12: peeked bytes stay, and the end of file is peeked as 0 bytes.
#[tokio::test]
async fn peek() {
    let (mut left, right) = pair().await;
    let mut found = [0; 8];
    assert!(poll_once(&mut Box::pin(right.peek(&mut found))).is_pending());
    within(left.write_all(b"peek")).await.expect("written");
    for _ in 0..2 {
        assert_eq!(within(right.peek(&mut found)).await.expect("bytes"), 4);
        assert_eq!(&found[..4], b"peek");
    }
    let mut buffer = ReadBuf::new(&mut found[4..6]);
    assert_eq!(within(poll_fn(|cx| right.poll_peek(cx, &mut buffer))).await.expect("bytes"), 2);
    assert_eq!(buffer.filled(), b"pe");
    let (mut reader, _writer) = right.into_split();
    assert_eq!(within(reader.peek(&mut found)).await.expect("bytes"), 4);
    assert_eq!(within(reader.read(&mut found)).await.expect("bytes"), 4);
    within(left.shutdown()).await.expect("shut down");
    assert_eq!(within(reader.peek(&mut found)).await.expect("the end"), 0);
}

// IO-12: `try_read` in its three forms.
#[tokio::test]
async fn try_read() {
    let (mut left, right) = pair().await;
    let would_block = |outcome: std::io::Result<usize>| {
        assert_eq!(outcome.expect_err("nothing").kind(), ErrorKind::WouldBlock);
    };
    let mut bytes = BytesMut::new();
    would_block(right.try_read(&mut [0; 8]));
    would_block(right.try_read_buf(&mut bytes));
    would_block(right.try_read_vectored(&mut [IoSliceMut::new(&mut [0; 8])]));
    within(left.write_all(b"one two three")).await.expect("written");
    let mut all = [0; 13];
    while within(right.peek(&mut all)).await.expect("bytes") < 13 {
        tokio::task::yield_now().await;
    }
    let (mut one, mut two) = ([0; 3], [0; 4]);
    assert_eq!(right.try_read(&mut one).expect("bytes"), 3);
    assert_eq!(&one, b"one");
    let mut parts = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut []), IoSliceMut::new(&mut two)];
    assert_eq!(right.try_read_vectored(&mut parts).expect("bytes"), 7);
    assert_eq!((&one, &two), (b" tw", b"o th"));
    bytes.extend_from_slice(b"th");
    assert_eq!(right.try_read_buf(&mut bytes).expect("bytes"), 3);
    assert_eq!(&bytes[..], b"three");
    would_block(right.try_read(&mut one));
    within(left.shutdown()).await.expect("shut down");
    within(right.readable()).await.expect("the end");
    assert_eq!(right.try_read_buf(&mut bytes).expect("the end"), 0);
    assert_eq!(right.try_read_vectored(&mut [IoSliceMut::new(&mut one)]).expect("the end"), 0);
}

// IO-12: `try_write` takes bytes until there is no room, and `writable` waits for room.
#[tokio::test]
async fn try_write() {
    let (left, right) = pair().await;
    within(left.writable()).await.expect("there is room");
    assert_eq!(left.try_write_vectored(&[IoSlice::new(b"a"), IoSlice::new(b"bc")]).expect("room"), 3);
    let mut written = 3;
    let error = loop {
        match left.try_write(&[7; 10_000]) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    let writable = left.writable();
    let mut read = 0;
    within(async {
        while read < written {
            right.readable().await.expect("readable");
            match right.try_read(&mut [0; 10_000]) {
                Ok(count) => read += count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    })
    .await;
    within(writable).await.expect("there is room again");
    assert_eq!(read, written);
    assert_eq!(left.try_write(b"x").expect("room"), 1);
}

// IO-12: `ready` tells the directions apart, and a closed one from one with data.
#[tokio::test]
async fn ready() {
    let (mut left, mut right) = pair().await;
    // Tokio takes a stream for readable until a read has found nothing.
    drain(&right);
    assert!(poll_once(&mut Box::pin(right.ready(Interest::READABLE))).is_pending());
    let ready = becomes(&right, BOTH, Ready::WRITABLE).await;
    assert!(!ready.is_readable() && !ready.is_read_closed() && !ready.is_write_closed(), "{ready:?}");

    // A wait that has begun is woken by data.
    {
        let mut waits = Box::pin(right.ready(Interest::READABLE));
        assert!(poll_once(&mut waits).is_pending());
        within(left.write_all(b"data")).await.expect("written");
        assert!(within(waits).await.expect("ready").is_readable());
    }
    becomes(&right, BOTH, Ready::READABLE | Ready::WRITABLE).await;
    let ready = within(right.ready(Interest::WRITABLE)).await.expect("ready");
    assert!(!ready.is_readable(), "it was not asked for: {ready:?}");
    within(right.read_exact(&mut [0; 4])).await.expect("read");
    drain(&right);

    // The end of one direction, also before unread data.
    within(left.write_all(b"last")).await.expect("written");
    within(left.shutdown()).await.expect("shut down");
    let ready = becomes(&right, BOTH, Ready::READABLE | Ready::READ_CLOSED).await;
    assert!(ready.is_writable() && !ready.is_write_closed(), "{ready:?}");
    let mut last = Vec::new();
    within(right.read_to_end(&mut last)).await.expect("read");
    assert_eq!(last, b"last");
    assert!(within(right.ready(Interest::READABLE)).await.expect("ready").is_read_closed());
    // The end of both.
    within(right.shutdown()).await.expect("shut down");
    becomes(&right, BOTH, Ready::READ_CLOSED | Ready::WRITE_CLOSED).await;
    becomes(&left, BOTH, Ready::READ_CLOSED | Ready::WRITE_CLOSED).await;
}

// IO-12: an error is a readiness of its own, and of both directions.
#[tokio::test]
async fn ready_with_an_error() {
    let (left, right) = pair().await;
    let mut waits = Box::pin(right.ready(Interest::ERROR));
    assert!(poll_once(&mut waits).is_pending());
    left.set_zero_linger().expect("set");
    drop(left);
    assert!(within(waits).await.expect("ready").is_error());
    becomes(&right, BOTH, Ready::READ_CLOSED | Ready::WRITE_CLOSED).await;
}

// IO-12: waits that are dropped take nothing along, and wake nobody less.
#[tokio::test]
async fn waits_are_dropped() {
    let (mut left, right) = pair().await;
    let right = Arc::new(right);
    let waiting = |stream: Arc<Stream>| tokio::spawn(async move { stream.ready(BOTH).await });
    for round in 0..20 {
        drain(&right);
        assert!(poll_once(&mut Box::pin(right.readable())).is_pending());
        let mut dropped = Box::pin(right.ready(Interest::READABLE));
        assert!(poll_once(&mut dropped).is_pending());
        let mut peeked = [0; 8];
        let mut peek = Box::pin(right.peek(&mut peeked));
        assert!(poll_once(&mut peek).is_pending());
        let tasks: Vec<_> = (0..4).map(|_| waiting(right.clone())).collect();
        within(left.write_all(&[round])).await.expect("written");
        drop((dropped, peek));
        for task in within(join_all(tasks)).await {
            assert!(!task.expect("no panic").expect("ready").is_empty());
        }
        within(right.readable()).await.expect("readable");
        let mut found = [0; 8];
        assert_eq!(within(right.peek(&mut found)).await.expect("a byte"), 1);
        assert_eq!(found[0], round);
    }
}

// IO-12: the halves wait, try, and are made one stream again.
#[tokio::test]
async fn halves() {
    let (left, right) = pair().await;
    let (other, _its_peer) = pair().await;
    let (reader, writer) = left.into_split();
    let (mut other_reader, other_writer) = other.into_split();
    // Those of two streams come back.
    let ReuniteError(reader, other_writer) = reader.reunite(other_writer).expect_err("of two streams");
    let ReuniteError(returned, writer) = writer.reunite(other_reader).expect_err("of two streams");
    other_reader = returned;
    within(writer.writable()).await.expect("there is room");
    assert!(within(writer.ready(Interest::WRITABLE)).await.expect("ready").is_writable());
    assert_eq!(writer.try_write(b"half").expect("there is room"), 4);
    assert_eq!(writer.try_write_vectored(&[IoSlice::new(b"way")]).expect("there is room"), 3);
    let (mut right_reader, mut right_writer) = right.into_split();
    within(right_reader.read_exact(&mut [0; 7])).await.expect("read");
    within(right_writer.write_all(b"back")).await.expect("written");
    within(reader.readable()).await.expect("readable");
    assert!(within(reader.ready(Interest::READABLE)).await.expect("ready").is_readable());
    let mut bytes = BytesMut::new();
    assert_eq!(reader.try_read_buf(&mut bytes).expect("bytes"), 4);
    assert_eq!(&bytes[..], b"back");
    assert_eq!(reader.try_read(&mut [0; 4]).expect_err("nothing").kind(), ErrorKind::WouldBlock);

    // Made one again, from either side, it goes on.
    let left = writer.reunite(reader).expect("of one stream");
    drop(other_writer.reunite(other_reader).expect("of one stream"));
    let (mut reader, writer) = left.into_split();
    writer.forget();
    assert!(right_reader.read(&mut [0]).now_or_never().is_none(), "forgotten, not shut down");
    within(right_writer.write_all(b"more")).await.expect("written");
    within(reader.read_exact(&mut [0; 4])).await.expect("read");
    // The write half that is dropped shuts its direction down.
    drop(right_writer);
    assert_eq!(within(reader.read(&mut [0])).await.expect("the end"), 0);
    drop(reader);
    assert_eq!(within(right_reader.read(&mut [0])).await.expect("the end"), 0);
}

// IO-12: borrowed halves, for two futures of one task.
#[tokio::test]
async fn borrowed_halves() {
    let (mut left, mut right) = pair().await;
    let (reader, mut writer) = left.split();
    assert_eq!(reader.try_read(&mut [0; 4]).expect_err("nothing").kind(), ErrorKind::WouldBlock);
    let (mut peer_reader, mut peer_writer) = right.split();
    let echo = tokio::io::copy(&mut peer_reader, &mut peer_writer);
    let ask = async {
        writer.write_all(b"there and back").await.expect("written");
        writer.shutdown().await.expect("shut down");
    };
    let (copied, ()) = within(async { tokio::join!(echo, ask) }).await;
    assert_eq!(copied.expect("copied"), 14);
    within(reader.readable()).await.expect("readable");
    assert_eq!(reader.as_ref().try_read(&mut [0; 32]).expect("bytes"), 14);
}

// IO-12: `poll_accept` and `accept` share the peers that come.
#[tokio::test]
async fn accepts() {
    let listener = listening().await;
    assert!(poll_once(&mut Box::pin(listener.accept())).is_pending());
    for round in 0..4 {
        let accept = async {
            if round % 2 == 0 {
                poll_fn(|cx| listener.poll_accept(cx)).await
            } else {
                listener.accept().await
            }
        };
        let (connected, accepted) = within(async { tokio::join!(connect(&listener), accept) }).await;
        let (accepted, peer) = accepted.expect("accepted");
        assert_eq!(connected.local_addr().expect("connected"), peer);
        assert_eq!(accepted.peer_addr().expect("connected"), peer);
    }
}

// IO-12: what comes after the end of either direction.
#[tokio::test]
async fn ends() {
    let (mut left, mut right) = pair().await;
    left.set_nodelay(true).expect("accepted");
    assert!(left.nodelay().expect("known"));
    assert_eq!(within(left.write(&[])).await.expect("nothing to do"), 0);
    for _ in 0..2 {
        within(left.shutdown()).await.expect("shut down");
    }
    assert_eq!(within(left.write(b"x")).await.expect_err("shut down").kind(), ErrorKind::BrokenPipe);
    assert_eq!(left.try_write(b"x").expect_err("shut down").kind(), ErrorKind::BrokenPipe);
    within(left.writable()).await.expect("it fails at once");
    for _ in 0..2 {
        assert_eq!(within(right.read(&mut [0; 8])).await.expect("the end"), 0);
    }
    within(right.write_all(b"the other way")).await.expect("written");
    within(left.read_exact(&mut [0; 13])).await.expect("read");
}

// The first write after the peer's close hides nothing that the peer sent (IO-12).
#[tokio::test]
async fn a_write_after_the_peers_close() {
    let (mut left, mut right) = pair().await;
    within(left.write_all(b"alert")).await.expect("written");
    within(left.shutdown()).await.expect("shut down");
    drop(left);
    // The end has arrived.
    becomes(&right, Interest::READABLE, Ready::READ_CLOSED).await;
    assert_eq!(within(right.write(b"a preface")).await.expect("taken"), 9);
    let mut found = Vec::new();
    within(right.read_to_end(&mut found)).await.expect("to the end");
    assert_eq!(found, b"alert");
    within(right.shutdown()).await.expect("shut down");
}

// IO-12: a linger of zero makes the drop an abort, of the stream and of its halves.
#[tokio::test]
async fn aborts() {
    for halves in [false, true] {
        let (mut left, mut right) = pair().await;
        within(left.write_all(b"x")).await.expect("written");
        within(right.read_exact(&mut [0])).await.expect("read");
        left.set_zero_linger().expect("set");
        assert_eq!(left.linger().expect("known"), Some(Duration::ZERO));
        if halves {
            let (reader, writer) = left.into_split();
            writer.forget();
            drop(reader);
        } else {
            drop(left);
        }
        let error = within(right.read(&mut [0; 8])).await.expect_err("no end of file");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error:?}");
        right.try_write(b"x").expect_err("aborted");
    }
}

// IO-12: a proxy copies both directions, and passes both ends on.
#[tokio::test]
async fn proxies() {
    let (mut client, mut inbound) = pair().await;
    let (mut outbound, mut server) = pair().await;
    let proxy = copy_bidirectional(&mut inbound, &mut outbound);
    let serve = async {
        let mut question = Vec::new();
        server.read_to_end(&mut question).await.expect("read");
        server.write_all(&question.repeat(3)).await.expect("written");
        server.shutdown().await.expect("shut down");
    };
    let ask = async {
        client.write_all(&[7; 100_000]).await.expect("written");
        client.shutdown().await.expect("shut down");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.expect("read");
        answer.len()
    };
    let (copied, (), answer) = within(async { tokio::join!(proxy, serve, ask) }).await;
    assert_eq!((copied.expect("copied"), answer), ((100_000, 300_000), 300_000));
}
