//! The client.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_rdma::RdmaConnector;
use tokio_rdma_rpc::{Channel, Config};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::service::interceptor::InterceptedService;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::certificates::{Identity, SERVER};
use crate::echo::{EchoClient, Note};
use crate::server::MESSAGE;

/// How long a connect may take, and a call that says nothing else.
const LIMIT: Duration = Duration::from_secs(5);

/// The channel with a limit for each call, which both ends keep.
pub(crate) type Limited = InterceptedService<Channel, fn(Request<()>) -> Result<Request<()>, Status>>;

/// Returns a channel to the server, which connects with its first call and after each loss. Without its certificate, a client
/// is not served.
pub(crate) fn channel(
    server: SocketAddr,
    identity: &Identity,
    shown: bool,
) -> Result<Limited, Box<dyn Error>> {
    let (connector, name) = (RdmaConnector::new(), ServerName::try_from(SERVER)?);
    let tls = TlsConnector::from(identity.client_config(shown)?);
    let config = Config::default().handshake_timeout(LIMIT);
    let channel = Channel::with_connector(SERVER, true, config, move || {
        let (connector, tls, name) = (connector.clone(), tls.clone(), name.clone());
        async move { tls.connect(name, connector.connect(server).await?).await }
    });
    Ok(InterceptedService::new(channel, limit))
}

/// Limits the time of a call.
fn limit(mut request: Request<()>) -> Result<Request<()>, Status> {
    if !request.metadata().contains_key("grpc-timeout") {
        request.set_timeout(LIMIT);
    }
    Ok(request)
}

/// Asks for the health of the service, and makes three calls, of which the server refuses one.
pub(crate) async fn call(channel: Limited) -> Result<(), Box<dyn Error>> {
    let service = HealthCheckRequest { service: "echo.Echo".to_owned() };
    let health = HealthClient::new(channel.clone()).check(service).await?.into_inner();
    println!("client: the service is {:?}", health.status());

    let mut client = EchoClient::new(channel);
    for text in ["hello", "over two hosts"] {
        let answer = client.say(Note::new(text)).await?.into_inner();
        println!("client: said {:?}", answer.text);
    }
    match client.say(Note::new(vec![7; MESSAGE + 1])).await {
        Err(status) if status.code() == Code::OutOfRange => println!("client: refused: {}", status.message()),
        Err(status) => return Err(status.into()),
        Ok(_) => return Err("the server took a message that is too long".into()),
    }
    Ok(())
}

/// Calls until the server is there. Its channel connects again by itself, with pauses between attempts that fail.
pub(crate) async fn call_again(channel: Limited) -> Result<(), Status> {
    let mut client = EchoClient::new(channel);
    loop {
        match client.say(Note::new("again")).await {
            Ok(answer) => {
                println!("client: the same channel said {:?}", answer.into_inner().text);
                return Ok(());
            }
            Err(status) if status.code() == Code::Unavailable => sleep(Duration::from_millis(50)).await,
            Err(status) => return Err(status),
        }
    }
}

/// Prints the service's own lines of the page of metrics, and the bytes of the streams beneath.
pub(crate) async fn print_metrics(server: SocketAddr) -> Result<(), Box<dyn Error>> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await?;
    let shown = ["service_calls_total{", "tokio_rdma_streams{", "tokio_rdma_received_bytes_total{"];
    let mut lines: Vec<_> =
        page.lines().filter(|line| shown.iter().any(|name| line.starts_with(name))).collect();
    lines.sort_unstable();
    for line in lines {
        println!("metrics: {line}");
    }
    Ok(())
}
