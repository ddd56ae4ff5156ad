//! A build of the `verbs` provider on a machine that has Rust and its linker, and nothing else: no C compiler, no pkg-config, no tool that
//! reads headers.

use std::env;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use crate::exec::{self, minutes};

/// The only folder in which programs are found meanwhile.
const PROGRAMS: &str = "target/bare/bin";

/// The folder in which it is built: build scripts that have run elsewhere do not run again.
const TARGET: &str = "target/bare/target";

/// The programs that Rust itself needs. The linker is called by the name of the compiler.
const NEEDED: [&str; 3] = ["cargo", "rustc", "ld"];

/// `cc` as a linker alone.
const LINKER: &str = r#"#!/bin/sh
for argument in "$@"; do
    case "$argument" in
        -c | -E | -S | -x | *.c | *.cc | *.cpp | *.h | *.S)
            echo "there is no C compiler here: cc $*" >&2
            exit 1 ;;
    esac
done
exec CC "$@"
"#;

/// Variables by which a build script would find something all the same.
const HIDDEN: [&str; 7] =
    ["CC", "CXX", "CFLAGS", "PKG_CONFIG", "PKG_CONFIG_PATH", "LIBCLANG_PATH", "CARGO_TARGET_DIR"];

/// Checks the library with the feature `verbs` alone.
///
/// # Errors
/// A sentence, if it does not build, or if something could be compiled or found all the same.
pub(crate) fn check() -> Result<(), String> {
    lay_out().map_err(|error| format!("{PROGRAMS}: {error}"))?;
    for (program, argument) in [("cc", "-E"), ("pkg-config", "--version")] {
        // The shell finds programs as everybody does.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("{program} {argument}")]);
        if hide(&mut command).output().is_ok_and(|output| output.status.success()) {
            return Err(format!("{program} {argument} works in {PROGRAMS}"));
        }
    }
    let mut command = Command::new(absolute("cargo"));
    command.args(["check", "--lib", "--locked", "--no-default-features", "--features", "verbs"]);
    command.args(["--target-dir", TARGET]);
    hide(&mut command);
    exec::show(command, minutes(10))
}

/// The path of one of the programs.
fn absolute(program: &str) -> PathBuf {
    crate::root().join(PROGRAMS).join(program)
}

/// Has a command find these programs only.
fn hide(command: &mut Command) -> &mut Command {
    for variable in HIDDEN {
        command.env_remove(variable);
    }
    command.env("PATH", crate::root().join(PROGRAMS))
}

/// Makes the folder with the programs.
fn lay_out() -> std::io::Result<()> {
    match fs::remove_dir_all(PROGRAMS) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir_all(PROGRAMS)?,
    }
    for program in NEEDED {
        symlink(find(program)?, absolute(program))?;
    }
    let linker = LINKER.replace("CC", &find("cc")?.display().to_string());
    fs::write(absolute("cc"), linker)?;
    fs::set_permissions(absolute("cc"), fs::Permissions::from_mode(0o755))
}

/// The program of this name that the machine has.
fn find(program: &str) -> std::io::Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file());
    // Not canonical: rustup has one program for all of its names.
    found.ok_or_else(|| {
        std::io::Error::new(std::io::ErrorKind::NotFound, format!("{program} is not installed"))
    })
}
