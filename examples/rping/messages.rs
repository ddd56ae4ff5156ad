//! The messages: 16 bytes each, one in flight. Those of a client contain an address of memory, those of a server only a
//! confirmation.

use std::io;

use tokio_rdma::{Adapter, Buffer, Op, QueuePair, QueuePairConfig, RemoteRegion};

use crate::Options;

/// A queue pair, and the receive that is always posted before the peer is told something to answer.
pub(crate) struct Messages<'a> {
    options: &'a Options,
    adapter: Adapter,
    pub(crate) queue_pair: QueuePair,
    receive: Op<Buffer>,
}

impl<'a> Messages<'a> {
    pub(crate) fn new(options: &'a Options, adapter: &Adapter) -> io::Result<Self> {
        let queue_pair = adapter.queue_pair(QueuePairConfig::default().receive_depth(2).send_depth(16))?;
        let receive = queue_pair.receive(adapter.buffer(RemoteRegion::LEN)?)?;
        Ok(Self { options, adapter: adapter.clone(), queue_pair, receive })
    }

    /// The next message; nothing when the connection is over.
    pub(crate) async fn hear(&mut self) -> io::Result<Option<RemoteRegion>> {
        let (outcome, buffer) = self.options.wait(&mut self.receive).await?;
        let Ok(completion) = outcome else { return Ok(None) };
        let message =
            (completion.bytes == RemoteRegion::LEN).then(|| RemoteRegion::decode(&buffer)).flatten();
        self.receive = self.queue_pair.receive(buffer)?;
        message.map(Some).ok_or_else(|| io::Error::other(format!("a message of {} bytes", completion.bytes)))
    }

    /// Says where memory is, or anything.
    pub(crate) async fn say(&self, region: RemoteRegion) -> io::Result<()> {
        let message = self.adapter.buffer_from(&region.to_bytes())?;
        self.options.wait(self.queue_pair.send(message)?).await?.0?;
        Ok(())
    }
}
