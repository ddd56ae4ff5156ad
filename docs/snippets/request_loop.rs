use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rdma::{AcceptParams, Adapter, Listener, QueuePairConfig, Request};

/// The most peers in their handshake.
const HANDSHAKES: usize = 256;
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Serves every peer, each in a task of its own.
pub async fn serve_requests(adapter: Adapter, listener: Listener) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        // Without a place, requests wait in the backlog, and further ones are rejected.
        let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
        let request = listener.request().await?;
        tokio::spawn(serve_one(adapter.clone(), request, place));
    }
}

/// Echoes the first message of a peer.
async fn serve_one(adapter: Adapter, request: Request, place: OwnedSemaphorePermit) -> io::Result<()> {
    let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
    let receive = queue_pair.receive(adapter.buffer(64)?)?;
    // A peer may never complete the connection.
    let connection = timeout(HANDSHAKE, request.accept(&queue_pair, AcceptParams::default())).await??;
    drop(place);
    let (result, buffer) = receive.await;
    let length = result?.bytes;
    queue_pair.send(buffer.part(0..length))?.await.0?;
    connection.disconnected().await;
    Ok(())
}
