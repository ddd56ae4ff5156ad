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

#[cfg(test)]
mod tests;
