//! The transports that a service and its client run over.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rdma::{RdmaConnector, RdmaListener, RdmaStream};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint};

use common::{Device, v4};

/// The source of the connections, on both sides.
pub(crate) trait Transport: 'static {
    /// One end of a connection.
    type Io: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static;
    /// The stream that hands them to the server.
    type Incoming: Stream<Item = io::Result<Self::Io>> + Send + 'static;

    /// The address of a server that has no port yet.
    fn anywhere() -> SocketAddr;

    /// Listens, and says where.
    fn bind(address: SocketAddr) -> impl Future<Output = io::Result<(Self::Incoming, SocketAddr)>> + Send;

    /// Connects when it is needed, and anew when the connection is gone.
    fn channel(endpoint: &Endpoint) -> Channel;
}

/// TCP: what every result is compared with.
pub(crate) struct Tcp;

impl Transport for Tcp {
    type Io = TcpStream;
    type Incoming = TcpListenerStream;

    fn anywhere() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 0).into()
    }

    async fn bind(address: SocketAddr) -> io::Result<(Self::Incoming, SocketAddr)> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok((TcpListenerStream::new(listener), address))
    }

    fn channel(endpoint: &Endpoint) -> Channel {
        endpoint.connect_lazy()
    }
}

/// The stream, over the device that is tested.
pub(crate) struct Rdma;

impl Transport for Rdma {
    type Io = RdmaStream;
    type Incoming = RdmaListener;

    fn anywhere() -> SocketAddr {
        (v4(), 0).into()
    }

    async fn bind(address: SocketAddr) -> io::Result<(Self::Incoming, SocketAddr)> {
        let listener = RdmaListener::bind(address).await?;
        let address = listener.local_addr().expect("an address");
        Ok((listener, address))
    }

    fn channel(endpoint: &Endpoint) -> Channel {
        let connector = RdmaConnector::new().provider(Device::under_test().provider());
        endpoint.connect_with_connector_lazy(connector.http())
    }
}
