//! Removal of a device while every kind of operation is pending on it.
//!
//! Runs on: rxe, siw

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use common::cm::exchange;
use common::verbs::{Link, connected_at, driver};
use common::*;
use tokio::task::JoinHandle;
use tokio_rdma::error::DisconnectError;
use tokio_rdma::{
    AcceptParams, Access, CompletionQueueConfig, ConnectParams, Connection, NotifyKind, Op, PoolConfig,
    Provider, ProviderKind, RdmaListener, RdmaStream, Status, WorkBuffer,
};

/// Calls that wait, each in a task of its own; what they end with.
#[derive(Default)]
struct Pending(Vec<(&'static str, JoinHandle<Status>)>);

impl Pending {
    fn add(&mut self, what: &'static str, call: impl Future<Output = Status> + Send + 'static) {
        self.0.push((what, tokio::spawn(call)));
    }

    fn are_pending(&self) {
        for (what, call) in &self.0 {
            assert!(!call.is_finished(), "{what} is not pending");
        }
    }

    async fn all_end_with(self, status: Status) {
        let mut wrong = Vec::new();
        for (what, call) in self.0 {
            let found = within(call).await.expect(what);
            if found != status {
                wrong.push((what, found));
            }
        }
        assert!(wrong.is_empty(), "not {status:?}: {wrong:?}");
    }
}

fn status<T>(outcome: Result<T, Status>) -> Status {
    outcome.err().unwrap_or(Status::SUCCESS)
}

async fn completion<B: WorkBuffer>(op: Op<B>) -> Status {
    status(op.await.0.map_err(|error| error.status()))
}

async fn disconnected(connection: Connection) -> Status {
    connection.disconnected().await.status()
}

// HW-16: each call and each future that waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_pending_ends_when_the_device_is_removed() {
    let Some(driver) = driver() else { return };
    let link = Arc::new(Link::new(driver));
    let adapter = link.open();
    let id = adapter.info().id;
    let ip = link.address;
    let three_phase = adapter.info().three_phase;
    let mut pending = Pending::default();

    let unconnected = queue_pair(&adapter);
    pending.add("receive, unconnected", completion(unconnected.receive(adapter.buffer(8).unwrap()).unwrap()));

    // Replies that are held, and with them accepts that wait, where there are three phases.
    let mut replies = Vec::new();
    for _ in 0..2 {
        let (accepting, own) = (queue_pair(&adapter), queue_pair(&adapter));
        let (listener, address) = listening_at(&adapter, ip);
        if three_phase {
            let accepted = accepting.clone();
            pending.add(
                "receive, accepting",
                completion(accepting.receive(adapter.buffer(8).unwrap()).unwrap()),
            );
            pending.add("accept", async move {
                let outcome = listener.accept_next(&accepted, AcceptParams::default()).await;
                status(outcome.map_err(|error| error.status()))
            });
            let connector = adapter.connector();
            let reply = connector.connect(&own, address, ConnectParams::default());
            replies.push((within(reply).await.expect("a reply"), own, accepting));
        }
    }

    let live = connected_at(&adapter, ip).await;
    let peer_memory = adapter.register(64, Access::REMOTE_READ | Access::REMOTE_WRITE).await.unwrap();
    exchange(&adapter, &live.active.queue_pair, &live.passive.queue_pair).await;
    pending.add("disconnected", disconnected(live.active.connection.clone()));
    pending.add("disconnected, again", disconnected(live.active.connection.clone()));
    pending.add("disconnected, passive", disconnected(live.passive.connection.clone()));
    for _ in 0..2 {
        let receive = live.active.queue_pair.receive(adapter.buffer(8).unwrap()).unwrap();
        pending.add("receive, connected", completion(receive));
    }

    let results = adapter.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
    for kind in [NotifyKind::Any, NotifyKind::Errors] {
        let told = results.notify(kind);
        pending.add("notify", async move { status(told.await.map_err(|error| error.status())) });
    }

    let pool = adapter.pool(PoolConfig::new(8, 2)).expect("a pool");
    let bytes = within(pool.get()).await.expect("memory").freeze(8);
    let only = within(pool.get()).await.expect("memory");
    for what in ["buffer of a pool", "buffer of a pool, again"] {
        let pool = pool.clone();
        pending.add(what, async move { status(pool.get().await.map_err(|error| error.status())) });
    }

    // A connect without an answer: its request is taken and kept, as are those of two more. They are the last that
    // begins, because siw waits for an answer for ten seconds.
    let (silent, address) = listening_at(&adapter, ip);
    let mut idle = Vec::new();
    let mut requests = Vec::new();
    for _ in 0..3 {
        let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
        let own = queue_pair.clone();
        pending
            .add("receive, connecting", completion(queue_pair.receive(adapter.buffer(8).unwrap()).unwrap()));
        pending.add("connect", async move {
            let outcome = connector.connect(&own, address, ConnectParams::default()).await;
            status(outcome.map_err(|error| error.status()))
        });
        requests.push(within(silent.request()).await.expect("a request"));
        idle.push(queue_pair);
    }
    for _ in 0..2 {
        let silent = silent.clone();
        pending.add("request", async move { status(silent.request().await.map_err(|error| error.status())) });
    }

    // A whole connection comes and goes: calls that could complete have done so by then.
    let other = connected_at(&adapter, ip).await;
    within(other.active.connection.disconnect()).await.expect("disconnected");
    pending.are_pending();
    assert!(!adapter.is_removed());
    let removal = link.begin_to_remove();
    // Every pending call completes with DEVICE_REMOVED (AD-05).
    pending.all_end_with(Status::DEVICE_REMOVED).await;
    assert!(adapter.is_removed());

    let mut outcomes: Vec<(&str, Option<Status>)> = Vec::new();
    let mut say = |what, outcome: Option<Status>| outcomes.push((what, outcome));
    let queue = &live.active.queue_pair;
    let anywhere = SocketAddr::new(ip, 0);
    say("queue_pair", adapter.queue_pair(Default::default()).err().map(|error| error.status()));
    say("register", adapter.register(8, Access::LOCAL_WRITE).await.err().map(|error| error.status()));
    peer_memory.deregister().await.expect("deregistered");
    let again = peer_memory.register_again(Access::REMOTE_READ).await;
    say("register_again", again.err().map(|error| error.status()));
    say("pool", adapter.pool(PoolConfig::new(8, 1)).err().map(|error| error.status()));
    drop(only);
    say("buffer of a pool", within(pool.get()).await.err().map(|error| error.status()));
    say("buffer of a pool, now", pool.try_get().err().map(|error| error.status()));
    say("buffer", adapter.buffer(8).err().map(|error| error.status()));
    say("connector.bind", adapter.connector().bind(anywhere).err().map(|error| error.status()));
    say("listener.bind", adapter.listener().bind(anywhere).err().map(|error| error.status()));
    let connect = adapter.connector();
    let outcome = within(connect.connect(&unconnected, address, ConnectParams::default())).await;
    say("connect", outcome.err().map(|error| error.status()));
    say("request", within(silent.request()).await.err().map(|error| error.status()));
    let mut requests = requests.into_iter();
    let outcome = within(requests.next().unwrap().accept(&unconnected, AcceptParams::default())).await;
    say("accept", outcome.err().map(|error| error.status()));
    say("reject", within(requests.next().unwrap().reject(b"")).await.err().map(|error| error.status()));
    let mut mine = Vec::new();
    for (reply, own, accepting) in replies {
        say("complete", within(reply.complete()).await.err().map(|error| error.status()));
        mine.push((own, accepting));
    }
    say("disconnect", within(live.active.connection.disconnect()).await.err().map(|error| error.status()));
    say("disconnected", Some(within(live.active.connection.disconnected()).await.status()));
    queue.flush();
    live.active.connection.cancel();
    for (what, outcome) in outcomes {
        // Every later call fails with DEVICE_REMOVED (AD-05).
        assert_eq!(outcome, Some(Status::DEVICE_REMOVED), "{what}");
    }
    let provider = Provider::verbs().expect("other devices are there");
    assert_eq!(provider.resolve(ip).expect_err("gone").status(), Status::INVALID_ADDRESS);
    assert_eq!(provider.open(id).expect_err("gone").status(), Status::INVALID_PARAMETER);
    // AD-05: cleanup works.
    peer_memory.deregister().await.expect("deregistered");
    drop((live, other, idle, mine, unconnected, connect, silent, requests, adapter));
    drop(pool);
    // The removal ends when every handle of the device is closed: nothing of all this has kept it, nor does memory that
    // still exists.
    within(removal).await.expect("removed");
    assert_eq!(&bytes[..], [0; 8]);
}

// HW-16: work requests that the peer does not answer, and a disconnect that is on its way, while the device goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_in_flight_ends_on_device_removal() {
    let Some(driver) = driver() else { return };
    let link = Arc::new(Link::new(driver));
    let adapter = link.open();
    let memory = adapter.register(1 << 20, Access::REMOTE_READ | Access::REMOTE_WRITE).await.unwrap();
    let pairs = [connected_at(&adapter, link.address).await, connected_at(&adapter, link.address).await];
    let mut tasks = Vec::new();
    for pair in &pairs {
        let queue = pair.active.queue_pair.clone();
        let (adapter, remote) = (adapter.clone(), memory.remote());
        let last = adapter.buffer(8).unwrap();
        tasks.push(tokio::spawn(async move {
            // For as long as it goes well.
            loop {
                let buffer = |length| adapter.buffer(length);
                let (Ok(read), Ok(write)) = (buffer(1 << 20), buffer(1 << 20)) else { break };
                let Ok(read) = queue.read(read, &remote) else { break };
                let Ok(write) = queue.write(write, &remote) else { break };
                if completion(read).await != Status::SUCCESS || completion(write).await != Status::SUCCESS {
                    break;
                }
            }
            // A request that is posted now is not taken.
            queue.send(last).map(drop).map_err(|error| error.status())
        }));
    }
    let parting = pairs[1].active.connection.clone();
    connected_at(&adapter, link.address).await;
    let leaving = tokio::spawn(parting.disconnect());
    let removal = link.begin_to_remove();
    for task in tasks {
        within(task).await.expect("no panic").expect_err("there is no device");
    }
    // It may have been over by then. The kernel may have taken the device away before it says so, and calls of the driver
    // fail from then on.
    let left = within(leaving).await.expect("no panic");
    let is_expected =
        matches!(left, Ok(()) | Err(DisconnectError::DeviceRemoved | DisconnectError::Lost { .. }));
    assert!(is_expected, "{left:?}");
    // The ends whose peers were at work end with the device as well (AD-05).
    for pair in &pairs {
        within(pair.passive.connection.disconnected()).await;
    }
    assert!(adapter.is_removed());
    drop((pairs, memory, adapter));
    within(removal).await.expect("removed");

    // It comes back as another device of the same name.
    link.add_device();
    let again = link.open();
    let pair = connected_at(&again, link.address).await;
    exchange(&again, &pair.active.queue_pair, &pair.passive.queue_pair).await;
}

/// Connects to a listener until this provider accepts.
async fn accepted_by(provider: ProviderKind, listener: &RdmaListener, address: SocketAddr) {
    let accepted =
        async { while listener.accept().await.expect("accepted").0.connection().provider() != provider {} };
    // Between two listeners nothing listens there, and what a device that is removed has accepted may get no further.
    let connecting = async {
        loop {
            let connected = RdmaStream::connect(address).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
            drop(connected);
        }
    };
    within(async {
        tokio::select! {
            () = accepted => {}
            () = connecting => {}
        }
    })
    .await;
}

// IO-11: a listener of every address serves that of a device over TCP while the device is away, and over the device when that is back,
// also if the driver has the ports of TCP.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listener_of_every_address_returns_to_device() {
    let Some(driver) = driver() else { return };
    let link = Arc::new(Link::new(driver));
    let listener = RdmaListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.expect("bound");
    let address = SocketAddr::new(link.address, listener.local_addr().expect("bound").port());
    accepted_by(ProviderKind::Verbs, &listener, address).await;
    let removal = link.begin_to_remove();
    accepted_by(ProviderKind::Soft, &listener, address).await;
    within(removal).await.expect("removed");
    link.add_device();
    accepted_by(ProviderKind::Verbs, &listener, address).await;
}
