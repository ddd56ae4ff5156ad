//! A session of queue pairs: requests of all kinds from both ends, in batches, until an end that is drawn.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::task::Poll;

use futures::FutureExt;
use futures::future::{LocalBoxFuture, join_all};
use tokio::time::{sleep, timeout};
use tokio_rdma::error::{CompletionError, DisconnectError, PostErrorKind};
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{
    Access, BufferPart, Completion, DisconnectReason, Op, QueuePair, RemoteRegion, Status, WorkBuffer,
};

use crate::connecting::connect;
use crate::end::{BATCH, End, MESSAGE, RECEIVES};
use crate::memory::{CANARY, SLOTS, WINDOWED};
use crate::queue::TICK;
use crate::world::World;

/// The statuses of requests whose connection has ended under them.
const ENDED: [Status; 4] =
    [Status::CANCELED, Status::IO_TIMEOUT, Status::REMOTE_ERROR, Status::DEVICE_REMOVED];

/// The messages that a user keeps to its end.
const KEPT: usize = 4;

/// A message that was sent, or a write that takes a receive.
struct Expected {
    /// The bytes of a message.
    bytes: Vec<u8>,
    immediate: Option<u32>,
    invalidated: Option<RemoteKey>,
    /// The writes that were posted before.
    writes: [u8; SLOTS],
}

/// The way in which a user ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// It waits for the other one to do it.
    Wait,
    Disconnect,
    /// It drops the queue pair under the disconnect.
    DisconnectAndDrop,
    DropConnection,
    DropQueuePair,
    Flush,
}

impl Ending {
    /// Returns whether it is an orderly one, to which the peer agrees.
    fn disconnects(self) -> bool {
        matches!(self, Self::Disconnect | Self::DisconnectAndDrop)
    }
}

/// The user of one end.
struct User<'a> {
    world: &'a World,
    end: &'a End,
    peer: &'a End,
    /// The messages to the peer that it has not received.
    sent: &'a RefCell<VecDeque<Expected>>,
    /// The messages from the peer.
    coming: &'a RefCell<VecDeque<Expected>>,
    /// The receives of the peer that no message is for.
    room: &'a Cell<usize>,
    /// The same of this end.
    own_room: &'a Cell<usize>,
    /// The key of the own window, once it is bound, until it is invalidated.
    window: &'a Cell<Option<RemoteRegion>>,
    /// The same of the peer.
    peer_window: &'a Cell<Option<RemoteRegion>>,
    ending: Ending,
    /// All requests were posted and have succeeded.
    whole: Cell<bool>,
    /// The messages that were posted.
    messages: Cell<u32>,
}

/// One connection of queue pairs, from its beginning to its end.
pub(crate) async fn session(world: &World, port: u16) {
    let (server, client) = world.two_hosts();
    let slot = *world.pick(&[8, 64, 512, 3000]);
    let (Some(passive), Some(active)) =
        (End::new(world, server, slot).await, End::new(world, client, slot).await)
    else {
        return;
    };
    let living = async {
        if connect(world, (server, port), &passive, &active).await.is_some() {
            live(world, &active, &passive).await;
        }
    };
    tokio::select! {
        biased;
        () = living => {}
        () = active.collect(world) => {}
        () = passive.collect(world) => {}
    }
    for end in [&active, &passive] {
        drop((end.queue_pair.take(), end.connection.take()));
        end.exposed.check();
        if let Some(queue) = &end.queue {
            // Shared receives stay posted.
            if end.shared.is_none() {
                queue.finish(world).await;
            }
        }
    }
}

/// The time of a connection.
async fn live(world: &World, active: &End, passive: &End) {
    let (there, back) = (RefCell::default(), RefCell::default());
    let windows = (Cell::new(None), Cell::new(None));
    let rooms = (Cell::new(RECEIVES), Cell::new(RECEIVES));
    let user = |end, peer, ending, first: bool| User {
        world,
        end,
        peer,
        sent: if first { &there } else { &back },
        coming: if first { &back } else { &there },
        room: if first { &rooms.0 } else { &rooms.1 },
        own_room: if first { &rooms.1 } else { &rooms.0 },
        window: if first { &windows.0 } else { &windows.1 },
        peer_window: if first { &windows.1 } else { &windows.0 },
        ending,
        whole: Cell::new(true),
        messages: Cell::new(0),
    };
    use Ending::*;
    let ending =
        *world.pick(&[Disconnect, Disconnect, DisconnectAndDrop, DropConnection, DropQueuePair, Flush]);
    let other = *world.pick(&[Wait, Wait, Wait, Disconnect, DropConnection]);
    let (first, second) = if world.once_in(2) { (active, passive) } else { (passive, active) };
    let users = [user(first, second, ending, true), user(second, first, other, false)];
    let [ours, theirs] = &users;
    let ((ours_end, ()), (theirs_end, ())) =
        tokio::join!(async { tokio::join!(ours.work(), ours.receive()) }, async {
            tokio::join!(theirs.work(), theirs.receive())
        },);
    let orderly = ours_end.1 && theirs_end.0 == DisconnectReason::Peer && theirs.ending == Wait;
    if ours.whole.get() && orderly {
        let left = there.borrow().len();
        assert_eq!(left, 0, "messages that were sent before an orderly end have not arrived");
        second.exposed.arrived(second.exposed.writes());
    }
    let withdrawn = [active, passive].iter().any(|end| end.exposed.is_withdrawn());
    // One that keeps a message waiting for a shared receive answers late.
    let prompt = second.shared.is_none();
    if world.calm && prompt && !withdrawn && ours.ending.disconnects() && theirs.ending == Wait {
        assert!(orderly || !ours.whole.get(), "a calm connection ends with {ours_end:?} and {theirs_end:?}");
    }
}

impl User<'_> {
    /// Works, and ends the connection. Why it has ended, and whether the peer has agreed to a disconnect.
    async fn work(&self) -> (DisconnectReason, bool) {
        let world = self.world;
        for _ in 0..world.draw(0..=8) {
            let batch = world.draw(1..=BATCH as u64);
            let posted: Vec<_> = (0..batch).map_while(|number| self.post(number + 1 < batch)).collect();
            let refused = posted.len() < batch as usize;
            let done = world.within("a batch", join_all(posted)).await;
            if refused || done.contains(&false) {
                self.whole.set(false);
                break;
            }
            if world.once_in(3) {
                sleep(world.time(2000)).await;
            }
            if world.once_in(40) {
                self.deregister().await;
            }
        }
        self.finish().await
    }

    async fn finish(&self) -> (DisconnectReason, bool) {
        let Some(connection) = self.end.connection.borrow().clone() else {
            panic!("it is connected");
        };
        let ended = connection.disconnected();
        let mut orderly = false;
        self.world.count();
        match self.ending {
            Ending::Wait => {}
            Ending::Disconnect => {
                orderly = self.world.within("disconnect", connection.disconnect()).await.is_ok();
            }
            Ending::DisconnectAndDrop => {
                let mut disconnect = pin!(connection.disconnect());
                let begun = futures::poll!(disconnect.as_mut());
                drop(self.end.queue_pair.take());
                let outcome = match begun {
                    Poll::Ready(outcome) => outcome,
                    Poll::Pending => self.world.within("disconnect", disconnect).await,
                };
                // The call ends with its queue pair, and the disconnect goes on.
                orderly = matches!(outcome, Ok(()) | Err(DisconnectError::Canceled));
            }
            Ending::DropConnection => drop(self.end.connection.take()),
            Ending::DropQueuePair => drop(self.end.queue_pair.take()),
            Ending::Flush => self.end.queue_pair().iter().for_each(QueuePair::flush),
        }
        drop(connection);
        let reason = self.world.within("the end of the connection", ended).await;
        assert!(self.ending != Ending::Wait || reason != DisconnectReason::Local, "{reason:?}");
        (reason, orderly)
    }

    /// Posts a request of some kind. Its future tells whether the request has succeeded.
    fn post(&self, more: bool) -> Option<LocalBoxFuture<'_, bool>> {
        let queue_pair = self.end.queue_pair()?;
        self.world.count();
        // A message for which there is no receive ends the connection, unless the receives are shared.
        let may_send = self.room.get() > 0 || self.peer.shared.is_some();
        match if may_send { self.world.draw(0..=13) } else { self.world.draw(4..=12) } {
            0..=3 => self.send(&queue_pair, more),
            4..=6 => self.write(&queue_pair, more),
            7 => self.write_window(&queue_pair, more),
            8 => self.read(&queue_pair, more),
            9 => self.read_back(&queue_pair, more),
            10 => self.fetch_add(&queue_pair, more),
            11 => self.bind(&queue_pair, more),
            12 => self.invalidate(&queue_pair, more),
            _ => self.write_with_immediate(&queue_pair, more),
        }
    }

    /// Awaits a request, unless it is dropped before: whether it has succeeded, and its buffer.
    async fn done<B: WorkBuffer>(&self, op: Op<B>) -> Option<(Option<Completion>, B)> {
        let ended = match self.world.once_in(16) {
            true => self.world.cut("a request", op).await,
            false => Some(self.world.within("a request", op).await),
        };
        let Some((result, buffer)) = ended else {
            // Nobody knows whether it succeeds.
            self.whole.set(false);
            return None;
        };
        Some((checked(result, self.peer.exposed.is_withdrawn()), buffer))
    }

    /// A send: inline or not, plain or with the invalidation of the peer's window.
    fn send(&self, queue_pair: &QueuePair, more: bool) -> Option<LocalBoxFuture<'_, bool>> {
        let world = self.world;
        let number = self.messages.get();
        let length = *world.pick(&[0, 1, 8, 100, MESSAGE]);
        let bytes: Vec<u8> = (0..length).map(|place| (number as usize * 13 + place) as u8).collect();
        let (mut options, context) = self.end.options(world, more);
        let invalidated =
            if world.once_in(10) { self.peer_window.get().map(|window| window.key()) } else { None };
        if let Some(key) = invalidated {
            options = options.invalidate(key);
            self.peer.exposed.withdraws();
            // Now and then it goes on with a key that it has taken back itself.
            if !world.once_in(4) {
                self.peer_window.take();
            }
        }
        let writes = self.peer.exposed.writes();
        let expected = Expected { bytes: bytes.clone(), immediate: None, invalidated, writes };
        if world.once_in(3) {
            let op = self.end.posted(context, queue_pair.send_inline(&[&bytes], options))?;
            self.sent(expected);
            return Some(async { self.done(op).await.is_none_or(|(done, _)| done.is_some()) }.boxed_local());
        }
        let buffer = self.end.filled(&bytes)?;
        let op = queue_pair.send_with(buffer, options).map_err(|refused| refused.kind);
        let op = self.end.posted(context, op)?;
        self.sent(expected);
        Some(self.unchanged(op, bytes))
    }

    fn sent(&self, expected: Expected) {
        self.messages.set(self.messages.get() + 1);
        self.room.set(self.room.get().saturating_sub(1));
        self.sent.borrow_mut().push_back(expected);
    }

    /// Awaits a request that leaves its buffer as it is.
    fn unchanged(&self, op: Op<BufferPart>, bytes: Vec<u8>) -> LocalBoxFuture<'_, bool> {
        async move {
            let Some((done, buffer)) = self.done(op).await else { return true };
            let buffer = buffer.into_buffer();
            assert!(buffer[..bytes.len()] == bytes[..], "a request has changed the bytes that it sends");
            check_tail(&buffer, bytes.len());
            done.is_some()
        }
        .boxed_local()
    }

    /// A write to a place of the peer's region, under the key of the region.
    fn write(&self, queue_pair: &QueuePair, more: bool) -> Option<LocalBoxFuture<'_, bool>> {
        let slot = self.world.draw(0..=WINDOWED as u64 - 1) as usize;
        let to = self.peer.exposed.remote_slot(slot);
        self.write_to(queue_pair, more, slot, &to)
    }

    /// The same under the key of the window, if there is one.
    fn write_window(&self, queue_pair: &QueuePair, more: bool) -> Option<LocalBoxFuture<'_, bool>> {
        let slot = self.world.draw(WINDOWED as u64..=SLOTS as u64 - 1) as usize;
        match self.peer_window.get() {
            Some(window) => {
                let to = self.peer.exposed.of_window(&window, slot);
                self.write_to(queue_pair, more, slot, &to)
            }
            None => self.write(queue_pair, more),
        }
    }

    fn write_to(
        &self,
        queue_pair: &QueuePair,
        more: bool,
        slot: usize,
        to: &RemoteRegion,
    ) -> Option<LocalBoxFuture<'_, bool>> {
        let exposed = &self.peer.exposed;
        let Some(number) = exposed.next_write(slot) else { return Some(async { true }.boxed_local()) };
        let bytes = vec![number; exposed.length()];
        let (options, context) = self.end.options(self.world, more);
        if bytes.len() <= MESSAGE && self.world.once_in(3) {
            let op = self.end.posted(context, queue_pair.write_inline(&[&bytes], to, options))?;
            exposed.posted(slot, number);
            return Some(async { self.done(op).await.is_none_or(|(done, _)| done.is_some()) }.boxed_local());
        }
        let buffer = self.end.filled(&bytes)?;
        let op = queue_pair.write_with(buffer, to, options).map_err(|refused| refused.kind);
        let op = self.end.posted(context, op)?;
        exposed.posted(slot, number);
        Some(self.unchanged(op, bytes))
    }

    /// A write that takes a receive of the peer.
    fn write_with_immediate(&self, queue_pair: &QueuePair, more: bool) -> Option<LocalBoxFuture<'_, bool>> {
        let exposed = &self.peer.exposed;
        let Some(number) = exposed.next_write(0) else { return Some(async { true }.boxed_local()) };
        let (options, context) = self.end.options(self.world, more);
        let bytes = vec![number; exposed.length()];
        let buffer = self.end.filled(&bytes)?;
        let options = options.immediate(number.into());
        let op =
            queue_pair.write_with(buffer, &exposed.remote_slot(0), options).map_err(|refused| refused.kind);
        let op = self.end.posted(context, op)?;
        exposed.posted(0, number);
        let immediate = Some(number.into());
        self.sent(Expected { bytes: Vec::new(), immediate, invalidated: None, writes: exposed.writes() });
        Some(self.unchanged(op, bytes))
    }

    /// A read of the place that nobody writes.
    fn read(&self, queue_pair: &QueuePair, more: bool) -> Option<LocalBoxFuture<'_, bool>> {
        let exposed = &self.peer.exposed;
        let check = move |found: &[u8]| assert!(found == exposed.pattern(), "a read has found {found:?}");
        self.read_from(queue_pair, more, &exposed.remote_readable(), check)
    }

    /// A read of a place that this end writes.
    fn read_back(&self, queue_pair: &QueuePair, more: bool) -> Option<LocalBoxFuture<'_, bool>> {
        let exposed = &self.peer.exposed;
        let slot = self.world.draw(0..=WINDOWED as u64 - 1) as usize;
        let before = exposed.writes()[slot];
        let check = move |found: &[u8]| exposed.check_read(slot, before, found);
        self.read_from(queue_pair, more, &exposed.remote_slot(slot), check)
    }

    fn read_from<'a>(
        &'a self,
        queue_pair: &QueuePair,
        more: bool,
        from: &RemoteRegion,
        check: impl Fn(&[u8]) + 'a,
    ) -> Option<LocalBoxFuture<'a, bool>> {
        let length = self.peer.exposed.length();
        let buffer = self.end.buffer(length)?;
        let (options, context) = self.end.options(self.world, more);
        let op = match queue_pair.read_with(buffer, from, options).map_err(|refused| refused.kind) {
            Err(PostErrorKind::NoReads) => return self.no_reads(context),
            outcome => self.end.posted(context, outcome)?,
        };
        let wait = async move {
            let Some((done, buffer)) = self.done(op).await else { return true };
            let buffer = buffer.into_buffer();
            check_tail(&buffer, length);
            if done.is_some() {
                check(&buffer[..length]);
            }
            done.is_some()
        };
        Some(wait.boxed_local())
    }

    /// The connection allows no reads, which is no failure.
    fn no_reads(&self, context: u64) -> Option<LocalBoxFuture<'_, bool>> {
        if let Some(queue) = &self.end.queue {
            queue.refused(context);
        }
        let outbound = self.end.connection.borrow().as_ref().map_or(0, |end| end.read_limits().outbound);
        assert_eq!(outbound, 0, "a read was refused");
        Some(async { true }.boxed_local())
    }

    /// Adds one to the peer's counter.
    fn fetch_add(&self, queue_pair: &QueuePair, more: bool) -> Option<LocalBoxFuture<'_, bool>> {
        let exposed = &self.peer.exposed;
        let buffer = self.end.buffer(8)?;
        let (options, context) = self.end.options(self.world, more);
        let outcome = queue_pair.fetch_add(buffer, &exposed.remote_counter(), 1, options);
        let op = match outcome.map_err(|refused| refused.kind) {
            Err(PostErrorKind::NoReads) => return self.no_reads(context),
            outcome => self.end.posted(context, outcome)?,
        };
        exposed.add_posted();
        let wait = async move {
            let Some((done, buffer)) = self.done(op).await else { return true };
            let buffer = buffer.into_buffer();
            check_tail(&buffer, 8);
            if done.is_some() {
                exposed.added(u64::from_ne_bytes(buffer[..8].try_into().expect("eight bytes")));
            }
            done.is_some()
        };
        Some(wait.boxed_local())
    }

    /// Binds the own window, if it never was.
    fn bind(&self, queue_pair: &QueuePair, more: bool) -> Option<LocalBoxFuture<'_, bool>> {
        let exposed = &self.end.exposed;
        if exposed.window.remote().is_some() || exposed.was_bound() || !exposed.region.is_registered() {
            return Some(async { true }.boxed_local());
        }
        let (options, context) = self.end.options(self.world, more);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let outcome = queue_pair.bind(&exposed.window, &exposed.windowed_slice(), access, options);
        let op = self.end.posted(context, outcome)?;
        exposed.bound();
        let wait = async move {
            let Some((done, ())) = self.done(op).await else { return true };
            if done.is_some() && !exposed.window_has_ended() {
                self.window.set(exposed.window.remote());
            }
            done.is_some()
        };
        Some(wait.boxed_local())
    }

    /// Invalidates the own window, if it is bound. Its user may not have noticed.
    fn invalidate(&self, queue_pair: &QueuePair, more: bool) -> Option<LocalBoxFuture<'_, bool>> {
        let exposed = &self.end.exposed;
        if self.window.get().is_none() {
            return self.read(queue_pair, more);
        }
        if !self.world.once_in(4) {
            self.window.take();
        }
        exposed.withdraws();
        let (options, context) = self.end.options(self.world, more);
        let op = match queue_pair.invalidate(&exposed.window, options) {
            // The peer has invalidated it.
            Err(PostErrorKind::NotBound) => {
                if let Some(queue) = &self.end.queue {
                    queue.refused(context);
                }
                return Some(async { true }.boxed_local());
            }
            outcome => self.end.posted(context, outcome)?,
        };
        exposed.unbinds();
        let wait = async move {
            let Some((done, ())) = self.done(op).await else { return true };
            if done.is_some() {
                exposed.window_ends();
            }
            done.is_some()
        };
        Some(wait.boxed_local())
    }

    /// Takes the key of the region back. Whatever the peer does with it from now on ends the connection.
    async fn deregister(&self) {
        self.world.count();
        let exposed = &self.end.exposed;
        exposed.withdraws();
        match self.world.within("deregister", exposed.region.deregister()).await {
            Ok(()) => exposed.region_ends(),
            Err(error) => assert!(exposed.may_be_bound(), "{error:?}"),
        }
    }

    /// Receives the messages of the peer, until the connection ends.
    async fn receive(&self) {
        let Some(connection) = self.end.connection.borrow().clone() else { return };
        let ended = connection.disconnected().shared();
        drop(connection);
        let mut posted: VecDeque<_> = (0..RECEIVES).map_while(|_| self.end.receive()).collect();
        let mut kept = Vec::new();
        while let Some(mut next) = posted.pop_front() {
            let outcome = match &self.end.shared {
                // Its receives stay posted when a connection ends. The queue may look at the last ones late.
                Some(_) => tokio::select! {
                    biased;
                    outcome = &mut next => Some(outcome),
                    _ = ended.clone() => timeout(3 * TICK, next).await.ok(),
                },
                None => Some(next.await),
            };
            let Some((result, buffer)) = outcome else { break };
            let buffer = buffer.into_buffer();
            match checked(result, false) {
                Some(done) => {
                    self.received(&done, &buffer);
                    kept.push((buffer.to_vec(), buffer));
                }
                // The others fail as well.
                None => {
                    check_tail(&buffer, MESSAGE);
                    continue;
                }
            }
            kept.truncate(KEPT);
            if self.world.once_in(10) {
                sleep(self.world.time(3000)).await;
            }
            if let Some(next) = self.end.receive() {
                posted.push_back(next);
                self.own_room.set(self.own_room.get() + 1);
            }
        }
        assert!(kept.iter().all(|(before, buffer)| before[..] == buffer[..]), "a message has changed later");
    }

    /// Checks a message.
    fn received(&self, done: &Completion, buffer: &[u8]) {
        let expected = self.coming.borrow_mut().pop_front().expect("a message that nobody has sent");
        assert_eq!((done.immediate, done.invalidated), (expected.immediate, expected.invalidated));
        assert!(buffer.starts_with(&expected.bytes), "the bytes of a message");
        check_tail(buffer, MESSAGE);
        if expected.invalidated.is_some() {
            self.end.exposed.window_ends();
        }
        self.end.exposed.arrived(expected.writes);
    }
}

/// Checks that a request failed, if it did, for the end of its connection, or because it used a key that is `withdrawn`.
fn checked(result: Result<Completion, CompletionError>, withdrawn: bool) -> Option<Completion> {
    let is_listed = |error: &CompletionError| {
        ENDED.contains(&error.status()) || withdrawn && error.status() == Status::ACCESS_VIOLATION
    };
    assert!(result.as_ref().err().is_none_or(is_listed), "{result:?}");
    result.ok()
}

fn check_tail(buffer: &[u8], length: usize) {
    assert!(buffer[length..].iter().all(|byte| *byte == CANARY), "bytes behind a buffer have changed");
}
