//! The command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;

/// Shows the connections, streams and queues of programs that use tokio-rdma, and why each of them waits.
///
/// The programs serve that themselves: `tokio_rdma::inspect::Server::start()`, with the feature `inspect`.
#[derive(Debug, Parser)]
#[command(name = "rdma-top", bin_name = "cargo rdma-top", version)]
pub(crate) struct Args {
    /// Processes, by number or by the path of their socket [default: every one of this user]
    #[arg(value_name = "PROCESS")]
    pub(crate) processes: Vec<String>,
    /// The time from one look to the next, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: Duration,
    /// The time that a process has to answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// Print one table as plain text, and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Print the snapshots as JSON, one object for each process, and end
    #[arg(long, conflicts_with = "once")]
    pub(crate) json: bool,
}

impl Args {
    /// Reads the words of a command line. cargo puts the name of the command first, which is ignored.
    ///
    /// # Errors
    /// A text for the user, which may be the help.
    pub(crate) fn parse_words(words: impl IntoIterator<Item = String>) -> Result<Self, clap::Error> {
        let mut words: Vec<String> = words.into_iter().collect();
        if words.get(1).is_some_and(|word| word == "rdma-top") {
            words.remove(1);
        }
        Self::try_parse_from(words)
    }

    /// Returns the sockets of the named processes: a number stands for the socket of this process in the directory.
    pub(crate) fn sockets(&self, directory: &Path) -> Vec<PathBuf> {
        let socket = |name: &String| match name.parse::<u32>() {
            Ok(number) => directory.join(format!("{number}.sock")),
            Err(_) => PathBuf::from(name),
        };
        self.processes.iter().map(socket).collect()
    }
}

/// Reads a number of seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if (0.1..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("not between 0.1 and 3600".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses words.
    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        Args::parse_words(words.iter().map(|&word| word.to_owned()))
    }

    #[test]
    fn the_word_of_cargo_is_ignored() {
        let args =
            parse(&["cargo-rdma-top", "rdma-top", "--interval", "0.5", "17", "./a.sock"]).expect("valid");
        assert_eq!(args.interval, Duration::from_millis(500));
        let sockets = args.sockets(Path::new("/run/x"));
        assert_eq!(sockets, [PathBuf::from("/run/x/17.sock"), PathBuf::from("./a.sock")]);
        assert!(parse(&["rdma-top"]).expect("valid").processes.is_empty());
    }

    #[test]
    fn intervals_that_are_none_are_refused() {
        for wrong in ["0", "-1", "NaN", "inf", "1e9", "soon"] {
            assert!(parse(&["rdma-top", &format!("--interval={wrong}")]).is_err(), "{wrong}");
        }
        assert!(parse(&["rdma-top", "--json", "--once"]).is_err());
    }
}
