//! No-op metrics, used without the feature `metrics`.

use http::{Method, Uri};

use crate::error::Error;
use crate::observation::Kind;
use crate::wire::Code;

pub(crate) struct CallMetrics;

impl CallMetrics {
    pub(crate) const IS_ON: bool = false;

    pub(crate) fn begin(_kind: Kind, _method: &Method, _uri: &Uri) -> Self {
        Self
    }

    pub(crate) fn end(&self, _kind: Kind, _status: Option<&str>, _error: Option<&str>) {}
}

#[derive(Default)]
pub(crate) struct Traffic;

impl Traffic {
    pub(crate) fn sent(&mut self, _bytes: usize) {}

    pub(crate) fn received(&mut self, _bytes: usize) {}

    pub(crate) fn reset_sent(&mut self, _code: Code) {}

    pub(crate) fn reset_received(&mut self, _code: Code) {}
}

pub(crate) struct TrafficMetrics;

impl TrafficMetrics {
    pub(crate) fn new(_is_client: bool) -> Self {
        Self
    }

    pub(crate) fn record(&self, _traffic: Traffic) {}
}

pub(crate) fn count_connect(_is_client: bool, _is_again: bool, _is_connected: bool) {}

pub(crate) struct ConnectionMetrics;

impl ConnectionMetrics {
    pub(crate) fn open(_is_client: bool) -> Self {
        Self
    }

    pub(crate) fn end(self, _outcome: &Result<(), Error>) {}
}
