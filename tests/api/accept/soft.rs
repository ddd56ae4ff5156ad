//! A request whose peer dies, which can be shown in one process only over TCP.

use std::net::SocketAddr;

use common::cm::*;
use common::*;
use tokio_rdma::Status;
use tokio_rdma::error::AcceptError;

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

/// Shuts down the socket of this process that has these addresses, which is all that its peer sees of a death.
fn cut(local: SocketAddr, peer: SocketAddr) {
    use nix::sys::socket::{Shutdown, SockaddrIn, getpeername, getsockname, shutdown};
    let is = |found: nix::Result<SockaddrIn>, wanted| {
        found.is_ok_and(|found| SocketAddr::V4(found.into()) == wanted)
    };
    let found = (3..20_000).find(|fd| is(getsockname(*fd), local) && is(getpeername(*fd), peer));
    shutdown(found.expect("a socket"), Shutdown::Both).expect("shut down");
}
