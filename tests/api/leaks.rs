//! Futures dropped at every wait: the peer's call ends, and no descriptor and no object of the device remains.
//!
//! One test in a separate process, because it counts the resources of its process.
//!
//! Runs on: soft, sim, rxe, siw

use common::deviation::*;
use common::life::*;
use common::process::alone;
use common::resources::held;
use common::*;

use std::net::SocketAddr;

use futures::FutureExt;
use tokio::sync::mpsc;
use tokio_rdma::{
    AcceptParams, Adapter, ConnectParams, Connection, DisconnectReason, Listener, QueuePair, Status,
};

/// The fate of the peer of a future that was dropped.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// It never got its connection.
    Failed(Status),
    /// It had it, and it ended.
    Ended(DisconnectReason),
}

/// Returns whether a peer may learn of the end of the other side in this way.
fn is_listed(fate: &Fate) -> bool {
    match fate {
        Fate::Failed(status) => [Status::CONNECTION_REFUSED, Status::CONNECTION_ABORTED].contains(status),
        Fate::Ended(DisconnectReason::Peer | DisconnectReason::Lost { .. }) => true,
        Fate::Ended(_) => false,
    }
}

async fn fate(connected: Result<Connection, Status>) -> Fate {
    match connected {
        Ok(connection) => Fate::Ended(within(connection.disconnected()).await),
        Err(status) => Fate::Failed(status),
    }
}

/// Accepts every request, and sends what became of it.
fn server(adapter: &Adapter) -> (SocketAddr, mpsc::UnboundedReceiver<Fate>, tokio::task::JoinHandle<()>) {
    let (listener, address) = listening(adapter);
    let (fates, told) = mpsc::unbounded_channel();
    let adapter = adapter.clone();
    let task = tokio::spawn(async move {
        loop {
            let Ok(request) = listener.request().await else { return };
            let queue_pair = queue_pair(&adapter);
            let fates = fates.clone();
            tokio::spawn(async move {
                let accepted = request.accept(&queue_pair, AcceptParams::default()).await;
                let _ = fates.send(fate(accepted.map_err(|retained| retained.status())).await);
            });
        }
    });
    (address, told, task)
}

/// Connects, and returns what becomes of the connection.
fn client(adapter: &Adapter, address: SocketAddr) -> tokio::task::JoinHandle<Fate> {
    let (connector, queue_pair) = (adapter.connector(), queue_pair(adapter));
    tokio::spawn(async move {
        let connected = connector.connect_and_complete(&queue_pair, address, ConnectParams::default()).await;
        fate(connected.map_err(|error| error.status())).await
    })
}

/// Proves that a queue pair which all those attempts were made with is as good as new.
async fn use_at_last(adapter: &Adapter, queue_pair: &QueuePair) {
    let receive = queue_pair.receive(adapter.buffer(4).expect("memory")).expect("posted");
    let (listener, address) = listening(adapter);
    let other = common::queue_pair(adapter);
    let connector = adapter.connector();
    let (active, _passive) = joined(
        connector.connect_and_complete(queue_pair, address, ConnectParams::default()),
        listener.accept_next(&other, AcceptParams::default()),
    )
    .await;
    speak_first((adapter, queue_pair), (adapter, &other)).await;
    within(other.send(adapter.buffer_from(b"good").expect("memory")).expect("posted")).await.0.expect("sent");
    assert_eq!(within(receive).await.0.expect("received").bytes, 4);
    within(active.disconnect()).await.expect("in order");
}

/// Drops `connect()`, or both steps, after 0, 1, 2 … polls, until it would have finished.
async fn dropped_connects(adapter: &Adapter, both_steps: bool) {
    let (address, mut fates, task) = server(adapter);
    let kept = queue_pair(adapter);
    let mut attempts = 0;
    loop {
        // A device completes on a thread: that may be done when the future is dropped, and the queue pair has had its connection.
        let other = both_steps.then(|| queue_pair(adapter));
        let queue_pair = other.as_ref().unwrap_or(&kept);
        let connector = adapter.connector();
        let params = ConnectParams::default;
        let finished = if both_steps {
            let connect = connector.connect_and_complete(queue_pair, address, params());
            polled(connect, attempts).await.map(|connected| drop(connected.expect("connected")))
        } else {
            let connect = connector.connect(queue_pair, address, params());
            polled(connect, attempts).await.map(|reply| drop(reply.expect("accepted")))
        };
        if finished.is_some() {
            break;
        }
        if attempts > 0 {
            // It was cancelled, so the connector is burnt.
            let again = connector.connect(queue_pair, address, params()).await;
            assert_eq!(again.expect_err("burnt").status(), Status::CONNECTION_ACTIVE);
        }
        attempts += 1;
    }
    // The kernel's work between the calls runs no waker, and on a simulated network a host reaches itself in no time.
    let least = if Device::under_test() == Device::Soft { 3 } else { 2 };
    assert!(attempts >= least, "it waits for the network, not {attempts} times");
    if !both_steps {
        use_at_last(adapter, &kept).await;
    }
    // Connects that were dropped early have sent no request. All others end once their servers are gone.
    task.abort();
    let _ = task.await;
    let mut served = 0;
    while let Some(fate) = within(fates.recv()).await {
        // A refusal that comes before its request is lost, and no answer to the reply follows.
        let unheard = may_overtake(adapter) && fate == Fate::Failed(Status::IO_TIMEOUT);
        assert!(is_listed(&fate) || unheard, "{fate:?}");
        served += 1;
    }
    assert!(served > 0, "at least the one that finished has");
}

/// Drops `accept()`, or the wait for a request with it, after 0, 1, 2 … polls.
async fn dropped_accepts(adapter: &Adapter, with_the_request: bool) {
    let (listener, address) = listening(adapter);
    let queue_pair = queue_pair(adapter);
    let mut attempts = 0;
    loop {
        let peer = client(adapter, address);
        let params = AcceptParams::default;
        let finished = if with_the_request {
            let accept = listener.accept_next(&queue_pair, params());
            polled(accept, attempts).await.map(|connection| drop(connection.expect("accepted")))
        } else {
            let request = within(listener.request()).await.expect("a request");
            let accept = request.accept(&queue_pair, params());
            polled(accept, attempts).await.map(|connection| drop(connection.expect("accepted")))
        };
        if finished.is_some() || !with_the_request {
            let fate = within(peer).await.expect("no panic");
            assert!(is_listed(&fate), "after {attempts} polls: {fate:?}");
        } else {
            // An accept that was dropped before it had the request has left it to the next one.
            refuse_all_until(&listener, peer).await;
        }
        if finished.is_some() {
            break;
        }
        attempts += 1;
    }
    assert!(attempts > 1, "it waits for the peer");
}

/// Refuses requests until that of this peer was among them, or it has ended otherwise.
async fn refuse_all_until(listener: &Listener, mut peer: tokio::task::JoinHandle<Fate>) {
    let fate = within(async {
        loop {
            tokio::select! {
                fate = &mut peer => break fate.expect("no panic"),
                request = listener.request() => drop(request.expect("a request")),
            }
        }
    })
    .await;
    assert!(is_listed(&fate), "{fate:?}");
}

/// Drops `complete()` after 0, 1, 2 … polls.
async fn dropped_completes(adapter: &Adapter) {
    let (address, mut fates, task) = server(adapter);
    for polls in 0.. {
        let (queue_pair, connector) = (queue_pair(adapter), adapter.connector());
        let reply = within(connector.connect(&queue_pair, address, ConnectParams::default())).await;
        let completed = polled(reply.expect("accepted").complete(), polls).await;
        let finished = completed.is_some();
        drop(completed);
        let fate = within(fates.recv()).await.expect("served");
        match polls {
            0 if three_phase(adapter) => assert_eq!(fate, Fate::Failed(Status::CONNECTION_REFUSED)),
            // A connection whose end came before its RTU has not been accepted.
            1.. if may_overtake(adapter) && fate == Fate::Failed(Status::CONNECTION_ABORTED) => {}
            // A device that is about to complete it does so, and the end follows, or it does not.
            1.. if !finished => assert!(is_listed(&fate), "after {polls} polls: {fate:?}"),
            _ => assert_eq!(fate, Fate::Ended(DisconnectReason::Peer)),
        }
        if finished {
            break;
        }
    }
    task.abort();
    let _ = task.await;
}

/// Drops `disconnected()` and `disconnect()` while they wait.
async fn dropped_ends(adapter: &Adapter) {
    let Pair { active, passive } = connected(adapter).await;
    assert!(polled(active.connection.disconnected(), 1).await.is_none());
    assert!(polled(active.connection.disconnect(), 1).await.is_none());
    assert_eq!(within(passive.connection.disconnected()).await, DisconnectReason::Peer);
    assert_eq!(active.connection.disconnected().now_or_never(), Some(DisconnectReason::Local));
}

// Each future is dropped after 0, 1, 2 and more polls, and what the process holds returns to what it was before
// (CAN-03, CAN-04).
#[tokio::test]
async fn dropped_futures_notify_the_peer_and_leak_nothing() {
    if !alone(module_path!(), "dropped_futures_notify_the_peer_and_leak_nothing") {
        return;
    }
    // librdmacm keeps each device open that it has been asked for.
    Device::under_test().provider().addresses().expect("known");
    let adapter = adapter();
    let baseline = held();
    let open = connected(&adapter).await;
    let kind = match Device::under_test() {
        Device::Soft => "descriptors",
        Device::Sim => "tasks",
        Device::Rxe | Device::Siw | Device::Fake | Device::FakeIwarp => "qp",
    };
    assert!(held()[kind] >= baseline[kind] + 2, "two ends");
    drop(open);
    for _ in 0..often(3, 1) {
        dropped_connects(&adapter, false).await;
        dropped_connects(&adapter, true).await;
        dropped_accepts(&adapter, false).await;
        dropped_accepts(&adapter, true).await;
        dropped_completes(&adapter).await;
        dropped_ends(&adapter).await;
    }
    eventually("everything is given back", || held() == baseline).await;
}
