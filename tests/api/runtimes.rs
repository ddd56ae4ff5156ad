//! Runtimes that cannot serve an adapter are refused when it is opened, not by a panic of a task later.

use std::net::{IpAddr, Ipv4Addr};

use tokio::runtime::Builder;
use tokio_rdma::error::{OpenError, StreamError};
use tokio_rdma::{Adapter, RdmaConnector, RdmaStream, Status, StreamConfig};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[test]
fn a_runtime_that_lacks_a_driver_is_refused() {
    for (time, io, missing) in [(false, true, "enable_time"), (true, false, "enable_io"), (false, false, "")]
    {
        let mut builder = Builder::new_current_thread();
        if time {
            builder.enable_time();
        }
        if io {
            builder.enable_io();
        }
        let runtime = builder.build().expect("a runtime");
        runtime.block_on(async {
            let error = Adapter::open(LOCALHOST).expect_err("it could not work");
            assert!(matches!(&error, OpenError::Unsupported(what) if what.contains(missing)), "{error}");
            assert_eq!(error.status(), Status::NOT_SUPPORTED);
            // A stream needs the timers of its own runtime, whichever the adapter's is.
            let connect = RdmaConnector::new().connect("localhost:7");
            let error = connect.await.expect_err("it could not work");
            assert!(matches!(error, StreamError::Open(OpenError::Unsupported(_))), "{error}");
            let error = RdmaStream::connect((LOCALHOST, 7)).await.expect_err("it could not work");
            assert_eq!(Status::from_io(&error), Status::NOT_SUPPORTED, "{error}");
        });
    }
}

#[test]
fn a_limit_needs_timers_wherever_the_adapter_runs() {
    let home = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let adapter = home.block_on(async { Adapter::open(LOCALHOST).expect("opened") });
    let bare = Builder::new_current_thread().build().expect("a runtime");
    let (peer, config) = ((LOCALHOST, 7).into(), StreamConfig::default());
    let error = bare.block_on(RdmaStream::connect_on(&adapter, peer, &config)).expect_err("no timers");
    assert!(matches!(error, StreamError::Open(OpenError::Unsupported(_))), "{error}");
    // Without a limit there is nothing to time: the adapter has a runtime of its own.
    let patient = config.connect_timeout(None);
    let error = bare.block_on(RdmaStream::connect_on(&adapter, peer, &patient)).expect_err("nobody listens");
    assert!(matches!(error, StreamError::Connect(_)), "{error}");
}

#[test]
fn missing_runtime_is_reported_as_unsupported() {
    let error = Adapter::open(LOCALHOST).expect_err("nobody would run its tasks");
    assert!(matches!(&error, OpenError::Unsupported(what) if what.contains("no tokio runtime")), "{error}");
}
