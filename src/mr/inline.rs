//! The bytes of an inline request, and the empty buffer.

use crate::inflight::{LentList, Payload, sealed};
use crate::types::Access;

/// The bytes of an inline request. They were copied when the request was posted, and its future returns none.
#[derive(Debug)]
pub struct Inline {
    _private: (),
}

impl sealed::WorkBuffer for Inline {
    type State = ();

    fn allows(&self, _domain: u64, access: Access) -> bool {
        access.is_empty()
    }

    fn length(&self) -> usize {
        0
    }

    fn lend(self) -> LentList<()> {
        LentList { payload: Payload::new(), state: () }
    }

    fn reclaim(_list: LentList<()>) -> Self {
        // The memory of a copy has no further use.
        Self { _private: () }
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
