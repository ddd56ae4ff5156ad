//! `cargo rdma-guest run`: one command in the machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Usage;
use crate::environment::is_variable;
use crate::image;
use crate::machine::{Machine, Processors, Siw};
use crate::suite::DEVICES;

/// How long a command may take unless it is told otherwise.
const DEFAULT_SECONDS: u64 = 600;

/// The folders for the files of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The folder with the images, which are kept.
    pub cache: PathBuf,
    /// The folder with a folder for each run. Those of failed runs are kept until the next run.
    pub runs: PathBuf,
}

impl Places {
    /// Those in the cache of the user.
    ///
    /// # Errors
    /// A sentence, if the user has none.
    pub fn of_user() -> Result<Self, String> {
        let cache =
            image::user_cache().ok_or("neither XDG_CACHE_HOME nor HOME names a folder for the machine")?;
        Ok(Self { runs: cache.join("runs"), cache })
    }
}

/// A command line of `run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which build of siw is loaded.
    pub siw: Siw,
    /// How long the command may take.
    pub limit: Duration,
    /// Variables that the command is given besides those of the list.
    pub named: Vec<String>,
    /// The command and its arguments.
    pub command: Vec<String>,
}

impl Request {
    /// Reads the command line: options, and the command after `--`.
    ///
    /// # Errors
    /// A sentence on what is wrong with it.
    pub fn parse(arguments: &[String]) -> Result<Self, Usage> {
        let mut request = Self {
            siw: Siw::Stock,
            limit: Duration::from_secs(DEFAULT_SECONDS),
            named: Vec::new(),
            command: Vec::new(),
        };
        let mut words = arguments.iter();
        let mut next = words.next();
        while let Some(option) = next.filter(|word| word.starts_with("--") && *word != "--") {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option.as_str(), words.next().cloned()),
            };
            let value = value.ok_or_else(|| Usage(format!("`{name}` needs a value")))?;
            match name {
                "--siw" => request.siw = Siw::parse(&value)?,
                "--timeout" => request.limit = Duration::from_secs(seconds(&value)?),
                "--env" => request.named.push(variable(value)?),
                _ => return Err(Usage(format!("unexpected argument `{name}`"))),
            }
            next = words.next();
        }
        let first = if next.is_some_and(|word| word == "--") { words.next() } else { next };
        request.command = first.into_iter().chain(words).cloned().collect();
        if request.command.is_empty() {
            return Err(Usage("a command to run is missing".into()));
        }
        Ok(request)
    }

    /// Runs it, starting in `folder`; the exit status of the command.
    ///
    /// # Errors
    /// A sentence, if the machine could not be made or broke.
    pub fn run(&self, places: &Places, folder: &Path) -> Result<u8, String> {
        let image = image::prepare(&places.cache)?;
        let machine = Machine {
            image: &image,
            devices: &DEVICES,
            siw: self.siw,
            limit: self.limit,
            folder,
            named: &self.named,
            runs: &places.runs,
            processors: Processors::Two,
        };
        machine.run(&self.command)
    }
}

/// The argument of `--timeout`.
pub(crate) fn seconds(value: &str) -> Result<u64, Usage> {
    let seconds = value.parse().ok().filter(|seconds| *seconds > 0);
    seconds.ok_or_else(|| Usage(format!("`{value}` is not a number of seconds")))
}

/// The argument of `--env`.
pub(crate) fn variable(name: String) -> Result<String, Usage> {
    if is_variable(&name) { Ok(name) } else { Err(Usage(format!("`{name}` is not the name of a variable"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The request of a command line.
    fn parse(line: &str) -> Result<Request, Usage> {
        Request::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_stand_before_the_command() {
        let line = "--siw p2p --env A --timeout=5 --env=B -- ls -l --all";
        let request = parse(line).expect("a good command line");
        assert_eq!(request.siw, Siw::PeerToPeer);
        assert_eq!(request.limit, Duration::from_secs(5));
        assert_eq!(request.named, ["A", "B"]);
        assert_eq!(request.command, ["ls", "-l", "--all"]);
        assert_eq!(parse("ls -- x").expect("a good command line").command, ["ls", "--", "x"]);
        assert_eq!(parse("-- --siw").expect("a good command line").command, ["--siw"]);
    }

    #[test]
    fn a_wrong_command_line_is_refused() {
        for line in [
            "",
            "--",
            "--siw",
            "--siw other -- ls",
            "--timeout 0 ls",
            "--timeout x ls",
            "--what 1 ls",
            "--env A=B ls",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
