//! The memory of idle streams.
//!
//! In a separate process, because it counts the memory of its process.

use common::process::alone;
use common::resources::resident;
use common::stream::listening;
use common::*;
use tokio_rdma::{RdmaStream, StreamConfig};

/// The most that an end of a stream may keep before its first byte.
const LIMIT: usize = 16 << 10;
const STREAMS: usize = 200;

// IO-04: before the first byte the rings are not touched.
#[tokio::test]
async fn an_idle_stream_keeps_little_memory() {
    if !alone(module_path!(), "an_idle_stream_keeps_little_memory") {
        return;
    }
    let adapter = adapter();
    let config = StreamConfig::default();
    let listener = listening(&adapter, &config);
    let address = listener.local_addr().expect("bound");
    let pair = async || {
        let connect = RdmaStream::connect_on(&adapter, address, &config);
        let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
        (connected.expect("connected"), accepted.expect("accepted"))
    };
    // Memory that is there once for all is there.
    let first = pair().await;
    let before = resident();
    let mut idle = Vec::new();
    for _ in 0..STREAMS {
        idle.push(pair().await);
    }
    let each = resident().saturating_sub(before) / (2 * STREAMS);
    assert!(each <= LIMIT, "{each} bytes for each of 2 x {STREAMS} ends");
    drop((first, idle));
}
