//! Orders of tests to the device of `tests/fake`, once the library is loaded under the name of libibverbs.
//!
//! | line | effect |
//! |---|---|
//! | `dress KIND` | the device is one of `roce`, as without the line, of `infiniband` or of `iwarp`; refused once it was opened |
//! | `dress` | the kind: 0, 1 or 2 in that order |
//! | `instant` | the device costs next to nothing, for measurements: a send or a write of a connected queue pair is complete when it is posted, and nothing arrives at the peer. Queue pairs with completion queues of their own share no lock when they post and poll. Refused once the device was opened |
//! | `vendor NUMBER` | the number of its vendor; refused once it was opened |
//! | `count KIND` | the number of objects: `qp`, `cq`, `mr`, `mw`, `pd`, `srq`, `context`, `channel`, `cm_id`, `cm_channel` |
//! | `access FLAGS` | the number of registrations with exactly these access flags |
//! | `registered` | the bytes of all registrations, in whole pages |
//! | `count cqe` | the number of entries that all completion queues have room for |
//! | `vector NUMBER` | the number of completion queues whose events come by this vector |
//! | `calls CALL` | the number of calls of this function since the last `reset`; `ibv_poll_cq` and `ibv_req_notify_cq` are counted, too. A call of the latter for solicited events alone is counted as `ibv_req_notify_cq:solicited`, and can be held or refused by that name |
//! | `send_queue BYTES ERRNO` | a send queue that would have more bytes than this is refused with this error. Requests with more entries or inline bytes are longer, as those of mlx5 |
//! | `shared_queue BYTES ERRNO` | the same for shared receive queues |
//! | `inline_clamp BYTES` | a queue pair for which more inline bytes are asked gets so many, and no error, as with hns; with 0 there are none |
//! | `ece VENDOR OPTIONS` | new queue pairs have these options of this vendor (ibv_query_ece(3)) |
//! | `ece none` | new queue pairs have none, as without the line |
//! | `ece OPTIONS` | the number of connected queue pairs that use these options |
//! | `dmabuf` | the driver knows dma-bufs: files of memory stand for them (memfd_create(2)). Only the flags are accepted that the kernel accepts for them |
//! | `fixed shared` | the length of a shared receive queue cannot be changed, as with nearly every card |
//! | `partitions KEY KEY` | the P_Key table is written anew: the numbers of the P_Keys at both indices, `none` for an empty entry; `0 1` at first |
//! | `fail CALL N ERRNO` | the N-th call of this function from now on fails with this error; each request that `ibv_post_send` or `ibv_post_recv` takes counts as one |
//! | `delay CALL MILLISECONDS` | every call of this function takes so long; the number may have a fraction |
//! | `hold CALL` | no call of this function returns before `reset` |
//! | `hold CALL N` | the same from the N-th call from now on |
//! | `release CALL` | the calls of this function that do not return do now |
//! | `held` | the number of calls that do not return because of that |
//! | `refuse CALL ERRNO` | every call of this function fails |
//! | `answer CALL EVENT STATUS` | the next call of this function of the connection manager (`rdma_resolve_addr`, `rdma_resolve_route`, `rdma_connect`) is answered by the event with this number, and with this status |
//! | `gap` | the longest time for which an event of the connection manager was the next one, and nobody took it, since the last such line; microseconds |
//! | `give up` | every message of the connection manager that is not answered is given up now; their number |
//! | `report EVENT STATUS` | every id that is connected is told this event, as of a path that the kernel finds changed; the number of ids |
//! | `patience MILLISECONDS` | the time after which a message of the connection manager that nobody answers is given up |
//! | `overrun N` | the N-th completion from now on finds its queue full: it is lost, and so are all that follow in that queue |
//! | `spoil N` | the N-th completion from now on cannot be read: a poll that comes to it fails, and has taken those in front of it, as with mlx5; its id is in the array nevertheless, as with cxgb4 |
//! | `repeat N` | the N-th completion from now on comes twice |
//! | `misname N` | the first four bytes of the id of the N-th completion from now on, as a number, are all ones |
//! | `cut off` | a poll of a completion queue that was resized ends at the place where that happened, as with bnxt_re |
//! | `solicited` | the number of messages with a solicited event that have arrived since the last `reset` |
//! | `events` | the number of events that completion queues have raised since the last `reset` |
//! | `replace arms` | a completion queue is armed as it was last asked to, as with siw: without the line it stays armed for all events until it raises one |
//! | `lose shared_queues` | all shared receive queues are in the error state, as their owners are told |
//! | `port NUMBER STATE` | the port goes `down`, or comes `up` |
//! | `event KIND PORT` | the device says that something about the port has changed, by the number of `enum ibv_event_type` |
//! | `fatal` | the device fails for good: it says so, every command is refused with `EIO`, and no request is carried out; objects may be left |
//! | `scribble` | the device writes 0xee to the memory of every receive that it has; the number of bytes |
//! | `keep requests` | a queue pair in the error state gives no request back, as if a message were still arriving: their memory is in use until it is destroyed |
//! | `keep requests N` | the same, but the first N requests of its send queue come back |
//! | `keep nothing` | they give their requests back now |
//! | `cut N` | the next N messages take a receive, and the rest of them never comes |
//! | `lose last_receives` | no queue pair in the error state says that it has no receive of a shared queue any more |
//! | `lose errors` | no queue pair says that it has refused a request of its peer, as with rxe |
//! | `forgive` | objects that are left at the end of the process are not counted |
//! | `lose messages` | no message of the connection manager arrives |
//! | `lose addresses` | nobody answers who is asked where an address is |
//! | `lose nothing` | all of these arrive |
//! | `expire addresses N`, `expire routes N` | the next N resolutions of an address or of a route end at once, as if nobody had answered in time |
//! | `expiring` | the number of those that are left |
//! | `pace SEED` | requests and events take random times, so that those of different queue pairs and ids overtake each other |
//! | `pace none` | they take none |
//! | `remove` | the device is taken out of the machine |
//! | `rnr_timer SIDE` | the timer for a receiver that is not ready, of the connected queue pair of this side of its connection, `active` or `passive`; an error if there is none, or if there are several that differ |
//! | `rnr_retries SIDE`, `retries SIDE`, `ack_timeout SIDE` | how often it repeats what finds no receive, how often what is not acknowledged, and the exponent of the time that it waits for an acknowledgement |
//! | `device NAME` | there is another device, of the same kind as the first |
//! | `place IP PORT KEY` | the address is of this port, 1 or 2, and in the partition with this P_Key, 0 or 1 |
//! | `place IP PORT KEY NAME` | the same of the device with this name |
//! | `place IP%SCOPE PORT KEY` | the same of a link-local address, at the interface with this number |
//! | `move IP` | the address has moved to another port, as that of a bond does: ids that are bound to it are told, and nobody reaches them; connections go on |
//! | `moved` | the number of ids that are bound to such an address from before, or listen there |
//! | `listening` | the number of ids that listen, but for those |
//! | `displace IP` | the address is of no device |
//! | `rival NAME ERRNO` | every connection of this device fails with this error |
//! | `reset` | calls behave, and everything arrives; the times of `pace` stay |
#![allow(unsafe_code, reason = "it calls a function of C")]

use std::ffi::{CString, c_char, c_void};
use std::io;
use std::sync::OnceLock;

type Control = unsafe extern "C" fn(*const c_char) -> i64;

/// Tells the device a line. Returns the number that it answers.
///
/// # Errors
/// `Unsupported` if the library is not that device's; the error of the device.
pub fn tell(line: &str) -> io::Result<i64> {
    static CONTROL: OnceLock<Option<Control>> = OnceLock::new();
    let control = CONTROL.get_or_init(find).ok_or(io::ErrorKind::Unsupported)?;
    let line = CString::new(line)?;
    // SAFETY: the function takes a string of C.
    let answer = unsafe { control(line.as_ptr()) };
    match i32::try_from(answer) {
        Ok(error @ ..0) => Err(io::Error::from_raw_os_error(error.saturating_neg())),
        _ => Ok(answer),
    }
}

/// The function of the library that has the name of libibverbs.
fn find() -> Option<Control> {
    // SAFETY: what the library does when it is loaded needs nothing of this program. It stays loaded.
    let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the library is loaded, and the name is a string.
    let found = unsafe { libc::dlsym(library, c"fake_control".as_ptr()) };
    // SAFETY: this is the type of the function of that name.
    (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, Control>(found) })
}
