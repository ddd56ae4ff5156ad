//! TLS over streams, with client certificates.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tracing::{debug, warn};

use super::listener::RdmaListener;
use super::stream::RdmaStream;
use crate::cm::Handshakes;
use crate::metrics::AcceptMetrics;
use crate::net::descriptors::Held;
use crate::sync::Throttle;

/// The default number of peers in their TLS handshake.
const HANDSHAKES: usize = 256;

/// TLS listeners, in the metrics.
const ACCEPTS: AcceptMetrics = AcceptMetrics::new("tls");

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
    tasks: JoinSet<Option<(TlsStream<RdmaStream>, Option<Held>)>>,
    handshakes: Handshakes,
    /// A stream that waits for a place.
    waiting: Option<RdmaStream>,
    /// When the oldest handshake may be dropped.
    timer: Pin<Box<Sleep>>,
    logged: Throttle,
    /// The listener has ended.
    ended: bool,
}

impl TlsListener {
    /// Secures what `listener` accepts.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    pub fn new(listener: RdmaListener, config: Arc<ServerConfig>) -> Self {
        Self {
            listener,
            acceptor: config.into(),
            timeout: TIMEOUT,
            most: HANDSHAKES,
            tasks: JoinSet::new(),
            handshakes: Handshakes::new(HANDSHAKES),
            waiting: None,
            timer: Box::pin(sleep(Duration::ZERO)),
            logged: Throttle::default(),
            ended: false,
        }
    }

    /// Sets the time limit of a handshake. Default: 10 s.
    pub fn handshake_timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Sets how many peers may be in their handshake at the same time. Default: 256.
    ///
    /// If there is no place for another peer, the oldest handshake of the address that has most is dropped. Each peer has
    /// at least 1 s, or 50 ms if its address has an eighth of the places besides.
    ///
    /// Whatever the setting, with the soft provider the peers of all TLS listeners of the process have at most a sixteenth of
    /// its descriptors (`RLIMIT_NOFILE`).
    pub fn handshakes(mut self, most: usize) -> Self {
        self.most = most.max(1);
        self.handshakes.set_most(self.most);
        self
    }

    /// Returns the local address, with the port.
    ///
    /// # Errors
    /// None. The type is that of the method of tokio's `TcpListener`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
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
        let peer = stream.get_ref().0.connection().peer_addr();
        Ok((stream, peer))
    }

    fn begin(&mut self, stream: RdmaStream) {
        let peer = stream.connection().peer_addr();
        // A peer that is dropped may never confirm the end, and a stream that waits for the confirmation holds no
        // place.
        stream.shared.set_aborts(true);
        let connection = stream.connection();
        let budget = connection.connector().descriptors();
        let descriptor = budget.map(|budget| self.handshakes.holder(&budget.tls).hold());
        let (handshake, limit) = (self.acceptor.accept(stream).into_fallible(), self.timeout);
        let task = self.tasks.spawn(async move {
            let _half_open = ACCEPTS.half_open();
            match timeout(limit, handshake).await {
                Ok(Ok(stream)) => {
                    stream.get_ref().0.shared.set_aborts(false);
                    ACCEPTS.count("accepted");
                    Some((stream, descriptor))
                }
                Ok(Err((error, mut stream))) => {
                    debug!(%peer, %error, "TLS handshake failed");
                    ACCEPTS.count("failed");
                    // The alert is under way. The peer keeps its place until it has received it.
                    let _ = timeout(limit, stream.shutdown()).await;
                    None
                }
                Err(_elapsed) => {
                    debug!(%peer, "TLS handshake timed out");
                    ACCEPTS.count("timed_out");
                    None
                }
            }
        });
        // The peer begins.
        self.handshakes.insert(peer.ip(), task, Arc::new(OnceLock::from(Instant::now())));
    }

    /// Begins the handshakes of streams that the listener has, and drops old ones if they need the place.
    fn poll_begin(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        loop {
            if self.waiting.is_none() && !self.ended {
                match self.listener.poll_next_unpin(cx) {
                    Poll::Ready(Some(stream)) => self.waiting = Some(stream?),
                    Poll::Ready(None) => self.ended = true,
                    Poll::Pending => {}
                }
            }
            if self.handshakes.len() < self.most && self.handshakes.has_room() {
                match self.waiting.take() {
                    Some(stream) => self.begin(stream),
                    None => return Ok(()),
                }
            } else if self.waiting.is_none() || self.poll_replace(cx).is_pending() {
                return Ok(());
            }
        }
    }

    /// Drops the oldest handshake of the address that has most. Pending until it may be dropped, and until it has ended:
    /// the task is woken by both.
    fn poll_replace(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.handshakes.leaving() > 0 {
            return Poll::Pending;
        }
        match self.handshakes.drop_oldest() {
            Ok(()) => {
                ACCEPTS.count("replaced");
                if let Some(held_back) = self.logged.admit() {
                    warn!(held_back, "too many TLS handshakes: the oldest is dropped");
                }
                Poll::Pending
            }
            Err(Some(expendable)) => {
                self.timer.as_mut().reset(expendable);
                self.timer.as_mut().poll(cx)
            }
            Err(None) => Poll::Pending,
        }
    }
}

impl Stream for TlsListener {
    type Item = io::Result<TlsStream<RdmaStream>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            self.poll_begin(cx)?;
            match ready!(self.tasks.poll_join_next_with_id(cx)) {
                Some(Ok((id, stream))) => {
                    self.handshakes.remove(id);
                    if let Some((stream, _descriptor)) = stream {
                        return Poll::Ready(Some(Ok(stream)));
                    }
                }
                Some(Err(error)) => self.handshakes.remove(error.id()),
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
