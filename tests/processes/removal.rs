//! Removal of an adapter while every kind of operation is pending on it.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use common::net::*;
use common::*;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{
    AcceptParams, Access, Adapter, CompletionQueueConfig, ConnectParams, Connection, NotifyKind, PoolConfig,
    Provider, Status,
};

/// More than any socket takes.
const LARGE: usize = 32 << 20;

/// Calls that wait, each on a task of its own; what they end with.
#[derive(Default)]
struct Pending(Vec<(&'static str, JoinHandle<Status>)>);

impl Pending {
    fn add(&mut self, what: &'static str, call: impl Future<Output = Status> + Send + 'static) {
        self.0.push((what, tokio::spawn(call)));
    }

    async fn are_pending(&self) {
        // A runtime of one thread: after this every call has been made.
        tokio::task::yield_now().await;
        for (what, call) in &self.0 {
            assert!(!call.is_finished(), "{what} is not pending");
        }
    }

    async fn all_end_with(self, status: Status) {
        for (what, call) in self.0 {
            assert_eq!(within(call).await.expect(what), status, "{what}");
        }
    }
}

/// Returns the status of a work request.
async fn completion<B: tokio_rdma::WorkBuffer>(op: tokio_rdma::Op<B>) -> Status {
    op.await.0.map_or_else(|error| error.status(), |_| Status::SUCCESS)
}

async fn disconnected(connection: Connection) -> Status {
    connection.disconnected().await.status()
}

/// Returns settings with which an adapter is removed with its last address.
fn config() -> SoftConfig {
    SoftConfig::default().address_timeout(Duration::ZERO)
}

fn left() -> Adapter {
    soft_at(LEFT[0], config())
}

fn right() -> Adapter {
    soft_at(RIGHT[0], config())
}

/// Asserts that every pending call ends when the last address of the adapter goes, by means of these `ip` commands.
fn everything_pending_ends(removal: &'static [&'static str]) {
    with_two_interfaces(async move || {
        let (left, right) = (left(), right());
        let mut pending = Pending::default();

        let silent = TcpListener::bind((RIGHT[0], 0)).await.expect("a listener");
        let (connector, idle) = (left.connector(), queue_pair(&left));
        let to = silent.local_addr().expect("an address");
        let own = idle.clone();
        pending.add("connect", async move {
            let outcome = connector.connect(&own, to, ConnectParams::default()).await;
            outcome.map_or_else(|error| error.status(), |_| Status::SUCCESS)
        });
        let (mut asked, _) = within(silent.accept()).await.expect("accepted");
        assert!(within(asked.read(&mut [0; 64])).await.expect("a request") > 0);
        pending.add("receive, connecting", completion(idle.receive(left.buffer(8).unwrap()).unwrap()));
        let unconnected = queue_pair(&left);
        pending
            .add("receive, unconnected", completion(unconnected.receive(left.buffer(8).unwrap()).unwrap()));

        let (listener, address) = listening_at(&left, LEFT[0]);
        let accepting = queue_pair(&left);
        let (accepter, own) = (listener.clone(), accepting.clone());
        pending.add("accept", async move {
            let outcome = accepter.accept_next(&own, AcceptParams::default()).await;
            outcome.map_or_else(|error| error.status(), |_| Status::SUCCESS)
        });
        let theirs = queue_pair(&right);
        let _incomplete = within(right.connector().connect(&theirs, address, ConnectParams::default()))
            .await
            .expect("accepted");
        pending.add("receive, accepting", completion(accepting.receive(left.buffer(8).unwrap()).unwrap()));
        for _ in 0..2 {
            let listener = listener.clone();
            pending.add("request", async move {
                listener.request().await.map_or_else(|error| error.status(), |_| Status::SUCCESS)
            });
        }

        let live = connected_across(&left, &right, RIGHT[0]).await;
        pending.add("disconnected", disconnected(live.active.connection.clone()));
        pending.add("disconnected, again", disconnected(live.active.connection.clone()));
        let receives = [(); 2].map(|()| live.active.queue_pair.receive(left.buffer(8).unwrap()).unwrap());
        for receive in receives {
            pending.add("receive, connected", completion(receive));
        }

        // The peers of these two hear nothing more.
        let deaf = connected_across(&left, &right, RIGHT[0]).await;
        let leaving = connected_across(&left, &right, RIGHT[0]).await;
        let memory = right.register(LARGE, Access::REMOTE_READ | Access::REMOTE_WRITE).await.unwrap();
        let ports = [&deaf, &leaving].map(|pair| pair.passive.connection.local_addr().port().to_string());
        let ports = ports.join(", ");
        filter(&format!("tcp dport {{ {ports} }} drop; tcp sport {{ {ports} }} drop;"));
        let queue = &deaf.active.queue_pair;
        pending.add("disconnected, deaf", disconnected(deaf.active.connection.clone()));
        pending.add("receive, deaf", completion(queue.receive(left.buffer(8).unwrap()).unwrap()));
        let read = queue.read(left.buffer(8).unwrap(), &memory.remote()).unwrap();
        pending.add("read", completion(read));
        pending.add("send, blocked", completion(queue.send(left.buffer(LARGE).unwrap()).unwrap()));
        let write = queue.write(left.buffer(LARGE).unwrap(), &memory.remote()).unwrap();
        pending.add("write, behind it", completion(write));
        let connection = leaving.active.connection.clone();
        pending.add("disconnect", async move {
            connection.disconnect().await.map_or_else(|error| error.status(), |()| Status::SUCCESS)
        });
        let results = left.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
        for kind in [NotifyKind::Any, NotifyKind::Errors] {
            let told = results.notify(kind);
            pending.add("notify", async move {
                told.await.map_or_else(|error| error.status(), |()| Status::SUCCESS)
            });
        }

        let pool = left.pool(PoolConfig::new(8, 1)).expect("a pool");
        let only = within(pool.get()).await.expect("memory");
        for what in ["buffer of a pool", "buffer of a pool, again"] {
            let pool = pool.clone();
            pending.add(what, async move {
                pool.get().await.map_or_else(|error| error.status(), |_| Status::SUCCESS)
            });
        }

        pending.are_pending().await;
        assert!(!left.is_removed());
        removal.iter().for_each(|command| ip(command));
        // Every pending call of this adapter completes with DEVICE_REMOVED (AD-05).
        pending.all_end_with(Status::DEVICE_REMOVED).await;
        assert!(left.is_removed());
        drop(only);
        // The other adapter is as it was, if it still has its addresses.
        if !right.is_removed() {
            let (listener, _) = listening_at(&right, RIGHT[0]);
            assert!(listener.local_addr().is_ok());
        }
    });
}

#[test]
fn everything_pending_ends_when_the_addresses_are_deleted() {
    everything_pending_ends(&["address del 10.77.0.1/24 dev left", "address del fd77::1/64 dev left"]);
}

#[test]
fn everything_pending_ends_when_the_interface_is_deleted() {
    everything_pending_ends(&["link del left"]);
}

#[test]
fn adapter_lives_until_its_last_address_goes() {
    with_two_interfaces(async || {
        let (left, right) = (left(), right());
        let pair = connected_across(&left, &right, RIGHT[1]).await;
        ip("address del 10.77.0.1/24 dev left");
        // The remaining address keeps the adapter and its connection (AD-05).
        exchange((&left, &pair.active), (&right, &pair.passive)).await;
        assert!(!left.is_removed());
        let disconnected = disconnected(pair.active.connection.clone());
        ip("address del fd77::1/64 dev left");
        assert_eq!(within(disconnected).await, Status::DEVICE_REMOVED);
        assert!(left.is_removed());
    });
}

#[test]
fn removed_adapter_allows_only_cleanup() {
    with_two_interfaces(async || {
        let (left, right) = (left(), right());
        let id = left.info().id;
        // A part of everything, in the states that calls are made from.
        let pair = connected_across(&left, &right, RIGHT[0]).await;
        let region = left.register(64, Access::LOCAL_WRITE).await.expect("registered");
        let peer_memory = right.register(64, Access::REMOTE_READ | Access::REMOTE_WRITE).await.unwrap();
        let (unconnected, mine) = (queue_pair(&left), [queue_pair(&left), queue_pair(&left)]);
        let bound = left.listener();
        bound.bind(SocketAddr::new(LEFT[0], 0)).expect("bound");
        let bound_connector = left.connector();
        bound_connector.bind(SocketAddr::new(LEFT[0], 0)).expect("bound");
        let (listener, address) = listening_at(&left, LEFT[0]);
        let (other, at) = listening_at(&right, RIGHT[0]);
        let asking: Vec<_> = (0..2)
            .map(|_| {
                let (connector, queue_pair) = (right.connector(), queue_pair(&right));
                tokio::spawn(async move {
                    let _ = connector.connect(&queue_pair, address, ConnectParams::default()).await;
                })
            })
            .collect();
        let requests = [
            within(listener.request()).await.expect("a request"),
            within(listener.request()).await.expect("a request"),
        ];
        let answering = tokio::spawn(async move {
            let queue_pairs = [queue_pair(&right), queue_pair(&right)];
            let accept = |own| other.accept_next(own, AcceptParams::default());
            let _ = tokio::join!(accept(&queue_pairs[0]), accept(&queue_pairs[1]));
        });
        let replies = [
            within(left.connector().connect(&mine[0], at, ConnectParams::default())).await.expect("a reply"),
            within(left.connector().connect(&mine[1], at, ConnectParams::default())).await.expect("a reply"),
        ];
        let pool = left.pool(PoolConfig::new(8, 2)).expect("a pool");
        drop(within(pool.get()).await.expect("memory"));
        let buffer = || left.buffer(8).expect("memory");
        let waiting = disconnected(pair.active.connection.clone());
        ip("address flush dev left");
        assert_eq!(within(waiting).await, Status::DEVICE_REMOVED);

        let mut outcomes: Vec<(&str, Option<Status>)> = Vec::new();
        let mut say = |what, outcome: Option<Status>| outcomes.push((what, outcome));
        let queue = &pair.active.queue_pair;
        say("queue_pair", left.queue_pair(Default::default()).err().map(|error| error.status()));
        say("register", left.register(8, Access::LOCAL_WRITE).await.err().map(|error| error.status()));
        region.deregister().await.expect("deregistered");
        let again = region.register_again(Access::LOCAL_WRITE).await;
        say("register_again", again.err().map(|error| error.status()));
        say("pool", left.pool(PoolConfig::new(8, 1)).err().map(|error| error.status()));
        say("buffer of a pool", within(pool.get()).await.err().map(|error| error.status()));
        say("buffer of a pool, now", pool.try_get().err().map(|error| error.status()));
        let anywhere = SocketAddr::new(LEFT[0], 0);
        say("connector.bind", left.connector().bind(anywhere).err().map(|error| error.status()));
        say("listener.bind", left.listener().bind(anywhere).err().map(|error| error.status()));
        for (what, connector) in [("connect", left.connector()), ("connect, bound", bound_connector)] {
            let outcome = within(connector.connect(&unconnected, at, ConnectParams::default())).await;
            say(what, outcome.err().map(|error| error.status()));
        }
        say("listen", bound.listen(0).err().map(|error| error.status()));
        say("request", within(listener.request()).await.err().map(|error| error.status()));
        let [first, second] = requests;
        let outcome = within(first.accept(&unconnected, AcceptParams::default())).await;
        say("accept", outcome.err().map(|error| error.status()));
        say("reject, passive", within(second.reject(b"")).await.err().map(|error| error.status()));
        let [first, second] = replies;
        say("complete", within(first.complete()).await.err().map(|error| error.status()));
        say("reject, active", within(second.reject(b"")).await.err().map(|error| error.status()));
        say("receive", unconnected.receive(buffer()).err().map(|error| error.status()));
        say("receive, connected", queue.receive(buffer()).err().map(|error| error.status()));
        say("send", queue.send(buffer()).err().map(|error| error.status()));
        say("write", queue.write(buffer(), &peer_memory.remote()).err().map(|error| error.status()));
        say("read", queue.read(buffer(), &peer_memory.remote()).err().map(|error| error.status()));
        let connection = &pair.active.connection;
        say("disconnect", within(connection.disconnect()).await.err().map(|error| error.status()));
        say("disconnected", Some(within(connection.disconnected()).await.status()));
        for (what, outcome) in outcomes {
            // Every later call fails with DEVICE_REMOVED (AD-05).
            assert_eq!(outcome, Some(Status::DEVICE_REMOVED), "{what}");
        }
        let provider = Provider::soft().expect("the soft provider");
        assert_eq!(provider.resolve(LEFT[0]).expect_err("gone").status(), Status::INVALID_ADDRESS);
        assert_eq!(provider.open(id).expect_err("gone").status(), Status::INVALID_PARAMETER);

        // AD-05: cleanup works, and leaves nothing.
        region.deregister().await.expect("deregistered");
        connection.cancel();
        queue.flush();
        asking.iter().for_each(JoinHandle::abort);
        answering.abort();
        drop((asking, answering));
        drop((pool, pair, region, peer_memory, unconnected, mine, bound, listener, left));
        nothing_left().await;
        let sockets = std::fs::read_to_string("/proc/thread-self/net/tcp").expect("the sockets");
        // The tenth column is the inode: 0 for sockets that the kernel alone still closes.
        let open = |line: &&str| line.split_whitespace().nth(9).is_some_and(|inode| inode != "0");
        let orphans: Vec<_> = sockets.lines().skip(1).filter(open).collect();
        assert!(orphans.is_empty(), "{orphans:?}");
    });
}

#[test]
fn returning_address_is_new_adapter_with_free_ports() {
    with_two_interfaces(async || {
        let config = || config().ephemeral_ports(50_001..=50_002);
        let right = right();
        let mut kept = Vec::new();
        for _ in 0..3 {
            let left = soft_at(LEFT[0], config());
            let pair = connected_across(&left, &right, RIGHT[0]).await;
            let (listener, _) = listening_at(&left, LEFT[0]);
            let error = left.connector().bind(SocketAddr::new(LEFT[0], 0)).expect_err("both are taken");
            assert_eq!(error.status(), Status::TOO_MANY_ADDRESSES);
            ip("address flush dev left");
            // The adapter ends with its address, and its ports are free although its handles still exist (AD-05).
            assert_eq!(within(listener.request()).await.expect_err("gone").status(), Status::DEVICE_REMOVED);
            let gone = disconnected(pair.active.connection.clone());
            assert_eq!(within(gone).await, Status::DEVICE_REMOVED);
            ip("address add 10.77.0.1/24 dev left");
            // It does not come back to life itself.
            assert!(left.is_removed());
            assert!(left.connector().bind(SocketAddr::new(LEFT[0], 0)).is_err());
            // The next round finds both ports free, though the handles of this one are still there.
            kept.push((pair, listener, left));
        }
    });
}
