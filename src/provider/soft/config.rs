//! The settings of the soft provider, with their defaults.

use std::ops::RangeInclusive;
use std::time::Duration;

/// How the soft provider behaves. Every setting has a default that suits most programs.
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
    /// Asks for a CRC32C in every frame (RFC 5044 section 4.4). Default: off, as in Linux `siw`; a peer that asks
    /// for it always gets it. It catches what the 16-bit checksum of TCP misses, and costs some bandwidth.
    #[must_use]
    pub fn crc(mut self, crc: bool) -> Self {
        self.crc = crc;
        self
    }

    /// How long to look at the socket of a connection for more before going to sleep. Spinning takes a turn of the
    /// runtime for each look, so other tasks run in between, but the core never rests meanwhile. It halves the time of a
    /// round trip where both ends have a core of their own, and multiplies it where they share one. Default: not at all.
    #[must_use]
    pub fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }

    /// How long a connection survives a dead path or a frozen peer. Default: 30 s; `None` leaves it to TCP, which
    /// notices a cut cable after about 15 minutes of trying to send, and not at all when idle.
    ///
    /// Sets the TCP user timeout and keepalive. In addition an established connection that has been silent for half
    /// of this time asks its peer for an empty RDMA Read, and is lost with `IO_TIMEOUT` after another half: a peer
    /// process that is stopped still acknowledges TCP segments, but does not answer reads. (Not when the outbound
    /// read limit is 0.)
    #[must_use]
    pub fn path_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.path_timeout = timeout.map(|timeout| timeout.max(Duration::from_millis(100)));
        self
    }

    /// How long a peer that connected may take for its connection request. Default: 5 s, as in Linux `siw`.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// How long a disconnect waits for the peer's answer before it ends without. Default: 5 s.
    #[must_use]
    pub fn disconnect_timeout(mut self, timeout: Duration) -> Self {
        self.disconnect_timeout = timeout;
        self
    }

    /// How many peers of one listening address may be between TCP connection and complete request. Default: 1024;
    /// each holds at most 532 bytes of request. What comes beyond waits in the kernel's queue. It also bounds how many
    /// refused peers an adapter gives a second to take note; what comes beyond is closed at once.
    #[must_use]
    pub fn half_open(mut self, most: usize) -> Self {
        self.half_open = most.max(1);
        self
    }

    /// Where local ports are taken from when none is asked for. Default: 49152-65535, the ephemeral ports of
    /// NetworkDirect.
    #[must_use]
    pub fn ephemeral_ports(mut self, ports: RangeInclusive<u16>) -> Self {
        self.ephemeral_ports = ports;
        self
    }
}
