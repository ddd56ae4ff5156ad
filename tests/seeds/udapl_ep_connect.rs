//! uDAPL's `dat_ep_connect`, as far as its page differs from that of `IND2Connector`. uDAPL returns two results, a return value
//! and later an event; a future returns one. `tokio_rdma::status::porting` contains uDAPL's name of each outcome.
//!
//! | item | here | test |
//! |---|---|---|
//! | `ep_handle`, DAT_EP_STATE_ACTIVE_CONNECTION_PENDING | the queue pair takes receives alone | in this module |
//! | `remote_ia_address`, `remote_conn_qual` | address and port | `connect_destination_of_either_family` |
//! | `timeout` (X30) | `ConnectParams::timeout` | in this module, and the row `NoAnswer` of `failures` |
//! | `qos` (X31), `connect_flags` | `ConnectParams::traffic_class`, `multipath` | in the module `soft`, and the row `NotSupported` |
//! | ESTABLISHED (X33) | `Ok` of either side | in this module |
//! | the other events and return values (X32) | errors | the module `failures` |
//! | DAT_SUCCESS, DAT_INVALID_HANDLE | a future, and handles that refer to something for as long as they exist | |
//! | usage: reads are agreed on by the applications | read limits, with a default | in this module |
//!
//! Runs on: soft, sim, rxe, siw

mod soft;

use common::deviation::*;
use common::seeds::*;
use common::*;
use tokio_rdma::error::{AcceptError, ConnectError, PostErrorKind};
use tokio_rdma::status::porting::{DatEvent, Outcome};
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Connector, QueuePair, ReadLimits};

fn fresh(adapter: &Adapter) -> (Connector, QueuePair) {
    (adapter.connector(), queue_pair(adapter))
}

// ---- Parameters

// CM-12
#[tokio::test]
async fn timeout_leaves_a_peer_in_time_alone() {
    let adapter = adapter();
    let params = ConnectParams::default().timeout(patience());
    drop(half_open(&adapter, params, AcceptParams::default()).await);
}

// ---- Description

// DAT_EP_STATE_ACTIVE_CONNECTION_PENDING: receives may be posted, nothing else, and nobody else may connect it, until the
// connection is complete (QP-05, QP-06, CM-22).
#[tokio::test]
async fn description_active_connection_pending() {
    let adapter = adapter();
    let asked = asked(&adapter, ConnectParams::default()).await;
    let _receive = asked.queue_pair.receive(adapter.buffer(8).expect("a buffer")).expect("posted");
    let send = || asked.queue_pair.send(adapter.buffer(1).expect("a buffer"));
    assert_eq!(send().expect_err("asked").kind, PostErrorKind::ConnectionInvalid);
    let (_listener, address) = listening(&adapter);
    let again =
        within(adapter.connector().connect(&asked.queue_pair, address, ConnectParams::default())).await;
    assert_eq!(again.expect_err("asked").outcome(), Outcome::QueuePairBusy);
    let passive = queue_pair(&adapter);
    let _accepting = accepting(asked.request, &passive, AcceptParams::default());
    let reply = within(asked.connecting).await.expect("joined").expect("accepted");
    assert_eq!(send().expect_err("accepted").kind, PostErrorKind::ConnectionInvalid);
    let _connection = within(reply.complete()).await.expect("completed");
    drop(send().expect("connected"));
}

/// The event of an attempt, as a program that is ported looks it up: success has no `outcome()`, since it is no error.
fn event_of<T, E>(attempt: &Result<T, E>, outcome: impl FnOnce(&E) -> Outcome) -> Option<DatEvent> {
    attempt.as_ref().map_or_else(outcome, |_| Outcome::Established).dat_event()
}

// The event is `Ok` of the call on either side (CM-08, X33), and only of an attempt that has made a connection.
#[tokio::test]
async fn description_established_is_the_ok_of_either_side() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let ((connector, active), passive) = (fresh(&adapter), queue_pair(&adapter));
    let (connected, accepted) = within(async {
        tokio::join!(
            connector.connect_and_complete(&active, address, ConnectParams::default()),
            listener.accept_next(&passive, AcceptParams::default()),
        )
    })
    .await;
    assert_eq!(event_of(&connected, ConnectError::outcome), Some(DatEvent::ESTABLISHED));
    assert_eq!(event_of(&accepted, AcceptError::outcome), Some(DatEvent::ESTABLISHED));
    let (connected, accepted) = (connected.expect("connected"), accepted.expect("accepted"));
    assert_eq!(connected.peer_addr(), accepted.local_addr());
    let ((connector, active), (_socket, address)) = (fresh(&adapter), deaf(v4()));
    let refused = within(connector.connect_and_complete(&active, address, ConnectParams::default())).await;
    assert_eq!(event_of(&refused, ConnectError::outcome), Some(DatEvent::NON_PEER_REJECTED));
}

// ---- Usage

// NEG-01, NEG-03: a default for those who say nothing, which the connection may lower.
#[tokio::test]
async fn usage_limits_have_a_default() {
    let adapter = adapter();
    let plain = connected(&adapter).await;
    assert_eq!(plain.active.connection.read_limits(), ReadLimits::new(16, 16));
    let lowered = connected_with(&adapter, ConnectParams::default(), accept_limits(2, 3)).await;
    // ERR-06
    let served = if accept_limits_reads(&adapter) { 2 } else { 16 };
    assert_eq!(lowered.active.connection.read_limits(), ReadLimits::new(3, served));
}
