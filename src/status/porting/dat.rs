//! The numbers of uDAPL: return values and events.

use std::fmt;

use crate::status::numbers;

numbers! {
    /// A `DAT_RETURN`: class in the top two bits, type in the next 14, subtype in the low 16.
    ///
    /// Except for `SUCCESS`, the constants are of class error. Subtypes have the numbers of uDAPL 2.
    DatReturn;
    /// The call succeeded.
    SUCCESS = 0;
    /// The adapter or the event dispatcher was closed during the call.
    ABORT = 0x8001_0000;
    /// The port (connection qualifier) is in use.
    CONN_QUAL_IN_USE = 0x8002_0000;
    /// A resource is exhausted.
    INSUFFICIENT_RESOURCES = 0x8003_0000;
    /// The provider failed.
    INTERNAL_ERROR = 0x8004_0000;
    /// A handle is not valid.
    INVALID_HANDLE = 0x8005_0000;
    /// A parameter is not valid.
    INVALID_PARAMETER = 0x8006_0000;
    /// The call is not valid in this state.
    INVALID_STATE = 0x8007_0000;
    /// A buffer is shorter than its data.
    LENGTH_ERROR = 0x8008_0000;
    /// The provider does not support the model.
    MODEL_NOT_SUPPORTED = 0x8009_0000;
    /// The memory lacks an access right.
    PRIVILEGES_VIOLATION = 0x800B_0000;
    /// The memory belongs to another protection zone.
    PROTECTION_VIOLATION = 0x800C_0000;
    /// The queue is empty.
    QUEUE_EMPTY = 0x800D_0000;
    /// The queue is full.
    QUEUE_FULL = 0x800E_0000;
    /// The timeout expired.
    TIMEOUT_EXPIRED = 0x800F_0000;
    /// The provider is in use.
    PROVIDER_IN_USE = 0x8011_0000;
    /// The address is not valid, or not reachable.
    INVALID_ADDRESS = 0x8012_0000;
    /// The address is well-formed, but of an unsupported kind.
    INVALID_ADDRESS_UNSUPPORTED = 0x8012_0060;
    /// There is no route to the address. The call returns it immediately.
    INVALID_ADDRESS_UNREACHABLE = 0x8012_0061;
    /// The address is malformed.
    INVALID_ADDRESS_MALFORMED = 0x8012_0062;
    /// A signal interrupted the call.
    INTERRUPTED_CALL = 0x8013_0000;
    /// No port is left.
    CONN_QUAL_UNAVAILABLE = 0x8014_0000;
    /// The requested port is in use.
    PORT_IN_USE = 0x8016_0000;
    /// The kind of communication is not supported.
    COMM_NOT_SUPPORTED = 0x8017_0000;
    /// The provider does not implement the call.
    NOT_IMPLEMENTED = 0xBFFF_0000;
}

impl DatReturn {
    const CLASS: u32 = 0xC000_0000;
    const TYPE: u32 = 0x3FFF_0000;
    const SUBTYPE: u32 = 0x0000_FFFF;

    /// Returns the top two bits, not shifted: 0 success, 0x40000000 warning, 0x80000000 error.
    pub const fn class(self) -> u32 {
        self.0 & Self::CLASS
    }

    /// Returns the type, not shifted.
    pub const fn kind(self) -> u32 {
        self.0 & Self::TYPE
    }

    /// Returns the subtype, 0 for none.
    pub const fn subtype(self) -> u16 {
        // The mask leaves 16 bits.
        (self.0 & Self::SUBTYPE) as u16
    }

    /// Returns the value with the same class and type and without a subtype.
    #[must_use]
    pub const fn without_subtype(self) -> Self {
        Self(self.0 & !Self::SUBTYPE)
    }
}

impl fmt::Display for DatReturn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self.without_subtype().name()) {
            (Some(name), _) => f.write_str(name),
            // A subtype we have no name for still has the name of its type, unless the type is "success".
            (None, Some(name)) if self.kind() != 0 => write!(f, "{name}({:#x})", self.subtype()),
            _ => write!(f, "{:#010X}", self.code()),
        }
    }
}

numbers! {
    /// A `DAT_EVENT_NUMBER`.
    DatEvent displays name or "DAT event {:#x}";
    /// A work request completed.
    DTO_COMPLETION = 0x0_0001;
    /// A memory window was bound.
    RMR_BIND_COMPLETION = 0x0_1001;
    /// A peer sent a connection request.
    CONNECTION_REQUEST = 0x0_2001;
    /// The connection is established.
    ESTABLISHED = 0x0_4001;
    /// The peer's application rejected the connection.
    PEER_REJECTED = 0x0_4002;
    /// The connection was rejected, but not by the peer's application.
    NON_PEER_REJECTED = 0x0_4003;
    /// The accept failed.
    ACCEPT_COMPLETION_ERROR = 0x0_4004;
    /// The connection was disconnected in order.
    DISCONNECTED = 0x0_4005;
    /// The connection was lost.
    BROKEN = 0x0_4006;
    /// The peer did not respond in time.
    TIMED_OUT = 0x0_4007;
    /// The peer is unreachable.
    UNREACHABLE = 0x0_4008;
    /// Asynchronous: an event dispatcher overran.
    ASYNC_EVD_OVERFLOW = 0x0_8001;
    /// Asynchronous: the adapter is lost.
    ASYNC_IA_CATASTROPHIC = 0x0_8002;
    /// Asynchronous: an endpoint broke.
    ASYNC_EP_BROKEN = 0x0_8003;
    /// Asynchronous: a timeout expired.
    ASYNC_TIMED_OUT = 0x0_8004;
    /// Asynchronous: the provider failed.
    ASYNC_PROVIDER_INTERNAL = 0x0_8005;
    /// Only one of several paths is left.
    HA_DOWN_TO_1 = 0x0_8101;
    /// Several paths are available again.
    HA_UP_TO_MULTI_PATH = 0x0_8102;
    /// The application posted the event.
    SOFTWARE = 0x1_0001;
}
