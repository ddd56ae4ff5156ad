//! Settings of streams, and of the connections below them: those that `ConnectParams` and `AcceptParams` have besides private
//! data, and those of a listener's handshakes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::cm::{AcceptParams, AcceptorConfig, Adapter, AdapterInfo, ConnectParams, Connector, ProviderKind};
use crate::error::{BindError, StreamError};
use crate::types::ReadLimits;

/// The fewest messages that may be on their way: rsocket's own lower limit (`RS_QP_MIN_SIZE`).
const MIN_DEPTH: usize = 16;

/// The most: a credit is a number of 16 bits (`RS_QP_MAX_SIZE`).
const MAX_DEPTH: usize = 0xFFFE;

/// The smallest ring: the space that a write of rsocket waits for (`RS_SNDLOWAT`).
const MIN_BUFFER: usize = 2048;

/// The largest ring: the length of a message has 29 bits.
const MAX_BUFFER: usize = (1 << 29) - 1;

/// The default buffers on devices, rsocket's own sizes: a device pins all of the memory.
const BUFFERS: [usize; 2] = [1 << 17, 1 << 17];

/// The default buffers over TCP. There is none to send from: the first is the longest message, a megabyte and what programs put before
/// it. The other is granted by halves, so a half should take the longest message, and has to last until this end has woken up and granted
/// the other half.
/// If both ends share a core, it also says how often they take turns. Bytes that wait in a longer ring leave the caches.
const SOFT_BUFFERS: [usize; 2] = [(1 << 20) + (1 << 16), 1 << 22];

/// The default number of messages in each direction (`rqsize_default`), and of those to receive over TCP, where none needs a receive.
const DEPTH: usize = 384;
const SOFT_RECEIVES: usize = 16 << 10;

/// The default time of polling over TCP: longer than a peer that sleeps takes to answer. Devices have looks of their own.
const SOFT_SPIN: Duration = Duration::from_micros(200);

/// The time that a connect waits for the peer.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The most sessions of a listener that are kept without a connection.
const LOST: usize = 1024;

/// Settings of streams: the sizes of buffers and queues, spinning and time limits.
///
/// The defaults are those of rsocket(7), except for the buffers on the soft provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    send_buffer: Option<usize>,
    receive_buffer: Option<usize>,
    pub(super) send_depth: usize,
    receive_depth: Option<usize>,
    pub(super) inline: usize,
    spin: Option<Duration>,
    pub(super) acceptor: AcceptorConfig,
    pub(super) close_timeout: Duration,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) options: ConnectionOptions,
    pub(super) session: Option<SessionConfig>,
}

impl Default for StreamConfig {
    /// Returns buffers of 128 KiB and 384 messages in each direction, or on the soft provider 4 MiB and 16,384 messages to receive, and
    /// messages of up to 1 MiB and 64 KiB; 64 bytes inline; 200 microseconds of polling on the soft provider; 10 seconds to connect or for
    /// a handshake, and 30 seconds to close.
    fn default() -> Self {
        Self {
            send_buffer: None,
            receive_buffer: None,
            send_depth: DEPTH,
            receive_depth: None,
            inline: 64,
            spin: None,
            acceptor: AcceptorConfig::default(),
            close_timeout: Duration::from_secs(30),
            connect_timeout: Some(CONNECT_TIMEOUT),
            options: ConnectionOptions::default(),
            session: None,
        }
    }
}

impl StreamConfig {
    /// Sets how many bytes can be written before they are sent (`wmem_default`, `SO_SNDBUF`), at least 2048.
    ///
    /// The soft provider has no such buffer: a write is sent from the memory of the caller, as far as the socket has room. There
    /// this limits how many bytes one write sends.
    #[must_use]
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.send_buffer = Some(bytes);
        self
    }

    /// Sets how many bytes the peer can write before they are read (`mem_default`, `SO_RCVBUF`), at least 2048.
    ///
    /// The peer fills one half of the buffer while this side reads the other.
    #[must_use]
    pub fn receive_buffer(mut self, bytes: usize) -> Self {
        self.receive_buffer = Some(bytes);
        self
    }

    /// Sets how many requests of the send queue can be outstanding (`sqsize_default`, `RDMA_SQSIZE`), 16 to 65534.
    ///
    /// The value is reduced to the adapter's maximum.
    #[must_use]
    pub fn send_depth(mut self, depth: usize) -> Self {
        self.send_depth = depth;
        self
    }

    /// Sets how many receives are posted for messages of the peer (`rqsize_default`, `RDMA_RQSIZE`), 16 to 65534.
    ///
    /// The value is reduced to the adapter's maximum. Up to 16 of the receives are reserved for messages about the
    /// stream itself. The soft provider posts none: there this limits how many messages the peer can send before they are read.
    #[must_use]
    pub fn receive_depth(mut self, depth: usize) -> Self {
        self.receive_depth = Some(depth);
        self
    }

    /// Sets the length up to which writes are posted inline on devices (`inline_default`, `RDMA_INLINE`).
    ///
    /// The value is reduced to the adapter's maximum. The soft provider ignores it, because it copies short writes in
    /// any case.
    #[must_use]
    pub fn inline(mut self, bytes: usize) -> Self {
        self.inline = bytes;
        self
    }

    /// Sets how long a read polls at most before it sleeps (`polling_time`), as long as that pays. Default: 200 microseconds on the soft
    /// provider, and zero, which is no polling, on devices.
    ///
    /// Reads that poll come behind all other tasks that are ready, and all sockets that can be read. Now and then some reads that sleep
    /// are compared with as many that poll: these go on as long as clearly more bytes come in the same time. If they do not, because the
    /// peer shares the processor or is busy, or if a read waits for longer than this time, further reads sleep, up to
    /// 4096 of them until the next comparison. Who waits less than 32 times never polls. On a simulated network nothing polls.
    ///
    /// While reads poll, a core is busy.
    #[must_use]
    pub fn spin(mut self, time: Duration) -> Self {
        self.spin = Some(time);
        self
    }

    /// Sets how long a dropped stream continues to send the written data, from the drop of its last half, and how long
    /// [`shutdown`](tokio::io::AsyncWriteExt::shutdown) waits for progress until the peer's device has received it.
    ///
    /// Either ends earlier when the peer has received all of it, and `shutdown` after ten minutes, if this time is not longer. After
    /// a drop the connection ends in either case; after the time,
    /// `shutdown` fails with `TimedOut`, and the connection goes on.
    #[must_use]
    pub fn close_timeout(mut self, time: Duration) -> Self {
        self.close_timeout = time;
        self
    }

    /// Sets how long [`RdmaStream::connect_on`](super::RdmaStream::connect_on) and
    /// [`RdmaConnector::connect`](super::RdmaConnector::connect) wait for the peer, over all addresses. `None` waits for as
    /// long as the network and the peer let it. Default: 10 seconds.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Gives streams a session: when its connection is lost, a stream goes on over another one, without a byte lost or twice. Both ends
    /// have to want it; [`RdmaStream::session`](super::RdmaStream::session) returns what came of it. Default: none.
    #[must_use]
    pub fn session(mut self, session: SessionConfig) -> Self {
        self.session = Some(session);
        self
    }

    /// Returns the sizes of the send buffer and the receive buffer.
    pub(super) fn buffers(&self, info: &AdapterInfo) -> [usize; 2] {
        let usual = if info.provider == ProviderKind::Soft { SOFT_BUFFERS } else { BUFFERS };
        [self.send_buffer.unwrap_or(usual[0]), self.receive_buffer.unwrap_or(usual[1])]
    }

    /// Returns how long a stream of the adapter polls at most.
    pub(super) fn spin_on(&self, adapter: &Adapter) -> Duration {
        let usual =
            if adapter.properties().provider == ProviderKind::Soft { SOFT_SPIN } else { Duration::ZERO };
        // Polls would take no virtual time.
        if adapter.is_of_machine() { self.spin.unwrap_or(usual) } else { Duration::ZERO }
    }

    /// Returns the number of messages that the peer can send before they are read, within the limits of the adapter.
    pub(super) fn receives(&self, info: &AdapterInfo) -> usize {
        let usual = if info.provider == ProviderKind::Soft { SOFT_RECEIVES } else { DEPTH };
        self.receive_depth.unwrap_or(usual).min(info.max_queue_depth)
    }

    /// Checks the settings and reduces them to the limits of the adapter.
    pub(super) fn on(mut self, info: &AdapterInfo) -> Result<Self, StreamError> {
        let [send_buffer, receive_buffer] = self.buffers(info);
        for (what, value, least, most) in [
            ("the send buffer", send_buffer, MIN_BUFFER, MAX_BUFFER),
            ("the receive buffer", receive_buffer, MIN_BUFFER, MAX_BUFFER),
            ("the send depth", self.send_depth, MIN_DEPTH, MAX_DEPTH),
            ("the receive depth", self.receive_depth.unwrap_or(DEPTH), MIN_DEPTH, MAX_DEPTH),
        ] {
            if value < least || value > most {
                return Err(StreamError::OutOfRange { what, value, least, most });
            }
        }
        if info.max_queue_depth < MIN_DEPTH {
            let (what, value) = ("the queue depth of the adapter", info.max_queue_depth);
            return Err(StreamError::OutOfRange { what, value, least: MIN_DEPTH, most: MAX_DEPTH });
        }
        self.send_depth = self.send_depth.min(info.max_queue_depth);
        self.inline = self.inline.min(info.max_inline);
        Ok(self)
    }
}

/// The settings of connections. `None` leaves a value to the protocol or the provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionOptions {
    pub(super) source: Option<IpAddr>,
    pub(super) read_limits: Option<ReadLimits>,
    pub(super) traffic_class: Option<u8>,
    pub(super) multipath: bool,
    pub(super) retry_count: Option<u8>,
    pub(super) rnr_retry_count: Option<u8>,
    pub(super) rnr_timer: Option<u8>,
    pub(super) ack_timeout: Option<u8>,
}

impl ConnectionOptions {
    /// Creates a connector, bound to the source address if there is one.
    pub(super) fn connector(&self, adapter: &Adapter) -> Result<Connector, BindError> {
        let connector = adapter.connector();
        if let Some(source) = self.source {
            connector.bind(SocketAddr::new(source, 0))?;
        }
        Ok(connector)
    }

    /// Returns the parameters of a connect with the options that were set.
    pub(super) fn connect(&self, params: ConnectParams) -> ConnectParams {
        let params = params.multipath(self.multipath);
        let params = set(params, self.read_limits, ConnectParams::read_limits);
        let params = set(params, self.traffic_class, ConnectParams::traffic_class);
        let params = set(params, self.retry_count, ConnectParams::retry_count);
        let params = set(params, self.rnr_retry_count, ConnectParams::rnr_retry_count);
        let params = set(params, self.rnr_timer, ConnectParams::rnr_timer);
        set(params, self.ack_timeout, ConnectParams::ack_timeout)
    }

    /// Returns the parameters of an accept with the options that were set, as far as an accept has them.
    pub(super) fn accept(&self, params: AcceptParams) -> AcceptParams {
        let params = set(params, self.read_limits, AcceptParams::read_limits);
        let params = set(params, self.rnr_retry_count, AcceptParams::rnr_retry_count);
        let params = set(params, self.rnr_timer, AcceptParams::rnr_timer);
        set(params, self.ack_timeout, AcceptParams::ack_timeout)
    }
}

fn set<P, T>(params: P, value: Option<T>, with: impl FnOnce(P, T) -> P) -> P {
    match value {
        Some(value) => with(params, value),
        None => params,
    }
}

impl StreamConfig {
    /// Sets the local address of a connect. The port is chosen by the provider. The connect fails if the adapter
    /// does not have the address; `RdmaConnector` chooses the adapter that has it. Default: the address that the route
    /// to the peer begins with.
    #[must_use]
    pub fn source(mut self, address: IpAddr) -> Self {
        self.options.source = Some(address);
        self
    }

    /// Sets the read limits of a connect and of an accept, as
    /// [`ConnectParams::read_limits`](crate::ConnectParams::read_limits) and
    /// [`AcceptParams::read_limits`](crate::AcceptParams::read_limits) do. A stream without an outbound read cannot ask
    /// for the confirmation of its end: `shutdown` then resolves when the data has been handed to the provider.
    #[must_use]
    pub fn read_limits(mut self, limits: ReadLimits) -> Self {
        self.options.read_limits = Some(limits);
        self
    }

    /// Sets the IP type of service of a connect, as
    /// [`ConnectParams::traffic_class`](crate::ConnectParams::traffic_class) does.
    #[must_use]
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.options.traffic_class = Some(class);
        self
    }

    /// Uses several network paths for a connect, as
    /// [`ConnectParams::multipath`](crate::ConnectParams::multipath) does.
    #[must_use]
    pub fn multipath(mut self, multipath: bool) -> Self {
        self.options.multipath = multipath;
        self
    }

    /// Sets how often the device repeats a packet of a connection that this side opens, as
    /// [`ConnectParams::retry_count`](crate::ConnectParams::retry_count) does. On the soft provider the connect fails
    /// with `NOT_SUPPORTED`.
    #[must_use]
    pub fn retry_count(mut self, count: u8) -> Self {
        self.options.retry_count = Some(count);
        self
    }

    /// Sets how often the peer's device repeats a request for which this side has no receive posted, as
    /// [`ConnectParams::rnr_retry_count`](crate::ConnectParams::rnr_retry_count) and
    /// [`AcceptParams::rnr_retry_count`](crate::AcceptParams::rnr_retry_count) do. On the soft provider the connect or
    /// the accept fails with `NOT_SUPPORTED`.
    #[must_use]
    pub fn rnr_retry_count(mut self, count: u8) -> Self {
        self.options.rnr_retry_count = Some(count);
        self
    }

    /// Sets the pause before the peer's device repeats such a request, as
    /// [`ConnectParams::rnr_timer`](crate::ConnectParams::rnr_timer) and
    /// [`AcceptParams::rnr_timer`](crate::AcceptParams::rnr_timer) do. On the soft provider the connect or the accept
    /// fails with `NOT_SUPPORTED`.
    #[must_use]
    pub fn rnr_timer(mut self, code: u8) -> Self {
        self.options.rnr_timer = Some(code);
        self
    }

    /// Sets how long the device waits for an acknowledgement, as
    /// [`ConnectParams::ack_timeout`](crate::ConnectParams::ack_timeout) and
    /// [`AcceptParams::ack_timeout`](crate::AcceptParams::ack_timeout) do. On the soft provider the connect or the
    /// accept fails with `NOT_SUPPORTED`.
    #[must_use]
    pub fn ack_timeout(mut self, exponent: u8) -> Self {
        self.options.ack_timeout = Some(exponent);
        self
    }

    /// Sets the time limit of a handshake that a listener has started. A slower peer is dropped.
    #[must_use]
    pub fn handshake_timeout(mut self, time: Duration) -> Self {
        self.acceptor = self.acceptor.handshake_timeout(time);
        self
    }

    /// Sets how many peers of a listener may be between their request and `accept`, at least 1. Default: 256. Each has
    /// the memory of its connection already: its peer has to know it before it completes.
    ///
    /// If there is no place for another peer, the oldest handshake of the address that has most is dropped: see
    /// [`AcceptorConfig::handshakes`](crate::AcceptorConfig::handshakes).
    #[must_use]
    pub fn handshakes(mut self, most: usize) -> Self {
        self.acceptor = self.acceptor.handshakes(most);
        self
    }
}

/// Settings of the sessions of streams: [`StreamConfig::session`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    pub(super) gives_up_after: Duration,
    pub(super) window: Option<usize>,
    pub(super) lost: usize,
}

impl Default for SessionConfig {
    /// Returns a minute without a connection, a window as large as the receive buffer, and 1024 sessions without a connection.
    fn default() -> Self {
        Self { gives_up_after: Duration::from_secs(60), window: None, lost: LOST }
    }
}

impl SessionConfig {
    /// Sets how long the stream waits for another connection after a loss. Then its reads and writes fail. The shorter time of both
    /// ends counts, in whole milliseconds.
    #[must_use]
    pub fn give_up_after(mut self, time: Duration) -> Self {
        self.gives_up_after = time;
        self
    }

    /// Sets how many written bytes are kept at most: those that the program of the peer has not read. A write waits when they are that
    /// many. Default: the size of the [receive buffer](StreamConfig::receive_buffer). At least 2048, and at most 256 MiB.
    #[must_use]
    pub fn window(mut self, bytes: usize) -> Self {
        self.window = Some(bytes);
        self
    }

    /// Sets how many sessions of a listener may be without a connection at the same time. Beyond that the one that has waited longest
    /// fails.
    #[must_use]
    pub fn lost_sessions(mut self, most: usize) -> Self {
        self.lost = most;
        self
    }
}
