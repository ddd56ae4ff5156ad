//! Two ends that lose their connections at every moment, counts that lie, and the bytes of a greeting.

use std::collections::HashSet;
use std::time::Duration;

use super::*;

/// The bytes that the program of each end writes, the window of both ends, and the losses of a run.
const LENGTHS: [u8; 2] = [3, 2];
const WINDOW: u8 = 2;
const LOSSES: u8 = 3;

/// A part of what is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Parcel {
    /// The byte of the stream at this place.
    Byte(u8),
    Acknowledgement(u32),
    /// The passive end agrees, and has read so much.
    Granted(u64),
}

/// One end.
#[derive(Clone, PartialEq, Eq, Hash)]
struct End {
    counts: Counts,
    /// The places of the bytes that are kept.
    kept: Vec<u8>,
    /// How many bytes the program has written and read.
    written: u8,
    read: u8,
    /// The places of the bytes that have arrived and are unread.
    arrived: Vec<u8>,
    /// What is on its way to this end, in order.
    inbox: Vec<Parcel>,
    has_connection: bool,
}

/// A request of the active end to go on.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Ask {
    read: u64,
    /// The active end still waits for the answer.
    is_awaited: bool,
}

/// Two ends, the active one first.
#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    ends: [End; 2],
    /// Each end has a connection, it is the same one, and it carries what is sent.
    is_joined: bool,
    /// The requests on their way, in the order of their epochs. The passive end takes one, and refuses those before it.
    asks: Vec<Ask>,
    losses: u8,
}

const ACTIVE: usize = 0;
const PASSIVE: usize = 1;

impl End {
    fn new() -> Self {
        let counts = Counts::new(WINDOW.into(), WINDOW.into());
        let (kept, arrived, inbox) = Default::default();
        Self { counts, kept, written: 0, read: 0, arrived, inbox, has_connection: true }
    }

    fn free(&mut self, bytes: u64) {
        self.kept.drain(..usize::try_from(bytes).expect("few"));
    }

    /// Goes on over another connection.
    fn resume(&mut self, peers: u64) {
        let freed = self.counts.resume(peers).expect("the truth");
        self.free(freed);
        self.arrived.clear();
        self.has_connection = true;
    }

    fn lose(&mut self) {
        self.has_connection = false;
        self.inbox.clear();
    }
}

impl World {
    fn new() -> Self {
        let ends = [End::new(), End::new()];
        Self { ends, is_joined: true, asks: Vec::new(), losses: LOSSES }
    }

    /// Returns whether the active end waits for an answer: its counts are not to change.
    fn is_asking(&self) -> bool {
        self.asks.iter().any(|ask| ask.is_awaited) || self.answer_is_due()
    }

    /// Returns whether the passive end has taken the last request, and the answer is on its way.
    fn answer_is_due(&self) -> bool {
        !self.ends[ACTIVE].has_connection && !self.ends[ACTIVE].inbox.is_empty()
    }

    fn send(&mut self, from: usize, parcel: Parcel) {
        // Otherwise it is lost on its way.
        if self.is_joined {
            self.ends[1 - from].inbox.push(parcel);
        }
    }

    /// Returns the worlds that may follow this one.
    fn next(&self) -> Vec<Self> {
        let mut next = Vec::new();
        for end in [ACTIVE, PASSIVE] {
            let steps =
                [Self::write, Self::send_again, Self::deliver, Self::read, Self::acknowledge, Self::lose];
            next.extend(steps.into_iter().filter_map(|step| {
                let mut world = self.clone();
                step(&mut world, end).map(|()| world)
            }));
        }
        let mut step = |step: &dyn Fn(&mut Self) -> Option<()>| {
            let mut world = self.clone();
            next.extend(step(&mut world).map(|()| world));
        };
        step(&Self::cut);
        step(&Self::ask);
        step(&Self::abandon);
        for place in 0..self.asks.len() {
            step(&|world| world.grant(place));
        }
        next
    }

    fn write(&mut self, from: usize) -> Option<()> {
        let end = &mut self.ends[from];
        if !end.has_connection || end.counts.room() == 0 || end.written == LENGTHS[from] {
            return None;
        }
        let place = end.written;
        end.written += 1;
        end.kept.push(place);
        end.counts.write(1);
        self.send(from, Parcel::Byte(place));
        Some(())
    }

    fn send_again(&mut self, from: usize) -> Option<()> {
        let end = &mut self.ends[from];
        if !end.has_connection || !end.counts.has_unsent() {
            return None;
        }
        let place = end.kept[usize::try_from(end.counts.unsent_from()).expect("few")];
        end.counts.send_again(1);
        self.send(from, Parcel::Byte(place));
        Some(())
    }

    fn deliver(&mut self, to: usize) -> Option<()> {
        let end = &mut self.ends[to];
        if end.inbox.is_empty() {
            return None;
        }
        match end.inbox.remove(0) {
            Parcel::Byte(place) => end.arrived.push(place),
            Parcel::Acknowledgement(told) => {
                let freed = end.counts.acknowledge(told).expect("the truth");
                end.free(freed);
            }
            Parcel::Granted(read) => end.resume(read),
        }
        Some(())
    }

    /// Reads a byte of the program: also of a connection that was lost, but not while the ends agree on another.
    fn read(&mut self, at: usize) -> Option<()> {
        if at == ACTIVE && self.is_asking() || self.ends[at].arrived.is_empty() {
            return None;
        }
        let end = &mut self.ends[at];
        assert_eq!(end.arrived.remove(0), end.read, "nothing is lost, and nothing comes twice");
        end.read += 1;
        end.counts.read(1);
        assert_eq!(end.counts.progress(), u64::from(end.read));
        Some(())
    }

    fn acknowledge(&mut self, at: usize) -> Option<()> {
        let told = self.ends[at].has_connection.then(|| self.ends[at].counts.take_acknowledgement())??;
        self.send(at, Parcel::Acknowledgement(told));
        Some(())
    }

    fn spend(&mut self) -> Option<()> {
        self.losses = self.losses.checked_sub(1)?;
        Some(())
    }

    /// Takes the connection of an end away, with what is on its way to it. The other end may not know for a while.
    fn lose(&mut self, at: usize) -> Option<()> {
        if !self.ends[at].has_connection {
            return None;
        }
        if std::mem::replace(&mut self.is_joined, false) {
            self.spend()?;
        }
        self.ends[at].lose();
        Some(())
    }

    /// Cuts the path: nothing arrives after this, and neither end notices.
    fn cut(&mut self) -> Option<()> {
        if !std::mem::replace(&mut self.is_joined, false) {
            return None;
        }
        self.ends.iter_mut().for_each(|end| end.inbox.clear());
        self.spend()
    }

    fn ask(&mut self) -> Option<()> {
        if self.ends[ACTIVE].has_connection || self.is_asking() {
            return None;
        }
        let read = self.ends[ACTIVE].counts.progress();
        self.asks.push(Ask { read, is_awaited: true });
        Some(())
    }

    /// Ends the wait of the active end: the connection was lost with the request, or with the answer, or the request is late.
    fn abandon(&mut self) -> Option<()> {
        if !self.is_asking() {
            return None;
        }
        self.asks.iter_mut().for_each(|ask| ask.is_awaited = false);
        self.is_joined = false;
        self.ends[ACTIVE].inbox.clear();
        self.spend()
    }

    /// Has the passive end take a request, with a connection or without: nothing of that counts after this.
    fn grant(&mut self, place: usize) -> Option<()> {
        let ask = self.asks.drain(..=place).next_back()?;
        let saved = self.ends[PASSIVE].counts.progress();
        self.ends[PASSIVE].lose();
        self.ends[PASSIVE].resume(ask.read);
        self.is_joined = ask.is_awaited;
        self.send(PASSIVE, Parcel::Granted(saved));
        Some(())
    }

    fn check(&self) {
        for end in &self.ends {
            assert!(end.counts.kept() <= WINDOW.into(), "the window bounds what is kept");
            assert_eq!(end.counts.kept(), end.kept.len() as u64);
        }
    }

    /// Checks a world that nothing follows.
    fn check_end(&self) {
        for (end, length) in self.ends.iter().zip(LENGTHS) {
            assert!(end.has_connection, "it has gone on");
            assert_eq!((end.written, end.counts.kept()), (length, 0), "all is written, and acknowledged");
        }
        let [active, passive] = &self.ends;
        assert_eq!([passive.read, active.read], LENGTHS, "all is read");
    }
}

#[test]
fn all_is_read_once_whenever_connections_are_lost() {
    let mut known = HashSet::from([World::new()]);
    let mut rest: Vec<_> = known.iter().cloned().collect();
    let mut ends = 0;
    while let Some(world) = rest.pop() {
        world.check();
        let next = world.next();
        if next.is_empty() {
            world.check_end();
            ends += 1;
        }
        rest.extend(next.into_iter().filter(|world| known.insert(world.clone())));
    }
    assert!(ends > 0 && known.len() > 10_000, "{} worlds", known.len());
}

#[test]
fn counts_that_lie_change_nothing() {
    let mut counts = Counts::new(100, 100);
    counts.write(60);
    assert_eq!(counts.acknowledge(20), Ok(20));
    let lies = |counts: &mut Counts| {
        let before = *counts;
        // Less than before is the same as more than was sent, modulo 2^29.
        for told in [19, 61, 0, u32::MAX, 1 << COUNT_BITS] {
            assert_eq!(counts.acknowledge(told), Err(Contradiction), "{told}");
        }
        for read in [0, 19, 61, u64::MAX, 20 + (1 << COUNT_BITS), 20 + (1 << 32)] {
            assert_eq!(counts.resume(read), Err(Contradiction), "{read}");
        }
        assert_eq!(*counts, before);
    };
    lies(&mut counts);
    assert_eq!(counts.resume(20), Ok(0));
    assert_eq!((counts.unsent_from(), counts.room()), (0, 0));
    // Bytes that were sent only over a connection that was lost cannot have been read over this one.
    counts.send_again(10);
    assert_eq!(counts.acknowledge(31), Err(Contradiction));
    lies(&mut counts);
    // But they may have been read before another connection is lost.
    assert_eq!(counts.resume(60), Ok(40));
    assert_eq!((counts.kept(), counts.room()), (0, 100));
}

#[test]
fn counts_go_on_past_their_numbers() {
    const STEP: u64 = MOST_KEPT;
    let [mut ours, mut theirs] = [Counts::new(MOST_KEPT, MOST_KEPT); 2];
    let mut total = 0;
    for round in 0..20 {
        assert_eq!(ours.room(), MOST_KEPT);
        ours.write(STEP);
        assert_eq!(ours.room(), 0);
        assert!(theirs.read(STEP));
        total += STEP;
        if round % 3 == 0 {
            assert_eq!(ours.resume(theirs.progress()), Ok(STEP));
            assert_eq!(theirs.resume(ours.progress()), Ok(0));
            assert_eq!(theirs.take_acknowledgement(), None, "the greeting has told it");
        } else {
            let told = theirs.take_acknowledgement().expect("it is much");
            assert_eq!(u64::from(told), total % (1 << COUNT_BITS));
            assert_eq!(ours.acknowledge(told), Ok(STEP));
        }
        assert_eq!((ours.kept(), theirs.progress()), (0, total));
    }
    assert!(total > 4 << COUNT_BITS);
}

// A window that is larger would make the counts ambiguous; one of no bytes would never let any through.
#[test]
fn window_has_limits() {
    assert_eq!(Counts::new(u64::MAX, 1).room(), MOST_KEPT);
    assert_eq!(Counts::new(0, 1).room(), 1);
    for (peers, due) in [(u64::MAX, MOST_STEP), (400, 100), (0, 1)] {
        let mut counts = Counts::new(1, peers);
        counts.read(due - 1);
        assert!(!counts.is_acknowledgement_due(), "{peers}");
        counts.read(1);
        assert!(counts.is_acknowledgement_due(), "{peers}");
    }
}

const SECRET: Secret = Secret(*b"0123456789abcdef");

fn greeting() -> Greeting {
    Greeting {
        kind: Kind::Resume,
        window: 0x0102_0304,
        gives_up_after: Duration::from_millis(0x1112_1314),
        id: Id(*b"ABCDEFGHIJKLMNOP"),
        epoch: 0x2122_2324_2526_2728,
        read: 0x3132_3334_3536_3738,
        secret: Secret(*b"abcdefghijklmnop"),
    }
}

#[test]
fn greeting_has_these_bytes() {
    let bytes = greeting().to_bytes(&SECRET);
    let fields = [
        1, 2, 0, 0, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, // version, kind, window, milliseconds
    ];
    let counts = [
        0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, // epoch
        0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38, // read
    ];
    // By another program.
    let proof = [
        0x57, 0x99, 0x4f, 0x8e, 0xd8, 0xe5, 0x22, 0x3a, 0xc5, 0x24, 0x66, 0x6b, 0x19, 0x42, 0xbe,
        0x06, //
    ];
    let parts: [&[u8]; 6] = [b"RdSe", &fields, b"ABCDEFGHIJKLMNOP", &counts, b"abcdefghijklmnop", &proof];
    assert_eq!(bytes[..], parts.concat());
}

#[test]
fn greetings_come_back_as_they_were() {
    use Kind::{Abandoned, Granted, Open, Over, Refused, Resume, Unknown};
    for kind in [Open, Resume, Granted, Unknown, Refused, Over, Abandoned] {
        let sent = Greeting { kind, ..greeting() };
        let bytes = sent.to_bytes(&SECRET);
        assert!(Greeting::is_proven(&bytes, &SECRET));
        let found = Greeting::decode(&bytes).expect("a greeting");
        assert_eq!(
            (found.kind, found.window, found.gives_up_after),
            (kind, sent.window, sent.gives_up_after)
        );
        assert_eq!((found.id, found.epoch, found.read), (sent.id, sent.epoch, sent.read));
        assert_eq!(found.secret.0, sent.secret.0);
    }
    let long = Greeting { gives_up_after: Duration::MAX, ..greeting() }.to_bytes(&SECRET);
    let found = Greeting::decode(&long).expect("a greeting");
    assert_eq!(found.gives_up_after, Duration::from_millis(u32::MAX.into()));
}

#[test]
fn another_magic_version_or_kind_is_no_greeting() {
    let bytes = greeting().to_bytes(&SECRET);
    for place in 0..5 {
        let mut other = bytes;
        other[place] ^= 1;
        assert!(Greeting::decode(&other).is_none(), "a change at {place}");
    }
    for kind in [0].into_iter().chain(8..=u8::MAX) {
        let mut other = bytes;
        other[5] = kind;
        assert!(Greeting::decode(&other).is_none(), "kind {kind}");
    }
}

#[test]
fn changed_greeting_is_not_proven() {
    let bytes = greeting().to_bytes(&SECRET);
    for place in 0..bytes.len() {
        for change in [1, 0x80, 0xFF] {
            let mut other = bytes;
            other[place] ^= change;
            assert!(!Greeting::is_proven(&other, &SECRET), "a change at {place}");
        }
    }
    for bit in 0..128 {
        let mut other = SECRET;
        other.0[bit / 8] ^= 1 << (bit % 8);
        assert!(!Greeting::is_proven(&bytes, &other), "another secret");
    }
    assert!(format!("{:?}", greeting()).ends_with("secret: Secret(..) }"), "no secret is in a log");
}
