//! Threads for the calls of a driver that may take long.
//!
//! On a card each of these is a command to its firmware, of tens to hundreds of microseconds, and some wait for a
//! neighbour's address, or for the service that resolves routes. The tasks of the runtime, the reactor among them,
//! leave these calls to a few blocking threads of the runtime. No lock is held there during a call. If a driver has the
//! processor of the caller do the work, a hand-over costs more than it saves, and the caller makes the calls.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::runtime::Handle;
use tracing::dispatcher::{self, Dispatch};
use tracing::error;

use crate::provider::connector::Job;
use crate::sync::Mutex;

/// The number of threads that work at a time. A driver has most commands wait for each other.
const MOST: usize = 4;

/// A list of jobs, and the threads that work it off.
pub(crate) struct Workers {
    runtime: Handle,
    /// The caller does the jobs.
    inline: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// The number of threads that look into the list.
    threads: usize,
}

impl Workers {
    /// Creates workers without threads. `inline` says that the caller does the jobs that are not urgent.
    pub(crate) fn new(runtime: Handle, inline: bool) -> Arc<Self> {
        Arc::new(Self { runtime, inline, state: Mutex::default() })
    }

    /// Has a job done, after those that were given before, or beside them. Without the runtime, which has shut down, it is done
    /// by the caller.
    pub(crate) fn run(self: &Arc<Self>, job: Job) {
        if self.inline {
            return execute(job);
        }
        self.add(|jobs| jobs.push_back(told(job)));
    }

    /// Has a job done like [`run`](Self::run), but before those that wait, and always on a thread.
    pub(crate) fn run_next(self: &Arc<Self>, job: Job) {
        self.add(|jobs| jobs.push_front(told(job)));
    }

    fn add(self: &Arc<Self>, add: impl FnOnce(&mut VecDeque<Job>)) {
        let mut state = self.state.lock();
        add(&mut state.jobs);
        if state.threads == MOST {
            return;
        }
        state.threads += 1;
        drop(state);
        let worker = Worker(self.clone());
        self.runtime.spawn_blocking(move || drop(worker));
    }
}

/// Returns the job with the subscriber of `tracing` of the caller.
fn told(job: Job) -> Job {
    let dispatch = dispatcher::get_default(Dispatch::clone);
    Box::new(move || dispatcher::with_default(&dispatch, job))
}

/// Does a job. A panic, of a waker of the user for example, does not keep the caller from those of other connections.
pub(super) fn execute(job: Job) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        error!("a panic has ended the end of a connection");
    }
}

/// A guard that works the list off when it is dropped: also by a runtime that shuts down.
struct Worker(Arc<Workers>);

impl Drop for Worker {
    fn drop(&mut self) {
        loop {
            let mut state = self.0.state.lock();
            let Some(job) = state.jobs.pop_front() else {
                state.threads -= 1;
                return;
            };
            drop(state);
            execute(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{self, ThreadId};

    use super::*;

    fn report(to: &Sender<ThreadId>) -> Job {
        let to = to.clone();
        Box::new(move || to.send(thread::current().id()).expect("somebody waits"))
    }

    // HW-05: the caller does the work of a driver that waits for nothing, except for the end of the device.
    #[test]
    fn the_caller_does_what_waits_for_nothing() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (report_to, reports) = channel();
        for inline in [false, true] {
            let workers = Workers::new(runtime.handle().clone(), inline);
            // The jobs behind it are done all the same.
            workers.run(Box::new(|| panic!("a waker")));
            workers.run(report(&report_to));
            let by = reports.recv().expect("it is done");
            assert_eq!(by == thread::current().id(), inline);
            workers.run_next(report(&report_to));
            assert_ne!(reports.recv().expect("it is done"), thread::current().id());
        }
    }
}
