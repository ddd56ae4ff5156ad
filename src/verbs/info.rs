//! The properties, limits and abilities of an adapter, by the attributes of its device.

use std::time::Duration;

use super::devices::{Device, without_scope};
use super::for_now;
use super::limits::Limits;
use crate::provider::info::{AdapterInfo, ProviderKind};
use crate::sys::DeviceAttributes;
use crate::types::ReadLimits;

/// The private data that fits behind the header of rdma_cm in two messages of InfiniBand's connection manager.
const IB_REQUEST_DATA: usize = 56;
const IB_REPLY_DATA: usize = 196;
/// The time that a connect waits for an answer over InfiniBand and RoCE, if its caller does not say. The connection manager gives
/// up a host that does not answer a little later: it repeats its request 15 times, 4.3 s apart.
const IB_ANSWER: Duration = Duration::from_secs(60);
/// The most that a message of any device can carry in our API, whose lengths have 32 bits.
const MAX_TRANSFER: usize = 1 << 30;
/// Limits in a connection request have 8 bits.
const MAX_READS: u32 = 255;

/// Returns the properties, limits and abilities of an adapter of this device. `max_message` is 0 if it is not known.
pub(crate) fn of(
    device: &Device,
    attributes: &DeviceAttributes,
    iwarp: bool,
    max_message: u32,
    limits: Limits,
) -> AdapterInfo {
    let quirks = attributes.quirks;
    // Keys can be given by requests, and taken back.
    let windows = attributes.windows && attributes.invalidates;
    let size = |limit: u32| usize::try_from(limit).unwrap_or(usize::MAX);
    // One place is left for the request that asks an idle peer for a sign of life.
    let depth = limits.depth.saturating_sub(1);
    AdapterInfo {
        version: AdapterInfo::VERSION,
        provider: ProviderKind::Verbs,
        id: device.id,
        name: device.name.clone(),
        vendor_id: attributes.vendor_id,
        device_id: attributes.vendor_part_id,
        addresses: without_scope(&device.addresses),
        max_read_limits: ReadLimits::new(
            attributes.max_qp_rd_atom.min(MAX_READS),
            attributes.max_qp_init_rd_atom.min(MAX_READS),
        ),
        max_request_data: if iwarp { quirks.iwarp_data } else { IB_REQUEST_DATA },
        max_reply_data: if iwarp { quirks.iwarp_data } else { IB_REPLY_DATA },
        max_reject_data: if iwarp { quirks.iwarp_data } else { for_now::MAX_REJECT_DATA },
        // None if the connection is established by then.
        max_active_reject_data: if iwarp { 0 } else { for_now::REJECT_DATA },
        max_transfer: usize::try_from(max_message).unwrap_or(MAX_TRANSFER).min(MAX_TRANSFER),
        max_registration: usize::try_from(attributes.max_mr_size)
            .unwrap_or(usize::MAX)
            .min(isize::MAX as usize),
        max_queue_depth: size(depth),
        max_entries: size(attributes.max_sge),
        max_read_entries: size(attributes.max_sge_rd),
        iwarp,
        three_phase: !iwarp,
        exact_private_data: iwarp,
        loopback: true,
        in_order_dma: false,
        early_completion: iwarp,
        passive_sends_first: !iwarp,
        per_request_errors: !iwarp,
        accept_limits_reads: !quirks.serves_offered_reads,
        // The kernel has no event for it before the request is answered.
        detects_withdrawal: false,
        checks_remote_read: !quirks.lets_peers_read,
        // iWARP writes the answer to a read like the peer's writes, which the memory must permit, because a read names
        // its sink to the peer.
        read_sink_required: iwarp && !quirks.reads_into_any_memory,
        answer_timeout: Some(if iwarp { quirks.iwarp_answer } else { IB_ANSWER }),
        max_inline: size(limits.inline),
        max_completion_depth: 1 << 20,
        max_shared_depth: size(limits.shared_depth),
        memory_windows: windows,
        atomics: attributes.atomics,
        global_atomics: attributes.global_atomics,
        invalidates: windows && !quirks.invalidates_regions,
        immediate: !iwarp,
        immediate_send: !iwarp,
        // A completion does not say so, only the kind of interrupt does.
        solicited_events: false,
        checks_window_bounds: !quirks.ignores_window_bounds,
        // There is no way to say over iWARP that a receiver is not ready.
        waits_for_shared_receives: !iwarp,
    }
}
