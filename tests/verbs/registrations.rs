//! The registrations that a device is asked for.
//!
//! Runs on: fake

use common::life::{eventually, poll_once};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use common::process::alone;
use common::raw::{bytes, room, success};
use common::verbs::{fake, fake_reset, hold};
use common::*;
use nix::sys::memfd::{MFdFlags, memfd_create};
use tokio_rdma::error::{PostErrorKind, RegisterError};
use tokio_rdma::{Access, QueuePairConfig, SharedReceiveConfig, Status};

/// The numbers of the flags in C.
const LOCAL_WRITE: u32 = 1;
const REMOTE_WRITE: u32 = 2;
const REMOTE_READ: u32 = 4;
const MW_BIND: u32 = 16;
const RELAXED_ORDERING: u32 = 1 << 20;

// HW-11: relaxed ordering is asked for where the program asks for it, and for memory that nobody looks at before a request of it has
// completed.
#[tokio::test]
async fn access_flags_are_those_that_were_asked_for() {
    if !alone(module_path!(), "access_flags_are_those_that_were_asked_for") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let windows = if adapter.info().memory_windows { MW_BIND } else { 0 };
    let cases = [
        (Access::REMOTE_READ, REMOTE_READ),
        (Access::REMOTE_READ | Access::RELAXED_ORDERING, REMOTE_READ | RELAXED_ORDERING),
        (Access::REMOTE_WRITE | Access::RELAXED_ORDERING, LOCAL_WRITE | REMOTE_WRITE | RELAXED_ORDERING),
        (Access::RELAXED_ORDERING, RELAXED_ORDERING),
    ];
    for (access, flags) in cases {
        let count = || fake(&format!("access {}", flags | windows)).expect("a number");
        let owned = within(adapter.register_from(vec![0; 7], access)).await.expect("registered");
        let region = within(adapter.register(7, access)).await.expect("registered");
        assert_eq!(count(), 2, "{access}");
        within(region.deregister()).await.expect("deregistered");
        within(region.register_again(Access::REMOTE_READ)).await.expect("registered again");
        within(owned.deregister()).await.expect("deregistered");
        within(owned.register_again(access)).await.expect("registered again");
        assert_eq!(count(), if access == Access::REMOTE_READ { 2 } else { 1 }, "{access}");
    }
    let count = || fake(&format!("access {}", LOCAL_WRITE | RELAXED_ORDERING)).expect("a number");
    let before = count();
    let _buffer = adapter.buffer(64).expect("memory");
    assert_eq!(count(), before + 1);
}

/// A file of two pages of memory, which stands for the memory of another device.
fn memory_of_another_device() -> File {
    let file = File::from(memfd_create(c"device", MFdFlags::MFD_CLOEXEC).expect("a file"));
    file.set_len(2 * PAGE).expect("as long");
    file
}

const PAGE: u64 = 4096;
/// A place in the second page of that memory, and the address that the device finds it at: of no memory of this process.
const OFFSET: u64 = PAGE + 64;
const ADDRESS: u64 = 0x7fff_ffff_ffff_f040;

// MR-03, MR-06, MR-11: memory of another device, given as a dma-buf, is the source and the sink of requests of either side. The kernel takes only
// some of the flags for it: no window is bound to it, although the adapter has windows.
#[tokio::test]
async fn memory_of_another_device_is_transferred() {
    if !alone(module_path!(), "memory_of_another_device_is_transferred") {
        return;
    }
    // A card of bnxt_re, which writes what a receive gets itself.
    let Some(_) = fake(&format!("vendor {}", 0x14e4)) else { return };
    fake("dmabuf");
    let adapter = adapter();
    let (before, file) = (fake("count mr"), memory_of_another_device());
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::RELAXED_ORDERING;
    let registered = within(adapter.register_dmabuf(file.as_fd(), OFFSET, 256, ADDRESS, access)).await;
    let memory = registered.expect("registered");
    assert_eq!(
        fake(&format!("access {}", LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | RELAXED_ORDERING)),
        Some(1)
    );
    assert_eq!((memory.len(), memory.remote().address()), (256, ADDRESS));
    let content = |at: u64, length| {
        let mut found = vec![0; length];
        file.read_exact_at(&mut found, OFFSET + at).expect("read");
        found
    };
    let pair = connected(&adapter).await;
    let (here, there) = (&pair.active.queue_pair, &pair.passive.queue_pair);
    // The peer writes and reads.
    let part = memory.remote_part(8..13).expect("within");
    success(there.write(bytes(&adapter, b"write"), &part).expect("posted")).await;
    assert_eq!(content(0, 16), *b"\0\0\0\0\0\0\0\0write\0\0\0");
    file.write_all_at(b"read", OFFSET + 32).expect("written");
    let part = memory.remote_part(32..36).expect("within");
    assert_eq!(&success(there.read(room(&adapter, 4), &part).expect("posted")).await.1[..], b"read");
    // This side sends, writes and reads: few bytes, which are inline elsewhere, and many.
    let region = adapter.register(256, Access::REMOTE_READ | Access::REMOTE_WRITE).await.expect("registered");
    for length in [4, 200] {
        let slice = || memory.slice(32..32 + length).expect("within");
        let receive = there.receive(room(&adapter, 256)).expect("posted");
        success(here.send(slice()).expect("posted")).await;
        let (count, received) = success(receive).await;
        assert_eq!((count, &received[..4]), (length, &b"read"[..]));
        success(here.write(slice(), &region.remote()).expect("posted")).await;
        let mut found = [0; 4];
        region.read(0, &mut found).expect("as long");
        assert_eq!(&found, b"read");
        let marked = vec![length as u8; length];
        region.write(0, &marked).expect("as long");
        success(here.read(slice(), &region.remote_part(0..length).expect("within")).expect("posted")).await;
        assert_eq!(content(32, length), marked);
        file.write_all_at(b"read", OFFSET + 32).expect("written");
    }
    // And receives: a message that fits into a completion, and one that does not.
    for length in [16, 200] {
        let receive = here.receive(memory.slice(0..256).expect("within")).expect("posted");
        let sent = vec![0xff ^ length as u8; length];
        success(there.send(bytes(&adapter, &sent)).expect("posted")).await;
        assert_eq!(success(receive).await.0, length);
        assert_eq!(content(0, length), sent);
    }
    drop((pair, region));
    within(memory.deregister()).await.expect("deregistered");
    assert!(!memory.is_registered());
    drop(memory);
    assert_eq!(fake("count mr"), before);
}

// MR-02: what the kernel refuses of a dma-buf is an error, and nothing is left of it.
#[tokio::test]
async fn a_dmabuf_that_cannot_be_registered_is_refused() {
    if !alone(module_path!(), "a_dmabuf_that_cannot_be_registered_is_refused") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let (before, file) = (fake("count mr"), memory_of_another_device());
    let register = async |offset, length, address| {
        let made = adapter.register_dmabuf(file.as_fd(), offset, length, address, Access::REMOTE_READ);
        within(made).await.map(drop)
    };
    let error = register(OFFSET, 256, ADDRESS).await.expect_err("the driver does not know how");
    assert!(matches!(error, RegisterError::NotSupported(_)), "{error:?}");
    fake("dmabuf");
    // Another place within the page, and bytes beyond the end.
    for (offset, length, address) in [(OFFSET, 256, ADDRESS + 8), (OFFSET, PAGE as usize, ADDRESS)] {
        let error = register(offset, length, address).await.expect_err("not possible");
        let RegisterError::Os { call: "ibv_reg_dmabuf_mr", source } = &error else { panic!("{error:?}") };
        assert_eq!(source.raw_os_error(), Some(libc::EINVAL));
    }
    assert_eq!(fake("count mr"), before);
}

// MR-03: completions of some cards contain the bytes of a short message, and their libraries write these to the address of the receive:
// to whatever this process has there, or to nothing. So memory of another device cannot be posted there, in any way.
#[tokio::test]
async fn copying_card_refuses_dmabuf_receives() {
    if !alone(module_path!(), "copying_card_refuses_dmabuf_receives") {
        return;
    }
    let Some(_) = fake("dmabuf") else { return };
    let adapter = adapter();
    let file = memory_of_another_device();
    let registered = adapter.register_dmabuf(file.as_fd(), OFFSET, 256, ADDRESS, Access::REMOTE_WRITE);
    let memory = within(registered).await.expect("registered");
    let pair = connected(&adapter).await;
    let queue = adapter.shared_receive_queue(SharedReceiveConfig::default()).expect("a queue");
    let slice = || memory.slice(0..16).expect("within");
    let error = pair.passive.queue_pair.receive(slice()).map(drop).expect_err("refused");
    assert!(matches!(error.kind, PostErrorKind::NotSupported(_)), "{error}");
    assert_eq!((error.status(), error.buffer.range()), (Status::NOT_SUPPORTED, 0..16));
    let error = queue.receive(slice()).map(drop).expect_err("refused");
    assert!(matches!(error.kind, PostErrorKind::NotSupported(_)), "{error}");
    // Nor behind memory of this process, nor before there is a connection.
    let both = || vec![tokio_rdma::mr::Entry::from(room(&adapter, 8)), slice().into()];
    let error = pair.passive.queue_pair.receive(both()).map(drop).expect_err("refused");
    assert!(matches!(error.kind, PostErrorKind::NotSupported(_)), "{error}");
    let early = adapter.queue_pair(QueuePairConfig::default()).expect("a queue pair");
    let error = early.receive(slice()).map(drop).expect_err("refused");
    assert!(matches!(error.kind, PostErrorKind::NotSupported(_)), "{error}");
    // Everything else is as elsewhere.
    let receive = pair.passive.queue_pair.receive(room(&adapter, 16)).expect("posted");
    success(pair.active.queue_pair.send(slice()).expect("posted")).await;
    assert_eq!(success(receive).await.0, 16);
    success(pair.active.queue_pair.write(bytes(&adapter, b"0123"), &memory.remote()).expect("posted")).await;
    let mut found = [0; 4];
    file.read_exact_at(&mut found, OFFSET).expect("read");
    assert_eq!(&found, b"0123");
}

// HW-11: the device may write memory that it has not given back.
#[tokio::test]
async fn memory_that_cannot_be_deregistered_is_withheld() {
    if !alone(module_path!(), "memory_that_cannot_be_deregistered_is_withheld") {
        return;
    }
    let Some(_) = fake("forgive") else { return };
    let adapter = adapter();
    let pair = connected(&adapter).await;
    // Buffers are not given back either.
    let [written, withheld] = [bytes(&adapter, b"written"), bytes(&adapter, b"withheld")];
    let before = fake("count mr").expect("a number");
    let region = within(adapter.register_from(vec![0; 64], Access::REMOTE_WRITE)).await.expect("registered");
    fake(&format!("refuse ibv_dereg_mr {}", libc::EPERM));
    let error = within(region.into_inner()).await.expect_err("the device keeps it");
    assert!(matches!(error.kind, RegisterError::Os { call: "ibv_dereg_mr", .. }), "{error}");
    let region = error.memory.expect("the region is as it was");
    // The region works, and is given back once the device does.
    let there = &pair.passive.queue_pair;
    let (_, _written) = success(there.write(written, &region.remote()).expect("posted")).await;
    fake("reset");
    let vector = within(region.into_inner()).await.expect("the device gives it back");
    assert_eq!(&vector[..8], b"written\0");
    assert_eq!(fake("count mr"), Some(before));

    // A handle that outlives the call registers it again, and then the device keeps it.
    let region = within(adapter.register_from(vector, Access::REMOTE_WRITE)).await.expect("registered");
    let clone = region.slice(0..1).expect("within").region().clone();
    let mut returning = Box::pin(region.into_inner());
    assert!(poll_once(&mut returning).is_pending());
    within(clone.register_again(Access::REMOTE_WRITE)).await.expect("registered again");
    fake("forgive");
    fake(&format!("refuse ibv_dereg_mr {}", libc::EPERM));
    let remote = clone.remote();
    drop(clone);
    let error = within(returning).await.expect_err("the device keeps it");
    assert_eq!((error.status(), error.memory.is_none()), (Status::DEVICE_BUSY, true));
    // It is not freed: the peer still writes to it.
    assert_eq!(fake("count mr"), Some(before + 1));
    success(there.write(withheld, &remote).expect("posted")).await;
}

// MR-05: memory that the device has is not offered to it once more.
#[tokio::test]
async fn registered_memory_is_not_registered_again() {
    if !alone(module_path!(), "registered_memory_is_not_registered_again") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let region = within(adapter.register(64, Access::REMOTE_READ)).await.expect("registered");
    fake("reset");
    let error = within(region.register_again(Access::REMOTE_READ)).await.expect_err("the device has it");
    assert!(matches!(error, RegisterError::Busy), "{error:?}");
    assert_eq!(fake("calls ibv_reg_mr"), Some(0));
    assert!(region.is_registered());
}

// HW-05: much memory is deregistered on a thread of the runtime, so that the thread that drops it does not wait. Little is gone when
// the drop returns.
#[tokio::test]
async fn much_memory_is_freed_on_another_thread() {
    const MUCH: usize = 1 << 20;
    if !alone(module_path!(), "much_memory_is_freed_on_another_thread") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let before = fake("count mr");
    drop(room(&adapter, MUCH - 1));
    assert_eq!(fake("count mr"), before);
    let much = room(&adapter, MUCH);
    let _held = hold("ibv_dereg_mr");
    let dropping = std::thread::spawn(move || drop(much));
    eventually("the memory is dropped", || dropping.is_finished()).await;
    eventually("a thread deregisters it", || fake("held") == Some(1)).await;
    fake("release ibv_dereg_mr");
    eventually("it is deregistered", || fake("count mr") == before).await;
    dropping.join().expect("no panic");
}
