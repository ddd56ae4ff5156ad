//! Stories that nobody thought of: any act at any time.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::link::Manner;
use super::*;

/// A made-up story.
#[derive(Clone, Debug)]
struct Schedule {
    setup: Setup,
    reactions: Vec<Reaction>,
    /// What happens anyway, and how long after the one before.
    acts: Vec<(Duration, usize, Act)>,
}

/// Any limit, most often around that of an adapter.
fn limit() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(1), 2..16_u32, Just(16), Just(17), Just(0x3ffe), Just(0x3fff), Just(u32::MAX)]
}

/// Any pair of limits.
fn limits() -> impl Strategy<Value = ReadLimits> {
    (limit(), limit()).prop_map(|(inbound, outbound)| ReadLimits::new(inbound, outbound))
}

/// Any length of private data, now and then too much.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0..=508_usize, 1 => Just(0), 1 => Just(508), 1 => Just(509)]
}

/// The moments of a story are few, so that they meet.
fn moment() -> impl Strategy<Value = Duration> {
    prop_oneof![3 => (0..60_u64).prop_map(ms), 1 => Just(Duration::ZERO)]
}

/// How long somebody waits: not always long enough.
fn patience() -> impl Strategy<Value = Duration> {
    prop_oneof![3 => (0..400_u64).prop_map(ms), 1 => moment()]
}

/// How long somebody thinks before it does what is expected.
fn thought() -> impl Strategy<Value = Duration> {
    prop_oneof![3 => (0..12_u64).prop_map(ms), 1 => moment()]
}

/// Once in ten.
fn seldom() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.1)
}

/// Any connect.
fn connect() -> impl Strategy<Value = Act> {
    (length(), limits(), prop::option::weighted(0.3, patience()), seldom())
        .prop_map(|(data, limits, patience, busy)| Act::Connect { data, limits, patience, busy })
}

/// Any accept.
fn accept() -> impl Strategy<Value = Act> {
    (length(), limits(), seldom()).prop_map(|(data, limits, busy)| Act::Accept { data, limits, busy })
}

/// Any reject.
fn reject() -> impl Strategy<Value = Act> {
    length().prop_map(|data| Act::Reject { data })
}

/// Any disconnect.
fn disconnect() -> impl Strategy<Value = Act> {
    patience().prop_map(|patience| Act::Disconnect { patience })
}

/// Anything that can happen to an end.
fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        1 => Just(Act::Bind),
        3 => connect(),
        2 => Just(Act::Complete),
        2 => accept(),
        2 => reject(),
        2 => Just(Act::Notify),
        3 => disconnect(),
        3 => Just(Act::Cancel),
        3 => Just(Act::Release),
        2 => Just(Act::Fetch),
        2 => Just(Act::Send),
        1 => Just(Act::Listen),
        1 => Just(Act::CloseListener),
        1 => Just(Act::QueuePairRemoved),
        1 => Just(Act::DeviceRemoved),
        1 => Just(Act::TimedOut),
        1 => Just(Act::PathLost),
        1 => Just(Act::Failed),
        1 => Just(Act::BlackHole),
        1 => moment().prop_map(Act::Slow),
        1 => Just(Act::Reset),
        1 => Just(Act::Close),
    ]
}

/// What an end does by itself in a state.
fn reaction(end: usize, state: State, act: impl Strategy<Value = Act> + 'static) -> BoxedStrategy<Reaction> {
    (thought(), act).prop_map(move |(after, act)| Reaction { end, state, after, act }).boxed()
}

/// Mostly what leads to a connection, or no schedule would get anywhere.
fn reactions() -> impl Strategy<Value = Vec<Reaction>> {
    let no = || prop_oneof![reject(), Just(Act::Release), Just(Act::Cancel)];
    let once_connected = || {
        prop_oneof![
            3 => disconnect(),
            2 => Just(Act::Notify),
            2 => Just(Act::Send),
            1 => Just(Act::Release),
        ]
    };
    let optional = |reaction| prop::collection::vec(reaction, 0..2);
    let again = || prop_oneof![3 => Just(Act::Fetch), 1 => Just(Act::Notify)];
    (
        reaction(PASSIVE, State::RequestPending, prop_oneof![5 => accept(), 1 => no()]),
        reaction(ACTIVE, State::ConnectDone, prop_oneof![5 => Just(Act::Complete), 1 => no()]),
        prop::collection::vec(reaction(ACTIVE, State::Connected, once_connected()), 0..3),
        prop::collection::vec(reaction(PASSIVE, State::Connected, once_connected()), 0..3),
        optional(reaction(ACTIVE, State::Idle, connect())),
        optional(reaction(PASSIVE, State::Dead, again())),
        optional(reaction(PASSIVE, State::Disconnected, again())),
        optional(reaction(PASSIVE, State::PeerGone, disconnect())),
        optional(reaction(ACTIVE, State::PeerGone, disconnect())),
    )
        .prop_map(|(a, b, c, d, e, f, g, h, i)| [vec![a, b], c, d, e, f, g, h, i].concat())
}

/// Any world.
fn setup() -> impl Strategy<Value = Setup> {
    let order = Just([Turn::Arrival, Turn::Own, Turn::Deadline, Turn::Act]).prop_shuffle();
    let chunk = prop_oneof![Just(1), Just(7), Just(64), Just(4096)];
    let gap = prop_oneof![Just(Duration::ZERO), (0..500_u64).prop_map(Duration::from_micros)];
    let manner =
        (0..20_u64, chunk, gap).prop_map(|(latency, chunk, gap)| Manner { latency: ms(latency), chunk, gap });
    let road = prop_oneof![
        20 => Just(Road::Open),
        1 => any::<bool>().prop_map(|network| Road::None { network }),
        1 => Just(Road::NoPort),
    ];
    let bind = prop::option::weighted(0.2, Just(Status::SHARING_VIOLATION));
    let pause = || prop_oneof![2 => Just(Duration::ZERO), 1 => moment()];
    let flags = (any::<[bool; 2]>(), any::<[bool; 2]>(), seldom(), any::<bool>());
    (flags, [limits(), limits()], manner, [pause(), pause()], order, 0..3_usize, road, bind).prop_map(
        |((crc, watchful, plain, eager), adapter, manner, complete, order, backlog, road, bind_fails)| {
            Setup { manner, crc, adapter, watchful, plain, complete, order, eager, backlog, road, bind_fails }
        },
    )
}

/// Any story.
fn schedule() -> impl Strategy<Value = Schedule> {
    let beginning = (moment(), connect())
        .prop_map(|(after, connect)| vec![(Duration::ZERO, PASSIVE, Act::Fetch), (after, ACTIVE, connect)]);
    let rest = prop::collection::vec((moment(), 0..2_usize, any_act()), 0..6);
    (setup(), reactions(), beginning, rest).prop_map(|(setup, reactions, beginning, rest)| Schedule {
        setup,
        reactions,
        acts: [beginning, rest].concat(),
    })
}

/// Plays a schedule to its end, checking all the way.
fn play(schedule: Schedule) -> Pair {
    let mut pair = Pair::new(schedule.setup);
    pair.reactions = schedule.reactions;
    let mut after = Duration::ZERO;
    for (pause, end, act) in schedule.acts {
        after += pause;
        pair.later(after, end, act);
    }
    pair.check_end();
    pair
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    // CAN-01, CAN-06, CAN-07, CAN-08, NEG-01, NEG-02, NEG-03, NEG-04, PD-01, PD-02, CM-24, CM-28, LS-15,
    // DIS-01, DIS-02, DIS-06, DIS-07, DIS-11, DIS-13: whatever both sides do, and whatever happens between them.
    #[test]
    fn every_schedule_ends_well(schedule in schedule()) {
        play(schedule);
    }
}

/// The schedules above are worth something: they reach every way for a call to end, many times over.
#[test]
fn the_schedules_reach_every_answer() {
    use Status as S;
    let mut runner = TestRunner::deterministic();
    let mut reached = BTreeMap::<_, u32>::new();
    for _ in 0..1000 {
        let schedule = schedule().new_tree(&mut runner).expect("a schedule").current();
        for (op, status) in play(schedule).ends.iter().flat_map(|end| &end.finished) {
            *reached.entry((format!("{op:?}"), *status)).or_default() += 1;
        }
    }
    let often = [
        (Op::Connect, &[S::SUCCESS, S::CONNECTION_REFUSED, S::IO_TIMEOUT, S::CANCELED][..]),
        (Op::CompleteConnect, &[S::SUCCESS, S::CONNECTION_ABORTED]),
        (Op::Accept, &[S::SUCCESS, S::CONNECTION_REFUSED, S::CONNECTION_ABORTED]),
        (Op::NotifyDisconnect, &[S::SUCCESS, S::CANCELED]),
        (Op::Disconnect, &[S::SUCCESS, S::IO_TIMEOUT]),
    ];
    for (op, statuses) in often {
        for status in statuses {
            let times = reached.get(&(format!("{op:?}"), *status)).copied().unwrap_or_default();
            assert!(times >= 10, "{op:?} {status} only {times} times");
        }
    }
}
