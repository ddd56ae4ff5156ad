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
//!   [`Table`](crate::flight::Table) of its queue pair. Its payload is not touched afterwards.
//! * `disconnected()` resolves before the requests of the connection are flushed.
//! * No call blocks, no lock is held across an await or a wake, and every future may be dropped at any time.
//! * When the adapter goes away every pending operation finishes with `DEVICE_REMOVED`.

pub(crate) mod drive;
pub(crate) mod errors;
pub(crate) mod inside;
pub(crate) mod members;
#[cfg(feature = "soft")]
pub(crate) mod net;
pub(crate) mod params;
pub(crate) mod requests;
#[cfg(feature = "soft")]
pub(crate) mod soft;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::error::{
    AcceptError, BindError, ConnectError, OpenError, PostErrorKind, RegisterError, StateError,
};
use crate::flight::{Payload, Table, Ticket};
use crate::memory::{Owned, Shared};
use crate::types::{
    Access, AdapterId, ConnectionId, DisconnectReason, OpKind, PrivateData, ReadLimits, RemoteKey,
};
use drive::Drive;
use inside::Inside;
use params::{AcceptParams, ConnectParams};

/// Which driver serves an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProviderKind {
    /// User-space iWARP over TCP.
    Soft,
}

/// Calls the same method on whichever provider a handle belongs to.
macro_rules! dispatch {
    ($handle:expr, $kind:ident($inner:ident) => $call:expr) => {
        match $handle {
            #[cfg(feature = "soft")]
            $kind::Soft($inner) => $call,
            #[cfg(not(feature = "soft"))]
            handle => handle.none(),
        }
    };
}

/// A handle that cannot exist, because no provider is compiled in.
#[cfg(not(feature = "soft"))]
macro_rules! impossible {
    ($($handle:ident),*) => {$(
        impl $handle {
            fn none(&self) -> ! {
                match *self {}
            }
        }
    )*};
}

#[cfg(not(feature = "soft"))]
impossible!(Adapter, QueuePair, Connector, Listener, Registration);

/// What an adapter is and can do, in the provider's words.
#[derive(Clone, Debug)]
pub(crate) struct Capabilities {
    pub(crate) kind: ProviderKind,
    pub(crate) id: AdapterId,
    pub(crate) name: String,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) read_limits: ReadLimits,
    pub(crate) request_data: usize,
    pub(crate) reply_data: usize,
    pub(crate) active_reject_data: usize,
    pub(crate) transfer: usize,
    pub(crate) registration: usize,
    pub(crate) depth: usize,
    pub(crate) entries: usize,
    pub(crate) three_phase: bool,
    pub(crate) exact_private_data: bool,
    pub(crate) loopback: bool,
    pub(crate) in_order: bool,
    pub(crate) early_completion: bool,
}

/// An opened adapter.
#[derive(Clone)]
pub(crate) enum Adapter {
    #[cfg(feature = "soft")]
    Soft(Arc<soft::adapter::AdapterCore>),
}

impl Adapter {
    /// The protection domain: unique in the process, one per open.
    pub(crate) fn domain(&self) -> u64 {
        dispatch!(self, Adapter(adapter) => adapter.domain)
    }

    pub(crate) fn is_removed(&self) -> bool {
        dispatch!(self, Adapter(adapter) => adapter.is_removed())
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        dispatch!(self, Adapter(adapter) => adapter.capabilities())
    }

    pub(crate) fn queue_pair(&self, receive_depth: usize, initiator_depth: usize) -> QueuePair {
        dispatch!(self, Adapter(adapter) => QueuePair::Soft(soft::queue_pair::QueuePairCore::new(
            adapter.clone(), receive_depth, initiator_depth,
        )))
    }

    pub(crate) fn connector(&self) -> Connector {
        dispatch!(self, Adapter(adapter) => Connector::Soft(soft::cm::Cm::new(adapter.clone())))
    }

    pub(crate) fn listener(&self) -> Listener {
        dispatch!(self, Adapter(adapter) => Listener::Soft(soft::accept::ListenerCore::new(adapter.clone())))
    }

    /// Puts memory under a key.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub(crate) fn register(&self, memory: Owned, access: Access) -> Result<Registration, RegisterError> {
        dispatch!(self, Adapter(adapter) => Ok(Registration::Soft(adapter.keys.register(memory.share(), access)?)))
    }

    pub(crate) fn deregister(&self, registration: &Registration) {
        dispatch!(self, Adapter(adapter) => {
            let Registration::Soft(registration) = registration;
            adapter.keys.deregister(registration);
        })
    }
}

/// Registered memory.
#[derive(Clone)]
pub(crate) enum Registration {
    #[cfg(feature = "soft")]
    Soft(Arc<soft::keys::Registration>),
}

impl Registration {
    pub(crate) fn key(&self) -> RemoteKey {
        RemoteKey(dispatch!(self, Registration(registration) => registration.key()))
    }

    /// The remote address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        dispatch!(self, Registration(_registration) => 0)
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

/// A queue pair.
#[derive(Clone)]
pub(crate) enum QueuePair {
    #[cfg(feature = "soft")]
    Soft(Arc<soft::queue_pair::QueuePairCore>),
}

impl QueuePair {
    pub(crate) fn table(&self) -> &Arc<Table> {
        dispatch!(self, QueuePair(queue_pair) => &queue_pair.table)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// Why not, with the payload.
    pub(crate) fn receive(&self, ticket: Ticket, payload: Payload) -> Result<(), (PostErrorKind, Payload)> {
        dispatch!(self, QueuePair(queue_pair) => queue_pair.receive(ticket, payload))
    }

    /// Posts a send, write or read.
    ///
    /// # Errors
    /// Why not, with the payload.
    pub(crate) fn initiate(
        &self,
        ticket: Ticket,
        kind: OpKind,
        remote: (u32, u64),
        payload: Payload,
    ) -> Result<(), (PostErrorKind, Payload)> {
        dispatch!(self, QueuePair(queue_pair) => queue_pair.initiate(ticket, kind, remote, payload))
    }

    pub(crate) fn flush(&self) {
        dispatch!(self, QueuePair(queue_pair) => queue_pair.flush())
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
        dispatch!(self, Connector(cm) => {
            let QueuePair::Soft(queue_pair) = queue_pair;
            let runtime = cm.adapter.runtime.clone();
            Inside::new(runtime, cm.connect(queue_pair, peer, params)).await
        })
    }

    /// # Errors
    /// See [`ConnectError`].
    pub(crate) async fn complete(&self) -> Result<(), ConnectError> {
        dispatch!(self, Connector(cm) => {
            let runtime = cm.adapter.runtime.clone();
            Inside::new(runtime, async { cm.complete() }).await
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
        dispatch!(self, Connector(cm) => {
            let QueuePair::Soft(queue_pair) = queue_pair;
            let runtime = cm.adapter.runtime.clone();
            Inside::new(runtime, cm.accept(queue_pair, params)).await
        })
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
        #[cfg(feature = "soft")]
        let request = match self {
            Self::Soft(listener) => listener.request(),
        };
        #[cfg(not(feature = "soft"))]
        let request = std::future::ready(self.none());
        async move {
            #[cfg(feature = "soft")]
            return request.await.map(Connector::Soft);
            #[cfg(not(feature = "soft"))]
            return request.await;
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
        #[cfg(not(feature = "soft"))]
        ProviderKind::Soft => Err(OpenError::Unsupported("the soft provider is not compiled in")),
    }
}
