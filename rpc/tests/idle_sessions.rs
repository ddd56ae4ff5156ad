//! The memory of streams without traffic, with a session and without: in this package, which has an allocator that counts.

use std::alloc::System;
use std::time::Duration;

use cap::Cap;
use common::process::alone;
use common::session::config;
use common::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;
use tokio_rdma::{Provider, RdmaConnector, RdmaListener, RdmaStream, StreamConfig};

/// Counts the bytes that this process has allocated.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// The most that a session may add to what an idle end of a stream keeps, before its first byte and behind its last.
const MOST: usize = 4 << 10;
const STREAMS: usize = 128;
/// The bytes that are sent each way: several chunks of what an end keeps for its peer.
const LENGTH: usize = 200 << 10;

/// Returns how many bytes a stream has allocated at each end, when nothing is under way.
async fn memory(has_session: bool, is_used: bool) -> usize {
    let config = if has_session { config() } else { StreamConfig::default() };
    let soft = Provider::soft().expect("compiled in");
    let listener = RdmaListener::bind_with_provider(&soft, "127.0.0.1:0", &config).await.expect("bound");
    let connector = RdmaConnector::new().provider(soft).config(config);
    let address = listener.local_addr().expect("an address");
    let pair = async || {
        let (ours, theirs) =
            within(async { tokio::join!(connector.connect(address), listener.accept()) }).await;
        let mut ends = [ours.expect("connected"), theirs.expect("accepted").0];
        assert!(ends.iter().all(|end| end.session().is_some() == has_session));
        if is_used {
            exchange(&mut ends).await;
        }
        ends
    };
    // What is there once for all is there, and what grows has grown.
    let mut held = Vec::with_capacity(2 * STREAMS);
    for _ in 0..STREAMS {
        held.push(pair().await);
    }
    let before = idle().await;
    for _ in 0..STREAMS {
        held.push(pair().await);
    }
    let grown = idle().await.saturating_sub(before);
    drop(held);
    grown / (2 * STREAMS)
}

/// Sends bytes each way.
async fn exchange([ours, theirs]: &mut [RdmaStream; 2]) {
    send(ours, theirs).await;
    send(theirs, ours).await;
}

async fn send(from: &mut RdmaStream, to: &mut RdmaStream) {
    let (bytes, mut read) = (vec![7; LENGTH], vec![0; LENGTH]);
    within(async { tokio::try_join!(from.write_all(&bytes), to.read_exact(&mut read)) }).await.expect("sent");
}

/// Returns how many bytes are allocated when that does not change any longer.
async fn idle() -> usize {
    within(async {
        let mut before = MEMORY.allocated();
        loop {
            // Longer than what an end waits before it reports what was read.
            sleep(Duration::from_millis(300)).await;
            let now = MEMORY.allocated();
            if now == before {
                return now;
            }
            before = now;
        }
    })
    .await
}

// An idle stream pays little for its session (SES-02).
#[tokio::test]
async fn session_adds_little_to_an_idle_stream() {
    if !alone(module_path!(), "session_adds_little_to_an_idle_stream") {
        return;
    }
    for is_used in [false, true] {
        let plain = memory(false, is_used).await;
        let session = memory(true, is_used).await;
        let more = session.saturating_sub(plain);
        assert!(more <= MOST, "{session} bytes for an end instead of {plain}, used: {is_used}");
    }
}
