//! Queue pairs of the soft provider with a raw socket as peer.

use std::task::Poll;
use std::time::Duration;

use common::raw::{self, Raw, Start, bytes, failure, one_failure, room, success};
use common::*;
use tokio_rdma::error::Reason;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{
    AcceptParams, Access, ConnectParams, DisconnectReason, QueuePairConfig, RemoteRegion,
    SharedReceiveConfig, Status, WorkOptions,
};

/// The payload of the longest segment that needs no padding.
const FULL: usize = 65_520;

#[tokio::test]
async fn flush_of_connected_queue_pair_cancels_everything() {
    let adapter = adapter();
    // A peer that answers no read, so that there is something outstanding in both queues.
    let (end, mut peer, _) = raw::raw_accepts(&adapter, Start::enhanced(8, 8)).await;
    let somewhere = RemoteRegion::new(0, tokio_rdma::types::RemoteKey(7), 4);
    let receives = [end.queue_pair.receive(room(&adapter, 4)), end.queue_pair.receive(room(&adapter, 4))];
    let reads = [
        end.queue_pair.read(room(&adapter, 4), &somewhere),
        end.queue_pair.read(room(&adapter, 4), &somewhere),
    ];
    assert_eq!(peer.message().await.map(|frame| frame.opcode()), Some(raw::READ_REQUEST));
    // The flush completes both queues, also a read that the peer has received (QP-16).
    end.queue_pair.flush();
    for op in receives.into_iter().chain(reads) {
        assert_eq!(failure(op.expect("posted")).await, Status::CANCELED);
    }
    // As documented, the connection does not survive it; the peer notices.
    let reason = within(end.connection.disconnected()).await;
    assert!(matches!(reason, DisconnectReason::Lost { status: Status::CANCELED, .. }), "{reason:?}");
    while peer.frame().await.is_some() {}
}

#[tokio::test]
async fn send_does_not_complete_before_an_earlier_read() {
    let adapter = adapter();
    let (end, mut peer, _) = raw::raw_accepts(&adapter, Start::enhanced(8, 8)).await;
    let somewhere = RemoteRegion::new(0, tokio_rdma::types::RemoteKey(7), 4);
    let read = end.queue_pair.read(room(&adapter, 4), &somewhere).expect("posted");
    let mut send = end.queue_pair.send(bytes(&adapter, b"behind")).expect("posted");
    let request = peer.message().await.expect("the read");
    assert_eq!(peer.message().await.expect("the send").payload(), b"behind");
    // The send is on the wire, and completes only after the read (QP-17).
    assert!(matches!(futures::poll!(&mut send), Poll::Pending));
    peer.post(&request.answer(b"data")).await;
    assert_eq!(&success(read).await.1[..], b"data");
    success(send).await;
}

#[tokio::test]
async fn passive_sends_wait_for_the_first_frame() {
    let adapter = adapter();
    for start in [Start::enhanced(4, 4), Start::plain(1), Start::plain(0)] {
        let (end, mut peer, _) = raw::raw_connects(&adapter, start.clone(), AcceptParams::default()).await;
        let receive = end.queue_pair.receive(room(&adapter, 4)).expect("posted");
        let mut send = end.queue_pair.send(bytes(&adapter, b"patience")).expect("queued");
        // QP-24: a responder sends no FPDU before the initiator's first (RFC 5044 section 7.1.3).
        assert_eq!(peer.message_now().await, None, "{start:?}");
        assert!(matches!(futures::poll!(&mut send), Poll::Pending), "{start:?}");
        peer.post(&raw::send(1, b"hi")).await;
        success(receive).await;
        assert_eq!(peer.message().await.expect("the send").payload(), b"patience", "{start:?}");
        success(send).await;
    }
}

#[tokio::test]
async fn peer_loss_within_a_message_fails_outstanding_requests() {
    let adapter = adapter();
    let (end, mut peer, _): (_, Raw, _) = raw::raw_accepts(&adapter, Start::enhanced(8, 8)).await;
    let somewhere = RemoteRegion::new(0, tokio_rdma::types::RemoteKey(7), 4);
    let receive = end.queue_pair.receive(room(&adapter, 64)).expect("posted");
    let reads = vec![
        end.queue_pair.read(room(&adapter, 4), &somewhere).expect("posted"),
        end.queue_pair.read(room(&adapter, 4), &somewhere).expect("posted"),
    ];
    let half = raw::fpdu(&raw::send(1, &[1; 64]), false);
    peer.say(&half[..40]).await;
    drop(peer);
    // QP-18: the oldest says what happened, the others are cancelled.
    assert_eq!(one_failure(reads).await, Status::REMOTE_ERROR);
    assert_eq!(failure(receive).await, Status::CANCELED);
    let reason = within(end.connection.disconnected()).await;
    assert!(
        matches!(reason, DisconnectReason::Lost { reason: Reason::Local(_) | Reason::Errno(_), .. }),
        "{reason:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spinning_changes_nothing_but_the_time() {
    // It sleeps after one turn, now and then, and never.
    for spin in [Duration::from_nanos(1), Duration::from_micros(100), Duration::from_secs(3600)] {
        let adapter = adapter_with(SoftConfig::default().spin(spin));
        let pair = connected(&adapter).await;
        let (here, there) = (&pair.active.queue_pair, &pair.passive.queue_pair);
        for length in 0..200 {
            let receive = there.receive(room(&adapter, 200)).expect("posted");
            success(here.send(bytes(&adapter, &vec![7; length])).expect("posted")).await;
            assert_eq!(success(receive).await.0, length);
        }
        within(pair.active.connection.disconnect()).await.expect("disconnected");
        within(pair.passive.connection.disconnected()).await;
    }
}

#[tokio::test]
async fn read_response_in_any_segment_sizes_arrives_whole() {
    const MARGIN: usize = 16;
    let adapter = adapter();
    // As many as fit, and segments of unusual lengths behind them: shorter, longer, padded.
    let ways: [&[usize]; 5] = [
        &[FULL; 18],
        &[FULL, FULL, 20_000, FULL, 4],
        &[16_384, 16_384, FULL, 16_384, 1],
        &[20_001, 20_001, 20_001],
        &[FULL, 1, FULL, FULL, 3],
    ];
    for sizes in ways {
        for at_once in [usize::MAX, FULL, 1000] {
            let (end, mut peer, _) = raw::raw_accepts(&adapter, Start::enhanced(8, 8)).await;
            let length: usize = sizes.iter().sum();
            let content: Vec<u8> = (0..length).map(|at| (at * 7 / 3) as u8).collect();
            let somewhere = RemoteRegion::new(0, tokio_rdma::types::RemoteKey(7), length as u32);
            let receive = end.queue_pair.receive(room(&adapter, 8)).expect("posted");
            // The peer announces no segments, so each is placed by its own header.
            let mut sinks = Vec::new();
            for access in [Access::LOCAL_WRITE, Access::LOCAL_WRITE | Access::REMOTE_READ] {
                let region = adapter.register(length + 2 * MARGIN, access).await.expect("registered");
                region.write(0, &vec![7; region.len()]).expect("as long");
                let sink = region.slice(MARGIN..MARGIN + length).expect("a part");
                sinks.push((region, end.queue_pair.read(sink, &somewhere).expect("posted")));
            }
            let read = end.queue_pair.read(room(&adapter, length), &somewhere).expect("posted");
            let mut stream = Vec::new();
            for number in 0..3 {
                let request = peer.message().await.expect("a read");
                let mut from = 0;
                for &size in sizes {
                    let (last, to) = (from + size == length, request.long(22) + from as u64);
                    let part = &content[from..from + size];
                    let segment = raw::tagged(raw::READ_RESPONSE, last, request.word(18), to, part);
                    stream.extend(raw::fpdu(&segment, false));
                    from += size;
                }
                if number == 0 {
                    stream.extend(raw::fpdu(&raw::send(1, b"between"), false));
                }
            }
            let say = async {
                for piece in stream.chunks(at_once.min(stream.len())) {
                    peer.say(piece).await;
                }
            };
            // QP-03: every byte is in its place, and what comes behind is still understood.
            let all = async {
                assert_eq!(&success(receive).await.1[..7], b"between", "{sizes:?} by {at_once}");
                for (region, read) in sinks {
                    success(read).await;
                    let mut found = vec![0; region.len()];
                    region.read(0, &mut found).expect("as long");
                    let (before, rest) = found.split_at(MARGIN);
                    let (sink, behind) = rest.split_at(length);
                    assert!(sink == content, "{sizes:?} by {at_once}");
                    assert_eq!(
                        (before, behind),
                        (&[7; MARGIN][..], &[7; MARGIN][..]),
                        "{sizes:?} by {at_once}"
                    );
                }
                assert!(success(read).await.1[..] == content[..], "{sizes:?} by {at_once}");
            };
            within(async { tokio::join!(say, all) }).await;
        }
    }
}

// Whether peers may read the sink or not, from the start or by a window that is bound during the read, a message in place
// of the next segment writes nothing there.
#[tokio::test]
async fn interleaved_message_is_not_left_in_read_sink() {
    const HALF: usize = FULL / 2;
    let adapter = adapter();
    let cases = [
        (Access::LOCAL_WRITE | Access::REMOTE_READ, false),
        (Access::LOCAL_WRITE, true),
        (Access::LOCAL_WRITE, false),
    ];
    for (access, binds) in cases {
        let (end, mut peer, _) = raw::raw_accepts(&adapter, Start::enhanced(8, 8)).await;
        let region = adapter.register(3 * FULL, access).await.expect("registered");
        region.write(0, &vec![7; 3 * FULL]).expect("as long");
        let somewhere = RemoteRegion::new(0, tokio_rdma::types::RemoteKey(7), 3 * FULL as u32);
        let receive = end.queue_pair.receive(room(&adapter, FULL)).expect("posted");
        let (window, whole) =
            (adapter.memory_window().expect("a window"), region.slice(0..3 * FULL).expect("all of it"));
        let mut read = end.queue_pair.read(whole.clone(), &somewhere).expect("posted");
        let request = peer.message().await.expect("the read");
        let segment = |number: usize| {
            let (last, to) = (number == 2, request.long(22) + (number * FULL) as u64);
            raw::fpdu(&raw::tagged(raw::READ_RESPONSE, last, request.word(18), to, &[1; FULL]), false)
        };
        let at = |place: usize| {
            let mut byte = [0];
            region.read(place, &mut byte).expect("in the region");
            byte[0]
        };
        let second = segment(1);
        let (half, rest) = second.split_at(HALF);
        peer.say(&segment(0)).await;
        peer.say(half).await;
        within(async {
            while at(FULL + HALF - 100) != 1 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let bind = binds.then(|| {
            let bind = end.queue_pair.bind(&window, &whole, Access::REMOTE_READ, WorkOptions::default());
            bind.expect("posted")
        });
        // As long as the segment that is missing: of a message whose last part is still to come.
        peer.say(rest).await;
        peer.say(&raw::fpdu(&raw::untagged(raw::SEND, false, 0, 1, 0, &[9; FULL - 64]), false)).await;
        peer.say(&raw::fpdu(&raw::untagged(raw::SEND, true, 0, 1, FULL as u32 - 64, &[9; 64]), false)).await;
        success(receive).await;
        let mut third = vec![0; FULL];
        region.read(2 * FULL, &mut third).expect("in the region");
        assert!(third.iter().all(|byte| *byte == 7), "{access}, bound: {binds}");
        assert!(futures::poll!(&mut read).is_pending());
        peer.say(&segment(2)).await;
        success(read).await;
        assert_eq!((at(0), at(3 * FULL - 1)), (1, 1));
        if let Some(bind) = bind {
            success(bind).await;
        }
    }
}

#[tokio::test]
async fn a_starved_connection_notices_a_broken_socket() {
    let config = SoftConfig::default().path_timeout(None).disconnect_timeout(Duration::from_millis(50));
    let adapter = adapter_with(config);
    let shared = adapter.shared_receive_queue(SharedReceiveConfig::default()).expect("a shared queue");
    let config = QueuePairConfig::default().shared_receives(&shared);
    let passive = adapter.queue_pair(config).expect("a queue pair");
    let params = (ConnectParams::default(), AcceptParams::default());
    let Pair { active, passive } =
        connected_queue_pairs(&adapter, queue_pair(&adapter), passive, params.0, params.1).await;
    success(active.queue_pair.send(bytes(&adapter, b"nobody takes it")).expect("posted")).await;
    drop(active);
    // The message that waits stops the reading, so only a write can find the end (SRQ-02).
    let over = passive.connection.disconnected();
    let writing = async {
        while let Ok(send) = passive.queue_pair.send(bytes(&adapter, b"?")) {
            let _ = send.await;
            tokio::task::yield_now().await;
        }
    };
    let (reason, ()) = within(async { tokio::join!(over, writing) }).await;
    assert!(matches!(reason, DisconnectReason::Peer | DisconnectReason::Lost { .. }), "{reason:?}");
}
