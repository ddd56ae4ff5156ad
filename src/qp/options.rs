//! Options of work requests.

use bitflags::bitflags;

use crate::provider::work::Flags;
use crate::types::{OpKind, RemoteKey};

bitflags! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Asked: u8 {
        const FENCE = 1;
        const SOLICITED = 2;
        const SILENT = 4;
        const IMMEDIATE = 8;
        const INVALIDATE = 16;
    }
}

impl Asked {
    /// Returns the name of the first of these options, which a request of this kind does not accept.
    #[cold]
    fn refused(self, kind: OpKind) -> &'static str {
        match (self, kind) {
            (refused, _) if refused.contains(Self::INVALIDATE) => "invalidate",
            (refused, _) if refused.contains(Self::IMMEDIATE) => "immediate",
            (refused, OpKind::Write) if refused.contains(Self::SOLICITED) => "solicited without immediate",
            (refused, _) if refused.contains(Self::SOLICITED) => "solicited",
            (refused, _) if refused.contains(Self::FENCE) => "fence",
            (refused, _) if refused.contains(Self::SILENT) => "silent",
            _ => "immediate together with invalidate",
        }
    }
}

/// Options of a work request. The default has no option set.
///
/// Each posting method lists the options that it accepts, and fails with
/// [`InvalidOptions`](crate::error::PostErrorKind::InvalidOptions) for any other. Source: the flags of
/// `IND2QueuePair::Send` (`ND_OP_FLAG_*`), `NdkSendAndInvalidate`, ibv_post_send(3).
///
/// ```
/// use tokio_rdma::qp::WorkOptions;
///
/// let options = WorkOptions::default().fence().solicited().context(7);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkOptions {
    asked: Asked,
    immediate: u32,
    invalidate: u32,
    pub(crate) context: u64,
}

impl WorkOptions {
    /// Starts the request only after every read and atomic that was posted before it has completed
    /// (`ND_OP_FLAG_READ_FENCE`).
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.asked |= Asked::FENCE;
        self
    }

    /// Makes the peer's receive a solicited event, which resolves a notification of
    /// [`NotifyKind::Solicited`](super::NotifyKind::Solicited) (`ND_OP_FLAG_SEND_AND_SOLICIT_EVENT`).
    ///
    /// For sends, and for writes with immediate data.
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.asked |= Asked::SOLICITED;
        self
    }

    /// Reports only failure in a completion queue, not success (`ND_OP_FLAG_SILENT_SUCCESS`), and lets a device leave the
    /// completion out (an unsignaled request of verbs).
    ///
    /// The [`Op`](super::Op) of such a request may not resolve before a later request of the queue without this option has completed,
    /// and with a completion queue has been polled. So await the last request of several, and post that one without it. If the
    /// connection ends first, the request completes with `CANCELED`, whether or not it was executed.
    #[doc(alias = "unsignaled")]
    #[doc(alias = "IBV_SEND_SIGNALED")]
    #[must_use]
    pub fn silent(mut self) -> Self {
        self.asked |= Asked::SILENT;
        self
    }

    /// Sends immediate data with the message: the peer's receive completes with this number.
    ///
    /// A write with immediate data consumes one receive of the peer. See
    /// [`AdapterInfo::immediate`](crate::cm::AdapterInfo::immediate). An iWARP peer that does not support immediate
    /// data (RFC 7306) ends the connection.
    #[must_use]
    pub fn immediate(mut self, value: u32) -> Self {
        self.asked |= Asked::IMMEDIATE;
        self.immediate = value;
        self
    }

    /// Sends with Invalidate: the peer's memory window with this key is invalidated before the peer's receive
    /// completes.
    ///
    /// For sends. See [`AdapterInfo::invalidates`](crate::cm::AdapterInfo::invalidates).
    #[must_use]
    pub fn invalidate(mut self, key: RemoteKey) -> Self {
        self.asked |= Asked::INVALIDATE;
        self.invalidate = key.0;
        self
    }

    /// Sets a number that is returned in [`WorkCompletion::context`](super::WorkCompletion::context) (`requestContext`,
    /// `wr_id`).
    #[doc(alias = "wr_id")]
    #[must_use]
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    /// Checks that a request of this kind accepts all options that are set.
    ///
    /// # Errors
    /// The number of the flags argument of the ND method, and the option that is not accepted.
    pub(crate) fn check(&self, kind: OpKind) -> Result<(), (u8, &'static str)> {
        let common = Asked::FENCE | Asked::SILENT;
        let (takes, argument) = match kind {
            OpKind::Send => (Asked::all(), 4),
            OpKind::Write if self.asked.contains(Asked::IMMEDIATE) => {
                (common | Asked::IMMEDIATE | Asked::SOLICITED, 6)
            }
            OpKind::Invalidate => (common, 3),
            OpKind::Receive => (Asked::empty(), 4),
            _ => (common, 6),
        };
        // No message carries both.
        let both = Asked::IMMEDIATE | Asked::INVALIDATE;
        let accepted = takes.contains(self.asked) && !self.asked.contains(both);
        if accepted { Ok(()) } else { Err((argument, (self.asked - takes).refused(kind))) }
    }

    pub(crate) fn immediate_data(&self) -> Option<u32> {
        self.asked.contains(Asked::IMMEDIATE).then_some(self.immediate)
    }

    pub(crate) fn invalidated_key(&self) -> Option<u32> {
        self.asked.contains(Asked::INVALIDATE).then_some(self.invalidate)
    }

    pub(crate) fn flags(&self) -> Flags {
        let flag = |asked, flag| if self.asked.contains(asked) { flag } else { Flags::empty() };
        flag(Asked::FENCE, Flags::FENCE)
            | flag(Asked::SOLICITED, Flags::SOLICITED)
            | flag(Asked::SILENT, Flags::SILENT)
    }
}
