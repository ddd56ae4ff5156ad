//! The vocabularies of other interfaces, compared with tables that are repeated here.

use std::io::ErrorKind;

use tokio_rdma::Status;
use tokio_rdma::status::porting::{
    CmEvent, CmPhase, CmSign, CmTransport, DatEvent, DatReturn, IbRejectReason, Outcome,
};

use CmTransport::{InfiniBand, Iwarp};

#[rustfmt::skip]
const CM_EVENTS: &[(u32, &str)] = &[
    (0, "ADDR_RESOLVED"), (1, "ADDR_ERROR"), (2, "ROUTE_RESOLVED"), (3, "ROUTE_ERROR"), (4, "CONNECT_REQUEST"),
    (5, "CONNECT_RESPONSE"), (6, "CONNECT_ERROR"), (7, "UNREACHABLE"), (8, "REJECTED"), (9, "ESTABLISHED"),
    (10, "DISCONNECTED"), (11, "DEVICE_REMOVAL"), (12, "MULTICAST_JOIN"), (13, "MULTICAST_ERROR"), (14, "ADDR_CHANGE"),
    (15, "TIMEWAIT_EXIT"),
];

#[rustfmt::skip]
const REJECT_REASONS: &[(u32, &str)] = &[
    (1, "NO_QP"), (3, "NO_RESOURCES"), (4, "TIMEOUT"), (6, "INVALID_COMM_ID"), (8, "INVALID_SERVICE_ID"),
    (10, "STALE_CONNECTION"), (24, "PORT_REDIRECT"), (25, "PORT_CM_REDIRECT"),
    (27, "INSUFFICIENT_RESPONDER_RESOURCES"), (28, "CONSUMER_DEFINED"), (35, "VENDOR_OPTION"),
];

#[rustfmt::skip]
const DAT_RETURNS: &[(u32, &str)] = &[
    (0, "SUCCESS"), (0x8001_0000, "ABORT"), (0x8002_0000, "CONN_QUAL_IN_USE"), (0x8003_0000, "INSUFFICIENT_RESOURCES"),
    (0x8004_0000, "INTERNAL_ERROR"), (0x8005_0000, "INVALID_HANDLE"), (0x8006_0000, "INVALID_PARAMETER"),
    (0x8007_0000, "INVALID_STATE"), (0x8008_0000, "LENGTH_ERROR"), (0x8009_0000, "MODEL_NOT_SUPPORTED"),
    (0x800B_0000, "PRIVILEGES_VIOLATION"), (0x800C_0000, "PROTECTION_VIOLATION"), (0x800D_0000, "QUEUE_EMPTY"),
    (0x800E_0000, "QUEUE_FULL"), (0x800F_0000, "TIMEOUT_EXPIRED"), (0x8011_0000, "PROVIDER_IN_USE"),
    (0x8012_0000, "INVALID_ADDRESS"), (0x8012_0060, "INVALID_ADDRESS_UNSUPPORTED"),
    (0x8012_0061, "INVALID_ADDRESS_UNREACHABLE"), (0x8012_0062, "INVALID_ADDRESS_MALFORMED"),
    (0x8013_0000, "INTERRUPTED_CALL"), (0x8014_0000, "CONN_QUAL_UNAVAILABLE"), (0x8016_0000, "PORT_IN_USE"),
    (0x8017_0000, "COMM_NOT_SUPPORTED"), (0xBFFF_0000, "NOT_IMPLEMENTED"),
];

#[rustfmt::skip]
const DAT_EVENTS: &[(u32, &str)] = &[
    (1, "DTO_COMPLETION"), (0x1001, "RMR_BIND_COMPLETION"), (0x2001, "CONNECTION_REQUEST"), (0x4001, "ESTABLISHED"),
    (0x4002, "PEER_REJECTED"), (0x4003, "NON_PEER_REJECTED"), (0x4004, "ACCEPT_COMPLETION_ERROR"),
    (0x4005, "DISCONNECTED"), (0x4006, "BROKEN"), (0x4007, "TIMED_OUT"), (0x4008, "UNREACHABLE"),
    (0x8001, "ASYNC_EVD_OVERFLOW"), (0x8002, "ASYNC_IA_CATASTROPHIC"), (0x8003, "ASYNC_EP_BROKEN"),
    (0x8004, "ASYNC_TIMED_OUT"), (0x8005, "ASYNC_PROVIDER_INTERNAL"), (0x8101, "HA_DOWN_TO_1"),
    (0x8102, "HA_UP_TO_MULTI_PATH"), (0x10001, "SOFTWARE"),
];

/// Compares the numbers of a type that have a name with a table, and shows an unknown one (ERR-05).
macro_rules! numbers {
    ($($type:ident: $table:ident, $unknown:literal => $text:literal;)*) => {$({
        let named: Vec<_> = $type::ALL.iter().filter_map(|value| Some((value.code(), value.name()?))).collect();
        assert_eq!(named, $table, stringify!($type));
        assert_eq!($type::from_code($unknown).code(), $unknown);
        assert_eq!($type::from_code($unknown).to_string(), $text);
    })*};
}

// Each number of the other interfaces has its name, and an unknown one is shown as a number (ERR-02, ERR-05).
#[test]
fn numbers_have_their_names() {
    numbers! {
        CmEvent: CM_EVENTS, 99 => "rdma_cm event 99";
        IbRejectReason: REJECT_REASONS, 77 => "reject reason 77";
        DatReturn: DAT_RETURNS, 0x9ABC_0001 => "0x9ABC0001";
        DatReturn: DAT_RETURNS, 0x8006_0025 => "INVALID_PARAMETER(0x25)";
        DatEvent: DAT_EVENTS, 0x4009 => "DAT event 0x4009";
    }
    for (status, reason) in [(28, Some(IbRejectReason::CONSUMER_DEFINED)), (-111, None)] {
        assert_eq!(IbRejectReason::from_status(status), reason);
    }
    for value in DatReturn::ALL.iter().filter(|value| **value != DatReturn::SUCCESS) {
        assert_eq!(value.class(), 0x8000_0000);
        assert_eq!(value.class() | value.kind() | u32::from(value.subtype()), value.code());
        assert_eq!(value.without_subtype().code(), value.code() & 0xFFFF_0000);
    }
    assert_eq!(DatReturn::SUCCESS.class(), 0);
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
    // Numbers that are recognized besides.
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
    // Nobody knows who refused on iWARP, and everybody that it was refused.
    let status = Status::from_cm(Connecting, CmEvent::REJECTED, refused, Iwarp);
    assert_eq!(status, Some(Status::CONNECTION_REFUSED));
    assert_eq!(Status::from_cm(Connecting, CmEvent::ADDR_RESOLVED, 0, Iwarp), None);
}

// The event by which rdma_cm signals an outcome leads back to that outcome (ERR-02).
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

// The numbers of calls in the table of outcomes are those of Linux (ERR-02).
#[test]
#[cfg(target_os = "linux")]
fn outcomes_have_the_numbers_of_linux() {
    let has = |outcome: Outcome, errno| outcome.cm().contains(&CmSign::Errno(errno));
    assert!(has(Outcome::OutOfResources, libc::ENOMEM) && has(Outcome::OutOfResources, libc::ENOSPC));
    assert!(has(Outcome::QueuePairBusy, libc::EISCONN) && has(Outcome::WrongMoment, libc::ENOTCONN));
    assert!(has(Outcome::PortInUse, libc::EADDRINUSE) && has(Outcome::DeviceRemoved, libc::ENODEV));
    for errno in [libc::EOPNOTSUPP, libc::ENOSYS, libc::ENOPROTOOPT] {
        assert!(has(Outcome::NotSupported, errno));
    }
}
