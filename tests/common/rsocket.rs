//! Our stream with librdmacm's programs for rsocket, `rstream` and `rcopy`, in both roles.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::error::{ConnectError, Reason, StreamError};
use tokio_rdma::status::porting::CmEvent;
use tokio_rdma::{RdmaListener, RdmaStream, StreamConfig};

use super::guest::{Running, Stage, port, start};
use super::interop::{Program, end_when_said};
use super::stream::repeated;

/// The scratch folder of the machine: what programs write and are to read.
pub fn scratch(name: &str) -> PathBuf {
    PathBuf::from(std::env::var_os("TOKIO_RDMA_SCRATCH").expect("a place for files")).join(name)
}

/// Begins to accept one stream on our host; returns when somebody can connect.
pub fn begin_accepting<R: Send + 'static>(
    stage: &Stage,
    address: SocketAddr,
    config: StreamConfig,
    job: impl AsyncFnOnce(RdmaStream) -> R + Send + 'static,
) -> Running<R> {
    let (tell, told) = mpsc::channel();
    let running = stage.begin(usize::from(address.is_ipv6()), async move |adapter| {
        let listener = RdmaListener::bind_on(&adapter, address, &config).expect("bound");
        tell.send(()).expect("somebody waits");
        let (stream, _) = listener.accept().await.expect("accepted");
        job(stream).await
    });
    // When it fails, its end says why.
    let _ = told.recv();
    running
}

/// The most attempts of [`call`].
const ATTEMPTS: usize = 5;

/// Starts a program that listens, connects to it and does the job. Returns the result, and the program.
///
/// The program sends as soon as it has accepted, and siw drops a connection whose first frame comes together with the
/// reply (docs/interop.md). That is between the two kernels: then, and for no other reason, both ends begin again.
pub fn call<R: Send + 'static>(
    stage: &Stage,
    version: usize,
    config: StreamConfig,
    program: impl Fn(SocketAddr) -> Program,
    job: impl AsyncFnOnce(RdmaStream) -> R + Clone + Send + 'static,
) -> (R, Program) {
    for _ in 0..ATTEMPTS {
        let server = SocketAddr::new(stage.theirs[version], port());
        let program = program(server);
        let job = job.clone();
        let calling = stage.begin(version, async move |adapter| {
            match RdmaStream::connect_on(&adapter, server, &config).await {
                Ok(stream) => Some(job(stream).await),
                Err(error) => {
                    assert!(is_dropped_by_siw(&error), "{error:?}");
                    None
                }
            }
        });
        if let Some(result) = calling.end() {
            return (result, program);
        }
    }
    panic!("{}: {ATTEMPTS} connections were dropped", stage.name);
}

fn is_dropped_by_siw(error: &StreamError) -> bool {
    const EVENT: Reason = Reason::Cm { event: CmEvent::CONNECT_ERROR, status: -libc::EINVAL };
    matches!(error, StreamError::Connect(ConnectError::Other { reason, .. }) if *reason == EVENT)
}

/// Settings for a peer that closes as soon as it has sent its last byte. If a message of ours comes then, siw resets TCP, and what it
/// has not delivered is lost (docs/interop.md). With room for whatever a program here sends there are no credits to give.
pub fn of_one_that_reads_last(stage: &Stage, config: StreamConfig) -> StreamConfig {
    if stage.is_siw() { config.receive_buffer(ROOM_FOR_ALL).receive_depth(4096) } else { config }
}

/// Twice as much as the most that a program sends, because each half of the ring is given separately.
const ROOM_FOR_ALL: usize = 8 << 20;

/// Reads to the end of file, which must be here.
pub async fn expect_end(stream: &mut RdmaStream) {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.expect("the end");
    assert_eq!(rest.len(), 0, "bytes after the last one");
}

/// A run of rstream: bytes one way, then as many the other way, several times. With `-T v` byte number i of either
/// direction is i, modulo 256, and the program looks at each that it receives; so do we.
#[derive(Clone, Copy, Debug)]
pub struct Rstream {
    /// 0 for IPv4, 1 for IPv6.
    version: usize,
    size: usize,
    count: usize,
    iterations: usize,
    /// More arguments of the program, and what our side uses.
    flags: &'static str,
    config: StreamConfig,
}

/// The number of bytes that both ends exchange before they begin.
const GREETING: usize = 16;

/// The text that the program prints when it has seen all bytes, and not if one was another.
const FINISHED: &str = "custom ";

fn rstream_cases() -> Vec<Rstream> {
    let plain = Rstream {
        version: 0,
        size: 1000,
        count: 100,
        iterations: 3,
        flags: "-T b",
        config: StreamConfig::default(),
    };
    let small =
        StreamConfig::default().send_buffer(4096).receive_buffer(4096).receive_depth(16).send_depth(16);
    vec![
        plain,
        Rstream { version: 1, ..plain },
        // It never waits, but tries again and again.
        Rstream { flags: "", ..plain },
        Rstream { flags: "-T b -T a", ..plain },
        Rstream { size: 1, ..plain },
        Rstream { size: 1_000_000, count: 2, iterations: 1, ..plain },
        // Rings of 8 KiB there, without messages inline; and of 4 KiB here.
        Rstream { size: 30_000, count: 10, iterations: 2, flags: "-T b -B 4096 -i 0", ..plain },
        Rstream { size: 30_000, count: 10, iterations: 2, config: small, ..plain },
    ]
}

/// Our end of rstream.
struct Counting {
    stream: RdmaStream,
    size: usize,
    sent: usize,
    received: usize,
}

fn counting(from: usize, length: usize) -> Vec<u8> {
    repeated((from..from + 256).map(|number| (number % 256) as u8).collect(), length)
}

impl Counting {
    async fn send(&mut self, length: usize) {
        for bytes in counting(self.sent, length).chunks(self.size) {
            self.stream.write_all(bytes).await.expect("written");
        }
        self.sent += length;
    }

    async fn receive(&mut self, length: usize) {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).await.expect("read");
        assert!(bytes == counting(self.received, length), "other bytes from {} on", self.received);
        self.received += length;
    }
}

impl Rstream {
    async fn run(self, stream: RdmaStream, is_client: bool) {
        let mut end = Counting { stream, size: self.size, sent: 0, received: 0 };
        let length = self.size * self.count;
        for length in std::iter::once(GREETING).chain(std::iter::repeat_n(length, self.iterations)) {
            if is_client {
                end.send(length).await;
                end.receive(length).await;
            } else {
                end.receive(length).await;
                end.send(length).await;
            }
        }
        // Both ends close both directions when they are through.
        expect_end(&mut end.stream).await;
    }

    fn arguments(&self, server: SocketAddr) -> String {
        let Self { size, count, iterations, flags, .. } = self;
        format!("-p {} -S {size} -C {count} -I {iterations} -T v {flags}", server.port())
    }

    fn original_client(self, stage: &Stage) {
        let server = SocketAddr::new(stage.ours[self.version], port());
        let serving =
            begin_accepting(stage, server, self.config, async move |stream| self.run(stream, false).await);
        let arguments = format!("-s {} {}", server.ip(), self.arguments(server));
        let client = start("rstream", &arguments, None).finish();
        let well = client.status.success() && client.stdout.contains(FINISHED);
        assert!(well, "{}, {self:?}: {client}", stage.name);
        serving.end();
    }

    fn original_server(self, stage: &Stage) {
        let program = |server: SocketAddr| {
            // Without it a program says nothing before its end, and this one need not come to it.
            let arguments = format!("-oL rstream -b {} {}", server.ip(), self.arguments(server));
            start("stdbuf", &arguments, Some(server.port()))
        };
        let run = async move |stream| self.run(stream, true).await;
        let config = of_one_that_reads_last(stage, self.config);
        let ((), program) = call(stage, self.version, config, program, run);
        end_when_said(program, FINISHED);
    }
}

/// rstream, as the client and then as the server.
pub fn rstream(stage: &Stage) {
    run_all(stage, rstream_cases());
}

/// The same, with only the version of the addresses varied.
pub fn rstream_both_versions(stage: &Stage) {
    run_all(stage, rstream_cases().into_iter().take(2));
}

fn run_all(stage: &Stage, cases: impl IntoIterator<Item = Rstream>) {
    for case in cases {
        case.original_client(stage);
        case.original_server(stage);
    }
}

/// The commands in the heads of what rcopy sends. Behind a head comes what belongs to it. Numbers are those of the machine.
mod rcopy_command {
    pub(super) const OPEN: u8 = 1;
    pub(super) const CLOSE: u8 = 2;
    pub(super) const WRITE: u8 = 3;
    pub(super) const RESPONSE: u8 = 0x80;
}

/// A head: a version, a command, the length of the whole message, a mode or a status, and a number that is returned.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    command: u8,
    length: u16,
    data: u32,
    id: u64,
}

impl Head {
    const LEN: usize = 16;

    async fn read(stream: &mut RdmaStream) -> Self {
        let mut bytes = [0; Self::LEN];
        stream.read_exact(&mut bytes).await.expect("a head");
        assert_eq!(bytes[0], 0, "another version");
        Self {
            command: bytes[1],
            length: u16::from_ne_bytes(bytes[2..4].try_into().expect("two")),
            data: u32::from_ne_bytes(bytes[4..8].try_into().expect("four")),
            id: u64::from_ne_bytes(bytes[8..].try_into().expect("eight")),
        }
    }

    fn to_bytes(&self, more: &[u8]) -> Vec<u8> {
        let (length, data, id) = (self.length.to_ne_bytes(), self.data.to_ne_bytes(), self.id.to_ne_bytes());
        [&[0, self.command], &length[..], &data, &id, more].concat()
    }

    /// Asks, and gets a response.
    async fn ask(stream: &mut RdmaStream, command: u8, data: u32, more: &[u8]) {
        let length = u16::try_from(Self::LEN + more.len()).expect("short");
        let head = Self { command, length, data, id: 7 };
        stream.write_all(&head.to_bytes(more)).await.expect("written");
    }

    async fn response(stream: &mut RdmaStream, command: u8, id: u64) {
        let expected = Self { command: command | rcopy_command::RESPONSE, length: 16, data: 0, id };
        assert_eq!(Self::read(stream).await, expected);
    }

    /// Reads what follows the head.
    async fn rest(&self, stream: &mut RdmaStream) -> Vec<u8> {
        let mut bytes = vec![0; usize::from(self.length) - Self::LEN];
        stream.read_exact(&mut bytes).await.expect("the rest of the message");
        bytes
    }

    async fn respond(&self, stream: &mut RdmaStream) {
        let command = self.command | rcopy_command::RESPONSE;
        let head = Self { command, length: 16, data: 0, id: self.id };
        stream.write_all(&head.to_bytes(&[])).await.expect("written");
    }
}

/// A file of which no two stretches are alike.
fn contents(length: usize) -> Vec<u8> {
    repeated((0..251 * 256).map(|number| (number % 251 + number / 251 * 7 % 256) as u8).collect(), length)
}

/// How long the file is: more than both rings.
const FILE: usize = 1_000_000;

/// Takes one file: its name and its bytes.
async fn rcopy_serve(mut stream: RdmaStream) -> (String, Vec<u8>) {
    let stream = &mut stream;
    let head = Head::read(stream).await;
    assert_eq!(head.command, rcopy_command::OPEN);
    let path = head.rest(stream).await;
    head.respond(stream).await;

    let head = Head::read(stream).await;
    assert_eq!(head.command, rcopy_command::WRITE);
    let length = head.rest(stream).await.try_into().map(u64::from_ne_bytes).expect("a length");
    let mut file = vec![0; usize::try_from(length).expect("it has room")];
    stream.read_exact(&mut file).await.expect("the file");
    head.respond(stream).await;

    let head = Head::read(stream).await;
    assert_eq!(head.command, rcopy_command::CLOSE);
    head.respond(stream).await;
    expect_end(stream).await;
    let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
    (String::from_utf8_lossy(path).into_owned(), file)
}

/// Sends one file.
async fn rcopy_call(mut stream: RdmaStream, path: String, file: Vec<u8>) {
    let stream = &mut stream;
    // The name ends with a zero byte, at a multiple of eight.
    let mut name = path.into_bytes();
    name.resize(name.len() / 8 * 8 + 8, 0);
    Head::ask(stream, rcopy_command::OPEN, 0o600, &name).await;
    Head::response(stream, rcopy_command::OPEN, 7).await;
    let length = u64::try_from(file.len()).expect("short").to_ne_bytes();
    Head::ask(stream, rcopy_command::WRITE, 0, &length).await;
    stream.write_all(&file).await.expect("written");
    Head::response(stream, rcopy_command::WRITE, 7).await;
    Head::ask(stream, rcopy_command::CLOSE, 0, &[]).await;
    Head::response(stream, rcopy_command::CLOSE, 7).await;
    stream.shutdown().await.expect("shut down");
}

/// rcopy, as the client and then as the server, which serves for ever, and at every address. It takes no IPv6 address: to
/// it, what is behind a colon is the name of a file.
pub fn rcopy(stage: &Stage) {
    let file = contents(FILE);
    let (source, copy) = (scratch("rcopy-source"), scratch("rcopy-copy"));
    std::fs::write(&source, &file).expect("room");

    let server = SocketAddr::new(stage.ours[0], port());
    let serving = begin_accepting(stage, server, StreamConfig::default(), rcopy_serve);
    let arguments = format!("{} {}:a-file -p {}", source.display(), server.ip(), server.port());
    let client = start("rcopy", &arguments, None).finish();
    assert!(client.status.success(), "{}: {client}", stage.name);
    let (name, taken) = serving.end();
    assert_eq!(name, "a-file");
    assert!(taken == file, "{}: other bytes", stage.name);

    let program = |server: SocketAddr| start("rcopy", &format!("-p {}", server.port()), Some(server.port()));
    let (path, sent) = (copy.display().to_string(), file.clone());
    let job = async move |stream| rcopy_call(stream, path, sent).await;
    let ((), mut program) = call(stage, 0, StreamConfig::default(), program, job);
    assert!(program.is_running(), "{}: {}", stage.name, program.said());
    assert!(std::fs::read(&copy).expect("a copy") == file, "{}: other bytes", stage.name);
}
