//! Connections that are made, completed and ended, all at once, with a queue pair each: what cmtime does step by step.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use tokio::task::JoinSet;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, QueuePair, QueuePairConfig, Request};

use crate::Open;

/// As large as cmtime's.
fn queue_pair(adapter: &Adapter) -> io::Result<QueuePair> {
    let config = QueuePairConfig::default().receive_depth(1).send_depth(1);
    Ok(adapter.queue_pair(config.receive_entries(1).send_entries(1))?)
}

/// Accepts connections and sees each of them leave.
pub(crate) async fn accept(open: Open, address: SocketAddr) -> io::Result<()> {
    let adapter = open.adapter(&open.provider()?)?;
    let listener = adapter.listener();
    listener.bind(address)?;
    listener.listen(0)?;
    println!("listening");
    loop {
        let request = listener.request().await?;
        let adapter = adapter.clone();
        tokio::spawn(async move {
            if let Err(error) = serve(&adapter, request).await {
                println!("not accepted: {error}");
            }
        });
    }
}

async fn serve(adapter: &Adapter, request: Request) -> io::Result<()> {
    let queue_pair = queue_pair(adapter)?;
    let connection = request.accept(&queue_pair, AcceptParams::default()).await?;
    connection.disconnected().await;
    Ok(())
}

/// Connects so many at once, each of which ends as soon as it is established; prints the nanoseconds that
/// it took, with the adapter's opening and without.
pub(crate) async fn connect(open: Open, address: SocketAddr, count: usize) -> io::Result<()> {
    let provider = open.provider()?;
    let start = Instant::now();
    let adapter = open.adapter(&provider)?;
    let opened = Instant::now();
    let mut all = JoinSet::new();
    for _ in 0..count {
        all.spawn(once(adapter.clone(), address));
    }
    while let Some(outcome) = all.join_next().await {
        outcome??;
    }
    println!("{} {}", start.elapsed().as_nanos(), opened.elapsed().as_nanos());
    Ok(())
}

async fn once(adapter: Adapter, address: SocketAddr) -> io::Result<()> {
    let queue_pair = queue_pair(&adapter)?;
    let connector = adapter.connector();
    let connection = connector.connect_and_complete(&queue_pair, address, ConnectParams::default()).await?;
    Ok(connection.disconnect().await?)
}
