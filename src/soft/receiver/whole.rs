//! Frames that have arrived as a whole: nearly every small one has.
//!
//! If a read begins with a frame, they are parsed where they were read, in the room of the thread, and nothing
//! is kept of them. A frame of which a part is missing, which has to wait or which announces others is staged
//! and goes the general way, which makes the same decisions: [`Receiver::begin`], [`Receiver::place`],
//! [`Receiver::complete`].
//!
//! With CRC on, a whole frame is checked before any of its payload is placed: in the staging buffer if all of it has
//! arrived, or where its parts are gathered. If the next frame is staged too, its checksum is computed in the pass that
//! copies the payload of the current one, whose checksum is known already. Nothing of the next frame is used for that,
//! and nothing is reported of it: a wrong checksum ends the connection in the turn of that frame.

use tracing::trace;

use super::buffer::{LARGE, MANY, put_room, take_room};
use super::placement::OnComplete;
use super::reader::{Stop, Turn, reject};
use super::{Receiver, State, Step};
use crate::inflight::{Arrived, Completed, STREAM_KEY, WakeList};
use crate::memory::{self, Unchecked};
use crate::soft::connection::{ConnectionShared, Socket};
use crate::soft::memory::Intent;
use crate::soft::receive_queue::Receive;
use crate::wire::ddp::{self, Header, Tagged, Untagged};
use crate::wire::mpa::{self, crc32c};
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

/// The checksum of the next staged frame.
pub(super) struct KnownChecksum(u32);

/// Returns the length of the frame at the start of these bytes, if its length field has arrived.
fn length_of(bytes: &[u8]) -> Option<usize> {
    let &[high, low] = bytes.first_chunk()?;
    Some(mpa::fpdu_length(usize::from(u16::from_be_bytes([high, low]))))
}

/// Returns a large frame at the start of these bytes, without its checksum, if all of it has arrived.
fn large_frame(bytes: &[u8]) -> Option<Unchecked<'_>> {
    let length = length_of(bytes).filter(|length| *length >= LARGE && memory::folds_copies())?;
    Some(Unchecked::new(&bytes.get(..length)?[..length - mpa::CRC_SIZE]))
}

impl Receiver {
    /// Begins a frame that is to be checked: in the staging buffer if all of it has arrived, or gathered. Its checksum
    /// may be `known` from the step before, and that of the `next` frame may be known for the step behind.
    pub(super) fn begin_frame(
        &mut self,
        known: Option<KnownChecksum>,
        next: &mut Option<KnownChecksum>,
        turn: &mut Turn<'_, '_>,
    ) -> Result<Step, Stop> {
        let Some(length) = length_of(self.staging.unread()) else { return Ok(Step::NeedMore) };
        self.ahead.begin(length, false);
        if self.staging.unread().len() < length {
            self.frame.begin(length);
            self.state = State::Gather;
            return Ok(Step::Continue);
        }
        let staging = std::mem::take(&mut self.staging);
        let (frame, behind) = staging.unread().split_at(length);
        let outcome = self.checked(frame, known, (behind, next), turn);
        self.staging = staging;
        if let Ok(false) = outcome {
            return Ok(Step::AwaitReceive);
        }
        self.staging.take(length);
        outcome?;
        self.frame_done();
        Ok(Step::Continue)
    }

    /// Adds staged bytes to the frame that is gathered, and checks it once it is whole.
    pub(super) fn gather_frame(&mut self, turn: &mut Turn<'_, '_>) -> Result<Step, Stop> {
        let taken = self.frame.push(self.staging.unread());
        self.staging.take(taken);
        if !self.frame.is_complete() {
            return Ok(Step::NeedMore);
        }
        self.state = State::Header;
        let frame = std::mem::take(&mut self.frame);
        let outcome = self.checked(frame.gathered(), None, (&[], &mut None), turn);
        self.frame = frame;
        if let Ok(false) = outcome {
            self.state = State::Gather;
            return Ok(Step::AwaitReceive);
        }
        self.frame.release();
        outcome?;
        self.frame_done();
        Ok(Step::Continue)
    }

    /// Checks a whole frame, whose checksum may be `known`, and processes it. Returns false if it has to wait for a
    /// receive. If it has not, the checksum of the `next` frame, which begins `behind` it, may be known then.
    fn checked(
        &mut self,
        frame: &[u8],
        known: Option<KnownChecksum>,
        (behind, next): (&[u8], &mut Option<KnownChecksum>),
        turn: &mut Turn<'_, '_>,
    ) -> Result<bool, Stop> {
        let (body, field) = frame.split_at(frame.len() - mpa::CRC_SIZE);
        let checksum = known.map_or_else(|| crc32c(body), |known| known.0);
        let good = field.first_chunk().is_some_and(|field| mpa::crc_from_wire(*field) == checksum);
        let (header, length, consumed) = match Header::decode(body) {
            Ok(decoded) => decoded,
            Err(_) if !good => return Err(Terminate::CRC.into()),
            Err(error) => return Err(reject(error, body)),
        };
        // siw sends its Terminate without a checksum when the start-up itself went wrong.
        let last_words = !self.heard && header.opcode() == Opcode::Terminate;
        if !good && !last_words {
            return Err(Terminate::CRC.into());
        }
        self.header[..consumed].copy_from_slice(&body[..consumed]);
        let (payload, mut ahead) = (&body[consumed..consumed + length], large_frame(behind));
        let is_done = self.take_frame(&header, payload, consumed, &mut ahead, turn)?;
        *next = if is_done { ahead.and_then(Unchecked::finish).map(KnownChecksum) } else { None };
        Ok(is_done)
    }
}
