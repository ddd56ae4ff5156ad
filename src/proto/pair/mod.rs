//! Two hosts, a virtual clock and the streams between them: the machines of this layer against each other.
//!
//! Each end of a connection is a [`Connector`](crate::proto::connector::Connector) with the glue of the soft
//! provider around it. What travels before the connection is up is encoded by the MPA machines; afterwards it
//! is whole frames. No sockets and no sleeps: the time jumps from one event to the next.
//!
//! ```text
//!   act() ──▶ end ──── actions ───▶ glue ── bytes, end of stream ──▶ link ──▶ glue ──▶ end
//!              ▲                      │                                         │
//!              └── reports, time ─────┘                    requests ──▶ listener┘
//! ```
//!
//! [`checks`] holds what must be true of every story, [`races`] tells some of them both ways round,
//! [`schedules`] makes up thousands.

mod checks;
mod glue;
mod hosts;
mod link;
mod races;
mod reading;
mod schedules;
mod setup;
mod stories;

use std::collections::VecDeque;
use std::mem;
use std::time::{Duration, Instant};

use bytes::Bytes;

use self::link::{Frames, Link, Manner, Segment};
use self::setup::{ACCEPT, Act, CONNECT, DISCONNECT, Road, Setup, Turn, ms};
use super::connector::{Connector, Input, Op, State};
use super::listener::{Listener, WaiterId};
use super::mpa::{Initiator, Negotiated, Offer, Responder};
use crate::status::Status;
use crate::types::ReadLimits;

/// The end that connects in the plain story, on host 0.
const ACTIVE: usize = 0;
/// The end that accepts in the plain story, on host 1.
const PASSIVE: usize = 1;
/// More events than any honest story has.
const MOST_STEPS: usize = 100_000;

/// A connector with what the provider keeps beside it.
#[derive(Debug)]
struct End {
    host: usize,
    machine: Connector,
    /// Where the machine was last seen.
    seen: State,
    /// The stream that the machine has not let go yet.
    at: Option<Place>,
    /// The last stream it had.
    last: Option<Place>,
    /// The call whose consequences are being carried out.
    staged: Option<Act>,
    /// The machine owes one more letting go.
    transport: bool,
    waiter: Option<WaiterId>,
    pending: Vec<Op>,
    finished: Vec<(Op, Status)>,
    /// The queue pair was flushed for this transport.
    flushed: bool,
    /// A failure that was of its own making, or that of its provider.
    own_fault: bool,
    /// When the patience of the last caller ends that had a limit.
    until: Option<Instant>,
}

impl End {
    /// A connector that was never used.
    fn new(host: usize) -> Self {
        Self {
            host,
            machine: Connector::new(),
            seen: State::Idle,
            at: None,
            last: None,
            staged: None,
            transport: false,
            waiter: None,
            pending: Vec::new(),
            finished: Vec::new(),
            flushed: false,
            own_fault: false,
            until: None,
        }
    }

    /// The user takes a new connector, and a new queue pair with it: of the old ones only the answers are
    /// remembered.
    fn renew(&mut self) {
        assert!(self.pending.is_empty() && !self.transport && self.waiter.is_none(), "{self:?}");
        let finished = mem::take(&mut self.finished);
        *self = Self { finished, ..Self::new(self.host) };
    }
}

/// One of the two sides of a stream: 0 connects, 1 accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    wire: usize,
    side: usize,
}

/// Who reads one side of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// Nobody: it was let go, or is not open yet. What comes is dropped.
    Nobody,
    /// The listener, until the request is whole.
    Start,
    /// The queue of the listener, which does not look.
    Queue,
    /// This end.
    End(usize),
}

/// One side of a stream.
#[derive(Debug)]
struct Socket {
    host: usize,
    owner: Owner,
    /// The stream is open, as far as this side knows.
    open: bool,
    /// What arrived and was not read yet.
    inbox: VecDeque<Segment>,
    /// It sent its end of stream, or a reset.
    ended: bool,
    /// It read the peer's.
    heard_end: bool,
    /// It was closed by the provider, though the machine holds it still.
    closed: bool,
    frames: Option<Frames>,
    /// A frame came.
    heard: bool,
    /// What the MPA machine settled.
    negotiated: Option<Negotiated>,
    next_msn: u32,
    /// What is remembered for the checks.
    was: Was,
}

/// What one side of a stream went through.
#[derive(Clone, Debug, Default)]
struct Was {
    /// What it asked for in Connect or Accept.
    asked: ReadLimits,
    /// The private data it sent with its request or reply.
    sent: Option<Bytes>,
    /// The private data of its reject.
    reject: Option<Bytes>,
    /// It reached `Connected`.
    connected: bool,
    /// It said no with a frame.
    said_no: bool,
    /// Its user turned the connection down after Connect succeeded.
    declined: bool,
    /// Its first frame is out.
    ready: bool,
    messages: u32,
}

/// One stream with its handshake.
#[derive(Debug)]
struct Wire {
    link: Link,
    initiator: Initiator,
    responder: Responder,
    offer: Option<Offer>,
    sockets: [Socket; 2],
    /// The link did something to it.
    faulty: bool,
    /// A provider or a device did.
    broken: bool,
}

/// A request in the listener's hands.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    wire: usize,
}

/// A step of the provider that takes time.
#[derive(Clone, Copy, Debug)]
struct Own {
    at: Instant,
    end: usize,
    place: Place,
    /// The frame goes out; otherwise the report is due.
    frame: bool,
}

/// What an end does when it gets into a state.
#[derive(Clone, Copy, Debug)]
struct Reaction {
    end: usize,
    state: State,
    after: Duration,
    act: Act,
}

/// The world.
#[derive(Debug)]
struct Pair {
    now: Instant,
    setup: Setup,
    ends: Vec<End>,
    listeners: [Listener<Request>; 2],
    wires: Vec<Wire>,
    own: Vec<Own>,
    /// What is still to be done, by time.
    plan: Vec<(Instant, usize, Act)>,
    reactions: Vec<Reaction>,
    /// How often somebody may still react.
    patience: usize,
}

impl Pair {
    /// Two hosts that listen, with one end each: [`ACTIVE`] and [`PASSIVE`].
    fn new(setup: Setup) -> Self {
        let listeners = [(); 2].map(|()| checks::listening(setup.backlog));
        let mut pair = Self {
            now: Instant::now(),
            setup,
            ends: Vec::new(),
            listeners,
            wires: Vec::new(),
            own: Vec::new(),
            plan: Vec::new(),
            reactions: Vec::new(),
            patience: 24,
        };
        pair.add_end(0);
        pair.add_end(1);
        pair
    }

    /// A further connector on this host.
    fn add_end(&mut self, host: usize) -> usize {
        self.ends.push(End::new(host));
        self.ends.len() - 1
    }

    /// Where this end is.
    fn state(&self, end: usize) -> State {
        self.ends[end].machine.state()
    }

    /// How the last call of this kind ended, if it did.
    fn last(&self, end: usize, op: Op) -> Option<Status> {
        let End { pending, finished, .. } = &self.ends[end];
        if pending.contains(&op) {
            return None;
        }
        finished.iter().rev().find(|(other, _)| *other == op).map(|(_, status)| *status)
    }

    /// Has this end act so much later.
    fn later(&mut self, after: Duration, end: usize, act: Act) {
        self.plan.push((self.now + after, end, act));
    }

    /// The time goes on by this much.
    fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.next_event().is_some_and(|at| at <= until) {
            self.step();
        }
        self.now = until;
    }

    /// The time goes on until nothing is left to happen.
    fn run(&mut self) {
        for _ in 0..MOST_STEPS {
            if !self.step() {
                return;
            }
        }
        panic!("the story does not end");
    }

    /// When something is due.
    fn next_event(&self) -> Option<Instant> {
        let arrivals = self.wires.iter().filter_map(|wire| wire.link.next_arrival());
        let deadlines = self.ends.iter().filter_map(|end| end.machine.next_timeout());
        let own = self.own.iter().map(|own| own.at);
        arrivals.chain(deadlines).chain(own).chain(self.plan.iter().map(|(at, ..)| *at)).min()
    }

    /// One thing happens, at the instant that is next.
    fn step(&mut self) -> bool {
        let Some(at) = self.next_event() else { return false };
        self.now = self.now.max(at);
        let happened = self.setup.order.into_iter().any(|turn| match turn {
            Turn::Arrival => self.take_arrival(),
            Turn::Own => self.take_own_step(),
            Turn::Deadline => self.take_deadline(),
            Turn::Act => self.take_act(),
        });
        assert!(happened, "something was due");
        self.read_all();
        true
    }

    /// A segment that is due arrives.
    fn take_arrival(&mut self) -> bool {
        for wire in 0..self.wires.len() {
            for from in 0..2 {
                if let Some(segment) = self.wires[wire].link.arrived(from, self.now) {
                    self.arrive(Place { wire, side: 1 - from }, segment);
                    return true;
                }
            }
        }
        false
    }

    /// A step of the provider that is due.
    fn take_own_step(&mut self) -> bool {
        let due = self.own.iter().position(|own| own.at <= self.now);
        due.map(|place| self.own.remove(place)).map(|own| self.own_step(own)).is_some()
    }

    /// A deadline that has passed.
    fn take_deadline(&mut self) -> bool {
        let now = self.now;
        let late = |end: &End| end.machine.next_timeout().is_some_and(|at| at <= now);
        let Some(end) = self.ends.iter().position(late) else { return false };
        self.report(end, Input::TimedOut);
        assert!(!late(&self.ends[end]), "a deadline without a consequence");
        true
    }

    /// An act that was planned for now, or earlier.
    fn take_act(&mut self) -> bool {
        // Of several at once the one that was planned first.
        let due = (0..self.plan.len()).filter(|&place| self.plan[place].0 <= self.now);
        let Some(place) = due.min_by_key(|&place| self.plan[place].0) else { return false };
        let (_, end, act) = self.plan.remove(place);
        // A call that is not accepted has no consequences.
        let _ = self.perform(end, act);
        true
    }

    /// The end acts now.
    fn act(&mut self, end: usize, act: Act) -> Result<(), Status> {
        let outcome = self.perform(end, act);
        self.read_all();
        outcome
    }
}
