//! The passive side of connection setup: Listen, GetConnectionRequest, Accept, Reject.

use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::task::Waker;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::task::AbortHandle;
use tracing::{debug, info};

use super::adapter::{Adapter, MAX_PRIVATE_DATA, READ_LIMITS};
use super::connector::Connector;
use super::half_open::{Incoming, TURN, accept_loop};
use super::handshake::PendingHandshake;
use super::queue_pair::QueuePair;
use crate::error::{AcceptError, BindError, Reason, StateError};
use crate::net::options::SocketError;
use crate::net::{self, BoundListener};
use crate::proto::connector::{Input, Op};
use crate::proto::limits;
use crate::proto::listener::End;
use crate::proto::mpa::Rtr;
use crate::provider::accept_queue::{AcceptQueue, Requests};
use crate::provider::connector::{ConnectorDriver, OnDrop};
use crate::provider::errors::{accept_error, listen_error};
use crate::provider::params::AcceptParams;
use crate::provider::registry::{Member, Registered};
use crate::status::Status;
use crate::sync::{Mutex, MutexGuard};
use crate::types::{ReadLimits, Role};

/// A listener, shared by its handle and its tasks.
pub(crate) struct Listener {
    pub(crate) adapter: Arc<Adapter>,
    inner: Mutex<Inner>,
    _registered: Registered,
}

/// The state of a listener, under its lock.
pub(crate) struct Inner {
    requests: Requests<Incoming>,
    bound: Option<BoundListener>,
    local: Option<SocketAddr>,
    /// The listening sockets, each with the task that accepts from it.
    tasks: Vec<(Arc<net::Listener>, AbortHandle)>,
}

impl Listener {
    pub(crate) fn new(adapter: Arc<Adapter>) -> Arc<Self> {
        let inner = Inner { requests: Requests::new(), bound: None, local: None, tasks: Vec::new() };
        let registry = adapter.registry().clone();
        registry.create(|_, registered| Self { adapter, inner: Mutex::new(inner), _registered: registered })
    }

    /// Binds the listener to `address` (IND2Listener::Bind).
    ///
    /// # Errors
    /// See [`BindError`].
    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), BindError> {
        let mut inner = self.inner.lock();
        let local = inner.local;
        inner.requests.machine.may_bind().map_err(|status| listen_error(status, local))?;
        let address = net::canonical(address);
        // The address of a listener at every address is not checked against a list: the kernel decides.
        let addresses = match self.adapter.is_everywhere() {
            true => vec![address.ip()],
            false if self.adapter.owns(address.ip()) => self.adapter.expand(address.ip()),
            false => return Err(BindError::InvalidAddress(address.ip())),
        };
        let options = self.adapter.socket_options(None, false);
        let bound = self
            .adapter
            .host
            .bind_listener(&addresses, address.port(), self.adapter.ports(), &options)
            .map_err(|error| match error {
                SocketError::Bind(error) => error,
                SocketError::NotSupported(what) => {
                    BindError::Os { call: "socket", source: io::Error::other(what).into() }
                }
            })?;
        inner.local = Some(SocketAddr::new(address.ip(), bound.port()));
        inner.bound = Some(bound);
        inner.requests.machine.bound().map_err(|status| listen_error(status, local))
    }

    /// Starts to accept TCP connections (IND2Listener::Listen).
    ///
    /// # Errors
    /// See [`BindError`].
    pub(crate) fn listen(self: &Arc<Self>, backlog: usize) -> Result<(), BindError> {
        let mut inner = self.inner.lock();
        let local = inner.local;
        inner.requests.machine.may_listen().map_err(|status| listen_error(status, local))?;
        // The sockets belong to the adapter's runtime, whichever thread calls.
        let _home = self.adapter.runtime.enter();
        // The kernel's queue holds peers whose request has not been read yet; the queue of this listener is
        // the backlog.
        let listeners =
            inner.bound.as_mut().ok_or(BindError::InvalidState("the listener is closed"))?.listen()?;
        inner.requests.machine.listen(backlog).map_err(|status| listen_error(status, local))?;
        let local = inner.local;
        drop(inner);
        info!(local = local.map(tracing::field::display), backlog, "listening");
        // Without the lock: a runtime that has shut down drops the task within `spawn`, which closes the
        // listener.
        let tasks: Vec<_> = listeners
            .into_iter()
            .map(|listener| {
                let listener = Arc::new(listener);
                let close = CloseOnDrop(Arc::downgrade(self));
                let task = accept_loop(listener.clone(), self.adapter.clone(), move |incoming| {
                    let Some(core) = close.0.upgrade() else { return ControlFlow::Break(()) };
                    core.arrived(incoming);
                    ControlFlow::Continue(())
                });
                (listener, self.adapter.runtime.spawn(self.adapter.host.clone().run(task)).abort_handle())
            })
            .collect();
        let mut inner = self.inner.lock();
        if inner.bound.is_some() {
            inner.tasks = tasks;
        } else {
            // The listener was closed between the two locks.
            drop(inner);
            stop(tasks);
        }
        Ok(())
    }

    /// Returns the bound address (IND2Listener::GetLocalAddress).
    ///
    /// # Errors
    /// `InvalidDeviceState` if the listener does not listen.
    pub(crate) fn local_addr(&self) -> Result<SocketAddr, StateError> {
        let inner = self.inner.lock();
        inner.requests.machine.local_address_ready()?;
        inner.local.ok_or(StateError::InvalidDeviceState)
    }

    /// Queues a connection request that has arrived in full.
    fn arrived(&self, incoming: Incoming) {
        debug!(peer = %incoming.peer, "request arrived");
        self.enqueue(incoming, |queued| queued.handshake.check().is_err());
    }

    /// Ends the tasks that accept and every waiting future. Returns the requests that were not fetched.
    fn end(&self, end: End) -> Vec<Incoming> {
        let mut inner = self.inner.lock();
        let (wakers, requests) = inner.requests.end(end);
        let bound = inner.bound.take();
        let tasks = std::mem::take(&mut inner.tasks);
        drop(inner);
        stop(tasks);
        drop(bound);
        wakers.into_iter().for_each(Waker::wake);
        requests
    }

    /// Closes the listener, after its last handle was dropped: waiting futures end with CANCELED, and queued
    /// requests are refused by closing their sockets (`LS-07`).
    pub(crate) fn close(&self) {
        drop(self.end(End::Closed));
    }
}

impl AsMut<Requests<Incoming>> for Inner {
    fn as_mut(&mut self) -> &mut Requests<Incoming> {
        &mut self.requests
    }
}

impl AcceptQueue for Listener {
    type Inner = Inner;
    type Request = Incoming;
    type Connector = Arc<Connector>;

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    fn connector_for(&self, incoming: Incoming) -> Arc<Connector> {
        Connector::with_request(self.adapter.serving(incoming.local), incoming)
    }

    /// Returns how many requests may be queued when this one arrives. A request beyond the budget of
    /// descriptors may wait with a few others, because a task that waits for requests may need a turn to take
    /// them.
    fn room(&self, incoming: &Incoming) -> usize {
        if incoming.descriptor.fits() { usize::MAX } else { TURN }
    }

    fn refuse(&self, incoming: Incoming) {
        // The peer reads the end of the stream.
        debug!(peer = %incoming.peer, "request rejected: the backlog is full or the listener is closed");
    }
}

impl Member for Listener {
    fn device_removed(&self) {
        drop(self.end(End::Removed));
    }
}

/// Stops accepting. The runtime drops the tasks later; the port is free at once (`LS-08`).
fn stop(tasks: Vec<(Arc<net::Listener>, AbortHandle)>) {
    for (listener, task) in tasks {
        listener.close();
        task.abort();
    }
}

/// Closes the listener when its accepting task is dropped. Only the end of the runtime drops the task before
/// the listener is closed, and then no future may be left waiting.
struct CloseOnDrop(Weak<Listener>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(core) = self.0.upgrade() {
            core.close();
        }
    }
}

impl Connector {
    /// Returns the read limits of an accept that asks for `asked`, given the peer's offer.
    pub(crate) fn agreed(&self, asked: ReadLimits, offered: ReadLimits) -> ReadLimits {
        asked.capped_to(offered)
    }

    /// Accepts the request (IND2Connector::Accept). Resolves when the peer has completed the connection.
    ///
    /// # Errors
    /// See [`AcceptError`]; [`is_pending`](Self::is_pending) returns whether the request is still usable.
    pub(crate) async fn accept(
        self: &Arc<Self>,
        queue_pair: &Arc<QueuePair>,
        params: &AcceptParams,
    ) -> Result<(), AcceptError> {
        if queue_pair.adapter.domain != self.adapter.domain {
            return Err(AcceptError::ForeignQueuePair);
        }
        if let Some(option) = params.options.first() {
            return Err(AcceptError::NotSupported(option));
        }
        let (length, maximum) = (params.private_data.len(), MAX_PRIVATE_DATA);
        self.look();
        let offer = self.read_limits().unwrap_or(ReadLimits::NONE);
        let taken = length <= maximum && {
            let mut inner = self.lock();
            inner.queue_pair().is_none() && self.take_queue_pair(&mut inner, queue_pair)
        };
        let busy = length <= maximum && !taken;
        let input = Input::Accept { data: length, max_data: maximum, busy };
        if let Err(status) = self.handle(input) {
            if taken {
                self.give_back();
            }
            return Err(match status {
                Status::INVALID_BUFFER_SIZE => AcceptError::InvalidBufferSize { length, maximum },
                status => accept_error(status, self.take_reason(), self.peer()),
            });
        }
        let guard = OnDrop::new(&**self, Input::Release);
        let agreed = limits::accept(params.read_limits, READ_LIMITS, offer.swapped());
        self.reply(queue_pair, agreed, &params.private_data).await;
        let status = self.answer(Op::Accept).await;
        guard.disarm();
        match status {
            Status::SUCCESS => Ok(()),
            status => Err(accept_error(status, self.take_reason(), self.peer())),
        }
    }

    /// Checks whether the peer has closed its socket while its request or its reply was waiting, and reports
    /// that to the machine.
    pub(super) fn look(&self) {
        if let Err(reason) = self.check_peer() {
            let _ = self.handle_with(Input::PeerGaveUp, |inner| inner.progress.reason = Some(reason));
        }
    }

    /// Sends the reply and passes the socket to its driver.
    async fn reply(self: &Arc<Self>, queue_pair: &Arc<QueuePair>, agreed: ReadLimits, private_data: &[u8]) {
        let Some(PendingHandshake::Passive { mut stream, mut responder, .. }) = self.lock().handshake.take()
        else {
            return;
        };
        let (reply, negotiated) = responder.accept(agreed, private_data);
        let sent = tokio::select! {
            biased;
            () = std::future::poll_fn(|cx| self.poll_answered(Op::Accept, cx)) => return,
            sent = stream.write_all(&reply) => sent,
        };
        if let Err(error) = sent {
            let (input, reason) = match error.raw_os_error() {
                Some(code) => (Input::PeerGaveUp, Reason::Errno(code)),
                // Tokio's error for a socket whose runtime has shut down has no error number; all others have
                // one.
                None => (Input::Failed(Status::CANCELED), Reason::RUNTIME_ENDED),
            };
            let _ = self.handle_with(input, |inner| inner.progress.reason = Some(reason));
            return;
        }
        let started = self.start_connection(
            stream,
            queue_pair,
            Role::Passive,
            &negotiated,
            &Bytes::new(),
            negotiated.rtr,
        );
        let Some((_, driver)) = started else { return };
        if negotiated.rtr == Rtr::None {
            // The peer sends no RTR message, so its request for the connection is all that can be awaited
            // (`NEG-07`).
            self.establish(Input::PeerCompleted);
        }
        self.spawn(driver);
    }

    /// Returns whether Accept or Reject may still be called.
    pub(crate) fn is_pending(&self) -> bool {
        self.read_limits().is_ok() && self.lock().handshake.is_some()
    }

    /// Rejects the request (IND2Connector::Reject by the passive side).
    ///
    /// # Errors
    /// See [`AcceptError`].
    pub(crate) fn reject_request(&self, data: &[u8]) -> Result<(), AcceptError> {
        let (length, maximum) = (data.len(), MAX_PRIVATE_DATA);
        self.look();
        let input = Input::Reject { data: length, max_data: maximum };
        let outcome = self.handle_with(input, |inner| {
            if let Some(handshake) = inner.handshake.as_mut().filter(|_| length <= maximum) {
                handshake.set_reject_data(Bytes::copy_from_slice(data));
            }
        });
        outcome.map_err(|status| match status {
            Status::INVALID_BUFFER_SIZE => AcceptError::InvalidBufferSize { length, maximum },
            status => accept_error(status, self.take_reason(), self.peer()),
        })
    }
}
