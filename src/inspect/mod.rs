//! Snapshots of every object of this crate in the process, with the reason why each waits (feature `inspect`).
//!
//! [`snapshot`] looks at each adapter, listener, connection, completion queue, lane, stream, session and channel, and returns plain
//! data. Each report has a field `waits_for`, a sentence with the cause if the object makes no progress:
//!
//! ```text
//! accept pending: the peer has not completed for 12.0 s
//! no credit: the program of the peer has not read 1,048,576 bytes
//! shared receive queue empty: a message of the peer waits for a receive
//! socket full: the peer has acknowledged nothing for 1.1 s
//! ```
//!
//! [`Server`] serves snapshots at a Unix socket, which `cargo rdma-top` reads. When a time limit of this crate ends a connection, the
//! close of a stream, or a session, the sentence is in the log, too.
//!
//! Without the feature none of this is compiled. With it, and as long as no snapshot is made, a request costs a look at the clock.

#[cfg(feature = "inspect")]
mod causes;
#[cfg(feature = "inspect")]
mod list;
mod marks;
#[cfg(feature = "inspect")]
mod report;

#[cfg(all(feature = "inspect", feature = "sim"))]
pub(crate) use list::Simulated;
#[cfg(feature = "inspect")]
pub use list::{Inspect, Place, Server, default_path, directory, register, snapshot};
#[cfg(feature = "inspect")]
pub(crate) use list::{is_logged, log_cause, log_given_up, log_unconfirmed};
pub(crate) use marks::{Flow, FutureWait, FutureWaits, Mark, PolledWait, Posted, Steps, Woken};
#[cfg(feature = "inspect")]
pub(crate) use report::LISTED;
#[cfg(feature = "inspect")]
pub use report::*;
