//! The outcomes of an attempt to connect, in the vocabulary of each interface.

use std::io::ErrorKind;

use libc::{
    EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, ECONNREFUSED, ECONNRESET, EHOSTUNREACH, EINVAL, EISCONN,
    ENETUNREACH, ENODEV, ENOMEM, ENOPROTOOPT, ENOSPC, ENOSYS, ENOTCONN, EOPNOTSUPP, ETIMEDOUT,
};

use self::Variant::{Absent, Other};
use super::{CmEvent, CmPhase, CmSign, CmTransport, DatEvent, DatReturn, IbRejectReason};
use crate::status::Status;

/// The status of an outcome in NetworkDirect 1 or NDK, relative to that of NetworkDirect 2.
#[derive(Clone, Copy)]
enum Variant {
    /// The same status.
    Same,
    /// Another status.
    Other(Status),
    /// No status: the interface does not report the outcome.
    Absent,
}

/// A row of the table. The first element of a list is the value to report; the others are also recognized.
struct Row {
    status: &'static [Status],
    nt: Variant,
    nd1: Variant,
    dat_events: &'static [DatEvent],
    dat_returns: &'static [DatReturn],
    cm: &'static [CmSign],
}

impl Row {
    /// The defaults for what a row does not mention.
    const DEFAULT: Self = Self {
        status: &[],
        nt: Variant::Same,
        nd1: Variant::Same,
        dat_events: &[],
        dat_returns: &[],
        cm: &[],
    };

    /// Returns the status to report. Every row has one; the test of the table checks it.
    fn status(&self) -> Status {
        self.status.first().copied().unwrap_or(Status::UNSUCCESSFUL)
    }

    /// Returns the status of another generation of the interface.
    fn variant(&self, variant: Variant) -> Option<Status> {
        match variant {
            Variant::Same => Some(self.status()),
            Other(status) => Some(status),
            Absent => None,
        }
    }
}

macro_rules! outcomes {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $value:expr,)* })*) => {
        /// The outcome of an attempt to connect, or of a connection.
        ///
        /// One table translates an outcome to the value of each interface and back. A value is translated back only if
        /// it belongs to exactly one outcome: several outcomes share `CONNECTION_REFUSED`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Outcome {
            $($(#[$doc])* $name,)*
        }

        impl Outcome {
            /// Every outcome, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            fn row(self) -> &'static Row {
                match self {
                    $(Self::$name => const { &Row { $($field: $value,)* ..Row::DEFAULT } },)*
                }
            }
        }
    };
}

outcomes! {
    /// The connection is established.
    Established {
        status: &[Status::SUCCESS],
        dat_events: &[DatEvent::ESTABLISHED],
        cm: &[CmSign::with(CmEvent::ESTABLISHED, 0), CmSign::with(CmEvent::CONNECT_RESPONSE, 0)],
    }
    /// The peer has no listener at this port.
    NoListener {
        status: &[Status::CONNECTION_REFUSED],
        dat_events: &[DatEvent::NON_PEER_REJECTED],
        cm: &[
            CmSign::reject(IbRejectReason::INVALID_SERVICE_ID),
            CmSign::iwarp_reject(ECONNREFUSED),
            // A driver that connects its TCP inside the call, as siw does, reports this.
            CmSign::Errno(ECONNREFUSED),
        ],
    }
    /// The peer's application rejected the connection.
    PeerRejected {
        status: &[Status::CONNECTION_REFUSED],
        dat_events: &[DatEvent::PEER_REJECTED],
        cm: &[
            CmSign::reject(IbRejectReason::CONSUMER_DEFINED),
            CmSign::iwarp_reject(ECONNREFUSED),
            CmSign::iwarp_reject(ECONNRESET),
        ],
    }
    /// The peer's backlog is full, it lacks a resource, or its host rejected for a reason not listed here.
    PeerUnable {
        status: &[Status::CONNECTION_REFUSED],
        dat_events: &[DatEvent::NON_PEER_REJECTED],
        cm: &[
            CmSign::reject(IbRejectReason::NO_RESOURCES),
            CmSign::reject(IbRejectReason::NO_QP),
            // The standard has more reasons than this table; all of them are rejects.
            CmSign::Event {
                event: CmEvent::REJECTED,
                status: None,
                transport: Some(CmTransport::InfiniBand),
                phase: Some(CmPhase::Connecting),
            },
        ],
    }
    /// The peer still has an earlier connection of this queue pair. Another attempt may succeed.
    StaleConnection {
        status: &[Status::CONNECTION_REFUSED],
        nt: Absent,
        nd1: Absent,
        dat_events: &[DatEvent::NON_PEER_REJECTED],
        cm: &[CmSign::reject(IbRejectReason::STALE_CONNECTION)],
    }
    /// There is no route to the network.
    NetworkUnreachable {
        status: &[Status::NETWORK_UNREACHABLE],
        nd1: Other(Status::HOST_UNREACHABLE),
        dat_events: &[DatEvent::UNREACHABLE],
        dat_returns: &[DatReturn::INVALID_ADDRESS_UNREACHABLE],
        // The event of a failed resolution has the errno that the call would have returned.
        cm: &[CmSign::Errno(ENETUNREACH), CmSign::with(CmEvent::ADDR_ERROR, -ENETUNREACH)],
    }
    /// The host does not exist, or there is no path to it.
    HostUnreachable {
        status: &[Status::HOST_UNREACHABLE],
        dat_events: &[DatEvent::UNREACHABLE],
        cm: &[
            CmSign::with(CmEvent::ADDR_ERROR, -EHOSTUNREACH),
            CmSign::with(CmEvent::ADDR_ERROR, -ETIMEDOUT),
            CmSign::any(CmEvent::ROUTE_ERROR),
            CmSign::Errno(EHOSTUNREACH),
        ],
    }
    /// The host does not respond.
    NoAnswer {
        status: &[Status::IO_TIMEOUT],
        nd1: Other(Status::TIMEOUT),
        dat_events: &[DatEvent::TIMED_OUT],
        dat_returns: &[DatReturn::TIMEOUT_EXPIRED],
        cm: &[
            CmSign::Event {
                event: CmEvent::UNREACHABLE,
                status: Some(-ETIMEDOUT),
                transport: None,
                phase: Some(CmPhase::Connecting),
            },
            // A driver that connects its TCP inside the call, as siw does, reports this.
            CmSign::Errno(ETIMEDOUT),
        ],
    }
    /// The adapter cannot bind or reach the address.
    AddressInvalid {
        status: &[Status::INVALID_ADDRESS, Status::BAD_NETWORK_NAME],
        dat_returns: &[DatReturn::INVALID_ADDRESS_MALFORMED, DatReturn::INVALID_ADDRESS_UNSUPPORTED],
        cm: &[
            CmSign::Errno(EADDRNOTAVAIL),
            CmSign::Errno(EINVAL),
            CmSign::Errno(EAFNOSUPPORT),
            CmSign::Errno(ENODEV),
            CmSign::with(CmEvent::ADDR_ERROR, -ENODEV),
        ],
    }
    /// The local port is in use.
    PortInUse {
        status: &[Status::SHARING_VIOLATION],
        nd1: Other(Status::ADDRESS_ALREADY_EXISTS),
        dat_returns: &[DatReturn::CONN_QUAL_IN_USE],
        cm: &[CmSign::Errno(EADDRINUSE)],
    }
    /// No ephemeral port is left.
    PortsExhausted {
        status: &[Status::TOO_MANY_ADDRESSES],
        dat_returns: &[DatReturn::CONN_QUAL_UNAVAILABLE],
        cm: &[CmSign::Errno(EADDRNOTAVAIL)],
    }
    /// A connection with the same two addresses and ports exists.
    ConnectionExists {
        status: &[Status::ADDRESS_ALREADY_EXISTS],
        nd1: Absent,
        dat_returns: &[DatReturn::PORT_IN_USE],
        cm: &[CmSign::Errno(EADDRNOTAVAIL), CmSign::Errno(EADDRINUSE)],
    }
    /// The connector or listener is already bound.
    AlreadyBound {
        status: &[Status::ADDRESS_ALREADY_ASSOCIATED],
        nd1: Absent,
        dat_returns: &[DatReturn::INVALID_STATE],
        cm: &[CmSign::Errno(EINVAL)],
    }
    /// The queue pair is connecting or connected.
    QueuePairBusy {
        status: &[Status::CONNECTION_ACTIVE],
        nt: Absent,
        dat_returns: &[DatReturn::INVALID_STATE],
        cm: &[CmSign::Errno(EISCONN), CmSign::Errno(EINVAL)],
    }
    /// The call is not valid in this state of the connection.
    WrongMoment {
        status: &[Status::CONNECTION_INVALID, Status::INVALID_DEVICE_STATE],
        dat_returns: &[DatReturn::INVALID_STATE],
        cm: &[CmSign::Errno(ENOTCONN), CmSign::Errno(EINVAL)],
    }
    /// The active side closed the connection while this side was accepting.
    PeerGaveUp {
        // ND's documentation has the first, its tests expect the second.
        status: &[Status::CONNECTION_ABORTED, Status::CONNECTION_REFUSED],
        dat_events: &[DatEvent::ACCEPT_COMPLETION_ERROR],
        cm: &[
            CmSign::during(CmPhase::Accepting, CmEvent::REJECTED),
            CmSign::during(CmPhase::Accepting, CmEvent::UNREACHABLE),
            CmSign::during(CmPhase::Accepting, CmEvent::CONNECT_ERROR),
        ],
    }
    /// The peer closed the connection after it had accepted, while this side was connecting. The events of rdma_cm for it are those
    /// of other outcomes, a refusal and a disconnect.
    PeerLeft {
        status: &[Status::CONNECTION_ABORTED],
        // The event of the active side for every reason that has none of its own.
        dat_events: &[DatEvent::NON_PEER_REJECTED],
    }
    /// The private data exceeds the adapter's maximum.
    PrivateDataTooLarge {
        status: &[Status::INVALID_BUFFER_SIZE],
        nt: Other(Status::INVALID_PARAMETER),
        nd1: Other(Status::BUFFER_OVERFLOW),
        dat_returns: &[DatReturn::INVALID_PARAMETER, DatReturn::LENGTH_ERROR],
        cm: &[CmSign::Errno(EINVAL)],
    }
    /// This side cancelled the attempt. rdma_cm reports nothing, because its id is destroyed.
    Canceled {
        status: &[Status::CANCELED],
        dat_events: &[DatEvent::DISCONNECTED],
        dat_returns: &[DatReturn::ABORT],
    }
    /// The adapter was removed.
    DeviceRemoved {
        status: &[Status::DEVICE_REMOVED],
        nt: Absent,
        dat_events: &[DatEvent::ASYNC_IA_CATASTROPHIC],
        cm: &[CmSign::any(CmEvent::DEVICE_REMOVAL), CmSign::Errno(ENODEV)],
    }
    /// The peer disconnected in order. NotifyDisconnect succeeds.
    PeerDisconnected {
        status: &[Status::SUCCESS, Status::CONNECTION_DISCONNECTED],
        nt: Absent,
        dat_events: &[DatEvent::DISCONNECTED],
        cm: &[CmSign::with(CmEvent::DISCONNECTED, 0)],
    }
    /// The connection was lost. NotifyDisconnect succeeds, and the work requests fail.
    ConnectionBroken {
        status: &[Status::SUCCESS],
        nt: Absent,
        dat_events: &[DatEvent::BROKEN, DatEvent::ASYNC_EP_BROKEN],
        cm: &[
            CmSign::with(CmEvent::DISCONNECTED, -ETIMEDOUT),
            CmSign::during(CmPhase::Connected, CmEvent::UNREACHABLE),
            // iWARP drivers set the errno of their TCP as the status.
            CmSign::any(CmEvent::DISCONNECTED),
        ],
    }
    /// Memory or a resource of the adapter is exhausted.
    OutOfResources {
        status: &[Status::INSUFFICIENT_RESOURCES],
        dat_returns: &[DatReturn::INSUFFICIENT_RESOURCES],
        cm: &[CmSign::Errno(ENOMEM), CmSign::Errno(ENOSPC)],
    }
    /// The provider does not support the option or the call.
    NotSupported {
        status: &[Status::NOT_SUPPORTED],
        nd1: Absent,
        dat_returns: &[
            DatReturn::MODEL_NOT_SUPPORTED,
            DatReturn::COMM_NOT_SUPPORTED,
            DatReturn::NOT_IMPLEMENTED,
        ],
        cm: &[CmSign::Errno(EOPNOTSUPP), CmSign::Errno(ENOSYS), CmSign::Errno(ENOPROTOOPT)],
    }
    /// An argument is not valid.
    InvalidArgument {
        status: &[Status::INVALID_PARAMETER],
        dat_returns: &[DatReturn::INVALID_PARAMETER],
        cm: &[CmSign::Errno(EINVAL)],
    }
    /// The connection manager failed, or a request or a queue failed in a way that no outcome of a connection names.
    InternalFailure {
        status: &[Status::UNSUCCESSFUL, Status::INTERNAL_ERROR],
        nt: Absent,
        nd1: Absent,
        dat_events: &[DatEvent::NON_PEER_REJECTED, DatEvent::UNREACHABLE],
        cm: &[CmSign::during(CmPhase::Connecting, CmEvent::CONNECT_ERROR)],
    }
}

impl Outcome {
    /// Returns the status of NetworkDirect 2.
    pub fn status(self) -> Status {
        self.row().status()
    }

    /// Returns the status of the kernel interface (NDK), `None` if it has none. [`Status::nt_name`] returns its name.
    ///
    /// In NDK a disconnect is a callback, not a status.
    pub fn nt_status(self) -> Option<Status> {
        self.row().variant(self.row().nt)
    }

    /// Returns the status of NetworkDirect 1, `None` if it does not report the outcome.
    pub fn nd1_status(self) -> Option<Status> {
        self.row().variant(self.row().nd1)
    }

    /// Returns the event of uDAPL, for outcomes that are reported after the call.
    pub fn dat_event(self) -> Option<DatEvent> {
        self.row().dat_events.first().copied()
    }

    /// Returns the return value of uDAPL, for outcomes that the call returns.
    pub fn dat_return(self) -> Option<DatReturn> {
        self.row().dat_returns.first().copied()
    }

    /// Returns the reports of rdma_cm for this outcome, the usual one first. Empty if rdma_cm does not report it.
    pub fn cm(self) -> &'static [CmSign] {
        self.row().cm
    }

    /// Returns the kind of an `io::Error`, `None` if std has no matching kind or the outcome is no error.
    pub fn io_kind(self) -> Option<ErrorKind> {
        match self {
            Self::Established | Self::QueuePairBusy => None,
            // Their status is a success.
            Self::PeerDisconnected | Self::ConnectionBroken => Some(ErrorKind::ConnectionReset),
            _ => Some(self.status().io_kind()),
        }
    }

    /// Returns the outcome with this status, `None` if there is not exactly one.
    pub fn from_status(status: Status) -> Option<Self> {
        only(Self::ALL.iter().copied().filter(|outcome| outcome.row().status.contains(&status)))
    }

    /// Returns the outcome that reports this status, or the nearest one.
    pub(crate) fn of(status: Status) -> Self {
        // The rows that report a status go before those that only recognize it.
        let mut all = Self::ALL.iter().copied();
        let reports = all.find(|outcome| outcome.status() == status);
        let known = || Self::ALL.iter().copied().find(|outcome| outcome.row().status.contains(&status));
        let numbered = (Status::INVALID_PARAMETER_1..=Status::INVALID_PARAMETER_10).contains(&status);
        let otherwise = if numbered { Self::InvalidArgument } else { Self::InternalFailure };
        reports.or_else(known).unwrap_or(otherwise)
    }

    /// Returns the outcome with this event, `None` if there is not exactly one.
    pub fn from_dat_event(event: DatEvent) -> Option<Self> {
        only(Self::ALL.iter().copied().filter(|outcome| outcome.row().dat_events.contains(&event)))
    }

    /// Returns the outcome that an event means on an id that is resolving or connecting.
    ///
    /// `None` for events that are not an outcome, and for an iWARP reject whose sender the driver does not report.
    /// [`Status::from_cm`] returns a status for the latter.
    pub fn from_cm(event: CmEvent, status: i32, transport: CmTransport) -> Option<Self> {
        Self::from_cm_in(CmPhase::Connecting, event, status, transport)
    }

    /// Returns the outcome that an event means on an id in `phase`, as [`from_cm`](Self::from_cm) does.
    pub fn from_cm_in(phase: CmPhase, event: CmEvent, status: i32, transport: CmTransport) -> Option<Self> {
        only(Self::heard(phase, event, status, transport))
    }

    /// Returns the outcomes that match an event. Outcomes that match its status have priority over outcomes that match
    /// any.
    fn heard(
        phase: CmPhase,
        event: CmEvent,
        status: i32,
        transport: CmTransport,
    ) -> impl Iterator<Item = Self> {
        let best = move |outcome: Self| {
            outcome.cm().iter().filter_map(move |sign| sign.fit(event, status, transport, phase)).max()
        };
        let exact = Self::ALL.iter().filter_map(|outcome| best(*outcome)).max();
        Self::ALL.iter().copied().filter(move |outcome| exact.is_some() && best(*outcome) == exact)
    }
}

impl Status {
    /// Returns the status of an rdma_cm event on an id in `phase`.
    ///
    /// It is unique in some cases in which [`Outcome::from_cm_in`] returns `None`: an iWARP `REJECTED` is
    /// `CONNECTION_REFUSED`, although several outcomes are possible.
    pub fn from_cm(phase: CmPhase, event: CmEvent, status: i32, transport: CmTransport) -> Option<Self> {
        let mut statuses = Outcome::heard(phase, event, status, transport).map(Outcome::status);
        let first = statuses.next()?;
        statuses.all(|status| status == first).then_some(first)
    }
}

/// Returns the item of an iterator that has exactly one.
fn only<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let first = items.next()?;
    items.next().is_none().then_some(first)
}
