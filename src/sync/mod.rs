//! Locks that stay usable after a thread has panicked while it held one: a panic ends the task that it happens in, and not
//! every other that shares an adapter or a queue with it.
//!
//! And lists of tasks that wait for what such a lock guards, [`WaitSet`], and those that spin instead, [`Spin`].
//!
//! The model of the lower layers has loom's locks inside: `cargo xtask test --filter model`.

mod spin;
mod wait_set;

use std::sync::PoisonError;
#[cfg(feature = "verbs")]
use std::sync::TryLockError;

#[cfg(all(test, tokio_rdma_model))]
use loom::sync as inner;
#[cfg(not(all(test, tokio_rdma_model)))]
use std::sync as inner;

pub(crate) use inner::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
pub(crate) use spin::Spin;
pub(crate) use wait_set::{WaitKey, WaitSet, Waiter};

/// As [`std::sync::Mutex`].
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(inner::Mutex<T>);

impl<T> Mutex<T> {
    /// A lock that nobody holds.
    pub(crate) fn new(value: T) -> Self {
        Self(inner::Mutex::new(value))
    }

    /// Waits until nobody else holds it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes it, unless somebody else holds it.
    #[cfg(feature = "verbs")]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value, of a lock that nobody else has.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As [`std::sync::RwLock`].
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(inner::RwLock<T>);

impl<T> RwLock<T> {
    /// A lock that nobody holds.
    pub(crate) fn new(value: T) -> Self {
        Self(inner::RwLock::new(value))
    }

    /// Waits until nobody changes the value.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody else holds it.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As [`std::sync::Condvar`].
#[cfg(feature = "soft")]
#[derive(Debug, Default)]
pub(crate) struct Condvar(inner::Condvar);

#[cfg(feature = "soft")]
impl Condvar {
    /// Gives the lock back and waits, until the value is otherwise.
    pub(crate) fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.0.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all waiting threads.
    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
