//! The server: the commands PING, ECHO, SET, GET and DEL.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at};
use tokio_rdma::{Acceptor, AcceptorConfig, Adapter};
use tokio_util::sync::CancellationToken;

use crate::channel::Channel;
use crate::resp::Value;

/// How often a client is sent a sign of life, as by Valkey.
const KEEPALIVE: Duration = Duration::from_secs(3);

/// The pairs.
type Store = Mutex<HashMap<Bytes, Bytes>>;

/// A server that listens.
pub(crate) struct Server(Acceptor<Channel>);

impl Server {
    /// Listens. Each client is given a ring of so many bytes.
    pub(crate) fn listen(address: SocketAddr, ring: usize) -> io::Result<Self> {
        let adapter = Adapter::open(address)?;
        let listener = adapter.listener();
        listener.bind(address)?;
        listener.listen(0)?;
        let accept = move |request| Channel::accept(request, adapter.clone(), ring);
        Ok(Self(listener.acceptor(AcceptorConfig::default(), accept)?))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr()
    }

    /// Serves until `last`, and from then on only the clients that there are. Dropping the future disconnects all.
    pub(crate) async fn serve(self, last: CancellationToken) -> io::Result<()> {
        let store = Arc::<Store>::default();
        let mut clients = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = self.0.accept() => accepted?,
                Some(served) = clients.join_next() => {
                    served?;
                    continue;
                }
                () = last.cancelled() => break,
            };
            let (mut channel, store) = (accepted, store.clone());
            clients.spawn(async move {
                let Err(error) = serve(&mut channel, &store).await;
                let end = channel.explained(error).await;
                println!("server: {}: {end}", channel.connection().peer_addr());
            });
        }
        // Who comes now is refused.
        drop(self.0);
        clients.join_all().await;
        Ok(())
    }
}

/// Answers the commands of a client until the connection ends; returns why.
async fn serve(channel: &mut Channel, store: &Store) -> io::Result<Infallible> {
    let mut keepalive = interval_at(Instant::now() + KEEPALIVE, KEEPALIVE);
    let mut answers = Vec::new();
    loop {
        // All that has come is answered by one write.
        while let Some(command) = Value::decode(&mut channel.received)? {
            let words = command.words().unwrap_or_default();
            answer(&words, store).encode(&mut answers);
        }
        channel.send(&answers).await?;
        answers.clear();
        tokio::select! {
            received = channel.receive() => received?,
            _ = keepalive.tick() => channel.keep_alive()?,
        }
    }
}

/// Does what a command says.
fn answer(words: &[Bytes], store: &Store) -> Value {
    let name = words.first().map(|word| word.to_ascii_uppercase()).unwrap_or_default();
    let mut store = store.lock().expect("no panic holds the lock");
    match (&name[..], words.get(1..).unwrap_or_default()) {
        (b"PING", []) => Value::Simple("PONG".to_owned()),
        (b"PING" | b"ECHO", [text]) => Value::Bulk(text.clone()),
        (b"SET", [key, value]) => {
            store.insert(key.clone(), value.clone());
            Value::Simple("OK".to_owned())
        }
        (b"GET", [key]) => store.get(key).cloned().map_or(Value::Nil, Value::Bulk),
        (b"DEL", keys @ [_, ..]) => {
            let deleted = keys.iter().filter(|key| store.remove(*key).is_some()).count();
            Value::Integer(i64::try_from(deleted).unwrap_or(i64::MAX))
        }
        // Valkey's test of a client asks for it. Nothing is saved here.
        (b"BGSAVE", []) => Value::Simple("Background saving started".to_owned()),
        _ => Value::Error(format!(
            "ERR unknown command or wrong arguments: {}",
            String::from_utf8_lossy(&name)
        )),
    }
}
