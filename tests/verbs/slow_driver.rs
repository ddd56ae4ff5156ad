//! Calls of the driver that take long, on a runtime of one thread: whatever else it has to do goes on.
//!
//! Runs on: fake, fake-iwarp

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use common::cm::{abandon, connect_on, connecting, exchange, outcome, requested};
use common::life::eventually;
use common::net::{ip, isolated};
use common::process::alone;
use common::raw::{bytes, failure, room, success};
use common::verbs::{fake, fake_reset, nothing_is_left};
use common::*;
use tokio_rdma::error::ConnectError;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{
    AcceptParams, Access, Adapter, ConnectParams, DisconnectReason, QueuePair, QueuePairConfig, RemoteRegion,
    Status,
};

/// The number of connections that break at once: far more than there are threads for their ends.
const MANY: usize = 20;

/// Has none of these calls return, until [`resume`].
fn hold(calls: &[&str]) {
    for call in calls {
        fake(&format!("hold {call}"));
    }
}

/// Waits until so many calls are held.
async fn held(count: i64) {
    eventually("the driver is busy", || fake("held") >= Some(count)).await;
}

/// Lets every call return.
fn resume() {
    fake("reset");
}

/// Posts a write that the peer refuses, which breaks the connection.
fn break_by_write(adapter: &Adapter, queue_pair: &QueuePair) {
    let nowhere = RemoteRegion::new(0, RemoteKey(0xdead_0001), 8);
    let write = queue_pair.write(bytes(adapter, b"nowhere!"), &nowhere).expect("posted");
    tokio::spawn(async move { failure(write).await });
}

// HW-05: events of others, new connections and data go on while the queue pairs of lost connections are destroyed.
#[tokio::test]
async fn lost_connections_do_not_keep_others_waiting() {
    if !alone(module_path!(), "lost_connections_do_not_keep_others_waiting") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let bystander = connected(&adapter).await;
    let mut lost = Vec::new();
    for _ in 0..MANY {
        let pair = connected(&adapter).await;
        let receive = pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
        lost.push((pair, receive));
    }
    hold(&["ibv_destroy_qp"]);
    lost.iter().for_each(|(pair, _)| break_by_write(&adapter, &pair.active.queue_pair));
    for (pair, _) in &lost {
        for end in [&pair.active, &pair.passive] {
            let reason = within(end.connection.disconnected()).await;
            assert!(!matches!(reason, DisconnectReason::Local), "{reason:?}");
        }
    }
    held(4).await;
    exchange(&adapter, &bystander.active.queue_pair, &bystander.passive.queue_pair).await;
    let fresh = connected(&adapter).await;
    exchange(&adapter, &fresh.active.queue_pair, &fresh.passive.queue_pair).await;
    resume();
    for (_, receive) in lost {
        assert_eq!(failure(receive).await, Status::CANCELED);
    }
}

// HW-05: a driver may look for the hardware address of the peer for a second within such a call.
#[tokio::test]
async fn slow_connection_setup_does_not_delay_others() {
    if !alone(module_path!(), "slow_connection_setup_does_not_delay_others") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let bystander = connected(&adapter).await;
    let (listener, address) = listening(&adapter);
    for call in ["rdma_resolve_route", "rdma_accept", "rdma_establish", "ibv_modify_qp", "rdma_connect"] {
        let iwarp = adapter.info().read_sink_required;
        // Runs only where the call is one of a connection, and on a thread of its own.
        if matches!((call, iwarp), ("rdma_establish" | "ibv_modify_qp", true) | ("rdma_connect", false)) {
            continue;
        }
        let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
        hold(&[call]);
        let connector = adapter.connector();
        let connect = connector.connect_and_complete(&active, address, ConnectParams::default());
        let accept = listener.accept_next(&passive, AcceptParams::default());
        let meanwhile = async {
            held(1).await;
            exchange(&adapter, &bystander.active.queue_pair, &bystander.passive.queue_pair).await;
            resume();
        };
        let (connected, accepted, ()) = within(async { tokio::join!(connect, accept, meanwhile) }).await;
        let _ends = (connected.expect("connected"), accepted.expect("accepted"));
        exchange(&adapter, &active, &passive).await;
    }
}

// HW-05, CAN-03, CM-18: librdmacm asks another service for the route, within the call. As many attempts wait for it as there are
// threads, and more; those of other connections go on, and the attempts end when their callers want.
#[tokio::test]
async fn slow_route_does_not_delay_others() {
    if !alone(module_path!(), "slow_route_does_not_delay_others") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let bystander = connected(&adapter).await;
    let asked = requested(&adapter, v4(), ConnectParams::default()).await;
    let (listener, address) = listening(&adapter);
    hold(&["rdma_resolve_route"]);
    let attempts: Vec<_> = (0..MANY).map(|_| (Arc::new(adapter.connector()), queue_pair(&adapter))).collect();
    let connect = |(connector, queue_pair): &(_, _)| {
        connecting(
            connector,
            queue_pair,
            address,
            ConnectParams::default().timeout(Duration::from_secs(3600)),
        )
    };
    let waiting: Vec<_> = attempts.iter().map(connect).collect();
    held(4).await;
    // The events and the calls of others.
    let passive = queue_pair(&adapter);
    let accept = asked.request.accept(&passive, AcceptParams::default());
    let complete = async { outcome(asked.connecting).await.expect("accepted").complete().await };
    let (theirs, ours) = within(async { tokio::join!(accept, complete) }).await;
    let _ends = (theirs.expect("accepted"), ours.expect("connected"));
    exchange(&adapter, &asked.active, &passive).await;
    within(bystander.active.connection.disconnect()).await.expect("the peer answers");
    assert_eq!(within(bystander.passive.connection.disconnected()).await, DisconnectReason::Peer);
    // One whose time is over, and those whose callers do not wait for them any more.
    let (connector, in_time) = (adapter.connector(), queue_pair(&adapter));
    let limit = Duration::from_millis(10);
    let connect = connector.connect(&in_time, address, ConnectParams::default().timeout(limit));
    let error = within(connect).await.expect_err("there is no route yet");
    assert!(matches!(error, ConnectError::TimedOut { limit: Some(said), .. } if said == limit), "{error:?}");
    for connecting in waiting {
        abandon(connecting).await;
    }
    // Their queue pairs are free, also before the calls return.
    let asks = fake("calls rdma_resolve_route");
    resume();
    for (_, active) in attempts.iter().take(2) {
        let link = connect_on(&adapter, active, &adapter.connector()).await;
        exchange(&adapter, active, &link.passive).await;
    }
    // The attempts that no thread had begun to ask for have not asked.
    assert_eq!((asks, fake("calls rdma_resolve_route")), (Some(6), Some(2)));
    drop((_ends, attempts, connector, in_time, asked.connector, asked.active, passive, listener, bystander));
    drop((asked.listener, adapter));
    nothing_is_left().await;
}

// HW-05: over iWARP the kernel asks another service for a port, within the call. Whoever calls waits, and nobody else.
#[tokio::test]
async fn slow_listen_delays_no_other_event() {
    if !alone(module_path!(), "slow_listen_delays_no_other_event") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let slow = adapter.listener();
    slow.bind(SocketAddr::new(v4(), 0)).expect("bound");
    hold(&["rdma_listen"]);
    let listens = tokio::task::spawn_blocking(move || slow.listen(0).map(|()| slow));
    held(1).await;
    let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
    let connector = adapter.connector();
    let _ends = joined(
        connector.connect_and_complete(&active, address, ConnectParams::default()),
        listener.accept_next(&passive, AcceptParams::default()),
    )
    .await;
    exchange(&adapter, &active, &passive).await;
    assert!(!listens.is_finished());
    resume();
    let slow = within(listens).await.expect("no panic").expect("listening");
    slow.local_addr().expect("it listens");
}

// HW-05: the call for the second address of a listener keeps no request waiting at the first.
#[test]
fn listener_takes_requests_while_second_address_starts() {
    if !alone(module_path!(), "listener_takes_requests_while_second_address_starts") {
        return;
    }
    isolated(second_address_is_held);
}

/// Has the driver keep the second of two calls for one listener.
async fn second_address_is_held() {
    let Some(_reset) = fake_reset() else { return };
    ip("address add 127.0.0.2/8 dev lo");
    fake("place 127.0.0.2 1 0");
    let adapter = adapter();
    let listener = Arc::new(adapter.listener());
    listener.bind((Ipv4Addr::UNSPECIFIED, 0).into()).expect("bound");
    let calls = fake("calls rdma_listen").expect("a number");
    fake("hold rdma_listen 2");
    let listens = tokio::task::spawn_blocking({
        let listener = listener.clone();
        move || listener.listen(8)
    });
    held(1).await;
    assert_eq!(fake("calls rdma_listen"), Some(calls + 2), "one for each address");
    let port = listener.local_addr().expect("it has begun").port();
    // Which of the two addresses is the first, the kernel's list says.
    let peers = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2)].map(|ip| SocketAddr::from((ip, port)));
    let (connector, active) = (adapter.connector(), queue_pair(&adapter));
    let connect = async {
        for peer in peers {
            if connector.connect(&active, peer, ConnectParams::default()).await.is_ok() {
                return;
            }
        }
    };
    let accept = async { listener.request().await.expect("a request, while the call is held") };
    let request = within(async {
        tokio::select! {
            biased;
            request = accept => request,
            () = connect => panic!("no request came"),
        }
    })
    .await;
    assert!(!listens.is_finished());
    drop(request);
    resume();
    within(listens).await.expect("no panic").expect("listening");
}

// HW-05, DIS-01: a disconnect takes as long as the driver does, and everything has completed when it returns.
#[tokio::test]
async fn a_disconnect_waits_for_the_driver_alone() {
    if !alone(module_path!(), "a_disconnect_waits_for_the_driver_alone") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let bystander = connected(&adapter).await;
    for call in ["ibv_modify_qp", "ibv_destroy_qp"] {
        let pair = connected(&adapter).await;
        let mut receive = pair.active.queue_pair.receive(room(&adapter, 8)).expect("posted");
        hold(&[call]);
        let disconnect = tokio::spawn(async move {
            let outcome = pair.active.connection.disconnect().await;
            (outcome, pair)
        });
        held(1).await;
        exchange(&adapter, &bystander.active.queue_pair, &bystander.passive.queue_pair).await;
        assert!(!disconnect.is_finished(), "{call}");
        resume();
        let (outcome, pair) = within(disconnect).await.expect("no panic");
        outcome.expect("disconnected");
        let receive = common::life::poll_once(&mut receive);
        assert!(receive.is_ready(), "{call}: a request is outstanding behind the disconnect");
        drop(pair);
    }
}

// HW-05, CM-21: the caller learns of the refusal at once. The queue pair is usable as before, and as soon as it can be.
#[tokio::test]
async fn a_queue_pair_is_renewed_behind_the_answer() {
    if !alone(module_path!(), "a_queue_pair_is_renewed_behind_the_answer") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    for call in ["ibv_destroy_qp", "ibv_create_qp"] {
        let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
        let before = active.receive(room(&adapter, 8)).expect("posted");
        hold(&[call]);
        let connector = adapter.connector();
        let connect = connector.connect(&active, address, ConnectParams::default());
        let refuse = async { listener.request().await.expect("a request").reject(b"no").await };
        let (connected, rejected) = within(async { tokio::join!(connect, refuse) }).await;
        assert_eq!(connected.map(drop).expect_err("refused").status(), Status::CONNECTION_REFUSED);
        rejected.expect("said");
        held(1).await;
        // A receive that is posted now waits for the new queue pair of the device.
        let after = active.receive(room(&adapter, 8)).expect("posted");
        let again = tokio::spawn({
            let (connector, active) = (adapter.connector(), active.clone());
            async move { connector.connect_and_complete(&active, address, ConnectParams::default()).await }
        });
        tokio::task::yield_now().await;
        assert!(!again.is_finished(), "there is no queue pair yet");
        resume();
        let accepted = within(listener.accept_next(&passive, AcceptParams::default())).await;
        let theirs = accepted.expect("accepted");
        let ours = within(again).await.expect("no panic").expect("connected");
        for (word, receive) in [(b"first", before), (b"again", after)] {
            success(passive.send(bytes(&adapter, word)).expect("posted")).await;
            assert_eq!(&success(receive).await.1[..word.len()], word, "{call}");
        }
        drop((ours, theirs));
    }
}

// HW-05: memory of any length.
#[tokio::test]
async fn memory_is_registered_beside_the_tasks() {
    if !alone(module_path!(), "memory_is_registered_beside_the_tasks") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let bystander = connected(&adapter).await;
    for length in [64, 4 << 20] {
        let words = (bytes(&adapter, b"word"), room(&adapter, 4));
        hold(&["ibv_reg_mr", "ibv_reg_mr_iova2"]);
        let register = adapter.register(length, Access::REMOTE_WRITE);
        let meanwhile = async {
            held(1).await;
            let receive = bystander.passive.queue_pair.receive(words.1).expect("posted");
            // A buffer that is dropped is deregistered by whoever drops it.
            let _sent = success(bystander.active.queue_pair.send(words.0).expect("posted")).await;
            let _received = success(receive).await;
            resume();
        };
        let (region, ()) = within(async { tokio::join!(register, meanwhile) }).await;
        let region = region.expect("registered");
        let words = (bytes(&adapter, b"word"), room(&adapter, 4));
        hold(&["ibv_dereg_mr"]);
        let meanwhile = async {
            held(1).await;
            let receive = bystander.passive.queue_pair.receive(words.1).expect("posted");
            let _sent = success(bystander.active.queue_pair.send(words.0).expect("posted")).await;
            let _received = success(receive).await;
            resume();
        };
        let (deregistered, ()) = within(async { tokio::join!(region.deregister(), meanwhile) }).await;
        deregistered.expect("deregistered");
    }
}

// HW-05: the runtime goes on while a device that was removed gives everything back.
#[tokio::test]
async fn a_removal_does_not_keep_the_runtime_waiting() {
    if !alone(module_path!(), "a_removal_does_not_keep_the_runtime_waiting") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let receive = pair.active.queue_pair.receive(room(&adapter, 8)).expect("posted");
    hold(&["ibv_destroy_qp"]);
    fake("remove");
    held(1).await;
    let refused = adapter.queue_pair(QueuePairConfig::default()).map(drop);
    refused.expect_err("the device is gone");
    resume();
    assert_eq!(failure(receive).await, Status::DEVICE_REMOVED);
    assert_eq!(within(pair.active.connection.disconnected()).await, DisconnectReason::DeviceRemoved);
}
