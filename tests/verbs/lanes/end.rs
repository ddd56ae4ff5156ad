//! The end of queue pairs, of lanes and of devices with requests outstanding: slots of requests come back when the device no longer
//! uses them, and never before.
//!
//! Runs on: fake, fake-iwarp

use std::time::Duration;

use common::life::{Log, eventually, poll_once, poll_with};
use common::process::alone;
use common::raw::bytes;
use common::verbs::{fake, fake_reset, hold, nothing_is_left};
use common::*;
use tokio_rdma::error::{NotifyError, PostErrorKind};
use tokio_rdma::qp::{Done, Lane, LaneConfig, LaneState, Local, Slot};
use tokio_rdma::types::OpKind;
use tokio_rdma::{AcceptParams, Access, ConnectParams, DisconnectReason, Status, WorkOptions};

use super::*;

/// The bytes of slots that the program has, which nobody else writes.
struct Watched(Vec<Slot>);

const PATTERN: u8 = 0x5a;

impl Watched {
    /// Takes all free slots, and fills them.
    fn all(lane: &mut Lane) -> Self {
        let slots: Vec<Slot> = std::iter::from_fn(|| lane.take()).collect();
        let mut watched = Self(Vec::new());
        slots.into_iter().for_each(|slot| watched.add(lane, slot));
        watched
    }

    /// Fills another one.
    fn add(&mut self, lane: &mut Lane, slot: Slot) {
        lane.bytes_mut(slot).fill(PATTERN);
        self.0.push(slot);
    }

    /// Asserts that no device has written to them, after it has written wherever it may. Returns the number of its bytes.
    fn check(&self, lane: &Lane) -> i64 {
        let written = fake("scribble").expect("a number");
        for slot in &self.0 {
            assert!(lane.bytes(*slot).iter().all(|byte| *byte == PATTERN), "slot {}", slot.number());
        }
        written
    }
}

/// The end of a connection.
const ENDS: [&str; 3] = ["the lane closes it", "the peer leaves", "the peer breaks it"];

// LN-21: a device that keeps its receives for a while after the end of a connection may write to them until its queue pair is
// destroyed, and until then none of their slots comes back.
#[tokio::test]
async fn slots_come_back_after_the_device_has_let_go() {
    if !alone(module_path!(), "slots_come_back_after_the_device_has_let_go") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    for end in ENDS {
        let adapter = adapter();
        let mut joined = join(&adapter, LaneConfig::new(12, 64), 4).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let mut watched = Watched::all(lane);
        watched.check(lane);
        fake("keep requests");
        match end {
            "the lane closes it" => lane.close(id),
            "the peer leaves" => within(joined.other.disconnect()).await.expect("disconnected"),
            _ => drop(joined.peer.send(bytes(&adapter, &[1; 65])).expect("posted")),
        }
        within(joined.connection.disconnected()).await;
        let (mut room, mut back) = ([Done::EMPTY; 3], 0);
        within(async {
            while lane.state(id) != LaneState::Gone || back < 4 {
                watched.check(lane);
                let done = lane.poll(&mut room).expect("the lane lives");
                // One that the device has completed by itself; the others come when it is destroyed.
                let early = usize::from(end == "the peer breaks it");
                let is_destroyed = back + done.len() > early;
                assert!(!is_destroyed || fake("scribble") == Some(0), "{end}");
                for done in done {
                    assert_eq!((done.kind(), done.is_success()), (OpKind::Receive, false), "{end}");
                    watched.add(lane, done.slot());
                    back += 1;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        watched.check(lane);
        assert_eq!(
            (back, lane.outstanding(), lane.poll(&mut room).expect("alive").len()),
            (4, 0, 0),
            "{end}"
        );
        watched.0.iter().for_each(|slot| lane.give(*slot));
        assert_eq!(std::iter::from_fn(|| lane.take()).count(), 12, "{end}");
        fake("keep nothing");
        fake("reset");
    }
    nothing_is_left().await;
}

// LN-22: the slots of a queue pair that the device cannot destroy never come back. The lane and its other queue pairs go on.
#[tokio::test]
async fn slots_of_an_undestroyable_queue_pair_are_withheld() {
    if !alone(module_path!(), "slots_of_an_undestroyable_queue_pair_are_withheld") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let mut joined = join(&adapter, LaneConfig::new(12, 64).queue_pairs(2), 3).await;
    let (lane, id) = (&mut joined.lane, joined.id);
    let (next, end) = lane.queue_pair().expect("a queue pair");
    let (_connection, peer, _other) = connect(&adapter, &end).await;
    let slots: Vec<Slot> = (0..2).map(|_| lane.take().expect("a slot")).collect();
    lane.receive_all(next, slots.iter().copied()).expect("posted");
    let mut watched = Watched::all(lane);
    fake("forgive");
    fake("keep requests");
    fake(&format!("refuse ibv_destroy_qp {}", libc::EBUSY));
    lane.close(id);
    assert_eq!(until_gone(lane, id, 4).await.len(), 0);
    assert_eq!(lane.outstanding(), 2, "what is withheld does not count");
    assert!(lane.take().is_none(), "nothing is free");
    watched.check(lane);
    // The other one receives, into its own slots.
    within(peer.send(bytes(&adapter, b"hello")).expect("posted")).await.0.expect("sent");
    let done = completions(lane, 1).await[0];
    assert_eq!((done.queue_pair(), done.slot(), done.bytes()), (next, slots[0], 5));
    watched.add(lane, slots[0]);
    watched.check(lane);
    // Nor is its memory freed with the lane.
    let tried = fake("calls ibv_destroy_qp");
    drop((joined, peer, end, _connection, _other));
    eventually("the others are destroyed", || fake("calls ibv_destroy_qp") >= tried.map(|tried| tried + 1))
        .await;
    assert!(fake("scribble").expect("a number") >= 3 * 64, "the device writes on");
}

// LN-22: what a request that reads into a region has is withheld like slots, also if the lane is dropped before it learns of that.
#[tokio::test]
async fn regions_of_an_undestroyable_queue_pair_are_withheld() {
    if !alone(module_path!(), "regions_of_an_undestroyable_queue_pair_are_withheld") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let mut joined = join(&adapter, LaneConfig::new(4, 64), 0).await;
    let (lane, id) = (&mut joined.lane, joined.id);
    let there = adapter.register(4096, Access::REMOTE_READ).await.expect("registered");
    let here = adapter.register(4096, Access::LOCAL_WRITE | Access::READ_SINK).await.expect("registered");
    let before = count("mr");
    fake("forgive");
    // The read is under way when the port goes down.
    fake("port 1 down");
    let into = here.slice(0..4096).expect("in bounds");
    lane.read_with(id, Local::Region(&into), &there.remote(), WorkOptions::default()).expect("posted");
    fake("keep requests");
    fake(&format!("refuse ibv_destroy_qp {}", libc::EBUSY));
    lane.close(id);
    let mut room = [Done::EMPTY; 1];
    let _held = hold("ibv_destroy_qp");
    // The lane has it destroyed, and does not look any more.
    within(async {
        while fake("held") == Some(0) {
            assert_eq!(lane.poll(&mut room).expect("the lane lives").len(), 0);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let told = Log::default();
    {
        let mut waiting = Box::pin(lane.ready(&mut room));
        assert!(poll_with(&mut waiting, &told.waker(())).is_pending());
        fake("release ibv_destroy_qp");
        told.at_least(1).await;
    }
    drop(joined);
    drop((into, here));
    // The region of the peer goes. That of the read, and the slots, stay.
    there.deregister().await.expect("deregistered");
    drop(there);
    assert_eq!(count("mr"), before - 1, "the device may write to the others");
}

// LN-23: dropping a lane frees its memory when the device no longer uses it, whoever keeps the handles of its connections.
#[tokio::test]
async fn memory_of_a_dropped_lane_goes_with_its_queue_pairs() {
    if !alone(module_path!(), "memory_of_a_dropped_lane_goes_with_its_queue_pairs") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    for shared in [false, true] {
        let adapter = adapter();
        let regions = count("mr");
        let config = LaneConfig::new(12, 64).shared_receives(shared);
        let Joined { lane, connection, peer, other, end, .. } = join(&adapter, config, 4).await;
        assert_eq!(count("mr"), regions + 1);
        fake("keep requests");
        let _held = hold("ibv_destroy_qp");
        drop(lane);
        eventually("the queue pair is being destroyed", || fake("held") >= Some(1)).await;
        assert_eq!(count("mr"), regions + 1, "the device may use it");
        assert!(fake("scribble").expect("a number") > 0);
        fake("release ibv_destroy_qp");
        eventually("its memory is freed", || count("mr") == regions).await;
        within(connection.disconnected()).await;
        within(other.disconnected()).await;
        drop((connection, peer, other, end));
        fake("keep nothing");
    }
    nothing_is_left().await;
}

// LN-23: as HW-04 has it for the receives of futures: the device may write to the receives of a shared queue that it has not destroyed.
#[tokio::test]
async fn memory_of_an_undestroyable_shared_queue_is_kept() {
    if !alone(module_path!(), "memory_of_an_undestroyable_shared_queue_is_kept") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    fake("forgive");
    let adapter = adapter();
    let regions = count("mr");
    let joined = join(&adapter, LaneConfig::new(4, 64).shared_receives(true), 2).await;
    fake(&format!("refuse ibv_destroy_srq {}", libc::EIO));
    let calls = fake("calls ibv_destroy_srq");
    drop(joined);
    eventually("it was tried", || fake("calls ibv_destroy_srq") > calls).await;
    assert_eq!(fake("scribble"), Some(128));
    assert_eq!(count("mr"), regions + 1);
}

// LN-23: dropping the lane ends an attempt to connect, on either side.
#[tokio::test]
async fn dropping_a_lane_ends_an_attempt() {
    if !alone(module_path!(), "dropping_a_lane_ends_an_attempt") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let mut lane = lane(&adapter, LaneConfig::new(4, 64));
    let (id, end) = lane.queue_pair().expect("a queue pair");
    let slot = lane.take().expect("a slot");
    lane.receive(id, slot).expect("posted");
    lane.ring();
    let (listener, address) = listening(&adapter);
    let connector = adapter.connector();
    {
        let mut connecting =
            Box::pin(connector.connect_and_complete(&end, address, ConnectParams::default()));
        let request = tokio::select! {
            request = listener.request() => request.expect("a request"),
            connected = &mut connecting => panic!("nobody has accepted: {connected:?}"),
        };
        drop(lane);
        within(connecting).await.expect_err("the lane is gone");
        drop(request);
    }
    drop((end, connector));
    // And of the passive side.
    let mut lane = super::lane(&adapter, LaneConfig::new(4, 64));
    let (_, end) = lane.queue_pair().expect("a queue pair");
    let (active, connector) = (queue_pair(&adapter), adapter.connector());
    let mut connecting = Box::pin(connector.connect(&active, address, ConnectParams::default()));
    let request = tokio::select! {
        request = listener.request() => request.expect("a request"),
        connected = &mut connecting => panic!("nobody has accepted: {connected:?}"),
    };
    let mut accepting = Box::pin(request.accept(&end, AcceptParams::default()));
    assert!(poll_once(&mut accepting).is_pending());
    drop(lane);
    // Over iWARP the accept may be what establishes the connection.
    let _ = within(accepting).await;
    let _ = within(connecting).await;
    drop((active, connector, listener, end, adapter));
    nothing_is_left().await;
}

// LN-24: when the adapter is removed, a wait is woken, and each call says so. No slot of a request comes back; those that the program
// holds are still its own.
#[tokio::test]
async fn removal_ends_a_lane() {
    for line in ["remove", "fatal"] {
        let name = format!("removal_ends_a_lane {line}");
        let test = std::env::var_os("TOKIO_RDMA_TEST_ALONE").is_none();
        if test && !common::process::alone_with(module_path!(), "removal_ends_a_lane", &[("LANE_LINE", line)])
        {
            continue;
        }
        if std::env::var("LANE_LINE").is_ok_and(|told| told != line) {
            continue;
        }
        let Some(_reset) = fake_reset() else { return };
        let adapter = adapter();
        let mut joined = join(&adapter, LaneConfig::new(12, 64), 4).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let watched = Watched::all(lane);
        let mut room = [Done::EMPTY; 4];
        {
            let mut waiting = Box::pin(lane.ready(&mut room));
            assert!(poll_once(&mut waiting).is_pending());
            fake(line);
            assert_eq!(within(waiting).await.map(<[Done]>::len), Err(NotifyError::DeviceRemoved), "{name}");
        }
        assert_eq!(lane.poll(&mut room).map(<[Done]>::len), Err(NotifyError::DeviceRemoved), "{name}");
        let (send, receive) = (watched.0[0], watched.0[1]);
        assert_eq!(lane.send(id, send, 1), Err(PostErrorKind::DeviceRemoved), "{name}");
        assert_eq!(lane.receive(id, receive), Err(PostErrorKind::DeviceRemoved), "{name}");
        assert_eq!(lane.send(id, send, 0), Err(PostErrorKind::DeviceRemoved), "{name}");
        assert!(lane.queue_pair().is_err(), "{name}");
        assert_eq!(within(joined.connection.disconnected()).await, DisconnectReason::DeviceRemoved, "{name}");
        assert!(lane.poll(&mut room).is_err() && lane.take().is_none(), "{name}");
        watched.check(lane);
        assert_eq!(lane.outstanding(), 4, "{name}");
        let Joined { lane, connection, peer, other, end, .. } = joined;
        drop((lane, connection, peer, other, end, adapter));
        if line == "remove" {
            nothing_is_left().await;
        } else {
            assert!(fake("scribble").expect("a number") >= 256, "the device writes on");
        }
    }
}

// LN-24: a channel of events that cannot be read is that of a device which was taken away, as for futures.
#[tokio::test]
async fn an_unreadable_channel_removes_the_adapter() {
    if !alone(module_path!(), "an_unreadable_channel_removes_the_adapter") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    // No task polls completions.
    let adapter = open(None);
    let (mut one, mut other) =
        (lane(&adapter, LaneConfig::new(4, 64)), lane(&adapter, LaneConfig::new(4, 64)));
    let ((from, end), (to, peer)) = (one.queue_pair().expect("a pair"), other.queue_pair().expect("a pair"));
    let slot = one.take().expect("a slot");
    one.receive(from, slot).expect("posted");
    let connections = connect_lanes(&adapter, &end, &peer).await;
    let mut room = [Done::EMPTY; 4];
    assert!(poll_once(&mut Box::pin(one.ready(&mut room))).is_pending());
    fake(&format!("fail ibv_get_cq_event 1 {}", libc::EIO));
    let message = filled(&mut other, 1);
    other.send_now(to, message, 1).expect("posted");
    assert_eq!(completions(&mut one, 1).await[0].slot(), slot);
    // Its event is still there.
    assert_eq!(within(one.ready(&mut room)).await.map(<[Done]>::len), Err(NotifyError::DeviceRemoved));
    for connection in connections {
        assert_eq!(within(connection.disconnected()).await, DisconnectReason::DeviceRemoved);
    }
}

// LN-25: when the completion queue has lost a completion, a wait is woken, every connection ends, and no slot of a request comes back.
#[tokio::test]
async fn a_lost_completion_ends_the_lane() {
    for line in ["overrun 2", "spoil 2"] {
        let alone_for = std::env::var("LANE_LINE").ok();
        if alone_for.is_none()
            && !common::process::alone_with(
                module_path!(),
                "a_lost_completion_ends_the_lane",
                &[("LANE_LINE", line)],
            )
        {
            continue;
        }
        if alone_for.is_some_and(|told| told != line) {
            continue;
        }
        let Some(_reset) = fake_reset() else { return };
        let adapter = adapter();
        let mut joined = join(&adapter, LaneConfig::new(12, 64), 4).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let mut watched = Watched::all(lane);
        // The completion of the Send is the first, that of the receive of the lane the second.
        for _ in 0..2 {
            let _kept = joined.peer.receive(adapter.buffer(64).expect("a buffer")).expect("posted");
        }
        let (slot, other) = (watched.0.remove(0), watched.0.remove(0));
        let mut room = [Done::EMPTY; 4];
        fake("port 1 down");
        lane.send(id, slot, 1).expect("posted");
        lane.send(id, other, 1).expect("posted");
        lane.ring();
        fake(line);
        fake("port 1 up");
        let mut seen = 0;
        let error = within(async {
            loop {
                match lane.ready(&mut room).await {
                    Ok(done) => seen += done.len(),
                    Err(error) => return error,
                }
            }
        })
        .await;
        assert_eq!(error, NotifyError::Lost, "{line}");
        assert!(seen < 2, "{line}: {seen}");
        within(joined.connection.disconnected()).await;
        assert_eq!(lane.poll(&mut room).map(<[Done]>::len), Err(NotifyError::Lost), "{line}");
        assert!(lane.take().is_none(), "{line}");
        let mine = watched.0[0];
        assert_eq!(lane.send(id, mine, 1), Err(PostErrorKind::ConnectionInvalid), "{line}");
        assert_eq!(lane.receive(id, mine), Err(PostErrorKind::ConnectionInvalid), "{line}");
        watched.check(lane);
        drop((joined, adapter));
        nothing_is_left().await;
    }
}

// LN-25: as a completion queue that has lost one, a shared receive queue that the device has lost ends the lane: a wait is woken, and no
// queue pair is made that would never receive.
#[tokio::test]
async fn a_lost_shared_queue_ends_the_lane() {
    if !alone(module_path!(), "a_lost_shared_queue_ends_the_lane") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = open(None);
    let config = LaneConfig::new(4, 64).queue_pairs(2).shared_receives(true);
    let mut joined = join(&adapter, config, 2).await;
    let (lane, mut room) = (&mut joined.lane, [Done::EMPTY; 4]);
    let watched = Watched::all(lane);
    fake("lose shared_queues");
    assert_eq!(within(lane.ready(&mut room)).await.map(<[Done]>::len), Err(NotifyError::Lost));
    within(joined.connection.disconnected()).await;
    assert!(lane.queue_pair().is_err());
    assert_eq!(lane.receive(joined.id, watched.0[0]), Err(PostErrorKind::ConnectionInvalid));
    watched.check(lane);
    drop((joined, adapter));
    nothing_is_left().await;
}

// LN-25: a completion of no request ends the lane: here that of a request which has completed already.
#[tokio::test]
async fn a_repeated_completion_ends_the_lane() {
    if !alone(module_path!(), "a_repeated_completion_ends_the_lane") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    for kind in ["a slot", "parts", "bytes", "a region"] {
        let adapter = open(None);
        let mut joined = join(&adapter, LaneConfig::new(4, 64), 0).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let region = adapter.register(64, Access::REMOTE_WRITE).await.expect("registered");
        let here = adapter.register(64, Access::LOCAL_WRITE).await.expect("registered");
        let (slot, part) = (filled(lane, 1), here.slice(0..8).expect("in bounds"));
        fake("repeat 1");
        let (there, options) = (region.remote(), WorkOptions::default());
        match kind {
            "a slot" => lane.write(id, slot, 0..8, &there),
            "parts" => lane.write_with(id, Local::Slots(&[(slot, 0..8)]), &there, options),
            "bytes" => lane.write_with(id, Local::Bytes(&[1; 8]), &there, options),
            _ => lane.write_with(id, Local::Region(&part), &there, options),
        }
        .expect("posted");
        completions(lane, 1).await[0].ok().expect(kind);
        let mut room = [Done::EMPTY; 4];
        assert_eq!(within(lane.ready(&mut room)).await.map(<[Done]>::len), Err(NotifyError::Lost), "{kind}");
        assert_eq!(lane.outstanding(), 0, "{kind}");
        within(joined.connection.disconnected()).await;
    }
}

// LN-25: a completion with the id of a receive of a shared queue, which the lane does not have, is one of no request.
#[tokio::test]
async fn a_completion_of_no_shared_receive_ends_the_lane() {
    if !alone(module_path!(), "a_completion_of_no_shared_receive_ends_the_lane") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = open(None);
    let mut joined = join(&adapter, LaneConfig::new(4, 64), 2).await;
    let (lane, mut room) = (&mut joined.lane, [Done::EMPTY; 1]);
    let watched = Watched::all(lane);
    // That of the first receive.
    fake("misname 1");
    lane.close(joined.id);
    assert_eq!(within(lane.ready(&mut room)).await.map(<[Done]>::len), Err(NotifyError::Lost));
    assert!(lane.take().is_none());
    watched.check(lane);
    within(joined.connection.disconnected()).await;
}

// LN-26: a place is used again when each request of the queue pair before has come out of a poll, each once.
#[tokio::test]
async fn places_wait_for_what_was_outstanding() {
    if !alone(module_path!(), "places_wait_for_what_was_outstanding") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let mut lane = lane(&adapter, LaneConfig::new(4, 64));
    let (id, _end) = lane.queue_pair().expect("a queue pair");
    let slots: Vec<Slot> = (0..3).map(|_| lane.take().expect("a slot")).collect();
    lane.receive_all(id, slots.iter().copied()).expect("posted");
    fake("keep requests");
    lane.close(id);
    let (mut room, mut back) = ([Done::EMPTY; 1], Vec::new());
    within(async {
        while count("qp") > 0 {
            assert!(lane.poll(&mut room).expect("the lane lives").is_empty());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        while lane.state(id) != LaneState::Gone {
            assert!(lane.queue_pair().is_err(), "not all have come out of a poll");
            for done in lane.poll(&mut room).expect("the lane lives") {
                assert_eq!((done.queue_pair(), done.status()), (id, Status::CANCELED));
                back.push(done.slot());
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!((back, lane.outstanding()), (slots, 0));
    let (next, _end) = lane.queue_pair().expect("a queue pair");
    assert!(next != id && next.place() == id.place());
}

// LN-26: a queue pair that has ended leaves its place also if the others keep the lane busy: each poll fills the room that it has, and
// never finds the queue empty.
#[tokio::test]
async fn a_busy_lane_lets_queue_pairs_go() {
    if !alone(module_path!(), "a_busy_lane_lets_queue_pairs_go") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    for shared in [false, true] {
        let adapter = open(None);
        let config = LaneConfig::new(8, 64).queue_pairs(2).send_depth(4).receive_depth(4);
        let mut joined = join(&adapter, config.shared_receives(shared), 2).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let (busy, end) = lane.queue_pair().expect("a queue pair");
        let (_connection, _peer, _other) = connect(&adapter, &end).await;
        let region = adapter.register(64, Access::REMOTE_WRITE).await.expect("registered");
        fake("keep requests");
        lane.close(id);
        for byte in 0..4 {
            let slot = filled(lane, byte);
            lane.write(busy, slot, 0..8, &region.remote()).expect("posted");
        }
        let (mut room, mut back) = ([Done::EMPTY; 1], 0);
        within(async {
            while lane.state(id) != LaneState::Gone {
                let done = lane.poll(&mut room).expect("the lane lives")[0];
                if done.queue_pair() == busy {
                    assert!(done.is_success() && done.kind() == OpKind::Write);
                    lane.write(busy, done.slot(), 0..8, &region.remote()).expect("posted");
                } else {
                    assert_eq!((done.queue_pair(), done.status()), (id, Status::CANCELED));
                    back += 1;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        // The shared queue has those receives still.
        assert_eq!(back, if shared { 0 } else { 2 });
        lane.queue_pair().expect("its place is free");
        fake("keep nothing");
    }
}

// LN-28: what the device refuses when it has had its time after the end of a connection comes out of a poll once, although the queue
// pair is destroyed before that.
#[tokio::test]
async fn what_is_refused_at_the_end_comes_out_once() {
    if !alone(module_path!(), "what_is_refused_at_the_end_comes_out_once") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    for (kind, call) in [(OpKind::Receive, "ibv_post_recv"), (OpKind::Send, "ibv_post_send")] {
        let adapter = open(None);
        let mut joined = join(&adapter, LaneConfig::new(4, 64), 0).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let slots = [filled(lane, 1), filled(lane, 2)];
        for slot in slots {
            match kind {
                OpKind::Receive => lane.receive(id, slot).expect("posted"),
                _ => lane.send(id, slot, 1).expect("posted"),
            }
        }
        within(joined.other.disconnect()).await.expect("disconnected");
        within(joined.connection.disconnected()).await;
        eventually("the lane sees it", || lane.state(id) == LaneState::Ended).await;
        // The time that a device has for completing what is outstanding, and that of the task that tells the lane of it.
        for milliseconds in [1100, 100, 100] {
            tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        }
        fake(&format!("fail {call} 1 {}", libc::ENOMEM));
        let before = count("qp");
        let mut back = Vec::new();
        let mut room = [Done::EMPTY; 8];
        back.extend_from_slice(lane.poll(&mut room).expect("the lane lives"));
        eventually("it is destroyed", || count("qp") < before).await;
        for _ in 0..50 {
            // Here the lane may learn of it, before the next poll.
            assert_eq!(lane.state(id), LaneState::Ended, "not all have come out of a poll");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        back.extend(until_gone(lane, id, 8).await);
        let found: Vec<_> = back.iter().map(|done| (done.kind(), done.slot(), done.is_success())).collect();
        assert_eq!(found, slots.map(|slot| (kind, slot, false)));
        assert_eq!(lane.outstanding(), 0);
        fake("reset");
    }
    nothing_is_left().await;
}

// LN-05: a queue of completions has an entry for each request that may be outstanding, also of a lane that is larger than the device
// allows: it has as many queue pairs as there is room for.
#[tokio::test]
async fn a_lane_makes_no_more_queue_pairs_than_there_is_room_for() {
    const DEPTH: usize = 16_000;
    if !alone(module_path!(), "a_lane_makes_no_more_queue_pairs_than_there_is_room_for") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    for shared in [true, false] {
        let adapter = adapter();
        let before = count("cqe");
        let config = LaneConfig::new(4, 64).queue_pairs(80).send_depth(DEPTH).receive_depth(DEPTH);
        let mut lane = lane(&adapter, config.shared_receives(shared));
        let entries = (count("cqe") - before) as usize;
        let made: Vec<_> = std::iter::from_fn(|| lane.queue_pair().ok()).collect();
        let receives = if shared { DEPTH } else { made.len() * DEPTH };
        assert!(made.len() > 8 && made.len() < 80, "{}", made.len());
        assert!(made.len() * DEPTH + receives <= entries, "{} of {entries}", made.len());
        drop((made, lane, adapter));
        nothing_is_left().await;
    }
}

// LN-23: a lane that is forgotten keeps what it has: its memory is never freed.
#[tokio::test]
async fn a_forgotten_lane_keeps_its_memory() {
    if !alone(module_path!(), "a_forgotten_lane_keeps_its_memory") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    fake("forgive");
    let adapter = adapter();
    let Joined { lane, connection, peer, other, end, .. } = join(&adapter, LaneConfig::new(4, 64), 2).await;
    let regions = count("mr");
    std::mem::forget(lane);
    fake("keep requests");
    drop((connection, end, peer));
    within(other.disconnected()).await;
    drop((other, adapter));
    assert_eq!(fake("scribble"), Some(128));
    assert_eq!(count("mr"), regions);
}
