//! Buffers that are registered once and reused, and their conversion from and to [`Bytes`].

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::task::coop::consume_budget;

use super::buffer::Buffer;
use super::lend::{Lent, SgEntry};
use super::{check_length, maybe_blocking};
use crate::backend::Adapter;
use crate::error::RegisterError;
use crate::memory::{Owned, Recycler, Slice, WeakFrozen};
use crate::provider::registry::{Member, Registered};
use crate::sync::Mutex;
use crate::types::Access;

/// The size of a [`Pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    length: usize,
    maximum: usize,
}

impl PoolConfig {
    /// Creates settings for at most `maximum` buffers of `length` bytes each.
    pub const fn new(length: usize, maximum: usize) -> Self {
        Self { length, maximum }
    }
}

/// A pool of buffers of one length, which are registered on first use and then reused. Created by
/// [`Adapter::pool`](crate::cm::Adapter::pool).
///
/// A [`Buffer`] of a pool is like any other, but returns to the pool when it is dropped. If the future of a request was
/// dropped, its buffer returns when the provider has finished with it. A frozen buffer returns when the last clone of
/// its [`Bytes`] is dropped. A reused buffer contains the bytes of its previous use. When all buffers are in use,
/// [`get`](Self::get) waits; waiters are served in FIFO order.
///
/// `Pool` is a cheap handle; clones refer to the same pool. When the last handle is dropped, idle buffers are freed,
/// and the others are freed when they return.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// use tokio_rdma::{Adapter, PoolConfig};
///
/// let adapter = Adapter::open("127.0.0.1")?;
/// let pool = adapter.pool(PoolConfig::new(4096, 8))?;
///
/// // In an application, `queue_pair.receive(buffer)` fills the buffer.
/// let mut buffer = pool.get().await?;
/// buffer[..5].copy_from_slice(b"hello");
///
/// // The received bytes are converted, and sent by `queue_pair.send(answer)`, without a copy.
/// let bytes = buffer.freeze(5);
/// let answer = pool.lend(bytes.slice(1..)).await?;
/// assert_eq!(&answer[..], b"ello");
/// assert_eq!((pool.allocated(), pool.in_use()), (1, 1));
///
/// drop((bytes, answer));
/// assert_eq!((pool.allocated(), pool.in_use()), (1, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Pool {
    handle: Arc<Handle>,
}

struct Handle {
    inner: Arc<Inner>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.close();
    }
}

struct Inner {
    adapter: Adapter,
    config: PoolConfig,
    /// A permit for each buffer that is idle or has not been made. Fair, and closed when the adapter is removed.
    free: Arc<Semaphore>,
    state: Mutex<State>,
    _registered: Registered,
}

#[derive(Default)]
struct State {
    idle: Vec<Owned>,
    /// The number of buffers that exist, idle ones included.
    allocated: usize,
    /// Those that are frozen: from which address on, how many bytes, and how to get at them.
    frozen: BTreeMap<usize, (usize, WeakFrozen)>,
    /// The pool is closed: a buffer that is returned is freed.
    closed: bool,
}

impl Inner {
    fn take_idle(&self) -> Option<Owned> {
        self.state.lock().idle.pop()
    }

    /// Allocates a buffer for a task that has a permit.
    fn make(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Result<Buffer, RegisterError> {
        let memory = self.adapter.allocate(self.config.length)?;
        self.state.lock().allocated += 1;
        Ok(self.hand_out(memory, permit))
    }

    /// Makes a buffer of the memory. The permit is returned when the memory is.
    fn hand_out(self: &Arc<Self>, memory: Owned, permit: OwnedSemaphorePermit) -> Buffer {
        permit.forget();
        Buffer::of(memory.with_recycler(self.clone()), self.adapter.domain())
    }

    fn close(&self) {
        let idle = {
            let mut state = self.state.lock();
            state.closed = true;
            let idle = std::mem::take(&mut state.idle);
            state.allocated -= idle.len();
            idle
        };
        // Deregistering takes a while.
        drop(idle);
    }

    /// Finds the frozen buffer that the bytes are a part of, and returns that part; `None` for bytes of other memory.
    fn find(&self, bytes: &Bytes) -> Option<Slice> {
        if bytes.is_empty() {
            return Some(Owned::empty().share().whole());
        }
        let start = bytes.as_ptr().addr();
        let state = self.state.lock();
        let (first, (length, memory)) = state.frozen.range(..=start).next_back()?;
        let offset = start - first;
        // While `bytes` lives, nothing else is at its address.
        if bytes.len() > length.saturating_sub(offset) { None } else { memory.slice(offset, bytes.len()) }
    }
}

impl Recycler for Inner {
    fn recycle(&self, memory: Owned) {
        let surplus = {
            let mut state = self.state.lock();
            state.frozen.remove(&memory.as_ptr().addr());
            if state.closed {
                state.allocated -= 1;
                Some(memory)
            } else {
                state.idle.push(memory);
                None
            }
        };
        drop(surplus);
        // The permit comes after the buffer.
        self.free.add_permits(1);
    }

    fn frozen(&self, bytes: &[u8], memory: WeakFrozen) {
        self.state.lock().frozen.insert(bytes.as_ptr().addr(), (bytes.len(), memory));
    }
}

impl Member for Inner {
    fn device_removed(&self) {
        self.free.close();
        self.close();
    }
}

impl Pool {
    pub(crate) fn new(adapter: &Adapter, config: PoolConfig) -> Result<Self, RegisterError> {
        check_length(adapter, config.length)?;
        let PoolConfig { length, maximum } = config;
        if maximum == 0 {
            return Err(RegisterError::Empty);
        }
        let maximum = maximum.min(Semaphore::MAX_PERMITS);
        let inner = adapter.registry().create(|_, registered| Inner {
            adapter: adapter.clone(),
            config: PoolConfig { length, maximum },
            free: Arc::new(Semaphore::new(maximum)),
            state: Mutex::default(),
            _registered: registered,
        });
        Ok(Self { handle: Arc::new(Handle { inner }) })
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.handle.inner
    }

    /// Returns the length of each buffer in bytes.
    pub fn buffer_length(&self) -> usize {
        self.inner().config.length
    }

    /// Returns the maximum number of buffers.
    pub fn maximum(&self) -> usize {
        self.inner().config.maximum
    }

    /// Returns the number of buffers that the pool has created. They are kept for reuse.
    pub fn allocated(&self) -> usize {
        self.inner().state.lock().allocated
    }

    /// Returns the number of buffers in use: held by the application, by a posted request, or as [`Bytes`].
    pub fn in_use(&self) -> usize {
        let state = self.inner().state.lock();
        state.allocated - state.idle.len()
    }

    /// Returns a buffer, and waits until one is available. Waiters are served in FIFO order.
    ///
    /// A new buffer is registered on another thread if the registration can take long.
    ///
    /// # Errors
    /// `DeviceRemoved`, also for calls that are waiting. If a buffer has to be created: `OutOfMemory`; with a
    /// device also `MemoryLockLimit` and `Os`.
    ///
    /// # Cancel safety
    /// Dropping the future gives up its place in the queue and has no other effect.
    pub async fn get(&self) -> Result<Buffer, RegisterError> {
        let inner = self.inner();
        let permit = inner.free.clone().acquire_owned().await.map_err(|_| RegisterError::DeviceRemoved)?;
        if let Some(memory) = inner.take_idle() {
            return Ok(inner.hand_out(memory, permit));
        }
        let maker = inner.clone();
        maybe_blocking(&inner.adapter, move || maker.make(permit)).await?
    }

    /// Returns a buffer if one is available without waiting, otherwise `None`.
    ///
    /// An idle buffer is not available if another call waits for it. A new buffer is created if the maximum permits.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn try_get(&self) -> Result<Option<Buffer>, RegisterError> {
        let inner = self.inner();
        let permit = match inner.free.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(TryAcquireError::NoPermits) => return Ok(None),
            Err(TryAcquireError::Closed) => return Err(RegisterError::DeviceRemoved),
        };
        match inner.take_idle() {
            Some(memory) => Ok(Some(inner.hand_out(memory, permit))),
            None => inner.make(permit).map(Some),
        }
    }

    /// Converts bytes into the source of a send or write.
    ///
    /// Bytes in a buffer of this pool are used without a copy (see [`Buffer::freeze`]). Bytes from elsewhere are
    /// copied into a buffer, for which this method waits like [`get`](Self::get).
    ///
    /// # Errors
    /// `TooLarge` if bytes from elsewhere are longer than a buffer; and those of [`get`](Self::get).
    ///
    /// # Cancel safety
    /// Dropping the future also drops the bytes. Otherwise like [`get`](Self::get).
    pub async fn lend(&self, bytes: Bytes) -> Result<PoolBytes, RegisterError> {
        consume_budget().await;
        match self.as_it_is(bytes) {
            Ok(lent) => Ok(lent),
            Err(bytes) => {
                self.check(&bytes)?;
                self.copied(&bytes, self.get().await?)
            }
        }
    }

    /// Converts bytes like [`lend`](Self::lend), without waiting. Returns `None` if the bytes must be copied and no
    /// buffer is available.
    ///
    /// # Errors
    /// Those of [`lend`](Self::lend).
    pub fn try_lend(&self, bytes: Bytes) -> Result<Option<PoolBytes>, RegisterError> {
        match self.as_it_is(bytes) {
            Ok(lent) => Ok(Some(lent)),
            Err(bytes) => {
                self.check(&bytes)?;
                self.try_get()?.map(|buffer| self.copied(&bytes, buffer)).transpose()
            }
        }
    }

    fn as_it_is(&self, bytes: Bytes) -> Result<PoolBytes, Bytes> {
        let inner = self.inner();
        match inner.find(&bytes) {
            Some(slice) => Ok(PoolBytes { bytes, slice, domain: inner.adapter.domain() }),
            None => Err(bytes),
        }
    }

    fn check(&self, bytes: &Bytes) -> Result<(), RegisterError> {
        let (length, maximum) = (bytes.len(), self.buffer_length());
        if length > maximum { Err(RegisterError::TooLarge { length, maximum }) } else { Ok(()) }
    }

    fn copied(&self, bytes: &Bytes, mut buffer: Buffer) -> Result<PoolBytes, RegisterError> {
        buffer[..bytes.len()].copy_from_slice(bytes);
        // A buffer of this pool, now frozen, is found.
        let length = bytes.len();
        self.as_it_is(buffer.freeze(length)).map_err(|_| RegisterError::OutOfMemory { length })
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("config", &self.inner().config)
            .field("allocated", &self.allocated())
            .field("in_use", &self.in_use())
            .finish()
    }
}

/// [`Bytes`] in the memory of a [`Pool`], as the source of sends and writes. Created by [`Pool::lend`].
///
/// Any number of requests can use the same bytes at once. A receive or a read into them fails with `AccessViolation`,
/// because the bytes are shared.
#[derive(Clone, Debug)]
pub struct PoolBytes {
    bytes: Bytes,
    slice: Slice,
    domain: u64,
}

impl PoolBytes {
    /// Returns the bytes, without a copy.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

impl From<PoolBytes> for Bytes {
    fn from(bytes: PoolBytes) -> Self {
        bytes.into_bytes()
    }
}

impl Deref for PoolBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for PoolBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl SgEntry for PoolBytes {
    type State = (Bytes, u64);

    fn allows(&self, domain: u64, access: Access) -> bool {
        self.domain == domain && access.is_empty()
    }

    fn length(&self) -> usize {
        self.bytes.len()
    }

    fn lend(self) -> Lent<Self::State> {
        Lent(self.slice, (self.bytes, self.domain))
    }

    fn reclaim(Lent(slice, (bytes, domain)): Lent<Self::State>) -> Self {
        Self { bytes, slice, domain }
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;
    use crate::backend::Provider;
    use crate::net::Host;
    use crate::soft::config::SoftConfig;

    // MR-10, AD-05: a buffer that comes back to the pool of a removed adapter is freed, and counts no more.
    #[tokio::test]
    async fn buffers_returned_after_removal_are_freed() {
        let provider = Provider::Soft(Host::Kernel, SoftConfig::default());
        let id = provider.resolve(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("an adapter");
        let adapter = provider.open(id).expect("opened");
        let pool = Pool::new(&adapter, PoolConfig::new(64, 3)).expect("a pool");
        let [first, second, idle] =
            [(); 3].map(|()| pool.try_get().expect("memory").expect("three are allowed"));
        drop(idle);
        assert_eq!((pool.allocated(), pool.in_use()), (3, 2));
        pool.inner().device_removed();
        assert_eq!((pool.allocated(), pool.in_use()), (2, 2), "the idle one is freed");
        drop(first);
        assert_eq!((pool.allocated(), pool.in_use()), (1, 1));
        drop(second);
        assert_eq!((pool.allocated(), pool.in_use()), (0, 0));
    }
}
