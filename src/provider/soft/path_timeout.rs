//! The clock of a connection: when a silent peer is asked for a sign of life, and when the connection is given up.
//!
//! A sign of life is a byte that the peer sent. A byte that its kernel acknowledged is one only while a question waits
//! behind others in our kernel: a slow reader gets to the question late, but the kernel of a stopped process acknowledges
//! too, until its buffer is full.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::coop::has_budget_remaining;
use tokio::time::{Instant, Sleep, sleep_until};

/// The time that a peer may be silent after the start-up before something is done about it.
///
/// siw sends its reply before it listens for frames, and looks at one that came in between only when something else
/// follows. So an initiator sends an empty Write.
///
/// An initiator that is not peer-to-peer has to send first (RFC 5044 section 7.1.3), but with siw it is up to the
/// application, and some let the server begin. So a responder waits this long, because siw drops a connection whose
/// first frame comes together with the reply, and then sends what it has. If the reply is lost, it waits until that has arrived.
const NUDGE: Duration = Duration::from_millis(200);
/// So many ticks divide the path timeout while a connection is busy or awaits an answer. A loss is noticed at most one tick
/// late.
const TICKS: u32 = 16;
/// From so many reads within a tick on, a connection is busy: the time of a read is then known by the tick alone.
const BUSY: u32 = 64;

/// A moment of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tick {
    /// [`NUDGE`] after the start-up.
    Nudge,
    /// The silence of the peer is to be judged.
    Check,
}

/// The decision at a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Alive,
    /// Ask the peer for a sign of life, and report the [`Question`].
    Ask,
    /// Give the connection up.
    Lost,
}

/// The outcome of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// The peer owes an answer once it has read this many bytes of the stream.
    Asked(u64),
    /// The socket is full. What it holds has to be acknowledged first.
    Full,
    /// The peer owes nothing.
    None,
}

/// A question without an answer.
struct Open {
    /// The question itself; `None` if there was no room for it.
    end: Option<u64>,
    /// The number of acknowledged bytes at the last check.
    acknowledged: u64,
    /// The question waited behind other bytes at the last check.
    queued: bool,
}

/// Measures the silence of the peer.
pub(super) struct PathTimeout {
    sleep: Pin<Box<Sleep>>,
    /// The task that has polled last is woken by it.
    armed: bool,
    /// `None` if there is no path timeout, and only the nudge is due.
    timeout: Option<Duration>,
    next: Tick,
    /// At the last nudge, the peer's host did not have the reply.
    late: bool,
    /// Reads since the last tick.
    reads: u32,
    /// Each read is stamped with its time.
    stamps: bool,
    /// When the last byte came.
    heard: Instant,
    /// The last sign of life.
    alive: Instant,
    open: Option<Open>,
}

impl PathTimeout {
    /// The clock of a connection; `None` if no tick will be due. `nudges`: whether the first tick is a nudge.
    pub(super) fn new(timeout: Option<Duration>, nudges: bool) -> Option<Self> {
        let now = Instant::now();
        let (first, next) = if nudges { (NUDGE, Tick::Nudge) } else { (timeout? / TICKS, Tick::Check) };
        let sleep = Box::pin(sleep_until(now + first));
        Some(Self {
            sleep,
            armed: false,
            timeout,
            next,
            late: false,
            reads: 0,
            stamps: true,
            heard: now,
            alive: now,
            open: None,
        })
    }

    /// Resolves at the next tick. [`rearm`](Self::rearm) sets the one after it. `known` if the same task has polled last.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, known: bool) -> Poll<Tick> {
        if known && self.armed && !self.sleep.is_elapsed() {
            return Poll::Pending;
        }
        // Without budget, the poll does no more than to come back.
        self.armed = has_budget_remaining();
        ready!(self.sleep.as_mut().poll(cx));
        Poll::Ready(self.next)
    }

    /// Sets the next tick. Returns `false` if there is none.
    pub(super) fn rearm(&mut self) -> bool {
        let Some(timeout) = self.timeout else { return false };
        let tick = Instant::now() + timeout / TICKS;
        let next = match &self.open {
            Some(_) => tick.min(self.alive + timeout),
            // The first check tells whether the connection is busy.
            None if self.stamps && self.next == Tick::Check => self.heard + timeout / 2,
            None => tick,
        };
        self.next = Tick::Check;
        self.sleep.as_mut().reset(next);
        self.armed = false;
        true
    }

    /// Puts the nudge off if the peer's host has the reply not yet, or not for long. Returns `false` if it is due, or the first
    /// check would be before it.
    pub(super) fn postpones_nudge(&mut self, has_reply: bool) -> bool {
        let next = Instant::now() + NUDGE;
        let was_late = std::mem::replace(&mut self.late, !has_reply);
        let is_before_check = self.timeout.is_none_or(|timeout| next < self.heard + timeout / 2);
        let postpones = (was_late || !has_reply) && is_before_check;
        if postpones {
            self.sleep.as_mut().reset(next);
            self.armed = false;
        }
        postpones
    }

    /// Something has come from the peer.
    pub(super) fn received(&mut self) {
        self.reads = self.reads.saturating_add(1);
        if self.stamps {
            self.heard = Instant::now();
        }
    }

    /// The peer owes nothing, though it may be silent.
    pub(super) fn excuse(&mut self) {
        self.heard = Instant::now();
        self.alive = self.heard;
        self.open = None;
        self.reads = 0;
        self.stamps = true;
    }

    /// Judges a peer that is not read, because its message waits for a receive: it lives, unless its kernel has acknowledged
    /// nothing for so long though what was sent is repeated.
    pub(super) fn check_unread(&mut self, unanswered: Option<Duration>) -> Verdict {
        if unanswered.zip(self.timeout).is_some_and(|(silence, timeout)| silence >= timeout) {
            return Verdict::Lost;
        }
        self.excuse();
        // The next check comes at the next tick if there is something to wait for.
        self.stamps = unanswered.is_none();
        Verdict::Alive
    }

    /// Judges the silence of the peer, of whose input the kernel at its end has acknowledged this many bytes.
    pub(super) fn check(&mut self, acknowledged: u64) -> Verdict {
        let Some(timeout) = self.timeout else { return Verdict::Alive };
        let now = Instant::now();
        let reads = std::mem::take(&mut self.reads);
        if reads > 0 {
            if !self.stamps {
                self.heard = now;
            }
            self.alive = self.heard;
            self.open = None;
        }
        self.stamps = reads <= BUSY;
        if let Some(open) = &mut self.open {
            let moved = acknowledged > open.acknowledged;
            let queued = open.end.is_none_or(|end| acknowledged < end);
            if moved && (queued || open.queued) {
                self.alive = now;
            }
            open.acknowledged = open.acknowledged.max(acknowledged);
            open.queued = queued;
        }
        match &self.open {
            Some(_) if now >= self.alive + timeout => Verdict::Lost,
            // There may be room for the question now.
            Some(Open { end: None, .. }) => Verdict::Ask,
            None if now >= self.heard + timeout / 2 => Verdict::Ask,
            Some(_) | None => Verdict::Alive,
        }
    }

    /// Reports the outcome of the question.
    pub(super) fn asked(&mut self, question: Question, acknowledged: u64) {
        let end = match question {
            Question::Asked(end) => Some(end),
            Question::Full => None,
            Question::None => return self.excuse(),
        };
        if self.open.is_none()
            && let Some(timeout) = self.timeout
        {
            // The peer has its time, also if this task was late.
            self.alive = self.alive.max(Instant::now() - timeout / 2);
        }
        // Only what is still unacknowledged at the next check was queued before others.
        let queued = self.open.as_ref().is_some_and(|open| open.queued);
        self.open = Some(Open { end, acknowledged, queued });
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(16);
    const TICK: Duration = Duration::from_secs(1);

    /// A clock whose nudge is over, at the second zero.
    fn clock() -> PathTimeout {
        PathTimeout::new(Some(TIMEOUT), false).expect("a clock")
    }

    /// Waits for the next check, and returns the verdict with the seconds since `start`.
    async fn check(clock: &mut PathTimeout, start: Instant, acknowledged: u64) -> (Verdict, u64) {
        assert_eq!(poll_fn(|cx| clock.poll(cx, true)).await, Tick::Check);
        let found = (clock.check(acknowledged), start.elapsed().as_secs());
        if found.0 == Verdict::Alive {
            assert!(clock.rearm());
        }
        found
    }

    /// Runs to the verdict that is not `Alive`, with acknowledged bytes by the second.
    async fn run(
        clock: &mut PathTimeout,
        start: Instant,
        acknowledged: impl Fn(u64) -> u64,
    ) -> (Verdict, u64) {
        loop {
            let at = start.elapsed().as_secs() + 1;
            match check(clock, start, acknowledged(at)).await {
                (Verdict::Alive, _) => {}
                other => return other,
            }
        }
    }

    fn ask(clock: &mut PathTimeout, question: Question, acknowledged: u64) {
        clock.asked(question, acknowledged);
        assert!(clock.rearm());
    }

    #[tokio::test(start_paused = true)]
    async fn a_nudge_comes_before_the_checks() {
        let start = Instant::now();
        let mut clock = PathTimeout::new(Some(TIMEOUT), true).expect("a clock");
        assert_eq!(poll_fn(|cx| clock.poll(cx, true)).await, Tick::Nudge);
        assert_eq!(start.elapsed().as_millis() / 100, 2);
        assert!(clock.rearm());
        assert_eq!(check(&mut clock, start, 0).await, (Verdict::Alive, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_byte_before_the_first_check_is_known_by_its_time() {
        let start = Instant::now();
        let mut clock = PathTimeout::new(Some(TIMEOUT), true).expect("a clock");
        clock.received();
        assert_eq!(poll_fn(|cx| clock.poll(cx, true)).await, Tick::Nudge);
        assert!(clock.rearm());
        assert_eq!(run(&mut clock, start, |_| 0).await, (Verdict::Ask, 8));
        ask(&mut clock, Question::Asked(20), 0);
        assert_eq!(run(&mut clock, start, |_| 20).await, (Verdict::Lost, 16));
    }

    #[tokio::test]
    async fn without_a_path_timeout_only_a_nudge_is_due() {
        assert!(PathTimeout::new(None, false).is_none());
        assert!(!PathTimeout::new(None, true).expect("a clock").rearm());
    }

    // SEC-04: a peer that owes an answer is given up at the path timeout.
    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_is_asked_at_the_half_and_lost_at_the_end() {
        let (start, mut clock) = (Instant::now(), clock());
        assert_eq!(run(&mut clock, start, |_| 0).await, (Verdict::Ask, 8));
        ask(&mut clock, Question::Asked(20), 0);
        // That its kernel has the question is no sign of the peer.
        assert_eq!(run(&mut clock, start, |_| 20).await, (Verdict::Lost, 16));
    }

    // SEC-04: what the kernel of a stopped process acknowledges does not keep it alive.
    #[tokio::test(start_paused = true)]
    async fn acknowledged_bytes_behind_the_question_are_no_sign() {
        let (start, mut clock) = (Instant::now(), clock());
        assert_eq!(run(&mut clock, start, |second| second * 100).await, (Verdict::Ask, 8));
        ask(&mut clock, Question::Asked(820), 800);
        assert_eq!(run(&mut clock, start, |second| second * 100).await, (Verdict::Lost, 16));
    }

    // SEC-03: while the question waits behind others, an acknowledged byte is a sign.
    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_lives_as_long_as_it_reads() {
        let (start, mut clock) = (Instant::now(), clock());
        assert_eq!(run(&mut clock, start, |second| second).await, (Verdict::Ask, 8));
        ask(&mut clock, Question::Asked(100), 8);
        let slow = |second: u64| second.min(60);
        assert_eq!(run(&mut clock, start, slow).await, (Verdict::Lost, 60 + 16));
    }

    // SEC-03
    #[tokio::test(start_paused = true)]
    async fn a_full_socket_is_asked_again() {
        let (start, mut clock) = (Instant::now(), clock());
        assert_eq!(run(&mut clock, start, |second| second).await, (Verdict::Ask, 8));
        for second in 9..=40 {
            ask(&mut clock, Question::Full, second - 1);
            assert_eq!(check(&mut clock, start, second).await, (Verdict::Ask, second));
        }
        ask(&mut clock, Question::Asked(50), 40);
        assert_eq!(run(&mut clock, start, |second| second.min(50)).await, (Verdict::Lost, 66));
    }

    #[tokio::test(start_paused = true)]
    async fn a_byte_begins_anew() {
        let (start, mut clock) = (Instant::now(), clock());
        assert_eq!(run(&mut clock, start, |_| 0).await, (Verdict::Ask, 8));
        ask(&mut clock, Question::Asked(20), 0);
        tokio::time::advance(TICK * 5 / 2).await;
        clock.received();
        assert_eq!(check(&mut clock, start, 20).await, (Verdict::Alive, 10));
        assert_eq!(run(&mut clock, start, |_| 20).await, (Verdict::Ask, 18));
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_that_comes_late_leaves_the_peer_its_time() {
        let (start, mut clock) = (Instant::now(), clock());
        assert_eq!(check(&mut clock, start, 0).await, (Verdict::Alive, 1));
        tokio::time::advance(10 * TIMEOUT).await;
        assert_eq!(check(&mut clock, start, 0).await, (Verdict::Ask, 161));
        ask(&mut clock, Question::Asked(20), 0);
        assert_eq!(run(&mut clock, start, |_| 20).await, (Verdict::Lost, 161 + 8));
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_connection_is_known_by_the_tick() {
        let (start, mut clock) = (Instant::now(), clock());
        for second in 1..=20 {
            (0..=BUSY).for_each(|_| clock.received());
            assert_eq!(check(&mut clock, start, 0).await, (Verdict::Alive, second));
        }
        assert_eq!(run(&mut clock, start, |_| 0).await, (Verdict::Ask, 28));
    }

    // SEC-03, SEC-04
    #[tokio::test(start_paused = true)]
    async fn an_unread_peer_is_lost_only_by_its_kernel() {
        let (start, mut clock) = (Instant::now(), clock());
        poll_fn(|cx| clock.poll(cx, true)).await;
        for (at, unanswered, verdict) in [
            (1, None, Verdict::Alive),
            (9, Some(2), Verdict::Alive),
            (10, Some(15), Verdict::Alive),
            (11, Some(16), Verdict::Lost),
        ] {
            assert_eq!(start.elapsed().as_secs(), at);
            assert_eq!(clock.check_unread(unanswered.map(Duration::from_secs)), verdict, "{at}");
            assert!(clock.rearm());
            poll_fn(|cx| clock.poll(cx, true)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_owes_nothing_is_never_given_up() {
        let (start, mut clock) = (Instant::now(), clock());
        for round in 1..10 {
            assert_eq!(run(&mut clock, start, |_| 0).await, (Verdict::Ask, 8 * round));
            ask(&mut clock, Question::None, 0);
        }
    }
}
