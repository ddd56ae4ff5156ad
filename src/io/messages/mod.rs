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
use crate::mr::Pool;
use crate::proto::messages::Hello;
use crate::types::Role;

pub use config::MessagesConfig;

/// Messages over Send and Receive: each arrives as a whole, as it was sent, and in order. For protocols that bring their own
/// framing; for a stream of bytes there is [`RdmaStream`](crate::io::RdmaStream).
///
/// A [`Stream`] of what the peer sends and a [`Sink`] for what it is sent, which [`StreamExt::split`] gives to two tasks.
/// Neither holds up the other: a peer that does not read stops who writes to it, by credits, and nothing else.
///
/// # Sending
/// - A message goes out at once, not only when it is flushed. One for which the peer has no room waits here, and
///   `poll_ready` until it has gone.
/// - A message that is longer than [`max_message`](Self::max_message) is an error of `start_send`,
///   [`MessageTooLong`](crate::error::MessageTooLong), and others may follow.
/// - `start_send` copies a message into memory that is registered already. On a device, one that is longer than
///   [`pool`](Self::pool)'s buffers, or finds none of them free, has its copy registered first, which blocks for as long as
///   that takes: let both sides take messages of the same length.
/// - `poll_flush` waits until the queue pair has completed every send, which on iWARP is before the peer has it.
/// - `poll_close` tells the peer that no more will come; messages of the peer's can be read after it as before. Who closes
///   second need not care whether the first is still there: it is no error when all that was sent has gone.
///
/// # Receiving
/// The stream ends when the peer has closed its side. When the connection is over before, its last item is an error that says
/// why, a [`StreamBroken`](crate::error::StreamBroken); what had arrived comes first.
///
/// # Copies
/// A long message is handed out in the memory that it was received in, which goes back when its last [`Bytes`] is dropped;
/// it is copied when many are kept, so nobody has to hurry, and a short one always is. Bytes that lie in a buffer of
/// [`pool`](Self::pool), as those do that were received, are sent from where they are, and others are copied once.
///
/// # Dropping
/// Dropping it disconnects. A peer that was not told the end before, by `poll_close`, finds the stream broken.
///
/// # Cancel safety
/// No future of [`StreamExt`](futures::StreamExt) loses a message when it is dropped. One of [`SinkExt`](futures::SinkExt)
/// that is dropped while it waits for room takes its message with it.
///
/// ```
/// use bytes::Bytes;
/// use futures::{SinkExt, StreamExt};
/// use tokio_rdma::{MessageListener, Messages};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = MessageListener::bind("127.0.0.1:0").await?;
/// let address = listener.local_addr();
/// let echo = async {
///     let (messages, _peer) = listener.accept().await?;
///     let (sink, stream) = messages.split();
///     // Ends, and tells so, when the peer has.
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
    /// Connects to a listener for messages at an address, or at whichever address of a name answers first, with the default
    /// settings; see [`RdmaConnector::connect_with`], by which it is done with others.
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
    /// `Resolve`, `NoAddress`; of an only address its own error, `Open` or one of [`connect_on`](Self::connect_on); of
    /// several `Attempts`.
    ///
    /// # Cancel safety
    /// Dropping the future gives the attempts up.
    pub async fn connect<A: ToSocketAddrs>(address: A) -> Result<Self, StreamError> {
        let config = MessagesConfig::default();
        let connect = |adapter: Adapter, peer| async move { Self::connect_on(&adapter, peer, &config).await };
        RdmaConnector::new().connect_with(address, connect).await
    }

    /// Connects to a listener for messages, over one adapter.
    ///
    /// # Errors
    /// `Connect`; `Protocol` when who listens there speaks another; `OutOfRange`, `Open`, `Register`, `Post`.
    ///
    /// # Cancel safety
    /// Dropping the future gives the attempt up.
    pub async fn connect_on(
        adapter: &Adapter,
        peer: SocketAddr,
        config: &MessagesConfig,
    ) -> Result<Self, StreamError> {
        let prepared = Prepared::new(adapter, config).await?;
        let params = ConnectParams::default().private_data(prepared.ours.encode().to_vec());
        let reply = adapter.connector().connect(&prepared.queue_pair, peer, params).await?;
        let theirs = Hello::decode(reply.private_data())?;
        let connection = reply.complete().await?;
        Ok(Self { engine: prepared.start(Role::Active, theirs, connection) })
    }

    /// Accepts a request for messages.
    ///
    /// # Errors
    /// `Protocol` when it is for something else; `Accept`, `OutOfRange`, `Open`, `Register`, `Post`. The peer is refused.
    ///
    /// # Cancel safety
    /// Dropping the future refuses the peer.
    pub async fn accept_on(
        adapter: &Adapter,
        request: Request,
        config: &MessagesConfig,
    ) -> Result<Self, StreamError> {
        let theirs = Hello::decode(request.private_data())?;
        let prepared = Prepared::new(adapter, config).await?;
        let params = AcceptParams::default().private_data(prepared.ours.encode().to_vec());
        let accepted = request.accept(&prepared.queue_pair, params).await;
        let connection = accepted.map_err(AcceptError::from)?;
        Ok(Self { engine: prepared.start(Role::Passive, theirs, connection) })
    }

    /// The longest message that the peer takes and the adapter can carry, in bytes.
    pub fn max_message(&self) -> usize {
        self.engine.maximum()
    }

    /// Buffers from which messages are sent without a copy: fill one that [`try_get`](Pool::try_get) has given, and send what
    /// [`freeze`](crate::mr::Buffer::freeze) makes of it. They are four bytes longer than the longest message that this
    /// side takes.
    ///
    /// It is as large as the messages themselves need it: who keeps many of its buffers has others copied.
    pub fn pool(&self) -> &Pool {
        &self.engine.pool
    }

    /// The connection underneath.
    pub fn connection(&self) -> &Connection {
        &self.engine.connection
    }

    /// The local address.
    pub fn local_addr(&self) -> SocketAddr {
        self.engine.connection.local_addr()
    }

    /// The address of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.engine.connection.peer_addr()
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
        self.engine.wakers.writer.register(cx.waker());
        self.engine.poll_flush()
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.engine.wakers.writer.register(cx.waker());
        self.engine.poll_close()
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").field("connection", self.connection()).finish_non_exhaustive()
    }
}
