//! Messages of the peer whose payload has no memory of its own: requests and answers, Immediate Data, the Sends of a byte stream,
//! Terminate.

use super::connection::ConnectionShared;
use super::placement::OnComplete;
use super::receive::Receiver;
use super::remote_keys::{Grant, Intent};
use super::send::Answer;
use super::turn::{REQUEST_COST, Stop, Violation};
use crate::inflight::{Completed, Note, Ticket, WakeList};
use crate::provider::stream::{StreamSend, WORD};
use crate::status::Status;
use crate::types::Role;
use crate::wire::extensions::{AtomicRequest, AtomicResponse, Immediate};
use crate::wire::rdmap::{Phase, ReadRequest, Terminate};

/// The bytes of an atomic, and what its offset is a multiple of.
const ATOMIC: usize = 8;

impl ConnectionShared {
    /// Answers a Read Request. `first` when it is the very first frame: an empty read is the handshake's then,
    /// whatever the read limits. Returns the work of what was written.
    ///
    /// # Errors
    /// The Terminate that the peer has earned.
    fn serve(&self, request: &ReadRequest, first: bool, wakes: &mut WakeList) -> Result<u32, Terminate> {
        let length = usize::try_from(request.length).map_err(|_| Terminate::BOUNDS_REMOTE)?;
        let answer = Answer::Read { sink: (request.sink_stag, request.sink_to) };
        if length == 0 {
            // Of an empty read neither key nor offset is checked.
            return self.answer(None, answer, first, wakes);
        }
        let source = (request.source_stag, request.source_to);
        let grant = self.keys.resolve(source, length, Intent::Read, self.number)?;
        self.answer(Some(grant), answer, false, wakes)
    }

    /// Answers an Atomic Request. Returns the work of what was written.
    ///
    /// # Errors
    /// The Terminate that the peer has earned.
    fn serve_atomic(&self, request: &AtomicRequest, wakes: &mut WakeList) -> Result<u32, Terminate> {
        if !request.to.is_multiple_of(ATOMIC as u64) {
            // No code says it better.
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
            // More at once than was agreed: no buffer is left in the queue of requests (RFC 5040 section 7.1).
            return Err(Terminate::NO_BUFFER);
        }
        sending.respond(grant, answer);
        Ok(self.transmit_for_peer(sending, wakes))
    }

    /// An atomic of ours has been answered. Returns the work of what was written.
    ///
    /// # Errors
    /// The Terminate for an answer that nobody asked for.
    fn atomic_answered(&self, response: &AtomicResponse, wakes: &mut WakeList) -> Result<u32, Terminate> {
        let mut sending = self.send_queue();
        sending.atomic_response(response)?;
        sending.answered(wakes);
        Ok(self.transmit_for_peer(sending, wakes))
    }
}

impl Receiver {
    /// A message whose payload is for RDMAP itself.
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
                // It is as long as it should be, so what is wrong is the operation.
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
                // Nobody is wrong, but our users could not be told.
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
    /// A message is complete. The first one of a peer, whose arrival establishes the connection, is held back until that is done:
    /// the program may answer a message as soon as it has it.
    pub(super) fn finish_receive(&mut self, ticket: Ticket, completed: Completed, wakes: &mut WakeList) {
        let ConnectionShared { role, implied, receives, .. } = &*self.connection;
        if !self.heard && *role == Role::Passive && !implied {
            self.first = Some((ticket, completed));
        } else {
            receives.complete(ticket, completed, wakes);
        }
    }

    /// The connection is established: completes the message that has established it.
    pub(super) fn complete_first(&mut self, wakes: &mut WakeList) {
        if let Some((ticket, completed)) = self.first.take() {
            self.connection.receives.complete(ticket, completed, wakes);
        }
    }

    /// A Send to a byte stream is complete.
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
