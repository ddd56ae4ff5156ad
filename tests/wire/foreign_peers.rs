//! Peers other than this crate: older revisions, other handshakes, and behaviour that is visible only on the wire.
//!
//! Runs on: soft, sim

use std::task::Poll;

use common::raw::{
    self, CRC, ENHANCED, MARKERS, OFFERS_ANNOUNCEMENTS, PEER_TO_PEER, REJECT, REPLY_KEY, REQUEST_KEY,
    RTR_READ, RTR_SEND, RTR_WRITE, Raw, Start, bytes, room, success,
};
use common::*;
use tokio_rdma::error::{DisconnectError, Reason};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{AcceptParams, Access, Adapter, ConnectParams, ReadLimits, RemoteRegion};

#[test]
fn test_checksum_is_standard_crc32c() {
    assert_eq!(raw::crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(raw::fpdu(&[], true).len(), 8);
}

#[tokio::test]
async fn reads_in_flight_respect_peer_limit() {
    let adapter = adapter();
    for limit in [1, 2, 5] {
        let (end, mut peer, _) = raw::raw_accepts(&adapter, Start::peer_to_peer(limit, 16)).await;
        assert_eq!(end.connection.read_limits().outbound, u32::from(limit));
        let somewhere = RemoteRegion::new(0, RemoteKey(7), 4);
        let reads: Vec<_> =
            (0..64).map(|_| end.queue_pair.read(room(&adapter, 4), &somewhere).expect("posted")).collect();
        let mut unanswered = std::collections::VecDeque::new();
        for answered in 0..64_u32 {
            let expected = usize::from(limit).min(64 - answered as usize);
            while unanswered.len() < expected {
                let request = peer.message().await.expect("as many as agreed");
                assert_eq!(request.opcode(), raw::READ_REQUEST);
                unanswered.push_back(request);
            }
            // NEG-06: as many as agreed, and never one more.
            assert_eq!(peer.message_now().await, None, "limit {limit}, {answered} answered");
            let request = unanswered.pop_front().expect("one is in flight");
            assert_eq!(request.word(10), answered + 1, "its number in the queue of Read Requests");
            peer.post(&request.answer(&answered.to_be_bytes())).await;
        }
        for (number, read) in reads.into_iter().enumerate() {
            assert_eq!(success(read).await.1[..], (number as u32).to_be_bytes(), "limit {limit}");
        }
    }
}

#[tokio::test]
async fn without_any_reads_allowed_none_can_be_posted() {
    let adapter = adapter();
    let (end, mut peer, _) = raw::raw_accepts(&adapter, Start::peer_to_peer(0, 16)).await;
    let error =
        end.queue_pair.read(room(&adapter, 4), &RemoteRegion::new(0, RemoteKey(7), 4)).expect_err("none");
    assert_eq!(error.kind, tokio_rdma::error::PostErrorKind::NoReads);
    // NEG-06: and none is on the wire.
    assert_eq!(peer.message_now().await, None);
}

/// Moves data in all four ways between an end of ours and a peer that may send first.
async fn exchange(adapter: &Adapter, end: &End, peer: &mut Raw) {
    let receive = end.queue_pair.receive(room(adapter, 16)).expect("posted");
    peer.post(&raw::send(1, b"from afar")).await;
    let (length, buffer) = success(receive).await;
    assert_eq!(&buffer[..length], b"from afar");

    success(end.queue_pair.send(bytes(adapter, b"from here")).expect("posted")).await;
    let message = peer.message().await.expect("the send");
    assert_eq!((message.opcode(), message.word(10), message.payload()), (raw::SEND, 1, &b"from here"[..]));

    let region = adapter.register(8, Access::REMOTE_READ | Access::REMOTE_WRITE).await.expect("registered");
    let (key, offset) = (region.key().0, region.remote().address());
    peer.post(&raw::write(key, offset + 2, b"poke")).await;
    peer.post(&raw::read_request(1, (5, 77), 6, (key, offset + 1))).await;
    let answer = peer.message().await.expect("the answer");
    assert_eq!((answer.opcode(), answer.word(2), answer.long(6)), (raw::READ_RESPONSE, 5, 77));
    assert_eq!((answer.is_last(), answer.payload()), (true, &b"\0poke\0"[..]));

    let remote = RemoteRegion::new(9, RemoteKey(0x55), 4);
    let write = end.queue_pair.write(bytes(adapter, b"wwww"), &remote).expect("posted");
    let read = end.queue_pair.read(room(adapter, 4), &remote).expect("posted");
    let frame = peer.message().await.expect("the write");
    assert_eq!((frame.opcode(), frame.word(2), frame.long(6)), (raw::WRITE, 0x55, 9));
    let request = peer.message().await.expect("the read");
    assert_eq!((request.word(34), request.long(38), request.read_size()), (0x55, 9, 4));
    peer.post(&request.answer(b"rrrr")).await;
    success(write).await;
    assert_eq!(&success(read).await.1[..], b"rrrr");
}

/// Returns start-up frames without limits.
fn old_peers() -> [Start; 6] {
    [
        Start::plain(0),
        Start::plain(1),
        Start::plain(2),
        Start::plain(1).flag(CRC),
        Start::plain(1).data(&[7; 252]),
        // Of another revision these bits mean nothing, so all of the data is the user's.
        Start::plain(1).flag(ENHANCED).data(b"12345"),
    ]
}

#[tokio::test]
async fn initiators_that_negotiate_nothing_are_served() {
    let adapter = adapter();
    for start in old_peers() {
        let params = AcceptParams::default().private_data(&b"welcome"[..]);
        // NEG-07: accept is ready although nothing follows the reply.
        let (end, mut peer, reply) = raw::raw_connects(&adapter, start.clone(), params).await;
        assert_eq!((reply.revision, reply.words), (start.revision, None), "{start:?}");
        assert_eq!((reply.flags & CRC, &reply.data[..]), (start.flags & CRC, &b"welcome"[..]), "{start:?}");
        assert_eq!(&end.connection.private_data()[..], &start.data[..], "{start:?}");
        assert_eq!(end.connection.read_limits(), ReadLimits::default(), "{start:?}");
        exchange(&adapter, &end, &mut peer).await;
        drop(peer);
        within(end.connection.disconnected()).await;
    }
}

#[tokio::test]
async fn responders_that_negotiate_nothing_are_used() {
    let adapter = adapter();
    for reply in old_peers().into_iter().filter(|start| start.flags & ENHANCED == 0) {
        // A responder without the enhanced startup gets the default limits, and no first frame is sent to it (NEG-07).
        let (end, mut peer, request) = raw::raw_accepts(&adapter, reply.clone()).await;
        let asked = ENHANCED | OFFERS_ANNOUNCEMENTS;
        assert_eq!((request.flags, request.revision), (asked, 2), "we ask for more");
        assert_eq!(&end.connection.private_data()[..], &reply.data[..], "{reply:?}");
        assert_eq!(end.connection.read_limits(), ReadLimits::default(), "{reply:?}");
        assert_eq!(peer.message_now().await, None, "nothing but data follows: {reply:?}");
        exchange(&adapter, &end, &mut peer).await;
    }
}

#[tokio::test]
async fn our_request_says_what_the_standard_wants() {
    let adapter = adapter();
    let (_end, _peer, request) = raw::raw_accepts(&adapter, Start::peer_to_peer(4, 4)).await;
    assert_eq!(request.flags & (MARKERS | REJECT | CRC | 0x0800), 0);
    assert_eq!(request.words, Some((16 | PEER_TO_PEER, 16 | RTR_WRITE | RTR_READ)));
}

#[tokio::test]
async fn checksums_are_on_when_either_side_asks() {
    for (ours, theirs) in [(false, true), (true, false), (true, true)] {
        let adapter = adapter_with(SoftConfig::default().crc(ours));
        let flag = |start: Start| if theirs { start.flag(CRC) } else { start };
        let (end, mut peer, reply) =
            raw::raw_connects(&adapter, flag(Start::peer_to_peer(8, 8)), AcceptParams::default()).await;
        assert_ne!(reply.flags & CRC, 0, "the reply says so: {ours}, {theirs}");
        exchange(&adapter, &end, &mut peer).await;
        let (end, mut peer, request) = raw::raw_accepts(&adapter, flag(Start::peer_to_peer(8, 8))).await;
        assert_eq!(request.flags & CRC != 0, ours);
        exchange(&adapter, &end, &mut peer).await;
    }
}

#[tokio::test]
async fn accept_waits_for_chosen_rtr_frame() {
    let adapter = adapter();
    let (empty_write, empty_read) = (raw::write(0, 0, &[]), raw::read_request(1, (1, 0), 0, (0, 0)));
    // Each case has the offers in the two words, the choice that the reply must make, and the frame itself.
    let cases = [
        (0, RTR_WRITE | RTR_READ, (0, RTR_WRITE), &empty_write),
        (0, RTR_WRITE, (0, RTR_WRITE), &empty_write),
        (0, RTR_READ, (0, RTR_READ), &empty_read),
        (RTR_SEND, RTR_READ, (0, RTR_READ), &empty_read),
        (RTR_SEND, 0, (RTR_SEND, 0), &Vec::new()),
        // As siw does.
        (0, 0, (0, RTR_WRITE), &empty_write),
    ];
    for (first, second, chosen, frame) in cases {
        let case = format!("offered {first:x} {second:x}");
        let (listener, address) = listening(&adapter);
        let queue_pair = queue_pair(&adapter);
        let mut peer = Raw::dial(address).await;
        let start = Start::enhanced(4 | PEER_TO_PEER | first, 4 | second);
        peer.say(&start.encode(REQUEST_KEY)).await;
        let request = within(listener.request()).await.expect("a request");
        let mut accept = Box::pin(request.accept(&queue_pair, AcceptParams::default()));
        assert!(matches!(futures::poll!(&mut accept), Poll::Pending));
        let reply = peer.start_frame(REPLY_KEY).await;
        let (ird, ord) = reply.words.expect("limits");
        assert_eq!(ird & 0xc000, PEER_TO_PEER | chosen.0, "{case}");
        assert_eq!(ord & 0xc000, chosen.1, "{case}");
        for _ in 0..20 {
            assert!(matches!(futures::poll!(&mut accept), Poll::Pending), "{case}");
            tokio::task::yield_now().await;
        }
        peer.post(frame).await;
        let connection = within(accept).await.expect("accepted");
        if frame == &empty_read {
            let answer = peer.message().await.expect("an answer");
            assert_eq!((answer.opcode(), answer.payload()), (raw::READ_RESPONSE, &[][..]), "{case}");
        }
        let receive = queue_pair.receive(room(&adapter, 2)).expect("posted");
        peer.post(&raw::send(1, b"ok")).await;
        assert_eq!(&success(receive).await.1[..], b"ok", "{case}");
        drop(connection);
    }
}

#[tokio::test]
async fn complete_sends_the_chosen_rtr_frame() {
    let adapter = adapter();
    let write = Start::enhanced(4 | PEER_TO_PEER, 4 | RTR_WRITE);
    let (_end, mut peer, _) = raw::raw_accepts(&adapter, write).await;
    let frame = peer.frame().await.expect("the frame of readiness");
    assert_eq!((frame.opcode(), frame.payload()), (raw::WRITE, &[][..]));

    let read = Start::enhanced(4 | PEER_TO_PEER, 4 | RTR_READ);
    let (end, mut peer, _) = raw::raw_accepts(&adapter, read).await;
    let frame = peer.frame().await.expect("the frame of readiness");
    assert_eq!(
        (frame.opcode(), frame.word(6), frame.word(10), frame.read_size()),
        (raw::READ_REQUEST, 1, 1, 0)
    );
    // It counts as a message of its queue.
    let read =
        end.queue_pair.read(room(&adapter, 4), &RemoteRegion::new(0, RemoteKey(7), 4)).expect("posted");
    peer.post(&frame.answer(&[])).await;
    let request = peer.message().await.expect("a read");
    assert_eq!((request.opcode(), request.word(10)), (raw::READ_REQUEST, 2));
    peer.post(&request.answer(b"data")).await;
    assert_eq!(&success(read).await.1[..], b"data");
}

#[tokio::test]
async fn a_message_glued_to_the_reply_is_received() {
    let adapter = adapter();
    let mut bytes = Start::enhanced(4, 4).encode(REPLY_KEY);
    bytes.extend_from_slice(&raw::fpdu(&raw::send(1, b"early"), false));
    let (reply, _peer, _, queue_pair) = raw::raw_replies(&adapter, &bytes).await;
    let receive = queue_pair.receive(room(&adapter, 5)).expect("posted");
    let connection = reply.expect("connected").complete().await.expect("completed");
    assert_eq!(&success(receive).await.1[..], b"early");
    drop(connection);
}

// ERR-10: the reject bit is the application's word. Without it the peer finds an end of the stream, and may try again.
#[tokio::test]
async fn undecided_request_ends_without_reply() {
    let adapter = adapter();
    let listener = adapter.listener();
    listener.bind((v4(), 0).into()).expect("bound");
    listener.listen(1).expect("listening");
    let address = listener.local_addr().expect("listening");
    let ask = async || {
        let mut peer = Raw::dial(address).await;
        peer.say(&Start::peer_to_peer(4, 4).encode(REQUEST_KEY)).await;
        peer
    };
    let (mut queued, mut late) = (ask().await, ask().await);
    // One fills the backlog; it is not said which of the two is first.
    let (rest, late_is_over) = tokio::select! {
        rest = late.rest() => (rest, true),
        rest = queued.rest() => (rest, false),
    };
    assert_eq!(rest, b"", "the backlog is full");
    let mut other = if late_is_over { queued } else { late };
    drop(within(listener.request()).await.expect("a request"));
    assert_eq!(within(other.rest()).await, b"", "the request was dropped");
}

#[tokio::test]
async fn reject_is_reply_with_reject_bit() {
    let adapter = adapter();
    for start in [Start::plain(0), Start::plain(1), Start::enhanced(4, 4), Start::peer_to_peer(4, 4)] {
        let (listener, address) = listening(&adapter);
        let mut peer = Raw::dial(address).await;
        peer.say(&start.encode(REQUEST_KEY)).await;
        let request = within(listener.request()).await.expect("a request");
        request.reject(b"not today").await.expect("rejected");
        let reply = peer.start_frame(REPLY_KEY).await;
        assert_ne!(reply.flags & REJECT, 0, "{start:?}");
        assert_eq!((reply.revision, &reply.data[..]), (start.revision, &b"not today"[..]), "{start:?}");
        assert_eq!(peer.rest().await, b"", "{start:?}");
    }
}

#[tokio::test]
async fn a_peer_that_closes_in_order_has_disconnected() {
    let adapter = adapter();
    let (end, peer, _) =
        raw::raw_connects(&adapter, Start::peer_to_peer(4, 4), AcceptParams::default()).await;
    let receive = end.queue_pair.receive(room(&adapter, 4)).expect("posted");
    drop(peer);
    let reason = within(end.connection.disconnected()).await;
    assert_eq!(reason, tokio_rdma::DisconnectReason::Peer);
    assert_eq!(raw::failure(receive).await, tokio_rdma::Status::CANCELED);
}

#[tokio::test]
async fn a_disconnect_ends_the_stream_behind_all_data() {
    let adapter = adapter();
    let (end, mut peer, _) = raw::raw_accepts(&adapter, Start::enhanced(4, 4)).await;
    success(end.queue_pair.send(bytes(&adapter, b"last")).expect("posted")).await;
    let gone = async {
        assert_eq!(peer.message().await.expect("the send").payload(), b"last");
        assert_eq!(peer.message().await, None);
        drop(peer);
    };
    let (outcome, ()) = within(async { tokio::join!(end.connection.disconnect(), gone) }).await;
    outcome.expect("disconnected");
}

#[tokio::test]
async fn connect_request_carries_limits_and_data() {
    let adapter = adapter();
    let (listener, address) = Raw::listener().await;
    let queue_pair = queue_pair(&adapter);
    for (limits, words) in [
        (ReadLimits::new(0, 0), (0, 0)),
        (ReadLimits::new(3, 5), (3, 5)),
        (ReadLimits::new(u32::MAX, 1), (adapter.info().max_read_limits.inbound as u16, 1)),
    ] {
        let connector = adapter.connector();
        let params = ConnectParams::default().read_limits(limits).private_data(vec![9; 252]);
        let peer = async {
            let mut raw = Raw::answer_the_phone(&listener).await;
            raw.start_frame(REQUEST_KEY).await
        };
        let (request, outcome) =
            within(async { tokio::join!(peer, connector.connect(&queue_pair, address, params)) }).await;
        outcome.map(drop).expect_err("the peer hung up");
        let (ird, ord) = request.words.expect("limits");
        assert_eq!((ird & 0x3fff, ord & 0x3fff), words);
        assert_eq!(request.data, vec![9; 252]);
    }
}

// A read that was filled is followed by another one: the peer sends nothing more that would say so.
#[tokio::test]
async fn bytes_behind_a_large_frame_are_read() {
    const LENGTH: usize = 20_000;
    for crc in [false, true] {
        let adapter = adapter_with(SoftConfig::default().crc(crc));
        let (end, mut peer, _) =
            raw::raw_connects(&adapter, Start::peer_to_peer(4, 4), AcceptParams::default()).await;
        let receives = [(); 2].map(|()| end.queue_pair.receive(room(&adapter, LENGTH)).expect("posted"));
        let frames =
            [1, 2].map(|number| raw::fpdu(&raw::send(number, &[number as u8; LENGTH]), crc)).concat();
        // The start of the first frame, and when that has been read, all the rest at once.
        let (start, rest) = frames.split_at(LENGTH / 2);
        peer.say(start).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        peer.say(rest).await;
        for (receive, number) in receives.into_iter().zip(1..) {
            assert_eq!(&success(receive).await.1[..], [number; LENGTH], "CRC {crc}");
        }
    }
}

// Large payload is not copied: what follows begins where that ends, padding included.
#[tokio::test]
async fn frame_after_any_payload_length_is_whole() {
    let adapter = adapter();
    let (end, mut peer, _) = raw::raw_accepts(&adapter, Start::peer_to_peer(4, 4)).await;
    let remote = RemoteRegion::new(0, RemoteKey(7), 4000);
    for length in 2000..2004 {
        let batch = end.queue_pair.batch();
        let write = batch.write(room(&adapter, length), &remote).expect("posted");
        let read = batch.read(room(&adapter, 4), &remote).expect("posted");
        batch.submit();
        assert_eq!(peer.message().await.expect("the write").payload().len(), length);
        let request = peer.message().await.expect("the read");
        assert_eq!((request.opcode(), request.read_size()), (raw::READ_REQUEST, 4), "behind {length} bytes");
        peer.post(&request.answer(b"rrrr")).await;
        success(write).await;
        success(read).await;
    }
}

// The Terminate shows that something has been lost, wherever in a frame this end was when it began to disconnect
// (ERR-08).
#[tokio::test]
async fn a_terminate_behind_half_a_frame_is_heard() {
    let request = raw::read_request(1, (1, 0), 0, (u32::MAX, u64::MAX));
    for (ulpdu, crc) in [(&request, false), (&request, true), (&raw::write(0, 0, &[]), false)] {
        let adapter = adapter_with(SoftConfig::default().crc(crc));
        let frame = raw::fpdu(ulpdu, crc);
        for cut in (0..frame.len()).step_by(3) {
            let (end, mut peer, _) = raw::raw_accepts(&adapter, Start::peer_to_peer(4, 4)).await;
            peer.say(&frame[..cut]).await;
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            let last_words = async {
                while peer.frame().await.is_some() {}
                peer.say(&frame[cut..]).await;
                peer.post(&raw::terminate(&[0x12, 0x02, 0, 0])).await;
                drop(peer);
            };
            let (outcome, ()) = within(async { tokio::join!(end.connection.disconnect(), last_words) }).await;
            let Err(DisconnectError::Lost { reason, .. }) = outcome else {
                panic!("{outcome:?}, cut at {cut}")
            };
            let expected = Reason::Terminate { sent: false, layer: 1, etype: 2, code: 2 };
            assert_eq!(reason, expected, "cut at {cut}");
        }
    }
}
