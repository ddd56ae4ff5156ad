//! TLS over streams: the answer for who may connect.

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

/// How many peers may be in the middle of their TLS handshake, unless said otherwise.
const HANDSHAKES: usize = 256;

/// How long such a handshake may take, unless said otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A listener whose streams are secured by TLS.
///
/// Each handshake is a task of its own with a time limit: a slow peer holds up nobody, and one that fails is dropped and
/// not reported, since nothing can be done about it; it is told to `tracing`. Who may connect is decided by the
/// configuration: with a verifier for client certificates, only those who have one.
///
/// rustls has its cryptography from a provider, and this crate chooses none: the `ServerConfig` carries it. Built by
/// `ServerConfig::builder()` it is the one that the process has installed, or else the only one among the features (`ring`,
/// `aws_lc_rs`) that the program has asked of rustls; with none or both of them that panics, and `builder_with_provider` takes
/// one that is given.
///
/// It is also a [`Stream`], as servers take it (tonic's `serve_with_incoming`). The client's side needs nothing but
/// `tokio_rustls::TlsConnector` around an [`RdmaStream`].
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
    /// Whether the listener has said that no more will come.
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

    /// How long a handshake may take. Default: 10 s.
    pub fn handshake_timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// How many peers may be in the middle of their handshake. Default: 256; what comes beyond waits in the listener.
    pub fn handshakes(mut self, most: usize) -> Self {
        self.most = most.max(1);
        self
    }

    /// The address that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// The next stream whose handshake is done, and the address of its peer.
    ///
    /// # Errors
    /// Those of [`RdmaListener::accept`]; never that of a single peer.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: handshakes go on.
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
