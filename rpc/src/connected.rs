//! What requests carry of the connection that they came over.

use std::net::SocketAddr;
#[cfg(feature = "rustls")]
use std::sync::Arc;

use http::Extensions;
use tokio::io::DuplexStream;
use tokio::net::{TcpStream, UnixStream};
use tokio_rdma::RdmaStream;
#[cfg(feature = "rustls")]
use tokio_rustls::{rustls::pki_types::CertificateDer, server::TlsStream};
#[cfg(feature = "tonic")]
use tonic::transport::server::{Connected as _, TcpConnectInfo};

/// Addresses and certificates of a connection, in the extensions of each request that a server receives.
///
/// ```
/// # use http::Request;
/// # use tokio_rdma_rpc::{ConnectionInfo, Incoming};
/// fn peer(request: &Request<Incoming>) -> Option<std::net::SocketAddr> {
///     request.extensions().get::<ConnectionInfo>()?.peer_addr
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// The local address, if the stream has one.
    pub local_addr: Option<SocketAddr>,
    /// The address of the peer, if the stream has one.
    pub peer_addr: Option<SocketAddr>,
    /// The certificates of the client, its own first. `None` without TLS, and for a client that has sent none.
    #[cfg(feature = "rustls")]
    pub peer_certificates: Option<Arc<[CertificateDer<'static>]>>,
}

impl ConnectionInfo {
    /// Returns the information of a connection with these addresses, and without certificates.
    #[must_use]
    pub fn new(local_addr: Option<SocketAddr>, peer_addr: Option<SocketAddr>) -> Self {
        Self {
            local_addr,
            peer_addr,
            #[cfg(feature = "rustls")]
            peer_certificates: None,
        }
    }
}

/// A stream that [`serve`](crate::serve) takes.
///
/// Both methods are called once for a connection, before its first byte is read. Each request has clones of what they return.
///
/// The default methods suit a stream of which nothing is known. One that wraps another passes both calls on.
///
/// ```
/// use tokio_rdma_rpc::{Connected, ConnectionInfo};
///
/// struct Relayed {
///     client: std::net::SocketAddr,
///     // ...
/// }
///
/// impl Connected for Relayed {
///     fn connection_info(&self) -> ConnectionInfo {
///         ConnectionInfo::new(None, Some(self.client))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    note = "TLS streams of tokio-rustls need the feature `rustls` of tokio-rdma-rpc; wrap other streams in a type that implements it"
)]
pub trait Connected {
    /// Returns the addresses and certificates of the connection. By default there are none.
    fn connection_info(&self) -> ConnectionInfo {
        ConnectionInfo::default()
    }

    /// Adds values to the extensions of each request, which have the [`ConnectionInfo`] already. By default it adds none.
    fn add_extensions(&self, extensions: &mut Extensions) {
        let _ = extensions;
    }
}

/// Returns what each request of a connection has in its extensions.
pub(crate) fn extensions(stream: &impl Connected) -> Extensions {
    let mut extensions = Extensions::new();
    let info = stream.connection_info();
    #[cfg(feature = "tonic")]
    extensions.insert(TcpConnectInfo { local_addr: info.local_addr, remote_addr: info.peer_addr });
    extensions.insert(info);
    stream.add_extensions(&mut extensions);
    extensions
}

/// Implements `Connected` for streams that have the methods of tokio's `TcpStream`.
macro_rules! with_addresses {
    ($($stream:ty),+) => {
        $(
            impl Connected for $stream {
                fn connection_info(&self) -> ConnectionInfo {
                    ConnectionInfo::new(self.local_addr().ok(), self.peer_addr().ok())
                }
            }
        )+
    };
}

with_addresses!(RdmaStream, TcpStream);

impl Connected for UnixStream {
    /// With the feature `tonic`: adds tonic's `UdsConnectInfo`, with the credentials of the peer.
    #[cfg(feature = "tonic")]
    fn add_extensions(&self, extensions: &mut Extensions) {
        extensions.insert(self.connect_info());
    }
}

impl Connected for DuplexStream {}

impl<T: Connected + ?Sized> Connected for Box<T> {
    fn connection_info(&self) -> ConnectionInfo {
        (**self).connection_info()
    }

    fn add_extensions(&self, extensions: &mut Extensions) {
        (**self).add_extensions(extensions);
    }
}

/// The streams of `tokio_rdma::io::TlsListener`, and TLS over others.
#[cfg(feature = "rustls")]
impl<T: Connected + 'static> Connected for TlsStream<T> {
    fn connection_info(&self) -> ConnectionInfo {
        let (stream, session) = self.get_ref();
        let peer_certificates = session.peer_certificates().map(Into::into);
        ConnectionInfo { peer_certificates, ..stream.connection_info() }
    }

    /// With the feature `tonic`: adds tonic's `TlsConnectInfo<TcpConnectInfo>`, if the stream below is an `RdmaStream` or a
    /// `TcpStream`. Only tonic can make one, and of its own streams alone.
    fn add_extensions(&self, extensions: &mut Extensions) {
        self.get_ref().0.add_extensions(extensions);
        #[cfg(feature = "tonic")]
        {
            let stream: &dyn std::any::Any = self;
            if let Some(stream) = stream.downcast_ref::<TlsStream<RdmaStream>>() {
                extensions.insert(stream.connect_info());
            } else if let Some(stream) = stream.downcast_ref::<TlsStream<TcpStream>>() {
                extensions.insert(stream.connect_info());
            }
        }
    }
}
