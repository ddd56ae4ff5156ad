//! Waits for solicited events at a queue that the program polls: the device raises an interrupt for these and for failures alone.
//!
//! Runs on: fake, fake-iwarp

use std::sync::{Arc, Barrier};

use common::life::{eventually, poll_once};
use common::process::alone;
use common::raw::{bytes, room};
use common::verbs::{fake, fake_reset};
use common::*;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{
    AcceptParams, Adapter, Buffer, CompletionQueue, CompletionQueueConfig, ConnectParams, NotifyKind, Op,
    QueuePairConfig, RemoteRegion, Status, WorkOptions,
};

use super::queues::{calm, number, queue};

/// A request for solicited events alone.
const ARM: &str = "ibv_req_notify_cq:solicited";

/// A connected pair, both ends of which complete into queues that only the program polls: no other event is raised than those of
/// a wait.
struct Quiet {
    adapter: Adapter,
    pair: Pair,
    sent: CompletionQueue,
    received: CompletionQueue,
}

impl Quiet {
    async fn new() -> Self {
        let adapter = calm();
        let [sent, received] =
            [(); 2].map(|()| queue(&adapter, CompletionQueueConfig::default().busy_poll(true)));
        let [active, passive] = [&sent, &received].map(|queue| {
            adapter.queue_pair(QueuePairConfig::default().completions(queue)).expect("a queue pair")
        });
        let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
        let pair = connected_queue_pairs(&adapter, active, passive, connect, accept).await;
        Self { adapter, pair, sent, received }
    }

    /// Has a message arrive at the passive end. Nothing polls its queue.
    async fn arrive(&self, options: WorkOptions) -> Op<Buffer> {
        let receive = self.pair.passive.queue_pair.receive(room(&self.adapter, 8)).expect("posted");
        let message = bytes(&self.adapter, b"received");
        let _send = self.pair.active.queue_pair.send_with(message, options).expect("posted");
        let mut results = Vec::new();
        within(async {
            while self.sent.poll(8, &mut results) == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(results[0].status, Status::SUCCESS);
        receive
    }

    /// Has a request of the passive end fail: over iWARP the receive, because a Write whose bytes have left succeeds.
    fn fail(&self) -> [Op<Buffer>; 2] {
        let queue_pair = &self.pair.passive.queue_pair;
        let unknown = RemoteRegion::new(0, RemoteKey(0xdead_0001), 8);
        let receive = queue_pair.receive(room(&self.adapter, 8)).expect("posted");
        let write = queue_pair.write(bytes(&self.adapter, b"refused"), &unknown).expect("posted");
        [receive, write]
    }

    /// Returns the number of completions that the program has not polled.
    fn poll(&self) -> usize {
        self.received.poll(64, &mut Vec::new())
    }
}

fn plain() -> WorkOptions {
    WorkOptions::default()
}

// CQ-04, QP-11: messages without the flag raise no event while a task waits for solicited ones, and the one with the flag does. It
// resolves the wait.
#[tokio::test]
async fn only_solicited_message_raises_an_event() {
    if !alone(module_path!(), "only_solicited_message_raises_an_event") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let quiet = Quiet::new().await;
    assert!(quiet.adapter.info().solicited_events);
    let mut receives = Vec::new();
    for round in 0..3 {
        let mut solicited = quiet.received.notify(NotifyKind::Solicited);
        let before = number("events");
        for _ in 0..4 {
            receives.push(quiet.arrive(plain()).await);
        }
        assert_eq!(number("events"), before);
        // After an event the task of the queue may look some more times, and find them.
        assert!(round > 0 || poll_once(&mut solicited).is_pending());
        receives.push(quiet.arrive(plain().solicited()).await);
        assert_eq!(number("events"), before + 1);
        within(solicited).await.expect("notified");
        assert_eq!(quiet.poll(), 5);
    }
}

// CQ-04: a request that fails raises the event, too.
#[tokio::test]
async fn failure_resolves_waits_for_solicited_and_errors() {
    if !alone(module_path!(), "failure_resolves_waits_for_solicited_and_errors") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    for kind in [NotifyKind::Solicited, NotifyKind::Errors] {
        let quiet = Quiet::new().await;
        let failed = quiet.received.notify(kind);
        let before = number("events");
        let receive = quiet.arrive(plain()).await;
        assert_eq!(number("events"), before);
        let failing = quiet.fail();
        within(failed).await.expect("notified");
        assert!(number("events") > before);
        drop((receive, failing));
    }
}

// CQ-04: a message with the flag is no failure: a wait for failures goes on, with an event for each such message and for no other.
#[tokio::test]
async fn wait_for_errors_outlives_solicited_messages() {
    if !alone(module_path!(), "wait_for_errors_outlives_solicited_messages") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let quiet = Quiet::new().await;
    let mut failed = quiet.received.notify(NotifyKind::Errors);
    let arms = || number(&format!("calls {ARM}"));
    let mut receives = Vec::new();
    for _ in 0..3 {
        let (before, armed) = (number("events"), arms());
        receives.push(quiet.arrive(plain().solicited()).await);
        eventually("the queue is armed again", || arms() > armed).await;
        receives.push(quiet.arrive(plain()).await);
        assert_eq!(number("events"), before + 1);
        assert!(poll_once(&mut failed).is_pending());
    }
    let failing = quiet.fail();
    within(failed).await.expect("notified");
    drop((receives, failing));
}

// CQ-04: ANY dominates: a wait for any completion that begins later has events for all, until it has ended.
#[tokio::test]
async fn later_wait_for_any_is_notified_of_all() {
    if !alone(module_path!(), "later_wait_for_any_is_notified_of_all") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let quiet = Quiet::new().await;
    let mut receives = Vec::new();
    for _ in 0..3 {
        let mut solicited = quiet.received.notify(NotifyKind::Solicited);
        let mut any = quiet.received.notify(NotifyKind::Any);
        assert!(poll_once(&mut solicited).is_pending() && poll_once(&mut any).is_pending());
        let before = number("events");
        receives.push(quiet.arrive(plain()).await);
        assert_eq!(number("events"), before + 1);
        within(any).await.expect("notified");
        within(solicited).await.expect("notified");
        assert_eq!(quiet.poll(), 1);
        // The device may have been asked for one more event before the wait ended.
        let _solicited = quiet.received.notify(NotifyKind::Solicited);
        let before = number("events");
        for _ in 0..4 {
            receives.push(quiet.arrive(plain()).await);
            tokio::task::yield_now().await;
        }
        let events = number("events") - before;
        assert!(events <= 1, "{events} events of 4 messages");
        quiet.poll();
    }
}

// CQ-02, CQ-04: the request of one wait for solicited events may reach the device behind that of another one for all events, and take
// its place, as with siw. The latter is made again.
#[tokio::test]
async fn late_arm_takes_no_event_from_wait_for_any() {
    if !alone(module_path!(), "late_arm_takes_no_event_from_wait_for_any") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let quiet = Quiet::new().await;
    fake("replace arms");
    fake(&format!("hold {ARM}"));
    let results = quiet.received.clone();
    let late = tokio::task::spawn_blocking(move || results.notify(NotifyKind::Solicited));
    eventually("the call is held", || number("held") == 1).await;
    let any = quiet.received.notify(NotifyKind::Any);
    fake(&format!("release {ARM}"));
    let solicited = within(late).await.expect("no panic");
    let _receive = quiet.arrive(plain()).await;
    within(any).await.expect("notified");
    within(solicited).await.expect("notified");
}

// CQ-02: a message that arrives before the device is asked for events raises none, and is found.
#[tokio::test]
async fn message_before_the_arm_is_found() {
    if !alone(module_path!(), "message_before_the_arm_is_found") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let quiet = Quiet::new().await;
    fake(&format!("hold {ARM}"));
    let results = quiet.received.clone();
    let late = tokio::task::spawn_blocking(move || results.notify(NotifyKind::Solicited));
    eventually("the call is held", || number("held") == 1).await;
    let before = number("events");
    let _receive = quiet.arrive(plain().solicited()).await;
    assert_eq!(number("events"), before);
    fake(&format!("release {ARM}"));
    within(within(late).await.expect("no panic")).await.expect("notified");
}

// CQ-02: of two waits that begin at the same time, one for solicited events and one for all, neither loses an event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_of_two_kinds_begin_at_once() {
    const ROUNDS: usize = 1000;
    if !alone(module_path!(), "waits_of_two_kinds_begin_at_once") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let quiet = Quiet::new().await;
    fake("replace arms");
    let barrier = Arc::new(Barrier::new(2));
    let (results, other) = (quiet.received.clone(), barrier.clone());
    let waits = std::thread::spawn(move || {
        for _ in 0..ROUNDS {
            other.wait();
            let solicited = results.notify(NotifyKind::Solicited);
            other.wait();
            drop(solicited);
        }
    });
    for _ in 0..ROUNDS {
        barrier.wait();
        let any = quiet.received.notify(NotifyKind::Any);
        barrier.wait();
        let _receive = quiet.arrive(plain()).await;
        within(any).await.expect("notified");
        assert_eq!(quiet.poll(), 1);
    }
    waits.join().expect("no panic");
}

// CQ-04: a driver without such events is asked for all.
#[tokio::test]
async fn wait_without_solicited_events_has_all() {
    if !alone(module_path!(), "wait_without_solicited_events_has_all") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let quiet = Quiet::new().await;
    fake(&format!("refuse {ARM} {}", nix::libc::EOPNOTSUPP));
    let solicited = quiet.received.notify(NotifyKind::Solicited);
    let _receive = quiet.arrive(plain()).await;
    within(solicited).await.expect("notified");
}

// CQ-04: the drivers that raise no solicited event for a failure are asked for all events, and their adapters say so.
#[tokio::test]
async fn driver_without_events_for_failures_raises_all() {
    if !alone(module_path!(), "driver_without_events_for_failures_raises_all") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let vendor = if fake("dress") == Some(2) { 0x62_6d_74 } else { 0xff_ff_ff };
    fake(&format!("vendor {vendor}"));
    let quiet = Quiet::new().await;
    assert!(!quiet.adapter.info().solicited_events);
    let solicited = quiet.received.notify(NotifyKind::Solicited);
    let _receive = quiet.arrive(plain()).await;
    within(solicited).await.expect("notified");
    assert_eq!(number(&format!("calls {ARM}")), 0);
}
