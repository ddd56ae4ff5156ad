//! `cargo xtask guest`: a virtual machine with RDMA devices, for machines that have none.
//!
//! Debian's own kernel under software emulation, with the host's root file system underneath a layer in memory, so
//! that every program of the host is there at its own path and nothing that the guest does to files stays.

use std::process::ExitCode;
use std::time::Duration;

use crate::Usage;

pub(crate) mod bench;
mod image;
mod machine;
pub(crate) mod modules;
mod permits;
mod progress;
mod suite;

use machine::{Machine, Processors, Siw};
pub(crate) use suite::{Program, build, executable, interop, rxe, simulated, siw, words};

/// How long a command may take unless it is told otherwise.
const DEFAULT_SECONDS: u64 = 600;

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    /// Which build of siw is loaded.
    siw: Siw,
    /// How long the command may take.
    limit: Duration,
    /// The command and its arguments.
    command: Vec<String>,
}

impl Request {
    /// Reads the command line.
    fn parse(arguments: &[String]) -> Result<Self, Usage> {
        let mut siw = Siw::Stock;
        let mut seconds = DEFAULT_SECONDS;
        let mut words = arguments.iter();
        let mut next = words.next();
        while let Some(option) = next.filter(|word| word.starts_with("--") && *word != "--") {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option.as_str(), words.next().cloned()),
            };
            let value = value.ok_or_else(|| Usage(format!("`{name}` needs a value")))?;
            match name {
                "--siw" => siw = Siw::parse(&value)?,
                "--timeout" => {
                    seconds = value
                        .parse()
                        .ok()
                        .filter(|seconds| *seconds > 0)
                        .ok_or_else(|| Usage(format!("`{value}` is not a number of seconds")))?;
                }
                _ => return Err(Usage(format!("unexpected argument `{name}`"))),
            }
            next = words.next();
        }
        let first = if next.is_some_and(|word| word == "--") { words.next() } else { next };
        let command: Vec<String> = first.into_iter().chain(words).cloned().collect();
        if command.is_empty() {
            return Err(Usage("`guest` needs a command to run".into()));
        }
        Ok(Self { siw, limit: Duration::from_secs(seconds), command })
    }
}

/// The command: its exit status is that of the command in the guest, or 1 if it could not be run or was ended.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    Ok(exit_code(Request::parse(arguments)?.run()))
}

impl Request {
    /// Runs it; the exit status of the command.
    ///
    /// # Errors
    /// A sentence, if the machine could not be made or broke.
    fn run(&self) -> Result<u8, String> {
        let image = image::prepare()?;
        let folder = crate::origin();
        let processors = Processors::AtOnce;
        Machine { image: &image, siw: self.siw, limit: self.limit, folder, processors }.run(&self.command)
    }
}

/// The exit status of the command, or 1 and the sentence.
fn exit_code(status: Result<u8, String>) -> ExitCode {
    status.map_or_else(
        |error| {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        },
        ExitCode::from,
    )
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
        let request = parse("--siw p2p --timeout=5 -- ls -l --all").expect("a good command line");
        assert_eq!(request.siw, Siw::PeerToPeer);
        assert_eq!(request.limit, Duration::from_secs(5));
        assert_eq!(request.command, ["ls", "-l", "--all"]);
        assert_eq!(parse("ls -- x").expect("a good command line").command, ["ls", "--", "x"]);
        assert_eq!(parse("-- --siw").expect("a good command line").command, ["--siw"]);
    }

    #[test]
    fn a_wrong_command_line_is_refused() {
        for line in
            ["", "--", "--siw", "--siw other -- ls", "--timeout 0 ls", "--timeout x ls", "--what 1 ls"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
