//! Peers that violate the protocol in each phase: the connection ends with an error, and no other is affected.
//!
//! Runs on: soft, sim

use std::task::Poll;
use std::time::Duration;

use common::device::settled;
use common::raw::{
    self, Bystander, CRC, ENHANCED, MARKERS, PEER_TO_PEER, REJECT, REPLY_KEY, REQUEST_KEY, RTR_SEND, Raw,
    Start, bytes, failure, raw_connects, room, success, terminated,
};
use common::*;
use tokio_rdma::error::{ConnectError, DisconnectError, Reason};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{
    AcceptParams, Access, Adapter, ConnectParams, DisconnectReason, ReadLimits, Region, RemoteRegion, Status,
};

/// Layer, type and code of a Terminate.
type Why = (u8, u8, u8);

/// A region that is full of these.
const FILL: u8 = 0x5a;

async fn target(adapter: &Adapter, access: Access) -> Region {
    let region = adapter.register(64, access).await.expect("registered");
    region.write(0, &[FILL; 64]).expect("as long");
    region
}

fn assert_untouched(region: &Region, case: &str) {
    let mut found = [0; 64];
    region.read(0, &mut found).expect("as long");
    assert_eq!(found, [FILL; 64], "{case}");
}

/// Requests for a connection that are none, whole or to the point where the peer gives up.
fn bad_requests() -> Vec<(&'static str, Vec<u8>)> {
    let good = Start::peer_to_peer(4, 4).encode(REQUEST_KEY);
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        bytes
    };
    vec![
        ("another protocol", b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n".to_vec()),
        ("zeroes", vec![0; 600]),
        ("a reply", Start::peer_to_peer(4, 4).encode(REPLY_KEY)),
        ("one wrong byte in the key", changed(&|bytes| bytes[15] ^= 1)),
        ("revision 3", changed(&|bytes| bytes[17] = 3)),
        ("revision 255", changed(&|bytes| bytes[17] = 255)),
        ("513 bytes of private data", Start::plain(1).data(&[1; 513]).encode(REQUEST_KEY)),
        ("65535 bytes of private data", changed(&|bytes| bytes[18..20].copy_from_slice(&[0xff; 2]))),
        ("S without limits", Start::plain(2).flag(ENHANCED).encode(REQUEST_KEY)),
        ("S with half of the limits", Start::plain(2).flag(ENHANCED).data(&[0, 1]).encode(REQUEST_KEY)),
        ("S and R without limits", Start::plain(2).flag(ENHANCED).flag(REJECT).encode(REQUEST_KEY)),
        ("a frame behind the request", changed(&|bytes| bytes.extend(raw::fpdu(&raw::send(1, b"x"), false)))),
    ]
}

// The streams end without a byte, and the first request that is delivered is the valid one (SEC-14).
#[tokio::test]
async fn invalid_requests_are_closed_without_a_reply() {
    let adapter = adapter();
    let bystander = Bystander::new(&adapter).await;
    let (listener, address) = listening(&adapter);
    for (case, request) in bad_requests() {
        let mut peer = Raw::dial(address).await;
        peer.try_say(&request).await;
        assert_eq!(peer.rest().await, b"", "{case}");
        bystander.is_well(&adapter, case).await;
    }
    for cut in [0, 1, 15, 16, 19, 20, 23] {
        let mut peer = Raw::dial(address).await;
        peer.say(&Start::peer_to_peer(4, 4).encode(REQUEST_KEY)[..cut]).await;
        drop(peer);
    }
    for cut in [0, 7, 20] {
        let mut peer = Raw::dial(address).await;
        peer.say(&Start::peer_to_peer(4, 4).encode(REQUEST_KEY)[..cut]).await;
        peer.reset();
    }
    // None of them was delivered: the first request is the first good one.
    let mut peer = Raw::dial(address).await;
    peer.say(&Start::peer_to_peer(4, 4).data(b"good").encode(REQUEST_KEY)).await;
    let request = within(listener.request()).await.expect("a request");
    assert_eq!(&request.private_data()[..], b"good");
    assert_eq!(request.peer_addr(), peer.stream.local_addr().expect("connected"));
}

// The soft provider has no markers, and rejects in the revision of the request (SEC-14).
#[tokio::test]
async fn markers_are_declined_with_a_reply() {
    let adapter = adapter();
    let bystander = Bystander::new(&adapter).await;
    let (_listener, address) = listening(&adapter);
    for start in [Start::plain(1), Start::enhanced(4, 4), Start::peer_to_peer(4, 4)] {
        let mut peer = Raw::dial(address).await;
        peer.say(&start.clone().flag(MARKERS).encode(REQUEST_KEY)).await;
        let reply = peer.start_frame(REPLY_KEY).await;
        assert_eq!((reply.flags & (REJECT | MARKERS), reply.revision), (REJECT, start.revision));
        assert_eq!(peer.rest().await, b"");
    }
    bystander.is_well(&adapter, "markers").await;
}

#[tokio::test]
async fn private_data_of_every_length_is_delivered() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let lengths = [0, 1, 251, 252, 253, 255, 256, 257, 507, 508, 509, 511, 512];
    for (start, most) in [(Start::plain(1), 512), (Start::peer_to_peer(4, 4), 508)] {
        for length in lengths {
            let data: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut peer = Raw::dial(address).await;
            peer.try_say(&start.clone().data(&data).encode(REQUEST_KEY)).await;
            if length > most {
                assert_eq!(peer.rest().await, b"", "{length} bytes are too many");
                continue;
            }
            let request = within(listener.request()).await.expect("a request");
            assert_eq!(&request.private_data()[..], &data[..], "{length} bytes");
        }
    }
}

#[tokio::test]
async fn silent_peer_is_closed_without_delaying_others() {
    let adapter = adapter_with(SoftConfig::default().request_timeout(Duration::from_millis(300)));
    let bystander = Bystander::new(&adapter).await;
    let (listener, address) = listening(&adapter);
    let mut silent = Raw::dial(address).await;
    let mut halting = Raw::dial(address).await;
    halting.say(&REQUEST_KEY[..9]).await;
    let mut good = Raw::dial(address).await;
    good.say(&Start::peer_to_peer(4, 4).encode(REQUEST_KEY)).await;
    let request = within(listener.request()).await.expect("served at once");
    // X8: those bytes, and only those, have a deadline.
    assert_eq!(silent.rest().await, b"");
    assert_eq!(halting.rest().await, b"");
    request.reject(b"").await.expect("rejected");
    let reply = good.start_frame(REPLY_KEY).await;
    assert_ne!(reply.flags & REJECT, 0, "the good one has its answer");
    bystander.is_well(&adapter, "silence").await;
}

#[tokio::test]
async fn half_open_flood_only_delays_next_peer() {
    let config = SoftConfig::default().half_open(2).request_timeout(Duration::from_millis(500));
    let adapter = adapter_with(config);
    let bystander = Bystander::new(&adapter).await;
    let (listener, address) = listening(&adapter);
    let mut flood = Vec::new();
    for _ in 0..6 {
        flood.push(Raw::dial(address).await);
    }
    let mut good = Raw::dial(address).await;
    good.say(&Start::peer_to_peer(4, 4).data(b"good").encode(REQUEST_KEY)).await;
    bystander.is_well(&adapter, "a flood").await;
    // Three deadlines later it is its turn.
    let request = within(listener.request()).await.expect("a request");
    assert_eq!(&request.private_data()[..], b"good");
    for mut silent in flood {
        assert_eq!(silent.rest().await, b"");
    }
    bystander.is_well(&adapter, "the deadlines").await;
}

#[tokio::test]
async fn freed_half_open_places_are_reused() {
    // The deadline is out of reach: only leaving makes room.
    let config = SoftConfig::default().half_open(2).request_timeout(patience() * 10);
    let adapter = adapter_with(config);
    let (listener, address) = listening(&adapter);
    let flood = [Raw::dial(address).await, Raw::dial(address).await];
    let mut good = Raw::dial(address).await;
    good.say(&Start::peer_to_peer(4, 4).encode(REQUEST_KEY)).await;
    let mut request = Box::pin(listener.request());
    for _ in 0..200 {
        assert!(matches!(futures::poll!(&mut request), Poll::Pending), "both places are taken");
        tokio::task::yield_now().await;
    }
    drop(flood);
    let request = within(request).await.expect("a request");
    assert_eq!(request.peer_addr(), good.stream.local_addr().expect("connected"));
}

// The connect is refused, and the connector, the queue pair and its receive work for the next attempt (SEC-14).
#[tokio::test]
async fn invalid_replies_leave_the_connector_usable() {
    let adapter = adapter();
    let bystander = Bystander::new(&adapter).await;
    let good = Start::peer_to_peer(4, 4);
    let mut wrong_key = good.encode(REPLY_KEY);
    wrong_key[0] ^= 1;
    let cases = [
        ("another protocol", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        ("one wrong byte in the key", wrong_key),
        ("a request", good.encode(REQUEST_KEY)),
        ("revision 3", Start { revision: 3, ..good.clone() }.encode(REPLY_KEY)),
        ("markers", good.clone().flag(MARKERS).encode(REPLY_KEY)),
        ("513 bytes of private data", Start::plain(1).data(&[1; 513]).encode(REPLY_KEY)),
        ("S without limits", Start::plain(2).flag(ENHANCED).encode(REPLY_KEY)),
        ("an end within the frame", good.encode(REPLY_KEY)[..19].to_vec()),
        ("nothing", Vec::new()),
    ];
    let (listener, address) = Raw::listener().await;
    let (fine, fine_address) = listening(&adapter);
    for reset in [false, true] {
        for (case, reply) in &cases {
            let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
            let receive = queue_pair.receive(room(&adapter, 4)).expect("posted");
            let peer = async {
                let mut peer = Raw::answer_the_phone(&listener).await;
                peer.start_frame(REQUEST_KEY).await;
                peer.say(reply).await;
                if reset {
                    peer.reset();
                }
            };
            let connect = connector.connect(&queue_pair, address, ConnectParams::default());
            let ((), outcome) = within(async { tokio::join!(peer, connect) }).await;
            let error = outcome.map(drop).expect_err(case);
            assert_eq!(error.status(), Status::CONNECTION_REFUSED, "{case}, reset {reset}: {error:?}");
            assert!(error.is_connector_usable() && error.private_data().is_empty(), "{case}");
            // The same connector, the same queue pair, the same receive.
            let there = common::queue_pair(&adapter);
            let connect = connector.connect_and_complete(&queue_pair, fine_address, ConnectParams::default());
            let accept = fine.accept_next(&there, AcceptParams::default());
            let (here, accepted) = within(async { tokio::join!(connect, accept) }).await;
            let (_here, _there) = (here.expect(case), accepted.expect(case));
            success(there.send(bytes(&adapter, b"fine")).expect("posted")).await;
            assert_eq!(&success(receive).await.1[..], b"fine", "{case}");
        }
    }
    bystander.is_well(&adapter, "bad replies").await;
}

// RFC 6581 has a code for a reply without a ready-to-receive frame in common (SEC-14).
#[tokio::test]
async fn reply_choosing_unoffered_rtr_gets_terminate() {
    let adapter = adapter();
    let reply = Start::enhanced(4 | PEER_TO_PEER | RTR_SEND, 4).encode(REPLY_KEY);
    let (outcome, mut peer, ..) = raw::raw_replies(&adapter, &reply).await;
    let error = outcome.map(drop).expect_err("nothing in common");
    let reason = Reason::Terminate { sent: true, layer: 2, etype: 0, code: 7 };
    assert!(matches!(&error, ConnectError::Refused { reason: found, .. } if *found == reason), "{error:?}");
    assert_eq!(peer.last_words().await, Some((2, 0, 7)));
}

// SEC-15: more reads than this side has offered to serve, which it would have to end the connection for later.
#[tokio::test]
async fn excessive_read_limits_get_a_terminate() {
    let adapter = adapter();
    for (announced, accepted) in [(16, true), (17, false), (0x3ffe, false), (0x3fff, true)] {
        let reply = Start::enhanced(4, announced).encode(REPLY_KEY);
        let (outcome, mut peer, ..) = raw::raw_replies(&adapter, &reply).await;
        if accepted {
            assert_eq!(outcome.expect("accepted").read_limits().inbound, 16, "{announced}");
            continue;
        }
        let error = outcome.map(drop).expect_err("too many");
        let reason = Reason::Terminate { sent: true, layer: 2, etype: 0, code: 6 };
        assert!(
            matches!(&error, ConnectError::Refused { reason: found, .. } if *found == reason),
            "{error:?}"
        );
        assert_eq!(peer.last_words().await, Some((2, 0, 6)));
    }
}

/// Returns a whole ULPDU with one byte changed.
fn with(mut ulpdu: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    ulpdu[at] = byte;
    ulpdu
}

/// Frames that break a rule, and the Terminate for each. One receive of 8 bytes is posted.
fn violations(region: &Region, hidden: &Region) -> Vec<(&'static str, Vec<u8>, Why)> {
    let (key, start) = (region.key().0, region.remote().address());
    let (locked, inside) = (hidden.key().0, hidden.remote().address());
    let send = || raw::send(1, b"x");
    let read = |stag, to, size| raw::read_request(1, (1, 0), size, (stag, to));
    let request = |last, qn, msn, mo, length: usize| {
        let payload = raw::read_payload((1, 0), 4, (key, start));
        raw::untagged(raw::READ_REQUEST, last, qn, msn, mo, &payload[..length])
    };
    let mut cases = vec![
        ("no content", vec![], (2, 0, 3)),
        ("a tagged header cut short", raw::write(key, start, &[])[..13].to_vec(), (2, 0, 3)),
        ("an untagged header cut short", send()[..17].to_vec(), (2, 0, 3)),
        ("DDP version 0, tagged", with(raw::write(key, start, b"x"), 0, 0xc0), (1, 1, 4)),
        ("DDP version 2, tagged", with(raw::write(key, start, b"x"), 0, 0xc2), (1, 1, 4)),
        ("DDP version 0, untagged", with(send(), 0, 0x40), (1, 2, 6)),
        ("DDP version 2, untagged", with(send(), 0, 0x42), (1, 2, 6)),
        ("RDMAP version 0", with(send(), 1, 0x03), (0, 2, 5)),
        ("RDMAP version 2", with(send(), 1, 0x83), (0, 2, 5)),
        ("a tagged Send", raw::tagged(raw::SEND, true, key, start, b"x"), (0, 2, 6)),
        ("an untagged Write", raw::untagged(raw::WRITE, true, 0, 1, 0, b"x"), (0, 2, 6)),
        ("a Send on queue 1", raw::untagged(raw::SEND, true, 1, 1, 0, b"x"), (1, 2, 1)),
        ("a Send on queue 3", raw::untagged(raw::SEND, true, 3, 1, 0, b"x"), (1, 2, 1)),
        ("message 0", raw::send(0, b"x"), (1, 2, 3)),
        ("message 2 before 1", raw::send(2, b"x"), (1, 2, 3)),
        ("a message that starts at 1", raw::untagged(raw::SEND, true, 0, 1, 1, b"x"), (1, 2, 4)),
        ("a message longer than the receive", raw::send(1, &[1; 9]), (1, 2, 5)),
        ("an answer that nobody asked for", raw::tagged(raw::READ_RESPONSE, true, 1, 0, b"x"), (0, 2, 6)),
        (
            "an empty answer that nobody asked for",
            raw::tagged(raw::READ_RESPONSE, true, 0, 0, &[]),
            (0, 2, 6),
        ),
        ("a Write by a key it never got", raw::write(!key, start, b"x"), (1, 1, 0)),
        ("a Write behind the end", raw::write(key, start + 64, b"x"), (1, 1, 1)),
        ("a Write across the end", raw::write(key, start + 60, b"12345"), (1, 1, 1)),
        ("a Write before the start", raw::write(key, start.wrapping_sub(1), b"x"), (1, 1, 1)),
        ("a Write across the end of all offsets", raw::write(key, u64::MAX, b"xx"), (1, 1, 3)),
        ("a Write without the right", raw::write(locked, inside, b"x"), (0, 1, 2)),
        ("a Read by a key it never got", read(!key, start, 4), (0, 1, 0)),
        ("a Read by key 0", read(0, 0, 4), (0, 1, 0)),
        ("a Read across the end", read(key, start + 61, 4), (0, 1, 1)),
        ("a Read of 4 GiB", read(key, start, u32::MAX), (0, 1, 1)),
        ("a Read across the end of all offsets", read(key, u64::MAX, 2), (0, 1, 4)),
        ("a Read before the start", read(key, start.wrapping_sub(1), 1), (0, 1, 1)),
        ("a Read without the right", read(locked, inside, 4), (0, 1, 2)),
        ("a Read Request on queue 0", request(true, 0, 1, 0, 28), (1, 2, 1)),
        ("Read Request 2 before 1", request(true, 1, 2, 0, 28), (1, 2, 3)),
        ("a Read Request that starts at 1", request(true, 1, 1, 1, 28), (1, 2, 4)),
        ("a Read Request in two parts", request(false, 1, 1, 0, 28), (1, 2, 4)),
        ("a Read Request of 27 bytes", request(true, 1, 1, 0, 27), (0, 2, 7)),
        ("a Read Request of nothing", request(true, 1, 1, 0, 0), (0, 2, 7)),
        ("a Read Request of 29 bytes", raw::untagged(raw::READ_REQUEST, true, 1, 1, 0, &[0; 29]), (1, 2, 5)),
        ("a Terminate on queue 0", raw::untagged(raw::TERMINATE, true, 0, 1, 0, &[0; 4]), (1, 2, 1)),
    ];
    for opcode in [4, 6] {
        cases.push(("an invalidation of a key it never got", with(send(), 1, 0x40 | opcode), (0, 2, 9)));
        let mut granted = with(send(), 1, 0x40 | opcode);
        granted[2..6].copy_from_slice(&key.to_be_bytes());
        cases.push(("an invalidation of a key that is not its own", granted, (0, 2, 9)));
    }
    for opcode in 12..16 {
        cases.push(("an unknown opcode", with(send(), 1, 0x40 | opcode), (0, 2, 6)));
    }
    cases
}

// The Terminate has the code of the violation, and nothing of the frames behind it is placed (SEC-14).
#[tokio::test]
async fn every_violation_ends_that_connection_with_its_terminate() {
    for crc in [false, true] {
        let adapter = adapter_with(SoftConfig::default().crc(crc));
        let bystander = Bystander::new(&adapter).await;
        let region = target(&adapter, Access::REMOTE_READ | Access::REMOTE_WRITE).await;
        let hidden = target(&adapter, Access::LOCAL_WRITE).await;
        for (case, ulpdu, why) in violations(&region, &hidden) {
            let case = format!("{case}, CRC {crc}");
            let (end, mut peer, _) =
                raw_connects(&adapter, Start::peer_to_peer(4, 4), AcceptParams::default()).await;
            let receives =
                [end.queue_pair.receive(room(&adapter, 8)), end.queue_pair.receive(room(&adapter, 8))];
            peer.post(&ulpdu).await;
            let good = raw::fpdu(&raw::write(region.key().0, region.remote().address(), b"behind"), crc);
            peer.try_say(&good).await;
            // RFC 5040 section 4.8: layer, type and code, in its order.
            assert_eq!(peer.last_words().await, Some(why), "{case}");
            let (_, sent, found) = terminated(&end.connection).await;
            assert_eq!((sent, found), (true, why), "{case}");
            let overflow = why == (1, 2, 5) && ulpdu[1] & 0x0f == raw::SEND;
            let first = if overflow { Status::BUFFER_OVERFLOW } else { Status::CANCELED };
            for (receive, status) in receives.into_iter().zip([first, Status::CANCELED]) {
                assert_eq!(failure(receive.expect("posted")).await, status, "{case}");
            }
            assert_untouched(&region, &case);
            assert_untouched(&hidden, &case);
            bystander.is_well(&adapter, &case).await;
        }
    }
}

// One changed bit anywhere in a frame ends the connection before the frame is used (SEC-14).
#[tokio::test]
async fn a_frame_with_a_bad_checksum_places_nothing() {
    let adapter = adapter();
    let bystander = Bystander::new(&adapter).await;
    let region = target(&adapter, Access::REMOTE_READ | Access::REMOTE_WRITE).await;
    let (key, start) = (region.key().0, region.remote().address());
    let ulpdus = [
        ("a Write", raw::write(key, start, b"poison")),
        ("a Write without bytes", raw::write(key, start, &[])),
        ("a Send", raw::send(1, b"poison")),
        ("a Read Request", raw::read_request(1, (1, 0), 4, (key, start))),
        ("a Terminate", raw::terminate(&[0x11, 0, 0, 0])),
    ];
    for (case, ulpdu) in ulpdus {
        let frame = raw::fpdu(&ulpdu, true);
        let end = frame.len();
        // The version, the opcode's reserved bits, the last byte of the content or padding, and each byte of the checksum.
        for at in [2, 3, end - 5, end - 4, end - 3, end - 2, end - 1] {
            let mut spoilt = frame.clone();
            spoilt[at] ^= if at == 2 { 2 } else { 0x10 };
            let start = Start::peer_to_peer(4, 4).flag(CRC);
            let (end, mut peer, _) = raw_connects(&adapter, start, AcceptParams::default()).await;
            let receive = end.queue_pair.receive(room(&adapter, 8)).expect("posted");
            peer.say(&spoilt).await;
            assert_eq!(peer.last_words().await, Some((2, 0, 2)), "{case}, byte {at}");
            assert_eq!(terminated(&end.connection).await.2, (2, 0, 2), "{case}, byte {at}");
            let (outcome, buffer) = within(receive).await;
            assert_eq!(outcome.expect_err(case).status(), Status::CANCELED);
            assert_eq!(&buffer[..], [0; 8], "{case}, byte {at}: nothing in the receive");
            assert_untouched(&region, case);
        }
        bystander.is_well(&adapter, case).await;
    }
}

// A gap, another number and too many bytes have different codes, and fail the receive (SEC-14).
#[tokio::test]
async fn inconsistent_second_segment_is_a_violation() {
    let adapter = adapter();
    for (case, second, why) in [
        ("a gap", raw::untagged(raw::SEND, true, 0, 1, 5, b"x"), (1, 2, 4)),
        ("an overlap", raw::untagged(raw::SEND, true, 0, 1, 3, b"x"), (1, 2, 4)),
        ("another message", raw::untagged(raw::SEND, true, 0, 2, 0, b"x"), (1, 2, 3)),
        ("more than fits", raw::untagged(raw::SEND, true, 0, 1, 4, b"12345"), (1, 2, 5)),
    ] {
        let (end, mut peer, _) =
            raw_connects(&adapter, Start::peer_to_peer(4, 4), AcceptParams::default()).await;
        let receive = end.queue_pair.receive(room(&adapter, 8)).expect("posted");
        peer.post(&raw::untagged(raw::SEND, false, 0, 1, 0, b"half")).await;
        peer.post(&second).await;
        assert_eq!(peer.last_words().await, Some(why), "{case}");
        let status = if why == (1, 2, 5) { Status::BUFFER_OVERFLOW } else { Status::CANCELED };
        assert_eq!(failure(receive).await, status, "{case}");
    }
}

// An answer has the sink, the offset and the length of its request, or the read fails (SEC-14).
#[tokio::test]
async fn mismatched_answer_fails_the_read() {
    let adapter = adapter();
    let bystander = Bystander::new(&adapter).await;
    let answer = |last, stag: u32, to, data: &[u8]| raw::tagged(raw::READ_RESPONSE, last, stag, to, data);
    for (case, stag, to, last, data, why) in [
        ("another sink", 1, 0, true, &b"data"[..], (1, 1, 0)),
        ("another offset", 0, 1, true, b"data", (1, 1, 1)),
        ("too long", 0, 0, true, b"data!", (1, 1, 1)),
        ("too short", 0, 0, true, b"dat", (1, 1, 1)),
        ("no end", 0, 0, false, b"data", (1, 1, 1)),
        ("nothing", 0, 0, true, b"", (1, 1, 1)),
    ] {
        let (end, mut peer, _) = raw::raw_accepts(&adapter, Start::enhanced(4, 4)).await;
        let read =
            end.queue_pair.read(room(&adapter, 4), &RemoteRegion::new(0, RemoteKey(7), 4)).expect("posted");
        let send = end.queue_pair.send(bytes(&adapter, b"behind")).expect("posted");
        let request = peer.message().await.expect("the read");
        let (sink, offset) = (request.word(18), request.long(22));
        peer.post(&answer(last, sink ^ stag, offset + to, data)).await;
        // Something came back, and it was wrong: the oldest request says so.
        let (outcome, buffer) = within(read).await;
        assert_eq!(outcome.expect_err(case).status(), Status::REMOTE_ERROR, "{case}");
        assert_eq!(&buffer[..], [0; 4], "{case}");
        assert_eq!(failure(send).await, Status::CANCELED, "{case}");
        assert_eq!(peer.last_words().await, Some(why), "{case}");
        bystander.is_well(&adapter, case).await;
    }
}

// SEC-14: the sink of each read has a name of its own, so that an answer to another one is noticed.
#[tokio::test]
async fn answer_to_other_read_sink_fails_both() {
    let adapter = adapter();
    let (end, mut peer, _) = raw::raw_accepts(&adapter, Start::enhanced(4, 4)).await;
    let remote = RemoteRegion::new(0, RemoteKey(7), 4);
    let [first, second] = [0, 1].map(|_| end.queue_pair.read(room(&adapter, 4), &remote).expect("posted"));
    let _request = peer.message().await.expect("the first read");
    let request = peer.message().await.expect("the second read");
    let (sink, offset) = (request.word(18), request.long(22));
    peer.post(&raw::tagged(raw::READ_RESPONSE, true, sink, offset, b"data")).await;
    assert_eq!(failure(first).await, Status::REMOTE_ERROR);
    assert_eq!(failure(second).await, Status::CANCELED);
    assert_eq!(peer.last_words().await, Some((1, 1, 0)));
}

/// Terminates as the standard and as Linux siw write them, and what an outstanding read then completes with.
fn terminates() -> Vec<(&'static str, Vec<u8>, Why, Status)> {
    let words = |bytes: &[u8], rest: usize| [bytes, &vec![0; rest][..]].concat();
    vec![
        ("RFC, tagged key", vec![0x11, 0x00, 0, 0], (1, 1, 0), Status::ACCESS_VIOLATION),
        ("RFC, protection, bounds", vec![0x01, 0x01, 0, 0], (0, 1, 1), Status::ACCESS_VIOLATION),
        ("RFC, no buffer", vec![0x12, 0x02, 0, 0], (1, 2, 2), Status::REMOTE_ERROR),
        ("RFC, with a header", words(&[0x12, 0x03, 0xc0, 0], 20), (1, 2, 3), Status::REMOTE_ERROR),
        ("RFC, checksum", vec![0x20, 0x02, 0, 0], (2, 0, 2), Status::REMOTE_ERROR),
        ("RFC, catastrophic", vec![0x00, 0x00, 0, 0], (0, 0, 0), Status::REMOTE_ERROR),
        // siw mirrors the first byte and the flags.
        ("siw, tagged key", words(&[0x11, 0x00, 0x03, 0], 16), (1, 1, 0), Status::ACCESS_VIOLATION),
        ("siw, protection", words(&[0x10, 0x00, 0x07, 0], 48), (0, 1, 0), Status::ACCESS_VIOLATION),
        ("siw, sequence", words(&[0x21, 0x03, 0x03, 0], 20), (1, 2, 3), Status::REMOTE_ERROR),
        ("siw, no buffer", words(&[0x21, 0x02, 0x03, 0], 20), (1, 2, 2), Status::REMOTE_ERROR),
        ("siw, queue", words(&[0x21, 0x01, 0x03, 0], 20), (1, 2, 1), Status::REMOTE_ERROR),
        ("siw, checksum", vec![0x02, 0x02, 0, 0], (2, 0, 2), Status::REMOTE_ERROR),
        ("siw, opcode", vec![0x20, 0x06, 0, 0], (0, 2, 6), Status::REMOTE_ERROR),
        ("siw, RDMAP version", vec![0x20, 0x05, 0, 0], (0, 2, 5), Status::REMOTE_ERROR),
        ("siw, DDP version", vec![0x21, 0x06, 0, 0], (1, 2, 6), Status::REMOTE_ERROR),
        ("siw, invalidate", words(&[0x20, 0x09, 0x03, 0], 20), (0, 2, 9), Status::REMOTE_ERROR),
        ("siw, local error", vec![0x00, 0xff, 0, 0], (0, 0, 0xff), Status::REMOTE_ERROR),
        ("shorter than its control word", vec![0x11, 0x00, 0], (0, 2, 0xff), Status::REMOTE_ERROR),
    ]
}

// The Terminate fails the oldest read with its status, flushes the others and is not answered (SEC-14).
#[tokio::test]
async fn a_terminate_is_the_reason_of_the_loss() {
    let adapter = adapter();
    let bystander = Bystander::new(&adapter).await;
    for (case, content, why, status) in terminates() {
        let (end, mut peer, _) =
            raw_connects(&adapter, Start::peer_to_peer(4, 4), AcceptParams::default()).await;
        let receive = end.queue_pair.receive(room(&adapter, 4)).expect("posted");
        let somewhere = RemoteRegion::new(0, RemoteKey(7), 4);
        let reads = [
            end.queue_pair.read(room(&adapter, 4), &somewhere),
            end.queue_pair.read(room(&adapter, 4), &somewhere),
        ];
        peer.post(&raw::terminate(&content)).await;
        for (read, expected) in reads.into_iter().zip([status, Status::CANCELED]) {
            assert_eq!(failure(read.expect("posted")).await, expected, "{case}");
        }
        assert_eq!(failure(receive).await, Status::CANCELED, "{case}");
        assert_eq!(terminated(&end.connection).await, (status, false, why), "{case}");
        assert_eq!(peer.last_words().await, None, "a Terminate is not answered with one: {case}");
        bystander.is_well(&adapter, case).await;
    }
}

// A Terminate from the active side rejects the reply, and the queue pair of the accept is free (SEC-14).
#[tokio::test]
async fn terminate_instead_of_first_frame_refuses_accept() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    // With CRC siw leaves the checksum of such a Terminate empty.
    for (content, crc, checked) in
        [([0, 0, 0, 0], false, false), ([0, 0, 0, 0], true, true), ([0x02, 0x07, 0, 0], true, false)]
    {
        let queue_pair = queue_pair(&adapter);
        let receive = queue_pair.receive(room(&adapter, 4)).expect("posted");
        let peer = async {
            let mut peer = Raw::dial(address).await;
            let start = Start::peer_to_peer(4, 4);
            let start = if crc { start.flag(CRC) } else { start };
            peer.say(&start.encode(REQUEST_KEY)).await;
            peer.start_frame(REPLY_KEY).await;
            peer.say(&raw::fpdu(&raw::terminate(&content), checked)).await;
            peer
        };
        let accept = listener.accept_next(&queue_pair, AcceptParams::default());
        let (_peer, outcome) = within(async { tokio::join!(peer, accept) }).await;
        // X1
        assert_eq!(outcome.map(drop).expect_err("refused").status(), Status::CONNECTION_REFUSED);
        queue_pair.flush();
        assert_eq!(failure(receive).await, Status::CANCELED, "the receive was still posted");
    }
}

// The accept is aborted, and its queue pair connects with the same receive afterwards (SEC-14).
#[tokio::test]
async fn an_invalid_first_frame_aborts_the_accept() {
    let adapter = adapter();
    let bystander = Bystander::new(&adapter).await;
    let (listener, address) = listening(&adapter);
    let queue_pair = queue_pair(&adapter);
    let receive = queue_pair.receive(room(&adapter, 4)).expect("posted");
    let violation = raw::fpdu(&raw::send(2, b"x"), false);
    // The bytes behind the reply, and whether the peer then resets the stream or just ends it.
    for (behind, reset) in [(&violation[..], false), (&violation[..9], false), (&[], false), (&[], true)] {
        let peer = async {
            let mut peer = Raw::dial(address).await;
            peer.say(&Start::peer_to_peer(4, 4).encode(REQUEST_KEY)).await;
            peer.start_frame(REPLY_KEY).await;
            peer.say(behind).await;
            if reset { peer.reset() } else { drop(peer) }
        };
        let accept = listener.accept_next(&queue_pair, AcceptParams::default());
        let ((), outcome) = within(async { tokio::join!(peer, accept) }).await;
        let error = outcome.map(drop).expect_err("it never was ready");
        assert_eq!(error.status(), Status::CONNECTION_ABORTED, "{} bytes, reset {reset}", behind.len());
        bystander.is_well(&adapter, "an attempt that came to nothing").await;
    }
    let active = common::queue_pair(&adapter);
    let pair = connected_queue_pairs(
        &adapter,
        active,
        queue_pair,
        ConnectParams::default(),
        AcceptParams::default(),
    )
    .await;
    success(pair.active.queue_pair.send(bytes(&adapter, b"fine")).expect("posted")).await;
    assert_eq!(&success(receive).await.1[..], b"fine");
}

// The active side may send its first frame only after the reply (SEC-14).
#[tokio::test]
async fn frame_before_our_reply_aborts_the_accept() {
    let adapter = adapter();
    let bystander = Bystander::new(&adapter).await;
    let (listener, address) = listening(&adapter);
    let mut peer = Raw::dial(address).await;
    peer.say(&Start::enhanced(4, 4).encode(REQUEST_KEY)).await;
    let request = within(listener.request()).await.expect("a request");
    peer.post(&raw::send(1, b"too early")).await;
    settled().await;
    let queue_pair = queue_pair(&adapter);
    let receive = queue_pair.receive(room(&adapter, 16)).expect("posted");
    let error = within(request.accept(&queue_pair, AcceptParams::default())).await.map(drop).expect_err("no");
    assert_eq!(error.status(), Status::CONNECTION_ABORTED);
    assert_eq!(error.handle.map(drop), None);
    queue_pair.flush();
    assert_eq!(failure(receive).await, Status::CANCELED, "nothing was received");
    bystander.is_well(&adapter, "a hasty peer").await;
}

// Wherever the frame is cut, the receive is flushed and the memory stays as it was (SEC-14).
#[tokio::test]
async fn end_or_reset_within_frame_loses_connection() {
    let adapter = adapter();
    let bystander = Bystander::new(&adapter).await;
    let region = target(&adapter, Access::REMOTE_READ | Access::REMOTE_WRITE).await;
    let (key, offset) = (region.key().0, region.remote().address());
    let frames = [
        raw::send(1, &[FILL; 7]),
        raw::write(key, offset, &[FILL; 64]),
        raw::read_request(1, (1, 0), 4, (key, offset)),
    ];
    for ulpdu in frames {
        for crc in [false, true] {
            let frame = raw::fpdu(&ulpdu, crc);
            for (cut, reset) in [
                (1, false),
                (2, false),
                (19, false),
                (frame.len() - 5, false),
                (frame.len() - 1, false),
                (0, true),
                (17, true),
            ] {
                let start = Start::peer_to_peer(4, 4);
                let start = if crc { start.flag(CRC) } else { start };
                let (end, mut peer, _) = raw_connects(&adapter, start, AcceptParams::default()).await;
                let receive = end.queue_pair.receive(room(&adapter, 8)).expect("posted");
                peer.say(&frame[..cut]).await;
                if reset {
                    peer.reset()
                } else {
                    drop(peer)
                }
                let case = format!("opcode {}, cut at {cut}, reset {reset}", ulpdu[1] & 0x0f);
                assert_eq!(failure(receive).await, Status::CANCELED, "{case}");
                let reason = within(end.connection.disconnected()).await;
                assert!(
                    matches!(reason, DisconnectReason::Lost { status: Status::REMOTE_ERROR, .. }),
                    "{case}: {reason:?}"
                );
                assert_untouched(&region, &case);
            }
        }
    }
    bystander.is_well(&adapter, "ends within frames").await;
}

// The inbound limit is zero, so any Read Request is one too many (SEC-15).
#[tokio::test]
async fn unagreed_reads_break_the_connection() {
    let adapter = adapter();
    let bystander = Bystander::new(&adapter).await;
    let region = target(&adapter, Access::REMOTE_READ).await;
    let source = (region.key().0, region.remote().address());
    // One of no bytes is the handshake's only as the first frame.
    for length in [4, 0] {
        let accept = AcceptParams::default().read_limits(ReadLimits::new(0, 4));
        let (end, mut peer, _) = raw_connects(&adapter, Start::peer_to_peer(4, 4), accept).await;
        assert_eq!(end.connection.read_limits().inbound, 0);
        peer.post(&raw::read_request(1, (1, 0), length, source)).await;
        assert_eq!(peer.last_words().await, Some((1, 2, 2)), "{length} bytes");
        assert_eq!(terminated(&end.connection).await.2, (1, 2, 2), "{length} bytes");
    }
    bystander.is_well(&adapter, "a read that was not agreed on").await;
}

// The inbound limit is one, and the second request comes while the first is being answered (SEC-15).
#[tokio::test]
async fn reads_beyond_the_limit_break_the_connection() {
    let adapter = adapter();
    // Far more than sockets hold: the first answer cannot be over when the second request comes.
    let region = adapter.register(64 << 20, Access::REMOTE_READ).await.expect("registered");
    let source = (region.key().0, region.remote().address());
    let accept = AcceptParams::default().read_limits(ReadLimits::new(1, 1));
    let (end, mut peer, _) = raw_connects(&adapter, Start::peer_to_peer(1, 1), accept).await;
    for msn in 1..3 {
        peer.post(&raw::read_request(msn, (1, 0), 64 << 20, source)).await;
    }
    // There is no room for last words in the middle of an answer.
    assert_eq!(terminated(&end.connection).await, (Status::CANCELED, true, (1, 2, 2)));
}

#[tokio::test]
async fn nonreading_peer_delays_only_itself() {
    let adapter = adapter_with(SoftConfig::default().disconnect_timeout(Duration::from_millis(300)));
    let bystander = Bystander::new(&adapter).await;
    let (end, peer, _) = raw::raw_accepts(&adapter, Start::enhanced(4, 4)).await;
    let receive = end.queue_pair.receive(room(&adapter, 4)).expect("posted");
    let sends: Vec<_> =
        (0..64).map(|_| end.queue_pair.send(room(&adapter, 1 << 20)).expect("posted")).collect();
    bystander.is_well(&adapter, "a peer that does not read").await;
    let mut last = sends;
    let mut newest = last.pop().expect("64 of them");
    assert!(matches!(futures::poll!(&mut newest), Poll::Pending), "64 MiB are with nobody yet");
    let outcome = within(end.connection.disconnect()).await;
    assert_eq!(outcome, Err(DisconnectError::TimedOut { limit: Duration::from_millis(300) }));
    let mut statuses = Vec::new();
    for send in last.into_iter().chain([newest]) {
        statuses.push(within(send).await.0.map(drop).map_err(|error| error.status()));
    }
    let done = statuses.iter().take_while(|status| status.is_ok()).count();
    assert!(done < 63, "what the sockets hold");
    assert!(statuses[done..].iter().all(|status| *status == Err(Status::CANCELED)), "{statuses:?}");
    assert_eq!(failure(receive).await, Status::CANCELED);
    drop(peer);
    bystander.is_well(&adapter, "the disconnect").await;
}

#[tokio::test]
async fn unread_answers_are_limited() {
    let adapter = adapter();
    let bystander = Bystander::new(&adapter).await;
    let region = adapter.register(16 << 20, Access::REMOTE_READ).await.expect("registered");
    let source = (region.key().0, region.remote().address());
    let accept = AcceptParams::default().read_limits(ReadLimits::new(4, 4));
    let (end, mut peer, _) = raw_connects(&adapter, Start::peer_to_peer(4, 4), accept).await;
    for msn in 1..=1000 {
        peer.try_say(&raw::fpdu(&raw::read_request(msn, (1, 0), 16 << 20, source), false)).await;
    }
    assert_eq!(terminated(&end.connection).await.2, (1, 2, 2));
    bystander.is_well(&adapter, "a peer that only asks").await;
}

#[tokio::test]
async fn a_connection_of_single_bytes_works() {
    for crc in [false, true] {
        let adapter = adapter();
        let region = target(&adapter, Access::REMOTE_READ | Access::REMOTE_WRITE).await;
        let (key, offset) = (region.key().0, region.remote().address());
        let (listener, address) = listening(&adapter);
        let queue_pair = queue_pair(&adapter);
        let receive = queue_pair.receive(room(&adapter, 300)).expect("posted");
        let message: Vec<u8> = (0..300_u32).map(|at| at as u8).collect();
        let peer = async {
            let mut peer = Raw::dial(address).await;
            let start = Start::peer_to_peer(4, 4).data(b"slow");
            let start = if crc { start.flag(CRC) } else { start };
            // A byte per segment, and a byte per part of the message.
            let mut script = start.encode(REQUEST_KEY);
            for byte in script.drain(..) {
                peer.say(&[byte]).await;
                tokio::task::yield_now().await;
            }
            peer.start_frame(REPLY_KEY).await;
            peer.crc = crc;
            script.extend(raw::fpdu(&raw::write(0, 0, &[]), crc));
            for (at, byte) in message.iter().enumerate() {
                let part = raw::untagged(raw::SEND, at == 299, 0, 1, at as u32, &[*byte]);
                script.extend(raw::fpdu(&part, crc));
            }
            script.extend(raw::fpdu(&raw::write(key, offset + 1, b"slowly"), crc));
            script.extend(raw::fpdu(&raw::read_request(1, (3, 4), 8, (key, offset)), crc));
            for byte in script {
                peer.say(&[byte]).await;
                tokio::task::yield_now().await;
            }
            peer
        };
        let accept = listener.accept_next(&queue_pair, AcceptParams::default());
        let (mut peer, connection) = within(async { tokio::join!(peer, accept) }).await;
        let connection = connection.expect("accepted");
        assert_eq!(&connection.private_data()[..], b"slow");
        assert!(success(receive).await.1[..] == message[..], "CRC {crc}");
        let answer = peer.message().await.expect("the answer");
        assert_eq!((answer.opcode(), answer.payload()), (raw::READ_RESPONSE, &b"\x5aslowly\x5a"[..]));
    }
}
