//! The slots in which completions meet the futures that wait for them.

#[cfg(feature = "inspect")]
use std::collections::HashSet;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use super::{Payload, WakeList};
use crate::error::WcError;
use crate::inspect::{Flow, Posted};
#[cfg(feature = "inspect")]
use crate::inspect::{LISTED, RequestReport, WorkQueueReport};
use crate::status::Status;
use crate::sync::Mutex;
use crate::types::{OpKind, RemoteKey};

/// The number of slots that stay allocated when none is in use.
const KEEP: usize = 32;

/// Names the slot of one work request, until its completion has been collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ticket(usize);

#[cfg(feature = "soft")]
impl Ticket {
    /// Names the request of a lane that has this slot, in place of a slot of a [`Table`].
    pub(crate) fn of_slot(slot: u32) -> Self {
        Self(slot as usize)
    }

    /// Returns the slot of the request of a lane.
    pub(crate) fn slot(self) -> u32 {
        self.0 as u32
    }
}

/// The result of a work request, with its payload, as the provider returns it.
#[derive(Debug)]
pub(crate) struct Completed {
    pub(crate) status: Status,
    /// Bytes received, sent, written or read; 0 when it failed.
    pub(crate) bytes: u32,
    pub(crate) payload: Payload,
    pub(crate) extra: CompletionInfo,
}

impl Completed {
    /// Creates the result of a request that failed with `status`.
    pub(crate) fn failed(status: Status, payload: Payload) -> Self {
        Self { status, bytes: 0, payload, extra: CompletionInfo::default() }
    }

    /// Creates the result of a request that succeeded. No provider transfers more than 4 GiB at once.
    pub(crate) fn done(bytes: usize, payload: Payload) -> Self {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Self { status: Status::SUCCESS, bytes, payload, extra: CompletionInfo::default() }
    }

    /// Returns whether the result is not to be reported: failures always are.
    pub(crate) fn is_silent(&self) -> bool {
        self.extra.silent && self.status == Status::SUCCESS
    }
}

/// The properties that only some completions have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompletionInfo {
    /// The sender of the message asked for a solicited event.
    pub(crate) solicited: bool,
    /// Its success is not to be reported.
    pub(crate) silent: bool,
    /// What has come with it.
    pub(crate) note: Note,
    /// The context of the queue pair, which the sink knows.
    pub(crate) queue_pair: u64,
}

/// What comes with a completion: at most one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Note {
    #[default]
    Nothing,
    /// Immediate data of the message.
    Immediate(u32),
    /// The key of the window that the message has invalidated.
    Invalidated(u32),
    /// The report of the device on a request that has failed there.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "only devices report"))]
    Report(WcError),
}

impl Note {
    pub(crate) fn immediate(self) -> Option<u32> {
        if let Self::Immediate(data) = self { Some(data) } else { None }
    }

    pub(crate) fn invalidated(self) -> Option<RemoteKey> {
        if let Self::Invalidated(key) = self { Some(RemoteKey(key)) } else { None }
    }

    pub(crate) fn report(self) -> Option<WcError> {
        if let Self::Report(error) = self { Some(error) } else { None }
    }
}

/// The properties of a work request that its completion reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestMeta {
    pub(crate) kind: OpKind,
    /// A number of the user's choice.
    pub(crate) context: u64,
}

struct Slot {
    label: RequestMeta,
    /// For snapshots.
    #[cfg_attr(not(feature = "inspect"), expect(dead_code, reason = "only snapshots read it"))]
    posted: Posted,
    state: State,
}

enum State {
    /// The provider has the payload; the future may be waiting.
    Pending(Option<Waker>),
    /// The provider has the payload, and the future was dropped.
    Orphaned,
    /// The provider is done; the future has not looked yet.
    Done(Completed),
}

/// The work requests of a queue pair that are in flight.
///
/// The lock is held for a few instructions at a time, never across a wake or a drop of foreign data.
#[derive(Default)]
pub(crate) struct Table {
    slots: Mutex<Slab<Slot>>,
    /// The number of requests that have completed well, for snapshots: receives, and all others.
    completed: Flow,
}

impl Table {
    /// Opens a slot for a request of this length that is about to be posted.
    pub(crate) fn open(&self, label: RequestMeta, length: impl FnOnce() -> usize) -> Ticket {
        let slot = Slot { label, posted: Posted::now(length), state: State::Pending(None) };
        Ticket(self.slots.lock().insert(slot))
    }

    /// Counts a request that has completed well without a slot.
    pub(crate) fn count_direct(&self) {
        self.completed.sent(1);
    }

    /// Adds its requests to a report: the receives, or all others. `done` have completed, and wait for a poll.
    #[cfg(feature = "inspect")]
    pub(crate) fn inspect(&self, receives: bool, done: &HashSet<Ticket>, report: &mut WorkQueueReport) {
        let slots = self.slots.lock();
        let wanted = slots.iter().filter(|(_, slot)| (slot.label.kind == OpKind::Receive) == receives);
        let (mut requests, mut uncollected) = (Vec::new(), 0);
        for (place, slot) in wanted {
            match slot.state {
                State::Pending(_) | State::Orphaned if done.contains(&Ticket(place)) => uncollected += 1,
                State::Pending(_) | State::Orphaned => requests.push((slot.label.kind, slot.posted)),
                State::Done(_) => uncollected += 1,
            }
        }
        drop(slots);
        report.outstanding += requests.len();
        report.uncollected += uncollected;
        let (sent, received) = self.completed.totals();
        report.completed = if receives { received } else { sent };
        requests.sort_unstable_by_key(|(_, posted)| posted.at);
        report.oldest.extend(requests.into_iter().take(LISTED).map(|(kind, posted)| RequestReport {
            kind: format!("{kind:?}"),
            bytes: posted.length,
            age: posted.at.age(),
        }));
    }

    /// Closes the unused slot of a post that failed inline.
    pub(crate) fn close(&self, ticket: Ticket) {
        let slot = self.slots.lock().try_remove(ticket.0);
        drop(slot);
    }

    /// Completes a request that the provider is done with. The rest, waking the future or freeing the payload
    /// of an abandoned one, runs foreign code: the caller drops its locks first, see [`WakeList`].
    pub(crate) fn complete(
        &self,
        ticket: Ticket,
        completed: Completed,
        wakes: &mut WakeList,
    ) -> Option<RequestMeta> {
        self.complete_here(ticket, completed, wakes)
    }

    /// Completes a request like [`complete`](Self::complete), in the function that calls it: the completion is too large to be
    /// passed from one to the next.
    #[inline(always)]
    pub(super) fn complete_here(
        &self,
        ticket: Ticket,
        completed: Completed,
        wakes: &mut WakeList,
    ) -> Option<RequestMeta> {
        let mut slots = self.slots.lock();
        let Some(slot) = slots.get_mut(ticket.0) else {
            wakes.free(completed);
            return None;
        };
        let label = slot.label;
        match (completed.status == Status::SUCCESS, label.kind) {
            (true, OpKind::Receive) => self.completed.received(1),
            (true, _) => self.completed.sent(1),
            (false, _) => {}
        }
        match &mut slot.state {
            State::Pending(waker) => {
                if let Some(waker) = waker.take() {
                    wakes.extend([waker]);
                }
                // Without the waker the state before has nothing to drop.
                std::mem::forget(std::mem::replace(&mut slot.state, State::Done(completed)));
            }
            State::Orphaned => {
                slots.remove(ticket.0);
                trim(&mut slots);
                wakes.free(completed);
            }
            // A second completion of one request would be a bug of the provider; the first one stands.
            State::Done(_) => wakes.free(completed),
        }
        Some(label)
    }

    /// Polls for the completion, which is returned once: afterwards the ticket is void.
    #[cfg(test)]
    pub(crate) fn poll(&self, ticket: Ticket, cx: &mut Context<'_>) -> Poll<Option<Completed>> {
        let mut completed = None;
        self.poll_into(ticket, cx, &mut completed).map(|()| completed)
    }

    /// Polls for the completion, which is stored in `into`, once: afterwards the ticket is void. It is too large to be passed from one
    /// function to the next.
    #[inline]
    pub(super) fn poll_into(
        &self,
        ticket: Ticket,
        cx: &mut Context<'_>,
        into: &mut Option<Completed>,
    ) -> Poll<()> {
        let mut slots = self.slots.lock();
        let replaced = match slots.get_mut(ticket.0) {
            Some(Slot { state: State::Pending(waker), .. }) => {
                if waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                    return Poll::Pending;
                }
                waker.replace(cx.waker().clone())
            }
            _ => {
                if let Some(Slot { state: State::Done(completed), .. }) = slots.try_remove(ticket.0) {
                    *into = Some(completed);
                }
                trim(&mut slots);
                return Poll::Ready(());
            }
        };
        drop(slots);
        drop(replaced);
        Poll::Pending
    }

    /// Takes the completion, if the provider is done with the request. Afterwards the ticket is void.
    pub(crate) fn take(&self, ticket: Ticket) -> Option<Completed> {
        let mut slots = self.slots.lock();
        let Some(Slot { state: State::Done(_), .. }) = slots.get(ticket.0) else { return None };
        let slot = slots.try_remove(ticket.0);
        trim(&mut slots);
        // A waker that is left from an earlier poll was taken when the request completed.
        match slot {
            Some(Slot { state: State::Done(completed), .. }) => Some(completed),
            _ => None,
        }
    }

    /// Abandons a request whose future was dropped. Its completion is dropped now, or when the provider is
    /// done with it.
    pub(crate) fn abandon(&self, ticket: Ticket) {
        let mut slots = self.slots.lock();
        let old = match slots.get_mut(ticket.0) {
            Some(Slot { state: state @ State::Pending(_), .. }) => {
                Some(std::mem::replace(state, State::Orphaned))
            }
            Some(Slot { state: State::Done(_), .. }) => {
                let removed = slots.try_remove(ticket.0).map(|slot| slot.state);
                trim(&mut slots);
                removed
            }
            Some(Slot { state: State::Orphaned, .. }) | None => None,
        };
        drop(slots);
        drop(old);
    }

    /// Returns the number of open requests, orphans included.
    #[cfg(all(test, tokio_rdma_model))]
    pub(crate) fn len(&self) -> usize {
        self.slots.lock().len()
    }
}

/// Frees the slots that many requests at once have allocated, if none is in use.
fn trim(slots: &mut Slab<Slot>) {
    if slots.is_empty() && slots.capacity() > KEEP {
        *slots = Slab::new();
    }
}

#[cfg(all(test, not(tokio_rdma_model)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::memory::Owned;

    const SEND: RequestMeta = RequestMeta { kind: OpKind::Send, context: 7 };

    fn completed() -> Completed {
        Completed::done(8, Payload::from_iter([Owned::zeroed(8).expect("memory").share().whole()]))
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    // A completion wakes its task once, and the ticket is void after it was collected (CAN-07).
    #[test]
    fn a_completion_wakes_once_and_is_collected_once() {
        let (table, count) = (Table::default(), Arc::new(Count::default()));
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        let ticket = table.open(SEND, || 0);
        assert!(table.poll(ticket, &mut cx).is_pending());
        let mut wakes = WakeList::default();
        assert_eq!(table.complete(ticket, completed(), &mut wakes), Some(SEND));
        wakes.wake_all();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert!(matches!(table.poll(ticket, &mut cx), Poll::Ready(Some(Completed { bytes: 8, .. }))));
        assert!(table.slots.lock().is_empty());
    }

    #[test]
    fn a_completion_is_taken_without_a_task() {
        let table = Table::default();
        let ticket = table.open(SEND, || 0);
        assert!(table.take(ticket).is_none(), "the provider has the payload");
        let mut wakes = WakeList::default();
        table.complete(ticket, completed(), &mut wakes);
        assert!(matches!(table.take(ticket), Some(Completed { bytes: 8, .. })));
        assert!(table.take(ticket).is_none() && table.slots.lock().is_empty());
    }

    // The slot of a future that was dropped stays until the provider is done with the memory (CAN-09).
    #[test]
    fn abandoned_slot_stays_until_provider_completes() {
        let table = Table::default();
        let ticket = table.open(SEND, || 0);
        table.abandon(ticket);
        assert_eq!(table.slots.lock().len(), 1, "the provider still has the payload");
        let mut wakes = WakeList::default();
        table.complete(ticket, completed(), &mut wakes);
        assert_eq!(wakes.frees(), 1);
        assert!(table.slots.lock().is_empty());
    }

    // A post that failed leaves no slot (CAN-08).
    #[test]
    fn a_post_that_failed_leaves_nothing() {
        let table = Table::default();
        let ticket = table.open(SEND, || 0);
        table.close(ticket);
        assert!(table.slots.lock().is_empty());
        let mut wakes = WakeList::default();
        assert_eq!(table.complete(ticket, completed(), &mut wakes), None, "nobody is waiting");
        assert_eq!(wakes.frees(), 1);
    }
}
