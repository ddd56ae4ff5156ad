//! Stream listeners: the port of a dropped listener, and accepts that are not polled.
//!
//! Runs on: soft, sim, rxe

use common::device::nobody;
use common::stream::listening;
use common::*;
use tokio_rdma::{Adapter, RdmaListener, RdmaStream, StreamConfig};

/// Listens and stops again, many times, always at one address.
async fn again_and_again(adapter: &Adapter) {
    let (address, config) = (nobody(v4()), StreamConfig::default());
    for round in 0..often(100, 10) {
        let bound = RdmaListener::bind_on(adapter, address, &config);
        let listener = bound.unwrap_or_else(|error| panic!("round {round}: {error}"));
        if round % 2 == 0 {
            // A stream waits to be accepted.
            within(RdmaStream::connect_on(adapter, address, &config)).await.expect("connected");
        }
        drop(listener);
    }
}

// One address is bound again and again, also while a connection waits to be accepted (LS-08).
#[tokio::test]
async fn dropped_listener_frees_port_at_once() {
    again_and_again(&adapter()).await;
}

// The listener is dropped on another thread than the tasks that serve it run on (LS-08).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_listener_frees_port_on_any_thread() {
    // The tasks of the listener run on the workers, this on a thread of its own.
    again_and_again(&adapter()).await;
}

#[tokio::test]
async fn unpolled_accept_does_not_delay_others() {
    let (adapter, config) = (adapter(), StreamConfig::default());
    let listener = listening(&adapter, &config);
    let connect = async || {
        let stream = RdmaStream::connect_on(&adapter, listener.local_addr().expect("an address"), &config);
        stream.await.expect("connected").local_addr().expect("an address")
    };
    // This accept is the oldest, and is not polled again.
    let mut kept = Box::pin(listener.accept());
    assert!(futures::poll!(&mut kept).is_pending());
    for _ in 0..3 {
        let (connected, accepted) = within(async { tokio::join!(connect(), listener.accept()) }).await;
        assert_eq!(accepted.expect("accepted").1, connected);
    }
    assert!(futures::poll!(&mut kept).is_pending(), "the others have them all");
    let (connected, accepted) = within(async { tokio::join!(connect(), kept) }).await;
    assert_eq!(accepted.expect("accepted").1, connected);
}
