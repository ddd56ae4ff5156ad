//! The public API, subject by subject. A module with a line `Runs on:` runs on each device that the line names; the others
//! run on the host, over the soft provider.

mod accept;
mod adapter;
mod atomic;
mod build_script;
mod cancel;
mod catalogue;
mod completion_order;
mod completion_queue;
mod connect;
mod connect_failures;
mod device_options;
mod disconnect;
mod drop_order;
mod leaks;
mod listener;
mod no_device;
mod pool;
mod private_data;
mod queue_pair;
mod races;
mod read_limits;
mod region;
mod request_options;
mod runtime_end;
mod scatter_gather;
mod send_sync;
mod shared_receive_queue;
mod slow_peers;
mod status;
mod window;
