//! Settings of the connections of streams: those that `ConnectParams` and `AcceptParams` have besides private data,
//! and those of a listener's handshakes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::config::StreamConfig;
use crate::cm::{AcceptParams, Adapter, ConnectParams, Connector};
use crate::error::BindError;
use crate::types::ReadLimits;

/// The settings. `None` leaves a value to the protocol or the provider.
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
    ///
    /// # Errors
    /// Those of [`Connector::bind`].
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
