//! Connectors and listeners.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::adapter::Adapter;
use super::queue_pair::QueuePair;
use crate::error::{AcceptError, BindError, ConnectError, DisconnectError, StateError};
use crate::provider::accept_queue::AcceptQueue;
use crate::provider::connector::ConnectorDriver;
use crate::provider::info::ProviderKind;
use crate::provider::net::descriptors::{Descriptors, Held};
use crate::provider::params::{AcceptParams, ConnectParams};
use crate::provider::with_runtime::WithRuntime;
use crate::types::{ConnectionId, DisconnectReason, PrivateData, ReadLimits};

provider_handle! {
    /// A connector, from Bind to the end of its connection.
    enum Connector {
        Soft(connector::Connector),
        Verbs(connector::Connector),
    }

    /// Returns its number in `tracing` output.
    fn id(&self) -> ConnectionId;

    /// Binds it to an address of the adapter.
    ///
    /// # Errors
    /// See [`BindError`].
    fn bind(&self, address: SocketAddr) -> Result<(), BindError>;

    /// Refuses what the peer has accepted.
    ///
    /// # Errors
    /// See [`ConnectError`].
    fn reject_reply(&self, data: &[u8]) -> Result<(), ConnectError>;

    /// Refuses a request.
    ///
    /// # Errors
    /// See [`AcceptError`].
    fn reject_request(&self, data: &[u8]) -> Result<(), AcceptError>;

    /// Returns whether a request may still be accepted or rejected.
    fn is_pending(&self) -> bool;

    /// The peer's address.
    ///
    /// # Errors
    /// `ConnectionInvalid` when it has no peer.
    fn peer_addr(&self) -> Result<SocketAddr, StateError>;

    /// The read limits that the peer offers, or that were agreed on.
    ///
    /// # Errors
    /// `ConnectionInvalid` outside of the handshake.
    fn read_limits(&self) -> Result<ReadLimits, StateError>;

    /// The read limits of an accept that asks for `asked` and is offered `offered`.
    fn agreed(&self, asked: ReadLimits, offered: ReadLimits) -> ReadLimits;

    /// The private data of the peer's last message.
    ///
    /// # Errors
    /// `ConnectionInvalid` outside of the handshake and after a refusal without data.
    fn private_data(&self) -> Result<PrivateData, StateError>;

    /// Returns whether the connection is established.
    fn is_connected(&self) -> bool;

    /// Ends what is under way with `CANCELED`.
    fn cancel(&self);

    /// The user has dropped the last handle.
    fn release(&self);
}

impl Connector {
    /// The provider of its adapter.
    pub(crate) fn kind(&self) -> ProviderKind {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(_) => ProviderKind::Soft,
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => ProviderKind::Verbs,
        }
    }

    /// Returns the adapter of a request, if its listener serves several: `None` with a device, whose listeners serve one.
    pub(crate) fn adapter(&self) -> Option<Adapter> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(cm) => Some(Adapter::Soft(cm.adapter.clone())),
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => None,
        }
    }

    /// Takes the descriptor of a request, which counts until it is dropped. Connections of devices have none.
    pub(crate) fn take_descriptor(&self) -> Option<Held> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(cm) => cm.take_descriptor(),
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => None,
        }
    }

    /// Sets the descriptor of a request. It counts until the socket is closed, unless it is released.
    pub(crate) fn set_descriptor(&self, descriptor: Held) {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(cm) => cm.set_descriptor(descriptor),
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => drop(descriptor),
        }
    }

    /// Returns the budgets of the descriptors of its host, if its connection has one.
    pub(crate) fn descriptors(&self) -> Option<&Descriptors> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(cm) => Some(cm.adapter.host.descriptors()),
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => None,
        }
    }

    /// The runtime of its adapter.
    fn runtime(&self) -> Handle {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(cm) => cm.adapter.runtime.clone(),
            #[cfg(feature = "verbs")]
            Self::Verbs(cm) => cm.adapter.runtime.clone(),
        }
    }

    /// Asks the peer; ready when it has accepted.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub(crate) async fn connect(
        &self,
        queue_pair: &QueuePair,
        peer: SocketAddr,
        params: &ConnectParams,
    ) -> Result<(), ConnectError> {
        let connect = async {
            match (self, queue_pair) {
                #[cfg(feature = "soft")]
                (Self::Soft(cm), QueuePair::Soft(queue_pair)) => cm.connect(queue_pair, peer, params).await,
                #[cfg(feature = "verbs")]
                (Self::Verbs(cm), QueuePair::Verbs(queue_pair)) => cm.connect(queue_pair, peer, params).await,
                #[cfg(all(feature = "soft", feature = "verbs"))]
                _ => Err(ConnectError::ForeignQueuePair),
            }
        };
        WithRuntime::new(self.runtime(), connect).await
    }

    /// Completes what the peer has accepted.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub(crate) async fn complete(&self) -> Result<(), ConnectError> {
        let complete = async {
            match self {
                #[cfg(feature = "soft")]
                Self::Soft(cm) => cm.complete(),
                #[cfg(feature = "verbs")]
                Self::Verbs(cm) => cm.complete().await,
            }
        };
        WithRuntime::new(self.runtime(), complete).await
    }

    /// Accepts a request; ready when the connection is established.
    ///
    /// # Errors
    /// See [`AcceptError`].
    pub(crate) async fn accept(
        &self,
        queue_pair: &QueuePair,
        params: &AcceptParams,
    ) -> Result<(), AcceptError> {
        let accept = async {
            match (self, queue_pair) {
                #[cfg(feature = "soft")]
                (Self::Soft(cm), QueuePair::Soft(queue_pair)) => cm.accept(queue_pair, params).await,
                #[cfg(feature = "verbs")]
                (Self::Verbs(cm), QueuePair::Verbs(queue_pair)) => cm.accept(queue_pair, params).await,
                #[cfg(all(feature = "soft", feature = "verbs"))]
                _ => Err(AcceptError::ForeignQueuePair),
            }
        };
        WithRuntime::new(self.runtime(), accept).await
    }

    /// The bound address, or that of the connection.
    ///
    /// # Errors
    /// `ConnectionInvalid` when there is neither.
    pub(crate) fn local_addr(&self) -> Result<SocketAddr, StateError> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(cm) => cm.local_addr().or_else(|_| cm.bound_addr()),
            #[cfg(feature = "verbs")]
            Self::Verbs(cm) => cm.local_addr().or_else(|_| cm.bound_addr()),
        }
    }

    /// Waits until the connection is over.
    pub(crate) async fn disconnected(&self) -> DisconnectReason {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(cm) => cm.disconnected().await,
            #[cfg(feature = "verbs")]
            Self::Verbs(cm) => cm.disconnected().await,
        }
    }

    /// Ends the connection, and waits until no memory of its queue pair is in use.
    ///
    /// # Errors
    /// See [`DisconnectError`].
    pub(crate) async fn disconnect(&self) -> Result<(), DisconnectError> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(cm) => cm.disconnect().await,
            #[cfg(feature = "verbs")]
            Self::Verbs(cm) => cm.disconnect().await,
        }
    }
}

provider_handle! {
    /// A listener.
    enum Listener {
        Soft(accept::Listener),
        Verbs(listen::Listener),
    }

    /// Binds it to an address of the adapter.
    ///
    /// # Errors
    /// See [`BindError`].
    fn bind(&self, address: SocketAddr) -> Result<(), BindError>;

    /// Takes requests from now on, so many of which may wait.
    ///
    /// # Errors
    /// See [`BindError`].
    fn listen(&self, backlog: usize) -> Result<(), BindError>;

    /// The bound address.
    ///
    /// # Errors
    /// `InvalidDeviceState` when it does not listen.
    fn local_addr(&self) -> Result<SocketAddr, StateError>;

    /// Ends the calls that wait for a request with `CANCELED`.
    fn cancel(&self);

    /// Ends it, and refuses the requests that nobody has taken.
    fn close(&self);
}

impl Listener {
    /// A connector with a request. `'static`, so that it can be kept and polled.
    pub(crate) fn request(&self) -> impl Future<Output = Result<Connector, AcceptError>> + Send + use<> {
        let listener = self.clone();
        async move {
            Ok(match &listener {
                #[cfg(feature = "soft")]
                Self::Soft(listener) => Connector::Soft(listener.request().await?),
                #[cfg(feature = "verbs")]
                Self::Verbs(listener) => Connector::Verbs(listener.request().await?),
            })
        }
    }
}
