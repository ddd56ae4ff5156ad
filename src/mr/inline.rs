//! The bytes of an inline request, and the empty buffer.

use std::fmt;

use crate::inflight::{LentList, Payload, sealed};
use crate::memory::Owned;
use crate::types::Access;

/// The bytes of an inline request. They were copied when the request was posted, and its future returns none.
pub struct Inline {
    memory: Option<Owned>,
}

impl Inline {
    /// The bytes of `memory`.
    pub(crate) fn new(memory: Owned) -> Self {
        Self { memory: Some(memory) }
    }
}

impl fmt::Debug for Inline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inline").finish_non_exhaustive()
    }
}

impl sealed::WorkBuffer for Inline {
    type State = ();

    fn allows(&self, _domain: u64, access: Access) -> bool {
        access.is_empty()
    }

    fn length(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.len())
    }

    fn lend(self) -> LentList<()> {
        let payload = self.memory.map(|memory| memory.share().whole());
        LentList { payload: Payload::from_iter(payload), state: () }
    }

    fn reclaim(_list: LentList<()>) -> Self {
        // The memory is of no use any more.
        Self { memory: None }
    }
}

/// No memory: a message of 0 bytes, or a receive for one.
impl sealed::WorkBuffer for () {
    type State = ();

    fn allows(&self, _domain: u64, _access: Access) -> bool {
        true
    }

    fn length(&self) -> usize {
        0
    }

    fn lend(self) -> LentList<()> {
        LentList { payload: Payload::new(), state: () }
    }

    fn reclaim(_list: LentList<()>) -> Self {}
}
