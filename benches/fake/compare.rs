//! The comparison: both programs take turns in short batches, so that both see the same machine.

use std::env;
use std::ffi::OsString;
use std::io;

use clap::ValueEnum;

use crate::children::Running;
use crate::figures::quantile;
use crate::instructions::{self, Instructions};
use crate::table::{Row, Table};
use crate::tracks::{RECEIVES, WARM_UP};
use crate::{Compare, Line};

/// The numbers of threads, one a core.
const THREADS: [usize; 2] = [1, 2];

const RATIO: &str = "ratio <= 1.5";
const SCALING: &str = "ours >= 1.9";

impl Line {
    fn title(self) -> &'static str {
        match self {
            Self::Future => "Send, awaited",
            Self::Polled => "Send, from a polled queue",
            Self::Inline => "Send inline, from a polled queue",
            Self::Batch => "Send, 16 with one doorbell, polled",
            Self::Receive => "receive, posted only",
            Self::LaneSend => "lane: Send",
            Self::LaneSendNow => "lane: Send, handed over at once",
            Self::LaneBatch => "lane: Send, 16 with one doorbell",
            Self::LaneWrite => "lane: Write of 1 MiB, 16 under way",
            Self::LaneReceive => "lane: receive, posted only",
            Self::LaneReceives => "lane: receive, posted only, 16 with one doorbell",
        }
    }

    /// The operations of a batch. Those with system calls take longer, and a batch has to be over before the work of others
    /// has its turn.
    fn operations(self, plan: &Compare) -> usize {
        match self {
            Self::Future => plan.operations / 4,
            _ if self.receives() => plan.operations.min(RECEIVES - WARM_UP),
            _ => plan.operations,
        }
    }

    /// The goal for the instructions of an operation.
    fn instructions(self) -> &'static str {
        match self {
            Self::Future => "ours <= 2400",
            Self::Polled => "ours <= 1500",
            Self::LaneSend => "ours <= 130",
            Self::LaneBatch => "ours <= 60",
            Self::LaneReceive => "ours <= 35",
            _ => "",
        }
    }

    /// The programs in turn: C, if there is one, and this one.
    fn commands(self, plan: &Compare, threads: usize) -> io::Result<[Option<Vec<OsString>>; 2]> {
        let value = self.to_possible_value().ok_or(io::ErrorKind::InvalidInput)?;
        let words = [value.get_name().to_owned(), threads.to_string()].map(OsString::from);
        let c = plan.c.as_ref().map(|c| [&[c.clone().into_os_string()], &words[..]].concat());
        let ours = [&[env::current_exe()?.into_os_string(), "run".into()], &words[..]].concat();
        Ok([c, Some(ours)])
    }
}

pub(crate) fn run(plan: &Compare) -> io::Result<()> {
    let mut tables = times(plan)?.to_vec();
    if !plan.no_instructions {
        tables.extend(executed(plan)?);
    }
    if plan.json {
        let all: serde_json::Map<_, _> =
            tables.iter().map(|table| (table.key.to_owned(), table.json())).collect();
        println!("{}", serde_json::Value::Object(all));
    } else {
        tables.iter().for_each(|table| println!("{}", table.text()));
    }
    Ok(())
}

/// The samples of a line: those of C and ours, with each number of threads.
type Samples = [[Vec<f64>; 2]; 2];

/// Nanoseconds, and what a second thread adds.
fn times(plan: &Compare) -> io::Result<[Table; 2]> {
    let mut times = Table::new("nanoseconds", "Nanoseconds of an operation, one thread");
    let mut scaling = Table::new("two_threads", "Operations in a time, two threads to one");
    let mut polled = Vec::new();
    for line in Line::value_variants() {
        let samples = alternate(plan, *line)?;
        let [[c, ours], [c_both, ours_both]] = &samples;
        times.rows.push(Row::new(line.title(), ours, c, RATIO));
        if *line == Line::Polled {
            polled.clone_from(c);
        }
        // The times of two threads pass at the same time.
        let gain = |one: &[f64], two: &[f64]| -> Vec<f64> {
            one.iter().zip(two).map(|(one, two)| 2.0 * one / two).collect()
        };
        scaling.rows.push(Row::new(line.title(), &gain(ours, ours_both), &gain(c, c_both), SCALING));
        if *line == Line::Future {
            times.rows.push(Row::new("  beside C that polls and never sleeps", ours, &[], ""));
        }
    }
    // Not of one batch: the two lines were measured one after the other.
    if let Some(row) = times.rows.get_mut(1) {
        let c = quantile(&polled, 0.5);
        (row.c, row.ratio) = (c, [row.ours / c; 3]);
    }
    Ok([times, scaling])
}

fn alternate(plan: &Compare, line: Line) -> io::Result<Samples> {
    let mut samples = Samples::default();
    let mut programs = Vec::new();
    for threads in THREADS {
        let [c, ours] = line.commands(plan, threads)?;
        let start = |words: Option<Vec<OsString>>| words.map(|words| Running::start(&words)).transpose();
        programs.push([start(c)?, start(ours)?]);
    }
    // The first batch only warms up.
    for batch in 0..=plan.batches {
        for (programs, samples) in programs.iter_mut().zip(&mut samples) {
            for (program, samples) in programs.iter_mut().zip(samples) {
                let Some(program) = program else { continue };
                let nanoseconds = program.ask(line.operations(plan))?;
                if batch > 0 {
                    samples.push(nanoseconds);
                }
            }
        }
    }
    Ok(samples)
}

/// Instructions without and with those of the device.
fn executed(plan: &Compare) -> io::Result<[Table; 2]> {
    let mut own = Table::new("instructions", "Instructions of an operation, without those of the device");
    let mut all = Table::new("instructions_with_device", "The same with those of the device");
    let mut polled = Instructions::default();
    let mut future = Instructions::default();
    for line in Line::value_variants() {
        let count =
            |command: Option<Vec<OsString>>| command.map(|words| instructions::count(&words)).transpose();
        let [c, ours] = line.commands(plan, 1)?.map(count);
        let (c, ours) = (c?.unwrap_or_default(), ours?.unwrap_or_default());
        match line {
            Line::Future => future = ours,
            Line::Polled => polled = c,
            _ => {}
        }
        own.rows.push(Row::new(line.title(), &[ours.own], &[c.own], line.instructions()));
        all.rows.push(Row::new(line.title(), &[ours.own + ours.device], &[c.own + c.device], ""));
    }
    let beside = |ours: f64, c: f64| Row::new("  beside C that polls and never sleeps", &[ours], &[c], "");
    own.rows.insert(1, beside(future.own, polled.own));
    all.rows.insert(1, beside(future.own + future.device, polled.own + polled.device));
    Ok([own, all])
}
