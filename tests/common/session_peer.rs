//! Peers of streams with sessions that speak rsocket and the messages of sessions by hand, valid and invalid.

use std::collections::VecDeque;
use std::net::SocketAddr;

use tokio_rdma::error::CompletionError;
use tokio_rdma::{
    Access, Adapter, Buffer, Completion, ConnectParams, Connection, Op, QueuePair, QueuePairConfig,
    RdmaListener, RdmaStream, Region, RemoteRegion,
};

/// The code of the greetings, which is not public.
#[path = "../../src/proto/session/siphash.rs"]
#[allow(dead_code, unreachable_pub, reason = "it belongs to the crate")]
mod siphash;
use siphash::siphash;

/// Kinds of messages, and their length.
pub const OPEN: u8 = 1;
pub const RESUME: u8 = 2;
pub const GRANTED: u8 = 3;
pub const UNKNOWN: u8 = 4;
pub const REFUSED: u8 = 5;
pub const OVER: u8 = 6;
pub const ABANDONED: u8 = 7;
pub const LENGTH: usize = 80;

pub type Greeting = [u8; LENGTH];
pub type Number = [u8; 16];

/// Flags of a hello: the peer says its end, and speaks the messages of sessions.
pub const SAYS_ITS_END: u8 = 2;
pub const SESSION: u8 = 8;

/// The types of rsocket's messages.
pub const READ: u32 = 5;
pub const CONTROL: u32 = 7;
pub const DISCONNECT: u32 = CONTROL << 29;
pub const KEEPALIVE: u32 = CONTROL << 29 | 1;
pub const ABANDON: u32 = CONTROL << 29 | 3;

/// The receives of a peer, its list of targets, and the memory behind that.
pub const RECEIVES: usize = 64;
pub const TARGETS: usize = 32;
pub const RING: usize = 4096;

/// A message of this kind.
pub fn greeting(kind: u8, id: Number, epoch: u64, read: u64, secret: &Number) -> Greeting {
    let mut bytes = [0; LENGTH];
    bytes[..6].copy_from_slice(&[b'R', b'd', b'S', b'e', 1, kind]);
    // The window, and ten minutes.
    bytes[8..12].copy_from_slice(&100_000_u32.to_be_bytes());
    bytes[12..16].copy_from_slice(&600_000_u32.to_be_bytes());
    bytes[16..32].copy_from_slice(&id);
    bytes[32..40].copy_from_slice(&epoch.to_be_bytes());
    bytes[40..48].copy_from_slice(&read.to_be_bytes());
    let proof = siphash(*secret, &bytes[..64]);
    bytes[64..].copy_from_slice(&proof);
    bytes
}

pub fn kind(greeting: &Greeting) -> u8 {
    greeting[5]
}

pub fn id(greeting: &Greeting) -> Number {
    greeting[16..32].try_into().expect("16 bytes")
}

pub fn read(greeting: &Greeting) -> u64 {
    u64::from_be_bytes(greeting[40..48].try_into().expect("8 bytes"))
}

/// An end of a connection that is no stream.
pub struct Peer {
    adapter: Adapter,
    queue_pair: QueuePair,
    pub connection: Connection,
    region: Region,
    receives: VecDeque<Op<Buffer>>,
    /// The stream's memory, and how much of it has been written.
    data: RemoteRegion,
    written: u32,
    /// How much of its own memory has been read.
    read: usize,
    /// How much has arrived beyond that.
    arrived: usize,
}

impl Peer {
    pub async fn connect(adapter: &Adapter, address: SocketAddr, flags: u8) -> Self {
        let config = QueuePairConfig::default().receive_depth(RECEIVES);
        let queue_pair = adapter.queue_pair(config).expect("a queue pair");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = adapter.register(TARGETS + RING, access).await.expect("registered");
        let receive = |_| queue_pair.receive(adapter.buffer(4).expect("memory")).expect("posted");
        let receives = (0..RECEIVES).map(receive).collect();
        let (place, ring) =
            (region.remote(), region.remote_part(TARGETS..TARGETS + RING).expect("in bounds"));
        let mut hello = vec![1, 0, 0, RECEIVES as u8, flags, 0, 0, 0];
        hello.extend(place.address().to_be_bytes());
        hello.extend(place.key().0.to_be_bytes());
        hello.extend(2_u32.to_be_bytes());
        hello.extend(ring.to_bytes());
        let params = ConnectParams::default().private_data(hello);
        let reply = adapter.connector().connect(&queue_pair, address, params).await.expect("a reply");
        let theirs = reply.private_data().clone();
        assert_eq!(theirs[4] & SESSION, flags & SESSION, "the flag of the session is answered");
        let data = RemoteRegion::decode(&theirs[24..40]).expect("16 bytes");
        let (connection, adapter) = (reply.complete().await.expect("connected"), adapter.clone());
        Self { adapter, queue_pair, connection, region, receives, data, written: 0, read: 0, arrived: 0 }
    }

    pub async fn with_session(adapter: &Adapter, address: SocketAddr) -> Self {
        Self::connect(adapter, address, SAYS_ITS_END | SESSION).await
    }

    /// Connects, and asks.
    pub async fn asking(adapter: &Adapter, address: SocketAddr, ask: &[u8]) -> Self {
        let mut peer = Self::with_session(adapter, address).await;
        peer.write(ask).await;
        peer
    }

    /// Opens a session. Returns the peer, the id and the secret of the session, and the stream.
    pub async fn open(adapter: &Adapter, listener: &RdmaListener) -> (Self, Number, Number, RdmaStream) {
        let address = listener.local_addr().expect("an address");
        let open = async {
            let ask = greeting(OPEN, [0; 16], 0, 0, &[0; 16]);
            let mut peer = Self::asking(adapter, address, &ask).await;
            let answer = peer.answer().await.expect("an answer");
            (peer, answer)
        };
        let ((peer, answer), accepted) = tokio::join!(open, listener.accept());
        assert_eq!(kind(&answer), GRANTED);
        let secret = answer[48..64].try_into().expect("16 bytes");
        assert_eq!(answer, {
            let mut expected = greeting(GRANTED, id(&answer), 0, 0, &secret);
            // The answer carries the secret, and what the listener says of itself.
            expected[8..16].copy_from_slice(&answer[8..16]);
            expected[48..].copy_from_slice(&answer[48..]);
            expected
        });
        (peer, id(&answer), secret, accepted.expect("accepted").0)
    }

    /// Sends a word. The connection may have ended.
    pub async fn word(&self, word: u32) {
        let buffer = self.adapter.buffer_from(&word.to_ne_bytes()).expect("memory");
        if let Ok(send) = self.queue_pair.send(buffer) {
            let _ = send.await;
        }
    }

    /// Writes bytes of the stream. The connection may have ended.
    pub async fn write(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).expect("short");
        let to = self.data.part(self.written..self.written + length).expect("in bounds");
        self.written += length;
        let buffer = self.adapter.buffer_from(bytes).expect("memory");
        // The word follows it in order.
        let _written = self.queue_pair.write(buffer, &to);
        self.word(length).await;
    }

    /// Receives a word. `None` if there were as many as receives. Dropping the future loses none.
    async fn next(&mut self) -> Option<(Result<Completion, CompletionError>, Buffer)> {
        let received = self.receives.front_mut()?.await;
        self.receives.pop_front();
        Some(received)
    }

    /// Returns how many bytes can be written: the peer does not take the memory that the stream gives it later.
    pub fn room(&self) -> usize {
        (self.data.len() - self.written) as usize
    }

    /// Reads bytes of the stream. `None` if it ends before.
    pub async fn read(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.arrived < length {
            let (outcome, buffer) = self.next().await?;
            outcome.ok()?;
            let word = u32::from_ne_bytes(buffer[..4].try_into().expect("four bytes"));
            match word >> 29 {
                0 => self.arrived += word as usize,
                CONTROL if word != KEEPALIVE => return None,
                _ => {}
            }
        }
        let mut bytes = vec![0; length];
        self.region.read(TARGETS + self.read, &mut bytes).expect("in bounds");
        self.read += length;
        self.arrived -= length;
        Some(bytes)
    }

    /// Receives how many bytes of the stream the other program has read.
    pub async fn report(&mut self) -> u32 {
        loop {
            let (outcome, buffer) = self.next().await.expect("few messages");
            outcome.expect("the connection is alive");
            let word = u32::from_ne_bytes(buffer[..4].try_into().expect("four bytes"));
            if word >> 29 == READ {
                return word & ((1 << 29) - 1);
            }
        }
    }

    /// Reads the message of a session. `None` if the connection ends before.
    pub async fn answer(&mut self) -> Option<Greeting> {
        self.read(LENGTH).await.map(|bytes| bytes.try_into().expect("as many"))
    }
}
