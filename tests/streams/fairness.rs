//! Streams that never have to wait leave other tasks their turns.
//!
//! Runs on: soft, sim, rxe, siw

use std::future::poll_fn;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::stream::streams;
use common::*;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rdma::RdmaStream;

/// How often each operation is done.
const TIMES: usize = 2000;

/// The fewest turns that another task must have: a budget of tokio is 128 operations.
const TURNS: usize = TIMES / 256;

/// Does an operation that never waits again and again, and counts how often another task of this thread has its turn.
async fn is_fair(what: &str, mut operation: impl AsyncFnMut()) {
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = turns.clone();
    let other = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    within(async {
        for _ in 0..TIMES {
            operation().await;
        }
    })
    .await;
    other.abort();
    let turns = turns.load(Ordering::Relaxed);
    assert!(turns >= TURNS, "{what}: {turns} turns of another task");
}

/// Reads and writes nothing, of which neither waits: the peer has closed its direction, and nothing is written.
async fn nothing_is_fair(
    what: &str,
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
) {
    is_fair(&format!("a read of {what}"), async || {
        assert_eq!(reader.read(&mut [0]).await.expect("the end of file"), 0);
    })
    .await;
    is_fair(&format!("a write of {what}"), async || {
        assert_eq!(writer.write(&[]).await.expect("nothing to do"), 0);
    })
    .await;
    is_fair(&format!("a vectored write of {what}"), async || {
        assert_eq!(writer.write_vectored(&[IoSlice::new(&[])]).await.expect("nothing to do"), 0);
    })
    .await;
    is_fair(&format!("a flush of {what}"), async || writer.flush().await.expect("nothing to do")).await;
    writer.shutdown().await.expect("shut down");
    is_fair(&format!("a shutdown of {what}"), async || writer.shutdown().await.expect("nothing to do")).await;
}

/// Returns a stream and its peer, the second, which has closed its direction.
async fn half_closed() -> (RdmaStream, RdmaStream) {
    let (stream, mut peer) = streams(&adapter()).await;
    within(peer.shutdown()).await.expect("shut down");
    (stream, peer)
}

// SEC-01, IO-01: no await of a byte stream makes another task of the runtime wait for more than a budget.
#[tokio::test]
async fn a_stream_that_is_always_ready_yields() {
    let (stream, mut peer) = streams(&adapter()).await;
    within(peer.write_all(&[7; TIMES])).await.expect("written");
    let mut all = vec![0; TIMES];
    while within(stream.peek(&mut all)).await.expect("bytes") < TIMES {
        tokio::task::yield_now().await;
    }
    is_fair("peek", async || assert_eq!(stream.peek(&mut [0]).await.expect("bytes"), 1)).await;
    is_fair("readable", async || stream.readable().await.expect("readable")).await;
    is_fair("writable", async || stream.writable().await.expect("writable")).await;
    is_fair("poll_read_ready", async || {
        poll_fn(|cx| stream.poll_read_ready(cx)).await.expect("readable");
    })
    .await;
    let (mut reader, _writer) = stream.into_split();
    is_fair("a read of a byte", async || {
        reader.read_exact(&mut [0]).await.expect("a byte");
    })
    .await;
}

// Reads at the end of file and writes of nothing never wait, and other tasks still have their turns (SEC-01, IO-01).
#[tokio::test]
async fn ready_stream_halves_yield_to_other_tasks() {
    let (mut stream, _peer) = half_closed().await;
    let (reader, writer) = stream.split();
    nothing_is_fair("borrowed halves", reader, writer).await;
    let (stream, _peer) = half_closed().await;
    let (reader, writer) = stream.into_split();
    nothing_is_fair("owned halves", reader, writer).await;
    let (stream, _peer) = half_closed().await;
    let (reader, writer) = tokio::io::split(stream);
    nothing_is_fair("the whole", reader, writer).await;
}
