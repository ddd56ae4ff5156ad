//! The outcome of each error. A new variant does not compile until a line of these tables has it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::error::ProtocolError;
use crate::status::Status;
use crate::types::{Access, AdapterId, OpKind, QueueKind};

/// Compares the outcomes of values with those of the table. Each line has a pattern, and values that match the pattern. The
/// patterns cover the type without a wildcard.
macro_rules! outcomes {
    ($error:ty: $($pattern:pat => [$($value:expr => $outcome:ident),+ $(,)?],)+) => {
        let covered = |error: &$error| match error {
            $($pattern => {})+
        };
        $($(
            let error: $error = $value;
            covered(&error);
            assert!(matches!(error, $pattern), "{error:?} is in the line of another variant");
            assert_eq!(error.outcome(), Outcome::$outcome, "{error:?}");
        )+)+
    };
}

fn peer() -> SocketAddr {
    ([192, 0, 2, 1], 7000).into()
}

fn os(code: i32) -> Arc<io::Error> {
    io::Error::from_raw_os_error(code).into()
}

const REASON: Reason = Reason::PathTimeout;

// Each error of opening and binding leads to its outcome (ERR-07).
#[test]
fn outcomes_of_opening_and_binding() {
    let ip = peer().ip();
    let parameter = |argument| OpenError::InvalidParameter { argument, what: "depth".into() };
    let (device, by) = ("mana_0".to_owned(), "^mana_0".to_owned());
    outcomes! { OpenError:
        OpenError::InvalidAddress(_) => [OpenError::InvalidAddress(ip) => AddressInvalid],
        OpenError::Excluded { .. } => [OpenError::Excluded { address: ip, device, by } => AddressInvalid],
        OpenError::InvalidAdapter(_) => [OpenError::InvalidAdapter(AdapterId(1)) => InvalidArgument],
        OpenError::Unreachable(_) => [OpenError::Unreachable(ip) => NetworkUnreachable],
        OpenError::Unsupported(_) => [OpenError::Unsupported("a queue") => NotSupported],
        OpenError::DeviceRemoved => [OpenError::DeviceRemoved => DeviceRemoved],
        OpenError::InvalidParameter { .. } => [
            parameter(1) => InvalidArgument,
            parameter(10) => InvalidArgument,
            parameter(11) => InvalidArgument,
        ],
        OpenError::TooShort(_) => [OpenError::TooShort(too_short()) => InternalFailure],
        OpenError::Os { .. } => [OpenError::Os { call: "socket", source: os(24) } => OutOfResources],
    }
    outcomes! { BindError:
        BindError::SharingViolation(_) => [BindError::SharingViolation(peer()) => PortInUse],
        BindError::TooManyAddresses(_) => [BindError::TooManyAddresses(ip) => PortsExhausted],
        BindError::AlreadyBound(_) => [BindError::AlreadyBound(peer()) => AlreadyBound],
        BindError::InvalidAddress(_) => [BindError::InvalidAddress(ip) => AddressInvalid],
        BindError::InvalidState(_) => [BindError::InvalidState("closed") => WrongMoment],
        BindError::DeviceRemoved => [BindError::DeviceRemoved => DeviceRemoved],
        BindError::Address { .. } => [
            BindError::Address { address: peer(), error: os(98) } => PortInUse,
            BindError::Address { address: peer(), error: os(99) } => AddressInvalid,
        ],
        BindError::Os { .. } => [BindError::Os { call: "socket", source: os(12) } => OutOfResources],
    }
    outcomes! { TooShort: TooShort { .. } => [too_short() => InternalFailure], }
    outcomes! { WordError:
        WordError::TooShort(_) => [WordError::TooShort(too_short()) => InternalFailure],
        WordError::Unaligned { .. } => [WordError::Unaligned { offset: 4 } => InvalidArgument],
    }
}

fn too_short() -> TooShort {
    TooShort { needed: 2, available: 1 }
}

// Each error of a connect leads to its outcome (ERR-07).
#[test]
fn outcomes_of_connecting() {
    let (peer, reason, status) = (peer(), REASON, Status::REMOTE_ERROR);
    let cm = |status| Reason::Cm { event: CmEvent::REJECTED, status };
    let refused = |reason| ConnectError::Refused { peer, reason };
    let other = |status| ConnectError::Other { peer, status, reason };
    outcomes! { ConnectError:
        ConnectError::Refused { .. } => [
            refused(Reason::Errno(111)) => NoListener,
            refused(cm(8)) => NoListener,
            refused(cm(-111)) => NoListener,
            refused(cm(10)) => StaleConnection,
            refused(Reason::PeerClosed) => PeerUnable,
            refused(Reason::NotNow) => PeerUnable,
            refused(Reason::Errno(104)) => PeerUnable,
            refused(cm(1)) => PeerUnable,
            refused(cm(3)) => PeerUnable,
            refused(cm(-104)) => PeerUnable,
        ],
        ConnectError::Rejected { .. } => [
            ConnectError::Rejected { peer, private_data: None, reason: cm(28) } => PeerRejected,
        ],
        ConnectError::NetworkUnreachable { .. } => [
            ConnectError::NetworkUnreachable { peer } => NetworkUnreachable,
        ],
        ConnectError::HostUnreachable { .. } => [ConnectError::HostUnreachable { peer } => HostUnreachable],
        ConnectError::TimedOut { .. } => [ConnectError::TimedOut { peer, limit: None } => NoAnswer],
        ConnectError::InvalidBufferSize { .. } => [
            ConnectError::InvalidBufferSize { length: 600, maximum: 508 } => PrivateDataTooLarge,
        ],
        ConnectError::Active => [ConnectError::Active => QueuePairBusy],
        ConnectError::QueuePairActive => [ConnectError::QueuePairActive => QueuePairBusy],
        ConnectError::Invalid => [ConnectError::Invalid => WrongMoment],
        ConnectError::Canceled => [ConnectError::Canceled => Canceled],
        ConnectError::Aborted { .. } => [ConnectError::Aborted { peer, reason } => PeerLeft],
        ConnectError::DeviceRemoved => [ConnectError::DeviceRemoved => DeviceRemoved],
        ConnectError::InvalidAddress(_) => [ConnectError::InvalidAddress(peer) => AddressInvalid],
        ConnectError::ForeignQueuePair => [ConnectError::ForeignQueuePair => InvalidArgument],
        ConnectError::AddressAlreadyExists { .. } => [
            ConnectError::AddressAlreadyExists { peer } => ConnectionExists,
        ],
        ConnectError::Bind(_) => [
            ConnectError::Bind(BindError::TooManyAddresses(peer.ip())) => PortsExhausted,
            ConnectError::Bind(BindError::SharingViolation(peer)) => PortInUse,
        ],
        ConnectError::NotSupported(_) => [ConnectError::NotSupported("an option") => NotSupported],
        ConnectError::Other { .. } => [
            other(status) => InternalFailure,
            other(Status::INSUFFICIENT_RESOURCES) => OutOfResources,
        ],
    }
    let retained = Retained { error: ConnectError::Canceled, handle: Some(()) };
    assert_eq!(retained.outcome(), Outcome::Canceled);
}

// Each error of an accept or a disconnect leads to its outcome (ERR-07).
#[test]
fn outcomes_of_accepting_and_disconnecting() {
    let (peer, reason, status) = (peer(), REASON, Status::REMOTE_ERROR);
    outcomes! { AcceptError:
        AcceptError::Refused { .. } => [AcceptError::Refused { peer, private_data: None, reason } => PeerGaveUp],
        AcceptError::Aborted { .. } => [AcceptError::Aborted { peer, reason } => PeerGaveUp],
        AcceptError::TimedOut { .. } => [AcceptError::TimedOut { peer } => NoAnswer],
        AcceptError::InvalidBufferSize { .. } => [
            AcceptError::InvalidBufferSize { length: 600, maximum: 508 } => PrivateDataTooLarge,
        ],
        AcceptError::Active => [AcceptError::Active => QueuePairBusy],
        AcceptError::ForeignQueuePair => [AcceptError::ForeignQueuePair => InvalidArgument],
        AcceptError::Canceled => [AcceptError::Canceled => Canceled],
        AcceptError::NotListening => [AcceptError::NotListening => WrongMoment],
        AcceptError::DeviceRemoved => [AcceptError::DeviceRemoved => DeviceRemoved],
        AcceptError::NotSupported(_) => [AcceptError::NotSupported("an option") => NotSupported],
        AcceptError::Other { .. } => [AcceptError::Other { peer, status, reason } => InternalFailure],
    }
    let retained = Retained { error: AcceptError::Active, handle: Some(()) };
    assert_eq!(retained.outcome(), Outcome::QueuePairBusy);
    outcomes! { DisconnectError:
        DisconnectError::Lost { .. } => [DisconnectError::Lost { status, reason } => ConnectionBroken],
        DisconnectError::Invalid => [DisconnectError::Invalid => WrongMoment],
        DisconnectError::Canceled => [DisconnectError::Canceled => Canceled],
        DisconnectError::TimedOut { .. } => [DisconnectError::TimedOut { limit: Duration::ZERO } => NoAnswer],
        DisconnectError::DeviceRemoved => [DisconnectError::DeviceRemoved => DeviceRemoved],
    }
    outcomes! { DisconnectReason:
        DisconnectReason::Peer => [DisconnectReason::Peer => PeerDisconnected],
        DisconnectReason::Local => [DisconnectReason::Local => PeerDisconnected],
        DisconnectReason::Lost { .. } => [DisconnectReason::Lost { status, reason } => ConnectionBroken],
        DisconnectReason::DeviceRemoved => [DisconnectReason::DeviceRemoved => DeviceRemoved],
        DisconnectReason::Canceled => [DisconnectReason::Canceled => Canceled],
    }
    outcomes! { StateError:
        StateError::ConnectionInvalid => [StateError::ConnectionInvalid => WrongMoment],
        StateError::InvalidDeviceState => [StateError::InvalidDeviceState => WrongMoment],
    }
}

// Each error of a request leads to its outcome (ERR-07).
#[test]
fn outcomes_of_requests() {
    let (queue, kind, maximum) = (QueueKind::Send, OpKind::Write, 1);
    let options = |argument| PostErrorKind::InvalidOptions { argument, kind, option: "fence" };
    outcomes! { PostErrorKind:
        PostErrorKind::ConnectionInvalid => [PostErrorKind::ConnectionInvalid => WrongMoment],
        PostErrorKind::ConnectionDropped => [PostErrorKind::ConnectionDropped => WrongMoment],
        PostErrorKind::ConnectionLost { .. } => [
            PostErrorKind::ConnectionLost { reason: REASON } => ConnectionBroken,
        ],
        PostErrorKind::QueueFull { .. } => [PostErrorKind::QueueFull { queue, depth: 1 } => InternalFailure],
        PostErrorKind::InsufficientResources(_) => [
            PostErrorKind::InsufficientResources("no key") => OutOfResources,
        ],
        PostErrorKind::TooLong { .. } => [PostErrorKind::TooLong { length: 2, maximum } => InternalFailure],
        PostErrorKind::InlineTooLong { .. } => [
            PostErrorKind::InlineTooLong { length: 2, maximum } => InternalFailure,
        ],
        PostErrorKind::TooManyEntries { .. } => [
            PostErrorKind::TooManyEntries { kind, entries: 2, maximum } => InternalFailure,
        ],
        PostErrorKind::AccessViolation { .. } => [
            PostErrorKind::AccessViolation { missing: Access::LOCAL_WRITE } => InternalFailure,
        ],
        PostErrorKind::NotBound => [PostErrorKind::NotBound => InternalFailure],
        PostErrorKind::ForeignMemory => [PostErrorKind::ForeignMemory => InternalFailure],
        PostErrorKind::BeyondRemote { .. } => [
            PostErrorKind::BeyondRemote { length: 2, remote: 1 } => InternalFailure,
        ],
        PostErrorKind::NoReads => [PostErrorKind::NoReads => InternalFailure],
        PostErrorKind::DeviceRemoved => [PostErrorKind::DeviceRemoved => DeviceRemoved],
        PostErrorKind::InvalidOptions { .. } => [options(4) => InvalidArgument],
        PostErrorKind::NotAtomic { .. } => [
            PostErrorKind::NotAtomic { length: 4, address: 0 } => InvalidArgument,
        ],
        PostErrorKind::NotSupported(_) => [PostErrorKind::NotSupported("atomics") => NotSupported],
        PostErrorKind::Device(_) => [PostErrorKind::Device(12) => OutOfResources],
    }
    assert_eq!(PostError { kind: PostErrorKind::NotBound, buffer: () }.outcome(), Outcome::InternalFailure);
    outcomes! { CompletionError:
        CompletionError { .. } => [
            CompletionError::new(Status::CANCELED) => Canceled,
            CompletionError::new(Status::ACCESS_VIOLATION) => InternalFailure,
            CompletionError::new(Status::IO_TIMEOUT) => NoAnswer,
        ],
    }
}

// Each error of a queue or of memory leads to its outcome (ERR-07).
#[test]
fn outcomes_of_queues_and_memory() {
    let (length, maximum, limit) = (2, 1, 1);
    let removed = NotifyError::DeviceRemoved;
    outcomes! { NotifyError:
        NotifyError::Overrun { .. } => [NotifyError::Overrun { depth: 1 } => InternalFailure],
        NotifyError::DeviceRemoved => [removed => DeviceRemoved],
    }
    outcomes! { ResizeError:
        ResizeError::TooSmall { .. } => [ResizeError::TooSmall { asked: 1, held: 2 } => InternalFailure],
        ResizeError::OutOfRange { .. } => [ResizeError::OutOfRange { asked: 2, maximum } => InvalidArgument],
        ResizeError::Ended(_) => [ResizeError::Ended(removed) => DeviceRemoved],
        ResizeError::Os { .. } => [
            ResizeError::Os { call: "ibv_resize_cq", source: os(12) } => OutOfResources,
        ],
    }
    outcomes! { RegisterError:
        RegisterError::Empty => [RegisterError::Empty => InvalidArgument],
        RegisterError::TooLarge { .. } => [RegisterError::TooLarge { length, maximum } => InvalidArgument],
        RegisterError::OutOfMemory { .. } => [RegisterError::OutOfMemory { length } => OutOfResources],
        RegisterError::InsufficientResources(_) => [
            RegisterError::InsufficientResources("no key") => OutOfResources,
        ],
        RegisterError::MemoryLockLimit { .. } => [
            RegisterError::MemoryLockLimit { length, limit } => OutOfResources,
        ],
        RegisterError::Os { .. } => [RegisterError::Os { call: "mmap", source: os(12) } => OutOfResources],
        RegisterError::NotSupported(_) => [RegisterError::NotSupported("DMA-BUF") => NotSupported],
        RegisterError::Busy => [RegisterError::Busy => InternalFailure],
        RegisterError::DeviceRemoved => [RegisterError::DeviceRemoved => DeviceRemoved],
    }
    let from = RegisterFromError { kind: RegisterError::Busy, memory: Some(()) };
    assert_eq!(from.outcome(), RegisterError::Busy.outcome());
}

// Each error of a stream leads to its outcome (ERR-07).
#[test]
fn outcomes_of_streams() {
    let (peer, error) = (peer(), ProtocolError::Foreign);
    let lost = DisconnectReason::Lost { status: Status::IO_TIMEOUT, reason: REASON };
    let post = PostErrorKind::ConnectionLost { reason: REASON };
    let attempts = vec![
        (peer, StreamError::Connect(ConnectError::Canceled)),
        (peer, StreamError::Connect(ConnectError::Aborted { peer, reason: REASON })),
    ];
    let (value, least, most) = (0, 1, 2);
    outcomes! { StreamError:
        StreamError::Resolve(_) => [StreamError::Resolve(os(113)) => HostUnreachable],
        StreamError::NoAddress => [StreamError::NoAddress => AddressInvalid],
        StreamError::Destination(_) => [StreamError::Destination("no port".into()) => AddressInvalid],
        StreamError::Attempts(_) => [
            StreamError::Attempts(attempts) => PeerLeft,
            StreamError::Attempts(Vec::new()) => AddressInvalid,
        ],
        StreamError::Open(_) => [StreamError::Open(OpenError::DeviceRemoved) => DeviceRemoved],
        StreamError::Register(_) => [StreamError::Register(RegisterError::Busy) => InternalFailure],
        StreamError::Post(_) => [StreamError::Post(post) => ConnectionBroken],
        StreamError::Bind(_) => [StreamError::Bind(BindError::AlreadyBound(peer)) => AlreadyBound],
        StreamError::Connect(_) => [
            StreamError::Connect(ConnectError::Aborted { peer, reason: REASON }) => PeerLeft,
        ],
        StreamError::Accept(_) => [
            StreamError::Accept(AcceptError::Aborted { peer, reason: REASON }) => PeerGaveUp,
        ],
        StreamError::Protocol { .. } => [StreamError::Protocol { peer, error } => InternalFailure],
        StreamError::OutOfRange { .. } => [
            StreamError::OutOfRange { what: "depth", value, least, most } => InvalidArgument,
        ],
        StreamError::TimedOut { .. } => [
            StreamError::TimedOut { peer: None, limit: Duration::ZERO } => NoAnswer,
        ],
    }
    outcomes! { StreamBroken:
        StreamBroken::Connection(_) => [
            StreamBroken::Connection(lost) => ConnectionBroken,
            StreamBroken::Connection(DisconnectReason::Peer) => PeerDisconnected,
        ],
        StreamBroken::Protocol(_) => [StreamBroken::Protocol(error) => InternalFailure],
        StreamBroken::Post(_) => [StreamBroken::Post(post) => ConnectionBroken],
    }
}
