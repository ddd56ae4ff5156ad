//! Small requests on a device: bytes that the posting call copies, and completions that the device leaves out.
//!
//! Runs on: fake

use common::life::poll_once;
use common::process::alone;
use common::raw::{bytes, room, success};
use common::verbs::fake;
use common::*;
use futures::future::join_all;
use tokio_rdma::{
    AcceptParams, Access, Adapter, Buffer, ConnectParams, Op, QueuePair, QueuePairConfig, Region,
    RegionSlice, WorkOptions,
};

/// A connected pair whose active end has these settings.
async fn active_with(adapter: &Adapter, config: QueuePairConfig) -> Pair {
    let active = adapter.queue_pair(config).expect("a queue pair");
    let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
    connected_queue_pairs(adapter, active, queue_pair(adapter), connect, accept).await
}

/// A region with these bytes.
async fn region(adapter: &Adapter, bytes: &[u8]) -> Region {
    let region = adapter.register(bytes.len(), Access::empty()).await.expect("registered");
    region.write(0, bytes).expect("as long");
    region
}

/// A message that waits: nobody has posted a receive for it.
fn send(queue_pair: &QueuePair, region: &Region) -> Op<RegionSlice> {
    let all = region.slice(0..region.len()).expect("all of it");
    queue_pair.send(all).expect("posted")
}

/// The next message of the peer.
async fn message(adapter: &Adapter, queue_pair: &QueuePair, length: usize) -> Buffer {
    success(queue_pair.receive(room(adapter, length)).expect("posted")).await.1
}

// QP-12: the device need not come for a few bytes. It does for more than the queue pair has inline.
#[tokio::test]
async fn bytes_within_inline_limit_are_copied_when_posted() {
    if fake("count qp").is_none() {
        return;
    }
    let adapter = adapter();
    for (inline, length, copied) in [(64, 64, true), (64, 65, false), (0, 8, false), (8, 8, true)] {
        let config = QueuePairConfig::default().inline(inline);
        let pair = active_with(&adapter, config).await;
        let region = region(&adapter, &vec![1; length]).await;
        let waits = send(&pair.active.queue_pair, &region);
        region.write(0, &vec![2; length]).expect("as long");
        let received = message(&adapter, &pair.passive.queue_pair, length).await;
        assert_eq!(received[..], vec![if copied { 1 } else { 2 }; length], "{inline} inline, {length} bytes");
        assert_eq!(success(waits).await.0, length);
    }
}

// QP-10: what a read before a fence brings is what a request behind it sends.
#[tokio::test]
async fn fenced_send_carries_preceding_read_data() {
    if fake("count qp").is_none() {
        return;
    }
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let theirs = adapter.register(8, Access::REMOTE_READ).await.expect("registered");
    theirs.write(0, b"answered").expect("as long");
    let ours = adapter.register(8, Access::LOCAL_WRITE | Access::READ_SINK).await.expect("registered");
    let all = || ours.slice(0..8).expect("all of it");
    let queue_pair = &pair.active.queue_pair;
    // It waits, and so do those behind it.
    let first = queue_pair.send_inline(&[b"first"], WorkOptions::default()).expect("posted");
    let read = queue_pair.read(all(), &theirs.remote()).expect("posted");
    let fenced = queue_pair.send_with(all(), WorkOptions::default().fence()).expect("posted");
    message(&adapter, &pair.passive.queue_pair, 5).await;
    assert_eq!(message(&adapter, &pair.passive.queue_pair, 8).await[..], *b"answered");
    success(first).await;
    success(read).await;
    success(fenced).await;
}

// QP-12: the bytes can be others when the call returns, also where the doorbell rings later, and be in more parts than there are
// entries.
#[tokio::test]
async fn inline_bytes_are_copied_before_the_doorbell() {
    if fake("count qp").is_none() {
        return;
    }
    let adapter = adapter();
    let config = QueuePairConfig::default().inline(256).send_entries(2);
    let pair = active_with(&adapter, config).await;
    let receives: Vec<_> =
        (0..20).map(|_| pair.passive.queue_pair.receive(room(&adapter, 256)).expect("posted")).collect();
    let message = |number: usize| vec![number as u8; number * 13];
    let batch = pair.active.queue_pair.batch();
    let mut sends = Vec::new();
    for number in 0..20 {
        let mut own = message(number);
        let parts: Vec<_> = own.chunks(5).collect();
        sends.push(batch.send_inline(&parts, WorkOptions::default()).expect("posted"));
        own.fill(0xff);
    }
    batch.submit();
    for (number, receive) in receives.into_iter().enumerate() {
        let (length, received) = success(receive).await;
        assert_eq!(received[..length], message(number));
    }
    for (number, send) in sends.into_iter().enumerate() {
        assert_eq!(success(send).await.0, number * 13, "its length is reported");
    }
    // The next one does not see what was there.
    let receive = pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    success(pair.active.queue_pair.send_inline(&[], WorkOptions::default()).expect("posted")).await;
    assert_eq!(success(receive).await.0, 0);
}

// HW-08, QP-09: without a completion queue, too, the device reports no silent request; a later one resolves their futures.
#[tokio::test]
async fn silent_futures_resolve_with_a_later_one() {
    const DEPTH: usize = 16;
    if !alone(module_path!(), "silent_futures_resolve_with_a_later_one") || fake("reset").is_none() {
        return;
    }
    let adapter = adapter();
    let pair = active_with(&adapter, QueuePairConfig::default().send_depth(DEPTH)).await;
    let region = adapter.register(8, Access::REMOTE_WRITE).await.expect("registered");
    let queue_pair = &pair.active.queue_pair;
    let write = |options| queue_pair.write_with(bytes(&adapter, b"x"), &region.remote(), options);
    let silent = || write(WorkOptions::default().silent()).expect("posted");
    // The second completion would be lost, and the connection with it.
    fake("overrun 2");
    let mut silents: Vec<_> = (0..DEPTH / 2).map(|_| silent()).collect();
    assert!(silents.iter_mut().all(|write| poll_once(write).is_pending()), "nobody has told of them");
    success(write(WorkOptions::default()).expect("posted")).await;
    join_all(silents.drain(..).map(success)).await;
    fake("reset");
    // However many there are, one of a half of the queue is told of, so that there is room again.
    for _ in 0..10 * DEPTH {
        silents.push(silent());
        tokio::task::yield_now().await;
    }
    success(write(WorkOptions::default()).expect("posted")).await;
    join_all(silents.into_iter().map(success)).await;
}
