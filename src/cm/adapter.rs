//! Adapters.

use std::fmt;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;

use super::connector::Connector;
use super::listener::Listener;
use super::provider::{LocalAddress, Provider};
use crate::backend;
use crate::error::{OpenError, RegisterError, RegisterFromError};
use crate::events::{AdapterEvent, Subscription};
use crate::mr::{Buffer, DmaBufRegion, MemoryWindow, OwnedMemory, OwnedRegion, Pool, PoolConfig, Region};
use crate::provider::info::{AdapterInfo, PortInfo};
use crate::qp::{
    CompletionQueue, CompletionQueueConfig, Lane, LaneConfig, QueuePair, QueuePairConfig,
    SharedReceiveConfig, SharedReceiveQueue,
};
use crate::types::Access;

/// An opened adapter, and the protection domain of the objects that are created from it (`IND2Adapter`).
///
/// `Adapter` is a cheap handle; clones refer to the same adapter. The adapter stays open until the last handle and the
/// last object created from it are dropped.
#[derive(Clone)]
pub struct Adapter {
    provider: backend::Adapter,
}

/// An adapter that stays open only as long as there are other handles and objects.
pub(crate) struct WeakAdapter {
    provider: backend::WeakAdapter,
}

impl WeakAdapter {
    /// Returns the adapter if it is open.
    pub(crate) fn upgrade(&self) -> Option<Adapter> {
        self.provider.upgrade().map(Adapter::new)
    }

    /// Returns whether the adapter is open.
    pub(crate) fn is_open(&self) -> bool {
        self.provider.is_open()
    }
}

impl Adapter {
    /// Opens the adapter that has a local address.
    ///
    /// The verbs provider is tried first, then the soft provider. The soft provider serves addresses of no device, and those
    /// of devices that `VerbsConfig::devices` or the environment variable `TOKIO_RDMA_DEVICES` excludes.
    ///
    /// A host name blocks the thread until it is resolved, see [`LocalAddress`]: in async code pass an IP address, or
    /// resolve the name with `tokio::net::lookup_host` first.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let adapter = tokio_rdma::Adapter::open("127.0.0.1")?;
    /// # drop(adapter);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidAddress` if no adapter has the address, and the errors of [`Provider::open`].
    pub fn open(address: impl LocalAddress) -> Result<Self, OpenError> {
        Self::open_by(&Provider::all(), address.local_address()?)
    }

    /// Opens the adapter that has a local address, of the first of these providers that has one, like [`open`](Self::open).
    pub(crate) fn open_by(providers: &[Provider], address: SocketAddr) -> Result<Self, OpenError> {
        let mut last = OpenError::Unsupported("no provider can be used here");
        for provider in providers {
            match provider.resolve_local(address) {
                Ok(id) => return provider.open(id),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Creates the handle of an adapter that a provider has opened.
    pub(crate) fn new(provider: backend::Adapter) -> Self {
        Self { provider }
    }

    /// Returns the properties, limits and abilities of the adapter (`IND2Adapter::Query`).
    ///
    /// They do not change while the adapter is open, except for the [`addresses`](AdapterInfo::addresses), which are asked for
    /// by each call.
    pub fn info(&self) -> AdapterInfo {
        self.provider.current_info()
    }

    /// Returns the properties like [`info`](Self::info), without a question to the system: with the addresses that the
    /// adapter had when it was opened.
    pub(crate) fn properties(&self) -> &AdapterInfo {
        self.provider.info()
    }

    /// Returns whether it is of this machine, and not of a simulated one.
    pub(crate) fn is_of_machine(&self) -> bool {
        self.provider.is_of_machine()
    }

    /// Returns whether the adapter has been removed.
    ///
    /// The soft provider removes an adapter when its interface is deleted, or has had no address for
    /// `SoftConfig::address_timeout`. Link-local IPv6 addresses do not count. The verbs provider removes an adapter when its
    /// device is removed or fails. All pending operations of a removed adapter complete with `DEVICE_REMOVED`.
    pub fn is_removed(&self) -> bool {
        self.provider.is_removed()
    }

    /// Returns the ports of the adapter as they are now (ibv_query_port(3)).
    ///
    /// # Errors
    /// `DeviceRemoved`; `Os`.
    pub fn ports(&self) -> Result<Vec<PortInfo>, OpenError> {
        self.present()?.port_info()
    }

    /// Returns the events of the adapter from now on: ports that go down and come up, other addresses, the removal
    /// (`ibv_get_async_event(3)`; ND has [`Removed`](super::AdapterEvent::Removed) alone, as the status of pending requests).
    ///
    /// Each call returns a stream of its own, which has every event. The adapter need not be kept for it. After the removal of the
    /// adapter, the stream has `Removed` alone.
    ///
    /// A change that is undone at once may be missing: the soft provider compares what the system lists with what it has listed
    /// before.
    ///
    /// ```
    /// # fn example(adapter: &tokio_rdma::Adapter) {
    /// use tokio_rdma::AdapterEvent;
    ///
    /// let mut events = adapter.events();
    /// tokio::spawn(async move {
    ///     while let Some(event) = events.recv().await {
    ///         match event {
    ///             AdapterEvent::PortDown { port } => println!("port {port} is down"),
    ///             AdapterEvent::Removed => println!("the adapter is gone"),
    ///             _ => {}
    ///         }
    ///     }
    /// });
    /// # }
    /// ```
    pub fn events(&self) -> AdapterEvents {
        AdapterEvents::new(self.provider.subscribe())
    }

    /// Returns the adapter of the provider, unless it has been removed.
    fn present(&self) -> Result<&backend::Adapter, OpenError> {
        if self.is_removed() { Err(OpenError::DeviceRemoved) } else { Ok(&self.provider) }
    }

    /// Returns a handle that does not keep the adapter open.
    pub(crate) fn downgrade(&self) -> WeakAdapter {
        WeakAdapter { provider: self.provider.downgrade() }
    }

    /// Returns whether the adapter has this local address, as far as is known without a question to the system.
    pub(crate) fn has_listed(&self, ip: IpAddr) -> bool {
        self.provider.has_listed(ip)
    }

    /// Returns a random number that a peer cannot guess; `None` if the system has none.
    pub(crate) fn random(&self) -> Option<u128> {
        self.provider.random()
    }

    /// Returns the number of the network that the adapter is in: 0 for that of the machine, and another for each simulated one.
    pub(crate) fn network(&self) -> u64 {
        self.provider.network()
    }

    /// Returns whether the id of the adapter means the same adapter to the calling thread, which may be in another network
    /// namespace.
    pub(crate) fn is_of_this_thread(&self) -> bool {
        self.provider.is_of_this_thread()
    }

    /// Creates a connector (`IND2Adapter::CreateConnector`).
    pub fn connector(&self) -> Connector {
        Connector::new(self.provider.connector())
    }

    /// Creates a listener (`IND2Adapter::CreateListener`).
    pub fn listener(&self) -> Listener {
        Listener::new(self.provider.listener())
    }

    /// Creates a queue pair (`IND2Adapter::CreateQueuePair`).
    ///
    /// # Errors
    /// `InvalidParameter` with the number of the argument; `DeviceRemoved`.
    pub fn queue_pair(&self, config: QueuePairConfig) -> Result<QueuePair, OpenError> {
        let provider = self.present()?;
        config.check(provider.info(), provider.domain())?;
        QueuePair::new(provider, config)
    }

    /// Creates a lane: slots of memory, queue pairs and a completion queue with one owner, who posts and polls at the cost of the calls
    /// of the device. With a device it must be called in a tokio runtime that has I/O.
    ///
    /// # Errors
    /// `InvalidParameter` for a setting that the adapter does not allow; `Os` when it has no room, or for memory that cannot be
    /// registered; `DeviceRemoved`.
    pub fn lane(&self, config: &LaneConfig) -> Result<Lane, OpenError> {
        Lane::new(self.present()?, config)
    }

    /// Creates a completion queue that the program polls (`IND2Adapter::CreateCompletionQueue`).
    ///
    /// # Errors
    /// `InvalidParameter` with the number of the argument; `DeviceRemoved`; with a device also `Os`.
    pub fn completion_queue(&self, config: CompletionQueueConfig) -> Result<CompletionQueue, OpenError> {
        CompletionQueue::new(self.present()?, config)
    }

    /// Creates two completion queues of these depths in a part of the device's that others use, too.
    pub(crate) fn shared_completion_queues(
        &self,
        depths: [usize; 2],
    ) -> Result<[CompletionQueue; 2], OpenError> {
        let device = self.present()?.shared_completions()?;
        let queue = |depth| {
            let config = CompletionQueueConfig::default().depth(depth);
            CompletionQueue::over(&self.provider, device.clone(), config)
        };
        let [one, other] = depths;
        Ok([queue(one)?, queue(other)?])
    }

    /// Creates a receive queue for several queue pairs (`IND2Adapter::CreateSharedReceiveQueue`).
    ///
    /// # Errors
    /// `InvalidParameter` with the number of the argument; `Unsupported`; `DeviceRemoved`; with a device also `Os`.
    pub fn shared_receive_queue(&self, config: SharedReceiveConfig) -> Result<SharedReceiveQueue, OpenError> {
        SharedReceiveQueue::new(self.present()?, config)
    }

    /// Creates a memory window that is not bound (`IND2Adapter::CreateMemoryWindow`).
    ///
    /// # Errors
    /// `NotSupported` if [`AdapterInfo::memory_windows`] is `false`; `DeviceRemoved`; with a device also `Os`.
    pub fn memory_window(&self) -> Result<MemoryWindow, RegisterError> {
        if self.is_removed() {
            return Err(RegisterError::DeviceRemoved);
        }
        MemoryWindow::new(&self.provider)
    }

    /// Creates a buffer of `length` zero bytes.
    ///
    /// # Errors
    /// `OutOfMemory`; with a device also `MemoryLockLimit`, `DeviceRemoved` and `Os`.
    pub fn buffer(&self, length: usize) -> Result<Buffer, RegisterError> {
        Buffer::zeroed(&self.provider, length)
    }

    /// Creates a buffer with a copy of `bytes`.
    ///
    /// # Errors
    /// The errors of [`buffer`](Self::buffer).
    pub fn buffer_from(&self, bytes: &[u8]) -> Result<Buffer, RegisterError> {
        let mut buffer = self.buffer(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Ok(buffer)
    }

    /// Allocates `length` zero bytes and registers them with the rights of `access` (`IND2MemoryRegion::Register`).
    ///
    /// # Errors
    /// `Empty`, `TooLarge`, `OutOfMemory`, `InsufficientResources`, `DeviceRemoved`; with a device also `MemoryLockLimit`
    /// if this process may not lock that much memory, and `Os`.
    ///
    /// # Cancel safety
    /// If the future is dropped, no memory stays registered.
    pub fn register(
        &self,
        length: usize,
        access: Access,
    ) -> impl Future<Output = Result<Region, RegisterError>> + Send + use<> {
        let provider = self.provider.clone();
        async move { Region::register(&provider, length, access).await }
    }

    /// Registers an allocation of the program with the rights of `access` (`IND2MemoryRegion::Register`, ibv_reg_mr(3)):
    /// `Vec<u8>`, `Box<[u8]>`, `BytesMut`, a [`Mapping`](crate::mr::Mapping), or, by its address, any
    /// [`RawMemory`](crate::mr::RawMemory).
    ///
    /// The bytes are neither copied nor moved, and keep their values. [`OwnedRegion::into_inner`] returns the allocation.
    /// The memory needs no alignment, except for atomics: they are for numbers whose address is a multiple of eight.
    ///
    /// ```
    /// # async fn example(adapter: &tokio_rdma::Adapter) -> std::io::Result<()> {
    /// use tokio_rdma::Access;
    ///
    /// let region = adapter.register_from(b"for the peer".to_vec(), Access::REMOTE_READ).await?;
    /// // The peer reads `region.remote()`, and then:
    /// let bytes = region.into_inner().await?;
    /// assert_eq!(bytes, b"for the peer");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`register`](Self::register); `NotSupported` with the soft provider if `access` contains
    /// `REMOTE_ATOMIC` and the first byte is not aligned to eight. The error contains the allocation.
    ///
    /// # Cancel safety
    /// If the future is dropped, no memory stays registered, and the allocation is dropped.
    pub fn register_from<M: OwnedMemory>(
        &self,
        memory: M,
        access: Access,
    ) -> impl Future<Output = Result<OwnedRegion<M>, RegisterFromError<M>>> + Send + use<M> {
        let provider = self.provider.clone();
        async move { OwnedRegion::register(&provider, memory, access).await }
    }

    /// Registers memory of another device: `length` bytes of `dmabuf`, starting at `offset`.
    ///
    /// Requests and peers address its first byte as `address`, which must have the same offset within a page as
    /// `offset`. The descriptor may be closed after this call. [`DmaBufRegion`] lists the requests that can use the memory.
    ///
    /// # Errors
    /// `NotSupported` with the soft provider, and with a device, kernel or library without dma-buf support: `rxe`,
    /// `siw`, rdma-core before 34. `Empty`, `TooLarge`, `OutOfMemory`, `InsufficientResources`, `DeviceRemoved` and `Os`.
    ///
    /// # Cancel safety
    /// If the future is dropped, no memory stays registered.
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

    /// Creates a pool of buffers. The pool allocates each buffer when it is first needed.
    ///
    /// # Errors
    /// `Empty` if the configuration has no buffers, or buffers without bytes; `TooLarge`; `DeviceRemoved`.
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

/// The events of an adapter, from [`Adapter::events`](crate::Adapter::events) on: a [`Stream`].
///
/// A program that does not read loses events, and not memory: of those that wait, the last 32 are kept, and
/// [`AdapterEvent::Missed`] stands for the others.
///
/// The stream does not keep the adapter open. It ends behind [`AdapterEvent::Removed`], and without that event when the adapter is
/// closed, when its runtime shuts down, or, with the soft provider, when the system cannot report changes any longer. With a device the
/// events of its ports go on then. While the process has no descriptor for the announcements of addresses, they are looked at once in a
/// second.
#[must_use = "the events are lost with it"]
pub struct AdapterEvents {
    subscription: Arc<Subscription>,
}

impl AdapterEvents {
    pub(super) fn new(subscription: Arc<Subscription>) -> Self {
        Self { subscription }
    }

    /// Returns the next event. `None` behind the last one.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event: an event is taken in the poll that returns it.
    pub async fn recv(&mut self) -> Option<AdapterEvent> {
        poll_fn(|cx| self.subscription.poll_next(cx)).await
    }
}

impl Stream for AdapterEvents {
    type Item = AdapterEvent;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<AdapterEvent>> {
        self.subscription.poll_next(cx)
    }
}

impl fmt::Debug for AdapterEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterEvents").finish_non_exhaustive()
    }
}
