//! What a snapshot tells of byte streams: who waits for whom.
//!
//! Runs on: soft, sim, rxe, siw

use std::pin::pin;

use common::life::eventually;
use common::stream::{granted, streams};
use common::*;
use futures::poll;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::RdmaStream;
use tokio_rdma::inspect::{self, Snapshot, StreamReport};

/// Returns what a snapshot tells of the end of a stream.
fn report(stream: &RdmaStream) -> StreamReport {
    let Snapshot { streams, .. } = inspect::snapshot();
    let id = stream.connection().id();
    streams.into_iter().find(|stream| stream.connection == id.0).expect("it exists")
}

/// Writes until the peer has no room. Returns the number of bytes.
async fn fill(stream: &mut RdmaStream) -> usize {
    let mut written = 0;
    loop {
        let write = stream.write(&[7; 64 * 1024]);
        match tokio::time::timeout(std::time::Duration::from_millis(300), write).await {
            Ok(length) => written += length.expect("written"),
            Err(_elapsed) => return written,
        }
    }
}

// OBS-03: the program of the peer does not read.
#[tokio::test]
async fn a_writer_waits_for_the_program_of_the_peer() {
    let (mut ours, mut theirs) = streams(&adapter()).await;
    granted(&mut ours, &mut theirs).await;
    let written = fill(&mut ours).await;
    let found = report(&ours);
    assert_eq!((found.bytes_sent, found.room), (written as u64, 0));
    let expected = format!("no credit: the program of the peer has not read {} bytes", grouped(written));
    assert_eq!(found.waits_for, Some(expected));
    // A device announces messages, which no call of the program has looked at.
    let expected = format!("the program has not read {} bytes", grouped(written));
    let found = report(&theirs).waits_for.expect("it waits");
    assert!(found == expected || found.starts_with("the program has not processed "), "{found}");
    // It goes on when the peer reads.
    let mut bytes = vec![0; written];
    within(theirs.read_exact(&mut bytes)).await.expect("read");
    within(ours.write_all(b"more")).await.expect("written");
    eventually("nothing waits", || report(&ours).waits_for.is_none()).await;
    assert_eq!(report(&theirs).bytes_received, written as u64);
}

// OBS-03: the programs of both ends write, and neither reads.
#[tokio::test]
async fn both_writers_wait_for_each_other() {
    let (mut ours, mut theirs) = streams(&adapter()).await;
    granted(&mut ours, &mut theirs).await;
    let (there, back) = tokio::join!(fill(&mut ours), fill(&mut theirs));
    let expected = format!(
        "no credit in either direction: the program of the peer has not read {} bytes, and this one has not read {}",
        grouped(there),
        grouped(back)
    );
    assert_eq!(report(&ours).waits_for, Some(format!("{expected} bytes")));
}

// OBS-03: the peer has nothing to say.
#[tokio::test]
async fn a_reader_waits_for_the_peer() {
    let (mut ours, theirs) = streams(&adapter()).await;
    let reading = tokio::spawn(async move { ours.read_u8().await.map(|byte| (byte, ours)) });
    let why = || {
        let Snapshot { streams, .. } = inspect::snapshot();
        let peer = theirs.peer_addr().ok();
        let Snapshot { connections, .. } = inspect::snapshot();
        let connection = connections.into_iter().find(|report| report.local == peer)?;
        streams.into_iter().find(|report| report.connection == connection.id)?.waits_for
    };
    let is_named = || why().is_some_and(|why| why.starts_with("read pending: the peer has sent nothing for"));
    eventually("the read is named", is_named).await;
    reading.abort();
}

// OBS-03: the drop of a future of this crate ends its wait.
#[tokio::test]
async fn dropped_wait_for_readiness_waits_no_longer() {
    let (ours, _theirs) = streams(&adapter()).await;
    {
        let mut readable = pin!(ours.readable());
        let mut peeked = [0];
        let mut peek = pin!(ours.peek(&mut peeked));
        assert!(poll!(&mut readable).is_pending() && poll!(&mut peek).is_pending());
        let found = report(&ours);
        assert!(found.read_waits.is_some());
        let why = found.waits_for.expect("it waits");
        assert!(why.starts_with("read pending: the peer has sent nothing for"), "{why}");
        assert!(!why.contains("last polled"), "{why}");
    }
    let found = report(&ours);
    assert_eq!((found.read_waits, found.waits_for), (None, None));
}

// OBS-03: nothing says whether a read of `AsyncRead` was dropped, so the sentence says when it was polled. What comes ends its wait.
#[tokio::test]
async fn dropped_read_waits_until_something_comes() {
    let (mut ours, mut theirs) = streams(&adapter()).await;
    granted(&mut ours, &mut theirs).await;
    {
        let mut bytes = [0; 16];
        let mut read = pin!(ours.read(&mut bytes));
        assert!(poll!(&mut read).is_pending());
    }
    let why = report(&ours).waits_for.expect("it may wait");
    assert!(why.starts_with("read pending: the peer has sent nothing for"), "{why}");
    assert!(why.contains("; last polled ") && why.ends_with(" ago"), "{why}");
    within(theirs.write_all(b"bytes")).await.expect("written");
    eventually("the wait has ended", || report(&ours).read_waits.is_none()).await;
    let is_named = |why: &str| {
        why == "the program has not read 5 bytes" || why.starts_with("the program has not processed ")
    };
    eventually("the program is named", || report(&ours).waits_for.is_some_and(|why| is_named(&why))).await;
}

// OBS-03: no read waits in a half that was dropped, or that is made anew.
#[tokio::test]
async fn no_read_waits_in_a_dropped_half() {
    let (mut ours, _theirs) = streams(&adapter()).await;
    let mut byte = [0];
    assert!(poll!(pin!(ours.read(&mut byte))).is_pending());
    assert!(report(&ours).read_waits.is_some());
    let _halves = ours.split();
    assert_eq!(report(&ours).read_waits, None);
    let (mut reading, writing) = ours.into_split();
    assert!(poll!(pin!(reading.read(&mut byte))).is_pending());
    assert!(report(writing.as_ref()).read_waits.is_some());
    drop(reading);
    assert_eq!(report(writing.as_ref()).read_waits, None);
}

/// Returns a number with a comma behind the thousands and the millions.
fn grouped(number: usize) -> String {
    match number {
        0..1_000 => number.to_string(),
        1_000..1_000_000 => format!("{},{:03}", number / 1_000, number % 1_000),
        _ => format!("{},{:03},{:03}", number / 1_000_000, number / 1_000 % 1_000, number % 1_000),
    }
}
