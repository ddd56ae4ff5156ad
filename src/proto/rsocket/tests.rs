//! Two machines, the memory between them, and everything that may happen in any order.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const RING_KEY: u32 = 7;
const TARGETS_KEY: u32 = 9;

/// One end: a machine, its memory, and what is on its way to it.
struct Side {
    machine: Machine,
    ring: Vec<u8>,
    targets: [[u8; Span::LEN]; TARGETS],
    send_ring: Vec<u8>,
    /// Messages that arrive, in the order of the queue.
    inbox: VecDeque<Arrival>,
    /// Signaled requests that have not completed: the number of transfers that the completion of each covers, and
    /// whether it is a control message.
    outstanding: VecDeque<(usize, bool)>,
    written: u64,
    read: u64,
}

/// A write, and the message behind it.
struct Arrival {
    write: Option<(Span, Vec<u8>)>,
    message: Message,
}

/// Returns the byte of a stream at this place.
fn byte(place: u64) -> u8 {
    (place % 251) as u8
}

fn settings(carrier: Carrier, ring: u32, send_ring: usize, depth: u16) -> Settings {
    Settings {
        carrier,
        ring: Span { address: 0x1000, key: RING_KEY, length: ring },
        targets: Span { address: 0x80, key: TARGETS_KEY, length: TARGETS as u32 },
        receives: depth,
        send_ring,
        send_entries: depth.into(),
        confirms: false,
        grants_ring: false,
        session: false,
        takes_bytes: false,
    }
}

fn sides(own: Settings, other: Settings) -> [Side; 2] {
    let side = |settings: Settings, peer: Settings| {
        let peer = Hello::decode(&peer.hello().to_bytes()).expect("a good hello");
        Side {
            machine: Machine::new(settings, peer, true),
            ring: vec![0; settings.ring.length as usize],
            targets: [[0; Span::LEN]; TARGETS],
            send_ring: vec![0; settings.send_ring],
            inbox: VecDeque::new(),
            outstanding: VecDeque::new(),
            written: 0,
            read: 0,
        }
    };
    [side(own, other), side(other, own)]
}

// A word has the byte order of the host that writes it, also on a host of the other order.
#[test]
fn peer_byte_order_follows_its_hello() {
    let own = settings(Carrier::Send, 64, 64, 16);
    for big_endian in [false, true] {
        let hello = Hello { big_endian, ..own.hello() };
        let peer = Hello::decode(&hello.to_bytes()).expect("a good hello");
        assert_eq!(Machine::new(own, peer, true).peer_is_big_endian(), big_endian);
    }
}

impl Side {
    /// Writes at most `length` bytes. Returns the write and the message that arrive at the peer, if any.
    fn write(&mut self, length: usize) -> Option<Arrival> {
        let length = self.machine.room(length);
        if length == 0 {
            return None;
        }
        let at = self.machine.send_at(length);
        for place in &mut self.send_ring[at..at + length] {
            *place = byte(self.written);
            self.written += 1;
        }
        let Transfer { from, to, message } = self.machine.transfer(length);
        assert_eq!(from, at..at + length);
        assert_eq!(message, Message::Data(length as u32));
        if !self.machine.is_silent() {
            self.outstanding.push_back((self.machine.take_unsignaled(), false));
        }
        Some(Arrival { write: Some((to, self.send_ring[from].to_vec())), message })
    }

    fn control(&mut self) -> Option<Arrival> {
        let Control { target, message } = self.machine.control()?;
        self.outstanding.push_back((self.machine.take_unsignaled(), true));
        assert!(self.outstanding.iter().filter(|(_, is_control)| *is_control).count() <= CONTROLS);
        Some(Arrival { write: target.map(|(entry, place)| (place, entry.to_vec())), message })
    }

    fn complete(&mut self) {
        if let Some((transfers, is_control)) = self.outstanding.pop_front() {
            self.machine.complete_transfers(transfers);
            if is_control {
                self.machine.complete_control();
            }
        }
    }

    /// Receives the next write and its message. Returns `false` if there is none.
    fn arrive(&mut self) -> Result<bool, ProtocolError> {
        let Some(Arrival { write, message }) = self.inbox.pop_front() else { return Ok(false) };
        match write {
            Some((Span { address, key: RING_KEY, length }, bytes)) => {
                let start = (address - 0x1000) as usize;
                assert_eq!(length as usize, bytes.len());
                self.ring[start..start + bytes.len()].copy_from_slice(&bytes);
            }
            Some((Span { address, key: TARGETS_KEY, .. }, bytes)) => {
                let index = (address - 0x80) as usize / Span::LEN;
                assert_eq!(self.targets[index], [0; Span::LEN], "an entry is written when it has been taken");
                self.targets[index].copy_from_slice(&bytes);
            }
            Some((other, _)) => panic!("no memory of this end: {other:?}"),
            None => {}
        }
        if self.machine.apply(message)? == Event::Targets {
            let index = self.machine.next_target();
            if self.machine.apply_target(Span::from_native(self.targets[index]))? {
                self.targets[index] = [0; Span::LEN];
            }
        }
        Ok(true)
    }

    fn read(&mut self, length: usize) -> usize {
        let unread = self.machine.unread();
        let part = unread.start..unread.start + unread.len().min(length);
        for place in part.clone() {
            assert_eq!(self.ring[place], byte(self.read), "byte {}", self.read);
            self.read += 1;
        }
        self.machine.read(part.len()).expect("granted");
        part.len()
    }
}

/// Sends what the ends have, and lets everything arrive, complete and be read, until nothing is left.
fn drain(sides: &mut [Side; 2]) {
    loop {
        let mut moved = false;
        for index in 0..2 {
            while let Some(arrival) = sides[index].control() {
                sides[1 - index].inbox.push_back(arrival);
                moved = true;
            }
            let side = &mut sides[index];
            moved |= !side.outstanding.is_empty();
            while !side.outstanding.is_empty() {
                side.complete();
            }
            while side.arrive().expect("an honest peer") {
                moved = true;
            }
            while side.read(usize::MAX) > 0 {
                moved = true;
            }
        }
        if !moved {
            return;
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize),
    Read(usize),
    Control,
    Complete,
    Arrive,
}

/// Returns a step of one of the two sides.
fn step() -> impl Strategy<Value = (usize, Step)> {
    let step = prop_oneof![
        3 => (1..6000usize).prop_map(Step::Write),
        2 => (1..6000usize).prop_map(Step::Read),
        2 => Just(Step::Control),
        2 => Just(Step::Complete),
        3 => Just(Step::Arrive),
    ];
    (0..2usize, step)
}

fn end() -> impl Strategy<Value = (u32, usize, u16)> {
    (2048..9000u32, 2048..9000usize, 16..64u16)
}

proptest! {
    /// Checks that bytes arrive as they were written, and that none stays behind, in any order of events.
    #[test]
    fn every_byte_arrives_in_order(
        carrier in prop_oneof![Just(Carrier::Immediate), Just(Carrier::Send)],
        own in end(),
        other in end(),
        grants_ring in any::<[bool; 2]>(),
        steps in prop::collection::vec(step(), 0..400),
    ) {
        let make = |(ring, send_ring, depth), grants_ring| {
            Settings { grants_ring, ..settings(carrier, ring, send_ring, depth) }
        };
        let mut sides = sides(make(own, grants_ring[0]), make(other, grants_ring[1]));
        for (who, step) in steps {
            match step {
                Step::Write(length) => {
                    let arrival = sides[who].write(length);
                    sides[1 - who].inbox.extend(arrival);
                }
                Step::Read(length) => {
                    sides[who].read(length);
                }
                Step::Control => {
                    let arrival = sides[who].control();
                    sides[1 - who].inbox.extend(arrival);
                }
                Step::Complete => sides[who].complete(),
                Step::Arrive => {
                    prop_assert!(sides[who].arrive().is_ok());
                }
            }
        }
        drain(&mut sides);
        for who in 0..2 {
            prop_assert_eq!(sides[1 - who].read, sides[who].written);
            prop_assert!(sides[who].machine.room(usize::MAX) > 0, "it goes on");
            // The last transfers are unsignaled.
            let unsignaled = sides[who].machine.take_unsignaled();
            sides[who].machine.complete_transfers(unsignaled);
            prop_assert!(sides[who].machine.is_settled());
            // And so for ever.
            let before = sides[who].written;
            for _ in 0..200 {
                if let Some(arrival) = sides[who].write(5000) {
                    sides[1 - who].inbox.push_back(arrival);
                }
                drain(&mut sides);
            }
            prop_assert!(sides[who].written > before + 200 * 100);
            prop_assert_eq!(sides[1 - who].read, sides[who].written);
        }
    }
}

fn pair(carrier: Carrier) -> [Side; 2] {
    let settings = settings(carrier, 4096, 8192, 32);
    sides(settings, settings)
}

#[test]
fn full_ring_blocks_writer_until_half_free() {
    let own = settings(Carrier::Immediate, 4096, 8192, 32);
    // Ends that both grant their ring in the hello need no message for it.
    for grants in [[false; 2], [true, false], [false, true], [true; 2]] {
        let [one, other] = grants.map(|grants_ring| Settings { grants_ring, ..own });
        let mut sides = sides(one, other);
        if grants == [true; 2] {
            assert!(sides.iter_mut().all(|side| side.control().is_none()));
        } else {
            drain(&mut sides);
        }
        let [writer, reader] = &mut sides;
        let mut written = 0;
        while let Some(arrival) = writer.write(usize::MAX) {
            written += arrival.write.as_ref().map_or(0, |(_, bytes)| bytes.len());
            reader.inbox.push_back(arrival);
            writer.complete();
            reader.arrive().expect("granted");
        }
        assert_eq!(written, 4096);
        assert!(reader.control().is_none(), "nothing is free");
        assert_eq!(reader.read(2047), 2047);
        assert!(reader.control().is_none(), "not yet a half");
        assert_eq!(reader.read(1), 1);
        let grant = reader.control().expect("half is free");
        assert!(grant.write.is_some());
        writer.inbox.push_back(grant);
        writer.arrive().expect("honest");
        assert_eq!(writer.machine.room(usize::MAX), 2048);
    }
}

#[test]
fn small_messages_exhaust_credits_before_memory() {
    for (carrier, kept) in [(Carrier::Immediate, 0), (Carrier::Send, 6)] {
        let mut sides = pair(carrier);
        drain(&mut sides);
        let [writer, reader] = &mut sides;
        let mut count = 0;
        while let Some(arrival) = writer.write(1) {
            reader.inbox.push_back(arrival);
            writer.complete();
            count += 1;
        }
        // Of 32 receives a quarter is kept back by their owner, and of what is left a quarter by the other.
        assert_eq!(count, 24 - kept);
        while reader.arrive().expect("granted") {}
        let more = reader.control().expect("half of the credits are used");
        assert!(more.write.is_none(), "but not half of the memory");
        writer.inbox.push_back(more);
        writer.arrive().expect("honest");
        assert!(writer.machine.room(usize::MAX) > 0);
    }
}

#[test]
fn control_messages_wait_for_each_other() {
    let mut sides = pair(Carrier::Immediate);
    let [side, peer] = &mut sides;
    for _ in 0..CONTROLS {
        side.machine.receiving.free = 2048;
        side.machine.receiving.granted = [0, 0];
        assert!(side.control().is_some());
    }
    side.machine.shutdown();
    assert!(side.control().is_none());
    assert!(!side.machine.is_settled());
    side.complete();
    let last = side.control().expect("one has completed");
    assert_eq!(last.message, Message::Shutdown);
    assert!(side.control().is_none(), "it is said once");
    assert!(!peer.machine.is_peer_done());
}

#[test]
fn each_direction_ends_by_itself() {
    let mut sides = pair(Carrier::Send);
    drain(&mut sides);
    sides[0].machine.shutdown();
    assert_eq!(sides[0].machine.room(usize::MAX), 0);
    drain(&mut sides);
    assert!(sides[0].machine.is_settled());
    assert!(sides[1].machine.is_peer_done() && !sides[1].machine.is_peer_gone());
    // The other direction goes on, and more than its first credits.
    for _ in 0..100 {
        let arrival = sides[1].write(500).expect("it is open");
        sides[0].inbox.push_back(arrival);
        drain(&mut sides);
    }
    assert_eq!(sides[0].read, sides[1].written);
    sides[1].machine.shutdown();
    let last = sides[1].control().expect("room");
    assert_eq!(last.message, Message::Disconnect, "nothing is left open");
    sides[0].inbox.push_back(last);
    drain(&mut sides);
    assert!(sides[0].machine.is_peer_gone());
}

#[test]
fn both_may_shut_down_at_once() {
    let mut sides = pair(Carrier::Immediate);
    drain(&mut sides);
    sides[0].machine.shutdown();
    sides[1].machine.shutdown();
    drain(&mut sides);
    for side in &mut sides {
        assert!(side.machine.is_peer_gone() && side.machine.is_settled());
        side.machine.disconnect();
        assert!(side.control().is_none(), "the other knows");
    }
}

#[test]
fn a_drop_after_shutdown_disconnects() {
    let mut sides = pair(Carrier::Immediate);
    drain(&mut sides);
    sides[0].machine.shutdown();
    drain(&mut sides);
    sides[0].machine.disconnect();
    assert!(!sides[0].machine.is_settled());
    drain(&mut sides);
    assert!(sides[0].machine.is_settled() && sides[1].machine.is_peer_gone());
    assert_eq!(sides[1].machine.room(usize::MAX), 0);
}

#[test]
fn lies_are_found() {
    let fresh = || {
        let [side, _] = pair(Carrier::Immediate);
        side.machine
    };
    let overrun = |what| Err(ProtocolError::Overrun(what));
    // The first half has 2048 bytes, and a message never fills two targets.
    assert_eq!(fresh().apply(Message::Data(2049)), overrun("bytes"));
    let mut machine = fresh();
    assert_eq!(machine.apply(Message::Data(2048)), Ok(Event::Changed));
    assert_eq!(machine.apply(Message::Data(1)), overrun("bytes"), "the second half was not granted");
    let mut machine = fresh();
    for _ in 0..24 {
        assert_eq!(machine.apply(Message::Data(1)), Ok(Event::Changed));
    }
    assert_eq!(machine.apply(Message::Data(1)), overrun("messages"));
    // Nothing was sent, so no more than at first can be granted, and no less than nothing.
    for limit in [25, 0xFFFF] {
        assert!(matches!(
            fresh().apply(Message::Credit(limit)),
            Err(ProtocolError::Value { what: "credits", .. })
        ));
    }
    let mut machine = fresh();
    assert_eq!(machine.apply(Message::Shutdown), Ok(Event::Changed));
    assert!(matches!(machine.apply(Message::Data(1)), Err(ProtocolError::Message(1))));
    let mut machine = fresh();
    let target = Span { address: 1, key: 2, length: 2048 };
    assert_eq!(machine.apply_target(Span { length: 0, ..target }), Ok(false), "there is none");
    assert_eq!(machine.apply_target(target), Ok(true));
    assert_eq!(machine.apply_target(target), Err(ProtocolError::Overrun("targets")));
}

/// Creates both ends, with a send ring of this length, a ring of eight times that and enough credits.
fn with_send_ring(length: usize) -> [Side; 2] {
    let settings = settings(Carrier::Immediate, 8 * length as u32, length, 256);
    let mut sides = sides(settings, settings);
    drain(&mut sides);
    sides
}

// IO-06: while the reader keeps up, no message is shorter than what is wanted or 2,048 bytes, but at the end of a target.
#[test]
fn no_message_is_short_for_lack_of_room() {
    let mut sides = with_send_ring(10_000);
    // One byte on its way would leave a ring with pieces of every length.
    let mut lengths = (1..4000).step_by(37).cycle();
    let mut messages = 0;
    while messages < 2000 {
        let [writer, reader] = &mut sides;
        let wanted = lengths.next().expect("without end");
        let target = writer.machine.sending.targets.front().map_or(0, |target| target.length as usize);
        let Some(arrival) = writer.write(wanted) else {
            // Only the oldest message makes room.
            assert!(writer.outstanding.len() > 1 || target == 0, "there was room enough");
            writer.complete();
            if target == 0 {
                drain(&mut sides);
            }
            continue;
        };
        let length = arrival.write.as_ref().map_or(0, |(_, bytes)| bytes.len());
        assert!(length >= wanted.min(2048).min(target), "{length} of {wanted}");
        messages += 1;
        reader.inbox.push_back(arrival);
        while reader.arrive().expect("granted") {}
        while reader.read(usize::MAX) > 0 {}
        while let Some(grant) = reader.control() {
            writer.inbox.push_back(grant);
        }
        while !reader.outstanding.is_empty() {
            reader.complete();
        }
        while writer.arrive().expect("honest") {}
    }
}

#[test]
fn an_empty_ring_is_used_from_its_start() {
    let mut sides = with_send_ring(4096);
    let writer = &mut sides[0];
    writer.write(4095).expect("room");
    assert_eq!((writer.machine.room(1), writer.machine.room(2)), (1, 0));
    writer.complete();
    assert_eq!(writer.machine.send_at(100), 0, "nothing is on its way");
    // Behind 1,100 bytes on their way are 2,996, and then the 96 behind are left out.
    writer.write(1100).expect("room");
    assert_eq!(writer.write(2900).map(|_| writer.machine.sending.at), Some(4000));
    assert_eq!(writer.machine.room(200), 0, "neither the end nor the start is long enough");
    writer.complete();
    assert_eq!((writer.machine.room(200), writer.machine.send_at(200)), (200, 0));
    writer.write(200).expect("room");
    assert_eq!(writer.machine.sending.used, 2900 + 96 + 200);
}

// One of many small messages is signaled, and each of few large ones: before the ring or the queue is full, and for all
// before it.
#[test]
fn few_transfers_are_signaled_while_room_remains() {
    let told = |carrier, depth, length, count| {
        let settings = settings(carrier, 1 << 20, 1 << 17, depth);
        let [mut side, _] = sides(settings, settings);
        (0..count).for_each(|_| drop(side.write(length).expect("room")));
        side.outstanding.iter().map(|(transfers, _)| *transfers).collect::<Vec<_>>()
    };
    assert_eq!(told(Carrier::Immediate, 384, 64, 100), [32, 32, 32]);
    assert_eq!(told(Carrier::Immediate, 384, 1 << 14, 8), [2; 4]);
    assert_eq!(told(Carrier::Immediate, 384, (1 << 17) - 2047, 1), [1], "it fills the ring");
    assert_eq!(told(Carrier::Immediate, 16, 64, 12), [3, 3, 3, 3]);
    assert_eq!(told(Carrier::Send, 384, 64, 5), [1; 5]);
}

// A close waits for the silent requests: the completion of a message covers them, or that of a request without one if
// the peer is gone.
#[test]
fn close_waits_for_unsignaled_transfers() {
    let [mut side, _] = with_send_ring(1 << 16);
    side.write(64).expect("room");
    assert!(side.outstanding.is_empty(), "it is silent");
    side.machine.shutdown();
    assert!(!side.machine.needs_signaled(), "there is a message to come");
    side.control().expect("the end of this direction");
    assert!(!side.machine.needs_signaled() && !side.machine.is_settled());
    side.complete();
    assert!(side.machine.is_settled());

    let [mut side, _] = with_send_ring(1 << 16);
    side.write(64).expect("room");
    side.machine.apply(Message::Disconnect).expect("a message");
    assert!(!side.machine.needs_signaled(), "it may close later");
    side.machine.disconnect();
    assert!(side.control().is_none() && side.machine.needs_signaled() && !side.machine.is_settled());
    assert_eq!(side.machine.take_unsignaled(), 1);
    side.machine.complete_transfers(1);
    assert!(side.machine.is_settled() && !side.machine.needs_signaled());
}

#[test]
fn a_target_of_another_length_is_a_lie() {
    let own = settings(Carrier::Immediate, 0x2468, 4096, 32);
    let [Side { mut machine, .. }, _] = sides(own, own);
    let target = Span { address: 1, key: 2, length: 0x1234 };
    // A part of an entry: the rest, and the message that announces the entry, follow.
    for length in [0, 0x34, 0x1200] {
        assert_eq!(machine.apply_target(Span { length, ..target }), Ok(false));
    }
    for length in [0x1233, 0x1235, 0x35, 0x0100_1234, u32::MAX] {
        let error = ProtocolError::Value { what: "a target length", value: length.into() };
        assert_eq!(machine.apply_target(Span { length, ..target }), Err(error));
    }
    assert_eq!(machine.apply_target(target), Ok(true));
}

// IO-05: an end that may not begin sends once the peer has; and a program in C may leave without a message.
#[test]
fn sending_waits_for_first_peer_message() {
    let settings = settings(Carrier::Send, 4096, 4096, 16);
    let mut machine = Machine::new(settings, settings.hello(), false);
    assert!(!machine.may_send() && machine.room(1) == 0 && machine.room(usize::MAX) == 0);
    assert!(machine.control().is_none() && !machine.is_end_silent());
    assert_eq!(machine.apply(Message::Keepalive), Ok(Event::Changed));
    assert!(machine.may_send() && machine.room(1) == 1 && machine.control().is_some());
    let foreign = Hello { says_its_end: false, ..settings.hello() };
    assert!(Machine::new(settings, foreign, true).is_end_silent());
}

// Bytes that are read before the message that announces them are free when it has come, and are not read again.
#[test]
fn bytes_can_be_read_before_their_message() {
    let own = settings(Carrier::Send, 200, 64, 16);
    let [Side { mut machine, .. }, _] = sides(own, own);
    let next = machine.next_place().expect("nothing is unread");
    assert_eq!((next.address, next.length), (0x1000, 100), "the half that is granted");
    machine.read(30).expect("granted");
    let next = machine.next_place().expect("no message has come");
    assert_eq!((next.address, next.length), (0x1000 + 30, 70));
    machine.apply(Message::Data(20)).expect("granted");
    assert!(machine.unread().is_empty(), "all of it has been read");
    machine.apply(Message::Data(50)).expect("granted");
    assert_eq!((machine.unread(), machine.unread_with(10)), (30..70, 50));
    assert_eq!(machine.next_place(), None, "these come first");
    machine.read(40).expect("granted");
    assert_eq!(machine.next_place().map(|next| (next.address, next.length)), Some((0x1000 + 70, 30)));
    machine.read(30).expect("granted");
    assert_eq!(machine.next_place().map(|next| next.length), Some(0), "no more is granted yet");
    machine.apply(Message::Data(30)).expect("granted");
    machine.control().expect("it grants the other half");
    machine.control().expect("it grants the first half again");
    machine.read(100).expect("granted");
    let next = machine.next_place().expect("no message has come");
    assert_eq!(
        (next.address, next.length),
        (0x1000, 100),
        "the first half, before the message of the second"
    );
    assert!(machine.apply(Message::Data(101)).is_err(), "more than the other half");
}
