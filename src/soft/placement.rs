//! The memory for the payload of a segment, and the action on its completion.

use std::sync::Arc;

use super::memory::{Binding, RemoteAccess};
use crate::inflight::{self, Payload};
use crate::provider::stream::StreamRoom;
use crate::provider::work::RemoteAddress;
use crate::wire::rdmap::Terminate;

/// The place of a payload.
pub(super) enum Place {
    /// In the current receive, from this byte on.
    Receive(usize),
    Memory(Destination),
}

/// The memory for the payload of the current segment.
pub(super) enum Destination {
    /// A posted receive, or the sink of a read.
    Local(Payload),
    /// Memory that the peer addressed: checked at every single transfer, and not touched if the access has
    /// ended. The place is that of the first byte, which was checked with all that follow.
    Remote { access: RemoteAccess, place: RemoteAddress },
}

impl Destination {
    pub(super) fn shrink(&mut self, by: usize) {
        match self {
            Self::Local(parts) => *parts = inflight::range(parts, by, usize::MAX),
            Self::Remote { place, .. } => place.address = place.address.wrapping_add(by as u64),
        }
    }

    /// Returns how many of the first of `length` bytes of payload go to a reader's room.
    pub(super) fn direct(&self, room: Option<&StreamRoom<'_>>, length: usize) -> usize {
        match (self, room) {
            (Self::Remote { place, .. }, Some(room)) => room.takes(*place, length),
            _ => 0,
        }
    }
}

/// The action when the current segment is complete.
#[derive(Default)]
pub(super) enum OnComplete {
    #[default]
    Nothing,
    Send {
        last: bool,
        solicited: bool,
        invalidate: Option<Arc<Binding>>,
    },
    Response {
        last: bool,
    },
    ReadRequest,
    AtomicRequest,
    AtomicResponse,
    Immediate {
        solicited: bool,
    },
    /// A part of a Send to a byte stream.
    StreamSend {
        offset: usize,
        last: bool,
    },
    Terminate,
}

/// The content of a frame whose header has arrived.
pub(super) enum Content {
    Payload {
        place: Place,
        on_complete: OnComplete,
    },
    /// A payload that is a header of RDMAP.
    Control(OnComplete),
}

/// Copies staged payload to its place.
///
/// # Errors
/// The Terminate for a peer whose key was invalidated.
pub(super) fn place_in(
    destination: &Destination,
    bytes: &[u8],
    room: &mut Option<&mut StreamRoom<'_>>,
) -> Result<(), Terminate> {
    let parts = match destination {
        Destination::Local(parts) => parts,
        Destination::Remote { access, place } => {
            let valid = access.guard().ok_or(Terminate::INVALID_STAG_TAGGED)?;
            let (direct, rest) = bytes.split_at(destination.direct(room.as_deref(), bytes.len()));
            if let Some(room) = room {
                room.copy(direct);
            }
            if let Some(memory) = valid.memory() {
                memory.write(offset(*place) + direct.len(), rest);
            }
            return Ok(());
        }
    };
    let mut rest = bytes;
    for part in parts {
        let taken = rest.len().min(part.len());
        part.write(0, &rest[..taken]);
        rest = &rest[taken..];
    }
    Ok(())
}

/// Returns the offset of a place in the memory of its key, which was checked.
pub(super) fn offset(place: RemoteAddress) -> usize {
    usize::try_from(place.address).unwrap_or(usize::MAX)
}
