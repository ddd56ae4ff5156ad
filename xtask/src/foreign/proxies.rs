//! `cargo xtask foreign proxies`: pgbench, redis-benchmark, h2load and `ab` through two `proxy` examples.
//!
//! The clients are on one host, a network namespace, and the servers on another. Between the two proxies there are streams of the soft
//! provider. The network delays, loses and breaks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitCode};
use std::thread;
use std::time::Duration;

use crate::exec::{self, cargo, minutes};
use crate::{Usage, packages};
use clients::{Client, Report, run_all};
use crossing::{Crossing, Middle, Route};
use hosts::Host;

mod cable;
mod clients;
mod crossing;
mod figures;
mod hosts;
mod servers;

/// The parts of the command.
const PARTS: &[&str] = &["plain", "long", "breaks", "churn", "memory"];
/// The folder of the servers' files and of all output, before the number of the process. PostgreSQL's user has to reach it.
const FOLDER: &str = "/var/tmp/tokio-rdma-proxies";
/// The address of the far host over the plain cable.
const PLAIN: &str = "10.77.0.2";
/// The longest that a client runs.
const LIMIT: Duration = Duration::from_secs(150);
/// The address of the proxies beside the clients.
const ENTRY: &str = "127.0.0.1";

/// Runs the command.
pub(super) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        // The two programs of this command that run in a namespace.
        ["relay", near, near_peer, far, far_peer] => {
            cable::relay([(near, near_peer), (far, far_peer)]).map_err(|error| error.to_string())
        }
        ["hold", address, count] => figures::hold(address, count),
        _ => run(&Options::parse(&words)?),
    };
    Ok(outcome.map_or_else(
        |sentence| {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    ))
}

/// The command line.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    /// Whether missing packages may be installed.
    install: bool,
    /// The parts that run.
    parts: Vec<&'static str>,
}

impl Options {
    /// Reads the command line.
    fn parse(words: &[&str]) -> Result<Self, Usage> {
        let mut options = Self { install: true, parts: PARTS.to_vec() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--no-install" => options.install = false,
                "--only" => {
                    let names = words.next().ok_or_else(|| Usage("`--only` needs a value".into()))?;
                    let find = |name| PARTS.iter().copied().find(|part| *part == name);
                    let part = |name| find(name).ok_or_else(|| Usage(format!("there is no part `{name}`")));
                    options.parts = names.split(',').map(part).collect::<Result<_, _>>()?;
                }
                _ => return Err(Usage(format!("unexpected argument `{word}`"))),
            }
        }
        Ok(options)
    }
}

/// Runs the parts, and fails if one of them does.
fn run(options: &Options) -> Result<(), String> {
    let missing = packages::missing(packages::PROXIED);
    if !missing.is_empty() {
        packages::install(&missing, options.install)?;
    }
    exec::show(cargo(&["build", "--release", "--example", "proxy"]), minutes(30))?;
    let folder = PathBuf::from(format!("{FOLDER}-{}", process::id()));
    // It fails if there is something with this name.
    fs::create_dir(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    versions();
    let outcome = run_parts(&options.parts, &folder);
    match outcome {
        Ok(()) => fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display())),
        Err(sentence) => Err(format!("{sentence}\nthe output of the programs is in {}", folder.display())),
    }
}

/// Runs the parts between two new hosts.
fn run_parts(parts: &[&str], folder: &Path) -> Result<(), String> {
    let (near, far) = (Host::new()?, Host::new()?);
    near.plug(&far, [("left", "10.77.0.1"), ("right", PLAIN)])?;
    let _servers = servers::start(&far, folder)?;
    let route = Route { near: &near, far: &far, to: PLAIN, folder };
    let mut failures = Vec::new();
    for part in parts {
        println!("== {part}");
        let outcome = match *part {
            "plain" => all_succeed(route, &clients::plain(ENTRY)),
            "long" => long(route),
            "breaks" => breaks(route),
            "churn" => figures::churn(route),
            _ => figures::memory(route),
        };
        failures.extend(outcome.err().map(|sentence| format!("{part}: {sentence}")));
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Prints the version of each program.
fn versions() {
    for (program, option) in
        [("pgbench", "-V"), ("redis-benchmark", "-v"), ("h2load", "--version"), ("ab", "-V"), ("nginx", "-v")]
    {
        let mut command = Command::new(program);
        command.arg(option);
        let mut first = String::new();
        let _ = exec::quiet_lines(command, minutes(1), |line| {
            if first.is_empty() {
                line.clone_into(&mut first);
            }
        });
        println!("{program}: {first}");
    }
}

/// Prints the result of a client.
fn print(report: &Report) {
    let result = report.wrong.as_deref().unwrap_or("ok");
    let Report { line, done, failed, took, .. } = report;
    println!("{line}: {done} done, {failed} failed, {:.1} s: {result}", took.as_secs_f32());
}

/// Runs the clients one after the other; all of their requests have to succeed, and the proxies to give back what they took.
fn all_succeed(route: Route<'_>, clients: &[Client]) -> Result<(), String> {
    let crossing = Crossing::start(route, Middle::Rdma)?;
    let before = crossing.usages();
    let mut failed = 0;
    for client in clients {
        let report = client.run(route.near, LIMIT);
        print(&report);
        failed += usize::from(report.wrong.is_some());
    }
    crossing.settle(&before)?;
    if failed == 0 { Ok(()) } else { Err(format!("{failed} programs failed")) }
}

/// Runs the clients over a cable that delays and loses packets.
fn long(route: Route<'_>) -> Result<(), String> {
    let cable = cable::Cable::plug(route.near, route.far)?;
    let outcome = all_succeed(Route { to: cable::FAR, ..route }, &clients::long(ENTRY));
    println!("cable: {}", cable.unplug()?);
    outcome
}

/// Breaks connections in the middle of transfers. Every client ends, and new connections work.
fn breaks(route: Route<'_>) -> Result<(), String> {
    type Event = fn(&mut Crossing<'_>, Route<'_>) -> Result<(), String>;
    let events: &[(&str, Event)] = &[
        ("the near end of the cable is down for 3 s", |_, route| down(route.near, "left")),
        ("the far end of the cable is down for 3 s", |_, route| down(route.far, "right")),
        ("the connections between the proxies are reset", |_, route| {
            route.near.run("ss", &format!("-K dst {PLAIN}"))
        }),
        ("the connections of the clients are reset", |_, route| {
            servers::PORTS.iter().try_for_each(|port| route.near.run("ss", &format!("-K dport = :{port}")))
        }),
        ("the connections to the servers are reset", |_, route| {
            servers::PORTS.iter().try_for_each(|port| route.far.run("ss", &format!("-K dport = :{port}")))
        }),
        ("the far proxies stand still for 3 s", |crossing, _| {
            crossing.far.iter().for_each(|proxy| proxy.signal("STOP"));
            thread::sleep(Duration::from_secs(3));
            crossing.far.iter().for_each(|proxy| proxy.signal("CONT"));
            Ok(())
        }),
        ("the near proxies are killed", |crossing, _| {
            crossing.near.iter().for_each(|proxy| proxy.signal("KILL"));
            crossing.start_near()
        }),
        ("the far proxies are killed", |crossing, _| {
            crossing.far.iter().for_each(|proxy| proxy.signal("KILL"));
            crossing.start_far()
        }),
        ("the near proxies end by ctrl-c", |crossing, _| {
            ends_by_interrupt(&mut crossing.near)?;
            crossing.start_near()
        }),
        ("the far proxies end by ctrl-c", |crossing, _| {
            ends_by_interrupt(&mut crossing.far)?;
            crossing.start_far()
        }),
    ];
    let mut wrong = Vec::new();
    for (name, event) in events {
        println!("-- {name}");
        let mut crossing = Crossing::start(route, Middle::Rdma)?;
        let before = crossing.usages();
        let reports = run_all(route.near, &clients::broken(ENTRY), LIMIT, || event(&mut crossing, route))?;
        reports.iter().for_each(print);
        wrong.extend(
            reports.iter().filter(|report| report.hung).map(|hung| format!("{name}: {} hung", hung.line)),
        );
        wrong.extend(crossing.settle(&before).err().map(|sentence| format!("{name}: {sentence}")));
        for probe in clients::probes(ENTRY) {
            let report = probe.run(route.near, LIMIT);
            wrong.extend(report.wrong.map(|sentence| format!("{name}: then {}: {sentence}", report.line)));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Takes an interface down for three seconds.
fn down(host: &Host, interface: &str) -> Result<(), String> {
    host.run("ip", &format!("link set {interface} down"))?;
    thread::sleep(Duration::from_secs(3));
    host.run("ip", &format!("link set {interface} up"))
}

/// Ends proxies as ctrl-c does: within the time that connections have to finish.
fn ends_by_interrupt(proxies: &mut [hosts::Running]) -> Result<(), String> {
    proxies.iter().for_each(|proxy| proxy.signal("INT"));
    let late =
        proxies.iter_mut().filter_map(|proxy| (!proxy.ends(Duration::from_secs(30))).then_some(&proxy.log));
    let late: Vec<_> = late.map(|log| log.display().to_string()).collect();
    if late.is_empty() { Ok(()) } else { Err(format!("did not end by ctrl-c: {}", late.join(", "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed() {
        let all = Options { install: true, parts: PARTS.to_vec() };
        assert_eq!(Options::parse(&[]), Ok(all));
        let some = Options { install: false, parts: vec!["churn", "plain"] };
        assert_eq!(Options::parse(&["--no-install", "--only", "churn,plain"]), Ok(some));
        assert!(Options::parse(&["--only"]).is_err());
        assert!(Options::parse(&["--only", "nothing"]).is_err());
        assert!(Options::parse(&["extra"]).is_err());
    }
}
