//! The frames of a connection: their headers, the hello, and the fields of heads and trailers.
//!
//! Nothing here keeps state between two frames or two calls. All numbers are in network byte order.

mod fields;
mod head;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

pub(crate) use fields::{MOST_FIELDS, Malformed};
pub(crate) use head::{
    Origin, put_request, put_response, put_trailers, take_request, take_response, take_trailers,
};

/// The first bytes of each direction.
pub(crate) const MAGIC: [u8; 8] = *b"rdma-rpc";
/// The version of the protocol.
pub(crate) const VERSION: u8 = 1;
/// The length of the start of a hello: magic, version, flags, and the length of the rest.
pub(crate) const HELLO_START: usize = 12;
/// The flag of a hello whose sender reads bodies from the memory of its peer, and has the addresses of its connection in it.
const LOANS: u8 = 1;
/// The most bytes of a hello behind its start.
pub(crate) const LONGEST_HELLO: usize = 1024;

/// The length of the header of a frame.
pub(crate) const HEADER: usize = 12;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The head of a request or an answer, with the first bytes of its body.
    Head = 1,
    /// Bytes of a body.
    Data = 2,
    /// The end of a call in both directions.
    Reset = 3,
    /// Room for more bytes of a body, of a call or, with the number 0, of all calls.
    Window = 4,
    /// The sender accepts no call behind this one.
    GoAway = 5,
    /// Bytes of a body that the receiver reads from the memory of the sender.
    Lent = 6,
    /// The receiver has read them.
    Returned = 7,
}

/// The sender sends nothing more for the call.
pub(crate) const END: u8 = 1;
/// The frame has trailers, before the bytes of the body. It has the flag `END`, too.
pub(crate) const TRAILERS: u8 = 2;

/// The reason of a reset, or of the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Code {
    /// Nothing is wrong: the rest of the request is not needed.
    None = 0,
    /// The caller is no longer interested.
    Cancel = 1,
    /// The call was not begun. It can be repeated.
    Refused = 2,
    /// The peer could not continue: its service or a body failed.
    Internal = 3,
    /// The time for the call has passed.
    Deadline = 4,
    /// A head is longer than the peer takes.
    TooLarge = 5,
    /// The peer has broken a rule of the protocol.
    Protocol = 6,
}

impl Code {
    const ALL: [Self; 7] = [
        Self::None,
        Self::Cancel,
        Self::Refused,
        Self::Internal,
        Self::Deadline,
        Self::TooLarge,
        Self::Protocol,
    ];

    /// Returns its name, for labels and spans.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cancel => "cancelled",
            Self::Refused => "refused",
            Self::Internal => "internal",
            Self::Deadline => "deadline",
            Self::TooLarge => "too_large",
            Self::Protocol => "protocol",
        }
    }

    /// Reads a code. One that a later version may have is `Internal`.
    fn from_wire(code: u32) -> Self {
        Self::ALL.into_iter().find(|known| *known as u32 == code).unwrap_or(Self::Internal)
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The number of bytes behind the header.
    pub(crate) length: u32,
    pub(crate) call: u32,
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
}

impl Header {
    pub(crate) fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&self.length.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.call.to_be_bytes());
        bytes[8] = self.kind as u8;
        bytes[9] = self.flags;
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// It is none of this version.
    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Result<Self, Malformed> {
        let [a, b, c, d, e, f, g, h, kind, flags, 0, 0] = *bytes else {
            return Err(Malformed("reserved bytes of a frame are not zero"));
        };
        let kind = match kind {
            1 => Kind::Head,
            2 => Kind::Data,
            3 => Kind::Reset,
            4 => Kind::Window,
            5 => Kind::GoAway,
            6 => Kind::Lent,
            7 => Kind::Returned,
            _ => return Err(Malformed("an unknown kind of frame")),
        };
        let allowed = match kind {
            Kind::Head | Kind::Data => END | TRAILERS,
            Kind::Reset | Kind::Window | Kind::GoAway | Kind::Lent | Kind::Returned => 0,
        };
        if flags & !allowed != 0 || flags & (TRAILERS | END) == TRAILERS {
            return Err(Malformed("flags that a frame cannot have"));
        }
        let (length, call) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        Ok(Self { length, call, kind, flags })
    }
}

/// What one end of a connection takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The most bytes of a frame behind its header.
    pub(crate) frame: u32,
    /// The bytes of a body that it takes before it has granted more, for each call.
    pub(crate) call_window: u32,
    /// The same for all calls.
    pub(crate) window: u32,
    /// The most calls at once that it serves.
    pub(crate) calls: u32,
    /// The longest head, and the longest trailers.
    pub(crate) head: u32,
    /// It reads bodies from the memory of its peer, over a connection with these ends.
    pub(crate) loans: Option<Ends>,
}

/// The addresses of a connection, as one end sees them. If the other sees others, there is a relay between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

impl Ends {
    const LEN: usize = 36;

    /// Creates the ends of a connection, with what a hello has of the addresses.
    pub(crate) fn new(local: SocketAddr, peer: SocketAddr) -> Self {
        let address = |of: SocketAddr| SocketAddr::new(of.ip().to_canonical(), of.port());
        Self { local: address(local), peer: address(peer) }
    }

    /// Returns what the peer sees.
    pub(crate) fn swapped(self) -> Self {
        Self { local: self.peer, peer: self.local }
    }

    fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        for (address, bytes) in [self.local, self.peer].into_iter().zip(bytes.chunks_exact_mut(18)) {
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes[..16].copy_from_slice(&ip.octets());
            bytes[16..].copy_from_slice(&address.port().to_be_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let (addresses, _) = bytes.as_chunks::<18>();
        let address = |index: usize| {
            let [ip @ .., a, b] = addresses[index];
            SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), u16::from_be_bytes([a, b]))
        };
        Self { local: address(0), peer: address(1) }
    }
}

/// The smallest values that a peer may name: the others would not work, or would be a frame for each byte.
const LEAST: Settings =
    Settings { frame: 1 << 14, call_window: 1 << 12, window: 1 << 14, calls: 1, head: 1 << 12, loans: None };

impl Settings {
    const LEN: usize = 20;

    /// Returns the hello of this end. `origin` is what a client's requests have in front of their paths.
    pub(crate) fn hello(&self, origin: Option<&Origin>) -> Vec<u8> {
        let origin = origin.map(Origin::encode).unwrap_or_default();
        let ends = self.loans.map(Ends::encode);
        let ends = ends.as_ref().map_or(&[][..], |ends| ends);
        let length = u16::try_from(Self::LEN + ends.len() + origin.len()).unwrap_or(u16::MAX);
        let mut hello = Vec::with_capacity(HELLO_START + usize::from(length));
        hello.extend_from_slice(&MAGIC);
        hello.extend_from_slice(&[VERSION, if self.loans.is_some() { LOANS } else { 0 }]);
        hello.extend_from_slice(&length.to_be_bytes());
        for value in [self.frame, self.call_window, self.window, self.calls, self.head] {
            hello.extend_from_slice(&value.to_be_bytes());
        }
        hello.extend_from_slice(ends);
        hello.extend_from_slice(&origin);
        hello
    }

    /// Reads the start of a hello. Returns the length of the rest, and whether its sender reads bodies from memory.
    ///
    /// # Errors
    /// The peer speaks something else.
    pub(crate) fn from_start(start: &[u8; HELLO_START]) -> Result<(usize, bool), Malformed> {
        let (magic, rest) = start.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(Malformed("it does not begin with the hello of this protocol"));
        }
        if rest[0] != VERSION || rest[1] & !LOANS != 0 {
            return Err(Malformed("it has another version of the protocol"));
        }
        let length = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        if !(Self::LEN..=LONGEST_HELLO).contains(&length) {
            return Err(Malformed("the length of its hello is out of bounds"));
        }
        Ok((length, rest[1] & LOANS != 0))
    }

    /// Reads the rest of a hello.
    ///
    /// # Errors
    /// It is malformed.
    pub(crate) fn from_hello(has_loans: bool, rest: &[u8]) -> Result<(Self, Origin), Malformed> {
        let short = Malformed("its hello is too short");
        let (numbers, mut origin) = rest.split_at_checked(Self::LEN).ok_or(short)?;
        let mut loans = None;
        if has_loans {
            let (ends, rest) = origin.split_first_chunk().ok_or(short)?;
            (loans, origin) = (Some(Ends::decode(ends)), rest);
        }
        let mut numbers = numbers.as_chunks().0.iter().map(|number| u32::from_be_bytes(*number));
        let mut next = || numbers.next().unwrap_or_default();
        let settings =
            Self { frame: next(), call_window: next(), window: next(), calls: next(), head: next(), loans };
        let fits = settings.frame >= LEAST.frame
            && settings.call_window >= LEAST.call_window
            && settings.window >= LEAST.window
            && settings.calls >= LEAST.calls
            && settings.head >= LEAST.head
            // A head and trailers go into one frame.
            && settings.frame / 2 >= settings.head.saturating_add(4);
        if !fits {
            return Err(Malformed("a limit of its hello is too small"));
        }
        Ok((settings, Origin::decode(origin)?))
    }
}

/// Returns the payload of a reset.
pub(crate) fn reset(code: Code) -> [u8; 4] {
    (code as u32).to_be_bytes()
}

/// Reads the payload of a reset.
pub(crate) fn take_code(payload: &[u8]) -> Result<Code, Malformed> {
    number(payload).map(Code::from_wire)
}

/// Reads a payload of one number.
pub(crate) fn number(payload: &[u8]) -> Result<u32, Malformed> {
    let bytes = payload.try_into().map_err(|_| Malformed("a frame of another length than its kind has"))?;
    Ok(u32::from_be_bytes(bytes))
}

/// Splits a payload into the block that its first four bytes have the length of, and the rest.
pub(crate) fn split_block(payload: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let short = Malformed("a block is longer than its frame");
    let (length, rest) = payload.split_first_chunk::<4>().ok_or(short)?;
    rest.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or(short)
}
