//! The reports of the soft provider for a snapshot. No two locks are held at once.

use std::sync::Weak;

use super::adapter::Adapter;
use super::connection::ConnectionShared;
use super::queue_pair::QueuePair;
use crate::inspect::{AdapterReport, ConnectionReport, Inspect, QueuePairReport, SendState, Snapshot};
use crate::types::Role;

impl Inspect for Adapter {
    fn inspect(&self, snapshot: &mut Snapshot) {
        let mut report =
            AdapterReport { id: self.domain, age: self.opened_at().age(), ..AdapterReport::default() };
        report.name.clone_from(&self.interface.name);
        report.provider = "soft".into();
        report.addresses = self.listed_addresses();
        report.is_removed = self.is_removed();
        snapshot.adapters.push(report);
        self.registry().inspect(self.domain, snapshot);
    }
}

impl QueuePair {
    /// Adds its report to that of its connector.
    pub(super) fn add_to(&self, connector: &mut ConnectionReport) {
        let report = connector.queue_pair.insert(QueuePairReport::default());
        report.sends.depth = self.send_depth;
        self.sends.inspect(false, &mut report.sends);
        self.receives.inspect(report);
        if let Some(connection) = self.connection() {
            connection.add_to(connector);
        }
    }
}

impl ConnectionShared {
    /// Adds its report to that of its connector.
    fn add_to(&self, connector: &mut ConnectionReport) {
        let report = connector.queue_pair.get_or_insert_default();
        let role = if self.role == Role::Active { "active" } else { "passive" };
        connector.role = Some(role.into());
        let socket = {
            let sending = self.sending();
            let queue = &sending.queue;
            report.bytes_sent = queue.written;
            (report.reads_unanswered, report.reads_limit) = queue.outbound.reads();
            report.reads_to_answer = queue.serving();
            report.send_state = if queue.is_closed() {
                SendState::Closed
            } else if queue.is_held() {
                SendState::AwaitsFirstMessage
            } else if queue.is_blocked() {
                SendState::SocketFull
            } else if queue.awaits_read() {
                SendState::ReadLimit
            } else {
                SendState::Open
            };
            sending.socket.clone()
        };
        connector.tcp = socket.and_then(|socket| socket.stream().report().ok());
        let Some(reader) = self.reader.get().and_then(Weak::upgrade) else { return };
        let receiver = reader.receiver();
        report.bytes_received = receiver.received;
        report.awaits_receive = receiver.awaits_receive();
    }
}
