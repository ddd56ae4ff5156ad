//! An opened adapter: what it is, and all that is made from it.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use tokio::runtime::Handle;

use super::completion_queue::CompletionQueue;
use super::connection::{Connector, Listener};
use super::memory::{Registration, Window};
use super::queue_pair::{QueuePair, QueuePairParts, SharedReceives};
use crate::error::{OpenError, RegisterError};
use crate::inflight::CompletionSink;
use crate::memory::{Owned, Shared};
use crate::provider::info::AdapterInfo;
use crate::provider::registry::Registry;
#[cfg(feature = "soft")]
use crate::provider::soft;
#[cfg(feature = "verbs")]
use crate::provider::verbs;
use crate::types::Access;

provider_handle! {
    /// An opened adapter. Objects that are made from it keep it open.
    enum Adapter {
        Soft(adapter::Adapter),
        Verbs(adapter::Adapter),
    }

    /// The protection domain: unique in the process, one per open.
    fn domain(&self) -> u64;

    /// Its properties, limits and abilities, which do not change while it is open, but for the addresses: these are those that
    /// it had when it was opened.
    fn info(&self) -> &Arc<AdapterInfo>;

    /// Its properties, limits and abilities, with the addresses that it has now.
    fn current_info(&self) -> AdapterInfo;

    /// Returns whether it was removed.
    fn is_removed(&self) -> bool;

    /// The objects that end with the adapter.
    fn registry(&self) -> &Arc<Registry>;

    /// Memory that work requests can use, and no peer.
    ///
    /// # Errors
    /// See [`RegisterError`].
    fn allocate(&self, length: usize) -> Result<Owned, RegisterError>;

    /// The runtime that has threads for registering and deregistering memory; `None` when it can be done right here.
    fn blocking(&self) -> Option<&Handle>;
}

/// An adapter that stays open only as long as there are other handles and objects.
pub(crate) enum WeakAdapter {
    #[cfg(feature = "soft")]
    Soft(Weak<soft::adapter::Adapter>),
    #[cfg(feature = "verbs")]
    Verbs(Weak<verbs::adapter::Adapter>),
}

impl WeakAdapter {
    /// Returns the adapter if it is open.
    pub(crate) fn upgrade(&self) -> Option<Adapter> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(adapter) => adapter.upgrade().map(Adapter::Soft),
            #[cfg(feature = "verbs")]
            Self::Verbs(adapter) => adapter.upgrade().map(Adapter::Verbs),
        }
    }

    /// Returns whether the adapter is open.
    pub(crate) fn is_open(&self) -> bool {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(adapter) => adapter.strong_count() > 0,
            #[cfg(feature = "verbs")]
            Self::Verbs(adapter) => adapter.strong_count() > 0,
        }
    }
}

impl Adapter {
    /// A handle that does not keep the adapter open.
    pub(crate) fn downgrade(&self) -> WeakAdapter {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(adapter) => WeakAdapter::Soft(Arc::downgrade(adapter)),
            #[cfg(feature = "verbs")]
            Self::Verbs(adapter) => WeakAdapter::Verbs(Arc::downgrade(adapter)),
        }
    }

    /// Returns whether the adapter has this local address, without a question to the system. A device may have lost it to
    /// another device, of which nothing is announced, so it has to be asked.
    pub(crate) fn has_listed(&self, ip: IpAddr) -> bool {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(adapter) => adapter.has_listed(ip),
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => {
                let _ = ip;
                false
            }
        }
    }

    /// Returns whether the number of the adapter means the same adapter to the calling thread, which may be in another network
    /// namespace.
    pub(crate) fn is_of_this_thread(&self) -> bool {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(adapter) => adapter.is_of_this_thread(),
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => true,
        }
    }

    /// A queue pair.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn queue_pair(&self, parts: QueuePairParts) -> Result<QueuePair, OpenError> {
        Ok(match self {
            #[cfg(feature = "soft")]
            Self::Soft(adapter) => QueuePair::Soft(soft::queue_pair::QueuePair::new(adapter.clone(), parts)),
            #[cfg(feature = "verbs")]
            Self::Verbs(adapter) => {
                QueuePair::Verbs(verbs::queue_pair::QueuePair::new(adapter.context().clone(), parts)?)
            }
        })
    }

    /// A completion queue of the program, of this depth, for the processor. `polled` says that the program polls it all the time.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn completion_queue(
        &self,
        depth: usize,
        processor: Option<usize>,
        polled: bool,
    ) -> Result<CompletionQueue, OpenError> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(_) => {
                let _ = (depth, processor, polled);
                Ok(CompletionQueue::Soft(Some(Arc::default())))
            }
            #[cfg(feature = "verbs")]
            Self::Verbs(adapter) => {
                Ok(CompletionQueue::Verbs(adapter.completion_queue(depth, processor, polled)?))
            }
        }
    }

    /// A completion queue that others complete in, too: for requests that complete through futures.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn shared_completions(&self) -> Result<CompletionQueue, OpenError> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(_) => Ok(CompletionQueue::Soft(None)),
            #[cfg(feature = "verbs")]
            Self::Verbs(adapter) => Ok(CompletionQueue::Verbs(adapter.shared_completions()?)),
        }
    }

    /// A receive queue for several queue pairs, with room for so many receives of so many entries each. Receives still
    /// posted when the queue is dropped complete through `sink`.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn shared_receives(
        &self,
        depth: usize,
        entries: usize,
        sink: CompletionSink,
    ) -> Result<SharedReceives, OpenError> {
        Ok(match self {
            #[cfg(feature = "soft")]
            Self::Soft(adapter) => {
                SharedReceives::Soft(soft::shared::SharedReceives::new(adapter, depth, entries, sink)?)
            }
            #[cfg(feature = "verbs")]
            Self::Verbs(adapter) => {
                SharedReceives::Verbs(verbs::shared::SharedReceives::new(adapter, depth, entries, sink)?)
            }
        })
    }

    /// A connector that is not bound.
    pub(crate) fn connector(&self) -> Connector {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(adapter) => Connector::Soft(soft::connector::Connector::new(adapter.clone())),
            #[cfg(feature = "verbs")]
            Self::Verbs(adapter) => {
                Connector::Verbs(verbs::connector::Connector::new(adapter.context().clone()))
            }
        }
    }

    /// A listener that is not bound.
    pub(crate) fn listener(&self) -> Listener {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(adapter) => Listener::Soft(soft::accept::Listener::new(adapter.clone())),
            #[cfg(feature = "verbs")]
            Self::Verbs(adapter) => Listener::Verbs(verbs::listen::Listener::new(adapter.context().clone())),
        }
    }

    /// A memory window that is not bound.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub(crate) fn window(&self) -> Result<Window, RegisterError> {
        Ok(match self {
            #[cfg(feature = "soft")]
            Self::Soft(adapter) => Window::Soft(soft::window::Window::new(adapter)?),
            #[cfg(feature = "verbs")]
            Self::Verbs(adapter) => Window::Verbs(verbs::window::Window::new(adapter)?),
        })
    }

    /// Puts memory under a key. Returns a handle to the memory, too.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub(crate) fn register(
        &self,
        memory: Owned,
        access: Access,
    ) -> Result<(Registration, Shared), RegisterError> {
        Ok(match self {
            #[cfg(feature = "soft")]
            Self::Soft(adapter) => {
                let (registration, memory) = adapter.register(memory, access)?;
                (Registration::Soft(registration), memory)
            }
            #[cfg(feature = "verbs")]
            Self::Verbs(adapter) => {
                let registration = adapter.register(memory, access)?;
                let memory = registration.memory().clone();
                (Registration::Verbs(Arc::new(registration)), memory)
            }
        })
    }

    /// Puts this memory of a registration that was ended under a new key.
    ///
    /// # Errors
    /// `Busy` when it was not; see [`RegisterError`].
    pub(crate) fn register_again(
        &self,
        old: &Registration,
        memory: &Shared,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        match (self, old) {
            #[cfg(feature = "soft")]
            (Self::Soft(adapter), Registration::Soft(old)) => {
                if old.is_valid() {
                    return Err(RegisterError::Busy);
                }
                Ok(Registration::Soft(adapter.keys.register(memory.clone(), access)?))
            }
            #[cfg(feature = "verbs")]
            (Self::Verbs(adapter), Registration::Verbs(old)) => {
                // The registration has kept it.
                let _ = memory;
                Ok(Registration::Verbs(Arc::new(adapter.register_again(old, access)?)))
            }
            // A registration is kept together with its adapter.
            #[cfg(all(feature = "soft", feature = "verbs"))]
            _ => Err(RegisterError::Busy),
        }
    }

    /// Puts memory of another device under a key: `offset`, `length` and the address of its first byte. Returns a handle to the
    /// memory, too.
    ///
    /// # Errors
    /// `NotSupported`; see [`RegisterError`].
    pub(crate) fn register_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        part: (u64, usize, u64),
        access: Access,
    ) -> Result<(Registration, Shared), RegisterError> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(_) => {
                let _ = (dmabuf, part, access);
                Err(RegisterError::NotSupported("memory of another device with the soft provider"))
            }
            #[cfg(feature = "verbs")]
            Self::Verbs(adapter) => {
                let registration = adapter.register_dmabuf(dmabuf, part, access)?;
                let memory = registration.memory().clone();
                Ok((Registration::Verbs(Arc::new(registration)), memory))
            }
        }
    }

    /// Takes the key back.
    ///
    /// # Errors
    /// `Busy` while something is bound to it; see [`RegisterError`].
    pub(crate) fn deregister(&self, registration: &Registration) -> Result<(), RegisterError> {
        match (self, registration) {
            #[cfg(feature = "soft")]
            (Self::Soft(adapter), Registration::Soft(registration)) => adapter.keys.deregister(registration),
            #[cfg(feature = "verbs")]
            (_, Registration::Verbs(registration)) => registration.deregister(),
            // A registration is kept together with its adapter.
            #[cfg(all(feature = "soft", feature = "verbs"))]
            (Self::Verbs(_), Registration::Soft(_)) => Ok(()),
        }
    }

    /// The user has dropped the last handle. A device has the memory until no request uses it either, and the memory
    /// sees to that by itself: requests that name memory that was taken away would fail.
    pub(crate) fn release(&self, registration: &Registration) {
        match (self, registration) {
            #[cfg(feature = "soft")]
            (Self::Soft(adapter), Registration::Soft(registration)) => adapter.keys.release(registration),
            #[cfg(feature = "verbs")]
            _ => {}
        }
    }
}
