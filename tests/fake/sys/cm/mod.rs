//! The connection manager, as rdma_cm is over RoCE and InfiniBand; [`iwarp`] has what differs there.
//!
//! Messages between two ids arrive at once. An id without a queue pair reports `CONNECT_RESPONSE` and leaves the states of
//! the queue pair to its user, which is the only way in which tokio-rdma uses ids.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_uint, c_void};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::device::Place;
use super::events::{self, EventQueue};
use super::number::*;
use super::status::{cm as kind, reject};
use super::timers::Timer;
use super::types::*;
use super::world::{self, Table, World, live};
use super::{Answer, address, free, minus_one, pointer, zeroed};

mod attributes;
mod connect;
mod iwarp;
mod resolve;

pub(super) use iwarp::reset;

/// The private data of the messages, behind what the connection manager itself needs.
const REQUEST_DATA: usize = 56;
const REPLY_DATA: usize = 196;
const REJECT_DATA: usize = 148;
/// Over iWARP the length is a byte, and nothing else is in the way.
const IWARP_DATA: usize = 255;

/// The time after which a message that nobody answers is given up.
const ANSWER: Duration = Duration::from_secs(60);
/// The time during which late packets of an ended connection are expected.
const TIME_WAIT: Duration = Duration::from_millis(20);

#[derive(Default)]
pub(super) struct Cm {
    pub(super) channels: Table<EventQueue<Event>>,
    pub(super) ids: Table<Id>,
    /// The addresses of the ids by their serial numbers.
    serials: HashMap<u64, usize>,
    last: u64,
    /// The last port that was given out, of those that are free to be.
    next_port: u16,
}

/// The place of an id in the life of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Listening,
    RequestSent,
    RequestReceived,
    ReplySent,
    ReplyReceived,
    Established,
    DisconnectSent,
    DisconnectReceived,
    TimeWait,
    Over,
}

/// The words of one side in its request or its reply.
#[derive(Clone, Copy, Default)]
struct Terms {
    number: u32,
    responder_resources: u8,
    initiator_depth: u8,
    retry_count: u8,
    rnr_retry_count: u8,
}

pub(super) struct Id {
    raw: *mut rdma_cm_id,
    serial: u64,
    channel: usize,
    phase: Phase,
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
    reuses: bool,
    family_only: bool,
    ack_timeout: Option<u8>,
    /// The port and the P_Key of its address.
    place: Option<Place>,
    /// Its address has moved to another port: no packet for it arrives here.
    moved: bool,
    /// The requests that a listener holds for its user.
    backlog: usize,
    /// The id at the other end.
    peer: Option<usize>,
    own: Terms,
    theirs: Terms,
    /// The options of the vendor that its message tells the peer, and those that the peer has told: the vendor, and the options.
    pub(super) local_options: (u32, u32),
    pub(super) remote_options: (u32, u32),
    /// Its user hears of it: not before a request is accepted.
    heard: bool,
    /// It waits for the answer of its peer, and cannot be destroyed meanwhile, over iWARP.
    waits: bool,
    /// Events that were taken and not acknowledged.
    taken: usize,
    /// Events that are not in the channel yet.
    late: VecDeque<Event>,
}

/// An event that waits to be taken.
pub(super) struct Event {
    id: usize,
    listener: Option<usize>,
    kind: c_uint,
    status: c_int,
    data: Vec<u8>,
    terms: Terms,
}

/// An event as C has it, with what its pointers lead to.
#[repr(C)]
struct Told {
    raw: rdma_cm_event,
    data: Vec<u8>,
    /// The id that waits for its acknowledgement.
    counts: usize,
}

/// The GID of an address, as RoCE has it.
fn gid(ip: IpAddr) -> ibv_gid {
    let ip = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    ibv_gid { raw: ip.octets() }
}

impl World {
    /// A new id on a channel.
    fn new_id(&mut self, channel: *mut rdma_event_channel, context: *mut c_void) -> *mut rdma_cm_id {
        // SAFETY: the structure is integers and pointers.
        let raw: *mut rdma_cm_id = unsafe { zeroed() };
        // SAFETY: the structure is new.
        let new = unsafe { &mut *raw };
        (new.channel, new.context) = (channel, context);
        (new.ps, new.qp_type) = (RDMA_PS_TCP, IBV_QPT_RC);
        self.cm.last += 1;
        let serial = self.cm.last;
        let id = Id {
            raw,
            serial,
            channel: channel.addr(),
            phase: Phase::Idle,
            source: None,
            destination: None,
            reuses: false,
            family_only: false,
            ack_timeout: None,
            place: None,
            moved: false,
            backlog: 0,
            peer: None,
            own: Terms::default(),
            theirs: Terms::default(),
            local_options: (0, 0),
            remote_options: (0, 0),
            heard: true,
            waits: false,
            taken: 0,
            late: VecDeque::new(),
        };
        self.cm.ids.insert(raw.expose_provenance(), id);
        self.cm.serials.insert(serial, raw.addr());
        raw
    }

    /// Has an id name the device that owns its address.
    fn attach(&mut self, raw: *mut rdma_cm_id, (device, place): (*mut ibv_context, Place)) {
        live(&mut self.cm.ids, raw).place = Some(place);
        // SAFETY: the id is live, and the caller of the library reads these fields after the call.
        let raw = unsafe { &mut *raw };
        (raw.verbs, raw.port_num) = (device, place.port);
        raw.route.addr.addr.ibaddr.pkey = place.partition();
        // Over iWARP the kernel has a hardware address here.
        raw.route.addr.addr.ibaddr.sgid = gid(place.ip);
    }

    /// Tells the user of an id something.
    fn tell(&mut self, at: usize, kind: c_uint, status: c_int, data: Vec<u8>, terms: Terms) {
        if self.cm.ids.get(&at).is_some_and(|id| id.heard) {
            self.deliver(Event { id: at, listener: None, kind, status, data, terms });
        }
    }

    /// Has an event come to the channel of its id, at once or a little later, but never before an earlier one.
    fn deliver(&mut self, event: Event) {
        let delay = self.script.linger();
        let Some(id) = self.cm.ids.get_mut(&event.owner()) else { return };
        if delay.is_none() && id.late.is_empty() {
            if let Some(channel) = self.cm.channels.get_mut(&id.channel) {
                channel.push(event);
            }
            return;
        }
        id.late.push_back(event);
        let serial = id.serial;
        self.after(delay.unwrap_or_default(), Timer::Deliver(serial));
    }

    /// The same of an event that has nothing to say but its kind.
    fn tell_status(&mut self, at: usize, kind: c_uint, status: c_int) {
        self.tell(at, kind, status, Vec::new(), Terms::default());
    }

    /// Has the id with this serial number give up a message that nobody answers.
    fn await_answer(&mut self, serial: u64) {
        self.after(self.script.patience.unwrap_or(ANSWER), Timer::Unanswered(serial));
    }

    /// Answers a call by the event that a test has chosen for it. Returns whether it has.
    fn is_answered(&mut self, call: &str, at: usize) -> bool {
        let Some((kind, status)) = self.script.answer(call) else { return false };
        if kind == kind::REJECTED {
            self.rejected(at, status, &[]);
        } else if let Some(id) = self.cm.ids.get_mut(&at) {
            id.phase = Phase::Over;
            if self.is_iwarp() {
                self.release(at);
            }
            self.tell_status(at, kind, status);
        }
        true
    }

    /// Whether messages between an id and its peer get lost: all do, or one of their ports is down.
    fn loses(&self, at: usize) -> bool {
        self.script.mute || self.is_cut_off(at)
    }

    /// Whether the port of an id or that of its peer's address is down.
    fn is_cut_off(&self, at: usize) -> bool {
        let Some(id) = self.cm.ids.get(&at) else { return false };
        let far = id.destination.and_then(|to| self.devices.owner(to)).map(|(_, place)| place);
        [id.place, far].into_iter().flatten().any(|place| !self.devices.is_up(place.port))
    }

    fn id_by_serial(&mut self, serial: u64) -> Option<(usize, &mut Id)> {
        let at = *self.cm.serials.get(&serial)?;
        Some((at, self.cm.ids.get_mut(&at)?))
    }

    /// Ends an id whose peer has refused.
    fn rejected(&mut self, at: usize, reason: c_int, data: &[u8]) {
        let Some(id) = self.cm.ids.get_mut(&at) else { return };
        id.phase = Phase::Over;
        id.peer = None;
        if self.is_iwarp() {
            self.release(at);
        }
        let data = self.private_data(data, REJECT_DATA);
        self.tell(at, kind::REJECTED, reason, data, Terms::default());
    }

    /// Private data as a message brings it: InfiniBand fills it up with zeros, and iWARP knows its length.
    fn private_data(&self, data: &[u8], length: usize) -> Vec<u8> {
        let mut data = data.to_vec();
        if !self.is_iwarp() {
            data.resize(length, 0);
        }
        data
    }

    /// The most private data of a message that has so much over InfiniBand.
    fn most_data(&self, length: usize) -> usize {
        if self.is_iwarp() { IWARP_DATA } else { length }
    }

    /// Begins the time in which late packets of a connection are expected.
    fn time_wait(&mut self, at: usize) {
        let Some(id) = self.cm.ids.get_mut(&at) else { return };
        id.phase = Phase::TimeWait;
        id.peer = None;
        let serial = id.serial;
        self.after(TIME_WAIT, Timer::TimeWait(serial));
    }
}

/// Whether the queue pair with this number is that of the side that was asked for its connection; `None` if it has no id.
pub(super) fn is_passive(world: &World, number: u32) -> Option<bool> {
    let own = world.cm.ids.values().find(|id| id.phase != Phase::Over && id.own.number == number)?;
    Some(own.backlog == resolve::CHILD)
}

/// Whether packets of the connection of the id with this serial number get lost, wherever its peer is now.
pub(super) fn is_cut_off(world: &World, serial: u64) -> bool {
    world.cm.serials.get(&serial).is_some_and(|at| world.is_cut_off(*at))
}

/// The time for late packets is over.
pub(super) fn time_wait_over(world: &mut World, serial: u64) {
    let Some((at, id)) = world.id_by_serial(serial) else { return };
    if id.phase == Phase::TimeWait {
        id.phase = Phase::Over;
        world.tell_status(at, kind::TIMEWAIT_EXIT, 0);
    }
}

/// The next event of this id comes.
pub(super) fn deliver(world: &mut World, serial: u64) {
    let Some((_, id)) = world.id_by_serial(serial) else { return };
    let Some(event) = id.late.pop_front() else { return };
    let channel = id.channel;
    if let Some(channel) = world.cm.channels.get_mut(&channel) {
        channel.push(event);
    }
}

/// An address was looked for in vain.
pub(super) fn unresolved(world: &mut World, serial: u64) {
    let Some((at, _)) = world.id_by_serial(serial) else { return };
    world.tell_status(at, kind::ADDR_ERROR, -libc::ETIMEDOUT);
}

/// The peer has not answered in time.
pub(super) fn unanswered(world: &mut World, serial: u64) {
    let Some((at, _)) = world.id_by_serial(serial) else { return };
    if world.is_iwarp() {
        return iwarp::unanswered(world, at);
    }
    let lost = world.loses(at);
    let id = live(&mut world.cm.ids, std::ptr::without_provenance::<rdma_cm_id>(at));
    match id.phase {
        Phase::RequestSent | Phase::ReplySent => {
            id.phase = Phase::Over;
            if let Some(peer) = id.peer.take() {
                match lost {
                    true => world.part(peer),
                    false => world.rejected(peer, reject::TIMEOUT, &[]),
                }
            }
            world.tell_status(at, kind::UNREACHABLE, -libc::ETIMEDOUT);
        }
        Phase::DisconnectSent => {
            world.time_wait(at);
            world.tell_status(at, kind::DISCONNECTED, -libc::ETIMEDOUT);
        }
        _ => {}
    }
}

/// The device is gone: everybody who uses it is told.
pub(super) fn device_removed(world: &mut World) {
    // SAFETY: an id in the table is live.
    let uses = |id: &Id| !unsafe { (*id.raw).verbs }.is_null();
    let all: Vec<usize> = world.cm.ids.iter().filter(|(_, id)| uses(id)).map(|(at, _)| *at).collect();
    all.into_iter().for_each(|at| world.tell_status(at, kind::DEVICE_REMOVAL, 0));
    if world.is_iwarp() {
        iwarp::device_removed(world);
    }
}

/// An address has moved to another port, as that of a bond does: the ids that are bound to it are told. Connections go on.
pub(super) fn address_moved(world: &mut World, ip: IpAddr) {
    let is_bound = |id: &&mut Id| id.place.is_some_and(|place| place.ip == ip);
    let mut told = Vec::new();
    for id in world.cm.ids.values_mut().filter(is_bound) {
        id.moved = true;
        told.push(id.raw.addr());
    }
    told.into_iter().for_each(|at| world.tell_status(at, kind::ADDR_CHANGE, 0));
}

/// Gives up every message that is not answered. Returns their number.
pub(super) fn give_up(world: &mut World) -> usize {
    let waits = |id: &&Id| matches!(id.phase, Phase::RequestSent | Phase::ReplySent | Phase::DisconnectSent);
    let waiting: Vec<u64> = world.cm.ids.values().filter(waits).map(|id| id.serial).collect();
    waiting.iter().for_each(|serial| unanswered(world, *serial));
    waiting.len()
}

/// Tells every id of a connection something. Returns their number.
pub(super) fn report(world: &mut World, kind: c_uint, status: c_int) -> usize {
    let connected = world.cm.ids.values().filter(|id| id.phase == Phase::Established);
    let told: Vec<usize> = connected.map(|id| id.raw.addr()).collect();
    told.iter().for_each(|at| world.tell_status(*at, kind, status));
    told.len()
}

/// The number of ids that wait for something at an address that has moved.
pub(super) fn moved(world: &World) -> usize {
    let waits = |id: &&Id| id.moved && matches!(id.phase, Phase::Bound | Phase::Listening);
    world.cm.ids.values().filter(waits).count()
}

/// The number of ids that listen, but for those at an address that has moved.
pub(super) fn listening(world: &World) -> usize {
    let listens = |id: &&Id| !id.moved && matches!(id.phase, Phase::Listening);
    world.cm.ids.values().filter(listens).count()
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(world::enter("rdma_create_event_channel").and_then(|mut world| {
        let events = EventQueue::new()?;
        let raw = Box::into_raw(Box::new(rdma_event_channel { fd: events.descriptor() }));
        world.cm.channels.insert(raw.addr(), events);
        Ok(raw)
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    let mut world = world::lock();
    let used = world.cm.ids.values().any(|id| id.channel == channel.addr());
    assert!(!used, "an event channel is destroyed before its ids");
    live(&mut world.cm.channels, channel);
    world.cm.channels.remove(&channel.addr());
    // SAFETY: made by `rdma_create_event_channel`, and in no table any more.
    unsafe { free(channel) };
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_event,
) -> c_int {
    let descriptor = live(&mut world::lock().cm.channels, channel).descriptor();
    let next = events::next(descriptor, |world| {
        let Some(event) = live(&mut world.cm.channels, channel).take() else { return Ok(None) };
        let counts = event.owner();
        if let Some(id) = world.cm.ids.get_mut(&counts) {
            id.taken += 1;
        }
        Ok(Some((event, counts)))
    });
    minus_one(next.map(|(event, counts)| {
        let told = Told { raw: event.to_raw(), data: event.data, counts };
        // SAFETY: the caller's pointer. The event begins what is allocated.
        unsafe { to.write(Box::into_raw(Box::new(told)).cast()) };
    }))
}

impl Event {
    /// The id that its user has, and that waits for its acknowledgement.
    fn owner(&self) -> usize {
        self.listener.unwrap_or(self.id)
    }

    fn to_raw(&self) -> rdma_cm_event {
        // SAFETY: integers and pointers.
        let mut conn: rdma_conn_param = unsafe { std::mem::zeroed() };
        conn.private_data = self.data.as_ptr().cast();
        conn.private_data_len = self.data.len() as u8;
        conn.responder_resources = self.terms.responder_resources;
        conn.initiator_depth = self.terms.initiator_depth;
        conn.qp_num = self.terms.number;
        rdma_cm_event {
            id: std::ptr::with_exposed_provenance_mut(self.id),
            listen_id: std::ptr::with_exposed_provenance_mut(self.listener.unwrap_or(0)),
            event: self.kind,
            status: self.status,
            param: rdma_cm_event_param { conn },
        }
    }
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    // SAFETY: it came from `rdma_get_cm_event`, and is acknowledged once.
    let told = unsafe { Box::from_raw(event.cast::<Told>()) };
    let mut world = world::lock();
    if let Some(id) = world.cm.ids.get_mut(&told.counts) {
        id.taken -= 1;
    }
    world::CHANGED.notify_all();
    0
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: c_uint,
) -> c_int {
    minus_one(world::enter("rdma_create_id").and_then(|mut world| {
        live(&mut world.cm.channels, channel);
        if space != RDMA_PS_TCP {
            return Err(libc::EPROTONOSUPPORT);
        }
        let id = world.new_id(channel, context);
        // SAFETY: the caller's pointer.
        unsafe { to.write(id) };
        Ok(())
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_id(raw: *mut rdma_cm_id) -> c_int {
    minus_one(world::enter("rdma_destroy_id").map(|mut world| {
        while live(&mut world.cm.ids, raw).waits {
            world = world::wait(world);
        }
        connect::leave(&mut world, raw.addr());
        loop {
            let id = live(&mut world.cm.ids, raw);
            let channel = id.channel;
            // Its events go, and the requests that its user has not seen.
            id.heard = false;
            let taken = id.taken;
            let mut gone = Vec::from(std::mem::take(&mut id.late));
            if let Some(channel) = world.cm.channels.get_mut(&channel) {
                gone.extend(channel.extract(|event| event.id == raw.addr() || event.owner() == raw.addr()));
            }
            for event in gone.iter().filter(|event| event.listener.is_some()) {
                connect::leave(&mut world, event.id);
                world.forget_id(event.id);
            }
            if taken == 0 {
                break;
            }
            world = world::wait(world);
        }
        world.forget_id(raw.addr());
    }))
}

impl World {
    fn forget_id(&mut self, at: usize) {
        if let Some(id) = self.cm.ids.remove(&at) {
            self.cm.serials.remove(&id.serial);
            // SAFETY: made by `new_id`, and in no table any more.
            unsafe { free(id.raw) };
        }
    }
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_option(
    raw: *mut rdma_cm_id,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    minus_one(world::enter("rdma_set_option").and_then(|mut world| {
        let id = live(&mut world.cm.ids, raw);
        if level != RDMA_OPTION_ID {
            return Err(libc::ENOSYS);
        }
        let truth = || match length {
            // SAFETY: the caller's value of that length.
            4 => Ok(unsafe { value.cast::<c_int>().read_unaligned() } != 0),
            _ => Err(libc::EINVAL),
        };
        let byte = || match length {
            // SAFETY: as above.
            1 => Ok(unsafe { value.cast::<u8>().read() }),
            _ => Err(libc::EINVAL),
        };
        match option {
            RDMA_OPTION_ID_TOS => drop(byte()?),
            RDMA_OPTION_ID_ACK_TIMEOUT => id.ack_timeout = Some(byte()?),
            RDMA_OPTION_ID_REUSEADDR => {
                let reuses = truth()?;
                // As the kernel has it: it may always be allowed, and only be forbidden before it matters.
                if !reuses && id.phase != Phase::Idle {
                    return Err(libc::EINVAL);
                }
                id.reuses = reuses;
            }
            RDMA_OPTION_ID_AFONLY => id.family_only = truth()?,
            _ => return Err(libc::ENOSYS),
        }
        Ok(())
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    pointer(world::enter("rdma_get_devices").map(|world| {
        let known = world.devices.known();
        // SAFETY: asks for memory.
        let list: *mut *mut ibv_context = unsafe { libc::calloc(known.len() + 1, size_of::<usize>()) }.cast();
        if !count.is_null() {
            // SAFETY: the caller's number.
            unsafe { *count = known.len() as c_int };
        }
        for (place, device) in known.into_iter().enumerate() {
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
unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: it came from `calloc`.
    unsafe { libc::free(list.cast()) };
}

/// Reads an address of the caller.
///
/// # Safety
/// Null, or an address.
unsafe fn given(raw: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: the caller's.
    unsafe { address::read(raw) }
}
