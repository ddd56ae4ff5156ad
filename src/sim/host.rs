//! Hosts.

use std::net::IpAddr;
use std::time::Duration;

use crate::cm::{Adapter, LocalAddress, Provider};
use crate::error::OpenError;
use crate::net;
use crate::soft::config::SoftConfig;

/// A host of a [`Network`](super::Network), with one interface and an address, or one of each family.
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
