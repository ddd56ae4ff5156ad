//! The verbs provider: behaviour that differs from the soft provider, or that needs more than a connection to test.
#![cfg(feature = "verbs")]

mod adapter_events;
mod addresses;
mod cards;
mod catalogue;
mod check_up;
mod choice;
mod completions;
mod data;
mod dropped;
mod early_answers;
mod echoes;
mod events;
mod exhaustion;
mod failures;
mod faults;
mod held;
mod idle;
mod iwarp;
mod keepalive;
mod lanes;
mod leaks;
mod limits;
mod links;
mod memory;
mod negotiation;
mod pages;
mod queues;
mod registrations;
mod removal;
mod slow_driver;
mod small;
mod streams;
mod unanswered;
mod unreachable;
mod windows;
