//! The `oldest` step: the crate builds with the oldest versions of its dependencies that Cargo.toml allows.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::exec::{self, minutes};
use crate::packages;
use crate::tally::Tally;
use crate::test::Settings;

/// Where the manifest and its lock file are written.
const FOLDER: &str = "target/oldest";

/// The step: one check for the lock file, one for each set of features.
pub(crate) fn step(settings: &Settings) -> Tally {
    let locked = write_manifest().and_then(|()| {
        let mut command = cargo(&["-Zdirect-minimal-versions", "generate-lockfile"]);
        // The option is not stable. It only chooses versions; what is built, is built without it.
        command.env("RUSTC_BOOTSTRAP", "1");
        exec::show(command, minutes(5))
    });
    let mut tally = Tally::check(locked);
    if tally.failed > 0 {
        return tally;
    }
    tally += Tally::check(exec::show(check(&[]), minutes(10)));
    tally += packages::skipped(packages::VERBS, settings)
        .unwrap_or_else(|| Tally::check(exec::show(check(&["--all-features"]), minutes(10))));
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
    cargo(&[&["check", "--lib", "--locked", "--target-dir", "target"], features].concat())
}

/// Writes the manifest, and removes the lock file of an earlier run.
fn write_manifest() -> Result<(), String> {
    let wrong = |error: std::io::Error| format!("{FOLDER}: {error}");
    let manifest = fs::read_to_string("Cargo.toml").map_err(wrong)?;
    fs::create_dir_all(FOLDER).map_err(wrong)?;
    let _ = fs::remove_file(Path::new(FOLDER).join("Cargo.lock"));
    fs::write(Path::new(FOLDER).join("Cargo.toml"), library_only(&manifest)).map_err(wrong)
}

/// The manifest for the library alone, two folders further down: without what only its developers depend on, whose versions
/// would be the oldest as well.
fn library_only(manifest: &str) -> String {
    let mut text = String::new();
    let mut wanted = true;
    for line in manifest.lines() {
        if line.starts_with('[') {
            wanted = ["[package]", "[features]", "[dependencies]"].contains(&line);
        }
        if wanted && !line.starts_with("readme = ") {
            text += line;
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
        let manifest = "[package]\nname = \"x\"\nreadme = \"README.md\"\n\n[workspace]\nmembers = []\n\n[features]\nsoft = []\n\
            \n[dependencies]\na = \"1\"\n\n[dev-dependencies]\nb = \"1\"\n\n[[example]]\nname = \"y\"\n";
        let text = library_only(manifest);
        assert!(
            text.starts_with("[package]\nbuild = \"../../build.rs\"\nname = \"x\"\n\n[features]\n"),
            "{text}"
        );
        assert!(
            text.contains("a = \"1\"") && !text.contains("b = \"1\"") && !text.contains("members"),
            "{text}"
        );
        assert!(text.ends_with("[workspace]\n"), "{text}");
    }
}
