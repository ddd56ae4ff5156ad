//! Messages that keep their boundaries, as a sink and a stream.

mod config;
mod engine;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::{Sink, Stream};
use tokio::net::ToSocketAddrs;
use tokio::task::coop;

use self::engine::{Engine, Prepared};
use crate::cm::{AcceptParams, Adapter, ConnectParams, Connection, Request};
use crate::error::{AcceptError, StreamError};
use crate::io::connector::RdmaConnector;
use crate::io::connector::within;
use crate::mr::Pool;
use crate::proto::messages::Hello;
use crate::types::Role;

pub use config::MessagesConfig;

/// A connection that carries messages, over Send and Receive.
///
/// Each message arrives as a whole, and the messages arrive in order. Use `Messages` for protocols that have their own
/// framing, and [`RdmaStream`](crate::io::RdmaStream) for a stream of bytes.
///
/// `Messages` is a [`Stream`] of received messages and a [`Sink`] of messages to send. [`StreamExt::split`] separates
/// the two for two tasks. The directions are independent: if the peer does not read, credits stop the writer and
/// nothing else.
///
/// # Sending
/// - A message is sent immediately, without a flush. If the peer or the send queue has no room for it, this side holds
///   one message, and `poll_ready` is pending until that message has been sent.
/// - `start_send` fails with [`MessageTooLong`](crate::error::MessageTooLong) if a message is longer than
///   [`max_message`](Self::max_message). Further messages can be sent after that.
/// - `start_send` copies a message into memory that is already registered. If the message is longer than the buffers of
///   [`pool`](Self::pool), or none of them is free, its copy is registered first. On a device this blocks the thread.
///   To avoid it, use the same `max_message` on both sides.
/// - `poll_flush` completes when the queue pair has completed every send. On iWARP this can be before the peer has
///   received the messages.
/// - `poll_close` sends the end of this direction. Messages of the peer can still be received. The side that closes
///   second does not fail if the peer has already disconnected and all sent messages have completed.
///
/// # Receiving
/// The stream ends when the peer closes its direction. If the connection ends before that, the stream yields the
/// messages that had arrived and then one error that contains a [`StreamBroken`](crate::error::StreamBroken) with the
/// reason.
///
/// # Copies
/// A received message of up to 1024 bytes is copied. A longer message is handed out without a copy, in the buffer that
/// it was received in, while enough buffers remain, and is copied otherwise. Holding messages therefore never blocks
/// the peer. The buffer is reused after its last [`Bytes`] has been dropped.
///
/// Bytes in a buffer of [`pool`](Self::pool), which includes those of received messages, are sent without a copy. Other
/// bytes are copied once.
///
/// # Dropping
/// Dropping `Messages` disconnects. If this side has not closed before, the stream of the peer ends with an error.
///
/// # Cancel safety
/// Dropping a future of [`StreamExt`](futures::StreamExt) loses no message. Dropping a future of
/// [`SinkExt`](futures::SinkExt) that waits for room drops its message.
///
/// ```
/// use bytes::Bytes;
/// use futures::{SinkExt, StreamExt};
/// use tokio_rdma::{MessageListener, Messages};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = MessageListener::bind("127.0.0.1:0").await?;
/// let address = listener.local_addr()?;
/// let echo = async {
///     let (messages, _peer) = listener.accept().await?;
///     let (sink, stream) = messages.split();
///     // Resolves when the peer has closed its direction, and closes this one.
///     stream.forward(sink).await
/// };
/// let ask = async {
///     let mut messages = Messages::connect(address).await?;
///     messages.send(Bytes::from_static(b"hello")).await?;
///     assert_eq!(messages.next().await.transpose()?.as_deref(), Some(&b"hello"[..]));
///     messages.close().await?;
///     assert!(messages.next().await.is_none());
///     std::io::Result::Ok(())
/// };
/// tokio::try_join!(echo, ask)?;
/// # Ok(())
/// # }
/// ```
///
/// [`StreamExt::split`]: futures::StreamExt::split
#[must_use = "dropping it disconnects"]
pub struct Messages {
    engine: Engine,
}

impl Messages {
    /// Connects to a message listener at an address or a name, with the default settings.
    ///
    /// For other settings, use [`RdmaConnector::connect_with`], which also describes how the addresses of a name are
    /// tried:
    ///
    /// ```no_run
    /// # async fn example(config: tokio_rdma::MessagesConfig) -> std::io::Result<()> {
    /// use tokio_rdma::{Messages, RdmaConnector};
    ///
    /// let connector = RdmaConnector::new();
    /// let connect = |adapter, peer| async move { Messages::connect_on(&adapter, peer, &config).await };
    /// let messages = connector.connect_with("server.example:7000", connect).await?;
    /// # drop(messages);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Resolve` or `NoAddress` if the name yields no address. If there was one address, `Open` or an error of
    /// [`connect_on`](Self::connect_on); if several, `Attempts` with the error of each.
    ///
    /// # Cancel safety
    /// Dropping the future aborts the connection attempts.
    pub fn connect<A: ToSocketAddrs>(address: A) -> impl Future<Output = Result<Self, StreamError>> + use<A> {
        let config = MessagesConfig::default().connect_timeout(None);
        let connect =
            move |adapter: Adapter, peer| async move { Self::connect_on(&adapter, peer, &config).await };
        RdmaConnector::new().connect_with(address, connect)
    }

    /// Connects to a message listener at this address, through this adapter.
    ///
    /// # Errors
    /// `Connect` if no connection is made; `TimedOut` if the peer does not accept within
    /// [`connect_timeout`](MessagesConfig::connect_timeout); `Protocol` if the peer uses another protocol; `OutOfRange` if
    /// a setting is out of range; `Bind` if the [`source`](MessagesConfig::source) cannot be used; `Open`, `Register` or
    /// `Post` if the queues or the memory could not be created.
    ///
    /// # Cancel safety
    /// Dropping the future aborts the connection attempt.
    pub async fn connect_on(
        adapter: &Adapter,
        peer: SocketAddr,
        config: &MessagesConfig,
    ) -> Result<Self, StreamError> {
        within(Some(peer), config.connect_timeout, Self::connect_to(adapter, peer, config)).await
    }

    async fn connect_to(
        adapter: &Adapter,
        peer: SocketAddr,
        config: &MessagesConfig,
    ) -> Result<Self, StreamError> {
        let prepared = Prepared::new(adapter, config).await?;
        let params = ConnectParams::default().private_data(prepared.ours.encode());
        let (connector, params) = (config.options.connector(adapter)?, config.options.connect(params));
        let reply = connector.connect(&prepared.queue_pair, peer, params).await?;
        let theirs = Hello::decode(reply.private_data());
        let theirs = theirs.map_err(|error| StreamError::Protocol { peer, error })?;
        let connection = reply.complete().await?;
        Ok(Self { engine: prepared.start(Role::Active, theirs, connection) })
    }

    /// Accepts a request for messages.
    ///
    /// # Errors
    /// `Protocol` if the request is for another protocol; `Accept` if accepting fails; `OutOfRange`, `Open`, `Register`
    /// and `Post` as for [`connect_on`](Self::connect_on). The peer is rejected in each case.
    ///
    /// # Cancel safety
    /// Dropping the future rejects the peer.
    pub async fn accept_on(
        adapter: &Adapter,
        request: Request,
        config: &MessagesConfig,
    ) -> Result<Self, StreamError> {
        let theirs = match Hello::decode(request.private_data()) {
            Ok(theirs) => theirs,
            Err(error) => {
                // If the peer has gone meanwhile, there is nothing to reject.
                let peer = request.peer_addr();
                let _ = request.reject(&[]).await;
                return Err(StreamError::Protocol { peer, error });
            }
        };
        let prepared = Prepared::new(adapter, config).await?;
        let params = config.options.accept(AcceptParams::default().private_data(prepared.ours.encode()));
        let accepted = request.accept(&prepared.queue_pair, params).await;
        let connection = accepted.map_err(AcceptError::from)?;
        Ok(Self { engine: prepared.start(Role::Passive, theirs, connection) })
    }

    /// Returns the length of the longest message that can be sent, in bytes: the smaller one of the peer's limit and
    /// the adapter's.
    pub fn max_message(&self) -> usize {
        self.engine.maximum()
    }

    /// Returns the pool of buffers from which messages are sent without a copy.
    ///
    /// Take a buffer with [`try_get`](Pool::try_get), fill it, and send the result of
    /// [`freeze`](crate::mr::Buffer::freeze). The buffers are four bytes longer than the longest message that this side
    /// receives.
    ///
    /// The pool has as many buffers as the connection needs. If the application holds many of them, further messages
    /// are copied.
    pub fn pool(&self) -> &Pool {
        &self.engine.pool
    }

    /// Returns the underlying connection.
    pub fn connection(&self) -> &Connection {
        &self.engine.connection
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// None. The type is that of [`RdmaStream::local_addr`](crate::io::RdmaStream::local_addr).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.engine.connection.local_addr())
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// None.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.engine.connection.peer_addr())
    }
}

impl Stream for Messages {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let turn = ready!(coop::poll_proceed(cx));
        self.engine.wakers.reader.register(cx.waker());
        let next = ready!(self.engine.poll_next());
        turn.made_progress();
        Poll::Ready(next)
    }
}

impl Sink<Bytes> for Messages {
    type Error = io::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let turn = ready!(coop::poll_proceed(cx));
        self.engine.wakers.writer.register(cx.waker());
        let ready = ready!(self.engine.poll_ready());
        turn.made_progress();
        Poll::Ready(ready)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Bytes) -> io::Result<()> {
        self.engine.send(message)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let turn = ready!(coop::poll_proceed(cx));
        self.engine.wakers.writer.register(cx.waker());
        let flushed = ready!(self.engine.poll_flush());
        turn.made_progress();
        Poll::Ready(flushed)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let turn = ready!(coop::poll_proceed(cx));
        self.engine.wakers.writer.register(cx.waker());
        let closed = ready!(self.engine.poll_close());
        turn.made_progress();
        Poll::Ready(closed)
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").field("connection", self.connection()).finish_non_exhaustive()
    }
}
