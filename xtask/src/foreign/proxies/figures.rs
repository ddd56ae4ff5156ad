//! The costs of a proxy over RDMA, beside those of the same proxy over TCP.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::crossing::{Crossing, Middle, Route};
use super::{ENTRY, LIMIT, clients, print, servers};

/// The connections whose memory is measured.
const HELD: usize = 2_000;
/// The bytes that each of them carries in each direction.
const EACH: usize = 1 << 20;
/// The longest that one answer takes.
const ANSWER: Duration = Duration::from_secs(120);
/// The rounds of connections, in which both proxies take turns.
const ROUNDS: usize = 5;

/// Compares connections per second, and the processor time of the proxies for one.
pub(super) fn churn(route: Route<'_>) -> Result<(), String> {
    const REQUESTS: u64 = 20_000;
    let mut ratios = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let mut figures = Vec::new();
        for middle in [Middle::Rdma, Middle::Tcp] {
            let crossing = Crossing::start(route, middle)?;
            // The first connections open adapters and fill caches.
            let warm = clients::churn(ENTRY, 200).run(route.near, LIMIT);
            let before = crossing.usages();
            let ticks = |crossing: &Crossing<'_>| crossing.pair(servers::HTTP).map(|usage| usage.ticks);
            let begun = ticks(&crossing);
            let report = clients::churn(ENTRY, REQUESTS).run(route.near, LIMIT);
            let ended = ticks(&crossing);
            print(&report);
            if let Some(sentence) = warm.wrong.or(report.wrong) {
                return Err(format!("{middle:?}: {sentence}"));
            }
            crossing.settle(&before)?;
            let spent: u64 = ended.iter().zip(begun).map(|(ended, begun)| ended - begun).sum();
            let each = spent as f64 * 10_000.0 / REQUESTS as f64;
            println!(
                "round {round}, {middle:?}: {:.0}/s, {each:.0} us of both proxies for each",
                report.rate
            );
            figures.push((report.rate, each));
        }
        ratios.0.push(figures[0].0 / figures[1].0);
        ratios.1.push(figures[0].1 / figures[1].1);
    }
    let (rate, time) = (median(ratios.0), median(ratios.1));
    println!("RDMA to TCP, the median of {ROUNDS} rounds: rate {rate:.2}, processor time {time:.2}");
    Ok(())
}

/// Returns the one in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Compares the memory of proxies that have many connections open, each of which has carried 1 MiB in each direction.
pub(super) fn memory(route: Route<'_>) -> Result<(), String> {
    let mut figures = Vec::new();
    for middle in [Middle::Rdma, Middle::Tcp] {
        let crossing = Crossing::start(route, middle)?;
        let before = crossing.pair(servers::REDIS).map(|usage| usage.kib);
        let mut holder = Holder::start(route)?;
        let held = crossing.pair(servers::REDIS).map(|usage| usage.kib);
        println!("{middle:?}: near {} kB, far {} kB, after {before:?}", held[0], held[1]);
        figures.push(held);
        holder.end()?;
        let empty = crossing.usages().iter().map(|usage| usage.descriptors).collect::<Vec<_>>();
        println!("descriptors after {HELD} connections: {empty:?}");
    }
    let ratio = |end: usize| figures[0][end] as f64 / figures[1][end] as f64;
    println!("RDMA to TCP, {HELD} connections: near {:.2}, far {:.2}", ratio(0), ratio(1));
    Ok(())
}

/// The process beside the clients that has the connections.
struct Holder(Child);

impl Holder {
    /// Starts the process, and waits until every connection has carried its bytes.
    fn start(route: Route<'_>) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command: Command = route.near.command(program);
        command.args([
            "foreign",
            "proxies",
            "hold",
            &format!("{ENTRY}:{}", servers::REDIS),
            &HELD.to_string(),
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot start the holder: {error}"))?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            let _ = BufReader::new(output).read_line(&mut line);
        }
        let mut holder = Self(child);
        if line.trim() == "held" { Ok(holder) } else { Err(holder.end().err().unwrap_or(line)) }
    }

    /// Closes the connections.
    fn end(&mut self) -> Result<(), String> {
        drop(self.0.stdin.take());
        let status = self.0.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("the holder of connections: {status}")) }
    }
}

/// Opens `count` connections to Redis, stores and fetches a value over each, and holds them until the standard input ends.
pub(super) fn hold(address: &str, count: &str) -> Result<(), String> {
    let count = count.parse().map_err(|error| format!("{count}: {error}"))?;
    let open = |_| {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        Ok(stream)
    };
    let wrong = |error: io::Error| format!("a connection to {address}: {error}");
    let streams = (0..count).map(open).collect::<io::Result<Vec<_>>>().map_err(wrong)?;
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(stream) = streams.get(next.fetch_add(1, Ordering::Relaxed)) {
            exchange(stream)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..16).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
    })
    .map_err(wrong)?;
    println!("held");
    io::stdin().read_to_end(&mut Vec::new()).map(drop).map_err(wrong)
}

/// Stores a value and fetches it again.
fn exchange(mut stream: &TcpStream) -> io::Result<()> {
    let value = vec![b'x'; EACH];
    stream.write_all(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${EACH}\r\n").as_bytes())?;
    stream.write_all(&value)?;
    stream.write_all(b"\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")?;
    let mut answer = vec![0; format!("+OK\r\n${EACH}\r\n\r\n").len() + EACH];
    stream.read_exact(&mut answer)?;
    if answer.starts_with(b"+OK\r\n$") { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_one_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
