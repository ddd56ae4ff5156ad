//! Recordings of `SoftConfig::capture` over the sockets of this machine, as Wireshark reads them.

use std::collections::BTreeSet;
use std::time::Duration;

use common::raw::{bytes, room, success};
use common::*;
use tokio::io::AsyncReadExt;
use tokio_rdma::soft::{Capture, SoftConfig};
use tokio_rdma::{AcceptParams, Access, Adapter, ConnectParams, Status};

use crate::tshark::{Removed, has_tshark, tshark};

/// Enough for what is said here.
const MUCH: usize = 64 << 20;

/// The two ends of a connection, each with its adapter and its recording.
struct Captured {
    adapters: [Adapter; 2],
    captures: [Capture; 2],
    pair: Pair,
}

/// A connection between two adapters that record. The settings are those of both.
async fn captured(config: &SoftConfig) -> Captured {
    let captures = [Capture::new(MUCH), Capture::new(MUCH)];
    let adapters = captures.each_ref().map(|capture| adapter_with(config.clone().capture(capture)));
    let (listener, address) = listening(&adapters[1]);
    let (active, passive) = (queue_pair(&adapters[0]), queue_pair(&adapters[1]));
    let (connector, connect) =
        (adapters[0].connector(), ConnectParams::default().private_data(&b"hello"[..]));
    let (active_end, passive_end) = joined(
        connector.connect_and_complete(&active, address, connect),
        listener.accept_next(&passive, AcceptParams::default().private_data(&b"good day"[..])),
    )
    .await;
    let pair = Pair {
        active: End { queue_pair: active, connection: active_end },
        passive: End { queue_pair: passive, connection: passive_end },
    };
    Captured { adapters, captures, pair }
}

/// A Send, a Write and a Read in each direction, of these lengths.
async fn talk(Captured { adapters: [near, far], pair, .. }: &Captured, lengths: &[usize]) {
    let ends = [(near, &pair.active), (far, &pair.passive)];
    for [(adapter, from), (other, to)] in [ends, [ends[1], ends[0]]] {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region =
            other.register(*lengths.iter().max().expect("a length"), access).await.expect("registered");
        for length in lengths.iter().copied() {
            let receive = to.queue_pair.receive(room(other, length)).expect("posted");
            success(from.queue_pair.send(bytes(adapter, &vec![7; length])).expect("posted")).await;
            assert_eq!(success(receive).await.0, length);
            let remote = region.remote_part(0..length).expect("as long");
            success(from.queue_pair.write(bytes(adapter, &vec![8; length]), &remote).expect("posted")).await;
            success(from.queue_pair.read(room(adapter, length), &remote).expect("posted")).await;
        }
    }
}

async fn disconnect(pair: &Pair) {
    within(pair.active.connection.disconnect()).await.expect("disconnected");
    within(pair.passive.connection.disconnected()).await;
}

/// A recording that tshark has read.
struct Read(Removed);

impl Read {
    fn new(capture: &Capture, case: &str) -> Self {
        let name = format!("tokio-rdma-capture-{}-{case}.pcap", std::process::id());
        let file = Removed(std::env::temp_dir().join(name));
        std::fs::write(&file.0, capture.pcap()).expect("written");
        Self(file)
    }

    /// The lines that tshark prints for the packets that this filter selects.
    fn select(&self, filter: &str, arguments: &[&str]) -> Vec<String> {
        let checks = ["-o", "ip.check_checksum:true", "-o", "tcp.check_checksum:true", "-Y", filter];
        tshark(&self.0.0, &[&checks, arguments].concat()).lines().map(str::to_owned).collect()
    }

    /// The dissectors warn of nothing, and find nothing lost, repeated or out of order. They
    /// warn of each reset.
    fn assert_good(&self) {
        let wrong = "_ws.malformed || (_ws.expert.severity >= 0x600000 && tcp.flags.reset == 0) || tcp.analysis.flags \
            || tcp.checksum.status == 0 || ip.checksum.status == 0";
        assert_eq!(self.select(wrong, &[]), [""; 0]);
    }

    /// The number of packets of a TCP handshake, of an end, and of a reset.
    fn flags(&self) -> [usize; 3] {
        ["syn", "fin", "reset"].map(|flag| self.select(&format!("tcp.flags.{flag} == 1"), &[]).len())
    }

    /// The bytes that each end has sent, that of the listener first.
    fn streams(&self, listener: u16) -> [String; 2] {
        ["srcport", "dstport"].map(|port| {
            let filter = format!("tcp.len > 0 && tcp.{port} == {listener}");
            self.select(&filter, &["-T", "fields", "-e", "tcp.payload"]).concat()
        })
    }

    fn opcodes(&self) -> Vec<String> {
        let lines = self.select("iwarp_ddp_rdmap", &["-T", "fields", "-e", "iwarp_rdma.opcode"]);
        lines.iter().flat_map(|line| line.split(',')).map(str::to_owned).collect()
    }
}

// SIM-06: each end has recorded the same bytes in the same order, and the dissector knows every frame of them.
#[tokio::test]
async fn the_dissector_reads_what_was_captured() {
    if !has_tshark() {
        return;
    }
    for (crc, spin) in [(false, Duration::ZERO), (true, Duration::ZERO), (true, Duration::from_millis(1))] {
        let connection = captured(&SoftConfig::default().crc(crc).spin(spin)).await;
        talk(&connection, &[1, 5, 200_000]).await;
        let listener = connection.pair.active.connection.peer_addr().port();
        disconnect(&connection.pair).await;
        let Captured { captures, pair, .. } = connection;
        drop(pair);
        let case = format!("{crc}-{}", spin.as_millis());
        let read = [0, 1].map(|end| Read::new(&captures[end], &format!("{case}-{end}")));
        for end in &read {
            end.assert_good();
            assert_eq!(end.flags(), [2, 2, 0]);
            assert_eq!(end.select("iwarp_mpa.req || iwarp_mpa.rep", &[]).len(), 2);
            let opcodes = end.opcodes();
            let every: BTreeSet<_> = opcodes.iter().map(String::as_str).collect();
            assert_eq!(every, BTreeSet::from(["0x00", "0x01", "0x02", "0x03"]), "writes, reads, and sends");
            let details = tshark(&end.0.0, &["-V", "-O", "iwarp_mpa"]);
            assert_eq!(details.matches("Good CRC32").count(), if crc { opcodes.len() } else { 0 });
        }
        assert!(read[0].streams(listener) == read[1].streams(listener), "CRC {crc}");
        assert!(captures.iter().all(|capture| capture.omitted() == 0));
    }
}

// SIM-06: much in one direction, with nothing that acknowledges it.
#[tokio::test]
async fn a_long_transfer_fills_no_window() {
    if !has_tshark() {
        return;
    }
    let connection = captured(&SoftConfig::default()).await;
    let Captured { adapters: [near, far], captures, pair } = &connection;
    let region = far.register(5 << 20, Access::REMOTE_WRITE).await.expect("registered");
    success(pair.active.queue_pair.write(bytes(near, &vec![8; 5 << 20]), &region.remote()).expect("posted"))
        .await;
    disconnect(pair).await;
    let [near, far] = [0, 1].map(|end| Read::new(&captures[end], &format!("long-{end}")));
    near.assert_good();
    far.assert_good();
    assert!(near.select("tcp.len == 0 && tcp.flags == 0x10", &[]).len() > 4, "acknowledgements in between");
}

// SIM-06: a file that is full grows no more, and what it has is good.
#[tokio::test]
async fn a_recording_has_a_limit() {
    if !has_tshark() {
        return;
    }
    const LIMIT: usize = 100_000;
    let capture = Capture::new(LIMIT);
    let adapter = adapter_with(SoftConfig::default().capture(&capture));
    let plain = adapter_with(SoftConfig::default());
    let (listener, address) = listening(&plain);
    let (ours, theirs) = (queue_pair(&adapter), queue_pair(&plain));
    let connector = adapter.connector();
    let (_ours, _theirs) = joined(
        connector.connect_and_complete(&ours, address, ConnectParams::default()),
        listener.accept_next(&theirs, AcceptParams::default()),
    )
    .await;
    let region = plain.register(10_000, Access::REMOTE_WRITE).await.expect("registered");
    for _ in 0..30 {
        success(ours.write(bytes(&adapter, &[8; 10_000]), &region.remote()).expect("posted")).await;
    }
    let length = capture.pcap().len();
    assert!(length <= LIMIT && length > LIMIT / 2 && capture.omitted() > 0, "{capture:?}");
    Read::new(&capture, "full").assert_good();
}

// SIM-06: connections that come to nothing: one that is refused, and one that is aborted.
#[tokio::test]
async fn the_ends_of_connections_are_captured() {
    if !has_tshark() {
        return;
    }
    let capture = Capture::new(MUCH);
    let adapter = adapter_with(SoftConfig::default().capture(&capture));
    let plain = adapter_with(SoftConfig::default());
    let (listener, address) = listening(&plain);
    let (connector, ours) = (adapter.connector(), queue_pair(&adapter));
    let (outcome, ()) =
        tokio::join!(within(connector.connect(&ours, address, ConnectParams::default())), async {
            within(listener.request()).await.expect("a request").reject(b"no").await.expect("rejected");
        });
    assert_eq!(outcome.map(drop).expect_err("rejected").status(), Status::CONNECTION_REFUSED);
    let read = Read::new(&capture, "refused");
    read.assert_good();
    assert_eq!(read.select("iwarp_mpa.rep", &[]).len(), 1);
    assert_eq!(read.flags()[0], 2);

    let capture = Capture::new(MUCH);
    let adapter = adapter_with(SoftConfig::default().capture(&capture));
    let raw = tokio::net::TcpListener::bind((v4(), 0)).await.expect("a port");
    let (connector, ours) = (adapter.connector(), queue_pair(&adapter));
    let connect = connector.connect(&ours, raw.local_addr().expect("bound"), ConnectParams::default());
    let resetting = async {
        let (mut peer, _) = raw.accept().await.expect("a connection");
        // Closed with a request of which the rest was not read.
        peer.read_exact(&mut [0; 8]).await.expect("the request");
        drop(peer);
    };
    let (outcome, ()) = tokio::join!(within(connect), resetting);
    let error = outcome.map(drop).expect_err("reset");
    assert_eq!(error.status(), Status::CONNECTION_REFUSED, "{error:?}");
    drop((connector, adapter));
    let read = Read::new(&capture, "reset");
    read.assert_good();
    assert_eq!(read.flags(), [2, 0, 1]);
}
