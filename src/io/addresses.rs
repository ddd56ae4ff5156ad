//! The addresses of this machine that a listener can be bound to, each with its adapter: those of the moment, and those that
//! are added while a listener of the unspecified address exists.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::warn;

use crate::cm::{Adapter, Listener, Provider, ProviderKind};
use crate::error::{BindError, OpenError};
use crate::net::kernel::interfaces::AddressMonitor;
use crate::types::AdapterId;

pub(super) fn unspecified(v4: bool) -> IpAddr {
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
/// An adapter that cannot be opened is skipped; its error counts only if no address remains.
pub(super) fn list_places(
    providers: &[Provider],
    only_v4: bool,
    is_wanted: &mut dyn FnMut(ProviderKind, IpAddr) -> bool,
) -> Result<Vec<(Adapter, IpAddr)>, OpenError> {
    let mut opened: Vec<(ProviderKind, AdapterId, Option<Adapter>)> = Vec::new();
    let mut places: Vec<(Adapter, IpAddr)> = Vec::new();
    let mut last = OpenError::Unsupported("no provider can be used here");
    for provider in providers {
        let Ok(addresses) = provider.addresses().map_err(|error| last = error) else { continue };
        last = OpenError::InvalidAddress(unspecified(only_v4));
        let family = |ip: &IpAddr| ip.is_ipv4() || !only_v4;
        for ip in addresses
            .into_iter()
            .filter(|ip| family(ip) && is_wanted(provider.kind(), *ip) && provider.is_usable(*ip))
        {
            if places.iter().any(|(_, taken)| *taken == ip) {
                continue;
            }
            // The list is a moment old: an adapter that has lost its address since is skipped.
            let Ok(id) = provider.resolve(ip).map_err(|error| last = error) else { continue };
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
pub(super) fn open_listener(adapter: &Adapter, address: SocketAddr) -> Result<Listener, BindError> {
    let listener = adapter.listener();
    listener.bind(address)?;
    listener.listen(0)?;
    Ok(listener)
}

/// The time between a change of the addresses and the second poll of them.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The longest time between two polls.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The addresses that get a listener when they are added.
pub(super) struct Wanted {
    /// All providers if `None`.
    pub(super) only: Option<Provider>,
    pub(super) only_v4: bool,
    /// A socket serves every address without a device.
    pub(super) has_wildcard: bool,
}

impl Wanted {
    pub(super) fn can_appear(&self) -> bool {
        let only = self.only.as_ref();
        if self.has_wildcard {
            only.is_none_or(|only| !only.is_software()) && next_pause(FIRST_PAUSE).is_some()
        } else {
            only.is_none_or(Provider::is_of_machine)
        }
    }
}

/// Binds a listener to each wanted address that is added, on the port of these listeners, and to those of a listener that has
/// ended (`closed`), over another provider.
pub(super) fn follow_addresses(
    monitor: AddressMonitor,
    closed: Arc<Notify>,
    wanted: Wanted,
    listeners: &[(Adapter, Listener)],
) -> BoxStream<'static, (Adapter, Listener)> {
    let mut served = Served::new(wanted);
    for (adapter, listener) in listeners {
        served.add(adapter, listener);
    }
    let poll = AddressPoll { monitor, closed, next: next_pause(FIRST_PAUSE) };
    let added = stream::unfold((poll, served), |(mut poll, mut served)| async move {
        if poll.next().await? {
            served.tried.clear();
            served.failed.clear();
        }
        let added = served.bind_missing();
        Some((stream::iter(added), (poll, served)))
    });
    added.flatten().boxed()
}

/// Polls the addresses of this machine.
///
/// A device has an address some time after the kernel has announced it: for RoCE a work queue enters it in the GID
/// table, without a notification. So they are polled again after each change, at intervals that double.
struct AddressPoll {
    monitor: AddressMonitor,
    /// Notified when a listener has ended.
    closed: Arc<Notify>,
    /// The time until the next poll without a change.
    next: Option<Duration>,
}

impl AddressPoll {
    /// Waits until the addresses are to be polled. Returns whether the addresses or their listeners have changed since the last; `None` if changes can no
    /// longer be noticed.
    async fn next(&mut self) -> Option<bool> {
        let change = async {
            tokio::select! {
                changed = self.monitor.changed() => changed.map(drop),
                () = self.closed.notified() => Ok(()),
            }
        };
        let changed = match self.next {
            Some(pause) => timeout(pause, change).await.ok(),
            None => Some(change.await),
        };
        let has_changed = changed.transpose().ok()?.is_some();
        let pause = self.next.filter(|_| !has_changed).map_or(FIRST_PAUSE, |pause| pause * 2);
        self.next = next_pause(pause.min(LONGEST_PAUSE));
        Some(has_changed)
    }
}

/// Returns the time until the next poll; `None` in a process that cannot use devices, which are all that is waited for.
/// A machine that has none now may get one without a notification: a driver can be loaded for an interface that has its
/// address for long.
#[cfg(feature = "verbs")]
fn next_pause(pause: Duration) -> Option<Duration> {
    crate::sys::load().is_ok().then_some(pause)
}

#[cfg(not(feature = "verbs"))]
fn next_pause(_pause: Duration) -> Option<Duration> {
    None
}

/// An address that has a listener.
struct Place {
    adapter: Adapter,
    kind: ProviderKind,
    ip: IpAddr,
    /// The listener of the soft provider, if it makes room for a device that needs its port.
    socket: Option<Listener>,
}

impl Place {
    /// Returns the place of a listener that listens at this address.
    fn new(adapter: &Adapter, listener: &Listener, ip: IpAddr) -> Self {
        let kind = adapter.properties().provider;
        let socket = (kind == ProviderKind::Soft).then(|| listener.clone());
        Self { adapter: adapter.clone(), kind, ip, socket }
    }
}

/// The addresses that have a listener, or cannot get one.
struct Served {
    wanted: Wanted,
    /// The port of all listeners.
    port: u16,
    places: Vec<Place>,
    /// Those that a provider was to serve since the last change. One whose adapter cannot be opened is not tried again, nor logged.
    tried: Vec<(ProviderKind, IpAddr)>,
    /// Those at which no listener could be bound, which is logged once after each change. They are tried again at each poll.
    failed: Vec<(ProviderKind, IpAddr)>,
}

impl Served {
    fn new(wanted: Wanted) -> Self {
        Self { wanted, port: 0, places: Vec::new(), tried: Vec::new(), failed: Vec::new() }
    }

    fn add(&mut self, adapter: &Adapter, listener: &Listener) {
        if let Ok(local) = listener.local_addr() {
            self.port = local.port();
            self.places.push(Place::new(adapter, listener, local.ip()));
        }
    }

    /// Returns whether a provider is to serve an address: one that has no listener, or none of a device if this is the
    /// provider of devices.
    fn is_missing(&self, kind: ProviderKind, ip: IpAddr) -> bool {
        if self.wanted.has_wildcard && kind == ProviderKind::Soft {
            return false;
        }
        let served = self.places.iter().map(|place| (place.kind, place.ip));
        let mut known = served.chain(self.tried.iter().copied());
        !known.any(|(by, known)| known == ip && (by == kind || by == ProviderKind::Verbs))
    }

    fn bind_missing(&mut self) -> Vec<(Adapter, Listener)> {
        // An adapter that was removed takes its listeners along; its addresses may come back.
        self.places.retain(|place| !place.adapter.is_removed());
        let mut missing = Vec::new();
        let mut is_wanted = |kind, ip| {
            let is_missing = self.is_missing(kind, ip);
            if is_missing {
                missing.push((kind, ip));
            }
            is_missing
        };
        let only = self.wanted.only.clone();
        let providers = only.map_or_else(Provider::all, |only| vec![only]);
        let places = list_places(&providers, self.wanted.only_v4, &mut is_wanted).unwrap_or_default();
        self.tried.append(&mut missing);
        let mut added = Vec::new();
        for (adapter, ip) in places {
            let address = SocketAddr::new(ip, self.port);
            let opened = match open_listener(&adapter, address) {
                Err(BindError::SharingViolation(_)) => self.take_over(&adapter, address, &mut added),
                outcome => outcome,
            };
            match opened {
                Ok(listener) => {
                    self.add(&adapter, &listener);
                    added.push((adapter, listener));
                }
                Err(error) => self.failed(adapter.properties().provider, address, &error),
            }
        }
        added
    }

    /// Records that a provider cannot serve an address now. The port may be taken: the connections of another program keep it for a
    /// minute after their end. Or the device is about to leave, and another provider is to serve the address.
    fn failed(&mut self, kind: ProviderKind, address: SocketAddr, error: &BindError) {
        let place = (kind, address.ip());
        self.tried.retain(|tried| *tried != place);
        if !self.failed.contains(&place) {
            self.failed.push(place);
            warn!(%address, %error, "an address that was added is not served");
        }
    }

    /// Binds a listener to an address whose port is taken, in place of that of the soft provider: some drivers of iWARP have the
    /// ports of TCP.
    fn take_over(
        &mut self,
        adapter: &Adapter,
        address: SocketAddr,
        added: &mut Vec<(Adapter, Listener)>,
    ) -> Result<Listener, BindError> {
        let at = self.places.iter_mut().find(|place| place.ip == address.ip());
        let Some((socket, soft)) = at.and_then(|place| Some((place.socket.take()?, place.adapter.clone())))
        else {
            return Err(BindError::SharingViolation(address));
        };
        socket.close();
        let opened = open_listener(adapter, address);
        if opened.is_err()
            && let Ok(socket) = open_listener(&soft, address)
        {
            // It stays with the soft provider, for good: each further try would interrupt those that connect.
            added.push((soft, socket));
        } else {
            self.places.retain(|place| place.kind != ProviderKind::Soft || place.ip != address.ip());
        }
        opened
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;

    // IO-11: beside a socket for every address only those of devices can be missing, in a process that can use devices.
    #[test]
    fn addresses_beside_a_wildcard_are_of_devices() {
        let wanted = |only| Wanted { only, only_v4: true, has_wildcard: true };
        assert!(!wanted(Some(Provider::soft().expect("compiled in"))).can_appear());
        assert_eq!(wanted(None).can_appear(), next_pause(FIRST_PAUSE).is_some());
    }

    // IO-11: a device takes over an address that a socket serves, and a socket none of a device.
    #[tokio::test]
    async fn a_device_alone_makes_an_address_complete() {
        use ProviderKind::{Soft, Verbs};

        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let adapter = Adapter::open(ip).expect("opened");
        for (served, expected) in [(Soft, [false, true]), (Verbs, [false, false])] {
            for is_tried in [false, true] {
                let wanted = Wanted { only: None, only_v4: true, has_wildcard: false };
                let (places, tried) = match is_tried {
                    false => {
                        (vec![Place { adapter: adapter.clone(), kind: served, ip, socket: None }], Vec::new())
                    }
                    true => (Vec::new(), vec![(served, ip)]),
                };
                let served = Served { port: 7, places, tried, ..Served::new(wanted) };
                assert_eq!([Soft, Verbs].map(|kind| served.is_missing(kind, ip)), expected, "{is_tried}");
                let other = IpAddr::from([127, 0, 0, 2]);
                assert_eq!([Soft, Verbs].map(|kind| served.is_missing(kind, other)), [true, true]);
            }
        }
    }

    // IO-11: an address at which another program has the port is served when the port is free.
    #[tokio::test]
    async fn a_taken_port_is_tried_again() {
        let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = taken.local_addr().expect("an address");
        let only = Some(Provider::soft().expect("compiled in"));
        let mut served = Served {
            port: address.port(),
            ..Served::new(Wanted { only, only_v4: true, has_wildcard: false })
        };
        let serves = |added: Vec<(Adapter, Listener)>| {
            added.iter().any(|(_, listener)| listener.local_addr().expect("it listens") == address)
        };
        for _ in 0..2 {
            assert!(!serves(served.bind_missing()));
        }
        drop(taken);
        assert!(serves(served.bind_missing()));
    }
}
