//! The mixed workload: the whole public API over the simulated network, with faults, from a seed.
//!
//! Each seed is a network of its own (`world`), in which several sessions go on at the same time: queue pairs
//! (`verbs`, `shared`), lanes (`lanes`), byte streams (`streams`), with sessions that outlive their connections (`sessions`), and frames in them (`frames`). The seed draws what the users do and when, which
//! futures they drop, the links, and the faults (`faults`). Whatever happens:
//!
//! * each call and each request ends, in time, once, with a status that its documentation lists;
//! * both ends agree about the terms of a connection (`connecting`);
//! * bytes arrive once, in order, at their place and nowhere else (`memory`), and none changes after its key was withdrawn;
//! * what completed before an orderly end has arrived;
//! * nothing panics, and nothing is left when the last handle is dropped (`runner`).

mod connecting;
mod end;
mod faults;
mod frames;
mod lanes;
mod memory;
mod queue;
mod runner;
mod sessions;
mod shared;
mod streams;
#[cfg(test)]
mod tests;
mod verbs;
mod world;

pub use runner::{Report, Run, run, run_all};
