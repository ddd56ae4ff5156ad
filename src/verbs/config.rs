//! Settings of the verbs provider.

use std::time::Duration;

use super::device_filter::{DeviceFilter, VARIABLE};
use crate::sync::LONGEST;
use crate::sys::DeviceKind;

/// The shortest path timeout.
const SHORTEST: Duration = Duration::from_millis(100);

/// Settings of the verbs provider.
///
/// ```
/// use std::time::Duration;
/// use tokio_rdma::verbs::VerbsConfig;
///
/// let config = VerbsConfig::default().spin(Duration::from_micros(50));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsConfig {
    pub(crate) spin: Duration,
    pub(crate) disconnect_timeout: Duration,
    pub(crate) path_timeout: Option<Duration>,
    /// The devices that the program has chosen.
    devices: Option<DeviceFilter>,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            spin: Duration::ZERO,
            disconnect_timeout: Duration::from_secs(10),
            path_timeout: Some(Duration::from_secs(30)),
            devices: None,
        }
    }
}

impl VerbsConfig {
    /// Sets how long a task that reads completions polls before it sleeps: an adapter has one for each thread of the runtime, and one for
    /// each [`CompletionQueue`](crate::CompletionQueue). It yields to other tasks after each poll, but keeps the core busy. Default: zero. A time beyond what the clock can
    /// represent counts as zero.
    ///
    /// With zero, too, such a task polls up to 256 times before it sleeps, which takes ten to twenty microseconds. It does so while this finds
    /// completions. If not, it sleeps at once, up to 63 times in a row, before it tries again.
    #[must_use]
    pub fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }

    /// Sets how long a disconnect waits for the peer's response. After it, the disconnect fails with `IO_TIMEOUT`. Default:
    /// 10 s. A longer time than 30 years counts as 30 years.
    #[must_use]
    pub fn disconnect_timeout(mut self, timeout: Duration) -> Self {
        self.disconnect_timeout = timeout.min(LONGEST);
        self
    }

    /// Sets how long an idle connection survives a dead path or a dead peer. Default: 30 s, at least 100 ms, at most 30
    /// years. With `None`, an idle connection does not notice either.
    ///
    /// A connection from whose peer nothing has come for half of this time, and on which no request is outstanding, posts an
    /// empty request, of which the applications of both ends hear nothing. If it does not complete within another half, the
    /// connection is lost with `IO_TIMEOUT`, at most a tenth of this time late. If the device gives up earlier, the connection
    /// is lost then. The device has room for this request beside those of
    /// [`send_depth`](crate::QueuePairConfig::send_depth).
    ///
    /// This does not limit requests of the application that are outstanding: a peer that posts no receives lets them wait.
    /// The device notices by itself that they are not acknowledged. On InfiniBand and RoCE that takes
    /// [`retry_count`](crate::ConnectParams::retry_count) times one to four
    /// [`ack_timeout`](crate::ConnectParams::ack_timeout)s. On iWARP it takes until the TCP of the driver gives up, often 15
    /// minutes; so does the empty request of a connection with an outbound read limit of 0. But on iWARP a send is complete as
    /// soon as TCP has it, and the empty request waits behind it: a peer that reads nothing for half of this time is given
    /// up.
    ///
    /// The peer has to permit RDMA Writes, as every peer does that was connected by librdmacm.
    #[doc(alias = "keepalive")]
    #[must_use]
    pub fn path_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.path_timeout = timeout.map(|timeout| timeout.clamp(SHORTEST, LONGEST));
        self
    }

    /// Sets the devices that the provider uses, as a list with commas. Default: all.
    ///
    /// | entry | devices |
    /// |---|---|
    /// | `mlx5_0` | the device with this name |
    /// | `mlx5_0:1` | port 1 of this device: the addresses of its other ports are not used |
    /// | `mlx5_*` | the devices whose names begin so; `*` is every device |
    /// | `infiniband`, `roce`, `iwarp` | the devices of this kind |
    ///
    /// A list that begins with `^` names the devices that are not used: `^mana_0,iwarp`. An empty list means all devices.
    ///
    /// The environment variable `TOKIO_RDMA_DEVICES` has such a list for every program. A device is used only if both lists
    /// permit it. The variable is read once, when a device is first looked for.
    ///
    /// The addresses of a device that is not used have no adapter of this provider: they are missing in
    /// [`Provider::addresses`](crate::Provider::addresses), and opening one fails with
    /// [`OpenError::Excluded`](crate::error::OpenError::Excluded). [`Adapter::open`](crate::Adapter::open) then takes the soft
    /// provider. rdma_cm chooses the device of an address, and the list does not change its choice: if two devices have one
    /// network interface, excluding the one that rdma_cm chooses does not lead to the other.
    ///
    /// ```
    /// use tokio_rdma::verbs::VerbsConfig;
    ///
    /// // Not the device that can only connect to other machines.
    /// let config = VerbsConfig::default().devices("^mana_0");
    /// ```
    #[must_use]
    pub fn devices(mut self, list: &str) -> Self {
        self.devices = Some(DeviceFilter::new(list));
        self
    }

    /// Returns the list that excludes a port of a device, in words; `None` if the device is used. The kind is asked for only
    /// if a list has one.
    pub(crate) fn excluded_by(
        &self,
        device: &str,
        port: u8,
        kind: impl Fn() -> Option<DeviceKind>,
    ) -> Option<String> {
        self.list_with(|list| !list.permits(device, port, &kind))
    }

    /// Returns whether no port of a device with this name is used, whatever its kind.
    pub(crate) fn excludes(&self, device: &str) -> bool {
        self.list_with(|list| list.excludes(device)).is_some()
    }

    /// Returns the first of the two lists for which `is_wanted` holds, in words.
    fn list_with(&self, is_wanted: impl Fn(&DeviceFilter) -> bool) -> Option<String> {
        let environment = DeviceFilter::of_environment().filter(|list| is_wanted(list));
        let environment = environment.map(|list| format!("{VARIABLE}={list}"));
        let settings = || self.devices.as_ref().filter(|list| is_wanted(list));
        environment.or_else(|| settings().map(|list| format!("VerbsConfig::devices(\"{list}\")")))
    }
}
