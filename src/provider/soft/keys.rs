//! Registered memory: who may touch which bytes by which key.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use crate::error::RegisterError;
use crate::memory::{Shared, Slice};
use crate::types::Access;
use crate::wire::rdmap::Terminate;

/// Memory under a key. Remote offsets (TO) count from its first byte.
pub(crate) struct Registration {
    memory: Shared,
    key: u32,
    access: Access,
    /// False once deregistered. Whoever moves bytes on a peer's behalf holds this for reading meanwhile, so that
    /// `revoke` returns only when the last such byte has been moved.
    valid: RwLock<bool>,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the key: who has it can reach the memory.
        f.debug_struct("Registration").field("access", &self.access).finish_non_exhaustive()
    }
}

/// Proof that a registration is valid, for as long as it is held. Only ever held across a non-blocking call.
pub(crate) struct Valid<'a>(#[allow(dead_code, reason = "held for its drop")] RwLockReadGuard<'a, bool>);

impl Registration {
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// The remote address of the first byte.
    #[expect(clippy::unused_self, reason = "other providers have their memory elsewhere")]
    pub(crate) fn address(&self) -> u64 {
        0
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn memory(&self) -> &Shared {
        &self.memory
    }

    /// `None` once it has been deregistered.
    pub(crate) fn hold(&self) -> Option<Valid<'_>> {
        let valid = self.valid.read().unwrap_or_else(PoisonError::into_inner);
        valid.then_some(Valid(valid))
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.hold().is_some()
    }

    fn revoke(&self) {
        *self.valid.write().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// What a peer's key, offset and length stand for.
pub(crate) struct Grant {
    pub(crate) registration: Arc<Registration>,
    pub(crate) slice: Slice,
}

/// What a peer wants to do with a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    Write,
    Read,
}

/// The keys of one protection domain, which is one opened adapter: a key of another domain is not found here.
#[derive(Default)]
pub(crate) struct KeyTable {
    keys: RwLock<HashMap<u32, Arc<Registration>>>,
}

impl KeyTable {
    /// Registers memory under a fresh random key.
    ///
    /// # Errors
    /// `InsufficientResources` when the system has no randomness, or no free key is found.
    pub(crate) fn register(
        &self,
        memory: Shared,
        access: Access,
    ) -> Result<Arc<Registration>, RegisterError> {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        // With a thousand million keys in use half of the tries still succeed.
        for _ in 0..64 {
            let key = getrandom::u32().map_err(|_| RegisterError::InsufficientResources)?;
            // Zero names nothing on the wire: the empty Write of the handshake carries it.
            if key != 0 && !keys.contains_key(&key) {
                let valid = RwLock::new(true);
                let registration = Arc::new(Registration { memory, key, access, valid });
                keys.insert(key, registration.clone());
                return Ok(registration);
            }
        }
        Err(RegisterError::InsufficientResources)
    }

    /// Takes the key back. When this returns, no byte of the memory is being moved on a peer's behalf, and none
    /// will be.
    pub(crate) fn deregister(&self, registration: &Registration) {
        let removed = {
            let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
            // The second time the key may be somebody else's.
            let owner = keys.get(&registration.key).map(Arc::as_ptr);
            if owner == Some(std::ptr::from_ref(registration)) {
                keys.remove(&registration.key)
            } else {
                None
            }
        };
        registration.revoke();
        drop(removed);
    }

    /// Checks key, rights and range before a byte is placed or read (RFC 5041 section 5.1, RFC 5040 section 7).
    ///
    /// # Errors
    /// The Terminate that the peer has earned.
    pub(crate) fn resolve(
        &self,
        key: u32,
        to: u64,
        length: usize,
        intent: Intent,
    ) -> Result<Grant, Terminate> {
        let registration = {
            let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
            keys.get(&key).cloned()
        };
        let (unknown, bounds, right) = match intent {
            Intent::Write => (Terminate::INVALID_STAG_TAGGED, Terminate::BOUNDS_TAGGED, Access::REMOTE_WRITE),
            Intent::Read => (Terminate::INVALID_STAG_REMOTE, Terminate::BOUNDS_REMOTE, Access::REMOTE_READ),
        };
        let registration = registration.ok_or(unknown.clone())?;
        if !registration.access.contains(right) {
            return Err(Terminate::ACCESS_REMOTE);
        }
        let slice =
            usize::try_from(to).ok().and_then(|to| registration.memory.slice(to, length)).ok_or(bounds)?;
        Ok(Grant { registration, slice })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Owned;

    // MR-01: deregistering twice is fine, even when the key has come round in between.
    #[test]
    fn a_key_that_has_a_new_owner_is_not_taken_from_it() {
        let table = KeyTable::default();
        let register = || {
            let memory = Owned::zeroed(8).expect("memory").share();
            table.register(memory, Access::REMOTE_READ).expect("registered")
        };
        let reaches = |key| table.resolve(key, 0, 1, Intent::Read).is_ok();
        let first = register();
        table.deregister(&first);
        let mut second = register();
        table.deregister(&second);
        Arc::get_mut(&mut second).expect("the only handle").key = first.key;
        *second.valid.write().expect("not poisoned") = true;
        table.keys.write().expect("not poisoned").insert(first.key, second.clone());
        table.deregister(&first);
        assert!(reaches(second.key) && second.is_valid());
        table.deregister(&second);
        assert!(!reaches(second.key) && !second.is_valid());
    }
}
