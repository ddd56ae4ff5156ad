//! A thousand connections whose ends are dropped at random steps: no call hangs, and no object remains in the kernel.
//!
//! Runs on: rxe, siw

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::dice::Dice;
use common::life::{eventually, polled};
use common::resources::held;
use common::verbs::{amount, driver, make_completion_queues, nothing_held};
use common::*;
use tokio::sync::oneshot;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Connection, Listener, QueuePair};

/// How many there are at a time.
const AT_A_TIME: usize = 16;

/// Things in the order in which they are dropped.
type Things = Vec<Box<dyn Any + Send>>;

/// Drops them in any order, with a chance for others to run in between.
async fn scatter(mut things: Things, dice: &mut Dice) {
    while !things.is_empty() {
        drop(things.swap_remove(dice.below(things.len())));
        if dice.below(2) == 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// Polls a future some times, not for long, and drops it.
async fn given_up<F: Future>(future: F, dice: &mut Dice) -> Option<F::Output> {
    let (polls, time) = (dice.below(5), Duration::from_millis(dice.below(50) as u64));
    tokio::time::timeout(time, polled(future, polls)).await.ok().flatten()
}

/// Returns a queue pair to which some receives were posted, and what is to be dropped of both.
fn prepared(adapter: &Adapter, dice: &mut Dice) -> (QueuePair, Things) {
    let own = queue_pair(adapter);
    let mut things: Things = vec![Box::new(own.clone())];
    for _ in 0..dice.below(4) {
        things.push(Box::new(own.receive(adapter.buffer(8).expect("memory")).expect("posted")));
    }
    (own, things)
}

/// Connects as far as the dice say, and drops everything there.
async fn connect(adapter: Adapter, address: SocketAddr, mut dice: Dice) {
    let last = dice.below(5);
    let (own, mut things) = prepared(&adapter, &mut dice);
    let connector = adapter.connector();
    if dice.below(2) == 0 {
        connector.bind((v4(), 0).into()).expect("bound");
    }
    if last > 0 {
        let attempt = connector.connect(&own, address, ConnectParams::default());
        // The other end may refuse, at any moment.
        let reply = if last == 1 { given_up(attempt, &mut dice).await } else { Some(within(attempt).await) };
        match reply {
            Some(Ok(reply)) if last == 2 && dice.below(2) == 0 => drop(reply.reject(b"no").await),
            Some(Ok(reply)) if last == 2 => things.push(Box::new(reply)),
            Some(Ok(reply)) if last == 3 => drop(given_up(reply.complete(), &mut dice).await),
            Some(Ok(reply)) => {
                if let Ok(connection) = within(reply.complete()).await {
                    live(&adapter, &own, &connection, &mut things, &mut dice).await;
                    things.push(Box::new(connection));
                }
            }
            Some(Err(_)) | None => {}
        }
    }
    things.push(Box::new(connector));
    drop(own);
    scatter(things, &mut dice).await;
}

/// Accepts, until `gone`, as far as the dice say, and drops everything there.
async fn accept(adapter: Adapter, listener: Listener, gone: oneshot::Receiver<()>, mut dice: Dice) {
    let last = dice.below(6);
    let mut things: Things = Vec::new();
    let request = match last {
        0 => given_up(listener.request(), &mut dice).await,
        _ => tokio::select! {
            request = listener.request() => Some(request),
            _ = gone => None,
        },
    };
    if let Some(Ok(request)) = request {
        let (own, prepared) = prepared(&adapter, &mut dice);
        things.extend(prepared);
        let reject = dice.below(2) == 0;
        match last {
            0 | 1 if reject => drop(within(request.reject(b"no")).await),
            0 | 1 => things.push(Box::new(request)),
            2 => drop(given_up(request.accept(&own, AcceptParams::default()), &mut dice).await),
            _ => {
                if let Ok(connection) = within(request.accept(&own, AcceptParams::default())).await {
                    live(&adapter, &own, &connection, &mut things, &mut dice).await;
                    if last == 5 {
                        // The other end leaves sooner or later.
                        within(connection.disconnected()).await;
                    }
                    things.push(Box::new(connection));
                }
            }
        }
    }
    things.push(Box::new(listener));
    scatter(things, &mut dice).await;
}

/// Uses an end that is connected, and perhaps disconnects it.
async fn live(
    adapter: &Adapter,
    own: &QueuePair,
    connection: &Connection,
    things: &mut Things,
    dice: &mut Dice,
) {
    for _ in 0..dice.below(3) {
        // The other end may have left.
        if let Ok(send) = own.send(adapter.buffer(8).expect("memory")) {
            things.push(Box::new(send));
        }
    }
    match dice.below(4) {
        0 => {}
        1 => _ = given_up(connection.disconnected(), dice).await,
        2 => _ = given_up(connection.disconnect(), dice).await,
        _ => _ = within(connection.disconnect()).await,
    }
}

/// Runs both ends of a connection, and the listener between them.
async fn come_and_go(adapter: Adapter, mut dice: Dice) {
    let (listener, address) = listening(&adapter);
    let (tell, gone) = oneshot::channel();
    let passive = tokio::spawn(accept(adapter.clone(), listener, gone, dice.split()));
    let active = tokio::spawn(connect(adapter, address, dice.split()));
    active.await.expect("no panic");
    let _ = tell.send(());
    passive.await.expect("no panic");
}

// Each connection is dropped at a moment drawn from the seed, and no object of the device remains (CAN-03, CAN-04,
// CAN-10).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_dropped_anywhere_leave_nothing() {
    if driver().is_none() {
        return;
    }
    let count = amount("TOKIO_RDMA_TEST_CONNECTIONS", 1_000);
    let seed = Dice::seed();
    let adapter = adapter();
    make_completion_queues(&adapter).await;
    let idle = held();
    let next = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..AT_A_TIME)
        .map(|_| {
            let (adapter, next) = (adapter.clone(), next.clone());
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    tokio::spawn(come_and_go(adapter.clone(), Dice::of(seed, number)))
                        .await
                        .unwrap_or_else(|_| panic!("connection {number} of seed {seed}"));
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("no panic");
    }
    // Neither an object of the device is left but the adapter's own, nor a descriptor.
    eventually("what the connections had is given back", || held() == idle).await;
    let pair = connected(&adapter).await;
    cm::exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
    drop((pair, adapter));
    nothing_held().await;
}
