//! A simulated network: tests of failure without hardware, in virtual time, from a seed.
//!
//! A [`Network`] is in memory. Each [`Host`] of it has a [`Provider`](crate::Provider): the soft provider, the same code
//! that runs over TCP, with the sockets of the network in place of the kernel's. From its [`Adapter`](crate::Adapter) on,
//! everything is the ordinary API.
//!
//! * **Virtual time.** [`check`] runs each test in a runtime with tokio's paused clock, which moves when every task waits. An
//!   hour of silence takes no time.
//! * **From a seed.** Latencies, the sizes of segments, ports and keys are drawn from the seed of the network. The same seed
//!   repeats the same run, and [`Network::trace_hash`] shows whether it did. [`Network::random`] draws for the test
//!   itself. [`Network::capture`] records the wire for Wireshark.
//! * **Faults**, when they are called, [at a set time](Network::at), or [drawn from the seed](Network::faults). Links are [cut](Network::partition), [stall](Network::stall) and [forget](Link::idle_limit) idle connections;
//!   connections are [reset](Network::reset); hosts [crash](Host::crash), [freeze](Host::freeze), [restart](Host::restart)
//!   and [lose their interface](Host::remove_interface); their [ports](Host::limit_ports), [sockets](Host::limit_sockets) and
//!   [memory](Host::limit_memory) run out.
//! * **Other peers.** [`Host::tcp_connect`] and [`Host::tcp_listener`] are plain streams of bytes, for a peer that violates the
//!   protocol.
//!
//! ```
//! use std::time::Duration;
//! use tokio_rdma::sim;
//! use tokio_rdma::{AcceptParams, ConnectParams, DisconnectReason, QueuePairConfig};
//!
//! // The same test for each seed. A failure prints the seed, and how to repeat it.
//! sim::check(0..10, |network| async move {
//!     let (server, client) = (network.host("10.0.0.1"), network.host("10.0.0.2"));
//!     let (near, far) = (Duration::from_millis(1), Duration::from_millis(40));
//!     network.link(&server, &client).latency(near..=far).bandwidth(10_000_000);
//!
//!     let adapter = server.adapter()?;
//!     let listener = adapter.listener();
//!     listener.bind((server.address(), 7471).into())?;
//!     listener.listen(0)?;
//!     let serving = tokio::spawn(async move {
//!         let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
//!         let connection = listener.request().await?.accept(&queue_pair, AcceptParams::default()).await?;
//!         std::io::Result::Ok(connection.disconnected().await)
//!     });
//!
//!     let adapter = client.adapter()?;
//!     let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
//!     let (address, params) = ((server.address(), 7471).into(), ConnectParams::default());
//!     let connection = adapter.connector().connect_and_complete(&queue_pair, address, params).await?;
//!
//!     // A minute later the cable is pulled. Both ends give the connection up after the path timeout.
//!     tokio::time::sleep(Duration::from_secs(60)).await;
//!     network.partition(&server, &client, Duration::from_secs(60));
//!     assert!(matches!(connection.disconnected().await, DisconnectReason::Lost { .. }));
//!     assert!(matches!(serving.await??, DisconnectReason::Lost { .. }));
//!     std::io::Result::Ok(())
//! });
//! ```
//!
//! The feature `sim` is for tests: it enables tokio's `test-util`, with which reading the clock takes longer.
//!
//! ```toml
//! [dev-dependencies]
//! tokio-rdma = { version = "0.1", features = ["sim"] }
//! ```
//!
//! # Limits
//!
//! * Tokio's clock moves by whole milliseconds. A program therefore sees what arrives at the next whole millisecond; the
//!   network itself, its segments and their acknowledgements, keeps time exactly.
//! * The tasks of a program are not the network's: [`Host::crash`] and [`Host::freeze`] stop what a host sees and sends, and the
//!   tasks of the provider, but the tasks of the test run on, and so do their timers, among them the timeout of a connect. The
//!   test stops those that it has started.
//! * A program that draws other random numbers, iterates over a `HashMap`, uses `tokio::select!` without `biased`, other
//!   threads, or another clock than tokio's, is not repeated by its seed. A task that spins keeps virtual time from moving; so
//!   [`StreamConfig::spin`](crate::StreamConfig::spin) and [`SoftConfig::spin`](crate::soft::SoftConfig::spin) are ignored.
//! * The network has no congestion control, no TIME_WAIT of ports, and no packet loss other than by faults.

mod check;
mod faults;
mod network;
mod tcp;

pub use check::{CheckConfig, Outcome, check, check_with};
pub use faults::{Fault, Faults};
pub use network::{Host, Link, Network};
pub use tcp::{TcpListener, TcpStream};
