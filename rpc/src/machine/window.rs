//! The windows of the bodies that arrive.

use crate::wire::Malformed;

/// What is left of a window, and what was taken from it and not granted again.
#[derive(Debug)]
pub(super) struct Window {
    size: u32,
    left: u32,
    taken: u32,
}

impl Window {
    pub(super) fn new(size: u32) -> Self {
        Self { size, left: size, taken: 0 }
    }

    /// Counts bytes that have arrived.
    pub(super) fn arrive(&mut self, cost: u32) -> Result<(), Malformed> {
        self.left = self.left.checked_sub(cost).ok_or(Malformed("more bytes than were granted"))?;
        Ok(())
    }

    /// Counts bytes that were read. Returns how many are to be granted now.
    pub(super) fn take(&mut self, cost: u32) -> Option<u32> {
        self.taken += cost;
        if self.taken < self.size / 2 {
            return None;
        }
        self.left += self.taken;
        Some(std::mem::take(&mut self.taken))
    }
}
