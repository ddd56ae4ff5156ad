//! A key-value store: clients read values by RDMA Read, without the server's participation, and change them by messages.
//!
//! For services that are read much more often than they are changed: a get costs the server no instruction on an RDMA
//! device, and no wake-up of a task over the soft provider. The example shows what such a service needs besides the
//! reads:
//!
//! * admission: the client sends a token in the private data of its request, and the server rejects a wrong one;
//! * consistency: a bucket that changes while it is read is detected by its checksum, and read again;
//! * patience: the client connects again after errors that may pass, with a growing pause, and after no others;
//! * limits: a number of clients, a size of messages, a time for each answer;
//! * an end: the server answers the last change, and disconnects, so that no client waits for a time-out.
//!
//! ```sh
//! cargo run --release --example kv                              # all of it, in one process over loopback
//! cargo run --release --example kv -- listen 127.0.0.1:7471     # a server, until ctrl-c
//! cargo run --release --example kv -- put 127.0.0.1:7471 color blue
//! cargo run --release --example kv -- get 127.0.0.1:7471 color
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to its user")]

#[path = "../report/mod.rs"]
mod report;

mod client;
mod layout;
mod server;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use client::Client;
use layout::Change;
use server::{Server, Store};
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// A key-value store that is read by RDMA Read. Without a command, a server and its clients run in this process.
#[derive(Parser)]
struct Options {
    /// The token that a client must show.
    #[arg(long, default_value = "let me in")]
    token: String,
    /// How many seconds a client tries to connect.
    #[arg(long, default_value_t = 5)]
    patience: u64,
    /// How many clients a server has at a time.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Serve at this address until ctrl-c.
    Listen { address: SocketAddr },
    /// Print a value. The exit status is 1 if there is none.
    Get { server: SocketAddr, key: String },
    /// Store a value.
    Put { server: SocketAddr, key: String, value: String },
    /// Remove a value.
    Delete { server: SocketAddr, key: String },
}

#[tokio::main]
async fn main() -> Result<ExitCode, report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let Options { token, patience, clients, command } = Options::parse();
    let connect = async |server| Client::connect(server, &token, Duration::from_secs(patience)).await;
    match command {
        None => demonstrate(&token).await?,
        Some(Command::Listen { address }) => listen(address, &token, clients).await?,
        Some(Command::Get { server, key }) => {
            let client = connect(server).await?;
            let found = client.get(key.as_bytes()).await?;
            client.close().await?;
            let Some(value) = found.value else {
                eprintln!("{key} is not stored");
                return Ok(ExitCode::FAILURE);
            };
            println!("{}", String::from_utf8_lossy(&value));
        }
        Some(Command::Put { server, key, value }) => {
            let change = Change::put(key.as_bytes(), value.as_bytes())?;
            let mut client = connect(server).await?;
            client.change(&change).await?;
            client.close().await?;
        }
        Some(Command::Delete { server, key }) => {
            let change = Change::delete(key.as_bytes())?;
            let mut client = connect(server).await?;
            client.change(&change).await?;
            client.close().await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A server, until ctrl-c.
async fn listen(address: SocketAddr, token: &str, clients: usize) -> io::Result<()> {
    let server = Server::listen(address, token, clients).await?;
    println!("server: listens on {}", server.address());
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server.serve(stop.clone()));
    tokio::signal::ctrl_c().await?;
    stop.cancel();
    serving.await??;
    println!("server: has ended");
    Ok(())
}

/// A server and its clients, step by step.
async fn demonstrate(token: &str) -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let server = Server::listen((Ipv4Addr::LOCALHOST, 0).into(), token, 2).await?;
    let address = server.address();
    println!("server: listens on {address}");
    let (store, stop) = (server.store(), CancellationToken::new());
    let serving = tokio::spawn(server.serve(stop.clone()));

    match Client::connect(address, "a guess", PATIENCE).await {
        Ok(_) => return Err(io::Error::other("a wrong token was accepted")),
        Err(error) => println!("client: {error}"),
    }

    let mut writer = Client::connect(address, token, PATIENCE).await?;
    let reader = Client::connect(address, token, PATIENCE).await?;
    show(&reader, "color").await?;
    let change = writer.change(&Change::put(b"color", b"blue")?).await?;
    println!("writer: put color: change {change} of the bucket");
    show(&reader, "color").await?;
    if let Err(error) = Change::put(b"color", &[b'x'; layout::BUCKET]) {
        println!("writer: put color: {error}");
    }
    read_during_a_change(&reader, store).await?;
    writer.change(&Change::delete(b"color")?).await?;
    println!("writer: delete color");
    show(&reader, "color").await?;
    writer.close().await?;

    stop.cancel();
    serving.await??;
    println!("server: has ended");
    if let Err(error) = reader.get(b"color").await {
        println!("reader: {error}");
    }
    Ok(())
}

/// Reads a value while the server is in the middle of a change. Each value is one letter, repeated, which shows a mix of two.
async fn read_during_a_change(reader: &Client, store: Arc<Store>) -> io::Result<()> {
    let put = |letter| Change::put(b"letters", &[letter; 900]);
    store.change(put(b'a')?, || ())?;
    let (change, (half, halfway), (resume, resumed)) =
        (put(b'b')?, oneshot::channel(), oneshot::channel::<()>());
    let changing = tokio::task::spawn_blocking(move || {
        store.change(change, || {
            let _ = half.send(());
            let _ = resumed.blocking_recv();
        })
    });
    let _ = halfway.await;
    let resume = async {
        sleep(Duration::from_millis(20)).await;
        drop(resume);
    };
    let (found, ()) = tokio::join!(reader.get(b"letters"), resume);
    changing.await??;
    let found = found?;
    let value = found.value.unwrap_or_default();
    if value.len() != 900 || value.iter().any(|letter| *letter != value[0]) {
        return Err(io::Error::other("a torn read was taken for a value"));
    }
    println!(
        "reader: get letters: {} of {:?}, after {} reads that were torn, and repeated",
        value.len(),
        char::from(value[0]),
        found.torn
    );
    Ok(())
}

/// Gets a value and prints it.
async fn show(client: &Client, key: &str) -> io::Result<()> {
    let found = client.get(key.as_bytes()).await?;
    let value =
        found.value.map_or("no value".to_owned(), |value| String::from_utf8_lossy(&value).into_owned());
    println!("reader: get {key}: {value}, after {} changes of the bucket", found.sequence);
    Ok(())
}
