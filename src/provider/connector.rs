//! Drives the state machine of a connector, for both providers: feeds the machine, answers the futures that wait, and
//! keeps the reasons.
//!
//! A provider keeps a [`ConnectorState`] under the lock of its connector, and implements in [`ConnectorDriver`] the
//! actions that touch its transport. Foreign code, the wakers, the memory of finished requests, the recorder of metrics
//! and the subscribers of `tracing`, only runs once the lock is gone: it is collected in an [`AfterStep`].

mod calls;

use std::any::Any;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::FutureExt;
#[cfg(feature = "verbs")]
use smallvec::SmallVec;
use tracing::field::display;
use tracing::level_filters::LevelFilter;
use tracing::{debug, info};

use crate::error::{ConnectError, DisconnectError, Reason, StateError};
use crate::inflight::WakeList;
use crate::metrics::{PendingMetrics, PhaseGuard};
use crate::proto::connector::{Action, Actions, Connector, Input, Op, Phase};
use crate::status::Status;
use crate::sync::{MutexGuard, WaitSet, Waiter, deadline};
use crate::types::{ConnectionId, DisconnectReason, PrivateData, ReadLimits};

use calls::Watch;
pub(crate) use calls::{ConnectCall, ConnectWait, OnDrop};

/// The reason of the loss of a connection whose queue pair the program has flushed.
pub(crate) const FLUSHED: &str = "the queue pair was flushed";

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Returns an id that no other connector of this process has had.
pub(crate) fn next_id() -> ConnectionId {
    ConnectionId(NEXT_ID.fetch_add(1, Ordering::Relaxed))
}

/// The answers to calls, and the tasks that wait for them.
#[derive(Default)]
struct Answers {
    connect: Waiter<Status>,
    complete: Waiter<Status>,
    accept: Waiter<Status>,
    disconnect: Waiter<Status>,
    notify: WaitSet<Status>,
}

impl Answers {
    fn of(&mut self, op: Op) -> Option<&mut Waiter<Status>> {
        match op {
            Op::Connect => Some(&mut self.connect),
            Op::CompleteConnect => Some(&mut self.complete),
            Op::Accept => Some(&mut self.accept),
            Op::Disconnect => Some(&mut self.disconnect),
            // Every waiter has an answer of its own.
            Op::NotifyDisconnect => None,
        }
    }
}

/// The state of a connector, under its lock.
pub(crate) struct ConnectorState {
    pub(crate) machine: Connector,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    /// The cause of the failure of an attempt, as the provider reported it.
    pub(crate) reason: Option<Reason>,
    /// The reason of the end of the connection.
    pub(crate) ended: Option<DisconnectReason>,
    /// The status and the cause of the loss of the connection, also after this side had begun to disconnect.
    loss: Option<(Status, Reason)>,
    /// A call of Connect has not returned: see [`ConnectCall`].
    connect_called: bool,
    /// The calls of Connect that wait for their queue pair, of which the machine knows nothing yet: see [`ConnectWait`].
    waits: WaitSet<()>,
    /// The phase that the metrics count.
    phase: PhaseGuard,
    answers: Answers,
}

impl ConnectorState {
    pub(crate) fn new(machine: Connector, local: Option<SocketAddr>, peer: Option<SocketAddr>) -> Self {
        let phase = PhaseGuard::new(name(machine.phase()));
        Self {
            machine,
            local,
            peer,
            reason: None,
            ended: None,
            loss: None,
            connect_called: false,
            waits: WaitSet::default(),
            phase,
            answers: Answers::default(),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.machine.phase()
    }

    /// Records the loss of the connection. The first cause stays the reason of its end.
    pub(crate) fn lose(&mut self, status: Status, reason: Reason) {
        self.loss.get_or_insert((status, reason));
        self.ended.get_or_insert(DisconnectReason::Lost { status, reason });
    }

    /// Returns whether a call of Connect has not returned. Its attempt may have failed, so that the machine would accept another
    /// one; but its answer, and the cause and the data of that, have not been collected.
    pub(crate) fn is_connect_called(&self) -> bool {
        self.connect_called
    }

    /// Begins a call of Connect, which ends with its [`ConnectCall`].
    pub(crate) fn begin_connect(&mut self) {
        self.connect_called = true;
        self.reason = None;
        // Not its waker, whose drop is foreign code.
        self.answers.connect.take();
    }

    fn finish(&mut self, op: Op, status: Status, after: &mut AfterStep) {
        match self.answers.of(op) {
            Some(call) => after.calls.extend(call.notify(status)),
            None => self.answers.notify.notify_all(status, &mut after.calls),
        }
    }
}

/// The foreign code that follows a step of the machine, for after the lock. These are several lists and not one, because they
/// run in an order that is not the one in which they fill.
#[derive(Default)]
pub(crate) struct AfterStep {
    metrics: PendingMetrics,
    /// The events for `tracing`, in order.
    events: Vec<StepEvent>,
    /// The calls on the connector that have an answer.
    calls: WakeList,
    /// The requests that finished on the way.
    pub(crate) requests: WakeList,
    /// The calls of the driver that are part of the step, and may take long.
    #[cfg(feature = "verbs")]
    pub(crate) jobs: SmallVec<[Job; 1]>,
}

/// Calls of a driver that may take long.
#[cfg(feature = "verbs")]
pub(crate) type Job = Box<dyn FnOnce() + Send>;

impl AfterStep {
    /// Emits an event once the lock is released, after those that are there.
    pub(crate) fn log(&mut self, event: impl FnOnce() + Send + 'static) {
        if is_logged() {
            self.events.push(StepEvent::Other(Box::new(event)));
        }
    }

    /// Emits the event of a step of the machine once the lock is released, after those that are there.
    fn log_step(&mut self, event: impl FnOnce() -> StepEvent) {
        if is_logged() {
            self.events.push(event());
        }
    }

    /// Runs all of it, without the lock.
    #[inline]
    pub(crate) fn run(&mut self) {
        #[cfg(feature = "verbs")]
        self.run_jobs_by(|job| job());
        #[cfg(not(feature = "verbs"))]
        {
            resume(self.observe_and_wake());
        }
    }

    /// Runs all of it, and passes the jobs to `run`.
    #[cfg(feature = "verbs")]
    #[inline]
    pub(crate) fn run_jobs_by(&mut self, run: impl FnMut(Job)) {
        let observed = self.observe_and_wake();
        if !self.jobs.is_empty() {
            self.jobs.drain(..).for_each(run);
        }
        resume(observed);
    }

    /// Wakes the calls on the connector before the requests: a task that waits for the end of a connection resumes before those that
    /// wait for its requests. Not by value, which would copy the lists.
    ///
    /// # Errors
    /// The panic of a recorder or a subscriber, which must not keep a task waiting.
    #[inline]
    fn observe_and_wake(&mut self) -> Result<(), Box<dyn Any + Send>> {
        // These come first: a task that is woken finds the step counted, and logs its own steps behind this one.
        let observed =
            if self.events.is_empty() && self.metrics.is_empty() { Ok(()) } else { self.observe() };
        self.calls.wake_all();
        self.requests.wake_all();
        observed
    }

    /// Records the metrics and emits the events.
    ///
    /// # Errors
    /// The panic of a recorder or a subscriber.
    #[cold]
    fn observe(&mut self) -> Result<(), Box<dyn Any + Send>> {
        let (metrics, events) = (std::mem::take(&mut self.metrics), std::mem::take(&mut self.events));
        catch_unwind(AssertUnwindSafe(|| {
            metrics.record();
            events.into_iter().for_each(StepEvent::emit);
        }))
    }
}

/// Returns whether a subscriber may take any event of a connector. Most programs have none, and pay for nothing.
#[inline]
fn is_logged() -> bool {
    LevelFilter::current() >= LevelFilter::INFO
}

/// Resumes the panic of an observer, unless one is under way: a second one in a destructor would abort the process.
fn resume(observed: Result<(), Box<dyn Any + Send>>) {
    if let Err(panic) = observed
        && !std::thread::panicking()
    {
        resume_unwind(panic);
    }
}

/// An event for `tracing`.
enum StepEvent {
    /// A step of the machine, or of a call on it.
    Machine { connection: ConnectionId, peer: Option<SocketAddr>, phase: Phase, status: Status, what: What },
    /// Anything else.
    Other(Box<dyn FnOnce() + Send>),
}

/// The kind of a step of the machine.
enum What {
    Lost(Reason),
    Aborted(Reason),
    Changed { from: Phase },
    Refused,
    Completed(Op, Option<Reason>),
}

impl StepEvent {
    fn emit(self) {
        let (id, peer, phase, status, what) = match self {
            Self::Machine { connection, peer, phase, status, what } => {
                (connection, peer, phase, status, what)
            }
            Self::Other(emit) => return emit(),
        };
        let peer = peer.map(display);
        match what {
            What::Lost(reason) => info!(connection = %id, peer, %status, %reason, "connection lost"),
            What::Aborted(reason) => {
                debug!(connection = %id, peer, ?phase, %status, %reason, "connection aborted");
            }
            What::Changed { from } => {
                debug!(connection = %id, peer, ?from, ?phase, %status, "state changed");
            }
            What::Refused => debug!(connection = %id, peer, ?phase, %status, "call refused"),
            What::Completed(op, reason) => {
                let reason = reason.map(display);
                debug!(connection = %id, peer, ?phase, ?op, %status, reason, "call completed");
            }
        }
    }
}

/// A connector of one provider, driving the machine.
pub(crate) trait ConnectorDriver: Send + Sync {
    /// The state under the lock: the progress, and the data that the provider needs for its transport.
    type State: AsMut<ConnectorState>;

    /// Returns the number of the connector in `tracing` output.
    fn id(&self) -> ConnectionId;

    /// Takes the lock.
    fn lock(&self) -> MutexGuard<'_, Self::State>;

    /// Carries out any action but `Finish`.
    fn execute(&self, state: &mut Self::State, action: Action, after: &mut AfterStep);

    /// Tidies up after every input. Returns a further input that follows from it.
    fn follow_up(&self, state: &mut Self::State, after: &mut AfterStep) -> Option<Input>;

    /// Returns the time that Disconnect waits for the peer.
    fn disconnect_timeout(&self) -> Duration;

    /// Runs what follows a step for a caller that must not be kept by a call of the driver.
    fn run_apart(&self, after: &mut AfterStep) {
        after.run();
    }

    /// Feeds the machine one call or report and carries out what follows.
    ///
    /// # Errors
    /// The call was refused inline, with this status.
    fn handle(&self, input: Input) -> Result<(), Status> {
        self.handle_with(input, |_| ())
    }

    /// Handles an input like [`handle`](Self::handle), and makes a change under the same lock, so that both are seen at
    /// once.
    ///
    /// # Errors
    /// As `handle`.
    fn handle_with(&self, input: Input, change: impl FnOnce(&mut Self::State)) -> Result<(), Status> {
        self.handle_if(|state| {
            change(state);
            Some(input)
        })
    }

    /// Handles an input like [`handle`](Self::handle). The input depends on the state; `None` changes nothing.
    ///
    /// # Errors
    /// As `handle`.
    fn handle_if(&self, prepare: impl FnOnce(&mut Self::State) -> Option<Input>) -> Result<(), Status> {
        let mut after = AfterStep::default();
        let outcome = self.step(prepare, &mut after);
        after.run();
        outcome
    }

    /// Handles an input like [`handle_if`](Self::handle_if), for a caller that must not be kept by a call of the
    /// driver.
    ///
    /// # Errors
    /// As `handle`.
    fn handle_apart(&self, prepare: impl FnOnce(&mut Self::State) -> Option<Input>) -> Result<(), Status> {
        let mut after = AfterStep::default();
        let outcome = self.step(prepare, &mut after);
        self.run_apart(&mut after);
        outcome
    }

    /// Makes the part of a step that is under the lock. What follows is added to `after`.
    ///
    /// # Errors
    /// As `handle`.
    fn step(
        &self,
        prepare: impl FnOnce(&mut Self::State) -> Option<Input>,
        after: &mut AfterStep,
    ) -> Result<(), Status> {
        let mut state = self.lock();
        prepare(&mut state).map_or(Ok(()), |input| self.handle_locked(&mut state, input, after))
    }

    /// Handles an input like [`handle`](Self::handle), for a caller that holds the lock and runs `after` without it.
    ///
    /// # Errors
    /// As `handle`.
    fn handle_locked(
        &self,
        state: &mut Self::State,
        input: Input,
        after: &mut AfterStep,
    ) -> Result<(), Status> {
        let outcome = self.transition(state, input, after);
        while let Some(input) = self.follow_up(state, after) {
            let _ = self.transition(state, input, after);
        }
        outcome
    }

    /// Makes one step of the machine, and executes its actions.
    ///
    /// # Errors
    /// As `handle`.
    fn transition(&self, state: &mut Self::State, input: Input, after: &mut AfterStep) -> Result<(), Status> {
        let progress = state.as_mut();
        let (connection, peer, from) = (self.id(), progress.peer, progress.phase());
        let event = |phase, status, what| StepEvent::Machine { connection, peer, phase, status, what };
        let call = call(&input);
        let outcome = progress.machine.handle(input);
        let phase = progress.phase();
        if from != phase {
            after.metrics.moved(&mut progress.phase, name(phase));
            if let (Phase::PeerGone, Some(DisconnectReason::Lost { status, reason })) =
                (phase, &progress.ended)
            {
                let what = if matches!(reason, Reason::Local(FLUSHED)) {
                    // The program has given the connection up.
                    What::Aborted(*reason)
                } else {
                    after.metrics.failed("connection", *status);
                    What::Lost(*reason)
                };
                after.log_step(|| event(phase, *status, what));
            }
            after.log_step(|| {
                let status = told(&outcome, progress.ended.as_ref(), phase);
                event(phase, status, What::Changed { from })
            });
        }
        if let Err(status) = &outcome {
            if let Some(call) = call {
                after.metrics.failed(call, *status);
            }
            after.log_step(|| event(phase, *status, What::Refused));
        }
        for action in outcome? {
            if let Action::Finish { op, status } = action {
                let progress = state.as_mut();
                let reason = progress.reason.filter(|_| status != Status::SUCCESS);
                let phase = progress.phase();
                after.log_step(|| event(phase, status, What::Completed(op, reason)));
                if status != Status::SUCCESS
                    && let Some(call) = call_of(op)
                {
                    after.metrics.failed(call, status);
                }
                progress.finish(op, status, after);
            } else {
                self.execute(state, action, after);
            }
        }
        Ok(())
    }

    /// Returns the address of the peer, for the text of an error; unspecified before the connector has one.
    fn peer(&self) -> SocketAddr {
        const NONE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        self.lock().as_mut().peer.unwrap_or(NONE)
    }

    /// Takes the cause of the failure that the provider reported.
    fn take_reason(&self) -> Reason {
        let reason = self.lock().as_mut().reason.take();
        reason.unwrap_or(Reason::Local("no reason was given"))
    }

    /// Polls for the answer to a call.
    fn poll_answer(&self, op: Op, cx: &mut Context<'_>) -> Poll<Status> {
        let mut state = self.lock();
        let Some(call) = state.as_mut().answers.of(op) else { return Poll::Pending };
        let (polled, replaced) = call.poll(cx);
        if polled.is_ready() {
            call.take();
        }
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
        polled.map(|_status| ())
    }

    /// Takes the answer to a call, if it has one.
    #[cfg(feature = "soft")]
    fn take_answer(&self, op: Op) -> Option<Status> {
        self.lock().as_mut().answers.of(op).and_then(Waiter::take)
    }

    /// Waits for the answer to a call.
    fn answer(&self, op: Op) -> impl Future<Output = Status> + Send {
        std::future::poll_fn(move |cx| self.poll_answer(op, cx))
    }

    /// Resolves when the connection has ended (NotifyDisconnect).
    fn disconnected(&self) -> impl Future<Output = DisconnectReason> + Send
    where
        Self: Sized,
    {
        async {
            let watch = match Watch::new(self) {
                Ok(watch) => watch,
                Err(status) => return self.why(status),
            };
            let status = std::future::poll_fn(|cx| watch.poll(cx)).await;
            self.why(status)
        }
    }

    /// Returns the reason of the end of the connection, for a NotifyDisconnect that finished with `status`.
    fn why(&self, status: Status) -> DisconnectReason {
        let ended = self.lock().as_mut().ended.clone();
        match status {
            Status::CANCELED if ended.is_none() => DisconnectReason::Canceled,
            Status::DEVICE_REMOVED => DisconnectReason::DeviceRemoved,
            _ => ended.unwrap_or(DisconnectReason::Local),
        }
    }

    /// Disconnects (`IND2Connector::Disconnect`).
    ///
    /// # Errors
    /// See [`DisconnectError`].
    fn disconnect(&self) -> impl Future<Output = Result<(), DisconnectError>> + Send {
        async {
            let limit = self.disconnect_timeout();
            let deadline = deadline(limit).into_std();
            let begun = self.handle_apart(|_| Some(Input::Disconnect { deadline }));
            let status = match begun {
                Ok(()) => self.answer(Op::Disconnect).await,
                Err(status) => status,
            };
            let loss = self.lock().as_mut().loss;
            match (status, loss) {
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

    /// Returns the cause of the loss of the connection, if it was lost.
    fn loss(&self) -> Option<Reason> {
        self.lock().as_mut().loss.map(|(_, reason)| reason)
    }

    /// Returns whether the connection is established.
    fn is_connected(&self) -> bool {
        self.lock().as_mut().phase() == Phase::Connected
    }

    /// Cancels the calls that wait (CancelOverlappedRequests).
    fn cancel(&self) {
        let mut after = AfterStep::default();
        let mut state = self.lock();
        let progress = state.as_mut();
        let waits = progress.waits.interests().next().is_some();
        progress.waits.notify_all((), &mut after.calls);
        // A Connect that waits for its queue pair is unknown to the machine, for which nothing is outstanding then.
        let ends = waits && matches!(progress.phase(), Phase::Idle | Phase::Bound);
        let input = if ends { Input::Release } else { Input::Cancel };
        let _ = self.handle_locked(&mut state, input, &mut after);
        drop(state);
        after.run();
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
            let wait = ConnectWait::new(self);
            tokio::select! {
                biased;
                () = std::future::poll_fn(|cx| wait.poll_canceled(cx)) => Err(ConnectError::Canceled),
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

/// Returns the name of a call by its operation.
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
fn told(outcome: &Result<Actions, Status>, ended: Option<&DisconnectReason>, after: Phase) -> Status {
    let actions = match outcome {
        Ok(actions) => actions,
        Err(status) => return *status,
    };
    let finished = actions.iter().find_map(|action| match action {
        Action::Finish { status, .. } => Some(*status),
        _ => None,
    });
    let begins = |action: &Action| {
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
pub(crate) fn is_overdue(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| deadline <= tokio::time::Instant::now().into_std())
}
