//! The server.

use std::future::ready;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio_rdma::RdmaListener;
use tokio_rdma::io::TlsListener;
use tokio_rdma_rpc::{BoxError, Config, Server};
use tokio_rustls::rustls::ServerConfig;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::{BoxStream, http};
use tonic::service::Routes;
use tonic::{Request, Status, Streaming};
use tonic_health::server::health_reporter;
use tower::ServiceBuilder;
use tower::timeout::error::Elapsed;

use crate::echo::{Answer, Echo, EchoServer, Note, Total, Wish};
use crate::service::Plain;

/// The longest message that the server takes, in bytes.
pub(crate) const MESSAGE: usize = 64 << 10;
/// The calls at once of one connection: further ones wait at the client.
const OF_A_CONNECTION: u32 = 32;
/// The calls at once of all connections: further ones are refused.
const OF_ALL: usize = 256;
/// How long a call may take until its answer begins.
const CALL: Duration = Duration::from_secs(30);
/// How long calls may go on after the signal to end.
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

/// Serves calls over RDMA, and the metrics over TCP, until `stop`; then until the last call has ended, or `GRACE` has passed.
pub(crate) async fn serve(
    listener: RdmaListener,
    metrics: TcpListener,
    prometheus: PrometheusHandle,
    tls: Arc<ServerConfig>,
    stop: CancellationToken,
) -> io::Result<()> {
    let (reporter, health) = health_reporter();
    reporter.set_serving::<EchoServer<Counted>>().await;
    let echo = EchoServer::new(Counted(Plain)).max_decoding_message_size(MESSAGE);
    // Limits: the memory and the time that clients can take. All clones of the service share the number of calls.
    let service = ServiceBuilder::new()
        .map_result(into_answer)
        .load_shed()
        .concurrency_limit(OF_ALL)
        .timeout(CALL)
        .service(Routes::new(echo).add_service(health));
    let config = Config::default().max_calls(OF_A_CONNECTION).shutdown_timeout(GRACE);
    let listener = TlsListener::new(listener, tls).handshake_timeout(Duration::from_secs(5));

    let signal = async {
        stop.cancelled().await;
        // A load balancer that watches the health sends its next calls elsewhere.
        reporter.set_not_serving::<EchoServer<Counted>>().await;
        println!("server: takes no more calls");
    };
    let calls = Server::new().config(config).serve_with_shutdown(listener, service, signal);
    let page = Router::new().route("/metrics", get(move || ready(prometheus.render())));
    tokio::select! {
        ended = calls => ended?,
        // The page is there until the last call has ended.
        ended = axum::serve(metrics, page).into_future() => ended?,
    }
    println!("server: has ended");
    Ok(())
}

/// Answers with a status if a limit has ended the call.
fn into_answer(outcome: Result<http::Response<Body>, BoxError>) -> Result<http::Response<Body>, BoxError> {
    Ok(outcome.unwrap_or_else(|error| {
        let status = if error.is::<Elapsed>() {
            Status::deadline_exceeded("the call took too long")
        } else {
            // tonic knows the error of `load_shed`.
            Status::from_error(error)
        };
        status.into_http()
    }))
}
