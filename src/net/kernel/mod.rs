//! The network of this machine (Linux).
//!
//! The modules, from the bottom up:
//!
//! * [`interfaces`]: the interfaces of the machine, and their addresses;
//! * [`readiness`]: descriptors that the runtime watches;
//! * [`monitor`]: notifications that interfaces or addresses may have changed;
//! * [`options`]: the options of a socket, before and after it connects;
//! * [`bind`], [`listen`], [`connect`]: `IND2Connector::Bind`, `IND2Listener::{Bind, Listen}`, and the TCP
//!   part of `IND2Connector::Connect`.
//!
//! Everything acts in the network namespace of the *calling thread*, as every socket does
//! (network_namespaces(7)).

#[cfg(feature = "soft")]
pub(crate) mod bind;
#[cfg(feature = "soft")]
pub(crate) mod connect;
pub(crate) mod interfaces;
#[cfg(feature = "soft")]
pub(crate) mod listen;
pub(crate) mod monitor;
#[cfg(feature = "soft")]
pub(crate) mod options;
pub(crate) mod readiness;

#[cfg(test)]
pub(super) mod testing;
