//! Why a call fails, and what a caller of gRPC is told.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use http::HeaderMap;

use crate::grpc;
use crate::link::Unsent;
use crate::wire::Code;

/// The error of a service or a body of the program.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// The reason why a call has failed without an answer, or within one.
///
/// A call of gRPC does not see it: its caller gets an answer with the [status](Self::grpc_status) instead.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no connection, and none could be made.
    #[error("cannot connect")]
    Connect(#[source] Arc<io::Error>),
    /// The connection was lost. The call may have been executed.
    #[error("the connection was lost")]
    Lost(#[source] Arc<io::Error>),
    /// The peer does not speak this protocol, or breaks its rules.
    #[error("the peer breaks the protocol: {0}")]
    Protocol(&'static str),
    /// The peer has ended the call.
    #[error("the peer has ended the call: {0:?}")]
    Reset(Code),
    /// The time of the call has passed.
    #[error("the deadline has passed")]
    Deadline,
    /// The head of a request or its trailers are longer than the peer takes.
    #[error("the head is longer than the peer takes")]
    TooLarge,
    /// The body of the request has failed.
    #[error("the body of the request has failed")]
    Body(#[source] Arc<BoxError>),
}

impl Error {
    /// Returns the status that gRPC has for it (`google.rpc.Code`): with the feature `tonic`, that of a `tonic::Status` with which a
    /// body has failed.
    #[must_use]
    pub fn grpc_status(&self) -> u32 {
        match self {
            Self::Connect(_) | Self::Lost(_) | Self::Reset(Code::Refused) => 14,
            Self::Deadline | Self::Reset(Code::Deadline) => 4,
            Self::TooLarge | Self::Reset(Code::TooLarge) => 8,
            Self::Body(error) => grpc::own_status(&***error).as_ref().and_then(grpc::status_of).unwrap_or(1),
            Self::Reset(Code::Cancel) => 1,
            Self::Protocol(_) | Self::Reset(_) => 13,
        }
    }

    /// Returns the fields that tell a caller of gRPC of it.
    pub(crate) fn grpc_fields(&self) -> HeaderMap {
        grpc::own_status(self).unwrap_or_else(|| grpc::status(self.grpc_status(), &self.line()))
    }

    /// Returns the name of its class, for labels and spans.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Lost(_) => "lost",
            Self::Protocol(_) => "protocol",
            // No reason of a call without an answer.
            Self::Reset(Code::None) => Code::Internal.name(),
            Self::Reset(code) => code.name(),
            Self::Deadline => "deadline",
            Self::TooLarge => "too_large",
            Self::Body(_) => "body",
        }
    }

    /// Returns the error and its sources in one line.
    pub(crate) fn line(&self) -> String {
        let mut line = self.to_string();
        let mut source = self.source();
        while let Some(error) = source {
            line = format!("{line}: {error}");
            source = error.source();
        }
        line
    }
}

impl From<Unsent> for Error {
    fn from(unsent: Unsent) -> Self {
        match unsent {
            Unsent::Gone(error) => error,
            Unsent::Body(error) => Self::Body(Arc::new(error)),
            Unsent::TooLarge => Self::TooLarge,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::other(error)
    }
}
