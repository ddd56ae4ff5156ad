//! Peers that have yet to take the next step of a handshake, and which of them makes room when there are too many.
//!
//! The one that goes is the oldest of the source that has most. So a source with few peers keeps them, however many another
//! source opens; and within one source those that came last have the most time left. A source is an IPv4 address, or the
//! first 64 bits of an IPv6 address, because a host with one address of such a network may use all of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// The network that a peer connects from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Source {
    V4(u32),
    V6(u64),
}

impl Source {
    fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip.to_bits()),
            IpAddr::V6(ip) => Self::V6((ip.to_bits() >> 64) as u64),
        }
    }
}

/// The name of a peer in the table. Younger ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerKey {
    source: Source,
    age: u64,
}

/// Half-open peers, with what is kept of each. Every call takes logarithmic time.
#[derive(Debug)]
pub(crate) struct HalfOpen<T> {
    /// The peers of each source, the oldest first. No source is empty.
    sources: HashMap<Source, BTreeMap<u64, T>>,
    /// The sources by the number of their peers; of those with equally many the one with the oldest peer is last.
    order: BTreeSet<(usize, Reverse<u64>, Source)>,
    /// The sources of all peers, the oldest first.
    ages: BTreeMap<u64, Source>,
    next: u64,
}

impl<T> HalfOpen<T> {
    /// Creates a table without peers.
    pub(crate) fn new() -> Self {
        Self { sources: HashMap::new(), order: BTreeSet::new(), ages: BTreeMap::new(), next: 0 }
    }

    /// Returns the number of peers.
    pub(crate) fn len(&self) -> usize {
        self.ages.len()
    }

    /// Returns the number of peers of the source of this address.
    pub(crate) fn count(&self, ip: IpAddr) -> usize {
        self.sources.get(&Source::of(ip)).map_or(0, BTreeMap::len)
    }

    /// Enters a peer, which is now the youngest.
    pub(crate) fn insert(&mut self, ip: IpAddr, value: T) -> PeerKey {
        let key = PeerKey { source: Source::of(ip), age: self.next };
        self.next += 1;
        self.ages.insert(key.age, key.source);
        self.change(key.source, |peers| peers.insert(key.age, value));
        key
    }

    /// Removes a peer. `None` if it was removed before.
    pub(crate) fn remove(&mut self, key: PeerKey) -> Option<T> {
        self.ages.remove(&key.age)?;
        self.change(key.source, |peers| peers.remove(&key.age))
    }

    /// Removes the peer that has been here for longest.
    pub(crate) fn pop_oldest(&mut self) -> Option<T> {
        let (age, source) = self.ages.first_key_value().map(|(age, source)| (*age, *source))?;
        self.remove(PeerKey { source, age })
    }

    /// Returns the peer that is the next to make room.
    pub(crate) fn victim(&self) -> Option<(PeerKey, &T)> {
        let (_, Reverse(age), source) = *self.order.last()?;
        let value = self.sources.get(&source)?.get(&age)?;
        Some((PeerKey { source, age }, value))
    }

    /// Returns the peers of each source, those of the source that has most first.
    pub(crate) fn largest_first(&self) -> impl Iterator<Item = impl Iterator<Item = (PeerKey, &T)>> {
        self.order.iter().rev().filter_map(|(.., source)| {
            let peers = self.sources.get(source)?.iter();
            Some(peers.map(|(age, value)| (PeerKey { source: *source, age: *age }, value)))
        })
    }

    /// Changes the peers of a source, and its place in the order.
    fn change<R>(&mut self, source: Source, change: impl FnOnce(&mut BTreeMap<u64, T>) -> R) -> R {
        let peers = self.sources.entry(source).or_default();
        let place = |peers: &BTreeMap<u64, T>| {
            peers.first_key_value().map(|(oldest, _)| (peers.len(), Reverse(*oldest), source))
        };
        let before = place(peers);
        let result = change(peers);
        let after = place(peers);
        if before != after {
            before.map(|place| self.order.remove(&place));
            self.order.extend(after);
        }
        if after.is_none() {
            self.sources.remove(&source);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// Removes the peers in the order in which they make room.
    fn victims(mut table: HalfOpen<u32>) -> Vec<u32> {
        let next = |table: &mut HalfOpen<u32>| {
            let (key, _) = table.victim()?;
            table.remove(key)
        };
        std::iter::from_fn(|| next(&mut table)).collect()
    }

    // A source that opens many connections displaces its own (SEC-07).
    #[test]
    fn oldest_peer_of_largest_source_makes_room() {
        let mut table = HalfOpen::new();
        for (address, peer) in [("192.0.2.1", 1), ("192.0.2.2", 2), ("192.0.2.2", 3), ("192.0.2.2", 4)] {
            table.insert(ip(address), peer);
        }
        assert_eq!(victims(table), [2, 3, 1, 4], "of equals the one that is older");
    }

    // A source whose peers wait for this side hides no others (SEC-07).
    #[test]
    fn peers_are_listed_by_source_size() {
        let mut table = HalfOpen::new();
        for (address, peer) in [("192.0.2.1", 1), ("192.0.2.2", 2), ("192.0.2.2", 3), ("192.0.2.3", 4)] {
            table.insert(ip(address), peer);
        }
        let listed = table.largest_first().map(|peers| peers.map(|(_, peer)| *peer).collect::<Vec<_>>());
        assert_eq!(listed.collect::<Vec<_>>(), [vec![2, 3], vec![1], vec![4]]);
    }

    #[test]
    fn sources_group_ipv6_networks_and_mapped_ipv4() {
        let mut table = HalfOpen::new();
        let peers = ["2001:db8::1", "2001:db8:0:1::1", "2001:db8:0:1::2", "192.0.2.1", "::ffff:192.0.2.1"];
        for (peer, address) in (0..).zip(peers) {
            table.insert(ip(address), peer);
        }
        assert_eq!(victims(table), [1, 3, 0, 2, 4]);
    }

    proptest! {
        /// Compares the table with a list that is searched from end to end.
        #[test]
        fn the_order_is_that_of_a_search(steps in proptest::collection::vec((0..5_u8, 0..3_u8), 0..80)) {
            let (mut table, mut model) = (HalfOpen::new(), Vec::<(PeerKey, u8)>::new());
            for (step, source) in steps {
                match step {
                    0..=2 => model.push((table.insert([192, 0, 2, source].into(), source), source)),
                    3 if source == 0 => {
                        let oldest = (!model.is_empty()).then(|| model.remove(0).1);
                        prop_assert_eq!(table.pop_oldest(), oldest);
                    }
                    3 if !model.is_empty() => {
                        let (key, source) = model.remove(usize::from(source) % model.len());
                        prop_assert_eq!(table.remove(key), Some(source));
                        prop_assert_eq!(table.remove(key), None);
                    }
                    _ => {
                        let many = |source| model.iter().filter(|(_, other)| *other == source).count();
                        let most = model.iter().map(|(_, source)| many(*source)).max();
                        let expected = model.iter().position(|(_, source)| Some(many(*source)) == most);
                        let victim = table.victim().map(|(key, _)| key);
                        prop_assert_eq!(victim, expected.map(|place| model[place].0));
                        if let Some(place) = expected {
                            let (key, source) = model.remove(place);
                            prop_assert_eq!(table.remove(key), Some(source));
                        }
                    }
                }
                prop_assert_eq!(table.len(), model.len());
                let many = |source| model.iter().filter(|(_, other)| *other == source).count();
                for source in 0..3_u8 {
                    prop_assert_eq!(table.count([192, 0, 2, source].into()), many(source));
                }
            }
        }
    }
}
