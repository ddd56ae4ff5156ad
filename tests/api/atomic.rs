//! Atomics, and writes with immediate data.
//!
//! Runs on: soft, sim, rxe, siw
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use common::deviation::*;
use common::device::variants;
use common::raw::{bytes, failure, room, success};
use common::*;
use futures::future::join_all;
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::types::OpKind;
use tokio_rdma::{
    AcceptParams, Access, Adapter, Buffer, ConnectParams, Op, QueuePair, ReadLimits, Region, RemoteRegion,
    Status, WorkOptions,
};

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// Returns whether there are atomics. Asserts that an adapter without them refuses them and returns the buffer.
async fn has_atomics(adapter: &Adapter) -> bool {
    let announced = adapter.info().atomics;
    if !announced {
        let pair = connected(adapter).await;
        let (buffer, nowhere) =
            (bytes(adapter, b"received"), RemoteRegion::new(0, tokio_rdma::types::RemoteKey(1), 8));
        let error = pair.active.queue_pair.fetch_add(buffer, &nowhere, 1, WorkOptions::default());
        let error = error.expect_err("not supported");
        assert!(matches!(error.kind, PostErrorKind::NotSupported(_)), "{error}");
        let error = pair.active.queue_pair.compare_swap(error.buffer, &nowhere, 1, 2, WorkOptions::default());
        assert_eq!(&error.expect_err("not supported").buffer[..], b"received");
        eprintln!("skipped: the adapter has no atomics, and has said so");
    }
    announced
}

async fn counters(adapter: &Adapter, values: &[u64]) -> Region {
    let region = adapter.register(values.len() * 8, ALL).await.expect("registered");
    for (at, value) in values.iter().enumerate() {
        region.write(at * 8, &value.to_ne_bytes()).expect("in bounds");
    }
    region
}

fn value(region: &Region, at: usize) -> u64 {
    let mut bytes = [0; 8];
    region.read(at * 8, &mut bytes).expect("in bounds");
    u64::from_ne_bytes(bytes)
}

fn at(region: &Region, at: usize) -> RemoteRegion {
    region.remote_part(at * 8..at * 8 + 8).expect("in bounds")
}

fn add(adapter: &Adapter, queue_pair: &QueuePair, there: &RemoteRegion, add: u64) -> Op<Buffer> {
    queue_pair.fetch_add(room(adapter, 8), there, add, WorkOptions::default()).expect("posted")
}

fn swap(adapter: &Adapter, queue_pair: &QueuePair, there: &RemoteRegion, [from, to]: [u64; 2]) -> Op<Buffer> {
    queue_pair.compare_swap(room(adapter, 8), there, from, to, WorkOptions::default()).expect("posted")
}

/// Returns the value that was there before the atomic.
async fn original(op: Op<Buffer>, kind: OpKind) -> u64 {
    let (outcome, buffer) = within(op).await;
    let outcome = outcome.expect("it succeeds");
    assert_eq!((outcome.kind, outcome.bytes), (kind, 8));
    u64::from_ne_bytes(buffer[..].try_into().expect("eight bytes"))
}

#[tokio::test]
async fn atomics_change_eight_bytes_and_return_the_original() {
    for (adapter, variant) in variants() {
        if !has_atomics(&adapter).await {
            return;
        }
        let pair = connected(&adapter).await;
        let region = counters(&adapter, &[5, 0x0102_0304_0506_0708, u64::MAX, 7]).await;
        let queue_pair = &pair.active.queue_pair;
        // A sum wraps around, a swap needs the expected value, and both return the value that was there before (QP-23).
        for (place, sum) in [(1, 0x0102_0304_0506_0709), (2, 0)] {
            let before = value(&region, place);
            let found = original(add(&adapter, queue_pair, &at(&region, place), 1), OpKind::FetchAdd).await;
            assert_eq!((found, value(&region, place)), (before, sum), "{variant}");
        }
        for (swapped, found, after) in [([6, 9], 5, 5), ([5, 9], 5, 9), ([5, 1], 9, 9)] {
            let op = swap(&adapter, queue_pair, &at(&region, 0), swapped);
            assert_eq!(original(op, OpKind::CompareSwap).await, found, "{variant}");
            assert_eq!(value(&region, 0), after, "{variant}");
        }
        assert_eq!(value(&region, 3), 7, "{variant}: the neighbour is as it was");
    }
}

#[tokio::test]
async fn atomics_need_eight_aligned_bytes() {
    let adapter = adapter();
    if !has_atomics(&adapter).await {
        return;
    }
    let pair = connected(&adapter).await;
    let region = counters(&adapter, &[1, 2]).await;
    let whole = region.remote();
    for (length, there, wrong) in [
        (7, at(&region, 0), 7),
        (9, at(&region, 0), 9),
        (0, at(&region, 0), 0),
        (8, whole.part(4..12).expect("in bounds"), 8),
        (8, whole.part(8..15).expect("in bounds"), 7),
    ] {
        // An atomic has eight aligned bytes (RFC 7306), and any other is refused inline (QP-23).
        let error =
            pair.active.queue_pair.fetch_add(room(&adapter, length), &there, 1, WorkOptions::default());
        let error = error.expect_err("no atomic");
        assert_eq!(
            (error.kind, error.buffer.len()),
            (PostErrorKind::NotAtomic { length: wrong, address: there.address() }, length)
        );
    }
    let nothing = pair.active.queue_pair.fetch_add((), &whole, 1, WorkOptions::default());
    let kind = nothing.expect_err("no room for the original value").kind;
    assert_eq!(kind, PostErrorKind::NotAtomic { length: 0, address: whole.address() });
    assert_eq!([value(&region, 0), value(&region, 1)], [1, 2]);
    assert_eq!(
        original(add(&adapter, &pair.active.queue_pair, &at(&region, 1), 1), OpKind::FetchAdd).await,
        2
    );
}

#[tokio::test]
async fn no_two_atomics_mix() {
    for (adapter, variant) in variants() {
        if !has_atomics(&adapter).await {
            return;
        }
        let count = often(200, 20) as u64;
        let region = counters(&adapter, &[0]).await;
        let there = at(&region, 0);
        let pairs = join_all((0..4).map(|_| connected(&adapter))).await;
        let queue_pairs = pairs.iter().flat_map(|pair| [&pair.active.queue_pair, &pair.passive.queue_pair]);
        // The passive ends may speak when the active ones have.
        for pair in &pairs {
            original(add(&adapter, &pair.active.queue_pair, &there, 0), OpKind::FetchAdd).await;
        }
        let each = queue_pairs.map(async |queue_pair| {
            let mut found = Vec::new();
            for _ in 0..count {
                found.push(original(add(&adapter, queue_pair, &there, 1), OpKind::FetchAdd).await);
            }
            assert!(found.is_sorted(), "{variant}: each sees its own before");
            found
        });
        let mut found = join_all(each).await.concat();
        found.sort_unstable();
        // QP-23: every one of them was alone.
        assert!(found.into_iter().eq(0..8 * count), "{variant}");
        assert_eq!(value(&region, 0), 8 * count, "{variant}");
    }
}

#[tokio::test]
async fn atomics_and_reads_take_turns_within_the_limit() {
    for (adapter, variant) in variants() {
        if !has_atomics(&adapter).await {
            return;
        }
        for limit in [1, 3] {
            let limits = ReadLimits::new(limit, limit);
            let connect = ConnectParams::default().read_limits(limits);
            let accept = AcceptParams::default().read_limits(limits);
            let pair = connected_with(&adapter, connect, accept).await;
            let region = counters(&adapter, &[0]).await;
            let there = at(&region, 0);
            let queue_pair = &pair.active.queue_pair;
            let ops: Vec<_> = (0..20)
                .map(|_| {
                    let read = queue_pair.read(room(&adapter, 8), &there).expect("posted");
                    (read, add(&adapter, queue_pair, &there, 1))
                })
                .collect();
            // QP-23, NEG-06: however many there are, each is answered in its turn.
            for (number, (read, add)) in (0_u64..).zip(ops) {
                let (outcome, buffer) = within(read).await;
                outcome.expect("read");
                assert_eq!(buffer[..], number.to_ne_bytes(), "{variant}, limit {limit}");
                assert_eq!(original(add, OpKind::FetchAdd).await, number, "{variant}, limit {limit}");
            }
        }
    }
}

// QP-23: the payload of a long answer is fetched when it is written, and the atomic behind it waits for that.
#[tokio::test]
async fn long_read_does_not_see_a_later_atomic() {
    for (adapter, variant) in variants() {
        if !has_atomics(&adapter).await {
            return;
        }
        let length = adapter.info().max_transfer.min(16 << 20);
        let pair = connected(&adapter).await;
        let access = Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let region = adapter.register(length, access).await.expect("registered");
        let last = region.remote_part(length - 8..length).expect("in bounds");
        for round in 0..2_u64 {
            let queue_pair = &pair.active.queue_pair;
            let read = queue_pair.read(room(&adapter, length), &region.remote()).expect("posted");
            let add = add(&adapter, queue_pair, &last, 1);
            let (outcome, buffer) = within(read).await;
            outcome.expect("read");
            assert_eq!(buffer[length - 8..], round.to_ne_bytes(), "{variant}");
            assert_eq!(original(add, OpKind::FetchAdd).await, round, "{variant}");
        }
    }
}

#[tokio::test]
async fn without_reads_there_are_no_atomics() {
    let adapter = adapter();
    if !has_atomics(&adapter).await {
        return;
    }
    if !adapter.info().accept_limits_reads {
        return eprintln!("skipped: an accept cannot agree to fewer reads, and the adapter has said so");
    }
    let none = ReadLimits::NONE;
    let connect = ConnectParams::default().read_limits(none);
    let pair = connected_with(&adapter, connect, AcceptParams::default().read_limits(none)).await;
    let region = counters(&adapter, &[0]).await;
    // An atomic counts against the read limits, which are zero here (QP-23).
    let error =
        pair.active.queue_pair.fetch_add(room(&adapter, 8), &at(&region, 0), 1, WorkOptions::default());
    assert_eq!(error.expect_err("none").kind, PostErrorKind::NoReads);
    assert_eq!(value(&region, 0), 0);
}

#[tokio::test]
async fn an_atomic_needs_the_right() {
    for (adapter, variant) in variants() {
        if !has_atomics(&adapter).await {
            return;
        }
        let pair = connected(&adapter).await;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = adapter.register(8, access).await.expect("registered");
        let refused = add(&adapter, &pair.active.queue_pair, &at(&region, 0), 1);
        let behind = add(&adapter, &pair.active.queue_pair, &at(&region, 0), 1);
        // A region without the right for atomics is unchanged, and the connection ends (QP-21).
        let status = failure(refused).await;
        if per_request_errors(&adapter) {
            assert_eq!(status, Status::ACCESS_VIOLATION, "{variant}");
        }
        assert_eq!(failure(behind).await, Status::CANCELED, "{variant}");
        within(pair.active.connection.disconnected()).await;
        within(pair.passive.connection.disconnected()).await;
        assert_eq!(value(&region, 0), 0, "{variant}");
    }
}

#[tokio::test]
async fn a_write_with_immediate_data_takes_a_receive() {
    for (adapter, variant) in variants() {
        let pair = connected(&adapter).await;
        let (writer, peer) = (&pair.active.queue_pair, &pair.passive.queue_pair);
        let region = adapter.register(100_000, ALL).await.expect("registered");
        let options = |value| WorkOptions::default().immediate(value);
        if !adapter.info().immediate {
            let error = writer.write_with(bytes(&adapter, b"kept"), &region.remote(), options(1));
            let error = error.expect_err("not supported");
            assert!(matches!(error.kind, PostErrorKind::NotSupported(_)), "{variant}: {error}");
            assert_eq!(&error.buffer[..], b"kept", "{variant}");
            continue;
        }
        for (length, value) in [(0, 0), (1, 1), (100_000, u32::MAX), (8, 0x0102_0304)] {
            let receive = peer.receive(room(&adapter, 8)).expect("posted");
            let remote = region.remote_part(0..length).expect("in bounds");
            let fill = vec![value as u8; length];
            success(writer.write_with(bytes(&adapter, &fill), &remote, options(value)).expect("posted"))
                .await;
            let (outcome, _) = within(receive).await;
            // The value completes a receive, while the bytes are in the region (QP-23).
            let outcome = outcome.expect("received");
            assert_eq!((outcome.kind, outcome.immediate), (OpKind::Receive, Some(value)), "{variant}");
            // The bytes are in the region, also where there are more than the receive has room for.
            assert_eq!(outcome.bytes, 0, "{variant}");
            let mut found = vec![!value as u8; length];
            region.read(0, &mut found).expect("in bounds");
            assert_eq!(found, fill, "{variant}");
        }
        // Messages and immediate data come in the order of their posts.
        let receives: Vec<_> = (0..4).map(|_| peer.receive(room(&adapter, 8)).expect("posted")).collect();
        let mut sent = Vec::new();
        for value in [10, 11] {
            sent.push(writer.send(bytes(&adapter, &[value as u8; 3])).expect("posted"));
            let there = region.remote_part(0..1).expect("in bounds");
            sent.push(writer.write_with(bytes(&adapter, &[1]), &there, options(value)).expect("posted"));
        }
        join_all(sent.into_iter().map(success)).await;
        let mut found = Vec::new();
        for receive in receives {
            let (outcome, buffer) = within(receive).await;
            found.push(outcome.expect("received").immediate.ok_or(buffer[0]));
        }
        assert_eq!(found, [Err(10), Ok(10), Err(11), Ok(11)], "{variant}");
    }
}

#[tokio::test]
async fn a_send_with_immediate_data_has_both() {
    for (adapter, variant) in variants() {
        let pair = connected(&adapter).await;
        let receive = pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
        let options = WorkOptions::default().immediate(0xffff_fffe);
        let send = pair.active.queue_pair.send_with(bytes(&adapter, b"kept"), options);
        // One receive completes with the message and the value (QP-23).
        if !adapter.info().immediate_send {
            let error = send.expect_err("not supported");
            assert!(matches!(error.kind, PostErrorKind::NotSupported(_)), "{variant}: {error}");
            assert_eq!(&error.buffer[..], b"kept", "{variant}");
            continue;
        }
        success(send.expect("posted")).await;
        let (outcome, buffer) = within(receive).await;
        let outcome = outcome.expect("received");
        assert_eq!((outcome.bytes, outcome.immediate), (4, Some(0xffff_fffe)), "{variant}");
        assert_eq!(&buffer[..4], b"kept", "{variant}");
    }
}
