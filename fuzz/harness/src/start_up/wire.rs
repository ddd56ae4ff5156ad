//! Our own two ends, with a wire between them that may change a few bits of the frames.

use common::raw::{REPLY_KEY, REQUEST_KEY};
use futures::FutureExt;
use futures::future::join;
use tokio_rdma::{AcceptParams, ConnectParams};

use super::{deliver, limits, queue_pair};
use crate::input::Input;
use crate::peer::Peer;
use crate::stage::{Stage, within};
use crate::start_frame::{Parsed, parse};

/// The rounds after which each end has what the other one has sent.
const ROUNDS: usize = 3;

pub(super) async fn run(input: &mut Input<'_>) {
    let (active_crc, passive_crc) = (input.byte() & 1 != 0, input.byte() & 1 != 0);
    let (offer, answer) = (limits(input), limits(input));
    let (mut asked, mut answered) = (vec![1; input.length()], vec![2; input.length()]);

    let stage = Stage::new(false);
    let (active, passive) = (stage.adapter(active_crc), stage.adapter(passive_crc));
    asked.truncate(active.info().max_request_data);
    answered.truncate(passive.info().max_reply_data);
    let listener = stage.listener(&passive);
    let foreign = stage.peer.tcp_listener(stage.peer_address().port()).expect("listening");
    let (ours, theirs) = (queue_pair(&active), queue_pair(&passive));
    let params = ConnectParams::default().read_limits(offer).private_data(asked.clone());
    let connecting =
        tokio::spawn(active.connector().connect_and_complete(&ours, stage.peer_address(), params));
    let (up, _) = within("it connects", foreign.accept()).await.expect("accepted");
    let down = stage.peer.tcp_connect(stage.address()).await.expect("our stack listens");
    let (mut up, mut down) = (Peer::new(up, 0), Peer::new(down, 0));

    let (request, touched) = mutated(&frame(&mut up, REQUEST_KEY).await, input);
    down.queue(&request);
    deliver(&mut down).await;
    let Some(request) = listener.request().now_or_never() else {
        assert!(touched, "our own request is refused");
        up.close(false);
        let outcome = within("a connect without a reply ends", connecting).await.expect("no panic");
        assert!(outcome.is_err(), "a connect without a reply");
        return;
    };
    let request = request.expect("listening");
    assert!(touched || request.private_data()[..] == asked[..], "the private data of our own request");
    let params = AcceptParams::default().read_limits(answer).private_data(answered.clone());
    let accepting = tokio::spawn(async move { request.accept(&theirs, params).await });
    let (reply, changed) = mutated(&frame(&mut down, REPLY_KEY).await, input);
    let touched = touched || changed;
    up.queue(&reply);
    for _ in 0..ROUNDS {
        deliver(&mut up).await;
        deliver(&mut down).await;
        down.queue(&std::mem::take(&mut up.incoming));
        up.queue(&std::mem::take(&mut down.incoming));
    }
    if touched {
        // Neither end waits for ever once its stream has ended.
        up.close(false);
        down.close(false);
    }
    let (connected, accepted) = within("both have come to an end", join(connecting, accepting)).await;
    let (connected, accepted) = (connected.expect("no panic"), accepted.expect("no panic"));
    if touched {
        return;
    }
    let (connected, accepted) = (connected.expect("connected"), accepted.expect("accepted"));
    assert_eq!(connected.private_data()[..], answered[..], "the private data of our own reply");
    assert_eq!(connected.read_limits(), accepted.read_limits().swapped(), "the limits of both ends");
}

/// The start-up frame of one of our ends.
async fn frame(peer: &mut Peer, key: &[u8; 16]) -> Vec<u8> {
    deliver(peer).await;
    match parse(key, &peer.incoming) {
        Parsed::Whole(_, used) if used == peer.incoming.len() => std::mem::take(&mut peer.incoming),
        other => panic!("a start-up frame, and no more than that: {other:?}"),
    }
}

/// A few bits flipped, or the end cut off or added to. Whether anything has changed.
fn mutated(bytes: &[u8], input: &mut Input<'_>) -> (Vec<u8>, bool) {
    let mut changed = bytes.to_vec();
    for _ in 0..input.below(6) {
        let place = usize::from(input.half()) % bytes.len();
        changed[place] ^= input.byte();
    }
    match input.below(4) {
        2 => changed.truncate(input.half().into()),
        3 => changed.extend_from_slice(input.bytes(4)),
        _ => {}
    }
    let touched = changed != bytes;
    (changed, touched)
}
