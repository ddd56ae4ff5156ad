//! `IND2Listener::Bind` and `Listen`: sockets on one port of one or several addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use socket2::{SockAddr, Socket};
use tokio::net::TcpListener;

use super::connect::{bind_error, check_source, share};
use super::options::{SocketError, SocketOptions, new_socket, prepare};
use crate::error::{BindError, Reason};
use crate::net::ports::{PortLease, PortRange, candidates, lease};
use crate::net::require_runtime;

/// A listener's addresses and port, held but perhaps not listened on yet.
///
/// It outlives the call of [`listen`](Self::listen): it keeps the port from the rest of the process until it
/// is dropped, so keep it as long as the listening sockets.
#[derive(Debug)]
pub(crate) struct BoundListener {
    /// Empty once they listen.
    sockets: Vec<Socket>,
    leases: Vec<PortLease>,
}

/// Takes one port on each of `addresses`, which is how a listener on "any address" stays on its adapter.
///
/// Port 0 picks one of the range that is free on all of them. IPv4-mapped addresses count as IPv4, and
/// doubles as one. The sockets have `SO_REUSEADDR`, so that connections accepted by an earlier listener do
/// not keep the port (socket(7)), and are MPTCP only when the options say multipath: an MPTCP listener serves
/// plain TCP peers too, yet each of its sockets costs more. All others have the options of a connection, see [`prepare`]:
/// Linux gives them to what is accepted, without the five system calls for each.
///
/// # Errors
/// * `SharingViolation`: this process has the port on one of the addresses, or another process listens there
///   or connects from there. Another listener that is bound and does not listen yet is only noticed by
///   [`listen`](BoundListener::listen).
/// * `TooManyAddresses`: port 0, and no port of the range is free on all.
/// * `InvalidAddress`: no address at all, or one that is not this machine's.
/// * `NotSupported`: see [`new_socket`]. Anything else is the operating system's.
pub(crate) fn bind_listener(
    addresses: &[IpAddr],
    port: u16,
    range: PortRange,
    options: &SocketOptions,
) -> Result<BoundListener, SocketError> {
    let mut distinct = Vec::with_capacity(addresses.len());
    for ip in addresses.iter().map(IpAddr::to_canonical) {
        check_source(ip)?;
        if !distinct.contains(&ip) {
            distinct.push(ip);
        }
    }
    let Some(first) = distinct.first().copied() else {
        return Err(BindError::InvalidAddress(Ipv4Addr::UNSPECIFIED.into()).into());
    };
    if port != 0 {
        return bind_all(&distinct, port, options);
    }
    for port in candidates(range) {
        match bind_all(&distinct, port, options) {
            Err(SocketError::Bind(BindError::SharingViolation(_))) => {}
            outcome => return outcome,
        }
    }
    Err(BindError::TooManyAddresses(first).into())
}

/// Takes this very port on each of these addresses.
fn bind_all(addresses: &[IpAddr], port: u16, options: &SocketOptions) -> Result<BoundListener, SocketError> {
    let mut leases = Vec::with_capacity(addresses.len());
    for ip in addresses {
        let local = SocketAddr::new(*ip, port);
        leases.push(lease(options.namespace, *ip, port).ok_or(BindError::SharingViolation(local))?);
    }
    let mut sockets = Vec::with_capacity(addresses.len());
    for ip in addresses {
        let socket = new_socket(*ip, options)?;
        share(&socket)?;
        let local = SocketAddr::new(*ip, port);
        // With several paths the kernel may not have all of it.
        if !options.multipath {
            prepare(&socket, options)?;
        }
        socket.bind(&SockAddr::from(local)).map_err(|error| bind_error(error, local))?;
        sockets.push(socket);
    }
    Ok(BoundListener { sockets, leases })
}

impl BoundListener {
    /// Returns the addresses and the port, in the order of the call, before and after [`listen`](Self::listen).
    pub(crate) fn local_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.leases.iter().map(|lease| SocketAddr::new(lease.ip(), lease.port()))
    }

    /// Starts to listen, and hands the listening sockets out, in the order of the addresses.
    ///
    /// The backlog of each socket is the most that the kernel allows (`net.core.somaxconn`, listen(2)).
    ///
    /// # Errors
    /// All listen or none does: on an error everything stays bound, and may listen later.
    /// * `SharingViolation`: another listener was bound to the same port and listened first.
    /// * `InvalidState`: they listen already.
    /// * Otherwise the operating system's, or this is no tokio runtime.
    pub(crate) fn listen(&mut self) -> Result<Vec<TcpListener>, BindError> {
        if self.sockets.is_empty() {
            return Err(BindError::InvalidState("the listener listens already"));
        }
        let local = self.local_addresses().next().unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into());
        let listen_error = |error| listen_error(error, local);
        require_runtime().map_err(listen_error)?;
        for (done, socket) in self.sockets.iter().enumerate() {
            if let Err(error) = socket.listen(i32::MAX) {
                self.sockets.iter().take(done).for_each(stop);
                return Err(listen_error(error));
            }
        }
        let mut listening = Vec::with_capacity(self.sockets.len());
        for socket in &self.sockets {
            // A second descriptor, so that the first still holds the address if a later step fails.
            match socket.try_clone().and_then(|socket| TcpListener::from_std(socket.into())) {
                Ok(listener) => listening.push(listener),
                Err(error) => {
                    self.sockets.iter().for_each(stop);
                    return Err(match error.raw_os_error() {
                        Some(_) => listen_error(error),
                        // Tokio has no error number for a socket whose runtime has shut down.
                        None => BindError::InvalidState(Reason::RUNTIME_ENDED_TEXT),
                    });
                }
            }
        }
        self.sockets.clear();
        Ok(listening)
    }
}

/// Takes a socket back from listening to bound, and refuses the peers that wait: Linux does that when a listening
/// socket is shut down for reading, and the address remains because it was bound explicitly.
fn stop(socket: &Socket) {
    // It can only fail on a socket that does not listen, which is what is wanted.
    let _ = socket.shutdown(std::net::Shutdown::Read);
}

fn listen_error(error: io::Error, local: SocketAddr) -> BindError {
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => BindError::SharingViolation(local),
        _ => BindError::Os { call: "listen", source: error.into() },
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::super::testing::{bind_errors, block_on, eventually, in_namespace, in_namespace_async, veth};
    use super::*;

    fn addresses(list: &[&str]) -> Vec<IpAddr> {
        list.iter().map(|text| text.parse().expect("an address")).collect()
    }

    fn bind(list: &[&str], port: u16) -> Result<BoundListener, BindError> {
        let options = SocketOptions::default();
        bind_listener(&addresses(list), port, PortRange::EPHEMERAL, &options).map_err(bind_errors)
    }

    #[tokio::test]
    async fn one_port_on_several_addresses() {
        let mut bound = bind(&["127.0.0.1", "::1", "127.0.0.2", "::ffff:127.0.0.1"], 0).expect("bound");
        let locals: Vec<_> = bound.local_addresses().collect();
        let port = locals[0].port();
        assert!(PortRange::EPHEMERAL.contains(port));
        let expected = addresses(&["127.0.0.1", "::1", "127.0.0.2"]);
        assert_eq!(locals, expected.iter().map(|ip| SocketAddr::new(*ip, port)).collect::<Vec<_>>());
        for local in &locals {
            TcpStream::connect(local).expect_err("bound is not listening");
        }
        let listeners = bound.listen().expect("listening");
        assert_eq!(listeners.len(), 3);
        for (listener, local) in listeners.iter().zip(&locals) {
            assert_eq!(listener.local_addr().expect("address"), *local);
            let stream = TcpStream::connect(local).expect("connected");
            let (_, peer) = listener.accept().await.expect("accepted");
            assert_eq!(peer, stream.local_addr().expect("address"));
        }
        assert!(matches!(bound.listen(), Err(BindError::InvalidState(_))));
        assert_eq!(bound.local_addresses().count(), 3);
        TcpStream::connect(("127.0.0.3", port)).expect_err("not one of the addresses");
    }

    #[tokio::test]
    async fn accepted_sockets_inherit_the_options() {
        let path_timeout = Some(std::time::Duration::from_secs(60));
        let options = SocketOptions { path_timeout, ..SocketOptions::default() };
        let mut bound = bind_listener(&addresses(&["127.0.0.1", "::1"]), 0, PortRange::EPHEMERAL, &options)
            .expect("bound");
        for listener in bound.listen().expect("listening") {
            let peer = listener.local_addr().expect("address");
            let _active = TcpStream::connect(peer).expect("connected");
            let (accepted, _) = listener.accept().await.expect("accepted");
            let socket = socket2::SockRef::from(&accepted);
            assert!(socket.keepalive().expect("option") && socket.tcp_nodelay().expect("option"), "{peer}");
            assert_eq!(socket.tcp_keepalive_time().expect("option").as_secs(), 30);
            assert_eq!(socket.tcp_keepalive_interval().expect("option").as_secs(), 10);
            assert_eq!(socket.tcp_keepalive_retries().expect("option"), 3);
        }
    }

    #[test]
    fn conflicts() {
        in_namespace_async(async {
            let bound = bind(&["127.0.0.1", "127.0.0.2"], 7001).expect("bound");
            for list in [["127.0.0.1", "127.0.0.3"], ["127.0.0.3", "0.0.0.0"]] {
                assert!(matches!(bind(&list, 7001), Err(BindError::SharingViolation(_))), "{list:?}");
            }
            drop(bind(&["127.0.0.3", "::1"], 7001).expect("other addresses, and nothing was left behind"));
            drop(bound);
            let other = std::net::TcpListener::bind("127.0.0.2:7001").expect("somebody else's");
            assert!(matches!(bind(&["127.0.0.1", "127.0.0.2"], 7001), Err(BindError::SharingViolation(_))));
            drop(other);
            drop(eventually(|| bind(&["127.0.0.1", "127.0.0.2"], 7001)));
        });
    }

    #[test]
    fn port_zero_skips_ports_taken_in_either_family() {
        in_namespace(|| {
            let range = PortRange::new(7001, 7003).expect("range");
            let list = addresses(&["127.0.0.1", "::1"]);
            let _v6 = std::net::TcpListener::bind("[::1]:7001").expect("listener");
            let _v4 = std::net::TcpListener::bind("127.0.0.1:7003").expect("listener");
            let bound = bind_listener(&list, 0, range, &SocketOptions::default()).expect("bound");
            assert!(bound.local_addresses().all(|local| local.port() == 7002));
            let none = bind_listener(&list, 0, range, &SocketOptions::default());
            assert!(matches!(none, Err(SocketError::Bind(BindError::TooManyAddresses(_)))), "{none:?}");
        });
    }

    #[test]
    fn failed_listen_leaves_everything_bound() {
        in_namespace_async(async {
            let mut bound = bind(&["127.0.0.1", "127.0.0.2"], 7001).expect("bound");
            // Another process may do this: bind the port while no socket listens, and be first to listen.
            let rival = new_socket([127, 0, 0, 2].into(), &SocketOptions::default()).expect("socket");
            rival.set_reuse_address(true).expect("option");
            rival.bind(&SockAddr::from(SocketAddr::from(([127, 0, 0, 2], 7001)))).expect("bound");
            rival.listen(1).expect("listening");
            assert!(matches!(bound.listen(), Err(BindError::SharingViolation(_))));
            TcpStream::connect("127.0.0.1:7001").expect_err("not even the first listens");
            std::net::TcpListener::bind("127.0.0.3:7001").map(drop).expect("another address");
            drop(rival);
            let listeners = eventually(|| bound.listen());
            TcpStream::connect("127.0.0.1:7001").expect("connected");
            TcpStream::connect("127.0.0.2:7001").expect("connected");
            drop(listeners);
        });
    }

    #[test]
    fn listen_without_runtime_fails_and_is_retryable() {
        let mut bound = bind(&["127.0.0.1"], 0).expect("bound");
        assert!(matches!(bound.listen(), Err(BindError::Os { call: "listen", .. })));
        let listeners = block_on(async { bound.listen() }).expect("listening");
        assert_eq!(listeners.len(), 1);
    }

    #[test]
    fn bad_addresses() {
        let lists = [&[][..], &["203.0.113.9"], &["127.0.0.1", "203.0.113.9"], &["224.0.0.1"], &["fe80::1"]];
        for list in lists {
            assert!(matches!(bind(list, 0), Err(BindError::InvalidAddress(_))), "{list:?}");
        }
    }

    #[test]
    fn each_address_of_a_link_and_no_other() {
        in_namespace_async(async {
            veth(&["10.9.0.1/24", "fd09::1/64 nodad"]);
            let mut bound = bind(&["10.9.0.1", "fd09::1"], 7001).expect("bound");
            let _listeners = bound.listen().expect("listening");
            TcpStream::connect("10.9.0.1:7001").expect("connected");
            // The kernel adds the routes of an IPv6 address a little later.
            eventually(|| TcpStream::connect("[fd09::1]:7001"));
            TcpStream::connect("127.0.0.1:7001").expect_err("another interface");
        });
    }
}
