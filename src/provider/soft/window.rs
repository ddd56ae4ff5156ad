//! Memory windows: a part of a region under a key of its own, for the peer of one connection.

use std::ops::Range;
use std::sync::Arc;

use super::adapter::Adapter;
use super::registration::{Binding, Registration};
use super::remote_keys::KeyTable;
use crate::error::{PostErrorKind, RegisterError};
use crate::provider;
use crate::provider::work::Operation;
use crate::sync::Mutex;
use crate::types::Access;

/// A memory window.
pub(crate) struct Window {
    keys: Arc<KeyTable>,
    /// The latest binding that was posted, until its invalidation is posted.
    latest: Mutex<Option<Arc<Binding>>>,
}

impl Window {
    /// Creates a window without a binding.
    ///
    /// # Errors
    /// None: only a binding needs a key.
    #[expect(clippy::unnecessary_wraps, reason = "other providers have to ask a device")]
    pub(crate) fn new(adapter: &Arc<Adapter>) -> Result<Arc<Self>, RegisterError> {
        Ok(Arc::new(Self { keys: adapter.keys.clone(), latest: Mutex::default() }))
    }

    /// Returns the binding of the last call that binds or invalidates the window, unless it was revoked
    /// since: key, remote address, length.
    pub(crate) fn bound(&self) -> Option<(u32, u64, usize)> {
        let latest = self.latest.lock().clone()?;
        // The peer may have taken it back, or the connection has ended.
        (!latest.is_dead()).then(|| (latest.key(), latest.range().start as u64, latest.range().len()))
    }

    fn bind(
        &self,
        registration: &Arc<Registration>,
        range: Range<usize>,
        access: Access,
        connection: u64,
    ) -> Result<WindowOp, PostErrorKind> {
        let mut latest = self.latest.lock();
        let new = self.keys.bind(registration, range, access, connection)?;
        let old = latest.replace(new.clone());
        Ok(WindowOp { keys: self.keys.clone(), old, new: Some(new) })
    }

    fn unbind(&self) -> WindowOp {
        WindowOp { keys: self.keys.clone(), old: self.latest.lock().take(), new: None }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.unbind().commit();
    }
}

/// The change that a posted request makes to a window when its turn comes.
pub(crate) struct WindowOp {
    keys: Arc<KeyTable>,
    old: Option<Arc<Binding>>,
    new: Option<Arc<Binding>>,
}

impl WindowOp {
    /// Returns the change that this request of the connection with this number makes to a window, if it makes
    /// one.
    ///
    /// # Errors
    /// `ForeignMemory` if the region is no longer registered; `InsufficientResources` without a free key.
    pub(crate) fn of(operation: &Operation, connection: u64) -> Result<Option<Self>, PostErrorKind> {
        use provider::{Registration::Soft as Registered, Window::Soft};
        match operation {
            Operation::Bind {
                window: Soft(window),
                registration: Registered(registration),
                range,
                access,
            } => window.bind(registration, range.clone(), *access, connection).map(Some),
            Operation::Invalidate { window: Soft(window) } => Ok(Some(window.unbind())),
            // Posting checked that all is of one adapter.
            #[cfg(feature = "verbs")]
            Operation::Bind { .. } | Operation::Invalidate { .. } => Err(PostErrorKind::ForeignMemory),
            _ => Ok(None),
        }
    }

    /// Applies the change, when the turn of the request has come.
    pub(crate) fn commit(&self) {
        if let Some(old) = &self.old {
            self.keys.unbind(old);
        }
        if let Some(new) = &self.new {
            new.go_live();
        }
    }

    /// Revokes both bindings of a request whose turn will not come: nothing is bound from now on.
    pub(crate) fn rollback(&self) {
        self.old.iter().chain(&self.new).for_each(|binding| self.keys.unbind(binding));
    }
}
