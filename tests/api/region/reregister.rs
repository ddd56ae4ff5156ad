//! Regions that are registered under one key after the other while they are in use; and registrations for which memory
//! is missing.
//!
//! Runs on: soft, sim, rxe, siw

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::deviation::*;
use common::raw::{bytes, failure, room, success};
use common::verbs::{Process, role, say};
use common::*;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio_rdma::error::{PostErrorKind, RegisterError};
use tokio_rdma::{Access, Buffer, PoolConfig, Region, Status};

fn content(region: &Region) -> Vec<u8> {
    let mut found = vec![0; region.len()];
    region.read(0, &mut found).expect("as long");
    found
}

#[tokio::test]
async fn reregistered_region_has_a_new_key() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let region = adapter.register(8, Access::REMOTE_READ).await.expect("registered");
    region.write(0, b"contents").expect("as long");
    let other_handle = region.clone();
    let old = region.remote();
    // MR-05: not while it is registered.
    let error = region.register_again(Access::REMOTE_WRITE).await.expect_err("in use");
    assert!(matches!(error, RegisterError::Busy));
    assert_eq!(error.status(), Status::DEVICE_BUSY);
    assert_eq!((region.remote(), region.access()), (old, Access::REMOTE_READ), "as it was");

    region.deregister().await.expect("deregistered");
    assert_eq!((region.access(), region.is_registered()), (Access::REMOTE_READ, false));
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    region.register_again(rights).await.expect("registered again");
    assert!(other_handle.is_registered());
    assert_eq!((other_handle.access(), other_handle.remote()), (rights, region.remote()));
    assert_ne!(region.key(), old.key());
    assert_eq!(region.remote_part(2..4).expect("within").key(), region.key());
    assert_eq!(content(&region), b"contents");

    let pair = connected(&adapter).await;
    let (_, found) =
        success(pair.active.queue_pair.read(room(&adapter, 8), &region.remote()).expect("posted")).await;
    assert_eq!(&found[..], b"contents");
    let write = pair.active.queue_pair.write(bytes(&adapter, b"changed!"), &region.remote()).expect("posted");
    success(write).await;
    success(pair.active.queue_pair.read(room(&adapter, 1), &region.remote()).expect("posted")).await;
    assert_eq!(content(&other_handle), b"changed!");
    // MR-05: the old key stays dead.
    let read = pair.active.queue_pair.read(room(&adapter, 8), &old).expect("posted");
    assert_blamed(&adapter, failure(read).await, Status::ACCESS_VIOLATION, "the old key");
}

#[tokio::test]
async fn keys_of_one_region_are_never_the_same() {
    let adapter = adapter();
    let region = adapter.register(8, Access::REMOTE_READ).await.expect("registered");
    let mut keys = vec![region.key()];
    for _ in 0..often(200, 20) {
        region.deregister().await.expect("deregistered");
        region.register_again(Access::REMOTE_READ).await.expect("registered again");
        keys.push(region.key());
    }
    // Each registration has another key than the one before it (MR-05).
    assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "each one differs from the one before");
}

#[tokio::test]
async fn slices_are_refused_until_their_region_is_reregistered() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let region = adapter.register(8, Access::LOCAL_WRITE).await.expect("registered");
    let slice = region.slice(2..6).expect("within");
    region.deregister().await.expect("deregistered");
    let error = passive.queue_pair.receive(slice).expect_err("no device could write it");
    assert_eq!((error.status(), error.buffer.range()), (Status::ACCESS_VIOLATION, 2..6));
    let error = active.queue_pair.send(error.buffer).expect_err("nor read it");
    assert_eq!(error.status(), Status::ACCESS_VIOLATION);
    // MR-05, MR-03: with the rights of the new registration.
    region.register_again(Access::REMOTE_READ).await.expect("registered again");
    let error = passive.queue_pair.receive(error.buffer).expect_err("it lacks the right");
    region.deregister().await.expect("deregistered");
    region.register_again(Access::LOCAL_WRITE).await.expect("registered again");
    let receive = passive.queue_pair.receive(error.buffer).expect("posted");
    success(active.queue_pair.send(bytes(&adapter, b"four")).expect("posted")).await;
    assert_eq!(success(receive).await.1.range(), 2..6);
    assert_eq!(content(&region), b"\0\0four\0\0");
    // Requests see the key of the moment, again and again.
    for _ in 0..5 {
        region.deregister().await.expect("deregistered");
        region.register_again(Access::empty()).await.expect("registered again");
        let receive = passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
        let slice = region.slice(0..8).expect("within");
        success(active.queue_pair.send(slice).expect("posted")).await;
        assert_eq!(&success(receive).await.1[..], b"\0\0four\0\0");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn calls_on_one_region_take_turns() {
    let adapter = adapter();
    // Long enough to be registered on other threads.
    for length in [64, 2 << 20] {
        let region = adapter.register(length, Access::REMOTE_READ).await.expect("registered");
        let tasks: Vec<_> = (0..8)
            .map(|task| {
                let region = region.clone();
                tokio::spawn(async move {
                    let mut again = 0;
                    for round in 0..often(100, 5) {
                        if (task + round) % 2 == 0 {
                            region.deregister().await.expect("deregistered");
                        } else {
                            // Concurrent calls succeed or fail with `Busy`, and the region works afterwards (MR-01,
                            // MR-05).
                            match region.register_again(Access::REMOTE_READ).await {
                                Ok(()) => again += 1,
                                Err(error) => assert!(matches!(error, RegisterError::Busy), "{error:?}"),
                            }
                        }
                    }
                    again
                })
            })
            .collect();
        let mut again = 0;
        for task in tasks {
            again += within(task).await.expect("no panic");
        }
        assert!(again > 0);
        region.deregister().await.expect("deregistered");
        region.register_again(Access::REMOTE_READ).await.expect("registered again");
        assert!(region.is_registered());
    }
}

/// Sends a message into the region: how that went, and nothing if the request was refused at once.
async fn receive_into(region: &Region, pair: &Pair, message: Buffer) -> Option<Result<(), Status>> {
    let byte = message[0];
    let receive = match pair.passive.queue_pair.receive(region.slice(0..region.len()).expect("within")) {
        Ok(receive) => receive,
        Err(error) => {
            assert_eq!(error.status(), Status::ACCESS_VIOLATION);
            return None;
        }
    };
    let Ok(send) = pair.active.queue_pair.send(message) else {
        // An earlier request has ended the connection.
        return Some(Err(failure(receive).await));
    };
    let ((sent, _), (received, slice)) = within(async { tokio::join!(send, receive) }).await;
    assert_eq!(slice.range(), 0..region.len());
    if received.is_ok() {
        assert!(sent.is_ok() && content(region).iter().all(|found| *found == byte));
    }
    Some(received.map(drop).map_err(|error| error.status()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn no_local_request_is_lost_while_keys_change() {
    let adapter = adapter();
    let region = adapter.register(1 << 12, Access::LOCAL_WRITE).await.expect("registered");
    let (changing, stop) = (region.clone(), Arc::new(AtomicBool::new(false)));
    let stopped = stop.clone();
    let changes = tokio::spawn(async move {
        while !stopped.load(Ordering::Relaxed) {
            changing.deregister().await.expect("deregistered");
            tokio::task::yield_now().await;
            changing.register_again(Access::LOCAL_WRITE).await.expect("registered again");
            tokio::task::yield_now().await;
        }
    });
    // MR-01: each request is refused at once, succeeds, or fails; none is lost, and nothing else breaks.
    let mut posted = 0;
    within(async {
        let mut pair = connected(&adapter).await;
        while posted < often(400, 40) {
            let message = bytes(&adapter, &[posted as u8; 1 << 12]);
            match receive_into(&region, &pair, message).await {
                None => tokio::task::yield_now().await,
                Some(Ok(())) => posted += 1,
                Some(Err(status)) => {
                    assert!(
                        !Device::under_test().is_soft(),
                        "{status:?}: the memory is there, key or no key"
                    );
                    posted += 1;
                    pair = connected(&adapter).await;
                }
            }
        }
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    within(changes).await.expect("no panic");
    // The adapter is as good as before.
    let pair = connected(&adapter).await;
    let outcome = receive_into(&region, &pair, bytes(&adapter, &[0x77; 1 << 12])).await;
    assert_eq!(outcome, Some(Ok(())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn write_with_an_old_key_changes_nothing() {
    let adapter = adapter();
    let region = adapter.register(1 << 12, Access::REMOTE_WRITE).await.expect("registered");
    for round in 1..often(40, 4) {
        let pair = connected(&adapter).await;
        let (remote, queue_pair, buffers) =
            (region.remote(), pair.active.queue_pair.clone(), adapter.clone());
        let writer = tokio::spawn(async move {
            while let Ok(write) = queue_pair.write(bytes(&buffers, &[0xff; 1 << 12]), &remote) {
                if write.await.0.is_err() {
                    return;
                }
            }
        });
        within(async {
            while content(&region)[0] != 0xff {
                tokio::task::yield_now().await;
            }
        })
        .await;
        region.deregister().await.expect("deregistered");
        region.register_again(Access::REMOTE_WRITE).await.expect("registered again");
        // A peer with the old key has no access to the memory under the new one (MR-01, MR-05).
        let fresh = vec![round as u8; 1 << 12];
        region.write(0, &fresh).expect("as long");
        within(writer).await.expect("no panic");
        within(pair.active.connection.disconnected()).await;
        within(pair.passive.connection.disconnected()).await;
        assert!(content(&region) == fresh);
    }
}

#[tokio::test]
async fn read_sinks_are_what_the_adapter_says() {
    let adapter = adapter();
    // MR-06: a card that speaks iWARP writes the answers to reads as a peer's writes, and no other device that is tested.
    assert_eq!(adapter.info().read_sink_required, Device::under_test() == Device::FakeIwarp);
    let source = adapter.register(8, Access::REMOTE_READ).await.expect("registered");
    source.write(0, b"anything").expect("as long");
    if adapter.info().read_sink_required {
        let pair = connected(&adapter).await;
        let read_into = async |rights| {
            let sink = adapter.register(8, rights).await.expect("registered");
            let slice = sink.slice(0..8).expect("within");
            (pair.active.queue_pair.read(slice, &source.remote()), sink)
        };
        let (refused, _) = read_into(Access::LOCAL_WRITE).await;
        let missing = Access::READ_SINK;
        assert_eq!(refused.expect_err("no sink").kind, PostErrorKind::AccessViolation { missing });
        let (read, sink) = read_into(Access::LOCAL_WRITE | Access::READ_SINK).await;
        success(read.expect("posted")).await;
        return assert_eq!(content(&sink), b"anything");
    }
    for rights in [Access::LOCAL_WRITE, Access::LOCAL_WRITE | Access::READ_SINK] {
        let Pair { active, passive: _passive } = connected(&adapter).await;
        let sink = adapter.register(8, rights).await.expect("registered");
        let read = active.queue_pair.read(sink.slice(0..8).expect("within"), &source.remote());
        success(read.expect("posted")).await;
        assert_eq!(content(&sink), b"anything");
        // The right to be a sink gives no peer the right to write the region.
        let write = active.queue_pair.write(bytes(&adapter, b"intruder"), &sink.remote()).expect("posted");
        let fence = active.queue_pair.read(room(&adapter, 1), &source.remote()).expect("posted");
        let (write, fence) = (within(write).await.0, within(fence).await.0);
        let status = write.map(drop).and(fence.map(drop)).expect_err("refused").status();
        assert_blamed(&adapter, status, Status::ACCESS_VIOLATION, "a sink");
        assert_eq!(content(&sink), b"anything");
    }
}

#[tokio::test]
async fn dmabuf_registration_reports_not_supported() {
    let adapter = adapter();
    let nothing = File::open("/dev/null").expect("it is always there");
    let most = adapter.info().max_registration;
    let register =
        async |length| adapter.register_dmabuf(nothing.as_fd(), 0, length, 0, Access::REMOTE_READ).await;
    let error = register(4096).await.expect_err("neither soft nor these drivers know how");
    assert!(matches!(error, RegisterError::NotSupported(_)), "{error:?}");
    assert_eq!(error.status(), Status::NOT_SUPPORTED);
    // Invalid lengths have the same statuses as with `register` (MR-02).
    let statuses =
        [register(0).await, register(most + 1).await].map(|made| made.map(drop).unwrap_err().status());
    assert_eq!(statuses, [Status::INVALID_BUFFER_SIZE, Status::INVALID_PARAMETER]);
}

/// Returns the size of the address space of this process, in bytes (proc_pid_status(5)).
fn address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a Linux system");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.trim().strip_suffix(" kB"));
    size.and_then(|size| size.parse::<u64>().ok()).expect("a number") << 10
}

/// Says what comes of it.
async fn have_no_memory() {
    let adapter = adapter();
    let kept = adapter.register(64, Access::REMOTE_WRITE).await.expect("registered");
    let length = 64 << 20;
    let pool = adapter.pool(PoolConfig::new(length, 1)).expect("a pool");
    // A thread for what takes long, which takes memory too.
    tokio::task::spawn_blocking(|| ()).await.expect("no panic");
    let (_, hard) = getrlimit(Resource::RLIMIT_AS).expect("known");
    // Room for what the other threads of the process take meanwhile, and for none of these.
    setrlimit(Resource::RLIMIT_AS, address_space() + (length as u64 / 2), hard).expect("lowered");
    let errors = [
        adapter.register(length, Access::REMOTE_WRITE).await.map(drop).expect_err("no memory"),
        adapter.buffer(length).map(drop).expect_err("no memory"),
        pool.get().await.map(drop).expect_err("no memory"),
        pool.try_get().map(drop).expect_err("no memory"),
    ];
    setrlimit(Resource::RLIMIT_AS, hard, hard).expect("as it was");
    for error in errors {
        assert!(matches!(error, RegisterError::OutOfMemory { .. }), "{error:?}");
        assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES);
    }
    assert!(kept.is_registered());
    assert_eq!((pool.allocated(), pool.in_use()), (0, 0));
    // Those that came to nothing have not taken the place of one that does.
    assert!(adapter.pool(PoolConfig::new(64, 1)).expect("a pool").get().await.is_ok());
    let mut get = Box::pin(pool.get());
    assert!(!matches!(common::life::poll_once(&mut get), std::task::Poll::Ready(Err(_))));
    say("as it should be");
}

#[test]
fn child_role() {
    if role().is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(have_no_memory());
        std::process::exit(0);
    }
}

#[tokio::test]
#[allow(clippy::print_stdout, reason = "a test that cannot run here has to say so")]
async fn no_memory_is_said_to_be_that() {
    let limited = std::fs::read_to_string("/proc/self/statm").expect("a Linux system");
    let pages: usize = limited.split(' ').next().and_then(|size| size.parse().ok()).expect("a number");
    if pages > 1 << 28 {
        println!("skipped: needs addresses that a sanitizer has reserved");
        return;
    }
    // A process of its own lowers its limit of memory, and what needs memory fails (MR-02).
    let mut process = Process::start(module_path!(), "memory", "-", None);
    assert_eq!(process.hear(), "as it should be");
}
