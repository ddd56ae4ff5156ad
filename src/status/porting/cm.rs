//! The reports of rdma_cm: events with a status, and error numbers of calls.

use crate::status::{meanings, numbers};

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
    pub(super) const fn any(event: CmEvent) -> Self {
        Self::Event { event, status: None, transport: None, phase: None }
    }

    /// Matches the event with this status, on any transport, in any phase.
    pub(super) const fn with(event: CmEvent, status: i32) -> Self {
        Self::Event { event, status: Some(status), transport: None, phase: None }
    }

    /// Matches the event with any status, on any transport, in this phase.
    pub(super) const fn during(phase: CmPhase, event: CmEvent) -> Self {
        Self::Event { event, status: None, transport: None, phase: Some(phase) }
    }

    /// Matches the reject of InfiniBand for this reason.
    pub(super) const fn reject(reason: IbRejectReason) -> Self {
        Self::Event {
            event: CmEvent::REJECTED,
            status: Some(reason.status()),
            transport: Some(CmTransport::InfiniBand),
            phase: None,
        }
    }

    /// Matches the reject of iWARP with this errno.
    pub(super) const fn iwarp_reject(errno: i32) -> Self {
        Self::Event {
            event: CmEvent::REJECTED,
            status: Some(-errno),
            transport: Some(CmTransport::Iwarp),
            phase: Some(CmPhase::Connecting),
        }
    }

    /// Returns `None` if an event does not match, `Some(true)` if its status is part of the match.
    pub(super) fn fit(self, of: CmEvent, with: i32, on: CmTransport, during: CmPhase) -> Option<bool> {
        let Self::Event { event, status, transport, phase } = self else { return None };
        let fits = event == of
            && status.is_none_or(|status| status == with)
            && transport.is_none_or(|transport| transport == on)
            && phase.is_none_or(|phase| phase == during);
        fits.then_some(status.is_some())
    }
}
