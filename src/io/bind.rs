//! The local addresses that listeners for streams are bound to.

use std::net::{IpAddr, SocketAddr};

use tokio::net::{ToSocketAddrs, lookup_host};
use tracing::warn;

use crate::cm::{Adapter, Listener, Provider, ProviderKind};
use crate::error::{BindError, OpenError, StreamError};
use crate::types::AdapterId;

/// How often a port that is free at all addresses is searched: one that is free at one address may be taken at the
/// next.
const PORTS: usize = 16;

/// Binds listeners to an address, or to the first address of a name that can be bound, and returns them with their
/// adapters. For an unspecified address (`0.0.0.0`, `[::]`) there is one listener for each address of the family that
/// is usable now, all on one port.
///
/// If two providers have an address, the device provider serves it, as for connectors.
///
/// # Errors
/// `Resolve` or `NoAddress` if the name yields no address. If one address was tried, its `Open` or `Bind` error; if
/// several, `Attempts` with the error of each.
///
/// # Cancel safety
/// Dropping the future binds nothing.
pub(super) async fn listeners(address: impl ToSocketAddrs) -> Result<Vec<(Adapter, Listener)>, StreamError> {
    let mut failed = Vec::new();
    for address in lookup_host(address).await.map_err(StreamError::Resolve)? {
        match listeners_at(address) {
            Ok(listeners) => return Ok(listeners),
            Err(error) => failed.push((address, error)),
        }
    }
    Err(match failed.len() {
        0 => StreamError::NoAddress,
        1 => failed.remove(0).1,
        _ => StreamError::Attempts(failed),
    })
}

/// Binds the listeners of one address, like [`listeners`].
fn listeners_at(address: SocketAddr) -> Result<Vec<(Adapter, Listener)>, StreamError> {
    if !address.ip().is_unspecified() {
        let adapter = Adapter::open(address.ip())?;
        let listener = listener(&adapter, address)?;
        return Ok(vec![(adapter, listener)]);
    }
    let places = places(address.is_ipv4())?;
    let mut tries = if address.port() == 0 { PORTS } else { 1 };
    loop {
        tries -= 1;
        match on_one_port(&places, address.port()) {
            Err(BindError::SharingViolation) if tries > 0 => {}
            outcome => return Ok(outcome?),
        }
    }
}

/// Returns every usable address of a family, with its adapter. Each adapter is opened once. An adapter that cannot be
/// opened is skipped.
///
/// # Errors
/// The last error if no address remains.
fn places(v4: bool) -> Result<Vec<(Adapter, IpAddr)>, OpenError> {
    let mut opened: Vec<(ProviderKind, AdapterId, Option<Adapter>)> = Vec::new();
    let mut places: Vec<(Adapter, IpAddr)> = Vec::new();
    let mut last = OpenError::Unsupported("no provider can be used here");
    for provider in Provider::all() {
        let addresses = match provider.addresses() {
            Ok(addresses) => addresses,
            Err(error) => {
                last = error;
                continue;
            }
        };
        last = OpenError::InvalidAddress;
        for ip in addresses.into_iter().filter(|ip| ip.is_ipv4() == v4 && provider.is_usable(*ip)) {
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

/// Binds a listener at each place. Port 0 becomes the port of the first listener. A place that no longer exists is
/// skipped.
///
/// # Errors
/// Those of [`listener`]. `InvalidAddress` and `DeviceRemoved` only if no place remains.
fn on_one_port(places: &[(Adapter, IpAddr)], mut port: u16) -> Result<Vec<(Adapter, Listener)>, BindError> {
    let mut bound = Vec::new();
    let mut last = BindError::InvalidAddress;
    for (adapter, ip) in places {
        let bind = || {
            let listener = listener(adapter, SocketAddr::new(*ip, port))?;
            let local = listener.local_addr().map_err(|_| BindError::DeviceRemoved)?;
            Ok((listener, local.port()))
        };
        match bind() {
            Ok((listener, same)) => {
                port = same;
                bound.push((adapter.clone(), listener));
            }
            Err(error @ (BindError::InvalidAddress | BindError::DeviceRemoved)) => last = error,
            Err(error) => return Err(error),
        }
    }
    if bound.is_empty() { Err(last) } else { Ok(bound) }
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

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;

    fn addresses(listeners: &[(Adapter, Listener)]) -> Vec<SocketAddr> {
        listeners.iter().map(|(_, listener)| listener.local_addr().expect("it listens")).collect()
    }

    #[tokio::test]
    async fn one_address_has_one_listener() {
        let bound = listeners("127.0.0.1:0").await.expect("bound");
        let [address] = addresses(&bound)[..] else { panic!("{bound:?}") };
        assert!(address.ip().is_loopback() && address.port() != 0);
        let error = listeners(address).await.expect_err("taken");
        assert!(matches!(error, StreamError::Bind(BindError::SharingViolation)), "{error:?}");
        drop(bound);
        assert_eq!(addresses(&listeners(address).await.expect("free again")), [address]);
    }

    #[tokio::test]
    async fn an_unspecified_address_is_every_address_on_one_port() {
        let bound = listeners("0.0.0.0:0").await.expect("bound");
        let own = addresses(&bound);
        let usable = Provider::all().into_iter().flat_map(|provider| {
            let addresses = provider.addresses().expect("addresses");
            addresses.into_iter().filter(move |ip| ip.is_ipv4() && provider.is_usable(*ip))
        });
        for ip in usable {
            assert_eq!(own.iter().filter(|address| address.ip() == ip).count(), 1, "{ip}: {own:?}");
        }
        assert!(own.iter().all(|address| address.port() == own[0].port() && address.is_ipv4()), "{own:?}");
        let error = listeners(("0.0.0.0", own[0].port())).await.expect_err("taken");
        assert!(matches!(error, StreamError::Bind(BindError::SharingViolation)), "{error:?}");
    }

    #[tokio::test]
    async fn an_address_that_has_gone_is_left_out() {
        let adapter = Adapter::open([127, 0, 0, 1].into()).expect("opened");
        // 192.0.2.0/24 is for documentation: no machine has it.
        let (gone, own) = ([192, 0, 2, 1].into(), [127, 0, 0, 1].into());
        let bound = on_one_port(&[(adapter.clone(), gone), (adapter.clone(), own)], 0).expect("one is left");
        let [address] = addresses(&bound)[..] else { panic!("{bound:?}") };
        assert!(address.ip() == own && address.port() != 0, "{address}");
        let error = on_one_port(&[(adapter, gone)], 0).expect_err("none is left");
        assert!(matches!(error, BindError::InvalidAddress), "{error:?}");
    }

    #[tokio::test]
    async fn the_first_address_that_can_be_bound_is_bound() {
        let other = listeners("127.0.0.1:0").await.expect("bound");
        let (taken, free) = (addresses(&other)[0], SocketAddr::from(([127, 0, 0, 1], 0)));
        // 192.0.2.0/24 is for documentation: no machine has it.
        let foreign = SocketAddr::from(([192, 0, 2, 1], 7));
        let bound = listeners(&[foreign, taken, free][..]).await.expect("the third is free");
        assert_ne!(addresses(&bound), [taken]);
        let error = listeners(&[foreign, taken][..]).await.expect_err("neither");
        let StreamError::Attempts(attempts) = &error else { panic!("{error:?}") };
        assert!(
            matches!(
                &attempts[..],
                [
                    (_, StreamError::Open(OpenError::InvalidAddress)),
                    (_, StreamError::Bind(BindError::SharingViolation))
                ]
            ),
            "{error:?}"
        );
        let error = listeners(&[][..]).await.expect_err("nothing to bind");
        assert!(matches!(error, StreamError::NoAddress), "{error:?}");
    }
}
