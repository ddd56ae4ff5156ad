//! The server: `grpc.testing.TestService`, and nothing of `grpc.testing.UnimplementedService`.
//!
//! Beyond the public description it follows the metadata keys below, so that a case can wait for an event of
//! the server instead of for some time.

use std::collections::HashSet;
use std::convert::Infallible;
use std::error::Error;
use std::future::pending;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::messages::*;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, Stream, StreamExt, TryFutureExt, TryStreamExt};
use http::HeaderMap;
use http_body_util::BodyExt;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codec::CompressionEncoding::Gzip;
use tonic::metadata::MetadataMap;
use tonic::server::{Grpc, NamedService};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

pub(crate) const EMPTY_CALL: &str = "/grpc.testing.TestService/EmptyCall";
pub(crate) const UNARY_CALL: &str = "/grpc.testing.TestService/UnaryCall";
pub(crate) const STREAMING_INPUT_CALL: &str = "/grpc.testing.TestService/StreamingInputCall";
pub(crate) const STREAMING_OUTPUT_CALL: &str = "/grpc.testing.TestService/StreamingOutputCall";
pub(crate) const FULL_DUPLEX_CALL: &str = "/grpc.testing.TestService/FullDuplexCall";
pub(crate) const HALF_DUPLEX_CALL: &str = "/grpc.testing.TestService/HalfDuplexCall";

/// The longest message that the server accepts.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;

/// Values that the head of the response repeats.
pub(crate) const ECHO_INITIAL: &str = "x-grpc-test-echo-initial";
pub(crate) const ECHO_INITIAL_BIN: &str = "x-test-echo-initial-bin";
/// Values that the trailers repeat.
pub(crate) const ECHO_TRAILING_BIN: &str = "x-grpc-test-echo-trailing-bin";
/// Bytes that the status of the call has as its details.
pub(crate) const ECHO_DETAILS_BIN: &str = "x-test-echo-details-bin";
/// Gives the call a name: `NAME began` and `NAME ended` are its events.
pub(crate) const CALL_NAME: &str = "x-test-call-name";
/// Answers a unary call when the event with this name has occurred.
pub(crate) const AWAIT_EVENT: &str = "x-test-await-event";
/// Never responds to a full duplex call, and never ends a server stream.
pub(crate) const SLEEP: &str = "x-test-sleep";

type Responses = BoxStream<'static, Result<StreamingOutputCallResponse, Status>>;

/// The server of both services. Clones have the same events.
#[derive(Clone, Default)]
pub(crate) struct TestService {
    events: Arc<watch::Sender<HashSet<String>>>,
}

impl NamedService for TestService {
    const NAME: &'static str = "grpc.testing.TestService";
}

impl<B> tower::Service<http::Request<B>> for TestService
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let initial = echo(request.headers(), &[ECHO_INITIAL, ECHO_INITIAL_BIN]);
        let trailing = echo(request.headers(), &[ECHO_TRAILING_BIN]);
        let response = self.clone().respond(request.map(Body::new));
        async move { Ok(with_metadata(response.await, initial, trailing)) }.boxed()
    }
}

impl TestService {
    async fn respond(self, request: http::Request<Body>) -> http::Response<Body> {
        match request.uri().path() {
            EMPTY_CALL => {
                let method = service_fn(async |_: Request<Empty>| Ok(Response::new(Empty {})));
                grpc().unary(method, request).await
            }
            UNARY_CALL => grpc().unary(service_fn(|request| self.clone().unary(request)), request).await,
            STREAMING_INPUT_CALL => {
                let method = service_fn(|request| self.clone().streaming_input(request));
                grpc().client_streaming(method, request).await
            }
            STREAMING_OUTPUT_CALL => {
                let method = service_fn(|request| self.clone().streaming_output(request));
                grpc().server_streaming(method, request).await
            }
            FULL_DUPLEX_CALL => {
                grpc().streaming(service_fn(|request| self.clone().full_duplex(request)), request).await
            }
            HALF_DUPLEX_CALL => {
                grpc().streaming(service_fn(|request| self.clone().half_duplex(request)), request).await
            }
            path => Status::unimplemented(path.to_owned()).into_http(),
        }
    }

    async fn unary(self, request: Request<SimpleRequest>) -> Result<Response<SimpleResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        if let Some(name) = text(&metadata, AWAIT_EVENT) {
            let occurred = |events: &HashSet<String>| events.contains(&name);
            self.events.subscribe().wait_for(occurred).await.expect("the service has the sender");
        }
        // tonic compresses all messages of a request or none, and does not show the flag of a message.
        let compressed = metadata.contains_key("grpc-encoding");
        if message.expect_compressed.is_some_and(|expect| expect.value != compressed) {
            return Err(Status::invalid_argument("the request is not compressed as expected"));
        }
        if let Some(status) = &message.response_status {
            return Err(self.begin(&metadata).status(status));
        }
        let payload = Some(Payload::zeroes(size(message.response_size)?));
        let mut response = Response::new(SimpleResponse { payload });
        if !message.response_compressed.is_some_and(|compress| compress.value) {
            response.disable_compression();
        }
        Ok(response)
    }

    async fn streaming_input(
        self,
        request: Request<Streaming<StreamingInputCallRequest>>,
    ) -> Result<Response<StreamingInputCallResponse>, Status> {
        let _call = self.begin(request.metadata());
        let mut requests = request.into_inner();
        let mut sum = 0;
        while let Some(message) = requests.message().await? {
            sum += message.payload.map_or(0, |payload| payload.body.len());
        }
        let aggregated_payload_size = i32::try_from(sum).map_err(|_| Status::out_of_range("the sum"))?;
        Ok(Response::new(StreamingInputCallResponse { aggregated_payload_size }))
    }

    async fn streaming_output(
        self,
        request: Request<StreamingOutputCallRequest>,
    ) -> Result<Response<Responses>, Status> {
        let call = self.begin(request.metadata());
        let sleep = request.metadata().contains_key(SLEEP);
        let responses = call.responses(request.into_inner());
        let end = stream::once(async move {
            // The call ends when the stream is dropped, not when its last response is sent.
            let _call = call;
            if sleep {
                pending::<()>().await;
            }
        });
        Ok(Response::new(responses.chain(end.flat_map(|()| stream::empty())).boxed()))
    }

    async fn full_duplex(
        self,
        request: Request<Streaming<StreamingOutputCallRequest>>,
    ) -> Result<Response<Responses>, Status> {
        let call = self.begin(request.metadata());
        if request.metadata().contains_key(SLEEP) {
            pending::<()>().await;
        }
        Ok(Response::new(
            request.into_inner().map_ok(move |message| call.responses(message)).try_flatten().boxed(),
        ))
    }

    async fn half_duplex(
        self,
        request: Request<Streaming<StreamingOutputCallRequest>>,
    ) -> Result<Response<Responses>, Status> {
        let call = self.begin(request.metadata());
        let responses = async move {
            let requests: Vec<_> = request.into_inner().try_collect().await?;
            Ok(stream::iter(requests).flat_map(move |message| call.responses(message)))
        };
        Ok(Response::new(responses.try_flatten_stream().boxed()))
    }

    fn begin(&self, metadata: &MetadataMap) -> Call {
        let details = metadata.get_bin(ECHO_DETAILS_BIN).map(|value| value.to_bytes().expect("valid base64"));
        let call = Call {
            name: text(metadata, CALL_NAME),
            details: details.unwrap_or_default(),
            events: self.events.clone(),
        };
        call.publish("began");
        call
    }
}

/// A call in progress. Its end is an event of the service, for whatever reason it ends.
struct Call {
    name: Option<String>,
    details: Bytes,
    events: Arc<watch::Sender<HashSet<String>>>,
}

impl Call {
    /// Returns the responses that one request asks for.
    fn responses(
        &self,
        request: StreamingOutputCallRequest,
    ) -> impl Stream<Item = Result<StreamingOutputCallResponse, Status>> + use<> {
        let status = request.response_status.map(|status| Err(self.status(&status)));
        let responses = request.response_parameters.into_iter().map(|parameters| {
            let payload = Some(Payload::zeroes(size(parameters.size)?));
            Ok(StreamingOutputCallResponse { payload })
        });
        stream::iter(status.into_iter().chain(responses))
    }

    fn publish(&self, event: &str) {
        if let Some(name) = &self.name {
            self.events.send_modify(|events| _ = events.insert(format!("{name} {event}")));
        }
    }

    fn status(&self, echo: &EchoStatus) -> Status {
        Status::with_details(Code::from_i32(echo.code), echo.message.clone(), self.details.clone())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.publish("ended");
    }
}

fn grpc<Decode, Encode>() -> Grpc<ProstCodec<Encode, Decode>>
where
    Decode: prost::Message + Default + 'static,
    Encode: prost::Message + 'static,
{
    Grpc::new(ProstCodec::default())
        .max_decoding_message_size(MAX_MESSAGE)
        .accept_compressed(Gzip)
        .send_compressed(Gzip)
}

fn text(metadata: &MetadataMap, key: &str) -> Option<String> {
    metadata.get(key).map(|value| value.to_str().expect("ASCII").to_owned())
}

fn size(size: i32) -> Result<usize, Status> {
    usize::try_from(size).map_err(|_| Status::invalid_argument("a negative size"))
}

fn echo(headers: &HeaderMap, names: &[&'static str]) -> HeaderMap {
    let values =
        names.iter().flat_map(|name| headers.get_all(*name).iter().map(|value| (*name, value.clone())));
    let mut echoed = HeaderMap::new();
    for (name, value) in values {
        echoed.append(name, value);
    }
    echoed
}

/// Adds metadata to both ends of a response: a handler of tonic cannot add to the trailers of a success.
fn with_metadata(
    response: http::Response<Body>,
    initial: HeaderMap,
    trailing: HeaderMap,
) -> http::Response<Body> {
    let (mut head, body) = response.into_parts();
    head.headers.extend(initial);
    if head.headers.contains_key(Status::GRPC_STATUS) {
        // The head is the trailers too, and there is no body.
        head.headers.extend(trailing);
        return http::Response::from_parts(head, body);
    }
    let body = body.map_frame(move |mut frame| {
        if let Some(trailers) = frame.trailers_mut() {
            trailers.extend(trailing.clone());
        }
        frame
    });
    http::Response::from_parts(head, Body::new(body))
}
