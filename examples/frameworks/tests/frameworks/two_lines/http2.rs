//! The program over TCP, by tonic's transport.

use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Server};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

async fn server(address: &str, routes: Routes) -> Outcome<()> {
    Ok(Server::builder().add_routes(routes).serve(address.parse()?).await?)
}

async fn channel(address: &str) -> Outcome<Channel> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?.connect().await?)
}

#[path = "program.rs"]
#[allow(clippy::duplicate_mod, reason = "the same program for two transports")]
pub(super) mod program;
