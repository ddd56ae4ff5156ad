//! The queue pair and its posting calls.

use std::fmt;
use std::sync::Arc;

use super::config::QueuePairConfig;
use crate::error::{OpenError, PostError, PostErrorKind};
use crate::flight::{self, Op, Parts, Payload, Ticket, WorkBuffer};
use crate::mr::RemoteRegion;
use crate::provider;
use crate::types::{Access, OpKind};

/// A queue pair (IND2QueuePair): a receive queue and an initiator queue.
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
#[derive(Clone)]
pub struct QueuePair {
    handle: Arc<Handle>,
}

struct Handle {
    provider: provider::QueuePair,
    domain: u64,
    config: QueuePairConfig,
    /// The most entries of a read that the adapter takes.
    read_entries: usize,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.provider.released();
    }
}

impl QueuePair {
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn new(adapter: &provider::Adapter, config: QueuePairConfig) -> Result<Self, OpenError> {
        let depths = (config.receive_depth, config.initiator_depth);
        let entries = (config.receive_entries, config.initiator_entries);
        let provider = adapter.queue_pair(depths, entries)?;
        let read_entries = adapter.capabilities().read_entries;
        Ok(Self { handle: Arc::new(Handle { provider, domain: adapter.domain(), config, read_entries }) })
    }

    pub(crate) fn provider(&self) -> &provider::QueuePair {
        &self.handle.provider
    }

    /// Posts a receive for one message, at any time, connected or not. Source: `IND2QueuePair::Receive`.
    ///
    /// Post receives before the connection is up: a message that finds none breaks the connection. One that is longer
    /// than its receive completes it with `BUFFER_OVERFLOW` and breaks the connection too.
    ///
    /// # Errors
    /// `QueueFull`; `TooManyEntries`; `AccessViolation` for memory of another adapter or without
    /// [`LOCAL_WRITE`](Access::LOCAL_WRITE); `DeviceRemoved`.
    pub fn receive<B: WorkBuffer>(&self, buffer: B) -> Result<Op<B>, PostError<B>> {
        let entries = self.handle.config.receive_entries;
        self.post(buffer, OpKind::Receive, entries, Access::LOCAL_WRITE, None, |ticket, payload| {
            self.handle.provider.receive(ticket, payload)
        })
    }

    /// Posts a send of one message. Source: `IND2QueuePair::Send`.
    ///
    /// Completes when the memory is no longer needed; on iWARP that is before the peer has it.
    ///
    /// # Errors
    /// `ConnectionInvalid` when not connected; `QueueFull`; `TooManyEntries`; `TooLong`; `AccessViolation` for memory
    /// of another adapter; `DeviceRemoved`.
    pub fn send<B: WorkBuffer>(&self, buffer: B) -> Result<Op<B>, PostError<B>> {
        self.initiate(buffer, OpKind::Send, Access::empty(), None)
    }

    /// Posts an RDMA Write of the buffer to the start of `remote`. Source: `IND2QueuePair::Write`.
    ///
    /// Completes when the memory is no longer needed; a violation that the peer finds later breaks the connection.
    ///
    /// # Errors
    /// Those of [`send`](Self::send), and `AccessViolation` when the buffer is longer than `remote`.
    pub fn write<B: WorkBuffer>(&self, buffer: B, remote: &RemoteRegion) -> Result<Op<B>, PostError<B>> {
        self.initiate(buffer, OpKind::Write, Access::empty(), Some(remote))
    }

    /// Posts an RDMA Read from the start of `remote` that fills the buffer. Source: `IND2QueuePair::Read`.
    ///
    /// At most as many reads as the outbound read limit are in flight; further ones wait, and what was posted behind
    /// them waits with them.
    ///
    /// # Errors
    /// Those of [`write`](Self::write); `AccessViolation` also for a region without
    /// [`LOCAL_WRITE`](Access::LOCAL_WRITE); `NoReads` when the outbound read limit is 0.
    pub fn read<B: WorkBuffer>(&self, buffer: B, remote: &RemoteRegion) -> Result<Op<B>, PostError<B>> {
        self.initiate(buffer, OpKind::Read, Access::LOCAL_WRITE, Some(remote))
    }

    /// Finishes everything outstanding in both queues with `CANCELED`. Source: `IND2QueuePair::Flush`.
    ///
    /// A queue pair that is not connected can be used as before. One that is connected loses its connection, as a
    /// verbs queue pair does that is moved to the error state: the peer may already be at work on what is flushed.
    pub fn flush(&self) {
        self.handle.provider.flush();
    }

    fn initiate<B: WorkBuffer>(
        &self,
        buffer: B,
        kind: OpKind,
        access: Access,
        remote: Option<&RemoteRegion>,
    ) -> Result<Op<B>, PostError<B>> {
        let target = remote.map_or((0, 0), |remote| (remote.key.0, remote.address));
        let mut entries = self.handle.config.initiator_entries;
        if kind == OpKind::Read {
            entries = entries.min(self.handle.read_entries);
        }
        self.post(buffer, kind, entries, access, remote, |ticket, payload| {
            self.handle.provider.initiate(ticket, kind, target, payload)
        })
    }

    fn post<B: WorkBuffer>(
        &self,
        buffer: B,
        kind: OpKind,
        entries: usize,
        access: Access,
        remote: Option<&RemoteRegion>,
        submit: impl FnOnce(Ticket, Payload) -> Result<(), (PostErrorKind, Payload)>,
    ) -> Result<Op<B>, PostError<B>> {
        if !buffer.allows(self.handle.domain, access) {
            return Err(PostError { kind: PostErrorKind::AccessViolation, buffer });
        }
        let Parts { payload, rest } = buffer.lend();
        let refuse =
            |kind, payload, rest| Err(PostError { kind, buffer: B::reclaim(Parts { payload, rest }) });
        if payload.len() > entries {
            return refuse(PostErrorKind::TooManyEntries, payload, rest);
        }
        let fits = |remote: &RemoteRegion| {
            u32::try_from(flight::length(&payload)).is_ok_and(|length| length <= remote.length)
        };
        if !remote.is_none_or(fits) {
            return refuse(PostErrorKind::AccessViolation, payload, rest);
        }
        let table = self.handle.provider.table();
        let ticket = table.open();
        match submit(ticket, payload) {
            Ok(()) => Ok(Op::new(table.clone(), ticket, kind, rest)),
            Err((kind, payload)) => {
                table.close(ticket);
                refuse(kind, payload, rest)
            }
        }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair").field("config", &self.handle.config).finish_non_exhaustive()
    }
}
