//! The cases in messages over streams of the device under test.
//!
//! Runs on: soft, sim, fake, fake-iwarp, rxe, siw

use common::{adapter, stream};
use tokio_rdma::{RdmaStream, StreamConfig};
use tokio_rdma_rpc::{Channel, Config, serve};
use tonic::Code;

use crate::routes;

all_cases!(channel, &[Code::DeadlineExceeded]);

/// Connects to a server of its own, which ends with the runtime of the test.
async fn channel() -> Channel {
    let adapter = adapter();
    let listener = stream::listening(&adapter, &StreamConfig::default());
    let address = listener.local_addr().expect("an address");
    tokio::spawn(serve(listener, routes()));
    Channel::with_connector(&address.to_string(), false, Config::default(), move || {
        let adapter = adapter.clone();
        async move { Ok(RdmaStream::connect_on(&adapter, address, &StreamConfig::default()).await?) }
    })
}
