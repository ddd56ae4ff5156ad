//! Takes ports of a simulated host.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::host::Host;
use super::listener::BoundListener;
use super::stream::BoundSocket;
use crate::error::BindError;
use crate::net::leases::{PortLease, lease};
use crate::net::options::{SocketError, SocketOptions};
use crate::net::ports::PortRange;

impl BoundSocket {
    /// Sets other options, as [`kernel::bind::BoundSocket::renew`](crate::net::kernel::bind::BoundSocket::renew).
    ///
    /// # Errors
    /// `NotSupported`, as for [`Host::bind_connector`].
    pub(crate) fn renew(&mut self, options: &SocketOptions) -> Result<(), SocketError> {
        check_options(options)?;
        self.options = *options;
        Ok(())
    }
}

/// Refuses a type of service with the bits that belong to congestion notification (RFC 3168).
fn check_options(options: &SocketOptions) -> Result<(), SocketError> {
    if options.tos.is_some_and(|tos| tos & 0b11 != 0) {
        return Err(SocketError::NotSupported("quality of service"));
    }
    Ok(())
}

impl Host {
    /// Takes a port, as [`kernel::bind::bind_connector`](crate::net::kernel::bind::bind_connector).
    ///
    /// # Errors
    /// `SharingViolation`, `TooManyAddresses`, `InvalidAddress`; `NotSupported` for a type of service with the bits that belong
    /// to congestion notification (RFC 3168); those of a new socket.
    pub(crate) fn bind_connector(
        &self,
        local: SocketAddr,
        range: PortRange,
        options: &SocketOptions,
    ) -> Result<BoundSocket, SocketError> {
        check_options(options)?;
        let lease = self.take_port(local.ip().to_canonical(), local.port(), range)?;
        let local = SocketAddr::new(lease.ip(), lease.port());
        let descriptor = Arc::new(self.descriptor().map_err(|error| SocketError::os("socket", error))?);
        Ok(BoundSocket { host: self.clone(), local, lease, options: *options, descriptor })
    }

    /// Takes one port on each address, as
    /// [`kernel::listen::bind_listener`](crate::net::kernel::listen::bind_listener).
    ///
    /// # Errors
    /// Those of [`bind_connector`](Self::bind_connector).
    pub(crate) fn bind_listener(
        &self,
        addresses: &[IpAddr],
        port: u16,
        range: PortRange,
    ) -> Result<BoundListener, SocketError> {
        // There is only one of each family.
        let first = addresses.first().copied();
        let first = first.ok_or(BindError::InvalidAddress(Ipv4Addr::UNSPECIFIED.into()))?;
        let lease = self.take_port(first.to_canonical(), port, range)?;
        let descriptor = self.descriptor().map_err(|error| SocketError::os("socket", error))?;
        Ok(BoundListener::new(self.clone(), lease, descriptor))
    }

    fn take_port(&self, ip: IpAddr, port: u16, range: PortRange) -> Result<PortLease, BindError> {
        if (!ip.is_unspecified() && !self.addresses().contains(&ip)) || self.index().is_none() {
            return Err(BindError::InvalidAddress(ip));
        }
        let namespace = Some(self.namespace);
        if port != 0 {
            return lease(namespace, ip, port)
                .ok_or_else(|| BindError::SharingViolation(SocketAddr::new(ip, port)));
        }
        // A port that is named need not be one of those that are left.
        let tries = if self.namespace.held() < self.ports.limit() { range.count() } else { 0 };
        for _ in 0..tries {
            let place = self.world.with(|state| {
                state.places.get_mut(self.number).map_or(0, |place| {
                    place.next_port += 1;
                    place.next_port
                })
            });
            if let Some(lease) = lease(namespace, ip, range.at(place)) {
                return Ok(lease);
            }
        }
        Err(BindError::TooManyAddresses(ip))
    }
}
