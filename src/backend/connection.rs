//! Connectors and listeners of either provider.

use std::net::SocketAddr;
use std::pin::pin;

use tokio::runtime::Handle;

use super::{Adapter, Connector, Listener, QueuePair};
use crate::error::{AcceptError, BindError, ConnectError, DisconnectError, StateError};
#[cfg(feature = "inspect")]
use crate::inspect::ConnectionReport;
use crate::net::descriptors::{Descriptors, Held};
use crate::proto::connector::Terms;
use crate::provider::accept_queue::AcceptQueue;
use crate::provider::connector::ConnectorDriver;
use crate::provider::info::{Path, ProviderKind};
use crate::provider::params::{AcceptParams, ConnectParams};
use crate::sync::WithRuntime;
use crate::types::{ConnectionId, DisconnectReason, PrivateData, ReadLimits};

impl Connector {
    forward! {
        /// Returns its number in `tracing` output.
        pub(crate) fn id(&self) -> ConnectionId;

        pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), BindError>;

        /// Refuses what the peer has accepted.
        pub(crate) fn reject_reply(&self, data: &[u8]) -> Result<(), ConnectError>;

        pub(crate) fn reject_request(&self, data: &[u8]) -> Result<(), AcceptError>;

        /// Returns whether a request may still be accepted or rejected.
        pub(crate) fn is_pending(&self) -> bool;

        pub(crate) fn peer_addr(&self) -> Result<SocketAddr, StateError>;

        /// Returns the read limits that the peer offers, or that were agreed on.
        pub(crate) fn read_limits(&self) -> Result<ReadLimits, StateError>;

        /// Returns the read limits of an accept that asks for `asked` and is offered `offered`.
        pub(crate) fn agreed(&self, asked: ReadLimits, offered: ReadLimits) -> ReadLimits;

        /// Returns the private data of the peer's last message.
        pub(crate) fn private_data(&self) -> Result<PrivateData, StateError>;

        /// Returns the terms of the peer.
        pub(crate) fn terms(&self) -> Result<Terms, StateError>;

        /// Returns the local address and that of the peer, in any state.
        pub(crate) fn ends(&self) -> (SocketAddr, SocketAddr);

        pub(crate) fn is_connected(&self) -> bool;

        /// Ends what is under way with `CANCELED`.
        pub(crate) fn cancel(&self);

        /// Ends it, because the user has dropped the last handle.
        pub(crate) fn release(&self);

        /// Returns its report for a snapshot.
        #[cfg(feature = "inspect")]
        pub(crate) fn report(&self) -> ConnectionReport;
    }

    pub(crate) fn kind(&self) -> ProviderKind {
        only_soft!(self, _ => ProviderKind::Soft, ProviderKind::Verbs)
    }

    /// Returns the name of the adapter.
    pub(crate) fn adapter_name(&self) -> &str {
        dispatch!(self, connector => &connector.adapter.info().name)
    }

    /// Returns the path of the connection, if it has one: with a device, once both ends know each other.
    pub(crate) fn path(&self) -> Option<Path> {
        by_provider!(self, Self::Soft(_) => None, Self::Verbs(connector) => connector.path())
    }

    /// Returns the adapter of a request, if its listener serves several: `None` with a device, whose listeners serve one.
    pub(crate) fn adapter(&self) -> Option<Adapter> {
        only_soft!(self, connector => Some(Adapter::Soft(connector.adapter.clone())), None)
    }

    /// Takes the descriptor of a request, which counts until it is dropped. Connections of devices have none.
    pub(crate) fn take_descriptor(&self) -> Option<Held> {
        only_soft!(self, connector => connector.take_descriptor(), None)
    }

    /// Sets the descriptor of a request. It counts until the socket is closed, unless it is released.
    pub(crate) fn set_descriptor(&self, descriptor: Held) {
        only_soft!(self, connector => connector.set_descriptor(descriptor), ());
    }

    /// Returns the budgets of the descriptors of its host, if its connection has one.
    pub(crate) fn descriptors(&self) -> Option<&Descriptors> {
        only_soft!(self, connector => Some(connector.adapter.host.descriptors()), None)
    }

    fn runtime(&self) -> &Handle {
        dispatch!(self, connector => &connector.adapter.runtime)
    }

    /// Asks the peer; ready when it has accepted.
    pub(crate) async fn connect(
        &self,
        queue_pair: &QueuePair,
        peer: SocketAddr,
        params: &ConnectParams,
    ) -> Result<(), ConnectError> {
        // Pinned here, because moving it costs more than a poll.
        let connect = pin!(async {
            dispatch_all!(
                self, queue_pair, QueuePair;
                (connector, queue_pair) => connector.connect(queue_pair, peer, params).await,
                Err(ConnectError::ForeignQueuePair)
            )
        });
        WithRuntime::new(self.runtime(), connect).await
    }

    /// Completes what the peer has accepted. `asks` if time has passed since then, in which the peer may have left.
    pub(crate) async fn complete(&self, asks: bool) -> Result<(), ConnectError> {
        let complete = pin!(async {
            by_provider!(
                self,
                Self::Soft(connector) => connector.complete(asks),
                Self::Verbs(connector) => connector.complete().await
            )
        });
        WithRuntime::new(self.runtime(), complete).await
    }

    /// Accepts a request; ready when the connection is established.
    pub(crate) async fn accept(
        &self,
        queue_pair: &QueuePair,
        params: &AcceptParams,
    ) -> Result<(), AcceptError> {
        let accept = pin!(async {
            dispatch_all!(
                self, queue_pair, QueuePair;
                (connector, queue_pair) => connector.accept(queue_pair, params).await,
                Err(AcceptError::ForeignQueuePair)
            )
        });
        WithRuntime::new(self.runtime(), accept).await
    }

    /// Returns the bound address, or that of the connection.
    pub(crate) fn local_addr(&self) -> Result<SocketAddr, StateError> {
        dispatch!(self, connector => connector.local_addr().or_else(|_| connector.bound_addr()))
    }

    /// Waits until the connection is over.
    pub(crate) async fn disconnected(&self) -> DisconnectReason {
        dispatch!(self, connector => connector.disconnected().await)
    }

    /// Ends the connection, and waits until no memory of its queue pair is in use.
    pub(crate) async fn disconnect(&self) -> Result<(), DisconnectError> {
        dispatch!(self, connector => connector.disconnect().await)
    }
}

impl Listener {
    forward! {
        pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), BindError>;

        /// Takes requests from now on, so many of which may wait.
        pub(crate) fn listen(&self, backlog: usize) -> Result<(), BindError>;

        pub(crate) fn local_addr(&self) -> Result<SocketAddr, StateError>;

        /// Ends the calls that wait for a request with `CANCELED`.
        pub(crate) fn cancel(&self);

        /// Ends it, and refuses the requests that nobody has taken.
        pub(crate) fn close(&self);
    }

    /// Waits for a request and returns its connector. `'static`, so that it can be kept and polled.
    pub(crate) fn request(&self) -> impl Future<Output = Result<Connector, AcceptError>> + Send + use<> {
        let listener = self.clone();
        async move {
            Ok(make!(
                &listener,
                Connector,
                listener => listener.request().await?,
                listener => listener.request().await?,
            ))
        }
    }
}
