//! The errors of statuses that the machines answer with.

use crate::error::{AcceptError, BindError, ConnectError, Reason};
use crate::proto::connector::Input;
use crate::status::Status;

/// The error of a connect that ended, or was refused, with `status`.
pub(crate) fn connect_error(status: Status, reason: Reason) -> ConnectError {
    match status {
        Status::CONNECTION_REFUSED => ConnectError::Refused { private_data: None, reason },
        Status::NETWORK_UNREACHABLE => ConnectError::NetworkUnreachable,
        Status::HOST_UNREACHABLE => ConnectError::HostUnreachable,
        Status::IO_TIMEOUT => ConnectError::TimedOut,
        Status::CONNECTION_ACTIVE => ConnectError::Active,
        Status::CONNECTION_INVALID => ConnectError::Invalid,
        Status::CANCELED => ConnectError::Canceled,
        Status::CONNECTION_ABORTED => ConnectError::Aborted { reason },
        Status::DEVICE_REMOVED => ConnectError::DeviceRemoved,
        status => ConnectError::Other { status, reason },
    }
}

/// The error of an accept that ended, or was refused, with `status`.
pub(crate) fn accept_error(status: Status, reason: Reason) -> AcceptError {
    match status {
        Status::CONNECTION_REFUSED => AcceptError::Refused { private_data: None, reason },
        Status::CONNECTION_ABORTED => AcceptError::Aborted { reason },
        Status::IO_TIMEOUT => AcceptError::TimedOut,
        Status::CONNECTION_ACTIVE => AcceptError::Active,
        Status::CANCELED => AcceptError::Canceled,
        Status::DEVICE_REMOVED => AcceptError::DeviceRemoved,
        status => AcceptError::Other { status, reason },
    }
}

/// The error of a bind that the machine refused with `status`.
pub(crate) fn bind_error(status: Status) -> BindError {
    match status {
        Status::ADDRESS_ALREADY_ASSOCIATED => BindError::AlreadyBound,
        Status::DEVICE_REMOVED => BindError::DeviceRemoved,
        _ => BindError::InvalidState,
    }
}

/// What the failure of an attempt means to the machine.
pub(crate) fn report_of(error: &ConnectError) -> Input {
    match error {
        ConnectError::NetworkUnreachable => Input::Unreachable { network: true },
        ConnectError::HostUnreachable => Input::Unreachable { network: false },
        ConnectError::TimedOut => Input::TimedOut,
        ConnectError::Refused { private_data, .. } => Input::Refused { private_data: private_data.clone() },
        ConnectError::Bind(error) => Input::BindFailed(error.status()),
        ConnectError::NotSupported(_) => Input::BindFailed(Status::NOT_SUPPORTED),
        other => Input::Failed(other.status()),
    }
}
