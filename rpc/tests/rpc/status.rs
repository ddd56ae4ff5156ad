//! Errors that are a `tonic::Status`.

use std::future::pending;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::oneshot;
use tokio_rdma::RdmaListener;
use tokio_rdma_rpc::{BoxError, Channel, Incoming, serve};
use tonic::Status;
use tower_service::Service;

/// An error around a status.
#[derive(Debug, thiserror::Error)]
#[error("something has failed")]
struct Outer(#[source] Status);

/// Returns a body that fails with a status below another error, when it is told to.
fn failing() -> (oneshot::Sender<()>, UnsyncBoxBody<Bytes, BoxError>) {
    let (fail, told) = oneshot::channel::<()>();
    let frames = futures::stream::once(async {
        let _ = told.await;
        Err::<Frame<Bytes>, BoxError>(Outer(Status::data_loss("of a body")).into())
    });
    (fail, StreamBody::new(frames).boxed_unsync())
}

/// Serves bodies as they come, bodies that fail, errors, and calls that never end.
async fn channel() -> Channel {
    let listener = RdmaListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound").to_string();
    let service = tower::service_fn(async |request: Request<Incoming>| match request.uri().path() {
        "/echo" => Ok(Response::new(request.into_body().map_err(BoxError::from).boxed_unsync())),
        "/body" => Ok(Response::new(failing().1)),
        "/error" => Err(BoxError::from(Status::data_loss("of a service"))),
        "/long" => Err(BoxError::from(Status::not_found("x".repeat(20_000)))),
        "/ok" => Err(BoxError::from(Status::ok("is no error"))),
        _ => pending().await,
    });
    tokio::spawn(serve(listener, service));
    common::within(Channel::connect(address)).await.expect("connected")
}

/// Makes a call of gRPC with a body that fails before the call, or after it has begun. Returns the status of the call.
async fn status(channel: &Channel, path: &str, is_late: bool) -> Status {
    let (fail, body) = failing();
    let request = Request::post(path).header("content-type", "application/grpc");
    let call = channel.clone().call(request.body(body).expect("a request"));
    let mut call = Box::pin(common::within(call));
    if is_late {
        // The first poll begins the call.
        assert!(futures::poll!(&mut call).is_pending());
    }
    fail.send(()).expect("the body waits");
    let (head, body) = call.await.expect("an answer").into_parts();
    let trailers = common::within(body.collect()).await.expect("an end").trailers().cloned();
    Status::from_header_map(&trailers.unwrap_or(head.headers)).expect("a status")
}

// tonic's HTTP/2 has `INTERNAL` for both, without the message.
#[tokio::test]
async fn status_of_a_request_body_is_that_of_the_call() {
    let channel = channel().await;
    for (path, is_late) in [("/wait", false), ("/wait", true), ("/echo", true)] {
        let status = status(&channel, path, is_late).await;
        assert_eq!((status.code(), status.message()), (tonic::Code::DataLoss, "of a body"), "{path}");
    }
}

#[tokio::test]
async fn status_of_a_service_is_that_of_the_call() {
    let channel = channel().await;
    for (path, message) in [("/error", "of a service"), ("/body", "of a body")] {
        let (_never, body) = failing();
        let request = Request::post(path).header("content-type", "application/grpc");
        let request = request.body(body).expect("a request");
        let answer = common::within(channel.clone().call(request)).await.expect("an answer");
        let status = Status::from_header_map(answer.headers()).expect("a status");
        assert_eq!((status.code(), status.message()), (tonic::Code::DataLoss, message), "{path}");
    }
}

// What fits is the code, and as much of the message as that of any other error.
#[tokio::test]
async fn status_that_does_not_fit_keeps_its_code() {
    let channel = channel().await;
    for (path, code) in [("/long", tonic::Code::NotFound), ("/ok", tonic::Code::Internal)] {
        let (_never, body) = failing();
        let request = Request::post(path).header("content-type", "application/grpc");
        let request = request.body(body).expect("a request");
        let answer = common::within(channel.clone().call(request)).await.expect("an answer");
        let status = Status::from_header_map(answer.headers()).expect("a status");
        assert_eq!(status.code(), code, "{path}");
        assert!(status.message().starts_with("the service has failed"), "{status:?}");
    }
}
