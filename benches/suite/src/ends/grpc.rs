//! tonic, over TCP as it comes, over this crate's stream, and in messages instead of HTTP/2: the service of the example `grpc`,
//! and its unary call.

#[path = "../../../../examples/frameworks/grpc/echo.rs"]
#[allow(dead_code, reason = "of the service one call is measured")]
mod echo;
#[path = "../../../../examples/frameworks/grpc/service.rs"]
mod service;

use std::io;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_rdma::{RdmaConnector, RdmaListener};
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::{Body as HttpBody, Bytes, StdError};
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};

use self::echo::{EchoClient, EchoServer, Note};
use self::service::Plain;
use super::{End, Laps, Orders, answer, median, say, unsupported};
use crate::order::Order;

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
        Some(address) => {
            let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(io::Error::other)?;
            let channel = match over {
                Over::Tcp => endpoint.connect().await,
                Over::Stream => endpoint.connect_with_connector(RdmaConnector::new().http()).await,
                Over::Messages => {
                    let channel = tokio_rdma_rpc::Channel::connect(address.to_string()).await?;
                    return ask(EchoClient::new(channel), orders).await;
                }
            };
            ask(EchoClient::new(channel.map_err(io::Error::other)?), orders).await
        }
    }
}

/// The server, which needs no orders, beside what takes them.
async fn serve(over: Over, end: End, mut orders: Orders) -> io::Result<()> {
    let server = Server::builder().add_service(EchoServer::new(Plain));
    match over {
        Over::Tcp => {
            let incoming = TcpIncoming::bind(end.listen)?.with_nodelay(Some(true));
            say(&incoming.local_addr()?.to_string())?;
            tokio::spawn(server.serve_with_incoming(incoming));
        }
        Over::Stream => {
            let listener = RdmaListener::bind(end.listen).await?;
            say(&listener.local_addr()?.to_string())?;
            tokio::spawn(server.serve_with_incoming(listener));
        }
        Over::Messages => {
            let listener = RdmaListener::bind(end.listen).await?;
            say(&listener.local_addr()?.to_string())?;
            tokio::spawn(tokio_rdma_rpc::serve(listener, Routes::new(EchoServer::new(Plain))));
        }
    }
    while orders.next().await.is_some() {
        answer(Duration::ZERO)?;
    }
    Ok(())
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
                let start = Instant::now();
                let mut callers = JoinSet::new();
                for _ in 0..at_once {
                    let mut client = client.clone();
                    callers.spawn(async move {
                        for _ in 0..count / at_once {
                            call(&mut client, NOTE).await?;
                        }
                        io::Result::Ok(())
                    });
                }
                while let Some(caller) = callers.join_next().await {
                    caller??;
                }
                start.elapsed()
            }
            order => return Err(unsupported(order)),
        })?;
    }
    Ok(())
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
