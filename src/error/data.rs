//! The errors of the data path: posting, completing, waiting, registering.

use std::fmt;
use std::io;

use crate::status::Status;

/// Why a work request could not be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// The queue pair is not connected, or no longer (`CONNECTION_INVALID`).
    #[error("the queue pair is not connected")]
    ConnectionInvalid,
    /// The queue is full (`NO_MORE_ENTRIES`).
    #[error("the queue is full")]
    QueueFull,
    /// More bytes than the adapter transfers at once (`BUFFER_OVERFLOW`).
    #[error("the request is longer than the adapter allows")]
    TooLong,
    /// More scatter-gather entries than the queue pair has (`DATA_OVERRUN`).
    #[error("too many scatter-gather entries")]
    TooManyEntries,
    /// The memory lacks the right, or belongs to another adapter (`ACCESS_VIOLATION`).
    #[error("the memory does not allow this")]
    AccessViolation,
    /// Reads were negotiated away: the outbound read limit is 0 (`REMOTE_ERROR`).
    #[error("the outbound read limit is 0")]
    NoReads,
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
    /// An option that this request does not have, or two that do not go together (`INVALID_PARAMETER_n`, with the number
    /// of the flags among the arguments of the ND method).
    #[error("the request does not take these options")]
    InvalidOptions {
        /// The argument's number.
        argument: u8,
    },
    /// The memory of an atomic is not eight bytes at an address that is a multiple of eight (`INVALID_PARAMETER`).
    #[error("an atomic needs eight bytes, aligned to eight")]
    NotAtomic,
    /// The adapter cannot do it (`NOT_SUPPORTED`).
    #[error("the adapter does not support {0}")]
    NotSupported(&'static str),
    /// The device did not take it; the error number says why.
    #[error("the device refuses the request: {}", io::Error::from_raw_os_error(*.0))]
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

/// A work request that was not posted: nothing happened, and the buffer is here.
pub struct PostError<B> {
    /// Why.
    pub kind: PostErrorKind,
    /// What was to be posted, untouched.
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
        // Without the buffer, which need not be `Send`.
        error.kind.into()
    }
}

/// A work request that was posted and failed. The connection is broken, except after `Canceled` by a flush.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request completed with {status}")]
pub struct CompletionError {
    /// The status of the completion, one of SEMANTICS: `CANCELED`, `BUFFER_OVERFLOW`, `ACCESS_VIOLATION`, ...
    pub status: Status,
}

impl CompletionError {
    /// The ND status.
    pub fn status(&self) -> Status {
        self.status
    }
}

/// Waiting for a completion queue or a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotifyError {
    /// More results came than the completion queue has room for: some are lost to it, and the connections of its queue
    /// pairs have ended (`BUFFER_OVERFLOW`).
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

/// Changing the size of a completion queue or a shared receive queue. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// It holds more than that (`BUFFER_OVERFLOW`).
    #[error("there are {held} in it")]
    TooSmall {
        /// How many.
        held: usize,
    },
    /// No size, or more than the adapter allows (`INVALID_PARAMETER`).
    #[error("the size is not between 1 and {maximum}")]
    OutOfRange {
        /// What the adapter allows.
        maximum: usize,
    },
    /// It has ended: overrun (`BUFFER_OVERFLOW`), or the adapter was removed (`DEVICE_REMOVED`).
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

/// Registering memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// A region of no bytes (`INVALID_BUFFER_SIZE`).
    #[error("a region needs at least one byte")]
    Empty,
    /// More than the adapter registers at once (`INVALID_PARAMETER`).
    #[error("{length} bytes, the limit is {maximum}")]
    TooLarge {
        /// What was asked.
        length: usize,
        /// What the adapter allows.
        maximum: usize,
    },
    /// Out of memory or keys (`INSUFFICIENT_RESOURCES`).
    #[error("out of memory or keys")]
    InsufficientResources,
    /// The process may not lock that much memory for a device: `ulimit -l`, `RLIMIT_MEMLOCK`, or `LimitMEMLOCK=` of a
    /// service (`INSUFFICIENT_RESOURCES`).
    #[error("{length} bytes cannot be locked in memory, the limit is {limit} bytes in all (ulimit -l)")]
    MemoryLockLimit {
        /// What was asked.
        length: usize,
        /// What the process may lock in all, in bytes (getrlimit(2)).
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
    /// The adapter cannot do it (`NOT_SUPPORTED`).
    #[error("the adapter does not support {0}")]
    NotSupported(&'static str),
    /// Something still uses it, or it is still registered (`DEVICE_BUSY`).
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
