//! The server: keeps the table, lets clients read it, and changes it on request.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rdma::{
    AcceptParams, Acceptor, AcceptorConfig, Access, Adapter, Buffer, Connection, DisconnectReason, Op,
    QueuePair, QueuePairConfig, Region, Request, WorkOptions,
};
use tokio_util::sync::CancellationToken;

use crate::layout::{self, ANSWER, Answer, BUCKET, Change, Pairs};

/// The number of buckets.
const BUCKETS: usize = 256;

/// The pairs, and the memory from which clients read them.
pub(crate) struct Store {
    /// The sequence number and the pairs of each bucket.
    buckets: Mutex<Vec<(u64, Pairs)>>,
    /// The same, encoded. Clients may read it and may not write it.
    table: Region,
}

impl Store {
    async fn new(adapter: &Adapter) -> io::Result<Self> {
        let table = adapter.register(BUCKETS * BUCKET, Access::REMOTE_READ).await?;
        let buckets = vec![(0, Pairs::new()); BUCKETS];
        for (place, (sequence, pairs)) in buckets.iter().enumerate() {
            let bytes = layout::encode(*sequence, pairs).ok_or(io::ErrorKind::InvalidData)?;
            table.write(place * BUCKET, &bytes)?;
        }
        Ok(Self { buckets: buckets.into(), table })
    }

    /// Makes a change. A client may read the bucket at the same time, and then sees by the checksum that it is torn. The
    /// checksum detects any order in which the bytes become visible, so that no fence is needed between the writes. The answer
    /// to the change is posted after them, so that a client that has it reads the new bucket.
    ///
    /// `halfway` is called in the middle of the copy, where the scheduler may stop a thread at any time. The demonstration
    /// waits there.
    pub(crate) fn change(&self, change: Change, halfway: impl FnOnce()) -> io::Result<Answer> {
        let offset = layout::offset(change.key(), self.table.len());
        let mut buckets = self.buckets.lock().expect("no panic holds the lock");
        let (sequence, pairs) = &mut buckets[offset / BUCKET];
        let mut changed = pairs.clone();
        match change {
            Change::Put { key, value } => drop(changed.insert(key, value)),
            Change::Delete { key } => drop(changed.remove(&key)),
        }
        let Some(bytes) = layout::encode(*sequence + 1, &changed) else { return Ok(Answer::Full) };
        let (first, second) = bytes.split_at(BUCKET / 2);
        self.table.write(offset, first)?;
        halfway();
        self.table.write(offset + first.len(), second)?;
        (*sequence, *pairs) = (*sequence + 1, changed);
        Ok(Answer::Done(*sequence))
    }
}

/// A client that has been accepted.
struct Client {
    connection: Connection,
    queue_pair: QueuePair,
    /// Always posted, except between a change and its answer.
    receive: Op<Buffer>,
    /// One of the places of the server.
    _place: OwnedSemaphorePermit,
}

/// A server that listens.
pub(crate) struct Server {
    acceptor: Acceptor<Client>,
    store: Arc<Store>,
}

impl Server {
    /// Listens, for clients that have the token, and for `most` of them at a time.
    pub(crate) async fn listen(address: SocketAddr, token: &str, most: usize) -> io::Result<Self> {
        let adapter = Adapter::open(address)?;
        let store = Arc::new(Store::new(&adapter).await?);
        let listener = adapter.listener();
        listener.bind(address)?;
        listener.listen(0)?;
        let places = Arc::new(Semaphore::new(most));
        let (token, table) = (Arc::<str>::from(token), store.table.remote().to_bytes());
        let acceptor = listener.acceptor(AcceptorConfig::default(), move |request| {
            let (adapter, token, places) = (adapter.clone(), token.clone(), places.clone());
            async move { admit(request, &adapter, &token, places, table).await }
        })?;
        Ok(Self { acceptor, store })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.acceptor.local_addr()
    }

    /// The store, for changes by the server's own program.
    pub(crate) fn store(&self) -> Arc<Store> {
        self.store.clone()
    }

    /// Serves until `stop`, and then until every client has its last answer.
    pub(crate) async fn serve(self, stop: CancellationToken) -> io::Result<()> {
        let mut clients = JoinSet::new();
        let outcome = loop {
            let client = tokio::select! {
                accepted = self.acceptor.accept() => match accepted {
                    Ok(client) => client,
                    Err(error) => break Err(error),
                },
                Some(served) = clients.join_next() => {
                    served?;
                    continue;
                }
                () = stop.cancelled() => break Ok(()),
            };
            let (store, stop) = (self.store.clone(), stop.clone());
            clients.spawn(async move {
                let peer = client.connection.peer_addr();
                let how = serve(client, &store, &stop).await.unwrap_or_else(|error| error.to_string());
                println!("server: {peer}: {how}");
            });
        };
        // No new clients from here on: the port is free for the next server.
        drop(self.acceptor);
        stop.cancel();
        clients.join_all().await;
        outcome
    }
}

/// Accepts a client that has the token, with the place of the table as private data.
async fn admit(
    request: Request,
    adapter: &Adapter,
    token: &str,
    places: Arc<Semaphore>,
    table: [u8; 16],
) -> io::Result<Client> {
    // The token is not encrypted. It keeps out the clients of another store, and no attacker who can read the network.
    if unpadded(request.private_data()) != token.as_bytes() {
        println!("server: {}: rejected, because its token is wrong", request.peer_addr());
        request.reject(b"wrong token").await?;
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // A request that is dropped is refused, not rejected: the client may try again, and may find a place then.
    let place = places.try_acquire_owned().map_err(io::Error::other)?;
    let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
    // Posted before the accept: the first change may arrive at once.
    let receive = queue_pair.receive(adapter.buffer(layout::REQUEST)?)?;
    let connection = request.accept(&queue_pair, AcceptParams::default().private_data(table)).await?;
    Ok(Client { connection, queue_pair, receive, _place: place })
}

/// Private data without the zeros with which InfiniBand and RoCE fill it up.
fn unpadded(data: &[u8]) -> &[u8] {
    let length = data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &data[..length]
}

/// Answers the changes of one client; its reads need nobody. Returns how the connection ended.
async fn serve(client: Client, store: &Store, stop: &CancellationToken) -> io::Result<String> {
    let Client { connection, queue_pair, mut receive, _place } = client;
    loop {
        let received = tokio::select! {
            received = &mut receive => Some(received),
            () = stop.cancelled() => None,
        };
        if received.is_none() {
            // The next call of the client fails. Every change that was answered is done.
            connection.disconnect().await?;
        }
        let Some((Ok(received), message)) = received else {
            // The client may have left just before the server ended.
            return Ok(match connection.disconnected().await {
                DisconnectReason::Peer => "has left".to_owned(),
                DisconnectReason::Local => "disconnected, because the server ends".to_owned(),
                reason => reason.to_string(),
            });
        };
        // An error drops the queue pair, and with it the connection.
        let answer = store.change(Change::decode(&message[..received.bytes])?, || ())?.encode();
        // Before the answer, after which the client may send its next change.
        receive = queue_pair.receive(message)?;
        const { assert!(ANSWER <= 64, "the inline data that a queue pair allows by default") };
        queue_pair.send_inline(&[&answer], WorkOptions::default())?.await.0?;
    }
}
