//! The inbox of a queue pair: completions that are not processed yet.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::sync::Mutex;
use crate::verbs::work_queue::WcResult;

/// A completion: the key of the device's queue pair, the id of the request, and its result.
pub(super) type Letter = (u32, u64, WcResult);

/// Completions that came while another thread had the lock of the queue pair, or without a place for what follows from
/// them.
#[derive(Default)]
pub(super) struct Inbox {
    letters: Mutex<Vec<Letter>>,
    /// Written with the lock.
    filled: AtomicBool,
}

impl Inbox {
    /// Returns whether the inbox is empty. Completions that another thread adds at the same time are processed by that
    /// thread, unless it adds them with the lock of the completion queue that the caller has.
    pub(super) fn is_empty(&self) -> bool {
        !self.filled.load(Ordering::Acquire)
    }

    /// Adds completions. The caller has the inbox processed.
    pub(super) fn add(&self, letters: impl Iterator<Item = Letter>) {
        let mut all = self.letters.lock();
        all.extend(letters);
        self.filled.store(true, Ordering::Release);
    }

    /// Exchanges the completions for an empty list.
    pub(super) fn swap(&self, empty: &mut Vec<Letter>) {
        let mut all = self.letters.lock();
        std::mem::swap(&mut *all, empty);
        self.filled.store(false, Ordering::Release);
    }
}
