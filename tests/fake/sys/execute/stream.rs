//! Requests over iWARP: a byte stream between two cards, which ends with the first error.
//!
//! A Send or Write is complete when the stream has it, before the peer looks at it. A peer that finds an error sends
//! a Terminate, and both cards reset the connection. There is no word for a receiver that is not ready.

use super::*;

/// The consequence of the outcome of the first request.
pub(super) fn answered(world: &mut World, at: usize, send: Send, outcome: Result<usize, Stop>) {
    let (status, bytes) = match outcome {
        Ok(bytes) => return succeeded(world, at, &send, bytes),
        Err(Stop::CutOff) => return rest(world, at, send),
        // Nobody is there: the connection has gone.
        Err(Stop::Unanswered) => (wc::WR_FLUSH_ERR, 0),
        Err(Stop::NotReady(_)) => {
            overrun(world, at);
            (wc::SUCCESS, 0)
        }
        Err(Stop::Failed(wc::REM_INV_REQ_ERR | wc::REM_ACCESS_ERR | wc::REM_OP_ERR)) => {
            let reads = send.opcode == IBV_WR_RDMA_READ;
            (if reads { wc::WR_FLUSH_ERR } else { wc::SUCCESS }, 0)
        }
        Err(Stop::Failed(status)) => (status, 0),
    };
    match status {
        wc::SUCCESS => succeeded(world, at, &send, bytes),
        status => report(world, at, &send, status, bytes),
    }
    terminate(world, at);
}

/// The memory that a read fills: the peer writes there by its key, which must permit that.
pub(super) fn sink(world: &World, at: usize, send: &Send) -> Result<Vec<Stretch>, Stop> {
    let domain = world.queue_pairs[&at].domain;
    let Source::Pieces(pieces) = &send.source else { return Err(Stop::Failed(wc::LOC_PROT_ERR)) };
    let sink = stretches(world, domain, pieces, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    sink.ok_or(Stop::Failed(wc::LOC_ACCESS_ERR))
}

/// A message has found no receive, which the peer's owner is told.
fn overrun(world: &mut World, at: usize) {
    let Ok(peer) = peer(world, at) else { return };
    let context = world.queue_pairs[&peer].context;
    world.asynchronous(context, asynchronous::QP_FATAL, peer);
}

/// Ends the connection of a queue pair after an error.
fn terminate(world: &mut World, at: usize) {
    let peer = peer(world, at).ok();
    for end in [Some(at), peer].into_iter().flatten() {
        if let Some(queue_pair) = world.queue_pairs.get_mut(&end) {
            queue_pair.terminated = true;
        }
    }
    world.fail(at);
}
