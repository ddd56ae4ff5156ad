//! Receive queues that several queue pairs share.

use std::convert::Infallible;
use std::sync::Arc;

use super::adapter::AdapterCore;
use crate::error::{OpenError, PostErrorKind, ResizeError};
use crate::flight::{Outlet, Payload, Ticket};

/// A shared receive queue: the adapter announces that it has none.
pub(crate) struct SharedReceives(Infallible);

impl SharedReceives {
    pub(crate) fn new(
        _adapter: &Arc<AdapterCore>,
        _depth: usize,
        _entries: usize,
        _outlet: Outlet,
    ) -> Result<Arc<Self>, OpenError> {
        Err(OpenError::Unsupported("it has no shared receive queues"))
    }

    pub(crate) fn receive(&self, _ticket: Ticket, _payload: Payload) -> Result<(), (PostErrorKind, Payload)> {
        match self.0 {}
    }

    pub(crate) fn resize(&self, _depth: usize) -> Result<(), ResizeError> {
        match self.0 {}
    }

    pub(crate) fn released(&self) {
        match self.0 {}
    }
}
