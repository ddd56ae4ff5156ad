//! Memory for work requests: [`Buffer`] is private to this side, a peer can access a [`Region`] by key, and a [`Pool`]
//! reuses registered buffers.

mod buffer;
mod entry;
mod lend;
mod pool;
mod region;
mod remote;

use crate::backend::Adapter;
use crate::error::RegisterError;

pub use buffer::{Buffer, BufferPart};
pub use entry::Entry;
pub use lend::Inline;
pub use pool::{Pool, PoolBytes, PoolConfig};
pub use region::{DmaBufRegion, DmaBufSlice, OwnedRegion, Region, RegionSlice};
pub use remote::{MemoryWindow, RemoteRegion};

pub use crate::memory::{Mapping, OwnedMemory, Pages, RawMemory};

/// Does what a device may take long for, where it may take its time. `DeviceRemoved` means that the runtime has shut down, and
/// it was not done.
async fn maybe_blocking<T: Send + 'static>(
    adapter: &Adapter,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RegisterError> {
    match adapter.blocking() {
        None => Ok(work()),
        // It neither panics nor is aborted, unless the runtime has shut down.
        Some(runtime) => runtime.spawn_blocking(work).await.map_err(|_| RegisterError::DeviceRemoved),
    }
}

/// Checks that the adapter registers so many bytes at once.
fn check_length(adapter: &Adapter, length: usize) -> Result<(), RegisterError> {
    let maximum = adapter.info().max_registration;
    if adapter.is_removed() {
        return Err(RegisterError::DeviceRemoved);
    }
    if length == 0 {
        return Err(RegisterError::Empty);
    }
    if length > maximum {
        return Err(RegisterError::TooLarge { length, maximum });
    }
    Ok(())
}
