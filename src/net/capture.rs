//! The capture of the bytes of connections of this machine, where they are read and written, as TCP packets in a file that
//! Wireshark reads.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{fmt, io};

use tokio::net::TcpStream;

use super::kernel::options::is_aborting;
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

    /// Reads into the targets by `read`, which gets the socket and a buffer.
    pub(super) fn receive(
        &self,
        targets: &mut [memory::Target<'_>],
        read: impl FnOnce(&TcpStream, &mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        // Checked before bytes are taken from the socket: an error would lose them.
        memory::scatter(&[], targets)?;
        let room = memory::room(targets).min(CHUNK);
        let mut tap = self.tap.lock();
        tap.chunk.resize(room, 0);
        match read(&self.stream, &mut tap.chunk) {
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

    /// Copies the pieces, and writes the copy to the socket by `write`.
    pub(super) fn send<'a>(
        &self,
        pieces: impl Iterator<Item = memory::Piece<'a>>,
        write: impl FnOnce(&TcpStream, &[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut tap = self.tap.lock();
        tap.chunk.clear();
        memory::gather(pieces, CHUNK, &mut tap.chunk)?;
        let length = write(&self.stream, &tap.chunk)?;
        if length > 0 {
            tap.add_chunk(OUT, length);
        }
        Ok(length)
    }

    /// Ends the direction of this end in the capture.
    pub(super) fn end(&self) {
        self.tap.lock().end(OUT, FIN);
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        self.tap.get_mut().end(OUT, if is_aborting(&self.stream) { RST } else { FIN });
    }
}

/// Times in nanoseconds, packets that begin with their IP header.
const MAGIC: u32 = 0xA1B2_3C4D;
const RAW_IP: u32 = 101;
const LONGEST: u32 = 0x0004_0000;

/// The factor of the window field, as a power of two: the largest that there is (RFC 7323 section 2.3).
const SCALE: u8 = 14;

pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;

/// The most bytes of a packet besides its payload: its header in the file, that of IPv6, and that of TCP.
pub(super) const HEADERS: usize = 16 + 40 + 24;

/// A TCP packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) flags: u8,
    /// The sequence numbers, of which the low half is sent.
    pub(super) sequence: u64,
    pub(super) acknowledged: u64,
    /// The bytes that the other end may send.
    pub(super) window: u64,
    /// At most 65,000.
    pub(super) bytes: &'a [u8],
}

/// A capture file.
#[derive(Debug)]
pub(super) struct File(Vec<u8>);

impl File {
    /// Creates a file without packets.
    pub(super) fn new() -> Self {
        let header = [MAGIC, 2 | 4 << 16, 0, 0, LONGEST, RAW_IP];
        Self(header.into_iter().flat_map(u32::to_le_bytes).collect())
    }

    /// Returns the bytes of the file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds a packet.
    pub(super) fn add(&mut self, at: Duration, packet: &Packet<'_>) {
        let packet = ip(packet);
        let length = low(packet.len() as u64);
        for word in [low(at.as_secs()), at.subsec_nanos(), length, length] {
            self.0.extend(word.to_le_bytes());
        }
        self.0.extend(packet);
    }
}

/// Returns the low half: sequence numbers wrap.
fn low(number: u64) -> u32 {
    (number & u64::from(u32::MAX)) as u32
}

/// Returns the sum of 16-bit words (RFC 1071), to be completed by [`folded`].
fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u64::from)).sum()
}

fn folded(mut sum: u64) -> [u8; 2] {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    let [.., high, low] = (!sum).to_be_bytes();
    [high, low]
}

/// Returns the bytes of an address.
fn octets(address: SocketAddr) -> Vec<u8> {
    match address.ip() {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// Returns a packet behind its IP header.
fn ip(packet: &Packet<'_>) -> Vec<u8> {
    let addresses = [octets(packet.from), octets(packet.to)].concat();
    let tcp = tcp(packet, &addresses);
    let [.., high, low] = tcp.len().to_be_bytes();
    let mut ip = if packet.from.is_ipv4() {
        let [.., total_high, total_low] = (tcp.len() + 20).to_be_bytes();
        let mut header = vec![0x45, 0, total_high, total_low, 0, 0, 0x40, 0, 64, 6, 0, 0];
        header.extend(&addresses);
        let checksum = folded(sum(&header));
        header[10..12].copy_from_slice(&checksum);
        header
    } else {
        [&[0x60, 0, 0, 0, high, low, 6, 64][..], &addresses].concat()
    };
    ip.extend(tcp);
    ip
}

/// Returns a packet with its TCP header (RFC 9293 section 3.1).
fn tcp(packet: &Packet<'_>, addresses: &[u8]) -> Vec<u8> {
    let Packet { from, to, flags, sequence, acknowledged, window, bytes } = *packet;
    // The window of a SYN is not scaled (RFC 7323 section 2.2). It rounds up, so that none is closed that is not.
    let options: &[u8] = if flags & SYN != 0 { &[3, 3, SCALE, 1] } else { &[] };
    let window = if options.is_empty() { window.div_ceil(1 << SCALE) } else { window }.min(0xFFFF);
    let [.., window_high, window_low] = window.to_be_bytes();
    let words = if options.is_empty() { 5 } else { 6 };

    let mut tcp = Vec::with_capacity(24 + bytes.len());
    tcp.extend(from.port().to_be_bytes());
    tcp.extend(to.port().to_be_bytes());
    tcp.extend(low(sequence).to_be_bytes());
    tcp.extend(low(acknowledged).to_be_bytes());
    tcp.extend([words << 4, flags, window_high, window_low, 0, 0, 0, 0]);
    tcp.extend(options);
    tcp.extend(bytes);
    let checksum = folded(sum(&tcp) + sum(addresses) + 6 + tcp.len() as u64);
    tcp[16..18].copy_from_slice(&checksum);
    tcp
}

#[cfg(test)]
mod tests {
    use super::*;

    // The example of RFC 1071 section 3.
    #[test]
    fn sums() {
        assert_eq!(folded(sum(&[0x00, 0x01, 0xF2, 0x03, 0xF4, 0xF5, 0xF6, 0xF7])), [0x22, 0x0D]);
        assert_eq!(folded(sum(&[0xAB])), [0x54, 0xFF]);
    }

    #[test]
    fn packets_check() {
        for [from, to] in [["10.0.0.1:1", "10.0.0.2:2"], ["[fd00::1]:1", "[fd00::2]:2"]] {
            let address = |text: &str| text.parse().expect("an address");
            let (from, to) = (address(from), address(to));
            let (flags, sequence, acknowledged) = (ACK | PSH, 1 << 32, 7);
            let packet = ip(&Packet { from, to, flags, sequence, acknowledged, window: 9, bytes: b"odd" });
            assert!(packet.len() + 16 <= HEADERS + 3);
            let (ip, tcp) = packet.split_at(if from.is_ipv4() { 20 } else { 40 });
            if from.is_ipv4() {
                assert_eq!(folded(sum(ip)), [0, 0]);
            }
            let addresses = [octets(from), octets(to)].concat();
            assert_eq!(folded(sum(tcp) + sum(&addresses) + 6 + tcp.len() as u64), [0, 0]);
            assert!(tcp.ends_with(b"odd"));
        }
    }
}
