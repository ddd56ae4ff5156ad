//! A connection over loopback, both ends of it in this process.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::runtime::{Builder, Runtime};
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Connection, Listener, QueuePair, QueuePairConfig};

/// A runtime with a worker for each end.
pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// An adapter, and a listener on it.
pub(crate) struct Stage {
    pub(crate) adapter: Adapter,
    listener: Listener,
    address: SocketAddr,
}

impl Stage {
    /// To be made inside of the runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let adapter = Adapter::open(Ipv4Addr::LOCALHOST)?;
        let listener = adapter.listener();
        listener.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        listener.listen(0)?;
        let address = listener.local_addr()?;
        Ok(Self { adapter, listener, address })
    }

    /// A queue pair for one end.
    pub(crate) fn queue_pair(&self) -> io::Result<QueuePair> {
        Ok(self.adapter.queue_pair(QueuePairConfig::default())?)
    }

    /// Connects the queue pairs, the active one first.
    pub(crate) async fn connect(&self, here: &QueuePair, there: &QueuePair) -> io::Result<[Connection; 2]> {
        let connector = self.adapter.connector();
        let active = async {
            io::Result::Ok(
                connector.connect_and_complete(here, self.address, ConnectParams::default()).await?,
            )
        };
        let passive =
            async { io::Result::Ok(self.listener.accept_next(there, AcceptParams::default()).await?) };
        let (active, passive) = tokio::try_join!(active, passive)?;
        Ok([active, passive])
    }
}
