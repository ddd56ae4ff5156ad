//! Read limits: their negotiation, when they can be read, and their rejection.
//!
//! Runs on: soft, sim, rxe, siw

use common::cm::*;
use common::deviation::*;
use common::device::is_emulated;
use common::*;
use proptest::prelude::*;
use tokio_rdma::error::StateError;
use tokio_rdma::{AcceptParams, Access, Adapter, ConnectParams, QueuePairConfig, ReadLimits, Status};

/// The limits that were seen on the way to a connection.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    request: ReadLimits,
    reply: ReadLimits,
    active: ReadLimits,
    passive: ReadLimits,
}

/// Connects with these limits.
async fn negotiate(adapter: &Adapter, connect: ReadLimits, accept: ReadLimits) -> Seen {
    let (listener, address) = listening_at(adapter, v4());
    let config = QueuePairConfig::default().receive_depth(1).send_depth(1);
    let [active, passive] = [(), ()].map(|()| adapter.queue_pair(config.clone()).expect("a queue pair"));
    let connector = adapter.connector();
    let active_side = async {
        let params = ConnectParams::default().read_limits(connect);
        let reply = connector.connect(&active, address, params).await.expect("accepted");
        let seen = reply.read_limits();
        (seen, reply.complete().await.expect("complete"))
    };
    let passive_side = async {
        let request = listener.request().await.expect("a request");
        let seen = request.read_limits();
        let params = AcceptParams::default().read_limits(accept);
        (seen, request.accept(&passive, params).await.expect("accepted"))
    };
    let ((reply, ours), (request, theirs)) = within(async { tokio::join!(active_side, passive_side) }).await;
    Seen { request, reply, active: ours.read_limits(), passive: theirs.read_limits() }
}

/// Computes the limits by section 5 of the semantics: each direction is the least of what both ends ask and both
/// adapters have. If the adapter announces that an accept cannot lower what is read from it, its inbound limit does not
/// count.
fn expected(adapter: &Adapter, connect: ReadLimits, accept: ReadLimits) -> Seen {
    let cap = adapter.info().max_read_limits;
    let served = if accept_limits_reads(adapter) { accept.inbound } else { u32::MAX };
    let least = |values: [u32; 4]| values.into_iter().min().expect("four");
    let read_by_active = least([connect.outbound, cap.outbound, served, cap.inbound]);
    let read_by_passive = least([connect.inbound, cap.inbound, accept.outbound, cap.outbound]);
    let active = ReadLimits::new(read_by_passive, read_by_active);
    let request = ReadLimits::new(
        connect.outbound.min(cap.outbound).min(cap.inbound),
        connect.inbound.min(cap.inbound).min(cap.outbound),
    );
    Seen { request, reply: active, active, passive: active.swapped() }
}

#[tokio::test]
async fn every_combination_around_the_limits() {
    let adapter = adapter();
    let cap = adapter.info().max_read_limits;
    assert_eq!(cap.inbound, cap.outbound, "so that one list of steps fits both directions");
    // NEG-01, and NEG-02: what is beyond the adapter is no error.
    let steps = [0, 1, cap.inbound, cap.inbound + 1, u32::MAX];
    let pairs = || steps.into_iter().flat_map(|a| steps.map(|b| ReadLimits::new(a, b)));
    let all = pairs().flat_map(|connect| pairs().map(move |accept| (connect, accept)));
    // An emulated machine takes every seventh, which meets each step in each place.
    for (connect, accept) in all.step_by(if is_emulated() { 7 } else { 1 }) {
        let seen = negotiate(&adapter, connect, accept).await;
        assert_eq!(seen, expected(&adapter, connect, accept), "{connect:?} meets {accept:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: often(64, 8) as u32, ..ProptestConfig::default() })]

    // Both sides hold the same limits, and neither has more than it asked for (NEG-03).
    #[test]
    fn both_sides_hold_the_same(a in 0..200_u32, b in 0..200_u32, c in 0..200_u32, d in any::<u32>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (connect, accept) = (ReadLimits::new(a, b), ReadLimits::new(c, d));
        let (seen, lowered) = runtime.block_on(async {
            let adapter = adapter();
            (negotiate(&adapter, connect, accept).await, accept_limits_reads(&adapter))
        });
        prop_assert_eq!(seen.active, seen.passive.swapped());
        prop_assert_eq!(seen.reply, seen.active);
        // No side gets more than it asked for, and the acceptor not more than it was offered.
        prop_assert_eq!(seen.active.capped_to(connect), seen.active);
        let asked = if lowered { accept } else { ReadLimits::new(u32::MAX, accept.outbound) };
        prop_assert_eq!(seen.passive.capped_to(asked), seen.passive);
        prop_assert_eq!(seen.passive.capped_to(seen.request), seen.passive);
    }
}

// NEG-04: on the passive side the type says when, only a Request has them.
#[tokio::test]
async fn a_connector_has_limits_between_connect_and_complete() {
    let invalid = Err(StateError::ConnectionInvalid);
    assert_eq!(StateError::ConnectionInvalid.status(), Status::CONNECTION_INVALID);
    let adapter = adapter();
    let connector = adapter.connector();
    assert_eq!(connector.read_limits(), invalid);
    connector.bind((v4(), 0).into()).expect("bound");
    assert_eq!(connector.read_limits(), invalid);
    let asked = requested(&adapter, v4(), ConnectParams::default()).await;
    assert_eq!(asked.connector.read_limits(), invalid, "the peer has not answered");
    let open = half_open(&adapter, v4()).await;
    assert_eq!(open.connector.read_limits(), Ok(open.reply.read_limits()));
    let connection = within(open.reply.complete()).await.expect("complete");
    assert_eq!(open.connector.read_limits(), invalid);
    let theirs = outcome(open.accepting).await.expect("accepted");
    drop(theirs);
    let _ = within(connection.disconnect()).await;
    assert_eq!(open.connector.read_limits(), invalid);
    // A refused connect leaves none either.
    within(asked.request.reject(b"")).await.expect("rejected");
    outcome(asked.connecting).await.expect_err("rejected");
    assert_eq!(asked.connector.read_limits(), invalid);
}

// NEG-06: more reads than may be in flight are posted at once; they wait for their turn, and each brings its own bytes. What
// is on the wire at a time shows in `wire::foreign_peers`.
#[tokio::test]
async fn sixty_four_reads_succeed_with_limit_of_one() {
    const READS: usize = 64;
    const LENGTH: usize = 4096;
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let one = ReadLimits::new(1, 1);
    let connect = ConnectParams::default().read_limits(one);
    let pair = connected_with(&adapter, connect, AcceptParams::default().read_limits(one)).await;
    // ERR-06: where an accept cannot lower what is read from it, the offer stands, which is the same here.
    assert_eq!((pair.active.connection.read_limits(), pair.passive.connection.read_limits()), (one, one));
    let source = adapter.register(READS * LENGTH, Access::REMOTE_READ).await.expect("registered");
    for number in 0..READS {
        source.write(number * LENGTH, &[number as u8 + 1; LENGTH]).expect("in bounds");
    }
    speak_first((&adapter, &pair.active.queue_pair), (&adapter, &pair.passive.queue_pair)).await;
    for end in [&pair.active, &pair.passive] {
        let read = |number: usize| {
            let part = source.remote_part(number * LENGTH..(number + 1) * LENGTH).expect("in bounds");
            end.queue_pair.read(adapter.buffer(LENGTH).expect("memory"), &part).expect("posted")
        };
        let reads: Vec<_> = (0..READS).map(read).collect();
        for (number, read) in reads.into_iter().enumerate() {
            let (outcome, buffer) = within(read).await;
            assert_eq!(outcome.expect("read").bytes, LENGTH);
            assert!(buffer.iter().all(|byte| *byte == number as u8 + 1), "read {number}");
        }
    }
}

// NEG-05: the passive side wants to read and is not offered any.
#[tokio::test]
async fn passive_side_can_reject_offered_read_limits() {
    let adapter = adapter();
    let params = ConnectParams::default().read_limits(ReadLimits::new(0, 8));
    let asked = requested(&adapter, v4(), params).await;
    assert_eq!(asked.request.read_limits(), ReadLimits::new(8, 0));
    within(asked.request.reject(b"let me read")).await.expect("rejected");
    let error = outcome(asked.connecting).await.expect_err("rejected");
    assert_eq!(error.status(), Status::CONNECTION_REFUSED);
    assert_bytes(&adapter, error.private_data(), b"let me read");
    assert_usable(&adapter, &asked.active).await;
}

// NEG-05: the active side asked for reads and got none.
#[tokio::test]
async fn active_side_can_reject_accepted_read_limits() {
    let adapter = adapter();
    let accept = AcceptParams::default().read_limits(ReadLimits::NONE);
    let open = half_open_with(&adapter, v4(), ConnectParams::default(), accept).await;
    let served = if accept_limits_reads(&adapter) { 0 } else { ReadLimits::default().outbound };
    assert_eq!(open.reply.read_limits(), ReadLimits::new(0, served));
    within(open.reply.reject(b"")).await.expect("rejected");
    assert_refused(&adapter, outcome(open.accepting)).await;
    assert_usable(&adapter, &open.active).await;
    assert_unused(&adapter, &open.passive).await;
}
