//! The two directions of a stream, and the tasks that wait in each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use futures::task::AtomicWaker;
use tokio::sync::futures::Notified;

#[cfg(feature = "soft")]
use crate::inflight::WakeList;
use crate::inspect::{FutureWaits, Woken};

/// One of the two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::io) enum Side {
    Reader,
    Writer,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Reader, Self::Writer];

    pub(super) const fn bit(self) -> u8 {
        1 << self as u8
    }
}

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
    pub(super) tasks: [Tasks; 2],
}

/// The tasks that wait in one direction: the one that polls, and those that wait by a shared reference.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    pub(super) poller: AtomicWaker,
    /// The poller was woken since it was last set, for snapshots.
    pub(super) woken: Woken,
    /// The number of other tasks that wait: nearly always none.
    others: AtomicUsize,
    /// Since when these wait, for snapshots.
    pub(super) waits: FutureWaits,
    notify: tokio::sync::Notify,
}

impl Tasks {
    fn wake(&self) {
        self.woken.set(true);
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
    #[inline]
    pub(super) fn register(&self, side: Side, waker: &Waker) {
        let tasks = self.tasks(side);
        // Before it may be woken again.
        tasks.woken.set(false);
        tasks.poller.register(waker);
    }

    /// Counts a task that waits in this direction without [`register`](Self::register), until the result is dropped.
    pub(super) fn waits(&self, side: Side) -> Waits<'_> {
        let tasks = self.tasks(side);
        tasks.others.fetch_add(1, Ordering::SeqCst);
        Waits(tasks)
    }

    #[inline]
    pub(super) fn tasks(&self, side: Side) -> &Tasks {
        &self.tasks[side as usize]
    }

    /// Sets whether completions of this end's own requests wake the reader.
    #[inline]
    pub(super) fn set_eager(&self, eager: bool) {
        self.eager.store(eager, Ordering::Relaxed);
    }

    /// Defers all wakes until [`release`](Self::release), because the state has been locked.
    #[inline]
    pub(super) fn defer(&self) {
        self.deferred.store(true, Ordering::SeqCst);
    }

    /// Ends the deferral, because the state is about to be unlocked. Call [`wake`](Self::wake) once it is.
    #[inline]
    pub(super) fn release(&self) {
        self.deferred.store(false, Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn wake_sides(&self, sides: u8) {
        // Either this sees that the state is not locked, or the holder of the lock sees this.
        self.pending.fetch_or(sides, Ordering::SeqCst);
        if !self.deferred.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Collects the wakers of both sides, for a provider that must not run them now. While the state is locked, perhaps
    /// by this thread, they stay, and the result makes the holder of the lock wake them.
    #[cfg(feature = "soft")]
    pub(super) fn collect(self: &Arc<Self>, wakes: &mut WakeList) {
        let is_locked = self.deferred.load(Ordering::SeqCst);
        if !is_locked {
            self.tasks.iter().for_each(|tasks| tasks.woken.set(true));
            wakes.extend(self.tasks.iter().filter_map(|tasks| tasks.poller.take()));
        }
        if is_locked || self.tasks.iter().any(|tasks| tasks.others.load(Ordering::SeqCst) > 0) {
            wakes.extend([self.waker(Cause::Receive)]);
        }
    }

    /// Wakes the tasks of the sides that are pending.
    #[inline]
    pub(super) fn wake(&self) {
        if self.pending.load(Ordering::SeqCst) == 0 {
            return;
        }
        let pending = self.pending.swap(0, Ordering::SeqCst);
        for side in Side::BOTH {
            if pending & side.bit() != 0 {
                self.tasks(side).wake();
            }
        }
    }

    /// Returns the waker of the receive queue or of the provider. That of the send queue is made from this itself.
    pub(super) fn waker(self: &Arc<Self>, of: Cause) -> Waker {
        Arc::new(QueueWaker { wakers: self.clone(), of }).into()
    }
}

/// The waker of the send queue: a completion of a request mostly concerns the writer.
impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let is_eager = self.eager.load(Ordering::Relaxed);
        self.wake_sides(if is_eager { Side::Reader.bit() | Side::Writer.bit() } else { Side::Writer.bit() });
    }
}

/// The reason for a wake.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// A message of the peer, which may concern both directions.
    Receive,
    /// Data that the provider reads by itself for the reader.
    Reading,
}

/// The waker of the receive queue, or of the provider.
struct QueueWaker {
    wakers: Arc<Wakers>,
    of: Cause,
}

impl Wake for QueueWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wakers.wake_sides(match self.of {
            Cause::Reading => Side::Reader.bit(),
            Cause::Receive => Side::Reader.bit() | Side::Writer.bit(),
        });
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;

    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    // A waker of the program may use the stream, which may be locked by the thread that collects it.
    #[test]
    fn no_waker_runs_under_the_lock() {
        for is_locked in [false, true] {
            let (wakers, flag) = (Arc::<Wakers>::default(), Arc::new(Flag(AtomicBool::new(false))));
            wakers.register(Side::Reader, &flag.clone().into());
            wakers.deferred.store(is_locked, Ordering::SeqCst);
            let mut wakes = WakeList::default();
            wakers.collect(&mut wakes);
            wakes.wake_all();
            assert_eq!(flag.0.load(Ordering::SeqCst), !is_locked);
            wakers.release();
            wakers.wake();
            assert!(flag.0.load(Ordering::SeqCst), "the holder of the lock wakes it");
        }
    }
}
