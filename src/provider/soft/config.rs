//! Settings of the soft provider.

use std::ops::RangeInclusive;
use std::time::Duration;

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
    pub(crate) half_open: usize,
    pub(crate) ephemeral_ports: RangeInclusive<u16>,
}

impl Default for SoftConfig {
    fn default() -> Self {
        Self {
            crc: false,
            spin: Duration::ZERO,
            path_timeout: Some(Duration::from_secs(30)),
            request_timeout: Duration::from_secs(5),
            disconnect_timeout: Duration::from_secs(5),
            half_open: 1024,
            ephemeral_ports: 49152..=65535,
        }
    }
}

impl SoftConfig {
    /// Requests a CRC32C in every frame (RFC 5044 section 4.4). Default: off, as in Linux `siw`. If the peer requests it, it
    /// is used in any case. The CRC detects errors that the 16-bit checksum of TCP misses, and costs bandwidth.
    #[must_use]
    pub fn crc(mut self, crc: bool) -> Self {
        self.crc = crc;
        self
    }

    /// Sets how long the task of a connection polls its socket before it sleeps. It yields to other tasks after each poll,
    /// but keeps the core busy. Spinning halves the time of a round trip if each end has a core of its own, and multiplies
    /// it if both share one. A time beyond what the clock can represent counts as zero. Default: zero.
    #[must_use]
    pub fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }

    /// Sets how long a connection survives a dead path or a frozen peer. Default: 30 s, at least 100 ms. With `None` only TCP
    /// detects a dead path: after about 15 minutes of trying to send, and never on an idle connection.
    ///
    /// This sets the TCP user timeout and keepalive. In addition, an established connection that has received nothing for
    /// half of this time posts an empty RDMA Read, and is lost with `IO_TIMEOUT` if nothing is received for another half:
    /// the kernel of a stopped process still acknowledges TCP segments, but nobody answers reads. If the outbound read
    /// limit is 0, no read is posted.
    #[must_use]
    pub fn path_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.path_timeout = timeout.map(|timeout| timeout.max(Duration::from_millis(100)));
        self
    }

    /// Sets how long a peer that has connected by TCP may take to send its connection request. Default: 5 s, as in Linux
    /// `siw`.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Sets how long a disconnect waits for the peer's response. After it, the connection is reset. Default: 5 s.
    #[must_use]
    pub fn disconnect_timeout(mut self, timeout: Duration) -> Self {
        self.disconnect_timeout = timeout;
        self
    }

    /// Sets how many peers of one listening address may be between their TCP connection and their complete request. Default:
    /// 1024. Each holds at most 532 bytes. Further peers wait in the backlog of the kernel. The same limit applies to the
    /// refused peers of an adapter that have one second to read the refusal; further ones are closed immediately.
    #[must_use]
    pub fn half_open(mut self, most: usize) -> Self {
        self.half_open = most.max(1);
        self
    }

    /// Sets the range of local ports for connections and listeners without a given port. Default: 49152-65535, the ephemeral
    /// ports of NetworkDirect.
    #[must_use]
    pub fn ephemeral_ports(mut self, ports: RangeInclusive<u16>) -> Self {
        self.ephemeral_ports = ports;
        self
    }
}
