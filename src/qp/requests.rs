//! The posting calls of the send queue.

use super::options::WorkOptions;
use super::pair::QueuePair;
use crate::error::{PostError, PostErrorKind};
use crate::flight::{Op, RequestMeta, WorkBuffer};
use crate::memory::Owned;
use crate::mr::{Inline, MemoryWindow, RegionSlice, RemoteRegion};
use crate::provider::work::{Flags, Operation, RemoteAddress, WorkRequest};
use crate::types::{Access, OpKind};

/// The bytes of an atomic, and what its address is a multiple of.
const ATOMIC: usize = 8;

impl QueuePair {
    /// Posts a send of one message. Source: `IND2QueuePair::Send`.
    ///
    /// Completes when the memory is no longer needed; on iWARP that is before the peer has it.
    ///
    /// # Errors
    /// `ConnectionInvalid` when not connected; `QueueFull`; `TooManyEntries`; `TooLong`; `AccessViolation` for memory
    /// of another adapter; `DeviceRemoved`.
    pub fn send<B: WorkBuffer>(&self, buffer: B) -> Result<Op<B>, PostError<B>> {
        self.send_with(buffer, WorkOptions::default())
    }

    /// Posts an RDMA Write of the buffer to the start of `remote`. Source: `IND2QueuePair::Write`.
    ///
    /// Completes when the memory is no longer needed; a violation that the peer finds later breaks the connection.
    ///
    /// # Errors
    /// Those of [`send`](Self::send), and `AccessViolation` when the buffer is longer than `remote`.
    pub fn write<B: WorkBuffer>(&self, buffer: B, remote: &RemoteRegion) -> Result<Op<B>, PostError<B>> {
        self.write_with(buffer, remote, WorkOptions::default())
    }

    /// Posts an RDMA Read from the start of `remote` that fills the buffer. Source: `IND2QueuePair::Read`.
    ///
    /// At most as many reads as the outbound read limit are in flight; further ones wait, and what was posted behind
    /// them waits with them.
    ///
    /// # Errors
    /// Those of [`write`](Self::write); `AccessViolation` also for a region without
    /// [`LOCAL_WRITE`](Access::LOCAL_WRITE); `NoReads` when the outbound read limit is 0.
    pub fn read<B: WorkBuffer>(&self, buffer: B, remote: &RemoteRegion) -> Result<Op<B>, PostError<B>> {
        self.read_with(buffer, remote, WorkOptions::default())
    }

    /// [`send`](Self::send) with options.
    ///
    /// # Errors
    /// Those of [`send`](Self::send); `InvalidOptions` for immediate data together with an invalidation; `NotSupported`
    /// for one of them where the adapter has it not.
    pub fn send_with<B: WorkBuffer>(&self, buffer: B, options: WorkOptions) -> Result<Op<B>, PostError<B>> {
        let operation = send(&options);
        self.post_send(buffer, operation, options, Flags::empty(), None)
    }

    /// [`write`](Self::write) with options.
    ///
    /// # Errors
    /// Those of [`write`](Self::write); `InvalidOptions` for an invalidation, and for a solicited event without
    /// immediate data; `NotSupported` for immediate data where the adapter has none.
    pub fn write_with<B: WorkBuffer>(
        &self,
        buffer: B,
        remote: &RemoteRegion,
        options: WorkOptions,
    ) -> Result<Op<B>, PostError<B>> {
        let operation = write(remote, &options);
        self.post_send(buffer, operation, options, Flags::empty(), Some(remote))
    }

    /// [`read`](Self::read) with options.
    ///
    /// # Errors
    /// Those of [`read`](Self::read); `InvalidOptions` for all but a fence, silence and a context.
    pub fn read_with<B: WorkBuffer>(
        &self,
        buffer: B,
        remote: &RemoteRegion,
        options: WorkOptions,
    ) -> Result<Op<B>, PostError<B>> {
        let operation = Operation::Read { from: remote_address(remote) };
        self.post_send(buffer, operation, options, Flags::empty(), Some(remote))
    }

    /// Posts a send of bytes that are copied by the call (`ND_OP_FLAG_INLINE`): they need not be registered, can be used
    /// again at once, and lie in as many parts as they like.
    ///
    /// # Errors
    /// Those of [`send_with`](Self::send_with); `TooLong` for more than
    /// [`QueuePairConfig::inline`](super::QueuePairConfig::inline) bytes.
    pub fn send_inline(&self, parts: &[&[u8]], options: WorkOptions) -> Result<Op<Inline>, PostErrorKind> {
        self.inline(parts, send(&options), options, None)
    }

    /// Posts an RDMA Write of bytes that are copied by the call, as [`send_inline`](Self::send_inline) does.
    ///
    /// # Errors
    /// Those of [`write_with`](Self::write_with); `TooLong` for more than
    /// [`QueuePairConfig::inline`](super::QueuePairConfig::inline) bytes.
    pub fn write_inline(
        &self,
        parts: &[&[u8]],
        remote: &RemoteRegion,
        options: WorkOptions,
    ) -> Result<Op<Inline>, PostErrorKind> {
        self.inline(parts, write(remote, &options), options, Some(remote))
    }

    /// Posts an atomic compare-and-swap: where the eight bytes at `remote` are `compare` they become `swap`. Either way
    /// the buffer of eight bytes gets what they were. Numbers are in the byte order of the host that has the memory;
    /// for a peer of the same order that is `to_ne_bytes`. It counts as a read. Source: ibv_post_send(3).
    ///
    /// It is atomic against other atomics of the same adapter of the peer, not against other accesses.
    ///
    /// On iWARP nothing in the handshake says whether a peer has atomics (RFC 7306). One that has not, such as Linux `siw`,
    /// ends the connection as for any frame that it does not know: the request fails with `REMOTE_ERROR`.
    ///
    /// # Errors
    /// Those of [`read_with`](Self::read_with); `NotAtomic` when the buffer is not eight bytes or `remote` is too short or not
    /// aligned; `NotSupported`.
    pub fn compare_swap<B: WorkBuffer>(
        &self,
        buffer: B,
        remote: &RemoteRegion,
        compare: u64,
        swap: u64,
        options: WorkOptions,
    ) -> Result<Op<B>, PostError<B>> {
        let operation = Operation::CompareSwap { at: remote_address(remote), compare, swap };
        self.post_send(buffer, operation, options, Flags::empty(), Some(remote))
    }

    /// Posts an atomic fetch-and-add: `add` is added to the eight bytes at `remote`, without regard to overflow, and the
    /// buffer of eight bytes gets what they were. See [`compare_swap`](Self::compare_swap).
    ///
    /// # Errors
    /// Those of [`compare_swap`](Self::compare_swap).
    pub fn fetch_add<B: WorkBuffer>(
        &self,
        buffer: B,
        remote: &RemoteRegion,
        add: u64,
        options: WorkOptions,
    ) -> Result<Op<B>, PostError<B>> {
        let operation = Operation::FetchAdd { at: remote_address(remote), add };
        self.post_send(buffer, operation, options, Flags::empty(), Some(remote))
    }

    /// Posts the binding of a window to a part of a region, with these rights. Source: `IND2QueuePair::Bind`.
    ///
    /// [`MemoryWindow::remote`] tells the new key right after the call; it is good when the request has completed, and for
    /// a peer that learns it by a later request of this queue. A window that is bound already is bound anew.
    ///
    /// # Errors
    /// `ConnectionInvalid`; `QueueFull`; `AccessViolation` for rights that the region does not have (a window that can be
    /// written needs a region with [`LOCAL_WRITE`](Access::LOCAL_WRITE)), for no remote right at all, for a region that
    /// is deregistered, and for what belongs to another adapter; `InvalidOptions`; `DeviceRemoved`.
    pub fn bind(
        &self,
        window: &MemoryWindow,
        part: &RegionSlice,
        access: Access,
        options: WorkOptions,
    ) -> Result<Op<()>, PostErrorKind> {
        // Only the rights of the peer are a window's.
        let remote = [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
        let asked: Access = remote.into_iter().filter(|right| access.contains(*right)).collect();
        let changes = asked.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let local = if changes { Access::LOCAL_WRITE } else { Access::empty() };
        let fits = window.domain() == self.handle.domain
            && part.region().is_of(self.handle.domain)
            && part.region().is_registered()
            && part.region().access().contains(local)
            && !asked.is_empty();
        if !fits {
            return Err(PostErrorKind::AccessViolation);
        }
        let operation = Operation::Bind {
            window: window.provider().clone(),
            registration: part.region().registration(),
            range: part.range(),
            access: asked,
        };
        self.post_send((), operation, options, Flags::empty(), None).map_err(|refused| refused.kind)
    }

    /// Posts the invalidation of a window: when it has completed, no peer reaches memory by its key. Source:
    /// `IND2QueuePair::Invalidate`.
    ///
    /// # Errors
    /// `ConnectionInvalid`; `QueueFull`; `AccessViolation` for a window that is not bound, or of another adapter;
    /// `InvalidOptions`; `DeviceRemoved`.
    pub fn invalidate(&self, window: &MemoryWindow, options: WorkOptions) -> Result<Op<()>, PostErrorKind> {
        if window.domain() != self.handle.domain || window.remote().is_none() {
            return Err(PostErrorKind::AccessViolation);
        }
        let operation = Operation::Invalidate { window: window.provider().clone() };
        self.post_send((), operation, options, Flags::empty(), None).map_err(|refused| refused.kind)
    }

    fn inline(
        &self,
        parts: &[&[u8]],
        operation: Operation,
        options: WorkOptions,
        remote: Option<&RemoteRegion>,
    ) -> Result<Op<Inline>, PostErrorKind> {
        let length = parts.iter().map(|part| part.len()).sum();
        if length > self.handle.inline {
            return Err(PostErrorKind::TooLong);
        }
        let mut memory = Owned::zeroed(length).ok_or(PostErrorKind::QueueFull)?;
        let mut rest = &mut memory[..];
        for part in parts {
            let (place, behind) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = behind;
        }
        let inline = Inline::new(memory);
        self.post_send(inline, operation, options, Flags::INLINE, remote).map_err(|refused| refused.kind)
    }

    /// Checks what does not depend on the moment, and posts.
    fn post_send<B: WorkBuffer>(
        &self,
        buffer: B,
        operation: Operation,
        options: WorkOptions,
        flags: Flags,
        remote: Option<&RemoteRegion>,
    ) -> Result<Op<B>, PostError<B>> {
        let handle = &self.handle;
        let kind = operation.kind();
        if let Err(argument) = options.check(kind) {
            return Err(PostError { kind: PostErrorKind::InvalidOptions { argument }, buffer });
        }
        if let Some(what) = self.lacks(&operation) {
            return Err(PostError { kind: PostErrorKind::NotSupported(what), buffer });
        }
        let atomic = matches!(kind, OpKind::CompareSwap | OpKind::FetchAdd);
        let aligned = |remote: &RemoteRegion| {
            remote.address().is_multiple_of(ATOMIC as u64) && remote.len() as usize >= ATOMIC
        };
        if atomic && !(remote.is_some_and(aligned) && buffer.length() == ATOMIC) {
            return Err(PostError { kind: PostErrorKind::NotAtomic, buffer });
        }
        let reads = atomic || kind == OpKind::Read;
        let access = match (reads, handle.info.read_sink_required) {
            (false, _) => Access::empty(),
            (true, false) => Access::LOCAL_WRITE,
            // The device names the sink to the peer.
            (true, true) => Access::LOCAL_WRITE | Access::READ_SINK,
        };
        let mut entries = handle.config.send_entries;
        if reads {
            entries = entries.min(handle.info.max_read_entries);
        }
        let defer = if self.defer { Flags::DEFER } else { Flags::empty() };
        let flags = options.flags() | flags | defer;
        let label = RequestMeta { kind, context: options.context };
        self.post(buffer, label, entries, access, remote, |ticket, payload| {
            handle.provider.post_send(WorkRequest { ticket, operation, payload, flags })
        })
    }

    /// What the adapter does not have of it.
    fn lacks(&self, operation: &Operation) -> Option<&'static str> {
        let info = &self.handle.info;
        match operation {
            Operation::Send { invalidate: Some(_), .. } if !info.invalidates => Some("send with invalidate"),
            Operation::Send { immediate: Some(_), .. } if !info.immediate_send => {
                Some("immediate data with a send")
            }
            Operation::Write { immediate: Some(_), .. } if !info.immediate => Some("immediate data"),
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } if !info.atomics => Some("atomics"),
            Operation::Bind { .. } | Operation::Invalidate { .. } if !info.memory_windows => {
                Some("memory windows")
            }
            _ => None,
        }
    }
}

fn remote_address(remote: &RemoteRegion) -> RemoteAddress {
    RemoteAddress { key: remote.key().0, address: remote.address() }
}

fn send(options: &WorkOptions) -> Operation {
    Operation::Send { invalidate: options.invalidated_key(), immediate: options.immediate_data() }
}

fn write(remote: &RemoteRegion, options: &WorkOptions) -> Operation {
    Operation::Write { to: remote_address(remote), immediate: options.immediate_data() }
}
