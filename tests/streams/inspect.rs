//! What a snapshot tells of byte streams: who waits for whom.
//!
//! Runs on: soft, sim, rxe, siw

use common::life::eventually;
use common::stream::{granted, streams};
use common::*;
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

/// Returns a number with a comma behind the thousands and the millions.
fn grouped(number: usize) -> String {
    match number {
        0..1_000 => number.to_string(),
        1_000..1_000_000 => format!("{},{:03}", number / 1_000, number % 1_000),
        _ => format!("{},{:03},{:03}", number / 1_000_000, number / 1_000 % 1_000, number % 1_000),
    }
}
