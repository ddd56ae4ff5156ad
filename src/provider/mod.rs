//! The drivers of the two providers, behind one contract.
//!
//! The public handles hold the types of this module: closed enums with a variant per provider that is compiled in, so
//! that a call is a jump and posting can be inlined. Without any provider they have no variant, and nothing can be
//! opened.
//!
//! What a provider promises, beyond the types:
//!
//! * It drives [`proto::connector`](crate::proto::connector), which decides what each call and each event means; the
//!   provider only carries out its actions.
//! * A posted request finishes exactly once, in post order within its queue, through the
//!   [`CompletionSink`] of its queue. Its payload is not touched afterwards.
//! * `disconnected()` resolves before the requests of the connection are flushed.
//! * No call blocks, no lock is held across an await or a wake, and every future may be dropped at any time.
//! * When the adapter goes away every pending operation finishes with `DEVICE_REMOVED`.

pub(crate) mod connector;
pub(crate) mod errors;
pub(crate) mod info;
#[cfg(any(feature = "soft", feature = "verbs"))]
pub(crate) mod net;
pub(crate) mod params;
pub(crate) mod registry;
pub(crate) mod requests;
#[cfg(feature = "soft")]
pub(crate) mod soft;
#[cfg(feature = "verbs")]
pub(crate) mod verbs;
pub(crate) mod with_runtime;
pub(crate) mod work;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;

use crate::error::{
    AcceptError, BindError, ConnectError, OpenError, PostErrorKind, RegisterError, ResizeError, StateError,
};
use crate::flight::{CompletionSink, Payload, Ticket};
use crate::memory::{Owned, Shared};
use crate::types::{Access, AdapterId, ConnectionId, DisconnectReason, PrivateData, ReadLimits, RemoteKey};
use connector::ConnectorDriver;
use info::{AdapterInfo, ProviderKind};
use params::{AcceptParams, ConnectParams};
use registry::Registry;
use with_runtime::WithRuntime;
use work::Work;

/// A number for a protection domain that no other adapter of this process has had, of any provider.
pub(crate) fn next_domain() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Does the same with whichever provider a handle belongs to.
macro_rules! dispatch {
    ($handle:expr, $kind:ident($inner:ident) => $call:expr) => {
        match $handle {
            #[cfg(feature = "soft")]
            $kind::Soft($inner) => $call,
            #[cfg(feature = "verbs")]
            $kind::Verbs($inner) => $call,
            #[cfg(not(any(feature = "soft", feature = "verbs")))]
            handle => handle.none(),
        }
    };
}

/// Makes a handle of the same provider as the one it is made from.
macro_rules! derive {
    ($handle:expr, $kind:ident => $made:ident, soft($soft:ident) => $from_soft:expr, verbs($verbs:ident) => $from_verbs:expr) => {
        match $handle {
            #[cfg(feature = "soft")]
            $kind::Soft($soft) => $made::Soft($from_soft),
            #[cfg(feature = "verbs")]
            $kind::Verbs($verbs) => $made::Verbs($from_verbs),
            #[cfg(not(any(feature = "soft", feature = "verbs")))]
            handle => handle.none(),
        }
    };
}

/// A handle that cannot exist, because no provider is compiled in.
#[cfg(not(any(feature = "soft", feature = "verbs")))]
macro_rules! impossible {
    ($($handle:ident),*) => {$(
        impl $handle {
            fn none(&self) -> ! {
                match *self {}
            }
        }
    )*};
}

#[cfg(not(any(feature = "soft", feature = "verbs")))]
impossible!(Adapter, QueuePair, Connector, Listener, Registration, SharedReceives, Window);

/// What a queue pair is made of.
pub(crate) struct QueuePairParts {
    pub(crate) receive_depth: usize,
    pub(crate) send_depth: usize,
    pub(crate) receive_entries: usize,
    pub(crate) send_entries: usize,
    /// The most bytes of an inline request.
    pub(crate) inline: usize,
    /// Where receives complete. Those of a shared queue have its table.
    pub(crate) receive: CompletionSink,
    pub(crate) initiator: CompletionSink,
    pub(crate) shared: Option<SharedReceives>,
    /// The processor on which completions are best handled.
    pub(crate) affinity: Option<usize>,
}

/// An opened adapter.
#[derive(Clone)]
pub(crate) enum Adapter {
    #[cfg(feature = "soft")]
    Soft(Arc<soft::adapter::AdapterCore>),
    #[cfg(feature = "verbs")]
    Verbs(Arc<verbs::adapter::AdapterCore>),
}

impl Adapter {
    /// The protection domain: unique in the process, one per open.
    pub(crate) fn domain(&self) -> u64 {
        dispatch!(self, Adapter(adapter) => adapter.number)
    }

    pub(crate) fn is_removed(&self) -> bool {
        dispatch!(self, Adapter(adapter) => adapter.is_removed())
    }

    /// What it is and can do: the same for as long as it is open.
    pub(crate) fn info(&self) -> &Arc<AdapterInfo> {
        dispatch!(self, Adapter(adapter) => adapter.info())
    }

    /// A queue pair.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn queue_pair(&self, parts: QueuePairParts) -> Result<QueuePair, OpenError> {
        Ok(derive!(self, Adapter => QueuePair,
            soft(adapter) => soft::queue_pair::QueuePairCore::new(adapter.clone(), parts),
            verbs(adapter) => verbs::queue_pair::QueuePairCore::new(adapter.clone(), parts)?
        ))
    }

    /// Takes what its devices have completed, for who polls and does not wait for the reactor.
    pub(crate) fn progress(&self) {
        match self {
            // Its tasks run whenever there is something.
            #[cfg(feature = "soft")]
            Self::Soft(_) => {}
            #[cfg(feature = "verbs")]
            Self::Verbs(adapter) => adapter.progress(),
            #[cfg(not(any(feature = "soft", feature = "verbs")))]
            handle => handle.none(),
        }
    }

    /// A receive queue for several queue pairs, with room for so many receives of so many entries each. What is left in
    /// it when it ends goes to the outlet.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn shared_receives(
        &self,
        depth: usize,
        entries: usize,
        outlet: CompletionSink,
    ) -> Result<SharedReceives, OpenError> {
        Ok(derive!(self, Adapter => SharedReceives,
            soft(adapter) => soft::shared::SharedReceives::new(adapter, depth, entries, outlet)?,
            verbs(adapter) => verbs::shared::SharedReceives::new(adapter, depth, entries, outlet)?
        ))
    }

    /// A memory window that is not bound.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub(crate) fn window(&self) -> Result<Window, RegisterError> {
        Ok(derive!(self, Adapter => Window,
            soft(adapter) => soft::window::Window::new(adapter)?,
            verbs(adapter) => verbs::window::Window::new(adapter)?
        ))
    }

    pub(crate) fn connector(&self) -> Connector {
        derive!(self, Adapter => Connector,
            soft(adapter) => soft::cm::Cm::new(adapter.clone()),
            verbs(adapter) => verbs::cm::Cm::new(adapter.clone())
        )
    }

    pub(crate) fn listener(&self) -> Listener {
        derive!(self, Adapter => Listener,
            soft(adapter) => soft::accept::ListenerCore::new(adapter.clone()),
            verbs(adapter) => verbs::listen::ListenerCore::new(adapter.clone())
        )
    }

    /// Memory that work requests can use, and no peer.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub(crate) fn allocate(&self, length: usize) -> Result<Owned, RegisterError> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(_) => Owned::zeroed(length).ok_or(RegisterError::InsufficientResources),
            #[cfg(feature = "verbs")]
            Self::Verbs(adapter) => adapter.allocate(length),
            #[cfg(not(any(feature = "soft", feature = "verbs")))]
            handle => handle.none(),
        }
    }

    /// The runtime that has threads for registering and deregistering that much memory; `None` when it can be done right
    /// here. A device pins memory page by page.
    pub(crate) fn blocking(&self, length: usize) -> Option<&Handle> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(_) => {
                let _ = length;
                None
            }
            #[cfg(feature = "verbs")]
            Self::Verbs(adapter) => adapter.blocking(length),
            #[cfg(not(any(feature = "soft", feature = "verbs")))]
            handle => handle.none(),
        }
    }

    /// Puts memory under a key.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub(crate) fn register(&self, memory: Owned, access: Access) -> Result<Registration, RegisterError> {
        Ok(derive!(self, Adapter => Registration,
            soft(adapter) => adapter.keys.register(memory.share(), access)?,
            verbs(adapter) => Arc::new(adapter.register(memory, access)?)
        ))
    }

    /// Puts the memory of a registration that was ended under a new key.
    ///
    /// # Errors
    /// `Busy` when it was not; see [`RegisterError`].
    pub(crate) fn register_again(
        &self,
        old: &Registration,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        match (self, old) {
            #[cfg(feature = "soft")]
            (Self::Soft(adapter), Registration::Soft(old)) => {
                if old.is_valid() {
                    return Err(RegisterError::Busy);
                }
                Ok(Registration::Soft(adapter.keys.register(old.memory().clone(), access)?))
            }
            #[cfg(feature = "verbs")]
            (Self::Verbs(adapter), Registration::Verbs(old)) => {
                Ok(Registration::Verbs(Arc::new(adapter.register_again(old, access)?)))
            }
            // A registration is kept together with its adapter.
            #[cfg(all(feature = "soft", feature = "verbs"))]
            _ => Err(RegisterError::Busy),
            #[cfg(not(any(feature = "soft", feature = "verbs")))]
            (handle, _) => handle.none(),
        }
    }

    /// Puts memory of another device under a key: `offset`, `length` and the address of its first byte.
    ///
    /// # Errors
    /// `NotSupported`; see [`RegisterError`].
    pub(crate) fn register_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        part: (u64, usize, u64),
        access: Access,
    ) -> Result<Registration, RegisterError> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(_) => {
                let _ = (dmabuf, part, access);
                Err(RegisterError::NotSupported("the soft provider reaches no other device"))
            }
            #[cfg(feature = "verbs")]
            Self::Verbs(adapter) => {
                Ok(Registration::Verbs(Arc::new(adapter.register_dmabuf(dmabuf, part, access)?)))
            }
            #[cfg(not(any(feature = "soft", feature = "verbs")))]
            handle => handle.none(),
        }
    }

    /// Takes the key back.
    ///
    /// # Errors
    /// `Busy` while something is bound to it; see [`RegisterError`].
    pub(crate) fn deregister(&self, registration: &Registration) -> Result<(), RegisterError> {
        match (self, registration) {
            #[cfg(feature = "soft")]
            (Self::Soft(adapter), Registration::Soft(registration)) => adapter.keys.deregister(registration),
            #[cfg(feature = "verbs")]
            (_, Registration::Verbs(registration)) => registration.deregister(),
            // A registration is kept together with its adapter.
            #[cfg(all(feature = "soft", feature = "verbs"))]
            (Self::Verbs(_), Registration::Soft(_)) => Ok(()),
            #[cfg(not(any(feature = "soft", feature = "verbs")))]
            (handle, _) => handle.none(),
        }
    }

    /// The user has dropped the last handle. A device has the memory until no request uses it either, and the memory
    /// sees to that by itself: requests that name memory that was taken away would fail.
    pub(crate) fn release(&self, registration: &Registration) {
        match (self, registration) {
            #[cfg(feature = "soft")]
            (Self::Soft(adapter), Registration::Soft(registration)) => adapter.keys.release(registration),
            #[cfg(feature = "verbs")]
            _ => {}
            #[cfg(not(any(feature = "soft", feature = "verbs")))]
            (handle, _) => handle.none(),
        }
    }

    /// What ends with the adapter.
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        dispatch!(self, Adapter(adapter) => adapter.registry())
    }
}

/// Registered memory.
#[derive(Clone)]
pub(crate) enum Registration {
    #[cfg(feature = "soft")]
    Soft(Arc<soft::keys::Registration>),
    #[cfg(feature = "verbs")]
    Verbs(Arc<verbs::region::Registration>),
}

impl Registration {
    pub(crate) fn key(&self) -> RemoteKey {
        RemoteKey(dispatch!(self, Registration(registration) => registration.key()))
    }

    /// The remote address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        dispatch!(self, Registration(registration) => registration.address())
    }

    pub(crate) fn access(&self) -> Access {
        dispatch!(self, Registration(registration) => registration.access())
    }

    pub(crate) fn memory(&self) -> &Shared {
        dispatch!(self, Registration(registration) => registration.memory())
    }

    pub(crate) fn is_valid(&self) -> bool {
        dispatch!(self, Registration(registration) => registration.is_valid())
    }
}

/// A memory window.
#[derive(Clone)]
pub(crate) enum Window {
    #[cfg(feature = "soft")]
    Soft(Arc<soft::window::Window>),
    #[cfg(feature = "verbs")]
    Verbs(Arc<verbs::window::Window>),
}

impl Window {
    /// What it is bound to since the last call that binds or invalidates it: key, remote address, length.
    pub(crate) fn bound(&self) -> Option<(u32, u64, usize)> {
        dispatch!(self, Window(window) => window.bound())
    }
}

/// A receive queue of several queue pairs.
#[derive(Clone)]
pub(crate) enum SharedReceives {
    #[cfg(feature = "soft")]
    Soft(Arc<soft::shared::SharedReceives>),
    #[cfg(feature = "verbs")]
    Verbs(Arc<verbs::shared::SharedReceives>),
}

impl SharedReceives {
    /// Posts a receive. There is room: the caller counts.
    ///
    /// # Errors
    /// Why not, with the payload.
    pub(crate) fn receive(&self, ticket: Ticket, payload: Payload) -> Result<(), (PostErrorKind, Payload)> {
        dispatch!(self, SharedReceives(shared) => shared.receive(ticket, payload))
    }

    /// Makes room for so many receives; there are not more.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn resize(&self, depth: usize) -> Result<(), ResizeError> {
        dispatch!(self, SharedReceives(shared) => shared.resize(depth))
    }

    /// The user has dropped the last handle, and no queue pair uses it.
    pub(crate) fn released(&self) {
        dispatch!(self, SharedReceives(shared) => shared.released())
    }
}

/// A queue pair.
#[derive(Clone)]
pub(crate) enum QueuePair {
    #[cfg(feature = "soft")]
    Soft(Arc<soft::queue_pair::QueuePairCore>),
    #[cfg(feature = "verbs")]
    Verbs(Arc<verbs::queue_pair::QueuePairCore>),
}

impl QueuePair {
    /// Posts a receive.
    ///
    /// # Errors
    /// Why not, with the payload.
    pub(crate) fn receive(&self, ticket: Ticket, payload: Payload) -> Result<(), (PostErrorKind, Payload)> {
        dispatch!(self, QueuePair(queue_pair) => queue_pair.receive(ticket, payload))
    }

    /// Posts a request of the send queue.
    ///
    /// # Errors
    /// Why not, with the payload.
    pub(crate) fn initiate(&self, work: Work) -> Result<(), (PostErrorKind, Payload)> {
        dispatch!(self, QueuePair(queue_pair) => queue_pair.initiate(work))
    }

    /// Has the device look at what was deferred.
    pub(crate) fn ring(&self) {
        dispatch!(self, QueuePair(queue_pair) => queue_pair.ring())
    }

    pub(crate) fn flush(&self) {
        dispatch!(self, QueuePair(queue_pair) => queue_pair.flush())
    }

    /// A completion queue of it has lost a result: its connection ends.
    pub(crate) fn overrun(&self) {
        dispatch!(self, QueuePair(queue_pair) => queue_pair.overrun())
    }

    /// The user has dropped the last handle.
    pub(crate) fn released(&self) {
        dispatch!(self, QueuePair(queue_pair) => queue_pair.released())
    }
}

/// A connector, from Bind to the end of its connection.
#[derive(Clone)]
pub(crate) enum Connector {
    #[cfg(feature = "soft")]
    Soft(Arc<soft::cm::Cm>),
    #[cfg(feature = "verbs")]
    Verbs(Arc<verbs::cm::Cm>),
}

impl Connector {
    pub(crate) fn id(&self) -> ConnectionId {
        dispatch!(self, Connector(cm) => cm.id)
    }

    /// # Errors
    /// See [`BindError`].
    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), BindError> {
        dispatch!(self, Connector(cm) => cm.bind(address))
    }

    /// # Errors
    /// See [`ConnectError`].
    pub(crate) async fn connect(
        &self,
        queue_pair: &QueuePair,
        peer: SocketAddr,
        params: &ConnectParams,
    ) -> Result<(), ConnectError> {
        match (self, queue_pair) {
            #[cfg(feature = "soft")]
            (Self::Soft(cm), QueuePair::Soft(queue_pair)) => {
                let runtime = cm.adapter.runtime.clone();
                WithRuntime::new(runtime, cm.connect(queue_pair, peer, params)).await
            }
            #[cfg(feature = "verbs")]
            (Self::Verbs(cm), QueuePair::Verbs(queue_pair)) => {
                let runtime = cm.adapter.runtime.clone();
                WithRuntime::new(runtime, cm.connect(queue_pair, peer, params)).await
            }
            #[cfg(all(feature = "soft", feature = "verbs"))]
            _ => Err(ConnectError::ForeignQueuePair),
            #[cfg(not(any(feature = "soft", feature = "verbs")))]
            (handle, _) => handle.none(),
        }
    }

    /// # Errors
    /// See [`ConnectError`].
    pub(crate) async fn complete(&self) -> Result<(), ConnectError> {
        dispatch!(self, Connector(cm) => {
            let runtime = cm.adapter.runtime.clone();
            WithRuntime::new(runtime, async { cm.complete() }).await
        })
    }

    /// # Errors
    /// See [`ConnectError`].
    pub(crate) fn reject_reply(&self, data: &[u8]) -> Result<(), ConnectError> {
        dispatch!(self, Connector(cm) => cm.reject_reply(data))
    }

    /// # Errors
    /// See [`AcceptError`].
    pub(crate) async fn accept(
        &self,
        queue_pair: &QueuePair,
        params: &AcceptParams,
    ) -> Result<(), AcceptError> {
        match (self, queue_pair) {
            #[cfg(feature = "soft")]
            (Self::Soft(cm), QueuePair::Soft(queue_pair)) => {
                let runtime = cm.adapter.runtime.clone();
                WithRuntime::new(runtime, cm.accept(queue_pair, params)).await
            }
            #[cfg(feature = "verbs")]
            (Self::Verbs(cm), QueuePair::Verbs(queue_pair)) => {
                let runtime = cm.adapter.runtime.clone();
                WithRuntime::new(runtime, cm.accept(queue_pair, params)).await
            }
            #[cfg(all(feature = "soft", feature = "verbs"))]
            _ => Err(AcceptError::ForeignQueuePair),
            #[cfg(not(any(feature = "soft", feature = "verbs")))]
            (handle, _) => handle.none(),
        }
    }

    /// # Errors
    /// See [`AcceptError`].
    pub(crate) fn reject_request(&self, data: &[u8]) -> Result<(), AcceptError> {
        dispatch!(self, Connector(cm) => cm.reject_request(data))
    }

    /// Whether a request may still be accepted or rejected.
    pub(crate) fn is_pending(&self) -> bool {
        dispatch!(self, Connector(cm) => cm.is_pending())
    }

    /// The bound address, or that of the connection.
    ///
    /// # Errors
    /// `ConnectionInvalid` when there is neither.
    pub(crate) fn local_addr(&self) -> Result<SocketAddr, StateError> {
        dispatch!(self, Connector(cm) => cm.local_addr().or_else(|_| cm.bound_addr()))
    }

    /// # Errors
    /// `ConnectionInvalid` when it has no peer.
    pub(crate) fn peer_addr(&self) -> Result<SocketAddr, StateError> {
        dispatch!(self, Connector(cm) => cm.peer_addr())
    }

    /// # Errors
    /// `ConnectionInvalid` outside of the handshake.
    pub(crate) fn read_limits(&self) -> Result<ReadLimits, StateError> {
        dispatch!(self, Connector(cm) => cm.read_limits())
    }

    /// What an accept that asks for these limits comes to when it is offered those.
    pub(crate) fn agreed(&self, asked: ReadLimits, offered: ReadLimits) -> ReadLimits {
        dispatch!(self, Connector(cm) => cm.agreed(asked, offered))
    }

    /// # Errors
    /// `ConnectionInvalid` outside of the handshake and after a refusal without data.
    pub(crate) fn private_data(&self) -> Result<PrivateData, StateError> {
        dispatch!(self, Connector(cm) => cm.private_data())
    }

    pub(crate) async fn disconnected(&self) -> DisconnectReason {
        dispatch!(self, Connector(cm) => cm.disconnected().await)
    }

    /// # Errors
    /// See [`DisconnectError`](crate::error::DisconnectError).
    pub(crate) async fn disconnect(&self) -> Result<(), crate::error::DisconnectError> {
        dispatch!(self, Connector(cm) => cm.disconnect().await)
    }

    pub(crate) fn cancel(&self) {
        dispatch!(self, Connector(cm) => cm.cancel())
    }

    pub(crate) fn release(&self) {
        dispatch!(self, Connector(cm) => cm.release())
    }
}

/// A listener.
#[derive(Clone)]
pub(crate) enum Listener {
    #[cfg(feature = "soft")]
    Soft(Arc<soft::accept::ListenerCore>),
    #[cfg(feature = "verbs")]
    Verbs(Arc<verbs::listen::ListenerCore>),
}

impl Listener {
    /// # Errors
    /// See [`BindError`].
    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), BindError> {
        dispatch!(self, Listener(listener) => listener.bind(address))
    }

    /// # Errors
    /// See [`BindError`].
    pub(crate) fn listen(&self, backlog: usize) -> Result<(), BindError> {
        dispatch!(self, Listener(listener) => listener.listen(backlog))
    }

    /// # Errors
    /// `InvalidDeviceState` when it does not listen.
    pub(crate) fn local_addr(&self) -> Result<SocketAddr, StateError> {
        dispatch!(self, Listener(listener) => listener.local_addr())
    }

    /// A connector with a request. `'static`, so that it can be kept and polled.
    pub(crate) fn request(&self) -> impl Future<Output = Result<Connector, AcceptError>> + Send + use<> {
        let request = self.clone();
        async move {
            Ok(derive!(&request, Self => Connector,
                soft(listener) => listener.request().await?,
                verbs(listener) => listener.request().await?
            ))
        }
    }

    pub(crate) fn cancel(&self) {
        dispatch!(self, Listener(listener) => listener.cancel())
    }

    pub(crate) fn close(&self) {
        dispatch!(self, Listener(listener) => listener.close())
    }
}

/// The adapter of `kind` that has this address.
///
/// # Errors
/// See [`OpenError`].
pub(crate) fn resolve(kind: ProviderKind, ip: IpAddr) -> Result<AdapterId, OpenError> {
    match kind {
        #[cfg(feature = "soft")]
        ProviderKind::Soft => soft::adapter::resolve(ip),
        #[cfg(feature = "verbs")]
        ProviderKind::Verbs => verbs::catalogue::resolve(ip),
        #[cfg(not(all(feature = "soft", feature = "verbs")))]
        _ => {
            let _ = ip;
            Err(OpenError::Unsupported("the provider is not compiled in"))
        }
    }
}

/// Every address that adapters of `kind` have.
///
/// # Errors
/// See [`OpenError`].
pub(crate) fn addresses(kind: ProviderKind) -> Result<Vec<IpAddr>, OpenError> {
    match kind {
        #[cfg(feature = "soft")]
        ProviderKind::Soft => soft::adapter::addresses(),
        #[cfg(feature = "verbs")]
        ProviderKind::Verbs => {
            Ok(verbs::catalogue::devices()?.into_iter().flat_map(|device| device.addresses).collect())
        }
        #[cfg(not(all(feature = "soft", feature = "verbs")))]
        _ => Err(OpenError::Unsupported("the provider is not compiled in")),
    }
}

/// The address from which an adapter of `kind` reaches a peer.
///
/// # Errors
/// See [`OpenError`].
pub(crate) fn local_for(kind: ProviderKind, remote: IpAddr) -> Result<IpAddr, OpenError> {
    match kind {
        #[cfg(feature = "soft")]
        ProviderKind::Soft => soft::adapter::local_for(remote),
        #[cfg(feature = "verbs")]
        ProviderKind::Verbs => verbs::catalogue::local_for(remote),
        #[cfg(not(all(feature = "soft", feature = "verbs")))]
        _ => {
            let _ = remote;
            Err(OpenError::Unsupported("the provider is not compiled in"))
        }
    }
}

/// Whether an adapter of `kind` could use this address right now.
pub(crate) fn is_usable(kind: ProviderKind, address: IpAddr) -> bool {
    #[cfg(any(feature = "soft", feature = "verbs"))]
    return net::interfaces::is_usable(address).unwrap_or(false) && resolve(kind, address).is_ok();
    #[cfg(not(any(feature = "soft", feature = "verbs")))]
    return resolve(kind, address).is_ok();
}
