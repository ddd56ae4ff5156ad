//! The descriptors and tasks of streams that are connected by name, and connects without a descriptor.
//!
//! In separate processes, because they count and limit the descriptors of their process.

use std::net::Ipv4Addr;

use common::process::alone;
use common::resources::held;
use common::seeds::without_descriptors;
use common::*;
use tokio::runtime::Handle;
use tokio_rdma::error::{OpenError, StreamError};
use tokio_rdma::{Provider, RdmaConnector, RdmaListener, RdmaStream, Status};

/// The descriptors of this process and the tasks of this runtime.
fn in_use() -> (usize, usize) {
    (held()["descriptors"], Handle::current().metrics().num_alive_tasks())
}

/// Both ends of a stream.
async fn stream(listener: &RdmaListener) -> (RdmaStream, RdmaStream) {
    let connect = RdmaStream::connect(listener.local_addr().expect("an address"));
    let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
    (connected.expect("connected"), accepted.expect("accepted").0)
}

// IO-12: an end has a descriptor and a task, as the guide says; the adapter of all of them goes with the last.
#[tokio::test]
async fn streams_of_connect_share_one_adapter() {
    if !alone(module_path!(), "streams_of_connect_share_one_adapter") {
        return;
    }
    const STREAMS: usize = 16;
    let listener = RdmaListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bound");
    let before = in_use();
    let mut streams = vec![stream(&listener).await];
    let (descriptors, tasks) = in_use();
    for _ in 0..STREAMS {
        streams.push(stream(&listener).await);
    }
    assert_eq!(in_use(), (descriptors + 2 * STREAMS, tasks + 2 * STREAMS));
    drop(streams);
    life::eventually("all of them are closed", || in_use() == before).await;
}

// SEC-16, ERR-09: the cause is the limit of the process, not the network.
#[tokio::test]
async fn connects_without_a_descriptor_say_so() {
    if !alone(module_path!(), "connects_without_a_descriptor_say_so") {
        return;
    }
    let listener = RdmaListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let connector = RdmaConnector::new();
    let _holder = within(async { tokio::join!(connector.connect(address), listener.accept()) }).await;
    let restore = without_descriptors();
    let kept = within(connector.connect(address)).await.expect_err("no descriptor");
    let fresh = within(RdmaStream::connect(address)).await.expect_err("no descriptor");
    let local = Provider::soft().and_then(|soft| soft.local_for(address.ip())).expect_err("no descriptor");
    restore();
    assert!(matches!(local, OpenError::Os { call: "socket", .. }), "{local:?}");
    assert_eq!(kept.status(), Status::INSUFFICIENT_RESOURCES, "{kept}");
    let inner = fresh.get_ref().and_then(|error| error.downcast_ref::<StreamError>()).expect("its own error");
    assert_eq!(inner.status(), Status::INSUFFICIENT_RESOURCES, "{inner}");
    stream(&listener).await;
}
