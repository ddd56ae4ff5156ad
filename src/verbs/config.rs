//! Settings of the verbs provider, among them the choice of devices: by name, port and kind, in the settings of the program and in
//! the environment.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::sync::Semaphore;

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
    pub(crate) max_connects: Option<usize>,
    pub(crate) max_reads: Option<usize>,
    /// The devices that the program has chosen.
    devices: Option<DeviceFilter>,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            spin: Duration::ZERO,
            disconnect_timeout: Duration::from_secs(10),
            path_timeout: Some(Duration::from_secs(30)),
            max_connects: None,
            max_reads: None,
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

    /// Limits the connects that an adapter has in progress: from the resolution of the peer's address to the peer's accept. Default:
    /// `None`, no limit. 0 counts as 1.
    ///
    /// Further ones wait in the order in which they were called. The time-out of a connect
    /// ([`ConnectParams::timeout`](crate::ConnectParams::timeout)) runs while it waits. A connect that is dropped or cancelled leaves the
    /// line. Connects of streams and of sessions count, too, and accepts do not.
    ///
    /// With a limit, an attempt that this host refuses for lack of resources (`INSUFFICIENT_RESOURCES`) is made again after a pause, as
    /// long as the time-out is not over, or for 5 seconds without one. Its place is free during the pause. The pauses are of 5 to 10 ms, then each time of up to twice as long, and of half a second to a second at last.
    /// A random part of the pause keeps programs that were refused together from coming back together. Without a limit the connect fails
    /// at once.
    ///
    /// A program that connects to thousands of peers at a time, after a failure of the network for example, keeps by this the connection
    /// manager and the subnet manager from being so busy with them that all of them time out.
    #[must_use]
    pub fn max_connects(mut self, connects: Option<usize>) -> Self {
        self.max_connects = connects.map(|connects| connects.clamp(1, Semaphore::MAX_PERMITS));
        self
    }

    /// Limits the RDMA Reads and atomics that an adapter has in flight, over all its queue pairs and lanes: those that were posted and
    /// have not completed, and those that a permit is held for. Default: `None`, no limit. 0 counts as 1.
    ///
    /// Further ones are refused with [`ReadsFull`](crate::error::PostErrorKind::ReadsFull).
    /// [`QueuePair::reserve_read`](crate::QueuePair::reserve_read) waits in line until there are fewer, and so do the reads beside a
    /// [stream](crate::RdmaStream::one_sided). A read counts until the adapter takes its completion from the device, or until its queue
    /// pair has ended: dropping the [`Op`](crate::Op) changes nothing. A read without bytes does not count, unless
    /// it was posted by a permit.
    ///
    /// With a limit, a [silent](crate::WorkOptions::silent) read has a completion of the device like any other, and a
    /// [`Lane`](crate::qp::Lane) hands each of its reads to the device by itself.
    ///
    /// The read limits of a connection ([`ReadLimits`](crate::ReadLimits)) are for what the two devices can do. A program with hundreds of connections that
    /// all read at a time keeps by this the card from having more reads to answer for than it has memory, which makes every one slower.
    #[must_use]
    pub fn max_reads(mut self, reads: Option<usize>) -> Self {
        self.max_reads = reads.map(|reads| reads.clamp(1, Semaphore::MAX_PERMITS));
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
        let environment = environment.map(|list| format!("{VARIABLE}={}", list.text));
        let settings = || self.devices.as_ref().filter(|list| is_wanted(list));
        environment.or_else(|| settings().map(|list| format!("VerbsConfig::devices(\"{}\")", list.text)))
    }
}

/// The environment variable with a list of devices.
const VARIABLE: &str = "TOKIO_RDMA_DEVICES";

/// A list of devices that are used, or, behind `^`, of devices that are not. An empty list excludes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DeviceFilter {
    /// The list as it was written.
    text: String,
    /// The devices of the list are those that are not used.
    excludes: bool,
    entries: Vec<Entry>,
}

/// One of the entries between the commas.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Kind(DeviceKind),
    Name {
        name: String,
        /// The entry ended with `*`, and `name` is how the names begin.
        is_prefix: bool,
        port: Option<u8>,
    },
}

impl Entry {
    fn new(text: &str) -> Self {
        match text {
            "infiniband" => Self::Kind(DeviceKind::InfiniBand),
            "roce" => Self::Kind(DeviceKind::Roce),
            "iwarp" => Self::Kind(DeviceKind::Iwarp),
            _ => {
                let numbered =
                    text.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse().ok()?)));
                let (name, port) = numbered.map_or((text, None), |(name, port)| (name, Some(port)));
                let prefix = name.strip_suffix('*');
                Self::Name { name: prefix.unwrap_or(name).to_owned(), is_prefix: prefix.is_some(), port }
            }
        }
    }

    /// Returns whether the entry is about a device with this name, if the port and the kind are right.
    fn names(&self, device: &str) -> bool {
        match self {
            Self::Kind(_) => true,
            Self::Name { name, is_prefix: false, .. } => device == name,
            Self::Name { name, is_prefix: true, .. } => device.starts_with(name),
        }
    }
}

impl DeviceFilter {
    /// Reads a list. There is no text that is not one.
    fn new(text: &str) -> Self {
        let text = text.trim();
        let (excludes, list) = text.strip_prefix('^').map_or((false, text), |list| (true, list));
        // `^a,^b` is `^a,b`.
        let entry = |entry: &str| {
            let entry = entry.trim();
            if excludes { entry.trim_start_matches('^').to_owned() } else { entry.to_owned() }
        };
        let entries = list.split(',').map(entry).filter(|entry| !entry.is_empty());
        Self { text: text.to_owned(), excludes, entries: entries.map(|entry| Entry::new(&entry)).collect() }
    }

    /// Returns the list of the environment, which is read once in a process; `None` without one.
    fn of_environment() -> Option<&'static Self> {
        static LIST: LazyLock<Option<DeviceFilter>> = LazyLock::new(|| {
            let text = std::env::var_os(VARIABLE)?;
            Some(DeviceFilter::new(&text.to_string_lossy()))
        });
        LIST.as_ref()
    }

    /// Returns whether a port of a device is used. The kind is asked for only if the list has one.
    fn permits(&self, device: &str, port: u8, kind: impl Fn() -> Option<DeviceKind>) -> bool {
        let matches = |entry: &Entry| match entry {
            Entry::Kind(wanted) => kind() == Some(*wanted),
            Entry::Name { port: wanted, .. } => {
                entry.names(device) && wanted.is_none_or(|wanted| wanted == port)
            }
        };
        self.entries.is_empty() || self.entries.iter().any(matches) != self.excludes
    }

    /// Returns whether no port of a device with this name is used, whatever its kind.
    fn excludes(&self, device: &str) -> bool {
        if self.entries.is_empty() {
            return false;
        }
        if self.excludes {
            let all_ports =
                |entry: &Entry| matches!(entry, Entry::Name { port: None, .. }) && entry.names(device);
            self.entries.iter().any(all_ports)
        } else {
            !self.entries.iter().any(|entry| entry.names(device))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // HW-15: the list of the settings and of the environment.
    #[test]
    fn lists() {
        use DeviceKind::{InfiniBand, Iwarp, Roce};

        // The list, and whether it permits port 1 of mlx5_0 (RoCE), port 2 of it, mlx5_10 (InfiniBand) and siw0 (iWARP).
        let cases = [
            ("", [true, true, true, true]),
            (" , ", [true, true, true, true]),
            ("^", [true, true, true, true]),
            ("mlx5_0", [true, true, false, false]),
            ("mlx5_0:1", [true, false, false, false]),
            ("mlx5_0:2, siw0", [false, true, false, true]),
            ("mlx5_1", [false, false, false, false]),
            ("mlx5_*", [true, true, true, false]),
            ("mlx5_*:1", [true, false, true, false]),
            ("*", [true, true, true, true]),
            ("^*", [false, false, false, false]),
            ("^mlx5_0", [false, false, true, true]),
            ("^mlx5_0:2", [true, false, true, true]),
            ("^mlx5_0,siw0", [false, false, true, false]),
            ("^mlx5_0, ^siw0", [false, false, true, false]),
            ("roce", [true, true, false, false]),
            ("infiniband,iwarp", [false, false, true, true]),
            ("^iwarp", [true, true, true, false]),
            ("^roce,mlx5_10", [false, false, false, true]),
        ];
        let devices =
            [("mlx5_0", 1, Roce), ("mlx5_0", 2, Roce), ("mlx5_10", 1, InfiniBand), ("siw0", 1, Iwarp)];
        for (text, expected) in cases {
            let list = DeviceFilter::new(text);
            let permits = devices.map(|(name, port, kind)| list.permits(name, port, || Some(kind)));
            assert_eq!(permits, expected, "{text:?}");
            assert_eq!(list.text, text.trim());
            for ((name, ..), permitted) in devices.iter().zip(permits) {
                assert!(!(permitted && list.excludes(name)), "{text:?} {name}");
            }
        }
        assert!(DeviceFilter::new("^mlx5_0,siw0").excludes("siw0"));
        assert!(DeviceFilter::new("mlx5_*").excludes("siw0"));
        assert!(!DeviceFilter::new("^siw0:1").excludes("siw0"), "its other ports are used");
        assert!(!DeviceFilter::new("iwarp").excludes("siw0"), "its kind is not known");
    }

    // HW-15: only a device without any usable port is left out unseen.
    #[test]
    fn settings_exclude_the_listed_device_alone() {
        let config = VerbsConfig::default().devices("^excluded0");
        assert!(config.excludes("excluded0"));
        // The environment may have a list too.
        let of_environment =
            |device| DeviceFilter::of_environment().is_some_and(|list| list.excludes(device));
        for (device, config) in [("used0", config), ("excluded0", VerbsConfig::default())] {
            assert_eq!(config.excludes(device), of_environment(device), "{device}");
        }
    }

    // HW-15: the kind costs a call into the driver.
    #[test]
    fn device_kind_is_queried_only_when_listed() {
        for text in ["", "mlx5_0", "^mlx5_0", "^*"] {
            DeviceFilter::new(text).permits("siw0", 1, || panic!("asked for the kind"));
        }
        assert!(!DeviceFilter::new("roce").permits("siw0", 1, || None));
        assert!(DeviceFilter::new("^roce").permits("siw0", 1, || None));
    }
}
