//! A proxy from TCP to RDMA, and from RDMA to TCP: two programs that speak TCP use an RDMA network between their hosts.
//!
//! One proxy runs beside the client, the other beside the server. Neither program is changed. Both roles are the same
//! loop, because an `RdmaStream` is used like a `TcpStream`. The example shows what a proxy has to get right:
//!
//! * half-close: a peer that has sent everything still reads the answer. `copy_bidirectional` passes the end of each
//!   direction on;
//! * errors: a connection that breaks is reset on the other side, so that a part of an answer is not taken for all of it;
//! * no delay: an `RdmaStream` sends at once, and a `TcpStream` does with `set_nodelay`. Without it, an answer in several writes
//!   waits up to 40 ms for the acknowledgement of the TCP peer;
//! * limits: beyond a number of connections, clients wait in the backlog, and a burst of clients is not one of handshakes;
//! * an end: after ctrl-c no connection is accepted, and those that exist have some seconds to finish.
//!
//! ```sh
//! cargo run --release --example proxy                           # both roles, a client and a server in one process
//! cargo run --release --example proxy -- tcp-to-rdma 127.0.0.1:8080 storage.example:7000     # on the client's host
//! cargo run --release --example proxy -- rdma-to-tcp 0.0.0.0:7000 127.0.0.1:80               # on the server's host
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "report/mod.rs"]
mod report;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rdma::{RdmaConnector, RdmaListener, RdmaStream};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Forwards TCP connections over RDMA. Without a command, both roles, a client and a server run in this process.
#[derive(Parser)]
struct Options {
    /// How many connections are forwarded at a time: 256 without this. It needs a command.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    connections: Option<u16>,
    /// How many seconds connections have to finish after ctrl-c.
    #[arg(long, default_value_t = 10)]
    grace: u64,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// Accept TCP connections at one address, and forward them by RDMA to another.
    TcpToRdma { listen: String, connect: String },
    /// Accept RDMA connections at one address, and forward them by TCP to another.
    RdmaToTcp { listen: String, connect: String },
    /// Forward TCP connections by TCP, to compare with.
    TcpToTcp { listen: String, connect: String },
}

/// How many RDMA connections are made at a time: half of the handshakes that the listener of the other proxy has places for. If they
/// are all taken by one address, it drops those that are slow.
const CONNECTING: usize = 128;

/// The duties of a proxy besides forwarding.
#[derive(Clone)]
struct Limits {
    connections: u16,
    grace: Duration,
    stop: CancellationToken,
}

#[tokio::main]
async fn main() -> Result<(), report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let Options { connections, grace, role } = Options::parse();
    if let (Some(_), None) = (connections, &role) {
        let sentence = "`--connections` needs a command: without one, the number of connections is fixed";
        Options::command().error(ErrorKind::MissingSubcommand, sentence).exit();
    }
    let connections = connections.unwrap_or(256);
    let limits = Limits { connections, grace: Duration::from_secs(grace), stop: CancellationToken::new() };
    let Some(role) = role else { return Ok(demonstrate(limits).await?) };
    let stop = limits.stop.clone();
    let _ended = tokio::spawn(async move {
        // Without a handler for the signal the proxy ends at once, as it would without this task.
        if tokio::signal::ctrl_c().await.is_ok() {
            println!("ctrl-c: no more connections are accepted, and those that exist have {grace} s");
            stop.cancel();
        }
    });
    match role {
        Role::TcpToRdma { listen, connect } => {
            let listener = listen_tcp(&listen).await;
            tcp_to_rdma(listener.map_err(|error| named("listen at", &listen, &error))?, connect, limits)
                .await?;
        }
        Role::RdmaToTcp { listen, connect } => {
            let listener = RdmaListener::bind(&listen).await;
            rdma_to_tcp(listener.map_err(|error| named("listen at", &listen, &error))?, connect, limits)
                .await?;
        }
        Role::TcpToTcp { listen, connect } => {
            let listener = listen_tcp(&listen).await;
            tcp_to_tcp(listener.map_err(|error| named("listen at", &listen, &error))?, connect, limits)
                .await?;
        }
    }
    Ok(())
}

/// An error with the address, which those of TCP do not name.
fn named(what: &str, address: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {what} {address}: {error}"))
}

/// Listens like `TcpListener::bind`, at the first address that can be bound. The backlog is that of an `RdmaListener`: clients
/// beyond the places wait in it, and the 128 of `TcpListener::bind` are few.
async fn listen_tcp(address: &str) -> io::Result<TcpListener> {
    let listen = |address: SocketAddr| {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(4096)
    };
    let mut outcome = Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for address in lookup_host(address).await? {
        outcome = listen(address);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

async fn tcp_to_rdma(listener: TcpListener, to: String, limits: Limits) -> io::Result<()> {
    println!("tcp-to-rdma: listens on {}, forwards to {to}", listener.local_addr()?);
    // Keeps its adapters open from one connection to the next.
    let connector = RdmaConnector::new();
    let turns = Arc::new(Semaphore::new(CONNECTING));
    let connect = move || {
        let (connecting, turn) = (connector.connect(to.clone()), turns.clone().acquire_owned());
        // In a box, whose memory is free once the connection is made: without it the task would keep it as long as it forwards.
        Box::pin(async {
            let _turn = turn.await.map_err(io::Error::other)?;
            Ok(connecting.await?)
        })
    };
    forward("tcp-to-rdma", async || accept_tcp(&listener).await, connect, limits).await
}

async fn rdma_to_tcp(listener: RdmaListener, to: String, limits: Limits) -> io::Result<()> {
    println!("rdma-to-tcp: listens on {}, forwards to {to}", listener.local_addr()?);
    let connect = move || connect_tcp(to.clone());
    forward("rdma-to-tcp", async || listener.accept().await, connect, limits).await
}

async fn tcp_to_tcp(listener: TcpListener, to: String, limits: Limits) -> io::Result<()> {
    println!("tcp-to-tcp: listens on {}, forwards to {to}", listener.local_addr()?);
    let connect = move || connect_tcp(to.clone());
    forward("tcp-to-tcp", async || accept_tcp(&listener).await, connect, limits).await
}

async fn accept_tcp(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (client, peer) = listener.accept().await?;
    client.set_nodelay(true)?;
    Ok((client, peer))
}

async fn connect_tcp(to: String) -> io::Result<TcpStream> {
    // Unlike the connector, tokio has no time limit of its own.
    let connecting = timeout(Duration::from_secs(10), TcpStream::connect(&to)).await;
    let connected = connecting.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let server = connected.map_err(|error| named("connect to", &to, &error))?;
    server.set_nodelay(true)?;
    Ok(server)
}

/// A stream that can be ended so that the peer does not take it for complete.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// The listener has ended when an accept fails. Otherwise that is often for want of descriptors, which connections that end
    /// give back.
    const ACCEPT_ERROR_IS_FINAL: bool;

    /// Makes dropping the stream reset the connection: the peer's calls fail with `ConnectionReset`.
    fn reset_on_drop(&self);
}

impl Stream for TcpStream {
    const ACCEPT_ERROR_IS_FINAL: bool = false;

    fn reset_on_drop(&self) {
        // It fails if the connection has ended already.
        let _ = self.set_zero_linger();
    }
}

impl Stream for RdmaStream {
    const ACCEPT_ERROR_IS_FINAL: bool = true;

    fn reset_on_drop(&self) {
        // It fails if the connection has ended already.
        let _ = self.set_zero_linger();
    }
}

/// Accepts connections and forwards each, until the proxy is told to stop.
async fn forward<A: Stream, B: Stream, C>(
    role: &'static str,
    accept: impl AsyncFn() -> io::Result<(A, SocketAddr)>,
    connect: impl Fn() -> C,
    limits: Limits,
) -> io::Result<()>
where
    C: Future<Output = io::Result<B>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(limits.connections.into()));
    let (mut connections, cut) = (JoinSet::new(), CancellationToken::new());
    let next = async || {
        // Before the accept: without a place, the next client waits in the backlog.
        let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
        io::Result::Ok((accept().await?, place))
    };
    let outcome = loop {
        let ((from, peer), place) = tokio::select! {
            next = next() => match next {
                Ok(next) => next,
                Err(error) if A::ACCEPT_ERROR_IS_FINAL => break Err(error),
                Err(error) => {
                    println!("{role}: cannot accept: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            Some(forwarded) = connections.join_next() => {
                forwarded?;
                continue;
            }
            () = limits.stop.cancelled() => break Ok(()),
        };
        let (connecting, cut) = (connect(), cut.clone());
        connections.spawn(async move {
            if let Err(error) = forward_one(from, connecting, cut).await {
                println!("{role}: {peer}: {error}");
            }
            drop(place);
        });
    };
    let finish = async { while connections.join_next().await.is_some() {} };
    if timeout(limits.grace, finish).await.is_err() {
        cut.cancel();
        while connections.join_next().await.is_some() {}
    }
    println!("{role}: has ended");
    outcome
}

/// Forwards one connection until both directions have ended, or `cut`.
async fn forward_one<A: Stream, B: Stream>(
    mut from: A,
    connecting: impl Future<Output = io::Result<B>>,
    cut: CancellationToken,
) -> io::Result<()> {
    let late =
        || io::Error::new(io::ErrorKind::TimedOut, "the connection did not finish in time, and is reset");
    let connected = cut.run_until_cancelled(connecting).await.unwrap_or_else(|| Err(late()));
    let mut to = connected.inspect_err(|_| from.reset_on_drop())?;
    let copied = cut.run_until_cancelled(copy_bidirectional(&mut from, &mut to)).await;
    copied.unwrap_or_else(|| Err(late())).map(drop).inspect_err(|_| {
        from.reset_on_drop();
        to.reset_on_drop();
    })
}

/// A client and a server that speak TCP, with both proxies between them.
async fn demonstrate(limits: Limits) -> io::Result<()> {
    const CLIENTS: usize = 4;
    let limits = Limits { connections: 2, ..limits };
    let server = TcpListener::bind("127.0.0.1:0").await?;
    let service = server.local_addr()?;
    let _serving = tokio::spawn(serve(server));

    let rdma = RdmaListener::bind("127.0.0.1:0").await?;
    let tcp = TcpListener::bind("127.0.0.1:0").await?;
    let (middle, entry) = (rdma.local_addr()?, tcp.local_addr()?);
    let stop = limits.stop.clone();
    let clients = async {
        let mut clients = JoinSet::new();
        for number in 1..=CLIENTS {
            clients.spawn(ask(entry, number << 20));
        }
        let mut answers = clients.join_all().await.into_iter().collect::<io::Result<Vec<_>>>()?;
        answers.sort_unstable();
        for (sent, answer) in answers {
            println!("client: {sent} bytes sent, answer: {answer}");
        }
        stop.cancel();
        Ok(())
    };
    tokio::try_join!(
        rdma_to_tcp(rdma, service.to_string(), limits.clone()),
        tcp_to_rdma(tcp, middle.to_string(), limits),
        clients,
    )?;
    Ok(())
}

/// A client of TCP: it sends bytes and its end, and then reads the answer.
async fn ask(server: SocketAddr, length: usize) -> io::Result<(usize, String)> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(&vec![7; length]).await?;
    stream.shutdown().await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok((length, answer))
}

/// A service of TCP: it counts bytes until the client's end, and then answers.
async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let count = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
            stream.write_all(format!("{count} bytes arrived").as_bytes()).await?;
            stream.shutdown().await
        });
    }
}
