//! A network interface of a host.

use std::net::IpAddr;

/// A network interface: what an adapter of the soft provider is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// The kernel's number for it, never 0; unique within the network namespace until the interface is
    /// removed.
    pub(crate) index: u32,
    /// Its name, `eth0`.
    pub(crate) name: String,
    /// Its IPv4 and IPv6 addresses in the kernel's order, each once.
    ///
    /// Link-local IPv6 addresses (`fe80::/10`) are left out: they cannot be bound, nor connected to, without
    /// the scope that an `IpAddr` has no room for (ipv6(7)).
    pub(crate) addresses: Vec<IpAddr>,
    /// It is switched on (`IFF_UP`). A cable that is unplugged does not count, its addresses still work.
    pub(crate) up: bool,
    /// It is the loopback interface (`IFF_LOOPBACK`).
    pub(crate) loopback: bool,
}
