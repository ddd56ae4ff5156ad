//! Handshakes that are under way, and which of them is dropped when others need its place.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::task::{AbortHandle, Id};
use tokio::time::Instant;

use crate::net::descriptors::{Budget, Holder};
use crate::proto::half_open::{HalfOpen, PeerKey};
use crate::sync::KeyMap;

/// The least time that a peer has to complete its handshake, however many others want its place. It is longer than a round trip
/// around the world, so that many distant peers at once do not take each other's places.
const GRACE: Duration = Duration::from_secs(1);

/// The least time if the address of the peer has an eighth of the places besides. It limits what a flood from one address costs.
/// The peers of that eighth have the longer time: if many share an address, because of a NAT or a proxy, some of them complete
/// their handshakes, however long a round trip takes.
const SHORT_GRACE: Duration = Duration::from_millis(50);

/// Handshakes that are under way.
pub(crate) struct Handshakes {
    /// The number of places.
    most: usize,
    /// Handshakes that have the longer time, of each address at most an eighth of the places.
    patient: HalfOpen<Handshake>,
    /// The handshakes beyond that.
    hasty: HalfOpen<Handshake>,
    /// All handshakes, with those that were dropped and have not ended.
    keys: KeyMap<Id, Key>,
    /// The descriptors of the handshakes, if they have any.
    descriptors: Option<Arc<Holder>>,
}

#[derive(Clone, Copy)]
struct Key {
    is_patient: bool,
    peer: PeerKey,
}

/// A handshake that is under way.
struct Handshake {
    /// Since when it waits for the peer.
    waits: Arc<OnceLock<Instant>>,
    task: AbortHandle,
}

impl Handshakes {
    /// Creates a table without handshakes, with `most` places for them.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            patient: HalfOpen::new(),
            hasty: HalfOpen::new(),
            keys: KeyMap::default(),
            descriptors: None,
        }
    }

    /// Sets the number of places.
    #[cfg(feature = "rustls")]
    pub(crate) fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// Returns the number of handshakes that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the number of handshakes that were dropped and have not ended.
    pub(crate) fn leaving(&self) -> usize {
        self.keys.len() - self.patient.len() - self.hasty.len()
    }

    /// Returns whether the descriptors suffice for another one.
    pub(crate) fn has_room(&self) -> bool {
        self.descriptors.as_ref().is_none_or(|descriptors| descriptors.has_room())
    }

    /// Returns the holder of the descriptors, which has them from this budget.
    pub(crate) fn holder(&mut self, budget: &Arc<Budget>) -> Arc<Holder> {
        self.descriptors.get_or_insert_with(|| budget.holder()).clone()
    }

    /// Enters the handshake of a peer. It may be dropped some time after it has begun to wait for the peer.
    pub(crate) fn insert(&mut self, ip: IpAddr, task: AbortHandle, waits: Arc<OnceLock<Instant>>) {
        let is_patient = self.patient.count(ip) < (self.most / 8).max(1);
        let (id, table) = (task.id(), if is_patient { &mut self.patient } else { &mut self.hasty });
        let peer = table.insert(ip, Handshake { waits, task });
        self.keys.insert(id, Key { is_patient, peer });
    }

    /// Removes a handshake that has ended.
    pub(crate) fn remove(&mut self, id: Id) {
        if let Some(key) = self.keys.remove(&id) {
            self.table(key.is_patient).remove(key.peer);
        }
    }

    fn table(&mut self, is_patient: bool) -> &mut HalfOpen<Handshake> {
        if is_patient { &mut self.patient } else { &mut self.hasty }
    }

    /// Drops the oldest handshake of the address that has most.
    ///
    /// # Errors
    /// The time at which one may be dropped, if there is any.
    pub(crate) fn drop_oldest(&mut self) -> Result<(), Option<Instant>> {
        if self.hasty.len() + self.patient.len() == 0 {
            return Err(None);
        }
        let now = Instant::now();
        // Until a handshake waits for its peer the time is not known, and later than this.
        let later = now + SHORT_GRACE;
        let hasty = self.oldest_that_waits(false).map(|(peer, since)| (peer, since + SHORT_GRACE, false));
        let patient = || self.oldest_that_waits(true).map(|(peer, since)| (peer, since + GRACE, true));
        let Some((peer, expendable, is_patient)) = hasty.or_else(patient) else { return Err(Some(later)) };
        if expendable > now {
            return Err(Some(expendable.min(later)));
        }
        if let Some(handshake) = self.table(is_patient).remove(peer) {
            handshake.task.abort();
        }
        Ok(())
    }

    /// Returns the handshake that has waited for its peer for longest, of the address that has most of those with one, and since
    /// when it does. Handshakes for which the peer waits are left out.
    fn oldest_that_waits(&mut self, is_patient: bool) -> Option<(PeerKey, Instant)> {
        self.table(is_patient).largest_first().find_map(|handshakes| {
            let waiting = handshakes.filter_map(|(peer, handshake)| Some((peer, *handshake.waits.get()?)));
            waiting.min_by_key(|(_, since)| *since)
        })
    }
}
