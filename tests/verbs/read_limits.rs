//! The limit of reads in flight over all connections of an adapter, and the line of those that wait for a place.
//!
//! Runs on: fake, fake-iwarp

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};

use common::life::{Once, eventually, poll_once, poll_with};
use common::process::alone;
use common::raw::{bytes, success};
use common::stream::streams;
use common::verbs::{fake, fake_reset};
use common::*;
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::qp::{Done, LaneConfig, LaneState, Local, QueuePairId, ReadPermit};
use tokio_rdma::verbs::VerbsConfig;
use tokio_rdma::{
    AcceptParams, Access, Adapter, ConnectParams, Op, Provider, QueuePair, QueuePairConfig, Region,
    RegionSlice, RemoteRegion, SharedReceiveConfig, Status, WorkOptions,
};

/// The device, with so many reads in flight at most.
fn limited(reads: usize) -> Adapter {
    let config = VerbsConfig::default().max_reads(Some(reads));
    Provider::verbs_with(config).expect("a device").open(v4()).expect("opened")
}

/// Memory of a peer that can be read, and where it is read to.
struct Memory {
    there: Region,
    here: Region,
}

impl Memory {
    async fn of(adapter: &Adapter) -> Self {
        let register = |access| adapter.register(64, access);
        let there = register(Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::LOCAL_WRITE).await;
        let here = register(Access::LOCAL_WRITE | Access::READ_SINK).await;
        Self { there: there.expect("registered"), here: here.expect("registered") }
    }

    fn remote(&self) -> RemoteRegion {
        self.there.remote()
    }

    fn sink(&self, length: usize) -> RegionSlice {
        self.here.slice(0..length).expect("in bounds")
    }

    fn read(&self, queue_pair: &QueuePair) -> Result<Op<RegionSlice>, PostErrorKind> {
        queue_pair.read(self.sink(8), &self.remote()).map_err(|error| {
            assert_eq!(error.buffer.range(), 0..8, "the buffer comes back");
            error.kind
        })
    }

    /// Reads until all places are taken. Returns their number.
    fn free(&self, queue_pair: &QueuePair) -> usize {
        let ops: Vec<_> = std::iter::from_fn(|| self.read(queue_pair).ok()).collect();
        ops.len()
    }
}

/// A wait for a place, which has been polled once.
type Waiting<'a> = Pin<Box<dyn Future<Output = Result<ReadPermit<'a>, PostErrorKind>> + 'a>>;

fn waiting(queue_pair: &QueuePair) -> Waiting<'_> {
    let mut waiting: Waiting<'_> = Box::pin(queue_pair.reserve_read());
    assert!(poll_once(&mut waiting).is_pending(), "there is no place");
    waiting
}

/// Polls a wait whose turn has come.
fn ready<'a>(waiting: &mut Waiting<'a>) -> ReadPermit<'a> {
    match poll_once(waiting) {
        Poll::Ready(permit) => permit.expect("a place"),
        Poll::Pending => panic!("it has its place"),
    }
}

const fn full(limit: usize) -> PostErrorKind {
    PostErrorKind::ReadsFull { limit }
}

// HW-21: the places are those of the adapter, and only reads and atomics with bytes have one.
#[tokio::test]
async fn reads_beyond_the_limit_are_refused() {
    if !alone(module_path!(), "reads_beyond_the_limit_are_refused") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = limited(2);
    let memory = Memory::of(&adapter).await;
    let (one, other) = (connected(&adapter).await, connected(&adapter).await);
    let (one, other, peer) = (&one.active.queue_pair, &other.active.queue_pair, &one.passive.queue_pair);
    fake("port 1 down");
    let mut reads = [one, other].map(|queue_pair| memory.read(queue_pair).expect("posted"));
    for queue_pair in [one, other] {
        assert_eq!(memory.read(queue_pair).map(drop), Err(full(2)));
        if adapter.info().atomics {
            let options = WorkOptions::default();
            let swapped = queue_pair.compare_swap(memory.sink(8), &memory.remote(), 0, 1, options);
            assert_eq!(swapped.expect_err("an atomic counts").kind, full(2));
            let added = queue_pair.fetch_add(memory.sink(8), &memory.remote(), 1, options);
            assert_eq!(added.expect_err("an atomic counts").kind, full(2));
        }
    }
    assert_eq!(full(2).status(), Status::NO_MORE_ENTRIES);
    let nothing = one.read((), &memory.remote()).expect("it has no bytes");
    let receive = peer.receive(adapter.buffer(8).expect("memory")).expect("posted");
    let send = one.send(bytes(&adapter, b"message")).expect("posted");
    assert!(reads.iter_mut().all(|read| poll_once(read).is_pending()));
    fake("port 1 up");
    for read in reads {
        success(read).await;
    }
    success(nothing).await;
    success(send).await;
    success(receive).await;
    assert_eq!(memory.free(other), 2);
}

// HW-21: without a limit as many are posted as the queue has room for, and nothing waits.
#[tokio::test]
async fn reads_without_a_limit_are_posted() {
    if !alone(module_path!(), "reads_without_a_limit_are_posted") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let memory = Memory::of(&adapter).await;
    let ends = connected(&adapter).await;
    let queue_pair = &ends.active.queue_pair;
    fake("port 1 down");
    let permit = ready(&mut (Box::pin(queue_pair.reserve_read()) as Waiting<'_>));
    let last = permit.read(memory.sink(8), &memory.remote()).expect("posted");
    assert_eq!(memory.free(queue_pair), 127);
    assert!(matches!(memory.read(queue_pair).map(drop), Err(PostErrorKind::QueueFull { .. })));
    fake("port 1 up");
    success(last).await;
}

// HW-21: a read that nobody awaits has its place until it completes, a silent one, too.
#[tokio::test]
async fn a_dropped_read_keeps_its_place() {
    if !alone(module_path!(), "a_dropped_read_keeps_its_place") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = limited(1);
    let memory = Memory::of(&adapter).await;
    let ends = connected(&adapter).await;
    let queue_pair = &ends.active.queue_pair;
    for options in [WorkOptions::default(), WorkOptions::default().silent()] {
        fake("port 1 down");
        drop(queue_pair.read_with(memory.sink(8), &memory.remote(), options).expect("posted"));
        assert_eq!(memory.read(queue_pair).map(drop), Err(full(1)));
        let waiting = waiting(queue_pair);
        fake("port 1 up");
        drop(within(waiting).await.expect("it has completed"));
    }
    assert_eq!(memory.free(queue_pair), 1);
}

// HW-21: waits take turns in the order in which they began, over all connections; one that is dropped leaves the line.
#[tokio::test]
async fn waits_for_places_take_turns() {
    if !alone(module_path!(), "waits_for_places_take_turns") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    // 0 is 1.
    let adapter = limited(0);
    let memory = Memory::of(&adapter).await;
    let (one, other) = (connected(&adapter).await, connected(&adapter).await);
    let (one, other) = (&one.active.queue_pair, &other.active.queue_pair);
    let first = one.reserve_read().await.expect("a place");
    let [mut second, third, mut fourth, mut fifth] = [other, one, one, other].map(waiting);
    let op = first.read(memory.sink(8), &memory.remote()).expect("posted");
    assert!(poll_once(&mut second).is_pending(), "the read has the place of its permit");
    success(op).await;
    assert!(poll_once(&mut fourth).is_pending(), "the place is that of the second");
    assert_eq!(memory.read(one).map(drop), Err(full(1)), "no read overtakes those that wait");
    let permit = ready(&mut second);
    drop(third);
    assert!(poll_once(&mut fourth).is_pending());
    drop(permit);
    assert!(poll_once(&mut fifth).is_pending(), "the place is that of the fourth");
    // Dropped with its place.
    drop(fourth);
    drop(ready(&mut fifth));
    assert_eq!(memory.free(other), 1);
}

// HW-21: a permit that posts nothing frees its place, and a read that is refused has none. No place is freed twice.
#[tokio::test]
async fn refused_reads_leave_their_places() {
    if !alone(module_path!(), "refused_reads_leave_their_places") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = limited(2);
    let memory = Memory::of(&adapter).await;
    let ends = connected(&adapter).await;
    let queue_pair = &ends.active.queue_pair;
    for _ in 0..3 {
        let permit = queue_pair.reserve_read().await.expect("a place");
        let error = permit.read(memory.sink(64), &RemoteRegion::new(0, memory.remote().key(), 8));
        let error = error.expect_err("longer than the memory of the peer");
        assert!(matches!(error.kind, PostErrorKind::BeyondRemote { .. }), "{error:?}");
        fake(&format!("fail ibv_post_send 1 {}", libc::EIO));
        let permit = queue_pair.reserve_read().await.expect("a place");
        let error = permit.read(memory.sink(8), &memory.remote()).expect_err("refused by the device");
        assert_eq!(error.kind, PostErrorKind::Device(libc::EIO));
        fake(&format!("fail ibv_post_send 1 {}", libc::EIO));
        assert_eq!(memory.read(queue_pair).map(drop), Err(PostErrorKind::Device(libc::EIO)));
    }
    if adapter.info().atomics {
        let options = WorkOptions::default();
        let permit = queue_pair.reserve_read().await.expect("a place");
        success(permit.compare_swap(memory.sink(8), &memory.remote(), 0, 7, options).expect("posted")).await;
        let permit = queue_pair.reserve_read().await.expect("a place");
        success(permit.fetch_add(memory.sink(8), &memory.remote(), 1, options).expect("posted")).await;
        assert_eq!(memory.there.load_u64(0, Ordering::Relaxed).expect("eight bytes"), 8);
    }
    assert_eq!(memory.free(queue_pair), 2);
}

// HW-21: the requests of a batch are sent before it waits, or it would wait for itself.
#[tokio::test]
async fn a_batch_is_sent_before_it_waits() {
    if !alone(module_path!(), "a_batch_is_sent_before_it_waits") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = limited(1);
    let memory = Memory::of(&adapter).await;
    let ends = connected(&adapter).await;
    let batch = ends.active.queue_pair.batch();
    let first = batch.read(memory.sink(8), &memory.remote()).expect("posted");
    let permit = within(batch.reserve_read()).await.expect("the first has completed");
    let second = permit.read(memory.sink(8), &memory.remote()).expect("posted");
    drop(batch);
    success(first).await;
    success(second).await;
}

/// The ends of a queue pair with reads in flight. While the port is down, as it is over iWARP, a disconnect has no answer.
const ENDS: [&str; 5] = ["the peer leaves", "this side leaves", "flushed", "dropped", "shared receives"];

// HW-21: the end of a queue pair frees the places of its reads, whether or not the device gives them back before.
#[tokio::test]
async fn ended_queue_pair_frees_places() {
    if !alone(module_path!(), "ended_queue_pair_frees_places") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = limited(2);
    let iwarp = adapter.info().iwarp;
    let memory = Memory::of(&adapter).await;
    let other = connected(&adapter).await;
    let shared = adapter.shared_receive_queue(SharedReceiveConfig::default()).expect("a queue");
    let ends = ENDS.into_iter().skip(if iwarp { 2 } else { 0 });
    for (end, keeps) in ends.flat_map(|end| [(end, false), (end, true)]) {
        let config = QueuePairConfig::default();
        let config = if end == "shared receives" { config.shared_receives(&shared) } else { config };
        let queue_pair = adapter.queue_pair(config).expect("a queue pair");
        let peer = common::queue_pair(&adapter);
        let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
        let ends = connected_queue_pairs(&adapter, queue_pair, peer, connect, accept).await;
        let End { queue_pair, connection } = ends.active;
        if iwarp {
            fake("port 1 down");
        } else {
            // The reads wait behind a message that finds no receive.
            drop(queue_pair.send(bytes(&adapter, b"message")).expect("posted"));
        }
        let reads = [(); 2].map(|()| memory.read(&queue_pair).expect("posted"));
        let wait = waiting(&other.active.queue_pair);
        if keeps {
            fake("keep requests");
        }
        match end {
            "the peer leaves" => within(ends.passive.connection.disconnect()).await.expect(end),
            "this side leaves" => within(connection.disconnect()).await.expect(end),
            "dropped" => drop(queue_pair),
            _ => queue_pair.flush(),
        }
        drop(within(wait).await.expect(end));
        for read in reads {
            let (ended, _) = within(read).await;
            assert_eq!(ended.expect_err("it was flushed").status(), Status::CANCELED, "{end}");
        }
        fake("keep nothing");
        fake("port 1 up");
        // A thread of the device frees the second one, maybe behind the end of its read.
        eventually(end, || poll_both(&other.active.queue_pair)).await;
    }
}

/// Whether two places are free.
fn poll_both(queue_pair: &QueuePair) -> bool {
    let mut both = [(); 2].map(|()| Box::pin(queue_pair.reserve_read()) as Waiting<'_>);
    let permits = both.each_mut().map(poll_once);
    permits.iter().all(Poll::is_ready)
}

// HW-21: a wait ends with its queue pair as a post fails, however long others keep the places.
#[tokio::test]
async fn waits_end_with_their_queue_pair() {
    if !alone(module_path!(), "waits_end_with_their_queue_pair") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = limited(1);
    let memory = Memory::of(&adapter).await;
    let keeper = connected(&adapter).await;
    let permit = keeper.active.queue_pair.reserve_read().await.expect("a place");
    let unconnected = queue_pair(&adapter);
    let refused = within(unconnected.reserve_read()).await.map(drop);
    assert_eq!(refused, Err(PostErrorKind::ConnectionInvalid), "never connected");
    for end in ["the peer leaves", "this side leaves", "flushed", "its connection is dropped"] {
        let Pair { active: End { queue_pair, connection }, passive } = connected(&adapter).await;
        let wait = waiting(&queue_pair);
        match end {
            "the peer leaves" => drop(within(passive.connection.disconnect()).await),
            "this side leaves" => drop(within(connection.disconnect()).await),
            "flushed" => queue_pair.flush(),
            _ => drop(connection),
        }
        let refused = within(wait).await.map(drop).expect_err(end);
        assert_eq!(Err(refused), memory.read(&queue_pair).map(drop), "{end}");
        assert_eq!(refused.status(), Status::CONNECTION_INVALID, "{end}");
    }
    let Pair { active, passive: _passive } = connected(&adapter).await;
    let wait = waiting(&active.queue_pair);
    fake("remove");
    assert_eq!(within(wait).await.map(drop), Err(PostErrorKind::DeviceRemoved));
    drop(permit);
}

// HW-21, CAN-07: the waker of the next in line is called without the locks of the queue pair whose read has completed.
#[tokio::test]
async fn the_next_in_line_may_post_at_once() {
    if !alone(module_path!(), "the_next_in_line_may_post_at_once") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = limited(1);
    let memory = Memory::of(&adapter).await;
    for flushed in [false, true] {
        let (ends, other) = (connected(&adapter).await, connected(&adapter).await);
        let queue_pair = ends.active.queue_pair.clone();
        fake("port 1 down");
        let read = memory.read(&queue_pair).expect("posted");
        let mut wait: Waiting<'_> = Box::pin(other.active.queue_pair.reserve_read());
        let (again, buffer) = (queue_pair.clone(), bytes(&adapter, b"message"));
        let woken = Once::new(move || drop(again.send(buffer)));
        assert!(poll_with(&mut wait, &Waker::from(Arc::clone(&woken))).is_pending());
        if flushed {
            queue_pair.flush();
        }
        fake("port 1 up");
        drop(within(read).await);
        woken.done().await;
        drop(ready(&mut wait));
    }
}

/// A request of a lane that reads.
fn lane_read(
    lane: &mut tokio_rdma::qp::Lane,
    id: QueuePairId,
    memory: &Memory,
    options: WorkOptions,
) -> Result<(), PostErrorKind> {
    lane.read_with(id, Local::Region(&memory.sink(8)), &memory.remote(), options)
}

// HW-21: the reads and atomics of lanes count, with those of queue pairs, until a poll of the lane or the end of its queue pair.
#[tokio::test]
async fn reads_of_lanes_count() {
    if !alone(module_path!(), "reads_of_lanes_count") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = limited(2);
    let memory = Memory::of(&adapter).await;
    let ends = connected(&adapter).await;
    let other = &ends.active.queue_pair;
    let slots = !adapter.info().read_sink_required;
    for end in ["polled", "closed", "destroyed", "dropped"] {
        let mut lane = adapter.lane(&LaneConfig::new(4, 64)).expect("a lane");
        let (id, handle) = lane.queue_pair().expect("a queue pair");
        let (listener, address) = listening(&adapter);
        let peer = queue_pair(&adapter);
        let connector = adapter.connector();
        let _ends = joined(
            connector.connect_and_complete(&handle, address, ConnectParams::default()),
            listener.accept_next(&peer, AcceptParams::default()),
        )
        .await;
        assert_eq!(lane.state(id), LaneState::Connected);
        let [slot, spare] = [(); 2].map(|()| lane.take().expect("a slot"));
        let options = WorkOptions::default();
        for round in 0..2 {
            fake("port 1 down");
            if slots && round == 0 {
                lane.read(id, slot, 0..8, &memory.remote()).expect("posted");
            } else {
                lane_read(&mut lane, id, &memory, options.silent()).expect("posted");
            }
            lane_read(&mut lane, id, &memory, options).expect("posted");
            assert_eq!(memory.read(other).map(drop), Err(full(2)));
            assert_eq!(lane_read(&mut lane, id, &memory, options), Err(full(2)));
            if slots {
                assert_eq!(lane.read(id, spare, 0..8, &memory.remote()), Err(full(2)));
                let added = lane.fetch_add(id, spare, &memory.remote(), 1, options);
                assert_eq!(added, Err(full(2)));
                assert_eq!(lane.bytes(spare).len(), 64, "it is held");
            }
            let wait = waiting(other);
            if end != "polled" {
                break;
            }
            fake("port 1 up");
            let mut room = [Done::EMPTY; 4];
            within(async {
                while lane.outstanding() > 0 {
                    lane.ready(&mut room).await.expect("the lane lives");
                }
            })
            .await;
            drop(within(wait).await.expect("they have completed"));
            assert!(poll_both(other), "round {round}");
        }
        if end == "polled" {
            continue;
        }
        let wait = waiting(other);
        if end == "destroyed" {
            fake("keep requests");
        }
        if end == "dropped" {
            drop(lane);
            drop(within(wait).await.expect(end));
        } else {
            lane.close(id);
            let mut room = [Done::EMPTY; 4];
            let polling = async { while lane.ready(&mut room).await.is_ok() {} };
            tokio::select! {
                permit = within(wait) => drop(permit.expect(end)),
                () = polling => panic!("the lane has ended"),
            }
        }
        fake("keep nothing");
        fake("port 1 up");
        eventually("both places are free", || poll_both(other)).await;
    }
}

// HW-21: a read beside the bytes of a stream waits in the line, and is not refused.
#[tokio::test]
async fn reads_beside_a_stream_wait() {
    if !alone(module_path!(), "reads_beside_a_stream_wait") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = limited(1);
    let memory = Memory::of(&adapter).await;
    let (stream, _peer) = streams(&adapter).await;
    let reads = stream.one_sided().expect("a device has them");
    let keeper = connected(&adapter).await;
    let permit = keeper.active.queue_pair.reserve_read().await.expect("a place");
    let remote = memory.remote();
    let mut read = Box::pin(reads.read(memory.sink(8), &remote));
    assert!(poll_once(&mut read).is_pending());
    drop(permit);
    within(read).await.expect("it is its turn");
    assert_eq!(memory.free(&keeper.active.queue_pair), 1);
}

// HW-21: a read that waits for others of its stream has no place among those of the adapter.
#[tokio::test]
async fn reads_that_wait_for_their_stream_take_no_place() {
    // A stream has four of its own under way.
    const ITS_OWN: usize = 4;
    if !alone(module_path!(), "reads_that_wait_for_their_stream_take_no_place") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = limited(2 * ITS_OWN);
    let memory = Memory::of(&adapter).await;
    let (stream, _peer) = streams(&adapter).await;
    let handles = [(); 2].map(|()| stream.one_sided().expect("a device has them"));
    let keeper = connected(&adapter).await;
    fake("port 1 down");
    let remote = memory.remote();
    let mut reads = Vec::new();
    for handle in &handles {
        for _ in 0..ITS_OWN {
            let mut read = Box::pin(handle.read(memory.sink(8), &remote));
            assert!(poll_once(&mut read).is_pending());
            reads.push(read);
        }
    }
    assert_eq!(memory.free(&keeper.active.queue_pair), ITS_OWN);
    fake("port 1 up");
    for read in reads {
        within(read).await.expect("read in its turn");
    }
}
