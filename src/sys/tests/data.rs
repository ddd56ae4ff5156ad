//! Objects of real devices, in one thread: connections, requests, windows and shared receive queues, the attributes that devices
//! report, how objects end, and that none of them is left.

use std::collections::HashSet;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::{Buffer, Device, Guest, SMALL, Side};
use crate::status::porting::CmEvent as EventKind;
use crate::status::{DeviceEvent, WcStatus};
use crate::sys::completion::{CompletionQueue, Told};
use crate::sys::device::{self, AsyncEvent, Context, Element};
use crate::sys::id::{ConnectionParams, EventChannel, RawCmId};
use crate::sys::memory::{AccessFlags, MemoryWindow, ProtectionDomain, next_key};
use crate::sys::post::{Binding, Operation, ReceiveRequest, RemoteMemory, SendFlags, SendRequest};
use crate::sys::queue_pair::{QpState, QueuePair, SharedReceiveQueue};
use crate::sys::tests;

const PATIENCE: Duration = Duration::from_secs(30);

/// Keys of the identifiers.
const LISTENER: u64 = 1;
const ACTIVE: u64 = 2;
const PASSIVE: u64 = u64::MAX - 3;

/// Two connected sides, of which the passive one takes its receives from the shared queue if there is one.
struct Pair {
    active: Side,
    passive: Side,
    channel: Arc<EventChannel>,
    ids: [RawCmId; 2],
}

/// Creates an identifier with a resolved route to the listener.
fn resolved(channel: &Arc<EventChannel>, device: &Device, listener: &RawCmId) -> RawCmId {
    let id = RawCmId::new(channel, ACTIVE).unwrap();
    let address = listener.local_addr().unwrap();
    id.resolve_addr(Some(device.address), address, PATIENCE).unwrap();
    assert_eq!(tests::expect(channel, EventKind::ADDR_RESOLVED).key, ACTIVE);
    assert_eq!(id.peer_addr(), Some(address));
    id.resolve_route(PATIENCE).unwrap();
    assert_eq!(tests::expect(channel, EventKind::ROUTE_RESOLVED).key, ACTIVE);
    assert_eq!(id.device().unwrap().name, device.name);
    id
}

/// Creates an identifier that listens at the address of a device.
fn listener(channel: &Arc<EventChannel>, device: &Device) -> RawCmId {
    let id = RawCmId::new(channel, LISTENER).unwrap();
    id.bind(device.address).unwrap();
    id.listen(4).unwrap();
    assert_ne!(id.local_addr().unwrap().port(), 0);
    id
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
        assert!(channel.next().unwrap().is_none());
        let listener = listener(&channel, device);
        let active_id = resolved(&channel, device, &listener);
        let active = Side::in_domain(context, domain, 11, None);
        let passive = Side::in_domain(context, domain, 12, shared);
        initial(&active, &active_id);
        let mut params = ConnectionParams {
            private_data: b"may I?",
            responder_resources: 4,
            initiator_depth: 4,
            retry_count: 7,
            rnr_retry_count: 7,
            qp_num: active.queue_pair.number,
        };
        active_id.connect(&params).unwrap();
        let asked = tests::expect(&channel, EventKind::CONNECT_REQUEST);
        assert_eq!((asked.key, &asked.private_data[..6]), (LISTENER, &b"may I?"[..]));
        let mut passive_id = asked.request.unwrap();
        passive_id.set_key(PASSIVE);
        assert_eq!(passive_id.device(), active_id.device());
        initial(&passive, &passive_id);
        prepare(&passive);
        params.private_data = b"you may";
        params.qp_num = passive.queue_pair.number;
        if context.is_iwarp() {
            passive_id.accept(&params).unwrap();
            tests::expect(&channel, EventKind::ESTABLISHED);
            tests::expect(&channel, EventKind::ESTABLISHED);
        } else {
            passive.modify(&passive_id, QpState::ReadyToReceive);
            passive.modify(&passive_id, QpState::ReadyToSend);
            passive_id.accept(&params).unwrap();
            let answer = tests::expect(&channel, EventKind::CONNECT_RESPONSE);
            assert_eq!((answer.key, &answer.private_data[..7]), (ACTIVE, &b"you may"[..]));
            assert!(channel.next().unwrap().is_none(), "the passive side waits for the third phase");
            active.modify(&active_id, QpState::ReadyToReceive);
            active.modify(&active_id, QpState::ReadyToSend);
            active_id.establish().unwrap();
            assert_eq!(tests::expect(&channel, EventKind::ESTABLISHED).key, PASSIVE);
        }
        Self { active, passive, channel, ids: [active_id, passive_id] }
    }
}

/// Opens a device and creates a domain of it.
fn open(device: &Device) -> (Arc<Context>, Arc<ProtectionDomain>) {
    let context = Context::open(&device.name).unwrap();
    let domain = ProtectionDomain::new(&context).unwrap();
    (context, domain)
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
    unsafe { pair.active.queue_pair.post_send(&chain, |other| other.clone()) }.unwrap();
    let done = pair.active.complete(1);
    assert_eq!((done.len(), done[0].0, done[0].1.status), (1, 3, WcStatus::SUCCESS), "{done:?}");
    let received = pair.passive.complete(4);
    assert_eq!(received.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1, 2, 3]);
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
    let refused = unsafe { pair.active.queue_pair.post_send(&many, |other| other.clone()) }.unwrap_err();
    assert_eq!(refused.source.raw_os_error(), Some(libc::ENOMEM));
    assert!((4..5000).contains(&refused.taken), "{}", refused.taken);
    pair.active.queue_pair.to_error().unwrap();
    drop(pair);
}

#[test]
fn chains_of_requests_on_each_device() {
    tests::each(|_, device| chains(device));
}

/// Checks that a message, a write and a read arrive, and the disconnects behind them.
fn transfers(device: &Device) {
    let (context, domain) = open(device);
    let buffer = Buffer::new(&domain, &[0; 10]);
    let Pair { active, passive, channel, ids } = Pair::connect(device, &context, &domain, None, |passive| {
        // SAFETY: the buffer lives until its completion.
        unsafe { passive.receive(41, &buffer) };
    });
    active.post(Operation::Send, &Buffer::new(&domain, b"hello"));
    let received = passive.complete(1);
    assert_eq!((received[0].0, received[0].1.status), (41, WcStatus::SUCCESS), "{received:?}");
    assert_eq!(received[0].1.bytes, 5);
    assert_eq!(buffer.text(), *b"hello\0\0\0\0\0");

    let remote = buffer.remote();
    let behind = RemoteMemory { address: remote.address + 5, ..remote };
    active.post(Operation::Write(behind), &Buffer::new(&domain, b"world"));
    let back = Buffer::new(&domain, &[0; 10]);
    active.post(Operation::Read(remote), &back);
    assert_eq!(back.text(), *b"helloworld");

    ids[0].disconnect().unwrap();
    let mut keys = vec![tests::expect(&channel, EventKind::DISCONNECTED).key];
    if !context.is_iwarp() {
        ids[1].disconnect().unwrap();
    }
    keys.push(tests::expect(&channel, EventKind::DISCONNECTED).key);
    keys.sort_unstable();
    assert_eq!(keys, [ACTIVE, PASSIVE]);
}

#[test]
fn transfers_on_each_device() {
    tests::each(|_, device| transfers(device));
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
    let key = next_key(window.key);
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
    pair.passive.post_entries(bind(window.key, key), &[], SendFlags::empty());
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
    assert_eq!((done[0].0, done[0].1.told), (41, Some(Told::Invalidated(again))));
    // The key gives no access after that.
    let entries = [words.entry()];
    let operation = Operation::Write(RemoteMemory { address, key: again });
    let request = SendRequest { id: 52, operation, entries: &entries, flags: SendFlags::SIGNALED };
    // SAFETY: the buffer lives until the completion.
    unsafe { pair.active.queue_pair.post_one(&request) }.unwrap();
    assert_eq!(pair.active.complete(1)[0].1.status, WcStatus::REM_ACCESS_ERR);
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
        assert_eq!((done[0].0, done[0].1.status), (id, WcStatus::SUCCESS));
        assert_eq!(inbox[id as usize].text(), *b"to share");
    }
    let resized = shared.resize(64);
    if !context.is_iwarp() {
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
    tests::each(|_, device| shared_receives(device));
}

#[test]
fn a_window_gets_another_key_each_time() {
    assert_eq!(next_key(0x0012_34fe), 0x0012_34ff);
    assert_eq!(next_key(0x0012_34ff), 0x0012_3400);
    assert_eq!(next_key(u32::MAX), 0xffff_ff00);
}

/// Checks that a queue pair in INIT takes receives and in ERROR returns them flushed, and that no object of the device
/// is left.
fn a_queue_pair_flushes(guest: &Guest, device: &Device) {
    assert!(device::device_names().unwrap().contains(&device.name));
    let context = Context::open(&device.name).unwrap();
    assert_eq!(context.is_iwarp(), device.is_iwarp);
    let attributes = context.attributes().unwrap();
    assert!(
        attributes.max_qp_wr >= 128 && attributes.max_sge >= 1 && attributes.max_cqe >= 128,
        "{attributes:?}"
    );
    assert!(attributes.max_mr_size >= 1 << 30 && attributes.max_qp_rd_atom >= 1, "{attributes:?}");
    assert!(context.max_message(1).unwrap() >= 1 << 20);
    assert_eq!(attributes.ports, 1);
    let port = context.port(1).unwrap();
    assert!(port.is_active() && port.mtu.is_some_and(|mtu| mtu >= 1024), "{port:?}");

    let channel = EventChannel::new().unwrap();
    let mut id = RawCmId::new(&channel, 7).unwrap();
    assert_eq!((id.key(), id.local_addr(), id.peer_addr(), id.device()), (7, None, None, None));
    id.set_key(8);
    assert_eq!(id.key(), 8);
    // Without a device these are errors, and do not ask the library, which would crash.
    let refused = [
        id.resolve_route(Duration::from_secs(1)),
        id.connect(&ConnectionParams::default()),
        id.accept(&ConnectionParams::default()),
        id.disconnect(),
    ];
    assert!(refused.iter().all(|result| result.is_err()), "{refused:?}");
    id.bind(device.address).unwrap();
    assert_eq!(id.local_addr().unwrap().ip(), device.address.ip());
    let bound = id.device().unwrap();
    assert_eq!((&bound.name, bound.port), (&device.name, 1));

    let side = Side::new(&context, 21);
    side.modify(&id, QpState::Init);
    let buffer = Buffer::new(&side.domain, &[0; 100]);
    for id in [31, 32] {
        // SAFETY: the buffer lives until the queue pair is gone, and is not looked at.
        unsafe { side.receive(id, &buffer) };
    }
    side.queue_pair.to_error().unwrap();
    let completions = side.complete(2);
    let flushed: Vec<_> = completions.iter().map(|(id, done)| (*id, done.status)).collect();
    assert_eq!(flushed, [(31, WcStatus::WR_FLUSH_ERR), (32, WcStatus::WR_FLUSH_ERR)]);
    let number = side.queue_pair.number;
    assert!(
        context.next_async_event().unwrap().is_none_or(|event| event.element == Element::QueuePair(number))
    );

    assert!(!guest.objects().is_empty());
    // Parents are dropped before their children.
    drop(context);
    drop(channel);
    let Side { queue_pair, queue, channel, domain } = side;
    drop(channel);
    drop(domain);
    drop(queue);
    drop(queue_pair);
    drop(buffer);
    drop(id);
}

#[test]
fn queue_pair_flushes_and_leaves_nothing() {
    tests::each(a_queue_pair_flushes);
}

/// Creates more queues than `siw` has page numbers for without trouble: it gives user space the place of a queue as a
/// page number, of which one also means that there is none.
#[test]
fn siw_supports_queues_beyond_its_page_numbers() {
    let Some(guest) = Guest::enter() else { return };
    let context = Context::open(&guest.siw().name).unwrap();
    let side = Side::new(&context, 1);
    let made: Vec<_> = (0..200)
        .map(|count| match QueuePair::new(&side.domain, &side.queue, &side.queue, None, SMALL) {
            Ok(queue_pair) => queue_pair,
            Err(error) => panic!("queue pair {count}: {error}"),
        })
        .collect();
    let numbers: HashSet<_> = made.iter().map(|queue_pair| queue_pair.number).collect();
    assert_eq!(numbers.len(), 200);
    let queues: Vec<_> = (0..200)
        .map(|key| {
            CompletionQueue::new(&side.channel, 16, key, 0)
                .map_err(|error| format!("{key}: {error}"))
                .unwrap()
        })
        .collect();
    drop((made, queues, side, context));
}

/// A device with a network of its own, which a test may remove.
struct OwnDevice;

impl OwnDevice {
    fn new() -> Self {
        tests::run("ip link add veth8 type veth peer name veth9");
        tests::run("ip link set veth8 up");
        tests::run("ip link set veth9 up");
        tests::run("ip address add 10.79.0.1/24 dev veth8");
        tests::run("rdma link add rxe8 type rxe netdev veth8");
        Self
    }
}

impl Drop for OwnDevice {
    fn drop(&mut self) {
        // With the link goes its device, if it still has one.
        let deleted = Command::new("ip").args(["link", "del", "veth8"]).status();
        assert!(deleted.is_ok_and(|status| status.success()) || thread::panicking());
    }
}

#[test]
fn a_port_that_goes_down_is_told() {
    let Some(_guest) = Guest::enter() else { return };
    let own = OwnDevice::new();
    let context = Context::open("rxe8").unwrap();
    tests::run("ip link set veth9 down");
    // Other events come before: the port has lost its address.
    while tests::next(&context, || context.next_async_event().unwrap())
        != (AsyncEvent { kind: DeviceEvent::PORT_ERR, element: Element::Port(1) })
    {}
    drop((context, own));
}
