//! Settings of the soft provider.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::net::capture::Capture;
use crate::sync::LONGEST;

/// The most half-open peers of one listening address by default.
const MOST_HALF_OPEN: usize = 4096;

/// The shortest path timeout.
const SHORTEST: Duration = Duration::from_millis(100);

/// Settings of the soft provider. The defaults suit most programs.
///
/// ```
/// use std::time::Duration;
/// use tokio_rdma::soft::SoftConfig;
///
/// let config = SoftConfig::default().crc(true).path_timeout(Some(Duration::from_secs(10)));
/// ```
#[derive(Clone, Debug)]
pub struct SoftConfig {
    pub(crate) crc: bool,
    pub(crate) spin: Duration,
    pub(crate) path_timeout: Option<Duration>,
    pub(crate) request_timeout: Duration,
    pub(crate) disconnect_timeout: Duration,
    pub(crate) message_timeout: Option<Duration>,
    pub(crate) address_timeout: Duration,
    pub(crate) half_open: usize,
    pub(crate) ephemeral_ports: RangeInclusive<u16>,
    pub(crate) capture: Option<Capture>,
}

impl Default for SoftConfig {
    fn default() -> Self {
        Self {
            crc: false,
            spin: Duration::ZERO,
            path_timeout: Some(Duration::from_secs(30)),
            request_timeout: Duration::from_secs(5),
            disconnect_timeout: Duration::from_secs(5),
            message_timeout: Some(Duration::from_secs(30)),
            address_timeout: Duration::from_secs(10),
            half_open: MOST_HALF_OPEN,
            ephemeral_ports: 49152..=65535,
            capture: None,
        }
    }
}

impl SoftConfig {
    /// Requests a CRC32C in every frame (RFC 5044 section 4.4). Default: off, as in Linux `siw`. If the peer
    /// requests it, it is used in any case. The CRC detects errors that the 16-bit checksum of TCP misses,
    /// and costs bandwidth.
    #[must_use]
    pub fn crc(mut self, crc: bool) -> Self {
        self.crc = crc;
        self
    }

    /// Sets how long the task of a connection polls its socket before it sleeps. It yields to other tasks after
    /// four polls, and at once to those that it has woken, but keeps the core busy. A round trip takes half the
    /// time or less then if each end has a core of its own, and a multiple if both share one. A time beyond what
    /// the clock can represent counts as zero. Default: zero.
    #[must_use]
    pub fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }

    /// Sets how long a connection survives a dead path or a frozen peer. Default: 30 s, at least 100 ms. With
    /// `None` only TCP detects a dead path: after about 15 minutes of trying to send, and never on an idle
    /// connection. A longer time than 30 years counts as 30 years, here and in the other settings.
    ///
    /// An established connection that has received nothing for half of this time posts an empty RDMA Read. It
    /// is lost with `IO_TIMEOUT` if nothing is received for another half, at most a sixteenth later: the
    /// kernel of a stopped process still acknowledges TCP segments, but does not answer reads.
    ///
    /// A slow peer survives. While the read waits behind other data, each acknowledged byte counts as a sign
    /// of life. A peer whose message waits for a shared receive sends an empty Write every half second, which
    /// is often enough for path timeouts of a second or more. If the outbound read limit is 0, no read is
    /// posted: then only TCP keepalive, and data that is never acknowledged, show that the peer is gone.
    ///
    /// The peer of a byte stream is also lost if it answers no read, whatever else it sends: two of these
    /// times after its kernel has acknowledged the read, and one more for each 64 KiB that come before the
    /// answer, up to 16 MiB.
    #[doc(alias = "keepalive")]
    #[must_use]
    pub fn path_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.path_timeout = timeout.map(|timeout| timeout.clamp(SHORTEST, LONGEST));
        self
    }

    /// Sets how long a peer that has connected by TCP may take to send its connection request. Default: 5 s,
    /// as in Linux `siw`. With zero, a request is refused unless it arrives together with the TCP connection.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout.min(LONGEST);
        self
    }

    /// Sets how long a disconnect waits for the peer's response. Default: 5 s. The time begins anew while the
    /// peer acknowledges data, for ten minutes in all, or for this time if it is longer. After it, the
    /// disconnect fails with `IO_TIMEOUT` and the connection is reset. If the peer has not acknowledged all
    /// data that completed, or the end of a byte stream, the socket is closed in the background instead, and
    /// the rest still arrives as long as the peer acknowledges some of it within each minute, for another ten
    /// minutes at most.
    #[must_use]
    pub fn disconnect_timeout(mut self, timeout: Duration) -> Self {
        self.disconnect_timeout = timeout.min(LONGEST);
        self
    }

    /// Sets how long a message that arrives in a receive of a shared receive queue may make no progress,
    /// which is 64 KiB or its end. After it, the receive returns to its queue and the connection is lost with
    /// `IO_TIMEOUT`: otherwise a peer could hold the receives of all others with half a message each (RFC
    /// 5042). Default: 30 s, at least 100 ms. `None` sets no limit.
    #[must_use]
    pub fn message_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.message_timeout = timeout.map(|timeout| timeout.clamp(SHORTEST, LONGEST));
        self
    }

    /// Sets how long an adapter survives without an address. Default: 10 s. After it, the adapter is removed,
    /// and all pending operations complete with `DEVICE_REMOVED`. With zero it is removed when its interface
    /// loses the last address.
    ///
    /// Connections and listeners outlive an address that comes back in time, as over TCP. An interface that
    /// is deleted takes its adapters along at once.
    #[must_use]
    pub fn address_timeout(mut self, timeout: Duration) -> Self {
        self.address_timeout = timeout.min(LONGEST);
        self
    }

    /// Sets how many peers of one listening address may be between their TCP connection and their complete
    /// request. Default: 4096, which is the usual length of the kernel's own queue; at least 1. Each holds a
    /// descriptor and less than 2 KiB.
    ///
    /// Whatever the setting, these peers of all listening addresses of the process have at most an eighth of
    /// its descriptors (`RLIMIT_NOFILE`). One half of the eighth is divided evenly among the listening
    /// addresses, and the other half is for those that need it first.
    ///
    /// When there is no room for another, the oldest of the address that has most is closed, if its request
    /// has not arrived by then. Addresses of IPv6 count by their first 64 bits. Each peer has at least 200
    /// ms. A peer that sends its request at once is accepted, however many silent ones there are. If the
    /// process has no descriptors left, peers make room in the same way.
    ///
    /// The same limit, and a 32nd of the descriptors, apply to the refused peers of an adapter that have one
    /// second to read the refusal; further ones are closed immediately.
    #[must_use]
    pub fn half_open(mut self, most: usize) -> Self {
        self.half_open = most.max(1);
        self
    }

    /// Sets the range of local ports for connections and listeners without a given port. Default:
    /// 49152-65535, the ephemeral ports of NetworkDirect. An empty range, or one with port 0, counts as the
    /// default.
    #[must_use]
    pub fn ephemeral_ports(mut self, ports: RangeInclusive<u16>) -> Self {
        self.ephemeral_ports = ports;
        self
    }

    /// Records what the connections of the adapters send and receive, as a file for Wireshark. Default: off,
    /// which costs nothing.
    ///
    /// The file has the bytes that the sockets of this end took and gave, in packets that are made up for
    /// them: the sizes of segments, acknowledgements and what TCP repeats are not those of the network. If
    /// both ends of a connection record, each needs its own [`Capture`]. While a capture is on, all bytes are
    /// copied once more.
    ///
    /// ```
    /// use tokio_rdma::soft::{Capture, SoftConfig};
    ///
    /// let capture = Capture::new(64 << 20);
    /// let config = SoftConfig::default().capture(&capture);
    /// // ... connections of adapters with this config ...
    /// let file = capture.pcap(); // to be written, for example, by tokio::fs::write
    /// # drop((config, file));
    /// ```
    #[must_use]
    pub fn capture(mut self, capture: &Capture) -> Self {
        self.capture = Some(capture.clone());
        self
    }
}
