//! What a caller may say about a connection.

use std::time::Duration;

use bytes::Bytes;

use crate::types::ReadLimits;

/// The arguments of Connect, with those of `dat_ep_connect` that NetworkDirect lacks.
///
/// ```
/// use std::time::Duration;
/// use tokio_rdma::{ConnectParams, ReadLimits};
///
/// let params = ConnectParams::default()
///     .private_data(&b"hello"[..])
///     .read_limits(ReadLimits::new(4, 4))
///     .timeout(Duration::from_secs(3));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConnectParams {
    pub(crate) private_data: Bytes,
    pub(crate) read_limits: ReadLimits,
    pub(crate) timeout: Option<Duration>,
    pub(crate) traffic_class: Option<u8>,
    pub(crate) multipath: bool,
}

impl ConnectParams {
    /// Data for the peer to see with the request; at most
    /// [`max_request_data`](crate::cm::AdapterInfo::max_request_data) bytes. Default: none.
    #[must_use]
    pub fn private_data(mut self, data: impl Into<Bytes>) -> Self {
        self.private_data = data.into();
        self
    }

    /// The reads to offer: capped to the adapter, then to the peer's answer. Default: 16 each way.
    #[must_use]
    pub fn read_limits(mut self, limits: ReadLimits) -> Self {
        self.read_limits = limits;
        self
    }

    /// How long to wait for the peer to accept; then the connect ends `IO_TIMEOUT` and may be tried again.
    /// Default: as long as the peer takes, only a peer that cannot be reached is given up.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Quality of service: the IP type of service (traffic class) byte of every packet. The two low bits belong to
    /// congestion control and must be 0. Default: the system's.
    #[must_use]
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.traffic_class = Some(class);
        self
    }

    /// Use several network paths at once (uDAPL's `DAT_CONNECT_MULTIPATH_FLAG`): MPTCP on the soft provider. A kernel
    /// without it refuses the connect; a peer without it gets one path. Default: off.
    #[must_use]
    pub fn multipath(mut self, multipath: bool) -> Self {
        self.multipath = multipath;
        self
    }
}

/// The arguments of Accept.
#[derive(Clone, Debug, Default)]
pub struct AcceptParams {
    pub(crate) private_data: Bytes,
    pub(crate) read_limits: ReadLimits,
}

impl AcceptParams {
    /// Data for the peer to see with the reply; at most [`max_reply_data`](crate::cm::AdapterInfo::max_reply_data)
    /// bytes. Default: none.
    #[must_use]
    pub fn private_data(mut self, data: impl Into<Bytes>) -> Self {
        self.private_data = data.into();
        self
    }

    /// The reads to agree to: capped to the adapter and to the peer's offer. Default: 16 each way.
    #[must_use]
    pub fn read_limits(mut self, limits: ReadLimits) -> Self {
        self.read_limits = limits;
        self
    }
}
