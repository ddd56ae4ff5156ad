//! Receives frames from the socket and places their payload in memory.
//!
//! One reader per connection owns this state; nothing here is shared. Payload goes from the socket straight
//! to its place, by one `readv` into [the rest of the payload | a staging buffer], so that headers cost no
//! system call of their own. With CRC on, a frame is checked before any of it is placed (RFC 5044 section
//! 4.4: nothing unchecked is delivered): in the staging buffer, which has room for many then, or where its
//! parts are gathered.

mod buffer;
mod control;
mod message;
mod placement;
pub(crate) mod reader;
mod whole;

use std::io;
use std::sync::Arc;
use std::task::Waker;

use tracing::trace;

use super::connection::{ConnectionShared, Socket};
use super::memory::{Binding, Intent};
use super::receive_queue::{Interrupted, Receive};
use crate::inflight::{self, Completed, Note, Payload, STREAM_KEY, Ticket, WakeList};
use crate::memory::{Target, Unchecked};
use crate::proto::mpa::Rtr;
use crate::proto::rdmap::{Inbound, MAX_CONTROL, Segment};
use crate::provider::stream::StreamRoom;
use crate::provider::work::RemoteAddress;
use crate::wire::ddp::{Header, HeaderError};
use crate::wire::mpa;
use crate::wire::rdmap::Terminate;
use buffer::{Frame, MANY, ReadAhead, Staging};
use control::LastWords;
use message::StreamSide;
use placement::{
    Announced, Content, Control, Destination, OnComplete, Place, offset, place_in, stream_place,
};
use reader::{Reads, Stop, Turn, TurnOutcome, cost_of, reject};

/// Length field, padding and CRC of a frame without content.
const EMPTY_FRAME: usize = mpa::fpdu_length(0);

enum State {
    /// At a frame boundary, or within a header.
    Header,
    /// `left` bytes of payload are to come, then `trailer` bytes of pad and CRC.
    Payload { destination: Destination, left: usize, trailer: usize, on_complete: OnComplete },
    /// A payload that is a header of RDMAP: to be gathered in the staging buffer, trailer included.
    Control { length: usize, trailer: usize, control: Control },
    /// CRC is on: a whole frame is being gathered.
    Gather,
}

/// The next step of the reader.
enum Next {
    /// Read from the socket.
    Read,
    /// Process staged bytes: they came with the start-up frames, behind the first frame, or beyond the work
    /// of a turn.
    Resume,
    /// Process staged bytes, once the next message has found a receive.
    AwaitReceive,
    /// Nothing: the reader has met this end, which the task has not taken yet, or the connection ends. The
    /// end is boxed because each turn moves the next step.
    Ended(Option<Box<Stop>>),
}

/// The next step in the processing of staged bytes.
enum Step {
    Continue,
    /// The rest has not arrived yet.
    NeedMore,
    /// The message has to wait for a receive.
    AwaitReceive,
}

/// The state of the receiving half.
pub(crate) struct Receiver {
    pub(super) connection: Arc<ConnectionShared>,
    staging: Staging,
    state: State,
    next: Next,
    ahead: ReadAhead,
    inbound: Inbound,
    /// The segments that the peer has announced.
    announced: Option<Announced>,
    /// The receive for the current Send, with the number of bytes that it has got.
    pub(super) receive: Option<(Receive, usize)>,
    /// `None` for a queue pair. In a box, because there are more of those.
    stream: Option<Box<StreamSide>>,
    /// The number of shared receives that have been taken for messages. It wraps around.
    messages: u32,
    /// The first message of a peer, which completes when the connection is established. In a box, because that is soon.
    pub(super) first: Option<Box<(Ticket, Completed)>>,
    /// The message did not fit.
    overflowed: bool,
    /// A frame that is being gathered, with CRC on.
    frame: Frame,
    /// The header of the current segment, for a Terminate that names it.
    pub(super) header: [u8; 20],
    /// At least one frame has been received, or the start-up ends without one.
    pub(super) heard: bool,
    /// The work of this turn so far.
    pub(super) cost: u32,
    /// The number of bytes that have been read.
    pub(super) received: u64,
    /// The first frame has no content.
    empty_frame: bool,
    /// The search for a Terminate, while this end disconnects.
    last_words: Option<Box<LastWords>>,
    /// The connection is established for its connector, too: any message may complete.
    is_established: bool,
    /// Reads by others than the task.
    pub(super) reads: Reads,
    /// Wakes the reader of a stream that waits for the next turn.
    waiting: Option<Waker>,
}

impl Receiver {
    /// Creates the receiving half. `leftover` are the bytes behind the start-up frames.
    pub(crate) fn new(connection: Arc<ConnectionShared>, leftover: &[u8]) -> Self {
        let ahead = ReadAhead::new(connection.receives.is_shared());
        let stream = connection.receives.inbox().cloned().map(|inbox| Box::new(StreamSide::new(inbox)));
        let is_established = connection.is_peer_ready();
        // RFC 6581 section 4.3
        let empty_frame = connection.rtr == Rtr::Send;
        let heard = connection.rtr == Rtr::Waived;
        Self {
            connection,
            staging: Staging::new(leftover),
            state: State::Header,
            next: if leftover.is_empty() { Next::Read } else { Next::Resume },
            ahead,
            inbound: Inbound::new(),
            announced: None,
            receive: None,
            stream,
            messages: 0,
            first: None,
            overflowed: false,
            frame: Frame::default(),
            header: [0; 20],
            heard,
            cost: 0,
            received: 0,
            empty_frame,
            last_words: None,
            reads: Reads::default(),
            is_established,
            waiting: None,
        }
    }

    /// Returns whether the next frames are likely to be large.
    pub(super) fn expects_large(&self) -> bool {
        self.ahead.expects_large()
    }

    /// Returns whether the reader of a stream may have a turn: the task has seen the first frame, and no end.
    pub(super) fn serves_streams(&self) -> bool {
        self.heard && !matches!(self.next, Next::Ended(_))
    }

    /// Returns whether a part of a message has arrived in a shared receive.
    pub(super) fn holds_shared(&self) -> bool {
        self.receive.is_some() && self.connection.receives.is_shared()
    }

    /// Returns whether there is a next step, and a receive if it needs one.
    pub(super) fn may_advance(&self) -> bool {
        match self.next {
            Next::Read | Next::Resume => true,
            Next::AwaitReceive => self.connection.receives.is_ready(self.connection.number),
            Next::Ended(_) => false,
        }
    }

    /// Returns whether the stream is between two frames, where it may end.
    pub(super) fn at_boundary(&self) -> bool {
        matches!(self.state, State::Header) && self.staging.is_empty()
    }

    /// Takes the receive that was being filled, and ends the reading.
    pub(crate) fn take_receive(&mut self) -> Option<Interrupted> {
        self.next = Next::Ended(None);
        self.state = State::Header;
        let overflowed = self.overflowed;
        self.receive.take().map(|(receive, _)| Interrupted { receive, overflowed })
    }

    /// Returns the number of the message that is arriving, and how many bytes of it have arrived.
    pub(crate) fn progress(&self) -> Option<(u32, usize)> {
        let (_, placed) = self.receive.as_ref()?;
        let missing = match &self.state {
            State::Payload { left, on_complete: OnComplete::Send { .. }, .. } => *left,
            _ => 0,
        };
        Some((self.messages, placed - missing))
    }

    /// Returns whether the next message has to wait for a receive: nothing is read until it has one.
    pub(crate) fn awaits_receive(&self) -> bool {
        matches!(self.next, Next::AwaitReceive)
    }

    /// Returns whether the next step is to read from the socket.
    pub(crate) fn needs_socket(&self) -> bool {
        matches!(self.next, Next::Read)
    }

    /// Returns whether the task has to go on, with staged bytes or with the end.
    pub(super) fn needs_task(&self) -> bool {
        matches!(self.next, Next::Resume | Next::Ended(Some(_)))
    }

    /// Takes the end that the reader has met, for the task.
    pub(crate) fn take_stop(&mut self) -> Option<Stop> {
        if let Next::Ended(stop) = &mut self.next { stop.take().map(|stop| *stop) } else { None }
    }

    /// Takes the next step: reads once and processes the bytes, or processes staged bytes without a read. A
    /// message that waits for a receive is to have one. Returns `None` if the reader has ended.
    pub(crate) fn advance(&mut self, socket: &Socket, turn: &mut Turn<'_, '_>) -> Option<TurnOutcome> {
        if matches!(self.next, Next::Ended(_)) {
            return None;
        }
        let reads = matches!(std::mem::replace(&mut self.next, Next::Read), Next::Read);
        let heard = self.heard;
        self.cost = 1;
        let outcome = if reads && self.expects_whole(turn) {
            self.read_whole(socket, turn)
        } else {
            self.with_staging(|receiver| {
                let read = reads && receiver.read_once(socket, &mut turn.room)?;
                if read || !reads {
                    receiver.next = receiver.process(turn)?;
                }
                Ok(read)
            })
        };
        if let Some(stream) = &mut self.stream {
            stream.expect_large(self.ahead.expects_large());
            stream.came(turn.wakes);
        }
        match outcome {
            Ok(read) => Some(TurnOutcome {
                read,
                needs_socket: self.needs_socket(),
                established: self.heard && !heard,
                cost: self.cost,
            }),
            Err(stop) => {
                self.next = Next::Ended(Some(Box::new(stop)));
                None
            }
        }
    }

    /// Lends the receiver staging room for a turn.
    fn with_staging<R>(&mut self, turn: impl FnOnce(&mut Self) -> R) -> R {
        self.staging.lend(self.ahead.room());
        let result = turn(self);
        self.return_staging();
        result
    }

    /// Ends the turn of the staging buffer. The rest of the turn is processed next: it stays there.
    fn return_staging(&mut self) {
        if !matches!(self.next, Next::Resume) {
            self.staging.give_back();
        }
        self.frame.park();
    }

    /// Releases memory of an unfinished frame. Called at each tick.
    pub(crate) fn shrink(&mut self) {
        self.frame.shrink();
    }

    /// Returns the size of the memory that is kept for a part of a frame, and for bytes that were read ahead.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.frame.memory() + self.staging.memory()
    }

    /// Discards all further bytes except for a Terminate. To be called before
    /// [`take_receive`](Self::take_receive).
    pub(crate) fn listen_for_terminate(&mut self) {
        // A frame that may be a Terminate is read again from its start.
        let (rest, start) = match &self.state {
            State::Header => (0, &[][..]),
            State::Payload { left, trailer, .. } => (*left + *trailer, &[][..]),
            State::Control { .. } => (0, &self.header[..]),
            State::Gather => (0, self.frame.gathered()),
        };
        let mut words = LastWords::behind(rest);
        words.read(start);
        self.next = Next::Ended(None);
        self.with_staging(|receiver| {
            words.read(receiver.staging.unread());
            receiver.staging.take(receiver.staging.unread().len());
        });
        self.last_words = Some(Box::new(words));
    }

    /// Returns the Terminate that was found among discarded bytes.
    pub(crate) fn terminated(&self) -> Option<&Terminate> {
        self.last_words.as_ref()?.terminate.as_ref()
    }

    /// Reads and discards bytes. Returns the cost, at least 1; `None` at the end of the stream.
    pub(crate) fn discard(&mut self, socket: &Socket) -> io::Result<Option<u32>> {
        self.cost = 1;
        let length = self.with_staging(|receiver| {
            receiver.staging.take(receiver.staging.unread().len());
            let room = receiver.staging.room(MANY);
            let asked = room.len();
            let length = socket.read(&mut [Target::Bytes(&mut *room)], asked)?;
            if let Some(words) = &mut receiver.last_words {
                receiver.cost += words.read(&room[..length]);
            }
            io::Result::Ok(length)
        })?;
        self.account_for_bytes(length);
        Ok((length > 0).then_some(self.cost))
    }

    /// Reads once, and distributes the bytes. Returns whether any had arrived.
    ///
    /// # Errors
    /// The end of the stream, and that of the socket.
    fn read_once(&mut self, socket: &Socket, room: &mut Option<&mut StreamRoom<'_>>) -> Result<bool, Stop> {
        let length = match self.read_planned(socket, room) {
            Ok(None) => self.read(socket, room),
            Ok(Some(length)) => Ok(length),
            Err(stop) => Err(stop),
        };
        self.has_read(length).map(|length| length.is_some())
    }

    /// Returns the number of bytes that a read has brought; `None` if it found none.
    ///
    /// # Errors
    /// As [`read_once`](Self::read_once).
    fn has_read(&self, length: Result<usize, Stop>) -> Result<Option<usize>, Stop> {
        match length {
            Ok(0) if self.at_boundary() => Err(Stop::Closed),
            Ok(0) => Err(Stop::Broken(io::ErrorKind::UnexpectedEof.into())),
            Ok(length) => Ok(Some(length)),
            Err(Stop::Broken(error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(stop) => Err(stop),
        }
    }

    /// Adds bytes that have been read to the cost of the turn and to the total.
    fn account_for_bytes(&mut self, length: usize) {
        self.cost += cost_of(length);
        self.received += length as u64;
    }

    /// Reads once, by one `readv` into the places of the bytes, and accounts for them. 0 is the end.
    fn read(&mut self, socket: &Socket, room: &mut Option<&mut StreamRoom<'_>>) -> Result<usize, Stop> {
        // A Send to a stream is copied: a word, and few bytes.
        let is_send = matches!(self.state, State::Payload { destination: Destination::StreamSend(_), .. });
        let in_payload = !is_send && matches!(self.state, State::Payload { left: 1.., .. } | State::Gather);
        let headers_only = room.is_some() && !self.connection.crc;
        let most = match (headers_only, in_payload) {
            (false, _) => self.ahead.whole_frames(),
            (true, false) => self.ahead.headers(false),
            (true, true) => {
                let end = self.stream.as_ref().and_then(|stream| stream.shape.tail(0));
                end.unwrap_or(self.ahead.headers(true))
            }
        };
        let mut is_staged = is_send;
        if let State::Payload { destination: Destination::Stream(to), left: left @ 1.., .. } = self.state
            && room.as_ref().is_none_or(|room| room.takes(stream_place(to), left) == 0)
        {
            if let Some(length) = self.read_to_stream(socket, to, left, most)? {
                return Ok(length);
            }
            // Bytes that are not the next ones of the stream are copied to their place.
            is_staged = true;
        }
        let staging = self.staging.room(most);
        let length = match &self.state {
            State::Payload { destination, left: left @ 1.., .. } if !is_staged => {
                let mut asked = *left + staging.len();
                let direct = destination.direct(room.as_deref(), *left);
                let valid;
                let remote;
                let nothing = Payload::new();
                let behind = match destination {
                    Destination::Local(parts) => parts,
                    Destination::Stream(_) | Destination::StreamSend(_) => &nothing,
                    // Checked again at every read: the memory may have been deregistered within the frame.
                    Destination::Remote { access, place } => {
                        let named = || Terminate::INVALID_STAG_TAGGED.with_header(&self.header);
                        valid = access.guard().ok_or_else(named)?;
                        remote = valid.part(offset(*place) + direct, *left - direct);
                        &remote
                    }
                };
                let mut targets: smallvec::SmallVec<[Target<'_>; 3]> = smallvec::SmallVec::new();
                if let Some(room) = room.as_deref_mut().filter(|_| direct > 0) {
                    targets.push(room.target(direct));
                }
                if direct > 0 && direct < *left {
                    // The reader comes back for the rest, which would be copied once more if it were placed in
                    // a chunk.
                    asked = direct;
                } else {
                    targets.extend(behind.iter().map(Target::Memory));
                    targets.push(Target::Bytes(staging));
                }
                socket.read(&mut targets, asked)?
            }
            State::Gather => {
                let frame = self.frame.missing();
                let asked = frame.len() + staging.len();
                socket.read(&mut [Target::Bytes(frame), Target::Bytes(staging)], asked)?
            }
            State::Header | State::Control { .. } | State::Payload { .. } => {
                let asked = staging.len();
                socket.read(&mut [Target::Bytes(staging)], asked)?
            }
        };
        self.account_for_bytes(length);
        let direct = match self.state {
            State::Payload { .. } if !is_staged => self.placed(length, room, StreamRoom::fill),
            State::Gather => {
                let direct = length.min(self.frame.missing().len());
                self.frame.filled(direct);
                direct
            }
            State::Header | State::Control { .. } | State::Payload { .. } => 0,
        };
        self.staging.filled(length - direct);
        Ok(length)
    }

    /// Processes staged bytes until there are too few, or the work of a turn is done. Returns the next step.
    fn process(&mut self, turn: &mut Turn<'_, '_>) -> Result<Next, Stop> {
        let heard = self.heard;
        let mut known = None;
        let next = loop {
            if self.heard != heard || self.cost > turn.limit {
                // The connection is established before anything behind the first frame completes.
                break if self.staging.is_empty() { Next::Read } else { Next::Resume };
            }
            // Of the frame that is next now, or of none.
            let checksum = known.take();
            let step = match self.state {
                State::Header if self.empty_frame => self.skip_empty_frame(),
                State::Header if self.connection.crc => self.begin_frame(checksum, &mut known, turn)?,
                State::Header => match self.staged_frames(turn)? {
                    0 => self.parse_header()?,
                    _ => Step::Continue,
                },
                State::Payload { .. } => self.place_payload(turn)?,
                State::Control { .. } => self.parse_control(turn.wakes)?,
                State::Gather => self.gather_frame(turn)?,
            };
            match step {
                Step::Continue => {}
                Step::NeedMore => break Next::Read,
                Step::AwaitReceive => break Next::AwaitReceive,
            }
        };
        // A read follows only if no payload of the current frame is missing while bytes are staged. So it may place the next bytes of the
        // stream in a payload that is incomplete: no staged byte comes before them.
        debug_assert!(
            self.staging.is_empty()
                || matches!(next, Next::Resume)
                || !matches!(self.state, State::Payload { left: 1.., .. }),
            "no read follows while staged bytes are missing in a payload",
        );
        Ok(next)
    }

    /// Skips the RTR message of a peer that sends a frame without any content.
    fn skip_empty_frame(&mut self) -> Step {
        let Some(frame) = self.staging.unread().first_chunk::<EMPTY_FRAME>() else { return Step::NeedMore };
        if frame[..mpa::LENGTH_SIZE] == [0; mpa::LENGTH_SIZE] {
            self.staging.take(EMPTY_FRAME);
            self.heard = true;
        }
        self.empty_frame = false;
        Step::Continue
    }

    fn parse_header(&mut self) -> Result<Step, Stop> {
        let bytes = self.staging.unread();
        let (header, length, consumed) = match Header::decode(bytes) {
            Ok(decoded) => decoded,
            Err(HeaderError::Truncated) => return Ok(Step::NeedMore),
            Err(error) => return Err(reject(error, bytes)),
        };
        self.header[..consumed].copy_from_slice(&bytes[..consumed]);
        if !self.begin_segment(&header, length, consumed)? {
            return Ok(Step::AwaitReceive);
        }
        self.staging.take(consumed);
        Ok(Step::Continue)
    }

    /// Returns the memory of a place.
    fn destination(&self, place: Place, length: usize) -> Destination {
        match (place, &self.receive) {
            (Place::Memory(destination), _) => destination,
            (Place::Receive(offset), Some((receive, _))) => {
                Destination::Local(inflight::range(&receive.payload, offset, length))
            }
            (Place::Receive(_), None) => Destination::Local(Payload::new()),
        }
    }

    /// Copies the payload of a frame, whose header has `consumed` bytes, to its place.
    #[inline]
    fn place(
        &mut self,
        place: Place,
        payload: &[u8],
        consumed: usize,
        room: &mut Option<&mut StreamRoom<'_>>,
        ahead: &mut Option<Unchecked<'_>>,
    ) -> Result<(), Terminate> {
        match place {
            Place::Receive(offset) => self.place_in_receive(offset, payload),
            Place::Memory(destination) => place_in(&destination, payload, room, &mut self.stream, ahead)
                .map_err(|terminate| terminate.with_header(&self.header[..consumed]))?,
        }
        Ok(())
    }

    /// Copies the payload of a Send to the current receive, which has room for it.
    fn place_in_receive(&self, mut offset: usize, mut bytes: &[u8]) {
        let Some((Receive { payload, .. }, _)) = &self.receive else { return };
        for part in payload {
            let (here, rest) = bytes.split_at(bytes.len().min(part.len().saturating_sub(offset)));
            part.write(offset, here);
            offset = offset.saturating_sub(part.len());
            bytes = rest;
        }
    }

    /// Copies the staged bytes of the current payload to its place. Completes the segment once all of it has
    /// arrived, with its trailer.
    fn place_payload(&mut self, turn: &mut Turn<'_, '_>) -> Result<Step, Stop> {
        let State::Payload { destination, left, trailer, on_complete } = &mut self.state else {
            return Ok(Step::Continue);
        };
        let taken = self.staging.unread().len().min(*left);
        if taken > 0 {
            let unread = &self.staging.unread()[..taken];
            let placed = place_in(destination, unread, &mut turn.room, &mut self.stream, &mut None);
            placed.map_err(|terminate| terminate.with_header(&self.header))?;
            destination.shrink(taken);
            *left -= taken;
        }
        let skipped = (self.staging.unread().len() - taken).min(*trailer);
        *trailer -= skipped;
        self.staging.take(taken + skipped);
        if *left + *trailer > 0 {
            return Ok(Step::NeedMore);
        }
        let on_complete = std::mem::take(on_complete);
        // Before the segment completes: the memory is in use as long as the state names it.
        self.state = State::Header;
        self.complete(on_complete, turn.wakes)?;
        self.frame_done();
        Ok(Step::Continue)
    }

    /// Executes the next staged payload, which is for RDMAP itself, once it has arrived with its trailer.
    fn parse_control(&mut self, wakes: &mut WakeList) -> Result<Step, Stop> {
        let State::Control { length, trailer, control } = self.state else { return Ok(Step::Continue) };
        let Some(staged) = self.staging.unread().get(..length + trailer) else { return Ok(Step::NeedMore) };
        let mut payload = [0; MAX_CONTROL];
        payload[..length].copy_from_slice(&staged[..length]);
        self.staging.take(length + trailer);
        self.state = State::Header;
        self.control(control, &payload[..length], wakes)?;
        self.frame_done();
        Ok(Step::Continue)
    }

    /// Counts a whole frame that was received.
    fn frame_done(&mut self) {
        self.heard = true;
        self.cost += 1;
    }

    /// Processes a frame whose payload has arrived. Returns false if it has to wait for a receive. The checksum of
    /// `ahead` may be computed beside the copy of the payload.
    #[inline]
    fn take_frame(
        &mut self,
        header: &Header,
        payload: &[u8],
        consumed: usize,
        ahead: &mut Option<Unchecked<'_>>,
        turn: &mut Turn<'_, '_>,
    ) -> Result<bool, Stop> {
        match self.begin(header, payload.len(), consumed)? {
            None => return Ok(false),
            Some(Content::Payload(place, on_complete)) => {
                self.place(place, payload, consumed, &mut turn.room, ahead)?;
                self.complete(on_complete, turn.wakes)?;
            }
            Some(Content::Control(control)) => self.control(control, payload, turn.wakes)?,
        }
        Ok(true)
    }

    /// Decides where the payload of a segment goes. Returns `None`, with nothing changed, if the message has
    /// to wait for a receive.
    fn begin(&mut self, header: &Header, length: usize, consumed: usize) -> Result<Option<Content>, Stop> {
        let named = |terminate: Terminate| Stop::from(terminate.with_header(&self.header[..consumed]));
        let may_wait = self.connection.receives.is_shared() && self.receive.is_none();
        let before = may_wait.then_some(self.inbound);
        let segment = self.inbound.segment(header, length).map_err(named)?;
        let invalidate = self.invalidated(&segment).map_err(named)?;
        let takes = matches!(segment, Segment::Send { .. } | Segment::Immediate { .. });
        if let Some(before) = before.filter(|_| takes) {
            let Some(receive) = self.connection.receives.take(self.connection.number) else {
                self.inbound = before;
                return Ok(None);
            };
            self.receive = Some((receive, 0));
            self.messages = self.messages.wrapping_add(1);
        }
        trace!(connection = %self.connection.id, opcode = ?header.opcode(), length, "frame received");
        let (place, on_complete) = match segment {
            Segment::Send { offset, last, .. } if self.stream.is_some() => {
                let begun = self.stream.as_mut().map_or(Ok(()), |stream| stream.begin_send(offset, length));
                begun.map_err(named)?;
                let end = if last { OnComplete::StreamSend(offset + length) } else { OnComplete::Nothing };
                (Place::Memory(Destination::StreamSend(offset)), end)
            }
            Segment::Send { offset, last, solicited, .. } => {
                self.reserve_receive(offset, length)?;
                (Place::Receive(offset), OnComplete::Send { last, solicited, invalidate })
            }
            // Neither key nor offset of an empty Write is checked.
            Segment::Write { .. } if length == 0 => {
                (Place::Memory(Destination::Local(Payload::new())), OnComplete::Nothing)
            }
            Segment::Write { stag: STREAM_KEY, to } if self.stream.is_some() => {
                let begun = self.stream.as_mut().map_or(Ok(()), |stream| stream.begin_write(to, length));
                begun.map_err(named)?;
                (Place::Memory(Destination::Stream(to)), OnComplete::Nothing)
            }
            Segment::Write { stag, to } => {
                let ConnectionShared { keys, number, .. } = &*self.connection;
                let grant = keys.resolve((stag, to), length, Intent::Write, *number).map_err(named)?;
                let place = RemoteAddress { key: stag, address: to };
                (Place::Memory(Destination::Remote { access: grant.access, place }), OnComplete::Nothing)
            }
            Segment::ReadResponse { stag, to, last } => {
                let sink = self.connection.sending().queue.response((stag, to), length, last);
                let sink =
                    sink.map_err(|error| Stop::response(error.with_header(&self.header[..consumed])))?;
                (Place::Memory(Destination::Local(sink)), OnComplete::Response { last })
            }
            Segment::ReadRequest => return Ok(Some(Content::Control(Control::ReadRequest))),
            Segment::AtomicRequest => return Ok(Some(Content::Control(Control::AtomicRequest))),
            Segment::AtomicResponse => return Ok(Some(Content::Control(Control::AtomicResponse))),
            Segment::Immediate { solicited } => {
                return Ok(Some(Content::Control(Control::Immediate { solicited })));
            }
            Segment::Terminate => return Ok(Some(Content::Control(Control::Terminate))),
        };
        Ok(Some(Content::Payload(place, on_complete)))
    }

    /// Returns the window that this segment invalidates. RFC 5040 section 4.8: a peer may invalidate a
    /// window, and only the owner a region. If the message were delivered nevertheless, the peer would
    /// believe that it had invalidated the key.
    fn invalidated(&self, segment: &Segment) -> Result<Option<Arc<Binding>>, Terminate> {
        let Segment::Send { invalidate: Some(key), .. } = segment else { return Ok(None) };
        let window = self.connection.keys.window(*key, self.connection.number);
        window.map(Some).ok_or(Terminate::CANNOT_INVALIDATE)
    }

    /// Takes a receive for a segment of a Send, unless it has one, and checks that there is room.
    fn reserve_receive(&mut self, offset: usize, length: usize) -> Result<(), Stop> {
        let (receive, got) = match &mut self.receive {
            Some(current) => current,
            None => {
                // RFC 5041 section 7.2; a peer may not send a message for which no receive is posted
                // (`QP-20`).
                let receive = self.connection.receives.take(self.connection.number);
                let receive = receive.ok_or_else(|| Terminate::NO_BUFFER.with_header(&self.header))?;
                self.receive.insert((receive, 0))
            }
        };
        if offset + length > inflight::length(&receive.payload) {
            // The receive completes with the overflow, and the connection breaks (`X4`).
            self.overflowed = true;
            return Err(Terminate::TOO_LONG.with_header(&self.header).into());
        }
        *got = offset + length;
        Ok(())
    }

    /// Completes a segment whose payload is in place.
    ///
    /// # Errors
    /// The Terminate for a Send to a stream that the peer may not send.
    fn complete(&mut self, on_complete: OnComplete, wakes: &mut WakeList) -> Result<(), Stop> {
        match on_complete {
            OnComplete::StreamSend(length) => {
                let ended = self.stream.as_mut().map_or(Ok(()), |stream| stream.end_send(length, wakes));
                ended.map_err(|terminate| terminate.with_header(&self.header))?;
            }
            OnComplete::Send { last: true, solicited, invalidate } => {
                if let Some((Receive { ticket, payload }, bytes)) = self.receive.take() {
                    let mut completed = Completed::done(bytes, payload);
                    completed.extra.solicited = solicited;
                    if let Some(binding) = invalidate {
                        completed.extra.note = Note::Invalidated(binding.key());
                        // Before the receive completes.
                        self.connection.keys.unbind(&binding);
                    }
                    self.finish_receive(ticket, completed, wakes);
                }
            }
            OnComplete::Response { last: true } => {
                let (is_end, cost) = self.connection.complete_read(wakes);
                self.cost += cost;
                if let Some(stream) = self.stream.as_ref().filter(|_| is_end) {
                    stream.confirm(wakes);
                }
            }
            OnComplete::Send { .. } | OnComplete::Response { .. } | OnComplete::Nothing => {}
        }
        Ok(())
    }
}
