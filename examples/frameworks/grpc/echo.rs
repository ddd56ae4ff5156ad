//! A small gRPC service with its server and its client, written by hand as `tonic-prost-build` would generate it from
//! this file, so that the example does not need `protoc`. An existing service generates them from its own `.proto`.
//!
//! ```proto
//! package echo;
//! message Note { bytes text = 1; }
//! message Wish { bytes text = 1; uint32 times = 2; }
//! message Total { uint64 notes = 1; uint64 bytes = 2; }
//! service Echo {
//!   rpc Say(Note) returns (Note);
//!   rpc Count(stream Note) returns (Total);
//!   rpc Repeat(Wish) returns (stream Note);
//!   rpc Chat(stream Note) returns (stream Note);
//! }
//! ```

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{Body as HttpBody, BoxFuture, BoxStream, Service, StdError, http};
use tonic::transport::Channel;
use tonic::{IntoRequest, IntoStreamingRequest, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// A text, of any length.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Note {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) text: Bytes,
}

impl Note {
    pub(crate) fn new(text: impl Into<Bytes>) -> Self {
        Self { text: text.into() }
    }
}

/// Which note is wanted, and how often.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Wish {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) text: Bytes,
    #[prost(uint32, tag = "2")]
    pub(crate) times: u32,
}

/// How many notes came, and how long they were together.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Total {
    #[prost(uint64, tag = "1")]
    pub(crate) notes: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) bytes: u64,
}

const SAY: &str = "/echo.Echo/Say";
const COUNT: &str = "/echo.Echo/Count";
const REPEAT: &str = "/echo.Echo/Repeat";
const CHAT: &str = "/echo.Echo/Chat";

/// The outcome of a call.
pub(crate) type Answer<T> = Result<Response<T>, Status>;

/// The methods of a server: one for each kind of call.
pub(crate) trait Echo: Send + Sync + 'static {
    /// Unary: says what it is told.
    fn say(&self, request: Request<Note>) -> impl Future<Output = Answer<Note>> + Send;

    /// Client streaming: counts what it is told.
    fn count(&self, request: Request<Streaming<Note>>) -> impl Future<Output = Answer<Total>> + Send;

    /// Server streaming: says something as often as it is told.
    fn repeat(&self, request: Request<Wish>) -> impl Future<Output = Answer<BoxStream<Note>>> + Send;

    /// Bidirectional streaming: says each note as soon as it is told.
    fn chat(&self, request: Request<Streaming<Note>>)
    -> impl Future<Output = Answer<BoxStream<Note>>> + Send;
}

/// An implementation as a service that tonic's router takes.
#[derive(Debug)]
pub(crate) struct EchoServer<T> {
    inner: Arc<T>,
    limit: Option<usize>,
}

impl<T> Clone for EchoServer<T> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), limit: self.limit }
    }
}

impl<T> EchoServer<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self { inner: Arc::new(inner), limit: None }
    }

    /// How long a message may be that it receives, instead of tonic's 4 MiB.
    pub(crate) fn max_decoding_message_size(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The object that reads and writes the messages of one call.
    fn grpc<Q, A>(&self) -> tonic::server::Grpc<ProstCodec<A, Q>>
    where
        Q: prost::Message + Default + 'static,
        A: prost::Message + 'static,
    {
        tonic::server::Grpc::new(ProstCodec::default()).apply_max_message_size_config(self.limit, None)
    }
}

impl<T> tonic::server::NamedService for EchoServer<T> {
    const NAME: &'static str = "echo.Echo";
}

impl<T: Echo> Service<http::Request<Body>> for EchoServer<T> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        // The call outlives this borrow.
        let (this, inner) = (self.clone(), Arc::clone(&self.inner));
        Box::pin(async move {
            Ok(match request.uri().path() {
                SAY => {
                    let method = service_fn(|request| inner.say(request));
                    this.grpc().unary(method, request).await
                }
                COUNT => {
                    let method = service_fn(|request| inner.count(request));
                    this.grpc().client_streaming(method, request).await
                }
                REPEAT => {
                    let method = service_fn(|request| inner.repeat(request));
                    this.grpc().server_streaming(method, request).await
                }
                CHAT => {
                    let method = service_fn(|request| inner.chat(request));
                    this.grpc().streaming(method, request).await
                }
                other => Status::unimplemented(other).into_http(),
            })
        })
    }
}

/// The calls, over a channel.
#[derive(Clone, Debug)]
pub(crate) struct EchoClient<T = Channel> {
    inner: tonic::client::Grpc<T>,
}

impl<T> EchoClient<T>
where
    T: GrpcService<Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
{
    pub(crate) fn new(channel: T) -> Self {
        Self { inner: tonic::client::Grpc::new(channel) }
    }

    /// How long a message may be that it receives, instead of tonic's 4 MiB.
    pub(crate) fn max_decoding_message_size(mut self, limit: usize) -> Self {
        self.inner = self.inner.max_decoding_message_size(limit);
        self
    }

    /// Waits until the channel takes a call.
    async fn ready(&mut self) -> Result<(), Status> {
        self.inner
            .ready()
            .await
            .map_err(|error| Status::unknown(format!("the service is not ready: {}", error.into())))
    }

    /// See [`Echo::say`].
    pub(crate) async fn say(&mut self, request: impl IntoRequest<Note>) -> Answer<Note> {
        self.ready().await?;
        let path = PathAndQuery::from_static(SAY);
        self.inner.unary(request.into_request(), path, ProstCodec::<Note, Note>::default()).await
    }

    /// See [`Echo::count`].
    pub(crate) async fn count(&mut self, notes: impl IntoStreamingRequest<Message = Note>) -> Answer<Total> {
        self.ready().await?;
        let path = PathAndQuery::from_static(COUNT);
        self.inner
            .client_streaming(notes.into_streaming_request(), path, ProstCodec::<Note, Total>::default())
            .await
    }

    /// See [`Echo::repeat`].
    pub(crate) async fn repeat(&mut self, request: impl IntoRequest<Wish>) -> Answer<Streaming<Note>> {
        self.ready().await?;
        let path = PathAndQuery::from_static(REPEAT);
        self.inner.server_streaming(request.into_request(), path, ProstCodec::<Wish, Note>::default()).await
    }

    /// See [`Echo::chat`].
    pub(crate) async fn chat(
        &mut self,
        notes: impl IntoStreamingRequest<Message = Note>,
    ) -> Answer<Streaming<Note>> {
        self.ready().await?;
        let path = PathAndQuery::from_static(CHAT);
        self.inner.streaming(notes.into_streaming_request(), path, ProstCodec::<Note, Note>::default()).await
    }
}
