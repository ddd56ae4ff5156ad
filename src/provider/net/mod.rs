//! Local addresses, ports and TCP sockets of this machine (Linux).
//!
//! Nothing here knows iWARP. The modules, from the bottom up:
//!
//! * [`interfaces`]: which addresses there are, and which interface has them;
//! * [`readiness`]: descriptors that the runtime watches;
//! * [`monitor`]: when that list may have changed;
//! * `leases`: which ports this process holds;
//! * [`ports`]: which port to try next;
//! * [`options`]: what is set on a socket, before and after it connects;
//! * [`bind`], [`listen`], [`connect`]: `IND2Connector::Bind`, `IND2Listener::{Bind, Listen}`, and the TCP
//!   part of `IND2Connector::Connect`;
//! * [`errors`]: what a failed connect means in ND's words.
//!
//! Everything acts in the network namespace of the *calling thread*, as every socket does
//! (network_namespaces(7)).

use std::io;
use std::net::SocketAddr;

#[cfg(feature = "soft")]
pub(crate) mod bind;
#[cfg(feature = "soft")]
pub(crate) mod connect;
pub(crate) mod errors;
pub(crate) mod interfaces;
#[cfg(feature = "soft")]
pub(crate) mod leases;
#[cfg(feature = "soft")]
pub(crate) mod listen;
#[cfg(feature = "soft")]
pub(crate) mod monitor;
#[cfg(feature = "soft")]
pub(crate) mod options;
pub(crate) mod ports;
pub(crate) mod readiness;

#[cfg(test)]
mod testing;

/// The same address with an IPv4-mapped IPv6 address written as IPv4.
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

/// The plain kernel error with this number.
fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// An error where tokio would panic: outside a runtime, sockets have nobody to watch them.
///
/// A runtime built without I/O cannot be told apart; in that one tokio still panics.
#[cfg(feature = "soft")]
fn require_runtime() -> io::Result<()> {
    tokio::runtime::Handle::try_current().map(drop).map_err(io::Error::other)
}
