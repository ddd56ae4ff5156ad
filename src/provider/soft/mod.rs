//! The soft provider: a user-space iWARP stack (MPA, DDP, RDMAP) over tokio's TCP, wire-compatible with Linux `siw`.
//!
//! | module | what it does |
//! |---|---|
//! | [`config`] | settings |
//! | [`adapter`] | an opened interface: protection domain, removal |
//! | [`cm`] | the state machine of a connector with its futures; [`connect`] and [`accept`] are its two sides |
//! | [`transport`] | the socket between two phases of the handshake |
//! | [`queue_pair`], [`queue`] | the queues and whom they belong to |
//! | [`link`], [`driver`] | an established connection: what is shared, and its task |
//! | [`send`], [`fill`], [`batch`] | the direction to the peer |
//! | [`receive`], [`staging`], [`ahead`], [`control`] | the direction from the peer |
//! | [`shared`] | receive queues of several queue pairs |
//! | [`registration`], [`keys`], [`window`] | registered memory and the keys of peers |

pub(crate) mod accept;
pub(crate) mod adapter;
pub(crate) mod ahead;
pub(crate) mod batch;
pub(crate) mod cm;
pub(crate) mod config;
pub(crate) mod connect;
pub(crate) mod control;
pub(crate) mod driver;
pub(crate) mod fill;
pub(crate) mod keys;
pub(crate) mod link;
pub(crate) mod queue;
pub(crate) mod queue_pair;
pub(crate) mod receive;
pub(crate) mod registration;
pub(crate) mod send;
pub(crate) mod shared;
pub(crate) mod staging;
pub(crate) mod transport;
pub(crate) mod window;
