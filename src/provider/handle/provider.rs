//! The providers themselves: which adapters there are, and opening them.

use std::net::{IpAddr, SocketAddr};

use super::adapter::Adapter;
use crate::error::OpenError;
use crate::provider::info::ProviderKind;
#[cfg(feature = "soft")]
use crate::provider::net::Host;
#[cfg(feature = "verbs")]
use crate::provider::net::kernel;
#[cfg(feature = "soft")]
use crate::provider::soft;
#[cfg(feature = "verbs")]
use crate::provider::verbs;
use crate::types::AdapterId;

/// A provider, with the settings for the adapters that it opens.
#[derive(Clone, Debug)]
pub(crate) enum Provider {
    #[cfg(feature = "soft")]
    Soft(Host, soft::config::SoftConfig),
    #[cfg(feature = "verbs")]
    Verbs(verbs::config::VerbsConfig),
}

impl Provider {
    /// Returns the kind of the provider.
    pub(crate) fn kind(&self) -> ProviderKind {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(..) => ProviderKind::Soft,
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => ProviderKind::Verbs,
        }
    }

    /// The adapter that has this address, whose port does not matter.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn resolve(&self, address: SocketAddr) -> Result<AdapterId, OpenError> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(host, _) => soft::adapter::resolve(host, address.ip()),
            #[cfg(feature = "verbs")]
            Self::Verbs(config) => verbs::devices::resolve(config, address),
        }
    }

    /// Every address that its adapters have.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn addresses(&self) -> Result<Vec<IpAddr>, OpenError> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(host, _) => soft::adapter::addresses(host),
            #[cfg(feature = "verbs")]
            Self::Verbs(config) => verbs::devices::addresses(config),
        }
    }

    /// The address from which one of its adapters reaches a peer, with any port.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn local_for(&self, remote: SocketAddr) -> Result<SocketAddr, OpenError> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(host, _) => {
                soft::adapter::local_for(host, remote.ip()).map(|ip| SocketAddr::new(ip, 0))
            }
            #[cfg(feature = "verbs")]
            Self::Verbs(config) => verbs::devices::local_for(config, remote),
        }
    }

    /// Returns whether one of its adapters could use this address right now.
    pub(crate) fn is_usable(&self, address: IpAddr) -> bool {
        let usable = match self {
            #[cfg(feature = "soft")]
            Self::Soft(host, _) => host.is_usable(address),
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => kernel::interfaces::is_usable(address),
        };
        usable.unwrap_or(false) && self.resolve(SocketAddr::new(address, 0)).is_ok()
    }

    /// Opens the adapter of a listener at every address of this machine, with and without an interface. `None` if the provider
    /// listens at each address by itself, as devices and simulated hosts do.
    pub(crate) fn everywhere(&self) -> Option<Result<Adapter, OpenError>> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(Host::Kernel, config) => {
                Some(soft::adapter::Adapter::everywhere(config.clone()).map(Adapter::Soft))
            }
            #[cfg(feature = "sim")]
            Self::Soft(Host::Sim(_), _) => None,
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => None,
        }
    }

    /// Returns whether addresses can be added to this machine that the provider serves.
    pub(crate) fn is_of_machine(&self) -> bool {
        match self {
            #[cfg(feature = "sim")]
            Self::Soft(Host::Sim(_), _) => false,
            #[cfg(feature = "soft")]
            Self::Soft(Host::Kernel, _) => true,
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => true,
        }
    }

    /// Opens an adapter.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn open(&self, id: AdapterId) -> Result<Adapter, OpenError> {
        Ok(match self {
            #[cfg(feature = "soft")]
            Self::Soft(host, config) => {
                Adapter::Soft(soft::adapter::Adapter::open(host.clone(), id, config.clone())?)
            }
            #[cfg(feature = "verbs")]
            Self::Verbs(config) => Adapter::Verbs(verbs::adapter::Adapter::open(id, config.clone())?),
        })
    }
}
