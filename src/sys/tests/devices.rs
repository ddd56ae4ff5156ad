//! Objects of real devices: the attributes that they report, how they end, and that none of them is left.

use std::collections::HashSet;
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::guest::{self, Buffer, Device, Guest, SMALL, Side};
use crate::status::{DeviceEvent, WcStatus};
use crate::sys::channel::EventChannel;
use crate::sys::completion::CompletionQueue;
use crate::sys::device::{self, AsyncEvent, Context, Element};
use crate::sys::id::{ConnectionParams, RawCmId};
use crate::sys::queue_pair::{QpState, QueuePair};

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
    guest::each(a_queue_pair_flushes);
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
        guest::run("ip link add veth8 type veth peer name veth9");
        guest::run("ip link set veth8 up");
        guest::run("ip link set veth9 up");
        guest::run("ip address add 10.79.0.1/24 dev veth8");
        guest::run("rdma link add rxe8 type rxe netdev veth8");
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
    guest::run("ip link set veth9 down");
    // Other events come before: the port has lost its address.
    while guest::next(&context, || context.next_async_event().unwrap())
        != (AsyncEvent { kind: DeviceEvent::PORT_ERR, element: Element::Port(1) })
    {}
    drop((context, own));
}
