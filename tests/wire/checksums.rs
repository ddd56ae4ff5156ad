//! Frames with CRC on: many in one read, parts of them, and bad ones among good ones.
//!
//! Runs on: soft, sim

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::raw::{self, CRC, Raw, Start, failure, raw_accepts, raw_connects, room, success, terminated};
use common::*;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{AcceptParams, Access, Adapter, Region, RemoteRegion, Status};

/// The Terminate for a checksum that is wrong.
const MISMATCH: (u8, u8, u8) = (2, 0, 2);
/// The payload of a large frame.
const LARGE: usize = 65_520;
/// That of a Send.
const MESSAGE: usize = 65_516;

/// Connects a raw peer to an `End`, its passive side, with CRC.
async fn checked(adapter: &Adapter) -> (End, Raw) {
    let start = Start::peer_to_peer(4, 4).flag(CRC);
    let (end, peer, _) = raw_connects(adapter, start, AcceptParams::default()).await;
    (end, peer)
}

/// Changes a bit of the payload of a frame, or of what follows the payload.
fn spoilt(mut frame: Vec<u8>, from_end: usize) -> Vec<u8> {
    let at = frame.len() - from_end;
    frame[at] ^= 4;
    frame
}

fn found(region: &Region) -> Vec<u8> {
    let mut found = vec![0; region.len()];
    region.read(0, &mut found).expect("as long");
    found
}

// SEC-14: what came before a bad frame in the same read is placed, and nothing of the bad one or behind it.
#[tokio::test]
async fn frames_before_a_bad_one_are_placed() {
    let adapter = adapter();
    for (sizes, bad) in [
        (vec![LARGE; 12], 11),
        (vec![LARGE; 12], 4),
        (vec![LARGE, 1, 20_000, LARGE, 300, LARGE, LARGE], 5),
        (vec![40; 60], 33),
        (vec![LARGE], 0),
    ] {
        for from_end in [1, 9] {
            let case = format!("frame {bad} of {sizes:?}, {from_end} before its end");
            let region =
                adapter.register(sizes.iter().sum(), Access::REMOTE_WRITE).await.expect("registered");
            let (key, offset) = (region.key().0, region.remote().address());
            let (end, mut peer) = checked(&adapter).await;
            let (mut stream, mut expected) = (Vec::new(), vec![0; region.len()]);
            let mut at = 0;
            for (number, size) in sizes.iter().enumerate() {
                let payload = vec![number as u8 + 1; *size];
                let frame = raw::fpdu(&raw::write(key, offset + at as u64, &payload), true);
                if number < bad {
                    expected[at..][..*size].copy_from_slice(&payload);
                }
                stream.extend(if number == bad { spoilt(frame, from_end) } else { frame });
                at += size;
            }
            peer.try_say(&stream).await;
            assert_eq!(terminated(&end.connection).await.2, MISMATCH, "{case}");
            assert!(found(&region) == expected, "{case}");
        }
    }
}

// Two valid segments do not deliver a message whose third is invalid (SEC-14).
#[tokio::test]
async fn message_with_bad_last_segment_is_discarded() {
    let adapter = adapter();
    let (end, mut peer) = checked(&adapter).await;
    let receive = end.queue_pair.receive(room(&adapter, 3 * MESSAGE)).expect("posted");
    let segment = |number: usize| {
        let payload = vec![number as u8; MESSAGE];
        raw::fpdu(&raw::untagged(raw::SEND, number == 2, 0, 1, (number * MESSAGE) as u32, &payload), true)
    };
    let stream = [segment(0), segment(1), spoilt(segment(2), 5)].concat();
    peer.try_say(&stream).await;
    assert_eq!(failure(receive).await, Status::CANCELED);
    assert_eq!(terminated(&end.connection).await.2, MISMATCH);
}

// Two valid segments do not complete a read whose third is invalid (SEC-14).
#[tokio::test]
async fn a_read_whose_last_segment_is_bad_fails() {
    let adapter = adapter();
    for bad in [true, false] {
        let (end, mut peer, _) = raw_accepts(&adapter, Start::enhanced(4, 4).flag(CRC)).await;
        let remote = RemoteRegion::new(0, RemoteKey(7), 3 * LARGE as u32);
        let read = end.queue_pair.read(room(&adapter, 3 * LARGE), &remote).expect("posted");
        let request = peer.message().await.expect("the read");
        let (sink, offset) = (request.word(18), request.long(22));
        let segment = |number: usize| {
            let (last, to) = (number == 2, offset + (number * LARGE) as u64);
            raw::fpdu(&raw::tagged(raw::READ_RESPONSE, last, sink, to, &vec![number as u8; LARGE]), true)
        };
        let last = if bad { spoilt(segment(2), 5) } else { segment(2) };
        peer.try_say(&[segment(0), segment(1), last].concat()).await;
        if bad {
            assert_eq!(failure(read).await, Status::CANCELED);
            assert_eq!(terminated(&end.connection).await.2, MISMATCH);
        } else {
            let (_, buffer) = success(read).await;
            let parts = buffer.chunks(LARGE).enumerate();
            assert!(parts.into_iter().all(|(number, part)| part == vec![number as u8; LARGE]));
        }
    }
}

// However the stream is cut, each frame is checked where it has come as a whole, or gathered.
#[tokio::test]
async fn frames_arrive_however_the_stream_is_cut() {
    let adapter = adapter();
    let sizes = [5, MESSAGE, 300, MESSAGE, MESSAGE, 1, 20_000, 7, 7, 7, MESSAGE, 0, 16_384, 2];
    for step in [1000, 16_384, 65_537, 150_000, usize::MAX] {
        let (end, mut peer) = checked(&adapter).await;
        let payload =
            |number: usize| -> Vec<u8> { (0..sizes[number]).map(|at| (at * 7 + number) as u8).collect() };
        let mut receives = Vec::new();
        let mut stream = Vec::new();
        for number in 0..sizes.len() {
            receives.push(end.queue_pair.receive(room(&adapter, MESSAGE)).expect("posted"));
            stream.extend(raw::fpdu(&raw::send(number as u32 + 1, &payload(number)), true));
        }
        let talk = async {
            for part in stream.chunks(step.min(stream.len())) {
                peer.say(part).await;
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
            }
        };
        let listen = async {
            for (number, receive) in receives.into_iter().enumerate() {
                let (length, buffer) = success(receive).await;
                assert!(buffer[..length] == payload(number), "message {number} in steps of {step}");
            }
        };
        tokio::join!(talk, listen);
    }
}

// A checksum covers the bytes that are sent, even if the memory changes during the send.
#[tokio::test]
async fn changing_memory_is_sent_with_right_checksum() {
    const LENGTH: usize = 4 * LARGE;
    let adapter = adapter();
    let region = adapter.register(LENGTH, Access::REMOTE_READ).await.expect("registered");
    let (end, mut peer, _) = raw_accepts(&adapter, Start::enhanced(4, 4).flag(CRC)).await;
    let done = Arc::new(AtomicBool::new(false));
    let writes = async {
        let remote = RemoteRegion::new(0, RemoteKey(7), LENGTH as u32);
        for _ in 0..50 {
            success(
                end.queue_pair.write(region.slice(0..LENGTH).expect("all of it"), &remote).expect("posted"),
            )
            .await;
        }
    };
    let reads = async {
        let mut bytes = 0;
        while bytes < 50 * LENGTH {
            // It checks the sum.
            bytes += peer.message().await.expect("a frame").payload().len();
        }
    };
    let writer = std::thread::spawn({
        let (region, done) = (region.clone(), Arc::clone(&done));
        move || {
            let mut round = 0_u8;
            while !done.load(Ordering::Relaxed) {
                region.write(0, &[round; LENGTH]).expect("as long");
                round = round.wrapping_add(1);
            }
        }
    });
    tokio::join!(writes, reads);
    done.store(true, Ordering::Relaxed);
    writer.join().expect("it wrote");
}
