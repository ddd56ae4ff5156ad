//! Descriptors that the runtime watches.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The owner of a descriptor that stays open and the same until the owner is dropped.
pub(crate) trait Descriptor: AsRawFd {}

impl Descriptor for OwnedFd {}

/// Watches whether a descriptor can be read.
///
/// # Errors
/// The runtime cannot watch the descriptor.
///
/// # Panics
/// Outside of a tokio runtime, and in one without I/O.
pub(crate) fn readable<T: Descriptor>(owner: T) -> io::Result<AsyncFd<T>> {
    #[allow(
        deprecated,
        reason = "from tokio 1.54 on the successor is unsafe, because a type may close or change its descriptor; \
                  a `Descriptor` does not, and tokio 1.51 has no successor"
    )]
    AsyncFd::with_interest(owner, Interest::READABLE)
}
