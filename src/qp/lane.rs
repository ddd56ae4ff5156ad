//! Lanes: one owner that posts and polls at the cost of the calls of the device.

mod config;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
#[cfg(feature = "inspect")]
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
#[cfg(feature = "inspect")]
use std::sync::{OnceLock, Weak};
use std::task::Context;

use super::queue_pair::LaneQueuePair;
use super::requests::WorkOptions;
use crate::backend;
use crate::error::{NotifyError, OpenError, PostErrorKind};
use crate::inflight::sealed::WorkBuffer as _;
use crate::inflight::{Done, LaneState, LentList, not_allowed};
#[cfg(feature = "inspect")]
use crate::inspect::{self, Inspect, LaneReport, Mark, Place, Snapshot};
use crate::mr::{RegionSlice, RemoteRegion};
use crate::provider::info::AdapterInfo;
use crate::provider::work::{LaneParts, LaneRequest, LaneSource, Operation, RemoteAddress};
#[cfg(feature = "inspect")]
use crate::sync::Mutex;
use crate::sync::poll_budgeted;
use crate::types::{Access, OpKind, QueuePairId, Slot};

pub use config::LaneConfig;

/// The length of the operand of an atomic.
const ATOMIC: usize = 8;

/// Memory slots, queue pairs, and one completion queue, with one owner, who posts and polls at the cost of the calls of the device: no
/// lock, allocation, reference count or future for each request. Created by [`Adapter::lane`](crate::cm::Adapter::lane). UCX calls
/// such an object a *worker*.
///
/// Use a lane where the rate of small messages matters, and one thread or task can own both ends of the work: it posts, polls, and
/// decides. A [`QueuePair`](crate::QueuePair) is for tasks that each await their own requests.
///
/// # Slots
/// The lane has registered memory, cut into slots of one length. The program [takes](Self::take) a free slot, reads and writes its
/// [bytes](Self::bytes_mut), and posts it. From then on the request has the slot, and the bytes cannot be reached. The
/// [`Done`] of the request gives the slot back to the program, which posts it again or [gives](Self::give) it back. A [`Slot`] is
/// only a number; the lane knows who has the slot, so a stale one is an error and never a race.
///
/// # Posting
/// The plain calls ([`send`](Self::send), [`write`](Self::write), [`read`](Self::read), [`receive`](Self::receive)) check a request
/// and put it in a chain. The chain is handed to the device, with one doorbell, by [`ring`](Self::ring), by the next
/// [`poll`](Self::poll), by a request for another queue pair, and by the next request when it has 64. Receives are handed over before
/// the other requests, so that an answer finds the receive that was posted for it. What a device refuses then comes out of a poll, like
/// any other failure.
///
/// # Polling
/// [`poll`](Self::poll) stores completions in an array of the program, which does not stay borrowed together with the lane, so that
/// the program can post while it walks over them. [`ready`](Self::ready) waits for completions without using the processor.
///
/// # Connections
/// [`queue_pair`](Self::queue_pair) makes a queue pair: an id, by which the lane names it, and a [`LaneQueuePair`], which
/// [`Connector::connect`](crate::Connector::connect), [`Request::accept`](crate::Request::accept) and
/// [`Listener::accept_next`](crate::Listener::accept_next) take like a `QueuePair`, in any task. When the connection ends, what is
/// outstanding completes with [`Status::CANCELED`](crate::Status::CANCELED). Those completions and
/// [`Connection::disconnected`](crate::Connection::disconnected) come in either order.
///
/// # Dropping
/// Dropping the lane ends its connections. Its memory is freed once no device can reach it. With a device, the removal of an
/// adapter may wait until its lanes are dropped.
///
/// # Examples
/// A server that answers each message in the slot that it came in:
/// ```
/// # use tokio_rdma::qp::{Done, Lane, QueuePairId};
/// # use tokio_rdma::types::OpKind;
/// # fn answer(message: &mut [u8], length: usize) -> usize { length }
/// async fn serve(mut lane: Lane) -> std::io::Result<()> {
///     let mut room = [Done::EMPTY; 32];
///     loop {
///         for done in lane.ready(&mut room).await? {
///             let (client, slot) = (done.queue_pair(), done.slot());
///             match done.kind() {
///                 _ if !done.is_success() => lane.give(slot),
///                 OpKind::Receive => {
///                     let length = answer(lane.bytes_mut(slot), done.bytes());
///                     lane.send(client, slot, length)?;
///                 }
///                 _ => lane.receive(client, slot)?,
///             }
///         }
///     }
/// }
/// ```
#[doc(alias = "worker")]
pub struct Lane {
    provider: backend::Lane,
    domain: u64,
    info: Arc<AdapterInfo>,
    parts: LaneParts,
    /// What it leaves behind for snapshots.
    #[cfg(feature = "inspect")]
    gauge: Arc<Gauge>,
}

/// The local memory of a request of a [`Lane`] with options.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Local<'a> {
    /// Parts of slots that the program holds, each given as a range of bytes. The completion names the first slot, and gives all back.
    Slots(&'a [(Slot, Range<usize>)]),
    /// Bytes that the call copies, at most [`LaneConfig::inline`] of them.
    Bytes(&'a [u8]),
    /// A part of a region. The lane keeps the region until the request has completed.
    Region(&'a RegionSlice),
}

impl Lane {
    /// Creates a lane.
    pub(crate) fn new(adapter: &backend::Adapter, config: &LaneConfig) -> Result<Self, OpenError> {
        let info = adapter.info().clone();
        let parts = config.check(&info)?;
        let provider = backend::Lane::new(adapter, parts.clone())?;
        #[cfg(feature = "inspect")]
        let gauge = Gauge::new(adapter.domain(), &parts);
        Ok(Self {
            provider,
            domain: adapter.domain(),
            info,
            parts,
            #[cfg(feature = "inspect")]
            gauge,
        })
    }

    /// Makes a queue pair: its id in the calls of the lane, and the handle that connects it.
    ///
    /// # Errors
    /// `Os` if the lane has as many as [`LaneConfig::queue_pairs`], or the device has no more; `DeviceRemoved` if the adapter has been
    /// removed, or the lane has [ended](Self::poll) for another reason.
    pub fn queue_pair(&mut self) -> Result<(QueuePairId, LaneQueuePair), OpenError> {
        let (id, provider) = self.provider.queue_pair()?;
        Ok((id, LaneQueuePair::new(provider)))
    }

    /// Ends a queue pair: its connection, or the attempt to connect it. What is outstanding comes out of the next polls with
    /// [`Status::CANCELED`](crate::Status::CANCELED). Has no effect on one that is gone.
    pub fn close(&mut self, queue_pair: QueuePairId) {
        self.provider.close(queue_pair);
    }

    /// Returns the progress of a queue pair.
    pub fn state(&mut self, queue_pair: QueuePairId) -> LaneState {
        self.provider.state(queue_pair)
    }

    /// Takes a free slot. `None` if there is none.
    #[inline]
    pub fn take(&mut self) -> Option<Slot> {
        self.provider.take().map(Slot)
    }

    /// Gives a slot back, so that it is free.
    ///
    /// # Panics
    /// If the program does not hold the slot.
    #[inline]
    #[track_caller]
    pub fn give(&mut self, slot: Slot) {
        if !self.provider.give(slot) {
            not_held(slot);
        }
    }

    /// Returns the bytes of a slot.
    ///
    /// # Panics
    /// If the program does not hold the slot: it is free, or a request has it.
    #[inline]
    #[track_caller]
    pub fn bytes(&self, slot: Slot) -> &[u8] {
        match self.provider.bytes(slot) {
            Some(bytes) => bytes,
            None => not_held(slot),
        }
    }

    /// Returns the bytes of a slot for writing.
    ///
    /// # Panics
    /// If the program does not hold the slot: it is free, or a request has it.
    #[inline]
    #[track_caller]
    pub fn bytes_mut(&mut self, slot: Slot) -> &mut [u8] {
        match self.provider.bytes_mut(slot) {
            Some(bytes) => bytes,
            None => not_held(slot),
        }
    }

    /// Returns the bytes of two slots, the second for writing, to make a message of another one.
    ///
    /// # Panics
    /// If the program does not hold both, or they are the same.
    #[track_caller]
    pub fn pair(&mut self, read: Slot, write: Slot) -> (&[u8], &mut [u8]) {
        match self.provider.pair(read, write) {
            Some(pair) => pair,
            None => not_held(read),
        }
    }

    /// Returns the length of each slot in bytes.
    pub fn slot_length(&self) -> usize {
        self.parts.slot_length as usize
    }

    /// Posts a Send of the first bytes of a slot (`IND2QueuePair::Send`, `IBV_WR_SEND`).
    ///
    /// # Errors
    /// Nothing is posted, and the program still holds the slot:
    /// * [`ConnectionInvalid`](PostErrorKind::ConnectionInvalid) if the queue pair is not connected;
    /// * [`QueueFull`](PostErrorKind::QueueFull) if [`LaneConfig::send_depth`] requests are outstanding;
    /// * [`NotHeld`](PostErrorKind::NotHeld) if the program does not hold the slot;
    /// * [`TooLong`](PostErrorKind::TooLong) if a slot has fewer bytes;
    /// * [`DeviceRemoved`](PostErrorKind::DeviceRemoved) if the adapter has been removed.
    #[inline]
    pub fn send(&mut self, queue_pair: QueuePairId, slot: Slot, length: usize) -> Result<(), PostErrorKind> {
        self.provider.send(queue_pair, slot, length)
    }

    /// Posts a Send like [`send`](Self::send), and hands it to the device at once.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    #[inline]
    pub fn send_now(
        &mut self,
        queue_pair: QueuePairId,
        slot: Slot,
        length: usize,
    ) -> Result<(), PostErrorKind> {
        self.provider.send(queue_pair, slot, length)?;
        self.ring();
        Ok(())
    }

    /// Posts Sends of several slots, each with its length, with one doorbell. Returns how many were posted: fewer than there are if the
    /// queue is full. Those that were not posted are still held by the program.
    ///
    /// # Errors
    /// Those of [`send`](Self::send) for the first one that fails, except a full queue. The ones before it are posted and handed over.
    #[inline]
    pub fn send_all(
        &mut self,
        queue_pair: QueuePairId,
        of: impl IntoIterator<Item = (Slot, usize)>,
    ) -> Result<usize, PostErrorKind> {
        let posted = self.provider.send_all(queue_pair, of);
        self.note_doorbell();
        posted
    }

    /// Posts an RDMA Write of a part of a slot to the start of `remote` (`IND2QueuePair::Write`, `IBV_WR_RDMA_WRITE`).
    ///
    /// # Errors
    /// Those of [`send`](Self::send), and `BeyondRemote` if the part is longer than `remote`.
    #[inline]
    pub fn write(
        &mut self,
        queue_pair: QueuePairId,
        slot: Slot,
        part: Range<usize>,
        remote: &RemoteRegion,
    ) -> Result<(), PostErrorKind> {
        check_remote(part.len(), remote)?;
        self.provider.write(queue_pair, (slot, part), remote_address(remote))
    }

    /// Posts an RDMA Read that fills a part of a slot from the start of `remote` (`IND2QueuePair::Read`, `IBV_WR_RDMA_READ`).
    ///
    /// # Errors
    /// Those of [`write`](Self::write); `NoReads` if the outbound read limit is 0; `ReadsFull` if the adapter has as many reads in
    /// flight as its settings permit, where the call is repeated later: nothing wakes the lane when others have fewer; `NotSupported` if the adapter needs a
    /// [sink](crate::cm::AdapterInfo::read_sink_required) that the peer may write to: there use [`read_with`](Self::read_with) and a
    /// [region](Local::Region).
    #[inline]
    pub fn read(
        &mut self,
        queue_pair: QueuePairId,
        slot: Slot,
        part: Range<usize>,
        remote: &RemoteRegion,
    ) -> Result<(), PostErrorKind> {
        if self.info.read_sink_required {
            return Err(NO_SINK);
        }
        check_remote(part.len(), remote)?;
        self.provider.read(queue_pair, (slot, part), remote_address(remote))
    }

    /// Posts a receive for one message (`IND2QueuePair::Receive`, `ibv_post_recv`), with [`LaneConfig::shared_receives`] to the queue
    /// that all queue pairs share.
    ///
    /// Post at least one before connecting: without shared receives, the connection breaks if a message arrives and no receive is posted.
    ///
    /// # Errors
    /// Those of [`send`](Self::send), except that the queue pair need not be connected yet.
    #[inline]
    pub fn receive(&mut self, queue_pair: QueuePairId, slot: Slot) -> Result<(), PostErrorKind> {
        self.provider.receive(queue_pair, slot)
    }

    /// Posts several receives with one doorbell. Returns how many were posted: fewer than there are if the queue is full. Those that
    /// were not posted are still held by the program.
    ///
    /// # Errors
    /// Those of [`receive`](Self::receive) for the first one that fails, except a full queue. The ones before it are posted and handed over.
    #[inline]
    pub fn receive_all(
        &mut self,
        queue_pair: QueuePairId,
        of: impl IntoIterator<Item = Slot>,
    ) -> Result<usize, PostErrorKind> {
        let posted = self.provider.receive_all(queue_pair, of);
        self.note_doorbell();
        posted
    }

    /// Posts a Send with options, at once. Accepts all options of [`QueuePair::send_with`](crate::QueuePair::send_with); a context has no
    /// meaning. A [silent](WorkOptions::silent) request that succeeds has no completion: its slots are free, for
    /// [`take`](Self::take), when a later request of the queue without that option has completed.
    ///
    /// # Errors
    /// Those of [`send`](Self::send); `TooManyEntries` for more parts than [`LaneConfig::send_entries`]; `InlineTooLong`; `InvalidOptions`;
    /// `NotSupported`; `ForeignMemory` and `AccessViolation` for a region; `Device` if the device refuses it.
    pub fn send_with(
        &mut self,
        queue_pair: QueuePairId,
        from: Local<'_>,
        options: WorkOptions,
    ) -> Result<(), PostErrorKind> {
        let (invalidate, immediate) = (options.invalidated_key(), options.immediate_data());
        self.request(queue_pair, Operation::Send { invalidate, immediate }, from, options)
    }

    /// Posts an RDMA Write with options, as [`send_with`](Self::send_with) does. Accepts the options of
    /// [`QueuePair::write_with`](crate::QueuePair::write_with).
    ///
    /// # Errors
    /// Those of [`send_with`](Self::send_with), and `BeyondRemote`.
    pub fn write_with(
        &mut self,
        queue_pair: QueuePairId,
        from: Local<'_>,
        remote: &RemoteRegion,
        options: WorkOptions,
    ) -> Result<(), PostErrorKind> {
        check_remote(length_of(&from), remote)?;
        let operation = Operation::Write { to: remote_address(remote), immediate: options.immediate_data() };
        self.request(queue_pair, operation, from, options)
    }

    /// Posts an RDMA Read with options, as [`send_with`](Self::send_with) does. Accepts the options of
    /// [`QueuePair::read_with`](crate::QueuePair::read_with).
    ///
    /// # Errors
    /// Those of [`send_with`](Self::send_with), `BeyondRemote`, and those of [`read`](Self::read); `NotSupported` for
    /// [bytes](Local::Bytes).
    pub fn read_with(
        &mut self,
        queue_pair: QueuePairId,
        into: Local<'_>,
        remote: &RemoteRegion,
        options: WorkOptions,
    ) -> Result<(), PostErrorKind> {
        check_remote(length_of(&into), remote)?;
        self.request(queue_pair, Operation::Read { from: remote_address(remote) }, into, options)
    }

    /// Posts an atomic compare-and-swap, as [`QueuePair::compare_swap`](crate::QueuePair::compare_swap) does. The first eight bytes of the slot
    /// receive the value that was there.
    ///
    /// # Errors
    /// Those of [`read_with`](Self::read_with), and `NotAtomic`.
    pub fn compare_swap(
        &mut self,
        queue_pair: QueuePairId,
        slot: Slot,
        remote: &RemoteRegion,
        (compare, swap): (u64, u64),
        options: WorkOptions,
    ) -> Result<(), PostErrorKind> {
        let operation = Operation::CompareSwap { at: remote_address(remote), compare, swap };
        self.atomic(queue_pair, (operation, slot), remote, options)
    }

    /// Posts an atomic fetch-and-add, as [`QueuePair::fetch_add`](crate::QueuePair::fetch_add) does. The first eight bytes of the slot receive the
    /// value that was there.
    ///
    /// # Errors
    /// Those of [`compare_swap`](Self::compare_swap).
    pub fn fetch_add(
        &mut self,
        queue_pair: QueuePairId,
        slot: Slot,
        remote: &RemoteRegion,
        add: u64,
        options: WorkOptions,
    ) -> Result<(), PostErrorKind> {
        let operation = Operation::FetchAdd { at: remote_address(remote), add };
        self.atomic(queue_pair, (operation, slot), remote, options)
    }

    fn atomic(
        &mut self,
        queue_pair: QueuePairId,
        (operation, slot): (Operation, Slot),
        remote: &RemoteRegion,
        options: WorkOptions,
    ) -> Result<(), PostErrorKind> {
        let (address, length) = (remote.address(), remote.len() as usize);
        if !address.is_multiple_of(ATOMIC as u64) || length < ATOMIC {
            return Err(PostErrorKind::NotAtomic { length: length.min(ATOMIC), address });
        }
        self.request(queue_pair, operation, Local::Slots(&[(slot, 0..ATOMIC)]), options)
    }

    /// Checks what does not depend on the moment, and posts.
    fn request(
        &mut self,
        queue_pair: QueuePairId,
        operation: Operation,
        local: Local<'_>,
        options: WorkOptions,
    ) -> Result<(), PostErrorKind> {
        let kind = operation.kind();
        options.check(&operation, &self.info)?;
        let reads = matches!(kind, OpKind::Read | OpKind::CompareSwap | OpKind::FetchAdd);
        let mut maximum = self.parts.send_entries as usize;
        if reads {
            maximum = maximum.min(self.info.max_read_entries);
        }
        let payload;
        let source = match local {
            Local::Slots(parts) if parts.len() > maximum => {
                return Err(PostErrorKind::TooManyEntries { kind, entries: parts.len(), maximum });
            }
            Local::Slots(_) if reads && self.info.read_sink_required => return Err(NO_SINK),
            Local::Slots(parts) => LaneSource::Slots(parts),
            Local::Bytes(_) if reads => {
                return Err(PostErrorKind::NotSupported("a read into bytes that the call copies"));
            }
            Local::Bytes(bytes) if bytes.len() > self.parts.inline as usize => {
                let maximum = self.parts.inline as usize;
                return Err(PostErrorKind::InlineTooLong { length: bytes.len(), maximum });
            }
            Local::Bytes(bytes) => LaneSource::Bytes(bytes),
            Local::Region(slice) => {
                let access = match (reads, self.info.read_sink_required) {
                    (false, _) => Access::empty(),
                    (true, false) => Access::LOCAL_WRITE,
                    (true, true) => Access::LOCAL_WRITE | Access::READ_SINK,
                };
                if !slice.allows(self.domain, access) {
                    return Err(not_allowed(slice, self.domain, access));
                }
                let LentList { payload: lent, .. } = slice.clone().lend();
                payload = lent;
                LaneSource::Region(&payload)
            }
        };
        let length = length_of(&local);
        if length > self.info.max_transfer {
            return Err(PostErrorKind::TooLong { length, maximum: self.info.max_transfer });
        }
        let flags = options.flags();
        let posted = self.provider.request(LaneRequest { queue_pair, operation, source, flags });
        self.note_doorbell();
        posted
    }

    /// Hands the requests that wait to the device.
    #[inline]
    pub fn ring(&mut self) {
        self.provider.ring();
        self.note_doorbell();
    }

    /// Leaves the number of outstanding requests for snapshots.
    #[inline(always)]
    fn note_doorbell(&self) {
        #[cfg(feature = "inspect")]
        self.gauge.rung(self.provider.outstanding());
    }

    /// Takes completions, as many as there are and fit into `into`. Returns those. An empty slice if there are none.
    ///
    /// # Errors
    /// `Lost` if the device has lost a completion or the queue of shared receives, or has reported a completion of no request;
    /// `DeviceRemoved`. Each further call fails then, and the slots that requests have do not come back.
    #[inline(always)]
    pub fn poll<'d>(&mut self, into: &'d mut [Done]) -> Result<&'d [Done], NotifyError> {
        let polled = self.provider.poll(into);
        #[cfg(feature = "inspect")]
        self.gauge.polled(self.provider.outstanding(), false);
        polled
    }

    /// Returns the number of requests whose completions no poll has returned. Silent requests do not count.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.provider.outstanding()
    }

    /// Waits until there are completions, and takes them as [`poll`](Self::poll) does. With an empty `into` it resolves at once.
    ///
    /// Nothing else wakes it: a loop that also waits for new connections uses `tokio::select!`.
    ///
    /// # Errors
    /// Those of [`poll`](Self::poll).
    ///
    /// # Cancel safety
    /// Dropping the future loses no completion.
    pub async fn ready<'d>(&mut self, into: &'d mut [Done]) -> Result<&'d [Done], NotifyError> {
        let count = {
            let into = &mut *into;
            #[cfg(feature = "inspect")]
            let _waiting = self.gauge.waiting();
            let mut poll = |cx: &mut Context<'_>| {
                let polled = self.provider.poll_ready(cx, into);
                #[cfg(feature = "inspect")]
                self.gauge.polled(self.provider.outstanding(), polled.is_pending());
                polled
            };
            std::future::poll_fn(|cx| poll_budgeted(cx, &mut poll)).await?
        };
        Ok(into.get(..count).unwrap_or_default())
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slots, outstanding) = (self.parts.slots, self.outstanding());
        let mut lane = f.debug_struct("Lane");
        lane.field("slots", &slots).field("outstanding", &outstanding).finish_non_exhaustive()
    }
}

const NO_SINK: PostErrorKind = PostErrorKind::NotSupported("a read into a slot, which no peer may write to");

fn remote_address(remote: &RemoteRegion) -> RemoteAddress {
    RemoteAddress { key: remote.key().0, address: remote.address() }
}

/// Checks that the memory of the peer has `length` bytes.
#[inline]
fn check_remote(length: usize, remote: &RemoteRegion) -> Result<(), PostErrorKind> {
    let there = remote.len();
    if length as u64 > u64::from(there) {
        return Err(PostErrorKind::BeyondRemote { length, remote: there });
    }
    Ok(())
}

fn length_of(local: &Local<'_>) -> usize {
    match local {
        Local::Slots(parts) => parts.iter().fold(0, |length, (_, part)| length.saturating_add(part.len())),
        Local::Bytes(bytes) => bytes.len(),
        Local::Region(slice) => slice.length(),
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn not_held(slot: Slot) -> ! {
    panic!("slot {} is not held: it is free, a request has it, or the lane has no such slot", slot.number())
}

/// What the compiler refuses: each of these would be a reference to bytes that a device writes, or a second owner.
///
/// The same without the mistake:
/// ```
/// # use tokio_rdma::qp::{Done, Lane, QueuePairId, Slot};
/// fn post(lane: &mut Lane, id: QueuePairId, slot: Slot) -> Result<(), Box<dyn std::error::Error>> {
///     let bytes = lane.bytes_mut(slot);
///     bytes[0] = 1;
///     lane.receive(id, slot)?;
///     let mut room = [Done::EMPTY];
///     for done in lane.poll(&mut room)? {
///         let first = lane.bytes(done.slot())[0];
///         lane.bytes_mut(done.slot())[1] = first;
///     }
///     Ok(())
/// }
/// ```
///
/// Bytes that are borrowed while their slot is posted:
/// ```compile_fail,E0499
/// # use tokio_rdma::qp::{Lane, QueuePairId, Slot};
/// fn post(lane: &mut Lane, id: QueuePairId, slot: Slot) {
///     let bytes = lane.bytes_mut(slot);
///     let _ = lane.receive(id, slot);
///     bytes[0] = 1;
/// }
/// ```
///
/// ```compile_fail,E0502
/// # use tokio_rdma::qp::{Lane, QueuePairId, Slot};
/// fn post(lane: &mut Lane, id: QueuePairId, slot: Slot) -> u8 {
///     let bytes = lane.bytes(slot);
///     let _ = lane.send(id, slot, 1);
///     bytes[0]
/// }
/// ```
///
/// Bytes that are borrowed over a poll, or over a wait:
/// ```compile_fail,E0502
/// # use tokio_rdma::qp::{Done, Lane, Slot};
/// fn poll(lane: &mut Lane, slot: Slot) -> u8 {
///     let bytes = lane.bytes(slot);
///     let _ = lane.poll(&mut [Done::EMPTY]);
///     bytes[0]
/// }
/// ```
///
/// ```compile_fail,E0502
/// # use tokio_rdma::qp::{Done, Lane, Slot};
/// async fn wait(lane: &mut Lane, slot: Slot) -> u8 {
///     let bytes = lane.bytes(slot);
///     let _ = lane.ready(&mut [Done::EMPTY]).await;
///     bytes[0]
/// }
/// ```
///
/// Bytes of two slots at once, of which one is written, but by [`Lane::pair`]:
/// ```compile_fail,E0499
/// # use tokio_rdma::qp::{Lane, Slot};
/// fn both(lane: &mut Lane, one: Slot, other: Slot) {
///     let bytes = lane.bytes_mut(one);
///     lane.bytes_mut(other)[0] = 1;
///     bytes[0] = 1;
/// }
/// ```
///
/// Bytes that outlive the lane:
/// ```compile_fail,E0505
/// # use tokio_rdma::qp::{Lane, Slot};
/// fn end(lane: Lane, slot: Slot) -> u8 {
///     let bytes = lane.bytes(slot);
///     drop(lane);
///     bytes[0]
/// }
/// ```
///
/// A second owner:
/// ```compile_fail,E0599
/// # use tokio_rdma::qp::Lane;
/// fn two(lane: Lane) -> (Lane, Lane) {
///     (lane.clone(), lane)
/// }
/// ```
///
/// Posting by a shared reference:
/// ```compile_fail,E0596
/// # use tokio_rdma::qp::{Lane, QueuePairId, Slot};
/// fn post(lane: &Lane, id: QueuePairId, slot: Slot) {
///     let _ = lane.receive(id, slot);
/// }
/// ```
#[cfg(doctest)]
mod refused {}

/// What the owner of a lane leaves behind.
#[cfg(feature = "inspect")]
struct Gauge {
    adapter: u64,
    slots: u32,
    queue_pairs: u16,
    outstanding: AtomicU32,
    /// Written by the owner alone.
    polls: AtomicU64,
    waits: AtomicBool,
    /// The number of polls when a snapshot has last seen another, and the time of that.
    seen: Mutex<(u64, Mark)>,
    place: OnceLock<Place>,
}

#[cfg(feature = "inspect")]
impl Gauge {
    /// Creates the gauge of a lane of the adapter with this number.
    fn new(adapter: u64, parts: &LaneParts) -> Arc<Self> {
        let gauge = Arc::new(Self {
            adapter,
            slots: parts.slots,
            queue_pairs: parts.queue_pairs,
            outstanding: AtomicU32::new(0),
            polls: AtomicU64::new(0),
            waits: AtomicBool::new(false),
            seen: Mutex::new((0, Mark::now())),
            place: OnceLock::new(),
        });
        let object: Weak<Self> = Arc::downgrade(&gauge);
        let _ = gauge.place.set(inspect::register(object));
        gauge
    }

    /// Notes a poll, after which so many requests are outstanding, and whether a task waits for more.
    #[inline]
    fn polled(&self, outstanding: u32, waits: bool) {
        self.rung(outstanding);
        self.polls.store(self.polls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.waits.store(waits, Ordering::Relaxed);
    }

    /// Notes that no task waits any longer when the result is dropped.
    fn waiting(self: &Arc<Self>) -> impl Drop + use<> {
        Waiting(self.clone())
    }

    /// Notes a doorbell, after which so many requests are outstanding.
    #[inline]
    fn rung(&self, outstanding: u32) {
        self.outstanding.store(outstanding, Ordering::Relaxed);
    }
}

/// A task that waits for completions.
#[cfg(feature = "inspect")]
struct Waiting(Arc<Gauge>);

#[cfg(feature = "inspect")]
impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waits.store(false, Ordering::Relaxed);
    }
}

#[cfg(feature = "inspect")]
impl Inspect for Gauge {
    fn inspect(&self, snapshot: &mut Snapshot) {
        let mut report = LaneReport { adapter: self.adapter, ..LaneReport::default() };
        (report.slots, report.queue_pairs) = (self.slots as usize, self.queue_pairs.into());
        report.outstanding = self.outstanding.load(Ordering::Relaxed) as usize;
        report.polls = self.polls.load(Ordering::Relaxed);
        report.is_waiting = self.waits.load(Ordering::Relaxed);
        let mut seen = self.seen.lock();
        if seen.0 != report.polls {
            *seen = (report.polls, Mark::now());
        }
        report.since_polled = seen.1.age();
        drop(seen);
        snapshot.lanes.push(report);
    }
}
