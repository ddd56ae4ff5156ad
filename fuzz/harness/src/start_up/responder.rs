//! Our end accepts, and the peer sends any bytes for a request.

use common::raw::{
    self, ENHANCED, MARKERS, OFFERS_ANNOUNCEMENTS, PEER_TO_PEER, REJECT, REPLY_KEY, REQUEST_KEY, RTR_READ,
    RTR_SEND, RTR_WRITE, Start, TAKES_ANNOUNCEMENTS,
};
use futures::FutureExt;
use tokio::time::Instant;
use tokio_rdma::{AcceptParams, Adapter, Listener, ReadLimits};

use super::{MOST, bit, crc_flag, deliver, last_words, limits, queue_pair, rtr, said, stream, words};
use crate::input::Input;
use crate::peer::Peer;
use crate::stage::{Stage, idle, within};
use crate::start_frame::{Parsed, parse};

/// The answer of the user of our end.
struct Answer {
    rejects: bool,
    /// Our end asks for CRC.
    crc: bool,
    limits: ReadLimits,
    data: Vec<u8>,
}

pub(super) async fn run(input: &mut Input<'_>) {
    let config = input.byte();
    let (limits, has_key, length) = (limits(input), input.flag(), input.length());
    let data = vec![7; length];
    let mut answer = Answer { rejects: config & 2 != 0, crc: config & 1 != 0, limits, data };
    let (piece, bytes) = stream(input, REQUEST_KEY, has_key);

    let stage = Stage::new(false);
    let adapter = stage.adapter(answer.crc);
    answer.data.truncate(adapter.info().max_reply_data);
    let listener = stage.listener(&adapter);
    let stream = stage.peer.tcp_connect(stage.address()).await.expect("our stack listens");
    let mut peer = Peer::new(stream, piece);
    peer.queue(&bytes);
    deliver(&mut peer).await;
    match parse(REQUEST_KEY, &bytes) {
        Parsed::Whole(start, used) if used == bytes.len() && is_served(&start) => {
            if start.flags & MARKERS != 0 {
                // RFC 5044 section 7.1.1 lets a responder decline.
                assert_eq!(last_words(&mut peer).await, reject(&start, &[]), "markers are declined");
            } else {
                offered(&adapter, &listener, &mut peer, &start, &answer).await;
            }
        }
        parsed => refused(&adapter, &listener, &mut peer, parsed).await,
    }
}

/// Returns whether the revision is known, and the limits that the flag S announces are there.
fn is_served(start: &Start) -> bool {
    start.revision <= 2 && (start.revision < 2 || start.flags & ENHANCED == 0 || start.words.is_some())
}

/// A request that is none, or that more bytes follow: nobody answers it.
async fn refused(adapter: &Adapter, listener: &Listener, peer: &mut Peer, parsed: Parsed) {
    // In pieces it may have been a request at first.
    if let Some(request) = listener.request().now_or_never() {
        let queue_pair = queue_pair(adapter);
        let accepting = request.expect("listening").accept(&queue_pair, AcceptParams::default());
        assert!(within("a bad request is refused", accepting).await.is_err(), "a bad request is accepted");
    }
    let words = last_words(peer).await;
    let declined = match &parsed {
        Parsed::Whole(start, _) if start.flags & MARKERS != 0 => reject(start, &[]),
        _ => Vec::new(),
    };
    assert!(words.is_empty() || words == declined, "an answer to no request");
}

/// The whole reply that says no.
fn reject(request: &Start, data: &[u8]) -> Vec<u8> {
    let words = request.words.map(|_| (0, 0));
    let flags = REJECT | bit(words.is_some(), ENHANCED);
    Start { flags, revision: request.revision, words, data: data.to_vec() }.encode(REPLY_KEY)
}

/// The words of the reply that says yes: the limits, and one of the frames that were offered.
fn accepted_words((ird, ord): (u16, u16), limits: ReadLimits) -> (u16, u16) {
    let (our_ird, our_ord) = words(limits);
    if ird & PEER_TO_PEER == 0 {
        return (our_ird, our_ord);
    }
    let (low, high) = match (ord & RTR_WRITE != 0, ord & RTR_READ != 0, ird & RTR_SEND != 0) {
        (false, true, _) => (0, RTR_READ),
        (false, false, true) => (RTR_SEND, 0),
        _ => (0, RTR_WRITE),
    };
    (our_ird | PEER_TO_PEER | low, our_ord | high)
}

async fn offered(adapter: &Adapter, listener: &Listener, peer: &mut Peer, start: &Start, answer: &Answer) {
    let request = within("a request comes", listener.request()).await.expect("listening");
    let most = adapter.info().max_read_limits;
    let offer = start.words.map_or(ReadLimits::default(), |words| said(words).swapped());
    assert_eq!(&request.private_data()[..], &start.data[..], "the private data of a request");
    assert_eq!(request.read_limits(), offer.capped_to(most), "the limits of a request");
    if answer.rejects {
        within("it is rejected", request.reject(&answer.data)).await.expect("rejected");
        assert_eq!(last_words(peer).await, reject(start, &answer.data), "a reply that says no");
        return;
    }
    let limits = answer.limits.capped_to(most).capped_to(offer).capped_to(ReadLimits::new(MOST, MOST));
    let wants_crc = answer.crc || start.flags & raw::CRC != 0;
    let words = start.words.map(|words| accepted_words(words, limits));
    let announces = start.flags & OFFERS_ANNOUNCEMENTS != 0 && !wants_crc;
    let flags = bit(words.is_some(), ENHANCED) | crc_flag(wants_crc) | bit(announces, TAKES_ANNOUNCEMENTS);
    let reply = Start { flags, revision: start.revision, words, data: answer.data.clone() };

    let queue_pair = queue_pair(adapter);
    let params = AcceptParams::default().read_limits(answer.limits).private_data(answer.data.clone());
    let accepting = tokio::spawn(async move { request.accept(&queue_pair, params).await });
    idle(Instant::now()).await;
    deliver(peer).await;
    assert_eq!(std::mem::take(&mut peer.incoming), reply.encode(REPLY_KEY), "a reply that says yes");
    let first = rtr(words);
    assert!(first.is_none() || !accepting.is_finished(), "the peer completes the connection");
    if let Some(first) = first {
        peer.queue(&raw::fpdu(&first, wants_crc));
        deliver(peer).await;
    }
    let connection = within("it accepts", accepting).await.expect("no panic").expect("accepted");
    assert_eq!(connection.read_limits(), limits, "the limits of a connection");
}
