//! Ports, sockets and memory that run out, and come back.

use std::net::SocketAddr;

use tokio::time::{sleep, timeout};
use tokio_rdma::error::{BindError, ConnectError, OpenError, RegisterError};
use tokio_rdma::sim::{self, Network};
use tokio_rdma::{AcceptParams, Access, ConnectParams, Connector, Listener, PoolConfig, QueuePair, Status};

use crate::{SECOND, adapter, connected, exchange, hosts, listening, queue_pair};

const SEEDS: std::ops::Range<u64> = 0..20;

/// Connects, and is refused by the listener.
async fn asked(connector: &Connector, queue_pair: &QueuePair, address: SocketAddr, listener: &Listener) {
    let refusing = async {
        loop {
            // The first one may be of a peer that has given up.
            drop(listener.request().await.expect("a request"));
        }
    };
    let reply = tokio::select! {
        biased;
        reply = connector.connect(queue_pair, address, ConnectParams::default()) => reply,
        () = refusing => unreachable!("it goes on"),
    };
    let error = reply.map(drop).expect_err("the request was dropped");
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
}

// The limit fails what needs a port of the host's choice, and nothing else (SIM-03, SEC-16).
#[test]
fn ports_run_out_and_come_back() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (listener, address) = listening(&passive, &server);
        let (theirs, ours) = (queue_pair(&passive), queue_pair(&active));
        let bound = active.connector();
        client.limit_ports(Some(1));
        bound.bind((client.address(), 0).into()).expect("the first one");

        let error = active.connector().connect(&ours, address, ConnectParams::default()).await;
        let error = error.expect_err("no port is left");
        assert!(matches!(error, ConnectError::Bind(BindError::TooManyAddresses(_))), "{error:?}");
        assert_eq!(error.status(), Status::TOO_MANY_ADDRESSES);
        let error = active.listener().bind((client.address(), 0).into()).expect_err("no port is left");
        assert_eq!(error.status(), Status::TOO_MANY_ADDRESSES);
        // A port with a name, and the ports of the other host, are not affected.
        active.listener().bind((client.address(), 9).into()).expect("bound");
        passive.connector().bind((server.address(), 0).into()).expect("bound");

        let accept = async || listener.accept_next(&theirs, AcceptParams::default()).await.expect("accepted");
        let (connection, _) =
            tokio::join!(bound.connect_and_complete(&ours, address, ConnectParams::default()), accept());
        drop(connection.expect("it has its port"));
        client.limit_ports(None);
        let (theirs, ours) = connected(&client, &server).await;
        exchange(&theirs, &ours).await;
    });
}

// SIM-03, SEC-16: what needs a socket is refused, and what has one goes on.
#[test]
fn sockets_run_out_where_one_connects() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (theirs, ours) = connected(&server, &client).await;
        let (connector, queue_pair) = (ours.adapter.connector(), queue_pair(&ours.adapter));
        let (listener, address) = {
            let listener = theirs.adapter.listener();
            listener.bind((server.address(), 1).into()).expect("bound");
            listener.listen(0).expect("listening");
            let address = listener.local_addr().expect("it listens");
            (listener, address)
        };
        client.limit_sockets(Some(0));
        let error = connector.connect(&queue_pair, address, ConnectParams::default()).await;
        assert_eq!(error.expect_err("no socket is left").status(), Status::INSUFFICIENT_RESOURCES);
        let error =
            ours.adapter.listener().bind((client.address(), 7).into()).expect_err("no socket is left");
        assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES);
        let error = client.adapter().expect_err("the interface cannot be watched");
        assert!(matches!(error, OpenError::Os { .. }), "{error:?}");
        exchange(&theirs, &ours).await;

        client.limit_sockets(None);
        ours.adapter.listener().bind((client.address(), 7).into()).expect("bound");
        // The connector is as it was.
        asked(&connector, &queue_pair, address, &listener).await;
    });
}

// SIM-03, SEC-16: the listener goes on to listen, and serves the peer that has waited.
#[test]
fn sockets_run_out_where_one_accepts() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (listener, address) = listening(&passive, &server);
        let (theirs, ours) = (queue_pair(&passive), queue_pair(&active));
        // The adapter has one, and the listener.
        server.limit_sockets(Some(2));
        let connector = active.connector();
        let connecting = connector.connect_and_complete(&ours, address, ConnectParams::default());
        let accepting = listener.accept_next(&theirs, AcceptParams::default());
        let mut both = std::pin::pin!(async { tokio::join!(connecting, accepting) });
        let seconds = network.random(1..=60) as u32;
        timeout(seconds * SECOND, both.as_mut()).await.map(drop).expect_err("nobody accepts");
        server.limit_sockets(Some(3));
        let (connection, accepted) = timeout(SECOND, both).await.expect("soon");
        let _ends = (connection.expect("connected"), accepted.expect("accepted"));

        // One that gives up while it waits leaves nothing behind.
        let (second, other) = (active.connector(), queue_pair(&active));
        let params = ConnectParams::default().timeout(SECOND);
        let error = second.connect(&other, address, params).await.expect_err("nobody accepts");
        assert_eq!(error.status(), Status::IO_TIMEOUT);
        server.limit_sockets(Some(3 + 1));
        sleep(SECOND).await;
        asked(&second, &other, address, &listener).await;
    });
}

// The limit covers buffers, regions, pools and sockets of the host (SIM-03, SEC-16).
#[test]
fn memory_runs_out_and_comes_back() {
    const MUCH: usize = 1 << 20;
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (theirs, ours) = connected(&server, &client).await;
        let held = ours.adapter.buffer(MUCH).expect("memory");
        client.limit_memory(Some(2 * MUCH));
        let refused = |error: RegisterError| {
            assert!(matches!(error, RegisterError::OutOfMemory { .. }), "{error:?}");
            assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES);
        };
        refused(ours.adapter.buffer(MUCH + 1).expect_err("not so much"));
        refused(ours.adapter.register(MUCH + 1, Access::REMOTE_WRITE).await.expect_err("not so much"));
        let pool = ours.adapter.pool(PoolConfig::new(MUCH + 1, 1)).expect("a pool of nothing yet");
        refused(pool.get().await.expect_err("not so much"));
        exchange(&theirs, &ours).await;

        // Nothing is left, not even for a socket.
        let region = ours.adapter.register(MUCH, Access::REMOTE_WRITE).await.expect("as much as there is");
        refused(ours.adapter.buffer(1).expect_err("nothing is left"));
        let error = ours.adapter.connector().bind((client.address(), 0).into()).expect_err("no memory");
        assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES);

        drop(held);
        pool.get().await.map(drop).expect_err("still not so much");
        ours.adapter.buffer(MUCH).expect("what was dropped is there again");
        client.limit_memory(None);
        pool.get().await.expect("as much as it likes");
        drop(region);
        exchange(&theirs, &ours).await;
    });
}

// SIM-03, SEC-16: what is in use when the limit comes stays in use.
#[test]
fn a_limit_takes_nothing_away() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (theirs, ours) = connected(&server, &client).await;
        let region = theirs.adapter.register(100, Access::REMOTE_WRITE).await.expect("registered");
        let buffer = ours.adapter.buffer(100).expect("memory");
        for host in [&server, &client] {
            host.limit_ports(Some(0));
            host.limit_sockets(Some(0));
            host.limit_memory(Some(0));
        }
        ours.queue_pair.write(buffer, &region.remote()).expect("posted").await.0.expect("written");
        sleep(100 * SECOND).await;
        let (outcome, reason) = tokio::join!(ours.connection.disconnect(), theirs.connection.disconnected());
        outcome.expect("disconnected");
        assert_eq!(reason, tokio_rdma::DisconnectReason::Peer);
    });
}
