//! tonic: one list of cases, over TCP and over the stream, with the same results.

mod info;
mod probe;
mod rdma;
mod server;
mod tcp;
mod transport;

use std::time::Duration;

use crate::echo::{EchoClient, Note, Total, Wish};
use bytes::Bytes;
use common::device::{is_emulated, nobody};
use common::dice::Dice;
use common::often;
use futures::future::join_all;
use futures::{StreamExt, TryStreamExt, stream};
use probe::{ACT, BLOB, MEETING, TEXT, refusal};
use server::Running;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};
use transport::Transport;

/// A test of each case over the transport that is named.
macro_rules! cases {
    ($transport:ident) => {
        $crate::grpc::cases! {
            @ $transport
            a_unary_call_is_answered,
            a_client_streams,
            a_server_streams,
            both_stream_in_turns,
            metadata_go_both_ways,
            a_refusal_has_all_its_parts,
            a_deadline_ends_the_call_on_both_sides,
            a_dropped_call_is_dropped_by_the_server,
            a_dropped_stream_is_dropped_by_the_server,
            a_message_above_the_default_limit_goes_both_ways,
            a_message_above_the_limit_is_refused,
            sixty_four_calls_run_at_once,
            calls_in_flight_outlive_the_end_of_the_listening,
            a_server_that_is_gone_is_unavailable,
            a_channel_finds_the_server_that_came_back
        }
    };
    (@ $transport:ident $($name:ident),+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                common::within(crate::grpc::$name::<crate::grpc::transport::$transport>()).await;
            }
        )+
    };
}
use cases;

/// A request that asks for something else than an echo.
fn acting<T>(act: &'static str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(ACT, MetadataValue::from_static(act));
    request
}

/// Bytes without a pattern that a mistake of the transport could hit.
fn noise(length: usize) -> Bytes {
    const WORD: usize = size_of::<usize>();
    let mut dice = Dice::of(0, length);
    let mut bytes = vec![0; length.next_multiple_of(WORD)];
    for word in bytes.chunks_exact_mut(WORD) {
        word.copy_from_slice(&dice.below(usize::MAX).to_ne_bytes());
    }
    bytes.truncate(length);
    bytes.into()
}

async fn a_unary_call_is_answered<T: Transport>() {
    let server = Running::<T>::start().await;
    let mut client = server.client();
    for length in [0, 1, 5, 4096, 70_000] {
        let note = Note::new(noise(length));
        let answer = client.say(note.clone()).await.expect("answered").into_inner();
        assert!(answer == note, "{length} bytes");
    }
    // A service asks tonic who is calling, whatever the call came over.
    let answer = client.say(acting("who", Note::default())).await.expect("answered").into_inner();
    assert_eq!(answer, Note::new(format!("{:?}", Some(server.address.ip()))));
}

async fn a_client_streams<T: Transport>() {
    let server = Running::<T>::start().await;
    let mut client = server.client();
    let none = client.count(stream::empty()).await.expect("answered").into_inner();
    assert_eq!(none, Total::default());
    let count = often(1000, 100);
    let notes = stream::iter(0..count).map(|length| Note::new(vec![1; length]));
    let total = client.count(notes).await.expect("answered").into_inner();
    let (notes, bytes) = (count as u64, (count * (count - 1) / 2) as u64);
    assert_eq!(total, Total { notes, bytes });
}

async fn a_server_streams<T: Transport>() {
    let server = Running::<T>::start().await;
    let mut client = server.client();
    for (length, times) in [(0, 3), (10, often(1000, 50)), (100_000, often(200, 20)), (7, 0)] {
        let text = noise(length);
        let wish = Wish { text: text.clone(), times: times as u32 };
        let notes = client.repeat(wish).await.expect("answered").into_inner();
        let texts: Vec<Bytes> = notes.map_ok(|note| note.text).try_collect().await.expect("all of them");
        assert_eq!(texts.len(), times);
        assert!(texts.iter().all(|other| *other == text), "{length} bytes");
    }
}

// IO-14: tonic, with every kind of call.
async fn both_stream_in_turns<T: Transport>() {
    let server = Running::<T>::start().await;
    let (questions, asked) = mpsc::channel(1);
    let mut answers = server.client().chat(ReceiverStream::new(asked)).await.expect("answered").into_inner();
    for number in 0..often(200, 20) {
        let note = Note::new(format!("{number}"));
        questions.send(note.clone()).await.expect("the call lives");
        assert_eq!(answers.message().await.expect("no failure"), Some(note));
    }
    assert_eq!(server.probe.begun(), 1);
    drop(questions);
    assert_eq!(answers.message().await.expect("no failure"), None);
    server.probe.until_idle().await;
}

async fn metadata_go_both_ways<T: Transport>() {
    let server = Running::<T>::start().await;
    let mut client = server.client();
    let (text, blob) = ("x".repeat(3000), noise(2000));
    let mut request = Request::new(Note::new("hello"));
    request.metadata_mut().insert(TEXT, text.parse().expect("text"));
    request.metadata_mut().insert_bin(BLOB, MetadataValue::from_bytes(&blob));
    let response = client.say(request).await.expect("answered");
    assert_eq!(response.metadata().get(TEXT).expect("it is back").to_str().expect("text"), text);
    let back = response.metadata().get_bin(BLOB).expect("it is back").to_bytes().expect("bytes");
    assert!(back == blob);
    assert_eq!(response.into_inner(), Note::new("hello"));
}

/// Everything of an error that an application sees.
fn assert_is_refusal(status: &Status) {
    let expected = refusal();
    assert_eq!((status.code(), status.message()), (expected.code(), expected.message()));
    assert_eq!(status.details(), expected.details());
    assert_eq!(status.metadata().get(TEXT), expected.metadata().get(TEXT));
}

async fn a_refusal_has_all_its_parts<T: Transport>() {
    let server = Running::<T>::start().await;
    let mut client = server.client();
    assert_is_refusal(&client.say(acting("fail", Note::default())).await.expect_err("refused"));
    // In the trailers, behind what had come until then.
    let wish = Wish { text: "before".into(), times: 3 };
    let mut notes = client.repeat(acting("fail", wish)).await.expect("answered").into_inner();
    for _ in 0..3 {
        assert_eq!(notes.message().await.expect("no failure yet"), Some(Note::new("before")));
    }
    assert_is_refusal(&notes.message().await.expect_err("refused"));
    // Neither took the connection with it.
    client.say(Note::new("and now?")).await.expect("answered");
}

async fn a_deadline_ends_the_call_on_both_sides<T: Transport>() {
    let server = Running::<T>::start().await;
    let mut client = server.client();
    // A deadline may pass before the server has heard of the call, if that takes long: then the next is longer.
    let mut limit = Duration::from_millis(50);
    while server.probe.begun() == 0 {
        let mut request = acting("hang", Note::default());
        request.set_timeout(limit);
        let status = client.say(request).await.expect_err("no answer");
        assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
        limit *= 2;
    }
    server.probe.until_idle().await;
    client.say(Note::new("and now?")).await.expect("answered");
}

async fn a_dropped_call_is_dropped_by_the_server<T: Transport>() {
    let server = Running::<T>::start().await;
    let client = server.client();
    let call = tokio::spawn({
        let mut client = client.clone();
        async move { client.say(acting("hang", Note::default())).await }
    });
    server.probe.until_begun(1).await;
    call.abort();
    server.probe.until_idle().await;
    client.clone().say(Note::new("and now?")).await.expect("answered");
}

async fn a_dropped_stream_is_dropped_by_the_server<T: Transport>() {
    let server = Running::<T>::start().await;
    let mut client = server.client();
    let wish = Wish { text: "once".into(), times: 1 };
    let mut notes = client.repeat(acting("hang", wish)).await.expect("answered").into_inner();
    assert_eq!(notes.message().await.expect("no failure"), Some(Note::new("once")));
    drop(notes);
    server.probe.until_idle().await;
    // One whose window is full, so that the server waits.
    let wish = Wish { text: noise(1 << 20), times: 100 };
    let notes = client.repeat(wish).await.expect("answered");
    drop(notes);
    server.probe.until_idle().await;
    client.say(Note::new("and now?")).await.expect("answered");
}

async fn a_message_above_the_default_limit_goes_both_ways<T: Transport>() {
    let server = Running::<T>::start().await;
    // tonic's default is 4 MiB; this service takes 16.
    let length = if is_emulated() { 5 << 20 } else { 16 << 20 };
    let note = Note::new(noise(length));
    let answer = server.client().say(note.clone()).await.expect("answered").into_inner();
    assert!(answer == note);
}

async fn a_message_above_the_limit_is_refused<T: Transport>() {
    let server = Running::<T>::start().await;
    let mut client = server.client();
    let status = client.say(Note::new(vec![0; 17 << 20])).await.expect_err("too long");
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    client.say(Note::new("and now?")).await.expect("answered");
}

async fn sixty_four_calls_run_at_once<T: Transport>() {
    let server = Running::<T>::start().await;
    let client = server.client();
    // None is answered before all are there.
    let calls = (0..MEETING).map(|number| {
        let mut client = client.clone();
        let note = Note::new(noise(number * 1000));
        tokio::spawn(async move {
            let answer = client.say(acting("meet", note.clone())).await.expect("answered").into_inner();
            assert!(answer == note, "call {number}");
        })
    });
    for call in join_all(calls).await {
        call.expect("no panic");
    }
}

async fn calls_in_flight_outlive_the_end_of_the_listening<T: Transport>() {
    let mut server = Running::<T>::start().await;
    let mut client = server.client();
    let (questions, asked) = mpsc::channel(1);
    let mut answers = client.chat(ReceiverStream::new(asked)).await.expect("answered").into_inner();
    let call = tokio::spawn({
        let mut client = client.clone();
        async move { client.say(acting("wait", Note::new("late"))).await }
    });
    server.probe.until_begun(2).await;
    server.tell_to_end().await;
    // Nobody new comes in.
    until_unavailable(&mut server.client()).await;
    // Those that are in go on to their end.
    questions.send(Note::new("still there?")).await.expect("the call lives");
    assert_eq!(answers.message().await.expect("no failure"), Some(Note::new("still there?")));
    drop(questions);
    assert_eq!(answers.message().await.expect("no failure"), None);
    server.probe.open();
    let answer = call.await.expect("no panic").expect("answered").into_inner();
    assert_eq!(answer, Note::new("late"));
    // Then their connection ends, though the client has not asked for that, and with it the server.
    server.ended().await;
    until_unavailable(&mut client).await;
}

/// Calls until the client knows that the server is gone. Before it does, tonic says of a call that was sent `Unknown`,
/// for the server may have done it, and of one that was not `Cancelled`; so it does over TCP, and by chance.
async fn until_unavailable(client: &mut EchoClient) {
    loop {
        let status = client.say(Note::default()).await.expect_err("it is gone");
        match status.code() {
            Code::Unavailable => return,
            code => assert!(matches!(code, Code::Unknown | Code::Cancelled), "{status:?}"),
        }
    }
}

async fn a_server_that_is_gone_is_unavailable<T: Transport>() {
    let server = Running::<T>::start().await;
    let mut client = server.client();
    let wish = Wish { text: "once".into(), times: 1 };
    let mut notes = client.repeat(acting("hang", wish)).await.expect("answered").into_inner();
    assert_eq!(notes.message().await.expect("no failure"), Some(Note::new("once")));
    let call = tokio::spawn({
        let mut client = client.clone();
        async move { client.say(acting("hang", Note::default())).await }
    });
    server.probe.until_begun(2).await;
    server.kill().await;
    let status = call.await.expect("no panic").expect_err("it is gone");
    assert!(matches!(status.code(), Code::Unknown | Code::Unavailable), "{status:?}");
    let status = notes.message().await.expect_err("it is gone");
    assert!(matches!(status.code(), Code::Unknown | Code::Unavailable), "{status:?}");
    until_unavailable(&mut client).await;
}

async fn a_channel_finds_the_server_that_came_back<T: Transport>() {
    // Nobody is given this port while the server is gone.
    let address = nobody(T::anywhere().ip());
    let mut server = Running::<T>::start_at(address).await;
    let mut client = server.client();
    for round in 0..4 {
        client.say(Note::new("first")).await.expect("answered");
        client.say(Note::new("again")).await.expect("answered");
        if round % 2 == 0 {
            server.tell_to_end().await;
            server.ended().await;
        } else {
            server.kill().await;
        }
        until_unavailable(&mut client).await;
        server = Running::start_at(address).await;
    }
    client.say(Note::new("last")).await.expect("answered");
}
