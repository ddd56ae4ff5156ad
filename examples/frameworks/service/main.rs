//! A service as it would be operated: tonic in messages over RDMA, with mutual TLS, health, metrics, limits, a graceful shutdown
//! and a client that connects again.
//!
//! The example `grpc` shows the calls. This one shows what surrounds them on two hosts:
//!
//! * mutual TLS, because RDMA has no encryption: the server serves clients that have a certificate of its authority;
//! * health, by the protocol of gRPC, for load balancers and orchestrators;
//! * metrics for Prometheus, on a TCP port, with those of tokio-rdma;
//! * limits: the length of a message, the calls of a connection and of all, the time of a call;
//! * a graceful shutdown: the health changes first, no call is accepted, and those in progress are completed;
//! * reconnects: the channel of a client finds the server that has come back.
//!
//! ```sh
//! cargo run --release -p frameworks --example service    # in one process, over loopback
//! examples/frameworks/service/hosts.sh                   # on two hosts: two network namespaces; needs root
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "../../report/mod.rs"]
mod report;

#[path = "../grpc/echo.rs"]
#[expect(dead_code, reason = "not every kind of call is made here")]
mod echo;
#[path = "../grpc/service.rs"]
mod service;

mod certificates;
mod client;
mod server;

use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use certificates::Identity;
use clap::{Parser, Subcommand};
use echo::{EchoClient, Note};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_rdma::RdmaListener;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// A gRPC service over RDMA, and a client of it. Without a command, both run in this process.
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Create an authority, and the certificates of the server and of the client.
    Certificates { folder: PathBuf },
    /// Serve calls at one address and metrics at another, until SIGINT or SIGTERM.
    Serve { calls: SocketAddr, metrics: SocketAddr, certificates: PathBuf },
    /// Call the server, and print some of its metrics.
    Call { calls: SocketAddr, metrics: SocketAddr, certificates: PathBuf },
}

#[tokio::main]
async fn main() -> Result<(), report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    match Options::parse().command {
        None => demonstrate().await?,
        Some(Command::Certificates { folder }) => {
            let [server, client] = Identity::create()?;
            server.save(&folder, "server")?;
            client.save(&folder, "client")?;
        }
        Some(Command::Serve { calls, metrics, certificates }) => {
            let tls = Identity::load(&certificates, "server")?.server_config()?;
            let prometheus = recorder()?;
            let (calls, metrics) = (RdmaListener::bind(calls).await?, listen_for_pages(metrics).await?);
            println!("server: listens on {}, metrics on {}", calls.local_addr()?, metrics.local_addr()?);
            let stop = CancellationToken::new();
            let (mut interrupt, mut terminate) =
                (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
            let signals = stop.clone();
            tokio::spawn(async move {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                signals.cancel();
            });
            server::serve(calls, metrics, prometheus, tls, stop).await?;
        }
        Some(Command::Call { calls, metrics, certificates }) => {
            let identity = Identity::load(&certificates, "client")?;
            client::call(client::channel(calls, &identity, true)?).await?;
            client::print_metrics(metrics).await?;
        }
    }
    Ok(())
}

/// The listener of the page of metrics.
async fn listen_for_pages(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    // The error of TCP does not name the address.
    listener.map_err(|error| io::Error::new(error.kind(), format!("cannot listen at {address}: {error}")))
}

/// The recorder of the process. Before the first connection, because only what comes later is counted.
fn recorder() -> Result<PrometheusHandle, Box<dyn Error>> {
    let prometheus = PrometheusBuilder::new().install_recorder()?;
    tokio_rdma::metrics::describe();
    Ok(prometheus)
}

/// The server and its client in this process, a shutdown during a call, and a second server at the same address.
async fn demonstrate() -> Result<(), Box<dyn Error>> {
    let [identity, client] = Identity::create()?;
    let (prometheus, tls) = (recorder()?, identity.server_config()?);
    let start = async |calls, metrics| {
        let calls = RdmaListener::bind(calls).await?;
        let metrics = TcpListener::bind(metrics).await?;
        let (address, page) = (calls.local_addr()?, metrics.local_addr()?);
        println!("server: listens on {address}, metrics on {page}");
        let stop = CancellationToken::new();
        let serving = server::serve(calls, metrics, prometheus.clone(), tls.clone(), stop.clone());
        let serving = tokio::spawn(serving);
        io::Result::Ok((address, page, stop, serving))
    };
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (address, page, stop, serving) = start(anywhere, anywhere).await?;

    match client::call(client::channel(address, &client, false)?).await {
        Ok(()) => return Err("a client without a certificate was served".into()),
        Err(error) => tracing::info!(error, "without a certificate"),
    }
    println!("client: without a certificate: not served");
    let channel = client::channel(address, &client, true)?;
    client::call(channel.clone()).await?;
    client::print_metrics(page).await?;

    // A call that is in progress when the server is told to end: it has been answered once.
    let mut caller = EchoClient::new(channel.clone());
    let (questions, receiver) = mpsc::channel(1);
    questions.send(Note::new("before")).await?;
    let mut answers = caller.chat(ReceiverStream::new(receiver)).await?.into_inner();
    let before = answers.message().await?.map(|note| note.text);
    stop.cancel();
    questions.send(Note::new("after")).await?;
    let after = answers.message().await?.map(|note| note.text);
    println!(
        "client: the call in progress said {:?}, {:?}",
        before.unwrap_or_default(),
        after.unwrap_or_default()
    );
    drop((questions, answers));
    serving.await??;
    match caller.say(Note::new("still there?")).await {
        Ok(_) => return Err("the server is still there".into()),
        Err(status) => println!("client: {:?}: {}", status.code(), status.message()),
    }

    let (_, _, stop, serving) = start(address, page).await?;
    client::call_again(channel).await?;
    stop.cancel();
    Ok(serving.await??)
}
