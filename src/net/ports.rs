//! The choice of the local port to try next.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The ports to choose from when the caller gives port 0, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// The ports that the IANA set aside for this (RFC 6335 section 6), which `IND2Connector::Bind` names.
    pub(crate) const EPHEMERAL: Self = Self { first: 49152, last: 65535 };

    /// Creates the range from `first` to `last`; `None` if that is empty or contains port 0.
    #[cfg(feature = "soft")]
    pub(crate) const fn new(first: u16, last: u16) -> Option<Self> {
        if first == 0 || first > last { None } else { Some(Self { first, last }) }
    }

    /// Returns whether the port is one of the range.
    #[cfg(all(test, feature = "soft"))]
    pub(crate) const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Returns the number of these ports, at least 1.
    pub(crate) fn count(self) -> u64 {
        u64::from(self.last - self.first) + 1
    }

    /// Returns the port at `place`, counted round and round.
    pub(super) fn at(self, place: u64) -> u16 {
        // The remainder is below 65536.
        self.first + u16::try_from(place % self.count()).unwrap_or(0)
    }
}

impl Default for PortRange {
    fn default() -> Self {
        Self::EPHEMERAL
    }
}

/// The start of the next search. One for all ranges: only "not where the last one was" matters.
static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| {
    // Without random numbers any number that differs between processes will do: nothing depends on secrecy
    // here.
    let start = getrandom::u32().unwrap_or_else(|_| std::process::id());
    AtomicU64::new(start.into())
});

/// Returns every port of the range once.
///
/// The first search of the process starts at a random place, every other where the last one ended, so that a
/// port comes round again as late as possible: its last connection may still be in TIME_WAIT (RFC 6056
/// section 3.3.1 has the same idea). Searches at the same time may meet; the lease decides.
pub(crate) fn candidates(range: PortRange) -> impl Iterator<Item = u16> {
    let start = NEXT.fetch_add(1, Ordering::Relaxed);
    (start..start.saturating_add(range.count())).map(move |place| {
        NEXT.fetch_max(place.saturating_add(1), Ordering::Relaxed);
        range.at(place)
    })
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ranges() {
        assert_eq!(PortRange::default().count(), 16384);
        assert_eq!(PortRange::new(0, 9), None);
        assert_eq!(PortRange::new(9, 8), None);
        let one = PortRange::new(65535, 65535).expect("one port");
        assert_eq!(candidates(one).collect::<Vec<_>>(), [65535]);
        assert!(one.contains(65535) && !one.contains(65534));
        assert_eq!(PortRange::new(1, u16::MAX).expect("all").count(), 65535);
    }

    #[test]
    fn candidates_are_every_port_once() {
        let all: Vec<_> = candidates(PortRange::EPHEMERAL).collect();
        assert_eq!(all.len(), 16384);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 16384);
        assert!(all.iter().all(|port| PortRange::EPHEMERAL.contains(*port)));
        assert!(
            all.windows(2)
                .all(|pair| pair[0].checked_add(1) == Some(pair[1]) || (pair[0], pair[1]) == (65535, 49152))
        );
    }

    #[test]
    fn searches_continue_rather_than_repeat() {
        // Other tests may search at the same time, which only moves the place on: no port may come twice in a
        // row.
        let mut last = None;
        for _ in 0..100 {
            let next = candidates(PortRange::EPHEMERAL).next();
            assert_ne!(next, last);
            last = next;
        }
    }
}
