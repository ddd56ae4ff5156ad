//! Sessions with peers that speak rsocket and the messages of sessions by hand, valid and invalid.

use std::collections::VecDeque;
use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use tokio_rdma::error::{ProtocolError, StreamBroken};
use tokio_rdma::io::RdmaConnector;
use tokio_rdma::sim::{self, Host, Network};
use tokio_rdma::{
    Access, Adapter, Buffer, ConnectParams, Connection, Op, QueuePair, QueuePairConfig, RdmaListener,
    RdmaStream, Region, RemoteRegion, SessionConfig,
};

use crate::sessions::{broken, config, connect, exchange, listen, provider};
use crate::{PORT, SECOND, hosts};

/// The code of the greetings, which is not public.
#[path = "../../src/proto/session/siphash.rs"]
mod siphash;
use siphash::siphash;

/// Kinds of messages, and their length.
const OPEN: u8 = 1;
const RESUME: u8 = 2;
const GRANTED: u8 = 3;
const UNKNOWN: u8 = 4;
const REFUSED: u8 = 5;
const OVER: u8 = 6;
const ABANDONED: u8 = 7;
const LENGTH: usize = 80;

type Greeting = [u8; LENGTH];
type Number = [u8; 16];

/// Flags of a hello: the peer says its end, and speaks the messages of sessions.
const SAYS_ITS_END: u8 = 2;
const SESSION: u8 = 8;

/// The types of rsocket's messages.
const READ: u32 = 5;
const CONTROL: u32 = 7;
const DISCONNECT: u32 = CONTROL << 29;
const KEEPALIVE: u32 = CONTROL << 29 | 1;
const ABANDON: u32 = CONTROL << 29 | 3;

/// The receives of a peer, its list of targets, and the memory behind that.
const RECEIVES: usize = 64;
const TARGETS: usize = 32;
const RING: usize = 4096;

/// A message of this kind.
fn greeting(kind: u8, id: Number, epoch: u64, read: u64, secret: &Number) -> Greeting {
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

fn kind(greeting: &Greeting) -> u8 {
    greeting[5]
}

fn id(greeting: &Greeting) -> Number {
    greeting[16..32].try_into().expect("16 bytes")
}

fn read(greeting: &Greeting) -> u64 {
    u64::from_be_bytes(greeting[40..48].try_into().expect("8 bytes"))
}

/// An end of a connection that is no stream.
struct Peer {
    adapter: Adapter,
    queue_pair: QueuePair,
    connection: Connection,
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
    async fn connect(adapter: &Adapter, address: SocketAddr, flags: u8) -> Self {
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

    async fn with_session(adapter: &Adapter, address: SocketAddr) -> Self {
        Self::connect(adapter, address, SAYS_ITS_END | SESSION).await
    }

    /// Connects, and asks.
    async fn asking(adapter: &Adapter, address: SocketAddr, ask: &[u8]) -> Self {
        let mut peer = Self::with_session(adapter, address).await;
        peer.write(ask).await;
        peer
    }

    /// Opens a session. Returns the peer, the id and the secret of the session, and the stream.
    async fn open(adapter: &Adapter, listener: &RdmaListener) -> (Self, Number, Number, RdmaStream) {
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
    async fn word(&self, word: u32) {
        let buffer = self.adapter.buffer_from(&word.to_ne_bytes()).expect("memory");
        if let Ok(send) = self.queue_pair.send(buffer) {
            let _ = send.await;
        }
    }

    /// Writes bytes of the stream. The connection may have ended.
    async fn write(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).expect("short");
        let to = self.data.part(self.written..self.written + length).expect("in bounds");
        self.written += length;
        let buffer = self.adapter.buffer_from(bytes).expect("memory");
        // The word follows it in order.
        let _written = self.queue_pair.write(buffer, &to);
        self.word(length).await;
    }

    /// Reads bytes of the stream. `None` if it ends before.
    async fn read(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.arrived < length {
            let (outcome, buffer) = self.receives.pop_front().expect("few messages").await;
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
    async fn report(&mut self) -> u32 {
        loop {
            let (outcome, buffer) = self.receives.pop_front().expect("few messages").await;
            outcome.expect("the connection is alive");
            let word = u32::from_ne_bytes(buffer[..4].try_into().expect("four bytes"));
            if word >> 29 == READ {
                return word & ((1 << 29) - 1);
            }
        }
    }

    /// Reads the message of a session. `None` if the connection ends before.
    async fn answer(&mut self) -> Option<Greeting> {
        self.read(LENGTH).await.map(|bytes| bytes.try_into().expect("as many"))
    }
}

/// The kind of the answer to what a peer asks, and to nothing if the connection ends.
async fn answer(adapter: &Adapter, address: SocketAddr, ask: &[u8]) -> Option<u8> {
    let mut peer = Peer::asking(adapter, address, ask).await;
    let answer = peer.answer().await;
    let answer = answer.map(|answer| kind(&answer));
    if answer != Some(GRANTED) {
        peer.connection.disconnected().await;
    }
    answer
}

/// Checks that bytes go both ways over the connection of before.
async fn undisturbed(ours: &mut RdmaStream, theirs: &mut RdmaStream, resumes: u64) {
    exchange(ours, theirs).await;
    for stream in [&*ours, &*theirs] {
        let path = stream.session().expect("a session");
        assert!(path.resumes == resumes && !path.is_lost && !path.is_over, "{path:?}");
    }
}

/// The messages of sessions that have been captured, in their order.
fn captured(network: &Network) -> Vec<Greeting> {
    let file = network.pcap();
    let places = file.windows(4).enumerate().filter(|(_, bytes)| *bytes == b"RdSe");
    places.map(|(place, _)| file[place..][..LENGTH].try_into().expect("in one segment")).collect()
}

fn random<const N: usize>(network: &Network) -> [u8; N] {
    std::array::from_fn(|_| network.random(0..=255) as u8)
}

fn address(server: &Host) -> SocketAddr {
    (server.address(), PORT).into()
}

fn adapter(host: &Host) -> Adapter {
    provider(host).open(host.address()).expect("opened")
}

// Whoever has seen all of a session's greetings but does not know its secret neither goes on with it nor ends it, and a thousand
// attempts take no more of the server than one (SES-03).
#[test]
fn a_thousand_strangers_disturb_no_session() {
    sim::check(0..1, async |network: Network| {
        let (server, client) = hosts(&network);
        let stranger = adapter(&network.host("10.0.0.3"));
        network.capture();
        let (_listener, mut ours, mut theirs) = connect(&server, &client, &config()).await;
        undisturbed(&mut ours, &mut theirs, 0).await;
        network.reset(&server, &client);
        ours.write_all(b"over another").await.expect("written");
        theirs.read_exact(&mut [0; 12]).await.expect("read");
        undisturbed(&mut ours, &mut theirs, 1).await;
        let [open, granted, resume, resumed] = captured(&network)[..] else { panic!("four greetings") };
        assert_eq!(
            [open, granted, resume, resumed].map(|bytes| kind(&bytes)),
            [OPEN, GRANTED, RESUME, GRANTED]
        );
        let known = id(&granted);
        assert_eq!(id(&resume), known);
        // Two streams more, and a few sockets.
        server.limit_memory(Some(3 * (4 << 20)));
        server.limit_sockets(Some(16));
        let server = address(&server);
        for round in 0..1000 {
            let high = network.random(2..=u64::MAX);
            let few = network.random(0..=20);
            let (ask, expected) = match round % 9 {
                0 => (greeting(RESUME, random(&network), 1, 0, &random(&network)), Some(UNKNOWN)),
                1 => (greeting(RESUME, known, high, few, &random(&network)), Some(UNKNOWN)),
                2 => (greeting(OVER, known, high, few, &random(&network)), Some(UNKNOWN)),
                // The genuine one, again and with a change.
                3 => (resume, Some(REFUSED)),
                4 => {
                    let mut changed = resume;
                    changed[network.random(32..=47) as usize] ^= network.random(1..=255) as u8;
                    (changed, Some(UNKNOWN))
                }
                // What only a passive end says.
                5 => (resumed, None),
                6 => (greeting(ABANDONED, known, high, few, &random(&network)), Some(UNKNOWN)),
                7 => (greeting(network.random(8..=255) as u8, known, high, few, &random(&network)), None),
                _ => (random(&network), None),
            };
            assert_eq!(answer(&stranger, server, &ask).await, expected, "round {round}");
            if round % 50 == 0 {
                undisturbed(&mut ours, &mut theirs, 1).await;
            }
        }
        undisturbed(&mut ours, &mut theirs, 1).await;
    });
}

// The greeting comes within the time of the handshake, or the connection ends; meanwhile others come and go.
#[test]
fn greeting_that_does_not_come_is_not_waited_for() {
    sim::check(0..5, async |network: Network| {
        let (server, client) = hosts(&network);
        let stranger = adapter(&network.host("10.0.0.3"));
        let config = config().handshake_timeout(3 * SECOND);
        let (listener, mut ours, mut theirs) = connect(&server, &client, &config).await;
        let place = address(&server);
        let silent = async |length: usize| {
            let mut peer = Peer::with_session(&stranger, place).await;
            match length {
                0 => peer.word(KEEPALIVE).await,
                _ => peer.write(&greeting(OPEN, [0; 16], 0, 0, &[0; 16])[..length]).await,
            }
            assert_eq!(peer.answer().await, None);
            peer.connection.disconnected().await;
        };
        let slow = async |pause: Duration| {
            let mut peer = Peer::with_session(&stranger, place).await;
            for byte in greeting(OPEN, [0; 16], 0, 0, &[0; 16]) {
                peer.write(&[byte]).await;
                sleep(pause).await;
            }
            peer.answer().await
        };
        let others = async {
            undisturbed(&mut ours, &mut theirs, 0).await;
            let connector = RdmaConnector::new().provider(provider(&client)).config(config);
            let (mut more, accepted) = tokio::join!(connector.connect(place), listener.accept());
            let (more, mut accepted) = (more.as_mut().expect("connected"), accepted.expect("accepted").0);
            undisturbed(more, &mut accepted, 0).await;
        };
        let lengths = [0, 1, 79].into_iter().cycle().take(60);
        tokio::join!(join_all(lengths.map(silent)), others, async {
            assert_eq!(slow(SECOND / 10).await, None, "it takes eight seconds");
        });
        let (answer, accepted) = tokio::join!(slow(SECOND / 100), listener.accept());
        assert_eq!(kind(&answer.expect("in time")), GRANTED);
        assert!(accepted.expect("accepted").0.session().is_some());
        undisturbed(&mut ours, &mut theirs, 0).await;
    });
}

// A peer that knows the secret is refused all the same if its counts or its epoch cannot be, and the present connection stays (SES-03).
#[test]
fn peer_that_lies_about_its_counts_is_refused() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let (listener, mut ours, mut theirs) = connect(&server, &client, &config()).await;
        let (active, place) = (adapter(&client), address(&server));
        let (mut peer, id, secret, mut stream) = Peer::open(&active, &listener).await;
        stream.write_all(b"0123456789").await.expect("written");
        assert_eq!(peer.read(10).await.as_deref(), Some(&b"0123456789"[..]));
        peer.word(READ << 29 | 4).await;
        // What follows it is behind it.
        peer.write(b"abc").await;
        stream.read_exact(&mut [0; 3]).await.expect("read");
        for read in [0, 3, 30, 1 << 29 | 4, u64::MAX] {
            let ask = greeting(RESUME, id, 5, read, &secret);
            assert_eq!(answer(&active, place, &ask).await, Some(REFUSED), "{read}");
            stream.write_all(b"!").await.expect("written");
            assert_eq!(peer.read(1).await.as_deref(), Some(&b"!"[..]), "the connection is the same");
        }
        // The truth, in the same epoch: what is unacknowledged comes again, and what was sent again is not taken twice.
        let mut peer = Peer::asking(&active, place, &greeting(RESUME, id, 5, 7, &secret)).await;
        let granted = peer.answer().await.expect("an answer");
        assert_eq!((kind(&granted), read(&granted)), (GRANTED, 3));
        assert_eq!(peer.read(8).await.as_deref(), Some(&b"789!!!!!"[..]));
        assert_eq!(stream.session().expect("a session").resumes, 1);
        for epoch in [0, 4, 5] {
            let ask = greeting(RESUME, id, epoch, 15, &secret);
            assert_eq!(answer(&active, place, &ask).await, Some(REFUSED), "epoch {epoch}");
            assert_eq!(answer(&active, place, &greeting(OVER, id, epoch, 15, &secret)).await, Some(REFUSED));
        }
        peer.write(b"more").await;
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).await.expect("read");
        assert_eq!(&bytes, b"more");
        // An end that is true.
        assert_eq!(answer(&active, place, &greeting(OVER, id, 6, 15, &secret)).await, Some(OVER));
        assert_eq!(stream.read(&mut bytes).await.expect("an end of file"), 0);
        undisturbed(&mut ours, &mut theirs, 0).await;
    });
}

#[test]
fn acknowledgement_of_unsent_bytes_breaks_the_stream() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let (listener, mut ours, mut theirs) = connect(&server, &client, &config()).await;
        let active = adapter(&client);
        let (peer, id, secret, mut stream) = Peer::open(&active, &listener).await;
        stream.write_all(b"0123456789").await.expect("written");
        peer.word(READ << 29 | 11).await;
        let error = stream.read(&mut [0]).await.expect_err("it cannot have read as much");
        let lie = ProtocolError::Value { what: "read bytes", value: 11 };
        assert_eq!(broken(&error), StreamBroken::Protocol(lie));
        // Nothing goes on with it.
        let ask = greeting(RESUME, id, 1, 10, &secret);
        let answer = answer(&active, address(&server), &ask).await;
        assert_eq!(answer, Some(UNKNOWN));
        undisturbed(&mut ours, &mut theirs, 0).await;
    });
}

// A peer that takes nothing, and never says that it has read anything, costs no more than the window (SES-02).
#[test]
fn window_bounds_what_a_silent_peer_costs() {
    sim::check(0..3, async |network: Network| {
        let (server, client) = hosts(&network);
        let session = SessionConfig::default().window(2500).give_up_after(600 * SECOND);
        let listener = listen(&server, &config().session(session)).await;
        let (active, place) = (adapter(&client), address(&server));
        let (mut peer, id, secret, mut stream) = Peer::open(&active, &listener).await;
        let bytes: Vec<u8> = (0..7500).map(|place| (place % 251) as u8).collect();
        let writing = async {
            stream.write_all(&bytes).await.expect("written");
            pending::<()>().await;
        };
        let reading = async {
            for (epoch, read) in [(1, 0), (2, 0), (3, 1000), (4, 3500)] {
                let expected = &bytes[read as usize..read as usize + 2500];
                if epoch > 1 {
                    peer = Peer::asking(&active, place, &greeting(RESUME, id, epoch, read, &secret)).await;
                    assert_eq!(peer.answer().await.map(|answer| kind(&answer)), Some(GRANTED));
                }
                assert_eq!(peer.read(2500).await.as_deref(), Some(expected));
                timeout(20 * SECOND, peer.read(1)).await.expect_err("the window is full");
            }
        };
        tokio::select! {
            () = reading => {}
            () = writing => unreachable!("it goes on"),
        }
    });
}

// A report that was due when the connection was lost does not keep the next one back (SES-02).
#[test]
fn reports_go_on_behind_a_loss() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let listener = listen(&server, &config()).await;
        let (active, place) = (adapter(&client), address(&server));
        let (mut peer, id, secret, mut stream) = Peer::open(&active, &listener).await;
        peer.write(b"abc").await;
        stream.read_exact(&mut [0; 3]).await.expect("read");
        for epoch in 1..4 {
            let before = u32::try_from(4 * epoch - 1).expect("few");
            peer = Peer::asking(&active, place, &greeting(RESUME, id, epoch, 0, &secret)).await;
            let granted = peer.answer().await.expect("an answer");
            assert_eq!((kind(&granted), read(&granted)), (GRANTED, before.into()));
            peer.write(b"more").await;
            stream.read_exact(&mut [0; 4]).await.expect("read");
            if epoch > 1 {
                let report = timeout(SECOND, peer.report()).await.expect("soon");
                assert_eq!(report, before + 4);
            }
        }
    });
}

// The flag is answered only if it was said, and nothing else is on the wire then (SES-05).
#[test]
fn peer_without_sessions_gets_a_plain_stream() {
    sim::check(0..3, async |network: Network| {
        let (server, client) = hosts(&network);
        let listener = listen(&server, &config()).await;
        let (active, place) = (adapter(&client), address(&server));
        for (flags, word) in [(0, READ << 29 | 1), (SAYS_ITS_END, ABANDON)] {
            let connect = async {
                let mut peer = Peer::connect(&active, place, flags).await;
                peer.write(b"RdSe is text here").await;
                peer
            };
            let (mut peer, accepted) = tokio::join!(connect, listener.accept());
            let mut stream = accepted.expect("accepted").0;
            assert!(stream.session().is_none());
            let mut bytes = [0; 17];
            stream.read_exact(&mut bytes).await.expect("read");
            assert_eq!(&bytes, b"RdSe is text here");
            stream.write_all(b"as ever").await.expect("written");
            assert_eq!(peer.read(7).await.as_deref(), Some(&b"as ever"[..]));
            // A message of sessions is none here.
            peer.word(word).await;
            stream.read(&mut bytes).await.expect_err("a violation");
        }
    });
}

// A peer that opens sessions and goes leaves as many behind as the listener keeps without a connection.
#[test]
fn sessions_that_are_left_behind_are_few() {
    sim::check(0..1, async |network: Network| {
        let (server, client) = hosts(&network);
        let stranger = adapter(&network.host("10.0.0.3"));
        let session = SessionConfig::default().give_up_after(600 * SECOND).lost_sessions(2);
        let config = config().session(session).receive_buffer(1 << 16).send_buffer(1 << 16);
        let (listener, mut ours, mut theirs) = connect(&server, &client, &config).await;
        // Those of five streams more.
        server.limit_memory(Some(6 * (1 << 18)));
        server.limit_sockets(Some(16));
        let mut held = VecDeque::new();
        for round in 0..200 {
            let (peer, _, _, mut stream) = Peer::open(&stranger, &listener).await;
            stream.write_all(b"for nobody").await.expect("written");
            drop(peer);
            held.push_back(stream);
            if held.len() > 2 {
                let mut oldest = held.pop_front().expect("three");
                let error = oldest.read_u8().await.expect_err("it makes room");
                let reason = broken(&error);
                let is_early = matches!(&reason, StreamBroken::NoPath { after, .. } if *after < 600 * SECOND);
                assert!(is_early, "round {round}: {error:?}");
            }
        }
        undisturbed(&mut ours, &mut theirs, 0).await;
    });
}

// A peer that has closed the stream, and does not know whether that has arrived, hears that it has; the program need not have seen it.
#[test]
fn stream_that_the_peer_has_closed_is_over() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let listener = listen(&server, &config()).await;
        let (active, place) = (adapter(&client), address(&server));
        let (mut peer, id, secret, mut stream) = Peer::open(&active, &listener).await;
        peer.write(b"the last").await;
        peer.word(DISCONNECT).await;
        sleep(SECOND).await;
        for epoch in [1, 2] {
            let ask = greeting(RESUME, id, epoch, 0, &secret);
            assert_eq!(answer(&active, place, &ask).await, Some(OVER), "epoch {epoch}");
        }
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.expect("an end of file");
        assert_eq!(bytes, b"the last");
        drop(stream);
        sleep(SECOND).await;
        // It is remembered.
        assert_eq!(answer(&active, place, &greeting(RESUME, id, 3, 0, &secret)).await, Some(OVER));
        assert_eq!(answer(&active, place, &greeting(OVER, id, 3, 0, &[7; 16])).await, Some(UNKNOWN));
    });
}
