//! Posts that fail, between others and behind them: what was posted is handed over, and no room is lost.

use common::raw::bytes;
use common::*;
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::qp::{Lane, LaneConfig, LaneState};
use tokio_rdma::{AcceptParams, Access, ConnectParams, ReadLimits};

use super::{completions, fill, join, lane, variants};

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

// LN-02: what comes before a request that fails is handed over by the call, and waits for no poll.
#[tokio::test]
async fn requests_before_a_failed_one_are_handed_over() {
    for (adapter, variant) in variants() {
        let mut joined = join(&adapter, LaneConfig::new(8, 64), 0).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let room = || joined.peer.receive(adapter.buffer(64).expect("a buffer")).expect("posted");
        let receives = [room(), room()];
        let (first, second, free) = (fill(lane, b"one"), fill(lane, b"two"), fill(lane, b"free"));
        lane.give(free);
        let not_held = Err(PostErrorKind::NotHeld { slot: free.number() });
        assert_eq!(lane.send_all(id, [(first, 3), (second, 3), (free, 3)]), not_held, "{variant}");
        for (receive, message) in receives.into_iter().zip([b"one", b"two"]) {
            let (outcome, buffer) = within(receive).await;
            assert_eq!(&buffer[..outcome.expect("received").bytes], message, "{variant}");
        }
        completions(lane, 2).await.iter().for_each(|done| done.ok().expect("sent"));
        assert_eq!(lane.receive_all(id, [first, second, free]), not_held, "{variant}");
        assert_eq!(lane.outstanding(), 2, "{variant}");
        for _ in 0..2 {
            within(joined.peer.send(bytes(&adapter, b"back")).expect("posted")).await.0.expect("sent");
        }
        let done = completions(lane, 2).await;
        assert_eq!([done[0].slot(), done[1].slot()], [first, second], "{variant}");
    }
}
