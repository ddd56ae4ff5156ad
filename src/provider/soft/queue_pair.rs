//! A queue pair: its two queues, and the connection it belongs to.

use std::sync::{Arc, OnceLock, Weak};

use super::adapter::{AdapterCore, MAX_TRANSFER};
use super::cm::Cm;
use super::link::{Link, Outlets};
use super::queue::{ReceiveQueue, Receives};
use super::shared::Receive;
use crate::error::PostErrorKind;
use crate::flight::{self, Payload, Ticket, WakeList};
use crate::proto::qp::{Busy, QueuePairState};
use crate::provider::connector::ConnectorDriver;
use crate::provider::registry::{Member, Registered};
use crate::provider::work::{Refused, WorkRequest};
use crate::provider::{self, QueuePairParts};
use crate::status::Status;
use crate::sync::{Mutex, MutexGuard};

/// The queue pair, shared by its handle and its connection.
pub(crate) struct QueuePairCore {
    pub(crate) adapter: Arc<AdapterCore>,
    pub(crate) outlets: Outlets,
    pub(crate) receives: Receives,
    pub(crate) send_depth: usize,
    binding: Mutex<Binding>,
    link: OnceLock<Arc<Link>>,
    _registered: Registered,
}

struct Binding {
    state: QueuePairState,
    /// The connection it is being used for.
    cm: Weak<Cm>,
    /// The last handle of the user is gone.
    released: bool,
}

impl QueuePairCore {
    pub(crate) fn new(adapter: Arc<AdapterCore>, parts: QueuePairParts) -> Arc<Self> {
        // Entries and inline bytes are counted by the caller, and the completions have no processor of their own.
        let _ = (parts.receive_entries, parts.send_entries, parts.inline, parts.affinity);
        let receives = match parts.shared {
            Some(provider::SharedReceives::Soft(shared)) => Receives::Shared(shared),
            // Creating checked that all is of one adapter.
            _ => Receives::Own(Arc::new(ReceiveQueue::new(parts.receive_depth))),
        };
        let registry = adapter.registry().clone();
        registry.create(|_, registered| Self {
            outlets: Outlets { initiator: parts.initiator, receive: parts.receive },
            receives,
            send_depth: parts.send_depth,
            binding: Mutex::new(Binding {
                state: QueuePairState::Unconnected,
                cm: Weak::new(),
                released: false,
            }),
            link: OnceLock::new(),
            adapter,
            _registered: registered,
        })
    }

    fn binding(&self) -> MutexGuard<'_, Binding> {
        self.binding.lock()
    }

    pub(crate) fn is_free(&self) -> bool {
        self.binding().state == QueuePairState::Unconnected
    }

    /// A connection takes it.
    ///
    /// # Errors
    /// Another one has it, or had.
    pub(crate) fn associate(&self, cm: &Arc<Cm>) -> Result<(), Busy> {
        let mut binding = self.binding();
        binding.state.associate()?;
        binding.cm = Arc::downgrade(cm);
        Ok(())
    }

    /// The attempt came to nothing. What follows for receives, when nobody can use them any more, is for the caller to
    /// settle without its locks.
    pub(crate) fn dissociate(&self) -> WakeList {
        let released = {
            let mut binding = self.binding();
            binding.state.dissociate();
            if binding.state != QueuePairState::Unconnected {
                return WakeList::default();
            }
            binding.cm = Weak::new();
            binding.released
        };
        if self.adapter.is_removed() {
            self.die(Status::DEVICE_REMOVED)
        } else if released {
            self.die(Status::CANCELED)
        } else {
            WakeList::default()
        }
    }

    /// Nobody is left to post or to connect: what was posted finishes.
    fn die(&self, status: Status) -> WakeList {
        self.end();
        self.flush_receives(status, true)
    }

    /// From now on everything may be posted.
    pub(crate) fn establish(&self, link: Arc<Link>) {
        let _ = self.link.set(link);
        self.binding().state.establish();
    }

    pub(crate) fn end(&self) {
        self.binding().state.end();
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// Why not; the payload comes back.
    pub(crate) fn post_receive(&self, ticket: Ticket, payload: Payload) -> Result<(), Refused> {
        if self.adapter.is_removed() {
            return Err(Refused { kind: PostErrorKind::DeviceRemoved, payload });
        }
        self.receives
            .post(Receive { ticket, payload }, &self.outlets.receive)
            .map_err(|(kind, receive)| Refused { kind, payload: receive.payload })
    }

    /// Posts a request of the send queue.
    ///
    /// # Errors
    /// Why not; the payload comes back.
    pub(crate) fn post_send(&self, request: WorkRequest) -> Result<(), Refused> {
        if flight::length(&request.payload) > MAX_TRANSFER {
            return Err(Refused { kind: PostErrorKind::TooLong, payload: request.payload });
        }
        // The link is there from just before the queue pair counts as connected to the end of both.
        let state = self.binding().state;
        match (state.admits(request.operation.kind()), self.link.get()) {
            (Ok(()), Some(link)) => link.post(request),
            (Ok(()), None) => {
                Err(Refused { kind: PostErrorKind::ConnectionInvalid, payload: request.payload })
            }
            (Err(_), _) if self.adapter.is_removed() => {
                Err(Refused { kind: PostErrorKind::DeviceRemoved, payload: request.payload })
            }
            (Err(kind), _) => Err(Refused { kind, payload: request.payload }),
        }
    }

    /// Has what was deferred sent.
    pub(crate) fn ring(&self) {
        if let Some(link) = self.link.get() {
            link.kick();
        }
    }

    /// A completion queue of it has lost a result: nothing can be relied upon any more.
    pub(crate) fn overrun(&self) {
        let (state, cm) = {
            let binding = self.binding();
            (binding.state, binding.cm.upgrade())
        };
        match (state, cm) {
            (QueuePairState::Connected, Some(cm)) => cm.abandon("a completion queue overran"),
            (_, cm) => {
                if let Some(cm) = cm {
                    cm.queue_pair_removed();
                }
                self.die(Status::CANCELED).wake_all();
            }
        }
    }

    /// Finishes everything as CANCELED. A connection does not survive it: what is flushed cannot be told from what
    /// the peer has already begun.
    pub(crate) fn flush(&self) {
        let (state, cm) = {
            let binding = self.binding();
            (binding.state, binding.cm.upgrade())
        };
        match (state, cm) {
            (QueuePairState::Connected, Some(cm)) => cm.abandon("the queue pair was flushed"),
            _ => self.flush_receives(Status::CANCELED, false).wake_all(),
        }
    }

    fn flush_receives(&self, status: Status, dead: bool) -> WakeList {
        let mut wakes = WakeList::default();
        self.receives.flush(None, status, dead, &self.outlets.receive, &mut wakes);
        wakes
    }

    /// The last handle of the user is gone.
    pub(crate) fn released(&self) {
        let cm = self.binding().cm.upgrade();
        if let Some(cm) = cm {
            cm.queue_pair_removed();
        }
        // A connection flushes for itself, when nothing of the memory is in use any more.
        let free = {
            let mut binding = self.binding();
            binding.released = true;
            binding.state == QueuePairState::Unconnected
        };
        if free {
            self.die(Status::CANCELED).wake_all();
        }
    }
}

impl Member for QueuePairCore {
    fn device_removed(&self) {
        // The connection flushes for itself, see above.
        if self.is_free() {
            self.die(Status::DEVICE_REMOVED).wake_all();
        }
    }
}
