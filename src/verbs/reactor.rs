//! The reactor: two tasks for each adapter and one for each group of its completion queues, each with one long-lived registration
//! of one descriptor at the runtime's epoll, and one task that looks for silent peers.
//!
//! | task | descriptor | what it does with it |
//! |---|---|---|
//! | connections | event channel of rdma_cm | hands every event to its id |
//! | completions | completion channel of a group | polls the queue until it is empty, wakes the futures, arms the queue |
//! | device | asynchronous events of the context | removes the adapter, breaks connections |
//!
//! epoll reports edges, so each is drained before it is waited for again. Between two looks, the tasks run that the first has
//! woken. A task holds the adapter only while it works for it: the last handle of
//! the user ends the tasks.

use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, warn};

use super::completions::CompletionGroup;
use super::context::{AdapterContext, Opened};
use super::cq_poller::CqPoller;
use super::routes::TICKS;
use crate::error::Reason;
use crate::net::kernel::readiness::{Descriptor, readable};
use crate::status::DeviceEvent;
use crate::sys::{AsyncEvents, CompletionChannel, Context, Element, EventChannel, async_event};

/// The number of events that are handled, or of queue pairs that are looked at, before other tasks have a turn.
pub(super) const TURN: usize = 64;

/// Starts the tasks of an adapter, but for those of its completion queues.
///
/// # Errors
/// The runtime cannot watch the descriptors.
pub(crate) fn start(adapter: &Arc<AdapterContext>, opened: &Opened) -> io::Result<Vec<AbortHandle>> {
    let connections = readable(adapter.events.clone())?;
    let device = readable(AsyncEvents(opened.context.clone()))?;
    // Made here, so that a task that is dropped before it has ever run also ends the waits of the adapter.
    let alive = || Alive(Arc::downgrade(adapter));
    let spawn = |task| adapter.runtime.spawn(task).abort_handle();
    let mut tasks = vec![
        spawn(Box::pin(run_connections(alive(), connections)) as Task),
        spawn(Box::pin(run_device(alive(), device))),
    ];
    let keepalive =
        adapter.config.path_timeout.map(|timeout| run_keepalive(Arc::downgrade(adapter), timeout));
    tasks.extend(keepalive.map(|task| spawn(Box::pin(task))));
    Ok(tasks)
}

/// Starts the task of a group of completion queues.
///
/// # Errors
/// The runtime cannot watch the descriptor.
pub(crate) fn read_completions(group: &Arc<CompletionGroup>) -> io::Result<()> {
    let adapter = group.context();
    // The adapter was removed in between.
    let Some(channel) = group.channel() else { return Ok(()) };
    let _guard = adapter.runtime.enter();
    let source = readable(channel)?;
    // Made here, so that a task that is dropped before it has ever run also ends the waits of the adapter.
    let task = run_completions(Reading(Arc::downgrade(group)), Arc::downgrade(adapter), source);
    group.set_task(adapter.runtime.spawn(task).abort_handle());
    Ok(())
}

type Task = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

// Each of the three sources owns its descriptor.
impl Descriptor for Arc<EventChannel> {}
impl Descriptor for Arc<CompletionChannel> {}
impl Descriptor for AsyncEvents {}

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
            group.context().runtime_ended();
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

async fn run_device(alive: Alive, source: AsyncFd<AsyncEvents>) {
    let outcome = run(source, |AsyncEvents(context)| {
        let adapter = alive.0.upgrade()?;
        Some(device_events(&adapter, context))
    })
    .await;
    report_source(&alive.0, "device events", outcome);
}

fn device_events(adapter: &Arc<AdapterContext>, context: &Context) -> io::Result<bool> {
    for _ in 0..TURN {
        let Some(event) = context.next_async_event()? else { return Ok(false) };
        if let (async_event::QP_LAST_WQE_REACHED, Element::QueuePair(number)) = (event.kind, event.element) {
            // Each end of a connection has this one, so it does not look through all of them.
            adapter.routes.last_receive(number);
            continue;
        }
        let queue_pair = match event.element {
            Element::QueuePair(number) => adapter.routes.by_number(number),
            Element::CompletionQueue(_) | Element::SharedReceiveQueue(_) | Element::Device => None,
        };
        match (event.kind, queue_pair) {
            (async_event::DEVICE_FATAL, _) => adapter.remove(),
            // Completions or receives are lost, of any of the queue pairs that use the queue.
            (async_event::CQ_ERR | async_event::SRQ_ERR, _) => {
                queue_failed(adapter, event.element, reason(event.kind));
            }
            (async_event::COMM_EST, Some(queue_pair)) => queue_pair.data_arrived(),
            (
                async_event::QP_FATAL | async_event::QP_REQ_ERR | async_event::QP_ACCESS_ERR,
                Some(queue_pair),
            ) => queue_pair.device_error(reason(event.kind)),
            (kind, _) => {
                debug!(adapter = %adapter.device.name, event = async_event::name(kind), "event ignored")
            }
        }
    }
    Ok(true)
}

/// Returns the cause of what follows from an event.
fn reason(kind: u32) -> Reason {
    Reason::Event(DeviceEvent::from_code(kind))
}

/// Ends the connections that use a completion queue or a shared receive queue of the device, which has lost something.
pub(super) fn queue_failed(adapter: &AdapterContext, element: Element, reason: Reason) {
    if let Element::CompletionQueue(key) = element {
        // First: no further queue pair reserves entries in it.
        adapter.routes.lose_queue(key);
    }
    let all = adapter.routes.all();
    let hit: Vec<_> = all.iter().filter(|queue_pair| queue_pair.uses(element)).collect();
    if let Element::SharedReceiveQueue(_) = element {
        hit.iter().for_each(|queue_pair| queue_pair.shared_lost());
    }
    hit.iter().for_each(|queue_pair| queue_pair.device_error(reason));
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
