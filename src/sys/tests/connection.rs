//! Connections between two identifiers of one channel, in one thread.

use std::sync::Arc;
use std::time::Duration;

use super::guest::{self, Buffer, Device, Guest, Side};
use crate::status::WcStatus;
use crate::status::porting::CmEvent as EventKind;
use crate::sys::channel::EventChannel;
use crate::sys::device::Context;
use crate::sys::ffi::number;
use crate::sys::id::{ConnectionParams, RawCmId};
use crate::sys::post::{Operation, RemoteMemory};
use crate::sys::queue_pair::QpState;

const PATIENCE: Duration = Duration::from_secs(30);

/// Keys of the identifiers.
const LISTENER: u64 = 1;
const ACTIVE: u64 = 2;
const PASSIVE: u64 = u64::MAX - 3;

/// Creates an identifier with a resolved route to the listener.
pub(super) fn resolved(channel: &Arc<EventChannel>, device: &Device, listener: &RawCmId) -> RawCmId {
    let id = RawCmId::new(channel, ACTIVE).unwrap();
    let address = listener.local_addr().unwrap();
    id.resolve_addr(Some(device.address), address, PATIENCE).unwrap();
    assert_eq!(guest::expect(channel, EventKind::ADDR_RESOLVED).key, ACTIVE);
    assert_eq!(id.peer_addr(), Some(address));
    id.resolve_route(PATIENCE).unwrap();
    assert_eq!(guest::expect(channel, EventKind::ROUTE_RESOLVED).key, ACTIVE);
    assert_eq!(id.device().unwrap().name, device.name);
    id
}

/// Creates an identifier that listens at the address of a device.
pub(super) fn listener(channel: &Arc<EventChannel>, device: &Device) -> RawCmId {
    let id = RawCmId::new(channel, LISTENER).unwrap();
    id.bind(device.address).unwrap();
    id.listen(4).unwrap();
    assert_ne!(id.local_addr().unwrap().port(), 0);
    id
}

/// Sends, writes and reads, and compares what comes of it. The receive has id 41.
fn transfer(from: &Side, to: &Side, buffer: &Buffer) {
    from.post(Operation::Send, &Buffer::new(&from.domain, b"hello"));
    let received = to.complete(1);
    assert_eq!((received[0].wr_id, received[0].status), (41, WcStatus::SUCCESS), "{received:?}");
    assert_eq!((received[0].byte_len, received[0].qp_num), (5, to.queue_pair.number()));
    assert_eq!(buffer.text(), *b"hello\0\0\0\0\0");

    let remote = buffer.remote();
    let behind = RemoteMemory { address: remote.address + 5, ..remote };
    from.post(Operation::Write(behind), &Buffer::new(&from.domain, b"world"));
    let back = Buffer::new(&from.domain, &[0; 10]);
    from.post(Operation::Read(remote), &back);
    assert_eq!(back.text(), *b"helloworld");
}

#[test]
fn three_phases_on_rxe() {
    let Some(guest) = Guest::enter() else { return };
    let device = guest.rxe();
    let context = Context::open(&device.name).unwrap();
    let channel = EventChannel::new().unwrap();
    assert!(channel.next().unwrap().is_none());
    let listener = listener(&channel, &device);
    let active_id = resolved(&channel, &device, &listener);
    let (active, passive) = (Side::new(&context, 11), Side::new(&context, 12));

    active.modify(&active_id, QpState::Init);
    let mut params = ConnectionParams {
        private_data: b"may I?",
        responder_resources: 2,
        initiator_depth: 3,
        retry_count: 7,
        rnr_retry_count: 7,
        qp_num: active.queue_pair.number(),
    };
    active_id.connect(&params).unwrap();

    let asked = guest::expect(&channel, EventKind::CONNECT_REQUEST);
    assert_eq!((asked.key, asked.responder_resources, asked.initiator_depth), (LISTENER, 3, 2));
    assert_eq!((&asked.private_data[..6], asked.private_data.len()), (&b"may I?"[..], 56));
    let mut passive_id = asked.request.unwrap();
    passive_id.set_key(PASSIVE);
    assert_eq!(passive_id.device(), active_id.device());
    assert_eq!(passive_id.peer_addr().unwrap().ip(), device.address.ip());
    passive.modify(&passive_id, QpState::Init);
    let buffer = Buffer::new(&passive.domain, &[0; 10]);
    // SAFETY: the buffer lives until its completion.
    unsafe { passive.receive(41, &buffer) };
    let mut attributes = passive_id.qp_attributes(QpState::ReadyToReceive).unwrap();
    attributes.set_max_dest_rd_atomic(2);
    passive.queue_pair.modify(&attributes).unwrap();
    let mut attributes = passive_id.qp_attributes(QpState::ReadyToSend).unwrap();
    attributes.set_max_rd_atomic(2);
    passive.queue_pair.modify(&attributes).unwrap();
    params.private_data = b"you may";
    params.qp_num = passive.queue_pair.number();
    passive_id.accept(&params).unwrap();

    let answer = guest::expect(&channel, EventKind::CONNECT_RESPONSE);
    assert_eq!(answer.key, ACTIVE);
    assert_eq!((&answer.private_data[..7], answer.private_data.len()), (&b"you may"[..], 196));
    assert!(channel.next().unwrap().is_none(), "the passive side waits for the third phase");
    active.modify(&active_id, QpState::ReadyToReceive);
    active.modify(&active_id, QpState::ReadyToSend);
    assert_eq!(active.queue_pair.state().unwrap(), QpState::ReadyToSend.number());
    active_id.establish().unwrap();
    assert_eq!(guest::expect(&channel, EventKind::ESTABLISHED).key, PASSIVE);

    transfer(&active, &passive, &buffer);

    active.queue_pair.to_error().unwrap();
    assert_eq!(active.queue_pair.state().unwrap(), number::IBV_QPS_ERR);
    active_id.disconnect().unwrap();
    assert_eq!(guest::expect(&channel, EventKind::DISCONNECTED).key, PASSIVE);
    passive.queue_pair.to_error().unwrap();
    passive_id.disconnect().unwrap();
    assert_eq!(guest::expect(&channel, EventKind::DISCONNECTED).key, ACTIVE);
    assert!(guest.objects().len() >= 11, "{:?}", guest.objects());
}

#[test]
fn two_phases_on_siw() {
    let Some(guest) = Guest::enter() else { return };
    let device = guest.siw();
    let context = Context::open(&device.name).unwrap();
    let channel = EventChannel::new().unwrap();
    let listener = listener(&channel, &device);
    let active_id = resolved(&channel, &device, &listener);
    let (active, passive) = (Side::new(&context, 11), Side::new(&context, 12));

    active.modify(&active_id, QpState::Init);
    let mut params = ConnectionParams {
        private_data: b"may I?",
        responder_resources: 2,
        initiator_depth: 3,
        qp_num: active.queue_pair.number(),
        ..ConnectionParams::default()
    };
    active_id.connect(&params).unwrap();

    let asked = guest::expect(&channel, EventKind::CONNECT_REQUEST);
    assert_eq!((asked.key, &asked.private_data[..]), (LISTENER, &b"may I?"[..]));
    let mut passive_id = asked.request.unwrap();
    passive_id.set_key(PASSIVE);
    passive.modify(&passive_id, QpState::Init);
    let buffer = Buffer::new(&passive.domain, &[0; 10]);
    // SAFETY: the buffer lives until its completion.
    unsafe { passive.receive(41, &buffer) };
    params.private_data = b"you may";
    params.qp_num = passive.queue_pair.number();
    passive_id.accept(&params).unwrap();

    // Both sides receive the event of the connection, in either order.
    let mut keys = Vec::new();
    for _ in 0..2 {
        let told = guest::expect(&channel, EventKind::ESTABLISHED);
        if told.key == ACTIVE {
            assert_eq!(&told.private_data[..], b"you may");
        }
        keys.push(told.key);
    }
    keys.sort_unstable();
    assert_eq!(keys, [ACTIVE, PASSIVE]);

    transfer(&active, &passive, &buffer);

    active_id.disconnect().unwrap();
    let mut keys = [(); 2].map(|()| guest::expect(&channel, EventKind::DISCONNECTED).key);
    keys.sort_unstable();
    assert_eq!(keys, [ACTIVE, PASSIVE]);
}
