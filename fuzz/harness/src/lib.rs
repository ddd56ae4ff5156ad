//! The fuzz targets: the shipped stack on the simulated network, against a peer that the input controls.
//!
//! Each target takes any bytes and panics when the stack is wrong. The targets use the public API only, and judge the
//! wire by codecs of their own. Everything of an execution is made for it, so that the same input does the same again.

mod connection;
mod frame;
mod input;
mod peer;
mod reader;
mod rpc;
mod session;
mod stage;
mod start_frame;
mod start_up;

pub use connection::connection;
pub use rpc::rpc;
pub use session::session;
pub use start_up::start_up;

#[cfg(test)]
mod replay {
    use std::fs;
    use std::path::Path;

    /// Runs every file of the folder, and names the one that fails.
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

    /// Runs the corpus and what once failed.
    fn replay_all(name: &str, target: fn(&[u8])) {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        assert!(replay(&fuzz.join("corpus").join(name), target) > 0, "there is no corpus of {name}");
        replay(&fuzz.join("regressions").join(name), target);
    }

    #[test]
    fn start_up() {
        replay_all("start_up", super::start_up);
    }

    #[test]
    fn connection() {
        replay_all("connection", super::connection);
    }

    #[test]
    fn session() {
        replay_all("session", super::session);
    }

    #[test]
    fn rpc() {
        replay_all("rpc", super::rpc);
    }
}
