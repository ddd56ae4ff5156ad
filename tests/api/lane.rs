//! Lanes: slots, posting and polling, completions, the end of a connection.
//!
//! Runs on: soft, sim, rxe, siw

mod life;
mod options;
mod posts;

use common::device::variants;
use common::raw::bytes;
use common::*;
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::qp::{Done, Lane, LaneConfig, LaneQueuePair, LaneState, QueuePairId, Slot};
use tokio_rdma::types::OpKind;
use tokio_rdma::{AcceptParams, Access, Adapter, ConnectParams, Connection, QueuePair, Status};

/// A lane with one connection to a queue pair of the same adapter.
struct Joined {
    lane: Lane,
    id: QueuePairId,
    connection: Connection,
    peer: QueuePair,
    other: Connection,
}

fn lane(adapter: &Adapter, config: LaneConfig) -> Lane {
    adapter.lane(&config).expect("a lane")
}

/// Connects a queue pair of a lane to one of the adapter.
async fn connect(adapter: &Adapter, end: &LaneQueuePair) -> (Connection, QueuePair, Connection) {
    let (listener, address) = listening(adapter);
    let peer = queue_pair(adapter);
    let connector = adapter.connector();
    let connecting = connector.connect_and_complete(end, address, ConnectParams::default());
    let (connection, other) = joined(connecting, listener.accept_next(&peer, AcceptParams::default())).await;
    (connection, peer, other)
}

/// Makes a lane, posts as many receives, and connects it.
async fn join(adapter: &Adapter, config: LaneConfig, receives: usize) -> Joined {
    let mut lane = lane(adapter, config);
    let (id, end) = lane.queue_pair().expect("a queue pair");
    assert_eq!(lane.state(id), LaneState::Unconnected);
    let slots: Vec<Slot> = (0..receives).map(|_| lane.take().expect("a slot")).collect();
    assert_eq!(lane.receive_all(id, slots).expect("posted"), receives);
    let (connection, peer, other) = connect(adapter, &end).await;
    assert_eq!(lane.state(id), LaneState::Connected);
    Joined { lane, id, connection, peer, other }
}

/// Waits for one completion.
async fn next(lane: &mut Lane) -> Done {
    let mut room = [Done::EMPTY];
    let done = within(lane.ready(&mut room)).await.expect("the lane lives");
    assert_eq!(done.len(), 1);
    done[0]
}

/// Waits for as many completions.
async fn completions(lane: &mut Lane, count: usize) -> Vec<Done> {
    let (mut all, mut room) = (Vec::new(), [Done::EMPTY; 7]);
    while all.len() < count {
        all.extend_from_slice(within(lane.ready(&mut room)).await.expect("the lane lives"));
    }
    assert_eq!(all.len(), count);
    all
}

/// Fills a slot with a message.
fn fill(lane: &mut Lane, message: &[u8]) -> Slot {
    let slot = lane.take().expect("a free slot");
    lane.bytes_mut(slot)[..message.len()].copy_from_slice(message);
    slot
}

// LN-01: messages go both ways, each in a slot, and every slot comes back with its completion.
#[tokio::test]
async fn messages_go_both_ways() {
    for (adapter, variant) in variants() {
        let mut joined = join(&adapter, LaneConfig::new(8, 100), 4).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let received = joined.peer.receive(adapter.buffer(100).expect("a buffer")).expect("posted");
        let slot = fill(lane, b"from the lane");
        lane.send(id, slot, 13).expect("posted");
        assert_eq!(lane.outstanding(), 5);
        let done = next(lane).await;
        assert_eq!((done.kind(), done.slot(), done.queue_pair()), (OpKind::Send, slot, id), "{variant}");
        done.ok().expect("sent");
        let (outcome, buffer) = within(received).await;
        let bytes_there = outcome.expect("received").bytes;
        assert_eq!(&buffer[..bytes_there], b"from the lane", "{variant}");
        lane.give(slot);
        let (sent, _) = within(joined.peer.send(bytes(&adapter, b"to the lane")).expect("posted")).await;
        sent.expect("sent");
        let done = next(lane).await;
        assert_eq!((done.kind(), done.bytes(), done.status()), (OpKind::Receive, 11, Status::SUCCESS));
        assert_eq!(&lane.bytes(done.slot())[..done.bytes()], b"to the lane", "{variant}");
        assert_eq!(lane.outstanding(), 3);
    }
}

// LN-33: a receive that was posted before a Send is there for the answer, also if the doorbell rings because of another queue pair.
#[tokio::test]
async fn an_answer_finds_its_receive() {
    for (adapter, variant) in variants() {
        let mut joined = join(&adapter, LaneConfig::new(8, 64).queue_pairs(2), 0).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let (next, end) = lane.queue_pair().expect("a queue pair");
        let (_connection, peer, _other) = connect(&adapter, &end).await;
        assert_eq!(lane.state(next), LaneState::Connected);
        let received =
            |peer: &QueuePair| peer.receive(adapter.buffer(64).expect("a buffer")).expect("posted");
        let (question, _kept) = (received(&joined.peer), received(&peer));
        let slot = lane.take().expect("a slot");
        lane.receive(id, slot).expect("posted");
        for id in [id, next] {
            let slot = fill(lane, b"question");
            lane.send(id, slot, 8).expect("posted");
        }
        within(question).await.0.expect("received");
        within(joined.peer.send(bytes(&adapter, b"answer")).expect("posted")).await.0.expect("sent");
        // What is read comes behind the answer, so that has arrived, and no poll has posted anything.
        let there = adapter.register(64, Access::REMOTE_READ).await.expect("registered");
        let here = adapter.register(64, Access::LOCAL_WRITE | Access::READ_SINK).await.expect("registered");
        let read = joined.peer.read(here.slice(0..8).expect("in bounds"), &there.remote()).expect("posted");
        within(read).await.0.expect(variant);
        let done = completions(lane, 3).await;
        assert!(done.iter().all(Done::is_success), "{variant}: {done:?}");
    }
}

// LN-02: requests of one queue pair complete in the order of the calls, however many there are for one doorbell.
#[tokio::test]
async fn bulk_posts_keep_their_order() {
    const COUNT: usize = 100;
    for (adapter, variant) in variants() {
        let mut other = lane(&adapter, LaneConfig::new(COUNT, 64));
        let (there, end) = other.queue_pair().expect("a queue pair");
        let slots: Vec<Slot> = std::iter::from_fn(|| other.take()).collect();
        assert_eq!(slots.len(), COUNT);
        assert_eq!(other.receive_all(there, slots.iter().copied()).expect("posted"), COUNT);
        let mut lane = lane(&adapter, LaneConfig::new(COUNT, 64));
        let (here, own) = lane.queue_pair().expect("a queue pair");
        let (listener, address) = listening(&adapter);
        let connector = adapter.connector();
        let connecting = connector.connect_and_complete(&own, address, ConnectParams::default());
        let _connections = joined(connecting, listener.accept_next(&end, AcceptParams::default())).await;
        let sends: Vec<(Slot, usize)> =
            (0..COUNT).map(|number| (fill(&mut lane, &[number as u8; 40]), 40)).collect();
        assert_eq!(lane.send_all(here, sends.iter().copied()).expect("posted"), COUNT);
        let sent: Vec<Slot> = completions(&mut lane, COUNT).await.iter().map(Done::slot).collect();
        assert_eq!(sent, sends.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), "{variant}");
        let received = completions(&mut other, COUNT).await;
        for (number, (done, slot)) in received.iter().zip(&slots).enumerate() {
            assert_eq!((done.slot(), done.bytes(), done.queue_pair()), (*slot, 40, there), "{variant}");
            assert_eq!(other.bytes(*slot)[..40], [number as u8; 40]);
        }
    }
}

// LN-33: a receive that is posted before a request is there when that is handed over, whichever queue pair they are for and whatever
// hands it over. Nothing is repeated: neither on devices, with a retry count of 0, nor on soft.
#[tokio::test]
async fn receives_are_there_before_what_follows() {
    const CHAIN: usize = 64;
    for (adapter, variant) in variants() {
        let mut lane = lane(&adapter, LaneConfig::new(2 * (CHAIN + 1), 64).queue_pairs(2));
        let (here, own) = lane.queue_pair().expect("a queue pair");
        let (there, end) = lane.queue_pair().expect("another");
        let (listener, address) = listening(&adapter);
        let connector = adapter.connector();
        let (mut connect, mut accept) = (ConnectParams::default(), AcceptParams::default());
        if !Device::under_test().is_soft() {
            (connect, accept) = (connect.rnr_retry_count(0), accept.rnr_retry_count(0));
        }
        let connecting = connector.connect_and_complete(&own, address, connect);
        let accepting = listener.accept_next(&end, accept);
        let _connections = joined(connecting, accepting).await;
        // The first poll has news of the connection.
        for way in ["poll", "poll", "ring", "now", "request for another queue pair", "full chain"] {
            let pair = |lane: &mut Lane| {
                let receive = lane.take().expect("a slot");
                lane.receive(there, receive).expect("posted");
                fill(lane, b"there")
            };
            let slot = pair(&mut lane);
            let mut expected = 2;
            match way {
                "now" => lane.send_now(here, slot, 5).expect("posted"),
                _ => lane.send(here, slot, 5).expect("posted"),
            }
            match way {
                "ring" => lane.ring(),
                "request for another queue pair" => {
                    let back = lane.take().expect("a slot");
                    lane.receive(here, back).expect("posted");
                    let slot = fill(&mut lane, b"back");
                    lane.send(there, slot, 4).expect("posted");
                    expected = 4;
                }
                "full chain" => {
                    for _ in 1..CHAIN {
                        let slot = pair(&mut lane);
                        lane.send(here, slot, 5).expect("posted");
                    }
                    // The doorbell rings for the next one.
                    let slot = pair(&mut lane);
                    lane.send(here, slot, 5).expect("posted");
                    expected = 2 * (CHAIN + 1);
                }
                _ => {}
            }
            for done in completions(&mut lane, expected).await {
                done.ok().unwrap_or_else(|error| panic!("{variant}, {way}: {error}"));
                lane.give(done.slot());
            }
        }
    }
}

// LN-03: Writes and Reads move parts of slots to and from memory of the peer.
#[tokio::test]
async fn parts_of_slots_are_written_and_read() {
    for (adapter, variant) in variants() {
        let mut joined = join(&adapter, LaneConfig::new(4, 128), 0).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = adapter.register(256, access).await.expect("registered");
        let slot = fill(lane, b"..written..");
        lane.write(id, slot, 2..9, &region.remote_part(100..200).expect("in bounds")).expect("posted");
        let done = next(lane).await;
        assert_eq!((done.kind(), done.status()), (OpKind::Write, Status::SUCCESS), "{variant}");
        let read = lane.read(id, slot, 64..71, &region.remote_part(100..107).expect("in bounds"));
        if adapter.info().read_sink_required {
            assert!(matches!(read, Err(PostErrorKind::NotSupported(_))), "{variant}: {read:?}");
            continue;
        }
        read.expect("posted");
        let done = next(lane).await;
        assert_eq!((done.kind(), done.status(), done.slot()), (OpKind::Read, Status::SUCCESS, slot));
        assert_eq!(&lane.bytes(slot)[..11], b"..written..", "{variant}");
        assert_eq!(&lane.bytes(slot)[64..71], b"written", "{variant}");
    }
}

// LN-04: a slot that the program does not hold is an error, whoever has it, and nothing is posted.
#[tokio::test]
async fn slots_that_are_not_held_are_refused() {
    for (adapter, variant) in variants() {
        let mut joined = join(&adapter, LaneConfig::new(4, 64), 1).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let not_held = |slot: Slot| Err(PostErrorKind::NotHeld { slot: slot.number() });
        let free = fill(lane, b"given back");
        lane.give(free);
        assert_eq!(lane.send(id, free, 5), not_held(free), "{variant}: a free one");
        let slot = fill(lane, b"once");
        lane.receive(id, slot).expect("posted");
        for refused in [lane.send(id, slot, 4), lane.receive(id, slot)] {
            assert_eq!(refused, not_held(slot), "{variant}: one that a receive has");
        }
        assert_eq!(lane.outstanding(), 2);
        let held = fill(lane, b"held");
        let too_long = Err(PostErrorKind::TooLong { length: 65, maximum: 64 });
        assert_eq!(lane.send(id, held, 65), too_long, "{variant}");
        assert_eq!(&lane.bytes(held)[..4], b"held", "it is still held");
        // Of a larger lane, so that this one has no such slot.
        let mut large = self::lane(&adapter, LaneConfig::new(100, 64));
        let foreign = std::iter::from_fn(|| large.take()).last().expect("a slot");
        assert_eq!(lane.send(id, foreign, 4), not_held(foreign), "{variant}: a foreign one");
    }
}

// LN-05: both queues hold as many requests as was asked for, and no more.
#[tokio::test]
async fn full_queues_refuse() {
    for (adapter, variant) in variants() {
        let config = LaneConfig::new(16, 64).send_depth(3).receive_depth(2);
        let mut joined = join(&adapter, config, 2).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let slot = lane.take().expect("a slot");
        let full = lane.receive(id, slot).expect_err("full");
        assert!(matches!(full, PostErrorKind::QueueFull { depth: 2, .. }), "{variant}: {full}");
        for _ in 0..4 {
            let _kept = joined.peer.receive(adapter.buffer(64).expect("a buffer")).expect("posted");
        }
        let slots: Vec<(Slot, usize)> = (0..5).map(|_| (fill(lane, b"x"), 1)).collect();
        assert_eq!(lane.send_all(id, slots).expect("three are posted"), 3, "{variant}");
        completions(lane, 3).await.iter().for_each(|done| done.ok().expect("sent"));
        lane.send(id, slot, 1).expect("there is room again");
        next(lane).await.ok().expect("sent");
    }
}

// LN-06: before the connection nothing but receives can be posted, and an id that is not of the lane names no queue pair.
#[tokio::test]
async fn nothing_is_sent_before_the_connection() {
    for (adapter, variant) in variants() {
        let mut lane = lane(&adapter, LaneConfig::new(4, 64).queue_pairs(2));
        let (id, _end) = lane.queue_pair().expect("a queue pair");
        let slot = lane.take().expect("a slot");
        assert_eq!(lane.send(id, slot, 1), Err(PostErrorKind::ConnectionInvalid), "{variant}");
        lane.receive(id, slot).expect("a receive can be posted");
        let mut other = self::lane(&adapter, LaneConfig::new(4, 64).queue_pairs(9));
        let foreign = (0..9).map(|_| other.queue_pair().expect("one of nine").0).last().expect("nine");
        let slot = lane.take().expect("a slot");
        assert_eq!(lane.receive(foreign, slot), Err(PostErrorKind::ConnectionInvalid), "{variant}");
        let more = lane.queue_pair().and_then(|_| lane.queue_pair());
        assert!(more.expect_err("two at most").to_string().contains("queue pairs"), "{variant}");
    }
}
