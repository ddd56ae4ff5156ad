//! The passive side of streams, and the local addresses that it is bound to.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::ready;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use tokio::net::{ToSocketAddrs, lookup_host};
use tokio::sync::Notify;
use tracing::warn;

use super::addresses::{Wanted, follow_addresses, has_device, list_places, open_listener, unspecified};
use super::config::StreamConfig;
use super::connector::one_or_all;
use super::session::{LostSessions, Session};
use super::stream::{RdmaStream, accept_engine};
use crate::cm::{Acceptor, AcceptorParts, Adapter, AdapterInfo, Listener, Provider, Request, none_later};
use crate::error::{BindError, OpenError, StreamError};
use crate::metrics::AcceptMetrics;
use crate::net::canonical;
use crate::net::kernel::interfaces::AddressMonitor;

/// Listens for byte streams.
///
/// Handshakes run in the background, so a slow or silent peer delays no other. A peer that does not complete its handshake
/// within [`handshake_timeout`](StreamConfig::handshake_timeout) is dropped. A request that does not use the rsocket protocol is
/// rejected. Dropping the listener rejects peers that were not yet accepted, and frees the port.
///
/// Over the soft provider a peer that is a stream of this crate is accepted with the reply, as a peer of TCP is: the listener does not
/// wait for a first frame, and the peer may have gone when `accept` returns it.
///
/// The listener answers up to 256 peers ahead of [`accept`](Self::accept) ([`handshakes`](StreamConfig::handshakes)).
/// Each holds the buffers of one stream, because the reply contains their addresses. If there is no place for another
/// peer, the oldest handshake of the address that has most is dropped, so peers that do not complete delay others only
/// briefly. Up to 2048 further peers wait, with a socket and their request.
///
/// The listener is a [`Stream`] of accepted connections, for servers that take one (tonic's `serve_with_incoming`). If
/// the listener fails, it yields one error and then `None`.
pub struct RdmaListener {
    acceptor: Acceptor<RdmaStream>,
    local: SocketAddr,
}

// As tokio's listeners are: the locks survive a panic, and no state is left half changed by one.
impl UnwindSafe for RdmaListener {}
impl RefUnwindSafe for RdmaListener {}

impl RdmaListener {
    /// Listens on an address of an adapter. The unspecified address means all addresses of its family that the
    /// adapter has now, and port 0 any free port.
    ///
    /// # Errors
    /// `Bind`; `OutOfRange` if a setting exceeds the limits of the adapter.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn bind_on(
        adapter: &Adapter,
        address: SocketAddr,
        config: &StreamConfig,
    ) -> Result<Self, StreamError> {
        let listener = open_listener(adapter, address)?;
        let local = listener.local_addr().map_err(|_| BindError::DeviceRemoved)?;
        let listeners = vec![(adapter.clone(), listener)];
        Self::new(Bound { local, listeners, later: none_later(), closed: Arc::default() }, *config)
    }

    /// Listens on an address, or on the first address of a name that can be bound, with the default settings.
    ///
    /// The unspecified address means every address of this machine, now and later, all on one port: `0.0.0.0` those of
    /// IPv4, `[::]` those of both families. If no device has an address, the listener accepts wherever a listener of TCP does:
    /// at all of `127.0.0.0/8`, at addresses of local routes, and on a machine that has no address yet. Each stream belongs to
    /// the adapter with its local address. Such a listener does not end.
    ///
    /// If devices have addresses, they serve these, and the soft provider serves the others that the interfaces list. Addresses
    /// that are added later are served, too, at most 30 seconds after the port is free there. They must fit the settings; an
    /// address that cannot be served is logged. Such a listener ends when its last adapter is removed, and does not wait for addresses to come back.
    ///
    /// A device may take an address some time after the kernel has it, and may be plugged in later. From then on the device
    /// serves its addresses, too, at most 30 seconds later. When a device is removed or fails, the soft provider serves its
    /// addresses at once.
    ///
    /// # Errors
    /// `Resolve` or `NoAddress` if the name has no address. If one address was tried, its `Open` or `Bind` error; if
    /// several, `Attempts` with the error of each. The type is that of tokio's method; the [`StreamError`] is inside, for
    /// [`get_ref`](io::Error::get_ref).
    ///
    /// # Cancel safety
    /// Dropping the future binds nothing.
    pub async fn bind<A: ToSocketAddrs>(address: A) -> io::Result<Self> {
        Ok(Self::bind_with(address, &StreamConfig::default()).await?)
    }

    /// Listens like [`bind`](Self::bind), with the given settings.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind); `OutOfRange` if a setting exceeds the limits of an adapter.
    ///
    /// # Cancel safety
    /// Dropping the future binds nothing.
    pub async fn bind_with<A: ToSocketAddrs>(address: A, config: &StreamConfig) -> Result<Self, StreamError> {
        Self::new(bind_first(None, address).await?, *config)
    }

    /// Listens like [`bind`](Self::bind), at the addresses of one provider, with the given settings.
    ///
    /// The settings of the provider apply to every stream, also of addresses that are added later. It is the counterpart of
    /// [`RdmaConnector::provider`](super::RdmaConnector::provider).
    ///
    /// ```
    /// # #[cfg(feature = "soft")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tokio_rdma::error::StreamError> {
    /// use tokio_rdma::soft::SoftConfig;
    /// use tokio_rdma::{Provider, RdmaListener, StreamConfig};
    ///
    /// // Detects corruption that the checksums of TCP do not.
    /// let provider = Provider::soft_with(SoftConfig::default().crc(true));
    /// let listener = RdmaListener::bind_with_provider(&provider, "0.0.0.0:0", &StreamConfig::default()).await?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "soft"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// Those of [`bind_with`](Self::bind_with).
    ///
    /// # Cancel safety
    /// Dropping the future binds nothing.
    pub async fn bind_with_provider<A: ToSocketAddrs>(
        provider: &Provider,
        address: A,
        config: &StreamConfig,
    ) -> Result<Self, StreamError> {
        Self::new(bind_first(Some(provider), address).await?, *config)
    }

    /// Accepts from these listeners, which all have the same port.
    fn new(bound: Bound, config: StreamConfig) -> Result<Self, StreamError> {
        let Bound { local, listeners, later, closed } = bound.check(move |info| config.on(info).map(drop))?;
        // Shared, because the future of each answer would have a copy.
        let (shared, lost) = (Arc::new(config), Arc::<LostSessions>::default());
        let answer = move |adapter: Adapter, request: Request| {
            let (config, lost) = (shared.clone(), lost.clone());
            async move {
                let adapter = request.adapter().unwrap_or(adapter);
                let engine = accept_engine(&adapter, request, &config).await?;
                if !engine.has_session() {
                    return Ok(Some(RdmaStream::plain(engine)));
                }
                let session = Session::accept(engine, &config, &lost).await?;
                io::Result::Ok(session.map(RdmaStream::of_session))
            }
        };
        let acceptor = Acceptor::new(AcceptorParts {
            listeners,
            later,
            closed,
            config: config.acceptor,
            metrics: AcceptMetrics::new("stream"),
            answer,
            is_prompt: true,
        })?;
        Ok(Self { acceptor, local })
    }

    /// Returns the address to which the listener was bound, with the port.
    ///
    /// It is unspecified if the listener was bound to the unspecified address, as with tokio's `TcpListener`. The local address
    /// of an accepted stream is the one that the peer connected to. `Provider::addresses` lists those of the machine.
    ///
    /// # Errors
    /// None. The type is that of the method of tokio's `TcpListener`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    /// Accepts the next connection. Returns it with the address of its peer.
    ///
    /// Any number of tasks may call this method at the same time.
    ///
    /// # Errors
    /// If the listener has ended, because its last adapter was removed. The end is final: calls that are pending fail at once,
    /// and each call that is made after the first error fails after 1 s, so that a loop that continues after errors does not
    /// occupy a processor.
    ///
    /// # Cancel safety
    /// Dropping the future loses no connection: the next call returns it.
    pub async fn accept(&self) -> io::Result<(RdmaStream, SocketAddr)> {
        self.acceptor.accept().await.map(RdmaStream::with_peer)
    }

    /// Accepts the next connection like [`accept`](Self::accept).
    ///
    /// Only the waker of the last `poll_accept`, or of the last poll of the [`Stream`], is woken.
    ///
    /// # Errors
    /// Those of [`accept`](Self::accept).
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(RdmaStream, SocketAddr)>> {
        self.acceptor.poll_accept(cx).map_ok(RdmaStream::with_peer)
    }
}

impl RdmaStream {
    /// Returns it with the address of its peer.
    fn with_peer(self) -> (Self, SocketAddr) {
        let peer = self.connection().peer_addr();
        (self, peer)
    }
}

impl Stream for RdmaListener {
    type Item = io::Result<RdmaStream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.acceptor.poll_next_unpin(cx)
    }
}

impl fmt::Debug for RdmaListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaListener").field("local", &self.local).finish_non_exhaustive()
    }
}

/// The number of searches for a port that is free at all addresses: a port that is free at one address may be
/// taken at the next.
const PORTS: usize = 16;

/// The listeners of an address.
struct Bound {
    /// The address that was asked for, with the port.
    local: SocketAddr,
    /// At least one, each with its adapter, all on one port.
    listeners: Vec<(Adapter, Listener)>,
    /// Those of addresses that are added later, if the address is unspecified.
    later: BoxStream<'static, (Adapter, Listener)>,
    /// To be notified when one of the listeners has ended: another provider may have its address.
    closed: Arc<Notify>,
}

impl Bound {
    /// Compares settings with the adapter of each listener. A listener that is added later to an adapter that they do not
    /// fit is closed, and a warning logged.
    fn check(
        self,
        check: impl Fn(&AdapterInfo) -> Result<(), StreamError> + Send + 'static,
    ) -> Result<Self, StreamError> {
        let Self { local, listeners, later, closed } = self;
        listeners.iter().try_for_each(|(adapter, _)| check(adapter.properties()))?;
        let fits = move |(adapter, listener): &(Adapter, Listener)| {
            let outcome = check(adapter.properties());
            if let Err(error) = &outcome {
                let address = listener.local_addr().ok();
                warn!(?address, %error, "an address that was added is not served");
            }
            ready(outcome.is_ok())
        };
        Ok(Self { local, listeners, later: later.filter(fits).boxed(), closed })
    }
}

/// Binds listeners of one provider, or of all, as [`RdmaListener::bind`] has it.
///
/// An unspecified address is every address: `0.0.0.0` those of IPv4, `[::]` those of both families, as tokio has it. Without
/// a device, one socket for each family serves all. With devices, there is a listener for each address that is usable now, all
/// on one port: a card that speaks iWARP shares the ports of TCP, so that its listener and such a socket would exclude
/// each other. If two providers have an address then, the device provider serves it, as for connectors. Either way a
/// listener is added for each address that a device gets later.
async fn bind_first(only: Option<&Provider>, address: impl ToSocketAddrs) -> Result<Bound, StreamError> {
    let mut failed = Vec::new();
    for address in lookup_host(address).await.map_err(|error| StreamError::Resolve(error.into()))? {
        match bind_at(only, canonical(address)) {
            Ok(listeners) => return Ok(listeners),
            Err(error) => failed.push((address, error)),
        }
    }
    Err(one_or_all(failed))
}

/// Binds the listeners of one address, like [`bind_first`].
fn bind_at(only: Option<&Provider>, address: SocketAddr) -> Result<Bound, StreamError> {
    let providers = only.map_or_else(Provider::all, |only| vec![only.clone()]);
    if !address.ip().is_unspecified() {
        let (adapter, listener) = match Adapter::open_by(&providers, address) {
            Ok(adapter) => {
                let listener = open_listener(&adapter, address)?;
                (adapter, listener)
            }
            Err(error @ OpenError::InvalidAddress(_)) => bind_unlisted(&providers, address)?.ok_or(error)?,
            Err(error) => return Err(error.into()),
        };
        let local = listener.local_addr().map_err(|_| BindError::DeviceRemoved)?;
        let listeners = vec![(adapter, listener)];
        return Ok(Bound { local, listeners, later: none_later(), closed: Arc::default() });
    }
    let only_v4 = address.is_ipv4();
    let everywhere = match has_device(&providers, only_v4) {
        true => None,
        false => providers.iter().find_map(Provider::everywhere).transpose()?,
    };
    let wanted = Wanted { only: only.cloned(), only_v4, has_wildcard: everywhere.is_some() };
    // Before the addresses are listed: what is added in between is not missed.
    let monitor = wanted.can_appear().then(AddressMonitor::open).transpose();
    let monitor = monitor.map_err(|source| OpenError::Os { call: "netlink", source: source.into() })?;
    let places = match everywhere {
        // IPv6 first: its absence is no error if there is IPv4.
        Some(adapter) if only_v4 => vec![(adapter, unspecified(true))],
        Some(adapter) => vec![(adapter.clone(), unspecified(false)), (adapter, unspecified(true))],
        None => list_places(&providers, only_v4, &mut |_, _| true)?,
    };
    let mut tries = if address.port() == 0 { PORTS } else { 1 };
    loop {
        tries -= 1;
        match bind_on_one_port(&places, address.port()) {
            Err(BindError::SharingViolation(_)) if tries > 0 => {}
            outcome => {
                let (port, listeners) = outcome?;
                let closed = Arc::<Notify>::default();
                let follow = |monitor| follow_addresses(monitor, closed.clone(), wanted, &listeners);
                let later = monitor.map_or_else(none_later, follow);
                return Ok(Bound { local: SocketAddr::new(address.ip(), port), listeners, later, closed });
            }
        }
    }
}

/// Binds a listener at an address of this machine that no interface lists, such as one of a local route. `None` if the kernel
/// does not have the address.
fn bind_unlisted(
    providers: &[Provider],
    address: SocketAddr,
) -> Result<Option<(Adapter, Listener)>, StreamError> {
    let Some(adapter) = providers.iter().find_map(Provider::everywhere).transpose()? else {
        return Ok(None);
    };
    match open_listener(&adapter, address) {
        Ok(listener) => Ok(Some((adapter, listener))),
        Err(BindError::InvalidAddress(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Binds a listener at each place. Port 0 becomes the port of the first listener. A place that no longer exists is
/// skipped, and one of a family that the kernel does not have; that is an error only if no place remains.
fn bind_on_one_port(
    places: &[(Adapter, IpAddr)],
    mut port: u16,
) -> Result<(u16, Vec<(Adapter, Listener)>), BindError> {
    let mut bound = Vec::new();
    let mut last = BindError::InvalidAddress(unspecified(true));
    for (adapter, ip) in places {
        let bind = || {
            let listener = open_listener(adapter, SocketAddr::new(*ip, port))?;
            let local = listener.local_addr().map_err(|_| BindError::DeviceRemoved)?;
            Ok((listener, local.port()))
        };
        match bind() {
            Ok((listener, same)) => {
                port = same;
                bound.push((adapter.clone(), listener));
            }
            Err(error @ (BindError::InvalidAddress(_) | BindError::DeviceRemoved)) => last = error,
            Err(error) if is_lack_of_family(&error) => last = error,
            Err(error) => return Err(error),
        }
    }
    if bound.is_empty() { Err(last) } else { Ok((port, bound)) }
}

/// Returns whether the kernel has no sockets of the family: IPv6 can be switched off.
fn is_lack_of_family(error: &BindError) -> bool {
    matches!(error, BindError::Os { source, .. } if source.raw_os_error() == Some(libc::EAFNOSUPPORT))
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use std::net::Ipv4Addr;

    use futures::stream;

    use super::*;

    fn own(listeners: &[(Adapter, Listener)]) -> Vec<SocketAddr> {
        listeners.iter().map(|(_, listener)| listener.local_addr().expect("it listens")).collect()
    }

    #[tokio::test]
    async fn a_mapped_address_is_that_of_ipv4() {
        let bound = bind_first(None, "[::ffff:0.0.0.0]:0").await.expect("bound");
        assert_eq!(bound.local.ip(), unspecified(true));
    }

    #[tokio::test]
    async fn settings_fit_what_is_added_later_too() {
        let mut given = Vec::new();
        for _ in 0..3 {
            given.extend(bind_first(None, "127.0.0.1:0").await.expect("bound").listeners);
        }
        let places = own(&given);
        let now = vec![given.remove(0)];
        let later = stream::iter(given).boxed();
        let bound = Bound { local: places[0], listeners: now, later, closed: Arc::default() };
        // The adapter at the first place and at the third has room for them.
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let check = move |_: &AdapterInfo| match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            1 => Err(StreamError::NoAddress),
            _ => Ok(()),
        };
        let bound = bound.check(check).expect("the first one fits");
        let later: Vec<_> = bound.later.collect().await;
        assert_eq!(own(&later), [places[2]]);
        bind_first(None, places[1]).await.expect("the port is free again");
        let bound = bind_first(None, "127.0.0.1:0").await.expect("bound");
        let error = bound.check(|_| Err(StreamError::NoAddress)).map(drop).expect_err("nothing fits");
        assert!(matches!(error, StreamError::NoAddress), "{error:?}");
    }

    #[tokio::test]
    async fn an_address_that_has_gone_is_left_out() {
        let adapter = Adapter::open(Ipv4Addr::LOCALHOST).expect("opened");
        // 192.0.2.0/24 is for documentation: no machine has it.
        let (gone, mine) = ([192, 0, 2, 1].into(), [127, 0, 0, 1].into());
        let (port, bound) =
            bind_on_one_port(&[(adapter.clone(), gone), (adapter.clone(), mine)], 0).expect("one is left");
        let [address] = own(&bound)[..] else { panic!("{bound:?}") };
        assert!(address.ip() == mine && port != 0 && address.port() == port, "{address}");
        let error = bind_on_one_port(&[(adapter, gone)], 0).expect_err("none is left");
        assert!(matches!(error, BindError::InvalidAddress(_)), "{error:?}");
    }

    // IO-11: a port that is taken at one address is not served at the others alone.
    #[tokio::test]
    async fn a_taken_port_is_no_lack_of_family() {
        let error =
            |code| BindError::Os { call: "socket", source: std::io::Error::from_raw_os_error(code).into() };
        assert!(is_lack_of_family(&error(libc::EAFNOSUPPORT)));
        assert!(!is_lack_of_family(&error(libc::EMFILE)));
        let other = bind_first(None, "127.0.0.1:0").await.expect("bound");
        let taken = other.local;
        let adapter = Adapter::open(taken.ip()).expect("opened");
        // A port that one family has is free in the other.
        let places = [taken.ip(), std::net::Ipv6Addr::LOCALHOST.into()].map(|ip| (adapter.clone(), ip));
        let error = bind_on_one_port(&places, taken.port()).expect_err("taken");
        assert!(matches!(error, BindError::SharingViolation(_)), "{error:?}");
    }

    #[tokio::test]
    async fn first_bindable_address_is_bound() {
        let other = bind_first(None, "127.0.0.1:0").await.expect("bound");
        let (taken, free) = (own(&other.listeners)[0], SocketAddr::from(([127, 0, 0, 1], 0)));
        // 192.0.2.0/24 is for documentation: no machine has it.
        let foreign = SocketAddr::from(([192, 0, 2, 1], 7));
        let bound = bind_first(None, &[foreign, taken, free][..]).await.expect("the third is free");
        assert_ne!(own(&bound.listeners), [taken]);
        let error = bind_first(None, &[foreign, taken][..]).await.map(drop).expect_err("neither");
        let StreamError::Attempts(attempts) = &error else { panic!("{error:?}") };
        assert!(
            matches!(
                &attempts[..],
                [
                    (_, StreamError::Open(OpenError::InvalidAddress(_))),
                    (_, StreamError::Bind(BindError::SharingViolation(_)))
                ]
            ),
            "{error:?}"
        );
        let error = bind_first(None, &[][..]).await.map(drop).expect_err("nothing to bind");
        assert!(matches!(error, StreamError::NoAddress), "{error:?}");
    }
}
