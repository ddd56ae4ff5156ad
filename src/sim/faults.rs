//! Faults that are drawn from the seed.

use std::ops::RangeInclusive;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::sleep;

use super::network::{Host, Network};
use crate::net::sim::Settings;

/// A kind of fault: [`Faults::kinds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// [`Network::partition`].
    Partition,
    /// [`Network::partition_one_way`].
    PartitionOneWay,
    /// [`Network::stall`].
    Stall,
    /// A bandwidth of 10 KB/s to 1 MB/s.
    SlowLink,
    /// [`Link::idle_limit`](super::Link::idle_limit), of 1 s to 20 s.
    IdleLimit,
    /// [`Network::reset`].
    Reset,
    /// [`Host::freeze`].
    Freeze,
    /// [`Host::crash`].
    Crash,
    /// [`Host::remove_interface`].
    NoInterface,
    /// No port is left: [`Host::limit_ports`].
    NoPorts,
    /// No socket is left: [`Host::limit_sockets`].
    NoSockets,
    /// No memory is left: [`Host::limit_memory`].
    NoMemory,
}

impl Fault {
    /// The faults that connections meet. They leave the hosts, their adapters and their resources as they are.
    pub const OF_CONNECTIONS: [Self; 7] = [
        Self::Partition,
        Self::PartitionOneWay,
        Self::Stall,
        Self::SlowLink,
        Self::IdleLimit,
        Self::Reset,
        Self::Freeze,
    ];

    /// The faults of hosts: they lose their connections, or a resource.
    pub const OF_HOSTS: [Self; 5] =
        [Self::Crash, Self::NoInterface, Self::NoPorts, Self::NoSockets, Self::NoMemory];
}

/// Faults that are drawn from the seed: [`Network::faults`].
#[derive(Clone, Debug)]
#[must_use = "nothing happens before `run`"]
pub struct Faults {
    network: Network,
    hosts: Vec<Host>,
    kinds: Vec<Fault>,
    count: RangeInclusive<u64>,
    within: Duration,
    lasting: RangeInclusive<Duration>,
}

impl Network {
    /// Returns faults of these hosts, and of the links between them, that [`Faults::run`] draws from the seed.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// tokio_rdma::sim::check(0..10, |network| async move {
    ///     let hosts = [network.host("10.0.0.1"), network.host("10.0.0.2")];
    ///     let service = async { /* ... */ };
    ///     let faults = network.faults(&hosts).count(1..=5).within(Duration::from_secs(10));
    ///     tokio::join!(service, faults.run());
    ///     // Now the service works again.
    /// });
    /// ```
    pub fn faults<'a>(&self, hosts: impl IntoIterator<Item = &'a Host>) -> Faults {
        Faults {
            network: self.clone(),
            hosts: hosts.into_iter().cloned().collect(),
            kinds: Fault::OF_CONNECTIONS.to_vec(),
            count: 0..=3,
            within: Duration::from_secs(60),
            lasting: Duration::from_millis(1)..=Duration::from_secs(60),
        }
    }
}

impl Faults {
    /// Sets the kinds. Default: [`Fault::OF_CONNECTIONS`].
    pub fn kinds(mut self, kinds: impl IntoIterator<Item = Fault>) -> Self {
        self.kinds = kinds.into_iter().collect();
        self
    }

    /// Sets the number of faults. Default: none to 3.
    pub fn count(mut self, count: RangeInclusive<u64>) -> Self {
        self.count = count;
        self
    }

    /// Sets the time within which the faults begin. Default: a minute.
    pub fn within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }

    /// Sets how long each lasts. A reset takes no time. Default: a millisecond to a minute.
    pub fn lasting(mut self, time: RangeInclusive<Duration>) -> Self {
        self.lasting = time;
        self
    }

    /// Draws the faults, and lets them happen. Resolves when the last one has ended: hosts run, with their interfaces and without
    /// limits, and links carry what they did before.
    ///
    /// Faults overlap. Where two of a kind concern the same host or link, both end with the first.
    ///
    /// # Cancel safety
    /// Dropping the future ends the faults that have begun.
    pub async fn run(self) {
        let Self { network, hosts, kinds, count, .. } = &self;
        if hosts.is_empty() || kinds.is_empty() {
            return;
        }
        // All are drawn before the first begins, so that no event of the network changes the draws.
        let drawn: Vec<_> = (0..network.random(count.clone())).map(|_| self.draw()).collect();
        join_all(drawn.into_iter().map(Drawn::happen)).await;
    }

    fn draw(&self) -> Drawn {
        let network = &self.network;
        let draw = |time: RangeInclusive<Duration>| {
            let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            Duration::from_nanos(network.random(nanos(*time.start())..=nanos(*time.end())))
        };
        let (begin, length) = (draw(Duration::ZERO..=self.within), draw(self.lasting.clone()));
        let below = |count: usize| {
            let last = (count as u64).saturating_sub(1);
            usize::try_from(network.random(0..=last)).unwrap_or(0)
        };
        let kind = self.kinds[below(self.kinds.len())];
        let first = below(self.hosts.len());
        // Another one, if there is another.
        let second = (first + 1 + below(self.hosts.len() - 1)) % self.hosts.len();
        let [first, second] = [first, second].map(|place| self.hosts[place].clone());
        let bandwidth = network.random(10_000..=1_000_000);
        let idle_limit = draw(Duration::from_secs(1)..=Duration::from_secs(20));
        let before = directions(&first, &second).map(|(from, to)| self.network.world.link_settings(from, to));
        let network = network.clone();
        Drawn { network, kind, first, second, begin, length, bandwidth, idle_limit, before }
    }
}

/// A fault that was drawn.
struct Drawn {
    network: Network,
    kind: Fault,
    first: Host,
    second: Host,
    begin: Duration,
    length: Duration,
    bandwidth: u64,
    idle_limit: Duration,
    /// The settings of the link before, each way.
    before: [Settings; 2],
}

/// Returns the two directions of a link.
fn directions(first: &Host, second: &Host) -> [(usize, usize); 2] {
    [(first.number(), second.number()), (second.number(), first.number())]
}

impl Drawn {
    /// Lasts as long as the fault.
    async fn happen(self) {
        sleep(self.begin).await;
        let length = if self.kind == Fault::Reset { Duration::ZERO } else { self.length };
        let begun = Begun(self);
        begun.0.set(true);
        sleep(length).await;
    }

    /// Changes the settings of the link, which were these before.
    fn set_link(&self, change: impl Fn(&mut Settings, &Settings)) {
        for ((from, to), before) in directions(&self.first, &self.second).into_iter().zip(&self.before) {
            self.network.world.set_link(from, to, |settings| change(settings, before));
        }
    }

    /// Begins the fault, or ends it.
    fn set(&self, on: bool) {
        let Self { network, first, second, .. } = self;
        let time = if on { self.length } else { Duration::ZERO };
        let limit = on.then_some(0);
        match self.kind {
            Fault::Partition => network.partition(first, second, time),
            Fault::PartitionOneWay => network.partition_one_way(first, second, time),
            Fault::Stall => network.stall(first, second, time),
            Fault::SlowLink => self.set_link(|settings, before| {
                settings.bandwidth = if on { Some(self.bandwidth) } else { before.bandwidth };
            }),
            Fault::IdleLimit => self.set_link(|settings, before| {
                settings.idle_limit = if on { Some(self.idle_limit) } else { before.idle_limit };
            }),
            Fault::Reset if on => drop(network.reset(first, second)),
            Fault::Reset => {}
            Fault::Freeze if on => first.freeze(),
            Fault::Freeze => first.thaw(),
            Fault::Crash if on => first.crash(),
            Fault::Crash => first.restart(),
            Fault::NoInterface if on => first.remove_interface(),
            Fault::NoInterface => first.restore_interface(),
            Fault::NoPorts => first.limit_ports(limit),
            Fault::NoSockets => first.limit_sockets(limit),
            Fault::NoMemory => first.limit_memory(limit),
        }
    }
}

/// A fault that has begun, and ends with this value.
struct Begun(Drawn);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
