//! The network interfaces of this machine, the local addresses that can be served, and notifications that either may have
//! changed.
//!
//! Serves `IND2Provider::QueryAddressList` and `ResolveAddress`, and the helpers `NdResolveAddress` and
//! `NdCheckAddress` (ND keeps them in its client library). An adapter whose interface is removed must end everything that
//! waits on it with `DEVICE_REMOVED`.

use std::collections::HashMap;
use std::io;
#[cfg(feature = "verbs")]
use std::net::SocketAddrV6;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, recv,
    socket,
};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::unix::AsyncFd;

use super::readable;
use crate::net::{errno, is_peer_address, require_runtime};

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
    /// Packets can be sent and received: it has a carrier, too (`IFF_RUNNING`).
    pub(crate) running: bool,
    /// It is the loopback interface (`IFF_LOOPBACK`).
    pub(crate) loopback: bool,
}

#[cfg(test)]
std::thread_local! {
    /// The number of times that this thread has listed the interfaces.
    pub(crate) static LISTED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Lists the interfaces, with and without addresses, in the kernel's order.
///
/// An IPv6 address that is still being checked for duplicates is in the list though it cannot be bound yet:
/// [`is_usable`] returns `false` for it. Source: getifaddrs(3), netdevice(7).
pub(crate) fn interfaces() -> io::Result<Vec<Interface>> {
    #[cfg(test)]
    LISTED.set(LISTED.get() + 1);
    let entries: Vec<InterfaceAddress> = getifaddrs()?.collect();
    interfaces_of(&entries)
}

/// Returns the interfaces that these entries are about.
fn interfaces_of(entries: &[InterfaceAddress]) -> io::Result<Vec<Interface>> {
    let mut found = Vec::new();
    let mut places = HashMap::new();
    // The interfaces themselves come as entries with a hardware address, or with none at all (tunnels).
    for entry in entries {
        let hardware = entry.address.as_ref().and_then(SockaddrStorage::as_link_addr);
        if (entry.address.is_some() && hardware.is_none()) || places.contains_key(&entry.interface_name) {
            continue;
        }
        let index = match hardware.and_then(|address| u32::try_from(address.ifindex()).ok()) {
            Some(index) => index,
            None => match if_nametoindex(entry.interface_name.as_str()) {
                Ok(index) => index,
                // Removed since the list was made.
                Err(Errno::ENODEV | Errno::ENXIO) => continue,
                Err(error) => return Err(error.into()),
            },
        };
        places.insert(entry.interface_name.clone(), found.len());
        found.push(Interface {
            index,
            name: entry.interface_name.clone(),
            addresses: Vec::new(),
            up: entry.flags.contains(InterfaceFlags::IFF_UP),
            running: entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
            loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
        });
    }
    for entry in entries {
        let Some(ip) = entry.address.as_ref().and_then(bindable) else { continue };
        let Some(place) = place_of(&places, &entry.interface_name) else { continue };
        if let Some(interface) = found.get_mut(place).filter(|interface| !interface.addresses.contains(&ip)) {
            interface.addresses.push(ip);
        }
    }
    Ok(found)
}

/// Returns the address of an entry, if it is one that [`Interface::addresses`] lists.
fn bindable(address: &SockaddrStorage) -> Option<IpAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(IpAddr::V4(v4.ip()));
    }
    let v6 = address.as_sockaddr_in6()?.ip();
    (!v6.is_unicast_link_local()).then_some(IpAddr::V6(v6))
}

/// Lists the addresses of the interfaces that are up, with port 0. Those that are link-local are the last, each with
/// the number of its interface as the scope: several interfaces may have the same one.
#[cfg(feature = "verbs")]
pub(crate) fn addresses() -> io::Result<Vec<SocketAddr>> {
    Ok(addresses_by_interface()?.into_iter().map(|(_, address)| address).collect())
}

/// Lists the addresses like [`addresses`], each behind the number of its interface.
#[cfg(feature = "verbs")]
pub(crate) fn addresses_by_interface() -> io::Result<Vec<(u32, SocketAddr)>> {
    let entries: Vec<InterfaceAddress> = getifaddrs()?.collect();
    let up = interfaces_of(&entries)?.into_iter().filter(|interface| interface.up);
    let global = up.flat_map(|interface| {
        let index = interface.index;
        interface.addresses.into_iter().map(move |ip| (index, SocketAddr::new(ip, 0)))
    });
    let up = entries.iter().filter(|entry| entry.flags.contains(InterfaceFlags::IFF_UP));
    let link_local = up.filter_map(|entry| {
        let address = *entry.address.as_ref()?.as_sockaddr_in6()?;
        let scoped = SocketAddrV6::new(address.ip(), 0, 0, address.scope_id());
        is_link_local(&scoped.into()).then_some((address.scope_id(), SocketAddr::V6(scoped)))
    });
    Ok(global.chain(link_local).collect())
}

/// Returns whether this is a link-local IPv6 address, which means nothing without its scope.
#[cfg(feature = "verbs")]
pub(crate) fn is_link_local(address: &SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local())
}

/// Finds the interface to which an address entry named `label` belongs.
///
/// For IPv4 the name is the address's *label*. It equals the interface's name unless another label was chosen, which
/// must begin with that name, by custom `eth0:1` (ip-address(8)). So: the longest name that the label begins with.
fn place_of(places: &HashMap<String, usize>, label: &str) -> Option<usize> {
    let exact = places.get(label);
    let known = exact.or_else(|| label.split_once(':').and_then(|(name, _)| places.get(name)));
    let guess =
        || places.iter().filter(|(name, _)| label.starts_with(*name)).max_by_key(|(name, _)| name.len());
    known.copied().or_else(|| guess().map(|(_, place)| *place))
}

/// Returns the interface that has this address; `None` if this machine does not have the address.
///
/// An IPv4-mapped IPv6 address is looked up as IPv4. All of `127.0.0.0/8` belongs to the loopback interface
/// while that has an address of that network (ip(7)), though only `127.0.0.1` is in its list.
pub(crate) fn interface_of(ip: IpAddr) -> io::Result<Option<Interface>> {
    let ip = ip.to_canonical();
    let mut all = interfaces()?;
    let v4_loopback = |ip: &IpAddr| ip.is_ipv4() && ip.is_loopback();
    let place = all.iter().position(|interface| interface.addresses.contains(&ip)).or_else(|| {
        let owns = |interface: &Interface| interface.loopback && interface.addresses.iter().any(v4_loopback);
        v4_loopback(&ip).then(|| all.iter().position(owns)).flatten()
    });
    Ok(place.map(|place| all.swap_remove(place)))
}

/// Returns the local address that the kernel would use to reach `remote`: `NdResolveAddress`, or `rdma_resolve_addr`
/// with no source.
///
/// Connecting a datagram socket looks up the route and sends nothing (udp(7), connect(2)). For a second IPv4
/// address of this machine in the same subnet the kernel answers with the first one, not with that address
/// itself.
///
/// # Errors
/// `ENETUNREACH` and its kin when there is no route, see [`connect_error`](crate::net::connect_error);
/// `EADDRNOTAVAIL` for an address that can never be a peer's.
pub(crate) fn source_for(remote: IpAddr) -> io::Result<IpAddr> {
    let remote = remote.to_canonical();
    if !is_peer_address(remote) {
        return Err(errno(libc::EADDRNOTAVAIL));
    }
    Ok(route_source(SocketAddr::new(remote, 0))?.ip())
}

/// Returns the local address like [`source_for`], for a peer whose address may be link-local and then has a scope. Then
/// the local address has one, too. Its port is 0.
#[cfg(feature = "verbs")]
pub(crate) fn scoped_source_for(remote: SocketAddr) -> io::Result<SocketAddr> {
    match remote {
        SocketAddr::V6(v6) if is_link_local(&remote) && v6.scope_id() != 0 => route_source(remote),
        _ => Ok(SocketAddr::new(source_for(remote.ip())?, 0)),
    }
}

/// Returns the local address of the route to a peer, with port 0.
fn route_source(mut peer: SocketAddr) -> io::Result<SocketAddr> {
    // The port plays no part in the route; 9 is "discard".
    peer.set_port(9);
    let socket = Socket::new(Domain::for_address(peer), Type::DGRAM, None)?;
    socket.connect(&SockAddr::from(peer)).map_err(|error| match error.raw_os_error() {
        // There is a route, but no local address for it.
        Some(libc::EADDRNOTAVAIL) => errno(libc::ENETUNREACH),
        _ => error,
    })?;
    let mut local = socket.local_addr()?.as_socket().ok_or_else(|| errno(libc::EAFNOSUPPORT))?;
    local.set_port(0);
    Ok(local)
}

/// Returns whether an adapter could use this address right now: `NdCheckAddress`.
///
/// It must be an address of an interface that is up, and the kernel must let a socket bind it, which it does
/// not while an IPv6 address is tentative. Binding alone is no test: the kernel also allows broadcast
/// addresses, and an IPv4 address that was given to an interface before that was first switched on.
pub(crate) fn is_usable(ip: IpAddr) -> io::Result<bool> {
    let ip = ip.to_canonical();
    if !interface_of(ip)?.is_some_and(|interface| interface.up) {
        return Ok(false);
    }
    let address = SocketAddr::new(ip, 0);
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    match socket.bind(&SockAddr::from(address)) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::EINVAL)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Messages that one call reads at most, so that a storm of changes cannot hold it for ever.
const DRAIN_LIMIT: usize = 1024;

/// What the kernel has announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announced {
    /// Links alone. Addresses have changed with one that has gone up or down.
    Links,
    /// Addresses, or more than there was room for.
    Addresses,
}

impl Announced {
    /// Returns the kind of a message, by the `nlmsg_type` of its header (netlink(7)).
    fn of(message: &[u8]) -> Self {
        match message.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes) {
            Some(libc::RTM_NEWLINK | libc::RTM_DELLINK) => Self::Links,
            _ => Self::Addresses,
        }
    }
}

/// A subscription to the kernel's announcements of links and addresses (rtnetlink(7)).
///
/// It reads no more of them than their kind: the task that is notified reads [`interfaces`] again, which
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

    /// Resolves with what was announced since the last call, or since [`open`](Self::open).
    ///
    /// Everything that waits is taken at once: a burst is one change. Messages that the kernel had to drop for want of
    /// buffer space (`ENOBUFS`) are a change as well. For one waiter at a time: of several, one is woken.
    ///
    /// # Errors
    /// The netlink socket failed; the monitor can no longer be used.
    ///
    /// # Cancel safety
    /// Nothing is lost: messages are taken in the poll that returns.
    pub(crate) async fn changed(&self) -> io::Result<Announced> {
        // The kind is in the header, so a message may well be cut short.
        let mut scratch = [0; 64];
        loop {
            let mut ready = self.socket.readable().await?;
            let mut seen = None;
            for _ in 0..DRAIN_LIMIT {
                let message = ready.try_io(|socket| {
                    recv(socket.as_raw_fd(), &mut scratch, MsgFlags::MSG_DONTWAIT).map_err(io::Error::from)
                });
                match message {
                    Ok(Ok(length)) => match Announced::of(scratch.get(..length).unwrap_or(&scratch)) {
                        Announced::Links => drop(seen.get_or_insert(Announced::Links)),
                        Announced::Addresses => seen = Some(Announced::Addresses),
                    },
                    Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                        seen = Some(Announced::Addresses);
                    }
                    Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(Err(error)) => return Err(error),
                    Err(_would_block) => break,
                }
            }
            if let Some(announced) = seen {
                return Ok(announced);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use socket2::SockRef;
    use tokio::time::timeout;

    use super::super::testing::{eventually, in_namespace, in_namespace_async, ip};
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn interfaces_of_a_namespace() {
        in_namespace(|| {
            ip("link add left type veth peer name right");
            ip("address add 10.9.0.1/24 dev left");
            ip("address add 10.9.0.2/24 dev left label left:1");
            ip("address add 10.9.0.3/24 dev left label leftmost");
            ip("address add fd09::1/64 dev left nodad");
            let left = |all: Vec<Interface>| all.into_iter().find(|i| i.name == "left").expect("left");
            assert!(!left(interfaces().expect("interfaces")).up);
            assert!(!is_usable(address("10.9.0.1")).expect("usable"), "the interface is down");
            ip("link set right up");
            ip("link set left up");

            let all = interfaces().expect("interfaces");
            assert_eq!(all.len(), 3, "{all:?}");
            let left = left(all);
            let expected = ["10.9.0.1", "10.9.0.2", "10.9.0.3", "fd09::1"].map(address);
            assert_eq!(left.addresses, expected, "the link-local address is left out");
            assert!(left.up && !left.loopback);
            assert_eq!(left.index, if_nametoindex("left").expect("index"));
            for ip in expected {
                assert_eq!(interface_of(ip).expect("interfaces"), Some(left.clone()));
                assert!(is_usable(ip).expect("usable"), "{ip}");
            }
            assert!(!is_usable(address("10.9.0.255")).expect("usable"), "the subnet's broadcast address");

            assert_eq!(source_for(address("10.9.0.77")).expect("route"), address("10.9.0.1"));
            assert_eq!(source_for(address("10.9.0.1")).expect("route"), address("10.9.0.1"), "oneself");
            assert_eq!(source_for(address("10.9.0.2")).expect("route"), address("10.9.0.1"), "the primary");
            // The kernel adds the routes of an IPv6 address a little later.
            assert_eq!(eventually(|| source_for(address("fd09::77"))), address("fd09::1"));
            #[cfg(feature = "verbs")]
            {
                let scope = left.index;
                let own = eventually(|| {
                    let is_own = |address: &SocketAddr| matches!(address, SocketAddr::V6(v6) if v6.scope_id() == scope);
                    let own = addresses()?.into_iter().find(is_own);
                    own.ok_or(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))
                });
                let peer =
                    SocketAddr::V6(SocketAddrV6::new("fe80::77".parse().expect("an address"), 7, 0, scope));
                // Not before it is certain that no other host has it.
                eventually(|| {
                    let source = scoped_source_for(peer)?;
                    (source == own).then_some(()).ok_or(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))
                });
                scoped_source_for(SocketAddr::new(peer.ip(), 7)).expect_err("without a scope");
                let global = scoped_source_for(SocketAddr::new(address("10.9.0.77"), 7)).expect("route");
                assert_eq!(global, SocketAddr::new(address("10.9.0.1"), 0));
            }
            for text in ["10.8.0.1", "fd08::1"] {
                let error = source_for(address(text)).expect_err("no route");
                assert_eq!(error.raw_os_error(), Some(libc::ENETUNREACH), "{text}");
            }
        });
    }

    // PRV-05: the peer's address is not to blame.
    #[test]
    fn a_route_without_a_local_address_is_unreachable() {
        in_namespace(|| {
            ip("link add left type veth peer name right");
            ip("link set left addrgenmode none");
            ip("link set right up");
            ip("link set left up");
            // Its addresses would do.
            ip("address flush dev lo");
            ip("-6 route add fd09::/64 dev left");
            let error = source_for(address("fd09::77")).expect_err("no local address");
            assert_eq!(error.raw_os_error(), Some(libc::ENETUNREACH));
        });
    }

    #[test]
    fn loopback_that_is_down_has_no_addresses() {
        in_namespace(|| {
            ip("link set lo down");
            ip("address flush dev lo");
            let all = interfaces().expect("interfaces");
            assert_eq!(all.len(), 1);
            assert!(!all[0].up && all[0].loopback && all[0].addresses.is_empty(), "{all:?}");
            assert_eq!(interface_of(address("127.0.0.1")).expect("interfaces"), None);
        });
    }

    #[test]
    fn interface_without_hardware_address() {
        in_namespace(|| {
            ip("tuntap add tunnel mode tun");
            ip("address add 10.7.0.1/32 dev tunnel");
            let tunnel = interface_of(address("10.7.0.1")).expect("interfaces").expect("tunnel");
            assert_eq!(
                (tunnel.name.as_str(), tunnel.index),
                ("tunnel", if_nametoindex("tunnel").expect("index"))
            );
        });
    }

    const SOON: Duration = Duration::from_secs(10);
    const QUIET: Duration = Duration::from_millis(50);

    #[test]
    fn announces_links_and_addresses_once() {
        in_namespace_async(async {
            let monitor = AddressMonitor::open().expect("monitor");
            timeout(QUIET, monitor.changed()).await.expect_err("nothing happened yet");
            use Announced::{Addresses, Links};
            // The removal of a link ends its addresses, too.
            let steps = [
                ("link add spare type veth peer name other", Links),
                ("address add 10.9.0.1/24 dev spare", Addresses),
                ("address add fd09::1/64 dev spare nodad", Addresses),
                ("link set spare up", Links),
                ("link delete spare", Addresses),
            ];
            for (step, expected) in steps {
                ip(step);
                let announced = timeout(SOON, monitor.changed()).await.expect(step).expect(step);
                assert_eq!(announced, expected, "{step}");
                // IPv6 goes on in the background: a link-local address appears, routes settle.
                while timeout(QUIET, monitor.changed()).await.is_ok() {}
            }
        });
    }

    #[test]
    fn wakes_a_waiter_and_survives_cancellation() {
        in_namespace_async(async {
            let monitor = AddressMonitor::open().expect("monitor");
            timeout(QUIET, monitor.changed()).await.expect_err("cancelled");
            let (waited, ()) = tokio::join!(timeout(SOON, monitor.changed()), async {
                tokio::task::yield_now().await;
                ip("address add 10.9.0.1/32 dev lo");
            });
            waited.expect("in time").expect("changed");
            assert!(interface_of([10, 9, 0, 1].into()).expect("interfaces").is_some());
        });
    }

    #[test]
    fn lost_messages_are_a_change() {
        in_namespace_async(async {
            let monitor = AddressMonitor::open().expect("monitor");
            SockRef::from(monitor.socket.get_ref()).set_recv_buffer_size(1).expect("buffer size");
            for host in 1..=40 {
                ip(&format!("address add 10.9.0.{host}/32 dev lo"));
            }
            timeout(SOON, monitor.changed()).await.expect("in time").expect("changed");
            timeout(QUIET, monitor.changed()).await.expect_err("drained");
        });
    }

    #[test]
    fn listens_in_the_namespace_of_the_opening_thread() {
        in_namespace_async(async {
            let outer = AddressMonitor::open().expect("monitor");
            in_namespace(|| ip("address add 10.9.0.1/32 dev lo"));
            timeout(QUIET, outer.changed()).await.expect_err("another namespace");
        });
    }

    #[test]
    fn outside_a_runtime_is_an_error() {
        AddressMonitor::open().expect_err("no runtime");
    }
}
