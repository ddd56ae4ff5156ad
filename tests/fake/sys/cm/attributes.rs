//! The attributes that a queue pair needs of its connection.

use std::ffi::c_int;

use super::super::status::attribute;
use super::*;

/// The acknowledge timeout that the connection manager derives from a route of this kind.
const ACK_TIMEOUT: u8 = 18;

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(
    raw: *mut rdma_cm_id,
    to: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    minus_one(world::enter("rdma_init_qp_attr").and_then(|mut world| {
        let id = live(&mut world.cm.ids, raw);
        // SAFETY: the caller's structure.
        let to = unsafe { &mut *to };
        let place = id.place.ok_or(libc::EINVAL)?;
        let named = match to.qp_state {
            IBV_QPS_INIT => {
                (to.pkey_index, to.port_num, to.qp_access_flags) = (place.key, place.port, 0);
                attribute::PKEY_INDEX | attribute::PORT | QP_ACCESS_FLAGS
            }
            IBV_QPS_RTR => ready_to_receive(id, place, to)?,
            IBV_QPS_RTS => ready_to_send(id, to)?,
            _ => return Err(libc::EINVAL),
        };
        // SAFETY: the caller's number.
        unsafe { *mask = (QP_STATE | named) as c_int };
        Ok(())
    }))
}

/// Whether the other side is known.
fn knows_peer(id: &Id) -> Answer<()> {
    match id.phase {
        Phase::RequestReceived | Phase::ReplySent | Phase::ReplyReceived | Phase::Established => Ok(()),
        _ => Err(libc::EINVAL),
    }
}

fn ready_to_receive(id: &Id, place: Place, to: &mut ibv_qp_attr) -> Answer<u32> {
    knows_peer(id)?;
    to.path_mtu = 5;
    to.dest_qp_num = id.theirs.number;
    to.rq_psn = 0;
    to.max_dest_rd_atomic = id.theirs.initiator_depth;
    // The kernel leaves it so.
    to.min_rnr_timer = 0;
    (to.ah_attr.port_num, to.ah_attr.is_global) = (place.port, 1);
    Ok(attribute::AV
        | attribute::PATH_MTU
        | attribute::DEST_QPN
        | attribute::RQ_PSN
        | QP_MAX_DEST_READ_ATOMIC
        | QP_MIN_RNR_TIMER)
}

fn ready_to_send(id: &Id, to: &mut ibv_qp_attr) -> Answer<u32> {
    knows_peer(id)?;
    to.sq_psn = 0;
    to.timeout = id.ack_timeout.unwrap_or(ACK_TIMEOUT);
    // The active side decides for both how often a packet is sent again; of receivers that are not ready each tells the other.
    let active = if id.backlog == resolve::CHILD { id.theirs } else { id.own };
    to.retry_cnt = active.retry_count;
    to.rnr_retry = id.theirs.rnr_retry_count;
    to.max_rd_atomic = id.theirs.responder_resources;
    Ok(attribute::TIMEOUT
        | attribute::RETRY_CNT
        | attribute::RNR_RETRY
        | attribute::SQ_PSN
        | QP_MAX_READ_ATOMIC)
}
