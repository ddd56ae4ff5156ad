//! One error enum per family of calls; each knows its NetworkDirect [`Status`].
//!
//! Errors that leave a handle usable give it back: see [`Retained`] and [`PostError`].

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

/// What the provider itself said about a failure, kept so that nothing is lost in translation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// An operating system error number.
    Errno(i32),
    /// The peer's MPA reply said no (RFC 5044 section 7.1, the R bit).
    MpaReject,
    /// The peer closed before it answered.
    PeerClosed,
    /// An RDMAP Terminate message, received or sent (RFC 5040 section 4.8).
    Terminate {
        /// Whether this side sent it.
        sent: bool,
        /// 0 RDMAP, 1 DDP, 2 LLP (MPA).
        layer: u8,
        /// The error type within the layer.
        etype: u8,
        /// The error code within the type.
        code: u8,
    },
    /// The peer broke the protocol before a Terminate could be said.
    Protocol(DecodeError),
    /// Nothing was heard from the peer for the path timeout.
    PathTimeout,
    /// An event of rdma_cm, with its status: a negative errno, or InfiniBand's reason when it rejects
    /// (rdma_get_cm_event(3)).
    Cm {
        /// Which.
        event: CmEvent,
        /// Its status.
        status: i32,
    },
    /// The status of a work request that failed, as libibverbs numbers them (ibv_poll_cq(3)).
    Completion(u32),
    /// Something local ended it.
    Local(&'static str),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(code) => io::Error::from_raw_os_error(*code).fmt(f),
            Self::MpaReject => f.write_str("rejected in the MPA reply"),
            Self::PeerClosed => f.write_str("the peer closed before it answered"),
            Self::Terminate { sent, layer, etype, code } => {
                let who = if *sent { "we" } else { "the peer" };
                write!(f, "{who} terminated: layer {layer}, type {etype}, code {code}")
            }
            Self::Protocol(error) => error.fmt(f),
            Self::PathTimeout => f.write_str("nothing heard from the peer"),
            Self::Cm { event: CmEvent::REJECTED, status } => match IbRejectReason::from_status(*status) {
                Some(reason) => write!(f, "rejected: {reason}"),
                None => write!(f, "rejected: {}", io::Error::from_raw_os_error(status.saturating_neg())),
            },
            Self::Cm { event, status: 0 } => event.fmt(f),
            Self::Cm { event, status } => {
                write!(f, "{event}: {}", io::Error::from_raw_os_error(status.saturating_neg()))
            }
            Self::Completion(status) => write!(f, "a work request failed with status {status}"),
            Self::Local(what) => f.write_str(what),
        }
    }
}

/// Bytes from the wire that do not parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// More bytes are needed before anything can be said.
    #[error("the frame is truncated")]
    Truncated,
    /// It does not start with the MPA key (RFC 5044 section 7.1.1).
    #[error("not an MPA start-up frame")]
    BadKey,
    /// An MPA, DDP or RDMAP version that we do not speak.
    #[error("unsupported version {0}")]
    Version(u8),
    /// Private data longer than the 512 bytes of RFC 5044.
    #[error("private data of {0} bytes")]
    PrivateDataTooLong(u16),
    /// Markers asked for, or CRC refused, against what this side can do.
    #[error("the peer asks for what we do not do: {0}")]
    Unsupported(&'static str),
    /// The CRC32C does not match.
    #[error("CRC mismatch")]
    Crc,
    /// A length or field that contradicts the rest.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

/// The way into an `io::Error` and the way back, for the same list of types.
macro_rules! through_io {
    ($($error:ty),* $(,)?) => {
        $(impl From<$error> for io::Error {
            fn from(error: $error) -> Self {
                io::Error::new(error.status().io_kind(), error)
            }
        })*

        /// The status of an error of this crate; `None` for a stranger's.
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

// Here and not beside `Status`, which knows numbers and none of the types that have one.
impl Status {
    /// That of the argument with this number, 1-based.
    fn invalid_parameter(argument: u8) -> Self {
        match argument {
            1..=10 => Self::from_code(Self::INVALID_PARAMETER_1.code() + u32::from(argument) - 1),
            // ND numbers ten arguments. Beyond them the sum would be a number of another meaning.
            _ => Self::INVALID_PARAMETER,
        }
    }

    /// The status that stands for an `io::Error`: of the error of ours inside it, else of its number, else
    /// of its kind, else `UNSUCCESSFUL`. Never one that is numerically a success.
    ///
    /// Some numbers mean one thing in bind and another in connect; they get the meaning of bind.
    pub fn from_io(error: &io::Error) -> Self {
        // A status inside may be `PENDING` if somebody put it there; an error must not turn into a success.
        let inner = error.get_ref().and_then(|inner| match inner.downcast_ref::<io::Error>() {
            Some(wrapped) => Some(Self::from_io(wrapped)),
            None => status_of(inner).filter(|status| status.severity() >= 2),
        });
        inner
            .or_else(|| error.raw_os_error().and_then(status_of_errno))
            .unwrap_or_else(|| Self::from_kind(error.kind()))
    }

    /// The status nearest to a kind, for errors that have no number.
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

/// Opening a provider or an adapter, listing or resolving addresses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No provider serves this address (`INVALID_ADDRESS`).
    #[error("no adapter has this address")]
    InvalidAddress,
    /// No adapter has this id (`INVALID_PARAMETER`).
    #[error("no adapter has this id")]
    InvalidAdapter,
    /// The address has no route (`NETWORK_UNREACHABLE`).
    #[error("no route to the address")]
    Unreachable,
    /// The provider is not compiled in, or has no device (`NOT_SUPPORTED`).
    #[error("the provider is not available: {0}")]
    Unsupported(&'static str),
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
    /// An object cannot be made with this argument; 1-based, as ND counts them (`INVALID_PARAMETER_n`).
    #[error("argument {argument} is out of range: {what}")]
    InvalidParameter {
        /// The argument's number in the ND method.
        argument: u8,
        /// Its name, and the limit it broke.
        what: &'static str,
    },
    /// The caller's slice is too short for the addresses (`BUFFER_OVERFLOW`).
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

/// Binding a connector or a listener, and listening.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The address and port are in use (`SHARING_VIOLATION`).
    #[error("the local address is in use")]
    SharingViolation,
    /// No ephemeral port is left (`TOO_MANY_ADDRESSES`).
    #[error("no ephemeral port is left")]
    TooManyAddresses,
    /// Already bound (`ADDRESS_ALREADY_ASSOCIATED`, which ND's documentation does not list).
    #[error("already bound")]
    AlreadyBound,
    /// Not an address of this adapter (`INVALID_ADDRESS`).
    #[error("not an address of this adapter")]
    InvalidAddress,
    /// Listening needs a bound address, or the object is past binding (`INVALID_DEVICE_STATE`).
    #[error("not valid in this state")]
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

/// Connect, CompleteConnect, and the Reject of the active side.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No listener, its backlog is full, or the peer rejected, perhaps with data (`CONNECTION_REFUSED`).
    #[error("the peer refused the connection: {reason}")]
    Refused {
        /// What the peer said with its reject.
        private_data: Option<PrivateData>,
        /// How it said it.
        reason: Reason,
    },
    /// No route (`NETWORK_UNREACHABLE`).
    #[error("the network is unreachable")]
    NetworkUnreachable,
    /// No such host (`HOST_UNREACHABLE`).
    #[error("the host is unreachable")]
    HostUnreachable,
    /// No answer, or the caller's timeout ran out (`IO_TIMEOUT`).
    #[error("no answer in time")]
    TimedOut,
    /// Private data longer than the adapter sends (`INVALID_BUFFER_SIZE`).
    #[error("private data of {length} bytes, the limit is {maximum}")]
    InvalidBufferSize {
        /// What was asked.
        length: usize,
        /// What the adapter allows.
        maximum: usize,
    },
    /// The connector is connecting, connected or burnt (`CONNECTION_ACTIVE`).
    #[error("already connecting or connected")]
    Active,
    /// The connector is free, but the queue pair is connecting or connected, or was connected once
    /// (`CONNECTION_ACTIVE`).
    #[error("the queue pair is already connecting or connected")]
    QueuePairActive,
    /// Not the moment for this call (`CONNECTION_INVALID`).
    #[error("not valid in this state")]
    Invalid,
    /// Cancelled, or the queue pair was dropped (`CANCELED`).
    #[error("cancelled")]
    Canceled,
    /// The peer left after it had accepted (`CONNECTION_ABORTED`).
    #[error("the peer abandoned the connection: {reason}")]
    Aborted {
        /// How that was noticed.
        reason: Reason,
    },
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
    /// The destination is not one that this adapter can reach at all (`INVALID_ADDRESS`).
    #[error("{0} is not a valid destination")]
    InvalidAddress(SocketAddr),
    /// The queue pair belongs to another adapter (`INVALID_PARAMETER`).
    #[error("the queue pair belongs to another adapter")]
    ForeignQueuePair,
    /// A connection between the same two addresses and ports exists (`ADDRESS_ALREADY_EXISTS`).
    #[error("a connection with these addresses and ports exists")]
    AddressAlreadyExists,
    /// Binding implicitly failed.
    #[error("binding failed")]
    Bind(#[source] BindError),
    /// An option that the provider or the kernel does not have (`NOT_SUPPORTED`).
    #[error("{0} is not supported")]
    NotSupported(&'static str),
    /// Something else, with the number it came with.
    #[error("connect failed with {status}: {reason}")]
    Other {
        /// The status.
        status: Status,
        /// What the provider said.
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

    /// Whether the same connector may call Connect again: refused, unreachable, timed out, or nothing begun.
    ///
    /// Where nothing was begun the arguments have to change: `InvalidBufferSize`, `QueuePairActive`, `ForeignQueuePair`,
    /// `NotSupported`, `Bind`.
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

    /// The data that came with the peer's reject, empty when there was none.
    pub fn private_data(&self) -> &[u8] {
        match self {
            Self::Refused { private_data: Some(data), .. } => data,
            _ => &[],
        }
    }
}

/// GetConnectionRequest, Accept, and the Reject of the passive side.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The active side rejected what it was offered (`CONNECTION_REFUSED`).
    #[error("the active side rejected the connection: {reason}")]
    Refused {
        /// What it said, where the wire carries it.
        private_data: Option<PrivateData>,
        /// How it said it.
        reason: Reason,
    },
    /// The active side gave up (`CONNECTION_ABORTED`).
    #[error("the peer abandoned the connection: {reason}")]
    Aborted {
        /// How that was noticed.
        reason: Reason,
    },
    /// The active side never completed (`IO_TIMEOUT`).
    #[error("the peer did not complete the connection in time")]
    TimedOut,
    /// Private data longer than the adapter sends (`INVALID_BUFFER_SIZE`).
    #[error("private data of {length} bytes, the limit is {maximum}")]
    InvalidBufferSize {
        /// What was asked.
        length: usize,
        /// What the adapter allows.
        maximum: usize,
    },
    /// The queue pair is in use (`CONNECTION_ACTIVE`).
    #[error("the queue pair is in use")]
    Active,
    /// The queue pair belongs to another adapter (`INVALID_PARAMETER`).
    #[error("the queue pair belongs to another adapter")]
    ForeignQueuePair,
    /// Cancelled, or the listener was closed, or the queue pair dropped (`CANCELED`).
    #[error("cancelled")]
    Canceled,
    /// The listener is not listening (`INVALID_DEVICE_STATE`).
    #[error("not listening")]
    NotListening,
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
    /// Something else, with the number it came with.
    #[error("accept failed with {status}: {reason}")]
    Other {
        /// The status.
        status: Status,
        /// What the provider said.
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

/// Disconnect and NotifyDisconnect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectError {
    /// Not connected any more, or already disconnected (`CONNECTION_INVALID`).
    #[error("not connected")]
    Invalid,
    /// Cancelled (`CANCELED`).
    #[error("cancelled")]
    Canceled,
    /// The peer did not answer; the connection is gone all the same (`IO_TIMEOUT`).
    #[error("the peer did not answer the disconnect")]
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

/// A query at a moment when it has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// There is no such value in this state of the connection (`CONNECTION_INVALID`).
    #[error("not valid in this state of the connection")]
    ConnectionInvalid,
    /// The listener is not listening (`INVALID_DEVICE_STATE`).
    #[error("not listening")]
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

/// An error of a call that consumes its handle, with the handle when the call left it as it was.
///
/// `?` turns it into the plain error, or into an `io::Error`.
pub struct Retained<E, H> {
    /// What went wrong.
    pub error: E,
    /// The handle, when it may be used again; `None` when the attempt is over.
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
