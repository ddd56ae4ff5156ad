//! Nothing is told to anybody.

use crate::status::Status;

pub(crate) fn failed(_call: &'static str, _status: Status) {}

pub(crate) struct Stay;

impl Stay {
    pub(crate) fn new() -> Self {
        Self
    }

    pub(crate) fn moved(&mut self, _state: Option<&'static str>) {}
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
