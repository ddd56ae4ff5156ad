//! Other programs as peers: starting them, reading their output, and ending them in time.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a program may take, on an emulated machine that is busy.
const LONGEST: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(20);

/// A program that runs beside the test; killed when this is dropped.
pub struct Program {
    name: String,
    child: Child,
    stdout: Output,
    stderr: Output,
}

/// The output of a program, read by a thread.
struct Output {
    said: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

/// The outcome of a program's run.
#[derive(Debug)]
pub struct Outcome {
    pub name: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// The command of an example; `cargo test` builds them beside the tests.
///
/// # Panics
/// When it has not been built.
pub fn example_program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test");
    let program = test.parent().expect("deps").with_file_name("examples").join(name);
    assert!(program.is_file(), "{} is missing: run `cargo build --examples` first", program.display());
    program
}

impl Program {
    /// Starts it, in the network namespace of the calling thread; its arguments are separated by blanks.
    pub fn start(program: impl Into<PathBuf>, arguments: &str) -> Self {
        let program = program.into();
        let mut command = Command::new(&program);
        command.args(arguments.split_whitespace()).env_remove("RUST_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = format!("{} {arguments}", program.file_name().unwrap_or_default().display());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        let stdout = Output::of(child.stdout.take().expect("its output"));
        let stderr = Output::of(child.stderr.take().expect("its complaints"));
        Self { name, child, stdout, stderr }
    }

    /// Everything that it has said so far.
    pub fn said(&self) -> String {
        self.stdout.so_far() + &self.stderr.so_far()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("its status").is_none()
    }

    /// Waits for its end; one that takes too long is killed, which its status then says.
    pub fn finish(mut self) -> Outcome {
        let start = Instant::now();
        while self.is_running() && start.elapsed() < LONGEST {
            thread::sleep(PAUSE);
        }
        self.end()
    }

    /// Kills it, unless it has ended by itself.
    pub fn end(mut self) -> Outcome {
        let _ = self.child.kill();
        let status = self.child.wait().expect("its status");
        let (stdout, stderr) = (self.stdout.whole(), self.stderr.whole());
        Outcome { name: self.name.clone(), status, stdout, stderr }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A test that fails at our end wants to know what the other one said.
        if thread::panicking() {
            eprintln!("{} was still running, and had said:\n{}", self.name, self.said());
        }
    }
}

impl Outcome {
    /// It ended well.
    ///
    /// # Panics
    /// When it did not, with all that it said.
    pub fn expect_success(self) -> Self {
        assert!(self.status.success(), "{self}");
        self
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |text: &str| -> String { text.chars().take(2000).collect() };
        write!(f, "{}: {}\n{}\n{}", self.name, self.status, shown(&self.stdout), shown(&self.stderr))
    }
}

impl Output {
    fn of(mut stream: impl Read + Send + 'static) -> Self {
        let said = Arc::new(Mutex::new(Vec::new()));
        let place = said.clone();
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Keeps all that it said until the stream broke.
            while let Ok(length @ 1..) = stream.read(&mut bytes) {
                place.lock().expect("no panic").extend_from_slice(&bytes[..length]);
            }
        });
        Self { said, reader: Some(reader) }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().expect("no panic")).into_owned()
    }

    /// All of it, once the program has ended.
    fn whole(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("it reads");
        }
        self.so_far()
    }
}

/// Ends a program as soon as it has said this: it need not end by itself.
///
/// # Panics
/// When it ends without it, or does not get there.
pub fn end_when_said(mut program: Program, text: &str) {
    let start = Instant::now();
    while program.is_running() && !program.said().contains(text) && start.elapsed() < LONGEST {
        thread::sleep(PAUSE);
    }
    let outcome = program.end();
    assert!(outcome.stdout.contains(text), "it does not say {text:?}: {outcome}");
}

/// Waits until `server` listens on a port, of TCP or of an RDMA device, in the network namespace of the calling thread.
///
/// # Panics
/// When it ends instead, or does not get there.
pub fn until_listening(server: &mut Program, port: u16) {
    let start = Instant::now();
    while !(is_listening(port) || is_listening_device(port)) {
        assert!(start.elapsed() < LONGEST, "{} does not listen", server.name);
        assert!(server.is_running(), "{} has ended: {}", server.name, server.said());
        thread::sleep(10 * PAUSE);
    }
}

/// Whether anybody listens on this port of TCP, which is also that of siw.
fn is_listening(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    let mut tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"].into_iter();
    tables.any(|table| {
        let sockets = std::fs::read_to_string(table).unwrap_or_default();
        sockets.lines().any(|line| {
            let mut columns = line.split_whitespace().skip(1);
            let (local, state) = (columns.next(), columns.nth(1));
            local.is_some_and(|local| local.ends_with(&wanted)) && state == Some("0A")
        })
    })
}

/// Whether anybody listens on this port of a device. Where there is no such program there are no devices either.
fn is_listening_device(port: u16) -> bool {
    Command::new("rdma").args(["resource", "show", "cm_id"]).output().is_ok_and(|output| {
        let ids = String::from_utf8_lossy(&output.stdout).into_owned();
        ids.lines().any(|id| id.contains("state LISTEN") && id.contains(&format!(":{port} ")))
    })
}
