//! Protection domains, regions and windows.

use std::ffi::{c_int, c_uint, c_void};

use super::types::*;
use super::world::{self, World, live};
use super::{free, number, number_of, pointer, zeroed};

/// A protection domain, with the number of its objects.
pub(super) struct Domain {
    pub(super) users: usize,
}

/// Memory that the device may reach.
pub(super) struct Region {
    pub(super) domain: usize,
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) access: u32,
    /// The windows that are bound to it.
    pub(super) windows: usize,
    key: u32,
}

/// A window, of type 2B: a binding is for the peer of one queue pair.
pub(super) struct Window {
    pub(super) domain: usize,
    /// The key of the present binding, or of the last one.
    pub(super) key: u32,
    pub(super) bound: Option<Binding>,
}

/// The part of a region that a window is bound to.
#[derive(Clone, Copy)]
pub(super) struct Binding {
    pub(super) region: usize,
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) access: u32,
    /// The queue pair whose peer may use it.
    pub(super) queue_pair: usize,
}

/// The owner of a key.
#[derive(Clone, Copy)]
pub(super) enum Key {
    Region(usize),
    Window(usize),
}

/// The part of a key that the device chooses; the rest of a window's is the user's.
pub(super) const OF_THE_DEVICE: u32 = !0xff;

impl World {
    fn key(&mut self) -> u32 {
        (self.number() << 8) | 0x11
    }

    /// Ends the binding of a window.
    pub(super) fn unbind(&mut self, window: usize) {
        let Some(window) = self.windows.get_mut(&window) else { return };
        let Some(binding) = window.bound.take() else { return };
        self.keys.remove(&window.key);
        if let Some(region) = self.regions.get_mut(&binding.region) {
            region.windows -= 1;
        }
    }
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer(world::enter("ibv_alloc_pd").and_then(|mut world| {
        world.add_object(context)?;
        let handle = world.number();
        // SAFETY: the structure is integers and pointers.
        let raw: *mut ibv_pd = unsafe { zeroed() };
        // SAFETY: the structure is new.
        unsafe { raw.write(ibv_pd { context, handle }) };
        world.domains.insert(raw.addr(), Domain { users: 0 });
        Ok(raw)
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int {
    number_of(world::enter("ibv_dealloc_pd").and_then(|mut world| {
        if live(&mut world.domains, domain).users > 0 {
            return Err(libc::EBUSY);
        }
        world.domains.remove(&domain.addr());
        // SAFETY: live until now.
        let context = unsafe { (*domain).context };
        world.remove_object(context);
        // SAFETY: made by `zeroed`, and in no table any more.
        unsafe { free(domain) };
        Ok(())
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    domain: *mut ibv_pd,
    start: *mut c_void,
    length: usize,
    _iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    pointer(world::enter("ibv_reg_mr").and_then(|mut world| {
        live(&mut world.domains, domain);
        let writes = access & (number::ACCESS_REMOTE_WRITE | number::ACCESS_REMOTE_ATOMIC) != 0;
        if writes && access & number::ACCESS_LOCAL_WRITE == 0 || length == 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the domain is live.
        let context = unsafe { (*domain).context };
        world.add_object(context)?;
        live(&mut world.domains, domain).users += 1;
        let (key, handle) = (world.key(), world.number());
        // SAFETY: the structure is integers and pointers.
        let raw: *mut ibv_mr = unsafe { zeroed() };
        let region = ibv_mr { context, pd: domain, addr: start, length, handle, lkey: key, rkey: key };
        // SAFETY: the structure is new.
        unsafe { raw.write(region) };
        world.keys.insert(key, Key::Region(raw.addr()));
        let region = Region {
            domain: domain.addr(),
            start: start.expose_provenance() as u64,
            length: length as u64,
            access,
            windows: 0,
            key,
        };
        world.regions.insert(raw.addr(), region);
        Ok(raw)
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int {
    number_of(world::enter("ibv_dereg_mr").and_then(|mut world| {
        let Region { windows, key, .. } = *live(&mut world.regions, region);
        if windows > 0 {
            return Err(libc::EBUSY);
        }
        world.regions.remove(&region.addr());
        world.keys.remove(&key);
        // SAFETY: live until now.
        let &ibv_mr { context, pd: domain, .. } = unsafe { &*region };
        live(&mut world.domains, domain).users -= 1;
        world.remove_object(context);
        // SAFETY: made by `zeroed`, and in no table any more.
        unsafe { free(region) };
        Ok(())
    }))
}

pub(super) unsafe extern "C" fn alloc_mw(domain: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    pointer(world::enter("ibv_alloc_mw").and_then(|mut world| {
        if kind != number::IBV_MW_TYPE_2 {
            return Err(libc::EOPNOTSUPP);
        }
        live(&mut world.domains, domain);
        // SAFETY: the domain is live.
        let context = unsafe { (*domain).context };
        world.add_object(context)?;
        live(&mut world.domains, domain).users += 1;
        let (key, handle) = (world.key(), world.number());
        // SAFETY: the structure is integers and pointers.
        let raw: *mut ibv_mw = unsafe { zeroed() };
        // SAFETY: the structure is new.
        unsafe { raw.write(ibv_mw { context, pd: domain, rkey: key, handle, type_: kind }) };
        world.windows.insert(raw.addr(), Window { domain: domain.addr(), key, bound: None });
        Ok(raw)
    }))
}

pub(super) unsafe extern "C" fn dealloc_mw(window: *mut ibv_mw) -> c_int {
    number_of(world::enter("ibv_dealloc_mw").map(|mut world| {
        live(&mut world.windows, window);
        world.unbind(window.addr());
        world.windows.remove(&window.addr());
        // SAFETY: live until now.
        let &ibv_mw { context, pd: domain, .. } = unsafe { &*window };
        live(&mut world.domains, domain).users -= 1;
        world.remove_object(context);
        // SAFETY: made by `zeroed`, and in no table any more.
        unsafe { free(window) };
    }))
}
