//! The MPA start-up exchange: one request, one reply (RFC 5044 section 7.1, enhanced by RFC 6581).
//!
//! ```text
//! Initiator::new -- request() -->  Responder::receive -> Offer
//!                                       | accept or reject
//! Reply <- Initiator::receive <---------+
//! rtr_frame() ------------------->  the first FPDU, from the initiator in any case
//! ```
//!
//! The result of the negotiation is [`Negotiated`]:
//! - Read limits: [`ReadLimits`] in the own direction. The responder lowers the initiator's offer and replies with the
//!   result; the initiator lowers its offer to the reply. Both then hold the same two numbers. A responder that
//!   announces more reads than it was offered receives a Terminate. A peer of revision 0 or 1, or of revision 2 without
//!   the S flag, sends no limits: [`StartConfig::unsaid_limits`] take their place.
//! - CRC: on when either side asked (RFC 5044 section 7.1.1, the C bit). A responder says so in its reply.
//! - Announced segments: if both ends are of this crate and do without CRC, see [`Negotiated::announces`].
//! - RTR: with peer-to-peer (RFC 6581) the initiator sends an empty frame first, so that the responder's
//!   application may be the first to send.
//!
//! Markers are not done: a request for them is rejected, as RFC 5044 lets a responder do.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::limits;
use crate::error::{DecodeError, Reason};
use crate::types::{PrivateData, ReadLimits};
use crate::wire::ddp::Tagged;
use crate::wire::mpa::{
    CRC_SIZE, Crc, Enhanced, LENGTH_SIZE, StartBytes, StartFrame, StartKind, crc_to_wire, fpdu_length,
};
use crate::wire::rdmap::{Opcode, ReadRequest, Terminate, read_request_header};

/// The revision that we initiate with (RFC 6581), and the highest that we answer.
const REVISION: u8 = 2;

/// The highest limit that we say or hold: one above would read as "not negotiated".
const MAX_LIMIT: u32 = Enhanced::NO_LIMIT as u32 - 1;

/// The settings of this side for every connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StartConfig {
    /// Ask for CRC. Without it CRC is still used when the peer asks.
    pub(crate) crc: bool,
    /// The limits that are assumed for a peer that does not speak RFC 6581, in this side's direction:
    /// `inbound` is the number of reads that it issues, `outbound` the number that it serves. Both ends must
    /// be configured alike: the limits are not on the wire.
    pub(crate) unsaid_limits: ReadLimits,
}

/// The RTR ("ready to receive") frame of RFC 6581, by which the initiator opens a peer-to-peer connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rtr {
    /// None: not peer-to-peer. The initiator's first message takes its place.
    None,
    /// A zero-length RDMA Write.
    Write,
    /// A zero-length RDMA Read. It takes MSN 1 of queue 1 and wants its zero-length Read Response, whatever the
    /// read limits are.
    Read,
    /// A zero-length FPDU. Only ever the answer to an initiator that offers nothing else; siw cannot.
    Send,
    /// None, between two ends of this crate: either may send as soon as the reply is sent.
    Waived,
}

/// The terms that both sides have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Negotiated {
    /// The effective read limits, in this side's direction.
    pub(crate) limits: ReadLimits,
    /// Whether CRCs are sent and checked, in both directions.
    pub(crate) crc: bool,
    /// Whether the segments of a message contain how many full ones follow, in both directions.
    pub(crate) announces: bool,
    /// The frame that the initiator must send first, and the responder waits for.
    pub(crate) rtr: Rtr,
}

/// The start-up failed, and the TCP stream is of no more use.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StartError {
    /// The error in the peer's bytes. Never [`Truncated`](DecodeError::Truncated).
    pub(crate) error: DecodeError,
    /// The reason for the caller: that error, or the Terminate among the bytes.
    pub(crate) reason: Reason,
    /// The bytes to send before the close; mostly there are none.
    pub(crate) bytes: Bytes,
}

impl StartError {
    /// Creates an error that is sent to the peer as a Terminate, in place of the first frame.
    fn terminate(error: &'static str, terminate: &Terminate, crc: bool) -> Self {
        let error = DecodeError::Unsupported(error);
        Self { error, reason: terminate.reason(true), bytes: terminate_fpdu(terminate, crc) }
    }
}

impl From<DecodeError> for StartError {
    /// Creates an error after which nothing is sent: the peer's bytes are not MPA that an answer could be made to.
    fn from(error: DecodeError) -> Self {
        Self { error, reason: Reason::Protocol(error), bytes: Bytes::new() }
    }
}

/// The reply of the responder, with the user's part of the private data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Accepted: the connection is established once the RTR frame, if any, is sent. `leftover` came behind the reply: a
    /// responder that is not peer-to-peer may send at once.
    Accepted { negotiated: Negotiated, private_data: PrivateData, leftover: Bytes },
    /// The R bit: declined.
    Rejected { private_data: PrivateData },
}

/// The side that connects.
#[derive(Debug)]
pub(crate) struct Initiator {
    config: StartConfig,
    offer: ReadLimits,
    /// The bytes of an incomplete reply.
    input: Vec<u8>,
}

impl Initiator {
    /// Creates the initiator of one attempt. `offer` contains the reads that this side is willing to serve and wants to
    /// issue, already capped to the adapter.
    pub(crate) fn new(config: StartConfig, offer: ReadLimits) -> Self {
        Self { config, offer: sayable(offer), input: Vec::new() }
    }

    /// Encodes the request frame: revision 2 with the read limits, peer-to-peer with both RTR frames that siw knows, no
    /// markers. `private_data` is at most 508 bytes: siw takes 252.
    pub(crate) fn request(&self, private_data: &[u8]) -> StartBytes {
        let enhanced =
            Enhanced { peer_to_peer: true, rtr_write: true, rtr_read: true, ..enhanced_limits(self.offer) };
        let (crc, enhanced) = (self.config.crc, Some(enhanced));
        let plain = StartFrame::new(StartKind::Request, REVISION, private_data);
        StartFrame { crc, enhanced, announces: !crc, ..plain }.encode()
    }

    /// Takes bytes of the reply, in pieces of any size; `Some` when it is whole. It is not called again then, nor after an error.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<Option<Reply>, StartError> {
        let bytes = joined(std::mem::take(&mut self.input), bytes);
        match StartFrame::decode(StartKind::Reply, &bytes) {
            Err(DecodeError::Truncated) => {
                self.input = bytes.into_owned();
                Ok(None)
            }
            Err(error) => Err(error.into()),
            Ok((frame, used)) => self.judge(&frame, &bytes[used..]).map(Some),
        }
    }

    fn judge(&self, frame: &StartFrame<'_>, behind: &[u8]) -> Result<Reply, StartError> {
        let private_data = copied(frame.private_data);
        // Before the checks below: a responder may reject because of a feature that it lacks.
        if frame.reject {
            return Ok(Reply::Rejected { private_data });
        }
        check_revision(frame)?;
        // RFC 5044 section 7.1.1: we would have to send markers, also in a Terminate.
        if frame.markers {
            return Err(DecodeError::Unsupported("markers in the reply").into());
        }
        let enhanced = frame.enhanced;
        // RFC 5044 section 7.1.1: a C bit in either frame binds both ends. siw echoes ours.
        let crc = self.config.crc || frame.crc;
        let announces = frame.announces && !crc;
        let rtr = match enhanced {
            Some(enhanced) if enhanced.peer_to_peer => chosen_rtr(&enhanced).ok_or_else(|| {
                StartError::terminate("an RTR frame that was not offered", &Terminate::NO_MATCHING_RTR, crc)
            })?,
            // Without A the RTR bits mean nothing. An end of this crate omits it to waive the frame.
            Some(_) if announces => Rtr::Waived,
            _ => Rtr::None,
        };
        if enhanced.is_some_and(|enhanced| self.offer.inbound < announced_reads(&enhanced)) {
            let error = "more reads than were offered";
            return Err(StartError::terminate(error, &Terminate::INSUFFICIENT_IRD, crc));
        }
        let answer = enhanced.map_or(self.config.unsaid_limits, |enhanced| peer_limits(&enhanced));
        let negotiated = Negotiated {
            limits: limits::as_seen_by_active(self.offer, answer.swapped()),
            crc,
            announces,
            rtr,
        };
        Ok(Reply::Accepted { negotiated, private_data, leftover: Bytes::copy_from_slice(behind) })
    }
}

/// The request of the initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Its read limits in this side's direction: `inbound` what it wants to issue, `outbound` what it serves.
    /// Not capped to the adapter. [`StartConfig::unsaid_limits`] when it said none.
    pub(crate) limits: ReadLimits,
    /// The user's part of the private data.
    pub(crate) private_data: PrivateData,
}

/// The properties of the request on which the reply depends. The default is what the oldest peer asks for.
#[derive(Clone, Copy, Debug, Default)]
struct Request {
    revision: u8,
    crc: bool,
    announces: bool,
    enhanced: Option<Enhanced>,
}

/// The side that accepts.
#[derive(Debug)]
pub(crate) struct Responder {
    config: StartConfig,
    /// The bytes of an incomplete request.
    input: Vec<u8>,
    /// The request, once it is whole.
    request: Request,
    /// No RTR frame is awaited from an initiator of this crate.
    waives_rtr: bool,
}

impl Responder {
    /// Creates the responder of one connection, of which nothing was read yet.
    pub(crate) fn new(config: StartConfig) -> Self {
        Self { config, input: Vec::new(), request: Request::default(), waives_rtr: false }
    }

    /// Takes bytes of the request, in pieces of any size; `Some` when it is whole. It is not called again then, nor after an error.
    /// Bytes behind the request are an error: an initiator may only send them after the reply (RFC 5044 section 7.1.2).
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<Option<Offer>, StartError> {
        // One byte more than the longest frame is enough to see that there is too much.
        let room = (StartFrame::MAX_LEN + 1).saturating_sub(self.input.len());
        let bytes = joined(std::mem::take(&mut self.input), &bytes[..bytes.len().min(room)]);
        let (frame, used) = match StartFrame::decode(StartKind::Request, &bytes) {
            Err(DecodeError::Truncated) => {
                self.input = bytes.into_owned();
                return Ok(None);
            }
            decoded => decoded?,
        };
        check_revision(&frame)?;
        if used < bytes.len() {
            return Err(DecodeError::Malformed("bytes behind the MPA request").into());
        }
        let StartFrame { revision, crc, announces, enhanced, .. } = frame;
        self.request = Request { revision, crc, announces, enhanced };
        if frame.markers {
            // RFC 5044 section 7.1.1 wants markers when they are asked for; this end rejects instead, as siw does.
            let error = DecodeError::Unsupported("markers in the request");
            return Err(StartError { bytes: self.reject(&[]), ..error.into() });
        }
        Ok(Some(Offer { limits: self.offered(), private_data: copied(frame.private_data) }))
    }

    /// Waives the RTR frame of an initiator of this crate: the connection is established as soon as the reply is sent.
    pub(crate) fn waive_rtr(&mut self) {
        self.waives_rtr = true;
    }

    /// Encodes the reply that grants the connection, with `limits` (capped to the adapter) lowered to the offer.
    /// Returns it with the terms that hold once it is sent. `private_data` is at most 508 bytes.
    ///
    /// Only valid after [`receive`](Self::receive) returned the offer.
    pub(crate) fn accept(&self, limits: ReadLimits, private_data: &[u8]) -> (StartBytes, Negotiated) {
        let request = self.request;
        let limits = sayable(limits).capped_to(self.offered());
        // RFC 5044 section 7.1.1: either side's wish binds both. siw only reads the C bit of the reply, so the reply
        // has it.
        let crc = request.crc || self.config.crc;
        let announces = request.announces && !crc;
        let rtr = match request.enhanced {
            None => Rtr::None,
            Some(_) if self.waives_rtr && announces => Rtr::Waived,
            Some(enhanced) => choose_rtr(&enhanced),
        };
        let enhanced = request.enhanced.map(|_| Enhanced {
            peer_to_peer: !matches!(rtr, Rtr::None | Rtr::Waived),
            rtr_send: rtr == Rtr::Send,
            rtr_write: rtr == Rtr::Write,
            rtr_read: rtr == Rtr::Read,
            ..enhanced_limits(limits)
        });
        let plain = StartFrame::new(StartKind::Reply, request.revision, private_data);
        let reply = StartFrame { crc, enhanced, announces, ..plain }.encode();
        (reply, Negotiated { limits, crc, announces, rtr })
    }

    /// Encodes the reply that declines the connection: the R bit, the revision of the request, and zero limits if the request had
    /// some. `private_data` is at most 508 bytes.
    ///
    /// Only valid after [`receive`](Self::receive) returned the offer.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Bytes {
        let enhanced = self.request.enhanced.map(|_| enhanced_limits(ReadLimits::NONE));
        let plain = StartFrame::new(StartKind::Reply, self.request.revision, private_data);
        StartFrame { reject: true, enhanced, ..plain }.encode().into_vec().into()
    }

    fn offered(&self) -> ReadLimits {
        self.request.enhanced.map_or(self.config.unsaid_limits, |enhanced| peer_limits(&enhanced))
    }
}

/// Refuses revisions above 2. RFC 5044 section 7.1.1 defines revision 1, RFC 6581 revision 2; siw also speaks 0, which
/// looks like 1.
fn check_revision(frame: &StartFrame<'_>) -> Result<(), DecodeError> {
    if frame.revision > REVISION { Err(DecodeError::Version(frame.revision)) } else { Ok(()) }
}

/// Appends `bytes` to the bytes of a frame that were kept because it was incomplete. Most frames arrive in one piece, which is
/// not copied.
fn joined(mut kept: Vec<u8>, bytes: &[u8]) -> Cow<'_, [u8]> {
    if kept.is_empty() {
        return Cow::Borrowed(bytes);
    }
    kept.extend_from_slice(bytes);
    Cow::Owned(kept)
}

/// Copies the user's part of the private data out of a frame.
fn copied(private_data: &[u8]) -> PrivateData {
    PrivateData::exact(Bytes::copy_from_slice(private_data))
}

/// Lowers the limits to those that fourteen bits can say without meaning "not negotiated".
fn sayable(limits: ReadLimits) -> ReadLimits {
    limits.capped_to(ReadLimits::new(MAX_LIMIT, MAX_LIMIT))
}

/// Converts this side's limits to the parameters of a frame, without peer-to-peer.
fn enhanced_limits(limits: ReadLimits) -> Enhanced {
    let word = |limit: u32| u16::try_from(limit).unwrap_or(u16::MAX);
    Enhanced { ird: word(limits.inbound), ord: word(limits.outbound), ..Enhanced::default() }
}

/// Returns the limits in the peer's frame, in this side's direction. "Not negotiated" is the highest number, so it
/// lowers nothing.
fn peer_limits(enhanced: &Enhanced) -> ReadLimits {
    ReadLimits::new(enhanced.ird.into(), enhanced.ord.into()).swapped()
}

/// Returns the number of reads that a responder announces to issue. It may issue as many, so an initiator
/// that serves fewer sends a Terminate (RFC 6581 section 9.1). A responder that does not negotiate announces
/// nothing.
fn announced_reads(reply: &Enhanced) -> u32 {
    if reply.ord == Enhanced::NO_LIMIT { 0 } else { reply.ord.into() }
}

/// Chooses among the RTR frames in a request, for the responder: Write, then Read, then Send. Write also when none is
/// offered, as siw does.
fn choose_rtr(request: &Enhanced) -> Rtr {
    match request {
        Enhanced { peer_to_peer: false, .. } => Rtr::None,
        Enhanced { rtr_write: true, .. } => Rtr::Write,
        Enhanced { rtr_read: true, .. } => Rtr::Read,
        Enhanced { rtr_send: true, .. } => Rtr::Send,
        _ => Rtr::Write,
    }
}

/// Returns the RTR frame that a reply with the A bit asks for, if it is one of the two that we offer.
fn chosen_rtr(reply: &Enhanced) -> Option<Rtr> {
    match reply {
        Enhanced { rtr_write: true, .. } => Some(Rtr::Write),
        Enhanced { rtr_read: true, .. } => Some(Rtr::Read),
        _ => None,
    }
}

/// Frames the initiator's first FPDU; no bytes if there is none.
///
/// The one for [`Rtr::Write`] is also the frame to send to a siw that missed our first FPDU: it changes nothing
/// on the other side.
pub(crate) fn rtr_frame(rtr: Rtr, crc: bool) -> Fpdu {
    match rtr {
        Rtr::None | Rtr::Waived => Fpdu::new(),
        Rtr::Write => fpdu(&Tagged { last: true, opcode: Opcode::Write, stag: 0, to: 0 }.encode(0), &[], crc),
        Rtr::Read => {
            let request = ReadRequest { sink_stag: 0, sink_to: 0, length: 0, source_stag: 0, source_to: 0 };
            fpdu(&read_request_header(1).encode(ReadRequest::LEN), &request.encode(), crc)
        }
        Rtr::Send => fpdu(&[0; LENGTH_SIZE], &[], crc),
    }
}

/// Frames a Terminate as an FPDU.
pub(crate) fn terminate_fpdu(terminate: &Terminate, crc: bool) -> Bytes {
    let header = Terminate::HEADER.encode(terminate.payload_len());
    let mut payload = BytesMut::with_capacity(terminate.payload_len());
    terminate.encode(&mut payload);
    fpdu(&header, &payload, crc).into_vec().into()
}

/// A whole FPDU, of which most are short.
pub(crate) type Fpdu = SmallVec<[u8; 64]>;

/// Frames a whole FPDU of a header, which starts with the length field, and a payload (RFC 5044 section 4).
fn fpdu(header: &[u8], payload: &[u8], crc: bool) -> Fpdu {
    let ulpdu = header.len() - LENGTH_SIZE + payload.len();
    let mut out = Fpdu::from_elem(0, fpdu_length(ulpdu));
    out[..header.len()].copy_from_slice(header);
    out[header.len()..][..payload.len()].copy_from_slice(payload);
    if crc {
        let (bytes, place) = out.split_at_mut(fpdu_length(ulpdu) - CRC_SIZE);
        let mut checksum = Crc::new();
        checksum.update(bytes);
        place.copy_from_slice(&crc_to_wire(checksum.finish()));
    }
    out
}

#[cfg(test)]
mod tests;
