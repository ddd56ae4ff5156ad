//! RDMAP: opcodes, the Read Request and the Terminate message (RFC 5040 sections 4.1 to 4.8, RFC 7306 section 4).

use bytes::BufMut;
use smallvec::SmallVec;

use super::array;
use super::ddp::{HeaderError, Tagged, Untagged};
use super::mpa::LENGTH_SIZE;
use crate::error::{DecodeError, Reason};

/// The queue numbers of untagged messages (RFC 5040 section 4.1, RFC 7306 section 4).
pub(crate) mod queue {
    /// All Sends, and Immediate Data.
    pub(crate) const SEND: u32 = 0;
    /// Read Requests and Atomic Requests.
    pub(crate) const READ_REQUEST: u32 = 1;
    /// Terminate.
    pub(crate) const TERMINATE: u32 = 2;
    /// Atomic Responses.
    pub(crate) const ATOMIC_RESPONSE: u32 = 3;
}

/// The opcode of a message (RFC 5040 section 4.1, RFC 7306 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Opcode {
    /// RDMA Write; tagged.
    Write = 0,
    /// RDMA Read Request; queue 1.
    ReadRequest = 1,
    /// RDMA Read Response; tagged.
    ReadResponse = 2,
    /// Send; queue 0.
    Send = 3,
    /// Send with Invalidate; queue 0.
    SendInvalidate = 4,
    /// Send with Solicited Event; queue 0.
    SendSolicited = 5,
    /// Send with Solicited Event and Invalidate; queue 0.
    SendSolicitedInvalidate = 6,
    /// Terminate; queue 2.
    Terminate = 7,
    /// Immediate Data; queue 0.
    Immediate = 8,
    /// Immediate Data with Solicited Event; queue 0.
    ImmediateSolicited = 9,
    /// Atomic Request; queue 1.
    AtomicRequest = 10,
    /// Atomic Response; queue 3.
    AtomicResponse = 11,
}

impl Opcode {
    /// The number of opcodes, numbered from 0.
    #[cfg(test)]
    pub(crate) const COUNT: u8 = 12;

    /// Returns the opcode with this number.
    pub(crate) const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Write,
            1 => Self::ReadRequest,
            2 => Self::ReadResponse,
            3 => Self::Send,
            4 => Self::SendInvalidate,
            5 => Self::SendSolicited,
            6 => Self::SendSolicitedInvalidate,
            7 => Self::Terminate,
            8 => Self::Immediate,
            9 => Self::ImmediateSolicited,
            10 => Self::AtomicRequest,
            11 => Self::AtomicResponse,
            _ => return None,
        })
    }

    /// Returns whether the segments of the message are tagged (RFC 5040 section 4.1).
    pub(crate) const fn is_tagged(self) -> bool {
        matches!(self, Self::Write | Self::ReadResponse)
    }

    /// Returns whether the opcode is one of the four Sends.
    pub(crate) const fn is_send(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendInvalidate | Self::SendSolicited | Self::SendSolicitedInvalidate
        )
    }

    /// Returns the Send that invalidates, or solicits an event, or both.
    pub(crate) const fn send(invalidates: bool, solicited: bool) -> Self {
        match (invalidates, solicited) {
            (false, false) => Self::Send,
            (true, false) => Self::SendInvalidate,
            (false, true) => Self::SendSolicited,
            (true, true) => Self::SendSolicitedInvalidate,
        }
    }

    /// Returns whether the message solicits an event.
    pub(crate) const fn is_solicited(self) -> bool {
        matches!(self, Self::SendSolicited | Self::SendSolicitedInvalidate | Self::ImmediateSolicited)
    }

    /// Returns whether the message invalidates an STag.
    pub(crate) const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }
}

/// The payload of a Read Request (RFC 5040 section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadRequest {
    /// The key of the requester's region in which the response is placed.
    pub(crate) sink_stag: u32,
    pub(crate) sink_to: u64,
    pub(crate) length: u32,
    /// The key of the responder's region.
    pub(crate) source_stag: u32,
    pub(crate) source_to: u64,
}

impl ReadRequest {
    pub(crate) const LEN: usize = 28;

    /// Returns the payload.
    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[0..4].copy_from_slice(&self.sink_stag.to_be_bytes());
        out[4..12].copy_from_slice(&self.sink_to.to_be_bytes());
        out[12..16].copy_from_slice(&self.length.to_be_bytes());
        out[16..20].copy_from_slice(&self.source_stag.to_be_bytes());
        out[20..28].copy_from_slice(&self.source_to.to_be_bytes());
        out
    }

    /// Decodes the request at the start of `payload`.
    pub(crate) fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let word = |at| array(payload, at).map(u32::from_be_bytes).ok_or(DecodeError::Truncated);
        let long = |at| array(payload, at).map(u64::from_be_bytes).ok_or(DecodeError::Truncated);
        Ok(Self {
            sink_stag: word(0)?,
            sink_to: long(4)?,
            length: word(12)?,
            source_stag: word(16)?,
            source_to: long(20)?,
        })
    }
}

/// The start of the FPDU that caused a Terminate: length field, DDP header and, for a Read Request, its payload. 16, 20
/// or 48 bytes.
pub(crate) type OffendingHeader = SmallVec<[u8; 48]>;

/// The phase in which a Terminate arrives, which decides between two interpretations of the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// As the first FPDU after the MPA frames: the start-up failed (LLP).
    StartUp,
    /// After other FPDUs.
    Streaming,
}

/// The payload of a Terminate message (RFC 5040 section 4.8): the reason why the sender ends the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terminate {
    /// The layer: 0 RDMAP, 1 DDP, 2 LLP (MPA).
    pub(crate) layer: u8,
    /// The error type within the layer.
    pub(crate) etype: u8,
    /// The error code within the type.
    pub(crate) code: u8,
    /// The segment that caused it, if that is known.
    pub(crate) header: Option<OffendingHeader>,
}

/// Layers and their error types, as the upper and lower half of the first byte.
mod layer {
    pub(super) const RDMAP: u8 = 0;
    pub(super) const DDP: u8 = 1;
    pub(super) const LLP: u8 = 2;
}

/// M, D and R in the bit order of RFC 5040. They announce the parts of the offending segment that follow.
const RFC_FLAGS: [u8; 3] = [0x80, 0x40, 0x20];
/// M, D and R in the bit order of siw on a little-endian machine.
const SIW_FLAGS: [u8; 3] = [0x01, 0x02, 0x04];

/// Defines one constant per violation that this side reports.
macro_rules! violations {
    ($($(#[$doc:meta])* $name:ident = $layer:expr, $etype:expr, $code:expr;)*) => {
        impl Terminate {
            $(
                $(#[$doc])*
                pub(crate) const $name: Self = Self::new($layer, $etype, $code);)*

            /// Every constant, for the tests.
            #[cfg(test)]
            const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

violations! {
    /// RDMAP: a failure on this side.
    LOCAL_CATASTROPHIC = layer::RDMAP, 0, 0;

    // RDMAP, remote protection (RFC 5040 section 4.8): a Read Request's source.
    /// Read of a region that does not exist.
    INVALID_STAG_REMOTE = layer::RDMAP, 1, 0;
    /// Read outside of its region.
    BOUNDS_REMOTE = layer::RDMAP, 1, 1;
    /// A region that does not give the right: Read without remote read, Write without remote write.
    ACCESS_REMOTE = layer::RDMAP, 1, 2;
    /// Read of a region that belongs to another stream's protection domain.
    NOT_ASSOCIATED_REMOTE = layer::RDMAP, 1, 3;
    /// Read whose end is beyond 2^64.
    TO_WRAP_REMOTE = layer::RDMAP, 1, 4;

    // RDMAP, remote operation (RFC 5040 section 4.8).
    /// An RDMAP version other than 1.
    RDMAP_VERSION = layer::RDMAP, 2, 5;
    /// An unknown opcode, one of the wrong class, or a Read Response without a Read Request.
    UNEXPECTED_OPCODE = layer::RDMAP, 2, 6;
    /// An error of this stream without a better code; siw: more Reads than its IRD.
    CATASTROPHIC_STREAM = layer::RDMAP, 2, 7;
    /// Send with Invalidate of an STag that cannot be invalidated.
    CANNOT_INVALIDATE = layer::RDMAP, 2, 9;
    /// Anything else.
    UNSPECIFIED = layer::RDMAP, 2, 0xff;

    // DDP, tagged buffer (RFC 5041 section 7.2): Writes and Read Responses.
    /// A region that does not exist.
    INVALID_STAG_TAGGED = layer::DDP, 1, 0;
    /// An offset outside of its region.
    BOUNDS_TAGGED = layer::DDP, 1, 1;
    /// A region that belongs to another stream's protection domain.
    NOT_ASSOCIATED_TAGGED = layer::DDP, 1, 2;
    /// A segment whose end is beyond 2^64.
    TO_WRAP_TAGGED = layer::DDP, 1, 3;
    /// A DDP version other than 1.
    DDP_VERSION_TAGGED = layer::DDP, 1, 4;

    // DDP, untagged buffer (RFC 5041 section 7.2): Sends, Read Requests, Terminate.
    /// A queue other than the opcode's.
    INVALID_QN = layer::DDP, 2, 1;
    /// A message for which there is no buffer. siw also sends it for a message that is too long.
    NO_BUFFER = layer::DDP, 2, 2;
    /// A message number other than the next.
    MSN_RANGE = layer::DDP, 2, 3;
    /// A message offset other than the next.
    INVALID_MO = layer::DDP, 2, 4;
    /// A message longer than the buffer.
    TOO_LONG = layer::DDP, 2, 5;
    /// A DDP version other than 1.
    DDP_VERSION_UNTAGGED = layer::DDP, 2, 6;

    // LLP (RFC 5044 section 8; 6 and 7 RFC 6581 section 8).
    /// CRC mismatch.
    CRC = layer::LLP, 0, 2;
    /// Markers and length do not match, or a ULPDU is shorter than its header.
    FRAMING = layer::LLP, 0, 3;
    /// The responder's ORD is more than this side can serve.
    INSUFFICIENT_IRD = layer::LLP, 0, 6;
    /// The responder chose an RTR frame that this side did not offer.
    NO_MATCHING_RTR = layer::LLP, 0, 7;
}

impl Terminate {
    /// The DDP header of every Terminate message (RFC 5040 section 4.8).
    pub(crate) const HEADER: Untagged = Untagged::whole(Opcode::Terminate, queue::TERMINATE, 1);

    /// The control word: layer, type, code, flags and reserved bits.
    const CONTROL: usize = 4;

    /// Creates a Terminate without the offending header.
    pub(crate) const fn new(layer: u8, etype: u8, code: u8) -> Self {
        Self { layer, etype, code, header: None }
    }

    /// Returns the Terminate for an invalid header, `None` for [`Truncated`](HeaderError::Truncated), which is no
    /// violation.
    pub(crate) const fn for_header(error: HeaderError) -> Option<Self> {
        Some(match error {
            HeaderError::Truncated => return None,
            HeaderError::Short => Self::FRAMING,
            HeaderError::DdpVersion { tagged: true } => Self::DDP_VERSION_TAGGED,
            HeaderError::DdpVersion { tagged: false } => Self::DDP_VERSION_UNTAGGED,
            HeaderError::RdmapVersion => Self::RDMAP_VERSION,
            HeaderError::Opcode(_) | HeaderError::TaggedMismatch => Self::UNEXPECTED_OPCODE,
        })
    }

    /// Adds the header of the offending segment. `fpdu` is the start of its FPDU, from the length field on; more may follow
    /// it.
    ///
    /// The RDMAP part is included for RDMAP errors of a Read Request that has one (RFC 5040 section 4.8). No header is added
    /// for LLP errors, or if `fpdu` is shorter than the header.
    #[must_use]
    pub(crate) fn with_header(mut self, fpdu: &[u8]) -> Self {
        let opcode = fpdu.get(3).and_then(|control| Opcode::from_number(control & 0x0f));
        let read = self.layer == layer::RDMAP && opcode == Some(Opcode::ReadRequest);
        let length = fpdu.first_chunk().map_or(0, |length| usize::from(u16::from_be_bytes(*length)));
        let segment = fpdu.get(..LENGTH_SIZE + length).unwrap_or(fpdu);
        self.header = if self.layer == layer::LLP { None } else { offending(segment, read) };
        self
    }

    /// Returns the number of bytes that [`encode`](Self::encode) appends.
    pub(crate) fn payload_len(&self) -> usize {
        Self::CONTROL + self.header.as_ref().map_or(0, SmallVec::len)
    }

    /// Appends the payload to `out`, in the bit order of RFC 5040.
    pub(crate) fn encode(&self, out: &mut impl BufMut) {
        let [m, d, r] = RFC_FLAGS;
        let flags = match &self.header {
            None => 0,
            Some(header) if header.len() > LENGTH_SIZE + Untagged::LEN => m | d | r,
            Some(_) => m | d,
        };
        out.put_slice(&[self.layer << 4 | self.etype & 0x0f, self.code, flags, 0]);
        if let Some(header) = &self.header {
            out.put_slice(header);
        }
    }

    /// Decodes the message in `payload`, in the bit order of RFC 5040 or of siw on a little-endian machine, which swaps
    /// the halves of the first byte and mirrors the flags.
    ///
    /// The flags distinguish the two orders. Without flags, an order that yields no existing error is excluded. If both
    /// errors exist (RDMAP/remote operation and LLP, codes 5 to 7), `phase` decides. Otherwise the order is that of
    /// RFC 5040.
    ///
    /// An incomplete or invalid offending header is omitted, because the stream has ended and the cause is sufficient.
    pub(crate) fn decode(payload: &[u8], phase: Phase) -> Result<Self, DecodeError> {
        let [first, code, flags, _] = array(payload, 0).ok_or(DecodeError::Truncated)?;
        let (high, low) = (first >> 4, first & 0x0f);
        let any = |order: [u8; 3]| order.iter().any(|bit| flags & bit != 0);
        let siw = !any(RFC_FLAGS) && (any(SIW_FLAGS) || Self::is_siw_order(high, low, code, phase));
        let [m, d, r] = if siw { SIW_FLAGS } else { RFC_FLAGS }.map(|bit| flags & bit != 0);
        let (layer, etype) = if siw { (low, high) } else { (high, low) };
        let rest = payload.get(Self::CONTROL..).unwrap_or_default();
        // RFC 5040 section 4.8: the length (M) must be there when the header (D) is.
        let header = if m && d { offending(rest, r) } else { None };
        Ok(Self { layer, etype, code, header })
    }

    /// Returns whether a control word without flags is in the bit order of siw.
    fn is_siw_order(high: u8, low: u8, code: u8, phase: Phase) -> bool {
        match (high, low, code) {
            // RDMAP/remote operation or siw's LLP; LLP/MPA or siw's RDMAP/remote operation.
            (0, 2, 5..=7) => phase == Phase::StartUp,
            (2, 0, 5..=7) => phase == Phase::Streaming,
            (0, 2, 8 | 9 | 0xff) => false,
            (0, 2, _) => true,
            (2, 0, 8 | 9 | 0xff) => true,
            // LLP has no error type 1; siw means DDP/untagged.
            (2, 1, _) => true,
            _ => false,
        }
    }

    /// Returns the cause that is reported to the user.
    pub(crate) const fn reason(&self, sent: bool) -> Reason {
        Reason::Terminate { sent, layer: self.layer, etype: self.etype, code: self.code }
    }
}

/// Returns the length field, the DDP header and, if `read` is set and it is complete, the Read Request at the start of
/// `bytes`.
fn offending(bytes: &[u8], read: bool) -> Option<OffendingHeader> {
    let tagged = bytes.get(LENGTH_SIZE)? & 0x80 != 0;
    let ddp = LENGTH_SIZE + if tagged { Tagged::LEN } else { Untagged::LEN };
    let whole = ddp + if read && !tagged { ReadRequest::LEN } else { 0 };
    bytes.get(..whole).or_else(|| bytes.get(..ddp)).map(SmallVec::from_slice)
}

/// Returns the header of a Read Request (RFC 5040 section 4.4): one segment, offset 0.
pub(crate) const fn read_request_header(msn: u32) -> Untagged {
    Untagged::whole(Opcode::ReadRequest, queue::READ_REQUEST, msn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ddp::Header;
    use proptest::prelude::*;

    fn parse_offending(header: &OffendingHeader) -> Option<Header> {
        Header::decode(header).ok().map(|(header, _, _)| header)
    }

    fn encoded(terminate: &Terminate) -> Vec<u8> {
        let mut out = Vec::new();
        terminate.encode(&mut out);
        assert_eq!(out.len(), terminate.payload_len());
        out
    }

    fn triple(payload: &[u8], phase: Phase) -> (u8, u8, u8) {
        let t = Terminate::decode(payload, phase).unwrap();
        (t.layer, t.etype, t.code)
    }

    const READ: ReadRequest = ReadRequest {
        sink_stag: 0x0100,
        sink_to: 0x1122_3344_5566_7788,
        length: 0x4000,
        source_stag: 0x0a00,
        source_to: 0x99,
    };

    fn read_fpdu() -> Vec<u8> {
        let mut fpdu = read_request_header(1).encode(ReadRequest::LEN).to_vec();
        fpdu.extend_from_slice(&READ.encode());
        fpdu
    }

    #[test]
    fn read_request_bytes() {
        #[rustfmt::skip]
        let expected = [
            0, 0, 1, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0, 0x40, 0,
            0, 0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0x99,
        ];
        assert_eq!(READ.encode(), expected);
        assert_eq!(ReadRequest::decode(&expected), Ok(READ));
        for length in 0..ReadRequest::LEN {
            assert_eq!(ReadRequest::decode(&expected[..length]), Err(DecodeError::Truncated));
        }
        let fpdu = read_fpdu();
        assert_eq!(fpdu[..4], [0, 46, 0x41, 0x41]);
        assert_eq!(fpdu[8..20], [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]);
    }

    /// Decodes words that a running siw was seen to send.
    #[test]
    fn siw_control_words() {
        use Phase::{StartUp, Streaming};
        for (word, phase, expected) in [
            ([0x11, 0x00, 0x03, 0], Streaming, (1, 1, 0)),
            ([0x10, 0x00, 0x07, 0], Streaming, (0, 1, 0)),
            ([0x02, 0x02, 0x00, 0], Streaming, (2, 0, 2)),
            ([0x02, 0x02, 0x00, 0], StartUp, (2, 0, 2)),
            ([0x02, 0x03, 0x00, 0], Streaming, (2, 0, 3)),
            ([0x21, 0x03, 0x03, 0], Streaming, (1, 2, 3)),
            ([0x21, 0x02, 0x03, 0], Streaming, (1, 2, 2)),
            ([0x21, 0x01, 0x03, 0], Streaming, (1, 2, 1)),
            ([0x20, 0x06, 0x00, 0], Streaming, (0, 2, 6)),
            ([0x20, 0x05, 0x00, 0], Streaming, (0, 2, 5)),
            ([0x20, 0x07, 0x00, 0], Streaming, (0, 2, 7)),
            ([0x21, 0x06, 0x00, 0], Streaming, (1, 2, 6)),
            ([0x20, 0x09, 0x03, 0], Streaming, (0, 2, 9)),
            ([0x20, 0x09, 0x00, 0], StartUp, (0, 2, 9)),
            ([0x00, 0xff, 0x00, 0], Streaming, (0, 0, 0xff)),
            ([0x02, 0x06, 0x00, 0], StartUp, (2, 0, 6)),
            ([0x02, 0x07, 0x00, 0], StartUp, (2, 0, 7)),
        ] {
            assert_eq!(triple(&word, phase), expected, "{word:02x?} {phase:?}");
        }
    }

    /// Reads every violation back as itself: in RFC order, in the phase that it belongs to, and in siw's order.
    #[test]
    fn rfc_control_words() {
        // The last ones are not sent by this side.
        let received = [(0, 2, 8), (1, 0, 0), (2, 0, 1), (2, 0, 4), (2, 0, 5)];
        let received = received.map(|(layer, etype, code)| Terminate::new(layer, etype, code));
        for terminate in Terminate::ALL.iter().chain(&received) {
            let expected = (terminate.layer, terminate.etype, terminate.code);
            let bytes = encoded(terminate);
            assert_eq!(bytes, [expected.0 << 4 | expected.1, expected.2, 0, 0]);
            let start_up = terminate.layer == 2;
            let phase = if start_up { Phase::StartUp } else { Phase::Streaming };
            assert_eq!(triple(&bytes, phase), expected, "{terminate:?}");
            let with_flags = [bytes[0], bytes[1], 0xc0, 0];
            assert_eq!(triple(&with_flags, phase), expected, "{terminate:?} with flags");
            // The same in siw's order: its flags settle every case.
            let siw = [expected.1 << 4 | expected.0, expected.2, 0x03, 0];
            assert_eq!(triple(&siw, phase), expected, "{terminate:?} from siw");
        }
        assert_eq!(encoded(&Terminate::CRC), [0x20, 2, 0, 0]);
        assert_eq!(encoded(&Terminate::INVALID_STAG_TAGGED), [0x11, 0, 0, 0]);
        assert_eq!(encoded(&Terminate::TOO_LONG), [0x12, 5, 0, 0]);
        assert_eq!(encoded(&Terminate::CANNOT_INVALIDATE), [0x02, 9, 0, 0]);
    }

    #[test]
    fn with_the_offending_header() {
        let read = Terminate::INVALID_STAG_REMOTE.with_header(&read_fpdu());
        let bytes = encoded(&read);
        assert_eq!((bytes.len(), &bytes[..6]), (52, &[0x01, 0, 0xe0, 0, 0, 46][..]));
        assert_eq!(Terminate::decode(&bytes, Phase::Streaming), Ok(read.clone()));
        assert_eq!(
            read.header.as_ref().and_then(parse_offending),
            Some(Header::Untagged(read_request_header(1)))
        );

        let write = Tagged { last: true, opcode: Opcode::Write, stag: 9, to: 8 }.encode(100);
        let terminate = Terminate::BOUNDS_TAGGED.with_header(&[&write[..], &[0; 100]].concat());
        let bytes = encoded(&terminate);
        assert_eq!(bytes[..4], [0x11, 1, 0xc0, 0]);
        assert_eq!(bytes[4..], write);
        assert_eq!(Terminate::decode(&bytes, Phase::Streaming), Ok(terminate));

        let msn = Terminate::MSN_RANGE.with_header(&read_fpdu());
        assert_eq!(encoded(&msn).len(), 24, "a DDP error has no RDMAP part");
        assert_eq!(Terminate::CRC.with_header(&write).header, None);
        assert_eq!(Terminate::BOUNDS_TAGGED.with_header(&write[..15]).header, None);
    }

    #[test]
    fn a_header_ends_with_its_segment() {
        let mut short = read_fpdu();
        short[..LENGTH_SIZE].copy_from_slice(&26_u16.to_be_bytes());
        let bytes = encoded(&Terminate::INVALID_STAG_REMOTE.with_header(&short));
        assert_eq!((bytes.len(), bytes[2]), (24, 0xc0), "the rest of a Read Request is of the next frame");
        short[..LENGTH_SIZE].copy_from_slice(&5_u16.to_be_bytes());
        assert_eq!(Terminate::INVALID_STAG_REMOTE.with_header(&short).header, None);
    }

    #[test]
    fn only_what_the_flags_announce_is_a_header() {
        for (flags, expected) in [(0, None), (0x80, None), (0x40, None), (0xc0, Some(20)), (0xe0, Some(48))] {
            let bytes = [&[0x01, 0, flags, 0][..], &read_fpdu()].concat();
            let terminate = Terminate::decode(&bytes, Phase::Streaming).unwrap();
            assert_eq!(terminate.header.map(|header| header.len()), expected, "{flags:#x}");
        }
    }

    /// Reads siw's Terminate for a Read of an unknown STag: flags 07 and 48 bytes.
    #[test]
    fn siw_offending_header() {
        let bytes = [&[0x10, 0, 0x07, 0][..], &read_fpdu()].concat();
        let terminate = Terminate::decode(&bytes, Phase::Streaming).unwrap();
        assert_eq!(terminate, Terminate::INVALID_STAG_REMOTE.with_header(&read_fpdu()));
    }

    #[test]
    fn every_truncation_of_a_terminate() {
        let bytes = encoded(&Terminate::INVALID_STAG_REMOTE.with_header(&read_fpdu()));
        for length in 0..bytes.len() {
            let result = Terminate::decode(&bytes[..length], Phase::Streaming);
            if length < 4 {
                assert_eq!(result, Err(DecodeError::Truncated));
                continue;
            }
            let terminate = result.unwrap();
            assert_eq!((terminate.layer, terminate.etype, terminate.code), (0, 1, 0));
            let kept = terminate.header.map(|header| header.len());
            assert_eq!(kept, if length < 24 { None } else { Some(20) });
        }
    }

    proptest! {
        #[test]
        fn read_requests_round_trip(bytes: [u8; 28]) {
            prop_assert_eq!(ReadRequest::decode(&bytes).unwrap().encode(), bytes);
        }

        #[test]
        fn terminates_round_trip(
            index in 0..Terminate::ALL.len(), payload in 0usize..2000, tagged: bool, read: bool,
        ) {
            let fpdu = match (tagged, read) {
                (true, _) => Tagged { last: true, opcode: Opcode::Write, stag: 1, to: 2 }.encode(payload).to_vec(),
                (false, true) => read_fpdu(),
                (false, false) => Terminate::HEADER.encode(payload).to_vec(),
            };
            let terminate = Terminate::ALL[index].clone().with_header(&fpdu);
            let phase = if terminate.layer == 2 { Phase::StartUp } else { Phase::Streaming };
            prop_assert_eq!(Terminate::decode(&encoded(&terminate), phase), Ok(terminate));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..80), start_up: bool,
        ) {
            let _ = ReadRequest::decode(&bytes);
            let phase = if start_up { Phase::StartUp } else { Phase::Streaming };
            if let Ok(terminate) = Terminate::decode(&bytes, phase) {
                let _ = encoded(&terminate);
                let _ = terminate.header.as_ref().and_then(parse_offending);
            }
            let _ = Terminate::UNSPECIFIED.with_header(&bytes);
        }
    }
}
