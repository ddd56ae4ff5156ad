//! The end of a connection with a peer that violates the protocol, and the reported reasons.

use common::life::*;
use common::*;

use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use tokio::io::AsyncWriteExt;
use tokio_rdma::error::{DisconnectError, Reason};
use tokio_rdma::mr::RemoteRegion;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{Buffer, DisconnectReason, Op, Status};

/// The limit of a disconnect.
const IMPATIENCE: Duration = Duration::from_millis(50);

/// Opens an adapter with a short limit for the answer to a disconnect.
fn impatient() -> tokio_rdma::Adapter {
    adapter_with(SoftConfig::default().disconnect_timeout(IMPATIENCE))
}

/// Posts a read that the peer never answers.
fn read_of_nobody(end: &End, adapter: &tokio_rdma::Adapter) -> Op<Buffer> {
    let remote = RemoteRegion::new(0, RemoteKey(1), 64);
    end.queue_pair.read(adapter.buffer_from(&[7; 64]).expect("memory"), &remote).expect("posted")
}

// `disconnect` returns when the peer has closed its side as well, and every request has completed by then (DIS-01).
#[tokio::test]
async fn disconnect_waits_for_peer_and_returns_all_buffers() {
    let adapter = adapter();
    let (end, mut peer) = connected_to_raw(&adapter).await;
    let receive = end.queue_pair.receive(adapter.buffer_from(&[9; 64]).expect("memory")).expect("posted");
    let read = read_of_nobody(&end, &adapter);
    let mut disconnect = Box::pin(end.connection.disconnect());
    assert!(poll_once(&mut disconnect).is_pending());
    // The peer has received the end of the stream, which alone completes nothing.
    peer.end().await.expect("an orderly end of stream");
    assert!(poll_once(&mut disconnect).is_pending(), "the peer has not answered");
    drop(peer);
    assert_eq!(within(disconnect).await, Ok(()));
    // Now, not later.
    let (outcome, buffer) = receive.now_or_never().expect("finished");
    assert_eq!((outcome.expect_err("flushed").status(), &buffer[..]), (Status::CANCELED, &[9; 64][..]));
    let (outcome, buffer) = read.now_or_never().expect("finished");
    assert_eq!((outcome.expect_err("flushed").status(), &buffer[..]), (Status::CANCELED, &[7; 64][..]));
}

// Reads without an answer and the requests queued behind them complete with CANCELED (DIS-06).
#[tokio::test]
async fn requests_left_by_the_peer_are_flushed() {
    let adapter = adapter();
    let (end, mut peer) = connected_to_raw(&adapter).await;
    let mut operations: Vec<Op<Buffer>> = (0..20).map(|_| read_of_nobody(&end, &adapter)).collect();
    // Behind more reads than may be in flight: they wait.
    for i in 0..20_u8 {
        let buffer = |byte: u8| adapter.buffer_from(&vec![byte; 1 << 16]).expect("memory");
        let remote = RemoteRegion::new(0, RemoteKey(1), 1 << 16);
        operations.push(end.queue_pair.send(buffer(i)).expect("posted"));
        operations.push(end.queue_pair.write(buffer(i), &remote).expect("posted"));
    }
    let count = operations.len();
    // An orderly end of stream; to close with unread bytes would be a reset.
    peer.0.shutdown().await.expect("shut down");
    let mut canceled = 0;
    for operation in operations {
        let (outcome, buffer) = within(operation).await;
        canceled += usize::from(outcome.expect_err("flushed").status() == Status::CANCELED);
        assert!(buffer.iter().all(|byte| *byte == buffer[0]), "as it was posted");
    }
    assert_eq!(canceled, count, "none of them is to blame");
    assert_eq!(within(end.connection.disconnected()).await, DisconnectReason::Peer);
}

// `disconnect` fails after the limit of the adapter on both sides, and the receives have completed by then (DIS-14).
#[tokio::test]
async fn unanswered_disconnect_times_out() {
    let adapter = impatient();
    for passive in [false, true] {
        let (end, peer) =
            if passive { accepted_from_raw(&adapter).await } else { connected_to_raw(&adapter).await };
        let receive = end.queue_pair.receive(adapter.buffer(64).expect("memory")).expect("posted");
        let error = within(end.connection.disconnect()).await.expect_err("no answer");
        assert_eq!(
            (&error, error.status()),
            (&DisconnectError::TimedOut { limit: IMPATIENCE }, Status::IO_TIMEOUT)
        );
        let (outcome, _) = receive.now_or_never().expect("finished with the disconnect");
        assert_eq!(outcome.expect_err("flushed").status(), Status::CANCELED);
        assert_eq!(end.connection.disconnected().now_or_never(), Some(DisconnectReason::Local));
        assert_eq!(end.connection.disconnect().await, Err(DisconnectError::Invalid), "it is over");
        drop(peer);
    }
}

// The limit of `disconnect` holds while sends fill the socket of a peer that does not read (DIS-14).
#[tokio::test]
async fn disconnect_limit_holds_with_a_full_socket() {
    let adapter = impatient();
    let (end, peer) = connected_to_raw(&adapter).await;
    // More than both sockets hold, to a peer that does not read.
    let sends: Vec<_> = (0..4)
        .map(|i| {
            let buffer = adapter.buffer_from(&vec![i; 8 << 20]).expect("memory");
            end.queue_pair.send(buffer).expect("posted")
        })
        .collect();
    let error = within(end.connection.disconnect()).await.expect_err("no answer");
    assert_eq!(error, DisconnectError::TimedOut { limit: IMPATIENCE });
    let last = sends.into_iter().next_back().expect("four");
    let (outcome, buffer) = last.now_or_never().expect("finished with the disconnect");
    assert_eq!(outcome.expect_err("not sent").status(), Status::CANCELED);
    assert!(buffer.len() == 8 << 20 && buffer.iter().all(|byte| *byte == 3), "as it was posted");
    drop(peer);
}

// A connection whose handles are dropped closes in the background, and is reset after the same limit (DIS-14).
#[tokio::test]
async fn dropped_connection_is_reset_after_the_limit() {
    let (end, mut peer) = connected_to_raw(&impatient()).await;
    drop(end);
    // First the orderly end of stream, then, unanswered, the reset.
    peer.end().await.expect("an orderly end");
    within(async {
        while peer.0.write_all(&[0; 64]).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

// `Connection::cancel` completes a pending `disconnect` and ends the connection (CAN-01).
#[tokio::test]
async fn a_disconnect_can_be_cancelled() {
    let adapter = adapter();
    let (end, peer) = connected_to_raw(&adapter).await;
    let receive = end.queue_pair.receive(adapter.buffer(64).expect("memory")).expect("posted");
    let mut disconnect = Box::pin(end.connection.disconnect());
    assert!(poll_once(&mut disconnect).is_pending());
    end.connection.cancel();
    assert_eq!(poll_once(&mut disconnect), Poll::Ready(Err(DisconnectError::Canceled)));
    // The cancel has ended the connection, although no `disconnect` waits.
    assert_eq!(within(receive).await.0.expect_err("flushed").status(), Status::CANCELED);
    assert_eq!(end.connection.disconnect().await, Err(DisconnectError::Invalid));
    drop(peer);
}

// A reset is reported with its errno, and a stream that ends within a frame as such (DIS-15, SEC-11).
#[tokio::test]
async fn the_reason_tells_what_broke_it() {
    let adapter = adapter();
    let reset = Reason::Errno(libc::ECONNRESET);
    let cut = Reason::Local("the stream ended within a frame");
    for passive in [false, true] {
        let made = async || {
            if passive { accepted_from_raw(&adapter).await } else { connected_to_raw(&adapter).await }
        };
        let (end, peer) = made().await;
        peer.reset();
        let expected = DisconnectReason::Lost { status: Status::REMOTE_ERROR, reason: reset };
        assert_eq!(within(end.connection.disconnected()).await, expected);

        let (end, mut peer) = made().await;
        // The start of a Write of more bytes than follow.
        peer.0.write_all(&[0x01, 0x00, 0xc1, 0x40]).await.expect("sent");
        drop(peer);
        let expected = DisconnectReason::Lost { status: Status::REMOTE_ERROR, reason: cut };
        assert_eq!(within(end.connection.disconnected()).await, expected);
    }
}

// SEC-11: a write meets the reset while the reader is within a frame. The table of causes is the tests around this one.
#[tokio::test]
async fn first_cause_of_a_loss_is_reported() {
    let adapter = adapter();
    for passive in [false, true] {
        let (end, mut peer) =
            if passive { accepted_from_raw(&adapter).await } else { connected_to_raw(&adapter).await };
        // The start of a Write of more bytes than follow.
        peer.0.write_all(&[0x01, 0x00, 0xc1, 0x40]).await.expect("sent");
        let buffer = || adapter.buffer(4 << 20).expect("memory");
        let sends: Vec<_> = (0..4).map(|_| end.queue_pair.send(buffer()).expect("posted")).collect();
        peer.reset();
        let reason = within(end.connection.disconnected()).await;
        let expected = Reason::Errno(libc::ECONNRESET);
        assert_eq!(reason, DisconnectReason::Lost { status: Status::REMOTE_ERROR, reason: expected });
        drop(sends);
    }
}

// Both ends keep the layer, the type and the code of a Terminate, and which end sent it (DIS-15, SEC-11).
#[tokio::test]
async fn disconnect_reason_keeps_terminate_at_both_ends() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let nowhere = RemoteRegion::new(0, RemoteKey(0xdead_0001), 8);
    let write = active.queue_pair.write(adapter.buffer(8).expect("memory"), &nowhere).expect("posted");
    // RFC 5041 section 7.1: a tagged buffer error (DDP, type 1), code 0: invalid STag.
    for (end, by_us) in [(&passive, true), (&active, false)] {
        match within(end.connection.disconnected()).await {
            DisconnectReason::Lost { reason: Reason::Terminate { sent, layer, etype, code }, .. } => {
                assert_eq!((sent, layer, etype, code), (by_us, 1, 1, 0));
            }
            other => panic!("{other:?}"),
        }
    }
    drop(write);
}

// The message completed early, and the `disconnect` behind it reports its loss (ERR-08).
#[tokio::test]
async fn unreceived_message_fails_the_later_disconnect() {
    let adapter = adapter();
    for _ in 0..20 {
        let Pair { active, passive } = connected(&adapter).await;
        let sent = active.queue_pair.send(adapter.buffer(64).expect("memory")).expect("posted");
        within(sent).await.0.expect("sent");
        let outcome = within(active.connection.disconnect()).await;
        let Err(DisconnectError::Lost { reason, .. }) = outcome else { panic!("{outcome:?}") };
        // RFC 5041 section 7.1: an untagged buffer error (DDP, type 2), code 2: no receive was posted.
        let expected = Reason::Terminate { sent: false, layer: 1, etype: 2, code: 2 };
        assert_eq!(reason, expected);
        drop(passive);
    }
}

// A reset after the end of the stream is a loss, not the peer's side of the disconnect (ERR-08).
#[tokio::test]
async fn a_reset_is_no_answer_to_a_disconnect() {
    let adapter = adapter();
    let (end, mut peer) = connected_to_raw(&adapter).await;
    let mut disconnect = Box::pin(end.connection.disconnect());
    assert!(poll_once(&mut disconnect).is_pending());
    peer.end().await.expect("told");
    peer.reset();
    let outcome = within(disconnect).await;
    let Err(DisconnectError::Lost { reason, .. }) = outcome else { panic!("{outcome:?}") };
    assert_eq!(reason, Reason::Errno(libc::ECONNRESET));
}

// Bytes that arrive after the disconnect of this end are discarded, even if they are no frame (DIS-08).
#[tokio::test]
async fn words_that_cross_the_goodbye_are_swallowed() {
    let adapter = adapter();
    let (end, mut peer) = connected_to_raw(&adapter).await;
    let mut disconnect = Box::pin(end.connection.disconnect());
    assert!(poll_once(&mut disconnect).is_pending());
    peer.end().await.expect("told");
    // These bytes are no frame, and this end reads none after its disconnect.
    peer.0.write_all(&[0xff; 70_000]).await.expect("sent");
    drop(peer);
    assert_eq!(within(disconnect).await, Ok(()));
    assert_eq!(end.connection.disconnected().await, DisconnectReason::Local);
}

// ERR-08: a loss while this side disconnects is no agreement of the peer either.
#[test]
fn a_disconnect_whose_runtime_ends_tells_the_loss() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().expect("a runtime")
    };
    let home = runtime();
    // The peer receives the end of the stream and does not answer.
    let (end, _peer) = home.block_on(async { connected_to_raw(&adapter()).await });
    let mut disconnect = Box::pin(end.connection.disconnect());
    assert!(poll_once(&mut disconnect).is_pending());
    drop(home);
    runtime().block_on(async {
        let error = within(disconnect).await.expect_err("nobody has agreed");
        assert!(matches!(error, DisconnectError::Lost { reason: Reason::Local(_), .. }), "{error:?}");
        assert_eq!(
            end.connection.disconnected().await,
            DisconnectReason::Local,
            "it was the first to end it"
        );
        let again = end.connection.disconnect().await.expect_err("over");
        assert_eq!(again, error);
    });
}
