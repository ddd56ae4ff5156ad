//! A session of a byte stream: both ends write and read at the same time, in pieces that are drawn.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::sleep;
use tokio_rdma::{RdmaListener, RdmaStream, StreamConfig};

use crate::world::World;

/// The most pieces in which the bytes of a direction are written.
const PIECES: u64 = 40;

/// A stream, from its beginning to its end.
pub(crate) async fn session(world: &World, port: u16) {
    let (server, client) = world.two_hosts();
    let (Some(passive), Some(active)) = (world.adapter(server), world.adapter(client)) else { return };
    let buffer = || *world.pick(&[2048, 4096, 65_536]);
    let config = StreamConfig::default().send_buffer(buffer()).receive_buffer(buffer());
    let listener = match RdmaListener::bind_on(&passive, (server.address(), port).into(), &config) {
        Ok(listener) => listener,
        Err(error) => {
            assert!(!world.calm, "{error:?}");
            return;
        }
    };
    world.count();
    let connect = RdmaStream::connect_on(&active, (server.address(), port).into(), &config);
    let connected = async {
        let connected = world.within("a stream to connect", connect).await;
        assert!(connected.is_ok() || !world.calm, "{connected:?}");
        connected.ok()
    };
    // The listener has its own patience with peers, so that this one ends when the other has failed.
    let (ours, theirs) = tokio::select! {
        biased;
        both = async { tokio::join!(connected, listener.accept()) } => both,
        () = sleep(world.patience()) => return,
    };
    let (Some(ours), Ok((theirs, _))) = (ours, theirs) else { return };
    let there = transfer(world, ours, theirs);
    there.await;
}

/// Moves bytes in both directions.
async fn transfer(world: &World, ours: RdmaStream, theirs: RdmaStream) {
    let (our_reader, our_writer) = ours.into_split();
    let (their_reader, their_writer) = theirs.into_split();
    tokio::join!(direction(world, our_writer, their_reader), direction(world, their_writer, our_reader),);
}

fn byte(place: usize) -> u8 {
    (place * 7 % 251) as u8
}

/// One direction. What arrives is a beginning of what was written, and all of it if neither end has failed.
async fn direction(world: &World, mut to: impl AsyncWrite + Unpin, mut from: impl AsyncRead + Unpin) {
    let piece = *world.pick(&[7, 500, 5000, 40_000]);
    let length = piece * world.draw(0..=40_000 / piece as u64).min(PIECES) as usize;
    let writing = async {
        let mut written = 0;
        while written < length {
            world.count();
            let bytes: Vec<u8> = (written..(written + piece).min(length)).map(byte).collect();
            match world.cut("a write", to.write(&bytes)).await {
                // It has written nothing.
                None => {}
                Some(Ok(count)) => written += count,
                Some(Err(error)) => return Err(error),
            }
            if world.once_in(20) {
                sleep(world.time(3000)).await;
            }
        }
        world.within("a shutdown", to.shutdown()).await
    };
    let reading = async {
        let mut found = 0;
        loop {
            world.count();
            let mut bytes = vec![0; *world.pick(&[1 + piece / 5, 4096, 20_000])];
            match world.cut("a read", from.read(&mut bytes)).await {
                None => {}
                Some(Ok(0)) => return (found, io::Result::Ok(())),
                Some(Ok(count)) => {
                    assert!(
                        bytes[..count]
                            .iter()
                            .enumerate()
                            .all(|(place, found_byte)| *found_byte == byte(found + place))
                    );
                    found += count;
                }
                Some(Err(error)) => return (found, Err(error)),
            }
            if world.once_in(20) {
                sleep(world.time(3000)).await;
            }
        }
    };
    let (written, (found, read)) = tokio::join!(writing, reading);
    assert!(found <= length);
    if world.calm {
        assert!(written.is_ok() && read.is_ok(), "{written:?}, {read:?}");
    }
    if written.is_ok() && read.is_ok() {
        assert_eq!(found, length, "bytes are lost");
    }
}
