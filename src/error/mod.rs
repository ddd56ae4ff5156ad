//! Error types, one per family of calls.
//!
//! The error of a call has a NetworkDirect [`Status`] and converts into [`std::io::Error`]. An error of a call that consumes a
//! handle or a buffer returns it, see [`Retained`] and [`PostError`].

mod data;
mod messages;
mod stream;

use std::fmt;
use std::io;
use std::net::SocketAddr;

use crate::status::{CmEvent, IbRejectReason, Status, status_of_errno};
use crate::types::{PrivateData, TooShort};

pub use data::{CompletionError, NotifyError, PostError, PostErrorKind, RegisterError, ResizeError};
pub use messages::MessageTooLong;
pub use stream::{ProtocolError, StreamBroken, StreamError};

/// The cause of a failure, as the provider, the system or the peer reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// An operating system error number.
    Errno(i32),
    /// The peer rejected in its MPA reply (RFC 5044 section 7.1, the R bit).
    MpaReject,
    /// The peer closed the TCP connection before it responded.
    PeerClosed,
    /// An RDMAP Terminate message, received or sent (RFC 5040 section 4.8).
    Terminate {
        /// Whether this side sent it.
        sent: bool,
        /// The layer: 0 RDMAP, 1 DDP, 2 LLP (MPA).
        layer: u8,
        /// The error type within the layer.
        etype: u8,
        /// The error code within the type.
        code: u8,
    },
    /// The peer violated the protocol before a Terminate could be sent.
    Protocol(DecodeError),
    /// Nothing was received from the peer for the path timeout.
    PathTimeout,
    /// An event of rdma_cm (rdma_get_cm_event(3)).
    Cm {
        /// The kind of the event.
        event: CmEvent,
        /// The status of the event: a negative errno, or the reason of an InfiniBand reject.
        status: i32,
    },
    /// The libibverbs status of a work request that failed (ibv_poll_cq(3)).
    Completion(u32),
    /// A local event, such as a flush of the queue pair.
    Local(&'static str),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(code) => io::Error::from_raw_os_error(*code).fmt(f),
            Self::MpaReject => f.write_str("rejected in the MPA reply"),
            Self::PeerClosed => f.write_str("the peer closed the connection before it responded"),
            Self::Terminate { sent, layer, etype, code } => {
                let sender = if *sent { "this side" } else { "the peer" };
                write!(f, "{sender} sent an RDMAP Terminate: layer {layer}, type {etype}, code {code}")
            }
            Self::Protocol(error) => error.fmt(f),
            Self::PathTimeout => f.write_str("nothing received from the peer within the path timeout"),
            Self::Cm { event: CmEvent::REJECTED, status } => match IbRejectReason::from_status(*status) {
                Some(reason) => write!(f, "rejected: {reason}"),
                None => write!(f, "rejected: {}", io::Error::from_raw_os_error(status.saturating_neg())),
            },
            Self::Cm { event, status: 0 } => event.fmt(f),
            Self::Cm { event, status } => {
                write!(f, "{event}: {}", io::Error::from_raw_os_error(status.saturating_neg()))
            }
            Self::Completion(status) => write!(f, "a work request failed with libibverbs status {status}"),
            Self::Local(what) => f.write_str(what),
        }
    }
}

/// The error of decoding bytes of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The frame is incomplete.
    #[error("the frame is truncated")]
    Truncated,
    /// The frame does not start with the MPA key (RFC 5044 section 7.1.1).
    #[error("the frame does not start with the MPA key")]
    BadKey,
    /// The version of MPA, DDP or RDMAP is not supported.
    #[error("unsupported protocol version {0}")]
    Version(u8),
    /// The private data is longer than the 512 bytes of RFC 5044.
    #[error("private data of {0} bytes exceeds the MPA maximum of 512")]
    PrivateDataTooLong(u16),
    /// The peer requires a feature that is not supported, for example markers, or frames without CRC.
    #[error("the peer requires an unsupported feature: {0}")]
    Unsupported(&'static str),
    /// The CRC32C does not match.
    #[error("CRC mismatch")]
    Crc,
    /// A length or a field contradicts another one.
    #[error("malformed frame: {0}")]
    Malformed(&'static str),
}

/// Implements `From` into `io::Error` for each type, and a function for the way back.
macro_rules! through_io {
    ($($error:ty),* $(,)?) => {
        $(impl From<$error> for io::Error {
            fn from(error: $error) -> Self {
                io::Error::new(error.status().io_kind(), error)
            }
        })*

        /// Returns the status of an error of this crate, `None` for any other error.
        fn status_of(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Option<Status> {
            $(if let Some(error) = error.downcast_ref::<$error>() {
                return Some(error.status());
            })*
            None
        }
    };
}

through_io!(
    OpenError,
    BindError,
    ConnectError,
    AcceptError,
    DisconnectError,
    StateError,
    PostErrorKind,
    CompletionError,
    NotifyError,
    ResizeError,
    RegisterError,
    StreamError,
    StreamBroken,
    MessageTooLong,
    TooShort,
);

// Not in `crate::status`, which does not depend on the error types.
impl Status {
    /// Returns `INVALID_PARAMETER_n` for the argument with this number, 1-based.
    fn invalid_parameter(argument: u8) -> Self {
        match argument {
            1..=10 => Self::from_code(Self::INVALID_PARAMETER_1.code() + u32::from(argument) - 1),
            // ND numbers ten arguments. Beyond them the sum would be a number of another meaning.
            _ => Self::INVALID_PARAMETER,
        }
    }

    /// Returns the status of an `io::Error`.
    ///
    /// It is the status of the error of this crate inside `error`. Otherwise it is derived from the error number,
    /// otherwise from the error kind, and otherwise it is `UNSUCCESSFUL`. It is never numerically a success.
    ///
    /// Some error numbers have different meanings in bind and connect; they get the meaning of bind.
    pub fn from_io(error: &io::Error) -> Self {
        // A status inside may be `PENDING` if the user put it there; an error must not turn into a success.
        let inner = error.get_ref().and_then(|inner| match inner.downcast_ref::<io::Error>() {
            Some(wrapped) => Some(Self::from_io(wrapped)),
            None => status_of(inner).filter(|status| status.severity() >= 2),
        });
        inner
            .or_else(|| error.raw_os_error().and_then(status_of_errno))
            .unwrap_or_else(|| Self::from_kind(error.kind()))
    }

    /// Returns the status nearest to an error kind, for errors that have no number.
    fn from_kind(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::ConnectionRefused => Self::CONNECTION_REFUSED,
            io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => Self::NETWORK_UNREACHABLE,
            io::ErrorKind::HostUnreachable => Self::HOST_UNREACHABLE,
            io::ErrorKind::TimedOut => Self::IO_TIMEOUT,
            io::ErrorKind::AddrInUse => Self::SHARING_VIOLATION,
            io::ErrorKind::AddrNotAvailable => Self::INVALID_ADDRESS,
            io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull => Self::INSUFFICIENT_RESOURCES,
            io::ErrorKind::InvalidInput => Self::INVALID_PARAMETER,
            io::ErrorKind::NotConnected => Self::CONNECTION_INVALID,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
                Self::CONNECTION_DISCONNECTED
            }
            io::ErrorKind::ConnectionAborted => Self::CONNECTION_ABORTED,
            io::ErrorKind::PermissionDenied => Self::ACCESS_VIOLATION,
            io::ErrorKind::ResourceBusy => Self::DEVICE_BUSY,
            io::ErrorKind::Unsupported => Self::NOT_SUPPORTED,
            _ => Self::UNSUCCESSFUL,
        }
    }
}

/// The error of opening a provider or an adapter, listing or resolving addresses, and creating queues.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No adapter has this address (`INVALID_ADDRESS`).
    #[error("no adapter has this address")]
    InvalidAddress,
    /// No adapter has this id (`INVALID_PARAMETER`).
    #[error("no adapter has this id")]
    InvalidAdapter,
    /// There is no route to the address (`NETWORK_UNREACHABLE`).
    #[error("no route to the address")]
    Unreachable,
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
        /// The setting, and the limit that it exceeds.
        what: &'static str,
    },
    /// The slice is too short for the addresses (`BUFFER_OVERFLOW`).
    #[error(transparent)]
    TooShort(#[from] TooShort),
    /// The operating system failed.
    #[error("{call} failed")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// Its error.
        #[source]
        source: io::Error,
    },
}

impl OpenError {
    /// The ND status.
    pub fn status(&self) -> Status {
        match self {
            Self::InvalidAddress => Status::INVALID_ADDRESS,
            Self::InvalidAdapter => Status::INVALID_PARAMETER,
            Self::Unreachable => Status::NETWORK_UNREACHABLE,
            Self::Unsupported(_) => Status::NOT_SUPPORTED,
            Self::DeviceRemoved => Status::DEVICE_REMOVED,
            Self::InvalidParameter { argument, .. } => Status::invalid_parameter(*argument),
            Self::TooShort(error) => error.status(),
            Self::Os { source, .. } => Status::from_io(source),
        }
    }
}

/// The error of binding a connector or a listener, and of listening.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The local address and port are in use (`SHARING_VIOLATION`).
    #[error("the local address is in use")]
    SharingViolation,
    /// No ephemeral port is left (`TOO_MANY_ADDRESSES`).
    #[error("no ephemeral port is left")]
    TooManyAddresses,
    /// The connector or listener is already bound (`ADDRESS_ALREADY_ASSOCIATED`, which ND's documentation does not
    /// list).
    #[error("already bound to a local address")]
    AlreadyBound,
    /// The address does not belong to this adapter (`INVALID_ADDRESS`).
    #[error("the address does not belong to this adapter")]
    InvalidAddress,
    /// The listener is not bound or already listening, or the connector cannot be used again (`INVALID_DEVICE_STATE`).
    #[error("the call is not valid in this state")]
    InvalidState,
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
    /// The operating system failed.
    #[error("{call} failed")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// Its error.
        #[source]
        source: io::Error,
    },
}

impl BindError {
    /// The ND status.
    pub fn status(&self) -> Status {
        match self {
            Self::SharingViolation => Status::SHARING_VIOLATION,
            Self::TooManyAddresses => Status::TOO_MANY_ADDRESSES,
            Self::AlreadyBound => Status::ADDRESS_ALREADY_ASSOCIATED,
            Self::InvalidAddress => Status::INVALID_ADDRESS,
            Self::InvalidState => Status::INVALID_DEVICE_STATE,
            Self::DeviceRemoved => Status::DEVICE_REMOVED,
            Self::Os { source, .. } => Status::from_io(source),
        }
    }
}

/// The error of the active side: connect, complete, reject.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer has no listener, its backlog is full, or it rejected the request (`CONNECTION_REFUSED`).
    #[error("the peer refused the connection: {reason}")]
    Refused {
        /// The private data of the peer's reject.
        private_data: Option<PrivateData>,
        /// The cause, as it was reported.
        reason: Reason,
    },
    /// There is no route to the peer (`NETWORK_UNREACHABLE`).
    #[error("the network is unreachable")]
    NetworkUnreachable,
    /// There is no host with the peer's address (`HOST_UNREACHABLE`).
    #[error("the host is unreachable")]
    HostUnreachable,
    /// The peer did not respond, or the caller's timeout expired (`IO_TIMEOUT`).
    #[error("the peer did not respond in time")]
    TimedOut,
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
    /// The call was cancelled, or the queue pair was dropped (`CANCELED`).
    #[error("the connection attempt was cancelled")]
    Canceled,
    /// The peer closed the connection after it had accepted (`CONNECTION_ABORTED`).
    #[error("the peer closed the connection after it had accepted: {reason}")]
    Aborted {
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
    #[error("a connection with these addresses and ports exists")]
    AddressAlreadyExists,
    /// The implicit bind failed.
    #[error("the implicit bind failed")]
    Bind(#[source] BindError),
    /// The provider or the kernel does not support an option (`NOT_SUPPORTED`).
    #[error("{0} is not supported")]
    NotSupported(&'static str),
    /// Any other failure.
    #[error("connect failed with {status}: {reason}")]
    Other {
        /// The ND status.
        status: Status,
        /// The cause, as it was reported.
        reason: Reason,
    },
}

impl ConnectError {
    /// The ND status.
    pub fn status(&self) -> Status {
        match self {
            Self::Refused { .. } => Status::CONNECTION_REFUSED,
            Self::NetworkUnreachable => Status::NETWORK_UNREACHABLE,
            Self::HostUnreachable => Status::HOST_UNREACHABLE,
            Self::TimedOut => Status::IO_TIMEOUT,
            Self::InvalidBufferSize { .. } => Status::INVALID_BUFFER_SIZE,
            Self::Active | Self::QueuePairActive => Status::CONNECTION_ACTIVE,
            Self::Invalid => Status::CONNECTION_INVALID,
            Self::Canceled => Status::CANCELED,
            Self::Aborted { .. } => Status::CONNECTION_ABORTED,
            Self::DeviceRemoved => Status::DEVICE_REMOVED,
            Self::InvalidAddress(_) => Status::INVALID_ADDRESS,
            Self::ForeignQueuePair => Status::INVALID_PARAMETER,
            Self::AddressAlreadyExists => Status::ADDRESS_ALREADY_EXISTS,
            Self::Bind(error) => error.status(),
            Self::NotSupported(_) => Status::NOT_SUPPORTED,
            Self::Other { status, .. } => *status,
        }
    }

    /// Returns whether the connector can connect again.
    ///
    /// It can if the peer refused the connection, was unreachable or did not respond in time. It also can if the
    /// attempt did not start because of an argument that must be changed: `InvalidBufferSize`, `QueuePairActive`,
    /// `ForeignQueuePair`, `NotSupported`, `Bind`.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Refused { .. }
            | Self::NetworkUnreachable
            | Self::HostUnreachable
            | Self::TimedOut
            | Self::InvalidBufferSize { .. }
            | Self::QueuePairActive
            | Self::ForeignQueuePair
            | Self::NotSupported(_) => true,
            Self::Bind(error) => !matches!(error, BindError::DeviceRemoved),
            _ => false,
        }
    }

    /// Returns the private data of the peer's reject. Empty if there is none.
    pub fn private_data(&self) -> &[u8] {
        match self {
            Self::Refused { private_data: Some(data), .. } => data,
            _ => &[],
        }
    }
}

/// The error of the passive side: waiting for a request, accept, reject.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The active side rejected the reply (`CONNECTION_REFUSED`).
    #[error("the active side rejected the connection: {reason}")]
    Refused {
        /// The private data of the active side's reject, if the protocol carries any.
        private_data: Option<PrivateData>,
        /// The cause, as it was reported.
        reason: Reason,
    },
    /// The active side closed the connection during the handshake (`CONNECTION_ABORTED`).
    #[error("the peer closed the connection during the handshake: {reason}")]
    Aborted {
        /// The cause, as it was reported.
        reason: Reason,
    },
    /// The active side did not complete the connection (`IO_TIMEOUT`).
    #[error("the peer did not complete the connection in time")]
    TimedOut,
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
    /// The call was cancelled, the listener was closed, or the queue pair was dropped (`CANCELED`).
    #[error("the call was cancelled")]
    Canceled,
    /// The listener is not listening (`INVALID_DEVICE_STATE`).
    #[error("the listener is not listening")]
    NotListening,
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
    /// Any other failure.
    #[error("accept failed with {status}: {reason}")]
    Other {
        /// The ND status.
        status: Status,
        /// The cause, as it was reported.
        reason: Reason,
    },
}

impl AcceptError {
    /// The ND status.
    pub fn status(&self) -> Status {
        match self {
            Self::Refused { .. } => Status::CONNECTION_REFUSED,
            Self::Aborted { .. } => Status::CONNECTION_ABORTED,
            Self::TimedOut => Status::IO_TIMEOUT,
            Self::InvalidBufferSize { .. } => Status::INVALID_BUFFER_SIZE,
            Self::Active => Status::CONNECTION_ACTIVE,
            Self::ForeignQueuePair => Status::INVALID_PARAMETER,
            Self::Canceled => Status::CANCELED,
            Self::NotListening => Status::INVALID_DEVICE_STATE,
            Self::DeviceRemoved => Status::DEVICE_REMOVED,
            Self::Other { status, .. } => *status,
        }
    }
}

/// The error of disconnecting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectError {
    /// The connection has ended, or another call is disconnecting it (`CONNECTION_INVALID`).
    #[error("the connection has ended or is being disconnected")]
    Invalid,
    /// The call was cancelled (`CANCELED`).
    #[error("the disconnect was cancelled")]
    Canceled,
    /// The peer did not respond; the connection has ended nevertheless (`IO_TIMEOUT`).
    #[error("the peer did not respond to the disconnect")]
    TimedOut,
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
}

impl DisconnectError {
    /// The ND status.
    pub fn status(&self) -> Status {
        match self {
            Self::Invalid => Status::CONNECTION_INVALID,
            Self::Canceled => Status::CANCELED,
            Self::TimedOut => Status::IO_TIMEOUT,
            Self::DeviceRemoved => Status::DEVICE_REMOVED,
        }
    }
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

impl StateError {
    /// The ND status.
    pub fn status(&self) -> Status {
        match self {
            Self::ConnectionInvalid => Status::CONNECTION_INVALID,
            Self::InvalidDeviceState => Status::INVALID_DEVICE_STATE,
        }
    }
}

/// The error of a call that consumes its handle, with the handle if it is unchanged.
///
/// The `?` operator converts it into the plain error, or into an `io::Error`.
pub struct Retained<E, H> {
    /// The error.
    pub error: E,
    /// The handle, if it can be used again; `None` if the attempt has ended.
    pub handle: Option<H>,
}

impl<E: fmt::Debug, H> fmt::Debug for Retained<E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retained")
            .field("error", &self.error)
            .field("usable", &self.handle.is_some())
            .finish()
    }
}

impl<E: fmt::Display, H> fmt::Display for Retained<E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<E: std::error::Error, H> std::error::Error for Retained<E, H> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

macro_rules! unwrap_retained {
    ($($error:ty),*) => {$(
        impl<H> From<Retained<$error, H>> for $error {
            fn from(retained: Retained<$error, H>) -> Self {
                retained.error
            }
        }

        impl<H> From<Retained<$error, H>> for io::Error {
            fn from(retained: Retained<$error, H>) -> Self {
                retained.error.into()
            }
        }

        impl<H> Retained<$error, H> {
            /// The ND status.
            pub fn status(&self) -> Status {
                self.error.status()
            }
        }
    )*};
}

unwrap_retained!(ConnectError, AcceptError);
