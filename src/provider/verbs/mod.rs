//! The verbs provider: librdmacm and libibverbs, for InfiniBand, RoCE and iWARP devices, `rdma_rxe` and `siw`.
//!
//! | module | what it does |
//! |---|---|
//! | [`config`] | settings |
//! | [`catalogue`] | which devices there are, and which addresses they own |
//! | [`info`] | what an adapter of a device is and can do |
//! | [`adapter`] | an opened device: context, protection domain, removal |
//! | [`reactor`] | the tasks that wait for events: connection manager, completions, device |
//! | [`identifier`] | rdma_cm ids, and to whom their events go |
//! | [`cm`] | the state machine of a connector; [`connect`] and [`accept`] are its two sides, [`listen`] the listener |
//! | [`queue_pair`] | the queues of requests, and whom they belong to; [`post`] adds [`requests`], [`finish`] takes them |
//! | [`completions`] | completion queues, which queue pairs share |
//! | [`shared`] | receive queues of several queue pairs |
//! | [`region`], [`window`] | registered memory |
//!
//! Queue pairs are our own: librdmacm never sees them (`id->qp` stays NULL), or it would move them itself and break
//! "a failed connect leaves the queue pair as it was".
#![allow(unsafe_code)] // One of the three places that may; every block says why it is sound.

pub(crate) mod accept;
pub(crate) mod adapter;
pub(crate) mod catalogue;
pub(crate) mod cm;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod connect;
mod finish;
pub(crate) mod identifier;
mod info;
pub(crate) mod listen;
mod post;
pub(crate) mod queue_pair;
pub(crate) mod reactor;
pub(crate) mod region;
mod requests;
pub(crate) mod shared;
pub(crate) mod window;
