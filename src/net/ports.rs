//! The local ports: the choice of the one to try next, and those that this process holds.
//!
//! For the latter the kernel alone would not do: to reuse ports in TIME_WAIT we bind our own choice with `SO_REUSEADDR`, and
//! with that the kernel lets two sockets have one port (socket(7)). ND wants `SHARING_VIOLATION`, so the
//! process keeps a list.

use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::sync::{KeyMap, Mutex};

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

/// The holders of ports: addresses, of which at most one is unspecified per family, by namespace and port.
type Table = KeyMap<(Namespace, u16), SmallVec<[IpAddr; 1]>>;

/// Every change is one step, so that a panic elsewhere cannot leave the table half changed.
static HELD: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

/// A local address and port that a connector, connection or listener of this process holds until this is
/// dropped.
#[derive(Debug)]
#[must_use = "dropping it releases the port"]
pub(crate) struct PortLease {
    namespace: Namespace,
    ip: IpAddr,
    port: u16,
}

impl PortLease {
    /// Returns the address, unspecified if it is every address of the family.
    pub(crate) fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Returns the port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for PortLease {
    fn drop(&mut self) {
        let mut table = HELD.lock();
        if let Entry::Occupied(mut holders) = table.entry((self.namespace, self.port)) {
            holders.get_mut().retain(|ip| *ip != self.ip);
            if holders.get().is_empty() {
                holders.remove();
            }
        }
    }
}

/// Takes a port for an address, `None` when this process holds it already.
///
/// Two holders conflict when they have the port in the same network namespace, and the same address, or one
/// of them all addresses of the family. IPv4 and IPv6 never conflict, as our IPv6 sockets are IPv6 only.
///
/// Without `namespace` it is that of the calling thread.
pub(crate) fn lease(namespace: Option<Namespace>, ip: IpAddr, port: u16) -> Option<PortLease> {
    let ip = ip.to_canonical();
    let namespace = namespace.unwrap_or_else(Namespace::of_thread);
    let mut table = HELD.lock();
    let holders = table.entry((namespace, port)).or_default();
    let taken = holders.iter().any(|holder| {
        let any = holder.is_unspecified() || ip.is_unspecified();
        holder.is_ipv4() == ip.is_ipv4() && (any || *holder == ip)
    });
    // A new entry is empty, so a refusal leaves none behind.
    if taken {
        return None;
    }
    holders.push(ip);
    Some(PortLease { namespace, ip, port })
}

/// A network namespace, by the number of its file (namespaces(7)); 0 without a `/proc`. Or a host of a simulated network.
///
/// The number is not given to another namespace while a socket keeps this one alive, and leases go with
/// sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Namespace(u64);

impl Namespace {
    /// Creates a namespace that no thread has, for a host of a simulated network.
    #[cfg(feature = "sim")]
    pub(crate) fn simulated() -> Self {
        // No file system numbers its files from there on.
        static NEXT: AtomicU64 = AtomicU64::new(1 << 63);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the number of ports that are held in the namespace.
    #[cfg(feature = "sim")]
    pub(crate) fn held(self) -> usize {
        HELD.lock().keys().filter(|(namespace, _)| *namespace == self).count()
    }

    /// Returns the namespace of the calling thread.
    pub(crate) fn of_thread() -> Self {
        Self(std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |file| file.ino()))
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use std::collections::BTreeSet;

    use super::super::kernel::testing::in_namespace;
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

    // Other tests of this process lease ports too, all of them above 1023.
    const PORT: u16 = 7;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn conflicts() {
        let cases = [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1", "0.0.0.0", true),
            ("0.0.0.0", "10.0.0.1", true),
            ("0.0.0.0", "0.0.0.0", true),
            ("::", "0.0.0.0", false),
            ("::", "10.0.0.1", false),
            ("::", "fd00::1", true),
            ("fd00::1", "::", true),
            ("fd00::1", "fd00::2", false),
        ];
        for (first, second, conflict) in cases {
            let first_lease = lease(None, address(first), PORT).expect(first);
            assert_eq!(lease(None, address(second), PORT).is_none(), conflict, "{first} then {second}");
            let other = lease(None, address(second), PORT + 1).expect("another port");
            assert_eq!((other.ip(), other.port()), (address(second).to_canonical(), PORT + 1));
            drop((first_lease, other));
            drop(lease(None, address(second), PORT).expect("released"));
        }
        let key = (Namespace::of_thread(), PORT);
        assert!(!HELD.lock().contains_key(&key), "nothing is left behind");
    }

    #[test]
    fn namespaces_do_not_conflict() {
        let _here = lease(None, address("10.1.0.1"), PORT + 2).expect("here");
        in_namespace(|| {
            let there = lease(None, address("10.1.0.1"), PORT + 2).expect("there");
            // Released in the namespace where it was taken, whichever thread drops it.
            std::thread::spawn(move || drop(there)).join().expect("joined");
            drop(lease(None, address("10.1.0.1"), PORT + 2).expect("released"));
        });
        assert!(lease(None, address("10.1.0.1"), PORT + 2).is_none());
    }
}
