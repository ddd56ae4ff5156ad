//! Streams over the loopback of the kernel, whose TCP connections end.
//!
//! Runs on: soft

use std::time::Duration;

use common::relay::{Cut, Relay};
use common::session::{config, connected, path, resumed, transfer};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Provider, RdmaConnector, RdmaListener};

const STAGES: usize = 4;
const PATH_TIMEOUT: Duration = Duration::from_secs(4);

/// Cuts the connection of a stream several times, while bytes pass both ways.
async fn stream_outlives(cut: Cut) {
    let soft = Provider::soft_with(SoftConfig::default().path_timeout(Some(PATH_TIMEOUT)));
    let bound = RdmaListener::bind_with_provider(&soft, "127.0.0.1:0", &config()).await;
    let listener = bound.expect("bound");
    let relay = Relay::start(listener.local_addr().expect("an address")).await;
    let connector = RdmaConnector::new().provider(soft).config(config());
    let (mut ours, mut theirs) = connected(&listener, connector.connect(relay.address)).await;
    let mut changes = ours.path_changes();
    transfer(&mut ours, &mut theirs, STAGES, async |stage| {
        relay.cut(cut);
        resumed(&mut changes, stage as u64 + 1).await;
    })
    .await;
    for end in [&ours, &theirs] {
        assert_eq!(path(end).resumes, STAGES as u64 - 1, "{cut:?}");
    }
}

#[tokio::test]
async fn stream_outlives_resets() {
    stream_outlives(Cut::Reset).await;
}

#[tokio::test]
async fn stream_outlives_silence() {
    stream_outlives(Cut::Silence).await;
}
