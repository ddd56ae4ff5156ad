//! Posts that fail, between others and behind them: what was posted is handed over, and no room is lost.

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::raw::bytes;
use common::*;
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::qp::{Done, Lane, LaneConfig, LaneState, Local, QueuePairId, Slot};
use tokio_rdma::{AcceptParams, Access, ConnectParams, ReadLimits, RemoteRegion, WorkOptions};

use super::{completions, connect, fill, join, lane, next, variants};

// LN-03: without an outbound read limit no Read is posted, also if the lane has not looked at its new connection before.
#[tokio::test]
async fn reads_need_a_limit() {
    for (adapter, variant) in variants() {
        if adapter.info().read_sink_required {
            continue;
        }
        let region = adapter.register(64, Access::REMOTE_READ).await.expect("registered");
        let mut lane = lane(&adapter, LaneConfig::new(2, 64));
        let (id, end) = lane.queue_pair().expect("a queue pair");
        let (listener, address) = listening(&adapter);
        let (peer, connector) = (queue_pair(&adapter), adapter.connector());
        let params = ConnectParams::default().read_limits(ReadLimits::new(0, 0));
        let connecting = connector.connect_and_complete(&end, address, params);
        let _connections = joined(connecting, listener.accept_next(&peer, AcceptParams::default())).await;
        let slot = fill(&mut lane, b"mine");
        let read = |lane: &mut Lane| lane.read(id, slot, 0..8, &region.remote());
        assert_eq!(read(&mut lane), Err(PostErrorKind::NoReads), "{variant}: the first call");
        assert_eq!(lane.state(id), LaneState::Connected, "{variant}");
        assert_eq!(read(&mut lane), Err(PostErrorKind::NoReads), "{variant}");
        assert_eq!((lane.outstanding(), &lane.bytes(slot)[..4]), (0, &b"mine"[..]), "{variant}");
    }
}

/// Asserts that nothing can be posted to a queue pair that there is not.
fn refuses_all(lane: &mut Lane, id: QueuePairId, slot: Slot, remote: &RemoteRegion, reads: bool) {
    let options = WorkOptions::default;
    let parts = [(slot, 0..8)];
    let mut refused = vec![
        lane.send(id, slot, 8),
        lane.send_now(id, slot, 8),
        lane.write(id, slot, 0..8, remote),
        lane.receive(id, slot),
        lane.send_all(id, [(slot, 8)]).map(drop),
        lane.receive_all(id, [slot]).map(drop),
        lane.send_with(id, Local::Slots(&parts), options()),
        lane.write_with(id, Local::Slots(&parts), remote, options()),
    ];
    if reads {
        refused.push(lane.read(id, slot, 0..8, remote));
        refused.push(lane.read_with(id, Local::Slots(&parts), remote, options()));
    }
    for (at, refused) in refused.into_iter().enumerate() {
        assert_eq!(refused, Err(PostErrorKind::ConnectionInvalid), "call {at}");
    }
}

// LN-06: the id in the place of a completion that has not come names no queue pair, whatever the lane has done before.
#[tokio::test]
async fn the_id_of_no_completion_names_no_queue_pair() {
    for (adapter, variant) in variants() {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = adapter.register(64, access).await.expect("registered");
        let (remote, none) = (region.remote(), Done::EMPTY.queue_pair());
        let reads = !adapter.info().read_sink_required;
        let mut joined = join(&adapter, LaneConfig::new(4, 64), 0).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let slot = fill(lane, b"held");
        refuses_all(lane, none, slot, &remote, reads);
        let (receive, write) = (fill(lane, b"received"), fill(lane, b"written"));
        lane.receive(id, receive).expect("posted");
        lane.write(id, write, 0..7, &remote).expect("posted");
        refuses_all(lane, none, slot, &remote, reads);
        assert_eq!(lane.outstanding(), 2, "{variant}");
        assert_eq!(next(lane).await.slot(), write, "{variant}");
        refuses_all(lane, none, slot, &remote, reads);
        lane.close(none);
        assert_eq!((lane.state(none), lane.state(id)), (LaneState::Gone, LaneState::Connected));
        assert_eq!((lane.outstanding(), &lane.bytes(slot)[..4]), (1, &b"held"[..]), "{variant}");
    }
}

// LN-02: what comes before a request that fails is handed over by the call, and waits for no poll.
#[tokio::test]
async fn requests_before_a_failed_one_are_handed_over() {
    for (adapter, variant) in variants() {
        let mut joined = join(&adapter, LaneConfig::new(8, 64), 0).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let room = || joined.peer.receive(adapter.buffer(64).expect("a buffer")).expect("posted");
        let receives = [room(), room()];
        let (first, second, free) = (fill(lane, b"one"), fill(lane, b"two"), fill(lane, b"free"));
        lane.give(free);
        let not_held = Err(PostErrorKind::NotHeld { slot: free.number() });
        assert_eq!(lane.send_all(id, [(first, 3), (second, 3), (free, 3)]), not_held, "{variant}");
        for (receive, message) in receives.into_iter().zip([b"one", b"two"]) {
            let (outcome, buffer) = within(receive).await;
            assert_eq!(&buffer[..outcome.expect("received").bytes], message, "{variant}");
        }
        completions(lane, 2).await.iter().for_each(|done| done.ok().expect("sent"));
        assert_eq!(lane.receive_all(id, [first, second, free]), not_held, "{variant}");
        assert_eq!(lane.outstanding(), 2, "{variant}");
        for _ in 0..2 {
            within(joined.peer.send(bytes(&adapter, b"back")).expect("posted")).await.0.expect("sent");
        }
        let done = completions(lane, 2).await;
        assert_eq!([done[0].slot(), done[1].slot()], [first, second], "{variant}");
    }
}

// LN-05: an iterator that panics leaves what it has returned before posted, within a chain or behind one, and takes no room.
#[tokio::test]
async fn iterators_that_panic_take_no_room() {
    const DEPTH: usize = 70;
    for (adapter, variant) in variants() {
        let config = LaneConfig::new(2 * (DEPTH + 1), 64).queue_pairs(2);
        let mut lane = lane(&adapter, config.send_depth(DEPTH).receive_depth(DEPTH));
        let (here, own) = lane.queue_pair().expect("a queue pair");
        let (there, end) = lane.queue_pair().expect("another");
        let (listener, address) = listening(&adapter);
        let connector = adapter.connector();
        let connecting = connector.connect_and_complete(&own, address, ConnectParams::default());
        let _connections = joined(connecting, listener.accept_next(&end, AcceptParams::default())).await;
        let slots: Vec<Slot> = std::iter::from_fn(|| lane.take()).collect();
        let (receives, sends) = slots.split_at(DEPTH + 1);
        for posted in [0, 30, 64, 65] {
            let panics = |at| assert!(at < posted, "an iterator that panics");
            let received = receives.iter().enumerate().map(|(at, slot)| {
                panics(at);
                *slot
            });
            catch_unwind(AssertUnwindSafe(|| lane.receive_all(there, received))).expect_err("it panics");
            assert_eq!(lane.outstanding() as usize, posted, "{variant}");
            let sent = sends.iter().enumerate().map(|(at, slot)| {
                panics(at);
                (*slot, 1)
            });
            catch_unwind(AssertUnwindSafe(|| lane.send_all(here, sent))).expect_err("it panics");
            assert_eq!(lane.outstanding() as usize, 2 * posted, "{variant}");
            lane.ring();
            let done = completions(&mut lane, 2 * posted).await;
            let mut found: Vec<u32> = done.iter().map(|done| done.slot().number()).collect();
            found.sort_unstable();
            let both = receives[..posted].iter().chain(&sends[..posted]);
            assert_eq!(found, both.map(|slot| slot.number()).collect::<Vec<_>>(), "{variant}: {posted}");
            // All the room is there again, and no more.
            let received = lane.receive_all(there, receives.iter().copied());
            assert_eq!(received, Ok(DEPTH), "{variant}: {posted}");
            let sent = lane.send_all(here, sends.iter().map(|slot| (*slot, 1)));
            assert_eq!(sent, Ok(DEPTH), "{variant}: {posted}");
            let done = completions(&mut lane, 2 * DEPTH).await;
            assert!(done.iter().all(Done::is_success), "{variant}: {posted}");
        }
    }
}

// LN-05: queue pairs that take turns take as many requests as their queues hold each, whatever is refused between.
#[tokio::test]
async fn queue_pairs_that_take_turns_keep_their_room() {
    const DEPTH: usize = 5;
    for (adapter, variant) in variants() {
        let region = adapter.register(64, Access::REMOTE_WRITE).await.expect("registered");
        let config = LaneConfig::new(2 * DEPTH + 2, 64).queue_pairs(2).send_depth(DEPTH);
        let mut joined = join(&adapter, config, 0).await;
        let lane = &mut joined.lane;
        let (other, end) = lane.queue_pair().expect("a queue pair");
        let _other = connect(&adapter, &end).await;
        let (ids, remote) = ([joined.id, other], region.remote());
        let mut outstanding = [0; 2];
        for round in 0..6 * DEPTH {
            let (mut full, mut turn) = ([false; 2], round);
            while full != [true; 2] {
                turn += 1;
                let at = turn % 2;
                let slot = lane.take().expect("one is free");
                match lane.write(ids[at], slot, 0..8, &remote) {
                    Ok(()) => outstanding[at] += 1,
                    Err(PostErrorKind::QueueFull { depth: DEPTH, .. }) => {
                        full[at] = true;
                        lane.give(slot);
                    }
                    Err(error) => panic!("{variant}: {error}"),
                }
                let of = ids[turn / 2 % 2];
                lane.send(of, slot, 8).expect_err("it is posted, free, or the queue is full");
                lane.write(of, slot, 60..68, &remote).expect_err("it is too long as well");
                lane.send(Done::EMPTY.queue_pair(), slot, 8).expect_err("there is none");
            }
            assert_eq!(outstanding, [DEPTH; 2], "{variant}: round {round}");
            for _ in 0..round % (2 * DEPTH + 1) {
                let done = next(lane).await;
                done.ok().expect("written");
                outstanding[usize::from(done.queue_pair() == other)] -= 1;
                lane.give(done.slot());
            }
        }
    }
}
