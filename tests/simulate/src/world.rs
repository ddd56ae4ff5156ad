//! A network with its hosts, and what is drawn for it.

use std::cell::Cell;
use std::future::Future;
use std::ops::RangeInclusive;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures::future::{self, Either};
use tokio::time::{sleep, timeout};
use tokio_rdma::Adapter;
use tokio_rdma::sim::{Host, Network};
use tokio_rdma::soft::SoftConfig;

/// The path timeout of every adapter.
pub(crate) const PATH_TIMEOUT: Duration = Duration::from_secs(30);

/// No wait is longer: the longest fault lasts for a minute, a dead path is noticed by the path timeout, and an end is waited
/// for by the disconnect timeout of 5 s.
const PATIENCE: Duration = Duration::from_secs(200);

/// The longest session: users that take their time as often as they may, and then wait for the end of their connection.
const SESSION: Duration = Duration::from_secs(60 * 60);

/// A network and what happens in it.
pub(crate) struct World {
    pub(crate) network: Network,
    pub(crate) hosts: Vec<Host>,
    /// There are no faults: what is not refused or dropped by a user has to succeed.
    pub(crate) calm: bool,
    operations: Cell<u64>,
    /// The sum of the times of all faults so far.
    disturbed: Cell<Duration>,
}

impl World {
    pub(crate) fn new(network: Network) -> Self {
        let hosts =
            (1..=network.random(2..=3)).map(|number| network.host(format!("10.0.0.{number}"))).collect();
        let calm = network.random(0..=3) == 0;
        let world = Self { network, hosts, calm, operations: Cell::default(), disturbed: Cell::default() };
        let hosts = &world.hosts;
        for (place, first) in hosts.iter().enumerate() {
            for second in &hosts[place..] {
                let latency =
                    Duration::ZERO..=Duration::from_micros(world.draw(0..=1) * world.draw(0..=60_000));
                let segments = 1..=*world.pick(&[40, 536, 1460, 9000, 65_000]);
                let _ = world.network.link(first, second).latency(latency).segments(segments);
            }
        }
        let buffer = || 1 << world.draw(9..=17);
        world.network.buffers(buffer(), buffer());
        world
    }

    /// Draws a number.
    pub(crate) fn draw(&self, range: RangeInclusive<u64>) -> u64 {
        self.network.random(range)
    }

    /// Returns `true` once in so many times.
    pub(crate) fn once_in(&self, times: u64) -> bool {
        self.draw(1..=times) == 1
    }

    /// Draws one of these.
    pub(crate) fn pick<'a, T>(&self, choices: &'a [T]) -> &'a T {
        &choices[self.draw(0..=choices.len() as u64 - 1) as usize]
    }

    /// Draws a time of at most so many milliseconds.
    pub(crate) fn time(&self, most: u64) -> Duration {
        Duration::from_millis(self.draw(0..=most))
    }

    /// Draws private data of at most this length that begins with `first`.
    pub(crate) fn data(&self, first: u8, most: usize) -> Vec<u8> {
        let length = *self.pick(&[1, 1, 8, 196, most]);
        (0..length.min(most)).map(|place| first.wrapping_add((place * 7) as u8)).collect()
    }

    /// Opens an adapter of a host, unless that is down.
    pub(crate) fn adapter(&self, host: &Host) -> Option<Adapter> {
        self.count();
        let config = SoftConfig::default().path_timeout(Some(PATH_TIMEOUT)).crc(self.once_in(2));
        let opened = host.provider_with(config).open(host.address());
        assert!(opened.is_ok() || !self.calm, "{opened:?}");
        opened.ok()
    }

    /// Draws two hosts, which may be the same.
    pub(crate) fn two_hosts(&self) -> (&Host, &Host) {
        (self.pick(&self.hosts), self.pick(&self.hosts))
    }

    /// Counts a call or a request.
    pub(crate) fn count(&self) {
        self.operations.set(self.operations.get() + 1);
    }

    pub(crate) fn operations(&self) -> u64 {
        self.operations.get()
    }

    /// Counts a fault that lasts for this time.
    pub(crate) fn disturb(&self, time: Duration) {
        self.disturbed.set(self.disturbed.get().saturating_add(time));
    }

    /// Returns the sum of the times of all faults so far.
    pub(crate) fn disturbed(&self) -> Duration {
        self.disturbed.get()
    }

    /// The longest wait.
    pub(crate) fn patience(&self) -> Duration {
        PATIENCE
    }

    /// Awaits something that has to end in time.
    pub(crate) async fn within<F: Future>(&self, name: &str, future: F) -> F::Output {
        match timeout(PATIENCE, future).await {
            Ok(output) => output,
            Err(_) => panic!("{name} has not ended after {PATIENCE:?}"),
        }
    }

    /// Awaits a session, which has to end in time, too.
    pub(crate) async fn within_a(&self, name: &str, session: impl Future<Output = ()>) {
        let ended = timeout(SESSION, session).await;
        assert!(ended.is_ok(), "a {name} has not ended after {SESSION:?}");
    }

    /// Drops a future that is not ready after a time or a number of polls that is drawn, or that was polled once and then
    /// forgotten for a while. A future without a limit of its own ends in time, too.
    pub(crate) async fn cut<F: Future>(&self, name: &str, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        if self.once_in(2) {
            let mut polls = self.draw(1..=4);
            let polled = future::poll_fn(|cx| {
                polls -= 1;
                match future.as_mut().poll(cx) {
                    Poll::Ready(output) => Poll::Ready(Some(output)),
                    Poll::Pending if polls == 0 => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }
            });
            return self.within(name, polled).await;
        }
        if self.once_in(3) {
            let Poll::Ready(output) = futures::poll!(future.as_mut()) else {
                sleep(self.time(500)).await;
                return None;
            };
            return Some(output);
        }
        let end = pin!(sleep(self.time(200)));
        match future::select(future, end).await {
            Either::Left((output, _)) => Some(output),
            Either::Right(_) => None,
        }
    }
}
