//! Locks that stay usable after a thread has panicked while it held one: a panic ends the task that it happens in, and not
//! every other that shares an adapter or a queue with it.
//!
//! And lists of tasks that wait for what such a lock guards, [`WaitSet`], those that spin instead, [`Spin`], or do so as long as it
//! pays, [`AdaptiveSpin`], the deadlines of a task, [`deadline`], its budget, [`poll_budgeted`], and how often it logs, [`Throttle`]; the
//! runtime of a caller, [`current_runtime`], and futures that are polled within another, [`WithRuntime`].
//!
//! The model of the lower layers has loom's locks inside: `cargo xtask test --filter model`.

mod time;
mod wait_set;

use std::cell::Cell;
use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::catch_unwind;
use std::pin::Pin;
#[cfg(not(all(test, tokio_rdma_model)))]
use std::sync as inner;
use std::sync::PoisonError;
#[cfg(any(feature = "verbs", feature = "soft"))]
use std::sync::TryLockError;
use std::task::{Context, Poll};
use std::time::Duration;

#[cfg(all(test, tokio_rdma_model))]
use loom::sync as inner;
use pin_project::pin_project;
use tokio::net::UnixDatagram;
use tokio::runtime::{Handle, Id};

use crate::error::OpenError;

pub(crate) use inner::{MutexGuard, RwLockReadGuard, RwLockWriteGuard, atomic};
pub(crate) use time::{AdaptiveSpin, LONGEST, Spin, Throttle, deadline, poll_budgeted};
pub(crate) use wait_set::{WaitKey, WaitSet, Waiter};

/// As [`std::sync::Mutex`].
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(inner::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub(crate) fn new(value: T) -> Self {
        Self(inner::Mutex::new(value))
    }

    /// Locks the mutex, and waits until it is free.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the mutex; `None` while it is locked.
    #[cfg(any(feature = "verbs", feature = "soft"))]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns the value without locking, because `self` is borrowed exclusively.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As [`std::sync::RwLock`].
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(inner::RwLock<T>);

impl<T> RwLock<T> {
    /// Creates an unlocked lock.
    pub(crate) fn new(value: T) -> Self {
        Self(inner::RwLock::new(value))
    }

    /// Locks for reading, and waits until no writer holds the lock.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks for reading; `None` while a writer holds the lock.
    #[cfg(feature = "verbs")]
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        match self.0.try_read() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Locks for writing, and waits until neither a reader nor a writer holds the lock.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A table whose hash is that of [`KeyHasher`].
pub(crate) type KeyMap<K, V> = HashMap<K, V, BuildHasherDefault<KeyHasher>>;

/// A hash that is one multiplication, for tables that are looked into for every frame or completion. The keys must not be of a
/// peer's choice, or it could make them collide.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u16(&mut self, key: u16) {
        self.write_u64(key.into());
    }

    fn write_u32(&mut self, key: u32) {
        self.write_u64(key.into());
    }

    fn write_u64(&mut self, key: u64) {
        // 2^64 divided by the golden ratio: the table looks at the highest bits and the lowest.
        self.0 = (self.0 ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

thread_local! {
    /// The last runtime of this thread that has both, so that a connect does not check it again.
    static COMPLETE: Cell<Option<Id>> = const { Cell::new(None) };
}

/// Returns the runtime of the caller, which must have I/O and time enabled: every task of an adapter uses both.
///
/// # Errors
/// `Unsupported` without a runtime, or if the runtime lacks one of the two.
pub(crate) fn current_runtime() -> Result<Handle, OpenError> {
    let runtime = Handle::try_current().ok();
    if let Some(runtime) = runtime.filter(|runtime| COMPLETE.get() == Some(runtime.id())) {
        return Ok(runtime);
    }
    let runtime = runtime_with_timers()?;
    match catch_unwind(|| UnixDatagram::unbound().map(drop)) {
        // A lack of descriptors is reported by what needs them.
        Ok(_) => {
            COMPLETE.set(Some(runtime.id()));
            Ok(runtime)
        }
        Err(_) => Err(OpenError::Unsupported("the tokio runtime has no I/O driver: build it with enable_io")),
    }
}

/// Returns the runtime of the caller, which must have time enabled: a simulated network needs no I/O.
///
/// # Errors
/// `Unsupported` without a runtime, or if the runtime has no timers.
pub(crate) fn runtime_with_timers() -> Result<Handle, OpenError> {
    let runtime = Handle::try_current()
        .map_err(|_| OpenError::Unsupported("no tokio runtime: call this inside one"))?;
    // tokio reports it only by a panic. Found here, it does not hit a task later.
    match catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))) {
        Ok(()) => Ok(runtime),
        Err(_) => Err(OpenError::Unsupported("the tokio runtime has no timers: build it with enable_time")),
    }
}

/// A future that is polled within a runtime: what it opens is watched by that runtime, not by the one that polls, if
/// any. It uses the budget of the task that polls.
#[pin_project]
pub(crate) struct WithRuntime<'a, F> {
    runtime: &'a Handle,
    #[pin]
    future: F,
}

impl<'a, F: Future> WithRuntime<'a, F> {
    pub(crate) fn new(runtime: &'a Handle, future: F) -> Self {
        Self { runtime, future }
    }
}

impl<F: Future> Future for WithRuntime<'_, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _entered = this.runtime.enter();
        poll_budgeted(cx, |cx| this.future.poll(cx))
    }
}
