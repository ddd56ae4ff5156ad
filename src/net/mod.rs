//! Local addresses, ports and TCP sockets: the interface of the providers to the network.
//!
//! Nothing here depends on iWARP. The modules, from the bottom up:
//!
//! * [`ports`]: the ports that this process holds, and the choice of the one to try next;
//! * `descriptors`: the numbers of descriptors that peers may hold;
//! * [`errors`]: the errors of a failed connect as those of ND;
//! * `capture`: the bytes of connections as a file for Wireshark;
//! * [`kernel`]: the network of this machine;
//! * `sim`: a network in memory;
//! * `stream`, `host`: the sockets and the host that the soft provider works with.

#[cfg(feature = "soft")]
pub(crate) mod capture;
#[cfg_attr(not(feature = "soft"), allow(dead_code, reason = "connections of devices hold no descriptors"))]
pub(crate) mod descriptors;
pub(crate) mod errors;
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
use std::net::SocketAddr;

#[cfg(feature = "soft")]
pub(crate) use host::{BoundListener, BoundSocket, Host, Listener, Monitor};
#[cfg(feature = "soft")]
pub(crate) use kernel::interfaces::Interface;
#[cfg(feature = "soft")]
use ports::PortLease;
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
    /// The kernel's error, `ETIMEDOUT` when the caller's time was up. See [`errors::connect_error`] for what it means;
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
