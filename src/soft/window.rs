//! Memory windows: a part of a region under a key of its own, for the peer of one connection.

use std::sync::Arc;

use super::adapter::Adapter;
use super::registration::{Binding, Registration};
use super::remote_keys::KeyTable;
use crate::error::{PostErrorKind, RegisterError};
use crate::provider::work::BindTarget;
use crate::sync::Mutex;

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

    /// Gives it a new key, for the peer of the connection with this number.
    ///
    /// # Errors
    /// `ForeignMemory` when the region is not registered any more; `InsufficientResources` without a free key.
    pub(crate) fn bind(
        self: &Arc<Self>,
        target: BindTarget<&Arc<Registration>>,
        connection: u64,
    ) -> Result<WindowOp, PostErrorKind> {
        let BindTarget { registration, range, access } = target;
        let mut latest = self.latest.lock();
        let new = self.keys.bind(registration, range, access, connection)?;
        let old = latest.replace(new.clone());
        Ok(WindowOp { window: self.clone(), old, new: Some(new) })
    }

    /// Takes its key back.
    pub(crate) fn unbind(self: &Arc<Self>) -> WindowOp {
        WindowOp { window: self.clone(), old: self.latest.lock().take(), new: None }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(latest) = self.latest.get_mut().take() {
            self.keys.unbind(&latest);
        }
    }
}

/// The change that a posted request makes to a window when its turn comes.
pub(crate) struct WindowOp {
    /// It lasts until then, whoever drops it.
    window: Arc<Window>,
    old: Option<Arc<Binding>>,
    new: Option<Arc<Binding>>,
}

impl WindowOp {
    /// Returns whether it binds the window.
    pub(crate) fn binds(&self) -> bool {
        self.new.is_some()
    }

    /// Applies the change, when the turn of the request has come.
    pub(crate) fn commit(&self) {
        if let Some(old) = &self.old {
            self.window.keys.unbind(old);
        }
        if let Some(new) = &self.new {
            new.go_live();
        }
    }

    /// Revokes both bindings of a request whose turn will not come: nothing is bound from now on.
    pub(crate) fn rollback(&self) {
        self.old.iter().chain(&self.new).for_each(|binding| self.window.keys.unbind(binding));
    }
}
