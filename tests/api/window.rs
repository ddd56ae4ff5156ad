//! Memory windows: access of one peer to a part of a region, under a key that can be invalidated.
//!
//! Runs on: soft, rxe, siw

use common::deviation::*;
use common::device::variants;
use common::raw::{bytes, failure, room, success};
use common::*;
use tokio_rdma::error::{PostErrorKind, RegisterError};
use tokio_rdma::types::OpKind;
use tokio_rdma::{Access, Adapter, MemoryWindow, QueuePair, Region, RemoteRegion, Status, WorkOptions};

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Whether there are windows; an adapter that announces none makes none.
fn has_windows(adapter: &Adapter) -> bool {
    let announced = adapter.info().memory_windows;
    match adapter.memory_window() {
        Ok(window) => assert!(announced && window.remote().is_none(), "not bound yet"),
        Err(error) => assert!(!announced && matches!(error, RegisterError::NotSupported(_)), "{error}"),
    }
    announced
}

async fn region(adapter: &Adapter, length: usize, access: Access) -> Region {
    adapter.register(length, access).await.expect("registered")
}

/// Binds a new window to a part of a region, for the peer of this queue pair.
async fn bound(
    adapter: &Adapter,
    queue_pair: &QueuePair,
    region: &Region,
    part: std::ops::Range<usize>,
    access: Access,
) -> (MemoryWindow, RemoteRegion) {
    let window = adapter.memory_window().expect("a window");
    let slice = region.slice(part).expect("in bounds");
    let bind = queue_pair.bind(&window, &slice, access, WorkOptions::default()).expect("posted");
    // MW-01: the key is known right after the call.
    let remote = window.remote().expect("it has been posted");
    let (outcome, ()) = within(bind).await;
    assert_eq!(outcome.expect("bound").kind, OpKind::Bind);
    assert_eq!(window.remote(), Some(remote), "and stays what it is");
    (window, remote)
}

/// What the peer reads there.
async fn read(adapter: &Adapter, peer: &QueuePair, remote: &RemoteRegion) -> Vec<u8> {
    let length = remote.len() as usize;
    success(peer.read(room(adapter, length), remote).expect("posted")).await.1.to_vec()
}

#[tokio::test]
async fn a_peer_reaches_the_part_that_is_bound() {
    for (adapter, variant) in variants() {
        if !has_windows(&adapter) {
            return;
        }
        let pair = connected(&adapter).await;
        let (owner, peer) = (&pair.active.queue_pair, &pair.passive.queue_pair);
        for size in [64, 4096, 64 << 20] {
            let region = region(&adapter, size, ALL).await;
            let part = size / 4..size / 2;
            let (window, remote) = bound(&adapter, owner, &region, part.clone(), ALL).await;
            // MW-01
            assert_eq!(remote.len() as usize, part.len(), "{variant}");
            assert_ne!(remote.key(), region.key(), "{variant}: a key of its own");
            let end = remote.len();
            let there = remote.part(end - 16..end).expect("in bounds");
            success(peer.write(bytes(&adapter, &[7; 16]), &there).expect("posted")).await;
            assert_eq!(read(&adapter, peer, &there).await, [7; 16], "{variant}");
            let mut found = [1; 32];
            region.read(part.end - 16, &mut found).expect("in bounds");
            assert_eq!((&found[..16], &found[16..]), (&[7; 16][..], &[0; 16][..]), "{variant}");
            let invalidate = owner.invalidate(&window, WorkOptions::default()).expect("posted");
            assert_eq!(within(invalidate).await.0.expect("invalidated").kind, OpKind::Invalidate);
        }
    }
}

/// A peer that may not do this is refused, and its connection ends.
async fn assert_refused_access(
    pair: &Pair,
    adapter: &Adapter,
    remote: &RemoteRegion,
    write: bool,
    case: &str,
) {
    let peer = &pair.passive.queue_pair;
    let status = if write {
        // A write that completes early is found out behind it.
        let write = peer.write(bytes(adapter, &[9; 4]), remote).expect("posted");
        match within(write).await.0 {
            Ok(_) => {
                assert!(adapter.info().early_completion, "{case}");
                None
            }
            Err(error) => Some(error.status()),
        }
    } else {
        Some(failure(peer.read(room(adapter, 4), remote).expect("posted")).await)
    };
    let reason = within(pair.passive.connection.disconnected()).await;
    assert!(matches!(reason, tokio_rdma::DisconnectReason::Lost { .. }), "{case}: {reason:?}");
    if let Some(status) = status.filter(|_| per_request_errors(adapter)) {
        assert_eq!(status, Status::ACCESS_VIOLATION, "{case}");
    }
    within(pair.active.connection.disconnected()).await;
}

#[tokio::test]
async fn a_peer_does_not_get_beyond_what_is_bound_and_granted() {
    for (adapter, variant) in variants() {
        if !has_windows(&adapter) {
            return;
        }
        let region = region(&adapter, 4096, ALL).await;
        // MW-01, MW-02
        for (access, write, range, case) in [
            (Access::REMOTE_READ, true, 0..4, "a write without the right"),
            (Access::REMOTE_WRITE, false, 0..4, "a read without the right"),
            (ALL, true, 62..66, "a write across the end"),
            (ALL, false, 62..66, "a read across the end"),
        ] {
            let pair = connected(&adapter).await;
            let (_window, remote) =
                bound(&adapter, &pair.active.queue_pair, &region, 1024..1088, access).await;
            let there = RemoteRegion::new(remote.address() + range.start, remote.key(), 4);
            if range.end > 64 && !adapter.info().checks_window_bounds {
                // As it announces, it looks at the region alone.
                let peer = &pair.passive.queue_pair;
                if write {
                    success(peer.write(bytes(&adapter, &[0; 4]), &there).expect("posted")).await;
                } else {
                    assert_eq!(read(&adapter, peer, &there).await, [0; 4]);
                }
                continue;
            }
            assert_refused_access(&pair, &adapter, &there, write, &format!("{case}, {variant}")).await;
        }
        let mut found = [0; 4096];
        region.read(0, &mut found).expect("as long");
        assert!(found.iter().all(|byte| *byte == 0), "{variant}");
    }
}

#[tokio::test]
async fn a_window_cannot_give_what_its_region_has_not() {
    let adapter = adapter();
    if !has_windows(&adapter) {
        return;
    }
    let pair = connected(&adapter).await;
    let (window, other) = (adapter.memory_window().expect("a window"), common::adapter());
    let bind = |region: &Region, access| {
        let slice = region.slice(0..8).expect("in bounds");
        pair.active.queue_pair.bind(&window, &slice, access, WorkOptions::default())
    };
    let readable = region(&adapter, 8, Access::REMOTE_READ).await;
    let gone = region(&adapter, 8, ALL).await;
    gone.deregister().await.expect("deregistered");
    let foreign = region(&other, 8, ALL).await;
    // MW-02
    for (region, access, case) in [
        (&readable, Access::REMOTE_WRITE, "writing where nothing is written"),
        (&readable, Access::empty(), "no right at all"),
        (&readable, Access::LOCAL_WRITE, "no remote right"),
        (&gone, Access::REMOTE_READ, "a region that is not registered"),
        (&foreign, Access::REMOTE_READ, "a region of another adapter"),
    ] {
        let error = bind(region, access).map(drop).expect_err(case);
        assert_eq!(error, PostErrorKind::AccessViolation, "{case}");
        assert_eq!(error.status(), Status::ACCESS_VIOLATION, "{case}");
        assert_eq!(window.remote(), None, "{case}");
    }
    // MW-03
    let error = pair.active.queue_pair.invalidate(&window, WorkOptions::default()).map(drop);
    assert_eq!(error, Err(PostErrorKind::AccessViolation), "there is nothing to invalidate");
    // QP-06
    let unconnected = queue_pair(&adapter);
    let slice = readable.slice(0..8).expect("in bounds");
    let error = unconnected.bind(&window, &slice, Access::REMOTE_READ, WorkOptions::default()).map(drop);
    assert_eq!(error, Err(PostErrorKind::ConnectionInvalid));
    assert_eq!(window.remote(), None, "it was not posted");
}

#[tokio::test]
async fn what_is_invalidated_is_out_of_reach() {
    for (adapter, variant) in variants() {
        if !has_windows(&adapter) {
            return;
        }
        for write in [false, true] {
            let pair = connected(&adapter).await;
            let region = region(&adapter, 64, ALL).await;
            let owner = &pair.active.queue_pair;
            let (window, remote) = bound(&adapter, owner, &region, 0..64, ALL).await;
            assert_eq!(read(&adapter, &pair.passive.queue_pair, &remote).await, [0; 64], "{variant}");
            let invalidate = owner.invalidate(&window, WorkOptions::default()).expect("posted");
            // MW-03
            assert_eq!(window.remote(), None, "{variant}: from the call on");
            within(invalidate).await.0.expect("invalidated");
            assert_refused_access(&pair, &adapter, &remote, write, variant).await;
        }
    }
}

#[tokio::test]
async fn a_send_takes_the_window_of_the_peer_back() {
    for (adapter, variant) in variants() {
        let pair = connected(&adapter).await;
        let (owner, peer) = (&pair.active.queue_pair, &pair.passive.queue_pair);
        let receive = owner.receive(room(&adapter, 8)).expect("posted");
        if !adapter.info().invalidates {
            let options = WorkOptions::default().invalidate(tokio_rdma::types::RemoteKey(1));
            let error = peer.send_with(bytes(&adapter, b"kept"), options).expect_err("not supported");
            assert!(matches!(error.kind, PostErrorKind::NotSupported(_)), "{variant}: {error}");
            assert_eq!(&error.buffer[..], b"kept", "{variant}");
            continue;
        }
        let region = region(&adapter, 64, ALL).await;
        let (window, remote) = bound(&adapter, owner, &region, 0..64, ALL).await;
        success(peer.write(bytes(&adapter, &[3; 64]), &remote).expect("posted")).await;
        let options = WorkOptions::default().invalidate(remote.key());
        success(peer.send_with(bytes(&adapter, b"done"), options).expect("posted")).await;
        let (outcome, buffer) = within(receive).await;
        // QP-13, MW-03
        let outcome = outcome.expect("received");
        assert_eq!((outcome.bytes, outcome.invalidated), (4, Some(remote.key())), "{variant}");
        assert_eq!(&buffer[..4], b"done", "{variant}");
        let mut found = [0; 64];
        region.read(0, &mut found).expect("as long");
        assert_eq!(found, [3; 64], "{variant}: what was written before is there");
        drop(window);
        assert_refused_access(&pair, &adapter, &remote, false, variant).await;
    }
}

#[tokio::test]
async fn a_window_is_for_the_peer_of_its_own_queue_pair() {
    for (adapter, variant) in variants() {
        if !has_windows(&adapter) {
            return;
        }
        let (pair, other) = (connected(&adapter).await, connected(&adapter).await);
        let region = region(&adapter, 64, ALL).await;
        let (window, remote) = bound(&adapter, &pair.active.queue_pair, &region, 0..64, ALL).await;
        // MW-04
        for write in [false, true] {
            let stranger = connected(&adapter).await;
            assert_refused_access(&stranger, &adapter, &remote, write, variant).await;
        }
        assert_eq!(read(&adapter, &pair.passive.queue_pair, &remote).await, [0; 64], "{variant}");
        success(pair.passive.queue_pair.write(bytes(&adapter, &[1; 64]), &remote).expect("posted")).await;
        assert_eq!(read(&adapter, &pair.passive.queue_pair, &remote).await, [1; 64], "{variant}");
        let invalidate = pair.active.queue_pair.invalidate(&window, WorkOptions::default());
        within(invalidate.expect("posted")).await.0.expect("invalidated");
        within(other.active.connection.disconnect()).await.expect("it is well");
    }
}

#[tokio::test]
async fn a_region_stays_while_a_window_is_bound_to_it() {
    let adapter = adapter();
    if !has_windows(&adapter) {
        return;
    }
    let pair = connected(&adapter).await;
    let (owner, peer) = (&pair.active.queue_pair, &pair.passive.queue_pair);
    let region = region(&adapter, 64, ALL).await;
    let (window, remote) = bound(&adapter, owner, &region, 0..64, ALL).await;
    // MR-04
    let error = region.deregister().await.expect_err("something is bound to it");
    assert_eq!(error.status(), Status::DEVICE_BUSY);
    assert!(region.is_registered(), "nothing has changed");
    assert_eq!(read(&adapter, peer, &remote).await, [0; 64]);
    assert_eq!(read(&adapter, peer, &region.remote()).await, [0; 64]);
    let invalidate = owner.invalidate(&window, WorkOptions::default()).expect("posted");
    within(invalidate).await.0.expect("invalidated");
    region.deregister().await.expect("nothing is bound to it any more");
    assert!(!region.is_registered());
}
