//! Concurrent calls from many threads.
//!
//! Runs on: soft, sim, rxe, siw

use common::deviation::*;
use common::life::*;
use common::*;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::FutureExt;
use tokio_rdma::error::{AcceptError, ConnectError};
use tokio_rdma::{
    AcceptParams, Adapter, Buffer, ConnectParams, Connection, Connector, DisconnectReason, Op, QueuePair,
    Status,
};

/// A delay that looks for the moment at which two calls meet: of the cancel, or where it is negative of the other call.
///
/// Until each of the two has been the earlier one, it goes twice as far each time: so both orders occur, however long a
/// thread takes to start. Then it stays near the moment.
struct Aim {
    /// In nanoseconds.
    delay: i64,
    early: usize,
    late: usize,
    /// The last change of the delay.
    step: i64,
}

impl Aim {
    const LEAST: i64 = 20;
    const MOST: i64 = 100_000_000;

    fn new(delay: i64) -> Self {
        Self { delay, early: 0, late: 0, step: delay }
    }

    /// Counts a cancel that took effect, and lets the next one wait longer.
    fn early(&mut self) {
        self.early += 1;
        self.turn(1);
    }

    /// Counts a cancel that came too late, and lets the next one wait less.
    fn late(&mut self) {
        self.late += 1;
        self.turn(-1);
    }

    fn turn(&mut self, direction: i64) {
        let both = self.early > 0 && self.late > 0;
        self.step = if both { self.delay.abs() / 16 } else { self.step * 2 }.clamp(Self::LEAST, Self::MOST);
        self.delay += direction * self.step;
    }

    /// Lets the cancel have its start.
    fn wait(&self) {
        spin(-self.delay);
    }
}

/// Spins for so many nanoseconds; not at all if they are negative.
fn spin(nanoseconds: i64) {
    let Ok(nanoseconds) = u64::try_from(nanoseconds) else { return };
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_nanos(nanoseconds) {
        std::hint::spin_loop();
    }
}

/// Cancels on another thread, so much later than the flag is up.
fn cancel_after(connector: &Arc<Connector>, go: &Arc<AtomicBool>, delay: i64) -> std::thread::JoinHandle<()> {
    let (connector, go) = (connector.clone(), go.clone());
    std::thread::spawn(move || {
        while !go.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        spin(delay);
        connector.cancel();
    })
}

/// Proves that a connection carries data both ways, then ends it.
async fn use_up(adapter: &Adapter, a: (&QueuePair, &Connection), b: (&QueuePair, &Connection)) {
    for (from, to) in [(a.0, b.0), (b.0, a.0)] {
        let receive = to.receive(adapter.buffer(4).expect("memory")).expect("posted");
        let send = from.send(adapter.buffer_from(b"fine").expect("memory")).expect("posted");
        within(send).await.0.expect("sent");
        assert_eq!(within(receive).await.0.expect("received").bytes, 4);
    }
    within(a.1.disconnect()).await.expect("in order");
    assert_eq!(within(b.1.disconnected()).await, DisconnectReason::Peer);
}

/// Proves that the peer of a connect that was cancelled has no connection, or not for long.
async fn learns(accepted: Result<Connection, AcceptError>) {
    match accepted {
        Ok(connection) => {
            let reason = within(connection.disconnected()).await;
            assert!(matches!(reason, DisconnectReason::Peer | DisconnectReason::Lost { .. }), "{reason:?}");
        }
        Err(error) => {
            let listed = [Status::CONNECTION_REFUSED, Status::CONNECTION_ABORTED];
            assert!(listed.contains(&error.status()), "{error:?}");
        }
    }
}

// `Aim` moves the cancel around the moment of success, and both sides agree on the outcome each time (CAN-06).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_racing_its_cancel_has_one_outcome() {
    let adapter = adapter();
    let mut aim = Aim::new(10_000);
    for _ in 0..often(600, 30) {
        let (listener, address) = listening(&adapter);
        let (mine, theirs) = (queue_pair(&adapter), queue_pair(&adapter));
        let connector = Arc::new(adapter.connector());
        let (passive, moved) = (listener.clone(), theirs.clone());
        let accept = tokio::spawn(async move { passive.accept_next(&moved, AcceptParams::default()).await });
        let go = Arc::new(AtomicBool::new(false));
        let canceller = cancel_after(&connector, &go, aim.delay);
        let mut connect = pin!(connector.connect_and_complete(&mine, address, ConnectParams::default()));
        // Before the first poll there is nothing to cancel.
        let first = futures::poll!(&mut connect);
        go.store(true, Ordering::Release);
        let outcome = match first {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => within(connect).await,
        };
        canceller.join().expect("no panic");
        match outcome {
            Ok(connection) => {
                aim.late();
                let peer = within(accept).await.expect("no panic").expect("accepted");
                use_up(&adapter, (&mine, &connection), (&theirs, &peer)).await;
            }
            Err(ConnectError::Canceled) => {
                aim.early();
                // It may never have got as far as asking.
                eventually("nobody waits for it any more", || {
                    listener.cancel();
                    accept.is_finished()
                })
                .await;
                match within(accept).await.expect("no panic") {
                    Err(AcceptError::Canceled) => {}
                    // A refusal that comes before its request is lost, and no answer to the reply follows.
                    Err(AcceptError::TimedOut { .. }) if may_overtake(&adapter) => {}
                    accepted => learns(accepted).await,
                }
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(aim.early > 0 && aim.late > 0, "both have occurred: {} and {}", aim.early, aim.late);
}

// A `complete` that is cancelled fails at the peer, too, and one that succeeds gives a connection that works (CAN-06).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn complete_racing_its_cancel_has_one_outcome() {
    let adapter = adapter();
    let mut aim = Aim::new(1000);
    for _ in 0..often(1500, 40) {
        let (listener, address) = listening(&adapter);
        let (mine, theirs) = (queue_pair(&adapter), queue_pair(&adapter));
        let connector = Arc::new(adapter.connector());
        let moved = theirs.clone();
        let accept = tokio::spawn(async move { listener.accept_next(&moved, AcceptParams::default()).await });
        let reply = within(connector.connect(&mine, address, ConnectParams::default())).await;
        let reply = reply.expect("accepted");
        let go = Arc::new(AtomicBool::new(false));
        let canceller = cancel_after(&connector, &go, aim.delay);
        go.store(true, Ordering::Release);
        aim.wait();
        let outcome = within(reply.complete()).await;
        canceller.join().expect("no panic");
        let accepted = within(accept).await.expect("no panic");
        match outcome {
            Ok(connection) => {
                aim.late();
                let peer = accepted.expect("accepted");
                use_up(&adapter, (&mine, &connection), (&theirs, &peer)).await;
            }
            // Invalid (A26) when the cancel was over before the call was made.
            Err(ConnectError::Canceled | ConnectError::Invalid) => {
                aim.early();
                learns(accepted).await;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(aim.early > 0 && aim.late > 0, "both have occurred: {} and {}", aim.early, aim.late);
}

// A task cancels the waits without a pause, and every request is accepted all the same (CAN-06).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_not_lost_to_a_cancel() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let canceled = Arc::new(AtomicUsize::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let canceller = {
        let (listener, stop) = (listener.clone(), stop.clone());
        tokio::spawn(async move {
            while !stop.load(Ordering::Acquire) {
                listener.cancel();
                tokio::task::yield_now().await;
            }
        })
    };
    for _ in 0..often(300, 20) {
        let client = {
            let (queue_pair, connector) = (queue_pair(&adapter), adapter.connector());
            tokio::spawn(async move {
                let connected =
                    connector.connect_and_complete(&queue_pair, address, ConnectParams::default());
                // It stays until the accept is done: a device may handle the end of a connection before its RTU.
                connected.await.map(|connection| (connection, queue_pair))
            })
        };
        let queue_pair = queue_pair(&adapter);
        let request = within(async {
            loop {
                match listener.request().await {
                    Ok(request) => break request,
                    Err(AcceptError::Canceled) => canceled.fetch_add(1, Ordering::Relaxed),
                    Err(other) => panic!("{other:?}"),
                };
            }
        })
        .await;
        let connection = within(request.accept(&queue_pair, AcceptParams::default())).await;
        let connection = connection.expect("a request that is here is not cancelled any more");
        let (theirs, _queue_pair) = within(client).await.expect("no panic").expect("connected");
        assert_eq!(theirs.local_addr(), connection.peer_addr());
    }
    stop.store(true, Ordering::Release);
    within(canceller).await.expect("no panic");
    assert!(canceled.load(Ordering::Relaxed) > 0, "some were");
}

/// Posts a receive for the first message of the active side, if the passive side may not send first.
fn first_word(adapter: &Adapter, queue_pair: &QueuePair) -> Option<Op<Buffer>> {
    let buffer = || adapter.buffer(1).expect("memory");
    (!passive_sends_first(adapter)).then(|| queue_pair.receive(buffer()).expect("posted"))
}

// Sixteen tasks share an adapter and a listener, and treat their connections in different ways (CAN-13).
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everything_may_be_called_from_everywhere_at_once() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (adapter, listener) = (adapter.clone(), listener.clone());
        let active = adapter.clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..often(20, 4) {
                let queue_pair = queue_pair(&adapter);
                let first = first_word(&adapter, &queue_pair);
                // One that is lost before it was found complete has not been accepted.
                let accepted = listener.accept_next(&queue_pair, AcceptParams::default()).await;
                if let Ok(connection) = accepted {
                    if let Some(first) = first {
                        within(first).await.0.expect("received");
                    }
                    abuse(&adapter, &queue_pair, &connection, round % 4).await;
                }
            }
        }));
        tasks.push(tokio::spawn(async move {
            for round in 0..often(20, 4) {
                let (queue_pair, connector) = (queue_pair(&active), active.connector());
                let connect = connector.connect_and_complete(&queue_pair, address, ConnectParams::default());
                let connection = connect.await.expect("connected");
                if !passive_sends_first(&active) {
                    let word = queue_pair.send(active.buffer_from(b"!").expect("memory")).expect("posted");
                    within(word).await.0.expect("sent");
                }
                abuse(&active, &queue_pair, &connection, round % 3).await;
            }
        }));
    }
    for task in tasks {
        within(task).await.expect("no panic");
    }
}

/// Uses one connection in many tasks at once, some of which end it, and waits until all have finished.
async fn abuse(adapter: &Adapter, queue_pair: &QueuePair, connection: &Connection, how: usize) {
    let mut tasks = Vec::new();
    for i in 0..12 {
        let (adapter, queue_pair, connection) = (adapter.clone(), queue_pair.clone(), connection.clone());
        tasks.push(tokio::spawn(async move {
            match (i % 6, how) {
                (0, _) => {
                    connection.disconnected().await;
                }
                (1, _) => {
                    if let Ok(receive) = queue_pair.receive(adapter.buffer(64).expect("memory")) {
                        let _ = receive.await;
                    }
                }
                (2, _) => {
                    if let Ok(send) = queue_pair.send(adapter.buffer(64).expect("memory")) {
                        let _ = send.await;
                    }
                }
                (3, _) => connection.cancel(),
                (4, 0) => queue_pair.flush(),
                (_, 1) => drop(connection.disconnect().await),
                _ => drop((queue_pair, connection)),
            }
        }));
    }
    if how == 2 {
        let _ = connection.disconnect().await;
    }
    for task in tasks {
        within(task).await.expect("no panic");
    }
}

// A request is posted on one thread and awaited on another, which has no runtime (CAN-13).
#[tokio::test]
async fn operations_may_change_threads() {
    device::run_clock();
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let receive = passive.queue_pair.receive(adapter.buffer(8).expect("memory")).expect("posted");
    let awaited = std::thread::spawn(move || {
        // No runtime at all: the completion is a matter of wakers only.
        futures::executor::block_on(receive).0.expect("received").bytes
    });
    let send = std::thread::scope(|scope| {
        let post = || active.queue_pair.send(adapter.buffer(8).expect("memory")).expect("posted");
        scope.spawn(post).join().expect("no panic")
    });
    within(send).await.0.expect("sent");
    eventually("the other thread has it", || awaited.is_finished()).await;
    assert_eq!(awaited.join().expect("no panic"), 8);
    assert!(passive.connection.disconnected().now_or_never().is_none());
}
