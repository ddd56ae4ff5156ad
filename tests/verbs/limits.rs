//! Depths of queues that depend on the entries and the inline bytes of their requests.
//!
//! Runs on: fake, fake-iwarp

use common::process::alone;
use common::raw::{bytes, room, success};
use common::stream::{pattern, streams};
use common::verbs::fake;
use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::error::{OpenError, PostErrorKind, ResizeError};
use tokio_rdma::{
    AcceptParams, Access, Adapter, CompletionQueueConfig, ConnectParams, QueuePairConfig,
    SharedReceiveConfig, Status, WorkOptions,
};

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
async fn supported_depth_is_probed_once() {
    if !alone(module_path!(), "supported_depth_is_probed_once") {
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
async fn depth_error_names_an_available_depth() {
    if !alone(module_path!(), "depth_error_names_an_available_depth") {
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

// HW-14: a queue pair with the usual entries and inline bytes is no longer than those whose depth is reported. If it is refused, there is
// no room, and the device is not asked for others.
#[tokio::test]
async fn a_refused_usual_queue_pair_is_tried_once() {
    if !alone(module_path!(), "a_refused_usual_queue_pair_is_tried_once") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    fake("reset");
    fake(&format!("fail ibv_create_qp 1 {}", libc::ENOMEM));
    let error = adapter.queue_pair(QueuePairConfig::default()).map(drop).expect_err("no room");
    assert!(matches!(error, OpenError::Os { .. }), "{error:?}");
    assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES);
    assert_eq!(fake("calls ibv_create_qp"), Some(1));
}

/// Sends, writes and inline requests of all lengths up to twice the usual inline bytes arrive as they are.
async fn carries_all_lengths(adapter: &Adapter) {
    let pair = connected(adapter).await;
    let (active, passive) = (&pair.active.queue_pair, &pair.passive.queue_pair);
    let region = adapter.register(256, Access::REMOTE_WRITE).await.expect("registered");
    let [first, second] = [0..128, 128..256].map(|part| region.remote_part(part).expect("within"));
    let most = adapter.info().max_inline.min(64);
    for length in 1..=128 {
        let [sent, copied] = [0, 1].map(|from| pattern(length + from, length));
        let receives = [0, 1].map(|_| passive.receive(room(adapter, 128)).expect("posted"));
        success(active.write(bytes(adapter, &sent), &first).expect("posted")).await;
        let options = WorkOptions::default;
        if length <= most {
            success(active.write_inline(&[&copied], &second, options()).expect("posted")).await;
            success(active.send_inline(&[&copied], options()).expect("posted")).await;
        } else {
            let too_long = PostErrorKind::InlineTooLong { length, maximum: most };
            let write = active.write_inline(&[&copied], &second, options()).map(drop);
            assert_eq!(write.expect_err("too long"), too_long);
            success(active.write(bytes(adapter, &copied), &second).expect("posted")).await;
            success(active.send(bytes(adapter, &copied)).expect("posted")).await;
        }
        success(active.send(bytes(adapter, &sent)).expect("posted")).await;
        for (receive, expected) in receives.into_iter().zip([&copied, &sent]) {
            let (count, buffer) = success(receive).await;
            assert_eq!(&buffer[..count], expected);
        }
        // The writes were there before the messages behind them.
        for (at, expected) in [(0, &sent), (128, &copied)] {
            let mut found = vec![0; length];
            region.read(at, &mut found).expect("as long");
            assert_eq!(&found, expected);
        }
    }
}

/// Writes of a stream of all lengths around the usual inline bytes.
async fn streams_all_lengths(adapter: &Adapter) {
    let (mut active, mut passive) = streams(adapter).await;
    for length in 1..=100 {
        let sent = pattern(length, length);
        within(active.write_all(&sent)).await.expect("written");
        within(active.flush()).await.expect("flushed");
        let mut found = vec![0; length];
        within(passive.read_exact(&mut found)).await.expect("read");
        assert_eq!(found, sent);
        within(passive.write_all(&sent)).await.expect("written");
        within(active.read_exact(&mut found)).await.expect("read");
    }
}

// HW-14: a driver may give a queue pair fewer inline bytes than it was asked for, without an error: 32 with hns, none with mana. What
// the queue pair has is what is reported.
#[tokio::test]
async fn inline_limit_follows_the_driver() {
    if !alone(module_path!(), "inline_limit_follows_the_driver") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    for most in [32, 0, 48, 512] {
        fake(&format!("inline_clamp {most}"));
        let adapter = adapter();
        // The device itself has up to 256.
        assert_eq!(adapter.info().max_inline, most.min(256));
        carries_all_lengths(&adapter).await;
        streams_all_lengths(&adapter).await;
        let config = QueuePairConfig::default().inline(adapter.info().max_inline + 1);
        let error = adapter.queue_pair(config).map(drop).expect_err("too many");
        assert_eq!(error.status(), Status::INVALID_PARAMETER_9, "{error}");
    }
}

// HW-14: a queue pair to which the driver gives fewer than the adapter has found is refused, so that none of its requests is later.
#[tokio::test]
async fn queue_pair_below_inline_limit_is_refused() {
    if !alone(module_path!(), "queue_pair_below_inline_limit_is_refused") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let shared = adapter.shared_receive_queue(SharedReceiveConfig::default()).expect("a queue");
    fake("inline_clamp 16");
    let before = fake("count qp");
    let config = QueuePairConfig::default;
    for (config, status) in [
        (config(), Status::INVALID_PARAMETER_9),
        (config().inline(17), Status::INVALID_PARAMETER_9),
        (config().shared_receives(&shared), Status::INVALID_PARAMETER_8),
    ] {
        let error = adapter.queue_pair(config).map(drop).expect_err("too few");
        assert_eq!(error.status(), status, "{error}");
        assert_eq!(offered_inline(&error), 16, "{error}");
    }
    assert_eq!(fake("count qp"), before, "none is left");
    adapter.queue_pair(config().inline(16)).expect("so many there are");
}

/// The inline bytes that the text of an error offers.
fn offered_inline(error: &OpenError) -> usize {
    let text = error.to_string();
    let after = text.split("between 0 and ").nth(1).expect("a limit");
    let number: String = after.chars().take_while(char::is_ascii_digit).collect();
    number.parse().unwrap_or_else(|_| panic!("no number in {text}"))
}

// HW-14: older kernels do not say that the cards of mana have no inline bytes, and their library sends what the entry names.
#[tokio::test]
async fn a_card_that_ignores_inline_requests_has_none() {
    if !alone(module_path!(), "a_card_that_ignores_inline_requests_has_none") {
        return;
    }
    let Some(_) = fake(&format!("vendor {}", 0x1414)) else { return };
    let adapter = adapter();
    assert_eq!(adapter.info().max_inline, 0);
    carries_all_lengths(&adapter).await;
}

// SRQ-04: nearly no card can change the length of a shared receive queue. Then nothing is changed, not even the completion queues that
// would have to grow first, and the error says that it is not supported, whatever the driver would say.
#[tokio::test]
async fn fixed_length_shared_queue_is_unchanged() {
    if !alone(module_path!(), "fixed_length_shared_queue_is_unchanged") {
        return;
    }
    let Some(_) = fake("fixed shared") else { return };
    let adapter = adapter();
    let shared = adapter.shared_receive_queue(SharedReceiveConfig::default().depth(4)).expect("a queue");
    let results = adapter.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
    let config = QueuePairConfig::default().shared_receives(&shared).receive_completions(&results);
    let _queue_pair = adapter.queue_pair(config).expect("a queue pair");
    let entries = fake("count cqe");
    let error = shared.modify(Some(1000), None).expect_err("fixed");
    let ResizeError::Os { call: "ibv_modify_srq", source } = &error else { panic!("{error:?}") };
    assert_eq!(source.raw_os_error(), Some(libc::EOPNOTSUPP), "{error}");
    assert_eq!((error.status(), shared.depth()), (Status::NOT_SUPPORTED, 4));
    assert_eq!((fake("calls ibv_resize_cq"), fake("count cqe")), (Some(0), entries));
    // The length that it has is no change, which a driver could refuse.
    shared.modify(Some(4), Some(1)).expect("only the threshold changes");
}
