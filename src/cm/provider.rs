//! The catalogue of providers.

use std::net::IpAddr;

use super::adapter::Adapter;
use crate::error::OpenError;
#[cfg(feature = "soft")]
use crate::provider::soft::{self, config::SoftConfig};
use crate::provider::{self, ProviderKind};
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
    kind: ProviderKind,
    #[cfg(feature = "soft")]
    config: SoftConfig,
}

impl Provider {
    /// Every provider that can be used here, best first: those with devices before the soft one.
    pub fn all() -> Vec<Self> {
        Self::soft().into_iter().collect()
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
        Self { kind: ProviderKind::Soft, config }
    }

    /// The verbs provider, for RDMA devices.
    ///
    /// # Errors
    /// `Unsupported`: it is not part of this version.
    pub fn verbs() -> Result<Self, OpenError> {
        Err(OpenError::Unsupported("the verbs provider is not part of this version"))
    }

    /// Which provider this is.
    pub fn kind(&self) -> ProviderKind {
        self.kind
    }

    /// Whether it needs no device: those who want hardware only leave it out.
    pub fn is_software(&self) -> bool {
        match self.kind {
            ProviderKind::Soft => true,
        }
    }

    /// The local addresses that it can serve. Source: `IND2Provider::QueryAddressList`.
    ///
    /// # Errors
    /// `Os` when the system does not tell.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, OpenError> {
        #[cfg(feature = "soft")]
        return soft::adapter::addresses();
        #[cfg(not(feature = "soft"))]
        return Ok(Vec::new());
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
        provider::resolve(self.kind, address)
    }

    /// The local address from which `remote` is best reached. Source: `NdResolveAddress`.
    ///
    /// # Errors
    /// `Unreachable` without a route; `InvalidAddress` for what can never be a peer.
    pub fn local_for(&self, remote: IpAddr) -> Result<IpAddr, OpenError> {
        #[cfg(feature = "soft")]
        return soft::adapter::local_for(remote);
        #[cfg(not(feature = "soft"))]
        return Err(provider::resolve(self.kind, remote).err().unwrap_or(OpenError::InvalidAddress));
    }

    /// Whether this local address can be used. Source: `NdCheckAddress`.
    pub fn is_usable(&self, address: IpAddr) -> bool {
        #[cfg(feature = "soft")]
        return provider::net::interfaces::is_usable(address).unwrap_or(false);
        #[cfg(not(feature = "soft"))]
        return provider::resolve(self.kind, address).is_ok();
    }

    /// Opens an adapter. Source: `IND2Provider::OpenAdapter`.
    ///
    /// Each open is a protection domain of its own. The adapter lives on the tokio runtime that this is called in, which
    /// needs I/O and time enabled.
    ///
    /// # Errors
    /// `InvalidAdapter` for an id that no adapter has; `Unsupported` outside of a runtime; `Os`.
    pub fn open(&self, id: AdapterId) -> Result<Adapter, OpenError> {
        #[cfg(feature = "soft")]
        return soft::adapter::AdapterCore::open(id, self.config.clone())
            .map(|core| Adapter::new(provider::Adapter::Soft(core)));
        #[cfg(not(feature = "soft"))]
        return Err(provider::resolve(self.kind, [0, 0, 0, 0].into()).err().map_or_else(
            || OpenError::Unsupported("no provider"),
            |error| {
                let _ = id;
                error
            },
        ));
    }
}
