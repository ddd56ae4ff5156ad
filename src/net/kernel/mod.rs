//! The network of this machine (Linux).
//!
//! The modules, from the bottom up:
//!
//! * [`readable`]: descriptors that the runtime watches;
//! * [`interfaces`]: the interfaces of the machine, their addresses, and notifications that either may have changed;
//! * [`options`]: the options of a socket, before and after it connects;
//! * [`connect`], [`listen`]: `IND2Connector::Bind` and the TCP part of `IND2Connector::Connect`, and
//!   `IND2Listener::{Bind, Listen}`.
//!
//! Everything acts in the network namespace of the *calling thread*, as every socket does
//! (network_namespaces(7)).

#[cfg(feature = "soft")]
pub(crate) mod connect;
pub(crate) mod interfaces;
#[cfg(feature = "soft")]
pub(crate) mod listen;
#[cfg(feature = "soft")]
pub(crate) mod options;

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

/// The helpers that the tests of this module share, such as a network namespace of a test's own.
#[cfg(test)]
pub(super) mod testing {
    #![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]
    use std::fmt::Debug;
    use std::net::SocketAddr;
    use std::process::Command;
    use std::thread;
    use std::time::{Duration, Instant};

    use nix::errno::Errno;
    use nix::sched::{CloneFlags, unshare};

    #[cfg(feature = "soft")]
    use super::options::SocketError;
    #[cfg(feature = "soft")]
    use crate::error::BindError;

    /// Runs `test` on a fresh thread in a new network namespace, whose loopback interface is up.
    ///
    /// Says so and returns when this process may not make one.
    pub(in crate::net) fn in_namespace(test: impl FnOnce() + Send + 'static) {
        let run = move || {
            match unshare(CloneFlags::CLONE_NEWNET) {
                Ok(()) => {}
                Err(Errno::EPERM) => return eprintln!("skipped: needs CAP_NET_ADMIN"),
                Err(error) => panic!("unshare: {error}"),
            }
            ip("link set lo up");
            test();
        };
        if let Err(panic) = thread::spawn(run).join() {
            std::panic::resume_unwind(panic);
        }
    }

    /// Runs a test as [`in_namespace`] does, on a tokio runtime of the fresh thread.
    pub(super) fn in_namespace_async(test: impl Future<Output = ()> + Send + 'static) {
        in_namespace(|| block_on(test));
    }

    /// Makes two interfaces that are linked, `left` and `right`, of which the left one has these addresses.
    pub(super) fn veth(addresses: &[&str]) {
        ip("link add left type veth peer name right");
        addresses.iter().for_each(|address| ip(&format!("address add {address} dev left")));
        ip("link set right up");
        ip("link set left up");
    }

    /// Reads an address with its port.
    pub(in crate::net) fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    /// Returns the error of a bind. There is no other, unless an option is not supported.
    #[cfg(feature = "soft")]
    pub(super) fn bind_errors(error: SocketError) -> BindError {
        match error {
            SocketError::Bind(error) => error,
            other => panic!("{other:?}"),
        }
    }

    /// Runs `ip` with these arguments, in the namespace of the calling thread.
    pub(super) fn ip(arguments: &str) {
        command("ip", &arguments.split(' ').collect::<Vec<_>>());
    }

    /// Loads an nftables rule set, in the namespace of the calling thread.
    pub(super) fn nft(rules: &str) {
        command("nft", &[rules]);
    }

    fn command(program: &str, arguments: &[&str]) {
        let output = Command::new(program).args(arguments).output().expect(program);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    }

    /// Tries until it works: what a socket held is free when the last copy of its descriptor is closed, and a test that
    /// starts a program at this moment has copies of them all until the program runs.
    pub(super) fn eventually<T, E: Debug>(mut attempt: impl FnMut() -> Result<T, E>) -> T {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            match attempt() {
                Ok(value) => return value,
                Err(error) => assert!(Instant::now() < end, "still not: {error:?}"),
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Runs a future on a tokio runtime of this thread alone, so that it stays in the thread's namespace.
    pub(super) fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime").block_on(future)
    }
}
