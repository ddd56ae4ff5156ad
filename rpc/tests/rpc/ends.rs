//! The ends of calls that are not answers: cancels, deadlines, losses, shutdowns.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use tokio::sync::{Notify, mpsc};
use tokio_rdma::RdmaListener;
use tokio_rdma_rpc::{BoxError, Channel, Code, Config, Error, Incoming, Server, serve};
use tower_service::Service;

use super::{Serving, call, pattern};

fn get(path: &str) -> Request<Empty<Bytes>> {
    Request::get(path).body(Empty::new()).expect("a request")
}

/// Says so when it is dropped.
struct Said(mpsc::UnboundedSender<()>);

impl Drop for Said {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// Serves calls that never end, and tells of their ends; `/stream` answers with a body that never ends.
async fn endless(server: Server) -> (Serving, mpsc::UnboundedReceiver<()>, Arc<Notify>) {
    let (ended, ends) = mpsc::unbounded_channel();
    let begun = Arc::new(Notify::new());
    let begins = begun.clone();
    let answer = move |request: Request<Incoming>| {
        let said = Said(ended.clone());
        begins.notify_one();
        async move {
            if request.uri().path() != "/stream" {
                pending::<()>().await;
            }
            let frames = futures::stream::unfold(said, |said| async move {
                tokio::task::yield_now().await;
                Some((Ok::<_, BoxError>(Frame::data(pattern(1000))), said))
            });
            Response::new(StreamBody::new(frames))
        }
    };
    (Serving::with(server, answer).await, ends, begun)
}

#[tokio::test]
async fn dropped_call_ends_at_the_server() {
    let (server, mut ends, begun) = endless(Server::new()).await;
    let channel = server.channel().await;
    let waiting = tokio::spawn({
        let channel = channel.clone();
        async move { call(&channel, get("/")).await }
    });
    common::within(begun.notified()).await;
    waiting.abort();
    common::within(ends.recv()).await.expect("the future of the service was dropped");
    let answer = common::within(channel.clone().call(get("/stream"))).await.expect("answered");
    let mut body = answer.into_body();
    common::within(body.frame()).await.expect("a frame").expect("no error");
    drop(body);
    common::within(ends.recv()).await.expect("the body of the answer was dropped");
}

// The body of the request may wait for ever: it is dropped with its call.
#[tokio::test]
async fn body_of_a_request_is_dropped_with_its_call() {
    let (server, mut ends, begun) = endless(Server::new()).await;
    let channel = server.channel().await;
    let (sender, mut dropped) = mpsc::unbounded_channel();
    let body = futures::stream::unfold(Said(sender), |said| async move {
        pending::<()>().await;
        Some((Ok::<_, BoxError>(Frame::data(Bytes::new())), said))
    });
    let request = Request::post("/").body(StreamBody::new(Box::pin(body))).expect("a request");
    let waiting = tokio::spawn({
        let mut channel = channel.clone();
        async move { channel.call(request).await.map(drop) }
    });
    common::within(begun.notified()).await;
    waiting.abort();
    common::within(dropped.recv()).await.expect("dropped");
    common::within(ends.recv()).await.expect("dropped there, too");
}

// An answer may come before the end of the request, which is not sent further then.
#[tokio::test]
async fn early_answer_ends_the_request() {
    let server =
        Serving::with(Server::new(), async |_: Request<Incoming>| Response::new(Full::new(pattern(10))))
            .await;
    let channel = server.channel().await;
    let (sender, mut dropped) = mpsc::unbounded_channel();
    let body = futures::stream::unfold(Said(sender), |said| async move {
        tokio::task::yield_now().await;
        Some((Ok::<_, BoxError>(Frame::data(pattern(10_000))), said))
    });
    let request = Request::post("/").body(StreamBody::new(Box::pin(body))).expect("a request");
    let answer = common::within(channel.clone().call(request)).await.expect("answered");
    assert_eq!(common::within(answer.into_body().collect()).await.expect("whole").to_bytes(), pattern(10));
    common::within(dropped.recv()).await.expect("dropped");
    call(&channel, get("/")).await.expect("answered");
}

// Both ends keep the time. A caller of gRPC has a status, any other an error.
#[tokio::test]
async fn deadlines_end_calls() {
    let (server, mut ends, _) = endless(Server::new()).await;
    let channel = server.channel().await;
    let timed = |path, kind: &'static str| {
        let mut request = get(path);
        request.headers_mut().insert("grpc-timeout", HeaderValue::from_static("50m"));
        request.headers_mut().insert("content-type", HeaderValue::from_static(kind));
        request
    };
    let error = call(&channel, timed("/", "text/plain")).await.expect_err("no answer");
    assert!(matches!(error, Error::Deadline | Error::Reset(Code::Deadline)), "{error:?}");
    common::within(ends.recv()).await.expect("ended there, too");
    let answer = call(&channel, timed("/", "application/grpc")).await.expect("an answer");
    assert_eq!(answer.headers()["grpc-status"], "4");
    common::within(ends.recv()).await.expect("ended there, too");
    let answer =
        common::within(channel.clone().call(timed("/stream", "application/grpc"))).await.expect("an answer");
    let trailers = common::within(answer.into_body().collect()).await.expect("an end").trailers().cloned();
    assert_eq!(trailers.expect("trailers")["grpc-status"], "4");
    common::within(ends.recv()).await.expect("ended there, too");
}

#[tokio::test]
async fn panic_of_a_service_ends_its_call_alone() {
    let answer = async |request: Request<Incoming>| match request.uri().path() {
        "/now" => panic!("at once"),
        "/later" => {
            tokio::task::yield_now().await;
            panic!("later")
        }
        _ => Response::new(Empty::<Bytes>::new()),
    };
    let server = Serving::with(Server::new(), answer).await;
    let channel = server.channel().await;
    for path in ["/now", "/later"] {
        let error = call(&channel, get(path)).await.expect_err("no answer");
        assert!(matches!(error, Error::Reset(_)), "{error:?}");
    }
    call(&channel, get("/")).await.expect("answered");
}

// A call that was on its way fails, and is not repeated; the next one connects again.
#[tokio::test]
async fn channel_connects_again_after_a_loss() {
    let (server, _ends, begun) = endless(Server::new()).await;
    let address = server.address;
    let channel = server.channel().await;
    let waiting = tokio::spawn({
        let channel = channel.clone();
        async move { call(&channel, get("/")).await }
    });
    common::within(begun.notified()).await;
    drop(server);
    let error = common::within(waiting).await.expect("no panic").expect_err("lost");
    assert!(matches!(error, Error::Lost(_)), "{error:?}");
    assert_eq!(error.grpc_status(), 14);
    let error = call(&channel, get("/")).await.expect_err("nobody listens");
    assert!(matches!(error, Error::Connect(_)), "{error:?}");
    let listener = RdmaListener::bind(address).await.expect("bound again");
    let service = tower::service_fn(async |_: Request<Incoming>| {
        Ok::<_, BoxError>(Response::new(Empty::<Bytes>::new()))
    });
    let _server = tokio::spawn(serve(listener, service));
    // The pause behind a failed connect is at most a tenth of a second.
    tokio::time::sleep(Duration::from_millis(100)).await;
    call(&channel, get("/")).await.expect("answered");
}

// Calls that have begun end well; then the server has ended, and its clients know.
#[tokio::test]
async fn shutdown_lets_calls_end() {
    let listener = RdmaListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound").to_string();
    let (begun, go, stop) = (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let shared = (begun.clone(), go.clone());
    let service = tower::service_fn(move |_: Request<Incoming>| {
        let (begun, go) = shared.clone();
        async move {
            begun.notify_one();
            go.notified().await;
            Ok::<_, BoxError>(Response::new(Full::new(pattern(100))))
        }
    });
    let signal = stop.clone();
    let server = Server::new().config(Config::default().shutdown_timeout(Duration::from_secs(3600)));
    let server = tokio::spawn(async move {
        server.serve_with_shutdown(listener, service, async move { signal.notified().await }).await
    });
    let channel = common::within(Channel::connect(address)).await.expect("connected");
    let waiting = tokio::spawn({
        let channel = channel.clone();
        async move { call(&channel, get("/")).await }
    });
    common::within(begun.notified()).await;
    stop.notify_one();
    // The listener is gone before the call has ended: a new one finds nobody.
    let refused = async {
        while !matches!(call(&channel, get("/")).await, Err(Error::Connect(_))) {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = common::within(refused) => {}
        () = begun.notified() => {
            // It came before the signal.
        }
    }
    go.notify_one();
    let answer = common::within(waiting).await.expect("no panic").expect("answered");
    assert_eq!(answer.into_body(), pattern(100));
    common::within(server).await.expect("no panic").expect("ended well");
}

#[tokio::test]
async fn shutdown_has_a_limit() {
    let listener = RdmaListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound").to_string();
    let service = tower::service_fn(async |_: Request<Incoming>| {
        pending::<Result<Response<Empty<Bytes>>, BoxError>>().await
    });
    let config = Config::default().shutdown_timeout(Duration::from_millis(50));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = Server::new().config(config).serve_with_shutdown(listener, service, async move {
        let _ = stopped.await;
    });
    let server = tokio::spawn(server);
    let channel = common::within(Channel::connect(address)).await.expect("connected");
    let waiting = tokio::spawn(async move { call(&channel, get("/")).await });
    tokio::task::yield_now().await;
    drop(stop);
    common::within(server).await.expect("no panic").expect("ended");
    common::within(waiting).await.expect("no panic").expect_err("lost");
}
