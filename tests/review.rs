//! Moments at which the engine could get ahead of itself: memory that is still in use, a clock that counts too fast.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use common::raw::{
    self, CRC, REPLY_KEY, REQUEST_KEY, Raw, Start, bytes, raw_accepts, raw_connects, room, success,
};
use common::*;
use futures::FutureExt;
use tokio_rdma::error::ConnectError;
use tokio_rdma::mr::RemoteRegion;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{AcceptParams, Access, Buffer, ConnectParams, Op, ReadLimits};

/// More than two sockets hold between them.
const MORE_THAN_SOCKETS_HOLD: usize = 32 << 20;

// MR-01: an answer that is under way when the key is taken back says nothing of what is written afterwards.
#[tokio::test]
async fn no_byte_is_sent_once_deregistering_is_done() {
    for flags in [0, CRC] {
        let adapter = adapter();
        let start = Start::peer_to_peer(4, 4).flag(flags);
        let (_end, mut peer, _) = raw_connects(&adapter, start, AcceptParams::default()).await;
        let region = adapter.register(MORE_THAN_SOCKETS_HOLD, Access::REMOTE_READ).await.expect("registered");
        let source = (region.remote().key().0, region.remote().address());
        peer.post(&raw::read_request(1, (1, 0), MORE_THAN_SOCKETS_HOLD as u32, source)).await;
        assert!(peer.message().await.is_some(), "the answer has begun");
        region.deregister().await.expect("deregistered");
        region.write(0, &vec![0xee; MORE_THAN_SOCKETS_HOLD]).expect("as long");
        let mut received = 0;
        while let Some(frame) = peer.frame().await {
            received += frame.payload().len();
            assert!(!frame.payload().contains(&0xee), "a secret, {received} bytes into it, flags {flags:#x}");
        }
        assert!(received < MORE_THAN_SOCKETS_HOLD, "the connection ended");
    }
}

/// Polls a request right where it is woken, as the simplest of executors may.
struct Inline {
    op: Mutex<Option<Op<Buffer>>>,
    /// The buffer, or that taking it panicked.
    outcome: Mutex<Option<Result<Buffer, ()>>>,
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(self.clone());
        let Some(mut op) = self.op.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let poll = || Pin::new(&mut op).poll(&mut Context::from_waker(&waker));
        let outcome = match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Ready((_, buffer))) => Ok(buffer),
            Ok(Poll::Pending) => {
                *self.op.lock().expect("not poisoned") = Some(op);
                return;
            }
            Err(_) => Err(()),
        };
        *self.outcome.lock().expect("not poisoned") = Some(outcome);
    }
}

// CAN-09: a read that the end of the connection cuts short is given back only when nobody writes to it any more.
#[tokio::test]
async fn the_sink_of_a_read_that_was_cut_short_comes_back_itself() {
    let adapter = adapter();
    let (end, mut peer, _) = raw_accepts(&adapter, Start::peer_to_peer(4, 4)).await;
    let sink = room(&adapter, 64);
    let place = sink.as_ptr();
    let read = end.queue_pair.read(sink, &RemoteRegion::new(0, RemoteKey(7), 64)).expect("posted");
    let inline = Arc::new(Inline { op: Mutex::new(Some(read)), outcome: Mutex::new(None) });
    inline.clone().wake();
    let request = peer.message().await.expect("the Read Request");
    let answer = raw::fpdu(&request.answer(&[0xaa; 64]), false);
    peer.say(&answer[..40]).await;
    drop(peer);
    within(end.connection.disconnected()).await;
    within(async {
        while inline.outcome.lock().expect("not poisoned").is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let outcome = inline.outcome.lock().expect("not poisoned").take().expect("it finished");
    assert_eq!(outcome.expect("nobody else has it").as_ptr(), place, "the very memory");
}

// DIS-11: silence is counted from the question, and a peer that could not be asked has not been silent.
#[tokio::test]
async fn a_peer_that_was_busy_reading_gets_time_to_answer() {
    let adapter = adapter_with(SoftConfig::default().path_timeout(Some(Duration::from_secs(20))));
    let (end, mut peer, _) = raw_accepts(&adapter, Start::peer_to_peer(4, 4)).await;
    let receive = end.queue_pair.receive(room(&adapter, 8)).expect("posted");
    let long = end.queue_pair.send(room(&adapter, MORE_THAN_SOCKETS_HOLD)).expect("posted");
    // Half of the timeout passes while the socket is full, so that nothing can be asked.
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(11)).await;
    tokio::time::resume();
    while !peer.message().await.expect("the connection lives").is_last() {}
    success(long).await;
    // The next half ends: now it is asked.
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(10)).await;
    tokio::time::resume();
    let question = peer.message().await.expect("the connection lives");
    assert_eq!((question.opcode(), question.read_size()), (raw::READ_REQUEST, 0));
    peer.post(&question.answer(&[])).await;
    peer.post(&raw::send(1, b"I live")).await;
    assert_eq!(success(receive).await.0, 6);
}

// DIS-11: without reads nobody can be asked, for however long.
#[tokio::test]
async fn an_idle_connection_without_reads_lives_on() {
    let adapter = adapter_with(SoftConfig::default().path_timeout(Some(Duration::from_secs(2))));
    let connect = ConnectParams::default().read_limits(ReadLimits::NONE);
    let Pair { active, passive } = connected_with(&adapter, connect, AcceptParams::default()).await;
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(300)).await;
    tokio::time::resume();
    let receive = passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    success(active.queue_pair.send(bytes(&adapter, b"hello")).expect("posted")).await;
    assert_eq!(success(receive).await.0, 5);
}

// CM-19: whatever it was that answered, a bound connector that was refused is still bound.
#[tokio::test]
async fn a_reply_that_is_none_leaves_the_connector_bound() {
    let adapter = adapter();
    let bad_rtr = Start::enhanced(4 | raw::PEER_TO_PEER | raw::RTR_SEND, 4).encode(REPLY_KEY);
    for reply in [b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), bad_rtr] {
        let (listener, address) = Raw::listener().await;
        let queue_pair = queue_pair(&adapter);
        let connector = adapter.connector();
        connector.bind(([127, 0, 0, 1], 0).into()).expect("bound");
        let bound = connector.local_addr().expect("bound");
        // The peer does not hang up, so nothing but this side ends the stream.
        let peer = async {
            let mut peer = Raw::answer_the_phone(&listener).await;
            peer.start_frame(REQUEST_KEY).await;
            peer.say(&reply).await;
            peer
        };
        let params = ConnectParams::default();
        let (_peer, outcome) =
            within(async { tokio::join!(peer, connector.connect(&queue_pair, address, params)) }).await;
        assert!(matches!(outcome, Err(ConnectError::Refused { .. })), "{outcome:?}");
        assert_eq!(connector.local_addr(), Ok(bound), "still");
    }
}

// CM-22: two connects at once on one connector: one of them has its queue pair, and the other's is free.
#[tokio::test]
async fn of_two_connects_at_once_one_leaves_its_queue_pair_alone() {
    const ROUNDS: usize = 2000;
    let adapter = adapter();
    let (_listener, address) = Raw::listener().await;
    let start = Barrier::new(2);
    let connectors: Vec<_> = (0..ROUNDS).map(|_| adapter.connector()).collect();
    // A queue pair that is lost once fails every round from then on.
    let work = || {
        let queue_pair = queue_pair(&adapter);
        let mut good = 0;
        for connector in &connectors {
            start.wait();
            let attempt = connector.connect(&queue_pair, address, ConnectParams::default()).now_or_never();
            let first = matches!(attempt, None | Some(Err(ConnectError::Active)));
            start.wait();
            let other = adapter.connector();
            let attempt = other.connect(&queue_pair, address, ConnectParams::default()).now_or_never();
            good += usize::from(first && attempt.is_none());
        }
        good
    };
    let good = std::thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.map(|thread| thread.join().expect("no panic"))
    });
    assert_eq!(good, [ROUNDS; 2]);
}
