//! The registrations that a device is asked for.
//!
//! Runs on: fake

use common::life::poll_once;
use common::process::alone;
use common::raw::{bytes, success};
use common::verbs::fake;
use common::*;
use tokio_rdma::error::RegisterError;
use tokio_rdma::{Access, Status};

/// The numbers of the flags in C.
const LOCAL_WRITE: u32 = 1;
const REMOTE_WRITE: u32 = 2;
const REMOTE_READ: u32 = 4;
const MW_BIND: u32 = 16;
const RELAXED_ORDERING: u32 = 1 << 20;

// HW-11: relaxed ordering is asked for where the program asks for it, and only there.
#[tokio::test]
async fn access_flags_are_those_that_were_asked_for() {
    if !alone(module_path!(), "access_flags_are_those_that_were_asked_for") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let windows = if adapter.info().memory_windows { MW_BIND } else { 0 };
    let cases = [
        (Access::REMOTE_READ, REMOTE_READ),
        (Access::REMOTE_READ | Access::RELAXED_ORDERING, REMOTE_READ | RELAXED_ORDERING),
        (Access::REMOTE_WRITE | Access::RELAXED_ORDERING, LOCAL_WRITE | REMOTE_WRITE | RELAXED_ORDERING),
        (Access::RELAXED_ORDERING, RELAXED_ORDERING),
    ];
    for (access, flags) in cases {
        let count = || fake(&format!("access {}", flags | windows)).expect("a number");
        let owned = within(adapter.register_from(vec![0; 7], access)).await.expect("registered");
        let region = within(adapter.register(7, access)).await.expect("registered");
        assert_eq!(count(), 2, "{access}");
        within(region.deregister()).await.expect("deregistered");
        within(region.register_again(Access::REMOTE_READ)).await.expect("registered again");
        within(owned.deregister()).await.expect("deregistered");
        within(owned.register_again(access)).await.expect("registered again");
        assert_eq!(count(), if access == Access::REMOTE_READ { 2 } else { 1 }, "{access}");
    }
}

// HW-11: the device may write memory that it has not given back.
#[tokio::test]
async fn memory_that_cannot_be_deregistered_is_withheld() {
    if !alone(module_path!(), "memory_that_cannot_be_deregistered_is_withheld") {
        return;
    }
    let Some(_) = fake("forgive") else { return };
    let adapter = adapter();
    let pair = connected(&adapter).await;
    // Buffers are not given back either.
    let [written, withheld] = [bytes(&adapter, b"written"), bytes(&adapter, b"withheld")];
    let before = fake("count mr").expect("a number");
    let region = within(adapter.register_from(vec![0; 64], Access::REMOTE_WRITE)).await.expect("registered");
    fake(&format!("refuse ibv_dereg_mr {}", libc::EPERM));
    let error = within(region.into_inner()).await.expect_err("the device keeps it");
    assert!(matches!(error.kind, RegisterError::Os { call: "ibv_dereg_mr", .. }), "{error}");
    let region = error.memory.expect("the region is as it was");
    // The region works, and is given back once the device does.
    let there = &pair.passive.queue_pair;
    let (_, _written) = success(there.write(written, &region.remote()).expect("posted")).await;
    fake("reset");
    let vector = within(region.into_inner()).await.expect("the device gives it back");
    assert_eq!(&vector[..8], b"written\0");
    assert_eq!(fake("count mr"), Some(before));

    // A handle that outlives the call registers it again, and then the device keeps it.
    let region = within(adapter.register_from(vector, Access::REMOTE_WRITE)).await.expect("registered");
    let clone = region.slice(0..1).expect("within").region().clone();
    let mut returning = Box::pin(region.into_inner());
    assert!(poll_once(&mut returning).is_pending());
    within(clone.register_again(Access::REMOTE_WRITE)).await.expect("registered again");
    fake("forgive");
    fake(&format!("refuse ibv_dereg_mr {}", libc::EPERM));
    let remote = clone.remote();
    drop(clone);
    let error = within(returning).await.expect_err("the device keeps it");
    assert_eq!((error.status(), error.memory.is_none()), (Status::DEVICE_BUSY, true));
    // It is not freed: the peer still writes to it.
    assert_eq!(fake("count mr"), Some(before + 1));
    success(there.write(withheld, &remote).expect("posted")).await;
}
