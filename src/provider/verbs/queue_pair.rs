//! A queue pair: its two queues, their completions, and the connection it belongs to.
//!
//! Every request is signalled, and finishes in the order of the posts, whatever the order of the completions: the next
//! one is always the front of [`Queue::outstanding`]. When a connection ends the device's queue pair is moved to the error state
//! and destroyed in the same breath: after that no memory is in use, whatever the device still had to say, and what is
//! outstanding finishes CANCELED. The user's queue pair gets a new one of the device when the old one was only an attempt.
//! Completions come by way of an inbox, see [`completions`](super::completions).

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use smallvec::SmallVec;
use tracing::debug;

use super::adapter::AdapterCore;
use super::cm::Cm;
use super::completions::Device;
use super::identifier::Identifier;
use crate::error::{OpenError, PostErrorKind, Reason};
use crate::flight::{self, Aftermath, Completed, Outlet, Payload, Ticket};
use crate::proto::qp::{Busy, QueuePairState};
use crate::provider::QueuePairParts;
use crate::provider::drive::Drive;
use crate::provider::members::{Member, Membership};
use crate::provider::work::{Target, Verb, Work};
use crate::status::Status;
use crate::sys::{
    Capacities, Operation, QpState, QueuePair, ReceiveRequest, Refused, RemoteMemory, ScatterEntry,
    SendFlags, SendRequest, WorkCompletion, async_event, wc_status,
};
use crate::types::ReadLimits;

/// How long the word that a connection is over may lag behind the requests that it flushed.
const GRACE: Duration = Duration::from_secs(1);

/// The entries of a request, most often one.
type Entries = SmallVec<[ScatterEntry; 4]>;

/// A request that the device has.
struct Outstanding {
    ticket: Ticket,
    payload: Payload,
    /// What the device has said of it, while something before it is not finished.
    said: Option<Said>,
}

/// The result of a request: the status of the completion as libibverbs numbers it, and the bytes received.
#[derive(Clone, Copy)]
struct Said {
    status: u32,
    bytes: u32,
}

struct Queue {
    outlet: Outlet,
    outstanding: VecDeque<Outstanding>,
    /// The sequence number of the request at the front.
    front: u32,
}

impl Queue {
    fn new(outlet: Outlet) -> Self {
        Self { outlet, outstanding: VecDeque::new(), front: 0 }
    }

    /// Begins to count anew.
    fn reset(&mut self) {
        self.outstanding.clear();
        self.front = 0;
    }

    fn next(&self) -> u32 {
        // The depth of a queue is far below 2^31.
        self.front.wrapping_add(self.outstanding.len() as u32) & RequestId::SEQUENCE
    }

    /// The device has finished this request. Drivers of iWARP finish a write before a read that was posted earlier.
    fn finished(&mut self, sequence: u32, said: Said) -> bool {
        let place = (sequence.wrapping_sub(self.front) & RequestId::SEQUENCE) as usize;
        self.outstanding.get_mut(place).is_some_and(|outstanding| outstanding.said.replace(said).is_none())
    }

    /// The oldest request, if it is finished (`QP-17`).
    fn pop(&mut self) -> Option<(Outstanding, Said)> {
        let said = self.outstanding.front()?.said?;
        let outstanding = self.outstanding.pop_front()?;
        self.front = self.front.wrapping_add(1);
        Some((outstanding, said))
    }
}

/// Names a request to the device: the key of the device's queue pair, the queue, and the place in it.
#[derive(Clone, Copy)]
pub(crate) struct RequestId {
    pub(crate) key: u32,
    receive: bool,
    sequence: u32,
}

impl RequestId {
    const RECEIVE: u32 = 1 << 31;
    const SEQUENCE: u32 = Self::RECEIVE - 1;
    const KEY: u32 = 32;

    fn pack(self) -> u64 {
        let queue = if self.receive { Self::RECEIVE } else { 0 };
        (u64::from(self.key) << Self::KEY) | u64::from(queue | self.sequence)
    }

    pub(crate) fn unpack(id: u64) -> Self {
        let place = id as u32;
        Self {
            key: (id >> Self::KEY) as u32,
            receive: place & Self::RECEIVE != 0,
            sequence: place & Self::SEQUENCE,
        }
    }
}

/// The queue pair, shared by its handle and its connection.
pub(crate) struct QueuePairCore {
    pub(crate) adapter: Arc<AdapterCore>,
    me: Weak<Self>,
    capacities: Capacities,
    inner: Mutex<Inner>,
    /// Completions that nobody has looked at yet: the ids of the requests, and what was said of them.
    inbox: Mutex<Inbox>,
    membership: OnceLock<Membership>,
}

type Inbox = SmallVec<[(u64, Said); 4]>;

struct Inner {
    state: QueuePairState,
    /// The connection it is being used for.
    cm: Weak<Cm>,
    /// The last handle of the user is gone.
    released: bool,
    /// The device's queue pair; `None` when it is over.
    device: Option<Arc<Device>>,
    /// It has left the state in which it was made, for an attempt.
    used: bool,
    /// It was given to a driver that connects it by itself, and may not have done so yet.
    lent: bool,
    /// Receives were posted and reads negotiated away.
    reads: u32,
    initiator: Queue,
    receives: Queue,
    /// Requests that failed, to be reported once the connection is known to be over, and whether they are receives.
    failed: Vec<(bool, Ticket, Completed)>,
    /// Why they did: the first of them, and whether somebody has been told.
    broken: bool,
}

impl Inner {
    fn queue(&mut self, receive: bool) -> &mut Queue {
        if receive { &mut self.receives } else { &mut self.initiator }
    }
}

/// What polling has found.
#[derive(Default)]
struct Found {
    after: Aftermath,
    received: bool,
    /// How the first request failed, and the key of the device's queue pair.
    broken: Option<(u32, u32)>,
}

impl QueuePairCore {
    /// # Errors
    /// `Os` when the device has no room.
    pub(crate) fn new(adapter: Arc<AdapterCore>, parts: QueuePairParts) -> Result<Arc<Self>, OpenError> {
        // Every one of them was checked against the device.
        let small = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let capacities = Capacities {
            receive: small(parts.receive_depth),
            send: small(parts.initiator_depth),
            receive_entries: small(parts.receive_entries),
            send_entries: small(parts.initiator_entries),
            inline: small(parts.inline),
        };
        let core = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            capacities,
            inner: Mutex::new(Inner {
                state: QueuePairState::Unconnected,
                cm: Weak::new(),
                released: false,
                device: None,
                used: false,
                lent: false,
                reads: 0,
                initiator: Queue::new(parts.initiator),
                receives: Queue::new(parts.receive),
                failed: Vec::new(),
                broken: false,
            }),
            inbox: Mutex::default(),
            membership: OnceLock::new(),
            adapter,
        });
        let begun = core.begin(&mut core.lock());
        begun.map_err(|source| match source.raw_os_error() {
            Some(libc::ENODEV) => OpenError::DeviceRemoved,
            _ => OpenError::Os { call: "ibv_create_qp", source },
        })?;
        let weak: Weak<Self> = Arc::downgrade(&core);
        let _ = core.membership.set(core.adapter.join(weak));
        // It may have gone between the caller's look and the joining.
        if core.adapter.is_removed() {
            core.device_removed();
        }
        Ok(core)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which of the device's queue pairs it uses.
    pub(crate) fn key(&self) -> Option<u32> {
        self.lock().device.as_ref().map(|device| device.key())
    }

    /// The device's number of it.
    pub(crate) fn number(&self) -> Option<u32> {
        self.lock().device.as_ref().map(|device| device.queue_pair.number())
    }

    /// A connector takes it.
    ///
    /// # Errors
    /// Another one has it, or had.
    pub(crate) fn associate(&self, cm: Weak<Cm>) -> Result<(), Busy> {
        let mut inner = self.lock();
        inner.state.associate()?;
        inner.cm = cm;
        Ok(())
    }

    /// The device's queue pair for a call that names it, and moves it in some drivers. It lives on until that call has
    /// returned. It is good for one attempt: InfiniBand's connection manager refuses a request for a number of which it
    /// still has an earlier one ("stale connection"), and it is not known when the peer hears that it was given up.
    pub(crate) fn lend(&self) -> Option<Arc<Device>> {
        let mut inner = self.lock();
        inner.used = true;
        inner.lent = self.adapter.is_iwarp();
        inner.device.clone()
    }

    /// Takes the device's queue pair from its first state to ready-to-send, by what the id has negotiated.
    ///
    /// # Errors
    /// Those of rdma_init_qp_attr(3) and ibv_modify_qp(3).
    pub(crate) fn ready(&self, id: &Identifier, limits: ReadLimits) -> io::Result<()> {
        let mut inner = self.lock();
        let device = inner.device.clone().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTCONN))?;
        inner.used = true;
        // Limits are capped to the device, which knows no more than 255.
        let reads = |limit: u32| u8::try_from(limit).unwrap_or(u8::MAX);
        let mut receive = id.qp_attributes(QpState::ReadyToReceive)?;
        receive.set_max_dest_rd_atomic(reads(limits.inbound));
        device.queue_pair.modify(&receive)?;
        let mut send = id.qp_attributes(QpState::ReadyToSend)?;
        send.set_max_rd_atomic(reads(limits.outbound));
        device.queue_pair.modify(&send)
    }

    /// From now on everything may be posted.
    pub(crate) fn establish(&self, limits: ReadLimits) {
        let mut inner = self.lock();
        inner.reads = limits.outbound;
        inner.lent = false;
        inner.state.establish();
    }

    /// The attempt came to nothing: it is free again, its receives as they were (`CM-21`, `LS-16`). What follows, when
    /// nobody can use them any more, is for the caller to settle without its locks.
    pub(crate) fn dissociate(&self) -> Aftermath {
        let mut inner = self.lock();
        if inner.state != QueuePairState::Associated {
            return Aftermath::default();
        }
        inner.state.dissociate();
        inner.cm = Weak::new();
        if self.adapter.is_removed() || inner.released {
            let status = self.status_of_the_rest();
            self.finish(inner, status)
        } else if inner.used {
            self.renew(inner, true)
        } else {
            Aftermath::default()
        }
    }

    /// The connection is over, everything outstanding finishes. An attempt keeps its receives, see
    /// [`dissociate`](Self::dissociate).
    pub(crate) fn end(&self) -> Aftermath {
        let inner = self.lock();
        match inner.state {
            QueuePairState::Connected | QueuePairState::Over => {
                let status = self.status_of_the_rest();
                self.finish(inner, status)
            }
            QueuePairState::Unconnected | QueuePairState::Associated => Aftermath::default(),
        }
    }

    /// How requests finish that the device has not finished.
    fn status_of_the_rest(&self) -> Status {
        if self.adapter.is_removed() { Status::DEVICE_REMOVED } else { Status::CANCELED }
    }

    /// Destroys the device's queue pair, and finishes everything with `status` that has not finished by itself.
    fn finish(&self, mut inner: MutexGuard<'_, Inner>, status: Status) -> Aftermath {
        inner.state.end();
        let mut found = Found::default();
        self.stop(&mut inner, &mut found);
        for (receive, ticket, mut completed) in std::mem::take(&mut inner.failed) {
            // Flushed for the reason that all of this is for.
            if completed.status == Status::CANCELED {
                completed.status = status;
            }
            inner.queue(receive).outlet.complete(ticket, completed, &mut found.after);
        }
        for receive in [false, true] {
            let Queue { outlet, outstanding, .. } = inner.queue(receive);
            for Outstanding { ticket, payload, .. } in outstanding.drain(..) {
                outlet.complete(ticket, Completed::failed(status, payload), &mut found.after);
            }
        }
        found.after
    }

    /// Ends the device's use of every request: what it had finished by then is found.
    fn stop(&self, inner: &mut Inner, found: &mut Found) {
        let Some(device) = inner.device.take() else { return };
        let lent = std::mem::take(&mut inner.lent);
        let idle = inner.initiator.outstanding.is_empty() && inner.receives.outstanding.is_empty();
        // Where there is nothing to flush, its destruction says as much.
        let stopped = if idle && !self.adapter.is_iwarp() { Ok(()) } else { device.queue_pair.to_error() };
        // A device that is gone says no; its queue pair can be destroyed all the same.
        if let Err(error) = &stopped {
            debug!(%error, "not moved to the error state");
        }
        // Some libraries throw away on destruction what was not polled by then, and some drivers flush only then.
        let key = device.key();
        device.collect();
        if lent && stopped.is_ok() {
            // A connect that nothing can take back may still have it. It uses no memory any more.
            self.adapter.runtime.spawn_blocking(move || drop(device));
        } else {
            drop(device);
        }
        self.read(inner, key, found);
    }

    /// Gives the user's queue pair a new one of the device. Its receives are posted again, or finish CANCELED.
    fn renew(&self, mut inner: MutexGuard<'_, Inner>, keep: bool) -> Aftermath {
        let mut found = Found::default();
        self.stop(&mut inner, &mut found);
        let mut kept = VecDeque::new();
        // What the end of the attempt has flushed was not used either.
        for (_, ticket, completed) in std::mem::take(&mut inner.failed) {
            kept.push_back(Outstanding { ticket, payload: completed.payload, said: None });
        }
        kept.extend(std::mem::take(&mut inner.receives.outstanding));
        inner.receives.reset();
        inner.initiator.reset();
        (inner.used, inner.broken) = (false, false);
        let again = self.begin(&mut inner);
        while keep
            && again.is_ok()
            && let Some(Outstanding { ticket, payload, .. }) = kept.pop_front()
        {
            if let Err((_, payload)) = self.post_receive(&mut inner, ticket, payload) {
                kept.push_front(Outstanding { ticket, payload, said: None });
                break;
            }
        }
        for Outstanding { ticket, payload, .. } in kept {
            let completed = Completed::failed(self.status_of_the_rest(), payload);
            inner.receives.outlet.complete(ticket, completed, &mut found.after);
        }
        if let Err(error) = again {
            debug!(%error, "no new queue pair");
            let status = self.status_of_the_rest();
            found.after.join(self.finish(inner, status));
        }
        found.after
    }

    /// Makes a new queue pair of the device.
    fn begin(&self, inner: &mut Inner) -> io::Result<()> {
        let gone = || io::Error::from_raw_os_error(libc::ENODEV);
        let (opened, me) = (self.adapter.opened().ok_or_else(gone)?, self.me.upgrade().ok_or_else(gone)?);
        let room = self.capacities.receive.saturating_add(self.capacities.send);
        let device = Device::new(&me, &opened, room, |completions| {
            let queue_pair = QueuePair::new(&opened.domain, completions, completions, None, self.capacities)?;
            queue_pair.modify(&opened.initial)?;
            Ok(queue_pair)
        })?;
        inner.device = Some(Arc::new(device));
        Ok(())
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// Why not; the payload comes back.
    pub(crate) fn receive(&self, ticket: Ticket, payload: Payload) -> Result<(), (PostErrorKind, Payload)> {
        let mut inner = self.lock();
        if self.adapter.is_removed() {
            return Err((PostErrorKind::DeviceRemoved, payload));
        }
        if inner.device.is_none() {
            // Too late: it comes back flushed (`DIS-10`).
            let mut after = Aftermath::default();
            inner.receives.outlet.complete(ticket, Completed::failed(Status::CANCELED, payload), &mut after);
            drop(inner);
            after.settle();
            return Ok(());
        }
        self.post_receive(&mut inner, ticket, payload)
    }

    fn post_receive(
        &self,
        inner: &mut Inner,
        ticket: Ticket,
        payload: Payload,
    ) -> Result<(), (PostErrorKind, Payload)> {
        let sequence = inner.receives.next();
        let full = inner.receives.outstanding.len() >= self.capacities.receive as usize;
        let entries = match (full, inner.device.as_ref(), entries(&payload, true)) {
            (true, _, _) => return Err((PostErrorKind::QueueFull, payload)),
            (_, Some(device), Some(entries)) => {
                let id = RequestId { key: device.key(), receive: true, sequence };
                let request = ReceiveRequest { id: id.pack(), entries: &entries };
                // SAFETY: the entries are parts of `payload`, registered allocations that are shared from now on and
                // stay in `outstanding` until the request has completed or `stop` has destroyed the queue pair.
                unsafe { device.queue_pair.post_receive(&[request]) }
            }
            (_, None, _) => return Err((PostErrorKind::ConnectionInvalid, payload)),
            (_, _, None) => return Err((PostErrorKind::AccessViolation, payload)),
        };
        match entries {
            Ok(()) => {
                inner.receives.outstanding.push_back(Outstanding { ticket, payload, said: None });
                Ok(())
            }
            Err(Refused { source, .. }) => Err((self.refused(&source), payload)),
        }
    }

    /// Posts a request of the initiator queue.
    ///
    /// # Errors
    /// Why not; the payload comes back.
    pub(crate) fn initiate(&self, work: Work) -> Result<(), (PostErrorKind, Payload)> {
        let Work { ticket, verb, payload, .. } = work;
        if flight::length(&payload) > self.adapter.max_transfer() {
            return Err((PostErrorKind::TooLong, payload));
        }
        let mut inner = self.lock();
        if self.adapter.is_removed() {
            return Err((PostErrorKind::DeviceRemoved, payload));
        }
        if let Err(kind) = inner.state.admits(verb.kind()) {
            return Err((kind, payload));
        }
        if inner.initiator.outstanding.len() >= self.capacities.send as usize {
            return Err((PostErrorKind::QueueFull, payload));
        }
        let place = |target: Target| RemoteMemory { address: target.address, key: target.key };
        let operation = match verb {
            Verb::Send { .. } => Operation::Send,
            Verb::Write { to, .. } => Operation::Write(place(to)),
            Verb::Read { .. } if inner.reads == 0 => return Err((PostErrorKind::NoReads, payload)),
            Verb::Read { from } => Operation::Read(place(from)),
            _ => return Err((PostErrorKind::NotSupported("this request"), payload)),
        };
        let Some(entries) = entries(&payload, matches!(verb, Verb::Read { .. })) else {
            return Err((PostErrorKind::AccessViolation, payload));
        };
        let Some(device) = inner.device.as_ref() else {
            return Err((PostErrorKind::ConnectionInvalid, payload));
        };
        let sequence = inner.initiator.next();
        let request = SendRequest {
            id: RequestId { key: device.key(), receive: false, sequence }.pack(),
            operation,
            entries: &entries,
            flags: SendFlags::SIGNALED,
        };
        // SAFETY: as in `post_receive`.
        match unsafe { device.queue_pair.post_send(&[request]) } {
            Ok(()) => {
                inner.initiator.outstanding.push_back(Outstanding { ticket, payload, said: None });
                Ok(())
            }
            Err(Refused { source, .. }) => Err((self.refused(&source), payload)),
        }
    }

    /// Has the device look at what was deferred: nothing is.
    pub(crate) fn ring(&self) {}

    /// A completion queue of it has lost a result: nothing can be relied upon any more.
    pub(crate) fn overrun(&self) {
        let inner = self.lock();
        let (state, cm) = (inner.state, inner.cm.upgrade());
        match (state, cm) {
            (QueuePairState::Connected, Some(cm)) => {
                drop(inner);
                cm.broken(Status::CANCELED, Reason::Local("a completion queue overran"));
            }
            (_, cm) => {
                drop(inner);
                if let Some(cm) = cm {
                    cm.queue_pair_removed();
                }
                self.finish(self.lock(), Status::CANCELED).settle();
            }
        }
    }

    /// What a post that the driver refuses means.
    fn refused(&self, error: &io::Error) -> PostErrorKind {
        match error.raw_os_error() {
            _ if self.adapter.is_removed() => PostErrorKind::DeviceRemoved,
            Some(libc::ENOMEM) => PostErrorKind::QueueFull,
            // The driver has moved it, and the event that says so is on its way.
            Some(libc::ENOTCONN) => PostErrorKind::ConnectionInvalid,
            code => PostErrorKind::Device(code.unwrap_or(0)),
        }
    }

    /// Puts a completion into the inbox.
    pub(crate) fn deliver(&self, completion: &WorkCompletion) {
        let said = Said { status: completion.status, bytes: completion.byte_len };
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).push((completion.wr_id, said));
    }

    /// Looks into the inbox: wakes those whose requests have finished.
    pub(crate) fn progress(&self) {
        let mut found = Found::default();
        {
            let mut inner = self.lock();
            let Some(key) = inner.device.as_ref().map(|device| device.key()) else { return };
            self.read(&mut inner, key, &mut found);
        }
        found.after.settle();
        if found.received {
            self.data_arrived();
        }
        if let Some((status, key)) = found.broken {
            self.broke(status, key);
        }
    }

    /// Takes what is in the inbox of the device's queue pair with this key. Older ones have nothing to say any more.
    fn read(&self, inner: &mut Inner, key: u32, found: &mut Found) {
        let inbox = std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        for (id, said) in inbox {
            let id = RequestId::unpack(id);
            if id.key == key {
                self.completed(inner, id, said, found);
            }
        }
    }

    fn completed(&self, inner: &mut Inner, id: RequestId, said: Said, found: &mut Found) {
        let RequestId { key, receive, sequence } = id;
        if !inner.queue(receive).finished(sequence, said) {
            debug!(sequence, receive, "a completion of nothing");
            return;
        }
        while let Some((Outstanding { ticket, payload, .. }, said)) = inner.queue(receive).pop() {
            let status = status_of(said.status, receive);
            if status == Status::SUCCESS {
                let bytes = if receive { said.bytes as usize } else { flight::length(&payload) };
                // Nobody has to be told once the connection is established.
                found.received |= receive && inner.state == QueuePairState::Associated;
                let mut completed = Completed::done(bytes, payload);
                // It may have been; nothing says.
                completed.extra.solicited = receive;
                inner.queue(receive).outlet.complete(ticket, completed, &mut found.after);
                continue;
            }
            // First the connection is over, then its requests fail (`X3`).
            inner.failed.push((receive, ticket, Completed::failed(status, payload)));
            if !std::mem::replace(&mut inner.broken, true) {
                found.broken = Some((said.status, key));
            }
        }
    }

    /// A request has failed. Its connection is told; the others wait for what that makes of it.
    fn broke(&self, completion: u32, key: u32) {
        let inner = self.lock();
        // Its attempt may be over by now, and the queue pair as good as new.
        if inner.device.as_ref().is_none_or(|device| device.key() != key) {
            return;
        }
        let Some(cm) = inner.cm.upgrade() else {
            return self.finish(inner, Status::CANCELED).settle();
        };
        drop(inner);
        debug!(connection = %cm.id, status = wc_status::name(completion), "a request failed");
        let status = status_of(completion, false);
        let reason = Reason::Completion(completion);
        if completion != wc_status::WR_FLUSH_ERR {
            cm.broken_by(key, status, reason);
            return;
        }
        // Flushed, for a reason that an event will tell. A connection that nobody has any more is not kept for that.
        let (runtime, cm) = (self.adapter.runtime.clone(), Arc::downgrade(&cm));
        runtime.spawn(async move {
            tokio::time::sleep(GRACE).await;
            if let Some(cm) = cm.upgrade() {
                cm.broken_by(key, status, reason);
            }
        });
    }

    /// The device says that something is wrong with it.
    pub(crate) fn device_error(&self, event: u32) {
        let cm = self.lock().cm.upgrade();
        debug!(event = async_event::name(event), "queue pair error");
        if let Some(cm) = cm {
            cm.broken(Status::INTERNAL_ERROR, Reason::Local("the device reports an error of the queue pair"));
        }
    }

    /// A message has come, perhaps before the word that establishes the connection.
    pub(crate) fn data_arrived(&self) {
        let (state, cm) = {
            let inner = self.lock();
            (inner.state, inner.cm.upgrade())
        };
        if let (QueuePairState::Associated, Some(cm)) = (state, cm) {
            cm.data_arrived();
        }
    }

    /// Finishes everything as CANCELED. A connection does not survive it.
    pub(crate) fn flush(&self) {
        let inner = self.lock();
        let (state, cm) = (inner.state, inner.cm.upgrade());
        match (state, cm) {
            (QueuePairState::Unconnected, _) => self.renew(inner, false).settle(),
            (QueuePairState::Connected, Some(cm)) => {
                drop(inner);
                cm.broken(Status::CANCELED, Reason::Local("the queue pair was flushed"));
            }
            _ => {}
        }
    }

    /// The last handle of the user is gone.
    pub(crate) fn released(&self) {
        let cm = self.lock().cm.upgrade();
        if let Some(cm) = cm {
            cm.queue_pair_removed();
        }
        let mut inner = self.lock();
        inner.released = true;
        if inner.state == QueuePairState::Unconnected {
            self.finish(inner, Status::CANCELED).settle();
        }
    }
}

impl Member for QueuePairCore {
    fn device_removed(&self) {
        let inner = self.lock();
        // A connection or an attempt does it for itself.
        if inner.state == QueuePairState::Unconnected {
            self.finish(inner, Status::DEVICE_REMOVED).settle();
        }
    }
}

/// The payload as the device sees it, which `writes` it or reads it; `None` when a part of it is not registered, or must
/// not be written. Never without an entry, which `siw`
/// does not take: of no bytes neither address nor key matter.
fn entries(payload: &Payload, writes: bool) -> Option<Entries> {
    let entries: Option<Entries> = payload
        .iter()
        .filter(|slice| slice.len() > 0)
        .map(|slice| {
            let (address, key) = if writes { slice.for_device_to_write() } else { slice.for_device() }?;
            Some(ScatterEntry { address, length: u32::try_from(slice.len()).ok()?, key })
        })
        .collect();
    let nothing = ScatterEntry { address: 0, length: 0, key: 0 };
    entries.map(|entries| if entries.is_empty() { Entries::from_slice(&[nothing]) } else { entries })
}

/// The status of a completion (SEMANTICS: completion statuses of ND and verbs).
fn status_of(completion: u32, receive: bool) -> Status {
    match completion {
        wc_status::SUCCESS => Status::SUCCESS,
        wc_status::WR_FLUSH_ERR => Status::CANCELED,
        // `rxe` says of a receive that is too short that it is malformed, and ours are not otherwise.
        wc_status::LOC_LEN_ERR | wc_status::LOC_QP_OP_ERR if receive => Status::BUFFER_OVERFLOW,
        wc_status::LOC_LEN_ERR => Status::DATA_OVERRUN,
        wc_status::LOC_PROT_ERR
        | wc_status::LOC_ACCESS_ERR
        | wc_status::REM_ACCESS_ERR
        | wc_status::MW_BIND_ERR => Status::ACCESS_VIOLATION,
        wc_status::LOC_QP_OP_ERR | wc_status::LOC_EEC_OP_ERR => Status::INVALID_DEVICE_REQUEST,
        wc_status::RETRY_EXC_ERR | wc_status::RNR_RETRY_EXC_ERR | wc_status::RESP_TIMEOUT_ERR => {
            Status::IO_TIMEOUT
        }
        wc_status::REM_OP_ERR
        | wc_status::REM_INV_REQ_ERR
        | wc_status::REM_ABORT_ERR
        | wc_status::BAD_RESP_ERR => Status::REMOTE_ERROR,
        _ => Status::INTERNAL_ERROR,
    }
}
