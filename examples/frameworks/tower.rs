//! The connector with tower: a client that starts before its server, and retries.
//!
//! tokio-rdma itself has no retries: `RdmaConnector` is a `Service<Uri>`, and tower's layers add them.
//!
//! ```sh
//! cargo run --release -p frameworks --example tower
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "../report/mod.rs"]
mod report;

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};
use tokio_rdma::{RdmaConnector, RdmaListener};
use tower::retry::Policy;
use tower::{ServiceBuilder, ServiceExt};

/// How long to wait between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Tries again after a failure, and says so once it has failed the first time.
#[derive(Clone)]
struct Patience {
    attempts: usize,
    failed: Arc<Mutex<Option<oneshot::Sender<()>>>>,
}

impl<Q: Clone, A, E: Display> Policy<Q, A, E> for Patience {
    type Future = Sleep;

    fn retry(&mut self, _request: &mut Q, outcome: &mut Result<A, E>) -> Option<Sleep> {
        let Err(error) = outcome else { return None };
        println!("client: {error}");
        if let Some(failed) = self.failed.lock().expect("nobody panics with it").take() {
            // The other half is there until the server has started.
            let _ = failed.send(());
        }
        self.attempts = self.attempts.checked_sub(1)?;
        Some(sleep(PAUSE))
    }

    fn clone_request(&mut self, request: &Q) -> Option<Q> {
        Some(request.clone())
    }
}

#[tokio::main]
async fn main() -> Result<(), report::Report> {
    // A port that was free a moment ago.
    let address = RdmaListener::bind("127.0.0.1:0").await?.local_addr()?;
    let (failed, refused) = oneshot::channel();
    tokio::spawn(async move {
        // The server comes when the client has been refused.
        refused.await.expect("nobody listens yet");
        println!("server: here I am");
        serve(address).await.expect("served");
    });

    let patience = Patience { attempts: 100, failed: Arc::new(Some(failed).into()) };
    let connector =
        ServiceBuilder::new().retry(patience).timeout(Duration::from_secs(5)).service(RdmaConnector::new());
    let made = connector.oneshot(format!("rdma://{address}").parse()?).await;
    let mut stream = made.map_err(std::io::Error::other)?;
    stream.write_all(b"at last").await?;
    stream.shutdown().await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    println!("client: {answer}");
    Ok(())
}

/// Answers one client.
async fn serve(address: SocketAddr) -> std::io::Result<()> {
    let listener = RdmaListener::bind(address).await?;
    let (mut stream, _peer) = listener.accept().await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    stream.write_all(text.to_uppercase().as_bytes()).await?;
    stream.shutdown().await
}
