//! RPC with tarpc: its own `serde_transport`, over a byte stream.
//!
//! For services in Rust on both sides, whose interface is a trait.
//!
//! ```sh
//! cargo run --release -p frameworks --example tarpc
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "../report/mod.rs"]
mod report;

use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use clap::Parser;
use futures::StreamExt;
use futures::future::join_all;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Json;
use tarpc::tokio_util::codec::LengthDelimitedCodec;
use tarpc::{client, context, serde_transport};
use tokio::net::ToSocketAddrs;
use tokio_rdma::{RdmaListener, RdmaStream};
use tracing_subscriber::EnvFilter;

/// The methods of the server, for callers to see.
#[tarpc::service]
trait Statistics {
    /// The mean of the numbers, if there is one.
    async fn mean(numbers: Vec<f64>) -> Option<f64>;
}

#[derive(Clone)]
struct Server;

impl Statistics for Server {
    async fn mean(self, _: context::Context, numbers: Vec<f64>) -> Option<f64> {
        (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / numbers.len() as f64)
    }
}

/// Both ends, or one of them.
#[derive(Parser)]
struct Options {
    /// Is only the server, at this address; port 0 has one chosen.
    #[arg(long, conflicts_with = "connect")]
    listen: Option<SocketAddr>,
    /// Is only the client, of the server at this address, or of this name and port.
    #[arg(long)]
    connect: Option<String>,
}

#[tokio::main]
async fn main() -> Result<(), report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let options = Options::parse();
    if let Some(server) = options.connect {
        return Ok(ask(server).await?);
    }
    let address = options.listen.unwrap_or((Ipv4Addr::LOCALHOST, 0).into());
    let listener = RdmaListener::bind(address).await?;
    let address = listener.local_addr()?;
    println!("listening on {address}");
    if options.listen.is_some() {
        serve(listener).await;
        return Ok(());
    }
    // The server ends with the program.
    tokio::spawn(serve(listener));
    Ok(ask(address).await?)
}

/// Serves whoever comes, each caller and each call in a task of its own.
async fn serve(listener: RdmaListener) {
    let callers = listener.filter_map(async |stream| stream.ok());
    callers
        .for_each_concurrent(None, async |stream| {
            let frames = LengthDelimitedCodec::builder().new_framed(stream);
            let transport = serde_transport::new(frames, Json::default());
            let channel = BaseChannel::with_defaults(transport);
            channel.execute(Server.serve()).for_each(async |answer| drop(tokio::spawn(answer))).await;
        })
        .await;
}

/// Asks several things at once, over one connection.
async fn ask(server: impl ToSocketAddrs) -> Result<(), Box<dyn Error>> {
    let stream = RdmaStream::connect(server).await?;
    println!("connected to {}", stream.peer_addr()?);
    let frames = LengthDelimitedCodec::builder().new_framed(stream);
    let transport = serde_transport::new(frames, Json::default());
    let client = StatisticsClient::new(client::Config::default(), transport).spawn();
    let questions = [vec![1.0, 2.0, 4.5], vec![7.0], vec![]];
    let answers = questions.iter().map(|numbers| client.mean(context::current(), numbers.clone()));
    for (numbers, answer) in questions.iter().zip(join_all(answers).await) {
        println!("mean of {numbers:?}: {:?}", answer?);
    }
    Ok(())
}
