//! [`Messages`] as the transport of tarpc, or of another protocol that serializes its messages.
//!
//! Each request and each response is one message. The codec is a format of tokio-serde, or any other `Serializer` and
//! `Deserializer`. Both sides must use the same.
//!
//! A request that is longer than the server accepts fails with [`MessageTooLong`](crate::error::MessageTooLong); other
//! calls are not affected. A response that is longer than the client accepts ends the connection and all its calls,
//! because tarpc's server closes a channel on which a send fails. Therefore set
//! [`MessagesConfig::max_message`](crate::io::MessagesConfig::max_message) of the clients to the longest response of
//! their servers.
//!
#![cfg_attr(not(doctest), doc = include_str!("../../docs/snippets/tarpc.md"))]

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures::{Sink, Stream};
use tokio_serde::Framed;

use super::Messages;

/// A stream of `Item` and a sink of `SinkItem`, encoded as messages by `Codec`.
pub type Transport<Item, SinkItem, Codec> = Framed<Frames, Item, SinkItem, Codec>;

/// Creates a transport over these messages.
pub fn transport<Item, SinkItem, Codec>(
    messages: Messages,
    codec: Codec,
) -> Transport<Item, SinkItem, Codec> {
    Framed::new(Frames { messages }, codec)
}

/// [`Messages`] that yield received messages as [`BytesMut`], which [`Framed`] requires. Long messages are copied once
/// more.
#[derive(Debug)]
pub struct Frames {
    messages: Messages,
}

impl Frames {
    /// Returns the underlying messages, for their addresses and their connection.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }
}

impl Stream for Frames {
    type Item = io::Result<BytesMut>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(Pin::new(&mut self.messages).poll_next(cx));
        Poll::Ready(next.map(|message| message.map(BytesMut::from)))
    }
}

impl Sink<Bytes> for Frames {
    type Error = io::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.messages).poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Bytes) -> io::Result<()> {
        Pin::new(&mut self.messages).start_send(message)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.messages).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.messages).poll_close(cx)
    }
}
