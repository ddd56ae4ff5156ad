//! The contract of the providers `soft` and `verbs`, and the code that they share.
//!
//! The public handles hold the enums of `backend`, which call the one or the other.
//!
//! A provider promises, beyond the types:
//!
//! * It drives [`proto::connector`](crate::proto::connector), which decides what each call and each event means; the
//!   provider only carries out its actions.
//! * A posted request finishes exactly once, in post order within its queue, through the
//!   [`CompletionSink`](crate::inflight::CompletionSink) of its queue. Its payload is not touched afterwards.
//! * `disconnected()` resolves before the requests of the connection are flushed.
//! * No call blocks, no lock of a provider is held across an await or a wake, and every future may be dropped at any time.
//! * When the adapter goes away every pending operation finishes with `DEVICE_REMOVED`.
//!
//! | module | what it does |
//! |---|---|
//! | [`info`] | the properties, limits and abilities of an adapter, and the facts of ports and of connections |
//! | [`params`] | the parameters of a queue pair or a connection |
//! | [`work`] | the requests of a send queue and of a lane |
//! | [`stream`] | the messages of a byte stream, for a provider that frames them itself |
//! | [`registry`] | the objects that end with an adapter |
//! | [`accept_queue`] | the requests of a listener that were not fetched, of which `proto::listener` admits as many as the backlog |
//! | [`connector`] | the driver of the state machine of a connector |

pub(crate) mod accept_queue;
pub(crate) mod connector;
pub(crate) mod info;
pub(crate) mod params;
pub(crate) mod registry;
#[cfg_attr(
    not(feature = "soft"),
    allow(dead_code, reason = "only the soft provider reads and writes by itself")
)]
pub(crate) mod stream;
pub(crate) mod work;

use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a number for a protection domain that no other adapter of this process has had, of any provider.
pub(crate) fn next_domain() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
