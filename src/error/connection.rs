//! Errors of opening, listing and binding, and of connecting, accepting and disconnecting.

use std::borrow::Cow;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::{DecodeError, Reason};
use crate::status::Status;
use crate::types::{AdapterId, PrivateData, TooShort};

/// Formats the private data of a reject for the end of a text, if the data is text itself.
fn said(data: Option<&PrivateData>) -> String {
    data.and_then(PrivateData::text).map(|text| format!(": {text}")).unwrap_or_default()
}

/// Formats the end of a text about a time limit, which is known if it is the caller's.
fn within(limit: Option<Duration>) -> String {
    limit.map_or_else(|| "in time".into(), |limit| format!("within {limit:?}"))
}

/// Formats the text of [`ConnectError::Refused`].
fn refused(peer: SocketAddr, reason: &Reason) -> String {
    match reason {
        Reason::Protocol(DecodeError::BadKey(start)) => {
            format!("{peer} does not speak iWARP: its answer starts with {start}. Is it a plain TCP server?")
        }
        _ => format!("{peer} refused the connection: {reason}"),
    }
}

/// The error of the active side: connect, complete, reject.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer cannot take the connection for now (`CONNECTION_REFUSED`).
    ///
    /// It has no listener, its backlog is full, it lacks a resource, or its application has not decided about the
    /// request. Another attempt may succeed. On iWARP devices this may also be a rejection without private data, which
    /// they do not tell apart. On InfiniBand and RoCE a peer with another program than this crate, one that was killed,
    /// or one whose kernel holds as many unread requests as it can, is reported as `Rejected`.
    #[error("{}", refused(*peer, reason))]
    Refused {
        /// The address of the peer.
        peer: SocketAddr,
        /// The cause, as it was reported.
        reason: Reason,
    },
    /// The application of the peer rejected the connection (`CONNECTION_REFUSED`).
    ///
    /// Another attempt with the same parameters is likely to be rejected, too.
    #[error("the application at {peer} rejected the connection{}", said(private_data.as_ref()))]
    Rejected {
        /// The address of the peer.
        peer: SocketAddr,
        /// The private data of the peer's reject.
        private_data: Option<PrivateData>,
        /// The form in which the reject was reported.
        reason: Reason,
    },
    /// There is no route to the peer (`NETWORK_UNREACHABLE`).
    #[error("there is no route to the network of {peer}")]
    NetworkUnreachable {
        /// The address of the peer.
        peer: SocketAddr,
    },
    /// There is no host with the peer's address (`HOST_UNREACHABLE`).
    #[error("there is no host with the address of {peer}, or no way to it")]
    HostUnreachable {
        /// The address of the peer.
        peer: SocketAddr,
    },
    /// The peer did not respond, or the caller's timeout expired (`IO_TIMEOUT`).
    #[error("{peer} did not respond {}", within(*limit))]
    TimedOut {
        /// The address of the peer.
        peer: SocketAddr,
        /// The caller's timeout, if it expired.
        limit: Option<Duration>,
    },
    /// The private data is longer than the adapter allows (`INVALID_BUFFER_SIZE`).
    #[error("private data of {length} bytes exceeds the adapter's maximum of {maximum}")]
    InvalidBufferSize {
        /// The length of the private data.
        length: usize,
        /// The maximum of the adapter.
        maximum: usize,
    },
    /// The connector is connecting or connected, or cannot be used again (`CONNECTION_ACTIVE`).
    #[error("the connector is connecting or connected, or cannot be used again")]
    Active,
    /// The queue pair is connecting or connected, or was connected once (`CONNECTION_ACTIVE`).
    #[error("the queue pair is connecting or connected, or was connected once")]
    QueuePairActive,
    /// The call is not valid in the state of the connector (`CONNECTION_INVALID`).
    #[error("the call is not valid in this state of the connector")]
    Invalid,
    /// The call was cancelled, or the queue pair was dropped (`CANCELED`). If the runtime of the adapter has ended, the error is
    /// `Other`, with the same status.
    #[error("the connection attempt was cancelled")]
    Canceled,
    /// The peer closed the connection after it had accepted (`CONNECTION_ABORTED`).
    #[error("{peer} closed the connection after it had accepted: {reason}")]
    Aborted {
        /// The address of the peer.
        peer: SocketAddr,
        /// The cause, as it was reported.
        reason: Reason,
    },
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
    /// The adapter cannot connect to this destination (`INVALID_ADDRESS`).
    #[error("{0} is not a valid destination")]
    InvalidAddress(SocketAddr),
    /// The queue pair belongs to another adapter (`INVALID_PARAMETER`).
    #[error("the queue pair belongs to another adapter")]
    ForeignQueuePair,
    /// A connection between the same two addresses and ports exists (`ADDRESS_ALREADY_EXISTS`).
    #[error("a connection from the same local address and port to {peer} exists")]
    AddressAlreadyExists {
        /// The address of the peer.
        peer: SocketAddr,
    },
    /// The implicit bind failed.
    #[error("the connector cannot be bound: {0}")]
    Bind(BindError),
    /// The provider or the kernel does not support an option (`NOT_SUPPORTED`).
    #[error("the adapter does not support {0}")]
    NotSupported(&'static str),
    /// Any other failure.
    #[error("the connect to {peer} failed with {status}: {reason}")]
    Other {
        /// The address of the peer.
        peer: SocketAddr,
        /// The ND status.
        status: Status,
        /// The cause, as it was reported.
        reason: Reason,
    },
}

impl ConnectError {
    /// Returns the cause that was reported, if the error has one.
    pub(crate) const fn reason(&self) -> Option<Reason> {
        match self {
            Self::Refused { reason, .. }
            | Self::Rejected { reason, .. }
            | Self::Aborted { reason, .. }
            | Self::Other { reason, .. } => Some(*reason),
            _ => None,
        }
    }

    /// Returns whether the same call may succeed later, without a change: for a loop that tries again after a while.
    ///
    /// It may if the peer cannot take the connection for now (`Refused`), was unreachable or did not respond in time, and
    /// if no local port was free, or this host lacks memory or descriptors. It may not if the application of the peer said no (`Rejected`), or an argument is wrong.
    /// The connector can be used for the next attempt.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Refused { reason, .. } => reason.is_transient(),
            Self::NetworkUnreachable { .. } | Self::HostUnreachable { .. } | Self::TimedOut { .. } => true,
            Self::Bind(BindError::SharingViolation(_) | BindError::TooManyAddresses(_)) => true,
            Self::Bind(_) | Self::Other { .. } => self.status() == Status::INSUFFICIENT_RESOURCES,
            _ => false,
        }
    }

    /// Returns whether the connector can be used again (`IND2Connector::Connect`).
    ///
    /// It can if the peer refused or rejected the connection, was unreachable or did not respond in time, and if this host
    /// lacks memory or descriptors (`INSUFFICIENT_RESOURCES`). It also can if the attempt did not start because of an argument
    /// that must be changed: `InvalidBufferSize`, `QueuePairActive`, `ForeignQueuePair`, `NotSupported`, `Bind`.
    pub fn is_connector_usable(&self) -> bool {
        match self {
            Self::Refused { .. }
            | Self::Rejected { .. }
            | Self::NetworkUnreachable { .. }
            | Self::HostUnreachable { .. }
            | Self::TimedOut { .. }
            | Self::InvalidBufferSize { .. }
            | Self::QueuePairActive
            | Self::ForeignQueuePair
            | Self::NotSupported(_) => true,
            Self::Bind(error) => !matches!(error, BindError::DeviceRemoved),
            Self::Other { status, .. } => *status == Status::INSUFFICIENT_RESOURCES,
            _ => false,
        }
    }

    /// Returns the private data of the peer's reject. Empty if there is none.
    pub fn private_data(&self) -> &[u8] {
        match self {
            Self::Rejected { private_data: Some(data), .. } => data,
            _ => &[],
        }
    }
}

/// The error of the passive side: waiting for a request, accept, reject.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The active side rejected the reply (`CONNECTION_REFUSED`).
    ///
    /// Its application called [`Reply::reject`](crate::Reply::reject) or dropped the reply. Unlike
    /// [`ConnectError::Refused`], this is not about a lack of resources.
    #[error("{peer} rejected the reply{}: {reason}", said(private_data.as_ref()))]
    Refused {
        /// The address of the peer.
        peer: SocketAddr,
        /// The private data of the active side's reject, if the protocol carries any.
        private_data: Option<PrivateData>,
        /// The cause, as it was reported.
        reason: Reason,
    },
    /// The active side closed the connection during the handshake (`CONNECTION_ABORTED`).
    #[error("{peer} closed the connection during the handshake: {reason}")]
    Aborted {
        /// The address of the peer.
        peer: SocketAddr,
        /// The cause, as it was reported.
        reason: Reason,
    },
    /// The active side did not complete the connection (`IO_TIMEOUT`).
    #[error("{peer} did not complete the connection in time")]
    TimedOut {
        /// The address of the peer.
        peer: SocketAddr,
    },
    /// The private data is longer than the adapter allows (`INVALID_BUFFER_SIZE`).
    #[error("private data of {length} bytes exceeds the adapter's maximum of {maximum}")]
    InvalidBufferSize {
        /// The length of the private data.
        length: usize,
        /// The maximum of the adapter.
        maximum: usize,
    },
    /// The queue pair is connecting or connected, or was connected once (`CONNECTION_ACTIVE`).
    #[error("the queue pair is connecting or connected, or was connected once")]
    Active,
    /// The queue pair belongs to another adapter (`INVALID_PARAMETER`).
    #[error("the queue pair belongs to another adapter")]
    ForeignQueuePair,
    /// The call was cancelled, the listener was closed, or the queue pair was dropped (`CANCELED`). A wait for a request ends with
    /// it, too, when the runtime of the adapter ends; the error of an accept is `Other` then, with the same status.
    #[error("the wait for a request or the accept was cancelled, or its listener or queue pair was dropped")]
    Canceled,
    /// The listener is not listening (`INVALID_DEVICE_STATE`).
    #[error("the listener is not listening")]
    NotListening,
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
    /// The provider does not support an option (`NOT_SUPPORTED`).
    #[error("the adapter does not support {0}")]
    NotSupported(&'static str),
    /// Any other failure.
    #[error("the accept of a connection from {peer} failed with {status}: {reason}")]
    Other {
        /// The address of the peer.
        peer: SocketAddr,
        /// The ND status.
        status: Status,
        /// The cause, as it was reported.
        reason: Reason,
    },
}

/// The error of disconnecting.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectError {
    /// The connection was lost before the peer agreed to its end (`CONNECTION_INVALID`).
    ///
    /// Data that was sent last may not have arrived.
    #[error("the connection was lost: {reason}")]
    Lost {
        /// The status of the oldest outstanding request of the send queue.
        status: Status,
        /// The cause, as the provider detected it.
        reason: Reason,
    },
    /// This side has disconnected already, or another call is disconnecting (`CONNECTION_INVALID`).
    #[error("this side has disconnected already, or is disconnecting")]
    Invalid,
    /// The call was cancelled (`CANCELED`).
    #[error("the disconnect was cancelled")]
    Canceled,
    /// The peer did not respond; the connection has ended nevertheless (`IO_TIMEOUT`).
    #[error("the peer did not respond to the disconnect within {limit:?}")]
    TimedOut {
        /// The time limit of the provider's configuration.
        limit: Duration,
    },
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
}

/// The error of a query that has no result in the current state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The connection does not have this value in its current state (`CONNECTION_INVALID`).
    #[error("the call is not valid in this state of the connection")]
    ConnectionInvalid,
    /// The listener is not listening (`INVALID_DEVICE_STATE`).
    #[error("the listener is not listening")]
    InvalidDeviceState,
}

status_tables! {
    ConnectError {
        Self::Refused { .. } | Self::Rejected { .. } => Status::CONNECTION_REFUSED,
        Self::NetworkUnreachable { .. } => Status::NETWORK_UNREACHABLE,
        Self::HostUnreachable { .. } => Status::HOST_UNREACHABLE,
        Self::TimedOut { .. } => Status::IO_TIMEOUT,
        Self::InvalidBufferSize { .. } => Status::INVALID_BUFFER_SIZE,
        Self::Active | Self::QueuePairActive => Status::CONNECTION_ACTIVE,
        Self::Invalid => Status::CONNECTION_INVALID,
        Self::Canceled => Status::CANCELED,
        Self::Aborted { .. } => Status::CONNECTION_ABORTED,
        Self::DeviceRemoved => Status::DEVICE_REMOVED,
        Self::InvalidAddress(_) => Status::INVALID_ADDRESS,
        Self::ForeignQueuePair => Status::INVALID_PARAMETER,
        Self::AddressAlreadyExists { .. } => Status::ADDRESS_ALREADY_EXISTS,
        Self::Bind(error) => error.status(),
        Self::NotSupported(_) => Status::NOT_SUPPORTED,
        Self::Other { status, .. } => *status,
    }
    AcceptError {
        Self::Refused { .. } => Status::CONNECTION_REFUSED,
        Self::Aborted { .. } => Status::CONNECTION_ABORTED,
        Self::TimedOut { .. } => Status::IO_TIMEOUT,
        Self::InvalidBufferSize { .. } => Status::INVALID_BUFFER_SIZE,
        Self::Active => Status::CONNECTION_ACTIVE,
        Self::ForeignQueuePair => Status::INVALID_PARAMETER,
        Self::Canceled => Status::CANCELED,
        Self::NotListening => Status::INVALID_DEVICE_STATE,
        Self::DeviceRemoved => Status::DEVICE_REMOVED,
        Self::NotSupported(_) => Status::NOT_SUPPORTED,
        Self::Other { status, .. } => *status,
    }
    DisconnectError {
        Self::Invalid | Self::Lost { .. } => Status::CONNECTION_INVALID,
        Self::Canceled => Status::CANCELED,
        Self::TimedOut { .. } => Status::IO_TIMEOUT,
        Self::DeviceRemoved => Status::DEVICE_REMOVED,
    }
    StateError {
        Self::ConnectionInvalid => Status::CONNECTION_INVALID,
        Self::InvalidDeviceState => Status::INVALID_DEVICE_STATE,
    }
}

/// The error of opening a provider or an adapter, listing or resolving addresses, and creating queues.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No adapter has this address (`INVALID_ADDRESS`).
    #[error("no network interface that can be used has the address {0}")]
    InvalidAddress(IpAddr),
    /// A device has this address, and the settings or the environment exclude the device (`INVALID_ADDRESS`); see
    /// `VerbsConfig::devices`.
    #[error("the device {device}, which has the address {address}, is excluded by {by}")]
    Excluded {
        /// The address.
        address: IpAddr,
        /// The name of the device.
        device: String,
        /// The list that excludes the device, such as `TOKIO_RDMA_DEVICES=^mana_0`.
        by: String,
    },
    /// No adapter has this id (`INVALID_PARAMETER`).
    #[error("no adapter has the id {:#x}", .0.0)]
    InvalidAdapter(AdapterId),
    /// There is no route to the address (`NETWORK_UNREACHABLE`).
    #[error("there is no route to {0}")]
    Unreachable(IpAddr),
    /// The provider is not compiled in or has no device, the call was made outside of a tokio runtime, or the adapter
    /// does not have this kind of queue (`NOT_SUPPORTED`).
    #[error("{0}")]
    Unsupported(&'static str),
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
    /// A setting is invalid (`INVALID_PARAMETER_n`).
    #[error("{what}")]
    InvalidParameter {
        /// The number of the argument of the ND method, 1-based.
        argument: u8,
        /// The setting, its value, and the limit that it exceeds.
        what: Cow<'static, str>,
    },
    /// The slice is too short for the addresses (`BUFFER_OVERFLOW`).
    #[error(transparent)]
    TooShort(#[from] TooShort),
    /// The operating system failed.
    #[error("{call} failed: {source}")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// Its error.
        r#source: Arc<io::Error>,
    },
}

impl OpenError {
    /// Checks a setting, and returns `InvalidParameter` if it is out of range.
    pub(crate) fn check_range(
        argument: u8,
        name: &str,
        value: usize,
        range: RangeInclusive<usize>,
    ) -> Result<(), Self> {
        if range.contains(&value) {
            return Ok(());
        }
        let what = format!("{name} is {value}, not between {} and {}", range.start(), range.end()).into();
        Err(Self::InvalidParameter { argument, what })
    }
}

/// The error of binding a connector or a listener, and of listening.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The local address and port are in use (`SHARING_VIOLATION`).
    #[error("the local address {0} is in use")]
    SharingViolation(SocketAddr),
    /// No ephemeral port is left (`TOO_MANY_ADDRESSES`).
    #[error("no ephemeral port is left at {0}")]
    TooManyAddresses(IpAddr),
    /// The connector or listener is already bound (`ADDRESS_ALREADY_ASSOCIATED`, which ND's documentation does not
    /// list).
    #[error("already bound to {0}")]
    AlreadyBound(SocketAddr),
    /// The address does not belong to this adapter (`INVALID_ADDRESS`).
    #[error("the adapter does not have the address {0}")]
    InvalidAddress(IpAddr),
    /// The listener is not bound or already listening, the connector cannot be used again, or the runtime of the adapter has ended
    /// (`INVALID_DEVICE_STATE`).
    #[error("{0}")]
    InvalidState(&'static str),
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
    /// The operating system does not let the address be bound, for example for want of a permission.
    #[error("cannot bind {address}: {error}")]
    Address {
        /// The local address.
        address: SocketAddr,
        /// The error of the operating system.
        error: Arc<io::Error>,
    },
    /// The operating system failed.
    #[error("{call} failed: {source}")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// Its error.
        r#source: Arc<io::Error>,
    },
}

impl BindError {
    /// Returns the error of the bind of a connector that the machine refused with `status`. `local` is where it is bound.
    pub(crate) fn of_connector(status: Status, local: Option<SocketAddr>) -> Self {
        Self::refused(status, local, "the connector is connecting or connected, or cannot be used again")
    }

    /// Returns the error of the bind or the listen of a listener that the machine refused with `status`. `local` is where
    /// it is bound.
    pub(crate) fn of_listener(status: Status, local: Option<SocketAddr>) -> Self {
        Self::refused(
            status,
            local,
            match local {
                None => "the listener is not bound, or is closed",
                Some(_) => "the listener is listening already, or is closed",
            },
        )
    }

    fn refused(status: Status, local: Option<SocketAddr>, otherwise: &'static str) -> Self {
        match (status, local) {
            (Status::ADDRESS_ALREADY_ASSOCIATED, Some(local)) => Self::AlreadyBound(local),
            (Status::DEVICE_REMOVED, _) => Self::DeviceRemoved,
            _ => Self::InvalidState(otherwise),
        }
    }
}

status_tables! {
    OpenError {
        Self::InvalidAddress(_) | Self::Excluded { .. } => Status::INVALID_ADDRESS,
        Self::InvalidAdapter(_) => Status::INVALID_PARAMETER,
        Self::Unreachable(_) => Status::NETWORK_UNREACHABLE,
        Self::Unsupported(_) => Status::NOT_SUPPORTED,
        Self::DeviceRemoved => Status::DEVICE_REMOVED,
        Self::InvalidParameter { argument, .. } => Status::invalid_parameter(*argument),
        Self::TooShort(error) => error.status(),
        Self::Os { source, .. } => Status::from_io(source),
    }
    BindError {
        Self::SharingViolation(_) => Status::SHARING_VIOLATION,
        Self::TooManyAddresses(_) => Status::TOO_MANY_ADDRESSES,
        Self::AlreadyBound(_) => Status::ADDRESS_ALREADY_ASSOCIATED,
        Self::InvalidAddress(_) => Status::INVALID_ADDRESS,
        Self::InvalidState(_) => Status::INVALID_DEVICE_STATE,
        Self::DeviceRemoved => Status::DEVICE_REMOVED,
        Self::Address { error, .. } => Status::from_io(error),
        Self::Os { source, .. } => Status::from_io(source),
    }
}
