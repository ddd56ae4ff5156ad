//! The arithmetic of read limits: how two ends agree on how many RDMA Reads may be in flight.
//!
//! Four steps, one at each end of each message; nothing is ever an error, everything is lowered silently.
//! Every value is in the direction of the end that is named: what one end issues, the other serves.
//!
//! ```text
//!  active                                      passive
//!  offer(asked, caps)      ── request ──▶      as_seen_by_passive(offer, caps)
//!  as_seen_by_active(..)   ◀─── reply ───      accept(asked, caps, offer)
//! ```

use crate::types::ReadLimits;

/// Returns the limits in the request of the active end: the limits that it asks for, lowered to its adapter.
pub(crate) fn offer(asked: ReadLimits, adapter: ReadLimits) -> ReadLimits {
    asked.capped_to(adapter)
}

/// Returns the limits of the request as `GetReadLimits` shows them at the passive end, in that end's direction.
///
/// `offer` is still in the active end's direction, as it travelled.
pub(crate) fn as_seen_by_passive(offer: ReadLimits, adapter: ReadLimits) -> ReadLimits {
    offer.swapped().capped_to(adapter)
}

/// Returns the limits in the reply of the passive end: the limits that it asks for, lowered to its adapter
/// and to the offer.
///
/// This is also what then holds for the passive end, because the active end cannot raise it.
pub(crate) fn accept(asked: ReadLimits, adapter: ReadLimits, offer: ReadLimits) -> ReadLimits {
    asked.capped_to(as_seen_by_passive(offer, adapter))
}

/// Returns the limits of the reply as `GetReadLimits` shows them at the active end, in that end's direction.
///
/// The offer caps once more, because a foreign peer may answer with more than it was offered.
pub(crate) fn as_seen_by_active(offer: ReadLimits, accepted: ReadLimits) -> ReadLimits {
    offer.capped_to(accepted.swapped())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits() -> impl Strategy<Value = ReadLimits> {
        let one = || prop_oneof![Just(0), Just(1), Just(u32::MAX), 0..40_u32, any::<u32>()];
        (one(), one()).prop_map(|(inbound, outbound)| ReadLimits::new(inbound, outbound))
    }

    /// The values that the peer's arithmetic must survive, around an adapter limit of 16.
    const STEPS: [u32; 5] = [0, 1, 16, 17, u32::MAX];

    // Each direction gets the least of the two requests and the two adapters (NEG-01, NEG-02).
    #[test]
    fn every_direction_is_the_least_of_four() {
        let (adapter_a, adapter_p) = (ReadLimits::new(16, 16), ReadLimits::new(16, 4));
        for (in_a, out_a, in_p, out_p) in STEPS.iter().flat_map(|&a| {
            STEPS.iter().flat_map(move |&b| STEPS.iter().flat_map(move |&c| STEPS.map(|d| (a, b, c, d))))
        }) {
            let offer = offer(ReadLimits::new(in_a, out_a), adapter_a);
            let reply = accept(ReadLimits::new(in_p, out_p), adapter_p, offer);
            let active = as_seen_by_active(offer, reply);
            assert_eq!(active.outbound, out_a.min(16).min(in_p).min(16), "A reads from P");
            assert_eq!(active.inbound, in_a.min(16).min(out_p).min(4), "P reads from A");
        }
    }

    // NEG-01: a request shows what the peer would serve and issue, in the reader's own direction.
    #[test]
    fn passive_side_sees_swapped_capped_limits() {
        let offer = ReadLimits::new(3, 7);
        assert_eq!(as_seen_by_passive(offer, ReadLimits::new(16, 16)), ReadLimits::new(7, 3));
        assert_eq!(as_seen_by_passive(offer, ReadLimits::new(5, 2)), ReadLimits::new(5, 2));
        assert_eq!(as_seen_by_passive(ReadLimits::NONE, ReadLimits::new(5, 2)), ReadLimits::NONE);
    }

    proptest! {
        // The limits of one end are those of the other, swapped (NEG-03).
        #[test]
        fn both_ends_agree(asked_a in limits(), adapter_a in limits(), asked_p in limits(), adapter_p in limits()) {
            let offered = offer(asked_a, adapter_a);
            let passive = accept(asked_p, adapter_p, offered);
            let active = as_seen_by_active(offered, passive);
            prop_assert_eq!(active, passive.swapped());
            for (held, bounds) in [(active, [asked_a, adapter_a]), (passive, [asked_p, adapter_p])] {
                for bound in bounds {
                    prop_assert_eq!(held, held.capped_to(bound), "nobody gets more than it asked for");
                }
            }
        }

        // NEG-02: a foreign reply cannot raise what was offered.
        #[test]
        fn a_reply_never_raises_the_offer(offered in limits(), reply in limits()) {
            let active = as_seen_by_active(offered, reply);
            prop_assert_eq!(active, active.capped_to(offered));
        }
    }
}
