//! The adapter of a listener at every address of this machine, also at those that no interface lists.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tracing::debug;

use super::{Adapter, resolve};
use crate::error::OpenError;
use crate::provider::net::{Host, Interface};
use crate::provider::runtime;
use crate::provider::soft::config::SoftConfig;
use crate::types::AdapterId;

/// The number that no interface has.
const EVERY_INTERFACE: u32 = 0;

impl Adapter {
    /// Opens the adapter of a listener at every address of this machine. Its addresses are the unspecified ones, which never go,
    /// so that it is not removed.
    ///
    /// # Errors
    /// `Unsupported` without a runtime, or if the runtime lacks I/O or timers.
    pub(crate) fn everywhere(config: SoftConfig) -> Result<Arc<Self>, OpenError> {
        let runtime = runtime::current()?;
        let interface = Interface {
            index: EVERY_INTERFACE,
            name: "any".into(),
            addresses: vec![Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()],
            up: true,
            loopback: false,
        };
        Ok(Self::new(Host::Kernel, runtime, interface, config))
    }

    /// Returns whether this is the adapter of every interface.
    pub(crate) fn is_everywhere(&self) -> bool {
        self.interface.index == EVERY_INTERFACE
    }

    /// Returns the adapter for a connection to this local address: this one, or if this is the adapter of every interface,
    /// the one of the interface with the address. That is opened once, and stays open as long as this one.
    ///
    /// No interface lists the addresses of a local route (`ip route add local`). This adapter serves them, and those of an
    /// interface whose adapter cannot be opened.
    pub(crate) fn serving(self: &Arc<Self>, local: SocketAddr) -> Arc<Self> {
        if !self.is_everywhere() {
            return self.clone();
        }
        let mut opened = self.of_interfaces.lock();
        let removed: Vec<_> = opened.extract_if(.., |adapter| adapter.is_removed()).collect();
        let found = opened.iter().find(|adapter| adapter.has_listed(local.ip())).cloned();
        let found = found.or_else(|| self.open_serving(&mut opened, local));
        drop(opened);
        drop(removed);
        found.unwrap_or_else(|| self.clone())
    }

    /// Returns the adapter of the interface that has the address now.
    fn open_serving(&self, opened: &mut Vec<Arc<Self>>, local: SocketAddr) -> Option<Arc<Self>> {
        let id = match local {
            // Link-local: the scope is the number of the interface.
            SocketAddr::V6(v6) if v6.scope_id() != 0 => AdapterId(v6.scope_id().into()),
            _ => resolve(&self.host, local.ip()).ok()?,
        };
        if let Some(known) = opened.iter().find(|adapter| u64::from(adapter.interface.index) == id.0) {
            return Some(known.clone());
        }
        // The tasks of the adapter run where those of this one do, whichever task asks.
        let _home = self.runtime.enter();
        let adapter = Self::open(self.host.clone(), id, self.config.clone())
            .inspect_err(|error| debug!(%local, %error, "served without the adapter of its interface"))
            .ok()?;
        opened.push(adapter.clone());
        Some(adapter)
    }
}
