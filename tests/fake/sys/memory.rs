//! Protection domains, regions and windows.

use std::ffi::{c_int, c_uint, c_void};

use super::types::*;
use super::world::{self, World, live};
use super::{Answer, free, number, number_of, pointer, zeroed};

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
    /// The part of a dma-buf that it is.
    mapping: Option<Mapping>,
}

impl Region {
    /// The place of an address of it in the memory of this process.
    pub(super) fn place(&self, address: u64) -> usize {
        match &self.mapping {
            None => address as usize,
            Some(mapping) => mapping.first.addr() + (address - self.start) as usize,
        }
    }
}

/// The page of this device and of the memory behind dma-bufs.
const PAGE: u64 = 4096;

/// A part of a file of memory, which stands for the memory of another device. Nothing but the device of this library uses the
/// mapping.
struct Mapping {
    start: *mut c_void,
    length: usize,
    /// The first byte of the region, which need not be the first of a page.
    first: *mut u8,
}

impl Mapping {
    /// The bytes of a file from `offset` on.
    fn new(fd: c_int, offset: u64, length: usize) -> Answer<Self> {
        // SAFETY: the structure is integers.
        let mut file: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the call fills the structure.
        if unsafe { libc::fstat(fd, &mut file) } != 0 {
            return Err(libc::EBADF);
        }
        let end = offset.checked_add(length as u64).ok_or(libc::EINVAL)?;
        if u64::try_from(file.st_size).is_ok_and(|size| end > size) {
            return Err(libc::EINVAL);
        }
        let into = (offset % PAGE) as usize;
        let (protection, from) = (libc::PROT_READ | libc::PROT_WRITE, (offset - into as u64) as libc::off_t);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), into + length, protection, libc::MAP_SHARED, fd, from)
        };
        if start == libc::MAP_FAILED {
            return Err(libc::EINVAL);
        }
        start.expose_provenance();
        Ok(Self { start, length: into + length, first: start.cast::<u8>().wrapping_add(into) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own, and the region that it is of is in no table any more.
        unsafe { libc::munmap(self.start, self.length) };
    }
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
        world.register(domain, start, length, (start.expose_provenance() as u64, access), None)
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    domain: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    /// The flags that the kernel takes, and no other.
    const FLAGS: u32 = number::IBV_ACCESS_LOCAL_WRITE
        | number::IBV_ACCESS_REMOTE_WRITE
        | number::IBV_ACCESS_REMOTE_READ
        | number::IBV_ACCESS_REMOTE_ATOMIC
        | number::IBV_ACCESS_RELAXED_ORDERING;
    pointer(world::enter("ibv_reg_dmabuf_mr").and_then(|mut world| {
        live(&mut world.domains, domain);
        if !world.card.dmabuf {
            return Err(libc::EOPNOTSUPP);
        }
        let access = access as u32;
        if access & !FLAGS != 0 || offset % PAGE != iova % PAGE || length == 0 {
            return Err(libc::EINVAL);
        }
        let mapping = Mapping::new(fd, offset, length)?;
        world.register(domain, std::ptr::null_mut(), length, (iova, access), Some(mapping))
    }))
}

impl World {
    /// A new region, which the device finds at this address.
    fn register(
        &mut self,
        domain: *mut ibv_pd,
        start: *mut c_void,
        length: usize,
        (address, access): (u64, u32),
        mapping: Option<Mapping>,
    ) -> Answer<*mut ibv_mr> {
        let world = self;
        let writes = access & (number::IBV_ACCESS_REMOTE_WRITE | number::IBV_ACCESS_REMOTE_ATOMIC) != 0;
        if writes && access & number::IBV_ACCESS_LOCAL_WRITE == 0 || length == 0 {
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
            start: address,
            length: length as u64,
            access,
            windows: 0,
            key,
            mapping,
        };
        world.regions.insert(raw.addr(), region);
        Ok(raw)
    }
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
