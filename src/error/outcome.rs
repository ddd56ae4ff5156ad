//! The outcome of each error, in the vocabulary of uDAPL, NetworkDirect 1 and NDK.

use super::{
    AcceptError, BindError, CompletionError, ConnectError, DisconnectError, NotifyError, OpenError,
    PostError, PostErrorKind, Reason, RegisterError, RegisterFromError, ResizeError, StateError,
    StreamBroken, StreamError, WordError,
};
use crate::status::porting::{CmEvent, CmPhase, CmTransport, IbRejectReason, Outcome};
use crate::types::{DisconnectReason, TooShort};

impl Reason {
    /// Returns the outcome of a connect that the peer refused for this cause.
    fn refusal(&self) -> Outcome {
        match *self {
            Self::Errno(code) if code == crate::status::ECONNREFUSED => Outcome::NoListener,
            Self::Cm { event, status } => {
                let infiniband = IbRejectReason::from_status(status).is_some();
                let transport = if infiniband { CmTransport::InfiniBand } else { CmTransport::Iwarp };
                let outcome = Outcome::from_cm_in(CmPhase::Connecting, event, status, transport);
                // A reject of iWARP with this number is the answer of TCP where the driver connects inside of the call.
                let unheard = event == CmEvent::REJECTED && status == -crate::status::ECONNREFUSED;
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

impl ConnectError {
    /// Returns the outcome, which has the values of the other interfaces.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Refused { reason, .. } => reason.refusal(),
            Self::Rejected { .. } => Outcome::PeerRejected,
            Self::Aborted { .. } => Outcome::PeerLeft,
            Self::Bind(error) => error.outcome(),
            other => Outcome::of(other.status()),
        }
    }
}

impl DisconnectError {
    /// Returns the outcome, which has the values of the other interfaces.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Lost { .. } => Outcome::ConnectionBroken,
            other => Outcome::of(other.status()),
        }
    }
}

impl AcceptError {
    /// Returns the outcome, which has the values of the other interfaces.
    pub fn outcome(&self) -> Outcome {
        match self {
            // The same to each interface, whether the peer said so or just went away.
            Self::Refused { .. } | Self::Aborted { .. } => Outcome::PeerGaveUp,
            other => Outcome::of(other.status()),
        }
    }
}

impl DisconnectReason {
    /// Returns the outcome, which has the values of the other interfaces.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Peer | Self::Local => Outcome::PeerDisconnected,
            Self::Lost { .. } => Outcome::ConnectionBroken,
            Self::DeviceRemoved => Outcome::DeviceRemoved,
            Self::Canceled => Outcome::Canceled,
        }
    }
}

impl PostErrorKind {
    /// Returns the outcome, which has the values of the other interfaces.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::ConnectionLost { .. } => Outcome::ConnectionBroken,
            other => Outcome::of(other.status()),
        }
    }
}

impl StreamBroken {
    /// Returns the outcome, which has the values of the other interfaces.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Connection(reason) => reason.outcome(),
            Self::Protocol(_) => Outcome::of(self.status()),
            Self::Post(error) => error.outcome(),
        }
    }
}

impl StreamError {
    /// Returns the outcome, which has the values of the other interfaces. For [`Attempts`](Self::Attempts), the outcome of
    /// the last attempt.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Connect(error) => error.outcome(),
            Self::Accept(error) => error.outcome(),
            Self::Bind(error) => error.outcome(),
            Self::Post(error) => error.outcome(),
            Self::Attempts(attempts) => {
                attempts.last().map_or(Outcome::AddressInvalid, |(_, error)| error.outcome())
            }
            other => Outcome::of(other.status()),
        }
    }
}

/// Implements `outcome` for errors whose status determines it.
macro_rules! by_status {
    ($($error:ty),*) => {$(
        impl $error {
            /// Returns the outcome, which has the values of the other interfaces.
            pub fn outcome(&self) -> Outcome {
                Outcome::of(self.status())
            }
        }
    )*};
}

by_status!(OpenError, BindError, StateError, NotifyError, ResizeError, CompletionError, TooShort, WordError);

impl RegisterError {
    /// Returns the outcome, which has the values of the other interfaces.
    pub fn outcome(&self) -> Outcome {
        match self {
            // Its status is that of private data which is too long.
            Self::Empty => Outcome::InvalidArgument,
            other => Outcome::of(other.status()),
        }
    }
}

impl<B> PostError<B> {
    /// Returns the outcome, which has the values of the other interfaces.
    pub fn outcome(&self) -> Outcome {
        self.kind.outcome()
    }
}

impl<T> RegisterFromError<T> {
    /// Returns the outcome, which has the values of the other interfaces.
    pub fn outcome(&self) -> Outcome {
        self.kind.outcome()
    }
}

#[cfg(test)]
mod tests;
