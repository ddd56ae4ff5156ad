//! Segments that announce how many follow: messages of any length and in any pieces, and peers that announce something
//! else than they send.
//!
//! Runs on: soft, sim

use common::dice::Dice;
use common::raw::{
    self, OFFERS_ANNOUNCEMENTS, Raw, Start, TAKES_ANNOUNCEMENTS, announced, announcing, bytes, raw_accepts,
    raw_connects, room, success, terminated,
};
use common::*;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{AcceptParams, Access, Adapter, DisconnectReason, Region, RemoteRegion, Status};

/// The payload of a full segment of a Write or a Read Response, and of a Send.
const FULL: usize = 65_520;
const FULL_SEND: usize = 65_516;
/// The bytes around the memory that a message is for.
const MARGIN: usize = 16;
/// The byte that fills memory before.
const FILL: u8 = 0x5a;

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 / 3) as u8).collect()
}

/// Cuts a message into segments, of which the first one may not be full. `segment` makes one from its offset, whether it
/// is the last one, and its payload.
fn segments(
    content: &[u8],
    full: usize,
    announces: bool,
    segment: impl Fn(usize, bool, &[u8]) -> Vec<u8>,
) -> Vec<Vec<u8>> {
    let first = (content.len() - 1) % full + 1;
    let mut from = 0;
    let ends = (first..=content.len()).step_by(full);
    ends.map(|end| {
        let ulpdu = segment(from, end == content.len(), &content[from..end]);
        from = end;
        if announces { announcing(ulpdu, ((content.len() - end) / full).min(63)) } else { ulpdu }
    })
    .collect()
}

/// Four segments of a Write, which announce 3, 2, 1 and 0 others.
fn write(key: RemoteKey, to: usize) -> Vec<Vec<u8>> {
    segments(&content(3 * FULL + 1000), FULL, true, |from, last, part| {
        raw::tagged(raw::WRITE, last, key.0, (to + from) as u64, part)
    })
}

fn frames(ulpdus: &[Vec<u8>]) -> Vec<u8> {
    ulpdus.iter().flat_map(|ulpdu| raw::fpdu(ulpdu, false)).collect()
}

/// A connection of a peer that announces segments.
async fn announcing_peer(adapter: &Adapter) -> (End, Raw) {
    let start = Start::peer_to_peer(8, 8).flag(OFFERS_ANNOUNCEMENTS);
    let (end, peer, reply) = raw_connects(adapter, start, AcceptParams::default()).await;
    assert_eq!(reply.flags & (OFFERS_ANNOUNCEMENTS | TAKES_ANNOUNCEMENTS), TAKES_ANNOUNCEMENTS);
    (end, peer)
}

async fn target(adapter: &Adapter, length: usize) -> Region {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region = adapter.register(length + 2 * MARGIN, access).await.expect("registered");
    region.write(0, &vec![FILL; region.len()]).expect("as long");
    region
}

/// Returns the bytes between the margins, which nobody has written to.
fn written(region: &Region, case: &str) -> Vec<u8> {
    let mut found = vec![0; region.len()];
    region.read(0, &mut found).expect("as long");
    let behind = found.split_off(found.len() - MARGIN);
    let rest = found.split_off(MARGIN);
    assert!([found, behind].iter().all(|margin| *margin == [FILL; MARGIN]), "{case}");
    rest
}

// The same bytes arrive whatever a read brings, and whether segments are announced or not (QP-02, QP-03, QP-04).
#[tokio::test]
async fn announced_messages_arrive_in_any_pieces() {
    let adapter = adapter();
    let (length, seed) = (3 * FULL + 1000, Dice::seed());
    let content = content(length);
    for case in 0..24 {
        let (announces, mut dice) = (case % 2 == 0, Dice::of(seed, case / 2));
        let case = format!("case {case}");
        let (end, mut peer) = announcing_peer(&adapter).await;
        let (region, sink) = (target(&adapter, length).await, target(&adapter, length).await);
        let receive = end.queue_pair.receive(room(&adapter, length)).expect("posted");
        let part = sink.slice(MARGIN..MARGIN + length).expect("in bounds");
        let somewhere = RemoteRegion::new(0, RemoteKey(7), length as u32);
        let read = end.queue_pair.read(part, &somewhere).expect("posted");
        let request = peer.message().await.expect("the read");
        let (stag, to) = (request.word(18), request.long(22));
        let messages = [
            segments(&content, FULL, announces, |from, last, part| {
                raw::tagged(raw::WRITE, last, region.key().0, (MARGIN + from) as u64, part)
            }),
            segments(&content, FULL, announces, |from, last, part| {
                raw::tagged(raw::READ_RESPONSE, last, stag, to + from as u64, part)
            }),
            segments(&content, FULL_SEND, announces, |from, last, part| {
                raw::untagged(raw::SEND, last, 0, 1, from as u32, part)
            }),
        ];
        let stream = frames(&messages.concat());
        let say = async {
            let mut rest = &stream[..];
            while !rest.is_empty() {
                let most = [1, 30, 5000, 100_000, 700_000][dice.below(5)];
                let (piece, behind) = rest.split_at((1 + dice.below(most)).min(rest.len()));
                peer.say(piece).await;
                tokio::task::yield_now().await;
                rest = behind;
            }
        };
        let ((), read, (got, buffer)) = tokio::join!(say, success(read), success(receive));
        assert_eq!((read.0, got), (length, length), "{case}");
        assert!(buffer[..] == content && written(&sink, &case) == content, "{case}");
        assert!(written(&region, &case) == content, "{case}");
    }
}

// Between two ends of this crate: one segment and a half, as many as a header can say, and more.
#[tokio::test]
async fn messages_of_many_segments_arrive() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let most = 66 * FULL + 5;
    let region = target(&adapter, most).await;
    // The first segment of some is padded.
    let lengths =
        [FULL_SEND + 1, FULL, FULL + 1, 2 * FULL, 3 * FULL + 20_001, 17 * FULL + 3, 64 * FULL, most];
    for length in lengths {
        let content = content(length);
        let remote = region.remote_part(MARGIN..MARGIN + length).expect("in bounds");
        for (from, to) in [(&pair.active, &pair.passive), (&pair.passive, &pair.active)] {
            region.write(MARGIN, &vec![FILL; length]).expect("as long");
            success(from.queue_pair.write(bytes(&adapter, &content), &remote).expect("posted")).await;
            let receive = to.queue_pair.receive(room(&adapter, length)).expect("posted");
            success(from.queue_pair.send(bytes(&adapter, &content)).expect("posted")).await;
            assert!(success(receive).await.1[..] == content[..], "a Send of {length}");
            assert!(written(&region, "a Write")[..length] == content[..], "a Write of {length}");
            let read = from.queue_pair.read(room(&adapter, length), &remote).expect("posted");
            assert!(success(read).await.1[..] == content[..], "a Read of {length}");
        }
    }
}

// The reserved bits of a segment stay zero unless the reply has taken the offer. siw sends the bits of the request back.
#[tokio::test]
async fn only_an_offer_that_is_taken_counts() {
    let adapter = adapter();
    for (flag, expected) in [
        (0, [(FULL, 0), (FULL, 0), (1, 0)]),
        (OFFERS_ANNOUNCEMENTS, [(FULL, 0), (FULL, 0), (1, 0)]),
        (TAKES_ANNOUNCEMENTS, [(1, 2), (FULL, 1), (FULL, 0)]),
    ] {
        let (end, mut peer, request) = raw_accepts(&adapter, Start::enhanced(8, 8).flag(flag)).await;
        assert_ne!(request.flags & OFFERS_ANNOUNCEMENTS, 0);
        let there = RemoteRegion::new(0, RemoteKey(7), 2 * FULL as u32 + 1);
        let write = end.queue_pair.write(bytes(&adapter, &content(2 * FULL + 1)), &there).expect("posted");
        let mut to = 0;
        for (length, count) in expected {
            let frame = peer.message().await.expect("a segment");
            assert_eq!((frame.payload().len(), announced(&frame.0)), (length, count), "{flag:#06x}");
            assert_eq!((frame.long(6), frame.is_last()), (to, to as usize + length == 2 * FULL + 1));
            to += length as u64;
        }
        success(write).await;
    }
}

type Lie = (&'static str, fn(&mut Vec<Vec<u8>>), usize);

/// Changes of the four segments, and the number of the one that is not as announced.
const LIES: &[Lie] = &[
    ("a number that does not fall", |all| all[1] = announcing(std::mem::take(&mut all[1]), 3), 1),
    ("a number that falls by two", |all| all[1][0] ^= 0x0c, 1),
    ("none behind the first", |all| all[1][0] &= !0x3c, 1),
    ("one behind the last", |all| all[3] = announcing(std::mem::take(&mut all[3]), 1), 3),
    ("another offset", |all| all[2][13] ^= 1, 2),
    ("another key", |all| all[1][5] ^= 1, 1),
    ("a shorter segment", |all| all[2].truncate(FULL), 2),
    ("an end before the last", |all| all[2][0] |= 0x40, 2),
    ("no end", |all| all[3][0] &= !0x40, 3),
    ("a message in between", |all| all.insert(2, raw::send(1, b"text")), 2),
    ("an empty Write in between", |all| all.insert(1, raw::write(0, 0, &[])), 1),
    ("an answer in between", |all| all[2][1] |= raw::READ_RESPONSE, 2),
    ("some behind an end", |all| all[0][0] |= 0x40, 0),
];

// A peer that sends something else than it has announced gets a Terminate, whatever a read brings. What it has written
// lies within what it has announced (SEC-14).
#[tokio::test]
async fn an_announcement_is_binding() {
    let adapter = adapter();
    for &(case, change, number) in LIES {
        for piece in [usize::MAX, 60_000, 777] {
            let case = format!("{case}, by {piece}");
            let (end, mut peer) = announcing_peer(&adapter).await;
            let region = target(&adapter, 3 * FULL + 1000).await;
            let receive = end.queue_pair.receive(room(&adapter, 8)).expect("posted");
            let mut all = write(region.key(), MARGIN);
            change(&mut all);
            let stream = frames(&all[..=number]);
            for piece in stream.chunks(piece.min(stream.len())) {
                peer.try_say(piece).await;
            }
            assert_eq!(peer.last_words().await, Some((0, 2, 7)), "{case}");
            assert!(terminated(&end.connection).await.1, "{case}");
            assert_eq!(raw::failure(receive).await, Status::CANCELED, "{case}");
            written(&region, &case);
        }
    }
}

// Rights and bounds of all that is announced are checked first, and a segment that has none ends the connection as if
// it had not been announced.
#[tokio::test]
async fn announced_segments_beyond_the_region_are_refused() {
    let adapter = adapter();
    for piece in [usize::MAX, 60_000, 777] {
        let (end, mut peer) = announcing_peer(&adapter).await;
        let region = target(&adapter, 1000 + 2 * FULL).await;
        let stream = frames(&write(region.key(), MARGIN));
        for piece in stream.chunks(piece.min(stream.len())) {
            peer.try_say(piece).await;
        }
        assert_eq!(peer.last_words().await, Some((1, 1, 1)));
        assert!(terminated(&end.connection).await.1);
        assert!(written(&region, "what is in bounds") == content(1000 + 2 * FULL), "by {piece}");
    }
}

/// Sends the first segment and half of the second, and waits until they are in their place.
async fn begin(peer: &mut Raw, region: &Region) -> Vec<u8> {
    let mut stream = frames(&write(region.key(), MARGIN));
    let rest = stream.split_off(2000 + FULL / 2);
    peer.say(&stream).await;
    let last = 1000 + FULL / 2;
    let arrived = || {
        let mut byte = [0];
        region.read(MARGIN + last, &mut byte).expect("in bounds");
        byte[0] == content(last + 1)[last]
    };
    within(async {
        while !arrived() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    rest
}

// No byte of an announced segment is placed after `deregister` has returned (MR-01).
#[tokio::test]
async fn deregistration_ends_an_announced_write() {
    let adapter = adapter();
    let (end, mut peer) = announcing_peer(&adapter).await;
    let region = target(&adapter, 3 * FULL + 1000).await;
    let rest = begin(&mut peer, &region).await;
    region.deregister().await.expect("deregistered");
    let before = written(&region, "at the deregistration");
    peer.try_say(&rest).await;
    assert_eq!(peer.last_words().await, Some((1, 1, 0)));
    assert!(terminated(&end.connection).await.1);
    assert!(written(&region, "after it") == before);
}

// A peer may end the connection amid an announced message, by a Terminate or without.
#[tokio::test]
async fn announced_message_may_be_left_unfinished() {
    let adapter = adapter();
    let why = raw::fpdu(&raw::terminate(&[0x02, 6, 0, 0]), false);
    for terminates in [false, true] {
        let (end, mut peer) = announcing_peer(&adapter).await;
        let region = target(&adapter, 3 * FULL + 1000).await;
        let rest = begin(&mut peer, &region).await;
        if terminates {
            // The second segment as a whole.
            peer.say(&[&rest[..raw_length(2) - (2000 + FULL / 2)], &why].concat()).await;
            let (_, sent, found) = terminated(&end.connection).await;
            assert_eq!((sent, found), (false, (0, 2, 6)));
        } else {
            drop(peer);
            let reason = within(end.connection.disconnected()).await;
            assert!(matches!(reason, DisconnectReason::Lost { .. }), "{reason:?}");
        }
        written(&region, "a message without its end");
    }
}

/// The length of the first segments of [`write`] as frames.
fn raw_length(count: usize) -> usize {
    frames(&write(RemoteKey(1), 0)[..count]).len()
}
