//! One end by hand, and two ends against each other.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const OURS: Hello = Hello { credits: 5, maximum: 100 };
const THEIRS: Hello = Hello { credits: 3, maximum: 50 };

fn passive() -> Channel {
    let mut channel = Channel::new(Role::Passive, OURS, THEIRS);
    assert_eq!(channel.received(&[START, 0, 0, 0]), Ok(Received::Control));
    channel
}

#[test]
fn a_hello_survives_its_encoding_and_padding() {
    let mut data = OURS.encode().to_vec();
    assert_eq!(data, *b"TRMS\x01\0\0\x05\0\0\0\x64");
    assert_eq!(Hello::decode(&data), Ok(OURS));
    // InfiniBand pads, and a later version may say more.
    data.extend_from_slice(&[0; 40]);
    assert_eq!(Hello::decode(&data), Ok(OURS));
}

#[test]
fn a_hello_that_makes_no_sense_is_refused() {
    let data = OURS.encode();
    for length in 0..data.len() {
        assert_eq!(Hello::decode(&data[..length]), Err(ProtocolError::Foreign));
    }
    let with = |at: usize, bytes: &[u8]| {
        let mut data = data;
        data[at..at + bytes.len()].copy_from_slice(bytes);
        Hello::decode(&data)
    };
    assert_eq!(with(3, b"s"), Err(ProtocolError::Foreign));
    assert_eq!(with(4, &[2]), Err(ProtocolError::Version(2)));
    assert_eq!(with(5, &[9]), Ok(OURS), "reserved for what old versions may ignore");
    assert_eq!(with(6, &[0, 0]), Err(ProtocolError::Value { what: "credits", value: 0 }));
    assert_eq!(with(8, &[0; 4]), Err(ProtocolError::Value { what: "a longest message", value: 0 }));
}

#[test]
fn the_passive_side_waits_for_the_start() {
    let mut channel = Channel::new(Role::Passive, OURS, THEIRS);
    channel.end();
    assert_eq!((channel.may_send(), channel.control()), (false, None));
    assert_eq!(channel.received(&[DATA, 0, 0, 0]), Err(ProtocolError::Message(0x0200_0000)));
    assert_eq!(channel.received(&[START, 0, 0, 0]), Ok(Received::Control));
    assert_eq!(channel.control(), Some([END, 0, 0, 0]));

    let mut channel = Channel::new(Role::Active, OURS, THEIRS);
    assert_eq!(channel.send(), None);
    assert_eq!(channel.control(), Some([START, 0, 0, 0]));
    assert_eq!(channel.control(), None);
    assert_eq!(channel.send(), Some([DATA, 0, 0, 0]));
}

#[test]
fn credits_run_out_and_come_back() {
    let mut channel = passive();
    for _ in 0..3 {
        assert!(!channel.is_exhausted());
        assert_eq!(channel.send(), Some([DATA, 0, 0, 0]));
    }
    assert!(channel.is_exhausted());
    assert_eq!(channel.send(), None);
    // With a message, and without.
    assert_eq!(channel.received(&[DATA, 0, 0, 1]), Ok(Received::Data));
    assert_eq!(channel.send(), Some([DATA, 0, 0, 0]));
    assert_eq!(channel.received(&[CREDITS, 0, 0, 3]), Ok(Received::Control));
    assert!(channel.may_send());
    assert_eq!(channel.received(&[CREDITS, 0, 0, 1]), Err(ProtocolError::Overrun("credits")));
}

#[test]
fn half_of_the_credits_are_returned_at_once() {
    let mut channel = passive();
    for _ in 0..5 {
        assert_eq!(channel.received(&[DATA, 0, 0, 0, 7, 7]), Ok(Received::Data));
    }
    assert_eq!(channel.received(&[DATA, 0, 0, 0]), Err(ProtocolError::Overrun("messages")));
    channel.taken();
    channel.taken();
    assert_eq!(channel.control(), None);
    channel.taken();
    assert_eq!(channel.control(), Some([CREDITS, 0, 0, 3]));
    assert_eq!(channel.control(), None);
    channel.taken();
    assert_eq!(channel.send(), Some([DATA, 0, 0, 1]));
    channel.taken();
    channel.end();
    assert_eq!(channel.control(), Some([END, 0, 0, 1]));
}

#[test]
fn nothing_follows_the_end_but_credits() {
    let mut channel = passive();
    channel.end();
    assert!(!channel.has_ended() && !channel.may_send());
    assert_eq!(channel.control(), Some([END, 0, 0, 0]));
    assert!(channel.has_ended());
    channel.end();
    assert_eq!((channel.control(), channel.send()), (None, None), "it is said once");
    // The other direction goes on.
    for _ in 0..3 {
        assert_eq!(channel.received(&[DATA, 0, 0, 0]), Ok(Received::Data));
        channel.taken();
    }
    assert_eq!(channel.control(), Some([CREDITS, 0, 0, 3]));

    let mut channel = passive();
    assert_eq!(channel.received(&[DATA, 0, 0, 0]), Ok(Received::Data));
    assert_eq!(channel.send(), Some([DATA, 0, 0, 0]));
    assert_eq!(channel.received(&[END, 0, 0, 0]), Ok(Received::Control));
    assert!(channel.peer_has_ended());
    assert_eq!(channel.received(&[CREDITS, 0, 0, 1]), Ok(Received::Control));
    assert_eq!(channel.received(&[END, 0, 0, 0]), Err(ProtocolError::Message(0x0400_0000)));
    assert_eq!(channel.received(&[DATA, 0, 0, 0]), Err(ProtocolError::Message(0x0200_0000)));
    (0..5).for_each(|_| channel.taken());
    assert_eq!(channel.control(), None, "who has ended needs no credits");
}

#[test]
fn malformed_messages_are_refused() {
    for length in 0..HEADER {
        let message = &[DATA, 0, 0, 0][..length];
        assert_eq!(passive().received(message), Err(ProtocolError::Length(length)));
    }
    for header in [[0, 0, 0, 0], [5, 0, 0, 0], [255, 0, 0, 0], [DATA, 1, 0, 0], [START, 0, 0, 0]] {
        let error = Err(ProtocolError::Message(u32::from_be_bytes(header)));
        assert_eq!(passive().received(&header), error);
    }
    // A start that gives credits, before anything can have been taken.
    let mut fresh = Channel::new(Role::Passive, OURS, THEIRS);
    assert_eq!(fresh.received(&[START, 0, 0, 1]), Err(ProtocolError::Message(0x0100_0001)));
    let mut long = vec![DATA, 0, 0, 0];
    long.resize(HEADER + 100, 1);
    assert_eq!(passive().received(&long), Ok(Received::Data), "the longest");
    long.push(1);
    assert_eq!(passive().received(&long), Err(ProtocolError::Length(HEADER + 101)));
    for kind in [CREDITS, END] {
        assert_eq!(passive().received(&[kind, 0, 0, 0, 9]), Err(ProtocolError::Length(5)));
    }
    assert_eq!(
        passive().received(&[CREDITS, 0, 0, 0]),
        Err(ProtocolError::Value { what: "credits", value: 0 })
    );
}

/// One end with its receives, its user, and the wire towards it.
struct Side {
    channel: Channel,
    /// Posted, those that messages on the wire will take included.
    receives: usize,
    wire: VecDeque<Vec<u8>>,
    unread: VecDeque<Vec<u8>>,
    to_send: VecDeque<Vec<u8>>,
    read: Vec<Vec<u8>>,
    wants_end: bool,
}

/// The two ends; everything that could be done next, one thing at a time.
struct Two([Side; 2]);

#[derive(Clone, Copy, Debug)]
enum Step {
    Send,
    Deliver,
    Take,
    Control,
}

const STEPS: [Step; 4] = [Step::Send, Step::Deliver, Step::Take, Step::Control];

impl Two {
    fn new(credits: [u16; 2], messages: [usize; 2]) -> Self {
        let hello = |credits| Hello { credits, maximum: 8 };
        let [a, b] = credits.map(hello);
        let mut number = 0_u64;
        let mut end = |role, ours: Hello, theirs, messages| Side {
            channel: Channel::new(role, ours, theirs),
            receives: usize::from(ours.credits) + CONTROLS,
            wire: VecDeque::new(),
            unread: VecDeque::new(),
            to_send: (0..messages)
                .map(|_| {
                    number += 1;
                    number.to_be_bytes()[..usize::try_from(number % 9).expect("small")].to_vec()
                })
                .collect(),
            read: Vec::new(),
            wants_end: true,
        };
        let [first, second] = messages;
        Self([end(Role::Active, a, b, first), end(Role::Passive, b, a, second)])
    }

    fn transmit(&mut self, from: usize, header: [u8; HEADER], payload: &[u8]) {
        let to = &mut self.0[1 - from];
        // The promise of the whole: no message finds no receive.
        to.receives = to.receives.checked_sub(1).expect("a receive for every message");
        to.wire.push_back([&header[..], payload].concat());
    }

    /// Returns whether there was something to do. A reader that is `asleep` takes nothing.
    fn step(&mut self, at: usize, step: Step, asleep: bool) -> bool {
        let end = &mut self.0[at];
        match step {
            Step::Send => {
                if end.to_send.is_empty() {
                    let ends = std::mem::take(&mut end.wants_end);
                    if ends {
                        end.channel.end();
                    }
                    return ends;
                }
                let Some(header) = end.channel.send() else { return false };
                let payload = end.to_send.pop_front().expect("there is one");
                self.transmit(at, header, &payload);
            }
            Step::Deliver => {
                let Some(message) = end.wire.pop_front() else { return false };
                match end.channel.received(&message).expect("an honest peer") {
                    Received::Data => end.unread.push_back(message[HEADER..].to_vec()),
                    Received::Control => end.receives += 1,
                }
            }
            Step::Take => {
                if asleep {
                    return false;
                }
                let Some(message) = end.unread.pop_front() else { return false };
                end.read.push(message);
                end.receives += 1;
                end.channel.taken();
            }
            Step::Control => {
                let Some(header) = end.channel.control() else { return false };
                self.transmit(at, header, &[]);
            }
        }
        true
    }

    /// Everything that can be done, until nothing can.
    fn settle(&mut self, asleep: [bool; 2]) {
        let mut steps = 0;
        while (0..2).any(|at| STEPS.iter().any(|step| self.step(at, *step, asleep[at]))) {
            steps += 1;
            assert!(steps < 100_000, "they talk for ever");
        }
    }
}

proptest! {
    #[test]
    fn every_message_arrives_in_order_whatever_the_schedule(
        credits in [1_u16..10, 1_u16..10],
        messages in [0_usize..60, 0_usize..60],
        schedule in prop::collection::vec((0_usize..2, 0_usize..4), 0..600),
    ) {
        let mut two = Two::new(credits, messages);
        let sent = [0, 1].map(|at| Vec::from(two.0[at].to_send.clone()));
        for (at, step) in schedule {
            two.step(at, STEPS[step], false);
        }
        two.settle([false; 2]);
        for (at, end) in two.0.iter().enumerate() {
            prop_assert_eq!(&end.read, &sent[1 - at]);
            prop_assert!(end.channel.peer_has_ended() && end.channel.has_ended());
            prop_assert_eq!(end.receives, usize::from(credits[at]) + CONTROLS);
        }
    }

    // A reader that takes nothing stops who writes to it, and nobody else.
    #[test]
    fn the_directions_do_not_wait_for_each_other(
        credits in [1_u16..10, 1_u16..10],
        sleeper in 0_usize..2,
    ) {
        let mut two = Two::new(credits, [50, 50]);
        let sent = Vec::from(two.0[sleeper].to_send.clone());
        let mut asleep = [false; 2];
        asleep[sleeper] = true;
        two.settle(asleep);
        prop_assert_eq!(&two.0[1 - sleeper].read, &sent);
        prop_assert_eq!(two.0[sleeper].unread.len(), usize::from(credits[sleeper]));
        two.settle([false; 2]);
        prop_assert_eq!(two.0[sleeper].read.len(), 50);
    }
}
