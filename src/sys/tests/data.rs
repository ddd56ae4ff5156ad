//! Requests of every kind between two queue pairs, windows and shared receive queues.

use std::sync::Arc;

use super::connection;
use super::guest::{self, Buffer, Device, Guest, SMALL, Side};
use crate::status::WcStatus;
use crate::status::porting::CmEvent as EventKind;
use crate::sys::channel::EventChannel;
use crate::sys::completion::{BATCH, Batch, Keys, Told};
use crate::sys::device::{Context, Transport};
use crate::sys::id::{ConnectionParams, RawCmId};
use crate::sys::memory::{AccessFlags, MemoryWindow, ProtectionDomain, next_key};
use crate::sys::post::{Binding, Operation, ReceiveRequest, RemoteMemory, SendFlags, SendRequest};
use crate::sys::queue_pair::{Capacities, QpState};
use crate::sys::shared_receive::SharedReceiveQueue;

const ROOM: Capacities = Capacities { inline: 64, ..SMALL };
const INLINE: usize = 64;

/// Two connected sides, of which the passive one takes its receives from the shared queue if there is one.
struct Pair {
    active: Side,
    passive: Side,
    _ids: [RawCmId; 2],
}

/// Takes a queue pair to INIT, with every access.
fn initial(side: &Side, id: &RawCmId) {
    let mut attributes = id.qp_attributes(QpState::Init).unwrap();
    attributes.set_access(AccessFlags::all() - AccessFlags::MW_BIND);
    side.queue_pair.modify(&attributes).unwrap();
}

impl Pair {
    /// Connects two queue pairs. `prepare` posts the first receives of the passive side.
    fn connect(
        device: &Device,
        context: &Arc<Context>,
        domain: &Arc<ProtectionDomain>,
        shared: Option<&Arc<SharedReceiveQueue>>,
        prepare: impl FnOnce(&Side),
    ) -> Self {
        let channel = EventChannel::new().unwrap();
        let listener = connection::listener(&channel, device);
        let active_id = connection::resolved(&channel, device, &listener);
        let active = Side::in_domain(context, domain, 11, None, ROOM);
        let passive = Side::in_domain(context, domain, 12, shared, ROOM);
        initial(&active, &active_id);
        let mut params = ConnectionParams {
            responder_resources: 4,
            initiator_depth: 4,
            retry_count: 7,
            rnr_retry_count: 7,
            qp_num: active.queue_pair.number(),
            ..ConnectionParams::default()
        };
        active_id.connect(&params).unwrap();
        let passive_id = guest::expect(&channel, EventKind::CONNECT_REQUEST).request.unwrap();
        initial(&passive, &passive_id);
        prepare(&passive);
        params.qp_num = passive.queue_pair.number();
        if context.transport() == Transport::InfiniBand {
            passive.modify(&passive_id, QpState::ReadyToReceive);
            passive.modify(&passive_id, QpState::ReadyToSend);
            passive_id.accept(&params).unwrap();
            guest::expect(&channel, EventKind::CONNECT_RESPONSE);
            active.modify(&active_id, QpState::ReadyToReceive);
            active.modify(&active_id, QpState::ReadyToSend);
            active_id.establish().unwrap();
        } else {
            passive_id.accept(&params).unwrap();
            guest::expect(&channel, EventKind::ESTABLISHED);
        }
        guest::expect(&channel, EventKind::ESTABLISHED);
        Self { active, passive, _ids: [active_id, passive_id] }
    }
}

/// Opens a device and creates a domain of it.
fn open(device: &Device) -> (Arc<Context>, Arc<ProtectionDomain>) {
    let context = Context::open(&device.name).unwrap();
    let domain = ProtectionDomain::new(&context).unwrap();
    (context, domain)
}

#[test]
fn devices_announce_what_they_have() {
    let Some(guest) = Guest::enter() else { return };
    let attributes = Context::open(&guest.rxe().name).unwrap().attributes().unwrap();
    assert!(attributes.atomics && attributes.windows && attributes.invalidates, "{attributes:?}");
    assert!(attributes.max_srq > 0, "{attributes:?}");
    let attributes = Context::open(&guest.siw().name).unwrap().attributes().unwrap();
    assert!(!attributes.atomics && !attributes.windows, "{attributes:?}");
    assert!(attributes.max_srq > 0 && attributes.max_srq_wr >= 128);
}

/// Checks that one call posts a chain and reports where it ended when the queue is full; the requests before are
/// carried out, in order.
fn chains(device: &Device) {
    let (context, domain) = open(device);
    let inbox: Vec<_> = (0..4).map(|_| Buffer::new(&domain, &[0; 8])).collect();
    let pair = Pair::connect(device, &context, &domain, None, |passive| {
        for (id, buffer) in (0..).zip(&inbox) {
            // SAFETY: the buffers outlive the pair, and are looked at after their completions.
            unsafe { passive.receive(id, buffer) };
        }
    });
    let outbox: Vec<_> = (0..4_u8).map(|byte| Buffer::new(&domain, &[byte; 8])).collect();
    let entries: Vec<_> = outbox.iter().map(Buffer::entry).collect();
    let request = |id: usize, flags| SendRequest {
        id: id as u64,
        operation: Operation::Send,
        entries: &entries[id..=id],
        flags,
    };
    // Only the last one is reported, and the silent ones before it have succeeded then.
    let silent = SendFlags::empty();
    let chain = [request(0, silent), request(1, silent), request(2, silent), request(3, SendFlags::SIGNALED)];
    // SAFETY: the buffers live until the completion of the last.
    unsafe { pair.active.queue_pair.post_send(&chain) }.unwrap();
    let done = pair.active.complete(1);
    assert_eq!((done.len(), done[0].wr_id, done[0].status), (1, 3, WcStatus::SUCCESS), "{done:?}");
    let received = pair.passive.complete(4);
    assert_eq!(received.iter().map(|done| done.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3]);
    for (byte, buffer) in (0..4_u8).zip(&inbox) {
        assert_eq!(buffer.text(), [byte; 8]);
    }

    // Reads that the peer has to answer leave no time to make room for so many.
    let remote = inbox[0].remote();
    let back = Buffer::new(&domain, &[0; 8]);
    let entry = [back.entry()];
    let many: Vec<_> = (0..5000)
        .map(|id| SendRequest {
            id,
            operation: Operation::Read(remote),
            entries: &entry,
            flags: SendFlags::SIGNALED,
        })
        .collect();
    // SAFETY: the buffer is not looked at and lives until all has completed.
    let refused = unsafe { pair.active.queue_pair.post_send(&many) }.unwrap_err();
    assert_eq!(refused.source.raw_os_error(), Some(libc::ENOMEM));
    assert!((4..5000).contains(&refused.taken), "{}", refused.taken);
    pair.active.queue_pair.to_error().unwrap();
    drop(pair);
}

#[test]
fn chains_of_requests_on_each_device() {
    guest::each(|_, device| chains(device));
}

/// Checks that inline bytes need no key and are not read later, and that a solicited message wakes a task that waits
/// for one, but not with `siw`, which loses the flag.
fn inline_and_solicited(device: &Device) {
    let (context, domain) = open(device);
    let inbox = [Buffer::new(&domain, &[0; INLINE]), Buffer::new(&domain, &[0; INLINE])];
    let pair = Pair::connect(device, &context, &domain, None, |passive| {
        for (id, buffer) in [41, 42].into_iter().zip(&inbox) {
            // SAFETY: the buffers outlive the pair, and are looked at after their completions.
            unsafe { passive.receive(id, buffer) };
        }
    });
    assert!(pair.active.queue_pair.inline() as usize >= INLINE);
    let waiting = &pair.passive;
    waiting.queue.arm(true).unwrap();
    let mut bytes = *b"inline data, and so much of it that it only just fits into it!!!";
    let mut entry = Buffer::new(&domain, &bytes).entry();
    entry.address = (&raw mut bytes).expose_provenance() as u64;
    entry.key = 0;
    pair.active.post_entries(Operation::Send, &[entry], SendFlags::INLINE);
    let expected = bytes;
    let mut batch = Batch::default();
    while waiting.queue.poll(&mut batch, BATCH).unwrap() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(inbox[0].text(), expected);
    let mut keys = Keys::new();
    assert!(!waiting.channel.next(1, &mut keys).unwrap() && keys.is_empty(), "it was not solicited");
    pair.active.post_entries(Operation::Send, &[entry], SendFlags::INLINE | SendFlags::SOLICITED);
    if context.transport() == Transport::InfiniBand {
        guest::wait(&*waiting.channel);
        assert!(waiting.channel.next(1, &mut keys).unwrap());
        assert_eq!(&keys[..], [waiting.queue.key()]);
        assert_eq!(waiting.queue.poll(&mut batch, BATCH).unwrap(), 1);
    } else {
        while waiting.queue.poll(&mut batch, BATCH).unwrap() == 0 {
            std::thread::yield_now();
        }
        assert!(!waiting.channel.next(1, &mut keys).unwrap() && keys.is_empty());
    }
    drop(pair);
}

#[test]
fn inline_and_solicited_on_each_device() {
    guest::each(|_, device| inline_and_solicited(device));
}

#[test]
fn immediate_data_and_atomics_on_rxe() {
    let Some(guest) = Guest::enter() else { return };
    let device = guest.rxe();
    let (context, domain) = open(&device);
    let target = Buffer::with_access(&domain, &7_u64.to_ne_bytes(), AccessFlags::all());
    let pair = Pair::connect(&device, &context, &domain, None, |passive| {
        for id in [41, 42] {
            // SAFETY: the buffer outlives the pair.
            unsafe { passive.receive(id, &target) };
        }
    });
    let remote = target.remote();
    let back = Buffer::new(&domain, &[0; 8]);
    pair.active.post(Operation::FetchAdd { remote, add: 5 }, &back);
    assert_eq!(back.text(), 7_u64.to_ne_bytes());
    pair.active.post(Operation::CompareSwap { remote, compare: 12, swap: 1 << 40 }, &back);
    assert_eq!(back.text(), 12_u64.to_ne_bytes());
    pair.active.post(Operation::CompareSwap { remote, compare: 12, swap: 3 }, &back);
    assert_eq!(back.text(), (1_u64 << 40).to_ne_bytes());

    let words = Buffer::new(&domain, b"immediat");
    pair.active.post(Operation::SendImmediate(0x0102_0304), &words);
    pair.active.post(Operation::WriteImmediate(remote, u32::MAX - 1), &words);
    let told: Vec<_> = pair.passive.complete(2).iter().map(|done| (done.wr_id, done.told)).collect();
    let expected = [(41, 0x0102_0304), (42, u32::MAX - 1)];
    assert_eq!(told, expected.map(|(id, immediate)| (id, Some(Told::Immediate(immediate)))));
    assert_eq!(target.text(), *b"immediat");
    drop(pair);
}

#[test]
fn windows_on_rxe() {
    let Some(guest) = Guest::enter() else { return };
    let device = guest.rxe();
    let (context, domain) = open(&device);
    let memory = Buffer::with_access(&domain, &[b'.'; 12], AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND);
    let inbox = Buffer::new(&domain, &[0; 8]);
    let pair = Pair::connect(&device, &context, &domain, None, |passive| {
        // SAFETY: the buffer outlives the pair.
        unsafe { passive.receive(41, &inbox) };
    });
    let window = MemoryWindow::new(&domain).unwrap();
    let key = next_key(window.key());
    let address = memory.remote().address + 4;
    let bind = |key, next_key| {
        Operation::BindWindow(Binding {
            window: &window,
            key,
            next_key,
            region: memory.region(),
            address,
            length: 4,
            access: AccessFlags::REMOTE_WRITE,
        })
    };
    pair.passive.post_entries(bind(window.key(), key), &[], SendFlags::empty());
    let words = Buffer::new(&domain, b"bind");
    pair.active.post(Operation::Write(RemoteMemory { address, key }), &words);
    assert_eq!(memory.text(), *b"....bind....");
    // Invalidated here, and bound again; then the peer does it.
    pair.passive.post_entries(Operation::LocalInvalidate(key), &[], SendFlags::FENCE);
    let again = next_key(key);
    pair.passive.post_entries(bind(key, again), &[], SendFlags::empty());
    let words = Buffer::new(&domain, b"next");
    pair.active.post(Operation::Write(RemoteMemory { address, key: again }), &words);
    assert_eq!(memory.text(), *b"....next....");
    pair.active.post(Operation::SendInvalidate(again), &words);
    let done = pair.passive.complete(1);
    assert_eq!((done[0].wr_id, done[0].told), (41, Some(Told::Invalidated(again))));
    // The key gives no access after that.
    let entries = [words.entry()];
    let operation = Operation::Write(RemoteMemory { address, key: again });
    let request = SendRequest { id: 52, operation, entries: &entries, flags: SendFlags::SIGNALED };
    // SAFETY: the buffer lives until the completion.
    unsafe { pair.active.queue_pair.post_send(&[request]) }.unwrap();
    assert_eq!(pair.active.complete(1)[0].status, WcStatus::REM_ACCESS_ERR);
    // Before its queue pair, which would wait for it.
    drop(window);
    drop(pair);
}

#[test]
fn siw_has_no_windows() {
    let Some(guest) = Guest::enter() else { return };
    let (_context, domain) = open(&guest.siw());
    let error = MemoryWindow::new(&domain).err().expect("there are none");
    assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
}

/// Checks that two queue pairs take receives from one queue, in its order.
fn shared_receives(device: &Device) {
    let (context, domain) = open(device);
    let shared = SharedReceiveQueue::new(&domain, 8, 1, 77).unwrap();
    let inbox: Vec<_> = (0..4).map(|_| Buffer::new(&domain, &[0; 8])).collect();
    let entries: Vec<_> = inbox.iter().map(Buffer::entry).collect();
    for id in 0..4 {
        let request = ReceiveRequest { id: id as u64, entries: &entries[id..=id] };
        // SAFETY: the buffers outlive the queue.
        unsafe { shared.post(request) }.unwrap();
    }
    let pairs = [0, 1].map(|_| Pair::connect(device, &context, &domain, Some(&shared), |_| ()));
    let words = Buffer::new(&domain, b"to share");
    for (place, id) in [(0, 0), (1, 1), (0, 2), (1, 3)] {
        pairs[place].active.post(Operation::Send, &words);
        let done = pairs[place].passive.complete(1);
        assert_eq!((done[0].wr_id, done[0].status), (id, WcStatus::SUCCESS));
        assert_eq!(done[0].qp_num, pairs[place].passive.queue_pair.number());
        assert_eq!(inbox[id as usize].text(), *b"to share");
    }
    let resized = shared.resize(64);
    if context.transport() == Transport::InfiniBand {
        resized.unwrap();
        for id in 0..64 {
            // SAFETY: as above.
            unsafe { shared.post(ReceiveRequest { id, entries: &entries[..1] }) }.unwrap();
        }
    } else {
        assert_eq!(resized.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
    }
    drop((pairs, shared, inbox));
}

#[test]
fn shared_receive_queues_on_each_device() {
    guest::each(|_, device| shared_receives(device));
}

// CQ-06: a queue that grows keeps what it has.
#[test]
fn completion_queues_can_be_resized_on_rxe() {
    let Some(guest) = Guest::enter() else { return };
    let device = guest.rxe();
    let (context, domain) = open(&device);
    let inbox = Buffer::new(&domain, &[0; 8]);
    let pair = Pair::connect(&device, &context, &domain, None, |passive| {
        // SAFETY: the buffer outlives the pair.
        unsafe { passive.receive(41, &inbox) };
    });
    pair.active.post(Operation::Send, &inbox);
    let before = pair.passive.queue.entries();
    pair.passive.queue.resize(before * 4).unwrap();
    assert!(pair.passive.queue.entries() >= before * 4);
    assert_eq!(pair.passive.complete(1)[0].wr_id, 41);
    drop(pair);
}

#[test]
fn a_window_gets_another_key_each_time() {
    assert_eq!(next_key(0x0012_34fe), 0x0012_34ff);
    assert_eq!(next_key(0x0012_34ff), 0x0012_3400);
    assert_eq!(next_key(u32::MAX), 0xffff_ff00);
}
