//! What rdma_cm reports: events with a status, and error numbers of calls.

use std::fmt;

use super::numbers::numbers;

numbers! {
    /// An event of an rdma_cm id, `rdma_cm_event_type` in `rdma_cma.h`.
    ///
    /// A number and not an enum, since newer kernels add events.
    CmEvent;
    /// The destination has an address, and the id a device.
    ADDR_RESOLVED = 0;
    /// It has none.
    ADDR_ERROR = 1;
    /// There is a path to the destination.
    ROUTE_RESOLVED = 2;
    /// There is none.
    ROUTE_ERROR = 3;
    /// Somebody wants to connect; the event brings a child id.
    CONNECT_REQUEST = 4;
    /// The peer accepted, and waits for the last message. InfiniBand only, and only without a QP in the id.
    CONNECT_RESPONSE = 5;
    /// The attempt failed locally.
    CONNECT_ERROR = 6;
    /// The peer did not answer.
    UNREACHABLE = 7;
    /// The peer, or its machine, said no.
    REJECTED = 8;
    /// Connected.
    ESTABLISHED = 9;
    /// No longer connected.
    DISCONNECTED = 10;
    /// The device goes away; the id must be destroyed.
    DEVICE_REMOVAL = 11;
    /// Joined a multicast group.
    MULTICAST_JOIN = 12;
    /// Did not join, or was thrown out.
    MULTICAST_ERROR = 13;
    /// The hardware address of this end changed.
    ADDR_CHANGE = 14;
    /// The queue pair may be used again.
    TIMEWAIT_EXIT = 15;
}

impl fmt::Display for CmEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "rdma_cm event {}", self.code()),
        }
    }
}

numbers! {
    /// Why an InfiniBand connection manager rejected: the status of [`CmEvent::REJECTED`].
    IbRejectReason;
    /// No queue pair left.
    NO_QP = 1;
    /// Some other resource is missing, a backlog for one.
    NO_RESOURCES = 3;
    /// The next message of the handshake did not come.
    TIMEOUT = 4;
    /// A message for a connection that is not there.
    INVALID_COMM_ID = 6;
    /// Nobody listens.
    INVALID_SERVICE_ID = 8;
    /// An earlier connection of the same queue pair is not forgotten yet.
    STALE_CONNECTION = 10;
    /// Try another port.
    PORT_REDIRECT = 24;
    /// Try another port and another connection manager.
    PORT_CM_REDIRECT = 25;
    /// More reads asked for than the peer serves.
    INSUFFICIENT_RESPONDER_RESOURCES = 27;
    /// The application said no; private data is its own.
    CONSUMER_DEFINED = 28;
    /// A vendor's option was refused.
    VENDOR_OPTION = 35;
}

impl IbRejectReason {
    /// The reason in the status of a `REJECTED` event on InfiniBand; `None` for the negative status of iWARP.
    pub const fn from_status(status: i32) -> Option<Self> {
        if status < 0 { None } else { Some(Self(status.cast_unsigned())) }
    }

    /// The status of the `REJECTED` event.
    pub const fn status(self) -> i32 {
        self.0.cast_signed()
    }
}

impl fmt::Display for IbRejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "reject reason {}", self.code()),
        }
    }
}

/// Whose numbers the status of an event has. RoCE uses InfiniBand's connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmTransport {
    /// InfiniBand and RoCE: a reject has a positive [`IbRejectReason`].
    InfiniBand,
    /// iWARP: a reject has a negative errno.
    Iwarp,
}

/// What an id was about when the event came, for events that mean different things at different times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmPhase {
    /// Resolving or connecting, on the active side.
    Connecting,
    /// A child id of a listener, before `ESTABLISHED`.
    Accepting,
    /// Either side, after `ESTABLISHED`.
    Connected,
}

/// One way in which rdma_cm tells an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CmSign {
    /// An event. `None` in a field: whatever it is.
    Event {
        /// Which.
        event: CmEvent,
        /// Its status: a negative errno, or a reason when InfiniBand rejects.
        status: Option<i32>,
        /// On which transport it means this.
        transport: Option<CmTransport>,
        /// When it means this.
        phase: Option<CmPhase>,
    },
    /// The errno of the call, positive.
    Errno(i32),
}

impl CmSign {
    /// The event with any status, on any transport, at any time.
    pub(super) const fn any(event: CmEvent) -> Self {
        Self::Event { event, status: None, transport: None, phase: None }
    }

    /// The event with this status, on any transport, at any time.
    pub(super) const fn with(event: CmEvent, status: i32) -> Self {
        Self::Event { event, status: Some(status), transport: None, phase: None }
    }

    /// The event with any status, on any transport, in this phase.
    pub(super) const fn during(phase: CmPhase, event: CmEvent) -> Self {
        Self::Event { event, status: None, transport: None, phase: Some(phase) }
    }

    /// InfiniBand's reject for this reason.
    pub(super) const fn reject(reason: IbRejectReason) -> Self {
        Self::Event {
            event: CmEvent::REJECTED,
            status: Some(reason.status()),
            transport: Some(CmTransport::InfiniBand),
            phase: None,
        }
    }

    /// iWARP's reject with this errno.
    pub(super) const fn iwarp_reject(errno: i32) -> Self {
        Self::Event {
            event: CmEvent::REJECTED,
            status: Some(-errno),
            transport: Some(CmTransport::Iwarp),
            phase: Some(CmPhase::Connecting),
        }
    }

    /// How well an event fits: `None` not at all, `Some(true)` by its very status.
    pub(super) fn fit(self, of: CmEvent, with: i32, on: CmTransport, during: CmPhase) -> Option<bool> {
        let Self::Event { event, status, transport, phase } = self else { return None };
        let fits = event == of
            && status.is_none_or(|status| status == with)
            && transport.is_none_or(|transport| transport == on)
            && phase.is_none_or(|phase| phase == during);
        fits.then_some(status.is_some())
    }
}
