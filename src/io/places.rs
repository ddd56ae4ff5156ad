//! The addresses of this machine that a listener can be bound to, each with its adapter.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tracing::warn;

use crate::cm::{Adapter, Listener, Provider, ProviderKind};
use crate::error::{BindError, OpenError};
use crate::types::AdapterId;

/// Returns the unspecified address of a family.
pub(super) fn any(v4: bool) -> IpAddr {
    if v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Returns whether a device has a usable address of IPv4, or of either family.
pub(super) fn has_device(providers: &[Provider], only_v4: bool) -> bool {
    let devices = providers.iter().filter(|provider| !provider.is_software());
    devices.into_iter().any(|provider| {
        let addresses = provider.addresses().unwrap_or_default();
        addresses.into_iter().any(|ip| (ip.is_ipv4() || !only_v4) && provider.is_usable(ip))
    })
}

/// Returns every usable address that is wanted, of IPv4 or of both families, with its adapter. Each adapter is opened once.
/// An adapter that cannot be opened is skipped.
///
/// # Errors
/// The last error if no address remains.
pub(super) fn places(
    providers: &[Provider],
    only_v4: bool,
    is_wanted: &mut dyn FnMut(ProviderKind, IpAddr) -> bool,
) -> Result<Vec<(Adapter, IpAddr)>, OpenError> {
    let mut opened: Vec<(ProviderKind, AdapterId, Option<Adapter>)> = Vec::new();
    let mut places: Vec<(Adapter, IpAddr)> = Vec::new();
    let mut last = OpenError::Unsupported("no provider can be used here");
    for provider in providers {
        let addresses = match provider.addresses() {
            Ok(addresses) => addresses,
            Err(error) => {
                last = error;
                continue;
            }
        };
        last = OpenError::InvalidAddress(any(only_v4));
        let family = |ip: &IpAddr| ip.is_ipv4() || !only_v4;
        for ip in addresses
            .into_iter()
            .filter(|ip| family(ip) && is_wanted(provider.kind(), *ip) && provider.is_usable(*ip))
        {
            if places.iter().any(|(_, taken)| *taken == ip) {
                continue;
            }
            // The list is a moment old: an adapter that has lost its address since is skipped.
            let id = match provider.resolve(ip) {
                Ok(id) => id,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            let known = opened.iter().find(|(kind, known, _)| (*kind, *known) == (provider.kind(), id));
            let adapter = match known {
                Some((.., adapter)) => adapter.clone(),
                None => {
                    let adapter = provider.open(id).map_err(|error| {
                        warn!(provider = ?provider.kind(), ?id, %error, "adapter skipped");
                        last = error;
                    });
                    opened.push((provider.kind(), id, adapter.clone().ok()));
                    adapter.ok()
                }
            };
            places.extend(adapter.map(|adapter| (adapter, ip)));
        }
    }
    if places.is_empty() { Err(last) } else { Ok(places) }
}

/// Creates a listener that listens at this address of the adapter.
///
/// # Errors
/// Those of [`Listener::bind`] and [`Listener::listen`].
pub(super) fn listener(adapter: &Adapter, address: SocketAddr) -> Result<Listener, BindError> {
    let listener = adapter.listener();
    listener.bind(address)?;
    listener.listen(0)?;
    Ok(listener)
}
