//! A completion queue, and what it has to report.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::pending;
use std::time::Duration;

use tokio::time::sleep;
use tokio_rdma::{Adapter, CompletionQueue, CompletionQueueConfig, NotifyKind, Status};

use crate::world::World;

/// The requests that a queue holds at most: all that the two queues of a queue pair hold.
const DEPTH: usize = 512;

/// The time between two looks.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// A completion queue with the requests that it has not reported.
pub(crate) struct Queue {
    pub(crate) queue: CompletionQueue,
    /// By their context; `true` for a request whose success is not reported.
    open: RefCell<BTreeMap<u64, bool>>,
    next: Cell<u64>,
}

impl Queue {
    pub(crate) fn new(adapter: &Adapter) -> Option<Self> {
        let queue = adapter.completion_queue(CompletionQueueConfig::default().depth(DEPTH)).ok()?;
        Some(Self { queue, open: RefCell::default(), next: Cell::new(1) })
    }

    /// A context for a request that is to be posted.
    pub(crate) fn open(&self, silent: bool) -> u64 {
        let context = self.next.replace(self.next.get() + 1);
        self.open.borrow_mut().insert(context, silent);
        context
    }

    /// A request was refused.
    pub(crate) fn refused(&self, context: u64) {
        self.open.borrow_mut().remove(&context);
    }

    /// Takes completions, of which each belongs to a request that had none.
    fn take(&self, most: usize) {
        let mut results = Vec::new();
        self.queue.poll(most, &mut results);
        for result in results {
            match self.open.borrow_mut().remove(&result.context) {
                Some(silent) => assert!(!silent || result.status != Status::SUCCESS, "{result:?} is silent"),
                None => panic!("{result:?} belongs to no request"),
            }
        }
    }

    /// Takes completions for ever.
    pub(crate) async fn collect(&self, world: &World) {
        loop {
            // One that waits for errors looks for the others from time to time.
            let errors = world.once_in(8);
            let notified = self.queue.notify(if errors { NotifyKind::Errors } else { NotifyKind::Any });
            self.take(world.draw(1..=8) as usize);
            if !self.queue.is_empty() {
                continue;
            }
            let tick = async { if errors { sleep(TICK).await } else { pending().await } };
            tokio::select! {
                biased;
                outcome = notified => if outcome.is_err() {
                    self.take(DEPTH);
                    return pending().await;
                },
                () = tick => {}
            }
        }
    }

    /// Takes the rest. Requests whose success is reported are all reported, unless the adapter is gone: those of a
    /// connection that was dropped when it has ended in the background.
    pub(crate) async fn finish(&self, world: &World) {
        let rest = async {
            loop {
                let notified = self.queue.notify(NotifyKind::Any);
                self.take(DEPTH);
                if self.open.borrow().values().all(|silent| *silent) || notified.await.is_err() {
                    return;
                }
            }
        };
        world.within("the last completions", rest).await;
    }
}
