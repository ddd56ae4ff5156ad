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

/// The bytes of a direction, and the pieces in which they are written.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    piece: usize,
    length: usize,
}

impl Load {
    pub(crate) fn draw(world: &World) -> Self {
        let piece = *world.pick(&[7, 500, 5000, 40_000]);
        let length = piece * world.draw(0..=40_000 / piece as u64).min(PIECES) as usize;
        Self { piece, length }
    }

    /// Writes all of it, and the end behind it.
    pub(crate) async fn write(self, world: &World, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
        let Self { piece, length } = self;
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
    }

    /// Reads up to the end. What arrives is a beginning of what was written.
    pub(crate) async fn read(
        self,
        world: &World,
        mut from: impl AsyncRead + Unpin,
    ) -> (usize, io::Result<()>) {
        let mut found = 0;
        loop {
            world.count();
            let mut bytes = vec![0; *world.pick(&[1 + self.piece / 5, 4096, 20_000])];
            match world.cut("a read", from.read(&mut bytes)).await {
                None => {}
                Some(Ok(0)) => return (found, Ok(())),
                Some(Ok(count)) => {
                    let mut places = bytes[..count].iter().enumerate();
                    assert!(places.all(|(place, found_byte)| *found_byte == byte(found + place)));
                    found += count;
                    assert!(found <= self.length);
                }
                Some(Err(error)) => return (found, Err(error)),
            }
            if world.once_in(20) {
                sleep(world.time(3000)).await;
            }
        }
    }

    /// Checks the outcome of a direction: all has arrived if neither end has failed. `holds` is whether none may fail.
    pub(crate) fn check(
        self,
        written: &io::Result<()>,
        (found, read): &(usize, io::Result<()>),
        holds: bool,
    ) {
        assert!(!holds || written.is_ok() && read.is_ok(), "{written:?}, {read:?}");
        if written.is_ok() && read.is_ok() {
            assert_eq!(*found, self.length, "bytes are lost");
        }
    }
}

async fn direction(world: &World, to: impl AsyncWrite + Unpin, from: impl AsyncRead + Unpin) {
    let load = Load::draw(world);
    let (written, read) = tokio::join!(load.write(world, to), load.read(world, from));
    load.check(&written, &read, world.calm);
}
