//! The pages of registered memory: their size, and what becomes of them in a child process.
//!
//! Runs on: rxe, siw

use std::fs;
use std::io::ErrorKind;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use common::process::alone;
use common::raw::{bytes, success};
use common::verbs::driver;
use common::*;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, pause};
use tokio_rdma::error::RegisterError;
use tokio_rdma::mr::{Mapping, Pages, RawMemory};
use tokio_rdma::{Access, Adapter, Region};

/// As much as has pages of its own (128 KiB), and as much as shares them.
const LARGE: usize = 1 << 20;
const LITTLE: usize = 4096;

fn access() -> Access {
    Access::REMOTE_READ | Access::REMOTE_WRITE | Access::READ_SINK
}

/// A line of the kernel about the mapping that has this address, such as `VmFlags`.
fn line(address: usize, name: &str) -> String {
    let smaps = fs::read_to_string("/proc/self/smaps").expect("the kernel has it");
    let mut within = false;
    for line in smaps.lines() {
        let first = line.split(' ').next().expect("a word");
        if let Some((from, to)) = first.split_once('-') {
            let number = |text| usize::from_str_radix(text, 16).expect("an address");
            within = (number(from)..number(to)).contains(&address);
        } else if let (true, Some(rest)) = (within, line.strip_prefix(name)) {
            return rest.trim_start_matches(':').trim().to_owned();
        }
    }
    panic!("no {name} of {address:#x}");
}

fn has_flag(address: usize, flag: &str) -> bool {
    line(address, "VmFlags").split(' ').any(|other| other == flag)
}

/// The address of the first byte, which is the one for peers.
fn address(region: &Region) -> usize {
    usize::try_from(region.remote().address()).expect("an address")
}

/// A write of the peer arrives, and a read of the peer finds the bytes of this side.
async fn exchange(adapter: &Adapter, pair: &Pair, region: &Region) {
    let there = &pair.passive.queue_pair;
    region.write(8, b"of here!").expect("within");
    let theirs = region.remote_part(0..8).expect("within");
    success(there.write(bytes(adapter, b"of there"), &theirs).expect("posted")).await;
    let sink = within(adapter.register(16, access())).await.expect("registered");
    let all = region.remote_part(0..16).expect("within");
    let read = there.read(sink.slice(0..16).expect("within"), &all).expect("posted");
    drop(success(read).await);
    for memory in [region, &sink] {
        let mut found = [0; 16];
        memory.read(0, &mut found).expect("within");
        assert_eq!(&found, b"of thereof here!");
    }
}

// HW-11: a mapping has the pages that were asked for.
#[tokio::test]
async fn mappings_have_huge_pages() {
    if driver().is_none() || !alone(module_path!(), "mappings_have_huge_pages") {
        return;
    }
    const RESERVED: &str = "/proc/sys/vm/nr_hugepages";
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let transparent = Mapping::new(LARGE, Pages::Transparent).expect("the kernel has them");
    assert!(has_flag(transparent.as_ptr().addr(), "hg"));
    let base = Mapping::new(LARGE, Pages::Base).expect("memory");
    assert!(!has_flag(base.as_ptr().addr(), "hg"));

    fs::write(RESERVED, "0").expect("permitted");
    let error = Mapping::new(LARGE, Pages::Huge2MiB).map(drop).expect_err("none is reserved");
    assert!(matches!(error, RegisterError::InsufficientResources(_)), "{error}");
    assert_eq!(std::io::Error::from(error).kind(), ErrorKind::OutOfMemory);
    fs::write(RESERVED, "4").expect("permitted");
    // It ends in the second page.
    let length = (2 << 20) + LITTLE + 1;
    let huge = Mapping::new(length, Pages::Huge2MiB).expect("four are reserved");
    assert_eq!(huge.len(), length);
    assert_eq!(line(huge.as_ptr().addr(), "KernelPageSize"), "2048 kB");

    let region = within(adapter.register_from(transparent, access())).await.expect("registered");
    exchange(&adapter, &pair, &region).await;
    let region = within(adapter.register_from(huge, access())).await.expect("registered");
    exchange(&adapter, &pair, &region).await;
    let huge = within(region.into_inner()).await.expect("nobody uses it");
    assert_eq!(&huge[..16], b"of thereof here!");
    drop(huge);
    Mapping::new(8 << 20, Pages::Huge2MiB).expect("all four are free");
}

// HW-11: pages of our own are not shared with a child process, and so are not copied away from the device.
#[tokio::test]
async fn pages_of_registered_memory_are_not_for_children() {
    if driver().is_none() {
        return;
    }
    let adapter = adapter();
    let region = within(adapter.register(LARGE, access())).await.expect("registered");
    assert!(has_flag(address(&region), "wf"));
    let mapping = Mapping::new(LITTLE, Pages::Base).expect("memory");
    assert!(has_flag(mapping.as_ptr().addr(), "wf"));
    let region = within(adapter.register_from(mapping, access())).await.expect("registered");
    assert!(has_flag(address(&region), "wf"));
}

/// A child that has all that this process had when it was made, until it is dropped.
struct Child(nix::unistd::Pid);

impl Child {
    fn forked() -> Self {
        // SAFETY: the child only waits for a signal.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Parent { child } => Self(child),
            ForkResult::Child => loop {
                pause();
            },
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        kill(self.0, Signal::SIGKILL).expect("it lives");
        waitpid(self.0, None).expect("it has ended");
    }
}

// HW-11: while a child has the pages, too, each side writes memory that the device had before and goes on using.
#[tokio::test]
async fn memory_is_registered_as_before_after_a_fork() {
    if driver().is_none() || !alone(module_path!(), "memory_is_registered_as_before_after_a_fork") {
        return;
    }
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let large = within(adapter.register(LARGE, access())).await.expect("registered");
    let little = within(adapter.register(LITTLE, access())).await.expect("registered");
    let vector = within(adapter.register_from(vec![0; LARGE], access())).await.expect("registered");
    static MEMORY: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
    let start = NonNull::from(Box::leak(vec![0_u8; LITTLE].into_boxed_slice())).cast::<u8>();
    // It is no leak while something has its address.
    MEMORY.store(start.as_ptr(), Ordering::Relaxed);
    // SAFETY: the memory is never freed, and nobody uses it by the address that is kept.
    let raw = unsafe { RawMemory::new(start, LITTLE) };
    let raw = within(adapter.register_from(raw, access())).await.expect("registered");
    for region in [&large, &little, &vector, &raw] {
        exchange(&adapter, &pair, region).await;
        region.write(0, &[0; 16]).expect("within");
    }
    let _child = Child::forked();
    for region in [&large, &little, &vector, &raw] {
        exchange(&adapter, &pair, region).await;
    }
}
