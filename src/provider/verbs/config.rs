//! Settings of the verbs provider.

use std::time::Duration;

/// Settings of the verbs provider.
///
/// ```
/// use std::time::Duration;
/// use tokio_rdma::verbs::VerbsConfig;
///
/// let config = VerbsConfig::default().spin(Duration::from_micros(50));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsConfig {
    pub(crate) spin: Duration,
    pub(crate) disconnect_timeout: Duration,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self { spin: Duration::ZERO, disconnect_timeout: Duration::from_secs(10) }
    }
}

impl VerbsConfig {
    /// Sets how long the completion task of an adapter polls before it sleeps. It yields to other tasks after each poll, but
    /// keeps the core busy. Default: zero.
    #[must_use]
    pub fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }

    /// Sets how long a disconnect waits for the peer's response. After it, the disconnect fails with `IO_TIMEOUT`. Default:
    /// 10 s.
    #[must_use]
    pub fn disconnect_timeout(mut self, timeout: Duration) -> Self {
        self.disconnect_timeout = timeout;
        self
    }
}
