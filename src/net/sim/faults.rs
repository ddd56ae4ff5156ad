//! The faults that a program causes in a simulated network.

use std::time::Duration;

use super::host::Host;
use super::limits::Resource;
use super::link::Settings;
use super::socket::Phase;
use super::world::{State, World};
use crate::sync::LONGEST;

impl State {
    /// Wakes every task that waits at a host.
    fn wake_host(&mut self, host: usize) {
        let sockets: Vec<_> =
            self.sockets.iter().filter(|(_, socket)| socket.host == host).map(|(id, _)| *id).collect();
        sockets.into_iter().for_each(|id| self.wake_socket(id));
        for listener in self.listening.values_mut().filter(|listener| listener.host == host) {
            self.wakes.append(&mut listener.waiters);
        }
    }

    /// Ends the sockets of a host that has crashed: one that has a handle stays, and nothing happens to it.
    fn drop_sockets(&mut self, host: usize) {
        let mut unseen = Vec::new();
        self.listening.retain(|_, listener| {
            let stays = listener.host != host;
            if !stays {
                unseen.extend(listener.queue.drain(..));
                self.wakes.append(&mut listener.waiters);
            }
            stays
        });
        for (id, socket) in self.sockets.iter_mut().filter(|(_, socket)| socket.host == host) {
            if socket.orphan || socket.phase == Phase::Accepting {
                unseen.push(*id);
            }
            socket.phase = Phase::Gone;
            self.pairs.remove(&(socket.local, socket.remote));
        }
        for id in unseen {
            self.remove_socket(id);
        }
    }

    /// Notifies the monitors of a host that its interface or its addresses have changed.
    pub(super) fn readdress(&mut self, host: usize) {
        if let Some(place) = self.places.get_mut(host) {
            place.version += 1;
            self.wakes.append(&mut place.watchers);
        }
    }

    fn note(&mut self, host: usize, what: &str) {
        if let Some(place) = self.places.get(host) {
            self.trace.note(self.now, format!("{} {what}", place.address));
        }
    }

    fn note_pair(&mut self, hosts: (usize, usize), what: &str) {
        if let (Some(from), Some(to)) = (self.places.get(hosts.0), self.places.get(hosts.1)) {
            self.trace.note(self.now, format!("{} > {} {what}", from.address, to.address));
        }
    }
}

impl World {
    /// Changes the settings of one direction of a link.
    pub(crate) fn set_link(&self, from: usize, to: usize, change: impl FnOnce(&mut Settings)) {
        self.with(|state| change(&mut state.link(from, to).settings));
    }

    /// Returns the settings of one direction of a link.
    pub(crate) fn link_settings(&self, from: usize, to: usize) -> Settings {
        self.with(|state| state.link(from, to).settings.clone())
    }

    /// Loses all segments of one direction for so long; `Duration::ZERO` ends that.
    pub(crate) fn cut(&self, from: usize, to: usize, time: Duration) {
        self.with(|state| {
            let until = state.now + time.min(LONGEST);
            state.link(from, to).cut_until = until;
            state.note_pair((from, to), &format!("cut until {until:?}"));
        });
    }

    /// Holds all segments of one direction for so long.
    pub(crate) fn stall(&self, from: usize, to: usize, time: Duration) {
        self.with(|state| {
            let until = state.now + time.min(LONGEST);
            state.link(from, to).stalled_until = until;
            state.note_pair((from, to), &format!("stalled until {until:?}"));
        });
    }

    /// Resets all connections of two hosts, at both ends. Returns their number.
    pub(crate) fn reset_between(&self, first: usize, second: usize) -> usize {
        self.with(|state| {
            state.note_pair((first, second), "connections reset");
            let ends: Vec<_> = state
                .sockets
                .iter()
                .filter(|(_, socket)| {
                    let peer = state.addresses.get(&socket.remote.ip());
                    let between = |a, b| socket.host == a && peer == Some(&b);
                    socket.phase == Phase::Open && (between(first, second) || between(second, first))
                })
                .map(|(id, socket)| (*id, socket.connection))
                .collect();
            let mut connections: Vec<_> = ends.iter().map(|(_, connection)| *connection).collect();
            connections.sort_unstable();
            connections.dedup();
            ends.into_iter().for_each(|(id, _)| state.fail(id, libc::ECONNRESET));
            connections.len()
        })
    }

    /// Stops a host, without a segment to any peer.
    pub(crate) fn crash(&self, host: usize) {
        self.with(|state| {
            state.note(host, "crashed");
            state.drop_sockets(host);
            if let Some(place) = state.places.get_mut(host) {
                place.up = false;
                place.frozen = false;
                place.index += 1;
                state.wakes.append(&mut place.stopped);
            }
            state.readdress(host);
        });
    }

    /// Starts a host again.
    pub(crate) fn restart(&self, host: usize) {
        self.with(|state| {
            state.note(host, "restarted");
            if let Some(place) = state.places.get_mut(host) {
                place.up = true;
            }
            state.readdress(host);
        });
    }

    /// Stops the programs of a host, or lets them run again.
    pub(crate) fn freeze(&self, host: usize, frozen: bool) {
        self.with(|state| {
            state.note(host, if frozen { "frozen" } else { "thawed" });
            if let Some(place) = state.places.get_mut(host) {
                place.frozen = frozen;
                if !frozen {
                    state.wakes.append(&mut place.stopped);
                }
            }
            if !frozen {
                state.wake_host(host);
            }
        });
    }

    /// Takes the interface of a host away, or gives it back.
    pub(crate) fn attach(&self, host: usize, attached: bool) {
        self.with(|state| {
            state.note(host, if attached { "interface added" } else { "interface removed" });
            if let Some(place) = state.places.get_mut(host) {
                place.attached = attached;
                place.index += u32::from(!attached);
            }
            state.readdress(host);
        });
    }
}

impl Host {
    /// Limits the ports that may be held when another one is chosen.
    pub(crate) fn limit_ports(&self, limit: Option<usize>) {
        self.limit(&self.ports, "ports", limit);
    }

    /// Limits the descriptors.
    pub(crate) fn limit_sockets(&self, limit: Option<usize>) {
        self.limit(&self.sockets, "sockets", limit);
    }

    /// Limits the bytes that programs have allocated.
    pub(crate) fn limit_memory(&self, limit: Option<usize>) {
        self.limit(&self.memory, "bytes", limit);
    }

    fn limit(&self, resource: &Resource, what: &str, limit: Option<usize>) {
        resource.set_limit(limit);
        let text = limit.map_or_else(|| format!("any number of {what}"), |limit| format!("{limit} {what}"));
        self.world.with(|state| state.note(self.number, &text));
    }
}
