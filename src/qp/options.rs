//! What a work request may ask for besides.

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

/// Options of a work request, by default none. Each call says which it takes; the others are an error. Source: the flags
/// of `IND2QueuePair::Send` (`ND_OP_FLAG_*`), `NdkSendAndInvalidate`, ibv_post_send(3).
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
    /// The request begins only when every read and atomic that was posted before it has been answered
    /// (`ND_OP_FLAG_READ_FENCE`).
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.asked |= Asked::FENCE;
        self
    }

    /// The peer's receive is a solicited event: it meets a notification that waits for those
    /// (`ND_OP_FLAG_SEND_AND_SOLICIT_EVENT`). For sends, and for writes with immediate data.
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.asked |= Asked::SOLICITED;
        self
    }

    /// Success yields no result in a completion queue that is polled (`ND_OP_FLAG_SILENT_SUCCESS`); a failure does. The
    /// future of such a request may have to wait until a later request of the queue has been polled. Without such a
    /// completion queue it changes nothing.
    #[must_use]
    pub fn silent(mut self) -> Self {
        self.asked |= Asked::SILENT;
        self
    }

    /// A number that goes with the message: the peer's receive completes with it. A write with immediate data takes a
    /// receive of the peer. See [`AdapterInfo::immediate`](crate::cm::AdapterInfo::immediate). An iWARP peer that does not
    /// know it (RFC 7306) ends the connection.
    #[must_use]
    pub fn immediate(mut self, value: u32) -> Self {
        self.asked |= Asked::IMMEDIATE;
        self.immediate = value;
        self
    }

    /// The message takes a memory window of the peer's from us: when the peer's receive completes, the key is dead.
    /// For sends. See [`AdapterInfo::invalidates`](crate::cm::AdapterInfo::invalidates).
    #[must_use]
    pub fn invalidate(mut self, key: RemoteKey) -> Self {
        self.asked |= Asked::INVALIDATE;
        self.invalidate = key.0;
        self
    }

    /// A number that the result in a completion queue carries (`requestContext`).
    #[must_use]
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    /// Whether a request takes all that was asked for; if not, the number of its flags argument in ND.
    pub(crate) fn check(&self, kind: OpKind) -> Result<(), u8> {
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
        if takes.contains(self.asked) && !self.asked.contains(both) { Ok(()) } else { Err(argument) }
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
