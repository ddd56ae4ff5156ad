//! Calls of all kinds over the simulated network, with faults from a seed.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rdma::sim::{self, Network};
use tokio_rdma::{RdmaListener, RdmaStream, StreamConfig};
use tokio_rdma_rpc::{BoxError, Channel, Config, Error, Incoming, Server};
use tower_service::Service;

const PORT: u16 = 7000;
const CALLS: usize = 40;
/// Longer than anything takes, faults included: losses are found within the path timeout, and connects within 10 s.
const PATIENCE: Duration = Duration::from_secs(600);

/// Counts the calls that a server answers.
struct Answering(Arc<AtomicUsize>);

impl Answering {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn pattern(seed: u64, length: usize) -> Bytes {
    (0..length as u64).map(|place| (seed.wrapping_mul(31) + place * 7 + place / 251) as u8).collect()
}

/// Returns a body of so many pieces, with a pause before each, and trailers with their number.
fn pieces(seed: u64, count: u64, length: usize, pause: Duration) -> UnsyncBoxBody<Bytes, BoxError> {
    let data = futures::stream::iter(0..count).then(move |number| async move {
        sleep(pause).await;
        Ok(Frame::data(pattern(seed + number, length)))
    });
    let end = futures::stream::once(async move {
        let value = HeaderValue::from(count);
        Ok(Frame::trailers(HeaderMap::from_iter([("x-count".parse().expect("a name"), value)])))
    });
    StreamBody::new(Box::pin(data.chain(end))).boxed_unsync()
}

/// Answers with as many bytes as the request has, by its path: at once, later, in pieces; as it comes; or never.
async fn answer(request: Request<Incoming>) -> Result<Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError> {
    let (head, body) = request.into_parts();
    let numbers: Vec<u64> = head.uri.path().split('/').filter_map(|part| part.parse().ok()).collect();
    let (kind, seed) = (numbers[0], numbers[1]);
    if kind == 3 {
        return Ok(Response::new(body.map_err(BoxError::from).boxed_unsync()));
    }
    if kind == 4 {
        std::future::pending::<()>().await;
    }
    let length = body.collect().await?.to_bytes().len();
    if kind == 1 {
        sleep(Duration::from_millis(seed % 500)).await;
    }
    Ok(Response::new(match kind {
        2 => pieces(seed, 10, length / 10, Duration::from_millis(seed % 50)),
        _ => Full::new(pattern(seed, length)).map_err(|never| match never {}).boxed_unsync(),
    }))
}

/// Makes one call of a kind, and checks its answer: all of it is right, or there is an error.
async fn call(mut channel: Channel, kind: u64, seed: u64, length: usize) -> Result<(), Error> {
    let body = match seed % 2 {
        0 => Full::new(pattern(seed, length)).map_err(|never| match never {}).boxed_unsync(),
        _ => pieces(seed, 10, length / 10, Duration::from_millis(seed % 20)),
    };
    let sent = if seed.is_multiple_of(2) { length } else { length / 10 * 10 };
    let mut request = Request::post(format!("/{kind}/{seed}")).body(body).expect("a request");
    if kind == 4 {
        request.headers_mut().insert("grpc-timeout", HeaderValue::from_static("3S"));
    }
    let answer = channel.call(request).await?;
    let collected = answer.into_body().collect().await?;
    let trailers = collected.trailers().cloned();
    let bytes = collected.to_bytes();
    let in_pieces =
        |length: usize| (0..10).flat_map(|number| pattern(seed + number, length / 10)).collect::<Bytes>();
    let expected = match (kind, seed % 2) {
        (2, _) => in_pieces(sent),
        (3, 1) => in_pieces(length),
        _ => pattern(seed, sent),
    };
    assert!(bytes == expected, "call {kind}/{seed}: {} bytes of {}", bytes.len(), expected.len());
    if kind == 2 || kind == 3 && seed % 2 == 1 {
        assert_eq!(trailers.expect("the end of the answer")["x-count"], "10");
    }
    Ok(())
}

/// Runs calls of all kinds, some of which are dropped, on a network with faults.
async fn run(network: Network, with_faults: bool) {
    let (server, client) = (network.host("10.0.0.1"), network.host("10.0.0.2"));
    let latency = Duration::ZERO..=Duration::from_millis(network.random(1..=20));
    network.link(&server, &client).latency(latency).segments(1..=network.random(100..=3000) as usize);
    let (passive, active) = (server.adapter().expect("opened"), client.adapter().expect("opened"));
    let address = (server.address(), PORT).into();
    let listener = RdmaListener::bind_on(&passive, address, &StreamConfig::default()).expect("bound");
    let answering = Arc::<AtomicUsize>::default();
    let count = answering.clone();
    let service = tower::service_fn(move |request| {
        let guard = Answering::new(&count);
        async move {
            // Also while the body is sent: it goes with the guard.
            let answer =
                answer(request).await.unwrap_or_else(|_| Response::new(pieces(0, 0, 0, Duration::ZERO)));
            let answer = answer.map(|body| {
                let _ = &guard;
                body.map_frame(move |frame| {
                    let _ = &guard;
                    frame
                })
            });
            Ok::<_, Infallible>(answer)
        }
    });
    // Small windows, so that calls wait for them.
    let config = Config::default()
        .call_window(16 << 10)
        .connection_window(network.random(16..=64) as u32 * 1024)
        .max_calls(network.random(2..=30) as u32);
    let serving = tokio::spawn(Server::new().config(config).serve(listener, service));
    let channel = Channel::with_connector("server", false, config, move || {
        let active = active.clone();
        async move {
            RdmaStream::connect_on(&active, address, &StreamConfig::default()).await.map_err(io::Error::other)
        }
    });
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let (kind, seed) = (network.random(0..=4), network.random(0..=10_000));
        let length = network.random(0..=50_000) as usize;
        let begin = Duration::from_millis(network.random(0..=20_000));
        let limit = Duration::from_millis(network.random(0..=3_000));
        let is_dropped = network.random(0..=4) == 0;
        let channel = channel.clone();
        calls.spawn(async move {
            sleep(begin).await;
            let call = call(channel, kind, seed, length);
            if is_dropped {
                return timeout(limit, call).await.unwrap_or(Ok(()));
            }
            timeout(PATIENCE, call).await.expect("every call ends")
        });
    }
    let faults = network.faults([&server, &client]).within(Duration::from_secs(20));
    let faults = if with_faults { faults.count(1..=4) } else { faults.count(0..=0) };
    let all = async {
        while let Some(outcome) = calls.join_next().await {
            match outcome.expect("no panic") {
                Err(error) if !with_faults && !matches!(error, Error::Deadline | Error::Reset(_)) => {
                    panic!("an error without a fault: {error}")
                }
                _ => {}
            }
        }
    };
    tokio::join!(all, faults.run());
    // It works again, behind the pause of a failed connect.
    sleep(Duration::from_secs(60)).await;
    timeout(PATIENCE, call(channel.clone(), 0, 2, 10_000)).await.expect("in time").expect("answered");
    drop(channel);
    let nothing_is_left = async {
        while answering.load(Ordering::SeqCst) > 0 {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, nothing_is_left).await.expect("every call has ended at the server");
    serving.abort();
}

#[test]
fn calls_are_answered() {
    sim::check(0..10, |network| run(network, false));
}

// No answer is wrong or half, no call is lost without an error, and nothing is left.
#[test]
fn calls_end_in_spite_of_faults() {
    sim::check(0..40, |network| run(network, true));
}

// OBS-03: a call that the service does not answer, seen at both ends.
#[cfg(feature = "inspect")]
#[test]
fn an_unanswered_call_is_named() {
    sim::check(0..3, async |network: Network| {
        let (server, client) = (network.host("10.0.0.1"), network.host("10.0.0.2"));
        let (passive, active) = (server.adapter().expect("opened"), client.adapter().expect("opened"));
        let address = (server.address(), PORT).into();
        let listener = RdmaListener::bind_on(&passive, address, &StreamConfig::default()).expect("bound");
        let service = tower::service_fn(|request| async {
            answer(request).await.map_err(|_| io::Error::other("no answer"))
        });
        let serving = tokio::spawn(Server::new().serve(listener, service));
        let config = Config::default().max_calls(5);
        let mut channel = Channel::with_connector("server:7000", false, config, move || {
            let active = active.clone();
            async move {
                let stream = RdmaStream::connect_on(&active, address, &StreamConfig::default()).await;
                stream.map_err(io::Error::other)
            }
        });
        let request = Request::post("/4/0").body(Full::<Bytes>::default()).expect("a request");
        let calling = tokio::spawn(channel.call(request));
        sleep(Duration::from_secs(3)).await;
        let channels = tokio_rdma::inspect::snapshot().channels;
        // Other tests run in this process, too.
        let ours = channels.iter().find(|report| report.peer == "server:7000").expect("the client");
        assert_eq!((ours.calls, &*ours.role), (1, "client"));
        let why = ours.waits_for.as_deref().expect("it waits");
        assert!(why.starts_with("1 call pending: the server has not ended the oldest for 3.0 s"), "{why}");
        let why = "1 call pending: the program has not ended the oldest for";
        let waits = |report: &&tokio_rdma::inspect::ChannelReport| {
            report.role == "server" && report.waits_for.as_ref().is_some_and(|found| found.starts_with(why))
        };
        assert!(channels.iter().any(|report| waits(&report)), "{channels:?}");
        calling.abort();
        serving.abort();
    });
}

// OBS-03: the client has the head of the answer, and does not read its body.
#[cfg(feature = "inspect")]
#[test]
fn an_unread_body_is_named() {
    sim::check(0..3, async |network: Network| {
        let (server, client) = (network.host("10.0.0.1"), network.host("10.0.0.2"));
        let (passive, active) = (server.adapter().expect("opened"), client.adapter().expect("opened"));
        let address = (server.address(), PORT).into();
        let listener = RdmaListener::bind_on(&passive, address, &StreamConfig::default()).expect("bound");
        let service = tower::service_fn(|_request| async {
            Ok::<_, io::Error>(Response::new(Full::new(Bytes::from(vec![7; 3 << 20]))))
        });
        let serving = tokio::spawn(Server::new().serve(listener, service));
        let mut channel = Channel::with_connector("unread:7000", false, Config::default(), move || {
            let active = active.clone();
            async move {
                let stream = RdmaStream::connect_on(&active, address, &StreamConfig::default()).await;
                stream.map_err(io::Error::other)
            }
        });
        let request = Request::post("/").body(Full::<Bytes>::default()).expect("a request");
        let response = channel.call(request).await.expect("answered");
        sleep(Duration::from_secs(3)).await;
        let channels = tokio_rdma::inspect::snapshot().channels;
        let why = |role: &str| {
            let report = channels.iter().find(|report| report.role == role).expect("it exists");
            report.waits_for.clone().unwrap_or_default()
        };
        assert_eq!(why("client"), "1 call pending: this program does not read the bodies of 1");
        assert_eq!(why("server"), "1 call pending: the program of the peer does not read the bodies of 1");
        drop(response);
        serving.abort();
    });
}
