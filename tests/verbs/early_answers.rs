//! Messages that arrive before the accept has resolved, and are answered at once.
//!
//! Runs on: rxe, siw, fake, fake-iwarp
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use common::device::patience;
use common::life::poll_once;
use common::process::alone;
use common::raw::{bytes, room, success};
use common::results::collect;
use common::verbs::{fake, fake_reset, hold, is_device};
use common::*;
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::types::QueueKind;
use tokio_rdma::{
    AcceptParams, CompletionQueue, CompletionQueueConfig, ConnectParams, QueuePairConfig, Status, WorkOptions,
};

/// Asks the server once, on a thread and a runtime of its own. Returns the answer.
fn ask(address: SocketAddr) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let adapter = adapter();
        let queue_pair = queue_pair(&adapter);
        let receive = queue_pair.receive(room(&adapter, 16)).expect("posted");
        let connector = adapter.connector();
        let connect = connector.connect_and_complete(&queue_pair, address, ConnectParams::default());
        let connection = within(connect).await.expect("connected");
        within(queue_pair.send(bytes(&adapter, b"question")).expect("posted")).await.0.expect("sent");
        let (outcome, buffer) = within(receive).await;
        let answer = buffer[..outcome.expect("answered").bytes].to_vec();
        within(connection.disconnect()).await.expect("the server answers");
        answer
    })
}

// CM-09, QP-06: the thread of the server polls its queue and does nothing else, so that nobody learns of the establishment: the
// queue pair can send all the same, by what the message says.
#[tokio::test]
async fn a_message_is_answered_before_the_accept_resolves() {
    if !is_device() {
        return;
    }
    for shares in [false, true] {
        let adapter = adapter();
        let (listener, address) = listening(&adapter);
        let results = adapter.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
        let config = QueuePairConfig::default().receive_completions(&results).context(7);
        let receives = adapter.shared_receive_queue(Default::default()).expect("a shared receive queue");
        let config = if shares { config.shared_receives(&receives) } else { config };
        let queue_pair = adapter.queue_pair(config).expect("a queue pair");
        let post = |buffer| if shares { receives.receive(buffer) } else { queue_pair.receive(buffer) };
        let receive = post(room(&adapter, 16)).expect("posted");
        let client = thread::spawn(move || ask(address));
        let request = within(listener.request()).await.expect("a request");
        let mut accept = Box::pin(request.accept(&queue_pair, AcceptParams::default()));
        assert!(poll_once(&mut accept).is_pending());
        let (mut found, limit) = (Vec::new(), Instant::now() + patience());
        while results.poll(1, &mut found) == 0 {
            assert!(Instant::now() < limit, "no message");
        }
        assert_eq!((found[0].queue_pair_context, found[0].bytes), (7, 8));
        let answer = queue_pair.send_inline(&[b"answer"], WorkOptions::default()).expect("may be sent");
        let (_, question) = receive.take().expect("polled");
        assert_eq!(&question[..8], b"question");
        let connection = within(accept).await.expect("accepted");
        within(answer).await.0.expect("sent");
        within(connection.disconnected()).await;
        assert_eq!(client.join().expect("no panic"), b"answer");
    }
}

/// Asks the server once, on a thread and a runtime of its own, and posts no receive: the answer waits.
fn ask_in_vain(address: SocketAddr) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let adapter = adapter();
        let queue_pair = queue_pair(&adapter);
        let connector = adapter.connector();
        let connect = connector.connect_and_complete(&queue_pair, address, ConnectParams::default());
        let connection = within(connect).await.expect("connected");
        let _sent = queue_pair.send(bytes(&adapter, b"question")).expect("posted");
        within(connection.disconnected()).await;
    });
}

/// Polls until a message has come. No task of the runtime runs.
fn poll_for_message(results: &CompletionQueue) {
    let (mut found, limit) = (Vec::new(), Instant::now() + patience());
    while results.poll(1, &mut found) == 0 {
        assert!(Instant::now() < limit, "no message");
    }
}

/// Drops an accept on a thread of its own, and waits until the next queue pair of the device is being made. That call is to be held. No
/// task of the runtime runs meanwhile, or it would learn of the establishment.
fn drop_until_renewal(accept: impl Send + 'static) -> thread::JoinHandle<()> {
    let calls = fake("calls ibv_create_qp");
    let dropping = thread::spawn(move || drop(accept));
    let limit = Instant::now() + patience();
    while fake("calls ibv_create_qp") == calls {
        assert!(Instant::now() < limit, "the queue pair is not renewed");
        thread::yield_now();
    }
    dropping
}

// LS-16: an accept that is dropped leaves the receives of the queue pair as they were. The answer that was posted fails, and is no
// receive of the next connection.
#[tokio::test]
async fn an_early_answer_ends_with_its_attempt() {
    if !is_device() {
        return;
    }
    let adapter = adapter();
    if adapter.info().iwarp {
        eprintln!("skipped: an answer that finds no receive does not wait on iWARP");
        return;
    }
    let (listener, address) = listening(&adapter);
    let results = adapter.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
    let config = QueuePairConfig::default().receive_completions(&results);
    let queue_pair = adapter.queue_pair(config).expect("a queue pair");
    let [first, second] = [(); 2].map(|()| queue_pair.receive(room(&adapter, 16)).expect("posted"));
    let client = thread::spawn(move || ask_in_vain(address));
    let request = within(listener.request()).await.expect("a request");
    let mut accept = Box::pin(request.accept(&queue_pair, AcceptParams::default()));
    assert!(poll_once(&mut accept).is_pending());
    poll_for_message(&results);
    assert_eq!(&first.take().expect("polled").1[..8], b"question");
    let answer = queue_pair.send(bytes(&adapter, b"an answer")).expect("may be sent");
    drop(accept);
    let (outcome, _buffer) = within(answer).await;
    assert_eq!(outcome.expect_err("its attempt has ended").status(), Status::CANCELED);
    client.join().expect("no panic");
    // The other receive takes the message of the next connection.
    let active = common::queue_pair(&adapter);
    let (_connection, _accepted) = joined(
        adapter.connector().connect_and_complete(&active, address, ConnectParams::default()),
        listener.accept_next(&queue_pair, AcceptParams::default()),
    )
    .await;
    within(active.send(bytes(&adapter, b"next")).expect("posted")).await.0.expect("sent");
    assert_eq!(collect(&results, 1).await.len(), 1);
    let (outcome, buffer) = second.take().expect("polled");
    assert_eq!(&buffer[..outcome.expect("received").bytes], b"next");
}

// QP-05, LS-16: while a queue pair is renewed after an attempt, it keeps as many receives as it has places. An answer that has failed
// with the attempt takes none of them.
#[tokio::test]
async fn failed_early_answer_takes_no_receive_place() {
    if !alone(module_path!(), "failed_early_answer_takes_no_receive_place") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    if adapter.info().iwarp {
        eprintln!("skipped: an answer that finds no receive does not wait on iWARP");
        return;
    }
    let (listener, address) = listening(&adapter);
    let results = adapter.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
    let config = QueuePairConfig::default().receive_completions(&results).receive_depth(2);
    let queue_pair = adapter.queue_pair(config).expect("a queue pair");
    let [first, second] = [(); 2].map(|()| queue_pair.receive(room(&adapter, 16)).expect("posted"));
    let client = thread::spawn(move || ask_in_vain(address));
    let request = within(listener.request()).await.expect("a request");
    let passive = queue_pair.clone();
    let mut accept = Box::pin(async move { request.accept(&passive, AcceptParams::default()).await });
    assert!(poll_once(&mut accept).is_pending());
    poll_for_message(&results);
    assert_eq!(&first.take().expect("polled").1[..8], b"question");
    let answer = queue_pair.send(bytes(&adapter, b"an answer")).expect("may be sent");
    // The next queue pair of the device is made when the answer has failed and the second receive was flushed.
    fake("hold ibv_create_qp");
    let dropping = drop_until_renewal(accept);
    let third = queue_pair.receive(room(&adapter, 16)).expect("it has two places");
    let refused = queue_pair.receive(room(&adapter, 16)).expect_err("it has no third");
    assert!(matches!(refused.kind, PostErrorKind::QueueFull { queue: QueueKind::Receive, .. }), "{refused}");
    fake("reset");
    dropping.join().expect("no panic");
    let (outcome, _buffer) = within(answer).await;
    assert_eq!(outcome.expect_err("its attempt has ended").status(), Status::CANCELED);
    client.join().expect("no panic");
    // Both receives take messages of the next connection, in their order.
    let active = common::queue_pair(&adapter);
    let (_connection, _accepted) = joined(
        adapter.connector().connect_and_complete(&active, address, ConnectParams::default()),
        listener.accept_next(&queue_pair, AcceptParams::default()),
    )
    .await;
    for (message, receive) in [(b"one", second), (b"two", third)] {
        success(active.send(bytes(&adapter, message)).expect("posted")).await;
        assert_eq!(collect(&results, 1).await.len(), 1);
        let (outcome, buffer) = receive.take().expect("polled");
        assert_eq!(&buffer[..outcome.expect("received").bytes], message);
    }
}

// HW-03, LS-16, QP-17: with a shared receive queue the device may complete an answer while its queue pair is replaced after the
// attempt. The answer does not wait for the end of that queue pair, and comes behind one that was flushed with the attempt.
#[tokio::test]
async fn early_answers_complete_during_queue_pair_renewal() {
    if !alone(module_path!(), "early_answers_complete_during_queue_pair_renewal") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    if adapter.info().iwarp {
        eprintln!("skipped: an answer that finds no receive does not wait on iWARP");
        return;
    }
    let (listener, address) = listening(&adapter);
    let queue = || adapter.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
    let (results, sent) = (queue(), queue());
    let receives = adapter.shared_receive_queue(Default::default()).expect("a shared receive queue");
    let config = QueuePairConfig::default().receive_completions(&results).send_completions(&sent);
    let queue_pair = adapter.queue_pair(config.shared_receives(&receives)).expect("a queue pair");
    let receive = receives.receive(room(&adapter, 16)).expect("posted");
    let client = thread::spawn(move || ask_in_vain(address));
    let request = within(listener.request()).await.expect("a request");
    let passive = queue_pair.clone();
    let mut accept = Box::pin(async move { request.accept(&passive, AcceptParams::default()).await });
    assert!(poll_once(&mut accept).is_pending());
    poll_for_message(&results);
    assert_eq!(&receive.take().expect("polled").1[..8], b"question");
    let answers = [1, 2].map(|context| {
        let options = WorkOptions::default().context(context);
        queue_pair.send_with(bytes(&adapter, b"an answer"), options).expect("may be sent")
    });
    fake("keep requests 1");
    fake("lose last_receives");
    let _held = ["ibv_destroy_qp", "ibv_create_qp"].map(hold);
    let dropping = drop_until_renewal(accept);
    // The old queue pair is not destroyed, and the next one is not made.
    fake("keep nothing");
    let contexts: Vec<_> = collect(&sent, 2).await.iter().map(|result| result.context).collect();
    assert_eq!(contexts, [1, 2]);
    for answer in answers {
        let (outcome, buffer) = answer.take().expect("polled");
        assert_eq!(outcome.expect_err("its attempt has ended").status(), Status::CANCELED);
        assert_eq!(&buffer[..], b"an answer");
    }
    fake("reset");
    dropping.join().expect("no panic");
    client.join().expect("no panic");
}
