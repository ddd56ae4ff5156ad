//! A metronome, which saves new connections timers of the runtime.
//!
//! Each timer costs some hundred instructions; and one that is due before all others of its runtime interrupts the thread that waits for
//! events, by a system call and one more turn of its loop. But most timers of new connections are dropped long before they are due. So
//! an [`Alarm`] is a timer only from the next beat on. The [`Metronome`] beats while connections are made, and is due before their
//! timers.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::sync::Mutex;

/// Less than half of the first time of each alarm of a connection with the default settings.
const BEAT: Duration = Duration::from_millis(80);

/// The metronome of an adapter. It rests while no connections are made.
pub(crate) struct Metronome {
    beats: Arc<Beats>,
    task: AbortHandle,
}

/// The beats of a metronome.
#[derive(Default)]
struct Beats {
    started: Notify,
    /// The number of beats. Written with the lock.
    count: AtomicU32,
    state: Mutex<Bar>,
}

/// The time between two beats.
#[derive(Default)]
struct Bar {
    /// The time of the next beat. `None` at rest.
    next: Option<Instant>,
    /// Connections are made, so that another beat follows.
    continues: bool,
    /// There will be no other beat.
    ended: bool,
    /// The tasks that wait for the next beat.
    waiting: Vec<Option<Waker>>,
}

impl Metronome {
    /// Creates a metronome that rests, on the runtime that has the timers.
    pub(crate) fn new(runtime: &Handle) -> Self {
        let beats = Arc::<Beats>::default();
        let end = End(beats.clone());
        let beat = async move {
            let End(beats) = &end;
            loop {
                beats.started.notified().await;
                while let Some(next) = beats.next() {
                    sleep_until(next).await;
                    beats.beat(false);
                }
            }
        };
        Self { beats, task: runtime.spawn(beat).abort_handle() }
    }

    /// Creates an alarm of a connection, and beats once more.
    pub(super) fn alarm(&self) -> Alarm {
        let mut bar = self.beats.state.lock();
        if bar.next.is_some() {
            bar.continues = true;
        } else if !bar.ended {
            bar.next = Some(Instant::now() + BEAT);
            drop(bar);
            self.beats.started.notify_one();
        }
        Alarm::Waiting(Wait { beats: self.beats.clone(), beat: 0, place: None })
    }
}

impl Drop for Metronome {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Ends the beats with the task of the metronome: nothing waits for another one.
struct End(Arc<Beats>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.beat(true);
    }
}

impl Beats {
    /// Returns the time of the next beat.
    fn next(&self) -> Option<Instant> {
        self.state.lock().next
    }

    /// Wakes the tasks that wait, which set their timers. The next beat is due before these.
    fn beat(&self, ended: bool) {
        let mut bar = self.state.lock();
        let waiting = std::mem::take(&mut bar.waiting);
        let continues = std::mem::take(&mut bar.continues) || waiting.iter().any(Option::is_some);
        bar.ended |= ended;
        bar.next = (continues && !bar.ended).then(|| Instant::now() + BEAT);
        self.count.fetch_add(1, Ordering::Release);
        drop(bar);
        for waker in waiting.into_iter().flatten() {
            // A waker that panics is that of a foreign task, and the others are to be woken.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

/// A timer, which hardly costs anything before the next beat of its metronome.
pub(crate) enum Alarm {
    /// It is not due before the next beat.
    Waiting(Wait),
    /// It is a timer of the runtime.
    Timer(Pin<Box<Sleep>>),
}

/// The wait for a beat.
pub(crate) struct Wait {
    beats: Arc<Beats>,
    /// The number of beats before.
    beat: u32,
    /// Its place among those that wait, counted from one. `None` before the first poll.
    place: Option<NonZero<u32>>,
}

impl Alarm {
    /// Creates one without a metronome, which is a timer from the first poll on.
    #[cfg(test)]
    pub(super) fn alone() -> Self {
        Self::Waiting(Wait { beats: Arc::default(), beat: 0, place: None })
    }

    /// Resolves at this time, which is the same at each poll until [`reset`](Self::reset).
    pub(super) fn poll(&mut self, time: Instant, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Timer(sleep) => sleep.as_mut().poll(cx),
            Self::Waiting(wait) => {
                if wait.goes_on(time, cx) {
                    return Poll::Pending;
                }
                let mut sleep = Box::pin(sleep_until(time));
                let polled = sleep.as_mut().poll(cx);
                *self = Self::Timer(sleep);
                polled
            }
        }
    }

    /// Returns whether it has to be polled, because its time or its beat has come.
    pub(super) fn is_due(&self) -> bool {
        match self {
            Self::Timer(sleep) => sleep.is_elapsed(),
            Self::Waiting(wait) => wait.beats.count.load(Ordering::Acquire) != wait.beat,
        }
    }

    /// Changes the time.
    pub(super) fn reset(&mut self, time: Instant) {
        if let Self::Timer(sleep) = self {
            sleep.as_mut().reset(time);
        }
    }

    /// Makes it a timer that is due at this time.
    pub(super) fn set(&mut self, time: Instant) {
        match self {
            Self::Timer(sleep) => sleep.as_mut().reset(time),
            Self::Waiting(_) => *self = Self::Timer(Box::pin(sleep_until(time))),
        }
    }

    /// Returns whether it is a timer by now.
    pub(super) fn is_timer(&self) -> bool {
        matches!(self, Self::Timer(_))
    }
}

impl Wait {
    /// Returns whether there is a beat to wait for before this time, which wakes the task then.
    fn goes_on(&mut self, time: Instant, cx: &Context<'_>) -> bool {
        let mut bar = self.beats.state.lock();
        let count = self.beats.count.load(Ordering::Relaxed);
        let has_passed = self.place.is_some() && self.beat != count;
        if has_passed || bar.next.is_none_or(|next| time < next) {
            return false;
        }
        let Some(place) = self.place else {
            bar.waiting.push(Some(cx.waker().clone()));
            (self.beat, self.place) = (count, u32::try_from(bar.waiting.len()).ok().and_then(NonZero::new));
            return true;
        };
        let known = bar.waiting.get_mut(place.get() as usize - 1).and_then(Option::as_mut);
        let Some(known) = known.filter(|known| !known.will_wake(cx.waker())) else { return true };
        let replaced = std::mem::replace(known, cx.waker().clone());
        drop(bar);
        drop(replaced);
        true
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let mut bar = self.beats.state.lock();
        let is_next = self.beats.count.load(Ordering::Relaxed) == self.beat;
        let known = bar.waiting.get_mut(place.get() as usize - 1).filter(|_| is_next);
        let waker = known.and_then(Option::take);
        // Mostly the last to come is the first to leave.
        while is_next && bar.waiting.pop_if(|waiting| waiting.is_none()).is_some() {}
        drop(bar);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::sleep;

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
        drop(metronome.alarm());
        let started = waits(hour).await;
        assert!(started > at_rest, "it beats");
        assert!(started <= 2 * (at_rest + 2), "{started} waits, {at_rest} at rest");
        assert_eq!(waits(hour).await, at_rest);
    }

    /// Returns how long an alarm has taken that is set to go off after `first` and, once it waits, after `second`.
    async fn taken(metronome: Metronome, first: Duration, second: Duration, keeps: bool) -> Duration {
        let start = Instant::now();
        let mut alarm = metronome.alarm();
        let metronome = Some(metronome).filter(|_| keeps);
        assert!(futures::poll!(poll_fn(|cx| alarm.poll(start + first, cx))).is_pending());
        alarm.reset(start + second);
        poll_fn(|cx| alarm.poll(start + second, cx)).await;
        drop(metronome);
        start.elapsed()
    }

    // Before a beat, behind it, and behind the end of the metronome.
    #[tokio::test(start_paused = true)]
    async fn alarm_goes_off_at_its_time() {
        let times = [0, 1, 79, 80, 81, 500].map(Duration::from_millis);
        for first in times.map(|time| time + Duration::from_millis(1)) {
            for (second, keeps) in times.into_iter().flat_map(|second| [(second, true), (second, false)]) {
                let metronome = Metronome::new(&Handle::current());
                let late = taken(metronome, first, second, keeps).await - second;
                assert!(late <= Duration::from_millis(1), "{late:?} late, {first:?} {second:?} {keeps}");
            }
        }
    }

    // A task that other wakers have replaced in the meantime is woken, and a place is used again.
    #[tokio::test(start_paused = true)]
    async fn beat_wakes_each_task_that_waits() {
        let metronome = Metronome::new(&Handle::current());
        let time = Instant::now() + Duration::from_secs(1);
        let mut alarms: Vec<_> = (0..9).map(|_| metronome.alarm()).collect();
        for alarm in &mut alarms {
            assert!(futures::poll!(poll_fn(|cx| alarm.poll(time, cx))).is_pending());
        }
        alarms.truncate(7);
        drop(alarms.remove(3));
        assert_eq!(metronome.beats.state.lock().waiting.len(), 7);
        let tasks = alarms
            .into_iter()
            .map(|mut alarm| tokio::spawn(async move { poll_fn(|cx| alarm.poll(time, cx)).await }));
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("it goes off");
        }
        assert!(Instant::now() - time <= Duration::from_millis(1));
    }
}
