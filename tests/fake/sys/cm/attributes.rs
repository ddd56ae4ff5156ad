//! The attributes that a queue pair needs of its connection.

use std::ffi::c_int;

use super::super::dress::Dress;
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
        let dress = world.card.dress;
        let (devices, partitions) = (world.devices.addresses.clone(), world.devices.partitions);
        let id = live(&mut world.cm.ids, raw);
        // SAFETY: the caller's structure.
        let to = unsafe { &mut *to };
        let place = id.place.ok_or(libc::EINVAL)?;
        if dress == Dress::Iwarp {
            let named = iwarp(place, to)?;
            // SAFETY: the caller's number.
            unsafe { *mask = named as c_int };
            return Ok(());
        }
        let named = match to.qp_state {
            IBV_QPS_INIT => {
                // Looked for in the table of the moment.
                to.pkey_index = partitions.index(place.key)?;
                (to.port_num, to.qp_access_flags) = (place.port, 0);
                attribute::PKEY_INDEX | attribute::PORT | IBV_QP_ACCESS_FLAGS
            }
            IBV_QPS_RTR => {
                // The port of the peer is that of its address.
                let far = id
                    .destination
                    .and_then(|to| devices.iter().find(|own| address::same_ip(own.ip, to.ip())));
                let dlid = dress.lid(far.map_or(place.port, |far| far.port));
                let of_the_kernel = if dress == Dress::Infiniband { attribute::OF_THE_KERNEL } else { 0 };
                ready_to_receive(id, place, dlid, to)? | of_the_kernel
            }
            IBV_QPS_RTS => ready_to_send(id, to)?,
            _ => return Err(libc::EINVAL),
        };
        // SAFETY: the caller's number.
        unsafe { *mask = (IBV_QP_STATE | named) as c_int };
        Ok(())
    }))
}

/// The part that the driver leaves to the user of a queue pair that it connects.
fn iwarp(place: Place, to: &mut ibv_qp_attr) -> Answer<u32> {
    match to.qp_state {
        IBV_QPS_INIT | IBV_QPS_RTR => {
            (to.port_num, to.qp_access_flags) =
                (place.port, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
            Ok(IBV_QP_STATE | attribute::PORT | IBV_QP_ACCESS_FLAGS)
        }
        IBV_QPS_RTS => Ok(attribute::PORT),
        _ => Err(libc::EINVAL),
    }
}

/// Whether the other side is known.
fn knows_peer(id: &Id) -> Answer<()> {
    match id.phase {
        Phase::RequestReceived | Phase::ReplySent | Phase::ReplyReceived | Phase::Established => Ok(()),
        _ => Err(libc::EINVAL),
    }
}

fn ready_to_receive(id: &Id, place: Place, dlid: u16, to: &mut ibv_qp_attr) -> Answer<u32> {
    knows_peer(id)?;
    to.path_mtu = 5;
    to.dest_qp_num = id.theirs.number;
    to.rq_psn = 0;
    to.max_dest_rd_atomic = id.theirs.initiator_depth;
    // The kernel leaves it so.
    to.min_rnr_timer = 0;
    // Packets of RoCE have a global address, and those of InfiniBand the one of a port in the subnet.
    (to.ah_attr.port_num, to.ah_attr.is_global) = (place.port, u8::from(dlid == 0));
    // Each partition has a service level of its own in this subnet.
    (to.ah_attr.dlid, to.ah_attr.sl) = (dlid, place.key as u8);
    Ok(attribute::AV
        | attribute::PATH_MTU
        | attribute::DEST_QPN
        | attribute::RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER)
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
        | IBV_QP_MAX_QP_RD_ATOMIC)
}
