//! Peers that are idle: a dead one is noticed, and one that lives is not disturbed.
//!
//! Runs on: rxe, siw

use std::time::Duration;

use common::cm::{connect_on_at, exchange};
use common::path::noticed;
use common::raw::success;
use common::verbs::{Link, Process, connected_at, driver, one_at_a_time, run};
use common::*;
use futures::future::{join_all, select_all};
use tokio::time::timeout;
use tokio_rdma::error::Reason;
use tokio_rdma::verbs::VerbsConfig;
use tokio_rdma::{
    AcceptParams, Access, Adapter, CompletionQueueConfig, ConnectParams, DisconnectReason, Provider,
    QueuePairConfig, Status,
};

const PATH_TIMEOUT: Duration = Duration::from_secs(8);

/// An adapter at this address, with this path timeout.
fn open(ip: std::net::IpAddr, path_timeout: Option<Duration>) -> Adapter {
    let provider = Provider::verbs_with(VerbsConfig::default().path_timeout(path_timeout)).expect("devices");
    let id = provider.resolve(ip).expect("a device has the address");
    provider.open(id).expect("opened")
}

/// Cuts the two ends off from each other, so that neither driver hears of it.
fn cut(driver: &str, link: &Link) {
    match driver {
        // `siw` hears when its interface goes down. Without the address its TCP finds no way.
        "siw" => run("ip", &format!("address del {}/24 dev {}", link.address, link.name)),
        _ => run("ip", &format!("link set {} down", link.name)),
    }
}

// SEC-04, SEC-11: both ends are idle, and neither has posted anything but a receive. One of them is as deep as it can be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_off_idle_peer_is_noticed() {
    let Some(driver) = driver() else { return };
    let link = {
        let _turn = one_at_a_time();
        Link::new(driver)
    };
    let adapter = open(link.address, Some(PATH_TIMEOUT));
    let deep = QueuePairConfig::default().send_depth(adapter.info().max_queue_depth);
    let active = adapter.queue_pair(deep).expect("a queue pair");
    let pair = connect_on_at(&adapter, &active, &adapter.connector(), link.address).await;
    exchange(&adapter, &pair.active, &pair.passive).await;
    let receive = pair.active.receive(adapter.buffer(8).expect("memory")).expect("posted");
    cut(driver, &link);
    let ends = [&pair.ours, &pair.theirs].map(|connection| connection.disconnected());
    for reason in noticed(PATH_TIMEOUT, join_all(ends)).await {
        let DisconnectReason::Lost { status, reason } = reason else { panic!("{reason:?}") };
        // The device may give up first.
        let known = matches!(reason, Reason::PathTimeout | Reason::Completion(_) | Reason::Cm { .. });
        assert!(known && status == Status::IO_TIMEOUT, "{status:?} {reason:?}");
    }
    let (outcome, _buffer) = within(receive).await;
    assert_eq!(outcome.expect_err("the connection is over").status, Status::CANCELED);
}

// SEC-04, SEC-11: a process that is stopped has a device that answers for it, so it is not dead. Once it has crashed, its kernel
// ends its connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_process_is_noticed_after_crash() {
    if driver().is_none() {
        return;
    }
    let adapter = open(v4(), Some(Duration::from_secs(1)));
    let mut peer = Process::start("verbs::failures", "accept", "-", None);
    let address = peer.hear().parse().expect("an address");
    let own = queue_pair(&adapter);
    let connector = adapter.connector();
    let connect = connector.connect_and_complete(&own, address, ConnectParams::default());
    let connection = within(connect).await.expect("connected");
    success(own.send(adapter.buffer_from(b"hello").expect("memory")).expect("posted")).await;
    assert_eq!(peer.hear(), "received");
    peer.freeze();
    timeout(Duration::from_secs(4), connection.disconnected()).await.expect_err("its device answers");
    peer.kill();
    assert_eq!(within(connection.disconnected()).await, DisconnectReason::Peer);
}

// SEC-04: switched off, nothing is asked, and nothing is noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_path_timeout_nothing_is_noticed() {
    let Some(driver) = driver() else { return };
    let link = {
        let _turn = one_at_a_time();
        Link::new(driver)
    };
    let adapter = open(link.address, None);
    let pair = connected_at(&adapter, link.address).await;
    exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
    cut(driver, &link);
    timeout(PATH_TIMEOUT, pair.active.connection.disconnected()).await.expect_err("nobody has told");
}

// SEC-04: the question is none of the application's: not in its queues, and not among its completions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_lives_is_not_disturbed() {
    if driver().is_none() {
        return;
    }
    const DEPTH: usize = 4;
    // A siw answers when a task of its kernel runs, and half of the time is for that.
    let short = Duration::from_secs(1);
    let adapter = open(v4(), Some(short));
    let queue = adapter.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
    let config = QueuePairConfig::default().send_depth(DEPTH).completions(&queue);
    let active = adapter.queue_pair(config).expect("a queue pair");
    let params = (ConnectParams::default(), AcceptParams::default());
    let pair = connected_queue_pairs(&adapter, active, queue_pair(&adapter), params.0, params.1).await;
    let sink = adapter.register(8, Access::REMOTE_WRITE).await.expect("registered");
    let source = adapter.register(8, Access::LOCAL_WRITE).await.expect("registered");
    for _ in 0..3 {
        let ends = [&pair.active, &pair.passive].map(|end| Box::pin(end.connection.disconnected()));
        timeout(4 * short, select_all(ends)).await.map(|(end, ..)| end).expect_err("they live");
        assert!(queue.is_empty(), "nothing was posted");
        // As many as ever.
        let write = || pair.active.queue_pair.write(source.slice(0..8).expect("in bounds"), &sink.remote());
        let writes: Vec<_> = (0..DEPTH).map(|_| write().expect("there is room")).collect();
        within(queue.wait(DEPTH)).await.expect("open");
        assert_eq!(queue.poll(2 * DEPTH, &mut Vec::new()), DEPTH);
        for write in writes {
            success(write).await;
        }
    }
}
