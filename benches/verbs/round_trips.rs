//! 64 bytes there and back, in the steps of `pingpong.c`.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Instant;

use tokio_rdma::{AcceptParams, ConnectParams, QueuePairConfig};

use crate::Open;

pub(crate) const MESSAGE: usize = 64;
pub(crate) const DEPTH: usize = 16;

fn config() -> QueuePairConfig {
    QueuePairConfig::default().receive_depth(DEPTH).send_depth(DEPTH).receive_entries(1).send_entries(1)
}

/// Echoes what one client sends, until it leaves.
pub(crate) async fn serve(open: Open, address: SocketAddr) -> io::Result<()> {
    let adapter = open.adapter(&open.provider()?)?;
    let listener = adapter.listener();
    listener.bind(address)?;
    listener.listen(1)?;
    println!("listening");
    let queue_pair = adapter.queue_pair(config())?;
    let mut receives =
        [queue_pair.receive(adapter.buffer(MESSAGE)?)?, queue_pair.receive(adapter.buffer(MESSAGE)?)?];
    let _connection = listener.accept_next(&queue_pair, AcceptParams::default()).await?;
    loop {
        for receive in &mut receives {
            let (outcome, message) = (&mut *receive).await;
            // Ends with the client.
            if outcome.is_err() {
                return Ok(());
            }
            let (outcome, message) = queue_pair.send(message)?.await;
            outcome?;
            *receive = queue_pair.receive(message)?;
        }
    }
}

/// As many round trips as each line of standard input says; prints the median of each.
pub(crate) async fn ping(open: Open, address: SocketAddr) -> io::Result<()> {
    let adapter = open.adapter(&open.provider()?)?;
    let queue_pair = adapter.queue_pair(config())?;
    let (mut out, mut back) = (adapter.buffer(MESSAGE)?, adapter.buffer(MESSAGE)?);
    let connector = adapter.connector();
    let connection = connector.connect_and_complete(&queue_pair, address, ConnectParams::default()).await?;
    // Nothing else goes on while this waits for a line.
    let mut line = String::new();
    while io::stdin().read_line(&mut line)? > 0 {
        let count: usize = line.trim().parse().map_err(io::Error::other)?;
        line.clear();
        let mut samples = Vec::with_capacity(count);
        for _ in 0..count {
            let start = Instant::now();
            let receive = queue_pair.receive(back)?;
            let (outcome, message) = queue_pair.send(out)?.await;
            outcome?;
            out = message;
            let (outcome, message) = receive.await;
            outcome?;
            back = message;
            samples.push(start.elapsed());
        }
        samples.sort_unstable();
        let median = samples.get(count / 2).ok_or(io::ErrorKind::InvalidInput)?;
        println!("{}", median.as_nanos());
        io::stdout().flush()?;
    }
    Ok(connection.disconnect().await?)
}
