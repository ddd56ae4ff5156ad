//! The outcome of each error, in the vocabulary of uDAPL, NetworkDirect 1 and NDK.

use super::{
    AcceptError, BindError, CompletionError, ConnectError, DisconnectError, NotifyError, OpenError,
    PostErrorKind, Reason, RegisterError, ResizeError, StateError, StreamBroken, StreamError, WordError,
};
use crate::status::porting::{CmEvent, CmPhase, CmTransport, IbRejectReason, Outcome};
use crate::types::{DisconnectReason, TooShort};

impl Reason {
    /// Returns the outcome of a connect that the peer refused for this cause.
    fn refusal(&self) -> Outcome {
        match *self {
            Self::Errno(code) if code == libc::ECONNREFUSED => Outcome::NoListener,
            Self::Cm { event, status } => {
                let infiniband = IbRejectReason::from_status(status).is_some();
                let transport = if infiniband { CmTransport::InfiniBand } else { CmTransport::Iwarp };
                let outcome = Outcome::from_cm_in(CmPhase::Connecting, event, status, transport);
                // A reject of iWARP with this number is the answer of TCP where the driver connects inside of the call.
                let unheard = event == CmEvent::REJECTED && status == -libc::ECONNREFUSED;
                match outcome {
                    None if unheard => Outcome::NoListener,
                    // Without data nothing shows that the application rejected.
                    None | Some(Outcome::PeerRejected) => Outcome::PeerUnable,
                    Some(outcome) => outcome,
                }
            }
            _ => Outcome::PeerUnable,
        }
    }
}

/// Implements `outcome` for errors: by the arms, and of the other variants by the status.
macro_rules! outcomes {
    ($($(#[$doc:meta])* $error:ident { $($pattern:pat => $outcome:expr,)* })+) => {$(
        impl $error {
            /// Returns the outcome, which has the values of the other interfaces.
            $(#[$doc])*
            pub fn outcome(&self) -> Outcome {
                match self {
                    $($pattern => $outcome,)*
                    other => Outcome::of(other.status()),
                }
            }
        }
    )+};
}

outcomes! {
    OpenError {}
    BindError {}
    ConnectError {
        Self::Refused { reason, .. } => reason.refusal(),
        Self::Rejected { .. } => Outcome::PeerRejected,
        Self::Aborted { .. } => Outcome::PeerLeft,
        Self::Bind(error) => error.outcome(),
    }
    AcceptError {
        // The same to each interface, whether the peer said so or just went away.
        Self::Refused { .. } | Self::Aborted { .. } => Outcome::PeerGaveUp,
    }
    DisconnectError {
        Self::Lost { .. } => Outcome::ConnectionBroken,
    }
    DisconnectReason {
        Self::Peer | Self::Local => Outcome::PeerDisconnected,
        Self::Lost { .. } => Outcome::ConnectionBroken,
    }
    StateError {}
    PostErrorKind {
        Self::ConnectionLost { .. } => Outcome::ConnectionBroken,
    }
    CompletionError {}
    NotifyError {}
    ResizeError {}
    RegisterError {
        // Its status is that of private data which is too long.
        Self::Empty => Outcome::InvalidArgument,
    }
    TooShort {}
    WordError {}
    StreamBroken {
        Self::Connection(reason) => reason.outcome(),
        Self::Post(error) => error.outcome(),
    }
    /// For [`Attempts`](Self::Attempts), the outcome of the last attempt.
    StreamError {
        Self::Connect(error) => error.outcome(),
        Self::Accept(error) => error.outcome(),
        Self::Bind(error) => error.outcome(),
        Self::Post(error) => error.outcome(),
        Self::Attempts(attempts) => attempts.last().map_or(Outcome::AddressInvalid, |(_, error)| error.outcome()),
    }
}

/// The status and the outcome of each error (ERR-01, ERR-02). A new variant does not compile until a row of these tables has it.
#[cfg(test)]
mod tests {
    use std::io;
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::error::{PostError, ProtocolError, RegisterFromError, Retained};
    use crate::status::Status;
    use crate::types::{Access, AdapterId, OpKind, QueueKind};

    /// Compares the statuses and outcomes of values with those of the table, which has a row for each variant at least. Each error
    /// converts into an `io::Error` and back, unless the type is marked `plain`.
    macro_rules! table {
        (plain $error:ident: $($rows:tt)+) => { table! { @ignore, $error: $($rows)+ } };
        (struct $error:ident: $($value:expr => $status:ident, $outcome:ident;)+) => {
            $(table! { @row round_trip, $error, $value, $status, $outcome })+
        };
        (@$end:ident, $error:ident: $($variant:ident $({ $($field:tt)+ })? $(($($part:tt)+))? =>
            $status:ident, $outcome:ident;)+) => {
            #[allow(unreachable_patterns, reason = "a variant may have several rows")]
            let _covered = |error: &$error| match error {
                $($error::$variant { .. } => {})+
            };
            $(table! {
                @row $end, $error, $error::$variant $({ $($field)+ })? $(($($part)+))?, $status, $outcome
            })+
        };
        (@row $end:ident, $error:ident, $value:expr, $status:ident, $outcome:ident) => {
            let error: $error = $value;
            assert_eq!((error.status(), error.outcome()), (Status::$status, Outcome::$outcome), "{error:?}");
            $end(error, Status::$status);
        };
        ($error:ident: $($rows:tt)+) => { table! { @round_trip, $error: $($rows)+ } };
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

    fn too_short() -> TooShort {
        TooShort { needed: 2, available: 1 }
    }

    const REASON: Reason = Reason::PathTimeout;

    // Each error of opening and binding has its status (ERR-01, ERR-02) and leads to its outcome (ERR-07).
    #[test]
    fn errors_of_opening_and_binding() {
        let (address, ip) = (peer(), peer().ip());
        let (device, by) = ("mana_0".to_owned(), "^mana_0".to_owned());
        table! { OpenError:
            InvalidAddress(ip) => INVALID_ADDRESS, AddressInvalid;
            Excluded { address: ip, device, by } => INVALID_ADDRESS, AddressInvalid;
            InvalidAdapter(AdapterId(1)) => INVALID_PARAMETER, InvalidArgument;
            Unreachable(ip) => NETWORK_UNREACHABLE, NetworkUnreachable;
            Unsupported("a queue") => NOT_SUPPORTED, NotSupported;
            DeviceRemoved => DEVICE_REMOVED, DeviceRemoved;
            InvalidParameter { argument: 0, what: "depth".into() } => INVALID_PARAMETER, InvalidArgument;
            InvalidParameter { argument: 1, what: "depth".into() } => INVALID_PARAMETER_1, InvalidArgument;
            InvalidParameter { argument: 10, what: "depth".into() } => INVALID_PARAMETER_10, InvalidArgument;
            InvalidParameter { argument: 11, what: "depth".into() } => INVALID_PARAMETER, InvalidArgument;
            TooShort(too_short()) => BUFFER_OVERFLOW, InternalFailure;
            Os { call: "socket", source: os(24) } => INSUFFICIENT_RESOURCES, OutOfResources;
        }
        table! { BindError:
            SharingViolation(address) => SHARING_VIOLATION, PortInUse;
            TooManyAddresses(ip) => TOO_MANY_ADDRESSES, PortsExhausted;
            AlreadyBound(address) => ADDRESS_ALREADY_ASSOCIATED, AlreadyBound;
            InvalidAddress(ip) => INVALID_ADDRESS, AddressInvalid;
            InvalidState("closed") => INVALID_DEVICE_STATE, WrongMoment;
            DeviceRemoved => DEVICE_REMOVED, DeviceRemoved;
            Address { address, error: os(98) } => SHARING_VIOLATION, PortInUse;
            Address { address, error: os(99) } => INVALID_ADDRESS, AddressInvalid;
            Address { address, error: os(13) } => ACCESS_VIOLATION, InternalFailure;
            Os { call: "socket", source: os(12) } => INSUFFICIENT_RESOURCES, OutOfResources;
            Os { call: "bind", source: os(13) } => ACCESS_VIOLATION, InternalFailure;
        }
        table! { struct TooShort: too_short() => BUFFER_OVERFLOW, InternalFailure; }
        table! { WordError:
            TooShort(too_short()) => BUFFER_OVERFLOW, InternalFailure;
            Unaligned { offset: 4 } => INVALID_PARAMETER, InvalidArgument;
        }
    }

    // Each error of a connect has its status (ERR-01, ERR-02) and leads to its outcome (ERR-07).
    #[test]
    fn errors_of_connecting() {
        let (peer, reason, status) = (peer(), REASON, Status::REMOTE_ERROR);
        let cm = |status| Reason::Cm { event: CmEvent::REJECTED, status };
        let too_many = BindError::TooManyAddresses(peer.ip());
        table! { ConnectError:
            Refused { peer, reason: Reason::Errno(111) } => CONNECTION_REFUSED, NoListener;
            Refused { peer, reason: cm(8) } => CONNECTION_REFUSED, NoListener;
            Refused { peer, reason: cm(-111) } => CONNECTION_REFUSED, NoListener;
            Refused { peer, reason: cm(10) } => CONNECTION_REFUSED, StaleConnection;
            Refused { peer, reason: Reason::PeerClosed } => CONNECTION_REFUSED, PeerUnable;
            Refused { peer, reason: Reason::NotNow } => CONNECTION_REFUSED, PeerUnable;
            Refused { peer, reason: Reason::Errno(104) } => CONNECTION_REFUSED, PeerUnable;
            Refused { peer, reason: cm(1) } => CONNECTION_REFUSED, PeerUnable;
            Refused { peer, reason: cm(3) } => CONNECTION_REFUSED, PeerUnable;
            Refused { peer, reason: cm(-104) } => CONNECTION_REFUSED, PeerUnable;
            Rejected { peer, private_data: None, reason: cm(28) } => CONNECTION_REFUSED, PeerRejected;
            NetworkUnreachable { peer } => NETWORK_UNREACHABLE, NetworkUnreachable;
            HostUnreachable { peer } => HOST_UNREACHABLE, HostUnreachable;
            TimedOut { peer, limit: None } => IO_TIMEOUT, NoAnswer;
            InvalidBufferSize { length: 600, maximum: 508 } => INVALID_BUFFER_SIZE, PrivateDataTooLarge;
            Active => CONNECTION_ACTIVE, QueuePairBusy;
            QueuePairActive => CONNECTION_ACTIVE, QueuePairBusy;
            Invalid => CONNECTION_INVALID, WrongMoment;
            Canceled => CANCELED, Canceled;
            Aborted { peer, reason } => CONNECTION_ABORTED, PeerLeft;
            DeviceRemoved => DEVICE_REMOVED, DeviceRemoved;
            InvalidAddress(peer) => INVALID_ADDRESS, AddressInvalid;
            ForeignQueuePair => INVALID_PARAMETER, InvalidArgument;
            AddressAlreadyExists { peer } => ADDRESS_ALREADY_EXISTS, ConnectionExists;
            Bind(too_many) => TOO_MANY_ADDRESSES, PortsExhausted;
            Bind(BindError::SharingViolation(peer)) => SHARING_VIOLATION, PortInUse;
            NotSupported("an option") => NOT_SUPPORTED, NotSupported;
            Other { peer, status, reason } => REMOTE_ERROR, InternalFailure;
            Other { peer, status: Status::INSUFFICIENT_RESOURCES, reason } => INSUFFICIENT_RESOURCES, OutOfResources;
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
            Refused { peer, private_data: None, reason } => CONNECTION_REFUSED, PeerGaveUp;
            Aborted { peer, reason } => CONNECTION_ABORTED, PeerGaveUp;
            TimedOut { peer } => IO_TIMEOUT, NoAnswer;
            InvalidBufferSize { length: 600, maximum: 508 } => INVALID_BUFFER_SIZE, PrivateDataTooLarge;
            Active => CONNECTION_ACTIVE, QueuePairBusy;
            ForeignQueuePair => INVALID_PARAMETER, InvalidArgument;
            Canceled => CANCELED, Canceled;
            NotListening => INVALID_DEVICE_STATE, WrongMoment;
            DeviceRemoved => DEVICE_REMOVED, DeviceRemoved;
            NotSupported("an option") => NOT_SUPPORTED, NotSupported;
            Other { peer, status, reason } => REMOTE_ERROR, InternalFailure;
        }
        let retained = Retained { error: AcceptError::Active, handle: Some(()) };
        assert_eq!(
            (retained.status(), retained.outcome()),
            (Status::CONNECTION_ACTIVE, Outcome::QueuePairBusy)
        );
        round_trip(retained, Status::CONNECTION_ACTIVE);
        table! { DisconnectError:
            Lost { status, reason } => CONNECTION_INVALID, ConnectionBroken;
            Invalid => CONNECTION_INVALID, WrongMoment;
            Canceled => CANCELED, Canceled;
            TimedOut { limit: Duration::ZERO } => IO_TIMEOUT, NoAnswer;
            DeviceRemoved => DEVICE_REMOVED, DeviceRemoved;
        }
        table! { plain DisconnectReason:
            Peer => SUCCESS, PeerDisconnected;
            Local => SUCCESS, PeerDisconnected;
            Lost { status, reason } => REMOTE_ERROR, ConnectionBroken;
            DeviceRemoved => DEVICE_REMOVED, DeviceRemoved;
            Canceled => CANCELED, Canceled;
        }
        table! { StateError:
            ConnectionInvalid => CONNECTION_INVALID, WrongMoment;
            InvalidDeviceState => INVALID_DEVICE_STATE, WrongMoment;
        }
    }

    // Each error of a request has its status (ERR-01, ERR-02) and leads to its outcome (ERR-07).
    #[test]
    fn errors_of_requests() {
        let (queue, kind, maximum) = (QueueKind::Send, OpKind::Write, 1);
        table! { PostErrorKind:
            ConnectionInvalid => CONNECTION_INVALID, WrongMoment;
            ConnectionDropped => CONNECTION_INVALID, WrongMoment;
            ConnectionLost { reason: REASON } => CONNECTION_INVALID, ConnectionBroken;
            QueueFull { queue, depth: 1 } => NO_MORE_ENTRIES, InternalFailure;
            ReadsFull { limit: 1 } => NO_MORE_ENTRIES, InternalFailure;
            InsufficientResources("no key") => INSUFFICIENT_RESOURCES, OutOfResources;
            TooLong { length: 2, maximum } => BUFFER_OVERFLOW, InternalFailure;
            InlineTooLong { length: 2, maximum } => BUFFER_OVERFLOW, InternalFailure;
            TooManyEntries { kind, entries: 2, maximum } => DATA_OVERRUN, InternalFailure;
            AccessViolation { missing: Access::LOCAL_WRITE } => ACCESS_VIOLATION, InternalFailure;
            NotBound => ACCESS_VIOLATION, InternalFailure;
            ForeignMemory => ACCESS_VIOLATION, InternalFailure;
            BeyondRemote { length: 2, remote: 1 } => ACCESS_VIOLATION, InternalFailure;
            NoReads => REMOTE_ERROR, InternalFailure;
            DeviceRemoved => DEVICE_REMOVED, DeviceRemoved;
            InvalidOptions { argument: 4, kind, option: "fence" } => INVALID_PARAMETER_4, InvalidArgument;
            NotAtomic { length: 4, address: 0 } => INVALID_PARAMETER, InvalidArgument;
            NotHeld { slot: 7 } => INVALID_PARAMETER, InvalidArgument;
            NotSupported("atomics") => NOT_SUPPORTED, NotSupported;
            Device(12) => INSUFFICIENT_RESOURCES, OutOfResources;
        }
        let error = PostError { kind: PostErrorKind::NotBound, buffer: std::rc::Rc::new(()) };
        assert_eq!((error.status(), error.outcome()), (Status::ACCESS_VIOLATION, Outcome::InternalFailure));
        round_trip(error, Status::ACCESS_VIOLATION);
        table! { struct CompletionError:
            CompletionError::new(Status::CANCELED) => CANCELED, Canceled;
            CompletionError::new(Status::ACCESS_VIOLATION) => ACCESS_VIOLATION, InternalFailure;
            CompletionError::new(Status::DATA_ERROR) => DATA_ERROR, InternalFailure;
            CompletionError::new(Status::IO_TIMEOUT) => IO_TIMEOUT, NoAnswer;
        }
    }

    // Each error of a queue or of memory has its status (ERR-01, ERR-02) and leads to its outcome (ERR-07).
    #[test]
    fn errors_of_queues_and_memory() {
        let (length, maximum, limit) = (2, 1, 1);
        table! { NotifyError:
            Overrun { depth: 1 } => BUFFER_OVERFLOW, InternalFailure;
            Lost => INTERNAL_ERROR, InternalFailure;
            DeviceRemoved => DEVICE_REMOVED, DeviceRemoved;
        }
        table! { ResizeError:
            TooSmall { asked: 1, held: 2 } => BUFFER_OVERFLOW, InternalFailure;
            OutOfRange { asked: 2, maximum } => INVALID_PARAMETER, InvalidArgument;
            Ended(NotifyError::DeviceRemoved) => DEVICE_REMOVED, DeviceRemoved;
            Os { call: "ibv_resize_cq", source: os(12) } => INSUFFICIENT_RESOURCES, OutOfResources;
        }
        table! { RegisterError:
            Empty => INVALID_BUFFER_SIZE, InvalidArgument;
            TooLarge { length, maximum } => INVALID_PARAMETER, InvalidArgument;
            OutOfMemory { length } => INSUFFICIENT_RESOURCES, OutOfResources;
            InsufficientResources("no key") => INSUFFICIENT_RESOURCES, OutOfResources;
            MemoryLockLimit { length, limit } => INSUFFICIENT_RESOURCES, OutOfResources;
            Os { call: "mmap", source: os(12) } => INSUFFICIENT_RESOURCES, OutOfResources;
            NotSupported("DMA-BUF") => NOT_SUPPORTED, NotSupported;
            Busy => DEVICE_BUSY, InternalFailure;
            DeviceRemoved => DEVICE_REMOVED, DeviceRemoved;
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
        let aborted = ConnectError::Aborted { peer, reason: REASON };
        let attempts = vec![
            (peer, StreamError::Connect(ConnectError::Canceled)),
            (peer, StreamError::Connect(aborted.clone())),
        ];
        let (value, least, most) = (0, 1, 2);
        table! { StreamError:
            Resolve(os(113)) => HOST_UNREACHABLE, HostUnreachable;
            NoAddress => INVALID_ADDRESS, AddressInvalid;
            Destination("no port".into()) => INVALID_ADDRESS, AddressInvalid;
            Attempts(attempts) => CONNECTION_ABORTED, PeerLeft;
            Attempts(Vec::new()) => INVALID_ADDRESS, AddressInvalid;
            Open(OpenError::DeviceRemoved) => DEVICE_REMOVED, DeviceRemoved;
            Register(RegisterError::Busy) => DEVICE_BUSY, InternalFailure;
            Post(post) => CONNECTION_INVALID, ConnectionBroken;
            Bind(BindError::AlreadyBound(peer)) => ADDRESS_ALREADY_ASSOCIATED, AlreadyBound;
            Connect(aborted) => CONNECTION_ABORTED, PeerLeft;
            Accept(AcceptError::Aborted { peer, reason: REASON }) => CONNECTION_ABORTED, PeerGaveUp;
            Protocol { peer, error } => DATA_ERROR, InternalFailure;
            OutOfRange { what: "depth", value, least, most } => INVALID_PARAMETER, InvalidArgument;
            TimedOut { peer: None, limit: Duration::ZERO } => IO_TIMEOUT, NoAnswer;
        }
        table! { StreamBroken:
            Connection(lost) => IO_TIMEOUT, ConnectionBroken;
            Connection(DisconnectReason::Peer) => CONNECTION_DISCONNECTED, PeerDisconnected;
            Protocol(error) => DATA_ERROR, InternalFailure;
            Post(post) => CONNECTION_DISCONNECTED, ConnectionBroken;
            NoPath { after: Duration::ZERO, reason: DisconnectReason::Peer } => IO_TIMEOUT, NoAnswer;
            SessionUnknown { reason: DisconnectReason::Peer } => CONNECTION_DISCONNECTED, PeerDisconnected;
        }
    }
}
