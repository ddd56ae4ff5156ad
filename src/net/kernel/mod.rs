//! The network of this machine (Linux).
//!
//! The modules, from the bottom up:
//!
//! * [`readable`]: descriptors that the runtime watches;
//! * [`interfaces`]: the interfaces of the machine, their addresses, and notifications that either may have changed;
//! * [`options`]: the options of a socket, before and after it connects;
//! * [`bind`], [`listen`], [`connect`]: `IND2Connector::Bind`, `IND2Listener::{Bind, Listen}`, and the TCP
//!   part of `IND2Connector::Connect`.
//!
//! Everything acts in the network namespace of the *calling thread*, as every socket does
//! (network_namespaces(7)).

#[cfg(feature = "soft")]
pub(crate) mod bind;
#[cfg(feature = "soft")]
pub(crate) mod connect;
pub(crate) mod interfaces;
#[cfg(feature = "soft")]
pub(crate) mod listen;
#[cfg(feature = "soft")]
pub(crate) mod options;

#[cfg(test)]
pub(super) mod testing;

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
