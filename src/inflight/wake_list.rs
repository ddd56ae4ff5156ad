//! Foreign code that runs after the locks are released: wakers, the drop of buffers, and calls to other objects.

use std::task::Waker;

use smallvec::SmallVec;

use super::Completed;

enum After {
    Wake(Waker),
    Free(Completed),
    Run(Box<dyn FnOnce() + Send>),
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
        self.rest.get_or_insert_default().push(After::Free(completed));
    }

    /// Calls `call`.
    pub(crate) fn run(&mut self, call: impl FnOnce() + Send + 'static) {
        self.rest.get_or_insert_default().push(After::Run(Box::new(call)));
    }

    /// Returns whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.is_none()
    }

    /// Wakes, frees and calls, in the order of collection, and leaves an empty list.
    #[inline]
    pub(crate) fn wake_all(&mut self) {
        if !self.is_empty() {
            self.run_all();
        }
    }

    /// Runs all that was collected.
    #[inline(never)]
    fn run_all(&mut self) {
        self.first.take().into_iter().for_each(Waker::wake);
        let Some(mut rest) = self.rest.take() else { return };
        for after in rest.drain(..) {
            match after {
                After::Wake(waker) => waker.wake(),
                After::Free(completed) => drop(completed),
                After::Run(call) => call(),
            }
        }
    }

    /// Returns the number of requests that it frees.
    #[cfg(test)]
    pub(super) fn frees(&self) -> usize {
        self.rest.iter().flat_map(|rest| rest.iter()).filter(|after| matches!(after, After::Free(_))).count()
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
}
