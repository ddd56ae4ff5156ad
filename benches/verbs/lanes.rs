//! The round trips of `round_trips` with a lane at each end.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Instant;

use tokio_rdma::qp::{Done, Lane, LaneConfig};
use tokio_rdma::types::OpKind;
use tokio_rdma::{AcceptParams, ConnectParams};

use crate::Open;
use crate::round_trips::{DEPTH, MESSAGE};

fn config() -> LaneConfig {
    LaneConfig::new(4, MESSAGE).receive_depth(DEPTH).send_depth(DEPTH).send_entries(1)
}

/// Waits until a message has come. `None` when the connection has ended.
async fn message(lane: &mut Lane, room: &mut [Done]) -> io::Result<Option<Done>> {
    loop {
        let mut received = None;
        for done in lane.ready(room).await? {
            match done.kind() {
                OpKind::Receive if !done.is_success() => return Ok(None),
                OpKind::Receive => received = Some(*done),
                _ => {
                    done.ok()?;
                    lane.give(done.slot());
                }
            }
        }
        if received.is_some() {
            return Ok(received);
        }
    }
}

/// Echoes what one client sends, until it leaves.
pub(crate) async fn serve(open: Open, address: SocketAddr) -> io::Result<()> {
    let adapter = open.adapter(&open.provider()?)?;
    let listener = adapter.listener();
    listener.bind(address)?;
    listener.listen(1)?;
    println!("listening");
    let mut lane = adapter.lane(&config())?;
    let (id, end) = lane.queue_pair()?;
    for _ in 0..2 {
        let slot = lane.take().ok_or(io::ErrorKind::OutOfMemory)?;
        lane.receive(id, slot)?;
    }
    lane.ring();
    let _connection = listener.accept_next(&end, AcceptParams::default()).await?;
    let mut room = [Done::EMPTY; DEPTH];
    while let Some(done) = message(&mut lane, &mut room).await? {
        // Before the answer, so that the next message finds it.
        let slot = lane.take().ok_or(io::ErrorKind::OutOfMemory)?;
        lane.receive(id, slot)?;
        lane.send(id, done.slot(), done.bytes())?;
    }
    Ok(())
}

/// As many round trips as each line of standard input says; prints the median of each.
pub(crate) async fn ping(open: Open, address: SocketAddr) -> io::Result<()> {
    let adapter = open.adapter(&open.provider()?)?;
    let mut lane = adapter.lane(&config())?;
    let (id, end) = lane.queue_pair()?;
    let connector = adapter.connector();
    let connection = connector.connect_and_complete(&end, address, ConnectParams::default()).await?;
    let mut room = [Done::EMPTY; DEPTH];
    let mut line = String::new();
    // Nothing else goes on while this waits for a line.
    while io::stdin().read_line(&mut line)? > 0 {
        let count: usize = line.trim().parse().map_err(io::Error::other)?;
        line.clear();
        let mut samples = Vec::with_capacity(count);
        for _ in 0..count {
            let start = Instant::now();
            let (Some(back), Some(out)) = (lane.take(), lane.take()) else {
                return Err(io::ErrorKind::OutOfMemory.into());
            };
            lane.receive(id, back)?;
            lane.send(id, out, MESSAGE)?;
            let done = message(&mut lane, &mut room).await?.ok_or(io::ErrorKind::ConnectionReset)?;
            lane.give(done.slot());
            samples.push(start.elapsed());
        }
        samples.sort_unstable();
        let median = samples.get(count / 2).ok_or(io::ErrorKind::InvalidInput)?;
        println!("{}", median.as_nanos());
        io::stdout().flush()?;
    }
    Ok(connection.disconnect().await?)
}
