//! `cargo rdma-guest`: tests and commands in a virtual machine with RDMA devices.

use std::env;
use std::process::ExitCode;

use rdma_guest::command::{self, Places};
use rdma_guest::{Usage, image, test};

/// The text of `cargo rdma-guest help`.
const HELP: &str = "\
Runs tests and commands in a virtual machine with the RDMA devices rxe0 and siw0

Usage:
  cargo rdma-guest test [OPTIONS] [CARGO TEST ARGUMENTS] [TEST NAME] [-- ARGUMENTS OF THE TESTS]
      build the tests of a project with cargo, and run them in the machine for each device
  cargo rdma-guest run [OPTIONS] -- COMMAND [ARGUMENTS]
      run a command in the machine
  cargo rdma-guest setup
      make the machine, which the other commands do when they are first used

Options:
  --device rxe|siw|both  (test) the devices [default: both]
  --together             (test) leave the other device in the machine of each
  --siw stock|p2p        (run) siw as it is in the kernel, or with peer-to-peer mode and CRC [default: stock]
  --timeout SECONDS      how long the command or each test program may take [default: 600]
  --env NAME             pass on this variable, too; may be repeated

Exit status: 0 if all tests pass, 1 if one fails or the machine breaks, 2 if the command line is not understood;
of `run`, that of the command.";

/// Runs the command named by the first word.
fn dispatch(words: &[String]) -> Result<Result<u8, String>, Usage> {
    let (name, arguments) = words.split_first().ok_or_else(|| Usage("a command is missing".into()))?;
    let folder = || env::current_dir().map_err(|error| format!("the current folder: {error}"));
    match name.as_str() {
        "test" => {
            let request = test::Request::parse(arguments)?;
            let run = || request.run(&Places::of_user()?, &folder()?);
            Ok(run().map(|passed| u8::from(!passed)))
        }
        "run" => {
            let request = command::Request::parse(arguments)?;
            let run = || request.run(&Places::of_user()?, &folder()?);
            Ok(run())
        }
        "setup" if arguments.is_empty() => {
            let make = || image::prepare(&Places::of_user()?.cache);
            Ok(make().map(|image| {
                println!("{}", image.folder.display());
                0
            }))
        }
        "help" | "--help" | "-h" => {
            println!("{HELP}");
            Ok(Ok(0))
        }
        "--version" | "-V" => {
            println!("rdma-guest {}", env!("CARGO_PKG_VERSION"));
            Ok(Ok(0))
        }
        _ => Err(Usage(format!("`{}` is not understood", words.join(" ")))),
    }
}

fn main() -> ExitCode {
    let mut words: Vec<String> =
        env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    // cargo puts this word first.
    if words.first().is_some_and(|word| word == "rdma-guest") {
        words.remove(0);
    }
    match dispatch(&words) {
        Ok(Ok(status)) => ExitCode::from(status),
        Ok(Err(error)) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
        Err(Usage(wrong)) => {
            eprintln!("error: {wrong}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}
