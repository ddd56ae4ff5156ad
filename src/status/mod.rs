//! Status numbers, and what devices report.
//!
//! [`Status`] is a number of NetworkDirect 2, equal to the NTSTATUS with the same meaning. [`WcStatus`] and [`DeviceEvent`]
//! are numbers of libibverbs. The module [`porting`] has the vocabularies of other interfaces. Every number type can hold
//! numbers without a name, so that unexpected numbers of a provider reach the caller.

use std::io::ErrorKind;

use libc::{
    EACCES, EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EALREADY, EBADF, EBUSY, ECANCELED, ECONNABORTED,
    ECONNREFUSED, ECONNRESET, EFAULT, EHOSTDOWN, EHOSTUNREACH, EINPROGRESS, EINVAL, EISCONN, EMFILE,
    EMSGSIZE, ENETDOWN, ENETUNREACH, ENFILE, ENOBUFS, ENODEV, ENOMEM, ENOPROTOOPT, ENOSPC, ENOSYS, ENOTCONN,
    ENXIO, EOPNOTSUPP, EPERM, EPIPE, EPROTONOSUPPORT, ESHUTDOWN, ETIMEDOUT,
};

mod device;
pub mod porting;

pub use device::{DeviceEvent, WcStatus};

/// Defines a number type with named constants. The type can hold numbers without a name. With `$unnamed`, the format of such a
/// number, its `Display` text is the name.
macro_rules! numbers {
    (
        $(#[$type_doc:meta])* $type:ident $(displays name or $unnamed:literal)?;
        $($(#[$doc:meta])* $name:ident = $code:literal;)*
    ) => {
        $(#[$type_doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(u32);

        impl $type {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            /// Every value that has a name, in numeric order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Creates the value with this number.
            pub const fn from_code(code: u32) -> Self {
                Self(code)
            }

            /// Returns the number.
            pub const fn code(self) -> u32 {
                self.0
            }

            /// Returns the name without the prefix of the C header, `None` for a number without a name.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $($code => Some(stringify!($name)),)* _ => None }
            }
        }

        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }

        $(impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, $unnamed, self.code()),
                }
            }
        })?
    };
}
use numbers;

/// Defines a number type like [`numbers`], with the meaning of its values in words. A value without one means `$otherwise`.
macro_rules! meanings {
    (
        $(#[$type_doc:meta])* $type:ident $(displays name or $unnamed:literal)? means $otherwise:literal;
        $($(#[$doc:meta])* $name:ident = $code:literal $(, $meaning:literal)?;)*
    ) => {
        $crate::status::numbers! {
            $(#[$type_doc])*
            $type $(displays name or $unnamed)?;
            $($(#[$doc])* $name = $code;)*
        }

        impl $type {
            /// Returns the meaning in words. Of an event, it is that of one which ends a connection.
            pub(crate) const fn meaning(self) -> &'static str {
                match self.0 { $($($code => $meaning,)?)* _ => $otherwise }
            }
        }
    };
}
use meanings;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $nt:literal;)*) => {
        numbers! {
            /// A NetworkDirect status number.
            ///
            /// The number equals the NTSTATUS with the same meaning. A `Status` can hold numbers without a name. The names are those
            /// of `ndstatus.mc` without their prefix `ND_`.
            Status displays name or "{:#010X}";
            $($(#[$doc])* $name = $code;)*
        }

        impl Status {
            /// Returns the name of the NTSTATUS with the same number and meaning.
            pub const fn nt_name(self) -> Option<&'static str> {
                match self.0 { $($code => Some($nt),)* _ => None }
            }
        }
    };
}

statuses! {
    /// The operation succeeded.
    SUCCESS = 0x0000_0000, "STATUS_SUCCESS";
    /// The connect timed out (NDv1 only). Numerically a success.
    TIMEOUT = 0x0000_0102, "STATUS_TIMEOUT";
    /// The operation has not completed. Numerically a success.
    PENDING = 0x0000_0103, "STATUS_PENDING";
    /// The buffer is too small, or the message is longer than the receive.
    BUFFER_OVERFLOW = 0x8000_0005, "STATUS_BUFFER_OVERFLOW";
    /// The object is in use.
    DEVICE_BUSY = 0x8000_0011, "STATUS_DEVICE_BUSY";
    /// The queue is full.
    NO_MORE_ENTRIES = 0x8000_001A, "STATUS_NO_MORE_ENTRIES";
    /// The operation failed for a reason that has no status.
    UNSUCCESSFUL = 0xC000_0001, "STATUS_UNSUCCESSFUL";
    /// The memory lacks an access right, locally or remotely.
    ACCESS_VIOLATION = 0xC000_0005, "STATUS_ACCESS_VIOLATION";
    /// The handle is not valid.
    INVALID_HANDLE = 0xC000_0008, "STATUS_INVALID_HANDLE";
    /// A parameter is not valid.
    INVALID_PARAMETER = 0xC000_000D, "STATUS_INVALID_PARAMETER";
    /// The request is not valid for the device.
    INVALID_DEVICE_REQUEST = 0xC000_0010, "STATUS_INVALID_DEVICE_REQUEST";
    /// Out of memory.
    NO_MEMORY = 0xC000_0017, "STATUS_NO_MEMORY";
    /// The buffer is too small, and nothing was written (GetConnectionData of NDK only).
    BUFFER_TOO_SMALL = 0xC000_0023, "STATUS_BUFFER_TOO_SMALL";
    /// The parameters contradict each other.
    INVALID_PARAMETER_MIX = 0xC000_0030, "STATUS_INVALID_PARAMETER_MIX";
    /// The request has too many scatter-gather entries, or a local length error occurred.
    DATA_OVERRUN = 0xC000_003C, "STATUS_DATA_OVERRUN";
    /// A send was longer than the peer's receive (some providers).
    DATA_ERROR = 0xC000_003E, "STATUS_DATA_ERROR";
    /// The local address is in use.
    SHARING_VIOLATION = 0xC000_0043, "STATUS_SHARING_VIOLATION";
    /// A resource is exhausted.
    INSUFFICIENT_RESOURCES = 0xC000_009A, "STATUS_INSUFFICIENT_RESOURCES";
    /// The device is not ready.
    DEVICE_NOT_READY = 0xC000_00A3, "STATUS_DEVICE_NOT_READY";
    /// The peer did not respond in time.
    IO_TIMEOUT = 0xC000_00B5, "STATUS_IO_TIMEOUT";
    /// The provider does not support the operation.
    NOT_SUPPORTED = 0xC000_00BB, "STATUS_NOT_SUPPORTED";
    /// The network name does not exist. Some providers return it for an invalid destination.
    BAD_NETWORK_NAME = 0xC000_00CC, "STATUS_BAD_NETWORK_NAME";
    /// The provider failed.
    INTERNAL_ERROR = 0xC000_00E5, "STATUS_INTERNAL_ERROR";
    /// The first parameter is not valid.
    INVALID_PARAMETER_1 = 0xC000_00EF, "STATUS_INVALID_PARAMETER_1";
    /// The second parameter is not valid.
    INVALID_PARAMETER_2 = 0xC000_00F0, "STATUS_INVALID_PARAMETER_2";
    /// The third parameter is not valid.
    INVALID_PARAMETER_3 = 0xC000_00F1, "STATUS_INVALID_PARAMETER_3";
    /// The fourth parameter is not valid.
    INVALID_PARAMETER_4 = 0xC000_00F2, "STATUS_INVALID_PARAMETER_4";
    /// The fifth parameter is not valid.
    INVALID_PARAMETER_5 = 0xC000_00F3, "STATUS_INVALID_PARAMETER_5";
    /// The sixth parameter is not valid.
    INVALID_PARAMETER_6 = 0xC000_00F4, "STATUS_INVALID_PARAMETER_6";
    /// The seventh parameter is not valid.
    INVALID_PARAMETER_7 = 0xC000_00F5, "STATUS_INVALID_PARAMETER_7";
    /// The eighth parameter is not valid.
    INVALID_PARAMETER_8 = 0xC000_00F6, "STATUS_INVALID_PARAMETER_8";
    /// The ninth parameter is not valid.
    INVALID_PARAMETER_9 = 0xC000_00F7, "STATUS_INVALID_PARAMETER_9";
    /// The tenth parameter is not valid.
    INVALID_PARAMETER_10 = 0xC000_00F8, "STATUS_INVALID_PARAMETER_10";
    /// The operation was cancelled, or the request was flushed from its queue.
    CANCELED = 0xC000_0120, "STATUS_CANCELLED";
    /// The peer could not execute the request.
    REMOTE_ERROR = 0xC000_013D, "STATUS_REMOTE_RESOURCES";
    /// The address does not belong to the adapter, or cannot be reached by the adapter.
    INVALID_ADDRESS = 0xC000_0141, "STATUS_INVALID_ADDRESS";
    /// The call is not valid in this state of the object.
    INVALID_DEVICE_STATE = 0xC000_0184, "STATUS_INVALID_DEVICE_STATE";
    /// The length exceeds the adapter's maximum.
    INVALID_BUFFER_SIZE = 0xC000_0206, "STATUS_INVALID_BUFFER_SIZE";
    /// No ephemeral port is left.
    TOO_MANY_ADDRESSES = 0xC000_0209, "STATUS_TOO_MANY_ADDRESSES";
    /// A connection with the same two addresses and ports exists.
    ADDRESS_ALREADY_EXISTS = 0xC000_020A, "STATUS_ADDRESS_ALREADY_EXISTS";
    /// The connection was disconnected (final status of NotifyDisconnect of some providers).
    CONNECTION_DISCONNECTED = 0xC000_020C, "STATUS_CONNECTION_DISCONNECTED";
    /// The peer has no listener, its backlog is full, or it rejected the request.
    CONNECTION_REFUSED = 0xC000_0236, "STATUS_CONNECTION_REFUSED";
    /// The object is already bound.
    ADDRESS_ALREADY_ASSOCIATED = 0xC000_0238, "STATUS_ADDRESS_ALREADY_ASSOCIATED";
    /// The call is not valid in this state of the connection.
    CONNECTION_INVALID = 0xC000_023A, "STATUS_CONNECTION_INVALID";
    /// The object is already connecting or connected.
    CONNECTION_ACTIVE = 0xC000_023B, "STATUS_CONNECTION_ACTIVE";
    /// There is no route to the network.
    NETWORK_UNREACHABLE = 0xC000_023C, "STATUS_NETWORK_UNREACHABLE";
    /// The host does not exist or does not respond.
    HOST_UNREACHABLE = 0xC000_023D, "STATUS_HOST_UNREACHABLE";
    /// The peer closed the connection during the handshake.
    CONNECTION_ABORTED = 0xC000_0241, "STATUS_CONNECTION_ABORTED";
    /// The adapter was removed.
    DEVICE_REMOVED = 0xC000_02B6, "STATUS_DEVICE_REMOVED";
}

/// The meaning of a status for its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StatusClass {
    /// The operation succeeded: [`Status::SUCCESS`] only.
    Success,
    /// The operation has not completed: [`Status::PENDING`], although its number is a success.
    Pending,
    /// The operation failed: [`Status::TIMEOUT`], although its number is a success.
    Timeout,
    /// Any other number of severity 0 or 1. It does not mean success.
    Informational,
    /// Severity 2: the operation failed, and the object can still be used.
    Warning,
    /// Severity 3: the operation failed.
    Error,
}

impl Status {
    /// Creates the status with the number of an NTSTATUS. Windows declares the number signed.
    pub const fn from_ntstatus(ntstatus: i32) -> Self {
        Self(ntstatus.cast_unsigned())
    }

    /// Returns the NTSTATUS with the same number, signed as Windows declares it.
    pub const fn ntstatus(self) -> i32 {
        self.0.cast_signed()
    }

    /// Returns the top two bits: 0 success, 1 information, 2 warning, 3 error.
    pub const fn severity(self) -> u8 {
        // Two bits are left, so nothing is lost.
        (self.0 >> 30) as u8
    }

    /// Returns the meaning of the status. The sign of the number is no substitute: `PENDING` and `TIMEOUT` are
    /// numerically successes.
    pub const fn class(self) -> StatusClass {
        match (self, self.severity()) {
            (Self::SUCCESS, _) => StatusClass::Success,
            (Self::PENDING, _) => StatusClass::Pending,
            (Self::TIMEOUT, _) => StatusClass::Timeout,
            (_, 0 | 1) => StatusClass::Informational,
            (_, 2) => StatusClass::Warning,
            _ => StatusClass::Error,
        }
    }

    /// Returns whether the status is [`SUCCESS`](Self::SUCCESS).
    pub const fn is_success(self) -> bool {
        matches!(self.class(), StatusClass::Success)
    }

    /// Returns the kind of an `io::Error` with this status.
    ///
    /// `CANCELED` is `Other`, not `Interrupted`: the loops of std retry after `Interrupted`, which would never end
    /// here.
    pub fn io_kind(self) -> ErrorKind {
        match self {
            Self::PENDING | Self::NO_MORE_ENTRIES => ErrorKind::WouldBlock,
            Self::TIMEOUT | Self::IO_TIMEOUT => ErrorKind::TimedOut,
            Self::DEVICE_BUSY => ErrorKind::ResourceBusy,
            Self::ACCESS_VIOLATION => ErrorKind::PermissionDenied,
            Self::NO_MEMORY | Self::INSUFFICIENT_RESOURCES => ErrorKind::OutOfMemory,
            Self::NOT_SUPPORTED => ErrorKind::Unsupported,
            Self::DATA_ERROR => ErrorKind::InvalidData,
            Self::CONNECTION_REFUSED => ErrorKind::ConnectionRefused,
            Self::CONNECTION_ABORTED => ErrorKind::ConnectionAborted,
            Self::CONNECTION_DISCONNECTED => ErrorKind::ConnectionReset,
            Self::CONNECTION_INVALID => ErrorKind::NotConnected,
            Self::NETWORK_UNREACHABLE => ErrorKind::NetworkUnreachable,
            Self::HOST_UNREACHABLE => ErrorKind::HostUnreachable,
            Self::SHARING_VIOLATION | Self::ADDRESS_ALREADY_EXISTS => ErrorKind::AddrInUse,
            Self::INVALID_ADDRESS | Self::BAD_NETWORK_NAME | Self::TOO_MANY_ADDRESSES => {
                ErrorKind::AddrNotAvailable
            }
            Self::BUFFER_OVERFLOW
            | Self::BUFFER_TOO_SMALL
            | Self::DATA_OVERRUN
            | Self::INVALID_BUFFER_SIZE
            | Self::INVALID_HANDLE
            | Self::INVALID_PARAMETER
            | Self::INVALID_PARAMETER_MIX
            | Self::INVALID_DEVICE_REQUEST
            | Self::INVALID_DEVICE_STATE
            | Self::ADDRESS_ALREADY_ASSOCIATED => ErrorKind::InvalidInput,
            _ if (Self::INVALID_PARAMETER_1..=Self::INVALID_PARAMETER_10).contains(&self) => {
                ErrorKind::InvalidInput
            }
            _ => ErrorKind::Other,
        }
    }
}

impl From<Status> for u32 {
    fn from(status: Status) -> Self {
        status.code()
    }
}

impl From<u32> for Status {
    fn from(code: u32) -> Self {
        Self::from_code(code)
    }
}

/// Returns the status of an error number, `None` for a number without a specific meaning.
///
/// `EADDRINUSE` and `EADDRNOTAVAIL` have different meanings in bind and connect. They get the meaning of bind; connect
/// must check the number itself.
pub(crate) fn status_of_errno(errno: i32) -> Option<Status> {
    Some(match errno {
        ECONNREFUSED => Status::CONNECTION_REFUSED,
        ENETUNREACH | ENETDOWN => Status::NETWORK_UNREACHABLE,
        EHOSTUNREACH | EHOSTDOWN => Status::HOST_UNREACHABLE,
        ETIMEDOUT => Status::IO_TIMEOUT,
        EADDRINUSE => Status::SHARING_VIOLATION,
        EADDRNOTAVAIL | EAFNOSUPPORT => Status::INVALID_ADDRESS,
        ENOMEM | ENOBUFS | ENOSPC | EMFILE | ENFILE => Status::INSUFFICIENT_RESOURCES,
        EINVAL => Status::INVALID_PARAMETER,
        EMSGSIZE => Status::INVALID_BUFFER_SIZE,
        EBADF => Status::INVALID_HANDLE,
        ENODEV | ENXIO => Status::DEVICE_REMOVED,
        EBUSY => Status::DEVICE_BUSY,
        ENOTCONN => Status::CONNECTION_INVALID,
        EISCONN | EALREADY | EINPROGRESS => Status::CONNECTION_ACTIVE,
        // The three numbers for which std has the kinds `ConnectionReset` and `BrokenPipe`.
        ECONNRESET | EPIPE | ESHUTDOWN => Status::CONNECTION_DISCONNECTED,
        ECONNABORTED => Status::CONNECTION_ABORTED,
        // NetworkDirect has no "permission denied"; its nearest is about rights, though to memory.
        EACCES | EPERM | EFAULT => Status::ACCESS_VIOLATION,
        EOPNOTSUPP | ENOSYS | ENOPROTOOPT | EPROTONOSUPPORT => Status::NOT_SUPPORTED,
        ECANCELED => Status::CANCELED,
        _ => return None,
    })
}
