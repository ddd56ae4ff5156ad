//! The properties, limits and abilities of a device: those that it reports, and the limits of queues that it reports for shorter
//! requests than ours, or does not report. These are found by asking.
//!
//! The work queues of some cards have a number of bytes (mlx5), and a request with more entries or inline bytes is longer. The
//! depth that such a card reports is that of its shortest requests, and a queue pair of it is refused with `EINVAL` or `ENOMEM`.
//! So an adapter asks, when it is opened, for queues with the usual entries and inline bytes. A queue of longer requests that is
//! refused is asked for again with fewer of them, and the error says how many there can be.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::context::{AdapterContext, Opened, failed};
use super::devices::{Device, without_scope};
use crate::error::OpenError;
use crate::provider::info::{AdapterInfo, ProviderKind, USUAL_ENTRIES, USUAL_INLINE};
use crate::sys::{
    self, Capacities, CompletionChannel, CompletionQueue, DeviceAttributes, ProtectionDomain,
    SharedReceiveQueue,
};
use crate::types::ReadLimits;

/// The private data that fits behind the header of rdma_cm in two messages of InfiniBand's connection manager.
const IB_REQUEST_DATA: usize = 56;
const IB_REPLY_DATA: usize = 196;
/// The private data of a reject of InfiniBand's connection manager through rdma_cm.
pub(super) const IB_REJECT_DATA: usize = 148;
/// The most bytes of private data that an application may send with a reject. The last byte marks a reject for now.
pub(super) const MAX_REJECT_DATA: usize = IB_REJECT_DATA - 1;
/// The time that a connect waits for an answer over InfiniBand and RoCE, if its caller does not say. The connection manager gives
/// up a host that does not answer a little later: it repeats its request 15 times, 4.3 s apart.
const IB_ANSWER: Duration = Duration::from_secs(60);
/// The private data of a connection over iWARP, whose length has a byte in the interface of the connection manager.
const IWARP_DATA: usize = 255;
/// The time that a connect over iWARP waits for an answer: `iw_cxgb4` does so, and `irdma` repeats its request for less.
const IWARP_ANSWER: Duration = Duration::from_secs(60);
/// The most that a message of any device can carry in our API, whose lengths have 32 bits.
const MAX_TRANSFER: usize = 1 << 30;
/// Limits in a connection request have 8 bits.
const MAX_READS: u32 = 255;

/// Returns the properties, limits and abilities of an adapter of this device. `max_message` is 0 if it is not known.
pub(super) fn info_of(
    device: &Device,
    attributes: &DeviceAttributes,
    iwarp: bool,
    max_message: u32,
    limits: Limits,
) -> AdapterInfo {
    let quirks = attributes.quirks;
    let iwarp_data = IWARP_DATA.saturating_sub(quirks.occupied_data);
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
        firmware: attributes.firmware.clone(),
        node_guid: attributes.node_guid,
        ports: attributes.ports,
        addresses: without_scope(&device.addresses),
        max_read_limits: ReadLimits::new(
            attributes.max_qp_rd_atom.min(MAX_READS),
            attributes.max_qp_init_rd_atom.min(MAX_READS),
        ),
        max_request_data: if iwarp { iwarp_data } else { IB_REQUEST_DATA },
        max_reply_data: if iwarp { iwarp_data } else { IB_REPLY_DATA },
        max_reject_data: if iwarp { iwarp_data } else { MAX_REJECT_DATA },
        // None if the connection is established by then.
        max_active_reject_data: if iwarp { 0 } else { IB_REJECT_DATA },
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
        answer_timeout: Some(if iwarp { quirks.iwarp_answer.unwrap_or(IWARP_ANSWER) } else { IB_ANSWER }),
        max_inline: size(limits.inline),
        max_completion_depth: 1 << 20,
        max_shared_depth: size(limits.shared_depth),
        memory_windows: windows,
        atomics: attributes.atomics,
        global_atomics: attributes.global_atomics,
        invalidates: windows && !quirks.invalidates_regions,
        immediate: !iwarp,
        immediate_send: !iwarp,
        solicited_events: !quirks.solicits_no_failures,
        checks_window_bounds: !quirks.ignores_window_bounds,
        // There is no way to say over iWARP that a receiver is not ready.
        waits_for_shared_receives: !iwarp,
    }
}

/// The sizes that a device is asked for inline.
const INLINE: [u32; 5] = [512, 256, 128, 64, 32];
/// The number of queues that are asked for when an adapter is opened, and for the text of an error. Each that can be had
/// is a command of the card, and memory that is allocated and freed again.
const TRIES_AT_OPEN: u32 = 6;
const TRIES_AT_ERROR: u32 = 16;

/// The limits of the queues of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The requests of each queue of a queue pair, with the usual entries and inline bytes.
    pub(super) depth: u32,
    /// The receives of a shared queue, with the usual entries. 0 without shared queues.
    pub(super) shared_depth: u32,
    /// The inline bytes of a request.
    pub(super) inline: u32,
}

impl Limits {
    /// Finds the limits of this device, by asking for queues. If the objects to ask with cannot be made, returns the
    /// reported limits.
    pub(super) fn of(
        channel: &Arc<CompletionChannel>,
        domain: &Arc<ProtectionDomain>,
        attributes: &DeviceAttributes,
    ) -> Self {
        // A queue pair has one completion queue for both its queues. All receives of a shared queue may complete on one queue
        // pair, beside the requests of its send queue.
        let completions = attributes.max_cqe / 2;
        let depth = attributes.max_qp_wr.min(completions);
        let shared_depth = if attributes.max_srq > 0 { attributes.max_srq_wr.min(completions) } else { 0 };
        let reported = Self { depth, shared_depth, inline: 0 };
        let Ok(asking) = Asking::new(channel, domain) else { return reported };
        let inline = if attributes.quirks.ignores_inline { 0 } else { asking.inline(attributes.max_sge) };
        if attributes.quirks.fits_any_depth {
            return Self { inline, ..reported };
        }
        let usual = usual(attributes.max_sge, inline);
        let both = |depth| asking.queue_pair(Capacities { send: depth, receive: depth, ..usual });
        let shared = |depth| asking.shared(depth, usual.receive_entries);
        Self {
            depth: deepest(depth, TRIES_AT_OPEN, both).unwrap_or(depth),
            shared_depth: deepest(shared_depth, TRIES_AT_OPEN, shared).unwrap_or(shared_depth),
            inline,
        }
    }
}

/// Returns the capacities of a queue pair whose user has set none, for a device with these limits. Each queue has one
/// request.
fn usual(max_entries: u32, max_inline: u32) -> Capacities {
    let small = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let (entries, inline) = (small(USUAL_ENTRIES).min(max_entries), small(USUAL_INLINE).min(max_inline));
    Capacities { send: 1, receive: 1, send_entries: entries, receive_entries: entries, inline }
}

/// Returns the greatest depth found that a queue can have: `most`, or after so many tries at least a quarter of the greatest
/// that there is. `None` if the device refuses for another reason.
fn deepest<T>(most: u32, tries: u32, ask: impl Fn(u32) -> io::Result<T>) -> Option<u32> {
    let (mut fits, mut refused) = (0, most.saturating_add(1));
    let mut depth = most;
    for _ in 0..tries {
        if depth <= fits {
            break;
        }
        match ask(depth) {
            Ok(_) => fits = depth,
            Err(error) if is_limit(&error) => refused = depth,
            Err(_) => return None,
        }
        depth = if fits == 0 { refused / 4 } else { fits.midpoint(refused) };
    }
    (fits > 0).then_some(fits)
}

/// Returns whether this is an error of queues that would be too long.
fn is_limit(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOMEM))
}

/// The objects with which a device is asked for queues, each of which is destroyed again.
struct Asking<'a> {
    domain: &'a Arc<ProtectionDomain>,
    completions: Arc<CompletionQueue>,
}

impl<'a> Asking<'a> {
    /// Makes the completion queue that a device is asked with.
    fn new(channel: &Arc<CompletionChannel>, domain: &'a Arc<ProtectionDomain>) -> io::Result<Self> {
        Ok(Self { domain, completions: CompletionQueue::new(channel, 2, 0, 0)? })
    }

    fn queue_pair(&self, capacities: Capacities) -> io::Result<sys::QueuePair> {
        sys::QueuePair::new(self.domain, &self.completions, &self.completions, None, capacities)
    }

    fn shared(&self, depth: u32, entries: u32) -> io::Result<Arc<SharedReceiveQueue>> {
        SharedReceiveQueue::new(self.domain, depth, entries, 0)
    }

    /// Returns the number of bytes that a request can have inline. The device does not report it, so it is
    /// asked for less and less. What the queue pair has counts, which with some drivers (hns) is less than was asked for.
    fn inline(&self, max_entries: u32) -> u32 {
        // With as many entries as are usual, which share the room with the bytes.
        let room = |inline| Capacities { receive_entries: 1, ..usual(max_entries, inline) };
        let made = INLINE.into_iter().find_map(|inline| {
            let queue_pair = self.queue_pair(Capacities { inline, ..room(inline) }).ok()?;
            Some(queue_pair.inline)
        });
        made.unwrap_or(0)
    }
}

/// A queue pair of the device has fewer inline bytes than it was asked for. ibv_create_qp(3) promises as many, so the driver has
/// no error for it.
#[derive(Debug, thiserror::Error)]
#[error(
    "inline is {asked}, not between 0 and {given}, which is the most that the device gives this queue pair"
)]
struct LessInline {
    asked: u32,
    given: u32,
}

/// Checks that a queue pair has as many inline bytes as it was asked for. Requests that are not longer are given to it inline, and
/// the driver would refuse them.
///
/// # Errors
/// One from which [`queue_pair_refused`] makes `InvalidParameter`.
pub(super) fn check_inline(given: u32, asked: u32) -> io::Result<()> {
    if given < asked { Err(io::Error::other(LessInline { asked, given })) } else { Ok(()) }
}

/// Returns the error of a queue pair that the device has refused, whose user may have `send_depth` requests in its send queue.
///
/// The depth is at fault if a queue pair with the usual entries and inline bytes can be had, and this one with fewer requests.
pub(super) fn queue_pair_refused(
    adapter: &AdapterContext,
    (capacities, send_depth, shared): (Capacities, u32, bool),
    source: io::Error,
) -> OpenError {
    if let Some(less) = source.get_ref().and_then(|source| source.downcast_ref::<LessInline>()) {
        return OpenError::InvalidParameter {
            argument: if shared { 8 } else { 9 },
            what: less.to_string().into(),
        };
    }
    let opened = adapter.opened();
    let found = opened.filter(|_| is_limit(&source)).and_then(|opened| {
        let usual = usual(capacities.send_entries, capacities.inline);
        let receive_entries = if shared { 0 } else { capacities.receive_entries };
        let long = capacities.send_entries > usual.send_entries
            || receive_entries > usual.receive_entries
            || capacities.inline > usual.inline;
        let most = u32::try_from(adapter.info().max_queue_depth).unwrap_or(u32::MAX);
        let asking = asking(&opened).filter(|_| long)?;
        // Otherwise there is no room left, and this is no matter of the depth.
        asking.queue_pair(Capacities { send: most, receive: most, ..usual }).ok()?;
        let own = Capacities { send: 1, receive: 1, ..capacities };
        let sends = |send| asking.queue_pair(Capacities { send, ..own });
        let receives = |receive| asking.queue_pair(Capacities { receive, ..own });
        let spare = capacities.send.saturating_sub(send_depth);
        let (entries, inline) = (capacities.send_entries, capacities.inline);
        match deepest(capacities.send, TRIES_AT_ERROR, sends)? {
            found if found < capacities.send => {
                let of = format!("{entries} send_entries and {inline} bytes inline");
                Some(too_deep((6, "send_depth"), send_depth, found.saturating_sub(spare), &of))
            }
            _ if shared => None,
            _ => {
                let found = deepest(capacities.receive, TRIES_AT_ERROR, receives)?;
                let of = format!("{receive_entries} receive_entries");
                (found < capacities.receive)
                    .then(|| too_deep((5, "receive_depth"), capacities.receive, found, &of))
            }
        }
    });
    found.unwrap_or_else(|| failed("ibv_create_qp")(source))
}

/// Returns the error of a shared receive queue that the device has refused.
pub(super) fn shared_queue_refused(
    adapter: &AdapterContext,
    (depth, entries): (u32, u32),
    source: io::Error,
) -> OpenError {
    let opened = adapter.opened();
    let found = opened.filter(|_| is_limit(&source)).and_then(|opened| {
        let usual = usual(entries, 0).receive_entries;
        let most = u32::try_from(adapter.info().max_shared_depth).unwrap_or(u32::MAX);
        let asking = asking(&opened).filter(|_| entries > usual)?;
        asking.shared(most, usual).ok()?;
        let found = deepest(depth, TRIES_AT_ERROR, |depth| asking.shared(depth, entries))?;
        (found < depth).then(|| too_deep((3, "depth"), depth, found, &format!("{entries} entries")))
    });
    found.unwrap_or_else(|| failed("ibv_create_srq")(source))
}

fn asking(opened: &Opened) -> Option<Asking<'_>> {
    Asking::new(&opened.channel, &opened.domain).ok()
}

/// Returns the error of a depth that is too great for requests of this size.
fn too_deep((argument, name): (u8, &str), depth: u32, most: u32, of: &str) -> OpenError {
    let what = format!("{name} is {depth}, not between 1 and {most}, which is the most with {of}").into();
    OpenError::InvalidParameter { argument, what }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Asks for up to `most` of a device that gives up to `limit`. Returns what was found, and the number of calls.
    fn ask(most: u32, limit: u32, tries: u32, error: i32) -> (Option<u32>, u32) {
        let calls = Cell::new(0);
        let found = deepest(most, tries, |depth| {
            calls.set(calls.get() + 1);
            if depth <= limit { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
        });
        (found, calls.get())
    }

    // HW-14: never more than there is, and never much less.
    #[test]
    fn the_depth_that_is_found_can_be_had() {
        assert_eq!(ask(32_768, 32_768, TRIES_AT_OPEN, libc::EINVAL), (Some(32_768), 1));
        assert_eq!(ask(32_768, 10_922, TRIES_AT_OPEN, libc::EINVAL), (Some(9728), 6));
        assert_eq!(ask(32_768, 10_922, TRIES_AT_ERROR, libc::ENOMEM).0, Some(10_922));
        assert_eq!(ask(16, 1, TRIES_AT_ERROR, libc::ENOMEM).0, Some(1));
        for limit in 32..=32_768 {
            let (found, calls) = ask(32_768, limit, TRIES_AT_OPEN, libc::EINVAL);
            let found = found.expect("it is not too little to be found");
            assert!(found <= limit && found > limit / 4, "{found} of {limit}");
            assert!(calls <= TRIES_AT_OPEN, "{calls} calls");
        }
    }

    // HW-14: a device that is gone, or that refuses every queue, has no limit that could be found.
    #[test]
    fn another_error_is_no_limit() {
        assert_eq!(ask(32_768, 0, TRIES_AT_OPEN, libc::EIO), (None, 1));
        assert_eq!(ask(32_768, 0, TRIES_AT_OPEN, libc::ENOMEM), (None, 6));
        assert_eq!(ask(0, 0, TRIES_AT_OPEN, libc::EINVAL), (None, 0));
    }
}
