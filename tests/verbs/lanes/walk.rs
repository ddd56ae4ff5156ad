//! A random walk of two lanes that are each other's peers, with a model of each beside it: whose each slot is and what is in it, what
//! was sent, and how many requests are outstanding.
//!
//! Runs on: fake, fake-iwarp
#![allow(clippy::print_stderr, reason = "a long walk says how far it came")]

use std::collections::{HashMap, VecDeque};

use common::dice::Dice;
use common::process::alone;
use common::verbs::{amount, fake, fake_reset, nothing_is_left};
use common::*;
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::qp::{Done, Lane, LaneConfig, LaneState, Local, QueuePairId, Slot};
use tokio_rdma::types::OpKind;
use tokio_rdma::{Access, Adapter, Connection, Region, WorkOptions};

use super::{connect_lanes, lane};

const SLOTS: usize = 64;
const LENGTH: usize = 80;
const PLACES: usize = 12;
const INLINE: usize = 16;
const MEMORY: usize = 256;

/// The number of steps.
const STEPS: &str = "TOKIO_RDMA_LANE_STEPS";

/// The owner of a slot that is not free.
#[derive(Clone, Debug)]
enum Owner {
    /// The program, with these bytes in it.
    Held(Vec<u8>),
    Posted(Request),
}

/// A request that has a slot.
#[derive(Clone, Debug)]
struct Request {
    kind: OpKind,
    /// `None` for a receive of a shared queue.
    of: Option<QueuePairId>,
    /// The bytes of the slot when it was posted.
    before: Vec<u8>,
    silent: bool,
    /// The other slots of the request; `None` if this is one of those.
    others: Option<Vec<Slot>>,
    /// The place in the slot, that in the region, and the length of a Read.
    read: (usize, usize, usize),
}

/// A message that was posted, and not received yet.
#[derive(Debug, PartialEq)]
enum Message {
    Sent(Vec<u8>, Option<u32>),
    Written(usize, u32),
}

/// A queue pair of a lane: its connection, and the slots of the requests that complete in this order.
struct End {
    link: usize,
    order: VecDeque<Slot>,
}

struct Side {
    lane: Lane,
    shared: bool,
    taken: Vec<(Slot, Owner)>,
    ends: HashMap<QueuePairId, End>,
    outstanding: u32,
}

/// A connection, and the messages that are under way to each of its ends.
struct Link {
    connections: Vec<Connection>,
    under_way: [VecDeque<Message>; 2],
}

struct Walk {
    adapter: Adapter,
    dice: Dice,
    sides: [Side; 2],
    links: Vec<Link>,
    /// The memory that is read and sent, whose bytes are the `pattern`, and the one that is written.
    source: Region,
    sink: Region,
    received: usize,
    succeeded: usize,
    failed: usize,
    /// The number of steps since the last completion.
    idle: usize,
}

/// The bytes of the region that is read and sent.
fn pattern(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|at| (at * 7 + 3) as u8).collect()
}

impl Side {
    fn new(adapter: &Adapter, dice: &mut Dice) -> Self {
        let shared = dice.below(2) == 0;
        let config = LaneConfig::new(SLOTS, LENGTH)
            .queue_pairs(PLACES)
            .send_depth(1 + dice.below(8))
            .receive_depth(if shared { 24 } else { 6 })
            .inline(INLINE)
            .shared_receives(shared);
        let lane = lane(adapter, config);
        Self { lane, shared, taken: Vec::new(), ends: HashMap::new(), outstanding: 0 }
    }

    fn owner(&mut self, slot: Slot) -> Option<&mut Owner> {
        self.taken.iter_mut().find(|(taken, _)| *taken == slot).map(|(_, owner)| owner)
    }

    /// Takes a free slot. That of a silent request may be free by now.
    fn take(&mut self) -> Option<Slot> {
        let slot = self.lane.take()?;
        let bytes = self.lane.bytes(slot).to_vec();
        match self.owner(slot) {
            None => self.taken.push((slot, Owner::Held(bytes))),
            Some(owner) => {
                assert!(matches!(owner, Owner::Posted(Request { silent: true, .. })), "{slot:?}: {owner:?}");
                *owner = Owner::Held(bytes);
            }
        }
        Some(slot)
    }

    /// Takes a slot, or one that the program holds, and fills it. What it had held has not changed.
    fn filled(&mut self, dice: &mut Dice) -> Option<Slot> {
        let is_held = |(_, owner): &&(Slot, Owner)| matches!(owner, Owner::Held(_));
        let held: Vec<Slot> = self.taken.iter().filter(is_held).map(|(slot, _)| *slot).collect();
        let slot = if held.is_empty() || dice.below(4) == 0 { self.take() } else { None };
        let slot = match (slot, held.is_empty()) {
            (None, false) => held[dice.below(held.len())],
            (slot, _) => slot?,
        };
        self.check(slot);
        let byte = dice.below(256);
        let bytes: Vec<u8> = (byte..byte + LENGTH).map(|byte| byte as u8).collect();
        self.lane.bytes_mut(slot).copy_from_slice(&bytes);
        *self.owner(slot).expect("it is held") = Owner::Held(bytes);
        Some(slot)
    }

    /// Asserts that a held slot has the bytes that the model has.
    fn check(&mut self, slot: Slot) {
        let Some(Owner::Held(bytes)) = self.owner(slot).cloned() else { panic!("{slot:?} is not held") };
        assert_eq!(self.lane.bytes(slot), bytes, "{slot:?}");
    }

    fn check_all(&mut self) {
        let held = |(slot, owner): &(Slot, Owner)| matches!(owner, Owner::Held(_)).then_some(*slot);
        let held: Vec<Slot> = self.taken.iter().filter_map(held).collect();
        held.into_iter().for_each(|slot| self.check(slot));
        assert_eq!(self.lane.outstanding(), self.outstanding);
    }

    fn give(&mut self, slot: Slot) {
        self.lane.give(slot);
        self.taken.retain(|(taken, _)| *taken != slot);
    }

    /// Records that slots were posted, of which the first names the request.
    fn posted(&mut self, slots: &[Slot], kind: OpKind, of: Option<QueuePairId>, silent: bool) {
        for (at, slot) in slots.iter().enumerate() {
            let others = (at == 0).then(|| slots[1..].to_vec());
            let owner = self.owner(*slot).expect("it is held");
            let Owner::Held(before) = owner else { panic!("{slot:?}: {owner:?}") };
            let before = std::mem::take(before);
            *owner = Owner::Posted(Request { kind, of, before, silent, others, read: (0, 0, 0) });
        }
        self.outstanding += u32::from(!silent);
    }

    /// Records that a slot is held again, with these bytes at its begin, or if they are not known, with other ones.
    fn back(&mut self, slot: Slot, mut bytes: Vec<u8>, known: bool) {
        if !known {
            bytes.fill(0x11);
            self.lane.bytes_mut(slot).fill(0x11);
        }
        *self.owner(slot).expect("it was posted") = Owner::Held(bytes);
    }
}

impl Walk {
    async fn new(seed: u64) -> Self {
        let (adapter, mut dice) = (adapter(), Dice::of(seed, 0));
        let source =
            adapter.register(MEMORY, Access::REMOTE_READ | Access::LOCAL_WRITE).await.expect("memory");
        source.write(0, &pattern(0, MEMORY)).expect("in bounds");
        let sink =
            adapter.register(MEMORY, Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::REMOTE_READ);
        let sink = sink.await.expect("memory");
        let sides = [0, 1].map(|_| Side::new(&adapter, &mut dice));
        let (links, received, succeeded, failed) = (Vec::new(), 0, 0, 0);
        Self { adapter, dice, sides, links, source, sink, received, succeeded, failed, idle: 0 }
    }

    /// Makes a connection, if both lanes have a place, with receives that are posted before.
    async fn connect(&mut self) {
        let Ok((one, here)) = self.sides[0].lane.queue_pair() else { return };
        let Ok((other, there)) = self.sides[1].lane.queue_pair() else {
            return self.sides[0].lane.close(one);
        };
        let link = self.links.len();
        for (side, id) in [one, other].into_iter().enumerate() {
            let end = End { link, order: VecDeque::new() };
            assert!(self.sides[side].ends.insert(id, end).is_none(), "{id:?} is not gone");
            for _ in 0..self.dice.below(4) {
                self.receive(side, id);
            }
        }
        let connections = connect_lanes(&self.adapter, &here, &there).await.into();
        self.links.push(Link { connections, under_way: Default::default() });
    }

    /// Returns one of the queue pairs of a lane, most often one that is connected.
    fn any(&mut self, side: usize) -> Option<QueuePairId> {
        let mut all: Vec<QueuePairId> = self.sides[side].ends.keys().copied().collect();
        if self.dice.below(16) > 0 {
            all.retain(|id| self.sides[side].lane.state(*id) == LaneState::Connected);
        }
        all.sort_unstable_by_key(|id| id.place());
        (!all.is_empty()).then(|| all[self.dice.below(all.len())])
    }

    fn receive(&mut self, side: usize, id: QueuePairId) {
        let side = &mut self.sides[side];
        let Some(slot) = side.filled(&mut self.dice) else { return };
        let of = (!side.shared).then_some(id);
        if refused(side.lane.receive(id, slot)) {
            return side.check(slot);
        }
        side.posted(&[slot], OpKind::Receive, of, false);
    }

    /// Posts a request of the send queue.
    fn post(&mut self, at: usize, id: QueuePairId) {
        let Self { dice, sides, links, adapter, source, sink, .. } = self;
        let side = &mut sides[at];
        let (link, info) = (side.ends[&id].link, adapter.info());
        let Some(slot) = side.filled(dice) else { return };
        let start = dice.below(LENGTH);
        let part = start..start + dice.below(LENGTH - start + 1);
        let content = side.lane.bytes(slot)[part.clone()].to_vec();
        let remote = |region: &Region, length: usize, dice: &mut Dice| {
            let from = dice.below(MEMORY - length) & !7;
            (from, region.remote_part(from..from + length).expect("in bounds"))
        };
        let (mut options, silent) = (WorkOptions::default(), dice.below(3) == 0);
        if silent {
            options = options.silent();
        }
        if dice.below(4) == 0 {
            options = options.fence();
        }
        let immediate = dice.below(1 << 20) as u32;
        let (mut slots, mut message, mut read) = (vec![slot], None, (0, 0, 0));
        let mut is_silent = silent;
        let (kind, outcome) = match dice.below(9) {
            0 => {
                is_silent = false;
                let length = part.len();
                message = Some(Message::Sent(side.lane.bytes(slot)[..length].to_vec(), None));
                (OpKind::Send, side.lane.send(id, slot, length))
            }
            1 => {
                is_silent = false;
                let (_, to) = remote(sink, part.len(), dice);
                (OpKind::Write, side.lane.write(id, slot, part, &to))
            }
            2 => {
                is_silent = false;
                let (from, remote) = remote(source, part.len(), dice);
                read = (part.start, from, part.len());
                (OpKind::Read, side.lane.read(id, slot, part, &remote))
            }
            3 => {
                if let Some(other) = side.filled(dice).filter(|other| *other != slot) {
                    slots.push(other);
                }
                let parts: Vec<_> = slots.iter().map(|slot| (*slot, 0..part.len() / 2)).collect();
                let bytes: Vec<u8> = parts
                    .iter()
                    .flat_map(|(slot, part)| side.lane.bytes(*slot)[part.clone()].to_vec())
                    .collect();
                let told = info.immediate_send.then_some(immediate);
                if let Some(told) = told {
                    options = options.immediate(told);
                }
                message = Some(Message::Sent(bytes, told));
                (OpKind::Send, side.lane.send_with(id, Local::Slots(&parts), options))
            }
            4 => {
                slots.clear();
                let bytes = &content[..content.len().min(INLINE)];
                message = Some(Message::Sent(bytes.to_vec(), None));
                (OpKind::Send, side.lane.send_with(id, Local::Bytes(bytes), options))
            }
            5 => {
                slots.clear();
                let slice = source.slice(part.start..part.start + content.len()).expect("in bounds");
                message = Some(Message::Sent(pattern(part.start, content.len()), None));
                (OpKind::Send, side.lane.send_with(id, Local::Region(&slice), options))
            }
            6 if info.immediate => {
                let (_, to) = remote(sink, part.len(), dice);
                message = Some(Message::Written(part.len(), immediate));
                let parts = [(slot, part)];
                (
                    OpKind::Write,
                    side.lane.write_with(id, Local::Slots(&parts), &to, options.immediate(immediate)),
                )
            }
            7 if info.atomics => {
                let (_, to) = remote(sink, 8, dice);
                let outcome = side.lane.fetch_add(id, slot, &to, 1, options);
                read = (0, usize::MAX, 8);
                (OpKind::FetchAdd, outcome)
            }
            _ => {
                let (_, to) = remote(sink, part.len(), dice);
                let parts = [(slot, part)];
                (OpKind::Write, side.lane.write_with(id, Local::Slots(&parts), &to, options))
            }
        };
        if refused(outcome) {
            return slots.into_iter().for_each(|slot| side.check(slot));
        }
        if let (Some(message), Some(link)) = (message, links.get_mut(link)) {
            link.under_way[1 - at].push_back(message);
        }
        let end = side.ends.get_mut(&id).expect("it is there");
        match slots.first() {
            Some(first) if !is_silent => end.order.push_back(*first),
            _ => {}
        }
        if slots.is_empty() {
            side.outstanding += u32::from(!is_silent);
        } else {
            side.posted(&slots, kind, Some(id), is_silent);
            if let Some(Owner::Posted(request)) = side.owner(slots[0]) {
                request.read = read;
            }
        }
        if dice.below(3) == 0 {
            side.lane.ring();
        }
    }

    fn poll(&mut self, at: usize) {
        let mut room = vec![Done::EMPTY; 1 + self.dice.below(12)];
        let done = self.sides[at].lane.poll(&mut room).expect("the lane lives").to_vec();
        done.iter().for_each(|done| self.completed(at, done));
        // Those without a slot that have failed may have been silent, and were not counted then.
        let side = &mut self.sides[at];
        let is_loose = |done: &&Done| done.slot().number() as usize >= SLOTS;
        let unknown = done.iter().filter(is_loose).filter(|done| !done.is_success()).count() as u32;
        let (counted, now) = (side.outstanding, side.lane.outstanding());
        assert!((counted.saturating_sub(unknown)..=counted).contains(&now), "{now} of {counted}");
        side.outstanding = now;
    }

    /// Checks a completion against the model.
    fn completed(&mut self, at: usize, done: &Done) {
        let side = &mut self.sides[at];
        let (slot, id) = (done.slot(), done.queue_pair());
        self.idle = 0;
        *(if done.is_success() { &mut self.succeeded } else { &mut self.failed }) += 1;
        if slot.number() as usize >= SLOTS {
            assert!(side.ends.contains_key(&id), "a queue pair that is gone");
            side.outstanding -= u32::from(done.is_success());
            return;
        }
        let Some(Owner::Posted(request)) = side.owner(slot).cloned() else {
            panic!("{slot:?} was not posted: {done:?}")
        };
        let Request { kind, of, before, silent, others, read } = request;
        let others = others.unwrap_or_else(|| panic!("{slot:?} is not the first: {done:?}"));
        assert!(of.is_none_or(|of| of == id), "{done:?} of {of:?}");
        if done.is_success() {
            assert_eq!((done.kind(), silent), (kind, false), "{done:?}");
        }
        side.outstanding -= u32::from(!silent);
        for other in others {
            let Some(Owner::Posted(request)) = side.owner(other).cloned() else { panic!("{other:?}") };
            side.back(other, request.before, true);
        }
        let mut bytes = before;
        if kind != OpKind::Receive && !silent {
            let end = side.ends.get_mut(&id).expect("a queue pair that is not gone");
            let place = end.order.iter().position(|other| *other == slot).expect("it was posted");
            assert!(!done.is_success() || place == 0, "{done:?} overtakes {:?}", end.order);
            end.order.remove(place);
        }
        match (kind, done.is_success()) {
            (OpKind::Read, true) => {
                let (to, from, length) = read;
                bytes[to..to + length].copy_from_slice(&pattern(from, length));
                side.back(slot, bytes, true);
            }
            (OpKind::Receive, true) => {
                let link = side.ends[&id].link;
                let message = self.links[link].under_way[at].pop_front().expect("it was sent");
                let found = match done.immediate() {
                    Some(told) if done.written() > 0 || matches!(message, Message::Written(..)) => {
                        assert_eq!(done.bytes(), 0);
                        Message::Written(done.written() as usize, told)
                    }
                    told => Message::Sent(side.lane.bytes(slot)[..done.bytes()].to_vec(), told),
                };
                assert_eq!(found, message, "{done:?}");
                if let Message::Sent(sent, _) = message {
                    bytes[..sent.len()].copy_from_slice(&sent);
                }
                self.received += 1;
                side.back(slot, bytes, true);
            }
            (OpKind::Send | OpKind::Write, _) => side.back(slot, bytes, true),
            _ => side.back(slot, bytes, false),
        }
    }

    /// Forgets the queue pairs that are gone. No slot is theirs any more.
    fn sweep(&mut self, at: usize) {
        let side = &mut self.sides[at];
        let ids: Vec<QueuePairId> = side.ends.keys().copied().collect();
        for id in ids {
            if side.lane.state(id) != LaneState::Gone {
                continue;
            }
            side.ends.remove(&id);
            side.taken.retain(|(slot, owner)| match owner {
                Owner::Posted(Request { of: Some(of), silent, .. }) if *of == id => {
                    assert!(silent, "{slot:?} of {id:?} has not come back: {owner:?}");
                    false
                }
                _ => true,
            });
        }
    }

    async fn step(&mut self) {
        let at = self.dice.below(2);
        self.idle += 1;
        if self.idle.is_multiple_of(50) {
            // The device has its time.
            tokio::time::sleep(std::time::Duration::from_micros(200)).await;
            self.poll(at);
        }
        if self.idle.is_multiple_of(500)
            && let Some(id) = self.any(at)
        {
            // All slots may be with requests that wait for each other.
            self.sides[at].lane.close(id);
        }
        match self.dice.below(1000) {
            0..2 | 990.. => self.connect().await,
            2 if self.dice.below(4) == 0 => {
                if let Some(id) = self.any(at) {
                    self.sides[at].lane.close(id);
                }
            }
            3 if self.dice.below(4) == 0 => {
                let Some(id) = self.any(at) else { return };
                let link = self.sides[at].ends[&id].link;
                if let Some(connection) = self.links.get_mut(link).and_then(|link| link.connections.pop()) {
                    // The other one is dropped later, or disconnects.
                    tokio::spawn(async move { drop(connection.disconnect().await) });
                }
            }
            4 if self.dice.below(16) == 0 => {
                let dice = &mut self.dice;
                let old = std::mem::replace(&mut self.sides[at], Side::new(&self.adapter, dice));
                drop(old.lane);
            }
            5..15 => tokio::time::sleep(std::time::Duration::from_micros(self.dice.below(400) as u64)).await,
            15..40 => self.sides[at].check_all(),
            40..80 => self.sweep(at),
            80..120 => {
                if let Some(slot) = self.sides[at].filled(&mut self.dice) {
                    self.sides[at].give(slot);
                }
            }
            120..140 => self.sides[at].lane.ring(),
            140..300 => {
                self.poll(at);
                tokio::task::yield_now().await;
            }
            300..600 => {
                if let Some(id) = self.any(at) {
                    self.receive(at, id);
                }
            }
            600..620 => {
                // One that a request has, or nobody.
                let side = &mut self.sides[at];
                let posted = |(slot, owner): &(Slot, Owner)| {
                    matches!(owner, Owner::Posted(request) if !request.silent).then_some(*slot)
                };
                let (slot, id) = (side.taken.iter().find_map(posted), side.ends.keys().next().copied());
                if let (Some(slot), Some(id)) = (slot, id) {
                    assert!(side.lane.send(id, slot, 1).is_err(), "{slot:?}");
                    assert!(side.lane.receive(id, slot).is_err(), "{slot:?}");
                }
            }
            _ => {
                if let Some(id) = self.any(at) {
                    self.post(at, id);
                }
            }
        }
    }

    /// Ends all connections. All slots come back but those of receives in a shared queue.
    async fn end(mut self) -> [usize; 3] {
        for at in 0..2 {
            let ids: Vec<QueuePairId> = self.sides[at].ends.keys().copied().collect();
            ids.into_iter().for_each(|id| self.sides[at].lane.close(id));
        }
        within(async {
            while self.sides.iter().any(|side| !side.ends.is_empty()) {
                for at in 0..2 {
                    self.poll(at);
                    self.sweep(at);
                }
                tokio::time::sleep(std::time::Duration::from_micros(200)).await;
            }
        })
        .await;
        for side in &mut self.sides {
            side.check_all();
            while side.take().is_some() {}
            let held = side.taken.iter().filter(|(_, owner)| matches!(owner, Owner::Held(_))).count();
            assert_eq!(held + side.outstanding as usize, SLOTS, "{:?}", side.taken);
            assert!(side.outstanding == 0 || side.shared);
        }
        [self.received, self.succeeded, self.failed]
    }
}

/// Returns whether a post was refused, for one of the reasons that there may be.
fn refused(outcome: Result<(), PostErrorKind>) -> bool {
    match outcome {
        Ok(()) => false,
        Err(
            PostErrorKind::ConnectionInvalid
            | PostErrorKind::QueueFull { .. }
            | PostErrorKind::NotSupported(_),
        ) => true,
        Err(error) => panic!("{error}"),
    }
}

// LN-32: whatever is done with two lanes, in whatever order: each slot is free, or the program's, or a request's, and what the program
// holds nobody else changes; each request completes once, with what it was; messages arrive in order and as they were sent; all slots
// come back.
#[tokio::test]
#[allow(clippy::print_stdout, reason = "a walk shows what it has met")]
async fn a_random_walk_agrees_with_the_model() {
    if !alone(module_path!(), "a_random_walk_agrees_with_the_model") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let (seed, steps) = (Dice::seed(), amount(STEPS, 6000));
    for pace in ["pace none".to_owned(), format!("pace {}", seed >> 1)] {
        fake(&pace);
        let mut walk = Walk::new(seed).await;
        walk.connect().await;
        for _ in 0..steps / 2 {
            walk.step().await;
        }
        let [received, succeeded, failed] = walk.end().await;
        eprintln!(
            "{steps} steps, {pace}: {received} messages received, {succeeded} completions, {failed} failures"
        );
        fake("pace none");
        nothing_is_left().await;
    }
}
