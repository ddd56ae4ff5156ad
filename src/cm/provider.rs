//! The catalogue of providers.

use std::net::IpAddr;

use super::adapter::Adapter;
use crate::error::OpenError;
use crate::provider;
use crate::provider::info::ProviderKind;
#[cfg(feature = "soft")]
use crate::provider::soft::config::SoftConfig;
#[cfg(feature = "verbs")]
use crate::provider::verbs::{catalogue, config::VerbsConfig};
use crate::types::{AdapterId, TooShort};

/// A provider (IND2Provider): finds adapters by address, and opens them.
///
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
    provider: provider::Provider,
}

impl Provider {
    /// Every provider that can be used here, best first: those with devices before the soft one.
    pub fn all() -> Vec<Self> {
        Self::verbs().into_iter().chain(Self::soft()).collect()
    }

    /// The user-space iWARP provider, with default settings.
    ///
    /// # Errors
    /// `Unsupported` when the crate was built without the feature `soft`.
    pub fn soft() -> Result<Self, OpenError> {
        #[cfg(feature = "soft")]
        return Ok(Self::soft_with(SoftConfig::default()));
        #[cfg(not(feature = "soft"))]
        return Err(OpenError::Unsupported("built without the feature soft"));
    }

    /// The user-space iWARP provider, with these settings for the adapters that it opens.
    #[cfg(feature = "soft")]
    pub fn soft_with(config: SoftConfig) -> Self {
        Self { provider: provider::Provider::Soft(config) }
    }

    /// The verbs provider, for RDMA devices, with default settings.
    ///
    /// # Errors
    /// `Unsupported` when this machine has no RDMA device, or the crate was built without the feature `verbs`; `Os` when
    /// the system does not let this process use one, for want of permission on `/dev/infiniband` for example.
    pub fn verbs() -> Result<Self, OpenError> {
        #[cfg(feature = "verbs")]
        return Self::verbs_with(VerbsConfig::default());
        #[cfg(not(feature = "verbs"))]
        return Err(OpenError::Unsupported("built without the feature verbs"));
    }

    /// The verbs provider, with these settings for the adapters that it opens.
    ///
    /// # Errors
    /// As [`verbs`](Self::verbs).
    #[cfg(feature = "verbs")]
    pub fn verbs_with(config: VerbsConfig) -> Result<Self, OpenError> {
        catalogue::channel().map(|_channel| Self { provider: provider::Provider::Verbs(config) })
    }

    /// Which provider this is.
    pub fn kind(&self) -> ProviderKind {
        self.provider.kind()
    }

    /// Whether it needs no device: those who want devices only leave it out. Devices that are software themselves, such
    /// as `rdma_rxe` and `siw`, count as devices.
    pub fn is_software(&self) -> bool {
        self.kind() == ProviderKind::Soft
    }

    /// The local addresses that it can serve. Source: `IND2Provider::QueryAddressList`.
    ///
    /// # Errors
    /// `Os` when the system does not tell.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, OpenError> {
        self.provider.addresses()
    }

    /// The same into a slice of the caller's; returns how many there are.
    ///
    /// # Errors
    /// `TooShort` (`BUFFER_OVERFLOW`) with the number needed, which may have changed by the next call; `Os` when the
    /// system does not tell. `addresses` is not modified then.
    pub fn copy_addresses(&self, addresses: &mut [IpAddr]) -> Result<usize, OpenError> {
        let known = self.addresses()?;
        let place = addresses.get_mut(..known.len()).ok_or(TooShort { needed: known.len() })?;
        place.copy_from_slice(&known);
        Ok(known.len())
    }

    /// The adapter that has this local address. Source: `IND2Provider::ResolveAddress`.
    ///
    /// # Errors
    /// `InvalidAddress` when it is nobody's here.
    pub fn resolve(&self, address: IpAddr) -> Result<AdapterId, OpenError> {
        self.provider.resolve(address)
    }

    /// The local address from which `remote` is best reached. Source: `NdResolveAddress`.
    ///
    /// # Errors
    /// `Unreachable` without a route; `InvalidAddress` for what can never be a peer, or is not reached over one of its
    /// adapters.
    pub fn local_for(&self, remote: IpAddr) -> Result<IpAddr, OpenError> {
        self.provider.local_for(remote)
    }

    /// Whether this local address can be used. Source: `NdCheckAddress`.
    pub fn is_usable(&self, address: IpAddr) -> bool {
        self.provider.is_usable(address)
    }

    /// Opens an adapter. Source: `IND2Provider::OpenAdapter`.
    ///
    /// Each open is a protection domain of its own. The adapter lives on the tokio runtime that this is called in, which
    /// needs I/O and time enabled.
    ///
    /// # Errors
    /// `InvalidAdapter` for an id that no adapter has; `Unsupported` outside of a runtime; `Os`.
    pub fn open(&self, id: AdapterId) -> Result<Adapter, OpenError> {
        Ok(Adapter::new(self.provider.open(id)?))
    }
}
