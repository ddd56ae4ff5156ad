//! Messages that arrive before the accept has resolved, and are answered at once.
//!
//! Runs on: rxe, siw, fake, fake-iwarp
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use common::device::patience;
use common::life::poll_once;
use common::raw::{bytes, room};
use common::results::collect;
use common::verbs::is_device;
use common::*;
use tokio_rdma::{AcceptParams, CompletionQueueConfig, ConnectParams, QueuePairConfig, Status, WorkOptions};

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
    let client = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let adapter = common::adapter();
            // It posts no receive: the answer waits.
            let queue_pair = common::queue_pair(&adapter);
            let connector = adapter.connector();
            let connect = connector.connect_and_complete(&queue_pair, address, ConnectParams::default());
            let connection = within(connect).await.expect("connected");
            let _sent = queue_pair.send(bytes(&adapter, b"question")).expect("posted");
            within(connection.disconnected()).await;
        });
    });
    let request = within(listener.request()).await.expect("a request");
    let mut accept = Box::pin(request.accept(&queue_pair, AcceptParams::default()));
    assert!(poll_once(&mut accept).is_pending());
    let (mut found, limit) = (Vec::new(), Instant::now() + patience());
    while results.poll(1, &mut found) == 0 {
        assert!(Instant::now() < limit, "no message");
    }
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
