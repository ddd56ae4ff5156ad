//! A request whose peer dies, which can be shown in one process only over TCP.

use std::net::SocketAddr;

use common::cm::*;
use common::*;
use tokio_rdma::error::{AcceptError, NotifyError};
use tokio_rdma::{AcceptParams, CompletionQueueConfig, ConnectParams, NotifyKind, QueuePairConfig, Status};

// LS-15, X1: the active side vanishes without a word after the accept: aborted, not refused.
#[tokio::test]
async fn accept_sees_the_death_of_the_peer() {
    let adapter = adapter();
    let open = half_open(&adapter, v4()).await;
    cut(open.reply.local_addr(), open.reply.peer_addr());
    let error = outcome(open.accepting).await.expect_err("it died");
    assert!(matches!(error, AcceptError::Aborted { .. }), "{error:?}");
    assert_eq!(error.status(), Status::CONNECTION_ABORTED);
    assert_usable(&adapter, &open.passive).await;
}

// The completion queue of a queue pair overruns while its accept is pending: no later call waits for the queue pair (CQ-05).
#[tokio::test]
async fn completion_queue_overrun_fails_pending_and_later_accepts() {
    let adapter = adapter();
    let results = adapter.completion_queue(CompletionQueueConfig::default().depth(1)).expect("a queue");
    let config = QueuePairConfig::default().receive_completions(&results);
    let (other, passive) = [(); 2].map(|()| adapter.queue_pair(config.clone()).expect("a queue pair")).into();
    let (listener, address) = listening(&adapter);
    let connector = adapter.connector();
    let active = queue_pair(&adapter);
    let accepting = tokio::spawn({
        let (listener, passive) = (listener.clone(), passive.clone());
        async move { listener.accept_next(&passive, AcceptParams::default()).await }
    });
    let reply = within(connector.connect(&active, address, ConnectParams::default())).await;
    let receives = [(); 2].map(|()| other.receive(adapter.buffer(8).expect("memory")).expect("posted"));
    other.flush();
    assert_eq!(within(results.notify(NotifyKind::Errors)).await, Err(NotifyError::Overrun { depth: 1 }));
    outcome(accepting).await.expect_err("its queue pair cannot be used");
    drop((reply, receives));
    let next = queue_pair(&adapter);
    let connector = std::sync::Arc::new(adapter.connector());
    let connecting = connecting(&connector, &next, address, ConnectParams::default());
    let error = within(listener.accept_next(&passive, AcceptParams::default())).await;
    error.expect_err("the queue pair has ended");
    abandon_or_refused(connecting).await;
}

/// Waits for the end of a connect whose request nobody accepts.
async fn abandon_or_refused<T>(connecting: tokio::task::JoinHandle<T>) {
    connecting.abort();
    let _ = within(connecting).await;
}

/// Shuts down the socket of this process that has these addresses, which is all that its peer sees of a death.
fn cut(local: SocketAddr, peer: SocketAddr) {
    use nix::sys::socket::{Shutdown, SockaddrIn, getpeername, getsockname, shutdown};
    let is = |found: nix::Result<SockaddrIn>, wanted| {
        found.is_ok_and(|found| SocketAddr::V4(found.into()) == wanted)
    };
    let found = (3..20_000).find(|fd| is(getsockname(*fd), local) && is(getpeername(*fd), peer));
    shutdown(found.expect("a socket"), Shutdown::Both).expect("shut down");
}
