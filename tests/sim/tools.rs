//! The tools of races and schedules: calls that must end, and the check that nothing is left.

use std::fmt::Debug;
use std::iter;
use std::ops::RangeInclusive;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::{sleep, timeout};
use tokio_rdma::error::{AcceptError, ConnectError, DisconnectError};
use tokio_rdma::sim::{Host, Network};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{AcceptorConfig, Adapter, DisconnectReason, Listener, Request};

use crate::{PATH_TIMEOUT, PORT};

/// The ports of each host.
pub(crate) const PORTS: RangeInclusive<u16> = 50_000..=50_003;

/// No call takes longer: the path timeout, the timeouts of TCP, and a fault of a minute.
const PATIENCE: Duration = Duration::from_secs(400);

/// The time after which nothing is left of a connection: an orphan of TCP lives for 100 s.
const REST: Duration = Duration::from_secs(300);

pub(crate) const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// The two sides of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Side {
    Active,
    Passive,
}

/// A call that has a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Call {
    Connect,
    Complete,
    Request,
    Accept,
    Disconnected,
    Disconnect,
}

/// Polls a future only when it was woken itself, whatever else wakes the task: a waker that is lost shows.
async fn alone<F: Future>(future: F) -> F::Output {
    let mut alone: FuturesUnordered<F> = iter::once(future).collect();
    alone.next().await.expect("it is there")
}

/// Waits for a call, which must end. Returns its result, and the name of the result.
pub(crate) async fn must_end<T, E: Kind>(
    call: Call,
    future: impl Future<Output = Result<T, E>>,
    context: &impl Debug,
) -> (Result<T, E>, String) {
    let outcome = timeout(PATIENCE, alone(future)).await;
    let outcome = outcome.unwrap_or_else(|_| panic!("{call:?} has no result: {context:?}"));
    let name = outcome.as_ref().map_or_else(Kind::kind, |_| "Ok");
    (outcome, name.into())
}

/// A result of a call other than success, of which the tables have the kind.
pub(crate) trait Kind {
    /// Returns the name of the variant.
    fn kind(&self) -> &'static str;
}

macro_rules! kinds {
    ($($error:ident { $($variant:ident)+ })+) => {$(
        impl Kind for $error {
            fn kind(&self) -> &'static str {
                match self {
                    $($error::$variant { .. } => stringify!($variant),)+
                    other => panic!("{other:?} is in no table"),
                }
            }
        }
    )+};
}

kinds! {
    ConnectError {
        Refused Rejected NetworkUnreachable HostUnreachable TimedOut InvalidBufferSize Active QueuePairActive Invalid Canceled
        Aborted DeviceRemoved InvalidAddress ForeignQueuePair AddressAlreadyExists Bind NotSupported Other
    }
    AcceptError {
        Refused Aborted TimedOut InvalidBufferSize Active ForeignQueuePair Canceled NotListening DeviceRemoved NotSupported Other
    }
    DisconnectError { Lost Invalid Canceled TimedOut DeviceRemoved }
    DisconnectReason { Peer Local Lost DeviceRemoved Canceled }
}

/// The adapter of a host, with few ports.
pub(crate) fn open(host: &Host) -> Adapter {
    let config = SoftConfig::default().path_timeout(Some(PATH_TIMEOUT)).ephemeral_ports(PORTS);
    host.provider_with(config).open(host.address()).expect("opened")
}

/// All handles are dropped: no task, no connection and no port is left.
pub(crate) async fn assert_nothing_left(network: &Network, hosts: &[Host; 2], tasks: usize) {
    let [first, second] = hosts;
    for host in hosts {
        host.restore_interface();
        host.restart();
        host.thaw();
    }
    network.heal(first, second);
    sleep(REST).await;
    assert_eq!(network.reset(first, second), 0, "a connection is left");
    assert_eq!(alive(), tasks, "a task is left");
    for host in hosts {
        let adapter = open(host);
        let connectors = PORTS.chain([PORT]).map(|port| {
            let connector = adapter.connector();
            connector.bind((host.address(), port).into()).expect("a free port");
            connector
        });
        drop(connectors.collect::<Vec<_>>());
    }
}

/// Closes a listener, also for the futures that wait: an acceptor does that when it is dropped.
pub(crate) fn close(listener: Option<Listener>) {
    let answer = |_: Request| async { Ok(()) };
    drop(listener.map(|listener| listener.acceptor(AcceptorConfig::default(), answer)));
}

/// The number of tasks of the runtime.
pub(crate) fn alive() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}
