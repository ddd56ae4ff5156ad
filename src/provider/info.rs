//! What an adapter is and can do. Each provider fills it in once, when the adapter is opened.

use std::net::IpAddr;
use std::time::Duration;

use crate::types::{AdapterId, ReadLimits};

/// Which driver serves an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProviderKind {
    /// User-space iWARP over TCP.
    Soft,
    /// Devices, through librdmacm and libibverbs.
    Verbs,
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
    /// Whether a region without [`REMOTE_READ`](crate::types::Access::REMOTE_READ) is safe from being read by a peer. Where it is false
    /// (`siw`), every region and buffer can be read by whoever guesses its key.
    pub checks_remote_read: bool,
    /// Whether only memory with [`READ_SINK`](crate::types::Access::READ_SINK) can be the sink of an RDMA Read (the opposite of
    /// `ND_ADAPTER_FLAG_RDMA_READ_SINK_NOT_REQUIRED`). Where it is true (cards that speak iWARP) a read into anything
    /// else is refused with `ACCESS_VIOLATION`, and so is one into a [`Buffer`](crate::mr::Buffer), which no peer may ever reach.
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

impl AdapterInfo {
    /// The version with the fields above.
    pub(crate) const VERSION: u32 = 1;
}
