//! Calls through the public API, over streams of the soft provider.

mod calls;
mod connected;
mod divide;
mod ends;
mod faults;
mod peers;
mod sessions;
mod status;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::task::JoinHandle;
use tokio_rdma::RdmaListener;
use tokio_rdma_rpc::{Channel, Error, Incoming, Server};
use tower_service::Service;

/// A server that ends with this.
struct Serving {
    address: SocketAddr,
    task: JoinHandle<std::io::Result<()>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Serving {
    /// Serves with this function.
    async fn with<F, A, B>(server: Server, answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
        A: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<tokio_rdma_rpc::BoxError>> + Send + 'static,
    {
        let listener = RdmaListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let service = tower::service_fn(move |request| {
            let answer = answer(request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        Self { address, task: tokio::spawn(server.serve(listener, service)) }
    }

    async fn channel(&self) -> Channel {
        common::within(Channel::connect(self.address.to_string())).await.expect("connected")
    }
}

/// Makes a call, and returns its answer with the whole body.
async fn call<B>(channel: &Channel, request: Request<B>) -> Result<Response<Bytes>, Error>
where
    B: Body<Data = Bytes, Error: Into<tokio_rdma_rpc::BoxError>> + Send + 'static,
{
    let answer = common::within(channel.clone().call(request)).await?;
    let (head, body) = answer.into_parts();
    let body = common::within(body.collect()).await?.to_bytes();
    Ok(Response::from_parts(head, body))
}

/// Returns bytes that differ from place to place.
fn pattern(length: usize) -> Bytes {
    (0..length).map(|place| (place % 251 + place / 251) as u8).collect()
}
