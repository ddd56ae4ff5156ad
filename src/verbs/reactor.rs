//! The reactor: two tasks for each adapter and one for each group of its completion queues, each with one long-lived registration
//! of one descriptor at the runtime's epoll, one task that looks for silent peers, and for a program that reads the events of the
//! adapter one that looks for other addresses.
//!
//! | task | descriptor | what it does with it |
//! |---|---|---|
//! | connections | event channel of rdma_cm | hands every event to its id |
//! | completions | completion channel of a group | polls the queue until it is empty, wakes the futures, arms the queue |
//! | device | asynchronous events of the context | removes the adapter, breaks connections, announces events |
//!
//! epoll reports edges, so each is drained before it is waited for again. Between two looks, the tasks run that the first has
//! woken. A task holds the adapter only while it works for it: the last handle of
//! the user ends the tasks.
//!
//! The task of a group decides when its completion queues are polled, and when their channel is read: [`CqPoller`].
//!
//! A queue is armed only before a sleep. Until then completions are found by polling, which costs no system call,
//! neither here nor for an event. The tasks that were woken run in between, and what they post has often completed when
//! they have. The event that has ended a sleep is taken from the channel after that, because no task waits for it. A
//! queue raises one event until it is armed again, so a channel with one queue has no other event then.
//!
//! Before a sleep there are some more looks if such looks have found something lately. A sleep costs the program that
//! it ends a wake-up, which takes longer than the answer of a peer that is awake.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, warn};

use super::completion_queue::CompletionGroup;
use super::context::{AdapterContext, Opened};
use super::routes::TICKS;
use crate::error::Reason;
use crate::net::kernel::{Descriptor, readable};
use crate::status::DeviceEvent;
use crate::sync::Spin;
use crate::sys::{CompletionChannel, Context, Element, EventChannel, Keys};

/// The number of events that are handled, or of queue pairs that are looked at, before other tasks have a turn.
const TURN: usize = 64;

/// Starts the tasks of an adapter, but for those of its completion queues.
pub(crate) fn start(adapter: &Arc<AdapterContext>, opened: &Opened) -> io::Result<Vec<AbortHandle>> {
    let connections = readable(adapter.events.clone())?;
    let device = readable(opened.context.clone())?;
    // Made here, so that a task that is dropped before it has ever run also ends the waits of the adapter.
    let alive = || Alive(Arc::downgrade(adapter));
    let runtime = &adapter.runtime;
    let mut tasks = vec![
        runtime.spawn(run_connections(alive(), connections)).abort_handle(),
        runtime.spawn(run_device(alive(), device)).abort_handle(),
    ];
    if let Some(timeout) = adapter.config.path_timeout {
        tasks.push(runtime.spawn(run_keepalive(Arc::downgrade(adapter), timeout)).abort_handle());
    }
    Ok(tasks)
}

/// Starts the task of a group of completion queues.
pub(crate) fn read_completions(group: &Arc<CompletionGroup>) -> io::Result<()> {
    let adapter = &group.context;
    // The adapter was removed in between.
    let Some(channel) = group.channel() else { return Ok(()) };
    let _guard = adapter.runtime.enter();
    let source = readable(channel)?;
    // Made here, so that a task that is dropped before it has ever run also ends the waits of the adapter.
    let task = run_completions(Reading(Arc::downgrade(group)), Arc::downgrade(adapter), source);
    group.set_task(adapter.runtime.spawn(task).abort_handle());
    Ok(())
}

// Each of the three sources owns its descriptor.
impl Descriptor for Arc<EventChannel> {}
impl Descriptor for Arc<CompletionChannel> {}
impl Descriptor for Arc<Context> {}

/// Ticks the queue pairs of an adapter, [`TICKS`] times in a path timeout.
async fn run_keepalive(adapter: Weak<AdapterContext>, path_timeout: Duration) {
    let mut ticks = interval(path_timeout / TICKS);
    // A runtime that was busy for long has not seen the signs of life either.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(mut queue_pairs) = adapter.upgrade().map(|adapter| adapter.routes.all()) else { return };
        // A queue pair whose earlier queue pair of the device still exists is listed twice.
        queue_pairs.sort_unstable_by_key(|queue_pair| Arc::as_ptr(queue_pair).addr());
        queue_pairs.dedup_by(|one, other| Arc::ptr_eq(one, other));
        for some in queue_pairs.chunks(TURN) {
            some.iter().for_each(|queue_pair| queue_pair.tick());
            tokio::task::yield_now().await;
        }
    }
}

/// A guard that ends the waits of the adapter when a task ends before it, as all do when the runtime shuts down.
struct Alive(Weak<AdapterContext>);

impl Drop for Alive {
    fn drop(&mut self) {
        if let Some(adapter) = self.0.upgrade() {
            adapter.runtime_ended();
        }
    }
}

/// Calls `turn` whenever the source may be readable.
///
/// `turn` handles up to [`TURN`] events, and returns whether there may be more; `None` ends the task.
async fn run<T: AsRawFd>(
    source: AsyncFd<T>,
    mut turn: impl FnMut(&T) -> Option<io::Result<bool>>,
) -> io::Result<()> {
    loop {
        let mut ready = source.readable().await?;
        loop {
            match turn(ready.get_inner()) {
                None => return Ok(()),
                Some(more) => {
                    if !more? {
                        break;
                    }
                }
            }
            others_first().await;
        }
        ready.clear_ready();
    }
}

/// Lets the tasks run that are ready now. Unlike tokio's own way to yield this does not ask epoll in between.
async fn others_first() {
    let mut waited = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

async fn run_connections(alive: Alive, source: AsyncFd<Arc<EventChannel>>) {
    let outcome = run(source, |events| {
        let adapter = alive.0.upgrade()?;
        for _ in 0..TURN {
            match events.next() {
                Ok(Some(event)) => adapter.router.deliver(event),
                Ok(None) => return Some(Ok(false)),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(true))
    })
    .await;
    report_source(&alive.0, "connection events", outcome);
}

/// A guard that ends the waits of the adapter when the task of a group ends before the group, by a panic of a waker for
/// example: no task reads the channel then.
struct Reading(Weak<CompletionGroup>);

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(group) = self.0.upgrade() {
            group.context.runtime_ended();
        }
    }
}

async fn run_completions(
    reading: Reading,
    adapter: Weak<AdapterContext>,
    source: AsyncFd<Arc<CompletionChannel>>,
) {
    let spin = adapter.upgrade().map_or(Duration::ZERO, |adapter| adapter.config.spin);
    let mut looking = CqPoller::new(spin);
    let outcome = run(source, |channel| {
        let group = reading.0.upgrade()?;
        Some(looking.turn(&group, channel))
    })
    .await;
    report_source(&adapter, "completions", outcome);
}

async fn run_device(alive: Alive, source: AsyncFd<Arc<Context>>) {
    let outcome = run(source, |context| {
        let adapter = alive.0.upgrade()?;
        Some(device_events(&adapter, context))
    })
    .await;
    report_source(&alive.0, "device events", outcome);
}

fn device_events(adapter: &Arc<AdapterContext>, context: &Context) -> io::Result<bool> {
    for _ in 0..TURN {
        let order = adapter.event_order.lock();
        let Some(event) = context.next_async_event()? else { return Ok(false) };
        let announced = adapter.add_event(event);
        drop(order);
        if let Some(announced) = announced {
            announced.notify();
        }
        if let (DeviceEvent::QP_LAST_WQE_REACHED, Element::QueuePair(number)) = (event.kind, event.element) {
            // Each end of a connection has this one, so it does not look through all of them.
            adapter.routes.last_receive(number);
            continue;
        }
        let queue_pair = match event.element {
            Element::QueuePair(number) => adapter.routes.by_number(number),
            Element::CompletionQueue(_)
            | Element::SharedReceiveQueue(_)
            | Element::Port(_)
            | Element::Device => None,
        };
        match (event.kind, queue_pair) {
            (DeviceEvent::DEVICE_FATAL, _) => adapter.remove(),
            // Completions or receives are lost, of any of the queue pairs that use the queue.
            (DeviceEvent::CQ_ERR | DeviceEvent::SRQ_ERR, _) => {
                adapter.routes.fail_queue(event.element, Reason::Event(event.kind));
            }
            (DeviceEvent::GID_CHANGE, _) if adapter.announcer.is_heard() => adapter.announce_addresses(),
            (DeviceEvent::COMM_EST, Some(queue_pair)) => queue_pair.data_arrived(),
            (
                DeviceEvent::QP_FATAL | DeviceEvent::QP_REQ_ERR | DeviceEvent::QP_ACCESS_ERR,
                Some(queue_pair),
            ) => queue_pair.device_error(Reason::Event(event.kind)),
            (kind, _) => {
                debug!(adapter = %adapter.device.name, event = kind.name().unwrap_or("unknown"), element = ?event.element, "event of the device")
            }
        }
    }
    Ok(true)
}

/// Handles the events that the device has raised by now, for a caller that is about to report the end of a connection: the event has
/// the cause of it. An error is left to the task that waits for events.
pub(super) fn handle_device_events(adapter: &Arc<AdapterContext>) {
    if let Some(opened) = adapter.opened() {
        while device_events(adapter, &opened.context).unwrap_or(false) {}
    }
}

/// Logs that a source has failed, and removes the adapter: such a source is one of a device that was taken away, and
/// this may be the first report of it. Errors of the runtime, which has shut down, have no number.
fn report_source(adapter: &Weak<AdapterContext>, what: &str, outcome: io::Result<()>) {
    let Err(error) = outcome else { return };
    warn!(%error, "waiting for {what} failed");
    if let (Some(_), Some(adapter)) = (error.raw_os_error(), adapter.upgrade()) {
        adapter.remove();
    }
}

/// The number of times that the queues are polled before the channel is: the other queues behind the channel must not wait
/// for long.
const LOOKS: u32 = 16;

/// The number of looks before a sleep after which other tasks have a turn. A turn for others wakes another thread of the runtime.
const AT_ONCE: u32 = 64;

/// The state of polling the completion channel and the queues behind it.
struct CqPoller {
    /// The queues of the last events, which are polled.
    last: Keys,
    /// The queues of events that were taken since they were armed.
    told: Keys,
    /// The channel may have events that were not taken.
    unread: bool,
    /// The number of events that are taken at once: one after a sleep, as there most often is no other, then more.
    most: usize,
    /// The time during which the queues are polled without an event.
    spin: Spin,
    /// There is such a time.
    spins: bool,
    patience: Patience,
    /// The number of times that the queues were polled since the channel was.
    looks: u32,
    /// The value of [`CompletionGroup::finds`] at the last look.
    finds: usize,
}

impl CqPoller {
    fn new(spin: Duration) -> Self {
        Self {
            last: Keys::default(),
            told: Keys::default(),
            unread: true,
            most: 1,
            spin: Spin::new(spin),
            spins: !spin.is_zero(),
            patience: Patience::default(),
            looks: 0,
            finds: 0,
        }
    }

    /// Processes completions and takes events. Returns whether to look again before the next sleep.
    fn turn(&mut self, group: &CompletionGroup, channel: &CompletionChannel) -> io::Result<bool> {
        let mut found = self.find(group);
        self.looks += 1;
        if !found && self.unread || self.looks > LOOKS && !self.is_alone(group) {
            self.take_events(group, channel)?;
            found |= self.find(group);
        }
        if found {
            self.patience.rewarded();
        }
        let spinning = self.spin.is_spinning() && group.is_armed();
        if found || self.unread || spinning || group.is_armed() && self.looks_on(group) {
            return Ok(true);
        }
        // Arm first, then look: a completion that comes in between raises an event.
        self.arm(group);
        self.unread = true;
        let found = self.find(group);
        if !found {
            self.spin.stop();
        }
        Ok(found)
    }

    /// Looks a few more times, if that has paid lately. Returns whether completions were found, or looks are left.
    fn looks_on(&mut self, group: &CompletionGroup) -> bool {
        for _ in 0..AT_ONCE {
            if !self.patience.looks_again() {
                return false;
            }
            if self.find(group) {
                self.patience.rewarded();
                break;
            }
        }
        true
    }

    /// Takes some of the events of the channel.
    fn take_events(&mut self, group: &CompletionGroup, channel: &CompletionChannel) -> io::Result<()> {
        self.looks = 0;
        let before = self.told.len();
        let more = channel.next(self.most, &mut self.told)?;
        if before == 0 && !self.told.is_empty() && !self.spin.is_started() {
            self.last.clear();
        }
        self.last.extend_from_slice(&self.told[before..]);
        for keys in [&mut self.last, &mut self.told] {
            keys.sort_unstable();
            keys.dedup();
        }
        self.unread = more && !self.is_alone(group);
        self.most = if self.unread { (self.most * 2).min(TURN) } else { 1 };
        Ok(())
    }

    /// Returns whether the group has no other queue than the one that has raised the last event.
    fn is_alone(&self, group: &CompletionGroup) -> bool {
        !self.spins && matches!(self.last.as_slice(), [key] if group.notifies_once(*key))
    }

    /// Arms the queues that have raised an event since they were armed.
    fn arm(&mut self, group: &CompletionGroup) {
        if !group.is_armed() {
            return;
        }
        for key in self.told.drain(..) {
            if let Some(queue) = group.by_key(key)
                && let Err(error) = group.arm(&queue)
            {
                debug!(%error, "completion queue not armed");
            }
        }
    }

    /// Processes the completions of the queues. Returns whether there were any, or another task has found some since
    /// the last time.
    fn find(&mut self, group: &CompletionGroup) -> bool {
        self.last.iter().for_each(|key| group.process(*key, None));
        let finds = group.finds();
        let found = std::mem::replace(&mut self.finds, finds) != finds;
        if found && group.is_armed() {
            self.spin.start();
        }
        found
    }
}

/// The decision whether a task that has found nothing looks some more times before it sleeps. It depends on whether
/// such looks have paid: doubts come with looks that found nothing, and go with those that found something. The more
/// doubts, the more sleeps come before the next such looks.
///
/// Looks in vain cost several times what others save. A program whose peer needs the same processor finds the
/// completions of its own sends, and never the answer.
#[derive(Default)]
pub(super) struct Patience {
    /// It is looking, for at most so many more times.
    looking: bool,
    left: u32,
    doubts: u32,
    /// Sleeps without looks since the last ones.
    sleeps: u32,
}

impl Patience {
    /// The number of looks. They take ten to twenty microseconds of a processor of today.
    const LOOKS: u32 = 256;
    /// The doubts that come with looks in vain. Looks that pay take one.
    const IN_VAIN: u32 = 4;
    /// At most 2 to this power sleeps come before the next looks.
    const DOUBTS: u32 = 6;

    /// Records that something was found. If the looks before a sleep have found it, doubts go.
    pub(super) fn rewarded(&mut self) {
        if std::mem::take(&mut self.looking) {
            self.doubts = self.doubts.saturating_sub(1 + Self::IN_VAIN);
        }
    }

    /// Returns whether to look once more after a look that found nothing. If not, the task sleeps.
    pub(super) fn looks_again(&mut self) -> bool {
        if !std::mem::replace(&mut self.looking, true) {
            let due = self.sleeps >= (1 << self.doubts.min(Self::DOUBTS)) - 1;
            self.left = if due { Self::LOOKS } else { 0 };
            self.sleeps = if due { 0 } else { self.sleeps + 1 };
            if due {
                // Until it pays.
                self.doubts = (self.doubts + Self::IN_VAIN).min(Self::DOUBTS + Self::IN_VAIN);
            }
        }
        self.looking = self.left > 0;
        self.left = self.left.saturating_sub(1);
        self.looking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks until it sleeps. Returns how often.
    fn until_sleep(patience: &mut Patience) -> u32 {
        (0..).find(|_| !patience.looks_again()).expect("without end")
    }

    #[test]
    fn looks_that_find_nothing_become_rare() {
        let mut patience = Patience::default();
        let sleeps: Vec<_> = (0..300).filter(|_| until_sleep(&mut patience) > 0).collect();
        assert_eq!(sleeps, [0, 16, 80, 144, 208, 272]);
    }

    // A completion of its own sends, and then an answer that does not come before it sleeps.
    #[test]
    fn looks_that_pay_every_other_time_become_rare() {
        let mut patience = Patience::default();
        let mut looks = 0;
        for _ in 0..1000 {
            if patience.looks_again() {
                patience.rewarded();
            }
            looks += u32::from(until_sleep(&mut patience) > 0);
        }
        assert!(looks < 50, "{looks} of 1000");
    }

    #[test]
    fn looks_that_pay_go_on() {
        let mut patience = Patience::default();
        for looks in 1..=Patience::LOOKS {
            assert!((0..looks).all(|_| patience.looks_again()), "look {looks}");
            patience.rewarded();
        }
        assert_eq!(until_sleep(&mut patience), Patience::LOOKS);
        // A completion that has ended a sleep is no merit of the looks before it.
        patience.rewarded();
        assert_eq!(until_sleep(&mut patience), 0);
    }
}
