//! Sans-io machines: inputs and the time go in, actions come out. No sockets, no clock, no locks here.

// Nothing drives the machines yet: the providers that do are one layer up and come later.
#![allow(dead_code)]

pub(crate) mod connector;
pub(crate) mod limits;
pub(crate) mod listener;
