//! The device. All of its state is behind one lock, see [`world`].
//!
//! The module has the name of the one in tokio-rdma that declares the structures of C, because their members are visible
//! in a module of that name: there is one copy of the layouts.

use std::ffi::c_int;

#[path = "../../../src/sys/ffi/number.rs"]
#[allow(dead_code, reason = "numbers that the device does not need")]
mod number;
#[path = "../../../src/sys/ffi/types.rs"]
#[allow(non_camel_case_types, reason = "the names are those of the C headers")]
mod types;

mod address;
mod channel;
mod cm;
mod completion;
mod control;
mod device;
mod dress;
#[allow(non_camel_case_types, reason = "the name is that of the C header")]
mod ece;
mod events;
mod execute;
mod instant;
mod memory;
mod objects;
mod post;
mod queue_pair;
mod shared;
mod status;
mod timers;
mod world;

/// The result of a call: an error number of C, if it fails.
type Answer<T> = Result<T, c_int>;

/// The convention of libibverbs: an error number.
fn number_of(answer: Answer<()>) -> c_int {
    answer.err().unwrap_or(0)
}

/// The convention of librdmacm: -1 and `errno`.
fn minus_one(answer: Answer<()>) -> c_int {
    match answer {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// The convention of functions that make something: null and `errno`.
fn pointer<T>(answer: Answer<*mut T>) -> *mut T {
    answer.unwrap_or_else(|error| {
        set_errno(error);
        std::ptr::null_mut()
    })
}

fn set_errno(error: c_int) {
    // SAFETY: the address is that of the calling thread's own variable.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { errno.write(error) }
}

/// A structure of C, all of whose members are zero, on the heap.
///
/// # Safety
/// Zero is a value of every member.
unsafe fn zeroed<T>() -> *mut T {
    // SAFETY: the caller's.
    Box::into_raw(Box::new(unsafe { std::mem::zeroed() }))
}

/// Frees what [`zeroed`] has made.
///
/// # Safety
/// It came from there, and nobody uses it any more.
unsafe fn free<T>(raw: *mut T) {
    // SAFETY: the caller's.
    drop(unsafe { Box::from_raw(raw) });
}
