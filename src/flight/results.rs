//! Completions that wait to be polled: what a completion queue is, whoever the provider.
//!
//! A request whose queue pair has a completion queue of the user's completes into [`Results`]. There its completion stays
//! until it is polled; only then does it reach the slot of its future. Whoever would rather sleep asks to be notified: of
//! any result, of those that the peer solicited, or of failures (IND2CompletionQueue::Notify).

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use slab::Slab;
use smallvec::SmallVec;

use super::{Completed, LowWater, RequestMeta, Table, Ticket, WakeList};
use crate::status::Status;
use crate::sync::{Mutex, WaitKey, WaitSet, Waiter};

/// As many results are polled without an allocation: whoever sleeps in between finds a few.
const AT_ONCE: usize = 4;

/// What a notification is asked for. Each kind is met by those behind it, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum NotifyKind {
    /// Any result (`ND_CQ_NOTIFY_ANY`).
    Any,
    /// A message that was sent with a solicited event, or a failure (`ND_CQ_NOTIFY_SOLICITED`).
    Solicited,
    /// A failure (`ND_CQ_NOTIFY_ERRORS`).
    Errors,
}

/// A result, polled.
pub(crate) struct Polled {
    pub(crate) label: Option<RequestMeta>,
    /// The number of its queue pair.
    pub(crate) owner: u64,
    pub(crate) status: Status,
    pub(crate) bytes: usize,
    pub(crate) extra: super::CompletionInfo,
}

/// Something that cannot go on when results are lost.
pub(crate) trait Owner: Send + Sync {
    /// The completion queue is full, and a result has been lost to it.
    fn overrun(&self);
}

struct Entry {
    owner: u64,
    table: Arc<Table>,
    ticket: Ticket,
    completed: Completed,
}

/// What somebody has been told.
#[derive(Clone, Copy)]
enum Told {
    /// There are results.
    News(NotifyKind),
    /// The queue has ended.
    End,
}

struct Inner {
    entries: VecDeque<Entry>,
    depth: usize,
    /// The best that has come since somebody was told.
    news: Option<NotifyKind>,
    waiting: WaitSet<Told, NotifyKind>,
    owners: Slab<Weak<dyn Owner>>,
    /// It has ended, by this.
    dead: Option<Status>,
}

impl Inner {
    /// Tells everybody who waits, if the news is good enough for one of them: `ANY dominates`.
    fn tell(&mut self, wakes: &mut WakeList) {
        let told = match (self.dead, self.news, self.waiting.interests().min()) {
            (Some(_), _, _) => Told::End,
            (None, Some(news), Some(least)) if news >= *least => Told::News(news),
            _ => return,
        };
        self.news = None;
        self.waiting.notify_all(told, wakes);
    }
}

/// The results of a completion queue that have not been polled.
pub(crate) struct Results(Mutex<Inner>);

impl Results {
    pub(crate) fn new(depth: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Inner {
            entries: VecDeque::new(),
            depth,
            news: None,
            waiting: WaitSet::default(),
            owners: Slab::new(),
            dead: None,
        })))
    }

    /// Ends `owner` when results are lost, until what this returns is dropped.
    pub(crate) fn join(self: &Arc<Self>, owner: Weak<dyn Owner>) -> Joined {
        let mut inner = self.0.lock();
        Joined { results: self.clone(), place: inner.owners.insert(owner) }
    }

    fn push(&self, entry: Entry, wakes: &mut WakeList) {
        let mut inner = self.0.lock();
        if inner.dead.is_none() && inner.entries.len() < inner.depth {
            let news = match (entry.completed.status, entry.completed.extra.solicited) {
                (Status::SUCCESS, false) => NotifyKind::Any,
                (Status::SUCCESS, true) => NotifyKind::Solicited,
                _ => NotifyKind::Errors,
            };
            inner.entries.push_back(entry);
            inner.news = inner.news.max(Some(news));
            inner.tell(wakes);
            return;
        }
        // The result is lost to the queue, not to the future of its request.
        let first = inner.dead.is_none();
        inner.dead.get_or_insert(Status::BUFFER_OVERFLOW);
        inner.tell(wakes);
        let owners: Vec<_> = inner.owners.iter().map(|(_, owner)| owner.clone()).collect();
        drop(inner);
        let Entry { table, ticket, completed, .. } = entry;
        table.complete(ticket, completed, wakes);
        if first {
            wakes.run(move || owners.iter().filter_map(Weak::upgrade).for_each(|owner| owner.overrun()));
        }
    }

    /// Takes up to `most` results, oldest first, and hands the completion of each to its future.
    pub(crate) fn poll(&self, most: usize, mut take: impl FnMut(Polled)) -> usize {
        let mut wakes = WakeList::default();
        let mut inner = self.0.lock();
        let count = most.min(inner.entries.len());
        let taken: SmallVec<[Entry; AT_ONCE]> = inner.entries.drain(..count).collect();
        if inner.entries.is_empty() {
            // Nothing is left to be told of.
            inner.news = None;
        }
        drop(inner);
        for Entry { owner, table, ticket, completed } in taken {
            let Completed { status, bytes, extra, .. } = completed;
            let label = table.complete(ticket, completed, &mut wakes);
            take(Polled { label, owner, status, bytes, extra });
        }
        wakes.wake_all();
        count
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().entries.len()
    }

    pub(crate) fn depth(&self) -> usize {
        self.0.lock().depth
    }

    /// How it has ended, if it has.
    pub(crate) fn dead(&self) -> Option<Status> {
        self.0.lock().dead
    }

    /// Makes room for so many results.
    ///
    /// # Errors
    /// How many there are, when they are more.
    pub(crate) fn resize(&self, depth: usize) -> Result<(), usize> {
        let mut inner = self.0.lock();
        let held = inner.entries.len();
        if held > depth {
            return Err(held);
        }
        inner.depth = depth;
        Ok(())
    }

    /// The adapter is gone: what is there can be polled, and nobody waits any more.
    pub(crate) fn end(&self, status: Status) {
        let mut wakes = WakeList::default();
        let mut inner = self.0.lock();
        inner.dead.get_or_insert(status);
        inner.tell(&mut wakes);
        drop(inner);
        wakes.wake_all();
    }

    /// Asks to be told.
    pub(crate) fn notify(self: &Arc<Self>, kind: NotifyKind) -> Notified {
        let mut wakes = WakeList::default();
        let mut inner = self.0.lock();
        let key = inner.waiting.register(kind);
        inner.tell(&mut wakes);
        drop(inner);
        wakes.wake_all();
        Notified { results: self.clone(), key, heard: false }
    }
}

impl Drop for Results {
    /// Nobody polls any more: what is left reaches its futures.
    fn drop(&mut self) {
        let mut wakes = WakeList::default();
        let entries = std::mem::take(&mut self.0.lock().entries);
        for Entry { table, ticket, completed, .. } in entries {
            table.complete(ticket, completed, &mut wakes);
        }
        wakes.wake_all();
    }
}

/// Takes an owner off the list when it is dropped.
pub(crate) struct Joined {
    results: Arc<Results>,
    place: usize,
}

impl Drop for Joined {
    fn drop(&mut self) {
        let owner = self.results.0.lock().owners.try_remove(self.place);
        drop(owner);
    }
}

/// A notification that has been asked for.
pub(crate) struct Notified {
    results: Arc<Results>,
    key: WaitKey,
    heard: bool,
}

impl Notified {
    /// Ready with the status by which the queue has ended, if it has.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Status>> {
        let mut inner = self.results.0.lock();
        let (polled, replaced) = inner.waiting.poll(self.key, cx);
        let dead = inner.dead;
        drop(inner);
        drop(replaced);
        self.heard |= polled.is_ready();
        polled.map(|_| dead)
    }
}

impl Drop for Notified {
    /// What nobody has heard is news to whoever asks next.
    fn drop(&mut self) {
        let mut wakes = WakeList::default();
        let mut inner = self.results.0.lock();
        let waiter = inner.waiting.remove(self.key);
        if let (false, Some(Told::News(news))) = (self.heard, waiter.as_ref().and_then(Waiter::value))
            && !inner.entries.is_empty()
        {
            inner.news = inner.news.max(Some(news));
            inner.tell(&mut wakes);
        }
        drop(inner);
        drop(waiter);
        wakes.wake_all();
    }
}

/// Where the completions of one queue of a queue pair go.
#[derive(Clone)]
pub(crate) struct CompletionSink {
    table: Arc<Table>,
    /// The results that are polled first, and the number of the queue pair there.
    results: Option<(Arc<Results>, u64)>,
    /// What counts the requests.
    count: Option<Arc<LowWater>>,
}

impl CompletionSink {
    /// Straight to the futures of this table.
    pub(crate) fn to_futures(table: Arc<Table>) -> Self {
        Self { table, results: None, count: None }
    }

    /// To a completion queue that is polled, with a number for the queue pair, and from there to the futures.
    pub(crate) fn to_results(table: Arc<Table>, results: Arc<Results>, owner: u64) -> Self {
        Self { table, results: Some((results, owner)), count: None }
    }

    /// Every request is counted as taken when it completes.
    pub(crate) fn counted(self, count: Arc<LowWater>) -> Self {
        Self { count: Some(count), ..self }
    }

    /// Whether results have to be polled before their futures see them.
    #[cfg(feature = "verbs")]
    pub(crate) fn is_polled(&self) -> bool {
        self.results.is_some()
    }

    /// The provider is done with a request, see [`Table::complete`].
    pub(crate) fn complete(&self, ticket: Ticket, completed: Completed, wakes: &mut WakeList) {
        if let Some(count) = &self.count {
            count.taken(wakes);
        }
        match &self.results {
            Some((results, owner)) if !(completed.extra.silent && completed.status == Status::SUCCESS) => {
                let entry = Entry { owner: *owner, table: self.table.clone(), ticket, completed };
                results.push(entry, wakes);
            }
            _ => {
                self.table.complete(ticket, completed, wakes);
            }
        }
    }
}
