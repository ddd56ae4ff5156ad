//! Queue pairs: making, states, destruction.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::time::Duration;

use super::device::{MAX_CQE, MAX_INLINE, MAX_QP_WR, MAX_READS, MAX_SGE, PORTS, Partitions};
use super::memory::Window;
use super::number::*;
use super::post::{Receive, Send};
use super::status::{QPS_RESET, asynchronous, attribute, opcode, wc};
use super::timers::Timer;
use super::types::*;
use super::world::{self, World, live};
use super::{Answer, cm, device, dress, dress::Dress, ece, execute, number_of, objects, pointer};
use crate::sys::completion::Completion;

/// The time after which a queue pair in the error state gives back the receives that are cut off.
const LATE: Duration = Duration::from_millis(5);

/// A queue pair for a reliable connection.
pub(super) struct QueuePair {
    pub(super) context: *mut ibv_context,
    pub(super) number: u32,
    pub(super) domain: usize,
    pub(super) send_queue: usize,
    pub(super) receive_queue: usize,
    pub(super) shared: Option<usize>,
    pub(super) room: ibv_qp_cap,
    pub(super) all_signaled: bool,
    pub(super) state: u32,
    /// The id of the connection manager that connects it or has connected it, over iWARP: it is not destroyed before that lets go.
    pub(super) connection: Option<u64>,
    /// A side of its iWARP connection has found an error.
    pub(super) terminated: bool,
    /// The attributes as they were set.
    pub(super) attributes: ibv_qp_attr,
    pub(super) sends: VecDeque<Send>,
    pub(super) receives: VecDeque<Receive>,
    /// Receives of messages of which the rest never comes.
    pub(super) cut_off: Vec<Receive>,
    /// It waits before it goes on.
    pub(super) resting: bool,
    /// It has waited before the first request of the send queue, see [`Script::linger`](super::control::Script::linger).
    pub(super) lingered: bool,
    /// The number of times that it has tried the first request of the send queue without an answer, and with the answer that the
    /// receiver is not ready.
    pub(super) unanswered: u8,
    pub(super) not_ready: u8,
    /// The options of its vendor, if it has any.
    pub(super) options: Option<ece::Options>,
}

impl QueuePair {
    /// Whether it takes what its peer sends. Packets of other partitions are dropped by the peer, and before that by the
    /// switches: each path is one of the partition that its service level is for.
    pub(super) fn listens_to(&self, peer: &Self, partitions: Partitions) -> bool {
        let partition = |of: &Self| {
            let own = partitions.at(of.attributes.pkey_index);
            own.filter(|own| *own == u16::from(of.attributes.ah_attr.sl))
        };
        matches!(self.state, IBV_QPS_RTR | IBV_QPS_RTS)
            && self.attributes.dest_qp_num == peer.number
            && partition(self).is_some()
            && partition(self) == partition(peer)
    }

    /// Returns the completion of a request that comes back in the error state.
    fn flushed(&self, id: u64, opcode: u32) -> Completion {
        let (status, number) = (wc::WR_FLUSH_ERR, self.number);
        Completion { id, status, opcode, bytes: 0, word: 0, flags: 0, number, shared: None }
    }
}

impl World {
    /// Moves a queue pair to the error state, in which all of its requests come back: receives of a shared queue that are cut
    /// off a while later, and then the event that says that there is no other.
    pub(super) fn fail(&mut self, at: usize) {
        if self.script.dead {
            return;
        }
        let Some(queue_pair) = self.queue_pairs.get_mut(&at) else { return };
        let before = std::mem::replace(&mut queue_pair.state, IBV_QPS_ERR);
        // SAFETY: a queue pair that is in the table is live, and the caller has the lock of the table.
        unsafe { objects::set_state(std::ptr::with_exposed_provenance_mut(at), IBV_QPS_ERR) };
        let (number, shared, late) = (queue_pair.number, queue_pair.shared, !queue_pair.cut_off.is_empty());
        let connection = queue_pair.connection;
        if shared.is_none() {
            let first = std::mem::take(&mut queue_pair.cut_off);
            first.into_iter().rev().for_each(|receive| queue_pair.receives.push_front(receive));
        }
        match self.script.keeps {
            None => self.flush(at),
            Some(flushed) => self.flush_sends(at, flushed),
        }
        match shared {
            None => {}
            Some(_) if before == IBV_QPS_ERR => {}
            Some(_) if late => self.after(LATE, Timer::LastReceive(number)),
            Some(_) => self.last_receive(number),
        }
        // Over iWARP this is the end of its TCP connection.
        if let Some(connection) = connection {
            cm::reset(self, connection);
        }
    }

    /// The last receives of a shared queue that a queue pair has taken come back.
    pub(super) fn last_receive(&mut self, number: u32) {
        let Some(at) = self.numbers.get(&number).copied() else { return };
        let Some(queue_pair) = self.queue_pairs.get_mut(&at) else { return };
        let (context, queue, shared) = (queue_pair.context, queue_pair.receive_queue, queue_pair.shared);
        for receive in std::mem::take(&mut queue_pair.cut_off) {
            let flushed = Completion {
                id: receive.id,
                status: wc::WR_FLUSH_ERR,
                opcode: opcode::RECV,
                bytes: 0,
                word: 0,
                flags: 0,
                number,
                shared,
            };
            self.complete(queue, flushed, false);
        }
        if !self.script.silent {
            self.asynchronous(context, asynchronous::QP_LAST_WQE_REACHED, at);
        }
    }

    /// Gives every request back that is in the queues.
    pub(super) fn flush(&mut self, at: usize) {
        self.flush_sends(at, usize::MAX);
        let Some(queue_pair) = self.queue_pairs.get_mut(&at) else { return };
        let receives = std::mem::take(&mut queue_pair.receives);
        // SAFETY: a queue pair that is in the table is live.
        let instant = unsafe { objects::take_receives(std::ptr::with_exposed_provenance_mut(at)) };
        let receives = receives.iter().map(|receive| receive.id).chain(instant);
        let flushed: Vec<_> = receives.map(|id| queue_pair.flushed(id, opcode::RECV)).collect();
        let queue = queue_pair.receive_queue;
        flushed.into_iter().for_each(|completion| self.complete(queue, completion, false));
    }

    /// Gives so many requests back of the send queue, from the oldest on.
    fn flush_sends(&mut self, at: usize, most: usize) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&at) else { return };
        let sends = queue_pair.sends.drain(..most.min(queue_pair.sends.len()));
        let ids: Vec<_> = sends.map(|send| send.id).collect();
        let flushed: Vec<_> = ids.into_iter().map(|id| queue_pair.flushed(id, opcode::SEND)).collect();
        let queue = queue_pair.send_queue;
        flushed.into_iter().for_each(|completion| self.complete(queue, completion, false));
    }
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(domain: *mut ibv_pd, asked: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    pointer(world::enter("ibv_create_qp").and_then(|mut world| {
        live(&mut world.domains, domain);
        // SAFETY: the caller's structure.
        let asked = unsafe { &mut *asked };
        if let Some(most) = world.card.inline {
            asked.cap.max_inline_data = asked.cap.max_inline_data.min(most);
        }
        check_room(&asked.cap, !asked.srq.is_null())?;
        let size = dress::send_size(asked.cap.max_send_sge, asked.cap.max_inline_data);
        world.card.sends.check(asked.cap.max_send_wr, size)?;
        if asked.qp_type != IBV_QPT_RC {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: the domain is live.
        let context = unsafe { (*domain).context };
        world.add_object(context)?;
        live(&mut world.domains, domain).users += 1;
        live(&mut world.queues, asked.send_cq).users += 1;
        live(&mut world.queues, asked.recv_cq).users += 1;
        if !asked.srq.is_null() {
            live(&mut world.shared, asked.srq).users += 1;
        }
        let (number, handle) = (world.number() & 0xff_ffff, world.number());
        let room = if asked.srq.is_null() { asked.cap.max_recv_wr as usize } else { 0 };
        let raw = objects::new_pair(room);
        // SAFETY: the structure is new.
        let new = unsafe { &mut *raw };
        (new.context, new.qp_context, new.pd) = (context, asked.qp_context, domain);
        (new.send_cq, new.recv_cq, new.srq) = (asked.send_cq, asked.recv_cq, asked.srq);
        (new.handle, new.qp_num, new.state, new.qp_type) = (handle, number, QPS_RESET, asked.qp_type);
        let queue_pair = QueuePair {
            context,
            number,
            domain: domain.addr(),
            send_queue: asked.send_cq.addr(),
            receive_queue: asked.recv_cq.addr(),
            shared: (!asked.srq.is_null()).then(|| asked.srq.addr()),
            room: asked.cap,
            all_signaled: asked.sq_sig_all != 0,
            state: QPS_RESET,
            connection: None,
            terminated: false,
            // SAFETY: integers.
            attributes: unsafe { std::mem::zeroed() },
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            cut_off: Vec::new(),
            resting: false,
            lingered: false,
            unanswered: 0,
            not_ready: 0,
            options: world.card.ece.map(ece::Options::new),
        };
        world.queue_pairs.insert(raw.expose_provenance(), queue_pair);
        world.numbers.insert(number, raw.addr());
        Ok(raw)
    }))
}

/// Checks the capacities that are asked for.
fn check_room(room: &ibv_qp_cap, shared: bool) -> Answer<()> {
    let receives = if shared { 0 } else { room.max_recv_wr };
    let fits = room.max_send_wr <= MAX_QP_WR
        && receives <= MAX_QP_WR
        && room.max_send_sge <= MAX_SGE
        && room.max_recv_sge <= MAX_SGE
        && room.max_inline_data <= MAX_INLINE
        && room.max_send_wr + receives <= MAX_CQE;
    if fits { Ok(()) } else { Err(libc::EINVAL) }
}

/// The attributes that a change of state needs, beside the state.
fn required(dress: Dress, from: u32, to: u32) -> Answer<u32> {
    match (from, to) {
        // The driver connects, and changes these states by itself.
        (QPS_RESET, IBV_QPS_INIT) if dress == Dress::Iwarp => Ok(attribute::PORT | IBV_QP_ACCESS_FLAGS),
        (_, IBV_QPS_RTR) | (IBV_QPS_RTR, IBV_QPS_RTS) if dress == Dress::Iwarp => Err(libc::EINVAL),
        (QPS_RESET, IBV_QPS_INIT) => Ok(attribute::PKEY_INDEX | attribute::PORT | IBV_QP_ACCESS_FLAGS),
        (IBV_QPS_INIT, IBV_QPS_RTR) => Ok(attribute::AV
            | attribute::PATH_MTU
            | attribute::DEST_QPN
            | attribute::RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER),
        (IBV_QPS_RTR, IBV_QPS_RTS) => Ok(attribute::TIMEOUT
            | attribute::RETRY_CNT
            | attribute::RNR_RETRY
            | attribute::SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC),
        (_, IBV_QPS_ERR | QPS_RESET) => Ok(0),
        (IBV_QPS_INIT, IBV_QPS_INIT) | (IBV_QPS_RTS, IBV_QPS_RTS) => Ok(0),
        _ => Err(libc::EINVAL),
    }
}

/// Copies the attributes that the mask names.
fn merge(
    (dress, partitions): (Dress, Partitions),
    into: &mut ibv_qp_attr,
    from: &ibv_qp_attr,
    mask: u32,
) -> Answer<()> {
    let has = |bit| mask & bit != 0;
    let port = !has(attribute::PORT) || (1..=PORTS).contains(&from.port_num);
    let partition = !has(attribute::PKEY_INDEX) || partitions.at(from.pkey_index).is_some();
    // The path to the peer begins at the port of the queue pair.
    let path = !has(attribute::AV) || from.ah_attr.port_num == into.port_num;
    // Packets of RoCE have a global address. Those of InfiniBand stay in the subnet, and have that of the peer's port.
    let kind = !has(attribute::AV)
        || match dress {
            Dress::Infiniband => from.ah_attr.is_global == 0 && from.ah_attr.dlid != 0,
            Dress::Roce | Dress::Iwarp => from.ah_attr.is_global == 1,
        };
    // The driver of a card for InfiniBand knows none of these, see `rdma_init_qp_attr`.
    let known = dress != Dress::Infiniband || !has(attribute::OF_THE_KERNEL);
    if !(port && partition && path && kind && known) {
        return Err(libc::EINVAL);
    }
    if has(IBV_QP_MAX_QP_RD_ATOMIC) && from.max_rd_atomic > MAX_READS
        || has(IBV_QP_MAX_DEST_RD_ATOMIC) && from.max_dest_rd_atomic > MAX_READS
    {
        return Err(libc::EINVAL);
    }
    let mut take = |bit, take: fn(&mut ibv_qp_attr, &ibv_qp_attr)| {
        if has(bit) {
            take(into, from);
        }
    };
    take(attribute::PORT, |into, from| into.port_num = from.port_num);
    take(attribute::PKEY_INDEX, |into, from| into.pkey_index = from.pkey_index);
    take(attribute::AV, |into, from| into.ah_attr = from.ah_attr);
    take(IBV_QP_ACCESS_FLAGS, |into, from| into.qp_access_flags = from.qp_access_flags);
    take(attribute::DEST_QPN, |into, from| into.dest_qp_num = from.dest_qp_num);
    take(attribute::PATH_MTU, |into, from| into.path_mtu = from.path_mtu);
    take(IBV_QP_MIN_RNR_TIMER, |into, from| into.min_rnr_timer = from.min_rnr_timer);
    take(attribute::TIMEOUT, |into, from| into.timeout = from.timeout);
    take(attribute::RETRY_CNT, |into, from| into.retry_cnt = from.retry_cnt);
    take(attribute::RNR_RETRY, |into, from| into.rnr_retry = from.rnr_retry);
    take(IBV_QP_MAX_QP_RD_ATOMIC, |into, from| into.max_rd_atomic = from.max_rd_atomic);
    take(IBV_QP_MAX_DEST_RD_ATOMIC, |into, from| into.max_dest_rd_atomic = from.max_dest_rd_atomic);
    Ok(())
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(raw: *mut ibv_qp, to: *mut ibv_qp_attr, mask: c_int) -> c_int {
    number_of(world::enter("ibv_modify_qp").and_then(|mut world| {
        let (removed, rules) = (world.devices.removed, (world.card.dress, world.devices.partitions));
        let queue_pair = live(&mut world.queue_pairs, raw);
        if removed {
            return Err(libc::EIO);
        }
        if queue_pair.terminated {
            // As cxgb4 has it: the queue pair is on its way there by itself.
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's structure.
        let to = unsafe { &*to };
        let mask = mask as u32;
        let next = if mask & IBV_QP_STATE != 0 { to.qp_state } else { queue_pair.state };
        let needs = if mask & IBV_QP_STATE != 0 { required(rules.0, queue_pair.state, next)? } else { 0 };
        if mask & needs != needs {
            return Err(libc::EINVAL);
        }
        merge(rules, &mut queue_pair.attributes, to, mask)?;
        if next == IBV_QPS_ERR {
            world.fail(raw.addr());
            return Ok(());
        }
        if let Some(options) = queue_pair.options.as_mut() {
            options.apply();
        }
        queue_pair.state = next;
        // SAFETY: the queue pair is live, and the world is locked.
        unsafe { objects::set_state(raw, next) };
        if next == QPS_RESET {
            (queue_pair.sends, queue_pair.receives) = Default::default();
        }
        execute::run(&mut world, raw.addr());
        Ok(())
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(raw: *mut ibv_qp) -> c_int {
    number_of(world::enter("ibv_destroy_qp").and_then(|mut world| {
        let at = raw.addr();
        let context = live(&mut world.queue_pairs, raw).context;
        if live(&mut world.queue_pairs, raw).connection.is_some() {
            world.fail(at);
        }
        // An id that waits for the answer of the peer keeps it.
        while live(&mut world.queue_pairs, raw).connection.is_some() {
            world = world::wait(world);
        }
        world = device::settle(world, context, at);
        let Some(queue_pair) = world.queue_pairs.remove(&at) else { return Err(libc::EINVAL) };
        world.numbers.remove(&queue_pair.number);
        let of_it = |window: &Window| window.bound.is_some_and(|bound| bound.queue_pair == at);
        let windows: Vec<usize> =
            world.windows.iter().filter(|(_, window)| of_it(window)).map(|(at, _)| *at).collect();
        windows.into_iter().for_each(|window| world.unbind(window));
        for queue in [queue_pair.send_queue, queue_pair.receive_queue] {
            world.discard(queue, queue_pair.number);
            if let Some(queue) = world.queues.get_mut(&queue) {
                queue.users -= 1;
            }
        }
        if let Some(shared) = queue_pair.shared.and_then(|shared| world.shared.get_mut(&shared)) {
            shared.users -= 1;
            shared.taken -= queue_pair.cut_off.len();
        }
        if let Some(domain) = world.domains.get_mut(&queue_pair.domain) {
            domain.users -= 1;
        }
        world.remove_object(context);
        // SAFETY: made by `new_pair`, and in no table any more.
        unsafe { objects::free_pair(raw) };
        Ok(())
    }))
}
