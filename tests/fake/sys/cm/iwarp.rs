//! Connections over iWARP, as the kernel's iwcm and the driver of a card make them.
//!
//! The driver moves the queue pairs, so it is told their numbers; a connection is established at both ends when the passive side
//! accepts. A refusal is the error number of a TCP connection. An id cannot be destroyed while it waits for the peer's answer, nor
//! can its queue pair. Read limits are those of the side that is told (as cxgb4 has it).

use std::sync::MutexGuard;

use super::super::number::{IBV_QPS_INIT, IBV_QPS_RTS};
use super::*;
use crate::sys::objects;

impl World {
    /// Gives an id the queue pair with a number, to connect it.
    fn hold(&mut self, number: u32, serial: u64) -> Answer<()> {
        let place = self.id_by_serial(serial).and_then(|(_, id)| id.place);
        let at = self.numbers.get(&number).ok_or(libc::EINVAL)?;
        let queue_pair = self.queue_pairs.get_mut(at).ok_or(libc::EINVAL)?;
        if queue_pair.connection.is_some() || queue_pair.state != IBV_QPS_INIT {
            return Err(libc::EINVAL);
        }
        queue_pair.connection = Some(serial);
        // TCP takes the port of the address, whatever its user has named.
        if let Some(place) = place {
            queue_pair.attributes.port_num = place.port;
        }
        Ok(())
    }

    /// The id has nothing to do with its queue pair any more, and waits for nobody. Returns the queue pair.
    pub(super) fn release(&mut self, at: usize) -> Option<usize> {
        let id = self.cm.ids.get_mut(&at)?;
        id.waits = false;
        let (number, serial) = (id.own.number, id.serial);
        world::CHANGED.notify_all();
        let at = *self.numbers.get(&number)?;
        let queue_pair = self.queue_pairs.get_mut(&at)?;
        queue_pair.connection.take_if(|connection| *connection == serial)?;
        Some(at)
    }

    /// Connects a queue pair, unless it has gone to the error state meanwhile.
    fn join(&mut self, number: u32, peer: u32, reads: (u8, u8)) -> Answer<()> {
        let at = *self.numbers.get(&number).ok_or(libc::EINVAL)?;
        let queue_pair = self.queue_pairs.get_mut(&at).ok_or(libc::EINVAL)?;
        if queue_pair.state != IBV_QPS_INIT {
            return Err(libc::EINVAL);
        }
        queue_pair.state = IBV_QPS_RTS;
        queue_pair.attributes.dest_qp_num = peer;
        (queue_pair.attributes.max_dest_rd_atomic, queue_pair.attributes.max_rd_atomic) = reads;
        // SAFETY: a queue pair that is in the table is live, and this is the table under its lock.
        unsafe { objects::set_state(std::ptr::with_exposed_provenance_mut(at), IBV_QPS_RTS) };
        Ok(())
    }

    /// Ends a connection: both queue pairs go to the error state, and then both ids are told. A peer that cannot be reached hears
    /// nothing.
    fn close(&mut self, at: usize, status: c_int) {
        let lost = self.loses(at);
        let mut peer = self.cm.ids.get(&at).and_then(|id| id.peer);
        if lost && let Some(peer) = peer.take() {
            self.part(peer);
        }
        for end in [Some(at), peer].into_iter().flatten() {
            let Some(id) = self.cm.ids.get_mut(&end).filter(|id| id.phase == Phase::Established) else {
                continue;
            };
            (id.phase, id.peer) = (Phase::Over, None);
            if let Some(queue_pair) = self.release(end) {
                self.fail(queue_pair);
            }
            self.tell_status(end, kind::DISCONNECTED, status);
        }
    }
}

/// The queue pair of an id with this number has gone to the error state: its driver resets the connection.
pub(in crate::sys) fn reset(world: &mut World, serial: u64) {
    if let Some((at, _)) = world.id_by_serial(serial) {
        world.close(at, -libc::ECONNRESET);
    }
}

/// Nobody waits for a device that is gone.
pub(super) fn device_removed(world: &mut World) {
    let all: Vec<usize> = world.cm.ids.keys().copied().collect();
    for at in all {
        let _queue_pair = world.release(at);
    }
}

/// TCP connects within the call, and the request is sent.
pub(super) fn connect(
    mut world: MutexGuard<'static, World>,
    raw: *mut rdma_cm_id,
    terms: Terms,
    data: &[u8],
) -> Answer<()> {
    if let Some(time) = world.script.linger() {
        drop(world);
        std::thread::sleep(time);
        world = world::lock();
    }
    let id = live(&mut world.cm.ids, raw);
    let (Phase::RouteResolved, Some(to)) = (id.phase, id.destination) else { return Err(libc::EINVAL) };
    let (at, serial) = (raw.addr(), id.serial);
    world.hold(terms.number, serial)?;
    let id = live(&mut world.cm.ids, raw);
    (id.own, id.phase, id.waits) = (terms, Phase::RequestSent, true);
    world.await_answer(serial);
    if world.is_answered("rdma_connect", at) {
        return Ok(());
    }
    match world.listener(to) {
        _ if world.loses(at) => {}
        Some(listener) if world.has_room(listener) => world.request(at, listener, terms, data),
        _ => world.rejected(at, -libc::ECONNREFUSED, &[]),
    }
    Ok(())
}

/// The reply establishes the connection.
pub(super) fn accept(world: &mut World, raw: *mut rdma_cm_id, terms: Terms, data: Vec<u8>) -> Answer<()> {
    let lost = world.loses(raw.addr());
    let id = live(&mut world.cm.ids, raw);
    if id.phase != Phase::RequestReceived {
        return Err(libc::EINVAL);
    }
    let Some(peer) = id.peer else {
        id.phase = Phase::Over;
        return Err(libc::ECONNRESET);
    };
    let (at, serial, theirs) = (raw.addr(), id.serial, id.theirs);
    world.hold(terms.number, serial)?;
    world.join(terms.number, theirs.number, (terms.responder_resources, terms.initiator_depth))?;
    let id = live(&mut world.cm.ids, raw);
    (id.own, id.phase) = (terms, Phase::Established);
    world.tell(at, kind::ESTABLISHED, 0, Vec::new(), terms);
    if lost {
        return Ok(());
    }
    let inbound = terms.initiator_depth;
    let outbound = theirs.initiator_depth.min(terms.responder_resources);
    if world.join(theirs.number, terms.number, (inbound, outbound)).is_err() {
        // Its user has destroyed the queue pair, or is about to.
        world.over(peer, kind::CONNECT_ERROR, -libc::EINVAL);
        world.close(at, -libc::ECONNRESET);
        return Ok(());
    }
    if let Some(active) = world.cm.ids.get_mut(&peer) {
        (active.theirs, active.phase, active.waits) = (terms, Phase::Established, false);
    }
    world::CHANGED.notify_all();
    let local = Terms { responder_resources: inbound, initiator_depth: outbound, ..terms };
    world.tell(peer, kind::ESTABLISHED, 0, data, local);
    Ok(())
}

impl World {
    /// An attempt has come to nothing.
    fn over(&mut self, at: usize, kind: c_uint, status: c_int) {
        let Some(id) = self.cm.ids.get_mut(&at) else { return };
        (id.phase, id.peer) = (Phase::Over, None);
        self.release(at);
        self.tell_status(at, kind, status);
    }
}

/// Refuses a request.
pub(super) fn reject(world: &mut World, raw: *mut rdma_cm_id, data: &[u8]) -> Answer<()> {
    let lost = world.loses(raw.addr());
    let id = live(&mut world.cm.ids, raw);
    if id.phase != Phase::RequestReceived {
        return Err(libc::EINVAL);
    }
    id.phase = Phase::Over;
    let peer = id.peer.take().ok_or(libc::ECONNRESET)?;
    if !lost {
        world.rejected(peer, -libc::ECONNREFUSED, data);
    }
    Ok(())
}

/// Closes TCP, which the other card answers by itself.
pub(super) fn disconnect(mut world: MutexGuard<'static, World>, raw: *mut rdma_cm_id) -> Answer<()> {
    while live(&mut world.cm.ids, raw).waits {
        world = world::wait(world);
    }
    let lost = world.loses(raw.addr());
    let id = live(&mut world.cm.ids, raw);
    match id.phase {
        Phase::Established if lost => {
            id.phase = Phase::DisconnectSent;
            let serial = id.serial;
            if let Some(queue_pair) = world.release(raw.addr()) {
                world.fail(queue_pair);
            }
            world.await_answer(serial);
            Ok(())
        }
        Phase::Established => {
            world.close(raw.addr(), 0);
            Ok(())
        }
        // The kernel takes a second call for one that crosses the peer's.
        Phase::DisconnectSent | Phase::Over => Ok(()),
        _ => Err(libc::EINVAL),
    }
}

/// The peer has not answered in time.
pub(super) fn unanswered(world: &mut World, at: usize) {
    let Some(id) = world.cm.ids.get_mut(&at) else { return };
    match id.phase {
        Phase::RequestSent => {
            let peer = id.peer.take();
            world.over(at, kind::UNREACHABLE, -libc::ETIMEDOUT);
            // A request that its user has not answered ends in silence.
            if let Some(peer) = peer {
                world.close(peer, -libc::ECONNRESET);
                world.part(peer);
            }
        }
        Phase::DisconnectSent => world.over(at, kind::DISCONNECTED, -libc::ETIMEDOUT),
        _ => {}
    }
}

/// An id is about to be destroyed.
pub(super) fn leave(world: &mut World, at: usize) {
    let lost = world.loses(at);
    let Some(id) = world.cm.ids.get_mut(&at) else { return };
    let peer = id.peer;
    match id.phase {
        Phase::Established => world.close(at, -libc::ECONNRESET),
        Phase::RequestReceived => {
            id.phase = Phase::Over;
            if let Some(peer) = peer.filter(|_| !lost) {
                world.rejected(peer, -libc::ECONNREFUSED, &[]);
            }
        }
        _ => {}
    }
    world.release(at);
    if let Some(peer) = peer {
        world.part(peer);
    }
}
