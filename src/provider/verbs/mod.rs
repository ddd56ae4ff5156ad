//! The verbs provider: librdmacm and libibverbs, for InfiniBand, RoCE and iWARP devices, `rdma_rxe` and `siw`.
//!
//! | module | what it does |
//! |---|---|
//! | [`config`] | settings |
//! | [`devices`] | the devices of the machine, and their addresses |
//! | [`device_filter`] | the devices that are used |
//! | [`machine`] | the [faults](fault) of the machine that keep programs from its devices |
//! | [`info`] | the limits and abilities of a device |
//! | [`adapter`] | an opened device: context, protection domain, removal |
//! | [`workers`] | threads for the calls of a driver that may take long |
//! | [`reactor`] | the tasks that wait for events: connection manager, completions, device |
//! | [`cm_id`] | rdma_cm ids, and the routing of their events |
//! | [`connector`] | the state machine of a connector; [`connect`] and [`accept`] are its two sides, [`listen`] the listener |
//! | [`for_now`] | the reject of a passive side that cannot take a connection for now |
//! | [`queue_pair`] | the queues of requests, and whom they belong to; [`post`] adds [`work_queue`], [`finish`] takes them |
//! | [`drain`] | the end of a queue pair of the device |
//! | [`completions`] | completion queues, which queue pairs share |
//! | [`limits`] | the limits of queues that a device is asked for |
//! | [`shared`] | receive queues of several queue pairs |
//! | [`region`], [`window`] | registered memory |
//!
//! Queue pairs are our own: librdmacm never sees them (`id->qp` stays NULL), or it would move them itself and break
//! "a failed connect leaves the queue pair as it was".
#![allow(unsafe_code)] // One of the three places that may; every block says why it is sound.

pub(crate) mod accept;
pub(crate) mod adapter;
pub(crate) mod cm_id;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod connect;
pub(crate) mod connector;
mod device_filter;
pub(crate) mod devices;
pub(crate) mod fault;
mod for_now;
mod info;
mod limits;
pub(crate) mod listen;
pub(crate) mod machine;
pub(crate) mod queue_pair;
pub(crate) mod reactor;
pub(crate) mod region;
pub(crate) mod shared;
pub(crate) mod window;
mod work_queue;
mod workers;
