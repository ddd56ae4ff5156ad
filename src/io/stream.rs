//! The byte stream [`RdmaStream`], with the methods of tokio's `TcpStream`, and what a framework is told of its connection.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BufMut;
use futures::FutureExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Interest, ReadBuf, Ready};

use super::close::Shared;
use super::config::StreamConfig;
use super::end::End;
use super::engine::{Side, StreamEngine};
use super::resources::StreamResources;
use super::session::Session;
use super::split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf, async_read, async_write};
use crate::cm::{AcceptParams, Adapter, ConnectParams, Connection, ProviderKind, Request};
use crate::error::StreamError;
use crate::proto::rsocket::Hello;
use crate::sync::current_runtime;
use crate::types::ConnectionId;

/// The largest number that the transport can count. As RNR retry count it means "for ever", on which the protocol
/// relies (librdmacm does the same).
const RETRIES: u8 = 7;

/// The time that the passive end of an iWARP connection waits for the first message of the active one (RFC
/// 5044, section 7.1.3) before it sends. An rsocket sends one when its program first reads, polls or writes,
/// which it need not do; and `siw` may have received it and look at it only when something follows. By then
/// the peer has long seen the reply: `siw` drops a connection whose first frame comes before it has looked at that.
const FIRST_MESSAGE: Duration = Duration::from_secs(1);

/// A byte stream over a queue pair, in the wire protocol of librdmacm's rsocket.
///
/// The peer can be another `RdmaStream`, a C program that uses rsocket(7), or a sockets program that runs with
/// rsocket's preload library.
///
/// The stream is read and written like tokio's `TcpStream`. On a device, written bytes are copied once, into registered memory
/// that the device sends from, and read bytes are copied once, out of the ring that the peer writes. The soft provider sends
/// written bytes from the memory of the caller, and while a read waits it receives large writes in the memory of the reader.
/// A write waits while the peer's ring is full, so a slow reader slows the writer. Written data is sent immediately; `flush`
/// does nothing.
///
/// # Closing
/// [`shutdown`](tokio::io::AsyncWriteExt::shutdown) closes the direction of this side. The peer reads the data and then
/// the end of file, and can still write. `shutdown` resolves when the peer's device has received all written data; it does
/// not wait until the peer's application reads. It fails if the connection ends before. If that device does not confirm
/// what it has received, it resolves when the local device has completed the sends: on iWARP, except between two ends on
/// the soft provider.
///
/// `shutdown` fails with `TimedOut` when the connection makes no progress for [`close_timeout`](StreamConfig::close_timeout), or
/// after ten minutes: a peer can be alive, and confirm nothing for ever. Progress is a byte that the peer's kernel
/// acknowledges, or 64 KiB that come from the peer; a device shows none. The stream is not broken by it. The data and the end of file are still sent, and another
/// `shutdown` waits for as long again.
///
/// Dropping the stream closes it. A task of the runtime in which the stream was created then does what `shutdown` does,
/// for at most [`close_timeout`](StreamConfig::close_timeout), and disconnects
/// ([`Connection::disconnect`]), which takes at most the disconnect timeout of the provider. Data that was not sent by
/// then is lost. The peer reads the data that had arrived and then the end of file if that has arrived, or else an error.
/// [`set_zero_linger`](Self::set_zero_linger) makes the drop abort the connection instead.
///
/// Dropping the [`OwnedWriteHalf`] closes its direction, and a task sends the data and the end of file, without a time
/// limit as long as there is the other half. Dropping the [`OwnedReadHalf`] alone changes nothing: the peer can write until the buffer is full. The second
/// drop is that of the stream, with one `close_timeout` for both directions.
///
/// When the runtime ends, these tasks end, and so does the connection. Written data that was not received by then can be
/// lost, and the peer's reads fail. Before a program exits, it should call `shutdown` and await it.
///
/// # Ends of the peer
/// After the peer has closed its direction or the stream, reads return the data that had arrived and then the end of
/// file. So do they if a program that uses rsocket(7) exits without closing. If the connection is lost, reads return the
/// data that had arrived and then an error that contains a [`StreamBroken`](crate::error::StreamBroken) with the reason.
/// If the peer has closed the stream, the first write succeeds and is discarded, so that a program that writes before it reads, such as
/// TLS, receives the last data of the peer. Later writes fail with `BrokenPipe`, and so does the first one after the end of file
/// has been read.
/// The time until a loss is detected by a side that only waits depends on the adapter: see
/// [`Connection::disconnected`].
///
/// # Messages
/// For messages that keep their boundaries, put the stream in frames of `LengthDelimitedCodec` of tokio-util. The result is
/// a `Sink` and a `Stream`, and the limit of a frame protects against long messages of the peer. The frames of several
/// [`feed`](futures::SinkExt::feed)s are sent together. On a device, set
/// [`send_buffer`](StreamConfig::send_buffer) and [`receive_buffer`](StreamConfig::receive_buffer) to the length of all
/// messages that are to be in flight, if these are longer than 128 KiB.
///
/// ```
/// use bytes::Bytes;
/// use futures::{SinkExt, StreamExt};
/// use tokio_rdma::{RdmaListener, RdmaStream};
/// use tokio_util::codec::LengthDelimitedCodec;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = RdmaListener::bind("127.0.0.1:0").await?;
/// let address = listener.local_addr()?;
/// let echo = async {
///     let (stream, _peer) = listener.accept().await?;
///     let (sink, stream) = LengthDelimitedCodec::builder().new_framed(stream).split();
///     // Resolves when the peer has closed its direction, and closes this one.
///     stream.map(|message| Ok(message?.freeze())).forward(sink).await
/// };
/// let ask = async {
///     let stream = RdmaStream::connect(address).await?;
///     let frames = LengthDelimitedCodec::builder().max_frame_length(1 << 20).new_framed(stream);
///     let (mut sink, mut stream) = frames.split();
///     sink.send(Bytes::from_static(b"hello")).await?;
///     assert_eq!(stream.next().await.transpose()?.as_deref(), Some(&b"hello"[..]));
///     sink.close().await?;
///     assert!(stream.next().await.is_none());
///     std::io::Result::Ok(())
/// };
/// tokio::try_join!(echo, ask)?;
/// # Ok(())
/// # }
/// ```
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
/// let address = listener.local_addr()?;
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
    pub(super) shared: Arc<Shared>,
}

impl RdmaStream {
    /// Accepts a request for a stream.
    ///
    /// A request for anything else is rejected. If
    /// [`AdapterInfo::passive_sends_first`](crate::AdapterInfo::passive_sends_first) is `false`, this waits up to a second
    /// for the peer's first message. A session ([`StreamConfig::session`]) is only for the streams of an
    /// [`RdmaListener`](super::RdmaListener), which also takes its later connections: here the stream ends with its connection.
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
        let mut config = *config;
        config.session = None;
        accept_engine(adapter, request, &config).await.map(Self::plain)
    }

    /// Creates the stream of an engine, which ends with its connection.
    pub(super) fn plain(engine: Arc<StreamEngine>) -> Self {
        Self { shared: Shared::new(End::Plain(engine.shared())) }
    }

    /// Creates the stream of a session.
    pub(super) fn of_session(session: Arc<Session>) -> Self {
        Self { shared: Shared::new(End::Session(session)) }
    }

    pub(super) fn end(&self) -> &End {
        &self.shared.end
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// None. The type is that of tokio's method, like those of the other methods that cannot fail.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.connection().local_addr())
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// None.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.connection().peer_addr())
    }

    /// Returns the underlying connection, with its read limits, its private data and its end.
    ///
    /// With a session it is the present one, or the last one after a loss.
    pub fn connection(&self) -> Connection {
        self.end().engine().connection.clone()
    }

    /// Returns `true`: written data is always sent at once.
    ///
    /// # Errors
    /// None.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(true)
    }

    /// Does nothing: written data is always sent at once.
    ///
    /// # Errors
    /// None.
    pub fn set_nodelay(&self, _nodelay: bool) -> io::Result<()> {
        Ok(())
    }

    /// Returns `Some(Duration::ZERO)` after [`set_zero_linger`](Self::set_zero_linger), and `None` before.
    ///
    /// # Errors
    /// None.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(self.shared.aborts().then_some(Duration::ZERO))
    }

    /// Makes dropping the stream abort the connection: data that the peer has not received is discarded, and the peer's
    /// reads and writes fail with `ConnectionReset`. With a session the peer first gets a message, for which a task waits a
    /// second at most: otherwise the peer would wait for another connection.
    ///
    /// # Errors
    /// None.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.shared.set_aborts(true);
        Ok(())
    }

    /// Borrows the two directions, for two futures of one task.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        // No future that reads or writes has the stream.
        self.end().end_waits(&[Side::Reader, Side::Writer]);
        (ReadHalf(self), WriteHalf(self))
    }

    /// Splits the stream into two owned halves, for two tasks.
    ///
    /// Dropping the write half shuts its direction down. Dropping both halves drops the stream.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        self.end().end_waits(&[Side::Reader, Side::Writer]);
        let second = Self { shared: self.shared.clone() };
        (OwnedReadHalf { stream: self }, OwnedWriteHalf { stream: second, joined: false })
    }
}

async_read!(RdmaStream, |this| this);
async_write!(RdmaStream, |this| this);

impl AsRef<Self> for RdmaStream {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl fmt::Debug for RdmaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaStream")
            .field("id", &self.connection().id())
            .field("local", &self.connection().local_addr())
            .field("peer", &self.connection().peer_addr())
            .finish_non_exhaustive()
    }
}

/// Peeking, waiting until a read or a write is possible, and reading and writing without waiting, all by a shared reference.
impl RdmaStream {
    /// Copies received bytes, which stay to be read. Waits until there are any. Returns 0 at the end of file.
    ///
    /// # Errors
    /// Those of a read.
    ///
    /// # Cancel safety
    /// Dropping the future loses no data.
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(buffer);
        self.end().peek(&mut buffer).await?;
        Ok(buffer.filled().len())
    }

    /// Copies received bytes like [`peek`](Self::peek), and returns their number.
    ///
    /// Only the waker of the last read, `poll_peek` or `poll_read_ready` is woken.
    ///
    /// # Errors
    /// Those of a read.
    pub fn poll_peek(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        let before = buffer.remaining();
        ready!(self.end().poll_peek(cx, buffer))?;
        Poll::Ready(Ok(before - buffer.remaining()))
    }

    /// Waits until a read returns at once: data has arrived, or the stream has ended. Any number of tasks may wait.
    ///
    /// # Errors
    /// None. The read returns the error if the stream has ended.
    ///
    /// # Cancel safety
    /// Dropping the future loses no data.
    pub async fn readable(&self) -> io::Result<()> {
        self.end().ready(Side::Reader).await;
        Ok(())
    }

    /// Waits until a write returns at once: there is room, or the stream has ended. Any number of tasks may wait.
    ///
    /// # Errors
    /// None. The write returns the error if the stream has ended.
    ///
    /// # Cancel safety
    /// Dropping the future loses no data.
    pub async fn writable(&self) -> io::Result<()> {
        self.end().ready(Side::Writer).await;
        Ok(())
    }

    /// Waits until one of the directions of `interest` is ready. Any number of tasks may wait.
    ///
    /// | flag of the result | interest | meaning |
    /// |---|---|---|
    /// | `READABLE` | `READABLE` | as of [`readable`](Self::readable) |
    /// | `READ_CLOSED` | `READABLE` | the peer sends no more, but bytes that have arrived may be unread; or the stream is broken |
    /// | `WRITABLE` | `WRITABLE` | as of [`writable`](Self::writable) |
    /// | `WRITE_CLOSED` | `WRITABLE` | the peer takes no more, because it has closed the stream or both directions are shut down; or the stream is broken |
    /// | `ERROR` | `ERROR` | the stream is broken |
    ///
    /// There are no urgent data, so `Interest::PRIORITY` alone is never ready.
    ///
    /// # Errors
    /// None. The read or the write returns the error if the stream has ended.
    ///
    /// # Cancel safety
    /// Dropping the future loses no data.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        Ok(self.end().readiness(interest).await)
    }

    /// Waits like [`readable`](Self::readable).
    ///
    /// Only the waker of the last read, `poll_peek` or `poll_read_ready` is woken.
    ///
    /// # Errors
    /// None.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end().poll_ready(cx, Side::Reader).map(Ok)
    }

    /// Waits like [`writable`](Self::writable).
    ///
    /// Only the waker of the last write, shutdown or `poll_write_ready` is woken.
    ///
    /// # Errors
    /// None.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end().poll_ready(cx, Side::Writer).map(Ok)
    }

    /// Reads the bytes that have arrived, without waiting. Returns 0 at the end of file.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived, or the error of a read.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(buffer);
        self.end().try_read(&mut buffer)?;
        Ok(buffer.filled().len())
    }

    /// Reads like [`try_read`](Self::try_read), into several buffers, each of which is filled before the next.
    ///
    /// # Errors
    /// Those of [`try_read`](Self::try_read).
    pub fn try_read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut total = 0;
        for buffer in buffers.iter_mut().filter(|buffer| !buffer.is_empty()) {
            match self.try_read(buffer) {
                Ok(read) => {
                    total += read;
                    if read < buffer.len() {
                        break;
                    }
                }
                // The next call returns the error.
                Err(_) if total > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(total)
    }

    /// Reads like [`try_read`](Self::try_read), and appends the bytes to the buffer.
    ///
    /// # Errors
    /// Those of [`try_read`](Self::try_read).
    pub fn try_read_buf<B: BufMut>(&self, buffer: &mut B) -> io::Result<usize> {
        // It resolves at the first poll.
        let read = Now(self.end()).read_buf(buffer).now_or_never();
        read.unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
    }

    /// Writes as many bytes as there is room for, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room, or the error of a write.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.end().try_write(&[IoSlice::new(bytes)])
    }

    /// Writes like [`try_write`](Self::try_write), from several buffers.
    ///
    /// # Errors
    /// Those of [`try_write`](Self::try_write).
    pub fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.end().try_write(parts)
    }
}

/// Reads what has arrived, or fails with `WouldBlock`.
struct Now<'a>(&'a End);

impl AsyncRead for Now<'_> {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.try_read(into))
    }
}

/// The connection of a request or a response: its addresses, its provider and adapter, and its number in `tracing` output.
///
/// | framework | access |
/// |---|---|
/// | axum | `ConnectInfo<ConnectionInfo>` in a handler, if the router was served by `into_make_service_with_connect_info::<ConnectionInfo>()` |
/// | tonic, server | the extensions of a request, if the server was given `RdmaListener::tonic`; with tonic's own TLS also in a `TlsConnectInfo`, with the certificates of the peer |
/// | hyper, server | [`RdmaStream::info`] before the stream is served; [an example](#examples) inserts it into each request |
/// | hyper-util, client | the extensions of a response |
///
/// With the other frameworks, ask the stream.
///
#[cfg_attr(
    all(feature = "hyper", not(doctest)),
    doc = concat!("# Examples\n", include_str!("../../docs/snippets/hyper_server.md"))
)]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// The local address of the connection.
    pub local_addr: SocketAddr,
    /// The address of the peer.
    pub peer_addr: SocketAddr,
    /// The provider of the connection.
    pub provider: ProviderKind,
    /// The name of the adapter: of the device or of the network interface
    /// ([`AdapterInfo::name`](crate::AdapterInfo::name)).
    pub adapter: Arc<str>,
    /// The number of the connection in `tracing` output.
    pub connection: ConnectionId,
}

impl RdmaStream {
    /// Returns the adapter of the stream.
    ///
    /// With a session it is that of the present connection.
    pub fn adapter(&self) -> Adapter {
        self.end().engine().adapter.clone()
    }

    /// Returns the addresses, the provider, the adapter and the number of the connection.
    pub fn info(&self) -> ConnectionInfo {
        let connection = self.connection();
        ConnectionInfo {
            local_addr: connection.local_addr(),
            peer_addr: connection.peer_addr(),
            provider: connection.provider(),
            adapter: self.adapter().properties().name.as_str().into(),
            connection: connection.id(),
        }
    }
}

/// Connects to a stream listener at this address. The connection begins with the messages of a session if both ends want one.
pub(super) async fn connect_engine(
    adapter: &Adapter,
    peer: SocketAddr,
    config: &StreamConfig,
) -> Result<Arc<StreamEngine>, StreamError> {
    let end = StreamResources::new(adapter, config).await?;
    let mut params = ConnectParams::default().private_data(end.private_data());
    if !adapter.properties().iwarp {
        params = params.retry_count(RETRIES).rnr_retry_count(RETRIES);
    }
    let (connector, params) = (config.options.connector(adapter)?, config.options.connect(params));
    let reply = connector.connect(&end.queue_pair, peer, params).await?;
    let hello = match Hello::decode(reply.private_data()) {
        Ok(hello) => hello,
        Err(error) => {
            // If this fails, the peer receives the end of the connection instead.
            let _ = reply.reject(&[]).await;
            return Err(StreamError::Protocol { peer, error });
        }
    };
    let connection = reply.complete_at_once().await?;
    Ok(StreamEngine::new(adapter, end, connection, hello, true))
}

/// Accepts a request for a stream. The connection begins with the messages of a session if both ends want one.
pub(super) async fn accept_engine(
    adapter: &Adapter,
    request: Request,
    config: &StreamConfig,
) -> Result<Arc<StreamEngine>, StreamError> {
    let hello = match Hello::decode(request.private_data()) {
        Ok(hello) => hello,
        Err(error) => {
            // If the peer has gone, there is nothing to reject.
            let peer = request.peer_addr();
            let _ = request.reject(&[]).await;
            return Err(StreamError::Protocol { peer, error });
        }
    };
    let mut config = *config;
    config.session = config.session.filter(|_| hello.session);
    let end = StreamResources::new(adapter, &config).await?;
    let mut params = AcceptParams::default().private_data(end.private_data());
    let info = adapter.properties();
    if !info.iwarp {
        params = params.rnr_retry_count(RETRIES);
    }
    let mut params = config.options.accept(params);
    // As over TCP, a stream is accepted before it is known whether its peer still exists.
    params.waives_rtr = true;
    let accepted = request.accept(&end.queue_pair, params).await;
    let connection = accepted.map_err(|retained| StreamError::Accept(retained.error))?;
    let end = StreamEngine::new(adapter, end, connection, hello, info.passive_sends_first);
    // Without a runtime there is no clock: then this end sends after the peer's first message.
    if !info.passive_sends_first && end.runtime.is_some() {
        let may_send = std::future::poll_fn(|cx| end.poll_may_send(cx));
        if tokio::time::timeout(FIRST_MESSAGE, may_send).await.is_err() {
            end.allow_sending();
        }
    }
    Ok(end)
}

/// Limits the time of a connect to this peer, or of the resolution of a name, by `TimedOut`. The future is the caller's: moved
/// into this one, it would take its place twice.
pub(super) async fn within<T>(
    peer: Option<SocketAddr>,
    limit: Option<Duration>,
    connect: Pin<&mut impl Future<Output = Result<T, StreamError>>>,
) -> Result<T, StreamError> {
    let Some(limit) = limit else { return connect.await };
    // Of the runtime that polls, which need not be the adapter's.
    current_runtime()?;
    match tokio::time::timeout(limit, connect).await {
        Ok(outcome) => outcome,
        Err(_elapsed) => Err(StreamError::TimedOut { peer, limit }),
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;
    use crate::io::RdmaListener;

    // Only the passive end over iWARP waits for a message of the peer: other ends may send as soon as they are connected (IO-01).
    #[tokio::test]
    async fn an_end_that_may_send_waits_for_nothing() {
        let adapter = Adapter::open(Ipv4Addr::LOCALHOST).expect("opened");
        assert!(adapter.properties().passive_sends_first);
        let (local, config) = (SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), StreamConfig::default());
        let listener = RdmaListener::bind_on(&adapter, local, &config).expect("bound");
        let connect = RdmaStream::connect_on(&adapter, listener.local_addr().expect("bound"), &config);
        let (connected, accepted) = tokio::join!(connect, listener.accept());
        for stream in [connected.expect("connected"), accepted.expect("accepted").0] {
            let may_send = std::future::poll_fn(|cx| stream.end().engine().poll_may_send(cx));
            assert!(may_send.now_or_never().is_some(), "the connection goes on");
        }
    }
}
