//! The figures of streams with sessions, over a network that loses their connections.

use std::collections::HashMap;
use std::time::Duration;

use metrics_util::debugging::DebuggingRecorder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;
use tokio_rdma::sim::{self, Host, Network};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{RdmaConnector, RdmaListener, RdmaStream, SessionConfig, StreamConfig};

use crate::Meter;

const SECOND: Duration = Duration::from_secs(1);
const BROKEN: &str = "tokio_rdma_broken_total";

/// Connects a stream with a session. The listener takes its later connections.
async fn connect([server, client]: &[Host; 2]) -> (RdmaListener, RdmaStream, RdmaStream) {
    let session = SessionConfig::default().give_up_after(30 * SECOND);
    let config = StreamConfig::default().session(session);
    let provider = |host: &Host| host.provider_with(SoftConfig::default().path_timeout(Some(5 * SECOND)));
    let adapter = provider(server).open(server.address()).expect("opened");
    let listener = RdmaListener::bind_on(&adapter, (server.address(), 0).into(), &config).expect("bound");
    let connector = RdmaConnector::new().provider(provider(client)).config(config);
    let connecting = connector.connect(listener.local_addr().expect("an address"));
    let (ours, theirs) = tokio::join!(connecting, listener.accept());
    (listener, ours.expect("connected"), theirs.expect("accepted").0)
}

// A lost connection of a stream that goes on, or ends in good order, is no stream that broke (OBS-02).
#[test]
fn only_streams_that_break_are_counted() {
    sim::check(0..3, async |network: Network| {
        let recorder = DebuggingRecorder::new();
        let mut meter = Meter { snapshotter: recorder.snapshotter(), values: HashMap::new() };
        let _guard = metrics::set_default_local_recorder(&recorder);
        let hosts = ["10.0.0.1", "10.0.0.2"].map(|address| network.host(address));

        let (listener, mut ours, mut theirs) = connect(&hosts).await;
        for _ in 0..5 {
            network.reset(&hosts[0], &hosts[1]);
            ours.write_all(b"on").await.expect("written");
            theirs.read_exact(&mut [0; 2]).await.expect("read");
        }
        assert_eq!(meter.value("tokio_rdma_sessions_total{outcome=resumed}"), 10.0);
        assert!(meter.all(BROKEN).is_empty(), "the stream goes on");
        drop(ours);
        assert_eq!(theirs.read(&mut [0]).await.expect("an end of file"), 0);
        drop((theirs, listener));
        sleep(60 * SECOND).await;
        assert!(meter.all(BROKEN).is_empty(), "all in good order");

        let (_listener, mut ours, mut theirs) = connect(&hosts).await;
        network.partition(&hosts[0], &hosts[1], 1000 * SECOND);
        for stream in [&mut ours, &mut theirs] {
            stream.read_u8().await.expect_err("there is no path");
        }
        assert_eq!(meter.all(BROKEN), [(format!("{BROKEN}{{kind=stream,status=IO_TIMEOUT}}"), 2.0)]);
    });
}
