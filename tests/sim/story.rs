//! A connection from its request to its end, and one event that comes in between: the calls of both users, and their results.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{join, join_all};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_rdma::sim::{Host, Network};
use tokio_rdma::{
    AcceptParams, Adapter, ConnectParams, Connection, Connector, Listener, QueuePair, ReadLimits,
};

use crate::tools::{Call, Kind, Side, alive, assert_nothing_left, close, ms, must_end, open};
use crate::{PATH_TIMEOUT, PORT, hosts, queue_pair};
use Side::{Active, Passive};

/// The time that a segment is on its way.
pub(crate) const LATENCY: u64 = 10;
/// The time that each user thinks before it accepts or completes.
const THOUGHT: u64 = 5;
/// The time for which the active side stays connected before it disconnects.
const STAY: u64 = 25;

/// The results of the calls by name, in the order in which they came.
pub(crate) type Results = Vec<(Side, Call, String)>;

/// An event that happens to one end, or to the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// `cancel` of each handle.
    Cancel(Side),
    /// The future of the call that is pending is dropped, with every handle but those of the adapter and the queue pair.
    Drop(Side),
    /// The handle of the queue pair is dropped. A call that is pending has one of its own.
    DropQueuePair(Side),
    /// The adapter is removed.
    Remove(Side),
    /// The host crashes.
    Crash(Side),
    /// The listener is closed.
    CloseListener,
    /// All connections are reset.
    Reset,
    /// The path is cut, for good.
    Cut,
}

/// When an act happens: at this millisecond, before or after what else happens in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) at: u64,
    /// The act comes before the calls of both sides have their turn; otherwise behind them.
    pub(crate) first: bool,
    /// The number of times that all other tasks have their turn before.
    pub(crate) turns: usize,
}

/// A future that somebody else may drop.
struct Held<'a>(RefCell<Option<Pin<Box<dyn Future<Output = ()> + 'a>>>>);

impl Held<'_> {
    /// Runs it until it is over, or dropped.
    async fn run(&self) {
        poll_fn(|cx| {
            let mut held = self.0.borrow_mut();
            let Some(future) = held.as_mut() else { return Poll::Ready(()) };
            let polled = future.as_mut().poll(cx);
            if polled.is_ready() {
                *held = None;
            }
            polled
        })
        .await;
    }
}

/// The handles of one side.
struct End {
    host: Host,
    adapter: Adapter,
    queue_pair: RefCell<Option<QueuePair>>,
    connector: RefCell<Option<Connector>>,
    listener: RefCell<Option<Listener>>,
    connection: RefCell<Option<Connection>>,
}

impl End {
    fn new(host: Host) -> Self {
        let adapter = open(&host);
        let queue_pair = RefCell::new(Some(queue_pair(&adapter)));
        Self {
            host,
            adapter,
            queue_pair,
            connector: RefCell::default(),
            listener: RefCell::default(),
            connection: RefCell::default(),
        }
    }

    /// A handle of the queue pair, while the user has one.
    fn queue_pair(&self) -> Option<QueuePair> {
        self.queue_pair.borrow().clone()
    }

    fn cancel(&self) {
        self.connector.borrow().iter().for_each(Connector::cancel);
        self.listener.borrow().iter().for_each(Listener::cancel);
        self.connection.borrow().iter().for_each(Connection::cancel);
    }
}

/// A server and a client, and the results of their calls.
pub(crate) struct Stage {
    network: Network,
    begin: Instant,
    ends: [End; 2],
    results: RefCell<Results>,
    tasks: usize,
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.results.borrow().fmt(f)
    }
}

impl Stage {
    /// A listener on the server, and a connector on the client.
    pub(crate) fn new(network: &Network) -> Self {
        let tasks = alive();
        let (server, client) = hosts(network);
        network.link(&server, &client).latency(ms(LATENCY)..=ms(LATENCY));
        let stage = Self {
            network: network.clone(),
            begin: Instant::now(),
            ends: [End::new(client), End::new(server)],
            results: RefCell::default(),
            tasks,
        };
        let [active, passive] = &stage.ends;
        let listener = passive.adapter.listener();
        listener.bind((passive.host.address(), PORT).into()).expect("bound");
        listener.listen(0).expect("listening");
        *passive.listener.borrow_mut() = Some(listener);
        *active.connector.borrow_mut() = Some(active.adapter.connector());
        stage
    }

    fn end(&self, side: Side) -> &End {
        &self.ends[side as usize]
    }

    /// Waits for a call, and notes its result.
    async fn call<T, E: Kind>(
        &self,
        side: Side,
        call: Call,
        future: impl Future<Output = Result<T, E>>,
    ) -> Option<T> {
        let (result, name) = must_end(call, future, self).await;
        self.results.borrow_mut().push((side, call, name));
        result.ok()
    }

    /// Connects, thinks, completes, stays, and disconnects.
    async fn active(&self) {
        let end = self.end(Active);
        let address = (self.end(Passive).host.address(), PORT).into();
        let params = ConnectParams::default().private_data(b"question").read_limits(ReadLimits::new(7, 5));
        let Some(queue_pair) = end.queue_pair() else { return };
        let connect = end.connector.borrow().as_ref().map(|it| it.connect(&queue_pair, address, params));
        drop(queue_pair);
        let Some(connect) = connect else { return };
        let Some(reply) = self.call(Active, Call::Connect, connect).await else { return };
        // An adapter that is removed at this moment has taken the answers with it.
        let removed = end.adapter.is_removed();
        assert!(removed || reply.private_data()[..] == b"answer"[..]);
        assert!(removed || reply.read_limits() == ReadLimits::new(3, 2));
        sleep(ms(THOUGHT)).await;
        let completed = self.call(Active, Call::Complete, reply.complete()).await;
        let Some(connection) = completed else { return };
        assert_eq!(connection.read_limits(), ReadLimits::new(3, 2));
        self.stay(Active, connection, async { sleep(ms(STAY)).await }).await;
    }

    /// Accepts a request, and waits until the peer disconnects.
    async fn passive(&self) {
        let end = self.end(Passive);
        let Some(listener) = end.listener.borrow().clone() else { return };
        let requested = self.call(Passive, Call::Request, listener.request()).await;
        drop(listener);
        let Some(request) = requested else { return };
        let removed = end.adapter.is_removed();
        assert!(removed || request.private_data()[..] == b"question"[..]);
        assert!(removed || request.read_limits() == ReadLimits::new(5, 7));
        sleep(ms(THOUGHT)).await;
        let Some(queue_pair) = end.queue_pair() else { return };
        let params = AcceptParams::default().private_data(b"answer").read_limits(ReadLimits::new(2, 3));
        let accepting =
            async { request.accept(&queue_pair, params).await.map_err(|retained| retained.error) };
        let accepted = self.call(Passive, Call::Accept, accepting).await;
        drop(queue_pair);
        let Some(connection) = accepted else { return };
        assert_eq!(connection.read_limits(), ReadLimits::new(2, 3));
        let ended = connection.disconnected();
        self.stay(Passive, connection, ended.map(|_reason| ())).await;
    }

    /// Waits for the end of a connection, and disconnects after `staying`.
    async fn stay(&self, side: Side, connection: Connection, staying: impl Future<Output = ()>) {
        let ended = connection.disconnected();
        *self.end(side).connection.borrow_mut() = Some(connection.clone());
        let watching = async {
            let ended = async { Err::<(), _>(ended.await) };
            self.call(side, Call::Disconnected, ended).await;
        };
        let leaving = async {
            staying.await;
            let disconnect = connection.disconnect();
            self.call(side, Call::Disconnect, disconnect).await;
        };
        join(watching, leaving).await;
    }

    /// Performs an act.
    fn perform(&self, act: Act, held: &[Held<'_>; 2]) {
        let [active, passive] = &self.ends;
        match act {
            Act::Cancel(side) => self.end(side).cancel(),
            Act::Drop(side) => {
                let future = held[side as usize].0.take();
                drop(future);
                let end = self.end(side);
                drop((end.connector.take(), end.listener.take(), end.connection.take()));
            }
            Act::DropQueuePair(side) => drop(self.end(side).queue_pair.take()),
            Act::Remove(side) => self.end(side).host.remove_interface(),
            Act::Crash(side) => self.end(side).host.crash(),
            Act::CloseListener => close(passive.listener.take()),
            Act::Reset => drop(self.network.reset(&active.host, &passive.host)),
            Act::Cut => self.network.partition(&active.host, &passive.host, Duration::MAX),
        }
    }

    /// Runs both sides to their ends, with an act in between. Returns the results.
    pub(crate) async fn run(self, act: Act, moment: Moment) -> Results {
        let held = [Box::pin(self.active()) as Pin<Box<dyn Future<Output = ()>>>, Box::pin(self.passive())]
            .map(|future| Held(RefCell::new(Some(future))));
        let acting = async {
            sleep_until(self.begin + ms(moment.at)).await;
            for _ in 0..moment.turns {
                yield_now().await;
            }
            self.perform(act, &held);
            // A future that was dropped is looked at once more.
            yield_now().await;
            sleep(2 * PATH_TIMEOUT).await;
            // Nobody comes any more.
            close(self.end(Passive).listener.take());
        };
        let [active, passive] = &held;
        let mut sides: Vec<Pin<Box<dyn Future<Output = ()>>>> =
            vec![Box::pin(active.run()), Box::pin(passive.run())];
        sides.insert(if moment.first { 0 } else { 2 }, Box::pin(acting));
        join_all(sides).await;
        drop(held);
        let results = self.results.take();
        self.assert_nothing_left().await;
        results
    }

    /// Drops all handles, and checks that nothing is left.
    async fn assert_nothing_left(self) {
        let Self { network, ends, tasks, .. } = self;
        assert_nothing_left(&network, &ends.map(|end| end.host), tasks).await;
    }
}
