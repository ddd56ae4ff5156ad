//! [`Messages`] as the transport of tarpc, or of anything else that serializes what it sends.
//!
//! A request or a response is one message; the codec is one of tokio-serde's formats, or another `Serializer` and
//! `Deserializer`. Both ends need the same.
//!
//! A request that is longer than the server takes fails for itself ([`MessageTooLong`](crate::error::MessageTooLong)), and the
//! connection goes on. A response that is longer than the client takes ends the connection, and with it the other calls:
//! tarpc's server gives a channel up on which it cannot send. So let clients take what their servers may answer, by
//! [`MessagesConfig::max_message`](crate::io::MessagesConfig::max_message).
//!
#![cfg_attr(not(doctest), doc = include_str!("../../docs/snippets/tarpc.md"))]

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures::{Sink, Stream};
use tokio_serde::Framed;

use super::Messages;

/// A stream of `Item` and a sink for `SinkItem`, as messages in which `Codec` has put them.
pub type Transport<Item, SinkItem, Codec> = Framed<Frames, Item, SinkItem, Codec>;

/// The transport over these messages.
pub fn transport<Item, SinkItem, Codec>(
    messages: Messages,
    codec: Codec,
) -> Transport<Item, SinkItem, Codec> {
    Framed::new(Frames { messages }, codec)
}

/// [`Messages`] of which those that come are [`BytesMut`], as [`Framed`] wants them: one more copy for long ones.
#[derive(Debug)]
pub struct Frames {
    messages: Messages,
}

impl Frames {
    /// The messages underneath, for their addresses and their connection.
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
