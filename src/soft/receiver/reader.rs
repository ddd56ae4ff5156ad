//! Shares the receiving half between the task of a connection, the reader of a byte stream, and polls of a
//! completion queue.
//!
//! Small frames are read where the runtime reports that the socket is readable: the waker that the socket has
//! takes a short turn, and no task has to run. All else is left to the task. When large frames come while the
//! reader of a stream waits, the reader has a turn before the task: it places payload in its own memory, and
//! it is not copied to a chunk. For small frames that would not pay. The task does not wait for a
//! reader whose future was dropped: it has the next turn.
//!
//! A turn has a cost limit, parameters, and a result or a reason to stop.

use std::cell::Cell;
use std::io;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};

use tokio::runtime::Handle;
use tokio::task::coop::has_budget_remaining;
use tokio::time::Instant;

use super::{Next, Receiver};
use crate::inflight::WakeList;
use crate::provider::stream::StreamRoom;
use crate::soft::connection::{ConnectionShared, Socket};
use crate::soft::timers::BUSY;
use crate::status::Status;
use crate::sync::{Mutex, MutexGuard};
use crate::wire::ddp::HeaderError;
use crate::wire::rdmap::Terminate;

/// The cost limit of a turn in the thread that reports that the socket is readable. It keeps the tasks of that
/// thread waiting, so the rest is left to the task of the connection.
const SHORT_TURN: u32 = 16;
/// The cost limit of all such turns of a thread, until a task of a connection runs there: however many peers
/// send at once, the other tasks of the runtime have their turn.
const MOST_AT_ONCE: u32 = TURN;
/// [`SHORT_TURN`] and [`MOST_AT_ONCE`] for the queue pairs of lanes: their messages are many and take no more than a copy each, and the
/// task of the connection would only come between.
const OF_LANES: (u32, u32) = (TURN, 8 * TURN);

thread_local! {
    /// The cost of the turns that this thread has taken where it reports sockets.
    static AT_ONCE: Cell<u32> = const { Cell::new(0) };
}

/// Allows this thread further turns where it reports sockets, because it runs tasks.
pub(crate) fn tasks_run() {
    AT_ONCE.set(0);
}

/// The receiving half, behind a lock.
pub(crate) struct Reader {
    receiver: Mutex<Receiver>,
    /// The number of threads that wait for the lock. [`poll`](Self::poll), which may be called again and
    /// again, leaves the lock to them.
    wanted: AtomicU32,
    socket: Socket,
    connection: Arc<ConnectionShared>,
    /// The connection, which reads when it is woken.
    waker: Waker,
    /// The task spins after each read, so it reads itself.
    task_spins: bool,
}

/// A reference to the socket of a connection, which keeps the reader: both are one allocation. The connection gives up its own when it
/// ends, so that no circle of references is left.
#[derive(Clone)]
pub(crate) struct SharedSocket(Arc<Reader>);

impl Deref for SharedSocket {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.0.socket
    }
}

/// As the waker that the socket has, it does not wake the task, but reads. The socket keeps it, and the connection gives the
/// socket up when it ends.
impl Wake for ConnectionShared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
        // If the connection has just ended, this may be the last reference to it, and to what foreign code has lent.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(self)));
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(reader) = self.reader.get().and_then(Weak::upgrade) {
            Reader::readable(reader);
        }
    }
}

/// Reads by others than the task of the connection.
pub(crate) struct Reads {
    /// The number of reads since the task has last asked.
    pub(crate) count: u32,
    /// The time of the last one, unless reads are so many that the time of the tick will do.
    pub(crate) last: Option<Instant>,
    /// The time of a read is recorded.
    pub(crate) stamps: bool,
}

impl Default for Reads {
    fn default() -> Self {
        Self { count: 0, last: None, stamps: true }
    }
}

impl Reads {
    /// Records a read. Returns whether there are so many that the task is to leave their time to its ticks.
    fn record(&mut self) -> bool {
        self.count = self.count.saturating_add(1);
        if self.stamps {
            self.last = Some(Instant::now());
        }
        self.stamps && self.count > BUSY
    }
}

/// The result of [`Reader::poll`].
#[derive(Default)]
pub(crate) struct Polled {
    /// The task has to go on: with the end of the connection, with the rest of the bytes, with a message that
    /// waits for a receive, or with the time limit of one that holds a shared receive.
    pub(crate) task_goes_on: bool,
    /// The peer's first frame has arrived.
    pub(crate) established: bool,
}

impl Receiver {
    /// Takes the waker of the reader of a stream, if one waits for the next turn.
    pub(crate) fn take_waiting(&mut self) -> Option<Waker> {
        self.waiting.take()
    }

    /// Returns the number of reads by others than the task since the last call, and the time of the last one
    /// if it was recorded. `None` if there were none.
    pub(crate) fn take_reads(&mut self) -> Option<(u32, Option<Instant>)> {
        let count = std::mem::take(&mut self.reads.count);
        (count > 0).then(|| (count, self.reads.last.take()))
    }

    /// Returns whether the next turn may be taken where the socket is reported readable: small frames on an
    /// established connection, for which the task has nothing to supervise.
    pub(crate) fn serves_at_once(&self) -> bool {
        matches!(self.next, Next::Read)
            && self.heard
            && self.is_established
            && self.first.is_none()
            && !self.expects_large()
            && !self.holds_shared()
    }
}

impl Reader {
    /// Shares the receiver of a connection, with the bytes behind the start-up frames. `task_spins` if the task
    /// polls the socket after each read.
    pub(crate) fn new(
        connection: Arc<ConnectionShared>,
        socket: Socket,
        leftover: &[u8],
        task_spins: bool,
    ) -> Arc<Self> {
        // Made in its place: `Arc::new` would copy it.
        let reader = Arc::new_cyclic(|_| Self {
            receiver: Mutex::new(Receiver::new(connection.clone(), leftover)),
            waker: Waker::from(connection.clone()),
            connection,
            wanted: AtomicU32::new(0),
            socket,
            task_spins,
        });
        // Set once, before any other task has the connection.
        let _ = reader.connection.reader.set(Arc::downgrade(&reader));
        reader.connection.sending().socket = Some(SharedSocket(reader.clone()));
        reader
    }

    /// Returns a reference to the socket.
    pub(crate) fn socket(self: &Arc<Self>) -> SharedSocket {
        SharedSocket(self.clone())
    }

    /// Returns the waker for the socket, which takes a turn as soon as the socket is readable.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Reads where the runtime reports that the socket is readable.
    ///
    /// A panic of foreign code must not end the thread that reports the sockets of the runtime: it ends the
    /// connection, as it does in the task. Nor do destructors run there, as they may take long.
    fn readable(reader: Arc<Self>) {
        let mut wakes = WakeList::default();
        let turn = catch_unwind(AssertUnwindSafe(|| reader.read_at_once(&mut wakes)));
        if let Some(mut destructors) = wakes.take_destructors() {
            let mut run = move || destructors.wake_all();
            match Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn(async move { run() })),
                Err(_) => drop(catch_unwind(AssertUnwindSafe(run))),
            }
        }
        let woken = catch_unwind(AssertUnwindSafe(|| wakes.wake_all()));
        if turn.is_err() || woken.is_err() {
            reader.stop(Stop::Panicked);
        }
        if *turn.as_ref().unwrap_or(&true) || woken.is_err() {
            reader.connection.wake_driver();
        }
        // If the connection has just ended, this may be the last reference to the reader.
        let _ = catch_unwind(AssertUnwindSafe(|| drop((reader, turn, woken))));
    }

    /// Takes short turns while the socket is readable, and has the next report come here, too. Returns whether
    /// the task of the connection has to go on: with what exceeds a short turn, with large frames, with a
    /// message that waits for a receive, with the end. A half that another thread has is left to the task,
    /// which waits for its turn.
    fn read_at_once(&self, wakes: &mut WakeList) -> bool {
        let before = AT_ONCE.get();
        let is_of_lane = self.connection.receives.is_of_lane();
        let (short, most) = if is_of_lane { OF_LANES } else { (SHORT_TURN, MOST_AT_ONCE) };
        if self.task_spins || before >= most {
            return true;
        }
        let Some(mut receiver) = self.receiver.try_lock() else { return true };
        // With the lock, so that no turn begins behind it.
        if self.connection.is_ending() {
            return true;
        }
        let mut spent = 0;
        let armed = loop {
            if spent >= short || !receiver.serves_at_once() {
                break false;
            }
            let mut turn = Turn { wakes: &mut *wakes, room: None, limit: short - spent };
            let Some(TurnOutcome { read, cost, .. }) = receiver.advance(&self.socket, &mut turn) else {
                break false;
            };
            spent += cost;
            if read && receiver.reads.record() {
                break false;
            }
            // Without budget the runtime would defer this waker, which may be called by it just now.
            if !receiver.serves_at_once() || !has_budget_remaining() {
                break false;
            }
            if self.socket.stream().poll_read_ready(&mut Context::from_waker(&self.waker)).is_pending() {
                break true;
            }
        };
        AT_ONCE.set(before + spent);
        !armed
    }

    /// Ends the reading, for the task to end the connection, unless it has ended.
    pub(crate) fn stop(&self, stop: Stop) {
        let mut receiver = self.receiver();
        if !matches!(receiver.next, Next::Ended(_)) {
            receiver.next = Next::Ended(Some(Box::new(stop)));
        }
    }

    /// Locks the receiver.
    pub(crate) fn receiver(&self) -> MutexGuard<'_, Receiver> {
        self.receiver.try_lock().unwrap_or_else(|| {
            self.wanted.fetch_add(1, Ordering::Relaxed);
            let receiver = self.receiver.lock();
            self.wanted.fetch_sub(1, Ordering::Relaxed);
            receiver
        })
    }

    /// Reads bytes that have arrived, as many as belong in a turn, for a caller that polls a completion
    /// queue. The socket is asked without the runtime. Does nothing if another thread has the receiver or
    /// waits for it, or as long as the first message of the peer is held back: nothing overtakes that
    /// message.
    ///
    /// The runtime does not see what is read here: the task of the connection may be woken for bytes that
    /// were read already, and never misses any.
    pub(crate) fn poll(&self, wakes: &mut WakeList) -> Polled {
        let mut polled = Polled::default();
        if self.wanted.load(Ordering::Relaxed) > 0 {
            return polled;
        }
        let Some(mut receiver) = self.receiver.try_lock() else { return polled };
        if receiver.first.is_some() {
            return polled;
        }
        let mut spent = 0;
        while receiver.may_advance() && spent < TURN {
            let reads = receiver.needs_socket();
            match self.advance(&mut receiver, &mut Turn { wakes: &mut *wakes, room: None, limit: TURN }, true)
            {
                Some(TurnOutcome { read: false, .. }) if reads => break,
                Some(TurnOutcome { cost, established, .. }) => {
                    _ = receiver.reads.record();
                    polled.established |= established;
                    spent += cost;
                }
                None => {}
            }
            polled.task_goes_on = !receiver.needs_socket() || receiver.holds_shared();
            // Most likely nothing is left, and the next poll sees to it.
            if reads && self.connection.receives.is_of_lane() {
                break;
            }
        }
        polled
    }

    /// Returns whether a thread has the receiver.
    #[cfg(test)]
    pub(crate) fn is_locked(&self) -> bool {
        self.receiver.try_lock().is_none()
    }

    /// Reads for a stream until the room is full or nothing more has arrived, once at least if large frames
    /// are expected. Without a room, for a stream that waits for an event or for small frames, it reads once,
    /// unless large frames are expected. If the stream spins, the socket is asked without the runtime. Wakes
    /// `waker` when there may be more. Returns whether the task has to go on: with the end of the connection,
    /// or with bytes that were read ahead.
    pub(crate) fn read(
        &self,
        mut room: Option<&mut StreamRoom<'_>>,
        waker: &Waker,
        spins: bool,
        wakes: &mut WakeList,
    ) -> bool {
        let mut receiver = self.receiver();
        let reads_large = room.is_some();
        let mut spent = 0;
        while receiver.serves_streams() && receiver.expects_large() == reads_large && spent < TURN {
            let reads = receiver.needs_socket();
            let mut turn = Turn { wakes: &mut *wakes, room: room.as_deref_mut(), limit: TURN };
            match self.advance(&mut receiver, &mut turn, spins) {
                Some(TurnOutcome { read: false, .. }) if reads => break,
                Some(TurnOutcome { cost, .. }) => {
                    _ = receiver.reads.record();
                    spent += cost;
                }
                None => {}
            }
            if room.as_ref().is_none_or(|room| room.is_full()) {
                break;
            }
        }
        let mut replaced = None;
        if receiver.serves_streams()
            && receiver.expects_large()
            && !receiver.waiting.as_ref().is_some_and(|known| known.will_wake(waker))
        {
            replaced = receiver.waiting.replace(waker.clone());
        }
        let needs_task = receiver.needs_task();
        drop(receiver);
        drop(replaced);
        needs_task
    }

    /// Advances the receiver. If the stream spins, the socket is read without asking the runtime whether it
    /// is readable.
    fn advance(&self, receiver: &mut Receiver, turn: &mut Turn<'_, '_>, spins: bool) -> Option<TurnOutcome> {
        if !spins {
            return receiver.advance(&self.socket, turn);
        }
        let before = self.socket.is_eager();
        self.socket.set_eager(true);
        let outcome = receiver.advance(&self.socket, turn);
        self.socket.set_eager(before);
        outcome
    }
}

/// The cost limit of a turn of the reader, approximately: a unit is a small frame. The task of a connection
/// does no more at a time, so that no peer keeps other tasks waiting by what it sends. Tokio gives a task as
/// much.
pub(crate) const TURN: u32 = 128;
/// The number of bytes that cost a unit.
const BYTES_PER_UNIT: usize = 8 * 1024;
/// The number of bytes in a turn that only moves bytes.
pub(crate) const TURN_BYTES: usize = TURN as usize * BYTES_PER_UNIT;
/// The cost of a request of the peer, which is answered at once, mostly with a system call.
pub(crate) const REQUEST_COST: u32 = 8;

/// Returns the cost of bytes that were read or written.
pub(crate) fn cost_of(bytes: usize) -> u32 {
    u32::try_from(bytes / BYTES_PER_UNIT).unwrap_or(TURN)
}

/// The reason why the reader stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The peer ended the stream between two frames.
    Closed,
    /// The stream ended or failed within a frame, or the socket did.
    Broken(io::Error),
    /// The peer sent a Terminate.
    Terminated(Box<Terminate>),
    /// The peer broke a rule: the Terminate is to be sent.
    Violation(Box<Violation>),
    /// A waker of the program, the destructor of a buffer or a subscriber has panicked where the socket was
    /// read or written.
    Panicked,
}

/// The error of a writer whose subscriber has panicked.
#[derive(Debug, thiserror::Error)]
#[error("a subscriber panicked")]
pub(crate) struct Panicked;

/// A mistake of the peer, and the status of a local request that fails by it.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) terminate: Terminate,
    /// The status of the oldest request of the send queue: `REMOTE_ERROR` if the mistake is an invalid
    /// response to it, and `CANCELED` otherwise.
    pub(crate) blame: Status,
}

/// The parameters of a turn of the reader.
pub(crate) struct Turn<'a, 'b> {
    pub(crate) wakes: &'a mut WakeList,
    /// The room of the reader of a stream, if the turn is that reader's.
    pub(crate) room: Option<&'a mut StreamRoom<'b>>,
    /// The cost limit.
    pub(crate) limit: u32,
}

/// The result of a turn of the reader.
#[derive(Default)]
pub(crate) struct TurnOutcome {
    /// Bytes were read.
    pub(crate) read: bool,
    /// All bytes that were read have been processed: only the socket can bring more.
    pub(crate) needs_socket: bool,
    /// The peer's first frame has arrived, which makes the connection ready (RFC 6581 section 4.3).
    pub(crate) established: bool,
    /// The cost of the turn.
    pub(crate) cost: u32,
}

impl Stop {
    /// Returns the violation of a peer whose response to the oldest request is invalid.
    pub(crate) fn response(terminate: Terminate) -> Self {
        Self::Violation(Box::new(Violation { terminate, blame: Status::REMOTE_ERROR }))
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        let panicked = error.get_ref().is_some_and(|source| source.is::<Panicked>());
        if panicked { Self::Panicked } else { Self::Broken(error) }
    }
}

impl From<Terminate> for Stop {
    fn from(terminate: Terminate) -> Self {
        Self::Violation(Box::new(Violation { terminate, blame: Status::CANCELED }))
    }
}

/// Returns the violation of a peer whose header is invalid.
pub(crate) fn reject(error: HeaderError, bytes: &[u8]) -> Stop {
    Terminate::for_header(error).unwrap_or(Terminate::FRAMING).with_header(bytes).into()
}

/// Returns the status of the oldest outstanding request, which is the one that a Terminate concerns.
pub(crate) fn blame(terminate: &Terminate) -> Status {
    match (terminate.layer, terminate.etype, terminate.code) {
        // RDMAP remote protection, DDP tagged buffer errors except the version: a key, a range or a right.
        (0, 1, _) | (1, 1, 0..=3) => Status::ACCESS_VIOLATION,
        _ => Status::REMOTE_ERROR,
    }
}
