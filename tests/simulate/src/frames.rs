//! A session of messages: frames of `LengthDelimitedCodec` in a byte stream.

use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use tokio::time::sleep;
use tokio_rdma::{RdmaListener, RdmaStream, StreamConfig};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use crate::world::World;

/// The longest message.
const LONGEST: usize = 5000;

/// A connection that carries messages, from its beginning to its end.
pub(crate) async fn session(world: &World, port: u16) {
    let (server, client) = world.two_hosts();
    let (Some(passive), Some(active)) = (world.adapter(server), world.adapter(client)) else { return };
    let config = StreamConfig::default().receive_buffer(*world.pick(&[2048, 4096, 65_536]));
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
        let connected = world.within("messages to connect", connect).await;
        assert!(connected.is_ok() || !world.calm, "{connected:?}");
        connected.ok()
    };
    let (ours, theirs) = tokio::select! {
        biased;
        both = async { tokio::join!(connected, listener.accept()) } => both,
        () = sleep(world.patience()) => return,
    };
    let (Some(ours), Ok((theirs, _))) = (ours, theirs) else { return };
    let (our_sink, our_stream) = framed(ours).split();
    let (their_sink, their_stream) = framed(theirs).split();
    tokio::join!(direction(world, our_sink, their_stream), direction(world, their_sink, our_stream));
}

/// A stream and the frames in it.
fn framed(stream: RdmaStream) -> Framed<RdmaStream, LengthDelimitedCodec> {
    LengthDelimitedCodec::builder().max_frame_length(LONGEST).new_framed(stream)
}

fn message(number: usize, length: usize) -> Bytes {
    (0..length).map(|place| (number * 3 + place) as u8).collect()
}

/// One direction. The messages that arrive are the first ones that were sent, and all of them if neither end has failed.
async fn direction<Si, St, E, F>(world: &World, mut to: Si, mut from: St)
where
    Si: SinkExt<Bytes, Error = E> + Unpin,
    St: StreamExt<Item = Result<BytesMut, F>> + Unpin,
    E: std::fmt::Debug,
    F: std::fmt::Debug,
{
    let lengths: Vec<usize> = (0..world.draw(0..=20)).map(|_| *world.pick(&[0, 1, 100, LONGEST])).collect();
    let sending = async {
        for (number, length) in lengths.iter().enumerate() {
            world.count();
            world.within("a message to go", to.send(message(number, *length))).await?;
            if world.once_in(10) {
                sleep(world.time(3000)).await;
            }
        }
        world.within("a close", to.close()).await
    };
    let receiving = async {
        let mut found = 0;
        loop {
            world.count();
            let next = match world.once_in(4) {
                true => world.cut("a message", from.next()).await,
                false => Some(world.within("a message", from.next()).await),
            };
            match next {
                None => {}
                Some(None) => return (found, Ok(())),
                Some(Some(Ok(bytes))) => {
                    let length = *lengths.get(found).expect("a message that nobody has sent");
                    assert!(bytes == message(found, length), "message {found}");
                    found += 1;
                }
                Some(Some(Err(error))) => return (found, Err(error)),
            }
            if world.once_in(20) {
                sleep(world.time(3000)).await;
            }
        }
    };
    let (sent, (found, received)) = tokio::join!(sending, receiving);
    if world.calm {
        assert!(sent.is_ok() && received.is_ok(), "{sent:?}, {received:?}");
    }
    if sent.is_ok() && received.is_ok() {
        assert_eq!(found, lengths.len(), "messages are lost");
    }
}
