//! One connector of the soft provider: the ND state machine, the socket it speaks of, and the futures that wait.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use slab::Slab;
use smallvec::SmallVec;
use tracing::debug;

use super::adapter::{AdapterCore, Member, Membership};
use super::link::{Command, Link};
use super::net::bind::BoundSocket;
use super::net::ports::PortLease;
use super::queue_pair::QueuePairCore;
use super::transport::Transport;
use crate::error::{DisconnectError, Reason, StateError};
use crate::flight::Aftermath;
use crate::proto::connector::{Action, Actions, Connector, Ending as End, Input, Op, State, Terms};
use crate::status::Status;
use crate::types::{ConnectionId, DisconnectReason, PrivateData, ReadLimits};

/// How an attempt or a connection came to its end.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The peer disconnected in order.
    PeerDisconnected,
    /// It broke, with the status of the request that suffered.
    Lost(Reason, Status),
    /// The active side said no instead of completing.
    Refused(Reason),
    /// The active side vanished instead of completing.
    GaveUp(Reason),
}

/// A connector and the connection that comes of it.
pub(crate) struct Cm {
    pub(crate) id: ConnectionId,
    pub(crate) adapter: Arc<AdapterCore>,
    inner: Mutex<Inner>,
    membership: OnceLock<Membership>,
}

/// What one call has been answered, and who waits for the answer.
#[derive(Default)]
struct Answer {
    status: Option<Status>,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Answers {
    connect: Answer,
    complete: Answer,
    accept: Answer,
    disconnect: Answer,
    notify: Slab<Answer>,
}

impl Answers {
    fn of(&mut self, op: Op) -> Option<&mut Answer> {
        match op {
            Op::Connect => Some(&mut self.connect),
            Op::CompleteConnect => Some(&mut self.complete),
            Op::Accept => Some(&mut self.accept),
            Op::Disconnect => Some(&mut self.disconnect),
            // Every waiter has an answer of its own; a request comes with its connector made.
            Op::NotifyDisconnect | Op::GetConnectionRequest => None,
        }
    }
}

/// The state of a connector, under its lock.
pub(crate) struct Inner {
    pub(crate) machine: Connector,
    answers: Answers,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    /// A socket that waits for Connect.
    pub(crate) bound: Option<BoundSocket>,
    /// The port of the connection, ours until the end.
    pub(crate) lease: Option<PortLease>,
    /// The socket between two phases of the handshake.
    pub(crate) transport: Option<Transport>,
    queue_pair: Option<Arc<QueuePairCore>>,
    link: Option<Arc<Link>>,
    /// Why, in the provider's words.
    reason: Option<Reason>,
    ended: Option<DisconnectReason>,
    /// The peer left while this side was about to ask it to.
    answered: bool,
}

impl Inner {
    pub(crate) fn queue_pair(&self) -> Option<Arc<QueuePairCore>> {
        self.queue_pair.clone()
    }
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// What runs foreign code, once the lock is gone.
#[derive(Default)]
struct Later {
    wakers: SmallVec<[Waker; 2]>,
    after: Aftermath,
}

impl Later {
    fn run(self) {
        self.after.settle();
        self.wakers.into_iter().for_each(Waker::wake);
    }
}

impl Cm {
    /// A connector that nothing has happened to.
    pub(crate) fn new(adapter: Arc<AdapterCore>) -> Arc<Self> {
        Self::with(adapter, Connector::new(), None, None, None)
    }

    /// The connector of a request that has arrived.
    pub(crate) fn with_request(
        adapter: Arc<AdapterCore>,
        terms: Terms,
        transport: Transport,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Arc<Self> {
        let machine = Connector::with_request(terms);
        let phase = machine.state();
        let cm = Self::with(adapter, machine, Some(transport), Some(local), Some(peer));
        // The machine was made in this state; the listener's did the waiting.
        let (peer, from, status) = (Some(peer), State::Waiting, Status::SUCCESS);
        debug!(connection = %cm.id, ?peer, ?from, ?phase, %status, "moved");
        cm
    }

    fn with(
        adapter: Arc<AdapterCore>,
        machine: Connector,
        transport: Option<Transport>,
        local: Option<SocketAddr>,
        peer: Option<SocketAddr>,
    ) -> Arc<Self> {
        let inner = Inner {
            machine,
            answers: Answers::default(),
            local,
            peer,
            bound: None,
            lease: None,
            transport,
            queue_pair: None,
            link: None,
            reason: None,
            ended: None,
            answered: false,
        };
        let id = ConnectionId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
        let cm = Arc::new(Self { id, adapter, inner: Mutex::new(inner), membership: OnceLock::new() });
        let weak: Weak<Self> = Arc::downgrade(&cm);
        let _ = cm.membership.set(cm.adapter.join(weak));
        // It may have gone between the caller's look and the joining.
        if cm.adapter.is_removed() {
            cm.device_removed();
        }
        cm
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Feeds the machine one call or report and carries out what follows.
    ///
    /// # Errors
    /// The call was refused inline, with this status.
    pub(crate) fn apply(&self, input: Input) -> Result<(), Status> {
        self.apply_with(input, |_| ())
    }

    /// The same, with a change that nobody may see the one without the other of.
    pub(crate) fn apply_with(&self, input: Input, change: impl FnOnce(&mut Inner)) -> Result<(), Status> {
        self.call(|inner| {
            change(inner);
            input
        })
    }

    /// The same, with an input that depends on what is found.
    pub(crate) fn call(&self, prepare: impl FnOnce(&mut Inner) -> Input) -> Result<(), Status> {
        let mut later = Later::default();
        let mut inner = self.lock();
        let input = prepare(&mut inner);
        let outcome = self.drive(&mut inner, &mut later, |machine| machine.handle(now(), input));
        drop(inner);
        later.run();
        outcome
    }

    fn drive(
        &self,
        inner: &mut Inner,
        later: &mut Later,
        step: impl FnOnce(&mut Connector) -> Result<Actions, Status>,
    ) -> Result<(), Status> {
        let outcome = self.step(inner, later, step);
        if inner.machine.state() == State::Disconnecting && inner.link.is_none() {
            // The peer left first and the driver has tidied up already: nothing is left to wait for.
            let _ = self.step(inner, later, |machine| machine.handle(now(), Input::DisconnectAnswered));
        }
        later.after.join(Self::settle(inner));
        outcome
    }

    /// One step of the machine, told to whoever listens, and its actions.
    fn step(
        &self,
        inner: &mut Inner,
        later: &mut Later,
        step: impl FnOnce(&mut Connector) -> Result<Actions, Status>,
    ) -> Result<(), Status> {
        let before = inner.machine.state();
        let outcome = step(&mut inner.machine);
        let after = inner.machine.state();
        let peer = inner.peer;
        if before != after {
            let status = told(&outcome, inner.ended.as_ref(), after);
            debug!(connection = %self.id, ?peer, from = ?before, phase = ?after, %status, "moved");
        }
        if let Err(status) = &outcome {
            debug!(connection = %self.id, ?peer, phase = ?after, %status, "refused");
        }
        for action in outcome? {
            self.carry_out(inner, action, later);
        }
        Ok(())
    }

    fn carry_out(&self, inner: &mut Inner, action: Action, later: &mut Later) {
        match action {
            Action::Finish { op, status } => {
                let (peer, phase) = (inner.peer, inner.machine.state());
                debug!(connection = %self.id, ?peer, ?phase, ?op, %status, "finished");
                if let Some(answer) = inner.answers.of(op) {
                    answer.status = Some(status);
                    later.wakers.extend(answer.waker.take());
                } else {
                    for (_, answer) in &mut inner.answers.notify {
                        answer.status.get_or_insert(status);
                        later.wakers.extend(answer.waker.take());
                    }
                }
            }
            // The future of the call does these.
            Action::StartBind | Action::StartConnect | Action::StartComplete | Action::StartAccept => {}
            Action::StartDisconnect => {
                inner.ended.get_or_insert(DisconnectReason::Local);
                let deadline =
                    inner.machine.next_timeout().map_or_else(tokio::time::Instant::now, Into::into);
                self.command(inner, Command::Disconnect(deadline));
            }
            Action::Leave => {
                inner.ended.get_or_insert(DisconnectReason::Local);
                let deadline = tokio::time::Instant::now() + self.adapter.config.disconnect_timeout;
                self.command(inner, Command::Disconnect(deadline));
            }
            Action::RefusePeer => match inner.transport.take() {
                Some(transport) => transport.refuse(&self.adapter.farewells),
                None => self.command(inner, Command::Refuse),
            },
            Action::Abandon => {
                inner.transport = None;
                let removed = self.adapter.is_removed();
                let status = if removed { Status::DEVICE_REMOVED } else { Status::CANCELED };
                self.command(inner, Command::Abandon(status));
            }
            // The driver flushes, once nothing of the memory is in use any more.
            Action::Flush => {}
        }
    }

    fn command(&self, inner: &Inner, command: Command) {
        if let Some(link) = &inner.link {
            link.command(command);
        }
    }

    /// Frees the queue pair of an attempt that came to nothing.
    fn settle(inner: &mut Inner) -> Aftermath {
        let over = matches!(inner.machine.state(), State::Idle | State::Bound | State::Dead);
        if !over || inner.link.is_some() {
            return Aftermath::default();
        }
        // The port of the attempt; a socket that is still bound has a lease of its own.
        inner.lease = None;
        if inner.machine.state() == State::Dead {
            inner.bound = None;
        }
        inner.queue_pair.take().map(|queue_pair| queue_pair.dissociate()).unwrap_or_default()
    }

    /// Takes the queue pair for this attempt.
    pub(crate) fn take_queue_pair(
        self: &Arc<Self>,
        inner: &mut Inner,
        queue_pair: &Arc<QueuePairCore>,
    ) -> bool {
        let taken = queue_pair.associate(self).is_ok();
        if taken {
            inner.queue_pair = Some(queue_pair.clone());
        }
        taken
    }

    /// Frees the queue pair of a call that was refused inline, or of an attempt that was taken back.
    pub(crate) fn give_back(&self) {
        let queue_pair = self.lock().queue_pair.take();
        if let Some(queue_pair) = queue_pair {
            queue_pair.dissociate().settle();
        }
    }

    /// Remembers what the provider said about a failure.
    pub(crate) fn blame(inner: &mut Inner, reason: Reason) {
        inner.reason = Some(reason);
    }

    pub(crate) fn take_reason(&self) -> Reason {
        self.lock().reason.take().unwrap_or(Reason::Local("no reason was given"))
    }

    /// The link exists: from now on the driver carries out the machine's actions. False when the attempt was ended
    /// since its transport was taken: nobody could tell the driver then, and the queue pair is not ours any more.
    #[must_use]
    pub(crate) fn attach(&self, link: Arc<Link>) -> bool {
        let mut inner = self.lock();
        let wanted = matches!(inner.machine.state(), State::Completing | State::Accepting);
        if wanted {
            inner.link = Some(link);
        }
        wanted
    }

    /// Polls for the answer to a call.
    pub(crate) fn poll_answer(&self, op: Op, cx: &mut Context<'_>) -> Poll<Status> {
        let mut inner = self.lock();
        let Some(answer) = inner.answers.of(op) else { return Poll::Pending };
        if let Some(status) = answer.status.take() {
            return Poll::Ready(status);
        }
        let old = answer.waker.replace(cx.waker().clone());
        drop(inner);
        drop(old);
        Poll::Pending
    }

    /// Polls for the existence of an answer, and leaves it there.
    pub(crate) fn poll_answered(&self, op: Op, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.lock();
        let Some(answer) = inner.answers.of(op) else { return Poll::Pending };
        if answer.status.is_some() {
            return Poll::Ready(());
        }
        let old = answer.waker.replace(cx.waker().clone());
        drop(inner);
        drop(old);
        Poll::Pending
    }

    /// The answer to a call that is known to have one.
    pub(crate) fn take_answer(&self, op: Op) -> Option<Status> {
        self.lock().answers.of(op).and_then(|answer| answer.status.take())
    }

    /// Waits for the answer to a call.
    pub(crate) async fn answer(&self, op: Op) -> Status {
        std::future::poll_fn(|cx| self.poll_answer(op, cx)).await
    }

    /// Forgets an answer that nobody collected, before the same call is made again.
    pub(crate) fn reset(inner: &mut Inner, op: Op) {
        if let Some(answer) = inner.answers.of(op) {
            *answer = Answer::default();
        }
    }

    /// Waits until the connection is over (NotifyDisconnect).
    pub(crate) async fn disconnected(&self) -> DisconnectReason {
        let watch = match self.watch() {
            Ok(watch) => watch,
            Err(status) => return self.why(status),
        };
        let status = std::future::poll_fn(|cx| {
            let mut inner = self.lock();
            let Some(answer) = inner.answers.notify.get_mut(watch.place) else { return Poll::Pending };
            if let Some(status) = answer.status {
                return Poll::Ready(status);
            }
            let old = answer.waker.replace(cx.waker().clone());
            drop(inner);
            drop(old);
            Poll::Pending
        })
        .await;
        self.why(status)
    }

    /// Asks the machine to be told.
    fn watch(&self) -> Result<Watch<'_>, Status> {
        let place = self.lock().answers.notify.insert(Answer::default());
        let watch = Watch { cm: self, place };
        self.apply(Input::NotifyDisconnect).map(|()| watch)
    }

    /// Why the connection is over, for a NotifyDisconnect that finished with `status`.
    fn why(&self, status: Status) -> DisconnectReason {
        match status {
            Status::CANCELED if self.lock().ended.is_none() => DisconnectReason::Canceled,
            Status::DEVICE_REMOVED => DisconnectReason::DeviceRemoved,
            _ => self.lock().ended.clone().unwrap_or(DisconnectReason::Local),
        }
    }

    /// IND2Connector::Disconnect.
    ///
    /// # Errors
    /// See [`DisconnectError`].
    pub(crate) async fn disconnect(&self) -> Result<(), DisconnectError> {
        let deadline = now() + self.adapter.config.disconnect_timeout;
        let begun = self.apply_with(Input::Disconnect { deadline }, |inner| {
            if matches!(inner.machine.state(), State::Connected | State::PeerGone) {
                Self::reset(inner, Op::Disconnect);
            }
        });
        let status = match begun {
            Ok(()) => self.answer(Op::Disconnect).await,
            Err(status) => status,
        };
        match status {
            Status::SUCCESS => Ok(()),
            Status::CANCELED => Err(DisconnectError::Canceled),
            Status::IO_TIMEOUT => Err(DisconnectError::TimedOut),
            Status::DEVICE_REMOVED => Err(DisconnectError::DeviceRemoved),
            _ => Err(DisconnectError::Invalid),
        }
    }

    /// CancelOverlappedRequests.
    pub(crate) fn cancel(&self) {
        let _ = self.apply(Input::Cancel);
    }

    /// The handle that owns the attempt or the connection is gone.
    pub(crate) fn release(&self) {
        let _ = self.apply(Input::Release);
    }

    pub(crate) fn read_limits(&self) -> Result<ReadLimits, StateError> {
        self.lock().machine.read_limits()
    }

    pub(crate) fn private_data(&self) -> Result<PrivateData, StateError> {
        self.lock().machine.private_data().cloned()
    }

    pub(crate) fn local_addr(&self) -> Result<SocketAddr, StateError> {
        let inner = self.lock();
        inner.machine.local_address_ready()?;
        inner.local.ok_or(StateError::ConnectionInvalid)
    }

    pub(crate) fn peer_addr(&self) -> Result<SocketAddr, StateError> {
        let inner = self.lock();
        inner.machine.peer_address_ready()?;
        inner.peer.ok_or(StateError::ConnectionInvalid)
    }

    /// Gives the connection up at once, for a local reason.
    pub(crate) fn abandon(&self, why: &'static str) {
        let mut inner = self.lock();
        inner
            .ended
            .get_or_insert(DisconnectReason::Lost { status: Status::CANCELED, reason: Reason::Local(why) });
        self.command(&inner, Command::Abandon(Status::CANCELED));
        drop(inner);
        let _ = self.apply(Input::PathLost);
    }

    pub(crate) fn queue_pair_removed(&self) {
        let _ = self.apply(Input::QueuePairRemoved);
    }

    /// The peer's first frame has come.
    pub(crate) fn first_frame(&self) {
        let queue_pair = self.lock().queue_pair.clone();
        self.establish(queue_pair);
        let _ = self.apply(Input::PeerCompleted);
    }

    /// The queue pair may be posted to; before anyone is told that the connection is up.
    pub(crate) fn establish(&self, queue_pair: Option<Arc<QueuePairCore>>) {
        let link = self.lock().link.clone();
        if let (Some(queue_pair), Some(link)) = (queue_pair, link) {
            queue_pair.establish(link);
        }
    }

    /// The driver's report that the attempt or the connection has ended; requests have not been flushed yet.
    pub(crate) fn ended(&self, ending: Ending) {
        let (peer, phase) = {
            let inner = self.lock();
            (inner.peer, inner.machine.state())
        };
        debug!(connection = %self.id, ?peer, ?phase, ?ending, "ended");
        let (input, reason, ended) = match ending {
            Ending::PeerDisconnected => {
                (Input::PeerDisconnected, Reason::PeerClosed, Some(DisconnectReason::Peer))
            }
            Ending::Lost(reason, status) => {
                (Input::PathLost, reason.clone(), Some(DisconnectReason::Lost { status, reason }))
            }
            Ending::Refused(reason) => (Input::PeerRejected { private_data: None }, reason, None),
            Ending::GaveUp(reason) => (Input::PeerGaveUp, reason, None),
        };
        if matches!(input, Input::PeerDisconnected) {
            let mut inner = self.lock();
            if inner.machine.state() == State::Disconnecting {
                // Its answer came before the driver got to asking. The disconnect is over when the requests are, too.
                inner.answered = true;
                return;
            }
        }
        let mut after = Aftermath::default();
        let _ = self.apply_with(input, |inner| {
            inner.reason = Some(reason);
            if inner.ended.is_none() {
                inner.ended = ended;
            }
            if inner.ended.is_some() {
                // Nothing more can be posted once the peer is known to be gone.
                if let Some(queue_pair) = &inner.queue_pair {
                    queue_pair.end();
                }
            } else if let Some(queue_pair) = inner.queue_pair.take() {
                // Free before anyone hears that the attempt has failed.
                after = queue_pair.dissociate();
            }
        });
        after.settle();
    }

    /// The driver's last report: the socket is closed and every request has finished.
    pub(crate) fn closed(&self, answered: bool) {
        let (queue_pair, lease) = {
            let mut inner = self.lock();
            (inner.queue_pair.take(), inner.lease.take())
        };
        if let Some(queue_pair) = queue_pair {
            queue_pair.dissociate().settle();
            if !queue_pair.is_free() {
                queue_pair.end();
            }
        }
        drop(lease);
        let mut link = None;
        // A peer that left by itself, in order or not, will not answer any more.
        let gone = {
            let inner = self.lock();
            inner.answered || matches!(inner.machine.ending(), Some(End::Peer | End::Lost))
        };
        let input = if answered || gone { Input::DisconnectAnswered } else { Input::TimedOut };
        let _ = self.apply_with(input, |inner| link = inner.link.take());
    }
}

impl Member for Cm {
    fn device_removed(&self) {
        let _ = self.apply_with(Input::DeviceRemoved, |inner| {
            inner.ended.get_or_insert(DisconnectReason::DeviceRemoved);
        });
    }
}

/// A place among those who wait for the end of the connection.
struct Watch<'a> {
    cm: &'a Cm,
    place: usize,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let answer = self.cm.lock().answers.notify.try_remove(self.place);
        drop(answer);
    }
}

/// The status that goes with a step, for `tracing`: of the call that it finishes, or begins, or of the connection.
fn told(outcome: &Result<Actions, Status>, ended: Option<&DisconnectReason>, after: State) -> Status {
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
        (Some(reason), _) if after == State::PeerGone => reason.status(),
        (_, Some(status)) => status,
        _ if actions.iter().any(begins) => Status::PENDING,
        _ => Status::SUCCESS,
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
