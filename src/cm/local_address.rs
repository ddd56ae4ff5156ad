//! Local addresses in the types and texts in which programs have them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};
use std::sync::Arc;

use crate::error::OpenError;
use crate::types::AdapterId;

/// A local address: an IP address, a socket address whose port does not matter, or the text of either, or a host name.
///
/// A host name stands for its first address. Resolving it may block, as [`ToSocketAddrs`] does.
///
/// A link-local IPv6 address needs its scope, which only a socket address has: `"[fe80::1%2]:0"`, or as the name
/// `"fe80::1%eth0"`. Devices have adapters for such addresses; the soft provider does not.
pub trait LocalAddress: sealed::Sealed {
    /// Returns the address, with the scope of a link-local IPv6 address. The port does not matter.
    ///
    /// # Errors
    /// `Os` if a name cannot be resolved.
    fn local_address(&self) -> Result<SocketAddr, OpenError>;

    /// Returns the IP address.
    ///
    /// # Errors
    /// `Os` if a name cannot be resolved.
    fn local_ip(&self) -> Result<IpAddr, OpenError> {
        self.local_address().map(|address| address.ip())
    }
}

/// The choice of an adapter of a provider: its id, or a local address of it.
pub trait AdapterChoice: sealed::Choice {}

impl<T: sealed::Choice> AdapterChoice for T {}

pub(super) mod sealed {
    use super::{AdapterId, LocalAddress, OpenError};
    use crate::backend::Provider;

    pub trait Sealed {}

    /// The way from a choice to the id.
    pub trait Choice {
        /// Returns the id of the adapter.
        ///
        /// # Errors
        /// `InvalidAddress` if no adapter of the provider has the address, and those of the address.
        #[doc(hidden)]
        #[expect(private_interfaces, reason = "nobody else can name or call it")]
        fn id(&self, provider: &Provider) -> Result<AdapterId, OpenError>;
    }

    impl Choice for AdapterId {
        #[expect(private_interfaces, reason = "as in the trait")]
        fn id(&self, _provider: &Provider) -> Result<AdapterId, OpenError> {
            Ok(*self)
        }
    }

    impl<T: LocalAddress> Choice for T {
        #[expect(private_interfaces, reason = "as in the trait")]
        fn id(&self, provider: &Provider) -> Result<AdapterId, OpenError> {
            provider.resolve(self.local_address()?)
        }
    }
}

/// Implements `LocalAddress` for types that have the address.
macro_rules! local_address {
    ($($type:ty: $address:expr;)*) => {$(
        impl sealed::Sealed for $type {}

        impl LocalAddress for $type {
            fn local_address(&self) -> Result<SocketAddr, OpenError> {
                let address: fn($type) -> SocketAddr = $address;
                Ok(address(*self))
            }
        }
    )*};
}

local_address! {
    IpAddr: |ip| SocketAddr::new(ip, 0);
    Ipv4Addr: |ip| SocketAddr::new(ip.into(), 0);
    Ipv6Addr: |ip| SocketAddr::new(ip.into(), 0);
    SocketAddr: |address| address;
    SocketAddrV4: SocketAddr::from;
    SocketAddrV6: SocketAddr::from;
}

impl sealed::Sealed for &str {}

impl LocalAddress for &str {
    fn local_address(&self) -> Result<SocketAddr, OpenError> {
        if let Ok(ip) = self.parse() {
            return Ok(SocketAddr::new(ip, 0));
        }
        let resolved = match self.to_socket_addrs() {
            Ok(found) => Ok(found),
            // Without a port.
            Err(_) => (*self, 0).to_socket_addrs(),
        };
        let failed = |kind, text: String| {
            let source = Arc::new(std::io::Error::new(kind, format!("{self:?}: {text}")));
            OpenError::Os { call: "getaddrinfo", source }
        };
        let mut resolved = resolved.map_err(|error| failed(error.kind(), error.to_string()))?;
        let none = || failed(std::io::ErrorKind::NotFound, "the name has no address".into());
        resolved.next().ok_or_else(none)
    }
}

impl sealed::Sealed for String {}

impl LocalAddress for String {
    fn local_address(&self) -> Result<SocketAddr, OpenError> {
        self.as_str().local_address()
    }
}
