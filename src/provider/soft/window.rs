//! Memory windows.

use std::convert::Infallible;
use std::sync::Arc;

use super::adapter::AdapterCore;
use crate::error::RegisterError;

/// A memory window: the adapter announces that it has none.
pub(crate) struct Window(Infallible);

impl Window {
    pub(crate) fn new(_adapter: &Arc<AdapterCore>) -> Result<Arc<Self>, RegisterError> {
        Err(RegisterError::NotSupported("a memory window"))
    }

    pub(crate) fn bound(&self) -> Option<(u32, u64, usize)> {
        match self.0 {}
    }
}
