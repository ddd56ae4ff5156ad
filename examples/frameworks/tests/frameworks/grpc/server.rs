//! A server with a runtime of its own: it can be told to end, or killed like a process.

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::StreamExt;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};
use tonic::transport::{Endpoint, Error, Server};

use super::probe::{Probe, Probed};
use super::transport::Transport;
use crate::echo::{EchoClient, EchoServer};
use common::{patience, within};

/// Longer than the longest message of a test.
const LIMIT: usize = (16 << 20) + 1024;

/// A server that runs.
pub(crate) struct Running<T> {
    pub(crate) address: SocketAddr,
    pub(crate) probe: Arc<Probe>,
    runtime: Option<Runtime>,
    end: Option<oneshot::Sender<()>>,
    deaf: Option<oneshot::Receiver<()>>,
    task: Option<JoinHandle<Result<(), Error>>>,
    transport: PhantomData<T>,
}

impl<T: Transport> Running<T> {
    /// On a port of its own.
    pub(crate) async fn start() -> Self {
        Self::start_at(T::anywhere()).await
    }

    pub(crate) async fn start_at(address: SocketAddr) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let (end, until) = oneshot::channel::<()>();
        let (listening, deaf) = oneshot::channel::<()>();
        let (at, bound) = oneshot::channel();
        let probe = Probe::new();
        let service = EchoServer::new(Probed(Arc::clone(&probe))).max_decoding_message_size(LIMIT);
        let task = runtime.spawn(async move {
            let (incoming, address) = T::bind(address).await.expect("bound");
            at.send(address).expect("the test waits for it");
            // Dropped with the listener.
            let incoming = incoming.map(move |io| {
                let _listening = &listening;
                io
            });
            let until = async { drop(until.await) };
            Server::builder().add_service(service).serve_with_incoming_shutdown(incoming, until).await
        });
        let address = within(bound).await.expect("bound");
        Self {
            address,
            probe,
            runtime: Some(runtime),
            end: Some(end),
            deaf: Some(deaf),
            task: Some(task),
            transport: PhantomData,
        }
    }

    /// A client with a connection of its own, which it has when it needs it.
    pub(crate) fn client(&self) -> EchoClient {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).expect("a URI");
        EchoClient::new(T::channel(&endpoint)).max_decoding_message_size(LIMIT)
    }

    /// Tells it to end; returns when it listens no longer.
    pub(crate) async fn tell_to_end(&mut self) {
        let end = self.end.take().expect("told once");
        end.send(()).expect("it runs");
        let deaf = self.deaf.take().expect("told once");
        within(deaf).await.expect_err("dropped, not sent");
    }

    /// Waits until it has ended, with all its connections.
    pub(crate) async fn ended(mut self) {
        let task = self.task.take().expect("waited for once");
        within(task).await.expect("no panic").expect("no failure");
    }

    /// Drops all that it has, wherever it is.
    pub(crate) async fn kill(mut self) {
        let runtime = self.runtime.take().expect("killed once");
        let kill = spawn_blocking(|| runtime.shutdown_timeout(patience()));
        within(kill).await.expect("no panic");
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        // A runtime must not be waited for by a task of another.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
