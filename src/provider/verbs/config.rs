//! The settings of the verbs provider.

use std::time::Duration;

/// How the verbs provider does what the standards leave open.
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
    /// How long to look for further completions before going to sleep. Spinning takes a turn of the runtime for each
    /// look, so other tasks run in between, but the core never rests meanwhile. Default: not at all.
    #[must_use]
    pub fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }

    /// How long Disconnect waits for the peer's answer before it ends `IO_TIMEOUT`. Default: 10 s.
    #[must_use]
    pub fn disconnect_timeout(mut self, timeout: Duration) -> Self {
        self.disconnect_timeout = timeout;
        self
    }
}
