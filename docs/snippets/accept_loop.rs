use std::io;

use tokio_rdma::{AcceptParams, AcceptorConfig, Adapter, Listener, QueuePairConfig};

/// Echoes the first message of every peer.
pub async fn serve(adapter: Adapter, listener: Listener) -> io::Result<()> {
    let acceptor = listener.acceptor(AcceptorConfig::default(), move |request| {
        let adapter = adapter.clone();
        async move {
            let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
            // Post receives before accepting: the peer may send as soon as the connection is established.
            let receive = queue_pair.receive(adapter.buffer(64)?)?;
            let connection = request.accept(&queue_pair, AcceptParams::default()).await?;
            io::Result::Ok((connection, queue_pair, receive))
        }
    })?;
    loop {
        // Handshakes run in the background, each with a time limit: a silent peer delays no other.
        let (connection, queue_pair, receive) = acceptor.accept().await?;
        tokio::spawn(async move {
            let (result, buffer) = receive.await;
            let length = result?.bytes;
            queue_pair.send(buffer.part(0..length))?.await.0?;
            connection.disconnected().await;
            io::Result::Ok(())
        });
    }
}
