//! Communication identifiers, which are what librdmacm has instead of sockets, and the channel on which their events arrive.
//!
//! With enhanced connection establishment ([`Ece`]) both ends agree on the options of a vendor's queue pairs, in fields of the messages
//! that connect them. librdmacm negotiates them for queue pairs that it makes; for others rdma_set_local_ece(3) has the steps.

use std::ffi::{c_int, c_void};
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;
use std::{io, mem};

use libc::sockaddr_storage;
use smallvec::SmallVec;
use socket2::{SockAddr, SockAddrStorage};

use super::call::{self, Object};
use super::device::{self, DeviceKind};
use super::ffi::{self, number};
use super::queue_pair::{QpAttributes, QpState, QueuePair};
use crate::status::porting::CmEvent as EventKind;
use crate::sync::{Mutex, MutexGuard};

/// A communication identifier for reliable connections, without a queue pair: `id->qp` stays null, so the library
/// changes no queue pair by itself.
///
/// Every call may be made in every state: what the library would only answer with a crash, because it takes for
/// granted that the identifier is bound to a device, is an error here.
///
/// Its plain fields are only accessed under the locks of [`fields`](Self::fields), or that of [`listen`](Self::listen), and the context
/// atomically.
pub(crate) struct RawCmId {
    pub(super) raw: Object<ffi::rdma_cm_id>,
    channel: Arc<EventChannel>,
    /// The lock of its own plain fields, which `listen` holds without that of the channel.
    own: Mutex<()>,
}

impl RawCmId {
    /// Creates an identifier whose events carry the key.
    pub(crate) fn new(channel: &Arc<EventChannel>, key: u64) -> io::Result<Self> {
        let mut id = ptr::null_mut();
        call::errno(|| {
            let context = ffi::key_to_context(key);
            // SAFETY: the channel is live, and the identifier keeps it so; the call stores a pointer.
            unsafe { ffi::rdma_create_id(channel.raw.as_ptr(), &mut id, context, number::RDMA_PS_TCP) }
        })?;
        let raw = Object::new(id).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Self { raw, channel: channel.clone(), own: Mutex::default() })
    }

    /// Takes an identifier that an event handed out.
    ///
    /// # Safety
    /// It is live, of this channel, and has no other owner.
    pub(super) unsafe fn from_raw(raw: Object<ffi::rdma_cm_id>, channel: &Arc<EventChannel>) -> Self {
        Self { raw, channel: channel.clone(), own: Mutex::default() }
    }

    /// Locks the plain fields: against the other calls on this identifier, and against the events of the channel.
    pub(super) fn fields(&self) -> (MutexGuard<'_, ()>, MutexGuard<'_, ()>) {
        (self.own.lock(), self.channel.fields())
    }

    /// Sets the key of the events from now on. Is not to be called for a listener.
    pub(crate) fn set_key(&mut self, key: u64) {
        // SAFETY: the identifier is live, and not that of a listener, whose key the library itself reads.
        unsafe { context_of(self.raw.as_ptr()) }.store(ffi::key_to_context(key), Ordering::Relaxed);
    }

    pub(crate) fn key(&self) -> u64 {
        // SAFETY: the identifier is live.
        unsafe { key_of(self.raw.as_ptr()) }
    }

    pub(crate) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let mut address = to_storage(address);
        let _fields = self.fields();
        // SAFETY: the identifier is live, and the address is one of its family.
        call::errno(|| unsafe { ffi::rdma_bind_addr(self.raw.as_ptr(), (&raw mut address).cast()) })
    }

    /// Sets the option that is like `SO_REUSEADDR`, before binding.
    pub(crate) fn set_reuseaddr(&self) -> io::Result<()> {
        self.set_option(number::RDMA_OPTION_ID_REUSEADDR, c_int::from(true))
    }

    /// Sets the option that is like `IPV6_V6ONLY`, before binding.
    pub(crate) fn set_afonly(&self) -> io::Result<()> {
        self.set_option(number::RDMA_OPTION_ID_AFONLY, c_int::from(true))
    }

    /// Sets the type of service of the packets.
    pub(crate) fn set_tos(&self, tos: u8) -> io::Result<()> {
        self.set_option(number::RDMA_OPTION_ID_TOS, tos)
    }

    /// Sets the queue pair's acknowledgement timeout to 4.096 us times two to the power of `timeout`.
    pub(crate) fn set_ack_timeout(&self, timeout: u8) -> io::Result<()> {
        self.set_option(number::RDMA_OPTION_ID_ACK_TIMEOUT, timeout)
    }

    fn set_option<T: Copy>(&self, option: c_int, mut value: T) -> io::Result<()> {
        call::errno(|| {
            let start = (&raw mut value).cast();
            // SAFETY: the identifier is live, and the value has this size.
            unsafe {
                ffi::rdma_set_option(self.raw.as_ptr(), number::RDMA_OPTION_ID, option, start, size_of::<T>())
            }
        })
    }

    /// Finds the device and the address to come from. `ADDR_RESOLVED` or `ADDR_ERROR` follows.
    pub(crate) fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> io::Result<()> {
        let mut source = source.map(to_storage);
        let source = source.as_mut().map_or(ptr::null_mut(), |source| (&raw mut *source).cast());
        let mut destination = to_storage(destination);
        let _fields = self.fields();
        call::errno(|| {
            let destination = (&raw mut destination).cast();
            // SAFETY: the identifier is live, and both addresses are ones of their families, or null.
            unsafe { ffi::rdma_resolve_addr(self.raw.as_ptr(), source, destination, milliseconds(timeout)) }
        })
    }

    /// Finds the way to the peer. `ROUTE_RESOLVED` or `ROUTE_ERROR` follows, maybe before the call returns.
    ///
    /// Over InfiniBand and RoCE the library first asks `ibacm`, and waits for its answer as long as that takes, with a lock of
    /// the process held (`ucma_set_ib_route`).
    ///
    /// # Errors
    /// `EINVAL` without an address resolved.
    pub(crate) fn resolve_route(&self, timeout: Duration) -> io::Result<()> {
        self.bound()?;
        // Without the lock of the channel, which its events need. The library only reads fields here, which have been settled
        // since the address was resolved; it does not read the fields that the event of the route writes.
        // SAFETY: the identifier is live and has a device.
        call::errno(|| unsafe { ffi::rdma_resolve_route(self.raw.as_ptr(), milliseconds(timeout)) })
    }

    /// Listens for requests. Over iWARP the kernel waits in here for the port mapper (`iwpmd`), ten seconds at most
    /// (`iwpm_wait_complete_req`), and the events of others must not wait for that.
    pub(crate) fn listen(&self, backlog: i32) -> io::Result<()> {
        // The lock of the channel is not needed: no event writes the fields of an identifier that listens, and one that resolves
        // an address cannot listen, so that the library fails without writing them.
        let _own = self.own.lock();
        // SAFETY: the identifier is live.
        call::errno(|| unsafe { ffi::rdma_listen(self.raw.as_ptr(), backlog) })
    }

    /// Asks the peer for a connection. Over iWARP this may wait for TCP, as some drivers connect it in here.
    ///
    /// # Errors
    /// `EINVAL` without a route resolved, or with read limits beyond those of the device; `InvalidInput` if the
    /// private data is longer than 255 bytes; over iWARP also the errors of TCP.
    pub(crate) fn connect(&self, params: &ConnectionParams<'_>) -> io::Result<()> {
        self.bound()?;
        let mut raw = params.to_raw()?;
        // SAFETY: the identifier is live and has a device; the private data is live and that long.
        call::errno(|| unsafe { ffi::rdma_connect(self.raw.as_ptr(), &mut raw) })
    }

    /// Accepts a request. `ESTABLISHED` follows when the peer has completed the connection.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub(crate) fn accept(&self, params: &ConnectionParams<'_>) -> io::Result<()> {
        self.bound()?;
        let mut raw = params.to_raw()?;
        // SAFETY: the identifier is live and has a device; the private data is live and that long.
        call::errno(|| unsafe { ffi::rdma_accept(self.raw.as_ptr(), &mut raw) })
    }

    /// Rejects a request, or over InfiniBand a response.
    pub(crate) fn reject(&self, data: &[u8]) -> io::Result<()> {
        let length = private_length(data)?;
        // SAFETY: the identifier is live; the private data is live and that long.
        call::errno(|| unsafe { ffi::rdma_reject(self.raw.as_ptr(), data.as_ptr().cast(), length) })
    }

    /// Completes a connection after `CONNECT_RESPONSE`: no event follows. Never to be called over iWARP.
    pub(crate) fn establish(&self) -> io::Result<()> {
        // SAFETY: the identifier is live and has no queue pair.
        call::errno(|| unsafe { ffi::rdma_establish(self.raw.as_ptr()) })
    }

    pub(crate) fn disconnect(&self) -> io::Result<()> {
        self.bound()?;
        // SAFETY: the identifier is live and has a device.
        call::errno(|| unsafe { ffi::rdma_disconnect(self.raw.as_ptr()) })
    }

    /// Reports to the connection manager that the peer has completed the connection, since data has arrived: for when
    /// the peer's last message was lost.
    pub(crate) fn notify_established(&self) -> io::Result<()> {
        // SAFETY: the identifier is live.
        call::errno(|| unsafe { ffi::rdma_notify(self.raw.as_ptr(), ffi::IBV_EVENT_COMM_EST) })
    }

    /// Returns the local address; `None` while the identifier has none. After a bind to the wildcard address it is that
    /// address, with its port.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        let _fields = self.fields();
        // SAFETY: the identifier is live, and the lock keeps the library from writing this.
        let address = unsafe { &(*self.raw.as_ptr()).route.addr.src_addr_union };
        // SAFETY: whatever the union holds is integers, and a storage is all of it.
        from_storage(unsafe { &address.src_storage })
    }

    /// Returns the address of the peer; `None` while the identifier has none.
    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        let _fields = self.fields();
        // SAFETY: as for the local address.
        let address = unsafe { &(*self.raw.as_ptr()).route.addr.dst_addr_union };
        // SAFETY: as for the local address.
        from_storage(unsafe { &address.dst_storage })
    }

    /// Does something with the library's context of the device that the identifier is bound to, which stays open for as long, and with
    /// the number of the port. `None` before, and after a bind to the wildcard address.
    fn with_device<R>(&self, use_it: impl FnOnce(NonNull<ffi::ibv_context>, u8) -> Option<R>) -> Option<R> {
        let _fields = self.fields();
        // SAFETY: the identifier is live, and the lock keeps the library from writing this.
        let context = NonNull::new(unsafe { (*self.raw.as_ptr()).verbs })?;
        // SAFETY: as above.
        use_it(context, unsafe { (*self.raw.as_ptr()).port_num })
    }

    /// Returns the device and the port that the identifier is bound to. `None` before, and after a bind to the wildcard
    /// address.
    pub(crate) fn device(&self) -> Option<BoundDevice> {
        self.with_device(|context, port| {
            // SAFETY: the device is open.
            let device = NonNull::new(unsafe { (*context.as_ptr()).device })?;
            let name = device::name_of(device)?;
            // SAFETY: the device is valid as long as the context.
            let guid = u64::from_be(unsafe { ffi::ibv_get_device_guid(device.as_ptr()) });
            Some(BoundDevice { name, guid, port })
        })
    }

    /// Returns the GIDs of the local address and of the peer; each `None` while it is not known. Over iWARP the fields have hardware
    /// addresses, and not GIDs.
    pub(crate) fn gids(&self) -> [Option<Ipv6Addr>; 2] {
        let _fields = self.fields();
        // SAFETY: the identifier is live, and the lock keeps the library from writing this.
        let addresses = unsafe { &(*self.raw.as_ptr()).route.addr.addr };
        // SAFETY: whatever the union holds is integers, and this member is all of it.
        let addresses = unsafe { addresses.ibaddr };
        [addresses.sgid, addresses.dgid].map(|gid| {
            // SAFETY: whatever the union holds is integers, and the bytes are all of it.
            let gid = Ipv6Addr::from(unsafe { gid.raw });
            (!gid.is_unspecified()).then_some(gid)
        })
    }

    /// Returns the kind of the device and the port that the identifier is bound to. `None` if there is none, or if the
    /// device has an unknown transport or cannot be queried.
    pub(crate) fn kind(&self) -> Option<DeviceKind> {
        // SAFETY: the device is open.
        self.with_device(|context, port| unsafe { DeviceKind::of(context.as_ptr(), port) })
    }

    /// Checks that the identifier has a device, which then stays the same for the life of the identifier.
    ///
    /// # Errors
    /// `EINVAL` without a device.
    fn bound(&self) -> io::Result<()> {
        self.with_device(|_, _| Some(())).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
    }

    /// Returns the attributes that a queue pair needs to go to a state, as far as the connection knows them.
    pub(crate) fn qp_attributes(&self, state: QpState) -> io::Result<QpAttributes> {
        // SAFETY: all members are integers, for which zero is a value.
        let mut raw: ffi::ibv_qp_attr = unsafe { mem::zeroed() };
        let mut mask = 0;
        call::errno(|| {
            raw.qp_state = state as u32;
            // SAFETY: the identifier is live; the call fills both.
            unsafe { ffi::rdma_init_qp_attr(self.raw.as_ptr(), &mut raw, &mut mask) }
        })?;
        let of_ethernet = number::QP_ETHERNET_ATTRIBUTES as c_int;
        // Old kernels name these over InfiniBand, too, where no driver takes them. librdmacm does the same for its queue pairs.
        if mask & of_ethernet != 0 && self.kind() == Some(DeviceKind::InfiniBand) {
            mask &= !of_ethernet;
        }
        Ok(QpAttributes::from_raw(raw, mask))
    }
}

impl Drop for RawCmId {
    fn drop(&mut self) {
        // SAFETY: the identifier has no other owner, and drop runs once. The call waits for events that were taken
        // and not acknowledged, which `EventChannel::next` does without waiting for anything.
        if let Err(error) = call::errno(|| unsafe { ffi::rdma_destroy_id(self.raw.as_ptr()) }) {
            tracing::warn!(%error, "an identifier could not be destroyed and is leaked");
        }
    }
}

/// Returns the key of an identifier.
///
/// # Safety
/// It is live.
pub(super) unsafe fn key_of(id: *mut ffi::rdma_cm_id) -> u64 {
    // SAFETY: the caller's.
    ffi::context_to_key(unsafe { context_of(id) }.load(Ordering::Relaxed))
}

/// Returns the field of an identifier that has its key.
///
/// # Safety
/// The identifier is live for `'a`.
unsafe fn context_of<'a>(id: *mut ffi::rdma_cm_id) -> &'a AtomicPtr<c_void> {
    // SAFETY: the caller's.
    let context = unsafe { &raw mut (*id).context };
    // SAFETY: the field is aligned, lives as long as the identifier, and is only accessed atomically after creation.
    unsafe { AtomicPtr::from_ptr(context) }
}

/// The device that an identifier is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BoundDevice {
    /// Its name, such as `rxe0`.
    pub(crate) name: String,
    pub(crate) guid: u64,
    pub(crate) port: u8,
}

/// The parameters that a request or a response sends to the peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionParams<'a> {
    pub(crate) private_data: &'a [u8],
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) qp_num: u32,
}

impl ConnectionParams<'_> {
    fn to_raw(&self) -> io::Result<ffi::rdma_conn_param> {
        Ok(ffi::rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: private_length(self.private_data)?,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: 0,
            qp_num: self.qp_num,
        })
    }
}

fn private_length(data: &[u8]) -> io::Result<u8> {
    u8::try_from(data.len())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "private data is at most 255 bytes"))
}

/// Converts a timeout to the form of the library, at least one millisecond.
fn milliseconds(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX).max(1)
}

fn to_storage(address: SocketAddr) -> SockAddrStorage {
    SockAddr::from(address).as_storage()
}

/// Returns the address in a storage of the library; `None` while it is unset, or of a family that is no internet's.
fn from_storage(storage: &sockaddr_storage) -> Option<SocketAddr> {
    let mut copy = SockAddrStorage::zeroed();
    let length = copy.size_of();
    // SAFETY: both are storages of C.
    *unsafe { copy.view_as() } = *storage;
    // SAFETY: no address is longer than a storage, and all of that is initialized.
    unsafe { SockAddr::new(copy, length) }.as_socket()
}

/// Private data as the device gave it: with the padding that InfiniBand adds, at most 255 bytes.
pub(crate) type PrivateBytes = SmallVec<[u8; 256]>;

/// An event channel of librdmacm. Its descriptor becomes readable when there is an event, and does not block.
///
/// The library keeps the addresses and the device of an identifier in plain fields of it. It writes them when it is
/// asked to bind, to listen or to resolve an address, and while it fetches an event about them. All of these but
/// listening, and every read of the fields, happen under one lock of the channel; none of them waits. To listen may
/// take long, and happens under a lock of the identifier, which all others of its calls take, too.
pub(crate) struct EventChannel {
    pub(super) raw: Object<ffi::rdma_event_channel>,
    fields: Mutex<()>,
}

impl EventChannel {
    /// Creates a channel.
    ///
    /// # Errors
    /// `ENODEV` (or another, by version) where there is no RDMA device or no driver of the connection manager; `Unsupported` if
    /// the libraries cannot be loaded.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        ffi::load().map_err(call::unsupported)?;
        // SAFETY: takes nothing, and gives a channel of its own or null.
        let raw = call::pointer(libc::ENODEV, || unsafe { ffi::rdma_create_event_channel() })?;
        let channel = Self { raw, fields: Mutex::new(()) };
        // SAFETY: the channel is new, so its descriptor is open.
        unsafe { call::do_not_wait(channel.as_raw_fd()) }?;
        Ok(Arc::new(channel))
    }

    /// Takes the lock under which the fields of identifiers are read and written.
    pub(super) fn fields(&self) -> MutexGuard<'_, ()> {
        self.fields.lock()
    }

    /// Takes the next event, copies it, and acknowledges it before this returns; `None` when there is none.
    ///
    /// # Errors
    /// The error of the kernel; the channel is of no use then.
    pub(crate) fn next(self: &Arc<Self>) -> io::Result<Option<CmEvent>> {
        let mut event = ptr::null_mut();
        let fields = self.fields();
        let fetched = call::errno(|| {
            // SAFETY: the channel is live, and the call stores a pointer.
            unsafe { ffi::rdma_get_cm_event(self.raw.as_ptr(), &mut event) }
        });
        if call::unless_empty(fetched)?.is_none() {
            return Ok(None);
        }
        let event = Fetched(NonNull::new(event).ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))?);
        let copy = event.copy(self);
        drop(event); // Acknowledged, so that the identifier may be destroyed.
        drop(fields);
        Ok(Some(copy))
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: every identifier of the channel holds an `Arc` of it, so none is left; drop runs once.
        unsafe { ffi::rdma_destroy_event_channel(self.raw.as_ptr()) }
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the structure is live and never written again.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

/// An event that was taken from the channel and not yet acknowledged: its identifiers cannot go away.
struct Fetched(NonNull<ffi::rdma_cm_event>);

impl Fetched {
    fn copy(&self, channel: &Arc<EventChannel>) -> CmEvent {
        // SAFETY: the event is live until it is acknowledged, nothing writes to it, and all it holds is pointers and
        // integers, of which its kind is one.
        let event = unsafe { self.0.as_ref() };
        // SAFETY: the library has zeroed the union and has filled this member or none, as every identifier of ours is in the port space
        // for connections.
        let connection = unsafe { event.param.conn };
        let mut private_data = PrivateBytes::new();
        if !connection.private_data.is_null() && connection.private_data_len > 0 {
            let start = connection.private_data.cast::<u8>();
            // SAFETY: the library says that this many bytes are there, inside the event.
            let bytes = unsafe { std::slice::from_raw_parts(start, connection.private_data_len.into()) };
            private_data.extend_from_slice(bytes);
        }
        // SAFETY: the event keeps the identifier alive.
        let key = unsafe { key_of(event.id) };
        let kind = EventKind::from_code(event.event);
        let child = Object::new(event.id).filter(|_| kind == EventKind::CONNECT_REQUEST);
        // SAFETY: the event hands out a new identifier of this channel, which is ours from now on.
        let request = child.map(|child| unsafe { RawCmId::from_raw(child, channel) });
        CmEvent {
            kind,
            status: event.status,
            key,
            request,
            private_data,
            responder_resources: connection.responder_resources,
            initiator_depth: connection.initiator_depth,
        }
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        // SAFETY: the event came from the channel and is acknowledged this once. It cannot fail.
        unsafe { ffi::rdma_ack_cm_event(self.0.as_ptr()) };
    }
}

/// A copy of an event.
pub(crate) struct CmEvent {
    pub(crate) kind: EventKind,
    /// A negative error number, or for `REJECTED` over InfiniBand a positive reason.
    pub(crate) status: i32,
    /// The key of the identifier that the event is for. That of a new one is its listener's.
    pub(crate) key: u64,
    /// The new identifier, with `CONNECT_REQUEST`. It has the listener's key until it gets its own.
    pub(crate) request: Option<RawCmId>,
    pub(crate) private_data: PrivateBytes,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
}

/// The options of a queue pair, in the bits of its vendor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ece {
    pub(crate) vendor: u32,
    pub(crate) options: u32,
}

impl Ece {
    fn of(raw: &ffi::ibv_ece) -> Option<Self> {
        // Without a vendor there is nothing to agree on.
        (raw.vendor_id != 0).then_some(Self { vendor: raw.vendor_id, options: raw.options })
    }

    fn raw(self) -> ffi::ibv_ece {
        ffi::ibv_ece { vendor_id: self.vendor, options: self.options, comp_mask: 0 }
    }

    /// Returns the options that a queue pair with these options is to use with a peer that has sent `peer`: the peer's
    /// options, or none if the peer is of another vendor or has sent none.
    pub(crate) fn agreed(self, peer: Option<Self>) -> Self {
        let options = peer.filter(|peer| peer.vendor == self.vendor).map_or(0, |peer| peer.options);
        Self { options, ..self }
    }
}

impl QueuePair {
    /// Returns the options of the queue pair; `None` if the library or the driver has none.
    pub(crate) fn ece(&self) -> Option<Ece> {
        let query = ffi::ece()?.query;
        let mut raw = ffi::ibv_ece::default();
        // SAFETY: the queue pair is live; the call fills the structure.
        call::number(|| unsafe { query(self.raw.as_ptr(), &mut raw) }).ok()?;
        Ece::of(&raw)
    }

    /// Has the queue pair use these options with the next change of its state.
    ///
    /// # Errors
    /// `EINVAL` for options of another vendor, `EOPNOTSUPP` where there are none.
    pub(crate) fn set_ece(&self, options: Ece) -> io::Result<()> {
        let unknown = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        let set = ffi::ece().ok_or_else(unknown)?.set;
        let mut raw = options.raw();
        // SAFETY: the queue pair is live; the structure is read, and written.
        call::number(|| unsafe { set(self.raw.as_ptr(), &mut raw) })
    }
}

impl RawCmId {
    /// Adds these options to the next request or reply.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the library does not know how.
    pub(crate) fn set_local_ece(&self, options: Ece) -> io::Result<()> {
        let unknown = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        let set = ffi::ece().ok_or_else(unknown)?.set_local;
        let mut raw = options.raw();
        let _fields = self.fields();
        // SAFETY: the identifier is live and has no queue pair; the structure is read.
        call::errno(|| unsafe { set(self.raw.as_ptr(), &mut raw) })
    }

    /// Returns the options in the request or the reply of the peer.
    pub(crate) fn remote_ece(&self) -> Option<Ece> {
        let get = ffi::ece()?.get_remote;
        let mut raw = ffi::ibv_ece::default();
        let _fields = self.fields();
        // SAFETY: the identifier is live and has no queue pair; the call fills the structure.
        call::errno(|| unsafe { get(self.raw.as_ptr(), &mut raw) }).ok()?;
        Ece::of(&raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_c_and_back() {
        for text in ["1.2.3.4:5", "0.0.0.0:0", "[2001:db8::1]:65535", "[fe80::1%3]:7"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut storage = to_storage(address);
            // SAFETY: both are storages of C.
            assert_eq!(from_storage(unsafe { storage.view_as() }), Some(address), "{text}");
        }
    }

    #[test]
    fn an_unset_address_is_none() {
        // SAFETY: plain integers.
        let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
        assert_eq!(from_storage(&storage), None);
        storage.ss_family = libc::AF_UNIX as libc::sa_family_t;
        assert_eq!(from_storage(&storage), None);
    }

    // Options of another vendor, and none, give the own vendor's without an option (CM-35).
    #[test]
    fn only_options_of_same_vendor_are_agreed() {
        let own = Ece { vendor: 0x2c9, options: 7 };
        assert_eq!(own.agreed(Some(Ece { vendor: 0x2c9, options: 5 })), Ece { vendor: 0x2c9, options: 5 });
        assert_eq!(own.agreed(Some(Ece { vendor: 0x1425, options: 5 })), Ece { vendor: 0x2c9, options: 0 });
        assert_eq!(own.agreed(None), Ece { vendor: 0x2c9, options: 0 });
    }
}
