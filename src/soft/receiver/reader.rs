//! Shares the receiving half between the task of a connection, the reader of a byte stream, and polls of a
//! completion queue.
//!
//! The task waits for the socket. When large frames come while the reader of a stream waits, the reader has a
//! turn before the task: it places payload in its own memory, and the ring of the stream is not touched. For
//! small frames that would not pay. The task does not wait for a reader whose future was dropped: it has the
//! next turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;

use super::Receiver;
use super::turn::{TURN, Turn, TurnOutcome};
use crate::inflight::WakeList;
use crate::provider::stream::StreamRoom;
use crate::soft::connection::Socket;
use crate::sync::{Mutex, MutexGuard};

/// The receiving half, behind a lock.
pub(crate) struct Reader {
    receiver: Mutex<Receiver>,
    /// The number of threads that wait for the lock. [`poll`](Self::poll), which may be called again and
    /// again, leaves the lock to them.
    wanted: AtomicU32,
    socket: Arc<Socket>,
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

    /// Returns whether another caller than the task has read bytes since the last call.
    pub(crate) fn take_has_read(&mut self) -> bool {
        std::mem::take(&mut self.has_read)
    }
}

impl Reader {
    pub(crate) fn new(receiver: Receiver, socket: Arc<Socket>) -> Arc<Self> {
        Arc::new(Self { receiver: Mutex::new(receiver), wanted: AtomicU32::new(0), socket })
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
            match self.advance(&mut receiver, &mut Turn { wakes: &mut *wakes, room: None }, true) {
                Some(TurnOutcome { read: false, .. }) if reads => break,
                Some(TurnOutcome { cost, established, .. }) => {
                    receiver.has_read = true;
                    polled.established |= established;
                    spent += cost;
                }
                None => {}
            }
            polled.task_goes_on = !receiver.needs_socket() || receiver.holds_shared();
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
            let mut turn = Turn { wakes: &mut *wakes, room: room.as_deref_mut() };
            match self.advance(&mut receiver, &mut turn, spins) {
                Some(TurnOutcome { read: false, .. }) if reads => break,
                Some(TurnOutcome { cost, .. }) => {
                    receiver.has_read = true;
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
