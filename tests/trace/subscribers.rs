//! Subscribers that are foreign code: they call into the library, or panic.
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::device::{nobody, silent};
use common::process::apart;
use common::raw::{bytes, failure, room};
use common::stream::{granted, streams};
use common::*;
use futures::FutureExt;
use tokio::io::AsyncWriteExt;
use tokio_rdma::error::{ConnectError, Reason};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{ConnectParams, Connection, DisconnectReason, Status};
use tracing::field::{Field, Visit};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// Calls a function with the fields of every event, as text.
struct Calls<F>(F);

impl<S: Subscriber, F: Fn(&str) + 'static> Layer<S> for Calls<F> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        (self.0)(&text.0);
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        use std::fmt::Write;
        write!(self.0, "{field}={value:?} ").expect("memory");
    }
}

/// Has this function called on this thread until the guard is dropped.
fn on_event(call: impl Fn(&str) + Send + Sync + 'static) -> DefaultGuard {
    set_default(tracing_subscriber::registry().with(Calls(call)))
}

// No event is emitted under a lock of its connection (OBS-01).
#[test]
fn subscriber_may_ask_the_connection_it_hears_of() {
    apart(async || {
        let pair = connected(&adapter()).await;
        let asked: Arc<Mutex<Option<Connection>>> = Arc::new(Mutex::new(None));
        let answers = Arc::new(Mutex::new(Vec::new()));
        let _guard = {
            let (asked, answers) = (asked.clone(), answers.clone());
            on_event(move |_| {
                let connection = asked.lock().expect("no panic").clone();
                answers
                    .lock()
                    .expect("no panic")
                    .extend(connection.map(|connection| connection.is_connected()));
            })
        };
        *asked.lock().expect("no panic") = Some(pair.passive.connection.clone());
        pair.active.queue_pair.flush();
        within(pair.passive.connection.disconnected()).await;
        within(pair.passive.connection.disconnect()).await.ok();
        asked.lock().expect("no panic").take();
        assert_eq!(answers.lock().expect("no panic").last(), Some(&false));
    });
}

#[test]
fn subscriber_may_ask_the_listener_it_hears_of() {
    apart(async || {
        let listener = adapter().listener();
        listener.bind((v4(), 0).into()).expect("bound");
        let (heard, asked) = (Arc::new(Mutex::new(None)), listener.clone());
        let _guard = {
            let heard = heard.clone();
            on_event(move |text| {
                if text.contains("listening") {
                    *heard.lock().expect("no panic") = Some(asked.local_addr());
                }
            })
        };
        listener.listen(0).expect("listening");
        assert_eq!(heard.lock().expect("no panic").take(), Some(listener.local_addr()));
    });
}

// A call is answered although the subscriber panics (CAN-01, OBS-01).
#[tokio::test]
async fn panicking_subscriber_leaves_no_call_unanswered() {
    let adapter = adapter();
    let (_silent, address) = silent(v4());
    let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
    let mut connecting = Box::pin(connector.connect(&queue_pair, address, ConnectParams::default()));
    assert!(futures::poll!(&mut connecting).is_pending());
    let guard = on_event(|text| assert!(!text.contains("state changed"), "a subscriber that panics"));
    let canceled = catch_unwind(AssertUnwindSafe(|| connector.cancel()));
    drop(guard);
    assert!(canceled.is_err(), "the subscriber has been called");
    let outcome = within(connecting).await;
    assert!(matches!(outcome, Err(ConnectError::Canceled)), "{outcome:?}");
}

// The attempt of a call that panics in this way is cancelled, and its queue pair is free (CM-21).
#[tokio::test]
async fn panic_in_connect_cancels_the_attempt() {
    let adapter = adapter();
    let (_silent, address) = silent(v4());
    let queue_pair = queue_pair(&adapter);
    let connector = adapter.connector();
    // It panics once more when the drop of the call cancels the attempt.
    let guard = on_event(|text| assert!(!text.contains("state changed"), "a subscriber that panics"));
    let connect = connector.connect(&queue_pair, address, ConnectParams::default());
    let panicked = catch_unwind(AssertUnwindSafe(|| connect.now_or_never()));
    drop(guard);
    assert!(panicked.is_err(), "the subscriber has been called");
    let again = adapter.connector().connect(&queue_pair, address, ConnectParams::default()).now_or_never();
    assert!(again.is_none(), "{again:?}");
}

/// Has the subscriber of this thread panic at each event of sent frames during a call.
fn with_panics_at_frames<R>(call: impl FnOnce() -> R) -> R {
    let _guard = on_event(|text| assert!(!text.contains("frames sent"), "a subscriber that panics"));
    catch_unwind(AssertUnwindSafe(call)).expect("the panic ends the connection and not the call")
}

// Requests do not wait for the writer whose subscriber has panicked (OBS-01).
#[tokio::test]
async fn panic_at_a_frame_ends_the_connection() {
    // The call that posts the first writes its frame; the frames of the second come from the send queue.
    for length in [8, 200_000] {
        let adapter = adapter();
        let Pair { active, passive } = connected(&adapter).await;
        let buffer = || adapter.buffer(length).expect("memory");
        let receive = passive.queue_pair.receive(buffer()).expect("posted");
        let sent = with_panics_at_frames(|| active.queue_pair.send(buffer())).expect("posted");
        assert_eq!(failure(sent).await, Status::CANCELED, "{length}");
        let end = within(active.connection.disconnected()).await;
        let DisconnectReason::Lost { reason: Reason::Local(why), .. } = end else { panic!("{end:?}") };
        assert!(why.contains("panicked"), "{why}");
        let (_outcome, _buffer) = within(receive).await;
        within(passive.connection.disconnected()).await;
    }
}

#[tokio::test]
async fn panic_at_a_frame_ends_the_stream() {
    let (mut active, mut passive) = streams(&adapter()).await;
    granted(&mut active, &mut passive).await;
    let written = with_panics_at_frames(|| active.write_all(b"lost").now_or_never());
    assert!(written.is_none(), "{written:?}");
    within(active.write_all(b"lost")).await.expect_err("the connection has ended");
}

// The message before the one at which the subscriber panics has arrived, and its task is told so (OBS-01).
#[tokio::test]
async fn panic_in_a_turn_loses_no_waker() {
    // An end that spins processes both messages in one turn of its task.
    let adapter = adapter_with(SoftConfig::default().spin(Duration::from_millis(1)));
    let Pair { active, passive } = connected(&adapter).await;
    let receives = [1, 2].map(|_| passive.queue_pair.receive(room(&adapter, 8)).expect("posted"));
    let [first, second] = receives.map(tokio::spawn);
    tokio::task::yield_now().await;
    let received = AtomicUsize::new(0);
    let guard = on_event(move |text| {
        let frames = received.fetch_add(usize::from(text.contains("frame received")), Ordering::Relaxed);
        assert!(frames < 1 || !text.contains("frame received"), "a subscriber that panics");
    });
    let sent = [1, 2].map(|_| active.queue_pair.send(bytes(&adapter, b"text")).expect("posted"));
    within(first).await.expect("no panic").0.expect("it had arrived");
    drop(guard);
    within(second).await.expect("no panic").0.expect_err("the connection has ended");
    let end = within(passive.connection.disconnected()).await;
    assert!(matches!(end, DisconnectReason::Lost { reason: Reason::Local(_), .. }), "{end:?}");
    drop(sent);
}

// The moment between the end of an attempt and the return of its call, in which another call is Active (CM-22).
#[test]
fn call_in_the_subscriber_leaves_the_answer() {
    apart(async || {
        if !Device::under_test().is_soft() {
            eprintln!("skipped: on a device other threads log");
            return;
        }
        let adapter = adapter();
        let (mine, other) = (queue_pair(&adapter), queue_pair(&adapter));
        let (connector, address) = (Arc::new(adapter.connector()), nobody(v4()));
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let _guard = {
            let (connector, outcomes) = (connector.clone(), outcomes.clone());
            on_event(move |text| {
                if text.contains("call completed") {
                    let outcome = connector.connect(&other, address, ConnectParams::default()).now_or_never();
                    outcomes.lock().expect("no panic").push(outcome);
                }
            })
        };
        let outcome = within(connector.connect(&mine, address, ConnectParams::default())).await;
        assert!(matches!(outcome, Err(ConnectError::Refused { .. })), "{outcome:?}");
        let outcomes = std::mem::take(&mut *outcomes.lock().expect("no panic"));
        assert!(matches!(outcomes[..], [Some(Err(ConnectError::Active))]), "{outcomes:?}");
    });
}
