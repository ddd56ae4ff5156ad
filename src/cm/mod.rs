//! Connection management: providers, adapters, connectors, listeners and connections.
//!
//! The active side uses [`Connector`] → [`Reply`] → [`Connection`], the passive side [`Listener`] → [`Request`] →
//! [`Connection`]. [`Reply`] and [`Request`] are consumed by each step, so that a wrong order does not compile.

mod adapter;
mod connection;
mod connector;
mod listener;
mod provider;

pub use crate::provider::info::{AdapterInfo, ProviderKind};
pub use crate::provider::params::{AcceptParams, ConnectParams};
pub use adapter::Adapter;
pub use connection::Connection;
pub use connector::{Connector, Reply};
pub use listener::{Listener, Request, Requests};
pub use provider::Provider;
