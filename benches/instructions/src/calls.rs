//! Unary calls of tonic over this crate's byte stream: the service of the example `grpc`.

#[path = "../../../examples/frameworks/grpc/echo.rs"]
#[allow(dead_code, reason = "of the service one call is measured")]
mod echo;
#[path = "../../../examples/frameworks/grpc/service.rs"]
mod service;

use std::io;
use std::net::Ipv4Addr;

use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{RdmaConnector, RdmaListener, StreamConfig};
use tonic::transport::{Endpoint, Server};

use self::echo::{EchoClient, EchoServer, Note};
use self::service::Plain;
use crate::ends::runtime;
use crate::queue_pairs::open;

/// The length of a note in a call.
const NOTE: usize = 64;

/// Calls one after the other, both ends on one runtime.
pub(crate) fn unary(count: usize) -> io::Result<()> {
    runtime()?.block_on(async {
        let adapter = open(SoftConfig::default())?;
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        let listener = RdmaListener::bind_on(&adapter, any, &StreamConfig::default())?;
        let address = listener.local_addr()?;
        let server = Server::builder().add_service(EchoServer::new(Plain));
        tokio::spawn(server.serve_with_incoming(listener));
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(io::Error::other)?;
        let channel = endpoint.connect_with_connector(RdmaConnector::new().adapter(&adapter).http()).await;
        let mut client = EchoClient::new(channel.map_err(io::Error::other)?);
        for _ in 0..count {
            let answer = client.say(Note::new(&[7; NOTE][..])).await.map_err(io::Error::other)?;
            if answer.into_inner().text.len() != NOTE {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(())
    })
}
