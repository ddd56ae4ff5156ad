//! Settings of sessions.

use std::time::Duration;

/// The most sessions of a listener that are kept without a connection.
const LOST: usize = 1024;

/// Settings of the sessions of streams: [`StreamConfig::session`](super::super::StreamConfig::session).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    pub(super) gives_up_after: Duration,
    pub(super) window: Option<usize>,
    pub(super) lost: usize,
}

impl Default for SessionConfig {
    /// Returns a minute without a connection, a window as large as the receive buffer, and 1024 sessions without a connection.
    fn default() -> Self {
        Self { gives_up_after: Duration::from_secs(60), window: None, lost: LOST }
    }
}

impl SessionConfig {
    /// Sets how long the stream waits for another connection after a loss. Then its reads and writes fail. The shorter time of both
    /// ends counts, in whole milliseconds.
    #[must_use]
    pub fn give_up_after(mut self, time: Duration) -> Self {
        self.gives_up_after = time;
        self
    }

    /// Sets how many written bytes are kept at most: those that the program of the peer has not read. A write waits when they are that
    /// many. Default: the size of the [receive buffer](super::super::StreamConfig::receive_buffer). At least 2048, and at most 256 MiB.
    #[must_use]
    pub fn window(mut self, bytes: usize) -> Self {
        self.window = Some(bytes);
        self
    }

    /// Sets how many sessions of a listener may be without a connection at the same time. Beyond that the one that has waited longest
    /// fails.
    #[must_use]
    pub fn lost_sessions(mut self, most: usize) -> Self {
        self.lost = most;
        self
    }
}
