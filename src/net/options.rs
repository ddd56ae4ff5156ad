//! The options of a socket that the caller may choose, and the errors of making one.

use std::io;
use std::time::Duration;

use super::leases::Namespace;
use crate::error::{BindError, ConnectError};

/// Unanswered probes after which a silent peer is given up.
pub(super) const KEEPALIVE_RETRIES: u32 = 3;

/// The options of a connection's socket that the caller may choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketOptions {
    /// The time that the peer may be silent before the connection counts as lost; `None` leaves that to the kernel.
    pub(crate) path_timeout: Option<Duration>,
    /// The IPv4 type of service, or IPv6 traffic class, of everything that is sent: uDAPL's quality of
    /// service.
    pub(crate) tos: Option<u8>,
    /// Multipath TCP, so that one connection may use several paths (RFC 8684): uDAPL's
    /// `DAT_CONNECT_MULTIPATH_FLAG`.
    pub(crate) multipath: bool,
    /// The network namespace that the socket is for, if that is known: to find out takes as long as to bind.
    pub(crate) namespace: Option<Namespace>,
}

impl SocketOptions {
    /// Returns the time before an idle peer is probed first, and the time between two probes: half of the path timeout,
    /// and a sixth of it. In whole seconds within the kernel's limits, 1 to 32767 (tcp(7)).
    pub(super) fn keepalive(&self) -> Option<(Duration, Duration)> {
        let whole = |duration: Duration| Duration::from_secs(duration.as_secs().clamp(1, 32767));
        self.path_timeout.map(|timeout| (whole(timeout / 2), whole(timeout / 6)))
    }
}

/// A socket that could not be made, bound or set up as asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    /// The address or port is to blame, or the operating system.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// This kernel does not have what was asked for.
    #[error("{0} is not supported")]
    NotSupported(&'static str),
}

impl SocketError {
    /// Creates the error of this call of the operating system.
    pub(super) fn os(call: &'static str, source: io::Error) -> Self {
        Self::Bind(BindError::Os { call, source: source.into() })
    }
}

impl From<SocketError> for ConnectError {
    fn from(error: SocketError) -> Self {
        match error {
            SocketError::Bind(error) => Self::Bind(error),
            SocketError::NotSupported(what) => Self::NotSupported(what),
        }
    }
}
