//! Regions: registration, deregistration and access rights.
//!
//! Runs on: soft, sim, rxe, siw

mod reregister;
mod soft;
mod words;

use common::deviation::*;
use common::device::{is_emulated, variants};
use common::raw::{bytes, failure, room, success};
use common::*;
use tokio_rdma::error::{PostErrorKind, RegisterError};
use tokio_rdma::{Access, Adapter, RemoteRegion, Status};

/// Returns every combination of rights that can be made of the named ones.
fn combinations() -> Vec<Access> {
    let named = [Access::LOCAL_WRITE, Access::REMOTE_READ, Access::REMOTE_WRITE, Access::READ_SINK];
    let mut all: Vec<Access> = (0..16)
        .map(|bits| {
            let chosen = named.iter().enumerate().filter(|(at, _)| bits & (1 << at) != 0);
            chosen.fold(Access::empty(), |sum, (_, right)| sum | *right)
        })
        .collect();
    all.sort_by_key(Access::bits);
    all.dedup();
    all
}

#[tokio::test]
async fn new_region_is_zeroed_with_the_requested_length() {
    let adapter = adapter();
    for length in [1, 2, 4095, 4096, 4097, 1 << 20] {
        // New memory contains zeros, so a peer cannot read an earlier use of it (MR-01).
        let region = adapter.register(length, Access::REMOTE_READ).await.expect("registered");
        assert_eq!((region.len(), region.access()), (length, Access::REMOTE_READ));
        assert!(region.is_registered());
        let mut found = vec![1; length];
        region.read(0, &mut found).expect("as long");
        assert!(found.iter().all(|byte| *byte == 0), "{length}");
        let remote = region.remote();
        assert_eq!((remote.len() as usize, remote.key()), (length, region.key()));
    }
}

#[tokio::test]
async fn keys_are_not_given_twice() {
    let adapter = adapter();
    let mut regions = Vec::new();
    for _ in 0..often(500, 100) {
        // A device has no use for a key of memory that no peer may reach.
        regions.push(adapter.register(1, Access::REMOTE_READ).await.expect("registered"));
    }
    // All keys differ while their regions exist (MR-01).
    let mut keys: Vec<_> = regions.iter().map(|region| region.key()).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), regions.len());
    if Device::under_test().is_soft() {
        assert!(keys.windows(2).any(|pair| pair[1].0 - pair[0].0 != 1), "and cannot be guessed by counting");
    }
}

#[tokio::test]
async fn region_copies_are_bounds_checked() {
    let adapter = adapter();
    let region = adapter.register(10, Access::empty()).await.expect("registered");
    region.write(3, b"four").expect("within");
    let mut found = [0; 6];
    region.read(2, &mut found).expect("within");
    assert_eq!(&found, b"\0four\0");
    for (offset, length) in [(0, 11), (10, 1), (11, 0), (usize::MAX, 1)] {
        let error = region.write(offset, &vec![9; length]).expect_err("outside");
        assert_eq!(error.status(), Status::BUFFER_OVERFLOW);
        region.read(offset, &mut vec![9; length]).expect_err("outside");
        region.slice(offset..offset.saturating_add(length)).map(drop).expect_err("outside");
    }
    region.read(2, &mut found).expect("within");
    assert_eq!(&found, b"\0four\0", "nothing was copied");
    region.slice(4..11).map(drop).expect_err("outside");
    region.remote_part(4..11).map(drop).expect_err("outside");
}

#[tokio::test]
async fn refused_registrations_have_their_status() {
    let adapter = adapter();
    let maximum = adapter.info().max_registration;
    for rights in combinations() {
        // MR-02: NdMRInvalidBuffer.
        let empty = adapter.register(0, rights).await.expect_err("no bytes");
        assert!(matches!(empty, RegisterError::Empty));
        assert_eq!(empty.status(), Status::INVALID_BUFFER_SIZE);
        for length in [maximum + 1, usize::MAX] {
            let large = adapter.register(length, rights).await.expect_err("too large");
            assert!(matches!(large, RegisterError::TooLarge { length: asked, maximum: limit }
                    if asked == length && limit == maximum));
            assert_eq!(large.status(), Status::INVALID_PARAMETER);
        }
    }
    // The null buffer of ND cannot be said: memory is the adapter's. The adapter is as good as before.
    adapter.register(1, Access::empty()).await.expect("registered");
}

#[tokio::test]
async fn deregistering_revokes_the_key_and_keeps_the_memory() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let pair = connected(&adapter).await;
    let region = adapter.register(4, Access::REMOTE_READ | Access::REMOTE_WRITE).await.expect("registered");
    let remote = region.remote();
    success(pair.active.queue_pair.write(bytes(&adapter, b"mine"), &remote).expect("posted")).await;
    success(pair.active.queue_pair.read(room(&adapter, 4), &remote).expect("posted")).await;
    // The peer has no access after `deregister`, while the program still reads the bytes (MR-01).
    region.deregister().await.expect("deregistered");
    assert!(!region.is_registered());
    region.deregister().await.expect("twice is fine");
    let read = pair.active.queue_pair.read(room(&adapter, 4), &remote).expect("posted");
    assert_blamed(&adapter, failure(read).await, Status::ACCESS_VIOLATION, "deregistered");
    let mut found = [0; 4];
    region.read(0, &mut found).expect("readable");
    assert_eq!(&found, b"mine");
}

#[tokio::test]
async fn the_last_handle_deregisters_and_slices_are_handles() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let region = adapter.register(4, Access::REMOTE_READ).await.expect("registered");
    let remote = region.remote();
    let slice = region.slice(0..4).expect("within");
    drop(region);
    let reach = async |adapter: &Adapter| {
        let pair = connected(adapter).await;
        within(pair.active.queue_pair.read(room(adapter, 4), &remote).expect("posted")).await.0
    };
    assert!(reach(&adapter).await.is_ok(), "the slice holds it");
    drop(slice);
    // Dropping the last slice has deregistered the region (MR-01).
    let error = reach(&adapter).await.expect_err("deregistered");
    assert_blamed(&adapter, error.status(), Status::ACCESS_VIOLATION, "deregistered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn no_byte_changes_once_deregistering_is_done() {
    let length = if is_emulated() { 1 << 17 } else { 1 << 20 };
    for (adapter, variant) in variants() {
        let pair = connected(&adapter).await;
        let region = adapter.register(length, Access::REMOTE_WRITE).await.expect("registered");
        let remote = region.remote();
        let (queue_pair, buffers) = (pair.active.queue_pair.clone(), adapter.clone());
        let writer = tokio::spawn(async move {
            for round in 1_u8.. {
                let Ok(write) = queue_pair.write(bytes(&buffers, &vec![round.max(1); length]), &remote)
                else {
                    return;
                };
                if write.await.0.is_err() {
                    return;
                }
            }
        });
        // In the midst of it.
        let mut first = [0];
        within(async {
            while first == [0] {
                region.read(0, &mut first).expect("within");
                tokio::task::yield_now().await;
            }
        })
        .await;
        region.deregister().await.expect("deregistered");
        let (mut before, mut after) = (vec![0; length], vec![0; length]);
        region.read(0, &mut before).expect("as long");
        within(pair.active.connection.disconnected()).await;
        within(pair.passive.connection.disconnected()).await;
        within(writer).await.expect("no panic");
        // The write that was in progress has changed no byte since `deregister` returned (MR-01).
        region.read(0, &mut after).expect("as long");
        assert!(before == after, "{variant}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_register_and_deregister_at_once() {
    let adapter = adapter();
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let adapter = adapter.clone();
            tokio::spawn(async move {
                for length in 1..often(100, 10) {
                    // Eight tasks do so at the same time, and no call fails (MR-01).
                    let region = adapter.register(length, Access::REMOTE_READ).await.expect("registered");
                    region.deregister().await.expect("deregistered");
                    assert!(!region.is_registered());
                }
            })
        })
        .collect();
    for task in tasks {
        within(task).await.expect("no panic");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    RemoteRead,
    RemoteWrite,
    Receive,
    ReadSink,
    Send,
    WriteSource,
}

const USES: [Use; 6] =
    [Use::RemoteRead, Use::RemoteWrite, Use::Receive, Use::ReadSink, Use::Send, Use::WriteSource];

impl Use {
    /// Returns the right that this use takes.
    fn needs(self) -> Access {
        match self {
            Self::RemoteRead => Access::REMOTE_READ,
            Self::RemoteWrite => Access::REMOTE_WRITE,
            // The soft provider does not hand the sink of a read out, so it asks for no more than any sink does.
            Self::Receive | Self::ReadSink => Access::LOCAL_WRITE,
            Self::Send | Self::WriteSource => Access::empty(),
        }
    }
}

/// Uses a region in one way on a connection of its own. `Err` has the status of the refusal.
async fn attempt(adapter: &Adapter, what: Use, rights: Access) -> Result<(), Status> {
    let pair = connected(adapter).await;
    let (here, there) = (&pair.active.queue_pair, &pair.passive.queue_pair);
    let region = adapter.register(8, rights).await.expect("registered");
    region.write(0, b"original").expect("as long");
    let other = adapter.register(8, Access::REMOTE_READ | Access::REMOTE_WRITE).await.expect("registered");
    other.write(0, b"from afa").expect("as long");
    let slice = region.slice(0..8).expect("within");
    let inline = |kind: PostErrorKind| {
        assert!(matches!(kind, PostErrorKind::AccessViolation { .. }), "{kind:?}");
        Err(kind.status())
    };
    let outcome = match what {
        Use::RemoteRead => {
            let read = here.read(room(adapter, 8), &region.remote()).expect("posted");
            let (outcome, buffer) = within(read).await;
            assert_eq!(outcome.is_ok(), &buffer[..] == b"original", "all of it or nothing");
            outcome.map(drop).map_err(|error| error.status())
        }
        Use::RemoteWrite => {
            let write = here.write(bytes(adapter, b"from afa"), &region.remote()).expect("posted");
            // Behind it, since a write may complete before it is found wrong.
            let fence = here.read(room(adapter, 1), &other.remote()).expect("posted");
            let write = within(write).await.0.map(drop);
            let fence = within(fence).await.0.map(drop);
            write.and(fence).map_err(|error| error.status())
        }
        Use::Receive => match there.receive(slice) {
            Err(error) => inline(error.kind),
            Ok(receive) => {
                success(here.send(bytes(adapter, b"from afa")).expect("posted")).await;
                within(receive).await.0.map(drop).map_err(|error| error.status())
            }
        },
        Use::ReadSink => match here.read(slice, &other.remote()) {
            Err(error) => inline(error.kind),
            Ok(read) => within(read).await.0.map(drop).map_err(|error| error.status()),
        },
        Use::Send => {
            let receive = there.receive(room(adapter, 8)).expect("posted");
            success(here.send(slice).expect("posted")).await;
            assert_eq!(&success(receive).await.1[..], b"original");
            Ok(())
        }
        Use::WriteSource => {
            let part: RemoteRegion = other.remote();
            success(here.write(slice, &part).expect("posted")).await;
            success(here.read(room(adapter, 8), &part).expect("posted")).await;
            let mut found = [0; 8];
            other.read(0, &mut found).expect("as long");
            assert_eq!(&found, b"original");
            Ok(())
        }
    };
    let mut found = [0; 8];
    region.read(0, &mut found).expect("as long");
    let changes = outcome.is_ok() && matches!(what, Use::RemoteWrite | Use::Receive | Use::ReadSink);
    assert_eq!(&found, if changes { b"from afa" } else { b"original" }, "{what:?} with {rights:?}");
    outcome
}

#[tokio::test]
async fn each_use_takes_its_right_and_no_other() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    // All of them, so that one named right contains another only where the documentation says so.
    assert_eq!(combinations().len(), 12);
    for rights in combinations() {
        for what in USES {
            // A use succeeds exactly if the rights contain the one that it needs (MR-03).
            let case = format!("{what:?} with {rights:?}");
            // ERR-06: a driver that does not look lets it be read.
            let unchecked = what == Use::RemoteRead && !adapter.info().checks_remote_read;
            match attempt(&adapter, what, rights).await {
                Ok(()) => assert!(unchecked || rights.contains(what.needs()), "{case}: it lacks the right"),
                Err(status) => {
                    assert!(!rights.contains(what.needs()), "{case}: it has the right, and {status:?}");
                    assert_blamed(&adapter, status, Status::ACCESS_VIOLATION, &case);
                }
            }
        }
    }
}

// A region is read by copying, also into memory that is not initialised (MR-01).
#[tokio::test]
async fn region_is_read_into_uninitialised_memory() {
    let region = adapter().register(64, Access::LOCAL_WRITE).await.expect("registered");
    let bytes: Vec<u8> = (0..64).collect();
    region.write(0, &bytes).expect("in bounds");
    let mut read = Vec::with_capacity(8);
    read.push(0xff);
    region.read_to(3, 60, &mut read).expect("a vector grows");
    assert_eq!((read[0], &read[1..]), (0xff, &bytes[3..63]));
    let mut place = [std::mem::MaybeUninit::uninit(); 16];
    let mut buffer = tokio::io::ReadBuf::uninit(&mut place);
    region.read_to(60, 4, &mut buffer).expect("there is room");
    assert_eq!(buffer.filled(), &bytes[60..]);
    assert!(region.read_to(0, 13, &mut buffer).is_err(), "for 12 there is room");
    assert!(region.read_to(60, 5, &mut buffer).is_err(), "beyond the end");
    assert_eq!(buffer.filled(), &bytes[60..], "nothing was copied");
}
