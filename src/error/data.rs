//! Errors of the data path: posting, completing, waiting, registering.

use std::fmt;
use std::io;

use crate::status::Status;

/// The reason why a work request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// The queue pair is not connected (`CONNECTION_INVALID`).
    #[error("the queue pair is not connected")]
    ConnectionInvalid,
    /// The queue is full (`NO_MORE_ENTRIES`).
    #[error("the queue is full")]
    QueueFull,
    /// The request is longer than the adapter allows, or than the inline data of the queue pair (`BUFFER_OVERFLOW`).
    #[error("the request exceeds the maximum length of the adapter or of inline data")]
    TooLong,
    /// The request has more scatter-gather entries than the queue pair allows (`DATA_OVERRUN`).
    #[error("the request has more scatter-gather entries than the queue pair allows")]
    TooManyEntries,
    /// The memory lacks an access right, or belongs to another adapter (`ACCESS_VIOLATION`).
    #[error("the memory lacks an access right or belongs to another adapter")]
    AccessViolation,
    /// The negotiated outbound read limit is 0 (`REMOTE_ERROR`).
    #[error("the outbound read limit is 0")]
    NoReads,
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
    /// The request does not accept an option, or two options exclude each other (`INVALID_PARAMETER_n`).
    #[error("the request does not accept this combination of options")]
    InvalidOptions {
        /// The number of the flags among the arguments of the ND method, 1-based.
        argument: u8,
    },
    /// The memory of an atomic is not eight bytes at an address that is a multiple of eight (`INVALID_PARAMETER`).
    #[error("an atomic requires 8 bytes at an address that is a multiple of 8")]
    NotAtomic,
    /// The adapter or the queue pair does not support the request (`NOT_SUPPORTED`).
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// The device rejected the request with this error number.
    #[error("the device rejected the request: {}", io::Error::from_raw_os_error(*.0))]
    Device(i32),
}

impl PostErrorKind {
    /// The ND status.
    pub fn status(&self) -> Status {
        match self {
            Self::Device(code) => Status::from_io(&io::Error::from_raw_os_error(*code)),
            Self::ConnectionInvalid => Status::CONNECTION_INVALID,
            Self::QueueFull => Status::NO_MORE_ENTRIES,
            Self::TooLong => Status::BUFFER_OVERFLOW,
            Self::TooManyEntries => Status::DATA_OVERRUN,
            Self::AccessViolation => Status::ACCESS_VIOLATION,
            Self::NoReads => Status::REMOTE_ERROR,
            Self::InvalidOptions { argument } => Status::invalid_parameter(*argument),
            Self::NotAtomic => Status::INVALID_PARAMETER,
            Self::NotSupported(_) => Status::NOT_SUPPORTED,
            Self::DeviceRemoved => Status::DEVICE_REMOVED,
        }
    }
}

/// The error of a work request that was not posted, with its buffer.
pub struct PostError<B> {
    /// The reason.
    pub kind: PostErrorKind,
    /// The buffer of the request, unchanged.
    pub buffer: B,
}

impl<B> PostError<B> {
    /// The ND status.
    pub fn status(&self) -> Status {
        self.kind.status()
    }
}

impl<B> fmt::Debug for PostError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostError").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl<B> fmt::Display for PostError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl<B> std::error::Error for PostError<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        None
    }
}

impl<B> From<PostError<B>> for io::Error {
    fn from(error: PostError<B>) -> Self {
        // Without the buffer: it need not be `Send`.
        error.kind.into()
    }
}

/// The error of a work request that was posted and failed.
///
/// The connection has ended, unless the request completed with `CANCELED` because the queue pair was flushed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request completed with {status}")]
pub struct CompletionError {
    /// The status of the completion, for example `CANCELED`, `BUFFER_OVERFLOW` or `ACCESS_VIOLATION`.
    pub status: Status,
}

impl CompletionError {
    /// The ND status.
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
    #[error("the completion queue overran")]
    Overrun,
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
}

impl NotifyError {
    /// The ND status.
    pub fn status(&self) -> Status {
        match self {
            Self::Overrun => Status::BUFFER_OVERFLOW,
            Self::DeviceRemoved => Status::DEVICE_REMOVED,
        }
    }
}

/// The error of resizing a completion queue or a shared receive queue. The queue is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// The queue holds more entries than the new size (`BUFFER_OVERFLOW`).
    #[error("cannot shrink: the queue holds {held} entries")]
    TooSmall {
        /// The number of entries in the queue.
        held: usize,
    },
    /// The size is 0 or larger than the adapter allows (`INVALID_PARAMETER`).
    #[error("the size is not between 1 and {maximum}")]
    OutOfRange {
        /// The largest size that is allowed.
        maximum: usize,
    },
    /// The queue overran (`BUFFER_OVERFLOW`), or the adapter was removed (`DEVICE_REMOVED`).
    #[error(transparent)]
    Ended(#[from] NotifyError),
    /// The operating system failed.
    #[error("{call} failed")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// Its error.
        #[source]
        source: io::Error,
    },
}

impl ResizeError {
    /// The ND status.
    pub fn status(&self) -> Status {
        match self {
            Self::TooSmall { .. } => Status::BUFFER_OVERFLOW,
            Self::OutOfRange { .. } => Status::INVALID_PARAMETER,
            Self::Ended(error) => error.status(),
            Self::Os { source, .. } => Status::from_io(source),
        }
    }
}

/// The error of allocating, registering or deregistering memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The length is 0 (`INVALID_BUFFER_SIZE`).
    #[error("the length is 0")]
    Empty,
    /// The length exceeds the adapter's maximum (`INVALID_PARAMETER`).
    #[error("length {length} exceeds the adapter's maximum of {maximum}")]
    TooLarge {
        /// The requested length.
        length: usize,
        /// The maximum of the adapter.
        maximum: usize,
    },
    /// Out of memory or keys (`INSUFFICIENT_RESOURCES`).
    #[error("out of memory or keys")]
    InsufficientResources,
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
    #[error("{call} failed")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// Its error.
        #[source]
        source: io::Error,
    },
    /// The adapter does not support this kind of memory (`NOT_SUPPORTED`).
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// The region is in use or still registered (`DEVICE_BUSY`).
    #[error("the region is in use")]
    Busy,
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
}

impl RegisterError {
    /// The ND status.
    pub fn status(&self) -> Status {
        match self {
            Self::Empty => Status::INVALID_BUFFER_SIZE,
            Self::TooLarge { .. } => Status::INVALID_PARAMETER,
            Self::InsufficientResources | Self::MemoryLockLimit { .. } => Status::INSUFFICIENT_RESOURCES,
            Self::Os { source, .. } => Status::from_io(source),
            Self::NotSupported(_) => Status::NOT_SUPPORTED,
            Self::Busy => Status::DEVICE_BUSY,
            Self::DeviceRemoved => Status::DEVICE_REMOVED,
        }
    }
}
