//! The status vocabulary, compared with tables that are repeated here.

use std::io::{self, ErrorKind as K};
use std::net::SocketAddr;

use tokio_rdma::error::{BindError, CompletionError, ConnectError, Reason, Retained};
use tokio_rdma::status::{DeviceEvent, Status, StatusClass, WcStatus};
use tokio_rdma::types::{PrivateData, QueueKind};

const NOBODY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 1);

/// Number, name, name of the NTSTATUS, class, kind of an `io::Error`.
#[rustfmt::skip]
const STATUSES: &[(u32, &str, &str, StatusClass, K)] = &[
    (0x0000_0000, "SUCCESS", "STATUS_SUCCESS", StatusClass::Success, K::Other),
    (0x0000_0102, "TIMEOUT", "STATUS_TIMEOUT", StatusClass::Timeout, K::TimedOut),
    (0x0000_0103, "PENDING", "STATUS_PENDING", StatusClass::Pending, K::WouldBlock),
    (0x8000_0005, "BUFFER_OVERFLOW", "STATUS_BUFFER_OVERFLOW", StatusClass::Warning, K::InvalidInput),
    (0x8000_0011, "DEVICE_BUSY", "STATUS_DEVICE_BUSY", StatusClass::Warning, K::ResourceBusy),
    (0x8000_001A, "NO_MORE_ENTRIES", "STATUS_NO_MORE_ENTRIES", StatusClass::Warning, K::WouldBlock),
    (0xC000_0001, "UNSUCCESSFUL", "STATUS_UNSUCCESSFUL", StatusClass::Error, K::Other),
    (0xC000_0005, "ACCESS_VIOLATION", "STATUS_ACCESS_VIOLATION", StatusClass::Error, K::PermissionDenied),
    (0xC000_0008, "INVALID_HANDLE", "STATUS_INVALID_HANDLE", StatusClass::Error, K::InvalidInput),
    (0xC000_000D, "INVALID_PARAMETER", "STATUS_INVALID_PARAMETER", StatusClass::Error, K::InvalidInput),
    (0xC000_0010, "INVALID_DEVICE_REQUEST", "STATUS_INVALID_DEVICE_REQUEST", StatusClass::Error, K::InvalidInput),
    (0xC000_0017, "NO_MEMORY", "STATUS_NO_MEMORY", StatusClass::Error, K::OutOfMemory),
    (0xC000_0023, "BUFFER_TOO_SMALL", "STATUS_BUFFER_TOO_SMALL", StatusClass::Error, K::InvalidInput),
    (0xC000_0030, "INVALID_PARAMETER_MIX", "STATUS_INVALID_PARAMETER_MIX", StatusClass::Error, K::InvalidInput),
    (0xC000_003C, "DATA_OVERRUN", "STATUS_DATA_OVERRUN", StatusClass::Error, K::InvalidInput),
    (0xC000_003E, "DATA_ERROR", "STATUS_DATA_ERROR", StatusClass::Error, K::InvalidData),
    (0xC000_0043, "SHARING_VIOLATION", "STATUS_SHARING_VIOLATION", StatusClass::Error, K::AddrInUse),
    (0xC000_009A, "INSUFFICIENT_RESOURCES", "STATUS_INSUFFICIENT_RESOURCES", StatusClass::Error, K::OutOfMemory),
    (0xC000_00A3, "DEVICE_NOT_READY", "STATUS_DEVICE_NOT_READY", StatusClass::Error, K::Other),
    (0xC000_00B5, "IO_TIMEOUT", "STATUS_IO_TIMEOUT", StatusClass::Error, K::TimedOut),
    (0xC000_00BB, "NOT_SUPPORTED", "STATUS_NOT_SUPPORTED", StatusClass::Error, K::Unsupported),
    (0xC000_00CC, "BAD_NETWORK_NAME", "STATUS_BAD_NETWORK_NAME", StatusClass::Error, K::AddrNotAvailable),
    (0xC000_00E5, "INTERNAL_ERROR", "STATUS_INTERNAL_ERROR", StatusClass::Error, K::Other),
    (0xC000_00EF, "INVALID_PARAMETER_1", "STATUS_INVALID_PARAMETER_1", StatusClass::Error, K::InvalidInput),
    (0xC000_00F0, "INVALID_PARAMETER_2", "STATUS_INVALID_PARAMETER_2", StatusClass::Error, K::InvalidInput),
    (0xC000_00F1, "INVALID_PARAMETER_3", "STATUS_INVALID_PARAMETER_3", StatusClass::Error, K::InvalidInput),
    (0xC000_00F2, "INVALID_PARAMETER_4", "STATUS_INVALID_PARAMETER_4", StatusClass::Error, K::InvalidInput),
    (0xC000_00F3, "INVALID_PARAMETER_5", "STATUS_INVALID_PARAMETER_5", StatusClass::Error, K::InvalidInput),
    (0xC000_00F4, "INVALID_PARAMETER_6", "STATUS_INVALID_PARAMETER_6", StatusClass::Error, K::InvalidInput),
    (0xC000_00F5, "INVALID_PARAMETER_7", "STATUS_INVALID_PARAMETER_7", StatusClass::Error, K::InvalidInput),
    (0xC000_00F6, "INVALID_PARAMETER_8", "STATUS_INVALID_PARAMETER_8", StatusClass::Error, K::InvalidInput),
    (0xC000_00F7, "INVALID_PARAMETER_9", "STATUS_INVALID_PARAMETER_9", StatusClass::Error, K::InvalidInput),
    (0xC000_00F8, "INVALID_PARAMETER_10", "STATUS_INVALID_PARAMETER_10", StatusClass::Error, K::InvalidInput),
    (0xC000_0120, "CANCELED", "STATUS_CANCELLED", StatusClass::Error, K::Other),
    (0xC000_013D, "REMOTE_ERROR", "STATUS_REMOTE_RESOURCES", StatusClass::Error, K::Other),
    (0xC000_0141, "INVALID_ADDRESS", "STATUS_INVALID_ADDRESS", StatusClass::Error, K::AddrNotAvailable),
    (0xC000_0184, "INVALID_DEVICE_STATE", "STATUS_INVALID_DEVICE_STATE", StatusClass::Error, K::InvalidInput),
    (0xC000_0206, "INVALID_BUFFER_SIZE", "STATUS_INVALID_BUFFER_SIZE", StatusClass::Error, K::InvalidInput),
    (0xC000_0209, "TOO_MANY_ADDRESSES", "STATUS_TOO_MANY_ADDRESSES", StatusClass::Error, K::AddrNotAvailable),
    (0xC000_020A, "ADDRESS_ALREADY_EXISTS", "STATUS_ADDRESS_ALREADY_EXISTS", StatusClass::Error, K::AddrInUse),
    (0xC000_020C, "CONNECTION_DISCONNECTED", "STATUS_CONNECTION_DISCONNECTED", StatusClass::Error, K::ConnectionReset),
    (0xC000_0236, "CONNECTION_REFUSED", "STATUS_CONNECTION_REFUSED", StatusClass::Error, K::ConnectionRefused),
    (0xC000_0238, "ADDRESS_ALREADY_ASSOCIATED", "STATUS_ADDRESS_ALREADY_ASSOCIATED", StatusClass::Error, K::InvalidInput),
    (0xC000_023A, "CONNECTION_INVALID", "STATUS_CONNECTION_INVALID", StatusClass::Error, K::NotConnected),
    (0xC000_023B, "CONNECTION_ACTIVE", "STATUS_CONNECTION_ACTIVE", StatusClass::Error, K::Other),
    (0xC000_023C, "NETWORK_UNREACHABLE", "STATUS_NETWORK_UNREACHABLE", StatusClass::Error, K::NetworkUnreachable),
    (0xC000_023D, "HOST_UNREACHABLE", "STATUS_HOST_UNREACHABLE", StatusClass::Error, K::HostUnreachable),
    (0xC000_0241, "CONNECTION_ABORTED", "STATUS_CONNECTION_ABORTED", StatusClass::Error, K::ConnectionAborted),
    (0xC000_02B6, "DEVICE_REMOVED", "STATUS_DEVICE_REMOVED", StatusClass::Error, K::Other),
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
    for &(code, name, nt_name, class, kind) in STATUSES {
        let status = Status::from_code(code);
        assert_eq!(status.name(), Some(name), "{code:#010X}");
        assert_eq!(status.nt_name(), Some(nt_name), "{name}");
        assert_eq!(status.class(), class, "{name}");
        assert_eq!(status.io_kind(), kind, "{name}");
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
    assert_eq!(unknown.io_kind(), K::Other);
    let error =
        ConnectError::Other { peer: NOBODY, status: unknown, reason: Reason::Local("a provider's own") };
    assert!(error.to_string().contains("0xC0FFEE01"), "{error}");
    let error = io::Error::from(error);
    assert!(error.to_string().contains("0xC0FFEE01"), "{error}");
    assert_eq!(Status::from_io(&error), unknown);

    assert_eq!(WcStatus::from_code(99).to_string(), "ibv_wc_status 99");
    assert_eq!(WcStatus::from_code(99).status(QueueKind::Send), Status::INTERNAL_ERROR);
    assert_eq!(DeviceEvent::from_code(99).to_string(), "ibv_event_type 99");
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
}

// An error without an errno has only its kind, and no error may become a numeric success (ERR-02, ERR-03).
#[test]
fn io_errors_without_errno_map_by_kind() {
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

// CM-19, CM-20: the four of the document and what has not begun (X2) leave the connector, all else burns it.
#[test]
fn connect_error_reports_whether_connector_is_usable() {
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

// ERR-02
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
