//! Messages with boundaries and credits over Send and Receive: what the two ends say to each other, and when.
//!
//! Both say in their private data how many messages they have receives for (the credits) and how long a message may be:
//!
//! ```text
//!  0       4         5          6         8                 12
//!  │ "TRMS" │ version │ reserved │ credits │ longest message │       big-endian, 12 bytes; what follows is for later
//! ```
//!
//! Every message begins with four bytes: its kind, a zero, and how many credits it gives to the peer.
//!
//! ```text
//!  0      1   2         4
//!  │ kind │ 0 │ credits │ payload of a DATA message ...
//! ```
//!
//! - START is the first message of the active side, which says nothing else before. The passive side sends when it has
//!   come: iWARP drivers drop a connection on which the passive side speaks first.
//! - DATA is a message of the user's, and takes a credit.
//! - CREDITS gives credits back that nothing else took along.
//! - END is the last thing that is heard of the user: no DATA follows, CREDITS may.
//!
//! Only DATA takes credits, so the two directions never wait for each other. The others find one of the [`CONTROLS`]
//! receives that each end has beyond its credits: START and END come once, and CREDITS gives at least half of all, so
//! that no more than two can be on their way.

#[cfg(test)]
mod tests;

use crate::error::ProtocolError;
use crate::types::Role;

/// The bytes in front of the payload of a message.
pub(crate) const HEADER: usize = 4;

/// The number of receives that an end has beyond those for credits.
pub(crate) const CONTROLS: usize = 4;

const MAGIC: &[u8; 4] = b"TRMS";
const VERSION: u8 = 1;
const HELLO: usize = 12;

// No kind is 0: memory that nobody wrote is no message.
const START: u8 = 1;
const DATA: u8 = 2;
const CREDITS: u8 = 3;
const END: u8 = 4;

/// The capacity of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The number of messages that it has receives for.
    pub(crate) credits: u16,
    /// The longest of them, without its header.
    pub(crate) maximum: u32,
}

impl Hello {
    /// As private data.
    pub(crate) fn encode(self) -> [u8; HELLO] {
        let mut data = [0; HELLO];
        data[..4].copy_from_slice(MAGIC);
        data[4] = VERSION;
        data[6..8].copy_from_slice(&self.credits.to_be_bytes());
        data[8..].copy_from_slice(&self.maximum.to_be_bytes());
        data
    }

    /// From private data, which may be padded.
    ///
    /// # Errors
    /// `Foreign`, `Version`; `Value` for an end that has room for nothing.
    pub(crate) fn decode(data: &[u8]) -> Result<Self, ProtocolError> {
        let Some(&[m0, m1, m2, m3, version, _, c0, c1, l0, l1, l2, l3]) = data.first_chunk::<HELLO>() else {
            return Err(ProtocolError::Foreign);
        };
        if [m0, m1, m2, m3] != *MAGIC {
            return Err(ProtocolError::Foreign);
        }
        if version != VERSION {
            return Err(ProtocolError::Version(version));
        }
        let hello =
            Self { credits: u16::from_be_bytes([c0, c1]), maximum: u32::from_be_bytes([l0, l1, l2, l3]) };
        for (what, value) in
            [("credits", u64::from(hello.credits)), ("a longest message", u64::from(hello.maximum))]
        {
            if value == 0 {
                return Err(ProtocolError::Value { what, value });
            }
        }
        Ok(hello)
    }
}

/// The kind of a message that arrived, for the owner of its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Behind the header is a message for the user: [`Channel::taken`] when the receive is posted again.
    Data,
    /// It was meant for this machine: post its receive again at once.
    Control,
}

/// The state of START.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// It is for this side to say.
    Owed,
    /// It is for the peer to say, and nothing may be said here before.
    Awaited,
    Done,
}

/// The state of END of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    Wanted,
    Said,
}

/// One end.
#[derive(Debug)]
pub(crate) struct Channel {
    ours: Hello,
    theirs: Hello,
    start: Start,
    end: End,
    peer_ended: bool,
    /// The number of messages that may be sent.
    credits: u16,
    /// The number of messages that the peer may send.
    granted: u16,
    /// Those of the peer's that were taken and not granted again.
    owed: u16,
}

impl Channel {
    /// Both have said what they have room for.
    pub(crate) fn new(role: Role, ours: Hello, theirs: Hello) -> Self {
        let start = match role {
            Role::Active => Start::Owed,
            Role::Passive => Start::Awaited,
        };
        Self {
            ours,
            theirs,
            start,
            end: End::Open,
            peer_ended: false,
            credits: theirs.credits,
            granted: ours.credits,
            owed: 0,
        }
    }

    /// The longest message that the peer takes.
    pub(crate) fn maximum(&self) -> usize {
        self.theirs.maximum as usize
    }

    /// Returns whether a message of the user's may be sent: a credit is there, and the end has not been said.
    pub(crate) fn may_send(&self) -> bool {
        self.start == Start::Done && self.end == End::Open && self.credits > 0
    }

    /// Returns whether only the peer's credits are missing.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.start == Start::Done && self.end == End::Open && self.credits == 0
    }

    /// The header of a message of the user's, which is sent now; `None` when it [may not](Self::may_send) be.
    pub(crate) fn send(&mut self) -> Option<[u8; HEADER]> {
        if !self.may_send() {
            return None;
        }
        self.credits -= 1;
        Some(self.header(DATA))
    }

    /// The user has nothing more to send.
    pub(crate) fn end(&mut self) {
        if self.end == End::Open {
            self.end = End::Wanted;
        }
    }

    /// Returns whether the peer knows, once what was sent has arrived.
    pub(crate) fn has_ended(&self) -> bool {
        self.end == End::Said
    }

    /// Returns whether the peer has said its end.
    pub(crate) fn peer_has_ended(&self) -> bool {
        self.peer_ended
    }

    /// A message of this machine that is due, and is sent now.
    pub(crate) fn control(&mut self) -> Option<[u8; HEADER]> {
        match (self.start, self.end) {
            (Start::Awaited, _) => None,
            (Start::Owed, _) => {
                self.start = Start::Done;
                Some(self.header(START))
            }
            (Start::Done, End::Wanted) => {
                self.end = End::Said;
                Some(self.header(END))
            }
            // Fewer would be more messages than the peer has receives for. A peer that has ended needs none.
            (Start::Done, End::Open | End::Said) => {
                (!self.peer_ended && self.owed >= self.ours.credits.div_ceil(2)).then(|| self.header(CREDITS))
            }
        }
    }

    fn header(&mut self, kind: u8) -> [u8; HEADER] {
        let given = std::mem::take(&mut self.owed);
        self.granted += given;
        let [high, low] = given.to_be_bytes();
        [kind, 0, high, low]
    }

    /// A message has come.
    ///
    /// # Errors
    /// `Length`, `Message`, `Value` and `Overrun`: the peer does not keep to this protocol, and nothing more can be made of
    /// what it says.
    pub(crate) fn received(&mut self, message: &[u8]) -> Result<Received, ProtocolError> {
        let Some((&header, payload)) = message.split_first_chunk::<HEADER>() else {
            return Err(ProtocolError::Length(message.len()));
        };
        let [kind, zero, high, low] = header;
        let given = u16::from_be_bytes([high, low]);
        // The first message of the active side is START, and no other is.
        let timely = (kind == START) == (self.start == Start::Awaited);
        let known = match kind {
            START => given == 0,
            DATA | END => !self.peer_ended,
            CREDITS => true,
            _ => false,
        };
        if !(timely && known && zero == 0) {
            return Err(ProtocolError::Message(u32::from_be_bytes(header)));
        }
        let maximum = if kind == DATA { self.ours.maximum as usize } else { 0 };
        if payload.len() > maximum {
            return Err(ProtocolError::Length(message.len()));
        }
        if kind == CREDITS && given == 0 {
            return Err(ProtocolError::Value { what: "credits", value: 0 });
        }
        if given > self.theirs.credits - self.credits {
            return Err(ProtocolError::Overrun("credits"));
        }
        self.credits += given;
        match kind {
            DATA => {
                self.granted = self.granted.checked_sub(1).ok_or(ProtocolError::Overrun("messages"))?;
                return Ok(Received::Data);
            }
            START => self.start = Start::Done,
            END => self.peer_ended = true,
            _ => {}
        }
        Ok(Received::Control)
    }

    /// The user has taken a message, and its receive is posted again.
    pub(crate) fn taken(&mut self) {
        self.owed += 1;
    }
}
