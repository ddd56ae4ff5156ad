//! Keeps a timer of the runtime that is due before those of new connections.
//!
//! A timer that is due before all others of its runtime interrupts the thread that waits for events, by a
//! system call and one more turn of its loop. Each timer of a new connection would do that, and most of them
//! are dropped long before they are due. While connections are made, the metronome is due first, and none of
//! them does.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// Less than the first time of each timer of a connection with the default settings.
const BEAT: Duration = Duration::from_millis(100);

/// The metronome of an adapter. It rests while no connections are made.
pub(crate) struct Metronome {
    started: Arc<Notify>,
    task: AbortHandle,
}

impl Metronome {
    /// Creates a metronome that rests, on the runtime that has the timers.
    pub(crate) fn new(runtime: &Handle) -> Self {
        let started = Arc::<Notify>::default();
        let starts = started.clone();
        let beat = async move {
            loop {
                starts.notified().await;
                sleep(BEAT).await;
            }
        };
        Self { started, task: runtime.spawn(beat).abort_handle() }
    }

    /// Announces timers of a connection, for one more beat.
    pub(super) fn start(&self) {
        self.started.notify_one();
    }
}

impl Drop for Metronome {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of times at which the runtime has waited within this time.
    async fn waits(time: Duration) -> u64 {
        let metrics = Handle::current().metrics();
        let before = metrics.worker_park_count(0);
        sleep(time).await;
        metrics.worker_park_count(0) - before
    }

    // An adapter without new connections wakes no processor.
    #[tokio::test(start_paused = true)]
    async fn metronome_rests_without_new_connections() {
        let metronome = Metronome::new(&Handle::current());
        let hour = Duration::from_secs(3600);
        let at_rest = waits(hour).await;
        metronome.start();
        let started = waits(hour).await;
        assert!(started > at_rest, "it beats");
        assert!(started <= 2 * (at_rest + 2), "{started} waits, {at_rest} at rest");
        assert_eq!(waits(hour).await, at_rest);
    }
}
