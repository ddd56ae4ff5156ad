//! Peers that accept the TCP connection and say nothing: a connect has a limit.

use std::time::Duration;

use common::*;
use tokio::net::TcpListener;
use tokio_rdma::error::StreamError;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{RdmaConnector, RdmaStream, Status, StreamConfig};

const LIMIT: Duration = Duration::from_secs(10);

/// Binds a listener at which the kernel accepts and no program does.
async fn mute() -> (TcpListener, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

#[track_caller]
fn assert_late<T>(outcome: Result<T, StreamError>, address: std::net::SocketAddr, limit: Duration) {
    let Err(error) = outcome else { panic!("nobody has accepted") };
    assert!(matches!(error, StreamError::TimedOut { limit: found, .. } if found == limit), "{error:?}");
    assert_eq!(error.status(), Status::IO_TIMEOUT);
    assert_eq!(error.to_string(), format!("{address} did not accept within {limit:?}"));
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::TimedOut);
}

// The kernel accepts and no reply follows: the default limit holds for each way to connect (IO-07).
#[tokio::test(start_paused = true)]
async fn a_connect_gives_up_after_ten_seconds() {
    let (_listener, address) = mute().await;
    let adapter = adapter_with(SoftConfig::default());
    let start = tokio::time::Instant::now();
    let error = RdmaStream::connect(address).await.expect_err("nobody answers");
    let inside = error.into_inner().expect("an error of this crate").downcast::<StreamError>();
    assert_late::<()>(Err(*inside.expect("of a stream")), address, LIMIT);
    assert_late(RdmaConnector::new().connect(address).await, address, LIMIT);
    assert_late(RdmaStream::connect_on(&adapter, address, &StreamConfig::default()).await, address, LIMIT);
    assert!(start.elapsed() >= 3 * LIMIT && start.elapsed() < 4 * LIMIT, "{:?}", start.elapsed());
}

// `StreamConfig::connect_timeout` replaces the default, and `None` leaves the limit to the caller (IO-07).
#[tokio::test(start_paused = true)]
async fn the_limit_is_a_setting() {
    let (_listener, address) = mute().await;
    let adapter = adapter_with(SoftConfig::default());
    let short = Duration::from_secs(3);
    let stream = StreamConfig::default().connect_timeout(Some(short));
    assert_late(RdmaConnector::new().config(stream).connect(address).await, address, short);
    assert_late(RdmaStream::connect_on(&adapter, address, &stream).await, address, short);
    // The limit of a connector holds for any protocol.
    let never = |_, _| std::future::pending::<Result<(), StreamError>>();
    assert_late(RdmaConnector::new().config(stream).connect_with(address, never).await, address, short);
    // Without one it is the caller's.
    let patient = RdmaConnector::new().config(stream.connect_timeout(None));
    tokio::time::timeout(100 * LIMIT, patient.connect(address)).await.expect_err("it waits");
}

// IO-07: one limit for all addresses, and the result of each attempt.
#[tokio::test(start_paused = true)]
async fn connect_limit_covers_all_addresses() {
    let (_listeners, addresses): (Vec<_>, Vec<_>) =
        [mute().await, mute().await, mute().await].into_iter().unzip();
    let start = tokio::time::Instant::now();
    let error = RdmaConnector::new().connect(&addresses[..]).await.expect_err("nobody accepts");
    assert!(start.elapsed() >= LIMIT && start.elapsed() < 2 * LIMIT, "{:?}", start.elapsed());
    let StreamError::Attempts(attempts) = &error else { panic!("{error:?}") };
    assert_eq!(attempts.iter().map(|(address, _)| *address).collect::<Vec<_>>(), addresses);
    for (address, error) in attempts {
        assert_late(Err::<(), _>(error.clone()), *address, LIMIT);
    }
    assert_eq!(error.status(), Status::IO_TIMEOUT);
}
