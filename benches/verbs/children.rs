//! Processes that are told what to do line by line.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a program may take to listen, or to do one batch, on an emulated machine that is busy.
const LONGEST: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// A program, killed when this is dropped.
pub(crate) struct Running {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Running {
    /// Starts it.
    pub(crate) fn start(command: &[OsString]) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut child =
            Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    /// The next line that it says.
    pub(crate) fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err(io::Error::other("a program has ended instead of answering")),
            _ => Ok(line.trim().to_owned()),
        }
    }

    /// Tells it something, and returns the number that it answers.
    pub(crate) fn ask(&mut self, what: usize) -> io::Result<f64> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(input, "{what}")?;
        input.flush()?;
        self.line()?.parse().map_err(io::Error::other)
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

/// All that a program says, which ends by itself.
pub(crate) fn output(command: &[OsString]) -> io::Result<String> {
    let limit = LONGEST.as_secs().to_string();
    let output = Command::new("timeout").arg(limit).args(command).stderr(Stdio::inherit()).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(io::Error::other(format!("{command:?}: {}", output.status))),
    }
}

/// Waits until a program listens on this port of a device; for those that do not say so.
pub(crate) fn until_listening(port: &str) -> io::Result<()> {
    let start = Instant::now();
    while start.elapsed() < LONGEST {
        let ids = output(&["rdma", "resource", "show", "cm_id"].map(OsString::from))?;
        if ids.lines().any(|id| id.contains("state LISTEN") && id.contains(&format!(":{port} "))) {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    Err(io::ErrorKind::TimedOut.into())
}
