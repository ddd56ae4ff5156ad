//! Local addresses in the types and texts in which programs have them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};
use std::sync::Arc;

use crate::error::OpenError;
use crate::types::AdapterId;

/// A local address: an IP address, a socket address whose port does not matter, or the text of either, or a host name.
///
/// A host name stands for its first address. Resolving it may block, as [`ToSocketAddrs`] does.
pub trait LocalAddress: sealed::Sealed {
    /// Returns the IP address.
    ///
    /// # Errors
    /// `Os` if a name cannot be resolved.
    fn local_ip(&self) -> Result<IpAddr, OpenError>;
}

/// The choice of an adapter of a provider: its id, or a local address of it.
pub trait AdapterChoice: sealed::Choice {}

impl<T: sealed::Choice> AdapterChoice for T {}

pub(super) mod sealed {
    use super::{AdapterId, LocalAddress, OpenError};
    use crate::provider::Provider;

    pub trait Sealed {}

    /// The way from a choice to the id.
    pub trait Choice {
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
            provider.resolve(self.local_ip()?)
        }
    }
}

/// Implements `LocalAddress` for types that have the address.
macro_rules! local_address {
    ($($type:ty: $ip:expr;)*) => {$(
        impl sealed::Sealed for $type {}

        impl LocalAddress for $type {
            fn local_ip(&self) -> Result<IpAddr, OpenError> {
                let ip: fn(&$type) -> IpAddr = $ip;
                Ok(ip(self))
            }
        }
    )*};
}

local_address! {
    IpAddr: |address| *address;
    Ipv4Addr: |address| (*address).into();
    Ipv6Addr: |address| (*address).into();
    SocketAddr: SocketAddr::ip;
    SocketAddrV4: |address| (*address.ip()).into();
    SocketAddrV6: |address| (*address.ip()).into();
}

impl sealed::Sealed for &str {}

impl LocalAddress for &str {
    fn local_ip(&self) -> Result<IpAddr, OpenError> {
        if let Ok(ip) = self.parse() {
            return Ok(ip);
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
        resolved.next().map(|address| address.ip()).ok_or_else(none)
    }
}

impl sealed::Sealed for String {}

impl LocalAddress for String {
    fn local_ip(&self) -> Result<IpAddr, OpenError> {
        self.as_str().local_ip()
    }
}
