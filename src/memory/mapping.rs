//! Memory in whole pages.

use std::ffi::c_int;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::{fmt, io, mem, slice};

use super::owned::{pages, sealed};
use crate::error::RegisterError;

/// The size of the pages of a [`Mapping`].
///
/// A device keeps an entry for each page of registered memory. With fewer and larger pages, registration is faster, and the
/// device finds more of the entries in its cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pages {
    /// Pages of the usual size, 4 KiB on most systems.
    #[default]
    Base,
    /// Pages of the usual size, which the kernel may replace by huge pages (`MADV_HUGEPAGE` of madvise(2)).
    Transparent,
    /// Huge pages of 2 MiB (`MAP_HUGETLB` of mmap(2)), which the administrator has reserved (`vm.nr_hugepages`).
    Huge2MiB,
    /// Huge pages of 1 GiB (`MAP_HUGETLB` of mmap(2)), which the administrator has reserved.
    Huge1GiB,
}

impl Pages {
    /// Returns the flags of mmap(2), and the number that lengths are multiples of.
    fn kind(self) -> (c_int, usize) {
        match self {
            Self::Base | Self::Transparent => (0, 1),
            Self::Huge2MiB => (libc::MAP_HUGETLB | libc::MAP_HUGE_2MB, 2 << 20),
            Self::Huge1GiB => (libc::MAP_HUGETLB | libc::MAP_HUGE_1GB, 1 << 30),
        }
    }
}

/// Zeroed memory in pages of its own (mmap(2)), for [`Adapter::register_from`](crate::cm::Adapter::register_from).
///
/// The memory is private to this process. In a child process of fork(2) the bytes of a mapping are zero (`MADV_WIPEONFORK` of
/// madvise(2)), except those in pages of [`Pages::Huge2MiB`] and [`Pages::Huge1GiB`], which the child has as they were. Dropping a mapping unmaps it.
///
/// ```
/// # async fn example(adapter: &tokio_rdma::Adapter) -> Result<(), Box<dyn std::error::Error>> {
/// use tokio_rdma::Access;
/// use tokio_rdma::mr::{Mapping, Pages};
///
/// const LENGTH: usize = 64 << 20;
/// // Huge pages, if there are any.
/// let memory = Mapping::new(LENGTH, Pages::Huge2MiB).or_else(|_| Mapping::new(LENGTH, Pages::Transparent))?;
/// let region = adapter.register_from(memory, Access::REMOTE_WRITE).await?;
/// # Ok(())
/// # }
/// ```
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
    /// The length with the rest of the last huge page.
    mapped: usize,
}

// SAFETY: plain memory that the value owns.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference only reads it.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` zero bytes. The first is at the start of a page.
    ///
    /// # Errors
    /// * `Empty` if the length is 0.
    /// * `OutOfMemory`.
    /// * `InsufficientResources` if not enough huge pages are reserved and free.
    /// * `NotSupported` if the kernel has no pages of that kind.
    /// * `Os` for other errors of mmap(2) and madvise(2).
    pub fn new(length: usize, pages: Pages) -> Result<Self, RegisterError> {
        let (kind, size) = pages.kind();
        if length == 0 {
            return Err(RegisterError::Empty);
        }
        let mapped = length.checked_next_multiple_of(size).ok_or(RegisterError::OutOfMemory { length })?;
        let start = pages::map(mapped, kind).map_err(|error| map_error(error, kind != 0, length))?;
        let mapping = Self { start, length, mapped };
        if kind == 0 {
            // If this fails, the kernel copies registered pages for a child, unless it is older than Linux 5.12.
            let _ = pages::wipe_on_fork(start, mapped);
        }
        if pages == Pages::Transparent {
            mapping.advise_huge_pages()?;
        }
        Ok(mapping)
    }

    fn advise_huge_pages(&self) -> Result<(), RegisterError> {
        // SAFETY: the range is the mapping, and the advice changes none of its bytes.
        let outcome = unsafe { libc::madvise(self.start.as_ptr().cast(), self.mapped, libc::MADV_HUGEPAGE) };
        if outcome == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        Err(match error.raw_os_error() {
            Some(libc::EINVAL) => RegisterError::NotSupported("transparent huge pages with this kernel"),
            _ => RegisterError::Os { call: "madvise", source: error.into() },
        })
    }
}

fn map_error(error: io::Error, huge: bool, length: usize) -> RegisterError {
    match error.raw_os_error() {
        Some(libc::ENOMEM) if huge => RegisterError::InsufficientResources(
            "too few huge pages of this size are reserved and free (vm.nr_hugepages)",
        ),
        Some(libc::EINVAL | libc::ENODEV | libc::EOPNOTSUPP) if huge => {
            RegisterError::NotSupported("huge pages of this size with this kernel")
        }
        Some(libc::ENOMEM) | None => RegisterError::OutOfMemory { length },
        _ => RegisterError::Os { call: "mmap", source: error.into() },
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value.
        unsafe { pages::unmap(self.start, self.mapped) }
    }
}

impl Deref for Mapping {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the range is mapped and initialised, and belongs to this value.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes)", self.length)
    }
}

// SAFETY: the value owns its initialised bytes, and only the pointer is left of it.
unsafe impl sealed::Allocation for Mapping {
    type Rest = usize;

    fn into_parts(self) -> (NonNull<u8>, usize, usize) {
        let parts = (self.start, self.length, self.mapped);
        mem::forget(self);
        parts
    }

    unsafe fn from_parts(start: NonNull<u8>, length: usize, mapped: usize) -> Self {
        Self { start, length, mapped }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A failure to map names the kind of pages that the system lacks (HW-11).
    #[test]
    fn errors_name_the_pages() {
        let error = |number, huge| map_error(io::Error::from_raw_os_error(number), huge, 7);
        assert!(matches!(error(libc::ENOMEM, false), RegisterError::OutOfMemory { length: 7 }));
        assert!(matches!(error(libc::ENOMEM, true), RegisterError::InsufficientResources(_)));
        assert!(matches!(error(libc::EINVAL, true), RegisterError::NotSupported(_)));
        assert!(matches!(error(libc::EPERM, true), RegisterError::Os { call: "mmap", .. }));
    }

    #[test]
    fn impossible_lengths_are_errors() {
        for pages in [Pages::Base, Pages::Transparent, Pages::Huge2MiB, Pages::Huge1GiB] {
            assert!(matches!(Mapping::new(0, pages), Err(RegisterError::Empty)));
            Mapping::new(usize::MAX, pages).map(drop).expect_err("too long");
        }
    }
}
