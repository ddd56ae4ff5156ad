//! Providers, and the local addresses by which they choose an adapter, in the types and texts in which programs have them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};
use std::sync::Arc;

use super::adapter::Adapter;
use crate::backend;
use crate::error::OpenError;
#[cfg(feature = "soft")]
use crate::net::Host;
use crate::provider::info::ProviderKind;
#[cfg(feature = "soft")]
use crate::soft::config::SoftConfig;
use crate::types::{AdapterId, TooShort};
#[cfg(feature = "verbs")]
use crate::verbs::config::VerbsConfig;
#[cfg(feature = "verbs")]
use crate::verbs::devices;

/// Finds adapters by address and opens them (`IND2Provider`).
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// use tokio_rdma::Provider;
///
/// let provider = Provider::soft()?;
/// let id = provider.resolve("127.0.0.1".parse().unwrap())?;
/// let adapter = provider.open(id)?;
/// println!("{}: {:?}", adapter.info().name, adapter.info().addresses);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Provider {
    provider: backend::Provider,
}

impl Provider {
    /// Returns the providers that can be used on this machine, the verbs provider before the soft provider.
    pub fn all() -> Vec<Self> {
        Self::verbs().into_iter().chain(Self::soft()).collect()
    }

    /// Returns the user-space iWARP provider with default settings.
    ///
    /// # Errors
    /// `Unsupported` if the crate was built without the feature `soft`.
    pub fn soft() -> Result<Self, OpenError> {
        #[cfg(feature = "soft")]
        return Ok(Self::soft_with(SoftConfig::default()));
        #[cfg(not(feature = "soft"))]
        return Err(OpenError::Unsupported("built without the feature soft"));
    }

    /// Returns the user-space iWARP provider. `config` applies to the adapters that it opens.
    #[cfg(feature = "soft")]
    pub fn soft_with(config: SoftConfig) -> Self {
        Self { provider: backend::Provider::Soft(Host::Kernel, config) }
    }

    /// Returns the user-space iWARP provider on a host of a simulated network.
    #[cfg(feature = "sim")]
    pub(crate) fn simulated(host: Host, config: SoftConfig) -> Self {
        Self { provider: backend::Provider::Soft(host, config) }
    }

    /// Returns the verbs provider, for RDMA devices, with default settings.
    ///
    /// # Errors
    /// `Unsupported` if the machine has no RDMA device, or the crate was built without the feature `verbs`; `Os` if the
    /// process may not use the devices, for example because it has no permission on `/dev/infiniband`. `verbs::check_up`
    /// names the cause.
    pub fn verbs() -> Result<Self, OpenError> {
        #[cfg(feature = "verbs")]
        return Self::verbs_with(VerbsConfig::default());
        #[cfg(not(feature = "verbs"))]
        return Err(OpenError::Unsupported("built without the feature verbs"));
    }

    /// Returns the verbs provider, for RDMA devices. `config` applies to the adapters that it opens.
    ///
    /// # Errors
    /// As for [`verbs`](Self::verbs).
    #[cfg(feature = "verbs")]
    pub fn verbs_with(config: VerbsConfig) -> Result<Self, OpenError> {
        devices::channel().map(|_channel| Self { provider: backend::Provider::Verbs(config) })
    }

    /// Returns the kind of the provider.
    pub fn kind(&self) -> ProviderKind {
        self.provider.kind()
    }

    /// Returns whether the provider needs no device. Software devices, such as `rdma_rxe` and `siw`, count as devices.
    pub fn is_software(&self) -> bool {
        self.kind() == ProviderKind::Soft
    }

    /// Returns the local addresses of the provider's adapters (`IND2Provider::QueryAddressList`).
    ///
    /// # Errors
    /// `Os` if the system call fails.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, OpenError> {
        self.provider.addresses()
    }

    /// Copies the local addresses of the provider's adapters to `addresses` and returns their number.
    ///
    /// # Errors
    /// `TooShort` (`BUFFER_OVERFLOW`) with the required length, which may differ at the next call; `Os` if the system
    /// call fails. On error `addresses` is not modified.
    pub fn copy_addresses(&self, addresses: &mut [IpAddr]) -> Result<usize, OpenError> {
        let known = self.addresses()?;
        let short = TooShort { needed: known.len(), available: addresses.len() };
        let place = addresses.get_mut(..known.len()).ok_or(short)?;
        place.copy_from_slice(&known);
        Ok(known.len())
    }

    /// Returns the adapter that has a local address (`IND2Provider::ResolveAddress`).
    ///
    /// # Errors
    /// `InvalidAddress` if no adapter of the provider has the address; `Excluded` if a device has it that is not used;
    /// `Os` if the system call fails.
    pub fn resolve(&self, address: IpAddr) -> Result<AdapterId, OpenError> {
        self.provider.resolve(SocketAddr::new(address, 0))
    }

    /// Returns the local address from which `remote` is reached (`NdResolveAddress`).
    ///
    /// # Errors
    /// `Unreachable` if there is no route; `InvalidAddress` if `remote` cannot be the address of a peer, or is not
    /// reached through an adapter of the provider; `Excluded` if it is reached through a device that is not used; `Os` if a
    /// system call fails, for example because no descriptor is left.
    pub fn local_for(&self, remote: IpAddr) -> Result<IpAddr, OpenError> {
        self.local_for_peer(SocketAddr::new(remote, 0)).map(|local| local.ip())
    }

    /// Returns the adapter that has a local address, like [`resolve`](Self::resolve). It may be link-local with a scope.
    pub(crate) fn resolve_local(&self, address: SocketAddr) -> Result<AdapterId, OpenError> {
        self.provider.resolve(address)
    }

    /// Returns the local address from which a peer is reached, like [`local_for`](Self::local_for). It may be link-local with a
    /// scope.
    pub(crate) fn local_for_peer(&self, remote: SocketAddr) -> Result<SocketAddr, OpenError> {
        self.provider.local_for(remote)
    }

    /// Returns whether a local address can be used (`NdCheckAddress`).
    pub fn is_usable(&self, address: IpAddr) -> bool {
        self.provider.is_usable(address)
    }

    /// Opens the adapter of a listener at every address of this machine, with and without an interface. `None` if the provider
    /// listens at each address by itself.
    pub(crate) fn everywhere(&self) -> Option<Result<Adapter, OpenError>> {
        self.provider.everywhere().map(|opened| opened.map(Adapter::new))
    }

    /// Returns whether the provider serves addresses that are added to this machine.
    pub(crate) fn is_of_machine(&self) -> bool {
        self.provider.is_of_machine()
    }

    /// Opens the adapter with an id, or with a local address (`IND2Provider::OpenAdapter`).
    ///
    /// Each open adapter is its own protection domain. The tasks of the adapter run on the tokio runtime of the caller,
    /// which must have I/O and time enabled. tokio reports that it lacks one of them only by a panic, which is caught
    /// here: the panic hook still reports it, and with `panic = "abort"` the process ends.
    ///
    /// A host name in place of an address blocks the thread until it is resolved, see [`LocalAddress`].
    ///
    /// # Errors
    /// `InvalidAdapter` if no adapter has the id, `InvalidAddress` if none has the address, `Excluded` if a device has it that
    /// is not used; `Unsupported` outside of a
    /// runtime, and if the runtime has no I/O or no timers; `Os`.
    pub fn open(&self, adapter: impl AdapterChoice) -> Result<Adapter, OpenError> {
        Ok(Adapter::new(self.provider.open(adapter.id(&self.provider)?)?))
    }
}

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

#[cfg(all(test, feature = "sim"))]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::net::sim::{self, World};

    // IO-11: the addresses of a simulated host are not those of the machine, which a listener would follow.
    #[tokio::test]
    async fn simulated_hosts_have_addresses_of_their_own() {
        let host = sim::Host::new(&World::new(0), Ipv4Addr::new(10, 0, 0, 1).into()).expect("the first host");
        assert!(!Provider::simulated(Host::Sim(host), SoftConfig::default()).is_of_machine());
        assert!(Provider::soft().expect("compiled in").is_of_machine());
    }
}
