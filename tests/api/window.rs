//! Memory windows: access of one peer to a part of a region, under a key that can be invalidated.
//!
//! Runs on: soft, sim, rxe, siw
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::collections::BTreeSet;
use std::sync::Arc;

use common::deviation::*;
use common::device::variants;
use common::raw::{bytes, failure, room, success};
use common::*;
use tokio_rdma::error::{PostErrorKind, RegisterError};
use tokio_rdma::types::OpKind;
use tokio_rdma::{Access, Adapter, MemoryWindow, QueuePair, Region, RemoteRegion, Status, WorkOptions};

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Returns whether there are windows. Asserts that an adapter without them makes none.
fn has_windows(adapter: &Adapter) -> bool {
    let announced = adapter.info().memory_windows;
    match adapter.memory_window() {
        Ok(window) => assert!(announced && window.remote().is_none(), "not bound yet"),
        Err(error) => {
            assert!(!announced && matches!(error, RegisterError::NotSupported(_)), "{error}");
            eprintln!("skipped: the adapter has no memory windows, and has said so");
        }
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

/// Returns the bytes that the peer reads there.
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
        for size in [64, 4096, 1 << 20] {
            let region = region(&adapter, size, ALL).await;
            let part = size / 4..size / 2;
            let (window, remote) = bound(&adapter, owner, &region, part.clone(), ALL).await;
            // The window has a key of its own, and its last byte is the last byte of the part (MW-01).
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

/// Returns content in which a piece in a wrong place is found: its pages are numbered, and the words of each page.
fn numbered(length: usize) -> Vec<u8> {
    let mut page: Vec<u8> = (0..1024_u32).flat_map(u32::to_be_bytes).collect();
    let mut content = Vec::with_capacity(length);
    for number in 0..length.div_ceil(page.len()) as u32 {
        page[..4].copy_from_slice(&number.to_be_bytes());
        content.extend_from_slice(&page[..page.len().min(length - content.len())]);
    }
    content
}

// MW-01, MW-05: ndmw: every byte of 64 MiB, written and read by the peer through one window.
#[tokio::test]
async fn sixty_four_mebibytes_go_through_a_window() {
    const SIZE: usize = 64 << 20;
    let adapter = adapter();
    if !has_windows(&adapter) {
        return;
    }
    let pair = connected(&adapter).await;
    let region = region(&adapter, SIZE, ALL).await;
    let (_window, remote) = bound(&adapter, &pair.active.queue_pair, &region, 0..SIZE, ALL).await;
    assert_eq!((remote.len() as usize, remote.address()), (SIZE, region.remote().address()));
    let content = numbered(SIZE);
    // As many bytes at a time as the adapter takes.
    let piece = adapter.info().max_transfer.min(SIZE);
    let part = |at: usize| remote.part(at as u32..(at + piece).min(SIZE) as u32).expect("in bounds");
    for (place, piece_of_it) in content.chunks(piece).enumerate() {
        let write = pair.passive.queue_pair.write(bytes(&adapter, piece_of_it), &part(place * piece));
        success(write.expect("posted")).await;
    }
    for (place, piece_of_it) in content.chunks(piece).enumerate() {
        let found = read(&adapter, &pair.passive.queue_pair, &part(place * piece)).await;
        assert!(found == piece_of_it, "what the peer reads of piece {place}");
    }
    let mut found = vec![0; SIZE];
    region.read(0, &mut found).expect("as long");
    assert!(found == content, "what is there");
}

// MW-05: many windows of one region, each with a key and a part of its own.
#[tokio::test]
async fn many_windows_are_bound_at_once() {
    const PART: usize = 64;
    let many = often(1000, 50);
    let adapter = adapter();
    if !has_windows(&adapter) {
        return;
    }
    let pair = connected(&adapter).await;
    let (owner, peer) = (&pair.active.queue_pair, &pair.passive.queue_pair);
    let region = region(&adapter, many * PART, ALL).await;
    let mut windows = Vec::new();
    for place in 0..many {
        let part = place * PART..(place + 1) * PART;
        windows.push(bound(&adapter, owner, &region, part, ALL).await);
    }
    let keys: BTreeSet<_> = windows.iter().map(|(_, remote)| remote.key().0).collect();
    assert_eq!(keys.len(), many, "no two have the same key");
    for (place, (_, remote)) in windows.iter().enumerate() {
        success(peer.write(bytes(&adapter, &[place as u8; PART]), remote).expect("posted")).await;
    }
    // A write may complete before it arrives, but not after a read that follows it.
    read(&adapter, peer, &windows[0].1).await;
    let mut found = vec![0; many * PART];
    region.read(0, &mut found).expect("as long");
    for (place, part) in found.chunks(PART).enumerate() {
        assert!(part.iter().all(|byte| *byte == place as u8), "window {place}");
    }
    // Taking one back leaves the others.
    for (window, _) in windows.iter().step_by(2) {
        let invalidate = owner.invalidate(window, WorkOptions::default()).expect("posted");
        within(invalidate).await.0.expect("invalidated");
    }
    for (place, (_, remote)) in windows.iter().enumerate().skip(1).step_by(2) {
        assert_eq!(read(&adapter, peer, remote).await, [place as u8; PART]);
    }
    assert_refused_access(&pair, &adapter, &windows[0].1, false, "a window that was taken back").await;
}

/// Asserts that an access of the peer is refused, and that its connection ends.
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
async fn window_limits_peer_access_to_range_and_rights() {
    for (adapter, variant) in variants() {
        if !has_windows(&adapter) {
            return;
        }
        let region = region(&adapter, 4096, ALL).await;
        // The window limits rights, and bounds if the adapter checks them, and may give no rights (MW-01, MW-02, MW-05).
        for (access, write, range, case) in [
            // A window without any right is bound all the same, and gives none.
            (Access::empty(), true, 0..4, "a write without any right"),
            (Access::empty(), false, 0..4, "a read without any right"),
            (Access::LOCAL_WRITE, false, 0..4, "a read with a right of the owner's"),
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
async fn window_cannot_grant_rights_its_region_lacks() {
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
    // A window gets no right that its region lacks, and the region has to be registered with the same adapter (MW-02).
    for (region, access, case) in [
        (&readable, Access::REMOTE_WRITE, "writing where nothing is written"),
        (&readable, ALL, "writing, too, where nothing is written"),
        (&gone, Access::REMOTE_READ, "a region that is not registered"),
        (&foreign, Access::REMOTE_READ, "a region of another adapter"),
    ] {
        let lacks = PostErrorKind::AccessViolation { missing: Access::LOCAL_WRITE };
        let expected = if std::ptr::eq(region, &readable) { lacks } else { PostErrorKind::ForeignMemory };
        let error = bind(region, access).map(drop).expect_err(case);
        assert_eq!(error, expected, "{case}");
        assert_eq!(error.status(), Status::ACCESS_VIOLATION, "{case}");
        assert_eq!(window.remote(), None, "{case}");
    }
    // No bind has succeeded, so there is nothing to invalidate (MW-03).
    let error = pair.active.queue_pair.invalidate(&window, WorkOptions::default()).map(drop);
    assert_eq!(error, Err(PostErrorKind::NotBound), "there is nothing to invalidate");
    // A bind is a request, so it needs a connection (QP-06).
    let unconnected = queue_pair(&adapter);
    let slice = readable.slice(0..8).expect("in bounds");
    let error = unconnected.bind(&window, &slice, Access::REMOTE_READ, WorkOptions::default()).map(drop);
    assert_eq!(error, Err(PostErrorKind::ConnectionInvalid));
    assert_eq!(window.remote(), None, "it was not posted");
}

#[tokio::test]
async fn an_invalidated_window_is_out_of_reach() {
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
            // The window has no key from the call on, and the peer has no access from the completion on (MW-03).
            assert_eq!(window.remote(), None, "{variant}: from the call on");
            within(invalidate).await.0.expect("invalidated");
            assert_refused_access(&pair, &adapter, &remote, write, variant).await;
        }
    }
}

#[tokio::test]
async fn send_invalidates_the_window_of_the_peer() {
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
        let (other, _) = bound(&adapter, owner, &region, 0..64, ALL).await;
        success(peer.write(bytes(&adapter, &[3; 64]), &remote).expect("posted")).await;
        let options = WorkOptions::default().invalidate(remote.key());
        success(peer.send_with(bytes(&adapter, b"done"), options).expect("posted")).await;
        let (outcome, buffer) = within(receive).await;
        // The receive reports the key that the peer's send has invalidated (QP-13, MW-03).
        let outcome = outcome.expect("received");
        assert_eq!((outcome.bytes, outcome.invalidated), (4, Some(remote.key())), "{variant}");
        assert_eq!(&buffer[..4], b"done", "{variant}");
        let mut found = [0; 64];
        region.read(0, &mut found).expect("as long");
        assert_eq!(found, [3; 64], "{variant}: what was written before is there");
        drop(window);
        // The other window of the queue pair is bound as before.
        let invalidate = owner.invalidate(&other, WorkOptions::default()).expect("posted");
        within(invalidate).await.0.expect("invalidated");
        assert_refused_access(&pair, &adapter, &remote, false, variant).await;
    }
}

#[tokio::test]
async fn window_key_works_only_for_its_peer() {
    for (adapter, variant) in variants() {
        if !has_windows(&adapter) {
            return;
        }
        let (pair, other) = (connected(&adapter).await, connected(&adapter).await);
        let region = region(&adapter, 64, ALL).await;
        let (window, remote) = bound(&adapter, &pair.active.queue_pair, &region, 0..64, ALL).await;
        // The key works for the peer of the queue pair that bound the window, and for no other (MW-04).
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
async fn region_with_a_bound_window_stays_registered() {
    let adapter = adapter();
    if !has_windows(&adapter) {
        return;
    }
    let pair = connected(&adapter).await;
    let (owner, peer) = (&pair.active.queue_pair, &pair.passive.queue_pair);
    let region = region(&adapter, 64, ALL).await;
    let (window, remote) = bound(&adapter, owner, &region, 0..64, ALL).await;
    // A region with a bound window stays registered, and both keys still work (MR-04).
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

// HW-06: each of sixteen binds a part of its own, at the same time as the others. The peer of each reaches that part by the key, reads and
// writes it, and no peer reaches another part.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_queue_pairs_have_windows_of_one_region() {
    const MANY: usize = 16;
    const PART: usize = 64;
    let adapter = adapter();
    if !has_windows(&adapter) {
        return;
    }
    let region = region(&adapter, MANY * PART, ALL).await;
    let before: Vec<u8> = (0..MANY).flat_map(|number| [number as u8; PART]).collect();
    region.write(0, &before).expect("as long");
    let ready = Arc::new(tokio::sync::Barrier::new(MANY));
    let users: Vec<_> = (0..MANY)
        .map(|number| {
            let (adapter, region, ready) = (adapter.clone(), region.clone(), ready.clone());
            tokio::spawn(async move {
                let pair = connected(&adapter).await;
                let (owner, peer) = (&pair.active.queue_pair, &pair.passive.queue_pair);
                let part = number * PART..(number + 1) * PART;
                within(ready.wait()).await;
                let (window, remote) = bound(&adapter, owner, &region, part, ALL).await;
                // All of them are bound now.
                within(ready.wait()).await;
                assert_eq!(read(&adapter, peer, &remote).await, [number as u8; PART]);
                let after = [0x80 | number as u8; PART];
                success(peer.write(bytes(&adapter, &after), &remote).expect("posted")).await;
                assert_eq!(read(&adapter, peer, &remote).await, after);
                within(ready.wait()).await;
                (pair, window, remote)
            })
        })
        .collect();
    let mut all = Vec::new();
    for user in users {
        all.push(within(user).await.expect("as expected"));
    }
    let mut after = vec![0; before.len()];
    region.read(0, &mut after).expect("as long");
    assert_eq!(after, before.iter().map(|byte| 0x80 | byte).collect::<Vec<_>>());
    let keys: BTreeSet<_> = all.iter().map(|(_, _, remote)| remote.key().0).collect();
    assert_eq!(keys.len(), MANY);
    // The key of one is of no use on the connection of another.
    let remote = all[0].2;
    let stranger = &all[1].0.passive.queue_pair;
    let status = failure(stranger.read(room(&adapter, PART), &remote).expect("posted")).await;
    assert_blamed(&adapter, status, Status::ACCESS_VIOLATION, "a key of another connection");
}

// Two tasks bind windows of one region through two queue pairs, and no bind fails (HW-06).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_queue_pairs_bind_one_region_concurrently() {
    let adapter = adapter();
    if !has_windows(&adapter) {
        return;
    }
    let region = std::sync::Arc::new(region(&adapter, 4096, ALL).await);
    let binders = [(); 2].map(|()| {
        let (adapter, region) = (adapter.clone(), region.clone());
        tokio::spawn(async move {
            let pair = connected(&adapter).await;
            for _ in 0..often(2000, 50) {
                drop(bound(&adapter, &pair.active.queue_pair, &region, 0..64, ALL).await);
            }
        })
    });
    for binder in binders {
        within(binder).await.expect("bound, each time");
    }
}
