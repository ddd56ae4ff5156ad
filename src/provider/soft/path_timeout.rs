//! The clock of a connection: when a silent peer is asked for a sign of life, and when the connection is given up.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// How long a peer may be silent after the start-up before something is done about it.
///
/// siw sends its reply before it listens for frames, and looks at one that came in between only when something else
/// follows. So an initiator sends an empty Write.
///
/// An initiator that is not peer-to-peer has to send first (RFC 5044 section 7.1.3), but with siw it is up to the
/// application, and some let the server begin. So a responder waits this long, because siw drops a connection whose
/// first frame comes together with the reply, and then sends what it has.
const NUDGE: Duration = Duration::from_millis(200);

/// A moment of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tick {
    /// [`NUDGE`] after the start-up.
    Nudge,
    /// Half of the path timeout after the tick before.
    Half,
}

/// Measures the silence of the peer in halves of the path timeout.
pub(super) struct PathTimeout {
    sleep: Pin<Box<Sleep>>,
    /// `None` if there is no path timeout, and only the nudge is due.
    half: Option<Duration>,
    next: Tick,
    /// Something has been received since the last tick.
    received: bool,
    /// At the last tick the peer owed an answer, and nothing has been received since.
    asked: bool,
}

impl PathTimeout {
    /// The clock of a connection; `None` if no tick will be due. `nudges`: whether the first tick is a nudge.
    pub(super) fn new(path_timeout: Option<Duration>, nudges: bool) -> Option<Self> {
        let half = path_timeout.map(|timeout| timeout / 2);
        let (first, next) = if nudges { (NUDGE, Tick::Nudge) } else { (half?, Tick::Half) };
        let sleep = Box::pin(sleep_until(Instant::now() + first));
        Some(Self { sleep, half, next, received: false, asked: false })
    }

    /// Resolves at the next tick. [`rearm`](Self::rearm) sets the one after it.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Tick> {
        ready!(self.sleep.as_mut().poll(cx));
        Poll::Ready(self.next)
    }

    /// Sets the next tick. Returns `false` if there is none.
    pub(super) fn rearm(&mut self) -> bool {
        let Some(half) = self.half else { return false };
        self.next = Tick::Half;
        self.sleep.as_mut().reset(Instant::now() + half);
        true
    }

    /// The peer has sent something.
    pub(super) fn received(&mut self) {
        self.received = true;
    }

    /// The peer owes nothing at this tick, though it may have been silent.
    pub(super) fn excuse(&mut self) {
        self.asked = false;
    }

    /// Decides at a tick whether the connection is given up: the peer was silent for two halves, and owed an answer at the
    /// ends of both. `ask` sends a question if none is open, and returns whether the peer owes an answer.
    pub(super) fn gives_up(&mut self, ask: impl FnOnce() -> bool) -> bool {
        if std::mem::take(&mut self.received) {
            self.asked = false;
            return false;
        }
        let asked = self.asked;
        self.asked = ask();
        asked && self.asked
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(4);

    /// Waits for the next tick, and returns it with the time since `start`.
    async fn tick(clock: &mut PathTimeout, start: Instant) -> (Tick, Duration) {
        let tick = poll_fn(|cx| clock.poll(cx)).await;
        (tick, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_nudge_comes_before_the_halves() {
        let start = Instant::now();
        let mut clock = PathTimeout::new(Some(TIMEOUT), true).expect("a clock");
        let (first, at) = tick(&mut clock, start).await;
        assert_eq!((first, at.as_millis() / 100), (Tick::Nudge, 2));
        assert!(clock.rearm());
        let (second, at) = tick(&mut clock, start).await;
        assert_eq!((second, at.as_millis() / 100), (Tick::Half, 22));
    }

    #[tokio::test]
    async fn without_a_path_timeout_only_a_nudge_is_due() {
        assert!(PathTimeout::new(None, false).is_none());
        assert!(!PathTimeout::new(None, true).expect("a clock").rearm());
    }

    #[tokio::test]
    async fn a_peer_that_owes_an_answer_twice_is_given_up() {
        let mut clock = PathTimeout::new(Some(TIMEOUT), false).expect("a clock");
        assert!(!clock.gives_up(|| true), "asked just now");
        assert!(clock.gives_up(|| true));
    }

    #[tokio::test]
    async fn a_sign_of_life_begins_anew() {
        let mut clock = PathTimeout::new(Some(TIMEOUT), false).expect("a clock");
        assert!(!clock.gives_up(|| true));
        clock.received();
        assert!(!clock.gives_up(|| unreachable!("it was not silent")));
        assert!(!clock.gives_up(|| true));
        clock.excuse();
        assert!(!clock.gives_up(|| true), "it was excused");
        assert!(!clock.gives_up(|| false), "a full socket takes no question");
        assert!(!clock.gives_up(|| true));
        assert!(clock.gives_up(|| true));
    }
}
