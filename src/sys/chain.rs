//! Chains of requests that are filled in place and posted with one call, and completions that are polled into the memory of the
//! program: for an owner that posts and polls alone, without an allocation or a copy for each request.
//!
//! A chain is linked once. Posting a part of it cuts the link behind the last request for the time of the call. What is the same in each
//! request stays, and what each posting or polling call would look up is kept: the object, and the function of its driver.

use std::ffi::{c_int, c_void};
use std::mem;
use std::mem::offset_of;
use std::ops::{Deref, Range};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::completion::CompletionQueue;
use super::ffi::number;
use super::post::RemoteMemory;
use super::queue_pair::{QueuePair, SharedReceiveQueue};
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
pub(crate) struct SendChain(Linked<ffi::ibv_send_wr>);

/// The requests for a receive queue that wait for the doorbell.
pub(crate) struct ReceiveChain(Linked<ffi::ibv_recv_wr>);

/// The call has left the requests in these places, the last ones of those that were in the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedPart(pub(crate) Range<usize>);

/// A function of a driver that posts requests to an object.
type Post<O, T> = unsafe extern "C" fn(*mut O, *mut T, *mut *mut T) -> c_int;

/// Takes no request: the function of a chain that is aimed nowhere, or of a driver that has none.
unsafe extern "C" fn refuse<T>(_: *mut c_void, first: *mut T, bad: *mut *mut T) -> c_int {
    // SAFETY: the caller's, as with any such function.
    unsafe { *bad = first };
    libc::EINVAL
}

impl SendChain {
    /// Creates an empty chain, whose requests name memory of this key. It is aimed nowhere.
    pub(crate) fn new(key: u32) -> Self {
        // SAFETY: all members are integers or pointers, for which zero is a value.
        let empty = || unsafe { mem::zeroed::<ffi::ibv_send_wr>() };
        Self(Linked::new(empty, ffi::ibv_sge { addr: 0, length: 0, lkey: key }))
    }

    /// Has the requests posted to this queue pair, also those that wait.
    ///
    /// # Safety
    /// The queue pair is live until the chain is aimed elsewhere, or until its last post has returned.
    pub(crate) unsafe fn aim(&mut self, queue_pair: &QueuePair) {
        let target = queue_pair.raw.as_ptr();
        // SAFETY: the queue pair is live.
        let context = unsafe { (*target).context };
        // SAFETY: its device is open. The table does not change.
        let post = unsafe { (*context).ops.post_send };
        // SAFETY: it is a function for this object.
        unsafe { self.0.aim(target, post) };
    }

    /// Has the requests refused.
    pub(crate) fn aim_nowhere(&mut self) {
        self.0.aim_nowhere();
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.0.is_full()
    }

    /// Returns the ids of requests that were not taken, before others are added.
    pub(crate) fn ids(&self, refused: RefusedPart) -> impl Iterator<Item = u64> {
        self.0.requests(refused).map(|request| request.wr_id)
    }

    /// Adds requests, as many as there is room for in the queue and in the chain. When they are added, it takes them from the room, and adds
    /// them to the number of those that are outstanding.
    #[inline(always)]
    pub(crate) fn run<'a>(&'a mut self, room: &'a mut u32, outstanding: &'a mut u32) -> SendRun<'a> {
        SendRun(self.0.run(room, outstanding))
    }

    /// Posts the requests, in order and with one doorbell. The chain is empty then.
    ///
    /// # Errors
    /// The places of the requests that were not taken, for [`ids`](Self::ids).
    ///
    /// # Safety
    /// As for [`QueuePair::post_send`]. The chain is not empty.
    #[inline(always)]
    pub(crate) unsafe fn post(&mut self) -> Result<(), RefusedPart> {
        // SAFETY: the caller's.
        unsafe { self.0.post() }
    }
}

impl ReceiveChain {
    /// Creates an empty chain, whose receives name memory of this key and length. It is aimed nowhere.
    pub(crate) fn new(key: u32, length: u32) -> Self {
        let nowhere = ptr::null_mut();
        let empty = || ffi::ibv_recv_wr { wr_id: 0, next: ptr::null_mut(), sg_list: nowhere, num_sge: 0 };
        Self(Linked::new(empty, ffi::ibv_sge { addr: 0, length, lkey: key }))
    }

    /// Has the receives posted to this queue pair, which has a receive queue of its own, also those that wait.
    ///
    /// # Safety
    /// As for [`SendChain::aim`].
    pub(crate) unsafe fn aim(&mut self, queue_pair: &QueuePair) {
        let target = queue_pair.raw.as_ptr();
        // SAFETY: the queue pair is live.
        let context = unsafe { (*target).context };
        // SAFETY: its device is open. The table does not change.
        let post = unsafe { (*context).ops.post_recv };
        // SAFETY: as for sends.
        unsafe { self.0.aim(target, post) };
    }

    /// Has the receives posted to this shared queue.
    ///
    /// # Safety
    /// As for [`SendChain::aim`].
    pub(crate) unsafe fn aim_shared(&mut self, queue: &SharedReceiveQueue) {
        let target = queue.raw.as_ptr();
        // SAFETY: the queue is live.
        let context = unsafe { (*target).context };
        // SAFETY: its device is open. The table does not change.
        let post = unsafe { (*context).ops.post_srq_recv };
        // SAFETY: as for sends.
        unsafe { self.0.aim(target, post) };
    }

    /// Has the receives refused.
    pub(crate) fn aim_nowhere(&mut self) {
        self.0.aim_nowhere();
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.0.is_full()
    }

    /// Returns the ids of receives that were not taken, before others are added.
    pub(crate) fn ids(&self, refused: RefusedPart) -> impl Iterator<Item = u64> {
        self.0.requests(refused).map(|request| request.wr_id)
    }

    /// Adds receives, as [`SendChain::run`] does.
    #[inline(always)]
    pub(crate) fn run<'a>(&'a mut self, room: &'a mut u32, outstanding: &'a mut u32) -> ReceiveRun<'a> {
        ReceiveRun(self.0.run(room, outstanding))
    }

    /// Posts the receives, as [`SendChain::post`] does.
    ///
    /// # Errors
    /// The places of the receives that were not taken, for [`ids`](Self::ids).
    ///
    /// # Safety
    /// As for [`QueuePair::post_receive`] or [`SharedReceiveQueue::post`]. The chain is not empty.
    #[inline(always)]
    pub(crate) unsafe fn post(&mut self) -> Result<(), RefusedPart> {
        // SAFETY: the caller's.
        unsafe { self.0.post() }
    }
}

/// Requests that are added to a chain one after the other. The chain has them once this is dropped.
pub(crate) struct SendRun<'a>(Run<'a, ffi::ibv_send_wr>);

impl SendRun<'_> {
    /// Returns the place of the next request; `None` if the queue or the chain is full.
    #[inline(always)]
    pub(crate) fn vacant(&mut self) -> Option<SendPlace<'_>> {
        self.0.vacant().map(SendPlace)
    }
}

/// Receives that are added to a chain one after the other, like [`SendRun`].
pub(crate) struct ReceiveRun<'a>(Run<'a, ffi::ibv_recv_wr>);

impl ReceiveRun<'_> {
    /// Returns the place of the next receive; `None` if the queue or the chain is full.
    #[inline(always)]
    pub(crate) fn vacant(&mut self) -> Option<ReceivePlace<'_>> {
        self.0.vacant().map(ReceivePlace)
    }
}

/// The place of the next request in a chain.
pub(crate) struct SendPlace<'a>(Vacant<'a, ffi::ibv_send_wr>);

impl SendPlace<'_> {
    /// Adds a Send of this memory.
    #[inline(always)]
    pub(crate) fn send(self, piece: Piece, inline: bool) {
        self.fill(piece, None, number::IBV_WR_SEND, inline);
    }

    /// Adds an RDMA Write of this memory to memory of the peer.
    #[inline(always)]
    pub(crate) fn write(self, piece: Piece, remote: RemoteMemory, inline: bool) {
        self.fill(piece, Some(remote), number::IBV_WR_RDMA_WRITE, inline);
    }

    /// Adds an RDMA Read of memory of the peer into this memory.
    #[inline(always)]
    pub(crate) fn read(self, piece: Piece, remote: RemoteMemory) {
        self.fill(piece, Some(remote), number::IBV_WR_RDMA_READ, false);
    }

    #[inline(always)]
    fn fill(self, piece: Piece, remote: Option<RemoteMemory>, opcode: u32, inline: bool) {
        let copied = if inline { number::IBV_SEND_INLINE } else { 0 };
        let flags = number::IBV_SEND_SIGNALED | copied;
        let Link { request, entry } = self.0.fill();
        (entry.addr, entry.length) = (piece.address, piece.length);
        (request.wr_id, request.opcode, request.send_flags) = (piece.id, opcode, flags);
        if let Some(remote) = remote {
            request.wr.rdma = ffi::rdma_t { remote_addr: remote.address, rkey: remote.key };
        }
    }
}

/// The place of the next receive in a chain.
pub(crate) struct ReceivePlace<'a>(Vacant<'a, ffi::ibv_recv_wr>);

impl ReceivePlace<'_> {
    /// Adds a receive into the memory at this address.
    #[inline(always)]
    pub(crate) fn receive(self, id: u64, address: u64) {
        let Link { request, entry } = self.0.fill();
        (request.wr_id, entry.addr) = (id, address);
    }
}

/// A request of C, for a send queue or a receive queue.
trait Request: Sized {
    /// Sets the one entry.
    fn set_entry(&mut self, entry: *mut ffi::ibv_sge);

    /// Sets the next request.
    fn set_next(&mut self, next: *mut Self);
}

impl Request for ffi::ibv_send_wr {
    fn set_entry(&mut self, entry: *mut ffi::ibv_sge) {
        (self.sg_list, self.num_sge) = (entry, 1);
    }

    #[inline]
    fn set_next(&mut self, next: *mut Self) {
        self.next = next;
    }
}

impl Request for ffi::ibv_recv_wr {
    fn set_entry(&mut self, entry: *mut ffi::ibv_sge) {
        (self.sg_list, self.num_sge) = (entry, 1);
    }

    #[inline]
    fn set_next(&mut self, next: *mut Self) {
        self.next = next;
    }
}

/// Requests with an entry for each, each linked to the next; the link of the last one leads to the end. They point at each other, so they
/// are only reached by pointers.
struct Linked<T> {
    first: NonNull<Link<T>>,
    /// The one that is used next, or the end.
    next: NonNull<Link<T>>,
    end: NonNull<Link<T>>,
    /// Where they are posted: an object, and the function of its driver; or [`refuse`].
    target: *mut c_void,
    post: Post<c_void, T>,
}

/// A request, and its entry. The request comes first: a pointer to one is a pointer to the other.
#[repr(C)]
struct Link<T> {
    request: T,
    entry: ffi::ibv_sge,
}

/// Links that are used one after the other. Those count as used once this is dropped.
struct Run<'a, T> {
    next: NonNull<Link<T>>,
    left: u32,
    links: &'a mut Linked<T>,
    room: &'a mut u32,
    outstanding: &'a mut u32,
}

impl<T> Run<'_, T> {
    #[inline(always)]
    fn vacant(&mut self) -> Option<Vacant<'_, T>> {
        let link = self.next;
        let left = self.left.checked_sub(1)?;
        if link == self.links.end {
            return None;
        }
        Some(Vacant { link, next: &mut self.next, fewer: left, left: &mut self.left })
    }
}

impl<T> Drop for Run<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.links.next = self.next;
        *self.outstanding += *self.room - self.left;
        *self.room = self.left;
    }
}

/// A link that is not used yet.
struct Vacant<'a, T> {
    link: NonNull<Link<T>>,
    next: &'a mut NonNull<Link<T>>,
    fewer: u32,
    left: &'a mut u32,
}

impl<'a, T> Vacant<'a, T> {
    /// Uses the link.
    #[inline(always)]
    fn fill(self) -> &'a mut Link<T> {
        let mut link = self.link;
        // SAFETY: the link is before the end.
        *self.next = unsafe { link.add(1) };
        *self.left = self.fewer;
        // SAFETY: it is one of those of a value that is borrowed exclusively, and used once.
        unsafe { link.as_mut() }
    }
}

// SAFETY: this value owns the requests and entries, and the pointers in them lead nowhere else. The target is live by `aim`, on
// whatever thread; such objects can be used from any.
unsafe impl<T> Send for Linked<T> {}
// SAFETY: as above; by a shared reference they are only read.
unsafe impl<T> Sync for Linked<T> {}

impl<T: Request> Linked<T> {
    fn new(request: impl Fn() -> T, entry: ffi::ibv_sge) -> Self {
        let links: Box<[Link<T>; CHAIN]> =
            Box::new(std::array::from_fn(|_| Link { request: request(), entry }));
        let first = NonNull::from(Box::leak(links)).cast::<Link<T>>();
        let at = |place| first.as_ptr().wrapping_add(place);
        for place in 0..CHAIN {
            // SAFETY: the link is one of this value's, and no reference to it exists.
            let entry = unsafe { &raw mut (*at(place)).entry };
            // SAFETY: as above.
            let request = unsafe { &mut (*at(place)).request };
            request.set_entry(entry);
            request.set_next(at(place + 1).cast());
        }
        // SAFETY: the end of the allocation.
        let end = unsafe { first.add(CHAIN) };
        Self { first, next: first, end, target: ptr::null_mut(), post: refuse }
    }

    /// Has the requests posted to this object with this function, or refused if there is none.
    ///
    /// # Safety
    /// The object is live until another one takes its place, or until the last post has returned. The function is one for it.
    unsafe fn aim<O>(&mut self, object: *mut O, post: Option<Post<O, T>>) {
        self.target = object.cast();
        // SAFETY: the two types differ in what a pointer leads to, which does not matter for a call: it is that of an object again.
        self.post =
            post.map_or(refuse, |post| unsafe { mem::transmute::<Post<O, T>, Post<c_void, T>>(post) });
    }

    fn aim_nowhere(&mut self) {
        (self.target, self.post) = (ptr::null_mut(), refuse);
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.next == self.first
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.next == self.end
    }

    #[inline(always)]
    fn run<'a>(&'a mut self, room: &'a mut u32, outstanding: &'a mut u32) -> Run<'a, T> {
        Run { next: self.next, left: *room, links: self, room, outstanding }
    }

    /// Returns the requests in these places.
    fn requests(&self, RefusedPart(places): RefusedPart) -> impl Iterator<Item = &T> {
        // SAFETY: these are this value's, which is borrowed.
        let links = unsafe { std::slice::from_raw_parts(self.first.as_ptr(), CHAIN) };
        links.get(places).into_iter().flatten().map(|link| &link.request)
    }

    /// Returns the number of the requests before this place or the end.
    fn before(&self, place: usize) -> usize {
        place.wrapping_sub(self.first.addr().get()) / size_of::<Link<T>>()
    }

    /// Posts the requests that are used. None is used when the outcome is looked at, so that a panic in that has none posted twice.
    ///
    /// # Errors
    /// The places of those that were not taken.
    ///
    /// # Safety
    /// There is at least one. The memory of their entries is the caller's.
    #[inline(always)]
    unsafe fn post(&mut self) -> Result<(), RefusedPart> {
        debug_assert!(!self.is_empty());
        let (first, mut bad) = (self.first.as_ptr().cast::<T>(), ptr::null_mut());
        self.set_last(ptr::null_mut());
        // SAFETY: the object is live by `aim`, and so are the requests and their entries until the call returns.
        let returned = unsafe { (self.post)(self.target, first, &mut bad) };
        let end = self.next;
        self.set_last(end.as_ptr().cast());
        self.next = self.first;
        // Both at once, which is what most often is.
        if returned as usize | bad.addr() == 0 { Ok(()) } else { self.refused(end, returned, bad) }
    }

    /// Sets the link behind the last request that is used, of which there is at least one.
    #[inline(always)]
    fn set_last(&mut self, next: *mut T) {
        // SAFETY: the request is this value's, which is borrowed exclusively, and no call is under way.
        unsafe { (*self.next.as_ptr().wrapping_sub(1)).request.set_next(next) };
    }

    /// Returns the outcome of a call, with the requests before `end`, that has not simply succeeded. One that names no request has taken
    /// all of them, and failed to notify the device, as it does when the connection is ending or the device is gone: they finish when the
    /// queue pair does.
    #[cold]
    #[inline(never)]
    fn refused(&self, end: NonNull<Link<T>>, returned: c_int, bad: *mut T) -> Result<(), RefusedPart> {
        if bad.is_null() {
            tracing::debug!(error = ?call::result(returned), "requests queued, but the device was not notified");
            return Ok(());
        }
        let (place, end) = (self.before(bad.addr()), self.before(end.addr().get()));
        // A place that is not in the chain is a fault of the driver: nothing is known to be taken back.
        if place < end { Err(RefusedPart(place..end)) } else { Ok(()) }
    }
}

impl<T> Drop for Linked<T> {
    fn drop(&mut self) {
        // SAFETY: the value was a box of that many when it was made, and drop runs once.
        drop(unsafe { Box::from_raw(self.first.as_ptr().cast::<[Link<T>; CHAIN]>()) });
    }
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

/// A completion queue that its owner alone polls, into memory of the program.
pub(crate) struct Polled {
    queue: Arc<CompletionQueue>,
    raw: *mut ffi::ibv_cq,
    /// The function of its driver.
    poll: unsafe extern "C" fn(*mut ffi::ibv_cq, c_int, *mut ffi::ibv_wc) -> c_int,
}

// SAFETY: the queue is kept, and can be used from any thread.
unsafe impl Send for Polled {}
// SAFETY: as above; the driver has a lock.
unsafe impl Sync for Polled {}

/// Fails, for a driver without a function.
unsafe extern "C" fn poll_nothing(_: *mut ffi::ibv_cq, _: c_int, _: *mut ffi::ibv_wc) -> c_int {
    -1
}

impl Polled {
    pub(crate) fn new(queue: Arc<CompletionQueue>) -> Self {
        let raw = queue.raw.as_ptr();
        // SAFETY: the queue is live.
        let context = unsafe { (*raw).context };
        // SAFETY: its device is open. The table does not change.
        let poll = unsafe { (*context).ops.poll_cq };
        Self { queue, raw, poll: poll.unwrap_or(poll_nothing) }
    }

    /// Takes as many completions as there are and as fit, into memory of the program. Returns their number; more than fit if a
    /// completion cannot be read: what is in the memory then says nothing.
    #[inline(always)]
    pub(crate) fn poll_into(&self, into: &mut [Done]) -> usize {
        let Ok(room) = c_int::try_from(into.len()) else { return self.poll_part(into) };
        // SAFETY: the queue is live, and there is room for that many entries: any bits are a `Done`, which has the layout of one.
        let count = unsafe { (self.poll)(self.raw, room, into.as_mut_ptr().cast()) };
        // A negative number is an error, and as this greater than the length, which a number of C holds.
        count.cast_unsigned() as usize
    }

    /// Polls into a part of memory that has room for more completions than a call can return.
    #[cold]
    #[inline(never)]
    fn poll_part(&self, into: &mut [Done]) -> usize {
        let part = into.get_mut(..c_int::MAX as usize).unwrap_or_default();
        let (room, count) = (part.len(), self.poll_into(part));
        if count > room { usize::MAX } else { count }
    }
}

impl Deref for Polled {
    type Target = CompletionQueue;

    fn deref(&self) -> &CompletionQueue {
        &self.queue
    }
}

impl CompletionQueue {
    /// Returns the flag of completions that report an invalidated key.
    pub(crate) fn invalidated_flag(&self) -> u32 {
        self.invalidated
    }
}
