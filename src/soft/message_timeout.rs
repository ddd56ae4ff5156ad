//! The time limit of a message that arrives in a shared receive (RFC 5042 section 6.4.1).
//!
//! A peer that sends half a message holds a receive that others could use.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// A message that brings this many bytes within the limit goes on, however long it is.
const PROGRESS: usize = 64 * 1024;

/// Measures how long a message makes no progress.
pub(super) struct MessageTimeout {
    limit: Duration,
    /// The last wait for more of a message: the number of the message, its bytes at that time, and the time.
    since: Option<(u64, usize, Instant)>,
    /// Armed for the time at which a message is checked again; kept from message to message.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl MessageTimeout {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, since: None, sleep: None }
    }

    /// Returns when the time of the unfinished message is up unless more of it comes. `progress` is its
    /// number and how many of its bytes have come.
    fn deadline(&mut self, progress: Option<(u64, usize)>) -> Option<Instant> {
        let Some((message, bytes)) = progress else {
            self.since = None;
            return None;
        };
        let begun = match self.since {
            Some((known, before, begun)) if known == message && bytes < before + PROGRESS => begun,
            _ => {
                let now = Instant::now();
                self.since = Some((message, bytes, now));
                now
            }
        };
        Some(begun + self.limit)
    }

    /// Returns whether the message has made no progress for too long. To be called at the end of a turn of
    /// the task: a peer that sends other frames without a pause leaves no time for [`poll`](Self::poll).
    /// After a turn, bytes of the message that came while this process was stopped have been read.
    pub(super) fn is_over(&mut self, progress: Option<(u64, usize)>) -> bool {
        self.deadline(progress).is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Resolves when the message has made no progress for too long. To be called when the task has nothing to
    /// read, or no budget.
    pub(super) fn poll(&mut self, progress: Option<(u64, usize)>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = self.deadline(progress) else { return Poll::Pending };
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        loop {
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            ready!(sleep.as_mut().poll(cx));
            // The timer was armed for an earlier message.
            sleep.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Returns whether the time of the message is up within so many seconds.
    async fn given_up(clock: &mut MessageTimeout, progress: Option<(u64, usize)>, seconds: u64) -> bool {
        let wait = poll_fn(|cx| clock.poll(progress, cx));
        tokio::time::timeout(Duration::from_secs(seconds), wait).await.is_ok()
    }

    // Each 64 KiB of a message restart its time, and fewer bytes do not (SEC-06).
    #[tokio::test(start_paused = true)]
    async fn a_message_has_the_limit_for_each_64_kib() {
        let (first, second) = (1, 2);
        let mut clock = MessageTimeout::new(LIMIT);
        assert!(!given_up(&mut clock, Some((first, 0)), 20).await);
        assert!(!given_up(&mut clock, Some((first, PROGRESS)), 20).await, "it goes on");
        assert!(!given_up(&mut clock, None, 60).await, "nothing is unfinished");
        assert!(!given_up(&mut clock, Some((second, 0)), 29).await);
        assert!(!given_up(&mut clock, Some((second, 1)), 0).await);
        assert!(given_up(&mut clock, Some((second, 2)), 2).await, "a trickle is no progress");
    }

    // A peer that sends other frames all the time leaves no time for the timer (SEC-06).
    #[tokio::test(start_paused = true)]
    async fn a_busy_task_gives_a_message_up() {
        let mut clock = MessageTimeout::new(LIMIT);
        let second = Duration::from_secs(1);
        assert!(!clock.is_over(Some((1, 0))));
        tokio::time::advance(LIMIT - second).await;
        assert!(!clock.is_over(Some((1, 5))) && !clock.is_over(None));
        assert!(!clock.is_over(Some((2, 0))), "another message");
        tokio::time::advance(LIMIT - second).await;
        assert!(!clock.is_over(Some((2, PROGRESS - 1))));
        tokio::time::advance(second).await;
        assert!(clock.is_over(Some((2, PROGRESS - 1))));
        assert!(!clock.is_over(Some((2, PROGRESS))), "it goes on");
    }
}
