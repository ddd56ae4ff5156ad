//! Calls of the libraries that fail, messages that do not arrive, and a device that goes while it is in use.
//!
//! Runs on: fake

use std::pin::pin;
use std::time::Duration;

use common::cm::exchange;
use common::life::{eventually, poll_once};
use common::process::alone;
use common::raw::{bytes, failure, room, success};
use common::resources::held;
use common::verbs::fake;
use common::*;
use tokio_rdma::error::{DisconnectError, OpenError, PostErrorKind, Reason};
use tokio_rdma::types::QueueKind;
use tokio_rdma::verbs::VerbsConfig;
use tokio_rdma::{
    AcceptParams, Access, CompletionQueueConfig, ConnectParams, DisconnectReason, Provider, QueuePairConfig,
    SharedReceiveConfig, Status,
};

/// Every call of a life that can fail without leaving anything behind, and how often it is made to.
const CALLS: &[(&str, u32)] = &[
    ("ibv_get_device_list", 2),
    ("ibv_open_device", 1),
    ("ibv_query_device", 2),
    ("ibv_query_port", 1),
    ("ibv_alloc_pd", 1),
    ("ibv_reg_mr", 3),
    ("ibv_create_comp_channel", 1),
    ("ibv_create_cq", 3),
    ("ibv_create_qp", 5),
    ("ibv_modify_qp", 7),
    ("rdma_create_event_channel", 3),
    ("rdma_create_id", 8),
    ("rdma_bind_addr", 8),
    ("rdma_set_option", 2),
    ("rdma_listen", 1),
    ("rdma_resolve_addr", 1),
    ("rdma_resolve_route", 1),
    ("rdma_init_qp_attr", 6),
    ("rdma_connect", 1),
    ("rdma_accept", 1),
    ("rdma_establish", 1),
    ("rdma_disconnect", 2),
];

/// A life: an adapter, a connection, a message, a disconnect. Any of it may fail.
async fn life() -> Result<(), ()> {
    let provider = Provider::verbs().map_err(drop)?;
    let adapter = provider.open(provider.resolve(v4()).map_err(drop)?).map_err(drop)?;
    let new = || adapter.queue_pair(QueuePairConfig::default()).map_err(drop);
    let (active, passive) = (new()?, new()?);
    let listener = adapter.listener();
    listener.bind((v4(), 0).into()).map_err(drop)?;
    listener.listen(0).map_err(drop)?;
    let address = listener.local_addr().map_err(drop)?;
    let connector = adapter.connector();
    let connect = async {
        connector.connect_and_complete(&active, address, ConnectParams::default()).await.map_err(drop)
    };
    let accept = async { listener.accept_next(&passive, AcceptParams::default()).await.map_err(drop) };
    let (near, far) = tokio::try_join!(connect, accept)?;
    let receive = passive.receive(adapter.buffer(8).map_err(drop)?).map_err(drop)?;
    let send = active.send(adapter.buffer(8).map_err(drop)?).map_err(drop)?;
    let region = adapter.register(4096, Access::REMOTE_WRITE).await.map_err(drop)?;
    let (sent, received) = tokio::join!(send, receive);
    sent.0.map_err(drop)?;
    received.0.map_err(drop)?;
    near.disconnect().await.map_err(drop)?;
    assert_eq!(far.disconnected().await, DisconnectReason::Peer);
    region.deregister().await.map_err(drop)
}

// SEC-16: whichever call fails, the life ends with an error or without, nothing hangs, and nothing is left.
#[tokio::test]
async fn any_call_may_fail() {
    if !alone(module_path!(), "any_call_may_fail") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    assert_eq!(within(life()).await, Ok(()));
    let over = || fake("count context") == Some(0) && fake("count cm_channel") == Some(0);
    eventually("the first life is over", over).await;
    let baseline = held();
    let mut failed = 0;
    for (call, times) in CALLS {
        for nth in 1..=*times {
            for error in [libc::ENOMEM, libc::EIO, libc::EINVAL] {
                fake(&format!("fail {call} {nth} {error}"));
                failed += u32::from(within(life()).await.is_err());
                fake("reset");
                let what = format!("the life with {call} {nth} is over");
                eventually(&what, || over() && held() == baseline).await;
            }
        }
    }
    assert!(failed > 50, "{failed} lives are not what they would have been");
    assert_eq!(within(life()).await, Ok(()));
}

// SEC-16: an object that the device has no room for is refused with its status, the connections that there are go on, and the
// object is made as soon as there is room.
#[tokio::test]
async fn objects_without_room_are_refused() {
    if !alone(module_path!(), "objects_without_room_are_refused") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let (queue_pair, queue) = (QueuePairConfig::default, CompletionQueueConfig::default);
    let make = async |call: &str| match call {
        "ibv_create_qp" => adapter.queue_pair(queue_pair()).map(drop).map_err(|error| error.status()),
        "ibv_create_cq" | "ibv_create_comp_channel" => {
            adapter.completion_queue(queue()).map(drop).map_err(|error| error.status())
        }
        "ibv_create_srq" => {
            let shared = adapter.shared_receive_queue(SharedReceiveConfig::default());
            shared.map(drop).map_err(|error| error.status())
        }
        "ibv_reg_mr" => {
            let region = adapter.register(4096, Access::REMOTE_WRITE).await;
            region.map(drop).map_err(|error| error.status())
        }
        "ibv_alloc_mw" => adapter.memory_window().map(drop).map_err(|error| error.status()),
        other => panic!("{other}"),
    };
    let calls = [
        "ibv_create_qp",
        "ibv_create_cq",
        "ibv_create_comp_channel",
        "ibv_create_srq",
        "ibv_reg_mr",
        "ibv_alloc_mw",
    ];
    for call in calls {
        for error in [libc::ENOMEM, libc::ENOSPC] {
            fake(&format!("refuse {call} {error}"));
            for _ in 0..2 {
                assert_eq!(make(call).await, Err(Status::INSUFFICIENT_RESOURCES), "{call} {error}");
            }
            let receive = pair.passive.queue_pair.receive(()).expect("posted");
            within(pair.active.queue_pair.send(()).expect("posted")).await.0.expect("sent");
            within(receive).await.0.expect("received");
            fake("reset");
            assert_eq!(make(call).await, Ok(()), "{call}");
        }
    }
}

// HW-13: a peer whose address nobody knows, and one that does not answer, are given up and asked again.
#[tokio::test]
async fn an_unanswered_connect_can_be_repeated() {
    if !alone(module_path!(), "an_unanswered_connect_can_be_repeated") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let (connector, active, passive) = (adapter.connector(), queue_pair(&adapter), queue_pair(&adapter));
    let hasty = || ConnectParams::default().timeout(Duration::from_millis(50));
    for lost in ["lose messages", "lose addresses"] {
        fake(lost);
        let error = within(connector.connect(&active, address, hasty())).await.expect_err("no answer");
        assert_eq!(error.status(), Status::IO_TIMEOUT, "{lost}");
    }
    // Without a time limit of the caller the resolution has its own.
    let error = within(connector.connect(&active, address, ConnectParams::default())).await;
    assert_eq!(error.expect_err("no answer").status(), Status::HOST_UNREACHABLE);
    fake("lose nothing");
    let _ends = joined(
        connector.connect_and_complete(&active, address, ConnectParams::default()),
        listener.accept_next(&passive, AcceptParams::default()),
    )
    .await;
}

// HW-13: nothing answers a goodbye that could not be said. The end of the id is what tells the peer.
#[tokio::test]
async fn a_disconnect_that_fails_is_not_waited_for() {
    if !alone(module_path!(), "a_disconnect_that_fails_is_not_waited_for") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let config = VerbsConfig::default().disconnect_timeout(Duration::from_secs(3600));
    let provider = Provider::verbs_with(config).expect("a provider");
    let adapter = provider.open(provider.resolve(v4()).expect("the address is there")).expect("opened");
    let pair = connected(&adapter).await;
    let receive = pair.active.queue_pair.receive(room(&adapter, 8)).expect("posted");
    fake(&format!("fail rdma_disconnect 1 {}", libc::EIO));
    let error = within(pair.active.connection.disconnect()).await.expect_err("the call has failed");
    let lost = DisconnectError::Lost { status: Status::CANCELED, reason: Reason::Errno(libc::EIO) };
    assert_eq!(error, lost);
    assert_eq!(within(pair.active.connection.disconnected()).await, DisconnectReason::Local);
    assert_eq!(failure(receive).await, Status::CANCELED);
    assert_eq!(within(pair.passive.connection.disconnected()).await, DisconnectReason::Peer);
    // An answer that fails does not keep the peer waiting either.
    let pair = connected(&adapter).await;
    fake(&format!("fail rdma_disconnect 2 {}", libc::EIO));
    within(pair.active.connection.disconnect()).await.expect("disconnected");
    assert_eq!(within(pair.passive.connection.disconnected()).await, DisconnectReason::Peer);
    within(pair.passive.connection.disconnect()).await.expect("it is over");
}

// HW-16: everything that is pending ends, and everything is given back.
#[tokio::test]
async fn a_device_that_goes_takes_everything_with_it() {
    if !alone(module_path!(), "a_device_that_goes_takes_everything_with_it") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let receives: Vec<_> =
        (0..8).map(|_| pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted")).collect();
    let alone = queue_pair(&adapter);
    let unconnected = alone.receive(room(&adapter, 8)).expect("posted");
    let shared = adapter.shared_receive_queue(SharedReceiveConfig::default()).expect("a queue");
    let late = room(&adapter, 8);
    let (listener, address) = listening(&adapter);
    let (connector, active) = (adapter.connector(), queue_pair(&adapter));
    let waiting = connector.connect(&active, address, ConnectParams::default());
    let load = async {
        loop {
            let Ok(buffer) = adapter.buffer(8) else { return };
            let Ok(send) = pair.active.queue_pair.send(buffer) else { return };
            if send.await.0.is_err() {
                return;
            }
        }
    };
    let request = async {
        let _held = listener.request().await.expect("the connect above");
        let mut next = pin!(listener.request());
        assert!(poll_once(&mut next).is_pending(), "nothing else connects");
        fake("remove");
        next.await.map(drop).map_err(|error| error.status())
    };
    let (waited, request, ()) = within(async { tokio::join!(waiting, request, load) }).await;
    assert_eq!(waited.expect_err("the device is gone").status(), Status::DEVICE_REMOVED);
    assert_eq!(request, Err(Status::DEVICE_REMOVED));
    for (count, receive) in receives.into_iter().enumerate() {
        if let Err(error) = within(receive).await.0 {
            assert_eq!(error.status(), Status::DEVICE_REMOVED, "receive {count}");
        }
    }
    assert_eq!(within(unconnected).await.0.expect_err("gone").status(), Status::DEVICE_REMOVED);
    assert_eq!(within(pair.active.connection.disconnected()).await, DisconnectReason::DeviceRemoved);
    let error = adapter.queue_pair(QueuePairConfig::default()).map(drop).expect_err("gone");
    assert!(matches!(error, OpenError::DeviceRemoved), "{error:?}");
    assert_eq!(shared.receive(late).expect_err("gone").kind, PostErrorKind::DeviceRemoved);
    drop((pair, alone, active, connector, listener, shared, adapter));
    for kind in ["qp", "cq", "mr", "pd", "channel", "context", "cm_id"] {
        eventually(kind, || fake(&format!("count {kind}")) == Some(0)).await;
    }
}

// No state is left by a call that other tasks overtake.
#[tokio::test]
async fn a_slow_command_is_only_slow() {
    if !alone(module_path!(), "a_slow_command_is_only_slow") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    for call in ["ibv_modify_qp", "ibv_create_qp", "ibv_destroy_qp", "rdma_destroy_id", "ibv_dereg_mr"] {
        fake(&format!("delay {call} 20"));
        let pair = connected(&adapter).await;
        let receive = pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
        success(pair.active.queue_pair.send(bytes(&adapter, b"received")).expect("posted")).await;
        assert_eq!(&success(receive).await.1[..], b"received");
        within(pair.active.connection.disconnect()).await.expect("disconnected");
        fake("reset");
    }
}

// ERR-01: a post that the driver refuses names the reason, returns the buffer, and leaves the connection as it was.
#[tokio::test]
async fn posts_that_the_driver_refuses_name_the_reason() {
    if !alone(module_path!(), "posts_that_the_driver_refuses_name_the_reason") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let here = &pair.active.queue_pair;
    for (errno, kind) in
        [(libc::ENOTCONN, PostErrorKind::ConnectionInvalid), (libc::EIO, PostErrorKind::Device(libc::EIO))]
    {
        fake(&format!("refuse ibv_post_recv {errno}"));
        let error = here.receive(room(&adapter, 8)).expect_err("refused");
        assert_eq!((&error.kind, error.buffer.len()), (&kind, 8));
        fake("reset");
    }
    fake(&format!("refuse ibv_post_recv {}", libc::ENOMEM));
    let error = here.receive(room(&adapter, 8)).expect_err("refused");
    assert!(matches!(error.kind, PostErrorKind::QueueFull { queue: QueueKind::Receive, .. }), "{error:?}");
    fake("reset");
    exchange(&adapter, here, &pair.passive.queue_pair).await;
}

// HW-04: the device may write to the receives of a queue that it has not destroyed.
#[tokio::test]
async fn memory_of_undestroyable_shared_queue_is_withheld() {
    if !alone(module_path!(), "memory_of_undestroyable_shared_queue_is_withheld") {
        return;
    }
    let Some(_) = fake("forgive") else { return };
    let adapter = adapter();
    let queue = adapter.shared_receive_queue(SharedReceiveConfig::default().depth(2)).expect("a queue");
    let receive = queue.receive(room(&adapter, 8)).expect("posted");
    let regions = fake("count mr");
    fake(&format!("refuse ibv_destroy_srq {}", libc::EIO));
    drop(queue);
    let (outcome, buffer) = within(receive).await;
    assert_eq!(outcome.expect_err("the queue is gone").status(), Status::CANCELED);
    assert!(buffer.is_empty(), "the device may write to it");
    assert_eq!(fake("count mr"), regions);
}

// DIS-01: an ended connection holds nothing of the connection manager, however long its handles are kept.
#[tokio::test]
async fn ended_connections_hold_no_id() {
    if !alone(module_path!(), "ended_connections_hold_no_id") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let before = fake("count cm_id");
    let pair = connected(&adapter).await;
    assert!(fake("count cm_id") > before);
    within(pair.active.connection.disconnect()).await.expect("disconnected");
    within(pair.passive.connection.disconnect()).await.expect("disconnected");
    eventually("the ids are destroyed", || fake("count cm_id") == before).await;
    drop(pair);
}

// CM-01: a connector that is bound has one id, whose port it keeps.
#[tokio::test]
async fn a_bound_connector_has_one_id() {
    if !alone(module_path!(), "a_bound_connector_has_one_id") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let connector = adapter.connector();
    fake("reset");
    connector.bind((v4(), 0).into()).expect("bound");
    assert_eq!((fake("calls rdma_create_id"), fake("calls rdma_bind_addr")), (Some(1), Some(1)));
}
