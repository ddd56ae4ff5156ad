//! Requests with options: bytes that are copied, several slots, regions, immediate data, silence, atomics.

use common::raw::bytes;
use common::*;
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::qp::{Done, LaneConfig, Local, Slot};
use tokio_rdma::types::OpKind;
use tokio_rdma::{Access, Status, WorkOptions};

use super::{completions, fill, join, next, variants};

// LN-07: bytes of the program are copied by the call, and need no slot.
#[tokio::test]
async fn bytes_of_the_program_are_copied() {
    for (adapter, variant) in variants() {
        let inline = 16.min(adapter.info().max_inline);
        let mut joined = join(&adapter, LaneConfig::new(2, 64).inline(inline), 0).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let received = joined.peer.receive(adapter.buffer(64).expect("a buffer")).expect("posted");
        let message: Vec<u8> = (0..inline as u8).collect();
        lane.send_with(id, Local::Bytes(&message), WorkOptions::default()).expect("posted");
        let (outcome, buffer) = within(received).await;
        assert_eq!(&buffer[..outcome.expect("received").bytes], message, "{variant}");
        let done = next(lane).await;
        assert_eq!((done.kind(), done.status()), (OpKind::Send, Status::SUCCESS), "{variant}");
        assert!(done.slot().number() >= 2, "{variant}: it has no slot of the lane");
        let long = lane.send_with(id, Local::Bytes(&[0; 17]), WorkOptions::default());
        let maximum = inline;
        assert_eq!(long, Err(PostErrorKind::InlineTooLong { length: 17, maximum }), "{variant}");
        assert_eq!(lane.outstanding(), 0);
    }
}

// LN-08: a request may have parts of several slots. Its completion names the first, and the program holds all of them again.
#[tokio::test]
async fn several_slots_make_one_message() {
    for (adapter, variant) in variants() {
        let mut joined = join(&adapter, LaneConfig::new(4, 64), 0).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let received = joined.peer.receive(adapter.buffer(64).expect("a buffer")).expect("posted");
        let (one, other) = (fill(lane, b"one and"), fill(lane, b"  the other"));
        let twice = [(one, 0..3), (one, 3..7)];
        let refused = lane.send_with(id, Local::Slots(&twice), WorkOptions::default());
        assert_eq!(refused, Err(PostErrorKind::NotHeld { slot: one.number() }), "{variant}: twice in one");
        let parts = [(one, 0..7), (other, 1..11)];
        lane.send_with(id, Local::Slots(&parts), WorkOptions::default()).expect("posted");
        for slot in [one, other] {
            assert_eq!(lane.send(id, slot, 1), Err(PostErrorKind::NotHeld { slot: slot.number() }));
        }
        let (outcome, buffer) = within(received).await;
        assert_eq!(&buffer[..outcome.expect("received").bytes], b"one and the other", "{variant}");
        assert_eq!(next(lane).await.slot(), one, "{variant}");
        assert_eq!((&lane.bytes(one)[..3], &lane.bytes(other)[2..5]), (&b"one"[..], &b"the"[..]));
        let most: Vec<(Slot, _)> = vec![(one, 0..1); 5];
        let many = lane.send_with(id, Local::Slots(&most), WorkOptions::default());
        assert!(matches!(many, Err(PostErrorKind::TooManyEntries { entries: 5, .. })), "{variant}: {many:?}");
    }
}

// LN-09: a part of a region can be sent, and filled by a Read. The lane keeps it until then.
#[tokio::test]
async fn regions_are_sent_and_filled() {
    for (adapter, variant) in variants() {
        let mut joined = join(&adapter, LaneConfig::new(2, 64), 0).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let there = adapter.register(64, Access::REMOTE_READ).await.expect("registered");
        there.write(0, b"what is there").expect("in bounds");
        let here = adapter.register(64, Access::LOCAL_WRITE | Access::READ_SINK).await.expect("registered");
        let into = here.slice(8..21).expect("in bounds");
        let from = there.remote_part(0..13).expect("in bounds");
        lane.read_with(id, Local::Region(&into), &from, WorkOptions::default()).expect("posted");
        drop(into);
        let done = next(lane).await;
        assert_eq!((done.kind(), done.status()), (OpKind::Read, Status::SUCCESS), "{variant}");
        let mut found = [0; 13];
        here.read(8, &mut found).expect("in bounds");
        assert_eq!(&found, b"what is there", "{variant}");
        let received = joined.peer.receive(adapter.buffer(64).expect("a buffer")).expect("posted");
        let part = here.slice(8..12).expect("in bounds");
        lane.send_with(id, Local::Region(&part), WorkOptions::default()).expect("posted");
        drop((part, here));
        let (outcome, buffer) = within(received).await;
        assert_eq!(&buffer[..outcome.expect("received").bytes], b"what", "{variant}");
        next(lane).await.ok().expect("sent");
        // One that the peer may not write to is no sink, where a sink has to be that, and none is without the right to write.
        let wrong = lane.read_with(
            id,
            Local::Region(&there.slice(0..13).expect("in bounds")),
            &from,
            WorkOptions::default(),
        );
        assert!(matches!(wrong, Err(PostErrorKind::AccessViolation { .. })), "{variant}: {wrong:?}");
    }
}

// LN-10: a silent request has no completion, and its slot is free when a later one has completed.
#[tokio::test]
async fn silent_requests_free_their_slots() {
    for (adapter, variant) in variants() {
        let mut joined = join(&adapter, LaneConfig::new(8, 64).send_depth(4), 0).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let region = adapter.register(64, Access::REMOTE_WRITE).await.expect("registered");
        let (remote, silent) = (region.remote(), WorkOptions::default().silent());
        // More than the queue holds, one after the other.
        for round in 0..10_u8 {
            for at in 0..3_u32 {
                let slot = fill(lane, &[round + 1; 4]);
                let to = remote.part(at * 4..at * 4 + 4).expect("in bounds");
                lane.write_with(id, Local::Slots(&[(slot, 0..4)]), &to, silent).expect("posted");
            }
            assert_eq!(lane.outstanding(), 0, "{variant}");
            let slot = fill(lane, &[round + 1; 4]);
            lane.write(id, slot, 0..4, &remote.part(12..16).expect("in bounds")).expect("posted");
            let done = next(lane).await;
            assert_eq!((done.slot(), done.kind(), done.status()), (slot, OpKind::Write, Status::SUCCESS));
            lane.give(slot);
            let mut free: Vec<Slot> = std::iter::from_fn(|| lane.take()).collect();
            assert_eq!(free.len(), 8, "{variant}: all are free again in round {round}");
            free.drain(..).for_each(|slot| lane.give(slot));
        }
        // A message that arrives after them shows that they have.
        let received = joined.peer.receive(adapter.buffer(1).expect("a buffer")).expect("posted");
        let slot = fill(lane, b"x");
        lane.send_now(id, slot, 1).expect("posted");
        within(received).await.0.expect("received");
        let mut found = [0; 16];
        region.read(0, &mut found).expect("in bounds");
        assert_eq!(found, [10; 16], "{variant}");
    }
}

// LN-10: a silent request that fails has a completion, as any other.
#[tokio::test]
async fn silent_requests_report_failures() {
    for (adapter, variant) in variants() {
        let mut joined = join(&adapter, LaneConfig::new(4, 64), 0).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let region = adapter.register(64, Access::REMOTE_READ).await.expect("registered");
        let (remote, silent) = (region.remote(), WorkOptions::default().silent());
        region.deregister().await.expect("deregistered");
        if adapter.info().read_sink_required {
            continue;
        }
        let (slot, other) = (fill(lane, b"kept"), fill(lane, b"other"));
        let parts = [(slot, 8..16), (other, 8..16)];
        lane.read_with(id, Local::Slots(&parts), &remote, silent).expect("posted");
        assert_eq!(lane.outstanding(), 0, "{variant}: nobody waits for it");
        let done = next(lane).await;
        assert_eq!((done.kind(), done.slot()), (OpKind::Read, slot), "{variant}");
        assert_eq!(done.status(), Status::ACCESS_VIOLATION, "{variant}");
        assert_eq!(lane.outstanding(), 0, "{variant}");
        assert_eq!((&lane.bytes(slot)[..4], &lane.bytes(other)[..5]), (&b"kept"[..], &b"other"[..]));
    }
}

// LN-11: immediate data arrives in the completion of a receive, and that of a Write with its length.
#[tokio::test]
async fn immediate_data_arrives() {
    for (adapter, variant) in variants() {
        let mut joined = join(&adapter, LaneConfig::new(4, 64), 3).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let region = adapter.register(64, Access::REMOTE_WRITE).await.expect("registered");
        let options = WorkOptions::default().immediate(0x0102_0304);
        if adapter.info().immediate {
            let write = joined.peer.write_with(bytes(&adapter, b"twelve bytes"), &region.remote(), options);
            within(write.expect("posted")).await.0.expect("written");
            let done = next(lane).await;
            let told = (done.kind(), done.bytes(), done.written(), done.immediate());
            // Immediate data of iWARP is a message of its own, without the length of the Write.
            let length = if adapter.info().immediate_send { 12 } else { 0 };
            assert_eq!(told, (OpKind::Receive, 0, length, Some(0x0102_0304)), "{variant}");
            lane.give(done.slot());
        }
        let refused = !adapter.info().immediate_send;
        let slot = fill(lane, b"x");
        let sent = lane.send_with(id, Local::Slots(&[(slot, 0..1)]), options);
        if refused {
            assert!(matches!(sent, Err(PostErrorKind::NotSupported(_))), "{variant}: {sent:?}");
            continue;
        }
        sent.expect("posted");
        let received = joined.peer.receive(adapter.buffer(64).expect("a buffer")).expect("posted");
        assert_eq!(within(received).await.0.expect("received").immediate, Some(0x0102_0304), "{variant}");
        next(lane).await.ok().expect("sent");
        let send = joined.peer.send_with(bytes(&adapter, b"five."), options).expect("posted");
        within(send).await.0.expect("sent");
        let done = next(lane).await;
        assert_eq!((done.bytes(), done.written(), done.immediate()), (5, 0, Some(0x0102_0304)), "{variant}");
    }
}

// LN-12: atomics bring what was there into the slot.
#[tokio::test]
async fn atomics_bring_the_original() {
    for (adapter, variant) in variants() {
        let mut joined = join(&adapter, LaneConfig::new(4, 64), 0).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let access = Access::REMOTE_ATOMIC | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = adapter.register(8, access).await.expect("registered");
        region.write(0, &7_u64.to_ne_bytes()).expect("in bounds");
        let (slot, remote) = (lane.take().expect("a slot"), region.remote());
        let added = lane.fetch_add(id, slot, &remote, 5, WorkOptions::default());
        if !adapter.info().atomics || adapter.info().read_sink_required {
            assert!(matches!(added, Err(PostErrorKind::NotSupported(_))), "{variant}: {added:?}");
            continue;
        }
        added.expect("posted");
        let done = next(lane).await;
        assert_eq!((done.kind(), done.status()), (OpKind::FetchAdd, Status::SUCCESS), "{variant}");
        assert_eq!(lane.bytes(slot)[..8], 7_u64.to_ne_bytes(), "{variant}");
        lane.compare_swap(id, slot, &remote, (12, 1), WorkOptions::default()).expect("posted");
        assert_eq!(next(lane).await.kind(), OpKind::CompareSwap, "{variant}");
        assert_eq!(lane.bytes(slot)[..8], 12_u64.to_ne_bytes(), "{variant}");
        let mut now = [0; 8];
        region.read(0, &mut now).expect("in bounds");
        assert_eq!(now, 1_u64.to_ne_bytes(), "{variant}");
    }
}

// LN-13: a message of no bytes has a slot like any other.
#[tokio::test]
async fn empty_messages_arrive() {
    for (adapter, variant) in variants() {
        let mut joined = join(&adapter, LaneConfig::new(4, 64), 1).await;
        let (lane, id) = (&mut joined.lane, joined.id);
        let received = joined.peer.receive(adapter.buffer(64).expect("a buffer")).expect("posted");
        let slot = lane.take().expect("a slot");
        lane.send_now(id, slot, 0).expect("posted");
        assert_eq!(within(received).await.0.expect("received").bytes, 0, "{variant}");
        assert_eq!(next(lane).await.slot(), slot, "{variant}");
        within(joined.peer.send(bytes(&adapter, b"")).expect("posted")).await.0.expect("sent");
        let done: Vec<Done> = completions(lane, 1).await;
        assert_eq!((done[0].bytes(), done[0].status()), (0, Status::SUCCESS), "{variant}");
    }
}
