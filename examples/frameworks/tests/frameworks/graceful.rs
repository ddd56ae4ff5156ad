//! The graceful end of a server whose client is alive and confirms nothing, over the soft provider.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use common::raw::{self, Raw, Start};
use common::stream::listening;
use common::*;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};
use tokio_rdma::StreamConfig;

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

// IO-03, IO-14: a graceful end of a server awaits the shutdown of each connection, and a client that answers no read cannot keep it.
#[tokio::test]
async fn a_client_that_confirms_nothing_does_not_keep_a_server() {
    let listener = listening(&adapter(), &StreamConfig::default());
    let address = listener.local_addr().expect("bound");
    let asked = Arc::<Notify>::default();
    let asks = asked.clone();
    let router = Router::new().route("/", get(async move || asks.notify_one()));
    let (stop, stopped) = oneshot::channel::<()>();
    let serve = axum::serve(listener, router).with_graceful_shutdown(async { stopped.await.unwrap_or(()) });
    let served = tokio::spawn(serve.into_future());
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
        served = timeout(HOUR, served) => served.expect("it hangs").expect("no panic").expect("served"),
        () = lives => unreachable!("it waits"),
    }
}
