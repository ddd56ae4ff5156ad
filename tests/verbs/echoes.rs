//! Calls and completions of byte streams on a device: it tells of few writes, and is seldom asked to tell.
//!
//! Runs on: fake

use common::process::alone;
use common::stream::streams;
use common::verbs::fake;
use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::RdmaStream;

/// A stream whose ends have granted each other all of their memory.
async fn pair() -> (RdmaStream, RdmaStream) {
    let (mut left, mut right) = streams(&adapter()).await;
    for _ in 0..2 {
        carry(&mut left, &mut right).await;
        carry(&mut right, &mut left).await;
    }
    (left, right)
}

async fn carry(from: &mut RdmaStream, to: &mut RdmaStream) {
    within(from.write_all(&[7; 64])).await.expect("written");
    within(to.read_exact(&mut [0; 64])).await.expect("read");
}

// QP-09, IO-06: the completions of receives find room in the queue, and those of writes would not. A close hears of all of them.
#[tokio::test]
async fn a_device_tells_of_few_writes() {
    const MESSAGES: usize = 20;
    if !alone(module_path!(), "a_device_tells_of_few_writes") || fake("reset").is_none() {
        return;
    }
    let (mut left, mut right) = pair().await;
    fake(&format!("overrun {}", MESSAGES + 3));
    for _ in 0..MESSAGES {
        carry(&mut left, &mut right).await;
    }
    fake("reset");
    within(left.shutdown()).await.expect("everything has been sent");
    assert_eq!(within(right.read(&mut [0])).await.expect("in good order"), 0);
    drop(right);
    assert_eq!(within(left.read(&mut [0])).await.expect("in good order"), 0);
}

// CQ-02: what has come by the time that the woken tasks have run is found by looking.
#[tokio::test]
async fn a_device_is_seldom_asked_to_tell() {
    const ECHOES: i64 = 100;
    if !alone(module_path!(), "a_device_is_seldom_asked_to_tell") || fake("reset").is_none() {
        return;
    }
    let (mut left, mut right) = pair().await;
    // A task for each end: one that has both finds the completions of the other end itself.
    let ask = tokio::spawn(async move {
        for _ in 0..ECHOES {
            within(left.write_all(&[7; 64])).await.expect("written");
            within(left.read_exact(&mut [0; 64])).await.expect("read");
        }
        left
    });
    let echo = tokio::spawn(async move {
        for _ in 0..ECHOES {
            within(right.read_exact(&mut [0; 64])).await.expect("read");
            within(right.write_all(&[7; 64])).await.expect("written");
        }
        right
    });
    fake("reset");
    let ends = tokio::join!(ask, echo);
    let asked = fake("calls ibv_req_notify_cq").expect("the device counts");
    drop(ends);
    assert!(asked < ECHOES / 2, "{asked} times");
}
