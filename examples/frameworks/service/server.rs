//! The server.

use std::future::ready;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_rdma::RdmaListener;
use tokio_util::sync::CancellationToken;
use tonic::codegen::BoxStream;
use tonic::transport::{Server, ServerTlsConfig};
use tonic::{Request, Streaming};
use tonic_health::server::health_reporter;

use crate::certificates::Identity;
use crate::echo::{Answer, Echo, EchoServer, Note, Total, Wish};
use crate::service::Plain;

/// The longest message that the server takes, in bytes.
pub(crate) const MESSAGE: usize = 64 << 10;
/// How long a call may take.
const CALL: Duration = Duration::from_secs(30);
/// How long calls may go on after the server was told to end.
const GRACE: Duration = Duration::from_secs(10);

/// The service, with a counter of its calls.
struct Counted(Plain);

fn count(method: &'static str) {
    metrics::counter!("service_calls_total", "method" => method).increment(1);
}

impl Echo for Counted {
    async fn say(&self, request: Request<Note>) -> Answer<Note> {
        count("say");
        self.0.say(request).await
    }

    async fn count(&self, request: Request<Streaming<Note>>) -> Answer<Total> {
        count("count");
        self.0.count(request).await
    }

    async fn repeat(&self, request: Request<Wish>) -> Answer<BoxStream<Note>> {
        count("repeat");
        self.0.repeat(request).await
    }

    async fn chat(&self, request: Request<Streaming<Note>>) -> Answer<BoxStream<Note>> {
        count("chat");
        self.0.chat(request).await
    }
}

/// Serves calls over RDMA, and the metrics over TCP, until `stop`; then until the last call has ended.
pub(crate) async fn serve(
    listener: RdmaListener,
    metrics: TcpListener,
    prometheus: PrometheusHandle,
    identity: Identity,
    stop: CancellationToken,
) -> io::Result<()> {
    let (reporter, health) = health_reporter();
    reporter.set_serving::<EchoServer<Counted>>().await;
    let tls = ServerTlsConfig::new()
        .identity(identity.tonic())
        // A client without a certificate of the authority is not served.
        .client_ca_root(identity.authority())
        .timeout(Duration::from_secs(5));
    let router = Server::builder()
        .tls_config(tls)
        .map_err(io::Error::other)?
        // Limits: the memory and the time that a client can take.
        .max_concurrent_streams(64)
        .concurrency_limit_per_connection(32)
        .load_shed(true)
        .timeout(CALL)
        // Detects a client that is gone; the keep-alive of TCP has no effect here.
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .add_service(health)
        .add_service(EchoServer::new(Counted(Plain)).max_decoding_message_size(MESSAGE));

    let told = async {
        stop.cancelled().await;
        // A load balancer that watches the health sends its next calls elsewhere.
        reporter.set_not_serving::<EchoServer<Counted>>().await;
        println!("server: takes no more calls");
    };
    let calls = router.serve_with_incoming_shutdown(listener, told);
    let page = Router::new().route("/metrics", get(move || ready(prometheus.render())));
    let pages = axum::serve(metrics, page).with_graceful_shutdown(stop.clone().cancelled_owned());
    let calls = async { calls.await.map_err(io::Error::other) };
    let all = async { tokio::try_join!(calls, pages.into_future()) };
    let late = async {
        stop.cancelled().await;
        sleep(GRACE).await;
    };
    tokio::select! {
        ended = all => drop(ended?),
        () = late => println!("server: calls that took longer than {} s are cancelled", GRACE.as_secs()),
    }
    println!("server: has ended");
    Ok(())
}
