//! Numbers of eight bytes that the owner of a region changes while peers read and change them.

use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

use bytes::BytesMut;
use common::deviation::all_adapters;
use common::device::{Device, variants};
use common::raw::{bytes, room, success};
use common::*;
use futures::future::join_all;
use tokio_rdma::error::WordError;
use tokio_rdma::types::TooShort;
use tokio_rdma::{Access, Adapter, QueuePair, Region, RemoteRegion, Status, WorkOptions};

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// Rights for the peer that the adapter has.
fn rights(adapter: &Adapter) -> Access {
    if adapter.info().atomics { ALL } else { Access::REMOTE_READ | Access::REMOTE_WRITE }
}

fn at(region: &Region, offset: usize) -> RemoteRegion {
    region.remote_part(offset..offset + 8).expect("in bounds")
}

/// Reads a number of the peer, into memory that any adapter takes for that.
async fn fetch(adapter: &Adapter, queue_pair: &QueuePair, there: &RemoteRegion) -> u64 {
    let sink = adapter.register(8, Access::LOCAL_WRITE | Access::READ_SINK).await.expect("registered");
    success(queue_pair.read(sink.slice(0..8).expect("in bounds"), there).expect("posted")).await;
    sink.load_u64(0, Acquire).expect("aligned")
}

// Loads and stores of the owner and atomics and writes of the peer use the same value in host byte order (QP-23).
#[tokio::test]
async fn the_owner_and_a_peer_exchange_numbers() {
    for (adapter, _) in variants() {
        let pair = connected(&adapter).await;
        let (here, queue_pair) = (rights(&adapter), &pair.active.queue_pair);
        let region = adapter.register(24, here).await.expect("registered");
        region.store_u64(8, 0x0102_0304_0506_0708, Release).expect("in bounds");
        let found = fetch(&adapter, queue_pair, &at(&region, 8)).await;
        assert_eq!(found, 0x0102_0304_0506_0708, "in host byte order");

        let written = bytes(&adapter, &41_u64.to_ne_bytes());
        success(queue_pair.write(written, &at(&region, 8)).expect("posted")).await;
        // The answer of a read that follows the write says that the write is there.
        assert_eq!(fetch(&adapter, queue_pair, &at(&region, 8)).await, 41);
        assert_eq!(region.load_u64(8, Acquire), Ok(41));
        assert_eq!(region.fetch_add(8, 2, AcqRel), Ok(41));
        assert_eq!(region.compare_exchange(8, 41, 7, SeqCst, Relaxed), Ok(Err(43)), "it is not 41");
        assert_eq!(region.compare_exchange(8, 43, 7, SeqCst, Relaxed), Ok(Ok(43)));
        assert_eq!(region.fetch_add(8, u64::MAX, Relaxed), Ok(7), "it wraps around");
        let mut whole = [0; 24];
        region.read(0, &mut whole).expect("as long");
        assert_eq!(whole[8..16], 6_u64.to_ne_bytes());
        assert_eq!([&whole[..8], &whole[16..]].concat(), [0; 16], "nothing beside it is changed");
    }
}

/// An access to the number at an offset.
type Call = fn(&Region, usize) -> Result<(), WordError>;

#[tokio::test]
async fn a_number_is_aligned_and_within_its_region() {
    let adapter = adapter();
    let region = adapter.register(23, Access::REMOTE_WRITE).await.expect("registered");
    let calls: [Call; 4] = [
        |region, offset| region.load_u64(offset, Relaxed).map(drop),
        |region, offset| region.store_u64(offset, 1, Relaxed),
        |region, offset| region.fetch_add(offset, 1, Relaxed).map(drop),
        |region, offset| region.compare_exchange(offset, 0, 1, Relaxed, Relaxed).map(drop),
    ];
    for call in calls {
        for offset in [1, 4, 7, 9, 15] {
            let error = call(&region, offset).expect_err("not aligned");
            assert_eq!((error, error.status()), (WordError::Unaligned { offset }, Status::INVALID_PARAMETER));
        }
        for offset in [16, 23, 24, usize::MAX] {
            let error = call(&region, offset).expect_err("beyond it");
            let short = TooShort { needed: offset.saturating_add(8), available: 23 };
            assert_eq!((error, error.status()), (WordError::TooShort(short), Status::BUFFER_OVERFLOW));
        }
    }
    let mut whole = [1; 23];
    region.read(0, &mut whole).expect("as long");
    assert_eq!(whole, [0; 23], "nothing is changed");
    for call in calls {
        call(&region, 0).and_then(|()| call(&region, 8)).expect("aligned and within");
    }
}

// MR-09: it is the address that is aligned, and an allocation of the program may begin anywhere.
#[tokio::test]
async fn the_address_of_a_number_is_aligned() {
    let adapter = adapter();
    for skip in 0..8 {
        let memory = BytesMut::zeroed(64).split_off(skip);
        let address = memory.as_ptr().addr();
        let region = adapter.register_from(memory, Access::REMOTE_READ).await.expect("registered");
        for offset in 0..=region.len() - 8 {
            let is_aligned = (address + offset).is_multiple_of(8);
            assert_eq!(region.store_u64(offset, 1, Relaxed).is_ok(), is_aligned, "{skip} {offset}");
        }
    }
}

#[tokio::test]
async fn invalid_atomic_ordering_panics_as_in_std() {
    let region = adapter().register(8, Access::REMOTE_READ).await.expect("registered");
    let panics = |call: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err();
    for (order, loads, stores) in [(Release, true, false), (Acquire, false, true), (AcqRel, true, true)] {
        assert_eq!(panics(&|| _ = region.load_u64(0, order)), loads, "{order:?}");
        assert_eq!(panics(&|| _ = region.store_u64(0, 1, order)), stores, "{order:?}");
    }
}

/// The number of changes by each of those that change a number.
const CHANGES: u64 = 200;

/// Adds 1 to the number at 0, by either method in turn.
fn add(region: &Region, round: u64, order: Ordering) {
    if round.is_multiple_of(2) {
        region.fetch_add(0, 1, order).expect("aligned");
        return;
    }
    let mut found = region.load_u64(0, Relaxed).expect("aligned");
    while let Err(other) = region.compare_exchange(0, found, found + 1, order, Relaxed).expect("aligned") {
        found = other;
    }
}

// QP-23: where an adapter says so, its atomics and those of the owner do not overlap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn atomics_of_owner_and_peer_lose_nothing() {
    let adapter = adapter();
    let region = adapter.register(8, rights(&adapter)).await.expect("registered");
    let owner = {
        let region = region.clone();
        move || (0..CHANGES).for_each(|round| add(&region, round, SeqCst))
    };
    if !adapter.info().global_atomics {
        // The owner's alone, from two threads.
        let other = tokio::task::spawn_blocking(owner.clone());
        owner();
        within(other).await.expect("no panic");
        assert_eq!(region.load_u64(0, SeqCst), Ok(2 * CHANGES));
        return;
    }
    let pair = connected(&adapter).await;
    let there = at(&region, 0);
    let peer = async {
        for _ in 0..CHANGES / 10 {
            let ops = (0..10).map(|_| {
                let buffer = room(&adapter, 8);
                let queue_pair = &pair.active.queue_pair;
                success(queue_pair.fetch_add(buffer, &there, 1, WorkOptions::default()).expect("posted"))
            });
            join_all(ops).await;
        }
    };
    let owner = tokio::task::spawn_blocking(owner);
    peer.await;
    within(owner).await.expect("no panic");
    assert_eq!(region.load_u64(0, SeqCst), Ok(2 * CHANGES), "no change is lost");
}

// The flag is set if atomics of the adapter and of the processor exclude each other (AD-01).
#[tokio::test]
async fn global_atomics_flag_marks_processor_atomics() {
    let is_soft = Device::under_test().is_soft();
    // The device of `tests/fake` executes them by instructions of the processor.
    let are_global = is_soft || Device::under_test() == Device::Fake;
    for adapter in all_adapters() {
        let info = adapter.info();
        // `rxe` has a lock of its own around its atomics, and reports IBV_ATOMIC_HCA, as cards do.
        assert_eq!(info.global_atomics, are_global, "{info:?}");
        assert!(info.atomics || !info.global_atomics, "{info:?}");
        assert_eq!((info.vendor_id, info.device_id) == (0, 0), is_soft, "{info:?}");
    }
}
