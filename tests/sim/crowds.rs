//! Listeners that many peers connect to at once, and the refusals that they give.

#[path = "../../docs/snippets/accept_loop.rs"]
#[allow(unreachable_pub, reason = "the code of the docs")]
mod accept_loop;
#[path = "../../docs/snippets/request_loop.rs"]
#[allow(unreachable_pub, reason = "the code of the docs")]
mod request_loop;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures::future::{join_all, pending};
use tokio::time::{sleep, timeout};
use tokio_rdma::error::ConnectError;
use tokio_rdma::sim::{self, Host, Network};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::status::porting::Outcome;
use tokio_rdma::{
    AcceptParams, AcceptorConfig, Adapter, ConnectParams, Listener, QueuePair, QueuePairConfig, RdmaListener,
    RdmaStream, StreamConfig,
};

use crate::{PORT, SECOND, adapter, hosts, listening, queue_pair};

/// The peers that connect and say nothing.
const SILENT: usize = 2200;

/// As long as an honest peer may wait for the others.
const DELAY: Duration = SECOND;

fn small(adapter: &Adapter) -> QueuePair {
    adapter.queue_pair(QueuePairConfig::default().send_depth(4).receive_depth(4)).expect("a queue pair")
}

/// Connects again and again from a host whose programs do not run: its TCP answers, and no frame follows. Never ends.
async fn silent_crowd(network: &Network, address: SocketAddr) {
    let host = network.host("10.0.0.66");
    let adapter = adapter(&host);
    host.freeze();
    let peer = async |_| {
        let queue_pair = small(&adapter);
        sleep(Duration::from_millis(network.random(0..=1000))).await;
        loop {
            let params = ConnectParams::default().timeout(Duration::from_millis(network.random(500..=4000)));
            let outcome = adapter.connector().connect(&queue_pair, address, params).await;
            assert!(outcome.is_err(), "it says nothing");
        }
    };
    join_all((0..SILENT).map(peer)).await;
}

/// Connects nine times while the crowd is there.
async fn assert_no_delay(network: &Network, address: SocketAddr, connect: impl AsyncFn()) {
    let connecting = async {
        // The crowd has come.
        sleep(2 * SECOND).await;
        for _ in 0..9 {
            let begin = network.elapsed();
            connect().await;
            let delay = network.elapsed() - begin;
            assert!(delay <= DELAY, "{delay:?}");
            sleep(Duration::from_millis(network.random(0..=300))).await;
        }
    };
    tokio::select! {
        biased;
        () = connecting => {}
        () = silent_crowd(network, address) => unreachable!("it goes on"),
    }
}

/// Opens the adapter of a server with 1024 places for half-open peers, fewer than the crowd.
fn server_adapter(server: &Host) -> Adapter {
    server.provider_with(SoftConfig::default().half_open(1024)).open(server.address()).expect("opened")
}

// More sockets than half-open places are renewed all the time, and a connect among them is not delayed (SEC-07).
#[test]
fn silent_peers_delay_no_connection() {
    sim::check(0..2, async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (server_adapter(&server), adapter(&client));
        let (listener, address) = listening(&passive, &server);
        let connect = async || {
            let (theirs, ours, connector) = (small(&passive), small(&active), active.connector());
            let (accepted, connected) = tokio::join!(
                listener.accept_next(&theirs, AcceptParams::default()),
                connector.connect_and_complete(&ours, address, ConnectParams::default())
            );
            drop((accepted.expect("accepted"), connected.expect("connected")));
        };
        assert_no_delay(&network, address, connect).await;
    });
}

// More sockets than half-open places are renewed all the time, and a stream among them is not delayed (IO-10).
#[test]
fn silent_peers_delay_no_stream() {
    sim::check(0..2, async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (server_adapter(&server), adapter(&client));
        let address: SocketAddr = (server.address(), PORT).into();
        let config = StreamConfig::default();
        let listener = RdmaListener::bind_on(&passive, address, &config).expect("bound");
        let connect = async || {
            let (accepted, connected) =
                tokio::join!(listener.accept(), RdmaStream::connect_on(&active, address, &config));
            drop((accepted.expect("accepted"), connected.expect("connected")));
        };
        assert_no_delay(&network, address, connect).await;
    });
}

/// Sends peers that ask for a stream and do not complete it. Each stays for a while, and comes back. Never ends.
async fn crowd_that_asks(network: &Network, address: SocketAddr, hello: &[u8]) {
    let host = network.host("10.0.0.66");
    // With checksums an end is asked to complete the connection, as those of others are.
    let adapter = host.provider_with(SoftConfig::default().crc(true)).open(host.address()).expect("opened");
    let peer = async |_| {
        let queue_pair = small(&adapter);
        sleep(Duration::from_millis(network.random(0..=1000))).await;
        loop {
            let params = ConnectParams::default().private_data(hello);
            let reply = adapter.connector().connect(&queue_pair, address, params).await;
            if reply.is_ok() {
                sleep(Duration::from_millis(network.random(500..=1500))).await;
            }
        }
    };
    join_all((0..SILENT).map(peer)).await;
}

// No time limit of the listener passes, so that only peers that make room let others in (IO-10).
#[test]
fn peers_that_do_not_complete_delay_no_stream() {
    sim::check([0], async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (server_adapter(&server), adapter(&client));
        // Small ones, so that the time of a test without optimisation is not that of their preparation.
        let config = StreamConfig::default().send_buffer(1 << 14).receive_buffer(1 << 14);
        let config = config.send_depth(16).receive_depth(16).handshake_timeout(3600 * SECOND);
        let (other, elsewhere) = listening(&passive, &server);
        let hello = async { other.request().await.expect("a request").private_data().to_vec() };
        let (hello, _) = tokio::join!(hello, RdmaStream::connect_on(&active, elsewhere, &config));
        let address: SocketAddr = (server.address(), PORT + 1).into();
        let listener = RdmaListener::bind_on(&passive, address, &config).expect("bound");
        let connecting = async {
            // The crowd has come.
            sleep(2 * SECOND).await;
            for _ in 0..9 {
                let begin = network.elapsed();
                let (accepted, connected) =
                    tokio::join!(listener.accept(), RdmaStream::connect_on(&active, address, &config));
                drop((accepted.expect("accepted"), connected.expect("connected")));
                let delay = network.elapsed() - begin;
                assert!(delay <= DELAY, "{delay:?}");
                sleep(Duration::from_millis(network.random(0..=300))).await;
            }
        };
        tokio::select! {
            biased;
            () = connecting => {}
            () = crowd_that_asks(&network, address, &hello) => unreachable!("it goes on"),
        }
    });
}

/// Returns the number of connections that an acceptor with 64 places makes within two seconds of 600 peers at one
/// address that all come back at once, if the answer takes so long before its reply, and a segment so long for its way.
async fn accepted_of_one_address(network: &Network, answer: Duration, latency: Duration) -> usize {
    let (server, client) = hosts(network);
    network.link(&server, &client).latency(latency..=latency);
    let (passive, active) = (adapter(&server), adapter(&client));
    let (listener, address) = listening(&passive, &server);
    let config = AcceptorConfig::default().handshakes(64);
    let acceptor = listener.acceptor(config, move |request| {
        let queue_pair = small(&passive);
        async move {
            sleep(answer).await;
            request.accept(&queue_pair, AcceptParams::default()).await.map_err(io::Error::from)
        }
    });
    let acceptor = acceptor.expect("it listens");
    let peer = async |_| loop {
        let (queue_pair, connector) = (small(&active), active.connector());
        drop(connector.connect_and_complete(&queue_pair, address, ConnectParams::default()).await);
    };
    let mut accepted = 0;
    let accepting = async {
        while let Ok(connection) = acceptor.accept().await {
            drop(connection);
            accepted += 1;
        }
    };
    tokio::select! {
        biased;
        () = sleep(2 * SECOND) => {}
        () = accepting => unreachable!("it goes on"),
        _ = join_all((0..600).map(peer)) => unreachable!("it goes on"),
    }
    accepted
}

// SEC-07: the time of the server's own work is not the peer's.
#[test]
fn a_slow_answer_costs_no_peer_its_place() {
    sim::check([0], async |network: Network| {
        let (answer, latency) = (Duration::from_millis(100), Duration::from_millis(1));
        let accepted = accepted_of_one_address(&network, answer, latency).await;
        assert!(accepted >= 500, "{accepted}");
    });
}

// SEC-07: many peers behind one address may be far away.
#[test]
fn distant_peers_of_one_address_are_served() {
    sim::check([0], async |network: Network| {
        let latency = Duration::from_millis(50);
        let accepted = accepted_of_one_address(&network, Duration::ZERO, latency).await;
        assert!(accepted >= 50, "{accepted}");
    });
}

/// Asserts that the loop serves others while a peer has its reply and sends nothing.
fn assert_serves<F>(serve: impl Fn(Adapter, Listener) -> F)
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    sim::check(0..5, async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (listener, address) = listening(&passive, &server);
        let serving = tokio::spawn(serve(passive, listener));
        let (idle, connector) = (queue_pair(&active), active.connector());
        let silent = connector.connect(&idle, address, ConnectParams::default()).await.expect("accepted");
        for _ in 0..3 {
            let (ours, connector) = (queue_pair(&active), active.connector());
            let answer = ours.receive(active.buffer(64).expect("memory")).expect("posted");
            let connect = connector.connect_and_complete(&ours, address, ConnectParams::default());
            let connection = timeout(SECOND, connect).await.expect("at once").expect("connected");
            let send = ours.send(active.buffer_from(b"hello").expect("memory")).expect("posted");
            send.await.0.expect("sent");
            assert_eq!(&timeout(SECOND, answer).await.expect("at once").1[..5], b"hello");
            connection.disconnect().await.expect("disconnected");
        }
        drop(silent);
        serving.abort();
    });
}

// SEC-08: the loop of the guide and of `Listener`, and that of `Listener::request`.
#[test]
fn documented_loops_serve_others_beside_silent_peer() {
    assert_serves(accept_loop::serve);
    assert_serves(request_loop::serve_requests);
}

/// The number of peers that connect at once.
const AT_ONCE: usize = 10_000;

// Every peer that is not served is refused, and each makes one attempt (SEC-19).
#[test]
fn ten_thousand_at_once_are_served_or_refused() {
    sim::check([0], async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (listener, address) = listening(&passive, &server);
        let acceptor = listener.acceptor(AcceptorConfig::default(), move |request| {
            let queue_pair = small(&passive);
            async move { request.accept(&queue_pair, AcceptParams::default()).await.map_err(io::Error::from) }
        });
        let acceptor = acceptor.expect("it listens");
        let begin = network.elapsed();
        let peer = async |_| {
            let queue_pair = small(&active);
            let connector = active.connector();
            let connect = connector.connect_and_complete(&queue_pair, address, ConnectParams::default());
            let outcome = connect.await;
            let time = network.elapsed() - begin;
            assert!(time <= 2 * SECOND, "{time:?}");
            match outcome {
                Ok(connection) => {
                    connection.disconnected().await;
                    true
                }
                Err(ConnectError::Refused { .. }) => false,
                Err(error) => panic!("{error:?}"),
            }
        };
        let serving = async {
            while let Ok(connection) = acceptor.accept().await {
                drop(connection);
            }
        };
        let asking = join_all((0..AT_ONCE).map(peer));
        let served =
            tokio::select! { biased; served = asking => served, () = serving => unreachable!("it goes on") };
        assert!(served.into_iter().filter(|served| *served).count() > AT_ONCE / 10);
    });
}

// ERR-07, ERR-10: each refusal has its outcome, and says whether the next attempt may succeed.
#[test]
fn refusals_are_told_apart() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let address = SocketAddr::new(server.address(), PORT);
        let connect = async |address| {
            let (queue_pair, connector) = (queue_pair(&active), active.connector());
            let params = ConnectParams::default().timeout(5 * SECOND);
            connector.connect(&queue_pair, address, params).await.map(drop)
        };
        let assert = |outcome: Result<(), ConnectError>, expected, temporary| {
            let error = outcome.expect_err("no connection");
            assert_eq!((error.outcome(), error.is_retryable()), (expected, temporary), "{error:?}");
        };
        assert(connect(address).await, Outcome::NoListener, true);
        let nowhere = "10.0.0.99:7".parse().expect("an address");
        assert(connect(nowhere).await, Outcome::NetworkUnreachable, true);

        let listener = passive.listener();
        listener.bind(address).expect("bound");
        listener.listen(1).expect("listening");
        // The first fills the backlog, and the second finds it full.
        let waiting = async {
            tokio::select! { biased; _ = connect(address) => panic!("nobody answers"), () = pending() => {} }
        };
        let refused = async {
            sleep(SECOND).await;
            connect(address).await
        };
        let full =
            tokio::select! { biased; full = refused => full, () = waiting => unreachable!("it goes on") };
        assert(full, Outcome::PeerUnable, true);
        // The one that has given up, and one that the application rejects.
        let rejecting = async {
            loop {
                let _ = listener.request().await.expect("a request").reject(b"not you").await;
            }
        };
        let rejected =
            tokio::select! { biased; outcome = connect(address) => outcome, () = rejecting => panic!() };
        assert(rejected, Outcome::PeerRejected, false);

        network.partition(&server, &client, 1000 * SECOND);
        assert(connect(address).await, Outcome::NoAnswer, true);
    });
}
