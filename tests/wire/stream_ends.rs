//! Ends of a byte stream whose peer is alive and confirms nothing, or confirms and goes on.

use std::io::ErrorKind;
use std::time::Duration;

use common::raw::{self, Raw, Start};
use common::stream::listening;
use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
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

/// The key of the Read behind the last message of a stream (docs/spec/wire.md, section 8).
const LAST: u32 = 0x5374_7200;
/// The last message of an end that has not heard of the other's.
const SHUTDOWN: [u8; 4] = 0xe000_0002_u32.to_le_bytes();

/// The next frame for the peer, behind what this end grants at first.
async fn next(peer: &mut Raw) -> Option<raw::Frame> {
    loop {
        let frame = peer.message().await?;
        let is_credit = frame.opcode() == raw::SEND && frame.payload()[3] >> 5 == 4;
        if frame.opcode() != raw::WRITE && !is_credit {
            return Some(frame);
        }
    }
}

/// Shuts this end down, and has the peer confirm that.
async fn shut_down(stream: &mut RdmaStream, peer: &mut Raw) {
    let confirms = async {
        let message = next(peer).await.expect("the last message");
        assert_eq!((message.opcode(), message.payload()), (raw::SEND, &SHUTDOWN[..]));
        let read = next(peer).await.expect("the Read behind it");
        assert_eq!((read.read_size(), read.word(34), read.long(38)), (0, LAST, 0));
        peer.post(&read.answer(&[])).await;
    };
    within(async { tokio::join!(stream.shutdown(), confirms) }).await.0.expect("confirmed");
}

/// Has the peer end its direction, with a Read of this key behind the last message, and waits for the answer.
async fn peer_ends(stream: &mut RdmaStream, peer: &mut Raw, key: u32) {
    peer.post(&raw::send(1, &SHUTDOWN)).await;
    peer.post(&raw::read_request(1, (1, 0), 0, (key, 0))).await;
    assert_eq!(within(stream.read(&mut [0])).await.expect("the end of file"), 0);
    let answer = next(peer).await.expect("an answer");
    assert_eq!((answer.opcode(), answer.payload()), (raw::READ_RESPONSE, &[][..]));
}

/// Returns whether this end takes what the peer still sends, after its own end. One that has closed answers with a reset.
async fn takes(peer: &mut Raw, ulpdu: &[u8]) -> bool {
    assert_eq!(next(peer).await, None, "it has ended");
    let first = peer.stream.write_all(&raw::fpdu(ulpdu, false)).await;
    tokio::task::yield_now().await;
    let nudge = raw::fpdu(&raw::write(0, 0, &[]), false);
    first.is_ok() && peer.stream.write_all(&nudge).await.is_ok()
}

// IO-02: a reset in place of the end would be a loss. Only a peer that says so sends nothing behind its last message.
#[tokio::test]
async fn an_end_waits_for_a_peer_that_may_send() {
    for (key, waits) in [(0, true), (LAST, false)] {
        for ends_first in [false, true] {
            let (mut stream, mut peer) = accepted(SoftConfig::default(), StreamConfig::default()).await;
            if ends_first {
                shut_down(&mut stream, &mut peer).await;
                peer_ends(&mut stream, &mut peer, key).await;
                drop(stream);
            } else {
                peer_ends(&mut stream, &mut peer, key).await;
                let confirms = async {
                    // Behind a Disconnect: both have ended.
                    let message = next(&mut peer).await.expect("the last message");
                    assert_eq!(message.payload(), 0xe000_0000_u32.to_le_bytes());
                    let read = peer.message().await.expect("the Read behind it");
                    assert_eq!(read.word(34), LAST);
                    peer.post(&read.answer(&[])).await;
                };
                drop(stream);
                confirms.await;
            }
            assert_eq!(within(takes(&mut peer, &raw::write(0, 0, &[]))).await, waits, "{key} {ends_first}");
        }
    }
}

const PATH_TIMEOUT: Duration = Duration::from_secs(10);

// IO-02: an answer that the peer owes comes behind all that it sends, and is not met by a reset.
#[tokio::test]
async fn an_end_waits_for_the_answer_to_its_question() {
    let soft = SoftConfig::default().path_timeout(Some(PATH_TIMEOUT));
    let (mut stream, mut peer) = accepted(soft, StreamConfig::default()).await;
    shut_down(&mut stream, &mut peer).await;
    tokio::time::pause();
    let question = peer.message().await.expect("a question to a silent peer");
    assert_eq!((question.read_size(), question.word(34)), (0, 0));
    tokio::time::resume();
    peer_ends(&mut stream, &mut peer, LAST).await;
    drop(stream);
    assert!(within(takes(&mut peer, &question.answer(&[]))).await);
}

// SEC-04, IO-09: behind both ends no question is asked, as the peer may have closed: the end of the socket is the question.
#[tokio::test]
async fn a_silent_peer_of_a_stream_that_is_over_is_noticed() {
    for answers in [true, false] {
        let soft = SoftConfig::default().path_timeout(Some(PATH_TIMEOUT));
        let (mut stream, mut peer) = accepted(soft, StreamConfig::default()).await;
        shut_down(&mut stream, &mut peer).await;
        peer_ends(&mut stream, &mut peer, LAST).await;
        tokio::time::pause();
        let begin = Instant::now();
        assert_eq!(peer.message().await, None, "nothing but the end");
        assert!(begin.elapsed() < PATH_TIMEOUT, "{:?}", begin.elapsed());
        let kept = (!answers).then_some(peer);
        let reason = timeout(HOUR, stream.connection().disconnected()).await.expect("it hangs");
        let is_lost = matches!(reason, DisconnectReason::Lost { reason: Reason::PathTimeout, .. });
        assert!(if answers { reason == DisconnectReason::Peer } else { is_lost }, "{reason:?}");
        assert!(begin.elapsed() < 2 * PATH_TIMEOUT, "{:?}", begin.elapsed());
        tokio::time::resume();
        drop(kept);
    }
}
