//! Tests that run again in a separate process, and processes that act as the peer of a test.

use std::process::Command;
use std::sync::mpsc;

use crate::device::patience;

/// The name by which the test harness knows `function` of the module that says `module_path!()`.
pub fn test_name(module: &str, function: &str) -> String {
    // The first segment is the crate: the program.
    module.split_once("::").map_or_else(|| function.to_owned(), |(_, inner)| format!("{inner}::{function}"))
}

/// This program once more, to run one test of it, whose output is passed on.
pub fn one_test(module: &str, function: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", &test_name(module, function), "--nocapture"]);
    command
}

/// Runs a test again in a process of its own, because it would disturb the others in this one, or they would disturb
/// it. Returns `true` in that process, and `false` in this one, after the other has passed.
///
/// Passes on the output of that process, indented but for the lines that say why something was skipped.
///
/// # Panics
/// When the test did not pass there.
pub fn alone(module: &str, function: &str) -> bool {
    alone_with(module, function, &[])
}

/// The same with variables in the environment of that process.
///
/// # Panics
/// When the test did not pass there.
pub fn alone_with(module: &str, function: &str, variables: &[(&str, &str)]) -> bool {
    const MARK: &str = "TOKIO_RDMA_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let mut command = one_test(module, function);
    let output = command.env(MARK, "1").envs(variables.iter().copied()).output().expect("started");
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    for line in stdout.lines().chain(stderr.lines()) {
        println!("{}{line}", if line.starts_with("skipped: ") { "" } else { "    " });
    }
    assert!(output.status.success(), "{}", output.status);
    assert!(stdout.contains("1 passed"), "no test has this name");
    false
}

/// Runs a test on a runtime and a thread of its own, because it may hang within a call.
///
/// # Panics
/// When it hangs, or panics.
pub fn apart(test: impl AsyncFnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(test());
        let _ = done.send(());
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(patience()) {
        panic!("it hangs");
    }
    thread.join().expect("no panic");
}
