//! Writes TCP packets into a capture file, which Wireshark reads.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

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
