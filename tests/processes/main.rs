//! Peers in processes of their own, and hosts in network namespaces of their own.

mod names;
mod network;
mod path;
mod peers;
mod removal;
mod rping;
