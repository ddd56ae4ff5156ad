//! The client.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rdma::RdmaConnector;
use tonic::Code;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::certificates::{Identity, SERVER};
use crate::echo::{EchoClient, Note};
use crate::server::MESSAGE;

/// A channel to the server. Without its certificate, a client is not served.
pub(crate) async fn connect(
    server: SocketAddr,
    identity: &Identity,
    shown: bool,
) -> Result<Channel, Box<dyn Error>> {
    let mut tls = ClientTlsConfig::new().ca_certificate(identity.authority()).domain_name(SERVER);
    if shown {
        tls = tls.identity(identity.tonic());
    }
    let endpoint = Endpoint::from_shared(format!("https://{server}"))?
        .tls_config(tls)?
        .connect_timeout(Duration::from_secs(5))
        .timeout(Duration::from_secs(5));
    Ok(endpoint.connect_with_connector(RdmaConnector::new().tonic()).await?)
}

/// Asks for the health of the service, and makes three calls, of which the server refuses one.
pub(crate) async fn call(channel: Channel) -> Result<(), Box<dyn Error>> {
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
