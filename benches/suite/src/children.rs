//! The processes of the contenders: each on its core, told what to do line by line.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use nix::time::ClockId;
use nix::unistd::Pid;

/// How long one answer may take, on a machine that is busy.
const LONGEST: Duration = Duration::from_secs(120);
/// How often a port is looked at that a program of others is about to listen on.
const PAUSE: Duration = Duration::from_millis(5);

/// Keeps glibc from copying with `rep movsb`. On some processors of AMD its speed depends on the low bits of both addresses, by a
/// factor of two: where `malloc` happens to put the buffers of a contender would decide a line.
const EVEN_COPIES: &str = "glibc.cpu.x86_rep_movsb_threshold=1073741824";
/// Keeps glibc from returning the buffers of each call to the kernel. Whether it does depends on what happens to be behind them in the heap,
/// from connection to connection, and costs a call of 1 MiB as much again in page faults.
const KEPT_MEMORY: &str = "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=1073741824";

/// The core that a process runs on, if it is told.
pub(crate) type Core = Option<usize>;

/// A process that obeys orders; killed when this is dropped.
pub(crate) struct Running {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<String>,
}

/// A command line on these cores, or on whatever cores if there are none.
pub(crate) fn on_cores(words: &[OsString], cores: &[usize]) -> Vec<OsString> {
    let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let pin = (!cores.is_empty()).then(|| ["taskset".into(), "-c".into(), list.into()]);
    pin.into_iter().flatten().chain(words.iter().cloned()).collect()
}

/// A command line as a command.
fn command(words: &[OsString]) -> io::Result<Command> {
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).env("GLIBC_TUNABLES", EVEN_COPIES);
    Ok(command)
}

impl Running {
    /// Starts it.
    pub(crate) fn start(words: &[OsString], core: Core) -> io::Result<Self> {
        let mut command = command(&on_cores(words, core.as_slice()))?;
        command.env("GLIBC_TUNABLES", format!("{EVEN_COPIES}:{KEPT_MEMORY}"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = lines(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        Ok(Self { child, input, output })
    }

    /// The next line that it says.
    pub(crate) fn line(&mut self) -> io::Result<String> {
        let ended = |_| io::Error::other("a process has ended, or is stuck, instead of answering");
        self.output.recv_timeout(LONGEST).map_err(ended)
    }

    /// Tells it something.
    pub(crate) fn tell(&mut self, what: &str) -> io::Result<()> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(input, "{what}")?;
        input.flush()
    }

    /// The number that it answers.
    pub(crate) fn number(&mut self) -> io::Result<f64> {
        self.line()?.trim().parse().map_err(io::Error::other)
    }

    /// The nanoseconds for which its threads have run on a processor so far, in user space and in the kernel.
    pub(crate) fn processor_time(&self) -> io::Result<f64> {
        let id = i32::try_from(self.child.id()).map_err(io::Error::other)?;
        let time = ClockId::pid_cpu_clock_id(Pid::from_raw(id))?.now()?;
        Ok(Duration::from(time).as_nanos() as f64)
    }

    /// Ends its orders, and waits until it is gone.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        drop(self.input.take());
        let patience = Instant::now() + LONGEST;
        while self.child.try_wait()?.is_none() {
            if Instant::now() >= patience {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.input.take());
        // It may have gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of an output, read on a thread so that waiting for one can have a limit.
fn lines(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// All that a program says, which ends by itself; an error when it does not end well.
pub(crate) fn output(words: &[OsString], core: Core) -> io::Result<String> {
    let limit = ["timeout".into(), LONGEST.as_secs().to_string().into()];
    let words: Vec<_> = limit.into_iter().chain(on_cores(words, core.as_slice())).collect();
    let output = command(&words)?.stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(io::Error::other(format!("a program ended with {}", output.status))),
    }
}

/// Waits until somebody listens on this port; for programs that do not say so.
pub(crate) fn until_listening(port: u16) -> io::Result<()> {
    let (place, patience) = (format!(":{port:04X} "), Instant::now() + LONGEST);
    let listens = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().is_some_and(|local| format!("{local} ").ends_with(&place));
        // State 0A is LISTEN.
        local && words.nth(1) == Some("0A")
    };
    while Instant::now() < patience {
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            if std::fs::read_to_string(table).unwrap_or_default().lines().any(listens) {
                return Ok(());
            }
        }
        thread::sleep(PAUSE);
    }
    Err(io::ErrorKind::TimedOut.into())
}
