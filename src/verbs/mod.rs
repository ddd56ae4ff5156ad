// The verbs provider: librdmacm and libibverbs, for InfiniBand, RoCE and iWARP devices, `rdma_rxe` and `siw`.
//
// | module | what it does |
// |---|---|
// | `config` | settings, and the choice of the devices that are used |
// | `devices` | the devices of the machine, and their addresses |
// | `diagnose` | the faults of the machine that keep programs from its devices, and how much memory the process may lock |
// | `workers` | threads for the calls of a driver that may take long |
// | `routes` | the way from the device to the queue pairs: the ids of requests, and what follows from completions; rdma_cm ids, and the routing of their events |
// | `context` | the context of an adapter: the open device, its protection domain, its removal |
// | `announce` | the facts of ports, and the events of an adapter, for programs that read them |
// | `limits` | the limits and abilities of a device, reported or found by asking |
// | `memory` | registered memory, and memory windows |
// | `work_queue` | the requests of one queue of a queue pair |
// | `completion_queue` | completion queues of the device, in groups |
// | `reactor` | the tasks that wait for events: connection manager, completions, device; when completion queues are polled, and how many looks at them come before a sleep |
// | `receive_queue` | receive queues of several queue pairs |
// | `news` | what a lane has to know about its queue pairs |
// | `queue_pair` | the queues of requests, and the connection that they belong to: `post` adds requests, `complete` takes them; `keepalive` notices a silent peer; `device` is a queue pair of the device, the way of its completions, and which one is meant, and `teardown` ends one |
// | `lane` | a lane: posts and polls by itself; `post` has the requests, `settle` the completions that are not plain, `members` the queue pairs |
// | `connector` | the state machine of a connector; `connect` is its active side, `listener` the passive side and the listener |
// | `adapter` | an adapter of the program: opens a device, and starts its tasks |
//
// A file knows only files above its own in this list.
//
// Queue pairs are our own: librdmacm never sees them (`id->qp` stays NULL), or it would move them itself and break
// "a failed connect leaves the queue pair as it was".
#![allow(unsafe_code)] // One of the three places that may; every block says why it is sound.

pub(crate) mod adapter;
mod announce;
pub(crate) mod completion_queue;
pub(crate) mod config;
pub(crate) mod connect;
pub(crate) mod connector;
pub(crate) mod context;
pub(crate) mod devices;
pub(crate) mod diagnose;
pub(crate) mod lane;
mod limits;
pub(crate) mod listener;
pub(crate) mod memory;
mod news;
pub(crate) mod queue_pair;
pub(crate) mod reactor;
pub(crate) mod receive_queue;
mod routes;
mod work_queue;
mod workers;

pub use config::VerbsConfig;
pub use diagnose::Fault;

pub use crate::cm::check_up::{CheckUp, Choice, check_up};
