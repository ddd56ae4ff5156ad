//! Memory windows: a part of a region under a key of its own, for the peer of one connection.
//!
//! A binding is posted, and so it has three lives: it is *pending* from the call on, when its key is known already;
//! *live* once its turn in the queue has come; *dead* when it was invalidated, bound over, or its connection has ended.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::adapter::AdapterCore;
use super::keys::{KeyTable, Registration};
use crate::error::{PostErrorKind, RegisterError};
use crate::memory::Slice;
use crate::provider;
use crate::provider::work::Operation;
use crate::sync::{Mutex, RwLock, RwLockReadGuard};
use crate::types::Access;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Pending,
    Live,
    Dead,
}

/// A part of a region under a key.
pub(crate) struct Binding {
    key: u32,
    registration: Arc<Registration>,
    range: Range<usize>,
    access: Access,
    /// The connection whose peer may use it.
    link: u64,
    /// Whoever moves bytes by this key holds it for reading meanwhile, as with a registration.
    life: RwLock<Life>,
}

/// Proof that a binding is live, for as long as it is held. Only ever held across a non-blocking call.
pub(crate) struct Live<'a>(#[allow(dead_code, reason = "held for its drop")] RwLockReadGuard<'a, Life>);

impl Binding {
    pub(super) fn new(
        key: u32,
        registration: Arc<Registration>,
        range: Range<usize>,
        access: Access,
        link: u64,
    ) -> Arc<Self> {
        Arc::new(Self { key, registration, range, access, link, life: RwLock::new(Life::Pending) })
    }

    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    pub(super) fn registration(&self) -> &Arc<Registration> {
        &self.registration
    }

    pub(super) fn access(&self) -> Access {
        self.access
    }

    pub(super) fn link(&self) -> u64 {
        self.link
    }

    /// `None` unless it is live.
    pub(super) fn hold(&self) -> Option<Live<'_>> {
        let life = self.life.read();
        (*life == Life::Live).then_some(Live(life))
    }

    /// The memory at these offsets of the region, if they lie within the binding.
    pub(super) fn slice(&self, to: usize, length: usize) -> Option<Slice> {
        let end = to.checked_add(length)?;
        let within = self.range.start <= to && end <= self.range.end;
        if within { self.registration.memory().slice(to, length) } else { None }
    }

    pub(super) fn go_live(&self) {
        let mut life = self.life.write();
        // Somebody may have been faster to take it back.
        if *life == Life::Pending {
            *life = Life::Live;
        }
    }

    /// Returns when the last byte has been moved by this key.
    pub(super) fn die(&self) {
        *self.life.write() = Life::Dead;
    }
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the key: who has it can reach the memory.
        f.debug_struct("Binding").field("access", &self.access).finish_non_exhaustive()
    }
}

/// A memory window.
pub(crate) struct Window {
    keys: Arc<KeyTable>,
    /// The latest binding that was posted, until its invalidation is.
    latest: Mutex<Option<Arc<Binding>>>,
}

impl Window {
    /// # Errors
    /// None: it is the binding that needs a key.
    #[expect(clippy::unnecessary_wraps, reason = "other providers have to ask a device")]
    pub(crate) fn new(adapter: &Arc<AdapterCore>) -> Result<Arc<Self>, RegisterError> {
        Ok(Arc::new(Self { keys: adapter.keys.clone(), latest: Mutex::default() }))
    }

    /// What it is bound to since the last call that binds or invalidates it: key, remote address, length.
    pub(crate) fn bound(&self) -> Option<(u32, u64, usize)> {
        let latest = self.latest.lock().clone()?;
        // The peer may have taken it back, or the connection has ended.
        let alive = *latest.life.read() != Life::Dead;
        alive.then(|| (latest.key, latest.range.start as u64, latest.range.len()))
    }

    fn bind(
        &self,
        registration: &Arc<Registration>,
        range: Range<usize>,
        access: Access,
        link: u64,
    ) -> Result<Change, PostErrorKind> {
        let mut latest = self.latest.lock();
        let new = self.keys.bind(registration, range, access, link)?;
        let old = latest.replace(new.clone());
        Ok(Change { keys: self.keys.clone(), old, new: Some(new) })
    }

    fn unbind(&self) -> Change {
        Change { keys: self.keys.clone(), old: self.latest.lock().take(), new: None }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.unbind().carry_out();
    }
}

/// What a posted request is to do to a window when its turn comes.
pub(crate) struct Change {
    keys: Arc<KeyTable>,
    old: Option<Arc<Binding>>,
    new: Option<Arc<Binding>>,
}

impl Change {
    /// What this request of the connection with this number asks for, if it is about a window.
    ///
    /// # Errors
    /// `AccessViolation` when the region is not registered any more; `QueueFull` when there is no key to be had.
    pub(crate) fn of(operation: &Operation, link: u64) -> Result<Option<Self>, PostErrorKind> {
        use provider::{Registration::Soft as Registered, Window::Soft};
        match operation {
            Operation::Bind {
                window: Soft(window),
                registration: Registered(registration),
                range,
                access,
            } => window.bind(registration, range.clone(), *access, link).map(Some),
            Operation::Invalidate { window: Soft(window) } => Ok(Some(window.unbind())),
            // Posting checked that all is of one adapter.
            #[cfg(feature = "verbs")]
            Operation::Bind { .. } | Operation::Invalidate { .. } => Err(PostErrorKind::AccessViolation),
            _ => Ok(None),
        }
    }

    /// Its turn has come.
    pub(crate) fn carry_out(&self) {
        if let Some(old) = &self.old {
            self.keys.unbind(old);
        }
        if let Some(new) = &self.new {
            new.go_live();
        }
    }

    /// Its turn will not come: nothing is bound any more.
    pub(crate) fn give_up(&self) {
        self.old.iter().chain(&self.new).for_each(|binding| self.keys.unbind(binding));
    }
}
