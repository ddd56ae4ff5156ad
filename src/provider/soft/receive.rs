//! The receiving half of a connection: bytes from the socket to memory.
//!
//! One reader per connection owns this state; nothing here is shared. Payload goes from the socket straight to where
//! it belongs, by one `readv` into [what is missing of the payload | a staging buffer], so that headers cost
//! no system call of their own. With CRC on, a frame is gathered and checked before any of it is placed (RFC 5044
//! section 4.4: nothing unchecked is delivered).

use std::io;
use std::sync::Arc;

use super::ahead::{Ahead, Came};
use super::keys::Intent;
use super::link::{Link, Socket};
use super::queue::Interrupted;
use super::registration::{Binding, RemoteAccess};
use super::shared::Receive;
use super::staging::Staging;
use crate::flight::{self, Completed, Payload, WakeList};
use crate::memory::Target;
use crate::proto::rdmap::{Inbound, MAX_CONTROL, Segment};
use crate::status::Status;
use crate::wire::crc::{self, crc32c};
use crate::wire::ddp::{Header, HeaderError, Tagged};
use crate::wire::mpa;
use crate::wire::rdmap::Terminate;

/// From this payload on a frame is large, and so, very likely, is the next one. Payload that lands in the staging buffer
/// has to be copied, so behind a large one that only gets the trailer and the next header; behind others as much as there
/// is, for many small ones at once.
const LARGE: usize = 16 * 1024;
const HEADERS_ONLY: usize = 20;
/// How much is read ahead between two frames of which the first was large.
const BETWEEN: usize = 4096;

/// Length field, padding and CRC of a frame without content.
const EMPTY_FRAME: usize = mpa::fpdu_length(0);

/// Why the reader stopped.
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

/// What the peer did wrong, and how a local request suffers from it.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) terminate: Terminate,
    /// The status of the oldest request of the send queue: something to blame for a bad answer to it.
    pub(crate) blame: Status,
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

/// Where the payload of the current segment goes.
enum Place {
    /// Into a posted receive, or the sink of a read.
    Local(Payload),
    /// Into memory that the peer addressed: valid at every single transfer, or not touched.
    Remote(RemoteAccess, Payload),
}

impl Place {
    fn parts(&self) -> &Payload {
        match self {
            Self::Local(parts) | Self::Remote(_, parts) => parts,
        }
    }

    fn shrink(&mut self, by: usize) {
        let (Self::Local(parts) | Self::Remote(_, parts)) = self;
        *parts = flight::range(parts, by, usize::MAX);
    }
}

/// What is to be done when the current segment is complete.
pub(super) enum Finish {
    Nothing,
    Send { last: bool, solicited: bool, invalidate: Option<Arc<Binding>> },
    Response { last: bool },
    ReadRequest,
    AtomicRequest,
    AtomicResponse,
    Immediate { solicited: bool },
    Terminate,
}

enum State {
    /// At a frame boundary, or within a header.
    Header,
    /// `left` bytes of payload to come, then the trailer.
    Payload { place: Place, left: usize, trailer: usize, finish: Finish },
    /// A payload that is a header of RDMAP: to be gathered in the staging buffer, trailer included.
    Control { length: usize, trailer: usize, finish: Finish },
    /// Pad and CRC.
    Trailer { left: usize, finish: Finish },
    /// CRC is on: a whole frame is being gathered.
    Gather { length: usize },
}

/// The state of the receiving half.
pub(crate) struct Receiver {
    staging: Staging,
    state: State,
    /// The last frame was a large one.
    large: bool,
    /// The segments of a Read Response behind the current one, with CRC off.
    ahead: Option<Box<Ahead>>,
    inbound: Inbound,
    /// The receive that the current Send goes to, with the bytes it has got.
    pub(super) receive: Option<(Receive, usize)>,
    /// The message did not fit.
    overflowed: bool,
    /// The next message has to wait for a receive.
    starved: bool,
    /// A frame that is being gathered, with CRC on.
    frame: Vec<u8>,
    gathered: usize,
    /// The header of the current segment, for a Terminate that names it.
    pub(super) header: [u8; 20],
    /// How many frames have been received, as far as it matters: none, or some.
    pub(super) heard: bool,
    /// What came with the start-up frames has been processed.
    started: bool,
    /// The first frame has no content.
    empty_frame: bool,
}

impl Receiver {
    /// `leftover` is what came behind the start-up frames; `empty_frame` when the peer says that it is ready by a
    /// frame without any content (RFC 6581 section 4.3).
    pub(crate) fn new(leftover: &[u8], empty_frame: bool) -> Self {
        Self {
            staging: Staging::new(leftover),
            state: State::Header,
            large: false,
            ahead: None,
            inbound: Inbound::new(),
            receive: None,
            overflowed: false,
            starved: false,
            frame: Vec::new(),
            gathered: 0,
            header: [0; 20],
            heard: false,
            started: false,
            empty_frame,
        }
    }

    /// Whether a whole frame has ever been received.
    pub(crate) fn has_heard(&self) -> bool {
        self.heard
    }

    /// Whether the stream is between two frames, where it may end.
    fn at_boundary(&self) -> bool {
        matches!(self.state, State::Header) && self.staging.is_empty()
    }

    /// What the connection leaves behind: the receive that was being filled.
    pub(crate) fn take_receive(&mut self) -> Option<Interrupted> {
        self.state = State::Header;
        self.ahead = None;
        let overflowed = self.overflowed;
        self.receive.take().map(|(receive, _)| Interrupted { receive, overflowed })
    }

    /// Whether the next message has to wait for a receive: nothing is read meanwhile.
    pub(crate) fn is_starved(&self) -> bool {
        self.starved
    }

    /// There may be a receive now.
    pub(crate) fn resume(&mut self, link: &Link, wakes: &mut WakeList) -> Result<(), Stop> {
        self.starved = false;
        self.with_staging(|receiver| receiver.process(link, wakes))
    }

    /// Lends it room for what it does.
    fn with_staging<R>(&mut self, turn: impl FnOnce(&mut Self) -> R) -> R {
        self.staging.lend();
        let result = turn(self);
        self.staging.give_back();
        result
    }

    /// Processes what came with the start-up frames, before the first read.
    pub(crate) fn start(&mut self, link: &Link, wakes: &mut WakeList) -> Result<(), Stop> {
        if std::mem::replace(&mut self.started, true) {
            return Ok(());
        }
        self.with_staging(|receiver| receiver.process(link, wakes))
    }

    /// Reads once and processes what came. Whether anything did.
    pub(crate) fn turn(&mut self, link: &Link, socket: &Socket, wakes: &mut WakeList) -> Result<bool, Stop> {
        self.with_staging(|receiver| match receiver.read(socket) {
            Ok(0) if receiver.at_boundary() => Err(Stop::Closed),
            Ok(0) => Err(Stop::Broken(io::ErrorKind::UnexpectedEof.into())),
            Ok(length) => {
                receiver.received(length, link)?;
                receiver.process(link, wakes).map(|()| true)
            }
            Err(Stop::Broken(error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(stop) => Err(stop),
        })
    }

    /// Reads what has nowhere to go any more.
    pub(crate) fn discard(&mut self, socket: &Socket) -> io::Result<usize> {
        self.with_staging(|receiver| {
            let room = receiver.staging.room(usize::MAX);
            let asked = room.len();
            socket.read(&mut [Target::Bytes(room)], asked)
        })
    }

    /// One `readv`, into wherever the bytes belong.
    fn read(&mut self, socket: &Socket) -> Result<usize, Stop> {
        let most = match (&self.state, self.large) {
            (_, false) => usize::MAX,
            (State::Payload { .. } | State::Gather { .. }, true) => HEADERS_ONLY,
            (State::Header | State::Control { .. } | State::Trailer { .. }, true) => BETWEEN,
        };
        let staging = self.staging.room(most);
        match &self.state {
            State::Payload { place: Place::Local(parts), left, .. } if self.ahead.is_some() => {
                let mut targets = parts.iter().map(Target::Memory).collect();
                let behind = self.ahead.as_mut().map_or(0, |ahead| ahead.targets(&mut targets));
                Ok(socket.read(&mut targets, *left + behind)?)
            }
            State::Payload { place, left, .. } => {
                let asked = *left + staging.len();
                let mut targets: smallvec::SmallVec<[Target<'_>; 2]> =
                    place.parts().iter().map(Target::Memory).collect();
                targets.push(Target::Bytes(staging));
                let _valid = match place {
                    Place::Local(_) => None,
                    // Checked again at every read: it may have been deregistered within the frame.
                    Place::Remote(access, _) => {
                        let named = || Terminate::INVALID_STAG_TAGGED.with_header(&self.header);
                        Some(access.guard().ok_or_else(named)?)
                    }
                };
                Ok(socket.read(&mut targets, asked)?)
            }
            State::Gather { length } => {
                let frame = &mut self.frame[self.gathered..*length];
                let asked = frame.len() + staging.len();
                Ok(socket.read(&mut [Target::Bytes(frame), Target::Bytes(staging)], asked)?)
            }
            State::Header | State::Control { .. } | State::Trailer { .. } => {
                let asked = staging.len();
                Ok(socket.read(&mut [Target::Bytes(staging)], asked)?)
            }
        }
    }

    /// Accounts for bytes that `read` brought.
    fn received(&mut self, length: usize, link: &Link) -> Result<(), Stop> {
        let direct = match &mut self.state {
            State::Payload { place, left, .. } => {
                let direct = length.min(*left);
                *left -= direct;
                place.shrink(direct);
                direct
            }
            State::Gather { length: whole } => {
                let direct = length.min(*whole - self.gathered);
                self.gathered += direct;
                direct
            }
            State::Header | State::Control { .. } | State::Trailer { .. } => 0,
        };
        let behind = length - direct;
        let Some(ahead) = self.ahead.take_if(|_| behind > 0) else {
            self.staging.filled(behind);
            return Ok(());
        };
        let (came, ahead) = ahead.sort(behind, &mut self.staging);
        for segment in came {
            self.came(&segment, link)?;
        }
        self.ahead = ahead;
        Ok(())
    }

    /// The current segment of a Read Response is complete, and the next one has come as expected.
    fn came(&mut self, segment: &Came, link: &Link) -> Result<(), Stop> {
        let Came { header, stag, to, length, last, placed } = *segment;
        self.hear(link);
        self.header[..header.len()].copy_from_slice(&header);
        let sink = self.sink((stag, to), (length, last), header.len(), link)?;
        let place = Place::Local(flight::range(&sink, placed, usize::MAX));
        let trailer = mpa::pad_length(Tagged::LEN + length) + mpa::CRC_SIZE;
        self.state =
            State::Payload { place, left: length - placed, trailer, finish: Finish::Response { last } };
        Ok(())
    }

    /// The memory that a segment of a Read Response goes to.
    fn sink(
        &self,
        from: (u32, u64),
        (length, last): (usize, bool),
        header: usize,
        link: &Link,
    ) -> Result<Payload, Stop> {
        link.send_queue().response(from, length, last).map_err(|terminate| {
            let terminate = terminate.with_header(&self.header[..header]);
            Stop::Violation(Box::new(Violation { terminate, blame: Status::REMOTE_ERROR }))
        })
    }

    /// Takes staged bytes apart until there are too few.
    fn process(&mut self, link: &Link, wakes: &mut WakeList) -> Result<(), Stop> {
        loop {
            let staged = self.staging.unread().len();
            match &mut self.state {
                State::Header if self.empty_frame => {
                    let Some(frame) = self.staging.unread().first_chunk::<EMPTY_FRAME>() else {
                        return Ok(());
                    };
                    if frame[..mpa::LENGTH_SIZE] == [0; mpa::LENGTH_SIZE] {
                        self.staging.take(EMPTY_FRAME);
                        self.hear(link);
                    }
                    self.empty_frame = false;
                }
                State::Header if link.crc => {
                    let Some(&[high, low]) = self.staging.unread().first_chunk() else {
                        return Ok(());
                    };
                    let length = mpa::fpdu_length(usize::from(u16::from_be_bytes([high, low])));
                    self.large = length >= LARGE;
                    self.frame.resize(length.max(self.frame.len()), 0);
                    self.gathered = 0;
                    self.state = State::Gather { length };
                }
                State::Header => {
                    let bytes = self.staging.unread();
                    match Header::decode(bytes) {
                        Ok((header, length, consumed)) => {
                            self.header[..consumed].copy_from_slice(&bytes[..consumed]);
                            if !self.begin(&header, length, consumed, link)? {
                                self.starved = true;
                                return Ok(());
                            }
                            self.large = length >= LARGE;
                            self.staging.take(consumed);
                        }
                        Err(HeaderError::Truncated) => return Ok(()),
                        Err(error) => return Err(reject(error, bytes)),
                    }
                }
                State::Payload { place, left, trailer, finish } => {
                    if *left > 0 && staged == 0 {
                        return Ok(());
                    }
                    let taken = staged.min(*left);
                    if taken > 0 {
                        put(place, &self.staging.unread()[..taken])?;
                        place.shrink(taken);
                        self.staging.take(taken);
                        *left -= taken;
                    }
                    if *left == 0 {
                        self.ahead = None;
                        let finish = std::mem::replace(finish, Finish::Nothing);
                        self.state = State::Trailer { left: *trailer, finish };
                    }
                }
                State::Control { length, trailer, finish } => {
                    if staged < *length + *trailer {
                        return Ok(());
                    }
                    let mut payload = [0; MAX_CONTROL];
                    let length = *length;
                    payload[..length].copy_from_slice(&self.staging.unread()[..length]);
                    self.staging.take(length + *trailer);
                    let finish = std::mem::replace(finish, Finish::Nothing);
                    self.state = State::Header;
                    self.control(&finish, &payload[..length], link, wakes)?;
                    self.hear(link);
                }
                State::Trailer { left, finish } => {
                    let taken = staged.min(*left);
                    self.staging.take(taken);
                    *left -= taken;
                    if *left > 0 {
                        return Ok(());
                    }
                    let finish = std::mem::replace(finish, Finish::Nothing);
                    self.state = State::Header;
                    self.finish(finish, link, wakes);
                    self.hear(link);
                }
                State::Gather { length } => {
                    let length = *length;
                    let taken = staged.min(length - self.gathered);
                    self.frame[self.gathered..self.gathered + taken]
                        .copy_from_slice(&self.staging.unread()[..taken]);
                    self.staging.take(taken);
                    self.gathered += taken;
                    if self.gathered < length {
                        return Ok(());
                    }
                    self.state = State::Header;
                    let frame = std::mem::take(&mut self.frame);
                    let outcome = self.checked(&frame[..length], link, wakes);
                    self.frame = frame;
                    if !outcome? {
                        self.starved = true;
                        self.state = State::Gather { length };
                        return Ok(());
                    }
                    self.hear(link);
                }
            }
        }
    }

    /// The first frame of the peer says that it is ready (RFC 6581 section 4.3).
    fn hear(&mut self, link: &Link) {
        if !self.heard {
            self.heard = true;
            link.first_frame();
        }
    }

    /// A whole frame, with CRC on. False when it has to wait for a receive.
    fn checked(&mut self, frame: &[u8], link: &Link, wakes: &mut WakeList) -> Result<bool, Stop> {
        let (body, field) = frame.split_at(frame.len() - mpa::CRC_SIZE);
        let good = field.first_chunk().is_some_and(|field| crc::from_wire(*field) == crc32c(body));
        let (header, length, consumed) = match Header::decode(body) {
            Ok(decoded) => decoded,
            Err(_) if !good => return Err(Terminate::CRC.into()),
            Err(error) => return Err(reject(error, body)),
        };
        // siw sends its Terminate without a checksum when the start-up itself went wrong.
        let last_words = !self.heard && header.opcode() == crate::wire::rdmap::Opcode::Terminate;
        if !good && !last_words {
            return Err(Terminate::CRC.into());
        }
        self.header[..consumed].copy_from_slice(&body[..consumed]);
        if !self.begin(&header, length, consumed, link)? {
            return Ok(false);
        }
        let payload = &body[consumed..consumed + length];
        match std::mem::replace(&mut self.state, State::Header) {
            State::Payload { place, finish, .. } => {
                put(&place, payload)?;
                drop(place);
                self.finish(finish, link, wakes);
            }
            State::Control { finish, .. } => self.control(&finish, payload, link, wakes)?,
            State::Header | State::Trailer { .. } | State::Gather { .. } => {}
        }
        Ok(true)
    }

    /// A header has come: decides where its payload goes. False, and nothing has changed, when the message has to wait for
    /// a receive.
    fn begin(&mut self, header: &Header, length: usize, consumed: usize, link: &Link) -> Result<bool, Stop> {
        let trailer = mpa::pad_length(consumed - mpa::LENGTH_SIZE + length) + mpa::CRC_SIZE;
        let named = |terminate: Terminate| Stop::from(terminate.with_header(&self.header[..consumed]));
        let mut inbound = self.inbound;
        let segment = inbound.segment(header, length).map_err(named)?;
        let invalidate = match segment {
            // RFC 5040 section 4.8: a window is the peer's to give back, a region is its owner's alone. To deliver the
            // message all the same would let the peer believe otherwise.
            Segment::Send { invalidate: Some(key), .. } => {
                let window = link.keys.window(key, link.number);
                Some(window.ok_or_else(|| named(Terminate::CANNOT_INVALIDATE))?)
            }
            _ => None,
        };
        let takes = matches!(segment, Segment::Send { .. } | Segment::Immediate { .. });
        if takes && link.receives.is_patient() && self.receive.is_none() {
            let Some(receive) = link.receives.take() else { return Ok(false) };
            self.receive = Some((receive, 0));
        }
        self.inbound = inbound;
        let control = |finish| State::Control { length, trailer, finish };
        let (place, finish) = match segment {
            Segment::Send { offset, last, solicited, .. } => {
                let place = Place::Local(self.receive_part(offset, length, link)?);
                (place, Finish::Send { last, solicited, invalidate })
            }
            // Of an empty Write neither key nor offset is checked.
            Segment::Write { .. } if length == 0 => (Place::Local(Payload::new()), Finish::Nothing),
            Segment::Write { stag, to } => {
                let grant =
                    link.keys.resolve((stag, to), length, Intent::Write, link.number).map_err(named)?;
                (Place::Remote(grant.access, Payload::from_iter([grant.slice])), Finish::Nothing)
            }
            Segment::ReadResponse { stag, to, last } => {
                let sink = self.sink((stag, to), (length, last), consumed, link)?;
                if !last && !link.crc && length >= LARGE {
                    let end = to.wrapping_add(length as u64);
                    // Ours counts from 0.
                    let rest = usize::try_from(end).map(|end| link.send_queue().sink_from(end));
                    self.ahead = rest.ok().and_then(|rest| Ahead::new(stag, end, length, &rest));
                }
                (Place::Local(sink), Finish::Response { last })
            }
            Segment::ReadRequest => return self.gather(control(Finish::ReadRequest)),
            Segment::AtomicRequest => return self.gather(control(Finish::AtomicRequest)),
            Segment::AtomicResponse => return self.gather(control(Finish::AtomicResponse)),
            Segment::Immediate { solicited } => return self.gather(control(Finish::Immediate { solicited })),
            Segment::Terminate => return self.gather(control(Finish::Terminate)),
        };
        self.state = State::Payload { place, left: length, trailer, finish };
        Ok(true)
    }

    #[expect(clippy::unnecessary_wraps, reason = "as `begin`, whose last word it is")]
    fn gather(&mut self, control: State) -> Result<bool, Stop> {
        self.state = control;
        Ok(true)
    }

    /// The part of a posted receive that a segment of a Send goes to.
    fn receive_part(&mut self, offset: usize, length: usize, link: &Link) -> Result<Payload, Stop> {
        if self.receive.is_none() {
            // RFC 5041 section 7.2; nobody may send what has not been asked for (`QP-20`).
            let receive = link.receives.take().ok_or(Terminate::NO_BUFFER)?;
            self.receive = Some((receive, 0));
        }
        let Some((receive, got)) = &mut self.receive else { return Err(Terminate::NO_BUFFER.into()) };
        if offset + length > flight::length(&receive.payload) {
            // `X4`: the receive says so, the connection breaks.
            self.overflowed = true;
            return Err(Terminate::TOO_LONG.with_header(&self.header).into());
        }
        *got = offset + length;
        Ok(flight::range(&receive.payload, offset, length))
    }

    /// The payload of the current segment is in place.
    fn finish(&mut self, finish: Finish, link: &Link, wakes: &mut WakeList) {
        match finish {
            Finish::Send { last: true, solicited, invalidate } => {
                if let Some((Receive { ticket, payload }, bytes)) = self.receive.take() {
                    let mut completed = Completed::done(bytes, payload);
                    completed.extra.solicited = solicited;
                    completed.extra.invalidated = invalidate.as_ref().map(|binding| binding.key());
                    if let Some(binding) = invalidate {
                        // Before the receiver hears of it.
                        link.keys.unbind(&binding);
                    }
                    link.outlets.receive.complete(ticket, completed, wakes);
                }
            }
            Finish::Response { last: true } => link.answered(wakes),
            Finish::Send { .. } | Finish::Response { .. } => {}
            Finish::Nothing
            | Finish::ReadRequest
            | Finish::AtomicRequest
            | Finish::AtomicResponse
            | Finish::Immediate { .. }
            | Finish::Terminate => {}
        }
    }
}

/// The peer's header is wrong.
fn reject(error: HeaderError, bytes: &[u8]) -> Stop {
    Terminate::for_header(error).unwrap_or(Terminate::FRAMING).with_header(bytes).into()
}

/// Copies staged payload to its place.
fn put(place: &Place, mut bytes: &[u8]) -> Result<(), Stop> {
    let _valid = match place {
        Place::Local(_) => None,
        Place::Remote(access, _) => Some(access.guard().ok_or(Terminate::INVALID_STAG_TAGGED)?),
    };
    for part in place.parts() {
        let taken = bytes.len().min(part.len());
        part.write(0, &bytes[..taken]);
        bytes = &bytes[taken..];
    }
    Ok(())
}

/// The oldest outstanding request is the one that a Terminate is about; this is what it completes with.
pub(crate) fn blame(terminate: &Terminate) -> Status {
    match (terminate.layer, terminate.etype, terminate.code) {
        // RDMAP remote protection, DDP tagged buffer errors but the version: a key, a range or a right.
        (0, 1, _) | (1, 1, 0..=3) => Status::ACCESS_VIOLATION,
        _ => Status::REMOTE_ERROR,
    }
}
