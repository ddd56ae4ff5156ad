//! Async RDMA for tokio: connection management, queue pairs and byte streams.
//!
//! RDMA lets two hosts exchange messages and access each other's registered memory without copies through the kernel. This
//! crate provides its connections, requests and completions as futures: on RDMA devices, and on any Linux machine over plain
//! TCP.
//!
//! A byte stream is used like tokio's `TcpStream`:
//!
//! ```
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! use tokio_rdma::{RdmaListener, RdmaStream};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let listener = RdmaListener::bind("127.0.0.1:0").await?;
//! let address = listener.local_addr()?;
//! let server = async {
//!     let (mut stream, _peer) = listener.accept().await?;
//!     stream.write_all(b"hello").await?;
//!     stream.shutdown().await
//! };
//! let client = async {
//!     let mut text = String::new();
//!     RdmaStream::connect(address).await?.read_to_string(&mut text).await?;
//!     assert_eq!(text, "hello");
//!     Ok(())
//! };
//! tokio::try_join!(server, client)?;
//! # Ok(())
//! # }
//! ```
//!
//! Below it are queue pairs: two ends of one connection. The active side sends private data with its request, and completes the connection after it has
//! seen the reply:
//!
//! ```
//! use tokio_rdma::{AcceptParams, Adapter, ConnectParams, QueuePairConfig};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let adapter = Adapter::open("127.0.0.1")?;
//! let listener = adapter.listener();
//! listener.bind(([127, 0, 0, 1], 0).into())?;
//! listener.listen(0)?;
//! let address = listener.local_addr()?;
//!
//! let server = async {
//!     let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
//!     // Post the receive before accepting: the peer may send as soon as
//!     // the connection is established.
//!     let receive = queue_pair.receive(adapter.buffer(64)?)?;
//!     let request = listener.request().await?;
//!     assert_eq!(&request.private_data()[..], b"version=1");
//!     let connection = request.accept(&queue_pair, AcceptParams::default()).await?;
//!     let (result, buffer) = receive.await;
//!     assert_eq!(&buffer[..result?.bytes], b"hello");
//!     connection.disconnected().await;
//!     std::io::Result::Ok(())
//! };
//! let client = async {
//!     let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
//!     let params = ConnectParams::default().private_data(&b"version=1"[..]);
//!     let reply = adapter.connector().connect(&queue_pair, address, params).await?;
//!     let connection = reply.complete().await?;
//!     let (result, _buffer) = queue_pair.send(adapter.buffer_from(b"hello")?)?.await;
//!     result?;
//!     Ok(connection.disconnect().await?)
//! };
//! tokio::try_join!(server, client)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Which API do I want?
//!
//! | I want | use |
//! |---|---|
//! | a TCP-like stream, for example for tonic, hyper or TLS | [`RdmaStream`], [`RdmaListener`], [`RdmaConnector`] |
//! | messages that keep their boundaries | an [`RdmaStream`] in `LengthDelimitedCodec` of tokio-util: [an example](RdmaStream#messages) |
//! | Send, RDMA Write, RDMA Read and atomics as futures | [`QueuePair`] on a [`Connection`] |
//! | completions in batches, polled | [`CompletionQueue`] |
//! | the highest rate of small messages, with one owner, at the cost of C | [`Lane`](qp::Lane) |
//!
//! # Concepts
//!
//! * **Two providers.** `soft` is an iWARP stack in user space. It needs only Linux and TCP, and it interoperates with the
//!   kernel's `siw` driver. `verbs` uses librdmacm and libibverbs: InfiniBand, RoCE, iWARP adapters, `rdma_rxe` and `siw`. The
//!   API is the same for both. [`Adapter::open`] opens the device that has a local address, or the software adapter if no
//!   device has it. [`Adapter::info`] reports the limits and the abilities of an adapter.
//! * **Connecting has three steps**, as in NetworkDirect v2. [`Connector::connect`] returns a [`Reply`]; [`Listener::request`]
//!   returns a [`Request`]. Both carry the peer's private data and read limits. [`Request::accept`] and [`Reply::complete`]
//!   consume them and return the [`Connection`]. Dropping a [`Request`] or a [`Reply`] rejects the peer.
//! * **Posting is synchronous, completion is a future.** A posting method queues the request before it returns. The
//!   returned [`Op`] owns the buffer and gives it back with the result. Dropping an [`Op`] discards the result; the
//!   request still runs, and its memory stays valid until the device has finished with it.
//! * **Two kinds of memory.** A [`Buffer`] is private to this side and dereferences to `[u8]`. A [`Region`] can be
//!   accessed by the peer through a [`RemoteRegion`] (address, key, length), so its bytes are copied in and out.
//!   [`Adapter::register_from`] makes a region of memory that the program has.
//! * **Cancellation.** Every async method has a section "Cancel safety" that states what happens when its future is
//!   dropped.
//! * **Errors.** Each family of calls has its own error type in [`error`]. The error of a call converts into
//!   [`std::io::Error`] and reports a NetworkDirect [`Status`].
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `soft` (default) | the software provider |
//! | `verbs` | the device provider; libibverbs and librdmacm are loaded when they are first needed |
//! | `rdma-sys` | `verbs` with both libraries linked, by the bindings of `rdma-sys`; a build needs their headers, pkg-config and libclang 15 or older |
//! | `tonic`, `hyper`, `axum`, `tower` | integrations for these crates, on streams |
//! | `rustls` | TLS for streams, with client certificates if wanted |
//! | `metrics` | counters, gauges and histograms through the `metrics` facade |
//! | `inspect` | the state of every object as data, with the reason why it waits, and a socket for `cargo rdma-top` |
//! | `sim` | for tests: a simulated network with faults, in virtual time, from a seed |
//!
//! At least one of `soft` and `verbs` is needed.
//!
//! # Platforms and security
//!
//! Linux only, with Rust 1.88 or later. A later version is required only by a minor release of this crate.
//!
//! RDMA transports neither authenticate nor encrypt: use the feature `rustls` for streams, or a trusted network. The `soft`
//! provider chooses remote keys at random and checks key, range, rights and protection domain on every access.
//!
//! # The guide
//!
//! `docs/guide` in the repository is a book about tasks: streams, RPC, negotiation, data, memory, errors, time limits, the end of a
//! connection, security, tuning, devices, tests without hardware, and porting from NetworkDirect, NDK, uDAPL, librdmacm,
//! async-rdma and tokio's TCP.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

#[cfg(not(any(feature = "soft", feature = "verbs")))]
compile_error!("tokio-rdma needs a provider: enable the feature `soft` or the feature `verbs`");

pub mod error;
pub(crate) mod events;
#[cfg(feature = "inspect")]
pub mod inspect;
#[cfg(not(feature = "inspect"))]
pub(crate) mod inspect;
pub mod metrics;
pub mod status;
pub(crate) mod sync;
pub mod types;

#[cfg(feature = "soft")]
pub(crate) mod wire;

pub(crate) mod proto;

pub(crate) mod inflight;
pub(crate) mod memory;
#[cfg(feature = "verbs")]
mod sys;

pub(crate) mod net;

pub(crate) mod provider;

/// Settings of the soft provider.
#[cfg(feature = "soft")]
pub mod soft;

/// Settings of the verbs provider, and the check-up of a machine.
///
/// # Memory and fork(2)
///
/// Since Linux 5.12, a process with registered memory can start children: the kernel copies the pages of registered memory for
/// the child, and the device and this process keep theirs. This crate does not call `ibv_fork_init`, which has no effect on
/// such kernels. Before 5.12, set `RDMAV_FORK_SAFE=1` in the environment (ibv_fork_init(3)).
///
/// Buffers, and regions of [`Adapter::register`](crate::Adapter::register), of 128 KiB and more, and each
/// [`Mapping`](crate::mr::Mapping) without reserved huge pages, need neither: children do not share their pages, and read zeros
/// there. A child must not use the adapters, connections and regions of its parent.
#[cfg(feature = "verbs")]
pub mod verbs;

pub(crate) mod backend;

pub mod mr;

pub mod qp;

pub mod cm;

pub mod io;

#[cfg(feature = "sim")]
pub mod sim;

pub use cm::{
    AcceptParams, Acceptor, AcceptorConfig, Adapter, AdapterEvent, AdapterEvents, AdapterInfo, ConnectParams,
    Connection, Connector, Listener, Provider, ProviderKind, Reply, Request, Requests,
};
pub use io::{RdmaConnector, RdmaListener, RdmaStream, SessionConfig, StreamConfig};
pub use mr::{Buffer, BufferPart, MemoryWindow, Pool, PoolConfig, Region, RegionSlice, RemoteRegion};
pub use qp::{
    Completion, CompletionQueue, CompletionQueueConfig, NotifyKind, Op, QueuePair, QueuePairConfig,
    SharedReceiveConfig, SharedReceiveQueue, WorkBuffer, WorkCompletion, WorkOptions,
};
pub use status::Status;
pub use types::{Access, DisconnectReason, PrivateData, ReadLimits};
