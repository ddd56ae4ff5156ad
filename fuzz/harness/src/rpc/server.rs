//! The server, with a service that answers in all ways.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use tokio::io::duplex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_rdma_rpc::{BoxError, Incoming, Server};

use super::direction::{END, TRAILERS};
use super::{Body, COMMANDS, Options, Peer, is_filled, say_rest};
use crate::input::Input;
use crate::stage::within;

/// The ways to answer, which a path begins with.
const ECHO: u8 = 0;
const WHOLE: u8 = 1;
const KINDS: usize = 13;
/// From this many calls on, the peer begins no more.
const CALLS: u32 = 200;

/// The state that the service shares with its calls.
#[derive(Default)]
struct Shared {
    /// The calls that are answered.
    live: AtomicUsize,
    is_wild: AtomicBool,
    /// The length of a long answer.
    long: usize,
}

/// A call that is answered.
struct Live(Arc<Shared>);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Clone)]
struct Service(Arc<Shared>);

impl tower_service::Service<Request<Incoming>> for Service {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        self.0.live.fetch_add(1, Ordering::Relaxed);
        let live = Live(self.0.clone());
        Box::pin(async move {
            let answer = answer(request, live.0.clone()).await?;
            // It lives as long as the body of its answer.
            Ok(answer.map(|body| {
                body.map_frame(move |frame| {
                    let _ = &live;
                    frame
                })
                .boxed_unsync()
            }))
        })
    }
}

fn full(filler: u8, length: usize) -> Body {
    Full::new(Bytes::from(vec![filler; length])).map_err(|never| match never {}).boxed_unsync()
}

/// Returns a body of pieces with a pause before each, and with this end.
fn pieces(filler: u8, count: u8, length: usize, end: Result<HeaderMap, BoxError>) -> Body {
    let data = stream::iter(0..count).then(move |_| async move {
        sleep(Duration::from_millis(100)).await;
        Ok(Frame::data(Bytes::from(vec![filler; length])))
    });
    StreamBody::new(data.chain(stream::iter([end.map(Frame::trailers)]))).boxed_unsync()
}

async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> Result<Response<Body>, BoxError> {
    let mut numbers = request.uri().path().split('/').skip(1).map(|part| part.parse::<u8>().unwrap_or(0));
    let (kind, filler) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let long = shared.long;
    let mut body = request.into_body().map_err(BoxError::from).map_frame(move |frame| {
        let is_own = |bytes: &Bytes| is_filled(bytes, filler);
        let is_right = frame.data_ref().is_none_or(is_own) || shared.is_wild.load(Ordering::Relaxed);
        assert!(is_right, "bytes of another request");
        frame
    });
    let trailers = HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static("1"))]);
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    match kind {
        ECHO => *response.body_mut() = body.boxed_unsync(),
        WHOLE => *response.body_mut() = full(filler, body.collect().await?.to_bytes().len()),
        // Does not read the request.
        2 => *response.body_mut() = full(filler, 100),
        3 => {
            *response.body_mut() = pieces(filler, 10, 1, Ok(trailers))
                .map_frame(move |frame| {
                    let _unread = &body;
                    frame
                })
                .boxed_unsync();
        }
        4 => *response.body_mut() = pieces(filler, 5, 1000, Ok(trailers)),
        5 => return Err("it fails".into()),
        6 => *response.body_mut() = pieces(filler, 1, 1000, Err("it fails, too".into())),
        7 => std::future::pending().await,
        8 => *response.body_mut() = full(filler, long),
        9 => {
            let long = HeaderValue::try_from("x".repeat(20_000))?;
            response.headers_mut().insert(http::header::ETAG, long);
        }
        10 => *response.status_mut() = StatusCode::CONTINUE,
        11 => {
            while let Some(frame) = body.frame().await {
                frame?;
                sleep(Duration::from_millis(200)).await;
            }
        }
        _ => sleep(Duration::from_millis(500)).await,
    }
    Ok(response)
}

/// Returns the head of a request: `POST /kind/filler`, perhaps of gRPC, and perhaps with a time limit.
fn head(kind: u8, filler: u8, shape: u8) -> Vec<u8> {
    let path = format!("/{kind}/{filler}");
    let mut head = [&[1, path.len() as u8], path.as_bytes(), &[0]].concat();
    if shape & 1 != 0 {
        head.push(128);
    }
    if shape & 2 != 0 {
        head.extend(b"\x04\x021S");
    }
    head
}

struct Session {
    peer: Peer,
    options: Options,
    shared: Arc<Shared>,
    /// Has the server end in an orderly way.
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<std::io::Result<()>>,
    /// The ways in which calls are answered, as far as they say what the answer is.
    kinds: Vec<u8>,
}

/// Runs a server.
pub(crate) async fn run(input: &mut Input<'_>, is_raw: bool) {
    let options = Options::new(input);
    let (ours, theirs) = duplex(options.capacity);
    let shared = Arc::new(Shared { long: options.long, ..Shared::default() });
    let (stop, stopped) = oneshot::channel();
    let streams = stream::iter([Ok::<_, std::io::Error>(ours)]).chain(stream::pending());
    let server = Server::new().config(options.config);
    let serving = server.serve_with_shutdown(streams, Service(shared.clone()), async { drop(stopped.await) });
    let mut session = Session {
        peer: Peer::new(options, false, theirs),
        options,
        shared,
        stop: Some(stop),
        serving: tokio::spawn(serving),
        kinds: Vec::new(),
    };
    if is_raw {
        session.shared.is_wild.store(true, Ordering::Relaxed);
        say_rest(&mut session.peer, input).await;
    } else {
        session.peer.hello();
        session.peer.settle().await;
        for _ in 0..COMMANDS {
            if input.is_empty() || session.peer.has_ended {
                break;
            }
            session.command(input).await;
            session.shared.is_wild.store(session.peer.is_wild, Ordering::Relaxed);
            if !options.burst {
                session.peer.settle().await;
                session.check_live();
            }
        }
    }
    session.close(input.flag()).await;
}

impl Session {
    /// Returns a call that the peer may say more of.
    fn open_call(&self, input: &mut Input<'_>) -> Option<u32> {
        let call = 1 + input.below(self.kinds.len().max(1)) as u32;
        let flow = self.peer.said.flow(call);
        (flow.has_head && !flow.has_ended && !flow.was_reset).then_some(call)
    }

    fn begin(&mut self, kind: u8, shape: u8, length: usize, flags: u8) {
        // Garbage may have begun calls.
        let call = self.peer.said.last + 1;
        self.kinds.resize(call as usize, u8::MAX);
        // An answer of gRPC may end early, with a status.
        self.kinds[call as usize - 1] = if shape & 1 == 0 { kind } else { u8::MAX };
        self.peer.head(call, &head(kind, call as u8, shape), length, flags);
    }

    async fn command(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..=4 | 12 if self.peer.said.last >= CALLS => {}
            command @ 0..=4 => {
                let (kind, shape) = (input.below(KINDS) as u8, input.byte());
                let length = if shape & 4 == 0 { 0 } else { self.peer.length(input) };
                let flags = [END, END, END | TRAILERS, 0, 0][command];
                self.begin(kind, shape, length, flags);
            }
            5 | 6 => {
                if let Some(call) = self.open_call(input) {
                    let length = self.peer.length(input);
                    self.peer.data(call, length, 0);
                }
            }
            7 => {
                if let Some(call) = self.open_call(input) {
                    let length = self.peer.length(input);
                    self.peer.data(call, length, END | if input.flag() { TRAILERS } else { 0 });
                }
            }
            8 => {
                if let Some(call) = self.open_call(input) {
                    self.peer.reset(call, input.byte().into());
                }
            }
            9 => {
                let call = input.below(self.kinds.len() + 1) as u32;
                let more = 1 << (input.byte() % 22);
                if call == 0 || self.peer.said.flow(call).has_head {
                    self.peer.grant(call, more);
                }
            }
            10 => sleep(Duration::from_millis(50 * u64::from(input.byte()))).await,
            11 => self.peer.is_deaf ^= true,
            12 => {
                let (count, kind) = (input.below(64), input.below(KINDS) as u8);
                for _ in 0..count {
                    self.begin(kind, 0, 1, 0);
                    self.peer.reset(self.peer.said.last, 1);
                }
            }
            13 => self.peer.garbage(input),
            14 => self.peer.violate(input),
            _ => match input.below(4) {
                0 => self.peer.away(0, 0),
                1 => self.peer.has_finished = true,
                2 => drop(self.stop.take()),
                _ => self.peer.garbage(input),
            },
        }
    }

    /// Checks that no more calls are answered than the server takes.
    fn check_live(&self) {
        let live = self.shared.live.load(Ordering::Relaxed);
        assert!(live <= self.options.calls as usize, "{live} calls at once");
    }

    /// Checks that answers to whole requests are whole.
    fn check_answers(&self) {
        for (call, kind) in (1..).zip(&self.kinds) {
            let (asked, answered) = (self.peer.said.flow(call), self.peer.heard.flow(call));
            if (*kind == ECHO || *kind == WHOLE) && answered.has_ended && !answered.was_reset {
                assert!(asked.has_ended, "an end before the end of the request");
                assert_eq!(asked.bytes, answered.bytes, "not the whole answer");
            }
        }
    }

    /// Checks that a peer that has kept the rules is still served.
    async fn check_usable(&mut self) {
        self.peer.settle().await;
        for call in 1..=self.kinds.len() as u32 {
            let (asked, answered) = (self.peer.said.flow(call), self.peer.heard.flow(call));
            if !asked.was_reset && !answered.has_ended && !answered.was_reset {
                self.peer.reset(call, 1);
            }
        }
        self.peer.grant(0, 1 << 20);
        self.peer.settle().await;
        assert_eq!(self.shared.live.load(Ordering::Relaxed), 0, "calls without a caller");
        self.begin(ECHO, 0, 1, END);
        let call = self.peer.said.last;
        self.peer.until("a call is answered", |peer| peer.heard.flow(call).has_ended).await;
        assert_eq!(self.peer.heard.flow(call).bytes, 1);
    }

    async fn close(mut self, hard: bool) {
        self.peer.check_refusal().await;
        if self.peer.is_legal() && self.stop.is_some() && self.peer.said.hello.is_some() {
            assert!(!self.peer.has_ended && self.peer.heard.away.is_none(), "the end of a good connection");
            self.check_usable().await;
        }
        if !self.peer.is_wild {
            self.check_answers();
        }
        self.peer.close(hard).await;
        let shared = self.shared.clone();
        let metrics = Handle::current().metrics();
        // The server itself goes on, unless it was stopped.
        let is_left = || shared.live.load(Ordering::Relaxed) > 0 || metrics.num_alive_tasks() > 1;
        self.peer.until("nothing is left of the connection", |_| !is_left()).await;
        drop(self.stop.take());
        within("the server ends", self.serving).await.expect("no panic").expect("no failure");
    }
}
