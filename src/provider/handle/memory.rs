//! Memory that a peer can reach by a key.

use std::sync::Arc;

use crate::types::Access;

provider_handle! {
    /// Registered memory. Its key is good until it is taken back; the memory stays.
    enum Registration {
        Soft(registration::Registration),
        Verbs(region::Registration),
    }

    /// The key, also of one that was taken back.
    fn key(&self) -> u32;

    /// The remote address of the first byte.
    fn address(&self) -> u64;

    /// The rights it was registered with.
    fn access(&self) -> Access;

    /// Returns whether the key is good.
    fn is_valid(&self) -> bool;
}

provider_handle! {
    /// A memory window: a part of a registration under a key of its own.
    enum Window {
        Soft(window::Window),
        Verbs(window::Window),
    }

    /// Its binding by the last call that binds or invalidates it: key, remote address, length.
    fn bound(&self) -> Option<(u32, u64, usize)>;
}
