//! The byte stream: transfer of data, shutdown and end, backpressure.
//!
//! Runs on: soft, sim, rxe, siw

mod memory;
mod sends;
pub(crate) mod soft;

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use common::deviation::assert_rejected;
use common::device::variants;
use common::dice::Dice;
use common::life::poll_once;
use common::stream::{listening, pattern, streams, streams_with};
use common::*;
use futures::future::{join, join_all, try_join};
use futures::{FutureExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_rdma::error::{ConnectError, ProtocolError, StreamBroken, StreamError};
use tokio_rdma::{ConnectParams, DisconnectReason, RdmaStream, StreamConfig};

/// The smallest that there is: everything has to wait.
fn small() -> StreamConfig {
    StreamConfig::default().send_buffer(2048).receive_buffer(2048).send_depth(16).receive_depth(16)
}

/// Writes so many bytes of the pattern, in pieces of any length, and shuts down.
async fn write_all(mut stream: impl AsyncWrite + Unpin, length: usize, mut dice: Dice) {
    let bytes = pattern(0, length);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let (part, behind) = rest.split_at(rest.len().min(1 + dice.below(10_000)));
        stream.write_all(part).await.expect("written");
        rest = behind;
    }
    stream.shutdown().await.expect("shut down");
}

/// Reads to the end of file, in pieces of any length, and compares.
async fn read_all(mut stream: impl AsyncRead + Unpin, length: usize, mut dice: Dice) {
    let (expected, mut place) = (pattern(0, length), 0);
    let mut buffer = vec![0; 20_000];
    loop {
        let most = 1 + dice.below(buffer.len());
        let count = stream.read(&mut buffer[..most]).await.expect("read");
        if count == 0 {
            break;
        }
        assert!(buffer[..count] == expected[place..place + count], "at {place}");
        place += count;
    }
    assert_eq!(place, length, "all of it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_arrive_in_order_both_ways_at_once() {
    let seed = Dice::seed();
    for (index, (adapter, _)) in variants().into_iter().enumerate() {
        let configs = [StreamConfig::default(), small(), StreamConfig::default().send_buffer(1 << 20)];
        for (case, config) in configs.iter().enumerate() {
            let length = often(3_000_000, 300_000);
            let (left, right) = streams_with(&adapter, config, &configs[(case + index) % 3]).await;
            let mut dice = Dice::of(seed, case);
            let mut tasks = Vec::new();
            for stream in [left, right] {
                let (reader, writer) = stream.into_split();
                tasks.push(tokio::spawn(read_all(reader, length, dice.split())));
                tasks.push(tokio::spawn(write_all(writer, length, dice.split())));
            }
            for task in within(join_all(tasks)).await {
                task.expect("no panic");
            }
        }
    }
}

#[tokio::test]
async fn one_task_does_it_all() {
    let (mut left, mut right) = streams(&adapter()).await;
    let length = often(500_000, 100_000);
    let expected = pattern(0, length);
    let (mut reader, mut writer) = left.split();
    let mut back = vec![0; length];
    let echo = async {
        let (mut reader, mut writer) = right.split();
        tokio::io::copy(&mut reader, &mut writer).await?;
        writer.shutdown().await
    };
    let ask = async {
        writer.write_all(&expected).await?;
        writer.shutdown().await
    };
    let hear = async {
        reader.read_exact(&mut back).await?;
        assert_eq!(reader.read(&mut [0]).await?, 0);
        std::io::Result::Ok(())
    };
    within(async { tokio::try_join!(echo, ask, hear) }).await.expect("echoed");
    assert!(back == expected);
}

// IO-01: vectored writes.
#[tokio::test]
async fn vectored_writes_are_one_after_the_other() {
    let (mut left, mut right) = streams(&adapter()).await;
    assert!(left.is_write_vectored());
    let parts = [&b"one "[..], b"", b"two ", b"three"].map(IoSlice::new);
    let written = within(left.write_vectored(&parts)).await.expect("written");
    assert_eq!(written, 13, "they are few");
    let mut read = [0; 13];
    within(right.read_exact(&mut read)).await.expect("read");
    assert_eq!(&read, b"one two three");
    assert_eq!(within(left.write(b"")).await.expect("nothing to do"), 0);
    assert_eq!(within(right.read(&mut [])).await.expect("nothing to do"), 0);
}

// IO-02: half-close in both directions, and the end of file after the shutdown of the peer.
#[tokio::test]
async fn each_direction_is_shut_down_by_itself() {
    for passive_first in [false, true] {
        let (mut first, mut second) = streams(&adapter()).await;
        if passive_first {
            std::mem::swap(&mut first, &mut second);
        }
        first.write_all(b"last words").await.expect("written");
        within(first.shutdown()).await.expect("shut down");
        within(first.shutdown()).await.expect("once more does nothing");
        let error = within(first.write(b"more")).await.expect_err("it is shut down");
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        let mut text = String::new();
        within(second.read_to_string(&mut text)).await.expect("to the end");
        assert_eq!(text, "last words");
        // The other direction is still open, and for more than its first credits.
        let length = often(1_000_000, 300_000);
        let (sent, mut read) = (pattern(0, length), Vec::new());
        let answer = async {
            second.write_all(&sent).await?;
            second.shutdown().await
        };
        within(try_join(answer, first.read_to_end(&mut read))).await.expect("answered");
        assert!(read == sent);
        assert_eq!(within(second.read(&mut [0; 8])).await.expect("still the end"), 0);
    }
}

#[tokio::test]
async fn written_bytes_arrive_after_a_drop() {
    let (mut left, mut right) = streams(&adapter()).await;
    // The peer takes this much without being asked: half of its ring.
    within(left.write_all(&pattern(0, 1 << 16))).await.expect("written");
    drop(left);
    let mut read = Vec::new();
    within(right.read_to_end(&mut read)).await.expect("an end of file");
    assert!(read == pattern(0, 1 << 16));
    let error = within(async {
        loop {
            if let Err(error) = right.write(b"anyone?").await {
                break error;
            }
        }
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    within(right.shutdown()).await.expect("there is nothing left to shut down");
}

// IO-02: an end of file that had arrived stays one.
#[tokio::test]
async fn received_bytes_are_read_after_the_end() {
    let (mut left, mut right) = streams(&adapter()).await;
    left.write_all(b"gone").await.expect("written");
    within(left.shutdown()).await.expect("shut down");
    let ended = right.connection().clone();
    drop(left);
    // The connection is over before anything is read.
    // It may have been noticed by now.
    let _ = within(right.write_all(b"unheard")).await;
    within(ended.disconnected()).await;
    let mut text = String::new();
    within(right.read_to_string(&mut text)).await.expect("an end of file");
    assert_eq!(text, "gone");
}

// A program that writes first, such as TLS or HTTP/2, reads the last words of a peer that has gone (IO-02).
#[tokio::test]
async fn write_after_peer_close_hides_no_data() {
    for shuts_down in [false, true] {
        let (mut left, mut right) = streams(&adapter()).await;
        within(left.write_all(b"alert")).await.expect("written");
        if shuts_down {
            within(left.shutdown()).await.expect("shut down");
        }
        let ended = right.connection().clone();
        drop(left);
        within(ended.disconnected()).await;
        assert_eq!(within(right.write(b"a preface")).await.expect("taken"), 9);
        assert_eq!(within(right.write(b"more")).await.expect_err("once").kind(), ErrorKind::BrokenPipe);
        assert_eq!(right.try_write(b"more").expect_err("once").kind(), ErrorKind::BrokenPipe);
        within(right.flush()).await.expect("there is nothing to flush");
        let mut text = String::new();
        within(right.read_to_string(&mut text)).await.expect("an end of file");
        assert_eq!(text, "alert");
        within(right.shutdown()).await.expect("there is nothing left to shut down");
    }
}

// The end of file has been read: nothing can be hidden, and no write is taken (IO-02).
#[tokio::test]
async fn write_after_end_of_file_fails() {
    let (left, mut right) = streams(&adapter()).await;
    let ended = right.connection().clone();
    drop(left);
    within(ended.disconnected()).await;
    assert_eq!(within(right.read(&mut [0; 8])).await.expect("the end"), 0);
    assert_eq!(within(right.write(b"x")).await.expect_err("nobody").kind(), ErrorKind::BrokenPipe);
}

// IO-02: data before the error of a loss.
#[tokio::test]
async fn loss_error_with_reason_follows_arrived_data() {
    let (mut left, mut right) = streams(&adapter()).await;
    left.write_all(b"so far").await.expect("written");
    let mut begun = [0; 3];
    within(right.read_exact(&mut begun)).await.expect("it has arrived");
    // The stream is not closed: its connection is.
    let outcome = within(left.connection().disconnect()).await;
    outcome.expect("disconnected");
    let mut rest = Vec::new();
    let error = within(right.read_to_end(&mut rest)).await.expect_err("no end of file");
    assert_eq!((&begun, &rest[..]), (b"so ", &b"far"[..]));
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<StreamBroken>());
    assert_eq!(inner, Some(&StreamBroken::Connection(DisconnectReason::Peer)));
    // And so it stays, for both ends.
    assert!(within(right.read(&mut [0])).await.is_err());
    assert!(within(right.write(b"x")).await.is_err());
    assert!(within(right.shutdown()).await.is_err());
    assert_eq!(within(left.read(&mut [0])).await.expect_err("it ended it").kind(), ErrorKind::NotConnected);
}

// IO-06: a writer that nobody reads waits, and goes on when somebody does.
#[tokio::test]
async fn a_writer_waits_for_the_reader() {
    // The peer grants this much before anybody looks at it: half of its ring on a device.
    for (config, granted) in [(StreamConfig::default(), 1 << 16), (small(), 1024)] {
        let (mut left, mut right) = streams_with(&adapter(), &config, &config).await;
        let mut written = 0;
        let piece = pattern(0, 1000);
        // As much as both rings hold, and no more.
        loop {
            let mut write = Box::pin(left.write(&piece));
            let mut count = poll_once(&mut write);
            // Bytes that are on their way to a device make room when they are there.
            for _ in 0..200 {
                if count.is_ready() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
                count = poll_once(&mut write);
            }
            let Poll::Ready(count) = count else { break };
            written += count.expect("written");
            assert!(written < 8 << 20, "somebody takes it all");
        }
        assert!(written >= granted, "{written} bytes");
        let mut read = vec![0; written];
        within(right.read_exact(&mut read)).await.expect("all of it is there");
        within(left.write_all(b"there is room again")).await.expect("written");
        let mut rest = [0; 19];
        within(right.read_exact(&mut rest)).await.expect("read");
        assert_eq!(&rest, b"there is room again");
    }
}

// IO-01: any order of polls and drops conserves the bytes.
#[tokio::test]
async fn cancelled_reads_and_writes_lose_nothing() {
    let seed = Dice::seed();
    let (mut left, mut right) = streams_with(&adapter(), &small(), &small()).await;
    let length = often(200_000, 50_000);
    let mut dice = Dice::of(seed, 0);
    let mut other = dice.split();
    let writing = async {
        let mut written = 0;
        while written < length {
            let bytes = pattern(written, (length - written).min(1 + dice.below(5000)));
            let turns = 1 + dice.below(3);
            // A future that is polled a few times and dropped has written nothing.
            if let Some(count) = common::life::polled(left.write(&bytes), turns).await {
                written += count.expect("written");
            }
            tokio::task::yield_now().await;
        }
        left.shutdown().await.expect("shut down");
    };
    let reading = async {
        let mut place = 0;
        loop {
            let mut buffer = vec![0; 1 + other.below(5000)];
            let turns = 1 + other.below(3);
            match common::life::polled(right.read(&mut buffer), turns).await {
                None => tokio::task::yield_now().await,
                Some(Ok(0)) => break,
                Some(count) => {
                    let count = count.expect("read");
                    assert!(buffer[..count] == pattern(place, count), "at {place}");
                    place += count;
                }
            }
        }
        assert_eq!(place, length);
    };
    within(join(writing, reading)).await;
}

#[tokio::test]
async fn the_halves_may_meet_again() {
    let (left, mut right) = streams(&adapter()).await;
    let (other, _) = streams(&adapter()).await;
    let (addresses, peers) = (left.local_addr().expect("an address"), left.peer_addr().expect("an address"));
    let (reader, writer) = left.into_split();
    assert_eq!(
        (reader.local_addr().expect("an address"), writer.peer_addr().expect("an address")),
        (addresses, peers)
    );
    let (_, stranger) = other.into_split();
    let error = reader.reunite(stranger).expect_err("of two streams");
    let mut left = error.0.reunite(writer).expect("of one stream");
    left.write_all(b"whole").await.expect("written");
    let (reader, writer) = left.into_split();
    drop(writer);
    let mut text = String::new();
    within(right.read_to_string(&mut text)).await.expect("the half that writes is gone");
    assert_eq!(text, "whole");
    within(right.write_all(b"still")).await.expect("the other one reads");
    drop(right);
    let (mut reader, mut text) = (reader, String::new());
    within(reader.read_to_string(&mut text)).await.expect("read");
    assert_eq!(text, "still");
}

#[tokio::test]
async fn reader_and_writer_wait_in_separate_tasks() {
    let (left, right) = streams_with(&adapter(), &small(), &small()).await;
    let (mut reader, mut writer) = left.into_split();
    // One waits for bytes, the other for room.
    let hearing = tokio::spawn(async move {
        let mut word = [0; 5];
        reader.read_exact(&mut word).await.map(|_| word)
    });
    let telling = tokio::spawn(async move { writer.write_all(&pattern(0, 50_000)).await });
    let (mut reader, mut writer) = right.into_split();
    let mut first = vec![0; 10_000];
    within(reader.read_exact(&mut first)).await.expect("read");
    within(writer.write_all(b"heard")).await.expect("written");
    assert_eq!(&within(hearing).await.expect("no panic").expect("read"), b"heard");
    let mut rest = vec![0; 40_000];
    within(reader.read_exact(&mut rest)).await.expect("read");
    within(telling).await.expect("no panic").expect("written");
    assert!([first, rest].concat() == pattern(0, 50_000));
}

#[tokio::test]
async fn memory_that_is_not_initialised_is_filled() {
    let (mut left, mut right) = streams(&adapter()).await;
    left.write_all(b"abcdefgh").await.expect("written");
    let mut memory = [std::mem::MaybeUninit::uninit(); 16];
    let mut buffer = ReadBuf::uninit(&mut memory);
    within(poll_fn(|cx| Pin::new(&mut right).poll_read(cx, &mut buffer))).await.expect("read");
    assert_eq!(buffer.filled(), b"abcdefgh");
    assert_eq!(buffer.initialized().len(), 8, "and no more than that");
}

#[tokio::test]
async fn a_listener_serves_whoever_comes() {
    let adapter = adapter();
    let mut listener = listening(&adapter, &StreamConfig::default());
    let address = listener.local_addr().expect("an address");
    let clients = (0..5_u8).map(|number| {
        let adapter = adapter.clone();
        tokio::spawn(async move {
            let mut stream = RdmaStream::connect_on(&adapter, address, &StreamConfig::default()).await?;
            stream.write_all(&[number]).await?;
            let mut back = [0];
            stream.read_exact(&mut back).await?;
            assert_eq!((back, stream.peer_addr().expect("an address")), ([number], address));
            std::io::Result::Ok(())
        })
    });
    let clients: Vec<_> = clients.collect();
    // Two ways to accept.
    for turn in 0..5 {
        let mut stream = match turn {
            0 => within(listener.accept()).await.expect("accepted").0,
            _ => within(listener.next()).await.expect("more").expect("accepted"),
        };
        let mut byte = [0];
        within(stream.read_exact(&mut byte)).await.expect("read");
        stream.write_all(&byte).await.expect("written");
    }
    for client in within(join_all(clients)).await {
        client.expect("no panic").expect("served");
    }
    assert!(poll_once(&mut listener.accept().boxed()).is_pending());
}

#[tokio::test]
async fn a_slow_peer_holds_up_nobody() {
    let adapter = adapter();
    let listener = listening(&adapter, &StreamConfig::default());
    let address = listener.local_addr().expect("an address");
    let silent = queue_pair(&adapter);
    let (connector, hello) = (adapter.connector(), hello(2));
    // On three-phase adapters it never completes; on others it is a peer that says nothing.
    let params = ConnectParams::default().private_data(hello);
    let _reply = within(connector.connect(&silent, address, params)).await.expect("it answers");
    let config = StreamConfig::default();
    let client = RdmaStream::connect_on(&adapter, address, &config);
    let (client, accepted) = within(async { tokio::join!(client, listener.accept()) }).await;
    let (mut client, mut accepted) = (client.expect("connected"), accepted.expect("accepted").0);
    if accepted.peer_addr().expect("an address") != client.local_addr().expect("an address") {
        accepted = within(listener.accept()).await.expect("the one behind it").0;
    }
    client.write_all(b"x").await.expect("written");
    within(accepted.read_exact(&mut [0])).await.expect("read");
}

/// The private data of a peer with so many entries in its list of targets, and memory that it does not have.
fn hello(targets: u8) -> Vec<u8> {
    let mut bytes = vec![0; 40];
    bytes[0] = 1;
    bytes[2..4].copy_from_slice(&100_u16.to_be_bytes());
    bytes[23] = targets;
    bytes[39] = 64;
    bytes
}

#[tokio::test]
async fn other_protocols_are_rejected() {
    let adapter = adapter();
    let listener = listening(&adapter, &StreamConfig::default());
    let address = listener.local_addr().expect("an address");
    let version = [vec![2], vec![0; 39]].concat();
    for data in [b"something else".to_vec(), version, hello(1)] {
        let (queue_pair, connector) = (queue_pair(&adapter), adapter.connector());
        let params = ConnectParams::default().private_data(data);
        let error = within(connector.connect(&queue_pair, address, params)).await.expect_err("rejected");
        assert_rejected(&adapter, &error);
    }
    let config = StreamConfig::default();
    let client = async { Ok(RdmaStream::connect_on(&adapter, address, &config).await?) };
    within(try_join(client, listener.accept())).await.expect("served");
}

#[tokio::test]
async fn a_server_that_speaks_something_else_is_left() {
    let adapter = adapter();
    let (listener, address) = common::listening(&adapter);
    let passive = queue_pair(&adapter);
    let server = async {
        let params = tokio_rdma::AcceptParams::default().private_data(&b"welcome"[..]);
        let request = listener.request().await.expect("a request");
        // The server learns that it was left where there are three phases.
        if let Ok(connection) = request.accept(&passive, params).await {
            connection.disconnected().await;
        }
    };
    let config = StreamConfig::default();
    let client = RdmaStream::connect_on(&adapter, address, &config);
    let (error, ()) = within(async { tokio::join!(client, server) }).await;
    let error = error.expect_err("it does not speak rsocket");
    let known = matches!(
        error,
        // Private data that is padded has the right length, and the wrong version.
        StreamError::Protocol { error: ProtocolError::Foreign | ProtocolError::Version(b'w'), .. }
    );
    assert!(known, "{error:?}");
    assert_eq!(std::io::Error::from(error).kind(), ErrorKind::InvalidData);
    // And one that is not there.
    let error = within(RdmaStream::connect_on(&adapter, device::nobody(v4()), &config)).await;
    assert!(matches!(error, Err(StreamError::Connect(ConnectError::Refused { .. }))), "{error:?}");
}

#[tokio::test]
async fn settings_have_limits() {
    let adapter = adapter();
    let usual = StreamConfig::default();
    for config in [
        usual.send_buffer(2047),
        usual.receive_buffer(2047),
        usual.receive_buffer((1 << 29) + 1),
        usual.send_depth(15),
        usual.receive_depth(65535),
    ] {
        let outcome = within(RdmaStream::connect_on(&adapter, device::nobody(v4()), &config)).await;
        assert!(matches!(outcome, Err(StreamError::OutOfRange { .. })), "{outcome:?}");
        let outcome = tokio_rdma::RdmaListener::bind_on(&adapter, (v4(), 0).into(), &config);
        assert!(matches!(outcome, Err(StreamError::OutOfRange { .. })), "{outcome:?}");
    }
}

#[tokio::test]
async fn dropped_stream_waits_at_most_close_timeout() {
    let config = small().close_timeout(Duration::from_millis(20));
    let (mut left, right) = streams_with(&adapter(), &config, &small()).await;
    // The peer reads nothing, so there is no room for more; and a write is under way.
    assert!(poll_once(&mut Box::pin(left.write_all(&[0; 100_000]))).is_pending());
    let ended = right.connection().clone();
    drop(left);
    within(ended.disconnected()).await;
    drop(right);
}

/// A waker that owns a half of the stream, as those of executors do whose wakers are the tasks.
struct Task(#[allow(dead_code, reason = "held to be dropped")] tokio_rdma::io::OwnedWriteHalf);

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

#[tokio::test]
async fn a_waker_may_own_the_stream() {
    let (left, mut right) = streams(&adapter()).await;
    let (mut reader, writer) = left.into_split();
    let task = Waker::from(Arc::new(Task(writer)));
    let mut byte = [0];
    let mut read = Box::pin(reader.read(&mut byte));
    assert!(common::life::poll_with(&mut read, &task).is_pending());
    drop(task);
    // The last one of that waker is dropped by the stream, and with it the half.
    assert!(poll_once(&mut read).is_pending());
    assert_eq!(within(right.read(&mut [0])).await.expect("an end of file"), 0);
}

#[test]
fn a_stream_may_outlive_its_runtime() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let first = runtime().expect("a runtime");
    let (left, right) = first.block_on(async { streams(&adapter()).await });
    drop(first);
    let second = runtime().expect("a runtime");
    second.block_on(async {
        let (mut left, mut right) = (left, right);
        assert!(within(left.read(&mut [0])).await.is_err(), "it ended with its runtime");
        let _ = within(right.write(b"x")).await;
        drop((left, right));
    });
}

// IO-01: bytes come to memory that is not initialised, also where one read brings several frames that were expected to be others.
#[tokio::test]
async fn memory_of_a_reader_need_not_be_initialised() {
    const FULL: usize = 65_520;
    const LENGTHS: [usize; 8] = [20, 3000, 40_000, FULL, FULL + 20_000, 3 * FULL, 5 * FULL - 1, 1 << 20];
    let (mut active, mut passive) = streams(&adapter()).await;
    let mut dice = Dice::of(Dice::seed(), 0);
    let lengths: Vec<_> = (0..40).map(|_| LENGTHS[dice.below(LENGTHS.len())] + dice.below(3)).collect();
    let writing = async {
        let mut at = 0;
        for length in lengths {
            active.write_all(&pattern(at, length)).await.expect("written");
            at += length;
        }
        active.shutdown().await.expect("shut down");
        at
    };
    let reading = async {
        let mut at = 0;
        loop {
            let mut room = Vec::with_capacity(1 + dice.below(2 << 20));
            let length = passive.read_buf(&mut room).await.expect("read");
            if length == 0 {
                return at;
            }
            assert!(room == pattern(at, length), "{length} bytes from {at} on");
            at += length;
        }
    };
    let (written, read) = within(join(writing, reading)).await;
    assert_eq!(read, written);
}

/// Ends a stream in one of the orderly ways.
async fn end(mut stream: RdmaStream, way: usize, writes: bool) {
    // The peer may have closed, and whatever it does is in order.
    if writes {
        let _ = stream.write_all(&[7; 100]).await;
    }
    let mut rest = Vec::new();
    match way {
        0 => {}
        1 => _ = stream.shutdown().await,
        2 => {
            let _ = stream.shutdown().await;
            let _ = stream.read_to_end(&mut rest).await;
        }
        3 => {
            let (reader, writer) = stream.into_split();
            drop(writer);
            tokio::task::yield_now().await;
            drop(reader);
        }
        4 => {
            // Not to its end.
            let _ = poll_once(&mut Box::pin(stream.shutdown()));
        }
        _ => {
            let _ = stream.read_to_end(&mut rest).await;
            let _ = stream.shutdown().await;
        }
    }
}

// IO-02, DIS-07: whoever ends first, and whatever crosses the end, neither end takes it for a loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_orderly_end_is_a_loss() {
    let mut dice = Dice::of(Dice::seed(), 0);
    for (adapter, _) in variants() {
        for _ in 0..often(300, 30) {
            let (left, right) = streams(&adapter).await;
            // Only one may wait for the other.
            let ways = [dice.below(5), dice.below(6)];
            let reasons = [&left, &right].map(|stream| {
                let connection = stream.connection();
                tokio::spawn(async move { connection.disconnected().await })
            });
            let writes = [dice.below(2) == 0, dice.below(2) == 0];
            let ends = [left, right].into_iter().zip(ways).zip(writes);
            let ends = ends.map(|((stream, way), writes)| tokio::spawn(end(stream, way, writes)));
            within(join_all(ends)).await;
            for reason in within(join_all(reasons)).await {
                let reason = reason.expect("no panic");
                let in_order = matches!(reason, DisconnectReason::Local | DisconnectReason::Peer);
                assert!(in_order, "{reason:?} {ways:?} {writes:?}");
            }
        }
    }
}
