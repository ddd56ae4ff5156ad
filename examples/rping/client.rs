//! The client: owns the memory that the server reads and writes.

use std::io;

use tokio_rdma::{Access, ConnectParams, RemoteRegion};

use crate::messages::Messages;
use crate::{LIMITS, Options, text};

/// The characters of a text, after its number; each text starts one further on.
const ALPHABET: std::ops::RangeInclusive<u8> = b'A'..=b'z';

pub(crate) async fn run(options: &Options) -> io::Result<()> {
    let adapter = options.adapter()?;
    let size = usize::try_from(options.size).map_err(io::Error::other)?;
    let source = adapter.register(size, Access::REMOTE_READ).await?;
    let sink = adapter.register(size, Access::REMOTE_WRITE).await?;

    let mut messages = Messages::new(options, &adapter)?;
    let connector = adapter.connector();
    let params = ConnectParams::default().read_limits(LIMITS);
    let connect = connector.connect_and_complete(&messages.queue_pair, options.server_address(), params);
    let connection = options.wait(connect).await??;

    let mut ping = 0;
    while options.count == 0 || ping < options.count {
        let sent = ping_text(ping, size);
        source.write(0, &sent)?;
        ask(&mut messages, source.remote()).await?;
        ask(&mut messages, sink.remote()).await?;
        let mut received = vec![0; size];
        sink.read(0, &mut received)?;
        if options.validate && sent != received {
            return Err(io::Error::other("data mismatch!"));
        }
        if options.verbose {
            println!("ping data: {}", text(&received));
        }
        ping = ping.wrapping_add(1);
    }
    options.wait(connection.disconnect()).await??;
    eprintln!("client DISCONNECT EVENT...");
    Ok(())
}

/// Offers memory, and waits until the server has made use of it.
async fn ask(messages: &mut Messages<'_>, region: RemoteRegion) -> io::Result<()> {
    messages.say(region).await?;
    messages.hear().await?.ok_or_else(|| io::Error::other("the server has left before the last text"))?;
    Ok(())
}

fn ping_text(ping: u32, size: usize) -> Vec<u8> {
    let mut text = format!("rdma-ping-{ping}: ").into_bytes();
    let start = ping as usize % ALPHABET.count();
    let letters = ALPHABET.cycle().skip(start).take(size.saturating_sub(text.len() + 1));
    text.extend(letters);
    text.truncate(size - 1);
    text.push(0);
    text
}
