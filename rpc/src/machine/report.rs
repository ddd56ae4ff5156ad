//! What the state of a connection tells a snapshot.

use tokio_rdma::inspect::ChannelReport;

use super::{Call, Machine};

impl Machine {
    /// Returns the report, without what the machine does not know.
    pub(crate) fn report(&self) -> ChannelReport {
        let mut report = ChannelReport::default();
        report.role = if self.is_client { "client" } else { "server" }.into();
        if let (true, Some(authority)) = (self.is_client, &self.origin.authority) {
            report.peer = authority.to_string();
        }
        report.calls = self.open;
        let open = self.calls.values().filter(|call| call.receives || call.sends);
        report.oldest = open.map(|call| call.began.elapsed()).max();
        report.blocked = self.calls.values().filter(|call| call.writer.is_some()).count();
        let is_unread = |call: &&Call| !call.chunks.is_empty() && call.reader.is_none() && !call.discards;
        report.unread = self.calls.values().filter(is_unread).count();
        report.unsent = self.output.len();
        report
    }
}
