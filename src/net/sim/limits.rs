//! The limited resources of a simulated host.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::memory::{Attachment, Memory};

/// A resource: how much of it is in use, and the most that may be.
#[derive(Debug)]
pub(crate) struct Resource {
    used: AtomicUsize,
    limit: AtomicUsize,
}

impl Default for Resource {
    fn default() -> Self {
        Self { used: AtomicUsize::new(0), limit: AtomicUsize::new(usize::MAX) }
    }
}

impl Resource {
    /// Sets the limit. What is in use beyond it stays in use.
    pub(super) fn set_limit(&self, limit: Option<usize>) {
        self.limit.store(limit.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Returns whether nothing is left.
    pub(super) fn is_exhausted(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.limit()
    }

    /// Takes so much of it, if that is left.
    pub(super) fn claim(self: &Arc<Self>, amount: usize) -> Option<Claim> {
        let enough = |used: usize| used.checked_add(amount).filter(|sum| amount == 0 || *sum <= self.limit());
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enough).ok()?;
        Some(Claim { resource: self.clone(), amount })
    }
}

/// A part of a resource that is in use, until this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    resource: Arc<Resource>,
    amount: usize,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.resource.used.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

/// Memory has its claim for as long as it exists.
impl Attachment for Claim {
    #[cfg(feature = "verbs")]
    fn local_key(&self) -> u32 {
        0
    }

    #[cfg(feature = "verbs")]
    fn address(&self) -> u64 {
        0
    }

    fn detach(&self) -> bool {
        true
    }

    fn retire(&self, memory: Memory) {
        drop(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_ends_with_its_value() {
        let resource = Arc::new(Resource::default());
        let first = resource.claim(10).expect("without limit");
        resource.set_limit(Some(15));
        let second = resource.claim(5).expect("the rest");
        assert!(resource.is_exhausted() && resource.claim(1).is_none());
        resource.claim(0).expect("nothing is always there");
        drop(second);
        assert!(resource.claim(6).is_none() && resource.claim(5).is_some());
        resource.set_limit(Some(3));
        assert!(resource.claim(1).is_none());
        drop(first);
        assert!(resource.claim(3).is_some());
    }
}
