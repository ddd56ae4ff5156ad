//! The comparison: contenders take turns in short batches, so that all of them see the same machine.

use std::env;
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::Compare;
use crate::children::{Running, output, until_listening};
use crate::figures::Race;
use crate::streams::Load;

/// The first of the ports on which everything listens, one after the other.
const FIRST_PORT: u16 = 18_500;

/// A contender of the round trips: its name, whether it is the C program, and its flags.
type Contender = (&'static str, bool, &'static [&'static str]);
const CONTENDERS: [Contender; 5] = [
    ("C, the same calls", true, &[]),
    ("C, the fewest calls", true, &["level"]),
    ("ours, multi_thread", false, &["--workers", "1"]),
    ("ours, current_thread", false, &[]),
    ("ours, a lane", false, &["--lane"]),
];
/// Only where each end has a core of its own.
const SPINNING: Contender = ("ours, spinning 100 us", false, &["--workers", "1", "--spin", "100"]);

pub(crate) fn run(plan: &Compare) -> io::Result<()> {
    let mut races = Vec::new();
    if plan.c.is_some() && plan.round_trips > 0 {
        races.push(round_trips(plan, "64-byte round trip, both ends on one core", &CONTENDERS, [0, 0])?);
        let all = [&CONTENDERS[..], &[SPINNING]].concat();
        races.push(round_trips(plan, "64-byte round trip, a core for each end", &all, [0, 1])?);
    }
    if plan.connections > 0 {
        races.push(connections(plan)?);
    }
    if plan.echoes > 0 {
        let load = Load { size: 64, count: 1, iterations: plan.echoes };
        races.push(streams(plan, "64-byte stream echo, one way", "us", load, |microseconds| microseconds)?);
    }
    if plan.writes > 0 {
        let load = Load { size: 1 << 16, count: plan.writes, iterations: 1 };
        // Bits in a microsecond are megabits in a second.
        let rate = |microseconds| (load.size * 8) as f64 / microseconds;
        races.push(streams(plan, "64 KiB stream writes", "Mb/s", load, rate)?);
    }
    if plan.json {
        let all: serde_json::Map<_, _> =
            races.iter().map(|race| (race.title.to_owned(), race.json())).collect();
        println!("{}", serde_json::Value::Object(all));
    } else {
        races.iter().for_each(|race| println!("{}", race.table()));
    }
    Ok(())
}

fn command(program: OsString, arguments: &[&str]) -> Vec<OsString> {
    [program].into_iter().chain(arguments.iter().map(OsString::from)).collect()
}

/// This program in another role.
fn ours(role: &str, address: IpAddr, port: u16, flags: &[&str]) -> io::Result<Vec<OsString>> {
    let address = SocketAddr::new(address, port).to_string();
    let program = env::current_exe()?.into_os_string();
    Ok(command(program, &[&[role, address.as_str()], flags].concat()))
}

/// The same command, on one core.
fn on_core(core: usize, words: &[OsString]) -> Vec<OsString> {
    let pinned = ["taskset", "-c", &core.to_string()].map(OsString::from);
    pinned.into_iter().chain(words.iter().cloned()).collect()
}

/// Both ends of each contender stay connected, and sleep while it is not their turn. `cores` are those of the client
/// and the server.
fn round_trips(
    plan: &Compare,
    title: &'static str,
    contenders: &[Contender],
    cores: [usize; 2],
) -> io::Result<Race> {
    let mut race = Race::new(title, "us", contenders.iter().map(|(name, ..)| *name));
    let mut ends = Vec::new();
    for (port, &(_, is_c, flags)) in (FIRST_PORT..).zip(contenders) {
        let words = |role: &str| match &plan.c {
            Some(c) if is_c => {
                let (address, port) = (plan.address.to_string(), port.to_string());
                let place = [role, address.as_str(), port.as_str()];
                Ok(command(c.clone().into_os_string(), &[&place, flags].concat()))
            }
            _ => ours(role, plan.address, port, flags),
        };
        let mut server = Running::start(&on_core(cores[1], &words("serve")?))?;
        server.line()?;
        ends.push((Running::start(&on_core(cores[0], &words("ping")?))?, server));
    }
    // The first batch only warms up.
    for batch in 0..=plan.batches {
        for ((client, _), figure) in ends.iter_mut().zip(&mut race.figures) {
            let nanoseconds = client.ask(plan.round_trips)?;
            if batch > 0 {
                figure.samples.push(nanoseconds / 1e3);
            }
        }
    }
    Ok(race)
}

/// A new process for each batch, as cmtime is one; the servers stay.
fn connections(plan: &Compare) -> io::Result<Race> {
    // One worker for each core, as is tokio's way; and more, since the kernel sleeps in some of the calls.
    let workers = ["2", "16", "0"];
    let names = [
        "cmtime",
        "ours, 2 workers",
        "  from the opened adapter on",
        "ours, 16 workers",
        "  from the opened adapter on",
        "ours, current_thread",
        "  from the opened adapter on",
    ];
    let mut race = Race::new("connections in flight, time of each", "us", names);
    let (address, count) = (plan.address.to_string(), plan.connections.to_string());
    let theirs = (FIRST_PORT + 100).to_string();
    let cmtime = |flags: &[&str]| command("cmtime".into(), &[flags, &["-p", &theirs]].concat());
    let _theirs = Running::start(&cmtime(&["-b", &address]))?;
    until_listening(&theirs)?;
    let mut servers = Vec::new();
    for (port, workers) in (FIRST_PORT + 101..).zip(workers) {
        let mut server = Running::start(&ours("accept", plan.address, port, &["--workers", workers])?)?;
        server.line()?;
        servers.push(server);
    }
    for batch in 0..=plan.batches {
        let mut samples = vec![cmtime_total(&output(&cmtime(&["-s", &address, "-c", &count]))?)?];
        for (port, workers) in (FIRST_PORT + 101..).zip(workers) {
            let flags = ["--connections", &count, "--workers", workers];
            let said = output(&ours("connect", plan.address, port, &flags)?)?;
            for nanoseconds in said.split_whitespace() {
                samples.push(nanoseconds.parse::<f64>().map_err(io::Error::other)? / 1e3);
            }
        }
        for (figure, sample) in race.figures.iter_mut().zip(samples) {
            if batch > 0 {
                figure.samples.push(sample / plan.connections as f64);
            }
        }
    }
    Ok(race)
}

/// The microseconds of all steps of cmtime together, from the identifiers' creation to their end.
fn cmtime_total(said: &str) -> io::Result<f64> {
    let step = |line: &str| line.split_once(':')?.1.split_whitespace().next()?.parse::<f64>().ok();
    let steps: Vec<f64> = said.lines().filter_map(step).collect();
    match steps.len() {
        7 => Ok(steps.iter().sum::<f64>() * 1e3),
        _ => Err(io::Error::other(format!("cmtime failed: {said}"))),
    }
}

/// A new client for each batch, and of rstream a new server, which serves only one; each end has a core of its own.
/// `figure` makes of the microseconds of a write what is compared.
fn streams(
    plan: &Compare,
    title: &'static str,
    unit: &'static str,
    load: Load,
    figure: impl Fn(f64) -> f64,
) -> io::Result<Race> {
    // It sleeps when there is nothing, as ours do, or else never.
    let rstream = [("rstream, blocking", &["-T", "b"][..]), ("rstream, busy", &[])];
    let ours_flags = [CONTENDERS[2], CONTENDERS[3], SPINNING].map(|(name, _, flags)| (name, flags));
    let mut race = Race::new(title, unit, rstream.iter().chain(&ours_flags).map(|(name, _)| *name));
    let [size, count, iterations] = [load.size, load.count, load.iterations].map(|number| number.to_string());
    let address = plan.address.to_string();
    let mut servers = Vec::new();
    let mut clients = Vec::new();
    for (port, (_, flags)) in (FIRST_PORT + 202..).zip(ours_flags) {
        let size = ["--size", &size, "--count", &count, "--iterations", &iterations];
        let words = |role| ours(role, plan.address, port, &[&size, flags].concat());
        let mut server = Running::start(&on_core(1, &words("stream-serve")?))?;
        server.line()?;
        servers.push(server);
        clients.push(on_core(0, &words("stream-call")?));
    }
    for batch in 0..=plan.batches {
        let mut samples = Vec::new();
        for (port, (_, flags)) in (FIRST_PORT + 200..).zip(rstream) {
            let port = port.to_string();
            let size = ["-p", &port, "-S", &size, "-C", &count, "-I", &iterations];
            let words =
                |end| command("rstream".into(), &[&[end, address.as_str()], &size[..], flags].concat());
            let _server = Running::start(&on_core(1, &words("-b")))?;
            until_listening(&port)?;
            samples.push(rstream_time(&output(&on_core(0, &words("-s")))?)?);
        }
        for client in &clients {
            let nanoseconds: f64 = output(client)?.trim().parse().map_err(io::Error::other)?;
            samples.push(nanoseconds / 1e3);
        }
        for (race, sample) in race.figures.iter_mut().zip(samples) {
            if batch > 0 {
                race.samples.push(figure(sample));
            }
        }
    }
    Ok(race)
}

/// The microseconds of a write: the last word of the last line.
fn rstream_time(said: &str) -> io::Result<f64> {
    let result = said.lines().find(|line| line.starts_with("custom"));
    let time = result.and_then(|line| line.split_whitespace().last()?.parse().ok());
    time.ok_or_else(|| io::Error::other(format!("rstream failed: {said}")))
}
