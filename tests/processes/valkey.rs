//! The example `valkey`: Valkey's protocol for RDMA, with both ends ours, and with a peer that knows its bytes only.
//! `cargo xtask foreign valkey` runs it with Valkey itself.
//!
//! Runs on: soft, rxe

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use common::device::{self, is_emulated, v4};
use common::programs::{example, example_command, stdout};
use tokio::time::timeout;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{
    Access, Adapter, Buffer, Completion, ConnectParams, Connection, Op, QueuePair, QueuePairConfig, Region,
    RemoteRegion, WorkOptions,
};

/// The length of a control message.
const LENGTH: usize = 32;

/// A server in a process of its own, which ends with the test.
struct Server {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    address: SocketAddr,
}

impl Server {
    /// Starts one whose clients have rings of so many bytes.
    fn start(ring: usize) -> Self {
        let mut command: Command = example_command("valkey");
        command.args(["--ring", &ring.to_string(), "serve", &SocketAddr::new(v4(), 0).to_string()]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a server");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let line = next_line(&mut output);
        let address = line.strip_prefix("server: listens on ").expect("an address").parse();
        Self { child, output, address: address.expect("an address") }
    }

    /// The next line of its output without the address of the client.
    fn says(&mut self) -> String {
        let line = next_line(&mut self.output);
        line.rsplit_once(": ").map(|(_, end)| end.to_owned()).unwrap_or(line)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn next_line(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    line.trim_end().to_owned()
}

/// A client that is written from the page of Valkey's protocol, and shares no code with the example.
struct Peer {
    adapter: Adapter,
    queue_pair: QueuePair,
    /// In the order of their messages.
    receives: VecDeque<Op<Buffer>>,
    _connection: Connection,
    ring: Region,
    /// The ring of the server.
    place: RemoteRegion,
}

impl Peer {
    /// Connects, and reads the first message of the server, which is the place of its ring.
    async fn connect(server: SocketAddr) -> Self {
        let adapter = device::adapter_at(v4());
        let queue_pair = adapter.queue_pair(QueuePairConfig::default()).expect("a queue pair");
        let buffer = || adapter.buffer(LENGTH).expect("memory");
        let receives = (0..16).map(|_| queue_pair.receive(buffer()).expect("posted")).collect();
        let connect = adapter.connector().connect_and_complete(&queue_pair, server, ConnectParams::default());
        let _connection = connect.await.expect("connected");
        let ring = adapter.register(4096, Access::REMOTE_WRITE).await.expect("a ring");
        let place = RemoteRegion::new(0, RemoteKey(0), 0);
        let mut peer = Self { adapter, queue_pair, receives, _connection, ring, place };
        let (_, message) = peer.next().await;
        assert_eq!(message[..16], [[0, 3].as_slice(), &[0; 14]].concat());
        let number = |at: usize| u32::from_be_bytes(message[at..at + 4].try_into().expect("four bytes"));
        let address = u64::from_be_bytes(message[16..24].try_into().expect("eight bytes"));
        peer.place = RemoteRegion::new(address, RemoteKey(number(28)), number(24));
        peer
    }

    /// The next message but for signs of life, with its completion.
    async fn next(&mut self) -> (Completion, Buffer) {
        loop {
            let receive = self.receives.pop_front().expect("enough receives");
            let (completion, message) = timeout(device::patience(), receive).await.expect("in time");
            let completion = completion.expect("a message");
            if completion.immediate.is_some() || message[..2] != [0, 2] {
                return (completion, message);
            }
        }
    }

    /// Sends a message.
    async fn send(&self, message: &[u8]) {
        let send = self.queue_pair.send_inline(&[message], WorkOptions::default()).expect("posted");
        send.await.0.expect("sent");
    }

    /// Sends the place of the ring, of which it says that it has this length.
    async fn offer(&self, length: u32) {
        let ring = self.ring.remote();
        let key = ring.key().0.to_be_bytes();
        let parts = [&[0, 3], &[0; 14][..], &ring.address().to_be_bytes(), &length.to_be_bytes(), &key];
        self.send(&parts.concat()).await;
    }

    /// Writes bytes to this place of the ring of the server, and says that they are so many.
    async fn write(&self, at: u32, bytes: &[u8], told: usize) {
        let place = self.place.part(at..at + bytes.len() as u32).expect("in the ring");
        let source = self.adapter.buffer_from(bytes).expect("memory");
        let options = WorkOptions::default().immediate(told as u32);
        let write = self.queue_pair.write_with(source, &place, options).expect("posted");
        write.await.0.expect("written");
    }
}

// QP-23: the immediate data of a Write says how much has come.
#[test]
fn values_of_all_lengths_come_back() {
    let output = example("valkey", &["--address", &v4().to_string()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = stdout(&output);
    let told: Vec<&str> = printed.lines().filter_map(|line| line.strip_prefix("client: ")).collect();
    let lines = [
        "PING: PONG",
        "SET color blue: OK",
        "GET color: \"blue\"",
        "DEL color shape: (integer) 1",
        "GET color: (nil)",
        "SHUTDOWN: (error) ERR unknown command or wrong arguments: SHUTDOWN",
        "16 values, 7032982 bytes each way, 6 rings filled, 6 by the server",
    ];
    assert_eq!(told, lines);
}

/// Rings that most commands do not fit into, of different lengths, with several clients at a time.
#[test]
fn clients_of_a_server_fill_small_rings() {
    let (ring, clients) = if is_emulated() { (20_001, 2) } else { (2_003, 4) };
    let mut server = Server::start(ring);
    let address = server.address.to_string();
    let client = |_| {
        let mut command = example_command("valkey");
        command.args(["--ring", "3001", "check", &address, "--values", "8"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a client")
    };
    let clients: Vec<_> = (0..clients).map(client).collect();
    for client in clients {
        let output = client.wait_with_output().expect("its output");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let printed = stdout(&output);
        assert!(printed.starts_with("client: 8 values, 3516491 bytes each way, "), "{printed}");
        assert_eq!(server.says(), "the peer disconnected");
    }
}

#[tokio::test]
async fn the_bytes_are_those_of_the_protocol() {
    let server = Server::start(4096);
    let mut peer = Peer::connect(server.address).await;
    assert_eq!(peer.place.len(), 4096);

    // The features of the server: none.
    peer.send(&[0; LENGTH]).await;
    let (completion, message) = peer.next().await;
    assert_eq!((completion.bytes, completion.immediate), (LENGTH, None));
    assert_eq!(message[..], [0; LENGTH]);
    // Those of the client, and a sign of life, have no answer.
    for opcode in [1, 2] {
        let mut message = [0; LENGTH];
        message[1] = opcode;
        peer.send(&message).await;
    }

    // The first part of a command is written without a ring for the reply.
    peer.write(0, b"*1\r\n$4\r\nPI", 10).await;
    peer.offer(4096).await;
    peer.write(10, b"NG\r\n", 4).await;
    assert_eq!(peer.next().await.0.immediate, Some(7));
    let mut bytes = [0; 7];
    peer.ring.read(0, &mut bytes).expect("in the ring");
    assert_eq!(&bytes, b"+PONG\r\n");
}

#[tokio::test]
async fn a_peer_that_breaks_the_protocol_is_disconnected() {
    let mut server = Server::start(64);
    let beyond = Peer::connect(server.address).await;
    beyond.write(0, b"*1\r\n", 65).await;
    assert_eq!(server.says(), "the peer has sent more bytes than the ring has");

    let empty = Peer::connect(server.address).await;
    empty.offer(0).await;
    assert_eq!(server.says(), "the peer has sent a ring that is empty or too long");

    let unknown = Peer::connect(server.address).await;
    unknown.send(&[9; LENGTH]).await;
    assert_eq!(server.says(), "the peer has sent an unknown control message");

    let short = Peer::connect(server.address).await;
    short.send(&[0; LENGTH - 1]).await;
    assert_eq!(server.says(), "the peer has sent a control message of another length");

    let strange = Peer::connect(server.address).await;
    strange.write(0, b"PING\r\n", 6).await;
    assert_eq!(server.says(), "the peer has sent what is not RESP");

    // The server serves on.
    let output = example("valkey", &["call", &server.address.to_string(), "PING"]);
    assert_eq!(stdout(&output), "PONG\n");
}
