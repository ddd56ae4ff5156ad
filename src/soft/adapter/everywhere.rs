//! The adapter of a listener at every address of this machine, also at those that no interface lists.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tracing::debug;

use super::{Adapter, resolve};
use crate::error::OpenError;
use crate::net::{Host, Interface};
use crate::provider::runtime;
use crate::soft::config::SoftConfig;

/// The number that no interface has.
const EVERY_INTERFACE: u32 = 0;

impl Adapter {
    /// Opens the adapter of a listener at every address of this machine. Its addresses are the unspecified
    /// ones, which never go away, so that it is not removed.
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

    /// Returns the adapter for a connection to this local address: this one, or if this is the adapter of
    /// every interface, the adapter of the interface that has the address. That adapter is opened once, and
    /// stays open as long as this one.
    ///
    /// No adapter lists link-local addresses, and no interface lists those of a local route (`ip route add
    /// local`). This adapter serves them, and the addresses of an interface whose adapter cannot be opened.
    pub(crate) fn serving(self: &Arc<Self>, local: SocketAddr) -> Arc<Self> {
        if !self.is_everywhere() {
            return self.clone();
        }
        let opened = self.opened(|adapter| adapter.has_listed(local.ip()));
        opened.or_else(|| self.open_serving(local)).unwrap_or_else(|| self.clone())
    }

    /// Returns the first open adapter that `is_wanted`.
    fn opened(&self, is_wanted: impl Fn(&Self) -> bool) -> Option<Arc<Self>> {
        let mut opened = self.of_interfaces.lock();
        let removed: Vec<_> = opened.extract_if(.., |adapter| adapter.is_removed()).collect();
        let found = opened.iter().find(|adapter| is_wanted(adapter)).cloned();
        drop(opened);
        drop(removed);
        found
    }

    /// Returns the adapter of the interface that has the address now, opening it if necessary.
    fn open_serving(&self, local: SocketAddr) -> Option<Arc<Self>> {
        // Another network namespace has other interfaces.
        let is_link_local = matches!(local, SocketAddr::V6(v6) if v6.scope_id() != 0);
        if is_link_local || !self.is_of_this_thread() {
            return None;
        }
        let id = resolve(&self.host, local.ip()).ok()?;
        let is_same = |adapter: &Self| u64::from(adapter.interface.index) == id.0;
        if let Some(known) = self.opened(is_same) {
            return Some(known);
        }
        // The tasks of the new adapter run on this adapter's runtime, whichever task calls.
        let _home = self.runtime.enter();
        let adapter = Self::open(self.host.clone(), id, self.config.clone())
            .inspect_err(|error| debug!(%local, %error, "served without the adapter of its interface"))
            .ok()?;
        // Another task may have opened the same adapter since `opened` was called.
        let mut opened = self.of_interfaces.lock();
        let first = opened.iter().find(|other| is_same(other) && !other.is_removed()).cloned();
        if first.is_none() {
            opened.push(adapter.clone());
        }
        drop(opened);
        Some(first.unwrap_or(adapter))
    }
}
