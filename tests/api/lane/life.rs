//! The end of connections and of lanes, several queue pairs, shared receives.

use std::collections::HashMap;

use common::raw::bytes;
use common::*;
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::qp::{Done, Lane, LaneConfig, LaneState, QueuePairId, Slot};
use tokio_rdma::types::OpKind;
use tokio_rdma::{ConnectParams, DisconnectReason, Status};

use super::{Joined, completions, connect, fill, join, lane, next, variants};

/// Polls until a queue pair is gone, and returns the completions.
async fn drained(lane: &mut Lane, id: QueuePairId) -> Vec<Done> {
    let (mut all, mut room) = (Vec::new(), [Done::EMPTY; 3]);
    while lane.state(id) != LaneState::Gone {
        let mut turns = 0;
        all.extend_from_slice(lane.poll(&mut room).expect("the lane lives"));
        while lane.state(id) != LaneState::Gone && turns < 10 {
            turns += 1;
            tokio::task::yield_now().await;
        }
    }
    loop {
        let more = lane.poll(&mut room).expect("the lane lives");
        if more.is_empty() {
            return all;
        }
        all.extend_from_slice(more);
    }
}

// LN-14: when the peer disconnects, what is outstanding completes CANCELED, each once, and the slots come back.
#[tokio::test]
async fn the_end_gives_the_slots_back() {
    for (adapter, variant) in variants() {
        let Joined { mut lane, id, connection, peer, other } =
            join(&adapter, LaneConfig::new(8, 64), 5).await;
        within(other.disconnect()).await.expect("disconnected");
        assert_eq!(within(connection.disconnected()).await, DisconnectReason::Peer, "{variant}");
        let done = completions(&mut lane, 5).await;
        for (number, done) in done.iter().enumerate() {
            assert_eq!((done.kind(), done.status()), (OpKind::Receive, Status::CANCELED), "{variant}");
            assert_eq!(done.slot().number() as usize, number, "{variant}: in order");
            lane.give(done.slot());
        }
        within(async { drained(&mut lane, id).await }).await;
        assert_eq!(std::iter::from_fn(|| lane.take()).count(), 8, "{variant}");
        let slot = Slot::clone(&done[0].slot());
        assert_eq!(lane.send(id, slot, 1), Err(PostErrorKind::ConnectionInvalid), "{variant}");
        assert_eq!(lane.receive(id, slot), Err(PostErrorKind::ConnectionInvalid), "{variant}");
        drop((connection, peer));
    }
}

// LN-15: closing a queue pair ends its connection, and its place can be used again under another id.
#[tokio::test]
async fn places_are_used_again() {
    for (adapter, variant) in variants() {
        let mut lane = lane(&adapter, LaneConfig::new(4, 64));
        let mut before = None;
        for round in 0..3 {
            let (id, end) = lane.queue_pair().expect("a queue pair");
            assert_ne!(Some(id), before, "{variant}");
            assert_eq!(id.place(), 0);
            let slots: Vec<Slot> = (0..2).map(|_| lane.take().expect("a slot")).collect();
            lane.receive_all(id, slots).expect("posted");
            let (_connection, peer, other) = connect(&adapter, &end).await;
            within(peer.send(bytes(&adapter, b"hello")).expect("posted")).await.0.expect("sent");
            let done = next(&mut lane).await;
            assert_eq!(&lane.bytes(done.slot())[..done.bytes()], b"hello", "{variant}, round {round}");
            lane.give(done.slot());
            lane.close(id);
            within(other.disconnected()).await;
            let rest = within(async { drained(&mut lane, id).await }).await;
            assert_eq!(rest.len(), 1, "{variant}");
            assert_eq!(rest[0].status(), Status::CANCELED);
            lane.give(rest[0].slot());
            before = Some(id);
        }
    }
}

// LN-16: an attempt to connect that fails ends the queue pair, and its receives come back.
#[tokio::test]
async fn a_failed_attempt_ends_the_queue_pair() {
    for (adapter, variant) in variants() {
        let mut lane = lane(&adapter, LaneConfig::new(4, 64));
        let (id, end) = lane.queue_pair().expect("a queue pair");
        let slot = lane.take().expect("a slot");
        lane.receive(id, slot).expect("posted");
        let (listener, address) = listening(&adapter);
        let connector = adapter.connector();
        let refused = async { listener.request().await.expect("a request").reject(b"no").await };
        let connecting = connector.connect(&end, address, ConnectParams::default());
        let (connected, refused) = within(async { tokio::join!(connecting, refused) }).await;
        refused.expect("refused");
        connected.map(drop).expect_err("refused");
        lane.close(id);
        let done = within(async { drained(&mut lane, id).await }).await;
        assert_eq!(done.len(), 1, "{variant}");
        assert_eq!((done[0].slot(), done[0].status()), (slot, Status::CANCELED), "{variant}");
    }
}

// LN-17: dropping a lane ends its connections.
#[tokio::test]
async fn dropping_a_lane_disconnects() {
    for (adapter, variant) in variants() {
        let Joined { lane, id: _, connection, peer, other } = join(&adapter, LaneConfig::new(4, 64), 2).await;
        drop(lane);
        let reason = within(other.disconnected()).await;
        assert!(!matches!(reason, DisconnectReason::Local), "{variant}: {reason:?}");
        within(connection.disconnected()).await;
        drop(peer);
    }
}

// LN-18: the queue pairs of a lane may share receives; each completion names the one that the message came by.
#[tokio::test]
async fn shared_receives_serve_several_peers() {
    const PEERS: usize = 3;
    for (adapter, variant) in variants() {
        let config = LaneConfig::new(16, 64).queue_pairs(PEERS).shared_receives(true).receive_depth(8);
        let mut lane = lane(&adapter, config);
        let mut peers = HashMap::new();
        for number in 0..PEERS as u8 {
            let (id, end) = lane.queue_pair().expect("a queue pair");
            if number == 0 {
                let slots: Vec<Slot> = (0..6).map(|_| lane.take().expect("a slot")).collect();
                assert_eq!(lane.receive_all(id, slots).expect("posted"), 6, "{variant}");
            }
            peers.insert(id, (number, connect(&adapter, &end).await));
        }
        for round in 0..4_u8 {
            for (number, (_, peer, _)) in peers.values() {
                let message = bytes(&adapter, &[*number, round]);
                within(peer.send(message).expect("posted")).await.0.expect("sent");
            }
            for done in completions(&mut lane, PEERS).await {
                let (number, (_, peer, _)) = &peers[&done.queue_pair()];
                done.ok().expect("received");
                assert_eq!(lane.bytes(done.slot())[..done.bytes()], [*number, round], "{variant}");
                let received = peer.receive(adapter.buffer(64).expect("a buffer")).expect("posted");
                let answer = fill(&mut lane, &[*number + 100]);
                lane.send(done.queue_pair(), answer, 1).expect("posted");
                lane.receive(done.queue_pair(), done.slot()).expect("posted again");
                lane.ring();
                let (outcome, buffer) = within(received).await;
                outcome.expect("answered");
                assert_eq!(buffer[0], number + 100, "{variant}");
            }
            for done in completions(&mut lane, PEERS).await {
                assert_eq!(done.kind(), OpKind::Send, "{variant}");
                lane.give(done.slot());
            }
        }
        // One that leaves takes no receive of the others with it.
        let (&id, _) = peers.iter().next().expect("a peer");
        let (_, (_connection, _peer, other)) = peers.remove(&id).expect("it is there");
        within(other.disconnect()).await.expect("disconnected");
        within(async { drained(&mut lane, id).await }).await;
        let (number, (_, peer, _)) = peers.values().next().expect("another one");
        within(peer.send(bytes(&adapter, &[*number])).expect("posted")).await.0.expect("sent");
        let done = next(&mut lane).await;
        assert_eq!((lane.bytes(done.slot())[0], done.status()), (*number, Status::SUCCESS), "{variant}");
    }
}

// LN-19: a message that is too long for its slot fails the receive, and ends the connection.
#[tokio::test]
async fn long_messages_end_the_connection() {
    for (adapter, variant) in variants() {
        let mut joined = join(&adapter, LaneConfig::new(4, 64), 1).await;
        let sent = joined.peer.send(bytes(&adapter, &[1; 65])).expect("posted");
        let done = next(&mut joined.lane).await;
        assert_eq!((done.kind(), done.status()), (OpKind::Receive, Status::BUFFER_OVERFLOW), "{variant}");
        let reason = within(joined.connection.disconnected()).await;
        assert!(matches!(reason, DisconnectReason::Lost { .. }), "{variant}: {reason:?}");
        let _ = within(sent).await;
    }
}

// LN-20: a wait for completions that is given up loses none.
#[tokio::test]
async fn waits_can_be_given_up() {
    for (adapter, variant) in variants() {
        let mut joined = join(&adapter, LaneConfig::new(4, 64), 2).await;
        let mut room = [Done::EMPTY; 4];
        for number in 0..2_u8 {
            {
                let mut waiting = std::pin::pin!(joined.lane.ready(&mut room));
                let polled = futures::poll!(waiting.as_mut());
                assert!(polled.is_pending(), "{variant}");
            }
            within(joined.peer.send(bytes(&adapter, &[number])).expect("posted")).await.0.expect("sent");
            let done = next(&mut joined.lane).await;
            assert_eq!(joined.lane.bytes(done.slot())[0], number, "{variant}");
        }
    }
}
