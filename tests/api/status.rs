//! The status vocabulary, compared with tables that are repeated here.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use tokio_rdma::error::{
    AcceptError, BindError, CompletionError, ConnectError, DisconnectError, OpenError, PostError,
    PostErrorKind, Reason, RegisterError, Retained, StateError,
};
use tokio_rdma::status::{
    CmEvent, CmPhase, CmSign, CmTransport, DatEvent, DatReturn, DeviceEvent, IbRejectReason, Outcome, Status,
    StatusClass, WcStatus,
};
use tokio_rdma::types::{Access, AdapterId, OpKind, PrivateData, QueueKind, TooShort};

use CmTransport::{InfiniBand, Iwarp};

const NOBODY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 1);

/// Number, name, name of the NTSTATUS, class.
#[rustfmt::skip]
const STATUSES: &[(u32, &str, &str, StatusClass)] = &[
    (0x0000_0000, "SUCCESS", "STATUS_SUCCESS", StatusClass::Success),
    (0x0000_0102, "TIMEOUT", "STATUS_TIMEOUT", StatusClass::Timeout),
    (0x0000_0103, "PENDING", "STATUS_PENDING", StatusClass::Pending),
    (0x8000_0005, "BUFFER_OVERFLOW", "STATUS_BUFFER_OVERFLOW", StatusClass::Warning),
    (0x8000_0011, "DEVICE_BUSY", "STATUS_DEVICE_BUSY", StatusClass::Warning),
    (0x8000_001A, "NO_MORE_ENTRIES", "STATUS_NO_MORE_ENTRIES", StatusClass::Warning),
    (0xC000_0001, "UNSUCCESSFUL", "STATUS_UNSUCCESSFUL", StatusClass::Error),
    (0xC000_0005, "ACCESS_VIOLATION", "STATUS_ACCESS_VIOLATION", StatusClass::Error),
    (0xC000_0008, "INVALID_HANDLE", "STATUS_INVALID_HANDLE", StatusClass::Error),
    (0xC000_000D, "INVALID_PARAMETER", "STATUS_INVALID_PARAMETER", StatusClass::Error),
    (0xC000_0010, "INVALID_DEVICE_REQUEST", "STATUS_INVALID_DEVICE_REQUEST", StatusClass::Error),
    (0xC000_0017, "NO_MEMORY", "STATUS_NO_MEMORY", StatusClass::Error),
    (0xC000_0023, "BUFFER_TOO_SMALL", "STATUS_BUFFER_TOO_SMALL", StatusClass::Error),
    (0xC000_0030, "INVALID_PARAMETER_MIX", "STATUS_INVALID_PARAMETER_MIX", StatusClass::Error),
    (0xC000_003C, "DATA_OVERRUN", "STATUS_DATA_OVERRUN", StatusClass::Error),
    (0xC000_003E, "DATA_ERROR", "STATUS_DATA_ERROR", StatusClass::Error),
    (0xC000_0043, "SHARING_VIOLATION", "STATUS_SHARING_VIOLATION", StatusClass::Error),
    (0xC000_009A, "INSUFFICIENT_RESOURCES", "STATUS_INSUFFICIENT_RESOURCES", StatusClass::Error),
    (0xC000_00A3, "DEVICE_NOT_READY", "STATUS_DEVICE_NOT_READY", StatusClass::Error),
    (0xC000_00B5, "IO_TIMEOUT", "STATUS_IO_TIMEOUT", StatusClass::Error),
    (0xC000_00BB, "NOT_SUPPORTED", "STATUS_NOT_SUPPORTED", StatusClass::Error),
    (0xC000_00CC, "BAD_NETWORK_NAME", "STATUS_BAD_NETWORK_NAME", StatusClass::Error),
    (0xC000_00E5, "INTERNAL_ERROR", "STATUS_INTERNAL_ERROR", StatusClass::Error),
    (0xC000_00EF, "INVALID_PARAMETER_1", "STATUS_INVALID_PARAMETER_1", StatusClass::Error),
    (0xC000_00F0, "INVALID_PARAMETER_2", "STATUS_INVALID_PARAMETER_2", StatusClass::Error),
    (0xC000_00F1, "INVALID_PARAMETER_3", "STATUS_INVALID_PARAMETER_3", StatusClass::Error),
    (0xC000_00F2, "INVALID_PARAMETER_4", "STATUS_INVALID_PARAMETER_4", StatusClass::Error),
    (0xC000_00F3, "INVALID_PARAMETER_5", "STATUS_INVALID_PARAMETER_5", StatusClass::Error),
    (0xC000_00F4, "INVALID_PARAMETER_6", "STATUS_INVALID_PARAMETER_6", StatusClass::Error),
    (0xC000_00F5, "INVALID_PARAMETER_7", "STATUS_INVALID_PARAMETER_7", StatusClass::Error),
    (0xC000_00F6, "INVALID_PARAMETER_8", "STATUS_INVALID_PARAMETER_8", StatusClass::Error),
    (0xC000_00F7, "INVALID_PARAMETER_9", "STATUS_INVALID_PARAMETER_9", StatusClass::Error),
    (0xC000_00F8, "INVALID_PARAMETER_10", "STATUS_INVALID_PARAMETER_10", StatusClass::Error),
    (0xC000_0120, "CANCELED", "STATUS_CANCELLED", StatusClass::Error),
    (0xC000_013D, "REMOTE_ERROR", "STATUS_REMOTE_RESOURCES", StatusClass::Error),
    (0xC000_0141, "INVALID_ADDRESS", "STATUS_INVALID_ADDRESS", StatusClass::Error),
    (0xC000_0184, "INVALID_DEVICE_STATE", "STATUS_INVALID_DEVICE_STATE", StatusClass::Error),
    (0xC000_0206, "INVALID_BUFFER_SIZE", "STATUS_INVALID_BUFFER_SIZE", StatusClass::Error),
    (0xC000_0209, "TOO_MANY_ADDRESSES", "STATUS_TOO_MANY_ADDRESSES", StatusClass::Error),
    (0xC000_020A, "ADDRESS_ALREADY_EXISTS", "STATUS_ADDRESS_ALREADY_EXISTS", StatusClass::Error),
    (0xC000_020C, "CONNECTION_DISCONNECTED", "STATUS_CONNECTION_DISCONNECTED", StatusClass::Error),
    (0xC000_0236, "CONNECTION_REFUSED", "STATUS_CONNECTION_REFUSED", StatusClass::Error),
    (0xC000_0238, "ADDRESS_ALREADY_ASSOCIATED", "STATUS_ADDRESS_ALREADY_ASSOCIATED", StatusClass::Error),
    (0xC000_023A, "CONNECTION_INVALID", "STATUS_CONNECTION_INVALID", StatusClass::Error),
    (0xC000_023B, "CONNECTION_ACTIVE", "STATUS_CONNECTION_ACTIVE", StatusClass::Error),
    (0xC000_023C, "NETWORK_UNREACHABLE", "STATUS_NETWORK_UNREACHABLE", StatusClass::Error),
    (0xC000_023D, "HOST_UNREACHABLE", "STATUS_HOST_UNREACHABLE", StatusClass::Error),
    (0xC000_0241, "CONNECTION_ABORTED", "STATUS_CONNECTION_ABORTED", StatusClass::Error),
    (0xC000_02B6, "DEVICE_REMOVED", "STATUS_DEVICE_REMOVED", StatusClass::Error),
];

// ERR-02: the table of the guide, row by row.
#[test]
fn the_guide_has_every_status_of_a_completion() {
    let page = include_str!("../../docs/guide/src/porting-outcomes.md");
    let rows = page.lines().filter(|line| line.starts_with("| `IBV_WC_"));
    let found: Vec<Vec<String>> =
        rows.map(|row| row.split('|').map(|cell| cell.trim().replace('`', "")).collect()).collect();
    let status = |of: &WcStatus, queue| of.status(queue).to_string();
    let expected: Vec<_> = WcStatus::ALL
        .iter()
        .map(|of| [of.to_string(), status(of, QueueKind::Send), status(of, QueueKind::Receive)])
        .collect();
    let cells: Vec<_> = found.iter().map(|row| [row[1].clone(), row[2].clone(), row[3].clone()]).collect();
    assert_eq!(cells, expected);
}

// The numbers, names and NTSTATUS twins are those of ndstatus.mc, and `Status::ALL` contains no others (ERR-01).
#[test]
fn every_status_has_its_number_class_and_ntstatus() {
    for &(code, name, nt_name, class) in STATUSES {
        let status = Status::from_code(code);
        assert_eq!(status.name(), Some(name), "{code:#010X}");
        assert_eq!(status.nt_name(), Some(nt_name), "{name}");
        assert_eq!(status.class(), class, "{name}");
        assert_eq!(u32::from(status), code, "{name}");
        assert_eq!(u32::from(status.severity()), code >> 30, "{name}");
        assert_eq!(status.ntstatus() as u32, code, "{name}");
        assert_eq!(Status::from_ntstatus(code as i32), status, "{name}");
        assert_eq!(status.to_string(), name);
    }
    let codes: Vec<u32> = STATUSES.iter().map(|row| row.0).collect();
    let all: Vec<u32> = Status::ALL.iter().map(|status| status.code()).collect();
    assert_eq!(all, codes, "nothing but the table, in its order");
    assert!(codes.is_sorted());
    // The constants too, not only the numbers behind them.
    assert_eq!(Status::CONNECTION_REFUSED.code(), 0xC000_0236);
    assert_eq!(Status::CANCELED.code(), 0xC000_0120);
}

// PENDING and TIMEOUT are successes by the sign of their number, so only the class can be relied on (ERR-03).
#[test]
fn only_success_is_finished_and_well() {
    for status in Status::ALL.iter().copied() {
        assert_eq!(status.is_success(), status == Status::SUCCESS, "{status}");
    }
    for (status, class) in [(Status::PENDING, StatusClass::Pending), (Status::TIMEOUT, StatusClass::Timeout)]
    {
        assert!(status.ntstatus() >= 0, "{status}: the sign says success");
        assert_eq!(status.severity(), 0);
        assert_eq!(status.class(), class, "and the class does not");
    }
    for code in [1, 0x104, 0x4000_0000] {
        assert_eq!(Status::from_code(code).class(), StatusClass::Informational);
        assert!(!Status::from_code(code).is_success());
    }
}

// A number without a constant keeps its value and is printed, in every vocabulary (ERR-05).
#[test]
fn unknown_statuses_are_kept() {
    assert_eq!(Status::from_code(0xC000_020C), Status::CONNECTION_DISCONNECTED);

    let unknown = Status::from_code(0xC0FF_EE01);
    assert_eq!((unknown.name(), unknown.nt_name()), (None, None));
    assert_eq!(unknown.class(), StatusClass::Error);
    assert_eq!(unknown.to_string(), "0xC0FFEE01");
    assert_eq!(unknown.io_kind(), ErrorKind::Other);
    let error =
        ConnectError::Other { peer: NOBODY, status: unknown, reason: Reason::Local("a provider's own") };
    assert!(error.to_string().contains("0xC0FFEE01"), "{error}");
    let error = io::Error::from(error);
    assert!(error.to_string().contains("0xC0FFEE01"), "{error}");
    assert_eq!(Status::from_io(&error), unknown);

    assert_eq!(CmEvent::from_code(99).code(), 99);
    assert_eq!(CmEvent::from_code(99).to_string(), "rdma_cm event 99");
    assert_eq!(WcStatus::from_code(99).to_string(), "ibv_wc_status 99");
    assert_eq!(WcStatus::from_code(99).status(QueueKind::Send), Status::INTERNAL_ERROR);
    assert_eq!(DeviceEvent::from_code(99).to_string(), "ibv_event_type 99");
    assert_eq!(DatEvent::from_code(0x4009).to_string(), "DAT event 0x4009");
    assert_eq!(IbRejectReason::from_status(77).map(|reason| reason.to_string()).unwrap(), "reject reason 77");
    let odd = DatReturn::from_code(0x8006_0025);
    assert_eq!((odd.code(), odd.to_string().as_str()), (0x8006_0025, "INVALID_PARAMETER(0x25)"));
    assert_eq!(DatReturn::from_code(0x9ABC_0001).to_string(), "0x9ABC0001");
}

/// A row of the outcome table: what each interface says first.
struct Expect {
    outcome: Outcome,
    status: u32,
    nt: Option<&'static str>,
    nd1: Option<u32>,
    event: Option<u32>,
    ret: Option<u32>,
    kind: Option<ErrorKind>,
    /// Whether the status and the event lead back here.
    back: (bool, bool),
}

#[rustfmt::skip]
fn outcomes() -> Vec<Expect> {
    use ErrorKind as K;
    use Outcome as O;
    let row = |outcome, status, nt, nd1, event, ret, kind, back| {
        Expect { outcome, status, nt, nd1, event, ret, kind, back }
    };
    const REFUSED: u32 = 0xC000_0236;
    vec![
        row(O::Established, 0, Some("STATUS_SUCCESS"), Some(0), Some(0x4001), None, None, (false, true)),
        row(O::NoListener, REFUSED, Some("STATUS_CONNECTION_REFUSED"), Some(REFUSED), Some(0x4003), None, Some(K::ConnectionRefused), (false, false)),
        row(O::PeerRejected, REFUSED, Some("STATUS_CONNECTION_REFUSED"), Some(REFUSED), Some(0x4002), None, Some(K::ConnectionRefused), (false, true)),
        row(O::PeerUnable, REFUSED, Some("STATUS_CONNECTION_REFUSED"), Some(REFUSED), Some(0x4003), None, Some(K::ConnectionRefused), (false, false)),
        row(O::StaleConnection, REFUSED, None, None, Some(0x4003), None, Some(K::ConnectionRefused), (false, false)),
        row(O::NetworkUnreachable, 0xC000_023C, Some("STATUS_NETWORK_UNREACHABLE"), Some(0xC000_023D), Some(0x4008), Some(0x8012_0061), Some(K::NetworkUnreachable), (true, false)),
        row(O::HostUnreachable, 0xC000_023D, Some("STATUS_HOST_UNREACHABLE"), Some(0xC000_023D), Some(0x4008), None, Some(K::HostUnreachable), (true, false)),
        row(O::NoAnswer, 0xC000_00B5, Some("STATUS_IO_TIMEOUT"), Some(0x102), Some(0x4007), Some(0x800F_0000), Some(K::TimedOut), (true, true)),
        row(O::AddressInvalid, 0xC000_0141, Some("STATUS_INVALID_ADDRESS"), Some(0xC000_0141), None, Some(0x8012_0062), Some(K::AddrNotAvailable), (true, false)),
        row(O::PortInUse, 0xC000_0043, Some("STATUS_SHARING_VIOLATION"), Some(0xC000_020A), None, Some(0x8002_0000), Some(K::AddrInUse), (true, false)),
        row(O::PortsExhausted, 0xC000_0209, Some("STATUS_TOO_MANY_ADDRESSES"), Some(0xC000_0209), None, Some(0x8014_0000), Some(K::AddrNotAvailable), (true, false)),
        row(O::ConnectionExists, 0xC000_020A, Some("STATUS_ADDRESS_ALREADY_EXISTS"), None, None, Some(0x8016_0000), Some(K::AddrInUse), (true, false)),
        row(O::AlreadyBound, 0xC000_0238, Some("STATUS_ADDRESS_ALREADY_ASSOCIATED"), None, None, Some(0x8007_0000), Some(K::InvalidInput), (true, false)),
        row(O::QueuePairBusy, 0xC000_023B, None, Some(0xC000_023B), None, Some(0x8007_0000), None, (true, false)),
        row(O::WrongMoment, 0xC000_023A, Some("STATUS_CONNECTION_INVALID"), Some(0xC000_023A), None, Some(0x8007_0000), Some(K::NotConnected), (true, false)),
        row(O::PeerGaveUp, 0xC000_0241, Some("STATUS_CONNECTION_ABORTED"), Some(0xC000_0241), Some(0x4004), None, Some(K::ConnectionAborted), (false, true)),
        row(O::PeerLeft, 0xC000_0241, Some("STATUS_CONNECTION_ABORTED"), Some(0xC000_0241), Some(0x4003), None, Some(K::ConnectionAborted), (false, false)),
        row(O::PrivateDataTooLarge, 0xC000_0206, Some("STATUS_INVALID_PARAMETER"), Some(0x8000_0005), None, Some(0x8006_0000), Some(K::InvalidInput), (true, false)),
        row(O::Canceled, 0xC000_0120, Some("STATUS_CANCELLED"), Some(0xC000_0120), Some(0x4005), Some(0x8001_0000), Some(K::Other), (true, false)),
        row(O::DeviceRemoved, 0xC000_02B6, None, Some(0xC000_02B6), Some(0x8002), None, Some(K::Other), (true, true)),
        row(O::PeerDisconnected, 0, None, Some(0), Some(0x4005), None, Some(K::ConnectionReset), (false, false)),
        row(O::ConnectionBroken, 0, None, Some(0), Some(0x4006), None, Some(K::ConnectionReset), (false, true)),
        row(O::OutOfResources, 0xC000_009A, Some("STATUS_INSUFFICIENT_RESOURCES"), Some(0xC000_009A), None, Some(0x8003_0000), Some(K::OutOfMemory), (true, false)),
        row(O::NotSupported, 0xC000_00BB, Some("STATUS_NOT_SUPPORTED"), None, None, Some(0x8009_0000), Some(K::Unsupported), (true, false)),
        row(O::InvalidArgument, 0xC000_000D, Some("STATUS_INVALID_PARAMETER"), Some(0xC000_000D), None, Some(0x8006_0000), Some(K::InvalidInput), (true, false)),
        row(O::InternalFailure, 0xC000_0001, None, None, Some(0x4003), None, Some(K::Other), (true, false)),
    ]
}

// Each outcome has its numbers in ND, NT, NDv1 and uDAPL, and a number leads back where the table says so (ERR-02).
#[test]
fn outcomes_have_their_numbers_everywhere_and_lead_back() {
    let table = outcomes();
    let listed: Vec<Outcome> = table.iter().map(|row| row.outcome).collect();
    assert_eq!(Outcome::ALL, listed);
    for row in table {
        let outcome = row.outcome;
        assert_eq!(outcome.status().code(), row.status, "{outcome:?}");
        assert_eq!(outcome.nt_status().and_then(Status::nt_name), row.nt, "{outcome:?}");
        assert_eq!(outcome.nd1_status().map(Status::code), row.nd1, "{outcome:?}");
        assert_eq!(outcome.dat_event().map(DatEvent::code), row.event, "{outcome:?}");
        assert_eq!(outcome.dat_return().map(DatReturn::code), row.ret, "{outcome:?}");
        assert_eq!(outcome.io_kind(), row.kind, "{outcome:?}");
        let (by_status, by_event) = row.back;
        assert_eq!(Outcome::from_status(outcome.status()), by_status.then_some(outcome), "{outcome:?}");
        let back = outcome.dat_event().and_then(Outcome::from_dat_event);
        assert_eq!(back, by_event.then_some(outcome), "{outcome:?}");
        // The number goes to the same kind, whether through the outcome or alone.
        if row.status != 0 {
            assert_eq!(outcome.status().io_kind(), row.kind.unwrap_or(ErrorKind::Other), "{outcome:?}");
        }
    }
    // Other numbers that lead to an outcome.
    for (status, outcome) in [
        (Status::BAD_NETWORK_NAME, Outcome::AddressInvalid),
        (Status::CONNECTION_DISCONNECTED, Outcome::PeerDisconnected),
        (Status::INTERNAL_ERROR, Outcome::InternalFailure),
    ] {
        assert_eq!(Outcome::from_status(status), Some(outcome));
        assert_eq!(status.io_kind(), outcome.io_kind().unwrap());
    }
    assert_eq!(Outcome::from_dat_event(DatEvent::from_code(0x8003)), Some(Outcome::ConnectionBroken));
    assert_eq!(Outcome::from_dat_event(DatEvent::SOFTWARE), None);
    assert_eq!(Outcome::from_status(Status::from_code(0xC0FF_EE01)), None);
}

// One event with one errno has different outcomes, by the phase and the transport (ERR-02).
#[test]
fn rdma_cm_events_lead_to_outcomes() {
    use CmPhase::{Accepting, Connected, Connecting};
    use Outcome as O;
    let refused = -libc::ECONNREFUSED;
    let timed_out = -libc::ETIMEDOUT;
    #[rustfmt::skip]
    let table = [
        (Connecting, 5, 0, InfiniBand, Some(O::Established)),
        (Connecting, 9, 0, Iwarp, Some(O::Established)),
        (Accepting, 9, 0, InfiniBand, Some(O::Established)),
        (Connecting, 8, 8, InfiniBand, Some(O::NoListener)),
        (Connecting, 8, 28, InfiniBand, Some(O::PeerRejected)),
        (Accepting, 8, 28, InfiniBand, Some(O::PeerRejected)),
        (Connecting, 8, 3, InfiniBand, Some(O::PeerUnable)),
        (Connecting, 8, 1, InfiniBand, Some(O::PeerUnable)),
        (Connecting, 8, 77, InfiniBand, Some(O::PeerUnable)),
        (Connecting, 8, 10, InfiniBand, Some(O::StaleConnection)),
        (Connecting, 8, refused, Iwarp, None),
        (Connecting, 8, -libc::ECONNRESET, Iwarp, Some(O::PeerRejected)),
        (Connecting, 1, timed_out, InfiniBand, Some(O::HostUnreachable)),
        (Connecting, 1, -libc::EHOSTUNREACH, Iwarp, Some(O::HostUnreachable)),
        (Connecting, 1, -libc::ENETUNREACH, Iwarp, Some(O::NetworkUnreachable)),
        (Connecting, 1, -libc::ENODEV, Iwarp, Some(O::AddressInvalid)),
        (Connecting, 3, -libc::EINVAL, InfiniBand, Some(O::HostUnreachable)),
        (Connecting, 7, timed_out, InfiniBand, Some(O::NoAnswer)),
        (Connecting, 7, timed_out, Iwarp, Some(O::NoAnswer)),
        (Accepting, 7, timed_out, InfiniBand, Some(O::PeerGaveUp)),
        (Connected, 7, timed_out, InfiniBand, Some(O::ConnectionBroken)),
        (Accepting, 8, 4, InfiniBand, Some(O::PeerGaveUp)),
        (Accepting, 8, refused, Iwarp, Some(O::PeerGaveUp)),
        (Accepting, 6, -libc::EINVAL, Iwarp, Some(O::PeerGaveUp)),
        (Connecting, 6, -libc::EINVAL, InfiniBand, Some(O::InternalFailure)),
        (Connected, 10, 0, InfiniBand, Some(O::PeerDisconnected)),
        (Connected, 10, timed_out, InfiniBand, Some(O::ConnectionBroken)),
        (Connected, 10, -libc::ECONNRESET, Iwarp, Some(O::ConnectionBroken)),
        (Connecting, 11, 0, InfiniBand, Some(O::DeviceRemoved)),
        (Connected, 11, 0, Iwarp, Some(O::DeviceRemoved)),
        (Connecting, 0, 0, InfiniBand, None),
        (Connecting, 4, 0, InfiniBand, None),
        (Connected, 15, 0, InfiniBand, None),
        (Connecting, 16, 0, InfiniBand, None),
    ];
    for (phase, event, status, transport, outcome) in table {
        let event = CmEvent::from_code(event);
        let case = format!("{phase:?} {event} {status} {transport:?}");
        assert_eq!(Outcome::from_cm_in(phase, event, status, transport), outcome, "{case}");
        if phase == Connecting {
            assert_eq!(Outcome::from_cm(event, status, transport), outcome, "{case}");
        }
        if let Some(outcome) = outcome {
            assert_eq!(Status::from_cm(phase, event, status, transport), Some(outcome.status()), "{case}");
        }
    }
    // Over iWARP this is a refusal for want of a listener or by an application, and its status is the same.
    let status = Status::from_cm(Connecting, CmEvent::REJECTED, refused, Iwarp);
    assert_eq!(status, Some(Status::CONNECTION_REFUSED));
    assert_eq!(Status::from_cm(Connecting, CmEvent::ADDR_RESOLVED, 0, Iwarp), None);
}

// Every event in `Outcome::cm` leads back to its outcome, except ECONNREFUSED of iWARP, which is ambiguous (ERR-02).
#[test]
fn every_sign_of_rdma_cm_leads_back() {
    for outcome in Outcome::ALL.iter().copied() {
        let unsigned = [Outcome::Canceled, Outcome::PeerLeft].contains(&outcome);
        assert_eq!(outcome.cm().is_empty(), unsigned, "{outcome:?}");
        for sign in outcome.cm() {
            let CmSign::Event { event, status, transport, phase } = *sign else { continue };
            // A number that no row names, for those that take any.
            let status = status.unwrap_or(-1234);
            let phase = phase.unwrap_or(CmPhase::Connecting);
            let transport = transport.unwrap_or(InfiniBand);
            let back = Outcome::from_cm_in(phase, event, status, transport);
            let ambiguous = transport == Iwarp && status == -libc::ECONNREFUSED;
            assert_eq!(back, (!ambiguous).then_some(outcome), "{sign:?}");
        }
    }
}

// The names and numbers are defined by other interfaces, so they are repeated here literally (ERR-02).
#[test]
fn the_other_vocabularies_have_their_numbers() {
    #[rustfmt::skip]
    let events = [
        "ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST", "CONNECT_RESPONSE",
        "CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL",
        "MULTICAST_JOIN", "MULTICAST_ERROR", "ADDR_CHANGE", "TIMEWAIT_EXIT",
    ];
    let names: Vec<_> = CmEvent::ALL.iter().filter_map(|event| event.name()).collect();
    assert_eq!(names, events);
    for (code, event) in (0..).zip(CmEvent::ALL) {
        assert_eq!(event.code(), code);
    }

    let reasons: Vec<u32> = IbRejectReason::ALL.iter().map(|reason| reason.code()).collect();
    assert_eq!(reasons, [1, 3, 4, 6, 8, 10, 24, 25, 27, 28, 35]);
    assert_eq!(IbRejectReason::from_status(28), Some(IbRejectReason::CONSUMER_DEFINED));
    assert_eq!(IbRejectReason::from_status(-111), None);

    #[rustfmt::skip]
    let types = [
        (0x1, "ABORT"), (0x2, "CONN_QUAL_IN_USE"), (0x3, "INSUFFICIENT_RESOURCES"), (0x4, "INTERNAL_ERROR"),
        (0x5, "INVALID_HANDLE"), (0x6, "INVALID_PARAMETER"), (0x7, "INVALID_STATE"), (0x8, "LENGTH_ERROR"),
        (0x9, "MODEL_NOT_SUPPORTED"), (0xB, "PRIVILEGES_VIOLATION"), (0xC, "PROTECTION_VIOLATION"),
        (0xD, "QUEUE_EMPTY"), (0xE, "QUEUE_FULL"), (0xF, "TIMEOUT_EXPIRED"), (0x11, "PROVIDER_IN_USE"),
        (0x12, "INVALID_ADDRESS"), (0x13, "INTERRUPTED_CALL"), (0x14, "CONN_QUAL_UNAVAILABLE"),
        (0x16, "PORT_IN_USE"), (0x17, "COMM_NOT_SUPPORTED"), (0x3FFF, "NOT_IMPLEMENTED"),
    ];
    for (kind, name) in types {
        let value = DatReturn::from_code(0x8000_0000 | kind << 16);
        assert_eq!(value.name(), Some(name));
        assert_eq!((value.class(), value.kind(), value.subtype()), (0x8000_0000, kind << 16, 0));
    }
    assert_eq!(DatReturn::INVALID_ADDRESS_UNREACHABLE.without_subtype(), DatReturn::INVALID_ADDRESS);
    assert_eq!(DatReturn::SUCCESS.class(), 0);

    #[rustfmt::skip]
    let events = [
        (1, "DTO_COMPLETION"), (0x1001, "RMR_BIND_COMPLETION"), (0x2001, "CONNECTION_REQUEST"),
        (0x4001, "ESTABLISHED"), (0x4002, "PEER_REJECTED"), (0x4003, "NON_PEER_REJECTED"),
        (0x4004, "ACCEPT_COMPLETION_ERROR"), (0x4005, "DISCONNECTED"), (0x4006, "BROKEN"),
        (0x4007, "TIMED_OUT"), (0x4008, "UNREACHABLE"), (0x8001, "ASYNC_EVD_OVERFLOW"),
        (0x8002, "ASYNC_IA_CATASTROPHIC"), (0x8003, "ASYNC_EP_BROKEN"), (0x8004, "ASYNC_TIMED_OUT"),
        (0x8005, "ASYNC_PROVIDER_INTERNAL"), (0x8101, "HA_DOWN_TO_1"), (0x8102, "HA_UP_TO_MULTI_PATH"),
        (0x10001, "SOFTWARE"),
    ];
    let named: Vec<_> =
        DatEvent::ALL.iter().filter_map(|event| Some((event.code(), event.name()?))).collect();
    assert_eq!(named, events);
}

// The errno of Linux lead to the status that ND has for the condition (ERR-02).
#[test]
#[cfg(target_os = "linux")]
fn errors_of_the_system_have_a_status() {
    #[rustfmt::skip]
    let table = [
        (libc::ECONNREFUSED, Status::CONNECTION_REFUSED), (libc::ENETUNREACH, Status::NETWORK_UNREACHABLE),
        (libc::ENETDOWN, Status::NETWORK_UNREACHABLE), (libc::EHOSTUNREACH, Status::HOST_UNREACHABLE),
        (libc::EHOSTDOWN, Status::HOST_UNREACHABLE), (libc::ETIMEDOUT, Status::IO_TIMEOUT),
        (libc::EADDRINUSE, Status::SHARING_VIOLATION), (libc::EADDRNOTAVAIL, Status::INVALID_ADDRESS),
        (libc::EAFNOSUPPORT, Status::INVALID_ADDRESS), (libc::ENOMEM, Status::INSUFFICIENT_RESOURCES),
        (libc::ENOBUFS, Status::INSUFFICIENT_RESOURCES), (libc::ENOSPC, Status::INSUFFICIENT_RESOURCES),
        (libc::EMFILE, Status::INSUFFICIENT_RESOURCES), (libc::ENFILE, Status::INSUFFICIENT_RESOURCES),
        (libc::EINVAL, Status::INVALID_PARAMETER), (libc::EMSGSIZE, Status::INVALID_BUFFER_SIZE),
        (libc::EBADF, Status::INVALID_HANDLE), (libc::ENODEV, Status::DEVICE_REMOVED),
        (libc::ENXIO, Status::DEVICE_REMOVED), (libc::EBUSY, Status::DEVICE_BUSY),
        (libc::ENOTCONN, Status::CONNECTION_INVALID), (libc::EISCONN, Status::CONNECTION_ACTIVE),
        (libc::EALREADY, Status::CONNECTION_ACTIVE), (libc::EINPROGRESS, Status::CONNECTION_ACTIVE),
        (libc::ECONNRESET, Status::CONNECTION_DISCONNECTED), (libc::EPIPE, Status::CONNECTION_DISCONNECTED),
        (libc::ESHUTDOWN, Status::CONNECTION_DISCONNECTED), (libc::ECONNABORTED, Status::CONNECTION_ABORTED),
        (libc::EACCES, Status::ACCESS_VIOLATION), (libc::EPERM, Status::ACCESS_VIOLATION),
        (libc::EFAULT, Status::ACCESS_VIOLATION), (libc::EOPNOTSUPP, Status::NOT_SUPPORTED),
        (libc::ENOSYS, Status::NOT_SUPPORTED), (libc::ENOPROTOOPT, Status::NOT_SUPPORTED),
        (libc::EPROTONOSUPPORT, Status::NOT_SUPPORTED), (libc::ECANCELED, Status::CANCELED),
        (libc::EIO, Status::UNSUCCESSFUL), (libc::EAGAIN, Status::UNSUCCESSFUL),
    ];
    for (errno, status) in table {
        assert_eq!(Status::from_io(&io::Error::from_raw_os_error(errno)), status, "errno {errno}");
    }
    // The errno in the table of outcomes are Linux's as well.
    let has = |outcome: Outcome, errno| outcome.cm().contains(&CmSign::Errno(errno));
    assert!(has(Outcome::OutOfResources, libc::ENOMEM) && has(Outcome::OutOfResources, libc::ENOSPC));
    assert!(has(Outcome::QueuePairBusy, libc::EISCONN) && has(Outcome::WrongMoment, libc::ENOTCONN));
    assert!(has(Outcome::PortInUse, libc::EADDRINUSE) && has(Outcome::DeviceRemoved, libc::ENODEV));
    for errno in [libc::EOPNOTSUPP, libc::ENOSYS, libc::ENOPROTOOPT] {
        assert!(has(Outcome::NotSupported, errno));
    }
}

// An error without an errno has only its kind, and no error may become a numeric success (ERR-02, ERR-03).
#[test]
fn errors_without_a_number_have_the_status_of_their_kind() {
    use ErrorKind as K;
    #[rustfmt::skip]
    let table = [
        (K::ConnectionRefused, Status::CONNECTION_REFUSED), (K::NetworkUnreachable, Status::NETWORK_UNREACHABLE),
        (K::HostUnreachable, Status::HOST_UNREACHABLE), (K::TimedOut, Status::IO_TIMEOUT),
        (K::AddrInUse, Status::SHARING_VIOLATION), (K::AddrNotAvailable, Status::INVALID_ADDRESS),
        (K::OutOfMemory, Status::INSUFFICIENT_RESOURCES), (K::InvalidInput, Status::INVALID_PARAMETER),
        (K::NotConnected, Status::CONNECTION_INVALID), (K::ConnectionReset, Status::CONNECTION_DISCONNECTED),
        (K::UnexpectedEof, Status::CONNECTION_DISCONNECTED), (K::BrokenPipe, Status::CONNECTION_DISCONNECTED),
        (K::ConnectionAborted, Status::CONNECTION_ABORTED), (K::PermissionDenied, Status::ACCESS_VIOLATION),
        (K::ResourceBusy, Status::DEVICE_BUSY), (K::Unsupported, Status::NOT_SUPPORTED),
        (K::WouldBlock, Status::UNSUCCESSFUL), (K::Other, Status::UNSUCCESSFUL),
    ];
    for (kind, status) in table {
        assert_eq!(Status::from_io(&io::Error::from(kind)), status, "{kind:?}");
        // The kind that the status has leads to itself, where it had one.
        if status != Status::UNSUCCESSFUL && !matches!(kind, K::UnexpectedEof | K::BrokenPipe) {
            assert_eq!(status.io_kind(), kind, "{status}");
        }
    }
    // An error with a status that is numerically a success is no success.
    for status in [Status::PENDING, Status::TIMEOUT, Status::SUCCESS] {
        let error = io::Error::from(CompletionError::new(status));
        assert!(Status::from_io(&error).severity() >= 2, "{status}");
    }
}

/// Converts an error into an `io::Error` and its status back, also with one more error around it.
#[track_caller]
fn round_trip(error: impl Into<io::Error>, status: Status) {
    let error = error.into();
    assert_eq!(error.kind(), status.io_kind(), "{error:?}");
    assert_eq!(Status::from_io(&error), status, "{error:?}");
    let wrapped = io::Error::other(error);
    assert_eq!(Status::from_io(&wrapped), status, "{wrapped:?}");
}

/// `status()` of each error, and its way through `io::Error`.
macro_rules! check {
    ($($error:expr => $status:ident;)*) => {$({
        let error = $error;
        assert_eq!(error.status(), Status::$status, "{error:?}");
        round_trip(error, Status::$status);
    })*};
}

fn os(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

// The status of an error survives its conversion to an `io::Error`: opening and binding (ERR-01, ERR-02).
#[test]
fn errors_of_opening_and_binding_keep_their_status() {
    let at = SocketAddr::from(([192, 0, 2, 1], 7000));
    check! {
        OpenError::InvalidAddress(at.ip()) => INVALID_ADDRESS;
        OpenError::Excluded { address: at.ip(), device: "fake0".into(), by: "^fake0".into() } => INVALID_ADDRESS;
        OpenError::InvalidAdapter(AdapterId(7)) => INVALID_PARAMETER;
        OpenError::Unreachable(at.ip()) => NETWORK_UNREACHABLE;
        OpenError::Unsupported("verbs") => NOT_SUPPORTED;
        OpenError::DeviceRemoved => DEVICE_REMOVED;
        OpenError::InvalidParameter { argument: 0, what: "none".into() } => INVALID_PARAMETER;
        OpenError::InvalidParameter { argument: 1, what: "first".into() } => INVALID_PARAMETER_1;
        OpenError::InvalidParameter { argument: 10, what: "last".into() } => INVALID_PARAMETER_10;
        OpenError::InvalidParameter { argument: 11, what: "beyond".into() } => INVALID_PARAMETER;
        OpenError::TooShort(TooShort { needed: 3, available: 2 }) => BUFFER_OVERFLOW;
        OpenError::Os { call: "socket", source: os(libc::EMFILE).into() } => INSUFFICIENT_RESOURCES;
        BindError::SharingViolation(at) => SHARING_VIOLATION;
        BindError::TooManyAddresses(at.ip()) => TOO_MANY_ADDRESSES;
        BindError::AlreadyBound(at) => ADDRESS_ALREADY_ASSOCIATED;
        BindError::InvalidAddress(at.ip()) => INVALID_ADDRESS;
        BindError::InvalidState("over") => INVALID_DEVICE_STATE;
        BindError::DeviceRemoved => DEVICE_REMOVED;
        BindError::Os { call: "bind", source: os(libc::EACCES).into() } => ACCESS_VIOLATION;
        BindError::Address { address: at, error: os(libc::EACCES).into() } => ACCESS_VIOLATION;
    }
}

// The status of an error survives its conversion to an `io::Error`: connections (ERR-01, ERR-02).
#[test]
fn errors_of_connections_keep_their_status() {
    let reason = || Reason::PeerClosed;
    let status = Status::REMOTE_ERROR;
    let to = NOBODY;
    check! {
        ConnectError::Refused { peer: to, reason: reason() } => CONNECTION_REFUSED;
        ConnectError::Rejected { peer: to, private_data: None, reason: reason() } => CONNECTION_REFUSED;
        ConnectError::NetworkUnreachable { peer: to } => NETWORK_UNREACHABLE;
        ConnectError::HostUnreachable { peer: to } => HOST_UNREACHABLE;
        ConnectError::TimedOut { peer: to, limit: None } => IO_TIMEOUT;
        ConnectError::InvalidBufferSize { length: 600, maximum: 508 } => INVALID_BUFFER_SIZE;
        ConnectError::Active => CONNECTION_ACTIVE;
        ConnectError::QueuePairActive => CONNECTION_ACTIVE;
        ConnectError::Invalid => CONNECTION_INVALID;
        ConnectError::Canceled => CANCELED;
        ConnectError::Aborted { peer: to, reason: reason() } => CONNECTION_ABORTED;
        ConnectError::DeviceRemoved => DEVICE_REMOVED;
        ConnectError::InvalidAddress(to) => INVALID_ADDRESS;
        ConnectError::ForeignQueuePair => INVALID_PARAMETER;
        ConnectError::AddressAlreadyExists { peer: to } => ADDRESS_ALREADY_EXISTS;
        ConnectError::Bind(BindError::TooManyAddresses(to.ip())) => TOO_MANY_ADDRESSES;
        ConnectError::NotSupported("an option") => NOT_SUPPORTED;
        ConnectError::Other { peer: to, status, reason: reason() } => REMOTE_ERROR;
        AcceptError::Refused { peer: to, private_data: None, reason: reason() } => CONNECTION_REFUSED;
        AcceptError::Aborted { peer: to, reason: reason() } => CONNECTION_ABORTED;
        AcceptError::TimedOut { peer: to } => IO_TIMEOUT;
        AcceptError::InvalidBufferSize { length: 600, maximum: 508 } => INVALID_BUFFER_SIZE;
        AcceptError::Active => CONNECTION_ACTIVE;
        AcceptError::ForeignQueuePair => INVALID_PARAMETER;
        AcceptError::Canceled => CANCELED;
        AcceptError::NotListening => INVALID_DEVICE_STATE;
        AcceptError::DeviceRemoved => DEVICE_REMOVED;
        AcceptError::Other { peer: to, status, reason: reason() } => REMOTE_ERROR;
        DisconnectError::Invalid => CONNECTION_INVALID;
        DisconnectError::Lost { status, reason: reason() } => CONNECTION_INVALID;
        DisconnectError::Canceled => CANCELED;
        DisconnectError::TimedOut { limit: Duration::ZERO } => IO_TIMEOUT;
        DisconnectError::DeviceRemoved => DEVICE_REMOVED;
        StateError::ConnectionInvalid => CONNECTION_INVALID;
        StateError::InvalidDeviceState => INVALID_DEVICE_STATE;
        Retained { error: ConnectError::TimedOut { peer: to, limit: None }, handle: Some(()) } => IO_TIMEOUT;
        Retained { error: AcceptError::Active, handle: None::<()> } => CONNECTION_ACTIVE;
    }
}

// CM-19, CM-20: the four of the document and what has not begun (X2) leave the connector, all else burns it.
#[test]
fn a_connect_error_tells_whether_the_connector_is_as_it_was() {
    let reason = || Reason::PeerClosed;
    let to = NOBODY;
    for error in [
        ConnectError::Refused { peer: to, reason: reason() },
        ConnectError::Rejected { peer: to, private_data: None, reason: reason() },
        ConnectError::NetworkUnreachable { peer: to },
        ConnectError::HostUnreachable { peer: to },
        ConnectError::TimedOut { peer: to, limit: None },
        ConnectError::InvalidBufferSize { length: 600, maximum: 508 },
        ConnectError::QueuePairActive,
        ConnectError::ForeignQueuePair,
        ConnectError::Bind(BindError::TooManyAddresses(to.ip())),
        ConnectError::NotSupported("an option"),
    ] {
        assert!(error.is_connector_usable(), "{error:?}");
    }
    for error in [
        ConnectError::Active,
        ConnectError::Invalid,
        ConnectError::Canceled,
        ConnectError::Aborted { peer: to, reason: reason() },
        ConnectError::DeviceRemoved,
        ConnectError::InvalidAddress(to),
        ConnectError::AddressAlreadyExists { peer: to },
        ConnectError::Bind(BindError::DeviceRemoved),
        ConnectError::Other { peer: to, status: Status::REMOTE_ERROR, reason: reason() },
    ] {
        assert!(!error.is_connector_usable(), "{error:?}");
    }
}

// The status of an error survives its conversion to an `io::Error`: requests and memory (ERR-01, ERR-02).
#[test]
fn errors_of_the_data_path_keep_their_status() {
    let full = PostErrorKind::QueueFull { queue: QueueKind::Send, depth: 1 };
    check! {
        PostErrorKind::ConnectionInvalid => CONNECTION_INVALID;
        PostErrorKind::ConnectionDropped => CONNECTION_INVALID;
        PostErrorKind::ConnectionLost { reason: Reason::PathTimeout } => CONNECTION_INVALID;
        full => NO_MORE_ENTRIES;
        PostErrorKind::InsufficientResources("no key") => INSUFFICIENT_RESOURCES;
        PostErrorKind::TooLong { length: 2, maximum: 1 } => BUFFER_OVERFLOW;
        PostErrorKind::InlineTooLong { length: 2, maximum: 1 } => BUFFER_OVERFLOW;
        PostErrorKind::TooManyEntries { kind: OpKind::Send, entries: 2, maximum: 1 } => DATA_OVERRUN;
        PostErrorKind::AccessViolation { missing: Access::LOCAL_WRITE } => ACCESS_VIOLATION;
        PostErrorKind::NotBound => ACCESS_VIOLATION;
        PostErrorKind::ForeignMemory => ACCESS_VIOLATION;
        PostErrorKind::BeyondRemote { length: 9, remote: 8 } => ACCESS_VIOLATION;
        PostErrorKind::NoReads => REMOTE_ERROR;
        PostErrorKind::DeviceRemoved => DEVICE_REMOVED;
        PostError { kind: full, buffer: std::rc::Rc::new(()) } => NO_MORE_ENTRIES;
        CompletionError::new(Status::CANCELED) => CANCELED;
        CompletionError::new(Status::DATA_ERROR) => DATA_ERROR;
        RegisterError::Empty => INVALID_BUFFER_SIZE;
        RegisterError::TooLarge { length: 2, maximum: 1 } => INVALID_PARAMETER;
        RegisterError::OutOfMemory { length: 1 } => INSUFFICIENT_RESOURCES;
        RegisterError::InsufficientResources("no key") => INSUFFICIENT_RESOURCES;
        RegisterError::Busy => DEVICE_BUSY;
        RegisterError::NotSupported("no such memory") => NOT_SUPPORTED;
        RegisterError::DeviceRemoved => DEVICE_REMOVED;
        TooShort { needed: 9, available: 8 } => BUFFER_OVERFLOW;
    }
}

// `?` turns a `Retained` into the error that it holds, with the private data of the peer (ERR-02).
#[test]
fn a_retained_error_is_its_error() {
    fn plain() -> Result<(), ConnectError> {
        let data = PrivateData::exact(&b"no"[..]);
        let error =
            ConnectError::Rejected { peer: NOBODY, private_data: Some(data), reason: Reason::MpaReject };
        Err(Retained { error, handle: Some(7) })?
    }
    let error = plain().unwrap_err();
    assert!(error.is_connector_usable());
    assert_eq!(error.private_data(), b"no");
    // The private data of the peer stays reachable behind the `io::Error`.
    let error = io::Error::from(error);
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ConnectError>());
    assert_eq!(inner.map(ConnectError::private_data), Some(&b"no"[..]));
}
