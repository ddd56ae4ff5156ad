//! Valkey's protocol for RDMA: a client for `valkey-server --rdma-bind`, and a small server for its clients.
//!
//! For those who want to speak a protocol that exists. This one is that of a production server, and shows the calls that
//! most protocols of RDMA need:
//!
//! * messages of a fixed size by Send, in 1024 receives that are posted again at once;
//! * a ring that the peer writes, whose address and key are sent in a message;
//! * RDMA Write with immediate data, which says how many bytes have come;
//! * a queue of requests under way, and their futures in the order of the posts.
//!
//! `control` is the control messages, `channel` the connection, and `resp` the encoding of commands, which is that of
//! Valkey over TCP. siw has no immediate data: it cannot speak this protocol.
//!
//! ```sh
//! cargo run --release --example valkey                             # a server and its client, over loopback
//! cargo run --release --example valkey -- serve 127.0.0.1:6379     # a server, until ctrl-c
//! cargo run --release --example valkey -- call 127.0.0.1:6379 SET color blue
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "../report/mod.rs"]
mod report;

mod channel;
mod client;
mod control;
mod resp;
mod server;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use client::Client;
use resp::Value;
use server::Server;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Valkey's protocol for RDMA. Without a command, a server and its client run in this process.
#[derive(Parser)]
struct Options {
    /// The length of the ring of this side in bytes.
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=16 << 20))]
    ring: u32,
    /// The address of the server and the client of this process.
    #[arg(long, default_value_t = Ipv4Addr::LOCALHOST.into())]
    address: IpAddr,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Serve at this address until ctrl-c, and then only the clients that are there. A second ctrl-c disconnects them.
    Serve { address: SocketAddr },
    /// Send a command and print the reply. The exit status is 1 if that is an error.
    Call {
        server: SocketAddr,
        #[arg(required = true)]
        words: Vec<String>,
    },
    /// Store, read and delete values of up to 3 MiB, and compare each.
    Check {
        server: SocketAddr,
        #[arg(long, default_value_t = 64)]
        values: usize,
    },
}

#[tokio::main]
async fn main() -> Result<ExitCode, report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let Options { ring, address, command } = Options::parse();
    let ring = usize::try_from(ring).map_err(io::Error::other)?;
    match command {
        None => demonstrate(address, ring).await?,
        Some(Command::Serve { address }) => {
            let server = Server::listen(address, ring)?;
            println!("server: listens on {}", server.address());
            let last = CancellationToken::new();
            let mut serving = pin!(server.serve(last.clone()));
            tokio::select! {
                ended = &mut serving => ended?,
                interrupted = tokio::signal::ctrl_c() => {
                    interrupted?;
                    last.cancel();
                    tokio::select! {
                        ended = serving => ended?,
                        again = tokio::signal::ctrl_c() => again?,
                    }
                }
            }
        }
        Some(Command::Call { server, words }) => {
            let mut client = Client::connect(server, ring).await?;
            let replies = client.call(&[Value::command(&words)]).await?;
            client.close().await?;
            let is_error = replies.iter().any(|reply| matches!(reply, Value::Error(_)));
            replies.iter().for_each(|reply| println!("{reply}"));
            return Ok(if is_error { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        Some(Command::Check { server, values }) => check(server, ring, values).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A client that checks a server.
async fn check(server: SocketAddr, ring: usize, values: usize) -> io::Result<()> {
    let mut client = Client::connect(server, ring).await?;
    println!("client: {}", client.check(values).await?);
    client.close().await
}

/// A server and its clients.
async fn demonstrate(address: IpAddr, ring: usize) -> io::Result<()> {
    let server = Server::listen((address, 0).into(), ring)?;
    let address = server.address();
    println!("server: listens on {address}");
    let last = CancellationToken::new();
    let serving = tokio::spawn(server.serve(last.clone()));
    let mut client = Client::connect(address, ring).await?;
    for line in ["PING", "SET color blue", "GET color", "DEL color shape", "GET color", "SHUTDOWN"] {
        let words: Vec<_> = line.split(' ').collect();
        for reply in client.call(&[Value::command(&words)]).await? {
            println!("client: {line}: {reply}");
        }
    }
    client.close().await?;
    check(address, ring, 16).await?;
    last.cancel();
    serving.await?
}
