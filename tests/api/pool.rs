//! Pools: reuse of buffers, the order of waiters, and conversion from and to bytes without a copy.
//!
//! Runs on: soft, sim, rxe, siw

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use common::deviation::lacks_buffer_sinks;
use common::dice::Dice;
use common::life::{eventually, poll_once};
use common::raw::{bytes, room, success};
use common::*;
use futures::future::join_all;
use tokio_rdma::error::{PostErrorKind, RegisterError};
use tokio_rdma::mr::{Entry, PoolBytes};
use tokio_rdma::{Access, Adapter, Pool, PoolConfig, Status};

fn pool(adapter: &Adapter, length: usize, maximum: usize) -> Pool {
    adapter.pool(PoolConfig::new(length, maximum)).expect("a pool")
}

/// Returns how many buffers exist, and how many of them are in use.
fn counts(pool: &Pool) -> (usize, usize) {
    (pool.allocated(), pool.in_use())
}

// A pool makes no more buffers than are in use (MR-10).
#[tokio::test]
async fn pool_allocates_on_demand_and_reuses_buffers() {
    let pool = pool(&adapter(), 64, 2);
    assert_eq!((pool.buffer_length(), pool.maximum(), counts(&pool)), (64, 2, (0, 0)));
    let mut first = within(pool.get()).await.expect("memory");
    assert_eq!((first.len(), counts(&pool)), (64, (1, 1)));
    assert!(first.iter().all(|byte| *byte == 0));
    first.fill(7);
    let place = first.as_ptr();
    drop(first);
    assert_eq!(counts(&pool), (1, 0));
    let again = pool.try_get().expect("memory").expect("there is one");
    assert_eq!((again.as_ptr(), again[63], counts(&pool)), (place, 7, (1, 1)), "the same, as it was left");
    let second = pool.try_get().expect("memory").expect("one more can be made");
    assert_ne!(second.as_ptr(), place);
    assert!(pool.try_get().expect("no failure").is_none(), "two are the maximum");
    drop((again, second));
    assert_eq!(counts(&pool), (2, 0), "they are kept");
}

#[tokio::test]
async fn a_pool_of_nothing_is_refused() {
    let adapter = adapter();
    let most = adapter.info().max_registration;
    // A pool of empty buffers fails like a registration without length, and so does one without buffers (MR-02).
    for (length, maximum) in [(0, 8), (8, 0)] {
        let error = adapter.pool(PoolConfig::new(length, maximum)).expect_err("nothing");
        assert_eq!(error.status(), Status::INVALID_BUFFER_SIZE);
    }
    let error = adapter.pool(PoolConfig::new(most + 1, 1)).expect_err("too long");
    assert!(matches!(error, RegisterError::TooLarge { maximum, .. } if maximum == most));
    // As many as one likes may be allowed, since none is made.
    assert!(pool(&adapter, 1, usize::MAX).maximum() > 1 << 32);
}

// A buffer that comes back goes to who has waited longest (MR-10).
#[tokio::test]
async fn those_who_wait_are_served_in_turn() {
    let pool = pool(&adapter(), 8, 1);
    let only = within(pool.get()).await.expect("memory");
    let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(pool.get())).collect();
    assert!(waiting.iter_mut().all(|get| poll_once(get).is_pending()));
    drop(only);
    // CAN-07: the turn of one that is dropped is the next one's, whether or not it had come.
    assert!(pool.try_get().expect("no failure").is_none(), "it is promised");
    drop(waiting.remove(0));
    drop(waiting.remove(1));
    assert!(poll_once(&mut waiting[1]).is_pending());
    let served = within(waiting.remove(0)).await.expect("memory");
    assert!(poll_once(&mut waiting[0]).is_pending());
    drop(served);
    let served = within(waiting.remove(0)).await.expect("memory");
    assert_eq!(counts(&pool), (1, 1));
    drop(served);
    assert_eq!(counts(&pool), (1, 0));
}

#[tokio::test]
async fn forgotten_requests_return_their_buffers() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let pool = pool(&adapter, 16, 1);
    let receive = passive.queue_pair.receive(within(pool.get()).await.expect("memory")).expect("posted");
    // The dropped future does not release its buffer, because a message may still arrive in it (CAN-09).
    drop(receive);
    let mut next = Box::pin(pool.get());
    assert!(poll_once(&mut next).is_pending(), "a message may still come");
    assert_eq!(counts(&pool), (1, 1));
    success(active.queue_pair.send(bytes(&adapter, b"to nobody")).expect("posted")).await;
    let buffer = within(next).await.expect("memory");
    assert_eq!(&buffer[..9], b"to nobody");
    // The same when it is flushed.
    drop(passive.queue_pair.receive(buffer).expect("posted"));
    let next = pool.get();
    passive.queue_pair.flush();
    drop(within(next).await.expect("memory"));
    assert_eq!(counts(&pool), (1, 0));
}

#[tokio::test]
async fn pool_buffer_works_like_any_buffer() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let Pair { active, passive } = connected(&adapter).await;
    let pool = pool(&adapter, 32, 4);
    let region = adapter.register(32, Access::REMOTE_READ | Access::REMOTE_WRITE).await.expect("registered");
    let get = async || within(pool.get()).await.expect("memory");
    let two = [get().await, get().await];
    let receive = passive.queue_pair.receive(two).expect("posted");
    let mut message = get().await;
    message[..4].copy_from_slice(b"here");
    let (_, part) = success(active.queue_pair.send(message.part(0..4)).expect("posted")).await;
    let (length, [first, _]) = success(receive).await;
    assert_eq!(&first[..length], b"here");
    let (_, message) =
        success(active.queue_pair.write(part.into_buffer(), &region.remote()).expect("posted")).await;
    let (_, read) = success(active.queue_pair.read(get().await, &region.remote()).expect("posted")).await;
    assert_eq!(message[..], read[..]);
    drop((read, message, first));
    // One of the two that the array was.
    eventually("all are back", || pool.in_use() == 0).await;
    let stranger = common::adapter();
    let error = queue_pair(&stranger).receive(get().await).expect_err("of another adapter");
    assert_eq!(error.status(), Status::ACCESS_VIOLATION);
    assert_eq!(pool.in_use(), 1);
    drop(error);
    assert_eq!(pool.in_use(), 0);
}

// Frozen bytes are not copied (MR-10).
#[tokio::test]
async fn frozen_bytes_share_the_buffer_until_last_drop() {
    let adapter = adapter();
    let pool = pool(&adapter, 16, 1);
    let mut buffer = within(pool.get()).await.expect("memory");
    buffer.copy_from_slice(b"zero, one, two..");
    let place = buffer.as_ptr();
    let all = buffer.freeze(14);
    assert_eq!((&all[..], all.as_ptr()), (&b"zero, one, two"[..], place));
    let part = all.slice(6..9);
    let mut next = Box::pin(pool.get());
    drop(all);
    assert!(poll_once(&mut next).is_pending());
    assert_eq!(part, "one");
    // On a thread that knows nothing of any runtime.
    std::thread::spawn(move || drop(part)).join().expect("no panic");
    let buffer = within(next).await.expect("memory");
    assert_eq!(buffer.as_ptr(), place);
    // Frozen to no bytes, the buffer returns at once or when they are dropped.
    drop(buffer.freeze(0));
    assert_eq!(counts(&pool), (1, 0));
    // A buffer of no pool can be frozen, too.
    assert_eq!(adapter.buffer_from(b"alone").expect("memory").freeze(5), "alone");
}

// A request sends frozen bytes out of the registered memory (MR-10).
#[tokio::test]
async fn pool_bytes_are_sent_without_a_copy() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let Pair { active, passive } = connected(&adapter).await;
    let pool = pool(&adapter, 16, 2);
    let target = adapter.register(8, Access::REMOTE_WRITE | Access::REMOTE_READ).await.expect("registered");
    let mut buffer = within(pool.get()).await.expect("memory");
    buffer[..9].copy_from_slice(b"a message");
    let message = buffer.freeze(9).slice(2..);
    let lent = within(pool.lend(message.clone())).await.expect("it is the pool's");
    assert_eq!((lent.as_ptr(), counts(&pool)), (message.as_ptr(), (1, 1)), "no copy");
    // Any number of times at once.
    let receives: Vec<_> = (0..3).map(|_| passive.queue_pair.receive(room(&adapter, 16)).unwrap()).collect();
    let sends: Vec<_> = (0..3).map(|_| active.queue_pair.send(lent.clone()).expect("posted")).collect();
    for receive in receives {
        let (length, found) = success(receive).await;
        assert_eq!(found[..length], message[..]);
    }
    for send in sends {
        let (_, back) = success(send).await;
        assert_eq!((back.as_ptr(), back.len()), (message.as_ptr(), 7));
    }
    success(active.queue_pair.write(lent, &target.remote()).expect("posted")).await;
    // Behind it, since a write may complete before it has arrived.
    let (_, found) =
        success(active.queue_pair.read(room(&adapter, 8), &target.remote()).expect("posted")).await;
    assert_eq!(&found[..], b"message\0");
    // A part of a message of several kinds.
    let receive = passive.queue_pair.receive(room(&adapter, 16)).expect("posted");
    let lent = pool.try_lend(message).expect("no failure").expect("it is the pool's");
    let list = vec![Entry::from(bytes(&adapter, b"some ")), lent.into()];
    let (_, mut list) = success(active.queue_pair.send(list).expect("posted")).await;
    let (length, found) = success(receive).await;
    assert_eq!(&found[..length], b"some message");
    let Some(Entry::PoolBytes(lent)) = list.pop() else { panic!("as it was") };
    assert_eq!(counts(&pool), (1, 1));
    assert_eq!(Bytes::from(lent), "message");
    assert_eq!(counts(&pool), (1, 0));
}

// Bytes that are not of the pool are copied once (MR-10).
#[tokio::test]
async fn bytes_of_others_are_copied_into_the_pool() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let (pool, other) = (pool(&adapter, 8, 2), pool(&adapter, 8, 2));
    let mut theirs = within(other.get()).await.expect("memory");
    theirs.copy_from_slice(b"another!");
    let theirs = theirs.freeze(8);
    // Bytes in the memory of the pool that are not frozen are not its own to share.
    let owner = Bytes::from_owner(within(pool.get()).await.expect("memory"));
    assert_eq!(counts(&pool), (1, 1));
    for (message, copies) in [
        (Bytes::from_static(b"constant"), 1),
        (Bytes::from(b"heap".to_vec()), 1),
        (theirs, 1),
        (owner.clone(), 1),
        (Bytes::new(), 0),
    ] {
        let lent = within(pool.lend(message.clone())).await.expect("memory");
        assert_eq!(pool.in_use(), 1 + copies, "{message:?}");
        assert!(copies == 0 || pool.try_lend(message.clone()).expect("no failure").is_none(), "{message:?}");
        let receive = passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
        let (_, lent) = success(active.queue_pair.send(lent).expect("posted")).await;
        let (length, found) = success(receive).await;
        assert_eq!(found[..length], message[..]);
        // From then on it is the pool's.
        let copy = lent.into_bytes();
        assert_eq!(copy, message);
        let again = within(pool.lend(copy.clone())).await.expect("memory");
        assert_eq!(again.as_ptr(), copy.as_ptr());
    }
    assert_eq!(other.in_use(), 0, "its bytes have been dropped");
    for error in [
        within(pool.lend(Bytes::from_static(b"nine long"))).await.map(drop).expect_err("too long"),
        pool.try_lend(Bytes::from_static(b"nine long")).map(drop).expect_err("too long"),
    ] {
        assert!(matches!(error, RegisterError::TooLarge { length: 9, maximum: 8 }), "{error:?}");
    }
    drop(owner);
    assert_eq!(pool.in_use(), 0);
}

#[tokio::test]
async fn frozen_bytes_are_written_by_nobody() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let pool = pool(&adapter, 8, 1);
    let source = adapter.register(8, Access::REMOTE_READ).await.expect("registered");
    let bytes = within(pool.get()).await.expect("memory").freeze(8);
    let lend = || pool.try_lend(bytes.clone()).expect("no failure").expect("it is the pool's");
    // Frozen bytes cannot be written, so receives and reads into them are refused (MR-03).
    let refused = |kind: PostErrorKind, buffer: &PoolBytes| {
        assert_eq!(kind.status(), Status::ACCESS_VIOLATION);
        assert_eq!(buffer.as_ptr(), bytes.as_ptr(), "it comes back");
    };
    let error = passive.queue_pair.receive(lend()).expect_err("a receive writes");
    refused(error.kind, &error.buffer);
    let error = active.queue_pair.read(lend(), &source.remote()).expect_err("a read writes");
    refused(error.kind, &error.buffer);
    let error = active.queue_pair.receive(vec![lend(), lend()]).expect_err("a receive writes");
    refused(error.kind, &error.buffer[1]);
    let error = active.queue_pair.receive([Entry::from(lend())]).expect_err("a receive writes");
    assert_eq!(error.status(), Status::ACCESS_VIOLATION);
    let error = queue_pair(&common::adapter()).send(lend()).expect_err("of another adapter");
    refused(error.kind, &error.buffer);
}

#[tokio::test]
async fn bytes_of_dropped_sends_arrive_and_return() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let length = 1 << 16;
    let pool = pool(&adapter, length, 3);
    for round in 0..often(60, 6) {
        let receive = passive.queue_pair.receive(room(&adapter, length)).expect("posted");
        let mut buffer = within(pool.get()).await.expect("memory");
        buffer.fill(round as u8);
        let lent = within(pool.lend(buffer.freeze(length))).await.expect("it is the pool's");
        // CAN-09: the next round has the memory only when this one is done with it.
        drop(active.queue_pair.send(lent).expect("posted"));
        let (found, buffer) = success(receive).await;
        assert!(found == length && buffer.iter().all(|byte| *byte == round as u8), "round {round}");
    }
    eventually("all are back", || pool.in_use() == 0).await;
    assert!(pool.allocated() <= 3);
}

#[tokio::test]
async fn lent_buffers_outlive_their_pool() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let pool = pool(&adapter, 8, 3);
    let mut buffers = [(); 3].map(|()| pool.try_get().expect("memory").expect("there is room"));
    buffers.iter_mut().for_each(|buffer| buffer.copy_from_slice(b"survives"));
    let [kept, frozen, posted] = buffers;
    let frozen = frozen.freeze(8);
    let lent = within(pool.lend(frozen.clone())).await.expect("it is the pool's");
    let receive = passive.queue_pair.receive(posted).expect("posted");
    drop((pool, adapter));
    success(active.queue_pair.send(lent).expect("posted")).await;
    let (_, posted) = success(receive).await;
    assert!(kept[..] == frozen[..] && posted[..] == frozen[..]);
}

/// Does as the dice say with one buffer at a time, and looks after it.
async fn customer(pool: Pool, (seed, task): (u64, usize), rounds: usize, at_once: Arc<AtomicUsize>) {
    let mut dice = Dice::of(seed, task);
    for round in 0..rounds {
        let mut buffer = match dice.below(4) {
            // Loses patience, at once or after a while; it may have been its turn.
            0 => {
                let mut get = Box::pin(pool.get());
                let _ = poll_once(&mut get);
                for _ in 0..dice.below(4) {
                    tokio::task::yield_now().await;
                }
                continue;
            }
            1 => match pool.try_get().expect("memory") {
                Some(buffer) => buffer,
                None => continue,
            },
            _ => pool.get().await.expect("memory"),
        };
        let others = at_once.fetch_add(1, Ordering::SeqCst);
        assert!(others < pool.maximum(), "{others} others");
        let mark = [task.to_le_bytes(), round.to_le_bytes()].concat();
        buffer[..16].copy_from_slice(&mark);
        tokio::task::yield_now().await;
        assert_eq!(buffer[..16], mark, "nobody else has it");
        if dice.below(2) == 0 {
            let frozen = buffer.freeze(16);
            let clone = pool.lend(frozen.slice(3..)).await.expect("it is the pool's");
            assert_eq!(clone.as_ptr(), frozen[3..].as_ptr());
            tokio::task::yield_now().await;
            assert_eq!(frozen[..], mark);
            // It goes back with the last of them.
            drop(frozen);
            assert_eq!(clone[..], mark[3..]);
            at_once.fetch_sub(1, Ordering::SeqCst);
            drop(clone);
        } else {
            at_once.fetch_sub(1, Ordering::SeqCst);
            drop(buffer);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_share_few_buffers() {
    let pool = pool(&adapter(), 64, 3);
    let at_once = Arc::new(AtomicUsize::new(0));
    let seed = Dice::seed();
    let tasks = (0..24)
        .map(|task| tokio::spawn(customer(pool.clone(), (seed, task), often(2000, 100), at_once.clone())));
    for outcome in within(join_all(tasks)).await {
        outcome.expect("no panic");
    }
    assert_eq!((at_once.load(Ordering::SeqCst), pool.in_use()), (0, 0));
    assert!(pool.allocated() <= 3);
    // No turn was lost.
    let all = within(join_all((0..3).map(|_| pool.get()))).await;
    assert!(all.iter().all(Result::is_ok));
}
