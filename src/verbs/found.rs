//! The consequences of completions, which are found under locks and carried out without one.

use crate::error::WcError;
use crate::inflight::{Polling, WakeList};

/// The result of looking at completions.
#[derive(Default)]
pub(crate) struct Found<'a, 'b> {
    pub(crate) wakes: WakeList,
    /// The queue of the program that is being polled.
    pub(crate) polling: Option<&'a mut Polling<'b>>,
    pub(crate) queue_pair: News,
}

/// The result for the connection of a queue pair.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// A message has come before the connection was established.
    pub(crate) received: bool,
    /// The failure of the first request that failed, and the key of the device's queue pair.
    pub(crate) broken: Option<(WcError, u32)>,
    /// The failure of the request that asks for a sign of life, and the key of the device's queue pair.
    pub(crate) silent: Option<(WcError, u32)>,
}

impl<'a, 'b> Found<'a, 'b> {
    /// Creates an empty result, with the queue of a caller that polls.
    pub(crate) fn by(polling: Option<&'a mut Polling<'b>>) -> Self {
        Self { polling, ..Self::default() }
    }
}
