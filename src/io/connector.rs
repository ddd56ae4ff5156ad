//! Connects by name or address, over the adapter that has a route to it.

use std::fmt;
use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, LazyLock};

use futures::TryFutureExt;
use futures::future::Either;
use tokio::net::{ToSocketAddrs, lookup_host};
use tokio::runtime::{Handle, Id};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::debug;

use super::config::StreamConfig;
use super::engine::StreamEngine;
use super::race::{HEAD_START, in_turns, race};
use super::session::{Rank, Route, Session};
use super::stream::{RdmaStream, connect_engine, within};
use crate::cm::{Adapter, Provider, ProviderKind, WeakAdapter};
use crate::error::{OpenError, ProtocolError, StreamError};
use crate::sync::{Mutex, current_runtime};
use crate::types::AdapterId;

/// Connects streams by name or address, over the adapter that has a route to each address.
///
/// An adapter is opened when a connection first needs it. All clones of a connector share it, and it stays open until
/// the last clone is dropped. An adapter that was removed is opened again. A connector can be used on several runtimes;
/// it opens its adapters once on each.
///
/// ```
/// use tokio_rdma::io::RdmaConnector;
///
/// // Uses the soft provider even if this machine has RDMA devices.
/// # #[cfg(feature = "soft")]
/// let connector = RdmaConnector::new().provider(tokio_rdma::Provider::soft()?);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct RdmaConnector {
    source: Source,
    config: StreamConfig,
}

/// The source of adapters.
#[derive(Clone)]
enum Source {
    /// The first provider that has a route: of all providers if `None`.
    Providers(Option<Provider>, Arc<Mutex<Adapters>>),
    /// This adapter for every address.
    Adapter(Adapter),
}

impl Default for Source {
    fn default() -> Self {
        Self::Providers(None, Arc::default())
    }
}

/// The adapters of [`RdmaStream::connect`] on all runtimes. The last stream of an adapter closes it.
static SHARED: LazyLock<Arc<Mutex<Adapters>>> =
    LazyLock::new(|| Arc::new(Mutex::new(Adapters { shared: true, known: Vec::new() })));

/// Adapters that were opened once and are used again.
#[derive(Default)]
struct Adapters {
    /// They stay open only as long as they have streams.
    shared: bool,
    known: Vec<Known>,
}

/// An adapter that was opened, and its runtime.
struct Known {
    runtime: Id,
    provider: ProviderKind,
    id: AdapterId,
    hold: Hold,
}

/// The hold on an adapter.
enum Hold {
    /// It stays open, while its runtime lives.
    Open {
        adapter: Adapter,
        /// A task that never completes. It ends only with its runtime.
        life: JoinHandle<()>,
    },
    /// Its streams keep it open. A task like that of `Open` would outlive the last of them. It is not needed: if the runtime has
    /// ended, the adapter is never found again, because no later runtime has the same id.
    Streams(WeakAdapter),
}

impl Hold {
    fn is_needed(&self) -> bool {
        match self {
            Self::Open { adapter, life } => !adapter.is_removed() && !life.is_finished(),
            Self::Streams(adapter) => adapter.is_open(),
        }
    }

    /// Returns the adapter if it can be used on its runtime.
    fn usable(&self) -> Option<Adapter> {
        match self {
            Self::Open { adapter, .. } => self.is_needed().then(|| adapter.clone()),
            Self::Streams(adapter) => adapter.upgrade().filter(|adapter| !adapter.is_removed()),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Self::Open { life, .. } = self {
            life.abort();
        }
    }
}

impl Adapters {
    /// Returns an adapter of this provider and runtime that has a local address, if one is open.
    fn at(&mut self, runtime: &Handle, provider: &Provider, local: IpAddr) -> Option<Adapter> {
        // Also here, so that the adapters of runtimes that have ended do not stay open.
        self.known.retain(|known| known.hold.is_needed());
        let mut usable = self.of(runtime, provider).filter_map(|known| known.hold.usable());
        usable.find(|adapter| adapter.has_listed(local) && self.is_shared_with_this_thread(adapter))
    }

    /// Returns an adapter that is already open, or opens one and remembers it.
    fn open_once(
        &mut self,
        runtime: &Handle,
        provider: &Provider,
        id: AdapterId,
    ) -> Result<Adapter, OpenError> {
        self.known.retain(|known| known.hold.is_needed());
        let same = self.of(runtime, provider).filter(|known| known.id == id);
        let mut usable = same.filter_map(|known| known.hold.usable());
        if let Some(adapter) = usable.find(|adapter| self.is_shared_with_this_thread(adapter)) {
            return Ok(adapter);
        }
        drop(usable);
        let adapter = provider.open(id)?;
        let hold = if self.shared {
            Hold::Streams(adapter.downgrade())
        } else {
            Hold::Open { adapter: adapter.clone(), life: runtime.spawn(pending()) }
        };
        self.known.push(Known { runtime: runtime.id(), provider: provider.kind(), id, hold });
        Ok(adapter)
    }

    /// Returns whether the calling thread may use an adapter of these. The threads of a process can be in several network
    /// namespaces, in which the same address and the same id belong to different interfaces.
    fn is_shared_with_this_thread(&self, adapter: &Adapter) -> bool {
        !self.shared || adapter.is_of_this_thread()
    }

    fn of(&self, runtime: &Handle, provider: &Provider) -> impl Iterator<Item = &Known> {
        let place = (runtime.id(), provider.kind());
        self.known.iter().filter(move |known| (known.runtime, known.provider) == place)
    }
}

impl RdmaConnector {
    /// Creates a connector with the default settings that uses every provider, those with devices first.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the connector of [`RdmaStream::connect`]. All such connectors share the adapters that their streams keep
    /// open.
    fn shared() -> Self {
        Self { source: Source::Providers(None, SHARED.clone()), ..Self::default() }
    }

    /// Uses only this provider.
    ///
    /// Adapters that clones of this connector have opened are not shared with the result.
    #[must_use]
    pub fn provider(mut self, provider: Provider) -> Self {
        self.source = Source::Providers(Some(provider), Arc::default());
        self
    }

    /// Uses only this adapter.
    #[must_use]
    pub fn adapter(mut self, adapter: &Adapter) -> Self {
        self.source = Source::Adapter(adapter.clone());
        self
    }

    /// Sets the settings of the streams.
    #[must_use]
    pub fn config(mut self, config: StreamConfig) -> Self {
        self.config = config;
        self
    }

    /// Connects a stream to an address or a name.
    ///
    /// The addresses of a name are tried as [`connect_with`](Self::connect_with) describes. The future owns what it needs:
    /// it can outlive the connector and be spawned.
    ///
    /// # Errors
    /// Those of [`connect_with`](Self::connect_with), and of [`RdmaStream::connect_on`] for each address.
    ///
    /// # Cancel safety
    /// Dropping the future aborts the connection attempts.
    pub fn connect<A: ToSocketAddrs>(
        &self,
        address: A,
    ) -> impl Future<Output = Result<RdmaStream, StreamError>> + use<A> {
        if self.config.session.is_some() {
            // In a box: it is rare, and a future has the place of its largest state.
            return Either::Left(Box::pin(self.clone().connect_session(address)));
        }
        // The limit of all attempts is that of the connector. The settings are shared, because the future would hold them twice.
        let config = Arc::new(self.config.connect_timeout(None));
        let connect = move |adapter: Adapter, peer| {
            let config = config.clone();
            async move { RdmaStream::connect_on(&adapter, peer, &config).await }
        };
        Either::Right(self.connect_with(address, connect))
    }

    /// Returns whether it chooses among several providers.
    pub(super) fn has_choice(&self) -> bool {
        matches!(&self.source, Source::Providers(None, _))
    }

    /// Connects a stream that has a session if the peer agrees.
    pub(super) async fn connect_session<A: ToSocketAddrs>(
        self,
        address: A,
    ) -> Result<RdmaStream, StreamError> {
        current_runtime()?;
        let limit = self.config.connect_timeout;
        let resolved =
            async { lookup_host(address).await.map_err(|error| StreamError::Resolve(error.into())) };
        let addresses = in_turns(within(None, limit, pin!(resolved)).await?);
        let (engine, rank) = self.connect_engine(&addresses, Rank::WORST, None).await?;
        if !engine.has_session() {
            return Ok(RdmaStream::plain(engine));
        }
        let (peer, config) = (engine.connection.peer_addr(), self.config);
        let opened = async {
            let opened = Session::open((engine, rank), &config, Route::new(self, addresses)).await;
            // A peer that agrees to a session and then does not open it violates the protocol.
            opened.map_err(|_| StreamError::Protocol { peer, error: ProtocolError::Foreign })
        };
        within(Some(peer), limit, pin!(opened)).await.map(RdmaStream::of_session)
    }

    /// Connects over the first of these paths that there is: to each address over the adapter of each provider that has a route to it,
    /// those of devices first, and the one that has just `failed` last. Those that are not better than `worst` are left out.
    pub(super) async fn connect_engine(
        &self,
        addresses: &[SocketAddr],
        worst: Rank,
        failed: Option<Rank>,
    ) -> Result<(Arc<StreamEngine>, Rank), StreamError> {
        let (source, limit) = (&self.source, self.config.connect_timeout);
        let from = self.config.options.source;
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let providers = source.providers();
        let places = providers.iter().flat_map(|provider| {
            let is_soft = provider.as_ref().is_some_and(|provider| provider.kind() == ProviderKind::Soft);
            let ranked = addresses.iter().enumerate();
            ranked.map(move |(place, peer)| (Rank { is_soft, place }, provider, *peer))
        });
        let mut places: Vec<_> = places.filter(|(rank, ..)| *rank < worst).collect();
        places.sort_by_key(|(rank, ..)| (failed == Some(*rank), *rank));
        let attempt = async |(rank, provider, peer): (Rank, &Option<Provider>, SocketAddr)| {
            let adapter = source.adapter_of(provider.as_ref(), from, peer)?;
            let engine = connect_engine(&adapter, peer, &self.config).await;
            Ok((engine.inspect_err(|error| debug!(%peer, %error, "attempt failed"))?, rank))
        };
        let expired = |(_, _, peer): (_, &_, _)| StreamError::TimedOut {
            peer: Some(peer),
            limit: limit.unwrap_or_default(),
        };
        let outcome = race(&places, HEAD_START, attempt, deadline, expired).await;
        outcome.map_err(|failed| {
            one_or_all(failed.into_iter().map(|((_, _, peer), error)| (peer, error)).collect())
        })
    }

    /// Connects with a protocol of the caller: `attempt` is called for each address, with the adapter that has a route
    /// to it.
    ///
    /// A name is resolved on a separate thread. Its addresses are tried as in RFC 8305: the address families alternate,
    /// each address has a head start of 250 ms before the next is also tried, and a failure starts the next attempt
    /// immediately. The first attempt that succeeds is the result; the other attempts are dropped.
    ///
    /// All of this takes at most [`StreamConfig::connect_timeout`], 10 seconds by default.
    ///
    /// # Errors
    /// `Resolve` if the name cannot be resolved; `NoAddress` if it has no address. If there was one address, its own
    /// error, such as `Open` if no adapter has a route to it. If there were several, `Attempts` with the error of each:
    /// `TimedOut` if it was still in progress when the time was over. `TimedOut` also if resolving the name took that
    /// long.
    ///
    /// # Cancel safety
    /// Dropping the future drops the attempts in progress.
    pub fn connect_with<A, T, F, C>(
        &self,
        address: A,
        attempt: C,
    ) -> impl Future<Output = Result<T, StreamError>> + use<A, T, F, C>
    where
        A: ToSocketAddrs,
        F: Future<Output = Result<T, StreamError>>,
        C: Fn(Adapter, SocketAddr) -> F,
    {
        let (source, limit) = (self.source.clone(), self.config.connect_timeout);
        let from = self.config.options.source;
        async move {
            // The timers of the race are those of this runtime.
            current_runtime()?;
            let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
            let resolved =
                async { lookup_host(address).await.map_err(|error| StreamError::Resolve(error.into())) };
            let addresses = in_turns(within(None, limit, pin!(resolved)).await?);
            let attempt = |peer: SocketAddr| {
                let begun = source.adapter_for(from, peer).map(|adapter| attempt(adapter, peer));
                async move {
                    let outcome = match begun {
                        Ok(attempt) => attempt.await,
                        Err(error) => Err(error.into()),
                    };
                    if let Err(error) = &outcome {
                        debug!(%peer, %error, "attempt failed");
                    }
                    outcome
                }
            };
            let expired = |peer| StreamError::TimedOut { peer: Some(peer), limit: limit.unwrap_or_default() };
            race(&addresses, HEAD_START, attempt, deadline, expired).await.map_err(one_or_all)
        }
    }
}

/// Returns the error of the only attempt, or of all.
pub(super) fn one_or_all(mut failed: Vec<(SocketAddr, StreamError)>) -> StreamError {
    match failed.len() {
        0 => StreamError::NoAddress,
        1 => failed.remove(0).1,
        _ => StreamError::Attempts(failed),
    }
}

impl Source {
    /// Returns the adapter with the source address, or without one the adapter with a route to a peer, of the first provider
    /// that has one.
    fn adapter_for(&self, from: Option<IpAddr>, peer: SocketAddr) -> Result<Adapter, OpenError> {
        // Listed at each call: a device may have been added since the last.
        let mut last = OpenError::Unsupported("no provider can be used here");
        for provider in self.providers() {
            match self.adapter_of(provider.as_ref(), from, peer) {
                Ok(adapter) => return Ok(adapter),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Returns the providers that there are now, devices first. `None` is that of the only adapter.
    fn providers(&self) -> Vec<Option<Provider>> {
        match self {
            Self::Adapter(_) => vec![None],
            Self::Providers(Some(only), _) => vec![Some(only.clone())],
            Self::Providers(None, _) => Provider::all().into_iter().map(Some).collect(),
        }
    }

    /// Returns the adapter of a provider with the source address, or without one that with a route to a peer.
    fn adapter_of(
        &self,
        provider: Option<&Provider>,
        from: Option<IpAddr>,
        peer: SocketAddr,
    ) -> Result<Adapter, OpenError> {
        let (adapters, provider) = match (self, provider) {
            (Self::Adapter(adapter), _) => return Ok(adapter.clone()),
            (Self::Providers(_, adapters), Some(provider)) => (adapters, provider),
            (_, None) => return Err(OpenError::Unsupported("no provider can be used here")),
        };
        let runtime = current_runtime()?;
        let local = from.map_or_else(|| provider.local_for_peer(peer), |ip| Ok(SocketAddr::new(ip, 0)))?;
        if let Some(adapter) = adapters.lock().at(&runtime, provider, local.ip()) {
            return Ok(adapter);
        }
        let id = provider.resolve_local(local)?;
        adapters.lock().open_once(&runtime, provider, id)
    }
}

impl RdmaStream {
    /// Connects to an address or a name with the default settings.
    ///
    /// The addresses of a name are tried as [`RdmaConnector::connect_with`] describes. The adapter is chosen by the
    /// route to each address. The streams of a runtime that are open at the same time share their adapters. A program that
    /// connects again and again should reuse one [`RdmaConnector`]: it keeps adapters open between streams.
    ///
    /// # Errors
    /// Those of [`RdmaConnector::connect`]. The type is that of tokio's method; the [`StreamError`] is inside, for
    /// [`get_ref`](io::Error::get_ref).
    ///
    /// # Cancel safety
    /// Dropping the future aborts the connection attempt.
    pub fn connect<A: ToSocketAddrs>(address: A) -> impl Future<Output = io::Result<Self>> + use<A> {
        // An async block would hold the future twice.
        RdmaConnector::shared().connect(address).err_into()
    }

    /// Connects to a stream listener at this address, through this adapter.
    ///
    /// [`RdmaConnector`] also resolves names and chooses the adapter.
    ///
    /// # Errors
    /// `Connect` if no connection is made; `TimedOut` if the peer does not accept within
    /// [`connect_timeout`](StreamConfig::connect_timeout); `Protocol` if the peer does not use the rsocket protocol;
    /// `OutOfRange` if a setting is out of range; `Bind` if the [`source`](StreamConfig::source) cannot be used; `Open`,
    /// `Register` or `Post` if the queues or the memory could not be created.
    ///
    /// # Cancel safety
    /// Dropping the future aborts the connection attempt.
    pub async fn connect_on(
        adapter: &Adapter,
        peer: SocketAddr,
        config: &StreamConfig,
    ) -> Result<Self, StreamError> {
        if config.session.is_some() {
            let connector = RdmaConnector::new().adapter(adapter).config(*config);
            // In a box: it is rare, and a future has the place of its largest state.
            return Box::pin(connector.connect_session(peer)).await;
        }
        let connect = pin!(connect_engine(adapter, peer, config));
        let engine = within(Some(peer), config.connect_timeout, connect).await?;
        Ok(Self::plain(engine))
    }
}

impl fmt::Debug for RdmaConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("RdmaConnector");
        match &self.source {
            Source::Adapter(adapter) => text.field("adapter", adapter),
            Source::Providers(Some(provider), _) => text.field("provider", provider),
            Source::Providers(None, _) => &mut text,
        };
        text.field("config", &self.config).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::net::kernel::interfaces::LISTED;
    use crate::qp::{CompletionQueueConfig, QueuePairConfig};

    const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    fn soft() -> RdmaConnector {
        RdmaConnector::new().provider(Provider::soft().expect("compiled in"))
    }

    fn kept(connector: &RdmaConnector) -> usize {
        match &connector.source {
            Source::Providers(_, adapters) => adapters.lock().known.len(),
            Source::Adapter(_) => 0,
        }
    }

    /// Ends an attempt with the adapter that it has.
    async fn given(adapter: Adapter, _peer: SocketAddr) -> Result<Adapter, StreamError> {
        Ok(adapter)
    }

    /// Returns whether it is one open adapter: one protection domain, where one takes what the other has
    /// made.
    fn same(one: &Adapter, other: &Adapter) -> bool {
        let completions = one.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
        let config = QueuePairConfig::default().receive_completions(&completions);
        other.queue_pair(config).is_ok()
    }

    #[tokio::test]
    async fn adapter_is_opened_once_on_first_use() {
        let connector = soft();
        assert_eq!(kept(&connector), 0);
        let attempts = (0..8).map(|_| {
            let connector = connector.clone();
            async move { connector.connect_with((LOCALHOST, 7), given).await.expect("an adapter") }
        });
        let all = futures::future::join_all(attempts).await;
        assert!(all.iter().all(|adapter| same(&all[0], adapter)), "{all:?}");
        assert_eq!(kept(&connector), 1);
        let other = soft().connect_with((LOCALHOST, 7), given).await.expect("an adapter");
        assert!(!same(&all[0], &other), "it is another connector's");
    }

    #[tokio::test]
    async fn default_connectors_share_adapter_while_in_use() {
        let connect = async || RdmaConnector::shared().connect_with((LOCALHOST, 7), given).await;
        let (first, second) = (connect().await.expect("an adapter"), connect().await.expect("an adapter"));
        assert!(same(&first, &second));
        let weak = first.downgrade();
        drop((first, second));
        assert!(!weak.is_open(), "it is closed with its last user");
        connect().await.expect("another adapter");
    }

    #[test]
    fn default_connectors_of_two_runtimes_share_nothing() {
        let runtimes = [runtime(), runtime()];
        let [first, second] = runtimes.each_ref().map(|runtime| {
            let connect = RdmaConnector::shared().connect_with((LOCALHOST, 7), given);
            runtime.block_on(connect).expect("an adapter")
        });
        let _inside = runtimes[0].enter();
        assert!(!same(&first, &second));
    }

    // Listing the interfaces takes as long as a connection of TCP.
    #[tokio::test]
    async fn open_adapter_is_found_without_listing_interfaces() {
        let connector = soft();
        connector.connect_with((LOCALHOST, 7), given).await.expect("an adapter");
        // The adapter lists its addresses once more when its task begins.
        tokio::task::yield_now().await;
        let listed = LISTED.get();
        let chosen = connector.clone().config(StreamConfig::default().source(LOCALHOST));
        for connector in [&connector, &chosen, &connector] {
            connector.connect_with((LOCALHOST, 7), given).await.expect("an adapter");
        }
        assert_eq!(LISTED.get(), listed);
        assert_eq!(kept(&connector), 1);
    }

    #[tokio::test]
    async fn settings_that_differ_have_adapters_that_differ() {
        let connector = soft();
        connector.connect_with((LOCALHOST, 7), given).await.expect("an adapter");
        assert_eq!(kept(&connector.clone().config(StreamConfig::default())), 1, "the same provider");
        assert_eq!(kept(&connector.provider(Provider::soft().expect("compiled in"))), 0);
    }

    #[test]
    fn adapters_are_kept_per_live_runtime() {
        let connector = soft();
        let (first, second) = (runtime(), runtime());
        for runtime in [&first, &second, &first] {
            runtime.block_on(connector.connect_with((LOCALHOST, 7), given)).expect("an adapter");
        }
        assert_eq!(kept(&connector), 2);
        drop(first);
        second.block_on(connector.connect_with((LOCALHOST, 7), given)).expect("an adapter");
        assert_eq!(kept(&connector), 1);
    }

    #[tokio::test]
    async fn given_adapter_is_used_without_opening_another() {
        let adapter = Adapter::open(LOCALHOST).expect("opened");
        let connector = soft().adapter(&adapter);
        let used = connector.connect_with((LOCALHOST, 7), given).await.expect("an adapter");
        assert!(same(&adapter, &used));
        assert_eq!(kept(&connector), 0);
    }
}
