// The verbs provider: librdmacm and libibverbs, for InfiniBand, RoCE and iWARP devices, `rdma_rxe` and `siw`.
//
// | module | what it does |
// |---|---|
// | `config` | settings, and the choice of the devices that are used |
// | `devices` | the devices of the machine, and their addresses |
// | `diagnose` | the faults of the machine that keep programs from its devices |
// | `backoff` | the pauses between attempts to connect that this host refuses |
// | `memlock` | how much memory the process may lock |
// | `workers` | threads for the calls of a driver that may take long |
// | `cm_id` | rdma_cm ids, and the routing of their events |
// | `routes` | the way from the device to the queue pairs: the ids of requests, and what follows from completions |
// | `context` | the context of an adapter: the open device, its protection domain, its removal |
// | `ports` | the facts of ports |
// | `announce` | the events of an adapter, for programs that read them |
// | `limits` | the limits and abilities of a device, reported or found by asking |
// | `memory` | registered memory, and memory windows |
// | `work_queue` | the requests of one queue of a queue pair |
// | `completion_queue` | completion queues of the device, in groups |
// | `patience` | how many looks at completion queues come before a sleep |
// | `reactor` | the tasks that wait for events: connection manager, completions, device; when completion queues are polled |
// | `receive_queue` | receive queues of several queue pairs |
// | `news` | what a lane has to know about its queue pairs |
// | `queue_pair` | the queues of requests, and the connection that they belong to: `post` adds requests, `complete` takes them; `keepalive` notices a silent peer; `device` is a queue pair of the device and the way of its completions, `generations` says which one is meant, and `teardown` ends one |
// | `lane` | a lane: posts and polls by itself; `settle` handles the completions that are not plain, `members` the queue pairs, `request` the requests with options |
// | `connector` | the state machine of a connector; `connect` and `accept` are its two sides, `listener` the listener |
// | `inspect` | the reports of these for a snapshot |
// | `adapter` | an adapter of the program: opens a device, and starts its tasks |
//
// A file knows only files above its own in this list.
//
// Queue pairs are our own: librdmacm never sees them (`id->qp` stays NULL), or it would move them itself and break
// "a failed connect leaves the queue pair as it was".
#![allow(unsafe_code)] // One of the three places that may; every block says why it is sound.

pub(crate) mod accept;
pub(crate) mod adapter;
mod announce;
mod backoff;
pub(crate) mod cm_id;
pub(crate) mod completion_queue;
pub(crate) mod config;
pub(crate) mod connect;
pub(crate) mod connector;
pub(crate) mod context;
pub(crate) mod devices;
pub(crate) mod diagnose;
#[cfg(feature = "inspect")]
mod inspect;
pub(crate) mod lane;
mod limits;
pub(crate) mod listener;
pub(crate) mod memlock;
pub(crate) mod memory;
mod news;
mod patience;
mod ports;
pub(crate) mod queue_pair;
pub(crate) mod reactor;
pub(crate) mod receive_queue;
mod routes;
mod work_queue;
mod workers;

pub use config::VerbsConfig;
pub use diagnose::Fault;

pub use crate::cm::check_up::{CheckUp, Choice, check_up};
