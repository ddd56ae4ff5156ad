//! Error types, one per family of calls.
//!
//! The error of a call has a NetworkDirect [`Status`] and converts into [`std::io::Error`]. An error of a call that consumes a
//! handle or a buffer returns it, see [`Retained`] and [`PostError`].
//!
//! # Texts
//! The `Display` text of an error is complete: it contains the texts of its causes. So [`source`](std::error::Error::source)
//! returns `None`, and a report that prints a chain of sources prints each cause once. The causes are fields of the errors.

// A field is called `r#source` so that `thiserror` does not make it the source: the text contains it.

/// Implements `status` for errors, by a table for each.
macro_rules! status_tables {
    ($($(#[$doc:meta])* $error:ident { $($pattern:pat => $status:expr,)+ })+) => {$(
        impl $error {
            /// Returns the ND status.
            $(#[$doc])*
            pub fn status(&self) -> Status {
                match self { $($pattern => $status,)+ }
            }
        }
    )+};
}

mod connection;
mod data;
mod outcome;
mod reason;
mod stream;

use std::{fmt, io};

use crate::status::porting::Outcome;
use crate::status::{Status, status_of_errno};
use crate::types::TooShort;

pub use connection::{AcceptError, BindError, ConnectError, DisconnectError, OpenError, StateError};
pub use data::{
    CompletionError, NotifyError, PostError, PostErrorKind, RegisterError, RegisterFromError, ResizeError,
    WordError,
};
pub use reason::{DecodeError, Excerpt, Reason, WcError};
pub use stream::{ProtocolError, StreamBroken, StreamError};

/// Implements `From` into `io::Error` for each type, and a function for the way back.
macro_rules! through_io {
    ($($error:ty),* $(,)?) => {
        $(impl From<$error> for io::Error {
            fn from(error: $error) -> Self {
                io::Error::new(error.status().io_kind(), error)
            }
        })*

        // Each of them has an outcome, too.
        $(const _: fn(&$error) -> Outcome = <$error>::outcome;)*

        /// Returns the status of an error of this crate, `None` for any other error.
        fn status_of(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Option<Status> {
            $(if let Some(error) = error.downcast_ref::<$error>() {
                return Some(error.status());
            })*
            None
        }
    };
}

through_io!(
    OpenError,
    BindError,
    ConnectError,
    AcceptError,
    DisconnectError,
    StateError,
    PostErrorKind,
    CompletionError,
    NotifyError,
    ResizeError,
    RegisterError,
    StreamError,
    StreamBroken,
    TooShort,
    WordError,
);

// Not in `crate::status`, which does not depend on the error types.
impl Status {
    /// Returns `INVALID_PARAMETER_n` for the argument with this number, 1-based.
    fn invalid_parameter(argument: u8) -> Self {
        match argument {
            1..=10 => Self::from_code(Self::INVALID_PARAMETER_1.code() + u32::from(argument) - 1),
            // ND numbers ten arguments. Beyond them the sum would be a number of another meaning.
            _ => Self::INVALID_PARAMETER,
        }
    }

    /// Returns the status of an `io::Error`.
    ///
    /// It is the status of the error of this crate inside `error`. Otherwise it is derived from the error number,
    /// otherwise from the error kind, and otherwise it is `UNSUCCESSFUL`. It is never numerically a success.
    ///
    /// Some error numbers have different meanings in bind and connect; they get the meaning of bind.
    pub fn from_io(error: &io::Error) -> Self {
        // A status inside may be `PENDING` if the user put it there; an error must not turn into a success.
        let inner = error.get_ref().and_then(|inner| match inner.downcast_ref::<io::Error>() {
            Some(wrapped) => Some(Self::from_io(wrapped)),
            None => status_of(inner).filter(|status| status.severity() >= 2),
        });
        inner
            .or_else(|| error.raw_os_error().and_then(status_of_errno))
            .unwrap_or_else(|| Self::from_kind(error.kind()))
    }

    /// Returns the status nearest to an error kind, for errors that have no number.
    fn from_kind(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::ConnectionRefused => Self::CONNECTION_REFUSED,
            io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => Self::NETWORK_UNREACHABLE,
            io::ErrorKind::HostUnreachable => Self::HOST_UNREACHABLE,
            io::ErrorKind::TimedOut => Self::IO_TIMEOUT,
            io::ErrorKind::AddrInUse => Self::SHARING_VIOLATION,
            io::ErrorKind::AddrNotAvailable => Self::INVALID_ADDRESS,
            io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull => Self::INSUFFICIENT_RESOURCES,
            io::ErrorKind::InvalidInput => Self::INVALID_PARAMETER,
            io::ErrorKind::NotConnected => Self::CONNECTION_INVALID,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
                Self::CONNECTION_DISCONNECTED
            }
            io::ErrorKind::ConnectionAborted => Self::CONNECTION_ABORTED,
            io::ErrorKind::PermissionDenied => Self::ACCESS_VIOLATION,
            io::ErrorKind::ResourceBusy => Self::DEVICE_BUSY,
            io::ErrorKind::Unsupported => Self::NOT_SUPPORTED,
            _ => Self::UNSUCCESSFUL,
        }
    }
}

/// The error of a call that consumes its handle, with the handle if it is unchanged.
///
/// The `?` operator converts it into the plain error, or into an `io::Error`.
pub struct Retained<E, H> {
    /// The error.
    pub error: E,
    /// The handle, if it can be used again; `None` if the attempt has ended.
    pub handle: Option<H>,
}

impl<E: fmt::Debug, H> fmt::Debug for Retained<E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retained")
            .field("error", &self.error)
            .field("usable", &self.handle.is_some())
            .finish()
    }
}

impl<E: fmt::Display, H> fmt::Display for Retained<E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<E: std::error::Error, H> std::error::Error for Retained<E, H> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

macro_rules! unwrap_retained {
    ($($error:ty),*) => {$(
        impl<H> From<Retained<$error, H>> for $error {
            fn from(retained: Retained<$error, H>) -> Self {
                retained.error
            }
        }

        impl<H> From<Retained<$error, H>> for io::Error {
            fn from(retained: Retained<$error, H>) -> Self {
                retained.error.into()
            }
        }

        impl<H> Retained<$error, H> {
            /// Returns the ND status.
            pub fn status(&self) -> Status {
                self.error.status()
            }

            /// Returns the outcome, which has the values of the other interfaces.
            pub fn outcome(&self) -> Outcome {
                self.error.outcome()
            }
        }
    )*};
}

unwrap_retained!(ConnectError, AcceptError);
