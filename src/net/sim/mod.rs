//! A network in memory, in virtual time, with random numbers from a seed.
//!
//! A program sees this much of TCP: streams of bytes with buffers that fill up, segments of any size that
//! take their time and are lost with their link, resets, half-closed streams, keepalive. A segment that was
//! lost is sent again, so that loss and reordering show only as delay. There is no congestion control and no
//! TIME_WAIT.
//!
//! The modules, from the bottom up:
//!
//! * [`rng`]: random numbers from the seed;
//! * [`segment`]: the segments of connections;
//! * [`trace`]: the events that have happened, and their hash;
//! * [`link`]: one direction of a link between two hosts;
//! * [`socket`]: one end of a connection;
//! * [`world`]: the state of a network, its events, and the task that carries them out;
//! * [`transport`], [`arrival`], [`clock`]: segments on their way, segments that arrive, and the work that is due;
//! * [`faults`]: the faults that a program causes; [`limits`]: the resources that run out;
//! * [`host`], [`stream`], [`listener`]: the handles of the soft provider; [`bind`]: the calls that make them.
//!
//! All state is under one lock, [`world::World::with`]. It is not held across an await, and wakers are cloned
//! under it but woken and dropped without it. Whatever is drawn at random is drawn under it, in the order of
//! the events.

mod arrival;
mod bind;
mod clock;
mod faults;
mod host;
mod limits;
mod link;
mod listener;
mod rng;
mod segment;
mod socket;
mod stream;
#[cfg(test)]
mod tests;
mod trace;
mod transport;
mod world;

pub(crate) use host::{Host, Monitor};
pub(crate) use link::Settings;
pub(crate) use listener::{BoundListener, Listener};
pub(crate) use stream::{BoundSocket, Stream};
pub(crate) use world::World;
