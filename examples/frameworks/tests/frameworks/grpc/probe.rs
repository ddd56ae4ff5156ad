//! A server that does what a call asks of it, and tells how many of its calls are running.

use std::sync::Arc;

use futures::{Stream, StreamExt, future, stream};
use tokio::sync::{Barrier, Semaphore, watch};
use tonic::codegen::BoxStream;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::echo::{Answer, Echo, Note, Total, Wish};
use crate::service::Plain;
use common::within;

/// The metadata that says what is to be done instead of an echo.
pub(crate) const ACT: &str = "x-act";
/// Metadata that an answer has as its request had it.
pub(crate) const TEXT: &str = "x-text";
pub(crate) const BLOB: &str = "x-blob-bin";
/// How many calls meet each other.
pub(crate) const MEETING: usize = 64;

/// The calls that the server sees, and the events that it waits for.
pub(crate) struct Probe {
    begun: watch::Sender<usize>,
    ended: watch::Sender<usize>,
    gate: Semaphore,
    meeting: Barrier,
}

/// One call that runs: its future, or the stream that it answers with.
struct Running(Arc<Probe>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.ended.send_modify(|count| *count += 1);
    }
}

impl Probe {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            begun: watch::Sender::new(0),
            ended: watch::Sender::new(0),
            gate: Semaphore::new(0),
            meeting: Barrier::new(MEETING),
        })
    }

    fn begin(self: &Arc<Self>) -> Running {
        self.begun.send_modify(|count| *count += 1);
        Running(Arc::clone(self))
    }

    /// How many calls have been begun.
    pub(crate) fn begun(&self) -> usize {
        *self.begun.borrow()
    }

    /// Waits until so many have been begun.
    pub(crate) async fn until_begun(&self, count: usize) {
        let mut begun = self.begun.subscribe();
        within(begun.wait_for(|now| *now >= count)).await.expect("it counts");
    }

    /// Waits until none is running: what was begun has ended, or was dropped.
    pub(crate) async fn until_idle(&self) {
        let mut ended = self.ended.subscribe();
        within(ended.wait_for(|now| *now == self.begun())).await.expect("it counts");
    }

    /// Lets one call go on that waits at the gate.
    pub(crate) fn open(&self) {
        self.gate.add_permits(1);
    }
}

/// The server.
pub(crate) struct Probed(pub(crate) Arc<Probe>);

/// The act that a call asks for.
fn act<T>(request: &Request<T>) -> String {
    request.metadata().get(ACT).map_or("", |value| value.to_str().expect("text")).to_owned()
}

/// An error with everything that one can have.
pub(crate) fn refusal() -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert(TEXT, "why".parse().expect("text"));
    let details = (0..=255).collect::<Vec<u8>>().into();
    Status::with_details_and_metadata(Code::FailedPrecondition, "it is shut: naïve?", details, metadata)
}

/// A stream that counts as running until it is dropped.
fn held(
    running: Running,
    notes: impl Stream<Item = Result<Note, Status>> + Send + 'static,
) -> BoxStream<Note> {
    let hold = move |note| {
        let _running = &running;
        note
    };
    notes.map(hold).boxed()
}

impl Echo for Probed {
    async fn say(&self, request: Request<Note>) -> Answer<Note> {
        let _running = self.0.begin();
        match act(&request).as_str() {
            "fail" => return Err(refusal()),
            "hang" => future::pending().await,
            "wait" => self.0.gate.acquire().await.expect("never closed").forget(),
            "meet" => {
                self.0.meeting.wait().await;
            }
            "who" => {
                let peer = request.remote_addr().map(|address| address.ip());
                return Ok(Response::new(Note::new(format!("{peer:?}"))));
            }
            _ => {}
        }
        let metadata = request.metadata().clone();
        let mut response = Plain.say(request).await?;
        if let Some(text) = metadata.get(TEXT) {
            response.metadata_mut().insert(TEXT, text.clone());
        }
        if let Some(blob) = metadata.get_bin(BLOB) {
            response.metadata_mut().insert_bin(BLOB, blob.clone());
        }
        Ok(response)
    }

    async fn count(&self, request: Request<Streaming<Note>>) -> Answer<Total> {
        let _running = self.0.begin();
        Plain.count(request).await
    }

    async fn repeat(&self, request: Request<Wish>) -> Answer<BoxStream<Note>> {
        let running = self.0.begin();
        let act = act(&request);
        let notes = Plain.repeat(request).await?.into_inner();
        let end: BoxStream<Note> = match act.as_str() {
            "fail" => stream::iter([Err(refusal())]).boxed(),
            "hang" => stream::pending().boxed(),
            _ => stream::empty().boxed(),
        };
        Ok(Response::new(held(running, notes.chain(end))))
    }

    async fn chat(&self, request: Request<Streaming<Note>>) -> Answer<BoxStream<Note>> {
        let running = self.0.begin();
        let notes = Plain.chat(request).await?.into_inner();
        Ok(Response::new(held(running, notes)))
    }
}
