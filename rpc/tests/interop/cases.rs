//! The cases of gRPC's `interop-test-descriptions.md`, by their names there, and some more.
//!
//! Each function is a case: it takes the transport to run over, whose other end is a [`TestService`] of
//! [`crate::service`], and panics if the case fails. Cases wait for events and set no time limits.
//!
//! [`TestService`]: crate::service::TestService

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::client::*;
use crate::messages::*;
use crate::service::*;
use bytes::Bytes;
use futures::future::{join, join_all};
use futures::{StreamExt, TryStreamExt, stream};
use http::HeaderMap;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{BinaryMetadataValue, MetadataMap, MetadataValue};
use tonic::{Code, Request, Response, Status, Streaming};

const REQUEST_SIZE: usize = 271_828;
const RESPONSE_SIZE: i32 = 314_159;
const REQUEST_SIZES: [usize; 4] = [27_182, 8, 1_828, 45_904];
const RESPONSE_SIZES: [i32; 4] = [31_415, 9, 2_653, 58_979];
const SPECIAL_MESSAGE: &str = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n";

/// Calls with an empty message each way.
pub(crate) async fn empty_unary<T: Transport>(transport: T) {
    let response = TestClient::new(transport).empty_call().await.expect("EmptyCall");
    assert_eq!(response.into_inner(), Empty {});
}

/// Calls with a large message each way.
pub(crate) async fn large_unary<T: Transport>(transport: T) {
    let response = TestClient::new(transport).unary_call(large()).await.expect("UnaryCall");
    assert_eq!(response.into_inner().payload, Some(Payload::zeroes(RESPONSE_SIZE as usize)));
}

/// Sends a compressed and an uncompressed request to a server that expects the one or the other.
pub(crate) async fn client_compressed_unary<T: Transport>(transport: T) {
    let plain = TestClient::new(transport);
    let compressing = plain.clone().send_compressed();
    let request = |value| SimpleRequest { expect_compressed: Some(BoolValue { value }), ..large() };
    expect_code(plain.unary_call(request(true)).await, Code::InvalidArgument);
    for (client, compressed) in [(compressing, true), (plain, false)] {
        let response = client.unary_call(request(compressed)).await.expect("UnaryCall");
        assert_eq!(response.into_inner().payload, Some(Payload::zeroes(RESPONSE_SIZE as usize)));
    }
}

/// Asks for a compressed and for an uncompressed response.
pub(crate) async fn server_compressed_unary<T: Transport>(transport: T) {
    let client = TestClient::new(transport).accept_compressed();
    for value in [true, false] {
        let request = SimpleRequest { response_compressed: Some(BoolValue { value }), ..large() };
        let raw = client.raw_unary_call(&request, HeaderMap::new()).await;
        assert_eq!(raw.headers["content-type"], "application/grpc");
        assert_eq!(raw.headers["grpc-encoding"], "gzip");
        assert_eq!(raw.body[0], u8::from(value), "the flag of the message");
        assert_eq!(raw.trailers["grpc-status"], "0");
        let response = client.unary_call(request).await.expect("UnaryCall");
        assert_eq!(response.into_inner().payload, Some(Payload::zeroes(RESPONSE_SIZE as usize)));
    }
}

/// Streams to the server.
pub(crate) async fn client_streaming<T: Transport>(transport: T) {
    let requests =
        REQUEST_SIZES.map(|size| StreamingInputCallRequest { payload: Some(Payload::zeroes(size)) });
    let response = TestClient::new(transport).streaming_input_call(stream::iter(requests)).await;
    assert_eq!(response.expect("StreamingInputCall").into_inner().aggregated_payload_size, 74_922);
}

/// Streams from the server.
pub(crate) async fn server_streaming<T: Transport>(transport: T) {
    let response = TestClient::new(transport).streaming_output_call(asking(&RESPONSE_SIZES)).await;
    assert_eq!(sizes(outcome(response).await.expect("StreamingOutputCall")), RESPONSE_SIZES);
}

/// Streams both ways, in turns.
pub(crate) async fn ping_pong<T: Transport>(transport: T) {
    let (requests, mut responses) = open(&TestClient::new(transport)).await;
    for (request_size, response_size) in REQUEST_SIZES.into_iter().zip(RESPONSE_SIZES) {
        let payload = Some(Payload::zeroes(request_size));
        let request = StreamingOutputCallRequest { payload, ..asking(&[response_size]) };
        requests.send(request).await.expect("the call is open");
        expect_response(&mut responses, response_size).await;
    }
    drop(requests);
    assert_eq!(responses.message().await.expect("the status OK"), None);
}

/// Streams nothing, both ways.
pub(crate) async fn empty_stream<T: Transport>(transport: T) {
    let response = TestClient::new(transport).full_duplex_call(stream::empty()).await;
    assert_eq!(outcome(response).await.expect("FullDuplexCall"), []);
}

/// Sends metadata that come back in the head and in the trailers.
pub(crate) async fn custom_metadata<T: Transport>(transport: T) {
    const INITIAL: &str = "test_initial_metadata_value";
    const TRAILING: [u8; 3] = [0xab; 3];
    let client = TestClient::new(transport);
    let add = |metadata: &mut MetadataMap| {
        metadata.insert(ECHO_INITIAL, INITIAL.parse().expect("a value"));
        metadata.insert_bin(ECHO_TRAILING_BIN, MetadataValue::from_bytes(&TRAILING));
    };

    let mut request = Request::new(large());
    add(request.metadata_mut());
    let headers = request.metadata().clone().into_headers();
    let response = client.unary_call(request).await.expect("UnaryCall");
    // A unary call of tonic has one map for both.
    assert_eq!(response.metadata().get(ECHO_INITIAL).expect("initial metadata"), INITIAL);
    assert_eq!(binary_values(response.metadata(), ECHO_TRAILING_BIN), [&TRAILING[..]]);
    let raw = client.raw_unary_call(&large(), headers).await;
    assert_eq!(raw.headers[ECHO_INITIAL], INITIAL);
    assert!(!raw.headers.contains_key(ECHO_TRAILING_BIN) && !raw.trailers.contains_key(ECHO_INITIAL));
    assert_eq!(binary_values(&MetadataMap::from_headers(raw.trailers), ECHO_TRAILING_BIN), [&TRAILING[..]]);

    let payload = Some(Payload::zeroes(REQUEST_SIZE));
    let message = StreamingOutputCallRequest { payload, ..asking(&[RESPONSE_SIZE]) };
    let mut request = Request::new(stream::iter([message]));
    add(request.metadata_mut());
    let (initial, mut responses, _) = client.full_duplex_call(request).await.expect("a head").into_parts();
    assert_eq!(initial.get(ECHO_INITIAL).expect("initial metadata"), INITIAL);
    assert!(!initial.contains_key(ECHO_TRAILING_BIN), "trailing metadata in the head");
    expect_response(&mut responses, RESPONSE_SIZE).await;
    let trailing = responses.trailers().await.expect("the status OK").expect("trailers");
    assert_eq!(binary_values(&trailing, ECHO_TRAILING_BIN), [&TRAILING[..]]);
}

/// Asks for a status with a message.
pub(crate) async fn status_code_and_message<T: Transport>(transport: T) {
    expect_status_everywhere(&TestClient::new(transport), "test status message").await;
}

/// Asks for a status whose message has characters that a header cannot have.
pub(crate) async fn special_status_message<T: Transport>(transport: T) {
    expect_status_everywhere(&TestClient::new(transport), SPECIAL_MESSAGE).await;
}

/// Calls a method that the service does not have.
pub(crate) async fn unimplemented_method<T: Transport>(transport: T) {
    let response = TestClient::new(transport).unary(UNIMPLEMENTED_METHOD, Request::new(Empty {})).await;
    expect_code::<Response<Empty>>(response, Code::Unimplemented);
}

/// Calls a service that the server does not have.
pub(crate) async fn unimplemented_service<T: Transport>(transport: T) {
    let response = TestClient::new(transport).unary(UNIMPLEMENTED_SERVICE, Request::new(Empty {})).await;
    expect_code::<Response<Empty>>(response, Code::Unimplemented);
}

/// Cancels a call that has sent metadata and no message.
pub(crate) async fn cancel_after_begin<T: Transport>(transport: T) {
    let client = TestClient::new(transport);
    let (mut request, name) = named(stream::pending());
    let handle = request.cancellation_handle();
    let cancel = async {
        event(&client, &name, "began").await;
        handle.cancel();
    };
    let (response, ()) = join(client.streaming_input_call(request), cancel).await;
    expect_code(response, Code::Cancelled);
    event(&client, &name, "ended").await;
}

/// Cancels a call that has received a response. The status is one of `codes`.
pub(crate) async fn cancel_after_first_response<T: Transport>(transport: T, codes: &[Code]) {
    let client = TestClient::new(transport);
    let payload = Some(Payload::zeroes(REQUEST_SIZES[0]));
    let message = StreamingOutputCallRequest { payload, ..asking(&RESPONSE_SIZES[..1]) };
    let (mut request, name) = named(stream::iter([message]).chain(stream::pending()));
    let handle = request.cancellation_handle();
    let mut responses = client.full_duplex_call(request).await.expect("a head").into_inner();
    expect_response(&mut responses, RESPONSE_SIZES[0]).await;
    handle.cancel();
    expect_codes(responses.message().await, codes);
    event(&client, &name, "ended").await;
}

/// Calls a method that does not respond, with a deadline. The status is one of `codes`.
pub(crate) async fn timeout_on_sleeping_server<T: Transport>(transport: T, codes: &[Code]) {
    let message = StreamingOutputCallRequest { payload: Some(Payload::zeroes(27_182)), ..Default::default() };
    let mut request = Request::new(stream::iter([message]).chain(stream::pending()));
    request.set_timeout(Duration::from_millis(1));
    // tonic's own transport has a deadline for the head only, so the server withholds it.
    request.metadata_mut().insert(SLEEP, MetadataValue::from_static("1"));
    expect_codes(TestClient::new(transport).full_duplex_call(request).await, codes);
}

// The cases below are not in the description.

/// Drops a call before its response.
pub(crate) async fn dropped_call<T: Transport>(transport: T) {
    let client = TestClient::new(transport);
    let (request, name) = named(stream::pending());
    tokio::select! {
        response = client.streaming_input_call(request) => panic!("a response to no request: {response:?}"),
        () = event(&client, &name, "began") => {}
    }
    event(&client, &name, "ended").await;
}

/// Drops a call after its first response, of a server that does not end the call.
pub(crate) async fn dropped_stream<T: Transport>(transport: T) {
    let client = TestClient::new(transport);
    let (mut request, name) = named(asking(&[9, 9]));
    request.metadata_mut().insert(SLEEP, MetadataValue::from_static("1"));
    let mut responses = client.streaming_output_call(request).await.expect("a head").into_inner();
    expect_response(&mut responses, 9).await;
    drop(responses);
    event(&client, &name, "ended").await;
}

/// Asks for a status with details, before and after the head, and with metadata.
pub(crate) async fn status_details<T: Transport>(transport: T) {
    let client = TestClient::new(transport);
    let details: Vec<u8> = (0..=u8::MAX).collect();
    let add = |metadata: &mut MetadataMap| {
        metadata.insert_bin(ECHO_DETAILS_BIN, MetadataValue::from_bytes(&details));
        metadata.insert_bin(ECHO_TRAILING_BIN, MetadataValue::from_bytes(&[0xab; 3]));
    };
    let response_status =
        Some(EchoStatus { code: Code::DataLoss.into(), message: SPECIAL_MESSAGE.to_owned() });

    let mut unary =
        Request::new(SimpleRequest { response_status: response_status.clone(), ..Default::default() });
    add(unary.metadata_mut());
    let unary = client.unary_call(unary).await.map(drop);
    let last = StreamingOutputCallRequest { response_status, ..Default::default() };
    let mut duplex = Request::new(stream::iter([asking(&[9]), last]));
    add(duplex.metadata_mut());
    let duplex = outcome(client.full_duplex_call(duplex).await).await.map(drop);

    for result in [unary, duplex] {
        let status = expect_code(result, Code::DataLoss);
        assert_eq!(status.message(), SPECIAL_MESSAGE);
        assert_eq!(status.details(), details);
        assert_eq!(binary_values(status.metadata(), ECHO_TRAILING_BIN), [&[0xab; 3][..]]);
    }
}

/// Sends binary metadata: several values of one key, with every byte, and of every length modulo 3.
pub(crate) async fn binary_metadata<T: Transport>(transport: T) {
    let all: Vec<u8> = (0..=u8::MAX).collect();
    let values = [&all[..], &all[..1], &all[..2], &all[..3], &all[..0]];
    let mut request = Request::new(stream::iter([asking(&[9])]));
    for value in values {
        request.metadata_mut().append_bin(ECHO_INITIAL_BIN, MetadataValue::from_bytes(value));
        request.metadata_mut().append_bin(ECHO_TRAILING_BIN, MetadataValue::from_bytes(value));
    }
    let response = TestClient::new(transport).full_duplex_call(request).await.expect("a head");
    assert_eq!(binary_values(response.metadata(), ECHO_INITIAL_BIN), values);
    let mut responses = response.into_inner();
    expect_response(&mut responses, 9).await;
    let trailing = responses.trailers().await.expect("the status OK").expect("trailers");
    assert_eq!(binary_values(&trailing, ECHO_TRAILING_BIN), values);
}

/// Receives the status while its own stream is open, which ends that stream.
pub(crate) async fn early_error<T: Transport>(transport: T) {
    let (requests, mut responses) = open(&TestClient::new(transport)).await;
    requests.send(asking(&[9])).await.expect("the call is open");
    expect_response(&mut responses, 9).await;
    requests.send(failing(Code::Aborted)).await.expect("the call is open");
    expect_code(responses.message().await, Code::Aborted);
    requests.closed().await;
}

/// Receives the status while it sends 16 MiB, of which the server reads the first message or nothing.
pub(crate) async fn early_error_while_sending<T: Transport>(transport: T) {
    let client = TestClient::new(transport);
    let payload = Some(Payload::zeroes(64 << 10));
    let message = StreamingOutputCallRequest { payload, ..Default::default() };
    // More than windows hold, but not without end: a transport without flow control must not take all memory.
    let requests = || stream::repeat(message.clone()).take(256).chain(stream::pending());
    let first = stream::iter([failing(Code::Aborted)]);
    let response = client.full_duplex_call(first.chain(requests())).await;
    expect_code(outcome(response).await, Code::Aborted);
    let response = client.duplex(UNIMPLEMENTED_METHOD, requests()).await;
    expect_code(outcome(response).await, Code::Unimplemented);
    client.empty_call().await.expect("another call on the channel");
}

/// Receives responses that the server begins to send after the end of the requests.
pub(crate) async fn half_close<T: Transport>(transport: T) {
    let requests =
        stream::iter([asking(&RESPONSE_SIZES[..2]), asking(&RESPONSE_SIZES[2..]), asking(&[0, 1])]);
    let response = TestClient::new(transport).duplex(HALF_DUPLEX_CALL, requests).await;
    let sizes = sizes(outcome(response).await.expect("HalfDuplexCall"));
    assert_eq!(sizes, [&RESPONSE_SIZES[..], &[0, 1]].concat());
}

/// Leaves a stream of responses unread until other calls have completed.
pub(crate) async fn slow_reader<T: Transport>(transport: T) {
    let client = TestClient::new(transport);
    // The sizes differ, so that a response out of order is seen.
    let expected: Vec<i32> = (0..64).map(|index| (64 << 10) + index).collect();
    let unread = client.streaming_output_call(asking(&expected)).await;
    let calls = (0..20).map(|_| client.unary_call(large()));
    for response in join_all(calls).await {
        assert_eq!(length(response.expect("UnaryCall").get_ref().payload.as_ref()), RESPONSE_SIZE);
    }
    assert_eq!(sizes(outcome(unread).await.expect("StreamingOutputCall")), expected);
}

/// Makes 1,000 unary calls at once.
pub(crate) async fn thousand_calls<T: Transport>(transport: T) {
    let client = TestClient::new(transport);
    let calls = (0..1_000).map(|response_size| {
        let payload = Some(Payload::zeroes(1_000));
        client.unary_call(SimpleRequest { response_size, payload, ..Default::default() })
    });
    // Each asks for another size, so that a response to another call is seen.
    for (response, response_size) in join_all(calls).await.into_iter().zip(0..) {
        assert_eq!(length(response.expect("UnaryCall").get_ref().payload.as_ref()), response_size);
    }
}

/// Receives a response at and one above the limit of the client.
pub(crate) async fn client_message_limit<T: Transport>(transport: T) {
    let request = |response_size| SimpleRequest { response_size, ..Default::default() };
    let client = TestClient::new(transport);
    let response = client.unary_call(request(5_000)).await.expect("UnaryCall").into_inner();
    let client = client.max_decoding_message_size(response.encoded_len());
    client.unary_call(request(5_000)).await.expect("a response at the limit");
    expect_code(client.unary_call(request(5_001)).await, Code::OutOfRange);
    let response = client.streaming_output_call(asking(&[5_000, 5_001, 5_000])).await;
    expect_code(outcome(response).await, Code::OutOfRange);
    client.empty_call().await.expect("another call on the channel");
}

/// Sends a request at and one above the limit of the server.
pub(crate) async fn server_message_limit<T: Transport>(transport: T) {
    let client = TestClient::new(transport);
    // The two keys and lengths of the payload and of its body take 8 bytes.
    let payload = |excess| Some(Payload::zeroes(MAX_MESSAGE - 8 + excess));
    let request = |excess| SimpleRequest { payload: payload(excess), ..Default::default() };
    assert_eq!(request(0).encoded_len(), MAX_MESSAGE);
    client.unary_call(request(0)).await.expect("a request at the limit");
    expect_code(client.unary_call(request(1)).await, Code::OutOfRange);
    let requests = [0, 1, 0].map(|excess| StreamingInputCallRequest { payload: payload(excess) });
    expect_code(client.streaming_input_call(stream::iter(requests)).await, Code::OutOfRange);
    client.empty_call().await.expect("another call on the channel");
}

fn large() -> SimpleRequest {
    let payload = Some(Payload::zeroes(REQUEST_SIZE));
    SimpleRequest { response_size: RESPONSE_SIZE, payload, ..Default::default() }
}

fn asking(sizes: &[i32]) -> StreamingOutputCallRequest {
    let response_parameters = sizes.iter().map(|&size| ResponseParameters { size }).collect();
    StreamingOutputCallRequest { response_parameters, ..Default::default() }
}

fn failing(code: Code) -> StreamingOutputCallRequest {
    let response_status = Some(EchoStatus { code: code.into(), message: String::new() });
    StreamingOutputCallRequest { response_status, ..Default::default() }
}

/// Opens a full duplex call.
async fn open<T: Transport>(
    client: &TestClient<T>,
) -> (mpsc::Sender<StreamingOutputCallRequest>, Streaming<StreamingOutputCallResponse>) {
    let (sender, receiver) = mpsc::channel(1);
    let response = client.full_duplex_call(ReceiverStream::new(receiver)).await.expect("a head");
    (sender, response.into_inner())
}

/// Gives a call a name, under which its events are known.
fn named<M>(message: M) -> (Request<M>, String) {
    // Two runs of a case over one server must not see each other's events.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = NEXT.fetch_add(1, Ordering::Relaxed).to_string();
    let mut request = Request::new(message);
    request.metadata_mut().insert(CALL_NAME, name.parse().expect("a value"));
    (request, name)
}

/// Waits until the server has seen the call begin or end.
async fn event<T: Transport>(client: &TestClient<T>, name: &str, event: &str) {
    let mut request = Request::new(SimpleRequest::default());
    request.metadata_mut().insert(AWAIT_EVENT, format!("{name} {event}").parse().expect("a value"));
    client.unary_call(request).await.expect("the event of the call");
}

/// Receives all responses of a call, or its status wherever it comes: in place of the head, or later.
async fn outcome<R>(response: Result<Response<Streaming<R>>, Status>) -> Result<Vec<R>, Status> {
    response?.into_inner().try_collect().await
}

async fn expect_response(responses: &mut Streaming<StreamingOutputCallResponse>, size: i32) {
    let response = responses.message().await.expect("no error").expect("a response");
    assert_eq!(length(response.payload.as_ref()), size);
}

fn sizes(responses: Vec<StreamingOutputCallResponse>) -> Vec<i32> {
    responses.iter().map(|response| length(response.payload.as_ref())).collect()
}

/// Returns the length of a body that must be all zeroes.
fn length(payload: Option<&Payload>) -> i32 {
    let body = &payload.expect("a payload").body;
    assert!(body.iter().all(|&byte| byte == 0), "a byte of the payload has changed");
    body.len().try_into().expect("a short body")
}

fn binary_values(metadata: &MetadataMap, key: &str) -> Vec<Bytes> {
    let bytes = |value: &BinaryMetadataValue| value.to_bytes().expect("valid base64");
    metadata.get_all_bin(key).iter().map(bytes).collect()
}

fn expect_code<R: Debug>(result: Result<R, Status>, code: Code) -> Status {
    expect_codes(result, &[code])
}

fn expect_codes<R: Debug>(result: Result<R, Status>, codes: &[Code]) -> Status {
    let status = result.expect_err("the call must fail");
    assert!(codes.contains(&status.code()), "{codes:?} expected: {status:?}");
    status
}

/// Asks for the status in a unary call, where it comes in place of the head, and in a full duplex call.
async fn expect_status_everywhere<T: Transport>(client: &TestClient<T>, message: &str) {
    let response_status = Some(EchoStatus { code: Code::Unknown.into(), message: message.to_owned() });
    let unary = SimpleRequest { response_status: response_status.clone(), ..Default::default() };
    let status = expect_code(client.unary_call(unary).await, Code::Unknown);
    assert_eq!(status.message(), message);
    let duplex = StreamingOutputCallRequest { response_status, ..Default::default() };
    let response = client.full_duplex_call(stream::iter([duplex])).await;
    assert_eq!(expect_code(outcome(response).await, Code::Unknown).message(), message);
}
