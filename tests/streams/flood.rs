//! Listeners for streams with many peers that connect and then say nothing, over the soft provider.
//!
//! No time limit of a listener is over while a test runs: peers that make no room for others would delay them for an hour. The
//! time that an honest peer waits is a test of the simulated network, as are peers that ask for streams and do not complete them: the
//! time that a listener leaves an honest peer to complete its handshake is that of the clock, and not of a busy machine.

use std::time::Duration;

use common::crowd::{Crowd, raise_descriptors};
use common::process::alone;
use common::stream::listening;
use common::*;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Adapter, RdmaStream, StreamConfig};

const HOUR: Duration = Duration::from_secs(3600);

/// Peers that have sent nothing.
const PEERS: usize = 2000;

/// The adapter of a server with fewer places for half-open peers than the crowd has.
fn server() -> Adapter {
    adapter_with(SoftConfig::default().half_open(1024).request_timeout(HOUR))
}

// Silent peers make room for others (IO-10, SEC-07).
#[tokio::test]
async fn silent_peers_delay_no_stream() {
    if !alone(module_path!(), "silent_peers_delay_no_stream") {
        return;
    }
    // Small ones, so that the time of a test without optimisation is not that of their preparation.
    let config = StreamConfig::default().send_buffer(1 << 14).receive_buffer(1 << 14);
    let config = config.send_depth(16).receive_depth(16).handshake_timeout(HOUR);
    let adapter = server();
    let listener = listening(&adapter, &config);
    let address = listener.local_addr().expect("bound");
    assert!(raise_descriptors() > 2 * PEERS + 100, "too few descriptors for this test");
    let mut crowd = Crowd::new(address, PEERS, Vec::new()).await;
    for _ in 0..9 {
        crowd.renewed(100).await;
        let connect = RdmaStream::connect_on(&adapter, address, &config);
        let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
        drop((connected.expect("connected"), accepted.expect("accepted")));
    }
}
