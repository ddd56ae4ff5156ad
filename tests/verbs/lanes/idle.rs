//! Idle connections of lanes: a dead peer is noticed in time, and one that lives is left alone.
//!
//! Runs on: fake, fake-iwarp

use std::time::Duration;

use common::life::eventually;
use common::path::noticed;
use common::process::alone;
use common::raw::bytes;
use common::verbs::{fake, fake_reset, nothing_is_left};
use tokio_rdma::error::Reason;
use tokio_rdma::qp::{Done, LaneConfig, LaneState, Local};
use tokio_rdma::{Access, DisconnectReason, Status, WorkOptions};

use super::*;

const PATH_TIMEOUT: Duration = Duration::from_secs(1);

/// Asserts that an end has been given up, by this side or by the device.
fn is_given_up(reason: &DisconnectReason) {
    let DisconnectReason::Lost { status: Status::IO_TIMEOUT, reason } = reason else { panic!("{reason:?}") };
    assert!(matches!(reason, Reason::PathTimeout | Reason::Completion(_)), "{reason:?}");
}

// LN-27: an idle connection whose peer lives is asked for a sign of life, of which the program sees nothing, and goes on; one whose peer
// is dead is given up, and what was outstanding comes back.
#[tokio::test]
async fn a_dead_peer_is_noticed_and_no_other() {
    if !alone(module_path!(), "a_dead_peer_is_noticed_and_no_other") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = open(Some(PATH_TIMEOUT));
    let mut joined = join(&adapter, LaneConfig::new(4, 64), 2).await;
    let (lane, id) = (&mut joined.lane, joined.id);
    let mut room = [Done::EMPTY; 4];
    let asked = || fake("calls ibv_post_send").expect("a number");
    let before = asked();
    let alive = async {
        tokio::time::sleep(4 * PATH_TIMEOUT).await;
        eventually("both sides ask", || asked() >= before + 4).await;
    };
    tokio::select! {
        done = lane.ready(&mut room) => panic!("{:?}", done.map(<[Done]>::to_vec)),
        reason = joined.connection.disconnected() => panic!("{reason:?}"),
        () = alive => {}
    }
    assert_eq!((lane.state(id), lane.outstanding()), (LaneState::Connected, 2));
    fake("port 1 down");
    let driven = async {
        let mut back = Vec::new();
        while back.len() < 2 {
            back.extend_from_slice(lane.ready(&mut room).await.expect("the lane lives"));
        }
        back
    };
    let (reason, back) =
        noticed(PATH_TIMEOUT, async { tokio::join!(joined.connection.disconnected(), driven) }).await;
    is_given_up(&reason);
    assert!(back.iter().all(|done| done.status() == Status::CANCELED), "{back:?}");
    fake("port 1 up");
    drop((joined, adapter));
    nothing_is_left().await;
}

// LN-27: a dead peer is noticed also if the last requests were silent, of which the device does not tell.
#[tokio::test]
async fn a_dead_peer_is_noticed_behind_silent_requests() {
    if !alone(module_path!(), "a_dead_peer_is_noticed_behind_silent_requests") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = open(Some(PATH_TIMEOUT));
    let mut joined = join(&adapter, LaneConfig::new(4, 64), 0).await;
    let (lane, id) = (&mut joined.lane, joined.id);
    let region = adapter.register(64, Access::REMOTE_WRITE).await.expect("registered");
    let silent = WorkOptions::default().silent();
    for _ in 0..2 {
        let slot = filled(lane, 3);
        lane.write_with(id, Local::Slots(&[(slot, 0..8)]), &region.remote(), silent).expect("posted");
    }
    let mut room = [Done::EMPTY; 4];
    let free = |lane: &mut Lane| {
        let slots: Vec<Slot> = std::iter::from_fn(|| lane.take()).collect();
        slots.iter().for_each(|slot| lane.give(*slot));
        slots.len()
    };
    // The answer to the question says that they have succeeded.
    let mut waited = 0;
    while free(lane) < 4 {
        assert!(waited < 1000, "the slots of silent requests are not free");
        waited += 1;
        assert!(lane.poll(&mut room).expect("the lane lives").is_empty());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    fake("port 1 down");
    let ended = async {
        tokio::select! {
            done = lane.ready(&mut room) => panic!("{:?}", done.map(<[Done]>::to_vec)),
            reason = joined.connection.disconnected() => reason,
        }
    };
    is_given_up(&noticed(PATH_TIMEOUT, ended).await);
}

// LN-27: a peer that lives is kept also by a program that asks for the state of the queue pair all the time and does not poll: it has
// not seen the signs of life.
#[tokio::test]
async fn a_live_peer_is_kept_without_polls() {
    if !alone(module_path!(), "a_live_peer_is_kept_without_polls") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = open(Some(PATH_TIMEOUT));
    let mut joined = join(&adapter, LaneConfig::new(4, 64), 1).await;
    let (lane, id) = (&mut joined.lane, joined.id);
    // One poll posts the request for a sign of life, whose answer waits in the queue.
    let asked = || fake("calls ibv_post_send").expect("a number");
    let before = asked();
    let mut room = [Done::EMPTY; 4];
    while asked() < before + 2 {
        assert!(lane.poll(&mut room).expect("the lane lives").is_empty());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut connection = Box::pin(joined.connection.disconnected());
    let waited = async {
        for _ in 0..300 {
            assert_eq!(lane.state(id), LaneState::Connected);
            tokio::time::sleep(PATH_TIMEOUT / 100).await;
        }
    };
    tokio::select! {
        reason = &mut connection => panic!("{reason:?}"),
        () = waited => {}
    }
    within(joined.peer.send(bytes(&adapter, b"hello")).expect("posted")).await.0.expect("sent");
    assert_eq!(completions(lane, 1).await[0].bytes(), 5);
}

// LN-27: a part of the path timeout counts once for each queue pair, however many the lane has and however often it is polled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_live_peers_are_left_alone() {
    const MANY: usize = 48;
    if !alone(module_path!(), "many_live_peers_are_left_alone") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = open(Some(3 * PATH_TIMEOUT));
    let mut lane = lane(&adapter, LaneConfig::new(4, 64).queue_pairs(MANY).send_depth(8).receive_depth(8));
    let mut all = Vec::new();
    for _ in 0..MANY {
        let (id, end) = lane.queue_pair().expect("a queue pair");
        all.push((id, connect(&adapter, &end).await));
    }
    // Nobody answers before both ends of each have asked, as they do after half of the time.
    fake("port 1 down");
    let begun = fake("calls ibv_post_send").expect("a number");
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let polling = std::thread::spawn(move || {
        let mut room = [Done::EMPTY; 8];
        while stopped.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Empty) {
            assert!(lane.poll(&mut room).expect("the lane lives").is_empty());
        }
        lane
    });
    let asked = || fake("calls ibv_post_send").expect("a number") - begun >= 2 * MANY as i64;
    eventually("all are asked", asked).await;
    fake("port 1 up");
    stop.send(()).expect("it polls");
    let mut lane = polling.join().expect("no panic");
    for (id, (connection, ..)) in &all {
        assert_eq!(lane.state(*id), LaneState::Connected);
        assert!(connection.is_connected());
    }
}
