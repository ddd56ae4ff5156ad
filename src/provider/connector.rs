//! Drives the state machine of a connector, for both providers: feeds the machine, answers the futures that wait, and
//! keeps the reasons.
//!
//! A provider keeps a [`ConnectorState`] under the lock of its connector, and implements in [`ConnectorDriver`] the
//! actions that touch its transport. Foreign code, the wakers, the memory of finished requests, the recorder of metrics
//! and the subscribers of `tracing`, only runs once the lock is gone: it is collected in an [`AfterStep`].

mod calls;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use tracing::field::display;
use tracing::level_filters::LevelFilter;
use tracing::{debug, info};

use crate::error::{AcceptError, BindError, ConnectError, DisconnectError, Reason, StateError};
use crate::inflight::WakeList;
use crate::inspect::Steps;
#[cfg(feature = "inspect")]
use crate::inspect::{self, ConnectionReport, EventReport};
use crate::metrics::{PendingMetrics, PhaseGuard};
use crate::net;
use crate::proto::connector::{Action, Actions, Connector, Failure, Input, Loss, Op, Phase, Terms};
use crate::status::Status;
use crate::sync::{MutexGuard, WaitSet, Waiter, deadline};
use crate::types::{ConnectionId, DisconnectReason, PrivateData, ReadLimits};

use calls::{Answers, Waiting};
pub(crate) use calls::{ConnectCall, ConnectWait, ReleaseGuard};

/// The reason of the loss of a connection whose queue pair the program has flushed.
pub(crate) const FLUSHED: &str = "the queue pair was flushed";

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Returns an id that no other connector of this process has had.
pub(crate) fn next_id() -> ConnectionId {
    ConnectionId(NEXT_ID.fetch_add(1, Ordering::Relaxed))
}

type Answer = Result<(), Failure>;

fn status_of(answer: &Answer) -> Status {
    answer.as_ref().map_or_else(|failure| failure.status, |()| Status::SUCCESS)
}

/// The state of a connector, under its lock.
pub(crate) struct ConnectorState {
    pub(crate) machine: Connector,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    /// The local address that Bind gave it. In a box, because most programs bind implicitly.
    pub(crate) bound: Option<Box<SocketAddr>>,
    /// A call of Connect has not returned: see [`ConnectCall`].
    connect_called: bool,
    /// The few calls of Connect that wait for their queue pair, of which the machine knows nothing yet: see [`ConnectWait`].
    waits: Option<Box<WaitSet<()>>>,
    /// The phase that the metrics count.
    counted: PhaseGuard,
    /// When it has changed, for snapshots.
    steps: Steps,
    answers: Answers,
}

impl ConnectorState {
    pub(crate) fn new(machine: Connector, local: Option<SocketAddr>, peer: Option<SocketAddr>) -> Self {
        let counted = PhaseGuard::new(name(machine.phase()));
        Self {
            machine,
            local,
            peer,
            bound: None,
            connect_called: false,
            waits: None,
            counted,
            steps: Steps::new(),
            answers: Answers::default(),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.machine.phase()
    }

    /// Returns the local address that Bind gave it.
    pub(crate) fn bound(&self) -> Option<SocketAddr> {
        self.bound.as_deref().copied()
    }

    /// Returns whether a call of Connect waits for its queue pair.
    fn has_waits(&self) -> bool {
        self.waits.as_ref().is_some_and(|waits| waits.interests().next().is_some())
    }

    /// Returns the report, as far as both providers have the same, of the connector with this number, of the adapter with this one.
    #[cfg(feature = "inspect")]
    pub(crate) fn report(&self, id: ConnectionId, adapter: u64) -> ConnectionReport {
        let (name, at) = self.steps.last;
        let mut report = ConnectionReport::default();
        (report.id, report.adapter) = (id.0, adapter);
        report.state = self.phase().into();
        report.since = self.steps.since.age();
        (report.local, report.peer) = (self.local, self.peer);
        report.role = match self.phase() {
            Phase::Connecting | Phase::ConnectDone | Phase::Completing => Some("active".into()),
            Phase::RequestPending | Phase::Accepting => Some("passive".into()),
            _ => None,
        };
        report.last_event = Some(EventReport { name: name.into(), age: at.age() });
        report.is_in_line = self.has_waits() && !self.connect_called;
        report.ended = self.machine.ending().map(ToString::to_string);
        report
    }

    fn finish(&mut self, op: Op, answer: Answer, after: &mut AfterStep) {
        match self.answers.of(op) {
            Some(call) => after.calls.extend(call.notify(answer)),
            None => self.answers.notify.notify_all(status_of(&answer), &mut after.calls),
        }
    }
}

/// The foreign code that follows a step of the machine, for after the lock. These are several lists and not one, because they
/// run in an order that is not the one in which they fill.
#[derive(Default)]
pub(crate) struct AfterStep {
    metrics: PendingMetrics,
    /// The calls on the connector that have an answer.
    calls: WakeList,
    /// The requests that finished on the way.
    pub(crate) requests: WakeList,
    /// In a box, because most steps have none: so a step costs little to begin and to drop.
    rare: Option<Box<Rare>>,
}

/// What few steps have.
#[derive(Default)]
struct Rare {
    /// The events for `tracing`, in order, if a subscriber takes any.
    events: Vec<Box<dyn FnOnce() + Send>>,
    /// The calls of the driver that are part of the step, and may take long.
    #[cfg(feature = "verbs")]
    jobs: Vec<Job>,
}

/// Calls of a driver that may take long.
#[cfg(feature = "verbs")]
pub(crate) type Job = Box<dyn FnOnce() + Send>;

impl AfterStep {
    /// Emits an event once the lock is released, after those that are there.
    pub(crate) fn log(&mut self, event: impl FnOnce() + Send + 'static) {
        if is_logged() {
            self.rare.get_or_insert_default().events.push(Box::new(event));
        }
    }

    /// Adds calls of the driver that may take long.
    #[cfg(feature = "verbs")]
    pub(crate) fn add_job(&mut self, job: Job) {
        self.rare.get_or_insert_default().jobs.push(job);
    }

    /// Runs all of it, without the lock.
    #[inline]
    pub(crate) fn run(&mut self) {
        #[cfg(feature = "verbs")]
        self.run_jobs_by(|job| job());
        #[cfg(not(feature = "verbs"))]
        resume(self.observe_and_wake());
    }

    /// Runs all of it, and passes the jobs to `run`.
    #[cfg(feature = "verbs")]
    #[inline]
    pub(crate) fn run_jobs_by(&mut self, mut run: impl FnMut(Job)) {
        let mut outcome = self.observe_and_wake();
        if let Some(rare) = self.rare.take() {
            for job in rare.jobs {
                outcome = outcome.and(catch_unwind(AssertUnwindSafe(|| run(job))));
            }
        }
        resume(outcome);
    }

    /// Wakes the calls on the connector before the requests: a task that waits for the end of a connection resumes before those that
    /// wait for its requests.
    ///
    /// # Errors
    /// The first panic, which must not keep a task waiting.
    #[inline]
    fn observe_and_wake(&mut self) -> thread::Result<()> {
        // These come first: a task that is woken finds the step counted, and logs its own steps behind this one.
        let observed = if self.rare.is_none() && self.metrics.is_empty() { Ok(()) } else { self.observe() };
        observed.and(self.calls.try_wake_all()).and(self.requests.try_wake_all())
    }

    /// Records the metrics and emits the events.
    ///
    /// # Errors
    /// The panic of a recorder or a subscriber.
    #[cold]
    fn observe(&mut self) -> thread::Result<()> {
        let metrics = std::mem::take(&mut self.metrics);
        let events = self.rare.as_mut().map(|rare| std::mem::take(&mut rare.events)).unwrap_or_default();
        catch_unwind(AssertUnwindSafe(|| {
            metrics.record();
            events.into_iter().for_each(|emit| emit());
        }))
    }
}

/// Returns whether a subscriber may take any event of a connector. Most programs have none, and pay for nothing.
#[inline]
fn is_logged() -> bool {
    LevelFilter::current() >= LevelFilter::INFO
}

/// Resumes a panic, unless one is under way: a second one in a destructor would abort the process.
fn resume(outcome: thread::Result<()>) {
    if let Err(panic) = outcome
        && !thread::panicking()
    {
        resume_unwind(panic);
    }
}

/// A connector of one provider, driving the machine.
pub(crate) trait ConnectorDriver: Send + Sync {
    /// The state under the lock: the progress, and the data that the provider needs for its transport.
    type State: AsMut<ConnectorState>;

    /// Returns the number of the connector in `tracing` output.
    fn id(&self) -> ConnectionId;

    fn lock(&self) -> MutexGuard<'_, Self::State>;

    /// Carries out any action but `Finish`.
    fn execute(&self, state: &mut Self::State, action: Action, after: &mut AfterStep);

    /// Tidies up after every input. Returns a further input that follows from it.
    fn follow_up(&self, state: &mut Self::State, after: &mut AfterStep) -> Option<Input>;

    /// Returns the time that Disconnect waits for the peer.
    fn disconnect_timeout(&self) -> Duration;

    /// Returns its report for a snapshot.
    #[cfg(feature = "inspect")]
    fn report(&self) -> ConnectionReport;

    /// Logs why the connection has waited, which a time limit ends now, for this reason. The caller has no locks.
    fn log_cause(&self, reason: &Reason) {
        #[cfg(feature = "inspect")]
        if inspect::is_logged() {
            inspect::log_cause(&self.report(), &reason.to_string());
        }
        #[cfg(not(feature = "inspect"))]
        let _ = reason;
    }

    /// Runs what follows a step for a caller that must not be kept by a call of the driver.
    fn run_apart(&self, after: &mut AfterStep) {
        after.run();
    }

    /// Feeds the machine one call or report, and runs what follows.
    ///
    /// # Errors
    /// The call was refused inline.
    fn handle(&self, input: Input) -> Result<(), Failure> {
        self.step(AfterStep::run, |state, after| self.advance(state, input, after))
    }

    /// Runs `within` under the lock, and has `run` run what follows without it.
    fn step<R>(
        &self,
        run: impl FnOnce(&mut AfterStep),
        within: impl FnOnce(&mut Self::State, &mut AfterStep) -> R,
    ) -> R {
        let mut after = AfterStep::default();
        let outcome = within(&mut self.lock(), &mut after);
        run(&mut after);
        outcome
    }

    /// Feeds the machine one call or report under the lock, carries out its actions, and collects in `after` what follows
    /// without the lock.
    ///
    /// # Errors
    /// The call was refused inline.
    fn advance(&self, state: &mut Self::State, input: Input, after: &mut AfterStep) -> Result<(), Failure> {
        let outcome = transition(self, state, input, after);
        while let Some(input) = self.follow_up(state, after) {
            let _ = transition(self, state, input, after);
        }
        outcome
    }

    /// Binds the connector (Bind) to the address that `reserve` returns.
    ///
    /// # Errors
    /// Those of `reserve`, and that the machine refuses the call.
    fn bind_by(
        &self,
        reserve: impl FnOnce(&mut Self::State) -> Result<SocketAddr, BindError>,
    ) -> Result<(), BindError> {
        // All under one lock: between the steps another bind would reserve a second address, and a connect would
        // find a connector that is not bound yet.
        self.step(AfterStep::run, |state, after| {
            let local = state.as_mut().local;
            let begun = self.advance(state, Input::Bind, after);
            begun.map_err(|failure| BindError::of_connector(failure.status, local))?;
            let outcome = reserve(state);
            let input = match &outcome {
                Ok(local) => {
                    let progress = state.as_mut();
                    (progress.local, progress.bound) = (Some(*local), Some(Box::new(*local)));
                    Input::Bound
                }
                Err(error) => Input::lost(Loss::Unbound(error.status()), None),
            };
            let _ = self.advance(state, input, after);
            outcome.map(drop)
        })
    }

    /// Returns the address that Bind gave, until a connection uses it.
    ///
    /// # Errors
    /// `ConnectionInvalid` when it is not bound.
    fn bound_addr(&self) -> Result<SocketAddr, StateError> {
        let mut state = self.lock();
        let progress = state.as_mut();
        let bound = progress.bound().filter(|_| progress.phase() == Phase::Bound);
        bound.ok_or(StateError::ConnectionInvalid)
    }

    /// Begins a connect to `peer`, with private data of this length and the maximum of the adapter. `take` associates the
    /// queue pair with the attempt: before the machine is asked, so that no other connector gets it in between, and under
    /// the same lock, so that another call on this connector finds either all of it or nothing.
    ///
    /// # Errors
    /// The machine refuses the call, the queue pair is in use, or the wait for it was cancelled.
    fn begin_connect(
        &self,
        peer: SocketAddr,
        (data, max_data): (usize, usize),
        deadline: Option<Instant>,
        wait: Option<ConnectWait<'_, Self>>,
        take: impl FnOnce(&mut Self::State) -> bool,
    ) -> Result<ConnectCall<'_, Self>, ConnectError>
    where
        Self: Sized,
    {
        // If a subscriber panics, the call is dropped.
        self.step(AfterStep::run, |state, after| {
            let canceled = wait.as_ref().is_some_and(|wait| wait.is_over(state.as_mut()));
            let progress = state.as_mut();
            let fits = matches!(progress.phase(), Phase::Idle | Phase::Bound) && data <= max_data;
            // Its attempt may have failed, so that the machine would accept another one; but its answer was not collected.
            let called = progress.connect_called;
            let taken = fits && !called && take(state);
            if taken {
                let progress = state.as_mut();
                progress.peer = Some(net::canonical(peer));
                progress.connect_called = true;
                // Not its waker, whose drop is foreign code.
                progress.answers.call.take();
            }
            let busy = fits && !called && !taken;
            let overdue = is_overdue(deadline);
            let input = Input::Connect { data, max_data, busy: busy || called, deadline, overdue };
            match self.advance(state, input, after) {
                Ok(()) => Ok(ConnectCall::new(self)),
                // The cancel that came after the wait has ended the connector.
                Err(failure) if failure.status == Status::CONNECTION_ACTIVE && canceled => {
                    Err(ConnectError::Canceled)
                }
                Err(failure) if failure.status == Status::CONNECTION_ACTIVE && busy => {
                    Err(ConnectError::QueuePairActive)
                }
                Err(failure) => Err(failure.connect_error(peer)),
            }
        })
    }

    /// Rejects the peer (Reject). `keep` keeps the data for the action that sends it.
    ///
    /// # Errors
    /// The machine refuses the call.
    fn reject(
        &self,
        data: &[u8],
        maximum: usize,
        keep: impl FnOnce(&mut Self::State, Bytes),
    ) -> Result<(), Failure> {
        self.step(AfterStep::run, |state, after| {
            if data.len() <= maximum {
                keep(state, Bytes::copy_from_slice(data));
            }
            self.advance(state, Input::Reject { data: data.len(), max_data: maximum }, after)
        })
    }

    /// Returns the error of a connect, its completion or its reject.
    fn connect_error(&self, failure: Failure) -> ConnectError {
        failure.connect_error(self.peer())
    }

    /// Returns the error of an accept or its reject.
    fn accept_error(&self, failure: Failure) -> AcceptError {
        let private_data = self.private_data().ok().filter(|data| !data.is_empty());
        failure.accept_error(self.peer(), private_data)
    }

    /// Returns the address of the peer, for the text of an error; unspecified before the connector has one.
    fn peer(&self) -> SocketAddr {
        self.ends().1
    }

    /// Returns the local address and that of the peer, in any state; unspecified before the connector has one.
    fn ends(&self) -> (SocketAddr, SocketAddr) {
        const NONE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        let mut state = self.lock();
        let progress = state.as_mut();
        (progress.local.unwrap_or(NONE), progress.peer.unwrap_or(NONE))
    }

    fn poll_answer(&self, op: Op, cx: &mut Context<'_>) -> Poll<Answer> {
        let mut state = self.lock();
        let Some(call) = state.as_mut().answers.of(op) else { return Poll::Pending };
        let (polled, replaced) = match call.take() {
            Some(answer) => (Poll::Ready(answer), None),
            None => call.poll(cx),
        };
        drop(state);
        drop(replaced);
        polled
    }

    /// Polls for an answer to a call, without taking it.
    #[cfg(feature = "soft")]
    fn poll_answered(&self, op: Op, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        let Some(call) = state.as_mut().answers.of(op) else { return Poll::Pending };
        let (polled, replaced) = call.poll(cx);
        drop(state);
        drop(replaced);
        polled.map(|_answer| ())
    }

    /// Takes the waker of a call back, whose own task is about to answer it and would wake itself.
    #[cfg(feature = "soft")]
    fn unwatch(&self, op: Op) {
        let waker = self.lock().as_mut().answers.of(op).and_then(Waiter::unwatch);
        drop(waker);
    }

    #[cfg(feature = "soft")]
    fn take_answer(&self, op: Op) -> Option<Answer> {
        self.lock().as_mut().answers.of(op).and_then(Waiter::take)
    }

    fn answer(&self, op: Op) -> impl Future<Output = Answer> + Send {
        std::future::poll_fn(move |cx| self.poll_answer(op, cx))
    }

    /// Resolves when the connection has ended (NotifyDisconnect).
    fn disconnected(&self) -> impl Future<Output = DisconnectReason> + Send
    where
        Self: Sized,
    {
        async {
            let watch = Waiting::new(self, |progress| &mut progress.answers.notify);
            let status = match self.handle(Input::NotifyDisconnect) {
                Ok(()) => std::future::poll_fn(|cx| watch.poll(cx)).await,
                Err(failure) => failure.status,
            };
            self.why(status)
        }
    }

    /// Returns the reason of the end of the connection, for a NotifyDisconnect that finished with `status`.
    fn why(&self, status: Status) -> DisconnectReason {
        let ended = self.lock().as_mut().machine.ending().cloned();
        match status {
            Status::CANCELED if ended.is_none() => DisconnectReason::Canceled,
            Status::DEVICE_REMOVED => DisconnectReason::DeviceRemoved,
            _ => ended.unwrap_or(DisconnectReason::Local),
        }
    }

    /// Disconnects (`IND2Connector::Disconnect`).
    fn disconnect(&self) -> impl Future<Output = Result<(), DisconnectError>> + Send {
        async {
            let limit = self.disconnect_timeout();
            let deadline = deadline(limit).into_std();
            let begun = self.step(
                |after| self.run_apart(after),
                |state, after| self.advance(state, Input::Disconnect { deadline }, after),
            );
            let answer = match begun {
                Ok(()) => self.answer(Op::Disconnect).await,
                refused => refused,
            };
            match (status_of(&answer), self.loss()) {
                (Status::CANCELED, _) => Err(DisconnectError::Canceled),
                (Status::DEVICE_REMOVED, _) => Err(DisconnectError::DeviceRemoved),
                // It has ended, but not by an agreement of both ends.
                (_, Some((status, reason))) => Err(DisconnectError::Lost { status, reason }),
                (Status::SUCCESS, None) => Ok(()),
                (Status::IO_TIMEOUT, None) => Err(DisconnectError::TimedOut { limit }),
                _ => Err(DisconnectError::Invalid),
            }
        }
    }

    /// Returns the status and the cause of the loss of the connection, if it was lost.
    fn loss(&self) -> Option<(Status, Reason)> {
        self.lock().as_mut().machine.loss()
    }

    fn is_connected(&self) -> bool {
        self.lock().as_mut().phase() == Phase::Connected
    }

    /// Cancels the calls that wait (CancelOverlappedRequests).
    fn cancel(&self) {
        self.step(AfterStep::run, |state, after| {
            let progress = state.as_mut();
            let waits = progress.has_waits();
            if let Some(waits) = &mut progress.waits {
                waits.notify_all((), &mut after.calls);
            }
            // A Connect that waits for its queue pair is unknown to the machine, for which nothing is outstanding then.
            let ends = waits && matches!(progress.phase(), Phase::Idle | Phase::Bound);
            let _ = self.advance(state, if ends { Input::Release } else { Input::Cancel }, after);
        });
    }

    /// Watches for a cancel over all attempts of one Connect: between two of them the machine has none.
    #[cfg(feature = "verbs")]
    fn watch_cancels(&self) -> ConnectWait<'_, Self>
    where
        Self: Sized,
    {
        ConnectWait::new(self, |progress| progress.waits.get_or_insert_default())
    }

    /// Returns whether there was a cancel since the watch began.
    #[cfg(feature = "verbs")]
    fn is_canceled(&self, watch: &ConnectWait<'_, Self>) -> bool
    where
        Self: Sized,
    {
        watch.is_over(self.lock().as_mut())
    }

    /// Waits for the queue pair of a Connect, unless [`cancel`](Self::cancel) ends the wait. Returns the wait, if there was
    /// one: it lasts until the step that begins the connect, so that no cancel falls between the two.
    ///
    /// # Errors
    /// `Canceled`.
    fn unless_canceled(
        &self,
        ready: impl Future<Output = ()> + Send,
    ) -> impl Future<Output = Result<Option<ConnectWait<'_, Self>>, ConnectError>> + Send
    where
        Self: Sized,
    {
        async {
            let mut ready = pin!(ready);
            if ready.as_mut().now_or_never().is_some() {
                return Ok(None);
            }
            let wait = ConnectWait::new(self, |progress| progress.waits.get_or_insert_default());
            tokio::select! {
                biased;
                () = std::future::poll_fn(|cx| wait.poll(cx)) => Err(ConnectError::Canceled),
                () = ready => Ok(Some(wait)),
            }
        }
    }

    /// Ends the attempt or the connection whose handle was dropped.
    fn release(&self) {
        let _ = self.handle(Input::Release);
    }

    /// Ends the attempt or the connection whose queue pair has gone.
    fn queue_pair_removed(&self) {
        let _ = self.handle(Input::QueuePairRemoved);
    }

    /// Returns the read limits (GetReadLimits).
    ///
    /// # Errors
    /// `ConnectionInvalid` outside of the handshake.
    fn read_limits(&self) -> Result<ReadLimits, StateError> {
        self.lock().as_mut().machine.read_limits()
    }

    /// Returns the private data of the peer (GetPrivateData).
    ///
    /// # Errors
    /// `ConnectionInvalid` outside of the handshake and after a refusal without data.
    fn private_data(&self) -> Result<PrivateData, StateError> {
        self.lock().as_mut().machine.private_data().cloned()
    }

    /// Returns the terms of the peer.
    ///
    /// # Errors
    /// `ConnectionInvalid` outside of the handshake.
    fn terms(&self) -> Result<Terms, StateError> {
        let mut state = self.lock();
        let ConnectorState { machine, local, peer, .. } = state.as_mut();
        let (limits, private_data) = (machine.read_limits()?, machine.private_data()?.clone());
        local.and(*peer).ok_or(StateError::ConnectionInvalid)?;
        Ok(Terms { limits, private_data })
    }

    /// Returns the local address (GetLocalAddress).
    ///
    /// # Errors
    /// `ConnectionInvalid` when it is not connecting or connected.
    fn local_addr(&self) -> Result<SocketAddr, StateError> {
        let mut state = self.lock();
        let progress = state.as_mut();
        progress.machine.local_address_ready()?;
        progress.local.ok_or(StateError::ConnectionInvalid)
    }

    /// Returns the address of the peer (GetPeerAddress).
    ///
    /// # Errors
    /// `ConnectionInvalid` when it has no peer.
    fn peer_addr(&self) -> Result<SocketAddr, StateError> {
        let mut state = self.lock();
        let progress = state.as_mut();
        progress.machine.peer_address_ready()?;
        progress.peer.ok_or(StateError::ConnectionInvalid)
    }
}

/// Makes one step of the machine, and executes its actions.
///
/// # Errors
/// The call was refused inline.
fn transition<D: ConnectorDriver + ?Sized>(
    connector: &D,
    state: &mut D::State,
    input: Input,
    after: &mut AfterStep,
) -> Result<(), Failure> {
    let progress = state.as_mut();
    let (id, peer, from) = (connector.id(), progress.peer, progress.phase());
    let (call, step) = (call(&input), input.name());
    let outcome = progress.machine.handle(input);
    let phase = progress.phase();
    progress.steps.step(step, from != phase);
    if from != phase {
        after.metrics.moved(&mut progress.counted, name(phase));
        if let (Phase::PeerGone, Some(&DisconnectReason::Lost { status, reason })) =
            (phase, progress.machine.ending())
        {
            if matches!(reason, Reason::Local(FLUSHED)) {
                // The program has given the connection up.
                after.log(move || {
                    let peer = peer.map(display);
                    debug!(connection = %id, peer, ?phase, %status, %reason, "connection aborted");
                });
            } else {
                after.metrics.failed("connection", status);
                after.log(move || {
                    let peer = peer.map(display);
                    info!(connection = %id, peer, %status, %reason, "connection lost");
                });
            }
        }
        if is_logged() {
            let status = status_of_step(&outcome, progress.machine.ending(), phase);
            after.log(move || {
                let peer = peer.map(display);
                debug!(connection = %id, peer, ?from, ?phase, %status, "state changed");
            });
        }
    }
    if let Err(failure) = &outcome {
        let status = failure.status;
        if let Some(call) = call {
            after.metrics.failed(call, status);
        }
        after.log(move || {
            let peer = peer.map(display);
            debug!(connection = %id, peer, ?phase, %status, "call refused");
        });
    }
    let mut actions = outcome?;
    for action in actions.iter() {
        let Action::Finish { op, status } = action else {
            connector.execute(state, action, after);
            continue;
        };
        let answer = actions.answer(status);
        let progress = state.as_mut();
        let phase = progress.phase();
        let reason = answer.as_ref().err().and_then(Failure::reason);
        after.log(move || {
            let (peer, reason) = (peer.map(display), reason.map(display));
            debug!(connection = %id, peer, ?phase, ?op, %status, reason, "call completed");
        });
        if answer.is_err()
            && let Some(call) = call_of(op)
        {
            after.metrics.failed(call, status);
        }
        progress.finish(op, answer, after);
    }
    Ok(())
}

/// Returns the name by which a phase is counted; `None` if it is not counted.
fn name(phase: Phase) -> Option<&'static str> {
    match phase {
        Phase::Connecting => Some("connecting"),
        Phase::ConnectDone => Some("replied"),
        Phase::Completing => Some("completing"),
        Phase::RequestPending => Some("requested"),
        Phase::Accepting => Some("accepting"),
        Phase::Connected => Some("connected"),
        Phase::PeerGone => Some("peer_gone"),
        Phase::Disconnecting => Some("disconnecting"),
        Phase::Idle | Phase::Bound | Phase::Disconnected | Phase::Dead => None,
    }
}

/// Returns the name of the call that an input begins; `None` if its failures are not counted.
fn call(input: &Input) -> Option<&'static str> {
    match input {
        Input::Connect { .. } => call_of(Op::Connect),
        Input::CompleteConnect => call_of(Op::CompleteConnect),
        Input::Accept { .. } => call_of(Op::Accept),
        Input::Disconnect { .. } => call_of(Op::Disconnect),
        _ => None,
    }
}

fn call_of(op: Op) -> Option<&'static str> {
    match op {
        Op::Connect => Some("connect"),
        Op::CompleteConnect => Some("complete"),
        Op::Accept => Some("accept"),
        Op::Disconnect => Some("disconnect"),
        // It only waits.
        Op::NotifyDisconnect => None,
    }
}

/// Returns the status of a step, for `tracing`: that of the call that it finishes, or begins, or that of the
/// connection.
fn status_of_step(
    outcome: &Result<Actions, Failure>,
    ended: Option<&DisconnectReason>,
    after: Phase,
) -> Status {
    let actions = match outcome {
        Ok(actions) => actions,
        Err(failure) => return failure.status,
    };
    let finished = actions.iter().find_map(|action| match action {
        Action::Finish { status, .. } => Some(status),
        _ => None,
    });
    let begins = |action: Action| {
        use Action::{StartAccept, StartBind, StartComplete, StartConnect, StartDisconnect};
        matches!(action, StartBind | StartConnect | StartComplete | StartAccept | StartDisconnect)
    };
    match (ended, finished) {
        (Some(reason), _) if after == Phase::PeerGone => reason.status(),
        (_, Some(status)) => status,
        _ if actions.iter().any(begins) => Status::PENDING,
        _ => Status::SUCCESS,
    }
}

/// Returns whether a deadline has passed, by the clock that tests can stop.
fn is_overdue(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| deadline <= tokio::time::Instant::now().into_std())
}
