//! The client.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::timeout;

use crate::channel::Channel;
use crate::resp::Value;

/// How long the server may take for its replies.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// How many commands of a check are under way.
const PIPELINE: usize = 16;
/// The lengths of the values of a check. The longest fill a ring of the usual length several times.
const LENGTHS: [usize; 8] = [0, 1, 100, 1024, 4095, 65_536, 300_000, (3 << 20) + 7];

/// A connection to a server.
pub(crate) struct Client {
    channel: Channel,
}

impl Client {
    pub(crate) async fn connect(server: SocketAddr, ring: usize) -> io::Result<Self> {
        Ok(Self { channel: Channel::connect(server, ring).await? })
    }

    /// Sends commands together; returns their replies.
    pub(crate) async fn call(&mut self, commands: &[Value]) -> io::Result<Vec<Value>> {
        let mut bytes = Vec::new();
        commands.iter().for_each(|command| command.encode(&mut bytes));
        let exchange = async {
            self.channel.send(&bytes).await?;
            let mut replies = Vec::new();
            while replies.len() < commands.len() {
                match Value::decode(&mut self.channel.received)? {
                    Some(reply) => replies.push(reply),
                    None => self.channel.receive().await?,
                }
            }
            io::Result::Ok(replies)
        };
        match timeout(REPLY_TIMEOUT, exchange).await? {
            Err(error) => Err(self.channel.explained(error).await),
            replies => replies,
        }
    }

    /// Stores, reads and deletes so many values of several lengths, and compares each; returns what it has done.
    pub(crate) async fn check(&mut self, values: usize) -> io::Result<String> {
        // No other client has this address.
        let own = self.channel.connection().local_addr();
        let exchange = |name, number| {
            let (key, value) = (format!("check:{own}:{number}"), value(number));
            match name {
                "SET" => (Value::command(&[b"SET", key.as_bytes(), &value]), Value::Simple("OK".to_owned())),
                "GET" => (Value::command(&[name, &key]), Value::Bulk(value.into())),
                _ => (Value::command(&[name, &key]), Value::Integer(1)),
            }
        };
        for first in (0..values).step_by(PIPELINE) {
            let batch = first..values.min(first + PIPELINE);
            for name in ["SET", "GET", "DEL"] {
                let exchanges = batch.clone().map(|number| exchange(name, number));
                let (commands, expected): (Vec<_>, Vec<_>) = exchanges.unzip();
                if self.call(&commands).await? != expected {
                    return Err(io::Error::other(format!("{name} of the values {batch:?}: a wrong reply")));
                }
            }
        }
        let bytes: usize = (0..values).map(|number| value(number).len()).sum();
        let (theirs, ours) = self.channel.rings;
        Ok(format!("{values} values, {bytes} bytes each way, {ours} rings filled, {theirs} by the server"))
    }

    pub(crate) async fn close(self) -> io::Result<()> {
        self.channel.close().await
    }
}

/// The value of a check with this number: each byte depends on its place.
fn value(number: usize) -> Vec<u8> {
    let length = LENGTHS[number % LENGTHS.len()];
    (0..length).map(|place| (place * 31 + number * 7 + (place >> 8)) as u8).collect()
}
