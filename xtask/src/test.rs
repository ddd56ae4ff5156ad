//! `cargo xtask test`: every check and every test, in order, with one closing line.

use std::env;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Usage;
use crate::failure::Failure;
use crate::tally::Tally;
use crate::{
    bench, bindings, examples, exec, fake, foreign, guest, headers, instructions, oldest, packages, pages,
    simulate, steps,
};

/// One step.
#[derive(Debug)]
pub(crate) struct Step {
    /// The word that `--filter` takes.
    pub(crate) name: &'static str,
    /// One line on what it checks.
    pub(crate) about: &'static str,
    /// The place where it does so: the end of a run has one line for each of these.
    pub(crate) place: &'static str,
    /// When it runs.
    turn: Turn,
    /// Runs it; returns how many tests or checks it was, and prints why any of them failed.
    pub(crate) run: fn(&Settings) -> Tally,
}

/// When a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// When those before it have ended, and before those behind it start.
    Alone,
    /// After the steps of this turn that are before it: those that test, and what builds in the same folder.
    Test,
    /// The same, beside the steps of the turn `Test` and with a lower priority: it has what processors they leave idle, which is half of
    /// them while tests wait.
    Idle,
    /// Together with its neighbours of this turn.
    Together,
}

impl Step {
    /// Whether it does not wait for the end of the step before it.
    fn joins(&self, before: &Self) -> bool {
        use Turn::{Idle, Test, Together};
        matches!((before.turn, self.turn), (Test | Idle, Test | Idle) | (Together, Together))
    }

    /// Whether it needs the guest machine.
    fn needs_guest(&self) -> bool {
        self.place.starts_with("guest ")
    }
}

/// The place of all steps that need neither the guest machine nor the simulated network.
pub(crate) const HOST: &str = "host";

/// Every step, in order: the quick ones first. A new step is a new line.
#[rustfmt::skip]
pub(crate) const STEPS: &[Step] = &[
    Step { name: "packages", place: HOST, turn: Turn::Alone, about: "system packages that some tests need; installs them when run as root", run: packages::step },
    Step { name: "layers", place: HOST, turn: Turn::Alone, about: "every module uses only its own layer and those below", run: steps::layers },
    Step { name: "rows", place: HOST, turn: Turn::Alone, about: "the feature table of docs/spec: every row that is required is cited by a test, and no id stands twice", run: steps::rows },
    Step { name: "pages", place: HOST, turn: Turn::Alone, about: "links of the documentation, names in the porting tables, prose of the sources, and the book if mdbook is installed", run: pages::step },
    Step { name: "fmt", place: HOST, turn: Turn::Alone, about: "formatting", run: steps::fmt },
    Step { name: "clippy", place: HOST, turn: Turn::Test, about: "lints, warnings denied", run: steps::clippy },
    Step { name: "features", place: HOST, turn: Turn::Test, about: "builds with other sets of features", run: steps::features },
    Step { name: "doc", place: HOST, turn: Turn::Test, about: "documentation, warnings denied", run: steps::doc },
    Step { name: "tests", place: HOST, turn: Turn::Test, about: "unit and integration tests", run: steps::tests },
    Step { name: "fake", place: HOST, turn: Turn::Test, about: "tests of the verbs provider over a device in the memory of the process", run: fake::step },
    Step { name: "sim", place: "sim", turn: Turn::Test, about: "tests of every device, over the simulated network", run: steps::sim },
    Step { name: "headers", place: HOST, turn: Turn::Test, about: "the bindings of the verbs libraries agree with the headers of each Debian release", run: headers::step },
    Step { name: "bindings", place: HOST, turn: Turn::Test, about: "unit tests of the bindings with the verbs libraries linked", run: bindings::step },
    Step { name: "default", place: HOST, turn: Turn::Test, about: "unit tests with the default features alone", run: steps::default_set },
    Step { name: "doctests", place: HOST, turn: Turn::Test, about: "code in the documentation", run: steps::doctests },
    Step { name: "foreign", place: HOST, turn: Turn::Test, about: "tokio's own tests of TCP, over streams of the soft provider", run: foreign::step },
    Step { name: "async-rdma", place: HOST, turn: Turn::Test, about: "the crate that joins async-rdma to this one", run: steps::async_rdma },
    Step { name: "instructions", place: HOST, turn: Turn::Test, about: "no operation takes more instructions or system calls than are committed", run: instructions::step },
    // Beside those from `clippy` on.
    Step { name: "oldest", place: HOST, turn: Turn::Idle, about: "builds with the oldest versions of all dependencies", run: oldest::step },
    Step { name: "guest-image", place: "guest image", turn: Turn::Idle, about: "the guest machine can be made, if it is not there", run: guest::image },
    Step { name: "simulate", place: HOST, turn: Turn::Idle, about: "20,000 seeds of the mixed workload over the simulated network", run: simulate::step },
    Step { name: "counted", place: HOST, turn: Turn::Idle, about: "the program whose instructions are counted can be built", run: instructions::build_step },
    Step { name: "model", place: HOST, turn: Turn::Idle, about: "every interleaving of completions and those who wait for them", run: steps::model },
    Step { name: "examples", place: HOST, turn: Turn::Idle, about: "the package that is published: each example builds from it, and runs", run: examples::step },
    Step { name: "bench", place: HOST, turn: Turn::Idle, about: "every line of the benchmark, once: whether it runs, not how fast", run: bench::step },
    // The longest first.
    Step { name: "guest-interop", place: "guest interop", turn: Turn::Together, about: "tests with programs and drivers that are not ours, in the guest machine", run: guest::interop },
    Step { name: "guest-rxe", place: "guest rxe", turn: Turn::Together, about: "tests of every provider, in the guest machine: verbs over rxe", run: guest::rxe },
    Step { name: "guest-siw", place: "guest siw", turn: Turn::Together, about: "the same, verbs over siw", run: guest::siw },
    // By itself: it starts machines of its own.
    Step { name: "rdma-guest", place: "guest project", turn: Turn::Alone, about: "tests of a project outside the workspace, run by `cargo rdma-guest` for both devices", run: guest::project::step },
];

/// The settings that the steps may look at, and the place for what the end of the run says of them.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Whether missing packages may be installed.
    pub(crate) install: bool,
    /// Whether the steps of the guest machine are wanted.
    pub(crate) guest: bool,
    /// Whether only these are, with programs that AddressSanitizer watches.
    pub(crate) sanitizer: bool,
    /// Whether the variable `CI` is `true`: then everything must run.
    pub(crate) ci: bool,
    /// The argument of `--filter`.
    filter: Option<String>,
    /// The tests that failed in the steps so far.
    failures: Mutex<Vec<Failure>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            install: true,
            guest: true,
            sanitizer: false,
            ci: false,
            filter: None,
            failures: Mutex::default(),
        }
    }
}

impl Settings {
    /// Reads the command line.
    fn parse(arguments: &[String], ci: bool) -> Result<Self, Usage> {
        let mut settings = Self { ci, ..Self::default() };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            if argument == "--no-install" {
                settings.install = false;
            } else if argument == "--no-guest" {
                settings.guest = false;
            } else if argument == "--filter" {
                let step =
                    arguments.next().ok_or_else(|| Usage("`--filter` needs the name of a step".into()))?;
                settings.filter = Some(step.clone());
            } else if let Some(step) = argument.strip_prefix("--filter=") {
                settings.filter = Some(step.to_owned());
            } else if argument == "--sanitizer" {
                settings.sanitizer = true;
                if arguments.next().is_none_or(|name| name != "address") {
                    return Err(Usage("`--sanitizer` can be `address`".into()));
                }
            } else {
                return Err(Usage(format!("unexpected argument `{argument}`")));
            }
        }
        Ok(settings)
    }

    /// Has the end of the run say once more which tests failed, and why.
    pub(crate) fn remember(&self, failures: Vec<Failure>) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).extend(failures);
    }

    /// Which tests failed, in all steps.
    pub(crate) fn into_failures(self) -> Vec<Failure> {
        self.failures.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the steps to run, in order: all, or those that the filter names. Each of its words, between commas, is the name of a
    /// step, or a part of names.
    fn chosen(&self) -> Result<Vec<&'static Step>, Usage> {
        let wanted: Vec<&Step> = STEPS
            .iter()
            .filter(|step| if step.needs_guest() { self.guest } else { !self.sanitizer })
            .collect();
        let Some(filter) = &self.filter else {
            return Ok(wanted);
        };
        let mut names = Vec::new();
        for word in filter.split(',') {
            let before = names.len();
            let exact = wanted.iter().any(|step| step.name == word);
            let is_meant = |step: &&&Step| if exact { step.name == word } else { step.name.contains(word) };
            names.extend(wanted.iter().filter(is_meant).map(|step| step.name));
            if names.len() == before {
                return Err(Usage(format!("there is no step `{word}`")));
            }
        }
        Ok(wanted.into_iter().filter(|step| names.contains(&step.name)).collect())
    }
}

/// The command: exit status 1 if anything failed.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    let ci = env::var("CI").is_ok_and(|value| value == "true");
    let settings = Settings::parse(arguments, ci)?;
    let steps = settings.chosen()?;

    let started = Instant::now();
    let mut places: Vec<(&str, Tally)> = Vec::new();
    let mut rows = Vec::new();
    for group in steps.chunk_by(|before, next| next.joins(before)) {
        for (step, (tally, took)) in run(group, &settings) {
            rows.push(row(step.name, tally, took));
            match places.iter_mut().find(|(place, _)| *place == step.place) {
                Some((_, sum)) => *sum += tally,
                None => places.push((step.place, tally)),
            }
        }
    }
    println!("\n== summary\n{}", rows.join("\n"));
    println!("-- all steps {:>19.1} s", started.elapsed().as_secs_f32());
    let (failures, checks) = (settings.into_failures(), Tally::take_failed());
    if !failures.is_empty() || !checks.is_empty() {
        println!("\n== failed tests and checks");
    }
    for failure in failures {
        println!("{failure}");
    }
    for sentence in checks {
        println!("-- {sentence}");
    }
    println!();
    let mut total = Tally::default();
    for (place, tally) in places {
        println!("{place}: {tally}");
        total += tally;
    }
    println!("\n{total}");
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the steps that do not wait for each other; returns for each its counts and how long it took.
fn run<'a>(steps: &[&'a Step], settings: &Settings) -> Vec<(&'a Step, (Tally, Duration))> {
    let run_one = |step: &Step| {
        println!("\n== {}: {}", step.name, step.about);
        let started = Instant::now();
        let panicked = |_| Tally::check(Err(format!("the step {} panicked", step.name)));
        let tally = panic::catch_unwind(AssertUnwindSafe(|| (step.run)(settings))).unwrap_or_else(panicked);
        let took = started.elapsed();
        println!("{}", row(step.name, tally, took));
        (tally, took)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = queues(steps)
            .into_iter()
            .map(|queue| {
                scope.spawn(move || {
                    if queue.iter().all(|step| step.turn == Turn::Idle) {
                        exec::lower_priority();
                    }
                    queue.into_iter().map(|step| (step, run_one(step))).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a step's panic is caught")).collect()
    })
}

/// The same steps, in queues: the steps of one run one after the other.
fn queues<'a>(steps: &[&'a Step]) -> Vec<Vec<&'a Step>> {
    let mut queues: Vec<Vec<&Step>> = Vec::new();
    for &step in steps {
        let mut same = queues.iter_mut().filter(|queue| queue[0].turn == step.turn);
        match same.next().filter(|_| step.turn != Turn::Together) {
            Some(queue) => queue.push(step),
            None => queues.push(vec![step]),
        }
    }
    queues
}

/// One line on a step that has ended.
fn row(name: &str, tally: Tally, took: Duration) -> String {
    let verdict = match tally {
        Tally { failed: 1.., .. } => "FAILED",
        Tally { passed: 0, skipped: 1.., .. } => "skipped",
        Tally { passed: 0, .. } => "nothing",
        Tally { .. } => "ok",
    };
    format!(
        "-- {name:<13} {verdict:<8} {:>8.1} s   passed {}, failed {}, skipped {}",
        took.as_secs_f32(),
        tally.passed,
        tally.failed,
        tally.skipped
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings for a command line.
    fn parse(line: &str) -> Result<Settings, Usage> {
        Settings::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>(), false)
    }

    /// The names of the steps that a command line chooses.
    fn names(line: &str) -> Vec<&'static str> {
        let steps = parse(line).and_then(|settings| settings.chosen()).expect("a good command line");
        steps.iter().map(|step| step.name).collect()
    }

    #[test]
    fn the_command_line_is_read() {
        let settings = parse("--no-install --no-guest --filter fmt").expect("a good command line");
        assert_eq!((settings.install, settings.guest, settings.sanitizer), (false, false, false));
        assert_eq!(settings.filter.as_deref(), Some("fmt"));
        assert!(parse("--filter").is_err());
        assert!(parse("--sanitizer address").expect("a good command line").sanitizer);
        assert!(parse("--sanitizer").is_err() && parse("--sanitizer memory").is_err());
        assert!(parse("--wrong").is_err());
        assert!(parse("--filter nonsense").and_then(|settings| settings.chosen()).is_err());
    }

    #[test]
    fn filter_is_exact_name_or_substring() {
        assert_eq!(names("").len(), STEPS.len());
        assert_eq!(names("--filter=doc"), ["doc"]);
        assert_eq!(names("--filter test"), ["tests", "doctests"]);
        assert_eq!(
            names("--filter guest"),
            ["guest-image", "guest-interop", "guest-rxe", "guest-siw", "rdma-guest"]
        );
        assert_eq!(names("--filter siw,doc,test"), ["doc", "tests", "doctests", "guest-siw"]);
        assert!(parse("--filter doc,nonsense").and_then(|settings| settings.chosen()).is_err());
    }

    #[test]
    fn steps_run_beside_each_other() {
        let groups = |line: &str| -> Vec<Vec<Vec<&str>>> {
            let steps = parse(line).and_then(|settings| settings.chosen()).expect("a good command line");
            let names = |queue: Vec<&Step>| queue.iter().map(|step| step.name).collect();
            let groups = steps.chunk_by(|before, next| next.joins(before));
            groups.map(|group| queues(group).into_iter().map(names).collect()).collect()
        };
        assert_eq!(groups("--filter packages,fmt"), [[["packages"]], [["fmt"]]]);
        assert_eq!(
            groups("--filter examples,doc,oldest,tests,rdma-guest"),
            [vec![vec!["doc", "tests"], vec!["oldest", "examples"]], vec![vec!["rdma-guest"]]]
        );
        assert_eq!(groups("--filter rxe,siw"), [[["guest-rxe"], ["guest-siw"]]]);
        assert_eq!(groups("").len(), 8);
    }

    #[test]
    fn each_step_is_in_one_workflow_job() {
        let workflow =
            std::fs::read_to_string(crate::root().join(".github/workflows/ci.yml")).expect("the workflow");
        let lists =
            workflow.lines().filter_map(|line| Some(line.split_once("steps: \"")?.1.split_once('"')?.0));
        let jobs: Vec<Vec<&str>> = lists.map(|list| list.split(',').collect()).collect();
        for step in STEPS {
            let count = jobs.iter().filter(|job| job.contains(&step.name)).count();
            // Each job installs the packages that its steps need.
            let expected = if step.name == "packages" { jobs.len() } else { 1 };
            assert_eq!(count, expected, "jobs with the step {}", step.name);
        }
        for name in jobs.iter().flatten() {
            assert!(STEPS.iter().any(|step| step.name == *name), "{name} is not a step");
        }
    }

    #[test]
    fn the_guest_can_be_left_out() {
        assert!(names("--no-guest").iter().all(|name| !name.contains("guest")));
        assert_eq!(names("--no-guest").len() + names("--filter guest").len(), STEPS.len());
        assert!(parse("--no-guest --filter guest").and_then(|settings| settings.chosen()).is_err());
    }

    #[test]
    fn the_sanitizer_is_for_the_guest() {
        assert_eq!(names("--sanitizer address"), names("--filter guest"));
        assert_eq!(names("--sanitizer address --filter rxe"), ["guest-rxe"]);
    }

    #[test]
    fn no_row_looks_like_the_closing_line() {
        for tally in [Tally::PASSED, Tally::FAILED, Tally::SKIPPED, Tally::default()] {
            let row = row("fmt", tally, Duration::from_millis(1234));
            assert!(row.starts_with("-- fmt") && row.contains("1.2 s"), "{row}");
        }
    }

    #[test]
    fn the_names_of_steps_differ() {
        for step in STEPS {
            assert_eq!(STEPS.iter().filter(|other| other.name == step.name).count(), 1, "{}", step.name);
        }
    }
}
