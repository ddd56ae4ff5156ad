//! Connections: request, reply, completion, refusal, and their end.

use std::ffi::{c_int, c_uint, c_void};
use std::slice;

use super::super::address;
use super::super::device::MAX_READS;
use super::resolve::CHILD;
use super::*;

const IBV_EVENT_COMM_EST: c_uint = 4;

impl Terms {
    /// # Safety
    /// Parameters of C.
    unsafe fn of(raw: *const rdma_conn_param, most_data: usize) -> Answer<(Self, Vec<u8>)> {
        // SAFETY: the caller's.
        let raw = unsafe { &*raw };
        let length = usize::from(raw.private_data_len);
        let too_many = raw.responder_resources > MAX_READS || raw.initiator_depth > MAX_READS;
        if length > most_data || too_many {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's.
        let data = unsafe { bytes(raw.private_data, length) };
        let terms = Self {
            number: raw.qp_num & 0xff_ffff,
            responder_resources: raw.responder_resources,
            initiator_depth: raw.initiator_depth,
            retry_count: raw.retry_count.min(7),
            rnr_retry_count: raw.rnr_retry_count.min(7),
        };
        Ok((terms, data))
    }

    /// As the other side sees them.
    fn swapped(self) -> Self {
        Self { responder_resources: self.initiator_depth, initiator_depth: self.responder_resources, ..self }
    }
}

/// # Safety
/// So many bytes are there.
unsafe fn bytes(start: *const c_void, length: usize) -> Vec<u8> {
    if length == 0 || start.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's.
    unsafe { slice::from_raw_parts(start.cast::<u8>(), length) }.to_vec()
}

impl World {
    /// The listener at an address.
    pub(super) fn listener(&self, to: SocketAddr) -> Option<usize> {
        let mut found = self.cm.ids.iter().filter(|(_, id)| {
            let source =
                id.source.filter(|source| id.phase == Phase::Listening && source.port() == to.port());
            source.filter(|_| !id.moved).is_some_and(|source| {
                source.ip() == to.ip() && address::scope(source) == address::scope(to)
                    || source.ip().is_unspecified() && source.is_ipv4() == to.is_ipv4()
            })
        });
        found.next().map(|(at, _)| *at)
    }

    /// The number of requests of a listener that its user has not accepted or refused.
    fn pending(&self, listener: usize) -> usize {
        let Some(id) = self.cm.ids.get(&listener) else { return 0 };
        let channel = self.cm.channels.get(&id.channel);
        id.late.len() + channel.map_or(0, |channel| channel.count(|event| event.listener == Some(listener)))
    }

    /// Whether a listener takes another request.
    pub(super) fn has_room(&self, listener: usize) -> bool {
        self.pending(listener) < self.cm.ids[&listener].backlog
    }

    /// A request arrives at a listener: it gets an id of its own.
    pub(super) fn request(&mut self, from: usize, listener: usize, terms: Terms, data: &[u8]) {
        let own = &self.cm.ids[&listener];
        // SAFETY: an id in the table is live. Its context does not change while it listens.
        let &rdma_cm_id { channel, context, .. } = unsafe { &*own.raw };
        let Id { source, destination, raw: active, local_options, .. } = self.cm.ids[&from];
        let device = destination.and_then(|to| self.devices.owner(to));
        let child = self.new_id(channel, context);
        let id = live(&mut self.cm.ids, child);
        (id.source, id.destination, id.backlog) = (destination, source, CHILD);
        (id.phase, id.peer, id.theirs, id.heard) = (Phase::RequestReceived, Some(from), terms, false);
        id.remote_options = local_options;
        if let Some(device) = device {
            self.attach(child, device);
        }
        // SAFETY: the id is new.
        let raw = unsafe { &mut *child };
        if let (Some(source), Some(destination)) = (destination, source) {
            // SAFETY: as above.
            unsafe { address::write(&raw mut raw.route.addr.src_addr_union.src_storage, source) };
            // SAFETY: as above.
            unsafe { address::write(&raw mut raw.route.addr.dst_addr_union.dst_storage, destination) };
            raw.route.addr.addr.ibaddr.dgid = gid(destination.ip());
        }
        live(&mut self.cm.ids, active).peer = Some(child.addr());
        let event = Event {
            id: child.addr(),
            listener: Some(listener),
            kind: kind::CONNECT_REQUEST,
            status: 0,
            data: self.private_data(data, REQUEST_DATA),
            terms: terms.swapped(),
        };
        self.deliver(event);
    }
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_connect(raw: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int {
    minus_one(world::enter("rdma_connect").and_then(|mut world| {
        // SAFETY: the caller's.
        let (terms, data) = unsafe { Terms::of(parameters, world.most_data(REQUEST_DATA)) }?;
        let place = live(&mut world.cm.ids, raw).place;
        if let Some(error) = place.and_then(|place| world.devices.refusal(place)) {
            return Err(error);
        }
        if world.is_iwarp() {
            return iwarp::connect(world, raw, terms, &data);
        }
        let id = live(&mut world.cm.ids, raw);
        let (Phase::RouteResolved, Some(to)) = (id.phase, id.destination) else { return Err(libc::EINVAL) };
        (id.own, id.phase) = (terms, Phase::RequestSent);
        let (at, serial) = (raw.addr(), id.serial);
        let again = |other: &Id| {
            let has_it = other.own.number == terms.number && other.serial != serial;
            has_it && !matches!(other.phase, Phase::Over | Phase::Idle | Phase::Bound)
        };
        let stale = world.cm.ids.values().any(again);
        world.await_answer(serial);
        if world.is_answered("rdma_connect", at) {
            return Ok(());
        }
        match world.listener(to) {
            _ if world.loses(at) => {}
            _ if stale => world.rejected(at, reject::STALE_CONN, &[]),
            None => world.rejected(at, reject::INVALID_SERVICE_ID, &[]),
            Some(listener) if world.has_room(listener) => world.request(at, listener, terms, &data),
            Some(_) => world.rejected(at, reject::CONSUMER_DEFINED, &[]),
        }
        Ok(())
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_accept(raw: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int {
    minus_one(world::enter("rdma_accept").and_then(|mut world| {
        // SAFETY: the caller's.
        let (terms, data) = unsafe { Terms::of(parameters, world.most_data(REPLY_DATA)) }?;
        live(&mut world.cm.ids, raw).heard = true;
        if world.is_iwarp() {
            return iwarp::accept(&mut world, raw, terms, data);
        }
        let id = live(&mut world.cm.ids, raw);
        let (Phase::RequestReceived, Some(peer)) = (id.phase, id.peer) else { return Err(libc::EINVAL) };
        (id.own, id.phase) = (terms, Phase::ReplySent);
        let serial = id.serial;
        // The vendor is that of the request.
        let options = (id.remote_options.0, id.local_options.1);
        world.await_answer(serial);
        let lost = world.loses(peer);
        if let Some(active) = world.cm.ids.get_mut(&peer).filter(|_| !lost) {
            (active.theirs, active.phase) = (terms, Phase::ReplyReceived);
            active.remote_options = options;
            let data = world.private_data(&data, REPLY_DATA);
            world.tell(peer, kind::CONNECT_RESPONSE, 0, data, terms.swapped());
        }
        Ok(())
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_establish(raw: *mut rdma_cm_id) -> c_int {
    minus_one(world::enter("rdma_establish").and_then(|mut world| {
        let id = live(&mut world.cm.ids, raw);
        let (Phase::ReplyReceived, Some(peer)) = (id.phase, id.peer) else { return Err(libc::EINVAL) };
        id.phase = Phase::Established;
        if !world.loses(peer) {
            let _ = world.establish_passive(peer);
        }
        Ok(())
    }))
}

impl World {
    fn establish_passive(&mut self, at: usize) -> Answer<()> {
        let id = self.cm.ids.get_mut(&at).ok_or(libc::EINVAL)?;
        if id.phase != Phase::ReplySent {
            return Err(libc::EINVAL);
        }
        id.phase = Phase::Established;
        self.tell_status(at, kind::ESTABLISHED, 0);
        Ok(())
    }
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_notify(raw: *mut rdma_cm_id, event: c_uint) -> c_int {
    minus_one(world::enter("rdma_notify").and_then(|mut world| {
        live(&mut world.cm.ids, raw);
        if event != IBV_EVENT_COMM_EST {
            return Err(libc::EINVAL);
        }
        if world.is_iwarp() {
            return Ok(());
        }
        world.establish_passive(raw.addr())
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(raw: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    minus_one(world::enter("rdma_reject").and_then(|mut world| {
        if usize::from(length) > world.most_data(REJECT_DATA) {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's.
        let data = unsafe { bytes(data, length.into()) };
        if world.is_iwarp() {
            return iwarp::reject(&mut world, raw, &data);
        }
        let lost = world.loses(raw.addr());
        let id = live(&mut world.cm.ids, raw);
        if !matches!(id.phase, Phase::RequestReceived | Phase::ReplySent | Phase::ReplyReceived) {
            return Err(libc::EINVAL);
        }
        id.phase = Phase::Over;
        if let Some(peer) = id.peer.take().filter(|_| !lost) {
            world.rejected(peer, reject::CONSUMER_DEFINED, &data);
        }
        Ok(())
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_disconnect(raw: *mut rdma_cm_id) -> c_int {
    minus_one(world::enter("rdma_disconnect").and_then(|mut world| {
        if world.is_iwarp() {
            return iwarp::disconnect(world, raw);
        }
        let at = raw.addr();
        let id = live(&mut world.cm.ids, raw);
        let (phase, peer, serial) = (id.phase, id.peer, id.serial);
        match phase {
            Phase::Established => {
                id.phase = Phase::DisconnectSent;
                world.await_answer(serial);
                if let Some(peer) = peer {
                    world.asked_to_disconnect(peer);
                }
                Ok(())
            }
            Phase::DisconnectReceived => {
                world.time_wait(at);
                if let Some(peer) = peer {
                    world.disconnect_answered(peer);
                }
                Ok(())
            }
            _ => Err(libc::EINVAL),
        }
    }))
}

impl World {
    /// The peer has said goodbye.
    fn asked_to_disconnect(&mut self, at: usize) {
        let lost = self.loses(at);
        let Some(id) = self.cm.ids.get_mut(&at).filter(|_| !lost) else { return };
        if matches!(id.phase, Phase::Established | Phase::ReplySent) {
            id.phase = Phase::DisconnectReceived;
            self.tell_status(at, kind::DISCONNECTED, 0);
        }
    }

    /// The peer has answered our goodbye.
    fn disconnect_answered(&mut self, at: usize) {
        if self.loses(at) || self.cm.ids.get(&at).is_none_or(|id| id.phase != Phase::DisconnectSent) {
            return;
        }
        self.time_wait(at);
        self.tell_status(at, kind::DISCONNECTED, 0);
    }
}

/// An id is about to be destroyed: its peer is told what follows from that.
pub(super) fn leave(world: &mut World, at: usize) {
    if world.is_iwarp() {
        return iwarp::leave(world, at);
    }
    let lost = world.loses(at);
    let Some(id) = world.cm.ids.get_mut(&at) else { return };
    let phase = std::mem::replace(&mut id.phase, Phase::Over);
    let Some(peer) = id.peer.take() else { return };
    if lost {
        return world.part(peer);
    }
    match phase {
        Phase::RequestSent => world.rejected(peer, reject::TIMEOUT, &[]),
        Phase::RequestReceived | Phase::ReplySent | Phase::ReplyReceived => {
            world.rejected(peer, reject::CONSUMER_DEFINED, &[]);
        }
        Phase::Established => world.asked_to_disconnect(peer),
        Phase::DisconnectReceived => world.disconnect_answered(peer),
        _ => {}
    }
    world.part(peer);
}

impl World {
    /// The id at the other end is gone.
    pub(super) fn part(&mut self, at: usize) {
        if let Some(id) = self.cm.ids.get_mut(&at) {
            id.peer = None;
        }
    }
}
