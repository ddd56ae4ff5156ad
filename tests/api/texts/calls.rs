//! The texts of errors, each of a call that fails: they name the object, the value and the limit.
//!
//! Runs on: soft, sim, rxe, siw

use std::time::Duration;

use common::cm::*;
use common::deviation::lacks_buffer_sinks;
use common::device::{self, nobody, silent};
use common::raw::{bytes, room};
use common::*;
use tokio_rdma::error::{PostErrorKind, ResizeError};
use tokio_rdma::qp::{CompletionQueueConfig, NotifyKind, SharedReceiveConfig, WorkOptions};
use tokio_rdma::{AcceptParams, Access, ConnectParams, QueuePairConfig, ReadLimits};

/// The limit of a connect to a peer that does not answer.
const SHORT: Duration = Duration::from_millis(50);

/// Returns the text of the error of a call.
#[track_caller]
fn text<T, E: std::fmt::Display>(outcome: Result<T, E>) -> String {
    let Err(error) = outcome else { panic!("the call succeeded") };
    error.to_string()
}

/// Returns the depth that the error of a full queue names: a device may hold more than was asked for.
#[track_caller]
fn depth_of(kind: PostErrorKind) -> usize {
    let PostErrorKind::QueueFull { depth, .. } = kind else { panic!("{kind:?}") };
    depth
}

// The text contains the depth of the queue, which may be more than was asked for (ERR-09).
#[tokio::test]
async fn a_full_queue_is_named_with_its_depth() {
    let adapter = adapter();
    let config = || QueuePairConfig::default().send_depth(3).receive_depth(2);
    let [active, passive] = [(); 2].map(|()| adapter.queue_pair(config()).expect("a queue pair"));
    let params = (ConnectParams::default(), AcceptParams::default());
    let pair = connected_queue_pairs(&adapter, active, passive, params.0, params.1).await;
    let (from, to) = (&pair.active.queue_pair, &pair.passive.queue_pair);
    let mut receives = Vec::new();
    let full = loop {
        match to.receive(room(&adapter, 8)) {
            Ok(receive) => receives.push(receive),
            Err(error) => break error,
        }
    };
    let depth = depth_of(full.kind);
    assert!(depth >= 2 && depth == receives.len(), "{depth}");
    assert_eq!(full.to_string(), format!("the receive queue is full: its depth is {depth}"));
    // Nothing of a batch is sent before it is submitted.
    let batch = from.batch();
    let mut sends = Vec::new();
    let full = loop {
        match batch.send(bytes(&adapter, b"x")) {
            Ok(send) => sends.push(send),
            Err(error) => break error,
        }
    };
    let depth = depth_of(full.kind);
    assert!(depth >= 3 && depth == sends.len(), "{depth}");
    assert_eq!(full.to_string(), format!("the send queue is full: its depth is {depth}"));
}

// The texts contain the number of entries, the depth and the limits of the queue (ERR-09).
#[tokio::test]
async fn full_shared_receive_queue_names_its_depth() {
    let adapter = adapter();
    let Ok(queue) = adapter.shared_receive_queue(SharedReceiveConfig::default().depth(2).entries(2)) else {
        return assert!(!device::Device::under_test().is_soft(), "soft has shared receive queues");
    };
    let three = || [room(&adapter, 1), room(&adapter, 1), room(&adapter, 1)];
    let many = "the receive has 3 scatter-gather entries, and its queue allows 2";
    assert_eq!(text(queue.receive(three())), many);
    let _receives: Vec<_> = (0..2).map(|_| queue.receive(room(&adapter, 1)).expect("posted")).collect();
    assert_eq!(text(queue.receive(room(&adapter, 1))), "the shared receive queue is full: its depth is 2");
    assert_eq!(text(queue.modify(Some(1), None)), "the queue cannot shrink to 1 entries: it holds 2");
    let most = adapter.info().max_shared_depth;
    let beyond = format!("the new size of the queue is {}, not between 1 and {most}", most + 1);
    assert_eq!(text(queue.modify(Some(most + 1), None)), beyond);
}

// The texts contain the value of the request and the limit that it exceeds (ERR-09).
#[tokio::test]
async fn request_error_names_value_and_limit() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let config = QueuePairConfig::default().send_entries(2).receive_entries(1);
    let active = adapter.queue_pair(config).expect("a queue pair");
    assert_eq!(text(active.send(room(&adapter, 1))), "the queue pair is not connected");
    let params = (ConnectParams::default(), AcceptParams::default());
    let pair = connected_queue_pairs(&adapter, active, queue_pair(&adapter), params.0, params.1).await;
    let active = &pair.active.queue_pair;
    let readable = adapter.register(8, Access::REMOTE_READ).await.expect("registered");
    let remote = readable.remote();
    let rooms = |count: usize| (0..count).map(|_| room(&adapter, 4)).collect::<Vec<_>>();
    let reads = adapter.info().max_read_entries.min(2);
    let slice = || readable.slice(0..8).expect("all of it");
    let stranger = common::adapter();
    let lacks = "the memory lacks the access right LOCAL_WRITE, which the request needs";
    let most = adapter.info().max_inline;
    let long = vec![0; most + 1];
    let inline = |queue: &tokio_rdma::QueuePair| queue.send_inline(&[&long], WorkOptions::default());
    for (found, expected) in [
        (text(active.send(rooms(3))), "the send has 3 scatter-gather entries, and its queue allows 2".into()),
        (
            text(active.receive(rooms(2))),
            "the receive has 2 scatter-gather entries, and its queue allows 1".into(),
        ),
        (
            text(active.read(rooms(3), &remote)),
            format!("the read has 3 scatter-gather entries, and its queue allows {reads}"),
        ),
        (text(active.receive(slice())), lacks.into()),
        (
            text(active.send(room(&stranger, 4))),
            "the memory belongs to another adapter than the queue, or is not registered any more".into(),
        ),
        (
            text(active.write(room(&adapter, 9), &remote)),
            "the buffer of 9 bytes is longer than the peer's memory of 8 bytes".into(),
        ),
        (
            text(active.read_with(room(&adapter, 8), &remote, WorkOptions::default().immediate(1))),
            "the read does not accept the option immediate".into(),
        ),
    ] {
        assert_eq!(found, expected);
    }
    let Err(PostErrorKind::InlineTooLong { length, maximum }) = inline(active).map(drop) else {
        panic!("{}", text(inline(active)))
    };
    assert!(length == most + 1 && maximum <= most, "{maximum}");
    let expected = format!("the inline data has {length} bytes, and the queue pair allows {maximum}");
    assert_eq!(text(inline(active)), expected);
    if adapter.info().atomics {
        let odd = remote.part(1..8).expect("within");
        let address = odd.address();
        assert_eq!(
            text(active.fetch_add(room(&adapter, 8), &odd, 1, WorkOptions::default())),
            format!(
                "an atomic requires 8 bytes at an address that is a multiple of 8, not 7 bytes at {address:#x}"
            )
        );
    }
    if adapter.info().memory_windows {
        let window = adapter.memory_window().expect("a window");
        let invalidated = active.invalidate(&window, WorkOptions::default());
        assert_eq!(text(invalidated), "the memory window is not bound by this queue pair");
        let bound = active.bind(&window, &slice(), Access::REMOTE_WRITE, WorkOptions::default());
        assert_eq!(text(bound), lacks);
    }
}

// The text names the limit that is zero (ERR-09).
#[tokio::test]
async fn a_connection_without_reads_says_so() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let none = (
        ConnectParams::default().read_limits(ReadLimits::NONE),
        AcceptParams::default().read_limits(ReadLimits::NONE),
    );
    let [active, passive] = [(); 2].map(|()| queue_pair(&adapter));
    let pair = connected_queue_pairs(&adapter, active, passive, none.0, none.1).await;
    let remote = adapter.register(8, Access::REMOTE_READ).await.expect("registered").remote();
    assert_eq!(
        text(pair.active.queue_pair.read(room(&adapter, 8), &remote)),
        "the outbound read limit of the connection is 0: no read or atomic can be posted"
    );
}

// The texts contain the length and the length that is needed (ERR-09).
#[tokio::test]
async fn length_error_names_length_and_limit() {
    let adapter = adapter();
    let region = adapter.register(8, Access::LOCAL_WRITE).await.expect("registered");
    assert_eq!(
        text(region.write(6, b"abc")),
        "the buffer, slice or region has a length of 8, and 9 is needed"
    );
    assert_eq!(
        text(region.remote().part(0..9)),
        "the buffer, slice or region has a length of 8, and 9 is needed"
    );
    let short: Result<tokio_rdma::mr::RemoteRegion, _> = (&b"short"[..]).try_into();
    assert_eq!(text(short), "the buffer, slice or region has a length of 5, and 16 is needed");
    assert_eq!(text(adapter.register(0, Access::LOCAL_WRITE).await), "the length of the memory is 0");
    let results = adapter.completion_queue(CompletionQueueConfig::default().depth(2)).expect("a queue");
    let most = adapter.info().max_completion_depth;
    assert_eq!(text(results.resize(0)), format!("the new size of the queue is 0, not between 1 and {most}"));
    let config = QueuePairConfig::default().receive_completions(&results);
    let queue_pair = adapter.queue_pair(config).expect("a queue pair");
    let _receives: Vec<_> = (0..3).map(|_| queue_pair.receive(room(&adapter, 1)).expect("posted")).collect();
    queue_pair.flush();
    let overran = "a completion arrived while the completion queue was full: its depth is 2";
    assert_eq!(text(within(results.notify(NotifyKind::Any)).await), overran);
    let error = results.resize(4).expect_err("it has ended");
    assert!(matches!(error, ResizeError::Ended(_)) && error.to_string() == overran, "{error}");
}

// The texts contain the address of the peer, the time or the value that is out of range (ERR-09).
#[tokio::test]
async fn a_connect_that_fails_names_the_peer() {
    for ip in both() {
        let adapter = adapter();
        let (connector, active) = (adapter.connector(), queue_pair(&adapter));
        let peer = nobody(ip);
        let refused = within(connector.connect(&active, peer, ConnectParams::default())).await;
        let refused = text(refused);
        assert!(refused.starts_with(&format!("{peer} refused the connection: ")), "{refused}");
        let (_silent, peer) = silent(ip);
        let params = ConnectParams::default().timeout(SHORT);
        let late = within(connector.connect(&active, peer, params)).await;
        assert_eq!(text(late), format!("{peer} did not respond within {SHORT:?}"));
        let most = adapter.info().max_request_data;
        let params = ConnectParams::default().private_data(vec![0; most + 1]);
        let long = within(connector.connect(&active, peer, params)).await;
        let expected = format!("private data of {} bytes exceeds the adapter's maximum of {most}", most + 1);
        assert_eq!(text(long), expected);
        let stranger = queue_pair(&common::adapter());
        let foreign = within(connector.connect(&stranger, peer, ConnectParams::default())).await;
        assert_eq!(text(foreign), "the queue pair belongs to another adapter");
        let peer = ([0, 0, 0, 0], 7).into();
        let invalid = within(connector.connect(&active, peer, ConnectParams::default())).await;
        assert_eq!(text(invalid), "0.0.0.0:7 is not a valid destination");
    }
}

// The text names the application, if the device distinguishes its rejection from a refusal (ERR-09).
#[tokio::test]
async fn a_rejection_names_the_peer() {
    let adapter = adapter();
    let asked = requested(&adapter, v4(), ConnectParams::default()).await;
    let peer = asked.listener.local_addr().expect("listening");
    within(asked.request.reject(b"full")).await.expect("rejected");
    let rejected = text(outcome(asked.connecting).await);
    // Not every device says whose word it was.
    let application = format!("the application at {peer} rejected the connection: \"full\"");
    let refused = rejected.starts_with(&format!("{peer} refused the connection: "));
    assert!(rejected == application || refused && !device::Device::under_test().is_soft(), "{rejected}");
}
