//! The channel on which the events of communication identifiers arrive.
//!
//! This file and `id` name each other: an identifier belongs to a channel, and the event of a connection request brings a
//! new identifier.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use smallvec::SmallVec;

use super::call::Object;
use super::id::{RawCmId, key_of};
use super::{call, ffi};

use crate::status::porting::CmEvent as EventKind;
use crate::sync::{Mutex, MutexGuard};

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
