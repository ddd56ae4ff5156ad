//! Foreign code that runs after the locks are released: wakers, the drop of buffers, and calls to other objects.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::thread;

use smallvec::SmallVec;

use super::Completed;

enum After {
    Wake(Waker),
    Free(Completed),
    Run(Box<dyn FnOnce() + Send>),
}

impl After {
    fn run(self) {
        match self {
            Self::Wake(waker) => waker.wake(),
            Self::Free(completed) => drop(completed),
            Self::Run(call) => call(),
        }
    }
}

/// Collects foreign code under a lock: call [`wake_all`](Self::wake_all) without one.
///
/// Every call that posts, reads or completes makes a list, and almost every list has at most one waker: so it is small, and costs
/// two comparisons to drop.
#[derive(Default)]
#[must_use = "futures wait for it"]
pub(crate) struct WakeList {
    /// The first entry, if that is a waker.
    first: Option<Waker>,
    rest: Option<Box<SmallVec<[After; 4]>>>,
}

impl WakeList {
    /// Frees the memory of a request whose future was dropped.
    pub(super) fn free(&mut self, completed: Completed) {
        // Without memory there is nothing foreign to drop.
        if !completed.payload.is_empty() {
            self.rest.get_or_insert_default().push(After::Free(completed));
        }
    }

    /// Calls `call`.
    pub(crate) fn run(&mut self, call: impl FnOnce() + Send + 'static) {
        self.rest.get_or_insert_default().push(After::Run(Box::new(call)));
    }

    /// Returns whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.is_none()
    }

    /// Takes out what may take long: all but the wakers. `None` if there is nothing else.
    #[cfg(feature = "soft")]
    pub(crate) fn take_destructors(&mut self) -> Option<Self> {
        let is_waker = |after: &After| matches!(after, After::Wake(_));
        if self.rest.as_ref()?.iter().all(is_waker) {
            return None;
        }
        let (wakers, others): (SmallVec<_>, SmallVec<_>) = self.rest.take()?.into_iter().partition(is_waker);
        self.rest = (!wakers.is_empty()).then(|| Box::new(wakers));
        Some(Self { first: None, rest: Some(Box::new(others)) })
    }

    /// Wakes, frees and calls, in the order of collection, and leaves an empty list.
    #[inline]
    pub(crate) fn wake_all(&mut self) {
        if !self.is_empty() {
            self.run_all();
        }
    }

    /// Wakes, frees and calls like [`wake_all`](Self::wake_all), for a caller that has to go on behind a panic.
    ///
    /// # Errors
    /// The first panic.
    #[inline]
    pub(crate) fn try_wake_all(&mut self) -> thread::Result<()> {
        if self.is_empty() { Ok(()) } else { catch_unwind(AssertUnwindSafe(|| self.run_all())) }
    }

    /// Runs all that was collected.
    #[inline(never)]
    fn run_all(&mut self) {
        let first = self.first.take();
        let Some(rest) = self.rest.take() else { return first.into_iter().for_each(Waker::wake) };
        let mut rest = Rest(rest.into_iter());
        first.into_iter().for_each(Waker::wake);
        rest.0.by_ref().for_each(After::run);
    }

    /// Returns the number of requests that it frees.
    #[cfg(test)]
    pub(super) fn frees(&self) -> usize {
        self.rest.iter().flat_map(|rest| rest.iter()).filter(|after| matches!(after, After::Free(_))).count()
    }
}

/// The entries of a list that have not run. If one panics, those behind it run all the same: their tasks are not
/// woken otherwise.
struct Rest(smallvec::IntoIter<[After; 4]>);

impl Drop for Rest {
    fn drop(&mut self) {
        for after in self.0.by_ref() {
            // A second panic while the first one unwinds would end the process.
            let _ = catch_unwind(AssertUnwindSafe(|| after.run()));
        }
    }
}

impl Extend<Waker> for WakeList {
    #[inline]
    fn extend<T: IntoIterator<Item = Waker>>(&mut self, wakers: T) {
        for waker in wakers {
            if self.is_empty() {
                self.first = Some(waker);
            } else {
                self.rest.get_or_insert_default().push(After::Wake(waker));
            }
        }
    }
}

#[cfg(all(test, not(tokio_rdma_model)))]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

    use super::*;

    struct Say(u32, Mutex<Sender<u32>>);

    impl Wake for Say {
        fn wake(self: Arc<Self>) {
            self.1.lock().expect("no panic").send(self.0).expect("a listener");
        }
    }

    // Wakes happen after the lock was released, in the order of their events (CAN-07).
    #[test]
    fn runs_in_the_order_of_collection() {
        let (sender, said) = channel();
        let waker = |number| Waker::from(Arc::new(Say(number, Mutex::new(sender.clone()))));
        let mut list = WakeList::default();
        for round in [0, 10] {
            list.extend(Some(waker(round + 1)));
            let last = sender.clone();
            list.run(move || last.send(round + 2).expect("a listener"));
            list.extend([waker(round + 3), waker(round + 4)]);
            assert!(said.try_recv().is_err(), "nothing runs before the lock is released");
            list.wake_all();
            assert!(list.is_empty());
            assert_eq!(said.try_iter().collect::<Vec<_>>(), [1, 2, 3, 4].map(|place| round + place));
        }
    }

    // The tasks behind it are not woken otherwise.
    #[test]
    fn a_panic_skips_no_other_entry() {
        let (sender, said) = channel();
        let waker = |number| Waker::from(Arc::new(Say(number, Mutex::new(sender.clone()))));
        for place in 0..3 {
            let mut list = WakeList::default();
            for number in 0..3 {
                if number == place {
                    list.run(|| std::panic::resume_unwind(Box::new("foreign code")));
                } else {
                    list.extend([waker(number)]);
                }
            }
            catch_unwind(AssertUnwindSafe(|| list.wake_all())).expect_err("it goes on to the caller");
            assert_eq!(said.try_iter().count(), 2, "panic at {place}");
        }
    }

    // Where sockets are reported only wakers run.
    #[cfg(feature = "soft")]
    #[test]
    fn destructors_leave_the_wakers_in_order() {
        let (sender, said) = channel();
        let waker = |number| Waker::from(Arc::new(Say(number, Mutex::new(sender.clone()))));
        for first in [true, false] {
            let mut list = WakeList::default();
            list.extend(first.then(|| waker(0)));
            assert!(list.take_destructors().is_none());
            for number in [1, 3] {
                let call = sender.clone();
                list.run(move || call.send(number + 1).expect("a listener"));
                list.extend([waker(number)]);
            }
            let mut destructors = list.take_destructors().expect("calls");
            assert!(list.take_destructors().is_none());
            list.wake_all();
            assert!(said.try_iter().skip(usize::from(first)).eq([1, 3]), "the wakers");
            destructors.wake_all();
            assert!(said.try_iter().eq([2, 4]), "the calls");
        }
    }
}
