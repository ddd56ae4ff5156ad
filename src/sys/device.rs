//! Devices, the attributes that they report, and the table of quirks: what is true of one driver, and of no standard.
//!
//! A driver is known by the vendor that its devices claim. Nothing else in this crate asks for a driver. A card of a vendor
//! that is not in the table behaves as the standards say.

use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{io, mem};

use super::call::{self, Object};
use super::ffi::{self, number};
use crate::status::DeviceEvent;

/// Returns the names of the devices of this machine: none without devices, without their drivers or without the
/// libraries.
///
/// # Errors
/// The error of the kernel, unless it says that there is no device.
pub(crate) fn device_names() -> io::Result<Vec<String>> {
    match DeviceList::new() {
        Ok(list) => Ok(list.devices().filter_map(name_of).collect()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::ENODEV | libc::ENOENT)) => {
            Ok(Vec::new())
        }
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Has librdmacm close the devices that were removed.
///
/// It opens a device when the first identifier is bound to it, and keeps it open. Where drivers do not know how to take
/// a device away from programs, as those of rxe and siw, the removal waits in the kernel until the last program has
/// closed it, and the device is already gone from [`device_names`]. So once that is the case and no identifier is bound
/// to the device, this lets the removal end. (With the very last device of a machine it does not: the library takes an
/// empty list for a failure.)
pub(crate) fn forget_removed_devices() {
    if ffi::load().is_err() {
        return;
    }
    let mut count = 0;
    // SAFETY: stores a number, and gives a list of its own or null. It compares what it has open with what there is.
    if let Some(list) = NonNull::new(unsafe { ffi::rdma_get_devices(&mut count) }) {
        // SAFETY: the list came from the library and is freed this once; no device of it is used.
        unsafe { ffi::rdma_free_devices(list.as_ptr()) }
    }
}

/// The list of devices, which keeps them valid.
struct DeviceList {
    first: Object<*mut ffi::ibv_device>,
    count: usize,
}

impl DeviceList {
    fn new() -> io::Result<Self> {
        ffi::load().map_err(call::unsupported)?;
        let mut count = 0;
        // SAFETY: stores a number, and gives a list of its own or null.
        let first = call::pointer(libc::ENOSYS, || unsafe { ffi::ibv_get_device_list(&mut count) })?;
        Ok(Self { first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = NonNull<ffi::ibv_device>> {
        // SAFETY: the library says that the list has this many entries; it does not change them.
        let devices = unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) };
        devices.iter().filter_map(|device| NonNull::new(*device))
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from the library and is freed this once. An open device stays valid without it.
        unsafe { ffi::ibv_free_device_list(self.first.as_ptr()) }
    }
}

/// Returns the name of a device that a list or an open context keeps valid.
pub(super) fn name_of(device: NonNull<ffi::ibv_device>) -> Option<String> {
    // SAFETY: the device is valid.
    let name = unsafe { ffi::ibv_get_device_name(device.as_ptr()) };
    // SAFETY: the name is a string inside the device.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

/// Completions for more than 145 pages, of at least 32 bytes each.
const FILLER_ENTRIES: c_int = 145 * 4096 / 32;

/// The kind of a device: its transport, and below it the link of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    InfiniBand,
    /// RDMA over converged Ethernet.
    Roce,
    Iwarp,
}

impl DeviceKind {
    /// Returns the kind of a port of an open device; `None` if the port cannot be queried, or the device has another
    /// transport.
    ///
    /// # Safety
    /// The device is open.
    pub(super) unsafe fn of(context: *mut ffi::ibv_context, port: u8) -> Option<Self> {
        // SAFETY: the caller's; the field is never written again.
        let device = unsafe { (*context).device };
        // SAFETY: an open device is valid; the field is never written again.
        match unsafe { (*device).transport_type } {
            number::IBV_TRANSPORT_IWARP => Some(Self::Iwarp),
            number::IBV_TRANSPORT_IB => {
                // SAFETY: the caller's.
                let port = unsafe { query_port(context, port) }.ok()?;
                let is_ethernet = port.link_layer == number::IBV_LINK_LAYER_ETHERNET;
                Some(if is_ethernet { Self::Roce } else { Self::InfiniBand })
            }
            _ => None,
        }
    }
}

/// Returns the attributes of a port. The library fills what its first version had: everything up to and including `flags`.
/// (The inline function of the C header would fill all of the structure.)
///
/// # Safety
/// The device is open.
unsafe fn query_port(context: *mut ffi::ibv_context, port: u8) -> io::Result<ffi::ibv_port_attr> {
    // SAFETY: all members are integers, for which zero is a value.
    let mut raw: ffi::ibv_port_attr = unsafe { mem::zeroed() };
    // SAFETY: the caller's; the call fills the leading part of the structure.
    call::number(|| unsafe { ffi::ibv_query_port(context, port, (&raw mut raw).cast()) })?;
    Ok(raw)
}

/// An open device. Not the one that librdmacm has open for the same device.
pub(crate) struct Context {
    pub(super) raw: Object<ffi::ibv_context>,
    name: String,
    is_iwarp: bool,
    /// See [`occupy_pages`](Self::occupy_pages).
    filler: Option<Object<ffi::ibv_cq>>,
    quirks: Quirks,
    /// It is being taken out of the machine.
    removed: AtomicBool,
}

impl Context {
    /// Opens a device.
    ///
    /// # Errors
    /// `NotFound` if there is no such device, `PermissionDenied` if it may not be opened.
    pub(crate) fn open(name: &str) -> io::Result<Arc<Self>> {
        let list = DeviceList::new()?;
        let device = list.devices().find(|device| name_of(*device).is_some_and(|other| other == name));
        let device = device.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("there is no RDMA device {name}"))
        })?;
        // SAFETY: the list keeps the device valid, and the open device does from then on.
        let raw = call::pointer(libc::ENODEV, || unsafe { ffi::ibv_open_device(device.as_ptr()) })?;
        // SAFETY: as above; the field is never written again.
        let is_iwarp = unsafe { (*device.as_ptr()).transport_type } == number::IBV_TRANSPORT_IWARP;
        let mut context = Self {
            raw,
            name: name.to_owned(),
            is_iwarp,
            filler: None,
            quirks: Quirks::default(),
            removed: AtomicBool::new(false),
        };
        // SAFETY: the descriptor is open as long as the device.
        unsafe { call::do_not_wait(context.as_raw_fd()) }?;
        context.quirks = context.attributes()?.quirks;
        if context.quirks.loses_page_144 {
            context.filler = context.occupy_pages();
        }
        Ok(Arc::new(context))
    }

    /// Has librdmacm close the device, too, once this one is closed: it is being removed. See
    /// [`forget_removed_devices`].
    pub(crate) fn mark_removed(&self) {
        self.removed.store(true, Ordering::Relaxed);
    }

    /// Keeps a driver that loses page 144 from that page.
    ///
    /// The kernel part of `siw` gives user space the queues of an open device as pages, numbered from 0, and its part in
    /// user space takes page 144 for none: every completion queue or queue pair (about the 72nd of small ones) with a queue
    /// that begins there cannot be made, and nor can any after it. A completion queue that begins earlier and ends
    /// later is not affected. So this is the first thing made with such a device, and never used.
    fn occupy_pages(&self) -> Option<Object<ffi::ibv_cq>> {
        // SAFETY: the device is open, and the queue is destroyed before it is closed.
        let made = call::pointer(libc::ENOMEM, || unsafe {
            ffi::ibv_create_cq(self.raw.as_ptr(), FILLER_ENTRIES, ptr::null_mut(), ptr::null_mut(), 0)
        });
        match made {
            Ok(filler) => Some(filler),
            Err(error) => {
                tracing::warn!(%error, device = self.name, "filler queue not created: the device can have about 70 queue pairs");
                None
            }
        }
    }

    /// Returns the flag of a completion that reports an invalidated key.
    pub(super) fn invalidated_flag(&self) -> u32 {
        if self.quirks.invalidates_by_kernel_flag {
            number::IBV_WC_IP_CSUM_OK
        } else {
            number::IBV_WC_WITH_INV
        }
    }

    pub(crate) fn is_iwarp(&self) -> bool {
        self.is_iwarp
    }

    /// Returns the limits of the device.
    pub(crate) fn attributes(&self) -> io::Result<DeviceAttributes> {
        // SAFETY: all members are integers, for which zero is a value.
        let mut raw: ffi::ibv_device_attr = unsafe { mem::zeroed() };
        // SAFETY: the device is open; the call fills the structure.
        call::number(|| unsafe { ffi::ibv_query_device(self.raw.as_ptr(), &mut raw) })?;
        let windows = number::IBV_DEVICE_MEM_WINDOW_TYPE_2A | number::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        // The driver ends it with a zero; without one it is all of the field.
        let firmware = raw.fw_ver.map(c_char::cast_unsigned);
        let firmware = firmware.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(DeviceAttributes {
            firmware: String::from_utf8_lossy(firmware).trim().to_owned(),
            node_guid: u64::from_be(raw.node_guid),
            vendor_id: raw.vendor_id,
            vendor_part_id: raw.vendor_part_id,
            max_mr_size: raw.max_mr_size,
            max_qp_wr: limit(raw.max_qp_wr),
            max_sge: limit(raw.max_sge),
            max_sge_rd: limit(raw.max_sge_rd),
            max_cqe: limit(raw.max_cqe),
            max_qp_rd_atom: limit(raw.max_qp_rd_atom),
            max_qp_init_rd_atom: limit(raw.max_qp_init_rd_atom),
            max_srq: limit(raw.max_srq),
            max_srq_wr: limit(raw.max_srq_wr),
            max_srq_sge: limit(raw.max_srq_sge),
            ports: raw.phys_port_cnt,
            atomics: raw.atomic_cap != number::IBV_ATOMIC_NONE,
            global_atomics: raw.atomic_cap == number::IBV_ATOMIC_GLOB,
            invalidates: raw.device_cap_flags & number::IBV_DEVICE_MEM_MGT_EXTENSIONS != 0,
            windows: raw.device_cap_flags & windows != 0 && raw.max_mw > 0,
            resizes_shared: raw.device_cap_flags & number::IBV_DEVICE_SRQ_RESIZE != 0,
            quirks: Quirks::of(raw.vendor_id),
        })
    }

    /// Returns the number of completion vectors.
    pub(crate) fn completion_vectors(&self) -> u32 {
        // SAFETY: the device is open, and the field is never written again.
        limit(unsafe { (*self.raw.as_ptr()).num_comp_vectors })
    }

    /// Returns the maximum length of a message at a port of the device; the first port has number 1.
    pub(crate) fn max_message(&self, port: u8) -> io::Result<u32> {
        Ok(self.query_port(port)?.max_msg_sz)
    }

    /// Returns the attributes of a port of the device; the first port has number 1.
    pub(crate) fn port(&self, port: u8) -> io::Result<PortAttributes> {
        let raw = self.query_port(port)?;
        Ok(PortAttributes {
            state: LinkState::of(raw.state),
            mtu: mtu_of(raw.active_mtu),
            speed: speed_of(raw.active_speed, raw.active_width),
            lid: raw.lid,
            link: raw.link_layer,
        })
    }

    fn query_port(&self, port: u8) -> io::Result<ffi::ibv_port_attr> {
        // SAFETY: the device is open.
        unsafe { query_port(self.raw.as_ptr(), port) }
    }

    /// Takes the next event that belongs to no request, copies it, and acknowledges it before this returns; `None` when
    /// there is none.
    ///
    /// # Errors
    /// `EIO` once the device was removed.
    pub(crate) fn next_async_event(&self) -> io::Result<Option<AsyncEvent>> {
        let mut raw = mem::MaybeUninit::<ffi::ibv_async_event>::zeroed();
        let fetched = call::errno(|| {
            // SAFETY: the device is open; the call fills the event if it succeeds.
            unsafe { ffi::ibv_get_async_event(self.raw.as_ptr(), raw.as_mut_ptr()) }
        });
        if call::unless_empty(fetched)?.is_none() {
            return Ok(None);
        }
        // SAFETY: the event was filled.
        let kind = DeviceEvent::from_code(unsafe { ffi::async_event_kind(raw.as_ptr()) });
        // SAFETY: the event was filled. The destruction of its object waits until the event is acknowledged.
        let element = unsafe { element(kind, raw.as_ptr()) };
        // SAFETY: the event was filled, and is acknowledged this once.
        unsafe { ffi::ibv_ack_async_event(raw.as_mut_ptr()) };
        Ok(Some(AsyncEvent { kind, element }))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(filler) = self.filler.take() {
            // SAFETY: nothing else refers to this queue, and drop runs once.
            if let Err(error) = call::number(|| unsafe { ffi::ibv_destroy_cq(filler.as_ptr()) }) {
                tracing::warn!(%error, device = self.name, "a completion queue could not be destroyed");
            }
        }
        // SAFETY: every object of the device holds an `Arc` of it, so none is left; drop runs once.
        if let Err(error) = call::number(|| unsafe { ffi::ibv_close_device(self.raw.as_ptr()) }) {
            tracing::warn!(%error, device = self.name, "a device could not be closed and is leaked");
        }
        if self.removed.load(Ordering::Relaxed) {
            forget_removed_devices();
        }
    }
}

/// The descriptor of its asynchronous events.
impl AsRawFd for Context {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the device is open, and the field is never written again.
        unsafe { (*self.raw.as_ptr()).async_fd }
    }
}

/// The attributes of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortAttributes {
    pub(crate) state: LinkState,
    /// The largest payload of a packet in bytes; `None` if the device reports a value without a meaning.
    pub(crate) mtu: Option<u32>,
    /// Bits per second; `None` as above.
    pub(crate) speed: Option<u64>,
    pub(crate) lid: u16,
    /// `link_layer`.
    link: u8,
}

impl PortAttributes {
    /// Returns whether packets can be sent and received.
    pub(crate) fn is_active(&self) -> bool {
        self.state == LinkState::Active
    }

    /// Returns whether the link is InfiniBand, and not Ethernet; `None` if the device does not say.
    pub(crate) fn is_infiniband(&self) -> Option<bool> {
        match self.link {
            number::IBV_LINK_LAYER_INFINIBAND => Some(true),
            number::IBV_LINK_LAYER_ETHERNET => Some(false),
            _ => None,
        }
    }
}

/// The state of a port, `enum ibv_port_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    Down,
    Initializing,
    Armed,
    Active,
    ActiveDeferred,
    Unknown,
}

impl LinkState {
    fn of(state: u32) -> Self {
        match state {
            number::IBV_PORT_DOWN => Self::Down,
            number::IBV_PORT_INIT => Self::Initializing,
            number::IBV_PORT_ARMED => Self::Armed,
            number::IBV_PORT_ACTIVE => Self::Active,
            number::IBV_PORT_ACTIVE_DEFER => Self::ActiveDeferred,
            _ => Self::Unknown,
        }
    }
}

/// Returns the bytes that `enum ibv_mtu` stands for: it counts from 1, which is 256 bytes.
pub(super) fn mtu_of(code: u32) -> Option<u32> {
    (1..=5).contains(&code).then(|| 128 << code)
}

/// Returns the bits per second of a link: those of a lane, which the kernel's `ib_port_speed` names by bits and the file `rate` in
/// units of 100 Mbit/s, times the number of lanes.
fn speed_of(speed: u8, width: u8) -> Option<u64> {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return None,
    };
    // SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR.
    let lane: u64 = match speed {
        1 => 25,
        2 => 50,
        4 | 8 => 100,
        16 => 140,
        32 => 250,
        64 => 500,
        128 => 1000,
        _ => return None,
    };
    Some(lanes * lane * 100_000_000)
}

/// The limits of a device, under the names that they have in C.
#[derive(Clone, Debug)]
pub(crate) struct DeviceAttributes {
    /// `fw_ver`.
    pub(crate) firmware: String,
    pub(crate) node_guid: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) max_mr_size: u64,
    pub(crate) max_qp_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_sge_rd: u32,
    pub(crate) max_cqe: u32,
    pub(crate) max_qp_rd_atom: u32,
    pub(crate) max_qp_init_rd_atom: u32,
    pub(crate) max_srq: u32,
    pub(crate) max_srq_wr: u32,
    pub(crate) max_srq_sge: u32,
    /// `phys_port_cnt`.
    pub(crate) ports: u8,
    /// `atomic_cap`, as far as that there are any.
    pub(crate) atomics: bool,
    /// Whether `atomic_cap` includes the atomics of processors.
    pub(crate) global_atomics: bool,
    /// Of `device_cap_flags`: requests that invalidate keys, here or at the peer.
    pub(crate) invalidates: bool,
    /// Windows of type 2.
    pub(crate) windows: bool,
    /// The length of a shared receive queue can be changed.
    pub(crate) resizes_shared: bool,
    pub(crate) quirks: Quirks,
}

/// Returns a limit that C keeps in a signed integer; a negative one counts as 0, because no request could
/// meet it.
fn limit(value: c_int) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// A copy of an asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AsyncEvent {
    pub(crate) kind: DeviceEvent,
    pub(crate) element: Element,
}

/// The object that an asynchronous event concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// A queue pair, by its number.
    QueuePair(u32),
    /// A completion queue, by its key.
    CompletionQueue(u64),
    /// A shared receive queue, by its key.
    SharedReceiveQueue(u64),
    /// A port of the device; the first has number 1.
    Port(u8),
    /// The device, or what a newer library knows.
    Device,
}

/// Returns the object that an event concerns.
///
/// # Safety
/// An event of this kind that the library has filled, and whose object is live.
unsafe fn element(kind: DeviceEvent, event: *const ffi::ibv_async_event) -> Element {
    // SAFETY: the event is live, and this makes no reference to its kind.
    let element = unsafe { &(*event).element };
    match kind {
        DeviceEvent::QP_FATAL
        | DeviceEvent::QP_REQ_ERR
        | DeviceEvent::QP_ACCESS_ERR
        | DeviceEvent::COMM_EST
        | DeviceEvent::SQ_DRAINED
        | DeviceEvent::PATH_MIG
        | DeviceEvent::PATH_MIG_ERR
        | DeviceEvent::QP_LAST_WQE_REACHED => {
            // SAFETY: the event was filled, and is of a queue pair.
            let queue_pair = unsafe { element.qp };
            // SAFETY: the caller's; the field is never written again.
            Element::QueuePair(unsafe { (*queue_pair).qp_num })
        }
        DeviceEvent::CQ_ERR => {
            // SAFETY: the event was filled, and is of a completion queue.
            let queue = unsafe { element.cq };
            // SAFETY: as above.
            Element::CompletionQueue(ffi::context_to_key(unsafe { (*queue).cq_context }))
        }
        DeviceEvent::SRQ_ERR | DeviceEvent::SRQ_LIMIT_REACHED => {
            // SAFETY: the event was filled, and is of a shared receive queue.
            let queue = unsafe { element.srq };
            // SAFETY: as above.
            Element::SharedReceiveQueue(ffi::context_to_key(unsafe { (*queue).srq_context }))
        }
        DeviceEvent::PORT_ACTIVE
        | DeviceEvent::PORT_ERR
        | DeviceEvent::LID_CHANGE
        | DeviceEvent::PKEY_CHANGE
        | DeviceEvent::SM_CHANGE
        | DeviceEvent::CLIENT_REREGISTER
        | DeviceEvent::GID_CHANGE => {
            // SAFETY: the event was filled, and is of a port.
            let port = unsafe { element.port_num };
            // No device has more ports.
            u8::try_from(port).map_or(Element::Device, Element::Port)
        }
        _ => Element::Device,
    }
}

/// The vendor that devices of `rdma_rxe` claim: none.
const RXE: u32 = 0xff_ff_ff;
/// The vendor that devices of `siw` claim: the letters `bmt`.
const SIW: u32 = 0x62_6d_74;
/// The vendors of the cards of `irdma`, of `bnxt_re` and of `mana`, as PCI numbers them.
const INTEL: u32 = 0x8086;
const BROADCOM: u32 = 0x14e4;
const MICROSOFT: u32 = 0x1414;

/// The deviations of a driver.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quirks {
    /// Its library takes page 144 of the pages that the kernel has given it for none. See
    /// [`Context`](super::Context).
    pub(crate) loses_page_144: bool,
    /// A completion that reports an invalidated key has the kernel's number of that flag, which in user space means
    /// that the checksum of a datagram is good.
    pub(crate) invalidates_by_kernel_flag: bool,
    /// The active side receives the read limits of an accept in the direction of the peer.
    pub(crate) swaps_read_limits: bool,
    /// The passive side serves as many reads as it was offered, whatever the accept says.
    pub(crate) serves_offered_reads: bool,
    /// A peer can read any memory whose key it knows.
    pub(crate) lets_peers_read: bool,
    /// An RDMA Read needs no right to write of its peer to its sink, because the driver checks the rights of the side
    /// that requested the bytes.
    pub(crate) reads_into_any_memory: bool,
    /// A Send with Invalidate invalidates whole regions, and the completion does not report which.
    pub(crate) invalidates_regions: bool,
    /// The key of a window gives access to the whole region.
    pub(crate) ignores_window_bounds: bool,
    /// A request needs an entry, even if it has no bytes. Elsewhere an entry of no bytes can mean 2^31 of them.
    pub(crate) needs_an_entry: bool,
    /// A receive that is too short for its message is reported as malformed.
    pub(crate) misnames_short_receives: bool,
    /// The deregistration of a region with a window fails with the error of an invalid call, not of a busy region.
    pub(crate) misnames_busy_regions: bool,
    /// A completion queue that is armed for solicited events alone raises none for a Send or a Write that has failed. With `siw` it
    /// raises none for any receive either, and such an arm takes back one for all events.
    pub(crate) solicits_no_failures: bool,
    /// The device does not report when a queue pair has taken its last receive of a shared queue. The completions of a
    /// queue pair outlive it. Libraries of cards throw them away.
    pub(crate) hides_last_receive: bool,
    /// A queue pair over iWARP that goes to the error state closes its TCP connection in order. Cards reset it.
    pub(crate) errors_close_in_order: bool,
    /// Between its reply to a connect and the end of the call that accepts it does not see what the peer sends, until that sends more.
    pub(crate) misses_early_frames: bool,
    /// A part of a peer's write that is being placed when its region is deregistered is placed on after that call has returned.
    pub(crate) places_late: bool,
    /// The end of a queue pair is work for the processor of the caller, and waits for no firmware. By measurement it costs more on
    /// other threads: they have to be woken, and the kernel, which takes the queues out of the address space, interrupts every
    /// processor that runs a thread of the process.
    pub(crate) ends_on_the_processor: bool,
    /// Its queues are memory of the kernel, and the reported depths can be had with any number of entries and inline bytes. A
    /// queue of such a depth takes megabytes, so it is not asked for.
    pub(crate) fits_any_depth: bool,
    /// Requests have no inline bytes. The kernel says so only in newer versions, and the library ignores the flag of a request and
    /// has the device come for the bytes.
    pub(crate) ignores_inline: bool,
    /// The device itself writes what a receive gets, in every case. The completions of other cards (mlx5, hns) have the bytes of a
    /// short message in them, and the library copies these to the address of the receive when it is polled. That address need not
    /// be one of this process where memory is of another device.
    pub(crate) receives_in_place: bool,
    /// The driver copies with the processor, so there is no order of a bus to relax. Some versions of `rxe` refuse that flag.
    pub(crate) copies_in_order: bool,
    /// The time by which a completion queue has to outlive its last queue pair. Before Linux 6.5 `rxe` notifies of a
    /// completion by a tasklet, for which it does not wait when it frees the queue: one that was still to run then, as
    /// it is when the processor is busy, brings the kernel down. Nothing says when it has run, so this is far longer
    /// than that takes.
    pub(crate) completions_linger: Option<Duration>,
    /// The bytes that the driver itself has in the private data of a connection.
    pub(crate) occupied_data: usize,
    /// The time that a connect over iWARP waits for the reply of its peer, if it is not that of cards.
    pub(crate) iwarp_answer: Option<Duration>,
}

impl Quirks {
    /// Returns the quirks of devices of this vendor.
    pub(crate) fn of(vendor: u32) -> Self {
        match vendor {
            RXE => Self {
                invalidates_by_kernel_flag: true,
                ignores_window_bounds: true,
                misnames_short_receives: true,
                misnames_busy_regions: true,
                solicits_no_failures: true,
                ends_on_the_processor: true,
                fits_any_depth: true,
                receives_in_place: true,
                copies_in_order: true,
                // From Linux 6.5 on it reports the last receive.
                hides_last_receive: true,
                completions_linger: Some(Duration::from_secs(1)),
                ..Self::default()
            },
            SIW => Self {
                loses_page_144: true,
                swaps_read_limits: true,
                serves_offered_reads: true,
                lets_peers_read: true,
                reads_into_any_memory: true,
                invalidates_regions: true,
                needs_an_entry: true,
                solicits_no_failures: true,
                hides_last_receive: true,
                errors_close_in_order: true,
                misses_early_frames: true,
                places_late: true,
                fits_any_depth: true,
                receives_in_place: true,
                copies_in_order: true,
                // They carry the read limits.
                occupied_data: 4,
                iwarp_answer: Some(Duration::from_secs(10)),
                ..Self::default()
            },
            // The libraries of both read a completion and nothing else when they are polled.
            INTEL | BROADCOM => Self { receives_in_place: true, ..Self::default() },
            MICROSOFT => Self { ignores_inline: true, receives_in_place: true, ..Self::default() },
            _ => Self::default(),
        }
    }
}
