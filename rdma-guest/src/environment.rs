//! The variables that are passed on to the machine: those of a list, so that tokens and passwords stay on the host.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Variables that are passed on.
#[rustfmt::skip]
const NAMES: &[&str] = &[
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "NO_COLOR", "TZ", "CI",
    "LD_LIBRARY_PATH", "ASAN_OPTIONS", "ASAN_SYMBOLIZER_PATH", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "CC", "CXX",
    "CARGO", "CARGO_HOME", "CARGO_INCREMENTAL", "CARGO_TARGET_DIR", "CARGO_TARGET_TMPDIR", "CARGO_CRATE_NAME",
];

/// Beginnings of the names of others.
#[rustfmt::skip]
const PREFIXES: &[&str] = &[
    "LC_", "RUST_", "RUSTUP_", "TOKIO_RDMA_", "CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_BIN_", "CARGO_TERM_", "PROPTEST_",
];

/// Words that no variable has which one of the prefixes lets through.
const SECRETS: &[&str] = &["TOKEN", "SECRET", "PASSWORD", "CREDENTIAL"];

/// The variables of this process that the machine is given: those of the list, and those that were asked for by name.
pub fn passed_on(named: &[String]) -> Vec<(OsString, OsString)> {
    env::vars_os().filter(|(name, _)| is_passed_on(name, named)).collect()
}

/// Whether the machine is given a variable of this name.
fn is_passed_on(name: &OsStr, named: &[String]) -> bool {
    let Some(text) = name.to_str().filter(|text| is_variable(text)) else { return false };
    let is_listed = NAMES.contains(&text) || PREFIXES.iter().any(|prefix| text.starts_with(prefix));
    let is_secret = SECRETS.iter().any(|word| text.to_ascii_uppercase().contains(word));
    is_listed && !is_secret || named.iter().any(|one| one == text)
}

/// Whether the shell can have a variable of this name.
pub(crate) fn is_variable(name: &str) -> bool {
    name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name != "PWD"
}

/// `export NAME='value'`.
pub(crate) fn assignment(name: &OsStr, value: &OsStr) -> Vec<u8> {
    [b"export ", name.as_bytes(), b"=", &quoted(value), b"\n"].concat()
}

/// A word as the shell reads it: in single quotes, each quote in it closed, escaped and opened again.
pub(crate) fn quoted(word: &OsStr) -> Vec<u8> {
    let mut text = vec![b'\''];
    for &byte in word.as_bytes() {
        match byte {
            b'\'' => text.extend(b"'\\''"),
            _ => text.push(byte),
        }
    }
    text.push(b'\'');
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn secrets_stay_on_the_host() {
        for name in [
            "CARGO_REGISTRY_TOKEN",
            "CARGO_REGISTRIES_MINE_TOKEN",
            "CARGO_REGISTRIES_MINE_CREDENTIAL_PROVIDER",
            "CARGO_HTTP_PROXY",
            "GITHUB_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "SSH_AUTH_SOCK",
            "RUST_TOKEN",
            "TOKIO_RDMA_PASSWORD",
            "CI_JOB_TOKEN",
        ] {
            assert!(!is_passed_on(name.as_ref(), &[]), "{name}");
        }
    }

    #[test]
    fn what_tests_read_is_passed_on() {
        for name in [
            "PATH",
            "HOME",
            "LC_ALL",
            "RUST_BACKTRACE",
            "RUST_LOG",
            "CARGO_MANIFEST_DIR",
            "TOKIO_RDMA_DEVICES",
            "LSAN_OPTIONS",
        ] {
            assert!(is_passed_on(name.as_ref(), &[]), "{name}");
        }
    }

    #[test]
    fn a_variable_can_be_asked_for() {
        let named = ["MY_TOKEN".to_owned()];
        assert!(is_passed_on("MY_TOKEN".as_ref(), &named));
        assert!(!is_passed_on("MY_TOKEN_2".as_ref(), &named));
    }

    #[test]
    fn words_survive_the_shell() {
        let words = ["it's", "$HOME `x` \"y\" \\", "", "two\nlines"];
        for word in words {
            let script = [b"printf %s ", &quoted(word.as_ref())[..]].concat();
            let output =
                Command::new("sh").arg("-c").arg(OsStr::from_bytes(&script)).output().expect("a shell");
            assert_eq!(output.stdout, word.as_bytes());
        }
    }

    #[test]
    fn invalid_names_and_pwd_are_left_out() {
        assert!(is_variable("_A9"));
        for name in ["", "9A", "A-B", "BASH_FUNC_x%%", "PWD"] {
            assert!(!is_variable(name), "{name}");
        }
    }
}
