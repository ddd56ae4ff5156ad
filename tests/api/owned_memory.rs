//! Regions in allocations of the program.
//!
//! Runs on: soft, sim, rxe, siw

use std::fs;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use bytes::BytesMut;
use common::deviation::lacks_buffer_sinks;
use common::life::{eventually, poll_once};
use common::process::alone;
use common::raw::{bytes, failure, room, success};
use common::*;
use tokio_rdma::error::RegisterError;
use tokio_rdma::mr::{Mapping, OwnedMemory, OwnedRegion, Pages, RawMemory};
use tokio_rdma::{Access, Adapter, Status, WorkOptions};

/// As many bytes as need several words and pages, and end within a word.
const LENGTH: usize = 8203;

fn everything() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::READ_SINK
}

/// Bytes that differ from those at other places.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|place| (place % 251) as u8).collect()
}

async fn registered<M: OwnedMemory>(adapter: &Adapter, memory: M) -> OwnedRegion<M> {
    within(adapter.register_from(memory, everything())).await.expect("registered")
}

/// Moves data in all four ways through a region, at places that are not aligned. Returns the memory and the bytes that
/// it must contain.
async fn used<M: OwnedMemory>(adapter: &Adapter, memory: M) -> (M, Vec<u8>) {
    let pair = connected(adapter).await;
    let (ours, theirs) = (&pair.active.queue_pair, &pair.passive.queue_pair);
    let region = registered(adapter, memory).await;
    let mut expected = pattern(LENGTH);
    let mut found = vec![0; LENGTH];
    region.read(0, &mut found).expect("as long");
    assert_eq!((region.len(), &found), (LENGTH, &expected), "the bytes are as they were");

    let receive = theirs.receive(room(adapter, 4100)).expect("posted");
    success(ours.send(region.slice(3..4103).expect("within")).expect("posted")).await;
    assert_eq!(&success(receive).await.1[..], &expected[3..4103], "sent");

    let receive = ours.receive(region.slice(4101..4108).expect("within")).expect("posted");
    success(theirs.send(bytes(adapter, b"receive")).expect("posted")).await;
    success(receive).await;
    expected[4101..4108].copy_from_slice(b"receive");

    // The last bytes, and the first ones.
    for (place, text) in [(LENGTH - 7, b"written"), (0, b"at zero")] {
        let part = region.remote_part(place..place + 7).expect("within");
        success(theirs.write(bytes(adapter, text), &part).expect("posted")).await;
        expected[place..place + 7].copy_from_slice(text);
    }

    // A read comes behind the writes.
    let sink = registered(adapter, vec![0; LENGTH]).await;
    let read = theirs.read(sink.slice(0..LENGTH).expect("within"), &region.remote()).expect("posted");
    drop(success(read).await);
    sink.read(0, &mut found).expect("as long");
    assert_eq!(found, expected, "the peer reads it");

    sink.write(5, b"from there").expect("within");
    let there = sink.remote_part(5..15).expect("within");
    let read = ours.read(region.slice(77..87).expect("within"), &there).expect("posted");
    drop(success(read).await);
    expected[77..87].copy_from_slice(b"from there");

    region.write(LENGTH - 1, b"!").expect("within");
    expected[LENGTH - 1] = b'!';
    (within(region.into_inner()).await.expect("nobody uses it"), expected)
}

// Each memory comes back with the bytes of the peer, and the vector is the same allocation (MR-09).
#[tokio::test]
async fn vectors_boxes_and_mappings_carry_data() {
    let adapter = adapter();
    let mut vector = Vec::with_capacity(2 * LENGTH);
    vector.extend(pattern(LENGTH));
    let (address, capacity) = (vector.as_ptr(), vector.capacity());
    let (vector, expected) = used(&adapter, vector).await;
    assert!(vector == expected);
    assert_eq!((vector.as_ptr(), vector.capacity()), (address, capacity), "it is the same allocation");

    let boxed = pattern(LENGTH).into_boxed_slice();
    let (boxed, expected) = used(&adapter, boxed).await;
    assert!(boxed[..] == expected);

    let mut mapping = Mapping::new(LENGTH, Pages::Base).expect("memory");
    assert_eq!((mapping.len(), mapping.iter().any(|byte| *byte != 0)), (LENGTH, false));
    mapping.copy_from_slice(&pattern(LENGTH));
    let (mapping, expected) = used(&adapter, mapping).await;
    assert!(mapping[..] == expected);
}

// The part is at an odd address, between bytes that have other owners and change during the transfer (MR-09).
#[tokio::test]
async fn a_part_of_an_allocation_carries_data() {
    let adapter = adapter();
    for before in [1, 3, 7] {
        let mut after = BytesMut::zeroed(before);
        after.extend(pattern(LENGTH));
        after.extend([0; 9]);
        let mut neighbour = after.split_to(before);
        let memory = after.split_to(LENGTH);
        let using = used(&adapter, memory);
        let changing = async {
            for round in 0..100 {
                neighbour.fill(round);
                after.fill(round);
                tokio::task::yield_now().await;
                assert!(neighbour.iter().chain(&after).all(|byte| *byte == round));
            }
        };
        let ((memory, expected), ()) = tokio::join!(using, changing);
        assert!(memory[..] == expected);
        assert!(neighbour.iter().chain(&after).all(|byte| *byte == 99));
    }
}

// The bytes before and behind the registered range stay as they were (MR-09).
#[tokio::test]
async fn memory_at_an_address_carries_data() {
    let adapter = adapter();
    let mut all = vec![0xee; LENGTH + 10];
    all[5..][..LENGTH].copy_from_slice(&pattern(LENGTH));
    let start = NonNull::from(&mut all[5..]).cast::<u8>();
    // SAFETY: the bytes are in `all`, which is not used before the memory has been returned.
    let memory = unsafe { RawMemory::new(start, LENGTH) };
    let (memory, expected) = used(&adapter, memory).await;
    assert_eq!((memory.as_ptr(), memory.len()), (start.as_ptr(), LENGTH));
    assert!(all[5..][..LENGTH] == expected);
    assert_eq!((&all[..5], &all[5 + LENGTH..]), (&[0xee; 5][..], &[0xee; 5][..]));
}

// `into_inner` waits for the requests that use the memory, also for one whose future was dropped (MR-09).
#[tokio::test]
async fn memory_is_returned_after_the_last_request() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let region = registered(&adapter, pattern(64)).await;
    let kept = pair.passive.queue_pair.receive(region.slice(0..8).expect("within")).expect("posted");
    drop(pair.passive.queue_pair.receive(region.slice(8..16).expect("within")).expect("posted"));
    let clone = region.slice(0..1).expect("within").region().clone();
    let mut returning = Box::pin(region.into_inner());
    eventually("it is deregistered", || {
        assert!(poll_once(&mut returning).is_pending());
        !clone.is_registered()
    })
    .await;
    drop(clone);
    assert!(poll_once(&mut returning).is_pending(), "two requests have it");
    within(pair.active.connection.disconnect()).await.expect("disconnected");
    assert_eq!(failure(kept).await, Status::CANCELED);
    assert_eq!(within(returning).await.expect("nobody uses it"), pattern(64));
}

/// Bytes that no other code writes to memory.
const MARK: &[u8; 16] = b"a mark of a test";

/// Makes a mapping with the mark. Returns it and its address.
fn marked(length: usize) -> (Mapping, u64) {
    let mut mapping = Mapping::new(length, Pages::Base).expect("memory");
    mapping[..MARK.len()].copy_from_slice(MARK);
    let address = mapping.as_ptr().addr();
    (mapping, address as u64)
}

/// Returns whether a mapping with the mark is at the address. The address alone is not enough: another mapping may be
/// there by now.
fn is_mapped(address: u64) -> bool {
    let memory = fs::File::open("/proc/self/mem").expect("the kernel has it");
    let mut found = [0; MARK.len()];
    memory.read_exact_at(&mut found, address).is_ok() && found == *MARK
}

// MR-09: a connection is dropped in the middle, and with it all that is known of the memory.
#[tokio::test]
async fn memory_is_freed_after_the_last_request() {
    if !alone(module_path!(), "memory_is_freed_after_the_last_request") {
        return;
    }
    let adapter = adapter();
    // Registered here, and on another thread.
    for length in [4096, 4 << 20] {
        let pair = connected(&adapter).await;
        let (mapping, address) = marked(length);
        let region = registered(&adapter, mapping).await;
        drop(pair.passive.queue_pair.receive(region.slice(0..8).expect("within")).expect("posted"));
        drop(region);
        assert!(is_mapped(address), "a message may still come");
        let Pair { active, passive } = pair;
        drop(passive);
        eventually("it is freed", || !is_mapped(address)).await;
        drop(active);

        // Futures that are dropped drop the memory.
        let (mapping, address) = marked(length);
        let mut registering = Box::pin(adapter.register_from(mapping, everything()));
        drop(poll_once(&mut registering));
        drop(registering);
        eventually("it is freed", || !is_mapped(address)).await;

        let (mapping, address) = marked(length);
        let mut returning = Box::pin(registered(&adapter, mapping).await.into_inner());
        drop(poll_once(&mut returning));
        drop(returning);
        eventually("it is freed", || !is_mapped(address)).await;
    }
}

// MR-09: an error has the allocation.
#[tokio::test]
async fn memory_that_is_not_registered_comes_back() {
    let adapter = adapter();
    let empty = Vec::with_capacity(17);
    let error = adapter.register_from(empty, everything()).await.expect_err("no bytes");
    assert!(matches!(error.kind, RegisterError::Empty));
    assert_eq!(error.status(), Status::INVALID_BUFFER_SIZE);
    assert!(error.memory.expect("it is not lost").capacity() >= 17);

    // An address within a word has no numbers for atomics at the offsets at which peers look for them.
    let access = Access::REMOTE_ATOMIC | Access::LOCAL_WRITE;
    let mut odd = BytesMut::zeroed(25);
    drop(odd.split_to(1));
    odd[3] = 7;
    let outcome = adapter.register_from(odd, access).await;
    if common::device::Device::under_test().is_soft() {
        let error = outcome.expect_err("soft counts from the first byte");
        assert!(matches!(error.kind, RegisterError::NotSupported(_)));
        assert_eq!(error.memory.expect("it is not lost")[3], 7);
    } else {
        outcome.expect("a device counts from zero");
    }
}

// MR-09, MR-04: the error of a region that cannot be deregistered has the region.
#[tokio::test]
async fn bound_window_keeps_memory_in_its_region() {
    let adapter = adapter();
    if !adapter.info().memory_windows {
        return skipped("the adapter has no memory windows");
    }
    let pair = connected(&adapter).await;
    let region = registered(&adapter, pattern(64)).await;
    let window = adapter.memory_window().expect("a window");
    let slice = region.slice(0..8).expect("within");
    let queue_pair = &pair.active.queue_pair;
    let bind = queue_pair.bind(&window, &slice, Access::REMOTE_READ, WorkOptions::default());
    success(bind.expect("posted")).await;
    drop(slice);
    let error = within(region.into_inner()).await.expect_err("a window is bound to it");
    assert_eq!(error.status(), Status::DEVICE_BUSY);
    let region = error.memory.expect("it is not lost");
    assert!(region.is_registered());
    success(queue_pair.invalidate(&window, WorkOptions::default()).expect("posted")).await;
    assert_eq!(within(region.into_inner()).await.expect("free"), pattern(64));
}

// MR-09, MR-05: as every region, under a new key.
#[tokio::test]
async fn memory_is_registered_again_and_has_atomics() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let mut mapping = Mapping::new(64, Pages::Base).expect("memory");
    mapping[8..16].copy_from_slice(&41_u64.to_ne_bytes());
    let region = within(adapter.register_from(mapping, access)).await.expect("registered");
    within(region.deregister()).await.expect("deregistered");
    within(region.register_again(access)).await.expect("registered");
    if adapter.info().atomics {
        let there = region.remote_part(8..16).expect("within");
        let options = WorkOptions::default();
        let add = pair.active.queue_pair.fetch_add(room(&adapter, 8), &there, 1, options).expect("posted");
        assert_eq!(success(add).await.1[..], 41_u64.to_ne_bytes());
    } else {
        region.write(8, &42_u64.to_ne_bytes()).expect("within");
    }
    let mapping = within(region.into_inner()).await.expect("free");
    assert_eq!(mapping[8..16], 42_u64.to_ne_bytes());
}

// MR-09: the flag changes the order in which bytes arrive, and not the bytes.
#[tokio::test]
async fn memory_with_relaxed_ordering_carries_data() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let pair = connected(&adapter).await;
    let access = everything() | Access::RELAXED_ORDERING;
    let region = within(adapter.register_from(vec![0; LENGTH], access)).await.expect("registered");
    assert_eq!(region.access(), access);
    let queue_pair = &pair.active.queue_pair;
    success(queue_pair.write(bytes(&adapter, &pattern(LENGTH)), &region.remote()).expect("posted")).await;
    let read = queue_pair.read(room(&adapter, LENGTH), &region.remote()).expect("posted");
    assert!(success(read).await.1[..] == pattern(LENGTH));
    assert!(within(region.into_inner()).await.expect("free") == pattern(LENGTH));
}
