//! Shares a connection between posting calls and its task: the socket and the sending half.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};

use tokio::time::Instant;
use tracing::level_filters::LevelFilter;
use tracing::trace;

use super::framing::Batch;
use super::memory::{AccessGuard, KeyTable, WindowOp, deregistered};
use super::receive_queue::ReceiveQueue;
use super::receiver::reader::{Panicked, TURN_BYTES, cost_of};
use super::receiver::reader::{Reader, SharedSocket};
use super::send_queue::{MAX_BATCHES, Next, ReadOwner, SendQueue};
use crate::error::PostErrorKind;
use crate::inflight::{CompletionSink, WakeList};
#[cfg(feature = "inspect")]
use crate::inspect::{ConnectionReport, RequestReport, SendState};
use crate::memory;
use crate::net::Stream;
use crate::net::descriptors::Held;
use crate::proto::mpa::{Negotiated, Rtr, rtr_frame};
use crate::provider::work::{Flags, Refused, WindowRequest, WorkRequest};
use crate::status::Status;
use crate::sync::{Mutex, MutexGuard};
use crate::types::{ConnectionId, OpKind, Role};

/// A command of the connector to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Close this half of the stream and wait for the peer's half until the deadline.
    Disconnect(Instant),
    /// Reject the peer during the handshake.
    Refuse,
    /// Drop everything at once; requests complete with this status.
    Abandon(Status),
}

/// The state that the driver polls: the command of the connector, and whether the socket was full.
pub(super) struct DriverWork {
    pub(super) command: Option<Command>,
    /// The socket was full.
    pub(super) blocked: bool,
    /// The last poll was by the same task, whose waker has not been used since.
    pub(super) known: bool,
}

/// The socket. It is a part of the reader, and shared by posting calls and the driver as [`SharedSocket`].
pub(crate) struct Socket {
    pub(super) stream: Stream,
    /// Reads do not wait until the runtime reports the socket readable.
    eager: AtomicBool,
    /// The descriptor, of a socket that was accepted.
    descriptor: Option<Held>,
}

impl Socket {
    pub(crate) fn new(stream: Stream, descriptor: Option<Held>) -> Self {
        Self { stream, eager: AtomicBool::new(false), descriptor }
    }

    /// Returns whether handshakes need the descriptor.
    pub(super) fn is_needed(&self) -> bool {
        self.descriptor.as_ref().is_some_and(|descriptor| !descriptor.has_room())
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Sets whether reads call the system without asking the runtime, whose view of the socket they then do
    /// not update.
    ///
    /// The task sets it at each poll, and the reader of a stream for a read of its own. The two are not
    /// ordered, so one read may go the other way, which costs a system call or finds nothing.
    pub(super) fn set_eager(&self, eager: bool) {
        self.eager.store(eager, Ordering::Relaxed);
    }

    /// Returns whether reads call the system without asking the runtime.
    pub(super) fn is_eager(&self) -> bool {
        self.eager.load(Ordering::Relaxed)
    }

    /// Reads once, without blocking.
    pub(crate) fn read(&self, targets: &mut [memory::Target<'_>], asked: usize) -> io::Result<usize> {
        if self.is_eager() {
            self.stream.receive_now(targets)
        } else {
            self.stream.try_receive(targets, asked)
        }
    }

    /// Reads once into a buffer, without blocking.
    pub(super) fn read_bytes(&self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.is_eager() { self.stream.read_now(bytes) } else { self.stream.try_read(bytes) }
    }

    /// Writes a batch of which all is copied once, without blocking, and returns how many bytes the socket took.
    pub(super) fn write_copied(&self, batch: &Batch) -> io::Result<usize> {
        self.stream.try_write(&batch.arena)
    }

    /// Writes the batch once, without blocking, and returns how many bytes the socket took.
    fn write(&self, batch: &Batch, extent: Extent) -> io::Result<usize> {
        let held = match &batch.access {
            None => None,
            Some(access) => Some(access.guard().ok_or_else(deregistered)?),
        };
        let pieces = batch.pieces(held.as_ref().and_then(AccessGuard::memory));
        match extent {
            Extent::Call | Extent::Turn => self.stream.try_send(pieces),
            Extent::Poll => self.stream.send_pieces_now(pieces),
        }
    }
}

/// The part of a connection that posting calls and the driver share.
pub(crate) struct ConnectionShared {
    /// Unique in the process: windows of this number are those that the peer may use.
    pub(crate) number: u64,
    /// The number in `tracing` output.
    pub(super) id: ConnectionId,
    pub(crate) crc: bool,
    /// The headers of segments contain how many follow.
    pub(super) announces: bool,
    pub(super) role: Role,
    /// The first frame of the active side.
    pub(super) rtr: Rtr,
    /// The most reads and atomics of the peer that are served at once.
    pub(super) inbound_reads: usize,
    pub(crate) receives: Arc<ReceiveQueue>,
    pub(crate) keys: Arc<KeyTable>,
    sending: Mutex<Sending>,
    /// This end has ended the connection, or is about to: what arrives must no longer succeed.
    ends: AtomicBool,
    /// The receiving half, which its task owns.
    pub(super) reader: OnceLock<Weak<Reader>>,
}

/// The parts of a new [`ConnectionShared`].
pub(crate) struct ConnectionParts {
    pub(crate) id: ConnectionId,
    pub(crate) role: Role,
    pub(crate) negotiated: Negotiated,
    pub(crate) send_depth: u32,
    pub(crate) sends: CompletionSink,
    pub(crate) receives: Arc<ReceiveQueue>,
    pub(crate) keys: Arc<KeyTable>,
}

/// The sending half.
pub(crate) struct Sending {
    pub(super) queue: SendQueue,
    /// `None` until the connection has a driver, and once it has ended.
    pub(super) socket: Option<SharedSocket>,
    /// The statuses of a flush that the current writer carries out, because the driver has ended: of the
    /// oldest request and of the others.
    flush: Option<(Status, Status)>,
    /// Wakes the driver, which then writes on or executes the command.
    driver: Option<Waker>,
    command: Option<Command>,
}

impl Sending {
    /// Registers this task as the driver. Returns whether it was the driver already, and the waker that it
    /// replaces, which the caller drops without the lock.
    #[must_use]
    fn register(&mut self, cx: &Context<'_>) -> (bool, Option<Waker>) {
        let known = self.driver.as_ref().is_some_and(|known| known.will_wake(cx.waker()));
        (known, if known { None } else { self.driver.replace(cx.waker().clone()) })
    }
}

/// The caller that writes, which decides how much it writes, and whether it asks the runtime for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// A call of the program: until the socket is full.
    Call,
    /// A turn of the reader or the driver: it begins no batch after [`TURN_BYTES`].
    Turn,
    /// A turn in a poll of a completion queue: the system is asked in any case, as the runtime may have no
    /// thread to see that there is room.
    Poll,
}

/// The result of an attempt to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transmitted {
    /// All that could be sent has been, or another writer goes on.
    Idle,
    /// The driver has to go on.
    Blocked,
}

impl ConnectionShared {
    pub(crate) fn new(parts: ConnectionParts) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let ConnectionParts { id, role, negotiated, send_depth, sends, receives, keys } = parts;
        let Negotiated { limits, crc, announces, rtr, .. } = negotiated;
        // Made in its place: `Arc::new` would copy it three times.
        let connection = Arc::new_cyclic(|_| Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            id,
            crc,
            announces,
            role,
            rtr,
            inbound_reads: usize::try_from(limits.inbound).unwrap_or(usize::MAX),
            receives,
            keys,
            sending: Mutex::new(Sending {
                queue: SendQueue::new(send_depth, limits.outbound, crc, sends),
                socket: None,
                flush: None,
                driver: None,
                command: None,
            }),
            ends: AtomicBool::new(false),
            reader: OnceLock::new(),
        });
        {
            let queue = &mut connection.sending().queue;
            queue.announces = announces;
            match role {
                // Its response is one more outstanding read, whatever the limit.
                Role::Active if rtr == Rtr::Read => _ = queue.outbound.read(ReadOwner::Probe, 0, 0),
                Role::Active => {}
                Role::Passive if rtr == Rtr::Waived => {}
                Role::Passive => queue.hold(),
            }
        }
        connection
    }

    /// Returns whether the peer is ready before its first frame: it has accepted, or its request had to do.
    pub(super) fn is_peer_ready(&self) -> bool {
        self.role == Role::Active || matches!(self.rtr, Rtr::None | Rtr::Waived)
    }

    pub(crate) fn sending(&self) -> MutexGuard<'_, Sending> {
        self.sending.lock()
    }

    /// Stops the writing. Resolves when no writer is left, so that memory can be returned to the user.
    pub(super) fn poll_halt(&self, cx: &Context<'_>) -> Poll<()> {
        let mut sending = self.sending();
        sending.queue.halt();
        // The writer wakes the driver when it stops.
        let old = sending.register(cx);
        let halted = !sending.queue.is_writing();
        drop(sending);
        drop(old);
        if halted { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Writes what was queued, unless the driver or the peer has to be waited for, and leaves the rest to the
    /// driver. Returns the number of bytes.
    pub(super) fn transmit(
        &self,
        mut sending: MutexGuard<'_, Sending>,
        extent: Extent,
        wakes: &mut WakeList,
    ) -> usize {
        if sending.queue.is_blocked() || sending.queue.is_held() {
            return 0;
        }
        let Some(socket) = sending.socket.clone() else { return 0 };
        let next = sending.queue.begin(wakes);
        let (transmitted, bytes) = self.write_batches(&socket, sending, next, extent, wakes);
        if transmitted == Transmitted::Blocked {
            self.wake_driver();
        }
        bytes
    }

    /// Changes the sending half by a call of the program, or of the driver, and writes its frames.
    pub(super) fn transmit_after<R>(&self, change: impl FnOnce(&mut SendQueue) -> R) -> R {
        let mut sending = self.sending();
        let result = change(&mut sending.queue);
        self.transmit_now(sending);
        result
    }

    /// Sends the ready-to-receive frame of the handshake, before anything can be posted: without a batch, which an idle connection
    /// would keep the room of.
    pub(super) fn send_rtr(&self, socket: &Socket) {
        let frame = rtr_frame(self.rtr, self.crc);
        if frame.is_empty() {
            return;
        }
        let outcome = self.report_sent(socket.stream.try_write(&frame));
        let mut sending = self.sending();
        if sending.queue.prefaced(&frame, outcome) {
            drop(sending);
            let _ = socket.stream.shut_down(std::net::Shutdown::Both);
        } else if !sending.queue.is_drained() {
            self.transmit_now(sending);
        }
    }

    /// Writes what was queued by a call of the program, and wakes what completes.
    fn transmit_now(&self, sending: MutexGuard<'_, Sending>) {
        let mut wakes = WakeList::default();
        self.transmit(sending, Extent::Call, &mut wakes);
        wakes.wake_all();
    }

    /// Writes as the driver: it does not wait for itself. Also returns the number of bytes.
    pub(super) fn transmit_rest(&self, extent: Extent) -> (Transmitted, usize) {
        let mut sending = self.sending();
        let Some(socket) = sending.socket.clone() else { return (Transmitted::Idle, 0) };
        let mut wakes = WakeList::default();
        let next = sending.queue.begin(&mut wakes);
        let outcome = self.write_batches(&socket, sending, next, extent, &mut wakes);
        wakes.wake_all();
        outcome
    }

    /// Reads and writes what belongs in a turn, for a caller that polls a completion queue: the runtime may
    /// have no thread to report that the socket is readable or writable. A half that another thread is
    /// reading or writing is left to that thread, and a connection that this end has ended to the task.
    pub(super) fn poll_now(&self) {
        let Some(reader) = self.reader.get().and_then(Weak::upgrade) else { return };
        let mut wakes = WakeList::default();
        let Some(transmitted) = self.write_now(&mut wakes) else { return };
        let read = reader.poll(&mut wakes);
        if read.established {
            self.release();
        }
        if read.task_goes_on || transmitted == Transmitted::Blocked {
            self.wake_driver();
        }
        wakes.wake_all();
    }

    /// Has what arrives succeed no more, because this end ends the connection.
    pub(super) fn ends(&self) {
        self.ends.store(true, Ordering::Relaxed);
    }

    /// Returns whether this end has ended the connection.
    pub(super) fn is_ending(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// Writes on if the socket was full and has room. Returns `None` if this end has ended the connection:
    /// data that has arrived, and requests that were posted, must no longer succeed.
    fn write_now(&self, wakes: &mut WakeList) -> Option<Transmitted> {
        let mut sending = self.sending();
        if sending.command.is_some() || sending.queue.is_halted() {
            return None;
        }
        if !sending.queue.is_blocked() {
            return Some(Transmitted::Idle);
        }
        let socket = sending.socket.clone()?;
        let next = sending.queue.begin(wakes);
        Some(self.write_batches(&socket, sending, next, Extent::Poll, wakes).0)
    }

    /// Writes from this step on, without the lock. A socket that fails is shut down, so that the driver reads
    /// what has arrived and then the end. Also returns the number of bytes.
    pub(super) fn write_batches<'a>(
        &'a self,
        socket: &Socket,
        mut sending: MutexGuard<'a, Sending>,
        mut next: Next,
        extent: Extent,
        wakes: &mut WakeList,
    ) -> (Transmitted, usize) {
        let most = if extent == Extent::Call { usize::MAX } else { TURN_BYTES };
        let (mut batches, mut written) = (0, 0);
        let transmitted = loop {
            match next {
                Next::Idle => break Transmitted::Idle,
                Next::Blocked => break Transmitted::Blocked,
                Next::Write(batch) if batches == MAX_BATCHES || written >= most => {
                    sending.queue.pause(batch);
                    break Transmitted::Blocked;
                }
                Next::Write(batch) => {
                    drop(sending);
                    let outcome = self.report_sent(socket.write(&batch, extent));
                    written += *outcome.as_ref().unwrap_or(&0);
                    sending = self.sending();
                    next = sending.queue.offered(batch, outcome, wakes);
                    batches += 1;
                }
            }
        };
        let broken = sending.queue.broken.is_some();
        if broken {
            let _ = socket.stream.shut_down(std::net::Shutdown::Both);
        }
        if !sending.queue.is_writing()
            && let Some((first, rest)) = sending.flush.take()
        {
            self.flush_half(sending, first, rest, wakes);
            return (Transmitted::Idle, written);
        }
        // A poll that has found no room does not wake the driver, which waits for room.
        let in_vain = extent == Extent::Poll && written == 0;
        // The driver may not be reading, and an end waits for the writer.
        let waits = broken || sending.queue.is_halted() || (sending.queue.is_closed() && !in_vain);
        match transmitted {
            _ if waits => (Transmitted::Blocked, written),
            _ if in_vain => (Transmitted::Idle, written),
            transmitted => (transmitted, written),
        }
    }

    /// Emits the event of the bytes that a writer has sent, without the lock under which frames are made: a
    /// subscriber is foreign code.
    ///
    /// # Errors
    /// The outcome is one, or the subscriber has panicked: the connection ends. A panic that went on would
    /// leave the queue to a writer that is gone.
    #[inline]
    pub(super) fn report_sent(&self, outcome: io::Result<usize>) -> io::Result<usize> {
        if LevelFilter::current() < LevelFilter::TRACE { outcome } else { self.emit_sent(outcome) }
    }

    #[cold]
    fn emit_sent(&self, outcome: io::Result<usize>) -> io::Result<usize> {
        let bytes = outcome?;
        let event = || trace!(connection = %self.id, bytes, "frames sent");
        catch_unwind(AssertUnwindSafe(event)).map_err(|_| io::Error::other(Panicked))?;
        Ok(bytes)
    }

    /// Wakes the driver, which then writes on or executes the command.
    pub(super) fn wake_driver(&self) {
        let waker = self.sending().driver.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Drops the socket of a connection that has ended, so that nothing more is written.
    pub(super) fn forget_socket(&self) {
        let socket = self.sending().socket.take();
        drop(socket);
    }

    /// Posts a request of the send queue and writes it, if nothing is ahead of it.
    ///
    /// # Errors
    /// The reason why the request was not posted, with its payload.
    pub(crate) fn post(&self, request: WorkRequest) -> Result<(), Refused> {
        let mut sending = self.sending();
        if let Err(kind) = sending.queue.admits(request.operation.kind()) {
            return Err(Refused { kind, payload: request.payload });
        }
        let defer = request.flags.contains(Flags::DEFER);
        sending.queue.post(request);
        if !defer {
            let mut wakes = WakeList::default();
            self.transmit(sending, Extent::Call, &mut wakes);
            wakes.wake_all();
        }
        Ok(())
    }

    /// Posts a request to change a window. `change` makes the change to the window itself, for the connection with this number.
    ///
    /// # Errors
    /// The reason why it was not posted.
    pub(crate) fn post_window(
        &self,
        kind: OpKind,
        request: WindowRequest,
        change: impl FnOnce(u64) -> Result<WindowOp, PostErrorKind>,
    ) -> Result<(), PostErrorKind> {
        let mut sending = self.sending();
        sending.queue.admits(kind)?;
        let window_op = change(self.number)?;
        sending.queue.post_window(request, window_op);
        if !request.flags.contains(Flags::DEFER) {
            self.transmit_now(sending);
        }
        Ok(())
    }

    /// Sets the command of the driver and wakes it. The first command stands, unless the new one is more
    /// urgent.
    pub(crate) fn command(&self, command: Command) {
        self.ends();
        let mut sending = self.sending();
        match (sending.command, command) {
            (None, _) | (Some(Command::Disconnect(_) | Command::Refuse), Command::Abandon(_)) => {
                sending.command = Some(command);
            }
            (Some(_), _) => {}
        }
        let waker = sending.driver.take();
        drop(sending);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes the command. The driver is woken by this task's waker from now on.
    pub(super) fn poll_command(&self, cx: &Context<'_>) -> DriverWork {
        let mut sending = self.sending();
        let (known, old) = sending.register(cx);
        let work = DriverWork { command: sending.command.take(), blocked: sending.queue.is_blocked(), known };
        drop(sending);
        drop(old);
        work
    }

    /// Allows sending to the peer, which is ready, and writes what was held back.
    pub(super) fn release(&self) {
        let mut sending = self.sending();
        if sending.queue.release() {
            self.transmit_now(sending);
        }
    }

    /// Completes the oldest read of this side, whose response has arrived. Returns whether it was that of the end of a stream, and the
    /// cost of what was written.
    pub(crate) fn complete_read(&self, wakes: &mut WakeList) -> (bool, u32) {
        let mut sending = self.sending();
        let is_end = sending.queue.complete_read(wakes);
        (is_end, cost_of(self.transmit(sending, Extent::Turn, wakes)))
    }

    /// Completes every request of the send queue: the oldest with `first`, all others with `rest`. The peer
    /// loses its windows. If a thread is writing, that writer does this when it stops.
    pub(super) fn flush(&self, first: Status, rest: Status, wakes: &mut WakeList) {
        let mut sending = self.sending();
        sending.queue.halt();
        if sending.queue.is_writing() {
            sending.flush = Some((first, rest));
            return;
        }
        self.flush_half(sending, first, rest, wakes);
    }

    fn flush_half(
        &self,
        mut sending: MutexGuard<'_, Sending>,
        first: Status,
        rest: Status,
        wakes: &mut WakeList,
    ) {
        sending.queue.flush(first, rest, wakes);
        let bound = sending.queue.has_bound;
        drop(sending);
        if bound {
            self.keys.unbind_all(self.number);
        }
    }
}

#[cfg(feature = "inspect")]
impl ConnectionShared {
    /// Adds its report to that of its connector.
    pub(super) fn add_to(&self, connector: &mut ConnectionReport) {
        let report = connector.queue_pair.get_or_insert_default();
        let role = if self.role == Role::Active { "active" } else { "passive" };
        connector.role = Some(role.into());
        let socket = {
            let sending = self.sending();
            let queue = &sending.queue;
            report.bytes_sent = queue.written;
            (report.reads_unanswered, report.reads_limit) = queue.outbound.reads();
            report.reads_to_answer = queue.serving();
            if let Some((age, _)) = queue.ends.wait.ages() {
                report.sends.outstanding += 1;
                report.sends.oldest.push(RequestReport { kind: "Read".into(), bytes: 0, age });
            }
            report.send_state = if queue.is_closed() {
                SendState::Closed
            } else if queue.is_held() {
                SendState::AwaitsFirstMessage
            } else if queue.is_blocked() {
                SendState::SocketFull
            } else if queue.awaits_read() {
                SendState::ReadLimit
            } else {
                SendState::Open
            };
            sending.socket.clone()
        };
        connector.tcp = socket.and_then(|socket| socket.stream().report().ok());
        let Some(reader) = self.reader.get().and_then(Weak::upgrade) else { return };
        let receiver = reader.receiver();
        report.bytes_received = receiver.received;
        report.awaits_receive = receiver.awaits_receive();
    }
}
