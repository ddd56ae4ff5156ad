//! The client: reads the table of the server, and sends it changes.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_rdma::{
    Adapter, ConnectParams, Connection, Pool, PoolConfig, Provider, QueuePair, QueuePairConfig, RemoteRegion,
};

use crate::layout::{self, ANSWER, Answer, BUCKET, Change};

/// How long one attempt to connect may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the server may take for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a torn bucket is read again, with a longer pause each time, before that is an error.
const TORN_READS: u32 = 64;

/// A value, or its absence, and how it was read.
pub(crate) struct Found {
    pub(crate) value: Option<Vec<u8>>,
    /// The sequence number of the bucket: it grows with each change.
    pub(crate) sequence: u64,
    /// How many reads were torn before this one.
    pub(crate) torn: u32,
}

/// A connection to the store. After an error other than `StorageFull` and `ResourceBusy` it is of no more use.
pub(crate) struct Client {
    adapter: Adapter,
    queue_pair: QueuePair,
    connection: Connection,
    table: RemoteRegion,
    pool: Pool,
}

impl Client {
    /// Connects, and again after errors that may pass, until `patience` is over.
    pub(crate) async fn connect(server: SocketAddr, token: &str, patience: Duration) -> io::Result<Self> {
        let adapter = adapter_for(server)?;
        // An attempt that fails leaves both as they were.
        let (queue_pair, connector) = (adapter.queue_pair(QueuePairConfig::default())?, adapter.connector());
        let deadline = Instant::now() + patience;
        let mut pause = Duration::from_millis(50);
        let reply = loop {
            let params = ConnectParams::default().private_data(token).timeout(ATTEMPT_TIMEOUT);
            match connector.connect(&queue_pair, server, params).await {
                Ok(reply) => break reply,
                // `is_retryable` is false for `Rejected`: another attempt with this token is no better.
                Err(error) if !error.is_retryable() => return Err(error.into()),
                Err(error) if Instant::now() + pause >= deadline => {
                    let text = format!("no connection within {} s: {error}", patience.as_secs());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                Err(error) => {
                    eprintln!("client: {error}; the next attempt follows in {} ms", pause.as_millis())
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        };
        let table = RemoteRegion::decode(reply.private_data()).filter(|table| table.len() as usize >= BUCKET);
        let Some(table) = table else {
            return Err(io::Error::other(format!("{server} is no store: it did not say where its table is")));
        };
        let connection = reply.complete().await?;
        // Registered once: memory for a read of a bucket, and for an answer.
        let pool = adapter.pool(PoolConfig::new(BUCKET.max(ANSWER), 2))?;
        Ok(Self { adapter, queue_pair, connection, table, pool })
    }

    /// Reads a value, without the server's participation.
    pub(crate) async fn get(&self, key: &[u8]) -> io::Result<Found> {
        let offset = layout::offset(key, self.table.len() as usize);
        let place = u32::try_from(offset).map_err(io::Error::other)?;
        let bucket = self.table.part(place..place + BUCKET as u32)?;
        for torn in 0..TORN_READS {
            let read = async {
                let (outcome, bytes) = self.queue_pair.read(self.pool.get().await?, &bucket)?.await;
                outcome.map(|_| bytes).map_err(io::Error::from)
            };
            let bytes = match read.await {
                Ok(bytes) => bytes,
                Err(error) => return Err(self.explained(error).await),
            };
            if let Some((sequence, value)) = layout::decode(&bytes, key) {
                return Ok(Found { value, sequence, torn });
            }
            // Somebody has changed the bucket meanwhile, and may be about to do it again.
            sleep(Duration::from_micros(10) * torn).await;
        }
        Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!("the bucket of the key was changed during each of {TORN_READS} reads"),
        ))
    }

    /// Has the server make a change; returns the sequence number of the bucket after it.
    pub(crate) async fn change(&mut self, change: &Change) -> io::Result<u64> {
        let exchange = async {
            let request = self.adapter.buffer_from(&change.encode())?;
            // Before the request: the answer may be faster than this side.
            let answer = self.queue_pair.receive(self.pool.get().await?)?;
            self.queue_pair.send(request)?.await.0?;
            let (outcome, message) = answer.await;
            io::Result::Ok(Answer::decode(&message[..outcome?.bytes]))
        };
        match timeout(ANSWER_TIMEOUT, exchange).await {
            Ok(Ok(Some(Answer::Done(sequence)))) => Ok(sequence),
            Ok(Ok(Some(Answer::Full))) => {
                Err(io::Error::new(io::ErrorKind::StorageFull, "the bucket of the key is full"))
            }
            Ok(Ok(None)) => Err(io::Error::new(io::ErrorKind::InvalidData, "the store sent a wrong answer")),
            Ok(Err(error)) => Err(self.explained(error).await),
            Err(_) => {
                let text = format!("the store did not answer within {} s", ANSWER_TIMEOUT.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, text))
            }
        }
    }

    /// Disconnects; returns when the server has agreed.
    pub(crate) async fn close(self) -> io::Result<()> {
        Ok(self.connection.disconnect().await?)
    }

    /// The reason of the end of the connection, if that is why a request has failed.
    async fn explained(&self, error: io::Error) -> io::Error {
        if !self.connection.is_connected() {
            let reason = self.connection.disconnected().await;
            return io::Error::new(io::ErrorKind::ConnectionAborted, reason);
        }
        error
    }
}

/// The adapter from which a server is reached, a device before the software provider.
fn adapter_for(server: SocketAddr) -> io::Result<Adapter> {
    let mut last = io::Error::from(io::ErrorKind::Unsupported);
    for provider in Provider::all() {
        match provider.local_for(server.ip()).and_then(|local| provider.open(local)) {
            Ok(adapter) => return Ok(adapter),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}
