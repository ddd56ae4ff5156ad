//! The choice of devices: by name, port and kind, in the settings of the program and in the environment.

use std::fmt;
use std::sync::LazyLock;

use crate::sys::DeviceKind;

/// The environment variable with a list of devices.
pub(crate) const VARIABLE: &str = "TOKIO_RDMA_DEVICES";

/// A list of devices that are used, or, behind `^`, of devices that are not. An empty list excludes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceFilter {
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
    pub(crate) fn new(text: &str) -> Self {
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
    pub(crate) fn of_environment() -> Option<&'static Self> {
        static LIST: LazyLock<Option<DeviceFilter>> = LazyLock::new(|| {
            let text = std::env::var_os(VARIABLE)?;
            Some(DeviceFilter::new(&text.to_string_lossy()))
        });
        LIST.as_ref()
    }

    /// Returns whether a port of a device is used. The kind is asked for only if the list has one.
    pub(crate) fn permits(&self, device: &str, port: u8, kind: impl Fn() -> Option<DeviceKind>) -> bool {
        let matches = |entry: &Entry| match entry {
            Entry::Kind(wanted) => kind() == Some(*wanted),
            Entry::Name { port: wanted, .. } => {
                entry.names(device) && wanted.is_none_or(|wanted| wanted == port)
            }
        };
        self.entries.is_empty() || self.entries.iter().any(matches) != self.excludes
    }

    /// Returns whether no port of a device with this name is used, whatever its kind.
    pub(crate) fn excludes(&self, device: &str) -> bool {
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

/// The list as it was written.
impl fmt::Display for DeviceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
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
            assert_eq!(list.to_string(), text.trim());
            for ((name, ..), permitted) in devices.iter().zip(permits) {
                assert!(!(permitted && list.excludes(name)), "{text:?} {name}");
            }
        }
        assert!(DeviceFilter::new("^mlx5_0,siw0").excludes("siw0"));
        assert!(DeviceFilter::new("mlx5_*").excludes("siw0"));
        assert!(!DeviceFilter::new("^siw0:1").excludes("siw0"), "its other ports are used");
        assert!(!DeviceFilter::new("iwarp").excludes("siw0"), "its kind is not known");
    }

    // HW-15: the kind costs a call into the driver.
    #[test]
    fn the_kind_is_asked_for_where_a_list_has_one() {
        for text in ["", "mlx5_0", "^mlx5_0", "^*"] {
            DeviceFilter::new(text).permits("siw0", 1, || panic!("asked for the kind"));
        }
        assert!(!DeviceFilter::new("roce").permits("siw0", 1, || None));
        assert!(DeviceFilter::new("^roce").permits("siw0", 1, || None));
    }
}
