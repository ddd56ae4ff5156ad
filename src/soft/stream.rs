//! Reads and writes of a byte stream: the call that has the bytes frames and writes messages, and the call
//! that has room for payload reads it.
//!
//! No request is posted for them, nothing completes, and no memory is kept except for the end of the frame
//! that the socket did not take: the task of the connection writes that end, and wakes the writer.

use std::io;
use std::sync::Weak;
use std::task::Waker;

use tracing::trace;

use super::connection::{ConnectionShared, SendHalf, Transmitted};
use super::framing::Batch;
use super::stream_frames::StreamFrames;
use crate::error::PostErrorKind;
use crate::inflight::WakeList;
use crate::provider::stream::{Progress, StreamMessage, StreamRoom, Streamed};

impl ConnectionShared {
    /// Writes a message of a stream, or as much of it as the socket takes.
    ///
    /// # Errors
    /// `ConnectionInvalid` if nothing more can be sent.
    pub(crate) fn write_message(
        &self,
        message: &StreamMessage<'_>,
        waker: &Waker,
    ) -> Result<Streamed, PostErrorKind> {
        let mut sending = self.send_queue();
        let Some(socket) = sending.socket().filter(|_| !sending.closed) else {
            return Err(PostErrorKind::ConnectionInvalid);
        };
        let Some(send) = sending.begin_message() else { return Ok(wait(sending, waker)) };
        drop(sending);
        let frames = StreamFrames::new(message, send, self.crc);
        let outcome = socket.write_frames(&frames);
        let mut wakes = WakeList::default();
        let (streamed, transmitted) = match outcome {
            Ok(sent) if sent > 0 => {
                trace!(connection = %self.id, bytes = sent, "frames sent");
                let (length, rest) = frames.cut(sent);
                let mut sending = self.send_queue();
                let next = sending.message_offered(sent, rest, &mut wakes);
                (Streamed::Sent(length), self.go_on(&socket, sending, next, &mut wakes))
            }
            other => {
                let outcome = other.and(Err(io::ErrorKind::WouldBlock.into()));
                let mut sending = self.send_queue();
                let old = sending.wait_for_idle(waker);
                let next = sending.offered(Batch::new(self.crc), outcome, &mut wakes);
                let transmitted = self.go_on(&socket, sending, next, &mut wakes);
                drop(old);
                (Streamed::Blocked, transmitted)
            }
        };
        if transmitted == Transmitted::Blocked {
            self.wake_driver();
        }
        wakes.wake_all();
        Ok(streamed)
    }

    /// Reads data that has arrived for a stream. Payload at the stream's next position goes to the room, and
    /// the rest to its place. The waker is woken when there may be more. See
    /// [`Reader::read`](super::reader::Reader::read).
    pub(crate) fn read_stream(
        &self,
        room: Option<&mut StreamRoom<'_>>,
        waker: &Waker,
        spins: bool,
        wakes: &mut WakeList,
    ) {
        let reader = self.reader.get().and_then(Weak::upgrade);
        if reader.is_some_and(|reader| reader.read(room, waker, spins, wakes)) {
            self.wake_driver();
        }
    }

    /// Calls `act` with the end of the last Write to the ring if the peer is writing nothing. No payload is
    /// placed during the call.
    pub(crate) fn if_quiet(&self, act: &mut dyn FnMut(Option<u64>)) {
        let Some(reader) = self.reader.get().and_then(Weak::upgrade) else { return };
        let receiver = reader.receiver();
        if receiver.is_quiet() {
            act(receiver.ring_end());
        }
    }

    /// Returns the progress of the connection. `None` if it has ended.
    pub(crate) fn progress(&self) -> Option<Progress> {
        let received = self.reader.get().and_then(Weak::upgrade)?.receiver().received;
        let sending = self.send_queue();
        let unacknowledged = sending.socket()?.stream().unacknowledged().ok()? as u64;
        let acknowledged = (unacknowledged > 0).then(|| sending.written.saturating_sub(unacknowledged));
        Some(Progress { acknowledged, received })
    }

    /// Returns whether a message would be taken now, or never again. If not, the waker is woken when one may
    /// be.
    pub(crate) fn takes_messages(&self, waker: &Waker) -> bool {
        let sending = self.send_queue();
        if sending.closed || sending.is_idle() {
            return true;
        }
        wait(sending, waker);
        false
    }
}

fn wait(mut sending: SendHalf<'_>, waker: &Waker) -> Streamed {
    let old = sending.wait_for_idle(waker);
    drop(sending);
    drop(old);
    Streamed::Blocked
}
