//! The client programs, and what each says of its requests.

use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::hosts::Host;
use super::servers::{HTTP, HTTP2, POSTGRES, REDIS};
use crate::exec;

/// The time before the limit of a run at which its connections are looked at.
const WATCH: Duration = Duration::from_secs(2);

/// A command line of a client program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Client {
    /// The words, the program first.
    words: Vec<String>,
    /// The requests or transactions that it must report, or at least one if it runs for a time.
    expected: u64,
    /// The port of the server.
    port: u16,
}

/// The result of a run.
pub(super) struct Report {
    /// The command line.
    pub(super) line: String,
    /// The requests or transactions that the program counted.
    pub(super) done: u64,
    /// Those of them that it counted as failed.
    pub(super) failed: u64,
    /// What keeps the run from being a success.
    pub(super) wrong: Option<String>,
    /// Whether the program did not end although it still had a connection, and was killed.
    pub(super) hung: bool,
    /// How long it ran.
    pub(super) took: Duration,
    /// A figure that the program prints, such as requests per second.
    pub(super) rate: f64,
}

impl Client {
    /// Makes a client from its command line.
    fn new(line: &str, expected: u64, port: u16) -> Self {
        Self { words: line.split(' ').map(str::to_owned).collect(), expected, port }
    }

    /// Runs the program on this host.
    pub(super) fn run(&self, host: &Host, limit: Duration) -> Report {
        let mut command: Command = host.command(&self.words[0]);
        command.args(&self.words[1..]);
        let mut output = String::new();
        let begun = Instant::now();
        let (ended, connected) = thread::scope(|scope| {
            let (running, end) = mpsc::channel::<()>();
            let watch = scope.spawn(move || {
                let ended = end.recv_timeout(limit - WATCH) != Err(RecvTimeoutError::Timeout);
                !ended && host.is_connected_to(self.port)
            });
            let ended = exec::quiet_lines(command, limit, |line| {
                output += line;
                output.push('\n');
            });
            drop(running);
            (ended, watch.join().unwrap_or(true))
        });
        let took = begun.elapsed();
        let hung = took >= limit && connected;
        let mut said = Said::read(&self.words[0], &output);
        said.done *= self.requests_per_count();
        let wrong = match ended {
            Err(sentence) => Some(format!("{sentence}; {}", last_lines(&output))),
            Ok(()) if said.failed > 0 => Some(format!("{} failed", said.failed)),
            Ok(()) if said.done < self.expected => Some(format!("{} of {}", said.done, self.expected)),
            Ok(()) => None,
        };
        let Said { done, failed, rate } = said;
        Report { line: self.words.join(" "), done, failed, wrong, hung, took, rate }
    }
}

impl Client {
    /// Returns the number of requests that each count of the program stands for: redis-benchmark reports tests.
    fn requests_per_count(&self) -> u64 {
        let mut words = self.words.iter().skip_while(|word| *word != "-n").skip(1);
        let requests = words.next().and_then(|word| word.parse().ok());
        if self.words[0] == "redis-benchmark" { requests.unwrap_or(1) } else { 1 }
    }
}

/// Runs the clients at the same time, and `event` a while after they began.
pub(super) fn run_all(
    host: &Host,
    clients: &[Client],
    limit: Duration,
    event: impl FnOnce() -> Result<(), String>,
) -> Result<Vec<Report>, String> {
    thread::scope(|scope| {
        let running: Vec<_> =
            clients.iter().map(|client| scope.spawn(move || client.run(host, limit))).collect();
        // All of them transfer then.
        thread::sleep(Duration::from_secs(3));
        event()?;
        running.into_iter().map(|run| run.join().map_err(|_| "a thread panicked".to_owned())).collect()
    })
}

/// Returns the end of an output on one line.
fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" / ").chars().take(300).collect()
}

/// The counts that a program prints.
#[derive(Debug, Default, PartialEq)]
struct Said {
    /// What was done.
    done: u64,
    /// What was done and failed.
    failed: u64,
    /// What was done each second.
    rate: f64,
}

impl Said {
    /// Reads the output of a program.
    fn read(program: &str, output: &str) -> Self {
        match program {
            "pgbench" => Self {
                done: number(output, "number of transactions actually processed: ") as u64,
                failed: number(output, "number of failed transactions: ") as u64,
                rate: number(output, "tps = "),
            },
            "ab" => Self {
                done: number(output, "Complete requests: ") as u64,
                failed: (number(output, "Failed requests: ") + number(output, "Non-2xx responses: ")) as u64,
                rate: number(output, "Requests per second: "),
            },
            "h2load" => Self::of_h2load(output),
            // It ends with an error as soon as a request fails, and counts tests, not requests.
            _ => Self { done: output.matches("\n\"").count() as u64, failed: 0, rate: 0.0 },
        }
    }

    /// Reads the line `requests: 100 total, 100 started, 100 done, 100 succeeded, 0 failed, 0 errored, 0 timeout`.
    fn of_h2load(output: &str) -> Self {
        let line = output.lines().find_map(|line| line.strip_prefix("requests: ")).unwrap_or_default();
        let count = |what: &str| {
            let part = line.split(", ").find_map(|part| part.strip_suffix(what));
            part.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        let failed = count("failed") + count("errored") + count("timeout");
        let rate = output.lines().find(|line| line.starts_with("finished in"));
        let rate = rate.and_then(|line| line.split(", ").nth(1)?.strip_suffix(" req/s")?.parse().ok());
        Self { done: count("succeeded"), failed, rate: rate.unwrap_or(0.0) }
    }
}

/// Returns the number behind `label`, or 0.
fn number(output: &str, label: &str) -> f64 {
    let rest = output.split_once(label).map_or("", |(_, rest)| rest).trim_start();
    let end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(rest.len());
    rest[..end].parse().unwrap_or(0.0)
}

/// Returns the clients over a cable that is neither long nor bad.
pub(super) fn plain(at: &str) -> Vec<Client> {
    vec![
        pgbench(at, "-c 10 -t 500", 5_000),
        // A connection for each transaction.
        pgbench(at, "-c 10 -C -S -t 50", 500),
        redis(at, "-n 50000 -c 50 -t ping,set,get,lrange_100", 300_000),
        redis(at, "-n 50000 -c 20 -P 16 -d 4096 -t set,get", 100_000),
        h2load(at, "-n 50000 -c 50 -m 10", "", 50_000),
        h2load(at, "-n 1000 -c 20 -m 4", "large", 1_000),
        ab(at, "-k -c 64 -n 50000", "", 50_000),
        ab(at, "-c 16 -n 1000", "large", 1_000),
    ]
}

/// Returns the clients over a cable that delays and loses packets.
pub(super) fn long(at: &str) -> Vec<Client> {
    vec![
        pgbench(at, "-c 20 -t 40", 800),
        pgbench(at, "-c 10 -C -S -t 10", 100),
        redis(at, "-n 5000 -c 50 -t ping,set,get,lrange_100", 30_000),
        redis(at, "-n 5000 -c 20 -P 16 -d 4096 -t set,get", 10_000),
        h2load(at, "-n 10000 -c 50 -m 10", "", 10_000),
        h2load(at, "-n 60 -c 10 -m 2", "large", 60),
        ab(at, "-k -c 64 -n 10000", "", 10_000),
        ab(at, "-c 16 -n 60", "large", 60),
        ab(at, "-c 64 -n 4000", "", 4_000),
    ]
}

/// Returns the clients that run while connections are broken.
pub(super) fn broken(at: &str) -> Vec<Client> {
    vec![
        pgbench(at, "-c 10 -T 8", 1),
        redis(at, "-n 100000 -c 50 -t set,get", 200_000),
        h2load(at, "-D 8 -c 50 -m 10", "", 1),
        h2load(at, "-n 2000 -c 20 -m 4", "large", 2_000),
        // With -r it goes on after an error.
        ab(at, "-r -c 64 -n 10000", "", 10_000),
        ab(at, "-k -r -c 64 -n 50000", "", 50_000),
    ]
}

/// Returns short runs, to see that new connections work.
pub(super) fn probes(at: &str) -> Vec<Client> {
    vec![
        pgbench(at, "-c 2 -t 5", 10),
        redis(at, "-n 100 -t get", 100),
        h2load(at, "-n 100 -c 4", "", 100),
        ab(at, "-c 8 -n 200", "", 200),
        ab(at, "-c 2 -n 4", "large", 4),
    ]
}

/// Returns `ab` with a connection for each request.
pub(super) fn churn(at: &str, requests: u64) -> Client {
    ab(at, &format!("-c 64 -n {requests}"), "", requests)
}

/// Returns a run of pgbench.
fn pgbench(at: &str, options: &str, expected: u64) -> Client {
    Client::new(
        &format!("pgbench -n -h {at} -p {POSTGRES} -U postgres {options} postgres"),
        expected,
        POSTGRES,
    )
}

/// Returns a run of redis-benchmark.
fn redis(at: &str, options: &str, expected: u64) -> Client {
    Client::new(&format!("redis-benchmark --csv -h {at} -p {REDIS} {options}"), expected, REDIS)
}

/// Returns a run of h2load.
fn h2load(at: &str, options: &str, page: &str, expected: u64) -> Client {
    Client::new(&format!("h2load {options} http://{at}:{HTTP2}/{page}"), expected, HTTP2)
}

/// Returns a run of `ab`.
fn ab(at: &str, options: &str, page: &str, expected: u64) -> Client {
    // -s: the seconds after which a request has failed.
    Client::new(&format!("ab -q -s 60 {options} http://{at}:{HTTP}/{page}"), expected, HTTP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_each_program_are_read() {
        let pgbench = "number of transactions actually processed: 500/500\nnumber of failed transactions: 2 (0.4%)\ntps = 12.5 (x)";
        assert_eq!(Said::read("pgbench", pgbench), Said { done: 500, failed: 2, rate: 12.5 });
        let ab = "Complete requests:      200\nFailed requests:        3\nRequests per second:    17.25 [#/sec]\nNon-2xx responses:      1\n";
        assert_eq!(Said::read("ab", ab), Said { done: 200, failed: 4, rate: 17.25 });
        let h2load = "finished in 1.31s, 45.20 req/s, 7.88MB/s\nrequests: 9 total, 9 started, 9 done, 6 succeeded, 1 failed, 2 errored, 0 timeout\n";
        assert_eq!(Said::read("h2load", h2load), Said { done: 6, failed: 3, rate: 45.2 });
        let redis = "\"test\",\"rps\"\n\"SET\",\"1\"\n\"GET\",\"2\"\n";
        assert_eq!(Said::read("redis-benchmark", redis).done, 2);
    }

    #[test]
    fn tests_of_redis_count_as_requests() {
        assert_eq!(redis("127.0.0.1", "-n 100 -t get", 100).requests_per_count(), 100);
        assert_eq!(churn("127.0.0.1", 100).requests_per_count(), 1);
    }

    #[test]
    fn output_without_counts_has_none() {
        for program in ["pgbench", "ab", "h2load", "redis-benchmark"] {
            assert_eq!(Said::read(program, "connection refused"), Said::default(), "{program}");
        }
    }
}
