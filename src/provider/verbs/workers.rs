//! Threads for the calls of a driver that may take long.
//!
//! On a card each of these is a command to its firmware, of tens to hundreds of microseconds, and some wait for a neighbour's
//! address. The tasks of the runtime, the reactor among them, leave them to a few blocking threads of it. No lock is held there
//! during a call.

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
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// The number of threads that look into the list.
    threads: usize,
}

impl Workers {
    pub(crate) fn new(runtime: Handle) -> Arc<Self> {
        Arc::new(Self { runtime, state: Mutex::default() })
    }

    /// Has a job done, after those that were given before, or beside them. Without the runtime, which has shut down, it is done
    /// by the caller.
    pub(crate) fn run(self: &Arc<Self>, job: Job) {
        self.add(|jobs| jobs.push_back(told(job)));
    }

    /// As [`run`](Self::run), before those that wait.
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

/// The job, which tells of its steps where the caller tells of them.
fn told(job: Job) -> Job {
    let dispatch = dispatcher::get_default(Dispatch::clone);
    Box::new(move || dispatcher::with_default(&dispatch, job))
}

/// Works the list off when it is dropped: also by a runtime that shuts down.
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
            // A waker of the user, for example. The jobs of other connections go on.
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                error!("a panic has ended the end of a connection");
            }
        }
    }
}
