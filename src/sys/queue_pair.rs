//! Queue pairs for reliable connections, and receive queues that several of them share.

use std::ffi::c_int;
use std::sync::Arc;
use std::{io, mem, ptr, slice};

use smallvec::SmallVec;

use super::call::{self, Object};
use super::completion::CompletionQueue;
use super::device;
use super::ffi::{self, number};
use super::memory::{AccessFlags, ProtectionDomain};
use super::post::{self, ReceiveRequest, Refused, SendRequest};

/// The number of requests of a call that need no memory of the heap.
const INLINE_CHAIN: usize = 16;

/// The capacities of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacities {
    /// Requests in the send queue.
    pub(crate) send: u32,
    /// Requests in the receive queue.
    pub(crate) receive: u32,
    /// Entries of a request in the send queue.
    pub(crate) send_entries: u32,
    /// Entries of a request in the receive queue.
    pub(crate) receive_entries: u32,
    /// Bytes that are copied into a request instead of being read later.
    pub(crate) inline: u32,
}

/// A queue pair for a reliable connection. Whether a request of its send queue reports success is up to each.
pub(crate) struct QueuePair {
    pub(super) raw: Object<ffi::ibv_qp>,
    /// The number by which the peer and the completions name the queue pair.
    pub(crate) number: u32,
    /// The number of inline bytes that the driver accepts in a request. That may be more than was asked for, and with some
    /// drivers less, without an error.
    pub(crate) inline: u32,
    /// Its destruction has been tried.
    ended: bool,
    _send: Arc<CompletionQueue>,
    _receive: Arc<CompletionQueue>,
    _shared: Option<Arc<SharedReceiveQueue>>,
    _domain: Arc<ProtectionDomain>,
}

impl QueuePair {
    /// Creates a queue pair with at least these capacities, and room for at least one request in either queue: some
    /// drivers know no empty ones. With a shared receive queue it has no receive queue of its own.
    ///
    /// # Errors
    /// `EINVAL` for more than the device allows; `ENOMEM` if it has no more.
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        send: &Arc<CompletionQueue>,
        receive: &Arc<CompletionQueue>,
        shared: Option<&Arc<SharedReceiveQueue>>,
        capacities: Capacities,
    ) -> io::Result<Self> {
        // SAFETY: all members are integers or pointers, for which zero is a value.
        let mut attributes: ffi::ibv_qp_init_attr = unsafe { mem::zeroed() };
        attributes.send_cq = send.raw.as_ptr();
        attributes.recv_cq = receive.raw.as_ptr();
        attributes.qp_type = number::IBV_QPT_RC;
        attributes.srq = shared.map_or(ptr::null_mut(), |queue| queue.raw.as_ptr());
        // It would be an error to ask for both.
        let own = |value: u32| if shared.is_none() { value } else { 0 };
        let raw = call::pointer(libc::ENOMEM, || {
            // Again each time: the call stores here what the queue pair has.
            attributes.cap = ffi::ibv_qp_cap {
                max_send_wr: capacities.send.max(1),
                max_recv_wr: own(capacities.receive.max(1)),
                max_send_sge: capacities.send_entries,
                max_recv_sge: own(capacities.receive_entries),
                max_inline_data: capacities.inline,
            };
            // SAFETY: domain and queues are live, and the queue pair keeps them so.
            unsafe { ffi::ibv_create_qp(domain.raw.as_ptr(), &mut attributes) }
        })?;
        // SAFETY: the queue pair is live, and the field is never written again.
        let number = unsafe { (*raw.as_ptr()).qp_num };
        Ok(Self {
            raw,
            number,
            inline: attributes.cap.max_inline_data,
            ended: false,
            _send: send.clone(),
            _receive: receive.clone(),
            _shared: shared.cloned(),
            _domain: domain.clone(),
        })
    }

    /// Changes state and attributes.
    pub(crate) fn modify(&self, attributes: &QpAttributes) -> io::Result<()> {
        // SAFETY: the structure is plain integers, so a copy of its bytes is as good.
        let mut raw = unsafe { ptr::read(&attributes.raw) };
        // SAFETY: the queue pair is live; the attributes that the mask names are set.
        call::number(|| unsafe { ffi::ibv_modify_qp(self.raw.as_ptr(), &mut raw, attributes.mask) })
    }

    /// Takes the rights of the peer away: the device refuses its reads, writes and atomics from now on.
    pub(crate) fn revoke_access(&self) -> io::Result<()> {
        // SAFETY: all members are integers, for which zero is a value, here that of no rights.
        let raw: ffi::ibv_qp_attr = unsafe { mem::zeroed() };
        self.modify(&QpAttributes { raw, mask: number::IBV_QP_ACCESS_FLAGS as c_int })
    }

    /// Flushes both queues and takes no more part in a connection.
    pub(crate) fn to_error(&self) -> io::Result<()> {
        // SAFETY: all members are integers, for which zero is a value.
        let mut raw: ffi::ibv_qp_attr = unsafe { mem::zeroed() };
        raw.qp_state = number::IBV_QPS_ERR;
        self.modify(&QpAttributes { raw, mask: number::IBV_QP_STATE as c_int })
    }

    /// Destroys the queue pair, if that has not been tried: then the device no longer uses the memory of its requests.
    /// The owner drops the handle next.
    ///
    /// # Errors
    /// Those of ibv_destroy_qp(3). It is leaked, and the device may use that memory at any later time: a driver that is
    /// being unbound answers `EIO` before it destroys the objects of the device.
    pub(crate) fn destroy(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        // SAFETY: the queue pair has no other owner, and this is called once. The call waits for asynchronous events that
        // were taken and not acknowledged, which `Context::next_async_event` does at once.
        let outcome = call::number(|| unsafe { ffi::ibv_destroy_qp(self.raw.as_ptr()) });
        if let Err(error) = &outcome {
            tracing::warn!(%error, number = self.number, "a queue pair could not be destroyed and is leaked");
        }
        outcome
    }

    /// Adds requests to the send queue, in this order, and notifies the device once. Each is what `request` returns.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full, `EINVAL` for what the driver sees to be wrong; and how many were added before.
    ///
    /// # Safety
    /// Unless a request is inline, the memory of its entries stays allocated and registered under
    /// their keys, and if it reads from the peer no reference to it is made, until the request or a later one
    /// of the queue has completed, or the queue pair is destroyed. Inline memory is of this process, and readable now. The objects
    /// of a binding live as long, and no other call binds the same window at the same time.
    pub(crate) unsafe fn post_send<'a, T>(
        &self,
        requests: &'a [T],
        request: impl Fn(&'a T) -> SendRequest<'a>,
    ) -> Result<(), Refused> {
        // SAFETY: all members are integers or pointers, for which zero is a value.
        let zeros = || unsafe { mem::zeroed::<ffi::ibv_send_wr>() };
        let mut chain = requests.iter().map(|_| zeros()).collect::<SmallVec<[_; INLINE_CHAIN]>>();
        for (other, raw) in requests.iter().zip(&mut chain) {
            // SAFETY: the caller's.
            unsafe { request(other).fill(raw) }.map_err(|source| Refused { taken: 0, source })?;
        }
        // SAFETY: the caller's.
        unsafe { self.post_chain(&mut chain) }
    }

    /// Adds one request to the send queue, like [`post_send`](Self::post_send).
    ///
    /// # Errors
    /// Those of [`post_send`](Self::post_send).
    ///
    /// # Safety
    /// As for [`post_send`](Self::post_send).
    #[inline(always)]
    pub(crate) unsafe fn post_one(&self, request: &SendRequest<'_>) -> Result<(), Refused> {
        // SAFETY: all members are integers or pointers, for which zero is a value.
        let mut raw = unsafe { mem::zeroed::<ffi::ibv_send_wr>() };
        // SAFETY: the caller's.
        unsafe { request.fill(&mut raw) }.map_err(|source| Refused { taken: 0, source })?;
        // SAFETY: the caller's.
        unsafe { self.post_chain(slice::from_mut(&mut raw)) }
    }

    /// Links the requests, and calls the library.
    ///
    /// # Safety
    /// As for [`post_send`](Self::post_send).
    #[inline]
    unsafe fn post_chain(&self, chain: &mut [ffi::ibv_send_wr]) -> Result<(), Refused> {
        let mut first = ptr::null_mut();
        for raw in chain.iter_mut().rev() {
            raw.next = first;
            first = raw;
        }
        if first.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        call::clear_errno();
        // Once, because a second call would repeat the effects of the first: a signal is an error like any other.
        // SAFETY: the queue pair is live; chain and entries are, and are only read, until the call returns. The memory
        // behind them is the caller's.
        let returned = unsafe { ffi::ibv_post_send(self.raw.as_ptr(), first, &mut bad) };
        post::outcome(returned, bad, chain)
    }

    /// Adds a request to the receive queue.
    ///
    /// # Errors
    /// As for [`post_send`](Self::post_send).
    ///
    /// # Safety
    /// As for a read in [`post_send`](Self::post_send), with the receive queue instead. The queue pair has a receive queue
    /// of its own. Memory of another device is not among the entries unless the device
    /// [receives in place](super::Quirks::receives_in_place).
    pub(crate) unsafe fn post_receive(&self, request: ReceiveRequest<'_>) -> Result<(), Refused> {
        let mut raw = request.to_raw().map_err(|source| Refused { taken: 0, source })?;
        let mut bad = ptr::null_mut();
        call::clear_errno();
        // SAFETY: as for a send.
        let returned = unsafe { ffi::ibv_post_recv(self.raw.as_ptr(), &mut raw, &mut bad) };
        post::outcome(returned, bad, slice::from_ref(&raw))
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // The error has been logged.
        let _ = self.destroy();
    }
}

/// A state of a queue pair, as far as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum QpState {
    Init = number::IBV_QPS_INIT,
    ReadyToReceive = number::IBV_QPS_RTR,
    ReadyToSend = number::IBV_QPS_RTS,
}

/// A state with the attributes that belong to it. An attribute that the state does not have is left alone: over
/// iWARP the driver knows most of them itself.
pub(crate) struct QpAttributes {
    raw: ffi::ibv_qp_attr,
    mask: c_int,
}

impl QpAttributes {
    pub(super) fn from_raw(raw: ffi::ibv_qp_attr, mask: c_int) -> Self {
        Self { raw, mask }
    }

    /// Returns whether the state has an attribute.
    fn has(&self, attribute: u32) -> bool {
        self.mask & attribute as c_int != 0
    }

    /// Returns the number of the queue pair of the peer, if the state has it.
    pub(crate) fn peer_number(&self) -> Option<u32> {
        self.has(number::IBV_QP_DEST_QPN).then_some(self.raw.dest_qp_num)
    }

    /// Returns the largest payload of a packet, in bytes, if the state has it.
    pub(crate) fn path_mtu(&self) -> Option<u32> {
        self.has(number::IBV_QP_PATH_MTU).then_some(self.raw.path_mtu).and_then(device::mtu_of)
    }

    /// Sets the number of reads of the peer that are served at a time.
    pub(crate) fn set_max_dest_rd_atomic(&mut self, reads: u8) {
        if self.has(number::IBV_QP_MAX_DEST_RD_ATOMIC) {
            self.raw.max_dest_rd_atomic = reads;
        }
    }

    /// Sets the pause after which the peer repeats a message that found no receive, as the specification encodes it.
    pub(crate) fn set_min_rnr_timer(&mut self, code: u8) {
        if self.has(number::IBV_QP_MIN_RNR_TIMER) {
            self.raw.min_rnr_timer = code;
        }
    }

    /// Sets the number of reads that are outstanding at a time.
    pub(crate) fn set_max_rd_atomic(&mut self, reads: u8) {
        if self.has(number::IBV_QP_MAX_QP_RD_ATOMIC) {
            self.raw.max_rd_atomic = reads;
        }
    }

    /// Sets the rights of the peer.
    pub(crate) fn set_access(&mut self, access: AccessFlags) {
        if self.has(number::IBV_QP_ACCESS_FLAGS) {
            self.raw.qp_access_flags = access.bits();
        }
    }
}

/// A receive queue that many queue pairs take their receives from.
pub(crate) struct SharedReceiveQueue {
    pub(super) raw: Object<ffi::ibv_srq>,
    key: u64,
    /// Its destruction has been tried.
    ended: bool,
    _domain: Arc<ProtectionDomain>,
}

impl SharedReceiveQueue {
    /// Creates a queue for at least that many requests with that many entries, whose events carry the key.
    ///
    /// # Errors
    /// `EINVAL` for more than the device allows, `EOPNOTSUPP` where it has none.
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        depth: u32,
        entries: u32,
        key: u64,
    ) -> io::Result<Arc<Self>> {
        // SAFETY: all members are integers or pointers, for which zero is a value.
        let mut attributes: ffi::ibv_srq_init_attr = unsafe { mem::zeroed() };
        attributes.srq_context = ffi::key_to_context(key);
        let raw = call::pointer(libc::ENOMEM, || {
            // Again each time: the call stores here what the queue has.
            attributes.attr = ffi::ibv_srq_attr { max_wr: depth, max_sge: entries, srq_limit: 0 };
            // SAFETY: the domain is live, and the queue keeps it so.
            unsafe { ffi::ibv_create_srq(domain.raw.as_ptr(), &mut attributes) }
        })?;
        Ok(Arc::new(Self { raw, key, ended: false, _domain: domain.clone() }))
    }

    /// Returns the key that its events carry.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// Adds a request.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full, `EINVAL` for what the driver sees to be wrong.
    ///
    /// # Safety
    /// The memory of the entries stays allocated and registered under their keys, and no reference to it is made, until
    /// the request has completed, or this queue and every queue pair of it is destroyed. Memory of another device is not among the
    /// entries unless the device [receives in place](super::Quirks::receives_in_place).
    pub(crate) unsafe fn post(&self, request: ReceiveRequest<'_>) -> Result<(), Refused> {
        let mut raw = request.to_raw().map_err(|source| Refused { taken: 0, source })?;
        let mut bad = ptr::null_mut();
        call::clear_errno();
        // SAFETY: the queue is live; request and entries are, and are only read, until the call returns. The memory behind
        // them is the caller's.
        let returned = unsafe { ffi::ibv_post_srq_recv(self.raw.as_ptr(), &mut raw, &mut bad) };
        post::outcome(returned, bad, slice::from_ref(&raw))
    }

    /// Makes room for at least that many requests. Its requests stay.
    ///
    /// # Errors
    /// `EINVAL` for more than the device allows or less than is needed, and from most drivers where its size is fixed, see
    /// [`DeviceAttributes::resizes_shared`](super::DeviceAttributes::resizes_shared).
    pub(crate) fn resize(&self, depth: u32) -> io::Result<()> {
        let mut attributes = ffi::ibv_srq_attr { max_wr: depth, max_sge: 0, srq_limit: 0 };
        let mask = number::IBV_SRQ_MAX_WR as i32;
        // SAFETY: the queue is live; the attributes that the mask names are set.
        call::number(|| unsafe { ffi::ibv_modify_srq(self.raw.as_ptr(), &mut attributes, mask) })
    }

    /// Destroys the queue, if that has not been tried: then the device no longer uses the memory of its requests. The owner drops the
    /// handle next.
    ///
    /// # Errors
    /// Those of ibv_destroy_srq(3): `EBUSY` if a queue pair of it could not be destroyed. It is leaked, and the device may use that
    /// memory at any later time.
    pub(crate) fn destroy(&mut self) -> io::Result<()> {
        if mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        // SAFETY: every queue pair of the queue holds an `Arc` of it, so none is left; this is called once. The call waits for
        // asynchronous events that were taken and not acknowledged, which `Context::next_async_event` does at once.
        let outcome = call::number(|| unsafe { ffi::ibv_destroy_srq(self.raw.as_ptr()) });
        if let Err(error) = &outcome {
            tracing::warn!(%error, key = self.key, "a shared receive queue could not be destroyed and is leaked");
        }
        outcome
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // The error has been logged.
        let _ = self.destroy();
    }
}
