//! The thread and the time at which a device returns memory.
//!
//! Runs on: rxe, siw

use std::sync::mpsc;

use common::life::{eventually, poll_once};
use common::raw::{bytes, room, success};
use common::resources::listed;
use common::verbs::{driver, one_at_a_time};
use common::*;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_rdma::{Access, PoolConfig};

/// A length of memory that takes long enough to be handled on another thread.
const MUCH: usize = 4 << 20;

/// Builds a runtime with one thread for everything that may block.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().max_blocking_threads(1).build().expect("a runtime")
}

/// Keeps that thread from everything else until it is dropped.
struct Occupied(#[expect(dead_code, reason = "its drop ends the wait")] mpsc::Sender<()>);

async fn occupy() -> Occupied {
    let (sender, receiver) = mpsc::channel();
    let (tell, told) = tokio::sync::oneshot::channel();
    Handle::current().spawn_blocking(move || {
        let _ = tell.send(());
        let _ = receiver.recv();
    });
    within(told).await.expect("it has the thread");
    Occupied(sender)
}

/// Returns how many registrations this process has, which is the only one that has any.
fn registrations() -> usize {
    // The kernel's own have its name. Of what a thread has made that is gone, nothing is said.
    listed("mr").lines().filter(|line| !line.contains(" comm [")).count()
}

#[test]
fn registration_and_deregistration_run_on_other_threads() {
    if driver().is_none() {
        return;
    }
    let _turn = one_at_a_time();
    runtime().block_on(async {
        let adapter = adapter();
        let before = registrations();
        // MR-01: also of one page, as a card takes its time for that, too (HW-05).
        let occupied = occupy().await;
        let mut registering = Box::pin(adapter.register(4096, Access::REMOTE_READ));
        assert!(poll_once(&mut registering).is_pending());
        assert_eq!(registrations(), before);
        drop(occupied);
        let region = within(registering).await.expect("registered");

        let occupied = occupy().await;
        let mut ending = Box::pin(region.deregister());
        assert!(poll_once(&mut ending).is_pending());
        // The others wait for their turn, and one that gives up is none.
        let mut again = Box::pin(region.register_again(Access::REMOTE_WRITE));
        assert!(poll_once(&mut again).is_pending());
        drop(again);
        assert!(region.is_registered());
        // A deregistration that has begun takes effect, although its future was dropped.
        drop(ending);
        drop(occupied);
        eventually("it is deregistered", || !region.is_registered()).await;
        assert_eq!(registrations(), before);

        let occupied = occupy().await;
        // A registration that has begun takes effect although its future was dropped (MR-05).
        let mut again = Box::pin(region.register_again(Access::REMOTE_WRITE));
        assert!(poll_once(&mut again).is_pending());
        drop(again);
        assert!(!region.is_registered());
        drop(occupied);
        eventually("it is registered", || region.is_registered()).await;
        assert_eq!((region.access(), registrations()), (Access::REMOTE_WRITE, before + 1));
    });
}

#[test]
fn large_dropped_memory_is_deregistered_on_other_threads() {
    if driver().is_none() {
        return;
    }
    let _turn = one_at_a_time();
    runtime().block_on(async {
        let adapter = adapter();
        let before = registrations();
        let region = within(adapter.register(MUCH, Access::REMOTE_READ)).await.expect("registered");
        let buffer = adapter.buffer(MUCH).expect("memory");
        let pool = adapter.pool(PoolConfig::new(MUCH, 2)).expect("a pool");
        let frozen = within(pool.get()).await.expect("memory").freeze(8);
        let little = adapter.buffer(4096).expect("memory");
        assert_eq!(registrations(), before + 4);
        let occupied = occupy().await;
        // A small buffer is deregistered within its drop, and large memory on another thread (MR-01).
        drop((region, buffer, pool, frozen, little));
        assert_eq!(registrations(), before + 3);
        drop(occupied);
        eventually("all is given back", || registrations() == before).await;
    });
}

#[test]
fn memory_is_deregistered_without_a_runtime() {
    if driver().is_none() {
        return;
    }
    let _turn = one_at_a_time();
    let runtime = runtime();
    let before = registrations();
    let (region, ended, buffer) = runtime.block_on(async {
        let adapter = adapter();
        let region = within(adapter.register(MUCH, Access::REMOTE_READ)).await.expect("registered");
        let ended = within(adapter.register(MUCH, Access::REMOTE_READ)).await.expect("registered");
        (region, ended, adapter.buffer(MUCH).expect("memory"))
    });
    assert_eq!(registrations(), before + 3);
    drop(runtime);
    // Without a runtime to run on, `deregister` and drops do the work themselves (MR-01).
    futures::executor::block_on(ended.deregister()).expect("deregistered");
    assert!(!ended.is_registered());
    assert_eq!(registrations(), before + 2);
    drop((region, buffer));
    assert_eq!(registrations(), before);
}

#[test]
fn pool_keeps_registrations_until_dropped() {
    if driver().is_none() {
        return;
    }
    let _turn = one_at_a_time();
    runtime().block_on(async {
        let adapter = adapter();
        let before = registrations();
        let pool = adapter.pool(PoolConfig::new(4096, 4)).expect("a pool");
        assert_eq!(registrations(), before);
        let buffers = [(); 3].map(|()| pool.try_get().expect("memory").expect("there is room"));
        assert_eq!(registrations(), before + 3);
        drop(buffers);
        for _ in 0..10 {
            drop(within(pool.get()).await.expect("memory").freeze(1));
        }
        assert_eq!((registrations(), pool.allocated()), (before + 3, 3));
        let (kept, frozen) = (pool.try_get().expect("memory"), pool.try_get().expect("memory"));
        let frozen = frozen.expect("there is one").freeze(4096);
        drop(pool);
        assert_eq!(registrations(), before + 2);
        drop(frozen);
        assert_eq!(registrations(), before + 1);
        drop(kept);
        assert_eq!(registrations(), before);
    });
}

#[test]
fn region_of_dropped_request_stays_until_completion() {
    if driver().is_none() {
        return;
    }
    let _turn = one_at_a_time();
    runtime().block_on(async {
        let adapter = adapter();
        let Pair { active, passive } = connected(&adapter).await;
        let before = registrations();
        let region = within(adapter.register(8, Access::LOCAL_WRITE)).await.expect("registered");
        drop(passive.queue_pair.receive(region.slice(0..8).expect("within")).expect("posted"));
        // A receive whose future was dropped keeps its region registered until its message has arrived (CAN-09, MR-01).
        drop(region);
        assert_eq!(registrations(), before + 1, "a message may still come");
        let receive = passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
        for text in [b"to nobody", b"somebody!"] {
            success(active.queue_pair.send(bytes(&adapter, &text[..8])).expect("posted")).await;
        }
        assert_eq!(&success(receive).await.1[..], b"somebody");
        eventually("it is given back", || registrations() == before).await;
    });
}
