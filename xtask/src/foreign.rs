//! `cargo xtask foreign`: tests of other projects, and their programs at the other end of a connection.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rdma_guest::command::Request;
use rdma_guest::machine::Siw;

use crate::tally::Tally;
use crate::test::Settings;
use crate::{Usage, guest};

mod debian;
mod list;
mod proxies;
mod tokio;
mod valkey;

pub(crate) use self::tokio::step;

/// The folder of everything that is fetched and built. It may be deleted at any time.
const FOLDER: &str = "target/foreign";

/// The command: exit status 1 if a check fails, or a test does not have the result that is listed.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let tally = match words[..] {
        ["proxies", ..] => return proxies::main(&arguments[1..]),
        ["tokio"] => step(&Settings::default()),
        ["valkey"] => valkey::run(),
        _ => return Err(Usage("`foreign` needs one of the words `proxies`, `tokio` and `valkey`".into())),
    };
    println!("\n{tally}");
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A script for the guest machine, each of whose lines that begin with `check ` is a check. Its exit status is the number of
/// those that failed.
struct Script<'a> {
    /// The commands.
    text: &'a str,
    /// Its first arguments: files and folders of the repository.
    paths: &'a [&'a Path],
    /// How long it may take.
    limit: Duration,
}

impl Script<'_> {
    /// Runs it. It prints what each check finds.
    fn run(&self) -> Tally {
        let absolute = |path: &&Path| crate::root().join(path).to_string_lossy().into_owned();
        let words = ["sh", "-c", self.text, "foreign"].map(str::to_owned);
        let command = words.into_iter().chain(self.paths.iter().map(absolute)).collect();
        let request = Request { siw: Siw::Stock, limit: self.limit, named: Vec::new(), command };
        let checks = checks(self.text);
        match request.run(guest::places(), crate::origin()) {
            Ok(failed) if usize::from(failed) <= checks => {
                let failed = usize::from(failed);
                Tally { passed: checks - failed, failed, skipped: 0 }
            }
            Ok(status) => Tally::check(Err(format!("the script has ended with status {status}"))),
            Err(sentence) => Tally::check(Err(sentence)),
        }
    }
}

/// Counts the checks of a script.
fn checks(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with("check ")).count()
}

/// The folder of the source of a package.
fn folder(package: &str) -> PathBuf {
    Path::new(FOLDER).join(package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_script_has_checks() {
        assert_eq!(checks("check a\n  check b\n# check\ncheck c d\n"), 2);
        assert!(checks(valkey::SCRIPT) > 0);
    }
}
