//! A card that speaks iWARP, where it differs from `siw`. The modules that run on `siw` show what both have in common.
//!
//! Runs on: fake-iwarp

use std::io::ErrorKind;

use common::cm::{abandon, outcome, requested};
use common::life::eventually;
use common::process::alone;
use common::raw::{bytes, room, success};
use common::verbs::{fake, is_iwarp_card, refused};
use common::*;
use tokio_rdma::error::{PostErrorKind, Reason};
use tokio_rdma::status::porting::CmEvent;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{
    AcceptParams, Access, Adapter, ConnectParams, DisconnectReason, QueuePairConfig, ReadLimits,
    RemoteRegion, SharedReceiveConfig, Status,
};

/// The number of the vendor of `siw`.
const SIW: u32 = 0x62_6d74;

/// Returns the limits that the active side has of a connection for which it asks for 3 inbound and 5 outbound reads.
async fn agreed(adapter: &Adapter) -> ReadLimits {
    let (listener, address) = listening(adapter);
    let (active, passive) = (queue_pair(adapter), queue_pair(adapter));
    let params = ConnectParams::default().read_limits(ReadLimits::new(3, 5));
    let connector = adapter.connector();
    let connect =
        async { connector.connect(&active, address, params).await.expect("accepted").read_limits() };
    let accept = async { listener.accept_next(&passive, AcceptParams::default()).await.expect("accepted") };
    within(async { tokio::join!(connect, accept) }).await.0
}

// A card reports the limits as its own side sees them, and only `siw` as the peer does (HW-09).
#[tokio::test]
async fn read_limits_are_reported_from_own_side() {
    if !alone(module_path!(), "read_limits_are_reported_from_own_side") || !is_iwarp_card() {
        return;
    }
    assert_eq!(agreed(&adapter()).await, ReadLimits::new(3, 5));
}

// With the vendor of `siw` the reported limits count as those of the peer, and read sinks need no right (HW-09).
#[tokio::test]
async fn quirks_of_siw_are_for_its_vendor() {
    if !alone(module_path!(), "quirks_of_siw_are_for_its_vendor") || !is_iwarp_card() {
        return;
    }
    fake(&format!("vendor {SIW}"));
    let adapter = adapter();
    // Taken for what the peer sees.
    assert_eq!(agreed(&adapter).await, ReadLimits::new(3, 3));
    assert!(!adapter.info().read_sink_required);
}

#[tokio::test]
async fn open_card_keeps_kind_and_vendor() {
    if !alone(module_path!(), "open_card_keeps_kind_and_vendor") || !is_iwarp_card() {
        return;
    }
    let _adapter = adapter();
    for line in ["dress roce", "vendor 1"] {
        assert_eq!(refused(line).kind(), ErrorKind::ResourceBusy, "{line}");
    }
}

// The disconnect comes before the flush of the queue pair: a card resets the connection of a queue pair that is
// flushed.
#[tokio::test]
async fn an_end_in_order_is_no_loss() {
    if !is_iwarp_card() {
        return;
    }
    let adapter = adapter();
    let pair = connected(&adapter).await;
    within(pair.active.connection.disconnect()).await.expect("in order");
    assert_eq!(within(pair.passive.connection.disconnected()).await, DisconnectReason::Peer);

    let Pair { active, passive } = connected(&adapter).await;
    let receive = passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    drop((active, receive));
    assert_eq!(within(passive.connection.disconnected()).await, DisconnectReason::Peer);
}

// The Write is complete before the peer finds the error, which resets the connection at both sides.
#[tokio::test]
async fn an_error_resets_the_connection() {
    if !is_iwarp_card() {
        return;
    }
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let nowhere = RemoteRegion::new(0, RemoteKey(0xdead_0001), 8);
    success(active.queue_pair.write(bytes(&adapter, b"nowhere!"), &nowhere).expect("posted")).await;
    let reason = Reason::Cm { event: CmEvent::DISCONNECTED, status: -libc::ECONNRESET };
    let reset = DisconnectReason::Lost { status: Status::REMOTE_ERROR, reason };
    assert_eq!(within(active.connection.disconnected()).await, reset);
    let found = within(passive.connection.disconnected()).await;
    assert!(matches!(found, DisconnectReason::Lost { .. }), "{found:?}");
}

// HW-03: the receive of a message that is cut off comes back when its connection ends, and its place is free.
#[tokio::test]
async fn cut_off_shared_receive_is_returned() {
    if !alone(module_path!(), "cut_off_shared_receive_is_returned") || !is_iwarp_card() {
        return;
    }
    // The message is under way at once.
    fake("pace none");
    let adapter = adapter();
    let queue = adapter.shared_receive_queue(SharedReceiveConfig::default().depth(2)).expect("a queue");
    for violates in [false, true] {
        let passive =
            adapter.queue_pair(QueuePairConfig::default().shared_receives(&queue)).expect("a queue pair");
        let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
        let Pair { active, passive } =
            connected_queue_pairs(&adapter, queue_pair(&adapter), passive, connect, accept).await;
        let receive = queue.receive(room(&adapter, 8)).expect("there is room");
        fake("cut 1");
        let sent = active.queue_pair.send(bytes(&adapter, b"half")).expect("posted");
        if violates {
            let nowhere = RemoteRegion::new(0, RemoteKey(0xdead_0001), 8);
            success(passive.queue_pair.write(bytes(&adapter, b"nowhere!"), &nowhere).expect("posted")).await;
        } else {
            within(passive.connection.disconnect()).await.expect("in order");
        }
        let (outcome, buffer) = within(receive).await;
        assert_eq!(outcome.map_err(|error| error.status()), Err(Status::CANCELED), "violates: {violates}");
        assert_eq!((buffer.len(), queue.is_empty()), (8, true), "violates: {violates}");
        drop(sent);
    }
}

// QP-23, CM-21: the read limit of an attempt ends with it. The queue pair makes no reads by it in the next one, where it may post from the
// first message of the peer on, before it has completed the connection.
#[tokio::test]
async fn reads_of_an_attempt_do_not_outlast_it() {
    if !alone(module_path!(), "reads_of_an_attempt_do_not_outlast_it") || !is_iwarp_card() {
        return;
    }
    fake("reset");
    let adapter = adapter();
    let (own, reads) = (queue_pair(&adapter), ReadLimits::new(4, 4));
    // An accept that is dropped while its thread is in the call that follows the one that sets the limit.
    let asked = requested(&adapter, v4(), ConnectParams::default().read_limits(reads)).await;
    fake("hold rdma_accept");
    let (passive, request) = (own.clone(), asked.request);
    let accepting = tokio::spawn(async move {
        let params = AcceptParams::default().read_limits(reads);
        request.accept(&passive, params).await.map_err(|refused| refused.error)
    });
    eventually("the thread is in the call", || fake("held") == Some(1)).await;
    abandon(accepting).await;
    fake("reset");
    drop(outcome(asked.connecting).await);
    // The next attempt, as far as the reply. Its peer sends.
    let (listener, address) = listening(&adapter);
    let (other, connector) = (queue_pair(&adapter), adapter.connector());
    let receive = own.receive(room(&adapter, 8)).expect("posted");
    let params = ConnectParams::default().read_limits(reads);
    let (reply, accepted) = within(async {
        tokio::join!(
            connector.connect(&own, address, params),
            listener.accept_next(&other, AcceptParams::default().read_limits(reads)),
        )
    })
    .await;
    let (reply, _accepted) = (reply.expect("accepted"), accepted.expect("accepted"));
    success(other.send(bytes(&adapter, b"first")).expect("posted")).await;
    assert_eq!(success(receive).await.1[..5], *b"first");
    let there = adapter.register(8, Access::REMOTE_READ).await.expect("registered");
    let sink = adapter.register(8, Access::LOCAL_WRITE | Access::READ_SINK).await.expect("registered");
    let slice = || sink.slice(0..8).expect("in bounds");
    let refused = own.read(slice(), &there.remote()).expect_err("no limit was set yet");
    assert_eq!(refused.kind, PostErrorKind::NoReads);
    let _connection = within(reply.complete()).await.expect("completed");
    success(own.read(slice(), &there.remote()).expect("posted")).await;
}
