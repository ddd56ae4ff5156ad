//! Notifies that interfaces or addresses were added, removed or changed.
//!
//! An adapter whose interface is removed must end everything that waits on it with `DEVICE_REMOVED`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use tokio::io::unix::AsyncFd;

use super::readiness::readable;
use crate::net::require_runtime;

/// Messages that one call reads at most, so that a storm of changes cannot hold it for ever.
const DRAIN_LIMIT: usize = 1024;

/// A subscription to the kernel's announcements of links and addresses (rtnetlink(7)).
///
/// It does not parse them: the task that is notified reads [`interfaces`](super::interfaces::interfaces) again, which
/// is the only way that also survives lost messages. The subscription belongs to the network namespace of the thread
/// that calls [`open`](Self::open), for good.
#[derive(Debug)]
pub(crate) struct AddressMonitor {
    socket: AsyncFd<OwnedFd>,
}

impl AddressMonitor {
    /// Subscribes. Changes from now on are noticed, so read the list *after* this.
    ///
    /// # Errors
    /// No descriptor is left, the kernel lets this process have no netlink socket, or this is no tokio
    /// runtime.
    pub(crate) fn open() -> io::Result<Self> {
        require_runtime()?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let descriptor = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        // Port id 0: the kernel picks one (netlink(7)).
        bind(descriptor.as_raw_fd(), &NetlinkAddr::new(0, groups.cast_unsigned()))?;
        Ok(Self { socket: readable(descriptor)? })
    }

    /// Resolves when anything was announced since the last call, or since [`open`](Self::open).
    ///
    /// Everything that waits is taken at once: a burst is one change. Messages that the kernel had to drop for want of
    /// buffer space (`ENOBUFS`) are a change as well. For one waiter at a time: of several, one is woken.
    ///
    /// # Errors
    /// The netlink socket failed; the monitor can no longer be used.
    ///
    /// # Cancel safety
    /// Nothing is lost: messages are taken in the poll that returns.
    pub(crate) async fn changed(&self) -> io::Result<()> {
        // The contents do not matter, so a message may well be cut short.
        let mut scratch = [0; 64];
        loop {
            let mut ready = self.socket.readable().await?;
            let mut seen = false;
            for _ in 0..DRAIN_LIMIT {
                let message = ready.try_io(|socket| {
                    recv(socket.as_raw_fd(), &mut scratch, MsgFlags::MSG_DONTWAIT).map_err(io::Error::from)
                });
                match message {
                    Ok(Ok(_)) => seen = true,
                    Ok(Err(error)) => match error.raw_os_error().map(Errno::from_raw) {
                        Some(Errno::ENOBUFS) => seen = true,
                        Some(Errno::EINTR) => {}
                        _ => return Err(error),
                    },
                    Err(_would_block) => break,
                }
            }
            if seen {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use socket2::SockRef;
    use tokio::time::timeout;

    use super::super::interfaces::interface_of;
    use super::super::testing::{block_on, in_namespace, ip};
    use super::*;

    const SOON: Duration = Duration::from_secs(10);
    const QUIET: Duration = Duration::from_millis(50);

    #[test]
    fn announces_links_and_addresses_once() {
        in_namespace(|| {
            block_on(async {
                let monitor = AddressMonitor::open().expect("monitor");
                timeout(QUIET, monitor.changed()).await.expect_err("nothing happened yet");
                let steps = [
                    "link add spare type veth peer name other",
                    "address add 10.9.0.1/24 dev spare",
                    "address add fd09::1/64 dev spare nodad",
                    "link set spare up",
                    "link delete spare",
                ];
                for step in steps {
                    ip(step);
                    timeout(SOON, monitor.changed()).await.expect(step).expect(step);
                    // IPv6 goes on in the background: a link-local address appears, routes settle.
                    while timeout(QUIET, monitor.changed()).await.is_ok() {}
                }
            });
        });
    }

    #[test]
    fn wakes_a_waiter_and_survives_cancellation() {
        in_namespace(|| {
            block_on(async {
                let monitor = AddressMonitor::open().expect("monitor");
                timeout(QUIET, monitor.changed()).await.expect_err("cancelled");
                let (waited, ()) = tokio::join!(timeout(SOON, monitor.changed()), async {
                    tokio::task::yield_now().await;
                    ip("address add 10.9.0.1/32 dev lo");
                });
                waited.expect("in time").expect("changed");
                assert!(interface_of([10, 9, 0, 1].into()).expect("interfaces").is_some());
            });
        });
    }

    #[test]
    fn lost_messages_are_a_change() {
        in_namespace(|| {
            block_on(async {
                let monitor = AddressMonitor::open().expect("monitor");
                SockRef::from(monitor.socket.get_ref()).set_recv_buffer_size(1).expect("buffer size");
                for host in 1..=40 {
                    ip(&format!("address add 10.9.0.{host}/32 dev lo"));
                }
                timeout(SOON, monitor.changed()).await.expect("in time").expect("changed");
                timeout(QUIET, monitor.changed()).await.expect_err("drained");
            });
        });
    }

    #[test]
    fn listens_in_the_namespace_of_the_opening_thread() {
        in_namespace(|| {
            block_on(async {
                let outer = AddressMonitor::open().expect("monitor");
                in_namespace(|| ip("address add 10.9.0.1/32 dev lo"));
                timeout(QUIET, outer.changed()).await.expect_err("another namespace");
            });
        });
    }

    #[test]
    fn outside_a_runtime_is_an_error() {
        AddressMonitor::open().expect_err("no runtime");
    }
}
