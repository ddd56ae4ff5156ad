//! The graceful end of a server whose client is alive and confirms nothing, over the soft provider.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use common::raw::{self, Raw, Start};
use common::stream::listening;
use common::*;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};
use tokio_rdma::{RdmaListener, StreamConfig};
use tonic::service::Routes;
use tonic::transport::Server;

const HOUR: Duration = Duration::from_secs(3600);

/// Connects and sends a request.
async fn ask(address: std::net::SocketAddr, request: &[u8]) -> Raw {
    let mut peer = Raw::dial(address).await;
    peer.say(&Start::peer_to_peer(16, 16).data(&raw::STREAM).encode(raw::REQUEST_KEY)).await;
    let ring = peer.start_frame(raw::REPLY_KEY).await.data[24..40].to_vec();
    let place = u64::from_be_bytes(ring[..8].try_into().expect("eight bytes"));
    let key = u32::from_be_bytes(ring[8..12].try_into().expect("four bytes"));
    peer.post(&raw::write(key, place, request)).await;
    peer.post(&raw::send(1, &(request.len() as u32).to_ne_bytes())).await;
    peer
}

/// Serves a client that answers no read until `serve` has ended in virtual time. `serve` gets what it serves and the sign to stop.
async fn ends<F>(serve: impl FnOnce(RdmaListener, Router, oneshot::Receiver<()>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = listening(&adapter(), &StreamConfig::default());
    let address = listener.local_addr().expect("bound");
    let asked = Arc::<Notify>::default();
    let asks = asked.clone();
    let router = Router::new().route("/", get(async move || asks.notify_one()));
    let (stop, stopped) = oneshot::channel();
    let served = tokio::spawn(serve(listener, router, stopped));
    let mut client = ask(address, b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").await;
    within(asked.notified()).await;
    tokio::time::pause();
    stop.send(()).expect("it serves");
    let lives = async {
        while client.stream.write_all(&raw::fpdu(&raw::write(0, 0, &[]), false)).await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        served = timeout(HOUR, served) => served.expect("it hangs").expect("no panic"),
        () = lives => unreachable!("it waits"),
    }
}

// IO-03, IO-14: a graceful end of a server awaits the shutdown of each connection, and a client that answers no read cannot keep it.
#[tokio::test]
async fn unresponsive_client_does_not_block_axum_shutdown() {
    ends(async |listener, router, stopped| {
        let serve =
            axum::serve(listener, router).with_graceful_shutdown(async { stopped.await.unwrap_or(()) });
        serve.await.expect("served");
    })
    .await;
}

// The same for tonic (IO-03, IO-14).
#[tokio::test]
async fn unresponsive_client_does_not_block_tonic_shutdown() {
    ends(async |listener, router, stopped| {
        let server = Server::builder().accept_http1(true).add_routes(Routes::from(router));
        let stop = async { stopped.await.unwrap_or(()) };
        server.serve_with_incoming_shutdown(listener, stop).await.expect("served");
    })
    .await;
}

// The same for hyper and its `GracefulShutdown` (IO-03, IO-14).
#[tokio::test]
async fn unresponsive_client_does_not_block_hyper_shutdown() {
    ends(async |listener, router, stopped| {
        let (stream, _peer) = listener.accept().await.expect("accepted");
        let service = TowerToHyperService::new(router);
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        let connections = GracefulShutdown::new();
        let served = tokio::spawn(connections.watch(connection));
        stopped.await.expect("a sign");
        connections.shutdown().await;
        // The client is not told from one that is gone.
        served.await.expect("no panic").expect_err("it did not confirm the end");
    })
    .await;
}
