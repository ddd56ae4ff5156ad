//! The settings of both ends.

use std::time::Duration;

use crate::wire::Settings;

/// Limits of a connection, for a [`Channel`](crate::Channel) or a [`Server`](crate::Server).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) settings: Settings,
    pub(crate) handshake_timeout: Duration,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) one_sided: bool,
}

/// The range of all windows: half of 2^32, so that a grant never makes one too large.
const WINDOWS: (u32, u32) = (16 << 10, 1 << 31);

impl Default for Config {
    /// Returns windows of 1 MiB for a call and 4 MiB for a connection, 1,000 calls at once, heads of 16 KiB, 10 seconds for
    /// the hellos, and 30 seconds for calls to end after a shutdown.
    fn default() -> Self {
        let settings = Settings {
            frame: 64 << 10,
            call_window: 1 << 20,
            window: 4 << 20,
            calls: 1_000,
            head: 16 << 10,
            loans: None,
        };
        Self {
            settings,
            handshake_timeout: Duration::from_secs(10),
            shutdown_timeout: Duration::from_secs(30),
            one_sided: true,
        }
    }
}

impl Config {
    /// Sets how many bytes of a body the peer may send before they are read, for each call: 16 KiB to 2 GiB.
    ///
    /// Each frame counts 64 bytes more than it has.
    #[must_use]
    pub fn call_window(mut self, bytes: u32) -> Self {
        self.settings.call_window = bytes.clamp(WINDOWS.0, WINDOWS.1);
        self
    }

    /// Sets how many bytes of all bodies the peer may send before they are read: 16 KiB to 2 GiB. A connection takes no
    /// more memory for them.
    #[must_use]
    pub fn connection_window(mut self, bytes: u32) -> Self {
        self.settings.window = bytes.clamp(WINDOWS.0, WINDOWS.1);
        self
    }

    /// Sets how many calls a server takes at once on one connection, at least 1. The others wait at the client.
    #[must_use]
    pub fn max_calls(mut self, calls: u32) -> Self {
        self.settings.calls = calls.max(1);
        self
    }

    /// Sets the longest head, and the longest trailers, as they are on the wire: 4 to 64 KiB.
    #[must_use]
    pub fn max_head(mut self, bytes: u32) -> Self {
        self.settings.head = bytes.clamp(4 << 10, 64 << 10);
        // A head and trailers go into one frame.
        self.settings.frame = self.settings.frame.max(2 * (self.settings.head + 4));
        self
    }

    /// Sets whether parts of long bodies, from 128 KiB on, stay in registered memory of their sender until the receiver has read them
    /// by RDMA Read, where both ends are on devices. By default they do. While such bodies come and go, and for up to 20 seconds
    /// after, an end has 1 MiB of registered memory for those that it sends, and up to 4 MiB for those that it receives, which
    /// the windows do not limit.
    #[must_use]
    pub fn one_sided(mut self, is_used: bool) -> Self {
        self.one_sided = is_used;
        self
    }

    /// Sets how long a connect, or the hello of a peer, may take.
    #[must_use]
    pub fn handshake_timeout(mut self, time: Duration) -> Self {
        self.handshake_timeout = time;
        self
    }

    /// Sets how long calls may go on after the shutdown of a server.
    #[must_use]
    pub fn shutdown_timeout(mut self, time: Duration) -> Self {
        self.shutdown_timeout = time;
        self
    }
}
