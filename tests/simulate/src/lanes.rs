//! A session of two lanes: requests of all kinds in the order that is drawn, until an end that is drawn. Each request that is not silent
//! comes out of a poll once, those of a queue in the order of the calls, and in the end every slot is there.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::timeout;
use tokio_rdma::error::{NotifyError, PostErrorKind};
use tokio_rdma::qp::{Done, Lane, LaneConfig, LaneQueuePair, LaneState, Local, QueuePairId, Slot};
use tokio_rdma::sim::Host;
use tokio_rdma::types::OpKind;
use tokio_rdma::{
    AcceptParams, Access, Adapter, ConnectParams, Connection, Region, RemoteRegion, Status, WorkOptions,
};

use crate::world::World;

/// The slots of a lane, and the receives that an end posts of them at most.
const SLOTS: usize = 12;
const RECEIVES: usize = 5;
/// The requests of the send queue that can be outstanding.
const DEPTH: usize = 6;
/// The most bytes that a call copies.
const INLINE: usize = 48;
/// The content of the memory that the peer reads.
const PATTERN: u8 = 0x5A;
/// The limit of a connect.
const LIMIT: Duration = Duration::from_secs(60);

/// The statuses of requests whose connection has ended under them.
const ENDED: [Status; 4] =
    [Status::CANCELED, Status::IO_TIMEOUT, Status::REMOTE_ERROR, Status::DEVICE_REMOVED];

/// The messages of one end.
#[derive(Default)]
struct Way {
    /// Those that have been posted and have not been received.
    sent: VecDeque<Vec<u8>>,
    /// The receives of the other end that none is for.
    room: usize,
}

/// A request of the send queue.
struct Posted {
    kind: OpKind,
    /// None if the call has copied the bytes.
    slots: Vec<Slot>,
    is_silent: bool,
}

/// One end.
struct End<'a> {
    world: &'a World,
    adapter: Adapter,
    lane: Lane,
    id: QueuePairId,
    end: LaneQueuePair,
    length: usize,
    /// The first half is for reads, the other one for writes and atomics.
    region: Region,
    /// The receives are shared: they stay posted when the connection ends.
    shared: bool,
    /// The requests that are outstanding, in the order of the calls.
    sends: VecDeque<Posted>,
    receives: VecDeque<Slot>,
    /// The slots that this end holds.
    held: Vec<Slot>,
    /// A request has failed.
    has_failed: bool,
}

/// The way in which a user ends a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// It waits for the other one to do it.
    Wait,
    Disconnect,
    DropConnection,
    Close,
}

/// One connection of two lanes, from its beginning to its end.
pub(crate) async fn session(world: &World, port: u16) {
    let (server, client) = world.two_hosts();
    let length = *world.pick(&[8, 64, 1025, 3000]);
    let (Some(mut passive), Some(mut active)) =
        (End::new(world, server, length).await, End::new(world, client, length).await)
    else {
        return;
    };
    let ways: [RefCell<Way>; 2] = Default::default();
    ways[0].borrow_mut().room = passive.post_receives();
    ways[1].borrow_mut().room = active.post_receives();
    if let Some([there, here]) = connect((server, port), &passive, &active).await {
        let (remote, back) = (passive.region.remote(), active.region.remote());
        use Ending::*;
        let (first, second) =
            (*world.pick(&[Wait, Disconnect, DropConnection, Close]), *world.pick(&[Disconnect, Close]));
        let (ours, theirs) = if world.once_in(2) { (first, second) } else { (second, first) };
        tokio::join!(
            active.live([&ways[0], &ways[1]], remote, here, ours),
            passive.live([&ways[1], &ways[0]], back, there, theirs),
        );
    }
    for (mut end, back) in [(active, &ways[1]), (passive, &ways[0])] {
        // Otherwise the lane is dropped as it is.
        if !world.once_in(5) {
            end.finish(back).await;
        }
    }
}

/// Connects both ends, unless a fault comes between.
async fn connect(server: (&Host, u16), passive: &End<'_>, active: &End<'_>) -> Option<[Connection; 2]> {
    let world = passive.world;
    let address = (server.0.address(), server.1).into();
    let listener = passive.adapter.listener();
    let bound = listener.bind(address).and_then(|()| listener.listen(0));
    assert!(bound.is_ok() || !world.calm, "{bound:?}");
    bound.ok()?;
    let connector = active.adapter.connector();
    let params = ConnectParams::default().timeout(LIMIT);
    let connecting = connector.connect_and_complete(&active.end, address, params);
    let accepting = listener.accept_next(&passive.end, AcceptParams::default());
    let both = async { tokio::join!(connecting, timeout(2 * LIMIT, accepting)) };
    let outcome = world.within("connecting lanes", both).await;
    assert!(matches!(outcome, (Ok(_), Ok(Ok(_)))) || !world.calm, "{outcome:?}");
    if let (Ok(here), Ok(Ok(there))) = outcome { Some([there, here]) } else { None }
}

impl<'a> End<'a> {
    /// Makes a lane and memory for the peer, unless the host goes down meanwhile.
    async fn new(world: &'a World, host: &Host, length: usize) -> Option<Self> {
        let adapter = world.adapter(host)?;
        let config = LaneConfig::new(SLOTS, length).send_depth(DEPTH).receive_depth(RECEIVES).inline(INLINE);
        let shared = world.once_in(3);
        let config = config.shared_receives(shared);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let made = async {
            let mut lane = adapter.lane(&config).ok()?;
            let (id, end) = lane.queue_pair().ok()?;
            let region = adapter.register(2 * length.next_multiple_of(8), access).await.ok()?;
            region.write(0, &vec![PATTERN; length]).ok()?;
            Some((lane, id, end, region))
        };
        let made = made.await;
        assert!(made.is_some() || adapter.is_removed(), "refused");
        let (mut lane, id, end, region) = made?;
        let held = std::iter::from_fn(|| lane.take()).collect();
        let (sends, receives) = (VecDeque::new(), VecDeque::new());
        let has_failed = false;
        Some(Self {
            world,
            adapter,
            lane,
            id,
            end,
            length,
            region,
            shared,
            sends,
            receives,
            held,
            has_failed,
        })
    }

    /// Posts receives, as many as there may be. Returns how many the peer can use.
    fn post_receives(&mut self) -> usize {
        let before = self.receives.len();
        while self.receives.len() < RECEIVES && self.held.len() > 2 {
            let Some(slot) = self.held.pop() else { break };
            self.world.count();
            match self.lane.receive(self.id, slot) {
                Ok(()) => self.receives.push_back(slot),
                Err(refused) => {
                    self.refused(&refused, &[slot]);
                    break;
                }
            }
        }
        self.lane.ring();
        self.receives.len() - before
    }

    /// Checks why a request was refused, and takes its slots back.
    fn refused(&mut self, refused: &PostErrorKind, slots: &[Slot]) {
        self.held.extend_from_slice(slots);
        match refused {
            PostErrorKind::QueueFull { .. } => assert!(self.sends.len() >= DEPTH, "{refused:?}"),
            PostErrorKind::ConnectionInvalid => self.has_failed = true,
            PostErrorKind::DeviceRemoved => assert!(self.adapter.is_removed()),
            _ => panic!("{refused:?}"),
        }
    }

    /// Posts requests and takes completions, and ends the connection.
    async fn live(
        &mut self,
        [there, back]: [&RefCell<Way>; 2],
        remote: RemoteRegion,
        connection: Connection,
        ending: Ending,
    ) {
        for _ in 0..self.world.draw(0..=40) {
            if self.post(there, remote).is_none() || self.has_failed {
                break;
            }
            match self.world.draw(0..=5) {
                0 => self.lane.ring(),
                1 => self.poll(back),
                2 => self.ready(back, self.world.time(200)).await,
                3 => {
                    let more = self.post_receives();
                    back.borrow_mut().room += more;
                }
                _ => {}
            }
        }
        let ended = connection.disconnected();
        match ending {
            Ending::Wait => {}
            Ending::Disconnect => {
                let _ = self.world.within("disconnect", connection.disconnect()).await;
            }
            Ending::DropConnection => drop(connection),
            Ending::Close => self.lane.close(self.id),
        }
        self.world.within("the end of a connection of lanes", ended).await;
        self.poll(back);
    }

    /// Posts a request of some kind. `None` if the connection has ended.
    fn post(&mut self, there: &RefCell<Way>, remote: RemoteRegion) -> Option<()> {
        let world = self.world;
        world.count();
        let half = remote.len() / 2;
        let readable = remote.part(0..self.length as u32).expect("in bounds");
        let writable = remote.part(half..half + self.length as u32).expect("in bounds");
        let has_room = there.borrow().room > 0;
        let silent = WorkOptions::default().silent();
        let options = if world.once_in(4) { WorkOptions::default().fence() } else { WorkOptions::default() };
        let length = world.draw(0..=self.length as u64) as usize;
        let message: Vec<u8> = (0..length).map(|_| world.draw(0..=255) as u8).collect();
        let id = self.id;
        let (kind, parts, is_silent) = match world.draw(if has_room { 0 } else { 4 }..=8) {
            0 | 1 => (OpKind::Send, 1, false),
            2 => (OpKind::Send, world.draw(0..=2) as usize, world.once_in(2)),
            3 if length <= INLINE => (OpKind::Send, 0, false),
            3..=5 => (OpKind::Write, 1, world.once_in(3)),
            6 | 7 => (OpKind::Read, 1, false),
            _ => (OpKind::FetchAdd, 1, false),
        };
        if parts > self.held.len() || parts == 0 && length > INLINE || kind == OpKind::Send && !has_room {
            return Some(());
        }
        let slots = self.held.split_off(self.held.len() - parts);
        // The bytes, cut into as many parts.
        let cut = if parts == 2 { length / 3 } else { length };
        for (slot, part) in slots.iter().zip([&message[..cut], &message[cut..]]) {
            self.lane.bytes_mut(*slot)[..part.len()].copy_from_slice(part);
        }
        let several: Vec<_> = slots.iter().copied().zip([0..cut, 0..length - cut]).collect();
        let local = if parts == 0 { Local::Bytes(&message) } else { Local::Slots(&several) };
        let with = if is_silent { silent } else { options };
        let lane = &mut self.lane;
        let plain = parts == 1 && !is_silent && world.once_in(2);
        let outcome = match (kind, slots.first()) {
            (OpKind::Send, Some(slot)) if plain => lane.send(id, *slot, length),
            (OpKind::Send, _) => lane.send_with(id, local, with),
            (OpKind::Write, Some(slot)) if plain => lane.write(id, *slot, 0..length, &writable),
            (OpKind::Write, _) => lane.write_with(id, local, &writable, with),
            (OpKind::Read, Some(slot)) if plain => lane.read(id, *slot, 0..self.length, &readable),
            (OpKind::Read, Some(slot)) => {
                lane.read_with(id, Local::Slots(&[(*slot, 0..self.length)]), &readable, with)
            }
            (_, Some(slot)) => lane.fetch_add(id, *slot, &writable, 1, with),
            (_, None) => Ok(()),
        };
        if let Err(refused) = outcome {
            self.refused(&refused, &slots);
            return (!self.has_failed).then_some(());
        }
        if kind == OpKind::Send {
            let mut way = there.borrow_mut();
            way.room -= 1;
            way.sent.push_back(message);
        }
        self.sends.push_back(Posted { kind, slots, is_silent });
        Some(())
    }

    /// Takes completions.
    fn poll(&mut self, back: &RefCell<Way>) {
        let mut room = [Done::EMPTY; 3];
        match self.lane.poll(&mut room[..self.world.draw(1..=3) as usize]).map(<[Done]>::len) {
            Ok(count) => room[..count].iter().for_each(|done| self.take(done, back)),
            Err(error) => self.lost(error),
        }
    }

    /// Waits for completions for this time.
    async fn ready(&mut self, back: &RefCell<Way>, time: Duration) {
        let mut room = [Done::EMPTY; 3];
        match timeout(time, self.lane.ready(&mut room)).await.map(|done| done.map(<[Done]>::len)) {
            Ok(Ok(count)) => room[..count].iter().for_each(|done| self.take(done, back)),
            Ok(Err(error)) => self.lost(error),
            Err(_) => {}
        }
    }

    fn lost(&mut self, error: NotifyError) {
        assert!(error == NotifyError::DeviceRemoved && self.adapter.is_removed(), "{error:?}");
        self.has_failed = true;
    }

    /// Checks a completion, and takes its slots.
    fn take(&mut self, done: &Done, back: &RefCell<Way>) {
        let status = done.status();
        assert!(done.is_success() || ENDED.contains(&status), "{done:?}: {status}");
        self.has_failed |= !done.is_success();
        if done.kind() == OpKind::Receive {
            let slot = self.receives.pop_front().expect("a receive is outstanding");
            assert_eq!(done.slot(), slot, "in the order of the calls");
            if done.is_success() {
                let message = back.borrow_mut().sent.pop_front().expect("a message that was sent");
                assert!(self.lane.bytes(slot)[..done.bytes()] == message[..], "the bytes of a message");
            }
            self.held.push(slot);
            return;
        }
        loop {
            let Posted { kind, slots, is_silent } = self.sends.pop_front().expect("a request is outstanding");
            let first =
                slots.first().map_or(done.slot().number() as usize >= SLOTS, |slot| *slot == done.slot());
            let is_it = first && kind == done.kind();
            if is_silent && (done.is_success() || !is_it || self.is_reused(&slots)) {
                // It has succeeded, and its slots are free.
                let free: Vec<_> = slots.iter().filter_map(|_| self.lane.take()).collect();
                assert_eq!(free.len(), slots.len(), "the slots of silent requests");
                self.held.extend(free);
                continue;
            }
            assert!(is_it, "{done:?} is not of the next request, {kind:?} {slots:?}");
            if kind == OpKind::Read && done.is_success() {
                let found = self.lane.bytes(slots[0]);
                assert!(found.iter().all(|byte| *byte == PATTERN), "a read has found {found:?}");
            }
            self.held.extend(slots);
            return;
        }
    }

    /// Returns whether one of the slots of a silent request has been taken again: the lane had it back, so the request has succeeded.
    fn is_reused(&self, slots: &[Slot]) -> bool {
        let later = self.sends.iter().flat_map(|posted| &posted.slots);
        later.chain(&self.held).chain(&self.receives).any(|slot| slots.contains(slot))
    }

    /// Ends the queue pair, and checks that all slots are there.
    async fn finish(&mut self, back: &RefCell<Way>) {
        let world = self.world;
        self.lane.close(self.id);
        let gone = async {
            while self.lane.state(self.id) != LaneState::Gone && !self.adapter.is_removed() {
                self.ready(back, Duration::from_secs(1)).await;
            }
            // Those of silent requests have no completion.
            self.poll(back);
        };
        world.within("the end of a queue pair of a lane", gone).await;
        if self.adapter.is_removed() {
            return;
        }
        assert!(self.sends.iter().all(|posted| posted.is_silent), "requests have no completion");
        assert!(self.shared || self.receives.is_empty(), "receives have no completion");
        assert_eq!(self.lane.outstanding() as usize, self.receives.len());
        self.held.extend(std::iter::from_fn(|| self.lane.take()));
        assert_eq!(self.held.len() + self.receives.len(), SLOTS, "slots are lost");
    }
}
