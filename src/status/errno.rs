//! Linux error numbers that concern connections.
//!
//! The constants are our own, because the vocabulary names no C library. The numbers are those of Linux's generic
//! table, which every architecture with current RDMA hardware uses.

use super::Status;

pub(super) const ENODEV: i32 = 19;
pub(super) const EINVAL: i32 = 22;
pub(super) const ENOMEM: i32 = 12;
pub(super) const ENOSPC: i32 = 28;
pub(super) const ENOSYS: i32 = 38;
pub(super) const ENOPROTOOPT: i32 = 92;
pub(super) const EOPNOTSUPP: i32 = 95;
pub(super) const EAFNOSUPPORT: i32 = 97;
pub(super) const EADDRINUSE: i32 = 98;
pub(super) const EADDRNOTAVAIL: i32 = 99;
pub(super) const ENETUNREACH: i32 = 101;
pub(super) const ECONNRESET: i32 = 104;
pub(super) const EISCONN: i32 = 106;
pub(super) const ENOTCONN: i32 = 107;
pub(super) const ETIMEDOUT: i32 = 110;
pub(crate) const ECONNREFUSED: i32 = 111;
pub(super) const EHOSTUNREACH: i32 = 113;

const EPERM: i32 = 1;
const ENXIO: i32 = 6;
const EBADF: i32 = 9;
const EACCES: i32 = 13;
const EFAULT: i32 = 14;
const EBUSY: i32 = 16;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
const EPIPE: i32 = 32;
const EMSGSIZE: i32 = 90;
const EPROTONOSUPPORT: i32 = 93;
const ENETDOWN: i32 = 100;
const ECONNABORTED: i32 = 103;
const ENOBUFS: i32 = 105;
const ESHUTDOWN: i32 = 108;
const EHOSTDOWN: i32 = 112;
const EALREADY: i32 = 114;
const EINPROGRESS: i32 = 115;
const ECANCELED: i32 = 125;

/// Whether the platform uses the numbers above.
const GENERIC_NUMBERS: bool = cfg!(all(
    any(target_os = "linux", target_os = "android"),
    not(any(
        target_arch = "mips",
        target_arch = "mips32r6",
        target_arch = "mips64",
        target_arch = "mips64r6",
        target_arch = "sparc",
        target_arch = "sparc64",
    ))
));

/// Returns the status of an error number, `None` for a number without a specific meaning and on a platform with other
/// numbers.
///
/// `EADDRINUSE` and `EADDRNOTAVAIL` have different meanings in bind and connect. They get the meaning of bind; connect
/// must check the number itself.
pub(crate) fn status_of_errno(errno: i32) -> Option<Status> {
    if !GENERIC_NUMBERS {
        return None;
    }
    Some(match errno {
        ECONNREFUSED => Status::CONNECTION_REFUSED,
        ENETUNREACH | ENETDOWN => Status::NETWORK_UNREACHABLE,
        EHOSTUNREACH | EHOSTDOWN => Status::HOST_UNREACHABLE,
        ETIMEDOUT => Status::IO_TIMEOUT,
        EADDRINUSE => Status::SHARING_VIOLATION,
        EADDRNOTAVAIL | EAFNOSUPPORT => Status::INVALID_ADDRESS,
        ENOMEM | ENOBUFS | ENOSPC | EMFILE | ENFILE => Status::INSUFFICIENT_RESOURCES,
        EINVAL => Status::INVALID_PARAMETER,
        EMSGSIZE => Status::INVALID_BUFFER_SIZE,
        EBADF => Status::INVALID_HANDLE,
        ENODEV | ENXIO => Status::DEVICE_REMOVED,
        EBUSY => Status::DEVICE_BUSY,
        ENOTCONN => Status::CONNECTION_INVALID,
        EISCONN | EALREADY | EINPROGRESS => Status::CONNECTION_ACTIVE,
        // The three numbers for which std has the kinds `ConnectionReset` and `BrokenPipe`.
        ECONNRESET | EPIPE | ESHUTDOWN => Status::CONNECTION_DISCONNECTED,
        ECONNABORTED => Status::CONNECTION_ABORTED,
        // NetworkDirect has no "permission denied"; its nearest is about rights, though to memory.
        EACCES | EPERM | EFAULT => Status::ACCESS_VIOLATION,
        EOPNOTSUPP | ENOSYS | ENOPROTOOPT | EPROTONOSUPPORT => Status::NOT_SUPPORTED,
        ECANCELED => Status::CANCELED,
        _ => return None,
    })
}
