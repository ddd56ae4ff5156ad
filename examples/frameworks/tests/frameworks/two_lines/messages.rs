//! The program over RDMA, in messages.

use tokio_rdma::RdmaListener;
use tokio_rdma_rpc::{Channel, serve};
use tonic::service::Routes;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

async fn server(address: &str, routes: Routes) -> Outcome<()> {
    Ok(serve(RdmaListener::bind(address).await?, routes).await?)
}

async fn channel(address: &str) -> Outcome<Channel> {
    Ok(Channel::connect(address).await?)
}

#[path = "program.rs"]
#[allow(clippy::duplicate_mod, reason = "the same program for two transports")]
pub(super) mod program;
