//! The time limits of a connection: of a silent peer, and of a message that arrives in a shared receive.
//!
//! [`PathTimeout`] decides when a silent peer is asked for a sign of life, and when its connection is lost. A
//! sign of life is a byte that the peer sent. A byte that its kernel acknowledged is one only while a
//! question waits behind others in the kernel of this end: a slow reader reads the question late, but the
//! kernel of a stopped process acknowledges too, until its buffer is full.
//!
//! The device of a byte stream's peer answers a read as soon as its kernel has it, whatever the program does:
//! it posts its receives itself, so no message waits for one. Other bytes are no answer. The peer may
//! honestly send before the answer only what it had queued, which is limited by the ring of the stream and
//! the buffer of its socket, and may come slowly. So each [`PROGRESS`] bytes give the peer another path
//! timeout, and [`MOST`] of them are more than any queue. A peer with a shared receive queue is different: it
//! reads nothing while a message waits for a receive, and sends empty Writes for as long.
//!
//! [`MessageTimeout`] limits the time of a message in a shared receive (RFC 5042 section 6.4.1): a peer that
//! sends half a message holds a receive that others could use.
//!
//! A [`Metronome`] keeps a timer of the runtime that is due before those of new connections. A timer that is due before all others of its
//! runtime interrupts the thread that waits for events, by a system call and one more turn of its loop. Each timer of a new connection
//! would do that, and most of them are dropped long before they are due. While connections are made, the metronome is due first, and none
//! of them does.

use std::num::NonZero;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::task::coop::has_budget_remaining;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// The time that a peer may be silent after the start-up before this end sends or allows its first frame.
///
/// siw sends its reply before it listens for frames, and processes one that came in between only when another
/// frame follows. So an initiator sends an empty Write.
///
/// An initiator that is not peer-to-peer has to send first (RFC 5044 section 7.1.3), but with siw it is up to
/// the application, and some let the server begin. So a responder waits this long, because siw drops a
/// connection whose first frame comes together with the reply, and then sends its requests. If the reply is
/// lost, it waits until that has arrived.
const NUDGE: Duration = Duration::from_millis(200);
/// The number of ticks in a path timeout while a connection is busy or awaits an answer. A loss is noticed at
/// most one tick late.
const TICKS: u32 = 16;
/// The number of reads between two checks from which on a connection is busy: the time of a read is then
/// known by the tick alone.
pub(super) const BUSY: u32 = 64;

/// The number of path timeouts that an answer may take: one without a byte, which the path timeout allows,
/// and one of its own.
const ANSWER: u32 = 2;
/// The number of bytes before an answer that give it another path timeout.
const PROGRESS: u64 = 64 * 1024;
/// The most bytes that count as progress.
const MOST: u64 = 16 * 1024 * 1024;
/// The time between two ticks of a connection without a path timeout.
const REST: Duration = Duration::from_secs(15);

/// A tick of the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tick {
    /// [`NUDGE`] after the start-up.
    Nudge,
    /// The silence of the peer is to be judged.
    Check,
    /// There is no path timeout: unused memory is returned, and nothing else is due.
    Rest,
}

/// The decision at a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing is to be done.
    Alive,
    /// Ask the peer for a sign of life, and report the [`Question`].
    Ask,
    /// End the connection as lost.
    Lost,
}

/// The outcome of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// The peer owes an answer once it has read this many bytes of the stream.
    Asked(u64),
    /// The socket is full. Its bytes have to be acknowledged first.
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

/// The oldest read without an answer, and the progress of the connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    /// The number of the read.
    pub(super) question: u32,
    /// The number of bytes that the socket has taken.
    pub(super) written: u64,
    /// The socket has taken all that is framed, and so the read.
    pub(super) drained: bool,
    /// The number of bytes that the kernel of the peer has acknowledged.
    pub(super) acknowledged: u64,
    /// The number of bytes that have come from the peer.
    pub(super) received: u64,
}

/// The wait for the answer to a read.
struct Debt {
    question: u32,
    /// The number of bytes that were written when the socket had taken the read.
    end: Option<u64>,
    /// The number of bytes that had come from the peer when its kernel had acknowledged the read.
    received: Option<u64>,
    /// The time since then, in which a tick that is late counts as one in time.
    waited: Duration,
    /// The last check.
    checked: Instant,
}

/// Measures the silence of the peer.
pub(super) struct PathTimeout {
    sleep: Pin<Box<Sleep>>,
    /// The task that has polled last is woken by the timer.
    armed: bool,
    /// In milliseconds, as timers are. `None` if there is no path timeout, and the peer is not judged.
    timeout: Option<NonZero<u32>>,
    next: Tick,
    /// The socket has its keepalive.
    is_kept_alive: bool,
    /// At the last nudge, the peer's host did not have the reply.
    late: bool,
    /// Reads since the last tick.
    reads: u32,
    /// Each read is stamped with its time.
    stamps: bool,
    /// The time of the last byte.
    heard: Instant,
    /// The last sign of life.
    alive: Instant,
    /// Both are in boxes, because most connections have none.
    open: Option<Box<Open>>,
    debt: Option<Box<Debt>>,
}

/// Returns the number of milliseconds, at least one: a part of one counts as one.
fn in_milliseconds(time: Duration) -> NonZero<u32> {
    let whole = time.as_nanos().div_ceil(1_000_000);
    u32::try_from(whole)
        .map_or(NonZero::<u32>::MAX, |whole| NonZero::new(whole).unwrap_or(NonZero::<u32>::MIN))
}

impl PathTimeout {
    /// Creates the timeouts of a connection. `nudges`: whether the first tick is a nudge.
    pub(super) fn new(timeout: Option<Duration>, nudges: bool) -> Self {
        let now = Instant::now();
        let (first, next) = match timeout {
            _ if nudges => (NUDGE, Tick::Nudge),
            Some(timeout) => (timeout / TICKS, Tick::Check),
            None => (REST, Tick::Rest),
        };
        let sleep = Box::pin(sleep_until(now + first));
        Self {
            sleep,
            armed: false,
            timeout: timeout.map(in_milliseconds),
            next,
            is_kept_alive: false,
            late: false,
            reads: 0,
            stamps: timeout.is_some(),
            heard: now,
            alive: now,
            open: None,
            debt: None,
        }
    }

    /// Returns the path timeout.
    fn timeout(&self) -> Option<Duration> {
        self.timeout.map(|timeout| Duration::from_millis(timeout.get().into()))
    }

    /// Resolves at the next tick. [`rearm`](Self::rearm) sets the one after it. `known` if the same task has
    /// polled last.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, known: bool) -> Poll<Tick> {
        if known && self.armed && !self.sleep.is_elapsed() {
            return Poll::Pending;
        }
        // Without budget, the poll only wakes the task again.
        self.armed = has_budget_remaining();
        ready!(self.sleep.as_mut().poll(cx));
        Poll::Ready(self.next)
    }

    /// Sets the next tick.
    pub(super) fn rearm(&mut self) {
        let now = Instant::now();
        let (tick, next) = match (self.timeout(), &self.open) {
            (None, _) => (Tick::Rest, now + REST),
            (Some(timeout), Some(_)) => (Tick::Check, (now + timeout / TICKS).min(self.alive + timeout)),
            // The first check finds out whether the connection is busy.
            (Some(timeout), None) if self.stamps && self.next == Tick::Check && self.debt.is_none() => {
                (Tick::Check, self.heard + timeout / 2)
            }
            (Some(timeout), None) => (Tick::Check, now + timeout / TICKS),
        };
        self.next = tick;
        self.sleep.as_mut().reset(next);
        self.armed = false;
    }

    /// Uses the timer for the close of the connection from now on: [`poll_close`](Self::poll_close) resolves at this time.
    pub(super) fn close_at(&mut self, time: Instant) {
        self.sleep.as_mut().reset(time);
    }

    /// Resolves at the time of the last [`close_at`](Self::close_at), also if the task has no budget left.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let due = self.sleep.as_mut().poll(cx).is_ready();
        if due || Instant::now() >= self.sleep.deadline() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Returns the path timeout for the keepalive of the socket, once.
    pub(super) fn take_keepalive(&mut self) -> Option<Duration> {
        self.timeout().filter(|_| !std::mem::replace(&mut self.is_kept_alive, true))
    }

    /// Postpones the nudge if the peer's host does not have the reply yet, or has had it for less than a
    /// nudge. Returns `false` if the nudge is due, or the first check would be before it.
    pub(super) fn postpones_nudge(&mut self, has_reply: bool) -> bool {
        let next = Instant::now() + NUDGE;
        let was_late = std::mem::replace(&mut self.late, !has_reply);
        let is_before_check = self.timeout().is_none_or(|timeout| next < self.heard + timeout / 2);
        let postpones = (was_late || !has_reply) && is_before_check;
        if postpones {
            self.sleep.as_mut().reset(next);
            self.armed = false;
        }
        postpones
    }

    /// Records that the peer has sent bytes.
    pub(super) fn received(&mut self) {
        self.received_before((1, None));
    }

    /// Records reads by others than the task: their number, and the time of the last one if it is known.
    pub(super) fn received_before(&mut self, (reads, last): (u32, Option<Instant>)) {
        self.reads = self.reads.saturating_add(reads);
        if self.stamps {
            self.heard = last.unwrap_or_else(Instant::now);
        }
    }

    /// Returns whether the time of each read is needed.
    pub(super) fn stamps(&self) -> bool {
        self.stamps
    }

    /// Leaves the time of reads to the ticks if the connection is busy, and lets the next one come soon.
    pub(super) fn follow_ticks_if_busy(&mut self) {
        if self.stamps && self.reads > BUSY && self.next == Tick::Check {
            self.stamps = false;
            self.rearm();
        }
    }

    /// Records a sign of life of a peer that owes nothing, though it may be silent.
    pub(super) fn excuse(&mut self) {
        self.heard = Instant::now();
        self.alive = self.heard;
        self.open = None;
        self.reads = 0;
        self.stamps = true;
    }

    /// Judges a peer that is not read, because its message waits for a receive: it lives, unless its kernel
    /// has acknowledged nothing for the path timeout although this end repeats its bytes.
    pub(super) fn check_unread(&mut self, unanswered: Option<Duration>) -> Verdict {
        if unanswered.zip(self.timeout()).is_some_and(|(silence, timeout)| silence >= timeout) {
            return Verdict::Lost;
        }
        self.excuse();
        // The next check comes at the next tick if acknowledgements are outstanding.
        self.stamps = unanswered.is_none();
        Verdict::Alive
    }

    /// Judges a peer that owes an answer, whatever else it sends. Its device must answer in order, whatever
    /// its program does.
    pub(super) fn check_answer(&mut self, owed: Option<Owed>) -> Verdict {
        let (Some(timeout), Some(owed)) = (self.timeout(), owed) else {
            self.debt = None;
            return Verdict::Alive;
        };
        let now = Instant::now();
        let question = owed.question;
        let debt = match &mut self.debt {
            Some(debt) if debt.question == question => debt,
            other => {
                let waited = Duration::ZERO;
                other.insert(Box::new(Debt { question, end: None, received: None, waited, checked: now }))
            }
        };
        let passed = now - std::mem::replace(&mut debt.checked, now);
        if debt.end.is_none() && owed.drained {
            debt.end = Some(owed.written);
        }
        match debt.received {
            None => {
                let is_acknowledged = debt.end.is_some_and(|end| owed.acknowledged >= end);
                debt.received = is_acknowledged.then_some(owed.received);
                Verdict::Alive
            }
            Some(before) => {
                // This task may be late, and bytes of the peer unread.
                debt.waited += passed.min(timeout / TICKS);
                let more = (owed.received - before).min(MOST) / PROGRESS;
                let limit = timeout * (ANSWER + more as u32);
                if debt.waited >= limit { Verdict::Lost } else { Verdict::Alive }
            }
        }
    }

    /// Judges the silence of the peer, whose kernel has acknowledged this many bytes.
    pub(super) fn check(&mut self, acknowledged: u64) -> Verdict {
        let Some(timeout) = self.timeout() else { return Verdict::Alive };
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
        match self.open.as_deref() {
            Some(_) if now >= self.alive + timeout => Verdict::Lost,
            // The socket may have room for the question now.
            Some(Open { end: None, .. }) => Verdict::Ask,
            None if now >= self.heard + timeout / 2 => Verdict::Ask,
            Some(_) | None => Verdict::Alive,
        }
    }

    /// Records the outcome of a question.
    pub(super) fn asked(&mut self, question: Question, acknowledged: u64) {
        let end = match question {
            Question::Asked(end) => Some(end),
            Question::Full => None,
            Question::None => return self.excuse(),
        };
        if self.open.is_none()
            && let Some(timeout) = self.timeout()
        {
            // The peer has its time, also if this task was late.
            self.alive = self.alive.max(Instant::now() - timeout / 2);
        }
        // Only bytes that are still unacknowledged at the next check were queued before others.
        let queued = self.open.as_ref().is_some_and(|open| open.queued);
        self.open = Some(Box::new(Open { end, acknowledged, queued }));
    }
}

/// A message that brings this many bytes within the limit goes on, however long it is.
const MESSAGE_PROGRESS: usize = 64 * 1024;

/// Measures how long a message makes no progress.
pub(super) struct MessageTimeout {
    limit: Duration,
    /// The last wait for more of a message: the number of the message, its bytes at that time, and the time.
    since: Option<(u32, usize, Instant)>,
    /// Armed for the time at which a message is checked again; kept from message to message.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl MessageTimeout {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, since: None, sleep: None }
    }

    /// Returns when the time of the unfinished message is up unless more of it comes. `progress` is its
    /// number and how many of its bytes have come.
    fn deadline(&mut self, progress: Option<(u32, usize)>) -> Option<Instant> {
        let Some((message, bytes)) = progress else {
            self.since = None;
            return None;
        };
        let begun = match self.since {
            Some((known, before, begun)) if known == message && bytes < before + MESSAGE_PROGRESS => begun,
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
    pub(super) fn is_over(&mut self, progress: Option<(u32, usize)>) -> bool {
        self.deadline(progress).is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Resolves when the message has made no progress for too long. To be called when the task has nothing to
    /// read, or no budget.
    pub(super) fn poll(&mut self, progress: Option<(u32, usize)>, cx: &mut Context<'_>) -> Poll<()> {
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
    use std::future::poll_fn;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(16);
    const TICK: Duration = Duration::from_secs(1);

    /// Creates the timeouts of a connection without a nudge, at the second zero.
    fn clock() -> PathTimeout {
        PathTimeout::new(Some(TIMEOUT), false)
    }

    /// Waits for the next check, and returns the verdict with the seconds since `start`.
    async fn check(clock: &mut PathTimeout, start: Instant, acknowledged: u64) -> (Verdict, u64) {
        assert_eq!(poll_fn(|cx| clock.poll(cx, true)).await, Tick::Check);
        let found = (clock.check(acknowledged), start.elapsed().as_secs());
        if found.0 == Verdict::Alive {
            clock.rearm();
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
        clock.rearm();
    }

    #[tokio::test(start_paused = true)]
    async fn a_nudge_comes_before_the_checks() {
        let start = Instant::now();
        let mut clock = PathTimeout::new(Some(TIMEOUT), true);
        assert_eq!(poll_fn(|cx| clock.poll(cx, true)).await, Tick::Nudge);
        assert_eq!(start.elapsed().as_millis() / 100, 2);
        clock.rearm();
        assert_eq!(check(&mut clock, start, 0).await, (Verdict::Alive, 1));
    }

    // Without a path timeout memory is returned at times, and the peer is not judged (SEC-12).
    #[tokio::test(start_paused = true)]
    async fn without_a_path_timeout_only_memory_is_due() {
        for nudges in [false, true] {
            let start = Instant::now();
            let mut clock = PathTimeout::new(None, nudges);
            if nudges {
                assert_eq!(poll_fn(|cx| clock.poll(cx, true)).await, Tick::Nudge);
                clock.rearm();
            }
            for round in 1..=3 {
                assert_eq!(poll_fn(|cx| clock.poll(cx, true)).await, Tick::Rest);
                assert_eq!(start.elapsed().as_secs(), round * REST.as_secs());
                clock.received();
                clock.rearm();
            }
        }
    }

    /// Runs to the loss of a peer that answers no read, with bytes received by the second, for at most so
    /// many seconds.
    async fn answerless(received: impl Fn(u64) -> u64, seconds: u64) -> Option<u64> {
        let (start, mut clock) = (Instant::now(), clock());
        loop {
            poll_fn(|cx| clock.poll(cx, true)).await;
            let second = start.elapsed().as_secs();
            clock.received();
            assert_eq!(clock.check(100), Verdict::Alive, "something has come");
            let (written, acknowledged) = (100, if second < 5 { 99 } else { 100 });
            let (drained, received) = (second > 1, received(second));
            let owed = Owed { question: 7, written, drained, acknowledged, received };
            if clock.check_answer(Some(owed)) == Verdict::Lost {
                return Some(second);
            }
            if second >= seconds {
                return None;
            }
            clock.rearm();
        }
    }

    // The kernel of this peer has the question, and its device sends anything but the answer (SEC-04).
    #[tokio::test(start_paused = true)]
    async fn other_bytes_are_no_answer() {
        let timeout = TIMEOUT.as_secs();
        assert_eq!(answerless(|second| second * 20, 1000).await, Some(5 + 2 * timeout));
        // A peer that sends much more does not go on for ever.
        let end = 5 + (2 + MOST / PROGRESS) * timeout;
        assert_eq!(answerless(|second| second << 30, 2 * end).await, Some(end));
    }

    // Bytes that were queued before the answer come slowly (SEC-03).
    #[tokio::test(start_paused = true)]
    async fn bytes_before_a_slow_answer_keep_the_peer() {
        let per_second = PROGRESS / TIMEOUT.as_secs();
        assert_eq!(answerless(|second| second * per_second, 500).await, None);
    }

    // A process that was stopped finds the answer when it reads again.
    #[tokio::test(start_paused = true)]
    async fn a_late_check_counts_as_one_tick() {
        let mut clock = clock();
        let mut check = |question| {
            clock.check_answer(Some(Owed {
                question,
                written: 1,
                drained: true,
                acknowledged: 1,
                received: 0,
            }))
        };
        assert_eq!(check(1), Verdict::Alive);
        for _ in 0..2 * TICKS - 1 {
            tokio::time::advance(100 * TIMEOUT).await;
            assert_eq!(check(1), Verdict::Alive);
        }
        tokio::time::advance(TICK).await;
        assert_eq!(check(2), Verdict::Alive, "the first is answered");
        for _ in 0..2 * TICKS {
            assert_eq!(check(2), Verdict::Alive);
            tokio::time::advance(TICK).await;
        }
        assert_eq!(check(2), Verdict::Lost);
    }

    /// The number of acknowledged bytes at a second.
    type BySecond = fn(u64) -> u64;

    // A peer that owes an answer is asked halfway, and lost at the path timeout, unless it gives a sign of life.
    #[tokio::test(start_paused = true)]
    async fn silent_peer_is_probed_halfway_then_lost() {
        let acknowledged_at_once = |second| if second > 8 { 20 } else { 0 };
        let steadily = |second| second * 100;
        let slowly = |second: u64| second.min(60);
        let cases: [(BySecond, _, _); 3] = [
            // An acknowledgement of the question by the peer's kernel is no sign of life (SEC-04).
            (acknowledged_at_once, 20, 16),
            // Nor are those of later bytes, by the kernel of a stopped process (SEC-04).
            (steadily, 820, 16),
            // While the question waits behind others, an acknowledged byte is one (SEC-03).
            (slowly, 100, 60 + 16),
        ];
        for (acknowledged, question, lost) in cases {
            let (start, mut clock) = (Instant::now(), clock());
            assert_eq!(run(&mut clock, start, acknowledged).await, (Verdict::Ask, 8));
            ask(&mut clock, Question::Asked(question), acknowledged(8));
            assert_eq!(run(&mut clock, start, acknowledged).await, (Verdict::Lost, lost));
        }
    }

    // A question that found the socket full is repeated until there is room for it (SEC-03).
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
    async fn late_check_still_probes_before_loss() {
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

    // The clock is not read for each of many reads, as soon as there are many.
    #[tokio::test(start_paused = true)]
    async fn connection_that_becomes_busy_is_checked_soon() {
        let (start, mut clock) = (Instant::now(), clock());
        assert_eq!(check(&mut clock, start, 0).await, (Verdict::Alive, 1));
        for _ in 0..=2 * BUSY {
            clock.received();
            clock.follow_ticks_if_busy();
        }
        assert!(!clock.stamps);
        assert_eq!(check(&mut clock, start, 0).await, (Verdict::Alive, 2));
        assert_eq!(run(&mut clock, start, |_| 0).await, (Verdict::Ask, 10));
        ask(&mut clock, Question::Asked(20), 0);
        assert_eq!(run(&mut clock, start, |_| 20).await, (Verdict::Lost, 18));
    }

    // A peer whose bytes are not read lives as long as its kernel acknowledges (SEC-03, SEC-04).
    #[tokio::test(start_paused = true)]
    async fn unread_peer_is_lost_only_without_acknowledgements() {
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
            clock.rearm();
            poll_fn(|cx| clock.poll(cx, true)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn peer_that_owes_nothing_is_never_lost() {
        let (start, mut clock) = (Instant::now(), clock());
        for round in 1..10 {
            assert_eq!(run(&mut clock, start, |_| 0).await, (Verdict::Ask, 8 * round));
            ask(&mut clock, Question::None, 0);
        }
    }

    const LIMIT: Duration = Duration::from_secs(30);

    /// Returns whether the time of the message is up within so many seconds.
    async fn given_up(clock: &mut MessageTimeout, progress: Option<(u32, usize)>, seconds: u64) -> bool {
        let wait = poll_fn(|cx| clock.poll(progress, cx));
        tokio::time::timeout(Duration::from_secs(seconds), wait).await.is_ok()
    }

    // Each 64 KiB of a message restart its time, and fewer bytes do not (SEC-06).
    #[tokio::test(start_paused = true)]
    async fn message_timeout_restarts_every_64_kib() {
        let (first, second) = (1, 2);
        let mut clock = MessageTimeout::new(LIMIT);
        assert!(!given_up(&mut clock, Some((first, 0)), 20).await);
        assert!(!given_up(&mut clock, Some((first, MESSAGE_PROGRESS)), 20).await, "it goes on");
        assert!(!given_up(&mut clock, None, 60).await, "nothing is unfinished");
        assert!(!given_up(&mut clock, Some((second, 0)), 29).await);
        assert!(!given_up(&mut clock, Some((second, 1)), 0).await);
        assert!(given_up(&mut clock, Some((second, 2)), 2).await, "a trickle is no progress");
    }

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
