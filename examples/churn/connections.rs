//! Opens and closes many connections, both ends of each.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinSet;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Connection, Listener, QueuePair, QueuePairConfig};

use crate::usage::Usage;

/// One end of a connection, with the queue pair that it needs.
type End = (QueuePair, Connection);

/// Ends a connection: the active side says so, the other notices.
async fn close(active: bool, (queue_pair, connection): End) -> io::Result<()> {
    if active {
        connection.disconnect().await?;
    } else {
        connection.disconnected().await;
    }
    // Not before: without its queue pair a connection ends.
    drop(queue_pair);
    Ok(())
}

/// Makes `count` connections, `concurrency` at a time, and hands both ends of each to `keep`.
async fn connections<K, F>(stage: &Stage, count: u64, keep: K) -> io::Result<()>
where
    K: Fn(bool, End) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = io::Result<()>> + Send,
{
    let mut workers = JoinSet::new();
    for active in [true, false] {
        let left = Arc::new(AtomicU64::new(count));
        for _ in 0..stage.concurrency.min(count) {
            let (stage, left, keep) = (stage.clone(), left.clone(), keep.clone());
            workers.spawn(async move {
                while left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                    .is_ok()
                {
                    keep(active, stage.one_end(active).await?).await?;
                }
                io::Result::Ok(())
            });
        }
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    Ok(())
}

/// The adapter, and a listener on it.
#[derive(Clone)]
pub(crate) struct Stage {
    adapter: Adapter,
    listener: Listener,
    address: SocketAddr,
    concurrency: u64,
}

impl Stage {
    pub(crate) fn new(concurrency: u64) -> io::Result<Self> {
        let adapter = Adapter::open(Ipv4Addr::LOCALHOST)?;
        let listener = adapter.listener();
        listener.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        listener.listen(0)?;
        let address = listener.local_addr()?;
        Ok(Self { adapter, listener, address, concurrency })
    }

    async fn one_end(&self, active: bool) -> io::Result<End> {
        let config = QueuePairConfig::default().receive_depth(16).send_depth(16);
        let queue_pair = self.adapter.queue_pair(config)?;
        let connection = if active {
            let connector = self.adapter.connector();
            connector.connect_and_complete(&queue_pair, self.address, ConnectParams::default()).await?
        } else {
            self.listener.accept_next(&queue_pair, AcceptParams::default()).await?
        };
        Ok((queue_pair, connection))
    }

    /// Connects and disconnects.
    pub(crate) async fn churn(&self, count: u64) -> io::Result<()> {
        connections(self, count, close).await
    }

    /// Opens `count` connections, looks, and closes them all.
    pub(crate) async fn hold(&self, count: u64) -> io::Result<Usage> {
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        connections(self, count, move |active, end| {
            // The receiver outlives this.
            let _ = sender.send((active, end));
            async { Ok(()) }
        })
        .await?;
        let mut held = Vec::new();
        while let Some(end) = receiver.recv().await {
            held.push(end);
        }
        let usage = Usage::now();
        let mut closing = JoinSet::new();
        for (active, end) in held {
            closing.spawn(close(active, end));
        }
        while let Some(closed) = closing.join_next().await {
            closed??;
        }
        usage
    }
}
