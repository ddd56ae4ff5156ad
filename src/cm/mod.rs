//! Connection management: providers and adapters, connectors and listeners, and what comes of them.
//!
//! The active side goes [`Connector`] → [`Reply`] → [`Connection`], the passive side [`Listener`] → [`Request`] →
//! [`Connection`]. Each step consumes its handle, so that a wrong order does not compile.

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
