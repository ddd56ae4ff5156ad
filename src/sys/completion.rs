//! Completion channels and completion queues.

use std::ffi::c_int;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;

use super::call::Object;
use super::device::Context;
use super::ffi::number as flag;
use super::{call, ffi};

use crate::status::WcStatus;
use crate::sync::Mutex;

/// Keys of completion queues.
pub(crate) type Keys = SmallVec<[u64; 16]>;

/// A completion channel. Its descriptor becomes readable when a queue that was armed has a completion, and does
/// not block.
pub(crate) struct CompletionChannel {
    pub(super) raw: Object<ffi::ibv_comp_channel>,
    context: Arc<Context>,
}

impl CompletionChannel {
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the device is open, and the channel keeps it so.
        let raw =
            call::pointer(libc::ENOMEM, || unsafe { ffi::ibv_create_comp_channel(context.raw.as_ptr()) })?;
        let channel = Self { raw, context: context.clone() };
        // SAFETY: the channel is new, so its descriptor is open.
        unsafe { call::do_not_wait(channel.as_raw_fd()) }?;
        Ok(Arc::new(channel))
    }

    /// Takes at most `most` events, and adds the key of the queue of each to `keys`. They are acknowledged, so that any
    /// queue may be destroyed at any time, also while this runs. Returns whether there may be more events: `false` if
    /// this call has found the end.
    ///
    /// # Errors
    /// `EIO` once the device was removed. The events until then are taken.
    pub(crate) fn next(&self, most: usize, keys: &mut Keys) -> io::Result<bool> {
        // Acknowledged when this is dropped, in one go for each queue.
        let mut taken = Taken::default();
        for _ in 0..most {
            let mut queue = ptr::null_mut();
            let mut context = ptr::null_mut();
            let fetched = call::errno(|| {
                // SAFETY: the channel is live; the call stores two pointers.
                unsafe { ffi::ibv_get_cq_event(self.raw.as_ptr(), &mut queue, &mut context) }
            });
            if call::unless_empty(fetched)?.is_none() {
                return Ok(false);
            }
            taken.add(queue);
            keys.push(ffi::context_to_key(context));
        }
        Ok(true)
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        let descriptor = self.as_raw_fd();
        // SAFETY: every queue of the channel holds an `Arc` of it, so none is left; drop runs once.
        if let Err(error) = call::number(|| unsafe { ffi::ibv_destroy_comp_channel(self.raw.as_ptr()) }) {
            // A queue was leaked. No handle refers to it, nor to the channel, so at least the descriptor can go.
            // SAFETY: the descriptor is open, since only the destructor closes it, and this was its last use.
            drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
            tracing::warn!(%error, "a completion channel could not be destroyed and is leaked");
        }
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel is live, and the field is never written again.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

/// Events that were taken from a channel and not yet acknowledged: their queues cannot go away.
#[derive(Default)]
struct Taken(SmallVec<[(*mut ffi::ibv_cq, u32); 4]>);

impl Taken {
    fn add(&mut self, queue: *mut ffi::ibv_cq) {
        match self.0.iter_mut().find(|(other, _)| *other == queue) {
            Some((_, count)) => *count += 1,
            None => self.0.push((queue, 1)),
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        for (queue, count) in self.0.drain(..) {
            // SAFETY: the queue is live, because its destruction waits until these events are acknowledged, which is
            // now.
            unsafe { ffi::ibv_ack_cq_events(queue, count) }
        }
    }
}

/// A completion queue.
pub(crate) struct CompletionQueue {
    pub(super) raw: Object<ffi::ibv_cq>,
    /// The key that its events carry.
    pub(crate) key: u64,
    /// The number of completions that the queue can hold.
    entries: AtomicU32,
    /// Locked while the library writes its own count of them.
    resizing: Mutex<()>,
    /// The flag of completions that report an invalidated key.
    pub(super) invalidated: u32,
    _channel: Arc<CompletionChannel>,
}

impl CompletionQueue {
    /// Creates a queue for at least that many completions, whose events carry the key and interrupt the processor that
    /// the vector stands for.
    ///
    /// # Errors
    /// `InvalidInput` (`EINVAL`) for more entries than the device allows, or a vector that it does not have.
    pub(crate) fn new(
        channel: &Arc<CompletionChannel>,
        entries: u32,
        key: u64,
        vector: u32,
    ) -> io::Result<Arc<Self>> {
        let (context, entries, vector) = (&channel.context, number(entries)?, number(vector)?);
        let raw = call::pointer(libc::ENOMEM, || {
            let key = ffi::key_to_context(key);
            // SAFETY: the channel is live and its device open, and the queue keeps both so.
            unsafe { ffi::ibv_create_cq(context.raw.as_ptr(), entries, key, channel.raw.as_ptr(), vector) }
        })?;
        // SAFETY: the queue is live, and the field is only written when a queue is resized, which this one is not yet.
        let entries = unsafe { (*raw.as_ptr()).cqe };
        Ok(Arc::new(Self {
            raw,
            key,
            entries: AtomicU32::new(u32::try_from(entries).unwrap_or(0)),
            resizing: Mutex::default(),
            invalidated: context.invalidated_flag(),
            _channel: channel.clone(),
        }))
    }

    /// Returns the number of completions that the queue can hold.
    pub(crate) fn entries(&self) -> u32 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Makes room for at least that many completions. Completions in the queue stay.
    ///
    /// # Errors
    /// `EINVAL` for more than the device allows or less than are there, `EOPNOTSUPP` where the size is fixed.
    pub(crate) fn resize(&self, entries: u32) -> io::Result<()> {
        let entries = number(entries)?;
        let _resizing = self.resizing.lock();
        // SAFETY: the queue is live.
        call::number(|| unsafe { ffi::ibv_resize_cq(self.raw.as_ptr(), entries) })?;
        // SAFETY: the queue is live, and the lock keeps the library from writing this.
        let entries = unsafe { (*self.raw.as_ptr()).cqe };
        self.entries.store(u32::try_from(entries).unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }

    /// Asks for one event when the next completion arrives. Completions that have arrived before cause no event: poll again.
    pub(crate) fn arm(&self) -> io::Result<()> {
        self.request_event(0)
    }

    /// Asks for one event as [`arm`](Self::arm) does, when the next message with a solicited event arrives, or a request fails.
    ///
    /// # Errors
    /// `EOPNOTSUPP` from drivers without such events.
    pub(crate) fn arm_solicited(&self) -> io::Result<()> {
        self.request_event(1)
    }

    fn request_event(&self, solicited_only: c_int) -> io::Result<()> {
        // SAFETY: the queue is live.
        call::number(|| unsafe { ffi::ibv_req_notify_cq(self.raw.as_ptr(), solicited_only) })
    }

    /// Takes as many completions as there are and as fit, at most `most`. Returns their number; 0 when there are none.
    ///
    /// # Errors
    /// [`Unreadable`] if a completion cannot be read. The batch then has those before it: `mlx5`, `mlx4`, `hns`, `irdma`, `cxgb4` and `mana`
    /// fail behind completions that they have consumed and stored, and do not return their number.
    pub(crate) fn poll(&self, into: &mut Batch, most: usize) -> Result<usize, Unreadable> {
        into.entries[..into.length].iter_mut().for_each(Batch::clear);
        into.length = 0;
        into.invalidated = self.invalidated;
        let room = into.entries.len().min(most) as c_int;
        // SAFETY: the queue is live, and there is room for that many entries.
        let count = unsafe { ffi::ibv_poll_cq(self.raw.as_ptr(), room, into.entries.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else {
            into.salvage();
            return Err(Unreadable);
        };
        into.length = count;
        Ok(count)
    }
}

/// A completion that the library of the device has not been able to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable;

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: every queue pair of the queue holds an `Arc` of it, so none is left; drop runs once. The call waits
        // for events that were taken and not acknowledged, which `CompletionChannel::next` does at once.
        if let Err(error) = call::number(|| unsafe { ffi::ibv_destroy_cq(self.raw.as_ptr()) }) {
            tracing::warn!(%error, "a completion queue could not be destroyed and is leaked");
        }
    }
}

/// Converts a number to an `int` of C.
fn number(value: u32) -> io::Result<c_int> {
    c_int::try_from(value).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// The number of completions that are polled at a time.
pub(crate) const BATCH: usize = 32;

/// Room for completions, to be used again and again.
pub(crate) struct Batch {
    entries: Box<[ffi::ibv_wc; BATCH]>,
    length: usize,
    /// See [`CompletionQueue`].
    invalidated: u32,
}

impl Default for Batch {
    fn default() -> Self {
        // SAFETY: all members are integers, for which zero is a value.
        let mut entries: [ffi::ibv_wc; BATCH] = std::array::from_fn(|_| unsafe { mem::zeroed() });
        entries.iter_mut().for_each(Self::clear);
        Self { entries: Box::new(entries), length: 0, invalidated: flag::IBV_WC_WITH_INV }
    }
}

impl Batch {
    /// The id of no request, in the entries without a completion.
    const EMPTY: u64 = u64::MAX;
    /// The status of no completion, in the same entries.
    const NO_STATUS: u32 = u32::MAX;

    fn clear(entry: &mut ffi::ibv_wc) {
        (entry.wr_id, entry.status) = (Self::EMPTY, Self::NO_STATUS);
    }

    /// Keeps the completions before the one that could not be read. The poll returned a negative number, which the
    /// driver chooses. Each driver stores the id of a completion last or, as `cxgb4` does, the status: only when
    /// reading the completion can no longer fail.
    #[cold]
    fn salvage(&mut self) {
        let stored = |entry: &&ffi::ibv_wc| entry.wr_id != Self::EMPTY && entry.status != Self::NO_STATUS;
        self.length = self.entries.iter().take_while(stored).count();
    }

    /// Returns the number of completions of the last poll.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns the completions of the last poll: in one run those that follow each other and that have one name, which is the key that
    /// `key` reads in the id of a request, and the number of the queue pair.
    #[inline]
    pub(crate) fn runs(
        &self,
        key: impl Fn(u64) -> u32 + Copy,
    ) -> impl Iterator<Item = ((u32, u32), Completions<'_>)> {
        let name = move |entry: &ffi::ibv_wc| (key(entry.wr_id), entry.qp_num);
        let runs = self.entries[..self.length].chunk_by(move |one, next| name(one) == name(next));
        runs.filter_map(move |entries| {
            Some((name(entries.first()?), Completions { entries, invalidated: self.invalidated }))
        })
    }
}

/// Completions that follow each other.
#[derive(Clone, Copy)]
pub(crate) struct Completions<'a> {
    entries: &'a [ffi::ibv_wc],
    /// See [`CompletionQueue`].
    invalidated: u32,
}

impl<'a> Completions<'a> {
    /// Returns the results, each with the id of its request.
    #[inline]
    pub(crate) fn results(self) -> impl Iterator<Item = (u64, WcResult)> + use<'a> {
        self.entries.iter().map(move |entry| {
            let told = Told::of(entry, self.invalidated);
            // The length of a Write with immediate data is that of the Write, whose bytes are in the memory that it names.
            let writes = matches!(told, Some(Told::Immediate(_))) && entry.opcode == RECEIVED_WRITE;
            let bytes = if writes { 0 } else { entry.byte_len };
            (entry.wr_id, WcResult { status: WcStatus::from_code(entry.status), bytes, told })
        })
    }
}

/// The result of a request. The number of bytes is that in its memory, and has no meaning if the request failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WcResult {
    pub(crate) status: WcStatus,
    pub(crate) bytes: u32,
    pub(crate) told: Option<Told>,
}

/// The bit of `enum ibv_wc_opcode` that completions of receives have.
const RECEIVED: u32 = 1 << 7;
/// `IBV_WC_RECV_RDMA_WITH_IMM`.
const RECEIVED_WRITE: u32 = RECEIVED + 1;

/// The information in a completion beside the bytes: what a message carries, in the completion of its receive, or the reason of a
/// failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Immediate data, in host byte order.
    Immediate(u32),
    /// The peer has invalidated this key.
    Invalidated(u32),
    /// The request failed with this error code of the vendor.
    VendorError(u32),
}

impl Told {
    fn of(entry: &ffi::ibv_wc, invalidated: u32) -> Option<Self> {
        if entry.status != WcStatus::SUCCESS.code() {
            return Some(Self::VendorError(entry.vendor_err));
        }
        if entry.opcode & RECEIVED == 0 {
            return None;
        }
        let words = &entry.imm_data_invalidated_rkey_union;
        if entry.wc_flags & flag::IBV_WC_WITH_IMM != 0 {
            // SAFETY: either member of the union is an integer of four bytes.
            Some(Self::Immediate(u32::from_be(unsafe { words.imm_data })))
        } else if entry.wc_flags & invalidated != 0 {
            // SAFETY: as above.
            Some(Self::Invalidated(unsafe { words.invalidated_rkey }))
        } else {
            None
        }
    }
}
