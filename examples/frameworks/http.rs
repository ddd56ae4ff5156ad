//! HTTP over RDMA: an axum server and hyper's client. Only the listener and the connector differ from TCP.
//!
//! For an HTTP service whose clients are on the same RDMA network: handlers, extractors and middleware stay as they are.
//!
//! ```sh
//! cargo run --release -p frameworks --example http
//! cargo run --release -p frameworks --example http -- --listen 0.0.0.0:7000
//! cargo run --release -p frameworks --example http -- --connect storage.example:7000
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "../report/mod.rs"]
mod report;

use std::error::Error;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path};
use axum::routing::{get, post};
use bytes::Bytes;
use clap::Parser;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::sync::oneshot;
use tokio_rdma::io::ConnectionInfo;
use tokio_rdma::{RdmaConnector, RdmaListener};
use tracing_subscriber::EnvFilter;

/// A server that greets and echoes, and a client of it; both in this process unless told otherwise.
#[derive(Parser)]
struct Options {
    /// Serve at this address until Ctrl-C.
    #[arg(long)]
    listen: Option<String>,
    /// Ask the server at this address.
    #[arg(long, conflicts_with = "listen")]
    connect: Option<String>,
    /// How many bytes to have echoed.
    #[arg(long, default_value_t = 1 << 20)]
    bytes: usize,
}

#[tokio::main]
async fn main() -> Result<(), report::Report> {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let options = Options::parse();
    if let Some(address) = &options.connect {
        return Ok(client(address, options.bytes).await?);
    }
    let listener = RdmaListener::bind(options.listen.as_deref().unwrap_or("127.0.0.1:0")).await?;
    let address = listener.local_addr()?;
    println!("server: listens on {address}");
    if options.listen.is_some() {
        let interrupted = async { tokio::signal::ctrl_c().await.unwrap_or(()) };
        return Ok(axum::serve(listener, routes()).with_graceful_shutdown(interrupted).await?);
    }
    let (done, told) = oneshot::channel::<()>();
    let serve = axum::serve(listener, routes()).with_graceful_shutdown(async { told.await.unwrap_or(()) });
    let server = tokio::spawn(serve.into_future());
    client(&address.to_string(), options.bytes).await?;
    drop(done);
    server.await??;
    println!("server: has shut down");
    Ok(())
}

fn routes() -> Router {
    Router::new()
        .route("/hello/{name}", get(async |name: Path<String>| format!("Hello, {}!", name.0)))
        .route("/echo", post(async |body: Body| body))
        .layer(DefaultBodyLimit::disable())
}

/// Asks by HTTP/1.1 and by HTTP/2.
async fn client(address: &str, bytes: usize) -> Result<(), Box<dyn Error>> {
    let connector = RdmaConnector::new().http();
    for http2 in [false, true] {
        let client = Client::builder(TokioExecutor::new()).http2_only(http2).build(connector.clone());
        let hello = Request::get(format!("http://{address}/hello/RDMA")).body(Full::default())?;
        let response = client.request(hello).await?;
        let (version, info) = (response.version(), response.extensions().get::<ConnectionInfo>().cloned());
        let text = String::from_utf8(response.into_body().collect().await?.to_bytes().into())?;
        let connection = info.map_or_else(String::new, |info| format!(", connection {}", info.connection));
        println!("client: {version:?}{connection}: {text}");

        let sent = Bytes::from_iter((0..bytes).map(|place| (place % 251) as u8));
        let echo = Request::post(format!("http://{address}/echo")).body(Full::new(sent.clone()))?;
        let received = client.request(echo).await?.into_body().collect().await?.to_bytes();
        println!(
            "client: {} bytes came back, {}",
            received.len(),
            if received == sent { "as they were" } else { "changed" }
        );
    }
    Ok(())
}
