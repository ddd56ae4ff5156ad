//! `cargo xtask foreign`: tests of other projects, and their programs at the other end of a connection.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rdma_guest::command::Request;
use rdma_guest::machine::Siw;

use crate::tally::Tally;
use crate::{Usage, guest};

mod crates;
mod debian;
mod list;
mod preload;
mod proxies;
mod tokio;
mod valkey;

pub(crate) use self::tokio::step;

/// The folder of everything that is fetched and built. It may be deleted at any time.
const FOLDER: &str = "target/foreign";

/// Runs the subject that the first word names. Its exit status is 1 if a check fails, or a test does not have the result that is listed.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    match arguments.split_first() {
        Some((subject, rest)) if subject == "crates" => crates::main(rest),
        Some((subject, rest)) if subject == "preload" => Usage::none(rest).map(|()| code(preload::run())),
        Some((subject, rest)) if subject == "proxies" => proxies::main(rest),
        Some((subject, rest)) if subject == "tokio" => tokio::main(rest),
        Some((subject, rest)) if subject == "valkey" => Usage::none(rest).map(|()| code(valkey::run())),
        Some((subject, _)) => Err(Usage(format!("`foreign` has no subject `{subject}`"))),
        None => Err(Usage("a subject is missing after `foreign`".into())),
    }
}

/// Prints a tally. Returns exit status 1 if something in it has failed.
fn code(tally: Tally) -> ExitCode {
    println!("\n{tally}");
    if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The folder of a package, from what `cargo metadata` prints.
fn folder_of(package: &str, metadata: &str) -> Option<PathBuf> {
    // A dependency has no version behind its name.
    let (_, package) = metadata.split_once(&format!("{{\"name\":\"{package}\",\"version\":\""))?;
    let (_, manifest) = package.split_once("\"manifest_path\":\"")?;
    Path::new(manifest.split('"').next()?).parent().map(Path::to_path_buf)
}

/// The commands that stand before those of each script.
const CHECK: &str = include_str!("foreign/check.sh");

/// A script for the guest machine, each of whose lines that begin with `check ` is a check. Its exit status is the number of those that
/// failed.
struct Script<'a> {
    /// The commands, behind [`CHECK`].
    text: &'a str,
    /// Its first arguments: files and folders of the repository.
    paths: &'a [&'a Path],
    /// Its further arguments.
    words: &'a [&'a str],
    /// How long it may take.
    limit: Duration,
}

impl Script<'_> {
    /// Runs it. It prints what each check finds.
    fn run(&self) -> Tally {
        let absolute = |path: &&Path| crate::root().join(path).to_string_lossy().into_owned();
        let text = [CHECK, self.text].concat();
        let words = ["sh", "-c", &text, "foreign"].map(str::to_owned);
        let arguments =
            self.paths.iter().map(absolute).chain(self.words.iter().map(|word| (*word).to_owned()));
        let command = words.into_iter().chain(arguments).collect();
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
        assert_eq!(checks("check a\n  check b\n# check\ncheck() {\ncheck c d\n"), 2);
        assert_eq!(checks(CHECK), 0);
        assert!(checks(valkey::SCRIPT) > 0 && checks(preload::SCRIPT) > 0);
    }

    #[test]
    fn package_is_found_in_metadata() {
        let metadata = r#"{"packages":[{"name":"a","version":"1.0.0","dependencies":[{"name":"tokio","source":"b"}],"manifest_path":"/a/Cargo.toml"},{"name":"tokio","version":"1.54.1","id":"c","dependencies":[],"manifest_path":"/d/tokio-1.54.1/Cargo.toml"}]}"#;
        assert_eq!(folder_of("tokio", metadata), Some("/d/tokio-1.54.1".into()));
        assert_eq!(folder_of("tokio", r#"{"packages":[]}"#), None);
    }
}
