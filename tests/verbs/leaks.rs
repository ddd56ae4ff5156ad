//! A connection leaves no object in the kernel, at whatever step it is dropped.
//!
//! Runs on: rxe, siw

use std::net::SocketAddr;
use std::time::Duration;

use common::cm::exchange;
use common::life::{eventually, polled};
use common::resources::listed;
use common::verbs::{
    Link, descriptors, driver, make_completion_queues, nothing_held, one_at_a_time, resources,
};
use common::*;
use futures::future::{BoxFuture, join_all};
use tokio::runtime::{Builder, Runtime};
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, QueuePair, Status};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Runs a test with an adapter, after which the kernel and the process hold no more than before.
fn leaves_nothing<F: Future<Output = ()>>(test: impl FnOnce(Adapter) -> F) {
    if driver().is_none() {
        return;
    }
    let _turn = one_at_a_time();
    let runtime = runtime();
    // The runtime and the libraries open some descriptors once they are used.
    runtime.block_on(async {
        let pair = connected(&adapter()).await;
        within(pair.active.connection.disconnect()).await.expect("disconnected");
    });
    runtime.block_on(nothing_held());
    let before = descriptors();
    runtime.block_on(async {
        let adapter = adapter();
        test(adapter.clone()).await;
        let pair = connected(&adapter).await;
        exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
        let held = resources();
        assert!(held.iter().filter(|line| line.starts_with("qp")).count() >= 2, "{held:?}");
    });
    runtime.block_on(nothing_held());
    runtime.block_on(life::eventually("the descriptors are closed", || descriptors() <= before));
}

/// Polls a future at most so many times, and not for long, and drops it.
async fn given_up<F: Future>(future: F, most: usize) -> Option<F::Output> {
    let polled = tokio::time::timeout(Duration::from_millis(200), polled(future, most)).await;
    // A task that gives up at once leaves the others their turn.
    tokio::task::yield_now().await;
    polled.ok().flatten()
}

/// Connects, gets so far, and gives up.
async fn come_and_go(adapter: &Adapter, address: SocketAddr, most: usize) {
    let own = queue_pair(adapter);
    let _receive = own.receive(adapter.buffer(8).expect("memory")).expect("posted");
    let connector = adapter.connector();
    let connect = async {
        let reply = connector.connect(&own, address, ConnectParams::default()).await.ok()?;
        tokio::task::yield_now().await;
        let connection = reply.complete().await.ok()?;
        tokio::task::yield_now().await;
        let sent = own.send(adapter.buffer(8).expect("memory")).ok()?;
        let _ = sent.await;
        connection.disconnect().await.ok()
    };
    given_up(connect, most).await;
}

// Each queue pair reserves its room in a completion queue, and a queue without queue pairs is destroyed (CQ-08).
#[test]
fn queue_pairs_share_completion_queues() {
    leaves_nothing(async |adapter| {
        let queues = || resources().iter().filter(|line| line.starts_with("cq")).count();
        make_completion_queues(&adapter).await;
        let before = queues();
        let mut pairs = join_all((0..20).map(|_| connected(&adapter))).await;
        let now = queues();
        assert!(now > before && now < before + 10, "{before}, then {now} with 40 queue pairs");
        for flush in [true, false] {
            let exchanges = pairs
                .iter()
                .map(|pair| exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair));
            join_all(exchanges).await;
            // The end of one is of no concern to the others.
            if let Some(Pair { active, passive }) = pairs.pop().filter(|_| flush) {
                let receive = active.queue_pair.receive(adapter.buffer(8).expect("memory")).expect("posted");
                active.queue_pair.flush();
                assert_eq!(within(receive).await.0.expect_err("flushed").status(), Status::CANCELED);
                within(passive.connection.disconnected()).await;
            }
        }
        drop(pairs);
        life::eventually("all but the first of each thread go", || queues() == before).await;
    });
}

// CAN-03, CAN-04: step by step, with a peer that goes on.
#[test]
fn every_future_may_be_dropped_at_every_await() {
    leaves_nothing(async |adapter| {
        for most in 1..8 {
            let (listener, address) = listening(&adapter);
            let theirs = queue_pair(&adapter);
            let accept = tokio::spawn(async move {
                let connection = listener.accept_next(&theirs, AcceptParams::default()).await.ok()?;
                connection.disconnected().await;
                connection.disconnect().await.ok()
            });
            come_and_go(&adapter, address, most).await;
            accept.abort();
            let _ = accept.await;

            let pair = connected(&adapter).await;
            given_up(pair.active.connection.disconnected(), most).await;
            given_up(pair.active.connection.disconnect(), most).await;
            given_up(pair.passive.connection.disconnect(), most).await;
        }
    });
}

// The runtime of the adapter does not run while the objects are destroyed, so their events stay queued (CAN-12).
#[test]
fn untaken_events_do_not_block_destruction() {
    leaves_nothing(async |_| {
        tokio::task::spawn_blocking(destroy_under_queued_events).await.expect("no panic");
    });
}

/// Destroys everything at once, on as many threads as there are cores and more, while its events are queued.
fn destroy_under_queued_events() {
    // It takes events only while it is asked to run something.
    let busy = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut jobs: Vec<Box<dyn FnOnce() + Send>> = busy.block_on(async {
        let adapter = adapter();
        let mut jobs: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
        for _ in 0..24 {
            let (listener, address) = listening(&adapter);
            let connector = adapter.connector();
            let own: QueuePair = queue_pair(&adapter);
            let attempt = own.clone();
            let mut connect: BoxFuture<'static, ()> = Box::pin(async move {
                let _ = connector.connect(&attempt, address, ConnectParams::default()).await;
            });
            assert!(life::poll_once(&mut connect).is_pending());
            jobs.push(Box::new(move || drop(listener)));
            jobs.push(Box::new(move || drop((connect, own))));
        }
        jobs
    });
    let expected = jobs.len();
    let (tell, told) = std::sync::mpsc::channel();
    while !jobs.is_empty() {
        let mine = jobs.split_off(jobs.len().saturating_sub(6));
        let tell = tell.clone();
        std::thread::spawn(move || {
            for job in mine {
                job();
                let _ = tell.send(());
            }
        });
    }
    for _ in 0..expected {
        told.recv_timeout(patience()).expect("none of them hangs");
    }
    // Only now does anybody look at the events.
    busy.block_on(tokio::task::yield_now());
}

/// Returns whether the kernel is connecting to this peer.
fn is_connecting(peer: SocketAddr) -> bool {
    let peer = format!(" dst-addr {peer} ");
    listed("cm_id").lines().any(|id| id.contains(" state CONNECT ") && id.contains(&peer))
}

// A connect that is dropped waits neither for a peer that does not answer nor for a host that does not exist (CAN-03).
#[test]
fn dropped_connect_delays_no_other_connection() {
    let Some(driver) = driver() else { return };
    // The kernel's connect is not waited for, but the end of this test is: it takes seven seconds.
    std::fs::write("/proc/sys/net/ipv4/tcp_syn_retries", "2").expect("root in the guest");
    let _turn = one_at_a_time();
    // One thread: what blocked it would keep it from its own events.
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let link = Link::new(driver);
        let adapter = link.open();
        let (listener, address) = listening_at(&adapter, link.address);
        let nobody = SocketAddr::new(link.silent, 7);
        for peer in [address, nobody] {
            let connector = adapter.connector();
            let own = queue_pair(&adapter);
            let mut connect =
                Box::pin(connector.connect(&own, peer, ConnectParams::default().private_data(&b"?"[..])));
            // The request has arrived, or is on its way to a host that does not exist.
            let asked = if peer == address {
                tokio::select! {
                    request = within(listener.request()) => Some(request.expect("a request")),
                    _ = &mut connect => panic!("nobody has answered"),
                }
            } else {
                tokio::select! {
                    biased;
                    () = eventually("the kernel connects", || is_connecting(peer)) => None,
                    _ = &mut connect => panic!("nobody is there"),
                }
            };
            drop(connect);
            // Another connection comes about while the kernel is busy with that one.
            let pair = connected(&common::adapter()).await;
            within(pair.active.connection.disconnect()).await.expect("disconnected");
            drop(asked);
            drop(own);
        }
    });
    // The runtime does not wait here for what the kernel is still busy with.
    runtime.shutdown_background();
}
