//! The error conventions of the two libraries, and calls for any descriptor of theirs.

use std::ffi::c_int;
use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;

/// Returns the error of a call that has no library to go to.
pub(super) fn unsupported(sentence: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, sentence)
}

/// Makes a call, and makes it again if a signal has interrupted it.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        clear_errno();
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Calls a function of librdmacm, or one that reads events: it fails with -1 and `errno`. Calls it again if a signal
/// interrupted it.
pub(super) fn errno(mut call: impl FnMut() -> c_int) -> io::Result<()> {
    retry(|| if call() >= 0 { Ok(()) } else { Err(last_error(libc::EIO)) })
}

/// Calls a function of libibverbs, see [`result`]. Calls it again if a signal interrupted it.
pub(super) fn number(mut call: impl FnMut() -> c_int) -> io::Result<()> {
    retry(|| result(call()))
}

/// Returns the outcome of a function of libibverbs, of the number that it returned: 0, an error number, which some drivers
/// give as a negative number, or -1 with `errno`, which the caller has [cleared](clear_errno).
#[inline]
pub(super) fn result(returned: c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        -1 => Err(last_error(libc::EIO)),
        number => Err(io::Error::from_raw_os_error(number.saturating_abs())),
    }
}

/// Calls a function that creates an object: it fails with a null pointer and `errno`, which is `unsaid` when the
/// library did not set it. Calls it again if a signal interrupted it.
pub(super) fn pointer<T>(unsaid: c_int, mut call: impl FnMut() -> *mut T) -> io::Result<Object<T>> {
    retry(|| Object::new(call()).ok_or_else(|| last_error(unsaid)))
}

/// An object of the library, which its handle destroys.
pub(super) struct Object<T>(NonNull<T>);

// SAFETY: the libraries' calls on an object may come from any thread. Where a library takes no lock of its own, and for fields that it
// writes, the handle says which lock of this crate is held.
unsafe impl<T> Send for Object<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    pub(super) fn new(raw: *mut T) -> Option<Self> {
        NonNull::new(raw).map(Self)
    }

    pub(super) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

/// Converts the `WouldBlock` of a call that does not wait to `None`.
pub(super) fn unless_empty(result: io::Result<()>) -> io::Result<Option<()>> {
    match result {
        Ok(()) => Ok(Some(())),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Clears `errno`, so that the error of an earlier call is not taken for one of the next.
pub(super) fn clear_errno() {
    // SAFETY: the address is that of the calling thread's own variable.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; nothing else refers to it.
    unsafe { errno.write(0) }
}

fn last_error(unsaid: c_int) -> io::Error {
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        None | Some(0) => io::Error::from_raw_os_error(unsaid),
        Some(_) => error,
    }
}

/// Makes a descriptor of the library one that does not wait and that no child process inherits.
///
/// # Safety
/// The descriptor is open.
pub(super) unsafe fn do_not_wait(descriptor: RawFd) -> io::Result<()> {
    let checked = |result: c_int| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
    // SAFETY: reads the flags of an open descriptor.
    let flags = checked(unsafe { libc::fcntl(descriptor, libc::F_GETFL) })?;
    // SAFETY: sets the flags of an open descriptor.
    checked(unsafe { libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK) })?;
    // SAFETY: as above.
    checked(unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) }).map(drop)
}
