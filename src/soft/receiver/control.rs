//! Messages of the peer whose payload has no memory of its own: requests and responses, Immediate Data, the
//! Sends of a byte stream, Terminate.
//!
//! While this end disconnects, the bytes that arrive are searched for a Terminate, which reports that data
//! has been lost.

use std::mem::MaybeUninit;

use smallvec::SmallVec;

use super::Receiver;
use super::placement::Control;
use super::reader::{REQUEST_COST, Stop, cost_of};
use crate::inflight::{Completed, Note, STREAM_KEY, StreamSend, Ticket, WakeList};
use crate::proto::rdmap::MAX_TERMINATE;
use crate::soft::connection::{ConnectionShared, Extent};
use crate::soft::framing::{OWN, frame_empty_answer};
use crate::soft::memory::{Grant, Intent};
use crate::soft::send_queue::Answer;
use crate::wire::ddp::Untagged;
use crate::wire::extensions::{AtomicRequest, AtomicResponse, Immediate};
use crate::wire::mpa;
use crate::wire::rdmap::{Opcode, Phase, ReadRequest, Terminate};

/// The size of an atomic, and the alignment of its offset.
const ATOMIC: usize = 8;

impl ConnectionShared {
    /// Serves a Read Request. `first` if it is the very first frame: an empty read then belongs to the
    /// handshake, whatever the read limits. Returns the cost of what was written.
    fn serve(&self, request: &ReadRequest, first: bool, wakes: &mut WakeList) -> Result<u32, Terminate> {
        let length = usize::try_from(request.length).map_err(|_| Terminate::BOUNDS_REMOTE)?;
        let answer = Answer::Read { sink: (request.sink_stag, request.sink_to) };
        if length == 0 {
            // Neither key nor offset of an empty read is checked.
            return self.answer(None, answer, (first, request.source_stag == STREAM_KEY), wakes);
        }
        let source = (request.source_stag, request.source_to);
        let grant = self.keys.resolve(source, length, Intent::Read, self.number)?;
        self.answer(Some(grant), answer, (false, false), wakes)
    }

    /// Serves an Atomic Request. Returns the cost of what was written.
    fn serve_atomic(&self, request: &AtomicRequest, wakes: &mut WakeList) -> Result<u32, Terminate> {
        if !request.to.is_multiple_of(ATOMIC as u64) {
            // No error code is more precise.
            return Err(Terminate::CATASTROPHIC_STREAM);
        }
        let grant = self.keys.resolve((request.stag, request.to), ATOMIC, Intent::Atomic, self.number)?;
        let answer = Answer::Atomic { atomic: request.atomic, identifier: request.identifier };
        self.answer(Some(grant), answer, (false, false), wakes)
    }

    /// Queues an answer. `beyond`: whatever the read limits. `ends`: to the Read behind the last message of a stream.
    fn answer(
        &self,
        grant: Option<Grant>,
        answer: Answer,
        (beyond, ends): (bool, bool),
        wakes: &mut WakeList,
    ) -> Result<u32, Terminate> {
        let mut sending = self.sending();
        if sending.queue.serving() >= self.inbound_reads && !beyond {
            // More at once than was agreed: no buffer is left in the queue of requests (RFC 5040 section
            // 7.1).
            return Err(Terminate::NO_BUFFER);
        }
        if ends {
            sending.queue.peer_ends_stream();
        }
        if let (None, Answer::Read { sink }, true) = (&grant, answer, sending.queue.is_idle()) {
            let mut room = [MaybeUninit::uninit(); OWN];
            let frame = frame_empty_answer(&mut room, sink, self.crc);
            return Ok(cost_of(self.write_own(sending, frame.filled(), false, Extent::Turn, wakes)));
        }
        sending.queue.respond(grant, answer);
        Ok(cost_of(self.transmit(sending, Extent::Turn, wakes)))
    }

    /// Completes the atomic of this side whose response has arrived. Returns the cost of what was written.
    fn atomic_answered(&self, response: &AtomicResponse, wakes: &mut WakeList) -> Result<u32, Terminate> {
        let mut sending = self.sending();
        sending.queue.atomic_response(response)?;
        sending.queue.complete_read(wakes);
        Ok(cost_of(self.transmit(sending, Extent::Turn, wakes)))
    }
}

impl Receiver {
    /// Executes a message whose payload is for RDMAP itself.
    pub(super) fn control(
        &mut self,
        control: Control,
        payload: &[u8],
        wakes: &mut WakeList,
    ) -> Result<(), Stop> {
        let named = |terminate: Terminate| Stop::from(terminate.with_header(&self.header));
        match control {
            Control::ReadRequest => {
                let mut whole = [0; 20 + ReadRequest::LEN];
                whole[..20].copy_from_slice(&self.header);
                if let Some(place) = whole[20..].get_mut(..payload.len()) {
                    place.copy_from_slice(payload);
                }
                let named = |terminate: Terminate| Stop::from(terminate.with_header(&whole));
                self.cost += REQUEST_COST;
                let request = ReadRequest::decode(payload).map_err(|_| named(Terminate::TOO_LONG))?;
                self.cost += self.connection.serve(&request, !self.heard, wakes).map_err(named)?;
                Ok(())
            }
            Control::AtomicRequest => {
                self.cost += REQUEST_COST;
                // The length is right, so the operation is wrong.
                let request =
                    AtomicRequest::decode(payload).map_err(|_| named(Terminate::UNEXPECTED_OPCODE))?;
                self.cost += self.connection.serve_atomic(&request, wakes).map_err(named)?;
                Ok(())
            }
            Control::AtomicResponse => {
                let response = AtomicResponse::decode(payload).map_err(|_| Terminate::TOO_LONG)?;
                let cost = self.connection.atomic_answered(&response, wakes);
                self.cost += cost.map_err(|error| Stop::response(error.with_header(&self.header)))?;
                Ok(())
            }
            Control::Immediate { solicited } => {
                // The peer has made no mistake, but the completion could not report the value.
                let Immediate(value) =
                    Immediate::decode(payload).map_err(|_| named(Terminate::CATASTROPHIC_STREAM))?;
                if let Some(stream) = &mut self.stream {
                    return stream.deliver(StreamSend::Other(0), wakes).map_err(named);
                }
                let taken = self.receive.take().map(|(receive, _)| receive);
                let receive = taken.or_else(|| self.connection.receives.take(self.connection.number));
                let receive = receive.ok_or_else(|| named(Terminate::NO_BUFFER))?;
                let mut completed = Completed::done(0, receive.payload);
                completed.extra.note = Note::Immediate(value);
                completed.extra.solicited = solicited;
                self.finish_receive(receive.ticket, completed, wakes);
                Ok(())
            }
            Control::Terminate => {
                let phase = if self.heard { Phase::Streaming } else { Phase::StartUp };
                let terminate = Terminate::decode(payload, phase).unwrap_or(Terminate::UNSPECIFIED);
                Err(Stop::Terminated(Box::new(terminate)))
            }
        }
    }
    /// Completes a receive whose message has arrived. If the first message of a peer establishes the
    /// connection, it is held back until the connection is established: the program may answer a message as
    /// soon as it has it.
    pub(super) fn finish_receive(&mut self, ticket: Ticket, completed: Completed, wakes: &mut WakeList) {
        if !self.heard && !self.connection.is_peer_ready() {
            self.first = Some(Box::new((ticket, completed)));
        } else {
            self.connection.receives.complete(ticket, completed, wakes);
        }
    }

    /// Completes the message that has established the connection.
    pub(crate) fn complete_first(&mut self, wakes: &mut WakeList) {
        self.is_established = true;
        if let Some((ticket, completed)) = self.first.take().map(|first| *first) {
            self.connection.receives.complete(ticket, completed, wakes);
        }
    }
}

/// The length field and the first two bytes of a header: enough to know what a frame is.
const START: usize = mpa::LENGTH_SIZE + 2;
/// The longest frame that can be a Terminate.
const LONGEST: usize = mpa::fpdu_length(Untagged::LEN + MAX_TERMINATE);
const _: () = assert!(START < mpa::fpdu_length(0));

/// Follows the frames of a stream whose content is discarded.
pub(super) struct LastWords {
    /// The rest of the current frame.
    skip: usize,
    /// The start of the current frame, or the whole of a Terminate.
    frame: SmallVec<[u8; LONGEST]>,
    /// The Terminate that was found.
    pub(super) terminate: Option<Terminate>,
}

impl LastWords {
    /// Creates a search in a stream that is this many bytes before the end of a frame.
    pub(super) fn behind(skip: usize) -> Self {
        Self { skip, frame: SmallVec::new(), terminate: None }
    }

    /// Reads on, unless the Terminate has been found. Returns the number of frames that began before it.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> u32 {
        let mut frames = 0;
        while self.terminate.is_none() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                break;
            }
            let wanted = self.wanted();
            let taken = (wanted - self.frame.len()).min(bytes.len());
            self.frame.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if self.frame.len() < wanted {
                break;
            }
            if self.frame.len() > START {
                let payload = self.frame.get(mpa::LENGTH_SIZE + Untagged::LEN..).unwrap_or_default();
                let terminate = Terminate::decode(payload, Phase::Streaming);
                self.terminate = Some(terminate.unwrap_or(Terminate::UNSPECIFIED));
            } else if self.wanted() == START {
                self.skip = self.length() - START;
                self.frame.clear();
                frames += 1;
            }
        }
        frames
    }

    /// Returns the number of bytes of the current frame that are needed.
    fn wanted(&self) -> usize {
        let Some(start) = self.frame.first_chunk::<START>() else { return START };
        let untagged = start[mpa::LENGTH_SIZE] & 0x80 == 0;
        let terminate = untagged && start[mpa::LENGTH_SIZE + 1] & 0x0f == Opcode::Terminate as u8;
        let length = self.length();
        if terminate && length <= LONGEST { length } else { START }
    }

    /// Returns the length of the current frame, which is more than that of its start.
    fn length(&self) -> usize {
        let field = self.frame.first_chunk().map_or(0, |field| u16::from_be_bytes(*field));
        mpa::fpdu_length(usize::from(field))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::mpa::{Rtr, rtr_frame, terminate_fpdu};

    // A Terminate is found behind the rest of a frame and any frames (ERR-08).
    #[test]
    fn a_terminate_is_found_behind_anything() {
        let terminate = terminate_fpdu(&Terminate::NO_BUFFER, false);
        let rest_of_a_frame = [0x44; 11];
        let stream =
            [&rest_of_a_frame[..], &rtr_frame(Rtr::Write, false), &rtr_frame(Rtr::Read, false), &terminate]
                .concat();
        for step in [1, 3, 7, stream.len()] {
            let mut words = LastWords::behind(rest_of_a_frame.len());
            stream.chunks(step).for_each(|bytes| _ = words.read(bytes));
            assert_eq!(words.terminate, Some(Terminate::NO_BUFFER), "{step} bytes at a time");
        }
        let mut words = LastWords::behind(0);
        let frames = words.read(&stream[rest_of_a_frame.len()..stream.len() - 1]);
        assert_eq!((words.terminate, frames), (None, 2), "a byte is missing");
        // SEC-01: the shortest frames, of which each is work.
        assert_eq!(LastWords::behind(0).read(&[0; 4096]), 4096 / 8, "nonsense");
    }
}
