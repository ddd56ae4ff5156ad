//! The memory of streams without traffic.
//!
//! In a separate process, because it counts the memory of its process.

use common::process::alone;
use common::resources::resident;
use common::stream::listening;
use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::{RdmaConnector, RdmaListener, RdmaStream, StreamConfig};

/// The most that an end of a stream may keep before its first byte, and when all bytes were read.
const LIMIT: usize = 16 << 10;
const LIMIT_AFTER: usize = 24 << 10;
const STREAMS: usize = 200;
/// Twice as much as the peer may write before it is read.
const LENGTH: usize = 4 << 20;

async fn pair(listener: &RdmaListener) -> (RdmaStream, RdmaStream) {
    let address = listener.local_addr().expect("bound");
    let (adapter, config) = (adapter(), StreamConfig::default());
    let connect = RdmaStream::connect_on(&adapter, address, &config);
    let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
    (connected.expect("connected"), accepted.expect("accepted").0)
}

// A task that connects keeps the future of the connect, as long as the task is there.
#[tokio::test]
async fn the_future_of_a_connect_is_small() {
    const LIMIT: usize = 4 << 10;
    let (adapter, config) = (adapter(), StreamConfig::default());
    let connect = RdmaStream::connect_on(&adapter, (v4(), 1).into(), &config);
    assert!(size_of_val(&connect) <= LIMIT, "{} bytes", size_of_val(&connect));
    // By name: it has the race of the addresses, and their lists.
    let (named, of_connector) =
        (RdmaStream::connect("localhost:1"), RdmaConnector::new().connect("localhost:1"));
    assert!(size_of_val(&named) <= size_of_val(&of_connector) + 64, "{} bytes", size_of_val(&named));
}

// IO-04: a stream has no memory for bytes before the first one.
#[tokio::test]
async fn an_idle_stream_keeps_little_memory() {
    if !alone(module_path!(), "an_idle_stream_keeps_little_memory") {
        return;
    }
    let listener = listening(&adapter(), &StreamConfig::default());
    // Memory that is there once for all is there.
    let first = pair(&listener).await;
    let before = resident();
    let mut idle = Vec::new();
    for _ in 0..STREAMS {
        idle.push(pair(&listener).await);
    }
    let each = resident().saturating_sub(before) / (2 * STREAMS);
    assert!(each <= LIMIT, "{each} bytes for each of 2 x {STREAMS} ends");
    drop((first, idle));
}

// IO-04: a stream keeps no memory for bytes that were read, neither while it is used nor afterwards.
#[tokio::test]
async fn stream_keeps_no_memory_of_read_bytes() {
    const ENDS: usize = 40;
    if !alone(module_path!(), "stream_keeps_no_memory_of_read_bytes") {
        return;
    }
    let listener = listening(&adapter(), &StreamConfig::default());
    // Memory that is there once for all is there. So is the buffer: the allocator may keep one that is freed.
    let mut first = pair(&listener).await;
    let mut read = vec![0; LENGTH];
    exchange(&mut first, &mut read).await;
    let before = resident();
    let mut pairs = Vec::new();
    for _ in 0..ENDS / 2 {
        pairs.push(pair(&listener).await);
    }
    for pair in &mut pairs {
        exchange(pair, &mut read).await;
    }
    let each = resident().saturating_sub(before) / ENDS;
    assert!(each <= LIMIT_AFTER, "{each} bytes for each of {ENDS} ends");
}

/// Sends so many bytes each way, in messages that are short, so that they do not go past the memory of the stream.
async fn exchange((one, other): &mut (RdmaStream, RdmaStream), read: &mut [u8]) {
    for _ in 0..2 {
        let write = async {
            for place in (0..LENGTH).step_by(8192) {
                one.write_all(&[(place >> 13) as u8; 8192]).await?;
            }
            std::io::Result::Ok(())
        };
        let (written, outcome) = within(async { tokio::join!(write, other.read_exact(read)) }).await;
        written.expect("written");
        outcome.expect("read");
        for (place, byte) in read.iter().enumerate() {
            assert_eq!(*byte, (place >> 13) as u8, "at {place}");
        }
        std::mem::swap(one, other);
    }
}
