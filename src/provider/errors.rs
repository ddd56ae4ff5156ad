//! Translates the statuses of the state machines into the errors of the calls.

use std::net::SocketAddr;

use crate::error::{AcceptError, BindError, ConnectError, Reason};
use crate::proto::connector::Input;
use crate::status::Status;

/// Returns the error of a connect to `peer` that ended, or was refused, with `status`.
pub(crate) fn connect_error(status: Status, reason: Reason, peer: SocketAddr) -> ConnectError {
    match status {
        Status::CANCELED if reason == Reason::RUNTIME_ENDED => ConnectError::Other { peer, status, reason },
        Status::CONNECTION_REFUSED => ConnectError::Refused { peer, reason },
        Status::NETWORK_UNREACHABLE => ConnectError::NetworkUnreachable { peer },
        Status::HOST_UNREACHABLE => ConnectError::HostUnreachable { peer },
        Status::IO_TIMEOUT => ConnectError::TimedOut { peer, limit: None },
        Status::CONNECTION_ACTIVE => ConnectError::Active,
        Status::CONNECTION_INVALID => ConnectError::Invalid,
        Status::CANCELED => ConnectError::Canceled,
        Status::CONNECTION_ABORTED => ConnectError::Aborted { peer, reason },
        Status::DEVICE_REMOVED => ConnectError::DeviceRemoved,
        status => ConnectError::Other { peer, status, reason },
    }
}

/// Returns the error of an accept of a request of `peer` that ended, or was refused, with `status`.
pub(crate) fn accept_error(status: Status, reason: Reason, peer: SocketAddr) -> AcceptError {
    match status {
        Status::CANCELED if reason == Reason::RUNTIME_ENDED => AcceptError::Other { peer, status, reason },
        Status::CONNECTION_REFUSED => AcceptError::Refused { peer, private_data: None, reason },
        Status::CONNECTION_ABORTED => AcceptError::Aborted { peer, reason },
        Status::IO_TIMEOUT => AcceptError::TimedOut { peer },
        Status::CONNECTION_ACTIVE => AcceptError::Active,
        Status::CANCELED => AcceptError::Canceled,
        Status::DEVICE_REMOVED => AcceptError::DeviceRemoved,
        status => AcceptError::Other { peer, status, reason },
    }
}

/// Returns the error of the bind of a connector that the machine refused with `status`. `local` is where it is bound.
pub(crate) fn bind_error(status: Status, local: Option<SocketAddr>) -> BindError {
    match (status, local) {
        (Status::ADDRESS_ALREADY_ASSOCIATED, Some(local)) => BindError::AlreadyBound(local),
        (Status::DEVICE_REMOVED, _) => BindError::DeviceRemoved,
        _ => BindError::InvalidState("the connector is connecting or connected, or cannot be used again"),
    }
}

/// Returns the error of the bind or the listen of a listener that the machine refused with `status`. `local` is where
/// it is bound.
pub(crate) fn listen_error(status: Status, local: Option<SocketAddr>) -> BindError {
    match (status, local) {
        (Status::ADDRESS_ALREADY_ASSOCIATED, Some(local)) => BindError::AlreadyBound(local),
        (Status::DEVICE_REMOVED, _) => BindError::DeviceRemoved,
        (_, None) => BindError::InvalidState("the listener is not bound, or is closed"),
        (_, Some(_)) => BindError::InvalidState("the listener is listening already, or is closed"),
    }
}

/// Returns the input that reports the failure of an attempt to the machine.
pub(crate) fn report_of(error: &ConnectError) -> Input {
    match error {
        ConnectError::NetworkUnreachable { .. } => Input::Unreachable { network: true },
        ConnectError::HostUnreachable { .. } => Input::Unreachable { network: false },
        ConnectError::TimedOut { .. } => Input::TimedOut,
        ConnectError::Refused { .. } => Input::Refused { private_data: None },
        ConnectError::Rejected { private_data, .. } => Input::Refused { private_data: private_data.clone() },
        ConnectError::Bind(error) => Input::BindFailed(error.status()),
        ConnectError::NotSupported(_) => Input::BindFailed(Status::NOT_SUPPORTED),
        other => Input::Failed(other.status()),
    }
}
