//! The limit of connects in progress, and the pauses between attempts that this host refuses.
//!
//! Runs on: fake, fake-iwarp

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use common::cm::exchange;
use common::life::{eventually, poll_once};
use common::process::alone;
use common::verbs::{fake, fake_reset};
use common::*;
use tokio_rdma::error::ConnectError;
use tokio_rdma::verbs::VerbsConfig;
use tokio_rdma::{
    AcceptParams, Adapter, ConnectParams, Connector, Listener, Provider, QueuePair, Reply, Request, Status,
};

/// The device, with so many connects in progress at most.
fn limited(connects: usize) -> Adapter {
    let config = VerbsConfig::default().max_connects(Some(connects));
    Provider::verbs_with(config).expect("a device").open(v4()).expect("opened")
}

/// A connect that is polled by hand.
struct Connecting {
    future: Pin<Box<dyn Future<Output = Result<Reply, ConnectError>>>>,
    connector: Connector,
    queue_pair: QueuePair,
}

impl Connecting {
    /// Calls it, and lets it begin if it may. Its request has the number as private data.
    fn new(adapter: &Adapter, peer: SocketAddr, number: u8, timeout: Option<Duration>) -> Self {
        let (connector, queue_pair) = (adapter.connector(), queue_pair(adapter));
        let mut params = ConnectParams::default().private_data(vec![number]);
        if let Some(timeout) = timeout {
            params = params.timeout(timeout);
        }
        let mut connecting =
            Self { future: Box::pin(connector.connect(&queue_pair, peer, params)), connector, queue_pair };
        connecting.poll();
        connecting
    }

    fn poll(&mut self) {
        assert!(poll_once(&mut self.future).is_pending(), "nothing has been accepted");
    }
}

/// The number of attempts that have begun.
fn begun() -> Option<i64> {
    fake("calls rdma_resolve_addr")
}

/// The next requests, in the order of their numbers.
async fn requests<const N: usize>(listener: &Listener) -> [Request; N] {
    let mut requests = Vec::new();
    for _ in 0..N {
        requests.push(within(listener.request()).await.expect("a request"));
    }
    requests.sort_by_key(|request| request.private_data()[0]);
    requests.try_into().unwrap_or_else(|_| unreachable!())
}

/// Accepts a request, so that its connect resolves, and both ends exchange messages.
async fn accept(adapter: &Adapter, request: Request, connecting: Connecting) {
    let passive = queue_pair(adapter);
    let complete = async { connecting.future.await?.complete().await };
    let (_active, _passive) = joined(complete, request.accept(&passive, AcceptParams::default())).await;
    exchange(adapter, &connecting.queue_pair, &passive).await;
}

// HW-20: further connects wait in their order, and one that is dropped leaves the line.
#[tokio::test]
async fn connects_beyond_the_limit_wait_in_order() {
    if !alone(module_path!(), "connects_beyond_the_limit_wait_in_order") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = limited(2);
    let (listener, address) = listening(&adapter);
    let all: Vec<_> = (0..5).map(|number| Connecting::new(&adapter, address, number, None)).collect();
    let [one, two, three, mut four, mut five] = all.try_into().unwrap_or_else(|_| unreachable!());
    let [first, second] = requests(&listener).await;
    assert_eq!(begun(), Some(2));
    accept(&adapter, first, one).await;
    // The free place is that of the third, which has not been polled since.
    four.poll();
    assert_eq!(begun(), Some(2));
    drop(three);
    four.poll();
    five.poll();
    assert_eq!(begun(), Some(3));
    accept(&adapter, second, two).await;
    five.poll();
    let [fourth, fifth] = requests(&listener).await;
    assert_eq!(begun(), Some(4));
    accept(&adapter, fourth, four).await;
    accept(&adapter, fifth, five).await;
    // Every place is free again.
    let _two = [0, 1].map(|number| Connecting::new(&adapter, address, number, None));
    assert_eq!(begun(), Some(6));
}

// HW-20: the time-out runs while a connect waits. It then fails without an attempt, and the connector can be used again.
#[tokio::test]
async fn waiting_connect_times_out_without_an_attempt() {
    if !alone(module_path!(), "waiting_connect_times_out_without_an_attempt") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    // 0 is 1.
    let adapter = limited(0);
    let (listener, address) = listening(&adapter);
    let first = Connecting::new(&adapter, address, 0, None);
    let second = Connecting::new(&adapter, address, 1, Some(Duration::from_millis(20)));
    let error = within(second.future).await.map(drop).expect_err("no place");
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
    assert_eq!((begun(), error.is_connector_usable()), (Some(1), true));
    let [request] = requests(&listener).await;
    accept(&adapter, request, first).await;
    let Connecting { connector, queue_pair, .. } = second;
    let params = ConnectParams::default().private_data(vec![1]);
    let mut again = Connecting {
        future: Box::pin(connector.connect(&queue_pair, address, params)),
        connector,
        queue_pair,
    };
    again.poll();
    let [request] = requests(&listener).await;
    accept(&adapter, request, again).await;
}

// HW-20: a cancel and the removal of the device end a connect that waits.
#[tokio::test]
async fn waiting_connects_end() {
    if !alone(module_path!(), "waiting_connects_end") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = limited(1);
    let (_listener, address) = listening(&adapter);
    let _first = Connecting::new(&adapter, address, 0, None);
    let canceled = Connecting::new(&adapter, address, 1, None);
    let waiting = Connecting::new(&adapter, address, 2, None);
    canceled.connector.cancel();
    let error = within(canceled.future).await.map(drop).expect_err("canceled");
    assert!(matches!(error, ConnectError::Canceled), "{error:?}");
    fake("remove");
    // The first one is not polled, and keeps its place.
    let error = within(waiting.future).await.map(drop).expect_err("removed");
    assert!(matches!(error, ConnectError::DeviceRemoved), "{error:?}");
    assert_eq!(begun(), Some(1));
}

// HW-20: with a limit, what this host refuses for lack of resources is tried again until the time-out, and without one it fails.
#[tokio::test]
async fn refused_attempt_is_repeated() {
    if !alone(module_path!(), "refused_attempt_is_repeated") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let refuse = |times: usize| {
        for _ in 0..times {
            fake(&format!("fail rdma_resolve_addr 1 {}", libc::ENOMEM));
        }
    };
    let adapter = adapter();
    let (_listener, address) = listening(&adapter);
    let connect =
        |adapter: &Adapter, params| adapter.connector().connect(&queue_pair(adapter), address, params);
    refuse(1);
    let error = within(connect(&adapter, ConnectParams::default())).await.map(drop).expect_err("refused");
    assert_eq!((error.status(), begun()), (Status::INSUFFICIENT_RESOURCES, Some(1)));

    let adapter = limited(1);
    let (listener, address) = listening(&adapter);
    refuse(2);
    let connecting = Connecting::new(&adapter, address, 0, None);
    // The connect has to be polled, so that its pauses end.
    tokio::task::LocalSet::new()
        .run_until(async {
            let Connecting { future, connector, queue_pair } = connecting;
            let future = tokio::task::spawn_local(future);
            let [request] = requests(&listener).await;
            assert_eq!(begun(), Some(4), "two were refused");
            let future = Box::pin(async { future.await.expect("no panic") });
            let connecting = Connecting { future, connector, queue_pair };
            accept(&adapter, request, connecting).await;
        })
        .await;
    fake(&format!("refuse rdma_resolve_addr {}", libc::ENOMEM));
    let params = ConnectParams::default().timeout(Duration::from_secs(1));
    let error = within(connect(&adapter, params)).await.map(drop).expect_err("refused each time");
    assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES);
    assert!(begun().is_some_and(|begun| begun > 5), "{:?}", begun());
}

// HW-20: over iWARP a connect without a time-out that this host refuses again and again ends, and gives its place back meanwhile.
#[tokio::test]
async fn refused_connect_without_time_out_ends() {
    if !alone(module_path!(), "refused_connect_without_time_out_ends") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = limited(1);
    let (_listener, address) = listening(&adapter);
    fake(&format!("refuse rdma_resolve_addr {}", libc::ENOMEM));
    let connect = |number| Connecting::new(&adapter, address, number, None);
    let (first, second) = (connect(0), connect(1));
    let (first, second) = within(async { tokio::join!(first.future, second.future) }).await;
    for outcome in [first, second] {
        assert_eq!(outcome.map(drop).expect_err("refused").status(), Status::INSUFFICIENT_RESOURCES);
    }
}

// HW-20: a cancel between two attempts is heard.
#[tokio::test]
async fn cancel_behind_a_refusal_is_heard() {
    if !alone(module_path!(), "cancel_behind_a_refusal_is_heard") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = limited(1);
    let (_listener, address) = listening(&adapter);
    fake(&format!("refuse rdma_resolve_route {}", libc::ENOMEM));
    let connecting = Connecting::new(&adapter, address, 0, Some(Duration::from_secs(3)));
    // The refusal comes before the cancel or behind it, and the connect is polled after both.
    eventually("the first attempt", || begun() == Some(1)).await;
    connecting.connector.cancel();
    let error = within(connecting.future).await.map(drop).expect_err("canceled");
    assert!(matches!(error, ConnectError::Canceled), "{error:?}");
    assert_eq!(begun(), Some(1));
}

// OBS-03: a connect that waits for a place.
#[cfg(feature = "inspect")]
#[tokio::test]
async fn connect_in_line_is_named() {
    if !alone(module_path!(), "connect_in_line_is_named") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = limited(1);
    let (_listener, address) = listening(&adapter);
    let _first = Connecting::new(&adapter, address, 0, None);
    let second = Connecting::new(&adapter, address, 1, None);
    let snapshot = tokio_rdma::inspect::snapshot();
    let id = second.connector.id().0;
    let report = snapshot.connections.iter().find(|report| report.id == id).expect("it exists");
    let why = report.waits_for.as_deref().expect("it waits");
    assert!(why.starts_with("connect pending: it waits for its queue pair, or for a place"), "{why}");
}
