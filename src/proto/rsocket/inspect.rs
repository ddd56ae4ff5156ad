//! The report of a machine of rsocket for a snapshot.

use super::{Carrier, Machine, reserve};
use crate::inspect::StreamReport;

impl Machine {
    /// Adds its credits and its memory to the report of its stream.
    pub(crate) fn report(&self, report: &mut StreamReport) {
        let Self { sending, receiving, peer, .. } = self;
        let kept = match self.settings.carrier {
            Carrier::Immediate => 0,
            Carrier::Send => reserve(peer.credits),
        };
        report.credits = sending.limit.wrapping_sub(sending.sent).saturating_sub(kept).into();
        report.room = sending.targets.iter().map(|target| target.length as usize).sum();
        report.unread_by_peer = (2 * peer.data.length as usize).saturating_sub(report.room);
        report.outstanding = sending.outstanding.len();
        report.peer_credits = receiving.limit.wrapping_sub(receiving.seen).into();
        let granted: u32 = receiving.granted.iter().sum();
        report.peer_room = granted.saturating_sub(receiving.early) as usize;
        report.unread = self.unread_with(0);
        report.peer_closed = self.is_peer_done();
    }
}
