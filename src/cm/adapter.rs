//! An opened adapter, from which everything else is created.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::connector::Connector;
use super::listener::Listener;
use super::provider::Provider;
use crate::error::{OpenError, RegisterError};
use crate::mr::{Buffer, DmaBufRegion, MemoryWindow, Pool, PoolConfig, Region};
use crate::provider::{self, ProviderKind};
use crate::qp::{
    CompletionQueue, CompletionQueueConfig, QueuePair, QueuePairConfig, SharedReceiveConfig,
    SharedReceiveQueue,
};
use crate::types::{Access, AdapterId, ReadLimits};

/// An opened adapter (IND2Adapter), and the protection domain of all that is created from it.
///
/// Handles are counted: what was created from an adapter keeps it open.
#[derive(Clone)]
pub struct Adapter {
    provider: provider::Adapter,
}

/// What an adapter is and can do. Source: `ND2_ADAPTER_INFO`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AdapterInfo {
    /// The version of this structure: fields are only ever added.
    pub version: u32,
    /// The provider that serves it.
    pub provider: ProviderKind,
    /// Its id.
    pub id: AdapterId,
    /// The name that the system gives it.
    pub name: String,
    /// The addresses that it had when it was opened.
    pub addresses: Vec<IpAddr>,
    /// The most reads in flight per connection, each way; more is silently capped.
    pub max_read_limits: ReadLimits,
    /// The most private data with a connection request (MaxCallerData), in bytes.
    pub max_request_data: usize,
    /// The most private data with an accept or a reject (MaxCalleeData), in bytes.
    pub max_reply_data: usize,
    /// The most private data in a reject by the passive side.
    pub max_reject_data: usize,
    /// The most private data with the reject of the active side, in bytes: 0 where the wire has no place for it.
    pub max_active_reject_data: usize,
    /// The most bytes of one request.
    pub max_transfer: usize,
    /// The most bytes of one region.
    pub max_registration: usize,
    /// The most requests in a queue.
    pub max_queue_depth: usize,
    /// The most scatter-gather entries of a request.
    pub max_entries: usize,
    /// The most scatter-gather entries of a read (MaxReadSge); of these `siw` has one.
    pub max_read_entries: usize,
    /// Whether connections are those of iWARP, over TCP, and not InfiniBand's or RoCE's.
    pub iwarp: bool,
    /// Whether Connect, Accept and CompleteConnect are three steps on the wire: an accept then waits for the peer's
    /// `complete()`.
    pub three_phase: bool,
    /// Whether private data arrives in exactly the length that was sent.
    pub exact_private_data: bool,
    /// Whether the adapter connects to itself (`ND_ADAPTER_FLAG_LOOPBACK_CONNECTIONS`).
    pub loopback: bool,
    /// Whether the bytes of a message are placed in order (`ND_ADAPTER_FLAG_IN_ORDER_DMA_SUPPORTED`).
    pub in_order_dma: bool,
    /// Whether a send or write may complete before the peer has found it acceptable: a violation then shows as a lost
    /// connection, not as the completion of the request.
    pub early_completion: bool,
    /// Whether the passive side may be the first to send. Where it is false (iWARP drivers), the peer may drop the
    /// connection when a message overtakes its own view of the handshake: let the active side speak first.
    pub passive_sends_first: bool,
    /// Whether a request in which the peer finds a violation fails with a status of its own and only the others finish
    /// `CANCELED`. Where it is false (iWARP drivers), all of them finish `CANCELED`.
    pub per_request_errors: bool,
    /// Whether the passive side may agree to serve fewer reads than the active side offers to issue. Where it is false
    /// (`siw`) it serves what was offered, up to the adapter's limit.
    pub accept_limits_reads: bool,
    /// Whether a request that its peer has withdrawn is known to be void before it is answered. Where it is false
    /// (devices) an accept finds out, and a reject does not.
    pub detects_withdrawal: bool,
    /// Whether a region without [`REMOTE_READ`](Access::REMOTE_READ) is safe from being read by a peer. Where it is false
    /// (`siw`), every region and buffer can be read by whoever guesses its key.
    pub checks_remote_read: bool,
    /// Whether only memory with [`READ_SINK`](Access::READ_SINK) can be the sink of an RDMA Read (the opposite of
    /// `ND_ADAPTER_FLAG_RDMA_READ_SINK_NOT_REQUIRED`). Where it is true (cards that speak iWARP) a read into anything
    /// else is refused with `ACCESS_VIOLATION`, and so is one into a [`Buffer`], which no peer may ever reach.
    pub read_sink_required: bool,
    /// How long the peer may think before it accepts: then the connect ends `IO_TIMEOUT`, whatever the caller's own
    /// timeout. `None`: as long as it likes.
    pub answer_timeout: Option<Duration>,
    /// The most bytes of an inline request (`InlineRequestThreshold`).
    pub max_inline: usize,
    /// The most results of a completion queue (`MaxCompletionQueueDepth`).
    pub max_completion_depth: usize,
    /// The most receives of a shared receive queue (`MaxSharedReceiveQueueDepth`); 0 where there are none.
    pub max_shared_depth: usize,
    /// Whether there are memory windows.
    pub memory_windows: bool,
    /// Whether there are atomics.
    pub atomics: bool,
    /// Whether a send can invalidate a window of the peer's.
    pub invalidates: bool,
    /// Whether a message with a solicited event can be told from one without. Where it cannot (devices, whose completions
    /// do not say), every message counts as solicited: such a notification is met too often, and never too late.
    pub solicited_events: bool,
    /// Whether the key of a memory window reaches no further than what the window was bound to. `rxe` lets it reach all of
    /// the region, with the rights of the window.
    pub checks_window_bounds: bool,
    /// Whether a message that finds a shared receive queue empty waits for a receive. Over the iWARP of devices it ends its
    /// connection.
    pub waits_for_shared_receives: bool,
    /// Whether a write can carry immediate data.
    pub immediate: bool,
    /// Whether a send can.
    pub immediate_send: bool,
}

impl Adapter {
    pub(crate) fn new(provider: provider::Adapter) -> Self {
        Self { provider }
    }

    /// Opens the adapter that has this local address, whichever provider it belongs to.
    ///
    /// # Errors
    /// `InvalidAddress` when it is nobody's here; see [`Provider::open`].
    pub fn open(address: IpAddr) -> Result<Self, OpenError> {
        let mut last = OpenError::Unsupported("no provider is compiled in");
        for provider in Provider::all() {
            match provider.resolve(address) {
                Ok(id) => return provider.open(id),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// What it is and can do. Source: `IND2Adapter::Query`.
    pub fn info(&self) -> AdapterInfo {
        let known = self.provider.capabilities();
        AdapterInfo {
            version: 1,
            provider: known.kind,
            id: known.id,
            name: known.name,
            addresses: known.addresses,
            max_read_limits: known.read_limits,
            max_request_data: known.request_data,
            max_reply_data: known.reply_data,
            max_reject_data: known.reject_data,
            max_active_reject_data: known.active_reject_data,
            max_transfer: known.transfer,
            max_registration: known.registration,
            max_queue_depth: known.depth,
            max_entries: known.entries,
            max_read_entries: known.read_entries,
            iwarp: known.iwarp,
            three_phase: known.three_phase,
            exact_private_data: known.exact_private_data,
            loopback: known.loopback,
            in_order_dma: known.in_order,
            early_completion: known.early_completion,
            passive_sends_first: known.passive_sends_first,
            per_request_errors: known.per_request_errors,
            accept_limits_reads: known.accept_limits_reads,
            detects_withdrawal: known.detects_withdrawal,
            checks_remote_read: known.checks_remote_read,
            read_sink_required: known.read_sink,
            answer_timeout: known.answer_timeout,
            max_inline: known.inline,
            max_completion_depth: known.completions,
            max_shared_depth: known.shared_depth,
            memory_windows: known.windows,
            atomics: known.atomics,
            invalidates: known.invalidates,
            solicited_events: known.solicited_events,
            checks_window_bounds: known.checks_window_bounds,
            waits_for_shared_receives: known.waits_for_shared_receives,
            immediate: known.immediate.0,
            immediate_send: known.immediate.1,
        }
    }

    /// Whether it has been removed: the last of its addresses is gone, and everything on it has ended with
    /// `DEVICE_REMOVED`.
    pub fn is_removed(&self) -> bool {
        self.provider.is_removed()
    }

    /// A connector. Source: `IND2Adapter::CreateConnector`.
    pub fn connector(&self) -> Connector {
        Connector::new(self.provider.connector())
    }

    /// A listener. Source: `IND2Adapter::CreateListener`.
    pub fn listener(&self) -> Listener {
        Listener::new(self.provider.listener())
    }

    /// A queue pair. Source: `IND2Adapter::CreateQueuePair`.
    ///
    /// # Errors
    /// `InvalidParameter` with the number of the argument; `DeviceRemoved`.
    pub fn queue_pair(&self, config: QueuePairConfig) -> Result<QueuePair, OpenError> {
        if self.is_removed() {
            return Err(OpenError::DeviceRemoved);
        }
        config.check(&self.provider.capabilities(), self.provider.domain())?;
        QueuePair::new(&self.provider, config)
    }

    /// A completion queue that is polled by hand. Source: `IND2Adapter::CreateCompletionQueue`.
    ///
    /// # Errors
    /// `InvalidParameter` with the number of the argument; `DeviceRemoved`.
    pub fn completion_queue(&self, config: CompletionQueueConfig) -> Result<CompletionQueue, OpenError> {
        if self.is_removed() {
            return Err(OpenError::DeviceRemoved);
        }
        CompletionQueue::new(&self.provider, config)
    }

    /// A receive queue for several queue pairs. Source: `IND2Adapter::CreateSharedReceiveQueue`.
    ///
    /// # Errors
    /// `InvalidParameter` with the number of the argument; `Unsupported`; `DeviceRemoved`; with a device also `Os`.
    pub fn shared_receive_queue(&self, config: SharedReceiveConfig) -> Result<SharedReceiveQueue, OpenError> {
        if self.is_removed() {
            return Err(OpenError::DeviceRemoved);
        }
        SharedReceiveQueue::new(&self.provider, config)
    }

    /// A memory window that is not bound yet. Source: `IND2Adapter::CreateMemoryWindow`.
    ///
    /// # Errors
    /// `NotSupported` where [`AdapterInfo::memory_windows`] is false; `DeviceRemoved`; with a device also `Os`.
    pub fn memory_window(&self) -> Result<MemoryWindow, RegisterError> {
        if self.is_removed() {
            return Err(RegisterError::DeviceRemoved);
        }
        MemoryWindow::new(&self.provider)
    }

    /// A buffer of `length` zeroes.
    ///
    /// # Errors
    /// `InsufficientResources` when there is not enough memory; with a device also `MemoryLockLimit`, `DeviceRemoved` and
    /// `Os`.
    pub fn buffer(&self, length: usize) -> Result<Buffer, RegisterError> {
        Buffer::zeroed(&self.provider, length)
    }

    /// A buffer with a copy of `bytes`.
    ///
    /// # Errors
    /// `InsufficientResources` when there is not enough memory; with a device also `MemoryLockLimit`, `DeviceRemoved` and
    /// `Os`.
    pub fn buffer_from(&self, bytes: &[u8]) -> Result<Buffer, RegisterError> {
        let mut buffer = self.buffer(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Ok(buffer)
    }

    /// Registers `length` zeroes, with the rights of `access`. Source: `IND2MemoryRegion::Register`.
    ///
    /// # Errors
    /// `Empty`, `TooLarge`, `InsufficientResources`, `DeviceRemoved`; with a device also `MemoryLockLimit` when this
    /// process may not lock that much memory, and `Os`.
    ///
    /// # Cancel safety
    /// Dropping the future registers nothing.
    pub async fn register(&self, length: usize, access: Access) -> Result<Region, RegisterError> {
        Region::register(&self.provider, length, access).await
    }

    /// Registers memory of another device, which `dmabuf` stands for: `length` bytes from `offset` on. Requests and peers
    /// find its first byte at `address`, which must lie as far into a page as `offset` does. The descriptor may be closed
    /// afterwards.
    ///
    /// # Errors
    /// `NotSupported` by the soft provider, and by a device, a kernel or a library that does not know how: `rxe`, `siw`,
    /// rdma-core before 34. `Empty`, `TooLarge`, `InsufficientResources`, `DeviceRemoved` and `Os`.
    ///
    /// # Cancel safety
    /// Dropping the future registers nothing.
    pub async fn register_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        address: u64,
        access: Access,
    ) -> Result<DmaBufRegion, RegisterError> {
        DmaBufRegion::register(&self.provider, dmabuf, (offset, length, address), access).await
    }

    /// A pool of buffers, which makes them when they are first needed.
    ///
    /// # Errors
    /// `Empty` for buffers of no bytes, or no buffers; `TooLarge`; `DeviceRemoved`.
    pub fn pool(&self, config: PoolConfig) -> Result<Pool, RegisterError> {
        Pool::new(&self.provider, config)
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.provider.capabilities();
        f.debug_struct("Adapter").field("provider", &known.kind).field("name", &known.name).finish()
    }
}
