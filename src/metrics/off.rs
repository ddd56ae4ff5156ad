//! No-op metrics, used without the feature `metrics`.

use crate::status::Status;

#[derive(Default)]
pub(crate) struct PendingMetrics;

impl PendingMetrics {
    pub(crate) fn failed(&mut self, _call: &'static str, _status: Status) {}

    pub(crate) fn moved(&mut self, _guard: &mut PhaseGuard, _state: Option<&'static str>) {}

    pub(crate) fn is_empty(&self) -> bool {
        true
    }

    pub(crate) fn record(self) {}
}

pub(crate) struct PhaseGuard;

impl PhaseGuard {
    pub(crate) fn new(_state: Option<&'static str>) -> Self {
        Self
    }
}

pub(crate) struct Traffic;

impl Traffic {
    pub(crate) fn new(_kind: &'static str) -> Self {
        Self
    }

    pub(crate) fn sent(&self, _bytes: usize) {}

    pub(crate) fn received(&self, _bytes: usize) {}

    pub(crate) fn exhausted(&self) {}

    pub(crate) fn broken(&self, _status: Status) {}
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct AcceptMetrics;

impl AcceptMetrics {
    pub(crate) const fn new(_kind: &'static str) -> Self {
        Self
    }

    pub(crate) fn count(&self, _outcome: &'static str) {}

    pub(crate) fn half_open(&self) -> HalfOpenGuard {
        HalfOpenGuard
    }
}

pub(crate) fn count_session(_outcome: &'static str) {}

pub(crate) struct HalfOpenGuard;
