//! The example `proxy`, when many clients come at once.
//!
//! Runs on: soft

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::Duration;

use common::programs::example_command;
use common::within;

/// The RDMA connections that a proxy makes at a time: half of the handshakes of a listener.
const CONNECTING: usize = 128;
/// More than a listener has places for handshakes.
const CLIENTS: usize = 300;

/// A proxy, which ends with the test.
struct Proxy {
    child: Child,
    address: SocketAddr,
}

impl Proxy {
    /// Starts a proxy from TCP to RDMA.
    fn start(to: SocketAddr) -> Self {
        let mut command = example_command("proxy");
        command.args(["--connections", "1000", "tcp-to-rdma", "127.0.0.1:0", &to.to_string()]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("text");
        let address = line.split([' ', ',']).find_map(|word| word.parse().ok()).expect("an address");
        Self { child, address }
    }

    /// Returns the number of descriptors that the proxy has.
    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it runs").count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// A listener whose handshakes are all of one address drops those that take longer than 50 ms: on a busy machine it reset a part of
// the clients that came in such a burst.
#[tokio::test]
async fn burst_of_clients_is_no_burst_of_handshakes() {
    // It answers no request, so that no handshake ends before the test wants it.
    let peer = TcpListener::bind("127.0.0.1:0").expect("a port");
    let proxy = Proxy::start(peer.local_addr().expect("an address"));
    let _clients: Vec<_> =
        (0..CLIENTS).map(|_| TcpStream::connect(proxy.address).expect("connected")).collect();
    peer.set_nonblocking(true).expect("a socket");
    let mut handshakes = VecDeque::new();
    while handshakes.len() < CONNECTING {
        handshakes.push_back(within(accept(&peer)).await);
    }
    // The proxy has taken every client.
    within(async {
        while proxy.descriptors() < CLIENTS + CONNECTING {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    for number in CONNECTING..CLIENTS {
        let other = peer.accept();
        assert!(other.is_err(), "handshake {number} began before another had ended");
        // The end of one is the begin of the next.
        drop(handshakes.pop_front());
        handshakes.push_back(within(accept(&peer)).await);
    }
}

/// Accepts a connection of a listener that does not block, which a test can ask whether there is one.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept() {
            Ok((stream, _)) => return stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(error) => panic!("accept: {error}"),
        }
    }
}

// Without a role the proxy runs a demonstration, which has its own number of connections.
#[test]
fn connections_without_a_role_are_refused() {
    let ended = example_command("proxy").args(["--connections", "7"]).output().expect("started");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(said.contains("`--connections` needs a command"), "{said}");
    assert!(ended.stdout.is_empty());
}
