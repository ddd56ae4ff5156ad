//! Calls of all kinds, while their processes are killed and stopped and their connections cut, at random.
//!
//! Every call is answered rightly or fails with a status, in time; the next one finds its way; nothing is left, and memory is
//! where it was. `TOKIO_RDMA_CHAOS_SECONDS` sets the duration, `TOKIO_RDMA_TEST_SEED` the seed.

mod calls;
mod relay;
mod roles;

use std::alloc::System;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cap::Cap;
use common::dice::Dice;
use common::process::alone;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rdma_rpc::Channel;

use self::calls::{Tally, last_calls, make_calls};
use self::relay::Relay;
use self::roles::{Held, Role, block_on};

/// The channels through each relay, and the tasks that call on each channel.
const CHANNELS: usize = 3;
const CALLERS: usize = 8;
/// The time for calls without faults, behind which memory is where it is.
const CALM: Duration = Duration::from_secs(1);
/// The bytes by which memory may grow, whatever the duration: the tables and queues of a few connections. The threads' buffers for
/// streams are not counted, and those for long frames are there before.
const SLACK: usize = 64 << 10;

/// Counts the bytes that this process has allocated.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

fn time() -> Duration {
    let told = std::env::var("TOKIO_RDMA_CHAOS_SECONDS").ok();
    told.map_or(Duration::from_secs(4), |text| Duration::from_secs(text.parse().expect("a number")))
}

/// Makes calls on all channels until the time has passed.
async fn call_all(channels: &[Channel], seed: u64, time: Duration, tally: &Arc<Tally>) {
    let mut callers = JoinSet::new();
    for (number, channel) in channels.iter().enumerate().flat_map(|each| [each; CALLERS]).enumerate() {
        let dice = Dice::of(seed, number);
        callers.spawn(make_calls(channel.1.clone(), dice, Some(Instant::now() + time), tally.clone()));
    }
    while let Some(ended) = callers.join_next().await {
        ended.expect("no panic");
    }
}

/// What the faults are done to.
struct Stage {
    /// A server that is killed now and then, one that is not, and a client of that.
    mortal: Role,
    lasting: Role,
    visitor: Role,
    /// The ways to both servers, and that of the other client.
    relays: [Relay; 3],
}

impl Stage {
    /// Does one thing at random. All processes run and all relays pass on again behind it.
    async fn disturb(&mut self, dice: &mut Dice) {
        let pause = Duration::from_millis(dice.below(500) as u64);
        let relay = &self.relays[dice.below(3)];
        match dice.below(8) {
            0 => {
                self.mortal.kill().await;
                sleep(pause).await;
                self.mortal = Role::server().await;
                self.relays[0].lead_to(self.mortal.address);
            }
            1 => {
                self.visitor.kill().await;
                self.visitor = Role::client(self.relays[2].address).await;
            }
            2 | 3 => {
                let role = [&self.mortal, &self.lasting, &self.visitor][dice.below(3)];
                role.stop();
                sleep(pause).await;
                role.go_on();
            }
            4 => relay.reset(1),
            5 => relay.reset(usize::MAX),
            kind => {
                relay.hold(true);
                sleep(pause).await;
                if kind == 6 {
                    relay.reset(usize::MAX);
                }
                relay.hold(false);
            }
        }
    }
}

// One test in a process of its own, whose resources it counts.
#[test]
#[allow(clippy::print_stderr, reason = "what there was of calls and faults")]
fn calls_end_in_spite_of_chaos() {
    if !alone(module_path!(), "calls_end_in_spite_of_chaos") {
        return;
    }
    block_on(async {
        let seed = Dice::seed();
        let (mortal, mut lasting) = (Role::server().await, Role::server().await);
        let relays = [
            Relay::new(mortal.address).await,
            Relay::new(lasting.address).await,
            Relay::new(lasting.address).await,
        ];
        let channels: Vec<_> = relays[..2]
            .iter()
            .flat_map(|relay| [relay.address; CHANNELS])
            .map(|address| Channel::connect_lazy(address.to_string()))
            .collect();
        let tally = Arc::<Tally>::default();
        // On a busy machine it takes more time until calls of all kinds were made.
        for round in 0.. {
            call_all(&channels, seed.wrapping_add(round), CALM, &tally).await;
            if tally.is_complete() {
                break;
            }
        }
        last_calls(&channels).await;
        let before = [Held::own(0).await, lasting.held().await];

        let visitor = Role::client(relays[2].address).await;
        let mut stage = Stage { mortal, lasting, visitor, relays };
        let (mut dice, begin, time) = (Dice::of(seed, usize::MAX - 1), Instant::now(), time());
        let mut faults = 0;
        let disturb = async {
            while begin.elapsed() < time {
                stage.disturb(&mut dice).await;
                faults += 1;
                sleep(Duration::from_millis(dice.below(200) as u64)).await;
            }
        };
        tokio::join!(call_all(&channels, !seed, time, &tally), disturb);

        last_calls(&channels).await;
        let Stage { mortal: _mortal, mut lasting, mut visitor, relays: _relays } = stage;
        visitor.kill().await;
        drop(visitor);
        let mut after = [Held::own(0).await, lasting.held().await];
        let is_given_back = async {
            while !after.iter().zip(&before).all(|(after, before)| after.is_no_more_than(before, SLACK)) {
                sleep(Duration::from_millis(100)).await;
                after = [Held::own(0).await, lasting.held().await];
            }
        };
        let outcome = tokio::time::timeout(common::patience(), is_given_back).await;
        eprintln!("{faults} faults; {tally}before: {before:?}; after: {after:?}");
        outcome.expect("everything is given back");
    });
}
