//! Connects that come to nothing, by every report that the connection manager can make of one: what the caller is told, whether
//! it may try again, and that its queue pair is as good as before.
//!
//! Runs on: fake, fake-iwarp

use std::net::SocketAddr;

use common::deviation::speak_first;
use common::process::alone;
use common::raw::{bytes, room, success};
use common::verbs::{fake, nothing_is_left};
use common::*;
use tokio_rdma::error::{ConnectError, Reason};
use tokio_rdma::status::porting::CmEvent;
use tokio_rdma::{Adapter, ConnectParams, Connector, QueuePair, Status};

use Told::{
    Canceled, HostUnreachable, InvalidAddress, NetworkUnreachable, Other, Refused, Rejected, TimedOut,
};

/// The error of a connect, without its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Refused,
    Rejected,
    NetworkUnreachable,
    HostUnreachable,
    TimedOut,
    InvalidAddress,
    Canceled,
    Other(Status),
}

impl Told {
    fn of(error: &ConnectError) -> Self {
        match error {
            ConnectError::Refused { .. } => Refused,
            ConnectError::Rejected { .. } => Rejected,
            ConnectError::NetworkUnreachable { .. } => NetworkUnreachable,
            ConnectError::HostUnreachable { .. } => HostUnreachable,
            // The caller has set no time.
            ConnectError::TimedOut { limit: None, .. } => TimedOut,
            ConnectError::InvalidAddress(_) => InvalidAddress,
            ConnectError::Canceled => Canceled,
            ConnectError::Other { status, .. } => Other(*status),
            other => panic!("{other:?}"),
        }
    }

    fn status(self) -> Status {
        match self {
            Refused | Rejected => Status::CONNECTION_REFUSED,
            NetworkUnreachable => Status::NETWORK_UNREACHABLE,
            HostUnreachable => Status::HOST_UNREACHABLE,
            TimedOut => Status::IO_TIMEOUT,
            InvalidAddress => Status::INVALID_ADDRESS,
            Canceled => Status::CANCELED,
            Other(status) => status,
        }
    }

    /// Whether the same call may succeed later.
    fn is_retryable(self) -> bool {
        matches!(
            self,
            Refused | NetworkUnreachable | HostUnreachable | TimedOut | Other(Status::INSUFFICIENT_RESOURCES)
        )
    }
}

/// An answer of the connection manager to a call: the event, and its status.
type Answer = (&'static str, CmEvent, i32);

const ADDRESS: &str = "rdma_resolve_addr";
const ROUTE: &str = "rdma_resolve_route";
const CONNECT: &str = "rdma_connect";

/// The answers that every card may give. The numbers of an address that cannot be resolved are those of the kernel's routes, see
/// ip-route(8): none, `unreachable`, `prohibit`, `blackhole`; of an address that has moved to another device; and of no memory.
const EVERYWHERE: &[(Answer, Told)] = &[
    ((ADDRESS, CmEvent::ADDR_ERROR, -libc::ENETUNREACH), NetworkUnreachable),
    ((ADDRESS, CmEvent::ADDR_ERROR, -libc::EHOSTUNREACH), HostUnreachable),
    ((ADDRESS, CmEvent::ADDR_ERROR, -libc::EACCES), HostUnreachable),
    ((ADDRESS, CmEvent::ADDR_ERROR, -libc::EINVAL), NetworkUnreachable),
    ((ADDRESS, CmEvent::ADDR_ERROR, -libc::ENODEV), InvalidAddress),
    ((ADDRESS, CmEvent::ADDR_ERROR, -libc::ENOMEM), Other(Status::INSUFFICIENT_RESOURCES)),
    // A subnet manager that knows no path, one that answers with an error, and a route that has gone.
    ((ROUTE, CmEvent::ROUTE_ERROR, -libc::ENODATA), HostUnreachable),
    ((ROUTE, CmEvent::ROUTE_ERROR, -libc::EINVAL), HostUnreachable),
    ((ROUTE, CmEvent::ROUTE_ERROR, -libc::EHOSTUNREACH), HostUnreachable),
    ((CONNECT, CmEvent::UNREACHABLE, -libc::ETIMEDOUT), TimedOut),
    ((CONNECT, CmEvent::CONNECT_ERROR, -libc::EINVAL), Other(Status::UNSUCCESSFUL)),
];

/// The answers of drivers that speak iWARP. cxgb4 reports a peer without a hardware address, a full table, an MPA reply that it
/// does not understand, and what it has no number for as `CONNECT_ERROR`.
const IWARP: &[(Answer, Told)] = &[
    ((CONNECT, CmEvent::REJECTED, -libc::ECONNREFUSED), Refused),
    ((CONNECT, CmEvent::REJECTED, -libc::ECONNRESET), Refused),
    ((CONNECT, CmEvent::CONNECT_ERROR, -libc::EHOSTUNREACH), HostUnreachable),
    ((CONNECT, CmEvent::CONNECT_ERROR, -libc::ENETUNREACH), NetworkUnreachable),
    ((CONNECT, CmEvent::CONNECT_ERROR, -libc::ENOMEM), Other(Status::INSUFFICIENT_RESOURCES)),
    ((CONNECT, CmEvent::CONNECT_ERROR, -libc::EPROTO), Other(Status::UNSUCCESSFUL)),
    ((CONNECT, CmEvent::CONNECT_ERROR, -libc::EIO), Other(Status::UNSUCCESSFUL)),
];

/// The reasons of a reject by a connection manager of InfiniBand: those of the specification (volume 1, section 12.6.7.2), and one
/// that it does not have.
const REASONS: std::ops::RangeInclusive<i32> = 1..=36;
/// The application's.
const CONSUMER_DEFINED: i32 = 28;

/// Every answer that this card may give to a connect, and what follows from it.
fn answers(adapter: &Adapter) -> Vec<(Answer, Told)> {
    let mut answers = EVERYWHERE.to_vec();
    if adapter.info().iwarp {
        answers.extend(IWARP);
    } else {
        let told = |reason| if reason == CONSUMER_DEFINED { Rejected } else { Refused };
        answers.extend(REASONS.map(|reason| ((CONNECT, CmEvent::REJECTED, reason), told(reason))));
    }
    answers
}

async fn connect_error(connector: &Connector, queue_pair: &QueuePair, peer: SocketAddr) -> ConnectError {
    let connect = connector.connect(queue_pair, peer, ConnectParams::default());
    within(connect).await.map(drop).expect_err("it comes to nothing")
}

/// The error of a connect that is answered so.
async fn answered(
    connector: &Connector,
    queue_pair: &QueuePair,
    peer: SocketAddr,
    (call, event, status): Answer,
) -> ConnectError {
    fake(&format!("answer {call} {} {status}", event.code()));
    connect_error(connector, queue_pair, peer).await
}

/// The queue pair connects, and a message arrives in a receive that was posted before all of this.
async fn is_as_good_as_before(
    adapter: &Adapter,
    queue_pair: &QueuePair,
    kept: tokio_rdma::Op<tokio_rdma::Buffer>,
) {
    let link = cm::connect_on(adapter, queue_pair, &adapter.connector()).await;
    speak_first((adapter, queue_pair), (adapter, &link.passive)).await;
    success(link.passive.send(bytes(adapter, b"kept")).expect("posted")).await;
    assert_eq!(&success(kept).await.1[..4], b"kept");
}

// HW-13, CM-17, CM-19, CM-21: one queue pair goes through all of it. Errors that leave the connector usable do; the others do not.
#[tokio::test]
async fn every_connect_answer_maps_to_its_error() {
    if !alone(module_path!(), "every_connect_answer_maps_to_its_error") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    let (listener, peer) = listening(&adapter);
    let queue_pair = queue_pair(&adapter);
    let kept = queue_pair.receive(room(&adapter, 8)).expect("posted");
    let deaf = device::nobody(v4());
    for (answer, told) in answers(&adapter) {
        for bound in [false, true] {
            let connector = adapter.connector();
            if bound {
                connector.bind((v4(), 0).into()).expect("bound");
            }
            let error = answered(&connector, &queue_pair, peer, answer).await;
            let found = (Told::of(&error), error.status(), error.is_retryable());
            assert_eq!(found, (told, told.status(), told.is_retryable()), "{answer:?}: {error:?}");
            if let ConnectError::Refused { reason, .. }
            | ConnectError::Rejected { reason, .. }
            | ConnectError::Other { reason, .. } = error
            {
                assert_eq!(reason, Reason::Cm { event: answer.1, status: answer.2 });
            }
            // Nobody listens there, which takes a whole attempt to find out.
            let again = connect_error(&connector, &queue_pair, deaf).await;
            let is_told = match again {
                ConnectError::Refused { .. } => error.is_connector_usable(),
                ConnectError::Active => !error.is_connector_usable(),
                _ => false,
            };
            assert!(is_told, "{answer:?}: {again:?}");
        }
    }
    is_as_good_as_before(&adapter, &queue_pair, kept).await;
    // None of them has reached the peer.
    assert!(futures::FutureExt::now_or_never(listener.request()).is_none());
    drop((queue_pair, listener, adapter));
    nothing_is_left().await;
}

// HW-13: the port that the driver finds taken was of our own choice, so the next one is as good. One that the caller has bound
// is not replaced.
#[tokio::test]
async fn port_taken_at_driver_is_replaced() {
    if !alone(module_path!(), "port_taken_at_driver_is_replaced") {
        return;
    }
    let Some(_) = fake("reset") else { return };
    let adapter = adapter();
    if !adapter.info().iwarp {
        return skipped("only the drivers of iWARP cards choose the port in the call");
    }
    let queue_pair = queue_pair(&adapter);
    let kept = queue_pair.receive(room(&adapter, 8)).expect("posted");
    let answer = (CONNECT, CmEvent::CONNECT_ERROR, -libc::EADDRINUSE);
    let bound = adapter.connector();
    bound.bind((v4(), 0).into()).expect("bound");
    let (_listener, peer) = listening(&adapter);
    let error = answered(&bound, &queue_pair, peer, answer).await;
    assert!(matches!(error, ConnectError::AddressAlreadyExists { .. }), "{error:?}");
    assert_eq!(error.status(), Status::ADDRESS_ALREADY_EXISTS);
    fake(&format!("answer {} {} {}", answer.0, answer.1.code(), answer.2));
    is_as_good_as_before(&adapter, &queue_pair, kept).await;
    assert_eq!(fake("calls rdma_connect"), Some(3));
    drop((queue_pair, bound, adapter));
}
