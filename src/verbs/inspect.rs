//! The reports of the verbs provider for a snapshot. No two locks are held at once.

use std::net::SocketAddr;

use super::context::AdapterContext;
use super::queue_pair::QueuePair;
use crate::inspect::{AdapterReport, Inspect, QueuePairReport, SendState, Snapshot};

impl Inspect for AdapterContext {
    fn inspect(&self, snapshot: &mut Snapshot) {
        let mut report =
            AdapterReport { id: self.domain, age: self.opened_at().age(), ..AdapterReport::default() };
        report.name.clone_from(&self.device.name);
        report.provider = "verbs".into();
        report.addresses = self.known_addresses().iter().map(SocketAddr::ip).collect();
        report.is_removed = self.is_removed();
        snapshot.adapters.push(report);
        self.registry().inspect(self.domain, snapshot);
    }
}

impl QueuePair {
    /// Returns its report.
    pub(super) fn report(&self) -> QueuePairReport {
        let mut report = QueuePairReport::default();
        let facts = self.facts();
        report.number = facts.number;
        if facts.is_closed {
            report.send_state = SendState::Closed;
        }
        (report.sends.depth, report.receives.depth) = facts.depths;
        report.shared_receives = facts.shared_receives;
        facts.sends.inspect(false, &mut report.sends);
        if !report.shared_receives {
            facts.receives.inspect(true, &mut report.receives);
        }
        report
    }
}
