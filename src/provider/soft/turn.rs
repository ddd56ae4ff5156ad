//! A turn of the reader of a connection: the work that it may take, its surroundings, its result, and the reasons to stop.

use std::io;

use crate::inflight::WakeList;
use crate::provider::stream::StreamRoom;
use crate::status::Status;
use crate::wire::ddp::HeaderError;
use crate::wire::rdmap::Terminate;

/// The work that a turn of the reader may take, about: a unit is a small frame. The task of a connection does no more at a
/// time, so that no peer keeps other tasks waiting by what it sends. It is as much as tokio gives a task.
pub(super) const TURN: u32 = 128;
/// So many bytes cost a unit.
const BYTES_PER_UNIT: usize = 8 * 1024;
/// The bytes of a turn that does nothing else.
pub(super) const TURN_BYTES: usize = TURN as usize * BYTES_PER_UNIT;
/// A request of the peer is answered at once, mostly with a system call.
pub(super) const REQUEST_COST: u32 = 8;

/// Returns the work of so many bytes that were read or written.
pub(super) fn cost_of(bytes: usize) -> u32 {
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
    Terminated(Terminate),
    /// The peer broke a rule: this is to be sent.
    Violation(Box<Violation>),
}

/// The fault of the peer, and the way in which a local request suffers from it.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) terminate: Terminate,
    /// The status of the oldest request of the send queue: something to blame for a bad answer to it.
    pub(crate) blame: Status,
}

/// The surroundings of a turn of the reader.
pub(crate) struct Turn<'a, 'b> {
    pub(crate) wakes: &'a mut WakeList,
    /// The room of the reader of a stream, if that is whose turn it is.
    pub(crate) room: Option<&'a mut StreamRoom<'b>>,
}

impl<'a> Turn<'a, '_> {
    /// A turn of the task of the connection.
    pub(crate) fn of_driver(wakes: &'a mut WakeList) -> Self {
        Self { wakes, room: None }
    }
}

/// The result of a turn of the reader.
pub(crate) struct Turned {
    /// Something was read.
    pub(crate) read: bool,
    /// The peer's first frame has come, by which it says that it is ready (RFC 6581 section 4.3).
    pub(crate) established: bool,
    /// The work that this took, at least 1.
    pub(crate) cost: u32,
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

impl From<Terminate> for Stop {
    fn from(terminate: Terminate) -> Self {
        Self::Violation(Box::new(Violation { terminate, blame: Status::CANCELED }))
    }
}

/// The peer's header is wrong.
pub(super) fn reject(error: HeaderError, bytes: &[u8]) -> Stop {
    Terminate::for_header(error).unwrap_or(Terminate::FRAMING).with_header(bytes).into()
}

/// The oldest outstanding request is the one that a Terminate is about; this is what it completes with.
pub(crate) fn blame(terminate: &Terminate) -> Status {
    match (terminate.layer, terminate.etype, terminate.code) {
        // RDMAP remote protection, DDP tagged buffer errors but the version: a key, a range or a right.
        (0, 1, _) | (1, 1, 0..=3) => Status::ACCESS_VIOLATION,
        _ => Status::REMOTE_ERROR,
    }
}
