//! The byte stream [`RdmaStream`].

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::config::StreamConfig;
use super::inner::StreamInner;
use super::resources::StreamResources;
use super::shared::Shared;
use super::split::{self, OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
use crate::cm::{AcceptParams, Adapter, ConnectParams, Connection, Request};
use crate::error::StreamError;
use crate::proto::rsocket::Hello;

/// The largest number that the transport can count. As RNR retry count it means "for ever", on which the protocol
/// relies (librdmacm does the same).
const RETRIES: u8 = 7;

/// How long the passive end of an iWARP connection waits for the first message of the active one (RFC 5044, section 7.1.3)
/// before it sends. An rsocket sends one when its program first reads, polls or writes, which it need not do; and `siw`
/// may have received it and look at it only when something follows. By then the peer has long seen the reply.
const FIRST_MESSAGE: Duration = Duration::from_millis(200);

/// A byte stream over a queue pair, in the wire protocol of librdmacm's rsocket.
///
/// The peer can be another `RdmaStream`, a C program that uses rsocket(7), or a sockets program that runs with
/// rsocket's preload library.
///
/// The stream is read and written like tokio's `TcpStream`. Written bytes are copied once, into registered memory that
/// the device sends from. Read bytes are copied once, out of the ring that the peer writes. A write waits while the
/// peer's ring is full, so a slow reader slows the writer. Written data is sent immediately; `flush` does nothing.
///
/// # Closing
/// [`shutdown`](tokio::io::AsyncWriteExt::shutdown) closes the direction of this side. It resolves when the
/// device has completed the sends of all written data. The peer reads the data and then the end of file, and can still
/// write.
///
/// After the peer has closed its direction or the stream, reads return the data that had arrived and then the end of
/// file. If the connection is lost, reads return the data that had arrived and then an error that contains a
/// [`StreamBroken`](crate::error::StreamBroken) with the reason. The time until a loss is detected by a side that only
/// waits depends on the adapter: see [`Connection::disconnected`].
///
/// Dropping the stream closes it. Written data is still sent, for at most
/// [`close_timeout`](StreamConfig::close_timeout). Before a program exits, it should call `shutdown`, because the
/// runtime ends with the program.
///
/// # Cancel safety
/// A future of `read`, `read_buf`, `write` or `write_vectored` that is dropped before it resolves has transferred no
/// data.
///
/// # Examples
/// ```
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use tokio_rdma::{RdmaListener, RdmaStream};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = RdmaListener::bind("127.0.0.1:0").await?;
/// let address = listener.local_addr();
/// let server = tokio::spawn(async move {
///     let (mut stream, _peer) = listener.accept().await?;
///     let mut question = String::new();
///     stream.read_to_string(&mut question).await?;
///     stream.write_all(question.to_uppercase().as_bytes()).await
/// });
/// let mut stream = RdmaStream::connect(address).await?;
/// stream.write_all(b"hello").await?;
/// stream.shutdown().await?;
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer).await?;
/// assert_eq!(answer, "HELLO");
/// # server.await.unwrap()
/// # }
/// ```
pub struct RdmaStream {
    shared: Arc<Shared>,
}

impl RdmaStream {
    /// Connects to a stream listener at this address, through this adapter.
    ///
    /// [`RdmaConnector`](super::RdmaConnector) also resolves names and chooses the adapter.
    ///
    /// # Errors
    /// `Connect` if no connection is made; `Protocol` if the peer does not use the rsocket protocol; `OutOfRange` if a
    /// setting is out of range; `Open`, `Register` or `Post` if the queues or the memory could not be created.
    ///
    /// # Cancel safety
    /// Dropping the future aborts the connection attempt.
    pub async fn connect_on(
        adapter: &Adapter,
        peer: SocketAddr,
        config: &StreamConfig,
    ) -> Result<Self, StreamError> {
        let end = StreamResources::new(adapter, config).await?;
        let mut params = ConnectParams::default().private_data(end.private_data().to_vec());
        if !adapter.info().iwarp {
            params = params.retry_count(RETRIES).rnr_retry_count(RETRIES);
        }
        let reply = adapter.connector().connect(end.queue_pair(), peer, params).await?;
        let hello = match Hello::decode(reply.private_data()) {
            Ok(hello) => hello,
            Err(error) => {
                // If this fails, the peer receives the end of the connection instead.
                let _ = reply.reject(&[]).await;
                return Err(error.into());
            }
        };
        let connection = reply.complete().await?;
        Ok(Self::new(StreamInner::new(end, connection, hello, true)))
    }

    /// Accepts a request for a stream.
    ///
    /// A request for anything else is rejected. If
    /// [`AdapterInfo::passive_sends_first`](crate::AdapterInfo::passive_sends_first) is `false`, this waits up to 200 ms
    /// for the peer's first message.
    ///
    /// # Errors
    /// `Protocol` if the peer does not use the rsocket protocol; `Accept` if accepting fails; `OutOfRange`, `Open`,
    /// `Register` and `Post` as for [`connect_on`](Self::connect_on).
    ///
    /// # Cancel safety
    /// Dropping the future rejects the peer, or disconnects it during the wait for its first message.
    pub async fn accept_on(
        adapter: &Adapter,
        request: Request,
        config: &StreamConfig,
    ) -> Result<Self, StreamError> {
        let hello = match Hello::decode(request.private_data()) {
            Ok(hello) => hello,
            Err(error) => {
                // If the peer has gone meanwhile, there is nothing to reject.
                let _ = request.reject(&[]).await;
                return Err(error.into());
            }
        };
        let end = StreamResources::new(adapter, config).await?;
        let mut params = AcceptParams::default().private_data(end.private_data().to_vec());
        let info = adapter.info();
        if !info.iwarp {
            params = params.rnr_retry_count(RETRIES);
        }
        let accepted = request.accept(end.queue_pair(), params).await;
        let connection = accepted.map_err(|retained| StreamError::Accept(retained.error))?;
        let end = StreamInner::new(end, connection, hello, info.passive_sends_first);
        // Without a runtime there is no clock: then this end sends after the peer's first message.
        if !info.passive_sends_first && end.runtime().is_some() {
            let speaks = std::future::poll_fn(|cx| end.poll_speaks(cx));
            if tokio::time::timeout(FIRST_MESSAGE, speaks).await.is_err() {
                end.speak();
            }
        }
        Ok(Self::new(end))
    }

    fn new(end: StreamInner) -> Self {
        Self { shared: Shared::new(end) }
    }

    fn end(&self) -> &StreamInner {
        self.shared.end()
    }

    /// Returns the local address.
    pub fn local_addr(&self) -> SocketAddr {
        self.connection().local_addr()
    }

    /// Returns the address of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.connection().peer_addr()
    }

    /// Returns the underlying connection, with its read limits, its private data and its end.
    pub fn connection(&self) -> &Connection {
        self.end().connection()
    }

    /// Borrows the two directions, for two futures of one task.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        split::borrowed(&self.shared)
    }

    /// Splits the stream into two owned halves, for two tasks.
    ///
    /// Dropping the write half shuts its direction down. Dropping both halves drops the stream.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        split::owned(self.shared)
    }
}

impl OwnedReadHalf {
    /// Combines the two halves into the stream again.
    ///
    /// # Errors
    /// Returns both halves if they belong to different streams.
    pub fn reunite(self, other: OwnedWriteHalf) -> Result<RdmaStream, ReuniteError> {
        split::reunited(self, other).map(|shared| RdmaStream { shared })
    }
}

impl AsyncRead for RdmaStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.end().poll_read(cx, into)
    }
}

impl AsyncWrite for RdmaStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.end().poll_write(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.end().poll_write(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.poll_shutdown(cx)
    }
}

impl fmt::Debug for RdmaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaStream")
            .field("id", &self.connection().id())
            .field("local", &self.local_addr())
            .field("peer", &self.peer_addr())
            .finish_non_exhaustive()
    }
}
