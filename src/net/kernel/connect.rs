//! `IND2Connector::Bind` and the TCP part of `IND2Connector::Connect`: a socket that holds a local address and port, and from it to a
//! connected stream, or back to the bound socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::time::Duration;

use socket2::{SockAddr, SockRef, Socket};
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::options::{SocketError, SocketOptions, abort, new_socket};
use crate::error::BindError;
use crate::net::ports::{PortLease, PortRange, candidates, lease};
use crate::net::{ConnectFailure, Connected, canonical, errno, require_runtime};

/// Connects to `peer`, giving up after `timeout` if there is one, and else when the kernel does
/// (`tcp_syn_retries`, tcp(7)).
///
/// ND lets a connector whose Connect was refused, unreachable or timed out connect again, from the address
/// that it is bound to. So the socket is not given up on failure: Linux lets a socket whose attempt failed
/// try again, and one that was bound to a port keeps that port all along.
///
/// A socket that would connect to its own address and port would meet itself (simultaneous open, RFC 9293
/// section 3.5); that is reported as `ECONNREFUSED`, because no socket listens there.
///
/// # Errors
/// See [`ConnectFailure`].
///
/// # Panics
/// As tokio's timers and sockets do, in a runtime that was built without them.
///
/// # Cancel safety
/// Dropping the future closes the socket, which abandons the attempt, and releases the port.
pub(crate) async fn connect(
    bound: BoundSocket,
    peer: SocketAddr,
    timeout: Option<Duration>,
) -> Result<Connected<TcpStream>, ConnectFailure<BoundSocket>> {
    let fail = |error, bound| Err(ConnectFailure { error, bound });
    let peer = canonical(peer);
    if peer == bound.local {
        return fail(errno(libc::ECONNREFUSED), Some(bound));
    }
    if let Err(error) = require_runtime() {
        return fail(error, Some(bound));
    }
    // The kernel would not report that itself for a socket of the other family: it fails with EINVAL or EAFNOSUPPORT.
    if peer.is_ipv4() != bound.local.is_ipv4() {
        return fail(errno(libc::EAFNOSUPPORT), Some(bound));
    }
    if let Err(error) = connect_once(&SockRef::from(&bound.socket), peer)
        && error.kind() != io::ErrorKind::WouldBlock
    {
        return fail(error, Some(bound));
    }
    // Only now: a socket that does not connect yet looks hung up to epoll.
    let BoundSocket { socket, local, lease } = bound;
    let stream = match TcpStream::from_std(socket.into()) {
        Ok(stream) => stream,
        Err(error) => return fail(error, None),
    };
    // An attempt at the same host has mostly ended by now, which another call finds out before the runtime does.
    let mut outcome = connect_once(&SockRef::from(&stream), peer);
    if outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
        outcome = match timeout {
            None => established(&stream, peer).await,
            Some(limit) => match tokio::time::timeout(limit, established(&stream, peer)).await {
                Ok(outcome) => outcome,
                Err(_elapsed) => give_up(&stream, peer),
            },
        };
    }
    match outcome.and_then(|()| reached(&stream, local, peer)) {
        Ok(local) => Ok(Connected { stream, local, lease }),
        Err(error) => {
            let socket = stream.into_std().map(Socket::from).ok();
            // One that has a peer after all cannot be used again.
            let socket = socket.filter(|socket| socket.peer_addr().is_err());
            fail(error, socket.map(|socket| BoundSocket { socket, local, lease }))
        }
    }
}

/// Waits until the attempt that is under way has ended, and how.
///
/// A socket that is writable and not hung up is connected. Of all others connect(2), called again, says more than
/// `SO_ERROR` would: on failure it also takes the socket back to unconnected, so that another attempt may follow.
async fn established(stream: &TcpStream, peer: SocketAddr) -> io::Result<()> {
    loop {
        let ready = stream.ready(Interest::WRITABLE).await?;
        if ready.is_writable() && !ready.is_write_closed() {
            return Ok(());
        }
        match stream.try_io(Interest::WRITABLE, || connect_once(&SockRef::from(stream), peer)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            outcome => return outcome,
        }
    }
}

/// Begins an attempt, or asks for the result of the one that was begun: `WouldBlock` when it goes on.
fn connect_once(socket: &SockRef<'_>, peer: SocketAddr) -> io::Result<()> {
    match socket.connect(&peer.into()) {
        Err(error) => match error.raw_os_error() {
            Some(libc::EALREADY | libc::EINPROGRESS | libc::EINTR) => Err(io::ErrorKind::WouldBlock.into()),
            Some(libc::EISCONN) => Ok(()),
            _ => Err(error),
        },
        connected => connected,
    }
}

/// Ends an attempt whose time is up, unless it has ended in this moment.
///
/// Shutting a socket down while it connects takes it back to unconnected without closing it (Linux).
fn give_up(stream: &TcpStream, peer: SocketAddr) -> io::Result<()> {
    match connect_once(&SockRef::from(stream), peer) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            // It fails when the attempt fails right now, which is as good.
            let _ = SockRef::from(stream).shutdown(Shutdown::Both);
            Err(errno(libc::ETIMEDOUT))
        }
        outcome => outcome,
    }
}

/// Returns the local address of a new connection, unless it is one with itself. The kernel is asked for the address if
/// the socket was bound to no address in particular.
fn reached(stream: &TcpStream, bound: SocketAddr, peer: SocketAddr) -> io::Result<SocketAddr> {
    let local = if bound.ip().is_unspecified() || bound.port() == 0 { stream.local_addr()? } else { bound };
    if (peer.ip(), peer.port()) == (local.ip(), local.port()) {
        // A connection with itself has no reader for what is left.
        let _ = abort(stream);
        return Err(errno(libc::ECONNREFUSED));
    }
    Ok(local)
}

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

    use socket2::Protocol;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::{bind_connector, *};
    use crate::net::connect_error;
    use crate::net::kernel::listen::bind_listener;
    use crate::net::kernel::options::{SocketError, SocketOptions, prepare};
    use crate::net::kernel::testing::{
        address, bind_errors, eventually, in_namespace, in_namespace_async, ip, nft, veth,
    };
    use crate::net::ports::PortRange;
    use crate::status::Status;

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

    fn bound(local: &str) -> BoundSocket {
        bind_connector(address(local), PortRange::EPHEMERAL, &SocketOptions::default()).expect("bound")
    }

    fn status(failure: &ConnectFailure<BoundSocket>, peer: &str) -> Status {
        connect_error(&failure.error, address(peer)).status()
    }

    async fn exchange(active: &mut TcpStream, passive: &mut TcpStream) {
        active.write_all(b"ping").await.expect("written");
        let mut buffer = [0; 4];
        passive.read_exact(&mut buffer).await.expect("read");
        assert_eq!(&buffer, b"ping");
    }

    #[tokio::test]
    async fn oneself_is_refused() {
        let socket = bound("127.0.0.1:0");
        let oneself = socket.local;
        let failure = connect(socket, oneself, None).await.expect_err("itself");
        assert_eq!(failure.error.raw_os_error(), Some(libc::ECONNREFUSED));
        assert!(failure.bound.is_some());
    }

    #[test]
    fn routes_that_refuse() {
        in_namespace_async(async {
            veth(&["10.9.0.1/24", "fd09::1/64 nodad"]);
            for (kind, v4, v6) in [
                ("unreachable", "10.11.0.0/16", "fd11::/16"),
                ("prohibit", "10.12.0.0/16", "fd12::/16"),
                ("blackhole", "10.13.0.0/16", "fd13::/16"),
            ] {
                ip(&format!("route add {kind} {v4}"));
                ip(&format!("-6 route add {kind} {v6}"));
            }
            let mut sockets = [bound("10.9.0.1:0"), bound("[fd09::1]:0")];
            let cases = [
                (["10.10.0.1:7", "[fd10::1]:7"], libc::ENETUNREACH, Status::NETWORK_UNREACHABLE),
                (["10.11.0.1:7", "[fd11::1]:7"], libc::EHOSTUNREACH, Status::HOST_UNREACHABLE),
                (["10.12.0.1:7", "[fd12::1]:7"], libc::EACCES, Status::HOST_UNREACHABLE),
                (["10.13.0.1:7", "[fd13::1]:7"], libc::EINVAL, Status::NETWORK_UNREACHABLE),
                // The second time around; and the subnet's broadcast address.
                (["10.9.0.255:7", "[fd10::1]:7"], libc::ENETUNREACH, Status::NETWORK_UNREACHABLE),
            ];
            for (peers, code, expected) in cases {
                let mut tried = Vec::new();
                for (socket, peer) in sockets.into_iter().zip(peers) {
                    let failure = connect(socket, address(peer), None).await.expect_err(peer);
                    assert_eq!(failure.error.raw_os_error(), Some(code), "{peer}: {}", failure.error);
                    assert_eq!(status(&failure, peer), expected, "{peer}");
                    tried.push(failure.bound.expect("still bound"));
                }
                sockets = tried.try_into().expect("two sockets");
            }
        });
    }

    #[test]
    fn a_host_that_is_not_there_is_unreachable() {
        in_namespace_async(async {
            veth(&["10.9.0.1/24"]);
            // One question instead of three, so that the test need not wait.
            std::fs::write("/proc/sys/net/ipv4/neigh/left/mcast_solicit", "1").expect("sysctl");
            std::fs::write("/proc/sys/net/ipv4/neigh/left/retrans_time_ms", "50").expect("sysctl");
            let failure =
                connect(bound("10.9.0.1:0"), address("10.9.0.2:7"), None).await.expect_err("no host");
            assert_eq!(failure.error.raw_os_error(), Some(libc::EHOSTUNREACH));
            assert!(failure.bound.is_some());
        });
    }

    #[test]
    fn connect_timeout_keeps_the_socket_bound() {
        in_namespace_async(async {
            nft("table inet t { chain c { type filter hook input priority 0; tcp dport 6000 drop; }; }");
            let listener = tokio::net::TcpListener::bind("127.0.0.1:6000").await.expect("listener");
            let socket = bound("127.0.0.1:0");
            let local = socket.local;
            let limit = Some(Duration::from_millis(50));
            let failure = connect(socket, address("127.0.0.1:6000"), limit).await.expect_err("dropped");
            assert_eq!(status(&failure, "127.0.0.1:6000"), Status::IO_TIMEOUT);
            nft("flush ruleset");
            let socket = failure.bound.expect("still bound");
            let connected = connect(socket, address("127.0.0.1:6000"), limit).await.expect("connected");
            assert_eq!(connected.local, local);
            assert_eq!(listener.accept().await.expect("accepted").1, local);
        });
    }

    #[test]
    fn dropping_the_future_frees_the_port() {
        in_namespace_async(async {
            nft("table inet t { chain c { type filter hook input priority 0; tcp dport 6000 drop; }; }");
            let socket = bound("127.0.0.1:7001");
            let attempt = connect(socket, address("127.0.0.1:6000"), None);
            tokio::time::timeout(Duration::from_millis(50), attempt).await.expect_err("cancelled");
            let bind =
                || bind_connector(address("127.0.0.1:7001"), PortRange::EPHEMERAL, &SocketOptions::default());
            drop(eventually(bind));
        });
    }

    #[tokio::test]
    async fn multipath_where_the_kernel_has_it() {
        let options = SocketOptions {
            multipath: true,
            path_timeout: Some(Duration::from_secs(30)),
            ..SocketOptions::default()
        };
        for listener_options in [SocketOptions::default(), options] {
            let socket = match bind_connector(address("127.0.0.1:0"), PortRange::EPHEMERAL, &options) {
                Err(SocketError::NotSupported("multipath")) => return,
                other => other.expect("bound"),
            };
            assert_eq!(socket.socket.protocol().expect("protocol"), Some(Protocol::MPTCP));
            let local = socket.local;
            let mut listener =
                bind_listener(&[local.ip()], 0, PortRange::EPHEMERAL, &listener_options).expect("bound");
            let peer = listener.local_addresses().next().expect("address");
            let failure = connect(socket, peer, None).await.expect_err("nobody listens");
            assert_eq!(failure.error.raw_os_error(), Some(libc::ECONNREFUSED));
            let socket = failure.bound.expect("still bound");
            let listeners = listener.listen().expect("listening");
            let mut connected = connect(socket, peer, None).await.expect("connected");
            assert_eq!(connected.local, local);
            let (mut passive, _) = listeners[0].accept().await.expect("accepted");
            match prepare(&connected.stream, &options) {
                Ok(()) => {}
                // A kernel without keepalive for multipath.
                Err(SocketError::NotSupported("path timeout")) => {}
                Err(error) => panic!("{error:?}"),
            }
            assert!(SockRef::from(&connected.stream).keepalive().expect("option"));
            assert!(connected.stream.nodelay().expect("option"));
            exchange(&mut connected.stream, &mut passive).await;
        }
    }
}
