//! A door for fuzzers and for the benchmark of the codecs: what `fuzz/` runs, and what the tests replay. No part of the API.
//!
//! Each function is one fuzz target. It takes any bytes and panics when something is wrong.

pub mod codecs;
mod connection;
mod input;
mod peer;
mod start_up;

pub use connection::fuzz_connection;
pub use start_up::fuzz_start_up;

#[cfg(test)]
mod replay {
    use std::fs;
    use std::path::Path;

    /// Runs every file of the folder, and says which one it is at.
    fn replay(folder: &Path, target: fn(&[u8])) -> usize {
        let mut paths: Vec<_> = fs::read_dir(folder)
            .map(|entries| entries.map(|entry| entry.expect("listed").path()).collect())
            .unwrap_or_default();
        paths.sort();
        for path in &paths {
            let bytes = fs::read(path).expect("readable");
            let outcome = std::panic::catch_unwind(|| target(&bytes));
            assert!(outcome.is_ok(), "{} fails", path.display());
        }
        paths.len()
    }

    /// The corpus and what once failed. Only the sources of the crate are packaged: there is nothing to replay there.
    fn replay_all(name: &str, target: fn(&[u8])) {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
        if fuzz.exists() {
            assert!(replay(&fuzz.join("corpus").join(name), target) > 0, "there is no corpus of {name}");
            replay(&fuzz.join("regressions").join(name), target);
        }
    }

    #[test]
    fn start_up() {
        replay_all("start_up", super::fuzz_start_up);
    }

    #[test]
    fn connection() {
        replay_all("connection", super::fuzz_connection);
    }
}
