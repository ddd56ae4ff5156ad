//! Messages that keep their boundaries: a byte stream in the frames of `LengthDelimitedCodec`.

use std::io;

use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use tokio_rdma::{Adapter, RdmaStream, StreamConfig};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::stream::streams_with;
use super::within;

/// A stream and the frames in it.
pub type Frames = Framed<RdmaStream, LengthDelimitedCodec>;

/// The codec with this limit of a frame.
pub fn codec(longest: usize) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(longest).new_codec()
}

/// Both ends, the one that connected first, with the limit of each.
pub async fn ends_with(
    adapter: &Adapter,
    config: &StreamConfig,
    [active, passive]: [usize; 2],
) -> [Frames; 2] {
    let (connected, accepted) = streams_with(adapter, config, config).await;
    [Framed::new(connected, codec(active)), Framed::new(accepted, codec(passive))]
}

/// Sends a message, which there is room for sooner or later.
pub async fn send(frames: &mut Frames, message: impl Into<Bytes>) {
    within(frames.send(message.into())).await.expect("sent");
}

/// Sends what is held back.
///
/// The codec sends slices, too: [`SinkExt::flush`] alone has no type.
pub async fn flush(frames: &mut Frames) -> io::Result<()> {
    SinkExt::<Bytes>::flush(frames).await
}

/// Ends the direction of this side.
pub async fn close(frames: &mut Frames) -> io::Result<()> {
    SinkExt::<Bytes>::close(frames).await
}

/// The next message, which comes.
pub async fn next(frames: &mut Frames) -> BytesMut {
    within(frames.next()).await.expect("no end").expect("a message")
}
