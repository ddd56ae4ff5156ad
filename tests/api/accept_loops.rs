//! The accept loops of the guide and of the docs, with a peer that does not complete its connection.
//!
//! Runs on: soft, sim

#[path = "../../docs/snippets/accept_loop.rs"]
#[allow(unreachable_pub, reason = "the code of the docs")]
mod accept_loop;
#[path = "../../docs/snippets/request_loop.rs"]
#[allow(unreachable_pub, reason = "the code of the docs")]
mod request_loop;

use std::io;

use common::raw::success;
use common::*;
use futures::poll;
use tokio_rdma::error::{AcceptError, StateError};
use tokio_rdma::{AcceptorConfig, Adapter, ConnectParams, Listener};

/// The loop serves others while a peer has its reply and says nothing.
async fn assert_serves<F>(serve: impl FnOnce(Adapter, Listener) -> F)
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let server = tokio::spawn(serve(adapter.clone(), listener));
    let (idle, connector) = (queue_pair(&adapter), adapter.connector());
    let silent = within(connector.connect(&idle, address, ConnectParams::default())).await.expect("accepted");
    for _ in 0..3 {
        let (active, connector) = (queue_pair(&adapter), adapter.connector());
        let answer = active.receive(adapter.buffer(64).expect("memory")).expect("posted");
        let connect = connector.connect_and_complete(&active, address, ConnectParams::default());
        let connection = within(connect).await.expect("connected");
        success(active.send(adapter.buffer_from(b"hello").expect("memory")).expect("posted")).await;
        assert_eq!(&success(answer).await.1[..5], b"hello");
        within(connection.disconnect()).await.expect("disconnected");
    }
    drop(silent);
    server.abort();
}

// SEC-08, LS-25: the one of the guide and of `Listener`.
#[tokio::test]
async fn acceptor_serves_others_despite_a_silent_peer() {
    let loop_of_docs = include_str!("../../docs/snippets/accept_loop.rs");
    let guide = include_str!("../../docs/guide/src/negotiation.md");
    assert!(guide.contains(loop_of_docs), "the guide has another loop");
    assert_serves(accept_loop::serve).await;
}

// SEC-08: the one of `Listener::request`.
#[tokio::test]
async fn request_loop_serves_others_despite_a_silent_peer() {
    assert_serves(request_loop::serve_requests).await;
}

// The port is free at once (LS-08), although another handle of the listener is kept.
#[tokio::test]
async fn dropping_an_acceptor_closes_a_kept_listener() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let acceptor =
        listener.acceptor(AcceptorConfig::default(), |_request| async { Ok(()) }).expect("accepting");
    let mut waiting = Box::pin(listener.request());
    assert!(poll!(&mut waiting).is_pending());
    drop(acceptor);
    assert!(matches!(within(waiting).await, Err(AcceptError::Canceled)));
    assert_eq!(listener.local_addr(), Err(StateError::InvalidDeviceState));
    let next = adapter.listener();
    next.bind(address).expect("the port is free");
    next.listen(1).expect("listening");
}
