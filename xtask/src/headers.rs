//! The `headers` step: the bindings of the feature `verbs` agree with the headers of every rdma-core that Debian's archive has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::exec::{self, minutes};
use crate::packages;
use crate::steps;
use crate::tally::Tally;
use crate::test::{self, Settings};

/// The releases, each with its own rdma-core. One that has left the archive is skipped.
const RELEASES: [&str; 4] = ["bullseye", "bookworm", "trixie", "sid"];

/// The packages with the headers.
const PACKAGES: [&str; 2] = ["libibverbs-dev", "librdmacm-dev"];

/// The folder for what is fetched, with a folder for each release.
const FOLDER: &str = "target/headers";

/// The variable that tells the tests where the headers are.
const VARIABLE: &str = "TOKIO_RDMA_HEADERS";

/// The step: the tests of the layout, for each release.
pub(crate) fn step(settings: &Settings) -> Tally {
    let Some(archive) = packages::debian_archive() else {
        println!("skipped: needs apt-get with Debian's archive");
        return Tally::SKIPPED;
    };
    let mut tally = Tally::default();
    let mut compared = 0;
    for release in RELEASES {
        match fetch(&archive, release) {
            Ok(headers) => {
                compared += 1;
                tally += compare(settings, &headers);
            }
            Err(sentence) => {
                println!("skipped: no headers of {release}: {sentence}");
                tally += Tally::SKIPPED;
            }
        }
    }
    if compared == 0 && settings.ci {
        tally += Tally::check(Err("the headers of no release were compared".to_owned()));
    }
    tally
}

/// Runs the tests with these headers.
fn compare(settings: &Settings, headers: &Path) -> Tally {
    let mut command = exec::cargo(&["test", "--lib"]);
    command
        .args(steps::EVERYTHING)
        .args(["--", "--show-output", "sys::tests::layout"])
        .env(VARIABLE, headers);
    steps::counted(settings, test::HOST, command)
}

/// Fetches and unpacks the headers of a release, unless they are there; returns their folder.
///
/// # Errors
/// A sentence, if the archive does not have them.
fn fetch(archive: &str, release: &str) -> Result<PathBuf, String> {
    let folder = crate::root().join(FOLDER).join(release);
    let headers = folder.join("root/usr/include");
    if headers.join("infiniband/verbs.h").is_file() && headers.join("rdma/rdma_cma.h").is_file() {
        return Ok(headers);
    }
    for name in ["lists/partial", "cache/archives/partial", "packages", "root"] {
        fs::create_dir_all(folder.join(name)).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let sources = folder.join("sources.list");
    fs::write(&sources, format!("deb {archive} {release} main\n"))
        .map_err(|error| format!("{}: {error}", sources.display()))?;
    quietly(apt_get(&folder, &["update"]))?;
    quietly(apt_get(&folder, &[&["download"], &PACKAGES[..]].concat()))?;
    let packages = fs::read_dir(folder.join("packages")).map_err(|error| error.to_string())?;
    for package in packages.flatten() {
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("--extract").arg(package.path()).arg(folder.join("root"));
        quietly(unpack)?;
    }
    Ok(headers)
}

/// apt-get with lists of its own, as if nothing were installed.
fn apt_get(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    for (option, value) in [
        ("Dir::Etc::SourceList", folder.join("sources.list")),
        ("Dir::Etc::SourceParts", "/dev/null".into()),
        ("Dir::State::Lists", folder.join("lists")),
        ("Dir::State::Status", "/dev/null".into()),
        ("Dir::Cache", folder.join("cache")),
    ] {
        command.arg("-o").arg(format!("{option}={}", value.display()));
    }
    // With its rights dropped, apt could not write in a folder of ours.
    command.args(["-o", "APT::Sandbox::User=root"]).args(arguments).current_dir(folder.join("packages"));
    command
}

/// Runs a command that says something only if it fails.
fn quietly(command: Command) -> Result<(), String> {
    let mut last = String::new();
    let outcome = exec::quiet_lines(command, minutes(3), |line| {
        if line.starts_with("E:") || line.starts_with("W:") {
            line.clone_into(&mut last);
        }
    });
    outcome.map_err(|sentence| format!("{sentence} {last}"))
}
