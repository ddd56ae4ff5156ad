//! Runs external commands: no standard input, a time limit, and nothing left behind.
//!
//! Each command gets a process group of its own, and that group is killed when the command ends, when
//! its time is up, and when this process itself goes away (Ctrl-C): see `Guard`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// How often a running command is looked at.
const TICK: Duration = Duration::from_millis(20);

/// How long to wait for output that is still on its way after the command has ended.
const GRACE: Duration = Duration::from_secs(1);

/// Minutes as a [`Duration`].
pub const fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

/// Runs a command whose output goes straight to ours.
///
/// # Errors
/// A sentence, if it could not be started, took longer than `limit`, or did not end with status 0.
pub fn show(command: Command, limit: Duration) -> Result<(), String> {
    println!("{}", shown(&command));
    let (_, nothing) = mpsc::channel();
    supervise(command, limit, &nothing, |_| {})
}

/// Runs a command and passes on its two outputs to our own, byte by byte; says nothing itself.
///
/// The command has a pipe for each, whatever ours are: a file, a terminal, a socket.
///
/// # Errors
/// As for [`show`].
pub fn pass(mut command: Command, limit: Duration) -> Result<(), String> {
    let (sender, receiver) = mpsc::channel();
    let pipes = io::pipe().and_then(|out| Ok((out, io::pipe()?)));
    let (out, err) = pipes.map_err(|error| format!("cannot make a pipe: {error}"))?;
    command.stdout(out.1).stderr(err.1);
    // The channel carries nothing: it tells, by being closed, that both streams have ended.
    copy(out.0, io::stdout(), sender.clone());
    copy(err.0, io::stderr(), sender);
    supervise(command, limit, &receiver, |_| {})
}

/// Copies what can be read to `to`, on a thread of its own, and lets go of `done` at the end.
///
/// Not joined: a process that left the group may hold the pipe open for as long as it likes.
fn copy(mut from: io::PipeReader, mut to: impl Write + Send + 'static, done: Sender<String>) {
    thread::spawn(move || {
        let mut bytes = [0; 8192];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if to.write_all(&bytes[..count]).and_then(|()| to.flush()).is_err() {
                break;
            }
        }
        drop(done);
    });
}

/// Runs a command and hands each line of its output, standard error included, to `each`.
///
/// # Errors
/// As for [`show`].
pub fn lines(command: Command, limit: Duration, each: impl FnMut(&str)) -> Result<(), String> {
    println!("{}", shown(&command));
    quiet_lines(command, limit, each)
}

/// As [`lines`], without a line that tells which command it is.
///
/// # Errors
/// As for [`show`].
pub fn quiet_lines(mut command: Command, limit: Duration, each: impl FnMut(&str)) -> Result<(), String> {
    let (sender, receiver) = mpsc::channel();
    let reader = io::pipe()
        .and_then(|(reader, writer)| {
            command.stdout(writer.try_clone()?).stderr(writer);
            Ok(reader)
        })
        .map_err(|error| format!("cannot make a pipe: {error}"))?;
    // Not joined: a process that left the group may hold the pipe open for as long as it likes.
    thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
            if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                break;
            }
            line.clear();
        }
    });
    supervise(command, limit, &receiver, each)
}

/// Runs a command whose output is of interest only if it fails.
///
/// # Errors
/// As for [`show`], with the output.
pub fn quietly(command: Command, limit: Duration) -> Result<(), String> {
    let mut output = String::new();
    let each = |line: &str| {
        output += line;
        output.push('\n');
    };
    quiet_lines(command, limit, each).map_err(|error| format!("{error}\n{output}"))
}

/// The command line as a person would type it.
pub fn shown(command: &Command) -> String {
    let mut text = String::from("$");
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            text += &format!(" {}='{}'", name.to_string_lossy(), value.to_string_lossy());
        }
    }
    let program = command.get_program().to_string_lossy();
    text += &format!(" {}", program.rsplit('/').next().unwrap_or(&program));
    for argument in command.get_args() {
        text += &format!(" {}", argument.to_string_lossy());
    }
    text
}

/// Starts the command, passes on its lines, and ends its whole group.
fn supervise(
    mut command: Command,
    limit: Duration,
    output: &Receiver<String>,
    mut each: impl FnMut(&str),
) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let wrong = |error: io::Error| format!("cannot run {name}: {error}");

    let mut child = command.stdin(Stdio::null()).process_group(0).spawn().map_err(wrong)?;
    drop(command); // it still holds our copies of the pipe's writing end
    let guard = match Guard::new(child.id()) {
        Ok(guard) => guard,
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(wrong(error));
        }
    };
    let ended = wait(&mut child, limit, output, &mut each);
    guard.end_group();
    while let Ok(line) = output.recv_timeout(GRACE) {
        each(&line);
    }
    match ended.map_err(wrong)? {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("the command ended with {status}")),
        None => {
            let _ = child.wait();
            Err(format!("the command took longer than {} s and was ended", limit.as_secs_f32()))
        }
    }
}

/// Waits for the command to end; `None` if its time is up first.
fn wait(
    child: &mut Child,
    limit: Duration,
    output: &Receiver<String>,
    each: &mut impl FnMut(&str),
) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        match output.recv_timeout(TICK) {
            Ok(line) => each(&line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => thread::sleep(TICK),
        }
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
    }
}

/// A small shell that kills a process group as soon as we let go of its standard input.
///
/// The kernel lets go of it for us if we are killed, which is why this is a process and not a function.
struct Guard(Child);

impl Guard {
    /// Watches over the group led by the process with this id.
    fn new(group: u32) -> io::Result<Self> {
        Command::new("sh")
            .args(["-c", "read -r _; kill -s KILL -- \"-$1\"", "guard", &group.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map(Self)
    }

    /// Kills what is left of the group; returns when that is done.
    fn end_group(mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A shell script as a command.
    fn script(text: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        command
    }

    /// Whether a process is gone, or is about to be, or only waits to be reaped.
    fn is_gone(pid: &str) -> bool {
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(TICK); // a kill takes effect a moment after it was sent
        }
        true
    }

    #[test]
    fn lines_of_both_outputs_arrive_in_order() {
        let mut seen = Vec::new();
        let result = lines(script("echo one; echo two >&2; printf three"), minutes(1), |line| {
            seen.push(line.to_owned());
        });
        assert_eq!(result, Ok(()));
        assert_eq!(seen, ["one", "two", "three"]);
    }

    #[test]
    fn a_status_other_than_zero_is_an_error() {
        let error = lines(script("exit 3"), minutes(1), |_| {}).expect_err("it failed");
        assert!(error.contains("exit status: 3"), "{error}");
        assert!(lines(Command::new("/no/such/program"), minutes(1), |_| {}).is_err());
    }

    #[test]
    fn standard_input_is_empty() {
        assert!(lines(script("read -r line"), minutes(1), |_| {}).is_err());
    }

    #[test]
    fn timeout_ends_the_whole_process_group() {
        let mut pid = String::new();
        let started = Instant::now();
        let result = lines(script("sleep 60 & echo $!; wait"), Duration::from_millis(300), |line| {
            pid = line.to_owned()
        });
        assert!(result.expect_err("too slow").contains("longer than 0.3 s"));
        assert!(started.elapsed() < Duration::from_secs(30));
        assert!(!pid.is_empty() && is_gone(&pid));
    }

    #[test]
    fn nothing_is_left_behind_after_a_normal_end() {
        let mut pid = String::new();
        let result = lines(script("sleep 60 & echo $!"), minutes(1), |line| pid = line.to_owned());
        assert_eq!(result, Ok(()));
        assert!(!pid.is_empty() && is_gone(&pid));
    }
}
