//! Local addresses, ports and TCP sockets: the interface of the providers to the network.
//!
//! Nothing here depends on iWARP. The modules, from the bottom up:
//!
//! * [`ports`]: the ports that this process holds, and the choice of the one to try next;
//! * `descriptors`: the numbers of descriptors that peers may hold;
//! * `capture`: the bytes of connections as a file for Wireshark;
//! * [`kernel`]: the network of this machine;
//! * `sim`: a network in memory;
//! * `stream`, `host`: the sockets and the host that the soft provider works with;
//! * [`connect_error`] and [`route_error`]: the errors of a failed connect as those of ND.

#[cfg(feature = "soft")]
pub(crate) mod capture;
#[cfg_attr(not(feature = "soft"), allow(dead_code, reason = "connections of devices hold no descriptors"))]
pub(crate) mod descriptors;
#[cfg(feature = "soft")]
pub(crate) mod host;
pub(crate) mod kernel;
#[cfg_attr(
    not(feature = "soft"),
    allow(dead_code, reason = "devices hold the ports of their connections themselves")
)]
pub(crate) mod ports;
#[cfg(feature = "sim")]
pub(crate) mod sim;
#[cfg(feature = "soft")]
pub(crate) mod stream;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::error::{ConnectError, OpenError, Reason};
use crate::status::Status;
#[cfg(feature = "soft")]
use ports::PortLease;

#[cfg(feature = "soft")]
pub(crate) use host::{BoundListener, BoundSocket, Host, Listener, Monitor};
#[cfg(feature = "soft")]
pub(crate) use kernel::interfaces::Interface;
#[cfg(feature = "soft")]
pub(crate) use stream::Stream;

/// A connected stream of type `S`.
#[cfg(feature = "soft")]
#[derive(Debug)]
pub(crate) struct Connected<S = Stream> {
    /// The stream; see [`Stream::prepare`].
    pub(crate) stream: S,
    /// Its local address, now in full.
    pub(crate) local: SocketAddr,
    /// Keeps the port from the rest of the process; keep it as long as the stream.
    pub(crate) lease: PortLease,
}

/// A connect that has failed from a socket of type `B`.
#[cfg(feature = "soft")]
#[derive(Debug)]
pub(crate) struct ConnectFailure<B = BoundSocket> {
    /// The kernel's error, `ETIMEDOUT` when the caller's time was up. See [`connect_error`] for what it means;
    /// `EADDRNOTAVAIL` in particular is worth another port.
    pub(crate) error: io::Error,
    /// The socket, still bound and good for another attempt; `None` in the rare case that it could not be saved.
    pub(crate) bound: Option<B>,
}

/// Returns the same address with an IPv4-mapped IPv6 address written as IPv4.
///
/// Our IPv6 sockets are IPv6 only, so `::ffff:a.b.c.d` must become an IPv4 socket to mean anything (ipv6(7)).
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some() => {
            SocketAddr::new(address.ip().to_canonical(), address.port())
        }
        other => other,
    }
}

/// Returns the plain kernel error with this number.
fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// Returns an error outside of a runtime, where tokio would panic because sockets have no driver.
///
/// A runtime built without I/O cannot be distinguished; in that one tokio still panics.
fn require_runtime() -> io::Result<()> {
    tokio::runtime::Handle::try_current().map(drop).map_err(io::Error::other)
}

/// Returns whether this can be the address of one peer: not unspecified, multicast or broadcast.
///
/// A link-local IPv6 address counts as none either, as an `IpAddr` cannot say on which link.
pub(crate) fn is_peer_address(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(v4) => !v4.is_unspecified() && !v4.is_multicast() && v4 != Ipv4Addr::BROADCAST,
        IpAddr::V6(v6) => !v6.is_unspecified() && !v6.is_multicast() && !v6.is_unicast_link_local(),
    }
}

/// Refuses destinations that can never be a peer, before any packet is sent.
///
/// The kernel would take some of them: it reads an unspecified destination as "this machine". ND's tests want
/// an invalid destination reported as such and at once. A link-local IPv6 address is good with a scope.
///
/// # Errors
/// [`ConnectError::InvalidAddress`]: unspecified, multicast, broadcast, port 0, or link-local without a
/// scope.
pub(crate) fn validate_destination(peer: SocketAddr) -> Result<(), ConnectError> {
    let scoped = match peer {
        SocketAddr::V6(v6) => v6.scope_id() != 0 && v6.ip().is_unicast_link_local(),
        SocketAddr::V4(_) => false,
    };
    if peer.port() != 0 && (scoped || is_peer_address(peer.ip())) {
        Ok(())
    } else {
        Err(ConnectError::InvalidAddress(peer))
    }
}

/// Translates the error of a connect(2) to `peer`, whether it came at once or later (`SO_ERROR`).
///
/// ND knows two ways of having no route. Which of the kernel's routes that refuse gives which is decided here
/// so that a route looks the same on this machine as on a router on the way, whose ICMP answers the kernel
/// turns into an error of its own (RFC 1122 section 3.2.2.1, ip-route(8)):
///
/// | route | connect(2) here | from a router | becomes |
/// |---|---|---|---|
/// | none | `ENETUNREACH` | net unreachable: `ENETUNREACH` | [`NetworkUnreachable`](ConnectError::NetworkUnreachable) |
/// | `unreachable` | `EHOSTUNREACH` (IPv6 too) | host unreachable: `EHOSTUNREACH` | [`HostUnreachable`](ConnectError::HostUnreachable) |
/// | `prohibit` | `EACCES` | communication prohibited: `EHOSTUNREACH` | [`HostUnreachable`](ConnectError::HostUnreachable) |
/// | `blackhole` | `EINVAL` | silence, so `ETIMEDOUT` | [`NetworkUnreachable`](ConnectError::NetworkUnreachable) |
///
/// `EINVAL` means a route only for a destination that [`validate_destination`] lets pass. `EPERM` is a local
/// policy (a control group's, a packet filter's) and is treated like a prohibiting route. `EADDRNOTAVAIL` on
/// a bound socket means that the kernel still knows a connection of these two addresses and ports, if only in
/// TIME_WAIT ([`AddressAlreadyExists`](ConnectError::AddressAlreadyExists)): with a port of our choice, try
/// the next one. A reset that comes when the handshake is done is what a listener with a full backlog may
/// send (`tcp_abort_on_overflow`, tcp(7)), hence a refusal.
pub(crate) fn connect_error(error: &io::Error, peer: SocketAddr) -> ConnectError {
    let Some(code) = error.raw_os_error() else {
        // Tokio has no error number for a socket whose runtime has shut down, and nothing else is without one.
        return ConnectError::Other { peer, status: Status::CANCELED, reason: Reason::RUNTIME_ENDED };
    };
    let reason = Reason::Errno(code);
    match code {
        libc::ECONNREFUSED | libc::ECONNRESET | libc::ECONNABORTED => ConnectError::Refused { peer, reason },
        libc::ENETUNREACH | libc::ENETDOWN => ConnectError::NetworkUnreachable { peer },
        libc::EHOSTUNREACH | libc::EHOSTDOWN | libc::ENONET | libc::EACCES | libc::EPERM => {
            ConnectError::HostUnreachable { peer }
        }
        libc::ETIMEDOUT => ConnectError::TimedOut { peer, limit: None },
        libc::EADDRNOTAVAIL | libc::EADDRINUSE => ConnectError::AddressAlreadyExists { peer },
        libc::EAFNOSUPPORT => ConnectError::InvalidAddress(peer),
        libc::EINVAL => match validate_destination(peer) {
            Ok(()) => ConnectError::NetworkUnreachable { peer },
            Err(error) => error,
        },
        _ => ConnectError::Other { peer, status: Status::from_io(error), reason },
    }
}

/// Returns the error of an attempt of which a call of the system has failed.
pub(crate) fn attempt_error(error: &io::Error, peer: SocketAddr) -> ConnectError {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
            let reason = error.raw_os_error().map_or(Reason::PeerClosed, Reason::Errno);
            ConnectError::Refused { peer, reason }
        }
        _ => connect_error(error, peer),
    }
}

/// Translates the error of looking up the local address from which `remote` is reached.
///
/// The errors of a route that refuses are those of [`connect_error`]. All others say that the system could not look it up, as
/// without a free descriptor.
pub(crate) fn route_error(error: io::Error, remote: IpAddr) -> OpenError {
    if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) {
        return OpenError::InvalidAddress(remote);
    }
    match connect_error(&error, SocketAddr::new(remote, 0)) {
        // The last one: the system has no IPv6.
        ConnectError::NetworkUnreachable { .. }
        | ConnectError::HostUnreachable { .. }
        | ConnectError::InvalidAddress(_) => OpenError::Unreachable(remote),
        _ => OpenError::Os { call: "socket", source: error.into() },
    }
}

#[cfg(test)]
mod tests {
    use super::kernel::testing::address as peer;
    use super::*;

    #[test]
    fn destinations() {
        for text in ["10.0.0.1:1", "127.0.0.1:65535", "[::1]:7", "[fe80::1%2]:7", "[::ffff:10.0.0.1]:7"] {
            validate_destination(peer(text)).expect(text);
        }
        let invalid =
            ["0.0.0.0:7", "[::]:7", "224.0.0.1:7", "[ff02::1]:7", "[ff02::1%2]:7", "255.255.255.255:7"];
        for text in invalid.into_iter().chain(["10.0.0.1:0", "[fe80::1]:7", "[::ffff:0.0.0.0]:7"]) {
            let error = validate_destination(peer(text)).expect_err(text);
            assert!(matches!(error, ConnectError::InvalidAddress(found) if found == peer(text)), "{text}");
        }
    }

    // PRV-05: what has nothing to do with the route is not reported as one that is missing.
    #[test]
    fn numbers() {
        use Status as S;
        let good = peer("10.0.0.1:7");
        // The status of a connect, and that of the lookup of a route, which does not have all of them.
        let cases = [
            (libc::ECONNREFUSED, S::CONNECTION_REFUSED, None),
            (libc::ECONNRESET, S::CONNECTION_REFUSED, None),
            (libc::ENETUNREACH, S::NETWORK_UNREACHABLE, Some(S::NETWORK_UNREACHABLE)),
            (libc::EHOSTUNREACH, S::HOST_UNREACHABLE, Some(S::NETWORK_UNREACHABLE)),
            (libc::EHOSTDOWN, S::HOST_UNREACHABLE, Some(S::NETWORK_UNREACHABLE)),
            (libc::EACCES, S::HOST_UNREACHABLE, Some(S::NETWORK_UNREACHABLE)),
            (libc::ETIMEDOUT, S::IO_TIMEOUT, None),
            (libc::EADDRNOTAVAIL, S::ADDRESS_ALREADY_EXISTS, Some(S::INVALID_ADDRESS)),
            (libc::EAFNOSUPPORT, S::INVALID_ADDRESS, Some(S::NETWORK_UNREACHABLE)),
            (libc::EINVAL, S::NETWORK_UNREACHABLE, Some(S::NETWORK_UNREACHABLE)),
            (libc::ENOBUFS, S::INSUFFICIENT_RESOURCES, Some(S::INSUFFICIENT_RESOURCES)),
            (libc::ENOMEM, S::INSUFFICIENT_RESOURCES, Some(S::INSUFFICIENT_RESOURCES)),
            (libc::EMFILE, S::INSUFFICIENT_RESOURCES, Some(S::INSUFFICIENT_RESOURCES)),
            (libc::ENFILE, S::INSUFFICIENT_RESOURCES, Some(S::INSUFFICIENT_RESOURCES)),
        ];
        for (code, status, of_route) in cases {
            let error = connect_error(&errno(code), good);
            assert_eq!(error.status(), status, "{}", errno(code));
            if status == S::INSUFFICIENT_RESOURCES {
                assert!(error.is_retryable() && error.is_connector_usable(), "{}", errno(code));
            }
            if let Some(status) = of_route {
                assert_eq!(route_error(errno(code), good.ip()).status(), status, "{}", errno(code));
            }
        }
        let multicast = connect_error(&errno(libc::EINVAL), peer("224.0.0.1:7"));
        assert_eq!(multicast.status(), S::INVALID_ADDRESS);
        let other = connect_error(&errno(libc::ENOBUFS), good);
        assert!(
            matches!(other, ConnectError::Other { reason: Reason::Errno(libc::ENOBUFS), .. }),
            "{other:?}"
        );
        let refused = connect_error(&errno(libc::ECONNREFUSED), good);
        let ConnectError::Refused { peer, reason } = refused else { panic!("{refused:?}") };
        assert_eq!((peer, reason), (good, Reason::Errno(libc::ECONNREFUSED)));
        let foreign = connect_error(&io::Error::other("no runtime"), good);
        assert!(matches!(foreign, ConnectError::Other { reason: Reason::Local(_), .. }), "{foreign:?}");
    }
}
