//! The providers themselves: which adapters there are, and opening them.

use std::net::IpAddr;

use super::adapter::Adapter;
use crate::error::OpenError;
use crate::provider::info::ProviderKind;
use crate::provider::net::interfaces::is_usable;
#[cfg(feature = "soft")]
use crate::provider::soft;
#[cfg(feature = "verbs")]
use crate::provider::verbs;
use crate::types::AdapterId;

/// A provider, with the settings for the adapters that it opens.
#[derive(Clone, Debug)]
pub(crate) enum Provider {
    #[cfg(feature = "soft")]
    Soft(soft::config::SoftConfig),
    #[cfg(feature = "verbs")]
    Verbs(verbs::config::VerbsConfig),
}

impl Provider {
    /// Which provider this is.
    pub(crate) fn kind(&self) -> ProviderKind {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(_) => ProviderKind::Soft,
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => ProviderKind::Verbs,
        }
    }

    /// The adapter that has this address.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn resolve(&self, ip: IpAddr) -> Result<AdapterId, OpenError> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(_) => soft::adapter::resolve(ip),
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => verbs::devices::resolve(ip),
        }
    }

    /// Every address that its adapters have.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn addresses(&self) -> Result<Vec<IpAddr>, OpenError> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(_) => soft::adapter::addresses(),
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => verbs::devices::addresses(),
        }
    }

    /// The address from which one of its adapters reaches a peer.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn local_for(&self, remote: IpAddr) -> Result<IpAddr, OpenError> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(_) => soft::adapter::local_for(remote),
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => verbs::devices::local_for(remote),
        }
    }

    /// Whether one of its adapters could use this address right now.
    pub(crate) fn is_usable(&self, address: IpAddr) -> bool {
        is_usable(address).unwrap_or(false) && self.resolve(address).is_ok()
    }

    /// Opens an adapter.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn open(&self, id: AdapterId) -> Result<Adapter, OpenError> {
        Ok(match self {
            #[cfg(feature = "soft")]
            Self::Soft(config) => Adapter::Soft(soft::adapter::AdapterCore::open(id, config.clone())?),
            #[cfg(feature = "verbs")]
            Self::Verbs(config) => Adapter::Verbs(verbs::adapter::AdapterCore::open(id, config.clone())?),
        })
    }
}
