//! Peers that are slow, that stop, and that take more than their share.

use std::time::Duration;

use common::device::settled;
use common::raw::{
    self, Raw, Start, bytes, failure, raw_accepts, raw_connects, raw_connects_to, room, success,
};
use common::*;
use futures::FutureExt;
use futures::future::join_all;
use tokio::io::AsyncReadExt;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{
    AcceptParams, Access, Adapter, Buffer, CompletionQueueConfig, ConnectParams, DisconnectReason, Op,
    QueuePair, QueuePairConfig, RemoteRegion, SharedReceiveConfig, SharedReceiveQueue, Status,
};

const MIB: usize = 1 << 20;
/// A Send in a segment of its own, with its header, padding and CRC.
const MESSAGE: usize = 32 * 1024;

/// Posts messages until some of them no longer complete: those are in no socket.
async fn fill(adapter: &Adapter, end: &End) -> (usize, Vec<Op<Buffer>>) {
    let mut completed = 0;
    loop {
        let mut op = end.queue_pair.send(room(adapter, MESSAGE)).expect("posted");
        let mut sent = tokio::time::timeout(Duration::from_millis(300), &mut op).await.ok();
        if sent.is_none() {
            // On a busy machine the time may be over before the task of the connection has had its turn.
            settled().await;
            sent = (&mut op).now_or_never();
        }
        match sent {
            Some((outcome, _)) => completed += outcome.expect("sent").bytes,
            None => return (completed, vec![op]),
        }
    }
}

/// Limits what the kernel takes for a peer that does not read.
fn keep_little(peer: &Raw) {
    peer.stream.socket().set_recv_buffer_size(64 * 1024).expect("a smaller buffer");
}

/// The bytes of the Sends in a stream, and whether it ends between two frames.
fn delivered(stream: &[u8]) -> (usize, bool) {
    let (mut rest, mut found) = (stream, 0);
    while let Some(head) = rest.first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*head));
        let frame = (2 + length).next_multiple_of(4) + 4;
        if rest.len() < frame {
            return (found, false);
        }
        if rest[3] & 0x0f == raw::SEND {
            found += length - 18;
        }
        rest = &rest[frame..];
    }
    (found, rest.is_empty())
}

// SEC-02: the peer reads nothing until the disconnect has given up.
#[tokio::test]
async fn completed_sends_arrive_after_timed_out_disconnect() {
    let adapter = adapter_with(SoftConfig::default().disconnect_timeout(Duration::from_millis(200)));
    let (end, mut peer, _) = raw_accepts(&adapter, Start::peer_to_peer(4, 4)).await;
    let (completed, waiting) = fill(&adapter, &end).await;
    assert!(completed > MIB / 4, "{completed} bytes are more than nothing");
    let error = within(end.connection.disconnect()).await.expect_err("the peer does not answer");
    assert_eq!(error.status(), Status::IO_TIMEOUT);
    for op in waiting {
        assert_eq!(failure(op).await, Status::CANCELED);
    }
    // Neither what the peer says nor the end of all handles throws away what has been sent.
    peer.try_say(&raw::fpdu(&raw::write(0, 0, &[]), false)).await;
    drop(end);
    assert_eq!(delivered(&peer.rest().await).0, completed);
}

// SEC-02: a peer that reads slowly is waited for, longer than one that reads nothing.
#[tokio::test]
async fn a_disconnect_waits_for_a_slow_reader() {
    let adapter = adapter_with(SoftConfig::default().disconnect_timeout(Duration::from_secs(1)));
    let (end, mut peer, _) = raw_accepts(&adapter, Start::peer_to_peer(4, 4)).await;
    keep_little(&peer);
    let (completed, waiting) = fill(&adapter, &end).await;
    let reading = tokio::spawn(async move {
        let mut stream = Vec::new();
        let mut chunk = vec![0; completed / 20];
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            match peer.stream.read(&mut chunk).await.expect("no reset") {
                0 => return stream,
                length => stream.extend_from_slice(&chunk[..length]),
            }
        }
    });
    within(end.connection.disconnect()).await.expect("the peer has read everything and left");
    let mut found = completed;
    for op in join_all(waiting).await {
        found += op.0.map_or(0, |done| done.bytes);
    }
    assert_eq!(delivered(&reading.await.expect("no panic")), (found, true));
}

/// A reader that takes its time, and answers questions. Returns when so many messages have come.
async fn read_slowly(mut peer: Raw, messages: usize, pause: Duration) -> Raw {
    let (mut since, mut found) = (0, 0);
    while found < messages {
        let frame = peer.message().await.expect("the connection lives");
        since += frame.0.len();
        if frame.opcode() == raw::READ_REQUEST {
            peer.post(&frame.answer(&[])).await;
        }
        found += usize::from(frame.opcode() == raw::SEND);
        if since >= 2 * MESSAGE {
            since = 0;
            tokio::time::sleep(pause).await;
        }
    }
    peer
}

// SEC-03: the question waits behind what the peer has not read yet; at 200 KiB/s that is longer than the path timeout.
#[tokio::test]
async fn a_slow_reader_is_not_lost() {
    const MESSAGES: usize = MIB / MESSAGE;
    let adapter = adapter_with(SoftConfig::default().path_timeout(Some(Duration::from_secs(1))));
    let (end, peer, _) = raw_accepts(&adapter, Start::peer_to_peer(4, 4)).await;
    keep_little(&peer);
    let reading = tokio::spawn(read_slowly(peer, MESSAGES, Duration::from_millis(320)));
    for _ in 0..MESSAGES {
        success(end.queue_pair.send(room(&adapter, MESSAGE)).expect("posted")).await;
    }
    let mut peer = within(reading).await.expect("no panic");
    // It answers what was asked meanwhile, and the connection goes on.
    let receive = end.queue_pair.receive(room(&adapter, 8)).expect("posted");
    peer.post(&raw::send(1, b"I live")).await;
    assert_eq!(success(receive).await.0, 6);
}

// SEC-04: a peer that owes an answer anyway is not asked for another one.
#[tokio::test]
async fn peer_owing_an_answer_is_not_probed() {
    let adapter = adapter_with(SoftConfig::default().path_timeout(Some(Duration::from_secs(2))));
    let (end, mut peer, _) = raw_accepts(&adapter, Start::peer_to_peer(4, 4)).await;
    let somewhere = RemoteRegion::new(0, RemoteKey(7), 4);
    let read = end.queue_pair.read(room(&adapter, 4), &somewhere).expect("posted");
    peer.message().await.expect("the read");
    tokio::time::pause();
    assert_eq!(failure(read).await, Status::IO_TIMEOUT);
    tokio::time::resume();
    assert_eq!(peer.message().await, None);
}

fn shared(adapter: &Adapter, depth: usize) -> SharedReceiveQueue {
    adapter.shared_receive_queue(SharedReceiveConfig::default().depth(depth)).expect("a queue")
}

/// A connection whose passive end is this queue pair.
async fn served(adapter: &Adapter, passive: QueuePair) -> Pair {
    let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
    connected_queue_pairs(adapter, queue_pair(adapter), passive, connect, accept).await
}

fn with_queue(queue: &SharedReceiveQueue) -> QueuePairConfig {
    QueuePairConfig::default().shared_receives(queue)
}

// SEC-03, SRQ-02: for a minute there is no receive, and the path timeout is two seconds at both ends.
#[tokio::test]
async fn message_awaiting_receive_keeps_its_connection() {
    let adapter = adapter_with(SoftConfig::default().path_timeout(Some(Duration::from_secs(2))));
    let queue = shared(&adapter, 4);
    let mut waiting = Vec::new();
    // One fits into the sockets, and one does not.
    for length in [8, 16 * MIB] {
        let passive = adapter.queue_pair(with_queue(&queue)).expect("a queue pair");
        let pair = served(&adapter, passive).await;
        let sent = pair.active.queue_pair.send(room(&adapter, length)).expect("posted");
        waiting.push((pair, sent));
    }
    tokio::time::pause();
    for _ in 0..120 {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    tokio::time::resume();
    let receives: Vec<_> =
        waiting.iter().map(|_| queue.receive(room(&adapter, 16 * MIB)).expect("posted")).collect();
    let mut lengths = Vec::new();
    for receive in receives {
        lengths.push(success(receive).await.0);
    }
    lengths.sort_unstable();
    assert_eq!(lengths, [8, 16 * MIB]);
    for (_pair, sent) in waiting {
        success(sent).await;
    }
}

// SEC-06: eight peers with half a message each hold all receives.
#[tokio::test]
async fn half_a_message_gives_its_receive_back() {
    // A path timeout as long as this would end a connection in the same moment, and without a Terminate.
    let adapter =
        adapter_with(SoftConfig::default().message_timeout(Some(Duration::from_secs(30))).path_timeout(None));
    let queue = shared(&adapter, 8);
    let receives: Vec<_> = (0..8).map(|_| queue.receive(room(&adapter, 2048)).expect("posted")).collect();
    let mut holders = Vec::new();
    for number in 0..8 {
        let queue_pair = adapter.queue_pair(with_queue(&queue)).expect("a queue pair");
        let (end, mut peer, _) =
            raw_connects_to(&adapter, queue_pair, Start::peer_to_peer(4, 4), AcceptParams::default()).await;
        if number % 2 == 0 {
            // The first of two segments.
            peer.post(&raw::untagged(raw::SEND, false, 0, 1, 0, &[7; 1000])).await;
        } else {
            // Half of a segment.
            let frame = raw::fpdu(&raw::send(1, &[7; 1000]), false);
            peer.say(&frame[..500]).await;
        }
        holders.push((end, peer));
    }
    let passive = adapter.queue_pair(with_queue(&queue)).expect("a queue pair");
    let honest = served(&adapter, passive).await;
    let sent = honest.active.queue_pair.send(bytes(&adapter, b"honest")).expect("posted");
    success(sent).await;
    tokio::time::pause();
    for (end, _) in &holders {
        let reason = end.connection.disconnected().await;
        assert!(matches!(reason, DisconnectReason::Lost { status: Status::IO_TIMEOUT, .. }), "{reason:?}");
    }
    tokio::time::resume();
    let (done, _) = within(futures::future::select_all(receives)).await.0;
    assert_eq!(done.expect("a message").bytes, 6);
    for (_, mut peer) in holders {
        assert!(peer.last_words().await.is_some(), "a Terminate says so");
    }
}

// SEC-06: so does half a message that a poll of a completion queue has read, of which the task of the connection learns nothing
// by the socket.
#[tokio::test]
async fn half_message_read_by_poll_times_out() {
    let adapter =
        adapter_with(SoftConfig::default().message_timeout(Some(Duration::from_secs(30))).path_timeout(None));
    let queue = shared(&adapter, 1);
    let results = adapter.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
    let _receive = queue.receive(room(&adapter, 2048)).expect("posted");
    let queue_pair =
        adapter.queue_pair(with_queue(&queue).receive_completions(&results)).expect("a queue pair");
    let (end, mut peer, _) =
        raw_connects_to(&adapter, queue_pair, Start::peer_to_peer(4, 4), AcceptParams::default()).await;
    tokio::time::pause();
    peer.say(&raw::fpdu(&raw::send(1, &[7; 1000]), false)[..500]).await;
    for _ in 0..2 {
        assert_eq!(results.poll(1, &mut Vec::new()), 0, "half of it");
    }
    let reason = end.connection.disconnected().await;
    assert!(matches!(reason, DisconnectReason::Lost { status: Status::IO_TIMEOUT, .. }), "{reason:?}");
    tokio::time::resume();
}

// SEC-06: other frames of the peer, without a pause, do not keep the receive.
#[tokio::test]
async fn a_flood_does_not_keep_half_a_message() {
    let adapter =
        adapter_with(SoftConfig::default().message_timeout(Some(Duration::from_secs(30))).path_timeout(None));
    let queue = shared(&adapter, 1);
    let receive = queue.receive(room(&adapter, 2048)).expect("posted");
    let queue_pair = adapter.queue_pair(with_queue(&queue)).expect("a queue pair");
    let (end, mut peer, _) =
        raw_connects_to(&adapter, queue_pair, Start::peer_to_peer(4, 4), AcceptParams::default()).await;
    tokio::time::pause();
    let mut flood = raw::fpdu(&raw::untagged(raw::SEND, false, 0, 1, 0, &[7; 1000]), false);
    flood.extend(raw::fpdu(&raw::write(0, 0, &[]), false).repeat(6400));
    // Enough for 50 turns of the connection's task: it has no pause before the limit is over.
    peer.say(&flood).await;
    let mut lost = Box::pin(end.connection.disconnected());
    let mut rounds = 0;
    let reason = loop {
        tokio::time::advance(Duration::from_secs(10)).await;
        if let Some(reason) = (&mut lost).now_or_never() {
            break reason;
        }
        rounds += 1;
        assert!(rounds < 10, "it holds the receive");
    };
    assert!(matches!(reason, DisconnectReason::Lost { status: Status::IO_TIMEOUT, .. }), "{reason:?}");
    tokio::time::resume();
    let honest = served(&adapter, adapter.queue_pair(with_queue(&queue)).expect("a queue pair")).await;
    success(honest.active.queue_pair.send(bytes(&adapter, b"honest")).expect("posted")).await;
    assert_eq!(success(receive).await.0, 6);
}

// SEC-05: a peer that floods leaves an honest one its share, though receives are always too few.
#[tokio::test]
async fn a_flood_leaves_others_their_share() {
    const ROUNDS: usize = 50;
    let adapter = adapter();
    let queue = shared(&adapter, 4);
    let queue_pairs: Vec<_> =
        (0..2).map(|_| adapter.queue_pair(with_queue(&queue)).expect("a queue pair")).collect();
    let mut pairs = Vec::new();
    for queue_pair in queue_pairs {
        pairs.push(served(&adapter, queue_pair).await);
    }
    let (honest, flooder) = (pairs.remove(0), pairs.remove(0));
    let flood = tokio::spawn({
        let adapter = adapter.clone();
        async move {
            loop {
                let sends: Vec<_> = (0..32)
                    .map(|_| flooder.active.queue_pair.send(bytes(&adapter, b"flood")).expect("posted"))
                    .collect();
                join_all(sends).await;
            }
        }
    });
    let serve = tokio::spawn({
        let adapter = adapter.clone();
        async move {
            let mut receives: std::collections::VecDeque<_> =
                (0..4).map(|_| queue.receive(room(&adapter, 16)).expect("posted")).collect();
            let (mut honest, mut between, mut most) = (0, 0, 0);
            while honest < ROUNDS {
                let (outcome, buffer) = receives.pop_front().expect("four").await;
                let length = outcome.expect("received").bytes;
                if &buffer[..length] == b"honest" {
                    (honest, between) = (honest + 1, 0);
                } else {
                    between += 1;
                    most = most.max(between);
                }
                receives.push_back(queue.receive(buffer).expect("posted"));
            }
            most
        }
    });
    for _ in 0..ROUNDS {
        success(honest.active.queue_pair.send(bytes(&adapter, b"honest")).expect("posted")).await;
    }
    let most = within(serve).await.expect("no panic");
    flood.abort();
    // Budgets of two tasks and what the sockets hold; without a rule it was tens of thousands.
    assert!(most < 4096, "{most} messages of the flooder between two of the honest peer");
}

// SEC-10: with a full socket nothing new is framed behind a violation, and the Terminate leaves when there is room.
#[tokio::test]
async fn behind_a_violation_only_the_terminate_leaves() {
    let adapter = adapter();
    let (end, mut peer, _) = raw_accepts(&adapter, Start::peer_to_peer(4, 4)).await;
    let (completed, mut waiting) = fill(&adapter, &end).await;
    while let Ok(op) = end.queue_pair.send(room(&adapter, MIB)) {
        waiting.push(op);
    }
    assert!(waiting.len() > 4, "more than a batch");
    peer.post(&raw::write(0x1234_5600, 0, b"not allowed")).await;
    let reason = within(end.connection.disconnected()).await;
    assert!(matches!(reason, DisconnectReason::Lost { .. }), "{reason:?}");
    let mut late = 0;
    let mut last = None;
    let mut sends = 0;
    while let Some(frame) = peer.message().await {
        assert_eq!(last, None, "nothing follows a Terminate");
        last = frame.terminated();
        sends += if frame.opcode() == raw::SEND { frame.payload().len() } else { 0 };
    }
    drop(peer);
    for op in waiting {
        late += within(op).await.0.map_or(0, |done| done.bytes);
    }
    assert_eq!(last, Some((1, 1, 0)), "an invalid STag");
    // A batch is about a megabyte; what of it is a whole message has completed.
    assert!(sends <= completed + 2 * MIB && late <= 2 * MIB, "{sends} and {late} behind {completed}");
    assert!(sends >= completed + late, "what completed was sent");
}

// A peer that stops in the midst of a frame, or reads nothing of an answer, keeps no memory of the program's (MR-09).
#[tokio::test]
async fn unfinished_transfers_do_not_keep_an_allocation() {
    const LENGTH: usize = 16 * MIB;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    for answered in [false, true] {
        let adapter = adapter();
        let region = adapter.register_from(vec![0; LENGTH], rights).await.expect("registered");
        let key = region.key().0;
        let start = Start::peer_to_peer(4, 4);
        let (_end, mut peer, _) = raw_connects(&adapter, start, AcceptParams::default()).await;
        if answered {
            for number in 1..=2 {
                let length = u32::try_from(LENGTH).expect("a length");
                peer.post(&raw::read_request(number, (1, 0), length, (key, 0))).await;
            }
            while !peer.has_bytes() {
                tokio::task::yield_now().await;
            }
        } else {
            let write = raw::fpdu(&raw::write(key, 0, &[7; 4096]), false);
            peer.say(&write[..1000]).await;
            let mut first = [0];
            while first != [7] {
                tokio::task::yield_now().await;
                region.read(0, &mut first).expect("in bounds");
            }
        }
        let memory = within(region.into_inner()).await.expect("it is returned");
        assert_eq!((memory.len(), memory[0]), (LENGTH, if answered { 0 } else { 7 }));
    }
}

// A Terminate names the frame that it is for, so that the peer finds its mistake (SEC-14).
#[tokio::test]
async fn a_message_without_a_receive_is_named() {
    for crc in [false, true] {
        let adapter = adapter_with(SoftConfig::default().crc(crc));
        let (_end, mut peer, _) =
            raw_connects(&adapter, Start::peer_to_peer(4, 4), AcceptParams::default()).await;
        let message = raw::send(1, b"x");
        peer.post(&message).await;
        let terminate = peer.message().await.expect("a Terminate");
        assert_eq!(terminate.terminated(), Some((1, 2, 2)));
        let length = [0, message.len() as u8];
        let content = [&[0x12, 2, 0xc0, 0], &length[..], &message[..18]].concat();
        assert_eq!(terminate.payload(), content, "CRC {crc}");
    }
}
