//! The status vocabulary: one set of outcomes, and the numbers that each interface has for them.
//!
//! [`Status`] is NetworkDirect's number, equal to its NTSTATUS twin. [`Outcome`] names how an attempt to
//! connect can end and holds the one table that translates it to NDv1, uDAPL, rdma_cm and `std::io`.
//! Every number type carries what it does not know, so that a provider's surprise reaches the caller.

use std::fmt;
use std::io::ErrorKind;

mod cm;
mod dat;
mod errno;
mod numbers;
mod outcome;

pub use cm::{CmEvent, CmPhase, CmSign, CmTransport, IbRejectReason};
pub use dat::{DatEvent, DatReturn};
pub(crate) use errno::status_of_errno;
pub use outcome::Outcome;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $nt:literal;)*) => {
        /// A NetworkDirect status: a number, with a name when it is one we know.
        ///
        /// Unknown numbers are carried, never swallowed. Numbers equal those of the NTSTATUS twin.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct Status(u32);

        impl Status {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            /// Every status that has a name, in numeric order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The name in `ndstatus.mc` without its `ND_` prefix; `None` for a number that has none.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $($code => Some(stringify!($name)),)* _ => None }
            }

            /// The name of the NTSTATUS with the same number and meaning.
            pub const fn nt_name(self) -> Option<&'static str> {
                match self.0 { $($code => Some($nt),)* _ => None }
            }
        }
    };
}

statuses! {
    /// The operation succeeded.
    SUCCESS = 0x0000_0000, "STATUS_SUCCESS";
    /// NDv1's connect timeout; numerically a success.
    TIMEOUT = 0x0000_0102, "STATUS_TIMEOUT";
    /// Not finished yet; numerically a success.
    PENDING = 0x0000_0103, "STATUS_PENDING";
    /// The buffer was too small, or a message longer than its receive.
    BUFFER_OVERFLOW = 0x8000_0005, "STATUS_BUFFER_OVERFLOW";
    /// Something still uses the object.
    DEVICE_BUSY = 0x8000_0011, "STATUS_DEVICE_BUSY";
    /// The queue is full.
    NO_MORE_ENTRIES = 0x8000_001A, "STATUS_NO_MORE_ENTRIES";
    /// It failed, for no listed reason.
    UNSUCCESSFUL = 0xC000_0001, "STATUS_UNSUCCESSFUL";
    /// Memory or rights violation, local or remote.
    ACCESS_VIOLATION = 0xC000_0005, "STATUS_ACCESS_VIOLATION";
    /// The handle is not valid.
    INVALID_HANDLE = 0xC000_0008, "STATUS_INVALID_HANDLE";
    /// A parameter is not valid.
    INVALID_PARAMETER = 0xC000_000D, "STATUS_INVALID_PARAMETER";
    /// The request is not valid for the device.
    INVALID_DEVICE_REQUEST = 0xC000_0010, "STATUS_INVALID_DEVICE_REQUEST";
    /// Out of memory.
    NO_MEMORY = 0xC000_0017, "STATUS_NO_MEMORY";
    /// The buffer is too small and nothing was written; NDK's GetConnectionData only.
    BUFFER_TOO_SMALL = 0xC000_0023, "STATUS_BUFFER_TOO_SMALL";
    /// The parameters contradict each other.
    INVALID_PARAMETER_MIX = 0xC000_0030, "STATUS_INVALID_PARAMETER_MIX";
    /// Too many scatter-gather entries, or a local length error.
    DATA_OVERRUN = 0xC000_003C, "STATUS_DATA_OVERRUN";
    /// Some providers' status of a send that was longer than the peer's receive.
    DATA_ERROR = 0xC000_003E, "STATUS_DATA_ERROR";
    /// The local address is in use.
    SHARING_VIOLATION = 0xC000_0043, "STATUS_SHARING_VIOLATION";
    /// Out of some resource.
    INSUFFICIENT_RESOURCES = 0xC000_009A, "STATUS_INSUFFICIENT_RESOURCES";
    /// The device is not ready.
    DEVICE_NOT_READY = 0xC000_00A3, "STATUS_DEVICE_NOT_READY";
    /// No answer in time.
    IO_TIMEOUT = 0xC000_00B5, "STATUS_IO_TIMEOUT";
    /// Not offered here.
    NOT_SUPPORTED = 0xC000_00BB, "STATUS_NOT_SUPPORTED";
    /// No such network name; some providers answer an invalid destination so.
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
    /// Cancelled, or flushed from its queue.
    CANCELED = 0xC000_0120, "STATUS_CANCELLED";
    /// The peer could not carry out the request.
    REMOTE_ERROR = 0xC000_013D, "STATUS_REMOTE_RESOURCES";
    /// The address is not valid here.
    INVALID_ADDRESS = 0xC000_0141, "STATUS_INVALID_ADDRESS";
    /// The object is in the wrong state.
    INVALID_DEVICE_STATE = 0xC000_0184, "STATUS_INVALID_DEVICE_STATE";
    /// The length exceeds the limit of the adapter.
    INVALID_BUFFER_SIZE = 0xC000_0206, "STATUS_INVALID_BUFFER_SIZE";
    /// No ephemeral port is left.
    TOO_MANY_ADDRESSES = 0xC000_0209, "STATUS_TOO_MANY_ADDRESSES";
    /// A connection with the same two addresses and ports exists.
    ADDRESS_ALREADY_EXISTS = 0xC000_020A, "STATUS_ADDRESS_ALREADY_EXISTS";
    /// Some providers' final status of NotifyDisconnect.
    CONNECTION_DISCONNECTED = 0xC000_020C, "STATUS_CONNECTION_DISCONNECTED";
    /// No listener, backlog full, or rejected.
    CONNECTION_REFUSED = 0xC000_0236, "STATUS_CONNECTION_REFUSED";
    /// Already bound.
    ADDRESS_ALREADY_ASSOCIATED = 0xC000_0238, "STATUS_ADDRESS_ALREADY_ASSOCIATED";
    /// The connection is not in the state that the call needs.
    CONNECTION_INVALID = 0xC000_023A, "STATUS_CONNECTION_INVALID";
    /// Already connecting or connected.
    CONNECTION_ACTIVE = 0xC000_023B, "STATUS_CONNECTION_ACTIVE";
    /// No route to the network.
    NETWORK_UNREACHABLE = 0xC000_023C, "STATUS_NETWORK_UNREACHABLE";
    /// No such host, or it does not answer.
    HOST_UNREACHABLE = 0xC000_023D, "STATUS_HOST_UNREACHABLE";
    /// The peer abandoned the attempt.
    CONNECTION_ABORTED = 0xC000_0241, "STATUS_CONNECTION_ABORTED";
    /// The adapter was removed.
    DEVICE_REMOVED = 0xC000_02B6, "STATUS_DEVICE_REMOVED";
}

/// What a status says about its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StatusClass {
    /// Finished, and well: [`Status::SUCCESS`] and nothing else.
    Success,
    /// Not finished: [`Status::PENDING`], though its number is a success.
    Pending,
    /// Finished in vain: [`Status::TIMEOUT`], though its number is a success.
    Timeout,
    /// Any other number that is a success or an information. It has no meaning here; do not take it for one.
    Informational,
    /// Severity 2: the operation failed, the object did not.
    Warning,
    /// Severity 3.
    Error,
}

impl Status {
    /// The status with this number, known or not.
    pub const fn from_code(code: u32) -> Self {
        Self(code)
    }

    /// The number.
    pub const fn code(self) -> u32 {
        self.0
    }

    /// The status that equals this NTSTATUS. Windows declares the number signed.
    pub const fn from_ntstatus(ntstatus: i32) -> Self {
        Self(ntstatus.cast_unsigned())
    }

    /// The NTSTATUS of the same number, signed as Windows declares it.
    pub const fn ntstatus(self) -> i32 {
        self.0.cast_signed()
    }

    /// The top two bits: 0 success, 1 information, 2 warning, 3 error.
    pub const fn severity(self) -> u8 {
        // Two bits are left, so nothing is lost.
        (self.0 >> 30) as u8
    }

    /// What the status says. Use this, not the sign: two failures to finish have the number of a success.
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

    /// Whether the operation finished well, which only [`SUCCESS`](Self::SUCCESS) says.
    pub const fn is_success(self) -> bool {
        matches!(self.class(), StatusClass::Success)
    }

    /// The kind that an `io::Error` with this status has.
    ///
    /// `CANCELED` is `Other`, not `Interrupted`: std's loops retry the latter, and here that never ends.
    pub fn io_kind(self) -> ErrorKind {
        match self {
            Self::PENDING | Self::NO_MORE_ENTRIES => ErrorKind::WouldBlock,
            Self::TIMEOUT => ErrorKind::TimedOut,
            Self::DEVICE_BUSY => ErrorKind::ResourceBusy,
            Self::ACCESS_VIOLATION => ErrorKind::PermissionDenied,
            Self::NO_MEMORY => ErrorKind::OutOfMemory,
            Self::NOT_SUPPORTED => ErrorKind::Unsupported,
            Self::DATA_ERROR => ErrorKind::InvalidData,
            Self::BUFFER_OVERFLOW
            | Self::BUFFER_TOO_SMALL
            | Self::DATA_OVERRUN
            | Self::INVALID_HANDLE
            | Self::INVALID_PARAMETER
            | Self::INVALID_PARAMETER_MIX
            | Self::INVALID_DEVICE_REQUEST
            | Self::INVALID_DEVICE_STATE => ErrorKind::InvalidInput,
            _ if (Self::INVALID_PARAMETER_1..=Self::INVALID_PARAMETER_10).contains(&self) => {
                ErrorKind::InvalidInput
            }
            // How a connection fares is in the table of outcomes, and only there.
            _ => Outcome::kind_of_status(self).unwrap_or(ErrorKind::Other),
        }
    }

    /// The status of an rdma_cm event on an id in `phase`, where [`Outcome::from_cm_in`] may not be able to
    /// tell which outcome it is: an iWARP `REJECTED` is `CONNECTION_REFUSED`, whoever refused.
    pub fn from_cm(phase: CmPhase, event: CmEvent, status: i32, transport: CmTransport) -> Option<Self> {
        Outcome::status_from_cm(phase, event, status, transport)
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

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#010X}", self.0),
        }
    }
}
