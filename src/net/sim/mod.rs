//! A network in memory, in virtual time, with random numbers from a seed.
//!
//! A program sees this much of TCP: streams of bytes with buffers that fill up, segments of any size that
//! take their time and are lost with their link, resets, half-closed streams, keepalive. A segment that was
//! lost is sent again, so that loss and reordering show only as delay. There is no congestion control and no
//! TIME_WAIT.
//!
//! The modules, from the bottom up:
//!
//! * [`link`]: one direction of a link between two hosts, and random numbers from the seed;
//! * [`socket`]: one end of a connection, and the segments that it exchanges with the other;
//! * [`trace`]: the events that have happened, and their hash;
//! * [`world`]: the state of a network, its events, the task that carries them out, and the faults that a program causes;
//! * [`tcp`]: segments on their way, segments that arrive, and the work that is due;
//! * [`host`], [`stream`], [`listener`]: the handles of the soft provider, and the resources of a host that run out.
//!
//! All state is under one lock, [`world::World::with`]. It is not held across an await, and wakers are cloned
//! under it but woken and dropped without it. Whatever is drawn at random is drawn under it, in the order of
//! the events.

mod host;
mod link;
mod listener;
mod socket;
mod stream;
mod tcp;
#[cfg(test)]
mod tests;
mod trace;
mod world;

pub(crate) use host::{Host, Monitor};
pub(crate) use link::Settings;
pub(crate) use listener::{BoundListener, Listener};
pub(crate) use stream::{BoundSocket, Stream};
pub(crate) use world::World;
