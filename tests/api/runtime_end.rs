//! The end of an adapter's runtime while operations are pending.
//!
//! Runs on: soft, sim, rxe, siw
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use common::deviation::*;
use common::device::{settled, silent};
use common::life::*;
use common::*;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Wake;

use tokio::runtime::{Builder, Runtime};
use tokio_rdma::error::DisconnectError;
use tokio_rdma::{AcceptParams, AcceptorConfig, ConnectParams, DisconnectReason, QueuePairConfig, Status};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

// Waits and requests that other runtimes poll end with the runtime of the adapter (CAN-04, CAN-15).
#[test]
fn connection_and_requests_end_with_the_runtime() {
    let (home, other) = (runtime(), runtime());
    let (pair, receive) = home.block_on(async {
        let adapter = adapter();
        let pair = connected(&adapter).await;
        let receive = pair.passive.queue_pair.receive(adapter.buffer_from(&[6; 9]).expect("memory"));
        (pair, receive.expect("posted"))
    });
    let mut waits = [&pair.active, &pair.passive].map(|end| Box::pin(end.connection.disconnected()));
    assert!(waits.iter_mut().all(|wait| poll_once(wait).is_pending()));
    drop(home);
    other.block_on(async {
        for wait in waits {
            let reason = within(wait).await;
            assert!(matches!(reason, DisconnectReason::Peer | DisconnectReason::Lost { .. }), "{reason:?}");
        }
        let (outcome, buffer) = within(receive).await;
        assert_eq!((outcome.expect_err("flushed").status(), &buffer[..]), (Status::CANCELED, &[6; 9][..]));
        // Still owed, and nothing to wait for.
        let _ = within(pair.active.connection.disconnect()).await;
    });
}

// A wait for a request is cancelled, also if the runtime has never run a task of the adapter (CAN-04, CAN-15).
#[test]
fn request_wait_ends_with_the_runtime() {
    // The second has run no task of the adapter: what it is given here is ready at once.
    let idle = Builder::new_current_thread().enable_all().build().expect("a runtime");
    for home in [runtime(), idle] {
        let (listener, _) = home.block_on(async { listening(&adapter()) });
        let mut request = Box::pin(listener.request());
        assert!(poll_once(&mut request).is_pending());
        drop(home);
        runtime().block_on(async {
            let error = within(request).await.expect_err("nobody listens any more");
            assert_eq!(error.status(), Status::CANCELED);
            within(listener.request()).await.expect_err("nor will anybody");
        });
    }
}

// CAN-04, CAN-15: the task of an acceptor is of the runtime that has created it, and the listener is of the adapter's.
#[test]
fn listener_ends_with_the_runtime_of_its_acceptor() {
    let (home, guest) = (runtime(), runtime());
    let (adapter, listener, address) = home.block_on(async {
        let adapter = adapter();
        let (listener, address) = listening(&adapter);
        (adapter, listener, address)
    });
    let own = adapter.clone();
    let acceptor = guest.block_on(async {
        listener.acceptor(AcceptorConfig::default(), move |request| {
            let queue_pair = own.queue_pair(QueuePairConfig::default());
            async move { Ok(request.accept(&queue_pair?, AcceptParams::default()).await?) }
        })
    });
    let acceptor = acceptor.expect("it listens");
    drop(guest);
    home.block_on(async {
        within(acceptor.accept()).await.expect_err("nobody makes connections any more");
        let (queue_pair, connector) = (queue_pair(&adapter), adapter.connector());
        let connect = connector.connect(&queue_pair, address, ConnectParams::default());
        within(connect).await.map(drop).expect_err("nobody listens any more");
        within(listener.request()).await.expect_err("it is closed");
    });
}

// An accept, a reply and a connect without an answer end when another runtime polls them (CAN-03, CAN-04, CAN-15).
#[test]
fn both_handshake_sides_end_with_their_runtime() {
    let (home, other) = (runtime(), runtime());
    let (adapter, listener, address) = home.block_on(async {
        let adapter = adapter();
        let (listener, address) = listening(&adapter);
        (adapter, listener, address)
    });
    let (_silent, nowhere) = other.block_on(async { silent(v4()) });
    let (mine, theirs, unheard) = (queue_pair(&adapter), queue_pair(&adapter), queue_pair(&adapter));
    let (connector, unanswered) = (adapter.connector(), adapter.connector());
    let mut connect = Box::pin(connector.connect(&mine, address, ConnectParams::default()));
    let mut accept = Offer::new(listener.accept_next(&theirs, AcceptParams::default()));
    let mut silence = Box::pin(unanswered.connect(&unheard, nowhere, ConnectParams::default()));
    let reply = home.block_on(async {
        let reply = accept.answered(&adapter, &mut connect).await;
        assert!(poll_once(&mut silence).is_pending());
        settled().await;
        assert!(poll_once(&mut silence).is_pending(), "nobody answers");
        reply
    });
    drop(home);
    other.block_on(async {
        match within(accept.outcome()).await {
            Err(_) => {}
            Ok(connection) if !three_phase(&adapter) => assert_ended(&connection).await,
            Ok(_) => panic!("nobody has completed"),
        }
        within(silence).await.expect_err("nobody has answered");
        if let Ok(connection) = within(reply.complete()).await {
            let reason = within(connection.disconnected()).await;
            assert!(matches!(reason, DisconnectReason::Peer | DisconnectReason::Lost { .. }), "{reason:?}");
        }
    });
}

/// A task that waits for a disconnect, and looks then whether a receive has completed.
struct Disconnecting(Mutex<Option<(Disconnect, Request, Option<bool>)>>);

type Disconnect = Pin<Box<dyn Future<Output = Result<(), DisconnectError>> + Send>>;
type Request = tokio_rdma::Op<tokio_rdma::Buffer>;

impl Wake for Disconnecting {
    fn wake(self: Arc<Self>) {
        let mut state = self.0.lock().expect("no panic");
        let Some((disconnect, receive, has_completed)) = &mut *state else { return };
        if has_completed.is_none() && poll_once(disconnect).is_ready() {
            *has_completed = Some(poll_once(receive).is_ready());
        }
    }
}

// Every request has completed when `disconnect` returns (DIS-01), also when it ends with its runtime (CAN-04, CAN-15).
#[test]
fn disconnect_returns_after_its_requests_at_the_end() {
    if !Device::under_test().is_soft() {
        eprintln!("skipped: a device has threads of its own, and would poll from there");
        return;
    }
    let home = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (pair, receive) = home.block_on(async {
        let adapter = adapter();
        let pair = connected(&adapter).await;
        let receive = pair.active.queue_pair.receive(adapter.buffer(8).expect("memory"));
        (pair, receive.expect("posted"))
    });
    let connection = pair.active.connection.clone();
    let mut disconnect: Disconnect = Box::pin(async move { connection.disconnect().await });
    let task = Arc::new(Disconnecting(Mutex::default()));
    assert!(poll_with(&mut disconnect, &task.clone().into()).is_pending());
    *task.0.lock().expect("no panic") = Some((disconnect, receive, None));
    drop(home);
    let state = task.0.lock().expect("no panic").take();
    assert_eq!(state.expect("it waits").2, Some(true));
}

// The peer has not closed anything (CAN-04, CAN-15).
#[test]
fn accept_is_canceled_after_the_runtime_has_ended() {
    if Device::under_test() != Device::Soft {
        eprintln!("skipped: the sockets of other devices belong to no runtime");
        return;
    }
    let (home, other) = (runtime(), runtime());
    let (adapter, listener, address) = home.block_on(async {
        let adapter = adapter();
        let (listener, address) = listening(&adapter);
        (adapter, listener, address)
    });
    let (mine, theirs) = (queue_pair(&adapter), queue_pair(&adapter));
    let connector = adapter.connector();
    let mut connect = Box::pin(connector.connect(&mine, address, ConnectParams::default()));
    let request = home.block_on(async {
        let mut request = Box::pin(within(listener.request()));
        tokio::select! {
            biased;
            request = &mut request => request.expect("a request"),
            outcome = &mut connect => panic!("nobody has accepted: {outcome:?}"),
        }
    });
    drop(home);
    other.block_on(async {
        let refused = within(request.accept(&theirs, AcceptParams::default())).await;
        assert_eq!(refused.expect_err("the runtime has ended").status(), Status::CANCELED);
    });
}

// CAN-04: an adapter in a `static` works in the first test of a program alone, each of which has a runtime of its own.
#[test]
fn an_adapter_names_the_end_of_its_runtime() {
    if Device::under_test() == Device::Sim {
        eprintln!("skipped: the network of a runtime ends with it");
        return;
    }
    const ENDED: &str = "the runtime in which the adapter was opened has ended";
    let (home, other) = (runtime(), runtime());
    let (adapter, address, _listener) = home.block_on(async {
        let adapter = adapter();
        let (listener, address) = listening(&adapter);
        (adapter, address, listener)
    });
    drop(home);
    other.block_on(async {
        let (queue_pair, connector) = (queue_pair(&adapter), adapter.connector());
        let connect = connector.connect(&queue_pair, address, ConnectParams::default());
        let error = within(connect).await.map(drop).expect_err("nobody would read its events");
        assert_eq!(error.status(), Status::CANCELED);
        assert!(error.to_string().ends_with(ENDED), "{error}");
        assert!(!error.is_retryable() && !error.is_connector_usable());
        let listener = adapter.listener();
        listener.bind(SocketAddr::new(v4(), 0)).expect("bound");
        let error = listener.listen(0).expect_err("nobody would accept");
        assert!(error.to_string().ends_with(ENDED), "{error}");
        assert!(!adapter.is_removed());
    });
}

// Any runtime or none may poll the futures, and the connection ends with the runtime of the adapter (CAN-13).
#[test]
fn connection_belongs_to_the_runtime_of_its_adapter() {
    let (home, guest, other) = (runtime(), runtime(), runtime());
    let adapter = home.block_on(async { adapter() });
    let (listener, address) = listening(&adapter);
    let (mine, theirs) = (queue_pair(&adapter), queue_pair(&adapter));
    let connector = adapter.connector();
    let receive = theirs.receive(adapter.buffer(8).expect("memory")).expect("posted");
    let (active, passive) = std::thread::scope(|scope| {
        let connect = connector.connect_and_complete(&mine, address, ConnectParams::default());
        let accept = listener.accept_next(&theirs, AcceptParams::default());
        // One is polled by no runtime at all.
        let connect = scope.spawn(|| futures::executor::block_on(connect).expect("connected"));
        let accept = scope.spawn(|| guest.block_on(within(accept)).expect("accepted"));
        (connect.join().expect("no panic"), accept.join().expect("no panic"))
    });
    drop(guest);
    other.block_on(async {
        let (outcome, _) =
            within(mine.send(adapter.buffer_from(b"hello").expect("memory")).expect("posted")).await;
        outcome.expect("sent");
        let (outcome, _) = within(receive).await;
        assert_eq!(outcome.expect("received").bytes, 5);
    });
    let receive = theirs.receive(adapter.buffer(8).expect("memory")).expect("posted");
    drop(home);
    other.block_on(async {
        for connection in [active, passive] {
            let reason = within(connection.disconnected()).await;
            assert!(matches!(reason, DisconnectReason::Peer | DisconnectReason::Lost { .. }), "{reason:?}");
        }
        assert_eq!(within(receive).await.0.expect_err("flushed").status(), Status::CANCELED);
    });
}
