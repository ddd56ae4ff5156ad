//! The client, with a user that makes calls of all kinds.

use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Request};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use tokio::io::{DuplexStream, duplex};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep};
use tokio_rdma_rpc::{Channel, Error};
use tower_service::Service;

use super::direction::{END, TRAILERS};
use super::{Body, COMMANDS, Options, Peer, is_filled, say_rest};
use crate::input::Input;
use crate::stage::{PATIENCE, within};

/// The most connections of one run. The next connects fail.
const CONNECTIONS: usize = 3;
/// The ways to call.
const KINDS: usize = 8;
/// The heads of answers: `200`, one of gRPC, one with a status of gRPC, and another status.
const HEADS: [&[u8]; 4] = [&[0, 200], &[0, 200, 128], &[0, 200, 128, 130], &[1, 244]];

/// Returns a body of pieces with a pause before each, and with this end.
fn pieces(filler: u8, count: u8, length: usize, end: Result<HeaderMap, io::Error>) -> Body {
    let data = stream::iter(0..count).then(move |_| async move {
        sleep(Duration::from_millis(100)).await;
        Ok(Frame::data(Bytes::from(vec![filler; length])))
    });
    let end = end.map(Frame::trailers).map_err(Into::into);
    StreamBody::new(data.chain(stream::iter([end]))).boxed_unsync()
}

/// Returns the request of a kind, with `long` bytes of a long body. Its path ends with the byte that fills its body.
fn request(kind: u8, filler: u8, shape: u8, long: usize) -> Request<Body> {
    let full =
        |length| Full::new(Bytes::from(vec![filler; length])).map_err(|never| match never {}).boxed_unsync();
    let body = match kind {
        0 => Empty::new().map_err(|never| match never {}).boxed_unsync(),
        1 => full(100),
        2 => full(long),
        3 => pieces(filler, 5, 1000, Ok(HeaderMap::new())),
        4 => pieces(filler, 20, 1, Ok(HeaderMap::new())),
        5 => pieces(filler, 2, 100, Err(io::Error::other("it fails"))),
        6 => StreamBody::new(stream::once(pending())).boxed_unsync(),
        _ => full(5000),
    };
    let mut request = Request::post(format!("/{kind}/{filler}")).body(body).expect("a request");
    let fields = request.headers_mut();
    if shape & 1 != 0 {
        fields.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    }
    if shape & 2 != 0 {
        fields.insert("grpc-timeout", HeaderValue::from_static("2S"));
    }
    if shape & 0xF0 == 0xF0 {
        fields.insert("x-long", HeaderValue::try_from("x".repeat(5000)).expect("a value"));
    }
    request
}

/// Makes a call, and returns the length of its answer.
async fn call(
    mut channel: Channel,
    request: Request<Body>,
    filler: u8,
    shape: u8,
    is_wild: Arc<AtomicBool>,
) -> Result<u64, Error> {
    let mut body = channel.call(request).await?.into_body();
    drop(channel);
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        let is_own = is_filled(&data, filler) || is_wild.load(Ordering::Relaxed);
        assert!(is_own, "bytes of another answer");
        length += data.len() as u64;
        if shape & 4 != 0 {
            sleep(Duration::from_millis(50)).await;
        }
        if shape & 8 != 0 {
            break;
        }
    }
    Ok(length)
}

/// The byte that fills a call, its shape, and the length of its answer.
type Ended = (u8, u8, Result<u64, Error>);

struct Session {
    options: Options,
    channel: Option<Channel>,
    /// The ends of streams that our client has made.
    streams: Arc<Mutex<Vec<DuplexStream>>>,
    peer: Option<Peer>,
    old: Vec<Peer>,
    calls: JoinSet<Ended>,
    /// The calls that have ended.
    ended: Vec<Result<Ended, JoinError>>,
    handles: Vec<AbortHandle>,
    is_wild: Arc<AtomicBool>,
    is_raw: bool,
}

/// Runs a client.
pub(crate) async fn run(input: &mut Input<'_>, is_raw: bool) {
    let options = Options::new(input);
    let streams = Arc::new(Mutex::new(Vec::new()));
    let (made, capacity) = (streams.clone(), options.capacity);
    let count = Mutex::new(0);
    let channel = Channel::with_connector("host:50051", false, options.config, move || {
        let mut count = count.lock().expect("no panic");
        let (ours, theirs) = duplex(capacity);
        *count += 1;
        let outcome = if *count <= CONNECTIONS {
            made.lock().expect("no panic").push(theirs);
            Ok(ours)
        } else {
            Err(io::ErrorKind::ConnectionRefused.into())
        };
        async { outcome }
    });
    let mut session = Session {
        options,
        channel: Some(channel),
        streams,
        peer: None,
        old: Vec::new(),
        calls: JoinSet::new(),
        ended: Vec::new(),
        handles: Vec::new(),
        is_wild: Arc::new(AtomicBool::new(is_raw)),
        is_raw,
    };
    let (kind, shape) = (input.below(KINDS) as u8, input.byte());
    session.call(kind, shape);
    session.accept(input).await;
    if !is_raw {
        for _ in 0..COMMANDS {
            if input.is_empty() {
                break;
            }
            session.accept(input).await;
            session.command(input).await;
            session.note_garbage();
            if let Some(peer) = session.peer.as_mut().filter(|_| !options.burst) {
                peer.settle().await;
            }
        }
    }
    session.close(input.flag()).await;
}

impl Session {
    /// Takes the next connection, if the last has ended.
    async fn accept(&mut self, input: &mut Input<'_>) {
        if self.peer.as_ref().is_some_and(|peer| peer.has_ended) {
            self.old.extend(self.peer.take());
        }
        if self.peer.is_some() {
            return;
        }
        // So that a connect is made that is wanted.
        sleep(Duration::from_millis(1)).await;
        let Some(stream) = self.streams.lock().expect("no panic").pop() else { return };
        let peer = self.peer.insert(Peer::new(self.options, true, stream));
        if self.is_raw {
            say_rest(peer, input).await;
            return;
        }
        peer.settle().await;
        // An attempt may have ended before the peer came to it.
        peer.has_finished = peer.has_ended;
        peer.hello();
        peer.settle().await;
    }

    fn note_garbage(&self) {
        if self.peer.as_ref().is_some_and(|peer| peer.is_wild) {
            self.is_wild.store(true, Ordering::Relaxed);
        }
    }

    fn call(&mut self, kind: u8, shape: u8) -> u8 {
        let filler = self.handles.len() as u8;
        if let Some(channel) = self.channel.clone() {
            let request = request(kind, filler, shape, self.options.long);
            let call = call(channel, request, filler, shape, self.is_wild.clone());
            self.handles.push(self.calls.spawn(async move { (filler, shape, call.await) }));
        }
        filler
    }

    async fn command(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..=2 => {
                let (kind, shape) = (input.below(KINDS) as u8, input.byte());
                self.call(kind, shape);
            }
            3 => {
                let place = input.below(self.handles.len().max(1));
                self.handles.get(place).inspect(|call| call.abort());
            }
            4 => sleep(Duration::from_millis(50 * u64::from(input.byte()))).await,
            5 if input.byte() == 0 => self.channel = None,
            command => {
                if let Some(peer) = &mut self.peer {
                    say(peer, command, input).await;
                }
            }
        }
    }

    /// Checks that a peer that has kept the rules still gets calls.
    async fn check_usable(&mut self) {
        let Some(mut peer) = self.peer.take() else { return };
        peer.grant(0, 1 << 20);
        // A reset ends a call, also one that waits for a place.
        let begin = Instant::now();
        while !self.calls.is_empty() {
            for call in 1..=peer.heard.last {
                let said = peer.said.flow(call);
                if !said.has_ended && !said.was_reset {
                    peer.reset(call, 3);
                }
            }
            peer.settle().await;
            while let Some(ended) = self.calls.try_join_next() {
                self.ended.push(ended);
            }
            assert!(begin.elapsed() < PATIENCE, "a call does not end with its reset");
        }
        let (before, filler) = (peer.heard.last, self.call(0, 0));
        peer.until("a call comes", |peer| peer.heard.last > before).await;
        let call = peer.heard.last;
        assert_eq!(peer.filler(call), filler);
        peer.head(call, HEADS[0], 10, END);
        peer.settle().await;
        // The windows are as large as ever, or nearly.
        assert_eq!(peer.said.flow(call).bytes, 10);
        self.peer = Some(peer);
        let ended = self.calls.join_next().await.expect("the only call").expect("no panic");
        assert_eq!(ended.2.expect("an answer"), 10);
    }

    async fn close(mut self, hard: bool) {
        if let Some(peer) = &mut self.peer {
            peer.check_refusal().await;
        }
        let is_legal = |peer: &Peer| peer.is_legal() && peer.said.hello.is_some();
        if self.channel.is_some() && self.peer.as_ref().is_some_and(is_legal) {
            let peer = self.peer.as_ref().expect("looked at before");
            assert!(!peer.has_ended && peer.heard.away.is_none(), "the end of a good connection");
            self.check_usable().await;
        }
        if let Some(mut peer) = self.peer.take() {
            if hard || peer.is_deaf {
                peer.close(true).await;
            } else {
                peer.close(false).await;
            }
            self.old.push(peer);
        }
        // A call that connects meets nobody.
        let streams = self.streams.clone();
        let refuse = async {
            loop {
                streams.lock().expect("no panic").clear();
                sleep(Duration::from_millis(100)).await;
            }
        };
        let ends = async {
            while let Some(ended) = self.calls.join_next().await {
                self.ended.push(ended);
            }
        };
        within("every call ends", async {
            tokio::select! {
                biased;
                () = ends => {}
                () = refuse => {}
            }
        })
        .await;
        for ended in std::mem::take(&mut self.ended) {
            match ended {
                Ok((filler, shape, Ok(length))) => self.check(filler, shape, length),
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                _ => {}
            }
        }
    }

    /// Checks that an answer is whole.
    fn check(&self, filler: u8, shape: u8, length: u64) {
        // An answer of gRPC may be an error, and one that was dropped is not whole.
        if self.is_wild.load(Ordering::Relaxed) || shape & (1 | 8) != 0 {
            return;
        }
        let of_peer = |peer: &Peer| {
            let call = peer.fillers.iter().find(|(_, other)| **other == filler)?.0;
            Some(peer.said.flow(*call))
        };
        let said = self.old.iter().find_map(of_peer).expect("an answer to a call that was read");
        assert!(said.has_ended && said.bytes == length, "{length} of {said:?}");
    }
}

/// Returns a call that the peer may say more of: one without a head so far, or one with it.
fn pick(peer: &Peer, input: &mut Input<'_>, has_head: bool) -> Option<u32> {
    let call = 1 + input.below(peer.heard.last.clamp(1, 255) as usize) as u32;
    let said = peer.said.flow(call);
    let is_open = peer.heard.flow(call).has_head && !said.has_ended && !said.was_reset;
    (is_open && said.has_head == has_head).then_some(call)
}

/// Has the peer say something.
async fn say(peer: &mut Peer, command: usize, input: &mut Input<'_>) {
    match command {
        5..=8 => {
            let head = HEADS[input.below(HEADS.len())];
            let length = peer.length(input);
            let flags = [END, END, END | TRAILERS, 0][command - 5];
            if let Some(call) = pick(peer, input, false) {
                peer.head(call, head, length, flags);
            }
        }
        9 | 10 => {
            let (length, flags) = (peer.length(input), [0, 0, END, END | TRAILERS][input.below(4)]);
            if let Some(call) = pick(peer, input, true) {
                peer.data(call, length, flags);
            }
        }
        11 => {
            let (code, has_head) = (input.byte(), input.flag());
            if let Some(call) = pick(peer, input, has_head) {
                peer.reset(call, code.into());
            }
        }
        12 => {
            let call = input.below(peer.heard.last.min(254) as usize + 1) as u32;
            peer.grant(call, 1 << (input.byte() % 22));
        }
        13 => peer.is_deaf ^= true,
        14 => match input.below(4) {
            0 => peer.away(u32::from(input.byte()).min(peer.heard.last), input.byte().into()),
            1 => peer.has_finished = true,
            2 => peer.close(true).await,
            _ => peer.violate(input),
        },
        _ => peer.garbage(input),
    }
}
