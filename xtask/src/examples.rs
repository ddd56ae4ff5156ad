//! The `examples` step: build the examples as a user would, and run each once.

use std::path::Path;
use std::time::Duration;

use crate::exec;
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

/// Every example, in the order in which a reader should meet them. Those not written yet are left out.
const RUNS: &[Run] = &[
    Run { name: "pingpong", arguments: &["--quick", "--json"], seconds: 120 },
    Run { name: "negotiate", arguments: &[], seconds: 60 },
    Run { name: "read_write", arguments: &[], seconds: 60 },
    Run { name: "retry", arguments: &[], seconds: 60 },
    Run { name: "relay", arguments: &[], seconds: 60 },
    Run { name: "grpc", arguments: &[], seconds: 60 },
    Run { name: "adapters", arguments: &[], seconds: 60 },
    Run { name: "http", arguments: &[], seconds: 60 },
    Run { name: "tarpc", arguments: &[], seconds: 60 },
    Run { name: "tls", arguments: &[], seconds: 60 },
    Run { name: "tower", arguments: &[], seconds: 60 },
    Run { name: "metrics", arguments: &[], seconds: 60 },
    Run { name: "churn", arguments: &["--cycles", "500", "--json"], seconds: 180 },
];

/// Whether the example has been written.
fn exists(name: &str) -> bool {
    let folder = Path::new("examples");
    folder.join(name).with_extension("rs").is_file() || folder.join(name).join("main.rs").is_file()
}

/// The step: one check for the build and one for each run.
pub(crate) fn step(_settings: &Settings) -> Tally {
    let runs: Vec<&Run> = RUNS.iter().filter(|run| exists(run.name)).collect();
    let mut tally = Tally::default();
    if runs.is_empty() {
        println!("no examples yet");
        return tally;
    }
    tally += Tally::check(exec::show(exec::cargo(&["build", "--release", "--examples"]), exec::minutes(30)));
    if tally.failed > 0 {
        return tally;
    }
    for run in runs {
        let mut command = exec::cargo(&["run", "--release", "--quiet", "--example", run.name, "--"]);
        command.args(run.arguments);
        tally += Tally::check(exec::show(command, Duration::from_secs(run.seconds)));
    }
    tally
}
