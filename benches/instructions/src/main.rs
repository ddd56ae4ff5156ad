//! Fixed numbers of operations, whose instructions callgrind counts: `cargo xtask instructions`. See `README.md`.

mod calls;
mod ends;
mod floor;
mod queue_pairs;
mod streams;
#[path = "../../fake/tracks.rs"]
#[allow(dead_code, reason = "the other program has connections that are lost, too")]
mod tracks;

use std::io::{self, Write};

use clap::Parser;

use crate::tracks::Line;

/// A line of the table: some operations of one kind.
struct Measurement {
    name: &'static str,
    /// The operations of the shorter one of two runs; the longer one has four times as many.
    operations: usize,
    /// What is counted: each end `apart`, the process as a `whole`, or its system `calls`, too.
    counted: &'static str,
    /// Does so many operations.
    run: fn(usize) -> io::Result<()>,
}

impl Measurement {
    const fn apart(name: &'static str, operations: usize, run: fn(usize) -> io::Result<()>) -> Self {
        Self { name, operations, counted: "apart", run }
    }

    const fn whole(name: &'static str, operations: usize, run: fn(usize) -> io::Result<()>) -> Self {
        Self { name, operations, counted: "whole", run }
    }

    const fn calls(name: &'static str, operations: usize, run: fn(usize) -> io::Result<()>) -> Self {
        Self { name, operations, counted: "calls", run }
    }
}

/// Every line. `README.md` describes each.
const LINES: &[Measurement] = &[
    Measurement::apart("send", 512, queue_pairs::send),
    Measurement::apart("send-inline", 512, queue_pairs::send_inline),
    Measurement::apart("send-polled", 512, queue_pairs::send_polled),
    Measurement::apart("send-1k", 512, queue_pairs::send_long),
    Measurement::calls("send-task", 512, queue_pairs::send_tasks),
    Measurement::calls("send-floor", 512, floor::frames),
    Measurement::calls("send-raw", 512, floor::bytes),
    Measurement::apart("write-4k", 512, queue_pairs::write),
    Measurement::apart("write-4k-batch", 512, queue_pairs::write_chain),
    Measurement::apart("write-64k-crc", 128, queue_pairs::write_checksums),
    Measurement::apart("write-1m", 64, queue_pairs::write_megabytes),
    Measurement::apart("read-4k", 256, queue_pairs::read),
    Measurement::calls("connection", 32, queue_pairs::connection),
    Measurement::calls("stream-connect", 32, streams::connect),
    Measurement::apart("stream-echo", 256, streams::echo),
    Measurement::apart("stream-write-64k", 128, streams::write),
    Measurement::whole("tonic-unary", 128, calls::unary),
    Measurement::whole("messages-unary", 128, calls::unary_in_messages),
    Measurement::whole("verbs-send", 1024, |count| verbs(Line::Future, count)),
    Measurement::whole("verbs-send-polled", 1024, |count| verbs(Line::Polled, count)),
    Measurement::whole("verbs-send-inline", 1024, |count| verbs(Line::Inline, count)),
    Measurement::whole("verbs-send-batch", 1024, |count| verbs(Line::Batch, count)),
    Measurement::whole("verbs-receive", 1024, |count| verbs(Line::Receive, count)),
    Measurement::whole("lane-send", 8192, |count| verbs(Line::LaneSend, count)),
    Measurement::whole("lane-send-now", 8192, |count| verbs(Line::LaneSendNow, count)),
    Measurement::whole("lane-send-batch", 8192, |count| verbs(Line::LaneBatch, count)),
    Measurement::whole("lane-write-1m", 8192, |count| verbs(Line::LaneWrite, count)),
    Measurement::whole("lane-receive", 1024, |count| verbs(Line::LaneReceive, count)),
    Measurement::whole("lane-receive-batch", 1024, |count| verbs(Line::LaneReceives, count)),
];

/// Operations of a track of `fake-bench`, over the device of `tests/fake`.
fn verbs(line: Line, count: usize) -> io::Result<()> {
    let runtime = tracks::runtime()?;
    let make = runtime.block_on(async {
        let adapter = tracks::adapter()?;
        tracks::track(&adapter, line).await
    })?;
    let mut track = make()?;
    track.prepare()?;
    track.run(count)?;
    // The end of the connection, which flushes posted receives, is not counted.
    std::process::exit(0)
}

#[derive(Parser)]
enum Role {
    /// Print the name of each line, its number of operations, and what is counted.
    List,
    /// Do so many operations of a line.
    Run { line: String, operations: usize },
}

fn main() -> io::Result<()> {
    match Role::parse() {
        Role::List => LINES.iter().try_for_each(|Measurement { name, operations, counted, .. }| {
            writeln!(io::stdout(), "{name} {operations} {counted}")
        }),
        Role::Run { line, operations } => {
            let found = LINES.iter().find(|measurement| measurement.name == line);
            (found.ok_or_else(|| io::Error::other(format!("there is no line `{line}`")))?.run)(operations)
        }
    }
}
