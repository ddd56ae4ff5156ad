//! Completions that nobody has looked at yet.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::provider::verbs::work_queue::WcResult;
use crate::sync::Mutex;

/// A completion: the key of the device's queue pair, the id of the request, and what was said of it.
pub(super) type Letter = (u32, u64, WcResult);

/// Completions that came while somebody else had the lock of the queue pair, or had no place for what follows from them.
#[derive(Default)]
pub(super) struct Inbox {
    letters: Mutex<Vec<Letter>>,
    /// Written with the lock.
    filled: AtomicBool,
}

impl Inbox {
    /// Returns whether there is none. Those that another thread adds meanwhile are its own to look at, unless it adds them with the
    /// lock of the completion queue that the caller has.
    pub(super) fn is_empty(&self) -> bool {
        !self.filled.load(Ordering::Acquire)
    }

    /// Adds some. The caller has somebody look for them.
    pub(super) fn add(&self, letters: impl Iterator<Item = Letter>) {
        let mut all = self.letters.lock();
        all.extend(letters);
        self.filled.store(true, Ordering::Release);
    }

    /// Exchanges them for an empty list.
    pub(super) fn swap(&self, empty: &mut Vec<Letter>) {
        let mut all = self.letters.lock();
        std::mem::swap(&mut *all, empty);
        self.filled.store(false, Ordering::Release);
    }
}
