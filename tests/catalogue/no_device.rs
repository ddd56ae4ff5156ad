//! The API for devices on a host without devices, with and without the feature `verbs`.
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::path::Path;

use common::cm::{exchange, nobody};
use common::*;
use tokio_rdma::error::{ConnectError, OpenError};
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Provider, Status};

/// Returns whether this machine has a device after all.
fn has_devices() -> bool {
    let devices = Path::new("/sys/class/infiniband").read_dir();
    let some = devices.is_ok_and(|mut devices| devices.next().is_some());
    if some {
        eprintln!("skipped: needs a machine without an RDMA device");
    }
    some
}

// `Adapter::open` takes the soft provider for an address that no device has (PRV-01).
#[tokio::test]
async fn without_a_device_everything_is_soft() {
    if has_devices() {
        return;
    }
    let error = Provider::verbs().map(drop).expect_err("there is no device");
    assert!(matches!(error, OpenError::Unsupported(_)), "{error:?}");
    assert_eq!(error.status(), Status::NOT_SUPPORTED);
    assert!(Provider::all().iter().all(Provider::is_software));
    let adapter = Adapter::open(v4()).expect("the soft provider has it");
    let pair = connected(&adapter).await;
    exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
}

// TCP has no such options, so the calls fail, and the queue pair stays usable (CM-34).
#[tokio::test]
async fn options_of_devices_are_not_supported_by_soft() {
    let adapter = adapter();
    let own = queue_pair(&adapter);
    let cases = [
        ConnectParams::default().retry_count(1),
        ConnectParams::default().rnr_retry_count(1),
        ConnectParams::default().ack_timeout(14),
    ];
    for params in cases {
        let connector = adapter.connector();
        let error = within(connector.connect(&own, nobody(v4()), params)).await.expect_err("not supported");
        assert!(matches!(error, ConnectError::NotSupported(_)), "{error:?}");
        assert_eq!(error.status(), Status::NOT_SUPPORTED);
    }
    for params in [AcceptParams::default().rnr_retry_count(1), AcceptParams::default().ack_timeout(14)] {
        let (listener, address) = listening(&adapter);
        let connector = adapter.connector();
        let theirs = queue_pair(&adapter);
        let connect = connector.connect(&theirs, address, ConnectParams::default());
        let accept = async {
            let request = listener.request().await.expect("a request");
            let status = request.accept(&own, params).await.map(drop).map_err(|retained| retained.status());
            assert_eq!(status, Err(Status::NOT_SUPPORTED));
        };
        let (connected, ()) = within(async { tokio::join!(connect, accept) }).await;
        // The request that was kept goes with the call's error.
        assert_eq!(connected.map(drop).expect_err("refused").status(), Status::CONNECTION_REFUSED);
    }
    // Neither call has used the queue pair.
    common::cm::assert_usable(&adapter, &own).await;
}
