//! Protocol machines without I/O: calls, reports, bytes and the time go in, answers and actions come out. No sockets,
//! no clock, no locks, no unsafe.

#[cfg_attr(not(feature = "soft"), allow(dead_code, reason = "no provider is compiled in that drives it"))]
pub(crate) mod connector;
#[cfg_attr(not(feature = "soft"), allow(dead_code, reason = "no provider is compiled in that drives it"))]
pub(crate) mod limits;
#[cfg_attr(not(feature = "soft"), allow(dead_code, reason = "no provider is compiled in that drives it"))]
pub(crate) mod listener;
#[cfg(feature = "soft")]
pub(crate) mod mpa;
#[cfg(all(test, feature = "soft"))]
mod pair;
#[cfg_attr(not(feature = "soft"), allow(dead_code, reason = "no provider is compiled in that drives it"))]
pub(crate) mod qp;
#[cfg(feature = "soft")]
pub(crate) mod rdmap;
