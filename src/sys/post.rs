//! Requests for the queues of a queue pair, in the words of C.

use std::ffi::c_int;
use std::io;
use std::mem::offset_of;
use std::ptr;

use bitflags::bitflags;

use super::ffi::number;
use super::memory::{AccessFlags, MemoryRegion, MemoryWindow};
use super::{call, ffi};

/// A piece of registered memory, in the layout of C.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScatterEntry {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) key: u32,
}

const _: () = {
    assert!(size_of::<ScatterEntry>() == size_of::<ffi::ibv_sge>());
    assert!(align_of::<ScatterEntry>() == align_of::<ffi::ibv_sge>());
    assert!(offset_of!(ScatterEntry, address) == offset_of!(ffi::ibv_sge, addr));
    assert!(offset_of!(ScatterEntry, length) == offset_of!(ffi::ibv_sge, length));
    assert!(offset_of!(ScatterEntry, key) == offset_of!(ffi::ibv_sge, lkey));
};

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteMemory {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

/// The arguments of the bind of a window to a part of a region.
#[derive(Clone, Copy)]
pub(crate) struct Binding<'a> {
    pub(crate) window: &'a MemoryWindow,
    /// The window's present key, and the one for this binding, see [`next_key`](super::memory::next_key).
    pub(crate) key: u32,
    pub(crate) next_key: u32,
    pub(crate) region: &'a MemoryRegion,
    pub(crate) address: u64,
    pub(crate) length: u64,
    /// The rights of the peer.
    pub(crate) access: AccessFlags,
}

/// The operation of a request of the send queue. Immediate data is in host byte order.
#[derive(Clone, Copy)]
pub(crate) enum Operation<'a> {
    Send,
    SendImmediate(u32),
    /// A send that invalidates a key of the peer.
    SendInvalidate(u32),
    Write(RemoteMemory),
    /// A write that takes a receive of the peer, whose completion carries the number.
    WriteImmediate(RemoteMemory, u32),
    Read(RemoteMemory),
    /// The eight bytes that were there come into the local entry, in host byte order.
    CompareSwap {
        remote: RemoteMemory,
        compare: u64,
        swap: u64,
    },
    /// As above.
    FetchAdd {
        remote: RemoteMemory,
        add: u64,
    },
    /// Ends the use of a key of this side.
    LocalInvalidate(u32),
    BindWindow(Binding<'a>),
}

bitflags! {
    /// The options of a request of the send queue.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct SendFlags: u32 {
        /// Its success is reported; failure always is.
        const SIGNALED = number::IBV_SEND_SIGNALED;
        /// The memory is copied before the call returns, and needs no key.
        const INLINE = number::IBV_SEND_INLINE;
        /// It waits for the reads and atomics before it.
        const FENCE = number::IBV_SEND_FENCE;
        /// The completion of the peer's receive is a solicited event.
        const SOLICITED = number::IBV_SEND_SOLICITED;
    }
}

/// A request for the send queue.
#[derive(Clone)]
pub(crate) struct SendRequest<'a> {
    /// The id in the completion.
    pub(crate) id: u64,
    pub(crate) operation: Operation<'a>,
    pub(crate) entries: &'a [ScatterEntry],
    pub(crate) flags: SendFlags,
}

/// A request for a receive queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveRequest<'a> {
    /// The id in the completion.
    pub(crate) id: u64,
    pub(crate) entries: &'a [ScatterEntry],
}

/// A queue has not taken all the requests of a call.
#[derive(Debug)]
pub(crate) struct Refused {
    /// The number of requests that it has taken, from the first.
    pub(crate) taken: usize,
    /// The error of the next request.
    pub(crate) source: io::Error,
}

impl SendRequest<'_> {
    /// Fills in a request that is all zeros.
    ///
    /// # Safety
    /// See [`QueuePair::post_send`](super::QueuePair::post_send).
    #[inline(always)]
    pub(super) unsafe fn fill(&self, raw: &mut ffi::ibv_send_wr) -> io::Result<()> {
        use Operation as Op;
        raw.wr_id = self.id;
        raw.sg_list = entries_ptr(self.entries);
        raw.num_sge = entries_len(self.entries)?;
        raw.send_flags = self.flags.bits();
        let words = &mut raw.imm_data_invalidated_rkey_union;
        raw.opcode = match self.operation {
            Op::Send => number::IBV_WR_SEND,
            Op::SendImmediate(immediate) => {
                words.imm_data = immediate.to_be();
                number::IBV_WR_SEND_WITH_IMM
            }
            Op::SendInvalidate(key) => {
                words.invalidated_rkey = key;
                // The library of siw reads the key here.
                raw.wr.rdma = ffi::rdma_t { remote_addr: 0, rkey: key };
                number::IBV_WR_SEND_WITH_INV
            }
            Op::Write(remote) => {
                raw.wr.rdma = rdma(remote);
                number::IBV_WR_RDMA_WRITE
            }
            Op::WriteImmediate(remote, immediate) => {
                words.imm_data = immediate.to_be();
                raw.wr.rdma = rdma(remote);
                number::IBV_WR_RDMA_WRITE_WITH_IMM
            }
            Op::Read(remote) => {
                raw.wr.rdma = rdma(remote);
                number::IBV_WR_RDMA_READ
            }
            Op::CompareSwap { remote, compare, swap } => {
                raw.wr.atomic = atomic(remote, compare, swap);
                number::IBV_WR_ATOMIC_CMP_AND_SWP
            }
            Op::FetchAdd { remote, add } => {
                raw.wr.atomic = atomic(remote, add, 0);
                number::IBV_WR_ATOMIC_FETCH_AND_ADD
            }
            Op::LocalInvalidate(key) => {
                words.invalidated_rkey = key;
                number::IBV_WR_LOCAL_INV
            }
            Op::BindWindow(binding) => {
                // SAFETY: the caller's.
                raw.bind_mw_tso_union.bind_mw = unsafe { binding.to_raw() };
                number::IBV_WR_BIND_MW
            }
        };
        Ok(())
    }
}

impl Binding<'_> {
    /// Converts the arguments to the structure of C, and sets the present key of the window.
    ///
    /// # Safety
    /// See [`QueuePair::post_send`](super::QueuePair::post_send).
    unsafe fn to_raw(self) -> ffi::bind_mw_t {
        // SAFETY: the window is live, and no other call binds it at the same time. The drivers differ in whether they
        // write this after a binding, and read it at the next one.
        unsafe { (*self.window.raw.as_ptr()).rkey = self.key };
        ffi::bind_mw_t {
            mw: self.window.raw.as_ptr(),
            rkey: self.next_key,
            bind_info: ffi::ibv_mw_bind_info {
                mr: self.region.raw.as_ptr(),
                addr: self.address,
                length: self.length,
                mw_access_flags: self.access.bits(),
            },
        }
    }
}

fn rdma(remote: RemoteMemory) -> ffi::rdma_t {
    ffi::rdma_t { remote_addr: remote.address, rkey: remote.key }
}

fn atomic(remote: RemoteMemory, compare_add: u64, swap: u64) -> ffi::atomic_t {
    ffi::atomic_t { remote_addr: remote.address, compare_add, swap, rkey: remote.key }
}

impl ReceiveRequest<'_> {
    /// Returns the request as C takes it.
    pub(super) fn to_raw(self) -> io::Result<ffi::ibv_recv_wr> {
        Ok(ffi::ibv_recv_wr {
            wr_id: self.id,
            next: ptr::null_mut(),
            sg_list: entries_ptr(self.entries),
            num_sge: entries_len(self.entries)?,
        })
    }
}

/// Returns the entries as C takes them; it does not write to them.
fn entries_ptr(entries: &[ScatterEntry]) -> *mut ffi::ibv_sge {
    entries.as_ptr().cast_mut().cast()
}

fn entries_len(entries: &[ScatterEntry]) -> io::Result<c_int> {
    c_int::try_from(entries.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Returns the outcome of a call that posts the requests of `chain`: of the number that the call returned, and of the request
/// that it has not taken, `bad`, if there is one.
///
/// # Errors
/// That of the request that was not taken.
#[inline]
pub(super) fn outcome<T>(returned: c_int, bad: *const T, chain: &[T]) -> Result<(), Refused> {
    if returned == 0 && bad.is_null() { Ok(()) } else { failed(returned, bad, chain) }
}

#[cold]
fn failed<T>(returned: c_int, bad: *const T, chain: &[T]) -> Result<(), Refused> {
    match (chain.iter().position(|raw| ptr::eq(raw, bad)), call::result(returned)) {
        (None, Ok(())) => Ok(()),
        // Some libraries then call the device for the requests before it, and return the error of that call.
        (Some(taken), result) => {
            let source = result.err().unwrap_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM));
            Err(Refused { taken, source })
        }
        // All are in the queue, but the call that notifies the device failed, as it does when the connection is ending
        // or the device is gone. They finish when the queue pair does.
        (None, Err(error)) => {
            tracing::debug!(%error, "requests queued, but the device was not notified");
            Ok(())
        }
    }
}
