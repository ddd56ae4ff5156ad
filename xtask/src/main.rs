//! Developer commands: `cargo xtask help` lists them.
//!
//! Few and small dependencies, so that building it takes seconds on a fresh clone.

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use rdma_guest::{failure, libtest, tally};

mod api;
mod bare;
mod bench;
mod bindings;
mod callgrind;
mod citations;
mod examples;
mod exec;
mod fake;
mod fake_bench;
mod foreign;
mod guest;
mod headers;
mod instructions;
mod layers;
mod oldest;
mod packages;
mod pages;
mod paths;
mod prose;
mod rows;
mod simulate;
mod skips;
mod source;
mod steps;
mod test;

/// One word that may follow `cargo xtask`.
struct Task {
    /// The word itself.
    name: &'static str,
    /// The arguments it takes, as the help shows them.
    arguments: &'static str,
    /// One line on what it does.
    about: &'static str,
    /// Does it; is given the arguments after the word.
    run: fn(&[String]) -> Result<ExitCode, Usage>,
}

/// Every command but `help`. A new one is a module and a row here.
const TASKS: &[Task] = &[
    Task {
        name: "test",
        arguments: "[--no-install] [--no-guest] [--sanitizer address] [--filter STEP,..]",
        about: "run every check and every test; one closing line with the counts",
        run: test::main,
    },
    Task {
        name: "api",
        arguments: "[--renew]",
        about: "compare the public names with xtask/api.txt; list those that there are now",
        run: api::main,
    },
    Task {
        name: "layers",
        arguments: "",
        about: "check that src/ follows the layer table of CONTRIBUTING.md",
        run: layers::main,
    },
    Task {
        name: "rows",
        arguments: "[--list]",
        about: "check that a test cites every row of the feature table that this version has; list which",
        run: rows::main,
    },
    Task {
        name: "prose",
        arguments: "[--list]",
        about: "count prose that is to be rewritten, and compare the numbers with xtask/prose.txt; list the places",
        run: prose::main,
    },
    Task {
        name: "oldest",
        arguments: "",
        about: "make the lock file with the oldest versions of all dependencies anew, after a change of Cargo.toml",
        run: oldest::main,
    },
    Task {
        name: "simulate",
        arguments: "[--seeds N] [--first K] [--threads T] [--json]",
        about: "run the mixed workload of tests/simulate over the simulated network, each seed with its own faults",
        run: simulate::main,
    },
    Task {
        name: "foreign",
        arguments: "crates [NAME..] | preload | proxies [--no-install] [--only PART,..] | tokio | valkey",
        about: "run tests of other projects (tokio's of TCP over streams; crates for RDMA), and programs: through proxies, Valkey",
        run: foreign::main,
    },
    Task {
        name: "guest",
        arguments: "[--siw stock|p2p] [--timeout SECONDS] [--env NAME] -- COMMAND [ARGUMENTS]",
        about: "run a command in a virtual machine that has the RDMA devices rxe0 and siw0",
        run: guest::main,
    },
    Task {
        name: "bench",
        arguments: "[--quick] [--only WORD] [--batches N] [--guest] [--write]",
        about: "measure the soft provider beside raw TCP, libfabric, UCX and quinn; writes docs/benchmarks.*",
        run: bench::main,
    },
    Task {
        name: "guest-bench",
        arguments: "[--batches N] [--json] [ARGUMENTS]",
        about: "measure the verbs provider over rxe0 in that machine, beside C and cmtime (benches/verbs)",
        run: guest::bench::main,
    },
    Task {
        name: "fake-bench",
        arguments: "[storm [CONNECTIONS] | --batches N | --operations N | --no-instructions | --json]",
        about: "measure the verbs provider over a device that costs nothing, beside C (benches/fake)",
        run: fake_bench::main,
    },
    Task {
        name: "instructions",
        arguments: "[--only WORD] [--json] [--renew]",
        about: "count the instructions and system calls of operations, and compare them with the committed ones (benches/instructions)",
        run: instructions::main,
    },
];

/// The command line was not understood; the sentence says what was wrong with it.
#[derive(Debug, PartialEq, Eq)]
struct Usage(String);

impl Usage {
    /// Fails if a command that takes no arguments was given some.
    fn none(arguments: &[String]) -> Result<(), Self> {
        match arguments.first() {
            None => Ok(()),
            Some(extra) => Err(Self(format!("unexpected argument `{extra}`"))),
        }
    }
}

/// The text of `cargo xtask help`.
fn help() -> String {
    let mut text = String::from("Usage: cargo xtask COMMAND\n\n");
    for task in TASKS {
        text +=
            &format!("  {}\n      {}\n", format!("{} {}", task.name, task.arguments).trim_end(), task.about);
    }
    text += "  help\n      show this text\n\nSteps of `test`, in order:\n\n";
    for step in test::STEPS {
        text += &format!("  {:<13} {}\n", step.name, step.about);
    }
    text
}

/// The root of the repository: the folder above this package's.
fn root() -> PathBuf {
    let package = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&package).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// The folder in which the command was typed.
fn origin() -> &'static Path {
    static ORIGIN: OnceLock<PathBuf> = OnceLock::new();
    ORIGIN.get_or_init(|| env::current_dir().unwrap_or_else(|_| PathBuf::from("/")))
}

/// Runs the command named by the first word.
fn dispatch(words: &[String]) -> Result<ExitCode, Usage> {
    let Some((name, arguments)) = words.split_first() else {
        return Err(Usage("a command is missing".into()));
    };
    if ["help", "--help", "-h"].contains(&name.as_str()) {
        println!("{}", help().trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    match TASKS.iter().find(|task| task.name == name) {
        Some(task) => (task.run)(arguments),
        None => Err(Usage(format!("there is no command `{name}`"))),
    }
}

/// Exit status: 0 well, 1 something failed, 2 the command line was not understood.
fn main() -> ExitCode {
    origin(); // before the next lines leave it
    let root = root();
    if let Err(error) = env::set_current_dir(&root) {
        eprintln!("error: cannot enter {}: {error}", root.display());
        return ExitCode::FAILURE;
    }
    let words: Vec<String> = env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    dispatch(&words).unwrap_or_else(|Usage(wrong)| {
        eprintln!("error: {wrong}\n\n{}", help().trim_end());
        ExitCode::from(2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_command_is_a_usage_error() {
        assert_eq!(dispatch(&["nonsense".into()]), Err(Usage("there is no command `nonsense`".into())));
        assert!(dispatch(&[]).is_err());
        assert!(dispatch(&["layers".into(), "extra".into()]).is_err());
    }

    #[test]
    fn the_help_names_every_command_and_step() {
        let text = help();
        assert!(TASKS.iter().all(|task| text.contains(task.name)));
        assert!(test::STEPS.iter().all(|step| text.contains(step.name)));
    }
}
