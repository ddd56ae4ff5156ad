//! Frames that have arrived as a whole: nearly every small one has.
//!
//! If a read begins with a frame, they are parsed where they were read, in the room of the thread, and nothing
//! is kept of them. A frame of which a part is missing, which has to wait or which announces others is staged
//! and goes the general way, which makes the same decisions: [`Receiver::begin`], [`Receiver::place`],
//! [`Receiver::complete`].

use tracing::trace;

use super::buffer::{MANY, put_room, take_room};
use super::placement::OnComplete;
use super::turn::{Stop, Turn};
use super::{Receiver, State};
use crate::inflight::{Arrived, Completed, STREAM_KEY, WakeList};
use crate::soft::connection::{ConnectionShared, Socket};
use crate::soft::memory::Intent;
use crate::soft::receive_queue::Receive;
use crate::wire::ddp::{self, Header, Tagged, Untagged};
use crate::wire::mpa;
use crate::wire::rdmap::{Opcode, Terminate};

/// The length of the longer header, with the length field. No frame is shorter.
const START: usize = mpa::LENGTH_SIZE + Untagged::LEN;
const _: () = assert!(START <= mpa::fpdu_length(Tagged::LEN));
/// The length of the header of a Write, with the length field.
const HEADER: usize = mpa::LENGTH_SIZE + Tagged::LEN;

impl Receiver {
    /// Returns whether the next read begins with a frame, and most likely brings small ones.
    pub(super) fn expects_whole(&self, turn: &Turn<'_, '_>) -> bool {
        matches!(self.state, State::Header)
            && self.staging.is_empty()
            && self.heard
            && turn.room.is_none()
            && !self.connection.crc
            && !self.expects_large()
    }

    /// Reads once, and processes the frames that have arrived. Returns whether any bytes had.
    ///
    /// # Errors
    /// The end of the stream, that of the socket, and what the peer has done wrong.
    pub(super) fn read_whole(&mut self, socket: &Socket, turn: &mut Turn<'_, '_>) -> Result<bool, Stop> {
        let mut room = take_room();
        let length = self.has_read(socket.read_bytes(&mut room[..MANY]).map_err(Stop::from));
        let length = match length {
            Ok(Some(length)) => length,
            other => {
                put_room(room);
                return other.map(|_| false);
            }
        };
        self.account_for_bytes(length);
        match self.whole_frames(&room[..length], turn) {
            Ok(taken) if taken < length => {
                self.staging.adopt(room, taken..length);
                let next = self.process(turn).map(|next| self.next = next);
                self.return_staging();
                next?;
            }
            outcome => {
                put_room(room);
                outcome?;
            }
        }
        Ok(true)
    }

    /// Processes the staged frames that have arrived as a whole, unless the first frame of the peer, which is
    /// alone in its turn, or an announced one is next. Returns the number of their bytes.
    pub(super) fn staged_frames(&mut self, turn: &mut Turn<'_, '_>) -> Result<usize, Stop> {
        let unread = self.staging.unread();
        let Some(&length) = unread.first_chunk() else { return Ok(0) };
        let is_whole = unread.len() >= mpa::fpdu_length(usize::from(u16::from_be_bytes(length)));
        if !is_whole || !self.heard || self.announced.is_some() {
            return Ok(0);
        }
        let staging = std::mem::take(&mut self.staging);
        let outcome = self.whole_frames(staging.unread(), turn);
        self.staging = staging;
        let taken = outcome?;
        self.staging.take(taken);
        Ok(taken)
    }

    /// Processes the frames at the start of the bytes, up to the first of which a part is missing or which
    /// has to wait, and as many as belong in the turn. Returns the number of their bytes.
    fn whole_frames(&mut self, bytes: &[u8], turn: &mut Turn<'_, '_>) -> Result<usize, Stop> {
        let is_of_lane = self.connection.receives.is_of_lane();
        let mut taken = 0;
        while self.cost <= turn.limit {
            if is_of_lane {
                taken += self.lane_sends(&bytes[taken..], turn);
            }
            let rest = &bytes[taken..];
            let Some(start) = rest.first_chunk::<START>() else { break };
            // What is wrong with a header is reported in the general way.
            let Ok((header, length, consumed)) = Header::decode(rest) else { break };
            let frame = mpa::fpdu_length(consumed - mpa::LENGTH_SIZE + length);
            if rest.len() < frame || ddp::announced(start) > 0 && self.connection.announces {
                break;
            }
            self.header = *start;
            let payload = &rest[consumed..][..length];
            let is_taken = match (&header, &self.stream) {
                // Bytes for the reader of a stream go to its room, past the chunks.
                (Header::Tagged(_), _) => turn.room.is_none() && self.take_write(&header, payload)?,
                (Header::Untagged(_), Some(_)) => self.take_message(&header, payload, turn)?,
                (Header::Untagged(_), None) => self.take_send(&header, payload, turn.wakes)?,
            };
            if !is_taken && !self.take_frame(&header, payload, consumed, &mut None, turn)? {
                break;
            }
            self.ahead.begin(frame, false);
            self.frame_done();
            taken += frame;
        }
        Ok(taken)
    }

    /// Receives plain Sends of one frame each at the start of the bytes, for a queue pair of a lane: all under one lock. Returns the number
    /// of their bytes. The first frame that is any other, or for which there is no receive, is not touched.
    #[inline(never)]
    fn lane_sends(&mut self, bytes: &[u8], turn: &mut Turn<'_, '_>) -> usize {
        if self.receive.is_some() {
            return 0;
        }
        let Self { connection, inbound, ahead, cost, .. } = self;
        let ConnectionShared { id, receives, .. } = &**connection;
        let taken = receives.with_lane(turn.wakes, |receives, arrived, queue_pair| {
            let mut taken = 0;
            while *cost <= turn.limit
                && let Some(start) = bytes[taken..].first_chunk::<START>()
                && let Some(length) = inbound.next_send().and_then(|header| header.matches(start))
                && let Some(payload) = bytes[taken + START..].get(..length)
                && let frame = mpa::fpdu_length(Untagged::LEN + length)
                && frame <= bytes.len() - taken
                && let Some(place) = receives.front_mut().and_then(|(_, memory)| memory.get_mut(..length))
            {
                trace!(connection = %id, opcode = ?Opcode::Send, length, "frame received");
                place.copy_from_slice(payload);
                let Some((slot, memory)) = receives.pop_front() else { break };
                arrived.push_back(Arrived::received(queue_pair, slot, memory, length as u32));
                inbound.count_send();
                ahead.begin(frame, false);
                *cost += 1;
                taken += frame;
            }
            taken
        });
        taken.unwrap_or(0)
    }

    /// Places the payload of an RDMA Write. Returns false, with nothing changed, if the frame is anything else.
    #[inline]
    fn take_write(&mut self, header: &Header, payload: &[u8]) -> Result<bool, Stop> {
        let &Header::Tagged(Tagged { opcode: Opcode::Write, stag, to, .. }) = header else {
            return Ok(false);
        };
        if payload.is_empty() {
            return Ok(false);
        }
        let ConnectionShared { id, keys, number, .. } = &*self.connection;
        trace!(connection = %id, opcode = ?Opcode::Write, length = payload.len(), "frame received");
        let named = |terminate: Terminate| Stop::from(terminate.with_header(&self.header[..HEADER]));
        if let Some(stream) = self.stream.as_mut().filter(|_| stag == STREAM_KEY) {
            return stream.take_write(to, payload).map(|()| true).map_err(named);
        }
        let grant = keys.resolve((stag, to), payload.len(), Intent::Write, *number).map_err(named)?;
        let valid = grant.access.guard().ok_or_else(|| named(Terminate::INVALID_STAG_TAGGED))?;
        if let Some(memory) = valid.memory() {
            memory.write(grant.part.start, payload);
        }
        Ok(true)
    }

    /// Takes a Send to a byte stream that is one frame. Returns false, with nothing changed, if the frame is
    /// anything else.
    fn take_message(
        &mut self,
        header: &Header,
        payload: &[u8],
        turn: &mut Turn<'_, '_>,
    ) -> Result<bool, Stop> {
        let Some(stream) = &mut self.stream else { return Ok(false) };
        let Header::Untagged(Untagged { opcode: Opcode::Send, last: true, mo: 0, .. }) = header else {
            return Ok(false);
        };
        let named = |terminate: Terminate| Stop::from(terminate.with_header(&self.header));
        self.inbound.segment(header, payload.len()).map_err(named)?;
        trace!(connection = %self.connection.id, opcode = ?Opcode::Send, length = payload.len(), "frame received");
        stream.take_send(payload, &mut turn.room, turn.wakes).map(|()| true).map_err(named)
    }

    /// Receives a Send that is one frame, for a queue pair with receives of its own. Returns false, with
    /// nothing changed, if the frame is anything else.
    #[inline]
    fn take_send(&mut self, header: &Header, payload: &[u8], wakes: &mut WakeList) -> Result<bool, Stop> {
        let Header::Untagged(Untagged { opcode, last: true, .. }) = header else { return Ok(false) };
        let is_plain = matches!(opcode, Opcode::Send | Opcode::SendSolicited) && self.receive.is_none();
        if !is_plain || !self.connection.receives.is_own() {
            return Ok(false);
        }
        let segment = self.inbound.segment(header, payload.len());
        segment.map_err(|terminate| terminate.with_header(&self.header))?;
        trace!(connection = %self.connection.id, ?opcode, length = payload.len(), "frame received");
        let solicited = opcode.is_solicited();
        let Some(receive) = self.connection.receives.take_for(payload.len()) else {
            // The connection ends with the reason, unless a receive has been posted in between.
            self.reserve_receive(0, payload.len())?;
            self.place_in_receive(0, payload);
            self.complete(OnComplete::Send { last: true, solicited, invalidate: None }, wakes)?;
            return Ok(true);
        };
        let Receive { ticket, payload: places } = receive;
        let mut rest = payload;
        for place in &places {
            let (here, behind) = rest.split_at(rest.len().min(place.len()));
            place.write(0, here);
            rest = behind;
        }
        let mut completed = Completed::done(payload.len(), places);
        completed.extra.solicited = solicited;
        self.connection.receives.complete(ticket, completed, wakes);
        Ok(true)
    }
}
