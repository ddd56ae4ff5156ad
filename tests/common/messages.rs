//! The two ends of a message connection, and a peer that sends arbitrary bytes.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tokio_rdma::error::StreamBroken;
use tokio_rdma::{
    AcceptParams, Access, Adapter, Buffer, ConnectParams, Connection, MessageListener, Messages,
    MessagesConfig, Op, QueuePair, QueuePairConfig,
};

use super::raw::{bytes, room, success};
use super::{listening, v4, within};

/// A listener for messages on a port of its choice.
pub fn listening_for_messages(adapter: &Adapter, config: &MessagesConfig) -> MessageListener {
    MessageListener::bind_on(adapter, SocketAddr::new(v4(), 0), config).expect("listening")
}

/// Both ends, the one that connected first.
pub async fn ends(adapter: &Adapter) -> [Messages; 2] {
    ends_with(adapter, [MessagesConfig::default(); 2]).await
}

/// The same with settings for each.
pub async fn ends_with(adapter: &Adapter, [active, passive]: [MessagesConfig; 2]) -> [Messages; 2] {
    let listener = listening_for_messages(adapter, &passive);
    let address = listener.local_addr().expect("an address");
    // An error of one side is not waited for by the other.
    let connect = async { Messages::connect_on(adapter, address, &active).await.expect("connected") };
    let accept = async { listener.accept().await.expect("accepted").0 };
    within(async { tokio::join!(connect, accept) }).await.into()
}

/// Sends a message, which there is room for sooner or later.
pub async fn send(messages: &mut Messages, message: impl Into<Bytes>) {
    within(messages.send(message.into())).await.expect("sent");
}

/// The next message, which comes.
pub async fn next(messages: &mut Messages) -> Bytes {
    within(messages.next()).await.expect("no end").expect("a message")
}

/// How it broke.
pub fn broken(error: &std::io::Error) -> &StreamBroken {
    let inner = error.get_ref().expect("an error of ours");
    inner.downcast_ref().unwrap_or_else(|| panic!("{error}"))
}

/// What an end says in its private data.
pub fn hello(credits: u16, maximum: u32) -> Vec<u8> {
    let mut data = b"TRMS\x01\0".to_vec();
    data.extend_from_slice(&credits.to_be_bytes());
    data.extend_from_slice(&maximum.to_be_bytes());
    data
}

pub const START: [u8; 4] = [1, 0, 0, 0];

/// A message of the user's.
pub fn data(payload: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0], payload].concat()
}

/// An end by hand.
pub struct ByHand {
    pub connection: Connection,
    pub private_data: Vec<u8>,
    pub queue_pair: QueuePair,
    adapter: Adapter,
    receives: VecDeque<Op<Buffer>>,
}

impl ByHand {
    fn prepare(adapter: &Adapter) -> (QueuePair, VecDeque<Op<Buffer>>) {
        let queue_pair = adapter.queue_pair(QueuePairConfig::default()).expect("a queue pair");
        let receives = (0..64).map(|_| queue_pair.receive(room(adapter, 70_000)).expect("posted")).collect();
        (queue_pair, receives)
    }

    /// One that has connected to a listener for messages.
    pub async fn connected(adapter: &Adapter, address: SocketAddr, hello: Vec<u8>) -> Self {
        let (queue_pair, receives) = Self::prepare(adapter);
        let params = ConnectParams::default().private_data(hello);
        let reply =
            within(adapter.connector().connect(&queue_pair, address, params)).await.expect("accepted");
        let private_data = reply.private_data().to_vec();
        let connection = within(reply.complete()).await.expect("connected");
        Self { connection, private_data, queue_pair, adapter: adapter.clone(), receives }
    }

    /// That, and what it has connected to.
    pub async fn active(adapter: &Adapter, config: &MessagesConfig, hello: Vec<u8>) -> (Self, Messages) {
        let listener = listening_for_messages(adapter, config);
        let by_hand = Self::connected(adapter, listener.local_addr().expect("an address"), hello).await;
        (by_hand, within(listener.accept()).await.expect("accepted").0)
    }

    /// One that has accepted, and what has connected to it.
    pub async fn passive(adapter: &Adapter, config: &MessagesConfig, hello: Vec<u8>) -> (Self, Messages) {
        let (queue_pair, receives) = Self::prepare(adapter);
        let (listener, address) = listening(adapter);
        let accept = async {
            let request = listener.request().await.expect("a request");
            let private_data = request.private_data().to_vec();
            let params = AcceptParams::default().private_data(hello);
            (request.accept(&queue_pair, params).await.expect("accepted"), private_data)
        };
        let connect = Messages::connect_on(adapter, address, config);
        let ((connection, private_data), messages) = within(async { tokio::join!(accept, connect) }).await;
        let by_hand = Self { connection, private_data, queue_pair, adapter: adapter.clone(), receives };
        (by_hand, messages.expect("connected"))
    }

    pub async fn send(&self, message: &[u8]) {
        success(self.post(message)).await;
    }

    /// The same, whatever becomes of it.
    pub fn post(&self, message: &[u8]) -> Op<Buffer> {
        self.queue_pair.send(bytes(&self.adapter, message)).expect("posted")
    }

    /// Returns when all that was posted has reached the receives of the peer, which need not poll for that.
    ///
    /// A read is answered behind the messages before it. It reads a byte: a siw that is sending ends the connection at an empty read.
    pub async fn arrived(&self) {
        let source = self.adapter.register(1, Access::REMOTE_READ).await.expect("registered");
        success(self.queue_pair.read(room(&self.adapter, 1), &source.remote()).expect("posted")).await;
    }

    pub async fn receive(&mut self) -> Vec<u8> {
        let (length, buffer) = success(self.receives.pop_front().expect("not so many")).await;
        buffer[..length].to_vec()
    }
}
