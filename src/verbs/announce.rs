//! The ports of a device, and the events of an adapter: those that its device raises for a port, and changes of the addresses that lead to
//! the device.
//!
//! No event of a device is about IP addresses. On RoCE the table of GIDs follows them, and the device says when it has changed. Over
//! InfiniBand and iWARP, and when an interface goes, the kernel announces the addresses alone. So the addresses are listed after
//! either, while a program reads the events. The device is asked about each of them, so a link that has changed without an address of this
//! machine does not count: hosts of containers make and remove many.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::sleep;
use tracing::debug;

use super::context::{AdapterContext, failed};
use crate::error::OpenError;
use crate::events::{AdapterEvent, Announced, Subscription};
use crate::net::kernel::interfaces::{AddressMonitor, Announced as Changed, addresses_by_interface};
use crate::provider::info::{LinkLayer, PortInfo, PortState};
use crate::status::DeviceEvent;
use crate::sys::{AsyncEvent, Element, LinkState, PortAttributes};

/// The time until the announcements of the kernel are asked for again after that has failed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The announcements of the kernel, and the addresses of this machine when they were last looked at.
struct Watch {
    monitor: Option<AddressMonitor>,
    known: Option<Vec<(u32, SocketAddr)>>,
}

impl Watch {
    /// Begins to listen to the kernel. Changes from now on are noticed.
    fn begin() -> Self {
        let monitor = AddressMonitor::open().ok();
        Self { monitor, known: addresses_by_interface().ok() }
    }

    /// Resolves when addresses of this machine may have changed. While the kernel announces nothing, because the process is out of
    /// descriptors or may have no such socket, that is after a pause.
    async fn changed(&mut self, adapter: &str) {
        loop {
            let announced = match &self.monitor {
                Some(monitor) => monitor.changed().await.ok(),
                None => None,
            };
            let mut has_changed = announced == Some(Changed::Addresses);
            if announced.is_none() {
                debug!(adapter, "addresses not watched");
                sleep(LOOK_AGAIN).await;
                self.monitor = AddressMonitor::open().ok();
                // Of what was announced in between, only a part can be seen by a look.
                has_changed = self.monitor.is_some();
            }
            let before = std::mem::replace(&mut self.known, addresses_by_interface().ok());
            if self.known.is_none() {
                self.monitor = None;
            } else if has_changed || self.known != before {
                return;
            }
        }
    }
}

impl AdapterContext {
    /// Returns the events of the adapter from now on.
    pub(crate) fn subscribe(self: &Arc<Self>) -> Arc<Subscription> {
        let mut announced = self.announced.lock();
        let begins = !std::mem::replace(&mut announced.is_watched, true);
        // Before the addresses are listed, so that no change is lost.
        let watched = (begins && !self.is_removed() && !self.is_stopped()).then(|| {
            let _guard = self.runtime.enter();
            Watch::begin()
        });
        if !self.announcer.is_heard() {
            // Changes before the first subscription are no news. The adapter may know only the address by which it was opened.
            self.list_addresses();
            announced.known = self.known_addresses();
        }
        let subscription = self.announcer.subscribe();
        drop(announced);
        self.log_addresses();
        if let Some(watched) = watched {
            let task = self.runtime.spawn(watch(Arc::downgrade(self), self.device.name.clone(), watched));
            self.add_task(task.abort_handle());
        }
        subscription
    }

    /// Adds an event of the device for the readers, whom the caller notifies; `None` if it is not about a port.
    pub(super) fn add_event(&self, event: AsyncEvent) -> Option<Announced> {
        let Element::Port(port) = event.element else { return None };
        let announced = match event.kind {
            DeviceEvent::PORT_ACTIVE => AdapterEvent::PortUp { port },
            DeviceEvent::PORT_ERR => AdapterEvent::PortDown { port },
            DeviceEvent::GID_CHANGE => AdapterEvent::GidChanged { port },
            DeviceEvent::PKEY_CHANGE => AdapterEvent::PkeyChanged { port },
            DeviceEvent::LID_CHANGE => AdapterEvent::LidChanged { port },
            DeviceEvent::SM_CHANGE => AdapterEvent::SubnetManagerChanged { port },
            _ => return None,
        };
        Some(self.announcer.add(announced))
    }

    /// Lists the addresses, which may have changed. Announces that they have, if a program reads the events. The caller holds no lock.
    pub(super) fn announce_addresses(&self) {
        if !self.announcer.is_heard() {
            return drop(self.update_addresses());
        }
        let mut announced = self.announced.lock();
        self.list_addresses();
        let now = self.known_addresses();
        let changed = (announced.known != now).then(|| {
            announced.known = now;
            self.announcer.add(AdapterEvent::AddressesChanged)
        });
        drop(announced);
        if let Some(changed) = changed {
            changed.notify();
        }
        self.log_addresses();
    }
}

/// Lists the addresses of an adapter whenever some of this machine may have changed.
async fn watch(adapter: Weak<AdapterContext>, name: String, mut watched: Watch) {
    loop {
        watched.changed(&name).await;
        let Some(adapter) = adapter.upgrade().filter(|adapter| !adapter.is_removed()) else { return };
        if adapter.announcer.is_heard() {
            adapter.announce_addresses();
        }
    }
}

impl AdapterContext {
    /// Returns the ports of the device as they are now.
    ///
    /// # Errors
    /// `DeviceRemoved`; `Os`.
    pub(crate) fn port_info(&self) -> Result<Vec<PortInfo>, OpenError> {
        let opened = self.opened().ok_or(OpenError::DeviceRemoved)?;
        let used = if self.is_iwarp() { None } else { opened.gid() };
        let port = |number| {
            let attributes = opened.context.port(number)?;
            let is_infiniband = attributes.is_infiniband();
            let PortAttributes { state, mtu, speed, lid, .. } = attributes;
            io::Result::Ok(PortInfo {
                number,
                state: state_of(state),
                mtu,
                speed,
                link_layer: is_infiniband
                    .map(|yes| if yes { LinkLayer::InfiniBand } else { LinkLayer::Ethernet }),
                lid: is_infiniband.unwrap_or(false).then_some(lid),
                gid: used.and_then(|(port, gid)| (port == number).then_some(gid)),
            })
        };
        (1..=self.attributes.ports).map(port).collect::<Result<_, _>>().map_err(failed("ibv_query_port"))
    }
}

fn state_of(state: LinkState) -> PortState {
    match state {
        LinkState::Down => PortState::Down,
        LinkState::Initializing => PortState::Initializing,
        LinkState::Armed => PortState::Armed,
        LinkState::Active => PortState::Active,
        LinkState::ActiveDeferred => PortState::ActiveDeferred,
        LinkState::Unknown => PortState::Unknown,
    }
}
