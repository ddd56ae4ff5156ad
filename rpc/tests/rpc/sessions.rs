//! Calls over a stream with a session, while its connections are lost.
//!
//! Runs on: soft

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use common::relay::{Cut, Relay};
use common::session::{Path, config};
use futures::{SinkExt, StreamExt};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::sync::mpsc;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Provider, RdmaConnector, RdmaListener};
use tokio_rdma_rpc::{BoxError, Channel, Config, Incoming, serve};
use tower_service::Service;

use super::{call, pattern};

/// The ends of the connections of a stream, but of the last.
const CUTS: [Cut; 4] = [Cut::Reset, Cut::Silence, Cut::Reset, Cut::Silence];
/// The bytes before each, which are more than the windows of a call take.
const STAGE: usize = 2 << 20;
/// The most bytes of a piece. It divides no stage.
const PIECE: usize = 10_007;

// A call streams both ways over several connections: each byte comes once and in order, and other calls take the same stream (SES-01).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_outlive_connections() {
    let soft = Provider::soft_with(SoftConfig::default().path_timeout(Some(Duration::from_secs(2))));
    let bound = RdmaListener::bind_with_provider(&soft, "127.0.0.1:0", &config()).await;
    let listener = bound.expect("bound");
    let relay = Relay::start(listener.local_addr().expect("an address")).await;
    let echo = tower::service_fn(async |request: Request<Incoming>| {
        Ok::<_, Infallible>(Response::new(request.into_body()))
    });
    let server = tokio::spawn(serve(listener, echo));
    let (connector, address) = (RdmaConnector::new().provider(soft).config(config()), relay.address);
    let (sender, mut paths) = mpsc::unbounded_channel();
    let channel = Channel::with_connector("server", false, Config::default(), move || {
        let (connecting, sender) = (connector.connect(address), sender.clone());
        async move {
            let stream = connecting.await?;
            sender.send(Path::of(&stream)).expect("the test goes on");
            Ok(stream)
        }
    });

    let sent = pattern(STAGE * (CUTS.len() + 1));
    let (mut pieces, body) = futures::channel::mpsc::channel::<Result<Frame<Bytes>, BoxError>>(0);
    let request = Request::post("/").body(StreamBody::new(body)).expect("a request");
    let all = sent.clone();
    let writing = tokio::spawn(async move {
        for start in (0..all.len()).step_by(PIECE) {
            let piece = all.slice(start..all.len().min(start + PIECE));
            pieces.send(Ok(Frame::data(piece))).await.expect("the call goes on");
        }
    });
    let answer = common::within(channel.clone().call(request)).await.expect("answered");
    let mut path = paths.recv().await.expect("a stream");
    let (mut answer, mut read, mut cuts) = (answer.into_body().into_data_stream(), 0, 0);
    while let Some(piece) = common::within(answer.next()).await {
        let piece = piece.expect("no failure");
        assert!(sent[read..].starts_with(&piece), "wrong bytes at {read}");
        read += piece.len();
        if let Some(cut) = CUTS.get(cuts).filter(|_| read >= (cuts + 1) * STAGE) {
            // Nothing is read until the connection has failed, so that it takes some bytes along.
            relay.cut(*cut);
            cuts += 1;
            path.until(|path| path.resumes >= cuts as u64).await;
        }
    }
    assert_eq!((read, cuts), (sent.len(), CUTS.len()));
    common::within(writing).await.expect("no panic");
    let last = Request::post("/").body(Full::new(sent.slice(..PIECE))).expect("a request");
    assert_eq!(call(&channel, last).await.expect("answered").into_body(), sent[..PIECE]);
    assert!(paths.try_recv().is_err(), "there was another stream");
    server.abort();
}
