//! The engine of a stream, shared by the stream and its halves, and the close when the last of them is dropped.
//!
//! Each end of a stream waits for something else:
//!
//! | end | waits for | at most | the peer reads |
//! |---|---|---|---|
//! | `shutdown` | all sends, and over the soft provider an answer behind the last of them | the close timeout without progress, ten minutes in all | all data, the end of file |
//! | drop of the write half | the same, in a task, as long as there is the read half | – | the same |
//! | drop of the stream, or of its second half | the same, in a task; then the disconnect | the close timeout, then that of the provider | the same; an error if the time was too short |
//! | drop after `set_zero_linger` | nothing | – | the data that had arrived, an error |
//! | the same, with a session | a message about it, in the task of the session | a second | the data that had arrived, an error |
//! | the same, with a program with rsocket over InfiniBand or RoCE | the peer's answer to the disconnect, in a task, while its writes are refused | a second | the data that had arrived, an error of its writes |
//! | end of the runtime | nothing | – | as much as the kernel delivers; an error unless the end of file had been sent |
//!
//! The answer is that to an empty read. It is behind everything in the order of the connection, so the peer's driver has
//! placed all data when it arrives, and a reset of the connection or the end of this process destroys none. When each end has answered
//! the other, nothing follows, and the disconnect of either waits for nothing: `StreamEnds` of `src/soft/send_queue.rs` has the rule.
//!
//! One task of each runtime has the timer for the calls of `shutdown` of all its streams. A timer in a stream would panic if it were
//! polled after the end of its runtime, and a task of its own for each call would cost more than the rest of most calls, which are
//! answered at once. So a call only enters a list. The task checks new calls at its next beat, from which their time counts, and ends
//! when the list is empty.

use std::future::poll_fn;
use std::io;
use std::mem::take;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use slab::Slab;
use tokio::runtime::Id;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::end::End;
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

/// Closes the stream when it is dropped.
pub(super) struct Shared {
    pub(super) end: End,
    /// The task that sends the end of the write direction after its half was dropped.
    ending: Mutex<Option<JoinHandle<()>>>,
    /// The limit of a `shutdown` that waits.
    limit: Mutex<Limit>,
    /// The drop aborts the connection.
    aborts: AtomicBool,
}

// As tokio's streams are: the locks survive a panic, and no state is left half changed by one.
impl UnwindSafe for Shared {}
impl RefUnwindSafe for Shared {}

impl Shared {
    pub(super) fn new(end: End) -> Arc<Self> {
        let (ending, limit, aborts) = (Mutex::new(None), Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { end, ending, limit, aborts })
    }

    /// Sets whether dropping the stream aborts the connection.
    pub(super) fn set_aborts(&self, aborts: bool) {
        self.aborts.store(aborts, Ordering::Relaxed);
    }

    pub(super) fn aborts(&self) -> bool {
        self.aborts.load(Ordering::Relaxed)
    }

    /// Closes the write direction, and has a task send that end to the peer if it could not be sent at once.
    pub(super) fn shutdown(&self) {
        if let (false, Some(runtime)) = (self.end.shutdown(), &self.end.engine().runtime) {
            let end = self.end.clone();
            let ending = runtime.spawn(async move {
                // The read half returns the reason if it fails.
                tokio::select! {
                    biased;
                    _ = poll_fn(|cx| end.poll_settled(cx)) => {}
                    () = end.ended() => {}
                }
            });
            *self.ending.lock() = Some(ending);
        }
    }

    /// Closes the write direction. Resolves when the peer's device has received everything, or when it has made no progress for the
    /// close timeout: a peer may answer nothing, and be alive otherwise.
    pub(super) fn poll_shutdown(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let settled = self.end.poll_shutdown(cx);
        if settled.is_ready() {
            self.end_limit();
            return settled;
        }
        // Behind the registration of the waker, which the end of the limit wakes.
        if self.is_limit_over() {
            self.end.log_unconfirmed();
            self.end.end_waits(&[Side::Writer]);
            let what = "the peer has not confirmed the end of the stream within the close timeout";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, what)));
        }
        Poll::Pending
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.end_limit();
        let ending = self.ending.get_mut().take();
        if self.aborts() {
            ending.inspect(JoinHandle::abort);
            self.end.abort();
            return;
        }
        self.end.end_waits(&[Side::Reader]);
        if ending.is_none() && self.end.is_over() {
            // The drop of the connection disconnects.
            return;
        }
        self.end.disconnect();
        // Without a runtime it ends here and now, with the queue pair.
        let engine = self.end.engine();
        if let Some(runtime) = &engine.runtime {
            runtime.spawn(close(self.end.clone(), ending, engine.close_timeout));
        }
    }
}

/// Waits until the written data has been delivered, for at most `limit`, and disconnects.
async fn close(end: End, ending: Option<JoinHandle<()>>, limit: Duration) {
    if let Some(ending) = ending {
        // Its waker would displace the one of this task.
        ending.abort();
        let _ = ending.await;
    }
    let settled = poll_fn(|cx| end.poll_settled(cx));
    // The stream has been dropped, so no error can be returned.
    let outcome = tokio::time::timeout(limit, settled).await;
    if outcome.is_err() {
        end.log_unconfirmed();
    }
    end.finish(matches!(outcome, Ok(Ok(())))).await;
}

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
enum Limit {
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
struct Checked {
    progress: Option<Progress>,
    /// The time at which the call ends in any case.
    last: Instant,
}

impl Shared {
    /// Returns whether the call of `shutdown` has waited for long enough. If none has waited before, its time begins.
    fn is_limit_over(self: &Arc<Self>) -> bool {
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
    fn end_limit(&self) {
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
