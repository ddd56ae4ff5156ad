//! The options of requests, and the limits of queue pairs.
//!
//! Runs on: soft, sim, rxe, siw

#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

mod soft;

use common::deviation::lacks_buffer_sinks;
use common::device::variants;
use common::raw::{bytes, failure, room, success};
use common::results::collect;
use common::*;
use futures::future::join_all;
use tokio_rdma::error::{PostErrorKind, Reason};
use tokio_rdma::types::{OpKind, QueueKind, RemoteKey};
use tokio_rdma::{
    AcceptParams, Access, Adapter, CompletionQueueConfig, ConnectParams, QueuePairConfig, ReadLimits,
    RemoteRegion, Status, WorkOptions,
};

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Connects a pair whose active end has this configuration.
async fn active_with(adapter: &Adapter, config: QueuePairConfig) -> Pair {
    let active = adapter.queue_pair(config).expect("a queue pair");
    let params = (ConnectParams::default(), AcceptParams::default());
    connected_queue_pairs(adapter, active, queue_pair(adapter), params.0, params.1).await
}

#[tokio::test]
async fn full_send_queue_is_usable_after_completions() {
    for (adapter, variant) in variants() {
        if lacks_buffer_sinks(&adapter) {
            return;
        }
        // Results that are not polled keep their requests open on a device alone, so reads fill the queue, of which one
        // is in flight at a time.
        let limits = ReadLimits::new(1, 1);
        let active = adapter.queue_pair(QueuePairConfig::default().send_depth(3)).expect("a queue pair");
        let connect = ConnectParams::default().read_limits(limits);
        let accept = AcceptParams::default().read_limits(limits);
        let pair = connected_queue_pairs(&adapter, active, queue_pair(&adapter), connect, accept).await;
        let region = adapter.register(1 << 20, ALL).await.expect("registered");
        let queue_pair = &pair.active.queue_pair;
        for _ in 0..often(20, 3) {
            let mut reads = Vec::new();
            let refused = loop {
                match queue_pair.read(room(&adapter, 1 << 20), &region.remote()) {
                    Ok(read) => reads.push(read),
                    Err(refused) => break refused,
                }
            };
            // QP-07: nothing has been posted, and the buffer is back.
            assert!(matches!(refused.kind, PostErrorKind::QueueFull { .. }), "{refused:?}");
            assert_eq!(refused.status(), Status::NO_MORE_ENTRIES);
            assert_eq!(refused.buffer.len(), 1 << 20, "{variant}");
            assert!(reads.len() >= 3, "{variant}: {}", reads.len());
            for read in reads {
                success(read).await;
            }
        }
        success(queue_pair.write(bytes(&adapter, b"x"), &region.remote()).expect("posted")).await;
    }
}

#[tokio::test]
async fn excess_entries_and_inline_bytes_are_refused() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let config = QueuePairConfig::default().send_entries(2).receive_entries(1).inline(32);
    let pair = active_with(&adapter, config).await;
    let queue_pair = &pair.active.queue_pair;
    let parts = |count: usize| (0..count).map(|_| room(&adapter, 4)).collect::<Vec<_>>();
    let region = adapter.register(64, ALL).await.expect("registered");
    // A request beyond a limit fails inline, returns its buffers and leaves the queue as it was (QP-08).
    let refused = queue_pair.send(parts(3)).expect_err("too many");
    let many = |kind, entries, maximum| PostErrorKind::TooManyEntries { kind, entries, maximum };
    assert_eq!((refused.kind, refused.status()), (many(OpKind::Send, 3, 2), Status::DATA_OVERRUN));
    assert_eq!(refused.buffer.len(), 3, "all of them are back");
    let refused = queue_pair.write(parts(3), &region.remote()).expect_err("too many");
    assert_eq!(refused.kind, many(OpKind::Write, 3, 2));
    let refused = queue_pair.read(parts(3), &region.remote()).expect_err("too many");
    assert_eq!(refused.kind, many(OpKind::Read, 3, adapter.info().max_read_entries.min(2)));
    let refused = queue_pair.receive(parts(2)).expect_err("too many");
    assert_eq!((refused.kind, refused.buffer.len()), (many(OpKind::Receive, 2, 1), 2));
    // QP-12: that is no limit of what is inline, its length is.
    let long = [b'x'; 33];
    let refused = queue_pair.send_inline(&[&long[..20], &long[20..]], WorkOptions::default()).map(drop);
    let refused = refused.expect_err("too long");
    assert!(matches!(refused, PostErrorKind::InlineTooLong { length: 33, .. }), "{refused:?}");
    assert_eq!(refused.status(), Status::BUFFER_OVERFLOW);
    // All that was refused has left no trace.
    let receive = pair.passive.queue_pair.receive(room(&adapter, 64)).expect("posted");
    success(queue_pair.send(parts(2)).expect("posted")).await;
    assert_eq!(success(receive).await.0, 8);
}

// QP-08: more bytes than the adapter transfers at once, in each kind of request that transfers any; a list counts as a
// whole. A receive may be longer than any message.
#[tokio::test]
async fn request_beyond_max_transfer_is_refused_inline() {
    let adapter = adapter();
    let (most, entries) = (adapter.info().max_transfer, adapter.info().max_entries);
    // A part of the memory that is named again and again; a device pins it.
    let part = if Device::under_test().is_soft() { most / entries + 1 } else { 64 << 20 };
    let count = most / part + 1;
    if count > entries.min(adapter.info().max_read_entries) {
        return eprintln!("skipped: no list of this adapter is longer than its longest transfer");
    }
    let rights = Access::LOCAL_WRITE | ALL;
    let region = adapter.register(part, rights).await.expect("registered");
    let pair =
        active_with(&adapter, QueuePairConfig::default().send_entries(entries).receive_entries(entries))
            .await;
    let queue_pair = &pair.active.queue_pair;
    let list = || (0..count).map(|_| region.slice(0..part).expect("all of it")).collect::<Vec<_>>();
    let remote = RemoteRegion::new(region.remote().address(), region.key(), u32::MAX);
    for (refused, what) in [
        (queue_pair.send(list()), "send"),
        (queue_pair.write(list(), &remote), "write"),
        (queue_pair.read(list(), &remote), "read"),
    ] {
        let refused = refused.expect_err(what);
        assert_eq!(
            (refused.kind, refused.status()),
            (PostErrorKind::TooLong { length: count * part, maximum: most }, Status::BUFFER_OVERFLOW),
            "{what}"
        );
        assert_eq!(refused.buffer.len(), count, "{what}: all of them are back");
    }
    // All that was refused has left no trace.
    let receive = pair.passive.queue_pair.receive(room(&adapter, 4)).expect("posted");
    success(queue_pair.send(bytes(&adapter, b"well")).expect("posted")).await;
    assert_eq!(success(receive).await.0, 4);
}

#[tokio::test]
async fn silent_successes_leave_no_result_and_failures_do() {
    for (adapter, variant) in variants() {
        if lacks_buffer_sinks(&adapter) {
            return;
        }
        let results = adapter.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
        let pair = active_with(&adapter, QueuePairConfig::default().send_completions(&results)).await;
        let region = adapter.register(64, ALL).await.expect("registered");
        let queue_pair = &pair.active.queue_pair;
        let write =
            |remote: &RemoteRegion, options| queue_pair.write_with(bytes(&adapter, b"x"), remote, options);
        let silent = |context| WorkOptions::default().silent().context(context);
        let mut ops = Vec::new();
        for context in 0..5 {
            ops.push(write(&region.remote(), silent(context)).expect("posted"));
        }
        ops.push(write(&region.remote(), WorkOptions::default().context(5)).expect("posted"));
        // Of the six writes one has a result, because it alone is not silent (QP-09).
        let found = collect(&results, 1).await;
        assert_eq!((found[0].context, found[0].status), (5, Status::SUCCESS), "{variant}");
        for outcome in within(join_all(ops)).await {
            outcome.0.expect("it succeeds, silently or not");
        }
        assert!(results.is_empty(), "{variant}");
        // A failure is reported all the same.
        let read = queue_pair.read_with(
            room(&adapter, 8),
            &RemoteRegion::new(region.remote().address(), RemoteKey(region.key().0 ^ 0x100), 8),
            silent(6),
        );
        let found = collect(&results, 1).await;
        assert_eq!((found[0].context, found[0].kind), (6, OpKind::Read), "{variant}");
        assert_ne!(found[0].status, Status::SUCCESS, "{variant}");
        failure(read.expect("posted")).await;
    }
}

#[tokio::test]
async fn fenced_request_sees_earlier_reads() {
    const SIZE: usize = 1 << 20;
    // The bytes that a read writes last, which would be sent at once without a fence.
    const TAIL: usize = 64;
    for (adapter, variant) in variants() {
        let pair = connected(&adapter).await;
        let [source, between, target] = [
            adapter.register(SIZE, ALL).await.expect("registered"),
            adapter.register(SIZE, ALL | Access::READ_SINK).await.expect("registered"),
            adapter.register(SIZE, ALL).await.expect("registered"),
        ];
        for round in 1..=often(20, 2) as u8 {
            source.write(0, &[round; SIZE]).expect("as long");
            let slice = |range| between.slice(range).expect("as long");
            let queue_pair = &pair.active.queue_pair;
            let read = queue_pair.read(slice(0..SIZE), &source.remote()).expect("posted");
            let fenced = WorkOptions::default().fence();
            let tail = slice(SIZE - TAIL..SIZE);
            let write = queue_pair.write_with(tail, &target.remote(), fenced).expect("posted");
            // A request behind it waits with it.
            let receive = pair.passive.queue_pair.receive(room(&adapter, 4)).expect("posted");
            let send = queue_pair.send(bytes(&adapter, b"done")).expect("posted");
            success(receive).await;
            let mut found = [0; TAIL];
            target.read(0, &mut found).expect("as long");
            // The fenced write sends the bytes that the read has placed (QP-10).
            assert_eq!(found, [round; TAIL], "{variant}: round {round}");
            success(read).await;
            success(write).await;
            success(send).await;
        }
    }
}

#[tokio::test]
async fn inline_bytes_are_copied_by_the_call() {
    for (adapter, variant) in variants() {
        let most = adapter.info().max_inline;
        if most == 0 {
            let pair = connected(&adapter).await;
            let refused = pair.active.queue_pair.send_inline(&[b"x"], WorkOptions::default()).map(drop);
            let none = PostErrorKind::InlineTooLong { length: 1, maximum: 0 };
            assert_eq!(refused, Err(none), "{variant}: it has none");
            continue;
        }
        let size = most.min(24);
        let pair = active_with(&adapter, QueuePairConfig::default().send_entries(1).inline(size)).await;
        let queue_pair = &pair.active.queue_pair;
        let region = adapter.register(64, ALL).await.expect("registered");
        let mut message: Vec<u8> = (0..size as u8).collect();
        let receives: Vec<_> =
            (0..2).map(|_| pair.passive.queue_pair.receive(room(&adapter, 64)).expect("posted")).collect();
        let write = {
            let (head, tail) = message.split_at(size / 3);
            queue_pair.write_inline(&[head, &[], tail], &region.remote(), WorkOptions::default())
        };
        let send = queue_pair.send_inline(&[&message], WorkOptions::default());
        // QP-12: more parts than there are entries, and no longer needed when the call returns.
        message.fill(0xff);
        let last = queue_pair.send_inline(&[], WorkOptions::default());
        for op in [write, send, last] {
            within(op.expect("posted")).await.0.expect("it succeeds");
        }
        let found: Vec<_> = join_all(receives.into_iter().map(success)).await;
        let expected: Vec<u8> = (0..size as u8).collect();
        assert_eq!((found[0].0, &found[0].1[..size]), (size, &expected[..]), "{variant}");
        assert_eq!(found[1].0, 0, "{variant}");
        let mut written = vec![0; size];
        region.read(0, &mut written).expect("in bounds");
        assert_eq!(written, expected, "{variant}");
    }
}

#[tokio::test]
async fn unsupported_request_options_are_refused() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let pair = connected(&adapter).await;
    let region = adapter.register(8, ALL).await.expect("registered");
    let (queue_pair, remote) = (&pair.active.queue_pair, region.remote());
    let options = WorkOptions::default;
    let key = RemoteKey(7);
    let kept = || bytes(&adapter, b"kept");
    for (refused, argument, case) in [
        (
            queue_pair.send_with(kept(), options().immediate(1).invalidate(key)),
            4,
            "the send does not accept the option immediate together with invalidate",
        ),
        (
            queue_pair.write_with(kept(), &remote, options().invalidate(key)),
            6,
            "the write does not accept the option invalidate",
        ),
        (
            queue_pair.write_with(kept(), &remote, options().solicited()),
            6,
            "the write does not accept the option solicited without immediate",
        ),
        (
            queue_pair.read_with(kept(), &remote, options().solicited()),
            6,
            "the read does not accept the option solicited",
        ),
        (
            queue_pair.read_with(kept(), &remote, options().immediate(1)),
            6,
            "the read does not accept the option immediate",
        ),
    ] {
        // The error contains the number of `flags` among the parameters of ND's Send, Write and Read (QP-11, QP-13,
        // QP-23).
        let refused = refused.expect_err(case);
        let found = matches!(refused.kind, PostErrorKind::InvalidOptions { argument: found, .. } if found == argument);
        assert!(found, "{case}: {refused:?}");
        // The text names the request and the option (ERR-09).
        assert_eq!(refused.to_string(), case);
        assert_eq!(&refused.buffer[..], b"kept", "{case}");
    }
    success(queue_pair.read(room(&adapter, 8), &remote).expect("posted")).await;
}

#[tokio::test]
async fn a_batch_goes_out_with_its_doorbell() {
    for (adapter, variant) in variants() {
        let pair = connected(&adapter).await;
        let (sender, receiver) = (&pair.active.queue_pair, &pair.passive.queue_pair);
        for dropped in [false, true] {
            let receives: Vec<_> =
                (0..16).map(|_| receiver.receive(room(&adapter, 8)).expect("posted")).collect();
            let batch = sender.batch();
            let sends: Vec<_> =
                (0..16).map(|number| batch.send(bytes(&adapter, &[number; 3])).expect("posted")).collect();
            if dropped {
                drop(batch);
            } else {
                batch.submit();
            }
            // A batch is sent by `submit` and by its drop, in the order of the posts (QP-15).
            join_all(sends.into_iter().map(success)).await;
            for (number, receive) in (0..16).zip(receives) {
                let (length, buffer) = success(receive).await;
                assert_eq!(buffer[..length], [number; 3], "{variant}");
            }
        }
        // A request that is posted without the batch takes with it those that were posted before.
        let receives: Vec<_> = (0..3).map(|_| receiver.receive(room(&adapter, 8)).expect("posted")).collect();
        let batch = sender.batch();
        let deferred = [b"one", b"two"].map(|text| batch.send(bytes(&adapter, text)).expect("posted"));
        let last = sender.send(bytes(&adapter, b"end")).expect("posted");
        for (receive, text) in receives.into_iter().zip([b"one", b"two", b"end"]) {
            assert_eq!(&success(receive).await.1[..3], text, "{variant}");
        }
        for op in deferred.into_iter().chain([last]) {
            success(op).await;
        }
        drop(batch);
    }
}

#[tokio::test]
async fn a_flush_ends_the_connection() {
    for (adapter, variant) in variants() {
        let pair = connected(&adapter).await;
        let receives: Vec<_> = (0..3)
            .flat_map(|_| [&pair.active, &pair.passive])
            .map(|end| end.queue_pair.receive(room(&adapter, 8)).expect("posted"))
            .collect();
        pair.active.queue_pair.flush();
        // The receives of both ends complete with CANCELED (QP-16).
        for receive in receives {
            assert_eq!(failure(receive).await, Status::CANCELED, "{variant}");
        }
        within(pair.active.connection.disconnected()).await;
        within(pair.passive.connection.disconnected()).await;
        let refused = pair.active.queue_pair.send(bytes(&adapter, b"kept")).expect_err("it is over");
        let lost = matches!(refused.kind, PostErrorKind::ConnectionLost { reason: Reason::Local(_) });
        assert!(lost && refused.buffer[..] == *b"kept", "{refused:?}");
    }
}

#[tokio::test]
async fn receives_fill_the_maximum_receive_depth() {
    let adapter = adapter();
    let depth = adapter.info().max_queue_depth.min(if device::is_emulated() { 2000 } else { usize::MAX });
    let config = QueuePairConfig::default().receive_depth(depth).receive_entries(1);
    let passive = adapter.queue_pair(config).expect("a queue pair");
    let receives: Vec<_> = (0..depth).map(|_| passive.receive(()).expect("posted")).collect();
    if device::Device::under_test().is_soft() {
        // QP-22: not one more; a device may have some to spare.
        let full = PostErrorKind::QueueFull { queue: QueueKind::Receive, depth };
        assert_eq!(passive.receive(()).expect_err("full").kind, full);
    }
    let params = (ConnectParams::default(), AcceptParams::default());
    let pair = connected_queue_pairs(&adapter, queue_pair(&adapter), passive, params.0, params.1).await;
    let sender = &pair.active.queue_pair;
    let mut left = depth;
    while left > 0 {
        let batch = sender.batch();
        let some = left.min(100);
        let sends: Vec<_> = (0..some).map(|_| batch.send(()).expect("posted")).collect();
        batch.submit();
        for send in within(join_all(sends)).await {
            send.0.expect("sent");
        }
        left -= some;
    }
    // QP-22. One after the other: a task that polls all of them in each turn gets as far as its budget, and begins anew.
    for receive in receives {
        assert_eq!(success(receive).await.0, 0);
    }
}

// QP-22: NdQpMax. As many as there can be: one more is refused as such, those that exist are as good as before, and what is
// given back can be had again.
#[tokio::test]
async fn as_many_queue_pairs_as_there_can_be() {
    let adapter = adapter();
    let config = QueuePairConfig::default().receive_depth(4).send_depth(4);
    let pair = connected(&adapter).await;
    let most = if device::is_emulated() { 200 } else { 20_000 };
    let mut held = Vec::new();
    let refused = loop {
        match adapter.queue_pair(config.clone()) {
            Ok(queue_pair) => held.push(queue_pair),
            Err(error) => break Some(error),
        }
        if held.len() == most {
            break None;
        }
    };
    match &refused {
        Some(error) => assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES, "{error:?}"),
        None => assert_eq!(held.len(), most),
    }
    assert!(held.len() > 40, "{} are too few", held.len());
    // Each is one of its own: a receive of every one comes back when that one is flushed, and not before.
    let receives: Vec<_> = held.iter().map(|it| it.receive(room(&adapter, 8)).expect("posted")).collect();
    for (queue_pair, receive) in held.iter().zip(receives) {
        queue_pair.flush();
        assert_eq!(failure(receive).await, Status::CANCELED);
    }
    common::cm::exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
    held.truncate(held.len() / 2);
    common::cm::assert_usable(&adapter, &adapter.queue_pair(config).expect("there is room again")).await;
}

// QP-22: NdLargeQPDepth, for the other queue: as many requests as it is deep are outstanding at once, and none is lost.
#[tokio::test]
async fn writes_fill_the_maximum_send_depth() {
    let adapter = adapter();
    let depth = adapter.info().max_queue_depth.min(if device::is_emulated() { 1000 } else { usize::MAX });
    let pair = active_with(&adapter, QueuePairConfig::default().send_depth(depth).send_entries(1)).await;
    let target = adapter.register(1, ALL).await.expect("registered");
    // Nothing of it leaves before all of it is there.
    let batch = pair.active.queue_pair.batch();
    let post = || batch.write((), &target.remote());
    let writes: Vec<_> = (0..depth).map(|_| post().expect("posted")).collect();
    if device::Device::under_test().is_soft() {
        let full = PostErrorKind::QueueFull { queue: QueueKind::Send, depth };
        assert_eq!(post().expect_err("full").kind, full);
    }
    batch.submit();
    for write in writes {
        assert_eq!(success(write).await.0, 0);
    }
}
