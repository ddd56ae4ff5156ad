//! The simulated wire as Wireshark sees it.

use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use tokio_rdma::Access;
use tokio_rdma::sim::{self, Network};

use crate::{SECOND, connected, exchange, hosts};

/// The text that tshark prints about a capture; `None` without it.
#[allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]
fn tshark(file: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("tshark");
    // The content of our messages is nobody's protocol.
    command.args(["--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct"]);
    command.args(["-o", "ip.check_checksum:true", "-o", "tcp.check_checksum:true"]);
    match command.arg("-r").arg(file).args(arguments).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: needs tshark");
            None
        }
        output => {
            let output = output.expect("tshark");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(String::from_utf8(output.stdout).expect("text"))
        }
    }
}

/// A connection with a cut, and an orderly end; its capture.
fn captured() -> Vec<u8> {
    let file = Mutex::new(Vec::new());
    sim::check([1], async |network: Network| {
        let (server, client) = hosts(&network);
        assert_eq!(network.pcap(), b"", "nothing is captured yet");
        network.capture();
        let (theirs, ours) = connected(&server, &client).await;
        exchange(&theirs, &ours).await;
        let region = theirs.adapter.register(20_000, Access::REMOTE_WRITE).await.expect("registered");
        network.partition(&server, &client, Duration::from_millis(300));
        let buffer = ours.adapter.buffer(20_000).expect("memory");
        ours.queue_pair.write(buffer, &region.remote()).expect("posted").await.0.expect("written");
        exchange(&theirs, &ours).await;
        let (outcome, _) = tokio::join!(ours.connection.disconnect(), theirs.connection.disconnected());
        outcome.expect("disconnected");
        tokio::time::sleep(SECOND).await;
        *file.lock().expect("no panic") = network.pcap();
    });
    file.into_inner().expect("no panic")
}

// SIM-06: checksums are right, nothing is malformed, and the dissector knows each frame.
#[test]
fn wireshark_reads_the_wire() {
    let file = std::env::temp_dir().join(format!("tokio-rdma-sim-{}.pcap", std::process::id()));
    std::fs::write(&file, captured()).expect("written");
    let found = [
        // This matches everything that the dissectors object to.
        "_ws.malformed || _ws.expert.severity == error || tcp.checksum.status == 0 || ip.checksum.status == 0",
        "iwarp_mpa.req || iwarp_mpa.rep",
        "tcp.flags.syn == 1",
        "tcp.flags.fin == 1",
        "tcp.flags.reset == 1",
    ]
    .map(|filter| tshark(&file, &["-Y", filter]));
    let opcodes = tshark(&file, &["-Y", "iwarp_ddp_rdmap", "-T", "fields", "-e", "iwarp_rdma.opcode"]);
    let _ = std::fs::remove_file(&file);
    let [Some(wrong), Some(start_up), Some(syn), Some(fin), Some(reset)] = found else { return };
    assert_eq!(wrong, "");
    let lines = |text: String| text.lines().count();
    assert_eq!((lines(start_up), lines(syn), lines(fin), lines(reset)), (2, 2, 2, 0));
    // Two exchanges of a Send each way; the empty Write of the handshake and the other one.
    let opcodes = opcodes.expect("tshark is there");
    let opcodes: Vec<_> = opcodes.split_whitespace().flat_map(|line| line.split(',')).collect();
    let count = |opcode| opcodes.iter().filter(|found| **found == opcode).count();
    assert!(count("0x03") == 4 && count("0x00") >= 2, "{opcodes:?}");
}
