//! What follows a change of the state: code of others, which runs without the lock.

use std::mem::take;
use std::task::{Context, Waker};

use bytes::Bytes;
use tokio::task::AbortHandle;

use super::Call;

/// What is to be done when the lock is released.
#[derive(Default)]
pub(crate) struct After {
    pub(super) wakers: Vec<Waker>,
    pub(super) tasks: Vec<AbortHandle>,
    /// Only to be dropped.
    pub(super) calls: Vec<Call>,
    /// Only to be dropped: it may be memory of the program's, or of a device.
    pub(super) bytes: Vec<Bytes>,
    old: Vec<Waker>,
    written: Vec<Bytes>,
}

impl After {
    /// Takes it, with the bytes that were written and are to be dropped, if there is something to be done.
    #[inline]
    pub(super) fn take(&mut self, written: &mut Vec<Bytes>) -> Option<Self> {
        let Self { wakers, tasks, calls, bytes, old, .. } = self;
        let is_nothing = wakers.is_empty()
            && tasks.is_empty()
            && calls.is_empty()
            && bytes.is_empty()
            && old.is_empty()
            && written.is_empty();
        (!is_nothing).then(|| Self { written: take(written), ..take(self) })
    }

    /// Does it.
    pub(crate) fn run(self) {
        let Self { wakers, tasks, old, calls, bytes, written } = self;
        tasks.iter().for_each(AbortHandle::abort);
        wakers.into_iter().for_each(Waker::wake);
        drop((tasks, old, calls, bytes, written));
    }

    /// Sets the waker of a task that waits.
    pub(super) fn register(&mut self, place: &mut Option<Waker>, cx: &Context<'_>) {
        if !place.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.old.extend(place.replace(cx.waker().clone()));
        }
    }
}
