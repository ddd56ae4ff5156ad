//! Async RDMA connection management for tokio.
//!
//! NetworkDirect's three-phase connections, recast as futures: a [`Connector`] asks, a [`Listener`] hands out the
//! [`Request`], the peer accepts, and the asking side looks at the [`Reply`] before it completes the [`Connection`].
//! Data then moves through a [`QueuePair`] by Send, RDMA Write and RDMA Read, each posted by a call and completed by a
//! future that owns its buffer.
//!
//! The **soft** provider (feature `soft`, on by default) is a user-space iWARP stack over TCP: it works on any Linux
//! machine, in the wire format of Linux `siw`.
//!
//! ```
//! use tokio_rdma::{AcceptParams, Adapter, ConnectParams, QueuePairConfig};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let adapter = Adapter::open("127.0.0.1".parse().unwrap())?;
//! let listener = adapter.listener();
//! listener.bind(([127, 0, 0, 1], 0).into())?;
//! listener.listen(0)?;
//! let address = listener.local_addr()?;
//!
//! let passive = async {
//!     let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
//!     // Posted first: the peer may send as soon as the connection is up.
//!     let receive = queue_pair.receive(adapter.buffer(64)?)?;
//!     let request = listener.request().await?;
//!     assert_eq!(&request.private_data()[..], b"may I?");
//!     let connection = request.accept(&queue_pair, AcceptParams::default()).await?;
//!     let (outcome, buffer) = receive.await;
//!     assert_eq!(&buffer[..outcome?.bytes], b"hello");
//!     connection.disconnected().await;
//!     std::io::Result::Ok(())
//! };
//! let active = async {
//!     let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
//!     let params = ConnectParams::default().private_data(&b"may I?"[..]);
//!     let reply = adapter.connector().connect(&queue_pair, address, params).await?;
//!     let connection = reply.complete().await?;
//!     let (outcome, _buffer) = queue_pair.send(adapter.buffer_from(b"hello")?)?.await;
//!     outcome?;
//!     Ok(connection.disconnect().await?)
//! };
//! tokio::try_join!(passive, active)?;
//! # Ok(())
//! # }
//! ```
//!
//! Above that are byte streams ([`RdmaStream`], which speaks librdmacm's rsocket) and messages ([`Messages`]), and what RPC
//! frameworks need of them behind features of their names: `tonic`, `hyper`, `tower`, `tarpc`, `rustls`; and `metrics`.
//!
//! The modules are layers, and use only those above them: [`status`], [`error`] and [`types`] for the vocabulary; the
//! wire formats, the protocol machines and the providers, which are private; [`mr`] for memory, [`qp`] for queue pairs,
//! [`cm`] for connections, [`io`] for streams.
#![deny(unsafe_code)]

#[cfg(not(any(feature = "soft", feature = "verbs")))]
compile_error!("tokio-rdma needs a provider: enable the feature `soft` or the feature `verbs`");

pub mod error;
pub mod metrics;
pub mod status;
pub(crate) mod sync;
pub mod types;

#[cfg(feature = "soft")]
pub(crate) mod wire;

pub(crate) mod proto;

pub(crate) mod flight;
pub(crate) mod memory;
#[cfg(feature = "verbs")]
mod sys;

pub(crate) mod provider;

pub mod mr;

pub mod qp;

pub mod cm;

pub mod io;

#[cfg(all(any(test, fuzzing), feature = "soft"))]
#[doc(hidden)]
pub mod internals;

/// Settings of the soft provider.
#[cfg(feature = "soft")]
pub mod soft {
    pub use crate::provider::soft::config::SoftConfig;
}

/// Settings of the verbs provider.
#[cfg(feature = "verbs")]
pub mod verbs {
    pub use crate::provider::verbs::config::VerbsConfig;
}

pub use cm::{
    AcceptParams, Adapter, AdapterInfo, ConnectParams, Connection, Connector, Listener, Provider,
    ProviderKind, Reply, Request, Requests,
};
pub use io::{
    MessageListener, Messages, MessagesConfig, RdmaConnector, RdmaListener, RdmaStream, StreamConfig,
};
pub use mr::{Buffer, BufferPart, MemoryWindow, Pool, PoolConfig, Region, RegionSlice, RemoteRegion};
pub use qp::{
    Completion, CompletionQueue, CompletionQueueConfig, NotifyKind, Op, QueuePair, QueuePairConfig,
    SharedReceiveConfig, SharedReceiveQueue, WorkBuffer, WorkCompletion, WorkOptions,
};
pub use status::Status;
pub use types::{Access, DisconnectReason, PrivateData, ReadLimits};
