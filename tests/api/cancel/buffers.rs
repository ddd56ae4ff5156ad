//! The owner of a buffer after a failed post, after the future was dropped, and after a flush.
//!
//! Runs on: soft, sim, rxe, siw

use common::deviation::lacks_buffer_sinks;
use common::device::is_emulated;
use common::life::*;
use common::*;

use std::task::Waker;

use futures::future::join_all;
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::mr::RemoteRegion;
use tokio_rdma::{Access, Status};

// Buffers of requests that fail inline come back unchanged, and nothing of them reaches the peer (CAN-08).
#[tokio::test]
async fn inline_error_means_nothing_was_submitted() {
    let adapter = adapter();
    let stranger = common::adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let unposted = queue_pair(&adapter);
    let sink = within(adapter.register(8, Access::REMOTE_WRITE)).await.expect("registered");
    let receive = passive.queue_pair.receive(adapter.buffer(8).expect("memory")).expect("posted");
    let filled = |adapter: &tokio_rdma::Adapter| adapter.buffer_from(&[0xee; 16]).expect("memory");
    let refused = [
        (unposted.send(filled(&adapter)), PostErrorKind::ConnectionInvalid),
        (
            unposted.write(filled(&adapter), &sink.remote()),
            PostErrorKind::BeyondRemote { length: 16, remote: 8 },
        ),
        (
            active.queue_pair.write(filled(&adapter), &sink.remote()),
            PostErrorKind::BeyondRemote { length: 16, remote: 8 },
        ),
        (active.queue_pair.send(filled(&stranger)), PostErrorKind::ForeignMemory),
        (active.queue_pair.receive(filled(&stranger)), PostErrorKind::ForeignMemory),
    ];
    for (outcome, kind) in refused {
        let error = outcome.expect_err("refused");
        assert_eq!((error.kind, &error.buffer[..]), (kind, &[0xee; 16][..]), "given back untouched");
    }
    let many: Vec<_> = (0..5).map(|_| filled(&adapter)).collect();
    let error = active.queue_pair.send(many).expect_err("five entries");
    assert_eq!((error.status(), error.buffer.len()), (Status::DATA_OVERRUN, 5));
    // The connection knows nothing of all this: the first thing that arrives is what is sent now.
    let send = active.queue_pair.send(adapter.buffer_from(b"first").expect("memory")).expect("posted");
    within(send).await.0.expect("sent");
    let (outcome, buffer) = within(receive).await;
    assert_eq!(&buffer[..outcome.expect("received").bytes], b"first");
    let mut bytes = [1; 8];
    sink.read(0, &mut bytes).expect("eight");
    assert_eq!(bytes, [0; 8]);
}

// A receive keeps its place in the queue when its future is dropped (CAN-09).
#[tokio::test]
async fn dropped_receive_still_takes_its_message() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    for _ in 0..often(200, 10) {
        let post = || passive.queue_pair.receive(adapter.buffer(4096).expect("memory")).expect("posted");
        let mut forgotten = post();
        // Half of the futures have been polled before their drop.
        let _ = poll_with(&mut forgotten, Waker::noop());
        drop(forgotten);
        drop(post());
        let kept = post();
        let sends: Vec<_> = (1..=3)
            .map(|i| {
                active.queue_pair.send(adapter.buffer_from(&[i; 4096]).expect("memory")).expect("posted")
            })
            .collect();
        let (outcome, buffer) = within(kept).await;
        assert_eq!(outcome.expect("received").bytes, 4096);
        assert!(buffer.iter().all(|byte| *byte == 3), "the third message, for the third receive");
        for (outcome, buffer) in within(join_all(sends)).await {
            outcome.expect("sent");
            assert_eq!(buffer[0], buffer[4095]);
        }
    }
}

// The buffer lives until the last byte is sent, also while the heap hands out memory of the same size (CAN-09).
#[tokio::test]
async fn a_send_whose_future_was_dropped_arrives_whole() {
    let length = if is_emulated() { 1 << 20 } else { 6 << 20 };
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let bytes: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
    for _ in 0..3 {
        let receive = passive.queue_pair.receive(adapter.buffer(length).expect("memory")).expect("posted");
        drop(active.queue_pair.send(adapter.buffer_from(&bytes).expect("memory")).expect("posted"));
        // The heap may have the memory back now, if anybody was mistaken about who uses it.
        let noise: Vec<_> = (0..4).map(|_| vec![0xff_u8; length]).collect();
        let (outcome, buffer) = within(receive).await;
        assert_eq!(outcome.expect("received").bytes, length);
        assert!(buffer[..] == bytes[..]);
        drop(noise);
    }
}

// The answer to the dropped read does not fill the next one (CAN-09).
#[tokio::test]
async fn dropped_read_leaves_the_next_read_intact() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let Pair { active, passive: _passive } = connected(&adapter).await;
    let source = within(adapter.register(8192, Access::REMOTE_READ)).await.expect("registered");
    source.write(0, &[1; 4096]).expect("it fits");
    source.write(4096, &[2; 4096]).expect("it fits");
    let half = |start: usize| source.remote_part(start..start + 4096).expect("within");
    for _ in 0..often(200, 10) {
        let read = |remote: &RemoteRegion| {
            active.queue_pair.read(adapter.buffer(4096).expect("memory"), remote).expect("posted")
        };
        drop(read(&half(0)));
        let kept = read(&half(4096));
        let (outcome, buffer) = within(kept).await;
        assert_eq!(outcome.expect("read").bytes, 4096);
        assert!(buffer.iter().all(|byte| *byte == 2));
    }
}

// CAN-09: see `cancel::soft` for reads that are cut short.
#[tokio::test]
async fn receives_come_back_intact_when_they_are_flushed() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let queue_pair = &pair.active.queue_pair;
    let content = |i: usize| vec![i as u8; 1 + i * 100];
    let region = within(adapter.register(64, Access::LOCAL_WRITE)).await.expect("registered");
    region.write(0, &[5; 64]).expect("it fits");
    let receives: Vec<_> = (0..10)
        .map(|i| queue_pair.receive(adapter.buffer_from(&content(i)).expect("memory")).expect("posted"))
        .collect();
    let scattered = [0, 1, 2].map(|i| adapter.buffer_from(&content(i)).expect("memory"));
    let scattered = queue_pair.receive(scattered).expect("posted");
    let slice = queue_pair.receive(region.slice(8..16).expect("within")).expect("posted");
    // The future of one receive is dropped.
    drop(queue_pair.receive(adapter.buffer(9).expect("memory")).expect("posted"));
    queue_pair.flush();
    for (i, receive) in receives.into_iter().enumerate() {
        let (outcome, buffer) = within(receive).await;
        assert_eq!(outcome.expect_err("flushed").status(), Status::CANCELED);
        assert_eq!(buffer[..], content(i)[..]);
    }
    let (_, buffers) = within(scattered).await;
    assert!(buffers.iter().enumerate().all(|(i, buffer)| buffer[..] == content(i)[..]));
    assert_eq!(within(slice).await.1.range(), 8..16);
}
