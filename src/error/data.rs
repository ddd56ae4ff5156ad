//! Errors of the data path: posting, completing, waiting, registering.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::{Reason, WcError};
use crate::status::Status;
use crate::status::porting::Outcome;
use crate::types::{Access, OpKind, QueueKind, TooShort};

/// The reason why a work request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// The queue pair is not connected (`CONNECTION_INVALID`).
    #[error("the queue pair is not connected")]
    ConnectionInvalid,
    /// The queue pair is not connected because this side dropped the last handle of its
    /// [`Connection`](crate::Connection) while it was established (`CONNECTION_INVALID`).
    ///
    /// Keep the `Connection` as long as the queue pair; [`Connection::keep_queue_pair`](crate::Connection::keep_queue_pair) makes one
    /// value of both.
    #[error("the queue pair is not connected: this side dropped its last `Connection`")]
    ConnectionDropped,
    /// The connection of the queue pair was lost (`CONNECTION_INVALID`).
    #[error("the connection of the queue pair was lost: {reason}")]
    ConnectionLost {
        /// The cause, as the provider detected it.
        reason: Reason,
    },
    /// The queue is full (`NO_MORE_ENTRIES`).
    #[error("the {queue} is full: its depth is {depth}")]
    QueueFull {
        /// The queue.
        queue: QueueKind,
        /// The number of requests that it holds.
        depth: usize,
    },
    /// The adapter has as many reads and atomics in flight as `VerbsConfig::max_reads` permits, over all connections
    /// (`NO_MORE_ENTRIES`).
    ///
    /// [`QueuePair::reserve_read`](crate::QueuePair::reserve_read) waits until there are fewer.
    #[error("the adapter has {limit} reads in flight, its limit")]
    ReadsFull {
        /// The number of reads and atomics that may be in flight.
        limit: usize,
    },
    /// Memory, keys or resources of the device are exhausted (`INSUFFICIENT_RESOURCES`).
    #[error("out of resources: {0}")]
    InsufficientResources(&'static str),
    /// The request is longer than [`AdapterInfo::max_transfer`](crate::cm::AdapterInfo::max_transfer)
    /// (`BUFFER_OVERFLOW`).
    #[error("the request has {length} bytes, and the adapter transfers at most {maximum}")]
    TooLong {
        /// The length of the request.
        length: usize,
        /// The maximum of the adapter.
        maximum: usize,
    },
    /// The inline data is longer than [`QueuePairConfig::inline`](crate::qp::QueuePairConfig::inline)
    /// (`BUFFER_OVERFLOW`).
    #[error("the inline data has {length} bytes, and the queue pair allows {maximum}")]
    InlineTooLong {
        /// The length of the inline data.
        length: usize,
        /// The maximum of the queue pair.
        maximum: usize,
    },
    /// The request has more scatter-gather entries than its queue allows (`DATA_OVERRUN`).
    ///
    /// The maximum is that of the configuration of the queue, for reads and atomics also that of the adapter.
    #[error("the {kind} has {entries} scatter-gather entries, and its queue allows {maximum}")]
    TooManyEntries {
        /// The kind of the request.
        kind: OpKind,
        /// The number of entries of the request.
        entries: usize,
        /// The maximum of the queue for this kind of request.
        maximum: usize,
    },
    /// The memory lacks access rights that the request needs (`ACCESS_VIOLATION`).
    #[error("the memory lacks the access right {missing}, which the request needs")]
    AccessViolation {
        /// The rights that the memory lacks.
        missing: Access,
    },
    /// The memory window is not bound, or was bound by another queue pair (`ACCESS_VIOLATION`).
    #[error("the memory window is not bound by this queue pair")]
    NotBound,
    /// The memory belongs to another adapter, or is no longer registered (`ACCESS_VIOLATION`).
    #[error("the memory belongs to another adapter than the queue, or is not registered any more")]
    ForeignMemory,
    /// The buffer is longer than the memory of the peer (`ACCESS_VIOLATION`).
    #[error("the buffer of {length} bytes is longer than the peer's memory of {remote} bytes")]
    BeyondRemote {
        /// The length of the buffer.
        length: usize,
        /// The length of the peer's memory.
        remote: u32,
    },
    /// The negotiated outbound read limit is 0 (`REMOTE_ERROR`).
    #[error("the outbound read limit of the connection is 0: no read or atomic can be posted")]
    NoReads,
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
    /// The request does not accept an option, or two options exclude each other (`INVALID_PARAMETER_n`).
    #[error("the {kind} does not accept the option {option}")]
    InvalidOptions {
        /// The number of the flags among the arguments of the ND method, 1-based.
        argument: u8,
        /// The kind of the request.
        kind: OpKind,
        /// The option, and the option that excludes it.
        option: &'static str,
    },
    /// The memory of an atomic is not eight bytes at an address that is a multiple of eight (`INVALID_PARAMETER`).
    #[error(
        "an atomic requires 8 bytes at an address that is a multiple of 8, not {length} bytes at {address:#x}"
    )]
    NotAtomic {
        /// The length of the buffer or of the peer's memory, whichever is not eight bytes.
        length: usize,
        /// The address of the peer's memory.
        address: u64,
    },
    /// The program does not hold the slot: it is free, a request has it, or no such slot is of this lane (`INVALID_PARAMETER`).
    #[error("slot {slot} is not held: it is free, a request has it, or the lane has no such slot")]
    NotHeld {
        /// The number of the slot.
        slot: u32,
    },
    /// The adapter or the queue pair does not support the request (`NOT_SUPPORTED`).
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// The device rejected the request with this error number.
    #[error("the device rejected the request: {}", io::Error::from_raw_os_error(*.0))]
    Device(i32),
}

/// The error of a work request that was not posted, with its buffer.
#[derive(thiserror::Error)]
#[error("{kind}")]
pub struct PostError<B> {
    /// The reason.
    pub kind: PostErrorKind,
    /// The buffer of the request, unchanged.
    pub buffer: B,
}

/// The error of a work request that was posted and failed.
///
/// The connection has ended, unless the request completed with `CANCELED` because the queue pair was flushed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request completed with {status}{}", said(device.as_ref()))]
#[non_exhaustive]
pub struct CompletionError {
    /// The status of the completion, for example `CANCELED`, `BUFFER_OVERFLOW` or `ACCESS_VIOLATION`.
    pub status: Status,
    /// The report of the device. `None` on the soft provider, and for a request that the end of the connection took from the device.
    pub device: Option<WcError>,
}

/// Returns the end of the text: the report of the device, if there is one.
fn said(device: Option<&WcError>) -> String {
    device.map(|error| format!(": {error}")).unwrap_or_default()
}

impl CompletionError {
    /// Creates the error of a request that completed with this status, without a report of a device.
    pub const fn new(status: Status) -> Self {
        Self { status, device: None }
    }

    /// Returns the ND status.
    pub fn status(&self) -> Status {
        self.status
    }
}

/// The error of waiting for a completion queue or a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotifyError {
    /// The completion queue was full when a completion arrived (`BUFFER_OVERFLOW`).
    ///
    /// Completions are lost, and the connections of the queue pairs that use the queue have ended.
    #[error("a completion arrived while the completion queue was full: its depth is {depth}")]
    Overrun {
        /// The number of completions that the queue can hold.
        depth: usize,
    },
    /// The device has lost a completion, or has reported one of no request (`INTERNAL_ERROR`).
    ///
    /// The connections of the queue pairs that use the queue have ended.
    #[error("the device has lost a completion, or has reported one of no request")]
    Lost,
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
}

/// The error of resizing a completion queue or a shared receive queue. The queue is unchanged.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// The queue holds more entries than the new size (`BUFFER_OVERFLOW`).
    #[error("the queue cannot shrink to {asked} entries: it holds {held}")]
    TooSmall {
        /// The size that was asked for.
        asked: usize,
        /// The number of entries in the queue.
        held: usize,
    },
    /// The size is 0 or larger than the adapter allows (`INVALID_PARAMETER`).
    #[error("the new size of the queue is {asked}, not between 1 and {maximum}")]
    OutOfRange {
        /// The size that was asked for.
        asked: usize,
        /// The largest size that is allowed.
        maximum: usize,
    },
    /// The queue overran (`BUFFER_OVERFLOW`), or the adapter was removed (`DEVICE_REMOVED`).
    #[error(transparent)]
    Ended(#[from] NotifyError),
    /// The operating system failed.
    #[error("{call} failed: {source}")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// Its error.
        r#source: Arc<io::Error>,
    },
}

/// The error of accessing one number of eight bytes in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WordError {
    /// The eight bytes are not within the region (`BUFFER_OVERFLOW`).
    #[error("{0}")]
    TooShort(TooShort),
    /// The address of the number is not a multiple of eight (`INVALID_PARAMETER`).
    #[error(
        "a number of 8 bytes requires an address that is a multiple of 8, and that of offset {offset} is not"
    )]
    Unaligned {
        /// The offset of the number in its region.
        offset: usize,
    },
}

/// The error of allocating, registering or deregistering memory.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The length is 0 (`INVALID_BUFFER_SIZE`).
    #[error("the length of the memory is 0")]
    Empty,
    /// The length exceeds the adapter's maximum (`INVALID_PARAMETER`).
    #[error("memory of {length} bytes exceeds the adapter's maximum of {maximum}")]
    TooLarge {
        /// The requested length.
        length: usize,
        /// The maximum of the adapter.
        maximum: usize,
    },
    /// There is not enough memory (`INSUFFICIENT_RESOURCES`).
    #[error("there is not enough memory for {length} bytes")]
    OutOfMemory {
        /// The requested length.
        length: usize,
    },
    /// Keys or resources of the device are exhausted (`INSUFFICIENT_RESOURCES`).
    #[error("out of resources: {0}")]
    InsufficientResources(&'static str),
    /// The process may not lock enough memory for a device (`INSUFFICIENT_RESOURCES`).
    ///
    /// Raise the limit with `ulimit -l`, `RLIMIT_MEMLOCK`, or `LimitMEMLOCK=` of a service.
    #[error("cannot lock {length} bytes: the process may lock {limit} bytes in total (ulimit -l)")]
    MemoryLockLimit {
        /// The requested length.
        length: usize,
        /// The number of bytes that the process may lock in total (getrlimit(2)).
        limit: u64,
    },
    /// The operating system failed.
    #[error("{call} failed: {source}")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// Its error.
        r#source: Arc<io::Error>,
    },
    /// The adapter does not support this kind of memory (`NOT_SUPPORTED`).
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// The region is in use or still registered (`DEVICE_BUSY`).
    #[error("the region is in use by requests or a window, or is still registered")]
    Busy,
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
}

/// The error of registering an allocation of the program, or of getting it back, with the allocation or its region.
#[derive(thiserror::Error)]
#[error("{kind}")]
pub struct RegisterFromError<T> {
    /// The reason.
    pub kind: RegisterError,
    /// The allocation that was not registered, or the region that still has it. `None` if the device keeps the memory.
    pub memory: Option<T>,
}

/// Implements what errors have that return the memory of their call.
macro_rules! with_memory {
    ($($error:ident),*) => {$(
        impl<T> $error<T> {
            /// Returns the ND status.
            pub fn status(&self) -> Status {
                self.kind.status()
            }

            /// Returns the outcome, which has the values of the other interfaces.
            pub fn outcome(&self) -> Outcome {
                self.kind.outcome()
            }
        }

        impl<T> fmt::Debug for $error<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($error)).field("kind", &self.kind).finish_non_exhaustive()
            }
        }

        impl<T> From<$error<T>> for io::Error {
            fn from(error: $error<T>) -> Self {
                // Without the memory: it need not be `Send`.
                error.kind.into()
            }
        }
    )*};
}

with_memory!(PostError, RegisterFromError);

status_tables! {
    PostErrorKind {
        Self::Device(code) => Status::from_io(&io::Error::from_raw_os_error(*code)),
        Self::ConnectionInvalid | Self::ConnectionDropped | Self::ConnectionLost { .. } =>
            Status::CONNECTION_INVALID,
        Self::QueueFull { .. } | Self::ReadsFull { .. } => Status::NO_MORE_ENTRIES,
        Self::InsufficientResources(_) => Status::INSUFFICIENT_RESOURCES,
        Self::TooLong { .. } | Self::InlineTooLong { .. } => Status::BUFFER_OVERFLOW,
        Self::TooManyEntries { .. } => Status::DATA_OVERRUN,
        Self::AccessViolation { .. }
        | Self::NotBound
        | Self::ForeignMemory
        | Self::BeyondRemote { .. } => Status::ACCESS_VIOLATION,
        Self::NoReads => Status::REMOTE_ERROR,
        Self::InvalidOptions { argument, .. } => Status::invalid_parameter(*argument),
        Self::NotAtomic { .. } | Self::NotHeld { .. } => Status::INVALID_PARAMETER,
        Self::NotSupported(_) => Status::NOT_SUPPORTED,
        Self::DeviceRemoved => Status::DEVICE_REMOVED,
    }
    NotifyError {
        Self::Lost => Status::INTERNAL_ERROR,
        Self::Overrun { .. } => Status::BUFFER_OVERFLOW,
        Self::DeviceRemoved => Status::DEVICE_REMOVED,
    }
    ResizeError {
        Self::TooSmall { .. } => Status::BUFFER_OVERFLOW,
        Self::OutOfRange { .. } => Status::INVALID_PARAMETER,
        Self::Ended(error) => error.status(),
        Self::Os { source, .. } => Status::from_io(source),
    }
    WordError {
        Self::TooShort(error) => error.status(),
        Self::Unaligned { .. } => Status::INVALID_PARAMETER,
    }
    RegisterError {
        Self::Empty => Status::INVALID_BUFFER_SIZE,
        Self::TooLarge { .. } => Status::INVALID_PARAMETER,
        Self::OutOfMemory { .. } | Self::InsufficientResources(_) | Self::MemoryLockLimit { .. } =>
            Status::INSUFFICIENT_RESOURCES,
        Self::Os { source, .. } => Status::from_io(source),
        Self::NotSupported(_) => Status::NOT_SUPPORTED,
        Self::Busy => Status::DEVICE_BUSY,
        Self::DeviceRemoved => Status::DEVICE_REMOVED,
    }
}
