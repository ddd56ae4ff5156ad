//! A tonic service over RDMA. Only the listener of the server and the connector of the client differ from TCP.
//!
//! For a gRPC service whose clients are on the same RDMA network. The example `service` shows what surrounds it in operation.
//!
//! Without arguments both ends run in this process over loopback. `--listen ADDR` and `--connect ADDR` run the two ends
//! in separate processes.
#![allow(clippy::print_stdout, reason = "a program that prints")]

#[path = "../../report/mod.rs"]
mod report;

mod echo;
mod service;

use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use clap::Parser;
use echo::{EchoClient, EchoServer, Note, Wish};
use futures::{StreamExt, TryStreamExt, stream};
use service::Plain;
use tokio_rdma::{RdmaConnector, RdmaListener};
use tonic::transport::{Endpoint, Server};
use tracing_subscriber::EnvFilter;

/// Longer than tonic lets a message be unless told otherwise.
const LARGE: usize = 16 << 20;

/// One call of each kind.
#[derive(Parser)]
struct Args {
    /// Be the server, at this address, until the process is ended.
    #[arg(long, value_name = "ADDR", conflicts_with = "connect")]
    listen: Option<SocketAddr>,
    /// Be the client of the server at this address.
    #[arg(long, value_name = "ADDR")]
    connect: Option<SocketAddr>,
}

#[tokio::main]
async fn main() -> Result<(), report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let args = Args::parse();
    if let Some(address) = args.connect {
        return Ok(call(address).await?);
    }
    let listener = RdmaListener::bind(args.listen.unwrap_or((Ipv4Addr::LOCALHOST, 0).into())).await?;
    let address = listener.local_addr()?;
    println!("listening on {address}");
    let service = EchoServer::new(Plain).max_decoding_message_size(LARGE + 1024);
    let server = Server::builder().add_service(service);
    if args.listen.is_some() {
        return Ok(server.serve_with_incoming(listener).await?);
    }
    // Once the calls are done the server is told to end, and waits until the connection has.
    let (done, all_done) = tokio::sync::oneshot::channel::<()>();
    let until = async { drop(all_done.await) };
    let calls = async {
        let outcome = call(address).await;
        drop(done);
        outcome
    };
    let (served, called) = tokio::join!(server.serve_with_incoming_shutdown(listener, until), calls);
    served?;
    Ok(called?)
}

/// The client.
async fn call(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    let channel = endpoint.connect_with_connector(RdmaConnector::new().http()).await?;
    let mut client = EchoClient::new(channel).max_decoding_message_size(LARGE + 1024);

    let answer = client.say(Note::new("hello")).await?.into_inner();
    println!("unary                    said {:?}", answer.text);

    let total = client.count(stream::iter(["one", "two", "three"]).map(Note::new)).await?.into_inner();
    println!("client streaming         {} notes of {} bytes arrived", total.notes, total.bytes);

    let wish = Wish { text: "again".into(), times: 3 };
    let notes: Vec<Note> = client.repeat(wish).await?.into_inner().try_collect().await?;
    println!("server streaming         {} notes, the last {:?}", notes.len(), notes[2].text);

    let questions = stream::iter(1..=3).map(|number| Note::new(format!("question {number}")));
    let mut answers = client.chat(questions).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        println!("bidirectional streaming  said {:?}", answer.text);
    }

    let answer = client.say(Note::new(vec![7; LARGE])).await?.into_inner();
    println!("unary                    {} MiB came back", answer.text.len() >> 20);
    Ok(())
}
