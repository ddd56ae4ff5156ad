//! Running the example programs, and network namespaces.
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::net::IpAddr;
use std::process::{Command, Output};
use std::thread;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

/// Runs an example to its end; `cargo test` builds them beside the tests.
///
/// # Panics
/// When it has not been built.
pub fn example(name: &str, arguments: &[&str]) -> Output {
    let test = std::env::current_exe().expect("the path of the test");
    let program = test.parent().expect("deps").with_file_name("examples").join(name);
    assert!(program.is_file(), "{} is missing: run `cargo build --examples` first", program.display());
    Command::new(&program).args(arguments).env_remove("RUST_LOG").output().expect(name)
}

/// What a program wrote to its standard output.
pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Runs `test` on a fresh thread in a new network namespace, in which only `lo` is there and up, with a runtime that
/// stays on that thread. Says so and returns when this process may not make one.
pub fn in_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let run = move || {
        match unshare(CloneFlags::CLONE_NEWNET) {
            Ok(()) => {}
            Err(Errno::EPERM) => return eprintln!("skipped: needs CAP_NET_ADMIN"),
            Err(error) => panic!("unshare: {error}"),
        }
        ip("link set lo up");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(test());
    };
    if let Err(panic) = thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` with these arguments, in the namespace of the calling thread.
pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {stderr}");
}

/// Text to address.
pub fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}
