//! The verbs provider where its devices differ from the soft provider, or take more than a connection to test.
#![cfg(feature = "verbs")]

mod catalogue;
mod data;
mod dropped;
mod failures;
mod leaks;
mod memory;
mod removal;
