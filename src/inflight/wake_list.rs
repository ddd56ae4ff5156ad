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
#[derive(Default)]
#[must_use = "futures wait for it"]
pub(crate) struct WakeList(SmallVec<[After; 4]>);

impl WakeList {
    /// Frees the memory of a request whose future was dropped.
    pub(super) fn free(&mut self, completed: Completed) {
        self.0.push(After::Free(completed));
    }

    /// Calls `call`.
    pub(crate) fn run(&mut self, call: impl FnOnce() + Send + 'static) {
        self.0.push(After::Run(Box::new(call)));
    }

    /// Returns whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends what `other` has collected.
    #[cfg(any(feature = "soft", test))]
    #[inline]
    pub(crate) fn append(&mut self, other: Self) {
        // Most lists are empty, and each that is moved is 264 bytes that are copied.
        if !other.0.is_empty() {
            self.0.extend(other.0);
        }
    }

    /// Wakes, frees and calls, in the order of collection, and leaves an empty list. Not by value: a list that is moved is 264 bytes
    /// that are copied.
    #[inline]
    pub(crate) fn wake_all(&mut self) {
        if !self.0.is_empty() {
            self.run_all();
        }
    }

    /// Runs all that was collected.
    #[inline(never)]
    fn run_all(&mut self) {
        for after in self.0.drain(..) {
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
        self.0.iter().filter(|after| matches!(after, After::Free(_))).count()
    }
}

impl Extend<Waker> for WakeList {
    #[inline]
    fn extend<T: IntoIterator<Item = Waker>>(&mut self, wakers: T) {
        // Mostly one or none, for which `SmallVec::extend` is long.
        for waker in wakers {
            self.0.push(After::Wake(waker));
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
        let (mut first, mut second) = (WakeList::default(), WakeList::default());
        second.extend([waker(4), waker(5)]);
        first.extend(Some(waker(1)));
        let last = sender.clone();
        first.run(move || last.send(2).expect("a listener"));
        first.extend(Some(waker(3)));
        first.append(second);
        assert!(said.try_recv().is_err(), "nothing runs before the lock is released");
        first.wake_all();
        assert_eq!(said.try_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    }
}
