//! The wakers of the reader and the writer of a stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use futures::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// One of the two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Reader = 1,
    Writer = 2,
}

const BOTH: u8 = Side::Reader as u8 | Side::Writer as u8;

/// The wakers of the two directions. Completion queues wake them, perhaps while the state of the stream is locked, even by
/// the thread that has locked it, and a waker is foreign code. So the holder of the lock defers them, and wakes them when
/// it has unlocked.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    deferred: AtomicBool,
    /// The sides whose tasks are to be woken, as bits.
    pending: AtomicU8,
    /// The reader waits for completions of its own requests, too.
    eager: AtomicBool,
    reader: Tasks,
    writer: Tasks,
}

/// The tasks that wait in one direction: the one that polls, and those that wait by a shared reference.
#[derive(Debug, Default)]
struct Tasks {
    poller: AtomicWaker,
    /// The number of other tasks that wait: nearly always none.
    others: AtomicUsize,
    notify: Notify,
}

impl Tasks {
    fn wake(&self) {
        self.poller.wake();
        if self.others.load(Ordering::SeqCst) > 0 {
            self.notify.notify_waiters();
        }
    }
}

/// A task that waits by a shared reference.
pub(super) struct Waits<'a>(&'a Tasks);

impl Waits<'_> {
    /// Resolves when the task is woken after this call.
    pub(super) fn next(&self) -> Notified<'_> {
        self.0.notify.notified()
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.others.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Wakers {
    /// Sets the waker of the task that waits in this direction. It must not be called while the state is
    /// locked.
    pub(super) fn register(&self, side: Side, waker: &Waker) {
        self.tasks(side).poller.register(waker);
    }

    /// Counts a task that waits in this direction without [`register`](Self::register), until the result is dropped.
    pub(super) fn waits(&self, side: Side) -> Waits<'_> {
        let tasks = self.tasks(side);
        tasks.others.fetch_add(1, Ordering::SeqCst);
        Waits(tasks)
    }

    fn tasks(&self, side: Side) -> &Tasks {
        match side {
            Side::Reader => &self.reader,
            Side::Writer => &self.writer,
        }
    }

    /// Sets whether completions of this end's own requests wake the reader.
    pub(super) fn set_eager(&self, eager: bool) {
        self.eager.store(eager, Ordering::Relaxed);
    }

    /// Defers all wakes until [`release`](Self::release), because the state has been locked.
    pub(super) fn defer(&self) {
        self.deferred.store(true, Ordering::SeqCst);
    }

    /// Ends the deferral, because the state is about to be unlocked. Call [`wake`](Self::wake) once it is.
    pub(super) fn release(&self) {
        self.deferred.store(false, Ordering::SeqCst);
    }

    fn wake_sides(&self, sides: u8) {
        // Either this sees that the state is not locked, or the holder of the lock sees this.
        self.pending.fetch_or(sides, Ordering::SeqCst);
        if !self.deferred.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Wakes the tasks of the sides that are pending.
    pub(super) fn wake(&self) {
        if self.pending.load(Ordering::SeqCst) == 0 {
            return;
        }
        let pending = self.pending.swap(0, Ordering::SeqCst);
        if pending & Side::Reader as u8 != 0 {
            self.reader.wake();
        }
        if pending & Side::Writer as u8 != 0 {
            self.writer.wake();
        }
    }

    /// Returns the waker for the queue of receives: a message may concern both directions.
    pub(super) fn for_receives(self: &Arc<Self>) -> Waker {
        Arc::new(QueueWaker { wakers: self.clone(), of: Cause::Receive }).into()
    }

    /// Returns the waker for the queue of requests, whose completions mostly concern the writer.
    pub(super) fn for_completions(self: &Arc<Self>) -> Waker {
        Arc::new(QueueWaker { wakers: self.clone(), of: Cause::Completion }).into()
    }

    /// Returns the waker for data that the provider reads by itself for the reader.
    pub(super) fn for_reading(self: &Arc<Self>) -> Waker {
        Arc::new(QueueWaker { wakers: self.clone(), of: Cause::Reading }).into()
    }
}

/// The reason for a wake.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Receive,
    Completion,
    Reading,
}

/// The waker of a completion queue, or of the provider.
struct QueueWaker {
    wakers: Arc<Wakers>,
    of: Cause,
}

impl Wake for QueueWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let is_eager = self.wakers.eager.load(Ordering::Relaxed);
        self.wakers.wake_sides(match self.of {
            Cause::Reading => Side::Reader as u8,
            Cause::Completion if !is_eager => Side::Writer as u8,
            Cause::Completion | Cause::Receive => BOTH,
        });
    }
}
