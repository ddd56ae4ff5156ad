//! The states of a queue pair, and what may be posted in each.
//!
//! ```text
//! Unconnected --associate--> Associated --establish--> Connected --end--> Over
//!      ^                          |
//!      +-------dissociate---------+      a connect or accept that failed leaves it as it was (CM-21)
//! ```

use crate::error::PostErrorKind;
use crate::types::OpKind;

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuePairState {
    /// Receives may be posted; it is free for a connector.
    Unconnected,
    /// A connector is connecting it; receives may still be posted.
    Associated,
    /// Everything may be posted.
    Connected,
    /// It was connected once. Receives are accepted and come back flushed, other requests are refused (`DIS-10`).
    Over,
}

impl QueuePairState {
    /// Gives the queue pair to a connector: at most one at a time has it (`CM-22`). If it is not free, the caller reports
    /// `CONNECTION_ACTIVE`.
    pub(crate) fn associate(&mut self) -> Result<(), Busy> {
        if *self != Self::Unconnected {
            return Err(Busy);
        }
        *self = Self::Associated;
        Ok(())
    }

    /// Frees the queue pair after an attempt to connect that failed.
    pub(crate) fn dissociate(&mut self) {
        if *self == Self::Associated {
            *self = Self::Unconnected;
        }
    }

    /// Connects the queue pair: the handshake is complete.
    pub(crate) fn establish(&mut self) {
        if *self == Self::Associated {
            *self = Self::Connected;
        }
    }

    /// Ends the queue pair: its connection has ended, or it was flushed while it had one.
    pub(crate) fn end(&mut self) {
        *self = Self::Over;
    }

    /// Checks that requests of this kind may be posted: all but receives need a connection (`QP-06`).
    pub(crate) fn admits(self, kind: OpKind) -> Result<(), PostErrorKind> {
        let admits = self == Self::Connected || kind == OpKind::Receive;
        if admits { Ok(()) } else { Err(PostErrorKind::ConnectionInvalid) }
    }
}

/// The queue pair is connecting or connected already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Busy;

#[cfg(test)]
mod tests {
    use super::*;

    // Receives may be posted in every state, requests while connected alone (QP-05, QP-06, CM-21, CM-22, DIS-10).
    #[test]
    fn every_state_admits_what_it_should() {
        use QueuePairState::{Associated, Connected, Over, Unconnected};
        for state in [Unconnected, Associated, Connected, Over] {
            assert!(state.admits(OpKind::Receive).is_ok());
            for kind in [OpKind::Send, OpKind::Write, OpKind::Read] {
                assert_eq!(state.admits(kind).is_ok(), state == Connected);
            }
            let mut next = state;
            assert_eq!(next.associate().is_ok(), state == Unconnected);
            let mut next = state;
            next.dissociate();
            assert_eq!(next, if state == Associated { Unconnected } else { state });
            let mut next = state;
            next.establish();
            assert_eq!(next, if state == Associated { Connected } else { state });
            let mut next = state;
            next.end();
            assert_eq!(next, Over);
        }
    }
}
