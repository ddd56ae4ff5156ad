//! Facts of ports and of connections, which differ from one to the next, unlike those of an adapter.

use std::fmt;
use std::net::Ipv6Addr;

use crate::types::ReadLimits;

/// A port of an adapter (ibv_query_port(3)). An adapter of the soft provider has one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// The number of the port; the first is 1.
    pub number: u8,
    /// Whether packets can be sent and received.
    pub state: PortState,
    /// The largest payload of a packet, in bytes (`active_mtu`). `None` on the soft provider, where TCP chooses it, and if the device
    /// reports a value without a meaning.
    pub mtu: Option<u32>,
    /// The speed of the link, in bits per second: `active_speed` times `active_width`, as
    /// `/sys/class/infiniband/*/ports/*/rate` has it. `None` on the soft provider, and if the device reports a value without a
    /// meaning.
    ///
    /// Lanes of more than 100 Gbit/s count as 100 Gbit/s, because the call of the library has no room for their number.
    pub speed: Option<u64>,
    /// The kind of the link (`link_layer`). `None` on the soft provider, and if the device does not say.
    pub link_layer: Option<LinkLayer>,
    /// The address of the port in its subnet (`lid`), of InfiniBand alone.
    pub lid: Option<u16>,
    /// The GID of the address by which the adapter was opened, if that address is of this port. Connections from another address of
    /// a RoCE adapter have another GID: [`ConnectionDetails::gid`]. `None` over iWARP, on the soft provider, and for the other ports.
    pub gid: Option<Ipv6Addr>,
}

/// The state of a port (`enum ibv_port_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortState {
    /// The link is down. On the soft provider, the interface is switched off or has no carrier.
    Down,
    /// The link is up, and the subnet manager has not configured the port.
    Initializing,
    /// The subnet manager has configured the port, and has yet to activate it.
    Armed,
    /// Packets can be sent and received.
    Active,
    /// The link has failed a moment ago, and the port waits for it to come back.
    ActiveDeferred,
    /// The device does not report the state, or reports one that this version does not know.
    Unknown,
}

/// The kind of the link of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE and iWARP.
    Ethernet,
}

/// The options that both ends of a connection use, in the bits of their vendor (ibv_query_ece(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Ece {
    /// The number of the vendor.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}

/// What the ends of a connection have agreed on, for logs and for tools of the network.
///
/// The facts are those of the moment at which the connection was made. What a provider or a transport does not have is `None`: on the
/// soft provider everything but the name and the limits, and over iWARP all that only the driver knows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionDetails {
    /// The name of the adapter: of the device, or of the network interface.
    pub adapter: String,
    /// The number of the port of the device.
    pub port: Option<u8>,
    /// The number of the queue pair of this end.
    pub queue_pair: Option<u32>,
    /// The number of the queue pair of the peer. `None` over iWARP.
    pub peer_queue_pair: Option<u32>,
    /// The largest payload of a packet, in bytes. `None` over iWARP.
    pub path_mtu: Option<u32>,
    /// The GID of this end. `None` over iWARP.
    pub gid: Option<Ipv6Addr>,
    /// The GID of the peer. `None` over iWARP.
    pub peer_gid: Option<Ipv6Addr>,
    /// The options of the vendor that both ends use. `None` if the driver has none.
    pub ece: Option<Ece>,
    /// The granted limits of reads, as seen from this side.
    pub read_limits: ReadLimits,
}

/// The part of [`ConnectionDetails`] that a device has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Path {
    pub(crate) port: Option<u8>,
    pub(crate) queue_pair: Option<u32>,
    pub(crate) peer_queue_pair: Option<u32>,
    pub(crate) mtu: Option<u32>,
    pub(crate) gid: Option<Ipv6Addr>,
    pub(crate) peer_gid: Option<Ipv6Addr>,
    pub(crate) ece: Option<Ece>,
}

impl ConnectionDetails {
    /// Returns the details of a connection of this adapter. Without a path it is one of the soft provider.
    pub(crate) fn new(adapter: String, path: Option<Path>, read_limits: ReadLimits) -> Self {
        let Path { port, queue_pair, peer_queue_pair, mtu, gid, peer_gid, ece } = path.unwrap_or_default();
        Self { adapter, port, queue_pair, peer_queue_pair, path_mtu: mtu, gid, peer_gid, ece, read_limits }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        })
    }
}
