//! Our end connects, and the peer sends any bytes for a reply.

use std::time::Duration;

use common::raw::{
    self, CRC, MARKERS, OFFERS_ANNOUNCEMENTS, PEER_TO_PEER, REJECT, REPLY_KEY, REQUEST_KEY, RTR_READ,
    RTR_WRITE, Start,
};
use futures::FutureExt;
use tokio_rdma::error::ConnectError;
use tokio_rdma::{ConnectParams, ReadLimits, Reply};

use super::{NO_LIMIT, bit, crc_flag, deliver, limits, queue_pair, rtr, said, stream, terminate, words};
use crate::input::Input;
use crate::peer::Peer;
use crate::stage::{Stage, within};
use crate::start_frame::{Parsed, parse};

/// The time of the user of our end.
const LIMIT: Duration = Duration::from_secs(5);

/// The request of our end.
struct Attempt {
    /// Its own read limits.
    offer: ReadLimits,
    crc: bool,
}

pub(super) async fn run(input: &mut Input<'_>) {
    let (crc, limits, has_key) = (input.byte() & 1 != 0, limits(input), input.flag());
    let (piece, bytes) = stream(input, REPLY_KEY, has_key);

    let stage = Stage::new(false);
    let adapter = stage.adapter(crc);
    let foreign = stage.peer.tcp_listener(stage.peer_address().port()).expect("listening");
    let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
    let params = ConnectParams::default().read_limits(limits).timeout(LIMIT);
    let mut connecting = Box::pin(connector.connect(&queue_pair, stage.peer_address(), params));
    assert!((&mut connecting).now_or_never().is_none(), "it connects to nobody");
    let mut peer = None;
    let attempt = Attempt { offer: limits.capped_to(adapter.info().max_read_limits), crc };
    let talking = async {
        let (stream, _) = foreign.accept().await.expect("accepted");
        let peer = peer.insert(Peer::new(stream, piece));
        deliver(peer).await;
        let (ird, ord) = words(attempt.offer);
        let request = Start::enhanced(ird | PEER_TO_PEER, ord | RTR_WRITE | RTR_READ).flag(crc_flag(crc));
        let request = request.flag(bit(!crc, OFFERS_ANNOUNCEMENTS));
        assert_eq!(std::mem::take(&mut peer.incoming), request.encode(REQUEST_KEY), "the request");
        peer.queue(&bytes);
        deliver(peer).await;
    };
    let (outcome, ()) = within("it connects or not", futures::future::join(connecting, talking)).await;
    let mut peer = peer.expect("accepted");
    deliver(&mut peer).await;
    judge(&attempt, &mut peer, outcome, &bytes).await;
}

/// Checks that our end treats the reply as it must.
async fn judge(attempt: &Attempt, peer: &mut Peer, outcome: Result<Reply, ConnectError>, bytes: &[u8]) {
    let (start, used) = match parse(REPLY_KEY, bytes) {
        Parsed::Part => {
            let outcome = outcome.map(drop);
            assert!(matches!(outcome, Err(ConnectError::TimedOut { .. })), "half a reply: {outcome:?}");
            return;
        }
        Parsed::Bad => return failed(peer, outcome, &[]),
        Parsed::Whole(start, used) => (start, used),
    };
    let crc = attempt.crc || start.flags & CRC != 0;
    if start.flags & REJECT != 0 {
        return rejected(outcome, &start);
    }
    if start.revision > 2 || start.flags & MARKERS != 0 {
        return failed(peer, outcome, &[]);
    }
    if let Some((ird, ord)) = start.words {
        if ird & PEER_TO_PEER != 0 && ord & (RTR_WRITE | RTR_READ) == 0 {
            return failed(peer, outcome, &terminate(7, crc));
        }
        let announced = ord & NO_LIMIT;
        if announced != NO_LIMIT && u32::from(announced) > attempt.offer.inbound {
            return failed(peer, outcome, &terminate(6, crc));
        }
    }
    let reply = outcome.unwrap_or_else(|error| panic!("a good reply is refused: {error}"));
    let answer = start.words.map_or(attempt.offer, |words| said(words).swapped());
    let agreed = attempt.offer.capped_to(answer);
    assert_eq!(reply.read_limits(), agreed, "the limits of a reply");
    assert_eq!(&reply.private_data()[..], &start.data[..], "the private data of a reply");
    let completed = within("it completes", reply.complete()).await;
    deliver(peer).await;
    if used == bytes.len() {
        let connection = completed.expect("completed");
        assert_eq!(connection.read_limits(), agreed, "the limits of a connection");
        let first = rtr(start.words).map_or(Vec::new(), |first| raw::fpdu(&first, crc));
        assert_eq!(peer.incoming, first, "the first frame");
    }
}

/// A reply that nobody can live with, and what our end says to it.
fn failed(peer: &Peer, outcome: Result<Reply, ConnectError>, words: &[u8]) {
    assert!(outcome.is_err(), "a bad reply is accepted");
    assert!(peer.ended, "the stream of an attempt that has failed ends");
    assert_eq!(peer.incoming, words, "the last words");
}

fn rejected(outcome: Result<Reply, ConnectError>, start: &Start) {
    match outcome {
        Err(ConnectError::Rejected { private_data, .. }) => {
            let data = private_data.as_ref().map_or(&[][..], |data| data);
            assert_eq!(data, &start.data[..], "the private data of a reject");
        }
        Err(ConnectError::Refused { .. }) if start.data.is_empty() => {}
        other => panic!("a reject: {:?}", other.map(drop)),
    }
}
