//! Messages of the peer whose payload has no memory of its own: requests and responses, Immediate Data, the
//! Sends of a byte stream, Terminate.

use super::connection::ConnectionShared;
use super::memory::{Grant, Intent};
use super::placement::OnComplete;
use super::receive::Receiver;
use super::send_queue::Answer;
use super::turn::{REQUEST_COST, Stop, Violation};
use crate::inflight::{Completed, Note, Ticket, WakeList};
use crate::provider::stream::{StreamSend, WORD};
use crate::status::Status;
use crate::types::Role;
use crate::wire::extensions::{AtomicRequest, AtomicResponse, Immediate};
use crate::wire::rdmap::{Phase, ReadRequest, Terminate};

/// The size of an atomic, and the alignment of its offset.
const ATOMIC: usize = 8;

impl ConnectionShared {
    /// Serves a Read Request. `first` if it is the very first frame: an empty read then belongs to the
    /// handshake, whatever the read limits. Returns the cost of what was written.
    ///
    /// # Errors
    /// The Terminate for the peer's mistake.
    fn serve(&self, request: &ReadRequest, first: bool, wakes: &mut WakeList) -> Result<u32, Terminate> {
        let length = usize::try_from(request.length).map_err(|_| Terminate::BOUNDS_REMOTE)?;
        let answer = Answer::Read { sink: (request.sink_stag, request.sink_to) };
        if length == 0 {
            // Neither key nor offset of an empty read is checked.
            return self.answer(None, answer, first, wakes);
        }
        let source = (request.source_stag, request.source_to);
        let grant = self.keys.resolve(source, length, Intent::Read, self.number)?;
        self.answer(Some(grant), answer, false, wakes)
    }

    /// Serves an Atomic Request. Returns the cost of what was written.
    ///
    /// # Errors
    /// The Terminate for the peer's mistake.
    fn serve_atomic(&self, request: &AtomicRequest, wakes: &mut WakeList) -> Result<u32, Terminate> {
        if !request.to.is_multiple_of(ATOMIC as u64) {
            // No error code is more precise.
            return Err(Terminate::CATASTROPHIC_STREAM);
        }
        let grant = self.keys.resolve((request.stag, request.to), ATOMIC, Intent::Atomic, self.number)?;
        let answer = Answer::Atomic { atomic: request.atomic, identifier: request.identifier };
        self.answer(Some(grant), answer, false, wakes)
    }

    fn answer(
        &self,
        grant: Option<Grant>,
        answer: Answer,
        beyond: bool,
        wakes: &mut WakeList,
    ) -> Result<u32, Terminate> {
        let mut sending = self.send_queue();
        if sending.serving() >= self.inbound_reads && !beyond {
            // More at once than was agreed: no buffer is left in the queue of requests (RFC 5040 section
            // 7.1).
            return Err(Terminate::NO_BUFFER);
        }
        sending.respond(grant, answer);
        Ok(self.transmit_for_peer(sending, wakes))
    }

    /// Completes the atomic of this side whose response has arrived. Returns the cost of what was written.
    ///
    /// # Errors
    /// The Terminate for a response without a request.
    fn atomic_answered(&self, response: &AtomicResponse, wakes: &mut WakeList) -> Result<u32, Terminate> {
        let mut sending = self.send_queue();
        sending.atomic_response(response)?;
        sending.answered(wakes);
        Ok(self.transmit_for_peer(sending, wakes))
    }
}

impl Receiver {
    /// Executes a message whose payload is for RDMAP itself.
    pub(super) fn control(
        &mut self,
        on_complete: &OnComplete,
        payload: &[u8],
        wakes: &mut WakeList,
    ) -> Result<(), Stop> {
        match *on_complete {
            OnComplete::ReadRequest => {
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
            OnComplete::AtomicRequest => {
                self.cost += REQUEST_COST;
                let named = |terminate: Terminate| Stop::from(terminate.with_header(&self.header));
                // The length is right, so the operation is wrong.
                let request =
                    AtomicRequest::decode(payload).map_err(|_| named(Terminate::UNEXPECTED_OPCODE))?;
                self.cost += self.connection.serve_atomic(&request, wakes).map_err(named)?;
                Ok(())
            }
            OnComplete::AtomicResponse => {
                let response = AtomicResponse::decode(payload).map_err(|_| Terminate::TOO_LONG)?;
                self.cost += self.connection.atomic_answered(&response, wakes).map_err(|terminate| {
                    let terminate = terminate.with_header(&self.header);
                    Stop::Violation(Box::new(Violation { terminate, blame: Status::REMOTE_ERROR }))
                })?;
                Ok(())
            }
            OnComplete::Immediate { solicited } => {
                let named = |terminate: Terminate| Stop::from(terminate.with_header(&self.header));
                // The peer has made no mistake, but the completion could not report the value.
                let Immediate(value) =
                    Immediate::decode(payload).map_err(|_| named(Terminate::CATASTROPHIC_STREAM))?;
                if self.connection.receives.inbox().is_some() {
                    return self.deliver(StreamSend::Other(0), wakes);
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
            OnComplete::StreamSend { offset, last } => {
                let end = offset + payload.len();
                self.word[offset..end].copy_from_slice(payload);
                match (last, end) {
                    (false, _) => Ok(()),
                    (true, WORD) => self.deliver(StreamSend::Word(self.word), wakes),
                    (true, _) => self.deliver(StreamSend::Other(end), wakes),
                }
            }
            _ => {
                let phase = if self.heard { Phase::Streaming } else { Phase::StartUp };
                Err(Stop::Terminated(Terminate::decode(payload, phase).unwrap_or(Terminate::UNSPECIFIED)))
            }
        }
    }
    /// Completes a receive whose message has arrived. If the first message of a peer establishes the
    /// connection, it is held back until the connection is established: the program may answer a message as
    /// soon as it has it.
    pub(super) fn finish_receive(&mut self, ticket: Ticket, completed: Completed, wakes: &mut WakeList) {
        let ConnectionShared { role, implied, receives, .. } = &*self.connection;
        if !self.heard && *role == Role::Passive && !implied {
            self.first = Some((ticket, completed));
        } else {
            receives.complete(ticket, completed, wakes);
        }
    }

    /// Completes the message that has established the connection.
    pub(super) fn complete_first(&mut self, wakes: &mut WakeList) {
        if let Some((ticket, completed)) = self.first.take() {
            self.connection.receives.complete(ticket, completed, wakes);
        }
    }

    /// Delivers a complete Send to the byte stream.
    fn deliver(&mut self, send: StreamSend, wakes: &mut WakeList) -> Result<(), Stop> {
        self.shape.end();
        let inbox = self.connection.receives.inbox();
        if inbox.is_some_and(|inbox| inbox.deliver(send, wakes)) {
            Ok(())
        } else {
            Err(Terminate::NO_BUFFER.with_header(&self.header).into())
        }
    }
}
