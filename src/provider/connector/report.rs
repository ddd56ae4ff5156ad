//! The report of a connector, as far as both providers have the same.

use super::ConnectorState;
use crate::inspect::{ConnectionReport, ConnectionState, EventReport};
use crate::proto::connector::Phase;
use crate::types::ConnectionId;

impl ConnectorState {
    /// Returns the report of the connector with this number, of the adapter with this one.
    pub(crate) fn report(&self, id: ConnectionId, adapter: u64) -> ConnectionReport {
        let (name, at) = self.steps.last;
        let mut report = ConnectionReport::default();
        (report.id, report.adapter) = (id.0, adapter);
        report.state = self.phase().into();
        report.since = self.steps.since.age();
        (report.local, report.peer) = (self.local, self.peer);
        report.role = match self.phase() {
            Phase::Connecting | Phase::ConnectDone | Phase::Completing => Some("active".into()),
            Phase::RequestPending | Phase::Accepting => Some("passive".into()),
            _ => None,
        };
        report.last_event = Some(EventReport { name: name.into(), age: at.age() });
        report.is_in_line = self.waits.interests().next().is_some() && !self.connect_called;
        report.ended = self.machine.ending().map(ToString::to_string);
        report
    }
}

impl From<Phase> for ConnectionState {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Idle => Self::Idle,
            Phase::Bound => Self::Bound,
            Phase::Connecting => Self::Connecting,
            Phase::ConnectDone => Self::Replied,
            Phase::Completing => Self::Completing,
            Phase::RequestPending => Self::Requested,
            Phase::Accepting => Self::Accepting,
            Phase::Connected => Self::Connected,
            Phase::PeerGone => Self::PeerGone,
            Phase::Disconnecting => Self::Disconnecting,
            Phase::Disconnected => Self::Disconnected,
            Phase::Dead => Self::Dead,
        }
    }
}
