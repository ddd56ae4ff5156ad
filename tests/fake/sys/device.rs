//! Devices: the list, opening, attributes, and events that belong to no request.

use std::ffi::{c_char, c_int};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::MutexGuard;

use super::events::{self, EventQueue};
use super::status::{asynchronous, node};
use super::types::*;
use super::world::{self, World, live};
use super::{
    Answer, address, completion, free, instant, memory, minus_one, number, number_of, pointer, post, zeroed,
};

const NAME: &str = "fake0";
const GUID: u64 = 0x00fa_ce00_00fa_ce01;
const FIRMWARE: &str = "16.35.2000";
const DOWN: u32 = 1;
const ACTIVE: u32 = 4;
const MTU_4096: u32 = 5;
/// Four lanes of 25 Gbit/s.
const WIDTH_4X: u8 = 2;
const SPEED_EDR: u8 = 32;
const VECTORS: c_int = 4;

pub(super) const MAX_QP_WR: u32 = 16_384;
pub(super) const MAX_SGE: u32 = 16;
pub(super) const MAX_CQE: u32 = (1 << 20) - 1;
pub(super) const MAX_READS: u8 = 16;
/// A receive of a shared queue has a link to the next one in the place of an entry.
pub(super) const MAX_SRQ_SGE: u32 = MAX_SGE - 1;
pub(super) const MAX_SRQ_WR: u32 = 16_384;
pub(super) const MAX_INLINE: u32 = 256;
pub(super) const MAX_MESSAGE: u32 = 1 << 30;

/// The devices of this machine: one, and those that were added.
pub(super) struct Devices {
    all: Vec<Device>,
    pub(super) addresses: Vec<Place>,
    /// It was taken out of the machine: every command fails.
    pub(super) removed: bool,
    /// The ports that are down.
    down: Vec<u8>,
    /// The P_Key table: the number of the P_Key at each index.
    pub(super) partitions: Partitions,
}

/// The P_Keys of a device by their indices, each as the number that a [`Place`] has. An entry can be empty.
#[derive(Clone, Copy)]
pub(super) struct Partitions([Option<u16>; PARTITIONS as usize]);

impl Partitions {
    pub(super) fn at(self, index: u16) -> Option<u16> {
        self.0.get(usize::from(index)).copied().flatten()
    }

    /// The index of a P_Key now.
    pub(super) fn index(self, key: u16) -> Answer<u16> {
        let place = self.0.iter().position(|own| *own == Some(key)).ok_or(libc::EINVAL)?;
        Ok(place as u16)
    }
}

/// A device of this machine.
struct Device {
    name: String,
    raw: *mut ibv_device,
    /// The context by which the connection manager names the device.
    cm: *mut ibv_context,
    /// The error of its connections, if it is one that cannot connect.
    refuses: Option<c_int>,
}

impl Device {
    fn new(name: &str) -> Self {
        // SAFETY: the structure is integers and pointers.
        let raw: *mut ibv_device = unsafe { zeroed() };
        // SAFETY: the structure is new.
        let device = unsafe { &mut *raw };
        for (to, from) in device.name.iter_mut().zip(name.bytes()) {
            *to = from as c_char;
        }
        device.dev_name = device.name;
        Self { name: name.to_owned(), raw, cm: new_context(raw, -1), refuses: None }
    }
}

/// An address of a device, with the port that it is of and the number of its P_Key.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The number of the device; the first is 0.
    pub(super) device: usize,
    pub(super) ip: IpAddr,
    /// The number of the interface of a link-local address; otherwise 0.
    pub(super) scope: u32,
    pub(super) port: u8,
    pub(super) key: u16,
}

/// The number of ports and of P_Keys.
pub(super) const PORTS: u8 = 2;
pub(super) const PARTITIONS: u16 = 2;

impl Place {
    /// The P_Key, as C has it.
    pub(super) fn partition(self) -> u16 {
        (0xffff - self.key).to_be()
    }
}

impl Default for Devices {
    fn default() -> Self {
        let own: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let addresses = own.map(|ip| Place { device: 0, ip, scope: 0, port: 1, key: 0 }).into();
        let mut devices = Self {
            all: vec![Device::new(NAME)],
            addresses,
            removed: false,
            down: Vec::new(),
            partitions: Partitions([Some(0), Some(1)]),
        };
        devices.show(node::CHANNEL_ADAPTER, number::IBV_TRANSPORT_IB);
        devices
    }
}

impl Devices {
    /// Shows a kind of card to whoever looks at the list.
    pub(super) fn show(&mut self, node_type: c_int, transport: c_int) {
        for device in &self.all {
            // SAFETY: devices are never freed, and this one was not opened yet.
            let device = unsafe { &mut *device.raw };
            (device.node_type, device.transport_type) = (node_type, transport);
        }
    }

    /// Adds a device.
    pub(super) fn add(&mut self, name: &str) -> Answer<()> {
        if self.number(name).is_ok() {
            return Err(libc::EEXIST);
        }
        let new = Device::new(name);
        let like = self.all.first().ok_or(libc::ENODEV)?.raw;
        // SAFETY: devices are never freed.
        let like = unsafe { &*like };
        // SAFETY: the structure is new.
        let raw = unsafe { &mut *new.raw };
        (raw.node_type, raw.transport_type) = (like.node_type, like.transport_type);
        self.all.push(new);
        Ok(())
    }

    /// The number of the device with a name.
    pub(super) fn number(&self, name: &str) -> Answer<usize> {
        self.all.iter().position(|device| device.name == name).ok_or(libc::ENODEV)
    }

    /// Has every connection of a device fail.
    pub(super) fn refuse(&mut self, name: &str, error: c_int) -> Answer<()> {
        let number = self.number(name)?;
        self.all[number].refuses = Some(error);
        Ok(())
    }

    /// The error of the connections from an address, if its device cannot connect.
    pub(super) fn refusal(&self, place: Place) -> Option<c_int> {
        self.all.get(place.device)?.refuses
    }

    /// The context by which ids name the device that has an address, and what that address is of.
    pub(super) fn owner(&self, to: SocketAddr) -> Option<(*mut ibv_context, Place)> {
        let scope = address::scope(to);
        let is_own = |own: &&Place| address::same_ip(own.ip, to.ip()) && own.scope == scope;
        let place = self.addresses.iter().find(is_own)?;
        let device = self.all.get(place.device).filter(|_| !self.removed)?;
        Some((device.cm, *place))
    }

    /// Whether packets come and go by this port.
    pub(super) fn is_up(&self, port: u8) -> bool {
        !self.down.contains(&port)
    }

    /// The contexts by which ids name the devices that are there.
    pub(super) fn known(&self) -> Vec<*mut ibv_context> {
        let all = self.all.iter().filter(|_| !self.removed);
        all.map(|device| device.cm).collect()
    }
}

/// An open device.
pub(super) struct Context {
    events: EventQueue<(u32, usize)>,
    /// Events that were taken and not acknowledged, by their objects.
    taken: Vec<usize>,
    /// The number of its objects.
    pub(super) objects: usize,
}

fn new_context(device: *mut ibv_device, descriptor: c_int) -> *mut ibv_context {
    // SAFETY: the structure is integers, pointers and functions that may be missing.
    let raw: *mut ibv_context = unsafe { zeroed() };
    // SAFETY: the structure is new.
    let context = unsafe { &mut *raw };
    context.device = device;
    context.cmd_fd = -1;
    context.async_fd = descriptor;
    context.num_comp_vectors = VECTORS;
    context.ops.alloc_mw = Some(memory::alloc_mw);
    context.ops.dealloc_mw = Some(memory::dealloc_mw);
    context.ops.poll_cq = Some(completion::poll_cq);
    context.ops.req_notify_cq = Some(completion::req_notify_cq);
    context.ops.post_srq_recv = Some(post::post_srq_recv);
    context.ops.post_send = Some(post::post_send);
    context.ops.post_recv = Some(post::post_recv);
    instant::dress_up(context);
    raw
}

impl World {
    /// Tells the opener of a device of something about an object of it.
    pub(super) fn asynchronous(&mut self, context: *mut ibv_context, kind: u32, object: usize) {
        live(&mut self.contexts, context).events.push((kind, object));
    }

    /// Counts an object of an open device.
    pub(super) fn add_object(&mut self, context: *mut ibv_context) -> Answer<()> {
        if self.devices.removed {
            return Err(libc::EIO);
        }
        live(&mut self.contexts, context).objects += 1;
        Ok(())
    }

    pub(super) fn remove_object(&mut self, context: *mut ibv_context) {
        live(&mut self.contexts, context).objects -= 1;
    }

    /// Has a port go down or come up.
    pub(super) fn set_port(&mut self, port: u8, up: bool) {
        self.devices.down.retain(|other| *other != port);
        if !up {
            self.devices.down.push(port);
        }
        self.port_event(if up { asynchronous::PORT_ACTIVE } else { asynchronous::PORT_ERR }, port);
    }

    /// Says that something about a port has changed.
    pub(super) fn port_event(&mut self, kind: u32, port: u8) {
        for context in self.contexts.values_mut() {
            context.events.push((kind, port.into()));
        }
    }

    /// Writes the P_Key table anew, as the subnet manager does when a partition is added or removed.
    pub(super) fn set_partitions(&mut self, partitions: [Option<u16>; PARTITIONS as usize]) {
        self.devices.partitions = Partitions(partitions);
        for context in self.contexts.values_mut() {
            (1..=PORTS).for_each(|port| context.events.push((asynchronous::PKEY_CHANGE, port.into())));
        }
    }

    /// Takes the device out of the machine.
    pub(super) fn remove_device(&mut self) {
        self.devices.removed = true;
        instant::device_removed();
        for context in self.contexts.values_mut() {
            context.events.push((asynchronous::DEVICE_FATAL, 0));
        }
    }
}

/// Forgets the events of an object, and waits until those that were taken are acknowledged.
pub(super) fn settle(
    mut world: MutexGuard<'static, World>,
    context: *mut ibv_context,
    object: usize,
) -> MutexGuard<'static, World> {
    live(&mut world.contexts, context).events.extract(|(_, of)| *of == object);
    while live(&mut world.contexts, context).taken.contains(&object) {
        world = world::wait(world);
    }
    world
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    pointer(world::enter("ibv_get_device_list").map(|world| {
        let there = world.devices.all.iter().filter(|_| !world.devices.removed);
        let devices: Vec<_> = there.map(|device| device.raw).collect();
        if !count.is_null() {
            // SAFETY: the caller's number.
            unsafe { *count = devices.len() as c_int };
        }
        // SAFETY: asks for memory.
        let list: *mut *mut ibv_device =
            unsafe { libc::calloc(devices.len() + 1, size_of::<usize>()) }.cast();
        for (place, device) in devices.into_iter().enumerate() {
            // SAFETY: there is room for so many, and a null behind them.
            let to = unsafe { list.add(place) };
            // SAFETY: as above.
            unsafe { to.write(device) };
        }
        list
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: it came from `calloc`.
    unsafe { libc::free(list.cast()) };
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: devices are never freed.
    unsafe { (&raw const (*device).name).cast() }
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(_device: *mut ibv_device) -> u64 {
    GUID.to_be()
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer(world::enter("ibv_open_device").and_then(|mut world| {
        if world.devices.removed {
            return Err(libc::ENODEV);
        }
        let events = EventQueue::new()?;
        world.card.opened = true;
        let raw = new_context(device, events.descriptor());
        world.contexts.insert(raw.addr(), Context { events, taken: Vec::new(), objects: 0 });
        Ok(raw)
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    number_of(world::enter("ibv_close_device").and_then(|mut world| {
        if live(&mut world.contexts, context).objects > 0 {
            return Err(libc::EBUSY);
        }
        world.contexts.remove(&context.addr());
        // SAFETY: made by `new_context`, and it is in no table any more.
        unsafe { free(context) };
        Ok(())
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, to: *mut ibv_device_attr) -> c_int {
    number_of(world::enter("ibv_query_device").map(|mut world| {
        live(&mut world.contexts, context);
        // SAFETY: the caller's structure, of integers.
        unsafe { to.write_bytes(0, 1) };
        // SAFETY: as above.
        let to = unsafe { &mut *to };
        for (to, from) in to.fw_ver.iter_mut().zip(FIRMWARE.bytes()) {
            *to = from as c_char;
        }
        to.node_guid = GUID.to_be();
        to.sys_image_guid = GUID.to_be();
        to.max_mr_size = 1 << 40;
        to.page_size_cap = 4096;
        to.vendor_id = world.card.vendor;
        to.max_qp = 1 << 16;
        to.max_qp_wr = MAX_QP_WR as c_int;
        to.device_cap_flags = number::IBV_DEVICE_MEM_MGT_EXTENSIONS | number::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        to.max_sge = MAX_SGE as c_int;
        to.max_sge_rd = MAX_SGE as c_int;
        to.max_cq = 1 << 16;
        to.max_cqe = MAX_CQE as c_int;
        to.max_mr = 1 << 20;
        to.max_pd = 1 << 16;
        to.max_qp_rd_atom = MAX_READS.into();
        to.max_qp_init_rd_atom = MAX_READS.into();
        to.max_res_rd_atom = c_int::from(MAX_READS) << 16;
        // IBV_ATOMIC_GLOB: they are instructions of the processor.
        to.atomic_cap = 2;
        to.max_mw = 1 << 16;
        to.max_srq = 1 << 16;
        to.max_srq_wr = MAX_SRQ_WR as c_int;
        to.max_srq_sge = MAX_SRQ_SGE as c_int;
        to.max_pkeys = PARTITIONS;
        to.phys_port_cnt = PORTS;
        if world.is_iwarp() {
            // A read has one sink, whose key the peer is told. Windows are of type 1, there are no atomics and no partitions.
            (to.max_sge_rd, to.atomic_cap, to.max_pkeys) = (1, 0, 1);
            to.device_cap_flags = number::IBV_DEVICE_MEM_MGT_EXTENSIONS;
        }
        if !world.card.fixed_shared {
            to.device_cap_flags |= number::IBV_DEVICE_SRQ_RESIZE;
        }
    }))
}

/// Fills the structure of the function's first version, as the library does: the members up to `flags`.
///
/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(context: *mut ibv_context, port: u8, to: *mut ibv_port_attr) -> c_int {
    number_of(world::enter("ibv_query_port").and_then(|mut world| {
        // librdmacm has the device open, too.
        if !world.devices.known().contains(&context) {
            live(&mut world.contexts, context);
        }
        if !(1..=PORTS).contains(&port) {
            return Err(libc::EINVAL);
        }
        // SAFETY: the structure is integers.
        let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
        let number = port;
        let port = &mut attributes;
        port.state = if world.devices.is_up(number) { ACTIVE } else { DOWN };
        (port.max_mtu, port.active_mtu, port.gid_tbl_len) = (MTU_4096, MTU_4096, 2);
        (port.max_msg_sz, port.pkey_tbl_len) = (MAX_MESSAGE, PARTITIONS);
        (port.active_width, port.active_speed) = (WIDTH_4X, SPEED_EDR);
        world.card.dress.fill_port(number, port);
        let first = std::mem::offset_of!(ibv_port_attr, port_cap_flags2);
        // SAFETY: the caller's structure has at least these members.
        unsafe { to.cast::<u8>().copy_from((&raw const attributes).cast(), first) };
        Ok(())
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, to: *mut ibv_async_event) -> c_int {
    let descriptor = live(&mut world::lock().contexts, context).events.descriptor();
    minus_one(
        events::next(descriptor, |world| {
            let context = live(&mut world.contexts, context);
            let event = context.events.take();
            context.taken.extend(event.map(|(_, object)| object));
            Ok(event)
        })
        .map(|(kind, object)| {
            let element = ibv_async_event_element { cq: std::ptr::with_exposed_provenance_mut(object) };
            // SAFETY: the caller's structure.
            unsafe { to.write(ibv_async_event { element, event_type: kind }) };
        }),
    )
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: an event that `ibv_get_async_event` has filled.
    let element = unsafe { &(*event).element };
    // SAFETY: it has stored a pointer.
    let object = unsafe { element.cq }.addr();
    let mut world = world::lock();
    for context in world.contexts.values_mut() {
        if let Some(place) = context.taken.iter().position(|taken| *taken == object) {
            context.taken.swap_remove(place);
            break;
        }
    }
    world::CHANGED.notify_all();
}
