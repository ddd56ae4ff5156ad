//! The options of TCP sockets that the caller may choose, the calls that set them, and the errors of making a socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::TcpStream;

use crate::error::{BindError, ConnectError};
use crate::net::ports::Namespace;

/// Unanswered probes after which a silent peer is given up.
pub(in crate::net) const KEEPALIVE_RETRIES: u32 = 3;

/// The options of a connection's socket that the caller may choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketOptions {
    /// The time that the peer may be silent before the connection counts as lost; `None` leaves that to the kernel.
    pub(crate) path_timeout: Option<Duration>,
    /// The IPv4 type of service, or IPv6 traffic class, of everything that is sent: uDAPL's quality of
    /// service.
    pub(crate) tos: Option<u8>,
    /// Multipath TCP, so that one connection may use several paths (RFC 8684): uDAPL's
    /// `DAT_CONNECT_MULTIPATH_FLAG`.
    pub(crate) multipath: bool,
    /// The network namespace that the socket is for, if that is known: to find out takes as long as to bind.
    pub(crate) namespace: Option<Namespace>,
}

/// Returns the time before an idle peer is probed first, and the time between two probes: half of the path timeout,
/// and a sixth of it. In whole seconds within the kernel's limits, 1 to 32767 (tcp(7)).
pub(in crate::net) fn keepalive_times(path_timeout: Duration) -> (Duration, Duration) {
    let whole = |duration: Duration| Duration::from_secs(duration.as_secs().clamp(1, 32767));
    (whole(path_timeout / 2), whole(path_timeout / 6))
}

/// A socket that could not be made, bound or set up as asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    /// The address or port is to blame, or the operating system.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// This kernel does not have what was asked for.
    #[error("{0} is not supported")]
    NotSupported(&'static str),
}

impl SocketError {
    /// Creates the error of this call of the operating system.
    pub(in crate::net) fn os(call: &'static str, source: io::Error) -> Self {
        Self::Bind(BindError::Os { call, source: source.into() })
    }
}

impl From<SocketError> for ConnectError {
    fn from(error: SocketError) -> Self {
        match error {
            SocketError::Bind(error) => Self::Bind(error),
            SocketError::NotSupported(what) => Self::NotSupported(what),
        }
    }
}

impl From<SocketError> for BindError {
    fn from(error: SocketError) -> Self {
        match error {
            SocketError::Bind(error) => error,
            // Bind requests no option that a kernel could lack.
            SocketError::NotSupported(what) => {
                Self::Os { call: "socket", source: io::Error::other(what).into() }
            }
        }
    }
}

/// Creates a TCP socket that is not bound yet: nonblocking, closed on exec, IPv6 only if IPv6, with its type of
/// service.
///
/// The type of service is set this early so that the very first packet carries it.
///
/// # Errors
/// `NotSupported` when the kernel has no MPTCP or it is switched off (`net.mptcp.enabled`), or will not use
/// this type of service; otherwise socket(2)'s.
pub(super) fn new_socket(ip: IpAddr, options: &SocketOptions) -> Result<Socket, SocketError> {
    let protocol = if options.multipath { Protocol::MPTCP } else { Protocol::TCP };
    let domain = Domain::for_address(SocketAddr::new(ip, 0));
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(protocol)).map_err(|error| {
        let missing = matches!(
            error.raw_os_error(),
            Some(libc::EPROTONOSUPPORT | libc::ENOPROTOOPT | libc::EINVAL | libc::ESOCKTNOSUPPORT)
        );
        if options.multipath && missing {
            SocketError::NotSupported("multipath")
        } else {
            SocketError::os("socket", error)
        }
    })?;
    if ip.is_ipv6() {
        socket.set_only_v6(true).map_err(|error| SocketError::os("setsockopt", error))?;
    }
    if let Some(tos) = options.tos {
        set_tos(&socket, ip, tos)?;
    }
    Ok(socket)
}

/// Sets the type of service (`IP_TOS`, ip(7)) or traffic class (`IPV6_TCLASS`, RFC 3542 section 6.5).
///
/// The two lowest bits belong to TCP, for congestion notification (RFC 3168): the kernel leaves them as they
/// are and reports success. We read the value back, so that nothing is ignored silently.
fn set_tos(socket: &Socket, ip: IpAddr, tos: u8) -> Result<(), SocketError> {
    let tos = u32::from(tos);
    let outcome = if ip.is_ipv6() {
        socket.set_tclass_v6(tos).and_then(|()| socket.tclass_v6())
    } else {
        socket.set_tos_v4(tos).and_then(|()| socket.tos_v4())
    };
    match outcome {
        Ok(actual) if actual == tos => Ok(()),
        Ok(_) => Err(SocketError::NotSupported("quality of service")),
        Err(error) if is_unsupported(&error) => Err(SocketError::NotSupported("quality of service")),
        Err(error) => Err(SocketError::os("setsockopt", error)),
    }
}

/// Returns whether setsockopt(2) said that it does not do this, as opposed to failing at it.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::EACCES | libc::EINVAL | libc::ENOPROTOOPT | libc::EOPNOTSUPP)
    )
}

/// Sets up a socket that is to listen: what it accepts is as it is. Both [`send_at_once`] and, with a path timeout,
/// [`keep_alive`].
///
/// # Errors
/// Those of the two.
pub(super) fn prepare(socket: &impl AsFd, options: &SocketOptions) -> Result<(), SocketError> {
    send_at_once(socket)?;
    options.path_timeout.map_or(Ok(()), |timeout| keep_alive(socket, timeout))
}

/// Lets small messages leave at once (`TCP_NODELAY`): iWARP frames are complete when they are written.
///
/// # Errors
/// Those of setsockopt(2).
pub(crate) fn send_at_once(socket: &impl AsFd) -> Result<(), SocketError> {
    SockRef::from(socket).set_tcp_nodelay(true).map_err(|error| SocketError::os("setsockopt", error))
}

/// Lets silence on an idle connection end it: a probe after half of the path timeout, then one every sixth until three
/// went unanswered (`SO_KEEPALIVE` and the `TCP_KEEP*` options, tcp(7), in whole seconds and at least one). The kernel
/// counts from the last packet of the peer, also if this is called later.
///
/// The kernel's limit for unacknowledged data (`TCP_USER_TIMEOUT`) is not used: it also ends a connection whose
/// peer is alive and has no room (`SEC-03`). The task of the connection watches what is acknowledged.
///
/// # Errors
/// `NotSupported("path timeout")` when the kernel cannot do that on this kind of socket. Otherwise
/// setsockopt(2)'s error.
pub(crate) fn keep_alive(socket: &impl AsFd, path_timeout: Duration) -> Result<(), SocketError> {
    let (time, interval) = keepalive_times(path_timeout);
    let keepalive =
        TcpKeepalive::new().with_time(time).with_interval(interval).with_retries(KEEPALIVE_RETRIES);
    SockRef::from(socket).set_tcp_keepalive(&keepalive).map_err(|error| match is_unsupported(&error) {
        true => SocketError::NotSupported("path timeout"),
        false => SocketError::os("setsockopt", error),
    })
}

/// Makes the drop of this stream send a reset instead of an orderly end, and forget unsent data (`SO_LINGER`,
/// socket(7)).
///
/// # Errors
/// Those of setsockopt(2); the drop is then an ordinary close.
pub(crate) fn abort(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_linger(Some(Duration::ZERO))
}

/// Returns whether the drop of this stream sends a reset.
pub(in crate::net) fn is_aborting(stream: &TcpStream) -> bool {
    matches!(SockRef::from(stream).linger(), Ok(Some(Duration::ZERO)))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::Ipv6Addr;

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((V4, 0)).await.expect("listener");
        let peer = listener.local_addr().expect("address");
        let (active, passive) = tokio::join!(TcpStream::connect(peer), listener.accept());
        (active.expect("connected"), passive.expect("accepted").0)
    }

    fn closes_on_exec(socket: &Socket) -> bool {
        let flags = nix::fcntl::fcntl(socket, nix::fcntl::FcntlArg::F_GETFD).expect("flags");
        flags & libc::FD_CLOEXEC != 0
    }

    #[test]
    fn new_sockets() {
        for ip in [V4, V6] {
            let socket = new_socket(ip, &SocketOptions::default()).expect("socket");
            assert!(socket.nonblocking().expect("flags") && closes_on_exec(&socket));
            assert_eq!(socket.protocol().expect("protocol"), Some(Protocol::TCP));
            assert!(ip.is_ipv4() || socket.only_v6().expect("option"));
        }
    }

    #[test]
    fn type_of_service_is_set_or_refused() {
        let options = SocketOptions { tos: Some(0xB8), ..SocketOptions::default() };
        assert_eq!(new_socket(V4, &options).expect("socket").tos_v4().expect("tos"), 0xB8);
        assert_eq!(new_socket(V6, &options).expect("socket").tclass_v6().expect("class"), 0xB8);
        let congestion = SocketOptions { tos: Some(0x03), ..SocketOptions::default() };
        for ip in [V4, V6] {
            let error = new_socket(ip, &congestion).expect_err("the bits are TCP's");
            assert!(matches!(error, SocketError::NotSupported("quality of service")), "{error:?}");
        }
    }

    #[tokio::test]
    async fn prepared_streams() {
        let (active, passive) = pair().await;
        prepare(&passive, &SocketOptions::default()).expect("prepared");
        assert!(passive.nodelay().expect("option"));
        assert!(!SockRef::from(&passive).keepalive().expect("option"));

        for (timeout, idle, interval) in [(30_000, 15, 5), (10, 1, 1), (0, 1, 1), (u64::MAX, 32767, 32767)] {
            let path_timeout = Some(Duration::from_millis(timeout));
            prepare(&active, &SocketOptions { path_timeout, ..SocketOptions::default() }).expect("prepared");
            let socket = SockRef::from(&active);
            assert!(socket.keepalive().expect("option") && socket.tcp_nodelay().expect("option"));
            assert_eq!(socket.tcp_user_timeout().expect("option"), None, "{timeout}");
            assert_eq!(socket.tcp_keepalive_time().expect("option"), Duration::from_secs(idle), "{timeout}");
            assert_eq!(socket.tcp_keepalive_interval().expect("option"), Duration::from_secs(interval));
            assert_eq!(socket.tcp_keepalive_retries().expect("option"), KEEPALIVE_RETRIES);
        }
    }

    #[tokio::test]
    async fn abort_resets_and_close_does_not() {
        let (closed, mut reader) = pair().await;
        drop(closed);
        assert_eq!(reader.read(&mut [0; 1]).await.expect("the end"), 0);

        let (aborted, mut reader) = pair().await;
        abort(&aborted).expect("linger");
        drop(aborted);
        let error = reader.read(&mut [0; 1]).await.expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}
