//! The sent frames, decoded by the iWARP dissector of Wireshark: all are recognised, without warnings.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use common::raw::{bytes, failure, room, success};
use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{AcceptParams, Access, Adapter, ConnectParams, RemoteRegion, Status, WorkOptions};

/// The pieces of what was said, in the order in which they came by: whether by the active end, and the bytes.
type Record = Vec<(bool, Vec<u8>)>;

/// A TCP proxy between two ends that records both directions.
struct Tap {
    address: SocketAddr,
    record: Arc<Mutex<Record>>,
}

impl Tap {
    /// Passes one connection on to `to`.
    async fn new(to: SocketAddr) -> Self {
        let listener = TcpListener::bind((v4(), 0)).await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let record = Arc::new(Mutex::new(Record::new()));
        let tap = Self { address, record: record.clone() };
        tokio::spawn(async move {
            let (near, _) = listener.accept().await.expect("a connection");
            let far = TcpStream::connect(to).await.expect("connected");
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            tokio::join!(
                pass(near_in, far_out, true, record.clone()),
                pass(far_in, near_out, false, record.clone()),
            );
        });
        tap
    }
}

/// Passes on what comes, to the end of it.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, active: bool, record: Arc<Mutex<Record>>) {
    let mut room = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut room).await {
        record.lock().expect("no panic").push((active, room[..length].to_vec()));
        if to.write_all(&room[..length]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// Returns the opcodes of the frames that one side sent behind its start-up frame.
fn opcodes(record: &Record, active: bool) -> Vec<u8> {
    let stream: Vec<u8> =
        record.iter().filter(|(from, _)| *from == active).flat_map(|(_, bytes)| bytes.clone()).collect();
    let length = |at: usize| usize::from(u16::from_be_bytes([stream[at], stream[at + 1]]));
    let mut at = 20 + length(18);
    let mut opcodes = Vec::new();
    while at < stream.len() {
        opcodes.push(stream[at + 3] & 0x0f);
        at += (2 + length(at)).next_multiple_of(4) + 4;
    }
    assert_eq!(at, stream.len(), "whole frames");
    opcodes
}

/// Encodes a TCP connection over IPv4 as a capture file.
fn capture(record: &Record) -> Vec<u8> {
    const ACTIVE: ([u8; 4], u16) = ([10, 0, 0, 1], 40_000);
    const PASSIVE: ([u8; 4], u16) = ([10, 0, 0, 2], 50_000);
    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;
    // Microseconds, packets of any length, which begin with their IP header.
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 2 | 4 << 16, 0, 0, 0x0004_0000, 101_u32] {
        file.extend(word.to_le_bytes());
    }
    let (mut clock, mut next) = (0_u32, [1000_u32, 2000]);
    let mut packet = |active: bool, flags: u8, content: &[u8]| {
        let (from, to) = if active { (ACTIVE, PASSIVE) } else { (PASSIVE, ACTIVE) };
        let (mine, theirs) = (usize::from(!active), usize::from(active));
        let total = (40 + content.len()) as u16;
        let mut bytes = vec![0x45, 0];
        bytes.extend(total.to_be_bytes());
        bytes.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        bytes.extend(from.0.iter().chain(&to.0));
        bytes.extend(from.1.to_be_bytes().iter().chain(&to.1.to_be_bytes()));
        bytes.extend(next[mine].to_be_bytes());
        bytes.extend(if flags & ACK == 0 { 0 } else { next[theirs] }.to_be_bytes());
        bytes.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        bytes.extend(content);
        next[mine] += content.len() as u32 + u32::from(flags & SYN != 0);
        clock += 1;
        for word in [clock / 1_000_000, clock % 1_000_000, bytes.len() as u32, bytes.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(bytes);
    };
    packet(true, SYN, &[]);
    packet(false, SYN | ACK, &[]);
    packet(true, ACK, &[]);
    for (active, bytes) in record {
        packet(*active, ACK, bytes);
        packet(!active, ACK, &[]);
    }
    file
}

/// Returns the output of tshark for a capture.
pub(super) fn tshark(file: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("tshark");
    // The content of our messages belongs to no protocol.
    command.args(["--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct"]);
    let output = command.arg("-r").arg(file).args(arguments).output().expect("tshark");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// A file that is removed when this is dropped.
pub(super) struct Removed(pub(super) PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns whether the dissector is installed, and prints that the test is skipped if not.
#[allow(clippy::print_stderr, reason = "the test runner looks for this")]
pub(super) fn has_tshark() -> bool {
    match Command::new("tshark").arg("--version").output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: needs tshark");
            false
        }
        other => other.expect("tshark").status.success(),
    }
}

/// Posts every kind of request, in both directions.
async fn talk(adapter: &Adapter, pair: &Pair) {
    let region =
        adapter.register(200_000, Access::REMOTE_READ | Access::REMOTE_WRITE).await.expect("registered");
    for (from, to) in [(&pair.active, &pair.passive), (&pair.passive, &pair.active)] {
        for length in [0, 1, 5, 200_000] {
            let receive = to.queue_pair.receive(room(adapter, length)).expect("posted");
            success(from.queue_pair.send(bytes(adapter, &vec![7; length])).expect("posted")).await;
            assert_eq!(success(receive).await.0, length);
            let remote = region.remote_part(0..length).expect("as long");
            success(from.queue_pair.write(bytes(adapter, &vec![8; length]), &remote).expect("posted")).await;
            success(from.queue_pair.read(room(adapter, length), &remote).expect("posted")).await;
        }
        // The other forms that a message can have.
        let slice = region.slice(0..64).expect("in bounds");
        for solicited in [false, true] {
            let options = if solicited { WorkOptions::default().solicited() } else { WorkOptions::default() };
            let window = adapter.memory_window().expect("a window");
            let bind = to.queue_pair.bind(&window, &slice, Access::REMOTE_READ, WorkOptions::default());
            within(bind.expect("posted")).await.0.expect("bound");
            let key = window.remote().expect("bound").key();
            for options in [options, options.invalidate(key)] {
                let receive = to.queue_pair.receive(room(adapter, 4)).expect("posted");
                success(from.queue_pair.send_with(bytes(adapter, b"text"), options).expect("posted")).await;
                success(receive).await;
            }
            let receive = to.queue_pair.receive(()).expect("posted");
            let value = options.immediate(0x0102_0304);
            let write = from.queue_pair.write_with(bytes(adapter, b"text"), &region.remote(), value);
            success(write.expect("posted")).await;
            within(receive).await.0.expect("received");
        }
    }
}

/// Posts two atomics by each end, with numbers that identify each field.
async fn count(adapter: &Adapter, pair: &Pair) {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let region = adapter.register(8, access).await.expect("registered");
    let (there, options) = (region.remote(), WorkOptions::default());
    for end in [&pair.active, &pair.passive] {
        region.write(0, &100_u64.to_ne_bytes()).expect("as long");
        let (queue_pair, room) = (&end.queue_pair, || room(adapter, 8));
        success(queue_pair.fetch_add(room(), &there, 11, options).expect("posted")).await;
        success(queue_pair.compare_swap(room(), &there, 111, 33, options).expect("posted")).await;
    }
}

/// Connects a pair through a tap.
async fn tapped(adapter: &Adapter) -> (Pair, Tap) {
    let (listener, address) = listening(adapter);
    let tap = Tap::new(address).await;
    let (active, passive) = (queue_pair(adapter), queue_pair(adapter));
    let (connector, connect) = (adapter.connector(), ConnectParams::default().private_data(&b"hello"[..]));
    let (active_end, passive_end) = joined(
        connector.connect_and_complete(&active, tap.address, connect),
        listener.accept_next(&passive, AcceptParams::default().private_data(&b"good day"[..])),
    )
    .await;
    let pair = Pair {
        active: End { queue_pair: active, connection: active_end },
        passive: End { queue_pair: passive, connection: passive_end },
    };
    (pair, tap)
}

/// Asserts that the dissector finds the frames that we know of, and objects to none of them. Returns what it finds in
/// these fields.
fn check(record: &Record, crc: bool, case: &str, others: &[&str]) -> Vec<Vec<String>> {
    let name = format!("tokio-rdma-{}-{}-{crc}.pcap", std::process::id(), case.replace(' ', "-"));
    let file = Removed(std::env::temp_dir().join(name));
    std::fs::write(&file.0, capture(record)).expect("written");

    let fields = ["ip.src", "iwarp_rdma.opcode", "_ws.expert.severity", "_ws.malformed"];
    let arguments = fields.iter().chain(others).flat_map(|field| ["-e", field]);
    let arguments: Vec<_> = ["-T", "fields", "-E", "separator=;"].into_iter().chain(arguments).collect();
    let packets = tshark(&file.0, &arguments);
    let packets: Vec<Vec<_>> = packets.lines().map(|line| line.split(';').collect()).collect();
    let mut frames = 0;
    for active in [true, false] {
        let source = if active { "10.0.0.1" } else { "10.0.0.2" };
        let found: Vec<u8> = packets
            .iter()
            .filter(|packet| packet[0] == source)
            .flat_map(|packet| packet[1].split(',').filter(|text| !text.is_empty()))
            .map(|text| u8::from_str_radix(text.trim_start_matches("0x"), 16).expect("a number"))
            .collect();
        assert_eq!(found, opcodes(record, active), "{case}, CRC {crc}, from the active end: {active}");
        frames += found.len();
    }
    for (number, packet) in packets.iter().enumerate() {
        // Warnings and errors; what TCP says of itself is a note or less.
        let grave = |text: &str| text.parse::<u32>().is_ok_and(|severity| severity >= 0x60_0000);
        let good = !packet[2].split(',').any(grave) && packet[3].is_empty();
        assert!(good, "{case}, CRC {crc}: packet {} of {packets:?}", number + 1);
    }
    let details = tshark(&file.0, &["-V", "-O", "iwarp_mpa"]);
    let checked = if crc { frames } else { 0 };
    assert_eq!(details.matches("Good CRC32").count(), checked, "{case}, CRC {crc}");
    assert_eq!(details.matches("CRC check").count(), checked, "{case}, CRC {crc}");
    let of_field = |at: usize| {
        let values = packets.iter().flat_map(|packet| packet[at].split(','));
        values.filter(|value| !value.is_empty()).map(str::to_owned).collect()
    };
    (fields.len()..fields.len() + others.len()).map(of_field).collect()
}

// The recorded talk has every opcode except those of a Terminate and of atomics (QP-02, QP-03, QP-04).
#[tokio::test]
async fn the_dissector_reads_every_frame() {
    if !has_tshark() {
        return;
    }
    for crc in [false, true] {
        let adapter = adapter_with(SoftConfig::default().crc(crc));
        let (pair, tap) = tapped(&adapter).await;
        talk(&adapter, &pair).await;
        within(pair.active.connection.disconnect()).await.expect("disconnected");
        within(pair.passive.connection.disconnected()).await;
        let record = tap.record.lock().expect("no panic").clone();
        check(&record, crc, "a talk", &[]);
        let every = |active| opcodes(&record, active).into_iter().collect::<BTreeSet<_>>();
        assert_eq!(every(false), BTreeSet::from([0, 1, 2, 3, 4, 5, 6, 8, 9]), "every kind was there");
    }
}

// The dissector shows the operands and the values that were there before (QP-23).
#[tokio::test]
async fn the_dissector_reads_atomics() {
    if !has_tshark() {
        return;
    }
    for crc in [false, true] {
        let adapter = adapter_with(SoftConfig::default().crc(crc));
        let (pair, tap) = tapped(&adapter).await;
        count(&adapter, &pair).await;
        within(pair.active.connection.disconnect()).await.expect("disconnected");
        within(pair.passive.connection.disconnected()).await;
        let record = tap.record.lock().expect("no panic").clone();
        let names = ["opcode", "add_data", "swap_data", "compare_data", "original_remote_data_value"];
        let names = names.map(|name| format!("iwarp_rdma.atomic.{name}"));
        let found = check(&record, crc, "atomics", &names.each_ref().map(String::as_str));
        let numbers = |values: &[String]| -> Vec<u64> {
            let number = |value: &String| match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).expect("a number"),
                None => value.parse().expect("a number"),
            };
            values.iter().map(number).collect()
        };
        let found: Vec<_> = found.iter().map(|values| numbers(values)).collect();
        let expected: [&[u64]; 5] = [&[0, 2], &[11], &[33], &[0, 111], &[100, 111]];
        assert_eq!(found, expected.map(|once| once.repeat(2)), "CRC {crc}");
    }
}

// A write or a read with an invalid key ends with a Terminate, which the dissector reads (QP-21).
#[tokio::test]
async fn the_dissector_reads_a_terminate() {
    if !has_tshark() {
        return;
    }
    for crc in [false, true] {
        let adapter = adapter_with(SoftConfig::default().crc(crc));
        for write in [false, true] {
            let (pair, tap) = tapped(&adapter).await;
            let nowhere = RemoteRegion::new(0, RemoteKey(7), 8);
            if write {
                success(pair.active.queue_pair.write(bytes(&adapter, b"x"), &nowhere).expect("posted")).await;
            } else {
                let read = pair.active.queue_pair.read(room(&adapter, 8), &nowhere).expect("posted");
                assert_eq!(failure(read).await, Status::ACCESS_VIOLATION);
            }
            within(pair.active.connection.disconnected()).await;
            within(pair.passive.connection.disconnected()).await;
            let record = tap.record.lock().expect("no panic").clone();
            assert_eq!(opcodes(&record, false).last(), Some(&7), "it ends with a Terminate");
            check(&record, crc, "a violation", &[]);
        }
    }
}
