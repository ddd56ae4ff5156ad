//! Peers that violate the rules of RFC 7306 or of windows: the connection ends with a Terminate, and no other is
//! affected.
//!
//! Runs on: soft, sim

use common::raw::{
    self, Bystander, Raw, Start, failure, raw_connects, raw_connects_to, room, success, terminated,
};
use common::*;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{
    AcceptParams, Access, QueuePairConfig, Region, RemoteRegion, SharedReceiveConfig, Status, WorkOptions,
};

/// Layer, type and code of a Terminate.
type Why = (u8, u8, u8);

const IMMEDIATE: u8 = 8;
const ATOMIC_REQUEST: u8 = 10;
const ATOMIC_RESPONSE: u8 = 11;
const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Encodes the payload of a fetch-and-add, or of an operation with another number.
fn operation(code: u8, key: u32, to: u64, add: u64) -> Vec<u8> {
    let mut out = vec![0, 0, 0, code, 0, 0, 0, 77];
    out.extend(key.to_be_bytes());
    out.extend(to.to_be_bytes());
    for operand in [add, 0, 0, 0] {
        out.extend(operand.to_be_bytes());
    }
    out
}

fn fetch_add(msn: u32, key: u32, to: u64) -> Vec<u8> {
    raw::untagged(ATOMIC_REQUEST, true, 1, msn, 0, &operation(0, key, to, 1))
}

fn violations(counter: &Region, plain: &Region) -> Vec<(&'static str, Vec<u8>, Why)> {
    let (key, start) = (counter.key().0, counter.remote().address());
    let immediate =
        |last, qn, msn, mo, length: usize| raw::untagged(IMMEDIATE, last, qn, msn, mo, &vec![0; length]);
    let atomic = |last, qn, msn, mo, length: usize| {
        let mut payload = operation(0, key, start, 1);
        payload.resize(length, 0);
        raw::untagged(ATOMIC_REQUEST, last, qn, msn, mo, &payload)
    };
    let other = |code| raw::untagged(ATOMIC_REQUEST, true, 1, 1, 0, &operation(code, key, start, 1));
    let mut cases = vec![
        ("immediate data on queue 1", immediate(true, 1, 1, 0, 8), (1, 2, 1)),
        ("immediate data 2 before 1", immediate(true, 0, 2, 0, 8), (1, 2, 3)),
        ("immediate data that starts at 4", immediate(true, 0, 1, 4, 8), (1, 2, 4)),
        ("immediate data in two parts", immediate(false, 0, 1, 0, 8), (1, 2, 4)),
        ("immediate data of 7 bytes", immediate(true, 0, 1, 0, 7), (0, 2, 7)),
        ("immediate data of 9 bytes", immediate(true, 0, 1, 0, 9), (1, 2, 5)),
        ("immediate data of 64 bits", raw::untagged(IMMEDIATE, true, 0, 1, 0, &[1; 8]), (0, 2, 7)),
        ("tagged immediate data", raw::tagged(IMMEDIATE, true, key, start, &[0; 8]), (0, 2, 6)),
        ("an atomic on queue 0", atomic(true, 0, 1, 0, 52), (1, 2, 1)),
        ("atomic 2 before 1", atomic(true, 1, 2, 0, 52), (1, 2, 3)),
        ("an atomic that starts at 8", atomic(true, 1, 1, 8, 52), (1, 2, 4)),
        ("an atomic in two parts", atomic(false, 1, 1, 0, 52), (1, 2, 4)),
        ("an atomic of 51 bytes", atomic(true, 1, 1, 0, 51), (0, 2, 7)),
        ("an atomic of 53 bytes", atomic(true, 1, 1, 0, 53), (1, 2, 5)),
        ("an atomic of nothing", atomic(true, 1, 1, 0, 0), (0, 2, 7)),
        ("an atomic between two words", fetch_add(1, key, start + 4), (0, 2, 7)),
        ("an atomic behind the end", fetch_add(1, key, start + 16), (0, 1, 1)),
        ("an atomic at the end of all offsets", fetch_add(1, key, u64::MAX - 7), (0, 1, 1)),
        ("an atomic by a key it never got", fetch_add(1, !key, start), (0, 1, 0)),
        ("an atomic without the right", fetch_add(1, plain.key().0, plain.remote().address()), (0, 1, 2)),
        (
            "an answer that nobody asked for",
            raw::untagged(ATOMIC_RESPONSE, true, 3, 1, 0, &[0; 12]),
            (0, 2, 6),
        ),
        ("an answer on queue 1", raw::untagged(ATOMIC_RESPONSE, true, 1, 1, 0, &[0; 12]), (1, 2, 1)),
        ("an answer of 11 bytes", raw::untagged(ATOMIC_RESPONSE, true, 3, 1, 0, &[0; 11]), (0, 2, 7)),
    ];
    cases.extend([1, 3, 15].map(|code| ("an atomic that does not exist", other(code), (0, 2, 6))));
    cases
}

/// The name of an answer, and its bytes for the identifier of a request.
type Case = (&'static str, fn(u32) -> Vec<u8>);

// A violation by an atomic or immediate data changes no memory and no other connection (SEC-14).
#[tokio::test]
async fn every_violation_ends_that_connection_with_its_terminate() {
    for crc in [false, true] {
        let adapter = adapter_with(SoftConfig::default().crc(crc));
        let bystander = Bystander::new(&adapter).await;
        let counter = adapter.register(16, ALL | Access::REMOTE_ATOMIC).await.expect("registered");
        let plain = adapter.register(16, ALL).await.expect("registered");
        for (case, ulpdu, why) in violations(&counter, &plain) {
            let case = format!("{case}, CRC {crc}");
            let (end, mut peer, _) =
                raw_connects(&adapter, Start::peer_to_peer(4, 4), AcceptParams::default()).await;
            let receive = end.queue_pair.receive(room(&adapter, 8)).expect("posted");
            peer.post(&ulpdu).await;
            // The Terminate has the layer, the type and the code of the violation (QP-21, QP-23).
            assert_eq!(peer.last_words().await, Some(why), "{case}");
            let (_, sent, found) = terminated(&end.connection).await;
            assert_eq!((sent, found), (true, why), "{case}");
            assert_eq!(failure(receive).await, Status::CANCELED, "{case}");
            for region in [&counter, &plain] {
                let mut found = [1; 16];
                region.read(0, &mut found).expect("as long");
                assert_eq!(found, [0; 16], "{case}");
            }
            bystander.is_well(&adapter, &case).await;
        }
    }
}

#[tokio::test]
async fn atomics_beyond_the_limit_terminate_connection() {
    /// More than any socket holds.
    const SIZE: u32 = 64 << 20;
    let adapter = adapter();
    let counter = adapter.register(SIZE as usize, ALL | Access::REMOTE_ATOMIC).await.expect("registered");
    let (key, start) = (counter.key().0, counter.remote().address());
    let (end, mut peer, _) = raw_connects(&adapter, Start::peer_to_peer(2, 2), AcceptParams::default()).await;
    // Within the limit they are answered one by one, in order with reads.
    for number in 0..3 {
        peer.post(&fetch_add(2 * number + 1, key, start)).await;
        let answer = peer.message().await.expect("the answer");
        assert_eq!((answer.opcode(), answer.word(6), answer.word(10)), (ATOMIC_RESPONSE, 3, number + 1));
        let expected = [&[0, 0, 0, 77][..], &u64::from(number).to_be_bytes()].concat();
        // In the byte order of the memory's host the counter is a number; on the wire it is big-endian.
        assert_eq!(answer.payload(), expected);
        peer.post(&raw::read_request(2 * number + 2, (1, 0), 8, (key, start))).await;
        let read = peer.message().await.expect("the answer");
        assert_eq!(read.payload(), u64::from(number + 1).to_ne_bytes());
    }
    // Big reads whose answers are not taken, and atomics behind them.
    let mut frames = Vec::new();
    for msn in [7, 8] {
        frames.extend(raw::fpdu(&raw::read_request(msn, (1, 0), SIZE, (key, start)), false));
    }
    for msn in 9..40 {
        frames.extend(raw::fpdu(&fetch_add(msn, key, start), false));
    }
    peer.try_say(&frames).await;
    // NEG-06, QP-23: DDP/untagged/2, no buffer in the queue of requests.
    let (_, sent, why) = terminated(&end.connection).await;
    assert_eq!((sent, why), (true, (1, 2, 2)));
}

#[tokio::test]
async fn atomic_answer_must_match_its_request() {
    for crc in [false, true] {
        let adapter = adapter_with(SoftConfig::default().crc(crc));
        let there = RemoteRegion::new(0x1000, RemoteKey(7), 8);
        let cases: [Case; 3] = [
            ("of another request", |identifier| {
                let payload = [&(identifier ^ 1).to_be_bytes()[..], &[0; 8]].concat();
                raw::untagged(ATOMIC_RESPONSE, true, 3, 1, 0, &payload)
            }),
            ("to a read", |_| raw::tagged(raw::READ_RESPONSE, true, 1, 0, &[0; 8])),
            ("that is nothing", |_| raw::tagged(raw::READ_RESPONSE, true, 0, 0, &[])),
        ];
        for (case, answer) in cases {
            let (end, mut peer, _): (_, Raw, _) = raw::raw_accepts(&adapter, Start::peer_to_peer(4, 4)).await;
            let atomic = end.queue_pair.fetch_add(room(&adapter, 8), &there, 1, WorkOptions::default());
            let request = peer.message().await.expect("the request");
            let identifier = u32::from_be_bytes(request.payload()[4..8].try_into().expect("four bytes"));
            peer.post(&answer(identifier)).await;
            // RFC 5040 has the code "unexpected opcode" for an answer that matches no request (QP-23).
            assert_eq!(peer.last_words().await, Some((0, 2, 6)), "{case}, CRC {crc}");
            assert_eq!(failure(atomic.expect("posted")).await, Status::REMOTE_ERROR, "{case}, CRC {crc}");
        }
    }
}

#[tokio::test]
async fn peer_without_extensions_terminates_the_connection() {
    let adapter = adapter();
    let there = RemoteRegion::new(0x1000, RemoteKey(7), 8);
    let (end, mut peer, _) = raw::raw_accepts(&adapter, Start::peer_to_peer(4, 4)).await;
    let atomic = end.queue_pair.fetch_add(room(&adapter, 8), &there, 1, WorkOptions::default());
    peer.message().await.expect("the request");
    // As `siw` answers an opcode that it does not know, after a first frame of its own.
    peer.post(&raw::write(0, 0, &[])).await;
    peer.post(&raw::terminate(&[0x20, 0x06, 0, 0])).await;
    drop(peer);
    // The peer's Terminate fails the atomic, and both have the code "unexpected opcode" (QP-23).
    assert_eq!(failure(atomic.expect("posted")).await, Status::REMOTE_ERROR);
    assert_eq!(terminated(&end.connection).await, (Status::REMOTE_ERROR, false, (0, 2, 6)));
}

#[tokio::test]
async fn immediate_data_consumes_a_receive() {
    for crc in [false, true] {
        let adapter = adapter_with(SoftConfig::default().crc(crc));
        let (end, mut peer, _) =
            raw_connects(&adapter, Start::peer_to_peer(4, 4), AcceptParams::default()).await;
        // QP-23: as the number that it is, or as other stacks put 32 bits.
        for (msn, value) in [(1, [0, 0, 0, 0, 1, 2, 3, 4]), (2, [1, 2, 3, 4, 0, 0, 0, 0])] {
            let receive = end.queue_pair.receive(()).expect("posted");
            peer.post(&raw::untagged(IMMEDIATE, true, 0, msn, 0, &value)).await;
            let outcome = within(receive).await.0.expect("received");
            assert_eq!((outcome.immediate, outcome.bytes), (Some(0x0102_0304), 0), "CRC {crc}");
        }
        // Immediate data without a receive is a violation, as a Send without one (QP-20).
        peer.post(&raw::untagged(IMMEDIATE, true, 0, 3, 0, &[0; 8])).await;
        assert_eq!(peer.last_words().await, Some((1, 2, 2)), "CRC {crc}: it found no receive");
    }
}

#[tokio::test]
async fn peer_invalidates_only_its_own_windows() {
    for crc in [false, true] {
        let adapter = adapter_with(SoftConfig::default().crc(crc));
        let other = connected(&adapter).await;
        let region = adapter.register(64, ALL).await.expect("registered");
        let bound = async |queue_pair: &tokio_rdma::QueuePair| {
            let window = adapter.memory_window().expect("a window");
            let slice = region.slice(0..64).expect("as long");
            let bind = queue_pair.bind(&window, &slice, ALL, WorkOptions::default()).expect("posted");
            within(bind).await.0.expect("bound");
            window
        };
        let strange = bound(&other.active.queue_pair).await;
        let invalidation = |msn, key: RemoteKey, length: usize| {
            let mut send = raw::untagged(4, true, 0, msn, 0, &vec![7; length]);
            send[2..6].copy_from_slice(&key.0.to_be_bytes());
            send
        };
        for dropped in [false, true] {
            let (end, mut peer, _) =
                raw_connects(&adapter, Start::peer_to_peer(4, 4), AcceptParams::default()).await;
            let receives: Vec<_> =
                (0..2).map(|_| end.queue_pair.receive(room(&adapter, 64)).expect("posted")).collect();
            let key = if dropped {
                let key = bound(&end.queue_pair).await.remote();
                // It was dropped at once: dead.
                key.map_or(RemoteKey(1), |remote| remote.key())
            } else {
                strange.remote().expect("bound").key()
            };
            peer.post(&invalidation(1, key, 3)).await;
            // RFC 5040 has the code "STag cannot be invalidated", and the message is not delivered (QP-13).
            assert_eq!(peer.last_words().await, Some((0, 2, 9)), "CRC {crc}");
            for receive in receives {
                assert_eq!(failure(receive).await, Status::CANCELED, "CRC {crc}: it was not delivered");
            }
        }
        // The window is still there for whom it is for.
        let remote = strange.remote().expect("bound");
        success(other.passive.queue_pair.read(room(&adapter, 64), &remote).expect("posted")).await;
    }
}

#[tokio::test]
async fn violation_does_not_wait_for_receive() {
    for crc in [false, true] {
        let adapter = adapter_with(SoftConfig::default().crc(crc));
        let shared = adapter.shared_receive_queue(SharedReceiveConfig::default()).expect("a queue");
        let end =
            || adapter.queue_pair(QueuePairConfig::default().shared_receives(&shared)).expect("a queue pair");
        let start = || Start::peer_to_peer(4, 4);
        // A violation does not wait for a receive, and takes none of the shared queue (SRQ-02).
        for (case, ulpdu, why) in [
            ("message 2 before 1", raw::send(2, b"x"), (1, 2, 3)),
            ("immediate data of 7 bytes", raw::untagged(IMMEDIATE, true, 0, 1, 0, &[0; 7]), (0, 2, 7)),
        ] {
            let (bad, mut peer, _) = raw_connects_to(&adapter, end(), start(), AcceptParams::default()).await;
            peer.post(&ulpdu).await;
            assert_eq!(peer.last_words().await, Some(why), "{case}, CRC {crc}");
            assert_eq!(terminated(&bad.connection).await.2, why, "{case}, CRC {crc}");
        }
        // One that waits, and then has gone: what it said is delivered, and then its end.
        let (good, mut peer, _) = raw_connects_to(&adapter, end(), start(), AcceptParams::default()).await;
        peer.post(&raw::send(1, b"first")).await;
        peer.post(&raw::untagged(IMMEDIATE, true, 0, 2, 0, &[0, 0, 0, 0, 0, 0, 0, 9])).await;
        drop(peer);
        let receives: Vec<_> = (0..2).map(|_| shared.receive(room(&adapter, 8)).expect("posted")).collect();
        let mut found = Vec::new();
        for receive in receives {
            let (outcome, buffer) = within(receive).await;
            let outcome = outcome.expect("received");
            found.push((buffer[..outcome.bytes].to_vec(), outcome.immediate));
        }
        assert_eq!(found, [(b"first".to_vec(), None), (Vec::new(), Some(9))], "CRC {crc}");
        within(good.connection.disconnected()).await;
        assert!(shared.is_empty(), "CRC {crc}");
    }
}
