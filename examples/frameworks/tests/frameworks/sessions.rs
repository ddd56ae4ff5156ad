//! tonic and TLS over streams with a session, while their connections are lost.

mod device;
mod relay;

use std::net::SocketAddr;

use crate::echo::{Answer, Echo, EchoClient, EchoServer, Note, Total, Wish};
use crate::service::Plain;
use common::session::Path;
use common::stream::pattern;
use common::within;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_rdma::{RdmaConnector, RdmaListener};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::codegen::BoxStream;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Streaming};
use tower::ServiceExt;

/// The bytes of a note.
const LENGTH: usize = 2000;
/// The most questions of a chat that wait for their answers.
const AHEAD: usize = 16;

/// The note of a number.
fn note(number: usize) -> Note {
    Note::new([&number.to_be_bytes()[..], &pattern(number, LENGTH)].concat())
}

/// A service whose streams are numbered notes.
struct Numbers;

impl Echo for Numbers {
    async fn say(&self, request: Request<Note>) -> Answer<Note> {
        Plain.say(request).await
    }

    async fn count(&self, request: Request<Streaming<Note>>) -> Answer<Total> {
        Plain.count(request).await
    }

    async fn repeat(&self, request: Request<Wish>) -> Answer<BoxStream<Note>> {
        let times = request.into_inner().times as usize;
        Ok(Response::new(stream::iter(0..times).map(note).map(Ok).boxed()))
    }

    async fn chat(&self, request: Request<Streaming<Note>>) -> Answer<BoxStream<Note>> {
        Plain.chat(request).await
    }
}

/// A server and a client, and the paths of the streams between them.
struct Service {
    client: EchoClient,
    /// Those of the client, and those of the server.
    paths: [mpsc::UnboundedReceiver<Path>; 2],
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Service {
    /// Serves, and connects when a call needs it.
    fn start(listener: RdmaListener, connector: RdmaConnector, address: SocketAddr) -> Self {
        let [(ours, our_paths), (theirs, their_paths)] = [(); 2].map(|()| mpsc::unbounded_channel());
        let incoming = listener.tonic().inspect_ok(move |stream| {
            theirs.send(Path::of(stream.get_ref())).expect("the test goes on");
        });
        let server = Server::builder().add_service(EchoServer::new(Numbers));
        let server = tokio::spawn(server.serve_with_incoming(incoming));
        let connector = connector.tonic().map_response(move |stream| {
            ours.send(Path::of(stream.inner())).expect("the test goes on");
            stream
        });
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a URI");
        let client = EchoClient::new(endpoint.connect_with_connector_lazy(connector));
        Self { client, paths: [our_paths, their_paths], server }
    }

    /// Makes the first call. Returns the paths of the stream that it takes, at the client and at the server.
    async fn connected(&mut self) -> [Path; 2] {
        let answer = within(self.client.say(note(0))).await.expect("answered");
        assert_eq!(answer.into_inner(), note(0));
        self.paths.each_mut().map(|paths| paths.try_recv().expect("a stream"))
    }

    /// Makes another call, which takes the stream of all the others.
    async fn ended(mut self) {
        within(self.client.say(note(1))).await.expect("answered");
        assert!(self.paths.iter_mut().all(|paths| paths.try_recv().is_err()), "there was another stream");
        self.server.abort();
    }
}

/// Chats until it is `over`. Each answer is the next note, and the last comes before the end of the call.
async fn chat(mut client: EchoClient, over: CancellationToken, answered: watch::Sender<usize>) {
    let (questions, asked) = mpsc::channel(AHEAD);
    let mut answers = within(client.chat(ReceiverStream::new(asked))).await.expect("answered").into_inner();
    let asking = async move {
        let mut count = 0;
        while !over.is_cancelled() {
            questions.send(note(count)).await.expect("the call goes on");
            count += 1;
        }
        count
    };
    let answering = async {
        let mut count = 0;
        while let Some(answer) = answers.message().await.expect("no failure") {
            assert!(answer == note(count), "answer {count}");
            count += 1;
            answered.send_replace(count);
        }
        count
    };
    let (asked, answered) = tokio::join!(asking, answering);
    assert_eq!(asked, answered);
}

/// Has the service send notes, each of which is the next, and then the end. `goes_on` is asked before each.
async fn listen(mut client: EchoClient, times: u32, mut goes_on: impl AsyncFnMut(usize) -> bool) {
    let wish = Wish { times, ..Wish::default() };
    let mut notes = within(client.repeat(wish)).await.expect("answered").into_inner();
    for number in 0..times as usize {
        if !goes_on(number).await {
            return;
        }
        let sent = notes.message().await.expect("no failure");
        assert!(sent == Some(note(number)), "note {number}");
    }
    assert_eq!(notes.message().await.expect("no failure"), None);
}
