//! TLS over streams, with client certificates.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tracing::debug;

use super::listener::RdmaListener;
use super::stream::RdmaStream;

/// The default number of peers in their TLS handshake.
const HANDSHAKES: usize = 256;

/// The default time limit of a TLS handshake.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A listener whose streams are secured by TLS.
///
/// Each handshake runs in a task of its own with a time limit, so a slow peer delays no other. A peer whose handshake fails
/// is dropped and logged by `tracing`; [`accept`](Self::accept) does not return its error. The configuration decides which
/// peers may connect: with a verifier for client certificates, only peers with a certificate.
///
/// The `ServerConfig` contains the cryptography provider of rustls; this crate chooses none. `ServerConfig::builder()` uses the
/// provider that the process has installed, or else the only one among the features of rustls (`ring`, `aws_lc_rs`) that
/// the program enables. If it enables none or both, `builder()` panics; use `builder_with_provider` then.
///
/// The listener is a [`Stream`] of secured streams, for servers that take one (tonic's `serve_with_incoming`). A client needs
/// only `tokio_rustls::TlsConnector` around an [`RdmaStream`].
///
/// ```
/// # async fn example(config: std::sync::Arc<tokio_rustls::rustls::ServerConfig>) -> std::io::Result<()> {
/// use tokio_rdma::io::{RdmaListener, TlsListener};
///
/// let mut listener = TlsListener::new(RdmaListener::bind("0.0.0.0:7000").await?, config);
/// loop {
///     let (stream, peer) = listener.accept().await?;
///     println!("{peer}: {:?}", stream.get_ref().1.peer_certificates());
/// }
/// # }
/// ```
#[must_use = "streams do nothing unless polled"]
pub struct TlsListener {
    listener: RdmaListener,
    acceptor: TlsAcceptor,
    timeout: Duration,
    most: usize,
    handshakes: JoinSet<Option<TlsStream<RdmaStream>>>,
    /// The listener has ended.
    ended: bool,
}

impl TlsListener {
    /// Secures what `listener` accepts.
    pub fn new(listener: RdmaListener, config: Arc<ServerConfig>) -> Self {
        Self {
            listener,
            acceptor: config.into(),
            timeout: TIMEOUT,
            most: HANDSHAKES,
            handshakes: JoinSet::new(),
            ended: false,
        }
    }

    /// Sets the time limit of a handshake. Default: 10 s.
    pub fn handshake_timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Sets how many peers may be in their handshake at the same time. Default: 256. Further peers wait in the listener.
    pub fn handshakes(mut self, most: usize) -> Self {
        self.most = most.max(1);
        self
    }

    /// Returns the local address, with the port.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Returns the next stream whose handshake is complete, and the address of its peer.
    ///
    /// # Errors
    /// Those of [`RdmaListener::accept`]. The failure of a single peer is not returned.
    ///
    /// # Cancel safety
    /// Dropping the future loses no stream: handshakes continue, and the next call returns it.
    pub async fn accept(&mut self) -> io::Result<(TlsStream<RdmaStream>, SocketAddr)> {
        let stream = self.next().await.unwrap_or_else(|| Err(io::ErrorKind::NotConnected.into()))?;
        let peer = stream.get_ref().0.peer_addr();
        Ok((stream, peer))
    }

    /// Begins the handshake of a stream.
    fn begin(&mut self, stream: RdmaStream) {
        let peer = stream.peer_addr();
        let (handshake, limit) = (self.acceptor.accept(stream), self.timeout);
        self.handshakes.spawn(async move {
            let outcome = timeout(limit, handshake).await.unwrap_or_else(|late| Err(late.into()));
            outcome.inspect_err(|error| debug!(%peer, %error, "TLS handshake failed")).ok()
        });
    }
}

impl Stream for TlsListener {
    type Item = io::Result<TlsStream<RdmaStream>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            while !self.ended && self.handshakes.len() < self.most {
                match self.listener.poll_next_unpin(cx) {
                    Poll::Ready(Some(Ok(stream))) => self.begin(stream),
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                    Poll::Ready(None) => self.ended = true,
                    Poll::Pending => break,
                }
            }
            match ready!(self.handshakes.poll_join_next(cx)) {
                Some(Ok(Some(stream))) => return Poll::Ready(Some(Ok(stream))),
                // One that failed has made room for another.
                Some(Ok(None) | Err(_)) => {}
                // Handshakes that have begun are finished, whatever has become of the listener.
                None => return if self.ended { Poll::Ready(None) } else { Poll::Pending },
            }
        }
    }
}

impl fmt::Debug for TlsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsListener")
            .field("listener", &self.listener)
            .field("handshakes", &self.handshakes.len())
            .finish_non_exhaustive()
    }
}
