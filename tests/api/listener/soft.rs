//! The settings of the passive side of the soft provider: none of them limits the wait for a slow peer.

use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use common::cm::*;
use common::*;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{AcceptParams, ConnectParams};

/// Waits until a listener with a request timeout has thrown a silent peer out: time has passed, and that is the event.
async fn until_a_silent_peer_is_thrown_out(address: SocketAddr) {
    let waiting = tokio::task::spawn_blocking(move || {
        let mut silent = std::net::TcpStream::connect(address).expect("connected");
        let _ = silent.read(&mut [0; 1]);
    });
    outcome(waiting).await;
}

/// As short as they go: whatever ends a slow peer would.
fn impatient() -> SoftConfig {
    let short = Duration::from_millis(20);
    SoftConfig::default().request_timeout(short).disconnect_timeout(short).path_timeout(Some(short))
}

// LS-13, CM-09: and no setting ends the wait (X8).
#[tokio::test]
async fn accept_is_pending_until_the_peer_completes() {
    let adapter = adapter_with(impatient());
    let (_clock, clock) = listening(&adapter);
    let open = half_open(&adapter, v4()).await;
    assert!(!open.accepting.is_finished());
    for _ in 0..5 {
        until_a_silent_peer_is_thrown_out(clock).await;
        assert!(!open.accepting.is_finished());
    }
    let _ours = within(open.reply.complete()).await.expect("complete");
    let _theirs = outcome(open.accepting).await.expect("accepted");
    exchange(&adapter, &open.active, &open.passive).await;
}

// LS-24: the same of a request that waits for its accept.
#[tokio::test]
async fn a_slow_acceptor_is_waited_for() {
    let adapter = adapter_with(impatient());
    let asked = requested(&adapter, v4(), ConnectParams::default()).await;
    let address = asked.listener.local_addr().expect("it listens");
    for _ in 0..5 {
        until_a_silent_peer_is_thrown_out(address).await;
        assert!(!asked.connecting.is_finished());
    }
    // Others are served meanwhile.
    let pair = connected(&adapter).await;
    exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
    let passive = queue_pair(&adapter);
    let accepting = tokio::spawn({
        let passive = passive.clone();
        async move { asked.request.accept(&passive, AcceptParams::default()).await }
    });
    let reply = outcome(asked.connecting).await.expect("the peer accepts");
    let _ours = within(reply.complete()).await.expect("complete");
    let _theirs = outcome(accepting).await.expect("accepted");
    exchange(&adapter, &asked.active, &passive).await;
}
