//! The queue pair: its making, its receives, its end.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use super::completion_queue::CompletionQueue;
use super::config::QueuePairConfig;
use crate::error::{OpenError, PostError, PostErrorKind};
use crate::flight::{
    self, CompletionSink, Joined, LentList, Op, Payload, RequestMeta, Table, Ticket, WorkBuffer,
};
use crate::mr::RemoteRegion;
use crate::provider::info::AdapterInfo;
use crate::provider::work::Refused;
use crate::provider::{self, QueuePairParts};
use crate::status::Status;
use crate::types::{Access, OpKind};

/// A queue pair (IND2QueuePair): a receive queue and a send queue.
///
/// A work request is posted by the call and completed by the future. The call returns an error when nothing was
/// submitted, and gives the buffer back; the future yields the completion and the buffer. Calls take effect in the
/// order in which they are made, and the requests of one queue complete in that order.
///
/// Handles are counted. Dropping the last one removes the queue pair: its connection is disconnected, and everything
/// outstanding finishes `CANCELED`.
///
/// # Examples
/// ```
/// # async fn example(queue_pair: &tokio_rdma::QueuePair, buffer: tokio_rdma::Buffer) -> std::io::Result<()> {
/// let (outcome, buffer) = queue_pair.send(buffer)?.await;
/// println!("{} bytes sent", outcome?.bytes);
/// # drop(buffer);
/// # Ok(())
/// # }
/// ```
pub struct QueuePair {
    pub(super) handle: Arc<Handle>,
    /// Requests wait for the doorbell.
    pub(super) defer: bool,
}

pub(super) struct Handle {
    pub(super) provider: provider::QueuePair,
    pub(super) table: Arc<Table>,
    pub(super) domain: u64,
    pub(super) config: QueuePairConfig,
    pub(super) info: Arc<AdapterInfo>,
    /// The most bytes of an inline request.
    pub(super) inline: usize,
    /// Its places with its completion queues.
    joined: OnceLock<Vec<Joined>>,
}

impl flight::OverrunListener for Handle {
    fn overrun(&self) {
        self.provider.overrun();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.provider.released();
    }
}

impl Clone for QueuePair {
    fn clone(&self) -> Self {
        // Also of a batch: a clone may outlive it, and rings for itself.
        Self { handle: self.handle.clone(), defer: false }
    }
}

impl QueuePair {
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn new(adapter: &provider::Adapter, config: QueuePairConfig) -> Result<Self, OpenError> {
        let info = adapter.info().clone();
        let table = Arc::<Table>::default();
        let outlet = |queue: &Option<CompletionQueue>, table: &Arc<Table>| match queue {
            Some(queue) => CompletionSink::to_ring(table.clone(), queue.results().clone(), config.context),
            None => CompletionSink::to_futures(table.clone()),
        };
        let receive = match &config.shared {
            Some(shared) => {
                outlet(&config.receive_completions, shared.table()).counted(shared.count().clone())
            }
            None => outlet(&config.receive_completions, &table),
        };
        let queues = [&config.send_completions, &config.receive_completions];
        let affinity = queues.into_iter().flatten().find_map(CompletionQueue::affinity);
        let inline = config.inline_bytes(info.max_inline);
        let provider = adapter.queue_pair(QueuePairParts {
            receive_depth: config.receive_depth,
            send_depth: config.send_depth,
            receive_entries: config.receive_entries,
            send_entries: config.send_entries,
            inline,
            receive,
            initiator: outlet(&config.send_completions, &table),
            shared: config.shared.as_ref().map(|shared| shared.provider().clone()),
            affinity,
        })?;
        let domain = adapter.domain();
        let joined = OnceLock::new();
        let handle = Arc::new(Handle { provider, table, domain, config, info, inline, joined });
        let listener: Weak<dyn flight::OverrunListener> = Arc::<Handle>::downgrade(&handle);
        let queues = [&handle.config.send_completions, &handle.config.receive_completions];
        let places = queues.into_iter().flatten().map(|queue| queue.results().join(listener.clone()));
        let _ = handle.joined.set(places.collect());
        // One that overran before it knew of this queue pair does not tell it.
        let queues = [&handle.config.send_completions, &handle.config.receive_completions];
        if queues.into_iter().flatten().any(|queue| queue.results().closed() == Some(Status::BUFFER_OVERFLOW))
        {
            handle.provider.overrun();
        }
        Ok(Self { handle, defer: false })
    }

    pub(crate) fn provider(&self) -> &provider::QueuePair {
        &self.handle.provider
    }

    /// How many requests are open, orphans included.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn open_requests(&self) -> usize {
        self.handle.table.len()
    }

    /// Posts a receive for one message, at any time, connected or not. Source: `IND2QueuePair::Receive`.
    ///
    /// Post receives before the connection is up: a message that finds none breaks the connection. One that is longer
    /// than its receive completes it with `BUFFER_OVERFLOW` and breaks the connection too.
    ///
    /// # Errors
    /// `QueueFull`; `TooManyEntries`; `AccessViolation` for memory of another adapter or without
    /// [`LOCAL_WRITE`](Access::LOCAL_WRITE); `NotSupported` where receives come from a shared queue; `DeviceRemoved`.
    pub fn receive<B: WorkBuffer>(&self, buffer: B) -> Result<Op<B>, PostError<B>> {
        self.receive_with(buffer, 0)
    }

    /// The same with a number that the result carries in a completion queue that is polled.
    ///
    /// # Errors
    /// Those of [`receive`](Self::receive).
    pub fn receive_with<B: WorkBuffer>(&self, buffer: B, context: u64) -> Result<Op<B>, PostError<B>> {
        if self.handle.config.shared.is_some() {
            let kind =
                PostErrorKind::NotSupported("a receive posted to a queue pair with a shared receive queue");
            return Err(PostError { kind, buffer });
        }
        let entries = self.handle.config.receive_entries;
        let label = RequestMeta { kind: OpKind::Receive, context };
        self.post(buffer, label, entries, Access::LOCAL_WRITE, None, |ticket, payload| {
            self.handle.provider.post_receive(ticket, payload)
        })
    }

    /// Finishes everything outstanding in both queues with `CANCELED`. Source: `IND2QueuePair::Flush`.
    ///
    /// A queue pair that is not connected can be used as before. One that is connected loses its connection, as a
    /// verbs queue pair does that is moved to the error state: the peer may already be at work on what is flushed.
    /// Receives of a shared queue stay there.
    pub fn flush(&self) {
        self.handle.provider.flush();
    }

    pub(super) fn post<B: WorkBuffer>(
        &self,
        buffer: B,
        label: RequestMeta,
        entries: usize,
        access: Access,
        remote: Option<&RemoteRegion>,
        submit: impl FnOnce(Ticket, Payload) -> Result<(), Refused>,
    ) -> Result<Op<B>, PostError<B>> {
        if !buffer.allows(self.handle.domain, access) {
            return Err(PostError { kind: PostErrorKind::AccessViolation, buffer });
        }
        let LentList { payload, state } = buffer.lend();
        let refuse =
            |kind, payload, state| Err(PostError { kind, buffer: B::reclaim(LentList { payload, state }) });
        if payload.len() > entries {
            return refuse(PostErrorKind::TooManyEntries, payload, state);
        }
        let fits = |remote: &RemoteRegion| {
            u32::try_from(flight::length(&payload)).is_ok_and(|length| length <= remote.length)
        };
        if !remote.is_none_or(fits) {
            return refuse(PostErrorKind::AccessViolation, payload, state);
        }
        let ticket = self.handle.table.open(label);
        match submit(ticket, payload) {
            Ok(()) => Ok(Op::new(self.handle.table.clone(), ticket, label.kind, state)),
            Err(Refused { kind, payload }) => {
                self.handle.table.close(ticket);
                refuse(kind, payload, state)
            }
        }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair").field("config", &self.handle.config).finish_non_exhaustive()
    }
}
