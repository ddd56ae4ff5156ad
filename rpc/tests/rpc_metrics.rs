//! The metrics of both ends, by the recorder of the facade `metrics`. Time is virtual.

mod memory;

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use memory::{Network, grpc, settle};
use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, LocalRecorderGuard, Metadata, Recorder, SharedString, Unit,
};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};
use tokio_rdma_rpc::{Channel, Error, Incoming, serve};
use tower_service::Service;

/// The hello of a client with large windows and no origin.
const HELLO: &[u8] =
    b"rdma-rpc\x01\x00\x00\x14\x00\x04\x00\x00\x00\x10\x00\x00\x00\x40\x00\x00\x00\x00\x00\x64\x00\x00\x40\x00";

/// What a recorder of this thread has recorded so far.
struct Meter {
    snapshotter: Snapshotter,
    /// Sums, and of histograms the number of samples.
    values: HashMap<String, f64>,
    samples: HashMap<String, Vec<f64>>,
    _guard: LocalRecorderGuard<'static>,
}

impl Meter {
    fn install() -> Self {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        let _guard = metrics::set_default_local_recorder(Box::leak(Box::new(recorder)));
        Self { snapshotter, values: HashMap::new(), samples: HashMap::new(), _guard }
    }

    fn read(&mut self) {
        // A snapshot empties the recorder, gauges too.
        for (key, _unit, _description, value) in self.snapshotter.snapshot().into_vec() {
            let labels: Vec<_> =
                key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            let series = format!("{}{{{}}}", key.key().name(), labels.join(","));
            let sum = self.values.entry(series.clone()).or_default();
            match value {
                DebugValue::Counter(count) => *sum += count as f64,
                DebugValue::Gauge(value) => *sum += value.0,
                DebugValue::Histogram(samples) => {
                    *sum += samples.len() as f64;
                    self.samples.entry(series).or_default().extend(samples.iter().map(|sample| sample.0));
                }
            }
        }
    }

    /// Returns the value of `name{label=value,..}`.
    fn value(&mut self, series: &str) -> f64 {
        self.read();
        self.values.get(series).copied().unwrap_or_default()
    }

    /// Returns the series of a name with their values.
    fn all(&mut self, name: &str) -> BTreeSet<String> {
        self.read();
        let named = self.values.iter().filter(|(series, _)| series.split('{').next() == Some(name));
        named.map(|(series, value)| format!("{}={value}", &series[name.len()..])).collect()
    }

    /// Returns the number of calls that run.
    fn in_flight(&mut self) -> [f64; 2] {
        ["client", "server"].map(|end| self.value(&format!("tokio_rdma_rpc_calls_in_flight{{end={end}}}")))
    }
}

fn set<const N: usize>(series: [&str; N]) -> BTreeSet<String> {
    series.map(str::to_owned).into()
}

/// Makes a call, and reads its answer to the end.
async fn call(channel: &Channel, request: Request<http_body_util::Full<Bytes>>) -> Result<(), Error> {
    channel.clone().call(request).await?.into_body().collect().await.map(drop)
}

fn get(path: &str) -> Request<http_body_util::Full<Bytes>> {
    Request::get(path).body(Default::default()).expect("a request")
}

/// A recorder of descriptions.
#[derive(Default)]
struct Descriptions(Mutex<BTreeSet<(String, &'static str, &'static str)>>);

impl Descriptions {
    fn add(&self, name: &KeyName, kind: &'static str, unit: Option<Unit>) {
        let unit = unit.map_or("", |unit| unit.as_str());
        self.0.lock().expect("no panic").insert((name.as_str().to_owned(), kind, unit));
    }
}

impl Recorder for Descriptions {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, _text: SharedString) {
        self.add(&name, "counter", unit);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, _text: SharedString) {
        self.add(&name, "gauge", unit);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, _text: SharedString) {
        self.add(&name, "histogram", unit);
    }

    fn register_counter(&self, _key: &Key, _metadata: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _key: &Key, _metadata: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _key: &Key, _metadata: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn docs_list_the_described_metrics() {
    let descriptions = Descriptions::default();
    metrics::with_local_recorder(&descriptions, tokio_rdma_rpc::metrics::describe);
    let documented: BTreeSet<_> = include_str!("../src/metrics/mod.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `"))
        .filter_map(|row| row.split_once("` | "))
        .filter_map(|(name, rest)| {
            let kinds = ["counter", "gauge", "histogram"];
            let kind = kinds.into_iter().find(|kind| rest.split(" | ").next() == Some(kind))?;
            let parts: Vec<_> = name.split('_').collect();
            let unit = match () {
                () if parts.contains(&"seconds") => "seconds",
                () if parts.contains(&"bytes") => "bytes",
                () => "count",
            };
            Some((name.to_owned(), kind, unit))
        })
        .collect();
    assert_eq!(documented, *descriptions.0.lock().expect("no panic"));
    assert_eq!(documented.len(), 13);
}

#[tokio::test(start_paused = true)]
async fn grpc_calls_are_counted_by_method_and_status() {
    let mut meter = Meter::install();
    let network = Network::default();
    let _server = network.serve();
    let channel = network.channel();
    for path in ["/a.Service/Echo", "/a.Service/Late", "/a.Service/Broken", "/a.Service/Missing", "/made/up"]
    {
        call(&channel, grpc(path, 10)).await.expect("an answer");
    }
    call(&channel, grpc("/a.Service/Panic", 10)).await.expect("a status");
    settle().await;
    assert_eq!(
        meter.all("rpc_client_call_duration_seconds"),
        set([
            "{rpc_system_name=grpc,rpc_method=a.Service/Echo,rpc_status_code=OK}=1",
            "{rpc_system_name=grpc,rpc_method=a.Service/Late,rpc_status_code=OK}=1",
            "{rpc_system_name=grpc,rpc_method=a.Service/Broken,rpc_status_code=INTERNAL,error_type=INTERNAL}=1",
            "{rpc_system_name=grpc,rpc_method=a.Service/Missing,rpc_status_code=NOT_FOUND,error_type=NOT_FOUND}=1",
            "{rpc_system_name=grpc,rpc_method=made/up,rpc_status_code=UNIMPLEMENTED,error_type=UNIMPLEMENTED}=1",
            "{rpc_system_name=grpc,rpc_method=a.Service/Panic,rpc_status_code=INTERNAL,error_type=INTERNAL}=1",
        ])
    );
    // A peer makes no series by the names that it sends; what is no fault of the server is no error there.
    assert_eq!(
        meter.all("rpc_server_call_duration_seconds"),
        set([
            "{rpc_system_name=grpc,rpc_method=a.Service/Echo,rpc_status_code=OK}=1",
            "{rpc_system_name=grpc,rpc_method=a.Service/Late,rpc_status_code=OK}=1",
            "{rpc_system_name=grpc,rpc_method=_OTHER,rpc_status_code=INTERNAL,error_type=INTERNAL}=2",
            "{rpc_system_name=grpc,rpc_method=_OTHER,rpc_status_code=NOT_FOUND}=1",
            "{rpc_system_name=grpc,rpc_method=_OTHER,rpc_status_code=UNIMPLEMENTED,error_type=UNIMPLEMENTED}=1",
        ])
    );
    for end in ["client", "server"] {
        let of = |method| {
            format!(
                "rpc_{end}_call_duration_seconds{{rpc_system_name=grpc,rpc_method={method},rpc_status_code=OK}}"
            )
        };
        assert_eq!(meter.samples[&of("a.Service/Late")], [3.0], "{end}");
        assert_eq!(meter.samples[&of("a.Service/Echo")], [0.0], "{end}");
    }
    assert_eq!(meter.in_flight(), [0.0, 0.0]);
    assert_eq!(meter.all("http_client_request_duration_seconds"), set([]));
}

#[tokio::test(start_paused = true)]
async fn http_calls_are_counted_by_status() {
    let mut meter = Meter::install();
    let network = Network::default();
    let _server = network.serve();
    let channel = network.channel();
    for path in ["/Echo", "/Echo", "/Broken", "/Missing", "/Odd"] {
        call(&channel, get(path)).await.expect("an answer");
    }
    let mut odd = get("/Echo");
    *odd.method_mut() = "BREW".parse().expect("a method");
    call(&channel, odd).await.expect("an answer");
    call(&channel, get("/Panic")).await.expect_err("no answer");
    let _ = timeout(Duration::from_secs(1), call(&channel, get("/Never"))).await;
    settle().await;
    let of_server = [
        "{http_request_method=GET,http_response_status_code=200}=2",
        "{http_request_method=GET,http_response_status_code=500,error_type=500}=1",
        // A peer could make up others without end.
        "{http_request_method=GET,http_response_status_code=_OTHER,error_type=_OTHER}=1",
        "{http_request_method=_OTHER,http_response_status_code=200}=1",
        "{http_request_method=GET,error_type=internal}=1",
        "{http_request_method=GET,error_type=cancelled}=1",
    ];
    let with = |missing: &str| {
        let mut all = set(of_server);
        all.insert(missing.to_owned());
        all
    };
    assert_eq!(
        meter.all("http_client_request_duration_seconds"),
        with("{http_request_method=GET,http_response_status_code=404,error_type=404}=1")
    );
    assert_eq!(
        meter.all("http_server_request_duration_seconds"),
        with("{http_request_method=GET,http_response_status_code=404}=1")
    );
    assert_eq!(meter.all("rpc_client_call_duration_seconds"), set([]));
}

#[tokio::test(start_paused = true)]
async fn dropped_calls_are_cancelled() {
    let mut meter = Meter::install();
    let network = Network::default();
    let _server = network.serve();
    let mut channel = network.channel();
    let waiting = tokio::spawn(channel.call(grpc("/b.Service/Never", 10)));
    let body = channel.call(grpc("/b.Service/Endless", 10)).await.expect("an answer").into_body();
    settle().await;
    assert_eq!(meter.in_flight(), [2.0, 2.0]);
    sleep(Duration::from_secs(5)).await;
    waiting.abort();
    settle().await;
    assert_eq!(meter.in_flight(), [1.0, 1.0]);
    drop(body);
    settle().await;
    assert_eq!(meter.in_flight(), [0.0, 0.0]);
    assert_eq!(
        meter.all("rpc_client_call_duration_seconds"),
        set(["Never", "Endless"].map(|method| format!(
            "{{rpc_system_name=grpc,rpc_method=b.Service/{method},rpc_status_code=CANCELLED,error_type=CANCELLED}}=1"
        )).each_ref().map(String::as_str))
    );
    let server = "rpc_server_call_duration_seconds";
    let of_server = "{rpc_system_name=grpc,rpc_method=_OTHER,rpc_status_code=CANCELLED}";
    assert_eq!(meter.all(server), set([&format!("{of_server}=2")]));
    assert!(
        meter.samples[&format!("{server}{of_server}")].iter().all(|seconds| (5.0..5.1).contains(seconds))
    );
    for series in
        ["resets_sent_total{end=client,code=cancelled}", "resets_received_total{end=server,code=cancelled}"]
    {
        assert_eq!(meter.value(&format!("tokio_rdma_rpc_{series}")), 2.0, "{series}");
    }
}

// The caller has ended its call, and not the service.
#[tokio::test(start_paused = true)]
async fn panic_of_a_caller_is_a_cancel() {
    let mut meter = Meter::install();
    let network = Network::default();
    let _server = network.serve();
    for kind in ["text/plain", "application/grpc"] {
        let frames =
            futures::stream::poll_fn(|_| -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
                panic!("in the task of the caller")
            });
        let request = Request::post("/g.Service/Echo").header("content-type", kind);
        let request = request.body(http_body_util::StreamBody::new(frames)).expect("a request");
        let outcome = tokio::spawn(network.channel().call(request)).await;
        assert!(outcome.is_err_and(|error| error.is_panic()));
    }
    assert_eq!(
        meter.all("http_client_request_duration_seconds"),
        set(["{http_request_method=POST,error_type=cancelled}=1"])
    );
    assert_eq!(
        meter.all("rpc_client_call_duration_seconds"),
        set([
            "{rpc_system_name=grpc,rpc_method=g.Service/Echo,rpc_status_code=CANCELLED,error_type=CANCELLED}=1"
        ])
    );
}

// The service learns of it by an answer that it cannot send, before its task is ended.
#[tokio::test(start_paused = true)]
async fn answers_to_lost_clients_are_counted() {
    let mut meter = Meter::install();
    let (near, far) = tokio::io::duplex(64 << 10);
    let client = Arc::new(Mutex::new(Some(near)));
    let kept = client.clone();
    let service = tower::service_fn(move |_: Request<Incoming>| {
        let client = kept.clone();
        async move {
            // Behind this, the task of the connection is not the one that answers.
            tokio::task::yield_now().await;
            drop(client.lock().expect("no panic").take());
            let pieces = [1, 2, 3]
                .map(|piece| Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(vec![piece; 9]))));
            Ok::<_, Infallible>(Response::new(http_body_util::StreamBody::new(futures::stream::iter(pieces))))
        }
    });
    let listener = futures::stream::iter([Ok::<_, std::io::Error>(far)]).chain(futures::stream::pending());
    let _server = tokio::spawn(serve(listener, service));
    // `GET /`
    let head = [0, 0, 0, 8, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 4, 2, 1, b'/', 0];
    let mut stream = client.lock().expect("no panic").take().expect("the stream");
    stream.write_all(&[HELLO, &head].concat()).await.expect("written");
    *client.lock().expect("no panic") = Some(stream);
    settle().await;
    assert!(client.lock().expect("no panic").is_none(), "it was answered");
    assert_eq!(
        meter.all("http_server_request_duration_seconds"),
        set(["{http_request_method=GET,http_response_status_code=200,error_type=lost}=1"])
    );
}

#[tokio::test(start_paused = true)]
async fn deadlines_of_clients_are_counted() {
    let mut meter = Meter::install();
    let network = Network::default();
    let _server = network.serve();
    let channel = network.channel();
    // Before the head of the answer, and behind it.
    for method in ["Never", "Endless"] {
        let mut request = grpc(&format!("/c.Service/{method}"), 10);
        request.headers_mut().insert("grpc-timeout", HeaderValue::from_static("2S"));
        call(&channel, request).await.expect("an answer with a status");
        let series = format!(
            "rpc_client_call_duration_seconds{{rpc_system_name=grpc,rpc_method=c.Service/{method},\
             rpc_status_code=DEADLINE_EXCEEDED,error_type=DEADLINE_EXCEEDED}}"
        );
        assert_eq!(meter.value(&series), 1.0, "{method}");
        assert!(meter.samples[&series].iter().all(|seconds| (2.0..2.1).contains(seconds)), "{method}");
    }
    settle().await;
    assert_eq!(meter.in_flight(), [0.0, 0.0]);
}

// By a client that keeps none itself.
#[tokio::test(start_paused = true)]
async fn deadlines_of_servers_are_counted() {
    let mut meter = Meter::install();
    let network = Network::default();
    let _server = network.serve();
    // `POST /Never`, of gRPC, with `grpc-timeout: 2S`.
    let block = b"\x01\x06/Never\x00\x80\x04\x022S";
    let length = block.len() as u8;
    let header = [0, 0, 0, 4 + length, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, length];
    let mut stream = network.connect().expect("a server");
    stream.write_all(&[HELLO, &header, block].concat()).await.expect("written");
    sleep(Duration::from_secs(3)).await;
    assert_eq!(
        meter.all("rpc_server_call_duration_seconds"),
        set(["{rpc_system_name=grpc,rpc_method=_OTHER,rpc_status_code=DEADLINE_EXCEEDED,\
              error_type=DEADLINE_EXCEEDED}=1"])
    );
    assert_eq!(meter.in_flight(), [0.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn bytes_of_bodies_are_counted_at_both_ends() {
    let mut meter = Meter::install();
    let network = Network::default();
    let _server = network.serve();
    let channel = network.channel();
    // In one frame, and in several.
    for length in [1_000, 300_000] {
        call(&channel, grpc("/d.Service/Echo", length)).await.expect("an answer");
    }
    settle().await;
    for end in ["client", "server"] {
        for direction in ["sent", "received"] {
            let series = format!("tokio_rdma_rpc_{direction}_bytes_total{{end={end}}}");
            assert_eq!(meter.value(&series), 301_000.0, "{series}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn connects_and_losses_are_counted() {
    let mut meter = Meter::install();
    let network = Network::default();
    let channel = network.channel();
    // None is there, and the pause behind a failure takes no attempt.
    for _ in 0..3 {
        call(&channel, get("/Echo")).await.expect_err("refused");
    }
    let connects = |meter: &mut Meter| {
        ["connects_total", "reconnects_total", "connections", "connections_lost_total"]
            .map(|name| meter.all(&format!("tokio_rdma_rpc_{name}")))
    };
    let none = || set([]);
    assert_eq!(connects(&mut meter), [set(["{end=client,outcome=failed}=1"]), none(), none(), none()]);
    assert_eq!(
        meter.all("http_client_request_duration_seconds"),
        set(["{http_request_method=GET,error_type=connect}=3"])
    );
    sleep(Duration::from_secs(1)).await;
    call(&channel, get("/Echo")).await.expect_err("refused");
    let server = network.serve();
    sleep(Duration::from_secs(1)).await;
    call(&channel, get("/Echo")).await.expect("an answer");
    assert_eq!(
        connects(&mut meter),
        [
            set([
                "{end=client,outcome=failed}=2",
                "{end=client,outcome=connected}=1",
                "{end=server,outcome=connected}=1"
            ]),
            set(["{outcome=failed}=1", "{outcome=connected}=1"]),
            set(["{end=client}=1", "{end=server}=1"]),
            none(),
        ]
    );
    // The server ends while it answers, and comes back.
    let lost = tokio::spawn(channel.clone().call(get("/Never")));
    settle().await;
    server.abort();
    lost.await.expect("no panic").expect_err("lost");
    settle().await;
    let _server = network.serve();
    call(&channel, get("/Echo")).await.expect("an answer");
    assert_eq!(
        meter.value("http_client_request_duration_seconds{http_request_method=GET,error_type=lost}"),
        1.0
    );
    assert_eq!(
        meter.value("http_server_request_duration_seconds{http_request_method=GET,error_type=cancelled}"),
        1.0
    );
    let [_, again, open, losses] = connects(&mut meter);
    assert_eq!(again, set(["{outcome=failed}=1", "{outcome=connected}=2"]));
    assert_eq!(open, set(["{end=client}=1", "{end=server}=1"]));
    assert_eq!(losses, set(["{end=client,error_type=lost}=1"]));
    // An end in order is no loss.
    drop(channel);
    settle().await;
    let [_, _, open, losses] = connects(&mut meter);
    assert_eq!(open, set(["{end=client}=0", "{end=server}=0"]));
    assert_eq!(losses.len(), 1);
    // A peer that speaks something else, one that says nothing, one that breaks the rules, and one that vanishes.
    let mut streams = Vec::new();
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"", &[HELLO, &[0xFF; 12]].concat(), HELLO] {
        let mut stream = network.connect().expect("a server");
        stream.write_all(bytes).await.expect("written");
        streams.push(stream);
    }
    settle().await;
    streams.pop();
    sleep(Duration::from_secs(20)).await;
    let [counts, _, open, losses] = connects(&mut meter);
    assert!(counts.contains("{end=server,outcome=failed}=2"), "{counts:?}");
    assert_eq!(open, set(["{end=client}=0", "{end=server}=0"]));
    for series in ["{end=server,error_type=protocol}=1", "{end=server,error_type=lost}=1"] {
        assert!(losses.contains(series), "{losses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn answers_before_the_end_of_the_request_are_resets_of_no_error() {
    let mut meter = Meter::install();
    let network = Network::default();
    let _server = network.serve();
    let request = Request::post("/Missing").body(endless_request()).expect("a request");
    let answer = network.channel().call(request).await.expect("an answer");
    answer.into_body().collect().await.expect("its end");
    settle().await;
    assert_eq!(meter.value("tokio_rdma_rpc_resets_sent_total{end=server,code=none}"), 1.0);
    assert_eq!(meter.value("tokio_rdma_rpc_resets_received_total{end=client,code=none}"), 1.0);
    assert_eq!(meter.in_flight(), [0.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn answers_end_with_their_last_byte() {
    let mut meter = Meter::install();
    let network = Network::default();
    let _server = network.serve();
    let channel = network.channel();
    // By its length: nobody asks whether there is more.
    let mut request = get("/Echo");
    *request.body_mut() = vec![7; 200_000].into();
    let mut body = channel.clone().call(request).await.expect("an answer").into_body();
    let mut missing = 200_000;
    while missing > 0 {
        let frame = body.frame().await.expect("there is more").expect("an answer");
        missing -= frame.into_data().expect("bytes").len();
    }
    assert!(body.is_end_stream());
    drop(body);
    let series = "{http_request_method=GET,http_response_status_code=200}=1";
    assert_eq!(meter.all("http_client_request_duration_seconds"), set([series]));
    // Nor does a deadline pass behind the trailers.
    let mut request = grpc("/a.Service/Echo", 200_000);
    request.headers_mut().insert("grpc-timeout", HeaderValue::from_static("2S"));
    let mut body = channel.clone().call(request).await.expect("an answer").into_body();
    while !body.frame().await.expect("there is more").expect("an answer").is_trailers() {}
    sleep(Duration::from_secs(3)).await;
    assert!(body.frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn answers_dropped_unread_are_not_cancelled() {
    let mut meter = Meter::install();
    let network = Network::default();
    let server = network.serve();
    let mut channel = network.channel();
    let mut http = get("/Echo");
    *http.body_mut() = vec![7; 200_000].into();
    let mut whole = Vec::new();
    for request in [grpc("/e.Service/Echo", 200_000), http] {
        whole.push(channel.call(request).await.expect("an answer"));
    }
    let cut = channel.call(grpc("/e.Service/Endless", 10)).await.expect("an answer");
    settle().await;
    assert_eq!(meter.in_flight()[0], 3.0, "they have come, and nobody has read them");
    drop(whole);
    server.abort();
    settle().await;
    drop(cut);
    assert_eq!(
        meter.all("rpc_client_call_duration_seconds"),
        set([
            "{rpc_system_name=grpc,rpc_method=e.Service/Echo,rpc_status_code=OK}=1",
            "{rpc_system_name=grpc,rpc_method=e.Service/Endless,rpc_status_code=UNAVAILABLE,error_type=UNAVAILABLE}=1",
        ])
    );
    assert_eq!(
        meter.all("http_client_request_duration_seconds"),
        set(["{http_request_method=GET,http_response_status_code=200}=1"])
    );
    assert_eq!(meter.value("tokio_rdma_rpc_resets_sent_total{end=client,code=cancelled}"), 0.0);
}

/// Returns a body that never ends.
fn endless_request() -> impl Body<Data = Bytes, Error = Infallible> + Send + 'static {
    http_body_util::StreamBody::new(futures::stream::pending())
        .map_frame(|frame: http_body::Frame<Bytes>| frame)
}
