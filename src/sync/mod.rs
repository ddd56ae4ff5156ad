//! Locks that stay usable after a thread has panicked while it held one: a panic ends the task that it happens in, and not
//! every other that shares an adapter or a queue with it.
//!
//! And lists of tasks that wait for what such a lock guards, [`WaitSet`], those that spin instead, [`Spin`], or do so as long as it
//! pays, [`AdaptiveSpin`], the deadlines of a task, [`deadline`], its budget, [`poll_budgeted`], and how often it logs, [`Throttle`]; the
//! runtime of a caller, [`current_runtime`], and futures that are polled within another, [`WithRuntime`].
//!
//! The model of the lower layers has loom's locks inside: `cargo xtask test --filter model`.

mod runtime;
mod time;
mod wait_set;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
#[cfg(not(all(test, tokio_rdma_model)))]
use std::sync as inner;
use std::sync::PoisonError;
#[cfg(any(feature = "verbs", feature = "soft"))]
use std::sync::TryLockError;

#[cfg(all(test, tokio_rdma_model))]
use loom::sync as inner;

pub(crate) use inner::{MutexGuard, RwLockReadGuard, RwLockWriteGuard, atomic};
pub(crate) use runtime::{WithRuntime, current_runtime, runtime_with_timers};
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
