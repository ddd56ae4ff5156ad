//! What a machine without a device offers. A program of its own, because it is built for the default features as well, and `tests/api`
//! takes its time.

mod no_device;
mod providers;
