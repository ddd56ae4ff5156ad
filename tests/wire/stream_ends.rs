//! Ends of a byte stream whose peer is alive and confirms nothing.

use std::io::ErrorKind;
use std::time::Duration;

use common::raw::{self, Raw, Start};
use common::stream::listening;
use common::*;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout};
use tokio_rdma::error::{Reason, StreamBroken};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{DisconnectReason, RdmaStream, StreamConfig};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// The accepted end of a stream, and its peer.
async fn accepted(soft: SoftConfig, config: StreamConfig) -> (RdmaStream, Raw) {
    let adapter = adapter_with(soft);
    let listener = listening(&adapter, &config);
    let peer = async {
        let mut peer = Raw::dial(listener.local_addr().expect("bound")).await;
        peer.say(&Start::peer_to_peer(16, 16).data(&raw::STREAM).encode(raw::REQUEST_KEY)).await;
        peer.start_frame(raw::REPLY_KEY).await;
        peer.post(&raw::write(0, 0, &[])).await;
        peer
    };
    let (peer, stream) = within(async { tokio::join!(peer, listener.accept()) }).await;
    (stream.expect("accepted").0, peer)
}

/// Says now and then that it lives, and reads nothing. Returns when this end has closed.
async fn live(peer: &mut Raw) {
    while peer.stream.write_all(&raw::fpdu(&raw::write(0, 0, &[]), false)).await.is_ok() {
        tokio::time::sleep(SECOND).await;
    }
}

// IO-03: without a limit such a peer would keep a server that awaits the end of its connections.
#[tokio::test]
async fn shutdown_ends_without_a_confirmation() {
    const LIMIT: Duration = Duration::from_secs(30);
    let config = StreamConfig::default().close_timeout(LIMIT);
    let (mut stream, mut peer) = accepted(SoftConfig::default().path_timeout(None), config).await;
    stream.write_all(b"the answer").await.expect("written");
    tokio::time::pause();
    for _ in 0..2 {
        let begin = Instant::now();
        let shutdown = async { timeout(HOUR, stream.shutdown()).await.expect("it hangs") };
        let outcome = tokio::select! {
            biased;
            outcome = shutdown => outcome,
            () = live(&mut peer) => panic!("the connection lasts"),
        };
        assert_eq!(outcome.expect_err("nothing is confirmed").kind(), ErrorKind::TimedOut);
        assert!((LIMIT..LIMIT + SECOND).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    }
    tokio::time::resume();
    // The stream is not broken by it.
    let answers = async {
        loop {
            let frame = peer.message().await.expect("the connection lasts");
            if frame.opcode() == raw::READ_REQUEST {
                return peer.post(&frame.answer(&[])).await;
            }
        }
    };
    let (outcome, ()) = within(async { tokio::join!(stream.shutdown(), answers) }).await;
    outcome.expect("it is confirmed now");
}

// IO-03: one task has the limits of all streams, and one that begins later may end first.
#[tokio::test]
async fn shutdowns_end_at_their_own_limits() {
    let [long, short] = [30, 5].map(Duration::from_secs);
    let ends = |limit| {
        accepted(SoftConfig::default().path_timeout(None), StreamConfig::default().close_timeout(limit))
    };
    let ((mut first, mut its_peer), (mut second, mut other_peer)) = (ends(long).await, ends(short).await);
    tokio::time::pause();
    let begin = Instant::now();
    let shut_down = async |stream: &mut RdmaStream, pause| {
        tokio::time::sleep(pause).await;
        (stream.shutdown().await.expect_err("nothing is confirmed").kind(), begin.elapsed())
    };
    let shutdowns =
        async { tokio::join!(shut_down(&mut first, Duration::ZERO), shut_down(&mut second, SECOND)) };
    let outcomes = tokio::select! {
        biased;
        outcomes = timeout(HOUR, shutdowns) => outcomes.expect("one hangs"),
        () = live(&mut its_peer) => panic!("the connection lasts"),
        () = live(&mut other_peer) => panic!("the connection lasts"),
    };
    for ((kind, passed), limit) in [(outcomes.0, long), (outcomes.1, SECOND + short)] {
        assert_eq!(kind, ErrorKind::TimedOut);
        // The acknowledgement of the end itself may be progress.
        assert!((limit..2 * limit + SECOND).contains(&passed), "{passed:?}");
    }
}

// SEC-04: bytes of the peer are no answer to a read that its kernel has.
#[tokio::test]
async fn a_peer_that_answers_no_read_is_lost() {
    const PATH_TIMEOUT: Duration = Duration::from_secs(30);
    let config = StreamConfig::default().close_timeout(HOUR);
    let (mut stream, mut peer) =
        accepted(SoftConfig::default().path_timeout(Some(PATH_TIMEOUT)), config).await;
    tokio::time::pause();
    let begin = Instant::now();
    let error = tokio::select! {
        biased;
        outcome = timeout(HOUR, stream.shutdown()) => outcome.expect("it hangs").expect_err("no answer"),
        () = live(&mut peer) => panic!("the shutdown comes first"),
    };
    let broken = error.get_ref().and_then(|inner| inner.downcast_ref::<StreamBroken>());
    let lost = |reason: &DisconnectReason| {
        matches!(reason, DisconnectReason::Lost { reason: Reason::PathTimeout, .. })
    };
    assert!(matches!(broken, Some(StreamBroken::Connection(reason)) if lost(reason)), "{error:?}");
    assert!((2 * PATH_TIMEOUT..3 * PATH_TIMEOUT).contains(&begin.elapsed()), "{:?}", begin.elapsed());
}
