//! rsocket on the wire: the description of each end in private data, and the messages of 32 bits.
//!
//! Source: rdma-core, librdmacm/docs/rsocket ("Connection Establishment", "Message Format"), version 1 of the protocol.

use crate::error::ProtocolError;

/// The version that is spoken.
const VERSION: u8 = 1;

/// `RS_CONN_FLAG_NET`: the sender is big-endian.
const FLAG_BIG_ENDIAN: u8 = 1;

/// Flags of this crate in the first reserved byte, which librdmacm sends as zero and ignores.
const CONFIRMS: u8 = 1;
const SAYS_ITS_END: u8 = 2;
const GRANTS_RING: u8 = 4;
const SESSION: u8 = 8;
const TAKES_BYTES: u8 = 16;

/// Whether this host is big-endian.
pub(super) const BIG_ENDIAN: bool = cfg!(target_endian = "big");

/// Memory at the other end (`struct rs_sge`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) address: u64,
    pub(crate) key: u32,
    /// Bytes; of a list of targets, entries.
    pub(crate) length: u32,
}

impl Span {
    pub(crate) const LEN: usize = 16;

    /// Encodes it in the byte order of a host.
    pub(crate) fn to_bytes(self, big_endian: bool) -> [u8; Self::LEN] {
        let Self { address, key, length } = self.swapped_unless(big_endian == BIG_ENDIAN);
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&address.to_ne_bytes());
        bytes[8..12].copy_from_slice(&key.to_ne_bytes());
        bytes[12..].copy_from_slice(&length.to_ne_bytes());
        bytes
    }

    /// Decodes an entry that a peer has written into a list of targets: in the byte order of this host.
    pub(crate) fn from_native(bytes: [u8; Self::LEN]) -> Self {
        Self::from_bytes(bytes, BIG_ENDIAN)
    }

    fn from_bytes(bytes: [u8; Self::LEN], big_endian: bool) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, l0, l1, l2, l3] = bytes;
        let native = Self {
            address: u64::from_ne_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            key: u32::from_ne_bytes([k0, k1, k2, k3]),
            length: u32::from_ne_bytes([l0, l1, l2, l3]),
        };
        native.swapped_unless(big_endian == BIG_ENDIAN)
    }

    /// Swaps the bytes of each number, unless both ends have the same order.
    fn swapped_unless(self, same: bool) -> Self {
        let Self { address, key, length } = self;
        if same {
            return self;
        }
        Self { address: address.swap_bytes(), key: key.swap_bytes(), length: length.swap_bytes() }
    }
}

/// The description of one end in the private data of request and accept (`struct rs_conn_data`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The host is big-endian: so are its messages where they travel as sends, and what is written into its targets.
    pub(crate) big_endian: bool,
    /// The number of data messages that it can take at first.
    pub(crate) credits: u16,
    /// Its list of targets: where the other end writes of which memory it can take.
    pub(crate) targets: Span,
    /// The first memory that data goes to.
    pub(crate) data: Span,
    /// Its transport answers empty reads, so that they confirm the delivery of the messages before them.
    pub(crate) confirms: bool,
    /// It always sends a message of its end, so that a connection that ends without one is lost. A program in C may
    /// exit without such a message.
    pub(crate) says_its_end: bool,
    /// It has granted as much memory again behind the first: the other half of its ring.
    pub(crate) grants_ring: bool,
    /// It asks for a session, or agrees to one: the connection begins with the messages of `proto::session`.
    pub(crate) session: bool,
    /// It takes the bytes of a message behind the word of a Send, as if they had been written to their place before it.
    pub(crate) takes_bytes: bool,
}

impl Hello {
    pub(crate) const LEN: usize = 40;

    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = VERSION;
        // No memory for direct transfers (`RS_CONN_FLAG_IOMAP`) is offered.
        bytes[1] = if self.big_endian { FLAG_BIG_ENDIAN } else { 0 };
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        let own = [
            (self.confirms, CONFIRMS),
            (self.says_its_end, SAYS_ITS_END),
            (self.grants_ring, GRANTS_RING),
            (self.session, SESSION),
            (self.takes_bytes, TAKES_BYTES),
        ];
        bytes[4] = own.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag)).sum();
        bytes[8..24].copy_from_slice(&self.targets.to_bytes(true));
        bytes[24..].copy_from_slice(&self.data.to_bytes(true));
        bytes
    }

    /// Decodes the start of private data. Some transports pad it, so the bytes behind are ignored.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let bytes: &[u8; Self::LEN] = bytes.first_chunk().ok_or(ProtocolError::Foreign)?;
        let [version, flags, c0, c1, own, _, _, _, spans @ ..] = *bytes;
        if version != VERSION {
            return Err(ProtocolError::Version(version));
        }
        let (targets, data) = spans.split_at(Span::LEN);
        let span = |bytes: &[u8]| bytes.first_chunk().copied().unwrap_or_default();
        let hello = Self {
            big_endian: flags & FLAG_BIG_ENDIAN != 0,
            credits: u16::from_be_bytes([c0, c1]),
            targets: Span::from_bytes(span(targets), true),
            data: Span::from_bytes(span(data), true),
            confirms: own & CONFIRMS != 0,
            says_its_end: own & SAYS_ITS_END != 0,
            grants_ring: own & GRANTS_RING != 0,
            session: own & SESSION != 0,
            takes_bytes: own & TAKES_BYTES != 0,
        };
        // The first update goes to the second entry.
        if hello.targets.length < 2 {
            return Err(ProtocolError::Value { what: "targets", value: hello.targets.length.into() });
        }
        for (what, value) in [("credits", hello.credits.into()), ("bytes", hello.data.length)] {
            if value == 0 {
                return Err(ProtocolError::Value { what, value: 0 });
            }
        }
        Ok(hello)
    }
}

/// A message: three bits of type, 29 bits of value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// This number of bytes has been written.
    Data(u32),
    /// Data messages may be sent until this many have been, modulo 2^16; and the list of targets may have a new entry.
    Credit(u16),
    /// The program of the sender has read so many bytes of the stream, modulo 2^29: a message of this crate, in sessions.
    Read(u32),
    /// The sender is gone.
    Disconnect,
    /// It is still there.
    Keepalive,
    /// It sends no more data.
    Shutdown,
    /// It has given the stream up, also the bytes that are on their way: a message of this crate, in sessions.
    Abandon,
}

const TYPE_SHIFT: u32 = 29;
const VALUE: u32 = (1 << TYPE_SHIFT) - 1;
const DATA: u32 = 0;
const CREDIT: u32 = 4;
/// Reserved in librdmacm (`RS_OP_RSVD`).
const READ: u32 = 5;
const CONTROL: u32 = 7;
const CONTROL_DISCONNECT: u32 = 0;
const CONTROL_KEEPALIVE: u32 = 1;
const CONTROL_SHUTDOWN: u32 = 2;
/// Unknown to librdmacm.
const CONTROL_ABANDON: u32 = 3;

impl Message {
    /// The length of one that travels as a send.
    pub(crate) const LEN: usize = 4;

    pub(crate) fn encode(self) -> u32 {
        let (kind, value) = match self {
            Self::Data(bytes) => (DATA, bytes),
            Self::Credit(limit) => (CREDIT, limit.into()),
            Self::Read(bytes) => (READ, bytes),
            Self::Disconnect => (CONTROL, CONTROL_DISCONNECT),
            Self::Keepalive => (CONTROL, CONTROL_KEEPALIVE),
            Self::Shutdown => (CONTROL, CONTROL_SHUTDOWN),
            Self::Abandon => (CONTROL, CONTROL_ABANDON),
        };
        kind << TYPE_SHIFT | value & VALUE
    }

    /// Decodes the word of a message. A type that is reserved, or asks for a transfer that was not offered, is an error.
    pub(crate) fn decode(word: u32) -> Result<Self, ProtocolError> {
        let value = word & VALUE;
        match (word >> TYPE_SHIFT, value) {
            (DATA, 1..) => Ok(Self::Data(value)),
            // librdmacm does not cut the sum of two numbers of 16 bits, and its reader does.
            (CREDIT, _) => Ok(Self::Credit((value & 0xFFFF) as u16)),
            (READ, _) => Ok(Self::Read(value)),
            (CONTROL, CONTROL_DISCONNECT) => Ok(Self::Disconnect),
            (CONTROL, CONTROL_KEEPALIVE) => Ok(Self::Keepalive),
            (CONTROL, CONTROL_SHUTDOWN) => Ok(Self::Shutdown),
            (CONTROL, CONTROL_ABANDON) => Ok(Self::Abandon),
            _ => Err(ProtocolError::Message(word)),
        }
    }

    /// Encodes the bytes of a send: librdmacm sends the word as its host has it.
    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        self.encode().to_ne_bytes()
    }

    /// Decodes the bytes of a send by a host of this byte order.
    pub(crate) fn from_bytes(bytes: [u8; Self::LEN], big_endian: bool) -> Result<Self, ProtocolError> {
        let word = if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) };
        Self::decode(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGETS: Span = Span { address: 0x0102_0304_0506_0708, key: 0x1112_1314, length: 2 };
    const BUFFER: Span = Span { address: 0x2122_2324_2526_2728, key: 0x3132_3334, length: 0x1_0000 };

    fn hello() -> [u8; Hello::LEN] {
        let (targets, data) = (TARGETS, BUFFER);
        let [confirms, says_its_end, grants_ring, session, takes_bytes] = [false; 5];
        let hello = Hello {
            big_endian: false,
            credits: 384,
            targets,
            data,
            confirms,
            says_its_end,
            grants_ring,
            session,
            takes_bytes,
        };
        hello.to_bytes()
    }

    #[test]
    fn private_data_is_that_of_librdmacm() {
        let expected = [
            1, 0, 0x01, 0x80, 0, 0, 0, 0, // version, flags, credits, reserved
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 2, // targets
            0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0, 1, 0, 0, // data
        ];
        assert_eq!(hello(), expected);
        let padded = [&expected[..], &[0; 16]].concat();
        assert_eq!(Hello::decode(&padded).map(Hello::to_bytes), Ok(expected));
    }

    #[test]
    fn private_data_that_lies_is_refused() {
        for length in 0..Hello::LEN {
            assert_eq!(Hello::decode(&hello()[..length]), Err(ProtocolError::Foreign));
        }
        let with = |place: usize, value: u8| {
            let mut bytes = hello();
            bytes[place] = value;
            Hello::decode(&bytes)
        };
        assert_eq!(with(0, 2), Err(ProtocolError::Version(2)));
        assert_eq!(with(23, 1), Err(ProtocolError::Value { what: "targets", value: 1 }));
        let mut none = hello();
        none[2..4].fill(0);
        assert_eq!(Hello::decode(&none), Err(ProtocolError::Value { what: "credits", value: 0 }));
        assert_eq!(with(37, 0), Err(ProtocolError::Value { what: "bytes", value: 0 }));
        // librdmacm's own flag for direct transfers.
        assert!(with(1, 2).is_ok());
        assert!(with(1, 3).is_ok_and(|hello| hello.big_endian));
        assert!(with(4, 1).is_ok_and(|hello| hello.confirms && hello.to_bytes()[4] == 1));
    }

    #[test]
    fn messages_are_those_of_librdmacm() {
        let known = [
            (Message::Data(64), 0x0000_0040),
            (Message::Data(VALUE), 0x1FFF_FFFF),
            (Message::Credit(384), 0x8000_0180),
            (Message::Read(7), 0xA000_0007),
            (Message::Disconnect, 0xE000_0000),
            (Message::Keepalive, 0xE000_0001),
            (Message::Shutdown, 0xE000_0002),
            (Message::Abandon, 0xE000_0003),
        ];
        for (message, word) in known {
            assert_eq!(message.encode(), word);
            assert_eq!(Message::decode(word), Ok(message));
            assert_eq!(Message::from_bytes(message.to_bytes(), BIG_ENDIAN), Ok(message));
            assert_eq!(Message::from_bytes(word.to_be_bytes(), true), Ok(message));
            assert_eq!(Message::from_bytes(word.to_le_bytes(), false), Ok(message));
        }
        assert_eq!(Message::decode(0x8001_0002), Ok(Message::Credit(2)));
        for word in [0, 0x2000_0001, 0x4000_0001, 0x6000_0001, 0xC000_0000, 0xE000_0004] {
            assert_eq!(Message::decode(word), Err(ProtocolError::Message(word)));
        }
    }

    #[test]
    fn target_uses_byte_order_of_reader() {
        assert_eq!(Span::from_native(TARGETS.to_bytes(BIG_ENDIAN)), TARGETS);
        assert_eq!(TARGETS.to_bytes(true)[..2], [1, 2]);
        assert_eq!(TARGETS.to_bytes(false)[..2], [8, 7]);
    }
}
