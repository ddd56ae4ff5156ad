//! The table of causes: how each end of a connection reports its end, whatever happens to it afterwards.
//!
//! Runs on: soft, sim, rxe

use common::raw::room;
use common::*;
use tokio_rdma::error::{Reason, WcError};
use tokio_rdma::status::{DeviceEvent, WcStatus};
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{Adapter, DisconnectReason, QueuePair, RemoteRegion, Status};

/// The cause, at the active end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Disconnect,
    Drop,
    Flush,
    /// A write under a key that was never given.
    Key,
    /// A message that the peer has no receive for.
    NoReceive,
    /// A message that is longer than the peer's receive.
    TooLong,
    KeyThenTooLong,
    TooLongThenKey,
    FlushThenDisconnect,
}

const CAUSES: [Cause; 9] = [
    Cause::Disconnect,
    Cause::Drop,
    Cause::Flush,
    Cause::Key,
    Cause::NoReceive,
    Cause::TooLong,
    Cause::KeyThenTooLong,
    Cause::TooLongThenKey,
    Cause::FlushThenDisconnect,
];

fn lost(status: Status, reason: Reason) -> DisconnectReason {
    DisconnectReason::Lost { status, reason }
}

/// The reasons of the active and of the passive end.
fn expected(cause: Cause) -> (DisconnectReason, DisconnectReason) {
    use DisconnectReason::{Local, Peer};

    let flushed = lost(Status::CANCELED, Reason::Local("the queue pair was flushed"));
    let first = match cause {
        Cause::KeyThenTooLong => Cause::Key,
        Cause::TooLongThenKey => Cause::TooLong,
        Cause::FlushThenDisconnect => Cause::Flush,
        first => first,
    };
    if Device::under_test().is_soft() {
        // RFC 5041 section 8: both ends know the same Terminate.
        let violation = |status, etype, code| {
            let terminate = |sent| Reason::Terminate { sent, layer: 1, etype, code };
            (lost(status, terminate(false)), lost(Status::CANCELED, terminate(true)))
        };
        return match first {
            Cause::Disconnect | Cause::Drop => (Local, Peer),
            Cause::Flush => (flushed, lost(Status::REMOTE_ERROR, Reason::Errno(libc::ECONNRESET))),
            Cause::Key => violation(Status::ACCESS_VIOLATION, 1, 0),
            Cause::NoReceive => violation(Status::REMOTE_ERROR, 2, 2),
            _ => violation(Status::REMOTE_ERROR, 2, 5),
        };
    }
    // The fake device adds its vendor error to the status, and rxe has none.
    let failed = |status, code: WcStatus| {
        let vendor_err = if Device::under_test() == Device::Fake { 0x5000 + code.code() } else { 0 };
        lost(status, Reason::Completion(WcError::new(code, vendor_err)))
    };
    match first {
        Cause::Disconnect | Cause::Drop => (Local, Peer),
        Cause::Flush => (flushed, Peer),
        // As on cards: the side that has refused a key has an event of its queue pair, IBV_EVENT_QP_ACCESS_ERR, and the receive
        // that is too short fails with IBV_WC_LOC_LEN_ERR.
        Cause::Key if Device::under_test() == Device::Fake => {
            let event = Reason::Event(DeviceEvent::QP_ACCESS_ERR);
            (failed(Status::ACCESS_VIOLATION, WcStatus::REM_ACCESS_ERR), lost(Status::CANCELED, event))
        }
        Cause::TooLong if Device::under_test() == Device::Fake => {
            let peer = failed(Status::REMOTE_ERROR, WcStatus::REM_INV_REQ_ERR);
            (peer, failed(Status::DATA_OVERRUN, WcStatus::LOC_LEN_ERR))
        }
        // rxe raises no event there, and flushes the receives.
        Cause::Key => {
            let flushed = failed(Status::CANCELED, WcStatus::WR_FLUSH_ERR);
            (failed(Status::ACCESS_VIOLATION, WcStatus::REM_ACCESS_ERR), flushed)
        }
        // Nothing has failed at the side without a receive.
        Cause::NoReceive => (failed(Status::IO_TIMEOUT, WcStatus::RNR_RETRY_EXC_ERR), Peer),
        _ => {
            let peer = failed(Status::REMOTE_ERROR, WcStatus::REM_OP_ERR);
            (peer, failed(Status::INVALID_DEVICE_REQUEST, WcStatus::LOC_QP_OP_ERR))
        }
    }
}

/// The reasons that both ends of a connection report.
async fn reported(adapter: &Adapter, cause: Cause) -> (DisconnectReason, DisconnectReason) {
    let Pair { active, passive } = connected_impatiently(adapter).await;
    let receives = if cause == Cause::NoReceive { 0 } else { 2 };
    let receives: Vec<_> =
        (0..receives).map(|_| passive.queue_pair.receive(room(adapter, 8)).expect("posted")).collect();
    let End { queue_pair, connection } = active;
    let nowhere = RemoteRegion::new(0, RemoteKey(0xdead_0001), 8);
    // Both are with the device, or in the socket, before either is answered.
    let batch = queue_pair.batch();
    let key = || batch.write(room(adapter, 8), &nowhere).expect("posted");
    let long = || batch.send(room(adapter, 16)).expect("posted");
    let requests = match cause {
        Cause::Key => vec![key()],
        Cause::NoReceive | Cause::TooLong => vec![long()],
        Cause::KeyThenTooLong => vec![key(), long()],
        Cause::TooLongThenKey => vec![long(), key()],
        Cause::Disconnect | Cause::Drop | Cause::Flush | Cause::FlushThenDisconnect => vec![],
    };
    drop(batch);
    match cause {
        Cause::Disconnect => within(connection.disconnect()).await.expect("in order"),
        Cause::Flush | Cause::FlushThenDisconnect => queue_pair.flush(),
        _ => {}
    }
    if cause == Cause::FlushThenDisconnect {
        let _ = within(connection.disconnect()).await;
    }
    let queue_pair = (cause != Cause::Drop).then_some(queue_pair);
    let found = (within(connection.disconnected()).await, within(passive.connection.disconnected()).await);
    drop((requests, receives));
    // Nothing that comes later is a cause.
    queue_pair.iter().chain([&passive.queue_pair]).for_each(QueuePair::flush);
    for end in [&connection, &passive.connection] {
        let _ = within(end.disconnect()).await;
    }
    let again = (within(connection.disconnected()).await, within(passive.connection.disconnected()).await);
    assert_eq!(found, again, "{cause:?}");
    found
}

// SEC-11: see `lost`, and `path`, `peers` and `keepalive` of the other programs, for peers and paths that fail.
#[tokio::test]
async fn each_end_reports_the_first_cause() {
    let adapter = adapter();
    for cause in CAUSES {
        assert_eq!(reported(&adapter, cause).await, expected(cause), "{cause:?}");
    }
}
