//! The capture of the bytes of connections of this machine, where they are read and written.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use nix::sys::socket::MsgFlags;
use socket2::SockRef;
use tokio::io::{AsyncWrite, Interest};
use tokio::net::TcpStream;

use super::pcap::{ACK, FIN, File, HEADERS, PSH, Packet, RST, SYN};
use crate::memory;
use crate::sync::Mutex;
use crate::types::Role;

/// The most bytes that are read or written at a time, so that they fit a packet.
const CHUNK: usize = 32 * 1024;

/// The bytes after which an acknowledgement is added, if the other end sends nothing that carries one.
const UNACKNOWLEDGED: u64 = 1 << 20;

/// The window of both ends. It is never full.
const WINDOW: u64 = 1 << 30;

/// A recording of the bytes that connections send and receive: [`SoftConfig::capture`](crate::soft::SoftConfig::capture).
///
/// `Capture` is a cheap handle; clones refer to the same recording.
#[derive(Clone)]
pub struct Capture {
    recording: Arc<Mutex<Recording>>,
}

struct Recording {
    file: File,
    /// The most bytes of the file.
    limit: usize,
    /// The number of packets that had no room.
    omitted: u64,
}

impl Capture {
    /// Creates a recording whose file has at most `limit` bytes. When it is full, nothing more is added.
    pub fn new(limit: usize) -> Self {
        Self { recording: Arc::new(Mutex::new(Recording { file: File::new(), limit, omitted: 0 })) }
    }

    /// Returns a copy of the file: a pcap file for Wireshark, whose iWARP dissector reads it.
    pub fn pcap(&self) -> Vec<u8> {
        self.recording.lock().file.bytes().to_vec()
    }

    /// Returns the number of packets for which the file had no room.
    pub fn omitted(&self) -> u64 {
        self.recording.lock().omitted
    }

    fn add(&self, packet: &Packet<'_>) {
        let mut recording = self.recording.lock();
        let length = recording.file.bytes().len() + HEADERS + packet.bytes.len();
        // Nothing after a gap: it would look like a loss.
        if recording.omitted > 0 || length > recording.limit {
            recording.omitted += 1;
            return;
        }
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        recording.file.add(at, packet);
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recording = self.recording.lock();
        f.debug_struct("Capture")
            .field("length", &recording.file.bytes().len())
            .field("limit", &recording.limit)
            .field("omitted", &recording.omitted)
            .finish_non_exhaustive()
    }
}

/// One direction of a connection.
#[derive(Debug)]
struct Direction {
    from: SocketAddr,
    to: SocketAddr,
    /// The sequence number of the next byte.
    next: u64,
    /// The sequence number that the other direction has acknowledged.
    acknowledged: u64,
    /// It has ended.
    ended: bool,
}

/// The two directions of a connection: out and in.
#[derive(Debug)]
struct Tap {
    capture: Capture,
    directions: [Direction; 2],
    /// The bytes between the socket and their places.
    chunk: Vec<u8>,
}

const OUT: usize = 0;
const IN: usize = 1;

impl Tap {
    /// Creates the tap of a connection, and adds the packets of a TCP handshake.
    fn new(capture: Capture, local: SocketAddr, peer: SocketAddr, role: Role) -> Self {
        let direction = |from, to| Direction { from, to, next: 0, acknowledged: 0, ended: false };
        let directions = [direction(local, peer), direction(peer, local)];
        let mut tap = Self { capture, directions, chunk: Vec::new() };
        let (asking, granting) = if role == Role::Active { (OUT, IN) } else { (IN, OUT) };
        tap.add(asking, SYN, &[]);
        tap.add(granting, SYN | ACK, &[]);
        tap.add(asking, ACK, &[]);
        tap
    }

    /// Adds a packet of this direction, which acknowledges all of the other one.
    fn add(&mut self, direction: usize, flags: u8, bytes: &[u8]) {
        let other = &mut self.directions[1 - direction];
        let acknowledged = if flags & ACK == 0 { 0 } else { other.next };
        other.acknowledged = acknowledged;
        let own = &mut self.directions[direction];
        let (from, to, sequence) = (own.from, own.to, own.next);
        self.capture.add(&Packet { from, to, flags, sequence, acknowledged, window: WINDOW, bytes });
        own.next += bytes.len() as u64 + u64::from(flags & (SYN | FIN) != 0);
        own.ended |= flags & FIN != 0;
        if flags & RST != 0 {
            self.directions.iter_mut().for_each(|direction| direction.ended = true);
            return;
        }
        if own.next - own.acknowledged > UNACKNOWLEDGED {
            self.add(1 - direction, ACK, &[]);
        }
    }

    /// Adds the bytes of the chunk.
    fn add_chunk(&mut self, direction: usize, length: usize) {
        let chunk = std::mem::take(&mut self.chunk);
        self.add(direction, PSH | ACK, &chunk[..length]);
        self.chunk = chunk;
    }

    /// Ends a direction that has not ended.
    fn end(&mut self, direction: usize, flag: u8) {
        if !self.directions[direction].ended {
            self.add(direction, flag | ACK, &[]);
        }
    }
}

/// A TCP stream of this machine whose bytes are captured.
///
/// All bytes pass through a copy, so that the file has exactly those that were sent. The copy, the system call and the file
/// are under one lock per connection, so that the file has them in their order.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(super) stream: TcpStream,
    tap: Box<Mutex<Tap>>,
}

impl Captured {
    /// Creates a stream that is captured from now on, before it has carried any byte.
    pub(super) fn new(
        stream: TcpStream,
        capture: &Capture,
        local: SocketAddr,
        peer: SocketAddr,
        role: Role,
    ) -> Self {
        Self { stream, tap: Box::new(Mutex::new(Tap::new(capture.clone(), local, peer, role))) }
    }

    /// Reads by `read` into the targets.
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`memory::receive`].
    fn receive_by(
        &self,
        targets: &mut [memory::Target<'_>],
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        // Checked before bytes are taken from the socket: an error would lose them.
        memory::scatter(&[], targets)?;
        let room = memory::room(targets).min(CHUNK);
        let mut tap = self.tap.lock();
        tap.chunk.resize(room, 0);
        match read(&mut tap.chunk) {
            Ok(0) if room > 0 => {
                tap.end(IN, FIN);
                Ok(0)
            }
            Ok(0) => Ok(0),
            Ok(length) => {
                tap.add_chunk(IN, length);
                memory::scatter(&tap.chunk[..length], targets)
            }
            Err(error) => {
                if error.kind() == io::ErrorKind::ConnectionReset {
                    tap.end(IN, RST);
                }
                Err(error)
            }
        }
    }

    /// Reads into the targets, for [`Stream::try_receive`](super::Stream::try_receive).
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`memory::receive`].
    pub(super) fn try_receive(&self, targets: &mut [memory::Target<'_>]) -> io::Result<usize> {
        self.receive_by(targets, |bytes| self.stream.try_read(bytes))
    }

    /// Reads into the targets, for [`Stream::receive_now`](super::Stream::receive_now).
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`memory::receive`].
    pub(super) fn receive_now(&self, targets: &mut [memory::Target<'_>]) -> io::Result<usize> {
        let flags = MsgFlags::MSG_DONTWAIT;
        self.receive_by(targets, |bytes| Ok(nix::sys::socket::recv(self.stream.as_raw_fd(), bytes, flags)?))
    }

    /// Copies the pieces, and writes the copy by `write`.
    ///
    /// # Errors
    /// Those of [`memory::gather`], and of `write`.
    fn send_by<'a>(
        &self,
        pieces: impl Iterator<Item = memory::Piece<'a>>,
        write: impl FnOnce(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut tap = self.tap.lock();
        tap.chunk.clear();
        memory::gather(pieces, CHUNK, &mut tap.chunk)?;
        let length = write(&tap.chunk)?;
        if length > 0 {
            tap.add_chunk(OUT, length);
        }
        Ok(length)
    }

    /// Writes the pieces, for [`Stream::try_send`](super::Stream::try_send).
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`memory::send`].
    pub(super) fn try_send<'a>(&self, pieces: impl Iterator<Item = memory::Piece<'a>>) -> io::Result<usize> {
        self.send_by(pieces, |bytes| {
            let send = || memory::send(self.stream.as_fd(), [memory::Piece::Bytes(bytes)].into_iter());
            self.stream.try_io(Interest::WRITABLE, send)
        })
    }

    /// Writes the pieces, for [`Stream::send_pieces_now`](super::Stream::send_pieces_now).
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`memory::send`].
    pub(super) fn send_pieces_now<'a>(
        &self,
        pieces: impl Iterator<Item = memory::Piece<'a>>,
    ) -> io::Result<usize> {
        self.send_by(pieces, |bytes| {
            memory::send(self.stream.as_fd(), [memory::Piece::Bytes(bytes)].into_iter())
        })
    }

    /// Writes a buffer, for [`Stream::send_now`](super::Stream::send_now).
    ///
    /// # Errors
    /// `WouldBlock`, and those of send(2).
    pub(super) fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        let piece = [memory::Piece::Bytes(bytes)].into_iter();
        self.send_by(piece, |bytes| SockRef::from(&self.stream).send(bytes))
    }

    /// Ends the direction of this end in the capture.
    pub(super) fn end(&self) {
        self.tap.lock().end(OUT, FIN);
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        let aborting = matches!(SockRef::from(&self.stream).linger(), Ok(Some(Duration::ZERO)));
        self.tap.get_mut().end(OUT, if aborting { RST } else { FIN });
    }
}

impl AsyncWrite for Captured {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            match self.try_send([memory::Piece::Bytes(bytes)].into_iter()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return Poll::Ready(outcome),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.end();
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}
