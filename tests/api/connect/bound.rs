//! The address of a bound connector, over attempts that come to nothing.
//!
//! Runs on: soft, sim, rxe, siw
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::sync::Barrier;

use common::cm::*;
use common::device::skips;
use common::*;
use tokio_rdma::error::{BindError, ConnectError};
use tokio_rdma::{Adapter, ConnectParams, Connector, Status};

/// A connector that is bound, and its address.
fn bound(adapter: &Adapter) -> (Connector, std::net::SocketAddr) {
    let connector = adapter.connector();
    connector.bind((v4(), 0).into()).expect("bound");
    let local = connector.local_addr().expect("bound");
    (connector, local)
}

// An option that cannot be had leaves the connector bound (CM-19), and the connection comes from its address (CM-01).
#[tokio::test]
async fn refused_option_leaves_the_bound_address() {
    let adapter = adapter();
    let active = queue_pair(&adapter);
    let (connector, local) = bound(&adapter);
    for params in [ConnectParams::default().traffic_class(3), ConnectParams::default().multipath(true)] {
        match within(connector.connect(&active, nobody(v4()), params)).await {
            Err(ConnectError::NotSupported(_) | ConnectError::Refused { .. }) => {}
            outcome => panic!("{outcome:?}"),
        }
        assert_eq!(connector.local_addr(), Ok(local));
    }
    let link = connect_on(&adapter, &active, &connector).await;
    assert_eq!((link.ours.local_addr(), link.theirs.peer_addr()), (local, local));
}

// The same after a connect to its own address, which is refused (CM-15), and uses the socket up.
#[tokio::test]
async fn connect_to_itself_leaves_the_bound_address() {
    if !Device::under_test().is_soft() {
        eprintln!("skipped: an unspecified address is a matter of the soft provider");
        return;
    }
    let adapter = adapter();
    let (connector, active) = (adapter.connector(), queue_pair(&adapter));
    connector.bind((std::net::Ipv4Addr::UNSPECIFIED, 0).into()).expect("bound");
    let local = connector.local_addr().expect("bound");
    let myself = (v4(), local.port()).into();
    let error = within(connector.connect(&active, myself, ConnectParams::default())).await;
    let error = error.expect_err("nobody listens");
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    assert_eq!(connector.local_addr(), Ok(local));
    let link = connect_on(&adapter, &active, &connector).await;
    assert_eq!(link.theirs.peer_addr(), myself);
}

// A port that another program takes after an attempt is missing for as long as that has it (CM-01, CM-19).
#[tokio::test]
async fn port_taken_after_an_attempt_is_bound_later() {
    if !Device::under_test().has_sockets() {
        eprintln!("skipped: the port of another program is a matter of sockets");
        return;
    }
    let adapter = adapter();
    let active = queue_pair(&adapter);
    let (connector, local) = bound(&adapter);
    let (listener, address) = common::raw::Raw::listener().await;
    let attempt = connector.connect(&active, address, ConnectParams::default());
    let take = async {
        let accepted = listener.accept().await.expect("a connection");
        let other =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        other.set_reuse_address(true).expect("set");
        other.bind(&local.into()).expect("bound");
        other.listen(1).expect("listening");
        drop(accepted);
        other
    };
    let (outcome, other) = within(async { tokio::join!(attempt, take) }).await;
    assert_eq!(outcome.expect_err("no reply").status(), Status::CONNECTION_REFUSED);
    assert_eq!(connector.local_addr(), Ok(local));
    let error = within(connector.connect(&active, address, ConnectParams::default())).await;
    let error = error.expect_err("the port is taken");
    assert!(matches!(error, ConnectError::Bind(BindError::SharingViolation(_))), "{error:?}");
    assert!(error.is_retryable() && error.is_connector_usable());
    drop(other);
    let link = connect_on(&adapter, &active, &connector).await;
    assert_eq!(link.theirs.peer_addr(), local);
}

// Of two binds at once one has bound the connector, and the other says so (CM-02).
#[test]
fn one_of_two_binds_at_once_succeeds() {
    if skips(Device::Sim, "threads have no turns in a simulated network") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let adapter = runtime.block_on(async { adapter() });
    let start = Barrier::new(2);
    let connectors: Vec<_> = (0..often(1000, 50)).map(|_| adapter.connector()).collect();
    let work = || {
        let bind = |connector: &Connector| {
            start.wait();
            connector.bind((v4(), 0).into())
        };
        connectors.iter().map(bind).collect::<Vec<_>>()
    };
    let [first, second] = std::thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.map(|thread| thread.join().expect("no panic"))
    });
    for (connector, outcomes) in connectors.iter().zip(first.into_iter().zip(second)) {
        let refused = match outcomes {
            (Ok(()), Err(refused)) | (Err(refused), Ok(())) => refused,
            outcomes => panic!("{outcomes:?}"),
        };
        let local = connector.local_addr().expect("bound");
        assert!(matches!(refused, BindError::AlreadyBound(address) if address == local), "{refused:?}");
    }
}
