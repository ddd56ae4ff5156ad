//! tonic, over TCP as it comes, over this crate's stream, and in messages instead of HTTP/2: the service of the example `grpc`,
//! and its unary call.

#[path = "../../../../examples/frameworks/grpc/echo.rs"]
#[allow(dead_code, reason = "not all of the service is measured")]
mod echo;
#[path = "../../../../examples/frameworks/grpc/service.rs"]
mod service;

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::stream;
use tokio::task::JoinSet;
use tokio_rdma::{RdmaConnector, RdmaListener};
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::{Body as HttpBody, Bytes, StdError};
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};

use self::echo::{EchoClient, EchoServer, Note, Wish};
use self::service::Plain;
use super::{End, Laps, Orders, answer, median, say, unsupported};
use crate::order::{Order, WINDOW};

/// The length of a note in a call of many at once.
const NOTE: usize = 64;

/// The transport of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Tcp,
    Stream,
    Messages,
}

/// Either end, until the orders end.
pub(super) async fn run(over: Over, end: End, orders: Orders) -> io::Result<()> {
    match end.peer {
        None => serve(over, end, orders).await,
        Some(address) if over == Over::Messages => {
            let channel = tokio_rdma_rpc::Channel::connect(address.to_string()).await?;
            ask(EchoClient::new(channel), orders).await
        }
        Some(address) => ask(EchoClient::new(connect(over, address).await?), orders).await,
    }
}

/// The server, which needs no orders, beside what takes them.
async fn serve(over: Over, end: End, mut orders: Orders) -> io::Result<()> {
    say(&spawn(over, end.listen).await?.to_string())?;
    while orders.next().await.is_some() {
        answer(Duration::ZERO)?;
    }
    Ok(())
}

/// Starts a server, and returns its address.
pub(super) async fn spawn(over: Over, listen: SocketAddr) -> io::Result<SocketAddr> {
    let server = Server::builder().add_service(EchoServer::new(Plain));
    if over == Over::Tcp {
        let incoming = TcpIncoming::bind(listen)?.with_nodelay(Some(true));
        let address = incoming.local_addr()?;
        tokio::spawn(server.serve_with_incoming(incoming));
        return Ok(address);
    }
    let listener = RdmaListener::bind(listen).await?;
    let address = listener.local_addr()?;
    match over {
        Over::Messages => {
            tokio::spawn(tokio_rdma_rpc::serve(listener, Routes::new(EchoServer::new(Plain))));
        }
        _ => {
            tokio::spawn(server.serve_with_incoming(listener));
        }
    }
    Ok(address)
}

/// Returns a channel that has made one call.
pub(super) async fn used_channel(over: Over, address: SocketAddr) -> io::Result<Box<dyn Any + Send>> {
    if over == Over::Messages {
        let mut client = EchoClient::new(tokio_rdma_rpc::Channel::connect(address.to_string()).await?);
        call(&mut client, NOTE).await?;
        return Ok(Box::new(client));
    }
    let mut client = EchoClient::new(connect(over, address).await?);
    call(&mut client, NOTE).await?;
    Ok(Box::new(client))
}

/// Connects a channel of HTTP/2.
async fn connect(over: Over, address: SocketAddr) -> io::Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(io::Error::other)?;
    let channel = match over {
        Over::Stream => endpoint.connect_with_connector(RdmaConnector::new().http()).await,
        Over::Tcp | Over::Messages => endpoint.connect().await,
    };
    channel.map_err(io::Error::other)
}

async fn ask<T>(mut client: EchoClient<T>, mut orders: Orders) -> io::Result<()>
where
    T: GrpcService<Body, Future: Send> + Clone + Send + 'static,
    T::Error: Into<StdError>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
{
    while let Some(order) = orders.next().await {
        answer(match order {
            Order::Ping { size, count } => {
                let mut laps = Laps::default();
                for _ in 0..count {
                    laps.lap(call(&mut client, size)).await?;
                }
                median(laps.0)
            }
            Order::Call { at_once, count } => {
                let calls = move |mut client| async move {
                    for _ in 0..count / at_once {
                        call(&mut client, NOTE).await?;
                    }
                    Ok(())
                };
                together(&client, at_once, calls).await?
            }
            Order::Upload { size, count } => {
                let calls = move |mut client| async move {
                    for _ in 0..count / WINDOW {
                        upload(&mut client, size).await?;
                    }
                    Ok(())
                };
                together(&client, WINDOW, calls).await?
            }
            Order::Stream { size, count } => {
                let start = Instant::now();
                listen(&mut client, size, count).await?;
                start.elapsed()
            }
            order => return Err(unsupported(order)),
        })?;
    }
    Ok(())
}

/// Runs so many callers at once, and returns the time of all.
async fn together<T, F>(
    client: &EchoClient<T>,
    at_once: usize,
    calls: impl Fn(EchoClient<T>) -> F,
) -> io::Result<Duration>
where
    T: Clone,
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let start = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..at_once {
        callers.spawn(calls(client.clone()));
    }
    while let Some(caller) = callers.join_next().await {
        caller??;
    }
    Ok(start.elapsed())
}

/// One call with a long request and a short answer.
async fn upload<T>(client: &mut EchoClient<T>, size: usize) -> io::Result<()>
where
    T: GrpcService<Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
{
    let notes = stream::iter([Note::new(vec![7; size])]);
    let total = client.count(notes).await.map_err(io::Error::other)?.into_inner();
    if total.bytes == size as u64 { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// One call with a long answer.
async fn listen<T>(client: &mut EchoClient<T>, size: usize, count: usize) -> io::Result<()>
where
    T: GrpcService<Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
{
    let times = u32::try_from(count).map_err(io::Error::other)?;
    let wish = Wish { text: vec![7; size].into(), times };
    let mut notes = client.repeat(wish).await.map_err(io::Error::other)?.into_inner();
    let mut missing = times;
    while let Some(note) = notes.message().await.map_err(io::Error::other)? {
        missing -= u32::from(note.text.len() == size);
    }
    if missing == 0 { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// One unary call.
async fn call<T>(client: &mut EchoClient<T>, size: usize) -> io::Result<()>
where
    T: GrpcService<Body, Future: Send> + Clone + Send + 'static,
    T::Error: Into<StdError>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
{
    let answer = client.say(Note::new(vec![7; size])).await.map_err(io::Error::other)?;
    if answer.into_inner().text.len() == size { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}
