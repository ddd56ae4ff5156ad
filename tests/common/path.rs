//! The time in which a silent peer must be given up, counted in time that this process had.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::device;

/// The parts of the path timeout by which the time is counted: those by which devices are asked, too.
const PARTS: u32 = 10;
/// A dead peer is noticed one part late at the most. The two others are for whoever waits for it: what a task is late for
/// adds up over the parts, and the rules of when a part begins are not those of a provider.
const MOST: u32 = PARTS + 1 + 2;

/// Awaits what a provider must bring about within the path timeout and a tenth, from now on.
///
/// A provider does not count the time in which the machine stood still, nor that in which nobody ran its task. Therefore this
/// is no comparison of two clocks: the parts of the path timeout are counted by the same runtime, and however long a pause
/// is, it is one part for both. After it the provider has a whole part before the next one can fail the test.
///
/// # Panics
/// When it has not come about in time.
pub async fn noticed<F: Future>(path_timeout: Duration, future: F) -> F::Output {
    let part = path_timeout / PARTS;
    let mut parts = interval_at(Instant::now() + part, part);
    parts.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let too_late = async {
        for _ in 0..MOST {
            parts.tick().await;
        }
    };
    tokio::select! {
        biased;
        outcome = future => outcome,
        () = too_late => panic!("not noticed within {path_timeout:?}{}", device::last_events()),
    }
}
