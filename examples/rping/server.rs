//! The server: reads and writes the client's memory.

use std::io;

use tokio_rdma::types::RemoteKey;
use tokio_rdma::{AcceptParams, DisconnectReason, RemoteRegion, Status};

use crate::messages::Messages;
use crate::{LIMITS, Options, text};

/// The longest text of the original.
const LONGEST: u32 = 64 << 10;
/// The content of a "go on": nothing.
const GO_ON: RemoteRegion = RemoteRegion::new(0, RemoteKey(0), 0);

pub(crate) async fn run(options: &Options) -> io::Result<()> {
    let adapter = options.adapter()?;
    let listener = adapter.listener();
    listener.bind(options.server_address())?;
    listener.listen(3)?;
    let mut messages = Messages::new(options, &adapter)?;
    let accept = listener.accept_next(&messages.queue_pair, AcceptParams::default().read_limits(LIMITS));
    let connection = options.wait(accept).await??;

    while let Some(source) = messages.hear().await? {
        if source.len() > LONGEST {
            return Err(io::Error::other(format!("a text of {} bytes", source.len())));
        }
        let room = adapter.buffer(usize::try_from(source.len()).map_err(io::Error::other)?)?;
        let (outcome, ping) = options.wait(messages.queue_pair.read(room, &source)?).await?;
        outcome?;
        if options.verbose {
            println!("server ping data: {}", text(&ping));
        }
        messages.say(GO_ON).await?;
        let Some(sink) = messages.hear().await? else { break };
        // The text and its zero, as the original does.
        let length = ping.iter().position(|byte| *byte == 0).map_or(ping.len(), |zero| zero + 1);
        options.wait(messages.queue_pair.write(ping.part(0..length), &sink)?).await?.0?;
        let last = messages.say(GO_ON).await;
        // A client that has everything leaves at once, and may take the acknowledgement of its device with it. That it has left
        // in good order is checked below.
        if last.as_ref().is_err_and(|error| Status::from_io(error) == Status::CANCELED) {
            break;
        }
        last?;
    }
    let reason = options.wait(connection.disconnected()).await?;
    eprintln!("server DISCONNECT EVENT...");
    if reason == DisconnectReason::Peer { Ok(()) } else { Err(io::Error::other(reason)) }
}
