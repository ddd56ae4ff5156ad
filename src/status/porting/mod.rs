//! The vocabularies of other interfaces, for programs that are ported from them: rdma_cm, uDAPL, NetworkDirect 1 and NDK.
//!
//! [`Outcome`] enumerates how an attempt to connect can end, and translates it to each interface and to `std::io`. The other
//! types are the numbers of these interfaces. Each can hold numbers without a name, so that unexpected numbers reach the caller.

use std::fmt;

use super::{meanings, numbers};

mod outcome;

pub use outcome::Outcome;

numbers! {
    /// The number of an rdma_cm event, `rdma_cm_event_type` in `rdma_cma.h`.
    ///
    /// It is not an enum, because newer kernels add events.
    CmEvent displays name or "rdma_cm event {}";
    /// The destination address is resolved, and the id is bound to a device.
    ADDR_RESOLVED = 0;
    /// The destination address cannot be resolved.
    ADDR_ERROR = 1;
    /// A path to the destination is found.
    ROUTE_RESOLVED = 2;
    /// There is no path to the destination.
    ROUTE_ERROR = 3;
    /// A peer sent a connection request. The event has a child id.
    CONNECT_REQUEST = 4;
    /// The peer accepted and waits for the last message. InfiniBand only, and only without a QP in the id.
    CONNECT_RESPONSE = 5;
    /// The attempt failed locally.
    CONNECT_ERROR = 6;
    /// The peer did not respond.
    UNREACHABLE = 7;
    /// The peer or its host rejected the connection.
    REJECTED = 8;
    /// The connection is established.
    ESTABLISHED = 9;
    /// The connection has ended.
    DISCONNECTED = 10;
    /// The device is being removed; the id must be destroyed.
    DEVICE_REMOVAL = 11;
    /// The id joined a multicast group.
    MULTICAST_JOIN = 12;
    /// The id could not join a multicast group, or was removed from it.
    MULTICAST_ERROR = 13;
    /// The hardware address of this side changed.
    ADDR_CHANGE = 14;
    /// The queue pair can be used again.
    TIMEWAIT_EXIT = 15;
}

meanings! {
    /// The reason of a reject by an InfiniBand connection manager: the status of [`CmEvent::REJECTED`].
    IbRejectReason displays name or "reject reason {}" means "for a reason that is not known here";
    /// No queue pair is available.
    NO_QP = 1, "the peer has no queue pair left";
    /// Another resource is not available, for example room in the backlog.
    NO_RESOURCES = 3, "the peer lacks a resource or room in its backlog";
    /// The next message of the handshake did not arrive.
    TIMEOUT = 4, "the handshake took too long";
    /// The message belongs to a connection that does not exist.
    INVALID_COMM_ID = 6, "the peer knows no such connection";
    /// The port has no listener.
    INVALID_SERVICE_ID = 8, "nobody listens at the port";
    /// The peer still has an earlier connection of the same queue pair.
    STALE_CONNECTION = 10, "the peer still has an earlier connection of the queue pair";
    /// The peer redirects to another port.
    PORT_REDIRECT = 24, "the peer redirects to another port";
    /// The peer redirects to another port and another connection manager.
    PORT_CM_REDIRECT = 25, "the peer redirects to another port";
    /// The request needs more reads than the peer serves.
    INSUFFICIENT_RESPONDER_RESOURCES = 27, "the peer serves fewer reads at once";
    /// The application rejected the connection. The private data is the application's.
    CONSUMER_DEFINED = 28, "the application of the peer said no";
    /// A vendor option was rejected.
    VENDOR_OPTION = 35, "a vendor option was rejected";
}

impl IbRejectReason {
    /// Returns the reason in the status of a `REJECTED` event on InfiniBand, `None` for the negative status of iWARP.
    pub const fn from_status(status: i32) -> Option<Self> {
        if status < 0 { None } else { Some(Self(status.cast_unsigned())) }
    }

    /// Returns the status of the `REJECTED` event.
    pub const fn status(self) -> i32 {
        self.0.cast_signed()
    }
}

/// The transport of an rdma_cm event, which determines the meaning of its status.
///
/// RoCE uses InfiniBand's connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmTransport {
    /// InfiniBand and RoCE: the status of a reject is a positive [`IbRejectReason`].
    InfiniBand,
    /// iWARP: the status of a reject is a negative errno.
    Iwarp,
}

/// The phase of an rdma_cm id when an event arrives. The meaning of some events depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmPhase {
    /// The active side, before `ESTABLISHED`.
    Connecting,
    /// The passive side (a child id of a listener), before `ESTABLISHED`.
    Accepting,
    /// Either side, after `ESTABLISHED`.
    Connected,
}

/// A report of rdma_cm that means a certain outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CmSign {
    /// An event. A field that is `None` matches any value.
    Event {
        /// The number of the event.
        event: CmEvent,
        /// The status: a negative errno, or the reason of an InfiniBand reject.
        status: Option<i32>,
        /// The transport.
        transport: Option<CmTransport>,
        /// The phase of the id.
        phase: Option<CmPhase>,
    },
    /// The positive errno of a call.
    Errno(i32),
}

impl CmSign {
    /// Matches the event with any status, on any transport, in any phase.
    const fn any(event: CmEvent) -> Self {
        Self::Event { event, status: None, transport: None, phase: None }
    }

    /// Matches the event with this status, on any transport, in any phase.
    const fn with(event: CmEvent, status: i32) -> Self {
        Self::Event { event, status: Some(status), transport: None, phase: None }
    }

    /// Matches the event with any status, on any transport, in this phase.
    const fn during(phase: CmPhase, event: CmEvent) -> Self {
        Self::Event { event, status: None, transport: None, phase: Some(phase) }
    }

    /// Matches the reject of InfiniBand for this reason.
    const fn reject(reason: IbRejectReason) -> Self {
        Self::Event {
            event: CmEvent::REJECTED,
            status: Some(reason.status()),
            transport: Some(CmTransport::InfiniBand),
            phase: None,
        }
    }

    /// Matches the reject of iWARP with this errno.
    const fn iwarp_reject(errno: i32) -> Self {
        Self::Event {
            event: CmEvent::REJECTED,
            status: Some(-errno),
            transport: Some(CmTransport::Iwarp),
            phase: Some(CmPhase::Connecting),
        }
    }

    /// Returns `None` if an event does not match, `Some(true)` if its status is part of the match.
    fn fit(self, of: CmEvent, with: i32, on: CmTransport, during: CmPhase) -> Option<bool> {
        let Self::Event { event, status, transport, phase } = self else { return None };
        let fits = event == of
            && status.is_none_or(|status| status == with)
            && transport.is_none_or(|transport| transport == on)
            && phase.is_none_or(|phase| phase == during);
        fits.then_some(status.is_some())
    }
}

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
