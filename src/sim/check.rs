//! Tests for many seeds.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use super::network::Network;

/// The variable that names the only seed to run.
const VARIABLE: &str = "TOKIO_RDMA_SIM_SEED";

/// The longest a test runs, in virtual time.
const LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// The result of a test: `()`, or a `Result` whose error fails the test.
pub trait Outcome: sealed::Sealed {
    #[doc(hidden)]
    fn failure(self) -> Option<String>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl<E> Sealed for Result<(), E> {}
}

impl Outcome for () {
    fn failure(self) -> Option<String> {
        None
    }
}

impl<E: Debug> Outcome for Result<(), E> {
    fn failure(self) -> Option<String> {
        self.err().map(|error| format!("{error:?}"))
    }
}

/// Runs a test once for each seed, each time with a new network in a new runtime of one thread with paused clock.
///
/// When a seed fails, it is printed, with the variable that repeats it: with `TOKIO_RDMA_SIM_SEED` in the environment only
/// that seed runs, whatever `seeds` is. A panic in a task that the test has spawned fails the test only if the test awaits the
/// task.
///
/// A test that waits for something that never happens fails after 24 hours of virtual time.
///
/// # Panics
/// If the test panics or returns an error for one of the seeds; within a runtime; if the variable is not a number.
#[track_caller]
pub fn check<T, F>(seeds: impl IntoIterator<Item = u64>, test: T)
where
    T: Fn(Network) -> F,
    F: Future<Output: Outcome>,
{
    match std::env::var(VARIABLE) {
        Ok(text) => {
            let Ok(seed) = text.parse() else { panic!("{VARIABLE}={text} is not a number") };
            run(seed, &test);
        }
        Err(_) => seeds.into_iter().for_each(|seed| run(seed, &test)),
    }
}

/// Runs the test for one seed.
#[track_caller]
fn run<T, F>(seed: u64, test: &T)
where
    T: Fn(Network) -> F,
    F: Future<Output: Outcome>,
{
    let once = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let Ok(runtime) = runtime else { panic!("the system has no resources for a runtime") };
        runtime.block_on(async {
            let ended = tokio::time::timeout(LIMIT, test(Network::new(seed))).await;
            ended.map_or_else(|_| Some(format!("the test has not ended after {LIMIT:?}")), Outcome::failure)
        })
    };
    match catch_unwind(AssertUnwindSafe(once)) {
        Ok(None) => {}
        Ok(Some(failure)) => panic!("seed {seed} fails: {failure}\n{}", command(seed)),
        Err(panic) => {
            say(&format!("seed {seed} fails\n{}", command(seed)));
            resume_unwind(panic);
        }
    }
}

/// The command that repeats this test with this seed.
fn command(seed: u64) -> String {
    let thread = std::thread::current();
    // The test harness names a thread after its test.
    match thread.name() {
        Some(name) if name != "main" => {
            format!("to repeat it: {VARIABLE}={seed} cargo test {name} (with the same features)")
        }
        _ => format!("to repeat it: run this program with {VARIABLE}={seed} in its environment"),
    }
}

#[allow(clippy::print_stderr, reason = "the panic of the test goes there, too")]
fn say(text: &str) {
    eprintln!("{text}");
}
