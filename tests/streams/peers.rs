//! The byte stream with peers that send rsocket messages byte by byte, valid and invalid.
//!
//! Runs on: soft, sim, rxe, siw

use std::io::ErrorKind;

use common::stream::listening;
use common::*;
use futures::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::error::{ProtocolError, StreamBroken};
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{
    AcceptParams, Access, Adapter, Buffer, ConnectParams, Connection, DisconnectReason, Op, PrivateData,
    QueuePair, QueuePairConfig, RdmaStream, Region, RemoteRegion, StreamConfig, WorkOptions,
};

/// How many receives the peer posts, and what it says of it.
const RECEIVES: usize = 64;
/// The peer's memory: two targets, then a ring.
const RING: usize = 64;
/// A length of which no part of the bytes looks like it.
const HALF: usize = 0x1234;

const CREDIT: u32 = 4 << 29;
const CONTROL: u32 = 7 << 29;
const DISCONNECT: u32 = CONTROL;
const KEEPALIVE: u32 = CONTROL | 1;
const SHUTDOWN: u32 = CONTROL | 2;

/// An end of a connection that is no stream.
struct Peer {
    adapter: Adapter,
    queue_pair: QueuePair,
    connection: Connection,
    region: Region,
    receives: Vec<Op<Buffer>>,
    /// The places that the stream has told of: its list of targets, and the first memory that it takes data in.
    targets: RemoteRegion,
    data: RemoteRegion,
    credits: u16,
}

/// The parts of an end that there are before the connection.
struct Half {
    queue_pair: QueuePair,
    region: Region,
    receives: Vec<Op<Buffer>>,
}

impl Half {
    async fn new(adapter: &Adapter) -> Self {
        let config = QueuePairConfig::default().receive_depth(RECEIVES).send_depth(512);
        let queue_pair = adapter.queue_pair(config).expect("a queue pair");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = adapter.register(RING + 2 * HALF, access).await.expect("registered");
        let receive = |_| {
            let buffer = adapter.buffer(4).expect("a buffer");
            queue_pair.receive(buffer).expect("posted")
        };
        let receives = (0..RECEIVES).map(receive).collect();
        Self { queue_pair, region, receives }
    }

    /// `struct rs_conn_data`, with this data buffer.
    fn hello(&self, data: RemoteRegion) -> Vec<u8> {
        let place = self.region.remote();
        let mut bytes = vec![1, 0, 0, RECEIVES as u8, 0, 0, 0, 0];
        bytes.extend(place.address().to_be_bytes());
        bytes.extend(place.key().0.to_be_bytes());
        bytes.extend(2_u32.to_be_bytes());
        bytes.extend(data.to_bytes());
        bytes
    }

    fn data(&self) -> RemoteRegion {
        self.region.remote_part(RING..RING + HALF).expect("in bounds")
    }

    fn connected(self, adapter: &Adapter, connection: Connection, hello: &PrivateData) -> Peer {
        let Self { queue_pair, region, receives } = self;
        let adapter = adapter.clone();
        assert_eq!(&hello[..2], [1, cfg!(target_endian = "big").into()], "version and flags");
        let credits = u16::from_be_bytes([hello[2], hello[3]]);
        let targets = RemoteRegion::decode(&hello[8..24]).expect("16 bytes");
        assert_eq!(targets.len(), 2);
        let targets = RemoteRegion::new(targets.address(), targets.key(), 32);
        let data = RemoteRegion::decode(&hello[24..40]).expect("16 bytes");
        Peer { adapter, queue_pair, connection, region, receives, targets, data, credits }
    }
}

impl Peer {
    /// It and a stream that has accepted it.
    async fn active(config: &StreamConfig) -> (Self, RdmaStream) {
        Self::with_data(config, Half::data).await
    }

    /// The same, where it says that it takes data there.
    async fn with_data(
        config: &StreamConfig,
        data: impl FnOnce(&Half) -> RemoteRegion,
    ) -> (Self, RdmaStream) {
        let adapter = adapter();
        let listener = listening(&adapter, config);
        let half = Half::new(&adapter).await;
        let params = ConnectParams::default().private_data(half.hello(data(&half)));
        let connect = async {
            let connector = adapter.connector();
            let reply = connector
                .connect(&half.queue_pair, listener.local_addr().expect("an address"), params)
                .await?;
            let hello = reply.private_data().clone();
            std::io::Result::Ok((reply.complete().await?, hello))
        };
        let both = within(async { tokio::try_join!(connect, listener.accept()) }).await;
        let ((connection, hello), (stream, _)) = both.expect("connected");
        (half.connected(&adapter, connection, &hello), stream)
    }

    /// It and a stream that has connected to it.
    async fn passive() -> (Self, RdmaStream) {
        let adapter = adapter();
        let (listener, address) = common::listening(&adapter);
        let half = Half::new(&adapter).await;
        let accept = async {
            let request = listener.request().await?;
            let hello = request.private_data().clone();
            let params = AcceptParams::default().private_data(half.hello(half.data()));
            Ok((request.accept(&half.queue_pair, params).await?, hello))
        };
        let config = StreamConfig::default();
        let connect =
            async { std::io::Result::Ok(RdmaStream::connect_on(&adapter, address, &config).await?) };
        let ((connection, hello), stream) =
            within(async { tokio::try_join!(accept, connect) }).await.expect("connected");
        (half.connected(&adapter, connection, &hello), stream)
    }

    /// Writes, and tells of it by a message.
    async fn tell(&self, bytes: &[u8], to: RemoteRegion, message: u32) {
        let iwarp = self.adapter.info().iwarp;
        let buffer = self.adapter.buffer_from(bytes).expect("a buffer");
        if !iwarp {
            let options = WorkOptions::default().immediate(message);
            within(self.queue_pair.write_with(buffer, &to, options).expect("posted"))
                .await
                .0
                .expect("written");
            return;
        }
        let write = (!bytes.is_empty()).then(|| self.queue_pair.write(buffer, &to).expect("posted"));
        self.send(&message.to_ne_bytes()).await;
        if let Some(write) = write {
            within(write).await.0.expect("written");
        }
    }

    async fn send(&self, bytes: &[u8]) {
        let buffer = self.adapter.buffer_from(bytes).expect("a buffer");
        within(self.queue_pair.send(buffer).expect("posted")).await.0.expect("sent");
    }

    async fn message(&self, message: u32) {
        self.tell(&[], RemoteRegion::new(0, RemoteKey(0), 0), message).await;
    }

    /// The next message of the stream.
    async fn hear(&mut self) -> u32 {
        let (outcome, buffer) = within(self.receives.remove(0)).await;
        let immediate = outcome.expect("received").immediate;
        let bytes = buffer[..4].try_into().expect("four bytes");
        immediate.unwrap_or(u32::from_ne_bytes(bytes))
    }

    fn read(&self, place: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.region.read(place, &mut bytes).expect("in bounds");
        bytes
    }
}

/// The error that a stream fails with after what it was told.
async fn broken(stream: &mut RdmaStream) -> StreamBroken {
    let mut rest = Vec::new();
    let error = within(stream.read_to_end(&mut rest)).await.expect_err("it is no end of file");
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<StreamBroken>()).cloned();
    let inner = inner.unwrap_or_else(|| panic!("{error:?}"));
    if matches!(inner, StreamBroken::Protocol(_)) {
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
    assert!(within(stream.write(b"x")).await.is_err());
    inner
}

/// An entry of the stream's list of targets.
fn entry(memory: RemoteRegion) -> Vec<u8> {
    let mut bytes = memory.address().to_ne_bytes().to_vec();
    bytes.extend(memory.key().0.to_ne_bytes());
    bytes.extend(memory.len().to_ne_bytes());
    bytes
}

fn part(memory: RemoteRegion, from: u32, length: u32) -> RemoteRegion {
    memory.part(from..from + length).expect("in bounds")
}

#[tokio::test]
async fn a_peer_by_hand_is_understood() {
    for active in [true, false] {
        let (mut peer, mut stream) = match active {
            true => Peer::active(&StreamConfig::default()).await,
            false => Peer::passive().await,
        };
        // An active one speaks first: over some transports it has to.
        if active {
            peer.message(KEEPALIVE).await;
        }
        peer.tell(b"hi", part(peer.data, 0, 2), 2).await;
        let mut word = [0; 2];
        within(stream.read_exact(&mut word)).await.expect("read");
        assert_eq!(&word, b"hi");
        // The second half of its ring is granted before anything else, with credits for what has been taken.
        let taken = u32::from(peer.credits);
        let grant = peer.hear().await;
        assert!((CREDIT + taken..=CREDIT + taken + 1).contains(&grant), "{grant:#x}");
        assert_eq!(peer.read(0, 16), [0; 16], "the first entry is in use");
        let expected = RemoteRegion::new(
            peer.data.address() + u64::from(peer.data.len()),
            peer.data.key(),
            peer.data.len(),
        );
        assert_eq!(peer.read(16, 16), entry(expected));

        // The bytes that it writes, and their places.
        within(stream.write_all(b"hello")).await.expect("written");
        assert_eq!(peer.hear().await, 5);
        within(stream.write_all(&[7; HALF - 5])).await.expect("written");
        assert_eq!(peer.hear().await, HALF as u32 - 5);
        assert_eq!(peer.read(RING, 6), b"hello\x07");
        // There is no memory left, until the second entry is written.
        let mut more = Box::pin(stream.write_all(b"more"));
        assert!(common::life::poll_once(&mut more).is_pending());
        let second = peer.region.remote_part(RING + HALF..RING + 2 * HALF).expect("in bounds");
        let (place, limit) = (part(peer.targets, 16, 16), 2 + RECEIVES as u32);
        peer.tell(&entry(second), place, CREDIT | limit).await;
        within(more).await.expect("written");
        assert_eq!(peer.hear().await, 4);
        assert_eq!(peer.read(RING + HALF, 4), b"more");

        within(stream.shutdown()).await.expect("shut down");
        assert_eq!(peer.hear().await, SHUTDOWN);
        peer.tell(b"bye", part(peer.data, 2, 3), 3).await;
        peer.message(DISCONNECT).await;
        let mut text = String::new();
        within(stream.read_to_string(&mut text)).await.expect("an end of file");
        assert_eq!(text, "bye");
    }
}

/// The length of the ring that the peer may write, where it matters.
const EXPOSED: usize = 1 << 17;

/// Over iWARP the active end sends first, but a program that has nothing to say yet may leave it at that.
#[tokio::test]
async fn a_stream_answers_a_peer_that_says_nothing() {
    let (mut peer, mut stream) = Peer::active(&StreamConfig::default()).await;
    within(stream.write_all(b"welcome")).await.expect("written");
    // The memory of the second half of its ring comes first.
    assert_eq!(peer.hear().await >> 29, CREDIT >> 29);
    assert_eq!(peer.hear().await, 7, "a message of seven bytes");
    assert_eq!(peer.read(RING, 7), b"welcome");
}

#[tokio::test]
async fn invalid_message_breaks_the_stream() {
    for (message, expected) in [
        (0, ProtocolError::Message(0)),
        (1 << 29 | 5, ProtocolError::Message(1 << 29 | 5)),
        (6 << 29, ProtocolError::Message(6 << 29)),
        (CONTROL | 3, ProtocolError::Message(CONTROL | 3)),
        (EXPOSED as u32 / 2 + 1, ProtocolError::Overrun("bytes")),
        (
            CREDIT | (RECEIVES as u32 + 1),
            ProtocolError::Value { what: "credits", value: RECEIVES as u64 + 1 },
        ),
    ] {
        let (peer, mut stream) = Peer::active(&StreamConfig::default().receive_buffer(EXPOSED)).await;
        peer.message(message).await;
        assert_eq!(broken(&mut stream).await, StreamBroken::Protocol(expected), "{message:#x}");
        within(peer.connection.disconnected()).await;
    }
}

#[tokio::test]
async fn data_after_the_end_loses_the_connection() {
    let (peer, mut stream) = Peer::active(&StreamConfig::default()).await;
    peer.message(SHUTDOWN).await;
    peer.message(1).await;
    let watched = async {
        // The end of file is believed until something follows it.
        while stream.write(b"anything").await.is_ok() {}
    };
    within(watched).await;
    within(peer.connection.disconnected()).await;
}

#[tokio::test]
async fn a_message_of_another_length_breaks_the_stream() {
    let (peer, mut stream) = Peer::active(&StreamConfig::default()).await;
    let length = if peer.adapter.info().iwarp { 3 } else { 0 };
    peer.send(&[0; 3][..length]).await;
    let expected = StreamBroken::Protocol(ProtocolError::Length(length));
    assert_eq!(broken(&mut stream).await, expected);
}

#[tokio::test]
async fn excess_targets_break_the_stream() {
    let (peer, mut stream) = Peer::active(&StreamConfig::default()).await;
    let memory = entry(part(peer.region.remote(), RING as u32, HALF as u32));
    for place in [16, 0] {
        peer.tell(&memory, part(peer.targets, place, 16), CREDIT | RECEIVES as u32).await;
    }
    assert_eq!(broken(&mut stream).await, StreamBroken::Protocol(ProtocolError::Overrun("targets")));
}

#[tokio::test]
async fn memory_of_another_length_breaks_the_stream() {
    let (peer, mut stream) = Peer::active(&StreamConfig::default()).await;
    let memory = entry(part(peer.region.remote(), RING as u32, HALF as u32 - 1));
    peer.tell(&memory, part(peer.targets, 16, 16), CREDIT | RECEIVES as u32).await;
    let error = ProtocolError::Value { what: "a target length", value: HALF as u64 - 1 };
    // A writer, which would wait for ever, is told as well.
    let written = within(stream.write_all(&[1; 2 * HALF])).await.expect_err("there is no room for it");
    assert_eq!(written.kind(), ErrorKind::InvalidData);
    assert_eq!(broken(&mut stream).await, StreamBroken::Protocol(error));
}

// IO-06: no message is shorter than what is wanted or 2,048 bytes, but at the end of the memory that the peer has granted.
#[tokio::test]
async fn messages_are_not_short() {
    let (mut peer, mut stream) = Peer::active(&StreamConfig::default().send_buffer(5000)).await;
    peer.message(KEEPALIVE).await;
    let bytes: Vec<u8> = (0..2 * HALF).map(|place| place as u8).collect();
    let second = peer.region.remote_part(RING + HALF..RING + 2 * HALF).expect("in bounds");
    peer.tell(&entry(second), part(peer.targets, 16, 16), CREDIT | RECEIVES as u32).await;
    let writing = async {
        for piece in bytes.chunks(3000) {
            stream.write_all(piece).await.expect("written");
        }
    };
    let hearing = async {
        let (mut place, mut lengths) = (0, Vec::new());
        while place < bytes.len() {
            let message = peer.hear().await;
            if message >> 29 == 0 {
                lengths.push(message as usize);
                place += message as usize;
            }
        }
        lengths
    };
    let ((), lengths) = within(async { tokio::join!(writing, hearing) }).await;
    assert!(peer.read(RING, bytes.len()) == bytes);
    let (mut place, mut short) = (0, 0);
    for length in &lengths {
        let wanted = 3000 - place % 3000;
        place += length;
        short += usize::from(*length < wanted.min(2048) && place % HALF != 0);
    }
    assert_eq!(short, 0, "{lengths:?}");
}

#[tokio::test]
async fn target_is_used_only_when_fully_written() {
    let (mut peer, mut stream) = Peer::active(&StreamConfig::default()).await;
    peer.message(KEEPALIVE).await;
    // A message about credits may come while an entry is being written.
    let second = peer.region.remote_part(RING + HALF..RING + 2 * HALF).expect("in bounds");
    let (entry, limit) = (entry(second), CREDIT | RECEIVES as u32);
    peer.tell(&entry[..13], part(peer.targets, 16, 13), limit).await;
    within(stream.write_all(&[1; HALF])).await.expect("the first half is there");
    let (adapter, mut write) = (peer.adapter.clone(), Box::pin(stream.write_all(&[2; HALF])));
    assert!(common::life::poll_once(&mut write).is_pending(), "the second is not, on {adapter:?}");
    peer.tell(&entry[13..], part(peer.targets, 29, 3), limit).await;
    within(write).await.expect("now it is");
    let mut heard = Vec::new();
    while heard.last() != Some(&(HALF as u32)) || heard.len() < 2 || heard[heard.len() - 2] != HALF as u32 {
        heard.push(peer.hear().await);
    }
    assert!(heard.iter().filter(|message| **message >> 29 == 0).all(|message| *message == HALF as u32));
    assert_eq!(peer.read(RING + HALF, HALF), [2; HALF]);
}

#[tokio::test]
async fn offered_memory_that_is_missing_breaks_the_connection() {
    let nowhere = |half: &Half| {
        let known = half.region.remote();
        RemoteRegion::new(known.address(), RemoteKey(!known.key().0), 4096)
    };
    let (peer, mut stream) = Peer::with_data(&StreamConfig::default(), nowhere).await;
    peer.message(KEEPALIVE).await;
    let _ = within(stream.write_all(b"for nobody")).await;
    // The adapter of the peer refuses it, and the stream is told that the connection is over.
    if peer.adapter.info().iwarp && !Device::under_test().is_soft() {
        // siw reports a Terminate as an orderly end. From a peer that never says its end, that is an end of file.
        let _ = within(stream.read_to_end(&mut Vec::new())).await;
    } else {
        let broken = broken(&mut stream).await;
        let told = matches!(
            broken,
            StreamBroken::Connection(DisconnectReason::Lost { .. } | DisconnectReason::Peer)
        );
        assert!(told, "{broken:?}");
    }
    // Another stream of the same adapter has noticed nothing.
    let (mut left, mut right) = common::stream::streams(&peer.adapter).await;
    within(left.write_all(b"x")).await.expect("written");
    within(right.read_exact(&mut [0])).await.expect("read");
}

#[tokio::test]
async fn a_server_that_lies_is_found_out_too() {
    let (mut peer, mut stream) = Peer::passive().await;
    peer.hear().await;
    peer.message(1 << 29).await;
    let expected = StreamBroken::Protocol(ProtocolError::Message(1 << 29));
    assert_eq!(broken(&mut stream).await, expected);
}

// IO-05: a program in C that exits has its connection closed by the kernel, and has said nothing.
#[tokio::test]
async fn exit_without_close_is_end_of_file() {
    let (peer, mut stream) = Peer::active(&StreamConfig::default()).await;
    peer.tell(b"abc", part(peer.data, 0, 3), 3).await;
    let mut word = [0; 3];
    within(stream.read_exact(&mut word)).await.expect("read");
    let mut waiting = Box::pin(stream.read(&mut word));
    assert!((&mut waiting).now_or_never().is_none());
    drop(peer);
    assert_eq!(within(waiting).await.expect("an end of file"), 0);
    assert!(within(stream.write(b"x")).await.is_err(), "nobody is there");
}

#[tokio::test]
async fn disconnect_without_stream_end_is_error() {
    let (left, mut right) = common::stream::streams(&adapter()).await;
    let mut byte = [0];
    let mut waiting = Box::pin(right.read(&mut byte));
    assert!((&mut waiting).now_or_never().is_none());
    let _ = within(left.connection().disconnect()).await;
    assert!(within(waiting).await.is_err(), "streams say their end");
}
