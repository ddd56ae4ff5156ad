//! The failures of `INDConnector::Connect` (NetworkDirect v1), `NdkConnect` (NDK) and `dat_ep_connect` (uDAPL): what this crate
//! reports as one error has a name of its own on each page. The table has the names, and [`provoke`] the causes.
//!
//! After a failure the queue pair can connect (X34). In uDAPL an endpoint becomes DISCONNECTED, and must be reset.
//!
//! The rest of the page of NetworkDirect v1 is that of `IND2Connector`, apart from these items:
//!
//! | item | here | test |
//! |---|---|---|
//! | `pEndpoint` is one of this connector (X36) | a queue pair of the same adapter | `connect_queue_pair_of_another_adapter` |
//! | the port of `pAddress` is ignored (X36) | it is the listener's; port 0 is no address | row `AddressInvalid` |
//! | the local port is an argument | it is that of Bind | `bind_address_is_where_the_connection_comes_from` |
//! | `Protocol` | there is no such number | |
//! | the endpoint has the read limits (X36) | the parameters of the call have them | `get_read_limits_are_swapped_and_capped` |
//! | releasing the endpoint aborts (X24) | the future owns a handle of it | `connect_remarks_dropping_the_connector_abandons_nothing` |
//! | ND_CANCELED if the endpoint is removed (X23) | `Connector::cancel` has the status | row `Canceled` |
//!
//! Runs on: soft, sim, rxe, siw

mod soft;

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;

use common::deviation::*;
use common::seeds::*;
use common::*;
use futures::poll;
use tokio_rdma::error::{BindError, ConnectError};
use tokio_rdma::status::porting::{DatEvent, DatReturn, Outcome};
use tokio_rdma::{Adapter, ConnectParams, Connector, QueuePair, Status};

/// The name of an outcome in uDAPL.
#[derive(Clone, Copy)]
enum Dat {
    /// The event that comes later.
    Event(DatEvent),
    /// The type of the value that the call returns.
    Return(DatReturn),
}

use Dat::{Event, Return};

/// An outcome, its status in NetworkDirect v1, the name of its NTSTATUS in NDK, and its name in uDAPL. `None` if a page does not
/// have it.
type Row = (Outcome, Option<Status>, Option<&'static str>, Dat);

/// The failures that every device has.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    // No program listens there (CM-15).
    (Outcome::NoListener, Some(Status::CONNECTION_REFUSED), Some("STATUS_CONNECTION_REFUSED"), Event(DatEvent::NON_PEER_REJECTED)),
    // The program of the peer rejects (CM-16).
    (Outcome::PeerRejected, Some(Status::CONNECTION_REFUSED), Some("STATUS_CONNECTION_REFUSED"), Event(DatEvent::PEER_REJECTED)),
    // The number of NetworkDirect v1 looks like a success (ERR-03). uDAPL has UNREACHABLE as well as TIMED_OUT for a host that
    // does not respond in time; ours is the latter (CM-18, X32).
    (Outcome::NoAnswer, Some(Status::TIMEOUT), Some("STATUS_IO_TIMEOUT"), Event(DatEvent::TIMED_OUT)),
    // More private data than the transport carries (PD-04).
    (Outcome::PrivateDataTooLarge, Some(Status::BUFFER_OVERFLOW), Some("STATUS_INVALID_PARAMETER"), Return(DatReturn::INVALID_PARAMETER)),
    // The caller cancels (CAN-01).
    (Outcome::Canceled, Some(Status::CANCELED), Some("STATUS_CANCELLED"), Return(DatReturn::ABORT)),
    // The queue pair belongs to another connection, or has had one (CM-22, DIS-10).
    (Outcome::QueuePairBusy, Some(Status::CONNECTION_ACTIVE), None, Return(DatReturn::INVALID_STATE)),
    // No peer can have this address (CM-23).
    (Outcome::AddressInvalid, Some(Status::INVALID_ADDRESS), Some("STATUS_INVALID_ADDRESS"), Return(DatReturn::INVALID_ADDRESS)),
    // Another program or connector has the port (CM-04).
    (Outcome::PortInUse, Some(Status::ADDRESS_ALREADY_EXISTS), Some("STATUS_SHARING_VIOLATION"), Return(DatReturn::CONN_QUAL_IN_USE)),
    (Outcome::InvalidArgument, Some(Status::INVALID_PARAMETER), Some("STATUS_INVALID_PARAMETER"), Return(DatReturn::INVALID_PARAMETER)),
    // The provider lacks the option (CM-13).
    (Outcome::NotSupported, None, Some("STATUS_NOT_SUPPORTED"), Return(DatReturn::MODEL_NOT_SUPPORTED)),
];

/// What an error says of itself.
#[derive(Debug)]
struct Failure {
    outcome: Outcome,
    status: Status,
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Self { outcome: error.outcome(), status: error.status() }
    }
}

impl From<BindError> for Failure {
    fn from(error: BindError) -> Self {
        Self { outcome: error.outcome(), status: error.status() }
    }
}

/// Compares a failure with its row. The error itself leads to the row (ERR-07).
#[track_caller]
fn assert_named(failure: &Failure, &(outcome, nd1, ndk, dat): &Row) {
    assert_eq!((failure.outcome, failure.status), (outcome, outcome.status()));
    assert_eq!(outcome.nd1_status(), nd1, "{outcome:?}");
    assert_eq!(outcome.nt_status().and_then(Status::nt_name), ndk, "{outcome:?}");
    match dat {
        Event(event) => assert_eq!(outcome.dat_event(), Some(event), "{outcome:?}"),
        Return(value) => {
            assert_eq!(outcome.dat_return().map(DatReturn::without_subtype), Some(value), "{outcome:?}");
        }
    }
}

#[tokio::test]
async fn each_failure_has_its_names() {
    for row in ROWS {
        let adapter = adapter();
        let failures = provoke(&adapter, row.0).await;
        assert!(!failures.is_empty());
        for failure in &failures {
            assert_named(failure, row);
        }
    }
}

/// Connects, and fails.
async fn failure(
    connector: &Connector,
    queue_pair: &QueuePair,
    peer: SocketAddr,
    params: ConnectParams,
) -> ConnectError {
    within(connector.connect(queue_pair, peer, params)).await.expect_err("it cannot work")
}

/// Returns the failures of calls that end so. Where the page lets the connector try again, it connects.
async fn provoke(adapter: &Adapter, outcome: Outcome) -> Vec<Failure> {
    let (connector, active) = (adapter.connector(), queue_pair(adapter));
    let (_listener, address) = listening(adapter);
    let plain = ConnectParams::default;
    let error = match outcome {
        Outcome::NoListener => {
            let (_socket, deaf) = deaf(v4());
            let error = failure(&connector, &active, deaf, plain()).await;
            // The reason tells it from a peer's reject, which has the same status.
            let ConnectError::Refused { reason, .. } = &error else { panic!("{error:?}") };
            assert_is_no_listener(reason);
            error
        }
        Outcome::PeerRejected => {
            let asked = asked(adapter, plain()).await;
            within(asked.request.reject(b"it has data")).await.expect("rejected");
            let error = within(asked.connecting).await.expect("joined").expect_err("rejected");
            assert_bytes(adapter, error.private_data(), b"it has data");
            let ConnectError::Rejected { reason, .. } = &error else { panic!("{error:?}") };
            assert_is_reject(reason);
            connects(&asked.connector, adapter, &asked.queue_pair).await;
            error
        }
        Outcome::NoAnswer => {
            let (_holder, silent) = silent(v4());
            let error = failure(&connector, &active, silent, plain().timeout(LONG)).await;
            assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
            error
        }
        Outcome::PrivateDataTooLarge => {
            let data = vec![0; adapter.info().max_request_data + 1];
            failure(&connector, &active, address, plain().private_data(data)).await
        }
        Outcome::Canceled => {
            let ((_holder, silent), connector) = (silent(v4()), Arc::new(connector));
            let connecting = connecting(&connector, &active, silent, plain());
            settled().await;
            connector.cancel();
            let error = within(connecting).await.expect("joined").expect_err("cancelled");
            return vec![error.into()];
        }
        Outcome::QueuePairBusy => {
            let pair = connected(adapter).await;
            let mut failures = Vec::new();
            for end in [&pair.active, &pair.passive] {
                failures.push(failure(&connector, &end.queue_pair, address, plain()).await.into());
            }
            // Disconnected is not unconnected.
            within(pair.active.connection.disconnect()).await.expect("disconnected");
            failures.push(failure(&connector, &pair.active.queue_pair, address, plain()).await.into());
            return failures;
        }
        Outcome::AddressInvalid => {
            let mut failures = Vec::new();
            // The source address of NDK and of NetworkDirect v1 is that of Bind, which has the status (X28).
            for text in ["203.0.113.77:0", "[2001:db8::77]:0", "224.0.0.1:0"] {
                let source = text.parse().expect("an address");
                failures.push(connector.bind(source).expect_err("not ours").into());
            }
            // What can be nobody's address is known at once.
            let nobodys = ["0.0.0.0:7", "[::]:7", "224.0.0.1:7", "[ff02::1]:7", "255.255.255.255:7"];
            let nobodys = nobodys.map(|text| text.parse().expect("an address"));
            for peer in nobodys.into_iter().chain([SocketAddr::new(v4(), 0)]) {
                let connector = adapter.connector();
                let mut connect = Box::pin(connector.connect(&active, peer, plain()));
                let Poll::Ready(Err(error)) = poll!(&mut connect) else { panic!("{peer} at once") };
                failures.push(error.into());
            }
            connects(&connector, adapter, &active).await;
            return failures;
        }
        Outcome::PortInUse => {
            let (_socket, foreign) = deaf(v4());
            let other = adapter.connector();
            other.bind((v4(), 0).into()).expect("bound");
            let pair = connected(adapter).await;
            let taken = [foreign, other.local_addr().expect("bound"), pair.active.connection.local_addr()];
            let failures = taken.map(|source| connector.bind(source).expect_err("taken").into());
            connects(&connector, adapter, &active).await;
            return failures.into();
        }
        Outcome::InvalidArgument => {
            let foreign = queue_pair(&common::adapter());
            failure(&connector, &foreign, address, plain()).await
        }
        // The two lowest bits are those of the network, not of the caller.
        Outcome::NotSupported => failure(&connector, &active, address, plain().traffic_class(0x03)).await,
        other => panic!("no cause of {other:?}"),
    };
    connects(&connector, adapter, &active).await;
    vec![error.into()]
}
