//! The verbs provider: behaviour that differs from the soft provider, or that needs more than a connection to test.
#![cfg(feature = "verbs")]

mod catalogue;
mod data;
mod dropped;
mod failures;
mod leaks;
mod memory;
mod removal;
