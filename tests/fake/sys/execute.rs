//! The device carries out the requests of the send queues.
//!
//! A request is carried out as soon as it is the first of its queue, in the call that posts it or on the thread of the
//! device. One for which the receiver is not ready waits for as long as the receiver's timer says, and is tried again then, as
//! the hardware does: a receive that is posted meanwhile does not shorten the pause.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::cm;
use super::completion::Completion;
use super::memory::{Binding, Key, OF_THE_DEVICE};
use super::number::*;
use super::post::{Piece, Receive, Send, Source};
use super::queue_pair::QueuePair;
use super::status::{asynchronous, opcode, wc};
use super::timers::Timer;
use super::world::World;

mod stream;

/// A request did not succeed.
#[derive(Clone, Copy)]
enum Stop {
    /// It has failed with this status.
    Failed(u32),
    /// There is no receive for it. The receiver says how long to wait, see [`rnr_pause`].
    NotReady(u8),
    /// Nobody answers.
    Unanswered,
    /// It is under way for ever.
    CutOff,
}

/// A stretch of memory whose access has been checked.
#[derive(Clone, Copy)]
struct Stretch {
    start: usize,
    length: usize,
}

/// A number of tries that never ends.
const FOR_EVER: u8 = 7;

/// The pause that a receiver asks for, as the specification encodes it: in units of 10 us.
fn rnr_pause(code: u8) -> Duration {
    const UNITS: [u64; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    Duration::from_micros(10 * UNITS[usize::from(code) % UNITS.len()])
}

/// The time after which a packet that is not acknowledged is sent again.
fn ack_timeout(code: u8) -> Duration {
    Duration::from_nanos(4096 << code.min(31))
}

/// The pause of a queue pair is over.
pub(super) fn resume(world: &mut World, number: u32) {
    let Some(at) = world.numbers.get(&number).copied() else { return };
    if let Some(queue_pair) = world.queue_pairs.get_mut(&at) {
        queue_pair.resting = false;
    }
    run(world, at);
}

/// Carries requests out until there is none, or the first one has to wait.
pub(super) fn run(world: &mut World, at: usize) {
    loop {
        let dead = world.script.dead;
        let Some(queue_pair) = world.queue_pairs.get_mut(&at) else { return };
        if queue_pair.state != IBV_QPS_RTS || queue_pair.resting || queue_pair.sends.is_empty() || dead {
            return;
        }
        if world.is_iwarp() && !is_reached(world, at) {
            // TCP repeats for longer than a test takes.
            if let Some(queue_pair) = world.queue_pairs.get_mut(&at) {
                queue_pair.resting = true;
                let number = queue_pair.number;
                world.after(TCP_REPEATS, Timer::Resume(number));
            }
            return;
        }
        let Some(queue_pair) = world.queue_pairs.get_mut(&at) else { return };
        if !std::mem::replace(&mut queue_pair.lingered, true)
            && let Some(delay) = world.script.linger()
        {
            queue_pair.resting = true;
            let number = queue_pair.number;
            return world.after(delay, Timer::Resume(number));
        }
        queue_pair.lingered = false;
        let Some(send) = queue_pair.sends.pop_front() else { return };
        match carry_out(world, at, &send) {
            result if world.is_iwarp() => stream::answered(world, at, send, result),
            Ok(bytes) => succeeded(world, at, &send, bytes),
            Err(Stop::Failed(status)) => failed(world, at, &send, status),
            Err(Stop::NotReady(code)) => pause(world, at, send, rnr_pause(code), true),
            Err(Stop::CutOff) => return rest(world, at, send),
            Err(Stop::Unanswered) => {
                let code = world.queue_pairs[&at].attributes.timeout;
                pause(world, at, send, ack_timeout(code), false);
            }
        }
    }
}

/// The pause after which TCP sends what was not acknowledged again.
const TCP_REPEATS: Duration = Duration::from_millis(10);

/// Whether the ports of a queue pair and of its peer are up.
fn is_reached(world: &World, at: usize) -> bool {
    let QueuePair { attributes: own, connection, .. } = &world.queue_pairs[&at];
    if connection.is_some_and(|id| cm::is_cut_off(world, id)) {
        return false;
    }
    let peer = world.numbers.get(&own.dest_qp_num).map(|peer| world.queue_pairs[peer].attributes.port_num);
    world.devices.is_up(own.port_num) && peer.is_none_or(|port| world.devices.is_up(port))
}

/// Writes to the memory of every receive that the device has, as one does of which no command stops the writes. Returns the
/// number of bytes.
pub(super) fn scribble(world: &mut World) -> usize {
    let own = world.queue_pairs.values().flat_map(|queue_pair| &queue_pair.receives);
    let shared = world.shared.values().flat_map(|queue| &queue.receives);
    let mut written = 0;
    for piece in own.chain(shared).flat_map(|receive| &receive.pieces) {
        let Some(Key::Region(region)) = world.keys.get(&piece.key) else { continue };
        let place = world.regions[region].place(piece.address);
        let to: *mut u8 = std::ptr::with_exposed_provenance_mut(place);
        // SAFETY: the owner of the receive leaves its memory to the device until the receive has completed or its queue is gone.
        unsafe { to.write_bytes(SCRIBBLE, piece.length as usize) };
        written += piece.length as usize;
    }
    written
}

/// The byte that [`scribble`] writes.
const SCRIBBLE: u8 = 0xee;

/// Leaves a request under way.
fn rest(world: &mut World, at: usize, send: Send) {
    if let Some(queue_pair) = world.queue_pairs.get_mut(&at) {
        queue_pair.resting = true;
        queue_pair.sends.push_front(send);
    }
}

/// Has a request tried again, unless it was tried often enough.
fn pause(world: &mut World, at: usize, send: Send, pause: Duration, not_ready: bool) {
    let Some(queue_pair) = world.queue_pairs.get_mut(&at) else { return };
    let attributes = &queue_pair.attributes;
    let (tries, most, status) = if not_ready {
        (&mut queue_pair.not_ready, attributes.rnr_retry, wc::RNR_RETRY_EXC_ERR)
    } else {
        (&mut queue_pair.unanswered, attributes.retry_cnt, wc::RETRY_EXC_ERR)
    };
    if *tries >= most && !(not_ready && most == FOR_EVER) {
        return failed(world, at, &send, status);
    }
    *tries = tries.saturating_add(1);
    queue_pair.resting = true;
    queue_pair.sends.push_front(send);
    let number = queue_pair.number;
    world.after(pause, Timer::Resume(number));
}

fn completion_of(opcode: u32) -> u32 {
    match opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => opcode::RDMA_WRITE,
        IBV_WR_RDMA_READ => opcode::RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP => opcode::COMP_SWAP,
        IBV_WR_ATOMIC_FETCH_AND_ADD => opcode::FETCH_ADD,
        IBV_WR_BIND_MW => opcode::BIND_MW,
        IBV_WR_LOCAL_INV => opcode::LOCAL_INV,
        _ => opcode::SEND,
    }
}

fn succeeded(world: &mut World, at: usize, send: &Send, bytes: usize) {
    let Some(queue_pair) = world.queue_pairs.get_mut(&at) else { return };
    (queue_pair.unanswered, queue_pair.not_ready) = (0, 0);
    if send.signaled || queue_pair.all_signaled {
        report(world, at, send, wc::SUCCESS, bytes);
    }
}

fn failed(world: &mut World, at: usize, send: &Send, status: u32) {
    report(world, at, send, status, 0);
    world.fail(at);
}

fn report(world: &mut World, at: usize, send: &Send, status: u32, bytes: usize) {
    let queue_pair = &world.queue_pairs[&at];
    let completion = Completion {
        id: send.id,
        status,
        opcode: completion_of(send.opcode),
        bytes: bytes as u32,
        word: 0,
        flags: 0,
        number: queue_pair.number,
        shared: None,
    };
    let queue = queue_pair.send_queue;
    world.complete(queue, completion, false);
}

/// Carries a request out. Returns the number of bytes.
fn carry_out(world: &mut World, at: usize, send: &Send) -> Result<usize, Stop> {
    match send.opcode {
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV => message(world, at, send),
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => write(world, at, send),
        IBV_WR_RDMA_READ => read(world, at, send),
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => atomic(world, at, send),
        IBV_WR_BIND_MW => bind(world, at, send),
        _ => invalidate(world, at, send.word).map(|()| 0).ok_or(Stop::Failed(wc::MW_BIND_ERR)),
    }
}

/// The queue pair at the other end, if it takes anything.
fn peer(world: &World, at: usize) -> Result<usize, Stop> {
    let own = &world.queue_pairs[&at];
    let peer = world.numbers.get(&own.attributes.dest_qp_num).ok_or(Stop::Unanswered)?;
    let listens = world.queue_pairs[peer].listens_to(own, world.devices.partitions);
    if listens && is_reached(world, at) { Ok(*peer) } else { Err(Stop::Unanswered) }
}

/// The local memory of a request.
fn local(world: &World, at: usize, source: &Source, writes: bool) -> Result<Vec<Stretch>, Stop> {
    match source {
        Source::Inline(bytes) => {
            Ok(vec![Stretch { start: bytes.as_ptr().expose_provenance(), length: bytes.len() }])
        }
        Source::Pieces(pieces) => {
            let domain = world.queue_pairs[&at].domain;
            let access = if writes { IBV_ACCESS_LOCAL_WRITE } else { 0 };
            stretches(world, domain, pieces, access).ok_or(Stop::Failed(wc::LOC_PROT_ERR))
        }
    }
}

/// The memory of pieces, if all of them are registered with this access.
fn stretches(world: &World, domain: usize, pieces: &[Piece], access: c_uint) -> Option<Vec<Stretch>> {
    let some = pieces.iter().filter(|piece| piece.length > 0);
    some.map(|piece| {
        let Key::Region(region) = world.keys.get(&piece.key)? else { return None };
        let region = &world.regions[region];
        let permitted = region.access & access == access;
        let inside = within(piece.address, u64::from(piece.length), region.start, region.length);
        (region.domain == domain && permitted && inside)
            .then(|| Stretch { start: region.place(piece.address), length: piece.length as usize })
    })
    .collect()
}

fn within(start: u64, length: u64, of: u64, size: u64) -> bool {
    start >= of && start.checked_add(length).is_some_and(|end| end <= of + size)
}

/// Memory that a key gives the peer of a queue pair access to, if there is any.
fn reachable(
    world: &World,
    at: usize,
    key: u32,
    start: u64,
    length: usize,
    access: c_uint,
) -> Option<Stretch> {
    let own = &world.queue_pairs[&at];
    let size = length as u64;
    let region = match world.keys.get(&key)? {
        Key::Region(region) => {
            let region = &world.regions[region];
            let permitted = region.domain == own.domain
                && region.access & access == access
                && within(start, size, region.start, region.length);
            permitted.then_some(region)
        }
        Key::Window(window) => {
            let bound = world.windows[window].bound?;
            let permitted = bound.queue_pair == at
                && bound.access & access == access
                && within(start, size, bound.start, bound.length);
            permitted.then(|| &world.regions[&bound.region])
        }
    }?;
    Some(Stretch { start: region.place(start), length })
}

/// The memory of the peer that a request of so many bytes names. Of none there is no memory.
fn remote(world: &World, peer: usize, send: &Send, bytes: usize, access: c_uint) -> Option<Stretch> {
    match bytes {
        0 => Some(Stretch { start: 0, length: 0 }),
        _ => reachable(world, peer, send.remote_key, send.remote, bytes, access),
    }
}

fn length(stretches: &[Stretch]) -> usize {
    stretches.iter().map(|stretch| stretch.length).sum()
}

/// Copies memory to memory, as far as there are bytes; there is room for all of them.
fn copy(from: &[Stretch], to: &[Stretch]) {
    let mut to = to.iter().copied();
    let mut target = Stretch { start: 0, length: 0 };
    for part in from {
        let mut part = *part;
        while part.length > 0 {
            while target.length == 0 {
                let Some(next) = to.next() else { return };
                target = next;
            }
            let count = part.length.min(target.length);
            let source: *const u8 = std::ptr::with_exposed_provenance(part.start);
            let place: *mut u8 = std::ptr::with_exposed_provenance_mut(target.start);
            // SAFETY: both are in memory that its owner has registered, or copied into the request: it stays allocated, and
            // the owner leaves it to the device. Both may be one.
            unsafe { source.copy_to(place, count) };
            part = Stretch { start: part.start + count, length: part.length - count };
            target = Stretch { start: target.start + count, length: target.length - count };
        }
    }
}

/// The next receive of a queue pair, with its memory if that can be written to.
fn take_receive(world: &mut World, at: usize) -> Result<(Receive, Option<Vec<Stretch>>), Stop> {
    let queue_pair = world.queue_pairs.get_mut(&at).ok_or(Stop::Unanswered)?;
    let not_ready = Stop::NotReady(queue_pair.attributes.min_rnr_timer);
    let (receive, domain) = match queue_pair.shared {
        None => (queue_pair.receives.pop_front(), queue_pair.domain),
        Some(shared) => {
            let domain = world.shared.get(&shared).map_or(0, |shared| shared.domain);
            (world.take_shared(shared), domain)
        }
    };
    let receive = receive.ok_or(not_ready)?;
    let memory = stretches(world, domain, &receive.pieces, IBV_ACCESS_LOCAL_WRITE);
    Ok((receive, memory))
}

/// Completes a receive; one that failed ends its queue pair.
fn received(world: &mut World, at: usize, done: Completion, solicited: bool) {
    let queue_pair = &world.queue_pairs[&at];
    let done = Completion { number: queue_pair.number, shared: queue_pair.shared, ..done };
    let queue = queue_pair.receive_queue;
    world.script.solicited += usize::from(solicited);
    world.complete(queue, done, solicited);
    // Over iWARP the connection ends with the request.
    if done.status != wc::SUCCESS && !world.is_iwarp() {
        world.fail(at);
    }
}

/// The responder refuses a request: its queue pair ends, and its owner is told.
fn refuse(world: &mut World, at: usize, event: u32, status: u32) -> Stop {
    if let Some(queue_pair) = world.queue_pairs.get(&at) {
        let context = queue_pair.context;
        if !world.script.hides_errors {
            world.asynchronous(context, event, at);
        }
        if !world.is_iwarp() {
            world.fail(at);
        }
    }
    Stop::Failed(status)
}

fn done(id: u64, status: u32, opcode: u32, bytes: usize) -> Completion {
    Completion { id, status, opcode, bytes: bytes as u32, word: 0, flags: 0, number: 0, shared: None }
}

/// A message, which takes a receive.
fn message(world: &mut World, at: usize, send: &Send) -> Result<usize, Stop> {
    let from = local(world, at, &send.source, false)?;
    let peer = peer(world, at)?;
    let (receive, to) = take_receive(world, peer)?;
    if world.script.cut_off > 0 {
        world.script.cut_off -= 1;
        if let Some(peer) = world.queue_pairs.get_mut(&peer) {
            peer.cut_off.push(receive);
        }
        return Err(Stop::CutOff);
    }
    let bytes = length(&from);
    let Some(to) = to else {
        received(world, peer, done(receive.id, wc::LOC_PROT_ERR, opcode::RECV, 0), false);
        return Err(Stop::Failed(wc::REM_OP_ERR));
    };
    if length(&to) < bytes {
        received(world, peer, done(receive.id, wc::LOC_LEN_ERR, opcode::RECV, 0), false);
        return Err(Stop::Failed(wc::REM_INV_REQ_ERR));
    }
    let mut completion = done(receive.id, wc::SUCCESS, opcode::RECV, bytes);
    completion.word = send.word;
    match send.opcode {
        IBV_WR_SEND_WITH_IMM => completion.flags = IBV_WC_WITH_IMM,
        IBV_WR_SEND_WITH_INV => {
            if invalidate(world, peer, send.word).is_none() {
                return Err(refuse(world, peer, asynchronous::QP_ACCESS_ERR, wc::REM_ACCESS_ERR));
            }
            completion.flags = IBV_WC_WITH_INV;
        }
        _ => {}
    }
    copy(&from, &to);
    received(world, peer, completion, send.solicited);
    Ok(bytes)
}

/// Whether the peer may do this at all, by its queue pair's rights.
fn permits(world: &World, peer: usize, access: u32) -> bool {
    world.queue_pairs[&peer].attributes.qp_access_flags & access != 0
}

fn write(world: &mut World, at: usize, send: &Send) -> Result<usize, Stop> {
    let from = local(world, at, &send.source, false)?;
    let peer = peer(world, at)?;
    let bytes = length(&from);
    if !permits(world, peer, IBV_ACCESS_REMOTE_WRITE) {
        return Err(refuse(world, peer, asynchronous::QP_REQ_ERR, wc::REM_INV_REQ_ERR));
    }
    let Some(to) = remote(world, peer, send, bytes, IBV_ACCESS_REMOTE_WRITE) else {
        return Err(refuse(world, peer, asynchronous::QP_ACCESS_ERR, wc::REM_ACCESS_ERR));
    };
    let receive = match send.opcode {
        IBV_WR_RDMA_WRITE_WITH_IMM => Some(take_receive(world, peer)?.0),
        _ => None,
    };
    copy(&from, &[to]);
    if let Some(receive) = receive {
        let mut completion = done(receive.id, wc::SUCCESS, opcode::RECV_RDMA_WITH_IMM, bytes);
        (completion.word, completion.flags) = (send.word, IBV_WC_WITH_IMM);
        received(world, peer, completion, send.solicited);
    }
    Ok(bytes)
}

/// The limits of reads, which atomics count as.
fn admits_read(world: &mut World, at: usize, peer: usize, access: u32) -> Result<(), Stop> {
    if world.queue_pairs[&at].attributes.max_rd_atomic == 0 {
        return Err(Stop::Failed(wc::LOC_QP_OP_ERR));
    }
    let serves = world.queue_pairs[&peer].attributes.max_dest_rd_atomic > 0;
    if !serves || !permits(world, peer, access) {
        return Err(refuse(world, peer, asynchronous::QP_REQ_ERR, wc::REM_INV_REQ_ERR));
    }
    Ok(())
}

fn read(world: &mut World, at: usize, send: &Send) -> Result<usize, Stop> {
    let to =
        if world.is_iwarp() { stream::sink(world, at, send)? } else { local(world, at, &send.source, true)? };
    let peer = peer(world, at)?;
    admits_read(world, at, peer, IBV_ACCESS_REMOTE_READ)?;
    let bytes = length(&to);
    let Some(from) = remote(world, peer, send, bytes, IBV_ACCESS_REMOTE_READ) else {
        return Err(refuse(world, peer, asynchronous::QP_ACCESS_ERR, wc::REM_ACCESS_ERR));
    };
    copy(&[from], &to);
    Ok(bytes)
}

fn atomic(world: &mut World, at: usize, send: &Send) -> Result<usize, Stop> {
    let to = local(world, at, &send.source, true)?;
    if length(&to) != size_of::<u64>() {
        return Err(Stop::Failed(wc::LOC_LEN_ERR));
    }
    let peer = peer(world, at)?;
    admits_read(world, at, peer, IBV_ACCESS_REMOTE_ATOMIC)?;
    if !send.remote.is_multiple_of(size_of::<u64>() as u64) {
        return Err(refuse(world, peer, asynchronous::QP_REQ_ERR, wc::REM_INV_REQ_ERR));
    }
    let Some(found) = remote(world, peer, send, size_of::<u64>(), IBV_ACCESS_REMOTE_ATOMIC) else {
        return Err(refuse(world, peer, asynchronous::QP_ACCESS_ERR, wc::REM_ACCESS_ERR));
    };
    let target: *mut u64 = std::ptr::with_exposed_provenance_mut(found.start);
    // SAFETY: eight aligned bytes of registered memory, which the owner leaves to the device.
    let target = unsafe { AtomicU64::from_ptr(target) };
    let before = if send.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD {
        target.fetch_add(send.compare_add, Ordering::SeqCst)
    } else {
        let swapped =
            target.compare_exchange(send.compare_add, send.swap, Ordering::SeqCst, Ordering::SeqCst);
        swapped.unwrap_or_else(|other| other)
    };
    let before = before.to_ne_bytes();
    copy(&[Stretch { start: before.as_ptr().expose_provenance(), length: before.len() }], &to);
    Ok(before.len())
}

/// Binds a window to a part of a region, for the peer of this queue pair.
fn bind(world: &mut World, at: usize, send: &Send) -> Result<usize, Stop> {
    const FAILED: Stop = Stop::Failed(wc::MW_BIND_ERR);
    let asked = send.binding.ok_or(FAILED)?;
    let (window, info) = (asked.mw.addr(), asked.bind_info);
    let domain = world.queue_pairs[&at].domain;
    let region = world.regions.get(&info.mr.addr()).ok_or(FAILED)?;
    let writes = info.mw_access_flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
    let permitted = region.access & IBV_ACCESS_MW_BIND != 0
        && (!writes || region.access & IBV_ACCESS_LOCAL_WRITE != 0)
        && within(info.addr, info.length, region.start, region.length)
        && region.domain == domain;
    let known = world.windows.get(&window).ok_or(FAILED)?;
    let free = known.domain == domain
        && known.bound.is_none()
        && known.key & OF_THE_DEVICE == asked.rkey & OF_THE_DEVICE
        && known.key != asked.rkey;
    if !permitted || !free {
        return Err(FAILED);
    }
    let binding = Binding {
        region: info.mr.addr(),
        start: info.addr,
        length: info.length,
        access: info.mw_access_flags,
        queue_pair: at,
    };
    if let Some(region) = world.regions.get_mut(&info.mr.addr()) {
        region.windows += 1;
    }
    if let Some(known) = world.windows.get_mut(&window) {
        (known.key, known.bound) = (asked.rkey, Some(binding));
    }
    world.keys.insert(asked.rkey, Key::Window(window));
    Ok(0)
}

/// Ends the use of a key that is for the peer of this queue pair: that of a window.
fn invalidate(world: &mut World, at: usize, key: u32) -> Option<()> {
    let Key::Window(window) = *world.keys.get(&key)? else { return None };
    world.windows[&window].bound.filter(|bound| bound.queue_pair == at)?;
    world.unbind(window);
    Some(())
}
