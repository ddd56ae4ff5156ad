//! The spans of both ends, by a subscriber of `tracing`. Time is virtual.

mod memory;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use memory::{Network, grpc, settle};
use tokio::time::timeout;
use tokio_rdma::RdmaListener;
use tokio_rdma_rpc::{Channel, Error, serve};
use tower_service::Service;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// The fields of a span or an event.
#[derive(Clone, Debug, Default, PartialEq)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

/// A layer that records the spans of calls: those that have ended, and the events within.
#[derive(Clone, Default)]
struct Spans {
    ended: Arc<Mutex<Vec<Fields>>>,
    /// The value of `otel.kind` of the span that each event of the service is in.
    events: Arc<Mutex<Vec<Option<String>>>>,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if attributes.metadata().target() == "tokio_rdma_rpc::call" {
            assert_eq!(
                (attributes.metadata().name(), *attributes.metadata().level()),
                ("call", Level::DEBUG)
            );
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            context.span(id).expect("a new span").extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(fields) = context.span(id).expect("a span").extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if event.metadata().target().contains("memory") {
            let span = context.event_span(event);
            let kind = span.and_then(|span| span.extensions().get::<Fields>()?.0.get("otel.kind").cloned());
            self.events.lock().expect("no panic").push(kind);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        if let Some(fields) = context.span(&id).expect("a span").extensions_mut().remove::<Fields>() {
            self.ended.lock().expect("no panic").push(fields);
        }
    }
}

impl Spans {
    /// Records the spans of this thread up to this level.
    fn install(level: LevelFilter) -> (Self, DefaultGuard) {
        let spans = Self::default();
        let subscriber = tracing_subscriber::registry().with(level).with(spans.clone());
        (spans, tracing::subscriber::set_default(subscriber))
    }

    /// Takes the span of the last call at each end, the client's first.
    fn take(&self) -> [Fields; 2] {
        let mut ended = std::mem::take(&mut *self.ended.lock().expect("no panic"));
        ended.sort_by_key(|fields| fields.0["otel.kind"].clone());
        ended.try_into().expect("a span at each end")
    }
}

/// Returns fields: those of every call to the server, and these.
fn fields<const N: usize>(kind: &'static str, others: [(&'static str, &str); N]) -> Fields {
    let all = [("otel.kind", kind), ("server.address", "server"), ("server.port", "7000")];
    Fields(all.into_iter().chain(others).map(|(name, value)| (name, value.to_owned())).collect())
}

/// Makes a call, and reads its answer to the end.
async fn call(channel: &Channel, request: Request<Full<Bytes>>) -> Result<(), Error> {
    let outcome = channel.clone().call(request).await?.into_body().collect().await.map(drop);
    settle().await;
    outcome
}

#[tokio::test(start_paused = true)]
async fn grpc_calls_have_spans_at_both_ends() {
    let (spans, _guard) = Spans::install(LevelFilter::DEBUG);
    let network = Network::default();
    let _server = network.serve();
    let channel = network.channel();
    let of = |kind, method: &str, status: &str, is_error: bool| {
        let mut fields = fields(
            kind,
            [
                ("otel.name", method),
                ("rpc.system.name", "grpc"),
                ("rpc.method", method),
                ("rpc.status_code", status),
            ],
        );
        if is_error {
            fields.0.extend([("error.type", status.to_owned()), ("otel.status_code", "ERROR".to_owned())]);
        }
        fields
    };
    let both = |method: &str, status: &str, [client, server]: [bool; 2]| {
        [of("client", method, status, client), of("server", method, status, server)]
    };
    call(&channel, grpc("/a.Service/Echo", 10)).await.expect("an answer");
    assert_eq!(spans.take(), both("a.Service/Echo", "OK", [false, false]));
    call(&channel, grpc("/a.Service/Missing", 10)).await.expect("an answer");
    assert_eq!(spans.take(), both("a.Service/Missing", "NOT_FOUND", [true, false]));
    call(&channel, grpc("/a.Service/Broken", 10)).await.expect("an answer");
    assert_eq!(spans.take(), both("a.Service/Broken", "INTERNAL", [true, true]));
    // The body of an answer that is dropped, and a call.
    drop(channel.clone().call(grpc("/a.Service/Endless", 10)).await.expect("an answer"));
    settle().await;
    assert_eq!(spans.take(), both("a.Service/Endless", "CANCELLED", [true, false]));
    let _ = timeout(Duration::from_secs(1), call(&channel, grpc("/a.Service/Never", 10))).await;
    settle().await;
    assert_eq!(spans.take(), both("a.Service/Never", "CANCELLED", [true, false]));
    // The events of the service are in its spans.
    let events = spans.events.lock().expect("no panic").clone();
    assert_eq!(events, vec![Some("server".to_owned()); 5]);
}

#[tokio::test(start_paused = true)]
async fn http_calls_have_spans_at_both_ends() {
    let (spans, _guard) = Spans::install(LevelFilter::DEBUG);
    let network = Network::default();
    let _server = network.serve();
    let channel = network.channel();
    let get = |path: &str| Request::get(path).body(Full::default()).expect("a request");
    let of = |kind, path: &str| {
        fields(kind, [("otel.name", "GET"), ("http.request.method", "GET"), ("url.path", path)])
    };
    let with = |mut fields: Fields, others: &[(&'static str, &str)]| {
        fields.0.extend(others.iter().map(|(name, value)| (*name, value.to_string())));
        fields
    };
    let error = |kind: &'static str| [("error.type", kind), ("otel.status_code", "ERROR")];
    call(&channel, get("/Echo?query")).await.expect("an answer");
    let status = [("http.response.status_code", "200")];
    assert_eq!(spans.take(), ["client", "server"].map(|kind| with(of(kind, "/Echo"), &status)));
    call(&channel, get("/Missing")).await.expect("an answer");
    let status = [("http.response.status_code", "404")];
    let [client, server] = ["client", "server"].map(|kind| with(of(kind, "/Missing"), &status));
    assert_eq!(spans.take(), [with(client, &error("404")), server]);
    call(&channel, get("/Panic")).await.expect_err("no answer");
    assert_eq!(spans.take(), ["client", "server"].map(|kind| with(of(kind, "/Panic"), &error("internal"))));
    // Refused.
    let none = Network::default().channel();
    call(&none, get("/Echo")).await.expect_err("refused");
    let ended = std::mem::take(&mut *spans.ended.lock().expect("no panic"));
    assert_eq!(ended, [with(of("client", "/Echo"), &error("connect"))]);
}

#[tokio::test(start_paused = true)]
async fn span_of_client_ends_with_the_answer() {
    let (spans, _guard) = Spans::install(LevelFilter::DEBUG);
    let network = Network::default();
    let _server = network.serve();
    let mut channel = network.channel();
    let body = channel.call(grpc("/a.Service/Endless", 10)).await.expect("an answer").into_body();
    settle().await;
    assert_eq!(*spans.ended.lock().expect("no panic"), []);
    drop(body);
    settle().await;
    let [_client, _server] = spans.take();
}

#[tokio::test(start_paused = true)]
async fn no_spans_at_info() {
    let (spans, _guard) = Spans::install(LevelFilter::INFO);
    let network = Network::default();
    let _server = network.serve();
    call(&network.channel(), grpc("/a.Service/Echo", 10)).await.expect("an answer");
    assert_eq!(*spans.ended.lock().expect("no panic"), []);
    assert_eq!(*spans.events.lock().expect("no panic"), [None]);
}

#[tokio::test]
async fn server_has_address_of_peer() {
    let (spans, _guard) = Spans::install(LevelFilter::DEBUG);
    let listener = RdmaListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound").to_string();
    let _server = tokio::spawn(serve(listener, tower::service_fn(memory::answer)));
    let channel = common::within(Channel::connect(address)).await.expect("connected");
    common::within(call(&channel, grpc("/a.Service/Echo", 10))).await.expect("an answer");
    let [client, server] = spans.take();
    let peer = |fields: &Fields| fields.0.get("network.peer.address").cloned();
    assert_eq!((peer(&client), peer(&server)), (None, Some("127.0.0.1".to_owned())));
    assert!(server.0["network.peer.port"].parse::<u16>().is_ok_and(|port| port > 0));
}
