//! Shows why programs that use tokio-rdma wait: what the commands `cargo rdma-top` and `rdma-top` are made of.
//!
//! The [README](https://docs.rs/crate/rdma-top/latest) describes the command. This library is for its two programs alone, and may
//! change in any release.

mod app;
mod args;
mod detail;
mod live;
mod order;
mod plain;
mod rows;
#[cfg(test)]
mod samples;
mod screen;
mod source;
mod text;

use std::env;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use tokio_rdma::inspect;

use crate::args::Args;
use crate::source::{Processes, Reading, Source};

/// Runs the command with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    let words = env::args_os().map(|word| word.to_string_lossy().into_owned());
    let args = match Args::parse_words(words) {
        Ok(args) => args,
        Err(error) => {
            // If it cannot be written, nobody reads it.
            let _ = error.print();
            return ExitCode::from(error.exit_code().try_into().unwrap_or(2));
        }
    };
    let directory = inspect::directory();
    let processes = match args.processes[..] {
        [] => Processes::All(directory),
        _ => Processes::Named(args.sockets(&directory)),
    };
    let source = Source { processes, limit: args.timeout };
    let is_printed = args.once || args.json;
    let has_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !is_printed && !has_terminal {
        eprintln!("error: the table needs a terminal; without one: --once or --json");
        return ExitCode::from(2);
    }
    let outcome = match is_printed {
        true => print(&source, args.json),
        false => live::show(source, args.interval).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

/// Reads the processes once, and prints what they have served.
fn print(source: &Source, is_json: bool) -> io::Result<ExitCode> {
    let readings = source.read();
    let text = match readings[..] {
        [] if !is_json => String::new(),
        _ if is_json => plain::json(&readings),
        _ => plain::table(&readings),
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        // `| head` has what it wants.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        outcome => outcome?,
    }
    if readings.is_empty() {
        eprintln!("{}", screen::HINT);
    }
    let failures = readings.iter().filter_map(failure);
    let failed = failures.inspect(|sentence| eprintln!("error: {sentence}")).count();
    let is_named = matches!(source.processes, Processes::Named(_));
    Ok(if failed > 0 && is_named { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns a sentence for a process that has served no snapshot.
fn failure(reading: &Reading) -> Option<String> {
    let failure = reading.outcome.as_ref().err()?;
    let sentence = format!("{}: {failure}", reading.path.display());
    Some(text::clean(&sentence).into_owned())
}
