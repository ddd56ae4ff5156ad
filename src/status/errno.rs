//! The meaning of Linux error numbers that concern connections.

use libc::{
    EACCES, EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EALREADY, EBADF, EBUSY, ECANCELED, ECONNABORTED,
    ECONNREFUSED, ECONNRESET, EFAULT, EHOSTDOWN, EHOSTUNREACH, EINPROGRESS, EINVAL, EISCONN, EMFILE,
    EMSGSIZE, ENETDOWN, ENETUNREACH, ENFILE, ENOBUFS, ENODEV, ENOMEM, ENOPROTOOPT, ENOSPC, ENOSYS, ENOTCONN,
    ENXIO, EOPNOTSUPP, EPERM, EPIPE, EPROTONOSUPPORT, ESHUTDOWN, ETIMEDOUT,
};

use super::Status;

/// Returns the status of an error number, `None` for a number without a specific meaning.
///
/// `EADDRINUSE` and `EADDRNOTAVAIL` have different meanings in bind and connect. They get the meaning of bind; connect
/// must check the number itself.
pub(crate) fn status_of_errno(errno: i32) -> Option<Status> {
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
