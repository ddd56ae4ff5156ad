//! The simulated network: the soft provider over it, and what its faults look like through the public API.

mod capture;
mod connecting;
mod crossings;
mod crowds;
mod determinism;
mod drawn;
mod ended_sessions;
mod example;
mod exhaustion;
mod faults;
mod fidelity;
mod frames;
mod frugal;
mod hostile_sessions;
#[cfg(feature = "inspect")]
mod inspect;
mod mixed;
mod mutants;
mod races;
mod raw;
mod schedules;
mod security;
mod sessions;
mod splits;
mod stale;
mod stories;
mod story;
mod streams;
mod tools;

use std::net::SocketAddr;
use std::time::Duration;

use tokio_rdma::sim::{Host, Network};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{
    AcceptParams, Adapter, ConnectParams, Connection, Connector, Listener, QueuePair, QueuePairConfig,
    SharedReceiveConfig, SharedReceiveQueue,
};

const SERVER: &str = "10.0.0.1";
const CLIENT: &str = "10.0.0.2";
const PORT: u16 = 7471;

const SECOND: Duration = Duration::from_secs(1);

/// The path timeout of every adapter here.
const PATH_TIMEOUT: Duration = Duration::from_secs(30);

/// The latest moment at which a dead path is noticed, and a tick of the clock of the runtime.
const NOTICED: Duration = Duration::from_millis(30_000 + 30_000 / 16 + 1);

/// A server and a client.
fn hosts(network: &Network) -> (Host, Host) {
    (network.host(SERVER), network.host(CLIENT))
}

/// The adapter of a host, with the path timeout of the tests.
fn adapter(host: &Host) -> Adapter {
    let config = SoftConfig::default().path_timeout(Some(PATH_TIMEOUT));
    host.provider_with(config).open(host.address()).expect("opened")
}

fn queue_pair(adapter: &Adapter) -> QueuePair {
    adapter.queue_pair(QueuePairConfig::default()).expect("a queue pair")
}

/// A listener of this adapter, and its address.
fn listening(adapter: &Adapter, host: &Host) -> (Listener, SocketAddr) {
    let listener = adapter.listener();
    listener.bind((host.address(), PORT).into()).expect("bound");
    listener.listen(0).expect("listening");
    let address = listener.local_addr().expect("it listens");
    (listener, address)
}

/// One end of a connection.
struct End {
    adapter: Adapter,
    queue_pair: QueuePair,
    connection: Connection,
}

impl End {
    /// Sends a message.
    async fn send(&self, message: &[u8]) {
        let buffer = self.adapter.buffer_from(message).expect("memory");
        self.queue_pair.send(buffer).expect("posted").await.0.expect("sent");
    }

    /// Receives a message.
    async fn receive(&self) -> Vec<u8> {
        let receive = self.queue_pair.receive(self.adapter.buffer(64).expect("memory")).expect("posted");
        let (result, buffer) = receive.await;
        buffer[..result.expect("received").bytes].to_vec()
    }
}

/// Connects two queue pairs: the listener accepts with the first, and the connector connects the second. Returns their
/// connections.
async fn connect(
    (listener, theirs): (&Listener, &QueuePair),
    (connector, ours): (&Connector, &QueuePair),
    params: ConnectParams,
) -> (Connection, Connection) {
    let address = listener.local_addr().expect("it listens");
    let (accepted, completed) = tokio::join!(
        listener.accept_next(theirs, AcceptParams::default()),
        connector.connect_and_complete(ours, address, params)
    );
    (accepted.expect("accepted"), completed.expect("connected"))
}

/// A connection from the client to the server: the end of the server, and that of the client.
async fn connected(server: &Host, client: &Host) -> (End, End) {
    let passive = adapter(server);
    let theirs = queue_pair(&passive);
    joined(server, (&passive, theirs), &adapter(client)).await
}

/// A connection to the server, whose end has this queue pair: the server's end, and the client's.
async fn joined(server: &Host, passive: (&Adapter, QueuePair), active: &Adapter) -> (End, End) {
    let listener = passive.0.listener();
    listener.bind((server.address(), 0).into()).expect("bound");
    listener.listen(0).expect("listening");
    let (connector, ours) = (active.connector(), queue_pair(active));
    let (accepted, completed) =
        connect((&listener, &passive.1), (&connector, &ours), ConnectParams::default()).await;
    (
        End { adapter: passive.0.clone(), queue_pair: passive.1, connection: accepted },
        End { adapter: active.clone(), queue_pair: ours, connection: completed },
    )
}

/// A queue of shared receives, and what makes queue pairs with it.
fn shared(adapter: &Adapter) -> (SharedReceiveQueue, impl Fn() -> QueuePair) {
    let queue = adapter.shared_receive_queue(SharedReceiveConfig::default()).expect("a queue");
    let config = QueuePairConfig::default().shared_receives(&queue);
    let adapter = adapter.clone();
    (queue, move || adapter.queue_pair(config.clone()).expect("a queue pair"))
}

/// A server whose receives are shared and none is posted, and a client whose message has been sent.
async fn starved(server: &Host, client: &Host) -> (SharedReceiveQueue, End, End) {
    let (passive, active) = (adapter(server), adapter(client));
    let (receives, make) = shared(&passive);
    let (theirs, ours) = joined(server, (&passive, make()), &active).await;
    ours.send(b"it waits").await;
    (receives, theirs, ours)
}

/// Sends a message each way.
async fn exchange(server: &End, client: &End) {
    let (received, ()) = tokio::join!(server.receive(), client.send(b"there"));
    assert_eq!(received, b"there");
    let (received, ()) = tokio::join!(client.receive(), server.send(b"again"));
    assert_eq!(received, b"again");
}
