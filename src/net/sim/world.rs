//! The state of a simulated network: its links, its random numbers, its events, the task that carries them out, the faults that a program
//! causes, and the trace of what has happened, with its hash.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Write};
use std::future::poll_fn;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::socket::{Kind, Phase, Segment, Socket};
#[cfg(feature = "inspect")]
use crate::inspect::Simulated;
use crate::net::capture::File;
use crate::sync::{LONGEST, Mutex};

/// The bytes that a socket holds in each direction by default.
const BUFFER: usize = 128 * 1024;

/// A simulated network.
pub(crate) struct World {
    pub(crate) seed: u64,
    /// Another for each network of the process, from 1 on.
    pub(crate) number: u64,
    pub(crate) start: Instant,
    state: Mutex<State>,
    /// Lets no snapshot of another runtime see what belongs to the network.
    #[cfg(feature = "inspect")]
    _simulated: Simulated,
}

/// An event that happens at a set time.
#[derive(Debug)]
pub(super) enum Event {
    /// A segment reaches its host.
    Arrival(Segment),
    /// Something may be due at this socket.
    Clock(u64),
}

/// A host, as the network has it.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) address: IpAddr,
    /// The address of the other family, if it has one.
    pub(super) second: Option<IpAddr>,
    /// It has not crashed.
    pub(super) up: bool,
    /// It has its interface.
    pub(super) attached: bool,
    /// Its programs do not run.
    pub(super) frozen: bool,
    /// Counts the changes of its interface and of its addresses.
    pub(super) version: u64,
    /// The number of its interface, which is another one each time that it comes back.
    pub(super) index: u32,
    pub(super) watchers: Vec<Waker>,
    /// Tasks of its programs that wait until these run again.
    pub(super) stopped: Vec<Waker>,
    /// The port to try next, counted from the start of the range.
    pub(super) next_port: u64,
}

impl Place {
    /// Returns whether segments come and go.
    pub(super) fn is_on_line(&self) -> bool {
        self.up && self.attached
    }
}

/// A socket that listens.
#[derive(Debug, Default)]
pub(super) struct Listening {
    pub(super) id: u64,
    pub(super) host: usize,
    /// Connections that were not accepted.
    pub(super) queue: VecDeque<u64>,
    pub(super) waiters: Vec<Waker>,
}

/// The state of a network, under its lock.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The time of the event that is carried out, since the start.
    pub(super) now: Duration,
    pub(super) rng: Rng,
    /// The numbers that the program draws, apart so that it does not disturb the network.
    choices: Rng,
    pub(super) trace: Trace,
    /// The hosts by their numbers. None is ever removed.
    pub(super) places: Vec<Place>,
    pub(super) addresses: BTreeMap<IpAddr, usize>,
    pub(super) links: BTreeMap<(usize, usize), Link>,
    pub(super) sockets: BTreeMap<u64, Socket>,
    /// The sockets by their local and remote addresses.
    pub(super) pairs: BTreeMap<(SocketAddr, SocketAddr), u64>,
    pub(super) listening: BTreeMap<SocketAddr, Listening>,
    /// The limits of `output` and of `input` of new sockets.
    pub(super) buffers: (usize, usize),
    events: BTreeMap<(Duration, u64), Event>,
    next: u64,
    /// The task that carries out the events, and when it next will.
    driver: Option<Waker>,
    asleep_until: Option<Duration>,
    /// Woken without the lock.
    pub(super) wakes: Vec<Waker>,
}

impl State {
    /// Returns a number that nothing else of this network has.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Schedules an event.
    pub(super) fn schedule(&mut self, at: Duration, event: Event) {
        let number = self.number();
        self.events.insert((at, number), event);
    }

    /// Returns the link from one host to another.
    pub(super) fn link(&mut self, from: usize, to: usize) -> &mut Link {
        self.link_and_rng(from, to).0
    }

    /// Returns the link from one host to another, and what it draws its numbers from.
    pub(super) fn link_and_rng(&mut self, from: usize, to: usize) -> (&mut Link, &mut Rng) {
        let link = self.links.entry((from, to)).or_insert_with(|| {
            let mut link = Link::default();
            if from == to {
                link.settings.latency = Duration::ZERO..=Duration::ZERO;
            }
            link
        });
        (link, &mut self.rng)
    }

    /// Carries out the events of this time and before. Returns when the next one is.
    fn advance(&mut self, now: Duration) -> Option<Duration> {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > now {
                return Some(entry.key().0);
            }
            self.now = self.now.max(entry.key().0);
            match entry.remove() {
                Event::Arrival(segment) => self.arrive(segment),
                Event::Clock(socket) => self.tick(socket),
            }
        }
        None
    }
}

impl World {
    /// Creates a network without hosts, whose task runs on the runtime of the caller.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut rng = Rng(seed);
        let choices = Rng(rng.next());
        let state = State { rng, choices, buffers: (BUFFER, BUFFER), ..State::default() };
        let world = Arc::new(Self {
            seed,
            number,
            start: Instant::now(),
            state: Mutex::new(state),
            #[cfg(feature = "inspect")]
            _simulated: Simulated::note(),
        });
        tokio::spawn(drive(Arc::downgrade(&world), world.start));
        world
    }

    /// Changes the state at this time. The task of the network then wakes those that the change concerns, as the
    /// kernel's events come from the runtime and not from the call: a waker may use a connection whose lock the
    /// caller has.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let now = self.start.elapsed();
        state.advance(now);
        state.now = state.now.max(now);
        let result = change(&mut state);
        let first = state.events.first_key_value().map(|((at, _), _)| *at);
        let earlier = first.is_some_and(|first| state.asleep_until.is_none_or(|until| first < until));
        let driver = if earlier || !state.wakes.is_empty() { state.driver.take() } else { None };
        drop(state);
        driver.into_iter().for_each(Waker::wake);
        result
    }

    /// Draws a number of the range for the program.
    pub(crate) fn choose(&self, range: &std::ops::RangeInclusive<u64>) -> u64 {
        self.with(|state| state.choices.within(range))
    }

    /// Returns the number of sockets.
    pub(crate) fn sockets(&self) -> usize {
        self.with(|state| state.sockets.len() + state.listening.len())
    }

    /// Sets how many bytes the sockets made from now on hold in each direction.
    pub(crate) fn set_buffers(&self, output: usize, input: usize) {
        self.with(|state| state.buffers = (output.max(1), input.max(1)));
    }

    /// Uses the trace, which has all that has happened until now.
    pub(crate) fn with_trace<R>(&self, act: impl FnOnce(&mut Trace) -> R) -> R {
        self.with(|state| act(&mut state.trace))
    }

    /// Carries out what is due, and sleeps until the next event.
    fn poll_events(&self, sleep: &mut Pin<Box<Sleep>>, cx: &mut Context<'_>) {
        loop {
            let mut state = self.state.lock();
            let next = state.advance(self.start.elapsed());
            state.asleep_until = next;
            let wakes = std::mem::take(&mut state.wakes);
            let old = state.driver.replace(cx.waker().clone());
            drop(state);
            drop(old);
            wakes.into_iter().for_each(Waker::wake);
            // An event beyond the end of the clock never happens.
            let Some(until) = next.and_then(|next| self.start.checked_add(next)) else { return };
            sleep.as_mut().reset(until);
            if sleep.as_mut().poll(cx).is_pending() {
                return;
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The task finds that there is nothing left.
        if let Some(driver) = self.state.get_mut().driver.take() {
            driver.wake();
        }
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("seed", &self.seed).finish_non_exhaustive()
    }
}

/// Drives the events of a network, for as long as it has a handle.
async fn drive(world: Weak<World>, start: Instant) {
    let mut sleep = Box::pin(sleep_until(start));
    poll_fn(|cx| {
        let Some(world) = world.upgrade() else { return Poll::Ready(()) };
        world.poll_events(&mut sleep, cx);
        Poll::Pending
    })
    .await;
}

impl State {
    /// Wakes every task that waits at a host.
    fn wake_host(&mut self, host: usize) {
        let sockets: Vec<_> =
            self.sockets.iter().filter(|(_, socket)| socket.host == host).map(|(id, _)| *id).collect();
        sockets.into_iter().for_each(|id| self.wake_socket(id));
        for listener in self.listening.values_mut().filter(|listener| listener.host == host) {
            self.wakes.append(&mut listener.waiters);
        }
    }

    /// Ends the sockets of a host that has crashed: one that has a handle stays, and nothing happens to it.
    fn drop_sockets(&mut self, host: usize) {
        let mut unseen = Vec::new();
        self.listening.retain(|_, listener| {
            let stays = listener.host != host;
            if !stays {
                unseen.extend(listener.queue.drain(..));
                self.wakes.append(&mut listener.waiters);
            }
            stays
        });
        for (id, socket) in self.sockets.iter_mut().filter(|(_, socket)| socket.host == host) {
            if socket.orphan || socket.phase == Phase::Accepting {
                unseen.push(*id);
            }
            socket.phase = Phase::Gone;
            self.pairs.remove(&(socket.local, socket.remote));
        }
        for id in unseen {
            self.remove_socket(id);
        }
    }

    /// Notifies the monitors of a host that its interface or its addresses have changed.
    pub(super) fn readdress(&mut self, host: usize) {
        let place = &mut self.places[host];
        place.version += 1;
        self.wakes.append(&mut place.watchers);
    }

    pub(super) fn note(&mut self, host: usize, what: &str) {
        self.trace.note(self.now, format!("{} {what}", self.places[host].address));
    }

    fn note_pair(&mut self, (from, to): (usize, usize), what: &str) {
        // A host of another network may have a higher number.
        if let (Some(from), Some(to)) = (self.places.get(from), self.places.get(to)) {
            self.trace.note(self.now, format!("{} > {} {what}", from.address, to.address));
        }
    }
}

impl World {
    /// Changes the settings of one direction of a link.
    pub(crate) fn set_link(&self, from: usize, to: usize, change: impl FnOnce(&mut Settings)) {
        self.with(|state| change(&mut state.link(from, to).settings));
    }

    /// Returns the settings of one direction of a link.
    pub(crate) fn link_settings(&self, from: usize, to: usize) -> Settings {
        self.with(|state| state.link(from, to).settings.clone())
    }

    /// Loses all segments of one direction for so long; `Duration::ZERO` ends that.
    pub(crate) fn cut(&self, from: usize, to: usize, time: Duration) {
        self.disturb((from, to), time, "cut", |link, until| link.cut_until = until);
    }

    /// Holds all segments of one direction for so long.
    pub(crate) fn stall(&self, from: usize, to: usize, time: Duration) {
        self.disturb((from, to), time, "stalled", |link, until| link.stalled_until = until);
    }

    fn disturb(&self, way: (usize, usize), time: Duration, what: &str, set: fn(&mut Link, Duration)) {
        self.with(|state| {
            let until = state.now + time.min(LONGEST);
            set(state.link(way.0, way.1), until);
            state.note_pair(way, &format!("{what} until {until:?}"));
        });
    }

    /// Resets all connections of two hosts, at both ends. Returns their number.
    pub(crate) fn reset_between(&self, first: usize, second: usize) -> usize {
        self.with(|state| {
            state.note_pair((first, second), "connections reset");
            let ends: Vec<_> = state
                .sockets
                .iter()
                .filter(|(_, socket)| {
                    let peer = state.addresses.get(&socket.remote.ip());
                    let between = |a, b| socket.host == a && peer == Some(&b);
                    socket.phase == Phase::Open && (between(first, second) || between(second, first))
                })
                .map(|(id, socket)| (*id, socket.connection))
                .collect();
            let mut connections: Vec<_> = ends.iter().map(|(_, connection)| *connection).collect();
            connections.sort_unstable();
            connections.dedup();
            ends.into_iter().for_each(|(id, _)| state.fail(id, libc::ECONNRESET));
            connections.len()
        })
    }

    /// Stops a host, without a segment to any peer.
    pub(crate) fn crash(&self, host: usize) {
        self.with(|state| {
            state.note(host, "crashed");
            state.drop_sockets(host);
            let place = &mut state.places[host];
            place.up = false;
            place.frozen = false;
            place.index += 1;
            state.wakes.append(&mut place.stopped);
            state.readdress(host);
        });
    }

    /// Starts a host again.
    pub(crate) fn restart(&self, host: usize) {
        self.with(|state| {
            state.note(host, "restarted");
            state.places[host].up = true;
            state.readdress(host);
        });
    }

    /// Stops the programs of a host, or lets them run again.
    pub(crate) fn freeze(&self, host: usize, frozen: bool) {
        self.with(|state| {
            state.note(host, if frozen { "frozen" } else { "thawed" });
            state.places[host].frozen = frozen;
            if !frozen {
                state.wakes.append(&mut state.places[host].stopped);
                state.wake_host(host);
            }
        });
    }

    /// Takes the interface of a host away, or gives it back.
    pub(crate) fn attach(&self, host: usize, attached: bool) {
        self.with(|state| {
            state.note(host, if attached { "interface added" } else { "interface removed" });
            let place = &mut state.places[host];
            place.attached = attached;
            place.index += u32::from(!attached);
            state.readdress(host);
        });
    }
}

/// The most bytes of a segment: with its headers it fits the length field of IP.
const MOST: usize = 65_000;

/// The settings of a link, one direction of it.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The time that a segment is on its way.
    pub(crate) latency: RangeInclusive<Duration>,
    /// Bytes per second; `None` is without limit.
    pub(crate) bandwidth: Option<u64>,
    /// The most bytes that a segment has.
    pub(crate) segments: RangeInclusive<usize>,
    /// The time without a segment after which a box on the way drops a connection.
    pub(crate) idle_limit: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        let latency = Duration::from_millis(1);
        Self { latency: latency..=latency, bandwidth: None, segments: 1460..=1460, idle_limit: None }
    }
}

/// A link, one direction of it.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) settings: Settings,
    /// The time at which the last segment has left the host.
    pub(super) free_at: Duration,
    /// Every segment is lost until then.
    pub(super) cut_until: Duration,
    /// No segment leaves the host until then.
    pub(super) stalled_until: Duration,
}

impl Link {
    /// Returns when a segment of this length that is sent now arrives, and when it would without the rest of the stall.
    pub(super) fn carry(&mut self, now: Duration, length: usize, rng: &mut Rng) -> (Duration, Duration) {
        let start = now.max(self.free_at).max(self.stalled_until);
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let time = self.settings.bandwidth.map_or(0, |bandwidth| {
            let time = length as u128 * 1_000_000_000 / u128::from(bandwidth.max(1));
            u64::try_from(time).unwrap_or(u64::MAX)
        });
        self.free_at = start.saturating_add(Duration::from_nanos(time));
        let latency = nanos(*self.settings.latency.start())..=nanos(*self.settings.latency.end());
        let arrival = self.free_at.saturating_add(Duration::from_nanos(rng.within(&latency)));
        (arrival, arrival.saturating_sub(self.stalled_until.saturating_sub(now)))
    }

    /// Returns the most bytes of the next segment.
    pub(super) fn segment(&self, rng: &mut Rng) -> usize {
        let (start, end) = (*self.settings.segments.start() as u64, *self.settings.segments.end() as u64);
        usize::try_from(rng.within(&(start..=end))).unwrap_or(usize::MAX).clamp(1, MOST)
    }
}

/// A generator (SplitMix64): the same numbers from the same seed.
#[derive(Debug, Default)]
pub(super) struct Rng(pub(super) u64);

impl Rng {
    /// Returns the next number.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number of the range; its start if it is empty.
    pub(super) fn within(&mut self, range: &RangeInclusive<u64>) -> u64 {
        let (start, end) = (*range.start(), *range.end());
        if start >= end {
            return start;
        }
        // The high half of a product: as even as a test needs it.
        let count = u128::from(end - start) + 1;
        let offset = (u128::from(self.next()) * count) >> 64;
        start + u64::try_from(offset).unwrap_or(0)
    }
}

/// The number of events that are kept as text. The hash covers all events.
const KEPT: usize = 4096;

/// A hash that is the same on every run: eight bytes at a time, because it covers everything that is sent.
#[derive(Debug)]
struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(1)
    }
}

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    // A product carries a difference only upwards, the shift carries it down again. Both can be undone, so no difference is
    // lost on the way.
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 ^= self.0 >> 32;
    }
}

/// An event that is kept.
#[derive(Debug)]
enum Entry {
    /// A segment has arrived, or was lost.
    Segment {
        from: SocketAddr,
        to: SocketAddr,
        kind: Kind,
        sequence: u64,
        length: usize,
        end: bool,
        lost: bool,
    },
    /// Something else.
    Note(String),
}

/// The events of a network.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    hash: Digest,
    kept: VecDeque<(Duration, Entry)>,
    capture: Option<File>,
}

impl Trace {
    /// Captures the segments that arrive from now on.
    pub(crate) fn capture(&mut self) {
        self.capture = Some(File::new());
    }

    /// Returns the file of the capture, if there is one.
    pub(crate) fn pcap(&self) -> Option<Vec<u8>> {
        self.capture.as_ref().map(|capture| capture.bytes().to_vec())
    }

    /// Returns the hash over all events so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// Records a segment that has arrived, or was lost.
    pub(super) fn segment(&mut self, at: Duration, segment: &Segment, lost: bool) {
        (at, segment, lost).hash(&mut self.hash);
        if let Some(capture) = self.capture.as_mut().filter(|_| !lost) {
            capture.add(at, &segment.packet());
        }
        let Segment { from, to, kind, sequence, end, .. } = *segment;
        let length = segment.bytes.len();
        self.keep(at, Entry::Segment { from, to, kind, sequence, length, end, lost });
    }

    /// Records another event.
    pub(super) fn note(&mut self, at: Duration, note: String) {
        (at, &note).hash(&mut self.hash);
        self.keep(at, Entry::Note(note));
    }

    fn keep(&mut self, at: Duration, event: Entry) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((at, event));
    }

    /// Returns the last events, a line each.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (at, event) in &self.kept {
            // Writing to a string does not fail.
            let _ = match event {
                Entry::Segment { from, to, kind, sequence, length, end, lost } => {
                    let end = if *end { " end" } else { "" };
                    let lost = if *lost { " lost" } else { "" };
                    writeln!(
                        text,
                        "{:.6} {from} > {to} {kind:?} {sequence}+{length}{end}{lost}",
                        at.as_secs_f64()
                    )
                }
                Entry::Note(note) => writeln!(text, "{:.6} {note}", at.as_secs_f64()),
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_takes_its_time() {
        let (second, zero) = (Duration::from_secs(1), Duration::ZERO);
        let settings = Settings { latency: second..=second, bandwidth: Some(1000), ..Settings::default() };
        let (mut link, mut rng) = (Link { settings, ..Link::default() }, Rng(1));
        let (first, next) = (Duration::from_millis(1500), Duration::from_millis(2000));
        assert_eq!(link.carry(zero, 500, &mut rng), (first, first));
        // The second waits for the first.
        assert_eq!(link.carry(zero, 500, &mut rng), (next, next));
        link.stalled_until = 10 * second;
        assert_eq!(link.carry(5 * second, 0, &mut rng), (11 * second, 6 * second));
    }

    #[test]
    fn random_numbers_follow_range_and_seed() {
        let draw = |seed| {
            let mut rng = Rng(seed);
            (0..100).map(|_| rng.within(&(3..=5))).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        for number in 3..=5 {
            assert!(draw(1).contains(&number));
        }
        assert!(draw(1).iter().all(|number| (3..=5).contains(number)));
        let mut rng = Rng(7);
        assert_eq!(rng.within(&(9..=9)), 9);
        assert!((0..1000).map(|_| rng.within(&(0..=u64::MAX))).any(|number| number > u64::MAX / 2));
    }
}
