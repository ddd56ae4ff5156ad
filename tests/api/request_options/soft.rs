//! The options of requests on the wire, and messages of more than 2 GiB: soft only.

use common::device::variants;
use common::raw::{self, Start, bytes, failure, room, success};
use common::*;
use futures::FutureExt;
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{Access, MemoryWindow, RemoteRegion, Status, WorkOptions};

/// Somewhere at the peer's, which is no peer of ours.
const THERE: RemoteRegion = RemoteRegion::new(0x1000, RemoteKey(7), 64);

#[tokio::test]
async fn a_fence_waits_for_reads_and_atomics() {
    let adapter = adapter();
    let (end, mut peer, _) = raw::raw_accepts(&adapter, Start::peer_to_peer(8, 8)).await;
    let queue_pair = &end.queue_pair;
    let read = queue_pair.read(room(&adapter, 4), &THERE).expect("posted");
    let atomic = queue_pair.fetch_add(room(&adapter, 8), &THERE, 5, WorkOptions::default()).expect("posted");
    let ahead = queue_pair.send(bytes(&adapter, b"ahead")).expect("posted");
    let fenced = queue_pair.send_with(bytes(&adapter, b"fenced"), WorkOptions::default().fence());
    let behind = queue_pair.send(bytes(&adapter, b"behind")).expect("posted");
    let asked = peer.message().await.expect("the read");
    assert_eq!(asked.opcode(), raw::READ_REQUEST);
    let counted = peer.message().await.expect("the atomic");
    // QP-23: queue 1, and the number behind that of the read.
    assert_eq!((counted.opcode(), counted.word(6), counted.word(10), counted.word(14)), (10, 1, 2, 0));
    let request = counted.payload();
    assert_eq!((request.len(), &request[..4]), (52, &[0, 0, 0, 0][..]), "fetch-and-add");
    assert_eq!(&request[8..28], &[0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
    assert_eq!(peer.message().await.expect("what has no fence").payload(), b"ahead");
    // The fenced send and the one behind it wait for the answers to the read and the atomic (QP-10).
    assert_eq!(peer.message_now().await, None);
    peer.post(&asked.answer(b"data")).await;
    success(read).await;
    assert_eq!(peer.message_now().await, None, "the atomic is not answered");
    let answer = [&request[4..8], &9_u64.to_be_bytes()].concat();
    peer.post(&raw::untagged(11, true, 3, 1, 0, &answer)).await;
    assert_eq!(success(atomic).await.1[..], 9_u64.to_ne_bytes());
    for text in [&b"fenced"[..], b"behind"] {
        assert_eq!(peer.message().await.expect("its turn has come").payload(), text);
    }
    for op in [ahead, fenced.expect("posted"), behind] {
        success(op).await;
    }
}

#[tokio::test]
async fn sends_say_what_they_invalidate_and_solicit() {
    let adapter = adapter();
    let (end, mut peer, _) = raw::raw_accepts(&adapter, Start::peer_to_peer(8, 8)).await;
    let invalidates = || WorkOptions::default().invalidate(RemoteKey(0x0102_0304));
    // RFC 5040 has an opcode for each of the four kinds of a Send (QP-11, QP-13).
    for (options, opcode, key) in [
        (WorkOptions::default(), 3, 0),
        (invalidates(), 4, 0x0102_0304),
        (WorkOptions::default().solicited(), 5, 0),
        (invalidates().solicited(), 6, 0x0102_0304),
    ] {
        success(end.queue_pair.send_with(bytes(&adapter, b"x"), options).expect("posted")).await;
        let message = peer.message().await.expect("a message");
        assert_eq!((message.opcode(), message.word(2)), (opcode, key));
    }
    // QP-23: a Write, and behind it Immediate Data, numbered as the Sends are.
    for (solicited, opcode) in [(false, 8), (true, 9)] {
        let options = WorkOptions::default().immediate(0x0a0b_0c0d);
        let options = if solicited { options.solicited() } else { options };
        success(end.queue_pair.write_with(bytes(&adapter, b"data"), &THERE, options).expect("posted")).await;
        let write = peer.message().await.expect("the write");
        assert_eq!((write.opcode(), write.payload()), (raw::WRITE, &b"data"[..]));
        let value = peer.message().await.expect("the value");
        let number = 5 + u32::from(solicited);
        assert_eq!((value.opcode(), value.word(6), value.word(10), value.word(14)), (opcode, 0, number, 0));
        assert_eq!(value.payload(), [0x0a, 0x0b, 0x0c, 0x0d, 0, 0, 0, 0]);
    }
}

#[tokio::test]
async fn batch_sends_nothing_before_its_doorbell() {
    let adapter = adapter();
    let (end, mut peer, _) = raw::raw_accepts(&adapter, Start::peer_to_peer(8, 8)).await;
    let batch = end.queue_pair.batch();
    let ops: Vec<_> = (0..16).map(|_| batch.send(bytes(&adapter, b"later")).expect("posted")).collect();
    // No message of the batch is on the wire before `submit` (QP-15).
    assert_eq!(peer.message_now().await, None);
    batch.submit();
    for op in ops {
        // A request that one system call has taken completes with that call.
        assert!(op.now_or_never().expect("sent").0.is_ok());
        assert_eq!(peer.message().await.expect("sent").payload(), b"later");
    }
    // Without a doorbell of its own a deferred request goes with the connection.
    let batch = end.queue_pair.batch();
    let never = batch.send(bytes(&adapter, b"never")).expect("posted");
    end.queue_pair.flush();
    assert_eq!(failure(never).await, Status::CANCELED);
}

#[tokio::test]
async fn messages_up_to_the_largest_transfer_are_carried() {
    let adapter = adapter();
    let most = adapter.info().max_transfer;
    assert_eq!(most, u32::MAX as usize);
    // Never touched but where something is received.
    let region = adapter.register(most + 1, Access::LOCAL_WRITE).await.expect("registered");
    let pair = connected(&adapter).await;
    let slice = |length| region.slice(0..length).expect("in bounds");
    // One byte beyond the maximum is refused, and a message of more than 2^31 bytes arrives (QP-25).
    let refused = pair.active.queue_pair.send(slice(most + 1)).expect_err("too long");
    assert_eq!(refused.kind, PostErrorKind::TooLong { length: most + 1, maximum: most });
    assert_eq!(refused.status(), Status::BUFFER_OVERFLOW);
    let length = (1 << 31) + 4711;
    region.write(length - 4, b"last").expect("in bounds");
    let receive = pair.passive.queue_pair.receive(slice(length)).expect("posted");
    let send = pair.active.queue_pair.send(slice(length)).expect("posted");
    let both = async { tokio::join!(send, receive) };
    let ((sent, _), (received, _)) = tokio::time::timeout(6 * patience(), both).await.expect("it hangs");
    assert_eq!((sent.expect("sent").bytes, received.expect("received").bytes), (length, length));
    let mut end = [0; 4];
    region.read(length - 4, &mut end).expect("in bounds");
    assert_eq!(&end, b"last");
    // The peer has no receive for this one.
    failure(pair.active.queue_pair.send(slice(most)).expect("posted")).await;
}

/// Waits until the end of the connection, which is reported first, has reached the window.
async fn unbound(window: &MemoryWindow) {
    within(async {
        while window.remote().is_some() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn rebound_window_has_a_new_key() {
    for (adapter, variant) in variants() {
        let (pair, other) = (connected(&adapter).await, connected(&adapter).await);
        let access = Access::REMOTE_READ;
        let region = adapter.register(64, access).await.expect("registered");
        region.write(0, &[7; 64]).expect("as long");
        let window = adapter.memory_window().expect("a window");
        let mut keys = Vec::new();
        for (place, end) in [&pair.active, &other.active, &pair.active].into_iter().enumerate() {
            let slice = region.slice(place..place + 8).expect("in bounds");
            let bind = end.queue_pair.bind(&window, &slice, access, WorkOptions::default()).expect("posted");
            keys.push(window.remote().expect("bound"));
            within(bind).await.0.expect("bound");
        }
        // Only the last binding works, and only for the peer of the queue pair that made it (MW-01, MW-03, MW-04).
        assert_eq!(keys[2].address(), region.remote().address() + 2, "{variant}");
        let read = pair.passive.queue_pair.read(room(&adapter, 8), &keys[2]).expect("posted");
        assert_eq!(success(read).await.1[..], [7; 8], "{variant}");
        let stale = other.passive.queue_pair.read(room(&adapter, 8), &keys[1]).expect("posted");
        assert_eq!(failure(stale).await, Status::ACCESS_VIOLATION, "{variant}: it is bound elsewhere now");
        let stale = pair.passive.queue_pair.read(room(&adapter, 8), &keys[0]).expect("posted");
        assert_eq!(failure(stale).await, Status::ACCESS_VIOLATION, "{variant}: that was another binding");
        // The connection is gone, and with it the binding.
        within(pair.active.connection.disconnected()).await;
        unbound(&window).await;
        // A window whose connection has ended does not keep its region registered (MR-04).
        region.deregister().await.expect("nothing is bound to it any more");
    }
}

#[tokio::test]
async fn a_window_releases_its_region() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let region = adapter.register(64, Access::REMOTE_READ).await.expect("registered");
    let bind = |window| {
        let slice = region.slice(0..8).expect("in bounds");
        pair.active.queue_pair.bind(window, &slice, Access::REMOTE_READ, WorkOptions::default())
    };
    let window = adapter.memory_window().expect("a window");
    within(bind(&window).expect("posted")).await.0.expect("bound");
    drop(window);
    // A request that waits for the doorbell is pending.
    let window = adapter.memory_window().expect("a window");
    let batch = pair.active.queue_pair.batch();
    let slice = region.slice(0..8).expect("in bounds");
    let pending = batch.bind(&window, &slice, Access::REMOTE_READ, WorkOptions::default()).expect("posted");
    let remote = window.remote().expect("posted");
    // A bind that waits for the doorbell keeps its region registered (MR-04).
    assert_eq!(region.deregister().await.expect_err("bound").status(), Status::DEVICE_BUSY);
    let early = pair.passive.queue_pair.read(room(&adapter, 8), &remote).expect("posted");
    // MW-01: its turn has not come.
    assert_eq!(failure(early).await, Status::ACCESS_VIOLATION);
    // Whether it still had its turn or not.
    let (_, ()) = within(pending).await;
    within(pair.active.connection.disconnected()).await;
    unbound(&window).await;
    region.deregister().await.expect("nothing is bound to it any more");
    // A region whose last handle goes takes the window with it.
    let pair = connected(&adapter).await;
    let region = adapter.register(64, Access::REMOTE_READ).await.expect("registered");
    let slice = region.slice(0..8).expect("in bounds");
    let options = WorkOptions::default();
    let bind = pair.active.queue_pair.bind(&window, &slice, Access::REMOTE_READ, options).expect("posted");
    within(bind).await.0.expect("bound");
    let remote = window.remote().expect("bound");
    drop((slice, region));
    let read = pair.passive.queue_pair.read(room(&adapter, 8), &remote).expect("posted");
    assert_eq!(failure(read).await, Status::ACCESS_VIOLATION);
}
