//! Chains of requests that are filled in place and posted with one call, and completions that are polled into the memory of the
//! program: for an owner that posts and polls alone, without an allocation or a copy for each request.
//!
//! A chain is linked once. Posting a part of it cuts the link behind the last request for the time of the call.

use std::ffi::c_int;
use std::mem;
use std::mem::offset_of;
use std::ptr::{self, NonNull};

use super::completion::{CompletionQueue, Unreadable};
use super::ffi::number;
use super::post::RemoteMemory;
use super::queue_pair::QueuePair;
use super::shared_receive::SharedReceiveQueue;
use super::{call, ffi};
use crate::inflight::Done;

/// The number of requests of a chain.
pub(crate) const CHAIN: usize = 64;

/// A part of registered memory, and the id with which its request completes.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) id: u64,
    pub(crate) address: u64,
    pub(crate) length: u32,
}

/// The requests for a send queue that wait for the doorbell.
pub(crate) struct SendChain {
    links: Linked<ffi::ibv_send_wr>,
    length: usize,
}

/// The requests for a receive queue that wait for the doorbell.
pub(crate) struct ReceiveChain {
    links: Linked<ffi::ibv_recv_wr>,
    length: usize,
}

/// The call has left the requests from the one at this place on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefusedFrom(pub(crate) usize);

impl SendChain {
    /// Creates an empty chain, whose requests name memory of this key.
    pub(crate) fn new(key: u32) -> Self {
        // SAFETY: all members are integers or pointers, for which zero is a value.
        let links = Linked::new(
            || unsafe { mem::zeroed::<ffi::ibv_send_wr>() },
            ffi::ibv_sge { addr: 0, length: 0, lkey: key },
        );
        Self { links, length: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns the ids of the requests.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        self.links.requests(self.length).iter().map(|request| request.wr_id)
    }

    /// Adds a Send of this memory. Returns whether there was room.
    #[inline]
    pub(crate) fn send(&mut self, piece: Piece, inline: bool) -> bool {
        self.add(piece, None, number::IBV_WR_SEND, inline)
    }

    /// Adds an RDMA Write of this memory to memory of the peer. Returns whether there was room.
    #[inline]
    pub(crate) fn write(&mut self, piece: Piece, remote: RemoteMemory, inline: bool) -> bool {
        self.add(piece, Some(remote), number::IBV_WR_RDMA_WRITE, inline)
    }

    /// Adds an RDMA Read of memory of the peer into this memory. Returns whether there was room.
    #[inline]
    pub(crate) fn read(&mut self, piece: Piece, remote: RemoteMemory) -> bool {
        self.add(piece, Some(remote), number::IBV_WR_RDMA_READ, false)
    }

    #[inline]
    fn add(&mut self, piece: Piece, remote: Option<RemoteMemory>, opcode: u32, inline: bool) -> bool {
        let Some((request, entry)) = self.links.get_mut(self.length) else { return false };
        (entry.addr, entry.length) = (piece.address, piece.length);
        request.wr_id = piece.id;
        request.opcode = opcode;
        let copied = if inline { number::IBV_SEND_INLINE } else { 0 };
        request.send_flags = number::IBV_SEND_SIGNALED | copied;
        if let Some(remote) = remote {
            request.wr.rdma = ffi::rdma_t { remote_addr: remote.address, rkey: remote.key };
        }
        self.length += 1;
        true
    }

    /// Posts the requests, in order and with one doorbell. The chain keeps them for [`ids`](Self::ids); the caller
    /// [clears](Self::clear) it next.
    ///
    /// # Errors
    /// The place of the first request that was not taken.
    ///
    /// # Safety
    /// As for [`QueuePair::post_send`]. The chain is not empty.
    #[inline]
    pub(crate) unsafe fn post(&mut self, queue_pair: &QueuePair) -> Result<(), RefusedFrom> {
        let queue_pair = queue_pair.raw.as_ptr();
        self.links.post(self.length, |first, bad| {
            // SAFETY: the queue pair is live, and so are the chain and its entries, until the call returns. The memory behind them is
            // the caller's.
            unsafe { ffi::ibv_post_send(queue_pair, first, bad) }
        })
    }

    /// Empties the chain.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.length = 0;
    }
}

impl ReceiveChain {
    /// Creates an empty chain, whose receives name memory of this key and length.
    pub(crate) fn new(key: u32, length: u32) -> Self {
        let nowhere = ptr::null_mut();
        let empty = || ffi::ibv_recv_wr { wr_id: 0, next: ptr::null_mut(), sg_list: nowhere, num_sge: 0 };
        let links = Linked::new(empty, ffi::ibv_sge { addr: 0, length, lkey: key });
        Self { links, length: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns the ids of the receives.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        self.links.requests(self.length).iter().map(|request| request.wr_id)
    }

    /// Adds a receive into the memory at this address. Returns whether there was room.
    #[inline]
    pub(crate) fn receive(&mut self, id: u64, address: u64) -> bool {
        let Some((request, entry)) = self.links.get_mut(self.length) else { return false };
        request.wr_id = id;
        entry.addr = address;
        self.length += 1;
        true
    }

    /// Posts the receives to a queue pair with a receive queue of its own, as [`SendChain::post`] does.
    ///
    /// # Errors
    /// The place of the first receive that was not taken.
    ///
    /// # Safety
    /// As for [`QueuePair::post_receive`]. The chain is not empty.
    #[inline]
    pub(crate) unsafe fn post(&mut self, queue_pair: &QueuePair) -> Result<(), RefusedFrom> {
        let queue_pair = queue_pair.raw.as_ptr();
        self.links.post(self.length, |first, bad| {
            // SAFETY: as for a send.
            unsafe { ffi::ibv_post_recv(queue_pair, first, bad) }
        })
    }

    /// Posts the receives to a shared receive queue.
    ///
    /// # Errors
    /// The place of the first receive that was not taken.
    ///
    /// # Safety
    /// As for [`SharedReceiveQueue::post`]. The chain is not empty.
    #[inline]
    pub(crate) unsafe fn post_shared(&mut self, queue: &SharedReceiveQueue) -> Result<(), RefusedFrom> {
        let queue = queue.raw.as_ptr();
        self.links.post(self.length, |first, bad| {
            // SAFETY: as for a send.
            unsafe { ffi::ibv_post_srq_recv(queue, first, bad) }
        })
    }

    /// Empties the chain.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.length = 0;
    }
}

/// A request of C, for a send queue or a receive queue.
trait Request: Sized {
    /// Sets the next request and the one entry of this one.
    fn link(&mut self, next: *mut Self, entry: *mut ffi::ibv_sge);

    /// Sets the next request. Returns the one before.
    fn cut(&mut self, next: *mut Self) -> *mut Self;
}

impl Request for ffi::ibv_send_wr {
    fn link(&mut self, next: *mut Self, entry: *mut ffi::ibv_sge) {
        (self.next, self.sg_list, self.num_sge) = (next, entry, 1);
    }

    #[inline]
    fn cut(&mut self, next: *mut Self) -> *mut Self {
        mem::replace(&mut self.next, next)
    }
}

impl Request for ffi::ibv_recv_wr {
    fn link(&mut self, next: *mut Self, entry: *mut ffi::ibv_sge) {
        (self.next, self.sg_list, self.num_sge) = (next, entry, 1);
    }

    #[inline]
    fn cut(&mut self, next: *mut Self) -> *mut Self {
        mem::replace(&mut self.next, next)
    }
}

/// Requests with an entry for each, each linked to the next. They point at each other, so they are only reached by pointers.
struct Linked<T>(NonNull<Links<T>>);

struct Links<T> {
    requests: [T; CHAIN],
    entries: [ffi::ibv_sge; CHAIN],
}

// SAFETY: this value owns the requests and entries, and the pointers in them lead nowhere else.
unsafe impl<T> Send for Linked<T> {}
// SAFETY: as above; by a shared reference they are only read.
unsafe impl<T> Sync for Linked<T> {}

impl<T: Request> Linked<T> {
    fn new(request: impl Fn() -> T, entry: ffi::ibv_sge) -> Self {
        let links = Links { requests: std::array::from_fn(|_| request()), entries: [entry; CHAIN] };
        let linked = Self(NonNull::from(Box::leak(Box::new(links))));
        for place in 0..CHAIN {
            let (next, entry) = (linked.request(place + 1), linked.entry(place));
            let next = if place + 1 < CHAIN { next } else { ptr::null_mut() };
            // SAFETY: the request is one of this value's, and no other reference to it exists.
            unsafe { (*linked.request(place)).link(next, entry) };
        }
        linked
    }

    #[inline]
    fn request(&self, place: usize) -> *mut T {
        // SAFETY: the field of a live allocation; no reference is made.
        unsafe { &raw mut (*self.0.as_ptr()).requests }.cast::<T>().wrapping_add(place)
    }

    #[inline]
    fn entry(&self, place: usize) -> *mut ffi::ibv_sge {
        // SAFETY: as above.
        unsafe { &raw mut (*self.0.as_ptr()).entries }.cast::<ffi::ibv_sge>().wrapping_add(place)
    }

    /// Returns the request at this place and its entry; `None` behind the last one.
    #[inline]
    fn get_mut(&mut self, place: usize) -> Option<(&mut T, &mut ffi::ibv_sge)> {
        if place >= CHAIN {
            return None;
        }
        // SAFETY: it is this value's, which is borrowed exclusively.
        let request = unsafe { &mut *self.request(place) };
        // SAFETY: as above; it lies in another array.
        let entry = unsafe { &mut *self.entry(place) };
        Some((request, entry))
    }

    /// Returns the first requests.
    fn requests(&self, length: usize) -> &[T] {
        // SAFETY: these are this value's, which is borrowed.
        unsafe { std::slice::from_raw_parts(self.request(0), length.min(CHAIN)) }
    }

    /// Has a call post the first requests, of which there is at least one.
    #[inline]
    fn post(
        &mut self,
        length: usize,
        call: impl FnOnce(*mut T, *mut *mut T) -> c_int,
    ) -> Result<(), RefusedFrom> {
        debug_assert!((1..=CHAIN).contains(&length));
        let (first, last, mut bad) = (self.request(0), self.request(length - 1), ptr::null_mut());
        // SAFETY: the request is this value's, which is borrowed exclusively.
        let next = unsafe { (*last).cut(ptr::null_mut()) };
        let returned = call(first, &mut bad);
        // SAFETY: as above; the call has returned.
        unsafe { (*last).cut(next) };
        // Both at once, which is what most often is.
        if returned as usize | bad.addr() == 0 { Ok(()) } else { refused(returned, first, bad, length) }
    }
}

impl<T> Drop for Linked<T> {
    fn drop(&mut self) {
        // SAFETY: the value was a box when it was made, and drop runs once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Returns the outcome of a call that has not simply succeeded. One that names no request has taken all of them, and failed to
/// notify the device, as it does when the connection is ending or the device is gone: they finish when the queue pair does.
#[cold]
fn refused<T>(returned: c_int, first: *mut T, bad: *mut T, length: usize) -> Result<(), RefusedFrom> {
    if bad.is_null() {
        tracing::debug!(error = ?call::result(returned), "requests queued, but the device was not notified");
        return Ok(());
    }
    let place = bad.addr().wrapping_sub(first.addr()) / size_of::<T>();
    // A place that is not in the chain is a fault of the driver: nothing is known to be taken back.
    if place < length { Err(RefusedFrom(place)) } else { Ok(()) }
}

const _: () = {
    assert!(size_of::<Done>() == size_of::<ffi::ibv_wc>());
    assert!(align_of::<Done>() == align_of::<ffi::ibv_wc>());
    assert!(offset_of!(Done, id) == offset_of!(ffi::ibv_wc, wr_id));
    assert!(offset_of!(Done, status) == offset_of!(ffi::ibv_wc, status));
    assert!(offset_of!(Done, opcode) == offset_of!(ffi::ibv_wc, opcode));
    assert!(offset_of!(Done, vendor_error) == offset_of!(ffi::ibv_wc, vendor_err));
    assert!(offset_of!(Done, length) == offset_of!(ffi::ibv_wc, byte_len));
    assert!(offset_of!(Done, told) == offset_of!(ffi::ibv_wc, imm_data_invalidated_rkey_union));
    assert!(offset_of!(Done, number) == offset_of!(ffi::ibv_wc, qp_num));
    assert!(offset_of!(Done, source) == offset_of!(ffi::ibv_wc, src_qp));
    assert!(offset_of!(Done, flags) == offset_of!(ffi::ibv_wc, wc_flags));
    assert!(offset_of!(Done, key_index) == offset_of!(ffi::ibv_wc, pkey_index));
    assert!(offset_of!(Done, source_lid) == offset_of!(ffi::ibv_wc, slid));
    assert!(offset_of!(Done, level) == offset_of!(ffi::ibv_wc, sl));
    assert!(offset_of!(Done, path_bits) == offset_of!(ffi::ibv_wc, dlid_path_bits));
    assert!(Done::IMMEDIATE == number::IBV_WC_WITH_IMM && Done::INVALIDATED == number::IBV_WC_WITH_INV);
};

impl CompletionQueue {
    /// Takes as many completions as there are and as fit, into memory of the program. Returns their number. The caller is the only
    /// one that polls the queue.
    ///
    /// # Errors
    /// [`Unreadable`] if a completion cannot be read: what is in the memory then says nothing.
    #[inline]
    pub(crate) fn poll_into(&self, into: &mut [Done]) -> Result<usize, Unreadable> {
        let room = into.len().min(c_int::MAX as usize) as c_int;
        // SAFETY: the queue is live, and there is room for that many entries: any bits are a `Done`, which has the layout of one.
        let count = unsafe { ffi::ibv_poll_cq(self.raw.as_ptr(), room, into.as_mut_ptr().cast()) };
        // A negative number is an error, and greater than any length as this.
        let count = count.cast_unsigned() as usize;
        if count <= into.len() { Ok(count) } else { Err(Unreadable) }
    }

    /// Returns the flag of completions that report an invalidated key.
    pub(crate) fn invalidated_flag(&self) -> u32 {
        self.invalidated
    }
}
