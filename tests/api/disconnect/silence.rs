//! Silent peers: when the soft provider closes a connection, and when it does not.

use std::time::Duration;

use common::raw::{self, Start, bytes, raw_accepts, room, success};
use common::*;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{AcceptParams, ConnectParams, ReadLimits};

/// More than two sockets hold between them.
const MORE_THAN_SOCKETS_HOLD: usize = 32 << 20;

// DIS-11: silence is counted from the question, and a peer that could not be asked has not been silent.
#[tokio::test]
async fn path_timeout_excludes_time_with_a_full_socket() {
    let adapter = adapter_with(SoftConfig::default().path_timeout(Some(Duration::from_secs(20))));
    let (end, mut peer, _) = raw_accepts(&adapter, Start::peer_to_peer(4, 4)).await;
    let receive = end.queue_pair.receive(room(&adapter, 8)).expect("posted");
    let long = end.queue_pair.send(room(&adapter, MORE_THAN_SOCKETS_HOLD)).expect("posted");
    // Half of the timeout passes while the socket is full, so that nothing can be asked.
    pass(Duration::from_secs(11)).await;
    while !peer.message().await.expect("the connection lives").is_last() {}
    success(long).await;
    // The next half ends: now it is asked.
    pass(Duration::from_secs(10)).await;
    let question = peer.message().await.expect("the connection lives");
    assert_eq!((question.opcode(), question.read_size()), (raw::READ_REQUEST, 0));
    peer.post(&question.answer(&[])).await;
    peer.post(&raw::send(1, b"I live")).await;
    assert_eq!(success(receive).await.0, 6);
}

// DIS-11: without reads nobody can be asked, for however long.
#[tokio::test]
async fn an_idle_connection_without_reads_lives_on() {
    let adapter = adapter_with(SoftConfig::default().path_timeout(Some(Duration::from_secs(2))));
    let connect = ConnectParams::default().read_limits(ReadLimits::NONE);
    let Pair { active, passive } = connected_with(&adapter, connect, AcceptParams::default()).await;
    pass(Duration::from_secs(300)).await;
    let receive = passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    success(active.queue_pair.send(bytes(&adapter, b"hello")).expect("posted")).await;
    assert_eq!(success(receive).await.0, 5);
}
