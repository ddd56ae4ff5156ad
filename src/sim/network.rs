//! Networks, their hosts, and the links between these.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::cm::{Adapter, LocalAddress, Provider};
use crate::error::OpenError;
use crate::net;
use crate::net::sim::{self, Settings, World};
use crate::soft::config::SoftConfig;
use crate::sync::LONGEST;

/// A simulated network.
///
/// `Network` is a cheap handle; clones refer to the same network. The network belongs to the runtime in which it was made:
/// everything on it runs there, on one thread, with paused clock. [`check`](super::check) makes such a runtime, and so does
/// `#[tokio::test(start_paused = true)]`. With a clock that runs, the network takes real time, and a seed repeats nothing.
///
/// Faults take effect when they are called. [`at`](Self::at) calls them at a set time, and [`faults`](Self::faults) draws them from
/// the seed.
#[derive(Clone, Debug)]
pub struct Network {
    pub(super) world: Arc<World>,
}

impl Network {
    /// Creates a network without hosts.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(seed: u64) -> Self {
        Self { world: World::new(seed) }
    }

    /// Returns the seed.
    pub fn seed(&self) -> u64 {
        self.world.seed
    }

    /// Returns the time since the network was created.
    pub fn elapsed(&self) -> Duration {
        self.world.start.elapsed()
    }

    /// Adds a host.
    ///
    /// # Panics
    /// If the text is not an address, or the network has a host with this address.
    pub fn host(&self, address: impl LocalAddress) -> Host {
        let Ok(address) = address.local_ip() else { panic!("a host has an address") };
        let address = address.to_canonical();
        match sim::Host::new(&self.world, address) {
            Some(host) => Host::new(host),
            None => panic!("the network has a host {address}"),
        }
    }

    /// Returns the link of two hosts, to change its settings. By default a segment is on its way for a millisecond, has at
    /// most 1460 bytes, and the bandwidth is not limited. From a host to itself the way takes no time.
    pub fn link(&self, first: &Host, second: &Host) -> Link {
        Link { world: self.world.clone(), ends: (first.number(), second.number()) }
    }

    /// Sets the sizes of the send and receive buffers of connections that are made from now on. Default: 128 KiB each.
    pub fn buffers(&self, send: usize, receive: usize) {
        self.world.set_buffers(send, receive);
    }

    /// Loses everything that two hosts send to each other, for this time from now on; a later call replaces an earlier one. TCP
    /// sends it again, so a partition that ends in time is only a delay.
    pub fn partition(&self, first: &Host, second: &Host, time: Duration) {
        self.partition_one_way(first, second, time);
        self.partition_one_way(second, first, time);
    }

    /// Loses everything that one host sends to the other, for this time.
    pub fn partition_one_way(&self, from: &Host, to: &Host, time: Duration) {
        self.world.cut(from.number(), to.number(), time);
    }

    /// Ends a partition of two hosts.
    pub fn heal(&self, first: &Host, second: &Host) {
        self.partition(first, second, Duration::ZERO);
    }

    /// Holds what two hosts send to each other, for this time from now on. It arrives afterwards.
    pub fn stall(&self, first: &Host, second: &Host, time: Duration) {
        self.world.stall(first.number(), second.number(), time);
        self.world.stall(second.number(), first.number(), time);
    }

    /// Resets the connections of two hosts at both ends, as a box between them may do. Returns their number.
    pub fn reset(&self, first: &Host, second: &Host) -> usize {
        self.world.reset_between(first.number(), second.number())
    }

    /// Returns the number of sockets of all hosts: listeners, and connections that are open or closing. A test that has dropped
    /// everything can compare it with 0.
    pub fn sockets(&self) -> usize {
        self.world.sockets()
    }

    /// Calls `fault` at this time since the network was created, or soon if that is past. It is not called if the runtime or the
    /// network has ended by then.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// tokio_rdma::sim::check(0..10, |network| async move {
    ///     let (server, client) = (network.host("10.0.0.1"), network.host("10.0.0.2"));
    ///     let (minute, other) = (Duration::from_secs(60), server.clone());
    ///     network.at(minute, move |network| network.partition(&client, &other, minute));
    ///     network.at(2 * minute, move |_| server.crash());
    /// });
    /// ```
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn at(&self, time: Duration, fault: impl FnOnce(&Self) + Send + 'static) {
        let wait = time.saturating_sub(self.elapsed()).min(LONGEST);
        let world = Arc::downgrade(&self.world);
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            if let Some(world) = world.upgrade() {
                fault(&Self { world });
            }
        });
    }

    /// Draws a number of the range from the seed, for a decision of the test. It does not change what the network draws.
    pub fn random(&self, range: RangeInclusive<u64>) -> u64 {
        self.world.choose(&range)
    }

    /// Returns a hash over everything that has happened: each segment with its bytes and its time, each fault. Two runs with
    /// the same hash were the same.
    pub fn trace_hash(&self) -> u64 {
        self.world.with_trace(|trace| trace.hash())
    }

    /// Captures the segments that arrive from now on, for [`pcap`](Self::pcap). An earlier capture is dropped.
    pub fn capture(&self) {
        self.world.with_trace(|trace| trace.capture());
    }

    /// Returns what was captured since [`capture`](Self::capture) as a file for Wireshark, whose iWARP dissector reads it. Empty
    /// if nothing was captured.
    pub fn pcap(&self) -> Vec<u8> {
        self.world.with_trace(|trace| trace.pcap()).unwrap_or_default()
    }

    /// Returns the last 4096 events as text, a line each.
    pub fn trace(&self) -> String {
        self.world.with_trace(|trace| trace.text())
    }
}

/// The link of two hosts, in both directions: [`Network::link`]. Each setting applies to segments that are sent from now on.
#[derive(Clone, Debug)]
pub struct Link {
    world: Arc<World>,
    ends: (usize, usize),
}

impl Link {
    /// Sets how long a segment is on its way. Each segment draws its own time; those of a connection stay in order.
    pub fn latency(self, time: RangeInclusive<Duration>) -> Self {
        let (start, end) = time.into_inner();
        self.change(|settings| settings.latency = start.min(LONGEST)..=end.min(LONGEST))
    }

    /// Sets how many bytes per second each direction carries. 0 counts as 1.
    pub fn bandwidth(self, bytes_per_second: u64) -> Self {
        self.change(|settings| settings.bandwidth = Some(bytes_per_second))
    }

    /// Sets how many bytes a segment has at most. Each segment draws its own limit, which is from 1 to 65,000.
    pub fn segments(self, bytes: RangeInclusive<usize>) -> Self {
        self.change(|settings| settings.segments = bytes.clone())
    }

    /// Sets after how long without a segment a box on the way, such as a firewall, forgets a connection. From then on all
    /// segments of the connection are lost.
    pub fn idle_limit(self, time: Duration) -> Self {
        self.change(|settings| settings.idle_limit = Some(time))
    }

    fn change(self, change: impl Fn(&mut Settings)) -> Self {
        let (first, second) = self.ends;
        self.world.set_link(first, second, &change);
        self.world.set_link(second, first, &change);
        self
    }
}

/// A host of a [`Network`], with one interface and an address, or one of each family.
///
/// `Host` is a cheap handle; clones refer to the same host.
#[derive(Clone, Debug)]
pub struct Host {
    host: net::sim::Host,
}

impl Host {
    pub(super) fn new(host: net::sim::Host) -> Self {
        Self { host }
    }

    pub(super) fn net(&self) -> &net::sim::Host {
        &self.host
    }

    pub(super) fn number(&self) -> usize {
        self.host.number
    }

    /// Returns the address with which the host was made.
    pub fn address(&self) -> IpAddr {
        self.host.address
    }

    /// Adds an address of the other family. Adapters that are open have it, too.
    ///
    /// # Panics
    /// If the text is not an address, if the host has an address of this family, or if the network has a host with this address.
    pub fn add_address(&self, address: impl LocalAddress) {
        let Ok(address) = address.local_ip() else { panic!("a host has an address") };
        let address = address.to_canonical();
        assert!(self.host.add_address(address), "the host cannot have the address {address}");
    }

    /// Returns the soft provider of this host, with default settings.
    pub fn provider(&self) -> Provider {
        self.provider_with(SoftConfig::default())
    }

    /// Returns the soft provider of this host. `config` applies to the adapters that it opens, except for
    /// [`spin`](SoftConfig::spin) and [`capture`](SoftConfig::capture), which are ignored: see
    /// [`Network::capture`](super::Network::capture).
    pub fn provider_with(&self, config: SoftConfig) -> Provider {
        Provider::simulated(net::Host::Sim(self.host.clone()), config.spin(Duration::ZERO))
    }

    /// Opens the adapter of this host, with default settings.
    ///
    /// # Errors
    /// `InvalidAddress` if the host has crashed or has lost its interface; `Unsupported` outside of a tokio runtime.
    pub fn adapter(&self) -> Result<Adapter, OpenError> {
        self.provider().open(self.address())
    }

    /// Stops the host without a message to its peers: from then on no segment leaves it, and segments that arrive are
    /// lost.
    ///
    /// The adapters of the host are removed, so what its programs wait for completes with `DEVICE_REMOVED`.
    pub fn crash(&self) {
        self.host.world.crash(self.number());
    }

    /// Starts the host again after [`crash`](Self::crash), with the same address. It has no connections and no listeners:
    /// peers that send to one of before are answered by a reset. Its programs open new adapters.
    pub fn restart(&self) {
        self.host.world.restart(self.number());
    }

    /// Stops the programs of the host: they can neither read nor write nor accept, and the timers of the provider are late. The
    /// host still acknowledges what arrives, until its buffers are full, as the kernel does for a process that is stopped.
    pub fn freeze(&self) {
        self.host.world.freeze(self.number(), true);
    }

    /// Lets the programs of the host run again after [`freeze`](Self::freeze).
    pub fn thaw(&self) {
        self.host.world.freeze(self.number(), false);
    }

    /// Limits the local ports in use. While there are as many or more, a bind to port 0 and a connect without a bind fail with
    /// `TooManyAddresses`; the program may still bind to a port that it names. `None` lifts the limit.
    pub fn limit_ports(&self, ports: Option<usize>) {
        self.host.limit(&self.host.ports, "ports", ports);
    }

    /// Limits the sockets in use, as the limit of descriptors does on a real host: each adapter, bound connector, bound
    /// listener and connection has one. Beyond the limit, what needs another one fails with `EMFILE`, whose status is
    /// `INSUFFICIENT_RESOURCES`. Listeners go on to listen: a peer that connects waits until its connection can be accepted.
    /// `None` lifts the limit.
    pub fn limit_sockets(&self, sockets: Option<usize>) {
        self.host.limit(&self.host.sockets, "sockets", sockets);
    }

    /// Limits the memory in use: the bytes of the buffers, pools and regions of the adapters. Beyond the limit, further ones
    /// are refused with `OutOfMemory`. While nothing is left, new sockets fail with `ENOBUFS`, as with
    /// [`limit_sockets`](Self::limit_sockets). The buffers of the sockets themselves are not counted:
    /// [`Network::buffers`](super::Network::buffers) sets their sizes. `None` lifts the limit.
    pub fn limit_memory(&self, bytes: Option<usize>) {
        self.host.limit(&self.host.memory, "bytes", bytes);
    }

    /// Takes the interface away, and with it the address. The adapters of the host are removed.
    pub fn remove_interface(&self) {
        self.host.world.attach(self.number(), false);
    }

    /// Gives the interface back after [`remove_interface`](Self::remove_interface), with the same address.
    pub fn restore_interface(&self) {
        self.host.world.attach(self.number(), true);
    }
}
