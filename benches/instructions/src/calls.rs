//! Unary calls of tonic over this crate's byte stream, and in messages: the service of the example `grpc`.

#[path = "../../../examples/frameworks/grpc/echo.rs"]
#[allow(dead_code, reason = "of the service one call is measured")]
mod echo;
#[path = "../../../examples/frameworks/grpc/service.rs"]
mod service;

use std::io;
use std::net::Ipv4Addr;

use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{RdmaConnector, RdmaListener, RdmaStream, StreamConfig};
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::{Body as HttpBody, Bytes, StdError};
use tonic::service::Routes;
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
        call(EchoClient::new(channel.map_err(io::Error::other)?), count).await
    })
}

/// The same in messages instead of HTTP/2.
pub(crate) fn unary_in_messages(count: usize) -> io::Result<()> {
    runtime()?.block_on(async {
        let adapter = open(SoftConfig::default())?;
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        let listener = RdmaListener::bind_on(&adapter, any, &StreamConfig::default())?;
        let address = listener.local_addr()?;
        tokio::spawn(tokio_rdma_rpc::serve(listener, Routes::new(EchoServer::new(Plain))));
        let connect = move || {
            let adapter = adapter.clone();
            async move { Ok(RdmaStream::connect_on(&adapter, address, &StreamConfig::default()).await?) }
        };
        let config = tokio_rdma_rpc::Config::default();
        let channel = tokio_rdma_rpc::Channel::with_connector(&address.to_string(), false, config, connect);
        call(EchoClient::new(channel), count).await
    })
}

async fn call<T>(mut client: EchoClient<T>, count: usize) -> io::Result<()>
where
    T: GrpcService<Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
{
    for _ in 0..count {
        let answer = client.say(Note::new(&[7; NOTE][..])).await.map_err(io::Error::other)?;
        if answer.into_inner().text.len() != NOTE {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(())
}
