//! The network of an execution, and the runtime that executions share.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::{Instant, sleep, timeout};
use tokio_rdma::sim::{Host, Network};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Adapter, Listener};

/// The virtual time after which a wait is a hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The smallest step of the clock of the runtime.
const TICK: Duration = Duration::from_millis(1);

/// The most bytes of a segment: what the peer writes at once also arrives at once.
const SEGMENT: usize = 65_000;

const OURS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// The port that our stack listens at, and that of the peer.
const PORT: u16 = 7471;

thread_local! {
    static RUNTIME: Cell<Option<Runtime>> = const { Cell::new(None) };
}

/// Runs an execution. All of its tasks end soon after it.
///
/// # Panics
/// If one does not.
pub(crate) fn run(execution: impl Future<Output = ()>) {
    let kept = RUNTIME.take();
    let runtime = kept.unwrap_or_else(|| {
        Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime")
    });
    runtime.block_on(async {
        execution.await;
        let (metrics, begin) = (Handle::current().metrics(), Instant::now());
        while metrics.num_alive_tasks() > 0 {
            assert!(begin.elapsed() < PATIENCE, "a task outlives everything that it is for");
            idle(begin).await;
        }
    });
    RUNTIME.set(Some(runtime));
}

/// Waits until every task waits: the clock moves only then. The longer the caller has waited, the longer this takes.
pub(crate) async fn idle(since: Instant) {
    sleep(TICK.max(since.elapsed() / 4)).await;
}

/// Resolves as the future does.
///
/// # Panics
/// If the future is not ready in time.
pub(crate) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    match timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("waiting in vain until {what}"),
    }
}

/// A network with the host of our stack and that of the peer.
pub(crate) struct Stage {
    ours: Host,
    pub(crate) peer: Host,
}

impl Stage {
    /// A network without latency. With `narrow` its streams hold little.
    pub(crate) fn new(narrow: bool) -> Self {
        let network = Network::new(0);
        let (ours, peer) = (network.host(OURS), network.host(PEER));
        network.link(&ours, &peer).latency(Duration::ZERO..=Duration::ZERO).segments(SEGMENT..=SEGMENT);
        if narrow {
            network.buffers(4096, 4096);
        }
        Self { ours, peer }
    }

    /// The adapter of our stack.
    pub(crate) fn adapter(&self, crc: bool) -> Adapter {
        let config = SoftConfig::default().crc(crc).path_timeout(None);
        self.ours.provider_with(config).open(OURS).expect("opened")
    }

    /// The address that our stack listens at.
    pub(crate) fn address(&self) -> SocketAddr {
        (OURS, PORT).into()
    }

    /// The address that the peer listens at.
    pub(crate) fn peer_address(&self) -> SocketAddr {
        (PEER, PORT).into()
    }

    /// A listener of our stack.
    pub(crate) fn listener(&self, adapter: &Adapter) -> Listener {
        let listener = adapter.listener();
        listener.bind(self.address()).expect("bound");
        listener.listen(0).expect("listening");
        listener
    }
}
