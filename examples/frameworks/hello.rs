//! tonic in messages, from nothing: a server, its client, and one call.
#![allow(clippy::print_stdout, reason = "a program that prints")]

use tokio_rdma::RdmaListener;
use tokio_rdma_rpc::{Channel, serve};
use tonic::service::Routes;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = RdmaListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let (_reporter, health) = tonic_health::server::health_reporter();
    tokio::spawn(serve(listener, Routes::new(health)));

    let mut client = HealthClient::new(Channel::connect(address).await?);
    let answer = client.check(HealthCheckRequest::default()).await?;
    println!("answer: {:?}", answer.into_inner().status());
    Ok(())
}
