//! tonic, over TCP as it comes and over this crate's stream: the service of the example `grpc`, and its unary call.

#[path = "../../../../examples/frameworks/grpc/echo.rs"]
#[allow(dead_code, reason = "of the service one call is measured")]
mod echo;
#[path = "../../../../examples/frameworks/grpc/service.rs"]
mod service;

use std::io;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_rdma::{RdmaConnector, RdmaListener};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};

use self::echo::{EchoClient, EchoServer, Note};
use self::service::Plain;
use super::{End, Laps, Orders, answer, median, say, unsupported};
use crate::order::Order;

/// The length of a note in a call.
const NOTE: usize = 64;

/// The transport of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Tcp,
    Stream,
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
    }
    while orders.next().await.is_some() {
        answer(Duration::ZERO)?;
    }
    Ok(())
}

async fn ask(mut client: EchoClient, mut orders: Orders) -> io::Result<()> {
    while let Some(order) = orders.next().await {
        answer(match order {
            Order::Ping { size: NOTE, count } => {
                let mut laps = Laps::default();
                for _ in 0..count {
                    laps.lap(call(&mut client)).await?;
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
                            call(&mut client).await?;
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
async fn call(client: &mut EchoClient) -> io::Result<()> {
    let answer = client.say(Note::new(&[7; NOTE][..])).await.map_err(io::Error::other)?;
    if answer.into_inner().text.len() == NOTE { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}
