//! The MPA start-up and every codec: bytes in, no panic, and nothing lost on the way there and back.

use super::input::Input;
use crate::mr::RemoteRegion;
use crate::proto::mpa::{Initiator, Reply, Responder, StartConfig, StartError, rtr_frame};
use crate::types::ReadLimits;
use crate::wire::ddp::{Header, Tagged, Untagged};
use crate::wire::extensions::{AtomicRequest, AtomicResponse, Immediate};
use crate::wire::mpa::{Enhanced, StartFrame, StartKind, fpdu_length};
use crate::wire::rdmap::{Opcode, Phase, ReadRequest, Terminate, parse_offending};

/// The most private data of the user that fits beside the read limits.
const MAX_PRIVATE_DATA: usize = StartFrame::MAX_PRIVATE_DATA - Enhanced::LEN;

/// Feeds the start-up machines and the codecs.
///
/// # Panics
/// When one of them is wrong.
pub fn fuzz_start_up(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.below(4) {
        0 => responder(&mut input),
        1 => initiator(&mut input),
        2 => both(&mut input),
        _ => codecs(input.rest()),
    }
}

fn config(input: &mut Input<'_>) -> StartConfig {
    let byte = input.byte();
    StartConfig {
        crc: byte & 1 != 0,
        unsaid_limits: ReadLimits::new((byte >> 1 & 7).into(), (byte >> 4).into()),
    }
}

fn limits(input: &mut Input<'_>) -> ReadLimits {
    ReadLimits::new(input.half().into(), input.half().into())
}

/// The rest of the input in two: how long the pieces are, and the stream.
fn stream<'a>(input: &mut Input<'a>) -> (usize, &'a [u8]) {
    let piece = usize::from(input.byte()).max(1);
    (piece, input.rest())
}

/// Puts a good beginning before the bytes: a fuzzer should not have to guess the key.
fn keyed(key: &[u8; 16], whole: bool, bytes: &[u8]) -> Vec<u8> {
    if whole { bytes.to_vec() } else { [key, bytes].concat() }
}

fn responder(input: &mut Input<'_>) {
    let (config, limits, raw, data) = (config(input), limits(input), input.flag(), input.length());
    let (piece, bytes) = stream(input);
    let bytes = keyed(b"MPA ID Req Frame", raw, bytes);

    let mut whole = Responder::new(config);
    let at_once = whole.receive(&bytes);
    let mut responder = Responder::new(config);
    let mut in_pieces = Ok(None);
    for piece in bytes.chunks(piece) {
        match responder.receive(piece) {
            // What follows the request is an error, in whichever piece it comes.
            Ok(None) => {}
            other => in_pieces = other,
        }
    }
    // Of two things that are wrong, pieces may show the other one first.
    assert!(at_once == in_pieces || (at_once.is_err() && in_pieces.is_err()), "pieces make a difference");
    let Ok(Some(offer)) = at_once else {
        if let Err(error) = at_once {
            parting(&error, StartKind::Reply);
            assert_eq!(whole.receive(b"more"), Err(error), "an error stays");
        }
        return;
    };
    let data = vec![7; data.min(MAX_PRIVATE_DATA)];
    let (reply, negotiated) = whole.accept(limits, &data);
    let (frame, used) = StartFrame::decode(StartKind::Reply, &reply).expect("a good reply");
    assert_eq!(used, reply.len());
    assert!(!frame.reject && !frame.markers && frame.private_data.ends_with(&data));
    assert_eq!((frame.revision, frame.enhanced, frame.crc), (offer.revision, offer.enhanced, negotiated.crc));
    assert_eq!(negotiated.limits, negotiated.limits.capped_to(limits).capped_to(offer.limits));
    assert!(negotiated.crc >= offer.crc);
    let refusal = whole.reject(&data);
    let (frame, _) = StartFrame::decode(StartKind::Reply, &refusal).expect("a good refusal");
    assert!(frame.reject && frame.private_data.ends_with(&data));
    let mut initiator = Initiator::new(config, limits, b"");
    let heard = initiator.receive(&refusal);
    assert!(matches!(heard, Ok(Some(Reply::Rejected { private_data })) if private_data[..] == data[..]));
}

fn initiator(input: &mut Input<'_>) {
    let (config, limits, raw) = (config(input), limits(input), input.flag());
    let (piece, bytes) = stream(input);
    let bytes = keyed(b"MPA ID Rep Frame", raw, bytes);

    let mut whole = Initiator::new(config, limits, b"");
    let at_once = whole.receive(&bytes);
    let mut initiator = Initiator::new(config, limits, b"");
    let mut in_pieces = Ok(None);
    for piece in bytes.chunks(piece) {
        match initiator.receive(piece) {
            Ok(None) => {}
            other => in_pieces = other,
        }
    }
    assert_eq!(at_once, in_pieces, "pieces make a difference");
    let leftover = whole.leftover();
    assert_eq!(leftover, initiator.leftover());
    assert!(bytes.ends_with(&leftover) && whole.leftover().is_empty());
    match at_once {
        Err(error) => {
            parting(&error, StartKind::Request);
            assert_eq!(whole.receive(b"more"), Err(error), "an error stays");
        }
        Ok(Some(Reply::Accepted { negotiated, .. })) => {
            assert_eq!(negotiated.limits, negotiated.limits.capped_to(limits));
            assert!(negotiated.crc >= config.crc);
            frame(&rtr_frame(negotiated.rtr, negotiated.crc));
        }
        Ok(_) => {}
    }
}

/// Last words are a frame of their own.
fn parting(error: &StartError, from: StartKind) {
    let bytes = error.bytes();
    match from {
        StartKind::Reply if !bytes.is_empty() => {
            let (frame, used) = StartFrame::decode(StartKind::Reply, &bytes).expect("a good reply");
            assert!(frame.reject && used == bytes.len());
        }
        _ => frame(&bytes),
    }
}

/// Nothing, or exactly one FPDU.
fn frame(bytes: &[u8]) {
    let Some(length) = bytes.first_chunk() else { return };
    let length = usize::from(u16::from_be_bytes(*length));
    assert_eq!(bytes.len(), fpdu_length(length));
    if length > 0 {
        let (_, payload, used) = Header::decode(bytes).expect("a good header");
        assert_eq!(used + payload, length + 2);
    }
}

/// Our own two ends, with a wire between them that may change a few bits.
fn both(input: &mut Input<'_>) {
    let (active, passive) = (config(input), config(input));
    let (offer, answer) = (limits(input), limits(input));
    let (request_data, reply_data) = (input.length(), input.length());
    let request_data = vec![1; request_data.min(MAX_PRIVATE_DATA)];
    let reply_data = vec![2; reply_data.min(MAX_PRIVATE_DATA)];

    let mut initiator = Initiator::new(active, offer, &request_data);
    let mut responder = Responder::new(passive);
    let (request, touched) = mutated(&initiator.request(), input);
    let Ok(Some(seen)) = responder.receive(&request) else {
        assert!(touched, "our own request is refused");
        return;
    };
    assert!(touched || seen.private_data[..] == request_data[..]);
    let (reply, theirs) = responder.accept(answer, &reply_data);
    let (reply, touched_too) = mutated(&reply, input);
    let touched = touched || touched_too;
    match initiator.receive(&reply) {
        Ok(Some(Reply::Accepted { negotiated: ours, private_data })) if !touched => {
            assert_eq!(private_data[..], reply_data[..]);
            assert_eq!(ours.limits, theirs.limits.swapped());
            assert_eq!((ours.crc, ours.rtr, ours.revision), (theirs.crc, theirs.rtr, theirs.revision));
            assert_eq!(ours.crc, active.crc || passive.crc);
        }
        other => assert!(touched, "our own reply is not understood: {other:?}"),
    }
}

/// A few bits flipped, or the end cut off or added to.
fn mutated(bytes: &[u8], input: &mut Input<'_>) -> (Vec<u8>, bool) {
    let mut bytes = bytes.to_vec();
    let before = bytes.clone();
    for _ in 0..input.below(6) {
        let place = usize::from(input.half()) % bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(place) {
            *byte ^= input.byte();
        }
    }
    match input.below(4) {
        2 => bytes.truncate(input.half().into()),
        3 => bytes.extend_from_slice(input.bytes(4)),
        _ => {}
    }
    let touched = bytes != before;
    (bytes, touched)
}

/// What can be decoded is encoded as the same again, but for reserved bits.
fn codecs(bytes: &[u8]) {
    for kind in [StartKind::Request, StartKind::Reply] {
        if let Ok((frame, used)) = StartFrame::decode(kind, bytes) {
            let mut again = Vec::new();
            frame.encode(&mut again);
            assert_eq!(StartFrame::decode(kind, &again), Ok((frame, used)));
        }
    }
    if let Ok(enhanced) = Enhanced::decode(bytes) {
        assert_eq!(enhanced.encode(), bytes[..Enhanced::LEN]);
    }
    if let Ok(request) = ReadRequest::decode(bytes) {
        assert_eq!(request.encode(), bytes[..ReadRequest::LEN]);
    }
    if let Ok(request) = AtomicRequest::decode(bytes) {
        // Reserved bits, and operands that the operation has not, are not kept.
        assert_eq!(AtomicRequest::decode(&request.encode()), Ok(request));
    }
    if let Ok(response) = AtomicResponse::decode(bytes) {
        assert_eq!(response.encode(), bytes[..AtomicResponse::LEN]);
    }
    if let Ok(immediate) = Immediate::decode(bytes) {
        assert_eq!(Immediate::decode(&immediate.encode()), Ok(immediate));
    }
    if let Some(region) = RemoteRegion::decode(bytes) {
        assert_eq!(region.to_bytes(), bytes[..RemoteRegion::LEN]);
    }
    match Header::decode(bytes) {
        Ok((header, payload, used)) => {
            let again = match &header {
                Header::Tagged(header) => header.encode(payload).to_vec(),
                Header::Untagged(header) => header.encode(payload).to_vec(),
            };
            assert_eq!(again.len(), used);
            assert_eq!(Header::decode(&again), Ok((header, payload, used)));
            assert!(
                payload
                    <= if header.opcode().is_tagged() { Tagged::MAX_PAYLOAD } else { Untagged::MAX_PAYLOAD }
            );
        }
        Err(error) => {
            let terminate = Terminate::for_header(error).map(|terminate| terminate.with_header(bytes));
            terminate.iter().for_each(round_trip);
        }
    }
    for phase in [Phase::StartUp, Phase::Streaming] {
        if let Ok(terminate) = Terminate::decode(bytes, phase) {
            let _ = terminate.header.as_ref().and_then(parse_offending);
            let _ = terminate.reason(false);
            // A control word without flags may be read in either of two orders, so only what has some comes back.
            if terminate.header.is_some() {
                round_trip(&terminate);
            }
        }
    }
}

fn round_trip(terminate: &Terminate) {
    let mut again = Vec::new();
    terminate.encode(&mut again);
    assert_eq!(again.len(), terminate.payload_len());
    let decoded = Terminate::decode(&again, Phase::Streaming).expect("a whole one");
    if let Some(header) = &terminate.header {
        // The order of the length says whether a Read Request is part of it, which siw also adds to other errors.
        let read = header
            .get(3)
            .is_some_and(|control| Opcode::from_number(control & 15) == Some(Opcode::ReadRequest));
        assert!(read || decoded == *terminate);
    }
}
