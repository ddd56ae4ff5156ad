//! Peers in separate processes, and hosts in separate network namespaces.

mod addresses;
mod failover;
mod names;
mod network;
mod path;
mod peers;
mod proxy;
mod removal;
mod rping;
mod srq_server;
mod stream_options;
mod valkey;
