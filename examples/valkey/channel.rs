//! A connection of Valkey's protocol: bytes in both directions, each written by RDMA to a ring of the receiver.
//!
//! Each side registers a ring and sends its place. The peer writes bytes behind one another, and each write carries its
//! length as immediate data, which wakes the receiver. When the ring is full to its last byte, the receiver has taken
//! all of it, and sends the place once more. Until then the peer must wait: there is no other flow control.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use tokio_rdma::{
    AcceptParams, Access, Adapter, ConnectParams, Connection, Op, Provider, QueuePair, QueuePairConfig,
    Region, RegionSlice, RemoteRegion, Request, WorkOptions,
};

use crate::control::{self, Control};

/// The number of receives, as Valkey has it. A control message and a write consume one each.
const RECEIVES: usize = 1024;
/// The number of writes in flight. Control messages have the rest of the send queue.
const WRITES: usize = 512;
/// The largest ring of a peer.
const LONGEST_RING: u32 = 16 << 20;
/// How many bytes may wait for the program: a longer command, or a peer that sends and never reads, is an error.
const WAITING: usize = 64 << 20;
/// How long a connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The objects of one end, which exist before it is connected.
struct End {
    adapter: Adapter,
    queue_pair: QueuePair,
    /// In the order of their messages.
    receives: VecDeque<Op<RegionSlice>>,
    /// What the peer writes to.
    ring: Region,
    is_server: bool,
}

/// A connection.
pub(crate) struct Channel {
    connection: Connection,
    end: End,
    /// How many bytes of the ring the peer has written.
    filled: usize,
    /// What the peer has sent and the program has not taken.
    pub(crate) received: BytesMut,
    /// The ring of the peer, once it has sent its place, and how many bytes of it are written.
    peer_ring: Option<(RemoteRegion, usize)>,
    /// As long as the ring of the peer: the source of the writes to it.
    mirror: Option<Region>,
    /// The writes that may not have completed.
    writes: VecDeque<Op<RegionSlice>>,
    /// How many rings the peer has filled, and how many of its rings this side has filled.
    pub(crate) rings: (u32, u32),
}

impl End {
    async fn new(adapter: Adapter, ring: usize, is_server: bool) -> io::Result<Self> {
        let config = QueuePairConfig::default().receive_depth(RECEIVES).send_depth(2 * WRITES);
        let queue_pair = adapter.queue_pair(config)?;
        let ring = adapter.register(ring, Access::REMOTE_WRITE).await?;
        // Posted before the connection is established: the peer may send at once.
        let messages = adapter.register(RECEIVES * control::LENGTH, Access::LOCAL_WRITE).await?;
        let mut receives = VecDeque::new();
        for at in (0..messages.len()).step_by(control::LENGTH) {
            receives.push_back(queue_pair.receive(messages.slice(at..at + control::LENGTH)?)?);
        }
        Ok(Self { adapter, queue_pair, receives, ring, is_server })
    }
}

impl Channel {
    /// Connects to a server, from a device if there is one.
    pub(crate) async fn connect(server: SocketAddr, ring: usize) -> io::Result<Self> {
        let end = End::new(adapter_for(server)?, ring, false).await?;
        let params = ConnectParams::default().timeout(CONNECT_TIMEOUT);
        let connector = end.adapter.connector();
        let connection = connector.connect_and_complete(&end.queue_pair, server, params).await?;
        let channel = Self::new(connection, end)?;
        // No feature is defined yet, so the answer of the server is not waited for.
        channel.control(Control::GetServerFeature(0))?;
        channel.control(Control::SetClientFeature(0))?;
        Ok(channel)
    }

    /// Accepts a client.
    pub(crate) async fn accept(request: Request, adapter: Adapter, ring: usize) -> io::Result<Self> {
        let end = End::new(adapter, ring, true).await?;
        let connection = request.accept(&end.queue_pair, AcceptParams::default()).await?;
        Self::new(connection, end)
    }

    /// Sends the place of the ring: without it the peer can send nothing.
    fn new(connection: Connection, end: End) -> io::Result<Self> {
        let (received, writes) = (BytesMut::new(), VecDeque::new());
        let mut channel = Self {
            connection,
            end,
            filled: 0,
            received,
            peer_ring: None,
            mirror: None,
            writes,
            rings: (0, 0),
        };
        channel.offer_ring()?;
        Ok(channel)
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Sends bytes: returns when they are posted. Meanwhile it takes what the peer sends, so that two peers that send
    /// much do not wait for each other.
    pub(crate) async fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let Some((ring, used)) = self.peer_ring.filter(|(ring, used)| *used < ring.len() as usize) else {
                self.step().await?;
                continue;
            };
            if used == 0 {
                // The peer has taken all of its last ring, so these have arrived.
                for write in self.writes.drain(..) {
                    write.await.0?;
                }
            }
            let length = ring.len() as usize;
            let mirror = match self.mirror.take().filter(|mirror| mirror.len() == length) {
                Some(mirror) => mirror,
                None => self.end.adapter.register(length, Access::empty()).await?,
            };
            let mirror = self.mirror.insert(mirror);
            let (part, rest) = bytes.split_at(bytes.len().min(length - used));
            let to = used + part.len();
            mirror.write(used, part)?;
            // The casts lose nothing: a ring has `LONGEST_RING` bytes at most.
            let place = ring.part(used as u32..to as u32)?;
            let options = WorkOptions::default().immediate(part.len() as u32);
            let write = self.end.queue_pair.write_with(mirror.slice(used..to)?, &place, options)?;
            self.writes.push_back(write);
            self.peer_ring = Some((ring, to));
            self.rings.1 += u32::from(to == length);
            bytes = rest;
            if self.writes.len() == WRITES
                && let Some(oldest) = self.writes.pop_front()
            {
                oldest.await.0?;
            }
        }
        Ok(())
    }

    /// Waits until there are more bytes in `received`. The future may be dropped without harm.
    pub(crate) async fn receive(&mut self) -> io::Result<()> {
        let before = self.received.len();
        while self.received.len() == before {
            self.step().await?;
        }
        Ok(())
    }

    /// Sends a sign of life: over RDMA a peer that has lost its power is not noticed otherwise.
    pub(crate) fn keep_alive(&self) -> io::Result<()> {
        self.control(Control::Keepalive)
    }

    /// The reason of the end of the connection, if that is why a call has failed.
    pub(crate) async fn explained(&self, error: io::Error) -> io::Error {
        if self.connection.is_connected() || error.kind() == io::ErrorKind::InvalidData {
            return error;
        }
        io::Error::new(io::ErrorKind::ConnectionAborted, self.connection.disconnected().await)
    }

    /// Waits for the writes, and disconnects.
    pub(crate) async fn close(mut self) -> io::Result<()> {
        for write in self.writes.drain(..) {
            write.await.0?;
        }
        Ok(self.connection.disconnect().await?)
    }

    /// Takes one message of the peer. Everything behind the `await` happens at once.
    async fn step(&mut self) -> io::Result<()> {
        let oldest = self.end.receives.front_mut().ok_or(io::ErrorKind::NotConnected)?;
        let (outcome, slot) = oldest.await;
        self.end.receives.pop_front();
        let completion = outcome?;
        let mut message = [0; control::LENGTH];
        slot.region().read(slot.range().start, &mut message)?;
        // The peer counts on as many receives as at the beginning.
        self.end.receives.push_back(self.end.queue_pair.receive(slot)?);
        match completion.immediate {
            Some(length) => self.take(length as usize),
            None if completion.bytes == control::LENGTH => self.obey(Control::decode(&message)),
            None => Err(wrong("a control message of another length")),
        }
    }

    /// Takes the bytes that the peer has written.
    fn take(&mut self, length: usize) -> io::Result<()> {
        if length > self.end.ring.len() - self.filled {
            return Err(wrong("more bytes than the ring has"));
        }
        if length > WAITING - self.received.len() {
            return Err(wrong("more bytes than may wait"));
        }
        self.received.reserve(length);
        self.end.ring.read_to(self.filled, length, &mut self.received)?;
        self.filled += length;
        if self.filled == self.end.ring.len() {
            self.rings.0 += 1;
            self.offer_ring()?;
        }
        Ok(())
    }

    /// Does what a control message asks for.
    fn obey(&mut self, message: Option<Control>) -> io::Result<()> {
        match message.ok_or_else(|| wrong("an unknown control message"))? {
            Control::RegisterXferMemory(place) if (1..=LONGEST_RING).contains(&place.len()) => {
                self.peer_ring = Some((place, 0));
                Ok(())
            }
            Control::RegisterXferMemory(_) => Err(wrong("a ring that is empty or too long")),
            // The answer to a client is the same message.
            Control::GetServerFeature(_) if self.end.is_server => self.control(Control::GetServerFeature(0)),
            Control::SetClientFeature(features) if features != 0 => Err(wrong("an unknown feature")),
            Control::GetServerFeature(_) | Control::SetClientFeature(_) | Control::Keepalive => Ok(()),
        }
    }

    /// Says that the ring is empty, and where it is.
    fn offer_ring(&mut self) -> io::Result<()> {
        self.filled = 0;
        self.control(Control::RegisterXferMemory(self.end.ring.remote()))
    }

    /// Sends a control message. Its bytes are copied, and if it fails, so do the receives.
    fn control(&self, message: Control) -> io::Result<()> {
        drop(self.end.queue_pair.send_inline(&[&message.encode()], WorkOptions::default())?);
        Ok(())
    }
}

/// The error for a peer that breaks the protocol.
fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the peer has sent {what}"))
}

/// The adapter from which a server is reached, a device before the software provider.
fn adapter_for(server: SocketAddr) -> io::Result<Adapter> {
    let mut last = io::Error::from(io::ErrorKind::Unsupported);
    for provider in Provider::all() {
        match provider.local_for(server.ip()).and_then(|local| provider.open(local)) {
            Ok(adapter) => return Ok(adapter),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}
