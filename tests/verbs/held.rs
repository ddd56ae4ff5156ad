//! A queue pair whose end comes while a thread is in a call that connects it: the memory of its requests is the device's until
//! that thread has let it go.
//!
//! Runs on: fake, fake-iwarp
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use common::cm::{abandon, connecting as connect, outcome, requested};
use common::life::{eventually, panicking_waker, poll_once, poll_with};
use common::process::alone;
use common::raw::{bytes, room, success};
use common::results::collect;
use common::verbs::{fake, fake_reset, nothing_is_left};
use common::*;
use tokio::task::JoinHandle;
use tokio_rdma::error::{AcceptError, ConnectError};
use tokio_rdma::{
    AcceptParams, Adapter, Buffer, CompletionQueueConfig, ConnectParams, Connection, Op, QueuePair,
    QueuePairConfig, Reply, Status,
};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{self, SubscriberExt};

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
    held_with(call, adapter, queue_pair(adapter), AcceptParams::default()).await
}

/// Has an accept with these parameters held in this call, of this queue pair, to which a receive is posted.
async fn held_with(call: &str, adapter: &Adapter, passive: QueuePair, params: AcceptParams) -> Held {
    let asked = requested(adapter, v4(), ConnectParams::default()).await;
    let receive = passive.receive(room(adapter, 8)).expect("posted");
    fake(&format!("hold {call}"));
    let (queue_pair, request) = (passive.clone(), asked.request);
    let accepting = tokio::spawn(async move {
        let accepted = request.accept(&queue_pair, params).await;
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
async fn memory_returns_after_last_holder_destroys_queue_pair() {
    if !alone(module_path!(), "memory_returns_after_last_holder_destroys_queue_pair") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let calls = calls(&adapter());
    for call in calls {
        for end in ENDS {
            let adapter = adapter();
            let Held { accepting, passive, mut receive, connecting } = held_in(call, &adapter).await;
            // As if a message were arriving: the device gives the receive back with the queue pair.
            fake("keep requests");
            let flushed = if end == "it is flushed" {
                passive.flush();
                Some((accepting, passive))
            } else {
                abandon(accepting).await;
                drop(passive);
                None
            };
            assert!(poll_once(&mut receive).is_pending(), "{call}: {end}: the device has it");
            assert_eq!(fake("scribble"), Some(8), "{call}: {end}");
            fake(&format!("release {call}"));
            let (ended, buffer) = within(receive).await;
            assert_eq!(ended.expect_err("it was flushed").status(), Status::CANCELED);
            assert_eq!(buffer[..], [SCRIBBLE; 8], "{call}: {end}");
            assert_eq!(fake("scribble"), Some(0), "{call}: {end}: the device has no other");
            fake("reset");
            drop(outcome(connecting).await);
            if let Some((accepting, passive)) = flushed {
                drop((outcome(accepting).await, passive));
            }
            drop((buffer, adapter));
            // The next one holds a call that the end of these makes, too.
            nothing_is_left().await;
        }
    }
}

// CM-18: the time limit of a connect counts while its queue pair is being renewed, which waits for that thread.
#[tokio::test]
async fn connect_times_out_during_queue_pair_renewal() {
    if !alone(module_path!(), "connect_times_out_during_queue_pair_renewal") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
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

/// A queue pair that is being renewed until `reset`, and the connect of its peer.
async fn being_renewed(adapter: &Adapter) -> (QueuePair, JoinHandle<Result<Reply, ConnectError>>) {
    let Held { accepting, passive, receive: _, connecting } = held_in("rdma_accept", adapter).await;
    fake("keep requests");
    abandon(accepting).await;
    (passive, connecting)
}

// CAN-01: a cancel ends a connect whose queue pair is being renewed beside one that has begun.
#[tokio::test]
async fn a_cancel_ends_waiting_and_begun_connects() {
    if !alone(module_path!(), "a_cancel_ends_waiting_and_begun_connects") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let (renewed, connecting) = being_renewed(&adapter).await;
    let (_listener, address) = listening(&adapter);
    let (connector, other) = (adapter.connector(), queue_pair(&adapter));
    let mut waiting = pin!(connector.connect(&renewed, address, ConnectParams::default()));
    let mut begun = pin!(connector.connect(&other, address, ConnectParams::default()));
    assert!(poll_once(&mut waiting).is_pending() && poll_once(&mut begun).is_pending());
    connector.cancel();
    for ended in [poll_once(&mut waiting), poll_once(&mut begun)] {
        let Poll::Ready(canceled) = ended else { panic!("it waits on") };
        assert!(matches!(canceled.expect_err("canceled"), ConnectError::Canceled));
    }
    fake("reset");
    drop(outcome(connecting).await);
}

// CAN-01, A13: a cancel ends a connect whose queue pair is being renewed, before the machine knows of it.
#[tokio::test]
async fn connect_is_canceled_during_queue_pair_renewal() {
    if !alone(module_path!(), "connect_is_canceled_during_queue_pair_renewal") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let (renewed, connecting) = being_renewed(&adapter).await;
    let (_listener, address) = listening(&adapter);
    let connector = adapter.connector();
    let mut connect = pin!(connector.connect(&renewed, address, ConnectParams::default()));
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

/// A subscriber that panics at each event.
pub(crate) struct PanickingLayer;

impl<S: tracing::Subscriber> Layer<S> for PanickingLayer {
    fn on_event(&self, _event: &tracing::Event<'_>, _context: layer::Context<'_, S>) {
        panic!("the subscriber fails");
    }
}

// CAN-01: a subscriber that panics in the cancel of such a connect keeps no call waiting.
#[tokio::test]
async fn a_panicking_subscriber_loses_no_cancel() {
    if !alone(module_path!(), "a_panicking_subscriber_loses_no_cancel") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let (renewed, connecting) = being_renewed(&adapter).await;
    let (_listener, address) = listening(&adapter);
    let connector = adapter.connector();
    let mut connect = pin!(connector.connect(&renewed, address, ConnectParams::default()));
    assert!(poll_once(&mut connect).is_pending(), "it has no queue pair yet");
    tracing::subscriber::with_default(tracing_subscriber::registry().with(PanickingLayer), || {
        catch_unwind(AssertUnwindSafe(|| connector.cancel())).expect_err("the subscriber's");
    });
    let Poll::Ready(canceled) = poll_once(&mut connect) else { panic!("it waits on") };
    assert!(matches!(canceled.expect_err("canceled"), ConnectError::Canceled));
    fake("reset");
    drop(outcome(connecting).await);
}

// HW-04: the last holder, which is that thread, cannot destroy it.
#[tokio::test]
async fn memory_is_withheld_if_last_destroy_fails() {
    if !alone(module_path!(), "memory_is_withheld_if_last_destroy_fails") {
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
async fn queue_pair_without_requests_waits_for_no_holder() {
    if !alone(module_path!(), "queue_pair_without_requests_waits_for_no_holder") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
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

// CM-35, CAN-04: a library expects one call at a time that changes a queue pair. The end of one that is being given the options of its
// vendor is left to the thread that gives them, and one that has ended is given none.
#[tokio::test]
async fn flush_and_vendor_options_are_serialized() {
    if !alone(module_path!(), "flush_and_vendor_options_are_serialized") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    if adapter.info().iwarp {
        eprintln!(
            "skipped: over iWARP the driver connects the queue pair, and there are no options of a vendor"
        );
        return;
    }
    fake("ece 5555 7");
    let Held { accepting, passive, mut receive, connecting } = held_in("ibv_set_ece", &adapter).await;
    let changes = fake("calls ibv_modify_qp");
    passive.flush();
    let (changes_by_then, is_pending) = (fake("calls ibv_modify_qp"), poll_once(&mut receive).is_pending());
    fake("release ibv_set_ece");
    assert_eq!(changes_by_then, changes, "the call that gives the options had not returned");
    assert!(is_pending, "the device had the receive");
    let (ended, _buffer) = within(receive).await;
    assert_eq!(ended.expect_err("it was flushed").status(), Status::CANCELED);
    assert!(within(accepting).await.expect("no panic").is_err());
    drop(outcome(connecting).await);
    // The call before it is the one that sets the timeout.
    let params = AcceptParams::default().ack_timeout(14);
    fake("reset");
    let held = held_with("rdma_set_option", &adapter, queue_pair(&adapter), params).await;
    held.passive.flush();
    fake("release rdma_set_option");
    assert!(within(held.accepting).await.expect("no panic").is_err());
    drop(outcome(held.connecting).await);
    assert_eq!(fake("calls ibv_set_ece"), Some(0), "the queue pair had ended");
}

// CAN-04, HW-04: the end of a queue pair that follows its last completion is not lost if a waker panics before: the memory of its requests
// comes back with the last thread that has the queue pair.
#[tokio::test]
async fn panicking_waker_loses_no_queue_pair_end() {
    if !alone(module_path!(), "panicking_waker_loses_no_queue_pair_end") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let results = adapter.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
    let config = QueuePairConfig::default().receive_completions(&results);
    let [first, second] = [(); 2].map(|()| adapter.queue_pair(config.clone()).expect("a queue pair"));
    let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
    let pair = connected_queue_pairs(&adapter, queue_pair(&adapter), first, connect, accept).await;
    let mut message = pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    assert!(poll_with(&mut message, &panicking_waker()).is_pending());
    let accept = AcceptParams::default();
    let Held { accepting, passive, mut receive, connecting } =
        held_with("rdma_accept", &adapter, second, accept).await;
    fake("keep requests");
    passive.flush();
    // From here to the poll no task runs: it finds the message, and behind it the last completion of the other queue pair.
    let send = pair.active.queue_pair.send(bytes(&adapter, b"message")).expect("posted");
    fake("keep nothing");
    let mut found = Vec::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| results.poll(8, &mut found)));
    assert_eq!(panicked.expect_err("the waker panics").downcast_ref(), Some(&"a waker"));
    assert!(poll_once(&mut receive).is_pending(), "its queue pair is to be renewed first");
    assert_eq!(fake("held"), Some(1), "the thread has not returned");
    fake("release rdma_accept");
    // The poll has taken the message before the waker was woken.
    assert_eq!(found.len(), 1);
    assert_eq!(collect(&results, 1).await[0].status, Status::CANCELED);
    let (ended, buffer) = receive.take().expect("polled");
    assert_eq!((ended.expect_err("it was flushed").status(), buffer.len()), (Status::CANCELED, 8));
    assert_eq!(message.take().expect("polled").1[..7], *b"message");
    success(send).await;
    assert!(within(accepting).await.expect("no panic").is_err());
    drop(outcome(connecting).await);
    // CM-21: the queue pair is used again.
    let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
    let again = connected_queue_pairs(&adapter, passive, queue_pair(&adapter), connect, accept).await;
    let receive = again.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    success(again.active.queue_pair.send(bytes(&adapter, b"again")).expect("posted")).await;
    assert_eq!(success(receive).await.1[..5], *b"again");
}
