//! The contenders: for each a pair of processes that stays for all batches, or one for each batch.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use crate::children::{Core, Running, on_cores, output, until_listening};
use crate::order::{Order, Posting, WINDOW};

/// The port on which UCX's programs talk to each other.
const UCX_PORT: u16 = 18_700;
/// The C program, made from `c/fi.c` if libfabric's headers are there, beside this one.
const FABRIC: &str = "suite-fi";

/// How a contender runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Make {
    /// This program, with these words behind `end`.
    Own(&'static [&'static str]),
    /// This program with both ends in one process, which has the cores of both, with these words behind `both`.
    Both(&'static [&'static str]),
    /// The C program for libfabric; with `true` it polls.
    Fabric(bool),
    /// `ucx_perftest`; with `true` it polls.
    Ucx(bool),
}

impl Make {
    /// Whether it is installed. What is missing is said once, at the start.
    pub(crate) fn is_present(self) -> bool {
        match self {
            Self::Own(words) => words.first() != Some(&"quinn") || cfg!(feature = "quinn"),
            Self::Both(_) => true,
            Self::Fabric(_) => beside(FABRIC).is_ok_and(|path| path.is_file()),
            Self::Ucx(_) => on_path("ucx_perftest"),
        }
    }

    /// The command of one end, as a person would type it.
    pub(crate) fn text(self, order: Order) -> String {
        match self {
            Self::Own(words) => format!("suite end {}: {order}", words.join(" ")),
            Self::Both(words) => format!("suite both {}: {order}", words.join(" ")),
            Self::Fabric(spin) => {
                format!("{FABRIC} client{}: {order}", if spin { " spin" } else { "" })
            }
            Self::Ucx(spin) => match ucx_test(order) {
                Some(test) => format!("UCX_TLS=tcp ucx_perftest {}", ucx_words(&test, spin).join(" ")),
                None => "ucx_perftest".to_owned(),
            },
        }
    }
}

/// Whether a program can be run by its name.
pub(crate) fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A file in the folder of this program.
fn beside(name: &str) -> io::Result<PathBuf> {
    Ok(env::current_exe()?.with_file_name(name))
}

/// A contender that has been started.
pub(crate) enum Started {
    /// Two processes that wait for orders.
    Pair { active: Running, passive: Running },
    /// One process that waits for orders.
    Both(Running),
    /// Two processes for each order.
    Ucx { spin: bool, cores: [Core; 2] },
}

impl Started {
    /// Starts one; `cores` are those of the active and the passive end. `wrap` goes before each command line, such as
    /// `strace`, and is told which end it is.
    pub(crate) fn start(
        make: Make,
        cores: [Core; 2],
        wrap: impl Fn(bool) -> Vec<OsString>,
    ) -> io::Result<Self> {
        let (program, words): (PathBuf, Vec<&str>) = match make {
            Make::Own(words) => (env::current_exe()?, [&["end"], words].concat()),
            Make::Fabric(_) => (beside(FABRIC)?, Vec::new()),
            Make::Both(words) => {
                let own = [env::current_exe()?.into(), "both".into()];
                let words: Vec<_> =
                    wrap(true).into_iter().chain(own).chain(words.iter().map(OsString::from)).collect();
                let cores: Vec<_> = cores.into_iter().flatten().collect();
                return Ok(Self::Both(Running::start(&on_cores(&words, &cores), None)?));
            }
            Make::Ucx(spin) => return Ok(Self::Ucx { spin, cores }),
        };
        let line = |active: bool, more: &[&str]| -> Vec<OsString> {
            let own = words.iter().chain(more).map(OsString::from);
            wrap(active).into_iter().chain([program.clone().into_os_string()]).chain(own).collect()
        };
        let spin = if matches!(make, Make::Fabric(true)) { &["spin"][..] } else { &[] };
        let role = |name| if matches!(make, Make::Fabric(_)) { vec![name] } else { Vec::new() };
        let mut passive = Running::start(&line(false, &[&role("server")[..], spin].concat()), cores[1])?;
        let address = passive.line()?;
        let port = address.rsplit(':').next().unwrap_or_default();
        let peer = match make {
            Make::Fabric(_) => vec!["client", port],
            _ => vec!["--peer", address.as_str()],
        };
        let active = Running::start(&line(true, &[&peer[..], spin].concat()), cores[0])?;
        Ok(Self::Pair { active, passive })
    }

    /// Does it, and says how many nanoseconds it took.
    pub(crate) fn run(&mut self, order: Order) -> io::Result<f64> {
        match self {
            Self::Pair { active, passive } => {
                passive.tell(&order.to_string())?;
                active.tell(&order.to_string())?;
                let took = active.number()?;
                passive.number()?;
                Ok(took)
            }
            Self::Both(both) => {
                both.tell(&order.to_string())?;
                both.number()
            }
            Self::Ucx { spin, cores } => ucx(order, *spin, *cores),
        }
    }

    /// The processor time of the active and the passive end so far, in nanoseconds. That of the active one is that of both if
    /// they are one process; `None` if each order has processes of its own.
    pub(crate) fn processor_time(&self) -> io::Result<[Option<f64>; 2]> {
        match self {
            Self::Pair { active, passive } => {
                Ok([Some(active.processor_time()?), Some(passive.processor_time()?)])
            }
            Self::Both(both) => Ok([Some(both.processor_time()?), None]),
            Self::Ucx { .. } => Ok([None, None]),
        }
    }

    /// Ends both processes in order, so that what watches them can say what it saw.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            Self::Pair { active, passive } => active.finish().and_then(|()| passive.finish()),
            Self::Both(both) => both.finish(),
            Self::Ucx { .. } => Ok(()),
        }
    }
}

/// A test of `ucx_perftest` and its numbers.
struct UcxTest {
    name: &'static str,
    size: usize,
    count: usize,
    window: usize,
}

/// The test that comes nearest to an order.
fn ucx_test(order: Order) -> Option<UcxTest> {
    let (name, size, count, window) = match order {
        Order::Ping { size, count } => ("tag_lat", size, count, 1),
        Order::Write { size, count, how: Posting::Single } => ("ucp_put_bw", size, count, 1),
        Order::Write { size, count, .. } => ("ucp_put_bw", size, count, WINDOW),
        Order::Read { size, count } => ("ucp_get", size, count, WINDOW),
        _ => return None,
    };
    Some(UcxTest { name, size, count, window })
}

/// The flags of the program.
fn ucx_words(test: &UcxTest, spin: bool) -> Vec<String> {
    let UcxTest { name, size, count, window } = test;
    let mode = if spin { "poll" } else { "sleep" };
    let text = format!("-t {name} -s {size} -n {count} -w 10 -O {window} -E {mode} -f -v");
    text.split(' ').map(str::to_owned).collect()
}

/// One run of the program.
fn ucx(order: Order, spin: bool, [active, passive]: [Core; 2]) -> io::Result<f64> {
    let test = ucx_test(order).ok_or(io::ErrorKind::Unsupported)?;
    let start = ["env", "UCX_TLS=tcp", "UCX_NET_DEVICES=lo", "UCX_WARN_UNUSED_ENV_VARS=n", "ucx_perftest"];
    let port = ["-p".to_owned(), UCX_PORT.to_string()];
    let line = |more: &[String]| -> Vec<OsString> {
        start.iter().map(OsString::from).chain(port.iter().chain(more).map(OsString::from)).collect()
    };
    // Both have to wait in the same way.
    let mode = ["-E".to_owned(), if spin { "poll" } else { "sleep" }.to_owned()];
    let server = Running::start(&line(&mode), passive)?;
    until_listening(UCX_PORT)?;
    let client = [vec!["127.0.0.1".to_owned()], ucx_words(&test, spin)].concat();
    let said = output(&line(&client), active)?;
    drop(server);
    // A header, then a line of numbers.
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    let columns: Option<Vec<f64>> =
        last.map(|line| line.split(',').filter_map(|word| word.trim().parse().ok()).collect());
    // iterations, median latency, average latency, overall latency, average bandwidth in MB/s, overall, rates.
    match columns.as_deref() {
        // The latency that it prints is one way.
        Some([_, half, ..]) if matches!(order, Order::Ping { .. }) => Ok(half * 2.0 * 1e3),
        Some([_, _, _, _, _, megabytes, ..]) if *megabytes > 0.0 => {
            Ok(order.bytes() as f64 / (megabytes * f64::from(1 << 20)) * 1e9)
        }
        _ => Err(io::Error::other(format!("ucx_perftest said: {said}"))),
    }
}
