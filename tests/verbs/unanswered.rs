//! Connects, accepts and disconnects that nobody answers: each ends in the time of its caller or of its device, or is dropped. What
//! was posted stays posted, and nothing of the device is left.
//!
//! Runs on: fake, fake-iwarp

use std::time::Duration;

use common::cm::{HalfOpen, abandon, connect_on, connecting, half_open, outcome, requested};
use common::deviation::{speak_first, three_phase};
use common::life::eventually;
use common::process::alone;
use common::raw::{bytes, failure, room, success};
use common::verbs::{fake, nothing_is_left};
use common::*;
use tokio_rdma::error::{AcceptError, ConnectError, DisconnectError, Reason};
use tokio_rdma::status::porting::CmEvent;
use tokio_rdma::verbs::VerbsConfig;
use tokio_rdma::{
    AcceptParams, Adapter, Buffer, ConnectParams, DisconnectReason, Op, Provider, QueuePair, Status,
};

/// A time that is over soon, for a caller or for the device.
const SOON: Duration = Duration::from_millis(50);
/// A time that no test waits for.
const LATER: Duration = Duration::from_secs(3600);

/// Has the device give up soon what nobody answers. Over iWARP an id cannot go before that.
fn hasty_device() {
    fake(&format!("patience {}", SOON.as_millis()));
}

/// A queue pair, and a receive of it.
fn prepared(adapter: &Adapter) -> (QueuePair, Op<Buffer>) {
    let queue_pair = queue_pair(adapter);
    let receive = queue_pair.receive(room(adapter, 8)).expect("posted");
    (queue_pair, receive)
}

/// Connects a queue pair by a new connector. Its receive takes a message.
async fn connects_as_active(adapter: &Adapter, (active, kept): (QueuePair, Op<Buffer>)) {
    let link = connect_on(adapter, &active, &adapter.connector()).await;
    speak_first((adapter, &active), (adapter, &link.passive)).await;
    success(link.passive.send(bytes(adapter, b"received")).expect("posted")).await;
    assert_eq!(&success(kept).await.1[..], b"received");
}

/// Has a queue pair accept a new request. Its receive takes a message.
async fn connects_as_passive(adapter: &Adapter, (passive, kept): (QueuePair, Op<Buffer>)) {
    let (listener, address) = listening(adapter);
    let (active, connector) = (queue_pair(adapter), adapter.connector());
    let _ends = joined(
        connector.connect_and_complete(&active, address, ConnectParams::default()),
        listener.accept_next(&passive, AcceptParams::default()),
    )
    .await;
    success(active.send(bytes(adapter, b"received")).expect("posted")).await;
    assert_eq!(&success(kept).await.1[..], b"received");
}

/// The ways in which the attempt of a connect is not answered, each with what has the device answer again.
///
/// A step of a resolution that ends at once in vain is begun again, for as long as there is time.
const SILENCES: &[(&str, &str)] = &[
    ("lose addresses", "lose nothing"),
    ("expire addresses 1000000000", "expire addresses 0"),
    ("expire routes 1000000000", "expire routes 0"),
    ("lose messages", "lose nothing"),
];

// HW-13, CM-12, CM-18, CM-19, CM-21: whatever it is that nobody answers.
#[tokio::test]
async fn unanswered_connect_ends_at_its_timeout() {
    if !alone(module_path!(), "unanswered_connect_ends_at_its_timeout") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    hasty_device();
    let adapter = adapter();
    let (listener, peer) = listening(&adapter);
    let prepared = prepared(&adapter);
    let connector = adapter.connector();
    for (silence, end) in SILENCES {
        fake(silence);
        // Shorter than the device's own.
        let limit = SOON / 5;
        let connect = connector.connect(&prepared.0, peer, ConnectParams::default().timeout(limit));
        let error = within(connect).await.expect_err("nobody answers");
        let of_caller = matches!(error, ConnectError::TimedOut { limit: Some(said), .. } if said == limit);
        // The device's time may be over at the same moment.
        assert!(of_caller, "{silence}: {error:?}");
        assert_eq!((error.status(), error.is_retryable()), (Status::IO_TIMEOUT, true), "{silence}");
        assert!(error.is_connector_usable(), "{silence}");
        fake(end);
    }
    fake("reset");
    // The connector is as good as a new one.
    let refused = within(connector.connect(&prepared.0, device::nobody(v4()), ConnectParams::default()));
    assert_eq!(refused.await.expect_err("nobody listens").status(), Status::CONNECTION_REFUSED);
    connects_as_active(&adapter, prepared).await;
    drop((connector, listener, adapter));
    nothing_is_left().await;
}

// HW-13, CM-18: the request is lost, or it is in the hands of the peer. Its holder learns that it is too late.
#[tokio::test]
async fn a_connect_ends_when_the_device_gives_up() {
    if !alone(module_path!(), "a_connect_ends_when_the_device_gives_up") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    hasty_device();
    let adapter = adapter();
    let given_up = |error: &ConnectError| {
        assert!(matches!(error, ConnectError::TimedOut { limit: None, .. }), "{error:?}");
        assert_eq!((error.status(), error.is_retryable()), (Status::IO_TIMEOUT, true));
    };
    let (listener, peer) = listening(&adapter);
    let active = prepared(&adapter);
    let connector = adapter.connector();
    fake("lose messages");
    given_up(
        &within(connector.connect(&active.0, peer, ConnectParams::default())).await.expect_err("no answer"),
    );
    fake("lose nothing");

    let passive = prepared(&adapter);
    let connect = connector.connect(&active.0, peer, ConnectParams::default());
    let (outcome, request) = within(async { tokio::join!(connect, listener.request()) }).await;
    given_up(&outcome.expect_err("no answer"));
    let late = within(request.expect("a request").accept(&passive.0, AcceptParams::default())).await;
    let error = late.expect_err("nobody waits for it").error;
    assert!(matches!(error, AcceptError::Aborted { .. }), "{error:?}");
    fake("reset");
    connects_as_active(&adapter, active).await;
    connects_as_passive(&adapter, passive).await;
    drop((connector, listener, adapter));
    nothing_is_left().await;
}

// HW-13, CAN-03: nothing of an attempt is left whose future is dropped while nobody answers.
#[tokio::test]
async fn a_connect_that_nobody_answers_may_be_dropped() {
    if !alone(module_path!(), "a_connect_that_nobody_answers_may_be_dropped") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let (listener, peer) = listening(&adapter);
    let active = prepared(&adapter);
    for (silence, end) in SILENCES {
        let connector = std::sync::Arc::new(adapter.connector());
        fake("reset");
        fake(silence);
        let last = if *silence == "lose messages" { "rdma_connect" } else { "rdma_resolve_addr" };
        let connecting = connecting(&connector, &active.0, peer, ConnectParams::default().timeout(LATER));
        eventually("it is under way", || fake(&format!("calls {last}")) >= Some(1)).await;
        abandon(connecting).await;
        fake(end);
        // Over iWARP the id is kept until then, and nobody waits for it.
        fake("give up");
        let again = within(connector.connect(&active.0, peer, ConnectParams::default())).await;
        assert_eq!(again.expect_err("it was cancelled").status(), Status::CONNECTION_ACTIVE, "{silence}");
    }
    fake("reset");
    connects_as_active(&adapter, active).await;
    drop((listener, adapter));
    nothing_is_left().await;
}

/// The messages of a handshake that get lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    /// The reply of the accept.
    Reply,
    /// None: the active side has the reply, and does not complete.
    Nothing,
    /// The last message: one side is connected.
    Completion,
}

// HW-13, X8: the connection manager has a limit for the last message. The active side learns of it when it completes, or by the end
// of its connection.
#[tokio::test]
async fn uncompleted_accept_ends_when_device_gives_up() {
    if !alone(module_path!(), "uncompleted_accept_ends_when_device_gives_up") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    if !three_phase(&adapter) {
        return skipped("the accept is the last message");
    }
    let passive = prepared(&adapter);
    for lost in [Lost::Reply, Lost::Nothing, Lost::Completion] {
        let asked = requested(&adapter, v4(), ConnectParams::default()).await;
        if lost == Lost::Reply {
            fake("lose messages");
        }
        let accepting = tokio::spawn({
            let passive = passive.0.clone();
            async move { asked.request.accept(&passive, AcceptParams::default()).await }
        });
        let sent = || fake("calls rdma_accept") >= Some(1);
        eventually("the reply is sent", sent).await;
        match lost {
            Lost::Reply => {
                let before = asked.connecting;
                // The request that it answers is given up, too.
                assert_eq!(fake("give up"), Some(2));
                let error = outcome(before).await.expect_err("no answer");
                assert_eq!(error.status(), Status::IO_TIMEOUT, "{error:?}");
            }
            Lost::Nothing => {
                let reply = outcome(asked.connecting).await.expect("accepted");
                assert_eq!(fake("give up"), Some(1));
                eventually("the accept is over", || accepting.is_finished()).await;
                // A21
                let error = within(reply.complete()).await.map(drop).expect_err("too late");
                assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
            }
            Lost::Completion => {
                let reply = outcome(asked.connecting).await.expect("accepted");
                fake("lose messages");
                let connection = within(reply.complete()).await.expect("as far as this side knows");
                fake("lose nothing");
                assert_eq!(fake("give up"), Some(1));
                let reason = within(connection.disconnected()).await;
                let lost = |status: &Status| *status == Status::IO_TIMEOUT;
                assert!(
                    matches!(&reason, DisconnectReason::Lost { status, .. } if lost(status)),
                    "{reason:?}"
                );
            }
        }
        let error = outcome(accepting).await.map(drop).expect_err("nobody completes").error;
        assert!(matches!(error, AcceptError::TimedOut { .. }), "{lost:?}: {error:?}");
        assert_eq!(error.status(), Status::IO_TIMEOUT);
        fake("reset");
    }
    connects_as_passive(&adapter, passive).await;
    drop(adapter);
    nothing_is_left().await;
}

// HW-13, CAN-03: the peer has not seen the reply when it gives its connect up. The accept ends with that, and not with a time limit.
#[tokio::test]
async fn an_accept_ends_when_its_peer_gives_up() {
    if !alone(module_path!(), "an_accept_ends_when_its_peer_gives_up") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    if !three_phase(&adapter) {
        return skipped("the accept is the last message");
    }
    let passive = prepared(&adapter);
    let asked = requested(&adapter, v4(), ConnectParams::default()).await;
    fake("lose messages");
    let accepting = tokio::spawn({
        let passive = passive.0.clone();
        async move { asked.request.accept(&passive, AcceptParams::default()).await }
    });
    eventually("the reply is sent", || fake("calls rdma_accept") >= Some(1)).await;
    fake("lose nothing");
    abandon(asked.connecting).await;
    let error = outcome(accepting).await.map(drop).expect_err("the peer has gone").error;
    assert!(matches!(error, AcceptError::Aborted { .. }), "{error:?}");
    assert_eq!(error.status(), Status::CONNECTION_ABORTED);
    connects_as_passive(&adapter, passive).await;
    drop((asked.connector, asked.active, asked.listener, adapter));
    nothing_is_left().await;
}

// HW-13, CAN-04: the device waits for a peer that does not answer, and nobody waits for the device.
#[tokio::test]
async fn an_accept_that_nobody_completes_may_be_dropped() {
    if !alone(module_path!(), "an_accept_that_nobody_completes_may_be_dropped") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    if !three_phase(&adapter) {
        return skipped("the accept is the last message");
    }
    let own = fake("count cm_id");
    for mute in [false, true] {
        let HalfOpen { connector, active, passive, reply, accepting } = half_open(&adapter, v4()).await;
        let kept = passive.receive(room(&adapter, 8)).expect("posted");
        if mute {
            fake("lose messages");
        }
        abandon(accepting).await;
        // A call of the accept may have yet to return.
        let gone = || fake("count cm_id") <= own.map(|own| own + 1);
        eventually("the id of this side is gone", gone).await;
        fake("lose nothing");
        let error = within(reply.complete()).await.map(drop).expect_err("the peer has gone");
        assert_eq!(error.status(), Status::CONNECTION_ABORTED, "mute: {mute}");
        drop((connector, active));
        connects_as_passive(&adapter, (passive, kept)).await;
    }
    drop(adapter);
    nothing_is_left().await;
}

/// The adapter, whose disconnects wait so long.
fn adapter_with_disconnects(limit: Duration) -> Adapter {
    let provider =
        Provider::verbs_with(VerbsConfig::default().disconnect_timeout(limit)).expect("a provider");
    provider.open(provider.resolve(v4()).expect("the address is there")).expect("opened")
}

// HW-13, DIS-14: a disconnect that nobody answers ends in the time of the configuration, or before that when the device gives up.
#[tokio::test]
async fn a_disconnect_that_nobody_answers_ends() {
    if !alone(module_path!(), "a_disconnect_that_nobody_answers_ends") {
        return;
    }
    for of_device in [false, true] {
        let Some(_) = fake("reset") else { return };
        let limit = if of_device { LATER } else { SOON };
        let adapter = adapter_with_disconnects(limit);
        let pair = connected(&adapter).await;
        let receive = pair.active.queue_pair.receive(room(&adapter, 8)).expect("posted");
        if of_device {
            hasty_device();
        }
        fake("lose messages");
        let begun = tokio::time::Instant::now();
        let error = within(pair.active.connection.disconnect()).await.expect_err("nobody answers");
        assert!(matches!(error, DisconnectError::TimedOut { .. }), "{error:?}");
        assert_eq!(error.status(), Status::IO_TIMEOUT);
        assert!(begun.elapsed() >= SOON, "after {:?}", begun.elapsed());
        assert_eq!(failure(receive).await, Status::CANCELED);
        assert_eq!(within(pair.active.connection.disconnected()).await, DisconnectReason::Local);
        let again = within(pair.active.connection.disconnect()).await;
        assert_eq!(again, Err(DisconnectError::Invalid));
        // Nobody has told the peer.
        assert!(pair.passive.connection.is_connected());
        drop((pair, adapter));
        nothing_is_left().await;
    }
}

// HW-13, DIS-14: without its future a disconnect goes on, and its limit does not keep what was dropped.
#[tokio::test]
async fn a_disconnect_that_nobody_answers_may_be_dropped() {
    if !alone(module_path!(), "a_disconnect_that_nobody_answers_may_be_dropped") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter_with_disconnects(LATER);
    let pair = connected(&adapter).await;
    let receive = pair.active.queue_pair.receive(room(&adapter, 8)).expect("posted");
    fake("lose messages");
    let connection = pair.active.connection.clone();
    let disconnecting = tokio::spawn(async move { connection.disconnect().await });
    assert_eq!(failure(receive).await, Status::CANCELED);
    abandon(disconnecting).await;
    assert_eq!(within(pair.active.connection.disconnected()).await, DisconnectReason::Local);
    assert_eq!(within(pair.active.connection.disconnect()).await, Err(DisconnectError::Invalid));
    drop((pair, adapter));
    nothing_is_left().await;
}

// HW-13: the peers of connections that are dropped without a word being heard cost nothing.
#[tokio::test]
async fn connections_that_are_dropped_in_silence_leave_nothing() {
    if !alone(module_path!(), "connections_that_are_dropped_in_silence_leave_nothing") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter_with_disconnects(LATER);
    let pair = connected(&adapter).await;
    let kept = pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    fake("lose messages");
    drop(pair.active);
    eventually("one end has gone", || fake("count qp") == Some(1)).await;
    assert!(pair.passive.connection.is_connected(), "nobody has told it");
    drop(pair.passive);
    assert_eq!(failure(kept).await, Status::CANCELED);
    drop(adapter);
    nothing_is_left().await;
}

// HW-13: kernels from 6.0 on report a peer whose hardware address has changed as unreachable, to ids that are connected, too.
#[tokio::test]
async fn connected_peer_reported_unreachable_is_lost() {
    if !alone(module_path!(), "connected_peer_reported_unreachable_is_lost") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let receives =
        [&pair.active, &pair.passive].map(|end| end.queue_pair.receive(room(&adapter, 8)).expect("posted"));
    fake(&format!("report {} {}", CmEvent::UNREACHABLE.code(), -libc::ETIMEDOUT));
    let reason = Reason::Cm { event: CmEvent::UNREACHABLE, status: -libc::ETIMEDOUT };
    let lost = DisconnectReason::Lost { status: Status::IO_TIMEOUT, reason };
    for end in [&pair.active, &pair.passive] {
        assert_eq!(within(end.connection.disconnected()).await, lost);
    }
    for receive in receives {
        assert_eq!(failure(receive).await, Status::CANCELED);
    }
    for end in [&pair.active, &pair.passive] {
        let error = within(end.connection.disconnect()).await.expect_err("it was lost");
        assert!(matches!(error, DisconnectError::Lost { .. }), "{error:?}");
    }
    drop((pair, adapter));
    nothing_is_left().await;
}
