//! The errors of byte and message streams.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use super::{AcceptError, BindError, ConnectError, OpenError, PostErrorKind, Reason, RegisterError};
use crate::status::Status;
use crate::types::DisconnectReason;

/// Why a stream, or a listener for streams, could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The name could not be resolved.
    #[error("the name could not be resolved")]
    Resolve(#[source] io::Error),
    /// The name has no address.
    #[error("the name has no address")]
    NoAddress,
    /// A URI does not say where to connect to.
    #[error("{0}")]
    Destination(&'static str),
    /// Every address of the name was tried, and none answered.
    #[error("no address of the name answered: {}", listed(.0))]
    Attempts(Vec<(SocketAddr, StreamError)>),
    /// The adapter could not be opened, or gave no queue pair.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The buffers could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The first receives could not be posted.
    #[error(transparent)]
    Post(#[from] PostErrorKind),
    /// The local address is not to be had.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The peer could not be reached, or refused.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The peer's request could not be answered.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// The peer does not speak the protocol of the stream.
    #[error("the peer does not speak the protocol of the stream")]
    Protocol(#[from] ProtocolError),
    /// A setting is out of range.
    #[error("out of range: {0}")]
    OutOfRange(&'static str),
}

/// The attempts of [`StreamError::Attempts`], one after the other.
fn listed(attempts: &[(SocketAddr, StreamError)]) -> String {
    let each = attempts.iter().map(|(address, error)| format!("{address}: {error}"));
    each.collect::<Vec<_>>().join("; ")
}

impl StreamError {
    /// The ND status; of several attempts, that of the last.
    pub fn status(&self) -> Status {
        match self {
            Self::Resolve(error) => Status::from_io(error),
            Self::NoAddress | Self::Destination(_) => Status::INVALID_ADDRESS,
            Self::Attempts(attempts) => {
                attempts.last().map_or(Status::INVALID_ADDRESS, |(_, error)| error.status())
            }
            Self::Open(error) => error.status(),
            Self::Register(error) => error.status(),
            Self::Post(error) => error.status(),
            Self::Bind(error) => error.status(),
            Self::Connect(error) => error.status(),
            Self::Accept(error) => error.status(),
            Self::Protocol(_) => Status::DATA_ERROR,
            Self::OutOfRange(_) => Status::INVALID_PARAMETER,
        }
    }
}

/// What is wrong with what the peer said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// Its private data is too short, or not that of the protocol.
    #[error("private data of another protocol")]
    Foreign,
    /// A version that is not known.
    #[error("version {0} of the protocol")]
    Version(u8),
    /// A value that cannot be meant.
    #[error("{what} of {value}")]
    Value {
        /// Which.
        what: &'static str,
        /// What it is.
        value: u64,
    },
    /// A message of a type that is not known, or at a moment when there is none.
    #[error("message {0:#010x}")]
    Message(u32),
    /// A message that is longer or shorter than those of the protocol.
    #[error("a message of {0} bytes")]
    Length(usize),
    /// More than it was granted.
    #[error("more {0} than granted")]
    Overrun(&'static str),
}

/// How a stream broke: what reads and writes fail with, inside an [`io::Error`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamBroken {
    /// The connection is over, though the peer had not closed the stream.
    Connection(DisconnectReason),
    /// The peer broke the protocol.
    Protocol(ProtocolError),
    /// A request could not be posted.
    Post(PostErrorKind),
}

impl fmt::Display for StreamBroken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(DisconnectReason::Peer) => {
                f.write_str("the peer disconnected within the stream")
            }
            Self::Connection(DisconnectReason::Lost { status, reason }) => {
                write!(f, "the connection was lost: {reason} ({status})")
            }
            Self::Connection(DisconnectReason::DeviceRemoved) => f.write_str("the adapter was removed"),
            Self::Connection(_) => f.write_str("the connection was disconnected here"),
            Self::Protocol(error) => write!(f, "the peer broke the protocol of the stream: {error}"),
            Self::Post(error) => write!(f, "a request could not be posted: {error}"),
        }
    }
}

impl std::error::Error for StreamBroken {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connection(_) => None,
            Self::Protocol(error) => Some(error),
            Self::Post(error) => Some(error),
        }
    }
}

impl StreamBroken {
    /// The ND status.
    pub fn status(&self) -> Status {
        match self {
            Self::Connection(DisconnectReason::Lost { reason: Reason::PathTimeout, .. }) => {
                Status::IO_TIMEOUT
            }
            Self::Connection(DisconnectReason::Peer | DisconnectReason::Lost { .. }) | Self::Post(_) => {
                Status::CONNECTION_DISCONNECTED
            }
            Self::Connection(DisconnectReason::DeviceRemoved) => Status::DEVICE_REMOVED,
            Self::Connection(_) => Status::CONNECTION_INVALID,
            Self::Protocol(_) => Status::DATA_ERROR,
        }
    }
}
