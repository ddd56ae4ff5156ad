//! Hosts in network namespaces, the cables between them, and the programs that run on them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::exec::{self, minutes};

/// The longest that a program takes until it listens.
const START: Duration = Duration::from_secs(60);
/// The time between two looks at something.
const TICK: Duration = Duration::from_millis(20);

/// A network namespace, which lives as long as the process in it.
pub(super) struct Host(Child);

impl Host {
    /// Makes a host that has only its loopback interface.
    pub(super) fn new() -> Result<Self, String> {
        let mut command = Command::new("setpriv");
        // The end of this process ends the holder, and so the network; the limit is for the case that this fails.
        command.args(["--pdeathsig", "KILL", "unshare", "--net", "sleep", "3600"]).stdin(Stdio::null());
        let child = command.spawn().map_err(|error| format!("cannot run setpriv: {error}"))?;
        let mut host = Self(child);
        let own = fs::read_link("/proc/self/ns/net").map_err(|error| error.to_string())?;
        let (mut ended, mut entered) = (false, false);
        until(START, || {
            ended = !matches!(host.0.try_wait(), Ok(None));
            entered = fs::read_link(host.namespace()).is_ok_and(|theirs| theirs != own);
            ended || entered
        });
        if ended || !entered {
            return Err("needs CAP_NET_ADMIN: cannot make a network namespace".into());
        }
        host.run("ip", "link set lo up")?;
        // More connections are made in a minute than there are ports by default.
        host.set("ip_local_port_range", "2000 65000")?;
        host.set("tcp_tw_reuse", "1")?;
        Ok(host)
    }

    /// Returns the path of the namespace.
    fn namespace(&self) -> PathBuf {
        Path::new("/proc").join(self.0.id().to_string()).join("ns/net")
    }

    /// Returns a command that runs a program here, with descriptors for some thousand connections.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.namespace().display()));
        command.args(["prlimit", "--nofile=16384:16384", "--"]).arg(program.as_ref());
        command
    }

    /// Runs a short command here.
    pub(super) fn run(&self, program: &str, arguments: &str) -> Result<(), String> {
        let mut command = self.command(program);
        command.args(arguments.split(' '));
        exec::quietly(command, minutes(1))
    }

    /// Sets an option of IPv4.
    fn set(&self, option: &str, value: &str) -> Result<(), String> {
        let mut command = self.command("sh");
        command.args(["-c", "echo \"$2\" > /proc/sys/net/ipv4/\"$1\"", "sh", option, value]);
        exec::quietly(command, minutes(1))
    }

    /// Connects this host and `other` by a cable, whose ends have these names and addresses.
    pub(super) fn plug(&self, other: &Self, [own, its]: [(&str, &str); 2]) -> Result<(), String> {
        self.run("ip", &format!("link add {} type veth peer name {} netns {}", own.0, its.0, other.0.id()))?;
        for (host, (interface, address)) in [(self, own), (other, its)] {
            host.run("ip", &format!("address add {address}/24 dev {interface}"))?;
            host.run("ip", &format!("link set {interface} up"))?;
        }
        Ok(())
    }

    /// Makes one end of a cable whose packets are carried by UDP to `carrier`.
    pub(super) fn plug_carried(&self, name: &str, address: &str, carrier: &str) -> Result<(), String> {
        self.run("ip", &format!("link add {name} type vxlan id 1 remote {carrier} dstport 4789"))?;
        self.run("ip", &format!("address add {address}/24 dev {name}"))?;
        self.run("ip", &format!("link set {name} up"))
    }

    /// Whether a TCP socket listens on this port here.
    fn listens(&self, port: u16) -> bool {
        let table = fs::read_to_string(format!("/proc/{}/net/tcp", self.0.id())).unwrap_or_default();
        let ending = format!(":{port:04X}");
        table.lines().skip(1).any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|local| local.ends_with(&ending)) && words.nth(1) == Some("0A")
        })
    }

    /// Whether a program here is connected to this port.
    pub(super) fn is_connected_to(&self, port: u16) -> bool {
        let table = fs::read_to_string(format!("/proc/{}/net/tcp", self.0.id())).unwrap_or_default();
        let ending = format!(":{port:04X}");
        table.lines().skip(1).any(|line| {
            let mut words = line.split_whitespace().skip(2);
            words.next().is_some_and(|peer| peer.ends_with(&ending)) && words.next() == Some("01")
        })
    }

    /// Starts a program that ends when it is dropped, and waits until it listens on `port`. Its output goes to a file.
    pub(super) fn start(&self, mut command: Command, port: u16, log: PathBuf) -> Result<Running, String> {
        let wrong = |error: std::io::Error| format!("cannot start {}: {error}", exec::shown(&command));
        let output = File::create(&log).and_then(|file| Ok((file.try_clone()?, file))).map_err(wrong)?;
        command.stdin(Stdio::null()).stdout(output.0).stderr(output.1);
        let child =
            command.spawn().map_err(|error| format!("cannot run {}: {error}", exec::shown(&command)))?;
        let mut running = Running { child, log };
        let mut ended = false;
        let up = until(START, || {
            ended = !matches!(running.child.try_wait(), Ok(None));
            ended || self.listens(port)
        });
        if ended || !up {
            let said = fs::read_to_string(&running.log).unwrap_or_default();
            return Err(format!("{} does not listen on port {port}:\n{said}", exec::shown(&command)));
        }
        Ok(running)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until `condition` holds; whether it did in time.
pub(super) fn until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !condition() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(TICK);
    }
    true
}

/// A program in the background.
pub(super) struct Running {
    /// The process.
    child: Child,
    /// The file with its output.
    pub(super) log: PathBuf,
}

impl Running {
    /// Sends a signal, by its name.
    pub(super) fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        kill.args(["-s", name, &self.child.id().to_string()]);
        let _ = exec::quietly(kill, minutes(1));
    }

    /// Whether the program ends within this time.
    pub(super) fn ends(&mut self, limit: Duration) -> bool {
        until(limit, || !matches!(self.child.try_wait(), Ok(None)))
    }

    /// Returns a file of the program in /proc.
    fn proc(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap_or_default()
    }

    /// Returns the resources that the program has at the moment.
    pub(super) fn usage(&self) -> Usage {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.child.id())).map_or(0, Iterator::count);
        let status = self.proc("status");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0);
        let stat = self.proc("stat");
        // The fields after the name, which can have spaces: user and system time are the 14th and 15th of all.
        let times = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').skip(11).take(2);
        Usage { descriptors, kib, ticks: times.filter_map(|time| time.parse::<u64>().ok()).sum() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // PostgreSQL takes it for a fast shutdown, and removes its shared memory.
        self.signal("INT");
        if !self.ends(Duration::from_secs(15)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The resources of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// The number of open descriptors.
    pub(super) descriptors: usize,
    /// The resident memory.
    pub(super) kib: u64,
    /// The time on a processor, in hundredths of a second.
    pub(super) ticks: u64,
}
