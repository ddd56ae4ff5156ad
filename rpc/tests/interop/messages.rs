//! The messages of `grpc/testing/empty.proto` and `messages.proto`, with the fields that the cases use.

use bytes::Bytes;

/// A message of zero bytes.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct Empty {}

/// A boolean that can be absent.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct BoolValue {
    #[prost(bool, tag = "1")]
    pub(crate) value: bool,
}

/// The kind of data in a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum PayloadType {
    Compressable = 0,
}

/// Bytes that make a message large.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Payload {
    #[prost(enumeration = "PayloadType", tag = "1")]
    pub(crate) r#type: i32,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) body: Bytes,
}

impl Payload {
    /// Makes a payload of `size` zeroes.
    pub(crate) fn zeroes(size: usize) -> Self {
        Self { r#type: PayloadType::Compressable.into(), body: vec![0; size].into() }
    }
}

/// The status that the server is to end the call with.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct EchoStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

/// The request of `UnaryCall`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct SimpleRequest {
    #[prost(int32, tag = "2")]
    pub(crate) response_size: i32,
    #[prost(message, optional, tag = "3")]
    pub(crate) payload: Option<Payload>,
    #[prost(message, optional, tag = "6")]
    pub(crate) response_compressed: Option<BoolValue>,
    #[prost(message, optional, tag = "7")]
    pub(crate) response_status: Option<EchoStatus>,
    #[prost(message, optional, tag = "8")]
    pub(crate) expect_compressed: Option<BoolValue>,
}

/// The response of `UnaryCall`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct SimpleResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) payload: Option<Payload>,
}

/// A request of `StreamingInputCall`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct StreamingInputCallRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) payload: Option<Payload>,
}

/// The response of `StreamingInputCall`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct StreamingInputCallResponse {
    #[prost(int32, tag = "1")]
    pub(crate) aggregated_payload_size: i32,
}

/// What one response of a stream is to be like.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct ResponseParameters {
    #[prost(int32, tag = "1")]
    pub(crate) size: i32,
}

/// A request of `StreamingOutputCall`, `FullDuplexCall` and `HalfDuplexCall`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct StreamingOutputCallRequest {
    #[prost(message, repeated, tag = "2")]
    pub(crate) response_parameters: Vec<ResponseParameters>,
    #[prost(message, optional, tag = "3")]
    pub(crate) payload: Option<Payload>,
    #[prost(message, optional, tag = "7")]
    pub(crate) response_status: Option<EchoStatus>,
}

/// A response of `StreamingOutputCall`, `FullDuplexCall` and `HalfDuplexCall`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct StreamingOutputCallResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) payload: Option<Payload>,
}
