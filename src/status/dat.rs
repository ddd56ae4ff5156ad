//! The numbers of uDAPL: return values and events.

use std::fmt;

use super::numbers::numbers;

numbers! {
    /// A `DAT_RETURN`: class in the top two bits, type in the next 14, subtype in the low 16.
    ///
    /// The constants are of class error; those of subtypes have the numbers of uDAPL 2.
    DatReturn;
    /// It worked.
    SUCCESS = 0;
    /// The adapter or the dispatcher was closed meanwhile.
    ABORT = 0x8001_0000;
    /// The port (connection qualifier) is in use.
    CONN_QUAL_IN_USE = 0x8002_0000;
    /// Out of some resource.
    INSUFFICIENT_RESOURCES = 0x8003_0000;
    /// The provider failed.
    INTERNAL_ERROR = 0x8004_0000;
    /// A handle is not valid.
    INVALID_HANDLE = 0x8005_0000;
    /// A parameter is not valid.
    INVALID_PARAMETER = 0x8006_0000;
    /// Not in this state.
    INVALID_STATE = 0x8007_0000;
    /// A buffer is shorter than its data.
    LENGTH_ERROR = 0x8008_0000;
    /// Not what this provider offers.
    MODEL_NOT_SUPPORTED = 0x8009_0000;
    /// A right is missing.
    PRIVILEGES_VIOLATION = 0x800B_0000;
    /// The memory belongs to another protection zone.
    PROTECTION_VIOLATION = 0x800C_0000;
    /// Nothing is in the queue.
    QUEUE_EMPTY = 0x800D_0000;
    /// Nothing fits in the queue.
    QUEUE_FULL = 0x800E_0000;
    /// The time is over.
    TIMEOUT_EXPIRED = 0x800F_0000;
    /// The provider is in use.
    PROVIDER_IN_USE = 0x8011_0000;
    /// The address is not valid, or not reachable.
    INVALID_ADDRESS = 0x8012_0000;
    /// A well-formed address of a sort that does not serve.
    INVALID_ADDRESS_UNSUPPORTED = 0x8012_0060;
    /// No route to the address, as is known at once.
    INVALID_ADDRESS_UNREACHABLE = 0x8012_0061;
    /// Not an address at all.
    INVALID_ADDRESS_MALFORMED = 0x8012_0062;
    /// A signal came.
    INTERRUPTED_CALL = 0x8013_0000;
    /// No port is left.
    CONN_QUAL_UNAVAILABLE = 0x8014_0000;
    /// The port is in use, where a port is asked for.
    PORT_IN_USE = 0x8016_0000;
    /// Not a kind of communication that is offered.
    COMM_NOT_SUPPORTED = 0x8017_0000;
    /// The provider lacks the call.
    NOT_IMPLEMENTED = 0xBFFF_0000;
}

impl DatReturn {
    const CLASS: u32 = 0xC000_0000;
    const TYPE: u32 = 0x3FFF_0000;
    const SUBTYPE: u32 = 0x0000_FFFF;

    /// The top two bits in place: 0 success, 0x40000000 warning, 0x80000000 error.
    pub const fn class(self) -> u32 {
        self.0 & Self::CLASS
    }

    /// The type in place, without class and subtype.
    pub const fn kind(self) -> u32 {
        self.0 & Self::TYPE
    }

    /// What it is about more exactly; 0 says no more.
    pub const fn subtype(self) -> u16 {
        // The mask leaves 16 bits.
        (self.0 & Self::SUBTYPE) as u16
    }

    /// The same class and type, and no subtype.
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
    DatEvent;
    /// A work request completed.
    DTO_COMPLETION = 0x0_0001;
    /// A memory window was bound.
    RMR_BIND_COMPLETION = 0x0_1001;
    /// Somebody wants to connect.
    CONNECTION_REQUEST = 0x0_2001;
    /// Connected.
    ESTABLISHED = 0x0_4001;
    /// The peer's application said no.
    PEER_REJECTED = 0x0_4002;
    /// Something else than the peer's application said no.
    NON_PEER_REJECTED = 0x0_4003;
    /// The accept did not come to its end.
    ACCEPT_COMPLETION_ERROR = 0x0_4004;
    /// Disconnected in good order.
    DISCONNECTED = 0x0_4005;
    /// Disconnected in bad order.
    BROKEN = 0x0_4006;
    /// No answer in time.
    TIMED_OUT = 0x0_4007;
    /// No way to the peer.
    UNREACHABLE = 0x0_4008;
    /// Asynchronous: an event dispatcher ran over.
    ASYNC_EVD_OVERFLOW = 0x0_8001;
    /// Asynchronous: the adapter is lost.
    ASYNC_IA_CATASTROPHIC = 0x0_8002;
    /// Asynchronous: an endpoint broke.
    ASYNC_EP_BROKEN = 0x0_8003;
    /// Asynchronous: a time ran out.
    ASYNC_TIMED_OUT = 0x0_8004;
    /// Asynchronous: the provider failed.
    ASYNC_PROVIDER_INTERNAL = 0x0_8005;
    /// Of several paths one is left.
    HA_DOWN_TO_1 = 0x0_8101;
    /// There are several paths again.
    HA_UP_TO_MULTI_PATH = 0x0_8102;
    /// The application posted it.
    SOFTWARE = 0x1_0001;
}

impl fmt::Display for DatEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "DAT event {:#x}", self.code()),
        }
    }
}
