//! The start-up exchange: both sides against each other, and against what siw was seen to send.

use super::*;
use crate::error::Excerpt;
use crate::wire::ddp::Header;
use crate::wire::mpa::crc32c;
use proptest::prelude::*;

const CAP: u32 = 128;
const LIMITS: [u32; 5] = [0, 1, CAP, CAP + 1, 0x3fff];
const NO_CRC: StartConfig = StartConfig { crc: false, unsaid_limits: ReadLimits::new(5, 6) };
const WITH_CRC: StartConfig = StartConfig { crc: true, ..NO_CRC };

/// Composes a frame from its flag word, as siw's logs write it.
fn raw(key: &[u8; 16], word: u16, private_data: &[u8]) -> Vec<u8> {
    let length = private_data.len() as u16;
    [&key[..], &word.to_be_bytes(), &length.to_be_bytes(), private_data].concat()
}

fn raw_request(word: u16, private_data: &[u8]) -> Vec<u8> {
    raw(b"MPA ID Req Frame", word, private_data)
}

fn raw_reply(word: u16, private_data: &[u8]) -> Vec<u8> {
    raw(b"MPA ID Rep Frame", word, private_data)
}

fn initiator(config: StartConfig) -> Initiator {
    Initiator::new(config, ReadLimits::new(3, 4))
}

fn answered(config: StartConfig, word: u16, private_data: &[u8]) -> Result<Reply, StartError> {
    let mut initiator = initiator(config);
    initiator.receive(&raw_reply(word, private_data)).map(|reply| reply.expect("whole"))
}

fn accepted(config: StartConfig, word: u16, private_data: &[u8]) -> (Negotiated, Vec<u8>) {
    match answered(config, word, private_data) {
        Ok(Reply::Accepted { negotiated, private_data, .. }) => (negotiated, private_data.to_vec()),
        other => panic!("{other:?}"),
    }
}

/// Runs both sides over a perfect link and checks the private data that each receives. Returns the terms that each side
/// holds.
fn exchange(
    active: (StartConfig, ReadLimits),
    passive: (StartConfig, ReadLimits),
) -> (Negotiated, Negotiated) {
    let mut initiator = Initiator::new(active.0, active.1);
    let mut responder = Responder::new(passive.0);
    let offer = responder.receive(&initiator.request(b"request")).unwrap().unwrap();
    assert_eq!(&offer.private_data[..], b"request");
    let (reply, theirs) = responder.accept(passive.1, b"reply");
    match initiator.receive(&reply).unwrap().unwrap() {
        Reply::Accepted { negotiated, private_data, leftover } => {
            assert_eq!((&private_data[..], &leftover[..]), (&b"reply"[..], &b""[..]));
            (negotiated, theirs)
        }
        Reply::Rejected { .. } => panic!("rejected"),
    }
}

#[test]
fn every_pair_of_limits_and_crc() {
    let cap = ReadLimits::new(CAP, CAP);
    let each = || LIMITS.into_iter().flat_map(|a| LIMITS.into_iter().map(move |b| ReadLimits::new(a, b)));
    for (a, p) in each().flat_map(|a| each().map(move |p| (a, p))) {
        for (crc_a, crc_p) in [(false, false), (false, true), (true, false), (true, true)] {
            let active = StartConfig { crc: crc_a, ..NO_CRC };
            let passive = StartConfig { crc: crc_p, ..NO_CRC };
            let (ours, theirs) = exchange((active, a.capped_to(cap)), (passive, p.capped_to(cap)));
            let reads = |issue: u32, serve: u32| issue.min(serve).min(CAP);
            let expected = ReadLimits::new(reads(p.outbound, a.inbound), reads(a.outbound, p.inbound));
            assert_eq!(ours.limits, expected);
            assert_eq!(theirs.limits, expected.swapped());
            assert_eq!((ours.crc, theirs.crc), (crc_a || crc_p, crc_a || crc_p));
            assert_eq!((ours.announces, theirs.announces), (!ours.crc, !theirs.crc));
            assert_eq!((ours.rtr, theirs.rtr), (Rtr::Write, Rtr::Write));
        }
    }
}

#[test]
fn the_highest_limit_is_said_as_a_number() {
    let all = ReadLimits::new(u32::MAX, 0x3fff);
    let (ours, theirs) = exchange((NO_CRC, all), (NO_CRC, all));
    assert_eq!(ours.limits, ReadLimits::new(MAX_LIMIT, MAX_LIMIT));
    assert_eq!(theirs.limits, ours.limits);
}

#[test]
fn request_bytes() {
    let bytes = initiator(NO_CRC).request(b"hello");
    assert_eq!(bytes[..], raw_request(0x1402, &[0x80, 3, 0xc0, 4, b'h', b'e', b'l', b'l', b'o']));
    assert_eq!(initiator(WITH_CRC).request(b"hello")[16..20], [0x50, 2, 0, 9]);
}

/// Reads replies of siw: flags and bits as seen on the wire.
#[test]
fn replies_of_siw() {
    // Peer-to-peer granted with Write, with Read; IRD 4, and no more reads than we offered.
    let (negotiated, private_data) = accepted(NO_CRC, 0x1002, b"\x80\x04\x80\x03siw");
    assert_eq!(private_data, b"siw");
    let limits = ReadLimits::new(3, 4);
    assert_eq!(negotiated, Negotiated { limits, crc: false, announces: false, rtr: Rtr::Write });
    assert_eq!(accepted(NO_CRC, 0x1002, b"\x80\x04\x40\x03").0.rtr, Rtr::Read);
    assert_eq!(accepted(NO_CRC, 0x1002, b"\x80\x04\xc0\x03").0.rtr, Rtr::Write, "both");
    // A siw-private bit that comes back, and RTR bits without A.
    assert_eq!(accepted(NO_CRC, 0x1802, b"\0\x04\0\x03").0.rtr, Rtr::None);
    assert_eq!(accepted(NO_CRC, 0x1002, b"\0\x04\xc0\x03").0.rtr, Rtr::None);
    // Its IRD may be above what we asked for, its ORD below.
    let (negotiated, _) = accepted(NO_CRC, 0x1002, b"\0\x80\0\x01");
    assert_eq!(negotiated.limits, ReadLimits::new(1, 4));
    assert_eq!(accepted(NO_CRC, 0x1002, b"\0\0\0\0").0.limits, ReadLimits::NONE);
    // "Not negotiated".
    assert_eq!(accepted(NO_CRC, 0x1002, b"\x3f\xff\x3f\xff").0.limits, ReadLimits::new(3, 4));
    // CRC: theirs, ours, ours though the reply does not repeat it.
    assert!(accepted(NO_CRC, 0x5002, b"\0\x04\0\x03").0.crc);
    assert!(accepted(WITH_CRC, 0x5002, b"\0\x04\0\x03").0.crc);
    assert!(accepted(WITH_CRC, 0x1002, b"\0\x04\0\x03").0.crc);
}

// siw sends the bits of the request back, so they are no consent.
#[test]
fn only_its_own_bit_takes_the_offer() {
    for (config, word, announces) in [
        (NO_CRC, 0x1402, false),
        (NO_CRC, 0x1202, true),
        (NO_CRC, 0x1602, true),
        (NO_CRC, 0x5202, false),
        (WITH_CRC, 0x1202, false),
    ] {
        let (negotiated, _) = accepted(config, word, b"\0\x04\0\x03");
        assert_eq!(negotiated.announces, announces, "{word:#06x}");
    }
    for (config, word, reply) in [
        (NO_CRC, 0x1402, 0x1202),
        (NO_CRC, 0x1202, 0x1002),
        (NO_CRC, 0x5402, 0x5002),
        (WITH_CRC, 0x1402, 0x5002),
    ] {
        let mut responder = Responder::new(config);
        responder.receive(&raw_request(word, b"\0\x01\0\x01")).unwrap().unwrap();
        let (bytes, negotiated) = responder.accept(ReadLimits::NONE, b"");
        assert_eq!(bytes[..], raw_reply(reply, b"\0\0\0\0"), "{word:#06x}");
        assert_eq!(negotiated.announces, reply == 0x1202, "{word:#06x}");
    }
}

// SEC-15: RFC 6581 section 9.1.
#[test]
fn more_reads_than_were_offered() {
    for (config, word) in [(NO_CRC, 0x1002), (WITH_CRC, 0x1002), (NO_CRC, 0x5002)] {
        let error = answered(config, word, b"\x80\x04\x80\x04").expect_err("3 were offered");
        let terminate = Terminate::INSUFFICIENT_IRD;
        let fpdu = terminate_fpdu(&terminate, word == 0x5002 || config.crc);
        assert_eq!((error.reason, error.bytes), (terminate.reason(true), fpdu));
    }
    // Within the offer.
    assert_eq!(accepted(NO_CRC, 0x1002, b"\x80\x04\x80\x03").0.limits, ReadLimits::new(3, 4));
}

#[test]
fn rejects() {
    for (word, sent, expected) in [
        (0x2001, &b"sorry, no"[..], &b"sorry, no"[..]),
        (0x3002, b"\0\x01\0\x01busy", b"busy"),
        (0x3002, b"", b""),
        (0x2003, b"newer", b"newer"),
        (0xa001, b"", b""),
    ] {
        match answered(NO_CRC, word, sent) {
            Ok(Reply::Rejected { private_data }) => assert_eq!(&private_data[..], expected),
            other => panic!("{word:#06x}: {other:?}"),
        }
    }
    // And our own.
    for crc in [NO_CRC, WITH_CRC] {
        let (mut initiator, mut responder) = (initiator(crc), Responder::new(crc));
        responder.receive(&initiator.request(b"hello")).unwrap().unwrap();
        let reply = responder.reject(b"no");
        assert_eq!(reply[..], raw_reply(0x3002, b"\0\0\0\0no"));
        let expected = Reply::Rejected { private_data: PrivateData::exact(&b"no"[..]) };
        assert_eq!(initiator.receive(&reply), Ok(Some(expected)));
    }
}

#[test]
fn replies_without_limits() {
    for word in [0x0000, 0x0001, 0x1001, 0x0002] {
        let (negotiated, private_data) = accepted(NO_CRC, word, b"\x80\x01\xc0\x01");
        assert_eq!(private_data, b"\x80\x01\xc0\x01", "no parameters in {word:#06x}");
        assert_eq!(negotiated.limits, ReadLimits::new(3, 4), "the offer is below the unsaid limits");
        assert_eq!(negotiated.rtr, Rtr::None);
    }
    let mut greedy = Initiator::new(NO_CRC, ReadLimits::new(90, 90));
    match greedy.receive(&raw_reply(1, b"")) {
        Ok(Some(Reply::Accepted { negotiated, .. })) => {
            assert_eq!(negotiated.limits, NO_CRC.unsaid_limits);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn bad_replies() {
    for (word, private_data, error) in [
        (0x1003, &b"\0\x01\0\x01"[..], DecodeError::Version(3)),
        (0x9002, b"\0\x01\0\x01", DecodeError::Unsupported("markers in the reply")),
    ] {
        assert_eq!(answered(NO_CRC, word, private_data), Err(error.into()), "{word:#06x}");
    }
    let foreign = DecodeError::BadKey(Excerpt::new(b"HTTP"));
    assert_eq!(initiator(NO_CRC).receive(b"HTTP"), Err(foreign.into()));
}

#[test]
fn an_rtr_that_was_not_offered() {
    for bits in [b"\x80\x01\0\x01", b"\xc0\x01\0\x01"] {
        let error = answered(WITH_CRC, 0x5002, bits).unwrap_err();
        let bytes = error.bytes;
        let (header, payload, used) = Header::decode(&bytes).unwrap();
        assert_eq!(header, Header::Untagged(Terminate::HEADER));
        assert_eq!((payload, &bytes[used..used + 4]), (4, &[0x20, 7, 0, 0][..]));
        assert_eq!(bytes[24..], crc_to_wire(crc32c(&bytes[..24])));
    }
}

#[test]
fn requests_of_siw() {
    // The stock driver: no peer-to-peer, no CRC, limits in its own direction.
    let mut responder = Responder::new(NO_CRC);
    let offer = responder.receive(&raw_request(0x1002, b"\0\x01\0\x02hi")).unwrap().unwrap();
    assert_eq!(offer.limits, ReadLimits::new(2, 1));
    assert_eq!(&offer.private_data[..], b"hi");
    let (reply, negotiated) = responder.accept(ReadLimits::new(9, 9), b"yes");
    assert_eq!(reply[..], raw_reply(0x1002, b"\0\x02\0\x01yes"));
    assert_eq!(negotiated.limits, ReadLimits::new(2, 1));

    // Rebuilt with peer-to-peer and CRC.
    let mut responder = Responder::new(NO_CRC);
    responder.receive(&raw_request(0x5002, b"\x80\x01\xc0\x01")).unwrap().unwrap();
    let (reply, negotiated) = responder.accept(ReadLimits::new(9, 9), b"");
    assert_eq!(reply[..], raw_reply(0x5002, b"\x80\x01\x80\x01"));
    assert_eq!((negotiated.rtr, negotiated.crc), (Rtr::Write, true));

    // Bits that only siw knows are neither understood nor sent back.
    let mut responder = Responder::new(NO_CRC);
    responder.receive(&raw_request(0x1802, b"\0\x01\0\x01")).unwrap().unwrap();
    assert_eq!(responder.accept(ReadLimits::NONE, b"").0[..], raw_reply(0x1002, b"\0\0\0\0"));
}

#[test]
fn the_choice_of_rtr() {
    for (bits, expected, answer) in [
        (*b"\x80\x01\xc0\x01", Rtr::Write, *b"\x80\x01\x80\x01"),
        (*b"\x80\x01\x80\x01", Rtr::Write, *b"\x80\x01\x80\x01"),
        (*b"\x80\x01\x40\x01", Rtr::Read, *b"\x80\x01\x40\x01"),
        (*b"\x80\x01\0\x01", Rtr::Write, *b"\x80\x01\x80\x01"),
        (*b"\xc0\x01\x40\x01", Rtr::Read, *b"\x80\x01\x40\x01"),
        (*b"\xc0\x01\0\x01", Rtr::Send, *b"\xc0\x01\0\x01"),
        (*b"\0\x01\xc0\x01", Rtr::None, *b"\0\x01\0\x01"),
    ] {
        let mut responder = Responder::new(NO_CRC);
        responder.receive(&raw_request(0x1002, &bits)).unwrap().unwrap();
        let (reply, negotiated) = responder.accept(ReadLimits::new(1, 1), b"");
        assert_eq!((negotiated.rtr, &reply[20..]), (expected, &answer[..]), "{bits:02x?}");
    }
}

// No end that is not of this crate, and none with checksums, is left without its RTR frame.
#[test]
fn rtr_is_waived_between_ends_of_this_crate() {
    let offer = ReadLimits::new(1, 1);
    for (theirs, ours, flag, expected) in [
        (NO_CRC, NO_CRC, 0, [Rtr::Waived; 2]),
        (WITH_CRC, NO_CRC, 0, [Rtr::Write; 2]),
        (NO_CRC, WITH_CRC, 0, [Rtr::Write; 2]),
        // The bit of the offer is not set, or that of the answer is lost.
        (NO_CRC, NO_CRC, 0x04, [Rtr::Write; 2]),
        (NO_CRC, NO_CRC, 0x02, [Rtr::None, Rtr::Waived]),
    ] {
        let (mut initiator, mut responder) = (Initiator::new(theirs, offer), Responder::new(ours));
        let mut request = initiator.request(b"").to_vec();
        request[16] &= !flag;
        responder.receive(&request).expect("valid").expect("whole");
        responder.waive_rtr();
        let (reply, passive) = responder.accept(offer, b"");
        let mut reply = reply.to_vec();
        reply[16] &= !flag;
        let Some(Reply::Accepted { negotiated: active, .. }) = initiator.receive(&reply).expect("valid")
        else {
            panic!("rejected")
        };
        assert_eq!([active.rtr, passive.rtr], expected, "{theirs:?} {ours:?} {flag}");
    }
}

#[test]
fn requests_without_limits() {
    for (word, answer) in [(0x0000, 0x0000), (0x4001, 0x4001), (0x1001, 0x0001), (0x0002, 0x0002)] {
        let mut responder = Responder::new(NO_CRC);
        let offer = responder.receive(&raw_request(word, b"data")).unwrap().unwrap();
        assert_eq!((&offer.private_data[..], offer.limits), (&b"data"[..], NO_CRC.unsaid_limits));
        assert_eq!(responder.reject(b"no"), raw_reply(answer & 0xff | 0x2000, b"no"));
        let (reply, negotiated) = responder.accept(ReadLimits::new(9, 2), b"yes");
        assert_eq!(reply[..], raw_reply(answer, b"yes"));
        assert_eq!((negotiated.limits, negotiated.rtr), (ReadLimits::new(5, 2), Rtr::None));
    }
}

#[test]
fn bad_requests() {
    let behind = DecodeError::Malformed("bytes behind the MPA request");
    let no_room = DecodeError::Malformed("no room for the read limits in the private data");
    for (bytes, error) in [
        // S and R: a request that rejects.
        (raw_request(0x3002, b""), no_room),
        (raw_request(0xb002, b"abc"), no_room),
        (raw_request(0x0003, b""), DecodeError::Version(3)),
        ([raw_request(0x0001, b""), vec![0]].concat(), behind),
        ([raw_request(0x0001, &[0; 512]), vec![0; 9000]].concat(), behind),
        (raw_request(0x0001, &[0; 513]), DecodeError::PrivateDataTooLong(513)),
        (raw_reply(0x0001, b""), DecodeError::BadKey(Excerpt::new(b"MPA ID Rep Frame"))),
    ] {
        assert_eq!(Responder::new(NO_CRC).receive(&bytes), Err(error.into()));
    }
}

/// Reads frames of a siw with 252 bytes of private data and more: the length field has lost its upper byte.
#[test]
fn lengths_that_siw_got_wrong() {
    for length in 252..=255 {
        let data: Vec<u8> = b"\0\x05\0\x03".iter().copied().chain((0..).take(length)).collect();
        let mut request = raw_request(0x1002, &data);
        let mut reply = raw_reply(0x1002, &data);
        for frame in [&mut request, &mut reply] {
            frame[18..20].copy_from_slice(&[0, (length + 4) as u8]);
        }
        let mut responder = Responder::new(NO_CRC);
        assert_eq!(responder.receive(&request[..request.len() - 1]), Ok(None));
        let offer = responder.receive(&request[request.len() - 1..]).unwrap().unwrap();
        assert_eq!((&offer.private_data[..], offer.limits), (&data[4..], ReadLimits::new(3, 5)));
        let mut initiator = initiator(NO_CRC);
        assert_eq!(initiator.receive(&reply[..reply.len() - 1]), Ok(None));
        match initiator.receive(&[&reply[reply.len() - 1..], b"an FPDU"].concat()) {
            Ok(Some(Reply::Accepted { private_data, leftover, .. })) => {
                assert_eq!((&private_data[..], &leftover[..]), (&data[4..], &b"an FPDU"[..]));
            }
            other => panic!("{other:?}"),
        }
    }
    // If the flag S is not set, or the request is rejected, a short length is a short length.
    assert!(Responder::new(NO_CRC).receive(&raw_request(0x1001, b"")).unwrap().is_some());
    assert!(matches!(initiator(NO_CRC).receive(&raw_reply(0x3002, b"")), Ok(Some(Reply::Rejected { .. }))));
}

#[test]
fn markers_are_rejected_with_a_reply() {
    for (word, private_data, reply) in [
        (0x8001, &b""[..], raw_reply(0x2001, b"")),
        (0xd002, b"\x80\x01\xc0\x01data", raw_reply(0x3002, b"\0\0\0\0")),
    ] {
        let error = Responder::new(WITH_CRC).receive(&raw_request(word, private_data)).unwrap_err();
        assert_eq!(error.error, DecodeError::Unsupported("markers in the request"));
        assert_eq!(error.bytes, reply);
    }
}

#[test]
fn one_byte_at_a_time_and_every_split() {
    let request = raw_request(0x5002, b"\x80\x01\xc0\x01request");
    let reply = [&raw_reply(0x5002, b"\x80\x01\x80\x01reply")[..], b"an FPDU"].concat();
    let whole_offer = Responder::new(NO_CRC).receive(&request);
    let whole_reply = initiator(NO_CRC).receive(&reply);
    let (end, last) = (request.len() - 1, reply.len() - b"an FPDU".len() - 1);

    let (mut responder, mut single) = (Responder::new(NO_CRC), initiator(NO_CRC));
    for byte in &request[..end] {
        assert_eq!(responder.receive(&[*byte]), Ok(None));
    }
    assert_eq!(responder.receive(&request[end..]), whole_offer);
    for byte in &reply[..last] {
        assert_eq!(single.receive(&[*byte]), Ok(None));
    }
    assert_eq!(single.receive(&reply[last..]), whole_reply);

    for cut in 0..=end {
        let mut responder = Responder::new(NO_CRC);
        assert_eq!(responder.receive(&request[..cut]), Ok(None));
        assert_eq!(responder.receive(&request[cut..]), whole_offer);
    }
    for cut in 0..=last {
        let mut initiator = initiator(NO_CRC);
        assert_eq!(initiator.receive(&reply[..cut]), Ok(None));
        assert_eq!(initiator.receive(&reply[cut..]), whole_reply);
    }
}

#[test]
fn rtr_frames() {
    assert!(rtr_frame(Rtr::None, true).is_empty());
    let write = [0, 14, 0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(rtr_frame(Rtr::Write, false)[..], [&write[..], &[0; 4]].concat());
    assert_eq!(rtr_frame(Rtr::Write, true)[..], [&write[..], &crc_to_wire(crc32c(&write))].concat());
    let read = rtr_frame(Rtr::Read, false);
    let header = [0, 46, 0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(read[..], [&header[..], &[0; 32]].concat());
    assert_eq!(rtr_frame(Rtr::Send, false)[..], [0; 8]);
}

fn limits() -> impl Strategy<Value = ReadLimits> {
    let one = prop_oneof![0u32..300, Just(0x3ffe), Just(0x3fff), any::<u32>()];
    (one.clone(), one).prop_map(|(inbound, outbound)| ReadLimits::new(inbound, outbound))
}

proptest! {
    #[test]
    fn both_sides_agree(a in limits(), p in limits(), crc_a: bool, crc_p: bool) {
        let (ours, theirs) =
            exchange((StartConfig { crc: crc_a, ..NO_CRC }, a), (StartConfig { crc: crc_p, ..NO_CRC }, p));
        prop_assert_eq!(ours, Negotiated { limits: theirs.limits.swapped(), ..theirs });
        prop_assert_eq!(ours.limits, ours.limits.capped_to(a));
        prop_assert_eq!(theirs.limits, theirs.limits.capped_to(p));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(
        word: u16, body in proptest::collection::vec(any::<u8>(), 0..560), keyed: bool, cut in 0usize..600,
        says in 0usize..=1,
    ) {
        let mut request = if keyed { raw_request(word, &body) } else { body.clone() };
        let mut reply = if keyed { raw_reply(word, &body) } else { body };
        for frame in [&mut request, &mut reply] {
            if keyed && says == 1 {
                frame[19] = frame[19].wrapping_sub(9);
            }
        }
        let mut responder = Responder::new(WITH_CRC);
        let (head, tail) = request.split_at(cut.min(request.len()));
        for piece in [head, tail] {
            match responder.receive(piece) {
                Ok(None) => continue,
                Ok(Some(_)) => {
                    let _ = responder.reject(b"no");
                    let _ = responder.accept(ReadLimits::default(), b"yes");
                }
                Err(error) => prop_assert_ne!(error.error, DecodeError::Truncated),
            }
            break;
        }

        let mut initiator = initiator(NO_CRC);
        let (head, tail) = reply.split_at(cut.min(reply.len()));
        for piece in [head, tail] {
            match initiator.receive(piece) {
                Ok(None) => continue,
                Ok(Some(_)) => {}
                Err(error) => prop_assert_ne!(error.error, DecodeError::Truncated),
            }
            break;
        }
    }
}
