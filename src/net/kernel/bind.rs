//! `IND2Connector::Bind`: a socket that holds a local address and port, ready to connect.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use socket2::{SockAddr, Socket};

use super::options::{SocketError, SocketOptions, new_socket};
use crate::error::BindError;
use crate::net::canonical;
use crate::net::ports::{PortLease, PortRange, candidates, lease};

/// A socket with a local address, not connected: nonblocking and closed on exec.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    /// The socket.
    pub(crate) socket: Socket,
    /// Its address, with a port that is not 0; unspecified when it was bound to every address of the family.
    pub(crate) local: SocketAddr,
    /// Keeps the port from the rest of this process; belongs to the owner of the socket.
    pub(crate) lease: PortLease,
}

impl BoundSocket {
    /// Replaces the socket by a new one with other options, at the same address.
    ///
    /// With `SO_REUSEADDR` on both, which lets two sockets that do not listen have one port: no other process can take
    /// the port in between.
    ///
    /// # Errors
    /// Those of [`bind_again`]. The socket is as it was.
    pub(crate) fn renew(&mut self, options: &SocketOptions) -> Result<(), SocketError> {
        let socket = new_socket(self.local.ip(), options)?;
        share(&self.socket)?;
        share(&socket)?;
        socket.bind(&SockAddr::from(self.local)).map_err(|error| bind_error(error, self.local))?;
        self.socket = socket;
        Ok(())
    }
}

/// Binds a socket to an address and port that were this caller's until now, in place of one that is used up.
///
/// With `SO_REUSEADDR`: a port of our own choice may have been in TIME_WAIT all along, see [`bind_connector`].
///
/// # Errors
/// Those of [`bind_connector`] but `TooManyAddresses`.
pub(crate) fn bind_again(local: SocketAddr, options: &SocketOptions) -> Result<BoundSocket, SocketError> {
    bind_to(local, true, options)
}

/// Binds a socket to this very address and port, perhaps with `SO_REUSEADDR`.
fn bind_to(local: SocketAddr, reuse: bool, options: &SocketOptions) -> Result<BoundSocket, SocketError> {
    let lease = lease(options.namespace, local.ip(), local.port());
    let lease = lease.ok_or(BindError::SharingViolation(local))?;
    let socket = new_socket(local.ip(), options)?;
    if reuse {
        share(&socket)?;
    }
    socket.bind(&SockAddr::from(local)).map_err(|error| bind_error(error, local))?;
    Ok(BoundSocket { socket, local, lease })
}

/// Sets `SO_REUSEADDR`.
pub(super) fn share(socket: &Socket) -> Result<(), SocketError> {
    socket.set_reuse_address(true).map_err(|error| SocketError::os("setsockopt", error))
}

/// Binds a socket for a connection to come.
///
/// A port that the caller chose is not shared: it is bound without `SO_REUSEADDR`, so a connection in
/// TIME_WAIT counts as in use (socket(7)). For port 0 we pick one of the range, and with `SO_REUSEADDR`: the
/// connection that is in TIME_WAIT there probably had another peer, and if not, connecting says so. Another
/// process that picks like this may then get the same port, which TCP does not mind.
///
/// # Errors
/// * `SharingViolation`: this process or another has the port.
/// * `TooManyAddresses`: port 0, and no port of the range is free.
/// * `InvalidAddress`: not an address of this machine, or not one that a connection can come from.
/// * `NotSupported`: see [`new_socket`]. Anything else is the operating system's.
pub(crate) fn bind_connector(
    local: SocketAddr,
    range: PortRange,
    options: &SocketOptions,
) -> Result<BoundSocket, SocketError> {
    let local = canonical(local);
    check_source(local.ip())?;
    if local.port() != 0 {
        return bind_to(local, false, options);
    }
    let socket = new_socket(local.ip(), options)?;
    share(&socket)?;
    for port in candidates(range) {
        let Some(lease) = lease(options.namespace, local.ip(), port) else { continue };
        let mut local = local;
        local.set_port(port);
        // A bind that failed leaves the socket as it was.
        match socket.bind(&SockAddr::from(local)).map_err(|error| bind_error(error, local)) {
            Ok(()) => return Ok(BoundSocket { socket, local, lease }),
            Err(BindError::SharingViolation(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(BindError::TooManyAddresses(local.ip()).into())
}

/// Refuses addresses that the kernel lets a socket bind though no connection can come from them.
pub(super) fn check_source(ip: IpAddr) -> Result<(), BindError> {
    if ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        Err(BindError::InvalidAddress(ip))
    } else {
        Ok(())
    }
}

/// Translates an error of bind(2) or listen(2).
///
/// `EINVAL` is what bind(2) says to a link-local IPv6 address without a scope (ipv6(7)); our sockets are
/// bound once only, the other thing that it could mean.
pub(super) fn bind_error(error: io::Error, local: SocketAddr) -> BindError {
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => BindError::SharingViolation(local),
        Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT | libc::EINVAL) => {
            BindError::InvalidAddress(local.ip())
        }
        _ => BindError::Address { address: local, error: error.into() },
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::testing::{address, bind_errors, eventually, in_namespace, nft};
    use super::*;

    fn bind(local: SocketAddr, range: PortRange) -> Result<BoundSocket, BindError> {
        bind_connector(local, range, &SocketOptions::default()).map_err(bind_errors)
    }

    #[test]
    fn any_port_is_of_the_range() {
        for text in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0", "[::ffff:127.0.0.1]:0"] {
            let bound = bind(address(text), PortRange::EPHEMERAL).expect(text);
            assert!(PortRange::EPHEMERAL.contains(bound.local.port()));
            assert_eq!(bound.socket.local_addr().expect("address").as_socket(), Some(bound.local));
            assert_eq!(bound.local.ip(), address(text).ip().to_canonical());
            assert_eq!(bound.lease.port(), bound.local.port());
            assert!(bound.socket.nonblocking().expect("flags"));
        }
    }

    #[test]
    fn exhaustion() {
        in_namespace(|| {
            let range = PortRange::new(7001, 7003).expect("range");
            let local = address("127.0.0.1:0");
            let foreign = TcpListener::bind("127.0.0.1:7002").expect("listener");
            let mut held: Vec<_> = (0..2).map(|_| bind(local, range).expect("a port")).collect();
            assert!(matches!(bind(local, range), Err(BindError::TooManyAddresses(_))));
            drop(bind(address("127.0.0.2:0"), range).expect("another address"));
            let freed = held.pop().expect("two").local.port();
            let again = eventually(|| bind(local, range));
            assert_eq!(again.local.port(), freed);
            drop(foreign);
            assert_eq!(eventually(|| bind(local, range)).local.port(), 7002);
        });
    }

    #[test]
    fn time_wait_blocks_only_a_chosen_port() {
        in_namespace(|| {
            let listener = TcpListener::bind("127.0.0.1:6000").expect("listener");
            let range = PortRange::new(7001, 7001).expect("range");
            let bound = bind(address("127.0.0.1:0"), range).expect("bound");
            bound.socket.set_nonblocking(false).expect("blocking");
            bound.socket.connect(&address("127.0.0.1:6000").into()).expect("connected");
            let accepted = listener.accept().expect("accepted");
            // The side that closes first keeps the port in TIME_WAIT.
            bound.socket.shutdown(std::net::Shutdown::Both).expect("first");
            accepted.0.shutdown(std::net::Shutdown::Both).expect("second");
            drop((bound, accepted));
            let outcome = bind(address("127.0.0.1:7001"), range);
            assert!(matches!(outcome, Err(BindError::SharingViolation(_))), "{outcome:?}");
            drop(bind(address("127.0.0.1:0"), range).expect("reused"));
        });
    }

    // A connector keeps its port while it changes to a socket with options, and if that cannot be had.
    #[test]
    fn renewed_socket_has_the_port_and_options() {
        in_namespace(|| {
            let local = address("127.0.0.1:7001");
            let mut bound = bind(local, PortRange::EPHEMERAL).expect("bound");
            let class = |tos| SocketOptions { tos, ..SocketOptions::default() };
            let outcome = bound.renew(&class(Some(0x03)));
            assert!(matches!(outcome, Err(SocketError::NotSupported(_))), "{outcome:?}");
            assert_eq!(bound.socket.local_addr().expect("address").as_socket(), Some(local));
            bound.renew(&class(Some(0xB8))).expect("renewed");
            assert_eq!(bound.socket.local_addr().expect("address").as_socket(), Some(local));
            assert_eq!(bound.socket.tos_v4().expect("option"), 0xB8);
            assert!(matches!(bind(local, PortRange::EPHEMERAL), Err(BindError::SharingViolation(_))));
            bound.renew(&class(None)).expect("renewed");
            assert_eq!(bound.socket.tos_v4().expect("option"), 0);
        });
    }

    #[test]
    fn addresses_that_are_not_ours() {
        for text in [
            "203.0.113.9:0",
            "203.0.113.9:7001",
            "224.0.0.1:0",
            "255.255.255.255:0",
            "[fd0d::1]:0",
            "[fe80::1]:0",
        ] {
            let outcome = bind(address(text), PortRange::EPHEMERAL);
            assert!(matches!(outcome, Err(BindError::InvalidAddress(_))), "{text}: {outcome:?}");
        }
    }

    #[test]
    fn the_first_packet_has_the_type_of_service() {
        in_namespace(|| {
            nft(
                "table inet t { chain c { type filter hook output priority 0; tcp flags & (syn|ack) == syn ip dscp != ef reject; }; }",
            );
            let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
            let peer = SockAddr::from(listener.local_addr().expect("address"));
            let connect = |tos| {
                let options = SocketOptions { tos, ..SocketOptions::default() };
                let bound =
                    bind_connector(address("127.0.0.1:0"), PortRange::EPHEMERAL, &options).expect("bound");
                bound.socket.set_nonblocking(false).expect("blocking");
                bound.socket.connect(&peer)
            };
            connect(Some(0xB8)).expect("expedited forwarding is let through");
            connect(None).expect_err("the filter rejects it");
        });
    }

    #[test]
    fn options_that_the_kernel_lacks_are_not_supported() {
        in_namespace(|| {
            // Absent from kernels without MPTCP, where the answer must be the same.
            let _ = std::fs::write("/proc/sys/net/mptcp/enabled", "0");
            let options = SocketOptions { multipath: true, ..SocketOptions::default() };
            let outcome = bind_connector(address("127.0.0.1:0"), PortRange::EPHEMERAL, &options);
            assert!(matches!(outcome, Err(SocketError::NotSupported("multipath"))), "{outcome:?}");
        });
    }
}
