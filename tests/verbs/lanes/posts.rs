//! Posts that a device refuses, chains, silent requests, and messages before a connection is established.
//!
//! Runs on: fake, fake-iwarp

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Instant;

use common::process::alone;
use common::raw::{bytes, room};
use common::verbs::{fake, fake_reset, nothing_is_left};
use common::*;
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::qp::{Done, LaneConfig, LaneState, Local, Slot};
use tokio_rdma::types::OpKind;
use tokio_rdma::{AcceptParams, Access, ConnectParams, DisconnectReason, Status, WorkOptions};
use tracing_subscriber::layer::SubscriberExt;

use super::*;
use crate::held::PanickingLayer;

// LN-28: the requests of a chain that the driver refuses come out of the next poll, each once and with a failure, those before have
// succeeded, and the connection ends. Nothing that is posted behind them arrives.
#[tokio::test]
async fn refused_sends_come_out_of_a_poll() {
    const SENT: usize = 5;
    const TAKEN: usize = 2;
    if !alone(module_path!(), "refused_sends_come_out_of_a_poll") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    for errno in [libc::ENOMEM, libc::EINVAL, libc::EIO] {
        let adapter = adapter();
        let mut joined = join(&adapter, LaneConfig::new(12, 64), 1).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let mut arrived: Vec<_> =
            (0..SENT + 1).map(|_| joined.peer.receive(room(&adapter, 64)).expect("posted")).collect();
        fake(&format!("fail ibv_post_send {} {errno}", TAKEN + 1));
        let slots: Vec<Slot> = (0..SENT as u8).map(|byte| filled(lane, byte)).collect();
        let posted = lane.send_all(id, slots.iter().map(|slot| (*slot, 1))).expect("posted");
        assert_eq!(posted, SENT);
        // The doorbell has found that the driver takes no more.
        let late = filled(lane, 99);
        assert_eq!(lane.send_now(id, late, 1), Err(PostErrorKind::ConnectionInvalid));
        let done = completions(lane, SENT + 1).await;
        let (received, sent): (Vec<Done>, Vec<Done>) =
            done.iter().partition(|done| done.kind() == OpKind::Receive);
        assert_eq!((received.len(), received[0].status()), (1, Status::CANCELED));
        let mut found: Vec<_> = sent.iter().map(|done| (done.slot(), done.is_success())).collect();
        found.sort_by_key(|(slot, _)| slot.number());
        let expected: Vec<_> = slots.iter().enumerate().map(|(at, slot)| (*slot, at < TAKEN)).collect();
        assert_eq!(found, expected, "errno {errno}");
        assert!(sent.iter().all(|done| done.queue_pair() == id && done.kind() == OpKind::Send));
        let reason = within(joined.connection.disconnected()).await;
        assert!(matches!(reason, DisconnectReason::Lost { .. }), "{reason:?}");
        within(joined.other.disconnected()).await;
        for (at, receive) in arrived.drain(..).enumerate() {
            assert_eq!(within(receive).await.0.is_ok(), at < TAKEN, "message {at}");
        }
        assert_eq!((lane.outstanding(), lane.poll(&mut [Done::EMPTY]).expect("alive").len()), (0, 0));
        for slot in slots.iter().chain([&late, &received[0].slot()]) {
            lane.give(*slot);
        }
        assert_eq!(std::iter::from_fn(|| lane.take()).count(), 12);
    }
    nothing_is_left().await;
}

// LN-28: what the driver refuses comes out behind what was taken before, also if the device completes nothing of that until its queue
// pair is destroyed.
#[tokio::test]
async fn refused_sends_come_behind_those_that_were_taken() {
    if !alone(module_path!(), "refused_sends_come_behind_those_that_were_taken") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let mut joined = join(&adapter, LaneConfig::new(4, 64), 0).await;
    let (lane, id) = (&mut joined.lane, joined.id);
    let slots: Vec<Slot> = (0..4).map(|byte| filled(lane, byte)).collect();
    fake("port 1 down");
    fake("keep requests");
    fake(&format!("fail ibv_post_send 3 {}", libc::ENOMEM));
    assert_eq!(lane.send_all(id, slots.iter().map(|slot| (*slot, 1))).expect("posted"), 4);
    let done = completions(lane, 4).await;
    let found: Vec<_> = done.iter().map(|done| (done.slot(), done.is_success())).collect();
    assert_eq!(found, slots.iter().map(|slot| (*slot, false)).collect::<Vec<_>>());
}

// LN-28, OBS-01: a subscriber that panics when the device refuses requests neither has any of them posted twice, nor loses a completion.
#[tokio::test]
async fn a_panicking_subscriber_has_nothing_posted_twice() {
    const TAKEN: usize = 2;
    if !alone(module_path!(), "a_panicking_subscriber_has_nothing_posted_twice") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let mut joined = join(&adapter, LaneConfig::new(5, 64), 0).await;
    let (lane, id) = (&mut joined.lane, joined.id);
    let _arrived: Vec<_> = (0..5).map(|_| joined.peer.receive(room(&adapter, 64)).expect("posted")).collect();
    fake(&format!("fail ibv_post_send {} {}", TAKEN + 1, libc::ENOMEM));
    let slots: Vec<Slot> = (0..5).map(|byte| filled(lane, byte)).collect();
    slots.iter().for_each(|slot| lane.send(id, *slot, 1).expect("posted"));
    tracing::subscriber::with_default(tracing_subscriber::registry().with(PanickingLayer), || {
        catch_unwind(AssertUnwindSafe(|| lane.ring())).expect_err("the subscriber's");
    });
    let posted = fake("calls ibv_post_send");
    lane.ring();
    assert_eq!(fake("calls ibv_post_send"), posted, "nothing is posted again");
    let done = completions(lane, 5).await;
    let found: Vec<_> = done.iter().map(|done| (done.slot(), done.is_success())).collect();
    let expected: Vec<_> = slots.iter().enumerate().map(|(at, slot)| (*slot, at < TAKEN)).collect();
    assert_eq!(found, expected);
    assert_eq!((lane.outstanding(), lane.poll(&mut [Done::EMPTY]).expect("alive").len()), (0, 0));
    within(joined.connection.disconnected()).await;
}

// LN-28: a request that does not fit into the chain any more has the doorbell rung. If that finds the end, nothing is posted.
#[tokio::test]
async fn nothing_is_posted_behind_a_refused_chain() {
    if !alone(module_path!(), "nothing_is_posted_behind_a_refused_chain") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let mut joined = join(&adapter, LaneConfig::new(80, 64), 0).await;
    let (lane, id) = (&mut joined.lane, joined.id);
    fake(&format!("fail ibv_post_send 1 {}", libc::EIO));
    let mut posted = 0;
    let error = loop {
        let slot = filled(lane, 1);
        match lane.send(id, slot, 1) {
            Ok(()) => posted += 1,
            Err(error) => {
                lane.give(slot);
                break error;
            }
        }
    };
    assert_eq!((error, posted), (PostErrorKind::ConnectionInvalid, 64));
    // The device has nothing to complete before them.
    let mut room = [Done::EMPTY; 65];
    let done = lane.poll(&mut room).expect("the lane lives");
    assert_eq!(done.len(), 64, "the next poll has them");
    assert!(done.iter().all(|done| !done.is_success()));
    done.iter().for_each(|done| lane.give(done.slot()));
    assert_eq!(std::iter::from_fn(|| lane.take()).count(), 80);
}

// LN-28: a receive that the driver refuses comes out of the next poll, and the connection goes on.
#[tokio::test]
async fn refused_receives_come_out_of_a_poll() {
    if !alone(module_path!(), "refused_receives_come_out_of_a_poll") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let mut joined = join(&adapter, LaneConfig::new(8, 64), 0).await;
    let (lane, id) = (&mut joined.lane, joined.id);
    fake(&format!("fail ibv_post_recv 2 {}", libc::ENOMEM));
    let slots: Vec<Slot> = (0..3).map(|_| lane.take().expect("a slot")).collect();
    assert_eq!(lane.receive_all(id, slots.iter().copied()).expect("posted"), 3);
    let done = completions(lane, 2).await;
    for (done, slot) in done.iter().zip(&slots[1..]) {
        assert_eq!((done.slot(), done.kind(), done.is_success()), (*slot, OpKind::Receive, false));
        lane.receive(id, *slot).expect("posted again");
    }
    lane.ring();
    for slot in &slots {
        within(joined.peer.send(bytes(&adapter, b"hello")).expect("posted")).await.0.expect("sent");
        let done = completions(lane, 1).await[0];
        assert_eq!((done.slot(), done.bytes()), (*slot, 5));
    }
    assert_eq!((lane.state(id), lane.outstanding()), (LaneState::Connected, 0));
}

// LN-29: silent requests alone never fill the queue for good, with whatever memory.
#[tokio::test]
async fn silent_requests_of_each_kind_go_on() {
    if !alone(module_path!(), "silent_requests_of_each_kind_go_on") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let mut joined = join(&adapter, LaneConfig::new(8, 64).send_depth(4), 0).await;
    let (lane, id) = (&mut joined.lane, joined.id);
    let region = adapter.register(64, Access::REMOTE_WRITE).await.expect("registered");
    let here = adapter.register(64, Access::LOCAL_WRITE).await.expect("registered");
    let part = here.slice(0..8).expect("in bounds");
    let silent = WorkOptions::default().silent();
    let mut room = [Done::EMPTY; 4];
    for kind in ["bytes", "region", "slots", "each"] {
        for number in 0..60_usize {
            let turn = if kind == "each" { number % 3 } else { usize::MAX };
            let slot = filled(lane, 1);
            let piece = [(slot, 0..8)];
            let local = match (kind, turn) {
                ("bytes", _) | (_, 0) => Local::Bytes(&[1; 8]),
                ("region", _) | (_, 1) => Local::Region(&part),
                _ => Local::Slots(&piece),
            };
            let posts = matches!(local, Local::Slots(_));
            let mut tries = 0;
            while let Err(error) = lane.write_with(id, local, &region.remote(), silent) {
                assert!(matches!(error, PostErrorKind::QueueFull { .. }) && tries < 3, "{kind}: {error}");
                tries += 1;
                assert!(lane.poll(&mut room).expect("the lane lives").is_empty(), "{kind}");
            }
            if !posts {
                lane.give(slot);
            }
        }
    }
    // A later one that is not silent has everything free.
    let slot = filled(lane, 2);
    let mut done = Vec::new();
    while lane.write(id, slot, 0..8, &region.remote()).is_err() {
        done.extend_from_slice(lane.poll(&mut room).expect("the lane lives"));
    }
    done.extend(completions(lane, 1).await);
    assert_eq!((done.len(), done[0].slot()), (1, slot));
    lane.give(slot);
    assert_eq!((std::iter::from_fn(|| lane.take()).count(), lane.outstanding()), (8, 0));
    // Its memory is given back.
    drop((part, here));
    eventually_regions(2).await;
}

async fn eventually_regions(count: i64) {
    common::life::eventually("the region is gone", || super::count("mr") <= count).await;
}

// LN-29: completions that the program does not see do not keep a wait from those behind them.
#[tokio::test]
async fn a_wait_looks_behind_hidden_completions() {
    if !alone(module_path!(), "a_wait_looks_behind_hidden_completions") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    // Without a path timeout, whose parts would wake it.
    let adapter = open(None);
    let mut joined = join(&adapter, LaneConfig::new(16, 64), 0).await;
    let (lane, id) = (&mut joined.lane, joined.id);
    let region = adapter.register(64, Access::REMOTE_WRITE).await.expect("registered");
    let silent = WorkOptions::default().silent();
    for _ in 0..5 {
        let slot = filled(lane, 1);
        lane.write_with(id, Local::Slots(&[(slot, 0..8)]), &region.remote(), silent).expect("posted");
    }
    let slot = filled(lane, 2);
    lane.write(id, slot, 0..8, &region.remote()).expect("posted");
    lane.ring();
    let written = || {
        let mut found = [0; 8];
        region.read(0, &mut found).expect("in bounds");
        found == [2; 8]
    };
    common::life::eventually("all are complete", written).await;
    let mut room = [Done::EMPTY];
    let done = within(lane.ready(&mut room)).await.expect("the lane lives")[0];
    assert_eq!((done.slot(), done.status()), (slot, Status::SUCCESS));
}

// LN-30: parts that are not parts of a slot are refused, however long they are.
#[tokio::test]
async fn impossible_parts_are_refused() {
    let Some(_) = fake("count qp") else { return };
    let adapter = adapter();
    let mut joined = join(&adapter, LaneConfig::new(4, 64), 0).await;
    let (lane, id) = (&mut joined.lane, joined.id);
    let region = adapter.register(64, Access::REMOTE_WRITE).await.expect("registered");
    let (one, other) = (filled(lane, 1), filled(lane, 2));
    let long = [(one, 0..usize::MAX), (other, 0..usize::MAX)];
    let options = WorkOptions::default;
    let refused = lane.send_with(id, Local::Slots(&long), options());
    assert!(matches!(refused, Err(PostErrorKind::TooLong { .. })), "{refused:?}");
    let refused = lane.write_with(id, Local::Slots(&long), &region.remote(), options());
    assert!(matches!(refused, Err(PostErrorKind::BeyondRemote { .. })), "{refused:?}");
    #[allow(clippy::reversed_empty_ranges, reason = "it is the mistake")]
    for part in [60..65, 5..2, usize::MAX..usize::MAX, usize::MAX..0] {
        let parts = [(one, part.clone())];
        let refused = lane.send_with(id, Local::Slots(&parts), options());
        assert!(matches!(refused, Err(PostErrorKind::TooLong { .. })), "{part:?}: {refused:?}");
        let refused = lane.write(id, one, part.clone(), &region.remote());
        assert!(matches!(refused, Err(PostErrorKind::TooLong { .. })), "{part:?}: {refused:?}");
    }
    assert_eq!((lane.outstanding(), lane.bytes(one)[0], lane.bytes(other)[0]), (0, 1, 2));
}

// LN-31: a message that comes before the connection is established is received and answered, and a Read can be posted as well.
#[tokio::test]
async fn an_early_message_opens_the_send_queue() {
    if !alone(module_path!(), "an_early_message_opens_the_send_queue") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let mut lane = lane(&adapter, LaneConfig::new(4, 64));
    let (id, end) = lane.queue_pair().expect("a queue pair");
    let slot = lane.take().expect("a slot");
    lane.receive(id, slot).expect("posted");
    lane.ring();
    let region = adapter.register(64, Access::REMOTE_READ).await.expect("registered");
    let (listener, address) = listening(&adapter);
    let client = thread::spawn(move || ask(address));
    let request = within(listener.request()).await.expect("a request");
    let mut accept = Box::pin(request.accept(&end, AcceptParams::default()));
    assert!(common::life::poll_once(&mut accept).is_pending());
    // No task of the runtime runs.
    let (mut place, limit) = ([Done::EMPTY], Instant::now() + patience());
    let done = loop {
        if let [done] = lane.poll(&mut place).expect("the lane lives") {
            break *done;
        }
        assert!(Instant::now() < limit, "no message");
    };
    assert_eq!((done.kind(), done.bytes(), &lane.bytes(slot)[..8]), (OpKind::Receive, 8, &b"question"[..]));
    lane.send(id, slot, 8).expect("may be sent");
    if !adapter.info().read_sink_required {
        let into = filled(&mut lane, 1);
        lane.read(id, into, 0..8, &region.remote()).expect("may be read");
        // It is memory of another domain than that of the peer.
    }
    lane.ring();
    let _ = within(accept).await;
    let _ = client.join();
}

/// Asks once, on a thread and a runtime of its own.
fn ask(address: SocketAddr) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let adapter = adapter();
        let queue_pair = queue_pair(&adapter);
        let receive = queue_pair.receive(room(&adapter, 16)).expect("posted");
        let connector = adapter.connector();
        let connect = connector.connect_and_complete(&queue_pair, address, ConnectParams::default());
        let connection = within(connect).await.expect("connected");
        let sent = queue_pair.send(bytes(&adapter, b"question")).expect("posted");
        let _ = within(sent).await;
        let _ = within(receive).await;
        let _ = within(connection.disconnect()).await;
    });
}
