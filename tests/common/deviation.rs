//! Differences between devices, as their adapters announce them, and assertions that take them into account. Behaviour
//! without an announced difference is asserted in the same way on every device.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, MaybeDone, maybe_done};
use tokio::task::JoinHandle;
use tokio_rdma::error::{AcceptError, ConnectError, Reason, Retained};
use tokio_rdma::status::porting::{CmEvent, Outcome};
use tokio_rdma::{
    AcceptParams, Adapter, ConnectParams, Connection, DisconnectReason, PrivateData, QueuePair, Reply, Status,
};

use super::cm::{abandon, assert_usable, outcome};
use super::device::{Device, nobody};
use super::raw::terminated;
use super::{Pair, connected, listening_at, queue_pair, v4, within};

/// Asserts that the application of the peer has rejected, as far as the wire shows it: on iWARP devices only the data
/// does (ERR-10).
#[track_caller]
pub fn assert_rejected(adapter: &Adapter, error: &ConnectError) {
    let unheard = adapter.info().iwarp && !Device::under_test().is_soft() && error.private_data().is_empty();
    assert!(matches!(error, ConnectError::Rejected { .. }) != unheard, "{error:?}");
    assert!(error.is_retryable() == unheard && error.is_connector_usable(), "{error:?}");
    assert_eq!(error.status(), Status::CONNECTION_REFUSED);
}

/// Asserts that the peer could not take the connection for now: a later attempt may succeed, without data (ERR-10).
#[track_caller]
pub fn assert_refused_for_now(error: &ConnectError) {
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    assert!(error.is_retryable() && error.is_connector_usable(), "{error:?}");
    assert_eq!((error.status(), error.private_data()), (Status::CONNECTION_REFUSED, &[][..]));
    // An iWARP card has the same event for this as for a missing listener.
    let unheard = Device::under_test() == Device::FakeIwarp;
    assert_eq!(error.outcome(), if unheard { Outcome::NoListener } else { Outcome::PeerUnable });
}

/// Returns whether there are three phases: an accept waits for the peer's `complete()`. With two phases, a request that
/// has been answered is connected.
pub fn three_phase(adapter: &Adapter) -> bool {
    adapter.info().three_phase
}

/// Returns whether the passive side may be the first to send.
pub fn passive_sends_first(adapter: &Adapter) -> bool {
    adapter.info().passive_sends_first
}

/// Returns whether a request that the peer finds in violation is the one that reports it, the others being cancelled.
pub fn per_request_errors(adapter: &Adapter) -> bool {
    adapter.info().per_request_errors
}

/// Returns whether an accept may agree to fewer inbound reads than it was offered.
pub fn accept_limits_reads(adapter: &Adapter) -> bool {
    adapter.info().accept_limits_reads
}

/// Returns whether a read needs registered memory, and prints that a test which reads into a buffer is skipped.
pub fn lacks_buffer_sinks(adapter: &Adapter) -> bool {
    let lacks = adapter.info().read_sink_required;
    if lacks {
        eprintln!("skipped: a read needs memory with READ_SINK here");
    }
    lacks
}

/// Returns how long a peer may take to accept.
pub fn answer_timeout(adapter: &Adapter) -> Option<Duration> {
    adapter.info().answer_timeout
}

/// Returns the most data that goes with the reject of a request.
pub fn max_reject_data(adapter: &Adapter) -> usize {
    adapter.info().max_reject_data
}

/// Asserts that the data is as it was sent: exactly, or with zeros at its end if the adapter pads it (PD-06, ERR-06).
#[track_caller]
pub fn assert_data(adapter: &Adapter, found: &PrivateData, sent: &[u8]) {
    assert_bytes(adapter, found, sent);
    assert_eq!(found.is_exact(), adapter.info().exact_private_data, "the data says itself what it is");
}

/// Asserts that data in an error is as it was sent, exactly or padded with zeros; an error without data has no bytes.
#[track_caller]
pub fn assert_bytes(adapter: &Adapter, found: &[u8], sent: &[u8]) {
    if adapter.info().exact_private_data {
        assert_eq!(found, sent);
        return;
    }
    assert!(found.len() >= sent.len() && found.starts_with(sent), "{found:?} begins with {sent:?}");
    assert!(found[sent.len()..].iter().all(|byte| *byte == 0), "{found:?} is padded with zeroes");
}

/// The outcome of an accept.
pub type Accepted = Result<Connection, AcceptError>;

/// An accept whose peer has the reply and says no to it, or goes: it is refused. Where there are two phases it was a
/// connection by then, which the peer ends.
// X1, ERR-06
pub async fn assert_refused(adapter: &Adapter, accept: impl Future<Output = Accepted>) {
    match within(accept).await {
        Err(error) => {
            assert!(three_phase(adapter), "there are two phases: {error:?}");
            assert!(matches!(error, AcceptError::Refused { .. }), "{error:?}");
            assert_eq!(error.status(), Status::CONNECTION_REFUSED);
        }
        Ok(connection) => {
            assert!(!three_phase(adapter), "nobody has completed");
            assert_ended(&connection).await;
        }
    }
}

/// Asserts that the peer has ended the connection, in whatever manner.
pub async fn assert_ended(connection: &Connection) {
    let reason = within(connection.disconnected()).await;
    assert!(matches!(reason, DisconnectReason::Peer | DisconnectReason::Lost { .. }), "{reason:?}");
}

/// Asserts that a complete failed because the peer left after its accept, and that the queue pair is free. On a device
/// that reports the peer's end late, there was a connection for a moment, and the queue pair is used up (CM-21, CM-28,
/// ERR-06).
pub async fn assert_abandoned(
    adapter: &Adapter,
    completed: Result<Connection, ConnectError>,
    queue_pair: &QueuePair,
) {
    match completed {
        Err(error) => {
            assert!(
                matches!(error, ConnectError::Aborted { .. }) && !error.is_connector_usable(),
                "{error:?}"
            );
            assert_eq!(error.status(), Status::CONNECTION_ABORTED);
            assert_usable(adapter, queue_pair).await;
        }
        Ok(connection) => {
            assert!(!detects_withdrawal(adapter), "nobody is there");
            assert_ended(&connection).await;
            assert_used_up(adapter, queue_pair).await;
        }
    }
}

/// An accept of a request that its peer has withdrawn: aborted. A device whose last word to a peer that waits is always the
/// same says refused; where there are two phases there may be a connection for a moment.
// P10, LS-15
pub async fn assert_withdrawn<H: std::fmt::Debug>(
    adapter: &Adapter,
    accepted: Result<Connection, Retained<AcceptError, H>>,
) {
    match accepted {
        Err(retained) => {
            let aborted = matches!(retained.error, AcceptError::Aborted { .. });
            let refused = matches!(retained.error, AcceptError::Refused { .. });
            assert!(aborted || (refused && !detects_withdrawal(adapter)), "{retained:?}");
            let expected = if aborted { Status::CONNECTION_ABORTED } else { Status::CONNECTION_REFUSED };
            assert_eq!(retained.status(), expected);
            // LS-16: burnt.
            assert!(retained.handle.is_none());
        }
        Ok(connection) => {
            assert!(!three_phase(adapter), "nobody has completed");
            assert_ended(&connection).await;
        }
    }
}

/// Asserts that a connect whose peer accepts and then disconnects was connected. With two phases the end may come
/// before `complete()`, which then fails.
pub fn assert_connected<T>(adapter: &Adapter, outcome: Result<T, ConnectError>) -> Option<T> {
    match outcome {
        Ok(connection) => Some(connection),
        Err(error) => {
            assert!(!three_phase(adapter) && matches!(error, ConnectError::Aborted { .. }), "{error:?}");
            None
        }
    }
}

/// Asserts that the queue pair of a failed accept is free. With two phases it was connected, so it is used up (CM-21,
/// ERR-06).
pub async fn assert_unused(adapter: &Adapter, passive: &QueuePair) {
    if three_phase(adapter) {
        assert_usable(adapter, passive).await;
    } else {
        assert_used_up(adapter, passive).await;
    }
}

/// Asserts that the queue pair was connected before, and so cannot be connected again (DIS-10).
pub async fn assert_used_up(adapter: &Adapter, queue_pair: &QueuePair) {
    let connector = adapter.connector();
    let again = connector.connect(queue_pair, nobody(v4()), ConnectParams::default());
    let error = within(again).await.expect_err("it was connected");
    assert!(matches!(error, ConnectError::QueuePairActive), "{error:?}");
}

/// Returns whether a reject finds out that its peer has gone.
pub fn detects_withdrawal(adapter: &Adapter) -> bool {
    adapter.info().detects_withdrawal
}

/// Returns whether the messages by which a peer connects and leaves may overtake each other. InfiniBand's are
/// datagrams, which the kernel handles on several processors.
pub fn may_overtake(adapter: &Adapter) -> bool {
    three_phase(adapter) && !detects_withdrawal(adapter)
}

/// Returns whether the adapter's limit has ended this connect, which began at `begun` or later. A test that lets a
/// request wait allows for it: the limit may pass between any two of its steps if the machine stands still (ERR-06).
pub fn is_overdue(adapter: &Adapter, begun: Instant, error: &ConnectError) -> bool {
    let timed_out = matches!(error, ConnectError::TimedOut { .. });
    timed_out && answer_timeout(adapter).is_some_and(|limit| begun.elapsed() >= limit)
}

/// Asserts the status of the request that the peer found in violation. If the adapter does not know which one it was,
/// it is cancelled with the others, or has some other failure.
#[track_caller]
pub fn assert_blamed(adapter: &Adapter, found: Status, expected: Status, case: &str) {
    if per_request_errors(adapter) {
        assert_eq!(found, expected, "{case}");
    } else {
        assert_ne!(found, Status::SUCCESS, "{case}: {expected:?} would be the right one");
    }
}

/// Asserts that both ends lose the connection over a request of the active side with this status; on soft the peer has
/// sent the reason in a Terminate (layer, type, code).
pub async fn assert_broken(adapter: &Adapter, pair: &Pair, status: Status, why: (u8, u8, u8), case: &str) {
    if Device::under_test().is_soft() {
        assert_eq!(terminated(&pair.active.connection).await, (status, false, why), "{case}");
        let (_, sent, said) = terminated(&pair.passive.connection).await;
        return assert_eq!((sent, said), (true, why), "{case}");
    }
    match within(pair.active.connection.disconnected()).await {
        DisconnectReason::Lost { status: found, .. } => assert_blamed(adapter, found, status, case),
        // An adapter that cannot blame a request may also report the peer's Terminate as an orderly end.
        DisconnectReason::Peer => assert!(!per_request_errors(adapter), "{case}: {status:?} is no goodbye"),
        other => panic!("{other:?}"),
    }
    assert_ended(&pair.passive.connection).await;
}

/// Has the active side say the first word where it must, into a receive of the passive side that is posted here.
pub async fn speak_first(active: (&Adapter, &QueuePair), passive: (&Adapter, &QueuePair)) {
    if passive_sends_first(active.0) {
        return;
    }
    let receive = passive.1.receive(passive.0.buffer(1).expect("memory")).expect("posted");
    let send = active.1.send(active.0.buffer_from(b"!").expect("memory")).expect("posted");
    let ((sent, _), (received, _)) = within(async { tokio::join!(send, receive) }).await;
    sent.expect("sent");
    received.expect("received");
}

/// An accept that is polled along with the connect that it answers.
pub struct Offer<'a>(Pin<Box<MaybeDone<BoxFuture<'a, Accepted>>>>);

impl<'a> Offer<'a> {
    pub fn new(accept: impl Future<Output = Accepted> + Send + 'a) -> Self {
        let accept: BoxFuture<'a, Accepted> = Box::pin(accept);
        Self(Box::pin(maybe_done(accept)))
    }

    /// Polls both sides until the connect is answered. With three phases, the accept goes on waiting.
    pub async fn answered(
        &mut self,
        adapter: &Adapter,
        connect: impl Future<Output = Result<Reply, ConnectError>>,
    ) -> Reply {
        let mut connect = pin!(connect);
        let answered = std::future::poll_fn(|cx| {
            let accepted = self.0.as_mut().poll(cx).is_ready();
            assert!(!accepted || !three_phase(adapter), "accepted before complete");
            connect.as_mut().poll(cx)
        });
        within(answered).await.expect("the peer accepts")
    }

    /// Waits for the accept.
    pub async fn outcome(mut self) -> Accepted {
        self.0.as_mut().await;
        self.0.as_mut().take_output().expect("taken once")
    }
}

/// Drops an accept that the peer has had an answer of; where there are two phases it has become a connection.
pub async fn take_back(adapter: &Adapter, accepting: JoinHandle<Accepted>) {
    if three_phase(adapter) {
        abandon(accepting).await;
    } else {
        drop(outcome(accepting).await.expect("accepted"));
    }
}

/// Asserts that the reason is that of a refusal without a listener, in the form of each device (CM-33).
#[track_caller]
pub fn assert_is_no_listener(reason: &Reason) {
    let expected = match Device::under_test() {
        // A connect over TCP has the error number of TCP.
        Device::Soft | Device::Sim | Device::Siw => Reason::Errno(libc::ECONNREFUSED),
        // Over an iWARP card the word comes as an event.
        Device::FakeIwarp => Reason::Cm { event: CmEvent::REJECTED, status: -libc::ECONNREFUSED },
        // Invalid service id.
        Device::Rxe | Device::Fake => Reason::Cm { event: CmEvent::REJECTED, status: 8 },
    };
    assert_eq!(*reason, expected);
}

/// Asserts that the reason is that of a rejection by the peer's application, in the form of each device (CM-33).
#[track_caller]
pub fn assert_is_reject(reason: &Reason) {
    let expected = match Device::under_test() {
        Device::Soft | Device::Sim => Reason::MpaReject,
        // Consumer defined.
        Device::Rxe | Device::Fake => Reason::Cm { event: CmEvent::REJECTED, status: 28 },
        Device::Siw => Reason::Cm { event: CmEvent::REJECTED, status: -libc::ECONNRESET },
        Device::FakeIwarp => Reason::Cm { event: CmEvent::REJECTED, status: -libc::ECONNREFUSED },
    };
    assert_eq!(*reason, expected);
}

/// Waits until everything that the peer can learn of this side's actions has reached it, unless messages overtake each
/// other.
pub async fn word_has_spread(adapter: &Adapter) {
    let pair = connected(adapter).await;
    within(pair.active.connection.disconnect()).await.expect("disconnected");
}

/// Opens every adapter of the device's provider.
pub fn all_adapters() -> Vec<Adapter> {
    let provider = Device::under_test().provider();
    let ids: BTreeSet<_> =
        provider.addresses().expect("known").into_iter().filter_map(|ip| provider.resolve(ip).ok()).collect();
    assert!(!ids.is_empty(), "not even the one that is tested");
    ids.into_iter().map(|id| provider.open(id).expect("opened")).collect()
}

/// Returns whether an adapter connects to this address of its own.
pub async fn loops_back(adapter: &Adapter, ip: IpAddr) -> bool {
    let (listener, address) = listening_at(adapter, ip);
    let (active, passive) = (queue_pair(adapter), queue_pair(adapter));
    let connector = adapter.connector();
    let ends = async {
        tokio::try_join!(
            async {
                connector.connect_and_complete(&active, address, ConnectParams::default()).await.map_err(drop)
            },
            async { listener.accept_next(&passive, AcceptParams::default()).await.map_err(drop) },
        )
    };
    let Ok((near, far)) = within(ends).await else { return false };
    assert_eq!((near.peer_addr(), near.local_addr()), (far.local_addr(), far.peer_addr()));
    assert_eq!(near.peer_addr().ip(), ip);
    true
}
