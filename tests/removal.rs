//! A device that goes away while everything is pending, and a cable that is cut: on a device of the test's own.
//!
//! Runs on: rxe, siw

mod common;

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use common::cm::*;
use common::deviation::*;
use common::raw::{bytes, failure, room};
use common::*;
use tokio_rdma::error::{AcceptError, BindError, ConnectError, DisconnectError, OpenError, RegisterError};
use tokio_rdma::{
    AcceptParams, Access, Adapter, ConnectParams, DisconnectReason, Provider, QueuePairConfig, Status,
};

/// A device of one's own, on one end of a cable of one's own. Gone when it is dropped.
struct Link {
    number: u8,
    kind: &'static str,
}

impl Link {
    fn new() -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let kind = match Device::under_test() {
            Device::Rxe => "rxe",
            Device::Siw => "siw",
            Device::Soft => panic!("not a device"),
        };
        let link = Self { number: NEXT.fetch_add(1, Ordering::Relaxed), kind };
        let (near, far) = (link.interface(), format!("far{}", link.number));
        run("ip", &format!("link add {near} type veth peer name {far}"));
        run("ip", &format!("address add {}/24 dev {near}", link.address()));
        for end in [&near, &far] {
            run("ip", &format!("link set {end} up"));
        }
        link.plug_in();
        link
    }

    fn interface(&self) -> String {
        format!("own{}", self.number)
    }

    fn address(&self) -> IpAddr {
        IpAddr::from([10, 90, self.number, 1])
    }

    fn plug_in(&self) {
        run("rdma", &format!("link add test{} type {} netdev {}", self.number, self.kind, self.interface()));
    }

    /// Takes the device away. Returns when the kernel says that it is gone, which takes our answer to that.
    async fn pull_out(&self) {
        let number = self.number;
        let removing = tokio::task::spawn_blocking(move || run("rdma", &format!("link del test{number}")));
        within(removing).await.expect("removed");
    }

    fn adapter(&self) -> Adapter {
        let provider = Provider::verbs().expect("a device");
        let id = provider.resolve(self.address()).expect("the device has the address");
        provider.open(id).expect("opened")
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.interface()]).output();
    }
}

fn run(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split(' ')).output().expect(program);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {stderr}");
}

/// A connected pair on an adapter of that link.
async fn connected_at(link: &Link, adapter: &Adapter) -> Pair {
    let (listener, address) = listening_at(adapter, link.address());
    let (connector, active, passive) = (adapter.connector(), queue_pair(adapter), queue_pair(adapter));
    let (ours, theirs) = within(async {
        tokio::join!(
            connector.connect_and_complete(&active, address, ConnectParams::default()),
            listener.accept_next(&passive, AcceptParams::default()),
        )
    })
    .await;
    Pair {
        active: End { queue_pair: active, connection: ours.expect("connected") },
        passive: End { queue_pair: passive, connection: theirs.expect("accepted") },
    }
}

// AD-05: whatever is pending ends DEVICE_REMOVED, whatever is called afterwards says so, and all of it can be dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_is_removed_ends_everything_that_is_pending() {
    let link = Link::new();
    let adapter = link.adapter();
    let ip = link.address();

    // A wait for a request, a request that was fetched, and the connect that it came from.
    let (idle, _) = listening_at(&adapter, ip);
    let waiting = tokio::spawn({
        let idle = idle.clone();
        async move { idle.request().await.map(drop) }
    });
    let asked = requested(&adapter, ip, ConnectParams::default()).await;
    let undecided = requested(&adapter, ip, ConnectParams::default()).await;
    // Two handshakes that are not completed.
    let completing = half_open(&adapter, ip).await;
    let rejecting = half_open(&adapter, ip).await;
    // A connection with work in both queues; and receives that wait for a connection.
    let pair = connected_at(&link, &adapter).await;
    let receives =
        [&pair.active, &pair.passive].map(|end| end.queue_pair.receive(room(&adapter, 8)).expect("posted"));
    let disconnected = tokio::spawn({
        let connection = pair.active.connection.clone();
        async move { connection.disconnected().await }
    });
    let unconnected = queue_pair(&adapter);
    let early = unconnected.receive(room(&adapter, 8)).expect("posted");
    let region = within(adapter.register(4096, Access::REMOTE_READ)).await.expect("registered");
    let bound = adapter.connector();
    bound.bind(SocketAddr::new(ip, 0)).expect("bound");

    link.pull_out().await;

    assert!(matches!(outcome(waiting).await, Err(AcceptError::DeviceRemoved)));
    for attempt in [asked.connecting, undecided.connecting] {
        let error = outcome(attempt).await.expect_err("removed");
        assert!(matches!(error, ConnectError::DeviceRemoved) && !error.is_retryable(), "{error:?}");
    }
    let late = within(asked.request.accept(&unconnected, AcceptParams::default())).await;
    assert_eq!(late.expect_err("removed").status(), Status::DEVICE_REMOVED);
    assert_eq!(
        within(undecided.request.reject(b"")).await.expect_err("removed").status(),
        Status::DEVICE_REMOVED
    );
    let error = within(completing.reply.complete()).await.expect_err("removed");
    assert_eq!(error.status(), Status::DEVICE_REMOVED);
    let error = within(rejecting.reply.reject(b"")).await.expect_err("removed");
    assert_eq!(error.status(), Status::DEVICE_REMOVED);
    for accepting in [completing.accepting, rejecting.accepting] {
        match outcome(accepting).await {
            Err(error) => assert!(matches!(error, AcceptError::DeviceRemoved), "{error:?}"),
            Ok(connection) => {
                assert!(!three_phase(&adapter));
                assert_eq!(within(connection.disconnected()).await, DisconnectReason::DeviceRemoved);
            }
        }
    }
    assert_eq!(outcome(disconnected).await, DisconnectReason::DeviceRemoved);
    assert_eq!(within(pair.passive.connection.disconnected()).await, DisconnectReason::DeviceRemoved);
    for receive in receives {
        let status = failure(receive).await;
        assert!([Status::DEVICE_REMOVED, Status::CANCELED].contains(&status), "{status:?}");
    }
    assert_eq!(failure(early).await, Status::DEVICE_REMOVED);

    // Only cleaning up succeeds.
    assert!(adapter.is_removed());
    let error = within(pair.active.connection.disconnect()).await.expect_err("removed");
    assert_eq!(error, DisconnectError::DeviceRemoved);
    assert!(pair.active.queue_pair.send(bytes(&adapter, b"late")).is_err());
    let config = QueuePairConfig::default();
    assert!(matches!(adapter.queue_pair(config), Err(OpenError::DeviceRemoved)));
    assert!(matches!(adapter.connector().bind(SocketAddr::new(ip, 0)), Err(BindError::DeviceRemoved)));
    let peer = SocketAddr::new(ip, 7);
    for connector in [&bound, &adapter.connector()] {
        let error = within(connector.connect(&unconnected, peer, ConnectParams::default())).await;
        assert!(matches!(error, Err(ConnectError::DeviceRemoved)), "{error:?}");
    }
    let error = within(adapter.register(8, Access::LOCAL_WRITE)).await.expect_err("removed");
    assert!(matches!(error, RegisterError::DeviceRemoved), "{error:?}");
    within(region.deregister()).await.expect("nothing holds it");
    drop((idle, pair, unconnected, region, bound, adapter));

    // The device comes back, and is another adapter.
    link.plug_in();
    let adapter = link.adapter();
    let pair = connected_at(&link, &adapter).await;
    exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
}

// AD-05: in the midst of traffic, from several tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_is_removed_under_traffic_leaves_nobody_waiting() {
    let link = Link::new();
    let adapter = link.adapter();
    let pair = connected_at(&link, &adapter).await;
    let region = within(adapter.register(4096, Access::REMOTE_WRITE)).await.expect("registered");
    let remote = region.remote();
    let (going, started) = tokio::sync::oneshot::channel();
    let writing = tokio::spawn({
        let (queue_pair, adapter) = (pair.active.queue_pair.clone(), adapter.clone());
        async move {
            let mut going = Some(going);
            loop {
                let Ok(buffer) = adapter.buffer_from(&[5; 4096]) else { return };
                let Ok(write) = queue_pair.write(buffer, &remote) else { return };
                if write.await.0.is_err() {
                    return;
                }
                let _ = going.take().map(|going| going.send(()));
            }
        }
    });
    let connecting = tokio::spawn({
        let (adapter, address) = (adapter.clone(), link.address());
        async move {
            while !adapter.is_removed() {
                let Ok((active, passive)) = adapter
                    .queue_pair(QueuePairConfig::default())
                    .and_then(|active| Ok((active, adapter.queue_pair(QueuePairConfig::default())?)))
                else {
                    continue;
                };
                let listener = adapter.listener();
                if listener.bind(SocketAddr::new(address, 0)).and_then(|()| listener.listen(0)).is_err() {
                    continue;
                }
                let Ok(at) = listener.local_addr() else { continue };
                let connector = Arc::new(adapter.connector());
                let _ends = tokio::join!(
                    connector.connect_and_complete(&active, at, ConnectParams::default()),
                    listener.accept_next(&passive, AcceptParams::default()),
                );
            }
        }
    });
    within(started).await.expect("a write has completed");
    link.pull_out().await;
    outcome(writing).await;
    outcome(connecting).await;
    for end in [&pair.active, &pair.passive] {
        assert_eq!(within(end.connection.disconnected()).await, DisconnectReason::DeviceRemoved);
    }
}

// DIS-11: with the interface goes the path. Whoever sends finds out.
#[tokio::test]
async fn an_interface_that_goes_down_breaks_the_connection() {
    let link = Link::new();
    let adapter = link.adapter();
    let pair = connected_at(&link, &adapter).await;
    exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
    let receive = pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    run("ip", &format!("link set {} down", link.interface()));
    // The send may be refused already, or complete early; one of several is one too many.
    let mut failures = 0;
    let mut posted = Vec::new();
    for _ in 0..4 {
        match pair.active.queue_pair.send(bytes(&adapter, b"into the void")) {
            Ok(send) => posted.push(send),
            Err(error) => {
                assert_eq!(error.status(), Status::CONNECTION_INVALID);
                failures += 1;
            }
        }
    }
    for send in posted {
        failures += usize::from(within(send).await.0.is_err());
    }
    assert!(failures > 0);
    match within(pair.active.connection.disconnected()).await {
        DisconnectReason::Lost { status, .. } => assert_ne!(status, Status::SUCCESS),
        // A driver that closes its stream by itself says no more than that.
        DisconnectReason::Peer => assert!(!blames_requests(&adapter)),
        other => panic!("{other:?}"),
    }
    // The other end is told, or tells itself when it is asked to go.
    let _ = within(pair.passive.connection.disconnect()).await;
    assert_ne!(failure(receive).await, Status::SUCCESS);
}
