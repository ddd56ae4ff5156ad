//! The time limits of calls of `shutdown` that wait: one task of each runtime has the timer for all of its streams.
//!
//! A timer in a stream would panic if it were polled after the end of its runtime, and a task of its own for each call would cost
//! more than the rest of most calls, which are answered at once. So a call only enters a list. The task checks new calls at its next
//! beat, from which their time counts, and ends when the list is empty.

use std::mem::take;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use slab::Slab;
use tokio::runtime::Id;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::close::Shared;
use super::engine::Side;
use crate::provider::stream::Progress;
use crate::sync::{Mutex, deadline};

/// The most that a `shutdown` waits for, however slow the progress: a byte at a time would keep it for ever. A disconnect has
/// the same limit.
const MOST: Duration = Duration::from_secs(600);

/// The time for which the end of a limit is that of a call that waits: the end wakes it.
const UNCLAIMED: Duration = Duration::from_secs(1);

/// The time from the first of some new calls to the first check of them.
const BEAT: Duration = Duration::from_millis(50);

/// The calls that wait, by their runtimes.
static CALLS: LazyLock<Mutex<Vec<Calls>>> = LazyLock::new(Mutex::default);

/// The calls that wait for streams of a runtime.
struct Calls {
    runtime: Id,
    calls: Slab<Call>,
    /// There are calls that the task has not checked. It does so at its next beat.
    has_new: bool,
    /// Wakes the task if it sleeps for longer than a beat.
    is_new: Arc<Notify>,
}

/// A call that waits.
struct Call {
    stream: Weak<Shared>,
    /// The time of the next check. `None` before the first one.
    due: Option<Instant>,
}

/// The limit of a `shutdown` of a stream.
#[derive(Default)]
pub(super) enum Limit {
    /// No call waits.
    #[default]
    None,
    /// A call waits: its place in the list.
    Running(usize, Option<Checked>),
    /// A call has waited for long enough at this time.
    Over(Instant),
}

/// The result of the last check of a call.
#[derive(Clone, Copy)]
pub(super) struct Checked {
    progress: Option<Progress>,
    /// The time at which the call ends in any case.
    last: Instant,
}

impl Shared {
    /// Returns whether the call of `shutdown` has waited for long enough. If none has waited before, its time begins.
    pub(super) fn is_limit_over(self: &Arc<Self>) -> bool {
        let mut limit = self.limit.lock();
        match &*limit {
            Limit::Running(..) => return false,
            Limit::Over(at) if at.elapsed() < UNCLAIMED => {
                *limit = Limit::None;
                return true;
            }
            // The call for which it waited was dropped. This one has its own time.
            Limit::Over(_) | Limit::None => {}
        }
        let engine = self.end.engine();
        // Without a runtime there is no limit: the connection ends soon, too.
        let Some(runtime) = &engine.runtime else { return false };
        let (place, task) = enter(runtime.id(), Arc::downgrade(self));
        *limit = Limit::Running(place, None);
        drop(limit);
        if let Some(task) = task {
            runtime.spawn(task.run());
        }
        false
    }

    /// Ends the time of a call.
    pub(super) fn end_limit(&self) {
        let limit = take(&mut *self.limit.lock());
        if let Limit::Running(place, _) = limit
            && let Some(runtime) = &self.end.engine().runtime
        {
            leave(runtime.id(), place, self);
        }
    }

    /// Checks the progress of the call that has this place. Returns the time of the next check; `None` if it no longer waits.
    fn check_limit(&self, place: usize) -> Option<Instant> {
        let progress = self.end.progress();
        let time = self.end.engine().close_timeout;
        let mut limit = self.limit.lock();
        let Limit::Running(at, checked) = &mut *limit else { return None };
        if *at != place {
            return None;
        }
        let last = match *checked {
            None => deadline(time.max(MOST)),
            Some(Checked { progress: before, last }) => {
                let goes_on = before.zip(progress).is_some_and(|(before, now)| now.is_beyond(&before));
                let now = Instant::now();
                if !goes_on || now >= last {
                    *limit = Limit::Over(now);
                    drop(limit);
                    self.end.engine().wake(Side::Writer);
                    return None;
                }
                last
            }
        };
        *checked = Some(Checked { progress, last });
        Some(deadline(time).min(last))
    }
}

/// Adds a call to the list of its runtime. Returns its place, and the task that is to be spawned if the list is new.
fn enter(runtime: Id, stream: Weak<Shared>) -> (usize, Option<Task>) {
    let mut all = CALLS.lock();
    let known = all.iter().position(|calls| calls.runtime == runtime);
    let index = known.unwrap_or_else(|| {
        all.push(Calls { runtime, calls: Slab::new(), has_new: true, is_new: Arc::default() });
        all.len() - 1
    });
    let calls = &mut all[index];
    let place = calls.calls.insert(Call { stream, due: None });
    if !std::mem::replace(&mut calls.has_new, true) {
        calls.is_new.notify_one();
    }
    let task = known.is_none().then(|| Task { runtime, is_new: calls.is_new.clone() });
    (place, task)
}

/// Removes a call from the list. Without a runtime the list may be another one.
fn leave(runtime: Id, place: usize, stream: &Shared) {
    let mut all = CALLS.lock();
    let calls = all.iter_mut().find(|calls| calls.runtime == runtime);
    let Some(Calls { calls, .. }) = calls else { return };
    if calls.get(place).is_some_and(|call| std::ptr::eq(call.stream.as_ptr(), stream)) {
        calls.remove(place);
    }
}

/// The next wait of the task of a runtime.
enum Next {
    /// New calls are checked after a beat.
    Beat,
    /// The next check is at this time, if there is no new call before.
    Due(Instant),
}

/// The task of a runtime. Its drop, also at the end of the runtime, removes the list.
struct Task {
    runtime: Id,
    is_new: Arc<Notify>,
}

impl Task {
    async fn run(self) {
        while let Some(next) = self.next() {
            match next {
                Next::Beat => sleep(BEAT).await,
                Next::Due(due) => tokio::select! {
                    biased;
                    () = sleep_until(due) => {}
                    () = self.is_new.notified() => continue,
                },
            }
            for (place, stream) in self.due() {
                let next = stream.upgrade().and_then(|stream| stream.check_limit(place));
                self.set_due(place, &stream, next);
            }
        }
    }

    /// Calls `with` with the list, under the lock.
    fn with<T>(&self, with: impl FnOnce(&mut Calls) -> T) -> Option<T> {
        CALLS.lock().iter_mut().find(|calls| self.has(calls)).map(with)
    }

    /// Returns whether this is the task of a list.
    fn has(&self, calls: &Calls) -> bool {
        calls.runtime == self.runtime && Arc::ptr_eq(&calls.is_new, &self.is_new)
    }

    /// Returns the next wait. Removes the list and returns `None` if no call is left.
    fn next(&self) -> Option<Next> {
        let mut all = CALLS.lock();
        let index = all.iter().position(|calls| self.has(calls))?;
        let Calls { calls, has_new, .. } = &all[index];
        if calls.is_empty() {
            all.swap_remove(index);
            return None;
        }
        let due = calls.iter().filter_map(|(_, call)| call.due).min();
        Some(match due {
            Some(due) if !has_new => Next::Due(due),
            _ => Next::Beat,
        })
    }

    /// Returns the calls that are to be checked, with their places.
    fn due(&self) -> Vec<(usize, Weak<Shared>)> {
        let now = Instant::now();
        let due = self.with(|calls| {
            calls.has_new = false;
            let due = calls.calls.iter().filter(|(_, call)| call.due.is_none_or(|due| due <= now));
            due.map(|(place, call)| (place, call.stream.clone())).collect()
        });
        due.unwrap_or_default()
    }

    /// Sets the time of the next check of a call, which leaves the list if there is none.
    fn set_due(&self, place: usize, stream: &Weak<Shared>, next: Option<Instant>) {
        self.with(|Calls { calls, .. }| {
            let Some(call) = calls.get_mut(place).filter(|call| call.stream.ptr_eq(stream)) else { return };
            call.due = next;
            if next.is_none() {
                calls.remove(place);
            }
        });
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let mut all = CALLS.lock();
        let index = all.iter().position(|calls| self.has(calls));
        let left = index.map(|index| all.swap_remove(index));
        drop(all);
        drop(left);
    }
}
