//! The table of quirks: what is true of one driver, and of no standard.
//!
//! A driver is known by the vendor that its devices claim. Nothing else in this crate asks for a driver. A card of a vendor
//! that is not in the table behaves as the standards say.

use std::time::Duration;

/// The vendor that devices of `rdma_rxe` claim: none.
const RXE: u32 = 0xff_ff_ff;
/// The vendor that devices of `siw` claim: the letters `bmt`.
const SIW: u32 = 0x62_6d_74;
/// The vendors of the cards of `irdma`, of `bnxt_re` and of `mana`, as PCI numbers them.
const INTEL: u32 = 0x8086;
const BROADCOM: u32 = 0x14e4;
const MICROSOFT: u32 = 0x1414;

/// The deviations of a driver.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quirks {
    /// Its library takes page 144 of the pages that the kernel has given it for none. See
    /// [`Context`](super::Context).
    pub(crate) loses_page_144: bool,
    /// A completion that reports an invalidated key has the kernel's number of that flag, which in user space means
    /// that the checksum of a datagram is good.
    pub(crate) invalidates_by_kernel_flag: bool,
    /// The active side receives the read limits of an accept in the direction of the peer.
    pub(crate) swaps_read_limits: bool,
    /// The passive side serves as many reads as it was offered, whatever the accept says.
    pub(crate) serves_offered_reads: bool,
    /// A peer can read any memory whose key it knows.
    pub(crate) lets_peers_read: bool,
    /// An RDMA Read needs no right to write of its peer to its sink, because the driver checks the rights of the side
    /// that requested the bytes.
    pub(crate) reads_into_any_memory: bool,
    /// A Send with Invalidate invalidates whole regions, and the completion does not report which.
    pub(crate) invalidates_regions: bool,
    /// The key of a window gives access to the whole region.
    pub(crate) ignores_window_bounds: bool,
    /// A request needs an entry, even if it has no bytes. Elsewhere an entry of no bytes can mean 2^31 of them.
    pub(crate) needs_an_entry: bool,
    /// A receive that is too short for its message is reported as malformed.
    pub(crate) misnames_short_receives: bool,
    /// The deregistration of a region with a window fails with the error of an invalid call, not of a busy region.
    pub(crate) misnames_busy_regions: bool,
    /// A completion queue that is armed for solicited events alone raises none for a Send or a Write that has failed. With `siw` it
    /// raises none for any receive either, and such an arm takes back one for all events.
    pub(crate) solicits_no_failures: bool,
    /// The device does not report when a queue pair has taken its last receive of a shared queue. The completions of a
    /// queue pair outlive it. Libraries of cards throw them away.
    pub(crate) hides_last_receive: bool,
    /// A queue pair over iWARP that goes to the error state closes its TCP connection in order. Cards reset it.
    pub(crate) errors_close_in_order: bool,
    /// Between its reply to a connect and the end of the call that accepts it does not see what the peer sends, until that sends more.
    pub(crate) misses_early_frames: bool,
    /// A part of a peer's write that is being placed when its region is deregistered is placed on after that call has returned.
    pub(crate) places_late: bool,
    /// The end of a queue pair is work for the processor of the caller, and waits for no firmware. By measurement it costs more on
    /// other threads: they have to be woken, and the kernel, which takes the queues out of the address space, interrupts every
    /// processor that runs a thread of the process.
    pub(crate) ends_on_the_processor: bool,
    /// Its queues are memory of the kernel, and the reported depths can be had with any number of entries and inline bytes. A
    /// queue of such a depth takes megabytes, so it is not asked for.
    pub(crate) fits_any_depth: bool,
    /// Requests have no inline bytes. The kernel says so only in newer versions, and the library ignores the flag of a request and
    /// has the device come for the bytes.
    pub(crate) ignores_inline: bool,
    /// The device itself writes what a receive gets, in every case. The completions of other cards (mlx5, hns) have the bytes of a
    /// short message in them, and the library copies these to the address of the receive when it is polled. That address need not
    /// be one of this process where memory is of another device.
    pub(crate) receives_in_place: bool,
    /// The driver copies with the processor, so there is no order of a bus to relax. Some versions of `rxe` refuse that flag.
    pub(crate) copies_in_order: bool,
    /// The time by which a completion queue has to outlive its last queue pair. Before Linux 6.5 `rxe` notifies of a
    /// completion by a tasklet, for which it does not wait when it frees the queue: one that was still to run then, as
    /// it is when the processor is busy, brings the kernel down. Nothing says when it has run, so this is far longer
    /// than that takes.
    pub(crate) completions_linger: Option<Duration>,
    /// The bytes that the driver itself has in the private data of a connection.
    pub(crate) occupied_data: usize,
    /// The time that a connect over iWARP waits for the reply of its peer, if it is not that of cards.
    pub(crate) iwarp_answer: Option<Duration>,
}

impl Quirks {
    /// Returns the quirks of devices of this vendor.
    pub(crate) fn of(vendor: u32) -> Self {
        match vendor {
            RXE => Self {
                invalidates_by_kernel_flag: true,
                ignores_window_bounds: true,
                misnames_short_receives: true,
                misnames_busy_regions: true,
                solicits_no_failures: true,
                ends_on_the_processor: true,
                fits_any_depth: true,
                receives_in_place: true,
                copies_in_order: true,
                // From Linux 6.5 on it reports the last receive.
                hides_last_receive: true,
                completions_linger: Some(Duration::from_secs(1)),
                ..Self::default()
            },
            SIW => Self {
                loses_page_144: true,
                swaps_read_limits: true,
                serves_offered_reads: true,
                lets_peers_read: true,
                reads_into_any_memory: true,
                invalidates_regions: true,
                needs_an_entry: true,
                solicits_no_failures: true,
                hides_last_receive: true,
                errors_close_in_order: true,
                misses_early_frames: true,
                places_late: true,
                fits_any_depth: true,
                receives_in_place: true,
                copies_in_order: true,
                // They carry the read limits.
                occupied_data: 4,
                iwarp_answer: Some(Duration::from_secs(10)),
                ..Self::default()
            },
            // The libraries of both read a completion and nothing else when they are polled.
            INTEL | BROADCOM => Self { receives_in_place: true, ..Self::default() },
            MICROSOFT => Self { ignores_inline: true, receives_in_place: true, ..Self::default() },
            _ => Self::default(),
        }
    }
}
