//! Messages of a byte stream, for a provider that frames them itself.

use std::task::Waker;

use super::pair::QueuePair;
use crate::error::PostErrorKind;
use crate::inflight::WakeList;
use crate::provider::stream::{Progress, StreamMessage, StreamRoom, Streamed};

impl QueuePair {
    /// Writes a message, or as much of it as the connection takes.
    ///
    /// # Errors
    /// The reason why nothing more can be sent.
    pub(crate) fn write_message(
        &self,
        message: &StreamMessage<'_>,
        waker: &Waker,
    ) -> Result<Streamed, PostErrorKind> {
        self.handle.provider.write_message(message, waker)
    }

    /// Reads what has come. Payload for the place that is read next goes to the room, and the rest to where it belongs.
    /// Without a room, it looks for what is small. If the stream spins, it does not wait for the runtime to report that
    /// bytes have come. The waker is woken when there may be more; `wakes` is for the caller to wake without its locks.
    pub(crate) fn read_stream(
        &self,
        room: Option<&mut StreamRoom<'_>>,
        waker: &Waker,
        spins: bool,
        wakes: &mut WakeList,
    ) {
        self.handle.provider.read_stream(room, waker, spins, wakes);
    }

    /// Calls `act` with the end of the last Write to the ring if the peer is writing nothing. Nothing is placed during
    /// the call.
    pub(crate) fn if_quiet(&self, act: &mut dyn FnMut(Option<u64>)) {
        self.handle.provider.if_quiet(act);
    }

    /// Returns the progress of the connection. `None` if it has ended, or the provider cannot say.
    pub(crate) fn progress(&self) -> Option<Progress> {
        self.handle.provider.progress()
    }

    /// Returns whether a message would be taken now, or never again. If not, the waker is woken when one may be.
    pub(crate) fn takes_messages(&self, waker: &Waker) -> bool {
        self.handle.provider.takes_messages(waker)
    }
}
