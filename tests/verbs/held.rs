//! A queue pair whose end comes while a thread is in a call that connects it: the memory of its requests is the device's until
//! that thread has let it go.
//!
//! Runs on: fake, fake-iwarp

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use common::cm::{abandon, connecting as connect, outcome, requested};
use common::life::{eventually, poll_once};
use common::process::alone;
use common::raw::{bytes, room, success};
use common::verbs::{fake, nothing_is_left};
use common::*;
use tokio::task::JoinHandle;
use tokio_rdma::error::{AcceptError, ConnectError};
use tokio_rdma::{AcceptParams, Adapter, Buffer, ConnectParams, Connection, Op, QueuePair, Reply, Status};

/// The bytes that the fake device writes to the memory of a receive that it has.
const SCRIBBLE: u8 = 0xee;

/// An accept whose thread does not return from a call.
struct Held {
    accepting: JoinHandle<Result<Connection, AcceptError>>,
    passive: QueuePair,
    receive: Op<Buffer>,
    connecting: JoinHandle<Result<Reply, ConnectError>>,
}

/// Has an accept held in this call, of a queue pair with a receive.
async fn held_in(call: &str, adapter: &Adapter) -> Held {
    let asked = requested(adapter, v4(), ConnectParams::default()).await;
    let passive = queue_pair(adapter);
    let receive = passive.receive(room(adapter, 8)).expect("posted");
    fake(&format!("hold {call}"));
    let (queue_pair, request) = (passive.clone(), asked.request);
    let accepting = tokio::spawn(async move {
        let accepted = request.accept(&queue_pair, AcceptParams::default()).await;
        accepted.map_err(|refused| refused.error)
    });
    eventually("the thread is in the call", || fake("held") == Some(1)).await;
    Held { accepting, passive, receive, connecting: asked.connecting }
}

/// The ends of the queue pair of an accept.
const ENDS: [&str; 2] = ["the accept is dropped, and the queue pair", "it is flushed"];

/// The calls within which the thread may be. Over iWARP the driver changes the states.
fn calls(adapter: &Adapter) -> &'static [&'static str] {
    if adapter.info().iwarp { &["rdma_accept"] } else { &["rdma_accept", "ibv_modify_qp"] }
}

// HW-04, CAN-04: what the device may still write to belongs to nobody else, and comes back once the device has let it go.
#[tokio::test]
async fn memory_comes_back_when_the_last_holder_has_destroyed_the_queue_pair() {
    if !alone(module_path!(), "memory_comes_back_when_the_last_holder_has_destroyed_the_queue_pair") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    for call in calls(&adapter) {
        for end in ENDS {
            let Held { accepting, passive, mut receive, connecting } = held_in(call, &adapter).await;
            // As if a message were arriving: the device gives the receive back with the queue pair.
            fake("keep requests");
            if end == "it is flushed" {
                passive.flush();
            } else {
                abandon(accepting).await;
                drop(passive);
            }
            assert!(poll_once(&mut receive).is_pending(), "{call}: {end}: the device has it");
            assert_eq!(fake("scribble"), Some(8), "{call}: {end}");
            fake(&format!("release {call}"));
            let (ended, buffer) = within(receive).await;
            assert_eq!(ended.expect_err("it was flushed").status(), Status::CANCELED);
            assert_eq!(buffer[..], [SCRIBBLE; 8], "{call}: {end}");
            assert_eq!(fake("scribble"), Some(0), "{call}: {end}: the device has no other");
            fake("reset");
            drop(outcome(connecting).await);
        }
    }
    drop(adapter);
    nothing_is_left().await;
}

// CM-18: the time limit of a connect counts while its queue pair is being renewed, which waits for that thread.
#[tokio::test]
async fn a_connect_ends_in_time_while_its_queue_pair_is_renewed() {
    if !alone(module_path!(), "a_connect_ends_in_time_while_its_queue_pair_is_renewed") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let Held { accepting, passive, receive, connecting } = held_in("rdma_accept", &adapter).await;
    fake("keep requests");
    abandon(accepting).await;
    let (listener, address) = listening(&adapter);
    let connector = adapter.connector();
    let params = ConnectParams::default().timeout(Duration::from_millis(100));
    let error =
        within(connector.connect(&passive, address, params)).await.expect_err("it has no queue pair yet");
    assert_eq!(error.status(), Status::IO_TIMEOUT);
    fake("reset");
    drop(outcome(connecting).await);
    // CM-21: both are used again, and the receive is as it was.
    let other = queue_pair(&adapter);
    let _ends = joined(
        connector.connect_and_complete(&passive, address, ConnectParams::default()),
        listener.accept_next(&other, AcceptParams::default()),
    )
    .await;
    success(other.send(bytes(&adapter, b"message")).expect("posted")).await;
    assert_eq!(success(receive).await.1[..7], *b"message");
}

// CAN-01, A13: a cancel ends a connect whose queue pair is being renewed, before the machine knows of it.
#[tokio::test]
async fn a_connect_is_canceled_while_its_queue_pair_is_renewed() {
    if !alone(module_path!(), "a_connect_is_canceled_while_its_queue_pair_is_renewed") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let Held { accepting, passive, receive: _, connecting } = held_in("rdma_accept", &adapter).await;
    fake("keep requests");
    abandon(accepting).await;
    let (_listener, address) = listening(&adapter);
    let connector = adapter.connector();
    let mut connect = pin!(connector.connect(&passive, address, ConnectParams::default()));
    assert!(poll_once(&mut connect).is_pending(), "it has no queue pair yet");
    connector.cancel();
    let Poll::Ready(canceled) = poll_once(&mut connect) else { panic!("it waits on") };
    assert!(matches!(canceled.expect_err("canceled"), ConnectError::Canceled));
    // A13: the connector is not used again, as after the cancel of any other connect.
    let other = queue_pair(&adapter);
    let error = within(connector.connect(&other, address, ConnectParams::default())).await;
    assert_eq!(error.expect_err("it was canceled").status(), Status::CONNECTION_ACTIVE);
    fake("reset");
    drop(outcome(connecting).await);
}

// HW-04: the last holder, which is that thread, cannot destroy it.
#[tokio::test]
async fn memory_that_the_last_holder_cannot_take_back_is_withheld() {
    if !alone(module_path!(), "memory_that_the_last_holder_cannot_take_back_is_withheld") {
        return;
    }
    let Some(_) = fake("forgive") else { return };
    let adapter = adapter();
    for end in ENDS {
        let Held { accepting, passive, mut receive, connecting } = held_in("rdma_accept", &adapter).await;
        fake("keep requests");
        let regions = fake("count mr");
        fake(&format!("refuse ibv_destroy_qp {}", libc::EIO));
        if end == "it is flushed" {
            passive.flush();
        } else {
            abandon(accepting).await;
            drop(passive);
        }
        assert!(poll_once(&mut receive).is_pending(), "{end}: the device has it");
        fake("release rdma_accept");
        let (ended, buffer) = within(receive).await;
        assert_eq!(ended.expect_err("it was flushed").status(), Status::CANCELED);
        assert!(buffer.is_empty(), "{end}: the device may write to it");
        assert!(fake("scribble") >= Some(8), "{end}: and does");
        assert_eq!(fake("count mr"), regions, "{end}");
        drop(connecting);
        fake("reset");
        fake("forgive");
    }
}

// CAN-04, CM-21: a queue pair of which the device has given every request back is renewed, whoever has it: at once, or when the
// last of them comes.
#[tokio::test]
async fn a_queue_pair_without_requests_waits_for_no_holder() {
    if !alone(module_path!(), "a_queue_pair_without_requests_waits_for_no_holder") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    for late in [false, true] {
        let adapter = adapter();
        let Held { accepting, passive, receive, connecting } = held_in("rdma_accept", &adapter).await;
        if late {
            fake("keep requests");
        }
        abandon(accepting).await;
        // It connects by its next queue pair of the device.
        let (listener, address) = listening(&adapter);
        let connector = Arc::new(adapter.connector());
        let attempt = connect(&connector, &passive, address, ConnectParams::default());
        if late {
            tokio::task::yield_now().await;
            assert_eq!((fake("scribble"), attempt.is_finished()), (Some(8), false));
            fake("keep nothing");
        }
        within(listener.request()).await.expect("a request").reject(b"no").await.expect("said");
        let error = outcome(attempt).await.map(drop).expect_err("refused");
        assert_eq!(error.status(), Status::CONNECTION_REFUSED);
        assert_eq!(fake("held"), Some(1), "the thread has not returned");
        fake("reset");
        drop(outcome(connecting).await);
        drop((passive, connector, listener, adapter));
        let (ended, buffer) = within(receive).await;
        assert_eq!((ended.expect_err("it has gone").status(), buffer.len()), (Status::CANCELED, 8));
        drop(buffer);
        nothing_is_left().await;
    }
}
