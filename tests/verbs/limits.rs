//! Depths of queues that depend on the entries and the inline bytes of their requests.
//!
//! Runs on: fake, fake-iwarp

use common::process::alone;
use common::raw::{bytes, room, success};
use common::verbs::fake;
use common::*;
use tokio_rdma::error::OpenError;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, QueuePairConfig, SharedReceiveConfig, Status};

/// The bytes of a request with the default entries and inline bytes on this device, and of a receive of a shared queue.
const SEND: usize = 256;
const RECEIVE: usize = 128;

/// The depth that the text of an error offers.
fn offered(error: &OpenError) -> usize {
    let text = error.to_string();
    let after = text.split("between 1 and ").nth(1).expect("a limit");
    let number: String = after.chars().take_while(char::is_ascii_digit).collect();
    number.parse().unwrap_or_else(|_| panic!("no number in {text}"))
}

/// Both depths.
fn deep(depth: usize) -> QueuePairConfig {
    QueuePairConfig::default().send_depth(depth).receive_depth(depth)
}

/// A connection of two such queue pairs carries as many messages at once as its queues have places.
async fn carries(adapter: &Adapter, config: &QueuePairConfig, depth: usize) {
    let new = || adapter.queue_pair(config.clone()).expect("a queue pair");
    let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
    let pair = connected_queue_pairs(adapter, new(), new(), connect, accept).await;
    let post = |_| pair.passive.queue_pair.receive(room(adapter, 1)).expect("there is room");
    let receives: Vec<_> = (0..depth).map(post).collect();
    for receive in receives {
        success(pair.active.queue_pair.send(bytes(adapter, b"r")).expect("posted")).await;
        success(receive).await;
    }
}

// HW-14: a queue has a number of bytes, as with mlx5. The depth that is reported is one that a queue pair with the default settings
// has, whatever the device says of its shortest requests. The adapter asks for few queues to find it.
#[tokio::test]
async fn the_reported_depth_can_be_had() {
    if !alone(module_path!(), "the_reported_depth_can_be_had") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    for (bytes, error) in [(1 << 21, libc::EINVAL), (1 << 21, libc::ENOMEM), (1 << 16, libc::EINVAL)] {
        fake("reset");
        fake(&format!("send_queue {bytes} {error}"));
        fake(&format!("shared_queue {bytes} {error}"));
        let adapter = adapter();
        let info = adapter.info();
        // Five sizes of inline bytes may be tried, too.
        assert!(fake("calls ibv_create_qp") <= Some(11), "{:?}", fake("calls ibv_create_qp"));
        assert!(fake("calls ibv_create_srq") <= Some(6), "{:?}", fake("calls ibv_create_srq"));
        // It keeps one place for itself.
        let (depth, most) = (info.max_queue_depth, bytes / SEND);
        assert!((most / 4..most).contains(&depth), "{depth} of {most}");
        carries(&adapter, &deep(depth), depth.min(256)).await;
        let (depth, most) = (info.max_shared_depth, (bytes / RECEIVE).min(16_384));
        assert!((most / 4..=most).contains(&depth), "{depth} of {most}");
        adapter.shared_receive_queue(SharedReceiveConfig::default().depth(depth)).expect("can be had");
        let error = adapter.queue_pair(deep(info.max_queue_depth + 1)).expect_err("too deep");
        assert_eq!(offered(&error), info.max_queue_depth);
    }
}

// HW-14: a device that keeps its word is asked once.
#[tokio::test]
async fn a_depth_that_can_be_had_is_asked_for_once() {
    if !alone(module_path!(), "a_depth_that_can_be_had_is_asked_for_once") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    assert_eq!(adapter.info().max_queue_depth, 16_383);
    assert_eq!(adapter.info().max_shared_depth, 16_384);
    // 512 bytes inline, 256, and the depth.
    assert_eq!(fake("calls ibv_create_qp"), Some(3));
    assert_eq!(fake("calls ibv_create_srq"), Some(1));
}

// HW-14: more entries or inline bytes leave room for fewer requests. The error says for how many, and so many can be had.
#[tokio::test]
async fn the_error_of_longer_requests_names_a_depth_that_can_be_had() {
    if !alone(module_path!(), "the_error_of_longer_requests_names_a_depth_that_can_be_had") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    fake(&format!("send_queue {} {}", 1 << 18, libc::EINVAL));
    fake(&format!("shared_queue {} {}", 1 << 18, libc::ENOMEM));
    let adapter = adapter();
    let info = adapter.info();
    let (depth, entries, inline) = (info.max_queue_depth, info.max_entries, info.max_inline);
    // The bytes of a request of each kind, by which the greatest depth is known; one place is the adapter's.
    for (entries, inline, size) in [(4, inline, 448), (entries, 0, 384), (entries, inline, 448)] {
        let config = |depth| deep(depth).send_entries(entries).inline(inline);
        let error = adapter.queue_pair(config(depth)).map(drop).expect_err("too deep");
        assert_eq!(error.status(), Status::INVALID_PARAMETER_6, "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("{entries} send_entries and {inline} bytes inline")), "{text}");
        assert_eq!(offered(&error), (1 << 18) / size - 1, "{text}");
        carries(&adapter, &config(offered(&error)), 64).await;
    }
    let shared = |depth| SharedReceiveConfig::default().entries(entries - 1).depth(depth);
    let error = adapter.shared_receive_queue(shared(1).entries(entries)).map(drop).expect_err("one too many");
    assert_eq!(error.status(), Status::INVALID_PARAMETER_4, "{error}");
    assert_eq!(offered(&error), entries - 1);
    let error = adapter.shared_receive_queue(shared(info.max_shared_depth)).map(drop).expect_err("too deep");
    assert_eq!(error.status(), Status::INVALID_PARAMETER_3, "{error}");
    assert_eq!(offered(&error), (1 << 18) / 256);
    adapter.shared_receive_queue(shared(offered(&error))).expect("can be had");
    // A queue pair of that queue takes its receives there, and its error is that of the send queue.
    let queue = adapter.shared_receive_queue(SharedReceiveConfig::default()).expect("a queue");
    let config = deep(depth).send_entries(entries).shared_receives(&queue);
    let error = adapter.queue_pair(config).map(drop).expect_err("too deep");
    assert_eq!(error.status(), Status::INVALID_PARAMETER_6, "{error}");
}

// HW-14: a device without room is not taken for one with short queues, nor is another error.
#[tokio::test]
async fn a_shortage_is_no_limit() {
    if !alone(module_path!(), "a_shortage_is_no_limit") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    fake(&format!("send_queue {} {}", 1 << 18, libc::EINVAL));
    let adapter = adapter();
    let info = adapter.info();
    let usual = deep(info.max_queue_depth);
    let long = usual.clone().send_entries(info.max_entries);
    let shared = SharedReceiveConfig::default().entries(info.max_entries - 1);
    for (error, status) in
        [(libc::ENOMEM, Status::INSUFFICIENT_RESOURCES), (libc::EINVAL, Status::INVALID_PARAMETER)]
    {
        fake(&format!("refuse ibv_create_qp {error}"));
        fake(&format!("refuse ibv_create_srq {error}"));
        for config in [&usual, &long] {
            let error = adapter.queue_pair(config.clone()).map(drop).expect_err("no room");
            assert!(matches!(error, OpenError::Os { .. }), "{error:?}");
            assert_eq!(error.status(), status);
        }
        let error = adapter.shared_receive_queue(shared).map(drop).expect_err("no room");
        assert!(matches!(error, OpenError::Os { .. }), "{error:?}");
        fake("reset");
        carries(&adapter, &usual, 8).await;
    }
    // Without the calls that find a limit, an adapter has those that the device reports.
    fake(&format!("fail ibv_create_cq 1 {}", libc::ENOMEM));
    let info = common::adapter().info();
    assert_eq!((info.max_queue_depth, info.max_inline), (16_383, 0));
}
