//! Tasks that wait for a value.
//!
//! Neither type has a lock of its own: each stands behind the lock of what its tasks wait for. A waker that is replaced, removed
//! or notified goes to the caller, who drops or wakes it after that lock is released.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

/// One task that waits for a value.
#[derive(Debug)]
pub(crate) struct Waiter<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

impl<T> Default for Waiter<T> {
    fn default() -> Self {
        Self { value: None, waker: None }
    }
}

impl<T: Clone> Waiter<T> {
    /// Sets the value, and returns the waker of the task.
    #[must_use = "the task waits for it"]
    pub(crate) fn notify(&mut self, value: T) -> Option<Waker> {
        self.value = Some(value);
        self.waker.take()
    }

    /// Returns the value, which stays, or keeps the waker of the task and returns the one before.
    #[inline]
    #[must_use = "the waker is to be dropped without the lock"]
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> (Poll<T>, Option<Waker>) {
        match &self.value {
            Some(value) => (Poll::Ready(value.clone()), None),
            None => (Poll::Pending, self.waker.replace(cx.waker().clone())),
        }
    }

    /// Returns the value, if there is one.
    pub(crate) fn value(&self) -> Option<T> {
        self.value.clone()
    }

    /// Takes the waker of the task back, which is not waiting any longer.
    #[cfg(feature = "soft")]
    #[must_use = "the waker is to be dropped without the lock"]
    pub(crate) fn unwatch(&mut self) -> Option<Waker> {
        self.waker.take()
    }

    /// Takes the value out.
    pub(crate) fn take(&mut self) -> Option<T> {
        self.value.take()
    }
}

/// Names a task in its [`WaitSet`]: the tasks are numbered in the order in which they came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitKey(u64);

/// Tasks that wait for a value, each with what it is interested in, in the order in which they came.
#[derive(Debug)]
pub(crate) struct WaitSet<T, I = ()> {
    tasks: VecDeque<(u64, I, Waiter<T>)>,
    next: u64,
}

impl<T, I> Default for WaitSet<T, I> {
    fn default() -> Self {
        Self { tasks: VecDeque::new(), next: 0 }
    }
}

impl<T: Copy, I> WaitSet<T, I> {
    /// Adds a task, until [`remove`](Self::remove).
    pub(crate) fn register(&mut self, interest: I) -> WaitKey {
        let key = self.next;
        self.next += 1;
        self.tasks.push_back((key, interest, Waiter::default()));
        WaitKey(key)
    }

    /// Returns the place of a task, unless it was removed.
    fn place(&self, key: WaitKey) -> Option<usize> {
        // Mostly one task waits.
        let is_first = self.tasks.front().is_some_and(|(first, ..)| *first == key.0);
        if is_first { Some(0) } else { self.tasks.binary_search_by_key(&key.0, |(key, ..)| *key).ok() }
    }

    /// Takes a task off, with its waker and the value that it was notified of.
    #[must_use = "the waker is to be dropped without the lock"]
    pub(crate) fn remove(&mut self, key: WaitKey) -> Option<Waiter<T>> {
        let place = self.place(key)?;
        self.tasks.remove(place).map(|(.., waiter)| waiter)
    }

    /// Polls for this task, like [`Waiter::poll`]. A task that was removed waits for ever.
    #[must_use = "the waker is to be dropped without the lock"]
    pub(crate) fn poll(&mut self, key: WaitKey, cx: &mut Context<'_>) -> (Poll<T>, Option<Waker>) {
        let place = self.place(key);
        place.map_or((Poll::Pending, None), |place| self.tasks[place].2.poll(cx))
    }

    /// Returns whether this task has been notified.
    pub(crate) fn is_notified(&self, key: WaitKey) -> bool {
        self.place(key).is_some_and(|place| self.tasks[place].2.value.is_some())
    }

    /// Returns the interests of the tasks that have not been notified.
    pub(crate) fn interests(&self) -> impl Iterator<Item = &I> {
        self.tasks.iter().filter(|(.., waiter)| waiter.value.is_none()).map(|(_, interest, _)| interest)
    }

    /// Notifies every task, in the order in which they came. The first value of a task stands.
    pub(crate) fn notify_all(&mut self, value: T, wakes: &mut impl Extend<Waker>) {
        for (.., waiter) in &mut self.tasks {
            waiter.value.get_or_insert(value);
            wakes.extend(waiter.waker.take());
        }
    }
}

#[cfg(all(test, not(tokio_rdma_model)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

    use super::*;

    type Shared = Arc<Mutex<WaitSet<u32>>>;

    /// Takes the lock when it is dropped, and counts how often that was possible.
    struct Reentrant {
        set: Shared,
        dropped: Arc<AtomicUsize>,
    }

    impl Wake for Reentrant {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Reentrant {
        fn drop(&mut self) {
            let held = self.set.try_lock().is_err();
            self.dropped.fetch_add(usize::from(!held), Ordering::SeqCst);
        }
    }

    fn reentrant(set: &Shared, dropped: &Arc<AtomicUsize>) -> Waker {
        Arc::new(Reentrant { set: set.clone(), dropped: dropped.clone() }).into()
    }

    fn poll(set: &Shared, key: WaitKey, waker: Waker) -> Poll<u32> {
        let mut cx = Context::from_waker(&waker);
        let (polled, _replaced) = set.lock().expect("no panic").poll(key, &mut cx);
        drop(waker);
        polled
    }

    #[test]
    fn replaced_or_removed_wakers_drop_outside_lock() {
        let (set, dropped) = (Shared::default(), Arc::<AtomicUsize>::default());
        let key = set.lock().expect("no panic").register(());
        assert_eq!(poll(&set, key, reentrant(&set, &dropped)), Poll::Pending);
        assert_eq!(dropped.load(Ordering::SeqCst), 0, "the set keeps it");
        assert_eq!(poll(&set, key, reentrant(&set, &dropped)), Poll::Pending);
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        let waiter = set.lock().expect("no panic").remove(key);
        drop(waiter);
        assert_eq!(dropped.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn tasks_wake_once_and_keep_first_value() {
        let mut set = WaitSet::<u32>::default();
        let keys = [set.register(()), set.register(())];
        let mut cx = Context::from_waker(Waker::noop());
        assert!(set.poll(keys[0], &mut cx).0.is_pending());
        let mut wakes = Vec::new();
        set.notify_all(1, &mut wakes);
        assert_eq!(wakes.len(), 1, "one has not polled");
        set.notify_all(2, &mut wakes);
        assert_eq!(wakes.len(), 1);
        for key in keys {
            assert_eq!(set.poll(key, &mut cx).0, Poll::Ready(1));
            assert_eq!(set.poll(key, &mut cx).0, Poll::Ready(1), "it stays");
        }
    }

    #[test]
    fn remove_returns_an_uncollected_value() {
        let mut set = WaitSet::<u32>::default();
        let (notified, late) = (set.register(()), set.register(()));
        set.notify_all(1, &mut Vec::new());
        assert_eq!(set.remove(notified).and_then(|waiter| waiter.value()), Some(1));
        assert!(set.remove(notified).is_none(), "it is gone");
        let (mut cx, key) = (Context::from_waker(Waker::noop()), set.register(()));
        assert!(set.poll(key, &mut cx).0.is_pending(), "the value was for those before");
        assert_eq!(set.poll(late, &mut cx).0, Poll::Ready(1));
    }

    #[test]
    fn removed_waiter_is_not_woken() {
        let mut set = WaitSet::<u32>::default();
        let key = set.register(());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(set.poll(key, &mut cx).0.is_pending());
        assert!(set.remove(key).is_some_and(|waiter| waiter.value().is_none()));
        let mut wakes = Vec::new();
        set.notify_all(1, &mut wakes);
        assert!(wakes.is_empty());
    }

    #[test]
    fn tasks_are_woken_in_registration_order() {
        let mut set = WaitSet::<u32>::default();
        let mut keys: Vec<_> = (0..5).map(|_| set.register(())).collect();
        for gone in [3, 0] {
            drop(set.remove(keys.remove(gone)));
        }
        keys.extend([set.register(()), set.register(())]);
        let woken = Arc::<Mutex<Vec<usize>>>::default();
        struct Note(usize, Arc<Mutex<Vec<usize>>>);
        impl Wake for Note {
            fn wake(self: Arc<Self>) {
                self.1.lock().expect("no panic").push(self.0);
            }
        }
        // Polled the other way round.
        for (number, key) in keys.iter().enumerate().rev() {
            let waker = Waker::from(Arc::new(Note(number, woken.clone())));
            assert!(set.poll(*key, &mut Context::from_waker(&waker)).0.is_pending());
        }
        let mut wakes = Vec::new();
        set.notify_all(1, &mut wakes);
        wakes.into_iter().for_each(Waker::wake);
        assert_eq!(*woken.lock().expect("no panic"), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn interests_are_of_those_that_still_wait() {
        let mut set = WaitSet::<u32, char>::default();
        set.register('a');
        set.notify_all(1, &mut Vec::new());
        set.register('b');
        set.register('c');
        assert_eq!(set.interests().copied().collect::<String>(), "bc");
    }

    #[test]
    fn waiter_is_notified_again_after_take() {
        let mut waiter = Waiter::default();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiter.notify(1).is_none(), "nobody polled");
        assert_eq!(waiter.poll(&mut cx).0, Poll::Ready(1));
        assert_eq!((waiter.take(), waiter.take()), (Some(1), None));
        assert!(waiter.poll(&mut cx).0.is_pending());
        assert!(waiter.notify(2).is_some());
        assert_eq!(waiter.value(), Some(2));
    }
}
