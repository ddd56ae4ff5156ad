//! The report of a session for a snapshot.

use std::sync::Weak;

use super::{Role, Session};
use crate::inspect::{self, Inspect, Place, SessionReport, Snapshot};

/// Lets snapshots see a session, until the returned value is dropped.
pub(super) fn register(session: &Weak<Session>) -> Place {
    let object: Weak<dyn Inspect> = session.clone();
    inspect::register(object)
}

impl Inspect for Session {
    fn inspect(&self, snapshot: &mut Snapshot) {
        snapshot.sessions.push(self.report());
    }
}

impl Session {
    /// Returns its report.
    pub(in crate::io) fn report(&self) -> SessionReport {
        let mut report = SessionReport { gives_up_after: self.gives_up_after, ..SessionReport::default() };
        report.id = self.id.short();
        report.role = if matches!(self.role, Role::Active(_)) { "active".into() } else { "passive".into() };
        report.is_over = self.is_over();
        let path = self.paths.borrow();
        report.connection = path.connection.id().0;
        report.lost = path.is_lost.then(|| path.lost_for());
        report.resumed = path.resumes;
        drop(path);
        report
    }
}
