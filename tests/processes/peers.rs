//! A peer that is another process: killed, frozen and thawed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use common::path::noticed;
use common::process::one_test;
use common::*;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_rdma::error::{AcceptError, ConnectError, DisconnectError, Reason};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{
    AcceptParams, Access, Adapter, ConnectParams, Connection, DisconnectReason, Op, QueuePair, RemoteRegion,
    Status, WorkBuffer,
};

const ROLE: &str = "TOKIO_RDMA_TEST_ROLE";
const PEER: &str = "TOKIO_RDMA_TEST_PEER";
/// Marks what the peer says among what the test harness prints around it.
const MARK: &str = "peer says: ";
/// More than any socket takes.
const LARGE: usize = 32 << 20;

/// Another process: this program, run once more to play a role. It is killed when this is dropped.
struct Peer {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn start(role: &str) -> Self {
        Self::start_towards(role, None)
    }

    fn start_towards(role: &str, address: Option<SocketAddr>) -> Self {
        let mut command = one_test(module_path!(), "child_role");
        command.env(ROLE, role);
        command.envs(address.map(|address| (PEER, address.to_string())));
        // Its input ends with this process, however that comes; then it leaves by itself.
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("another process");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, output }
    }

    /// Returns the next line that the process prints for this one.
    fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).expect("its output") > 0, "the peer has left");
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim_end().to_owned();
            }
        }
    }

    /// Lets the process continue.
    fn go(&mut self) {
        self.child.stdin.as_mut().expect("its input").write_all(b"!").expect("told");
    }

    fn address(&mut self) -> SocketAddr {
        self.hear().parse().expect("an address")
    }

    fn region(&mut self) -> RemoteRegion {
        let bytes = self.hear().split(' ').map(|byte| byte.parse().expect("a byte")).collect::<Vec<_>>();
        RemoteRegion::decode(&bytes).expect("a region")
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Kills it as nothing else does, and waits until it is gone.
    fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    /// Stops it: its kernel goes on answering.
    fn freeze(&self) {
        kill(self.pid(), Signal::SIGSTOP).expect("a signal");
        let status = waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)).expect("its state");
        assert_eq!(status, WaitStatus::Stopped(self.pid(), Signal::SIGSTOP));
    }

    fn thaw(&self) {
        kill(self.pid(), Signal::SIGCONT).expect("a signal");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[allow(clippy::print_stdout, reason = "this is how it talks to the process that started it")]
fn say(what: impl std::fmt::Display) {
    println!("\n{MARK}{what}");
}

/// Runs the other process of a test. Not a test by itself.
#[test]
fn child_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (go, told) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let input = std::io::stdin().lock().bytes();
        // A role that does not wait for the word has dropped its receiver.
        input.map_while(Result::ok).for_each(|_| {
            let _ = go.send(());
        });
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        let adapter = adapter();
        let towards = std::env::var(PEER).ok().map(|peer| peer.parse().expect("an address"));
        match role.as_str() {
            "listen" => {
                let (_listener, address) = listening(&adapter);
                say(address);
                std::future::pending().await
            }
            "accept" => play_passive(&adapter).await,
            "ask" => play_active(&adapter, towards.expect("a peer"), told).await,
            role => panic!("{role}?"),
        }
    });
}

/// Accepts everybody, and says when a connection is up.
async fn play_passive(adapter: &Adapter) {
    let (listener, address) = listening(adapter);
    say(address);
    let region = adapter.register(LARGE, Access::REMOTE_READ | Access::REMOTE_WRITE).await.expect("memory");
    say(region.remote().to_bytes().map(|byte| byte.to_string()).join(" "));
    let mut connections = Vec::new();
    loop {
        let queue_pair = queue_pair(adapter);
        let connection = listener.accept_next(&queue_pair, AcceptParams::default()).await;
        say("accepted");
        connections.push((connection, queue_pair));
    }
}

/// Connects as far as the reply, prints a line, and completes when a byte comes.
async fn play_active(adapter: &Adapter, peer: SocketAddr, mut told: UnboundedReceiver<()>) {
    let queue_pair = queue_pair(adapter);
    let reply = adapter.connector().connect(&queue_pair, peer, ConnectParams::default()).await;
    let reply = reply.expect("a reply");
    say("half open");
    told.recv().await.expect("word");
    let connection = reply.complete().await;
    say(if connection.is_ok() { "connected" } else { "failed" });
    std::future::pending().await
}

async fn status<B: WorkBuffer>(op: Op<B>) -> Status {
    within(op).await.0.map_or_else(|error| error.status(), |_| Status::SUCCESS)
}

/// A connection to a process that accepts everybody.
struct Live {
    adapter: Adapter,
    queue_pair: QueuePair,
    connection: Connection,
    remote: RemoteRegion,
    peer: Peer,
}

async fn live(config: SoftConfig) -> Live {
    let adapter = adapter_with(config);
    let mut peer = Peer::start("accept");
    let (address, remote) = (peer.address(), peer.region());
    let queue_pair = queue_pair(&adapter);
    let connect = adapter.connector();
    let connection =
        within(connect.connect_and_complete(&queue_pair, address, ConnectParams::default())).await;
    assert_eq!(peer.hear(), "accepted");
    Live { adapter, queue_pair, connection: connection.expect("connected"), remote, peer }
}

const PATH_TIMEOUT: Duration = Duration::from_secs(4);

fn impatient() -> SoftConfig {
    SoftConfig::default().path_timeout(Some(PATH_TIMEOUT))
}

impl Live {
    fn receive(&self) -> Op<tokio_rdma::Buffer> {
        self.queue_pair.receive(self.adapter.buffer(8).expect("memory")).expect("posted")
    }

    fn read(&self) -> Op<tokio_rdma::Buffer> {
        self.queue_pair.read(self.adapter.buffer(8).expect("memory"), &self.remote).expect("posted")
    }

    fn write(&self, length: usize) -> Op<tokio_rdma::Buffer> {
        let buffer = self.adapter.buffer(length).expect("memory");
        self.queue_pair.write(buffer, &self.remote).expect("posted")
    }
}

#[tokio::test]
async fn a_killed_peer_ends_the_connection() {
    let mut live = live(SoftConfig::default()).await;
    let receives = [live.receive(), live.receive()];
    let other = live.connection.clone();
    let waiter = tokio::spawn(async move { other.disconnected().await });
    live.peer.kill();
    // DIS-11, SEC-04, SEC-11: the kernel closes for the dead, so on this wire it looks as if the peer had disconnected.
    assert_eq!(within(live.connection.disconnected()).await, DisconnectReason::Peer);
    assert_eq!(within(waiter).await.expect("a reason"), DisconnectReason::Peer);
    for receive in receives {
        assert_eq!(status(receive).await, Status::CANCELED);
    }
    let refused = live.queue_pair.send(live.adapter.buffer(1).expect("memory")).expect_err("over");
    assert_eq!(refused.status(), Status::CONNECTION_INVALID);
    within(live.connection.disconnect()).await.expect("nobody to wait for");
}

#[tokio::test]
async fn a_killed_peer_fails_the_oldest_request() {
    for large in [false, true] {
        let mut live = live(SoftConfig::default()).await;
        // Frozen first, so that the requests are surely pending when it dies.
        live.peer.freeze();
        let receive = live.receive();
        let requests =
            if large { vec![live.write(LARGE), live.read()] } else { vec![live.read(), live.read()] };
        live.peer.kill();
        let reason = within(live.connection.disconnected()).await;
        // The kernel closes the stream of the killed process, and the loss fails the oldest request (DIS-11).
        assert!(matches!(reason, DisconnectReason::Lost { .. }), "{reason:?}");
        let mut expected = Status::REMOTE_ERROR;
        for request in requests {
            assert_eq!(status(request).await, expected, "large: {large}, {reason:?}");
            expected = Status::CANCELED;
        }
        assert_eq!(reason.status(), Status::REMOTE_ERROR);
        assert_eq!(status(receive).await, Status::CANCELED);
    }
}

#[tokio::test]
async fn a_connect_to_a_killed_process_is_refused() {
    let adapter = adapter();
    let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
    for _ in 0..2 {
        let mut peer = Peer::start("listen");
        let address = peer.address();
        let connect = connector.connect(&queue_pair, address, ConnectParams::default());
        let killed = async {
            while !connector.local_addr().is_ok_and(|local| is_established(local, address)) {
                tokio::task::yield_now().await;
            }
            peer.kill();
        };
        let (outcome, ()) = within(async { tokio::join!(connect, killed) }).await;
        let error = outcome.expect_err("nobody accepted");
        assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
        assert!(error.is_connector_usable());
    }
    let mut peer = Peer::start("accept");
    let address = peer.address();
    // After two refusals the same connector and queue pair connect (CM-19).
    within(connector.connect_and_complete(&queue_pair, address, ConnectParams::default()))
        .await
        .expect("connected");
}

/// Returns whether the socket between these two is established, by the kernel's table.
fn is_established(local: SocketAddr, peer: SocketAddr) -> bool {
    let (SocketAddr::V4(local), SocketAddr::V4(peer)) = (local, peer) else { panic!("IPv4 only") };
    let column = |address: std::net::SocketAddrV4| {
        format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port())
    };
    let row = format!(": {} {} 01 ", column(local), column(peer));
    std::fs::read_to_string("/proc/thread-self/net/tcp").expect("the sockets").contains(&row)
}

/// Waits until the kernel has closed the socket to the killed process.
async fn until_closed(local: SocketAddr, peer: SocketAddr) {
    within(async {
        while is_established(local, peer) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

// CM-28: a process that is killed between its accept and the complete.
#[tokio::test]
async fn completing_after_the_peer_was_killed_says_aborted() {
    let adapter = adapter();
    let mut peer = Peer::start("accept");
    let (address, _) = (peer.address(), peer.region());
    let queue_pair = queue_pair(&adapter);
    let connect = adapter.connector();
    let reply = within(connect.connect(&queue_pair, address, ConnectParams::default())).await;
    let reply = reply.expect("accepted");
    assert!(is_established(reply.local_addr(), reply.peer_addr()));
    peer.kill();
    until_closed(reply.local_addr(), reply.peer_addr()).await;
    let error = within(reply.complete()).await.expect_err("nobody is there");
    assert!(matches!(error, ConnectError::Aborted { .. }), "{error:?}");
    assert_eq!((error.status(), error.is_connector_usable()), (Status::CONNECTION_ABORTED, false));
    // The queue pair is as it was.
    let other = queue_pair.receive(adapter.buffer(8).expect("memory")).expect("posted");
    queue_pair.flush();
    assert_eq!(status(other).await, Status::CANCELED);
}

#[tokio::test]
async fn accept_is_aborted_when_peer_is_killed() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let mut peer = Peer::start_towards("ask", Some(address));
    let request = within(listener.request()).await.expect("a request");
    let queue_pair = queue_pair(&adapter);
    let own = queue_pair.clone();
    let accept = tokio::spawn(async move { request.accept(&own, AcceptParams::default()).await });
    let receive = queue_pair.receive(adapter.buffer(8).expect("memory")).expect("posted");
    tokio::task::yield_now().await;
    assert_eq!(peer.hear(), "half open");
    assert!(!accept.is_finished());
    peer.kill();
    let error = within(accept).await.expect("an answer").expect_err("nobody completes");
    assert!(matches!(error.error, AcceptError::Aborted { .. }), "{error:?}");
    assert!(error.handle.is_none());
    // The queue pair is as it was, the receive included.
    drop(queue_pair);
    assert_eq!(status(receive).await, Status::CANCELED);
}

#[tokio::test]
async fn request_of_killed_peer_cannot_be_answered() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    for accept in [true, false] {
        let mut peer = Peer::start_towards("ask", Some(address));
        let request = within(listener.request()).await.expect("a request");
        peer.kill();
        until_closed(request.local_addr(), request.peer_addr()).await;
        let queue_pair = queue_pair(&adapter);
        let error = if accept {
            within(request.accept(&queue_pair, AcceptParams::default())).await.expect_err("nobody there")
        } else {
            within(request.reject(b"no")).await.expect_err("nobody there")
        };
        assert!(matches!(error.error, AcceptError::Aborted { .. }), "accept: {accept}, {error:?}");
        assert!(error.handle.is_none());
    }
}

#[tokio::test]
async fn unanswered_disconnect_ends_when_peer_is_killed() {
    // Nothing but the news can end it.
    let mut live = live(SoftConfig::default().disconnect_timeout(Duration::from_secs(3600))).await;
    live.peer.freeze();
    let (read, receive) = (live.read(), live.receive());
    let disconnect = live.connection.clone();
    let disconnect = tokio::spawn(async move { disconnect.disconnect().await });
    tokio::task::yield_now().await;
    assert!(!disconnect.is_finished());
    live.peer.kill();
    // Whether such an end is a success is left open.
    let _outcome = within(disconnect).await.expect("an answer");
    assert_eq!(status(read).await, Status::CANCELED);
    assert_eq!(status(receive).await, Status::CANCELED);
    assert_eq!(within(live.connection.disconnected()).await, DisconnectReason::Local);
}

#[tokio::test]
async fn a_frozen_peer_is_noticed_by_its_silence() {
    for reads in [0, 2] {
        let live = live(impatient()).await;
        live.peer.freeze();
        let receives = [live.receive(), live.receive()];
        let requests: Vec<_> = (0..reads).map(|_| live.read()).collect();
        // The loss is noticed within the path timeout, with reads or without (SEC-04).
        let reason = noticed(PATH_TIMEOUT, live.connection.disconnected()).await;
        // DIS-11: TCP is still answered, RDMA reads are not.
        let lost = DisconnectReason::Lost { status: Status::IO_TIMEOUT, reason: Reason::PathTimeout };
        assert_eq!(reason, lost, "{reads} reads");
        let mut expected = Status::IO_TIMEOUT;
        for request in requests {
            assert_eq!(status(request).await, expected);
            expected = Status::CANCELED;
        }
        for receive in receives {
            assert_eq!(status(receive).await, Status::CANCELED);
        }
        live.peer.thaw();
        let error = within(live.connection.disconnect()).await.expect_err("nobody has agreed");
        let reason = Reason::PathTimeout;
        assert_eq!(error, DisconnectError::Lost { status: Status::IO_TIMEOUT, reason });
    }
}

#[tokio::test]
async fn frozen_peer_is_noticed_by_pending_write() {
    let live = live(impatient()).await;
    live.peer.freeze();
    let receive = live.receive();
    let requests = [live.write(LARGE), live.read(), live.write(8)];
    // The peer's kernel takes a part of the write and no more, which is noticed within the path timeout (SEC-04).
    let reason = noticed(PATH_TIMEOUT, live.connection.disconnected()).await;
    // The write is the oldest request, and fails with the timeout (DIS-11).
    assert!(matches!(reason, DisconnectReason::Lost { status: Status::IO_TIMEOUT, .. }), "{reason:?}");
    let mut expected = Status::IO_TIMEOUT;
    for request in requests {
        assert_eq!(status(request).await, expected);
        expected = Status::CANCELED;
    }
    assert_eq!(status(receive).await, Status::CANCELED);
}

#[tokio::test]
async fn peer_thawed_in_time_is_not_lost() {
    let live = live(SoftConfig::default()).await;
    live.peer.freeze();
    let (read, write) = (live.read(), live.write(LARGE));
    let mut work = std::pin::pin!(async { (status(read).await, status(write).await) });
    tokio::time::timeout(Duration::from_millis(300), &mut work).await.expect_err("it is frozen");
    live.peer.thaw();
    assert_eq!(work.await, (Status::SUCCESS, Status::SUCCESS));
    within(live.connection.disconnect()).await.expect("disconnected");
}

#[tokio::test]
async fn disconnect_unanswered_by_frozen_peer_times_out() {
    let live = live(SoftConfig::default().disconnect_timeout(Duration::from_secs(1))).await;
    live.peer.freeze();
    let pending = [live.read(), live.read(), live.receive()];
    // The disconnect ends after its own limit, and flushes the reads without an answer (DIS-14).
    let limit = Duration::from_secs(1);
    assert_eq!(within(live.connection.disconnect()).await, Err(DisconnectError::TimedOut { limit }));
    for op in pending {
        assert_eq!(status(op).await, Status::CANCELED);
    }
    assert_eq!(within(live.connection.disconnected()).await, DisconnectReason::Local);
    live.peer.thaw();
}

#[tokio::test]
async fn a_connect_to_a_frozen_listener_times_out() {
    let adapter = adapter();
    let mut peer = Peer::start("accept");
    let (address, _) = (peer.address(), peer.region());
    peer.freeze();
    let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
    let params = || ConnectParams::default().timeout(Duration::from_millis(200));
    for _ in 0..2 {
        let error = within(connector.connect(&queue_pair, address, params())).await.expect_err("frozen");
        // The kernel of the frozen process accepts the stream, but no reply follows (CM-18).
        assert_eq!(error.status(), Status::IO_TIMEOUT, "{error:?}");
        assert!(error.is_connector_usable());
    }
    peer.thaw();
    // The same connector and queue pair connect once the process runs again (CM-19).
    let connect = connector.connect_and_complete(&queue_pair, address, ConnectParams::default());
    within(connect).await.expect("connected");
}

#[tokio::test]
async fn accept_waits_for_frozen_peer_to_complete() {
    let second = Duration::from_secs(1);
    let config = SoftConfig::default().path_timeout(Some(second)).request_timeout(second);
    let adapter = adapter_with(config.disconnect_timeout(second));
    let (listener, address) = listening(&adapter);
    let mut peer = Peer::start_towards("ask", Some(address));
    let request = within(listener.request()).await.expect("a request");
    let queue_pair = queue_pair(&adapter);
    let own = queue_pair.clone();
    let mut accept = tokio::spawn(async move { request.accept(&own, AcceptParams::default()).await });
    tokio::task::yield_now().await;
    assert_eq!(peer.hear(), "half open");
    peer.freeze();
    peer.go();
    // Longer than any timeout that might end the wait.
    tokio::time::timeout(4 * second, &mut accept).await.expect_err("nothing ends it");
    peer.thaw();
    let connection = within(accept).await.expect("an answer").expect("completed");
    assert_eq!(peer.hear(), "connected");
    within(connection.disconnect()).await.expect("disconnected");
}
