//! The output of `tracing`: an event for every step of every connection, with its number, peer, phase and status, and
//! no output without a subscriber.
//!
//! Runs on: soft, sim, rxe, siw

mod listeners;
mod subscribers;

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use common::programs::example;
use common::*;
use tokio_rdma::error::{ConnectError, Reason};
use tokio_rdma::types::ConnectionId;
use tokio_rdma::{AcceptParams, Access, Adapter, ConnectParams, DisconnectReason, Status};
use tracing::subscriber::{DefaultGuard, NoSubscriber, set_default};
use tracing::{Dispatch, Event, Metadata, Subscriber, span};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// The destination of a test's lines.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("not poisoned").write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// A line that was told about one connection.
#[derive(Debug)]
struct Line {
    level: String,
    message: String,
    fields: HashMap<String, String>,
}

impl Line {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).unwrap_or_else(|| panic!("no {name}: {self:?}"))
    }
}

impl Log {
    /// Listens on this thread until the guard is dropped; the runtime of the test must have no other.
    fn listen(&self) -> DefaultGuard {
        self.listen_to("tokio_rdma=debug")
    }

    fn listen_to(&self, filter: &str) -> DefaultGuard {
        // While a process has one subscriber, tracing asks the thread that first meets an event whether it is wanted, and has
        // the answer for all threads: one whose test has none yet says no. So there is a second, which wants nothing.
        static OTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));
        LazyLock::force(&OTHER);
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(filter))
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(self.clone());
        set_default(subscriber.finish())
    }

    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().expect("not poisoned").clone()).expect("text");
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    fn length(&self) -> usize {
        self.0.lock().expect("not poisoned").len()
    }

    /// The lines about a connection, in order. (What the driver tells is prefixed with its span.)
    fn of(&self, connection: ConnectionId) -> Vec<Line> {
        let text = String::from_utf8(self.0.lock().expect("not poisoned").clone()).expect("text");
        let own = |line: &Line| line.fields.get("connection").is_some_and(|id| *id == connection.to_string());
        text.lines().map(parse).filter(own).collect()
    }

    /// The steps of a connection: phase before, phase after, status.
    fn steps(&self, connection: ConnectionId) -> Vec<(String, String, String)> {
        let moved = self.of(connection).into_iter().filter(|line| line.message == "state changed");
        let moved =
            moved.map(|line| ["from", "phase", "status"].map(|name| line.field(name).to_owned()).into());
        in_order(moved.collect())
    }
}

/// Orders the steps of a connection: each begins in the phase in which the one before has ended. Those that different
/// threads have made, one of them for a call of a device, may be told in another order.
fn in_order(mut told: Vec<(String, String, String)>) -> Vec<(String, String, String)> {
    let entered = |phase: &str| told.iter().filter(|(_, to, _)| to == phase).count();
    let left = |phase: &str| told.iter().filter(|(from, ..)| from == phase).count();
    let first = told.iter().position(|(from, ..)| left(from) > entered(from)).unwrap_or(0);
    let mut ordered: Vec<_> = told.drain(first..told.len().min(first + 1)).collect();
    while let Some((_, last, _)) = ordered.last()
        && let Some(next) = told.iter().position(|(from, ..)| from == last)
    {
        ordered.push(told.remove(next));
    }
    assert!(told.is_empty(), "steps that follow from none: {told:?} {ordered:?}");
    ordered
}

fn parse(line: &str) -> Line {
    let (level, rest) = line.trim_start().split_once(' ').expect("a level");
    // The lines that the task of a connection tells stand behind its span.
    let own = rest.rsplit_once("}: ").map_or(rest, |(_, own)| own);
    let words = || own.split_whitespace();
    let message = words().take_while(|word| !word.contains('=')).collect::<Vec<_>>().join(" ");
    let fields = words().filter_map(|word| word.split_once('='));
    let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Line { level: level.to_owned(), message, fields }
}

fn steps(expected: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    // The connector of a device comes with its request, and has not waited for one.
    let waits = Device::under_test().is_soft();
    expected
        .iter()
        .filter(|(from, ..)| waits || *from != "Waiting")
        .map(|(from, to, status)| ((*from).into(), (*to).into(), (*status).into()))
        .collect()
}

/// Connects, disconnects, and returns the numbers of the active and the passive end.
async fn one_connection() -> (ConnectionId, ConnectionId) {
    one_connection_on(&adapter()).await
}

/// The same on an adapter that is open.
async fn one_connection_on(adapter: &tokio_rdma::Adapter) -> (ConnectionId, ConnectionId) {
    let pair = connected(adapter).await;
    let ids = (pair.active.connection.id(), pair.passive.connection.id());
    within(pair.active.connection.disconnect()).await.expect("disconnected");
    within(pair.passive.connection.disconnected()).await;
    // The peer has left: this ends at once.
    within(pair.passive.connection.disconnect()).await.expect("disconnected");
    ids
}

// A subscriber can tell the connections by their spans (OBS-01).
#[tokio::test]
async fn events_of_a_connection_are_in_its_span() {
    let log = Log::default();
    let _guard = log.listen();
    let pair = connected(&adapter()).await;
    let connection = &pair.active.connection;
    connection.span().in_scope(|| tracing::info!(target: "tokio_rdma", "a call"));
    let text = String::from_utf8(log.0.lock().expect("not poisoned").clone()).expect("text");
    let (id, local, peer) = (connection.id(), connection.local_addr(), connection.peer_addr());
    let expected = format!("connection{{id={id} local={local} peer={peer}}}: a call");
    assert!(text.contains(&expected), "{text}");
}

// There is an event for each step of the active side (OBS-01).
#[tokio::test]
async fn every_step_of_the_active_side_is_told() {
    let log = Log::default();
    let _guard = log.listen();
    let (active, _) = one_connection().await;
    let expected = [
        ("Idle", "Connecting", "PENDING"),
        ("Connecting", "ConnectDone", "SUCCESS"),
        ("ConnectDone", "Completing", "PENDING"),
        ("Completing", "Connected", "SUCCESS"),
        ("Connected", "Disconnecting", "PENDING"),
        ("Disconnecting", "Disconnected", "SUCCESS"),
    ];
    assert_eq!(log.steps(active)[..expected.len()], steps(&expected));
}

// There is an event for each step of the passive side (OBS-01).
#[tokio::test]
async fn every_step_of_the_passive_side_is_told() {
    let log = Log::default();
    let _guard = log.listen();
    let (_, passive) = one_connection().await;
    let expected = [
        ("Waiting", "RequestPending", "SUCCESS"),
        ("RequestPending", "Accepting", "PENDING"),
        ("Accepting", "Connected", "SUCCESS"),
        ("Connected", "PeerGone", "SUCCESS"),
        ("PeerGone", "Disconnecting", "PENDING"),
        ("Disconnecting", "Disconnected", "SUCCESS"),
    ];
    let expected = steps(&expected);
    assert_eq!(log.steps(passive)[..expected.len()], expected);
}

#[tokio::test]
async fn connection_events_carry_peer_and_phase() {
    let log = Log::default();
    let _guard = log.listen();
    let pair = connected(&adapter()).await;
    for end in [&pair.active, &pair.passive] {
        // Not valid twice, and so refused with a status of its own.
        within(end.connection.disconnect()).await.expect("disconnected");
        within(end.connection.disconnect()).await.expect_err("over");
        let lines = log.of(end.connection.id());
        for line in &lines {
            assert_eq!(line.level, "DEBUG", "{line:?}");
            assert_eq!(line.field("peer"), end.connection.peer_addr().to_string(), "{line:?}");
            if line.message == "request arrived" {
                // The listener's word, before there is a phase.
                continue;
            }
            assert!(!line.field("phase").is_empty(), "{line:?}");
            // The driver's report has how the connection ended; the step that follows has the status.
            assert!(line.message == "connection ended" || !line.field("status").is_empty(), "{line:?}");
        }
        for message in ["state changed", "call completed", "connection ended", "call refused"] {
            let told = lines.iter().any(|line| line.message == message);
            // How a connection ended is for the driver of its stream to tell, and a device has none.
            let active_end = end.connection.id() == pair.active.connection.id();
            let excused = message == "connection ended" && (active_end || !Device::under_test().is_soft());
            assert!(told || excused, "{message}: {lines:?}");
        }
    }
}

// The event of a failure has its status (OBS-01).
#[tokio::test]
async fn a_failure_is_told_with_its_status() {
    let log = Log::default();
    let _guard = log.listen();
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let (active, connector) = (queue_pair(&adapter), adapter.connector());
    let connect = connector.connect(&active, address, ConnectParams::default());
    let (request, refused) = within(async {
        tokio::join!(
            async {
                let request = listener.request().await.expect("a request");
                let id = request.id();
                request.reject(b"no").await.expect("rejected");
                id
            },
            connect,
        )
    })
    .await;
    assert!(matches!(refused, Err(ConnectError::Rejected { .. })), "{refused:?}");
    let expected = [("Idle", "Connecting", "PENDING"), ("Connecting", "Idle", "CONNECTION_REFUSED")];
    assert_eq!(log.steps(connector.id()), steps(&expected));
    let expected = [("Waiting", "RequestPending", "SUCCESS"), ("RequestPending", "Dead", "SUCCESS")];
    assert_eq!(log.steps(request), steps(&expected));
}

#[tokio::test]
async fn lost_connection_is_logged_with_its_status() {
    let log = Log::default();
    let _guard = log.listen();
    let pair = connected(&adapter()).await;
    // Flushing gives a connection up; the peer finds it broken.
    pair.active.queue_pair.flush();
    let reason = within(pair.passive.connection.disconnected()).await;
    let lost = log.steps(pair.passive.connection.id()).into_iter().find(|(_, to, _)| to == "PeerGone");
    let (_, _, status) = lost.expect("told");
    assert_eq!(status, reason.status().to_string(), "{reason:?}");
    // A device's last word to its peer is a disconnect in any case.
    assert_eq!(status != "SUCCESS", reason != DisconnectReason::Peer);
    assert!(status != "SUCCESS" || !Device::under_test().is_soft());
}

// OBS-01: at `info` an operator sees what is open, and what was lost and why.
#[tokio::test]
async fn info_has_adapters_listeners_and_losses() {
    let log = Log::default();
    let _guard = log.listen_to("tokio_rdma=info");
    let adapter = adapter();
    let first = connected(&adapter).await;
    // A peer that is refused access ends the connection. siw does not tell that from an orderly end.
    let lost = match Device::under_test() {
        Device::Siw => None,
        _ => Some(lost(&adapter).await),
    };
    let lines = log.lines();
    let name = adapter.info().name;
    let opened = format!("adapter={name} ");
    assert!(
        lines.iter().any(|line| line.starts_with("INFO adapter opened") && line.contains(&opened)),
        "{lines:?}"
    );
    assert!(lines.iter().any(|line| line.starts_with("INFO listening")), "{lines:?}");
    if let Some((id, reason)) = lost {
        let is_lost = |line: &&String| line.starts_with("INFO connection lost") && line.contains(&id);
        let [line] = &lines.iter().filter(is_lost).collect::<Vec<_>>()[..] else { panic!("{lines:?}") };
        assert!(line.contains(&format!("reason={reason}")), "{line}");
    }
    drop(first);
    // This end gives its connection up, and knows that.
    let pair = connected(&adapter).await;
    pair.active.queue_pair.flush();
    let reason = within(pair.active.connection.disconnected()).await;
    assert!(matches!(reason, DisconnectReason::Lost { status: Status::CANCELED, .. }), "{reason:?}");
    let id = format!("connection={} ", pair.active.connection.id());
    let lines = log.lines();
    assert!(!lines.iter().any(|line| line.contains(&id)), "{lines:?}");
    within(pair.passive.connection.disconnected()).await;
    // An orderly life is none of an operator's business.
    let before = log.lines().len();
    one_connection_on(&adapter).await;
    let more = log.lines().split_off(before);
    assert!(more.iter().all(|line| line.starts_with("INFO listening")), "{more:?}");
}

/// Loses a connection. Returns the field with its number, and the reason.
async fn lost(adapter: &Adapter) -> (String, Reason) {
    let pair = connected(adapter).await;
    let region = adapter.register(8, Access::REMOTE_WRITE).await.expect("registered");
    let key = region.remote();
    within(region.deregister()).await.expect("deregistered");
    let write = pair.active.queue_pair.write(adapter.buffer(8).expect("memory"), &key).expect("posted");
    let _ = within(write).await;
    let reason = within(pair.active.connection.disconnected()).await;
    let DisconnectReason::Lost { reason, .. } = reason else { panic!("{reason:?}") };
    within(pair.passive.connection.disconnected()).await;
    (format!("connection={} ", pair.active.connection.id()), reason)
}

// A refusal is told with its reason, and no connection twice in a line.
#[tokio::test]
async fn a_refusal_is_told_with_its_reason() {
    let log = Log::default();
    let _guard = log.listen();
    let adapter = adapter();
    let connector = adapter.connector();
    let queue_pair = queue_pair(&adapter);
    let connect = connector.connect(&queue_pair, device::nobody(v4()), ConnectParams::default());
    let error = within(connect).await.expect_err("nobody listens");
    let ConnectError::Refused { reason, .. } = error else { panic!("{error:?}") };
    let id = format!("connection={} ", connector.id());
    let lines = log.lines();
    let told = lines.iter().find(|line| line.contains("call completed") && line.contains(&id));
    // siw connects on another thread, which this subscriber does not hear.
    let heard = told.is_some_and(|line| line.ends_with(&format!("reason={reason}")));
    assert!(heard || Device::under_test() == Device::Siw, "{lines:?}");
    one_connection_on(&adapter).await;
    for line in log.lines() {
        assert!(line.matches("connection=").count() <= 1 && !line.contains("connection{"), "{line}");
    }
}

// Logs do not hold what peers have said to each other (OBS-01).
#[tokio::test]
async fn private_data_is_not_told() {
    let log = Log::default();
    let _guard = log.listen();
    let connect = ConnectParams::default().private_data(&b"a-secret"[..]);
    let accept = AcceptParams::default().private_data(&b"another-secret"[..]);
    let pair = connected_with(&adapter(), connect, accept).await;
    assert!(!log.of(pair.active.connection.id()).is_empty());
    let text = String::from_utf8(log.0.lock().expect("not poisoned").clone()).expect("text");
    assert!(!text.contains("secret"), "{text}");
}

/// A subscriber that wants nothing, and counts what it gets all the same.
#[derive(Clone, Default)]
struct Deaf(Arc<AtomicUsize>);

impl Subscriber for Deaf {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        false
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        self.0.fetch_add(1, Ordering::Relaxed);
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &span::Id) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn exit(&self, _: &span::Id) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

// OBS-01: the frames of a connection, at both ends, at the level `trace` only.
#[tokio::test]
#[allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]
async fn trace_has_the_frames() {
    if !Device::under_test().is_soft() {
        eprintln!("skipped: the frames of a device are its own");
        return;
    }
    for (filter, expected) in [("tokio_rdma=debug", false), ("tokio_rdma=trace", true)] {
        let log = Log::default();
        let _guard = log.listen_to(filter);
        let adapter = adapter();
        let pair = connected(&adapter).await;
        let receive = pair.passive.queue_pair.receive(adapter.buffer(64).expect("memory")).expect("posted");
        let sent = pair.active.queue_pair.send(adapter.buffer(40).expect("memory")).expect("posted");
        within(sent).await.0.expect("sent");
        within(receive).await.0.expect("received");
        let frames = |end: &End, message: &str| {
            log.of(end.connection.id()).into_iter().filter(|line| line.message == message).collect::<Vec<_>>()
        };
        let received = frames(&pair.passive, "frame received");
        let is_send = |line: &&Line| line.field("opcode") == "Send" && line.field("length") == "40";
        assert_eq!(received.iter().filter(is_send).count(), usize::from(expected), "{filter}: {received:?}");
        // Length, header, payload, padding and CRC.
        let sent = frames(&pair.active, "frames sent");
        let whole = sent.iter().filter(|line| line.field("bytes") == "64").count();
        assert_eq!(whole, usize::from(expected), "{filter}: {sent:?}");
    }
}

#[tokio::test]
async fn no_events_below_the_level() {
    let deaf = Deaf::default();
    let _guard = set_default(deaf.clone());
    one_connection().await;
    assert_eq!(deaf.0.load(Ordering::Relaxed), 0);
}

#[test]
fn program_without_subscriber_writes_nothing_to_stderr() {
    // The example rejects an offer of so few reads, and its peer waits for another.
    if device::skips(Device::FakeIwarp, "an accept is a connection at once") {
        return;
    }
    let output = example("negotiate", &[]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(!output.stdout.is_empty());
}

// A program without a subscriber sees nothing (OBS-01).
#[tokio::test]
async fn nothing_is_told_before_and_after_somebody_listens() {
    let log = Log::default();
    one_connection().await;
    assert_eq!(log.length(), 0);
    let guard = log.listen();
    let (active, _) = one_connection().await;
    drop(guard);
    assert!(!log.of(active).is_empty());
    // On a device the last step of the first connection may be told later, by a thread that listens for whoever did when it began.
    let (active, passive) = one_connection().await;
    assert!([active, passive].iter().all(|connection| log.of(*connection).is_empty()), "{:?}", log.lines());
}
