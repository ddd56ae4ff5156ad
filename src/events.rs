//! The events of an adapter, for the programs that ask for them.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;

use crate::sync::Mutex;

/// The number of events that a subscription keeps for a program that does not read them.
const CAPACITY: usize = 32;

/// An event of an adapter, or of its device. [`Adapter::events`](crate::Adapter::events) has them.
///
/// An event says that something has changed, and not how it is now: by the time that a program reads it, it may have changed again.
/// [`Adapter::ports`](crate::Adapter::ports) and [`Adapter::info`](crate::Adapter::info) have the present state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AdapterEvent {
    /// Packets can be sent and received by the port (`IBV_EVENT_PORT_ACTIVE`). On the soft provider the interface is switched on and
    /// has a carrier.
    PortUp {
        /// The number of the port; the first is 1.
        port: u8,
    },
    /// Packets can be neither sent nor received by the port (`IBV_EVENT_PORT_ERR`). Connections outlive it if it comes up in time.
    PortDown {
        /// The number of the port; the first is 1.
        port: u8,
    },
    /// The adapter has other IP addresses than before. [`AdapterInfo::addresses`](crate::AdapterInfo::addresses) has those that are
    /// no link-local addresses.
    AddressesChanged,
    /// The table of GIDs of the port has changed (`IBV_EVENT_GID_CHANGE`). On RoCE it follows the IP addresses.
    GidChanged {
        /// The number of the port; the first is 1.
        port: u8,
    },
    /// The table of P_Keys of the port has changed (`IBV_EVENT_PKEY_CHANGE`): the subnet manager has added or removed a partition.
    PkeyChanged {
        /// The number of the port; the first is 1.
        port: u8,
    },
    /// The port has another LID (`IBV_EVENT_LID_CHANGE`), so that connections by the old one are lost.
    LidChanged {
        /// The number of the port; the first is 1.
        port: u8,
    },
    /// The port has another subnet manager (`IBV_EVENT_SM_CHANGE`).
    SubnetManagerChanged {
        /// The number of the port; the first is 1.
        port: u8,
    },
    /// So many events were dropped here, because the program had not read those before them.
    Missed {
        /// Their number.
        count: u64,
    },
    /// The adapter was removed, as [`Adapter::is_removed`](crate::Adapter::is_removed) says. No event follows.
    Removed,
}

/// The events of one program that reads them.
pub(crate) struct Subscription {
    queue: Mutex<Queue>,
    waker: AtomicWaker,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<AdapterEvent>,
    /// The number of events that were dropped from the front.
    missed: u64,
    ended: bool,
}

impl Queue {
    fn push(&mut self, event: AdapterEvent) {
        if self.events.len() >= CAPACITY {
            self.events.pop_front();
            self.missed += 1;
        }
        self.events.push_back(event);
    }
}

impl Subscription {
    /// Takes the next event; `None` behind the last one. For one task at a time.
    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<AdapterEvent>> {
        // Before the look, so that what comes after it wakes the task.
        self.waker.register(cx.waker());
        let mut queue = self.queue.lock();
        if queue.missed > 0 {
            return Poll::Ready(Some(AdapterEvent::Missed { count: std::mem::take(&mut queue.missed) }));
        }
        match queue.events.pop_front() {
            None if !queue.ended => Poll::Pending,
            event => Poll::Ready(event),
        }
    }
}

/// The subscriptions of an adapter. They end with it.
#[derive(Default)]
pub(crate) struct Announcer(Mutex<State>);

#[derive(Default)]
struct State {
    subscriptions: Vec<Weak<Subscription>>,
    /// No event follows. The last one of all subscriptions, if there is one.
    ended: Option<Option<AdapterEvent>>,
}

/// Subscriptions that have got an event, of which their readers are to be notified.
#[must_use = "the readers wait until `notify`"]
pub(crate) struct Announced(Vec<Arc<Subscription>>);

impl Announced {
    /// Wakes the readers. The caller holds no lock.
    pub(crate) fn notify(self) {
        self.0.iter().for_each(|subscription| subscription.waker.wake());
    }
}

impl Announcer {
    /// Adds a subscription, which begins with the next event. After the removal of the adapter, it has this event alone.
    pub(crate) fn subscribe(&self) -> Arc<Subscription> {
        let mut state = self.0.lock();
        state.subscriptions.retain(|subscription| subscription.strong_count() > 0);
        let mut queue = Queue { ended: state.ended.is_some(), ..Queue::default() };
        queue.events.extend(state.ended.flatten());
        let subscription = Arc::new(Subscription { queue: Mutex::new(queue), waker: AtomicWaker::new() });
        if state.ended.is_none() {
            state.subscriptions.push(Arc::downgrade(&subscription));
        }
        subscription
    }

    /// Returns whether there is a subscription.
    #[cfg(feature = "verbs")]
    pub(crate) fn is_heard(&self) -> bool {
        self.0.lock().subscriptions.iter().any(|subscription| subscription.strong_count() > 0)
    }

    /// Adds an event to all subscriptions, and leaves their readers to the caller.
    pub(crate) fn add(&self, event: AdapterEvent) -> Announced {
        let state = self.0.lock();
        let all: Vec<_> = state.subscriptions.iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|subscription| subscription.queue.lock().push(event));
        Announced(all)
    }

    /// Announces an event. The caller holds no lock.
    #[cfg(feature = "soft")]
    pub(crate) fn announce(&self, event: AdapterEvent) {
        self.add(event).notify();
    }

    /// Ends all subscriptions behind the last event, if there is one. Further calls have no effect. The caller holds no lock.
    pub(crate) fn end(&self, last: Option<AdapterEvent>) {
        let mut state = self.0.lock();
        if state.ended.is_some() {
            return;
        }
        state.ended = Some(last);
        let all: Vec<_> = std::mem::take(&mut state.subscriptions).iter().filter_map(Weak::upgrade).collect();
        for subscription in &all {
            let mut queue = subscription.queue.lock();
            last.into_iter().for_each(|event| queue.push(event));
            queue.ended = true;
        }
        drop(state);
        Announced(all).notify();
    }
}

impl Drop for Announcer {
    /// Ends the subscriptions: the adapter is closed.
    fn drop(&mut self) {
        self.end(None);
    }
}
