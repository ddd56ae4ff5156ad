//! Errors of byte streams.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{AcceptError, BindError, ConnectError, OpenError, PostErrorKind, Reason, RegisterError};
use crate::status::Status;
use crate::types::DisconnectReason;

/// The error of connecting or accepting a stream, or of creating a listener for streams.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The name cannot be resolved, or the text is no address with a port.
    #[error("{}", unresolved(.0))]
    Resolve(Arc<io::Error>),
    /// The name has no address.
    #[error("the name has no address")]
    NoAddress,
    /// The URI is not a valid destination.
    #[error("{0}")]
    Destination(String),
    /// All addresses of the name failed.
    #[error("all addresses failed: {}", listed(.0))]
    Attempts(Vec<(SocketAddr, StreamError)>),
    /// The adapter could not be opened, or could not create a queue pair.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The buffers could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The first receives could not be posted.
    #[error(transparent)]
    Post(#[from] PostErrorKind),
    /// The listener could not be bound to the local address.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The connection could not be established.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The peer's request could not be accepted.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// The peer does not implement the protocol of the stream.
    #[error("{peer} does not implement the protocol of the stream: {error}")]
    Protocol {
        /// The address of the peer.
        peer: SocketAddr,
        /// The violation of the protocol.
        error: ProtocolError,
    },
    /// A setting is out of range.
    #[error("{what} is {value}, not between {least} and {most}")]
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The smallest value that is allowed.
        least: usize,
        /// The largest value that is allowed.
        most: usize,
    },
    /// The peer did not accept, or the name was not resolved, within the limit of the connector.
    #[error("{} within {limit:?}", late(*peer))]
    TimedOut {
        /// The address of the peer, if it was resolved in time.
        peer: Option<SocketAddr>,
        /// The limit of the connector.
        limit: Duration,
    },
}

/// Formats the text of [`StreamError::Resolve`].
fn unresolved(error: &io::Error) -> String {
    // std rejects a text before it asks the resolver.
    match error.kind() {
        io::ErrorKind::InvalidInput => {
            format!("the text is no address with a port, such as \"localhost:7000\": {error}")
        }
        _ => format!("cannot resolve the name: {error}"),
    }
}

/// Formats the beginning of the text of [`StreamError::TimedOut`].
fn late(peer: Option<SocketAddr>) -> String {
    peer.map_or_else(|| "the name was not resolved".into(), |peer| format!("{peer} did not accept"))
}

/// Formats the text of [`StreamError::Attempts`].
fn listed(attempts: &[(SocketAddr, StreamError)]) -> String {
    let each = attempts.iter().map(|(address, error)| {
        let (address, text) = (address.to_string(), error.to_string());
        if text.contains(&address) { text } else { format!("{address}: {text}") }
    });
    each.collect::<Vec<_>>().join("; ")
}

impl StreamError {
    /// Returns the kind of the `io::Error` that this error becomes.
    pub fn kind(&self) -> io::ErrorKind {
        self.status().io_kind()
    }

    /// Returns whether the same call may succeed later, without a change: for a loop that tries again after a while.
    ///
    /// It may if [`ConnectError::is_retryable`] returns `true`, if the peer left while it was being connected to, if
    /// the peer did not answer in time, and if the name was not resolved; not if the text has no port. Of several
    /// addresses, one is enough.
    pub fn is_retryable(&self) -> bool {
        match self {
            // Of a text without a port no name was looked up.
            Self::Resolve(error) => error.kind() != io::ErrorKind::InvalidInput,
            Self::TimedOut { .. } | Self::Connect(ConnectError::Aborted { .. }) => true,
            Self::Connect(error) => error.is_retryable(),
            Self::Attempts(attempts) => attempts.iter().any(|(_, error)| error.is_retryable()),
            _ => false,
        }
    }
}

/// A violation of the stream protocol by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The private data is too short, or belongs to another protocol.
    #[error("the private data belongs to another protocol")]
    Foreign,
    /// The version of the protocol is not supported.
    #[error("unsupported protocol version {0}")]
    Version(u8),
    /// A field has an invalid value.
    #[error("invalid value of {what}: {value}")]
    Value {
        /// The name of the field.
        what: &'static str,
        /// The value of the field.
        value: u64,
    },
    /// The type of a message is unknown, or not valid in this state.
    #[error("unexpected message {0:#010x}")]
    Message(u32),
    /// A message has an invalid length.
    #[error("unexpected message of {0} bytes")]
    Length(usize),
    /// The peer sent more than it was granted.
    #[error("the peer sent more {0} than it was granted")]
    Overrun(&'static str),
}

/// The reason why a stream broke. Reads and writes fail with an [`io::Error`] that contains it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamBroken {
    /// The connection ended before the peer closed the stream.
    #[error("{}", ended(.0))]
    Connection(DisconnectReason),
    /// The peer violated the protocol of the stream.
    #[error("the peer violated the protocol of the stream: {0}")]
    Protocol(ProtocolError),
    /// A request could not be posted.
    #[error("a request could not be posted: {0}")]
    Post(PostErrorKind),
    /// The stream has a session, and found no other connection in time.
    #[error("no other connection within {after:?}: {}", ended(reason))]
    NoPath {
        /// The time without a connection.
        after: Duration,
        /// The end of the last connection.
        reason: DisconnectReason,
    },
    /// The stream has a session, and the peer does not: its program has ended, or has given the session up.
    #[error("the peer does not have the session any more: {}", ended(reason))]
    SessionUnknown {
        /// The end of the last connection.
        reason: DisconnectReason,
    },
}

/// Formats the text of [`StreamBroken::Connection`].
fn ended(reason: &DisconnectReason) -> String {
    match reason {
        DisconnectReason::Peer => "the peer disconnected before it closed the stream".into(),
        reason => reason.to_string(),
    }
}

status_tables! {
    /// For [`Attempts`](Self::Attempts), that is the status of the last attempt.
    StreamError {
        Self::Resolve(error) => Status::from_io(error),
        Self::NoAddress | Self::Destination(_) => Status::INVALID_ADDRESS,
        Self::Attempts(attempts) =>
            attempts.last().map_or(Status::INVALID_ADDRESS, |(_, error)| error.status()),
        Self::Open(error) => error.status(),
        Self::Register(error) => error.status(),
        Self::Post(error) => error.status(),
        Self::Bind(error) => error.status(),
        Self::Connect(error) => error.status(),
        Self::Accept(error) => error.status(),
        Self::Protocol { .. } => Status::DATA_ERROR,
        Self::OutOfRange { .. } => Status::INVALID_PARAMETER,
        Self::TimedOut { .. } => Status::IO_TIMEOUT,
    }
    StreamBroken {
        Self::Connection(DisconnectReason::Lost { reason: Reason::PathTimeout, .. }) => Status::IO_TIMEOUT,
        Self::NoPath { .. } => Status::IO_TIMEOUT,
        Self::Connection(DisconnectReason::Peer | DisconnectReason::Lost { .. })
        | Self::Post(_)
        | Self::SessionUnknown { .. } =>
            Status::CONNECTION_DISCONNECTED,
        Self::Connection(DisconnectReason::DeviceRemoved) => Status::DEVICE_REMOVED,
        Self::Connection(_) => Status::CONNECTION_INVALID,
        Self::Protocol(_) => Status::DATA_ERROR,
    }
}
