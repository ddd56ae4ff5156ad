//! Tests for many seeds.

use std::fmt::{Debug, Display};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use super::network::Network;

/// The variable that names the only seed to run.
const VARIABLE: &str = "TOKIO_RDMA_SIM_SEED";

/// The settings of [`check_with`].
#[derive(Clone, Debug)]
pub struct CheckConfig {
    limit: Duration,
}

impl Default for CheckConfig {
    fn default() -> Self {
        Self { limit: Duration::from_secs(24 * 60 * 60) }
    }
}

impl CheckConfig {
    /// Sets how long the test may take for each seed, in virtual time. The default is 24 hours.
    ///
    /// A test with open connections that waits for something that never happens runs until then, with the timers of the
    /// connections: 24 hours of them take minutes of real time.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }
}

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

impl<E: Debug + Display> Outcome for Result<(), E> {
    fn failure(self) -> Option<String> {
        // The alternate form has the causes of an error of anyhow. Those of other errors are fields, which `Debug` prints.
        self.err().map(|error| format!("{error:#}\nthe error: {error:?}"))
    }
}

/// Runs a test once for each seed, each time with a new network in a new runtime of one thread with paused clock.
///
/// When a seed fails, it is printed, with the variable that repeats it: with `TOKIO_RDMA_SIM_SEED` in the environment only
/// that seed runs, whatever `seeds` is. A panic in a task that the test has spawned fails the test only if the test awaits the
/// task. An error that the test returns is printed as text and as `Debug`.
///
/// A test that waits for something that never happens fails after 24 hours of virtual time: see [`CheckConfig::limit`].
///
/// # Panics
/// If the test panics or returns an error for one of the seeds; within a runtime; if the variable is not a number.
#[track_caller]
pub fn check<T, F>(seeds: impl IntoIterator<Item = u64>, test: T)
where
    T: Fn(Network) -> F,
    F: Future<Output: Outcome>,
{
    check_with(&CheckConfig::default(), seeds, test);
}

/// Runs a test once for each seed like [`check`], with settings.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tokio_rdma::sim::{self, CheckConfig};
///
/// let config = CheckConfig::default().limit(Duration::from_secs(600));
/// sim::check_with(&config, 0..10, |network| async move {
///     let _host = network.host("10.0.0.1");
///     // ...
/// });
/// ```
///
/// # Panics
/// Like `check`.
#[track_caller]
pub fn check_with<T, F>(config: &CheckConfig, seeds: impl IntoIterator<Item = u64>, test: T)
where
    T: Fn(Network) -> F,
    F: Future<Output: Outcome>,
{
    match std::env::var(VARIABLE) {
        Ok(text) => {
            let Ok(seed) = text.parse() else { panic!("{VARIABLE}={text} is not a number") };
            run(config, seed, &test);
        }
        // No closure: the place of a panic would be there, and not at the caller.
        Err(_) => {
            for seed in seeds {
                run(config, seed, &test);
            }
        }
    }
}

/// Runs the test for one seed.
#[track_caller]
fn run<T, F>(config: &CheckConfig, seed: u64, test: &T)
where
    T: Fn(Network) -> F,
    F: Future<Output: Outcome>,
{
    let once = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let Ok(runtime) = runtime else { panic!("the system has no resources for a runtime") };
        runtime.block_on(async {
            let CheckConfig { limit } = config;
            let ended = tokio::time::timeout(*limit, test(Network::new(seed))).await;
            let endless = || format!("the test has not ended after {limit:?} of virtual time");
            ended.map_or_else(|_| Some(endless()), Outcome::failure)
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

/// Returns the command that repeats this test with this seed.
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
