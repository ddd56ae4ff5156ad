//! Queue pairs: the effects and failures of sends, receives, reads and writes.
//!
//! Runs on: soft, sim, rxe, siw

mod flush;
mod soft;

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use common::deviation::*;
use common::device::{is_emulated, variants};
use common::raw::{bytes, failure, one_failure, room, success};
use common::*;
use proptest::prelude::*;
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::types::OpKind;
use tokio_rdma::{
    AcceptParams, Access, Adapter, Buffer, ConnectParams, Op, QueuePairConfig, RemoteRegion, Status,
};

/// Bytes without a short period, cheap to make.
fn pattern(length: usize) -> Vec<u8> {
    let unit: Vec<u8> = (0..65_521_u32).map(|at| (at ^ (at >> 7)) as u8).collect();
    unit.iter()
        .copied()
        .cycle()
        .take(length.min(unit.len()))
        .collect::<Vec<_>>()
        .repeat(length / unit.len() + 1)[..length]
        .to_vec()
}

fn joined(buffers: &[Buffer]) -> Vec<u8> {
    buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect()
}

fn split(adapter: &Adapter, data: &[u8], lengths: &[usize]) -> Vec<Buffer> {
    let mut at = 0;
    lengths
        .iter()
        .map(|length| {
            at += length;
            bytes(adapter, &data[at - length..at])
        })
        .collect()
}

#[tokio::test]
async fn messages_arrive_gathered_and_scattered() {
    for (adapter, variant) in variants() {
        let pair = connected(&adapter).await;
        let (sender, receiver) = (&pair.active.queue_pair, &pair.passive.queue_pair);
        let cases: [(&[usize], &[usize]); 8] = [
            (&[1], &[1]),
            (&[3, 5], &[8]),
            (&[8], &[1, 2, 5]),
            (&[0, 7, 0, 9], &[16, 0, 4, 4]),
            (&[70_000], &[1, 65_515, 4_484]),
            (&[1, 65_515, 1, 65_516], &[200_000]),
            (&[65_516], &[65_516]),
            (&[100, 300_000, 1], &[150_000, 150_101]),
        ];
        for (from, to) in cases {
            let length: usize = from.iter().sum();
            let data = pattern(length);
            // QP-02: scatter-gather lists at both ends.
            let places: Vec<Buffer> = to.iter().map(|length| room(&adapter, *length)).collect();
            let receive = receiver.receive(places).expect("posted");
            let send = sender.send(split(&adapter, &data, from)).expect("posted");
            let (sent, back) = success(send).await;
            let (received, places) = success(receive).await;
            assert_eq!((sent, received), (length, length), "{from:?} to {to:?}, {variant}");
            assert_eq!(places.iter().map(|part| part.len()).collect::<Vec<_>>(), to);
            assert!(joined(&places)[..length] == data[..], "{from:?} to {to:?}, {variant}");
            assert_eq!(back.iter().map(|part| part.len()).collect::<Vec<_>>(), from, "the list comes back");
        }
    }
}

#[tokio::test]
async fn array_of_buffers_is_a_scatter_gather_list() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    // The two lists divide the message at different places (QP-02).
    let receive = pair
        .passive
        .queue_pair
        .receive([room(&adapter, 2), room(&adapter, 3), room(&adapter, 1)])
        .expect("posted");
    let send =
        pair.active.queue_pair.send([bytes(&adapter, b"abc"), bytes(&adapter, b"def")]).expect("posted");
    success(send).await;
    let (length, [first, second, third]) = success(receive).await;
    assert_eq!((length, &first[..], &second[..], &third[..]), (6, &b"ab"[..], &b"cde"[..], &b"f"[..]));
}

#[tokio::test]
async fn requests_without_any_bytes_complete() {
    for (adapter, _variant) in variants() {
        if lacks_buffer_sinks(&adapter) {
            return;
        }
        let pair = connected(&adapter).await;
        let (here, there) = (&pair.active.queue_pair, &pair.passive.queue_pair);
        let region =
            adapter.register(8, Access::REMOTE_WRITE | Access::REMOTE_READ).await.expect("registered");
        // QP-02: an empty message takes a receive, whether that has room or not.
        for length in [0, 5] {
            let receive = there.receive(room(&adapter, length)).expect("posted");
            assert_eq!(success(here.send(room(&adapter, 0)).expect("posted")).await.0, 0);
            assert_eq!(success(receive).await.0, 0);
        }
        let receive = there.receive(Vec::<Buffer>::new()).expect("posted");
        assert_eq!(success(here.send(Vec::<Buffer>::new()).expect("posted")).await.0, 0);
        assert_eq!(success(receive).await.0, 0);
        // QP-03, QP-04: of an empty read or write not even the key is looked at.
        let nowhere = RemoteRegion::new(u64::MAX, tokio_rdma::types::RemoteKey(1), 0);
        for target in [region.remote(), nowhere] {
            assert_eq!(success(here.write(room(&adapter, 0), &target).expect("posted")).await.0, 0);
            assert_eq!(success(here.read(room(&adapter, 0), &target).expect("posted")).await.0, 0);
        }
    }
}

#[tokio::test]
async fn reads_and_writes_place_every_byte_correctly() {
    for (adapter, variant) in variants() {
        if lacks_buffer_sinks(&adapter) {
            return;
        }
        let pair = connected(&adapter).await;
        let length = 300_000;
        let region =
            adapter.register(length, Access::REMOTE_WRITE | Access::REMOTE_READ).await.expect("registered");
        let mut expected = vec![0; length];
        for (offset, parts) in [
            (0, vec![1]),
            (1, vec![2, 3]),
            (99, vec![65_520]),
            (70_001, vec![1, 65_520, 7]),
            (299_999, vec![1]),
        ] {
            let size: usize = parts.iter().sum();
            let data = pattern(size + offset)[offset..].to_vec();
            expected[offset..offset + size].copy_from_slice(&data);
            let place = region.remote_part(offset..offset + size).expect("within");
            // A write gathers its buffers into one contiguous range of the peer (QP-04).
            let write = pair.active.queue_pair.write(split(&adapter, &data, &parts), &place).expect("posted");
            assert_eq!(success(write).await.0, size);
            // QP-03: the read is behind the write, so it sees it.
            // ERR-06: into as many buffers as the adapter says.
            let sink: Vec<Buffer> = parts.iter().rev().map(|length| room(&adapter, *length)).collect();
            let sink = if sink.len() > adapter.info().max_read_entries {
                let error = pair.active.queue_pair.read(sink, &place).expect_err("too many");
                assert!(matches!(error.kind, PostErrorKind::TooManyEntries { .. }), "{error:?}");
                vec![room(&adapter, size)]
            } else {
                sink
            };
            let (read, sink) = success(pair.active.queue_pair.read(sink, &place).expect("posted")).await;
            assert_eq!(read, size);
            assert!(joined(&sink) == data, "offset {offset}, {variant}");
        }
        let mut found = vec![0; length];
        region.read(0, &mut found).expect("as long");
        assert!(found == expected, "what was written is where it belongs, and nothing else changed");
    }
}

#[tokio::test]
async fn a_request_completes_with_what_it_was() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let pair = connected(&adapter).await;
    let region = adapter.register(4, Access::REMOTE_WRITE | Access::REMOTE_READ).await.expect("registered");
    let (here, there) = (&pair.active.queue_pair, &pair.passive.queue_pair);
    let receive = there.receive(room(&adapter, 4)).expect("posted");
    let send = here.send(room(&adapter, 3)).expect("posted");
    let write = here.write(room(&adapter, 4), &region.remote()).expect("posted");
    let read = here.read(room(&adapter, 2), &region.remote()).expect("posted");
    for (op, kind, length) in [
        (receive, OpKind::Receive, 3),
        (send, OpKind::Send, 3),
        (write, OpKind::Write, 4),
        (read, OpKind::Read, 2),
    ] {
        let done = within(op).await.0.expect("it succeeds");
        assert_eq!((done.kind, done.bytes), (kind, length));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_transfers_arrive_whole() {
    for ((adapter, variant), length) in variants().into_iter().zip([64 << 20, 8 << 20]) {
        let length = if is_emulated() { length >> 4 } else { length };
        if lacks_buffer_sinks(&adapter) {
            return;
        }
        let pair = connected(&adapter).await;
        let data = pattern(length);
        let region =
            adapter.register(length, Access::REMOTE_WRITE | Access::REMOTE_READ).await.expect("registered");
        // A write of many frames is one request, which completes with its whole length (QP-04).
        let write = pair.active.queue_pair.write(bytes(&adapter, &data), &region.remote()).expect("posted");
        assert_eq!(success(write).await.0, length);
        // A read of many frames returns what was written (QP-03).
        let read = pair.active.queue_pair.read(room(&adapter, length), &region.remote()).expect("posted");
        let (moved, back) = success(read).await;
        assert!(moved == length && back[..] == data[..], "read back, {variant}");
        let mut found = vec![0; length];
        region.read(0, &mut found).expect("as long");
        assert!(found == data, "written, {variant}");
        // A message of many frames fills its receive (QP-02).
        let receive = pair.passive.queue_pair.receive(back).expect("posted");
        let mut rotated = data.clone();
        rotated.rotate_left(1);
        let send = pair.active.queue_pair.send(bytes(&adapter, &rotated)).expect("posted");
        assert_eq!(success(send).await.0, length);
        let (moved, back) = success(receive).await;
        assert!(moved == length && back[..] == rotated[..], "sent, {variant}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_share_a_queue_pair() {
    const TASKS: usize = 12;
    let rounds = often(40, 4);
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let pair = connected(&adapter).await;
    speak_first((&adapter, &pair.active.queue_pair), (&adapter, &pair.passive.queue_pair)).await;
    let region =
        adapter.register(TASKS * 4096, Access::REMOTE_WRITE | Access::REMOTE_READ).await.expect("registered");
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            // Both ends initiate, so that both directions are busy at once.
            let end = if task % 2 == 0 { &pair.active } else { &pair.passive };
            let (queue_pair, adapter) = (end.queue_pair.clone(), adapter.clone());
            let place = region.remote_part(task * 4096..(task + 1) * 4096).expect("within");
            tokio::spawn(async move {
                for round in 0..rounds {
                    let data = vec![(task * rounds + round) as u8; 4096];
                    let write = queue_pair.write(bytes(&adapter, &data), &place).expect("posted");
                    let read = queue_pair.read(room(&adapter, 4096), &place).expect("posted");
                    success(write).await;
                    assert!(success(read).await.1[..] == data[..], "task {task}, round {round}");
                }
            })
        })
        .collect();
    for task in tasks {
        within(task).await.expect("no task fails");
    }
}

#[tokio::test]
async fn data_moves_over_both_families_of_addresses() {
    for ip in both() {
        let adapter = adapter_at(ip);
        if lacks_buffer_sinks(&adapter) {
            return;
        }
        let (listener, address) = listening_at(&adapter, ip);
        let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
        let connector = adapter.connector();
        let connect = connector.connect_and_complete(&active, address, ConnectParams::default());
        let accept = listener.accept_next(&passive, AcceptParams::default());
        let (here, there) = within(async { tokio::join!(connect, accept) }).await;
        let (_here, _there) = (here.expect("connected"), there.expect("accepted"));
        let data = pattern(100_000);
        let region =
            adapter.register(100_000, Access::REMOTE_WRITE | Access::REMOTE_READ).await.expect("registered");
        // A send, a write and a read of 100,000 bytes arrive over IPv4 and IPv6 (QP-02, QP-03, QP-04).
        let receive = passive.receive(room(&adapter, 100_000)).expect("posted");
        success(active.send(bytes(&adapter, &data)).expect("posted")).await;
        assert!(success(receive).await.1[..] == data[..], "{ip}");
        success(active.write(bytes(&adapter, &data), &region.remote()).expect("posted")).await;
        let read = active.read(room(&adapter, 100_000), &region.remote()).expect("posted");
        assert!(success(read).await.1[..] == data[..], "{ip}");
    }
}

#[tokio::test]
async fn receive_posted_before_connect_gets_first_message() {
    let adapter = adapter();
    let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
    // QP-05: at both ends, before anything is connected.
    let at_active = active.receive(room(&adapter, 16)).expect("posted");
    let at_passive = [passive.receive(room(&adapter, 16)), passive.receive(room(&adapter, 16))];
    let pair =
        connected_queue_pairs(&adapter, active, passive, ConnectParams::default(), AcceptParams::default())
            .await;
    for message in [&b"first"[..], b"second"] {
        success(pair.active.queue_pair.send(bytes(&adapter, message)).expect("posted")).await;
    }
    success(pair.passive.queue_pair.send(bytes(&adapter, b"back")).expect("posted")).await;
    for (receive, message) in at_passive.into_iter().zip([&b"first"[..], b"second"]) {
        let (length, buffer) = success(receive.expect("posted")).await;
        assert_eq!(&buffer[..length], message);
    }
    let (length, buffer) = success(at_active).await;
    assert_eq!(&buffer[..length], b"back");
}

#[tokio::test]
async fn an_unconnected_queue_pair_takes_nothing_but_receives() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let (listener, address) = listening(&adapter);
    let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
    let region = adapter.register(4, Access::REMOTE_WRITE | Access::REMOTE_READ).await.expect("registered");
    let refuses = |when: &str| {
        let sent = active.send(bytes(&adapter, b"kept"));
        let written = active.write(bytes(&adapter, b"kept"), &region.remote());
        let read = active.read(bytes(&adapter, b"kept"), &region.remote());
        for outcome in [sent, written, read] {
            // QP-06: inline, nothing submitted, the buffer as it was.
            let error = outcome.expect_err(when);
            assert_eq!(error.kind, PostErrorKind::ConnectionInvalid, "{when}");
            assert_eq!(error.status(), Status::CONNECTION_INVALID, "{when}");
            assert_eq!(&error.buffer[..], b"kept", "{when}");
        }
    };
    refuses("nothing has happened");
    let connector = adapter.connector();
    let accept = async {
        let request = listener.request().await.expect("a request");
        request.accept(&passive, AcceptParams::default()).await.expect("accepted")
    };
    let connect = async {
        let reply = connector.connect(&active, address, ConnectParams::default()).await.expect("connected");
        refuses("half open");
        reply.complete().await.expect("completed")
    };
    let (accepted, connection) = within(async { tokio::join!(accept, connect) }).await;
    success(active.write(bytes(&adapter, b"data"), &region.remote()).expect("connected")).await;
    within(connection.disconnect()).await.expect("disconnected");
    refuses("disconnected");
    drop(accepted);
}

#[tokio::test]
async fn flush_of_unconnected_queue_pair_leaves_it_usable() {
    let adapter = adapter();
    let passive = queue_pair(&adapter);
    // QP-16: NdReceiveFlushQP.
    let receives = [passive.receive(room(&adapter, 4)), passive.receive(room(&adapter, 4))];
    passive.flush();
    for receive in receives {
        assert_eq!(failure(receive.expect("posted")).await, Status::CANCELED);
    }
    let receive = passive.receive(room(&adapter, 4)).expect("usable");
    let active = queue_pair(&adapter);
    let pair =
        connected_queue_pairs(&adapter, active, passive, ConnectParams::default(), AcceptParams::default())
            .await;
    success(pair.active.queue_pair.send(bytes(&adapter, b"used")).expect("posted")).await;
    assert_eq!(&success(receive).await.1[..], b"used");
}

/// Polls the requests of one queue until all are ready; the newest first, so that what is found ready must have
/// everything before it ready too.
async fn in_order(mut ops: Vec<Op<Buffer>>) {
    let mut left = ops.len();
    let mut done = vec![false; left];
    std::future::poll_fn(|cx| {
        let mut later = None;
        for (at, op) in ops.iter_mut().enumerate().rev().filter(|(at, _)| !done[*at]).collect::<Vec<_>>() {
            match Pin::new(op).poll(cx) {
                Poll::Ready((outcome, _)) => {
                    outcome.expect("it succeeds");
                    done[at] = true;
                    left -= 1;
                    later.get_or_insert(at);
                }
                Poll::Pending => assert_eq!(later, None, "a later request was ready before number {at}"),
            }
        }
        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: often(24, 4) as u32, failure_persistence: None, ..ProptestConfig::default() })]

    // Sends, writes and reads of random lengths complete in the order of their posts, with read limits from 1 to 3
    // (QP-17).
    #[test]
    fn requests_complete_in_posting_order(
        plan in proptest::collection::vec((0_u8..3, prop_oneof![0_usize..64, 60_000_usize..200_000]), 1..60),
        limit in 1_u32..4,
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let adapter = adapter();
            if lacks_buffer_sinks(&adapter) {
                return;
            }
            let limits = tokio_rdma::ReadLimits::new(limit, limit);
            let connect = ConnectParams::default().read_limits(limits);
            let pair = connected_with(&adapter, connect, AcceptParams::default().read_limits(limits)).await;
            let region = adapter
                .register(200_000, Access::REMOTE_WRITE | Access::REMOTE_READ)
                .await
                .expect("registered");
            let receives: Vec<_> = plan
                .iter()
                .filter(|(kind, _)| *kind == 0)
                .map(|(_, length)| pair.passive.queue_pair.receive(room(&adapter, *length)).expect("posted"))
                .collect();
            let queue_pair = &pair.active.queue_pair;
            let ops: Vec<_> = plan
                .iter()
                .map(|(kind, length)| {
                    let buffer = room(&adapter, *length);
                    match kind {
                        0 => queue_pair.send(buffer),
                        1 => queue_pair.write(buffer, &region.remote()),
                        _ => queue_pair.read(buffer, &region.remote()),
                    }
                    .expect("posted")
                })
                .collect();
            within(async { tokio::join!(in_order(ops), in_order(receives)) }).await;
        });
    }
}

#[tokio::test]
async fn a_read_beyond_the_region_breaks_the_connection() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let pair = connected(&adapter).await;
    let (here, there) = (&pair.active.queue_pair, &pair.passive.queue_pair);
    let region = adapter.register(100, Access::REMOTE_READ).await.expect("registered");
    let known = region.remote();
    let lie = RemoteRegion::new(known.address(), known.key(), 101);
    let receives = [here.receive(room(&adapter, 4)), there.receive(room(&adapter, 4))];
    let (bad, good) = (here.read(room(&adapter, 101), &lie), here.read(room(&adapter, 4), &known));
    let send = here.send(Vec::<Buffer>::new());
    // QP-18: NdOverRead.
    assert_blamed(
        &adapter,
        failure(bad.expect("posted")).await,
        Status::ACCESS_VIOLATION,
        "beyond the region",
    );
    assert_eq!(failure(good.expect("posted")).await, Status::CANCELED);
    assert_eq!(failure(send.expect("posted")).await, Status::CANCELED);
    let [ours, theirs] = receives.map(|receive| receive.expect("posted"));
    assert_eq!(failure(ours).await, Status::CANCELED);
    match within(theirs).await.0 {
        Err(error) => assert_eq!(error.status(), Status::CANCELED),
        // siw looks at the key of a read when it answers, and may have received what follows by then.
        Ok(received) => assert_eq!((Device::under_test(), received.bytes), (Device::Siw, 0)),
    }
    assert_broken(&adapter, &pair, Status::ACCESS_VIOLATION, (0, 1, 1), "read").await;
    for queue_pair in [here, there] {
        let error = queue_pair.send(room(&adapter, 1)).expect_err("the connection is dead");
        // A device's last word to its peer may be an orderly disconnect.
        let known =
            matches!(error.kind, PostErrorKind::ConnectionLost { .. } | PostErrorKind::ConnectionInvalid);
        assert!(known && error.status() == Status::CONNECTION_INVALID, "{error:?}");
    }
}

#[tokio::test]
async fn a_write_beyond_the_region_breaks_the_connection() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let pair = connected(&adapter).await;
    let (here, there) = (&pair.active.queue_pair, &pair.passive.queue_pair);
    let region = adapter.register(100, Access::REMOTE_WRITE | Access::REMOTE_READ).await.expect("registered");
    let known = region.remote();
    let lie = RemoteRegion::new(known.address(), known.key(), 101);
    let receives = [here.receive(room(&adapter, 4)), there.receive(room(&adapter, 4))];
    let ops = vec![
        here.write(bytes(&adapter, &[9; 101]), &lie).expect("posted"),
        here.read(room(&adapter, 4), &known).expect("posted"),
        here.write(bytes(&adapter, &[9; 4]), &known).expect("posted"),
        here.read(room(&adapter, 4), &known).expect("posted"),
    ];
    // QP-18, ERR-06: NdOverWrite. A write may complete early where the adapter says so, then what is oldest has the
    // status.
    assert!(adapter.info().early_completion || !Device::under_test().is_soft());
    assert_blamed(&adapter, one_failure(ops).await, Status::ACCESS_VIOLATION, "beyond the region");
    for receive in receives {
        assert_eq!(failure(receive.expect("posted")).await, Status::CANCELED);
    }
    assert_broken(&adapter, &pair, Status::ACCESS_VIOLATION, (1, 1, 1), "write").await;
    let mut found = [1; 100];
    region.read(0, &mut found).expect("as long");
    assert_eq!(found, [0; 100], "not a byte of it is placed, nor of what came behind");
}

#[tokio::test]
async fn message_longer_than_its_receive_breaks_the_connection() {
    for (length, place, segments) in [(9, vec![8], "one"), (200_000, vec![60_000, 60_000], "several")] {
        let adapter = adapter();
        let pair = connected(&adapter).await;
        let (here, there) = (&pair.active.queue_pair, &pair.passive.queue_pair);
        let places: Vec<Buffer> = place.iter().map(|length| room(&adapter, *length)).collect();
        let short = there.receive(places).expect("posted");
        let next = there.receive(room(&adapter, 200_000)).expect("posted");
        let send = here.send(bytes(&adapter, &pattern(length))).expect("posted");
        // QP-19, ERR-06: ndmval. The sender has its success where it has it early, as on iWARP; both lose the
        // connection.
        let info = adapter.info();
        if info.early_completion && info.per_request_errors {
            assert_eq!(success(send).await.0, length, "{segments}");
        } else if info.early_completion {
            // Whichever is first, the completion or the peer's Terminate.
            let _ = within(send).await;
        } else {
            assert_eq!(failure(send).await, Status::REMOTE_ERROR, "{segments}");
        }
        assert_eq!(failure(short).await, Status::BUFFER_OVERFLOW, "{segments}");
        assert_eq!(failure(next).await, Status::CANCELED, "{segments}");
        assert_broken(&adapter, &pair, Status::REMOTE_ERROR, (1, 2, 5), segments).await;
    }
}

#[tokio::test]
async fn message_without_a_receive_breaks_the_connection() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let pair = connected_impatiently(&adapter).await;
    let region = adapter.register(4, Access::REMOTE_READ).await.expect("registered");
    let here = &pair.active.queue_pair;
    let ops = vec![
        here.send(bytes(&adapter, b"unasked")).expect("posted"),
        here.read(room(&adapter, 4), &region.remote()).expect("posted"),
        here.read(room(&adapter, 4), &region.remote()).expect("posted"),
    ];
    // QP-20: NdSendNoReceive, which on iWARP is a Terminate; elsewhere the receiver says that it is not ready, as often
    // as the sender may try.
    let expected = if adapter.info().early_completion { Status::REMOTE_ERROR } else { Status::IO_TIMEOUT };
    assert_blamed(&adapter, one_failure(ops).await, expected, "no receive");
    assert_broken(&adapter, &pair, expected, (1, 2, 2), "no receive").await;
}

#[derive(Clone, Copy, Debug)]
enum Wrong {
    Key,
    End,
    Offset,
    Right,
    Domain,
    Deregistered,
}

#[tokio::test]
async fn remote_access_needs_key_range_and_right() {
    if lacks_buffer_sinks(&adapter()) {
        return;
    }
    // QP-21: NdInvalidRead, NdInvalidWrite, NdWriteViolation; what is wrong, with the Terminates for write and read.
    let cases = [
        (Wrong::Key, (1, 1, 0), (0, 1, 0)),
        (Wrong::End, (1, 1, 1), (0, 1, 1)),
        (Wrong::Offset, (1, 1, 3), (0, 1, 4)),
        (Wrong::Right, (0, 1, 2), (0, 1, 2)),
        (Wrong::Domain, (1, 1, 0), (0, 1, 0)),
        (Wrong::Deregistered, (1, 1, 0), (0, 1, 0)),
    ];
    for direction in [OpKind::Write, OpKind::Read] {
        for (wrong, write, read) in cases {
            let (adapter, other) = (adapter(), adapter());
            let pair = connected(&adapter).await;
            let right = match (wrong, direction) {
                // The right of the other direction.
                (Wrong::Right, OpKind::Write) => Access::REMOTE_READ | Access::LOCAL_WRITE,
                (Wrong::Right, _) => Access::REMOTE_WRITE,
                _ => Access::REMOTE_READ | Access::REMOTE_WRITE,
            };
            let home = if matches!(wrong, Wrong::Domain) { &other } else { &adapter };
            let region = home.register(64, right).await.expect("registered");
            region.write(0, &[7; 64]).expect("as long");
            let good = region.remote();
            let (address, key) = (good.address(), good.key());
            let target = match wrong {
                Wrong::Key => RemoteRegion::new(address, tokio_rdma::types::RemoteKey(!key.0), 64),
                Wrong::End => RemoteRegion::new(address + 1, key, 64),
                Wrong::Offset => RemoteRegion::new(address.wrapping_sub(1), key, 64),
                _ => good,
            };
            if matches!(wrong, Wrong::Deregistered) {
                region.deregister().await.expect("deregistered");
            }
            let here = &pair.active.queue_pair;
            let probe = adapter.register(1, Access::REMOTE_READ).await.expect("registered");
            let buffer = bytes(&adapter, &[1; 64]);
            let bad = match direction {
                OpKind::Write => here.write(buffer, &target),
                _ => here.read(buffer, &target),
            };
            let ops =
                vec![bad.expect("posted"), here.read(room(&adapter, 1), &probe.remote()).expect("posted")];
            let case = format!("{direction:?}, wrong {wrong:?}");
            let unchecked = direction == OpKind::Read && matches!(wrong, Wrong::Right);
            if unchecked && !adapter.info().checks_remote_read {
                // ERR-06: the driver does not look.
                for op in ops {
                    success(op).await;
                }
                continue;
            }
            assert_blamed(&adapter, one_failure(ops).await, Status::ACCESS_VIOLATION, &case);
            let why = if direction == OpKind::Write { write } else { read };
            assert_broken(&adapter, &pair, Status::ACCESS_VIOLATION, why, &case).await;
            let mut found = [0; 64];
            region.read(0, &mut found).expect("as long");
            assert_eq!(found, [7; 64], "{case}");
        }
    }
}

#[tokio::test]
async fn local_memory_without_the_right_is_refused_inline() {
    let (adapter, other) = (adapter(), adapter());
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let pair = connected(&adapter).await;
    let here = &pair.active.queue_pair;
    let target = adapter.register(8, Access::REMOTE_WRITE | Access::REMOTE_READ).await.expect("registered");
    let remote = target.remote();
    // QP-21: memory of another protection domain, a buffer longer than its target.
    let foreign = || bytes(&other, b"kept");
    for outcome in [
        here.send(foreign()),
        here.receive(foreign()),
        here.write(foreign(), &remote),
        here.read(foreign(), &remote),
    ] {
        let error = outcome.expect_err("another adapter's memory");
        assert_eq!((error.kind, &error.buffer[..]), (PostErrorKind::ForeignMemory, &b"kept"[..]));
    }
    for outcome in [here.send(foreign().part(1..3)), here.receive(foreign().part(1..3))] {
        let error = outcome.expect_err("a part of another adapter's memory");
        assert_eq!((error.kind, &error.buffer[..]), (PostErrorKind::ForeignMemory, &b"ep"[..]));
    }
    for outcome in [here.write(room(&adapter, 9), &remote), here.read(room(&adapter, 9), &remote)] {
        let error = outcome.expect_err("too long");
        assert_eq!(error.status(), Status::ACCESS_VIOLATION);
        // The text contains both lengths (ERR-09).
        let text = "the buffer of 9 bytes is longer than the peer's memory of 8 bytes";
        assert_eq!(error.to_string(), text);
    }
    // No bytes fit into no memory.
    let nothing = RemoteRegion::new(remote.address(), remote.key(), 0);
    success(here.write((), &nothing).expect("posted")).await;
    let region = target.slice(0..4).expect("within");
    target.deregister().await.expect("deregistered");
    assert_eq!(here.send(region).expect_err("deregistered").kind, PostErrorKind::ForeignMemory);
    // The failed posts left the connection as it was.
    let receive = pair.passive.queue_pair.receive(room(&adapter, 4)).expect("posted");
    success(here.send(bytes(&adapter, b"fine")).expect("posted")).await;
    assert_eq!(&success(receive).await.1[..], b"fine");
}

#[tokio::test]
async fn passive_side_may_send_first() {
    for (adapter, _variant) in variants() {
        let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
        let receive = active.receive(room(&adapter, 8)).expect("posted");
        let pair = connected_queue_pairs(
            &adapter,
            active,
            passive,
            ConnectParams::default(),
            AcceptParams::default(),
        )
        .await;
        // QP-24, ERR-06: if the adapter says that it may.
        speak_first((&adapter, &pair.active.queue_pair), (&adapter, &pair.passive.queue_pair)).await;
        let send = pair.passive.queue_pair.send(bytes(&adapter, b"go first")).expect("posted");
        assert_eq!(&success(receive).await.1[..], b"go first");
        success(send).await;
    }
}

#[tokio::test]
async fn receive_depth_is_enforced_and_full_queue_recovers() {
    let adapter = adapter();
    let small = QueuePairConfig::default().send_depth(2).receive_depth(2);
    let queue_pair = adapter.queue_pair(small).expect("a queue pair");
    let receives = [queue_pair.receive(room(&adapter, 1)), queue_pair.receive(room(&adapter, 1))];
    let error = queue_pair.receive(bytes(&adapter, b"kept")).expect_err("full");
    assert_eq!((error.status(), &error.buffer[..]), (Status::NO_MORE_ENTRIES, &b"kept"[..]));
    queue_pair.flush();
    for receive in receives {
        assert_eq!(failure(receive.expect("posted")).await, Status::CANCELED);
    }
    queue_pair.receive(room(&adapter, 1)).map(drop).expect("room again");
}
