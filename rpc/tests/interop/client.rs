//! The client: typed calls over any transport.

use std::error::Error;
use std::future::poll_fn;

use crate::messages::*;
use crate::service::*;
use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use http::uri::PathAndQuery;
use http_body_util::{BodyExt, Full};
use prost::Message;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::codec::CompressionEncoding::Gzip;
use tonic::{IntoRequest, IntoStreamingRequest, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

pub(crate) const UNIMPLEMENTED_METHOD: &str = "/grpc.testing.TestService/UnimplementedCall";
pub(crate) const UNIMPLEMENTED_SERVICE: &str = "/grpc.testing.UnimplementedService/UnimplementedCall";

/// The head of a stream of responses, or its status.
pub(crate) type Responses = Result<Response<Streaming<StreamingOutputCallResponse>>, Status>;

/// A name for the bounds of a service that carries calls.
pub(crate) trait Transport:
    GrpcService<
        Body,
        ResponseBody: http_body::Body<Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    > + Clone
{
}

impl<T> Transport for T
where
    T: GrpcService<Body> + Clone,
    T::ResponseBody: Send + 'static,
    <T::ResponseBody as http_body::Body>::Error: Into<Box<dyn Error + Send + Sync>>,
{
}

/// A response as it came, before tonic decodes it.
pub(crate) struct RawResponse {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: HeaderMap,
}

/// A client of `grpc.testing.TestService`.
#[derive(Clone)]
pub(crate) struct TestClient<T> {
    transport: T,
    grpc: Grpc<T>,
}

impl<T: Transport> TestClient<T> {
    /// Makes a client that sends its calls over `transport`.
    pub(crate) fn new(transport: T) -> Self {
        Self { transport: transport.clone(), grpc: Grpc::new(transport) }
    }

    /// Compresses each request.
    pub(crate) fn send_compressed(self) -> Self {
        Self { grpc: self.grpc.send_compressed(Gzip), ..self }
    }

    /// Offers the server to compress its responses.
    pub(crate) fn accept_compressed(self) -> Self {
        Self { grpc: self.grpc.accept_compressed(Gzip), ..self }
    }

    /// Refuses responses above `limit` bytes.
    pub(crate) fn max_decoding_message_size(self, limit: usize) -> Self {
        Self { grpc: self.grpc.max_decoding_message_size(limit), ..self }
    }

    /// Calls `EmptyCall`.
    pub(crate) async fn empty_call(&self) -> Result<Response<Empty>, Status> {
        self.unary(EMPTY_CALL, Request::new(Empty {})).await
    }

    /// Calls `UnaryCall`.
    pub(crate) async fn unary_call(
        &self,
        request: impl IntoRequest<SimpleRequest>,
    ) -> Result<Response<SimpleResponse>, Status> {
        self.unary(UNARY_CALL, request.into_request()).await
    }

    /// Calls the unary method at `path`.
    pub(crate) async fn unary<M, R>(
        &self,
        path: &'static str,
        request: Request<M>,
    ) -> Result<Response<R>, Status>
    where
        M: Message + 'static,
        R: Message + Default + 'static,
    {
        self.ready().await?.unary(request, PathAndQuery::from_static(path), ProstCodec::default()).await
    }

    /// Calls `StreamingInputCall`.
    pub(crate) async fn streaming_input_call(
        &self,
        requests: impl IntoStreamingRequest<Message = StreamingInputCallRequest>,
    ) -> Result<Response<StreamingInputCallResponse>, Status> {
        let path = PathAndQuery::from_static(STREAMING_INPUT_CALL);
        let requests = requests.into_streaming_request();
        self.ready().await?.client_streaming(requests, path, ProstCodec::default()).await
    }

    /// Calls `StreamingOutputCall`.
    pub(crate) async fn streaming_output_call(
        &self,
        request: impl IntoRequest<StreamingOutputCallRequest>,
    ) -> Responses {
        let path = PathAndQuery::from_static(STREAMING_OUTPUT_CALL);
        self.ready().await?.server_streaming(request.into_request(), path, ProstCodec::default()).await
    }

    /// Calls `FullDuplexCall`.
    pub(crate) async fn full_duplex_call(
        &self,
        requests: impl IntoStreamingRequest<Message = StreamingOutputCallRequest>,
    ) -> Responses {
        self.duplex(FULL_DUPLEX_CALL, requests).await
    }

    /// Calls the method at `path`, whose streams are those of `FullDuplexCall`.
    pub(crate) async fn duplex(
        &self,
        path: &'static str,
        requests: impl IntoStreamingRequest<Message = StreamingOutputCallRequest>,
    ) -> Responses {
        let requests = requests.into_streaming_request();
        self.ready().await?.streaming(requests, PathAndQuery::from_static(path), ProstCodec::default()).await
    }

    /// Calls `UnaryCall` by hand, and accepts a compressed response.
    ///
    /// tonic does not show whether a message was compressed, nor which metadata of a unary call came in the
    /// trailers.
    pub(crate) async fn raw_unary_call(&self, message: &SimpleRequest, headers: HeaderMap) -> RawResponse {
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(message.encoded_len().try_into().expect("a short message"));
        message.encode(&mut frame).expect("room for the message");
        let mut request = http::Request::post(UNARY_CALL)
            .version(http::Version::HTTP_2)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-accept-encoding", "gzip")
            .body(Body::new(Full::new(frame.freeze())))
            .expect("a valid request");
        request.headers_mut().extend(headers);
        let mut transport = self.transport.clone();
        poll_fn(|context| transport.poll_ready(context))
            .await
            .map_err(Into::into)
            .expect("a ready transport");
        let response = transport.call(request).await.map_err(Into::into).expect("a response");
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(Into::into).expect("a body");
        let trailers = body.trailers().cloned().expect("trailers");
        RawResponse { headers: head.headers, body: body.to_bytes(), trailers }
    }

    /// Returns a handle of its own for each call, so that calls run at once.
    async fn ready(&self) -> Result<Grpc<T>, Status> {
        let mut grpc = self.grpc.clone();
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        Ok(grpc)
    }
}
