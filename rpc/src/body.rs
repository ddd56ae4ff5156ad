//! The body of an answer, at the client, or of a request, at the server.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::error::Error;
use crate::link::CallHandle;
use crate::machine::Read;
use crate::observation::Observation;
use crate::wire::Code;

/// A body that comes from the peer.
///
/// Its bytes are those of the frames, without a copy. The peer can send no more than a window ahead of what was read
/// here. Dropping it before its end cancels the call at the client; at the server the rest is discarded.
pub struct Incoming {
    content: Content,
    /// The caller is told of errors by a status in the trailers.
    is_grpc: bool,
    deadline: Option<Pin<Box<Sleep>>>,
    /// Of an answer that has not ended.
    observation: Observation,
}

enum Content {
    /// All of it has come.
    Whole(Option<Bytes>, Option<HeaderMap>),
    /// Of an answer.
    Call(CallHandle),
    /// Of a request, whose answer goes on when nobody reads it.
    Request(CallHandle),
}

impl Incoming {
    pub(crate) fn whole(bytes: Option<Bytes>, trailers: Option<HeaderMap>) -> Self {
        Self::new(Content::Whole(bytes, trailers))
    }

    pub(crate) fn of_answer(
        call: CallHandle,
        is_grpc: bool,
        deadline: Option<Pin<Box<Sleep>>>,
        observation: Observation,
    ) -> Self {
        Self { content: Content::Call(call), is_grpc, deadline, observation }
    }

    pub(crate) fn of_request(call: CallHandle) -> Self {
        Self::new(Content::Request(call))
    }

    fn new(content: Content) -> Self {
        Self { content, is_grpc: false, deadline: None, observation: Observation::default() }
    }

    /// Ends with all of it read.
    fn complete(&mut self) {
        self.observation.complete();
        self.content = Content::Whole(None, None);
    }

    /// Ends with this error, in the way that the caller understands.
    fn fail(&mut self, error: Error) -> Option<Result<Frame<Bytes>, Error>> {
        self.content = Content::Whole(None, None);
        self.observation.fail_with(&error);
        Some(if self.is_grpc { Ok(Frame::trailers(error.grpc_fields())) } else { Err(error) })
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        match &self.content {
            Content::Whole(..) => {}
            Content::Request(call) => call.stop_reading(),
            // How the server has ended the call counts, also if nobody has read it.
            Content::Call(call) if self.observation.is_open() => match call.ending() {
                None => {}
                Some(Ok(trailers)) => {
                    trailers.iter().for_each(|trailers| self.observation.trailers(trailers));
                    self.observation.complete();
                }
                Some(Err(error)) => self.observation.fail_with(&error),
            },
            Content::Call(_) => {}
        }
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        let call = match &mut this.content {
            Content::Whole(bytes, trailers) => {
                let data = bytes.take().map(Frame::data);
                return Poll::Ready(data.or_else(|| trailers.take().map(Frame::trailers)).map(Ok));
            }
            Content::Call(call) | Content::Request(call) => call,
        };
        // It ends also a body of which there is always more.
        let is_late = |deadline: &Pin<Box<Sleep>>| Instant::now() >= deadline.deadline();
        let read =
            if this.deadline.as_ref().is_some_and(is_late) { Poll::Pending } else { call.poll_read(cx) };
        if let Poll::Ready(read) = read {
            return Poll::Ready(match read {
                Ok(Read::Data(bytes, is_last)) => {
                    if is_last {
                        self.complete();
                    }
                    Some(Ok(Frame::data(bytes)))
                }
                Ok(Read::Trailers(trailers)) => {
                    self.observation.trailers(&trailers);
                    self.complete();
                    Some(Ok(Frame::trailers(trailers)))
                }
                Ok(Read::End) => {
                    self.complete();
                    None
                }
                Err(error) => self.fail(error),
            });
        }
        if let Some(deadline) = &mut self.deadline {
            ready!(deadline.as_mut().poll(cx));
            if let Content::Call(call) = &self.content {
                call.reset(Code::Deadline);
            }
            return Poll::Ready(self.fail(Error::Deadline));
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.content, Content::Whole(None, None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes, _) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Content::Call(_) | Content::Request(_) => SizeHint::default(),
        }
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("is_end", &self.is_end_stream()).finish_non_exhaustive()
    }
}
