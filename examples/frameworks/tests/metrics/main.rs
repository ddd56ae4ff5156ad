//! The figures that the recorder of the facade `metrics` is told.
//!
//! Runs on: soft, rxe, siw

#[path = "../frameworks/authority.rs"]
#[allow(dead_code, reason = "the other program uses all of it")]
mod authority;
mod sessions;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use authority::Authority;
use common::stream::listening;
use common::*;
use futures::FutureExt;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::error::StreamBroken;
use tokio_rdma::io::TlsListener;
use tokio_rdma::{Adapter, ConnectParams, Connection, RdmaListener, RdmaStream, StreamConfig};

/// The figures that the recorder has been told so far.
struct Meter {
    snapshotter: Snapshotter,
    /// Sums, and of histograms the number of samples.
    values: HashMap<String, f64>,
}

impl Meter {
    /// The value of `name{label=value,..}`.
    fn value(&mut self, series: &str) -> f64 {
        // A snapshot empties the recorder.
        for (key, _unit, _description, value) in self.snapshotter.snapshot().into_vec() {
            let labels: Vec<_> =
                key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            let series = format!("{}{{{}}}", key.key().name(), labels.join(","));
            *self.values.entry(series).or_default() += match value {
                DebugValue::Counter(count) => count as f64,
                DebugValue::Gauge(value) => value.0,
                DebugValue::Histogram(samples) => {
                    assert!(samples.iter().all(|seconds| (0.0..1000.0).contains(&seconds.0)));
                    samples.len() as f64
                }
            };
        }
        self.values.get(series).copied().unwrap_or_default()
    }

    /// All series of a name.
    fn all(&mut self, name: &str) -> Vec<(String, f64)> {
        self.value("");
        let named = self.values.iter().filter(|(series, _)| series.split('{').next() == Some(name));
        named.map(|(series, value)| (series.clone(), *value)).collect()
    }
}

/// Both ends of a byte stream, the one that accepted first.
async fn streams(adapter: &Adapter, config: &StreamConfig) -> (RdmaStream, RdmaStream) {
    let listener = RdmaListener::bind_on(adapter, SocketAddr::new(v4(), 0), config).expect("listening");
    let connect = RdmaStream::connect_on(adapter, listener.local_addr().expect("an address"), config);
    let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
    (accepted.expect("accepted").0, connected.expect("connected"))
}

/// A recorder that looks at a connection when it is told something, as foreign code may.
struct Nosy {
    inner: DebuggingRecorder,
    connection: Arc<Mutex<Option<Connection>>>,
}

impl Recorder for Nosy {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.inner.describe_counter(name, unit, text);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.inner.describe_gauge(name, unit, text);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.inner.describe_histogram(name, unit, text);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.inner.register_counter(key, metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        if key.labels().any(|label| label.value() == "peer_gone") {
            let connection = self.connection.lock().expect("no panic").take();
            let _ = connection.map(|connection| connection.disconnected().now_or_never());
        }
        self.inner.register_gauge(key, metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.inner.register_histogram(key, metadata)
    }
}

// OBS-02: one test, because the recorder is that of the whole process.
#[tokio::test]
async fn the_recorder_is_told() {
    let recorder = DebuggingRecorder::new();
    let mut meter = Meter { snapshotter: recorder.snapshotter(), values: HashMap::new() };
    let looked_at = Arc::new(Mutex::new(None));
    let recorder = Nosy { inner: recorder, connection: looked_at.clone() };
    assert!(metrics::set_global_recorder(recorder).is_ok(), "the only one");
    tokio_rdma::metrics::describe();
    let adapter = adapter();

    // A call that fails, by its status.
    let config = StreamConfig::default();
    let outcome = within(RdmaStream::connect_on(&adapter, device::nobody(v4()), &config)).await;
    let status = outcome.expect_err("nobody is there").status();
    assert_eq!(meter.value(&format!("tokio_rdma_errors_total{{call=connect,status={status}}}")), 1.0);

    // Connections by state, how long each phase took, and what is open.
    let (mut one, mut other) = streams(&adapter, &config).await;
    assert_eq!(meter.value("tokio_rdma_connections{state=connected}"), 2.0);
    assert_eq!(meter.value("tokio_rdma_connections{state=connecting}"), 0.0);
    assert_eq!(meter.value("tokio_rdma_phase_seconds{state=connecting}"), 2.0, "one of them in vain");
    for state in ["replied", "completing", "requested", "accepting"] {
        assert_eq!(meter.value(&format!("tokio_rdma_phase_seconds{{state={state}}}")), 1.0, "{state}");
    }
    assert_eq!(meter.value("tokio_rdma_streams{kind=stream}"), 2.0);

    // Bytes each way.
    for length in [10, 2000] {
        within(one.write_all(&vec![7; length])).await.expect("written");
        within(other.read_exact(&mut vec![0; length])).await.expect("read");
    }
    assert_eq!(meter.value("tokio_rdma_sent_bytes_total{kind=stream}"), 2010.0);
    assert_eq!(meter.value("tokio_rdma_received_bytes_total{kind=stream}"), 2010.0);
    within(other.write_all(b"left")).await.expect("written");

    // A write that waits is one, however often it is looked at.
    let config = StreamConfig::default().receive_buffer(4096).send_buffer(4096);
    let (mut reader, mut writer) = streams(&adapter, &config).await;
    let mut write = Box::pin(writer.write_all(&[7; 100_000]));
    let mut bytes = vec![0; 100_000];
    within(async { tokio::try_join!(&mut write, reader.read_exact(&mut bytes)) }).await.expect("moved");
    drop(write);
    assert_eq!(meter.value("tokio_rdma_streams{kind=stream}"), 4.0);
    assert_eq!(meter.value("tokio_rdma_sent_bytes_total{kind=stream}"), 102_014.0);
    assert_eq!(meter.value("tokio_rdma_received_bytes_total{kind=stream}"), 102_010.0);
    let before = meter.value("tokio_rdma_credits_exhausted_total{kind=stream}");
    let mut write = Box::pin(writer.write_all(&[7; 10_000]));
    for _ in 0..10 {
        assert!((&mut write).now_or_never().is_none(), "there is no room for all");
    }
    assert_eq!(meter.value("tokio_rdma_credits_exhausted_total{kind=stream}") - before, 1.0);
    within(async { tokio::try_join!(&mut write, reader.read_exact(&mut bytes[..10_000])) })
        .await
        .expect("moved");
    drop(write);
    within(writer.shutdown()).await.expect("shut down");
    assert_eq!(within(reader.read(&mut bytes)).await.expect("the end"), 0);
    drop((reader, writer));
    // IO-10: two listeners for streams, with a peer each.
    assert_eq!(meter.value("tokio_rdma_accepts_total{kind=stream,outcome=accepted}"), 2.0);
    assert_eq!(meter.value("tokio_rdma_half_open{kind=stream}"), 0.0);
    assert!(meter.value("tokio_rdma_accepts_total{kind=listener,outcome=requested}") >= 2.0);
    assert!(meter.all("tokio_rdma_broken_total").is_empty(), "all in good order");

    // A stream that breaks is counted, and nothing stays behind. The recorder is told without a lock of the connection.
    *looked_at.lock().expect("no panic") = Some(one.connection().clone());
    within(one.readable()).await.expect("readable");
    other.set_zero_linger().expect("set");
    drop(other);
    let mut left = Vec::new();
    let error = within(one.read_to_end(&mut left)).await.expect_err("it is gone");
    assert_eq!(left, b"left");
    let broken = error.get_ref().and_then(|inner| inner.downcast_ref::<StreamBroken>());
    let status = broken.expect("an error of ours").status();
    // The end that aborts may be counted, too.
    let count = meter.value(&format!("tokio_rdma_broken_total{{kind=stream,status={status}}}"));
    assert!((1.0..=2.0).contains(&count), "{count}");
    assert!(looked_at.lock().expect("no panic").is_none(), "it has looked");
    drop(one);
    within(async {
        let mut open = || [meter.all("tokio_rdma_connections"), meter.all("tokio_rdma_streams")].concat();
        while open().iter().any(|(_, count)| *count != 0.0) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(meter.value("tokio_rdma_phase_seconds{state=connected}"), 4.0);
    failures_are_counted(&adapter, &mut meter).await;
}

// IO-10: a peer of each kind of listener that speaks something else.
async fn failures_are_counted(adapter: &Adapter, meter: &mut Meter) {
    let config = StreamConfig::default();
    let streams = listening(adapter, &config);
    let params = ConnectParams::default().private_data(b"nonsense");
    let queue_pair = queue_pair(adapter);
    let connect = adapter.connector().connect(&queue_pair, streams.local_addr().expect("bound"), params);
    assert!(within(connect).await.is_err(), "rejected");
    let mut secured = TlsListener::new(listening(adapter, &config), Authority::new().server());
    let address = secured.local_addr().expect("bound");
    let server = tokio::spawn(async move { secured.accept().await.map(drop) });
    let mut stream = within(RdmaStream::connect_on(adapter, address, &config)).await.expect("connected");
    within(stream.write_all(b"GET / HTTP/1.1\r\n\r\n")).await.expect("written");
    // An alert, and the end.
    let _ = within(stream.read_to_end(&mut Vec::new())).await;
    for kind in ["stream", "tls"] {
        let series = format!("tokio_rdma_accepts_total{{kind={kind},outcome=failed}}");
        within(async {
            while meter.value(&series) != 1.0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    server.abort();
}
