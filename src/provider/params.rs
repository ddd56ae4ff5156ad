//! The parameters of a queue pair, and those of a connection.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::inflight::{CompletionSink, StreamInbox};
use crate::types::ReadLimits;

/// The arguments of a new queue pair.
pub(crate) struct QueuePairParts {
    pub(crate) receive_depth: usize,
    pub(crate) send_depth: usize,
    pub(crate) receive_entries: usize,
    pub(crate) send_entries: usize,
    /// The most bytes of an inline request.
    pub(crate) inline: usize,
    /// The destination of the completions of receives. Receives of a shared queue are in the table of that
    /// queue.
    pub(crate) receive: CompletionSink,
    pub(crate) initiator: CompletionSink,
    /// The destination of the Sends of the peer, if a byte stream takes them without receives: on the soft provider.
    #[cfg_attr(
        not(feature = "soft"),
        expect(dead_code, reason = "only the soft provider delivers by itself")
    )]
    pub(crate) inbox: Option<Arc<StreamInbox>>,
    /// Its user sends no message for which the peer has no receive, so that none waits for the peer's application.
    #[cfg_attr(
        not(feature = "verbs"),
        expect(dead_code, reason = "the soft provider has its own signs of life")
    )]
    pub(crate) credited: bool,
}

/// The queues of a provider that a new queue pair uses, made earlier: `S` is its shared receive queue, `C` its completion queue.
#[derive(Clone)]
pub(crate) struct Queues<S, C> {
    /// The shared receive queue, if it is to have no receive queue of its own.
    pub(crate) shared: Option<S>,
    /// The completion queues of its two queues.
    pub(crate) sends: C,
    pub(crate) receives: C,
}

/// The retransmission settings of a device. The soft provider has none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    retry_count: Option<u8>,
    rnr_retry_count: Option<u8>,
    rnr_timer: Option<u8>,
    ack_timeout: Option<u8>,
}

impl Options {
    /// Returns the name of the first option that was set, for a provider that has none of them.
    #[cfg(feature = "soft")]
    pub(crate) fn first(&self) -> Option<&'static str> {
        let named = [
            (self.retry_count, "a retry count"),
            (self.rnr_retry_count, "a receiver-not-ready retry count"),
            (self.rnr_timer, "a receiver-not-ready timer"),
            (self.ack_timeout, "an acknowledge timeout"),
        ];
        named.into_iter().find_map(|(value, name)| value.map(|_| name))
    }
}

#[cfg(feature = "verbs")]
impl Options {
    /// Counts have three bits, and 7 receiver-not-ready retries mean without end (rdma_connect(3)).
    const MAX_RETRIES: u8 = 7;
    /// The code of a pause of 0.64 ms.
    const SHORT_PAUSE: u8 = 12;
    /// The codes of pauses and the exponents of the acknowledge timeout have five bits.
    const MAX_FIVE_BITS: u8 = 31;

    pub(crate) fn retry_count(&self) -> u8 {
        self.retry_count.unwrap_or(Self::MAX_RETRIES).min(Self::MAX_RETRIES)
    }

    pub(crate) fn rnr_retry_count(&self) -> u8 {
        self.rnr_retry_count.unwrap_or(Self::MAX_RETRIES).min(Self::MAX_RETRIES)
    }

    /// Returns the exponent of the acknowledge timeout, if it was set. The kernel passes any number on, and a device refuses to
    /// complete the connection then.
    pub(crate) fn ack_timeout(&self) -> Option<u8> {
        self.ack_timeout.map(|exponent| exponent.min(Self::MAX_FIVE_BITS))
    }

    /// Returns the pause between two tries of a request for which there is no receive. If it was not set and the tries
    /// are counted, it is that of the connection manager, which is the longest there is, 655 ms. If they are not
    /// counted, it only has to leave the network some room.
    pub(crate) fn rnr_timer(&self) -> Option<u8> {
        let usual = (self.rnr_retry_count() == Self::MAX_RETRIES).then_some(Self::SHORT_PAUSE);
        self.rnr_timer.map(|code| code.min(Self::MAX_FIVE_BITS)).or(usual)
    }
}

/// Parameters of [`Connector::connect`](crate::Connector::connect): those of NetworkDirect, and those that only uDAPL's
/// `dat_ep_connect` has.
///
/// ```
/// use std::time::Duration;
/// use tokio_rdma::{ConnectParams, ReadLimits};
///
/// let params = ConnectParams::default()
///     .private_data(b"hello")
///     .read_limits(ReadLimits::new(4, 4))
///     .timeout(Duration::from_secs(3));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConnectParams {
    pub(crate) private_data: SmallVec<[u8; 48]>,
    pub(crate) read_limits: ReadLimits,
    pub(crate) timeout: Option<Duration>,
    pub(crate) traffic_class: Option<u8>,
    pub(crate) multipath: bool,
    pub(crate) options: Options,
}

impl ConnectParams {
    /// Sets the private data that is sent with the request: at most
    /// [`max_request_data`](crate::cm::AdapterInfo::max_request_data) bytes. Default: none.
    #[must_use]
    pub fn private_data(mut self, data: impl AsRef<[u8]>) -> Self {
        self.private_data = SmallVec::from_slice(data.as_ref());
        self
    }

    /// Sets the read limits to offer. They are reduced to the limits of the adapter, and then to those of the peer's reply.
    /// Default: 16 in each direction.
    #[must_use]
    pub fn read_limits(mut self, limits: ReadLimits) -> Self {
        self.read_limits = limits;
        self
    }

    /// Sets how long to wait for the peer to accept. After it, the connect fails with `IO_TIMEOUT` and can be repeated. Zero
    /// fails before anything is sent. The resolution is 1 ms: the limit may end up to 1 ms late. Default: none on the soft provider,
    /// and [`answer_timeout`](crate::cm::AdapterInfo::answer_timeout) on devices.
    ///
    /// A device repeats the resolution of an address that does not answer within this time, and without a limit for
    /// five to seven seconds: then the connect fails with `HOST_UNREACHABLE`. A peer to which there is no route fails
    /// the connect at once.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the IP type of service (traffic class) byte of every packet, for quality of service. The two low bits belong to
    /// congestion control and must be 0. Default: that of the system.
    #[must_use]
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.traffic_class = Some(class);
        self
    }

    /// Uses several network paths at once (uDAPL's `DAT_CONNECT_MULTIPATH_FLAG`): MPTCP on the soft provider. If the kernel
    /// has no MPTCP, the connect fails. If the peer has none, one path is used. Default: off.
    #[must_use]
    pub fn multipath(mut self, multipath: bool) -> Self {
        self.multipath = multipath;
        self
    }

    /// Sets how often the device repeats a packet that the peer does not acknowledge: 0 to 7. Larger values count as 7. On
    /// the soft provider the call fails with `NOT_SUPPORTED`. Default: 7. Source: `retry_count` of rdma_connect(3).
    #[must_use]
    pub fn retry_count(mut self, count: u8) -> Self {
        self.options.retry_count = Some(count);
        self
    }

    /// Sets how often the peer's device repeats a request for which this side has no receive posted: 0 to 6 times. 7 and more
    /// mean without end: the request waits until there is a receive, or the connection ends. The peer sets the same for the
    /// device of this side. After the last try the request fails with `IO_TIMEOUT`, and with it the connection. On the soft
    /// provider the call fails with `NOT_SUPPORTED`. Default: 7. Source: `rnr_retry_count` of rdma_connect(3) and
    /// rdma_accept(3).
    #[must_use]
    pub fn rnr_retry_count(mut self, count: u8) -> Self {
        self.options.rnr_retry_count = Some(count);
        self
    }

    /// Sets the pause before the peer's device repeats a request for which this side has no receive posted, as a code
    /// of the InfiniBand specification: 1 is 0.01 ms, 12 is 0.64 ms, 20 is 10.24 ms, 31 is 491.52 ms, and 0 is 655.36
    /// ms. Larger codes count as 31. A receive that is posted during the pause does not shorten it. iWARP has none. On
    /// the soft provider the call fails with `NOT_SUPPORTED`. Default: 12 if the repeats have no end, and 0 if
    /// [`rnr_retry_count`](Self::rnr_retry_count) counts them. Source: `min_rnr_timer` of ibv_modify_qp(3).
    #[must_use]
    pub fn rnr_timer(mut self, code: u8) -> Self {
        self.options.rnr_timer = Some(code);
        self
    }

    /// Sets how long the device waits for the peer to acknowledge a packet: 4.096 microseconds times two to this power, 1 to
    /// 31; larger values count as 31. 0 waits without end. On the soft provider the call fails with `NOT_SUPPORTED`. Default:
    /// that of the device. Source: `RDMA_OPTION_ID_ACK_TIMEOUT` of rdma_set_option(3).
    #[must_use]
    pub fn ack_timeout(mut self, exponent: u8) -> Self {
        self.options.ack_timeout = Some(exponent);
        self
    }
}

/// Parameters of [`Request::accept`](crate::Request::accept).
#[derive(Clone, Debug, Default)]
pub struct AcceptParams {
    pub(crate) private_data: SmallVec<[u8; 48]>,
    pub(crate) read_limits: ReadLimits,
    pub(crate) options: Options,
    /// The accept does not wait for the peer to complete the connection, if the peer is of this crate: on the soft provider.
    pub(crate) waives_rtr: bool,
}

impl AcceptParams {
    /// Sets the private data that is sent with the reply: at most
    /// [`max_reply_data`](crate::cm::AdapterInfo::max_reply_data) bytes. Default: none.
    #[must_use]
    pub fn private_data(mut self, data: impl AsRef<[u8]>) -> Self {
        self.private_data = SmallVec::from_slice(data.as_ref());
        self
    }

    /// Sets the read limits to accept. They are reduced to the limits of the adapter and to the peer's offer. Default: 16 in
    /// each direction.
    #[must_use]
    pub fn read_limits(mut self, limits: ReadLimits) -> Self {
        self.read_limits = limits;
        self
    }

    /// Sets how often the peer's device repeats a request for which this side has no receive posted, as
    /// [`ConnectParams::rnr_retry_count`] does for the active side. Source: `rnr_retry_count` of rdma_accept(3).
    #[must_use]
    pub fn rnr_retry_count(mut self, count: u8) -> Self {
        self.options.rnr_retry_count = Some(count);
        self
    }

    /// Sets the pause before the peer's device repeats such a request, as [`ConnectParams::rnr_timer`] does.
    #[must_use]
    pub fn rnr_timer(mut self, code: u8) -> Self {
        self.options.rnr_timer = Some(code);
        self
    }

    /// Sets how long the device waits for the peer to acknowledge a packet, as [`ConnectParams::ack_timeout`] does.
    #[must_use]
    pub fn ack_timeout(mut self, exponent: u8) -> Self {
        self.options.ack_timeout = Some(exponent);
        self
    }
}
