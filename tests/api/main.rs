//! The public API, subject by subject. A module with a line `Runs on:` runs on each device that the line names; the others
//! run on the host, over the soft provider.

mod accept;
mod accept_loops;
mod acceptor;
mod adapter;
mod atomic;
mod budget;
mod build_script;
mod cancel;
mod completion_order;
mod completion_queue;
mod conformance;
mod connect;
mod connect_failures;
mod descriptors;
mod device_options;
mod disconnect;
mod drop_order;
mod exhaustion;
mod flags;
mod flood;
mod idle_memory;
#[cfg(feature = "inspect")]
mod inspect;
#[cfg(feature = "inspect")]
mod inspect_server;
mod lane;
mod leaks;
mod libraries;
mod listener;
mod owned_futures;
mod owned_memory;
mod polling;
mod pool;
mod porting;
mod private_data;
mod queue_pair;
mod races;
mod read_limits;
mod region;
mod request_options;
mod runtime_end;
mod runtimes;
mod scatter_gather;
mod send_sync;
mod settings;
mod shared_receive_queue;
mod slow_peers;
mod stale;
mod status;
mod texts;
mod transactions;
mod window;
