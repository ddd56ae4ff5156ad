//! Our stream with programs that use plain sockets, which the preload library of librdmacm converts to rsockets.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio_rdma::{RdmaListener, RdmaStream, StreamConfig};

use super::guest::{Stage, c_program, port, start};
use super::interop::Program;
use super::rsocket::{begin_accepting, call, expect_end, of_one_that_reads_last, scratch};
use super::stream::repeated;

/// The path of the library in Debian.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so.1";

/// Starts a program with the library, which listens on this port if there is one.
fn start_preloaded(command: &str, port: Option<u16>) -> Program {
    assert!(Path::new(LIBRARY).is_file(), "{LIBRARY} is missing");
    start("env", &format!("LD_PRELOAD={LIBRARY} {command}"), port)
}

/// How many bytes go each way: more than both rings.
const LENGTH: usize = 300_000;

/// Text, so that what a program prints is what it has read.
fn text() -> Vec<u8> {
    repeated((0..23 * 256).map(|number| b'a' + (number % 23 + number / 23) as u8 % 26).collect(), LENGTH)
}

/// Byte number i of the program with plain sockets.
fn counting() -> Vec<u8> {
    repeated((0..251 * 256).map(|number| (number % 251 + number / 251) as u8).collect(), LENGTH)
}

/// Sends back what it reads, to the end of file and its own.
async fn echo(stream: RdmaStream) -> usize {
    let (mut from, mut to) = stream.into_split();
    let length = tokio::io::copy(&mut from, &mut to).await.expect("echoed");
    to.shutdown().await.expect("shut down");
    usize::try_from(length).expect("short")
}

/// Sends all while it reads, and returns what came back before the end of file.
async fn send_and_read(stream: RdmaStream) -> Vec<u8> {
    let (mut from, mut to) = stream.into_split();
    let sending = async move {
        to.write_all(&counting()).await.expect("written");
        to.shutdown().await.expect("shut down");
        to
    };
    let mut back = Vec::new();
    let (_to, received) = tokio::join!(sending, from.read_to_end(&mut back));
    received.expect("read");
    back
}

/// The program with plain sockets: as the client and as the server, blocking, with poll and with select. It is the server
/// that closes its direction first in one role, and the client in the other.
pub fn plain_sockets(stage: &Stage) {
    let program = c_program("plain_sockets", "");
    let program = program.display();
    for (version, way) in [(0, "block"), (0, "poll"), (1, "select")] {
        let config = StreamConfig::default();
        let server = SocketAddr::new(stage.ours[version], port());
        let serving = begin_accepting(stage, server, config, echo);
        let command = format!("{program} connect {} {} {way} {LENGTH}", server.ip(), server.port());
        let client = start_preloaded(&command, None).finish();
        assert_eq!(client.stdout, format!("echoed {LENGTH}\n"), "{}: {client}", stage.name);
        assert_eq!(serving.end(), LENGTH);

        let listening = |server: SocketAddr| {
            let command = format!("{program} listen {} {} {way}", server.ip(), server.port());
            start_preloaded(&command, Some(server.port()))
        };
        let config = of_one_that_reads_last(stage, config);
        let (back, serving) = call(stage, version, config, listening, send_and_read);
        assert!(back == counting(), "{}: {} bytes that differ", stage.name, back.len());
        let serving = serving.finish();
        assert_eq!(serving.stdout, format!("served {LENGTH}\n"), "{}: {serving}", stage.name);
    }
}

/// The program with plain sockets that exits and closes nothing, in both roles: we read what it has sent, and the end of file.
pub fn exit_without_close(stage: &Stage) {
    /// `ROOM` of the program.
    const ROOM: usize = 100_000;
    async fn read_to_end(mut stream: RdmaStream) -> Vec<u8> {
        let mut read = vec![0; ROOM];
        stream.read_exact(&mut read).await.expect("read");
        stream.write_all(b"x").await.expect("written");
        stream.read_to_end(&mut read).await.expect("an end of file");
        read
    }
    let program = c_program("plain_sockets", "");
    let program = program.display();
    let server = SocketAddr::new(stage.ours[0], port());
    let serving = begin_accepting(stage, server, StreamConfig::default(), read_to_end);
    let client = start_preloaded(&format!("{program} connect {} {} exit", server.ip(), server.port()), None);
    client.finish().expect_success();
    assert!(serving.end() == counting()[..ROOM], "{}: other bytes", stage.name);

    let listening = |server: SocketAddr| {
        let command = format!("{program} listen {} {} exit", server.ip(), server.port());
        start_preloaded(&command, Some(server.port()))
    };
    let (read, serving) = call(stage, 0, StreamConfig::default(), listening, read_to_end);
    assert!(read == counting()[..ROOM], "{}: other bytes", stage.name);
    serving.finish().expect_success();
}

/// A program that closes its connections while what it has written is on its way to streams that are reset: its close ends.
pub fn close_of_reset_streams(stage: &Stage) {
    const TIMES: usize = 10;
    let program = c_program("plain_sockets", "");
    let server = SocketAddr::new(stage.ours[0], port());
    let (tell, told) = mpsc::channel();
    let (finish, finished) = oneshot::channel();
    let serving = stage.begin(0, async move |adapter| {
        let config = StreamConfig::default().receive_buffer(16 << 20).receive_depth(8192);
        let listener = RdmaListener::bind_on(&adapter, server, &config).expect("bound");
        tell.send(()).expect("somebody waits");
        for _ in 0..TIMES {
            let (mut stream, _) = listener.accept().await.expect("accepted");
            let mut data = vec![0; 1_000_000];
            stream.read_exact(&mut data).await.expect("read");
            stream.set_zero_linger().expect("set");
        }
        // The runtime has to go on until then: the device answers the peer for as long.
        finished.await.expect("the program has ended");
    });
    // When it fails, its end says why.
    let _ = told.recv();
    let command = format!("{} connect {} {} close {TIMES}", program.display(), server.ip(), server.port());
    let client = start_preloaded(&command, None).finish();
    assert!(client.stdout.ends_with(&format!("closed {TIMES}\n")), "{}: {client}", stage.name);
    finish.send(()).expect("it waits");
    serving.end();
}

/// The traditional netcat, which reads what we send: as the client and as the server.
pub fn netcat(stage: &Stage) {
    async fn send(mut stream: RdmaStream) {
        stream.write_all(&text()).await.expect("written");
        stream.shutdown().await.expect("shut down");
        expect_end(&mut stream).await;
    }
    let is_text = |program: Program| {
        let outcome = program.finish();
        assert!(outcome.stdout.as_bytes() == text(), "{}: {outcome}", stage.name);
    };
    let server = SocketAddr::new(stage.ours[0], port());
    let serving = begin_accepting(stage, server, StreamConfig::default(), send);
    is_text(start_preloaded(&format!("nc.traditional -n {} {}", server.ip(), server.port()), None));
    serving.end();

    let listening = |server: SocketAddr| {
        let command = format!("nc.traditional -n -l -s {} -p {}", server.ip(), server.port());
        start_preloaded(&command, Some(server.port()))
    };
    let ((), program) = call(stage, 0, StreamConfig::default(), listening, send);
    is_text(program);
}

/// curl and wget, of the example `http`, which goes on serving.
pub fn http(stage: &Stage) {
    let (here, there) = (scratch("http-here"), scratch("http-there"));
    std::fs::write(&here, counting()).expect("room");
    for version in [0, 1] {
        let server = SocketAddr::new(stage.ours[version], port());
        let mut serving = stage.start("http", &format!("--listen {server}"), Some(server.port()));
        let mut run = |command: &str, path: &str, expected: &[u8]| {
            // Bytes that an earlier one has written are not taken for those of this one.
            std::fs::write(&there, []).expect("room");
            let command = format!("{command} {} http://{server}/{path}", there.display());
            let outcome = start_preloaded(&command, None).finish();
            assert!(outcome.status.success(), "{}: {outcome}\n{}", stage.name, serving.said());
            let received = std::fs::read(&there).expect("a file");
            assert!(received == expected, "{}: {command}: {} bytes", stage.name, received.len());
            assert!(serving.is_running(), "{}: {}", stage.name, serving.said());
        };
        run("curl -gsS -m 100 -o", "hello/curl", b"Hello, curl!");
        // The server sends while it still reads.
        let post = format!("curl -gsS -m 100 -H Expect: --data-binary @{} -o", here.display());
        run(&post, "echo", &counting());
        run("wget -nv -O", "hello/wget", b"Hello, wget!");
        run(&format!("wget -nv --post-file={} -O", here.display()), "echo", &counting());
    }
}
