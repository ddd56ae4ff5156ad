//! Idle connections of cards: a peer that is dead, or whose port is down, is noticed in time, and one that lives is left alone.
//! `keepalive` and `streams` show the same on the devices of the kernel.
//!
//! Runs on: fake, fake-iwarp

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use common::cm::exchange;
use common::life::{eventually, poll_once};
use common::path::noticed;
use common::process::alone;
use common::raw::{bytes, failure, room, success};
use common::stream::streams;
use common::verbs::{connected_at, fake, nothing_is_left};
use common::*;
use futures::future::{join, join_all, select_all};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::error::{Reason, StreamBroken, WcError};
use tokio_rdma::status::WcStatus;
use tokio_rdma::verbs::VerbsConfig;
use tokio_rdma::{
    AcceptParams, Access, Adapter, CompletionQueueConfig, ConnectParams, DisconnectReason, Provider,
    QueuePairConfig, RdmaStream, ReadLimits, Status, WorkOptions,
};

const PATH_TIMEOUT: Duration = Duration::from_secs(4);
/// An address of the second port. Connects from the first port reach it.
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Gives the second port two addresses, of which one is not at an interface.
fn second_port() -> Option<()> {
    for ip in [FAR, v6()] {
        fake(&format!("place {ip} 2 0"))?;
    }
    Some(())
}

/// An adapter with this path timeout.
fn open(path_timeout: Option<Duration>) -> Adapter {
    let provider =
        Provider::verbs_with(VerbsConfig::default().path_timeout(path_timeout)).expect("a provider");
    provider.open(provider.resolve(v4()).expect("the device has the address")).expect("opened")
}

/// A connected pair that has exchanged messages and is idle.
async fn idle_at(adapter: &Adapter, ip: IpAddr) -> Pair {
    let pair = connected_at(adapter, ip).await;
    exchange(adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
    pair
}

/// An idle pair, one end at each port.
async fn idle_between_ports(adapter: &Adapter) -> Pair {
    let (listener, address) = listening_at(adapter, FAR);
    let (active, passive) = (queue_pair(adapter), queue_pair(adapter));
    let connector = adapter.connector();
    connector.bind((v4(), 0).into()).expect("bound");
    let (ours, theirs) = joined(
        connector.connect_and_complete(&active, address, ConnectParams::default()),
        listener.accept_next(&passive, AcceptParams::default()),
    )
    .await;
    exchange(adapter, &active, &passive).await;
    Pair {
        active: End { queue_pair: active, connection: ours },
        passive: End { queue_pair: passive, connection: theirs },
    }
}

/// Asserts that an end has been given up, by this side or by the device.
fn is_given_up(reason: &DisconnectReason) {
    let DisconnectReason::Lost { status: Status::IO_TIMEOUT, reason } = reason else { panic!("{reason:?}") };
    assert!(matches!(reason, Reason::PathTimeout | Reason::Completion(_)), "{reason:?}");
}

/// Asserts that a stream has been given up, by what a read of it ends with.
fn stream_is_given_up(read: std::io::Result<usize>) {
    let error = read.expect_err("the peer is dead");
    let broken = error.get_ref().and_then(|inner| inner.downcast_ref::<StreamBroken>());
    let Some(StreamBroken::Connection(reason)) = broken else { panic!("{error:?}") };
    is_given_up(reason);
}

/// Takes a port of the device down. Each of these pairs loses both of its ends in time, and what was posted comes back. The others
/// are as they were.
async fn is_noticed(port: u8, adapter: &Adapter, hit: [Pair; 2], others: &[(Adapter, Pair)]) {
    let ends: Vec<_> = hit.iter().flat_map(|pair| [&pair.active, &pair.passive]).collect();
    let receives: Vec<_> =
        ends.iter().map(|end| end.queue_pair.receive(room(adapter, 8)).expect("posted")).collect();
    fake(&format!("port {port} down"));
    let all = join_all(ends.iter().map(|end| end.connection.disconnected()));
    noticed(PATH_TIMEOUT, all).await.iter().for_each(is_given_up);
    for receive in receives {
        assert_eq!(failure(receive).await, Status::CANCELED);
    }
    let is_alive =
        |pair: &Pair| pair.active.connection.is_connected() && pair.passive.connection.is_connected();
    assert!(others.iter().all(|(_, pair)| is_alive(pair)));
    fake(&format!("port {port} up"));
    for (adapter, pair) in others {
        exchange(adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
    }
}

// SEC-04, HW-16: a connection between two ports of which one is down. Those of the other port, and those of an adapter that
// notices nothing, go on.
#[tokio::test]
async fn port_down_is_noticed_at_both_ends() {
    if !alone(module_path!(), "port_down_is_noticed_at_both_ends") {
        return;
    }
    let Some(()) = second_port() else { return };
    let (adapter, careless) = (open(Some(PATH_TIMEOUT)), open(None));
    let hit = [idle_between_ports(&adapter).await, idle_at(&adapter, v6()).await];
    let other = idle_at(&adapter, v4()).await;
    let others = [(adapter.clone(), other), (careless.clone(), idle_between_ports(&careless).await)];
    is_noticed(2, &adapter, hit, &others).await;
    drop((others, adapter, careless));
    nothing_is_left().await;
}

// SEC-04: the port of this side is down.
#[tokio::test]
async fn local_port_down_is_noticed() {
    if !alone(module_path!(), "local_port_down_is_noticed") {
        return;
    }
    let Some(()) = second_port() else { return };
    let adapter = open(Some(PATH_TIMEOUT));
    let hit = [idle_between_ports(&adapter).await, idle_at(&adapter, v4()).await];
    let other = idle_at(&adapter, v6()).await;
    is_noticed(1, &adapter, hit, &[(adapter.clone(), other)]).await;
}

// SEC-04, SEC-11: the peer is gone, and its goodbye is lost, as that of a machine that has crashed. Nothing acknowledges the question
// of InfiniBand; over iWARP the host of the peer knows of no such connection, and says so.
#[tokio::test]
async fn a_peer_that_is_gone_is_noticed() {
    if !alone(module_path!(), "a_peer_that_is_gone_is_noticed") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = open(Some(PATH_TIMEOUT));
    let Pair { active, passive } = idle_at(&adapter, v4()).await;
    let receive = active.queue_pair.receive(room(&adapter, 8)).expect("posted");
    fake("lose messages");
    drop(passive);
    eventually("the peer is gone", || fake("count qp") == Some(1)).await;
    let DisconnectReason::Lost { status, reason } =
        noticed(PATH_TIMEOUT, active.connection.disconnected()).await
    else {
        panic!("it was lost")
    };
    let reset = adapter.info().iwarp;
    assert_eq!(status, if reset { Status::REMOTE_ERROR } else { Status::IO_TIMEOUT }, "{reason:?}");
    assert_eq!(failure(receive).await, Status::CANCELED);
    drop((active, adapter));
    nothing_is_left().await;
}

/// Both ends of a stream have read something, and are idle.
async fn idle_stream(adapter: &Adapter) -> (RdmaStream, RdmaStream) {
    let (mut left, mut right) = streams(adapter).await;
    write_to(&mut left, &mut right).await;
    write_to(&mut right, &mut left).await;
    (left, right)
}

async fn write_to(from: &mut RdmaStream, to: &mut RdmaStream) {
    within(from.write_all(b"alive")).await.expect("written");
    within(to.read_exact(&mut [0; 5])).await.expect("read");
}

// IO-09: neither end writes. A stream of an adapter that notices nothing goes on when the port is up again.
#[tokio::test]
async fn dead_peer_of_idle_stream_is_noticed() {
    if !alone(module_path!(), "dead_peer_of_idle_stream_is_noticed") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let (adapter, careless) = (open(Some(PATH_TIMEOUT)), open(None));
    let (mut left, mut right) = idle_stream(&adapter).await;
    let (mut here, mut there) = idle_stream(&careless).await;
    fake("port 1 down");
    let (mut one, mut other) = ([0], [0]);
    let reads = join(left.read(&mut one), right.read(&mut other));
    let (of_left, of_right) = noticed(PATH_TIMEOUT, reads).await;
    stream_is_given_up(of_left);
    stream_is_given_up(of_right);
    fake("port 1 up");
    write_to(&mut here, &mut there).await;
    write_to(&mut there, &mut here).await;
    drop((left, right, here, there, adapter, careless));
    nothing_is_left().await;
}

// SEC-04, IO-09: idle peers that live are asked, and neither hears of it. Nothing of the question is in the queues of the application.
#[tokio::test]
async fn idle_peers_that_live_are_not_disturbed() {
    if !alone(module_path!(), "idle_peers_that_live_are_not_disturbed") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    const SHORT: Duration = Duration::from_secs(1);
    let adapter = open(Some(SHORT));
    let queue = adapter.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
    let active = adapter.queue_pair(QueuePairConfig::default().completions(&queue)).expect("a queue pair");
    let params = (ConnectParams::default(), AcceptParams::default());
    let pair = connected_queue_pairs(&adapter, active, queue_pair(&adapter), params.0, params.1).await;
    let (mut left, mut right) = idle_stream(&adapter).await;
    {
        let (mut one, mut other) = ([0], [0]);
        let reads = join(left.read(&mut one), right.read(&mut other));
        let ends = [&pair.active, &pair.passive].map(|end| Box::pin(end.connection.disconnected()));
        tokio::select! {
            ended = select_all(ends) => panic!("{:?}", ended.0),
            read = reads => panic!("{read:?}"),
            () = tokio::time::sleep(6 * SHORT) => {}
        }
    }
    assert!(queue.is_empty(), "nothing was posted");
    write_to(&mut left, &mut right).await;
    write_to(&mut right, &mut left).await;
    let receive = pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    let sent = pair.active.queue_pair.send(adapter.buffer(8).expect("memory")).expect("posted");
    within(queue.wait(1)).await.expect("open");
    assert_eq!(queue.poll(2, &mut Vec::new()), 1);
    within(sent).await.0.expect("sent");
    within(receive).await.0.expect("received");
    // And it was the answers that kept them: without these they are given up.
    fake("port 1 down");
    let ends = join(pair.active.connection.disconnected(), pair.passive.connection.disconnected());
    let (mut one, mut other) = ([0], [0]);
    let reads = join(left.read(&mut one), right.read(&mut other));
    let ((ours, theirs), (of_left, of_right)) = noticed(SHORT, join(ends, reads)).await;
    [ours, theirs].iter().for_each(is_given_up);
    [of_left, of_right].into_iter().for_each(stream_is_given_up);
    drop((pair, queue, left, right, adapter));
    nothing_is_left().await;
}

// SEC-04: the last requests were silent, and the device does not tell of them. The first question is behind them, and they may wait
// for a receive of the peer; its answer tells that they do not.
#[tokio::test]
async fn a_dead_peer_is_noticed_behind_silent_requests() {
    const SHORT: Duration = Duration::from_secs(1);
    if !alone(module_path!(), "a_dead_peer_is_noticed_behind_silent_requests") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = open(Some(SHORT));
    let pair = idle_at(&adapter, v4()).await;
    let sink = adapter.register(8, Access::REMOTE_WRITE).await.expect("registered");
    let options = WorkOptions::default().silent();
    let queue_pair = &pair.active.queue_pair;
    let silent = queue_pair.write_with(room(&adapter, 8), &sink.remote(), options).expect("posted");
    let (ended, silent) = (pair.active.connection.disconnected(), within(silent));
    tokio::select! {
        reason = ended => panic!("{reason:?}"),
        (outcome, _) = silent => drop(outcome.expect("the question was answered")),
    }
    fake("port 1 down");
    let ends = join(pair.active.connection.disconnected(), pair.passive.connection.disconnected());
    let (ours, theirs) = noticed(SHORT, ends).await;
    [ours, theirs].iter().for_each(is_given_up);
}

// SEC-04: a device that gives up a packet before that says so. Few and short repeats.
#[tokio::test]
async fn a_device_that_gives_up_first_is_believed() {
    if !alone(module_path!(), "a_device_that_gives_up_first_is_believed") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = open(Some(PATH_TIMEOUT));
    if adapter.info().iwarp {
        return skipped("the TCP of an iWARP card repeats for minutes");
    }
    let connect = ConnectParams::default().retry_count(1).ack_timeout(10);
    let pair = connected_with(&adapter, connect, AcceptParams::default().ack_timeout(10)).await;
    exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
    fake("port 1 down");
    let ends = join(pair.active.connection.disconnected(), pair.passive.connection.disconnected());
    let (ours, theirs) = noticed(PATH_TIMEOUT, ends).await;
    for reason in [ours, theirs] {
        // The fake device adds 0x5000 to the status.
        const RETRIES: Reason = Reason::Completion(WcError::new(WcStatus::RETRY_EXC_ERR, 0x500c));
        let lost = DisconnectReason::Lost { status: Status::IO_TIMEOUT, reason: RETRIES };
        assert_eq!(reason, lost);
    }
}

/// A path timeout after half of which a question is posted, and the number of questions of three idle ends in three such times.
const HASTY: Duration = Duration::from_millis(200);
const QUESTIONS: i64 = 9;

/// Waits until so many requests more were posted.
async fn asked_more(requests: i64) {
    let posted = || fake("calls ibv_post_send").expect("a number");
    let before = posted();
    eventually("idle peers are asked", || posted() >= before + requests).await;
}

// SEC-04, QP-15: no question is posted ahead of requests that wait for the doorbell: its answer would tell that these have succeeded.
#[tokio::test]
async fn no_question_overtakes_a_batch() {
    if !alone(module_path!(), "no_question_overtakes_a_batch") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = open(Some(HASTY));
    let pair = idle_at(&adapter, v4()).await;
    let _other = idle_at(&adapter, v4()).await;
    let sink = adapter.register(8, Access::REMOTE_WRITE).await.expect("registered");
    let written = || {
        let mut found = [0; 8];
        sink.read(0, &mut found).expect("as long");
        found
    };
    let batch = pair.active.queue_pair.batch();
    let options = WorkOptions::default().silent();
    let mut silent = batch.write_with(bytes(&adapter, b"written!"), &sink.remote(), options).expect("posted");
    // The three other ends are idle.
    asked_more(QUESTIONS).await;
    assert!(poll_once(&mut silent).is_pending(), "it was not carried out");
    assert_eq!(written(), [0; 8]);
    batch.submit();
    success(silent).await;
    assert_eq!(&written(), b"written!");
}

// SEC-04, HW-09: the question over iWARP is a read. A connection without reads is asked by a write, and goes on.
#[tokio::test]
async fn a_connection_without_reads_outlives_the_question() {
    if !alone(module_path!(), "a_connection_without_reads_outlives_the_question") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = open(Some(HASTY));
    let connect = ConnectParams::default().read_limits(ReadLimits::NONE);
    let pair = connected_with(&adapter, connect, AcceptParams::default()).await;
    exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
    let other = idle_at(&adapter, v4()).await;
    asked_more(QUESTIONS).await;
    for pair in [&pair, &other] {
        assert!(pair.active.connection.is_connected() && pair.passive.connection.is_connected());
        exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
    }
}
