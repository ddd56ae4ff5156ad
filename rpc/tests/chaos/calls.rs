//! Calls of all kinds, with their answers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::dice::Dice;
use futures::StreamExt;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::time::{sleep, timeout};
use tokio_rdma_rpc::{BoxError, Channel, Error, Incoming};
use tower_service::Service;

/// Longer than any call takes, faults included: what is lost is found within the path timeout of 30 seconds.
const BOUND: Duration = Duration::from_secs(120);
/// The pieces of a body that is sent in pieces.
const PIECES: usize = 10;

type Body = UnsyncBoxBody<Bytes, BoxError>;

/// The kinds of calls. A path begins with the number of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Short,
    Slow,
    Large,
    /// The answer, the request, or both come in pieces.
    ServerStreaming,
    ClientStreaming,
    Bidirectional,
    Grpc,
    /// Dropped by the caller.
    Cancelled,
    /// Never answered, but for its deadline.
    Deadline,
}

const KINDS: [Kind; 9] = [
    Kind::Short,
    Kind::Slow,
    Kind::Large,
    Kind::ServerStreaming,
    Kind::ClientStreaming,
    Kind::Bidirectional,
    Kind::Grpc,
    Kind::Cancelled,
    Kind::Deadline,
];

fn pattern(seed: usize, length: usize) -> Bytes {
    (0..length).map(|place| (seed * 31 + place * 7 + place / 251) as u8).collect()
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// Returns a body in pieces, with a pause before each, and trailers with their number.
fn pieces(bytes: Bytes, pause: Duration) -> Body {
    let length = bytes.len();
    let piece = move |number| bytes.slice(length * number / PIECES..length * (number + 1) / PIECES);
    let data = futures::stream::iter(0..PIECES).then(move |number| {
        let piece = piece(number);
        async move {
            sleep(pause).await;
            Ok(Frame::data(piece))
        }
    });
    let trailers = HeaderMap::from_iter([("x-pieces".parse().expect("a name"), PIECES.into())]);
    StreamBody::new(data.chain(futures::stream::iter([Ok(Frame::trailers(trailers))]))).boxed_unsync()
}

/// The calls that this process answers.
pub(crate) static ANSWERING: AtomicUsize = AtomicUsize::new(0);

struct Answering;

impl Drop for Answering {
    fn drop(&mut self) {
        ANSWERING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Answers, and counts the call up to the end of its answer.
pub(crate) async fn answer_counted(request: Request<Incoming>) -> Response<Body> {
    ANSWERING.fetch_add(1, Ordering::SeqCst);
    let answering = Answering;
    // A request that was broken off needs no answer.
    let answer = answer(request).await.unwrap_or_else(|_| Response::new(full(Bytes::new())));
    answer.map(|body| {
        body.map_frame(move |frame| {
            let _ = &answering;
            frame
        })
        .boxed_unsync()
    })
}

/// Answers with the body of the request, in the way of its kind.
async fn answer(request: Request<Incoming>) -> Result<Response<Body>, BoxError> {
    let (head, body) = request.into_parts();
    let mut numbers = head.uri.path().split('/').skip(1).map(|part| part.parse::<usize>().expect("a number"));
    let (kind, seed) = (KINDS[numbers.next().expect("a kind")], numbers.next().expect("a seed"));
    let pause = Duration::from_millis(seed as u64 % 50);
    Ok(match kind {
        Kind::Bidirectional => Response::new(body.map_err(BoxError::from).boxed_unsync()),
        Kind::Deadline => std::future::pending().await,
        Kind::ServerStreaming => Response::new(pieces(body.collect().await?.to_bytes(), pause)),
        Kind::Grpc => {
            let trailers = HeaderMap::from_iter([("grpc-status".parse()?, HeaderValue::from_static("0"))]);
            let body = full(body.collect().await?.to_bytes()).with_trailers(async { Some(Ok(trailers)) });
            let mut response = Response::new(body.boxed_unsync());
            response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
            response
        }
        Kind::Short | Kind::Slow | Kind::Large | Kind::ClientStreaming | Kind::Cancelled => {
            let bytes = body.collect().await?.to_bytes();
            if matches!(kind, Kind::Slow | Kind::Cancelled) {
                sleep(pause * 10).await;
            }
            Response::new(full(bytes))
        }
    })
}

/// The outcomes of calls.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    answered: [AtomicUsize; KINDS.len()],
    failed: [AtomicUsize; KINDS.len()],
    /// The longest calls, in milliseconds.
    longest: [AtomicUsize; KINDS.len()],
}

impl Tally {
    /// Returns whether there were calls of all kinds. None may have failed so far but by its deadline.
    pub(crate) fn is_complete(&self) -> bool {
        let mut counts = KINDS.into_iter().zip(self.answered.iter().zip(&self.failed));
        counts.all(|(kind, (answered, failed))| {
            let (answered, failed) = (answered.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
            let (right, wrong) = if kind == Kind::Deadline { (failed, answered) } else { (answered, failed) };
            assert_eq!(wrong, 0, "{kind:?}: {answered} were answered, {failed} have failed");
            right > 0
        })
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, kind) in KINDS.into_iter().enumerate() {
            let [answered, failed, longest] =
                [&self.answered, &self.failed, &self.longest].map(|all| all[place].load(Ordering::Relaxed));
            write!(f, "{kind:?}: {answered} answered, {failed} failed, within {longest} ms; ")?;
        }
        Ok(())
    }
}

/// Makes calls one behind the other, until then.
pub(crate) async fn make_calls(channel: Channel, mut dice: Dice, end: Option<Instant>, tally: Arc<Tally>) {
    while end.is_none_or(|end| Instant::now() < end) {
        let (place, seed, begin) = (dice.below(KINDS.len()), dice.below(1000), Instant::now());
        let call = call(channel.clone(), KINDS[place], place, seed);
        let outcome = timeout(BOUND, call).await.unwrap_or_else(|_| panic!("{:?} hangs", KINDS[place]));
        tally.longest[place].fetch_max(begin.elapsed().as_millis() as usize, Ordering::Relaxed);
        let counts = if outcome.is_ok() { &tally.answered } else { &tally.failed };
        counts[place].fetch_add(1, Ordering::Relaxed);
        if let Err(status) = outcome {
            let is_allowed = status == 14 || KINDS[place] == Kind::Deadline && status == 4;
            assert!(is_allowed, "{:?} fails with {status}", KINDS[place]);
            // While there is no connection, calls fail at once.
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Makes calls on each channel until one succeeds: it may wait before it connects again. They are long, so that the buffers that
/// processes keep for long frames are as long as they can be.
pub(crate) async fn last_calls(channels: &[Channel]) {
    let place = KINDS.iter().position(|kind| *kind == Kind::Large).expect("a kind");
    for channel in channels {
        let channel = channel.clone();
        let succeeds = async move {
            while call(channel.clone(), Kind::Large, place, 1).await.is_err() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        // By a thread that is renewed: each keeps buffers.
        let succeeds = tokio::spawn(timeout(BOUND, succeeds));
        succeeds.await.expect("no panic").expect("a channel works again");
    }
}

/// Makes a call, and checks its answer. It fails with a status of gRPC.
async fn call(channel: Channel, kind: Kind, place: usize, seed: usize) -> Result<(), u32> {
    if kind == Kind::Cancelled {
        let limit = Duration::from_millis(seed as u64 % 300);
        return timeout(limit, exchange(channel, kind, place, seed)).await.unwrap_or(Ok(()));
    }
    exchange(channel, kind, place, seed).await
}

async fn exchange(mut channel: Channel, kind: Kind, place: usize, seed: usize) -> Result<(), u32> {
    let length = match kind {
        Kind::Large => 1_000_000 + seed * 1000,
        Kind::Short | Kind::Grpc => seed,
        _ => seed * 100,
    };
    let bytes = pattern(seed, length);
    let body = match kind {
        Kind::ClientStreaming | Kind::Bidirectional => {
            pieces(bytes.clone(), Duration::from_millis(seed as u64 % 20))
        }
        _ => full(bytes.clone()),
    };
    let mut request = Request::post(format!("/{place}/{seed}")).body(body).expect("a request");
    if kind == Kind::Grpc {
        request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    }
    if kind == Kind::Deadline {
        request.headers_mut().insert("grpc-timeout", HeaderValue::from_static("200m"));
    }
    let status = |error: Error| error.grpc_status();
    let (head, body) = channel.call(request).await.map_err(status)?.into_parts();
    let body = body.collect().await.map_err(status)?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    if kind == Kind::Grpc {
        let status = trailers.get("grpc-status").or(head.headers.get("grpc-status"));
        let status = status.and_then(|status| status.to_str().ok()?.parse().ok()).expect("a status");
        if status != 0 {
            return Err(status);
        }
    }
    if matches!(kind, Kind::ServerStreaming | Kind::Bidirectional) {
        assert_eq!(trailers["x-pieces"], PIECES.to_string());
    }
    assert!(body.to_bytes() == bytes, "{kind:?}/{seed}: another answer");
    Ok(())
}
