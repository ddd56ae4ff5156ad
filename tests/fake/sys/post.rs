//! Posting: requests are copied out of C's chains, checked, and queued.

use std::ffi::c_int;
use std::slice;

use super::number::*;
use super::status::QPS_RESET;
use super::types::*;
use super::world::{self, World, live};
use super::{Answer, execute};

/// A piece of the caller's memory.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) key: u32,
}

/// A request of a receive queue.
pub(super) struct Receive {
    pub(super) id: u64,
    pub(super) pieces: Vec<Piece>,
}

/// A request of a send queue.
pub(super) struct Send {
    pub(super) id: u64,
    pub(super) opcode: u32,
    pub(super) signaled: bool,
    pub(super) solicited: bool,
    pub(super) source: Source,
    /// Immediate data or a key.
    pub(super) word: u32,
    pub(super) remote: u64,
    pub(super) remote_key: u32,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
    pub(super) binding: Option<bind_mw_t>,
}

/// The local memory of a request.
pub(super) enum Source {
    Pieces(Vec<Piece>),
    /// The bytes that the request has copied.
    Inline(Vec<u8>),
}

/// # Safety
/// So many entries are there, or none.
unsafe fn pieces(list: *const ibv_sge, count: c_int, most: u32) -> Answer<Vec<Piece>> {
    let count = usize::try_from(count).map_err(|_| libc::EINVAL)?;
    if count > most as usize {
        return Err(libc::EINVAL);
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the caller's.
    let list = unsafe { slice::from_raw_parts(list, count) };
    Ok(list.iter().map(|one| Piece { address: one.addr, length: one.length, key: one.lkey }).collect())
}

/// Bytes that the request copies.
///
/// # Safety
/// The memory of the pieces is readable.
unsafe fn copied(pieces: &[Piece], most: u32) -> Answer<Vec<u8>> {
    let mut bytes = Vec::new();
    for piece in pieces.iter().filter(|piece| piece.length > 0) {
        let start: *const u8 = std::ptr::with_exposed_provenance(piece.address as usize);
        // SAFETY: the caller's.
        bytes.extend_from_slice(unsafe { slice::from_raw_parts(start, piece.length as usize) });
    }
    if bytes.len() > most as usize { Err(libc::EINVAL) } else { Ok(bytes) }
}

impl Send {
    /// # Safety
    /// A request as C posts it.
    unsafe fn of(raw: &ibv_send_wr, room: &ibv_qp_cap) -> Answer<Self> {
        // SAFETY: the caller's.
        let pieces = unsafe { pieces(raw.sg_list, raw.num_sge, room.max_send_sge) }?;
        let inline = raw.send_flags & IBV_SEND_INLINE != 0;
        let source = if inline {
            // SAFETY: the caller's.
            Source::Inline(unsafe { copied(&pieces, room.max_inline_data) }?)
        } else {
            Source::Pieces(pieces)
        };
        let mut send = Self {
            id: raw.wr_id,
            opcode: raw.opcode,
            signaled: raw.send_flags & IBV_SEND_SIGNALED != 0,
            solicited: raw.send_flags & IBV_SEND_SOLICITED != 0,
            source,
            // SAFETY: both members are integers.
            word: unsafe { raw.imm_data_invalidated_rkey_union.imm_data },
            remote: 0,
            remote_key: 0,
            compare_add: 0,
            swap: 0,
            binding: None,
        };
        match raw.opcode {
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => {
                // SAFETY: the operation has this member.
                let rdma = unsafe { raw.wr.rdma };
                (send.remote, send.remote_key) = (rdma.remote_addr, rdma.rkey);
            }
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                // SAFETY: the operation has this member.
                let atomic = unsafe { raw.wr.atomic };
                (send.remote, send.remote_key) = (atomic.remote_addr, atomic.rkey);
                (send.compare_add, send.swap) = (atomic.compare_add, atomic.swap);
            }
            // SAFETY: the operation has this member.
            IBV_WR_BIND_MW => send.binding = Some(unsafe { raw.bind_mw_tso_union.bind_mw }),
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV | IBV_WR_LOCAL_INV => {}
            _ => return Err(libc::EINVAL),
        }
        let copies = matches!(raw.opcode, IBV_WR_SEND..=IBV_WR_SEND_WITH_IMM)
            || matches!(raw.opcode, IBV_WR_RDMA_WRITE..=IBV_WR_RDMA_WRITE_WITH_IMM)
            || raw.opcode == IBV_WR_SEND_WITH_INV;
        if inline && !copies { Err(libc::EINVAL) } else { Ok(send) }
    }
}

pub(super) unsafe extern "C" fn post_send(
    raw: *mut ibv_qp,
    mut next: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut world = world::lock();
    let error = loop {
        if next.is_null() {
            break 0;
        }
        // SAFETY: a link of the caller's chain.
        let request = unsafe { &*next };
        // SAFETY: as above.
        if let Err(error) = unsafe { add_send(&mut world, raw, request) } {
            // SAFETY: the caller's place for it.
            unsafe { *bad = next };
            break error;
        }
        next = request.next;
    };
    execute::run(&mut world, raw.addr());
    error
}

/// # Safety
/// A request as C posts it.
unsafe fn add_send(world: &mut World, raw: *mut ibv_qp, request: &ibv_send_wr) -> Answer<()> {
    let iwarp = world.is_iwarp();
    if let (false, (_, Some(error))) = (world.script.dead, world.script.called("ibv_post_send")) {
        return Err(error);
    }
    let queue_pair = live(&mut world.queue_pairs, raw);
    match queue_pair.state {
        IBV_QPS_RTS | IBV_QPS_ERR => {}
        _ => return Err(libc::EINVAL),
    }
    if queue_pair.sends.len() >= queue_pair.room.max_send_wr as usize {
        return Err(libc::ENOMEM);
    }
    // SAFETY: the caller's.
    let send = unsafe { Send::of(request, &queue_pair.room) }?;
    if iwarp && !is_iwarp(&send) {
        return Err(libc::EINVAL);
    }
    queue_pair.sends.push_back(send);
    if queue_pair.state == IBV_QPS_ERR {
        world.flush(raw.addr());
    } else if queue_pair.sends.len() > 1 && !queue_pair.resting {
        // One chain may be longer than the queue, of which the device makes room meanwhile.
        execute::run(world, raw.addr());
    }
    Ok(())
}

/// Whether iWARP has such a request: there is no immediate data and no atomic, windows are of another type, and a read has one sink.
fn is_iwarp(send: &Send) -> bool {
    match (send.opcode, &send.source) {
        (IBV_WR_RDMA_READ, Source::Pieces(pieces)) => pieces.len() <= 1,
        (IBV_WR_SEND | IBV_WR_SEND_WITH_INV | IBV_WR_RDMA_WRITE | IBV_WR_LOCAL_INV, _) => true,
        _ => false,
    }
}

pub(super) unsafe extern "C" fn post_recv(
    raw: *mut ibv_qp,
    mut next: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut world = world::lock();
    while !next.is_null() {
        // SAFETY: a link of the caller's chain.
        let request = unsafe { &*next };
        // SAFETY: as above.
        if let Err(error) = unsafe { add_receive(&mut world, raw, request) } {
            // SAFETY: the caller's place for it.
            unsafe { *bad = next };
            return error;
        }
        next = request.next;
    }
    0
}

/// # Safety
/// A request as C posts it.
unsafe fn add_receive(world: &mut World, raw: *mut ibv_qp, request: &ibv_recv_wr) -> Answer<()> {
    if let (false, (_, Some(error))) = (world.script.dead, world.script.called("ibv_post_recv")) {
        return Err(error);
    }
    let queue_pair = live(&mut world.queue_pairs, raw);
    if queue_pair.state == QPS_RESET || queue_pair.shared.is_some() {
        return Err(libc::EINVAL);
    }
    if queue_pair.receives.len() >= queue_pair.room.max_recv_wr as usize {
        return Err(libc::ENOMEM);
    }
    // SAFETY: the caller's.
    let pieces = unsafe { pieces(request.sg_list, request.num_sge, queue_pair.room.max_recv_sge) }?;
    queue_pair.receives.push_back(Receive { id: request.wr_id, pieces });
    if queue_pair.state == IBV_QPS_ERR {
        world.flush(raw.addr());
    }
    Ok(())
}

pub(super) unsafe extern "C" fn post_srq_recv(
    raw: *mut ibv_srq,
    mut next: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut world = world::lock();
    let queue = live(&mut world.shared, raw);
    while !next.is_null() {
        // SAFETY: a link of the caller's chain.
        let request = unsafe { &*next };
        let full = queue.receives.len() + queue.taken >= queue.room;
        // SAFETY: as above.
        let read = unsafe { pieces(request.sg_list, request.num_sge, queue.entries as u32) };
        match if full { Err(libc::ENOMEM) } else { read } {
            Ok(pieces) => queue.receives.push_back(Receive { id: request.wr_id, pieces }),
            Err(error) => {
                // SAFETY: the caller's place for it.
                unsafe { *bad = next };
                return error;
            }
        }
        next = request.next;
    }
    0
}
