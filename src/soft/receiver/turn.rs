//! A turn of the reader of a connection: its cost limit, its parameters, its result, and the reasons to stop.

use std::io;

use crate::inflight::WakeList;
use crate::provider::stream::StreamRoom;
use crate::status::Status;
use crate::wire::ddp::HeaderError;
use crate::wire::rdmap::Terminate;

/// The cost limit of a turn of the reader, approximately: a unit is a small frame. The task of a connection
/// does no more at a time, so that no peer keeps other tasks waiting by what it sends. Tokio gives a task as
/// much.
pub(crate) const TURN: u32 = 128;
/// The number of bytes that cost a unit.
const BYTES_PER_UNIT: usize = 8 * 1024;
/// The number of bytes in a turn that only moves bytes.
pub(crate) const TURN_BYTES: usize = TURN as usize * BYTES_PER_UNIT;
/// The cost of a request of the peer, which is answered at once, mostly with a system call.
pub(crate) const REQUEST_COST: u32 = 8;

/// Returns the cost of bytes that were read or written.
pub(crate) fn cost_of(bytes: usize) -> u32 {
    u32::try_from(bytes / BYTES_PER_UNIT).unwrap_or(TURN)
}

/// The reason why the reader stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The peer ended the stream between two frames.
    Closed,
    /// The stream ended or failed within a frame, or the socket did.
    Broken(io::Error),
    /// The peer sent a Terminate.
    Terminated(Box<Terminate>),
    /// The peer broke a rule: the Terminate is to be sent.
    Violation(Box<Violation>),
    /// A waker of the program, the destructor of a buffer or a subscriber has panicked where the socket was
    /// read or written.
    Panicked,
}

/// The error of a writer whose subscriber has panicked.
#[derive(Debug, thiserror::Error)]
#[error("a subscriber panicked")]
pub(crate) struct Panicked;

/// A mistake of the peer, and the status of a local request that fails by it.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) terminate: Terminate,
    /// The status of the oldest request of the send queue: `REMOTE_ERROR` if the mistake is an invalid
    /// response to it, and `CANCELED` otherwise.
    pub(crate) blame: Status,
}

/// The parameters of a turn of the reader.
pub(crate) struct Turn<'a, 'b> {
    pub(crate) wakes: &'a mut WakeList,
    /// The room of the reader of a stream, if the turn is that reader's.
    pub(crate) room: Option<&'a mut StreamRoom<'b>>,
    /// The cost limit.
    pub(crate) limit: u32,
}

/// The result of a turn of the reader.
#[derive(Default)]
pub(crate) struct TurnOutcome {
    /// Bytes were read.
    pub(crate) read: bool,
    /// All bytes that were read have been processed: only the socket can bring more.
    pub(crate) needs_socket: bool,
    /// The peer's first frame has arrived, which makes the connection ready (RFC 6581 section 4.3).
    pub(crate) established: bool,
    /// The cost of the turn.
    pub(crate) cost: u32,
}

impl Stop {
    /// Returns the violation of a peer whose response to the oldest request is invalid.
    pub(crate) fn response(terminate: Terminate) -> Self {
        Self::Violation(Box::new(Violation { terminate, blame: Status::REMOTE_ERROR }))
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        let panicked = error.get_ref().is_some_and(|source| source.is::<Panicked>());
        if panicked { Self::Panicked } else { Self::Broken(error) }
    }
}

impl From<Terminate> for Stop {
    fn from(terminate: Terminate) -> Self {
        Self::Violation(Box::new(Violation { terminate, blame: Status::CANCELED }))
    }
}

/// Returns the violation of a peer whose header is invalid.
pub(crate) fn reject(error: HeaderError, bytes: &[u8]) -> Stop {
    Terminate::for_header(error).unwrap_or(Terminate::FRAMING).with_header(bytes).into()
}

/// Returns the status of the oldest outstanding request, which is the one that a Terminate concerns.
pub(crate) fn blame(terminate: &Terminate) -> Status {
    match (terminate.layer, terminate.etype, terminate.code) {
        // RDMAP remote protection, DDP tagged buffer errors except the version: a key, a range or a right.
        (0, 1, _) | (1, 1, 0..=3) => Status::ACCESS_VIOLATION,
        _ => Status::REMOTE_ERROR,
    }
}
