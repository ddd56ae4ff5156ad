//! Protocol machines without I/O: calls, reports, bytes and the time go in, answers and actions come out. No sockets,
//! no clock, no locks, no unsafe.

pub(crate) mod connector;
pub(crate) mod half_open;
#[cfg(feature = "soft")]
pub(crate) mod limits;
pub(crate) mod listener;
#[cfg(feature = "soft")]
pub(crate) mod mpa;
pub(crate) mod qp;
#[cfg(feature = "soft")]
pub(crate) mod rdmap;
pub(crate) mod rsocket;
pub(crate) mod session;
