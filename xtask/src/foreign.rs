//! `cargo xtask foreign`: tests of other projects.

use std::process::ExitCode;

use crate::Usage;
use crate::test::Settings;

mod list;
mod tokio;

pub(crate) use tokio::step;

/// The command: exit status 1 if a test does not have the result that is listed.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let tally = match words[..] {
        ["tokio"] => step(&Settings::default()),
        _ => return Err(Usage("`foreign` needs the word `tokio`".into())),
    };
    println!("\n{tally}");
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
