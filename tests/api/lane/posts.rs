//! Posts that fail, between others and behind them: what was posted is handed over, and no room is lost.

use common::*;
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::qp::{Lane, LaneConfig, LaneState};
use tokio_rdma::{AcceptParams, Access, ConnectParams, ReadLimits};

use super::{fill, lane, variants};

// LN-03: without an outbound read limit no Read is posted, also if the lane has not looked at its new connection before.
#[tokio::test]
async fn reads_need_a_limit() {
    for (adapter, variant) in variants() {
        if adapter.info().read_sink_required {
            continue;
        }
        let region = adapter.register(64, Access::REMOTE_READ).await.expect("registered");
        let mut lane = lane(&adapter, LaneConfig::new(2, 64));
        let (id, end) = lane.queue_pair().expect("a queue pair");
        let (listener, address) = listening(&adapter);
        let (peer, connector) = (queue_pair(&adapter), adapter.connector());
        let params = ConnectParams::default().read_limits(ReadLimits::new(0, 0));
        let connecting = connector.connect_and_complete(&end, address, params);
        let _connections = joined(connecting, listener.accept_next(&peer, AcceptParams::default())).await;
        let slot = fill(&mut lane, b"mine");
        let read = |lane: &mut Lane| lane.read(id, slot, 0..8, &region.remote());
        assert_eq!(read(&mut lane), Err(PostErrorKind::NoReads), "{variant}: the first call");
        assert_eq!(lane.state(id), LaneState::Connected, "{variant}");
        assert_eq!(read(&mut lane), Err(PostErrorKind::NoReads), "{variant}");
        assert_eq!((lane.outstanding(), &lane.bytes(slot)[..4]), (0, &b"mine"[..]), "{variant}");
    }
}
