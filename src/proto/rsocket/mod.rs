//! The machine of rsocket, the byte stream of librdmacm over RDMA Writes.
//!
//! Each end owns a ring that the other writes. The ring is granted half by half: the memory of the first half is in the
//! private data, or both halves between two ends of this crate that say so, later ones are written into the peer's list of targets and
//! announced by a credit message. Data goes to
//! the current target until that is full. Every data message takes a credit, which stands for a receive of the peer's, and
//! control messages have send-queue entries of their own, so that credits can be given when nothing else can be sent.
//!
//! This module decides what may be sent and where to, and what a message of the peer means. It moves no byte and posts
//! nothing: its driver posts the requests that [`Machine::transfer`] and [`Machine::control`] return, in that order,
//! and reports their completions. Source: rdma-core, librdmacm/docs/rsocket and rsocket(7).

mod message;

use std::collections::VecDeque;
use std::ops::Range;

use crate::error::ProtocolError;
#[cfg(feature = "inspect")]
use crate::inspect::StreamReport;
use message::BIG_ENDIAN;

pub(crate) use message::{Hello, Message, Span};

/// The carrier of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// As the immediate data of a write.
    Immediate,
    /// As a send of four bytes behind the write: iWARP has no immediate data in librdmacm's eyes.
    Send,
}

impl Carrier {
    /// Returns the number of entries of the send queue that a message takes.
    const fn entries(self) -> usize {
        match self {
            Self::Immediate => 1,
            Self::Send => 2,
        }
    }
}

/// Control messages on their way at the same time (`RS_QP_CTRL_SIZE`).
const CONTROLS: usize = 4;

/// The entries of the list of targets (`RS_SGL_SIZE`).
pub(crate) const TARGETS: usize = 2;

/// The room in the send ring that a message waits for, unless it is shorter (`RS_SNDLOWAT`).
const LOW_WATER: usize = 2048;

/// The number of data messages in a row that are not signaled: beyond a few, silence saves no more, and each message
/// keeps its place in the queue.
const MOST_UNSIGNALED: usize = 32;

/// Returns the number of receives, out of `receives`, that are kept back for control messages, which take no
/// credit.
const fn reserve(receives: u16) -> u16 {
    let quarter = receives / 4;
    if quarter < 16 { quarter } else { 16 }
}

/// The resources of this end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) carrier: Carrier,
    /// The ring that the peer writes. Of an odd length the last byte is not used.
    pub(crate) ring: Span,
    /// The list of targets that the peer writes.
    pub(crate) targets: Span,
    /// The number of receives that are posted, at least 16.
    pub(crate) receives: u16,
    /// The length of the ring that is sent from, at least 2048.
    pub(crate) send_ring: usize,
    /// The number of entries of the send queue, at least 16.
    pub(crate) send_entries: usize,
    /// This end's transport answers empty reads.
    pub(crate) confirms: bool,
    /// The peer may fill the whole ring at once, if it has said the same of its own.
    pub(crate) grants_ring: bool,
    /// This end asks for a session, or agrees to one.
    pub(crate) session: bool,
    /// This end takes the bytes of a message behind the word of a Send.
    pub(crate) takes_bytes: bool,
}

impl Settings {
    /// Returns the number of data messages that the peer may send at first.
    fn credits(&self) -> u16 {
        self.receives - reserve(self.receives)
    }

    fn half(&self) -> u32 {
        self.ring.length / 2
    }

    /// Returns the private data of this end.
    pub(crate) fn hello(&self) -> Hello {
        Hello {
            big_endian: BIG_ENDIAN,
            credits: self.credits(),
            targets: self.targets,
            data: Span { length: self.half(), ..self.ring },
            confirms: self.confirms,
            says_its_end: true,
            grants_ring: self.grants_ring,
            session: self.session,
            takes_bytes: self.takes_bytes,
        }
    }
}

/// A piece of the stream to be written, and its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    /// Its place in the ring that is sent from.
    pub(crate) from: Range<usize>,
    pub(crate) to: Span,
    pub(crate) message: Message,
}

/// A control message, and what is written before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    /// A new entry for the peer's list of targets, in its byte order, and where that lies.
    pub(crate) target: Option<([u8; Span::LEN], Span)>,
    pub(crate) message: Message,
}

/// The event that a message of the peer is for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Nothing but that state has changed.
    Changed,
    /// Look at the entry [`Machine::next_target`] of the list of targets, and report it to [`Machine::apply_target`].
    Targets,
    /// The program of the peer has read so many bytes of the stream, modulo 2^29.
    Read(u32),
    /// The peer has given the stream up.
    Abandoned,
}

/// One end of a stream.
#[derive(Debug)]
pub(crate) struct Machine {
    settings: Settings,
    peer: Hello,
    /// This end may send. Over some transports the passive end waits for a first message.
    may_send: bool,
    sending: Sending,
    receiving: Receiving,
    /// Control messages that have not completed.
    controls: usize,
    /// How much this end's program has read, if a message of a session is due about it.
    read: Option<u32>,
    /// The message that is due to the peer, because this end sends no more data.
    closes: Option<Message>,
    /// The last such message that was sent.
    closed: Option<Message>,
    /// Control messages up to that one that have not completed.
    before_close: usize,
    /// The last message of the peer about its end.
    peer_closed: Option<Message>,
}

/// The memory and the credits that the peer has granted.
#[derive(Debug, Default)]
struct Sending {
    /// The peer's memory for data, the current target first.
    targets: VecDeque<Span>,
    /// The entry of the list in which the next target will be.
    next_target: usize,
    /// Data messages, modulo 2^16: sent so far, and how many may be.
    sent: u16,
    limit: u16,
    /// Data messages that have not completed, by the bytes of the ring that they free, oldest first.
    outstanding: VecDeque<usize>,
    /// The last of these, behind which no signaled request has been posted yet: their number and their bytes.
    unsignaled: usize,
    unsignaled_bytes: usize,
    /// Of the ring: where the next byte goes, and how many bytes are not free.
    at: usize,
    used: usize,
}

/// The memory and the credits that this end has granted.
#[derive(Debug, Default)]
struct Receiving {
    /// The ring: the place of the next byte to be read, the number of bytes that have arrived, and the number
    /// that the peer may still write into the current half and into the one behind it. The rest is free.
    at: u32,
    unread: u32,
    /// The number of bytes from there on that were read before the message that announces them.
    early: u32,
    granted: [u32; 2],
    free: u32,
    /// The start of the half that is granted next.
    next_half: u32,
    /// The entry of the peer's list that is written next.
    entry: u32,
    /// Data messages, modulo 2^16: arrived so far, at the last update, and how many may.
    seen: u16,
    told: u16,
    limit: u16,
}

impl Machine {
    /// Creates an end of a stream. `may_send` is whether it may send before the peer has.
    pub(crate) fn new(settings: Settings, peer: Hello, may_send: bool) -> Self {
        let half = settings.half();
        let grants_ring = settings.grants_ring && peer.grants_ring;
        let mut targets = VecDeque::with_capacity(1 + usize::from(grants_ring));
        targets.push_back(peer.data);
        let mut sending = Sending { targets, next_target: 1, limit: peer.credits, ..Sending::default() };
        let mut receiving = Receiving {
            granted: [half, 0],
            free: half,
            next_half: half,
            entry: 1,
            limit: settings.credits(),
            ..Receiving::default()
        };
        if grants_ring {
            // As if each had taken a credit message of the other. There is room for both halves of the ring.
            let Span { address, length, .. } = peer.data;
            sending.targets.push_back(Span { address: address.wrapping_add(length.into()), ..peer.data });
            sending.next_target = 0;
            receiving = Receiving {
                granted: [half; 2],
                free: 0,
                next_half: 0,
                entry: 2 % peer.targets.length,
                ..receiving
            };
        }
        Self {
            settings,
            peer,
            may_send,
            sending,
            receiving,
            controls: 0,
            read: None,
            closes: None,
            closed: None,
            before_close: 0,
            peer_closed: None,
        }
    }

    /// Returns whether this end may send.
    pub(crate) fn may_send(&self) -> bool {
        self.may_send
    }

    /// Allows this end to send before the peer has.
    pub(crate) fn allow_sending(&mut self) {
        self.may_send = true;
    }

    /// Returns whether the peer takes the bytes of a message behind the word of its Send.
    pub(crate) fn peer_takes_bytes(&self) -> bool {
        self.peer.takes_bytes
    }

    /// Returns whether both ends have agreed on a session.
    pub(crate) fn has_session(&self) -> bool {
        self.settings.session && self.peer.session
    }

    /// Returns whether the messages of the peer have the most significant byte first.
    pub(crate) fn peer_is_big_endian(&self) -> bool {
        self.peer.big_endian
    }

    /// Applies a message of the peer. One that exceeds what was granted, or breaks the protocol otherwise, ends the stream.
    pub(crate) fn apply(&mut self, message: Message) -> Result<Event, ProtocolError> {
        self.may_send = true;
        match message {
            Message::Data(bytes) => self.arrived(bytes).map(|()| Event::Changed),
            Message::Credit(limit) => {
                let credits = limit.wrapping_sub(self.sending.sent);
                if credits > self.peer.credits {
                    return Err(ProtocolError::Value { what: "credits", value: credits.into() });
                }
                self.sending.limit = limit;
                Ok(Event::Targets)
            }
            Message::Read(bytes) if self.has_session() => Ok(Event::Read(bytes)),
            Message::Abandon if self.has_session() => Ok(Event::Abandoned),
            Message::Read(_) | Message::Abandon => Err(ProtocolError::Message(message.encode())),
            Message::Keepalive => Ok(Event::Changed),
            Message::Shutdown | Message::Disconnect => {
                // The last message counts, but nothing replaces a `Disconnect`.
                if self.peer_closed != Some(Message::Disconnect) {
                    self.peer_closed = Some(message);
                }
                Ok(Event::Changed)
            }
        }
    }

    fn arrived(&mut self, bytes: u32) -> Result<(), ProtocolError> {
        let receiving = &mut self.receiving;
        if self.peer_closed.is_some() {
            return Err(ProtocolError::Message(Message::Data(bytes).encode()));
        }
        if receiving.seen == receiving.limit {
            return Err(ProtocolError::Overrun("messages"));
        }
        // One message fills no more than the target that was current.
        let [current, next] = receiving.granted;
        let left = current.checked_sub(bytes).ok_or(ProtocolError::Overrun("bytes"))?;
        receiving.granted = if left > 0 { [left, next] } else { [next, 0] };
        receiving.seen = receiving.seen.wrapping_add(1);
        receiving.unread += bytes;
        self.settle_early();
        Ok(())
    }

    /// Returns the place of the next byte in the ring, with the number of bytes that may be read there before a message
    /// announces them; `None` while announced bytes are unread, and after the last byte of the stream.
    pub(crate) fn next_place(&self) -> Option<Span> {
        if self.peer_closed.is_some() {
            return None;
        }
        let Receiving { at, unread, early, granted, .. } = self.receiving;
        let ring = self.settings.ring;
        let offset = (at + early) % (2 * self.settings.half());
        let address = ring.address.wrapping_add(offset.into());
        let [current, next] = granted;
        // Of one piece: the other half may be at the start of the ring.
        let end = if early < current { current } else { current + next };
        (unread == 0).then(|| Span { address, length: end.saturating_sub(early), ..ring })
    }

    /// Returns the number of bytes that are announced and unread when the peer has announced so many more.
    pub(crate) fn unread_with(&self, more: u32) -> usize {
        let Receiving { unread, early, .. } = self.receiving;
        (unread as usize + more as usize).saturating_sub(early as usize)
    }

    /// Notes that the next `length` bytes have been read. Those that no message has announced yet are free when one has.
    ///
    /// # Errors
    /// The peer has written more than it was granted.
    pub(crate) fn read(&mut self, length: usize) -> Result<(), ProtocolError> {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let announced = length.min(self.receiving.unread);
        self.free(announced);
        let Receiving { early, granted: [current, next], .. } = self.receiving;
        let early = early.saturating_add(length - announced);
        if early > current + next {
            return Err(ProtocolError::Overrun("bytes"));
        }
        self.receiving.early = early;
        self.settle_early();
        Ok(())
    }

    /// Frees the bytes that were read early and that messages have announced since.
    fn settle_early(&mut self) {
        let Receiving { early, unread, .. } = self.receiving;
        self.receiving.early -= early.min(unread);
        self.free(early.min(unread));
    }

    /// Returns the entry of the list of targets that the peer writes next.
    pub(crate) fn next_target(&self) -> usize {
        self.sending.next_target
    }

    /// Takes the target in the entry, which a credit message may have announced. Returns `true` if it is
    /// taken: the driver clears the entry before anything else is sent, since the peer may write it again
    /// when its memory has been filled.
    ///
    /// The message may have announced credits alone while the peer is writing the entry. The length of the entry is
    /// written last, and is always that of the first target: a length of which bytes are still zero is part of an
    /// entry, and the message that announces the entry follows. For a target of any other length this end would wait for ever, so
    /// it is an error, as is more memory at once than the list has entries.
    pub(crate) fn apply_target(&mut self, target: Span) -> Result<bool, ProtocolError> {
        let (expected, length) = (self.peer.data.length, target.length);
        if length != expected {
            let mut bytes = length.to_ne_bytes().into_iter().zip(expected.to_ne_bytes());
            let is_part = bytes.all(|(written, expected)| written == expected || written == 0);
            let error = ProtocolError::Value { what: "a target length", value: length.into() };
            return if is_part { Ok(false) } else { Err(error) };
        }
        let sending = &mut self.sending;
        if sending.targets.len() == TARGETS {
            return Err(ProtocolError::Overrun("targets"));
        }
        sending.targets.push_back(target);
        sending.next_target = (sending.next_target + 1) % TARGETS;
        Ok(true)
    }

    /// Returns the number of bytes that the next message can carry if `wanted` bytes wait to be sent; 0 while
    /// the peer, the ring or the queue has no room.
    ///
    /// A message is no shorter than 2048 bytes or `wanted`, so that a full ring is not emptied in small pieces. Only the
    /// last message into a target is: every byte of a target is filled before the next is begun.
    #[inline]
    pub(crate) fn room(&self, wanted: usize) -> usize {
        let sending = &self.sending;
        let carrier = self.settings.carrier;
        // If a message without a receive ends the connection, some receives are left for control messages.
        let kept = match carrier {
            Carrier::Immediate => 0,
            Carrier::Send => reserve(self.peer.credits),
        };
        let credits = sending.limit.wrapping_sub(sending.sent);
        let blocked = !self.may_send
            || self.closes.is_some()
            || self.is_peer_gone()
            || credits <= kept
            || sending.outstanding.len() >= self.messages();
        let target = sending.targets.front().map_or(0, |target| target.length as usize);
        let most = target.min(wanted);
        if blocked || most == 0 {
            return 0;
        }
        let (_, piece) = self.piece(most);
        if piece < most.min(LOW_WATER) { 0 } else { piece.min(most) }
    }

    /// Returns the number of data messages that the send queue has room for.
    fn messages(&self) -> usize {
        self.settings.send_entries / self.settings.carrier.entries() - CONTROLS
    }

    /// Returns the free part of the send ring in which the next message begins: its place and its length. It is in
    /// front of the bytes that are on their way if too little is left behind them.
    fn piece(&self, wanted: usize) -> (usize, usize) {
        let Sending { at, used, .. } = self.sending;
        let length = self.settings.send_ring;
        if used == 0 {
            // The part that was used last is in the processor's cache, and the rest of the ring need not be touched.
            return (0, length);
        }
        let free = length - used;
        let behind = free.min(length - at);
        if behind >= wanted.min(LOW_WATER) { (at, behind) } else { (0, free - behind) }
    }

    /// Returns the place in the send ring of the first byte of the next message, which has `length` bytes: at least one
    /// and at most the [`room`](Self::room) for so many.
    pub(crate) fn send_at(&self, length: usize) -> usize {
        self.piece(length).0
    }

    /// Returns the memory of the peer in which the next message begins, and the room that is left there.
    pub(crate) fn target(&self) -> Span {
        self.sending.targets.front().copied().unwrap_or_default()
    }

    /// Returns the write and the message that send the next `length` bytes, which are at [`send_at`](Self::send_at).
    pub(crate) fn transfer(&mut self, length: usize) -> Transfer {
        let (start, _) = self.piece(length);
        let to = self.send_directly(length);
        let sending = &mut self.sending;
        let from = start..start + length;
        // The room that was too short at the end of the ring is free again with this message.
        let skipped =
            if sending.used == 0 || start == sending.at { 0 } else { self.settings.send_ring - sending.at };
        sending.at = if from.end == self.settings.send_ring { 0 } else { from.end };
        sending.used += skipped + length;
        sending.outstanding.push_back(skipped + length);
        sending.unsignaled += 1;
        sending.unsignaled_bytes += skipped + length;
        Transfer { from, to, message: Message::Data(to.length) }
    }

    /// Takes the memory of the peer for a message of the next `length` bytes, which uses no memory of this end. Returns
    /// that memory.
    pub(crate) fn send_directly(&mut self, length: usize) -> Span {
        debug_assert!(length > 0 && length <= self.room(length));
        let sending = &mut self.sending;
        // A target is no longer than this.
        let bytes = u32::try_from(length).unwrap_or(u32::MAX);
        let mut to = Span { length: bytes, ..Span::default() };
        if let Some(target) = sending.targets.front_mut() {
            to = Span { length: bytes, ..*target };
            target.address = target.address.wrapping_add(length as u64);
            target.length = target.length.saturating_sub(bytes);
            if target.length == 0 {
                sending.targets.pop_front();
            }
        }
        sending.sent = sending.sent.wrapping_add(1);
        to
    }

    /// Returns whether the last transfer may be unsignaled: ring and queue have room for a message of any length behind
    /// it, so that nothing waits for its completion, and a later signaled request completes soon enough for them not to
    /// run full. Over iWARP the completion of a later request does not imply that of an earlier one.
    pub(crate) fn is_silent(&self) -> bool {
        let Sending { outstanding, unsignaled, unsignaled_bytes, .. } = &self.sending;
        let messages = self.messages();
        self.settings.carrier == Carrier::Immediate
            && *unsignaled < MOST_UNSIGNALED.min(messages / 4)
            && *unsignaled_bytes < self.settings.send_ring / 4
            && outstanding.len() < messages
            && self.piece(LOW_WATER).1 >= LOW_WATER
    }

    /// Starts a signaled request. Returns the number of transfers that its completion covers, its own included, for
    /// [`complete_transfers`](Self::complete_transfers).
    pub(crate) fn take_unsignaled(&mut self) -> usize {
        self.sending.unsignaled_bytes = 0;
        std::mem::take(&mut self.sending.unsignaled)
    }

    /// Returns whether this end waits for transfers that no signaled request covers: it closes, and has no message left
    /// to send. Then a request without a message has to be signaled.
    pub(crate) fn needs_signaled(&self) -> bool {
        self.sending.unsignaled > 0 && self.closes.is_some() && self.has_announced_end()
    }

    /// Frees the oldest `count` transfers that were on their way, which have completed.
    pub(crate) fn complete_transfers(&mut self, count: usize) {
        let sending = &mut self.sending;
        let completed = count.min(sending.outstanding.len());
        sending.used -= sending.outstanding.drain(..completed).sum::<usize>();
        if sending.outstanding.is_empty() {
            (sending.unsignaled, sending.unsignaled_bytes) = (0, 0);
        }
    }

    /// Returns the next control message that is due, if one can be sent. Is to be called until it returns `None`,
    /// whenever something has changed.
    pub(crate) fn control(&mut self) -> Option<Control> {
        if !self.may_send || self.is_closed() || self.needs_no_end() || self.controls == CONTROLS {
            return None;
        }
        let is_peer_gone = self.is_peer_gone();
        let read = |read: Option<u32>| Some(Control { target: None, message: Message::Read(read?) });
        let control =
            self.credit().or_else(|| read(self.read.take().filter(|_| !is_peer_gone))).or_else(|| {
                let message = self.closes.filter(|message| self.closed != Some(*message))?;
                self.closed = Some(message);
                self.before_close = self.controls + 1;
                Some(Control { target: None, message })
            });
        self.controls += usize::from(control.is_some());
        control
    }

    /// Queues a message with the number of bytes of the stream that this end's program has read, modulo 2^29.
    pub(crate) fn report_read(&mut self, bytes: u32) {
        self.read = Some(bytes);
    }

    /// Grants memory and credits to the peer, when half of either has been used.
    fn credit(&mut self) -> Option<Control> {
        if self.peer_closed.is_some() {
            return None;
        }
        let (half, credits) = (self.settings.half(), self.settings.credits());
        let receiving = &mut self.receiving;
        let grants = receiving.free >= half;
        if !grants && receiving.seen.wrapping_sub(receiving.told) < credits / 2 {
            return None;
        }
        let target = grants.then(|| {
            let ring = self.settings.ring;
            let address = ring.address.wrapping_add(receiving.next_half.into());
            let memory = Span { address, length: half, ..ring };
            let place = Span {
                address: self
                    .peer
                    .targets
                    .address
                    .wrapping_add(u64::from(receiving.entry) * Span::LEN as u64),
                key: self.peer.targets.key,
                length: Span::LEN as u32,
            };
            receiving.free -= half;
            receiving.next_half = if receiving.next_half == 0 { half } else { 0 };
            receiving.entry = (receiving.entry + 1) % self.peer.targets.length;
            let free = receiving.granted.iter_mut().find(|granted| **granted == 0);
            if let Some(granted) = free {
                *granted = half;
            }
            (memory.to_bytes(self.peer.big_endian), place)
        });
        receiving.told = receiving.seen;
        receiving.limit = receiving.seen.wrapping_add(credits);
        Some(Control { target, message: Message::Credit(receiving.limit) })
    }

    /// Returns whether as many control messages as can be are on their way: the next has to wait for one of
    /// them.
    pub(crate) fn is_control_blocked(&self) -> bool {
        self.controls == CONTROLS
    }

    /// Notes that a control message has completed.
    pub(crate) fn complete_control(&mut self) {
        self.controls = self.controls.saturating_sub(1);
        self.before_close = self.before_close.saturating_sub(1);
    }

    /// Returns the place in the ring of the bytes that have arrived and not been read: of their first part in
    /// one piece.
    pub(crate) fn unread(&self) -> Range<usize> {
        let [first, _] = self.unread_parts();
        first
    }

    /// Returns the places in the ring of all bytes that have arrived and not been read, which are in two parts at most.
    pub(crate) fn unread_parts(&self) -> [Range<usize>; 2] {
        let Receiving { at, unread, .. } = self.receiving;
        let length = 2 * self.settings.half();
        let end = (at + unread).min(length);
        [at as usize..end as usize, 0..(unread - (end - at)) as usize]
    }

    fn free(&mut self, length: u32) {
        let receiving = &mut self.receiving;
        receiving.unread -= length;
        receiving.free += length;
        receiving.at = (receiving.at + length) % (2 * self.settings.half());
    }

    /// Ends the data of this end; the peer still may send. [`control`](Self::control) returns the message for the peer
    /// when there is room.
    pub(crate) fn shutdown(&mut self) {
        // If the peer has ended its data, too, this message ends both directions.
        let message = if self.peer_closed.is_some() { Message::Disconnect } else { Message::Shutdown };
        self.closes.get_or_insert(message);
    }

    /// Ends the data of both directions.
    pub(crate) fn disconnect(&mut self) {
        self.closes = Some(Message::Disconnect);
    }

    /// Gives the stream of a session up, for both ends.
    pub(crate) fn abandon(&mut self) {
        // Behind a `Disconnect` nothing is lost.
        if !self.is_closed() {
            self.closes = Some(Message::Abandon);
        }
    }

    /// Returns whether [`shutdown`](Self::shutdown) was called.
    pub(crate) fn is_shutdown(&self) -> bool {
        self.closes.is_some()
    }

    /// Returns whether this end has sent its last message.
    fn is_closed(&self) -> bool {
        matches!(self.closed, Some(Message::Disconnect | Message::Abandon))
    }

    /// Returns whether the peer knows of the end of this one without a message. In a session it does not: it takes the end of the
    /// connection for a loss.
    fn needs_no_end(&self) -> bool {
        self.is_peer_gone() && !self.has_session()
    }

    /// Returns whether the message of this end's end has been sent, if one is due, or the peer is gone.
    pub(crate) fn has_announced_end(&self) -> bool {
        self.closes == self.closed || self.needs_no_end()
    }

    /// Returns whether the message of this end's end has been sent, if one is due, or the peer is gone; and all that
    /// was sent before has completed.
    pub(crate) fn is_settled(&self) -> bool {
        self.has_announced_end() && self.sending.outstanding.is_empty() && self.before_close == 0
    }

    /// Returns whether a peer that disconnects without a message of its end has sent all that it had to send.
    pub(crate) fn is_end_silent(&self) -> bool {
        !self.peer.says_its_end
    }

    /// Returns whether the peer sends no more data.
    pub(crate) fn is_peer_done(&self) -> bool {
        self.peer_closed.is_some()
    }

    /// Returns whether the peer has sent a `Disconnect`, in answer to the end of this one or for good: it neither sends
    /// nor receives data.
    pub(crate) fn has_peer_disconnected(&self) -> bool {
        self.peer_closed == Some(Message::Disconnect)
    }

    /// Returns whether the peer neither sends nor takes data.
    pub(crate) fn is_peer_gone(&self) -> bool {
        match self.peer_closed {
            Some(Message::Disconnect) => true,
            // Both have said that they send no more.
            Some(_) => self.closed.is_some(),
            None => false,
        }
    }
}

#[cfg(feature = "inspect")]
impl Machine {
    /// Adds its credits and its memory to the report of its stream.
    pub(crate) fn report(&self, report: &mut StreamReport) {
        let Self { sending, receiving, peer, .. } = self;
        let kept = match self.settings.carrier {
            Carrier::Immediate => 0,
            Carrier::Send => reserve(peer.credits),
        };
        report.credits = sending.limit.wrapping_sub(sending.sent).saturating_sub(kept).into();
        report.room = sending.targets.iter().map(|target| target.length as usize).sum();
        report.unread_by_peer = (2 * peer.data.length as usize).saturating_sub(report.room);
        report.outstanding = sending.outstanding.len();
        report.peer_credits = receiving.limit.wrapping_sub(receiving.seen).into();
        let granted: u32 = receiving.granted.iter().sum();
        report.peer_room = granted.saturating_sub(receiving.early) as usize;
        report.unread = self.unread_with(0);
        report.peer_closed = self.is_peer_done();
    }
}

#[cfg(test)]
mod tests;
