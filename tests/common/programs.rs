//! Running the example programs.

use std::net::IpAddr;
use std::process::{Command, Output};

/// Runs an example to its end.
///
/// # Panics
/// When it has not been built.
pub fn example(name: &str, arguments: &[&str]) -> Output {
    example_command(name).args(arguments).output().expect(name)
}

/// An example; `cargo test` builds them beside the tests.
///
/// # Panics
/// When it has not been built.
pub fn example_command(name: &str) -> Command {
    let test = std::env::current_exe().expect("the path of the test");
    let program = test.parent().expect("deps").with_file_name("examples").join(name);
    assert!(program.is_file(), "{} is missing: run `cargo build --examples` first", program.display());
    let mut command = Command::new(program);
    command.env_remove("RUST_LOG");
    command
}

/// The text that a program wrote to its standard output.
pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Text to address.
pub fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}
