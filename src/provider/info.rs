//! The facts of adapters, ports and connections.
//!
//! Those of an adapter are its properties, limits and abilities: each provider fills them in once, when the adapter is opened. Those of
//! ports and of connections differ from one to the next.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::types::{AdapterId, ReadLimits};

/// The entries and the inline bytes of a request of a queue pair whose user has set none.
pub(crate) const USUAL_ENTRIES: usize = 4;
pub(crate) const USUAL_INLINE: usize = 64;

/// The kind of provider that serves an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProviderKind {
    /// User-space iWARP over TCP.
    Soft,
    /// Devices, through librdmacm and libibverbs.
    Verbs,
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Soft => "soft",
            Self::Verbs => "verbs",
        })
    }
}

/// The properties, limits and abilities of an adapter (`ND2_ADAPTER_INFO`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AdapterInfo {
    /// The version of this structure. Later versions only add fields.
    pub version: u32,
    /// The provider of the adapter.
    pub provider: ProviderKind,
    /// The id of the adapter.
    pub id: AdapterId,
    /// The name of the interface or device.
    pub name: String,
    /// The vendor of the device (`VendorId`, `vendor_id` of `ibv_device_attr`). 0 for the soft provider and for drivers that
    /// name none.
    pub vendor_id: u32,
    /// The number that the vendor has given to the kind of device (`DeviceId`, `vendor_part_id` of `ibv_device_attr`). 0 for the
    /// soft provider.
    pub device_id: u32,
    /// The version of the firmware, as the device has it (`fw_ver` of `ibv_device_attr`). Empty for the soft provider and for drivers that
    /// name none.
    pub firmware: String,
    /// The number that no other device has (`node_guid` of `ibv_device_attr`). 0 for the soft provider and for drivers that name none.
    pub node_guid: u64,
    /// The number of ports: [`Adapter::ports`](crate::Adapter::ports) has their facts.
    pub ports: u8,
    /// The local addresses that the adapter has now. A removed adapter has those that it had last.
    ///
    /// Link-local IPv6 addresses are missing, because an `IpAddr` has no scope. A device can be opened, bound and connected by
    /// the `SocketAddr` of one.
    pub addresses: Vec<IpAddr>,
    /// The maximum number of reads in flight per connection, in each direction. Larger limits are reduced silently.
    pub max_read_limits: ReadLimits,
    /// The maximum length of the private data of a connection request (`MaxCallerData`), in bytes.
    pub max_request_data: usize,
    /// The maximum length of the private data of an accept (`MaxCalleeData`), in bytes.
    pub max_reply_data: usize,
    /// The maximum length of the private data of a reject by the passive side, in bytes.
    pub max_reject_data: usize,
    /// The maximum length of the private data of a reject by the active side, in bytes. 0 if the protocol cannot carry
    /// any.
    pub max_active_reject_data: usize,
    /// The maximum length of one request, in bytes.
    pub max_transfer: usize,
    /// The maximum length of one region, in bytes.
    pub max_registration: usize,
    /// The maximum number of requests in a queue of a queue pair.
    ///
    /// A queue pair with the default entries and inline bytes can have so many requests in both queues, as long as the device has
    /// memory. The queues of some devices (mlx5) have a number of bytes: with more entries or inline bytes they have fewer
    /// requests, and [`Adapter::queue_pair`](crate::Adapter::queue_pair) fails with `InvalidParameter`, whose text contains the
    /// greatest depth.
    pub max_queue_depth: usize,
    /// The maximum number of scatter-gather entries of a request. A receive of a shared receive queue may have fewer on some
    /// devices, which the error of creating that queue says.
    #[doc(alias = "sge")]
    #[doc(alias = "max_sge")]
    pub max_entries: usize,
    /// The maximum number of scatter-gather entries of a read (`MaxReadSge`). `siw` has 1.
    pub max_read_entries: usize,
    /// Whether connections are iWARP over TCP. If `false`, they are InfiniBand or RoCE.
    pub iwarp: bool,
    /// Whether Connect, Accept and CompleteConnect are three messages on the wire. If `true`, an accept waits for the
    /// peer's `complete()`.
    pub three_phase: bool,
    /// Whether received private data has exactly the length that was sent.
    pub exact_private_data: bool,
    /// Whether the adapter can connect to itself (`ND_ADAPTER_FLAG_LOOPBACK_CONNECTIONS`).
    pub loopback: bool,
    /// Whether the bytes of a message are placed in order (`ND_ADAPTER_FLAG_IN_ORDER_DMA_SUPPORTED`).
    pub in_order_dma: bool,
    /// Whether a send or write may complete before the peer has checked it. A violation is then reported as a lost
    /// connection, not as the completion of the request.
    pub early_completion: bool,
    /// Whether the passive side may send first. If `false` (iWARP drivers), the active side must send first: the peer
    /// may drop the connection when a message arrives before its driver has finished the handshake.
    pub passive_sends_first: bool,
    /// Whether a request that violates the rules of the peer completes with its own status and only the others complete
    /// with `CANCELED`. If `false` (iWARP drivers), all of them complete with `CANCELED`. A request that this side finds wrong completes
    /// with its own status everywhere.
    pub per_request_errors: bool,
    /// Whether the passive side may accept fewer reads than the active side offers to issue. If `false` (`siw`), it
    /// serves the offered number, up to the adapter's limit.
    pub accept_limits_reads: bool,
    /// Whether the provider detects that a peer has withdrawn its request before the request is answered. If `false`
    /// (devices), an accept of such a request fails and a reject succeeds. The active side too may then complete or reject a
    /// connection whose peer has withdrawn its accept; a completed one ends when the withdrawal arrives.
    pub detects_withdrawal: bool,
    /// Whether a peer cannot read a region without [`REMOTE_READ`](crate::Access::REMOTE_READ). If `false` (`siw`), a peer
    /// that guesses the key of a region or buffer can read it.
    pub checks_remote_read: bool,
    /// Whether only memory with [`READ_SINK`](crate::Access::READ_SINK) can be the sink of an RDMA Read (the opposite of
    /// `ND_ADAPTER_FLAG_RDMA_READ_SINK_NOT_REQUIRED`). If `true` (iWARP cards), a read into other memory fails with
    /// `ACCESS_VIOLATION`. That includes every [`Buffer`](crate::Buffer), because peers have no access to buffers.
    pub read_sink_required: bool,
    /// The longest time that a connect without [`ConnectParams::timeout`](crate::ConnectParams::timeout) waits for the peer's
    /// accept. After it, the connect fails with `IO_TIMEOUT`. `None` means no limit.
    ///
    /// A longer timeout does not make the driver of an iWARP device wait longer. Over InfiniBand and RoCE it does: the connection
    /// manager gives a host that does not answer up after about a minute, and one whose program is silent after about 18 minutes.
    pub answer_timeout: Option<Duration>,
    /// The maximum length of an inline request (`InlineRequestThreshold`), in bytes. Of a device it is what a queue pair with the
    /// default entries has got, which with some drivers is less than it was asked for (`hns`: 32, `mana`: 0).
    pub max_inline: usize,
    /// The maximum number of completions in a completion queue (`MaxCompletionQueueDepth`).
    pub max_completion_depth: usize,
    /// The maximum number of receives in a shared receive queue (`MaxSharedReceiveQueueDepth`), with the default entries. 0 if
    /// unsupported.
    pub max_shared_depth: usize,
    /// Whether the adapter supports memory windows.
    pub memory_windows: bool,
    /// Whether the adapter supports atomics.
    pub atomics: bool,
    /// Whether an atomic of a peer is atomic with those of this host's processors, such as
    /// [`Region::fetch_add`](crate::Region::fetch_add) (`IBV_ATOMIC_GLOB`). If `false` (most devices), it is so only with
    /// atomics that the same device executes.
    pub global_atomics: bool,
    /// Whether a send can invalidate a memory window of the peer.
    pub invalidates: bool,
    /// Whether the adapter distinguishes messages with a solicited event. If `false` (`rxe` and `siw`, which would miss failures),
    /// every message counts as solicited: a notification of [`NotifyKind::Solicited`](crate::NotifyKind::Solicited) may resolve for any
    /// message, and misses none.
    ///
    /// If `true`, the soft provider resolves such a notification for no other message. A device distinguishes them only in completion
    /// queues with [`busy_poll`](crate::CompletionQueueConfig::busy_poll): while all notifications that a program awaits there are of
    /// `Solicited` or [`Errors`](crate::NotifyKind::Errors), other messages raise no interrupt, except for one after a notification of
    /// [`Any`](crate::NotifyKind::Any). No completion of a device says whether it was solicited: any message that is found, as by a
    /// poll or by a notification of `Any`, also resolves a notification of `Solicited`.
    pub solicited_events: bool,
    /// Whether the key of a memory window gives access only to the bytes that the window is bound to. If `false`
    /// (`rxe`), it gives access to the whole region, with the rights of the window.
    pub checks_window_bounds: bool,
    /// Whether a message that arrives at an empty shared receive queue waits for a receive. If `false` (iWARP devices),
    /// the connection ends.
    pub waits_for_shared_receives: bool,
    /// Whether a write can carry immediate data.
    pub immediate: bool,
    /// Whether a send can carry immediate data.
    pub immediate_send: bool,
}

impl AdapterInfo {
    /// The version with the fields above.
    pub(crate) const VERSION: u32 = 1;
}

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
