//! Memory that a peer can access by key: of this program, allocated here or by its caller, or of another device.

use std::fmt;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::BufMut;
use tokio::task::coop::consume_budget;

use super::lend::{Lent, SgEntry};
use super::remote::RemoteRegion;
use super::{check_length, maybe_blocking};
use crate::backend::{Adapter, Registration};
use crate::error::{RegisterError, RegisterFromError, WordError};
use crate::memory::{Owned, OwnedMemory, Returned, Shared, Slice};
use crate::sync::RwLock;
use crate::types::{Access, RemoteKey, TooShort};

/// Registered memory that a peer can access (`IND2MemoryRegion`, `ibv_mr`). Created by
/// [`Adapter::register`](crate::cm::Adapter::register).
///
/// A peer that has the key can access the memory at any time, so this side reads and writes it by copying. Bytes that are
/// copied while the peer writes them are a mix of old and new bytes, with no other consequence.
///
/// # Order
/// [`read`](Self::read) and [`write`](Self::write) access each aligned word of eight bytes as a whole, in any order, and are
/// themselves not ordered (`Ordering::Relaxed`): between two writes whose order matters to a reader,
/// [`fence`](std::sync::atomic::fence) with `Ordering::Release` orders them, as between other atomics.
/// [`load_u64`](Self::load_u64), [`store_u64`](Self::store_u64), [`fetch_add`](Self::fetch_add) and
/// [`compare_exchange`](Self::compare_exchange) access one word with an `Ordering` of the caller.
///
/// These orders are those of the program's threads, and of the soft provider. A request that is posted after a write carries or
/// announces what was written. A Read or Write of a peer fetches or places its bytes in any order, and no standard promises
/// that it does so in whole words.
///
/// An atomic of a peer and one of this side do not overlap if [`AdapterInfo::global_atomics`] is `true`: always on soft. If it
/// is `false`, only the atomics of one device are atomic to each other, and one of the two can be lost. This side then
/// changes the number as peers do, by a [`QueuePair`](crate::QueuePair) of the same adapter that is connected to itself.
///
/// [`AdapterInfo::global_atomics`]: crate::AdapterInfo::global_atomics
///
/// `Region` is a cheap handle; clones refer to the same memory. Dropping the last handle deregisters it. With a device,
/// this happens once no request uses the memory.
///
/// [`deregister`](Self::deregister) invalidates the key and keeps the memory. [`register_again`](Self::register_again)
/// registers the same memory under a new key. Both affect all handles.
#[derive(Clone)]
pub struct Region {
    inner: Arc<Inner>,
}

struct Inner {
    adapter: Adapter,
    memory: Shared,
    /// The registration of the moment, or the last one.
    current: RwLock<Registration>,
    /// Held by the task or thread that changes `current`.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Inner {
    fn deregister(&self) -> Result<(), RegisterError> {
        // Not under the lock: it takes long, and other tasks read the registration.
        let registration = self.current.read().clone();
        self.adapter.deregister(&registration)
    }

    fn register_again(&self, access: Access) -> Result<(), RegisterError> {
        let old = self.current.read().clone();
        let new = self.adapter.register_again(&old, &self.memory, access)?;
        *self.current.write() = new;
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.adapter.release(&self.current.read());
    }
}

impl Region {
    /// Registers `length` zeroes.
    pub(crate) async fn register(
        adapter: &Adapter,
        length: usize,
        access: Access,
    ) -> Result<Self, RegisterError> {
        consume_budget().await;
        check_length(adapter, length)?;
        let memory = Owned::zeroed(length).ok_or(RegisterError::OutOfMemory { length })?;
        Self::register_memory(adapter, memory, access).await
    }

    /// Registers memory whose length was checked.
    async fn register_memory(
        adapter: &Adapter,
        memory: Owned,
        access: Access,
    ) -> Result<Self, RegisterError> {
        let worker = adapter.clone();
        // If this future was dropped, dropping the region deregisters the memory.
        let made = maybe_blocking(adapter, move || {
            worker.register(memory, access).map(|registered| Self::of(worker, registered))
        });
        made.await?
    }

    /// Creates the region of a registration and its memory.
    fn of(adapter: Adapter, (registration, memory): (Registration, Shared)) -> Self {
        let turn = Arc::default();
        Self { inner: Arc::new(Inner { adapter, memory, current: RwLock::new(registration), turn }) }
    }

    /// Returns the length in bytes, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.inner.memory.len()
    }

    /// Returns the access rights of the last registration.
    pub fn access(&self) -> Access {
        self.inner.current.read().access()
    }

    /// Returns the key of the last registration (`GetRemoteToken`), also if it is no longer valid.
    pub fn key(&self) -> RemoteKey {
        RemoteKey(self.inner.current.read().key())
    }

    /// Returns the address, key and length by which a peer can access the whole region.
    ///
    /// The length of a region of more than 4 GiB is reduced to the largest `u32`; use
    /// [`remote_part`](Self::remote_part).
    pub fn remote(&self) -> RemoteRegion {
        let length = u32::try_from(self.len()).unwrap_or(u32::MAX);
        let current = self.inner.current.read();
        RemoteRegion { address: current.address(), key: RemoteKey(current.key()), length }
    }

    /// Returns the address, key and length by which a peer can access `range`.
    ///
    /// # Errors
    /// [`TooShort`] if the range is not within the region or is longer than 4 GiB.
    pub fn remote_part(&self, range: Range<usize>) -> Result<RemoteRegion, TooShort> {
        self.check(&range)?;
        let longest = TooShort { needed: range.len(), available: u32::MAX as usize };
        let length = u32::try_from(range.len()).map_err(|_| longest)?;
        let current = self.inner.current.read();
        let address = current.address().wrapping_add(range.start as u64);
        Ok(RemoteRegion { address, key: RemoteKey(current.key()), length })
    }

    /// Copies `bytes` into the region at `offset`.
    ///
    /// # Errors
    /// [`TooShort`] if the bytes do not fit. Nothing is copied then.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), TooShort> {
        self.slice(offset..offset.saturating_add(bytes.len()))?.memory().write(0, bytes);
        Ok(())
    }

    /// Fills `bytes` from the region at `offset`.
    ///
    /// # Errors
    /// [`TooShort`] if the region has fewer bytes after `offset`. Nothing is copied then.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), TooShort> {
        self.slice(offset..offset.saturating_add(bytes.len()))?.memory().read(0, bytes);
        Ok(())
    }

    /// Appends `length` bytes at `offset` to `bytes`, whose spare capacity need not be initialised: a `Vec`, a
    /// `BytesMut`, tokio's `ReadBuf`.
    ///
    /// # Errors
    /// [`TooShort`] if the region has fewer bytes after `offset`, or `bytes` has no room for them. Nothing is copied
    /// then.
    pub fn read_to(&self, offset: usize, length: usize, bytes: &mut impl BufMut) -> Result<(), TooShort> {
        let slice = self.slice(offset..offset.saturating_add(length))?;
        let available = bytes.remaining_mut();
        if available < length {
            return Err(TooShort { needed: length, available });
        }
        let copied = slice.memory().append_to(length, bytes);
        if copied == length { Ok(()) } else { Err(TooShort { needed: length, available }) }
    }

    /// Loads the number in the eight bytes at `offset`, in host byte order, like [`AtomicU64::load`].
    ///
    /// # Errors
    /// [`WordError`] if the eight bytes are not within the region or not aligned to eight. A region of
    /// [`register`](crate::Adapter::register) is aligned as a whole, so there the offset decides; memory of
    /// [`register_from`](crate::Adapter::register_from) has the alignment of the program's allocation.
    ///
    /// # Panics
    /// If `order` is `Release` or `AcqRel`.
    pub fn load_u64(&self, offset: usize, order: Ordering) -> Result<u64, WordError> {
        Ok(self.word(offset)?.load(order))
    }

    /// Stores a number in the eight bytes at `offset`, in host byte order, like [`AtomicU64::store`].
    ///
    /// # Errors
    /// Those of [`load_u64`](Self::load_u64). Nothing is changed then.
    ///
    /// # Panics
    /// If `order` is `Acquire` or `AcqRel`.
    pub fn store_u64(&self, offset: usize, value: u64, order: Ordering) -> Result<(), WordError> {
        self.word(offset)?.store(value, order);
        Ok(())
    }

    /// Adds `value` to the number in the eight bytes at `offset`, in host byte order, and returns the number before, like
    /// [`AtomicU64::fetch_add`]. The sum wraps around.
    ///
    /// Atomics of peers and this one do not overlap if
    /// [`AdapterInfo::global_atomics`](crate::AdapterInfo::global_atomics) is `true`.
    ///
    /// # Errors
    /// Those of [`load_u64`](Self::load_u64). Nothing is changed then.
    pub fn fetch_add(&self, offset: usize, value: u64, order: Ordering) -> Result<u64, WordError> {
        Ok(self.word(offset)?.fetch_add(value, order))
    }

    /// Replaces the number in the eight bytes at `offset`, in host byte order, by `new` if it is `current`, like
    /// [`AtomicU64::compare_exchange`]. Returns the number before: inside `Ok` if it was `current`, and inside `Err` otherwise.
    ///
    /// Atomics of peers and this one do not overlap if
    /// [`AdapterInfo::global_atomics`](crate::AdapterInfo::global_atomics) is `true`.
    ///
    /// # Errors
    /// Those of [`load_u64`](Self::load_u64). Nothing is changed then.
    ///
    /// # Panics
    /// If `failure` is `Release` or `AcqRel`.
    pub fn compare_exchange(
        &self,
        offset: usize,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<Result<u64, u64>, WordError> {
        Ok(self.word(offset)?.compare_exchange(current, new, success, failure))
    }

    fn word(&self, offset: usize) -> Result<&AtomicU64, WordError> {
        self.check(&(offset..offset.saturating_add(size_of::<u64>()))).map_err(WordError::TooShort)?;
        // It is in bounds, in memory of this host and never frozen, so its address is the only reason left.
        self.inner.memory.word(offset).ok_or(WordError::Unaligned { offset })
    }

    /// Returns a part of the region for a work request.
    ///
    /// # Errors
    /// [`TooShort`] if the range is not within the region.
    pub fn slice(&self, range: Range<usize>) -> Result<RegionSlice, TooShort> {
        self.check(&range)?;
        Ok(RegionSlice { region: self.clone(), range })
    }

    fn check(&self, range: &Range<usize>) -> Result<(), TooShort> {
        let good = range.start <= range.end && range.end <= self.len();
        let needed = range.end.max(range.start);
        if good { Ok(()) } else { Err(TooShort { needed, available: self.len() }) }
    }

    /// Invalidates the key (`Deregister`).
    ///
    /// When this method has returned, no peer can access the memory, and a peer that tries loses its connection. This
    /// side can still read the memory. A second call has no effect. With a device, requests of this side that use
    /// the region fail, and large regions are deregistered on another thread.
    ///
    /// # Errors
    /// `Busy` if a window is bound to the region, which then stays registered. With a device also `DeviceRemoved` and
    /// `Os`.
    ///
    /// # Cancel safety
    /// Once polled, the operation continues in the background if the future is dropped. If another `deregister` or
    /// `register_again` on this region was in progress, the dropped call has no effect.
    pub async fn deregister(&self) -> Result<(), RegisterError> {
        let turn = self.inner.turn.clone().lock_owned().await;
        let inner = self.inner.clone();
        let ended = maybe_blocking(&self.inner.adapter, move || {
            let _turn = turn;
            inner.deregister()
        });
        // Without a runtime it is done here.
        ended.await.unwrap_or_else(|_| self.inner.deregister())
    }

    /// Registers the memory under a new key, with the rights of `access` (`Register` on an object that was
    /// deregistered).
    ///
    /// The content is kept, and the old key stays invalid. All handles return the new key from [`key`](Self::key) and
    /// [`remote`](Self::remote). Slices that were created before can be used again.
    ///
    /// # Errors
    /// `Busy` if the region is still registered. `InsufficientResources`, `DeviceRemoved`; with a device also `OutOfMemory`,
    /// `MemoryLockLimit` and `Os`: after these errors the region is not registered.
    ///
    /// # Cancel safety
    /// Once polled, the operation continues in the background if the future is dropped. If another `deregister` or
    /// `register_again` on this region was in progress, the dropped call has no effect.
    pub async fn register_again(&self, access: Access) -> Result<(), RegisterError> {
        let turn = self.inner.turn.clone().lock_owned().await;
        if self.inner.adapter.is_removed() {
            return Err(RegisterError::DeviceRemoved);
        }
        let inner = self.inner.clone();
        let made = maybe_blocking(&self.inner.adapter, move || {
            let _turn = turn;
            inner.register_again(access)
        });
        made.await?
    }

    /// Returns `true` if the memory can be accessed by its key.
    pub fn is_registered(&self) -> bool {
        self.inner.current.read().is_valid()
    }

    /// Returns whether the region belongs to the adapter with this domain.
    pub(crate) fn is_of(&self, domain: u64) -> bool {
        self.inner.adapter.domain() == domain
    }

    /// Returns the registration of the moment, or the last one.
    pub(crate) fn registration(&self) -> Registration {
        self.inner.current.read().clone()
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the key, which gives access to the memory.
        f.debug_struct("Region").field("len", &self.len()).field("access", &self.access()).finish()
    }
}

/// A part of a region, for work requests. Created by [`Region::slice`].
#[derive(Clone, Debug)]
pub struct RegionSlice {
    region: Region,
    range: Range<usize>,
}

impl RegionSlice {
    /// Returns the region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the position of the slice in its region.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    fn memory(&self) -> Slice {
        let memory = &self.region.inner.memory;
        // It is in bounds.
        let slice = memory.slice(self.range.start, self.range.len());
        slice.unwrap_or_else(|| memory.clone().whole().part(0, 0))
    }
}

impl SgEntry for RegionSlice {
    type State = Self;

    fn allows(&self, domain: u64, access: Access) -> bool {
        let current = self.region.inner.current.read();
        self.region.is_of(domain) && current.access().contains(access) && current.is_valid()
    }

    fn length(&self) -> usize {
        self.range.len()
    }

    fn lend(self) -> Lent<Self> {
        Lent(self.memory(), self)
    }

    fn reclaim(Lent(_slice, state): Lent<Self>) -> Self {
        state
    }
}

/// A [`Region`] in an allocation of the program. Created by [`Adapter::register_from`](crate::cm::Adapter::register_from).
///
/// Dereferences to [`Region`], whose clones and slices refer to the same memory. While it is registered, the program reads and
/// writes the allocation through the region only, because a peer may write it at any time.
///
/// [`into_inner`](Self::into_inner) returns the allocation. If this value is dropped instead, the allocation is dropped
/// once no clone, no slice and no request uses it and it is deregistered. If the device cannot deregister it, it is
/// never freed.
pub struct OwnedRegion<M> {
    region: Region,
    returned: Returned<M>,
}

impl<M: OwnedMemory> OwnedRegion<M> {
    pub(crate) async fn register(
        adapter: &Adapter,
        memory: M,
        access: Access,
    ) -> Result<Self, RegisterFromError<M>> {
        consume_budget().await;
        let (memory, returned) = Owned::lend(memory);
        let region = match check_length(adapter, memory.len()) {
            Ok(()) => Region::register_memory(adapter, memory, access).await,
            Err(error) => {
                drop(memory);
                Err(error)
            }
        };
        match region {
            Ok(region) => Ok(Self { region, returned }),
            // No handle is left.
            Err(kind) => Err(RegisterFromError { kind, memory: returned.await.ok() }),
        }
    }

    /// Deregisters the memory and returns the allocation.
    ///
    /// Resolves when all other handles to the memory are dropped: the clones of the region, its slices, and the requests that
    /// use it, also those whose futures were dropped. A request completes when its connection ends at the latest. If a device
    /// fails so that it can no longer end a request, the method does not resolve, because the device may still write the
    /// memory. A peer that does not finish a transfer does not delay it.
    ///
    /// # Errors
    /// Those of [`Region::deregister`]; the error contains the region. `Busy` without a region if another handle registered the
    /// memory again and the device did not deregister it afterwards; the memory is then never freed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the allocation is dropped as if the region had been dropped.
    pub async fn into_inner(self) -> Result<M, RegisterFromError<Self>> {
        if let Err(kind) = self.region.deregister().await {
            return Err(RegisterFromError { kind, memory: Some(self) });
        }
        let Self { region, returned } = self;
        drop(region);
        returned.await.map_err(|_| RegisterFromError { kind: RegisterError::Busy, memory: None })
    }
}

impl<M> Deref for OwnedRegion<M> {
    type Target = Region;
    fn deref(&self) -> &Region {
        &self.region
    }
}

impl<M> fmt::Debug for OwnedRegion<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.region.fmt(f)
    }
}

/// Registered memory of another device, given as a dma-buf (ibv_reg_dmabuf_mr).
///
/// This program has no access to the bytes. A peer can access the memory by its key. Requests of this side can send and
/// write from it, and read into it. The two devices transfer the data directly. A memory window cannot be bound to it.
///
/// A receive into it is posted with cards of `irdma`, `bnxt_re` and `mana` only, and refused as
/// [`NotSupported`](crate::error::PostErrorKind::NotSupported) with others: the completions of some cards, such as those of
/// `mlx5`, contain the bytes of a short message, which the library of the device copies to the address of the receive. That
/// address is not one of this program here. Have the peer write to the memory instead, or read from the peer.
///
/// `DmaBufRegion` is a cheap handle; clones refer to the same region. Dropping the last handle deregisters the memory
/// once no request uses it. Created by [`Adapter::register_dmabuf`](crate::cm::Adapter::register_dmabuf).
#[derive(Clone)]
pub struct DmaBufRegion {
    region: Region,
}

impl DmaBufRegion {
    /// Registers memory of another device: offset, length, and the address of its first byte.
    pub(crate) async fn register(
        adapter: &Adapter,
        dmabuf: BorrowedFd<'_>,
        (offset, length, address): (u64, usize, u64),
        access: Access,
    ) -> Result<Self, RegisterError> {
        consume_budget().await;
        check_length(adapter, length)?;
        // Open for as long as that takes, whatever becomes of the future.
        let failed = |source: std::io::Error| RegisterError::Os { call: "dup", source: source.into() };
        let dmabuf = dmabuf.try_clone_to_owned().map_err(failed)?;
        let worker = adapter.clone();
        let made = maybe_blocking(adapter, move || {
            let registered = worker.register_dmabuf(dmabuf.as_fd(), (offset, length, address), access)?;
            Ok(Self { region: Region::of(worker, registered) })
        });
        made.await?
    }

    /// Returns the length in bytes, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Returns the access rights of the registration.
    pub fn access(&self) -> Access {
        self.region.access()
    }

    /// Returns the key.
    pub fn key(&self) -> RemoteKey {
        self.region.key()
    }

    /// Returns the address, key and length by which a peer can access the whole region, see [`Region::remote`].
    pub fn remote(&self) -> RemoteRegion {
        self.region.remote()
    }

    /// Returns the address, key and length by which a peer can access `range`.
    ///
    /// # Errors
    /// [`TooShort`] if the range is not within the region or is longer than 4 GiB.
    pub fn remote_part(&self, range: Range<usize>) -> Result<RemoteRegion, TooShort> {
        self.region.remote_part(range)
    }

    /// Returns a part of the region for a work request.
    ///
    /// # Errors
    /// [`TooShort`] if the range is not within the region.
    pub fn slice(&self, range: Range<usize>) -> Result<DmaBufSlice, TooShort> {
        Ok(DmaBufSlice { slice: self.region.slice(range)? })
    }

    /// Invalidates the key, like [`Region::deregister`].
    ///
    /// # Errors
    /// Those of [`Region::deregister`].
    ///
    /// # Cancel safety
    /// See [`Region::deregister`].
    pub async fn deregister(&self) -> Result<(), RegisterError> {
        self.region.deregister().await
    }

    /// Returns `true` if the memory can be accessed by its key.
    pub fn is_registered(&self) -> bool {
        self.region.is_registered()
    }
}

impl fmt::Debug for DmaBufRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaBufRegion").field("len", &self.len()).field("access", &self.access()).finish()
    }
}

/// A part of a [`DmaBufRegion`], for work requests. Created by [`DmaBufRegion::slice`].
#[derive(Clone, Debug)]
pub struct DmaBufSlice {
    slice: RegionSlice,
}

impl DmaBufSlice {
    /// Returns the position of the slice in its region.
    pub fn range(&self) -> Range<usize> {
        self.slice.range()
    }
}

impl SgEntry for DmaBufSlice {
    type State = RegionSlice;

    fn allows(&self, domain: u64, access: Access) -> bool {
        SgEntry::allows(&self.slice, domain, access)
    }

    fn length(&self) -> usize {
        SgEntry::length(&self.slice)
    }

    fn lend(self) -> Lent<RegionSlice> {
        SgEntry::lend(self.slice)
    }

    fn reclaim(lent: Lent<RegionSlice>) -> Self {
        Self { slice: RegionSlice::reclaim(lent) }
    }
}
