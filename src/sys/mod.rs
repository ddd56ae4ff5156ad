//! libibverbs and librdmacm behind handles: every call into C that this crate makes.
//!
//! A handle owns one object of the library, keeps its parents alive by `Arc`, and destroys the object when it is
//! dropped, so no order of drops can destroy a parent first. Nothing panics in a drop: an object that the library
//! refuses to destroy is leaked with a warning. Every handle may be used by any thread. The libraries say so of
//! themselves, with two exceptions that are taken care of here: the plain fields of a communication identifier
//! (see [`id::EventChannel`]), and its calls that assume a device (see [`id::RawCmId`]).
//!
//! The descriptors of all three kinds of events do not block, and events are copied and acknowledged before
//! the call that takes them returns. So an object may be destroyed at any moment by any thread, although the
//! libraries' destructors wait for events that were taken and not acknowledged. These calls can wait in the
//! kernel all the same:
//!
//! | call | for | so it is made |
//! |---|---|---|
//! | [`id::RawCmId::resolve_route`] over InfiniBand or RoCE | `ibacm`, if it runs: seconds, one after the other in a process | off the runtime's threads |
//! | [`id::RawCmId::connect`] over iWARP | TCP, which drivers connect in there | off the runtime's threads |
//! | [`id::RawCmId::listen`] and `connect` over iWARP | the port mapper, `iwpmd`, if it runs: 10 s at most | by the caller, without the lock of the channel |
//! | dropping a [`RawCmId`] | its connect or accept, or the last message of it | so while one is under way |
//! | dropping a [`QueuePair`] over iWARP | the id that connects it | so while the id may be there |
//! | dropping a [`QueuePair`] of `rxe` | the windows that were bound on it, 50 s | after dropping those |
//! | [`QueuePair::modify`] over RoCE | the peer's address, a second if it was forgotten | off the runtime's threads |
//! | [`MemoryRegion::register`] | the pages | off the runtime's threads if they are many |
//! | [`MemoryRegion::deregister`] | the pages | off the runtime's threads if they are many |
#![allow(unsafe_code)] // One of the three places that may; every block says why it is sound.

mod call;
pub(crate) mod chain;
pub(crate) mod completion;
pub(crate) mod device;
pub(crate) mod ffi;
pub(crate) mod id;
pub(crate) mod memory;
pub(crate) mod post;
pub(crate) mod queue_pair;
#[cfg(test)]
mod tests;

pub(crate) use chain::{Piece, Polled, ReceiveChain, ReceiveRun, RefusedPart, SendChain, SendPlace, SendRun};
pub(crate) use completion::{
    BATCH, Batch, CompletionChannel, CompletionQueue, Completions, Keys, Told, WcResult,
};
pub(crate) use device::{
    AsyncEvent, Context, DeviceAttributes, DeviceKind, Element, LinkState, PortAttributes, Quirks,
    device_names, forget_removed_devices,
};
pub(crate) use ffi::load;
pub(crate) use id::{BoundDevice, CmEvent, ConnectionParams, EventChannel, RawCmId};
pub(crate) use memory::{
    AccessFlags, MemoryRegion, MemoryWindow, ProtectionDomain, await_placements, memlock_limit, next_key,
};
pub(crate) use post::{
    Binding, Operation, ReceiveRequest, Refused, RemoteMemory, ScatterEntry, SendFlags, SendRequest,
};
pub(crate) use queue_pair::{Capacities, QpAttributes, QpState, QueuePair, SharedReceiveQueue};
