//! The `oldest` step: the crate builds with the oldest versions of its dependencies that Cargo.toml allows.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::exec::{self, minutes};
use crate::tally::Tally;
use crate::test::Settings;
use crate::{Usage, packages};

/// The folder in which the manifest is written.
const FOLDER: &str = "target/oldest";

/// The folder in which it is built: hardly a crate has the version that it has elsewhere, and nobody waits for another's lock.
const TARGET: &str = "target/oldest/target";

/// The lock file with the oldest versions. It is kept, because the newest versions of other crates may want newer ones.
const LOCK: &str = "xtask/oldest.lock";

/// The command: makes the lock file anew.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    Usage::none(arguments)?;
    let made = write_manifest().and_then(|()| {
        let _ = fs::remove_file(lock());
        let mut command = cargo(&["-Zdirect-minimal-versions", "generate-lockfile"]);
        // The option is not stable, and only chooses versions: nothing is compiled with it.
        command.env("RUSTC_BOOTSTRAP", "1");
        exec::show(command, minutes(5))?;
        copy(&lock(), Path::new(LOCK))
    });
    Ok(if Tally::check(made).failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The step: one check for each set of features.
pub(crate) fn step(settings: &Settings) -> Tally {
    let written = write_manifest().and_then(|()| copy(Path::new(LOCK), &lock()));
    if let Err(sentence) = written {
        return Tally::check(Err(sentence));
    }
    let mut tally = Tally::check(exec::show(check(&[]), minutes(10)));
    tally += packages::skipped(packages::RDMA_SYS, settings)
        .unwrap_or_else(|| Tally::check(exec::show(check(&["--all-features"]), minutes(10))));
    if tally.failed > 0 {
        println!("if Cargo.toml asks for other versions than {LOCK} has: cargo xtask oldest");
    }
    tally
}

/// A cargo command for that manifest.
fn cargo(arguments: &[&str]) -> Command {
    let mut command = exec::cargo(arguments);
    command.arg("--manifest-path").arg(Path::new(FOLDER).join("Cargo.toml"));
    command
}

/// Checks the library.
fn check(features: &[&str]) -> Command {
    cargo(&[&["check", "--lib", "--locked", "--target-dir", TARGET], features].concat())
}

/// The lock file beside the manifest.
fn lock() -> PathBuf {
    Path::new(FOLDER).join("Cargo.lock")
}

/// Copies a file.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(drop).map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
}

/// Writes the manifest.
fn write_manifest() -> Result<(), String> {
    let wrong = |error: std::io::Error| format!("{FOLDER}: {error}");
    let manifest = fs::read_to_string("Cargo.toml").map_err(wrong)?;
    fs::create_dir_all(FOLDER).map_err(wrong)?;
    fs::write(Path::new(FOLDER).join("Cargo.toml"), library_only(&manifest)).map_err(wrong)
}

/// The manifest for the library alone, two folders further down: without what only its developers depend on, whose versions
/// would be the oldest as well, and without the features of that.
fn library_only(manifest: &str) -> String {
    let mut text = String::new();
    let mut wanted = true;
    for line in manifest.lines() {
        if line.starts_with('[') {
            wanted = ["[package]", "[features]", "[dependencies]"].contains(&line);
        }
        if wanted && !line.starts_with("readme = ") {
            text += &line.replace(", \"common/sim\"", "");
            text.push('\n');
        }
        if line == "[package]" {
            text += "build = \"../../build.rs\"\n";
        }
    }
    text += "\n[lib]\npath = \"../../src/lib.rs\"\n\n[workspace]\n";
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_is_that_of_the_library() {
        let manifest = "[package]\nname = \"x\"\nreadme = \"README.md\"\n\n[workspace]\nmembers = []\n\n[features]\nsoft = []\nsim = [\"soft\", \"common/sim\"]\n\
            \n[dependencies]\na = \"1\"\n\n[dev-dependencies]\nb = \"1\"\n\n[[example]]\nname = \"y\"\n";
        let text = library_only(manifest);
        assert!(
            text.starts_with("[package]\nbuild = \"../../build.rs\"\nname = \"x\"\n\n[features]\n"),
            "{text}"
        );
        assert!(text.contains("\nsim = [\"soft\"]\n"), "{text}");
        assert!(
            text.contains("a = \"1\"") && !text.contains("b = \"1\"") && !text.contains("members"),
            "{text}"
        );
        assert!(text.ends_with("[workspace]\n"), "{text}");
    }
}
