//! The requests of the send queue: the methods that post them, their options, several with one doorbell, and reads whose place among
//! the reads in flight of the adapter was reserved before.

use std::ops::Deref;

use bitflags::bitflags;

use super::queue_pair::QueuePair;
use crate::error::{PostError, PostErrorKind};
use crate::inflight::{self, Op, Payload, ReadPlace, RequestMeta, Ticket, WorkBuffer};
use crate::mr::{Inline, MemoryWindow, RegionSlice, RemoteRegion};
use crate::provider::info::AdapterInfo;
use crate::provider::work::{
    BindTarget, DirectOutcome, DirectRequest, Flags, InlineRequest, Operation, RemoteAddress, Source,
    WindowRequest, WorkRequest,
};
use crate::types::{Access, OpKind, RemoteKey};

/// The length of the operand of an atomic, and the alignment of its address.
const ATOMIC: usize = 8;

impl QueuePair {
    /// Posts a send of one message (`IND2QueuePair::Send`, `IBV_WR_SEND`).
    ///
    /// The message consumes one receive of the peer and arrives as a whole.
    ///
    /// The returned [`Op`] resolves when the buffer can be reused. On adapters with
    /// [`early_completion`](crate::cm::AdapterInfo::early_completion) (iWARP, `soft`) this may be before the peer has
    /// received the message; a later failure is then reported as a lost connection. To confirm delivery, have the peer
    /// respond.
    ///
    /// # Errors
    /// Returns the buffer in a [`PostError`] of kind
    /// * [`ConnectionInvalid`](PostErrorKind::ConnectionInvalid) if the queue pair is not connected;
    /// * [`QueueFull`](PostErrorKind::QueueFull) if [`send_depth`](super::QueuePairConfig::send_depth) requests are
    ///   outstanding;
    /// * [`TooManyEntries`](PostErrorKind::TooManyEntries) or [`TooLong`](PostErrorKind::TooLong) if the buffer exceeds
    ///   the limits of the queue pair or the adapter;
    /// * [`ForeignMemory`](PostErrorKind::ForeignMemory) if the buffer belongs to another adapter;
    /// * [`DeviceRemoved`](PostErrorKind::DeviceRemoved) if the adapter has been removed.
    ///
    /// # Cancel safety
    /// The message is posted by this call, not by awaiting the [`Op`]. Dropping the `Op` does not cancel the send.
    pub fn send<B: WorkBuffer>(&self, buffer: B) -> Result<Op<B>, PostError<B>> {
        self.send_with(buffer, WorkOptions::default())
    }

    /// Posts an RDMA Write of the buffer to the start of `remote` (`IND2QueuePair::Write`, `IBV_WR_RDMA_WRITE`).
    ///
    /// The returned [`Op`] resolves when the buffer can be reused. If the peer later finds a violation, the connection
    /// ends.
    ///
    /// # Errors
    /// Those of [`send`](Self::send), and `BeyondRemote` if the buffer is longer than `remote`.
    pub fn write<B: WorkBuffer>(&self, buffer: B, remote: &RemoteRegion) -> Result<Op<B>, PostError<B>> {
        self.write_with(buffer, remote, WorkOptions::default())
    }

    /// Posts an RDMA Read that fills the buffer from the start of `remote` (`IND2QueuePair::Read`, `IBV_WR_RDMA_READ`).
    ///
    /// The number of reads in flight is limited by the outbound read limit of the connection. Further reads wait, and
    /// so do all requests posted after them. The settings of the verbs provider may limit those of all connections of the adapter, too.
    ///
    /// # Errors
    /// Those of [`write`](Self::write); `AccessViolation` for a region without
    /// [`LOCAL_WRITE`](Access::LOCAL_WRITE); `NoReads` if the outbound read limit is 0; `ReadsFull` if the adapter has as many reads
    /// in flight as its settings permit, where [`reserve_read`](Self::reserve_read) waits.
    pub fn read<B: WorkBuffer>(&self, buffer: B, remote: &RemoteRegion) -> Result<Op<B>, PostError<B>> {
        self.read_with(buffer, remote, WorkOptions::default())
    }

    /// Posts a send like [`send`](Self::send), with options. Accepts all options.
    ///
    /// # Errors
    /// Those of [`send`](Self::send); `InvalidOptions` for immediate data together with an invalidation; `NotSupported`
    /// if the adapter does not support one of them.
    pub fn send_with<B: WorkBuffer>(&self, buffer: B, options: WorkOptions) -> Result<Op<B>, PostError<B>> {
        let operation = send(&options);
        self.post_send(buffer, operation, options, None)
    }

    /// Posts an RDMA Write like [`write`](Self::write), with options. Accepts all options except an invalidation.
    ///
    /// # Errors
    /// Those of [`write`](Self::write); `InvalidOptions` for an invalidation, and for a solicited event without
    /// immediate data; `NotSupported` for immediate data if the adapter does not support it.
    pub fn write_with<B: WorkBuffer>(
        &self,
        buffer: B,
        remote: &RemoteRegion,
        options: WorkOptions,
    ) -> Result<Op<B>, PostError<B>> {
        let operation = write(remote, &options);
        self.post_send(buffer, operation, options, Some(remote))
    }

    /// Posts an RDMA Read like [`read`](Self::read), with options. Accepts a fence, silence and a context.
    ///
    /// # Errors
    /// Those of [`read`](Self::read); `InvalidOptions` for any other option.
    pub fn read_with<B: WorkBuffer>(
        &self,
        buffer: B,
        remote: &RemoteRegion,
        options: WorkOptions,
    ) -> Result<Op<B>, PostError<B>> {
        let operation = Operation::Read { from: remote_address(remote) };
        self.post_send(buffer, operation, options, Some(remote))
    }

    /// Posts a send of bytes that this call copies (`ND_OP_FLAG_INLINE`, `IBV_SEND_INLINE`).
    ///
    /// The bytes need not be registered, can be reused immediately, and can be in any number of parts.
    ///
    /// # Errors
    /// Those of [`send_with`](Self::send_with); `InlineTooLong` for more than
    /// [`QueuePairConfig::inline`](super::QueuePairConfig::inline) bytes.
    pub fn send_inline(&self, parts: &[&[u8]], options: WorkOptions) -> Result<Op<Inline>, PostErrorKind> {
        self.inline(parts, send(&options), options, None)
    }

    /// Posts an RDMA Write of bytes that this call copies, as [`send_inline`](Self::send_inline) does.
    ///
    /// # Errors
    /// Those of [`write_with`](Self::write_with); `InlineTooLong` for more than
    /// [`QueuePairConfig::inline`](super::QueuePairConfig::inline) bytes.
    pub fn write_inline(
        &self,
        parts: &[&[u8]],
        remote: &RemoteRegion,
        options: WorkOptions,
    ) -> Result<Op<Inline>, PostErrorKind> {
        self.inline(parts, write(remote, &options), options, Some(remote))
    }

    /// Posts an atomic compare-and-swap: if the eight bytes at `remote` equal `compare`, they become `swap`. Source:
    /// ibv_post_send(3).
    ///
    /// In either case the buffer of eight bytes receives their previous value. Numbers are in the byte order of the
    /// host that has the memory; for a peer of the same byte order that is `to_ne_bytes`. An atomic counts as a read
    /// for the read limits. Accepts the options of [`read_with`](Self::read_with).
    ///
    /// The operation is atomic with respect to other atomics of the same adapter of the peer, not with respect to other
    /// accesses.
    ///
    /// On iWARP the handshake does not announce whether a peer supports atomics (RFC 7306). A peer that does not, such
    /// as Linux `siw`, ends the connection as for any unknown frame, and the request fails with `REMOTE_ERROR`.
    ///
    /// # Errors
    /// Those of [`read_with`](Self::read_with); `NotAtomic` if the buffer is not eight bytes long, or `remote` is
    /// shorter or not aligned to eight; `NotSupported` if the adapter does not support atomics.
    pub fn compare_swap<B: WorkBuffer>(
        &self,
        buffer: B,
        remote: &RemoteRegion,
        compare: u64,
        swap: u64,
        options: WorkOptions,
    ) -> Result<Op<B>, PostError<B>> {
        let operation = Operation::CompareSwap { at: remote_address(remote), compare, swap };
        self.post_send(buffer, operation, options, Some(remote))
    }

    /// Posts an atomic fetch-and-add: `add` is added to the eight bytes at `remote`, without regard to overflow.
    ///
    /// The buffer of eight bytes receives their previous value. Byte order, atomicity and iWARP peers are as for
    /// [`compare_swap`](Self::compare_swap).
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
        self.post_send(buffer, operation, options, Some(remote))
    }

    /// Posts a bind of a memory window to a part of a region, with these rights. Source: `IND2QueuePair::Bind`.
    ///
    /// [`MemoryWindow::remote`] returns the new key immediately after this call. The key is valid when the request has
    /// completed, and earlier for a peer that receives the key by a later request of this queue. A window that is
    /// already bound is bound again. If `access` contains no remote right, the window is bound and gives no access.
    /// Accepts the options of [`read_with`](Self::read_with).
    ///
    /// # Errors
    /// * `ConnectionInvalid`; `QueueFull`; `InvalidOptions`; `DeviceRemoved`; `NotSupported` if the adapter has no
    ///   memory windows; `InsufficientResources` if there is no free key or window of the device;
    /// * `AccessViolation` if the region lacks the rights (a window with a right to write needs a region with
    ///   [`LOCAL_WRITE`](Access::LOCAL_WRITE));
    /// * `ForeignMemory` if the region is deregistered, or if the window or the region belongs to another adapter.
    pub fn bind(
        &self,
        window: &MemoryWindow,
        part: &RegionSlice,
        access: Access,
        options: WorkOptions,
    ) -> Result<Op<()>, PostErrorKind> {
        // Only the rights of the peer are a window's.
        let asked = access.remote();
        let changes = asked.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let local = if changes { Access::LOCAL_WRITE } else { Access::empty() };
        let ours = window.domain() == self.inner.domain
            && part.region().is_of(self.inner.domain)
            && part.region().is_registered();
        if !ours {
            return Err(PostErrorKind::ForeignMemory);
        }
        let missing = local - part.region().access();
        if !missing.is_empty() {
            return Err(PostErrorKind::AccessViolation { missing });
        }
        let registration = part.region().registration();
        let target = BindTarget { registration: &registration, range: part.range(), access: asked };
        let request = self.open_window_request(OpKind::Bind, options)?;
        let outcome = self.inner.provider.post_bind(request, window.provider(), target);
        self.posted_without_buffer(request.ticket, OpKind::Bind, outcome)
    }

    /// Posts the invalidation of a window. Source: `IND2QueuePair::Invalidate`.
    ///
    /// When the request has completed, no peer can access memory by the key of the window. On the driver `rdma_rxe` a
    /// request of the peer that is being executed may still finish; deregister the region to be sure. Accepts the options
    /// of [`read_with`](Self::read_with).
    ///
    /// # Errors
    /// `ConnectionInvalid`; `QueueFull`; `NotBound` if the window is not bound, on devices also if another queue pair
    /// bound it; `ForeignMemory` if it belongs to another adapter; `InvalidOptions`; `DeviceRemoved`.
    pub fn invalidate(&self, window: &MemoryWindow, options: WorkOptions) -> Result<Op<()>, PostErrorKind> {
        if window.domain() != self.inner.domain {
            return Err(PostErrorKind::ForeignMemory);
        }
        if window.remote().is_none() {
            return Err(PostErrorKind::NotBound);
        }
        let request = self.open_window_request(OpKind::Invalidate, options)?;
        let outcome = self.inner.provider.post_invalidate(request, window.provider());
        self.posted_without_buffer(request.ticket, OpKind::Invalidate, outcome)
    }

    fn inline(
        &self,
        parts: &[&[u8]],
        operation: Operation,
        options: WorkOptions,
        remote: Option<&RemoteRegion>,
    ) -> Result<Op<Inline>, PostErrorKind> {
        let length = parts.iter().map(|part| part.len()).sum();
        let maximum = self.inner.inline;
        if length > maximum {
            return Err(PostErrorKind::InlineTooLong { length, maximum });
        }
        let kind = operation.kind();
        options.check(&operation, &self.inner.info)?;
        if let Some(remote) = remote {
            self.check_remote(remote, length)?;
        }
        let flags = self.flags(options);
        let label = RequestMeta { kind, context: options.context };
        let (inner, source) = (&self.inner, Source::Bytes(parts));
        let direct = DirectRequest { operation: &operation, source, flags, table: &inner.table, label };
        match inner.provider.post_direct(direct) {
            DirectOutcome::Completed(bytes) => {
                inner.table.count_direct();
                Ok(Op::completed((bytes, inner.config.context), Payload::new(), kind, ()))
            }
            DirectOutcome::Posted(ticket) => Ok(Op::new(inner.table.clone(), ticket, kind, ())),
            DirectOutcome::Declined => {
                let ticket = inner.table.open(label, || length);
                let request = InlineRequest { ticket, operation, parts, flags };
                self.posted_without_buffer(ticket, kind, inner.provider.post_inline(request))
            }
        }
    }

    /// Checks what does not depend on the moment, and opens the slot of a request to change a window.
    ///
    /// # Errors
    /// `InvalidOptions`, `NotSupported`.
    fn open_window_request(
        &self,
        kind: OpKind,
        options: WorkOptions,
    ) -> Result<WindowRequest, PostErrorKind> {
        options.check_kind(kind)?;
        if !self.inner.info.memory_windows {
            return Err(PostErrorKind::NotSupported("memory windows"));
        }
        let ticket = self.inner.table.open(RequestMeta { kind, context: options.context }, || 0);
        Ok(WindowRequest { ticket, flags: self.flags(options) })
    }

    /// Returns the future of a request without a buffer, once the provider has taken or refused it.
    ///
    /// # Errors
    /// That of `outcome`.
    fn posted_without_buffer<B: WorkBuffer<State = ()>>(
        &self,
        ticket: Ticket,
        kind: OpKind,
        outcome: Result<(), PostErrorKind>,
    ) -> Result<Op<B>, PostErrorKind> {
        match outcome {
            Ok(()) => Ok(Op::new(self.inner.table.clone(), ticket, kind, ())),
            Err(kind) => {
                self.inner.table.close(ticket);
                Err(self.inner.explain(kind))
            }
        }
    }

    /// Checks what does not depend on the moment, and posts.
    fn post_send<B: WorkBuffer>(
        &self,
        buffer: B,
        operation: Operation,
        options: WorkOptions,
        remote: Option<&RemoteRegion>,
    ) -> Result<Op<B>, PostError<B>> {
        let inner = &self.inner;
        let kind = operation.kind();
        if let Err(kind) = options.check(&operation, &self.inner.info) {
            return Err(PostError { kind, buffer });
        }
        let atomic = matches!(kind, OpKind::CompareSwap | OpKind::FetchAdd);
        let aligned = |remote: &RemoteRegion| {
            remote.address().is_multiple_of(ATOMIC as u64) && remote.len() as usize >= ATOMIC
        };
        if atomic && !(remote.is_some_and(aligned) && buffer.length() == ATOMIC) {
            return Err(PostError { kind: not_atomic(buffer.length(), remote), buffer });
        }
        let reads = atomic || kind == OpKind::Read;
        let access = match (reads, inner.info.read_sink_required) {
            (false, _) => Access::empty(),
            (true, false) => Access::LOCAL_WRITE,
            // The device names the sink to the peer.
            (true, true) => Access::LOCAL_WRITE | Access::READ_SINK,
        };
        let mut entries = inner.config.send_entries;
        if reads {
            entries = entries.min(inner.info.max_read_entries);
        }
        let flags = self.flags(options);
        let label = RequestMeta { kind, context: options.context };
        let list = self.lend(buffer, kind, entries, access, remote)?;
        let (table, source) = (&*inner.table, Source::Memory(&list.payload));
        match inner.provider.post_direct(DirectRequest { operation: &operation, source, flags, table, label })
        {
            DirectOutcome::Completed(bytes) => {
                inner.table.count_direct();
                Ok(Op::completed((bytes, inner.config.context), list.payload, kind, list.state))
            }
            DirectOutcome::Posted(ticket) => Ok(Op::new(inner.table.clone(), ticket, kind, list.state)),
            DirectOutcome::Declined => {
                let ticket = table.open(label, || inflight::length(&list.payload));
                let payload = list.payload;
                let posted = if reads {
                    inner.provider.post_read(WorkRequest { ticket, operation, payload, flags })
                } else {
                    inner.provider.post_send(WorkRequest { ticket, operation, payload, flags })
                };
                match posted {
                    Ok(()) => Ok(Op::new(inner.table.clone(), ticket, kind, list.state)),
                    Err(refused) => Err(self.refused(ticket, refused, list.state)),
                }
            }
        }
    }

    fn flags(&self, options: WorkOptions) -> Flags {
        let defer = if self.defer { Flags::DEFER } else { Flags::empty() };
        options.flags() | defer
    }
}

/// Returns the error of an atomic with a buffer of this length.
#[cold]
fn not_atomic(length: usize, remote: Option<&RemoteRegion>) -> PostErrorKind {
    let (there, address) = remote.map_or((0, 0), |remote| (remote.len() as usize, remote.address()));
    let length = if length == ATOMIC { there.min(ATOMIC) } else { length };
    PostErrorKind::NotAtomic { length, address }
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

bitflags! {
    /// The options that were set. Those that the provider takes as flags have the bits of these.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct OptionSet: u8 {
        const FENCE = Flags::FENCE.bits();
        const SOLICITED = Flags::SOLICITED.bits();
        const SILENT = Flags::SILENT.bits();
        const IMMEDIATE = 16;
        const INVALIDATE = 32;
        const RESERVED = Flags::RESERVED.bits();
    }
}

// These two are no flags: `from_bits_truncate` leaves them out.
const _: () = assert!(
    !Flags::all().contains(Flags::from_bits_retain(OptionSet::IMMEDIATE.bits()))
        && !Flags::all().contains(Flags::from_bits_retain(OptionSet::INVALIDATE.bits()))
);

impl OptionSet {
    /// Returns the name of the first of these options, which a request of this kind does not accept.
    #[cold]
    fn refused(self, kind: OpKind) -> &'static str {
        match (self, kind) {
            (refused, _) if refused.contains(Self::INVALIDATE) => "invalidate",
            (refused, _) if refused.contains(Self::IMMEDIATE) => "immediate",
            (refused, OpKind::Write) if refused.contains(Self::SOLICITED) => "solicited without immediate",
            (refused, _) if refused.contains(Self::SOLICITED) => "solicited",
            (refused, _) if refused.contains(Self::FENCE) => "fence",
            (refused, _) if refused.contains(Self::SILENT) => "silent",
            _ => "immediate together with invalidate",
        }
    }
}

/// Options of a work request. The default has no option set.
///
/// Each posting method lists the options that it accepts, and fails with
/// [`InvalidOptions`](crate::error::PostErrorKind::InvalidOptions) for any other. Source: the flags of
/// `IND2QueuePair::Send` (`ND_OP_FLAG_*`), `NdkSendAndInvalidate`, ibv_post_send(3).
///
/// ```
/// use tokio_rdma::qp::WorkOptions;
///
/// let options = WorkOptions::default().fence().solicited().context(7);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkOptions {
    set: OptionSet,
    immediate: u32,
    invalidate: u32,
    pub(crate) context: u64,
}

impl WorkOptions {
    /// Starts the request only after every read and atomic that was posted before it has completed
    /// (`ND_OP_FLAG_READ_FENCE`).
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.set |= OptionSet::FENCE;
        self
    }

    /// Makes the peer's receive a solicited event, which resolves a notification of
    /// [`NotifyKind::Solicited`](super::NotifyKind::Solicited) (`ND_OP_FLAG_SEND_AND_SOLICIT_EVENT`).
    ///
    /// For sends, and for writes with immediate data.
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.set |= OptionSet::SOLICITED;
        self
    }

    /// Reports only failure in a completion queue, not success (`ND_OP_FLAG_SILENT_SUCCESS`), and lets a device leave the
    /// completion out (an unsignaled request of verbs).
    ///
    /// The [`Op`](super::Op) of such a request may not resolve before a later request of the queue without this option has completed,
    /// and with a completion queue has been polled. So await the last request of several, and post that one without it. If the
    /// connection ends first, the request completes with `CANCELED`, whether or not it was executed.
    #[doc(alias = "unsignaled")]
    #[doc(alias = "IBV_SEND_SIGNALED")]
    #[must_use]
    pub fn silent(mut self) -> Self {
        self.set |= OptionSet::SILENT;
        self
    }

    /// Sends immediate data with the message: the peer's receive completes with this number.
    ///
    /// A write with immediate data consumes one receive of the peer. See
    /// [`AdapterInfo::immediate`](crate::cm::AdapterInfo::immediate). An iWARP peer that does not support immediate
    /// data (RFC 7306) ends the connection.
    #[must_use]
    pub fn immediate(mut self, value: u32) -> Self {
        self.set |= OptionSet::IMMEDIATE;
        self.immediate = value;
        self
    }

    /// Sends with Invalidate: the peer's memory window with this key is invalidated before the peer's receive
    /// completes.
    ///
    /// For sends. See [`AdapterInfo::invalidates`](crate::cm::AdapterInfo::invalidates).
    #[must_use]
    pub fn invalidate(mut self, key: RemoteKey) -> Self {
        self.set |= OptionSet::INVALIDATE;
        self.invalidate = key.0;
        self
    }

    /// Posts a read whose place among those in flight the caller has reserved.
    #[must_use]
    pub(super) fn reserved(mut self) -> Self {
        self.set |= OptionSet::RESERVED;
        self
    }

    /// Sets a number that is returned in [`WorkCompletion::context`](super::WorkCompletion::context) (`requestContext`,
    /// `wr_id`).
    #[doc(alias = "wr_id")]
    #[must_use]
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    /// Checks that the operation takes these options, and that the adapter has both.
    ///
    /// # Errors
    /// `InvalidOptions`, `NotSupported`.
    pub(super) fn check(&self, operation: &Operation, info: &AdapterInfo) -> Result<(), PostErrorKind> {
        self.check_kind(operation.kind())?;
        let lacking = match operation {
            Operation::Send { invalidate: Some(_), .. } if !info.invalidates => Some("send with invalidate"),
            Operation::Send { immediate: Some(_), .. } if !info.immediate_send => {
                Some("immediate data with a send")
            }
            Operation::Write { immediate: Some(_), .. } if !info.immediate => Some("immediate data"),
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } if !info.atomics => Some("atomics"),
            _ => None,
        };
        lacking.map_or(Ok(()), |what| Err(PostErrorKind::NotSupported(what)))
    }

    /// Returns the options that a provider takes as flags.
    pub(super) fn flags(&self) -> Flags {
        Flags::from_bits_truncate(self.set.bits())
    }

    /// Checks that a request of this kind accepts all options that are set.
    ///
    /// # Errors
    /// `InvalidOptions`, with the number of the flags argument of the ND method.
    fn check_kind(&self, kind: OpKind) -> Result<(), PostErrorKind> {
        let common = OptionSet::FENCE | OptionSet::SILENT;
        let (takes, argument) = match kind {
            OpKind::Send => (OptionSet::all(), 4),
            OpKind::Write if self.set.contains(OptionSet::IMMEDIATE) => {
                (common | OptionSet::IMMEDIATE | OptionSet::SOLICITED, 6)
            }
            OpKind::Invalidate => (common, 3),
            OpKind::Receive => (OptionSet::empty(), 4),
            // Only a permit sets it.
            _ => (common | OptionSet::RESERVED, 6),
        };
        // No message carries both.
        let both = OptionSet::IMMEDIATE | OptionSet::INVALIDATE;
        if takes.contains(self.set) && !self.set.contains(both) {
            return Ok(());
        }
        Err(PostErrorKind::InvalidOptions { argument, kind, option: (self.set - takes).refused(kind) })
    }

    pub(crate) fn immediate_data(&self) -> Option<u32> {
        self.set.contains(OptionSet::IMMEDIATE).then_some(self.immediate)
    }

    pub(crate) fn invalidated_key(&self) -> Option<u32> {
        self.set.contains(OptionSet::INVALIDATE).then_some(self.invalidate)
    }
}

/// Posts several requests with one doorbell, on soft with one system call (NDK's DEFER). Created by
/// [`QueuePair::batch`].
///
/// Dereferences to [`QueuePair`], so every posting method is available and behaves as usual. The requests are sent when
/// the batch is dropped, when a request is posted without the batch, or earlier.
#[derive(Debug)]
#[must_use = "dropping it rings the doorbell"]
pub struct Batch {
    queue_pair: QueuePair,
}

impl QueuePair {
    /// Returns a handle that posts several requests with one doorbell. The requests are sent when the handle is
    /// dropped.
    ///
    /// ```
    /// # use tokio_rdma::{QueuePair, Buffer, RemoteRegion};
    /// # async fn example(queue_pair: &QueuePair, parts: Vec<Buffer>, there: &RemoteRegion) -> std::io::Result<()> {
    /// let batch = queue_pair.batch();
    /// let mut writes = Vec::new();
    /// for part in parts {
    ///     writes.push(batch.write(part, there)?);
    /// }
    /// drop(batch);
    /// for write in writes {
    ///     write.await.0?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn batch(&self) -> Batch {
        Batch { queue_pair: Self { inner: self.inner.clone(), defer: true } }
    }
}

impl Batch {
    /// Sends the posted requests. Dropping the batch does the same.
    pub fn submit(self) {}
}

impl Deref for Batch {
    type Target = QueuePair;
    fn deref(&self) -> &QueuePair {
        &self.queue_pair
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.queue_pair.provider().ring();
    }
}

/// The right to post one RDMA Read or atomic, within the limit on those that the adapter has in flight. Created by
/// [`QueuePair::reserve_read`].
///
/// Dropping it frees the place for the next in line.
#[derive(Debug)]
#[must_use = "dropping it frees the place"]
pub struct ReadPermit<'a> {
    queue_pair: &'a QueuePair,
    /// `None` without a limit.
    place: Option<ReadPlace>,
}

impl QueuePair {
    /// Waits until the adapter has fewer RDMA Reads and atomics in flight than its settings permit (`VerbsConfig::max_reads`), and
    /// reserves the place of one.
    ///
    /// Callers wait in line, in the order in which the futures are first polled, over all queue pairs of the adapter, and come before
    /// [`read`](Self::read), which does not wait. Requests of a [`batch`](Self::batch) are sent before it waits. Without a limit, and on
    /// the soft provider, it resolves at once.
    ///
    /// A place is free when the completion of its read has been taken: from a queue with
    /// [`busy_poll`](super::CompletionQueueConfig::busy_poll) and from a lane when the program polls. So a task should not wait here for
    /// reads that it alone would poll, nor while it holds another permit or has an open batch of another queue pair.
    ///
    /// # Errors
    /// If it would wait: `ConnectionInvalid` and the other causes if the queue pair is not connected, or ends while this waits;
    /// `NoReads`; `DeviceRemoved`.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line, and nothing is posted.
    ///
    /// # Examples
    /// ```
    /// # use tokio_rdma::{Buffer, QueuePair, RemoteRegion};
    /// # async fn example(queue_pair: &QueuePair, buffer: Buffer, remote: &RemoteRegion) -> std::io::Result<()> {
    /// let permit = queue_pair.reserve_read().await?;
    /// let (outcome, buffer) = permit.read(buffer, remote)?.await;
    /// println!("{} bytes", outcome?.bytes);
    /// # drop(buffer);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reserve_read(&self) -> Result<ReadPermit<'_>, PostErrorKind> {
        let place = self.provider().reserve_read().await.map_err(|kind| self.inner.explain(kind))?;
        Ok(ReadPermit { queue_pair: self, place })
    }
}

impl ReadPermit<'_> {
    /// Posts an RDMA Read, as [`QueuePair::read`] does.
    ///
    /// # Errors
    /// Those of [`QueuePair::read`], except `ReadsFull`.
    pub fn read<B: WorkBuffer>(self, buffer: B, remote: &RemoteRegion) -> Result<Op<B>, PostError<B>> {
        self.read_with(buffer, remote, WorkOptions::default())
    }

    /// Posts an RDMA Read with options, as [`QueuePair::read_with`] does.
    ///
    /// # Errors
    /// Those of [`QueuePair::read_with`], except `ReadsFull`.
    pub fn read_with<B: WorkBuffer>(
        mut self,
        buffer: B,
        remote: &RemoteRegion,
        options: WorkOptions,
    ) -> Result<Op<B>, PostError<B>> {
        self.post(options, |queue_pair, options| queue_pair.read_with(buffer, remote, options))
    }

    /// Posts an atomic compare-and-swap, as [`QueuePair::compare_swap`] does.
    ///
    /// # Errors
    /// Those of [`QueuePair::compare_swap`], except `ReadsFull`.
    pub fn compare_swap<B: WorkBuffer>(
        mut self,
        buffer: B,
        remote: &RemoteRegion,
        compare: u64,
        swap: u64,
        options: WorkOptions,
    ) -> Result<Op<B>, PostError<B>> {
        self.post(options, |queue_pair, options| {
            queue_pair.compare_swap(buffer, remote, compare, swap, options)
        })
    }

    /// Posts an atomic fetch-and-add, as [`QueuePair::fetch_add`] does.
    ///
    /// # Errors
    /// Those of [`QueuePair::fetch_add`], except `ReadsFull`.
    pub fn fetch_add<B: WorkBuffer>(
        mut self,
        buffer: B,
        remote: &RemoteRegion,
        add: u64,
        options: WorkOptions,
    ) -> Result<Op<B>, PostError<B>> {
        self.post(options, |queue_pair, options| queue_pair.fetch_add(buffer, remote, add, options))
    }

    /// Posts a request, which then has the place. If it is not posted, the permit still has the place.
    pub(crate) fn post<B: WorkBuffer>(
        &mut self,
        options: WorkOptions,
        post: impl FnOnce(&QueuePair, WorkOptions) -> Result<Op<B>, PostError<B>>,
    ) -> Result<Op<B>, PostError<B>> {
        let Some(place) = self.place.take() else { return post(self.queue_pair, options) };
        // Before the post, in which foreign code may panic: the place has one owner.
        let passed = place.pass();
        post(self.queue_pair, options.reserved()).inspect_err(|_| self.place = Some(passed.back()))
    }
}
