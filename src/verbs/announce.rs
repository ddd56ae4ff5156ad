//! The events of an adapter: those that its device raises for a port, and changes of the addresses that lead to the device.
//!
//! No event of a device is about IP addresses. On RoCE the table of GIDs follows them, and the device says when it has changed. Over
//! InfiniBand and iWARP, and when an interface goes, the kernel announces the addresses alone. So the addresses are listed after
//! either, while a program reads the events.

use std::sync::{Arc, Weak};

use tracing::debug;

use super::context::AdapterContext;
use crate::net::kernel::interfaces::AddressMonitor;
use crate::provider::events::{AdapterEvent, Announced, Subscription};
use crate::status::DeviceEvent;
use crate::sys::{AsyncEvent, Element};

impl AdapterContext {
    /// Returns the events of the adapter from now on.
    pub(crate) fn subscribe(self: &Arc<Self>) -> Arc<Subscription> {
        let mut announced = self.announced.lock();
        if !self.announcer.is_heard() {
            // Changes before the first subscription are no news. The adapter may know only the address by which it was opened.
            self.update_addresses();
            announced.known = self.known_addresses();
        }
        let begins = !std::mem::replace(&mut announced.is_watched, true);
        let subscription = self.announcer.subscribe();
        drop(announced);
        if begins && !self.is_removed() && !self.is_stopped() {
            let _guard = self.runtime.enter();
            match AddressMonitor::open() {
                Ok(monitor) => {
                    let task = self.runtime.spawn(watch(Arc::downgrade(self), monitor));
                    self.add_task(task.abort_handle());
                }
                Err(error) => debug!(adapter = %self.device.name, %error, "addresses not watched"),
            }
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
        self.update_addresses();
        let now = self.known_addresses();
        if announced.known == now {
            return;
        }
        announced.known = now;
        let changed = self.announcer.add(AdapterEvent::AddressesChanged);
        drop(announced);
        changed.notify();
    }
}

/// Lists the addresses of an adapter whenever the kernel announces that some of this machine have changed.
async fn watch(adapter: Weak<AdapterContext>, monitor: AddressMonitor) {
    while monitor.changed().await.is_ok() {
        let Some(adapter) = adapter.upgrade().filter(|adapter| !adapter.is_removed()) else { return };
        if adapter.announcer.is_heard() {
            adapter.announce_addresses();
        }
    }
}
