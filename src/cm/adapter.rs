//! An opened adapter, from which everything else is created.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use super::connector::Connector;
use super::listener::Listener;
use super::provider::Provider;
use crate::error::{OpenError, RegisterError};
use crate::mr::{Buffer, DmaBufRegion, MemoryWindow, Pool, PoolConfig, Region};
use crate::provider;
use crate::provider::info::AdapterInfo;
use crate::qp::{
    CompletionQueue, CompletionQueueConfig, QueuePair, QueuePairConfig, SharedReceiveConfig,
    SharedReceiveQueue,
};
use crate::types::Access;

/// An opened adapter (IND2Adapter), and the protection domain of all that is created from it.
///
/// Handles are counted: what was created from an adapter keeps it open.
#[derive(Clone)]
pub struct Adapter {
    provider: provider::Adapter,
}

impl Adapter {
    pub(crate) fn new(provider: provider::Adapter) -> Self {
        Self { provider }
    }

    /// Opens the adapter that has this local address, whichever provider it belongs to.
    ///
    /// # Errors
    /// `InvalidAddress` when it is nobody's here; see [`Provider::open`].
    pub fn open(address: IpAddr) -> Result<Self, OpenError> {
        let mut last = OpenError::Unsupported("no provider can be used here");
        for provider in Provider::all() {
            match provider.resolve(address) {
                Ok(id) => return provider.open(id),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// What it is and can do. Source: `IND2Adapter::Query`.
    pub fn info(&self) -> AdapterInfo {
        self.provider.info().as_ref().clone()
    }

    /// Whether it has been removed: the last of its addresses is gone, and everything on it has ended with
    /// `DEVICE_REMOVED`.
    pub fn is_removed(&self) -> bool {
        self.provider.is_removed()
    }

    /// A connector. Source: `IND2Adapter::CreateConnector`.
    pub fn connector(&self) -> Connector {
        Connector::new(self.provider.connector())
    }

    /// A listener. Source: `IND2Adapter::CreateListener`.
    pub fn listener(&self) -> Listener {
        Listener::new(self.provider.listener())
    }

    /// A queue pair. Source: `IND2Adapter::CreateQueuePair`.
    ///
    /// # Errors
    /// `InvalidParameter` with the number of the argument; `DeviceRemoved`.
    pub fn queue_pair(&self, config: QueuePairConfig) -> Result<QueuePair, OpenError> {
        if self.is_removed() {
            return Err(OpenError::DeviceRemoved);
        }
        config.check(self.provider.info(), self.provider.domain())?;
        QueuePair::new(&self.provider, config)
    }

    /// A completion queue that is polled by hand. Source: `IND2Adapter::CreateCompletionQueue`.
    ///
    /// # Errors
    /// `InvalidParameter` with the number of the argument; `DeviceRemoved`.
    pub fn completion_queue(&self, config: CompletionQueueConfig) -> Result<CompletionQueue, OpenError> {
        if self.is_removed() {
            return Err(OpenError::DeviceRemoved);
        }
        CompletionQueue::new(&self.provider, config)
    }

    /// A receive queue for several queue pairs. Source: `IND2Adapter::CreateSharedReceiveQueue`.
    ///
    /// # Errors
    /// `InvalidParameter` with the number of the argument; `Unsupported`; `DeviceRemoved`; with a device also `Os`.
    pub fn shared_receive_queue(&self, config: SharedReceiveConfig) -> Result<SharedReceiveQueue, OpenError> {
        if self.is_removed() {
            return Err(OpenError::DeviceRemoved);
        }
        SharedReceiveQueue::new(&self.provider, config)
    }

    /// A memory window that is not bound yet. Source: `IND2Adapter::CreateMemoryWindow`.
    ///
    /// # Errors
    /// `NotSupported` where [`AdapterInfo::memory_windows`] is false; `DeviceRemoved`; with a device also `Os`.
    pub fn memory_window(&self) -> Result<MemoryWindow, RegisterError> {
        if self.is_removed() {
            return Err(RegisterError::DeviceRemoved);
        }
        MemoryWindow::new(&self.provider)
    }

    /// A buffer of `length` zeroes.
    ///
    /// # Errors
    /// `InsufficientResources` when there is not enough memory; with a device also `MemoryLockLimit`, `DeviceRemoved` and
    /// `Os`.
    pub fn buffer(&self, length: usize) -> Result<Buffer, RegisterError> {
        Buffer::zeroed(&self.provider, length)
    }

    /// A buffer with a copy of `bytes`.
    ///
    /// # Errors
    /// `InsufficientResources` when there is not enough memory; with a device also `MemoryLockLimit`, `DeviceRemoved` and
    /// `Os`.
    pub fn buffer_from(&self, bytes: &[u8]) -> Result<Buffer, RegisterError> {
        let mut buffer = self.buffer(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Ok(buffer)
    }

    /// Registers `length` zeroes, with the rights of `access`. Source: `IND2MemoryRegion::Register`.
    ///
    /// # Errors
    /// `Empty`, `TooLarge`, `InsufficientResources`, `DeviceRemoved`; with a device also `MemoryLockLimit` when this
    /// process may not lock that much memory, and `Os`.
    ///
    /// # Cancel safety
    /// Dropping the future registers nothing.
    pub async fn register(&self, length: usize, access: Access) -> Result<Region, RegisterError> {
        Region::register(&self.provider, length, access).await
    }

    /// Registers memory of another device, which `dmabuf` stands for: `length` bytes from `offset` on. Requests and peers
    /// find its first byte at `address`, which must lie as far into a page as `offset` does. The descriptor may be closed
    /// afterwards.
    ///
    /// # Errors
    /// `NotSupported` by the soft provider, and by a device, a kernel or a library that does not know how: `rxe`, `siw`,
    /// rdma-core before 34. `Empty`, `TooLarge`, `InsufficientResources`, `DeviceRemoved` and `Os`.
    ///
    /// # Cancel safety
    /// Dropping the future registers nothing.
    pub async fn register_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        address: u64,
        access: Access,
    ) -> Result<DmaBufRegion, RegisterError> {
        DmaBufRegion::register(&self.provider, dmabuf, (offset, length, address), access).await
    }

    /// A pool of buffers, which makes them when they are first needed.
    ///
    /// # Errors
    /// `Empty` for buffers of no bytes, or no buffers; `TooLarge`; `DeviceRemoved`.
    pub fn pool(&self, config: PoolConfig) -> Result<Pool, RegisterError> {
        Pool::new(&self.provider, config)
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.provider.info();
        f.debug_struct("Adapter").field("provider", &info.provider).field("name", &info.name).finish()
    }
}
