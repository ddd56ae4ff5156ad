//! The status and the outcome of each error (ERR-01, ERR-02). A new variant does not compile until a line of these tables has it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::error::ProtocolError;
use crate::status::Status;
use crate::types::{Access, AdapterId, OpKind, QueueKind};

/// Compares the statuses and outcomes of values with those of the table. Each line has a pattern, and values that match the
/// pattern. The patterns cover the type without a wildcard. Each error converts into an `io::Error` and back, unless the type is
/// marked `plain`.
macro_rules! table {
    (plain $error:ty: $($rest:tt)+) => { table! { @ignore, $error, $($rest)+ } };
    (@$end:ident, $error:ty, $($pattern:pat => [$($value:expr => ($status:ident, $outcome:ident)),+ $(,)?],)+) => {
        let covered = |error: &$error| match error {
            $($pattern => {})+
        };
        $($(
            let error: $error = $value;
            covered(&error);
            assert!(matches!(error, $pattern), "{error:?} is in the line of another variant");
            assert_eq!((error.status(), error.outcome()), (Status::$status, Outcome::$outcome), "{error:?}");
            $end(error, Status::$status);
        )+)+
    };
    ($error:ty: $($rest:tt)+) => { table! { @round_trip, $error, $($rest)+ } };
}

/// Ignores an error whose type does not convert into an `io::Error`.
fn ignore<E>(_error: E, _status: Status) {}

/// Converts an error into an `io::Error` and back, also when another error wraps it.
#[track_caller]
fn round_trip(error: impl Into<io::Error>, status: Status) {
    let error = error.into();
    assert_eq!(error.kind(), status.io_kind(), "{error:?}");
    assert_eq!(Status::from_io(&error), status, "{error:?}");
    let wrapped = io::Error::other(error);
    assert_eq!(Status::from_io(&wrapped), status, "{wrapped:?}");
}

fn peer() -> SocketAddr {
    ([192, 0, 2, 1], 7000).into()
}

fn os(code: i32) -> Arc<io::Error> {
    io::Error::from_raw_os_error(code).into()
}

const REASON: Reason = Reason::PathTimeout;

// Each error of opening and binding has its status (ERR-01, ERR-02) and leads to its outcome (ERR-07).
#[test]
fn errors_of_opening_and_binding() {
    let ip = peer().ip();
    let parameter = |argument| OpenError::InvalidParameter { argument, what: "depth".into() };
    let (device, by) = ("mana_0".to_owned(), "^mana_0".to_owned());
    table! { OpenError:
        OpenError::InvalidAddress(_) => [OpenError::InvalidAddress(ip) => (INVALID_ADDRESS, AddressInvalid)],
        OpenError::Excluded { .. } => [
            OpenError::Excluded { address: ip, device, by } => (INVALID_ADDRESS, AddressInvalid),
        ],
        OpenError::InvalidAdapter(_) => [
            OpenError::InvalidAdapter(AdapterId(1)) => (INVALID_PARAMETER, InvalidArgument),
        ],
        OpenError::Unreachable(_) => [
            OpenError::Unreachable(ip) => (NETWORK_UNREACHABLE, NetworkUnreachable),
        ],
        OpenError::Unsupported(_) => [OpenError::Unsupported("a queue") => (NOT_SUPPORTED, NotSupported)],
        OpenError::DeviceRemoved => [OpenError::DeviceRemoved => (DEVICE_REMOVED, DeviceRemoved)],
        OpenError::InvalidParameter { .. } => [
            parameter(0) => (INVALID_PARAMETER, InvalidArgument),
            parameter(1) => (INVALID_PARAMETER_1, InvalidArgument),
            parameter(10) => (INVALID_PARAMETER_10, InvalidArgument),
            parameter(11) => (INVALID_PARAMETER, InvalidArgument),
        ],
        OpenError::TooShort(_) => [OpenError::TooShort(too_short()) => (BUFFER_OVERFLOW, InternalFailure)],
        OpenError::Os { .. } => [
            OpenError::Os { call: "socket", source: os(24) } => (INSUFFICIENT_RESOURCES, OutOfResources),
        ],
    }
    table! { BindError:
        BindError::SharingViolation(_) => [
            BindError::SharingViolation(peer()) => (SHARING_VIOLATION, PortInUse),
        ],
        BindError::TooManyAddresses(_) => [
            BindError::TooManyAddresses(ip) => (TOO_MANY_ADDRESSES, PortsExhausted),
        ],
        BindError::AlreadyBound(_) => [
            BindError::AlreadyBound(peer()) => (ADDRESS_ALREADY_ASSOCIATED, AlreadyBound),
        ],
        BindError::InvalidAddress(_) => [BindError::InvalidAddress(ip) => (INVALID_ADDRESS, AddressInvalid)],
        BindError::InvalidState(_) => [
            BindError::InvalidState("closed") => (INVALID_DEVICE_STATE, WrongMoment),
        ],
        BindError::DeviceRemoved => [BindError::DeviceRemoved => (DEVICE_REMOVED, DeviceRemoved)],
        BindError::Address { .. } => [
            BindError::Address { address: peer(), error: os(98) } => (SHARING_VIOLATION, PortInUse),
            BindError::Address { address: peer(), error: os(99) } => (INVALID_ADDRESS, AddressInvalid),
            BindError::Address { address: peer(), error: os(13) } => (ACCESS_VIOLATION, InternalFailure),
        ],
        BindError::Os { .. } => [
            BindError::Os { call: "socket", source: os(12) } => (INSUFFICIENT_RESOURCES, OutOfResources),
            BindError::Os { call: "bind", source: os(13) } => (ACCESS_VIOLATION, InternalFailure),
        ],
    }
    table! { TooShort: TooShort { .. } => [too_short() => (BUFFER_OVERFLOW, InternalFailure)], }
    table! { WordError:
        WordError::TooShort(_) => [WordError::TooShort(too_short()) => (BUFFER_OVERFLOW, InternalFailure)],
        WordError::Unaligned { .. } => [
            WordError::Unaligned { offset: 4 } => (INVALID_PARAMETER, InvalidArgument),
        ],
    }
}

fn too_short() -> TooShort {
    TooShort { needed: 2, available: 1 }
}

// Each error of a connect has its status (ERR-01, ERR-02) and leads to its outcome (ERR-07).
#[test]
fn errors_of_connecting() {
    let (peer, reason, status) = (peer(), REASON, Status::REMOTE_ERROR);
    let cm = |status| Reason::Cm { event: CmEvent::REJECTED, status };
    let refused = |reason| ConnectError::Refused { peer, reason };
    let other = |status| ConnectError::Other { peer, status, reason };
    table! { ConnectError:
        ConnectError::Refused { .. } => [
            refused(Reason::Errno(111)) => (CONNECTION_REFUSED, NoListener),
            refused(cm(8)) => (CONNECTION_REFUSED, NoListener),
            refused(cm(-111)) => (CONNECTION_REFUSED, NoListener),
            refused(cm(10)) => (CONNECTION_REFUSED, StaleConnection),
            refused(Reason::PeerClosed) => (CONNECTION_REFUSED, PeerUnable),
            refused(Reason::NotNow) => (CONNECTION_REFUSED, PeerUnable),
            refused(Reason::Errno(104)) => (CONNECTION_REFUSED, PeerUnable),
            refused(cm(1)) => (CONNECTION_REFUSED, PeerUnable),
            refused(cm(3)) => (CONNECTION_REFUSED, PeerUnable),
            refused(cm(-104)) => (CONNECTION_REFUSED, PeerUnable),
        ],
        ConnectError::Rejected { .. } => [
            ConnectError::Rejected { peer, private_data: None, reason: cm(28) } => (CONNECTION_REFUSED, PeerRejected),
        ],
        ConnectError::NetworkUnreachable { .. } => [
            ConnectError::NetworkUnreachable { peer } => (NETWORK_UNREACHABLE, NetworkUnreachable),
        ],
        ConnectError::HostUnreachable { .. } => [
            ConnectError::HostUnreachable { peer } => (HOST_UNREACHABLE, HostUnreachable),
        ],
        ConnectError::TimedOut { .. } => [
            ConnectError::TimedOut { peer, limit: None } => (IO_TIMEOUT, NoAnswer),
        ],
        ConnectError::InvalidBufferSize { .. } => [
            ConnectError::InvalidBufferSize { length: 600, maximum: 508 } => (INVALID_BUFFER_SIZE, PrivateDataTooLarge),
        ],
        ConnectError::Active => [ConnectError::Active => (CONNECTION_ACTIVE, QueuePairBusy)],
        ConnectError::QueuePairActive => [
            ConnectError::QueuePairActive => (CONNECTION_ACTIVE, QueuePairBusy),
        ],
        ConnectError::Invalid => [ConnectError::Invalid => (CONNECTION_INVALID, WrongMoment)],
        ConnectError::Canceled => [ConnectError::Canceled => (CANCELED, Canceled)],
        ConnectError::Aborted { .. } => [
            ConnectError::Aborted { peer, reason } => (CONNECTION_ABORTED, PeerLeft),
        ],
        ConnectError::DeviceRemoved => [ConnectError::DeviceRemoved => (DEVICE_REMOVED, DeviceRemoved)],
        ConnectError::InvalidAddress(_) => [
            ConnectError::InvalidAddress(peer) => (INVALID_ADDRESS, AddressInvalid),
        ],
        ConnectError::ForeignQueuePair => [
            ConnectError::ForeignQueuePair => (INVALID_PARAMETER, InvalidArgument),
        ],
        ConnectError::AddressAlreadyExists { .. } => [
            ConnectError::AddressAlreadyExists { peer } => (ADDRESS_ALREADY_EXISTS, ConnectionExists),
        ],
        ConnectError::Bind(_) => [
            ConnectError::Bind(BindError::TooManyAddresses(peer.ip())) => (TOO_MANY_ADDRESSES, PortsExhausted),
            ConnectError::Bind(BindError::SharingViolation(peer)) => (SHARING_VIOLATION, PortInUse),
        ],
        ConnectError::NotSupported(_) => [
            ConnectError::NotSupported("an option") => (NOT_SUPPORTED, NotSupported),
        ],
        ConnectError::Other { .. } => [
            other(status) => (REMOTE_ERROR, InternalFailure),
            other(Status::INSUFFICIENT_RESOURCES) => (INSUFFICIENT_RESOURCES, OutOfResources),
        ],
    }
    let retained = Retained { error: ConnectError::Canceled, handle: Some(()) };
    assert_eq!((retained.status(), retained.outcome()), (Status::CANCELED, Outcome::Canceled));
    round_trip(retained, Status::CANCELED);
}

// Each error of an accept or a disconnect has its status (ERR-01, ERR-02) and leads to its outcome (ERR-07).
#[test]
fn errors_of_accepting_and_disconnecting() {
    let (peer, reason, status) = (peer(), REASON, Status::REMOTE_ERROR);
    table! { AcceptError:
        AcceptError::Refused { .. } => [
            AcceptError::Refused { peer, private_data: None, reason } => (CONNECTION_REFUSED, PeerGaveUp),
        ],
        AcceptError::Aborted { .. } => [
            AcceptError::Aborted { peer, reason } => (CONNECTION_ABORTED, PeerGaveUp),
        ],
        AcceptError::TimedOut { .. } => [AcceptError::TimedOut { peer } => (IO_TIMEOUT, NoAnswer)],
        AcceptError::InvalidBufferSize { .. } => [
            AcceptError::InvalidBufferSize { length: 600, maximum: 508 } => (INVALID_BUFFER_SIZE, PrivateDataTooLarge),
        ],
        AcceptError::Active => [AcceptError::Active => (CONNECTION_ACTIVE, QueuePairBusy)],
        AcceptError::ForeignQueuePair => [
            AcceptError::ForeignQueuePair => (INVALID_PARAMETER, InvalidArgument),
        ],
        AcceptError::Canceled => [AcceptError::Canceled => (CANCELED, Canceled)],
        AcceptError::NotListening => [AcceptError::NotListening => (INVALID_DEVICE_STATE, WrongMoment)],
        AcceptError::DeviceRemoved => [AcceptError::DeviceRemoved => (DEVICE_REMOVED, DeviceRemoved)],
        AcceptError::NotSupported(_) => [
            AcceptError::NotSupported("an option") => (NOT_SUPPORTED, NotSupported),
        ],
        AcceptError::Other { .. } => [
            AcceptError::Other { peer, status, reason } => (REMOTE_ERROR, InternalFailure),
        ],
    }
    let retained = Retained { error: AcceptError::Active, handle: Some(()) };
    assert_eq!((retained.status(), retained.outcome()), (Status::CONNECTION_ACTIVE, Outcome::QueuePairBusy));
    round_trip(retained, Status::CONNECTION_ACTIVE);
    table! { DisconnectError:
        DisconnectError::Lost { .. } => [
            DisconnectError::Lost { status, reason } => (CONNECTION_INVALID, ConnectionBroken),
        ],
        DisconnectError::Invalid => [DisconnectError::Invalid => (CONNECTION_INVALID, WrongMoment)],
        DisconnectError::Canceled => [DisconnectError::Canceled => (CANCELED, Canceled)],
        DisconnectError::TimedOut { .. } => [
            DisconnectError::TimedOut { limit: Duration::ZERO } => (IO_TIMEOUT, NoAnswer),
        ],
        DisconnectError::DeviceRemoved => [DisconnectError::DeviceRemoved => (DEVICE_REMOVED, DeviceRemoved)],
    }
    table! { plain DisconnectReason:
        DisconnectReason::Peer => [DisconnectReason::Peer => (SUCCESS, PeerDisconnected)],
        DisconnectReason::Local => [DisconnectReason::Local => (SUCCESS, PeerDisconnected)],
        DisconnectReason::Lost { .. } => [
            DisconnectReason::Lost { status, reason } => (REMOTE_ERROR, ConnectionBroken),
        ],
        DisconnectReason::DeviceRemoved => [
            DisconnectReason::DeviceRemoved => (DEVICE_REMOVED, DeviceRemoved),
        ],
        DisconnectReason::Canceled => [DisconnectReason::Canceled => (CANCELED, Canceled)],
    }
    table! { StateError:
        StateError::ConnectionInvalid => [StateError::ConnectionInvalid => (CONNECTION_INVALID, WrongMoment)],
        StateError::InvalidDeviceState => [
            StateError::InvalidDeviceState => (INVALID_DEVICE_STATE, WrongMoment),
        ],
    }
}

// Each error of a request has its status (ERR-01, ERR-02) and leads to its outcome (ERR-07).
#[test]
fn errors_of_requests() {
    let (queue, kind, maximum) = (QueueKind::Send, OpKind::Write, 1);
    let options = |argument| PostErrorKind::InvalidOptions { argument, kind, option: "fence" };
    table! { PostErrorKind:
        PostErrorKind::ConnectionInvalid => [
            PostErrorKind::ConnectionInvalid => (CONNECTION_INVALID, WrongMoment),
        ],
        PostErrorKind::ConnectionDropped => [
            PostErrorKind::ConnectionDropped => (CONNECTION_INVALID, WrongMoment),
        ],
        PostErrorKind::ConnectionLost { .. } => [
            PostErrorKind::ConnectionLost { reason: REASON } => (CONNECTION_INVALID, ConnectionBroken),
        ],
        PostErrorKind::QueueFull { .. } => [
            PostErrorKind::QueueFull { queue, depth: 1 } => (NO_MORE_ENTRIES, InternalFailure),
        ],
        PostErrorKind::InsufficientResources(_) => [
            PostErrorKind::InsufficientResources("no key") => (INSUFFICIENT_RESOURCES, OutOfResources),
        ],
        PostErrorKind::TooLong { .. } => [
            PostErrorKind::TooLong { length: 2, maximum } => (BUFFER_OVERFLOW, InternalFailure),
        ],
        PostErrorKind::InlineTooLong { .. } => [
            PostErrorKind::InlineTooLong { length: 2, maximum } => (BUFFER_OVERFLOW, InternalFailure),
        ],
        PostErrorKind::TooManyEntries { .. } => [
            PostErrorKind::TooManyEntries { kind, entries: 2, maximum } => (DATA_OVERRUN, InternalFailure),
        ],
        PostErrorKind::AccessViolation { .. } => [
            PostErrorKind::AccessViolation { missing: Access::LOCAL_WRITE } => (ACCESS_VIOLATION, InternalFailure),
        ],
        PostErrorKind::NotBound => [PostErrorKind::NotBound => (ACCESS_VIOLATION, InternalFailure)],
        PostErrorKind::ForeignMemory => [PostErrorKind::ForeignMemory => (ACCESS_VIOLATION, InternalFailure)],
        PostErrorKind::BeyondRemote { .. } => [
            PostErrorKind::BeyondRemote { length: 2, remote: 1 } => (ACCESS_VIOLATION, InternalFailure),
        ],
        PostErrorKind::NoReads => [PostErrorKind::NoReads => (REMOTE_ERROR, InternalFailure)],
        PostErrorKind::DeviceRemoved => [PostErrorKind::DeviceRemoved => (DEVICE_REMOVED, DeviceRemoved)],
        PostErrorKind::InvalidOptions { .. } => [options(4) => (INVALID_PARAMETER_4, InvalidArgument)],
        PostErrorKind::NotAtomic { .. } => [
            PostErrorKind::NotAtomic { length: 4, address: 0 } => (INVALID_PARAMETER, InvalidArgument),
        ],
        PostErrorKind::NotSupported(_) => [
            PostErrorKind::NotSupported("atomics") => (NOT_SUPPORTED, NotSupported),
        ],
        PostErrorKind::Device(_) => [PostErrorKind::Device(12) => (INSUFFICIENT_RESOURCES, OutOfResources)],
    }
    let error = PostError { kind: PostErrorKind::NotBound, buffer: std::rc::Rc::new(()) };
    assert_eq!((error.status(), error.outcome()), (Status::ACCESS_VIOLATION, Outcome::InternalFailure));
    round_trip(error, Status::ACCESS_VIOLATION);
    table! { CompletionError:
        CompletionError { .. } => [
            CompletionError::new(Status::CANCELED) => (CANCELED, Canceled),
            CompletionError::new(Status::ACCESS_VIOLATION) => (ACCESS_VIOLATION, InternalFailure),
            CompletionError::new(Status::DATA_ERROR) => (DATA_ERROR, InternalFailure),
            CompletionError::new(Status::IO_TIMEOUT) => (IO_TIMEOUT, NoAnswer),
        ],
    }
}

// Each error of a queue or of memory has its status (ERR-01, ERR-02) and leads to its outcome (ERR-07).
#[test]
fn errors_of_queues_and_memory() {
    let (length, maximum, limit) = (2, 1, 1);
    let removed = NotifyError::DeviceRemoved;
    table! { NotifyError:
        NotifyError::Overrun { .. } => [
            NotifyError::Overrun { depth: 1 } => (BUFFER_OVERFLOW, InternalFailure),
        ],
        NotifyError::DeviceRemoved => [removed => (DEVICE_REMOVED, DeviceRemoved)],
    }
    table! { ResizeError:
        ResizeError::TooSmall { .. } => [
            ResizeError::TooSmall { asked: 1, held: 2 } => (BUFFER_OVERFLOW, InternalFailure),
        ],
        ResizeError::OutOfRange { .. } => [
            ResizeError::OutOfRange { asked: 2, maximum } => (INVALID_PARAMETER, InvalidArgument),
        ],
        ResizeError::Ended(_) => [ResizeError::Ended(removed) => (DEVICE_REMOVED, DeviceRemoved)],
        ResizeError::Os { .. } => [
            ResizeError::Os { call: "ibv_resize_cq", source: os(12) } => (INSUFFICIENT_RESOURCES, OutOfResources),
        ],
    }
    table! { RegisterError:
        RegisterError::Empty => [RegisterError::Empty => (INVALID_BUFFER_SIZE, InvalidArgument)],
        RegisterError::TooLarge { .. } => [
            RegisterError::TooLarge { length, maximum } => (INVALID_PARAMETER, InvalidArgument),
        ],
        RegisterError::OutOfMemory { .. } => [
            RegisterError::OutOfMemory { length } => (INSUFFICIENT_RESOURCES, OutOfResources),
        ],
        RegisterError::InsufficientResources(_) => [
            RegisterError::InsufficientResources("no key") => (INSUFFICIENT_RESOURCES, OutOfResources),
        ],
        RegisterError::MemoryLockLimit { .. } => [
            RegisterError::MemoryLockLimit { length, limit } => (INSUFFICIENT_RESOURCES, OutOfResources),
        ],
        RegisterError::Os { .. } => [
            RegisterError::Os { call: "mmap", source: os(12) } => (INSUFFICIENT_RESOURCES, OutOfResources),
        ],
        RegisterError::NotSupported(_) => [
            RegisterError::NotSupported("DMA-BUF") => (NOT_SUPPORTED, NotSupported),
        ],
        RegisterError::Busy => [RegisterError::Busy => (DEVICE_BUSY, InternalFailure)],
        RegisterError::DeviceRemoved => [RegisterError::DeviceRemoved => (DEVICE_REMOVED, DeviceRemoved)],
    }
    let from = RegisterFromError { kind: RegisterError::Busy, memory: Some(()) };
    assert_eq!(from.outcome(), RegisterError::Busy.outcome());
}

// Each error of a stream has its status (ERR-01, ERR-02) and leads to its outcome (ERR-07).
#[test]
fn errors_of_streams() {
    let (peer, error) = (peer(), ProtocolError::Foreign);
    let lost = DisconnectReason::Lost { status: Status::IO_TIMEOUT, reason: REASON };
    let post = PostErrorKind::ConnectionLost { reason: REASON };
    let attempts = vec![
        (peer, StreamError::Connect(ConnectError::Canceled)),
        (peer, StreamError::Connect(ConnectError::Aborted { peer, reason: REASON })),
    ];
    let (value, least, most) = (0, 1, 2);
    table! { StreamError:
        StreamError::Resolve(_) => [StreamError::Resolve(os(113)) => (HOST_UNREACHABLE, HostUnreachable)],
        StreamError::NoAddress => [StreamError::NoAddress => (INVALID_ADDRESS, AddressInvalid)],
        StreamError::Destination(_) => [
            StreamError::Destination("no port".into()) => (INVALID_ADDRESS, AddressInvalid),
        ],
        StreamError::Attempts(_) => [
            StreamError::Attempts(attempts) => (CONNECTION_ABORTED, PeerLeft),
            StreamError::Attempts(Vec::new()) => (INVALID_ADDRESS, AddressInvalid),
        ],
        StreamError::Open(_) => [
            StreamError::Open(OpenError::DeviceRemoved) => (DEVICE_REMOVED, DeviceRemoved),
        ],
        StreamError::Register(_) => [
            StreamError::Register(RegisterError::Busy) => (DEVICE_BUSY, InternalFailure),
        ],
        StreamError::Post(_) => [StreamError::Post(post) => (CONNECTION_INVALID, ConnectionBroken)],
        StreamError::Bind(_) => [
            StreamError::Bind(BindError::AlreadyBound(peer)) => (ADDRESS_ALREADY_ASSOCIATED, AlreadyBound),
        ],
        StreamError::Connect(_) => [
            StreamError::Connect(ConnectError::Aborted { peer, reason: REASON }) => (CONNECTION_ABORTED, PeerLeft),
        ],
        StreamError::Accept(_) => [
            StreamError::Accept(AcceptError::Aborted { peer, reason: REASON }) => (CONNECTION_ABORTED, PeerGaveUp),
        ],
        StreamError::Protocol { .. } => [
            StreamError::Protocol { peer, error } => (DATA_ERROR, InternalFailure),
        ],
        StreamError::OutOfRange { .. } => [
            StreamError::OutOfRange { what: "depth", value, least, most } => (INVALID_PARAMETER, InvalidArgument),
        ],
        StreamError::TimedOut { .. } => [
            StreamError::TimedOut { peer: None, limit: Duration::ZERO } => (IO_TIMEOUT, NoAnswer),
        ],
    }
    table! { StreamBroken:
        StreamBroken::Connection(_) => [
            StreamBroken::Connection(lost) => (IO_TIMEOUT, ConnectionBroken),
            StreamBroken::Connection(DisconnectReason::Peer) => (CONNECTION_DISCONNECTED, PeerDisconnected),
        ],
        StreamBroken::Protocol(_) => [StreamBroken::Protocol(error) => (DATA_ERROR, InternalFailure)],
        StreamBroken::Post(_) => [StreamBroken::Post(post) => (CONNECTION_DISCONNECTED, ConnectionBroken)],
    }
}
