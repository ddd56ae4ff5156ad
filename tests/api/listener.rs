//! The passive side: listeners, their requests, and the results of accepts.
//!
//! Runs on: soft, sim, rxe, siw

mod soft;

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Instant;

use common::cm::*;
use common::deviation::*;
use common::device::is_emulated;
use common::process::alone;
use common::*;
use futures::{FutureExt, StreamExt};
use tokio::sync::{Notify, oneshot};
use tokio_rdma::error::{AcceptError, BindError, ConnectError, StateError};
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Listener, ReadLimits, Request, Status};

/// Connects with `data` in a task of its own; who is never accepted is refused when the test ends.
fn asking(
    adapter: &Adapter,
    address: SocketAddr,
    data: u8,
) -> tokio::task::JoinHandle<Result<tokio_rdma::Connection, ConnectError>> {
    let (connector, active) = (adapter.connector(), queue_pair(adapter));
    let params = ConnectParams::default().private_data(vec![data]);
    tokio::spawn(async move {
        let connection = connector.connect_and_complete(&active, address, params).await?;
        connection.disconnected().await;
        Ok(connection)
    })
}

/// Returns the number that a request brought.
fn number(request: &Request) -> u8 {
    request.private_data()[0]
}

#[tokio::test]
async fn request_reaches_the_listening_address() {
    for ip in both() {
        let adapter = adapter();
        let listener = adapter.listener();
        // LS-01: a port by number.
        let address = bind_somewhere(ip, |address| listener.bind(address));
        // Bound is not listening.
        let refused = adapter.connector();
        let active = queue_pair(&adapter);
        let error = within(refused.connect(&active, address, ConnectParams::default())).await;
        assert_eq!(error.expect_err("not listening").status(), Status::CONNECTION_REFUSED);
        listener.listen(0).expect("listening");
        assert_eq!(listener.local_addr(), Ok(address));
        let _asking = asking(&adapter, address, 1);
        let request = within(listener.request()).await.expect("a request");
        assert_eq!(request.local_addr(), address);
        // LS-02: a port of the provider's choice.
        let (listener, address) = listening_at(&adapter, ip);
        assert!(EPHEMERAL.contains(&address.port()) && address.ip() == ip);
        let _asking = asking(&adapter, address, 2);
        assert_eq!(number(&within(listener.request()).await.expect("a request")), 2);
    }
}

// A listener that is only bound has no address either (LS-10).
#[tokio::test]
async fn listener_has_an_address_only_while_listening() {
    let adapter = adapter();
    let listener = adapter.listener();
    let not_listening = |listener: &tokio_rdma::Listener| {
        let error = listener.local_addr().expect_err("it does not listen");
        assert!(error == StateError::InvalidDeviceState && error.status() == Status::INVALID_DEVICE_STATE);
    };
    not_listening(&listener);
    assert!(matches!(listener.listen(0), Err(BindError::InvalidState(_))), "not bound");
    let error = within(listener.request()).await.expect_err("not listening");
    assert!(matches!(error, AcceptError::NotListening) && error.status() == Status::INVALID_DEVICE_STATE);
    listener.bind((v4(), 0).into()).expect("bound");
    not_listening(&listener);
    listener.listen(0).expect("listening");
    listener.local_addr().expect("it listens");
    assert!(matches!(listener.listen(0), Err(BindError::InvalidState(_))), "it listens already");
}

// LS-04: the excess is refused, the rest is served, and a place that is free is taken again. 0 asks for as many as
// possible, which is 1024 on the soft provider, and what is more than that is no error.
#[tokio::test]
async fn a_backlog_is_a_limit() {
    // It raises a limit of its process.
    if !alone(module_path!(), "a_backlog_is_a_limit") {
        return;
    }
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    const EXCESS: usize = 7;
    // Each of a thousand that wait has a socket at either end.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("raised");
    // So many are too many for an emulated machine; the limit of the devices is that of their kernel.
    let limits = if is_emulated() { &[(3, 3)][..] } else { &[(3, 3), (0, 1024), (usize::MAX, 1024)] };
    for (asked, backlog) in limits.iter().copied() {
        let adapter = adapter();
        let listener = adapter.listener();
        listener.bind((v4(), 0).into()).expect("bound");
        listener.listen(asked).expect("listening");
        let address = listener.local_addr().expect("it listens");
        let mut flood: futures::stream::FuturesUnordered<_> =
            (0..backlog + EXCESS).map(|_| asking(&adapter, address, 1)).collect();
        for _ in 0..EXCESS {
            let refused = within(flood.next()).await.expect("one of them").expect("not panicked");
            let error = refused.expect_err("nobody has been accepted");
            assert_refused_for_now(&error);
        }
        assert!(futures::poll!(flood.next()).is_pending(), "the others wait");
        for _ in 0..backlog {
            let request = within(listener.request()).await.expect("a request");
            let passive = queue_pair(&adapter);
            drop(within(request.accept(&passive, AcceptParams::default())).await.expect("accepted"));
            let connected = within(flood.next()).await.expect("one of them").expect("not panicked");
            let _ = assert_connected(&adapter, connected);
        }
        let _asking = asking(&adapter, address, 11);
        assert_eq!(number(&within(listener.request()).await.expect("a request")), 11);
    }
}

// LS-04: without a limit many may wait, and none is refused.
#[tokio::test]
async fn zero_or_excessive_backlog_takes_many_requests() {
    const MANY: usize = 20;
    for asked in [0, usize::MAX] {
        let adapter = adapter();
        let listener = adapter.listener();
        listener.bind((v4(), 0).into()).expect("bound");
        listener.listen(asked).expect("listening");
        let address = listener.local_addr().expect("it listens");
        let begun = Instant::now();
        let mut flood: futures::stream::FuturesUnordered<_> =
            (0..MANY).map(|_| asking(&adapter, address, 1)).collect();
        // Asked after all of the others, and so answered last.
        let mut served = Vec::new();
        for _ in 0..MANY {
            served.push(within(listener.request()).await.expect("a request"));
        }
        if let Some(ended) = flood.next().now_or_never().flatten() {
            let error = ended.expect("not panicked").expect_err("not accepted");
            assert!(is_overdue(&adapter, begun, &error), "nobody has been answered: {error:?}");
        }
        drop(served);
        while let Some(refused) = within(flood.next()).await {
            let error = refused.expect("not panicked").expect_err("not accepted");
            if !is_overdue(&adapter, begun, &error) {
                assert_refused_for_now(&error);
            }
        }
    }
}

// LS-05: first come, first served.
#[tokio::test]
async fn many_waits_are_answered_in_order() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let mut waits: Vec<_> = (0..8).map(|_| Box::pin(listener.request())).collect();
    for wait in &mut waits {
        assert!(futures::poll!(wait).is_pending());
    }
    for number in 0..8 {
        let _asking = asking(&adapter, address, number);
        // The oldest wait gets the request, and the others nothing.
        let request = within(waits.remove(0)).await.expect("a request");
        assert_eq!(self::number(&request), number);
        for wait in &mut waits {
            assert!(futures::poll!(wait).is_pending());
        }
    }
}

// LS-05, LS-25: the same as a stream, which ends with the first error.
#[tokio::test]
async fn requests_are_a_stream() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let mut requests = listener.requests();
    for number in 0..3 {
        let _asking = asking(&adapter, address, number);
        let request = within(requests.next()).await.expect("not the end").expect("a request");
        assert_eq!(self::number(&request), number);
    }
    let mut next = requests.next();
    assert!(futures::poll!(&mut next).is_pending());
    listener.cancel();
    assert!(matches!(within(next).await, Some(Err(AcceptError::Canceled))));
    assert!(within(requests.next()).await.is_none());
}

/// A waker that says when it was used.
#[derive(Default)]
struct Told(Notify);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

// A request that was delivered to a dropped wait goes to the next call (LS-06).
#[tokio::test]
async fn dropped_wait_spares_others_and_loses_no_request() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let mut waits: Vec<_> = (0..3).map(|_| Box::pin(listener.request())).collect();
    for wait in &mut waits {
        assert!(futures::poll!(wait).is_pending());
    }
    drop(waits.remove(0));
    let _asking = asking(&adapter, address, 1);
    assert_eq!(number(&within(waits.remove(0)).await.expect("a request")), 1);
    // Delivered to a wait that is dropped before it looks: the next one gets it.
    let mut unlucky = waits.remove(0);
    let told = Arc::new(Told::default());
    let waker = Waker::from(told.clone());
    assert!(unlucky.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let _asking = asking(&adapter, address, 2);
    within(told.0.notified()).await;
    let mut next = Box::pin(listener.request());
    assert!(futures::poll!(&mut next).is_pending());
    let _third = asking(&adapter, address, 3);
    assert_eq!(number(&within(next).await.expect("a request")), 3);
    drop(unlucky);
    assert_eq!(number(&within(listener.request()).await.expect("a request")), 2);
}

/// A waker whose drop calls into the listener, as that of a task may that owns it.
struct Owning(Listener);

impl Wake for Owning {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Owning {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[tokio::test]
async fn dropped_wait_releases_its_waker_outside_the_lock() {
    device::run_clock();
    let (listener, _) = listening(&adapter());
    let (done, outcome) = oneshot::channel();
    // A thread that the runtime does not wait for, should it hang.
    std::thread::spawn(move || {
        let waker = Waker::from(Arc::new(Owning(listener.clone())));
        let mut wait = Box::pin(listener.request());
        let waits = wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        drop(waker);
        drop(wait);
        done.send(waits)
    });
    assert!(within(outcome).await.expect("no panic"));
}

// LS-06: CancelOverlappedRequests.
#[tokio::test]
async fn cancel_ends_every_wait_but_not_the_listener() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let mut waits: Vec<_> = (0..3).map(|_| Box::pin(listener.request())).collect();
    for wait in &mut waits {
        assert!(futures::poll!(wait).is_pending());
    }
    listener.cancel();
    for wait in waits {
        let error = within(wait).await.expect_err("cancelled");
        assert!(matches!(error, AcceptError::Canceled) && error.status() == Status::CANCELED);
    }
    let _asking = asking(&adapter, address, 1);
    let _request = within(listener.request()).await.expect("a request");
}

// LS-07: NdConnListenClosing.
#[tokio::test]
async fn nd_conn_listen_closing_refuses_only_queued_requests() {
    let adapter = adapter();
    let listener = adapter.listener();
    listener.bind((v4(), 0).into()).expect("bound");
    listener.listen(1).expect("listening");
    let address = listener.local_addr().expect("it listens");
    // One connection, one request that was fetched, one that was not.
    let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
    let connector = adapter.connector();
    let (ours, theirs) = within(async {
        tokio::join!(
            connector.connect_and_complete(&active, address, ConnectParams::default()),
            listener.accept_next(&passive, AcceptParams::default())
        )
    })
    .await;
    let _connection = (ours.expect("connected"), theirs.expect("accepted"));
    let begun = Instant::now();
    let fetched_asking = asking(&adapter, address, 1);
    let fetched = within(listener.request()).await.expect("a request");
    // Of these two one is refused when the other one is in the queue, which has one place.
    let unfetched = [queue_pair(&adapter), queue_pair(&adapter)];
    let asking = unfetched.each_ref().map(|queue_pair| {
        connecting(&Arc::new(adapter.connector()), queue_pair, address, ConnectParams::default())
    });
    let (refused, _, mut queued) = within(futures::future::select_all(asking)).await;
    refused.expect("not panicked").expect_err("the queue is full");
    let queued = queued.remove(0);
    let early = queued.is_finished();

    drop(listener);
    let error = outcome(queued).await.expect_err("the listener is closed");
    let refused = !early && error.status() == Status::CONNECTION_REFUSED;
    assert!(refused || is_overdue(&adapter, begun, &error), "{error:?}");
    assert!(error.is_connector_usable());
    // The refused connects leave their queue pairs usable (CM-21).
    for queue_pair in &unfetched {
        assert_usable(&adapter, queue_pair).await;
    }
    // A request that was fetched can still be accepted, and a queue pair that is connected still works.
    let other = queue_pair(&adapter);
    let accepted = within(fetched.accept(&other, AcceptParams::default())).await.map(drop);
    let asked = outcome(fetched_asking).await;
    if !asked.as_ref().is_err_and(|error| is_overdue(&adapter, begun, error)) {
        accepted.expect("accepted");
        let _ = assert_connected(&adapter, asked);
    }
    exchange(&adapter, &active, &passive).await;
}

// A request was delivered to a wait that is never polled again (LS-07, LS-06).
#[tokio::test]
async fn closing_refuses_a_request_of_a_dropped_wait() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let mut wait = Box::pin(listener.request());
    assert!(futures::poll!(&mut wait).is_pending());
    let first = asking(&adapter, address, 1);
    let second = asking(&adapter, address, 2);
    // One of them goes to the wait above, so it takes the other one to end this.
    let fetched = within(listener.request()).await.expect("the other one");
    drop(wait);
    drop((listener, fetched));
    for asking in [first, second] {
        assert_eq!(outcome(asking).await.expect_err("refused").status(), Status::CONNECTION_REFUSED);
    }
}

// LS-08: unlike NDK, the port belongs to the listener alone.
#[tokio::test]
async fn listener_port_is_free_despite_accepted_connections() {
    for ip in both() {
        let adapter = adapter();
        let (listener, address) = listening_at(&adapter, ip);
        let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
        let connector = adapter.connector();
        let (ours, theirs) = within(async {
            tokio::join!(
                connector.connect_and_complete(&active, address, ConnectParams::default()),
                listener.accept_next(&passive, AcceptParams::default())
            )
        })
        .await;
        let _connection = (ours.expect("connected"), theirs.expect("accepted"));
        drop(listener);
        let again = adapter.listener();
        again.bind(address).expect("free");
        again.listen(0).expect("free");
        let _asking = asking(&adapter, address, 7);
        assert_eq!(number(&within(again.request()).await.expect("a request")), 7);
        exchange(&adapter, &active, &passive).await;
    }
}

// Data, limits and addresses of the request are known before the program answers it (LS-11, LS-12).
#[tokio::test]
async fn a_request_is_inspected_before_it_is_accepted() {
    for ip in both() {
        let adapter = adapter();
        let params = ConnectParams::default().private_data(&b"who"[..]).read_limits(ReadLimits::new(2, 9));
        let asked = requested(&adapter, ip, params).await;
        let request = asked.request;
        assert_data(&adapter, request.private_data(), b"who");
        assert_eq!(request.read_limits(), ReadLimits::new(9, 2));
        assert_eq!(request.local_addr(), asked.listener.local_addr().expect("it listens"));
        assert_eq!(Ok(request.peer_addr()), asked.connector.local_addr());
        let passive = queue_pair(&adapter);
        let accept = AcceptParams::default().private_data(&b"me"[..]).read_limits(ReadLimits::new(1, 1));
        let accepting =
            tokio::spawn(
                async move { request.accept(&passive, accept).await.map(|theirs| (theirs, passive)) },
            );
        let reply = outcome(asked.connecting).await.expect("the peer accepts");
        // The data and the limits of the accept arrive with the reply (LS-12).
        assert_data(&adapter, reply.private_data(), b"me");
        let served = if accept_limits_reads(&adapter) { 1 } else { 9 };
        assert_eq!(reply.read_limits(), ReadLimits::new(1, served));
        let _ours = within(reply.complete()).await.expect("complete");
        let (theirs, _passive) = outcome(accepting).await.expect("accepted");
        assert_eq!(theirs.read_limits(), ReadLimits::new(served, 1));
    }
}

// Race 3; LS-14
#[tokio::test]
async fn a_receive_may_complete_before_the_accept() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
    let receive = passive.receive(adapter.buffer(16).expect("memory")).expect("posted");
    let connector = adapter.connector();
    let mut accept = Offer::new(listener.accept_next(&passive, AcceptParams::default()));
    let reply =
        accept.answered(&adapter, connector.connect(&active, address, ConnectParams::default())).await;
    // From here on the accept is not polled.
    let ours = within(reply.complete()).await.expect("complete");
    within(active.send(adapter.buffer_from(b"early").expect("memory")).expect("posted"))
        .await
        .0
        .expect("sent");
    let (received, buffer) = within(receive).await;
    assert_eq!(&buffer[..received.expect("received").bytes], b"early");
    let theirs = within(accept.outcome()).await.expect("accepted");
    assert_eq!(theirs.peer_addr(), ours.local_addr());
}
