//! Connection management: providers, adapters, connectors, listeners and connections.
//!
//! The active side uses [`Connector`] → [`Reply`] → [`Connection`], the passive side [`Listener`] → [`Request`] →
//! [`Connection`]. [`Reply`] and [`Request`] are consumed by each step, so that a wrong order does not compile.

mod acceptor;
mod adapter;
#[cfg(feature = "verbs")]
pub(crate) mod check_up;
mod connection;
mod connector;
mod handshakes;
mod listener;
mod provider;

pub use crate::events::AdapterEvent;
pub use crate::provider::info::{
    AdapterInfo, ConnectionDetails, Ece, LinkLayer, PortInfo, PortState, ProviderKind,
};
pub use crate::provider::params::{AcceptParams, ConnectParams};
pub use acceptor::{Acceptor, AcceptorConfig};
pub(crate) use acceptor::{AcceptorParts, none_later, wait_until};
pub(crate) use adapter::WeakAdapter;
pub use adapter::{Adapter, AdapterEvents};
pub use connection::Connection;
pub use connector::{Connector, Reply};
#[cfg(feature = "rustls")]
pub(crate) use handshakes::Handshakes;
pub use listener::{Listener, Request, Requests};
pub use provider::{AdapterChoice, LocalAddress, Provider};
