//! Tests of the handles: against the C headers, on a machine without devices, and on real ones in the guest. And the parts that the
//! tests on devices share: the guest's devices, waiting for events, and counting the objects that are left.

mod data;
mod layout;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};
use std::{env, io};

use super::completion::{BATCH, Batch, CompletionChannel, CompletionQueue, Keys, WcResult};
use super::device::{self, Context};
use super::id::{CmEvent, EventChannel, RawCmId};
use super::memory::{AccessFlags, MemoryRegion, ProtectionDomain};
use super::post::{Operation, ReceiveRequest, RemoteMemory, ScatterEntry, SendFlags, SendRequest};
use super::queue_pair::{Capacities, QpState, QueuePair, SharedReceiveQueue};
use crate::status::WcStatus;
use crate::status::porting::CmEvent as EventKind;
use crate::sync::{Mutex, MutexGuard};

/// Returns whether this machine has a device, or could get one while the tests run.
fn may_have_devices() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

#[test]
#[expect(clippy::print_stdout, reason = "the line is counted by `cargo xtask test`")]
fn calls_without_devices_return_errors() {
    if may_have_devices() {
        return println!("skipped: needs a machine without RDMA devices");
    }
    assert_eq!(device::device_names().unwrap(), Vec::<String>::new());
    assert!(Context::open("rxe0").is_err());
    if super::load().is_err() {
        assert_eq!(EventChannel::new().err().map(|error| error.kind()), Some(io::ErrorKind::Unsupported));
    } else if !std::path::Path::new("/dev/infiniband/rdma_cm").exists() {
        let error = EventChannel::new().err().expect("there is no connection manager");
        assert_ne!(error.raw_os_error(), None, "{error}");
        assert_ne!(error.kind(), io::ErrorKind::WouldBlock);
    }
}

/// The time limit of a test for an event that must come, in milliseconds: the guest is emulated.
const LIMIT: i32 = 60_000;

/// A device of the guest.
struct Device {
    name: String,
    address: SocketAddr,
    is_iwarp: bool,
}

/// The guard that a test holds while it runs on the guest's devices: they are its own. What the test has made is gone before
/// the guard is dropped, which checks that.
struct Guest(#[expect(dead_code, reason = "held for its drop")] MutexGuard<'static, ()>);

impl Drop for Guest {
    fn drop(&mut self) {
        assert!(std::thread::panicking() || self.objects().is_empty(), "{:?}", self.objects());
    }
}

/// Checks something on each of the guest's devices.
fn each(check: impl Fn(&Guest, &Device)) {
    let Some(guest) = Guest::enter() else { return };
    for device in [guest.rxe(), guest.siw()] {
        check(&guest, &device);
        assert_eq!(guest.objects(), [""; 0], "{}", device.name);
    }
}

impl Guest {
    /// Waits for the devices of the guest machine; `None`, after a line on standard output, on any other machine.
    #[expect(clippy::print_stdout, reason = "the line is counted by `cargo xtask test`")]
    fn enter() -> Option<Self> {
        static ONE_AT_A_TIME: LazyLock<Mutex<()>> = LazyLock::new(Mutex::default);
        if env::var_os("TOKIO_RDMA_GUEST").is_none() {
            println!("skipped: needs the devices of the guest machine");
            return None;
        }
        Some(Self(ONE_AT_A_TIME.lock()))
    }

    fn rxe(&self) -> Device {
        Self::device("RXE", false)
    }

    fn siw(&self) -> Device {
        Self::device("SIW", true)
    }

    fn device(kind: &str, is_iwarp: bool) -> Device {
        let variable = |name: &str| env::var(format!("TOKIO_RDMA_{kind}_{name}")).expect("the guest sets it");
        let address: IpAddr = variable("ADDR").parse().unwrap();
        Device { name: variable("DEVICE"), address: (address, 0).into(), is_iwarp }
    }

    /// Returns the objects that the kernel keeps for programs, of which this is the only one, of any kind but
    /// open devices.
    fn objects(&self) -> Vec<String> {
        let mut all = Vec::new();
        for kind in ["qp", "cq", "mr", "pd", "cm_id", "srq"] {
            let output = Command::new("rdma").args(["resource", "show", kind]).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8(output.stdout).unwrap();
            // The kernel's own have its name in brackets. The objects of a process are listed under the
            // thread that made it.
            let own = text.lines().filter(|line| !line.contains(" comm ["));
            all.extend(own.map(|line| format!("{kind} {line}")));
        }
        all
    }
}

/// Runs a program that must succeed.
fn run(line: &str) {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until there is something to read.
fn wait(source: &impl AsRawFd) {
    let mut poll = libc::pollfd { fd: source.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, which outlives the call.
    let ready = unsafe { libc::poll(&mut poll, 1, LIMIT) };
    assert_eq!(ready, 1, "nothing came");
}

/// Waits until `take` returns a value of the source.
fn next<T>(source: &impl AsRawFd, mut take: impl FnMut() -> Option<T>) -> T {
    loop {
        match take() {
            Some(taken) => return taken,
            None => wait(source),
        }
    }
}

/// Waits for the next event, which must be of this kind.
fn expect(channel: &Arc<EventChannel>, kind: EventKind) -> CmEvent {
    let next = next(&**channel, || channel.next().unwrap());
    assert_eq!(next.kind, kind, "status {}", next.status);
    next
}

/// Memory of a test, registered for everything, and only looked at when nothing is under way.
struct Buffer {
    start: NonNull<[u8]>,
    region: Option<MemoryRegion>,
}

impl Buffer {
    fn new(domain: &Arc<ProtectionDomain>, bytes: &[u8]) -> Self {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        Self::with_access(domain, bytes, access)
    }

    fn with_access(domain: &Arc<ProtectionDomain>, bytes: &[u8], access: AccessFlags) -> Self {
        let start = NonNull::from(Box::leak(Box::<[u8]>::from(bytes)));
        // SAFETY: the bytes are freed only when `drop` has deregistered them.
        let region = unsafe { MemoryRegion::register(domain, start.as_ptr().cast(), start.len(), access) };
        Self { start, region: Some(region.unwrap()) }
    }

    fn entry(&self) -> ScatterEntry {
        ScatterEntry {
            address: self.remote().address,
            length: self.start.len().try_into().unwrap(),
            key: self.region().local_key,
        }
    }

    /// Returns the address and the key for the peer.
    fn remote(&self) -> RemoteMemory {
        let address = self.start.as_ptr().cast::<u8>().expose_provenance() as u64;
        RemoteMemory { address, key: self.region().remote_key }
    }

    fn region(&self) -> &MemoryRegion {
        self.region.as_ref().unwrap()
    }

    fn text(&self) -> Vec<u8> {
        // SAFETY: the memory is live, and every request that writes to it has completed.
        unsafe { self.start.as_ref() }.to_vec()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let done = self.region.take().unwrap().deregister().is_ok();
        if done {
            // SAFETY: the memory came from a box, and neither a device nor a reference of this program refers to it.
            drop(unsafe { Box::from_raw(self.start.as_ptr()) });
        }
        assert!(done || std::thread::panicking());
    }
}

/// One side of a connection: a queue pair with all that it needs.
struct Side {
    queue_pair: QueuePair,
    queue: Arc<CompletionQueue>,
    channel: Arc<CompletionChannel>,
    domain: Arc<ProtectionDomain>,
}

const SMALL: Capacities = Capacities { send: 4, receive: 4, send_entries: 2, receive_entries: 2, inline: 0 };

impl Side {
    fn new(context: &Arc<Context>, key: u64) -> Self {
        let domain = ProtectionDomain::new(context).unwrap();
        Self::in_domain(context, &domain, key, None)
    }

    fn in_domain(
        context: &Arc<Context>,
        domain: &Arc<ProtectionDomain>,
        key: u64,
        shared: Option<&Arc<SharedReceiveQueue>>,
    ) -> Self {
        let channel = CompletionChannel::new(context).unwrap();
        let vector = context.completion_vectors() - 1;
        let queue = CompletionQueue::new(&channel, 16, key, vector).unwrap();
        assert!(queue.entries() >= 16);
        let queue_pair = QueuePair::new(domain, &queue, &queue, shared, SMALL).unwrap();
        Self { queue_pair, queue, channel, domain: domain.clone() }
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// The buffer lives, and is not looked at, until the completion.
    unsafe fn receive(&self, id: u64, buffer: &Buffer) {
        let request = ReceiveRequest { id, entries: &[buffer.entry()] };
        // SAFETY: the caller's.
        unsafe { self.queue_pair.post_receive(request) }.unwrap();
    }

    /// Posts a request to the send queue and waits until it has succeeded.
    fn post(&self, operation: Operation<'_>, local: &Buffer) {
        self.post_entries(operation, &[local.entry()], SendFlags::SIGNALED);
    }

    /// Posts a request like [`post`](Self::post), with these entries and flags. The memory that the entries name lives
    /// until this returns, and is not read before.
    fn post_entries(&self, operation: Operation<'_>, entries: &[ScatterEntry], flags: SendFlags) {
        let request = SendRequest { id: 51, operation, entries, flags: flags | SendFlags::SIGNALED };
        // SAFETY: what it names lives until the completion, and is not looked at before.
        unsafe { self.queue_pair.post_one(&request) }.unwrap();
        let done = self.complete(1);
        assert_eq!((done.len(), done[0].0, done[0].1.status), (1, 51, WcStatus::SUCCESS), "{done:?}");
    }

    /// Takes the queue pair to a state, with the attributes of its identifier.
    fn modify(&self, id: &RawCmId, state: QpState) {
        self.queue_pair.modify(&id.qp_attributes(state).unwrap()).unwrap();
    }

    /// Waits for `count` completions, the way a reactor does: arm, poll, wait.
    fn complete(&self, count: usize) -> Vec<(u64, WcResult)> {
        let mut all = Vec::new();
        let mut batch = Batch::default();
        loop {
            self.queue.arm().unwrap();
            while self.queue.poll(&mut batch, BATCH).unwrap() > 0 {
                all.extend(batch.runs(|_| 0).flat_map(|(_, run)| run.results()));
            }
            if all.len() >= count {
                return all;
            }
            wait(&*self.channel);
            let mut keys = Keys::new();
            assert!(!self.channel.next(64, &mut keys).unwrap(), "one queue, one event");
            assert!(keys.iter().all(|key| *key == self.queue.key), "{keys:?}");
        }
    }
}
