//! One connector of the soft provider: the state machine of NetworkDirect, its socket between two phases of
//! the handshake, and the futures that wait for it.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tracing::debug;

use super::adapter::{Adapter, LingeringClose};
use super::connection::{Command, ConnectionShared};
use super::driver::{Ending, Event, Observer};
use super::queue_pair::{QueuePair, QueuePairUser};
use crate::error::{DecodeError, Reason};
#[cfg(feature = "inspect")]
use crate::inspect::{ConnectionReport, Snapshot};
use crate::net::descriptors::Held;
use crate::net::ports::PortLease;
use crate::net::{BoundSocket, Stream};
use crate::proto::connector::{Action, Connector as Machine, Input, Loss, Phase, Terms};
use crate::proto::mpa::{Negotiated, Responder, terminate_fpdu};
use crate::provider::connector::{AfterStep, ConnectorDriver, ConnectorState, next_id};
use crate::provider::registry::{Member, Registered};
use crate::status::Status;
use crate::sync::{Mutex, MutexGuard, deadline};
use crate::types::{ConnectionId, DisconnectReason};
use crate::wire::ddp::Header;
use crate::wire::rdmap::{self, Opcode, Terminate};

/// A connector and its connection.
pub(crate) struct Connector {
    pub(crate) id: ConnectionId,
    pub(crate) adapter: Arc<Adapter>,
    state: Mutex<State>,
    _registered: Registered,
}

/// The state of a connector, under its lock.
pub(crate) struct State {
    pub(crate) progress: ConnectorState,
    /// The socket that has the address of Bind and waits for Connect. `None` during an attempt, and if it could not
    /// be bound again.
    pub(crate) socket: Option<Box<BoundSocket>>,
    /// The port of the connection, held until its end.
    pub(crate) lease: Option<PortLease>,
    /// The socket between two phases of the handshake.
    pub(crate) handshake: Option<Box<PendingHandshake>>,
    pub(crate) queue_pair: Option<Arc<QueuePair>>,
    connection: Option<Arc<ConnectionShared>>,
    /// The peer closed its half of the stream before the driver closed this half.
    answered: bool,
    /// The descriptor of a request, until the program has it.
    descriptor: Option<Held>,
}

impl AsMut<ConnectorState> for State {
    fn as_mut(&mut self) -> &mut ConnectorState {
        &mut self.progress
    }
}

impl State {
    /// Creates the state of an unbound connector, or of that of a request.
    fn new(incoming: Option<Box<Incoming>>) -> Self {
        let (progress, handshake, descriptor) = match incoming.map(|incoming| *incoming) {
            Some(Incoming { terms, handshake, local, peer, descriptor }) => {
                let machine = Machine::with_request(terms);
                let progress = ConnectorState::new(machine, Some(local), Some(peer));
                (progress, Some(handshake), Some(descriptor))
            }
            None => (ConnectorState::new(Machine::new(), None, None), None, None),
        };
        Self {
            progress,
            socket: None,
            lease: None,
            handshake,
            queue_pair: None,
            connection: None,
            answered: false,
            descriptor,
        }
    }

    /// Returns whether Disconnect waits for the driver to flush the requests and close the socket. No other
    /// end of the connection answers the call, so that no request is outstanding when it returns (`DIS-01`).
    fn flushes_for_disconnect(&self) -> bool {
        self.progress.phase() == Phase::Disconnecting && self.connection.is_some()
    }
}

impl Connector {
    /// Creates an unbound connector.
    pub(crate) fn new(adapter: Arc<Adapter>) -> Arc<Self> {
        Self::with(adapter, None)
    }

    /// Creates the connector of a request that has arrived.
    pub(crate) fn with_request(adapter: Arc<Adapter>, incoming: Box<Incoming>) -> Arc<Self> {
        let peer = Some(tracing::field::display(incoming.peer));
        let connector = Self::with(adapter, Some(incoming));
        // The machine was made in this state; the listener's machine was the one that waited.
        let (phase, status) = (Phase::RequestPending, Status::SUCCESS);
        debug!(connection = %connector.id, peer, from = %"Waiting", ?phase, %status, "state changed");
        connector
    }

    fn with(adapter: Arc<Adapter>, incoming: Option<Box<Incoming>>) -> Arc<Self> {
        let registry = adapter.registry().clone();
        registry.create(|_, registered| Self {
            id: next_id(),
            adapter,
            state: Mutex::new(State::new(incoming)),
            _registered: registered,
        })
    }

    /// Sets the descriptor of a request, which its socket has from the reply on.
    pub(crate) fn set_descriptor(&self, descriptor: Held) {
        self.lock().descriptor = Some(descriptor);
    }

    /// Takes the descriptor of a request, which counts until it is dropped.
    pub(crate) fn take_descriptor(&self) -> Option<Held> {
        self.lock().descriptor.take()
    }

    fn command(&self, state: &State, command: Command) {
        if let Some(connection) = &state.connection {
            connection.command(command);
        }
    }

    /// Frees the queue pair of an attempt that has failed.
    fn clear(state: &mut State, after: &mut AfterStep) {
        if state.connection.is_some() {
            // The driver frees the queue pair.
            state.queue_pair.as_ref().inspect(|queue_pair| queue_pair.expect_return());
            return;
        }
        // The port of the attempt; a socket that is still bound has a lease of its own.
        state.lease = None;
        if state.progress.machine.phase() == Phase::Dead {
            state.progress.bound = None;
            state.socket = None;
        }
        Self::free_queue_pair(state, after);
    }

    /// Associates the queue pair with this attempt. Returns whether it was free.
    pub(crate) fn take_queue_pair(self: &Arc<Self>, state: &mut State, queue_pair: &Arc<QueuePair>) -> bool {
        let user: Weak<Self> = Arc::downgrade(self);
        let taken = queue_pair.associate(user).is_ok();
        if taken {
            state.queue_pair = Some(queue_pair.clone());
        }
        taken
    }

    /// Frees the queue pair of a call that was refused inline, or of an attempt that has ended.
    pub(crate) fn free_queue_pair(state: &mut State, after: &mut AfterStep) {
        if let Some(queue_pair) = state.queue_pair.take() {
            queue_pair.dissociate(&mut after.requests);
        }
    }

    /// Attaches the connection, whose driver carries out the machine's actions from now on. Returns false if
    /// the attempt was ended after its handshake was taken: no command could reach the driver then, and the
    /// queue pair is no longer this connector's.
    #[must_use]
    pub(crate) fn attach(&self, connection: Arc<ConnectionShared>) -> bool {
        let mut state = self.lock();
        let wanted = matches!(state.progress.machine.phase(), Phase::Completing | Phase::Accepting);
        if wanted {
            state.connection = Some(connection);
        }
        wanted
    }

    /// Establishes the connection: posting is possible before the call that waits for the connection returns.
    pub(crate) fn establish(&self, done: Input) {
        self.step(AfterStep::run, |state, after| {
            if let (Some(queue_pair), Some(connection)) = (&state.queue_pair, &state.connection) {
                queue_pair.establish(connection, &mut after.requests);
            }
            let _ = self.advance(state, done, after);
        });
    }

    /// Handles the end of the attempt or the connection, before its requests are flushed.
    fn ended(&self, ending: Ending) {
        let (loss, reason) = match ending {
            Ending::PeerDisconnected => (Loss::Disconnected, Reason::PeerClosed),
            Ending::Lost(reason, status) => (Loss::Path(Some(status)), reason),
            Ending::Refused(reason) => (Loss::Refused(None), reason),
            Ending::GaveUp(reason) => (Loss::GaveUp, reason),
        };
        let is_limit = matches!(reason, Reason::PathTimeout | Reason::Local(_));
        if is_limit && matches!(loss, Loss::Path(Some(Status::IO_TIMEOUT))) {
            self.log_cause(&reason);
        }
        // All under one lock: between the question whether this side disconnects and the input a disconnect
        // could begin.
        self.step(AfterStep::run, |state, after| {
            let (id, peer, phase) = (self.id, state.progress.peer, state.progress.phase());
            after.log(move || {
                let peer = peer.map(tracing::field::display);
                debug!(connection = %id, peer, ?phase, ?ending, "connection ended");
            });
            match loss {
                // The peer closed its half before the driver closed this one.
                Loss::Disconnected if state.flushes_for_disconnect() => state.answered = true,
                Loss::Path(Some(status)) if state.flushes_for_disconnect() => {
                    state.progress.machine.note_loss(status, reason);
                    Self::end_queue_pair(state, true, after);
                    self.command(state, Command::Abandon(Status::CANCELED));
                }
                loss => {
                    Self::end_queue_pair(state, matches!(loss, Loss::Disconnected | Loss::Path(_)), after);
                    let _ = self.advance(state, Input::lost(loss, reason), after);
                }
            }
        });
    }

    /// Ends the queue pair of a connection before the machine moves: nothing more can be posted once the peer is known to
    /// be gone. That of an attempt is free before the call returns that the attempt has failed.
    fn end_queue_pair(state: &mut State, is_over: bool, after: &mut AfterStep) {
        if is_over || state.progress.machine.ending().is_some() {
            if let Some(queue_pair) = &state.queue_pair {
                queue_pair.end(&mut after.requests);
            }
        } else {
            Self::free_queue_pair(state, after);
        }
    }

    /// Handles the end of the driver: the socket is closed and every request has completed.
    fn closed(&self, answered: bool) {
        let connection = self.step(AfterStep::run, |state, after| {
            state.lease = None;
            if let Some(queue_pair) = state.queue_pair.take()
                && !queue_pair.dissociate(&mut after.requests)
            {
                queue_pair.end(&mut after.requests);
            }
            let connection = state.connection.take();
            // A peer that ended the connection itself, in order or not, sends nothing more.
            let gone = !matches!(state.progress.machine.ending(), None | Some(DisconnectReason::Local));
            let input = if answered || state.answered || gone {
                Input::DisconnectAnswered
            } else {
                Input::lost(Loss::TimedOut, None)
            };
            let _ = self.advance(state, input, after);
            connection
        });
        drop(connection);
    }
}

impl Observer for Connector {
    fn event(&self, event: Event) {
        match event {
            Event::Established => self.establish(Input::PeerCompleted),
            Event::Ended(ending) => self.ended(ending),
            Event::Detached => self.step(AfterStep::run, Self::free_queue_pair),
            Event::Closed { answered } => self.closed(answered),
        }
    }

    fn disconnect_timeout(&self) -> Duration {
        self.adapter.config.disconnect_timeout
    }
}

impl QueuePairUser for Connector {
    fn abandon(&self, why: &'static str) {
        self.step(AfterStep::run, |state, after| {
            // From now on posting fails, also before the driver has acted.
            if let Some(queue_pair) = &state.queue_pair {
                queue_pair.end(&mut after.requests);
            }
            self.command(state, Command::Abandon(Status::CANCELED));
            let (status, reason) = (Status::CANCELED, Reason::Local(why));
            if state.flushes_for_disconnect() {
                state.progress.machine.note_loss(status, reason);
            } else {
                let _ = self.advance(state, Input::lost(Loss::Path(Some(status)), reason), after);
            }
        });
    }

    fn queue_pair_removed(&self) {
        ConnectorDriver::queue_pair_removed(self);
    }

    fn loss(&self) -> Option<Reason> {
        ConnectorDriver::loss(self).map(|(_, reason)| reason)
    }
}

impl ConnectorDriver for Connector {
    type State = State;

    fn id(&self) -> ConnectionId {
        self.id
    }

    #[cfg(feature = "inspect")]
    fn report(&self) -> ConnectionReport {
        let state = self.lock();
        let mut report = state.progress.report(self.id, self.adapter.domain);
        report.tcp = state.handshake.as_ref().and_then(|handshake| handshake.stream().report().ok());
        let queue_pair = state.queue_pair.clone();
        drop(state);
        if let Some(queue_pair) = queue_pair {
            queue_pair.add_to(&mut report);
        }
        report
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn execute(&self, state: &mut State, action: Action, _after: &mut AfterStep) {
        match action {
            // The future of the call carries these out.
            Action::StartBind | Action::StartConnect | Action::StartComplete | Action::StartAccept => {}
            // The trait carries this out.
            Action::Finish { .. } => {}
            Action::StartDisconnect => {
                let deadline =
                    state.progress.machine.next_timeout().map_or_else(tokio::time::Instant::now, Into::into);
                self.command(state, Command::Disconnect(deadline));
            }
            Action::Leave => {
                let deadline = deadline(self.adapter.config.disconnect_timeout);
                self.command(state, Command::Disconnect(deadline));
            }
            Action::RefusePeer => match state.handshake.take() {
                Some(handshake) => handshake.refuse(&self.adapter.lingering_close),
                None => self.command(state, Command::Refuse),
            },
            Action::Abandon => {
                state.handshake = None;
                let removed = self.adapter.is_removed();
                let status = if removed { Status::DEVICE_REMOVED } else { Status::CANCELED };
                self.command(state, Command::Abandon(status));
            }
            // The driver flushes, once none of the memory is in use.
            Action::Flush => {}
        }
    }

    fn follow_up(&self, state: &mut State, after: &mut AfterStep) -> Option<Input> {
        if state.progress.phase() == Phase::Disconnecting && state.connection.is_none() {
            // The peer ended the connection first, and the driver has already closed it: nothing is left to
            // wait for.
            return Some(Input::DisconnectAnswered);
        }
        if matches!(state.progress.phase(), Phase::Idle | Phase::Bound | Phase::Dead) {
            Self::clear(state, after);
        }
        None
    }

    fn disconnect_timeout(&self) -> Duration {
        Observer::disconnect_timeout(self)
    }
}

impl Member for Connector {
    fn device_removed(&self) {
        let _ = self.handle(Input::DeviceRemoved);
    }

    #[cfg(feature = "inspect")]
    fn inspect(&self, _adapter: u64, snapshot: &mut Snapshot) {
        snapshot.connections.push(self.report());
    }
}

/// The number of bytes that suffice for the header and control word of a Terminate.
const FIRST_WORDS: usize = 24;

/// A connection request that no connector has yet. In a box, as it passes through the queue of the listener.
pub(crate) struct Incoming {
    pub(super) terms: Terms,
    pub(super) handshake: Box<PendingHandshake>,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) descriptor: Held,
}

/// A handshake that waits for its user. In a box, because a connector outlives it.
pub(crate) enum PendingHandshake {
    /// The peer accepted; CompleteConnect is owed.
    Active { stream: Stream, negotiated: Negotiated, leftover: Bytes },
    /// The peer has sent a request; Accept is owed. The data is that of a Reject, if there was one.
    Passive { stream: Stream, responder: Responder, reject_data: Option<Bytes> },
}

impl PendingHandshake {
    fn stream(&self) -> &Stream {
        match self {
            Self::Active { stream, .. } | Self::Passive { stream, .. } => stream,
        }
    }

    /// Sets the data to send with a Reject; the active side has no frame to carry any.
    pub(crate) fn set_reject_data(&mut self, data: Bytes) {
        if let Self::Passive { reject_data, .. } = self {
            *reject_data = Some(data);
        }
    }

    /// Closes in order from now on, even if the socket was set to abort during the start-up.
    pub(crate) fn keep(&self) {
        self.stream().clear_abort();
    }

    /// Checks that the peer has not closed or withdrawn, as far as that is known without waiting.
    ///
    /// # Errors
    /// The reason why the handshake has ended.
    pub(crate) fn check(&self) -> Result<(), Reason> {
        let mut start = [0; FIRST_WORDS];
        match (self.stream().peek_now(&mut start), self) {
            (Ok(0), _) => Err(Reason::PeerClosed),
            // Behind its request a peer may send nothing before it has the reply (RFC 5044 section 7.1.3).
            (Ok(_), Self::Passive { .. }) => {
                Err(Reason::Protocol(DecodeError::Malformed("data before the reply")))
            }
            (Ok(length), Self::Active { leftover, .. }) => taken_back(&[leftover, &start[..length]].concat()),
            (Err(error), _) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
            (Err(error), _) => Err(Reason::Errno(error.raw_os_error().unwrap_or(0))),
        }
    }

    /// Refuses the peer and closes the socket, without waiting for the peer.
    pub(crate) fn refuse(self, lingering_close: &LingeringClose) {
        match self {
            // No third start-up frame exists that could refuse, but a Terminate in place of the first frame
            // does.
            Self::Active { stream, negotiated, .. } => {
                lingering_close
                    .close_after(stream, terminate_fpdu(&Terminate::LOCAL_CATASTROPHIC, negotiated.crc));
            }
            Self::Passive { stream, responder, reject_data: Some(data) } => {
                lingering_close.close_after(stream, responder.reject(&data));
            }
            // The R bit is the refusal of an application, after which a peer does not try again. Without one
            // the peer reads the end of the stream, as with a backlog that is full.
            Self::Passive { .. } => {}
        }
    }
}

/// Checks whether the peer has withdrawn its accept, by a Terminate in place of its first frame.
fn taken_back(bytes: &[u8]) -> Result<(), Reason> {
    match Header::decode(bytes) {
        Ok((header, _, consumed)) if header.opcode() == Opcode::Terminate => {
            let words = bytes.get(consumed..).unwrap_or_default();
            let terminate = Terminate::decode(words, rdmap::Phase::StartUp).unwrap_or(Terminate::UNSPECIFIED);
            Err(terminate.reason(false))
        }
        // Anything else is a server that sends first, or for the driver to judge.
        _ => Ok(()),
    }
}
