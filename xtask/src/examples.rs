//! The `examples` step: build the examples from the package that would be published, as a user would, and run each once.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::exec::{self, minutes};
use crate::steps;
use crate::tally::Tally;
use crate::test::Settings;

/// One example and the arguments of its short run.
struct Run {
    /// The name of the example.
    name: &'static str,
    /// What it is given.
    arguments: &'static [&'static str],
    /// How long it may take, in seconds; far more than it needs on a busy machine.
    seconds: u64,
}

/// The examples of the package, in the order in which a reader should meet them.
const RUNS: &[Run] = &[
    Run { name: "pingpong", arguments: &["--quick", "--json"], seconds: 120 },
    Run { name: "negotiate", arguments: &[], seconds: 60 },
    Run { name: "read_write", arguments: &[], seconds: 60 },
    Run { name: "retry", arguments: &[], seconds: 60 },
    Run { name: "relay", arguments: &[], seconds: 60 },
    Run { name: "adapters", arguments: &[], seconds: 60 },
    Run { name: "churn", arguments: &["--cycles", "500", "--json"], seconds: 180 },
];

/// Those of `examples/frameworks`, which is not published.
const FRAMEWORKS: &[Run] = &[
    Run { name: "grpc", arguments: &[], seconds: 60 },
    Run { name: "http", arguments: &[], seconds: 60 },
    Run { name: "tarpc", arguments: &[], seconds: 60 },
    Run { name: "tls", arguments: &[], seconds: 60 },
    Run { name: "tower", arguments: &[], seconds: 60 },
    Run { name: "metrics", arguments: &[], seconds: 60 },
];

/// How many crates the first example may take to build. Compiling them has to take a minute or two.
const MOST_CRATES: usize = 95;

/// The step: one check for each build and one for each run.
pub(crate) fn step(_settings: &Settings) -> Tally {
    let mut tally = Tally::check(count_crates());
    let published = unpack().and_then(|package| build(&package));
    tally += runs(published, RUNS, Path::new("target/release/examples"));
    tally += runs(steps::build_programs(), FRAMEWORKS, Path::new("target/debug/examples"));
    tally
}

/// One check for the build, and one for each run if there is something to run.
fn runs(built: Result<(), String>, runs: &[Run], folder: &Path) -> Tally {
    let mut tally = Tally::check(built);
    for run in runs.iter().filter(|_| tally.failed == 0).collect::<Vec<_>>() {
        let mut command = Command::new(folder.join(run.name));
        command.args(run.arguments);
        tally += Tally::check(exec::show(command, Duration::from_secs(run.seconds)));
    }
    tally
}

/// Makes the package as it would be published; returns the folder with what is in it.
fn unpack() -> Result<PathBuf, String> {
    let folder = Path::new("target/package");
    // Another version may have been left there.
    let _ = std::fs::remove_dir_all(folder);
    exec::show(
        exec::cargo(&["package", "--package", "tokio-rdma", "--no-verify", "--allow-dirty"]),
        minutes(5),
    )?;
    let files = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let crates: Vec<PathBuf> = files
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "crate"))
        .collect();
    let [package] = &crates[..] else {
        return Err(format!("{} packages are in {}", crates.len(), folder.display()));
    };
    let mut tar = Command::new("tar");
    // Files in a package have a fixed time, by which cargo would take every package for the one that it has built before.
    tar.arg("-xzmf").arg(package).arg("-C").arg(folder);
    exec::show(tar, minutes(1))?;
    Ok(package.with_extension(""))
}

/// Builds its examples, where those of the repository would be built: the crates that both need are built once.
fn build(package: &Path) -> Result<(), String> {
    let mut command =
        exec::cargo(&["build", "--release", "--examples", "--target-dir", "target", "--manifest-path"]);
    command.arg(package.join("Cargo.toml"));
    exec::show(command, minutes(30))
}

/// Counts the crates that a fresh clone builds before the first example runs.
fn count_crates() -> Result<(), String> {
    let tree = exec::cargo(&["tree", "--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}"]);
    let mut crates = Vec::new();
    exec::lines(tree, minutes(1), |line| {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(version)) = (words.next(), words.next().filter(|word| word.starts_with('v')))
        {
            crates.push(format!("{name} {version}"));
        }
    })?;
    crates.sort_unstable();
    crates.dedup();
    println!("the first example takes {} crates, and may take {MOST_CRATES}", crates.len());
    if (1..=MOST_CRATES).contains(&crates.len()) {
        return Ok(());
    }
    Err(format!("{} crates before the first example runs, and not 1 to {MOST_CRATES}", crates.len()))
}
