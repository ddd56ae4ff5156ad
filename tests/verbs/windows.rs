//! Memory windows of a device: how many of them there are, and when they go.
//!
//! Runs on: fake

use common::life::eventually;
use common::process::alone;
use common::raw::{bytes, success};
use common::verbs::fake;
use common::*;
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::{Access, WorkOptions};

// MW-01: a bind that the driver refuses gives its window of the device back. The next bind needs no other.
#[tokio::test]
async fn a_refused_bind_keeps_its_window() {
    if !alone(module_path!(), "a_refused_bind_keeps_its_window") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let region = adapter.register(64, Access::REMOTE_WRITE).await.expect("registered");
    let window = adapter.memory_window().expect("a window");
    let bind = || {
        let slice = region.slice(0..64).expect("within");
        pair.active.queue_pair.bind(&window, &slice, Access::REMOTE_WRITE, WorkOptions::default())
    };
    fake(&format!("fail ibv_post_send 1 {}", libc::EIO));
    assert_eq!(bind().map(drop).expect_err("refused"), PostErrorKind::Device(libc::EIO));
    assert_eq!(fake("count mw"), Some(1));
    fake(&format!("refuse ibv_alloc_mw {}", libc::ENOMEM));
    let bound = bind().expect("it needs no other window of the device");
    within(bound).await.0.expect("bound");
    let remote = window.remote().expect("bound");
    let peer = &pair.passive.queue_pair;
    success(peer.write(bytes(&adapter, b"written"), &remote).expect("posted")).await;
}

// MR-04: a window that is bound goes with its connection, and no longer keeps its region.
#[tokio::test]
async fn bound_windows_go_with_their_connection() {
    if !alone(module_path!(), "bound_windows_go_with_their_connection") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let region = adapter.register(64, Access::REMOTE_WRITE).await.expect("registered");
    let windows = [(); 2].map(|()| adapter.memory_window().expect("a window"));
    for window in windows.iter().chain(&windows) {
        let slice = region.slice(0..64).expect("within");
        let options = WorkOptions::default();
        let bind = pair.active.queue_pair.bind(window, &slice, Access::REMOTE_WRITE, options);
        within(bind.expect("posted")).await.0.expect("bound");
    }
    eventually("the first bindings are gone", || fake("count mw") == Some(2)).await;
    within(pair.active.connection.disconnect()).await.expect("disconnected");
    eventually("the windows are gone", || fake("count mw") == Some(0)).await;
    within(region.deregister()).await.expect("no window is bound to it");
}
